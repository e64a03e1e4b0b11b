/* SPDX-License-Identifier: Apache-2.0 */
/* A rail of connections beside one of datagrams: which takes what, and how each stands in for the other. */
#include "core/transmit.h"
#include "duo.h"

enum { PATHS = 4, RECORD = 60000, LARGE = 10 * (RECORD - WIRE_BULK_HEADER_BYTES), MEDIUM = 60000 };

TestSuite(channel_beside, .timeout = 60);

static void open_with(uint32_t datagram_bytes)
{
    duo_defaults();
    duo_params.port_entropy = PATHS;
    duo_params.tcp_bulk_kb = 64;
    duo_params.nic_dead_ms = 50;
    for (unsigned side = 0; side < 2; side++) {
        duo_setup[side].rails[0].datagram_bytes = datagram_bytes;
        duo_setup[side].rails[1] = (struct rail_setup){.destination = 2 + side,
                                                       .datagram_bytes = RECORD,
                                                       .peer_datagram_bytes = RECORD,
                                                       .reliable = true,
                                                       .joins = true};
        duo_setup[side].rail_count = 2;
    }
    duo_open_as(false);
}

static void open_apart(void)
{
    open_with(1472);
}

static void connect_all(void)
{
    for (unsigned side = 0; side < 2; side++)
        for (uint16_t path = 0; path < PATHS; path++)
            core_path_room(duo_core[side], duo_flow[side], 1, path, duo_now);
}

static void open_joined(void)
{
    open_apart();
    connect_all();
}

static bool is_record(unsigned side, const struct duo_datagram *datagram)
{
    struct wire_packet packet;
    cr_assert(wire_parse(datagram->bytes, datagram->length, crc32c_portable, &packet));
    return packet.path >= duo_flow[side]->rails[1].first_path;
}

/* Drops what waits at a side over rail `rail`. */
static unsigned lose(unsigned side, unsigned rail)
{
    unsigned kept = 0, lost = 0;
    for (unsigned i = 0; i < duo_queued[side]; i++) {
        if (is_record(side, &duo_queue[side][i]) == (rail == 1)) {
            free(duo_queue[side][i].bytes);
            lost++;
        } else {
            duo_queue[side][kept++] = duo_queue[side][i];
        }
    }
    duo_queued[side] = kept;
    return lost;
}

/* The connections break, with all that is under way. */
static void cut(void)
{
    for (unsigned side = 0; side < 2; side++)
        lose(side, 1);
    for (unsigned side = 0; side < 2; side++)
        for (uint16_t path = 0; path < PATHS; path++)
            core_path_broken(duo_core[side], duo_flow[side], 1, path, duo_now);
}

struct pair {
    struct duo_request *send, *recv;
};

/* The clear-to-send is there, so that the message leaves with the next transmission. */
static struct pair begin(uint64_t size)
{
    struct duo_request *recv = duo_recv(1, size);
    duo_run(MS);
    return (struct pair){duo_send(0, size), recv};
}

static void finish(struct pair pair, uint64_t size, uint64_t ns)
{
    duo_run(ns);
    duo_assert_arrived(pair.send, pair.recv, size);
}

/* Records and datagrams with a part of a large message that wait at side 0. */
static void look(unsigned *records, unsigned *datagrams)
{
    *records = *datagrams = 0;
    for (unsigned i = 0; i < duo_queued[0]; i++) {
        if (wire_is_bulk(duo_queue[0][i].bytes, duo_queue[0][i].length))
            *(is_record(0, &duo_queue[0][i]) ? records : datagrams) += 1;
    }
}

static void expect_way(uint64_t size, bool over_records)
{
    unsigned records, datagrams;
    struct pair pair = begin(size);
    uint64_t before = duo_count(&duo_counters[0].tcp_bulk_bytes);
    duo_transmit(0);
    look(&records, &datagrams);
    cr_assert_eq(records > 0, over_records, "%u records, %u datagrams", records, datagrams);
    cr_assert_eq(datagrams > 0, !over_records, "%u records, %u datagrams", records, datagrams);
    finish(pair, size, MS);
    cr_assert_eq(duo_count(&duo_counters[0].tcp_bulk_bytes) - before, over_records ? size : 0);
}

