/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send side of a flow's chunk sequence space: a record per chunk in flight, what acks say of it, and
 * when it counts as lost. Rules, in the order in which they usually speak:
 *   per path  a chunk sent `reorder_threshold` transmissions before one that was acked on the same
 *             path is lost (1 where paths deliver in order)
 *   time      a chunk that one sent later has overtaken is lost after a round trip and a quarter of
 *             the shortest; half of it where there are several paths (RACK, RFC 8985 6.2; the
 *             quarters grow when a retransmission proves needless)
 * Tail-loss probe and RTO are timers of the flow.
 */
#ifndef UCCL_SENT_H
#define UCCL_SENT_H

#include "core/path.h"
#include "core/rtt.h"
#include "core/wire.h"

enum chunk_state {
    CHUNK_FREE,   /* no such chunk, or acked whole */
    CHUNK_FLYING, /* sent, fate unknown; on the queues by time and of its path */
    CHUNK_LOST,   /* to be sent again; on the lost queue */
    CHUNK_HELD,   /* not to be sent again before the peer has drained its data QP; on no queue */
};

enum chunk_kind {
    CHUNK_BULK,   /* cut from one message */
    CHUNK_FRAMES, /* stands in a buffer of the pool */
    CHUNK_ABANDONED, /* its message has been taken back: retransmissions are bare headers */
};

struct chunk {
    uint64_t sent_ns;       /* last transmission */
    uint64_t acked_mask;    /* datagrams known to have arrived; never all of them; 0 while `written` */
    uint32_t path_seq;      /* of the last transmission */
    uint32_t charged_bytes; /* what it takes of the window while flying */
    uint32_t payload_bytes; /* of the whole chunk, for congestion control */
    uint32_t datagram_bytes, last_bytes;
    uint16_t path;
    bool placed;            /* `path` is a data QP that carried it as a write: it goes nowhere else */
    bool written;           /* and so far only as that */
    bool in_pieces;         /* its last transmission went in fragments: nothing large was under way */
    uint8_t count;          /* datagrams; of a placed one those of its retransmissions */
    uint8_t state;          /* enum chunk_state */
    uint8_t kind;           /* enum chunk_kind */
    uint8_t transmissions;  /* saturates */
    struct queue_link by_time; /* of transmission; or on the lost queue */
    struct queue_link by_path; /* of the same path, by time of transmission */
    union {
        struct {
            struct core_msg *msg;
            uint64_t offset; /* of datagram 0 */
        } bulk;
        struct {
            uint8_t *buffer;
            uint8_t of;      /* enum frames_buffer, flow.h */
        } frames;
    };
};

/* Bytes of its largest datagram. */
static inline uint32_t chunk_largest(const struct chunk *chunk)
{
    return chunk->count > 1 ? chunk->datagram_bytes : chunk->last_bytes;
}

struct sent {
    struct path_set *paths;  /* of which each lists what flies over it; told of losses */
    struct path_set *qps;  /* the same of placed chunks */
    bool data_qps_reliable;     /* placed chunks have no loss timers: the NIC repeats them */
    struct chunk *chunks;    /* `window` of them, by sequence modulo window */
    struct queue by_time, lost;
    uint64_t next_seq;       /* of the next chunk */
    uint64_t cumulative;     /* the peer has all chunks before it */
    uint32_t window;         /* a power of two */
    uint32_t reorder_threshold;
    uint64_t flying_charge;  /* kernel bytes, against the peer's receive buffer */
    uint64_t flying_payload; /* against the congestion window */
    uint64_t lost_payload;   /* of lost chunks */
    uint32_t flying_chunks;
    uint64_t too_soon_ns;    /* what was sent after this cannot have been acked yet (now - min_rtt) */
    uint64_t newest_acked_ns;/* transmission time of the newest chunk known to have arrived */
    uint32_t reorder_window_quarters; /* RACK's reordering window in quarters of min_rtt; grows */
    uint32_t base_bytes;     /* datagrams above it are large (mtu.h) */
    bool watches;            /* acks are to tell whether large or small ones arrive */
    uint64_t large_lost_ns;  /* when the newest large one that was lost had been sent; 0: none since this was last looked at */
};

