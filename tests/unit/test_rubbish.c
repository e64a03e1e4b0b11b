/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rubbish to the data ports of an engine, from a stranger and from one who knows a token: nothing is answered, each
 * datagram is counted, and the engine goes on hearing its peer, whichever way it receives.
 */
#include "two_sides.h"

#include "core/rng.h"
#include "core/wire.h"
#include "nic/udp/udp.h"

#include <netinet/udp.h>

enum { DATAGRAM_MAX = 65507, AT_ONCE = 16, TOKEN_AT = 8 };

TestSuite(rubbish, .timeout = 4 * TIMEOUT_S);

enum token { NO_TOKEN, RIGHT, WRONG };

static const struct row {
    const char *name;
    uint32_t bytes, segment; /* 0: one datagram */
    enum token token;
    bool version; /* it begins like a packet */
    bool zeros;   /* else random bytes */
} rows[] = {
    {"nothing", 0, 0, NO_TOKEN, false, false},
    {"a byte", 1, 0, NO_TOKEN, false, false},
    {"less than a header", WIRE_HEADER_BYTES - 1, 0, RIGHT, true, false},
    {"a header of noise", WIRE_HEADER_BYTES, 0, NO_TOKEN, false, false},
    {"zeros", 1472, 0, NO_TOKEN, false, true},
    {"noise", 1472, 0, NO_TOKEN, false, false},
    {"noise of a jumbo frame", 8972, 0, NO_TOKEN, false, false},
    {"all that a datagram holds", DATAGRAM_MAX, 0, NO_TOKEN, false, false},
    {"a wrong token", 200, 0, WRONG, true, false},
    {"a right token, and noise", 200, 0, RIGHT, true, false},
    {"a right token, and a header of noise", WIRE_HEADER_BYTES, 0, RIGHT, true, false},
    {"a right token, and zeros", 1472, 0, RIGHT, true, true},
    {"a right token, and all that a datagram holds", DATAGRAM_MAX, 0, RIGHT, true, false},
    {"a train of noise", 40 * 100, 100, NO_TOKEN, false, false},
    {"a train of jumbo frames of noise", 7 * 8972 - 1000, 8972, NO_TOKEN, false, false},
    {"a train that begins with a right token", 30 * 1000, 1000, RIGHT, true, false},
    {"bytes, one each", 50, 1, NO_TOKEN, false, false},
};

struct stranger {
    int fd;
    struct rng rng;
    struct sockaddr_in to;
    uint64_t token; /* of the flow on that thread */
    bool segments;
};