static void talk_by_datagrams(void)
{
    while (duo_transmit(0) + duo_transmit(1)) {
        cr_assert_eq(lose(0, 1) + lose(1, 1), 0, "neither a small message nor an ack");
        duo_deliver(0);
        duo_deliver(1);
    }
}

Test(channel_beside, large_messages_take_it_and_all_else_does_not, .init = open_joined)
{
    expect_way(LARGE, true);
    expect_way(64 * 1024, true);
    expect_way(64 * 1024 - 1, false);
    expect_way(20000, false);
    struct duo_request *recv = duo_recv(1, 100), *send = duo_send(0, 100);
    duo_run_with(MS, talk_by_datagrams);
    duo_assert_arrived(send, recv, 100);
    duo_assert_rest();
}

/* The peer's socket buffer is no bound for what goes over connections. */
Test(channel_beside, shared_messages_take_it_from_more_on, .init = open_joined)
{
    struct core_msg msg = {.size_bytes = 2 << 20, .stripes = 4};
    cr_assert_not_null(tx_bulk_rail(duo_flow[0], &msg));
    msg.size_bytes--;
    cr_assert_null(tx_bulk_rail(duo_flow[0], &msg), "less than eight times UCCL_TCP_BULK_KB for each flow");
    msg.stripes = 0;
    cr_assert_not_null(tx_bulk_rail(duo_flow[0], &msg));
}

Test(channel_beside, no_buffer_of_datagrams_bounds_it, .init = open_joined)
{
    unsigned records, datagrams;
    duo_flow[0]->peer_window_bytes = 4000;
    struct pair pair = begin(LARGE);
    duo_flow[0]->peer_window_bytes = 4000;
    duo_transmit(0);
    look(&records, &datagrams);
    cr_assert_eq(records, 10);
    cr_assert_eq(duo_flow[0]->sent.flying_charge, 0);
    finish(pair, LARGE, MS);
}

Test(channel_beside, before_it_joins_datagrams_carry_all, .init = open_apart)
{
    expect_way(LARGE, false);
    connect_all();
    expect_way(LARGE, true);
}

/* An address that is not proven gets no data over the connections either; they join once it is. */
Test(channel_beside, it_joins_a_proven_peer)
{
    open_apart();
    for (unsigned side = 0; side < 2; side++)
        duo_setup[side].rails[0].nonce = 77 + side;
    duo_open_as(false);
    connect_all();
    struct pair pair = {duo_send(0, 100), duo_recv(1, 100)};
    duo_transmit(0);
    cr_assert_eq(lose(0, 1), 0);
    cr_assert_eq(duo_proven[0], 0);
    finish(pair, 100, 20 * MS);
    cr_assert_eq(duo_proven[0], 1);
    expect_way(LARGE, true);
}

/* Both ends are told once, when much has gone either way. */
Test(channel_beside, much_bulk_is_told_once)
{
    enum { SIZE = 1 << 20, TIMES = 16 };
    open_with(65000);
    for (unsigned i = 0; i < 2 * TIMES; i++) {
        struct pair pair = {duo_send(0, SIZE), duo_recv(1, SIZE)};
        finish(pair, SIZE, MS);
        free(pair.send->buffer);
        free(pair.recv->buffer);
        for (unsigned side = 0; side < 2; side++)
            cr_assert_eq(duo_wanted[side], i + 1 >= TIMES, "side %u after %u", side, i + 1);
    }
    for (unsigned i = 0; i < 2 * TIMES; i++) {
        struct pair pair = {duo_send(0, 60000), duo_recv(1, 60000)};
        finish(pair, 60000, MS);
    }
    cr_assert(duo_wanted[0] == 1 && duo_wanted[1] == 1);
}

Test(channel_beside, small_messages_are_not_told_of)
{
    open_with(65000);
    for (unsigned i = 0; i < 400; i++) {
        struct pair pair = {duo_send(0, MEDIUM), duo_recv(1, MEDIUM)};
        finish(pair, MEDIUM, MS);
        free(pair.send->buffer);
        free(pair.recv->buffer);
    }
    cr_assert(duo_wanted[0] == 0 && duo_wanted[1] == 0);
}

