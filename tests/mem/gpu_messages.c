/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between GPU and host memory through the public API, on real GPUs and on the stand-ins
 * alike: which one the loader finds. A plain main that prints TAP.
 *
 *   gpu_messages cuda|hip GPU-OF-SIDE-0 GPU-OF-SIDE-1 [a GPU that nobody uses, or "touch"]
 *
 * Two engines in one process, one per side; all four pairs of GPU and host memory. Everything that a
 * message must not touch is looked at as well.
 */
#include "contents.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

enum { SIDES = 2 };

#define REGION_BYTES (UINT64_C(80) << 20)
#define BIG_BYTES (UINT64_C(64) << 20) /* more than all staging memory together */

/* One side's memory of one kind. */
struct place {
    const char *name;
    struct region region;
};

static struct device_choice gpu[SIDES];
static uccl_engine *engine[SIDES];
static uccl_conn *conn[SIDES];
static struct place places[SIDES][2]; /* GPU, host */
static uint64_t message_number;
static int cases;

static void passed(const char *name)
{
    printf("ok %d - %s\n", ++cases, name);
    fflush(stdout);
}

/* ---- what the runtime says about this thread and its devices --------------------------------- */

static void *look_up(const char *name)
{
    void *library = dlopen(gpu[0].kind == DEVICE_CUDA ? "libcuda.so.1" : "libamdhip64.so.6", RTLD_NOW);
    if (!library)
        library = dlopen("libamdhip64.so.5", RTLD_NOW);
    void *symbol = library ? dlsym(library, name) : NULL;
    CHECK(symbol, "%s", name);
    return symbol;
}

/* The current context or device of this thread. */
static uintptr_t current(void)
{
    if (gpu[0].kind == DEVICE_CUDA) {
        int (*get)(void **) = NULL;
        *(void **)&get = look_up("cuCtxGetCurrent");
        void *context = NULL;
        OK(get(&context));
        return (uintptr_t)context;
    }
    int (*get)(int *) = NULL, device = -1;
    *(void **)&get = look_up("hipGetDevice");
    OK(get(&device));
    return (uintptr_t)device;
}

/* Whether a device has a context; HIP does not tell before ROCm 6: then its own word counts. */
static bool in_use(int device)
{
    int (*state)(int, unsigned *, int *) = NULL, active = 0;
    unsigned flags = 0;
    *(void **)&state =
        look_up(gpu[0].kind == DEVICE_CUDA ? "cuDevicePrimaryCtxGetState" : "hipDevicePrimaryCtxGetState");
    OK(state(device, &flags, &active));
    return active != 0;
}

/* The last error of this thread, as an application asks for it after it has launched a kernel; CUDA's driver has none.
 */
static int last_error(void)
{
    int (*get)(void) = NULL;
    if (gpu[0].kind == DEVICE_CUDA)
        return 0;
    *(void **)&get = look_up("hipGetLastError");
    return get();
}

/* ---- one message ----------------------------------------------------------------------------- */

/* Test or wait: both ways must get a request to its end. */
static int finish(uccl_request *request, size_t *bytes, bool by_test)
{
    int done = 0, rc = 0;
    uint64_t end_ns = now_ns() + UINT64_C(60000000000);
    if (!by_test)
        return uccl_wait(request, 60000, bytes);
    while (!done && rc == 0) {
        rc = uccl_test(request, &done, bytes);
        CHECK(now_ns() < end_ns, "a request does not end");
    }
    return rc;
}

struct leg {
    struct region *from, *to;
    int sender; /* side */
    uint64_t from_offset, to_offset, size, room;
};

