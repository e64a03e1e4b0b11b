/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuccl-engine: asynchronous message transport between processes.
 *
 * An application opens an engine, connects it to engines in other processes, and posts sends and
 * receives on connections. Engine threads move the bytes; a request says when it has ended.
 *
 * Conventions of every call:
 *   - Returns 0 (or a count) on success and a negative `enum uccl_error` on failure. Outputs are
 *     written only on success unless a comment says otherwise.
 *   - Any thread may call anything on any object, unless a comment says otherwise. Closing an
 *     object while another thread is inside a call on it is a caller's error.
 *   - An object that was closed must not be used again. As far as it is noticed (of each engine, the last 64
 *     connections, listeners and registrations that were closed), this ends with UCCL_EINVAL or UCCL_ECLOSED.
 *   - Only calls that take a `timeout_ms` block, plus uccl_open() and the close calls, which say
 *     for how long. `timeout_ms` < 0 waits without limit, 0 never blocks.
 *   - The library never prints to stdout, never exits, never aborts. Messages go to the log
 *     callback (default: stderr, level warning).
 *
 * In a process, for every call unless a comment says otherwise:
 *   - Signals: engine threads block all signals but faults (SIGSEGV and its kind); those of the process are
 *     for the application's threads. A handler may interrupt any call, which then goes on. Inside a handler
 *     only uccl_strerror(), uccl_version(), uccl_build_info() and uccl_distance_name() may be called.
 *   - Cancellation: pthread_cancel() acts once the call has returned. Only uccl_wait() and uccl_accept() are
 *     cancellation points, and look after each fifth of a second that they have waited: the request then stays
 *     pending and valid, and no connection has been taken. PTHREAD_CANCEL_ASYNCHRONOUS must be off. Threads may
 *     end in any way between calls.
 *   - exit(): may be called while other threads are inside calls. Engines need not be closed before.
 *   - fork(): calls that take no object work in the child; it may open engines of its own. A uccl_config and
 *     a handle without a connect under way are plain memory, and remain usable. On all else that it has
 *     inherited, calls fail with UCCL_EFORKED (uccl_listener_port() with 0) and touch nothing. Two free the
 *     child's copy, without a word to peers: uccl_connect_cancel(), and uccl_close(), which also closes the
 *     child's descriptors (not those of verbs devices). Neither is needed before exec() or exit(). The parent
 *     notices nothing.
 */
#ifndef UCCL_ENGINE_H
#define UCCL_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UCCL_VERSION_MAJOR 0
#define UCCL_VERSION_MINOR 1
#define UCCL_VERSION_PATCH 0

/*
 * Errors, grouped by what is hurt: the call (arguments, resources), the request, the connection,
 * the machine. Row: name, value, text. The enum and uccl_strerror() both come from these rows.
 */
#define UCCL_ERROR_ROWS(ROW)                                                                      \
    ROW(UCCL_OK, 0, "success")                                                                    \
    ROW(UCCL_EAGAIN, -1, "busy now, try again")                                                   \
    ROW(UCCL_EINVAL, -2, "invalid argument")                                                      \
    ROW(UCCL_ENOMEM, -3, "out of memory or over a resource limit")                                \
    ROW(UCCL_ETIMEDOUT, -4, "timed out")                                                          \
    ROW(UCCL_ENOTSUP, -5, "not supported here")                                                   \
    ROW(UCCL_ETRUNCATED, -6, "message larger than the receive buffer")                            \
    ROW(UCCL_ECANCELED, -7, "request cancelled")                                                  \
    ROW(UCCL_EPEERDEAD, -8, "peer stopped answering")                                             \
    ROW(UCCL_ECLOSED, -9, "connection closed")                                                    \
    ROW(UCCL_EREFUSED, -10, "connection refused")                                                 \
    ROW(UCCL_EPROTO, -11, "peer speaks another protocol or version")                              \
    ROW(UCCL_EADDR, -12, "address not usable")                                                    \
    ROW(UCCL_ENODEV, -13, "no such device")                                                       \
    ROW(UCCL_EIO, -14, "system or device error")                                                  \
    ROW(UCCL_EFORKED, -15, "object of the parent process, before fork()")

