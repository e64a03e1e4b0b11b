/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A network plugin for NCCL and RCCL over libuccl-engine, of whose calls it uses the public ones alone. One file per
 * concern:
 *
 *   versions.c   the tables that NCCL takes, versions 8 to 12: the newest is what is written, the others adapt it
 *   process.c    init and finalize, contexts, who owns what, forks
 *   devices.c    what NICs there are, and their properties
 *   sys.c        what /sys tells of a device
 *   engines.c    one engine per NIC and traffic class, opened when first used
 *   threads.c    how many threads an engine gets
 *   comms.c      listening, connecting, accepting, closing
 *   memory.c     registrations
 *   requests.c   sends, receives, flushes
 *   log.c        NCCL's logger, errors in NCCL's terms
 *   tuner.c      what the protocol LL takes, for NCCL's choice of one
 *
 * Words: a *communicator* (comm) is a one-way connection, as in NCCL's interface; a *context* is one of NCCL's own
 * communicators, that of an application.
 *
 * Threads: as nccl_net.h says, and several contexts at the same time. `plugin_lock` guards lists and counts. A
 * communicator has a lock of its own, since registrations, which may end it, come from another thread than requests.
 * Nothing takes plugin_lock while it holds a communicator's lock but comm_fail().
 */
#ifndef UCCL_NCCL_PLUGIN_H
#define UCCL_NCCL_PLUGIN_H

#include "nccl_net.h"
#include "uccl/engine.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Tables, which are all that the library exports. */
#define EXPORTED __attribute__((visibility("default")))

/* ---- log.c ------------------------------------------------------------------------------------ */

enum log_kind { LOG_KIND_WARN, LOG_KIND_INFO, LOG_KIND_TRACE };

