/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of memory behind one table. Payload is touched through it alone: by the thread that owns the
 * engine, on behalf of the core, which never touches it.
 */
#ifndef UCCL_MEM_H
#define UCCL_MEM_H

#include "uccl/engine.h"

struct mem_ops {
    const char *name;
    /* Copies between this memory at `address` and host memory. Complete on return. */
    void (*gather)(void *to, const void *address, size_t length);
    void (*scatter)(void *address, const void *from, size_t length);
    /* Whether the CPU may read and write it in place. */
    int cpu_readable;
};

/* The table of a kind; NULL: this build or machine has no such memory. UCCL_MEM_AUTO finds out. */
const struct mem_ops *mem_ops_of(enum uccl_mem kind, const void *address);

#endif
