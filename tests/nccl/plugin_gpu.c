/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin with memory of a GPU that is a stand-in (tests/mem/fake_gpu.h), staged. Each case runs in a process of its
 * own. TAP.
 *
 * usage: nccl_plugin_gpu PLUGIN STAND-IN-FOR-CUDA
 */
#include "pair.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { RECEIVES = 4, MESSAGE = 100000 };

static const char *stand_in_path;

static void look_up(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);
    CHECK_SAY(symbol, "%s", name);
    *(void **)out = symbol;
}

/* Memory of the GPU, whose copies end after so many questions about them. */
static uint8_t *gpu_memory(const char *late, size_t bytes)
{
    int (*init)(unsigned), (*retain)(void **, int), (*push)(void *), (*alloc)(void **, size_t);
    void *context, *memory = NULL;
    setenv("FAKE_GPU_LATE", late, 1);
    void *stand_in = dlopen(stand_in_path, RTLD_NOW); /* who asks for the driver gets this one */
    CHECK_SAY(stand_in, "%s", dlerror());
    look_up(stand_in, "cuInit", &init);
    look_up(stand_in, "cuDevicePrimaryCtxRetain", &retain);
    look_up(stand_in, "cuCtxPushCurrent_v2", &push);
    look_up(stand_in, "cuMemAlloc_v2", &alloc);
    IS(init(0), 0);
    IS(retain(&context, 0), 0);
    IS(push(context), 0);
    IS(alloc(&memory, bytes), 0);
    return memory;
}

static void messages(void)
{
    static uint8_t from[MESSAGE], to[MESSAGE];
    uint8_t *gpu = gpu_memory("2", 2 * MESSAGE);
    void *from_mr, *to_mr, *data = gpu, *flushed = POISON;
    int size = MESSAGE;
    struct pair pair = new_pair();
    for (int i = 0; i < MESSAGE; i++)
        from[i] = (uint8_t)(i * 7);
    IS(pair.net->regMr(pair.recv, gpu, 2 * MESSAGE, NCCL_PTR_CUDA, &to_mr), NCCL_SUCCESS);
    IS(pair.net->regMr(pair.send, gpu, 2 * MESSAGE, NCCL_PTR_CUDA, &from_mr), NCCL_SUCCESS);
    void *receive = post_receive(&pair, gpu, MESSAGE, to_mr), *send = post_send(&pair, from, MESSAGE, NULL);
    IS(finish(&pair, receive), MESSAGE);
    IS(finish(&pair, send), MESSAGE);
    IS(pair.net->iflush(pair.recv, 1, &data, &size, &to_mr, &flushed), NCCL_SUCCESS);
    CHECK_SAY(!flushed, "staged memory needs no flush");
    receive = post_receive(&pair, to, MESSAGE, NULL);
    send = post_send(&pair, gpu, MESSAGE, from_mr);
    IS(finish(&pair, receive), MESSAGE);
    IS(finish(&pair, send), MESSAGE);
    CHECK(memcmp(from, to, MESSAGE) == 0);
    /* no GPU may look at memory of a GPU */
    void *request = (void *)(uintptr_t)NCCL_NET_EARLY;
    CHECK(try_receive(&pair, gpu, 1024, to_mr, &request) != NCCL_SUCCESS && !request);
    IS(pair.net->deregMr(pair.recv, to_mr), NCCL_SUCCESS);
    IS(pair.net->deregMr(pair.send, from_mr), NCCL_SUCCESS);
    close_pair(&pair);
}

/* Asks for receives as NCCL's other thread does, until it learns of the failure; how long a call took at most. */
struct asking {
    struct pair *pair;
    void *request; /* that is pending */
    uint64_t longest_ms;
};

static void *ask(void *argument)
{
    struct asking *asking = argument;
    enum nccl_result result = NCCL_SUCCESS;
    for (int done = 0; !result; nap()) {
        uint64_t began_ms = now_ms();
        result = asking->pair->net->test(asking->request, &done, NULL);
        CHECK_SAY(result || !done, "a copy has ended");
        asking->longest_ms = now_ms() - began_ms > asking->longest_ms ? now_ms() - began_ms : asking->longest_ms;
    }
    return NULL;
}