static void one(const struct leg *leg, bool late_receive)
{
    uint64_t number = ++message_number;
    uccl_request *send = NULL, *receive = NULL;
    uccl_conn *from = conn[leg->sender], *to = conn[!leg->sender];
    size_t sent = 1, received = 1;
    fill(leg->from, leg->from_offset, leg->size, number);
    poison(leg->to, leg->to_offset, leg->room);
    if (!late_receive)
        OK(uccl_recv_async(to, leg->to->base + leg->to_offset, leg->room, leg->to->mr, &receive));
    OK(uccl_send_async(from, leg->from->base + leg->from_offset, leg->size, leg->from->mr, &send));
    if (late_receive) {
        sleep_us(300); /* an eager message is there by now */
        OK(uccl_recv_async(to, leg->to->base + leg->to_offset, leg->room, leg->to->mr, &receive));
    }
    int receive_error = finish(receive, &received, number % 2);
    int send_error = finish(send, &sent, number % 3 == 0);
    if (leg->size > leg->room) {
        CHECK(send_error == UCCL_ETRUNCATED && receive_error == UCCL_ETRUNCATED, "%d and %d", send_error,
              receive_error);
        return; /* of what is within the buffer, nothing is promised */
    }
    OK(receive_error);
    OK(send_error);
    CHECK(sent == leg->size && received == leg->size, "%zu sent, %zu received of %lu", sent, received, leg->size);
    expect(leg->to, leg->to_offset, leg->size, leg->room, number);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void all_sizes(struct region *from, struct region *to, int sender)
{
    static const uint64_t sizes[] = {0,    1,     7,     64,    255,     1000,   4095,    4096,
                                     4097, 16384, 65535, 65536, 1 << 18, 999999, 1 << 20, (5 << 20) + 13};
    static const uint64_t offsets[] = {0, 1, 3, 8, 511};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++) {
            struct leg leg = {from, to, sender, offsets[o], GUARD + offsets[(o * 2 + s) % 5], sizes[s], sizes[s]};
            one(&leg, o == 2);
            leg.room += 1000;
            if (o == 1)
                one(&leg, false);
        }
    }
}

/* Many at once in both directions, of mixed sizes, each with its own part of the memory. */
static void many(struct region *const ends[SIDES])
{
    enum { MANY = 64, PART = 256 << 10 };
    struct {
        uccl_request *send, *receive;
        uint64_t size, number;
    } messages[SIDES][MANY];
    uint64_t random = 7, half = REGION_BYTES / 2;
    for (int side = 0; side < SIDES; side++) {
        for (int i = 0; i < MANY; i++) {
            uint64_t size = random_next(&random) % (i % 4 ? 3000 : PART - 2 * GUARD);
            messages[side][i].size = size;
            messages[side][i].number = ++message_number;
            fill(ends[side], (uint64_t)i * PART, size, message_number);
            poison(ends[!side], half + (uint64_t)i * PART + GUARD, size);
        }
    }
    for (int i = 0; i < MANY; i++) {
        for (int side = 0; side < SIDES; side++) {
            struct region *from = ends[side], *to = ends[!side];
            OK(uccl_recv_async(conn[!side], to->base + half + (uint64_t)i * PART + GUARD, messages[side][i].size,
                               to->mr, &messages[side][i].receive));
            OK(uccl_send_async(conn[side], from->base + (uint64_t)i * PART, messages[side][i].size, from->mr,
                               &messages[side][i].send));
        }
    }
    for (int i = 0; i < MANY; i++) {
        for (int side = 0; side < SIDES; side++) {
            uint64_t size = messages[side][i].size;
            OK(finish(messages[side][i].receive, NULL, false));
            OK(finish(messages[side][i].send, NULL, false));
            expect(ends[!side], half + (uint64_t)i * PART + GUARD, size, size, messages[side][i].number);
        }
    }
}

