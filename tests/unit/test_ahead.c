/* SPDX-License-Identifier: Apache-2.0 */
/* Sends that start before their clear-to-send, behind the message that announces them (engine/core/ahead.c). */
#include "duo.h"

#include "core/conn_slots.h"

enum { LEADER, FOLLOWER }; /* connections of duo.h: annexes take their places */
enum { LEADER_BYTES = 64, AHEAD = 65536, WRITES = 40 };

static struct duo_request *leaders[WRITES]; /* receives of side 1, as the test posts them */
static struct duo_request *writes[WRITES];  /* likewise, for each leader that came */
static unsigned leaders_posted, writes_posted;
static struct {
    uint64_t capacity; /* of the receives */
    uint8_t stripes;
    bool plain, nothing; /* not ahead; none */
} next;

static void post_leader_receive(void)
{
    leaders[leaders_posted++] = duo_post(1, LEADER, CORE_RECV, LEADER_BYTES);
}

static struct duo_request *post_follower(unsigned side, unsigned kind, uint64_t size, bool ahead, uint8_t stripes)
{
    return duo_post_msg(
        side, FOLLOWER,
        (struct core_msg){.kind = (uint8_t)kind, .size_bytes = size, .ahead = ahead, .stripes = stripes});
}

/* What the shell does for leaders that have come. */
static void follow(void)
{
    while (!next.nothing && writes_posted < leaders_posted && leaders[writes_posted]->ended) {
        writes[writes_posted++] = post_follower(1, CORE_RECV, next.capacity, !next.plain, next.stripes);
        post_leader_receive();
    }
}

/* Delivers datagram `i` of side 0. */
static void deliver(unsigned i)
{
    duo_deliver_one(0, i);
    follow();
}

static void deliver_all(void)
{
    for (unsigned i = 0; i < duo_queued[0]; i++)
        deliver(i);
    duo_drop(0);
}

static void talk(void)
{
    for (unsigned round = 0; round < 10000; round++) {
        if (duo_transmit(0) + duo_transmit(1) == 0)
            return;
        duo_now += 10 * US;
        deliver_all();
        duo_deliver(1);
        follow();
    }
    cr_assert_fail("they never stop");
}

static void run(uint64_t ns)
{
    duo_run_with(ns, talk);
}

/* A leader and the send that it announces. */
static struct duo_request *write_of(uint64_t size)
{
    duo_post(0, LEADER, CORE_SEND, LEADER_BYTES);
    return post_follower(0, CORE_SEND, size, true, 0);
}

/* `first`: with the first message over, whose leader the peer could not foresee. */
static void open_annexes(bool first)
{
    const struct annex_setup annex[2] = {{.msg_window = 64, .eager_bytes = 1024, .eager_window_kb = 2},
                                         {.msg_window = 64, .ahead_bytes = AHEAD}};
    duo_open_as(false);
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = LEADER; i <= FOLLOWER; i++)
            duo_conn[side][i] =
                core_annex_open(duo_core[side], duo_zeroed(core_annex_size(&duo_setup[side], &annex[i])),
                                duo_flow[side], &duo_setup[side], &annex[i], (i + 1) << CORE_ANNEX_SHIFT | side,
                                (i + 1) << CORE_ANNEX_SHIFT | !side, &duo_conn[side][i], duo_now);
        core_annex_follow(duo_conn[side][FOLLOWER], duo_conn[side][LEADER]);
    }
    for (unsigned i = 0; i < 8; i++)
        post_leader_receive();
    next.capacity = 1 << 20;
    if (!first)
        return;
    struct duo_request *send = write_of(5000);
    run(MS);
    duo_assert_arrived(send, writes[0], 5000);
}

static void open_plain(bool first)
{
    duo_defaults();
    open_annexes(first);
}

/* With datagrams as on loopback, where granted messages share trains. */
static void open_large(void)
{
    duo_defaults();
    duo_whole_trains = true;
    duo_setup[0].rails[0].datagram_bytes = duo_setup[1].rails[0].datagram_bytes = 65000;
    open_annexes(true);
}

