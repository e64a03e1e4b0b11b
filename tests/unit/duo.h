/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two cores, a flow and a connection between them, and a wire in the test's hand: what one end sends
 * waits in a queue until the test delivers or drops it. Time passes when the test says so.
 */
#ifndef TEST_DUO_H
#define TEST_DUO_H

#include "../param_defaults.h"
#include "core/crc32c.h"
#include "core/state.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum { DUO_REQUESTS = 4096, DUO_QUEUE = 4096, DUO_CONNS = 4 };

struct duo_request {
    struct core_msg msg;
    uint8_t *buffer;
    bool ended;
    int32_t status;
    uint64_t moved;
    bool wanted;             /* CORE_EVENT_WANTED came */
    uint64_t asks;           /* CORE_EVENT_RANGE came, with a full chunk of so many bytes; the test answers */
    uint64_t arrived, total; /* as CORE_EVENT_ARRIVED tells */
    uint64_t released;       /* bytes that core_next_release() told */
};

struct duo_datagram {
    uint8_t *bytes;
    size_t length;
};

/* All memory of a test, which it may open over and over; gone with its process. */
enum { DUO_KEPT = 1024 };
static void *duo_kept[DUO_KEPT];
static unsigned duo_kept_count;

static struct params duo_params;
static struct flow_setup duo_setup[2];
static struct counters duo_counters[2];
static struct core *duo_core[2];
static struct flow *duo_flow[2];
static struct conn *duo_conn[2][DUO_CONNS]; /* [side][connection] */
static struct duo_datagram duo_queue[2][DUO_QUEUE];
static unsigned duo_queued[2];
static struct duo_request duo_requests[DUO_REQUESTS];
static unsigned duo_request_count;
static uint64_t duo_now;
static unsigned duo_failed[2], duo_ended[2], duo_called[2], duo_proven[2], duo_dead[2];
static int32_t duo_failed_status[2];
static unsigned duo_holes[2];             /* CORE_EVENT_FLOW_HOLE seen */
static uint32_t duo_passing[2];           /* what the last one said */
static unsigned duo_lost[2], duo_back[2]; /* CORE_EVENT_RAIL_LOST, CORE_EVENT_RAIL_BACK seen */
static unsigned duo_wanted[2];            /* CORE_EVENT_RAILS_WANTED seen */
static bool duo_refuse;                   /* the NIC takes nothing */
static unsigned duo_entropy[2];           /* UCCL_PORT_ENTROPY of each end; 0: duo_params */
static bool duo_reliable;                 /* capability: placing queue pairs are */
static bool duo_whole_trains;             /* capability: a train costs about one send */
static bool duo_registered;               /* buffers to be posted: the NIC reaches them */
static uint8_t duo_nics[2];               /* which NICs then reach a buffer: bits by pair */
enum { DUO_KEY_PAIR_SHIFT = 16 };         /* of keys: the pair whose NIC takes it */
/* A NIC that places payload (placing_duo.h), or NULL: a descriptor for it; what its queue pairs are to do. */
static void (*duo_on_path)(unsigned side, const struct tx_desc *desc);
static void (*duo_path_actions)(unsigned side);
static uint32_t duo_block_bytes; /* of sends to be posted: they are staged */

/* As an engine's: most of it is never touched, and costs nothing. */
static inline void *duo_zeroed(size_t bytes)
{
    enum { ALIGNMENT = 64 };
    void *memory = calloc(1, bytes + ALIGNMENT);
    cr_assert_not_null(memory);
    cr_assert_lt(duo_kept_count, DUO_KEPT);
    duo_kept[duo_kept_count++] = memory;
    return (void *)(((uintptr_t)memory + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
}

static inline void duo_defaults(void)
{
    duo_params = param_defaults();
    duo_params.eager_kb = 8;
    duo_params.ack_delay_us = 50;
    duo_params.dead_peer_ms = 1000;
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side] = (struct flow_setup){
            .rx_token = core_make_token(1000 + side, 1 + side),
            .tx_token = core_make_token(1001 - side, 2 - side),
            .rails[0] = {.destination = side, .datagram_bytes = 1472},
            .rail_count = 1,
            .chunk_window = 64,
            .msg_window = 16,
            .tx_window_bytes = 1 << 20,
            .rx_window_bytes = 1 << 20,
            .eager_window_kb = 128,
            .features = WIRE_FEATURES,
        };
}

/* Each end has so many NICs, whose addresses have to be proven. */
static inline void duo_set_rails(unsigned count)
{
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < count; i++)
            duo_setup[side].rails[i] = (struct rail_setup){
                .destination = 2 * i + side, .datagram_bytes = 1472, .nonce = 1111 * (2 * i + side + 1)};
        duo_setup[side].rail_count = count;
    }
}

