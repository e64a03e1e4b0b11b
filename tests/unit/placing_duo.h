/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two cores whose NICs place payload, in the test's hand: queue pairs are made and connected at once, but
 * what is sent over them waits until the test lets it arrive or loses it, work requests finish when the test
 * says so, and so do drains.
 */
#ifndef TEST_PLACING_DUO_H
#define TEST_PLACING_DUO_H

#include "duo.h"

enum { PLACING_PACKETS = 512, PLACING_ACTIONS = 256 };

/* A descriptor under way. */
struct placing_packet {
    unsigned side; /* that sent it */
    struct tx_desc desc;
    struct duo_datagram datagrams[CORE_TRAIN_MAX]; /* of a retransmission */
    unsigned datagram_count;
    bool gone; /* arrived or lost */
};

static struct placing_packet placing_packets[PLACING_PACKETS];
static unsigned placing_packet_count;
static struct core_qp_action placing_drains[2][PLACING_ACTIONS]; /* asked for, to be answered */
static unsigned placing_drain_count[2];
static unsigned placing_opened[2], placing_connected[2], placing_closed[2];
static bool placing_drain_at_once; /* drains are answered at once */
static bool placing_open_fails;

/* A queue pair's number names path and side, so that a wrong one is seen. */
static inline uint32_t placing_number(unsigned side, uint16_t path, uint32_t generation)
{
    return 1000000 * (side + 1) + 1000 * path + generation;
}

static inline void placing_act(unsigned side)
{
    struct core_qp_action action;
    while (core_next_qp_action(duo_core[side], &action)) {
        cr_assert_eq(action.flow, duo_flow[side]);
        switch (action.kind) {
        case QP_OPEN:
            placing_opened[side]++;
            if (placing_open_fails)
                core_qp_failed(duo_core[side], action.flow, action.path, action.generation, duo_now);
            else
                core_qp_opened(duo_core[side], action.flow, action.path, action.generation,
                               placing_number(side, action.path, action.generation), 77 + side, duo_now);
            break;
        case QP_CONNECT:
            cr_assert_eq(action.number, placing_number(!side, action.path, action.generation));
            cr_assert_eq(action.psn, 77 + !side);
            placing_connected[side]++;
            core_qp_connected(duo_core[side], action.flow, action.path, action.generation, duo_now);
            break;
        case QP_DRAIN:
            if (placing_drain_at_once) {
                core_qp_drained(duo_core[side], action.flow, action.path, action.generation, duo_now);
                break;
            }
            cr_assert_lt(placing_drain_count[side], PLACING_ACTIONS);
            placing_drains[side][placing_drain_count[side]++] = action;
            break;
        case QP_CLOSE:
            placing_closed[side]++;
            break;
        }
    }
}

static inline void placing_take(unsigned side, const struct tx_desc *desc)
{
    struct placing_packet *packet;
    unsigned writes = desc->kind == TX_PLACE ? desc->count : 0, i = 0;
    do {
        cr_assert_lt(placing_packet_count, PLACING_PACKETS);
        packet = &placing_packets[placing_packet_count++];
        *packet = (struct placing_packet){.side = side, .desc = *desc};
        if (writes) { /* each by itself */
            packet->desc.count = 1;
            packet->desc.seq += i;
            packet->desc.bulk_offset += (uint64_t)i * desc->place_bytes;
            packet->desc.remote_address += (uint64_t)i * desc->place_bytes;
            packet->desc.immediate = wire_immediate_after(desc->immediate, i);
        }
    } while (++i < writes);
    if (writes)
        return;
    unsigned before = duo_queued[side];
    duo_build(side, desc);
    while (duo_queued[side] > before) /* last first */
        packet->datagrams[packet->datagram_count++] = duo_queue[side][--duo_queued[side]];
}

/* Opens both ends with `paths` paths; nothing is placed before it is wanted. */
static inline void placing_setup(unsigned paths)
{
    duo_defaults();
    duo_params.port_entropy = paths;
    duo_params.qp_retry_ms = 5;
    duo_setup[0].places = duo_setup[1].places = true;
    duo_registered = true;
    duo_nics[0] = duo_nics[1] = (1 << CORE_PAIRS_MAX) - 1;
    duo_on_path = placing_take;
    duo_path_actions = placing_act;
}

static inline void placing_open(unsigned paths)
{
    placing_setup(paths);
    duo_open_as(false);
}

