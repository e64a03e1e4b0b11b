/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Striping of large messages over the engine threads of a NIC. A request of the application has a part per further
 * thread. A part is a request from the same pool, which that thread's core carries on its connection of the same ids
 * (core/part.c).
 *
 *   receive  The home thread hands parts to their threads before it sends the clear-to-send that allows them. Each
 *            thread adds what has arrived on its flow to `spread_bytes`. Who reaches the length of the message tells
 *            the home thread. A message has as many parts as the last messages had units, and one more than they had
 *            flows, however large the buffer is, since each part wakes a thread twice.
 *   send     When the clear-to-send comes, the home thread hands parts to as many threads as the message has ranges.
 *            A thread whose flow has sent its range takes the next one (CORE_EVENT_RANGE), by adding to
 *            `spread_bytes`. So a flow that is slow, or whose thread is busy, carries less. The home flow leaves
 *            short messages of a stream to the others.
 *   end      When the message has ended on the home thread, it ends the parts that are left. The request completes
 *            when the message and all its parts have ended: until then some thread may touch its memory.
 *
 * Threads: each function by the owner of the thread given.
 */
#ifndef UCCL_STRIPE_H
#define UCCL_STRIPE_H

#include "request/request.h"

/* Each thread has a connection for the messages of the application, and two for those of annexes that have parts. */
enum stripe_class { CLASS_MESSAGES, CLASS_WRITES, CLASS_READS, STRIPE_CLASSES };

/* What receives expect of the next message. Its home thread's. */
struct stripe_expects {
    /* The next message to be so long (UINT64_MAX: none came yet). Since that was computed, `noted` messages came, the
     * longest of `longest_bytes`. */
    uint64_t bytes, longest_bytes;
    unsigned noted;
    /* Of those with parts, at most `flows` flows carried something; since then. */
    unsigned flows, most_flows, flows_noted;
};

/* The ends of a connection, and what must be over before they may be freed. */
struct stripe_set {
    unsigned count; /* threads, the home thread first */
    unsigned open; /* of the home end: the connection, its one-sided operations. Then the others close. Home thread's */
    int32_t status; /* with which another end has failed; UCCL_OK: none has. Home thread's */
    /* Keeps the connection: one for each open end, for each close on its way to an end, and for each request with
     * parts or staged memory that has not completed, though the core may have finished with it. Whoever takes the
     * last one off marks the connection over. */
    _Atomic uint32_t holds;
    _Atomic uint32_t staged;          /* those of the requests that have staged memory: a hung device may keep them */
    _Atomic uint32_t over;            /* nobody touches it any more; pairs with the acquire of whoever frees it */
    struct uccl_request *closing;     /* completes then; written before the close is posted; NULL: none */
    _Atomic uint64_t silent_since_ns; /* since when the peer is silent on some flow, written then too; 0: unknown */
    uint64_t min_bytes;               /* receives from this size on have parts */
    uint64_t stream_min_bytes;        /* while several are under way: from this size on */
    /* Those of at least a unit that are under way; home thread's. */
    unsigned receives[STRIPE_CLASSES], sends[STRIPE_CLASSES];
    uint64_t send_min_bytes;    /* sends that are shorter have none, though the receiver offers them */
    struct request_pool *parts; /* of its messages; if it is empty, they travel whole */
    struct onesided *onesided;  /* its one-sided operations (onesided.h); NULL: the peer has none */
    void (*close_onesided)(struct onesided *one, uint64_t linger_ns, uint64_t now_ns);
    struct stripe_expects expects[STRIPE_CLASSES];
    struct {
        struct engine_thread *thread;
        struct conn *conns[STRIPE_CLASSES]; /* those of annexes: NULL, if the peer has no one-sided operations */
        uint32_t flow;                      /* the slot of its flow on the thread */
        struct notice to_close;             /* COMMAND_CLOSE from the home thread */
        struct notice to_home;              /* COMMAND_FAIL; of this thread, as is `failed` */
        bool failed;
    } at[CORE_STRIPES_MAX];
};

enum { STRIPE_NOTED = 8 }; /* receives: what was the most among them is expected */

/* How many flows have carried the message of a receive with parts. */
static inline void stripe_note_flows(struct stripe_expects *expects, unsigned flows)
{
    if (flows == 0) /* it went whole */
        return;
    if (expects->most_flows < flows)
        expects->most_flows = flows;
    bool more = expects->flows < flows;
    if (++expects->flows_noted < STRIPE_NOTED && !more)
        return;
    expects->flows = expects->most_flows;
    expects->most_flows = expects->flows_noted = 0;
}

/* A message begins (1) or has ended (-1). */
static inline void stripe_count(const struct uccl_request *request, int by)
{
    const struct core_msg *msg = &request->msg;
    struct stripe_set *stripes = request->stripes;
    if (msg->size_bytes >= CORE_STRIPE_UNIT)
        (msg->kind == CORE_RECV ? stripes->receives : stripes->sends)[request->class] += (unsigned)by;
}

