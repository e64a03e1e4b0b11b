/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ports in one verbs engine: which are used, which reach which, and one queue made of a queue on each. Devices
 * 0 and 2 are in one network, 1 and 3 in another: the first end has 0 and 1, the second one 2 and 3.
 */
#include "base/clock.h"
#include "boot/rails.h"
#include "verbs_pair.h"

#include <stdio.h>

enum { FIRST_RAIL, SECOND_RAIL, RAILS };

static struct nic *ends[2];
static struct nic_queue *of[2]; /* of each end */
static uint32_t to[2][RAILS];   /* destinations, by end */
static struct nic_host host = {.address.v4.sin_family = AF_INET};

/* The key of device 1. */
static uint64_t local_of_second(const struct core_msg *msg, uint64_t offset, unsigned nic_index, uint32_t *key)
{
    cr_assert_eq(nic_index, 1);
    *key = FAKE_KEY_DEVICE + 1;
    return (uintptr_t)payload(msg, offset);
}

static void open_end(unsigned end, const char *hcas)
{
    struct nic_queue_setup setup = {.params = &params,
                                    .counters = &counters,
                                    .crc32c = crc32c_portable,
                                    .payload = payload,
                                    .local = local_of_second};
    snprintf(params.ib_hca, sizeof params.ib_hca, "%s", hcas);
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &ends[end]), 0, "%s", said);
    cr_assert_eq(verbs_device_ops.queue_open(ends[end], &setup, &of[end]), 0);
}

static uint32_t add(unsigned end, const struct nic_pair *pair)
{
    struct nic_queue_address address;
    uint32_t destination, bytes;
    host.nic = pair->ours + 1u;
    host.peer_nic = pair->theirs;
    of[!end]->ops->address(of[!end], &address);
    cr_assert_eq(of[end]->datagram->peer_add(of[end], &host, &address, &destination, &bytes), 0, "%s", said);
    cr_assert_eq(bytes, 4096);
    return destination;
}

static void set_up_ends(void)
{
    set_up();
    fake.device_count = 4;
    open_end(0, "fake0,fake1");
    open_end(1, "fake2,fake3");
    for (unsigned end = 0; end < 2; end++) {
        struct nic_queue_address address;
        struct nic_pair pairs[4];
        of[!end]->ops->address(of[!end], &address);
        cr_assert_eq(verbs_pairs(ends[end], &address, end == 0, pairs, 4), RAILS);
        for (unsigned i = 0; i < RAILS; i++)
            to[end][i] = add(end, &pairs[i]);
    }
}

static void close_ends(void)
{
    for (unsigned end = 0; end < 2; end++) {
        of[end]->ops->close(of[end]);
        verbs_device_ops.close(ends[end]);
    }
    FINI_ASSERT(fake.qps_alive == 0);
    FINI_ASSERT(fake.handles_alive == 0);
    FINI_ASSERT(fake.mrs_alive == 0);
    uccl_set_log(NULL, NULL);
}

static void happens(unsigned device, struct ibv_async_event event)
{
    uint32_t destination, bytes;
    fake.events[fake.event_count] = event;
    fake.event_devices[fake.event_count++] = device;
    for (unsigned i = 0; i <= VERBS_LOOK_AROUND; i++)
        while (of[0]->datagram->follow(of[0], &destination, &bytes))
            ;
    usleep(110000); /* events are looked for every tenth of a second */
    for (unsigned i = 0; i <= VERBS_LOOK_AROUND; i++)
        while (of[0]->datagram->follow(of[0], &destination, &bytes))
            ;
    cr_assert_eq(fake.event_count, 0);
}

/* A datagram over a rail; returns over which port it has come, from 1; 0: it has not. */
static unsigned small_over(unsigned end, unsigned rail)
{
    static uint8_t buffer[4096];
    struct nic_rx rx;
    memset(buffer, 0x5a, sizeof buffer);
    wire_set_header_length(buffer, WIRE_HEADER_BYTES);
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .mask = 1,
                           .destination = to[end][rail],
                           .datagram_bytes = SMALL_BYTES,
                           .last_bytes = SMALL_BYTES,
                           .token = 1,
                           .buffer = buffer};
    cr_assert(of[end]->datagram->send(of[end], &desc));
    of[end]->datagram->flush(of[end]);
    fake_run();
    if (of[!end]->datagram->poll(of[!end], &rx, 1) == 0)
        return 0;
    cr_assert_eq(rx.length, SMALL_BYTES);
    of[!end]->datagram->release(of[!end], &rx);
    return rx.nic;
}