/* Receives of leaders stay posted. */
static void assert_rest(void)
{
    for (unsigned side = 0; side < 2; side++) {
        const struct flow *flow = duo_flow[side];
        cr_assert_eq(flow->sent.cumulative, flow->sent.next_seq);
        cr_assert_eq(flow->sent.flying_charge, 0);
        cr_assert_eq(flow->msgs_pending, side * (leaders_posted - writes_posted));
    }
}

static uint64_t refused(void)
{
    return duo_count(&duo_counters[1].rx_refused);
}

/* The datagram's frames of one kind; its path in `*path`. */
static unsigned frames_of(unsigned side, unsigned index, enum wire_frame_kind kind, uint16_t *path)
{
    struct wire_packet packet;
    const struct wire_frame *frame;
    unsigned count = 0;
    cr_assert(wire_parse(duo_queue[side][index].bytes, duo_queue[side][index].length, crc32c_portable, &packet));
    *path = packet.path;
    while ((frame = wire_next_frame(&packet)))
        count += frame->kind == kind;
    return count;
}

Test(ahead, bytes_leave_with_their_leader)
{
    uint16_t path, data_path;
    open_plain(true);
    struct duo_request *send = write_of(20000);
    cr_assert_eq(duo_transmit(0), 1 + (20000 + 1407) / 1408);
    cr_assert_eq(frames_of(0, 0, FRAME_EAGER, &path), 1);
    for (unsigned i = 1; i < duo_queued[0]; i++)
        cr_assert(frames_of(0, i, FRAME_DATA, &data_path) == 1 && data_path == path, "it may overtake its leader");
    deliver_all();
    duo_assert_ended(writes[1], UCCL_OK, 20000);
    duo_transmit(1);
    for (unsigned i = 0; i < duo_queued[1]; i++)
        cr_assert_eq(frames_of(1, i, FRAME_CTS, &path), 0, "nobody needs it");
    run(MS);
    duo_assert_ended(send, UCCL_OK, 20000);
    cr_assert_eq(refused(), 0);
    assert_rest();
}

/* Once the leader has arrived, nothing binds its message to a path. */
Test(ahead, a_leader_that_has_arrived_binds_no_path)
{
    enum { CHUNK = 64 * 1408, BYTES = 4 * CHUNK };
    uint16_t first, path;
    unsigned others = 0;
    duo_defaults();
    duo_params.path_policy = PATH_RR;
    open_annexes(true);
    struct duo_request *send = write_of(BYTES);
    struct rail *rail = duo_flow[0]->rails;
    rail->cc.cwnd_bytes = CHUNK;
    duo_transmit(0);
    frames_of(0, 0, FRAME_EAGER, &first);
    deliver_all();
    duo_conn[0][FOLLOWER]->ahead_bytes = BYTES;
    duo_pass(1);
    rail->cc.cwnd_bytes = 1 << 20;
    duo_transmit(0);
    for (unsigned i = 0; i < duo_queued[0]; i++) {
        cr_assert_eq(frames_of(0, i, FRAME_DATA, &path), 1);
        others += path != first;
    }
    cr_assert_gt(others, 0);
    deliver_all();
    run(MS);
    duo_assert_arrived(send, writes[1], BYTES);
}

/* So it does not overtake it, though another rail seems quicker. */
Test(ahead, bytes_take_the_rail_of_their_leader)
{
    uint16_t path, data_path;
    duo_defaults();
    duo_set_rails(2);
    open_annexes(true);
    duo_flow[0]->rails[0].rtt.srtt_ns = 100 * MS;
    struct duo_request *send = write_of(5000);
    duo_transmit(0);
    frames_of(0, 0, FRAME_EAGER, &path);
    frames_of(0, 1, FRAME_DATA, &data_path);
    cr_assert_eq(flow_rail_of(duo_flow[0], data_path), flow_rail_of(duo_flow[0], path));
    deliver_all();
    run(MS);
    duo_assert_arrived(send, writes[1], 5000);
}

Test(ahead, the_first_one_waits)
{
    uint16_t path;
    open_plain(false);
    struct duo_request *send = write_of(5000);
    duo_transmit(0);
    for (unsigned i = 0; i < duo_queued[0]; i++)
        cr_assert_eq(frames_of(0, i, FRAME_DATA, &path), 0, "the peer has posted nothing for its leader");
    struct duo_request *second = write_of(6000);
    run(MS);
    duo_assert_arrived(send, writes[0], 5000);
    duo_assert_arrived(second, writes[1], 6000);
}

