/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of staged messages share: two engines in one process, and messages between host memory and that
 * of the fake device. A CPU access to that is a crash, copies end late and out of order, and GPU calls from the
 * test's own thread, which lends and drives the engine otherwise, abort.
 */
#ifndef UCCL_TEST_STAGE_PAIR_H
#define UCCL_TEST_STAGE_PAIR_H

#include "api_pair.h"

#include "../fake/fake_device.h"

enum { MAX_BYTES = 3 * 1024 * 1024, GUARD = 64 };

/* Memory of a message: on the device or the host, registered. */
struct side {
    bool device;
    uint8_t *memory;
    uccl_mr *mr;
};

static struct pair pair;
static uint8_t shadow[MAX_BYTES + 2 * GUARD];

static inline struct side side_make(uccl_engine *engine, bool device, size_t length)
{
    struct side side = {.device = device};
    side.memory = device ? fake_alloc(length, 3) : malloc(length);
    IS(uccl_reg_mr(engine, side.memory, length, UCCL_MEM_AUTO, &side.mr), 0);
    return side;
}

static inline void side_free(struct side *side)
{
    IS(uccl_dereg_mr(side->mr), 0);
    if (side->device)
        fake_free(side->memory);
    else
        free(side->memory);
}

static inline void sides_free(struct side *from, struct side *to)
{
    side_free(from);
    side_free(to);
}

static inline void side_write(const struct side *side, size_t at, const void *from, size_t length)
{
    if (side->device)
        fake_write(side->memory + at, from, length);
    else
        memcpy(side->memory + at, from, length);
}

static inline void side_read(const struct side *side, size_t at, void *to, size_t length)
{
    if (side->device)
        fake_read(to, side->memory + at, length);
    else
        memcpy(to, side->memory + at, length);
}

static inline uint64_t counter(int engine, const char *name)
{
    return counter_of(pair.engine[engine], name);
}

/* Settings for both engines. Ends with NULL. */
static inline void stage_open_pair(const char *lend, const char *block_kb, const char *blocks, const char *io,
                                   const char *threads)
{
    mem_set_test_kind(&fake_ops);
    fake_forbid_this_thread();
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine(lend, "LINGER_MS", "300", "GPU_BLOCK_KB", block_kb, "GPU_BLOCKS", blocks, "UDP_IO",
                                     io, "NUM_ENGINES", threads, "DEAD_PEER_MS", "2000", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
}

static inline void stage_close_pair(void)
{
    pair_close(&pair);
    cr_assert_eq(fake.stages, 0, "device streams are left open");
    for (unsigned i = 0; i < sizeof fake.pins / sizeof fake.pins[0]; i++)
        cr_assert_null(fake.pins[i].memory, "host memory is left pinned");
}

/* One message from `offset[0]` of one memory to `offset[1]` of the other, which is `slack` larger. */
static inline void one_message(const bool device[2], size_t length, const size_t offset[2], size_t slack,
                               unsigned number)
{
    struct side from = side_make(pair.engine[0], device[0], offset[0] + length + GUARD);
    struct side to = side_make(pair.engine[1], device[1], offset[1] + length + slack + GUARD);
    uccl_request *send, *recv;
    fill(shadow, length, number);
    side_write(&from, offset[0], shadow, length);
    memset(shadow, 0x5a, offset[1] + length + slack + GUARD);
    side_write(&to, 0, shadow, offset[1] + length + slack + GUARD);
    IS(uccl_recv_async(pair.conn[1], to.memory + offset[1], length + slack, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory + offset[0], length, from.mr, &send), 0);
    cr_assert_eq(end_of(recv, 0), length);
    cr_assert_eq(end_of(send, 0), length);
    side_read(&to, 0, shadow, offset[1] + length + slack + GUARD);
    check(shadow + offset[1], length, number);
    for (size_t i = 0; i < offset[1] + length + slack + GUARD; i++)
        cr_assert(shadow[i] == 0x5a || (i >= offset[1] && i < offset[1] + length), "byte %zu was written", i);
    sides_free(&from, &to);
}

/* Memory of the remote side, for the local one to write and read. */
static inline uccl_remote *import_all(const struct side *remote, uint64_t length, uccl_export **exported)
{
    uint8_t ref[UCCL_REF_BYTES];
    uccl_remote *imported;
    IS(uccl_export_mr(remote->mr, remote->memory, length, UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, ref, exported), 0);
    IS(uccl_import(pair.conn[0], ref, &imported), 0);
    return imported;
}

static inline uccl_request *operate(bool write, const struct side *local, uint64_t length, uccl_remote *imported)
{
    struct uccl_piece piece = {.local = local->memory, .mr = local->mr, .length = length, .remote = imported};
    uccl_request *request;
    IS((write ? uccl_write_async : uccl_read_async)(pair.conn[0], &piece, 1, NULL, &request), 0);
    return request;
}

static const size_t sizes[] = {0,     1,     63,    64,     65,     1000,   4096,   8191,   8192,    8193,    20000,
                               65535, 65536, 65537, 131072, 200001, 262144, 300007, 524288, 1048576, 1048577, 2500000};

/* Every size class, at odd offsets, between all mixes of host and device. */
static inline void all_sizes(void)
{
    unsigned number = 0;
    for (unsigned mix = 1; mix < 4; mix++) {
        const bool device[2] = {mix & 1, mix & 2};
        for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++, number++) {
            size_t offset[2] = {number * 13 % 60, number * 29 % 60};
            one_message(device, sizes[i], offset, number % 3 ? 0 : 1 + number * 7001 % 200000, number);
        }
    }
}

/* Many messages at once, both ways, of all sizes; blocks are short all the time. */
static inline void crowd(unsigned count, size_t size_max)
{
    enum { CROWD_MAX = 200 };
    static struct side from[2][CROWD_MAX], to[2][CROWD_MAX];
    static uccl_request *send[2][CROWD_MAX], *recv[2][CROWD_MAX];
    static size_t length[2][CROWD_MAX];
    for (unsigned i = 0; i < count; i++) {
        for (unsigned way = 0; way < 2; way++) {
            length[way][i] = i % 3 ? i * 7919u % 8000 + 1 : i * 104729u % size_max + 1;
            from[way][i] = side_make(pair.engine[way], i % 4 != 1, length[way][i]);
            to[way][i] = side_make(pair.engine[!way], i % 5 != 2, length[way][i]);
            fill(shadow, length[way][i], i + way * 1000);
            side_write(&from[way][i], 0, shadow, length[way][i]);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        for (unsigned way = 0; way < 2; way++) {
            if (i % 2) /* before the receive */
                IS(uccl_send_async(pair.conn[way], from[way][i].memory, length[way][i], from[way][i].mr, &send[way][i]),
                   0);
            IS(uccl_recv_async(pair.conn[!way], to[way][i].memory, length[way][i], to[way][i].mr, &recv[way][i]), 0);
            if (!(i % 2))
                IS(uccl_send_async(pair.conn[way], from[way][i].memory, length[way][i], from[way][i].mr, &send[way][i]),
                   0);
        }
    }
    for (unsigned i = 0; i < count; i++) {
        for (unsigned way = 0; way < 2; way++) {
            cr_assert_eq(end_of(recv[way][i], 0), length[way][i]);
            cr_assert_eq(end_of(send[way][i], 0), length[way][i]);
            side_read(&to[way][i], 0, shadow, length[way][i]);
            check(shadow, length[way][i], i + way * 1000);
            side_free(&from[way][i]);
            side_free(&to[way][i]);
        }
    }
}

#endif
