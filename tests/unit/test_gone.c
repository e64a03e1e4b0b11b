/* SPDX-License-Identifier: Apache-2.0 */
/* Finding connections by the number that the peer gave them. */
#include "core/conn.h"
#include "core/flow.h"
#include "core/gone.h"

#include <criterion/criterion.h>
#include <sys/mman.h>

enum { CONNS = 5, BYTES = 1 << 16 };

/* A flow whose buckets are chosen by the upper bits alone: all of these share one. */
static struct flow *flow;
static struct conn *conns[CONNS];

static void set_up(void)
{
    flow = calloc(1, sizeof *flow);
    cr_assert_lt(sizeof(struct conn), BYTES);
    for (unsigned i = 0; i < CONNS; i++) {
        conns[i] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        conns[i]->flow = flow;
        conns[i]->remote_id = i;
        gone_add_conn(conns[i]);
    }
}

static void expect(unsigned bits)
{
    for (unsigned i = 0; i < CONNS; i++)
        cr_expect_eq(gone_find(flow, i), bits >> i & 1 ? conns[i] : NULL, "%u of %x", i, bits);
}

Test(gone, connections_of_a_bucket_leave_in_any_order, .init = set_up)
{
    expect(0x1f);
    gone_remove_conn(conns[4]); /* the first one there */
    expect(0x0f);
    gone_remove_conn(conns[0]); /* the last */
    expect(0x0e);
    gone_remove_conn(conns[2]);
    expect(0x0a);
    gone_add_conn(conns[2]);
    expect(0x0e);
    for (unsigned i = 1; i <= 3; i++)
        gone_remove_conn(conns[i]);
    expect(0);
}

/* There may be thousands: who leaves touches its neighbours alone. */
Test(gone, a_connection_that_leaves_looks_at_no_others, .init = set_up)
{
    cr_assert_eq(mprotect(conns[4], BYTES, PROT_NONE), 0);
    cr_assert_eq(mprotect(conns[3], BYTES, PROT_NONE), 0);
    gone_remove_conn(conns[1]);
    cr_assert_eq(mprotect(conns[4], BYTES, PROT_READ), 0);
    cr_assert_eq(mprotect(conns[3], BYTES, PROT_READ), 0);
    expect(0x1d);
}
