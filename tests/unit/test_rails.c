/* SPDX-License-Identifier: Apache-2.0 */
/* Flows with several rails: two NICs of an end, of which some do not get through. */
#include "rails_duo.h"

TestSuite(rails, .timeout = 60);

Test(rails, each_address_is_proven, .init = open_rails)
{
    pass_message(100 << 10);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(duo_proven[side], 1, "once for the flow");
        cr_assert_eq(duo_flow[side]->proven, RAILS);
    }
    cr_assert_gt(sequenced[0][0], 0);
}

/* The first rail does not get through: nothing but probes go there, and messages arrive over the other. */
Test(rails, one_that_answers_is_enough, .init = open_rails)
{
    dead[0][0] = dead[1][0] = true;
    pass_message(100 << 10);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(duo_proven[side], 1);
        cr_assert_eq(duo_flow[side]->proven, 1);
        cr_assert_eq(sequenced[side][0], 0);
        cr_assert_gt(sequenced[side][1], 0);
        cr_assert_gt(others[side][0], 0, "it is asked");
        cr_assert_leq(others[side][0], 12, "but not all the time: %u", others[side][0]);
        cr_assert_eq(duo_flow[side]->rails[0].rtt.srtt_ns, 0, "it has no round trip");
        cr_assert_gt(duo_flow[side]->rails[1].rtt.srtt_ns, 0);
    }
    cr_assert_eq(duo_count(&duo_counters[0].peers_dead), 0);
}

static const struct rail *rail_of(unsigned side, unsigned index)
{
    return &duo_flow[side]->rails[index];
}

/* Small messages and control frames keep to the caller's first rail; large ones use both. */
Test(rails, small_ones_prefer_the_first, .init = open_proven)
{
    uint64_t acked_ns = rail_of(0, 1)->newest_acked_ns;
    for (unsigned i = 0; i < 20; i++)
        pass_message(100);
    cr_assert_eq(rail_of(0, 1)->newest_acked_ns, acked_ns, "acks of one rail say nothing about losses of the other");
    cr_assert_eq(sequenced[0][1] + sequenced[1][1], 0);
    cr_assert_geq(sequenced[0][0], 20);
    pass_message(1 << 20);
    cr_assert_gt(sequenced[0][0], 20);
    cr_assert_gt(sequenced[0][1], 4);
    cr_assert_eq(duo_count(&duo_counters[0].rail_moves), 0);
}

/* The window of the first rail is full: small messages go over the other one. */
Test(rails, a_full_window_is_passed_by, .init = open_proven)
{
    struct rail *first = &duo_flow[0]->rails[0];
    cc_set_window(&first->cc, 1);
    cr_assert_gt(first->cc.pace_gap_ns, 0);
    first->pace_until_ns = duo_now + 100 * MS;
    unsigned before = sequenced[0][1];
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    duo_run_with(2 * MS, talk);
    cr_assert_gt(sequenced[0][1], before);
    duo_assert_arrived(send, recv, 100);
}

/* A rail swallows everything: after one timeout nothing new goes there, and in time it is given up. */
Test(rails, silence_brings_a_rail_down, .init = open_proven)
{
    dead[0][0] = dead[1][0] = true;
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    duo_run_with(40 * MS, talk);
    duo_assert_arrived(send, recv, 100);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_SUSPECT);
    cr_assert_eq(duo_count(&duo_counters[0].rail_moves), 1);
    cr_assert_eq(duo_lost[0], 0, "not yet");
    unsigned chunks = sequenced[0][0];
    for (unsigned i = 0; i < 50; i++) {
        pass_message(100);
        duo_run_with(10 * MS, talk);
    }
    cr_assert_eq(sequenced[0][0], chunks, "it takes nothing new");
    duo_recv(0, 100); /* the flow waits for the peer: rails are asked */
    duo_run_with(900 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_DOWN);
    cr_assert_eq(duo_lost[0], 1);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 1);
    cr_assert_eq(duo_count(&duo_counters[0].peers_dead), 0);
    cr_assert_eq(rail_of(0, 1)->state, RAIL_UP);
}

