/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receive side of a flow's chunk sequence space: which datagrams have arrived, what an ack says, and what it echoes per
 * path. Duplicates are found here, before anything acts on a datagram.
 */
#ifndef UCCL_SACK_H
#define UCCL_SACK_H

#include "core/path.h"
#include "core/wire.h"

struct sack_chunk {
    uint64_t mask; /* datagrams that have arrived */
    uint8_t count; /* datagrams of the chunk; 0: none has arrived */
};

/* The newest packet of one of the peer's paths, or of one of its data QPs. */
struct sack_path {
    uint64_t at_ns;
    struct queue_link pending; /* on the queue of paths that the next acks name */
    uint32_t path_seq;         /* 0: none yet */
    uint32_t time_stamp;
    uint16_t index;
    bool is_data_qp;
    bool ce;          /* a mark came since the last ack */
    bool by_sequence; /* a write: path_seq is the sequence number of its chunk, time_stamp 0 */
};

struct sack {
    uint64_t cumulative;       /* all chunks before this number have arrived whole */
    uint64_t end;              /* one past the highest chunk of which a datagram arrived */
    uint64_t newest;           /* the chunk of the newest datagram */
    uint64_t turn;             /* the incomplete chunk that the next ack names first, where it cannot name all */
    uint32_t window;           /* chunks, a power of two */
    struct queue pending;      /* of paths and data QPs with packets that no ack has named; longest wait first */
    struct sack_chunk *chunks; /* `window` of them, by sequence modulo window */
    struct sack_path paths[PATHS_MAX];
    struct sack_path *qps;
    struct sack_path *named[WIRE_ACK_PATHS_MAX]; /* in the last ack */
    uint32_t ce_named;                           /* their marks, the last one's in bit 0 */
    uint8_t named_count;
};

enum sack_verdict { SACK_NEW, SACK_DUPLICATE, SACK_BEYOND_WINDOW, SACK_MALFORMED };

void sack_init(struct sack *sack, struct sack_chunk *chunks, uint32_t window, struct sack_path *qps,
               uint32_t data_qp_count);

static inline struct sack_chunk *sack_slot(const struct sack *sack, uint64_t seq)
{
    return &sack->chunks[seq & (sack->window - 1)];
}

/* Judges a datagram; changes nothing. Writes the full sequence number to `seq`. */
enum sack_verdict sack_check(const struct sack *sack, const struct wire_packet *packet, uint64_t *seq);

/* How many datagrams of a chunk in the window, from `index` of `count` on, have not arrived. */
static inline unsigned sack_missing(const struct sack *sack, uint64_t seq, unsigned index, unsigned count)
{
    uint64_t arrived = sack_slot(sack, seq)->mask >> index;
    return arrived ? (unsigned)__builtin_ctzll(arrived) : count - index;
}

/* sack_check() for a write, which carries a whole chunk. */
static inline enum sack_verdict sack_check_write(const struct sack *sack, uint64_t seq)
{
    if (seq < sack->cumulative || seq > UINT64_MAX / 2)
        return SACK_DUPLICATE;
    if (seq - sack->cumulative >= sack->window)
        return SACK_BEYOND_WINDOW;
    const struct sack_chunk *chunk = sack_slot(sack, seq);
    if (chunk->count == 0)
        return SACK_NEW;
    /* no honest peer retransmits a chunk that it could still place */
    return chunk->mask == wire_full_mask(chunk->count) ? SACK_DUPLICATE : SACK_MALFORMED;
}

/* Marks a new datagram as arrived. True: it completed its chunk. */
bool sack_mark(struct sack *sack, uint64_t seq, unsigned index, unsigned count);

/* The same for a write, which is a whole chunk. In order it leaves no trace in its slot. */
static inline void sack_mark_write(struct sack *sack, uint64_t seq)
{
    if (seq != sack->cumulative || sack->end > seq) {
        sack_mark(sack, seq, 0, 1);
        return;
    }
    sack->newest = seq;
    sack->cumulative = sack->end = seq + 1;
}

/* Notes the newest packet of a path; every well-formed datagram counts. */
void sack_note_path(struct sack *sack, const struct wire_packet *packet, bool ce, uint64_t now_ns);

/* The next acks name all paths again. */
void sack_repeat_paths(struct sack *sack);

/* Notes a datagram, or a write, that came over a data QP, which keeps order. */
void sack_note_data_qp(struct sack *sack, uint16_t qp, const struct wire_packet *packet, bool ce, uint64_t now_ns);
static inline void sack_note_write(struct sack *sack, uint16_t index, uint64_t seq, uint64_t now_ns)
{
    struct sack_path *qp = &sack->qps[index];
    qp->at_ns = now_ns;
    qp->path_seq = (uint32_t)seq;
    qp->time_stamp = 0;
    qp->by_sequence = true;
    queue_append(&sack->pending, &qp->pending);
}

/* A chunk has arrived beyond a gap: the sender should know soon. */
static inline bool sack_has_gap(const struct sack *sack)
{
    return sack->end > sack->cumulative;
}

/* Some path or data QP is still to be named in an ack. */
static inline bool sack_has_pending(const struct sack *sack)
{
    return sack->pending.head;
}

/* Fills in everything of an ack except number and window; the paths that it names are no longer pending. */
void sack_fill(struct sack *sack, struct wire_ack *ack, uint64_t now_ns);
/* The NIC has refused that ack: the paths are pending again. */
void sack_undo(struct sack *sack);

#endif
