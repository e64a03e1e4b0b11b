/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU's runtime that refuses: each call that the engine makes, at the end that sends from a GPU and at the end that
 * receives to one, for the first message and in the middle of a message; once and from then on. The request ends with a
 * code of its own at this end, and with one at the other, soon; the connection lives; other messages pass; and what was
 * held of the runtime is given back. On the stand-ins alone (fake_gpu.h). A plain main
 * that prints TAP.
 *
 *   gpu_failures cuda|hip STAND-IN
 */
#include "../entries.h"
#include "../stress/engines.h"

#include "device.h"
#include "stream.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

enum { SENDER, RECEIVER, SIDES };
enum { MESSAGE_BYTES = 3 << 20, SMALL_BYTES = 2000, SOON_MS = 8000 };

/* Sets of codes. */
#define ONE(code) (1u << -(code))
#define GOOD ONE(UCCL_OK)
#define IO ONE(UCCL_EIO)
#define NOMEM ONE(UCCL_ENOMEM)
#define CANCELED ONE(UCCL_ECANCELED)

struct row {
    const char *function[2]; /* CUDA's, HIP's; NULL: it has none */
    int error;
    unsigned nth;
    bool for_good;
    unsigned own[SIDES], other[SIDES]; /* where the sender has the GPU, where the receiver has it: one of these */
};

#define OPENS                                                                                                          \
    {IO, IO},                                                                                                          \
    {                                                                                                                  \
        CANCELED, CANCELED | GOOD                                                                                      \
    }
#define NO_ROOM                                                                                                        \
    {NOMEM, NOMEM},                                                                                                    \
    {                                                                                                                  \
        CANCELED, CANCELED | GOOD                                                                                      \
    }
#define PASSES                                                                                                         \
    {GOOD, GOOD},                                                                                                      \
    {                                                                                                                  \
        GOOD, GOOD                                                                                                     \
    }
#define SENDS                                                                                                          \
    {IO, GOOD},                                                                                                        \
    {                                                                                                                  \
        CANCELED, GOOD                                                                                                 \
    }
#define RECEIVES                                                                                                       \
    {GOOD, IO},                                                                                                        \
    {                                                                                                                  \
        GOOD, CANCELED | GOOD                                                                                          \
    }
#define BOTH                                                                                                           \
    {IO, IO},                                                                                                          \
    {                                                                                                                  \
        CANCELED, CANCELED | GOOD                                                                                      \
    }

static const struct row rows[] = {
    {{"cuDeviceGet", NULL}, 101, 1, false, OPENS},
    {{"cuDevicePrimaryCtxGetState", NULL}, 101, 1, false, OPENS},
    {{"cuDevicePrimaryCtxRetain", NULL}, 2, 1, false, OPENS},
    {{"cuCtxPushCurrent_v2", NULL}, 201, 1, false, OPENS},
    {{"cuCtxPushCurrent_v2", NULL}, 201, 2, false, {NOMEM | IO, NOMEM | IO}, {CANCELED, CANCELED | GOOD}},
    {{"cuCtxPushCurrent_v2", NULL}, 201, 4, false, BOTH},
    {{NULL, "hipSetDevice"}, 101, 1, false, OPENS},
    {{NULL, "hipSetDevice"}, 101, 4, false, BOTH},
    {{"cuStreamCreate", "hipStreamCreateWithFlags"}, 2, 1, false, OPENS},
    {{"cuStreamCreate", "hipStreamCreateWithFlags"}, 2, 4, false, OPENS},
    {{"cuEventCreate", "hipEventCreateWithFlags"}, 2, 1, false, OPENS},
    {{"cuEventCreate", "hipEventCreateWithFlags"}, 2, 100, false, OPENS},
    {{"cuMemHostRegister_v2", "hipHostRegister"}, 2, 1, false, NO_ROOM},
    {{"cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"}, 1, 1, false, SENDS},
    {{"cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"}, 1, 4, false, SENDS},
    {{"cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"}, 719, 4, true, SENDS},
    {{"cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"}, 1, 1, false, RECEIVES},
    {{"cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"}, 1, 4, false, RECEIVES},
    {{"cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"}, 719, 4, true, RECEIVES},
    /* the copy runs all the same: its memory is in use until an event tells its end */
    {{"cuEventRecord", "hipEventRecord"}, 400, 1, false, PASSES},
    {{"cuEventRecord", "hipEventRecord"}, 400, 4, false, PASSES},
    {{"cuEventQuery", "hipEventQuery"}, 719, 1, false, BOTH},
    {{"cuEventQuery", "hipEventQuery"}, 719, 4, false, BOTH},
    {{"cuEventQuery", "hipEventQuery"}, 719, 4, true, BOTH},
};

