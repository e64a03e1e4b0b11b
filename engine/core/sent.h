/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send side of a flow's chunk sequence space: a record per chunk in flight, what acks say of it, and when it is lost.
 * Two rules find losses; the first usually finds them sooner:
 *   per path  a chunk is lost if a chunk sent `reorder_threshold` transmissions later on the same path was acked
 *             (1 where paths deliver in order)
 *   time      a chunk is lost if a later one over the same rail was acked, and a round trip and a quarter of the
 *             shortest round trip have passed; half of the shortest where there are several paths (RACK, RFC 8985 6.2;
 *             a needless retransmission adds a quarter)
 * loss.c has the tail-loss probe and the retransmission timeout.
 */
#ifndef UCCL_SENT_H
#define UCCL_SENT_H

#include "core/rail.h"
#include "core/wire.h"

enum chunk_state {
    CHUNK_FREE,   /* no such chunk, or acked whole */
    CHUNK_FLYING, /* sent, fate unknown; on the queues by time and of its path */
    CHUNK_LOST,   /* to be sent again; on the lost queue */
    CHUNK_HELD,   /* waits until the peer has drained its data QP; on no queue */
};

enum chunk_kind {
    CHUNK_BULK,      /* cut from one message */
    CHUNK_FRAMES,    /* stands in a buffer of the pool */
    CHUNK_ABANDONED, /* its message was taken back: retransmissions are bare headers */
};

struct chunk {
    uint64_t sent_ns;       /* last transmission */
    uint64_t acked_mask;    /* datagrams known to have arrived; never all of them; 0 while `written` */
    uint32_t path_seq;      /* of the last transmission */
    uint32_t charged_bytes; /* its share of the peer's window while flying */
    uint32_t payload_bytes; /* of the whole chunk, for congestion control */
    uint32_t datagram_bytes, last_bytes;
    uint16_t path;
    uint8_t rail;              /* of the last transmission */
    bool placed;               /* `path` is a data QP that carried it as a write: it goes over no other path */
    bool follows;              /* its first transmission goes over `path`, too, behind a leader (ahead.c) */
    bool written;              /* so far it went as a write alone */
    bool in_pieces;            /* its last transmission went in fragments: no large datagram was under way */
    uint8_t count;             /* datagrams; of a placed chunk those of its retransmissions */
    uint8_t state;             /* enum chunk_state */
    uint8_t kind;              /* enum chunk_kind */
    uint8_t transmissions;     /* saturates */
    struct queue_link by_time; /* of transmission; or on the lost queue */
    struct queue_link by_path; /* of the same path, by time of transmission */
    union {
        struct {
            struct core_msg *msg;
            uint64_t offset; /* of datagram 0 */
        } bulk;
        struct {
            uint8_t *buffer;
            uint8_t of; /* enum frames_buffer, flow.h */
        } frames;
    };
};

/* Bytes of its largest datagram. */
static inline uint32_t chunk_largest(const struct chunk *chunk)
{
    return chunk->count > 1 ? chunk->datagram_bytes : chunk->last_bytes;
}

/* Whether the peer may refuse the chunk as long as an earlier one is missing (ahead.c). */
bool chunk_is_ahead(const struct chunk *chunk);

/* A chunk is acked whole: its record is about to be freed. */
typedef void (*sent_acked_fn)(void *context, struct chunk *chunk);

struct sent {
    struct rail *rails;     /* by number */
    struct path *paths;     /* of all rails, by number: each lists its flying chunks */
    uint8_t pair_bits;      /* of numbers of data QPs (data_qp.h) */
    bool data_qps_reliable; /* placed chunks have no loss timers: the NIC retransmits */
    struct chunk *chunks;   /* `window` of them, by sequence modulo window */
    struct queue lost;
    uint64_t next_seq;      /* of the next chunk */
    uint64_t cumulative;    /* the peer has all chunks before this number */
    uint32_t window;        /* a power of two */
    uint64_t flying_charge; /* kernel bytes, against the peer's receive buffer */
    uint64_t lost_payload;  /* of lost chunks */
    sent_acked_fn acked;
    void *context; /* for `acked` */
};

