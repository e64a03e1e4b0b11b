/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations. Each is an engine's, which counts the requests that use it: so a buffer that NCCL takes away with
 * requests pending, when it aborts, is known to be in use. What the same range holds several registrations of, they
 * share in the engine.
 */
#include "plugin.h"

#include <string.h>

static enum nccl_result registered(const struct comm *comm, int error, void *data, size_t size)
{
    if (error)
        WARN("cannot register %zu bytes at %p with %s: %s", size, data, devices_get(comm->engine->device)->name,
             uccl_strerror(error));
    return result_of(error);
}

static bool kind_of(int type, enum uccl_mem *kind)
{
    *kind = type == NCCL_PTR_HOST ? UCCL_MEM_HOST : UCCL_MEM_AUTO; /* CUDA's or HIP's */
    return type == NCCL_PTR_HOST || type == NCCL_PTR_CUDA || type == NCCL_PTR_DMABUF;
}

enum nccl_result memory_register(struct comm *comm, void *data, size_t size, int type, uccl_mr **out)
{
    enum uccl_mem kind;
    *out = NULL;
    if (!kind_of(type, &kind))
        return NCCL_INVALID_ARGUMENT;
    return registered(comm, uccl_reg_mr(comm->engine->uccl, data, size, kind, out), data, size);
}

enum nccl_result memory_register_dmabuf(struct comm *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                        uccl_mr **out)
{
    enum uccl_mem kind;
    *out = NULL;
    if (!kind_of(type, &kind))
        return NCCL_INVALID_ARGUMENT;
    return registered(comm, uccl_reg_mr_dmabuf(comm->engine->uccl, data, size, kind, fd, offset, out), data, size);
}

enum nccl_result memory_deregister(struct comm *comm, uccl_mr *mr)
{
    if (!mr) /* of a registration that failed */
        return NCCL_SUCCESS;
    int error = uccl_dereg_mr(mr);
    if (error == UCCL_EAGAIN) { /* the memory is gone next: so are the requests, and with them the connection */
        comm_abort(comm);
        error = uccl_dereg_mr(mr);
    }
    if (error)
        WARN("cannot end a registration with %s: %s", devices_get(comm->engine->device)->name, uccl_strerror(error));
    return result_of(error);
}