/* ---- which ports ------------------------------------------------------------------------------- */

static void expect_ports(const char *hcas, unsigned max_nics, const char *expected)
{
    char text[64] = "";
    snprintf(params.ib_hca, sizeof params.ib_hca, "%s", hcas);
    params.max_nics = max_nics;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0, "%s", said);
    for (int i = 0; i < verbs_device_ops.device_count(nic); i++) {
        struct uccl_device device;
        union nic_address address;
        cr_assert_eq(verbs_device_ops.device(nic, i, &device, &address), 0);
        strcat(text, device.name + strlen("fake"));
    }
    cr_expect_str_eq(text, expected, "%s, UCCL_MAX_NICS=%u: %s", hcas, max_nics, text);
    cr_expect_eq(nic->ends != NULL, strlen(text) > 1);
    verbs_device_ops.close(nic);
}

Test(verbs_several, ports_that_are_used, .init = set_up)
{
    fake.device_count = 4;
    expect_ports("", 0, "0"); /* nobody knows how fast they are */
    expect_ports("", 3, "012");
    expect_ports("", 16, "0123");
    expect_ports("fake", 0, "0123"); /* asked for */
    expect_ports("fake", 2, "01");
    expect_ports("fake1,fake3", 0, "13");
    expect_ports("^fake1", 0, "0");
    fake.port.active_width = 2;
    fake.port.active_speed = 32;
    expect_ports("", 0, "0123");
    expect_ports("", 1, "0");
    expect_ports("^fake1", 0, "023");
    fake.down[2] = true;
    expect_ports("", 0, "013");
    fake.down[0] = true; /* the first one that works */
    expect_ports("", 0, "13");
}

/* ---- which reach which -------------------------------------------------------------------------- */

/* A port with the GID of a device. */
static void append_record(char device, struct nic_queue_address *address)
{
    struct verbs_address record = {.ethernet = true, .mode = VERBS_UC, .mtu_shift = 12, .prefix_bits = 24, .qpn = 100};
    fake_own_gid((unsigned)(device - '0'), record.gid);
    verbs_address_append(&record, address);
}

/* Our ports and those of a peer, each by the device whose GID it has; pairs as the client and as the server see them.
 */
static void expect_pairs(const char *ours, const char *theirs, const char *expected)
{
    char hcas[64] = "", text[64] = "";
    struct nic_queue_address address = {0};
    struct nic_pair pairs[8];
    for (const char *at = ours; *at; at++)
        sprintf(hcas + strlen(hcas), "%sfake%c", at == ours ? "" : ",", *at);
    snprintf(params.ib_hca, sizeof params.ib_hca, "%s", hcas);
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0, "%s", said);
    for (; *theirs; theirs++)
        append_record(*theirs, &address);
    unsigned count = verbs_pairs(nic, &address, true, pairs, 8);
    for (unsigned i = 0; i < count; i++)
        sprintf(text + strlen(text), "%s%u-%u", i ? " " : "", pairs[i].ours, pairs[i].theirs);
    cr_expect_str_eq(text, expected, "%s", text);
    verbs_device_ops.close(nic);
}

Test(verbs_several, ports_of_one_subnet_pair_up, .init = set_up)
{
    fake.device_count = 4;
    expect_pairs("01", "23", "0-0 1-1");
    expect_pairs("01", "32", "0-1 1-0");
    expect_pairs("01", "2", "0-0"); /* the other one's network is not theirs */
    expect_pairs("0", "23", "0-0");
    expect_pairs("02", "46", "0-0 1-1");           /* all in one */
    expect_pairs("012", "45", "0-0 1-1 2-0");      /* they take turns */
    expect_pairs("01", "2345", "0-0 1-1 0-2 1-3"); /* flow i begins with our port i, counted round */
    expect_pairs("01", "01", "0-0 1-1");           /* our own */
    expect_pairs("0", "1", "0-0");                 /* a router may lead there */
    struct nic_queue_address none = {.length = 5, .bytes = {NIC_ADDRESS_VERBS}};
    struct nic_pair pair;
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0);
    cr_assert_eq(verbs_pairs(nic, &none, true, &pair, 1), 0);
    verbs_device_ops.close(nic);
}