/* It works again: three answers in a row bring it back, and it carries messages. */
Test(rails, three_answers_bring_it_back, .init = open_proven)
{
    duo_flow[0]->rails[0].mtu.losses = 2; /* one more would be a hole */
    duo_device(0, false);
    duo_events(0);
    cr_assert_eq(duo_lost[0], 1);
    pass_message(100);
    cr_assert_eq(sequenced[0][0] + others[0][0], 0, "nothing goes to a device that is gone");
    dead[0][0] = true;
    duo_device(0, true);
    duo_recv(0, 100);
    duo_run_with(700 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_DOWN, "nothing is answered");
    cr_assert(others[0][0] >= 3 && others[0][0] <= 12, "it is asked %u times", others[0][0]);
    dead[0][0] = false;
    unsigned asked = others[0][0];
    duo_run_with(700 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_UP);
    cr_assert_eq(duo_back[0], 1);
    cr_assert_geq(others[0][0], asked + 3);
    cr_assert_eq(duo_count(&duo_counters[0].rails_returned), 1);
    cr_assert_eq(rail_of(0, 0)->mtu.losses, 0);
    unsigned before = sequenced[0][0];
    pass_message(100);
    cr_assert_gt(sequenced[0][0], before);
}

static void await_answers(const struct rail *rail, unsigned answers)
{
    for (unsigned i = 0; i < 3000 && rail->answers != answers; i++)
        duo_run_with(1 * MS, talk);
    cr_assert_eq(rail->answers, answers);
}

/* Two answers, silence, and another answer: that is one in a row. */
Test(rails, answers_must_follow_each_other, .init = open_proven)
{
    const struct rail *rail = rail_of(0, 0);
    duo_device(0, false);
    duo_device(0, true);
    duo_recv(0, 100);
    for (unsigned answers = 1; answers <= 2; answers++) {
        await_answers(rail, answers);
        cr_assert_eq(rail->state, RAIL_DOWN, "%u answers are too few", answers);
    }
    dead[0][0] = true;
    for (unsigned asked = others[0][0]; others[0][0] < asked + 2;)
        duo_run_with(1 * MS, talk);
    dead[0][0] = false;
    await_answers(rail, 1);
    cr_assert_eq(rail->state, RAIL_DOWN);
}

/* The way has become so long that answers come when further tries have left. */
Test(rails, late_answers_bring_it_back, .init = open_proven)
{
    enum { ROUND_TRIP_MS = 50, LATE_MAX = 64 };
    struct {
        uint64_t nonce, at_ns;
    } late[LATE_MAX];
    unsigned count = 0, answered = 0;
    struct rail *rail = &duo_flow[0]->rails[0];
    duo_device(0, false);
    duo_device(0, true);
    duo_recv(0, 100);
    dead[0][0] = true;
    for (unsigned i = 0; i < 2000 && rail->state != RAIL_UP; i++) {
        uint32_t before = rail->try_count;
        duo_run_with(1 * MS, talk);
        for (; before < rail->try_count && count < LATE_MAX; count++) {
            late[count].nonce = rail->try_nonce + before++;
            late[count].at_ns = duo_now + ROUND_TRIP_MS * MS;
        }
        for (; answered < count && late[answered].at_ns <= duo_now; answered++)
            probe_on_frame(rail, &(struct wire_probe){.echo = true, .nonce = late[answered].nonce}, duo_now);
    }
    cr_assert_eq(rail->state, RAIL_UP);
    cr_assert_lt(count, 30, "%u tries", count);
}