enum uccl_error {
#define UCCL_ERROR_ENUM(name, value, text) name = value,
    UCCL_ERROR_ROWS(UCCL_ERROR_ENUM)
#undef UCCL_ERROR_ENUM
};

/* Text of an error code; a constant string, never NULL, also for unknown codes. */
const char *uccl_strerror(int error);

/* "MAJOR.MINOR.PATCH" of the library that runs (the macros say what was compiled against). */
const char *uccl_version(void);

/* Build options of the library, such as "io_uring=yes"; a constant string. */
const char *uccl_build_info(void);

/* ---- log ------------------------------------------------------------------------------------- */

enum uccl_log_level {
    UCCL_LOG_NONE = 0,
    UCCL_LOG_ERROR = 1,
    UCCL_LOG_WARN = 2,
    UCCL_LOG_INFO = 3,
    UCCL_LOG_DEBUG = 4
};

/* Called from any thread, also from several at once; `text` has no newline and lives for the call. */
typedef void (*uccl_log_fn)(void *user, enum uccl_log_level level, const char *text);

/*
 * Sends the log of the whole process to `fn` (NULL: back to stderr). Takes effect for messages that start
 * after the call. Returns when no thread is inside the callback that was replaced, whose data may then be
 * freed: the caller must not hold a lock that the callback takes. Inside the callback the call only notes
 * `fn`: it takes effect when that callback has returned, and the data must live on. What a callback causes to
 * be logged itself goes to stderr. The level is the parameter UCCL_LOG_LEVEL of the engine opened last.
 */
void uccl_set_log(uccl_log_fn fn, void *user);

/* ---- parameters ------------------------------------------------------------------------------ */

typedef struct uccl_config uccl_config;

/* Makes an empty set of settings. One thread at a time may use one set. */
int uccl_config_create(uccl_config **out);
void uccl_config_destroy(uccl_config *config);

/*
 * Sets parameter `name` ("UCCL_CC" or "CC") for engines opened with this set; it wins over the
 * environment and the configuration file. UCCL_EINVAL: unknown name or a value out of its range;
 * the log says which and what is allowed.
 */
int uccl_config_set(uccl_config *config, const char *name, const char *value);

struct uccl_param_info {
    const char *name;     /* "UCCL_CC" */
    const char *default_; /* as text */
    const char *range;    /* "1..1024" or "swift|timely" */
    const char *unit;     /* "" where none */
    const char *doc;      /* one sentence or two */
};

/* The parameters that exist, index 0 and up; UCCL_EINVAL past the last. */
int uccl_param_info(unsigned index, struct uccl_param_info *out);

/*
 * The value that an engine opened with `config` (NULL: none) would use now, as text into `value`
 * (at most `value_size` bytes with the NUL), and where it came from ("default", "setter",
 * "environment", "environment, NCCL_IB_HCA" where that stands in, or a file name) into `source`. UCCL_EINVAL past the last index, or when the value
 * found is not allowed (the log says why).
 */
int uccl_param_value(const uccl_config *config, unsigned index, char *value, size_t value_size,
                     char *source, size_t source_size);

/* ---- engine ---------------------------------------------------------------------------------- */

typedef struct uccl_engine uccl_engine;

/*
 * Opens an engine: devices, engine threads, a random 128-bit id. Several may be open in a process.
 * `config` (NULL: only environment and file) is read during the call. Blocks for milliseconds.
 * UCCL_EINVAL: a parameter is not allowed; UCCL_ENODEV: no usable device; UCCL_ENOTSUP: this machine or build lacks what a
 * parameter asks for; UCCL_ENOMEM, UCCL_EIO.
 */
int uccl_open(const uccl_config *config, uccl_engine **out);

/*
 * Ends every listener, connection and request of the engine (requests with UCCL_ECANCELED), joins
 * its threads and frees all. Blocks for at most the linger time (UCCL_LINGER_MS) and a fifth of a second, or
 * some seconds more where a GPU does not end its copies. All
 * handles that came from the engine are invalid afterwards, requests too. Never-blocking connects are cancelled, and
 * threads that are inside uccl_wait() leave it before. No other call may be in progress.
 */
