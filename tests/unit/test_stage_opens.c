/* SPDX-License-Identifier: Apache-2.0 */
/* A device that cannot be opened for a while, as memory is short, can be used after that. */
#include "stage_pair.h"

static void passing(_Atomic int *error)
{
    const bool device[2] = {true, true};
    const size_t offset[2] = {0, 0};
    stage_open_pair("no", "64", "8", "mmsg", "1");
    uccl_set_log(log_nothing, NULL);
    *error = UCCL_ENOMEM;
    for (unsigned i = 0; i < 2; i++) {
        struct side from = side_make(pair.engine[0], true, 1000), to = side_make(pair.engine[1], true, 1000);
        uccl_request *send, *recv;
        IS(uccl_recv_async(pair.conn[1], to.memory, 1000, to.mr, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from.memory, 1000, from.mr, &send), 0);
        end_of(send, UCCL_ENOMEM);
        end_of(recv, UCCL_ECANCELED);
        sides_free(&from, &to);
    }
    *error = UCCL_OK;
    for (uint64_t end_ms = now_ms() + 1100; now_ms() < end_ms;)
        usleep(10000);
    one_message(device, 300000, offset, 0, 1);
    stage_close_pair();
}

Test(stage_opens, streams_come_later, .timeout = 60)
{
    passing(&fake.open_error);
}

Test(stage_opens, pinned_memory_comes_later, .timeout = 60)
{
    passing(&fake.pin_error);
}
