/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface between NCCL (or RCCL) and a network plugin, versions 8 to 12, in declarations of our own:
 * no header of NCCL is needed. tests/nccl/layout.def holds the measured layouts, which a test compares with these.
 *
 * A plugin exports one table per version, as data: ncclNetPlugin_v8 and so on. NCCL takes the newest that it
 * knows. Fields and slots have NCCL's names, so that they can be looked up in NCCL's documentation.
 *
 * Threads: init, devices, getProperties and finalize come from any thread. Of one communicator, one thread calls
 * listen, connect, accept, the registrations and the closes; another one isend, irecv, test and iflush at the same
 * time.
 */
#ifndef NCCL_NET_H
#define NCCL_NET_H

#include <stddef.h>
#include <stdint.h>

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_UNHANDLED_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
    NCCL_TIMEOUT = 8
};

/* Kinds of memory, as bits; CUDA stands for HIP in RCCL. */
enum { NCCL_PTR_HOST = 1, NCCL_PTR_CUDA = 2, NCCL_PTR_DMABUF = 4 };

enum {
    NCCL_NET_HANDLE_BYTES = 128,
    NCCL_NET_REQUESTS_MAX = 32,    /* per communicator, times maxRecvs on the sending side */
    NCCL_NET_BYTES_MAX_SHIFT = 40, /* log2 of the largest maxP2pBytes and maxCollBytes */
    NCCL_NET_EARLY = 1,            /* *request before irecv, since v9: the receive need not be tested to its end */
    NCCL_NET_UNDEFINED = -1,       /* a traffic class, railId or planeId */
    NCCL_NET_VDEVS_V9 = 4,
    NCCL_NET_VDEVS_V12 = 8
};

/* netDeviceType: whose hands move the bytes; others than the host's are for devices that GPUs drive. */
enum nccl_net_device_type { NCCL_NET_DEVICE_HOST = 0, NCCL_NET_DEVICE_UNPACK = 1 };

/*
 * The logger. Levels are NCCL's; RCCL and other forks number them otherwise (log.c). The third argument is a file's
 * name; the logger reads `format` as printf() does.
 */
enum {
    NCCL_LOG_NONE = 0,
    NCCL_LOG_VERSION = 1,
    NCCL_LOG_WARN = 2,
    NCCL_LOG_INFO = 3,
    NCCL_LOG_ABORT = 4,
    NCCL_LOG_TRACE = 5
};
enum { NCCL_SUBSYS_INIT = 0x1, NCCL_SUBSYS_NET = 0x10, NCCL_SUBSYS_ALL = -1 };

typedef void (*nccl_logger_fn)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

typedef enum nccl_result (*nccl_profiler_fn)(void **event, int type, void *parent, int64_t plugin, void *data);

/* ---- structures ------------------------------------------------------------------------------ */

/* Versions 9 to 11. */
struct nccl_net_vdevice_v9 {
    int ndevs;
    int devs[NCCL_NET_VDEVS_V9];
};

struct nccl_net_vdevice_v12 {
    int ndevs;
    int devs[NCCL_NET_VDEVS_V12];
};

/* All versions: what a GPU needs to drive a connection by itself. */
struct nccl_net_device_handle {
    enum nccl_net_device_type netDeviceType;
    int netDeviceVersion;
    void *handle;
    size_t size;
    int needsProxyProgress;
};

/* Versions 10 to 12. */
struct nccl_net_comm_config {
    int trafficClass;
};

/* Versions 11 and 12. */
struct nccl_net_comm_attr {
    int32_t maxConcurrentPeers;
    int32_t minConcurrentPeers;
    int32_t maxFlowsPerPeer;
    int32_t minFlowsPerPeer;
};

struct nccl_net_attr {
    struct nccl_net_comm_attr sendCommAttr;
    struct nccl_net_comm_attr recvCommAttr;
    uint32_t op;
    uint32_t algo;
    uint32_t proto;
};

struct nccl_net_properties_v8 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int speed; /* Mbps */
    int port;
    float latency; /* us */
    int maxComms;
    int maxRecvs;
    enum nccl_net_device_type netDeviceType;
    int netDeviceVersion;
};

/* Versions 9 and 10. */
struct nccl_net_properties_v9 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    enum nccl_net_device_type netDeviceType;
    int netDeviceVersion;
    struct nccl_net_vdevice_v9 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
};

