/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports memory of a GPU as a dma-buf, on a real runtime or a stand-in, and looks at what that leaves behind:
 *
 *     gpu_export cuda|hip [exported|refused]
 *
 * prints what came of it; with a second argument anything else is a failure. The thread's context and capture
 * mode must be as before, and a capture that is under way unharmed (where the runtime has captures).
 */
#include "mem/mem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BYTES = 3 << 20, PAGE = 1 << 16 };

static void *library;

static void check(bool fine, const char *what)
{
    if (fine)
        return;
    printf("failed: %s\n", what);
    exit(1);
}

/* A function of the runtime: CALL(cuInit, (unsigned))(0) */
#define CALL(name, parameters) (*(int(*(*)) parameters)look_up(#name, false))
#define HAS(name) (look_up(#name, true) != NULL)

static void *look_up(const char *name, bool optional)
{
    static void *symbol; /* whose address stands for a pointer to the function's */
    symbol = dlsym(library, name);
    check(symbol || optional, name);
    return symbol ? &symbol : NULL;
}

static void *cuda_memory(void)
{
    void *context = NULL;
    uintptr_t memory = 0;
    check(CALL(cuInit, (unsigned))(0) == 0, "cuInit");
    check(CALL(cuDevicePrimaryCtxRetain, (void **, int))(&context, 0) == 0, "a context");
    check(CALL(cuCtxSetCurrent, (void *))(context) == 0, "its use");
    check(CALL(cuMemAlloc_v2, (uintptr_t *, size_t))(&memory, BYTES) == 0, "memory");
    return (void *)memory;
}

static void *hip_memory(void)
{
    void *memory = NULL;
    check(CALL(hipInit, (unsigned))(0) == 0, "hipInit");
    check(CALL(hipMalloc, (void **, size_t))(&memory, BYTES) == 0, "memory");
    return memory;
}

/* Registers like gpu/direct.c does. True: it was exported. */
static bool export(const struct mem_ops *ops, const void *memory)
{
    struct mem_identity is;
    char why[MEM_WHY_TEXT] = "";
    uint64_t offset = 77;
    struct stat file;
    int fd = -1;
    check(mem_identify(UCCL_MEM_AUTO, (const char *)memory + 1000, 1, &is) == UCCL_OK && is.ops == ops, "what it is");
    check(is.managed == (getenv("FAKE_GPU_MANAGED") != NULL), "whether it counts as managed");
    uintptr_t from = is.base / PAGE * PAGE, to = (is.base + is.base_length + PAGE - 1) / PAGE * PAGE;
    int error = ops->export_dmabuf(&is, from, to - from, &fd, &offset, why);
    if (error) {
        check(error == UCCL_ENOTSUP && *why && fd == -1, "an error without a reason");
        printf("refused: %s\n", why);
        return false;
    }
    check(fstat(fd, &file) == 0 && close(fd) == 0, "its descriptor");
    printf("exported %zu bytes, at %llu of the dma-buf\n", (size_t)(to - from), (unsigned long long)offset);
    return true;
}

/* In the midst of a capture, which forbids most calls to this thread. */
static void capture(const struct mem_ops *ops, const void *memory)
{
    void *stream = NULL, *graph = NULL;
    check(CALL(cuStreamCreate, (void **, unsigned))(&stream, 1) == 0, "a stream");
    check(CALL(cuStreamBeginCapture_v2, (void *, int))(stream, 0) == 0, "a capture begins");
    export(ops, memory);
    check(CALL(cuStreamEndCapture, (void *, void **))(stream, &graph) == 0 && graph, "the capture was spoilt");
    printf("a capture is as well as before\n");
}

int main(int argc, char **argv)
{
    bool cuda = argc > 1 && strcmp(argv[1], "cuda") == 0;
    const struct mem_ops *ops = mem_ops_of(cuda ? UCCL_MEM_CUDA : UCCL_MEM_HIP);
    check(argc > 1 && argc < 4 && ops, "usage: gpu_export cuda|hip [exported|refused]");
    for (unsigned i = 0; i < 4 && !library; i++) {
        static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
        library = dlopen(cuda ? "libcuda.so.1" : names[i < 3 ? i : 2], RTLD_NOW);
    }
    check(library, "no runtime");
    struct mem_device device;
    const char *told = getenv("FAKE_GPU_DEVICES");
    int count = 0;
    while (ops->device(count, &device) == UCCL_OK)
        count++;
    check(!told || count == atoi(told), "the number of devices");
    void *memory = cuda ? cuda_memory() : hip_memory(), *before = NULL, *after = NULL;
    if (cuda)
        check(CALL(cuCtxGetCurrent, (void **))(&before) == 0 && before, "the context");
    bool exported = export(ops, memory);
    if (cuda) {
        int mode = 0; /* global */
        check(CALL(cuCtxGetCurrent, (void **))(&after) == 0 && after == before, "the context has changed");
        check(CALL(cuThreadExchangeStreamCaptureMode, (int *))(&mode) == 0 && mode == 0,
              "the capture mode has changed");
        if (HAS(cuStreamBeginCapture_v2))
            capture(ops, memory);
    }
    if (argc == 3)
        check(strcmp(argv[2], exported ? "exported" : "refused") == 0, argv[2]);
    return 0;
}