/* What is in flight over a device that goes away is lost at once, and the other rail's window does not shrink. */
Test(rails, a_device_takes_its_chunks_with_it, .init = open_proven)
{
    dead[0][0] = true;
    struct duo_request *recv = duo_recv(1, 512 << 10), *send = duo_send(0, 512 << 10);
    for (unsigned i = 0; i < 6; i++) {
        say(0);
        say(1);
        duo_now += 10 * US;
        duo_deliver(0);
        duo_deliver(1);
    }
    say(0);
    uint32_t flying = rail_of(0, 0)->flying_chunks;
    uint64_t cwnd = rail_of(0, 1)->cc.cwnd_bytes;
    cr_assert_gt(flying, 0);
    duo_device(0, false);
    cr_assert_eq(rail_of(0, 0)->flying_chunks, 0);
    cr_assert_eq(rail_of(0, 1)->cc.cwnd_bytes, cwnd);
    uint64_t at_ns = duo_now;
    talk();
    duo_assert_arrived(send, recv, 512 << 10);
    cr_assert_lt(duo_now - at_ns, 8 * MS, "no timeout had to pass");
    cr_assert_eq(duo_count(&duo_counters[0].rail_moves), flying);
    duo_device(0, false); /* again */
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 1);
}

/* All devices are gone. The first to return carries chunks at once, before it has answered. */
Test(rails, the_first_device_that_returns_is_used, .init = open_proven)
{
    duo_device(1, false);
    duo_device(0, false);
    cr_assert_not(duo_flow[0]->carries);
    duo_device(1, true);
    cr_assert(duo_flow[0]->carries);
    cr_assert_eq(duo_flow[0]->main, rail_of(0, 1));
    pass_message(100);
    cr_assert(sequenced[0][0] == 0 && sequenced[0][1] > 0);
}

static void kill_rail(unsigned index, bool is_dead)
{
    dead[0][index] = dead[1][index] = is_dead;
}

/* The first rail is down. When the other one stops, too, and the first works again, it need not answer thrice. */
Test(rails, one_answer_brings_back_the_only_one, .init = open_proven)
{
    const struct rail *first = rail_of(0, 0);
    kill_rail(0, true);
    duo_recv(0, 100); /* the flow waits for the peer: rails are asked */
    for (unsigned i = 0; i < 5 && first->state != RAIL_DOWN; i++)
        pass_message(100);
    cr_assert_eq(first->state, RAIL_DOWN);
    kill_rail(1, true);
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    duo_run_with(100 * MS, talk);
    cr_assert_eq(rail_of(0, 1)->state, RAIL_SUSPECT);
    kill_rail(0, false);
    uint64_t heard_ns = first->heard_ns;
    for (unsigned i = 0; i < 1000 && first->heard_ns == heard_ns; i++)
        duo_run_with(1 * MS, talk);
    cr_assert_eq(first->state, RAIL_UP, "%u answers", first->answers);
    duo_run_with(100 * MS, talk);
    duo_assert_arrived(send, recv, 100);
}

/* A flow that is idle asks nothing when a device is back. */
Test(rails, an_idle_flow_lets_devices_come_and_go, .init = open_proven)
{
    memset(others, 0, sizeof others);
    cr_assert_not(flow_expects_peer(duo_flow[0]));
    duo_device(0, false);
    duo_device(0, true);
    duo_run_with(900 * MS, talk);
    cr_assert_eq(others[0][0] + others[0][1], 0);
    cr_assert(rail_of(0, 0)->asked);
}

/* The device of a rail is down from the beginning: it is asked when it comes, and used. */
Test(rails, a_device_comes_late, .init = open_rails)
{
    duo_device(0, false);
    pass_message(100 << 10);
    cr_assert_eq(sequenced[0][0] + others[0][0], 0);
    cr_assert_not(probe_proven(&rail_of(0, 0)->probe));
    duo_device(0, true);
    pass_message(100 << 10);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_UP);
    pass_message(100 << 10);
    cr_assert_gt(sequenced[0][0], 0);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 0);
}