/* What was under way goes as datagrams, in fragments where it would be too many. Later the connections carry again. */
static void stands_in(uint32_t datagram_bytes)
{
    open_with(datagram_bytes);
    connect_all();
    struct pair pair = begin(LARGE);
    duo_transmit(0);
    cut();
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 1);
    finish(pair, LARGE, 300 * MS);
    cr_assert_eq(duo_count(&duo_counters[0].tx_images) > 0, datagram_bytes < 1000);
    expect_way(LARGE, false);
    connect_all();
    for (unsigned side = 0; side < 2; side++)
        duo_post(side, 1, CORE_RECV, 10); /* something is expected */
    duo_run(300 * MS);                    /* three answers bring it back */
    cr_assert_eq(duo_count(&duo_counters[0].rails_returned), 1);
    expect_way(LARGE, true);
}

Test(channel_beside, datagrams_stand_in_for_connections)
{
    stands_in(1472);
}

Test(channel_beside, in_fragments_where_there_would_be_too_many)
{
    stands_in(700);
}

/* One connection of several breaks: the others take what was its. */
Test(channel_beside, one_broken_connection_is_no_loss_of_the_rail, .init = open_joined)
{
    struct pair pair = begin(LARGE);
    duo_transmit(0);
    for (unsigned i = 0; i < duo_queued[0]; i++) {
        struct wire_packet packet;
        cr_assert(wire_parse(duo_queue[0][i].bytes, duo_queue[0][i].length, crc32c_portable, &packet));
        if (packet.path != PATHS + 1)
            duo_deliver_one(0, i);
    }
    duo_drop(0);
    for (unsigned side = 0; side < 2; side++)
        core_path_broken(duo_core[side], duo_flow[side], 1, 1, duo_now);
    finish(pair, LARGE, 100 * MS);
    cr_assert_gt(duo_count(&duo_counters[0].retransmits), 0);
    cr_assert_eq(duo_count(&duo_counters[0].rails_lost), 0);
    cr_assert_eq(duo_count(&duo_counters[0].rail_moves), 0);
}

/* The ack of the last chunks gets lost, and nothing else is under way that would bring another one. */
Test(channel_beside, a_lost_ack_is_asked_for, .init = open_joined)
{
    struct pair pair = begin(LARGE);
    duo_pass(0);
    duo_run_deaf(1, MS);
    cr_assert_gt(duo_flow[0]->rails[1].flying_chunks, 0);
    duo_run(40 * MS);
    cr_assert_eq(duo_flow[0]->rails[1].flying_chunks, 0);
    duo_assert_arrived(pair.send, pair.recv, LARGE);
    cr_assert_leq(duo_count(&duo_counters[0].retransmits), 2);
}

/* A connection that is merely slow gets a chunk again now and then, ever more rarely. */
Test(channel_beside, what_takes_long_goes_again_rarely, .init = open_joined)
{
    begin(LARGE);
    duo_transmit(0);
    uint64_t until_ns = duo_now + 900 * MS;
    while (duo_tick(0, until_ns))
        duo_transmit(0);
    cr_assert_gt(duo_count(&duo_counters[0].retransmits), 2);
    cr_assert_lt(duo_count(&duo_counters[0].retransmits), 10);
}

/* So does the last one, which is alone. */
Test(channel_beside, the_last_one_goes_again_rarely, .init = open_joined)
{
    enum { TWO_RECORDS = 65536 };
    begin(TWO_RECORDS);
    duo_transmit(0);
    cr_assert_eq(duo_queued[0], 2);
    duo_deliver_one(0, 0);
    for (uint64_t until_ns = duo_now + 10 * MS; duo_tick(1, until_ns);)
        duo_transmit(1); /* it acks that one */
    duo_deliver(1);
    cr_assert_eq(duo_flow[0]->rails[1].flying_chunks, 1);
    uint64_t until_ns = duo_now + 900 * MS;
    while (duo_tick(0, until_ns))
        duo_transmit(0);
    cr_assert_gt(duo_count(&duo_counters[0].retransmits), 2);
    cr_assert_lt(duo_count(&duo_counters[0].retransmits), 10);
}

