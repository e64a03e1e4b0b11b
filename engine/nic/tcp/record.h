/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a TCP connection that is a path of a flow (docs/tcp.md): first a greeting of the side that has dialled,
 * then records in both directions. A record is a prefix and a datagram as it travels over UDP. No other file lays them
 * out or reads them. Little endian. The readers are fuzzed.
 *
 * Threads: any; no state.
 */
#ifndef UCCL_TCP_RECORD_H
#define UCCL_TCP_RECORD_H

#include "core/wire.h"

enum {
    RECORD_PREFIX_BYTES = 4,
    RECORD_HEAD_BYTES = RECORD_PREFIX_BYTES + WIRE_BULK_HEADER_BYTES, /* shows whether a record is bulk */
    RECORD_PLAIN_MAX = 65536,                /* bytes of a datagram that is not bulk, at most */
    RECORD_BULK_MAX = CORE_RECORD_BYTES_MAX, /* and of any */
    GREETING_BYTES = 32,
    GREETING_VERSION = 1,
};

/* Writes the prefix of a datagram of `length` bytes. */
void record_put_prefix(uint8_t out[RECORD_PREFIX_BYTES], uint32_t length);

enum record_shape {
    RECORD_SHORT, /* more bytes are needed to tell */
    RECORD_BAD,   /* no peer of ours writes it */
    RECORD_PLAIN, /* is read whole before anything acts */
    RECORD_BULK,  /* has a bulk header, so that its payload can be read to where it belongs */
};
/*
 * What begins at `bytes`, of which `count` are there. `*length` of the datagram is set unless the shape is SHORT for
 * want of a prefix (then 0) or BAD. Plain records are told as such from their prefix on, larger ones from their head.
 */
enum record_shape record_look(const uint8_t *bytes, size_t count, uint32_t *length);

/*
 * The greeting: which path of which flow the connection is. Only the two engines know both tokens of a flow, so the
 * proof is theirs alone. Whoever dials again raises the generation, so an old greeting is worth nothing.
 */
struct greeting {
    uint16_t path;
    uint32_t generation; /* from 1 */
    uint64_t token;      /* that the side which was dialled expects in packets */
};

/* `answer_token`: that the side which dials expects in packets. */
void greeting_put(uint8_t out[GREETING_BYTES], const struct greeting *greeting, uint64_t answer_token);
/* False: that is no greeting. */
bool greeting_take(const uint8_t bytes[GREETING_BYTES], struct greeting *out);
bool greeting_proves(const uint8_t bytes[GREETING_BYTES], uint64_t token, uint64_t answer_token);

#endif
