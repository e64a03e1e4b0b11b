/* SPDX-License-Identifier: Apache-2.0 */
/* The structs behind the public handles, for the files of api/. */
#ifndef UCCL_OBJECTS_H
#define UCCL_OBJECTS_H

#include "base/process.h"
#include "boot/peer.h"
#include "core/queue.h"
#include "export.h"
#include "gpu/direct.h"
#include "mem/region.h"
#include "nic/nic.h"
#include "options.h"
#include "request/request.h"
#include "thread/onesided.h"
#include "thread/thread.h"
#include "uccl/engine.h"

#include <poll.h>
#include <pthread.h>

enum { CLOSED_KEPT = 64 };

/* The objects of some kinds that were closed last. */
struct closed {
    void *at[CLOSED_KEPT];
    unsigned next;
};

struct uccl_engine {
    struct params params;
    uint32_t process; /* that opened it (process.h) */
    uint8_t id[16];
    struct nic *nic;
    struct engine_thread *threads;
    unsigned thread_count;
    struct request_pool requests;
    struct request_pool parts; /* of striped messages */
    struct mem_cache regions;
    struct exports exports; /* read by engine threads */
    struct notes notes;
    int event_fd;
    _Atomic uint32_t event_armed;

    pthread_mutex_t lock; /* everything below; never taken on the data path */
    struct peer_table peers;
    struct uccl_conn *conns;
    unsigned abandoned;            /* of them, */
    struct queue abandoned_conns;  /* which are these: they may be few of many */
    bool ending;                   /* uccl_close() frees all of them, and nobody else does */
    struct uccl_conn *kept;        /* closed, but a hung device keeps their requests */
    struct connecting *connecting; /* connects under way */
    struct way_query *way_queries; /* of handshakes that need answers, and left ones (ways.h) */
    struct uccl_listener *listeners;
    struct queue mrs;              /* all registrations, */
    struct queue all_exports;      /* and exports */
    struct gpu_map *gpus;          /* made on first use */
    struct topology_cache machine; /* likewise */
    struct direct direct;          /* device memory that the NIC reaches by itself */
    uint16_t *conn_generations;    /* by index, so that an id does not soon come again */
    uint64_t *conn_indices;        /* bitmap of those in use */
    uint32_t conn_cursor;
    unsigned next_home;                   /* engine threads take connections in turn */
    unsigned next_at[NIC_ENDS_MAX];       /* and those of a NIC the connections that are to begin there */
    struct closed closed, closed_exports; /* see keep_closed() */
};

/* The end of a connection on one engine thread: its home, or a thread that carries parts; or an annex of the home. */
struct conn_end {
    struct uccl_conn *of;
    uint8_t annex; /* its number: 1 + enum annex; 0: none */
    void *memory;
    size_t memory_bytes;
};

struct uccl_conn {
    struct uccl_conn *next, *prev;
    struct uccl_engine *engine;
    struct engine_thread *thread; /* home */
    struct peer *peer;
    struct stripe_set stripes; /* its ends, home first; only the owners of the cores touch them */
    struct conn_end ends[CORE_STRIPES_MAX];
    struct conn_end annexes[ANNEXES]; /* if stripes.onesided is there */
    bool handed_out;                  /* the application has had it */
    bool abandoned;                   /* nobody waits until it is over; under the engine's lock, */
    struct queue_link of_abandoned;   /* like its place among those */
    _Atomic bool closing;             /* the application has closed it */
    uint32_t id;
    struct request_pairs pairs;
    union nic_address address;
    _Atomic int32_t status; /* 0, or why it takes no more messages */
    uint16_t private_bytes; /* of the other end's private data */
    uint8_t private_data[BOOT_PRIVATE_MAX];
};

struct uccl_mr {
    struct uccl_engine *engine;
    struct queue_link of_engine; /* on its mrs */
    void *address;
    size_t length;
    struct mem_region *region;
    struct direct_range *range;         /* of device memory (gpu/direct.h); else NULL */
    struct nic_mr nic[NIC_PLACERS_MAX]; /* registrations with the NICs; of device memory copies of the range's */
    _Atomic uint32_t users;             /* pending requests */
    struct queue exports;               /* of this registration that are not over; under the engine's lock */
    bool closed;
};

struct uccl_export {
    struct queue_link of_engine, of_mr; /* on all_exports, and on mr->exports */
    struct uccl_engine *engine;
    struct uccl_mr *mr; /* may be gone once it is over */
    struct exported *entry;
    struct nic_mr nic[NIC_PLACERS_MAX]; /* to be written to: registrations of its own, whose keys end with it */
    unsigned revokers;                  /* threads that revoke it: the entry stays */
    bool over;                          /* revoked, and no access is under way */
};

struct uccl_remote {
    uint32_t process; /* that imported it */
    const struct uccl_conn *conn;
    struct export_ref ref;
    struct uccl_remote_info info;
};

/* Whether this is a child of the process that opened the engine: it must not touch the engine (process.h). */
static inline bool inherited(const struct uccl_engine *engine)
{
    return process_forked(engine->process);
}

