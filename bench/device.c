/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See device.h. CUDA is its driver library, which is there wherever a GPU is; HIP is its runtime. Both are told from
 * nothing but the few prototypes below, so that the tools build without either.
 */
#include "device.h"

#include "tool.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What a driver can do, in our terms. 0 or the driver's error; pointers of devices as it has them. */
struct driver {
    const char *name;
    void *library;
    int (*start)(void);
    int (*count)(int *devices);
    int (*use)(int device);
    int (*allocate)(void **out, size_t bytes);
    int (*release)(void *memory);
    int (*allocate_pinned)(void **out, size_t bytes);
    int (*release_pinned)(void *memory);
    int (*store)(void *device, const void *host, size_t bytes); /* complete on return */
    int (*load)(void *host, const void *device, size_t bytes);
    const char *(*error_text)(int error);
};

/* The symbols of a library, looked up in a table of names. False: `missing` names the first that is not there. */
static bool resolve(void *library, const char *const *names, void **const *slots, size_t count, const char **missing)
{
    for (size_t i = 0; i < count; i++) {
        *slots[i] = dlsym(library, names[i]);
        if (!*slots[i]) {
            *missing = names[i];
            return false;
        }
    }
    return true;
}

/* ---- CUDA: libcuda.so.1 ---- */

typedef unsigned long long cuda_pointer; /* CUdeviceptr */

static struct {
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*primary_retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*synchronize)(void);
    int (*mem_alloc)(cuda_pointer *out, size_t bytes);
    int (*mem_free)(cuda_pointer memory);
    int (*host_alloc)(void **out, size_t bytes, unsigned flags);
    int (*host_free)(void *memory);
    int (*to_device)(cuda_pointer to, const void *from, size_t bytes);
    int (*to_host)(void *to, cuda_pointer from, size_t bytes);
    int (*error_string)(int error, const char **text);
} cuda;

static const char *const cuda_names[] = {
    "cuInit",          "cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuCtxSynchronize",
    "cuMemAlloc_v2",   "cuMemFree_v2",     "cuMemHostAlloc",           "cuMemFreeHost",   "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2", "cuGetErrorString",
};

static void **const cuda_slots[] = {
    (void **)&cuda.init,        (void **)&cuda.device_count, (void **)&cuda.primary_retain, (void **)&cuda.set_current,
    (void **)&cuda.synchronize, (void **)&cuda.mem_alloc,    (void **)&cuda.mem_free,       (void **)&cuda.host_alloc,
    (void **)&cuda.host_free,   (void **)&cuda.to_device,    (void **)&cuda.to_host,        (void **)&cuda.error_string,
};

static int cuda_start(void)
{
    return cuda.init(0);
}

static int cuda_count(int *devices)
{
    return cuda.device_count(devices);
}

/* Each context is retained once, for as long as the process lives. */
static int cuda_use(int device)
{
    static void *contexts[64];
    void *more = NULL, **context = device < 64 ? &contexts[device] : &more;
    int error = *context ? 0 : cuda.primary_retain(context, device);
    return error != 0 ? error : cuda.set_current(*context);
}

static int cuda_allocate(void **out, size_t bytes)
{
    cuda_pointer memory = 0;
    int error = cuda.mem_alloc(&memory, bytes);
    *out = (void *)(uintptr_t)memory;
    return error;
}

static int cuda_release(void *memory)
{
    return cuda.mem_free((cuda_pointer)(uintptr_t)memory);
}

static int cuda_allocate_pinned(void **out, size_t bytes)
{
    return cuda.host_alloc(out, bytes, 1); /* CU_MEMHOSTALLOC_PORTABLE */
}

static int cuda_release_pinned(void *memory)
{
    return cuda.host_free(memory);
}

/* A copy from pageable memory may return before it is in the device's. */
static int cuda_store(void *device, const void *host, size_t bytes)
{
    int error = cuda.to_device((cuda_pointer)(uintptr_t)device, host, bytes);
    return error != 0 ? error : cuda.synchronize();
}