Test(ahead, without_its_leader_it_comes_again)
{
    open_plain(true);
    struct duo_request *send = write_of(20000);
    unsigned count = duo_transmit(0);
    for (unsigned i = 1; i < count; i++)
        deliver(i);
    duo_drop(0);
    cr_assert_eq(writes_posted, 1);
    cr_assert_eq(refused(), count - 1);
    run(100 * MS);
    duo_assert_arrived(send, writes[1], 20000);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    cr_assert_eq(duo_count(&duo_counters[0].rto_fired), 0, "the probe asks for the leader");
    assert_rest();
}

Test(ahead, of_a_large_one_a_part_goes)
{
    enum { BYTES = 3 * AHEAD };
    open_plain(true);
    struct duo_request *send = write_of(BYTES);
    uint64_t came = duo_count(&duo_counters[1].rx_bytes);
    for (unsigned i = 0; i < 20; i++) { /* it is acked, but has no clear-to-send */
        duo_transmit(0);
        deliver_all();
        conn_clear_due(duo_conn[1][FOLLOWER], DUE_CTS, 1);
        duo_pass(1);
    }
    came = duo_count(&duo_counters[1].rx_bytes) - came;
    cr_assert(came > AHEAD && came < AHEAD + AHEAD / 8, "%lu", (unsigned long)came);
    cr_assert_eq(send->msg.state, MSG_PARKED);
    conn_set_due(duo_conn[1][FOLLOWER], DUE_CTS, 1);
    run(10 * MS);
    duo_assert_arrived(send, writes[1], BYTES);
    assert_rest();
}

Test(ahead, a_clear_to_send_in_the_middle_lets_it_go_on)
{
    enum { BYTES = 3 * AHEAD };
    open_plain(true);
    struct duo_request *send = write_of(BYTES);
    run(10 * MS);
    duo_assert_arrived(send, writes[1], BYTES);
    send = write_of(BYTES);
    next.capacity = BYTES;
    run(10 * MS);
    duo_assert_arrived(send, writes[2], BYTES);
    assert_rest();
}

/* It meets a receive of no bytes: the shell's way to refuse it. */
Test(ahead, a_receive_that_is_too_short_refuses_it)
{
    open_plain(true);
    next.capacity = 0;
    struct duo_request *send = write_of(5000), *large = write_of(5 * AHEAD);
    run(10 * MS);
    duo_assert_ended(writes[1], UCCL_ETRUNCATED, 0);
    duo_assert_ended(writes[2], UCCL_ETRUNCATED, 0);
    duo_assert_ended(send, UCCL_ETRUNCATED, 0);
    duo_assert_ended(large, UCCL_ETRUNCATED, 0);
    next.capacity = 1 << 20;
    send = write_of(5000);
    run(10 * MS);
    duo_assert_arrived(send, writes[3], 5000);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    assert_rest();
}

/* A receive that takes no bytes before its clear-to-send has left: they come again. */
Test(ahead, a_receive_that_is_not_ready_has_time)
{
    open_plain(true);
    next.plain = true;
    struct duo_request *send = write_of(20000);
    duo_transmit(0);
    deliver_all();
    cr_assert_gt(refused(), 0);
    run(100 * MS);
    duo_assert_arrived(send, writes[1], 20000);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
}

Test(ahead, it_waits_while_its_leader_lacks_credit)
{
    enum { BEFORE = 60 }; /* more than receives and the ring take */
    open_plain(true);
    next.nothing = true;
    for (unsigned i = 0; i < BEFORE; i++)
        duo_post(0, LEADER, CORE_SEND, LEADER_BYTES);
    struct duo_request *send = write_of(20000), *recv = NULL;
    talk();
    cr_assert(send->msg.state == MSG_WAITING && refused() == 0);
    for (unsigned i = 0; !recv; i++) {
        cr_assert_lt(i, BEFORE);
        struct duo_request *leader = duo_post(1, LEADER, CORE_RECV, LEADER_BYTES);
        while (!leader->ended)
            talk();
        if (leader->msg.number == BEFORE + 1)
            recv = post_follower(1, CORE_RECV, 20000, true, 0);
    }
    run(MS);
    duo_assert_arrived(send, recv, 20000);
}