/* poll(), or a nap where that takes no descriptors any more: whoever waits goes on, but not round and round. */
void sleep_on(struct pollfd *fds, unsigned count, int timeout_ms);

/*
 * Frees a closed object some time later, when CLOSED_KEPT others of its kinds have been closed: until then its own mark
 * of that detects a second close. Under the engine's lock.
 */
void keep_closed(struct closed *closed, void *object);
/* Frees those that are kept, when the engine ends. */
void closed_free(struct closed *closed);

/* Its registrations with the NICs, or NULL: none reaches it. */
const struct nic_mr *mr_of_nics(const struct uccl_mr *mr);

/* Takes a request for the connection's home thread; NULL: none is left. */
struct uccl_request *request_take_for(struct uccl_conn *conn, void *buffer, struct uccl_mr *mr);

/* connect.c */
/* The kinds of queues that this engine's flows may use, as features of a HELLO. */
uint64_t kinds_taken(const struct uccl_engine *engine);
/* Whether both ends of a handshake take flows over both kinds of queues, at a time. */
struct bootstrap;
bool takes_both(const struct uccl_engine *engine, const struct bootstrap *boot);
/* Cancels the never-blocking connects of an engine that is being closed. */
void connects_end(struct uccl_engine *engine);
/* In a child of fork(): frees the connects and closes their descriptors. Under the lock. */
void connects_inherited(struct uccl_engine *engine);
/* The number of connects under way. Under the lock. */
unsigned connects_count(const struct uccl_engine *engine);
/* For the simulator, whose processes die and leave their connects in the table of this one. */
void connects_forget(void);

/* connection.c, for connect.c and listener.c. All but conn_unmap_ends() under the lock. */
/* Takes a connection id that is not in use: an index, and a generation above it. */
bool take_conn_id(struct uccl_engine *engine, uint32_t *id);
void put_conn_id(struct uccl_engine *engine, uint32_t id);
/* Makes a connection over a peer whose flows are open, by its offer; takes over a reference to the peer. */
struct conn_plan {
    struct peer *peer;
    unsigned home; /* index of the flow that serves it */
    uint32_t id;
    const struct boot_offer *theirs;
    const struct conn_wishes *wishes;
    const union nic_address *address;
};
int conn_make(struct uccl_engine *engine, const struct conn_plan *plan, struct uccl_conn **out);
void conn_unmap_ends(struct uccl_conn *conn);

/* close.c */
/*
 * Aborts a connection without sending pending data: when the application asks for it, or when setting it up fails
 * before the application has it. free_abandoned() or the engine's uccl_close() frees it. The caller does not hold
 * engine->lock.
 */
void conn_abandon(struct uccl_conn *conn);
/* Frees abandoned connections that are over, and kept ones whose last request is. */
void free_abandoned(struct uccl_engine *engine);
/* A close request has completed: frees its connection, unless uccl_close() does. */
void conn_closed(struct uccl_request *request);
/* Closes and frees all connections. */
void connections_end(struct uccl_engine *engine);
/* In a child of fork(): frees all connections; sends nothing. Under the lock. */
void connections_forget(struct uccl_engine *engine);

/* objects.c: ends the registrations of host memory. */
void nics_leave(struct uccl_engine *engine, struct nic_mr nic[NIC_PLACERS_MAX]);
/* Registers host memory with each NIC that takes it. */
int nics_join(struct uccl_engine *engine, void *address, size_t length, struct nic_mr nic[NIC_PLACERS_MAX]);

/* request.c */
/* Whether the bytes, if there are any, lie in a registration of this engine, which is not closed. */
bool mr_covers(const struct uccl_engine *engine, const struct uccl_mr *mr, const void *buffer, size_t length);
/* Posts a flush of device memory that the NIC writes directly: reads a byte of `buffer`. UCCL_EAGAIN. */
int request_post_flush(struct uccl_conn *conn, void *buffer, struct uccl_mr *mr, uccl_request **out);

/* onesided.c */
/* The application gets the connection: from now on its notifications may name it. */
void conn_hand_out(struct uccl_conn *conn);
/* Begins the end of all exports of a registration. Whether any has not ended. */
bool exports_of_mr_live(struct uccl_mr *mr);
/* Frees what is left of the exports. Under the lock. */
void exports_end(struct uccl_engine *engine);

/* gpu.c. NULL: does nothing. */
void gpu_map_free(struct gpu_map *map);

/* memory.c: ends the NIC's registration of device memory. Under the lock. */
void mr_leave_range(struct uccl_engine *engine, struct uccl_mr *mr);

/* connection.c: takes events of connections, on the engine's owner. */
void connection_on_event(void *context, const struct core_event *event);
/* listener.c */
/* Closes all listeners. */
void listeners_end(struct uccl_engine *engine);
/* In a child of fork(): frees all listeners and closes their descriptors; sends nothing. Under the lock. */
void listeners_forget(struct uccl_engine *engine);
/* The number of listeners, and of their handshakes under way. No thread accepts meanwhile. Under the lock. */
unsigned listeners_count(const struct uccl_engine *engine, unsigned *handshakes);

#endif
