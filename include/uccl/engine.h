/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuccl-engine: asynchronous message transport between processes.
 *
 * An application opens an engine, connects it to engines in other processes, and posts sends and receives on
 * connections. Engine threads move the bytes. A request tells when its send or receive has completed.
 *
 * Every call keeps these rules, unless its comment says otherwise:
 *   - Results: a call returns 0 or a count on success, and a negative `enum uccl_error` on failure. It writes its
 *     outputs only on success.
 *   - Threads: any thread may call anything on any object. The caller must not close an object while another
 *     thread is inside a call on that object.
 *   - Lifetime: do not use a closed object. An engine remembers the last 64 connections, listeners and
 *     registrations that were closed, and 64 exports; calls on these return UCCL_EINVAL or UCCL_ECLOSED
 *     (uccl_conn_abort() and uccl_listener_port(): 0).
 *   - Blocking: only calls with a `timeout_ms` block, and uccl_open() and the close calls, whose comments say for
 *     how long. `timeout_ms` < 0 waits without limit, 0 never blocks.
 *   - The library never prints to stdout, never exits, never aborts. Messages go to the log callback (default:
 *     stderr, level warning).
 *
 * Every call behaves so inside a process, unless its comment says otherwise:
 *   - Signals: engine threads block all signals but faults (SIGSEGV and its kind), so the process's signals reach
 *     the application's threads. A handler may interrupt any call; the call then continues. A handler may call
 *     only uccl_strerror(), uccl_version(), uccl_build_info() and uccl_distance_name().
 *   - Cancellation: pthread_cancel() acts when the call returns. Only uccl_wait() and uccl_accept() are cancellation
 *     points, and check every fifth of a second: the request then stays pending and valid, and no connection
 *     has been taken. PTHREAD_CANCEL_ASYNCHRONOUS must be off. Between calls a thread may end in any way.
 *   - Stack: a call takes up to 64 KiB, with what it calls of the C library.
 *   - exit(): a thread may call exit() while others are inside calls. Engines need not be closed before.
 *   - dlclose(): close all engines before, since their threads run the library's code.
 *   - fork(): calls that take no object work in the child, and the child may open its own engines. The child may
 *     also use an inherited uccl_config, and an inherited handle without a connect under way: both are plain
 *     memory. Calls on other inherited objects return UCCL_EFORKED (uccl_listener_port() returns 0) and change
 *     nothing. Two calls free the child's copy and tell peers nothing: uccl_connect_cancel() and uccl_close().
 *     uccl_close() also closes the child's descriptors, except those of verbs devices. Neither call is needed
 *     before exec() or exit(). The parent notices nothing.
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
 * Errors, grouped by what they affect: the call (arguments, resources), the request, the connection, the machine.
 * Each row has name, value and text. The enum and uccl_strerror() both come from these rows.
 */
#define UCCL_ERROR_ROWS(ROW)                                                                                           \
    ROW(UCCL_OK, 0, "success")                                                                                         \
    ROW(UCCL_EAGAIN, -1, "busy now, try again")                                                                        \
    ROW(UCCL_EINVAL, -2, "invalid argument")                                                                           \
    ROW(UCCL_ENOMEM, -3, "out of memory or over a resource limit")                                                     \
    ROW(UCCL_ETIMEDOUT, -4, "timed out")                                                                               \
    ROW(UCCL_ENOTSUP, -5, "not supported here")                                                                        \
    ROW(UCCL_ETRUNCATED, -6, "message larger than the receive buffer")                                                 \
    ROW(UCCL_ECANCELED, -7, "request cancelled")                                                                       \
    ROW(UCCL_EPEERDEAD, -8, "peer stopped answering")                                                                  \
    ROW(UCCL_ECLOSED, -9, "connection closed")                                                                         \
    ROW(UCCL_EREFUSED, -10, "connection refused")                                                                      \
    ROW(UCCL_EPROTO, -11, "peer speaks another protocol or version")                                                   \
    ROW(UCCL_EADDR, -12, "address not usable")                                                                         \
    ROW(UCCL_ENODEV, -13, "no such device")                                                                            \
    ROW(UCCL_EIO, -14, "system or device error")                                                                       \
    ROW(UCCL_EFORKED, -15, "object of the parent process, before fork()")                                              \
    ROW(UCCL_EACCESS, -16, "the peer refuses the access: range, right or reference")                                   \
    ROW(UCCL_EPEERNOMEM, -17, "the peer is out of memory")

enum uccl_error {
#define UCCL_ERROR_ENUM(name, value, text) name = value,
    UCCL_ERROR_ROWS(UCCL_ERROR_ENUM)
#undef UCCL_ERROR_ENUM
};

/* Returns the text of an error code: a constant string, never NULL, also for unknown codes. */
const char *uccl_strerror(int error);

/* Returns "MAJOR.MINOR.PATCH" of the running library. The macros above give the version compiled against. */
const char *uccl_version(void);

/* Returns the build options of the library, such as "io_uring=yes", as a constant string. */
const char *uccl_build_info(void);

/*
 * Returns how many processors this process can keep busy, 1 or more: those of the calling thread's affinity, but no
 * more than the CPU quota of its control group pays for, rounded up. UCCL_NUM_ENGINES=0 goes by it. Reads files.
 */
