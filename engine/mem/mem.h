/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kinds of memory behind one table of operations. If the CPU may not touch memory (`cpu_readable` false), payload
 * moves between it and pinned host memory by asynchronous copies. These are queued on streams of the engine's own and
 * polled, never waited for. The staging pipeline (gpu/stage.h) drives them.
 *
 * Threads: any thread may call identify(), status() and export_dmabuf(), which leave its current device and context
 * as they are. A `mem_stage` belongs to one engine thread, never to an application's. Only stage_open(), pin() and
 * their opposites block on the device, for milliseconds at most.
 */
#ifndef UCCL_MEM_H
#define UCCL_MEM_H

#include "uccl/engine.h"

#include <stdbool.h>
#include <stdint.h>

struct mem_ops;
struct mem_stage;

enum { MEM_PCI_TEXT = 16, MEM_MODEL_TEXT = 96, MEM_STATUS_TEXT = 256, MEM_WHY_TEXT = 96 };

/* The identity of an address. */
struct mem_identity {
    const struct mem_ops *ops;
    int device;     /* index in the runtime's own order; -1: host memory */
    void *context;  /* of the runtime, for stage_open(); NULL: the device's default one */
    uintptr_t base; /* the allocation that it lies in; 0: unknown (host memory) */
    size_t base_length;
    uint64_t buffer_id;     /* never given to another allocation of this process; 0: unknown */
    char pci[MEM_PCI_TEXT]; /* "0000:1b:00.0"; "": none */
    bool managed;           /* its pages move between device and host, so a NIC must not keep their addresses */
};

/* A device of a kind. */
struct mem_device {
    char pci[MEM_PCI_TEXT]; /* "": unknown */
    char model[MEM_MODEL_TEXT];
};

enum mem_direction { MEM_FROM_DEVICE, MEM_TO_DEVICE };

struct mem_ops {
    const char *name;
    enum uccl_mem kind;
    bool cpu_readable; /* the CPU may read and write it in place */

    /*
     * Whose memory an address is: 0 and `*out`, or UCCL_ENOTSUP: another kind's, or the process does not use this kind.
     * Loads and initialises no driver, since memory of a kind exists only if the application has done so.
     */
    int (*identify)(const void *address, struct mem_identity *out);

    /*
     * Describes for people what this machine has of the kind ("CUDA driver 12.4, 2 devices", or why it has none). 0:
     * usable; UCCL_ENOTSUP. Loads the driver.
     */
    int (*status)(char *text, size_t size);

    /*
     * Device `index` of the runtime, from 0. UCCL_ENODEV: there are no more, or the kind is not usable. Loads
     * the driver, makes no context.
     */
    int (*device)(int index, struct mem_device *out);

    /*
     * Exports [from, from + length), whole pages of such memory, as a dma-buf: its file descriptor, which the caller
     * closes, and where the range begins in it. UCCL_ENOTSUP: `why` says why not. Touches no device, and does not
     * disturb stream captures of the application.
     */
    int (*export_dmabuf)(const struct mem_identity *of, uintptr_t from, size_t length, int *fd, uint64_t *offset_bytes,
                         char why[MEM_WHY_TEXT]);

    /*
     * Streams for copies to and from memory like `of`, `streams` in each direction, and room for
     * `copies_max` copies in flight. UCCL_ENOTSUP, UCCL_ENOMEM, UCCL_EIO; logged.
     */
    int (*stage_open)(const struct mem_identity *of, unsigned streams, unsigned copies_max, struct mem_stage **out);
    /* No copy is in flight any more, or the device is lost. */
    void (*stage_close)(struct mem_stage *stage);

    /* Pins host memory, so that the device can copy to and from it, and unpins it. Failures are logged. */
    int (*pin)(struct mem_stage *stage, void *memory, size_t length);
    void (*unpin)(struct mem_stage *stage, void *memory);

    /*
     * Queues a copy between device memory and pinned host memory; the copies of a stream run in order. poll() names
     * it by `cookie`. 0, UCCL_EAGAIN: as many as allowed are in flight; UCCL_EIO (logged).
     */
    int (*copy)(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address, void *host_address,
                size_t length, void *cookie);
    /* Names the next copy that has ended. 1: it succeeded; 0: there is none; negative: it failed (logged). */
    int (*poll)(struct mem_stage *stage, void **cookie);
};

/*
 * Identifies [address, address + length) as memory of `kind`. For UCCL_MEM_AUTO it is the kind that claims the
 * address, or host memory. UCCL_ENOTSUP: this build or machine lacks the kind, or it is another kind's memory.
 * UCCL_EINVAL: the range reaches beyond its allocation. Any thread.
 */
int mem_identify(enum uccl_mem kind, const void *address, size_t length, struct mem_identity *out);

/* The table of a kind; NULL: not built in, or UCCL_MEM_AUTO. */
const struct mem_ops *mem_ops_of(enum uccl_mem kind);

/* For tests: one more kind, which UCCL_MEM_AUTO asks before all others; NULL: none. */
void mem_set_test_kind(const struct mem_ops *ops);

extern const struct mem_ops mem_host_ops, mem_cuda_ops, mem_hip_ops; /* as far as they are built in */

#endif