/* `paths` and `data QPs` (NULL: there are none) are set up already. */
void sent_init(struct sent *sent, struct chunk *chunks, uint32_t window, struct path_set *paths,
               struct path_set *qps, uint32_t reorder_threshold);

static inline bool sent_has_room(const struct sent *sent)
{
    return sent->next_seq - sent->cumulative < sent->window;
}
static inline struct chunk *sent_chunk(const struct sent *sent, uint64_t seq)
{
    return &sent->chunks[seq & (sent->window - 1)];
}
/* Whether the peer has this chunk, which was sent. */
static inline bool sent_is_acked(const struct sent *sent, uint64_t seq)
{
    return seq < sent->cumulative || sent_chunk(sent, seq)->state == CHUNK_FREE;
}
/* The sequence number of a chunk in the window. */
uint64_t sent_seq(const struct sent *sent, const struct chunk *chunk);

/* Takes the next sequence number for a chunk that carries what `plan` says; sent_fly() comes next. */
struct chunk *sent_new(struct sent *sent, const struct chunk *plan, uint64_t *seq);

/* The chunk is handed to the NIC on `path`, a data QP if it is placed, of which it takes the next sequence number. */
void sent_fly(struct sent *sent, struct chunk *chunk, uint16_t path, uint64_t now_ns);

/* The oldest lost chunk, or NULL. */
struct chunk *sent_first_lost(const struct sent *sent);
struct chunk *sent_next_lost(const struct chunk *chunk);
/* Declares a flying chunk lost. */
void sent_lose(struct sent *sent, struct chunk *chunk);
/* A flying chunk has not left after all: it waits with those that are lost, and its last transmission was none. */
void sent_unsend(struct sent *sent, struct chunk *chunk);
/* Declares all flying chunks of large datagrams lost, for that alone. Returns how many. */
unsigned sent_lose_large(struct sent *sent);

/* The data QP is being drained: its chunks are held. */
void sent_hold_data_qp(struct sent *sent, uint16_t qp);
/* The peer has drained it: what it held is lost, and may go anywhere. Returns how many. */
unsigned sent_release_data_qp(struct sent *sent, uint16_t qp);

/* The message is taken back: retransmissions of its chunks no longer carry its payload. */
void sent_abandon(struct sent *sent, struct core_msg *msg);

/* What one ack brought. */
struct sent_acked {
    uint64_t payload_bytes; /* of chunks now acked whole */
    uint32_t chunks;
    bool parts;             /* datagrams of chunks that are not whole yet are news */
    bool large;             /* some large datagram has arrived that was news; told where `watches` */
    uint64_t small_ns;      /* likewise, of the small ones: when the newest of them was surely sent, or before; 0: none has */
    bool spurious;          /* a chunk was acked that had been given up: its retransmission is, or was, needless */
};

typedef void (*sent_acked_fn)(void *context, struct chunk *chunk);

/*
 * Applies an ack: calls `acked` for each chunk that is whole now, before its record is freed. False: it
 * acks what was never sent (nothing was changed).
 */
bool sent_ack(struct sent *sent, const struct wire_ack *ack, sent_acked_fn acked, void *context,
              struct sent_acked *result);

/* The NIC says that this one has arrived: adds to `result` what an ack of it brings; the window does not move. */
void sent_ack_one(struct sent *sent, struct chunk *chunk, sent_acked_fn acked, void *context,
                  struct sent_acked *result);

/* An ack named `path_seq` of `path`: chunks that the per-path rule gives up are lost. Returns how many. */
unsigned sent_lose_by_path(struct sent *sent, uint16_t path, uint32_t path_seq);
/* The same of a data QP, which keeps order: all that was sent before is lost. */
unsigned sent_lose_by_data_qp(struct sent *sent, uint16_t qp, uint32_t path_seq);

/*
 * RACK: loses what is due, returns how many; `next_ns` is when to look again (UINT64_MAX: nothing waits).
 */
unsigned sent_lose_by_time(struct sent *sent, const struct rtt *rtt, uint64_t now_ns,
                           uint64_t *next_ns);

/* The flying chunk that was sent last, or first; NULL when none flies. */
struct chunk *sent_newest(const struct sent *sent);
struct chunk *sent_oldest(const struct sent *sent);

#endif