unsigned uccl_cores(void);

/* ---- log ------------------------------------------------------------------------------------- */

enum uccl_log_level { UCCL_LOG_NONE = 0, UCCL_LOG_ERROR = 1, UCCL_LOG_WARN = 2, UCCL_LOG_INFO = 3, UCCL_LOG_DEBUG = 4 };

/*
 * The library calls it from any thread, possibly several at once, and may hold locks: it may call only uccl_set_log()
 * and what a signal handler may. `text` has no newline; it is valid for the call.
 */
typedef void (*uccl_log_fn)(void *user, enum uccl_log_level level, const char *text);

/*
 * Sends the log of the whole process to `fn` (NULL: to stderr). Messages that start after the call go to `fn`.
 * The call returns when no thread is inside the replaced callback, so the caller may then free that callback's data.
 * The caller must not hold a lock that the callback takes. Called inside the callback, it only notes `fn`: the
 * change takes effect when that callback returns, and its data must live on until then. Messages that a callback
 * itself causes go to stderr. The engine opened last sets the level, by its parameter UCCL_LOG_LEVEL.
 */
void uccl_set_log(uccl_log_fn fn, void *user);

/* ---- parameters ------------------------------------------------------------------------------ */

typedef struct uccl_config uccl_config;

/* Makes an empty set of settings. Only one thread at a time may use a set. */
int uccl_config_create(uccl_config **out);
void uccl_config_destroy(uccl_config *config);

/*
 * Sets parameter `name` ("UCCL_CC" or "CC") for engines opened with this set. The setting outranks the environment
 * and the configuration file. UCCL_EINVAL: the name is unknown or the value out of range; the log tells which, and
 * what is allowed.
 */
int uccl_config_set(uccl_config *config, const char *name, const char *value);

struct uccl_param_info {
    const char *name;     /* "UCCL_CC" */
    const char *default_; /* as text */
    const char *range;    /* "1..1024" or "swift|timely" */
    const char *unit;     /* "" where none */
    const char *doc;      /* one sentence or two */
};

/* Describes parameter `index`, from 0. UCCL_EINVAL: `index` is past the last. */
int uccl_param_info(unsigned index, struct uccl_param_info *out);

/*
 * Writes the value that an engine opened with `config` (NULL: none) would use now, as text, to `value`: at most
 * `value_size` bytes with the NUL. Writes the value's origin to `source`: "default", "setter", "environment",
 * "environment, NCCL_IB_HCA" where that variable stands in, or a file name. UCCL_EINVAL: `index` is past the last, or
 * the value is not allowed; the log tells why.
 */
int uccl_param_value(const uccl_config *config, unsigned index, char *value, size_t value_size, char *source,
                     size_t source_size);

/* ---- engine ---------------------------------------------------------------------------------- */

typedef struct uccl_engine uccl_engine;

/*
 * Opens an engine: devices, engine threads, a random 128-bit id. A process may open several. The call reads `config`
 * (NULL: only environment and file) and does not keep it. Blocks for milliseconds.
 * UCCL_EINVAL: a parameter is not allowed; UCCL_ENODEV: no usable device; UCCL_ENOTSUP: this machine or build lacks
 * what a parameter asks for; UCCL_ENOMEM, UCCL_EIO.
 */
int uccl_open(const uccl_config *config, uccl_engine **out);

/*
 * Closes every listener and connection of the engine, completes its requests with UCCL_ECANCELED, cancels its
 * never-blocking connects, joins its threads and frees all. Every handle that came from the engine is invalid
 * afterwards, requests included. Blocks for at most the linger time (UCCL_LINGER_MS) and a fifth of a second, or
 * some seconds more where a GPU does not complete its copies, or while verbs look for a peer's port. Threads inside
 * uccl_wait() leave it first, with UCCL_ECANCELED where such a GPU keeps the request; no other call may be in progress.
 */
int uccl_close(uccl_engine *engine);

struct uccl_device {
    char name[32];         /* interface or verbs device, of which 31 characters: whole in uccl_verbs_port */
    char backend[16];      /* "udp", "tcp" or "verbs" */
    char address[64];      /* numeric address at which peers reach it */
    char description[128]; /* its capabilities as text */
    uint64_t speed_mbps;   /* 0: unknown */
    uint32_t mtu;          /* bytes of an IP packet */
    uint32_t engines;      /* engine threads that use it */
    int numa_node;         /* -1: unknown */
    int is_loopback;       /* 1: no other machine reaches it */
};

/* Count the devices; describe one, from index 0. UCCL_ENODEV: no such index. */
int uccl_device_count(const uccl_engine *engine);
int uccl_device_get(const uccl_engine *engine, int device, struct uccl_device *out);

/*
 * What went over one of the NICs of an engine. Zero the struct and set `size`. An engine that uses one NIC does not
 * know by which interface the kernel sends: then `in_use` is 0, and uccl_counter() has the sums.
 */
struct uccl_device_stats {
    size_t size;                     /* sizeof(struct uccl_device_stats) */
    int in_use;                      /* 1: the engine uses several NICs, and this is one of them */
    int up;                          /* 0: down or gone, as last seen */
    uint64_t tx_datagrams, tx_bytes; /* UDP payload */
    uint64_t rx_datagrams, rx_bytes;
    uint64_t losses;  /* rails (ways to a peer) over it that were given up, for whatever reason */
    uint64_t returns; /* of them, those in use again */
};