/* Datagrams do not get through any more: connections carry all. */
Test(channel_beside, connections_stand_in_for_datagrams, .init = open_joined)
{
    duo_params.dead_peer_ms = 100000;
    struct pair pair = {duo_send(0, 100), duo_recv(1, 100)};
    finish(pair, 100, MS);
    pair = (struct pair){duo_send(0, 100), duo_recv(1, 100)};
    for (uint64_t until_ns = duo_now + 2000 * MS; duo_now < until_ns && !pair.send->ended; duo_now += MS) {
        for (unsigned side = 0; side < 2; side++) {
            core_expire(duo_core[side], duo_now);
            duo_transmit(side);
            lose(side, 0);
            duo_deliver(side);
        }
    }
    duo_assert_arrived(pair.send, pair.recv, 100);
    cr_assert(duo_flow[0]->main == &duo_flow[0]->rails[1]);
}

/* Full connections hold back large messages alone. */
Test(channel_beside, full_connections_do_not_hold_small_messages_back, .init = open_joined)
{
    struct pair pair = begin(LARGE);
    for (uint16_t path = 0; path < PATHS; path++)
        duo_flow[0]->rails[1].paths.paths[path].channel = CHANNEL_FULL;
    struct duo_request *small = duo_post(0, 1, CORE_SEND, 50), *recv = duo_post(1, 1, CORE_RECV, 50);
    duo_run(MS);
    duo_assert_arrived(small, recv, 50);
    cr_assert_not(pair.send->ended);
    connect_all();
    finish(pair, LARGE, MS);
}

Test(channel_beside, a_lossy_network_gets_datagrams_for_a_while, .init = open_joined)
{
    uint64_t pause_ns = 10000 * MS;
    duo_params.dead_peer_ms = 1000000;
    for (unsigned i = 0; i < 9; i++) {
        expect_way(LARGE, true);
        core_path_lossy(duo_core[0], duo_flow[0], 1, duo_now);
        core_path_lossy(duo_core[0], duo_flow[0], 1, duo_now); /* another connection sees it, too */
        uint64_t until_ns = duo_now + pause_ns;
        expect_way(LARGE, false);
        duo_now = until_ns - 50 * MS;
        expect_way(LARGE, false);
        duo_now = until_ns;
        pause_ns = pause_ns < 300000 * MS ? 2 * pause_ns : 600000 * MS;
    }
    cr_assert_eq(duo_count(&duo_counters[0].tcp_lossy), 9);
    duo_now += 10000 * MS; /* it was well for so long */
    expect_way(LARGE, true);
    core_path_lossy(duo_core[0], duo_flow[0], 1, duo_now);
    duo_now += 10001 * MS;
    expect_way(LARGE, true);
}

/* Side 0 sends: how much of a large message leaves as records, how much as datagrams. */
static void send_and_look(unsigned *records, unsigned *datagrams)
{
    core_expire(duo_core[0], duo_now);
    duo_transmit(0);
    look(records, datagrams);
}

/* So does what they lose: neither a full window nor a timeout hands it to the connections, but a silence does. */
Test(channel_beside, what_a_lossy_network_loses_goes_as_datagrams_again, .init = open_joined)
{
    unsigned records, datagrams;
    core_path_lossy(duo_core[0], duo_flow[0], 1, duo_now);
    struct pair pair = begin(LARGE);
    duo_transmit(0);
    struct rail *own = &duo_flow[0]->rails[0];
    free(duo_queue[0][0].bytes); /* the first datagram */
    memmove(duo_queue[0], duo_queue[0] + 1, --duo_queued[0] * sizeof duo_queue[0][0]);
    duo_deliver(0);
    own->cc.cwnd_bytes = 1;
    duo_pass(1);
    for (unsigned i = 0; i < 8; i++, duo_now += MS / 8) { /* less than a timeout */
        send_and_look(&records, &datagrams);
        cr_assert_eq(records, 0, "the window is full");
        duo_deliver(0);
        duo_pass(1);
    }
    own->cc.cwnd_bytes = 1 << 20;
    finish(pair, LARGE, 50 * MS);

    pair = begin(LARGE);
    duo_transmit(0);
    unsigned doubtful = 0;
    for (unsigned i = 0; i < 400 && doubtful < 8; i++, duo_now += MS / 4) {
        lose(0, 0);
        send_and_look(&records, &datagrams);
        cr_assert_eq(records, 0, "a timeout, no more");
        doubtful += own->state == RAIL_SUSPECT;
    }
    cr_assert_eq(doubtful, 8);
    for (unsigned i = 0; i < 400 && records == 0; i++, duo_now += MS / 4) {
        lose(0, 0);
        send_and_look(&records, &datagrams);
    }
    cr_assert_gt(records, 0, "nothing is heard of datagrams");
    finish(pair, LARGE, 1000 * MS);
}

