/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire format, version 3 (docs/wire.md). Only this file reads a peer's bytes or lays out ours. A datagram is a
 * header region (packet header, then frames; covered by a CRC32C) and a payload region, whose bytes belong to the DATA
 * and EAGER frames in order. Little endian.
 *
 * Parsing checks everything that needs no protocol state; the caller gets frames whose lengths fit the datagram.
 */
#ifndef UCCL_WIRE_H
#define UCCL_WIRE_H

#include "core/core.h"

enum {
    WIRE_VERSION = 3,
    WIRE_HEADER_BYTES = 36,
    WIRE_BULK_HEADER_BYTES = 64, /* packet header + DATA frame */
    WIRE_DATA_BYTES = 28,
    WIRE_EAGER_BYTES = 24,
    WIRE_CTS_BYTES = 20,
    WIRE_CTS_ENTRY_BYTES = 12, /* behind it, at most once, and a key for each of its pairs */
    WIRE_CTS_ENTRY_BYTES_MAX = WIRE_CTS_ENTRY_BYTES + 4 * CORE_PAIRS_MAX,
    WIRE_RTS_BYTES = 20,
    WIRE_CREDIT_BYTES = 24,
    WIRE_ABORT_BYTES = 12,
    WIRE_FIN_BYTES = 8,
    WIRE_DEMAND_BYTES = 8,
    WIRE_GRANT_BYTES = 12,
    WIRE_QP_BYTES = 16,
    WIRE_GONE_BYTES = 8,
    WIRE_PROBE_BYTES = 12,
    WIRE_FLOW_BYTES = 4,
    WIRE_FRAGMENT_BYTES = 12,
    WIRE_FRAGMENT_UNIT = 128, /* fragments begin at multiples of it, and all but the last are multiples long */
    WIRE_ACK_WORDS_MAX = 16,  /* 1,024 chunks beyond the cumulative ack */
    WIRE_ACK_PARTIALS_MAX = 8,
    WIRE_ACK_PATHS_MAX = 12,
    WIRE_ACK_BYTES_MAX = 20 + WIRE_ACK_WORDS_MAX * 8 + WIRE_ACK_PARTIALS_MAX * 12 + WIRE_ACK_PATHS_MAX * 16,
};
_Static_assert(WIRE_HEADER_BYTES + WIRE_ACK_BYTES_MAX + WIRE_DEMAND_BYTES + WIRE_GRANT_BYTES + WIRE_QP_BYTES <=
                   CORE_DATAGRAM_MIN,
               "the largest ack with DEMAND and GRANT, and a QP frame, fit the smallest datagram");

enum wire_flag {
    WIRE_SEQUENCED = 1,      /* has a chunk sequence number: acked and repeated */
    WIRE_PAYLOAD_CRC = 2,    /* payload_crc is valid */
    WIRE_AUTH = 4,           /* reserved: a 16-byte tag ends the datagram; refused by version 3 */
    WIRE_RETRANSMISSION = 8, /* not the first copy */
    WIRE_ON_PATH = 16,       /* came over the data QP `path`; else `path` is one of datagrams */
};

enum wire_frame_kind {
    FRAME_DATA = 1,   /* bytes of a granted message */
    FRAME_EAGER = 2,  /* bytes of a small message, sent without waiting for its receive */
    FRAME_CTS = 3,    /* clear to send: receive k is posted, with this capacity */
    FRAME_RTS = 4,    /* send k waits for a clear-to-send; its length */
    FRAME_CREDIT = 5, /* delivered messages and eager credit, absolute */
    FRAME_ABORT = 6,  /* message k completed early on the sender of this frame */
    FRAME_FIN = 7,    /* the sender of this frame sends, or takes, no more messages */
    FRAME_ACK = 9,
    FRAME_DEMAND = 11,   /* how many bytes this flow would like to send, absolute */
    FRAME_GRANT = 12,    /* how many bytes the peer may send, absolute */
    FRAME_QP = 13,       /* the state of a data QP */
    FRAME_GONE = 14,     /* a connection that the peer's frames name is unknown here */
    FRAME_PROBE = 15,    /* asks for an echo, or is one */
    FRAME_FLOW = 16,     /* the state of the flow */
    FRAME_FRAGMENT = 22, /* a piece of a datagram that has become too large for the route */
    FRAME_KINDS,         /* one more than the last */
};

/*
 * What an engine understands: 64 bits that both sides send in the handshake. Bit k below 32 stands for frames of kind
 * k, which are legal where both sides set the bit. Every engine understands the kinds of today.
 */
