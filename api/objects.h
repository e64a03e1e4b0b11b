/* SPDX-License-Identifier: Apache-2.0 */
/* The insides of the public handles, for the files of api/. */
#ifndef UCCL_OBJECTS_H
#define UCCL_OBJECTS_H

#include "export.h"
#include "gpu/direct.h"
#include "mem/region.h"
#include "nic/nic.h"
#include "boot/peer.h"
#include "base/process.h"
#include "request/request.h"
#include "thread/stripe.h"
#include "thread/thread.h"
#include "uccl/engine.h"

#include <pthread.h>

enum { CLOSED_KEPT = 64 };

struct uccl_engine {
    struct params params;
    uint32_t process;             /* that opened it (process.h) */
    uint8_t id[16];
    const struct nic_ops *nic;
    struct nic *device;
    struct engine_thread *threads;
    unsigned thread_count;
    struct request_pool requests;
    struct mem_cache regions;
    int event_fd;
    _Atomic uint32_t event_armed;

    pthread_mutex_t lock;         /* everything below; never taken on the data path */
    struct peer_table peers;
    struct uccl_conn *conns;
    unsigned abandoned;           /* of them */
    struct uccl_conn *kept;       /* closed, but a device does not let go of their requests */
    struct connecting *connecting; /* connects under way */
    struct uccl_listener *listeners;
    struct uccl_mr *mrs;
    struct gpu_map *gpus;         /* made when somebody asks */
    struct topology_cache machine; /* likewise */
    struct direct direct;         /* device memory that the NIC reaches by itself */
    uint16_t *conn_generations;   /* by index, so that an id is not soon used again */
    uint64_t *conn_indices;       /* bitmap of those in use */
    uint32_t conn_cursor;
    unsigned next_home;           /* engine threads take connections in turn */
    void *closed[CLOSED_KEPT];    /* what was closed last: see keep_closed() */
    unsigned closed_next;
};

/* A connection's end on one engine thread: at home, or where it carries parts. */
struct conn_end {
    struct uccl_conn *of;
    void *memory;
    size_t memory_bytes;
};

struct uccl_conn {
    struct uccl_conn *next, *prev;
    struct uccl_engine *engine;
    struct engine_thread *thread; /* home */
    struct peer *peer;
    struct stripe_set stripes;    /* its ends, home first; the cores' owners alone touch them */
    struct conn_end ends[CORE_STRIPES_MAX];
    bool abandoned;               /* nobody waits for its end; under the engine's lock */
    _Atomic bool closing;         /* the application has asked for its end */
    uint32_t id;
    union nic_address address;
    _Atomic int32_t status;       /* 0, or why it takes no more messages */
};

struct uccl_mr {
    struct uccl_mr *next;
    struct uccl_engine *engine;
    void *address;
    size_t length;
    struct mem_region *region;
    struct direct_range *range;   /* of device memory (gpu/direct.h); else NULL */
    struct nic_mr nic;            /* where the NIC reaches it by itself; of device memory a copy of the range's */
    _Atomic uint32_t users;       /* requests pending */
    bool closed;
};

/* Whether this is a child of the process that opened the engine: nothing of it may be touched (process.h). */
static inline bool inherited(const struct uccl_engine *engine)
{
    return process_forked(engine->process);
}

/*
 * Frees a connection, listener or registration that was closed, some time later: until then its `closed` or `closing` tells
 * whoever closes it again. Under the engine's lock.
 */
void keep_closed(struct uccl_engine *engine, void *object);

/* connect.c */
/* Whether there is a way to all queues that a peer offers. It may take seconds, so it is asked without a lock. */
int offer_reached(struct uccl_engine *engine, const struct boot_offer *offer);
/* Milliseconds until then, for poll(). */
int poll_ms(uint64_t deadline_ns);
/* Cancels the never-blocking connects of an engine that is being closed: their handles name nothing any more. */
void connects_end(struct uccl_engine *engine);
/* In a child of fork(): frees them and closes their descriptors. Under the lock. */
void connects_inherited(struct uccl_engine *engine);
/* How many are under way. Under the lock. */
unsigned connects_count(const struct uccl_engine *engine);
/* For the simulator, whose processes die and leave their connects in the table of this one. */
void connects_forget(void);

/* connection.c, for connect.c and listener.c. Those that touch the engine's tables are called under its lock. */
/* A connection id that is not in use: an index, and a generation above it. */
bool take_conn_id(struct uccl_engine *engine, uint32_t *id);
void put_conn_id(struct uccl_engine *engine, uint32_t id);
/* A connection over a peer whose flows stand; takes over a reference to the peer. */
int conn_make(struct uccl_engine *engine, struct peer *peer, unsigned home, uint32_t id,
              uint32_t remote_id, const union nic_address *address, struct uccl_conn **out);
void conn_unmap_ends(struct uccl_conn *conn);

/* close.c */
/*
 * Ends a connection without waiting, nor for data that is still to be sent: one that the application never got, or
 * aborts. Whoever looks next frees it, or uccl_close(). Not under the lock.
 */
void conn_abandon(struct uccl_conn *conn);
/* Frees those that have ended since, and closed ones whose last request has. */
void free_abandoned(struct uccl_engine *engine);
/* A request that closes has ended: frees its connection. */
void conn_closed(struct uccl_request *request);
/* Closes and frees all connections, listeners. */
void connections_end(struct uccl_engine *engine);
/* In a child of fork(): frees them and closes their descriptors; nobody is told. Under the lock. */
void connections_forget(struct uccl_engine *engine);

/* request.c */
/* A request on the connection's home thread; NULL: none is left. */
struct uccl_request *request_take_for(struct uccl_conn *conn, void *buffer, struct uccl_mr *mr);
bool mr_covers(const struct uccl_mr *mr, const void *buffer, size_t length);
/* A flush of device memory that the NIC writes to by itself: a byte of `buffer` is read. UCCL_EAGAIN. */
int request_post_flush(struct uccl_conn *conn, void *buffer, struct uccl_mr *mr, uccl_request **out);

/* gpu.c; NULL is nothing. */
void gpu_map_free(struct gpu_map *map);

/* memory.c: an end of a registration of device memory, as far as the NIC goes. Under the lock. */
void mr_leave_range(struct uccl_engine *engine, struct uccl_mr *mr);

/* connection.c: events of connections, from the engine's owner. */
void connection_on_event(void *context, const struct core_event *event);
/* listener.c: the same of one; returns the next in the list. */
struct uccl_listener *listener_forget(struct uccl_listener *listener);
/* How many there are, and how many handshakes they have under way; nobody accepts meanwhile. Under the lock. */
unsigned listeners_count(const struct uccl_engine *engine, unsigned *handshakes);

#endif