/* Receives that the GPU keeps pending. */
static void hang(struct pair *pair, uint8_t *gpu, void **mr, void **requests)
{
    static uint8_t from[MESSAGE];
    IS(pair->net->regMr(pair->recv, gpu, (size_t)RECEIVES * MESSAGE, NCCL_PTR_CUDA, mr), NCCL_SUCCESS);
    for (int i = 0; i < RECEIVES; i++) {
        requests[i] = post_receive(pair, gpu + (size_t)i * MESSAGE, MESSAGE, *mr);
        CHECK(post_send(pair, from, MESSAGE, NULL));
    }
    usleep(300000);
}

/* However many requests it keeps: NCCL waits for them once, and its other thread does not wait. */
static void gpu_that_hangs(void)
{
    enum { ONCE_MS = 7000, SOON_MS = 2000 };
    uint8_t *gpu = gpu_memory("2000000000", (size_t)RECEIVES * MESSAGE);
    struct pair first = new_pair(), second = {first.net, first.context, NULL, NULL};
    void *mrs[2], *requests[2][RECEIVES];
    pthread_t other;
    connect_pair(&second);
    hang(&first, gpu, &mrs[0], requests[0]);
    hang(&second, gpu, &mrs[1], requests[1]);
    struct asking asking = {&first, requests[0][RECEIVES - 1], 0};
    CHECK(pthread_create(&other, NULL, ask, &asking) == 0);
    uint64_t began_ms = now_ms();
    CHECK_SAY(first.net->deregMr(first.recv, mrs[0]) != NCCL_SUCCESS, "the GPU has the memory still");
    CHECK_SAY(now_ms() - began_ms < ONCE_MS, "%u ms", (unsigned)(now_ms() - began_ms));
    pthread_join(other, NULL);
    CHECK_SAY(asking.longest_ms < SOON_MS, "a test took %u ms", (unsigned)asking.longest_ms);
    began_ms = now_ms();
    CHECK(first.net->deregMr(second.recv, mrs[1]) != NCCL_SUCCESS);
    IS(first.net->closeRecv(second.recv), NCCL_SUCCESS);
    IS(first.net->closeSend(second.send), NCCL_SUCCESS);
    CHECK_SAY(now_ms() - began_ms < SOON_MS, "the second: %u ms", (unsigned)(now_ms() - began_ms));
    began_ms = now_ms();
    close_pair(&first);
    CHECK_SAY(now_ms() - began_ms < ONCE_MS, "the end: %u ms", (unsigned)(now_ms() - began_ms));
    _exit(0); /* what stays with the GPU is no leak */
}

/* A receive of version 8, which does not tell whether a GPU looks at it. GPU memory cannot be watched, and tells. */
static bool may_receive_unwatched(void *recv, uint8_t *gpu, void *mr)
{
    struct nccl_net_v8 *net = load("ncclNetPlugin_v8");
    void *data = gpu, *request = NULL;
    int size = 1024, tag = 3;
    return net->irecv(recv, 1, &data, &size, &tag, &mr, &request) == NCCL_SUCCESS;
}

/* What NCCL_PROTO says later is not about communicators that are there. */
static void protocol_of_before(void)
{
    uint8_t *gpu = gpu_memory("2", MESSAGE);
    struct nccl_net_v8 *net = load("ncclNetPlugin_v8");
    void *mr;
    for (int simple = 0; simple < 2; simple++) {
        struct pair pair = new_pair();
        IS(pair.net->regMr(pair.recv, gpu, MESSAGE, NCCL_PTR_CUDA, &mr), NCCL_SUCCESS);
        setenv("NCCL_PROTO", simple ? "LL,Simple" : "Simple", 1);
        IS(net->init(logger), NCCL_SUCCESS);
        CHECK_SAY(!may_receive_unwatched(pair.recv, gpu, mr), "made with%s NCCL_PROTO=Simple", simple ? "" : "out");
        close_pair(&pair);
        setenv("NCCL_PROTO", "Simple", 1);
    }
    struct pair pair = new_pair();
    IS(pair.net->regMr(pair.recv, gpu, MESSAGE, NCCL_PTR_CUDA, &mr), NCCL_SUCCESS);
    CHECK_SAY(may_receive_unwatched(pair.recv, gpu, mr), "all were made with it");
    close_pair(&pair);
}

static const struct plain_case CASES[] = {
    {"memory of a GPU, staged", messages},
    {"aborts while a GPU hangs", gpu_that_hangs},
    {"NCCL_PROTO that changes", protocol_of_before},
};

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    stand_in_path = argv[2];
    return run_cases(argv[1], CASES, sizeof CASES / sizeof CASES[0]);
}