/* Opens what duo_defaults() and the test have set up. `one_core`: a flow to itself. */
static inline void duo_open_as(bool one_core)
{
    duo_now = UINT64_C(1) << 40;
    for (unsigned side = 0; side < 2; side++) {
        struct core_setup setup = {.params = &duo_params,
                                   .counters = &duo_counters[side],
                                   .crc32c = crc32c_portable,
                                   .seed = 7 + side,
                                   .whole_trains = duo_whole_trains,
                                   .places_reliably = duo_reliable,
                                   .places_in_order = true};
        duo_core[side] =
            side && one_core ? duo_core[0] : core_init(duo_zeroed(core_size(&duo_params)), &setup, duo_now);
        duo_setup[side].owner = &duo_flow[side];
        if (duo_entropy[side])
            duo_params.port_entropy = duo_entropy[side];
        duo_flow[side] = core_flow_open(duo_core[side], duo_zeroed(core_flow_size(&duo_params, &duo_setup[side])),
                                        &duo_setup[side], duo_now);
        for (unsigned i = 0; i < DUO_CONNS; i++)
            duo_conn[side][i] =
                core_conn_open(duo_core[side], duo_zeroed(core_conn_size(&duo_setup[side])), duo_flow[side],
                               &duo_setup[side], 2 * i + side, 2 * i + !side, &duo_conn[side][i], duo_now);
    }
}

static inline void duo_open(void)
{
    duo_defaults();
    duo_open_as(false);
}

static inline void duo_copies(unsigned side)
{
    struct core_copy copy;
    while (core_next_copy(duo_core[side], &copy)) {
        struct duo_request *request = (struct duo_request *)copy.msg;
        cr_assert(!request || (!request->ended && copy.offset_bytes + copy.length <= request->msg.size_bytes));
        memcpy(request ? request->buffer + copy.offset_bytes : copy.to, copy.from, copy.length);
    }
}

static inline uint8_t duo_byte(uint64_t number, uint64_t offset)
{
    return (uint8_t)(number * 101 + offset * 7 + (offset >> 8));
}

/* Posts a message on connection `index`; a send is filled with duo_byte() of its number. */
static inline struct duo_request *duo_post_msg(unsigned side, unsigned index, struct core_msg msg)
{
    cr_assert_lt(duo_request_count, DUO_REQUESTS);
    struct duo_request *request = &duo_requests[duo_request_count++];
    struct conn *conn = duo_conn[side][index];
    *request = (struct duo_request){.msg = msg, .buffer = malloc(msg.size_bytes ? msg.size_bytes : 1)};
    request->msg.block_bytes = msg.kind == CORE_SEND ? duo_block_bytes : 0;
    request->msg.placeable = duo_registered ? duo_nics[side] : 0;
    request->msg.grant_address = (uint64_t)(uintptr_t)request->buffer;
    for (unsigned i = 0; i < CORE_PAIRS_MAX; i++)
        request->msg.grant_keys[i] = duo_request_count | i << DUO_KEY_PAIR_SHIFT;
    for (uint64_t i = 0; i < msg.size_bytes; i++)
        request->buffer[i] = msg.kind == CORE_SEND ? duo_byte(conn->send_next, i) : 0xee;
    core_submit(duo_core[side], conn, &request->msg, duo_now);
    duo_copies(side);
    return request;
}

static inline struct duo_request *duo_post(unsigned side, unsigned index, unsigned kind, uint64_t size)
{
    return duo_post_msg(side, index, (struct core_msg){.kind = (uint8_t)kind, .size_bytes = size});
}

static inline struct duo_request *duo_send(unsigned side, uint64_t size)
{
    return duo_post(side, 0, CORE_SEND, size);
}

static inline struct duo_request *duo_recv(unsigned side, uint64_t size)
{
    return duo_post(side, 0, CORE_RECV, size);
}

static inline void duo_events(unsigned side)
{
    struct core_event event;
    while (core_next_event(duo_core[side], &event)) {
        struct duo_request *request = (struct duo_request *)event.msg;
        switch (event.kind) {
        case CORE_EVENT_MSG:
            cr_assert_not(request->ended, "a request ended twice");
            request->ended = true;
            request->status = event.status;
            request->moved = event.msg->moved_bytes;
            break;
        case CORE_EVENT_RANGE:
            cr_assert(!request->asks && !request->ended && event.bytes);
            request->asks = event.bytes;
            break;
        case CORE_EVENT_ARRIVED:
            cr_assert(!request->ended && event.bytes && event.total <= event.msg->size_bytes);
            request->arrived += event.bytes;
            request->total = event.total;
            break;
        case CORE_EVENT_WANTED:
            cr_assert(!request->wanted && !request->ended);
            request->wanted = true;
            break;
        case CORE_EVENT_CONN_ENDED:
            duo_ended[side]++;
            break;
        case CORE_EVENT_CONN_FAILED:
            duo_failed[side]++;
            duo_failed_status[side] = event.status;
            break;
        case CORE_EVENT_FLOW_PROVEN:
            duo_proven[side]++;
            break;
        case CORE_EVENT_FLOW_DEAD:
            duo_dead[side]++;
            break;
        case CORE_EVENT_FLOW_HOLE:
            duo_holes[side]++;
            duo_passing[side] = event.passing_bytes;
            break;
        case CORE_EVENT_RAILS_WANTED:
            duo_wanted[side]++;
            break;
        case CORE_EVENT_RAIL_LOST:
            duo_lost[side]++;
            break;
        case CORE_EVENT_RAIL_BACK:
            duo_back[side]++;
            break;
        case CORE_EVENT_CONN_CALLED:
            duo_called[side]++;
            break;
        default:
            cr_assert_fail("an event of kind %d", (int)event.kind);
        }
    }
}

