/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a chunk costs, to be counted by callgrind (bench/verbs_cost.sh): two engine threads' worth of core and
 * verbs backend on a device of plain memory, in one thread and in virtual time, send each other
 * messages of 1 MiB. The device moves no payload, so that what is left is the engine's own code.
 *
 *     verbs_cost uc|rc|ud MESSAGES        prints the number of chunks
 */
#include <stdio.h>
#define FAKE_REQUIRE(condition)                                                                                        \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "verbs_cost: %s\n", #condition);                                                           \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#include "../tests/param_defaults.h"
#include "../tests/unit/fake_verbs.h"

#include "base/clock.h"
#include "thread/crc32c_hw.h"
#include "thread/data_qps.h"

enum { WINDOW = 8, MESSAGE_BYTES = 1 << 20, ROUND_NS = 2000, RX_BATCH = 8 };

struct message {
    struct core_msg core;
    bool busy;
};

static struct params params;
static struct nic *nic;
static struct engine_thread threads[2];
static struct flow *flows[2];
static struct conn *conns[2];
static struct message messages[2][WINDOW];
static uint8_t payload_bytes[MESSAGE_BYTES];
static uint64_t now_ns = 1000000000;
static unsigned delivered;

/* In place of the machine's. */
uint64_t clock_now_ns(void)
{
    return now_ns;
}

static const void *payload(const struct core_msg *msg, uint64_t offset)
{
    (void)msg;
    return payload_bytes + offset;
}

static uint64_t local(const struct core_msg *msg, uint64_t offset, unsigned nic_index, uint32_t *key)
{
    (void)nic_index;
    *key = 1;
    return (uintptr_t)payload(msg, offset);
}

static void *zeroed(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    FAKE_REQUIRE(memory);
    return memset(memory, 0, bytes);
}

static void open_thread(unsigned side)
{
    struct engine_thread *thread = &threads[side];
    thread->params = &params;
    thread->counters = zeroed(sizeof *thread->counters);
    thread->core = core_init(zeroed(core_size(&params)),
                             &(struct core_setup){.params = &params,
                                                  .counters = thread->counters,
                                                  .crc32c = crc32c_best(),
                                                  .seed = side + 1,
                                                  .paths_in_order = true,
                                                  .places_reliably = nic->caps.reliable,
                                                  .places_in_order = true},
                             now_ns);
    struct nic_queue_setup setup = {.params = &params,
                                    .counters = thread->counters,
                                    .crc32c = crc32c_best(),
                                    .payload = payload,
                                    .local = local,
                                    .index = side};
    FAKE_REQUIRE(nic->ops->queue_open(nic, &setup, &thread->queue) == 0);
}

static void open_flow(unsigned side)
{
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct engine_thread *thread = &threads[side];
    struct nic_queue_address address;
    struct flow_setup setup = {.rx_token = core_make_token(77 + side, 1),
                               .tx_token = core_make_token(78 - side, 1),
                               .chunk_window = 1024,
                               .msg_window = 64,
                               .eager_window_kb = 128,
                               .features = WIRE_FEATURES,
                               .rx_window_bytes = thread->queue->ops->rx_bytes(thread->queue)};
    setup.tx_window_bytes = setup.rx_window_bytes;
    threads[1 - side].queue->ops->address(threads[1 - side].queue, &address);
    FAKE_REQUIRE(thread->queue->datagram->peer_add(thread->queue, &host, &address, &setup.rails[0].destination,
                                                   &setup.rails[0].datagram_bytes) == 0);
    setup.places = thread->queue->data_qp && thread->queue->data_qp->places(thread->queue, &address);
    flows[side] = core_flow_open(thread->core, zeroed(core_flow_size(&params, &setup)), &setup, now_ns);
    conns[side] =
        core_conn_open(thread->core, zeroed(core_conn_size(&setup)), flows[side], &setup, 1, 1, &conns[side], now_ns);
}

static void receive(struct engine_thread *thread)
{
    struct nic_rx received[RX_BATCH];
    struct core_copy copy;
    unsigned count = thread->queue->datagram->poll(thread->queue, received, RX_BATCH);
    for (unsigned i = 0; i < count; i++) {
        if (received[i].flow)
            data_qps_receive(thread, &received[i], now_ns);
        else
            core_rx(thread->core, received[i].data, received[i].length, false, now_ns);
        while (core_next_copy(thread->core, &copy)) /* the device moves nothing, nor do we */
            ;
        thread->queue->datagram->release(thread->queue, &received[i]);
    }
}

static void run_round(unsigned side)
{
    struct engine_thread *thread = &threads[side];
    struct core_event event;
    struct tx_desc desc;
    receive(thread);
    if (thread->queue->data_qp)
        data_qps_finish(thread);
    core_expire(thread->core, now_ns);
    unsigned sent = 0;
    while (sent < NIC_TX_BATCH && core_tx(thread->core, &desc, now_ns)) {
        FAKE_REQUIRE(thread->queue->datagram->send(thread->queue, &desc));
        sent++;
    }
    if (sent)
        thread->queue->datagram->flush(thread->queue);
    data_qps_act(thread);
    while (core_next_event(thread->core, &event)) {
        FAKE_REQUIRE(event.kind == CORE_EVENT_MSG && event.status == UCCL_OK);
        ((struct message *)event.msg)->busy = false;
        delivered += side;
    }
}

/* Keeps the window full. */
static void post(unsigned side, unsigned *left)
{
    for (unsigned i = 0; i < WINDOW && *left; i++) {
        struct message *message = &messages[side][i];
        if (message->busy)
            continue;
        *message = (struct message){.busy = true};
        message->core.kind = side ? CORE_RECV : CORE_SEND;
        message->core.size_bytes = MESSAGE_BYTES;
        message->core.placeable = true;
        message->core.grant_address = (uintptr_t)payload_bytes;
        message->core.grant_keys[0] = 2;
        core_submit(threads[side].core, conns[side], &message->core, now_ns);
        --*left;
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: verbs_cost uc|rc|ud MESSAGES (bench/verbs_cost.sh counts its instructions)\n");
        return 64;
    }
    unsigned count = (unsigned)atoi(argv[2]), left[2] = {count, count};
    params = param_defaults();
    params.backend = BACKEND_VERBS;
    params.udmode = strcmp(argv[1], "ud") == 0;
    params.rcmode = strcmp(argv[1], "rc") == 0;
    fake_reset();
    fake.moves_nothing = true;
    FAKE_REQUIRE(verbs_open_with(&fake_lib, &params, &nic) == 0);
    for (unsigned side = 0; side < 2; side++)
        open_thread(side);
    for (unsigned side = 0; side < 2; side++)
        open_flow(side);
    while (delivered < count) {
        for (unsigned side = 0; side < 2; side++) {
            post(side, &left[side]);
            run_round(side);
            fake_run();
        }
        now_ns += ROUND_NS;
    }
    printf("%lu chunks, %lu placed, %lu acks\n", (unsigned long)threads[0].counters->tx_chunks,
           (unsigned long)threads[0].counters->tx_placed, (unsigned long)threads[1].counters->tx_acks);
    return 0;
}
