/* SPDX-License-Identifier: Apache-2.0 */
/* What an initiator is told of a write that has failed at its target (engine/thread/onesided_serve.c). */
#include "thread/onesided.h"
#include "thread/state.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static struct params params;
static struct engine_thread thread = {.params = &params};

/* The DONE of a write whose message has ended so, with `moved` of 100 bytes. */
static int32_t done_of(int32_t status, uint64_t moved, bool revoked)
{
    struct exported exported = {.users = 1};
    struct served served = {.id = 2, .used = true, .last = true, .pending = 1};
    struct done dones[CONTROL_DONES_MAX];
    struct onesided one = {.thread = &thread, .dones = dones, .serving = 1};
    struct one_request *r = aligned_alloc(REQUEST_ALIGNMENT, (sizeof *r + 63) / 64 * 64);
    *r = (struct one_request){.of = &one, .kind = ONE_WRITE_IN, .served = &served, .revoked = revoked, .pinned = 1};
    r->only = &exported;
    r->exports = &r->only;
    r->request.msg = (struct core_msg){.kind = CORE_RECV, .status = status, .moved_bytes = moved, .size_bytes = 100};
    serve_ended(r);
    cr_assert(exported.users == 0 && one.serving == 0 && served.finished && one.done_count == 1);
    thread.ones_due = NULL;
    return dones[0].status;
}

Test(onesided_serve, the_initiator_learns_why)
{
    cr_assert_eq(done_of(UCCL_OK, 100, false), UCCL_OK);
    cr_assert_eq(done_of(UCCL_OK, 99, false), UCCL_EACCESS);
    cr_assert_eq(done_of(UCCL_ENOMEM, 0, false), UCCL_EPEERNOMEM);
    cr_assert_eq(done_of(UCCL_EIO, 0, false), UCCL_EIO);
    cr_assert_eq(done_of(UCCL_ECANCELED, 0, false), UCCL_ECANCELED);
    cr_assert_eq(done_of(UCCL_ECANCELED, 0, true), UCCL_EACCESS, "a revocation cancels it");
    cr_assert_eq(done_of(UCCL_ENOMEM, 0, true), UCCL_EACCESS);
    cr_assert_eq(done_of(UCCL_ETRUNCATED, 0, false), UCCL_EACCESS);
}
