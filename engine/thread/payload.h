/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the payload of a message is reached: in the application's buffer, or in staging blocks where the CPU may not
 * touch that buffer (stage.h). The core never looks at payload, so NICs and engine threads call here.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_PAYLOAD_H
#define UCCL_PAYLOAD_H

#include "request/request.h"

enum { PAYLOAD_PIECES_MAX = 256 };

/* Memory of a vector, in the order of its bytes. */
struct payload_pieces {
    unsigned count;
    struct payload_piece {
        uint8_t *at;
        uint64_t end; /* of this piece among the bytes of the message */
    } piece[];        /* `count`, at most PAYLOAD_PIECES_MAX */
};

/* NULL: no memory. */
struct payload_pieces *payload_pieces_new(unsigned count);

/* Which NICs reach the buffer, by its registrations in `nic_mr`. */
void payload_name_keys(struct uccl_request *request, const struct request_pairs *pairs);

/*
 * Notes which NICs reach the buffer of a message, by its registrations with all NICs (NULL: none reaches it), if its
 * connection places over these pairs.
 */
static inline void payload_reach(struct uccl_request *request, const struct nic_mr *nic_mr,
                                 const struct request_pairs *pairs)
{
    request->msg.placeable = 0;
    request->nic_mr = nic_mr;
    if (nic_mr)
        payload_name_keys(request, pairs);
}

/* Makes the copies that a core call has produced (the contract in core.h). */
void payload_copies(struct core *core);

/* Copies payload [offset, offset + length) of a send to plain memory. */
void payload_gather(void *to, const struct core_msg *msg, uint64_t offset, size_t length);
/* Where the CPU may read it in place; NULL: it is in several places, gather it. */
const void *payload_at(const struct core_msg *msg, uint64_t offset);
/* The piece of it that has this byte, from there on; NULL: it is not in several places. */
const void *payload_piece_at(const struct core_msg *msg, uint64_t offset, size_t *length);
/* nic_local_fn. */
uint64_t payload_local(const struct core_msg *msg, uint64_t offset, unsigned nic, uint32_t *key);

/*
 * Where a NIC may receive the payload of bulk datagrams at once, ahead of payload_copies(); NULL: nowhere
 * (nic_target_fn). `owner` is the engine thread.
 */
void *payload_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count);
/* The same for what takes several reads, and may be asked for before each: none in blocks for a GPU. */
void *payload_kept_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count);

#endif