/* Both ends find the same pairs in the same order, since the first one's queue pairs are connected. */
Test(verbs_several, both_ends_find_the_same_pairs, .init = set_up, .fini = close_ends)
{
    static const char *const hcas[][2] = {{"fake0,fake1", "fake2,fake3"},
                                          {"fake0,fake1,fake2", "fake1,fake3"},
                                          {"fake0,fake1,fake2,fake3", "fake3"},
                                          {"fake0", "fake1,fake2,fake3"}};
    fake.device_count = 4;
    for (unsigned row = 0; row < 4; row++) {
        struct nic_queue_address address[2];
        struct nic_pair pairs[2][8];
        unsigned count[2];
        if (row)
            close_ends();
        for (unsigned end = 0; end < 2; end++) {
            open_end(end, hcas[row][end]);
            of[end]->ops->address(of[end], &address[end]);
        }
        for (unsigned end = 0; end < 2; end++)
            count[end] = verbs_pairs(ends[end], &address[!end], end == 0, pairs[end], 8);
        cr_assert_eq(count[0], count[1]);
        cr_assert_gt(count[0], 0);
        for (unsigned i = 0; i < count[0]; i++) {
            cr_assert_eq(pairs[0][i].ours, pairs[1][i].theirs, "row %u, pair %u", row, i);
            cr_assert_eq(pairs[0][i].theirs, pairs[1][i].ours);
        }
    }
}

/* However many the ports make, and whatever a stranger names: a grant has a key for so many. */
Test(verbs_several, no_more_pairs_than_grants_have_keys, .init = set_up)
{
    struct boot_offer offer = {.flow_count = 1};
    struct rail_plan rails[CORE_RAILS_MAX];
    struct nic_pair pairs[CORE_RAILS_MAX];
    fake.device_count = 4;
    snprintf(params.ib_hca, sizeof params.ib_hca, "fake0,fake1,fake2");
    cr_assert_eq(verbs_open_with(&fake_lib, &params, &nic), 0, "%s", said);
    for (const char *theirs = "4357"; *theirs; theirs++)
        append_record(*theirs, &offer.flows[0].address);
    cr_assert_eq(verbs_pairs(nic, &offer.flows[0].address, true, pairs, CORE_RAILS_MAX), 5);
    cr_assert_eq(rails_plan(nic, &host, &offer, true, rails), CORE_PAIRS_MAX);
    cr_assert_eq(rails_plan(nic, &host, &offer, false, rails), CORE_PAIRS_MAX);
    verbs_device_ops.close(nic);
}

/* ---- one queue ---------------------------------------------------------------------------------- */

Test(verbs_several, each_rail_has_its_port, .init = set_up_ends, .fini = close_ends)
{
    for (unsigned end = 0; end < 2; end++) {
        for (unsigned rail = 0; rail < RAILS; rail++) {
            cr_assert_eq(small_over(end, rail), rail + 1);
            cr_assert_eq(atomic_load(&of[end]->ends[rail].tx_datagrams), 1);
            cr_assert_eq(atomic_load(&of[end]->ends[rail].tx_bytes), SMALL_BYTES);
            cr_assert_eq(atomic_load(&of[!end]->ends[rail].rx_datagrams), 1);
            cr_assert_eq(atomic_load(&of[!end]->ends[rail].rx_bytes), SMALL_BYTES);
        }
    }
}