/* Tells those of `device`, summed over the engine threads. UCCL_ENODEV: no such index; UCCL_EINVAL: bad `size`. */
int uccl_device_stats(const uccl_engine *engine, int device, struct uccl_device_stats *stats);

/* A network interface that is up and has an address. */
struct uccl_interface {
    char name[32];
    char address[64];    /* the best of its numeric addresses */
    uint64_t speed_mbps; /* 0: unknown */
    uint32_t mtu;        /* bytes of an IP packet */
    int numa_node;       /* -1: unknown */
    int rank;            /* order of preference, 0 first; equally good ones share a rank */
    int is_loopback;     /* 1: no other machine reaches it */
};

/*
 * Calls `tell` for each interface that UCCL_SOCKET_IFNAME admits, best first, and returns their number. Parameters
 * come from `config` (NULL: none), environment and file. Needs no engine.
 * UCCL_EINVAL: as for uccl_open(); UCCL_EIO, UCCL_ENOMEM.
 */
typedef void (*uccl_interface_fn)(void *user, const struct uccl_interface *interface);
int uccl_interfaces(const uccl_config *config, uccl_interface_fn tell, void *user);

/* An entry of a verbs port's GID table. */
struct uccl_verbs_gid {
    int index;
    char type[12];    /* "RoCE v1", "RoCE v2", "InfiniBand" */
    char address[48]; /* "10.0.0.1", "fe80::1" */
};

/* A port of a verbs (RDMA) device, and how the engine would use it. */
struct uccl_verbs_port {
    char device[64];
    uint32_t port; /* from 1 */
    int active;
    char link[12];        /* "RoCE", "InfiniBand" */
    uint32_t mtu;         /* active path MTU: payload bytes per packet */
    uint32_t lid;         /* 0 on RoCE */
    uint64_t speed_mbps;  /* 0: unknown */
    int numa_node;        /* -1: unknown */
    int ud, uc, rc;       /* 1: the device can create such queue pairs */
    uint32_t max_message; /* bytes per work request */
    uint32_t max_queue_pairs, max_work_requests, max_completions, max_shared_receives;
    uint32_t clock_khz; /* rate of the NIC's clock, which times round trips. 0: the engine's clock does, since
                           completions have no time stamps or the NIC's clock cannot be read */
    uint32_t gid_count; /* readable, non-empty entries */
    const struct uccl_verbs_gid *gids; /* valid during the call */
    int usable;                        /* the engine takes the first usable port */
    char why_not[192];                 /* empty where it is usable */
    int gid_index;                     /* the GID that the engine would use; -1: none */
    char why_gid[192];
    char mode[4]; /* data queue pairs that the engine would use: "UC", "RC", "UD"; empty: none */
    char why_mode[192];
};

/*
 * Calls `tell` for each port of each verbs device that opens, and returns the number of ports. Parameters come from
 * `config` (NULL: none), environment and file. Needs no engine; blocks while it queries the devices.
 * UCCL_ENOTSUP, UCCL_ENODEV: built without verbs, or the verbs library is absent; `status` then gets the reason as
 * text, at most `size` bytes. UCCL_EINVAL: as for uccl_open().
 */
typedef void (*uccl_verbs_port_fn)(void *user, const struct uccl_verbs_port *port);
int uccl_verbs_ports(const uccl_config *config, uccl_verbs_port_fn tell, void *user, char *status, size_t size);

/* How far a GPU is from a device, nearest first. */
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
    char model[96];     /* the runtime's name for it */
    int numa_node;      /* -1: unknown */
    int nearest_device; /* index for uccl_device_get(), spread over equally near ones; -1: unknown */
    char reached[128];  /* how the NIC would reach its memory: as in struct uccl_mr_info */
    int used_device;    /* at which a connection near it begins (struct uccl_conn_options); -1: as the kernel routes */
};

/*
 * Count the GPUs that the loaded runtimes show; describe one; tell how far one is from a device. The first of these
 * calls examines the machine for up to a second, without using a GPU. UCCL_ENODEV: no such index.
 * uccl_gpu_distance() returns an enum uccl_distance or an error. uccl_distance_name() returns its short name, "PIX" to
 * "SYS", or "unknown", also for an error; the string is static.
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
 * Names a listener; send it to peers by any means. The first 16 bytes hold the state of a never-blocking connect on
 * the connecting side; a listener leaves them zero. They hold no pointer. Whatever their value, they name either a
 * connect under way in this process or nothing.
 */
struct uccl_handle {
    uint8_t state[16];
    uint8_t listener[112];
};

/*
 * Listens on `device`'s address and TCP `port` (0: any free one). Device -1 listens on every address of the machine;
 * the handle then names up to eight, device 0's first. A handle names this listener, not a later one on its port.
 * Where the handle names a link-local IPv6 address, the connecting side chooses the interface: its best one with a
 * link-local address that UCCL_SOCKET_IFNAME admits.
 * UCCL_EADDR: address or port in use, or not of this machine; UCCL_ENODEV, UCCL_ENOMEM.
 */
int uccl_listen(uccl_engine *engine, int device, uint16_t port, struct uccl_handle *handle, uccl_listener **out);

