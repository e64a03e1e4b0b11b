/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuccl_p2p.so where a GPU does not end its copies (a stand-in, tests/mem/fake_gpu.h): an agent that reads into the
 * GPU's memory gets rid of the connection, and of the engine, soon.
 *
 * usage: nixl_gpu STAND-IN-FOR-CUDA
 */
#include "nixl_ends.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <unistd.h>

namespace
{

constexpr size_t BYTES = 1 << 20;
constexpr long SOON_MS = 8000;
constexpr unsigned LIMIT_S = 40;

template <typename Function> Function *look_up(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    CHECK(symbol);
    return reinterpret_cast<Function *>(symbol);
}

uintptr_t gpu_memory(const char *stand_in)
{
    void *library = dlopen(stand_in, RTLD_NOW), *context;
    uintptr_t memory;
    CHECK(library);
    CHECK(look_up<int(unsigned)>(library, "cuInit")(0) == 0);
    CHECK(look_up<int(void **, int)>(library, "cuDevicePrimaryCtxRetain")(&context, 0) == 0);
    CHECK(look_up<int(void *)>(library, "cuCtxPushCurrent_v2")(context) == 0);
    CHECK(look_up<int(uintptr_t *, size_t)>(library, "cuMemAlloc_v2")(&memory, BYTES) == 0);
    return memory;
}

void ends_soon(const char *what, long began_ms)
{
    long took_ms = now_ms() - began_ms;
    fprintf(stderr, "# %s: %ld ms\n", what, took_ms);
    CHECK(took_ms < SOON_MS);
}

} // namespace

int main(int argc, char **argv)
{
    static char host[BYTES];
    uccl_mr_t gpu_mr, host_mr;
    FifoItem item;
    char fifo[FIFO_SIZE];
    uint64_t transfer;
    CHECK(argc == 2);
    alarm(LIMIT_S);
    setenv("FAKE_GPU_LATE", "2000000000", 1);
    uintptr_t gpu = gpu_memory(argv[1]);
    uccl_engine_t *engine = uccl_engine_create(0, false);
    CHECK(engine);
    uccl_conn_t *conn = connect_by(metadata_of(engine), engine, true);
    CHECK(conn);
    CHECK(uccl_engine_reg(engine, gpu, BYTES, gpu_mr) == 0);
    CHECK(uccl_engine_reg(engine, reinterpret_cast<uintptr_t>(host), BYTES, host_mr) == 0);
    CHECK(uccl_engine_prepare_fifo(engine, host_mr, host, BYTES, fifo) == 0);
    deserialize_fifo_item(fifo, &item);
    for (int i = 0; i < 3; i++)
        CHECK(uccl_engine_read_vector(conn, {gpu_mr}, {reinterpret_cast<void *>(gpu)}, {BYTES}, {item}, 1, &transfer,
                                      {}) == 0);
    usleep(500000);
    CHECK(!uccl_engine_xfer_status(conn, transfer));
    long began_ms = now_ms();
    uccl_engine_conn_destroy(conn);
    ends_soon("the connection", began_ms);
    began_ms = now_ms();
    uccl_engine_destroy(engine);
    ends_soon("the engine", began_ms);
    _exit(0); /* what stays with the GPU is no leak */
}
