/* SPDX-License-Identifier: Apache-2.0 */
/* The wishes of an application for its connections: struct uccl_conn_options, checked and copied. */
#ifndef UCCL_OPTIONS_H
#define UCCL_OPTIONS_H

#include "boot/boot_wire.h"
#include "thread/stripe.h"
#include "uccl/engine.h"

struct conn_wishes {
    unsigned thread; /* from 1; 0: any */
    struct stripe_wish parts;
    uint16_t private_bytes;
    uint8_t private_data[BOOT_PRIVATE_MAX];
};

/* UCCL_EINVAL (logged): an option is out of range. `options` may be NULL. */
int options_read(const struct uccl_engine *engine, const struct uccl_conn_options *options, struct conn_wishes *out);

/* The private data in our offer. */
void options_offer(const struct conn_wishes *wishes, struct boot_offer *offer);

#endif