static struct device_choice gpu;
static const struct device_choice host = {DEVICE_CPU, 0, false};
static void (*fail)(const char *item);
static int (*failed)(void);
static int (*held)(void);
static uint64_t number;

static void *stand_in;

static void look_up(const char *name, void *out)
{
    void *symbol = dlsym(stand_in, name);
    CHECK(symbol, "%s", name);
    *(void **)out = symbol;
}

struct world {
    uccl_engine *engine[SIDES];
    uccl_listener *listener;
    uccl_conn *conn[SIDES];
    struct region with_gpu, without[SIDES];
};

/* What a message comes to at both ends. */
static void message(struct world *world, struct region *from, struct region *to, size_t bytes, int status[SIDES])
{
    uccl_request *requests[SIDES];
    struct tool_mismatch mismatch;
    number++;
    tool_fill(region_scratch(from, from->base, bytes), bytes, 0, number);
    region_store(from, from->base, bytes);
    tool_poison(region_scratch(to, to->base, bytes), bytes);
    region_store(to, to->base, bytes);
    OK(uccl_recv_async(world->conn[RECEIVER], to->base, bytes, to->mr, &requests[RECEIVER]));
    OK(uccl_send_async(world->conn[SENDER], from->base, bytes, from->mr, &requests[SENDER]));
    for (int side = 0; side < SIDES; side++) {
        size_t moved = 0;
        status[side] = uccl_wait(requests[side], SOON_MS, &moved);
        CHECK(status[side] != UCCL_ETIMEDOUT, "the %s's request does not end", side == SENDER ? "sender" : "receiver");
        CHECK(moved == (status[side] ? 0 : bytes), "status %d, %zu bytes", status[side], moved);
    }
    if (status[RECEIVER])
        return;
    unsigned char *contents = region_scratch(to, to->base, bytes);
    region_load(to, to->base, bytes);
    CHECK(tool_verify(contents, bytes, 0, number, &mismatch), "wrong at %lu", mismatch.offset);
}

static void works(struct world *world, struct region *from, struct region *to, size_t bytes)
{
    int status[SIDES];
    message(world, from, to, bytes, status);
    CHECK(status[SENDER] == 0 && status[RECEIVER] == 0, "sender %d, receiver %d", status[SENDER], status[RECEIVER]);
}

static void world_open(struct world *world, int side)
{
    struct uccl_handle handle;
    for (int i = 0; i < SIDES; i++)
        world->engine[i] = engine_open("no", "20");
    OK(uccl_listen(world->engine[RECEIVER], 0, 0, &handle, &world->listener));
    engines_connect(world->engine[SENDER], &handle, world->listener, world->conn);
    region_make(&world->with_gpu, world->engine[side], &gpu, MESSAGE_BYTES);
    for (int i = 0; i < SIDES; i++)
        region_make(&world->without[i], world->engine[i], &host, MESSAGE_BYTES);
}

static void world_close(struct world *world)
{
    region_free(&world->with_gpu);
    for (int i = 0; i < SIDES; i++)
        region_free(&world->without[i]);
    for (int i = 0; i < SIDES; i++)
        OK(uccl_conn_abort(world->conn[i]));
    for (int i = 0; i < SIDES; i++)
        OK(uccl_close(world->engine[i]));
}

