/* SPDX-License-Identifier: Apache-2.0 */
/* What engines have in use, and that it comes back: by their own count, and by the kernel's. */
#include "../../api/budget.h"
#include "api_pair.h"

static struct budget budget_of(uccl_engine *engine)
{
    struct budget budget;
    engine_budget(engine, &budget);
    return budget;
}

#define COUNTS(engine, field, expected)                                                                                \
    cr_assert_eq(budget_of(engine).field, (uint64_t)(expected), "%llu " #field ", not %llu",                           \
                 (unsigned long long)budget_of(engine).field, (unsigned long long)(expected))

BOTH(budget, counts_what_there_is)
{
    enum { REGISTRATIONS = 3, RECEIVES = 5 };
    struct pair pair;
    uint8_t bytes[64] = {0};
    uccl_mr *mrs[REGISTRATIONS];
    uccl_request *receives[RECEIVES];
    pair_open(&pair, lend);
    uccl_engine *engine = pair.engine[1];
    uint64_t requests = budget_of(engine).requests;
    COUNTS(engine, conns, 1);
    COUNTS(engine, conn_ids, 1);
    COUNTS(engine, peers, 1);
    COUNTS(engine, unmet_peers, 0);
    COUNTS(engine, listeners, 1);
    COUNTS(engine, handshakes, 0);
    cr_assert_gt(budget_of(engine).flow_slots, 0);
    cr_assert_eq(budget_of(engine).flow_slots, budget_of(engine).flows);
    for (int i = 0; i < REGISTRATIONS; i++)
        IS(uccl_reg_mr(engine, bytes + i, 8, UCCL_MEM_HOST, &mrs[i]), 0);
    COUNTS(engine, registrations, REGISTRATIONS);
    for (int i = 0; i < RECEIVES; i++)
        receives[i] = post_recv(pair.conn[1], bytes, sizeof bytes);
    COUNTS(engine, requests, requests + RECEIVES);

    for (int i = 0; i < RECEIVES; i++) {
        end_of(post_send(pair.conn[0], bytes, sizeof bytes), 0);
        end_of(receives[i], 0);
    }
    for (int i = 0; i < REGISTRATIONS; i++)
        IS(uccl_dereg_mr(mrs[i]), 0);
    COUNTS(engine, registrations, 0);
    COUNTS(engine, regions, 0);
    COUNTS(engine, requests, requests);
    IS(uccl_conn_close(pair.conn[0]), 0);
    IS(uccl_conn_close(pair.conn[1]), 0);
    IS(uccl_listener_close(pair.listener), 0);
    COUNTS(engine, conns, 0);
    COUNTS(engine, conn_ids, 0);
    COUNTS(engine, listeners, 0);
    pair_close(&pair);
}

/* A connect that nobody answers is counted until it is cancelled, and leaves nothing. */
BOTH(budget, connects_under_way)
{
    struct pair pair = {0};
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine(lend, NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    IS(uccl_connect(pair.engine[0], &pair.handle, 0, &pair.conn[0]), UCCL_EAGAIN);
    COUNTS(pair.engine[0], connecting, 1);
    uccl_connect_cancel(&pair.handle);
    COUNTS(pair.engine[0], connecting, 0);
    COUNTS(pair.engine[0], conn_ids, 0);
    COUNTS(pair.engine[0], peers, 0);
    COUNTS(pair.engine[0], flow_slots, 0);
    pair_close(&pair);
}

/* Engines one after another; what the C library keeps for threads is there after the first few. */
BOTH(budget, engines_leave_nothing)
{
    enum { FIRST = 6, LIVES = 24 };
    unsigned mappings = 0;
    for (int i = 0; i < LIVES; i++) {
        struct pair pair;
        pair_open(&pair, lend);
        exchange(pair.conn[0], pair.conn[1], 100000, (unsigned)i);
        pair_close(&pair);
        house_check();
        if (i == FIRST)
            mappings = house_mappings();
    }
#ifndef __SANITIZE_ADDRESS__ /* it keeps what was freed, in mappings of its own */
    cr_assert_leq(house_mappings(), mappings + 4, "%u mappings, after %d engines %u", house_mappings(), 2 * FIRST,
                  mappings);
#else
    (void)mappings;
#endif
}