static inline void duo_releases(unsigned side)
{
    struct core_release release;
    while (core_next_release(duo_core[side], &release)) {
        struct duo_request *request = (struct duo_request *)release.msg;
        cr_assert_not(request->ended);
        request->released += release.length;
    }
}

/* A staged message may be read up to here, and no chunk of it crosses a block. */
static inline void duo_assert_available(const struct core_msg *msg, uint64_t offset, uint64_t length)
{
    if (msg->block_bytes == 0)
        return;
    cr_assert(length && offset + length <= msg->available_bytes);
    cr_assert_eq(offset / msg->block_bytes, (offset + length - 1) / msg->block_bytes);
}

static inline void duo_put(unsigned side, const uint8_t *bytes, size_t length)
{
    cr_assert_lt(duo_queued[side], DUO_QUEUE);
    struct duo_datagram *datagram = &duo_queue[side][duo_queued[side]++];
    datagram->bytes = malloc(length);
    datagram->length = length;
    memcpy(datagram->bytes, bytes, length);
}

static inline void duo_build(unsigned side, const struct tx_desc *desc)
{
    static uint8_t buffer[65536];
    for (unsigned i = 0; desc->kind == TX_FRAMES && i < desc->piece_count; i++) {
        const struct tx_piece *piece = &desc->pieces[i];
        duo_assert_available(piece->msg, piece->offset_bytes, piece->length);
        cr_assert_not(((struct duo_request *)piece->msg)->ended, "payload of what has ended is read");
        memcpy(desc->buffer + piece->at, ((struct duo_request *)piece->msg)->buffer + piece->offset_bytes,
               piece->length);
    }
    if (desc->kind == TX_BULK)
        duo_assert_available(desc->bulk_msg, desc->bulk_offset,
                             (uint64_t)(desc->count - 1u) * desc->bulk_stride + desc->bulk_last);
    for (unsigned i = 0; i < desc->count; i++) {
        if (!(desc->mask >> i & 1))
            continue;
        uint32_t length = i + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
        uint8_t *datagram = buffer;
        if (desc->kind == TX_FRAMES) {
            datagram = desc->buffer + (size_t)i * desc->datagram_bytes;
            wire_seal(desc, i, datagram, length, crc32c_portable);
        } else {
            const struct duo_request *request = (struct duo_request *)desc->bulk_msg;
            wire_bulk_header(desc, i, 0, crc32c_portable, buffer);
            memcpy(buffer + WIRE_BULK_HEADER_BYTES,
                   request->buffer + desc->bulk_offset + (uint64_t)i * desc->bulk_stride,
                   length - WIRE_BULK_HEADER_BYTES);
        }
        duo_put(side, datagram, length);
    }
}

static inline void duo_drop(unsigned side)
{
    for (unsigned i = 0; i < duo_queued[side]; i++)
        free(duo_queue[side][i].bytes);
    duo_queued[side] = 0;
}

/* Lets this side send all it has into its queue; returns how many datagrams wait there. */
static inline unsigned duo_transmit(unsigned side)
{
    struct tx_desc desc;
    if (duo_path_actions)
        duo_path_actions(side);
    while (core_tx(duo_core[side], &desc, duo_now)) {
        /* ends of a flow to itself share a core: whose it is, its flow says */
        if (desc.on_path && !duo_refuse)
            duo_on_path((unsigned)(desc.flow == duo_flow[1]), &desc);
        else if (!desc.on_path)
            duo_build((unsigned)(desc.flow == duo_flow[1]), &desc);
        if (duo_refuse) {
            duo_drop(side);
            core_tx_failed(duo_core[side], &desc, duo_now);
            break;
        }
        duo_releases(side);
    }
    duo_events(side);
    return duo_queued[side];
}