int uccl_close(uccl_engine *engine);

struct uccl_device {
    char name[32];        /* interface or verbs device */
    char backend[16];     /* "udp" */
    char address[64];     /* numeric address that peers reach it by */
    char description[128];/* capabilities in words */
    uint64_t speed_mbps;  /* 0: unknown */
    uint32_t mtu;         /* bytes of an IP packet */
    uint32_t engines;     /* engine threads that serve it */
    int numa_node;        /* -1: unknown */
    int is_loopback;      /* 1: no other machine reaches it */
};

/* Number of devices, and the properties of one. UCCL_ENODEV: no such index. */
int uccl_device_count(const uccl_engine *engine);
int uccl_device_get(const uccl_engine *engine, int device, struct uccl_device *out);

/* A network interface that is up and has an address, as the engine sees it. */
struct uccl_interface {
    char name[32];
    char address[64];     /* the best of its numeric addresses */
    uint64_t speed_mbps;  /* 0: unknown */
    uint32_t mtu;         /* bytes of an IP packet */
    int numa_node;        /* -1: unknown */
    int rank;             /* how fit it is where nobody chooses, 0 best; equal for equally fit ones */
    int is_loopback;      /* 1: no other machine reaches it */
};

/*
 * Calls `tell` for each interface that UCCL_SOCKET_IFNAME admits, with the parameters of `config` (NULL: none) in force,
 * best first; no engine is needed. Returns the number of interfaces. UCCL_EINVAL as for uccl_open(); UCCL_EIO, UCCL_ENOMEM.
 * Any thread.
 */
typedef void (*uccl_interface_fn)(void *user, const struct uccl_interface *interface);
int uccl_interfaces(const uccl_config *config, uccl_interface_fn tell, void *user);

/* An entry of a verbs port's GID table. */
struct uccl_verbs_gid {
    int index;
    char type[12];    /* "RoCE v1", "RoCE v2", "InfiniBand" */
    char address[48]; /* "10.0.0.1", "fe80::1" */
};

/* A port of a verbs (RDMA) device, and what the engine makes of it. */
struct uccl_verbs_port {
    char device[64];
    uint32_t port;       /* from 1 */
    int active;
    char link[12];       /* "RoCE", "InfiniBand" */
    uint32_t mtu;        /* path MTU in effect: payload bytes of a packet */
    uint32_t lid;        /* 0 on RoCE */
    uint64_t speed_mbps; /* 0: unknown */
    int numa_node;       /* -1: unknown */
    int ud, uc, rc;      /* kinds of queue pair that the device makes */
    uint32_t max_message; /* bytes of a work request */
    uint32_t max_queue_pairs, max_work_requests, max_completions, max_shared_receives;
    uint32_t clock_khz;  /* of the NIC's clock, by which round trips are measured; 0: by the engine's, since its
                            completions bear no time stamps or its clock cannot be read */
    uint32_t gid_count;  /* entries that can be read and are not empty */
    const struct uccl_verbs_gid *gids; /* during the call */
    int usable;          /* the engine takes the first usable port */
    char why_not[192];   /* empty where it is usable */
    int gid_index;       /* the GID it would use; -1: none */
    char why_gid[192];
    char mode[4];        /* the queue pairs it would use for data: "UC", "RC", "UD"; empty: none will do */
    char why_mode[192];
};

/*
 * Calls `tell` for each port of each verbs device that opens, with `config` (NULL: none) in force; no engine is
 * needed. Returns the number of ports. UCCL_ENOTSUP, UCCL_ENODEV: built without verbs, or its library
 * is not there; `status` then says so in words, cut at `size`. UCCL_EINVAL: as for uccl_open(). Any
 * thread; blocks while it looks.
 */
typedef void (*uccl_verbs_port_fn)(void *user, const struct uccl_verbs_port *port);
int uccl_verbs_ports(const uccl_config *config, uccl_verbs_port_fn tell, void *user, char *status,
                     size_t size);

