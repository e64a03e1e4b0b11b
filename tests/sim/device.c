/* SPDX-License-Identifier: Apache-2.0 */
#include "device.h"

#include "payload.h"
#include "seam.h"

#include <stdio.h>

enum { STREAMS_MAX = 32, COPIES_MAX = 256 };

struct copy {
    struct copy *next;
    enum mem_direction direction;
    uintptr_t device;
    void *host, *cookie;
    size_t length;
    uint64_t end_ns;
};

struct mem_stage {
    struct process *process;
    unsigned streams, copies_max, in_flight, next[2];
    struct {
        struct copy *head, *tail;
    } queues[STREAMS_MAX];
};

struct device_options device_options;

/* What engine and device agree on: GPU calls are made by engine threads, on their own streams. */
static void check(const struct mem_stage *stage)
{
    if (!machine_engine_thread())
        machine_fail("a GPU call on an application's thread");
    if (stage && stage->process != machine_process())
        machine_fail("a GPU call on streams of another process");
}

static int device_identify(const void *address, struct mem_identity *out)
{
    const struct buffer *buffer = payload_device_buffer(address);
    if (!buffer)
        return UCCL_ENOTSUP;
    *out = (struct mem_identity){.ops = &sim_device_ops,
                                 .device = (int)(buffer->address / 4096 % 2),
                                 .base = buffer->address,
                                 .base_length = buffer->size,
                                 .buffer_id = buffer->address};
    return UCCL_OK;
}

static int device_status(char *text, size_t size)
{
    snprintf(text, size, "simulated");
    return UCCL_OK;
}

static int device_device(int index, struct mem_device *out)
{
    *out = (struct mem_device){.model = "simulated"};
    return index < 2 ? UCCL_OK : UCCL_ENODEV;
}

static int device_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max,
                             struct mem_stage **out)
{
    (void)of;
    check(NULL);
    struct mem_stage *stage = sim_calloc(1, sizeof *stage);
    *stage = (struct mem_stage){.process = machine_process(), .streams = streams, .copies_max = copies_max};
    if (2 * streams > STREAMS_MAX || copies_max > COPIES_MAX)
        machine_fail("too many streams or copies");
    *out = stage;
    return UCCL_OK;
}

static void device_stage_close(struct mem_stage *stage)
{
    check(stage);
    if (stage->in_flight)
        machine_fail("streams are closed with copies in flight");
    sim_free(stage);
}

static int device_pin(struct mem_stage *stage, void *memory, size_t length)
{
    (void)memory;
    (void)length;
    check(stage);
    return UCCL_OK;
}

static void device_unpin(struct mem_stage *stage, void *memory)
{
    (void)memory;
    check(stage);
}

static int device_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address,
                       void *host_address, size_t length, void *cookie)
{
    check(stage);
    if (stage->in_flight == stage->copies_max)
        return UCCL_EAGAIN;
    unsigned queue = direction * stage->streams + stage->next[direction]++ % stage->streams;
    const struct copy *before = stage->queues[queue].tail;
    uint64_t begin_ns = before && before->end_ns > machine.now_ns ? before->end_ns : machine.now_ns;
    struct copy *copy = sim_malloc(sizeof *copy);
    *copy = (struct copy){.direction = direction,
                          .device = device_address,
                          .host = host_address,
                          .cookie = cookie,
                          .length = length,
                          .end_ns = begin_ns + machine_random(device_options.latency_ns) +
                                    length * 8000 / device_options.mbps};
    *(before ? &stage->queues[queue].tail->next : &stage->queues[queue].head) = copy;
    stage->queues[queue].tail = copy;
    stage->in_flight++;
    return UCCL_OK;
}

static int device_poll(struct mem_stage *stage, void **cookie)
{
    check(stage);
    for (unsigned i = 0; i < 2 * stage->streams; i++) {
        struct copy *copy = stage->queues[i].head;
        if (!copy || copy->end_ns > machine.now_ns)
            continue;
        stage->queues[i].head = copy->next;
        if (!copy->next)
            stage->queues[i].tail = NULL;
        stage->in_flight--;
        payload_device_copy(copy->device, copy->host, copy->length, copy->direction == MEM_TO_DEVICE);
        *cookie = copy->cookie;
        sim_free(copy);
        return 1;
    }
    return 0;
}

static int device_export_dmabuf(const struct mem_identity *of, uintptr_t from, size_t length, int *fd,
                                uint64_t *offset_bytes, char why[MEM_WHY_TEXT])
{
    (void)of, (void)from, (void)length, (void)fd, (void)offset_bytes;
    snprintf(why, MEM_WHY_TEXT, "simulated"); /* its NICs reach it by its address */
    return UCCL_ENOTSUP;
}

const struct mem_ops sim_device_ops = {
    .name = "sim",
    .kind = (enum uccl_mem)98,
    .cpu_readable = false,
    .identify = device_identify,
    .status = device_status,
    .device = device_device,
    .export_dmabuf = device_export_dmabuf,
    .stage_open = device_stage_open,
    .stage_close = device_stage_close,
    .pin = device_pin,
    .unpin = device_unpin,
    .copy = device_copy,
    .poll = device_poll,
};