/* So much time passes, in which no datagram arrives. */
static void run_without_datagrams(uint64_t ns)
{
    for (uint64_t until_ns = duo_now + ns; duo_now < until_ns; duo_now += MS / 4) {
        for (unsigned side = 0; side < 2; side++) {
            core_expire(duo_core[side], duo_now);
            duo_transmit(side);
            lose(side, 0);
        }
        for (unsigned side = 0; side < 2; side++)
            duo_deliver(side);
    }
}

/* Connections carry all, since datagrams vanish. They break, and are made again. */
static void break_without_datagrams(void)
{
    duo_params.dead_peer_ms = 3000;
    struct pair pair = {duo_send(0, 100), duo_recv(1, 100)};
    finish(pair, 100, MS);
    pair = (struct pair){duo_send(0, 100), duo_recv(1, 100)};
    run_without_datagrams(2000 * MS);
    duo_assert_arrived(pair.send, pair.recv, 100);
    cut();
    run_without_datagrams(20 * MS);
    connect_all();
}

/* Both kinds are down then, so the answers that bring the connections back do not come as datagrams. */
static void connections_come_back(void)
{
    uint64_t before[2];
    for (unsigned side = 0; side < 2; side++)
        before[side] = duo_count(&duo_counters[side].rails_returned);
    break_without_datagrams();
    struct pair pair = {duo_send(0, 100), duo_recv(1, 100)};
    run_without_datagrams(200 * MS);
    duo_assert_arrived(pair.send, pair.recv, 100);
    for (unsigned side = 0; side < 2; side++) {
        cr_assert_eq(duo_count(&duo_counters[side].rails_returned) - before[side], 1);
        cr_assert(duo_flow[side]->main == &duo_flow[side]->rails[1]);
    }
    pair = (struct pair){duo_send(0, 100), duo_recv(1, 100)};
    run_without_datagrams(5 * MS);
    duo_assert_arrived(pair.send, pair.recv, 100);
}

Test(channel_beside, connections_come_back_without_datagrams, .init = open_joined)
{
    connections_come_back();
}

/*
 * After several breaks little may be in flight, and the acks of what is got lost as datagrams. What goes again for
 * their sake waits neither for the window nor behind what does: here the clear-to-sends of the next messages.
 */
Test(channel_beside, a_lost_ack_is_asked_for_whatever_the_window, .init = open_joined)
{
    enum { NEXT = 1 };
    struct pair pairs[2][2];
    duo_params.dead_peer_ms = 100000;
    for (unsigned side = 0; side < 2; side++)
        pairs[side][0].recv = duo_recv(!side, LARGE);
    duo_run(MS);
    for (unsigned side = 0; side < 2; side++) {
        pairs[side][0].send = duo_send(side, LARGE);
        duo_transmit(side);
        cr_assert_gt(duo_flow[side]->rails[1].flying_chunks, 8);
        duo_flow[side]->rails[1].cc.cwnd_bytes = 1;
        pairs[!side][NEXT].recv = duo_recv(side, LARGE);
        pairs[side][NEXT].send = duo_send(side, LARGE);
    }
    run_without_datagrams(300 * MS);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < 2; i++)
            duo_assert_arrived(pairs[side][i].send, pairs[side][i].recv, LARGE);
}

/* The peer waits for nothing, so it does not know yet that its datagrams vanish. It lives all the same. */
static void answers_of_the_unaware_come(void)
{
    duo_params.dead_peer_ms = 3000;
    struct duo_request *send = duo_send(0, 100);
    run_without_datagrams(1000 * MS);
    cut();
    run_without_datagrams(20 * MS);
    connect_all();
    run_without_datagrams(4000 * MS);
    cr_assert_eq(duo_flow[1]->rails[0].state, RAIL_UP, "it does not know");
    cr_assert_eq(duo_dead[0], 0);
    struct duo_request *recv = duo_recv(1, 100);
    run_without_datagrams(1000 * MS);
    duo_assert_arrived(send, recv, 100);
}

Test(channel_beside, answers_of_the_unaware_come_by_connections, .init = open_joined)
{
    answers_of_the_unaware_come();
}