/* Whether large messages are cut into parts, which several engine threads carry at once. */
enum uccl_parts { UCCL_PARTS_DEFAULT = 0, UCCL_PARTS_ON = 1, UCCL_PARTS_OFF = 2 };
enum { UCCL_PRIVATE_MAX = 256 }; /* bytes of private data */

/*
 * Wishes for connections. Zero the struct, set `size`, then what is wished for: a field that is 0 leaves the choice to
 * the engine. Both ends may have wishes; where they disagree on the engine thread, the listener's counts.
 */
struct uccl_conn_options {
    size_t size;               /* sizeof(struct uccl_conn_options) */
    unsigned thread;           /* number of the engine thread that serves the connection at both ends, from 1. If the
                                  other engine has fewer threads, their numbers count round */
    enum uccl_parts parts;     /* of messages in both directions; DEFAULT: as UCCL_STRIPE_MIN_KB says */
    uint64_t parts_from_bytes; /* with parts ON or DEFAULT: shorter messages have none; 0: as UCCL_STRIPE_MIN_KB says */
    const char *device;        /* name of the device at which it begins, of those in use; NULL: any */
    const char *near;          /* what its messages lie in: a GPU ("cuda:1") or a NUMA node ("node:0"); the nearest
                                  device is chosen. `device` and `thread` outrank it; NULL: unknown */
    const void *private_data;  /* shown to the other end: uccl_conn_private() */
    size_t private_bytes;      /* at most UCCL_PRIVATE_MAX */
    unsigned traffic_class;    /* of the packets that this end sends: four times the DSCP, up to 255 (the two low bits
                                  do not count); 0: as the parameters say, 1: DSCP 0. Connections of different classes
                                  share no paths and no congestion window */
};

/*
 * uccl_listen() with wishes for all connections that the listener accepts. The call copies all that `options` (NULL:
 * none) refers to. UCCL_EINVAL, beside the errors of uccl_listen(): an option is out of range (the log tells which), or
 * `size` is that of a later version and the fields beyond ours are not 0.
 */
int uccl_listen_with(uccl_engine *engine, int device, uint16_t port, const struct uccl_conn_options *options,
                     struct uccl_handle *handle, uccl_listener **out);

/* Returns the TCP port of a listener. */
uint16_t uccl_listener_port(const uccl_listener *listener);

/* Stops listening. Accepted connections stay. */
int uccl_listener_close(uccl_listener *listener);

/*
 * Makes a handle for the listener at `port` of `host`: a name, or an IPv4 or IPv6 address, also in brackets. For a
 * name the handle holds its addresses, at most eight. A link-local address may name its interface (fe80::1%eth0); the
 * handle is then valid on this machine alone. A name may block in the resolver. UCCL_EADDR: `host` does not resolve;
 * UCCL_ENOMEM.
 */
int uccl_handle_from_address(const char *host, uint16_t port, struct uccl_handle *out);

/*
 * Connects to the listener of `handle`, by the first of its addresses that leads there. Tries an address 100 ms after
 * the one before, or once that one has failed (RFC 8305), and holds a descriptor for each. Succeeds when datagrams
 * have crossed both ways.
 * `timeout_ms` 0 never blocks: on UCCL_EAGAIN call again with the same handle, whose state bytes carry the progress; a
 * call with another `timeout_ms` goes on, and waits for at most that time from its beginning.
 * Any other result is final and clears them. uccl_connect_cancel() gives up. Only one thread at a time may use a
 * handle. A process may have 4096 such connects under way (else UCCL_ENOMEM).
 * UCCL_EINVAL, with the handle unchanged: it is no handle, or one of another version; or its state bytes are neither
 * zero nor those of a connect of `engine` to this listener that is under way (cancel then does nothing).
 * UCCL_ETIMEDOUT: `timeout_ms` has passed (0 and below: the parameter UCCL_CONNECT_MS), possibly since a firewall
 * passes only TCP; the log names the ports. With `timeout_ms` 0 and the parameter UCCL_ACCEPT_WAIT_MS set, that time
 * begins when the other side accepts; UCCL_ACCEPT_WAIT_MS limits the wait before. UCCL_EREFUSED: also if another
 * listener than the handle's answers, or the listener is closed before it has accepted. UCCL_ECLOSED: the other
 * process has ended. UCCL_EPROTO: the other side is of another version, or shares no backend (UCCL_BACKEND), or is no
 * engine. UCCL_EADDR, UCCL_ENOMEM, UCCL_EPEERDEAD.
 * Where all addresses fail, the call returns the most informative of their errors.
 */
int uccl_connect(uccl_engine *engine, struct uccl_handle *handle, int timeout_ms, uccl_conn **out);
void uccl_connect_cancel(struct uccl_handle *handle);

/*
 * uccl_connect() with wishes for the connection. Of the calls for one never-blocking connect the first counts. The
 * call copies all that `options` (NULL: none) refers to. UCCL_EINVAL: as for uccl_listen_with().
 */
int uccl_connect_with(uccl_engine *engine, struct uccl_handle *handle, int timeout_ms,
                      const struct uccl_conn_options *options, uccl_conn **out);

