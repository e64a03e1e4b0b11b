/* SPDX-License-Identifier: Apache-2.0 */
/* A call whose command finds no room in the engine thread's ring changes nothing: what it had taken is back. */
#include "stage_pair.h"

#include "../../api/objects.h"
#include "fill_ring.h"

/* The request that would be taken next. */
static struct uccl_request *next_request(uccl_engine *engine)
{
    struct uccl_request *request = request_take(&engine->requests);
    cr_assert_not_null(request);
    request_put(request);
    return request;
}

static uint32_t idle_holds; /* of the connection's stripes, with no request posted */

static void check_refused(int result, uccl_request *request, const struct side *side, struct uccl_request *next)
{
    uccl_conn *conn = pair.conn[0];
    IS(result, UCCL_EAGAIN);
    cr_assert_null(request, "an output of a call that failed");
    cr_assert_eq(side->mr->users, 0);
    cr_assert_eq(conn->thread->staged, 0);
    cr_assert_eq(conn->stripes.staged, 0);
    cr_assert_eq(conn->stripes.holds, idle_holds);
    cr_assert_eq(next_request(pair.engine[0]), next, "it is lost");
}

static void refuse(bool device)
{
    enum { LENGTH = 10000, MANY = 300 };
    setenv("UCCL_RING_ENTRIES", "16", 1);
    stage_open_pair("no", "64", "8", "mmsg", "1");
    struct side from = side_make(pair.engine[0], device, LENGTH), to = side_make(pair.engine[1], false, LENGTH);
    uccl_conn *conn = pair.conn[0];
    uccl_request *request = NULL, *receive;
    struct uccl_request *next = next_request(pair.engine[0]);
    idle_holds = conn->stripes.holds;
    fill_ring(conn->thread);
    for (unsigned i = 0; i < MANY; i++) {
        check_refused(uccl_send_async(conn, from.memory, LENGTH, from.mr, &request), request, &from, next);
        check_refused(uccl_recv_async(conn, from.memory, LENGTH, from.mr, &request), request, &from, next);
        check_refused(uccl_conn_close_async(conn, &request), request, &from, next);
    }
    empty_ring(conn->thread);

    fill(shadow, LENGTH, 1);
    side_write(&from, 0, shadow, LENGTH);
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &receive), 0);
    IS(uccl_send_async(conn, from.memory, LENGTH, from.mr, &request), 0);
    IS(uccl_dereg_mr(from.mr), UCCL_EAGAIN);
    cr_assert_eq(end_of(receive, 0), LENGTH);
    cr_assert_eq(end_of(request, 0), LENGTH);
    check(to.memory, LENGTH, 1);
    IS(uccl_conn_close_async(conn, &request), 0);
    end_of(request, 0);
    sides_free(&from, &to);
    stage_close_pair();
}

Test(full_ring, leaves_nothing_of_host_memory, .timeout = TIMEOUT_S)
{
    refuse(false);
}

Test(full_ring, leaves_nothing_of_staged_memory, .timeout = TIMEOUT_S)
{
    refuse(true);
}