struct nccl_net_properties_v11 {
    char *name;
    char *pciPath;
    uint64_t guid;
    int ptrSupport;
    int regIsGlobal;
    int forceFlush;
    int speed;
    int port;
    float latency;
    int maxComms;
    int maxRecvs;
    enum nccl_net_device_type netDeviceType;
    int netDeviceVersion;
    struct nccl_net_vdevice_v9 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
};

struct nccl_net_properties_v12 {
    char *name;
    char *pciPath;   /* in /sys; NULL: none */
    uint64_t guid;   /* tells NICs apart */
    int ptrSupport;  /* NCCL_PTR_* */
    int regIsGlobal; /* whether a registration holds for all communicators of the device */
    int forceFlush;
    int speed; /* Mbps */
    int port;
    float latency; /* us */
    int maxComms;
    int maxRecvs; /* buffers of one irecv */
    enum nccl_net_device_type netDeviceType;
    int netDeviceVersion;
    struct nccl_net_vdevice_v12 vProps;
    size_t maxP2pBytes;
    size_t maxCollBytes;
    int maxMultiRequestSize;
    int16_t railId;
    int16_t planeId;
};

/* ---- tables ---------------------------------------------------------------------------------- */

struct nccl_net_v8 {
    const char *name;
    enum nccl_result (*init)(nccl_logger_fn logger);
    enum nccl_result (*devices)(int *ndev);
    enum nccl_result (*getProperties)(int dev, struct nccl_net_properties_v8 *properties);
    enum nccl_result (*listen)(int dev, void *handle, void **listen_comm);
    enum nccl_result (*connect)(int dev, void *handle, void **send_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*accept)(void *listen_comm, void **recv_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    enum nccl_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                    void **mhandle);
    enum nccl_result (*deregMr)(void *comm, void *mhandle);
    enum nccl_result (*isend)(void *send_comm, void *data, int size, int tag, void *mhandle, void **request);
    enum nccl_result (*irecv)(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                              void **request);
    enum nccl_result (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
    enum nccl_result (*test)(void *request, int *done, int *sizes);
    enum nccl_result (*closeSend)(void *send_comm);
    enum nccl_result (*closeRecv)(void *recv_comm);
    enum nccl_result (*closeListen)(void *listen_comm);
    enum nccl_result (*getDeviceMr)(void *comm, void *mhandle, void **device_mr);
    enum nccl_result (*irecvConsumed)(void *recv_comm, int n, void *request);
};

struct nccl_net_v9 {
    const char *name;
    enum nccl_result (*init)(nccl_logger_fn logger);
    enum nccl_result (*devices)(int *ndev);
    enum nccl_result (*getProperties)(int dev, struct nccl_net_properties_v9 *properties);
    enum nccl_result (*listen)(int dev, void *handle, void **listen_comm);
    enum nccl_result (*connect)(int dev, void *handle, void **send_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*accept)(void *listen_comm, void **recv_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    enum nccl_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                    void **mhandle);
    enum nccl_result (*deregMr)(void *comm, void *mhandle);
    enum nccl_result (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request);
    enum nccl_result (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **request);
    enum nccl_result (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
    enum nccl_result (*test)(void *request, int *done, int *sizes);
    enum nccl_result (*closeSend)(void *send_comm);
    enum nccl_result (*closeRecv)(void *recv_comm);
    enum nccl_result (*closeListen)(void *listen_comm);
    enum nccl_result (*getDeviceMr)(void *comm, void *mhandle, void **device_mr);
    enum nccl_result (*irecvConsumed)(void *recv_comm, int n, void *request);
    enum nccl_result (*makeVDevice)(int *dev, struct nccl_net_vdevice_v9 *vdevice);
};

/* Since v10 each send and receive names its profiler event, which may be NULL. */
struct nccl_net_v10 {
    const char *name;
    enum nccl_result (*init)(nccl_logger_fn logger, nccl_profiler_fn profiler);
    enum nccl_result (*devices)(int *ndev);
    enum nccl_result (*getProperties)(int dev, struct nccl_net_properties_v9 *properties);
    enum nccl_result (*listen)(int dev, void *handle, void **listen_comm);
    enum nccl_result (*connect)(int dev, struct nccl_net_comm_config *config, void *handle, void **send_comm,
                                struct nccl_net_device_handle **device);
    enum nccl_result (*accept)(void *listen_comm, void **recv_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    enum nccl_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                    void **mhandle);
    enum nccl_result (*deregMr)(void *comm, void *mhandle);
    enum nccl_result (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request);
    enum nccl_result (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request);
    enum nccl_result (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
    enum nccl_result (*test)(void *request, int *done, int *sizes);
    enum nccl_result (*closeSend)(void *send_comm);
    enum nccl_result (*closeRecv)(void *recv_comm);
    enum nccl_result (*closeListen)(void *listen_comm);
    enum nccl_result (*getDeviceMr)(void *comm, void *mhandle, void **device_mr);
    enum nccl_result (*irecvConsumed)(void *recv_comm, int n, void *request);
    enum nccl_result (*makeVDevice)(int *dev, struct nccl_net_vdevice_v9 *vdevice);
};

/* Since v11 each of NCCL's communicators has a context, made by init and ended by finalize. */
struct nccl_net_v11 {
    const char *name;
    enum nccl_result (*init)(void **context, uint64_t comm_id, struct nccl_net_comm_config *config,
                             nccl_logger_fn logger, nccl_profiler_fn profiler);
    enum nccl_result (*devices)(int *ndev);
    enum nccl_result (*getProperties)(int dev, struct nccl_net_properties_v11 *properties);
    enum nccl_result (*listen)(void *context, int dev, void *handle, void **listen_comm);
    enum nccl_result (*connect)(void *context, int dev, void *handle, void **send_comm,
                                struct nccl_net_device_handle **device);
    enum nccl_result (*accept)(void *listen_comm, void **recv_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    enum nccl_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                    void **mhandle);
    enum nccl_result (*deregMr)(void *comm, void *mhandle);
    enum nccl_result (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request);
    enum nccl_result (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request);
    enum nccl_result (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
    enum nccl_result (*test)(void *request, int *done, int *sizes);
    enum nccl_result (*closeSend)(void *send_comm);
    enum nccl_result (*closeRecv)(void *recv_comm);
    enum nccl_result (*closeListen)(void *listen_comm);
    enum nccl_result (*getDeviceMr)(void *comm, void *mhandle, void **device_mr);
    enum nccl_result (*irecvConsumed)(void *recv_comm, int n, void *request);
    enum nccl_result (*makeVDevice)(int *dev, struct nccl_net_vdevice_v9 *vdevice);
    enum nccl_result (*finalize)(void *context);
    enum nccl_result (*setNetAttr)(void *context, struct nccl_net_attr *attributes);
};

struct nccl_net_v12 {
    const char *name;
    enum nccl_result (*init)(void **context, uint64_t comm_id, struct nccl_net_comm_config *config,
                             nccl_logger_fn logger, nccl_profiler_fn profiler);
    enum nccl_result (*devices)(int *ndev);
    enum nccl_result (*getProperties)(int dev, struct nccl_net_properties_v12 *properties);
    enum nccl_result (*listen)(void *context, int dev, void *handle, void **listen_comm);
    enum nccl_result (*connect)(void *context, int dev, void *handle, void **send_comm,
                                struct nccl_net_device_handle **device);
    enum nccl_result (*accept)(void *listen_comm, void **recv_comm, struct nccl_net_device_handle **device);
    enum nccl_result (*regMr)(void *comm, void *data, size_t size, int type, void **mhandle);
    enum nccl_result (*regMrDmaBuf)(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                    void **mhandle);
    enum nccl_result (*deregMr)(void *comm, void *mhandle);
    enum nccl_result (*isend)(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                              void **request);
    enum nccl_result (*irecv)(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                              void **phandles, void **request);
    enum nccl_result (*iflush)(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
    enum nccl_result (*test)(void *request, int *done, int *sizes);
    enum nccl_result (*closeSend)(void *send_comm);
    enum nccl_result (*closeRecv)(void *recv_comm);
    enum nccl_result (*closeListen)(void *listen_comm);
    enum nccl_result (*getDeviceMr)(void *comm, void *mhandle, void **device_mr);
    enum nccl_result (*irecvConsumed)(void *recv_comm, int n, void *request);
    enum nccl_result (*makeVDevice)(int *dev, struct nccl_net_vdevice_v12 *vdevice);
    enum nccl_result (*finalize)(void *context);
    enum nccl_result (*setNetAttr)(void *context, struct nccl_net_attr *attributes);
};

#endif
