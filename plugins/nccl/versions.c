/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables that NCCL looks for, newest first: v12 is what the plugin is written for, and each older one differs from
 * the next as said where it does. Every output is written, also where the call fails. Every call fails in a child of
 * fork() that inherited engines.
 */
#include "plugin.h"

#include <string.h>

/* ---- all versions ----------------------------------------------------------------------------- */

static enum nccl_result devices(int *ndev)
{
    *ndev = 0;
    FAIL_IN_CHILD();
    *ndev = devices_count();
    return NCCL_SUCCESS;
}

/*
 * The last argument of connect and accept is for GPUs that drive a connection. It stays untouched: with some NICs,
 * RCCL has something smaller than a pointer there.
 */
static enum nccl_result accept_comm(void *listen_comm, void **recv_comm, struct nccl_net_device_handle **device)
{
    struct comm *comm = NULL;
    *recv_comm = NULL;
    FAIL_IN_CHILD();
    enum nccl_result result = comm_accept(listen_comm, &comm);
    *recv_comm = comm;
    return result;
}

static enum nccl_result reg_mr(void *comm, void *data, size_t size, int type, void **mhandle)
{
    uccl_mr *mr = NULL;
    *mhandle = NULL;
    FAIL_IN_CHILD();
    enum nccl_result result = memory_register(comm, data, size, type, &mr);
    *mhandle = mr;
    return result;
}

static enum nccl_result reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                      void **mhandle)
{
    uccl_mr *mr = NULL;
    *mhandle = NULL;
    FAIL_IN_CHILD();
    enum nccl_result result = memory_register_dmabuf(comm, data, size, type, offset, fd, &mr);
    *mhandle = mr;
    return result;
}

static enum nccl_result dereg_mr(void *comm, void *mhandle)
{
    FAIL_IN_CHILD();
    return memory_deregister(comm, mhandle);
}

static enum nccl_result flush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request)
{
    *request = NULL;
    FAIL_IN_CHILD();
    return request_flush(recv_comm, n, data, sizes, mhandles, request);
}

static enum nccl_result test(void *request, int *done, int *sizes)
{
    *done = 0;
    FAIL_IN_CHILD();
    return request_test(request, done, sizes);
}

static enum nccl_result close_comm(void *comm)
{
    FAIL_IN_CHILD();
    return comm_close(comm);
}

static enum nccl_result close_listen(void *listen_comm)
{
    FAIL_IN_CHILD();
    return comm_close_listen(listen_comm);
}

static enum nccl_result listen_for(struct context *context, int dev, void *handle, void **out)
{
    struct listen_comm *listen_comm = NULL;
    *out = NULL;
    FAIL_IN_CHILD();
    enum nccl_result result = comm_listen(context, dev, handle, &listen_comm);
    *out = listen_comm;
    return result;
}

static enum nccl_result connect_for(struct context *context, int dev, int traffic_class, void *handle, void **send_comm)
{
    struct comm *comm = NULL;
    *send_comm = NULL;
    FAIL_IN_CHILD();
    enum nccl_result result = comm_connect(context, dev, traffic_class, handle, &comm);
    *send_comm = comm;
    return result;
}

static enum nccl_result properties(int dev, struct nccl_net_properties_v12 *out)
{
    *out = (struct nccl_net_properties_v12){0};
    FAIL_IN_CHILD();
    return devices_properties(dev, out);
}

/* ---- v12 -------------------------------------------------------------------------------------- */

static enum nccl_result init_v12(void **context, uint64_t comm_id, struct nccl_net_comm_config *config,
                                 nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    struct context *made = NULL;
    *context = NULL;
    FAIL_IN_CHILD();
    enum nccl_result result = plugin_init(&made, config, logger);
    *context = made;
    return result;
}

static enum nccl_result listen_v12(void *context, int dev, void *handle, void **listen_comm)
{
    return listen_for(context ? context : &shared_context, dev, handle, listen_comm);
}

static enum nccl_result connect_v12(void *context, int dev, void *handle, void **send_comm,
                                    struct nccl_net_device_handle **device)
{
    struct context *own = context ? context : &shared_context;
    return connect_for(own, dev, own->traffic_class, handle, send_comm);
}