static void pair(int from, int to)
{
    char name[80];
    struct region *ends[SIDES] = {&places[0][from].region, &places[1][to].region};
    const char *const *names = (const char *const[]){"GPU", "host"};
    all_sizes(ends[0], ends[1], 0);
    snprintf(name, sizeof name, "%s to %s, every size and offset", names[from], names[to]);
    passed(name);
    many(ends);
    snprintf(name, sizeof name, "%s and %s, many at once both ways", names[from], names[to]);
    passed(name);
    one(&(struct leg){ends[0], ends[1], 0, 5, GUARD, 200000, 100000}, false);
    one(&(struct leg){ends[1], ends[0], 1, 5, GUARD, 3000, 100}, true);
    one(&(struct leg){ends[0], ends[1], 0, 5, GUARD, 3000, 3000}, false);
    snprintf(name, sizeof name, "%s to %s, too large a message", names[from], names[to]);
    passed(name);
    one(&(struct leg){ends[0], ends[1], 0, 0, GUARD, BIG_BYTES, BIG_BYTES}, false);
    snprintf(name, sizeof name, "%s to %s, 64 MiB", names[from], names[to]);
    passed(name);
}

static void registrations(void)
{
    struct region *region = &places[0][0].region;
    struct uccl_mr_info info;
    uccl_mr *mr = NULL;
    enum uccl_mem kind = gpu[0].kind == DEVICE_CUDA ? UCCL_MEM_CUDA : UCCL_MEM_HIP;
    char host[64];
    last_error();
    OK(uccl_reg_mr(engine[0], region->base + 4096, 100, UCCL_MEM_AUTO, &mr));
    OK(uccl_mr_get_info(mr, &info));
    CHECK(info.kind == kind && info.device == gpu[0].index, "kind %d, device %d", info.kind, info.device);
    CHECK(info.base == region->base && info.base_length >= region->bytes, "%p, %zu", info.base, info.base_length);
    CHECK(strlen(info.pci) >= 12, "%s", info.pci);
    OK(uccl_dereg_mr(mr));
    int rc = uccl_reg_mr(engine[0], region->base + 4096, region->bytes + (1 << 20), UCCL_MEM_AUTO, &mr);
    CHECK(rc == UCCL_EINVAL, "beyond the allocation: %d", rc);
    rc = uccl_reg_mr(engine[0], host, sizeof host, kind, &mr);
    CHECK(rc == UCCL_ENOTSUP, "host memory as the GPU's: %d", rc);
    OK(uccl_reg_mr(engine[0], host, sizeof host, UCCL_MEM_AUTO, &mr));
    OK(uccl_mr_get_info(mr, &info));
    CHECK(info.kind == UCCL_MEM_HOST && info.device == -1, "kind %d, device %d", info.kind, info.device);
    OK(uccl_dereg_mr(mr));
    rc = last_error();
    CHECK(rc == 0, "the application finds error %d, which is not its own", rc);
    passed("registrations say what the memory is");
}

/* Freed memory comes back at the same address as another allocation, of another length. */
static void reuse(void)
{
    struct region region;
    struct uccl_mr_info info;
    unsigned char *before = NULL;
    bool same = false;
    for (int i = 0; i < 16; i++) {
        uint64_t bytes = (UINT64_C(1) << 20) + (uint64_t)(i % 2) * (UINT64_C(1) << 20);
        region_make(&region, engine[0], &gpu[0], bytes);
        same |= region.base == before;
        before = region.base;
        OK(uccl_mr_get_info(region.mr, &info));
        CHECK(info.base == region.base && info.base_length >= bytes && info.base_length < bytes + (2 << 20),
              "allocation of %lu at %p: %zu at %p", bytes, (void *)region.base, info.base_length, info.base);
        one(&(struct leg){&region, &places[1][1].region, 0, 0, GUARD, bytes, bytes}, false);
        region_free(&region);
    }
    printf("# an address %s\n", same ? "came back" : "never came back");
    passed("memory that is freed and comes back");
}

