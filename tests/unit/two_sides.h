/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines in one process, each of which is told from the other by who acts (failing.h), for tests of what happens
 * to both when something goes wrong at one.
 */
#ifndef UCCL_TEST_TWO_SIDES_H
#define UCCL_TEST_TWO_SIDES_H

#include "api_pair.h"
#include "failing.h"

#include "../../api/objects.h"

/* Sets of codes. In a row those that must be seen, and in the upper half those that may be. */
typedef uint32_t codes;
#define ONE(code) ((codes)1 << -(code))
#define MAY(codes) ((codes) << 16)

/* How engines are driven. */
enum mode { LENT, THREADS, RING };
static const struct {
    const char *name, *lend, *io;
} modes[] = {{"lent", "yes", "mmsg"}, {"threads", "no", "mmsg"}, {"ring", "no", "uring"}};

#define EACH_MODE(suite, name)                                                                                         \
    static void name(enum mode mode);                                                                                  \
    Test(suite, name##_lent)                                                                                           \
    {                                                                                                                  \
        name(LENT);                                                                                                    \
    }                                                                                                                  \
    Test(suite, name##_threads)                                                                                        \
    {                                                                                                                  \
        name(THREADS);                                                                                                 \
    }                                                                                                                  \
    Test(suite, name##_ring)                                                                                           \
    {                                                                                                                  \
        name(RING);                                                                                                    \
    }                                                                                                                  \
    static void name(enum mode mode)

/* ---- two engines ----------------------------------------------------------------------------- */

struct world {
    uccl_engine *engine[2]; /* client, server */
    uccl_listener *listener;
    struct uccl_handle handle;
    uccl_conn *conn[2];
    codes accepts; /* what the accepts ended with, but "none yet" */
};

/* of what is opened from now on */
static const char *backend = "auto", *dead_peer_ms = "10000", *linger_ms = "300";

static inline int try_open(enum mode mode, enum side side, uccl_engine **out)
{
    const char *const settings[][2] = {{"SOCKET_IFNAME", "lo"},        {"CONNECT_MS", "2000"}, {"LINGER_MS", linger_ms},
                                       {"DEAD_PEER_MS", dead_peer_ms}, {"NUM_ENGINES", "2"},   {"PORT_ENTROPY", "2"},
                                       {"MAX_REQUESTS", "64"},         {"PIN", "0"},           {"SPIN_US", "20"}};
    uccl_config *config;
    IS(uccl_config_create(&config), 0);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        IS(uccl_config_set(config, settings[i][0], settings[i][1]), 0);
    IS(uccl_config_set(config, "BACKEND", backend), 0);
    IS(uccl_config_set(config, "LEND", modes[mode].lend), 0);
    IS(uccl_config_set(config, "UDP_IO", modes[mode].io), 0);
    acting = side;
    int error = uccl_open(config, out);
    acting = NOBODY;
    uccl_config_destroy(config);
    return error;
}

/* False: this machine cannot. */
static inline bool can(enum mode mode)
{
    uccl_engine *engine;
    int error = try_open(mode, NOBODY, &engine);
    if (!error)
        IS(uccl_close(engine), 0);
    cr_assert(error == 0 || mode == RING);
    return error == 0;
}

/* Of each test; skips it where this machine cannot. */
static inline void begin(enum mode mode)
{
    uccl_set_log(log_nothing, NULL);
    if (!can(mode))
        cr_skip_test("no io_uring");
}

static inline void open_world(struct world *world, enum mode mode)
{
    *world = (struct world){0};
    IS(try_open(mode, CLIENT, &world->engine[0]), 0);
    IS(try_open(mode, SERVER, &world->engine[1]), 0);
    IS(uccl_listen(world->engine[1], 0, 0, &world->handle, &world->listener), 0);
}

static inline void close_world(struct world *world)
{
    for (int i = 0; i < 2; i++)
        IS(uccl_close(world->engine[i]), 0);
}

/* As connect_now(), but each side acts for itself. */
static inline int connect_sides(struct world *world)
{
    int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
    uint64_t end_ms = now_ms() + SOON_MS;
    unsigned looks = 0;
    world->conn[0] = world->conn[1] = NULL;
    world->accepts = 0;
    while (connected == UCCL_EAGAIN || accepted == UCCL_EAGAIN) {
        acting = CLIENT;
        if (connected == UCCL_EAGAIN)
            connected = uccl_connect(world->engine[0], &world->handle, 0, &world->conn[0]);
        acting = SERVER;
        if (accepted == UCCL_EAGAIN)
            accepted = uccl_accept(world->listener, 1, &world->conn[1]);
        acting = NOBODY;
        if (accepted != UCCL_ETIMEDOUT)
            world->accepts |= ONE(accepted);
        if (accepted != 0)
            accepted = UCCL_EAGAIN; /* the same client may be accepted later */
        if (connected != UCCL_EAGAIN && ++looks == 15)
            break; /* the server's half has failed, READY or not */
        cr_assert(now_ms() < end_ms, "connect %d, accept %d", connected, accepted);
    }
    cr_assert((connected == 0) == (world->conn[0] != NULL), "an output although it failed, or none");
    return connected;
}

static inline void connect_well(struct world *world)
{
    IS(connect_sides(world), 0);
    cr_assert_not_null(world->conn[1]);
}

/* begin(), and what is held once that is taken which is taken once per process. */
static inline struct held held_when_warm(enum mode mode)
{
    struct world warm;
    begin(mode);
    open_world(&warm, mode);
    connect_well(&warm);
    close_world(&warm);
    return held_now();
}

static inline void transfer(struct world *world, unsigned number)
{
    for (int from = 0; from < 2; from++) {
        acting = from ? CLIENT : SERVER; /* the one that waits first */
        exchange(world->conn[from], world->conn[!from], 3000, number);
        exchange(world->conn[from], world->conn[!from], 200000, number + 1);
        acting = NOBODY;
    }
}

static inline void close_conns(struct world *world)
{
    for (int i = 0; i < 2; i++) {
        if (world->conn[i])
            IS(uccl_conn_abort(world->conn[i]), 0);
        world->conn[i] = NULL;
    }
}

/* Both ways at once, small and large: many times as much as one window. The side waits for its own requests. */
static inline void messages(struct world *world, unsigned number, int status[2])
{
    enum { SIZES = 3 };
    static const size_t sizes[SIZES] = {900, 70000, 500000};
    static uint8_t sent[2][SIZES][500000], received[2][SIZES][500000];
    uccl_request *requests[2][2][SIZES];
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < SIZES; i++) {
            fill(sent[side][i], sizes[i], number + (unsigned)(side * SIZES + i));
            memset(received[side][i], 0, sizes[i]);
            requests[side][0][i] = post_recv(world->conn[side], received[side][i], sizes[i]);
            requests[side][1][i] = post_send(world->conn[side], sent[side][i], sizes[i]);
        }
    }
    for (int side = 0; side < 2; side++) {
        acting = side ? SERVER : CLIENT;
        status[side] = 0;
        for (int i = 0; i < 2 * SIZES; i++) {
            size_t bytes = 0;
            int result = uccl_wait(requests[side][i / SIZES][i % SIZES], SOON_MS, &bytes);
            cr_assert(result != UCCL_ETIMEDOUT, "a request does not end");
            cr_assert(bytes == (result ? 0 : sizes[i % SIZES]) || (result && bytes <= sizes[i % SIZES]));
            status[side] = status[side] ? status[side] : result;
        }
        acting = NOBODY;
    }
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < SIZES && !status[side]; i++)
            check(received[side][i], sizes[i], number + (unsigned)(!side * SIZES + i));
    }
}

#endif
