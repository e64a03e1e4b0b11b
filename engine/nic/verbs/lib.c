/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/verbs/lib.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* what follows */
static bool tried;                                       /* what came of it holds for the life of the process */
static struct verbs_lib loaded;
static const struct verbs_lib *lib; /* NULL: not there */
static char reason[256];

/* A symbol of the version that our header describes: older ones have other structs behind them. */
static void *find_symbol(void *handle, const char *name, const char *version)
{
    return dlvsym(handle, name, version);
}

/* dlopen() does not say whether descriptors ran out. */
static bool has_descriptor(void)
{
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd >= 0 || (errno != EMFILE && errno != ENFILE);
}

static void load(void)
{
    void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    tried = handle || has_descriptor();
    if (!handle) {
        snprintf(reason, sizeof reason, "%.150s; install rdma-core (libibverbs1 and ibverbs-providers)", dlerror());
        return;
    }
/* POSIX says that the pointer that dlsym() returns converts to one to a function; ISO C does not */
#define CALL(result, name, version, parameters)                                                                        \
    *(void **)(void *)&loaded.name = find_symbol(handle, "ibv_" #name, version);
    VERBS_CALLS(CALL)
    VERBS_OPTIONAL_CALLS(CALL)
#undef CALL
#define CALL(result, name, version, parameters)                                                                        \
    if (!loaded.name) {                                                                                                \
        snprintf(reason, sizeof reason,                                                                                \
                 "libibverbs.so.1 has no ibv_" #name " of version " version "; update rdma-core");                     \
        return;                                                                                                        \
    }
    VERBS_CALLS(CALL)
#undef CALL
    lib = &loaded;
}

static const struct verbs_lib *stand_in;

void verbs_set_test_lib(const struct verbs_lib *test_lib)
{
    stand_in = test_lib;
}

const struct verbs_lib *verbs_lib(const char **why)
{
    if (stand_in)
        return stand_in;
    pthread_mutex_lock(&lock);
    if (!tried)
        load();
    pthread_mutex_unlock(&lock);
    *why = reason;
    return lib;
}

/* Calls of the extended context: its struct grows at the beginning. */
#define HAS(extended, call)                                                                                            \
    ((extended) && (extended)->sz >= sizeof *(extended)-offsetof(struct verbs_context, call) && (extended)->call)

bool verbs_query_clock(struct ibv_context *context, uint64_t *mask, uint64_t *khz)
{
    const struct verbs_context *extended = verbs_get_ctx(context);
    struct ibv_query_device_ex_input input = {0};
    struct ibv_device_attr_ex attr;
    memset(&attr, 0, sizeof attr);
    if (!HAS(extended, query_device_ex) || extended->query_device_ex(context, &input, &attr, sizeof attr) != 0)
        return false;
    *mask = attr.completion_timestamp_mask;
    *khz = attr.hca_core_clock;
    return *mask != 0 && *khz != 0;
}

int verbs_query_port(const struct verbs_lib *calls, struct ibv_context *context, uint8_t port,
                     struct ibv_port_attr *out)
{
    const struct verbs_context *extended = verbs_get_ctx(context);
    memset(out, 0, sizeof *out);
    /* the plain call fills the shorter attributes of its time */
    return HAS(extended, query_port) ? extended->query_port(context, port, out, sizeof *out)
                                     : calls->query_port(context, port, out);
}
