/* SPDX-License-Identifier: Apache-2.0 */
/* Flows with several rails of datagrams, each of which the test may kill. */
#ifndef TEST_RAILS_DUO_H
#define TEST_RAILS_DUO_H

#include "duo.h"

enum { RAILS = 2, PATHS = 4 };

static bool dead[2][RAILS]; /* by sender: the rail swallows everything */
static size_t hole_bytes;   /* a rail of end 0 swallows larger datagrams; 0: none has a hole */
static unsigned hole_rail;
static unsigned sequenced[2][RAILS]; /* descriptors of chunks that left */
static unsigned others[2][RAILS];
static unsigned bulk[RAILS]; /* of those of side 0: new parts of large messages */

static inline void open_with(uint32_t messages)
{
    duo_defaults();
    duo_setup[0].msg_window = duo_setup[1].msg_window = messages;
    duo_params.port_entropy = PATHS;
    duo_set_rails(RAILS);
    duo_open_as(false);
    memset(dead, 0, sizeof dead);
    hole_bytes = hole_rail = 0;
    memset(sequenced, 0, sizeof sequenced);
    memset(others, 0, sizeof others);
}

static inline void open_rails(void)
{
    open_with(16);
}

/* Drops what the rail does not get through of the datagrams that were queued last, from `first` on. */
static inline void swallow(unsigned side, unsigned rail, unsigned first)
{
    struct duo_datagram *queue = duo_queue[side];
    unsigned kept = first;
    for (unsigned i = first; i < duo_queued[side]; i++) {
        if (dead[side][rail] || (hole_bytes && side == 0 && rail == hole_rail && queue[i].length > hole_bytes))
            free(queue[i].bytes);
        else
            queue[kept++] = queue[i];
    }
    duo_queued[side] = kept;
}

static inline void say(unsigned side)
{
    struct tx_desc desc;
    while (core_tx(duo_core[side], &desc, duo_now)) {
        const struct rail *rail = &duo_flow[side]->rails[desc.rail];
        cr_assert_lt(desc.rail, RAILS);
        cr_assert_eq(desc.destination, 2u * desc.rail + side);
        cr_assert_eq(desc.path, PATHS * desc.rail + desc.port);
        cr_assert_lt(desc.port, PATHS);
        cr_assert(!desc.sequenced || probe_proven(&rail->probe), "a chunk for an address that has not answered");
        (desc.sequenced ? sequenced : others)[side][desc.rail]++;
        bulk[desc.rail] += side == 0 && desc.kind == TX_BULK && !desc.retransmission;
        unsigned before = duo_queued[side];
        duo_build(side, &desc); /* even if nobody gets it: the pieces are copied */
        swallow(side, desc.rail, before);
    }
    duo_events(side);
}

static inline void talk(void)
{
    for (unsigned round = 0; round < 10000; round++) {
        say(0);
        say(1);
        if (duo_queued[0] + duo_queued[1] == 0)
            return;
        duo_now += 10 * US;
        duo_deliver(0);
        duo_deliver(1);
    }
    cr_assert_fail("they never stop");
}

static inline void pass_message_within(uint64_t size, uint64_t ns)
{
    struct duo_request *recv = duo_recv(1, size), *send = duo_send(0, size);
    duo_run_with(ns, talk);
    duo_assert_arrived(send, recv, size);
}

static inline void pass_message(uint64_t size)
{
    pass_message_within(size, 900 * MS);
}

/* Rails that both ends know to work, and the other ends' messages get over them. */
static inline void prove(void)
{
    duo_run_with(10 * MS, talk);
    pass_message(100 << 10);
    cr_assert_eq(duo_flow[0]->proven, RAILS);
    cr_assert_eq(duo_flow[1]->proven, RAILS);
    memset(sequenced, 0, sizeof sequenced);
    memset(others, 0, sizeof others);
}

static inline void open_proven(void)
{
    open_rails();
    prove();
}

#endif