/* A chunk under way on a slow rail is not lost because a fast one has acked later chunks. */
/* The echo that proves the address comes after the device has gone: the rail is down, until the device is back. */
Test(rails, a_device_goes_before_its_address_is_proven, .init = open_rails)
{
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    say(0);
    cr_assert_gt(others[0][0], 0);
    duo_device(0, false);
    duo_deliver(0);
    others[0][0] = 0;
    duo_run_with(900 * MS, talk);
    duo_assert_arrived(send, recv, 100);
    pass_message(100 << 10);
    cr_assert(probe_proven(&rail_of(0, 0)->probe));
    cr_assert_eq(rail_of(0, 0)->state, RAIL_DOWN);
    cr_assert_eq(sequenced[0][0] + others[0][0], 0);
    duo_device(0, true);
    duo_recv(0, 100);
    duo_run_with(500 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_UP);
    pass_message(100 << 10);
    cr_assert_gt(sequenced[0][0], 0);
}

Test(rails, a_slow_rail_is_no_loss, .init = open_proven)
{
    struct rail *slow = &duo_flow[0]->rails[1];
    for (unsigned i = 0; i < 8; i++)
        rtt_sample(&slow->rtt, 50 * MS, 0, duo_now);
    slow->rtt.min_ns = 50 * MS;
    cc_set_window(&duo_flow[0]->rails[0].cc, duo_flow[0]->rails[0].cc.chunk_bytes);
    dead[0][1] = true; /* it takes long */
    struct duo_request *recv = duo_recv(1, 512 << 10), *send = duo_send(0, 512 << 10);
    talk();
    unsigned flying = slow->flying_chunks;
    cr_assert_gt(flying, 0);
    for (unsigned i = 0; i < 10; i++) { /* over the fast rail, acked at once */
        duo_recv(1, 100);
        duo_send(0, 100);
        duo_run_with(2 * MS, talk);
    }
    cr_assert_gt(duo_flow[0]->rails[0].newest_acked_ns, rail_newest(slow)->sent_ns);
    cr_assert(!recv->ended && !send->ended);
    cr_assert_eq(duo_count(&duo_counters[0].lost_chunks), 0);
    cr_assert_eq(slow->flying_chunks, flying);
}

/* Our direction of the first rail is dead, and we send nothing but acks: these move to the other rail. */
Test(rails, acks_leave_a_dead_direction, .init = open_proven)
{
    dead[1][0] = true;
    for (unsigned i = 0; i < 30; i++) {
        struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
        duo_run_with(30 * MS, talk);
        duo_assert_arrived(send, recv, 100);
    }
    cr_assert_neq(rail_of(1, 0)->state, RAIL_UP, "our direction");
    cr_assert_eq(rail_of(0, 0)->state, RAIL_UP, "theirs works");
    unsigned acks = others[1][0], chunks = sequenced[1][0];
    pass_message(100);
    cr_assert_leq(others[1][0], acks + 2, "but probes");
    cr_assert_eq(sequenced[1][0], chunks);
}

/* Sends small messages that nobody receives yet, one after the other: the receiver waits for nothing, and acks. */
static void send_unasked(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t next_seq = duo_flow[0]->sent.next_seq;
        duo_send(0, 100);
        duo_run_with(30 * MS, talk);
        cr_assert_not(flow_expects_peer(duo_flow[1]));
        cr_assert_gt(duo_flow[0]->sent.next_seq, next_seq);
        cr_assert_eq(duo_flow[0]->sent.next_seq, duo_flow[0]->sent.cumulative, "it is acked");
    }
}

