/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains whose payload is received in place, right and wrong ones. The application's memory is filled with a mark
 * first, so that what was written where shows.
 */
#include "core/crc32c.h"
#include "nic/udp/train.h"

#include <criterion/criterion.h>
#include <string.h>

enum { PAYLOAD = 1000, STRIDE = WIRE_BULK_HEADER_BYTES + PAYLOAD, DATAGRAMS = 6, BUFFER = 65536, MARK = 0xee };

static uint8_t message[DATAGRAMS * PAYLOAD + 1], buffer[BUFFER];
static unsigned answer;    /* what place() says: datagrams, */
static uint8_t *answer_to; /* and their place */
static struct iovec iovecs[TRAIN_IOVECS_MAX];

static void *target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    (void)owner;
    cr_assert(wire_is_bulk(header, stride) && stride <= length);
    *count = answer;
    return answer_to;
}

static const struct nic_queue_setup setup = {.target = target};

static struct tx_desc chunk(unsigned count, uint32_t last)
{
    return (struct tx_desc){.kind = TX_BULK,
                            .count = (uint8_t)count,
                            .sequenced = true,
                            .token = 99,
                            .seq = 5,
                            .bulk_stride = PAYLOAD,
                            .bulk_last = last,
                            .bulk_offset = 70000,
                            .conn_id = 4,
                            .msg_number = 6,
                            .msg_total = 1000000};
}

/* Appends datagram `index` of a chunk, its payload all of one value, at `at`; returns its bytes. */
static uint32_t put(const struct tx_desc *desc, unsigned index, uint8_t value, uint8_t *at)
{
    uint32_t bytes = index + 1u == desc->count ? desc->bulk_last : desc->bulk_stride;
    wire_bulk_header(desc, index, 0, crc32c_portable, at);
    memset(at + WIRE_BULK_HEADER_BYTES, value, bytes);
    return WIRE_BULK_HEADER_BYTES + bytes;
}

/* `length` bytes come, of which the core awaits the payload of the first `awaited` datagrams at the message's begin. */
static struct nic_rx come(const uint8_t *train, uint32_t length, unsigned awaited)
{
    struct nic_rx rx = {.length = length, .stride = STRIDE};
    uint32_t at = 0;
    memset(message, MARK, sizeof message);
    memset(buffer, 0, sizeof buffer);
    answer = awaited;
    answer_to = message;
    train_foresee(&setup, train, &rx, NULL, 0);
    cr_assert_eq(rx.in_place, awaited);
    unsigned count = train_spread(&rx, buffer, BUFFER, iovecs);
    for (unsigned i = 0; at < length; i++) {
        uint32_t bytes = iovecs[i].iov_len < length - at ? (uint32_t)iovecs[i].iov_len : length - at;
        cr_assert_lt(i, count);
        memcpy(iovecs[i].iov_base, train + at, bytes);
        at += bytes;
    }
    rx.data = buffer;
    train_settle(&rx, iovecs);
    return rx;
}

/* Datagrams from `from` on stand in the buffer as they came. */
static void assert_kept(const uint8_t *train, uint32_t length, unsigned from)
{
    cr_assert_eq(memcmp(buffer + from * STRIDE, train + from * STRIDE, length - from * STRIDE), 0);
}

static void assert_placed(const struct nic_rx *rx, unsigned index, uint8_t value, uint32_t bytes)
{
    const uint8_t *payload = nic_rx_payload(rx, index);
    cr_assert_eq(payload, message + index * PAYLOAD);
    for (uint32_t i = 0; i < bytes; i++)
        cr_assert_eq(payload[i], value, "byte %u of datagram %u", i, index);
}

Test(train, consecutive_datagrams_are_placed_and_their_headers_kept)
{
    uint8_t train[DATAGRAMS * STRIDE];
    struct tx_desc desc = chunk(DATAGRAMS, 300);
    uint32_t length = 0;
    for (unsigned i = 0; i < DATAGRAMS; i++)
        length += put(&desc, i, (uint8_t)(i + 1), train + length);
    struct nic_rx rx = come(train, length, DATAGRAMS);
    cr_assert_eq(rx.in_place, DATAGRAMS);
    for (unsigned i = 0; i < DATAGRAMS; i++) {
        assert_placed(&rx, i, (uint8_t)(i + 1), i + 1 == DATAGRAMS ? 300 : PAYLOAD);
        cr_assert_eq(memcmp(buffer + i * STRIDE, train + i * STRIDE, WIRE_BULK_HEADER_BYTES), 0);
    }
    cr_assert_null(nic_rx_payload(&rx, DATAGRAMS));
    cr_assert_eq(message[(DATAGRAMS - 1) * PAYLOAD + 300], MARK, "beyond the last");
}

