/* SPDX-License-Identifier: Apache-2.0 */
/* When a silent peer is given up, and when not: stops of this process, packets that cannot leave, farewells. */
#include "duo.h"

TestSuite(silence, .timeout = 20);

enum { LARGE = 100000 };

/* Both sides: of a flow that is dead, and what its messages end with. */
static void assert_dead(unsigned side, const struct duo_request *request)
{
    cr_assert_eq(duo_dead[side], 1);
    duo_assert_ended(request, UCCL_EPEERDEAD, 0);
}

/* The process stands still for `ns`: nothing happens on either side, and then its timers are long overdue. */
static void stop(unsigned side, uint64_t ns)
{
    duo_now += ns;
    core_expire(duo_core[side], duo_now);
    duo_events(side);
}

Test(silence, a_stop_is_no_silence_of_the_peer, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 10);
    for (unsigned i = 0; i < 5; i++) {
        duo_run(1000 * MS);
        stop(0, 12000 * MS);
        cr_assert(!recv->ended && duo_dead[0] == 0, "stop %u", i);
    }
    duo_run(5000 * MS);
    cr_assert(!recv->ended && duo_dead[0] == 0 && duo_dead[1] == 0);
    struct duo_request *send = duo_send(1, 10);
    duo_run(MS);
    duo_assert_arrived(send, recv, 10);
}

/* The same in the middle of asking: what was asked before the stop is not enough to bury the peer. */
Test(silence, a_stop_while_it_asks, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 10), *send = duo_send(0, LARGE);
    duo_run_deaf(0, 600 * MS);
    cr_assert_gt(duo_flow[0]->silence.asks, SILENCE_ASKS);
    stop(0, 12000 * MS);
    cr_assert(!recv->ended && !send->ended);
    duo_run_deaf(0, 300 * MS);
    cr_assert(!recv->ended && !send->ended);
    duo_run_deaf(0, 200 * MS); /* 1100 ms of our own time */
    assert_dead(0, recv);
    assert_dead(0, send);
}

/* The tail's probe and the timeout both fell due during the stop, and fire one after the other: it is taken off once.
 */
Test(silence, a_stop_counts_once, .init = duo_open)
{
    duo_recv(1, 10);
    duo_send(0, 10);
    duo_recv(1, LARGE);
    duo_run(100 * MS); /* the round trip is known, and several chunks may go at once */
    struct duo_request *send = duo_send(0, LARGE);
    duo_lose(0);
    stop(0, 12000 * MS);
    cr_assert_leq(duo_flow[0]->silence.since_ns, duo_now);
    duo_run_deaf(0, 990 * MS);
    cr_assert(!send->ended);
    duo_run_deaf(0, 80 * MS); /* a timer may be a sixteenth late */
    assert_dead(0, send);
}

/* Stopped again and again, it still finds out. */
Test(silence, stops_do_not_keep_the_dead_alive, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 10);
    for (unsigned i = 0; i < 20 && !recv->ended; i++) {
        stop(0, 5000 * MS);
        duo_run_deaf(0, 100 * MS);
    }
    assert_dead(0, recv);
}

Test(silence, three_asks_at_least, .init = duo_open)
{
    struct duo_request *recv = duo_recv(0, 10);
    unsigned probes = 0;
    uint64_t until_ns = duo_now + 2000 * MS, begin_ns = duo_now;
    while (!recv->ended && duo_tick(0, until_ns)) {
        probes += duo_transmit(0);
        duo_drop(0);
    }
    assert_dead(0, recv);
    cr_assert(duo_now - begin_ns >= 1000 * MS && duo_now - begin_ns <= 1260 * MS);
    cr_assert(probes >= SILENCE_ASKS && probes <= SILENCE_PARTS + 2, "%u probes", probes);
}