/* How a GPU and a device reach each other, nearest first. */
enum uccl_distance {
    UCCL_DISTANCE_PIX = 0, /* through one PCIe switch */
    UCCL_DISTANCE_PXB,     /* through several PCIe switches */
    UCCL_DISTANCE_PHB,     /* through a PCIe host bridge */
    UCCL_DISTANCE_NODE,    /* between host bridges of one NUMA node */
    UCCL_DISTANCE_SYS,     /* between NUMA nodes */
    UCCL_DISTANCE_UNKNOWN  /* the machine does not show it */
};

struct uccl_gpu {
    char name[16];      /* runtime and index: "cuda:0", "hip:1" */
    char pci[24];       /* "0000:3b:00.0"; empty: unknown */
    char model[96];     /* as the runtime calls it */
    int numa_node;      /* -1: unknown */
    int nearest_device; /* index for uccl_device_get(), shared fairly where several are as near; -1: unknown */
    char reached[128];  /* how the NIC reaches its memory, if that can be registered: as in struct uccl_mr_info */
};

/*
 * Number of GPUs that the loaded runtimes show, the properties of one, and how it reaches a device. The first of
 * these calls looks at the machine, for up to a second; no GPU is used for it. UCCL_ENODEV: no such index.
 * uccl_gpu_distance() returns an enum uccl_distance or an error. uccl_distance_name() is its short name, "PIX" to
 * "SYS"; "unknown" also for an error; static, for any thread.
 */
int uccl_gpu_count(uccl_engine *engine);
int uccl_gpu_get(uccl_engine *engine, int gpu, struct uccl_gpu *out);
int uccl_gpu_distance(uccl_engine *engine, int gpu, int device);
const char *uccl_distance_name(int distance);

/* ---- connections ----------------------------------------------------------------------------- */

typedef struct uccl_listener uccl_listener;
typedef struct uccl_conn uccl_conn;
typedef struct uccl_request uccl_request; /* see "requests" below */

/*
 * Where a listener can be reached, to be sent to peers by any means. The first 16 bytes hold the
 * state of a never-blocking connect on the side that connects; a listener leaves them zero. They hold no pointer, and
 * name a connect under way in this process or nothing, whatever bytes they are.
 */
struct uccl_handle {
    uint8_t state[16];
    uint8_t listener[112];
};

/*
 * Listens for connections on `device`'s address (device -1: every address of the machine, and the
 * handle names up to eight of them, that of device 0 first) and TCP `port` (0: any free one). UCCL_EADDR: address or
 * port in use or not ours; UCCL_ENODEV, UCCL_ENOMEM. A handle is for this listener, not for the next one on its port.
 * Where it names a link-local IPv6 address, who connects takes the best of its own interfaces that has one and that
 * UCCL_SOCKET_IFNAME admits.
 */
int uccl_listen(uccl_engine *engine, int device, uint16_t port, struct uccl_handle *handle,
                uccl_listener **out);

/* The TCP port that a listener got. */
uint16_t uccl_listener_port(const uccl_listener *listener);

/* Stops listening. Connections already accepted stay. */
int uccl_listener_close(uccl_listener *listener);

/*
 * A handle for a listener known by host (name, IPv4 or IPv6 address, also in brackets) and port; of a name it has all
 * addresses, up to eight. A link-local address may name the interface (fe80::1%eth0), and the handle is then for this
 * machine alone. May block in the resolver when `host` is a name. UCCL_EADDR: does not resolve; UCCL_ENOMEM.
 */
int uccl_handle_from_address(const char *host, uint16_t port, struct uccl_handle *out);

/*
 * Connects to the listener of `handle`, by the first of its addresses that leads there: the next one is tried 100 ms
 * after the one before, or once one has failed (RFC 8305), with a descriptor for each.
 * With `timeout_ms` 0 the call never blocks: UCCL_EAGAIN means call again with the same handle (its state bytes carry
 * the progress); any other result is final and clears them. To give up in between: uccl_connect_cancel(). One thread at
 * a time per handle. UCCL_EINVAL, with the handle as it was: it is none, or of another version; or its state bytes are
 * not zero, and not those of a connect of `engine` to this listener that is under way (cancel does nothing then). At
 * most 4096 such connects are under way in a process (UCCL_ENOMEM).
 * A connect succeeds when datagrams have got across both ways. UCCL_ETIMEDOUT when `timeout_ms` has passed (0 and below:
 * the parameter UCCL_CONNECT_MS), also where a firewall passes TCP alone (the log names the ports). With `timeout_ms` 0 that
 * time begins when the other side accepts, if the parameter UCCL_ACCEPT_WAIT_MS is set: the longest wait for that.
 * UCCL_EREFUSED (also: another listener than the handle's answers), UCCL_EPROTO, UCCL_EADDR, UCCL_ENOMEM,
 * UCCL_EPEERDEAD, UCCL_ECLOSED. Where all addresses fail, the error that says most.
 */