#define WIRE_FEATURES                                                                                                  \
    (UINT64_C(1) << FRAME_DATA | UINT64_C(1) << FRAME_EAGER | UINT64_C(1) << FRAME_CTS | UINT64_C(1) << FRAME_RTS |    \
     UINT64_C(1) << FRAME_CREDIT | UINT64_C(1) << FRAME_ABORT | UINT64_C(1) << FRAME_FIN | UINT64_C(1) << FRAME_ACK |  \
     UINT64_C(1) << FRAME_DEMAND | UINT64_C(1) << FRAME_GRANT | UINT64_C(1) << FRAME_QP | UINT64_C(1) << FRAME_GONE |  \
     UINT64_C(1) << FRAME_PROBE | UINT64_C(1) << FRAME_FLOW | UINT64_C(1) << FRAME_FRAGMENT)

/* Features that a peer may lack. WIRE_ONESIDED: connections have annexes for one-sided operations (docs/wire.md). */
#define WIRE_ONESIDED (UINT64_C(1) << 32)
#define WIRE_FEATURES_ALL (WIRE_FEATURES | WIRE_ONESIDED)

/* `conn` comes first in all frames of a connection. */
struct wire_data {
    uint32_t conn, msg;
    uint8_t stripes; /* flows that share the message; 0: this one alone */
    uint64_t offset, total;
    uint32_t length;
    const uint8_t *payload;
};

struct wire_eager {
    uint32_t conn, msg;
    uint32_t total, offset;
    uint32_t ring; /* where the message begins in the receiver's eager ring, modulo 2^32 */
    uint32_t length;
    bool granted; /* its clear-to-send was seen: takes no eager credit */
    const uint8_t *payload;
};

struct wire_cts {
    uint32_t conn, msg;
    uint64_t length;
    uint8_t stripes;     /* flows that may share the message; 0: this one alone */
    uint8_t range_units; /* ranges begin at multiples of so many CORE_STRIPE_UNIT; 0: any */
    bool watched;        /* somebody reads the buffer meanwhile: fragments end at multiples of CORE_WATCHED_BYTES */
    uint8_t placeable; /* the sender's NICs of these pairs (bits) may write to the buffer, by the entry that follows */
    uint16_t slot;     /* what immediates call this grant: below WIRE_SLOTS_MAX */
    uint64_t address;
    uint32_t keys[CORE_PAIRS_MAX]; /* by pair */
};

struct wire_rts {
    uint32_t conn, msg;
    uint64_t total;
};

struct wire_credit {
    uint32_t conn;
    uint32_t delivered;   /* all messages before it have been delivered */
    uint32_t eager_total; /* end of the eager ring space that may be used, modulo 2^32 */
    uint64_t beyond;      /* bit i: message delivered + 1 + i has been delivered too */
};

struct wire_fin {
    uint32_t conn;
    bool sends_over;    /* no more messages come */
    bool receives_over; /* no more messages are taken */
};

struct wire_abort {
    uint32_t conn, msg;
    int32_t status; /* negative uccl_error */
    bool of_send;
};

enum wire_qp_what {
    QP_OFFER = 1,   /* the queue pair is there: its number and first packet sequence number */
    QP_READY = 2,   /* it is connected: it receives */
    QP_DRAINED = 3, /* it is in error and drained; the ACK before says all that it has received */
};

struct wire_qp {
    uint8_t what; /* enum wire_qp_what */
    uint16_t path;
    uint32_t generation;
    uint32_t number, psn; /* QP_OFFER */
};

struct wire_ack_partial {
    uint32_t seq;
    uint64_t mask;
};

struct wire_ack_path {
    uint16_t path;
    bool ce;
    bool on_path;     /* `path` is that of a queue pair */
    bool by_sequence; /* the newest was a write: path_seq is the chunk's sequence number, time_stamp 0 */
    uint32_t path_seq, time_stamp, ack_delay; /* ack_delay: time units since that packet came */
};

struct wire_ack {
    uint32_t number;     /* of this ack: the window in the newest one counts */
    uint32_t cumulative; /* all chunks before it have arrived */
    uint32_t window_kb;  /* bytes that the receiver's buffer takes from this flow, in KiB */
    uint32_t next;       /* number of the next chunk of the ack's sender */
    uint8_t word_count, partial_count, path_count;
    uint64_t words[WIRE_ACK_WORDS_MAX]; /* bit i: chunk cumulative + 1 + i has arrived whole */
    struct wire_ack_partial partials[WIRE_ACK_PARTIALS_MAX];
    struct wire_ack_path paths[WIRE_ACK_PATHS_MAX];
};

/* Totals of payload bytes since the flow began, modulo 2^32. */
struct wire_demand {
    uint32_t target; /* what the sender would like to have sent */
};