/* Half of all packets are lost both ways: that is no death. */
Test(silence, half_of_the_packets_are_lost, .init = duo_open)
{
    struct rng rng = {4711};
    struct duo_request *recv = duo_recv(0, 10);
    uint64_t until_ns = duo_now + 60000 * MS;
    while (duo_now < until_ns) {
        unsigned side = core_deadline(duo_core[1]) < core_deadline(duo_core[0]);
        if (!duo_tick(side, until_ns))
            break;
        for (unsigned i = 0; i < 4; i++) {
            for (unsigned from = 0; from < 2; from++) {
                duo_transmit(from);
                for (unsigned k = 0; k < duo_queued[from]; k++) {
                    if (rng_below(&rng, 2))
                        duo_deliver_one(from, k);
                }
                duo_drop(from);
            }
        }
    }
    cr_assert(!recv->ended && duo_dead[0] == 0);
}

/* The ask needs no chunk record, no buffer and no window: all of these may be what the silence has used up. */
Test(silence, it_asks_with_empty_pools, .init = duo_open)
{
    struct duo_request *send = duo_send(0, 10), *recv = duo_recv(1, 10);
    struct pool small = duo_core[0]->small, big = duo_core[0]->big;
    duo_core[0]->small.count = duo_core[0]->big.count = 0;
    duo_flow[0]->own_used = true;
    for (unsigned i = 0; i < 10; i++)
        duo_run(1000 * MS);
    cr_assert(!send->ended && duo_dead[0] == 0);
    duo_flow[0]->own_used = false;
    duo_core[0]->small = small;
    duo_core[0]->big = big;
    flow_wake(duo_flow[0]);
    duo_run(100 * MS);
    duo_assert_arrived(send, recv, 10);
}

/* Chunks are under way whose timeout is far longer than the peer may be silent. */
Test(silence, it_does_not_wait_for_the_timeout)
{
    duo_defaults();
    duo_params.dead_peer_ms = 100;
    duo_params.rto_min_us = duo_params.rto_max_us = 10 * 1000 * 1000;
    duo_open_as(false);
    struct duo_request *send = duo_send(0, 10);
    duo_run_deaf(0, 124 * MS);
    cr_assert(!send->ended && duo_dead[0] == 0);
    duo_run_deaf(0, 2 * MS); /* five quarters */
    assert_dead(0, send);
}

/* The kernel takes nothing for long: each refusal was an ask that could not leave. */
Test(silence, what_the_nic_refuses_asks_too, .init = duo_open)
{
    struct duo_request *send = duo_send(0, 10);
    duo_refuse = true;
    for (uint64_t until_ns = duo_now + 1200 * MS; duo_now < until_ns && !send->ended;) {
        duo_transmit(0);
        duo_now += 10 * MS;
        core_expire(duo_core[0], duo_now);
        duo_events(0);
    }
    assert_dead(0, send);
}

/* Side 0 hears nothing and gives side 1 up; side 1, which hears, learns of it by the farewell at once. */
Test(silence, who_is_given_up_is_told, .init = duo_open)
{
    struct duo_request *mine = duo_recv(0, 10), *theirs = duo_recv(1, 10);
    duo_run_deaf(0, 1255 * MS);
    assert_dead(0, mine);
    cr_assert_not(theirs->ended);
    cr_assert_eq(duo_transmit(0), 0, "it was told when it was given up: that was lost here");
    for (unsigned i = 0; i < 3; i++) { /* it asks, and is told */
        core_expire(duo_core[1], duo_now += 300 * MS);
        cr_assert_eq(duo_transmit(1), 1);
        duo_deliver(1);
        cr_assert_eq(duo_transmit(0), 1);
        if (i < 2)
            duo_drop(0);
    }
    duo_deliver(0);
    assert_dead(1, theirs);
    cr_assert_eq(duo_transmit(1), 0, "a farewell is not answered");
    cr_assert_eq(core_deadline(duo_core[1]), UINT64_MAX);
    cr_assert_eq(duo_transmit(0), 0);
}

/* And it says so at once, without being asked. */
Test(silence, who_gives_up_says_so_unasked, .init = duo_open)
{
    struct duo_request *mine = duo_recv(0, 10), *theirs = duo_recv(1, 10);
    while (duo_dead[0] == 0) {
        duo_lose(0);
        cr_assert(duo_tick(0, duo_now + 2000 * MS));
    }
    assert_dead(0, mine);
    cr_assert_eq(duo_transmit(0), 1);
    duo_deliver(0);
    assert_dead(1, theirs);
    cr_assert_eq(duo_transmit(0), 0, "once is enough");
}
