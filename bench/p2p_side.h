/* SPDX-License-Identifier: Apache-2.0 */
/* One side of a run of p2p_bench, its phases, and those of one-sided operations (p2p_onesided.c). */
#ifndef P2P_SIDE_H
#define P2P_SIDE_H

#include "onesided.h"

enum {
    WINDOW_MAX = 4096,
    PING_MAX = 10000, /* round trips of a ping-pong phase */
    PING_MIN = 5,     /* taken even where they last longer than the phase should */
};

/* What the two sides do next; the fields of PHASE in this order. */
enum phase_kind { PHASE_STREAM = 1, PHASE_PING };
struct phase {
    uint64_t kind;
    uint64_t number; /* of the phase: message numbers start at number << TOOL_PHASE_SHIFT */
    uint64_t size;
    uint64_t window;
    uint64_t count;    /* messages per sender; 0: no limit */
    uint64_t limit_ns; /* time per sender; 0: no limit */
    uint64_t check;
    uint64_t bi;
    uint64_t op;      /* enum stream_op */
    uint64_t pieces;  /* of a message that is written or read */
    uint64_t buffers; /* that the outstanding messages take in turn; 0: one each. Checked messages have one each */
};
#define PHASE_FIELDS (sizeof(struct phase) / sizeof(uint64_t))

/* What a side saw in a phase; the fields of RESULT in this order. */
struct outcome {
    uint64_t messages;   /* sent by this side; in ping-pong: half round trips */
    uint64_t bytes;      /* sent by this side */
    uint64_t received;   /* bytes */
    uint64_t elapsed_ns; /* first post to last completion of its sends; without sends: of the phase */
    uint64_t cpu_ns;
    uint64_t retransmits;
    uint64_t wrong;
    struct tool_mismatch first_wrong;
};
#define OUTCOME_FIELDS (sizeof(struct outcome) / sizeof(uint64_t))
_Static_assert(PHASE_FIELDS <= TOOL_FIELDS && OUTCOME_FIELDS <= TOOL_FIELDS, "must fit a message");

enum { DATA, CONTROL, CONNS };

/* One side of a run. */
struct side {
    bool server;
    uccl_engine *engine;
    uccl_conn *conns[CONNS];
    uint64_t memory;                     /* bytes of each of the two regions */
    struct device_choice device;         /* where they are */
    const struct device_choice *own_gpu; /* server: where the client says a GPU; NULL: the one it says */
    struct region send_memory;
    struct region receive_memory;
    uccl_request *send_requests[WINDOW_MAX];
    uccl_request *receive_requests[WINDOW_MAX];
    uint32_t samples[PING_MAX];
    uint64_t phases; /* so far */
    /* one-sided operations alone; what the peer uses, and what it lets this side use */
    enum stream_op op;
    struct region word;                                /* in host memory, a signal of the ping-pong */
    uccl_export *exports[3];                           /* of the two regions and the word */
    uccl_remote *peer_send, *peer_receive, *peer_word; /* the same of the peer */
};

/* How many slots of `slot` bytes a stream of this phase takes in turn. */
static inline uint32_t p2p_buffers(const struct side *side, const struct phase *phase, uint64_t slot)
{
    uint32_t fit = stream_buffers(slot, (uint32_t)phase->window, phase->check, side->memory);
    return phase->buffers != 0 && phase->buffers < fit && !phase->check ? (uint32_t)phase->buffers : fit;
}

/* Adds what the streams of a phase have moved, and whether it was right. */
static inline void p2p_add_streams(struct outcome *out, const struct stream *streams, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        *(streams[i].sends ? &out->bytes : &out->received) += streams[i].bytes;
        if (streams[i].wrong != 0)
            out->first_wrong = streams[i].first_wrong;
        out->wrong += streams[i].wrong;
    }
}

/* After the regions have been made: exports them, and learns what the peer exports. Both sides call it. */
void p2p_onesided_open(struct side *side);
/* Once no phase comes any more. */
void p2p_onesided_close(struct side *side);
/*
 * A phase of one-sided operations, which `begin` lets both sides begin together. Fills in messages, bytes and time, and
 * whatever was wrong.
 */
struct outcome p2p_onesided_phase(struct side *side, const struct phase *phase,
                                  void (*begin)(struct side *, const struct phase *));

#endif