/* The rails and their `paths` are set up already. `acked` is called for each chunk. */
void sent_init(struct sent *sent, struct chunk *chunks, uint32_t window, struct rail *rails, struct path *paths,
               sent_acked_fn acked, void *context);

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

/* Takes the next sequence number for a chunk made after `plan`; sent_fly() comes next. */
struct chunk *sent_new(struct sent *sent, const struct chunk *plan, uint64_t *seq);

/* The rail of the chunk's last transmission; the set of paths that has its path; the path's number in that set. */
static inline struct rail *sent_rail(const struct sent *sent, const struct chunk *chunk)
{
    return &sent->rails[chunk->rail];
}
static inline struct path_set *sent_set(const struct sent *sent, const struct chunk *chunk)
{
    struct rail *rail = sent_rail(sent, chunk);
    return chunk->placed ? &rail->qps : &rail->paths;
}
static inline uint16_t sent_path(const struct sent *sent, const struct chunk *chunk)
{
    return chunk->placed ? (uint16_t)(chunk->path >> sent->pair_bits) : rail_local(sent_rail(sent, chunk), chunk->path);
}

/*
 * The chunk goes to the NIC on `path` of the rail (a data QP if the chunk is placed) with the next path sequence
 * number.
 */
void sent_fly(struct sent *sent, struct rail *rail, struct chunk *chunk, uint16_t path, uint64_t now_ns);

/* Both at once, of a chunk written over the data QP of its plan: the plan is FLYING, and has all but path_seq. */
void sent_write(struct sent *sent, struct rail *rail, const struct chunk *plan);

/* The oldest lost chunk, or NULL. */
struct chunk *sent_first_lost(const struct sent *sent);
struct chunk *sent_next_lost(const struct chunk *chunk);
/* Declares a flying chunk lost. */
void sent_lose(struct sent *sent, struct chunk *chunk);
/* The NIC refused a flying chunk: it waits among the lost ones, and its last transmission does not count. */
void sent_unsend(struct sent *sent, struct chunk *chunk);
/* Declares all chunks of large datagrams lost that fly over the rail. Returns how many. */
unsigned sent_lose_large(struct sent *sent, struct rail *rail);
/* Declares all that flies over a path lost. Returns how many chunks. */
unsigned sent_lose_path(struct sent *sent, const struct path *path);

/* The data QP is being drained: its chunks become CHUNK_HELD. */
void sent_hold_data_qp(struct sent *sent, uint16_t qp);
/* The peer has drained it: its chunks are lost, and may go over any path. Returns how many. */
unsigned sent_release_data_qp(struct sent *sent, uint16_t qp);

/* The message is taken back: retransmissions of its chunks no longer carry its payload. */
void sent_abandon(struct sent *sent, struct core_msg *msg);

/*
 * Applies an ack. Adds what it brought to `acked` of each rail. False: it acks chunks that were never sent, and nothing
 * changed.
 */
bool sent_ack(struct sent *sent, const struct wire_ack *ack);

/* The NIC reports this chunk placed: adds to its rail's `acked` what an ack would; the window does not move. */
void sent_ack_one(struct sent *sent, struct chunk *chunk);

/* An ack named `path_seq` of the rail's `path`: applies the per-path rule. Returns how many chunks are lost. */
unsigned sent_lose_by_path(struct sent *sent, struct rail *rail, uint16_t path, uint32_t path_seq);
/* The same for a data QP, by its number within the rail. It keeps order: all chunks sent before are lost. */
unsigned sent_lose_by_data_qp(struct sent *sent, struct rail *rail, uint16_t local, uint32_t path_seq);

/*
 * RACK: declares chunks of the rail lost that are due, returns how many. `next_ns`: when to look again (UINT64_MAX:
 * nothing waits).
 */
unsigned sent_lose_by_time(struct sent *sent, struct rail *rail, uint64_t now_ns, uint64_t *next_ns);

#endif