static enum nccl_result isend_v12(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                                  void **request)
{
    *request = NULL;
    FAIL_IN_CHILD();
    return request_send(send_comm, data, size, mhandle, request);
}

static enum nccl_result irecv_v12(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                  void **phandles, void **request)
{
    enum watch watch = requests_watch(*request);
    *request = NULL;
    FAIL_IN_CHILD();
    return request_receive(recv_comm, n, data, sizes, mhandles, watch, request);
}

static enum nccl_result finalize_v12(void *context)
{
    FAIL_IN_CHILD();
    return plugin_finalize(context);
}

EXPORTED struct nccl_net_v12 ncclNetPlugin_v12 = {
    .name = "uccl",
    .init = init_v12,
    .devices = devices,
    .getProperties = properties,
    .listen = listen_v12,
    .connect = connect_v12,
    .accept = accept_comm,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend_v12,
    .irecv = irecv_v12,
    .iflush = flush,
    .test = test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = close_listen,
    .finalize = finalize_v12,
};

/* ---- v11: smaller properties ------------------------------------------------------------------ */

static void copy_vdevice(const struct nccl_net_vdevice_v12 *from, struct nccl_net_vdevice_v9 *to)
{
    to->ndevs = from->ndevs < NCCL_NET_VDEVS_V9 ? from->ndevs : NCCL_NET_VDEVS_V9;
    memcpy(to->devs, from->devs, sizeof to->devs);
}

static enum nccl_result properties_v11(int dev, struct nccl_net_properties_v11 *out)
{
    struct nccl_net_properties_v12 full;
    enum nccl_result result = properties(dev, &full);
    *out = (struct nccl_net_properties_v11){
        .name = full.name,
        .pciPath = full.pciPath,
        .guid = full.guid,
        .ptrSupport = full.ptrSupport,
        .regIsGlobal = full.regIsGlobal,
        .forceFlush = full.forceFlush,
        .speed = full.speed,
        .port = full.port,
        .latency = full.latency,
        .maxComms = full.maxComms,
        .maxRecvs = full.maxRecvs,
        .netDeviceType = full.netDeviceType,
        .netDeviceVersion = full.netDeviceVersion,
        .maxP2pBytes = full.maxP2pBytes,
        .maxCollBytes = full.maxCollBytes,
        .maxMultiRequestSize = full.maxMultiRequestSize,
    };
    copy_vdevice(&full.vProps, &out->vProps);
    return result;
}

EXPORTED struct nccl_net_v11 ncclNetPlugin_v11 = {
    .name = "uccl",
    .init = init_v12,
    .devices = devices,
    .getProperties = properties_v11,
    .listen = listen_v12,
    .connect = connect_v12,
    .accept = accept_comm,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend_v12,
    .irecv = irecv_v12,
    .iflush = flush,
    .test = test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = close_listen,
    .finalize = finalize_v12,
};

/* ---- v10: no contexts, traffic classes per connect -------------------------------------------- */

static enum nccl_result init_v10(nccl_logger_fn logger, nccl_profiler_fn profiler)
{
    FAIL_IN_CHILD();
    return plugin_init_shared(logger);
}

static enum nccl_result properties_v9(int dev, struct nccl_net_properties_v9 *out)
{
    struct nccl_net_properties_v12 full;
    enum nccl_result result = properties(dev, &full);
    *out = (struct nccl_net_properties_v9){
        .name = full.name,
        .pciPath = full.pciPath,
        .guid = full.guid,
        .ptrSupport = full.ptrSupport,
        .regIsGlobal = full.regIsGlobal,
        .forceFlush = full.forceFlush,
        .speed = full.speed,
        .port = full.port,
        .latency = full.latency,
        .maxComms = full.maxComms,
        .maxRecvs = full.maxRecvs,
        .netDeviceType = full.netDeviceType,
        .netDeviceVersion = full.netDeviceVersion,
        .maxP2pBytes = full.maxP2pBytes,
        .maxCollBytes = full.maxCollBytes,
    };
    copy_vdevice(&full.vProps, &out->vProps);
    return result;
}