/*
 * Takes the next connection. `timeout_ms` 0 never blocks: UCCL_EAGAIN if none is ready. The library drops and logs a
 * peer that does not complete the handshake in time or sends garbage; the call never returns such a peer.
 * UCCL_ETIMEDOUT; UCCL_ENOMEM: a peer waits but descriptors have run out (it keeps waiting: free some, call again).
 */
int uccl_accept(uccl_listener *listener, int timeout_ms, uccl_conn **out);

/*
 * Closes a connection. Pending requests complete with UCCL_ECANCELED here and with UCCL_ECLOSED at the peer. Data
 * accepted for sending is still delivered if the peer answers within UCCL_LINGER_MS. Blocks for at most that time,
 * a fifth of a second and the notifications between engine threads. Does not wait for a peer that left another close,
 * or sent data, unanswered for the linger time, until that peer is heard again.
 * On return all requests have completed and the engine touches no buffer. Exception: where a GPU does not complete
 * its copies, the call returns after a second more. Requests on a hung GPU copy complete when it does, possibly never.
 * The connection handle is invalid afterwards. Its requests stay valid until uccl_test() or uccl_wait() collects them.
 * UCCL_EINVAL: the connection is being closed.
 */
int uccl_conn_close(uccl_conn *conn);

/*
 * Closes like uccl_conn_close(), but does not wait: its request completes with 0 when the close has. Any number of
 * closes take as long as one. Cancelling the request has no effect. Until the request is collected, only
 * uccl_conn_abort(), uccl_conn_status(), uccl_conn_peer() and uccl_conn_peer_id() may use the handle. The call that
 * collects the request frees the connection; it may wait for engine threads, but not for a peer. Where a GPU does not
 * complete its copies, the request stays pending.
 * Never blocks. UCCL_EAGAIN: as for uccl_send_async(), and the connection is still open. UCCL_EINVAL: the connection
 * is being closed.
 */
int uccl_conn_close_async(uccl_conn *conn, uccl_request **out);

/*
 * Closes a connection without lingering. Pending requests, sends included, complete with UCCL_ECANCELED at once. A
 * request whose buffer a NIC may still access completes when that access is over: at most a fifth of a second later,
 * and the time in which queue pairs drain. Until a request has completed, its buffer is in use. The engine notifies
 * the peer once. The peer's requests complete with UCCL_ECLOSED, except that its fully received sends succeed, unless
 * uccl_close() follows before the notification has left. The handle is invalid afterwards; its requests are collected
 * as usual. After uccl_conn_close_async() an abort cuts the linger time short, and that request completes soon.
 * Waits for room in a full ring, never for a peer.
 */
int uccl_conn_abort(uccl_conn *conn);

/* Returns 0 while the connection works, else the error that ended it. */
int uccl_conn_status(const uccl_conn *conn);

/* Writes the numeric address and port of the peer's bootstrap, for logs. */
int uccl_conn_peer(const uccl_conn *conn, char *out, size_t size);

/* Writes the id of the engine at the other end. Connections with equal ids share their peer's fate. */
int uccl_conn_peer_id(const uccl_conn *conn, uint8_t out[16]);

/*
 * Writes the private data that the other end gave with its options: at most `size` bytes. Returns the number that it
 * gave, from 0 to UCCL_PRIVATE_MAX.
 */
int uccl_conn_private(const uccl_conn *conn, void *out, size_t size);

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct uccl_mr uccl_mr;

enum uccl_mem { UCCL_MEM_AUTO = 0, UCCL_MEM_HOST = 1, UCCL_MEM_CUDA = 2, UCCL_MEM_HIP = 3 };

/*
 * Registers memory with the engine's devices. Host memory needs none: pass NULL as `mr`. Registering host memory saves
 * work on backends that pin. GPU memory must be registered, else it is taken for host memory. UCCL_MEM_AUTO detects the
 * kind. The memory stays the caller's and must outlive the registration: free it after uccl_dereg_mr().
 *   Where the NIC places payload, a peer that was granted a receive in a registration can write to all of that
 * registration: register no more than that. Registrations of an identical range share their resources.
 * The call changes no thread's current device or context and touches no GPU that the application does not use.
 * UCCL_ENOTSUP: this build or machine lacks the kind, or the memory is of another kind; UCCL_EINVAL: the range reaches
 * beyond its allocation, or beyond the last address; UCCL_ENOMEM.
 */
int uccl_reg_mr(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind, uccl_mr **out);

/*
 * Registers GPU memory of which the caller has a DMA-BUF: `address` lies `offset` bytes into it. A NIC that reaches
 * device memory by itself registers by `fd`, unless the parameters forbid that. For any other NIC the call is
 * uccl_reg_mr(), which exports a DMA-BUF where it needs one. The caller keeps `fd` and may close it after the call.
 * UCCL_EINVAL: `fd` is negative.
 */
int uccl_reg_mr_dmabuf(uccl_engine *engine, void *address, size_t length, enum uccl_mem kind, int fd, uint64_t offset,
                       uccl_mr **out);

struct uccl_mr_info {
    enum uccl_mem kind;
    int device; /* the runtime's index (CUDA_VISIBLE_DEVICES applies); -1: host memory */
    void *base; /* the allocation; of host memory: the registered range */
    size_t base_length;
    char pci[16];      /* PCI address of the device, "0000:1b:00.0"; "": none or unknown */
    char reached[256]; /* how the NIC reaches it. GPU memory: "direct, ..." (GPUDirect RDMA) or "staged: ..." and
                          the reason. Host memory: "direct" or "copied" */
};

