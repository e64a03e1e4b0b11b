/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A frame for a connection that is not known here is answered by GONE with the id that it named, so that the peer does not
 * wait for ever for a connection that has ended without a word (its listener was closed, its FIN gave up).
 * GONE itself is never answered, and travels in a numbered packet, so that it gets there.
 */
#ifndef UCCL_GONE_H
#define UCCL_GONE_H

#include "core/wire.h"

struct flow;

enum {
    GONE_IDS = CORE_FRAMES_MAX, /* that may wait to be told: those of one packet find room */
    GONE_PER_PACKET_MAX = 16,   /* GONE frames in one packet: bounds the search that each of them starts */
    GONE_BUCKETS = 256,
};

struct gone {
    uint32_t ids[GONE_IDS];               /* to be told, first in, first out */
    uint32_t first, count;
    struct conn *by_remote[GONE_BUCKETS]; /* all connections, by the id that we write into frames */
    uint32_t key;                         /* of the hash: a peer cannot choose ids that share a bucket */
};

void gone_add_conn(struct conn *conn);
void gone_remove_conn(struct conn *conn);

/* How many more may be answered. */
unsigned gone_room(const struct flow *flow);
/* The peer has named a connection that is not known; dropped where there is no room. */
void gone_answer(struct flow *flow, uint32_t id);
/* Writes GONE frames into [at, at + room); the bytes written. */
unsigned gone_put(struct flow *flow, uint8_t *at, uint32_t room);

/* The peer does not know a connection to which we have written: it ends with UCCL_ECLOSED. */
void gone_on_frame(struct flow *flow, const struct wire_gone *gone);

#endif