/* Delivers datagram `i` of what `side` has sent. */
static inline void duo_deliver_one(unsigned side, unsigned i)
{
    core_rx(duo_core[!side], duo_queue[side][i].bytes, duo_queue[side][i].length, false, duo_now);
    duo_copies(!side);
    duo_releases(!side);
    duo_events(!side);
}

static inline void duo_deliver(unsigned side)
{
    for (unsigned i = 0; i < duo_queued[side]; i++)
        duo_deliver_one(side, i);
    duo_drop(side);
}

/* All that `side` has to send leaves, and arrives. */
static inline void duo_pass(unsigned side)
{
    duo_transmit(side);
    duo_deliver(side);
}

/* The same, and is lost. */
static inline void duo_lose(unsigned side)
{
    duo_transmit(side);
    duo_drop(side);
}

/* Both sides talk, over a wire without delay, until they have no more to say now. */
static inline void duo_talk(void)
{
    for (unsigned round = 0; round < 10000; round++) {
        unsigned said = duo_transmit(0) + duo_transmit(1);
        if (said == 0)
            return;
        duo_now += 10 * US;
        duo_deliver(0);
        duo_deliver(1);
    }
    cr_assert_fail("they never stop");
}

/* The next timer of `side` at or before `until_ns` fires; false: there is none. */
static inline bool duo_tick(unsigned side, uint64_t until_ns)
{
    uint64_t at_ns = core_deadline(duo_core[side]);
    if (at_ns > until_ns)
        return false;
    if (at_ns > duo_now)
        duo_now = at_ns;
    core_expire(duo_core[side], duo_now);
    duo_events(side);
    return true;
}

/* So much time passes, with talk of this kind. */
static inline void duo_run_with(uint64_t ns, void (*talk)(void))
{
    uint64_t until_ns = duo_now + ns;
    for (unsigned ticks = 0; ticks < 100000; ticks++) {
        talk();
        unsigned side = core_deadline(duo_core[1]) < core_deadline(duo_core[0]);
        if (!duo_tick(side, until_ns)) {
            if (duo_now < until_ns)
                duo_now = until_ns;
            return;
        }
    }
    cr_assert_fail("timers do not come to an end");
}

static inline void duo_run(uint64_t ns)
{
    duo_run_with(ns, duo_talk);
}

/* So much time passes, in which nothing of what `side` sends arrives. */
static inline void duo_run_deaf(unsigned side, uint64_t ns)
{
    uint64_t until_ns = duo_now + ns;
    for (unsigned ticks = 0; ticks < 100000; ticks++) {
        duo_lose(side);
        if (!duo_tick(side, until_ns)) {
            duo_now = until_ns;
            return;
        }
    }
    cr_assert_fail("timers do not come to an end");
}

static inline uint64_t duo_count(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void duo_assert_ended(const struct duo_request *request, int32_t status, uint64_t moved)
{
    cr_assert(request->ended, "a request of %lu bytes is pending", (unsigned long)request->msg.size_bytes);
    cr_assert_eq(request->status, status, "status %d instead of %d", request->status, status);
    cr_assert_eq(request->moved, moved);
    for (uint64_t i = 0; i < moved; i++)
        cr_assert_eq(request->buffer[i], duo_byte(request->msg.number, i));
}

/* A message has arrived, and both ends know. */
static inline void duo_assert_arrived(const struct duo_request *send, const struct duo_request *recv, uint64_t size)
{
    duo_assert_ended(send, UCCL_OK, size);
    duo_assert_ended(recv, UCCL_OK, size);
}

/* The device of a rail of side 0 is gone, or is back. */
static inline void duo_device(unsigned rail, bool up)
{
    core_destination_changed(duo_core[0], duo_flow[0]->rails[rail].destination, up, duo_now);
}

/* All paths of the rail are up at both ends. */
static inline void duo_connect_rail(unsigned rail)
{
    for (unsigned side = 0; side < 2; side++)
        for (uint16_t path = 0; path < duo_params.port_entropy; path++)
            core_path_room(duo_core[side], duo_flow[side], rail, path, duo_now);
}

/* Side 1 receives `size` bytes. The clear-to-send is there, so that a large message leaves at once. */
static inline struct duo_request *duo_recv_ready(uint64_t size)
{
    struct duo_request *recv = duo_recv(1, size);
    duo_run(MS);
    return recv;
}

/* Both flows have told and acked all; nothing is kept. */
static inline void duo_assert_rest(void)
{
    for (unsigned side = 0; side < 2; side++) {
        const struct flow *flow = duo_flow[side];
        cr_assert_eq(flow->sent.cumulative, flow->sent.next_seq);
        cr_assert_eq(flow->sent.flying_charge, 0);
        cr_assert_eq(flow->msgs_pending, 0);
        cr_assert_eq(duo_core[side]->small.count, duo_params.tx_small_buffers);
        cr_assert_eq(duo_core[side]->big.count, duo_params.tx_buffers);
    }
}

#endif
