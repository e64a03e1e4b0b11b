/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's library, loaded at run time: one binary runs with it, without it, and where it is too old. The few
 * functions that are needed are declared by ourselves (cuda_api.h, hip_api.h) and looked up by name.
 *
 * Memory of a kind exists only where the application, or a library of its own, has loaded that library. So
 * whoever asks about an address takes it if it is there already and does not load it.
 *
 * Thread: any.
 */
#ifndef UCCL_RUNTIME_H
#define UCCL_RUNTIME_H

#include <stdatomic.h>
#include <stdbool.h>

struct mem_runtime {
    const char *const *sonames;   /* NULL at the end */
    const char *const *names;     /* of the functions */
    void **functions;             /* in the same order */
    unsigned count;
    unsigned optional;            /* the last so many may be missing: NULL then */
    const char *soname;           /* that was found, or NULL */
    const char *missing;          /* the function that it lacks, or NULL */
    _Atomic bool ready;           /* everything is there; pairs: release here, acquire in mem_runtime_find() */
};

/* True: its functions may be called. `load`: not only if the process has the library already. */
bool mem_runtime_find(struct mem_runtime *runtime, bool load);

#endif