/* Where more has come than one look takes, no port waits for another. */
Test(verbs_several, ports_take_turns_to_be_heard, .init = set_up_ends, .fini = close_ends)
{
    static uint8_t buffer[4096];
    struct nic_rx rx;
    wire_set_header_length(buffer, WIRE_HEADER_BYTES);
    for (unsigned i = 0; i < 4 * RAILS; i++) {
        struct tx_desc desc = {.kind = TX_FRAMES,
                               .count = 1,
                               .mask = 1,
                               .destination = to[0][i % RAILS],
                               .datagram_bytes = SMALL_BYTES,
                               .last_bytes = SMALL_BYTES,
                               .token = 1,
                               .buffer = buffer};
        cr_assert(of[0]->datagram->send(of[0], &desc));
    }
    of[0]->datagram->flush(of[0]);
    fake_run();
    for (unsigned i = 0, last = 0; i < 4 * RAILS; i++) {
        cr_assert_eq(of[1]->datagram->poll(of[1], &rx, 1), 1);
        cr_assert_neq(rx.nic, last, "datagram %u", i);
        last = rx.nic;
        of[1]->datagram->release(of[1], &rx);
    }
}

/* A peer is told what the port with the least room takes, and the MTU of the smallest: its messages go by any. */
Test(verbs_several, room_is_that_of_the_least, .init = set_up_ends, .fini = close_ends)
{
    struct verbs_nic *nics = verbs_backend_of(ends[0])->nics;
    uint32_t whole = nics[0].datagram_bytes, bytes;
    uint64_t room = of[0]->ops->rx_bytes(of[0]);
    for (unsigned i = 0; i < RAILS; i++) {
        nics[i].datagram_bytes = 1024;
        cr_assert_lt(of[0]->ops->rx_bytes(of[0]), room, "port %u", i);
        nics[i].datagram_bytes = whole;
    }
    cr_assert_eq(of[0]->ops->rx_bytes(of[0]), room);
    cr_assert_eq(of[0]->datagram->route(of[0], &host, &bytes), 0);
    cr_assert_eq(bytes, whole);
}

/* Slots go back to where they came from: there are always some to receive into. */
Test(verbs_several, slots_go_back_to_their_port, .init = set_up_ends, .fini = close_ends)
{
    for (unsigned i = 0; i < VERBS_UD_RECEIVES + 100; i++)
        cr_assert_eq(small_over(0, SECOND_RAIL), SECOND_RAIL + 1, "datagram %u", i);
}

/* A key is of one device: the wrong one would be refused there, or be that of other memory. */
Test(verbs_several, registrations_have_a_key_per_port, .init = set_up_ends, .fini = close_ends)
{
    struct nic_mr mr[RAILS] = {{0}};
    for (unsigned i = 0; i < RAILS; i++) {
        cr_assert_eq(verbs_memory_ops.reg_mr(ends[1], i, target.bytes, sizeof target.bytes, &mr[i]), 0);
        cr_assert_eq(mr[i].nic, i);
        cr_assert_eq(((struct ibv_mr *)mr[i].handle)->context, verbs_backend_of(ends[1])->nics[i].context);
    }
    cr_assert_neq(mr[0].remote_key, mr[1].remote_key);
    cr_assert_eq(nic_placers(ends[1]), RAILS);
    for (unsigned i = 0; i < RAILS; i++)
        verbs_memory_ops.dereg_mr(ends[1], &mr[i]);
}