/* The same at an end that waits for nothing. It asks while the peer sends, and not for longer. */
Test(rails, acks_of_an_idle_end_leave_a_dead_direction)
{
    open_with(256);
    prove();
    dead[1][0] = true;
    send_unasked(20);
    cr_assert_eq(rail_of(1, 0)->state, RAIL_SUSPECT);
    unsigned asked = others[1][0], on_other = others[1][1];
    send_unasked(10);
    cr_assert_geq(others[1][1], on_other + 10, "acks go there");
    cr_assert_leq(others[1][0], asked + 5, "probes go here");
    duo_run_with(100 * MS, talk);
    memset(others, 0, sizeof others);
    duo_run_with(900 * MS, talk);
    duo_run_with(900 * MS, talk);
    cr_assert_eq(others[1][0], others[0][0] + others[0][1], "echoes alone: the peer asks whether we live");
    dead[1][0] = false;
    send_unasked(20);
    cr_assert_eq(rail_of(1, 0)->state, RAIL_UP);
    dead[1][0] = true;
    send_unasked(20);
    cr_assert_eq(rail_of(1, 0)->state, RAIL_SUSPECT);
    dead[1][0] = false;
    dead[1][1] = true;
    send_unasked(20);
    cr_assert_eq(rail_of(1, 0)->state, RAIL_UP);
    cr_assert_eq(rail_of(1, 1)->state, RAIL_SUSPECT);
}

/* And so do echoes: the peer asks whether its own direction works, and learns that it does. */
Test(rails, echoes_leave_a_dead_direction, .init = open_proven)
{
    dead[1][0] = true;
    duo_recv(0, 100);
    duo_recv(1, 100);
    rail_suspect(&duo_flow[1]->rails[0]);
    for (unsigned i = 0; i < 5; i++) {
        unsigned asked = others[0][0];
        rail_suspect(&duo_flow[0]->rails[0]);
        duo_run_with(20 * MS, talk);
        cr_assert_neq(rail_of(1, 0)->state, RAIL_UP, "our direction");
        cr_assert_gt(others[0][0], asked);
        cr_assert_eq(rail_of(0, 0)->state, RAIL_UP, "theirs works");
    }
}

/* One probe asks whether the rail works, and another one, which comes with it, whether a closed path does. */
Test(rails, no_other_probe_hides_a_try, .init = open_proven)
{
    struct rail *rail = &duo_flow[0]->rails[0];
    rail->paths.paths[1].closed = true;
    rail->paths.closed++;
    duo_recv(0, 100);
    rail_suspect(rail);
    duo_run_with(1 * MS, talk);
    cr_assert_eq(rail->state, RAIL_UP);
    cr_assert_eq(rail->paths.closed, 0);
}

/* A NIC that is full holds no echo back, and gets it no second time: other rails have it. */
Test(rails, a_full_nic_ends_no_echo, .init = open_proven)
{
    struct tx_desc desc;
    duo_flow[0]->rails[0].probe.due |= PROBE_ASK;
    flow_wake(duo_flow[0]);
    say(0);
    duo_deliver(0);
    unsigned echoes[RAILS] = {0};
    for (unsigned i = 0; i < 10 && core_tx(duo_core[1], &desc, duo_now); i++) {
        echoes[desc.rail] += (desc.due & PROBE_ECHO) != 0;
        if (desc.rail == 1)
            core_tx_failed(duo_core[1], &desc, duo_now);
    }
    cr_assert_eq(echoes[0], 1);
    cr_assert_eq(echoes[1], 1);
}

/* The same where nothing but acks leaves, as the receiver of a large message: no timeout of a chunk shows it. */
Test(rails, lone_acks_leave_a_dead_direction, .init = open_proven)
{
    enum { SIZE = 4 << 20 };
    struct duo_request *recv = duo_recv(1, SIZE);
    duo_run_with(10 * MS, talk);
    memset(sequenced, 0, sizeof sequenced);
    memset(others, 0, sizeof others);
    dead[1][0] = true;
    struct duo_request *send = duo_send(0, SIZE);
    for (unsigned i = 0; i < 3000 && rail_of(1, 0)->state == RAIL_UP && !recv->ended; i++)
        duo_run_with(1 * MS, talk);
    cr_assert_geq(others[1][1], 3, "the other rail takes them");
    cr_assert(rail_of(1, 0)->asked, "and this one is asked whether it works");
    duo_run_with(900 * MS, talk);
    duo_assert_arrived(send, recv, SIZE);
}

