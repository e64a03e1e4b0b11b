/* SPDX-License-Identifier: Apache-2.0 */
#include "mem/mem.h"

#include <stdio.h>

static const struct mem_ops *test_kind;

static const struct mem_ops *const kinds[] = {
#ifdef HAVE_CUDA
    &mem_cuda_ops,
#endif
#ifdef HAVE_HIP
    &mem_hip_ops,
#endif
    &mem_host_ops, /* last: it claims every address */
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

const struct mem_ops *mem_ops_of(enum uccl_mem kind)
{
    for (unsigned i = 0; i < KINDS; i++) {
        if (kinds[i]->kind == kind)
            return kinds[i];
    }
    return NULL;
}

void mem_set_test_kind(const struct mem_ops *ops)
{
    test_kind = ops;
}

static int kind_find(enum uccl_mem kind, const void *address, struct mem_identity *out)
{
    const struct mem_ops *ops = mem_ops_of(kind);
    if (kind != UCCL_MEM_AUTO)
        return ops ? ops->identify(address, out) : UCCL_ENOTSUP;
    if (test_kind && test_kind->identify(address, out) == UCCL_OK)
        return UCCL_OK;
    for (unsigned i = 0; i < KINDS; i++) {
        if (kinds[i]->identify(address, out) == UCCL_OK)
            return UCCL_OK;
    }
    return UCCL_ENOTSUP;
}

int mem_identify(enum uccl_mem kind, const void *address, size_t length, struct mem_identity *out)
{
    int error = kind_find(kind, address, out);
    if (error)
        return error;
    uintptr_t from = (uintptr_t)address;
    if (out->base &&
        (from < out->base || from - out->base > out->base_length || length > out->base_length - (from - out->base)))
        return UCCL_EINVAL;
    return UCCL_OK;
}