/* Bytes that share a train with their leader would be refused together with it, for ever. */
Test(ahead, bytes_never_share_a_train_with_their_leader)
{
    enum { COUNT = 6 };
    uint16_t path;
    struct duo_request *sends[COUNT];
    open_large();
    for (unsigned i = 0; i < COUNT; i++)
        sends[i] = write_of(6000);
    duo_post(0, 2, CORE_SEND, 100); /* the follower's turn comes behind this one, in the same train */
    duo_post(1, 2, CORE_RECV, 100);
    cr_assert_eq(duo_transmit(0), 2);
    cr_assert_eq(frames_of(0, 0, FRAME_EAGER, &path), COUNT + 1);
    cr_assert_eq(frames_of(0, 0, FRAME_DATA, &path), 0);
    cr_assert_eq(frames_of(0, 1, FRAME_DATA, &path), COUNT, "they share one of their own");
    deliver_all();
    run(MS);
    for (unsigned i = 0; i < COUNT; i++)
        duo_assert_arrived(sends[i], writes[1 + i], 6000);
    cr_assert_eq(refused(), 0);
    assert_rest();
}

Test(ahead, a_shared_train_takes_the_path_of_its_leader)
{
    uint16_t path, data_path;
    open_large();
    write_of(6000);
    write_of(6000);
    duo_transmit(0);
    frames_of(0, 0, FRAME_EAGER, &path);
    cr_assert_eq(frames_of(0, 1, FRAME_DATA, &data_path), 2);
    cr_assert_eq(data_path, path);
}

/* What went ahead is the first range; the clear-to-send lets further flows have the rest. */
Test(ahead, further_flows_take_what_is_left)
{
    enum { BYTES = 4 * AHEAD };
    open_plain(true);
    next.stripes = 3;
    next.capacity = BYTES;
    struct duo_request *send = write_of(BYTES);
    duo_transmit(0);
    deliver_all();
    duo_pass(1);
    duo_events(0);
    cr_assert_gt(send->asks, 0);
    uint64_t ahead = send->msg.offset_bytes;
    cr_assert(ahead == AHEAD && send->msg.end_bytes == 0 && send->msg.stripes == 3);
    core_send_range(duo_core[0], &send->msg, ahead, BYTES - 1000);
    send->asks = 0;
    run(10 * MS);
    struct duo_request *recv = writes[1];
    cr_assert_eq(recv->arrived, BYTES - 1000);
    cr_assert(!recv->ended && send->asks);
    core_send_range(duo_core[0], &send->msg, BYTES, BYTES);
    core_msg_whole(duo_core[1], &recv->msg, BYTES, duo_now); /* another flow has brought the rest */
    run(10 * MS);
    cr_assert(recv->ended && recv->status == UCCL_OK && send->ended && send->status == UCCL_OK);
    assert_rest();
}

/*
 * Where the last datagram of what went ahead is lost, GRO may join a longer one to those before it, whose bytes would
 * reach into what another flow has brought.
 */
Test(ahead, no_place_that_reaches_into_what_further_flows_bring)
{
    open_plain(true);
    next.stripes = 3;
    write_of(4 * AHEAD);
    duo_transmit(0);
    deliver(0);
    cr_assert_eq(writes_posted, 2);
    const struct duo_datagram *end = &duo_queue[0][duo_queued[0] - 1], *before = end - 1;
    cr_assert_lt(end->length, before->length);
    struct core_msg *msg;
    uint64_t offset;
    cr_assert_eq(core_copy_target(duo_core[1], before->bytes, 2 * before->length, before->length, &msg, &offset), 1);
    cr_assert_eq(msg, &writes[1]->msg);
}

/* Though they could all go without one. */
Test(ahead, further_flows_take_what_has_not_left)
{
    enum { BYTES = 4 * AHEAD };
    open_plain(true);
    next.stripes = 3;
    duo_conn[0][FOLLOWER]->ahead_bytes = duo_conn[1][FOLLOWER]->ahead_bytes = BYTES;
    duo_flow[0]->rails[0].cc.cwnd_bytes = 80000; /* one chunk */
    struct duo_request *send = write_of(BYTES);
    duo_transmit(0);
    deliver(0);
    deliver(1);
    duo_drop(0);
    duo_pass(1);
    duo_events(0);
    cr_assert(send->asks && send->msg.offset_bytes > 0 && send->msg.offset_bytes < BYTES);
}