/* Describes registered memory. */
int uccl_mr_get_info(const uccl_mr *mr, struct uccl_mr_info *out);

/*
 * Tells whether this build and machine support a kind of memory (not UCCL_MEM_AUTO). `text` gets the driver's version
 * and number of devices, or the reason why there is none. 0: usable; UCCL_ENOTSUP: not usable.
 * Loads and initialises the GPU's driver, which takes up to a second, but creates no context.
 */
int uccl_mem_status(enum uccl_mem kind, char *text, size_t size);

/* Ends a registration. UCCL_EAGAIN: requests that use it are pending. */
int uccl_dereg_mr(uccl_mr *mr);

/* ---- requests -------------------------------------------------------------------------------- */

/*
 * Post the next send or receive of a connection. Send k of one side matches receive k of the other, in the order in
 * which the calls took effect. The engine owns the buffer until the request completes. `mr` may be NULL for host
 * memory; else it is one of the connection's engine. `length` may be 0: then `buffer` may be anything, in `mr` or not.
 *   GPU memory: the work that writes a send's data must have completed before the call. After a receive has completed
 *   and been flushed (uccl_flush()), work submitted to the GPU sees its data.
 *   A send completes when the peer's receive has all its bytes.
 *   A receive larger than its send completes with the sent size. Where a receive is smaller, both complete with
 *   UCCL_ETRUNCATED, the engine writes nothing beyond the buffer, and the connection lives.
 * Never blocks, takes no lock, and allocates nothing once warm. UCCL_EAGAIN: rings or requests are exhausted (test or
 * wait for older requests, then post again); UCCL_EINVAL; the connection's error once the connection has ended.
 */
int uccl_send_async(uccl_conn *conn, const void *buffer, size_t length, uccl_mr *mr, uccl_request **out);
int uccl_recv_async(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out);

/*
 * Posts a receive with flags; without flags it is uccl_recv_async(). Both calls count in one order.
 *
 * UCCL_RECV_WATCHED lets a reader poll the buffer while the receive is pending, as GPU kernels do under NCCL's
 * protocols LL and LL128. Each aligned 8 bytes of the message appear at once. The last 8 of each aligned 128, or of
 * the message, appear after the others of that 128 (on x86-64 all 16 words appear in ascending order). So a reader can
 * trust a flag as soon as it sees the flag, in two cases: the flag shares 8 aligned bytes with its data and is loaded
 * with them; or the flag is the last 8 of the 128 that it guards and is loaded before them (acquire). If a message
 * does not end at a multiple of 8, its last bytes appear as aligned words of 4, 2 and 1.
 * Aligned 128s appear in any order. The engine writes only bytes of the message, each at its own offset.
 * The sender need not know. The receive costs a copy by the CPU, even where the NIC could place payload.
 * UCCL_EINVAL: an unknown flag, or a watched buffer (of one byte or more) that is not aligned to 128 bytes.
 * UCCL_ENOTSUP: a watched buffer in memory registered as GPU memory. The GPU's runtime copies there, also what the NIC
 * does not place, and promises no order. Host memory that a GPU reads (pinned and mapped) counts as host memory here.
 */
enum uccl_recv_flags { UCCL_RECV_WATCHED = 1 };
int uccl_recv_with_async(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, unsigned flags, uccl_request **out);

/*
 * Tests whether a request has completed, and writes 1 or 0 to `done`. While pending, returns 0. Once completed, returns
 * the request's status (0 or an error), writes the bytes moved to `bytes` (may be NULL), and frees the request.
 * UCCL_EINVAL, here and below: the request was freed before. The library detects that within limits: not after many
 * later requests, nor when two threads collect a request at the same time. Never blocks; may run one bounded round of
 * the engine on the caller's thread. Only one thread at a time may test or wait for a request.
 */
int uccl_test(uccl_request *request, int *done, size_t *bytes);

/*
 * Waits until the request completes, then acts like uccl_test(). UCCL_ETIMEDOUT: still pending and valid. May run the
 * engine on the caller's thread meanwhile.
 */
int uccl_wait(uccl_request *request, int timeout_ms, size_t *bytes);

/*
 * Asks the engine to complete a request early. The request must still be tested or waited for. It completes with
 * UCCL_ECANCELED, or normally if the cancel came too late. The peer's matching request completes with UCCL_ECANCELED
 * too, unless that request is a receive that already had all its bytes. After a late cancel the sender cannot know
 * whether the message was delivered.
 * Another thread may wait for the request or collect it meanwhile: a cancel after the collection returns UCCL_EINVAL or
 * has no effect, and never hits a later request. UCCL_EAGAIN: the ring is full, call again.
 */
int uccl_cancel(uccl_request *request);

/*
 * Makes received bytes visible to the device that owns `buffer`, which lies in `mr`. Post the flush after the receive
 * has completed. Once the flush has completed, work that begins on the device sees all bytes that receives on this
 * connection brought to `buffer`. Only memory that the NIC writes by itself needs a flush (uccl_mr_get_info():
 * "direct"). For host memory and staged device memory the call writes NULL to `*out`: nothing to wait for or test. A
 * flush may be posted after the connection has failed.
 *   Never blocks. The request is like any other, of 0 bytes, but cancelling it has no effect. It completes with
 *   UCCL_EIO if the NIC cannot read the buffer. UCCL_EAGAIN: as for uccl_send_async(); UCCL_EINVAL: bytes outside `mr`.
 */
