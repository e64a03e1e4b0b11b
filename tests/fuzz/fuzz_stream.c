/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a TCP connection from anywhere, greeting and records. However the kernel cuts the stream, the same
 * records come out of it, and each is as long as its prefix says.
 *
 * Input: path, bytes per read (0: all at once), whether bulk has a place, then the stream.
 */
#include "nic/tcp/tcp.h"

#include "base/log.h"
#include "core/crc32c.h"
#include "require.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct params params = {.port_entropy = 2, .dead_peer_ms = 10000, .connect_ms = 10000};
static struct counters counters;
static struct nic *nic;
static struct tcp_queue *queue;
static uint32_t destination;
static bool placed;
static uint8_t memory[RECORD_BULK_MAX];

static void *target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    (void)owner;
    require(length == stride && length <= RECORD_BULK_MAX && wire_is_bulk(header, length));
    *count = placed;
    return placed ? memory : NULL;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    struct nic_queue *base;
    struct nic_queue_address address = {4, {NIC_ADDRESS_TCP, 1, 1, 1}};
    struct nic_host host = {.address.v4 = {.sin_family = AF_INET}};
    uint32_t bytes;
    (void)argc;
    (void)argv;
    log_set_level(UCCL_LOG_NONE);
    require(tcp_device_ops.open(&params, &nic) == 0);
    require(tcp_device_ops.queue_open(
                nic,
                &(struct nic_queue_setup){
                    .params = &params, .counters = &counters, .crc32c = crc32c_portable, .kept_target = target},
                &base) == 0);
    queue = tcp_queue_of(base);
    require(tcp_datagram_ops.peer_add(base, &host, &address, &destination, &bytes) == 0);
    return 0;
}

/* What came out of a stream: a hash of all records, and their number. */
struct outcome {
    uint64_t hash;
    unsigned records;
    bool broken;
};

static uint64_t mix(uint64_t hash, const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    return hash ^ length;
}

static void take(struct outcome *outcome)
{
    struct nic_rx rx[8];
    unsigned count;
    do {
        count = tcp_datagram_ops.poll(&queue->base, rx, 8);
        for (unsigned i = 0; i < count; i++) {
            require(rx[i].length >= WIRE_HEADER_BYTES && rx[i].length <= RECORD_BULK_MAX);
            require(rx[i].length == rx[i].stride);
            bool bulk = wire_is_bulk(rx[i].data, rx[i].length);
            size_t header = bulk ? WIRE_BULK_HEADER_BYTES : rx[i].length;
            require(bulk || !rx[i].in_place);
            outcome->hash = mix(outcome->hash, rx[i].data, header);
            outcome->hash =
                mix(outcome->hash, rx[i].in_place ? rx[i].payload : rx[i].data + header, rx[i].length - header);
            outcome->records++;
        }
    } while (count || queue->ready.head);
}

static struct outcome play(uint16_t path, size_t step, const uint8_t *stream, size_t length)
{
    struct tcp_conn *conn = tcp_conn_of(queue, destination, path);
    struct outcome outcome = {.hash = 1};
    int fds[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
    conn->fd = fds[0];
    conn->state = TCP_UP;
    for (size_t at = 0; at < length && conn->state == TCP_UP; at += step) {
        size_t bytes = length - at < step ? length - at : step;
        require(write(fds[1], stream + at, bytes) == (ssize_t)bytes);
        conn->readable = true;
        queue_append(&queue->ready, &conn->ready);
        take(&outcome);
    }
    outcome.broken = conn->state != TCP_UP;
    if (!outcome.broken)
        tcp_break(queue, conn, "the input has ended");
    queue_remove(&queue->events, &conn->event);
    conn->broken_due = conn->room_due = false;
    close(fds[1]);
    return outcome;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct greeting greeting;
    uint8_t again[GREETING_BYTES];
    if (size < 3)
        return 0;
    const uint8_t *stream = data + 3;
    size_t length = size - 3, step = data[1] ? data[1] : length;
    placed = data[2] & 1;
    if (length == 0)
        return 0;
    if (length >= GREETING_BYTES && greeting_take(stream, &greeting)) {
        greeting_put(again, &greeting, 7);
        require(memcmp(again, stream, 24) == 0);
        require(greeting_proves(again, greeting.token, 7));
        require(!greeting_proves(again, greeting.token, 8));
    }
    struct outcome whole = play(data[0] & 1, length, stream, length);
    struct outcome cut = play(data[0] & 1, step, stream, length);
    struct outcome other = play(!(data[0] & 1), step, stream, length);
    require(whole.hash == cut.hash && whole.records == cut.records && whole.broken == cut.broken);
    require(whole.hash == other.hash && whole.records == other.records && whole.broken == other.broken);
    return 0;
}
