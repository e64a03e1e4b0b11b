/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory. It needs no staging, but tests stage it all the same. */
#include "mem/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A copy is done at once; poll() only has to say that it has ended. */
struct mem_stage {
    unsigned capacity, first, count;
    void *ended[]; /* a ring of cookies */
};

static int host_identify(const void *address, struct mem_identity *out)
{
    (void)address;
    *out = (struct mem_identity){.ops = &mem_host_ops, .device = -1};
    return UCCL_OK;
}

static int host_status(char *text, size_t size)
{
    snprintf(text, size, "always there");
    return UCCL_OK;
}

static int host_device(int index, struct mem_device *out)
{
    (void)index;
    (void)out;
    return UCCL_ENODEV;
}

static int host_export_dmabuf(const struct mem_identity *of, uintptr_t from, size_t length, int *fd,
                              uint64_t *offset_bytes, char why[MEM_WHY_TEXT])
{
    (void)of, (void)from, (void)length, (void)fd, (void)offset_bytes;
    snprintf(why, MEM_WHY_TEXT, "host memory needs none");
    return UCCL_ENOTSUP;
}

static int host_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max, struct mem_stage **out)
{
    (void)of;
    (void)streams;
    struct mem_stage *stage = calloc(1, sizeof *stage + copies_max * sizeof stage->ended[0]);
    if (!stage)
        return UCCL_ENOMEM;
    stage->capacity = copies_max;
    *out = stage;
    return UCCL_OK;
}

static void host_stage_close(struct mem_stage *stage)
{
    free(stage);
}

static int host_pin(struct mem_stage *stage, void *memory, size_t length)
{
    (void)stage;
    (void)memory;
    (void)length;
    return UCCL_OK;
}

static void host_unpin(struct mem_stage *stage, void *memory)
{
    (void)stage;
    (void)memory;
}

static int host_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address,
                     void *host_address, size_t length, void *cookie)
{
    if (stage->count == stage->capacity)
        return UCCL_EAGAIN;
    if (direction == MEM_FROM_DEVICE)
        memcpy(host_address, (const void *)device_address, length);
    else
        memcpy((void *)device_address, host_address, length);
    stage->ended[(stage->first + stage->count++) % stage->capacity] = cookie;
    return UCCL_OK;
}

static int host_poll(struct mem_stage *stage, void **cookie)
{
    if (stage->count == 0)
        return 0;
    *cookie = stage->ended[stage->first];
    stage->first = (stage->first + 1) % stage->capacity;
    stage->count--;
    return 1;
}

const struct mem_ops mem_host_ops = {
    .name = "host",
    .kind = UCCL_MEM_HOST,
    .cpu_readable = true,
    .identify = host_identify,
    .status = host_status,
    .device = host_device,
    .export_dmabuf = host_export_dmabuf,
    .stage_open = host_stage_open,
    .stage_close = host_stage_close,
    .pin = host_pin,
    .unpin = host_unpin,
    .copy = host_copy,
    .poll = host_poll,
};
