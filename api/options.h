/* SPDX-License-Identifier: Apache-2.0 */
/* The wishes of an application for its connections: struct uccl_conn_options, checked and copied. */
#ifndef UCCL_OPTIONS_H
#define UCCL_OPTIONS_H

#include "boot/boot_wire.h"
#include "thread/stripe.h"
#include "uccl/engine.h"

struct conn_wishes {
    unsigned thread;       /* from 1; 0: any */
    int end;               /* NIC (nic_end_ops) that its thread has first; -1: any */
    uint8_t traffic_class; /* 0: the parameters' */
    struct stripe_wish parts;
    uint16_t private_bytes;
    uint8_t private_data[BOOT_PRIVATE_MAX];
};

/* UCCL_EINVAL (logged): an option is out of range. `options` may be NULL. Not under the engine's lock. */
int options_read(struct uccl_engine *engine, const struct uccl_conn_options *options, struct conn_wishes *out);

/*
 * The thread that the wishes mean, from 0, of `flows`; -1: any. `turn` decides among several that have the NIC first.
 */
int options_home(const struct uccl_engine *engine, const struct conn_wishes *wishes, unsigned flows, unsigned turn);

/* The private data in our offer. */
void options_offer(const struct conn_wishes *wishes, struct boot_offer *offer);

#endif