/* CORE_EVENT_MSG of a request: notes the length of the message that a receive got, and its flows. */
static inline void stripe_note_length(const struct uccl_request *request)
{
    const struct core_msg *msg = &request->msg;
    if (request->stripes)
        stripe_count(request, -1);
    if (!request->stripes || msg->kind != CORE_RECV || msg->status != UCCL_OK) /* no stripes: a part */
        return;
    struct stripe_expects *expects = &request->stripes->expects[request->class];
    if (request->parts)
        stripe_note_flows(expects, atomic_load_explicit(&request->flows, memory_order_relaxed));
    if (expects->longest_bytes < msg->moved_bytes)
        expects->longest_bytes = msg->moved_bytes;
    bool longer = expects->bytes < msg->moved_bytes;
    if (++expects->noted < STRIPE_NOTED && !longer)
        return;
    expects->bytes = expects->longest_bytes;
    expects->longest_bytes = 0;
    expects->noted = 0;
}

/* What the application wishes for a connection. */
struct stripe_wish {
    bool off;            /* no parts in either direction */
    uint64_t from_bytes; /* none of shorter messages; 0: as UCCL_STRIPE_MIN_KB says */
};

/*
 * A connection over `count` threads. `places`: its NIC places what the peer sends. Then a message has no parts, since
 * its data QP belongs to one flow; only connections take turns on the threads. `parts`: the requests that parts take.
 * Not those of the application: receives that wait would leave it none to send with.
 */
void stripe_init(struct stripe_set *stripes, unsigned count, const struct params *params, bool places,
                 const struct stripe_wish *wish, struct request_pool *parts);

/* Submits a message of any class, with parts if it is a large receive. */
void stripe_submit(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/* Submits a part on the thread that it was handed to. */
void stripe_submit_part(struct engine_thread *thread, struct uccl_request *part, uint64_t now_ns);
/* CORE_EVENT_RANGE of a send or of a part. */
void stripe_range(struct engine_thread *thread, struct uccl_request *request, uint64_t chunk_bytes);
/* CORE_EVENT_ARRIVED of a receive or of a part. */
void stripe_arrived(struct engine_thread *thread, struct uccl_request *request, uint64_t bytes, uint64_t total);
/* COMMAND_LOOK: a receive is whole. */
void stripe_look(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/* COMMAND_CANCEL of a pending request: the application cancels it, or a part has ended early. */
void stripe_cancel(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/*
 * Ends a message of the engine's own early, also the parts of a send that the home thread has finished with: a peer
 * that has taken the message may leave their chunks without an ack. The message may end in this call.
 */
void stripe_end_early(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/*
 * CORE_EVENT_MSG of a request whose copies go on: takes back its parts that wait for room in a ring. They have done
 * nothing, and the connection may be gone before the copies have ended.
 */
void stripe_recall(struct engine_thread *thread, struct uccl_request *request);
/* CORE_EVENT_MSG of a request or of a part. */
void stripe_ended(struct engine_thread *thread, struct uccl_request *request);
/* A request with staged memory or parts has ended, and so have its parts: completes it. */
void stripe_request_over(struct uccl_request *request);
/*
 * Closing. The home end closes first, since parts belong to its messages; then the others, each on its thread. Nobody
 * waits: the request `closing` completes when all ends are closed.
 */
/* Takes a hold on the connection. False: it is over. Any thread. */
bool stripe_hold(struct stripe_set *stripes);
/* Drops a hold: the connection may be freed at any time from now on. Any thread. */
void stripe_let_go(struct stripe_set *stripes);
/* COMMAND_CLOSE: closes the end on this thread and drops the command's hold. */
void stripe_close(struct engine_thread *thread, struct stripe_set *stripes, uint64_t linger_ns, uint64_t now_ns);
/*
 * CORE_EVENT_CONN_FAILED of a connection of end `index`, not the home end: its flow is dead, perhaps that one alone.
 * The connection takes no more messages then, and those that it has could wait for ever for others. So all of it fails.
 */
void stripe_end_failed(struct stripe_set *stripes, unsigned index, int32_t status);
/* COMMAND_FAIL: the home end fails, which tells the peer, and drops the command's hold. */
void stripe_fail(struct engine_thread *thread, struct stripe_set *stripes, int32_t status, uint64_t now_ns);
/* The home end is open: fails if another end has failed before. */
void stripe_home_open(struct engine_thread *thread, struct stripe_set *stripes, uint64_t now_ns);
/* CORE_EVENT_CONN_ENDED of a connection of end `index`. */
void stripe_end_closed(struct stripe_set *stripes, unsigned index);
/* The home end's connection is over, or its one-sided operations are. */
void stripe_home_over(struct stripe_set *stripes);

/* Retries commands that found another thread's ring full. */
void stripe_retry(struct engine_thread *thread);

#endif