static int cuda_load(void *host, const void *device, size_t bytes)
{
    return cuda.to_host(host, (cuda_pointer)(uintptr_t)device, bytes);
}

static const char *cuda_error_text(int error)
{
    const char *text = NULL;
    return cuda.error_string(error, &text) == 0 && text ? text : "unknown error";
}

/* ---- HIP: libamdhip64 ---- */

enum { HIP_HOST_TO_DEVICE = 1, HIP_DEVICE_TO_HOST = 2, HIP_HOST_PORTABLE = 1 };

static struct {
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*set_device)(int device);
    int (*synchronize)(void);
    int (*malloc)(void **out, size_t bytes);
    int (*free)(void *memory);
    int (*host_malloc)(void **out, size_t bytes, unsigned flags);
    int (*host_free)(void *memory);
    int (*memcpy)(void *to, const void *from, size_t bytes, int direction);
    const char *(*error_string)(int error);
} hip;

static const char *const hip_names[] = {
    "hipInit",       "hipGetDeviceCount", "hipSetDevice", "hipDeviceSynchronize", "hipMalloc", "hipFree",
    "hipHostMalloc", "hipHostFree",       "hipMemcpy",    "hipGetErrorString",
};

static void **const hip_slots[] = {
    (void **)&hip.init,   (void **)&hip.device_count, (void **)&hip.set_device,  (void **)&hip.synchronize,
    (void **)&hip.malloc, (void **)&hip.free,         (void **)&hip.host_malloc, (void **)&hip.host_free,
    (void **)&hip.memcpy, (void **)&hip.error_string,
};

static int hip_start(void)
{
    return hip.init(0);
}

static int hip_count(int *devices)
{
    return hip.device_count(devices);
}

static int hip_use(int device)
{
    return hip.set_device(device);
}

static int hip_allocate(void **out, size_t bytes)
{
    return hip.malloc(out, bytes);
}

static int hip_release(void *memory)
{
    return hip.free(memory);
}

static int hip_allocate_pinned(void **out, size_t bytes)
{
    return hip.host_malloc(out, bytes, HIP_HOST_PORTABLE);
}

static int hip_release_pinned(void *memory)
{
    return hip.host_free(memory);
}

static int hip_store(void *device, const void *host, size_t bytes)
{
    int error = hip.memcpy(device, host, bytes, HIP_HOST_TO_DEVICE);
    return error != 0 ? error : hip.synchronize();
}

static int hip_load(void *host, const void *device, size_t bytes)
{
    return hip.memcpy(host, device, bytes, HIP_DEVICE_TO_HOST);
}

static const char *hip_error_text(int error)
{
    return hip.error_string(error);
}

/* ---- either ---- */

static const char *const cuda_libraries[] = {"libcuda.so.1", NULL};
static const char *const hip_libraries[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", NULL};

static struct driver drivers[DEVICE_KINDS] = {
    [DEVICE_CUDA] = {.name = "cuda",
                     .start = cuda_start,
                     .count = cuda_count,
                     .use = cuda_use,
                     .allocate = cuda_allocate,
                     .release = cuda_release,
                     .allocate_pinned = cuda_allocate_pinned,
                     .release_pinned = cuda_release_pinned,
                     .store = cuda_store,
                     .load = cuda_load,
                     .error_text = cuda_error_text},
    [DEVICE_HIP] = {.name = "hip",
                    .start = hip_start,
                    .count = hip_count,
                    .use = hip_use,
                    .allocate = hip_allocate,
                    .release = hip_release,
                    .allocate_pinned = hip_allocate_pinned,
                    .release_pinned = hip_release_pinned,
                    .store = hip_store,
                    .load = hip_load,
                    .error_text = hip_error_text},
};

/* Loads a driver and counts its devices; false writes why there are none. */
static bool driver_open(enum device_kind kind, int *devices, char fault[256])
{
    struct driver *driver = &drivers[kind];
    const char *const *names = kind == DEVICE_CUDA ? cuda_libraries : hip_libraries;
    const char *missing = NULL;
    for (; *names && !driver->library; names++)
        driver->library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        snprintf(fault, 256, "there is no %s driver here (%s)", driver->name,
                 kind == DEVICE_CUDA ? cuda_libraries[0] : "libamdhip64.so.5 to .7");
        return false;
    }
    bool all =
        kind == DEVICE_CUDA
            ? resolve(driver->library, cuda_names, cuda_slots, sizeof(cuda_names) / sizeof(*cuda_names), &missing)
            : resolve(driver->library, hip_names, hip_slots, sizeof(hip_names) / sizeof(*hip_names), &missing);
    if (!all) {
        snprintf(fault, 256, "the %s driver is too old: it has no %s", driver->name, missing);
        return false;
    }
    int error = driver->start();
    if (error == 0)
        error = driver->count(devices);
    if (error != 0)
        snprintf(fault, 256, "the %s driver does not start: %s (%d)", driver->name, driver->error_text(error), error);
    else if (*devices == 0)
        snprintf(fault, 256, "the %s driver shows no GPU", driver->name);
    return error == 0 && *devices > 0;
}