/* Our direction of the only rail that was not lost dies: acks find out that the lost one is back before it is asked. */
Test(rails, acks_take_a_rail_that_was_lost, .init = open_proven)
{
    duo_recv(0, 100); /* the flow waits for the peer: rails are asked */
    duo_device(0, false);
    dead[0][0] = true;
    duo_device(0, true);
    duo_run_with(700 * MS, talk);
    for (unsigned asked = others[0][0], i = 0; i < 900 && others[0][0] == asked; i++)
        duo_run_with(1 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_DOWN);
    dead[0][0] = false;
    dead[0][1] = true;
    duo_send(1, 100);
    duo_run_with(60 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_DOWN, "it was not asked again yet");
    cr_assert_eq(duo_flow[1]->sent.next_seq, duo_flow[1]->sent.cumulative, "it is acked");
}

/* Nothing is heard over any rail: nothing shows that rails are to blame. */
Test(rails, a_silent_peer_brings_none_down, .init = open_proven)
{
    duo_params.dead_peer_ms = 10000; /* it is asked more rarely than the rails */
    memset(dead, true, sizeof dead);
    duo_send(0, 100);
    duo_run_with(900 * MS, talk);
    cr_assert_eq(rail_of(0, 0)->state, RAIL_SUSPECT);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 0);
}

/* Both rails are dead: the peer is given up at the dead-peer time, not sooner. */
Test(rails, the_peer_dies_by_all_rails, .init = open_proven)
{
    memset(dead, true, sizeof dead);
    struct duo_request *send = duo_send(0, 100);
    duo_run_with(900 * MS, talk);
    cr_assert(!send->ended);
    cr_assert_eq(duo_dead[0], 0);
    duo_run_with(1000 * MS, talk);
    cr_assert_eq(duo_dead[0], 1);
    cr_assert_eq(send->status, UCCL_EPEERDEAD);
}

/* No device is left: likewise, though nothing can be asked. */
Test(rails, the_peer_dies_without_devices, .init = open_proven)
{
    struct duo_request *send = duo_send(0, 100);
    for (unsigned i = 0; i < RAILS; i++)
        duo_device(i, false);
    duo_run_with(900 * MS, talk);
    cr_assert_eq(sequenced[0][0] + sequenced[0][1] + others[0][0] + others[0][1], 0);
    cr_assert_eq(duo_dead[0], 0);
    duo_run_with(1000 * MS, talk);
    cr_assert_eq(duo_dead[0], 1);
    cr_assert_eq(send->status, UCCL_EPEERDEAD);
}

/* An address does not answer while messages go on over the other rail: it is asked more and more rarely. */
Test(rails, no_answer_is_asked_for_rarely, .init = open_rails)
{
    dead[0][0] = dead[1][0] = true;
    pass_message(100);
    unsigned before = others[0][0];
    duo_recv(1, 100);
    duo_recv(0, 100); /* both ends wait */
    duo_run_with(5000 * MS, talk);
    cr_assert_geq(others[0][0] - before, 8);
    cr_assert_leq(others[0][0] - before, 22, "%u", others[0][0] - before);
}

/* ---- sizes ------------------------------------------------------------------------------------- */

enum { BASE = 1232, FULL = 1472 };

/* The rails have found out that full datagrams pass. */
static void open_sized(void)
{
    open_rails();
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < RAILS; i++)
            duo_setup[side].rails[i].base_bytes = BASE;
    }
    duo_open_as(false);
    duo_run_with(100 * MS, talk);
    pass_message(100 << 10);
    cr_assert_eq(rail_of(0, 0)->datagram_bytes, FULL);
    cr_assert_eq(rail_of(0, 1)->datagram_bytes, FULL);
}

