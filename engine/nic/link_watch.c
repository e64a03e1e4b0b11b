/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/link_watch.h"

#include "base/descriptor.h"
#include "base/log.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ROUNDS_TO_READ = 1024 }; /* a thread that never sleeps reads the netlink socket this often */

/* Bits of all NICs. */
static uint32_t all_of(const struct link_watch *watch)
{
    return (UINT32_C(1) << watch->count) - 1;
}

void link_watch_open(struct link_watch *watch, const struct netdev *devs, const unsigned *ends, unsigned count,
                     _Atomic uint32_t *told_down, int socket_fd)
{
    struct sockaddr_nl link = {.nl_family = AF_NETLINK, .nl_groups = RTMGRP_LINK};

    *watch = (struct link_watch){.count = count, .told_down = told_down, .socket = socket_fd, .netlink_fd = -1};
    if (count == 0)
        return;
    watch->up = all_of(watch) & ~atomic_load(told_down);
    watch->look = true; /* they may have changed since they were listed */
    for (unsigned i = 0; i < count; i++) {
        watch->devs[i] = &devs[ends[i]];
        watch->interface[i] = watch->devs[i]->index;
    }
    watch->netlink_fd = descriptor_keep(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
    if (watch->netlink_fd >= 0 && bind(watch->netlink_fd, (struct sockaddr *)&link, sizeof link) != 0) {
        int error = errno;

        link_watch_close(watch);
        errno = error;
    }
    if (watch->netlink_fd < 0)
        LOG_INFORM("the kernel does not tell when a network interface goes down (netlink: %s): silence will",
                   strerror(errno));
}

void link_watch_close(struct link_watch *watch)
{
    if (watch->netlink_fd >= 0)
        close(watch->netlink_fd);
    watch->netlink_fd = -1;
}

static void drain_netlink(struct link_watch *watch)
{
    uint8_t bytes[4096];

    watch->rounds = 0;
    while (watch->netlink_fd >= 0 && (recv(watch->netlink_fd, bytes, sizeof bytes, 0) > 0 || errno == ENOBUFS))
        watch->look = true;
    /* nobody will tell of the return of one that is down */
    if (watch->netlink_fd < 0 && watch->up != all_of(watch))
        watch->look = true;
}

/* The number that the interface has now; 0: it is not usable. */
static uint32_t usable_interface(int socket, const char *name)
{
    struct ifreq request = {0};

    memcpy(request.ifr_name, name, sizeof request.ifr_name);
    if (ioctl(socket, SIOCGIFFLAGS, &request) != 0 || !(request.ifr_flags & IFF_UP) ||
        !(request.ifr_flags & IFF_RUNNING))
        return 0;
    /* if_nametoindex() needs a descriptor, of which there may be none */
    return ioctl(socket, SIOCGIFINDEX, &request) == 0 ? (uint32_t)request.ifr_ifindex : 0;
}

static void tell(const struct link_watch *watch, uint32_t end, bool up)
{
    const char *name = watch->devs[end]->name;
    uint32_t bit = UINT32_C(1) << end;
    uint32_t before = up ? atomic_fetch_and(watch->told_down, ~bit) : atomic_fetch_or(watch->told_down, bit);

    if (!up && !(before & bit))
        LOG_WARNING("network interface %s is down or gone: what it carried goes over the others", name);
    else if (up && (before & bit))
        LOG_WARNING("network interface %s is up", name);
}

bool link_watch_look(struct link_watch *watch, struct link_changes *changes)
{
    if (++watch->rounds >= ROUNDS_TO_READ || watch->look)
        drain_netlink(watch);
    if (!watch->look)
        return false;
    watch->look = false;
    *changes = (struct link_changes){0};
    for (uint32_t i = 0; i < watch->count; i++) {
        uint32_t bit = UINT32_C(1) << i, interface = usable_interface(watch->socket, watch->devs[i]->name);
        bool up = interface != 0;

        if (up && interface != watch->interface[i]) {
            watch->interface[i] = interface;
            changes->number |= bit;
        }
        if (up == ((watch->up & bit) != 0))
            continue;
        watch->up ^= bit;
        changes->state |= bit;
        tell(watch, i, up);
    }
    return true;
}