int uccl_connect(uccl_engine *engine, struct uccl_handle *handle, int timeout_ms, uccl_conn **out);
void uccl_connect_cancel(struct uccl_handle *handle);

/*
 * Takes the next connection. 0: never blocks, UCCL_EAGAIN when none is ready. A peer that does not
 * complete the handshake in time, or sends garbage, is dropped, logged, and never returned here.
 * UCCL_ETIMEDOUT; UCCL_ENOMEM: a peer waits, but descriptors have run out (it waits on: free some and call again).
 */
int uccl_accept(uccl_listener *listener, int timeout_ms, uccl_conn **out);

/*
 * Closes: requests still pending end with UCCL_ECANCELED here and with UCCL_ECLOSED at the peer,
 * data already accepted for sending is delivered if the peer answers within UCCL_LINGER_MS; blocks
 * at most so long and a fifth of a second, and for what engine threads still have to tell each other. A peer that has left
 * another close unanswered for that time, or what it was sent, is not waited for before it is heard again. Then
 * all requests have ended and no buffer is touched any more; only where a GPU does not end its copies it returns after a
 * second more, and the requests of these end when they do, if ever. The connection handle is invalid afterwards; its
 * requests stay valid until uccl_test() or uccl_wait() has seen them end.
 */
int uccl_conn_close(uccl_conn *conn); /* UCCL_EINVAL: it is being closed */

/*
 * Closes like uccl_conn_close(), but does not wait: the request ends when the close has, with 0, and any number of closes
 * take as long as one. Cancelling it has no effect. Until it has been tested or waited for as ended, the handle may be used for
 * uccl_conn_abort(), uccl_conn_status(), uccl_conn_peer() and uccl_conn_peer_id() alone; the call that sees the end
 * frees the connection, for which it may wait for engine threads, but not for a peer. Where a GPU does not end its
 * copies, the request stays pending.
 * Never blocks. UCCL_EAGAIN as for uccl_send_async(): the connection is open still. UCCL_EINVAL: it is being closed.
 */
int uccl_conn_close_async(uccl_conn *conn, uccl_request **out);

/*
 * Ends a connection without lingering. Its pending requests, sends too, end with UCCL_ECANCELED: at once, but that a
 * request whose buffer a NIC may still access ends when that is over (at most a fifth of a second, and the time in which queue
 * pairs drain, later); until it has ended its buffer is in use. The peer is told, once; its requests end with UCCL_ECLOSED, but
 * its sends that have been received whole succeed, unless uccl_close() follows before the peer has been told. The handle
 * is invalid afterwards; the requests are tested or waited for as ever. After uccl_conn_close_async() it cuts the linger
 * time short, and the request of that ends soon.
 * Waits for room where the ring is full, for no peer.
 */
int uccl_conn_abort(uccl_conn *conn);

/* 0 while the connection works, else the error that ended it. */
int uccl_conn_status(const uccl_conn *conn);

/* Numeric address and port of the peer's bootstrap, for logs. */
int uccl_conn_peer(const uccl_conn *conn, char *out, size_t size);

/* The id of the engine at the other end. Connections with equal ids share their peer's fate. */
int uccl_conn_peer_id(const uccl_conn *conn, uint8_t out[16]);

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct uccl_mr uccl_mr;

enum uccl_mem { UCCL_MEM_AUTO = 0, UCCL_MEM_HOST = 1, UCCL_MEM_CUDA = 2, UCCL_MEM_HIP = 3 };