/* The numbers of the asker's paths name another rail at the other end, or none. */
static void where_paths_are_unequal(void (*run)(void))
{
    for (unsigned few = 0; few < 2; few++) {
        duo_entropy[few] = 1;
        duo_entropy[!few] = 64;
        open_joined();
        run();
    }
}

Test(channel_beside, answers_of_the_unaware_come_where_paths_are_unequal)
{
    where_paths_are_unequal(answers_of_the_unaware_come);
}

Test(channel_beside, connections_come_back_where_paths_are_unequal)
{
    where_paths_are_unequal(connections_come_back);
}

/* A probe over a path whose number names a broken connection here is answered at once. */
Test(channel_beside, answers_do_not_wait_for_connections)
{
    static uint8_t buffer[256];
    struct tx_desc desc;
    duo_entropy[0] = 64;
    duo_entropy[1] = 1;
    open_joined();
    cut();
    duo_run(50 * MS);
    uint32_t bytes =
        WIRE_HEADER_BYTES + wire_put_probe(buffer + WIRE_HEADER_BYTES, &(struct wire_probe){.nonce = 12345});
    wire_set_header_length(buffer, bytes);
    tx_describe_unnumbered(&duo_flow[0]->rails[0], buffer, bytes, 1, 0, &desc, duo_now);
    duo_build(0, &desc);
    duo_deliver(0);
    cr_assert_eq(duo_transmit(1), 1);
    cr_assert_not(is_record(1, &duo_queue[1][0]));
}

static void talk_by_records(void)
{
    while (duo_transmit(0) + duo_transmit(1)) {
        for (unsigned side = 0; side < 2; side++) {
            lose(side, 0);
            duo_deliver(side);
        }
    }
}

/* Datagrams stop before there are connections: both ends want these, and they carry what was under way. */
static void datagrams_stop(uint64_t size)
{
    open_apart();
    struct pair pair = begin(size);
    uint64_t dead_ns = duo_params.dead_peer_ms * MS;
    duo_wanted[0] = duo_wanted[1] = 0;
    duo_run_with(dead_ns / 2, talk_by_records);
    cr_assert(duo_wanted[0] > 0 && duo_wanted[1] > 0, "%u, %u", duo_wanted[0], duo_wanted[1]);
    connect_all();
    duo_wanted[0] = duo_wanted[1] = 1;
    duo_run_with(dead_ns / 4, talk_by_records);
    duo_assert_arrived(pair.send, pair.recv, size);
    duo_run_with(2 * dead_ns, talk_by_records);
    cr_assert(duo_wanted[0] == 1 && duo_wanted[1] == 1);
    struct duo_request *send = duo_send(1, 100), *recv = duo_recv(0, 100);
    duo_run_with(dead_ns / 4, talk_by_records);
    duo_assert_arrived(send, recv, 100);
    cut(); /* they are wanted again, however late they would be made otherwise */
    send = duo_send(1, 100), recv = duo_recv(0, 100);
    duo_run_with(dead_ns / 2, talk_by_records);
    cr_assert(duo_wanted[0] > 1 && duo_wanted[1] > 1);
    connect_all();
    duo_run_with(dead_ns / 4, talk_by_records);
    duo_assert_arrived(send, recv, 100);
    duo_wanted[0] = duo_wanted[1] = 0;
    duo_run_with(dead_ns, talk_by_records);
    cr_assert(duo_wanted[0] + duo_wanted[1] == 0);
}

Test(channel_beside, connections_are_wanted_when_datagrams_stop)
{
    datagrams_stop(100);
    datagrams_stop(LARGE);
}

/* A sender knows after a few timeouts, whoever waits for a message after a while of silence. */
Test(channel_beside, a_sender_wants_them_early)
{
    open_apart();
    duo_params.dead_peer_ms = 100000;
    begin(100);
    duo_run_with(1000 * MS, talk_by_records);
    cr_assert(duo_wanted[0] > 0 && duo_wanted[1] == 0, "%u, %u", duo_wanted[0], duo_wanted[1]);
}

Test(channel_beside, so_does_a_receiver_in_the_end)
{
    open_apart();
    duo_recv(1, 100);
    duo_run(MS);
    duo_run_with(duo_params.dead_peer_ms * MS / 2, talk_by_records);
    cr_assert(duo_wanted[0] == 0 && duo_wanted[1] > 0, "%u, %u", duo_wanted[0], duo_wanted[1]);
}