int uccl_flush(uccl_conn *conn, void *buffer, size_t length, uccl_mr *mr, uccl_request **out);

/*
 * uccl_event_fd() returns a descriptor that becomes readable when a request of the engine completes after
 * uccl_event_arm(). Arm, test all requests, then poll the descriptor, in this order. The engine owns the descriptor:
 * never read or close it. Arming clears it: one thread at a time may arm and poll, or one takes another's wake-up.
 */
int uccl_event_fd(uccl_engine *engine);
int uccl_event_arm(uccl_engine *engine);

/* ---- one-sided operations --------------------------------------------------------------------- */

/*
 * A process exports registered memory and gives the reference, plain bytes, to a peer by any way, such as a message.
 * The peer imports it on a connection to that process, and then writes and reads the memory. The exporting process
 * calls nothing for it and may sleep; its engine checks range, right and reference of every access. Both engines must
 * know one-sided operations: with a peer that does not, all calls on the connection return UCCL_ENOTSUP.
 */
enum { UCCL_REF_BYTES = 52, UCCL_NOTIFY_MAX = 65536 };

enum uccl_access { UCCL_ACCESS_READ = 1, UCCL_ACCESS_WRITE = 2 };

typedef struct uccl_export uccl_export;
typedef struct uccl_remote uccl_remote;

/*
 * Exports `length` bytes at `address`, which lie in `mr`, with the rights `access` (of enum uccl_access), and writes
 * the reference to `ref`. Who has the reference and a connection to this engine has these rights until uccl_revoke():
 * the reference holds an unguessable number. An export counts as a pending use of `mr`: uccl_dereg_mr() revokes the
 * exports of `mr` and returns UCCL_EAGAIN while a byte can still come. uccl_close() ends all exports.
 *   Where the NIC places payload, it registers what peers may write to once more, for this export alone: with the key
 * that they learn they write to nothing else, and not after uccl_revoke().
 * Never waits for peers. UCCL_EINVAL: bytes outside `mr`, no right or an unknown one; UCCL_ENOMEM; as uccl_reg_mr().
 */
int uccl_export_mr(uccl_mr *mr, void *address, size_t length, unsigned access, uint8_t ref[UCCL_REF_BYTES],
                   uccl_export **out);

/*
 * Ends an export. From the call on the engine refuses new accesses; those under way end with UCCL_EACCESS at the peer.
 * On success no byte of the memory changes or is read for a peer any more, and `exported` is invalid.
 * UCCL_ETIMEDOUT: the export is revoked, but accesses under way have not ended: the memory is not free yet. Call again.
 * They end after at most the dead-peer time (UCCL_DEAD_PEER_MS), or when a hung GPU ends its copies. `timeout_ms` as in
 * uccl_wait(). Several threads may revoke one export at the same time: it ends for all. UCCL_EINVAL: revoked before.
 */
int uccl_revoke(uccl_export *exported, int timeout_ms);

/*
 * Imports a reference for use on `conn`. The object is plain memory; free it with uccl_remote_free(), before or after
 * the connection, once no call uses it. Pending operations do not need it. Never blocks and asks no peer: a revoked
 * or invented reference is found when it is used.
 * UCCL_EINVAL: these bytes are no reference; UCCL_EACCESS: a reference of another engine than the peer; UCCL_ENOTSUP;
 * UCCL_ENOMEM.
 */
int uccl_import(uccl_conn *conn, const uint8_t ref[UCCL_REF_BYTES], uccl_remote **out);
int uccl_remote_free(uccl_remote *remote);

struct uccl_remote_info {
    uint64_t address; /* of the first byte, in the exporting process */
    uint64_t length;
    unsigned access; /* of enum uccl_access */
    int is_host;     /* 1: the exporting CPU reaches it; 0: memory of a GPU */
};

/* Tells what a reference says of itself. UCCL_EINVAL. */
int uccl_remote_get_info(const uccl_remote *remote, struct uccl_remote_info *out);

/* A contiguous part of a read or write. */
struct uccl_piece {
    void *local;               /* in `mr`; read by writes, written by reads */
    uccl_mr *mr;               /* may be NULL for host memory */
    size_t length;             /* bytes; may be 0 */
    const uccl_remote *remote; /* imported on the same connection */
    uint64_t offset;           /* from the beginning of the exported memory */
};

/* What happens at the peer after all bytes of an operation. */
enum uccl_tail_kind {
    UCCL_TAIL_NOTIFY = 1, /* a notification, as by uccl_notify_async() */
    UCCL_TAIL_SET = 2,    /* `value` is stored in the 8 bytes at `offset`, which appear at once */
    UCCL_TAIL_ADD = 3,    /* `value` is added to them, atomically to this engine's and the peer's CPUs */
};
struct uccl_tail {
    enum uccl_tail_kind kind;
    const void *bytes;         /* of the notification; the call copies them */
    size_t length;             /* 0 to UCCL_NOTIFY_MAX */
    const uccl_remote *remote; /* of the signal: needs UCCL_ACCESS_WRITE */
    uint64_t offset;
    uint64_t value; /* in the byte order of the peer's machine */
};

