/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the message buffers of the tools lie: host memory, page-locked host memory, or a GPU's. The GPU's driver is
 * loaded when a flag asks for it. The CPU never touches GPU memory: contents are made and compared in host memory and
 * copied by the driver.
 */
#ifndef UCCL_DEVICE_H
#define UCCL_DEVICE_H

#include "uccl/engine.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

enum device_kind {
    DEVICE_CPU,
    DEVICE_CUDA,
    DEVICE_HIP,
    DEVICE_KINDS,
};

struct device_choice {
    enum device_kind kind;
    int index;
    bool pinned; /* DEVICE_CPU: page-locked by whichever driver is there */
};

/* "cpu", "cuda:N" or "hip:N"; with `any_gpu` also "N": that GPU of the runtime that has some. Leaves `pinned`. */
void device_parse(struct argp_state *state, const char *flag, const char *text, bool any_gpu,
                  struct device_choice *out);
/* A choice as a word of a message, and back; false: it is none. */
uint64_t device_pack(const struct device_choice *choice);
bool device_unpack(uint64_t word, struct device_choice *out);
/* "cuda:0", "cpu, pinned"; returns `out`. */
const char *device_text(const struct device_choice *choice, char out[32]);

/* Message buffers in one piece. */
struct region {
    struct device_choice where;
    unsigned char *base;
    uint64_t bytes;
    uccl_mr *mr;            /* NULL: unregistered host memory */
    unsigned char *scratch; /* host memory in which contents are made; NULL: `base` will do */
    uint64_t scratch_bytes;
};

/*
 * Can this machine do it? Writes why not to `fault`. Binds the calling thread to the GPU, as an application that
 * uses it does.
 */
bool device_open(const struct device_choice *choice, char fault[256]);
/* Allocates and registers; what fails ends the process. Call device_open() before. */
void region_make(struct region *region, uccl_engine *engine, const struct device_choice *where, uint64_t bytes);
/* No request may use it any more. */
void region_free(struct region *region);
/* Host memory for `bytes` of contents that belong at `at`: `at` itself where the CPU may write there. */
void *region_scratch(struct region *region, void *at, uint64_t bytes);
/* Copies contents made there to where they belong, or the other way; does nothing where both are the same. */
void region_store(const struct region *region, void *at, uint64_t bytes);
void region_load(const struct region *region, const void *at, uint64_t bytes);

#endif