static inline void placing_forget(struct placing_packet *packet)
{
    packet->gone = true;
    while (packet->datagram_count > 0)
        free(packet->datagrams[--packet->datagram_count].bytes);
}

/* A write, or a retransmission, arrives. */
static inline void placing_arrive(unsigned index)
{
    struct placing_packet *packet = &placing_packets[index];
    unsigned to = !packet->side;
    const struct tx_desc *desc = &packet->desc;
    cr_assert_not(packet->gone);
    if (desc->kind == TX_PLACE) {
        const struct duo_request *from = (struct duo_request *)desc->bulk_msg;
        uint8_t pair = duo_flow[packet->side]->rails[desc->rail].pair;
        const struct duo_request *into = &duo_requests[(desc->remote_key & ((1u << DUO_KEY_PAIR_SHIFT) - 1)) - 1];
        cr_assert_eq(desc->remote_key >> DUO_KEY_PAIR_SHIFT, pair, "a key of another NIC");
        cr_assert(from->msg.placeable >> pair & 1 && into->msg.placeable >> pair & 1);
        cr_assert_not(into->ended, "a write into a buffer that was given back");
        uint64_t at = desc->remote_address - (uint64_t)(uintptr_t)into->buffer;
        cr_assert_leq(at + desc->place_bytes, into->msg.size_bytes);
        memcpy(into->buffer + at, from->buffer + desc->bulk_offset, desc->place_bytes);
        core_rx_immediate(duo_core[to], duo_flow[to], desc->path, desc->generation, desc->immediate, desc->place_bytes,
                          duo_now);
    }
    for (unsigned i = packet->datagram_count; i-- > 0;) {
        core_rx_on_qp(duo_core[to], duo_flow[to], desc->path, desc->generation, packet->datagrams[i].bytes,
                      packet->datagrams[i].length, duo_now);
        duo_copies(to);
    }
    placing_forget(packet);
    duo_events(to);
}

static inline void placing_lose(unsigned index)
{
    cr_assert_not(placing_packets[index].gone);
    placing_forget(&placing_packets[index]);
}

/* The NIC has finished a descriptor. */
static inline void placing_finish(unsigned index)
{
    unsigned side = placing_packets[index].side;
    core_tx_done(duo_core[side], placing_packets[index].desc.cookie, duo_now);
    duo_events(side);
}

/* Everything under way arrives and finishes, in order, until there is no more to say. */
static inline void placing_talk(void)
{
    for (unsigned rounds = 0; rounds < 1000; rounds++) {
        bool some = false;
        duo_talk();
        for (unsigned i = 0; i < placing_packet_count; i++) {
            if (placing_packets[i].gone)
                continue;
            some = true;
            duo_now += US;
            placing_arrive(i);
            placing_finish(i);
        }
        if (!some)
            return;
    }
    cr_assert_fail("they never stop");
}

/* Lets time pass in which everything arrives. */
static inline void placing_run(uint64_t ns)
{
    duo_run_with(ns, placing_talk);
}

/* A first message makes the queue pairs: after it, all are up. */
static inline void placing_warm_up(void)
{
    struct duo_request *receive = duo_recv(1, 100000);
    placing_talk();
    struct duo_request *send = duo_send(0, 100000);
    placing_run(5 * MS);
    duo_assert_arrived(send, receive, 100000);
    for (unsigned side = 0; side < 2; side++)
        EACH_RAIL(duo_flow[side], rail)
    cr_assert_eq(rail->qps_usable, rail->qps.count);
    placing_packet_count = 0;
}

static inline void placing_open_warm(unsigned paths)
{
    placing_open(paths);
    placing_warm_up();
}

/* Answers the oldest drain that is asked for. */
static inline void placing_drained(unsigned side)
{
    cr_assert_gt(placing_drain_count[side], 0);
    struct core_qp_action action = placing_drains[side][0];
    memmove(placing_drains[side], placing_drains[side] + 1, --placing_drain_count[side] * sizeof action);
    core_qp_drained(duo_core[side], action.flow, action.path, action.generation, duo_now);
    duo_events(side);
}

/* A send and its receive, posted and granted, with all writes under way. */
static inline void placing_start(struct duo_request **send, struct duo_request **receive, uint64_t size,
                                 uint64_t capacity)
{
    *receive = duo_recv(1, capacity);
    duo_talk();
    *send = duo_send(0, size);
    duo_talk();
}

#endif
