/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Datagrams that have become too large for the route (mtu.h). A chunk's datagrams are fixed once they have been sent,
 * since the peer may have some of them. So the flow sends a datagram that is too large again as it is, its image, in
 * fragments. The peer puts the image together and handles it as if it had arrived whole, under its own numbers.
 *
 * Sending: one image after the other, a fragment each time the flow may send. Receiving: a few buffers per core. A
 * flow has at most two of them, and a new image replaces the oldest one. So a peer that leaves its images unfinished
 * takes no more than two buffers from others, which send theirs again.
 *
 * Owned by the core's thread.
 */
#ifndef UCCL_IMAGE_H
#define UCCL_IMAGE_H

#include "core/wire.h"

struct chunk;
struct flow;
struct rail;

enum {
    IMAGES_MAX = 8, /* that a core puts together at a time */
    IMAGES_OF_FLOW_MAX = 2,
    IMAGE_BYTES = 64 * 1024, /* room for CORE_TRAIN_BYTES_MAX */
    IMAGE_UNITS = (CORE_TRAIN_BYTES_MAX + WIRE_FRAGMENT_UNIT - 1) / WIRE_FRAGMENT_UNIT,
};
#define IMAGE_LIFETIME_NS NS_PER_S /* an image that is not whole by then never will be */

/* An image that is being put together. */
struct image {
    uint64_t token; /* of its flow; 0: the buffer is free */
    uint64_t begun_ns;
    uint32_t number, total;
    uint32_t units_left;
    uint64_t units[(IMAGE_UNITS + 63) / 64]; /* bit: there */
    uint8_t *bytes;
};

struct images {
    struct image all[IMAGES_MAX];
};

/* What a flow sends in fragments. */
struct image_out {
    struct tx_desc desc;  /* of the chunk */
    uint64_t left;        /* datagrams to go; 0: nothing is sent in fragments */
    uint32_t number;      /* of the image */
    uint32_t offset;      /* its first byte that has not gone */
    uint64_t left_before; /* `left` and `offset` before the last fragment, should the NIC refuse it */
    uint32_t offset_before;
};

/* `memory`: IMAGES_MAX * IMAGE_BYTES. */
void images_init(struct images *images, uint8_t *memory);

/* Whether a retransmission of the chunk over the rail goes in fragments. */
bool image_needed(const struct rail *rail, const struct chunk *chunk);
/* What its fragments take of the peer's socket buffer. */
uint32_t image_charge(const struct rail *rail, const struct chunk *chunk);
/* Begins to send the chunk of `desc` in fragments. */
void image_begin(struct flow *flow, const struct tx_desc *desc);
/* The next fragment, into `buffer`. False: none is left or needed. */
bool image_next(struct flow *flow, uint8_t *buffer, struct tx_desc *desc);
/* The NIC has not taken the last one. If none has left, sending in fragments ends: the chunk of this descriptor. */
const struct tx_desc *image_undo(struct flow *flow);

enum image_step {
    IMAGE_REFUSED, /* the fragment, or the datagram that it completes, breaks the protocol */
    IMAGE_PARTIAL, /* more is to come, or the payload was damaged */
    IMAGE_WHOLE,
};

/*
 * A fragment has come. IMAGE_WHOLE: `whole` is the datagram, which stands in the image's buffer. The owner does its
 * copies before another fragment can reuse the buffer (core.h, contract on copies).
 */
enum image_step image_add(struct flow *flow, const struct wire_fragment *fragment, uint64_t now_ns,
                          struct wire_packet *whole);

#endif