/*
 * Write local memory to a peer's, or read it, in `count` pieces: one operation, one request. `count` may be any number,
 * also 0. The call copies the arrays; the local memory is the engine's until the request completes.
 *   A write completes when its bytes are visible at the peer: to its CPU loads, and to GPU work that it submits later.
 *   A read completes when its bytes are in local memory. `bytes` of uccl_test() are those of all pieces.
 *   The tail (NULL: none) takes effect once, after all bytes of its operation are visible (after a read: have arrived
 *   here), and before the request completes. A reader that loads the signal (acquire) sees the bytes.
 *   Nothing orders operations among themselves, nor their pieces, but uccl_fence().
 *   After an error any subset of the bytes has been moved, and the tail has not taken effect, unless the connection
 *   failed, which leaves that open.
 * The request completes with UCCL_EACCESS where the peer refuses a range, a right or a reference: nothing else comes to
 * harm. UCCL_EIO: a GPU failed to copy. UCCL_EPEERNOMEM: the peer lacks memory to stage a write for its GPU. Of both at
 * the peer's GPU a read says UCCL_EACCESS. UCCL_ECANCELED after uccl_cancel(): then the engines touch neither local nor
 * exported memory any more. Never blocks; may allocate.
 * UCCL_EAGAIN: as for uccl_send_async(). UCCL_EINVAL: local bytes outside their `mr`, a remote of another connection,
 * an unknown tail, a signal at an address that is no multiple of 8, a notification that is too long. UCCL_ENOTSUP:
 * UCCL_TAIL_ADD on memory of a GPU; or the peer lacks one-sided operations. UCCL_ENOMEM; the connection's error.
 */
int uccl_write_async(uccl_conn *conn, const struct uccl_piece *pieces, size_t count, const struct uccl_tail *tail,
                     uccl_request **out);
int uccl_read_async(uccl_conn *conn, const struct uccl_piece *pieces, size_t count, const struct uccl_tail *tail,
                    uccl_request **out);

/*
 * Orders the one-sided operations of a connection: those posted after the fence are not sent before those posted before
 * it have completed, whatever their result. Sends and receives are not concerned. Never blocks. What waits behind it
 * can be cancelled, and ends with the connection's error when that fails, as what stands before it does.
 * UCCL_EAGAIN: as for uccl_send_async(); UCCL_ENOTSUP; UCCL_ENOMEM; the connection's error.
 */
int uccl_fence(uccl_conn *conn);

/*
 * Its request completes with 0 once all one-sided operations posted on the connection before have completed, whatever
 * their results, or with the connection's error. Never blocks. Errors as of uccl_fence().
 */
int uccl_quiet_async(uccl_conn *conn, uccl_request **out);

/*
 * Sends a notification of 0 to UCCL_NOTIFY_MAX bytes, which the call copies. Those of one connection arrive once and in
 * the order of the calls; one that is a tail has its place in that order too, and makes later ones wait. None is
 * dropped: where the peer takes none, later ones wait here. The request completes when the notification is in the
 * peer's queue. uccl_cancel() has an effect as long as nothing of it has left. Never blocks; may allocate. Errors as of
 * uccl_fence(), and UCCL_EINVAL.
 */
int uccl_notify_async(uccl_conn *conn, const void *bytes, size_t length, uccl_request **out);

/*
 * Takes the oldest notification that came over any connection of the engine: copies it to `buffer`, writes its length
 * to `length` and its connection to `from` (each may be NULL). Those of a connection wait until uccl_accept() or
 * uccl_connect() has returned it. Closing it here, in any way, drops those that were not taken, from the call on; a
 * connection that the peer closes, or that fails, keeps them. Never blocks; may run one bounded round of the engine.
 * UCCL_EAGAIN: there is none, and nothing is written. UCCL_ETRUNCATED: it is longer than `size`, and stays in the
 * queue; `length` and `from` are written.
 */
int uccl_notify_next(uccl_engine *engine, void *buffer, size_t size, size_t *length, uccl_conn **from);

/*
 * Returns a descriptor that is readable while notifications wait. The engine owns it: poll it, never read or close it.
 * The descriptor of uccl_event_fd() too becomes readable when one arrives.
 */
int uccl_notify_fd(uccl_engine *engine);

/* ---- statistics ------------------------------------------------------------------------------ */

/* Writes name and documentation of counter `index`, from 0. UCCL_EINVAL: `index` is past the last. */
int uccl_counter_info(unsigned index, const char **name, const char **doc);

/* Writes the value of counter `index`, summed over the engine's threads. The value may lag by microseconds. */
int uccl_counter(const uccl_engine *engine, unsigned index, uint64_t *value);

/*
 * The same of one engine thread, from 0; struct uccl_device tells how many there are. UCCL_ENODEV: no such thread;
 * UCCL_EINVAL: as above.
 */
int uccl_thread_counter(const uccl_engine *engine, unsigned thread, unsigned index, uint64_t *value);

/* Writes the value of the counter called `name` ("retransmits"). UCCL_EINVAL: unknown name. */
int uccl_counter_by_name(const uccl_engine *engine, const char *name, uint64_t *value);

#ifdef __cplusplus
}
#endif
#endif
