/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hosts from which no datagram came back, though connections beside were made. The next peer there is met over these at
 * once: whatever drops the datagrams of one process mostly drops those of the others, too, and to find that out takes a
 * second each time. A host is forgotten when datagrams of it have come, and after some minutes, so that somebody asks
 * again. Pure.
 */
#ifndef UCCL_BESIDE_HOSTS_H
#define UCCL_BESIDE_HOSTS_H

#include "nic/nic.h"

enum { BESIDE_HOSTS_MAX = 64 };

struct beside_host {
    union nic_address address;
    uint64_t until_ns;
};

struct beside_hosts {
    unsigned count;
    struct beside_host hosts[BESIDE_HOSTS_MAX]; /* oldest first */
};

bool beside_hosts_have(const struct beside_hosts *hosts, const union nic_address *address, uint64_t now_ns);
/* The oldest goes where there is no room. */
void beside_hosts_add(struct beside_hosts *hosts, const union nic_address *address, uint64_t now_ns);
void beside_hosts_forget(struct beside_hosts *hosts, const union nic_address *address);

#endif
