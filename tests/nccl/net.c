/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char failing_as[64] = "host";
static char garbage; /* what a forgotten *request points to */

void fail_as(const char *who)
{
    snprintf(failing_as, sizeof(failing_as), "%s", who);
}

void fail(const char *format, ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    fprintf(stderr, "FAILED %s: %s\n", failing_as, line);
    fflush(NULL);
    _exit(1);
}

/* A call that has the same arguments in all versions */
#define EACH(net, call)                                                                                                \
    ((net)->version == 8    ? (net)->v8->call                                                                          \
     : (net)->version == 9  ? (net)->v9->call                                                                          \
     : (net)->version == 10 ? (net)->v10->call                                                                         \
     : (net)->version == 11 ? (net)->v11->call                                                                         \
                            : (net)->v12->call)

/* ---- loading -------------------------------------------------------------------------------- */

void net_load(struct net *net, const char *path, unsigned version)
{
    char symbol[32];
    void *table;
    snprintf(symbol, sizeof(symbol), "ncclNetPlugin_v%u", version);
    net->version = version;
    net->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(net->library, "%s", dlerror());
    table = dlsym(net->library, symbol);
    CHECK(table, "%s", dlerror());
    net->v12 = table;
    /* required slots; those that NCCL may miss are looked at where it calls them */
    CHECK(EACH(net, name) && EACH(net, name)[0], "no name");
#define THERE(slot) CHECK(EACH(net, slot != NULL), "%s of version %u is NULL", #slot, version)
    THERE(init);
    THERE(devices);
    THERE(getProperties);
    THERE(listen);
    THERE(connect);
    THERE(accept);
    THERE(regMr);
    THERE(deregMr);
    THERE(isend);
    THERE(irecv);
    THERE(iflush);
    THERE(test);
    THERE(closeSend);
    THERE(closeRecv);
    THERE(closeListen);
#undef THERE
}

void net_unload(struct net *net)
{
    CHECK(dlclose(net->library) == 0, "%s", dlerror());
    net->library = NULL;
}

static enum nccl_result no_profiler(void **event, int type, void *parent, int64_t plugin, void *data)
{
    return NCCL_SUCCESS;
}

enum nccl_result net_init(const struct net *net, void **context, nccl_logger_fn logger)
{
    struct nccl_net_comm_config config = {NCCL_NET_UNDEFINED};
    *context = NULL;
    switch (net->version) {
    case 8:
        return net->v8->init(logger);
    case 9:
        return net->v9->init(logger);
    case 10:
        return net->v10->init(logger, no_profiler);
    case 11:
        return net->v11->init(context, 0x5eed, &config, logger, no_profiler);
    default:
        return net->v12->init(context, 0x5eed, &config, logger, no_profiler);
    }
}

enum nccl_result net_finalize(const struct net *net, void *context)
{
    if (net->version < 11)
        return NCCL_SUCCESS; /* older versions are told by dlclose() alone */
    return net->version == 11 ? net->v11->finalize(context) : net->v12->finalize(context);
}

enum nccl_result net_devices(const struct net *net, int *count)
{
    *count = -1;
    return EACH(net, devices(count));
}

/* Each field that both have */
#define COPY_PROPERTIES(out, in)                                                                                       \
    do {                                                                                                               \
        (out)->name = (in).name, (out)->pciPath = (in).pciPath, (out)->guid = (in).guid;                               \
        (out)->ptrSupport = (in).ptrSupport, (out)->regIsGlobal = (in).regIsGlobal, (out)->speed = (in).speed;         \
        (out)->port = (in).port, (out)->latency = (in).latency, (out)->maxComms = (in).maxComms;                       \
        (out)->maxRecvs = (in).maxRecvs, (out)->netDeviceType = (in).netDeviceType;                                    \
        (out)->netDeviceVersion = (in).netDeviceVersion;                                                               \
    } while (0)