void device_parse(struct argp_state *state, const char *flag, const char *text, bool any_gpu, struct device_choice *out)
{
    const char *number = NULL;
    char fault[256], *end = NULL;
    int devices = 0;
    out->index = 0;
    if (strcmp(text, "cpu") == 0) {
        out->kind = DEVICE_CPU;
        return;
    }
    for (enum device_kind kind = DEVICE_CUDA; kind < DEVICE_KINDS; kind++) {
        size_t length = strlen(drivers[kind].name);
        if (strncmp(text, drivers[kind].name, length) == 0 && text[length] == ':') {
            out->kind = kind;
            number = text + length + 1;
        }
    }
    if (any_gpu && text[0] >= '0' && text[0] <= '9') {
        out->kind = driver_open(DEVICE_HIP, &devices, fault) ? DEVICE_HIP : DEVICE_CUDA;
        out->kind = driver_open(DEVICE_CUDA, &devices, fault) ? DEVICE_CUDA : out->kind;
        number = text;
    }
    long value = number && *number >= '0' && *number <= '9' ? strtol(number, &end, 10) : -1;
    if (value < 0 || value > 1023 || *end != '\0')
        argp_error(state, "--%s=%s: allowed are cpu, cuda:N and hip:N%s, with N from 0 to 1023", flag, text,
                   any_gpu ? ", or N alone" : "");
    out->index = (int)value;
}

uint64_t device_pack(const struct device_choice *choice)
{
    return (uint64_t)choice->pinned << 63 | (uint64_t)choice->kind << 32 | (uint32_t)choice->index;
}

bool device_unpack(uint64_t word, struct device_choice *out)
{
    uint64_t kind = word << 1 >> 33;
    if (kind >= DEVICE_KINDS || (uint32_t)word > 1023)
        return false;
    *out = (struct device_choice){(enum device_kind)kind, (int)(uint32_t)word, word >> 63};
    return true;
}

const char *device_text(const struct device_choice *choice, char out[32])
{
    if (choice->kind == DEVICE_CPU)
        snprintf(out, 32, "cpu%s", choice->pinned ? ", pinned" : "");
    else
        snprintf(out, 32, "%s:%d", drivers[choice->kind].name, choice->index);
    return out;
}

/* The driver behind a choice; of pinned host memory: the one that started. */
static struct driver *driver_of(const struct device_choice *choice)
{
    if (choice->kind != DEVICE_CPU)
        return &drivers[choice->kind];
    return drivers[DEVICE_CUDA].library ? &drivers[DEVICE_CUDA] : &drivers[DEVICE_HIP];
}

