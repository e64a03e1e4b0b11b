/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. */
#include "objects.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(enum uccl_mem kind)
{
    static const char *const names[] = {
        [UCCL_MEM_AUTO] = "auto", [UCCL_MEM_HOST] = "host", [UCCL_MEM_CUDA] = "cuda", [UCCL_MEM_HIP] = "hip"};
    return (unsigned)kind < sizeof names / sizeof names[0] ? names[kind] : "unknown";
}

static void complain(int error, const void *address, size_t length, enum uccl_mem kind)
{
    if (error == UCCL_ENOTSUP)
        LOG_ERR("cannot register %p as memory of kind %s: this build or machine has none, or it is "
                "not such memory (uccl_info says what was found)",
                address, kind_name(kind));
    else if (error == UCCL_EINVAL)
        LOG_ERR("cannot register %zu bytes at %p: they reach beyond their allocation", length, address);
}

/* Makes device memory known to the NIC, if the NIC reaches it; `dmabuf`: the caller's, or NULL. Under the lock. */
static int join_range(struct uccl_engine *engine, struct uccl_mr *mr, const struct direct_dmabuf *dmabuf)
{
    int error = direct_get(&engine->direct, mr->region, mr->address, mr->length, dmabuf, &mr->range);
    if (!error)
        memcpy(mr->nic, mr->range->nic, sizeof mr->nic);
    return error;
}

void mr_leave_range(struct uccl_engine *engine, struct uccl_mr *mr)
{
    if (!mr->range)
        return;
    direct_put(&engine->direct, mr->region, mr->range);
    mr->range = NULL;
    memset(mr->nic, 0, sizeof mr->nic); /* the range owns them */
}

/* `dmabuf`: the caller's, or NULL. */
static int reg_mr(struct uccl_engine *engine, void *address, size_t length, enum uccl_mem kind,
                  const struct direct_dmabuf *dmabuf, struct uccl_mr **out)
{
    bool wraps = length > UINTPTR_MAX - (uintptr_t)address;
    if (!engine || !out || (!address && length) || wraps)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    struct uccl_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return UCCL_ENOMEM;
    int error = mem_cache_get(&engine->regions, kind, address, length, &mr->region);
    if (error) {
        complain(error, address, length, kind);
        free(mr);
        return error;
    }
    bool host = mr->region->is.ops->cpu_readable;
    mr->engine = engine;
    mr->address = address;
    mr->length = length;
    if (host)
        error = nics_join(engine, address, length, mr->nic);
    if (error) {
        mem_cache_put(&engine->regions, mr->region);
        free(mr);
        return error;
    }
    pthread_mutex_lock(&engine->lock);
    error = host ? UCCL_OK : join_range(engine, mr, dmabuf);
    if (!error)
        queue_append(&engine->mrs, &mr->of_engine);
    pthread_mutex_unlock(&engine->lock);
    if (error) {
        mem_cache_put(&engine->regions, mr->region);
        free(mr);
        return error;
    }
    *out = mr;
    return UCCL_OK;
}

UCCL_API int uccl_reg_mr(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind, uccl_mr **out)
{
    return reg_mr(engine, address, length, kind, NULL, out);
}

UCCL_API int uccl_reg_mr_dmabuf(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind, int fd,
                                uint64_t offset, uccl_mr **out)
{
    struct direct_dmabuf dmabuf = {fd, offset};
    return fd < 0 ? UCCL_EINVAL : reg_mr(engine, address, length, kind, &dmabuf, out);
}

UCCL_API int uccl_dereg_mr(uccl_mr *mr)
{
    if (!mr)
        return UCCL_EINVAL;
    if (inherited(mr->engine))
        return UCCL_EFORKED;
    if (mr->closed)
        return UCCL_EINVAL;
    CANCEL_LATER;
    if (exports_of_mr_live(mr) || atomic_load(&mr->users))
        return UCCL_EAGAIN;
    struct uccl_engine *engine = mr->engine;
    mr->closed = true;
    mr->length = 0; /* no buffer lies within the registration any more */
    pthread_mutex_lock(&engine->lock);
    queue_remove(&engine->mrs, &mr->of_engine);
    mr_leave_range(engine, mr);
    pthread_mutex_unlock(&engine->lock);
    nics_leave(engine, mr->nic);
    mem_cache_put(&engine->regions, mr->region);
    mr->region = NULL;
    pthread_mutex_lock(&engine->lock);
    keep_closed(&engine->closed, mr);
    pthread_mutex_unlock(&engine->lock);
    return UCCL_OK;
}

/* Host memory. */
static const char *reached_by_nics(const struct uccl_mr *mr)
{
    unsigned nics = nic_placers(mr->engine->nic), reached = 0;
    for (unsigned i = 0; i < nics; i++)
        reached += mr->nic[i].handle != NULL;
    return reached == 0 ? "copied" : reached == nics ? "direct" : "direct by some NICs, copied for others";
}

UCCL_API int uccl_mr_get_info(const uccl_mr *mr, struct uccl_mr_info *out)
{
    if (!mr || !out)
        return UCCL_EINVAL;
    if (inherited(mr->engine))
        return UCCL_EFORKED;
    if (mr->closed)
        return UCCL_EINVAL;
    const struct mem_identity *is = &mr->region->is;
    *out = (struct uccl_mr_info){.kind = is->ops->kind,
                                 .device = is->device,
                                 .base = (void *)mr->region->begin,
                                 .base_length = mr->region->length};
    snprintf(out->pci, sizeof out->pci, "%s", is->pci);
    if (is->ops->cpu_readable)
        snprintf(out->reached, sizeof out->reached, "%s", reached_by_nics(mr));
    else
        snprintf(out->reached, sizeof out->reached, "%s", mr->range->why);
    return UCCL_OK;
}

UCCL_API int uccl_mem_status(enum uccl_mem kind, char *text, size_t size)
{
    if (!text || size == 0)
        return UCCL_EINVAL;
    CANCEL_LATER;
    const struct mem_ops *ops = mem_ops_of(kind);
    if (ops)
        return ops->status(text, size);
    if (kind != UCCL_MEM_CUDA && kind != UCCL_MEM_HIP)
        return UCCL_EINVAL;
    snprintf(text, size, "not built in (-D%s=disabled)", kind_name(kind));
    return UCCL_ENOTSUP;
}

/* Whether some NIC of the connection's reaches the memory by itself. */
static bool is_written_directly(const uccl_conn *conn, const uccl_mr *mr)
{
    for (unsigned i = 0; i < conn->pairs.count; i++)
        if (mr->nic[conn->pairs.nics[i]].handle)
            return true;
    return false;
}

UCCL_API int uccl_flush(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out)
{
    if (!conn || !out || (!buffer && length) || (mr && !mr_covers(conn->engine, mr, buffer, length)))
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (atomic_load_explicit(&conn->closing, memory_order_relaxed))
        return UCCL_ECLOSED;
    if (!mr || !length || mr->region->is.ops->cpu_readable || !is_written_directly(conn, mr)) {
        *out = NULL; /* host memory and staged memory need no flush: what completed receives wrote is visible */
        return UCCL_OK;
    }
    return request_post_flush(conn, buffer, mr, out);
}