/* Also takes the engine's log. NULL: nothing is logged any more. */
void log_start(nccl_logger_fn logger);
void log_line(enum log_kind kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define WARN(...) log_line(LOG_KIND_WARN, __VA_ARGS__)
#define INFO(...) log_line(LOG_KIND_INFO, __VA_ARGS__)

/* An engine's error in NCCL's terms: what is the peer's, what is ours, what is the caller's. */
enum nccl_result result_of(int error);

/* ---- process.c -------------------------------------------------------------------------------- */

/* One of NCCL's communicators; those before v11, which have none, share one. */
struct context {
    int traffic_class; /* NCCL_NET_UNDEFINED: none */
};
extern struct context shared_context;

extern pthread_mutex_t plugin_lock;

/* What a context leaves behind when it is finalized, first in the structure of that object. */
struct owned {
    struct owned *next, *prev;
    struct context *owner;
    void (*end)(struct owned *owned); /* without a word to the peer; frees it; not under the lock */
};
/* Under the lock. */
void owned_add(struct owned *owned, struct context *owner, void (*end)(struct owned *));
void owned_remove(struct owned *owned);

enum nccl_result plugin_init(struct context **context, const struct nccl_net_comm_config *config,
                             nccl_logger_fn logger);
enum nccl_result plugin_init_shared(nccl_logger_fn logger);
enum nccl_result plugin_finalize(struct context *context);
/* Whether engines stay open without a communicator, since contexts are there that will want them. Under the lock. */
bool plugin_keeps_engines(void);

/* An engine opens (+1), or has been closed (-1). */
void process_engines(int change);
/* Set in a child of fork() whose parent had engines open: every call fails there, and touches nothing. */
extern volatile bool process_is_child;
#define FAIL_IN_CHILD()                                                                                                \
    do {                                                                                                               \
        if (process_is_child)                                                                                          \
            return NCCL_INVALID_USAGE;                                                                                 \
    } while (0)

/* ---- devices.c -------------------------------------------------------------------------------- */

struct device {
    char name[40];      /* eth0, mlx5_0:1 */
    char address[64];   /* numeric; empty: of verbs */
    char pci_path[256]; /* in /sys; empty: none */
    char mode[8];       /* of verbs: "UC", "RC", "UD" */
    bool verbs;
    bool tcp; /* UCCL_BACKEND=tcp, for what the log says */
    int port;
    uint64_t guid;
    uint64_t speed_mbps;
};

/* Looks what there is, for init. What it told before stays valid. Under the lock. */
void devices_look(void);
int devices_count(void);
/* NULL: no such index. Valid for good. */
const struct device *devices_get(int index);
enum nccl_result devices_properties(int index, struct nccl_net_properties_v12 *out);

/* ---- sys.c ------------------------------------------------------------------------------------ */

/* A number in hexadecimal digits with separators, such as a MAC address or 0x10de; 0: unreadable. */
uint64_t sys_number(const char *folder, const char *name, const char *file);
/* The directory of the PCI device behind it, as NCCL's topology has it; unreadable: `out` stays as it is. */
void sys_pci_path(const char *folder, const char *name, char out[static 256]);

/* ---- engines.c -------------------------------------------------------------------------------- */

struct engine {
    struct engine *next;
    int device, traffic_class;
    uccl_engine *uccl;
    unsigned users;       /* listeners, communicators, connects under way */
    struct comm *closing; /* closed, but the peer's goodbye is awaited */
    uint8_t (*told)[16];  /* ids of peers of whose failure the log knows */
    unsigned told_count;
    atomic_bool hung; /* a GPU did not end its copies when a communicator was aborted */
};

/* Opens it if it is not open. Counts a user. */
enum nccl_result engine_get(int device, int traffic_class, struct engine **out);
/* A user less: closes it if it is the last one, and nothing keeps it. Not under the lock. */
void engine_put(struct engine *engine);
/* Closes those without users, unless something keeps them. Not under the lock. */
void engines_close_idle(void);
/* Whether the log knows already that this peer has failed; it does from now on. Under the lock. */
bool engine_told(struct engine *engine, const uint8_t peer_id[16]);
/* This peer has connected: its next failure is to be told. Under the lock. */
void engine_met(struct engine *engine, const uint8_t peer_id[16]);
/* Settings for an engine of this device. An error of the engine's if the traffic class is none. */
int engine_config(const struct device *device, int traffic_class, uccl_config **out);
/* The value of a parameter as things stand. 1: the user has set it; 0: it is the default; an error of the engine's. */
int parameter(const char *name, char *value, size_t size);

/* ---- threads.c -------------------------------------------------------------------------------- */

/* GPUs of this host; `directory`: /sys/bus/pci/devices, or a test's. 0: none, or nobody can tell. */
unsigned threads_gpus(const char *directory);
/*
 * Threads for each engine, where `cores` are this process's, `gpus` the host's, and `devices` those that NCCL may use.
 * 0: as many as the engine takes by itself.
 */
unsigned threads_wanted(unsigned cores, unsigned gpus, unsigned devices);

/* ---- comms.c ---------------------------------------------------------------------------------- */

struct request {
    struct comm *comm;
    uccl_request *uccl;
    bool ended; /* by comm_abort() */
};

struct comm {
    struct owned owned;
    struct engine *engine;
    pthread_mutex_t lock;    /* everything below */
    uccl_conn *uccl;         /* NULL: aborted */
    enum nccl_result failed; /* why it does nothing more; 0: it works */
    uint32_t busy;           /* bit per request in use */
    struct request requests[NCCL_NET_REQUESTS_MAX];
    struct comm *next; /* in engine->closing, with: */
    uccl_request *close;
};

struct listen_comm;

enum nccl_result comm_listen(struct context *context, int device, void *handle, struct listen_comm **out);
enum nccl_result comm_connect(struct context *context, int device, int traffic_class, void *handle, struct comm **out);
enum nccl_result comm_accept(struct listen_comm *listen_comm, struct comm **out);
enum nccl_result comm_close(struct comm *comm);
enum nccl_result comm_close_listen(struct listen_comm *listen_comm);
/* An operation has failed with the engine's `error`: notes it and says so once. Under the communicator's lock. */
enum nccl_result comm_fail(struct comm *comm, int error, const char *what);
/*
 * Ends the connection and its requests: their buffers are not touched afterwards, but where a GPU does not end its
 * copies. Those registrations stay in use. Waits for some seconds at most, and not under the communicator's lock:
 * other threads learn of the failure at once.
 */
void comm_abort(struct comm *comm);
/* Frees those of an engine that have closed. Under plugin_lock. */
void comms_sweep(struct engine *engine);

/* ---- memory.c --------------------------------------------------------------------------------- */

enum nccl_result memory_register(struct comm *comm, void *data, size_t size, int type, uccl_mr **out);
enum nccl_result memory_register_dmabuf(struct comm *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                        uccl_mr **out);
enum nccl_result memory_deregister(struct comm *comm, uccl_mr *mr);

/* ---- requests.c ------------------------------------------------------------------------------- */

/* What GPUs may see of a receive that is pending (LL and LL128): which ones NCCL tells apart only since v9. */
enum watch {
    WATCH_NOT,
    WATCH_MAYBE, /* NCCL does not say: watched where its buffer can be */
    WATCH_YES
};

/*
 * Reads what the environment says of protocols; for init. Not `afresh`: communicators are there, made under what it
 * said before, so it can only ask for more care. Under plugin_lock.
 */
void requests_configure(bool afresh);
/* Whether NCCL has no protocol but Simple, so that no GPU looks at a receive that is pending. */
bool requests_simple_only(void);
/* Of a v9 or later irecv, by what is in *request. */
enum watch requests_watch(const void *request);

/* `*out` is NULL when there is no room now. */
enum nccl_result request_send(struct comm *comm, void *data, size_t size, uccl_mr *mr, void **out);
enum nccl_result request_receive(struct comm *comm, int n, void **data, const size_t *sizes, void **mrs,
                                 enum watch watch, void **out);
enum nccl_result request_flush(struct comm *comm, int n, void **data, const int *sizes, void **mrs, void **out);
enum nccl_result request_test(struct request *request, int *done, int *sizes);

#endif
