/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a hostile engine says. It knows the token of a flow, it can compute checksums, and it has an honest engine's
 * packets to begin with: each of its lies gets past the checksum and is judged by what it says. The simulator, the
 * fuzzer and the hostile process tell the same lies.
 *
 * A liar is made per flow. It hears what its own engine sends there, and tells datagrams that differ from those by a
 * field, or are made up of frames of every kind about connections, messages and sequence numbers that are right, nearly
 * right, or wild. One seed makes one sequence of lies.
 */
#ifndef TESTS_LIES_H
#define TESTS_LIES_H

#include "core/rng.h"
#include "core/wire.h"

enum { LIAR_CONNS = 8, LIAR_WRITES = 8, LIAR_REFS = 8, LIAR_CONTROL_BYTES = 600, LIE_BYTES_MAX = 9216 };

/* A connection of the flow, as the peer knows it. */
struct liar_conn {
    uint32_t id;
    uint32_t sent, received; /* newest message of each direction */
    uint32_t ring, eager_total;
    uint64_t total;
};

/* A write with immediate over a queue pair (or, of the same fields, a read): the NIC of the peer executes it, or
 * refuses it. */
struct liar_write {
    uint64_t address;
    uint32_t key, immediate, length;
    bool read;
};

/* What it does to every one of its packets. */
enum liar_habit {
    LIAR_HONEST,
    LIAR_NO_WINDOW,   /* its receive buffer takes nothing */
    LIAR_NO_PROGRESS, /* nothing arrives, and yet it lives */
    LIAR_OLD_NEWS,    /* its acks say that they have waited for long */
    LIAR_NO_CREDIT,   /* nothing was delivered */
    LIAR_ALL_WELCOME, /* its buffers have no end, and its threads none either */
    LIAR_GREEDY,      /* it demands all, and grants nothing */
    LIAR_HABITS,
};

struct liar {
    struct rng rng;
    bool heard;                        /* something, so that there is a token */
    uint8_t header[WIRE_HEADER_BYTES]; /* of the newest packet */
    uint32_t seq;                      /* newest */
    struct liar_conn conns[LIAR_CONNS];
    unsigned conn_count;
    const struct liar *other; /* of another flow to the same peer, whose connections it may speak of; or NULL */
    struct wire_ack ack;      /* newest */
    struct liar_write writes[LIAR_WRITES]; /* of its own engine: where the peer has granted that, now or earlier */
    unsigned write_count;                  /* heard in all */
    uint32_t target, granted, slot, generation;
    uint32_t keys[CORE_PAIRS_MAX]; /* of its newest grant, by pair of NICs */
    /* one-sided operations: the newest short message on an annex CONTROL, and references that were named there */
    uint8_t control[LIAR_CONTROL_BYTES];
    uint32_t control_conn;
    unsigned control_length, ref_count; /* references heard in all */
    uint8_t refs[LIAR_REFS][16];
    bool stuck; /* LIAR_NO_PROGRESS: at this chunk */
    uint32_t stuck_at;
};

void liar_init(struct liar *liar, uint64_t seed);
/* A datagram of its own engine to the peer. */
void liar_hear(struct liar *liar, const uint8_t *datagram, size_t length);
/* The datagram as its habit has it; returns its length. `out` has `length`. */
size_t liar_spoil(struct liar *liar, enum liar_habit habit, const uint8_t *datagram, size_t length, uint8_t *out);
/* That datagram with a lie in it; returns its length. `out` has LIE_BYTES_MAX, or `length` if that is more. */
size_t liar_twist(struct liar *liar, const uint8_t *datagram, size_t length, uint8_t *out);
/* A datagram that nobody has sent, of at most `bytes_max`; 0: it has not heard enough. */
size_t liar_invent(struct liar *liar, size_t bytes_max, uint8_t out[LIE_BYTES_MAX]);

/* A write of its own engine to the peer. */
void liar_hear_write(struct liar *liar, const struct liar_write *write);
/* Puts a lie into the write, which may be longer afterwards, by no more than LIE_BYTES_MAX. */
void liar_twist_write(struct liar *liar, struct liar_write *write);
/* One that nobody has posted. False: it has not heard enough. */
bool liar_invent_write(struct liar *liar, struct liar_write *out);
/* Whether some write that it has heard had this key. */
bool liar_knows_key(const struct liar *liar, uint32_t key);

#endif
