/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/udp/train.h"

#include "core/wire.h"

#include <assert.h>
#include <string.h>

/* Payload bytes of the datagrams in place. */
static size_t placed_bytes(const struct nic_rx *train)
{
    return wire_bulk_payload(train->length, train->stride, train->in_place);
}

static bool overlap(const struct nic_rx *a, const struct nic_rx *b)
{
    return a->payload < b->payload + placed_bytes(b) && b->payload < a->payload + placed_bytes(a);
}

void train_foresee(const struct nic_queue_setup *setup, const uint8_t *header, struct nic_rx *train,
                   const struct nic_rx *earlier, unsigned count)
{
    train->in_place = 0;
    train->payload = setup->target(setup->owner, header, train->length, train->stride, &train->in_place);
    if (!train->payload)
        train->in_place = 0;
    assert(train->in_place <= CORE_TRAIN_MAX);
    for (unsigned i = 0; i < count; i++) {
        if (train->in_place && earlier[i].in_place && overlap(train, &earlier[i]))
            train->in_place = 0;
    }
}

unsigned train_spread(const struct nic_rx *train, uint8_t *buffer, uint32_t buffer_bytes,
                      struct iovec iovecs[TRAIN_IOVECS_MAX])
{
    uint8_t *payload = (uint8_t *)(uintptr_t)train->payload;
    uint32_t at = 0;
    unsigned count = 0;
    for (unsigned i = 0; i < train->in_place; i++) {
        uint32_t left = train->length - at,
                 bytes = (left < train->stride ? left : train->stride) - WIRE_BULK_HEADER_BYTES;
        iovecs[count++] = (struct iovec){buffer + at, WIRE_BULK_HEADER_BYTES};
        iovecs[count++] = (struct iovec){payload, bytes};
        payload += bytes;
        at += WIRE_BULK_HEADER_BYTES + bytes;
    }
    iovecs[count++] = (struct iovec){buffer + at, buffer_bytes - at};
    return count;
}

void train_settle(struct nic_rx *train, const struct iovec *iovecs)
{
    unsigned right = train->in_place ? 1 : 0; /* peeked at */
    while (right < train->in_place &&
           wire_follows(train->data, right, iovecs[2 * right].iov_base, (uint32_t)iovecs[2 * right + 1].iov_len))
        right++;
    for (unsigned i = right; i < train->in_place; i++)
        memcpy((uint8_t *)iovecs[2 * i].iov_base + WIRE_BULK_HEADER_BYTES, iovecs[2 * i + 1].iov_base,
               iovecs[2 * i + 1].iov_len);
    train->in_place = right;
}
