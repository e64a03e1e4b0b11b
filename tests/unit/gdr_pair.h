/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two engines over a verbs device and a GPU that are not there (fake_rdma.h). That the CPU touches no memory of the
 * device, the fake device sees to; a GPU call on an application's thread aborts.
 */
#ifndef UCCL_TEST_GDR_PAIR_H
#define UCCL_TEST_GDR_PAIR_H

#include "stage_pair.h"

#include "fake_rdma.h"

#include "../../api/objects.h"

enum { LENGTH = 1000000 };

static inline void gdr_set_up(void)
{
    fake.exports = true;
    rdma_start();
}

static inline void open_gdr(const char *gdr, const char *level, const char *name, const char *value)
{
    mem_set_test_kind(&fake_ops);
    fake_forbid_this_thread();
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "BACKEND", "verbs", "GDR", gdr, "GDR_LEVEL", level, "LINGER_MS", "300",
                                     "DEAD_PEER_MS", "5000", "PACKET_LIFETIME_MS", "20", "QP_RETRY_MS", "1",
                                     "GPU_BLOCK_KB", "64", "GPU_BLOCKS", "8", "NUM_ENGINES", "1", name, value, NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
}

static inline void close_gdr(void)
{
    stage_close_pair();
    rdma_end();
}

/* Queue pairs are made when the first message could use them; what is sent before goes another way. */
static inline void warm_up(void)
{
    static uint8_t from[100000], to[100000];
    uint64_t end_ms = now_ms() + SOON_MS;
    uccl_mr *mr[2];
    IS(uccl_reg_mr(pair.engine[0], from, sizeof from, UCCL_MEM_AUTO, &mr[0]), 0);
    IS(uccl_reg_mr(pair.engine[1], to, sizeof to, UCCL_MEM_AUTO, &mr[1]), 0);
    while (counter(0, "tx_placed") == 0) {
        uccl_request *send, *recv;
        IS(uccl_recv_async(pair.conn[1], to, sizeof to, mr[1], &recv), 0);
        IS(uccl_send_async(pair.conn[0], from, sizeof from, mr[0], &send), 0);
        end_of(recv, 0);
        end_of(send, 0);
        cr_assert(now_ms() < end_ms);
    }
    for (int i = 0; i < 2; i++)
        IS(uccl_dereg_mr(mr[i]), 0);
}

static inline void flush(const struct side *to)
{
    uccl_request *request;
    IS(uccl_flush(pair.conn[1], to->memory, 1, to->mr, &request), 0);
    if (request)
        cr_assert_eq(end_of(request, 0), 0);
}

/* A message, and what is in the memory when it has been flushed. */
static inline void move(const struct side *from, const struct side *to, size_t length, unsigned number)
{
    uccl_request *send, *recv;
    fill(shadow, length, number);
    side_write(from, 0, shadow, length);
    memset(shadow, 0x5a, length);
    side_write(to, 0, shadow, length);
    IS(uccl_recv_async(pair.conn[1], to->memory, length, to->mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from->memory, length, from->mr, &send), 0);
    cr_assert_eq(end_of(recv, 0), length);
    cr_assert_eq(end_of(send, 0), length);
    flush(to);
    side_read(to, 0, shadow, length);
    check(shadow, length, number);
}

static inline const char *reached(const struct side *side)
{
    static struct uccl_mr_info info;
    IS(uccl_mr_get_info(side->mr, &info), 0);
    return info.reached;
}

/* What becomes of memory of the device: all of it travels directly, or none. On RC, where nothing is ever
 * retransmitted. */
static inline void expect(const char *gdr, const char *level, const char *name, const char *value, const char *how)
{
    bool direct = strncmp(how, "direct", 6) == 0;
    open_gdr(gdr, level, name, value);
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    cr_assert_str_eq(reached(&from), how);
    cr_assert_str_eq(reached(&to), how);
    if (strcmp(name, "UDMODE") != 0)
        warm_up();
    for (unsigned i = 0; i < 5; i++)
        move(&from, &to, LENGTH - i * 77777, i);
    cr_assert_eq(counter(0, "gpu_fetches") == 0, direct);
    cr_assert_eq(counter(1, "gpu_uploads") == 0, direct);
    cr_assert_eq(rdma.writes > 0, direct);
    cr_assert_eq(rdma.reads > 0, direct); /* a flush of what is staged has nothing to do */
    cr_assert_eq(rdma.mrs_alive, direct ? 4 : 0, "two ranges, and a byte of each to flush with");
    sides_free(&from, &to);
    cr_assert_eq(rdma.mrs_alive, 0);
    close_gdr();
}

#endif
