/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged and host messages of many threads at once, striped over two engine threads, with few blocks, cancels and a
 * borrower that would drive the engine: counts of staged requests, parts and copies go between threads here.
 * With lent engines and without. The device is the fake one.
 */
#include "engines.h"

#include "../fake/fake_device.h"

enum { THREADS = 4, LENGTH_MAX = 300000, MESSAGES = SANITIZED ? 60 : 200 };

static uccl_engine *engine[2];
static uint64_t seed;

struct worker {
    pthread_t thread;
    uccl_conn *conn[2];
    unsigned index;
    unsigned cancelled;
};

struct buffer {
    uint8_t *memory;
    bool device;
    uccl_mr *mr;
};

static struct buffer buffer_make(uccl_engine *of, bool device)
{
    struct buffer buffer = {.device = device};
    buffer.memory = device ? fake_alloc(LENGTH_MAX, 0) : malloc(LENGTH_MAX);
    OK(uccl_reg_mr(of, buffer.memory, LENGTH_MAX, UCCL_MEM_AUTO, &buffer.mr));
    return buffer;
}

static void buffer_free(struct buffer *buffer)
{
    OK(uccl_dereg_mr(buffer->mr));
    if (buffer->device)
        fake_free(buffer->memory);
    else
        free(buffer->memory);
}

static void buffer_copy(struct buffer *buffer, uint8_t *host, size_t length, bool write)
{
    if (buffer->device)
        fake_access((uintptr_t)buffer->memory, host, length, write ? MEM_TO_DEVICE : MEM_FROM_DEVICE);
    else
        memcpy(write ? buffer->memory : host, write ? host : buffer->memory, length);
}

static int end_of(uccl_request *request)
{
    int status = uccl_wait(request, 20000, NULL);
    CHECK(status == UCCL_OK || status == UCCL_ECANCELED, "%s", uccl_strerror(status));
    return status;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    uint64_t random = seed + worker->index;
    uint8_t *bytes = malloc(LENGTH_MAX), *back = malloc(LENGTH_MAX);
    for (unsigned i = 0; i < MESSAGES; i++) {
        unsigned from = random_next(&random) % 2;
        size_t length = random_next(&random) % 3 ? random_next(&random) % 9000 : random_next(&random) % LENGTH_MAX;
        struct buffer source = buffer_make(engine[from], random_next(&random) % 3);
        struct buffer target = buffer_make(engine[!from], random_next(&random) % 3);
        uccl_request *send, *recv;
        for (size_t k = 0; k < length; k++)
            bytes[k] = (uint8_t)(k * 7 + (k >> 8) + i * 31 + worker->index);
        buffer_copy(&source, bytes, length, true);
        OK(uccl_recv_async(worker->conn[!from], target.memory, length, target.mr, &recv));
        OK(uccl_send_async(worker->conn[from], source.memory, length, source.mr, &send));
        if (random_next(&random) % 8 == 0)
            OK(uccl_cancel(random_next(&random) % 2 ? send : recv));
        int status = end_of(recv);
        worker->cancelled += status != UCCL_OK;
        end_of(send);
        if (status == UCCL_OK) {
            buffer_copy(&target, back, length, false);
            CHECK(memcmp(bytes, back, length) == 0, "message %u of thread %u is wrong", i, worker->index);
        }
        buffer_free(&source);
        buffer_free(&target);
    }
    free(bytes);
    free(back);
    return NULL;
}

static void variant(const char *lend)
{
    static struct worker workers[THREADS];
    struct uccl_handle handle;
    uccl_listener *listener;
    unsigned cancelled = 0;
    uint64_t start_ns = now_ns();
    for (unsigned i = 0; i < 2; i++)
        engine[i] = engine_open(lend, "50");
    OK(uccl_listen(engine[1], 0, 0, &handle, &listener));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.index = i};
        engines_connect(engine[0], &handle, listener, workers[i].conn);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "pthread_create");
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(workers[i].thread, NULL);
        cancelled += workers[i].cancelled;
    }
    for (unsigned i = 0; i < 2; i++)
        OK(uccl_close(engine[i]));
    CHECK(fake.stages == 0, "device streams are left open");
    end_case("UCCL_LEND=%s: %u messages, %u cancelled, %.1f s", lend, THREADS * MESSAGES, cancelled,
             (double)(now_ns() - start_ns) / 1e9);
}

enum { CASES = 2 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    seed = seed_of(argc, argv);
    mem_set_test_kind(&fake_ops);
    fake_forbid_this_thread();
    setenv("UCCL_NUM_ENGINES", "2", 1);
    setenv("UCCL_STRIPE_MIN_KB", "64", 1);
    setenv("UCCL_GPU_BLOCK_KB", "64", 1);
    setenv("UCCL_GPU_BLOCKS", "8", 1);
    variant("yes");
    variant("no");
    return 0;
}