/* A data QP over a rail, and a write over it. */
Test(verbs_several, data_queue_pairs_are_on_the_port_of_their_rail, .init = set_up_ends, .fini = close_ends)
{
    struct nic_rx rx;
    struct nic_done done;
    struct nic_qp_event event;
    uint32_t number[2], psn[2];
    struct nic_qp_id id[2];
    for (unsigned end = 0; end < 2; end++) {
        id[end] = (struct nic_qp_id){
            .flow = (struct flow *)(uintptr_t)0x1000, .destination = to[end][SECOND_RAIL], .generation = 1};
        cr_assert_eq(of[end]->data_qp->open(of[end], &id[end], &number[end], &psn[end]), 0);
        cr_assert_eq(number[end] >> VERBS_QPN_BITS, SECOND_RAIL);
    }
    /* one that the peer has made on its other port, and one on a port that it does not have */
    said[0] = 0;
    cr_assert_eq(of[0]->data_qp->connect(of[0], &id[0], number[1] & 0xffffff, psn[1]), UCCL_EADDR);
    cr_assert_str_empty(said);
    cr_assert_eq(of[0]->data_qp->connect(of[0], &id[0], (number[1] & 0xffffff) | 2 << VERBS_QPN_BITS, 0), UCCL_EPROTO);
    for (unsigned end = 0; end < 2; end++)
        cr_assert_eq(of[end]->data_qp->connect(of[end], &id[end], number[!end], psn[!end]), 0);
    struct tx_desc desc = {.kind = TX_PLACE,
                           .count = 2,
                           .on_path = true,
                           .generation = 1,
                           .destination = to[0][SECOND_RAIL],
                           .bulk_msg = &source.core,
                           .place_bytes = 500,
                           .remote_address = (uintptr_t)target.bytes,
                           .remote_key = 3 * FAKE_KEY_DEVICE + 2, /* of device 3 */
                           .cookie = 77};
    source.bytes[999] = 0x77;
    cr_assert(of[0]->datagram->send(of[0], &desc));
    of[0]->datagram->flush(of[0]);
    fake_run();
    for (unsigned i = 0; i < desc.count; i++) {
        cr_assert_eq(of[1]->datagram->poll(of[1], &rx, 1), 1);
        cr_assert(rx.placed);
        cr_assert_eq(rx.nic, SECOND_RAIL + 1);
        of[1]->datagram->release(of[1], &rx);
    }
    cr_assert_eq(target.bytes[999], 0x77);
    cr_assert_eq(of[0]->data_qp->poll_done(of[0], &done, 1), 1);
    cr_assert_eq(done.cookie, 77);
    cr_assert_eq(atomic_load(&of[0]->ends[SECOND_RAIL].tx_bytes), 1000);
    cr_assert_eq(atomic_load(&of[0]->ends[SECOND_RAIL].tx_datagrams), 2);
    cr_assert_eq(atomic_load(&of[1]->ends[SECOND_RAIL].rx_bytes), 1000);
    cr_assert_eq(atomic_load(&of[1]->ends[SECOND_RAIL].rx_datagrams), 2);
    cr_assert_eq(atomic_load(&of[0]->ends[FIRST_RAIL].tx_bytes), 0);
    for (unsigned end = 0; end < 2; end++) {
        of[end]->data_qp->drain(of[end], &id[end]);
        uint64_t begin_ms = verbs_now_ms();
        while (!of[end]->data_qp->event(of[end], &event))
            cr_assert_lt(verbs_now_ms() - begin_ms, 5000);
        cr_assert(event.drained);
        cr_assert_eq(event.id.destination, to[end][SECOND_RAIL]);
        of[end]->data_qp->destroy(of[end], &event.id);
    }
}

/* ---- a port or a device is lost ----------------------------------------------------------------- */

static void expect_change(unsigned rail, bool up)
{
    struct nic_end_event event;
    cr_assert(ends[0]->ends->event(of[0], &event));
    cr_assert_eq(event.destination, to[0][rail]);
    cr_assert_eq(event.up, up);
    cr_assert(!ends[0]->ends->event(of[0], &event));
    cr_assert_eq(ends[0]->ends->up(ends[0], rail), up);
    cr_assert(ends[0]->ends->up(ends[0], !rail));
}

Test(verbs_several, port_that_goes_down, .init = set_up_ends, .fini = close_ends)
{
    struct nic_end_event event;
    for (unsigned rail = 0; rail < RAILS; rail++) {
        struct ibv_async_event told = {.event_type = IBV_EVENT_PORT_ERR, .element.port_num = 1};
        cr_assert(!ends[0]->ends->event(of[0], &event));
        fake.down[rail] = true;
        happens(rail, told);
        expect_change(rail, false);
        cr_assert_eq(small_over(0, !rail), !rail + 1u, "the other one goes on");
        fake.down[rail] = false;
        told.event_type = IBV_EVENT_PORT_ACTIVE;
        happens(rail, told);
        expect_change(rail, true);
    }
}