/* A link that goes up and down loses large datagrams each time, and small ones pass in between. That is no hole. */
Test(rails, flaps_are_no_hole, .init = open_sized)
{
    for (unsigned i = 0; i < 8; i++) {
        struct duo_request *recv = duo_recv(1, 512 << 10), *send = duo_send(0, 512 << 10);
        dead[0][0] = true;
        cc_set_window(&duo_flow[0]->rails[0].cc, 1 << 20); /* it takes large chunks again */
        duo_run_with(60 * MS, talk);
        duo_assert_arrived(send, recv, 512 << 10);
        cr_assert_eq(rail_of(0, 0)->state, RAIL_SUSPECT);
        dead[0][0] = false;
        recv = duo_recv(0, 100); /* something to wait for */
        duo_run_with(200 * MS, talk);
        cr_assert_eq(rail_of(0, 0)->state, RAIL_UP);
        cr_assert_eq(rail_of(0, 0)->mtu.rounds, 0, "what the cut took counts");
        duo_send(1, 100);
        pass_message(100);
        duo_assert_ended(recv, UCCL_OK, 100);
    }
    cr_assert_eq(duo_count(&duo_counters[0].mtu_holes), 0);
    cr_assert_eq(rail_of(0, 0)->datagram_bytes, FULL);
}

/* Nor is it one where each large chunk happens to leave in a cut, which is over before anybody asks. */
Test(rails, short_flaps_are_no_hole, .init = open_sized)
{
    struct rail *second = &duo_flow[0]->rails[1];
    for (unsigned i = 0; i < 8; i++) {
        unsigned before = sequenced[0][1];
        struct duo_request *recv = duo_recv(1, 256 << 10), *send = duo_send(0, 256 << 10);
        dead[0][1] = true;
        second->bulk_seq = second->bulk_ns = 0; /* it is tried */
        duo_run_with(9 * MS, talk);
        cr_assert_gt(sequenced[0][1], before);
        dead[0][1] = false;
        duo_run_with(100 * MS, talk);
        duo_assert_arrived(send, recv, 256 << 10);
        cr_assert_eq(second->state, RAIL_UP);
    }
    cr_assert_eq(duo_count(&duo_counters[0].mtu_holes), 0);
    cr_assert_eq(second->datagram_bytes, FULL);
}

/* A hole of one rail is found though the other one works, and costs no more than some rounds. */
static void expect_hole(unsigned rail)
{
    hole_bytes = BASE;
    hole_rail = rail;
    duo_post(0, 1, CORE_RECV, 100); /* something to wait for: the rail is asked between the messages, too */
    for (unsigned i = 0; i < 20 && rail_of(0, rail)->datagram_bytes > BASE; i++) {
        pass_message(256 << 10);
        duo_run_with(50 * MS, talk);
    }
    cr_assert_eq(rail_of(0, rail)->datagram_bytes, BASE);
    cr_assert_eq(duo_count(&duo_counters[0].mtu_holes), 1);
    cr_assert_eq(rail_of(0, !rail)->datagram_bytes, FULL);
}

Test(rails, a_hole_is_found_beside_another_rail, .init = open_sized)
{
    expect_hole(0);
}

Test(rails, a_hole_is_found_beside_the_first_rail, .init = open_sized)
{
    expect_hole(1);
}

/* With a single rail nothing of this applies. */
Test(rails, the_only_rail_is_used)
{
    duo_open();
    duo_device(0, false);
    cr_assert_eq(duo_flow[0]->rails->state, RAIL_UP);
    struct duo_request *send = duo_send(0, 100);
    duo_recv(1, 100);
    duo_run(900 * MS);
    duo_assert_ended(send, UCCL_OK, 100);
    duo_device(0, true);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 0);
}

/* Each rail has paths of its own, at most 256 in all. */
Test(rails, share_the_numbers_of_paths)
{
    struct params params = param_defaults();
    for (unsigned rails = 1; rails <= CORE_RAILS_MAX; rails++) {
        struct flow_setup setup = {.rail_count = rails};
        params.port_entropy = 256;
        cr_assert_eq(rail_path_count(&params, &setup), 256 / rails);
        params.port_entropy = 5;
        cr_assert_eq(rail_path_count(&params, &setup), 5);
    }
}
