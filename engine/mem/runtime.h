/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's library, loaded at run time, so one binary runs with it, without it, and with one that is too old. We
 * declare the few functions that we need (cuda_api.h, hip_api.h) and look them up by name.
 *
 * Memory of a kind exists only in a process whose application, or some library of it, has loaded the GPU's library.
 * So to ask about an address we use a library that is loaded already, and load none.
 *
 * Thread: any.
 */
#ifndef UCCL_RUNTIME_H
#define UCCL_RUNTIME_H

#include <stdatomic.h>
#include <stdbool.h>

struct mem_runtime {
    const char *const *sonames; /* NULL at the end */
    const char *const *names;   /* of the functions */
    void **functions;           /* in the same order */
    unsigned count;
    unsigned optional;   /* how many functions at the end may be missing; they are NULL then */
    const char *soname;  /* the library that was found, or NULL */
    const char *missing; /* the function that it lacks, or NULL */
    _Atomic bool ready;  /* everything is there; pairs: release here, acquire in mem_runtime_find() */
};

/* True: its functions may be called. `load`: loads the library if the process does not have it. */
bool mem_runtime_find(struct mem_runtime *runtime, bool load);

#endif