/* The side's end of a message lies on the GPU. */
static void one(const struct row *row, int side, size_t bytes)
{
    const char *function = row->function[gpu.kind == DEVICE_HIP];
    char item[128];
    struct world world;
    int status[SIDES], held_before = held(), files = (int)entries_of("/proc/self/fd");
    world_open(&world, side);
    struct region *from = side == SENDER ? &world.with_gpu : &world.without[SENDER];
    struct region *to = side == RECEIVER ? &world.with_gpu : &world.without[RECEIVER];
    snprintf(item, sizeof item, "%s:%d:%u%s", function, row->error, row->nth, row->for_good ? "" : ":1");
    fail(item);
    message(&world, from, to, bytes, status);
    bool happened = failed() > 0;
    fail(NULL);
    unsigned own = ONE(status[side]), other = ONE(status[!side]);
    CHECK((own & row->own[side]) && (other & row->other[side]), "%s of %zu bytes at the %s: %d here, %d there", item,
          bytes, side == SENDER ? "sender" : "receiver", status[side], status[!side]);
    CHECK(happened || own == GOOD, "%s is never called", function);
    OK(uccl_conn_status(world.conn[SENDER]));
    OK(uccl_conn_status(world.conn[RECEIVER]));
    works(&world, &world.without[SENDER], &world.without[RECEIVER], SMALL_BYTES);
    works(&world, &world.without[SENDER], &world.without[RECEIVER], MESSAGE_BYTES);
    world_close(&world);
    CHECK(held() == held_before, "%d streams, events, contexts and page-locked ranges are left", held() - held_before);
    CHECK((int)entries_of("/proc/self/fd") == files, "%d descriptors are left",
          (int)entries_of("/proc/self/fd") - files);
    CHECK((int)entries_of("/proc/self/task") == 3, "a thread is left");
    world_open(&world, side);
    from = side == SENDER ? &world.with_gpu : &world.without[SENDER];
    to = side == RECEIVER ? &world.with_gpu : &world.without[RECEIVER];
    works(&world, from, to, MESSAGE_BYTES);
    world_close(&world);
}

/* More refusals than there are blocks of staging memory, on one connection: none keeps its block. */
static void many(int side)
{
    enum { MANY = 40 };
    static const char *const functions[SIDES][2] = {{"cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"},
                                                    {"cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"}};
    struct world world;
    int status[SIDES];
    char item[128];
    world_open(&world, side);
    struct region *from = side == SENDER ? &world.with_gpu : &world.without[SENDER];
    struct region *to = side == RECEIVER ? &world.with_gpu : &world.without[RECEIVER];
    for (int i = 0; i < MANY; i++) {
        snprintf(item, sizeof item, "%s:1:%d:1", functions[side][gpu.kind == DEVICE_HIP], 1 + i % 3);
        fail(item);
        message(&world, from, to, MESSAGE_BYTES / 4, status);
        fail(NULL);
        CHECK(status[side] == UCCL_EIO, "%d", status[side]);
    }
    works(&world, from, to, MESSAGE_BYTES);
    world_close(&world);
}

enum { CUDA_CASES = 46, HIP_CASES = 38 }; /* expected.py reads them */

int main(int argc, char **argv)
{
    char fault[256];
    int cases = 0;
    CHECK(argc == 3, "gpu_failures cuda|hip STAND-IN");
    stand_in = dlopen(argv[2], RTLD_NOW); /* whoever asks for a library of its name gets this one */
    CHECK(stand_in, "%s", dlerror());
    setenv("UCCL_GPU_BLOCK_KB", "64", 1); /* many copies of a message */
    setenv("UCCL_LOG_LEVEL", "none", 1);
    gpu = (struct device_choice){strcmp(argv[1], "hip") == 0 ? DEVICE_HIP : DEVICE_CUDA, 0, false};
    CHECK(device_open(&gpu, fault), "%s", fault);
    look_up("fake_gpu_fail", &fail);
    look_up("fake_gpu_failed", &failed);
    look_up("fake_gpu_held", &held);
    for (int side = 0; side < SIDES; side++) {
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            if (!rows[i].function[gpu.kind == DEVICE_HIP])
                continue;
            one(&rows[i], side, MESSAGE_BYTES);
            if (rows[i].nth == 1)
                one(&rows[i], side, SMALL_BYTES);
            printf("ok %d - %s fails, call %u%s, at the %s\n", ++cases, rows[i].function[gpu.kind == DEVICE_HIP],
                   rows[i].nth, rows[i].for_good ? " and on" : "", side == SENDER ? "sender" : "receiver");
            fflush(stdout);
        }
        many(side);
        printf("ok %d - copies fail again and again, at the %s\n", ++cases, side == SENDER ? "sender" : "receiver");
    }
    printf("1..%d\n", cases);
    return cases != (gpu.kind == DEVICE_HIP ? HIP_CASES : CUDA_CASES);
}