/*
 * Registers memory for use by the engine's devices. Host memory needs no registration to be sent or
 * received (pass NULL there); registering it saves work on backends that pin. Memory of a GPU does:
 * without it, it is taken for host memory. UCCL_MEM_AUTO finds the kind out.
 *   The memory stays the caller's and must outlive the registration: free it after uccl_dereg_mr().
 *   Where the NIC places payload, every peer may write to all of a registration once it was granted a receive in
 * it: register no more than that. Registrations of just the same range share their resources.
 * No thread's current device or context changes, and no GPU is touched that the application does not use.
 * UCCL_ENOTSUP: a kind that this build or machine lacks, or memory of another kind; UCCL_EINVAL: the
 * range reaches beyond its allocation; UCCL_ENOMEM.
 */
int uccl_reg_mr(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind,
                uccl_mr **out);

/*
 * The same for memory of a GPU of which the caller has a DMA-BUF: `address` lies `offset` bytes into it. A NIC that
 * reaches device memory by itself registers it by `fd`, unless the parameters rule that out; to all others the call is
 * uccl_reg_mr(), which exports a DMA-BUF where it needs one. `fd` stays the caller's, who may close it after the call.
 * UCCL_EINVAL: `fd` is negative.
 */
int uccl_reg_mr_dmabuf(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind, int fd,
                       uint64_t offset, uccl_mr **out);

struct uccl_mr_info {
    enum uccl_mem kind;
    int device;          /* the runtime's index (CUDA_VISIBLE_DEVICES applies); -1: host memory */
    void *base;          /* the allocation; of host memory what was registered */
    size_t base_length;
    char pci[16];        /* PCI address of the device, "0000:1b:00.0"; "": none or unknown */
    char reached[256];   /* how the NIC reaches it. Of a GPU's memory: "direct, ..." (GPUDirect RDMA), or
                            "staged: ..." and why; of host memory "direct" or "copied" */
};

/* What was found out about registered memory. */
int uccl_mr_get_info(const uccl_mr *mr, struct uccl_mr_info *out);

/*
 * What this build and machine have of a kind of memory (not UCCL_MEM_AUTO), as text for people: the
 * driver's version and number of devices, or why there is none. 0: usable; UCCL_ENOTSUP: not, and the
 * text says why. Loads and initialises the GPU's driver, which takes up to a second, but
 * makes no context.
 */
int uccl_mem_status(enum uccl_mem kind, char *text, size_t size);

/* Ends a registration. UCCL_EAGAIN: requests that use it are still pending. */
int uccl_dereg_mr(uccl_mr *mr);

/* ---- requests -------------------------------------------------------------------------------- */

/*
 * Posts the next send or receive of a connection. Send k of one side matches receive k of the
 * other, in the order in which the calls took effect. The buffer belongs to the engine until the
 * request ends; `mr` may be NULL for host memory. `length` may be 0: then `buffer` may be anything, in `mr` or not.
 *   GPU memory: what is to be sent must be there already (the work that writes it has ended). A
 *   receive that has ended, and has been flushed (uccl_flush()), is seen by all work that is submitted to the GPU
 *   afterwards.
 *   A send ends when the peer's receive has all its bytes.
 *   A receive larger than its send ends with the sent size. A smaller one: both end with
 *   UCCL_ETRUNCATED, nothing is written beyond the buffer, the connection lives.
 * Never blocks, takes no lock, does not allocate once warm. UCCL_EAGAIN: rings or requests are
 * exhausted for now (test or wait for older requests, then post again); UCCL_EINVAL; the
 * connection's error once it has ended.
 */
int uccl_send_async(uccl_conn *conn, const void *buffer, size_t length, uccl_mr *mr,
                    uccl_request **out);
int uccl_recv_async(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out);