static void aim(struct stranger *stranger, const struct uccl_engine *victim, unsigned thread)
{
    const struct udp_queue *queue = udp_queue_of(victim->threads[thread].queue);
    *stranger = (struct stranger){.fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
    cr_assert_geq(stranger->fd, 0);
    stranger->rng = (struct rng){queue->ports[0]};
    stranger->to = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons(queue->ports[0]), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    stranger->token = victim->peers.peers->flows[thread].setup.rx_token;
    stranger->segments = queue->gso;
}

/* Returns how many datagrams with bytes in them have left. */
static unsigned throw(struct stranger * stranger, const struct row *row)
{
    static _Thread_local uint8_t bytes[DATAGRAM_MAX];
    int segment = (int)row->segment;
    if (row->segment && !stranger->segments)
        return 0;
    for (uint32_t i = 0; i < row->bytes; i++)
        bytes[i] = row->zeros ? 0 : (uint8_t)rng_next(&stranger->rng);
    if (!row->version && row->bytes)
        bytes[0] = WIRE_VERSION + 1;
    if (row->version) {
        uint64_t token = stranger->token ^ (row->token == WRONG);
        bytes[0] = WIRE_VERSION;
        for (uint32_t i = 0; i < 8; i++)
            bytes[TOKEN_AT + i] = (uint8_t)(token >> 8 * i);
        cr_assert(row->bytes < WIRE_HEADER_BYTES || wire_token(bytes, row->bytes) == token);
    }
    cr_assert_eq(setsockopt(stranger->fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment), 0);
    ssize_t sent = sendto(stranger->fd, bytes, row->bytes, 0, (struct sockaddr *)&stranger->to, sizeof stranger->to);
    cr_assert_eq(sent, row->bytes, "%s: %s", row->name, strerror(errno));
    return row->segment ? (row->bytes + row->segment - 1) / row->segment : row->bytes > 0;
}

/* One row to one port: each datagram is counted once, and none is answered. */
static void check_row(const struct uccl_engine *victim, struct stranger *stranger, const struct row *row)
{
    uint64_t begin = counter_of(victim, "rx_strangers") + counter_of(victim, "rx_malformed");
    uint64_t drops = counter_of(victim, "rx_kernel_drops");
    uint64_t thrown = 0, counted, end_ms = now_ms() + SOON_MS;
    for (unsigned i = 0; i < (row->bytes > 10000 ? 2 : AT_ONCE); i++)
        thrown += throw(stranger, row);
    do {
        sleep_us(300);
        counted = counter_of(victim, "rx_strangers") + counter_of(victim, "rx_malformed") - begin;
        cr_assert(now_ms() < end_ms, "%s: %lu of %lu are counted", row->name, (unsigned long)counted,
                  (unsigned long)thrown);
    } while (counted + counter_of(victim, "rx_kernel_drops") - drops < thrown);
    cr_assert_leq(counted, thrown, "%s: %lu of %lu are counted", row->name, (unsigned long)counted,
                  (unsigned long)thrown);
    struct pollfd answer = {.fd = stranger->fd, .events = POLLIN};
    cr_assert_eq(poll(&answer, 1, 0), 0, "%s is answered", row->name);
}

EACH_MODE(rubbish, thrown)
{
    begin(mode);
    struct world world;
    int status[2];
    open_world(&world, mode);
    connect_well(&world);
    for (int side = 0; side < 2; side++) {
        for (unsigned thread = 0; thread < world.engine[side]->thread_count; thread++) {
            struct stranger stranger;
            aim(&stranger, world.engine[side], thread);
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                check_row(world.engine[side], &stranger, &rows[i]);
                if (i % 4 == 0)
                    transfer(&world, (unsigned)i);
            }
            close(stranger.fd);
        }
    }
    messages(&world, 1, status);
    cr_assert(status[0] == 0 && status[1] == 0, "%d, %d", status[0], status[1]);
    IS(uccl_conn_status(world.conn[0]), 0);
    IS(uccl_conn_status(world.conn[1]), 0);
    close_world(&world);
}

/* ---- while messages are under way ------------------------------------------------------------ */

struct thrower {
    struct stranger stranger;
    _Atomic bool stop;
    pthread_t thread;
};

static void *throw_all(void *argument)
{
    struct thrower *thrower = argument;
    for (size_t i = 0; !atomic_load(&thrower->stop); i++) {
        throw(&thrower->stranger, &rows[i % (sizeof rows / sizeof *rows)]);
        if (i % 8 == 0)
            sleep_us(200);
    }
    return NULL;
}

EACH_MODE(rubbish, among_messages)
{
    begin(mode);
    struct world world;
    int status[2];
    open_world(&world, mode);
    connect_well(&world);
    for (int side = 0; side < 2; side++) {
        struct thrower thrower = {.stop = false};
        aim(&thrower.stranger, world.engine[side], 0);
        cr_assert_eq(pthread_create(&thrower.thread, NULL, throw_all, &thrower), 0);
        for (unsigned i = 0; i < 8; i++) {
            messages(&world, i, status);
            cr_assert(status[0] == 0 && status[1] == 0, "%d, %d", status[0], status[1]);
        }
        atomic_store(&thrower.stop, true);
        pthread_join(thrower.thread, NULL);
        close(thrower.stranger.fd);
    }
    close_world(&world);
}