bool device_open(const struct device_choice *choice, char fault[256])
{
    int devices = 0, device = choice->index;
    enum device_kind kind = choice->kind;
    if (kind == DEVICE_CPU && !choice->pinned)
        return true;
    char why[256], no_cuda[256] = "";
    if (kind == DEVICE_CPU) {
        kind = DEVICE_CUDA;
        device = 0;
        if (!driver_open(kind, &devices, no_cuda)) {
            drivers[kind].library = NULL;
            kind = DEVICE_HIP;
        }
    }
    if (!driver_open(kind, &devices, why)) {
        if (choice->kind == DEVICE_CPU)
            snprintf(fault, 256, "page-locked memory needs a GPU: %.100s; %.100s", no_cuda, why);
        else
            snprintf(fault, 256, "%s", why);
        return false;
    }
    if (device >= devices) {
        snprintf(fault, 256, "there is no GPU %s:%d, only %d", drivers[kind].name, device, devices);
        return false;
    }
    int error = drivers[kind].use(device);
    if (error != 0)
        snprintf(fault, 256, "GPU %s:%d cannot be used: %s (%d)", drivers[kind].name, device,
                 drivers[kind].error_text(error), error);
    return error == 0;
}

/* ---- regions ---- */

static void check(const struct region *region, int error, const char *doing)
{
    char where[32];
    if (error != 0)
        tool_fail("%s on %s has failed: %s (%d)", doing, device_text(&region->where, where),
                  driver_of(&region->where)->error_text(error), error);
}

/* The calling thread's GPU may be another one by now. */
static int allocate_on(const struct driver *driver, int device, void **out, uint64_t bytes)
{
    int error = driver->use(device);
    return error != 0 ? error : driver->allocate(out, bytes);
}

void region_make(struct region *region, uccl_engine *engine, const struct device_choice *where, uint64_t bytes)
{
    static const enum uccl_mem kinds[] = {UCCL_MEM_HOST, UCCL_MEM_CUDA, UCCL_MEM_HIP};
    void *memory = NULL;
    char text[32];
    *region = (struct region){.where = *where, .bytes = bytes != 0 ? bytes : 1};
    if (where->kind == DEVICE_CPU && !where->pinned)
        memory = tool_allocate(region->bytes);
    else if (where->kind == DEVICE_CPU)
        check(region, driver_of(where)->allocate_pinned(&memory, region->bytes), "allocating message buffers");
    else
        check(region, allocate_on(driver_of(where), where->index, &memory, region->bytes),
              "allocating message buffers");
    region->base = memory;
    int rc = uccl_reg_mr(engine, memory, region->bytes, kinds[where->kind], &region->mr);
    if (rc != 0)
        tool_fail_uccl(rc, "registering message buffers on %s", device_text(where, text));
}

void region_free(struct region *region)
{
    if (region->mr)
        uccl_dereg_mr(region->mr);
    if (region->where.kind != DEVICE_CPU)
        driver_of(&region->where)->release(region->base);
    else if (region->where.pinned)
        driver_of(&region->where)->release_pinned(region->base);
    else if (region->base)
        munmap(region->base, region->bytes);
    free(region->scratch);
    *region = (struct region){0};
}

void *region_scratch(struct region *region, void *at, uint64_t bytes)
{
    if (region->where.kind == DEVICE_CPU)
        return at;
    if (!region->scratch || region->scratch_bytes < bytes) {
        free(region->scratch);
        region->scratch = malloc(bytes != 0 ? bytes : 1);
        region->scratch_bytes = bytes;
        if (!region->scratch)
            tool_fail("out of memory for %" PRIu64 " MiB of contents", bytes / MIB);
    }
    return region->scratch;
}

void region_store(const struct region *region, void *at, uint64_t bytes)
{
    if (region->where.kind != DEVICE_CPU && bytes != 0)
        check(region, drivers[region->where.kind].store(at, region->scratch, bytes), "writing message buffers");
}

void region_load(const struct region *region, const void *at, uint64_t bytes)
{
    if (region->where.kind != DEVICE_CPU && bytes != 0)
        check(region, drivers[region->where.kind].load(region->scratch, at, bytes), "reading message buffers");
}