static enum nccl_result listen_v8(int dev, void *handle, void **listen_comm)
{
    return listen_for(&shared_context, dev, handle, listen_comm);
}

static enum nccl_result connect_v10(int dev, struct nccl_net_comm_config *config, void *handle, void **send_comm,
                                    struct nccl_net_device_handle **device)
{
    return connect_for(&shared_context, dev, config ? config->trafficClass : NCCL_NET_UNDEFINED, handle, send_comm);
}

EXPORTED struct nccl_net_v10 ncclNetPlugin_v10 = {
    .name = "uccl",
    .init = init_v10,
    .devices = devices,
    .getProperties = properties_v9,
    .listen = listen_v8,
    .connect = connect_v10,
    .accept = accept_comm,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend_v12,
    .irecv = irecv_v12,
    .iflush = flush,
    .test = test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = close_listen,
};

/* ---- v9: no profiler, no traffic classes ------------------------------------------------------ */

static enum nccl_result init_v8(nccl_logger_fn logger)
{
    return init_v10(logger, NULL);
}

static enum nccl_result connect_v8(int dev, void *handle, void **send_comm, struct nccl_net_device_handle **device)
{
    return connect_for(&shared_context, dev, NCCL_NET_UNDEFINED, handle, send_comm);
}

static enum nccl_result isend_v9(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request)
{
    return isend_v12(send_comm, data, size, tag, mhandle, NULL, request);
}

static enum nccl_result irecv_v9(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                                 void **request)
{
    return irecv_v12(recv_comm, n, data, sizes, tags, mhandles, NULL, request);
}

EXPORTED struct nccl_net_v9 ncclNetPlugin_v9 = {
    .name = "uccl",
    .init = init_v8,
    .devices = devices,
    .getProperties = properties_v9,
    .listen = listen_v8,
    .connect = connect_v8,
    .accept = accept_comm,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend_v9,
    .irecv = irecv_v9,
    .iflush = flush,
    .test = test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = close_listen,
};

/* ---- v8: sizes are ints, and no receive is told to be one that GPUs watch ---------------------- */

static enum nccl_result properties_v8(int dev, struct nccl_net_properties_v8 *out)
{
    struct nccl_net_properties_v12 full;
    enum nccl_result result = properties(dev, &full);
    *out = (struct nccl_net_properties_v8){
        .name = full.name,
        .pciPath = full.pciPath,
        .guid = full.guid,
        .ptrSupport = full.ptrSupport,
        .regIsGlobal = full.regIsGlobal,
        .speed = full.speed,
        .port = full.port,
        .latency = full.latency,
        .maxComms = full.maxComms,
        .maxRecvs = full.maxRecvs,
        .netDeviceType = full.netDeviceType,
        .netDeviceVersion = full.netDeviceVersion,
    };
    return result;
}

static enum nccl_result isend_v8(void *send_comm, void *data, int size, int tag, void *mhandle, void **request)
{
    *request = NULL;
    return size < 0 ? NCCL_INVALID_ARGUMENT : isend_v12(send_comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static enum nccl_result irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                                 void **request)
{
    *request = NULL;
    FAIL_IN_CHILD();
    if (n != 1 || sizes[0] < 0)
        return NCCL_INVALID_ARGUMENT;
    size_t size = (size_t)sizes[0];
    return request_receive(recv_comm, n, data, &size, mhandles, WATCH_MAYBE, request);
}

EXPORTED struct nccl_net_v8 ncclNetPlugin_v8 = {
    .name = "uccl",
    .init = init_v8,
    .devices = devices,
    .getProperties = properties_v8,
    .listen = listen_v8,
    .connect = connect_v8,
    .accept = accept_comm,
    .regMr = reg_mr,
    .regMrDmaBuf = reg_mr_dmabuf,
    .deregMr = dereg_mr,
    .isend = isend_v8,
    .irecv = irecv_v8,
    .iflush = flush,
    .test = test,
    .closeSend = close_comm,
    .closeRecv = close_comm,
    .closeListen = close_listen,
};