struct wire_grant {
    uint32_t granted; /* what the sender may send */
    uint32_t heard;   /* the newest target that the receiver has seen */
};

/* The id of a connection of ours that has ended, as the peer wrote it. */
struct wire_gone {
    uint32_t id;
};

/* Travels without a sequence number. A payload of any length pads the datagram. */
struct wire_probe {
    bool echo; /* the answer: the nonce of a probe, and no payload */
    uint16_t length;
    uint64_t nonce;
};

enum wire_flow_what { FLOW_CLOSED = 3 /* the sender of the frame has given the flow up */ };

struct wire_flow {
    uint8_t what; /* enum wire_flow_what */
};

/*
 * Travels without a sequence number, and alone in its packet. The fragments of one number make up a datagram, which has
 * a sequence number.
 */
struct wire_fragment {
    uint32_t number; /* of the datagram, among all that are sent in fragments */
    uint32_t offset, length;
    uint32_t total; /* bytes of the datagram */
    const uint8_t *payload;
};

struct wire_frame {
    enum wire_frame_kind kind;
    union {
        uint32_t conn; /* of the frames of a connection */
        struct wire_data data;
        struct wire_eager eager;
        struct wire_cts cts;
        struct wire_rts rts;
        struct wire_credit credit;
        struct wire_abort abort;
        struct wire_fin fin;
        struct wire_ack ack;
        struct wire_demand demand;
        struct wire_grant grant;
        struct wire_qp qp;
        struct wire_gone gone;
        struct wire_probe probe;
        struct wire_flow flow;
        struct wire_fragment fragment;
    };
};

struct wire_packet {
    uint64_t token;
    uint32_t seq, path_seq, time_stamp, payload_crc;
    uint16_t path;
    uint8_t flags, index, count;
    bool single;                          /* the packet has one frame, and `current` holds it already */
    const uint8_t *frames;                /* begin of the frames */
    const uint8_t *frame, *frames_end;    /* cursor and end of the header region */
    const uint8_t *payloads;              /* begin of the payload region */
    const uint8_t *payload, *payload_end; /* cursor and end of the payload region */
    struct wire_frame current;            /* the frame read last */
};

/* The flow token of a datagram; 0: too short, or of another version. Finds the flow before anything is checked. */
uint64_t wire_token(const uint8_t *bytes, size_t length);

/* Whether the header region is that of a bulk datagram: a DATA frame and nothing else. */
bool wire_is_bulk(const uint8_t *bytes, size_t length);
/* Whether the payload of such a datagram is checked, so that damaged bytes are found when it is there. */
bool wire_has_payload_crc(const uint8_t *bytes);
/* Payload bytes of the first `count` of bulk datagrams of `stride` bytes each, `length` in all. */
static inline size_t wire_bulk_payload(size_t length, size_t stride, unsigned count)
{
    return (count * stride < length ? count * stride : length) - count * (size_t)WIRE_BULK_HEADER_BYTES;
}

/*
 * Whether the bulk header at `header` is that of the datagram `ahead` places behind the one of `first` in its chunk,
 * with `payload_bytes`. Checksums are left to wire_parse().
 */
bool wire_follows(const uint8_t *first, unsigned ahead, const uint8_t *header, uint32_t payload_bytes);

/* Checks header and checksum; wire_take_frame() reads the frames. */
bool wire_open(const uint8_t *bytes, size_t length, crc32c_fn crc32c, struct wire_packet *packet);
static inline bool wire_at_end(const struct wire_packet *packet)
{
    return packet->frame == packet->frames_end;
}
/* Reads the next frame into `current`; the packet is not at its end. False: the frame is malformed. */
bool wire_take_frame(struct wire_packet *packet);
/* Back to the first frame. All of the packet's `frames` were read; 0: their number does not matter. */
static inline void wire_rewind(struct wire_packet *packet, unsigned frames)
{
    packet->single = frames == 1;
    packet->frame = packet->frames;
    packet->payload = packet->payloads;
}

/* Checks header, checksum and the shape of every frame. */
bool wire_parse(const uint8_t *bytes, size_t length, crc32c_fn crc32c, struct wire_packet *packet);
bool wire_payload_crc_is_right(const struct wire_packet *packet, crc32c_fn crc32c);
static inline bool wire_payload_intact(const struct wire_packet *packet, crc32c_fn crc32c)
{
    return !(packet->flags & WIRE_PAYLOAD_CRC) || wire_payload_crc_is_right(packet, crc32c);
}

/* The payload stands somewhere else; no frame has been read yet. */
void wire_move_payload(struct wire_packet *packet, const uint8_t *payload);