/* All bytes came over the home flow: nobody waits for the sum of others. */
Test(ahead, a_striped_receive_may_end_without_further_flows)
{
    open_plain(true);
    next.stripes = 3;
    struct duo_request *send = write_of(AHEAD);
    for (unsigned i = 0; i < 20; i++) {
        duo_transmit(0);
        deliver_all();
        if (!writes[1]->ended)
            conn_clear_due(duo_conn[1][FOLLOWER], DUE_CTS, 1);
        duo_pass(1);
    }
    duo_assert_ended(writes[1], UCCL_OK, AHEAD);
    run(MS);
    duo_assert_ended(send, UCCL_OK, AHEAD);
    assert_rest();
}

/* A clear-to-send that comes when nothing is left asks for no range. */
Test(ahead, a_late_clear_to_send_changes_nothing)
{
    open_plain(true);
    next.stripes = 3;
    struct duo_request *send = write_of(5000);
    duo_transmit(0);
    deliver(0);
    run(MS);
    cr_assert_eq(send->asks, 0);
    duo_assert_arrived(send, writes[1], 5000);
    assert_rest();
}

Test(ahead, it_can_be_cancelled_at_any_time)
{
    open_plain(true);
    for (unsigned stage = 0; stage < 4; stage++) {
        struct duo_request *send = write_of(3 * AHEAD);
        if (stage > 0)
            duo_transmit(0);
        for (unsigned i = 0; stage > 1 && i < 20; i++) {
            duo_transmit(0);
            deliver_all();
            if (stage == 3)
                conn_clear_due(duo_conn[1][FOLLOWER], DUE_CTS, duo_conn[1][FOLLOWER]->recv_base);
            duo_transmit(1);
            if (stage == 3)
                duo_deliver(1);
            else
                duo_drop(1);
        }
        core_cancel(duo_core[0], &send->msg, duo_now);
        run(500 * MS);
        cr_assert(send->ended && send->status == UCCL_ECANCELED, "stage %u", stage);
        cr_assert(writes[writes_posted - 1]->ended && writes[writes_posted - 1]->status == UCCL_ECANCELED);
    }
    struct duo_request *send = write_of(3 * AHEAD);
    run(10 * MS);
    duo_assert_arrived(send, writes[writes_posted - 1], 3 * AHEAD);
    assert_rest();
}

/* Nobody will post its receive: the bytes are acked, so that the flow goes on. */
Test(ahead, bytes_for_one_that_closes_are_acked)
{
    open_plain(true);
    next.nothing = true;
    write_of(20000);
    core_conn_close(duo_core[1], duo_conn[1][FOLLOWER], 10 * MS, duo_now);
    run(100 * MS);
    cr_assert_eq(refused(), 0);
    cr_assert_eq(duo_count(&duo_counters[1].rx_malformed), 0);
    cr_assert_eq(duo_flow[0]->sent.cumulative, duo_flow[0]->sent.next_seq);
}

/* A leader's receive is handed out between two datagrams, before all other events. */
Test(ahead, leaders_can_be_taken_first)
{
    open_plain(true);
    struct duo_request *plain = duo_post(1, 2, CORE_RECV, 100);
    duo_post(0, 2, CORE_SEND, 100);
    duo_post(0, LEADER, CORE_SEND, LEADER_BYTES);
    duo_transmit(0);
    for (unsigned i = 0; i < duo_queued[0]; i++) {
        core_rx(duo_core[1], duo_queue[0][i].bytes, duo_queue[0][i].length, false, duo_now);
        duo_copies(1);
    }
    duo_drop(0);
    cr_assert_eq(core_next_leader(duo_core[1]), &leaders[1]->msg);
    cr_assert_null(core_next_leader(duo_core[1]));
    cr_assert_eq(leaders[1]->msg.status, UCCL_OK);
    duo_events(1);
    cr_assert(plain->ended && !leaders[1]->ended);
}
