/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the network interfaces of an engine with several NICs are usable, as one queue sees it: UDP's and TCP's.
 *
 * The kernel tells by rtnetlink that some link has changed. Whatever it says, we then ask each NIC for its state: that
 * is what counts, also when messages were lost.
 *
 * Thread: the queue's owner; link_watch_doubt() whoever sleeps in the queue, too.
 */
#ifndef UCCL_LINK_WATCH_H
#define UCCL_LINK_WATCH_H

#include "nic/netdev.h"

#include <stdatomic.h>

struct link_watch {
    uint32_t count;                          /* of NICs; 0: the kernel's routes alone decide */
    const struct netdev *devs[NIC_ENDS_MAX]; /* what they were when the engine was opened */
    uint32_t interface[NIC_ENDS_MAX];        /* the kernel's numbers, as last seen */
    uint32_t up;                             /* bits: usable, as last seen */
    _Atomic uint32_t *told_down;             /* bits, of all queues: whose loss has been logged, by whichever saw it */
    int socket;                              /* any, to ask by */
    int netlink_fd;                          /* the kernel tells changes here; -1: it does not */
    _Atomic bool look;                       /* something has happened: see what; wait() sets it, too */
    uint32_t rounds;                         /* of link_watch_look() since netlink_fd was last read */
};

/* What a look has found. Bits: NICs. */
struct link_changes {
    uint32_t state;  /* usable or not, which it was not */
    uint32_t number; /* usable, with another number: the interface was made anew */
};

/* Begins with NICs that are usable unless `told_down` says otherwise. `socket` stays the caller's. */
void link_watch_open(struct link_watch *watch, const struct netdev *devs, const unsigned *ends, unsigned count,
                     _Atomic uint32_t *told_down, int socket);
void link_watch_close(struct link_watch *watch);

/* A send through a NIC has failed, or netlink_fd is readable: the next link_watch_look() looks. */
static inline void link_watch_doubt(struct link_watch *watch)
{
    atomic_store_explicit(&watch->look, true, memory_order_relaxed); /* guards nothing else */
}

/* Once a round. True: it has looked at the NICs. Logs what it finds, unless another queue has done so. */
bool link_watch_look(struct link_watch *watch, struct link_changes *changes);

/* Whether NIC `nic`, as in nic_host, is unusable. */
static inline bool link_watch_is_down(const struct link_watch *watch, unsigned nic)
{
    return nic != 0 && nic <= watch->count && !(watch->up >> (nic - 1) & 1);
}

#endif