/*
 * A receive with flags; with none it is uccl_recv_async(). Both count in one order.
 *
 * UCCL_RECV_WATCHED is for a buffer that is read while the receive is pending, as GPU kernels read it under NCCL's
 * protocols LL and LL128. Each aligned 8 bytes of the message then appear at once, and the last 8 of each aligned 128,
 * or of the message, after the others of these (on x86-64 all 16 do in ascending order). So a flag can be trusted as soon
 * as it is seen, if it shares 8 aligned bytes with what it vouches for and is loaded with it, or is the last 8 of the
 * 128 that it vouches for and is loaded before them (acquire). Where a message does not end at a multiple of 8, its last
 * bytes appear as aligned words of 4, 2 and 1.
 * The order among aligned 128s is open. Nothing is written but bytes of the message, where they belong.
 * The sender need not know. The receive costs a copy by the CPU, also where the NIC could place payload by itself.
 * UCCL_EINVAL: an unknown flag, or a watched buffer (of one byte or more) that is not aligned to 128 bytes.
 * UCCL_ENOTSUP: a watched buffer in memory of a GPU, registered as such: the GPU's runtime copies there, also what the NIC
 * does not place, and promises none of this. Host memory that a GPU reads (pinned and mapped) is host memory here.
 */
enum uccl_recv_flags { UCCL_RECV_WATCHED = 1 };
int uccl_recv_with_async(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, unsigned flags,
                         uccl_request **out);

/*
 * Has the request ended? Writes 1 or 0 to `done`. Once it has: returns its status (0 or an error), writes the
 * bytes moved to `bytes` (may be NULL), and frees the request. While pending returns 0. UCCL_EINVAL, here and
 * below: the request was freed before. That is noticed as far as possible: not after many later requests, nor
 * when two threads collect one at the same time. Never blocks; may run one bounded round of the engine on the
 * caller's thread. One thread at a time per request.
 */
int uccl_test(uccl_request *request, int *done, size_t *bytes);

/*
 * Waits until the request ends; then like uccl_test(). UCCL_ETIMEDOUT: still pending, still valid.
 * May run the engine on the caller's thread meanwhile.
 */
int uccl_wait(uccl_request *request, int timeout_ms, size_t *bytes);

/*
 * Asks to end a request early. It still must be tested or waited for; it ends with UCCL_ECANCELED,
 * or normally where it was too late. The matching request of the peer ends with UCCL_ECANCELED too,
 * unless it is a receive that had every byte already: of a send that was cancelled late, nobody
 * can tell.
 * Also while another thread waits for the request or collects it: then it is too late (UCCL_EINVAL or no effect), and a
 * request that is posted afterwards is not hit.
 * UCCL_EAGAIN: the ring is full, call again.
 */
int uccl_cancel(uccl_request *request);

/*
 * Makes received bytes visible to the device that owns the buffer: once the request has ended, work on the device
 * that begins afterwards sees all that receives on this connection have brought to `buffer`, which lies in
 * `mr`. Post it after the receive has ended. Needed where the NIC writes to the device by itself
 * (uccl_mr_get_info(): "direct"). Nothing is needed for host memory and for staged device memory: returns with
 * `*out` NULL: there is nothing to wait for, and nothing to test. May be posted after the connection has failed.
 *   Never blocks; a request like any other, of 0 bytes, but that cancelling it has no effect. UCCL_EAGAIN as for
 *   uccl_send_async(); UCCL_EINVAL: the bytes are not in `mr`. Ends with UCCL_EIO if the NIC cannot read it.
 */
int uccl_flush(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out);

/*
 * A file descriptor that becomes readable when a request of the engine ends after uccl_event_arm().
 * Order of use: arm, test all requests, then poll the descriptor. It belongs to the engine: never
 * read or close it; arming clears it.
 */
int uccl_event_fd(uccl_engine *engine);
int uccl_event_arm(uccl_engine *engine);

/* ---- statistics ------------------------------------------------------------------------------ */

/* Name and documentation of counter `index`; UCCL_EINVAL past the last. */
int uccl_counter_info(unsigned index, const char **name, const char **doc);

/* Value of counter `index`, summed over the engine's threads; may lag by microseconds. */
int uccl_counter(const uccl_engine *engine, unsigned index, uint64_t *value);

/* Value of a counter by name ("retransmits"); UCCL_EINVAL: unknown. */
int uccl_counter_by_name(const uccl_engine *engine, const char *name, uint64_t *value);

#ifdef __cplusplus
}
#endif
#endif