/* The next frame of a packet that has been checked, valid until the next call; NULL: the end. */
const struct wire_frame *wire_next_frame(struct wire_packet *packet);

/* Appends a frame at `at`, which has room for its WIRE_*_BYTES; returns the bytes written. */
unsigned wire_put_data(uint8_t *at, const struct wire_data *data);
unsigned wire_put_eager(uint8_t *at, const struct wire_eager *eager);
unsigned wire_put_cts(uint8_t *at, const struct wire_cts *cts);
unsigned wire_put_rts(uint8_t *at, const struct wire_rts *rts);
unsigned wire_put_credit(uint8_t *at, const struct wire_credit *credit);
unsigned wire_put_abort(uint8_t *at, const struct wire_abort *end);
unsigned wire_put_fin(uint8_t *at, const struct wire_fin *fin);
unsigned wire_put_demand(uint8_t *at, const struct wire_demand *demand);
unsigned wire_put_grant(uint8_t *at, const struct wire_grant *grant);
unsigned wire_put_qp(uint8_t *at, const struct wire_qp *qp);
unsigned wire_put_gone(uint8_t *at, const struct wire_gone *gone);
unsigned wire_put_probe(uint8_t *at, const struct wire_probe *probe);
unsigned wire_put_flow(uint8_t *at, const struct wire_flow *flow);
unsigned wire_put_fragment(uint8_t *at, const struct wire_fragment *fragment);
unsigned wire_put_ack(uint8_t *at, const struct wire_ack *ack);
unsigned wire_ack_bytes(const struct wire_ack *ack);

/* Notes the length of the header region in a datagram of a TX_FRAMES chunk, for wire_seal(). */
void wire_set_header_length(uint8_t *datagram, uint16_t length);

/*
 * The header of datagram `index` of a TX_BULK chunk. `payload_crc` counts where desc->payload_crc.
 */
void wire_bulk_header(const struct tx_desc *desc, unsigned index, uint32_t payload_crc, crc32c_fn crc32c,
                      uint8_t out[WIRE_BULK_HEADER_BYTES]);

/* Fills in the packet header of datagram `index` of a TX_FRAMES chunk; its frames and payload are laid out already. */
void wire_seal(const struct tx_desc *desc, unsigned index, uint8_t *datagram, uint32_t length, crc32c_fn crc32c);

/* The mask of a whole chunk of so many datagrams, 1 to 64. */
static inline uint64_t wire_full_mask(unsigned count)
{
    return UINT64_MAX >> (64 - count);
}

/*
 * The immediate of a write: {slot of the grant, chunk sequence number}. A flow that places has at most 1,024
 * chunks in flight, so 18 bits are enough for the sequence number.
 */
enum { WIRE_SLOT_BITS = 14, WIRE_SLOTS_MAX = 1 << WIRE_SLOT_BITS, WIRE_IMMEDIATE_SEQ_BITS = 32 - WIRE_SLOT_BITS };
static inline uint32_t wire_immediate(uint32_t slot, uint64_t seq)
{
    return slot << WIRE_IMMEDIATE_SEQ_BITS | ((uint32_t)seq & ((1u << WIRE_IMMEDIATE_SEQ_BITS) - 1));
}
/* The immediate of the chunk `chunks` after the one with this immediate, of the same grant. */
static inline uint32_t wire_immediate_after(uint32_t immediate, uint32_t chunks)
{
    return wire_immediate(immediate >> WIRE_IMMEDIATE_SEQ_BITS, (uint64_t)immediate + chunks);
}
static inline uint32_t wire_immediate_slot(uint32_t immediate)
{
    return immediate >> WIRE_IMMEDIATE_SEQ_BITS;
}
/* The 64-bit number nearest to `expected` that ends in the immediate's 18 bits. */
static inline uint64_t wire_immediate_seq(uint32_t immediate, uint64_t expected)
{
    int32_t distance = (int32_t)((immediate - (uint32_t)expected) << WIRE_SLOT_BITS) >> WIRE_SLOT_BITS;
    return expected + (uint64_t)(int64_t)distance;
}

/* Time on the wire: units of 16 ns, modulo 2^32 (68 s). */
enum { WIRE_TIME_SHIFT = 4 };
static inline uint32_t wire_time(uint64_t ns)
{
    return (uint32_t)(ns >> WIRE_TIME_SHIFT);
}

/* The 64-bit number nearest to `expected` that ends in these 32 bits (RFC 9000 A.3). */
static inline uint64_t wire_expand(uint32_t truncated, uint64_t expected)
{
    return expected + (uint64_t)(int64_t)(int32_t)(truncated - (uint32_t)expected);
}

#endif