Test(train, what_is_not_awaited_stays_in_the_buffer)
{
    uint8_t train[DATAGRAMS * STRIDE];
    struct tx_desc desc = chunk(40, PAYLOAD);
    for (unsigned i = 0; i < DATAGRAMS; i++)
        put(&desc, i, (uint8_t)(i + 1), train + i * STRIDE);
    for (unsigned awaited = 0; awaited <= DATAGRAMS; awaited++) {
        struct nic_rx rx = come(train, sizeof train, awaited);
        cr_assert_eq(rx.in_place, awaited);
        for (unsigned i = 0; i < awaited; i++)
            assert_placed(&rx, i, (uint8_t)(i + 1), PAYLOAD);
        assert_kept(train, sizeof train, awaited);
        cr_assert_null(nic_rx_payload(&rx, awaited));
        cr_assert_eq(message[awaited * PAYLOAD], MARK);
    }
}

/* Each field that names a place, and a datagram that is no bulk at all. */
Test(train, from_the_first_stranger_on_nothing_is_in_place)
{
    uint8_t train[DATAGRAMS * STRIDE];
    struct tx_desc desc = chunk(40, PAYLOAD), others[] = {desc, desc, desc, desc, desc, desc, desc};
    unsigned indexes[] = {0, 3, 2, 2, 2, 2, 2};
    others[2].seq++;
    others[3].token++;
    others[4].conn_id++;
    others[5].msg_number++;
    others[6].bulk_offset += 8;
    for (unsigned kind = 0; kind <= 7; kind++) {
        for (unsigned i = 0; i < DATAGRAMS; i++)
            put(&desc, i, (uint8_t)(i + 1), train + i * STRIDE);
        if (kind < 7)
            put(&others[kind], indexes[kind], 99, train + 2 * STRIDE);
        else
            memset(train + 2 * STRIDE, 99, STRIDE);
        struct nic_rx rx = come(train, sizeof train, DATAGRAMS);
        cr_assert_eq(rx.in_place, 2, "kind %u: %u", kind, rx.in_place);
        assert_placed(&rx, 0, 1, PAYLOAD);
        assert_placed(&rx, 1, 2, PAYLOAD);
        assert_kept(train, sizeof train, 2);
        cr_assert_eq(message[DATAGRAMS * PAYLOAD], MARK);
    }
}

Test(train, swapped_datagrams_keep_their_payload)
{
    uint8_t train[4 * STRIDE];
    struct tx_desc desc = chunk(40, PAYLOAD);
    static const unsigned order[] = {7, 9, 8, 10};
    for (unsigned i = 0; i < 4; i++)
        put(&desc, order[i], (uint8_t)order[i], train + i * STRIDE);
    struct nic_rx rx = come(train, sizeof train, 4);
    cr_assert_eq(rx.in_place, 1);
    assert_placed(&rx, 0, 7, PAYLOAD);
    assert_kept(train, sizeof train, 1);
}

/* The last of a joined train may be anything shorter. */
Test(train, a_shorter_last_one_that_is_not_the_chunks_last)
{
    uint8_t train[3 * STRIDE];
    struct tx_desc desc = chunk(40, PAYLOAD), other = chunk(1, 500);
    put(&desc, 0, 1, train);
    put(&desc, 1, 2, train + STRIDE);
    uint32_t length = 2 * STRIDE + put(&other, 0, 99, train + 2 * STRIDE);
    struct nic_rx rx = come(train, length, 3);
    cr_assert_eq(rx.in_place, 2);
    assert_kept(train, length, 2);
    cr_assert_eq(message[2 * PAYLOAD + 500], MARK, "more than came was written");
}

Test(train, nothing_is_placed_over_what_was_placed_before)
{
    struct nic_rx earlier[2] = {{.length = 3 * STRIDE, .stride = STRIDE, .in_place = 2, .payload = message + PAYLOAD},
                                {.length = STRIDE, .stride = STRIDE}};
    uint8_t header[WIRE_BULK_HEADER_BYTES];
    struct tx_desc desc = chunk(40, PAYLOAD);
    wire_bulk_header(&desc, 0, 0, crc32c_portable, header);
    static const struct {
        uint32_t at;
        unsigned count;
        bool free;
    } cases[] = {
        {0, 1, true},  {3 * PAYLOAD, 3, true},      {0, 2, false}, {PAYLOAD, 2, false}, {2 * PAYLOAD, 1, false},
        {1, 1, false}, {3 * PAYLOAD - 1, 1, false}, {0, 5, false}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nic_rx rx = {.length = 5 * STRIDE, .stride = STRIDE};
        answer = cases[i].count;
        answer_to = message + cases[i].at;
        train_foresee(&setup, header, &rx, earlier, 2);
        cr_assert_eq(rx.in_place, cases[i].free ? cases[i].count : 0, "case %u", i);
    }
    struct nic_rx rx = {.length = 5 * STRIDE, .stride = STRIDE, .in_place = 7};
    answer_to = NULL;
    answer = 3;
    train_foresee(&setup, header, &rx, NULL, 0);
    cr_assert_eq(rx.in_place, 0);
}
