/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. */
#include "objects.h"

#include "log.h"

#include <stdlib.h>

UCCL_API int uccl_reg_mr(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind, uccl_mr **out)
{
    if (!engine || !out || (!address && length))
        return UCCL_EINVAL;
    const struct mem_ops *memory = mem_ops_of(kind, address);
    if (!memory) {
        LOG_ERR("cannot register memory of kind %d: this build knows host memory", (int)kind);
        return UCCL_ENOTSUP;
    }
    struct uccl_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return UCCL_ENOMEM;
    mr->engine = engine;
    mr->address = address;
    mr->length = length;
    mr->memory = memory;
    pthread_mutex_lock(&engine->lock);
    mr->next = engine->mrs;
    engine->mrs = mr;
    pthread_mutex_unlock(&engine->lock);
    *out = mr;
    return UCCL_OK;
}

UCCL_API int uccl_dereg_mr(uccl_mr *mr)
{
    if (!mr)
        return UCCL_EINVAL;
    if (atomic_load(&mr->users))
        return UCCL_EAGAIN;
    pthread_mutex_lock(&mr->engine->lock);
    for (struct uccl_mr **link = &mr->engine->mrs; *link; link = &(*link)->next) {
        if (*link == mr) {
            *link = mr->next;
            break;
        }
    }
    pthread_mutex_unlock(&mr->engine->lock);
    free(mr);
    return UCCL_OK;
}

UCCL_API int uccl_flush(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out)
{
    (void)mr;
    if (!conn || !out || (!buffer && length))
        return UCCL_EINVAL;
    *out = NULL; /* host memory: what has ended is visible */
    return UCCL_OK;
}
