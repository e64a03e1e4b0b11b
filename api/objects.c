/* SPDX-License-Identifier: Apache-2.0 */
#include "objects.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

void sleep_on(struct pollfd *fds, unsigned count, int timeout_ms)
{
    struct timespec nap = {0, 1000000};
    if (poll(fds, count, timeout_ms) < 0 && errno == EINVAL && timeout_ms != 0)
        nanosleep(&nap, NULL); /* there are more than RLIMIT_NOFILE allows by now */
}

void keep_closed(struct closed *closed, void *object)
{
    void **slot = &closed->at[closed->next++ % CLOSED_KEPT];
    free(*slot);
    *slot = object;
}

void closed_free(struct closed *closed)
{
    for (unsigned i = 0; i < CLOSED_KEPT; i++)
        free(closed->at[i]);
}

struct uccl_request *request_take_for(struct uccl_conn *conn, void *buffer, struct uccl_mr *mr)
{
    struct uccl_request *request = request_take(&conn->engine->requests);
    if (!request)
        return NULL;
    request->buffer = buffer;
    request->mr_users = mr ? &mr->users : NULL;
    atomic_store_explicit(&request->thread, conn->thread, memory_order_relaxed);
    request->stripes = &conn->stripes;
    atomic_store_explicit(&request->flushes, false, memory_order_relaxed);
    atomic_store_explicit(&request->closes, false, memory_order_relaxed);
    request->parent = request->parts = NULL;
    request->let_go = false;
    atomic_store_explicit(&request->unfinished, 1, memory_order_relaxed);
    atomic_store_explicit(&request->part_status, UCCL_OK, memory_order_relaxed);
    atomic_store_explicit(&request->home_over, false, memory_order_release); /* see still_ours() */
    return request;
}

const struct nic_mr *mr_of_nics(const struct uccl_mr *mr)
{
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++)
        if (mr->nic[i].handle)
            return mr->nic;
    return NULL;
}

void nics_leave(struct uccl_engine *engine, struct nic_mr nic[NIC_PLACERS_MAX])
{
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++) {
        if (nic[i].handle)
            engine->nic->memory->dereg_mr(engine->nic, &nic[i]);
        nic[i].handle = NULL;
    }
}

int nics_join(struct uccl_engine *engine, void *address, size_t length, struct nic_mr nic[NIC_PLACERS_MAX])
{
    unsigned nics = nic_placers(engine->nic);
    for (unsigned i = 0; i < nics; i++) {
        int error = engine->nic->memory->reg_mr(engine->nic, i, address, length, &nic[i]);
        if (error == UCCL_EIO && nics > 1)
            continue; /* it fails, and the others go on */
        if (error && error != UCCL_ENOTSUP) {
            nics_leave(engine, nic);
            return error;
        }
    }
    return UCCL_OK;
}