#define COPY_LATER(out, in)                                                                                            \
    do {                                                                                                               \
        COPY_PROPERTIES(out, in);                                                                                      \
        (out)->forceFlush = (in).forceFlush, (out)->maxP2pBytes = (in).maxP2pBytes;                                    \
        (out)->maxCollBytes = (in).maxCollBytes, (out)->vProps.ndevs = (in).vProps.ndevs;                              \
        CHECK((in).vProps.ndevs >= 1 && (in).vProps.ndevs <= NCCL_NET_VDEVS_V9, "%d devices in vProps",                \
              (in).vProps.ndevs);                                                                                      \
        for (int i = 0; i < (in).vProps.ndevs; i++)                                                                    \
            (out)->vProps.devs[i] = (in).vProps.devs[i];                                                               \
    } while (0)

enum nccl_result net_properties(const struct net *net, int device, struct nccl_net_properties_v12 *out)
{
    enum nccl_result result;
    *out = (struct nccl_net_properties_v12){.vProps = {1, {device}},
                                            .maxP2pBytes = 1 << 30,
                                            .maxCollBytes = 1 << 29,
                                            .maxMultiRequestSize = 1,
                                            .railId = -1,
                                            .planeId = -1};
    /* NCCL's locals are not initialized: every field has to be written */
    if (net->version == 8) {
        struct nccl_net_properties_v8 p;
        memset(&p, 0xa5, sizeof(p));
        result = net->v8->getProperties(device, &p);
        if (result == NCCL_SUCCESS)
            COPY_PROPERTIES(out, p);
    } else if (net->version <= 10) {
        struct nccl_net_properties_v9 p;
        memset(&p, 0xa5, sizeof(p));
        result = net->version == 9 ? net->v9->getProperties(device, &p) : net->v10->getProperties(device, &p);
        if (result == NCCL_SUCCESS)
            COPY_LATER(out, p);
    } else if (net->version == 11) {
        struct nccl_net_properties_v11 p;
        memset(&p, 0xa5, sizeof(p));
        result = net->v11->getProperties(device, &p);
        if (result == NCCL_SUCCESS) {
            COPY_LATER(out, p);
            out->maxMultiRequestSize = p.maxMultiRequestSize;
        }
    } else {
        memset(out, 0xa5, sizeof(*out));
        result = net->v12->getProperties(device, out);
    }
    return result;
}

/* ---- connections ---------------------------------------------------------------------------- */

enum nccl_result net_listen(const struct net *net, void *context, int device, void *handle, void **listener)
{
    *listener = NULL;
    memset(handle, 0, NCCL_NET_HANDLE_BYTES);
    switch (net->version) {
    case 8:
        return net->v8->listen(device, handle, listener);
    case 9:
        return net->v9->listen(device, handle, listener);
    case 10:
        return net->v10->listen(device, handle, listener);
    case 11:
        return net->v11->listen(context, device, handle, listener);
    default:
        return net->v12->listen(context, device, handle, listener);
    }
}

/*
 * What connect and accept are given for a handle of the device. RCCL hands over four bytes there, so that a plugin
 * must neither read nor write a pointer.
 */
struct small_handle {
    uint32_t channel, canary[3];
};

static void check_small(const struct small_handle *handle)
{
    CHECK(handle->channel == 7 && handle->canary[0] == ~0u && handle->canary[1] == ~0u && handle->canary[2] == ~0u,
          "the device handle of connect or accept was written to");
}

enum nccl_result net_connect(const struct net *net, void *context, int device, void *handle, void **comm)
{
    struct nccl_net_comm_config config = {NCCL_NET_UNDEFINED};
    struct small_handle small = {7, {~0u, ~0u, ~0u}};
    struct nccl_net_device_handle **offload = (struct nccl_net_device_handle **)(void *)&small;
    enum nccl_result result;
    *comm = &garbage;
    switch (net->version) {
    case 8:
        result = net->v8->connect(device, handle, comm, offload);
        break;
    case 9:
        result = net->v9->connect(device, handle, comm, offload);
        break;
    case 10:
        result = net->v10->connect(device, &config, handle, comm, offload);
        break;
    case 11:
        result = net->v11->connect(context, device, handle, comm, offload);
        break;
    default:
        result = net->v12->connect(context, device, handle, comm, offload);
        break;
    }
    check_small(&small);
    CHECK(*comm != &garbage, "connect left *sendComm as it was (%d)", (int)result);
    CHECK(result == NCCL_SUCCESS || !*comm, "connect failed and gave a communicator");
    return result;
}

