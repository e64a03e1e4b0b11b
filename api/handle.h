/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listen handles: the addresses of a listener, in bytes that travel between machines. The bytes may come from anybody:
 * only handle.c reads them, and checks them.
 */
#ifndef UCCL_HANDLE_H
#define UCCL_HANDLE_H

#include "nic/nic.h"
#include "uccl/engine.h"

enum { HANDLE_ADDRESSES_MAX = 8 };

struct handle_target {
    uint64_t listener; /* nonce that its HELLO shows; 0: the maker of the handle knew none */
    unsigned count;    /* from 1 */
    union nic_address addresses[HANDLE_ADDRESSES_MAX]; /* best first, with the port */
};

/*
 * Writes a handle of `count` addresses, best first; `port` in network byte order. Omits the last addresses if not all
 * fit; neither family takes the other's half. Keeps interface numbers.
 */
void handle_put(struct uccl_handle *handle, uint64_t listener, in_port_t port, const union nic_address *addresses,
                unsigned count);
/* False (logged): no handle of this version. */
bool handle_get(const struct uccl_handle *handle, struct handle_target *out);

#endif