Test(verbs_several, device_that_is_removed, .init = set_up_ends, .fini = close_ends)
{
    struct ibv_async_event removed = {.event_type = IBV_EVENT_DEVICE_FATAL};
    happens(0, removed);
    expect_change(0, false);
    cr_assert_not_null(strstr(said, "fake0"));
    cr_assert_eq(nic_failure(of[0]), 0, "the other one works");
    cr_assert_eq(small_over(0, SECOND_RAIL), SECOND_RAIL + 1);
    uint64_t begin_ms = verbs_now_ms();
    sleep_in(of[0], 30 * 1000000);
    cr_assert_geq(verbs_now_ms() - begin_ms, 29, "nothing keeps the thread awake");
    cr_assert_eq(small_over(1, FIRST_RAIL), 0, "an ack would hold the peer at a way that nobody looks at");
    cr_assert_eq(small_over(1, SECOND_RAIL), SECOND_RAIL + 1);
    struct nic_queue_address address;
    uint32_t destination, bytes;
    host.nic = 1;
    of[1]->ops->address(of[1], &address);
    cr_assert_eq(of[0]->datagram->peer_add(of[0], &host, &address, &destination, &bytes), UCCL_EIO);
    happens(1, removed);
    cr_assert_eq(nic_failure(of[0]), UCCL_EIO, "none is left");
}

/* One sleep for all: what comes by any port meanwhile ends it, and so does wake(). */
Test(verbs_several, sleeps_once_for_all_ports, .init = set_up_ends, .fini = close_ends, .timeout = 30)
{
    struct nic_rx rx;
    for (unsigned rail = 0; rail < RAILS; rail++) {
        struct tx_desc desc = {.kind = TX_FRAMES, .count = 1, .mask = 1, .destination = to[1][rail], .token = 1};
        static uint8_t buffer[SMALL_BYTES];
        uint64_t timeout_ns = UINT64_MAX;
        wire_set_header_length(buffer, WIRE_HEADER_BYTES);
        desc.buffer = buffer;
        desc.datagram_bytes = desc.last_bytes = SMALL_BYTES;
        int beside_fd = nic_watch(of[0], &timeout_ns);
        cr_assert_gt(timeout_ns, 0);
        cr_assert(of[1]->datagram->send(of[1], &desc));
        of[1]->datagram->flush(of[1]);
        fake_run();
        of[0]->ops->wait(of[0], beside_fd, timeout_ns);
        cr_assert_eq(of[0]->datagram->poll(of[0], &rx, 1), 1);
        cr_assert_eq(rx.nic, rail + 1);
        of[0]->datagram->release(of[0], &rx);
    }
    of[0]->ops->wake(of[0]);
    sleep_in(of[0], UINT64_MAX);
}

/* What the network nearby says: bits of pairs. One that works will do. */
Test(verbs_several, ways_that_are_closed, .init = set_up_ends, .fini = close_ends)
{
    struct nic_queue_address address;
    const struct nic_way_ops *ways = ends[0]->ways;
    _Atomic bool stop = false;
    uint32_t closed;
    of[1]->ops->address(of[1], &address);
    cr_assert_eq(ways->ask(ends[0], &address, true, &stop, &closed), 0);
    cr_assert_eq(closed, 0);
    fake.handle_errno = ETIMEDOUT;
    cr_assert_eq(ways->ask(ends[0], &address, true, &stop, &closed), UCCL_EADDR);
    cr_assert_eq(closed, 3);
    cr_assert_eq(fake.handles_refused, 2);
    for (unsigned device = 0; device < 2; device++) {
        fake.handle_device = device + 1; /* for this port alone */
        cr_assert_eq(ways->ask(ends[0], &address, device, &stop, &closed), 0);
        cr_assert_eq(closed, 1u << device);
    }
    stop = true;
    fake.handles_refused = 0;
    ways->ask(ends[0], &address, true, &stop, &closed);
    cr_assert_eq(fake.handles_refused, 0);
    fake.handle_errno = 0;
}

/* All queues of an engine have the same ports: whoever says otherwise could let us ask for any number of them. */
Test(verbs_several, queues_of_the_same_ports, .init = set_up_ends, .fini = close_ends)
{
    struct nic_queue_address address, other;
    const struct nic_way_ops *ways = ends[0]->ways;
    of[1]->ops->address(of[1], &address);
    other = address;
    other.bytes[VERBS_ADDRESS_BYTES + 8]++; /* another queue pair */
    cr_assert(ways->same(&address, &other));
    other.bytes[2 * VERBS_ADDRESS_BYTES - 1]++;
    cr_assert(!ways->same(&address, &other));
    other = address;
    other.length -= VERBS_ADDRESS_BYTES;
    cr_assert(!ways->same(&address, &other));
}