enum nccl_result net_accept(const struct net *net, void *listener, void **comm)
{
    struct small_handle small = {7, {~0u, ~0u, ~0u}};
    struct nccl_net_device_handle **offload = (struct nccl_net_device_handle **)(void *)&small;
    *comm = &garbage;
    enum nccl_result result = EACH(net, accept(listener, comm, offload));
    check_small(&small);
    CHECK(*comm != &garbage, "accept left *recvComm as it was (%d)", (int)result);
    CHECK(result == NCCL_SUCCESS || !*comm, "accept failed and gave a communicator");
    return result;
}

enum nccl_result net_close_send(const struct net *net, void *comm)
{
    return EACH(net, closeSend(comm));
}

enum nccl_result net_close_receive(const struct net *net, void *comm)
{
    return EACH(net, closeRecv(comm));
}

enum nccl_result net_close_listen(const struct net *net, void *listener)
{
    return EACH(net, closeListen(listener));
}

/* ---- memory and requests -------------------------------------------------------------------- */

enum nccl_result net_register(const struct net *net, void *comm, void *data, size_t size, void **mr)
{
    *mr = NULL;
    enum nccl_result result = EACH(net, regMr(comm, data, size, NCCL_PTR_HOST, mr));
    CHECK(result != NCCL_SUCCESS || *mr, "regMr of host memory gave no handle");
    return result;
}

enum nccl_result net_deregister(const struct net *net, void *comm, void *mr)
{
    return EACH(net, deregMr(comm, mr));
}

static void check_request(enum nccl_result result, void *request, const char *call)
{
    CHECK(result != NCCL_SUCCESS || (request != &garbage && request != (void *)NCCL_NET_EARLY),
          "%s left *request as it was", call);
}

enum nccl_result net_send(const struct net *net, void *comm, void *data, size_t size, int tag, void *mr, void **request)
{
    enum nccl_result result;
    *request = &garbage;
    switch (net->version) {
    case 8:
        result = net->v8->isend(comm, data, (int)size, tag, mr, request);
        break;
    case 9:
        result = net->v9->isend(comm, data, size, tag, mr, request);
        break;
    case 10:
        result = net->v10->isend(comm, data, size, tag, mr, NULL, request);
        break;
    case 11:
        result = net->v11->isend(comm, data, size, tag, mr, NULL, request);
        break;
    default:
        result = net->v12->isend(comm, data, size, tag, mr, NULL, request);
        break;
    }
    check_request(result, *request, "isend");
    return result;
}

enum nccl_result net_receive(const struct net *net, void *comm, void *data, size_t size, int tag, void *mr,
                             enum net_preset preset, void **request)
{
    enum nccl_result result;
    int old_size = (int)size;
    void *phandle = NULL;
    *request = preset == NET_EARLY && net->version >= 9 ? (void *)NCCL_NET_EARLY : &garbage;
    switch (net->version) {
    case 8:
        result = net->v8->irecv(comm, 1, &data, &old_size, &tag, &mr, request);
        break;
    case 9:
        result = net->v9->irecv(comm, 1, &data, &size, &tag, &mr, request);
        break;
    case 10:
        result = net->v10->irecv(comm, 1, &data, &size, &tag, &mr, &phandle, request);
        break;
    case 11:
        result = net->v11->irecv(comm, 1, &data, &size, &tag, &mr, &phandle, request);
        break;
    default:
        result = net->v12->irecv(comm, 1, &data, &size, &tag, &mr, &phandle, request);
        break;
    }
    check_request(result, *request, "irecv");
    return result;
}

enum nccl_result net_test(const struct net *net, void *request, int *done, int *size)
{
    *done = -1;
    enum nccl_result result = EACH(net, test(request, done, size));
    CHECK(result != NCCL_SUCCESS || *done == 0 || *done == 1, "test left *done as it was");
    return result;
}

enum nccl_result net_flush(const struct net *net, void *comm, void *data, int size, void *mr, void **request)
{
    *request = &garbage;
    enum nccl_result result = EACH(net, iflush(comm, 1, &data, &size, &mr, request));
    check_request(result, *request, "iflush");
    return result;
}

enum nccl_result net_consumed(const struct net *net, void *comm, void *request)
{
    return EACH(net, irecvConsumed != NULL) ? EACH(net, irecvConsumed(comm, 1, request)) : NCCL_SUCCESS;
}