static void cancelled(void)
{
    struct region *from = &places[0][0].region, *to = &places[1][0].region;
    uccl_request *receive = NULL, *send = NULL;
    poison(to, GUARD, 1 << 20);
    OK(uccl_recv_async(conn[1], to->base + GUARD, 1 << 20, to->mr, &receive));
    OK(uccl_cancel(receive));
    int rc = uccl_wait(receive, 10000, NULL);
    CHECK(rc == UCCL_ECANCELED, "%d", rc);
    /* its send ends too, and the next pair works */
    OK(uccl_send_async(conn[0], from->base, 1 << 20, from->mr, &send));
    rc = uccl_wait(send, 10000, NULL);
    CHECK(rc == UCCL_ECANCELED, "%d", rc);
    expect(to, GUARD, 0, 1 << 20, 0);
    one(&(struct leg){from, to, 0, 0, GUARD, 100000, 100000}, false);
    passed("a cancelled receive writes nothing");
}

/* Requests that are under way when their connection is closed. */
static void closed(void)
{
    enum { PENDING = 8 };
    uccl_request *requests[PENDING];
    struct region *from = &places[0][0].region, *to = &places[1][0].region;
    for (int i = 0; i < PENDING; i++) {
        if (i % 2)
            OK(uccl_send_async(conn[0], from->base, 8 << 20, from->mr, &requests[i]));
        else
            OK(uccl_recv_async(conn[1], to->base, 8 << 20, to->mr, &requests[i]));
    }
    OK(uccl_conn_close(conn[1]));
    OK(uccl_conn_close(conn[0]));
    for (int i = 0; i < PENDING; i++) {
        int rc = uccl_wait(requests[i], 10000, NULL);
        CHECK(rc == 0 || rc == UCCL_ECANCELED || rc == UCCL_ECLOSED, "%d", rc);
    }
    passed("connections close under messages");
}

/* ---------------------------------------------------------------------------------------------- */

static void make_places(void)
{
    static const struct device_choice host = {DEVICE_CPU, 0, false};
    for (int side = 0; side < SIDES; side++) {
        region_make(&places[side][0].region, engine[side], &gpu[side], REGION_BYTES);
        region_make(&places[side][1].region, engine[side], &host, REGION_BYTES);
    }
}

int main(int argc, char **argv)
{
    char fault[256];
    int third = argc > 4 ? atoi(argv[4]) : -1;
    CHECK(argc >= 4, "gpu_messages cuda|hip GPU GPU [GPU]");
    for (int side = 0; side < SIDES; side++) {
        gpu[side].kind = strcmp(argv[1], "hip") == 0 ? DEVICE_HIP : DEVICE_CUDA;
        gpu[side].index = atoi(argv[2 + side]);
        engine[side] = engine_open("no", "20");
    }
    /* the application's own use of the GPUs */
    for (int side = 0; side < SIDES; side++)
        CHECK(device_open(&gpu[side], fault), "%s", fault);
    struct uccl_handle handle;
    uccl_listener *listener;
    OK(uccl_listen(engine[1], 0, 0, &handle, &listener));
    engines_connect(engine[0], &handle, listener, conn);
    make_places();
    if (argc > 4 && strcmp(argv[4], "touch") == 0)
        places[0][0].region.base[0] = 1; /* ends this process, where GPU memory is what it should be */
    OK(!device_open(&gpu[0], fault));    /* this thread's device from here on */
    uintptr_t own = current();
    registrations();
    for (int i = 0; i < 4; i++)
        pair(i / 2, i % 2);
    reuse();
    cancelled();
    closed();
    CHECK(current() == own, "this thread's device is another one now");
    passed("this thread's device stays the same");
    if (third >= 0) {
        CHECK(!in_use(third), "GPU %d has a context", third);
        passed("a GPU that is not used has no context");
    }
    for (int side = 0; side < SIDES; side++)
        for (int i = 0; i < 2; i++)
            region_free(&places[side][i].region);
    OK(uccl_listener_close(listener));
    OK(uccl_close(engine[0]));
    OK(uccl_close(engine[1]));
    printf("1..%d\n", cases);
    return 0;
}
