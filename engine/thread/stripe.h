/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Striping of large messages over the engine threads of a NIC. A request of the application has, beside
 * itself, a part per further thread, a request of its own from the same pool, which that thread's core
 * carries on its connection of the same ids (core/part.c).
 *
 *   receive  parts go to their threads before the clear-to-send that allows them leaves; a part that
 *            arrives is reported to the home thread, whose core then knows when the message is whole.
 *            There are as many as the last messages had units, however large the buffers are: each part
 *            wakes a thread twice
 *   send     parts are made when the clear-to-send comes (CORE_EVENT_SPLIT)
 *   end      when the home's own message ends, parts that are left are ended; the request ends when
 *            it and all parts have: until then some thread may touch its memory
 *
 * Threads: each function by the owner of the thread given.
 */
#ifndef UCCL_STRIPE_H
#define UCCL_STRIPE_H

#include "request/request.h"

/* A connection's ends, and what must be over before they may be freed. */
struct stripe_set {
    unsigned count;                  /* threads, the home thread first */
    /* What the connection stays for: each end that is open, each close on its way to one, and each request that has not
     * ended though the core may be done with it, since it has parts or staged memory. Who lets the last of them go marks
     * the connection over. */
    _Atomic uint32_t holds;
    _Atomic uint32_t staged;         /* requests of these with memory of a device, which may keep them */
    _Atomic uint32_t over;           /* nobody touches it any more: pairs with the acquire of who frees it */
    struct uccl_request *closing;    /* that ends then, written before the close is posted; NULL: none */
    _Atomic uint64_t silent_since_ns; /* likewise: the peer was silent on some flow; 0: not that we know */
    uint64_t min_bytes;
    /* The home thread's, of receives: the length of the next message, going by the last ones; UINT64_MAX: none was yet. The
     * longest since that was reckoned, and how many there were. */
    uint64_t expected_bytes, longest_bytes;
    unsigned noted;
    struct {
        struct engine_thread *thread;
        struct conn *conn;
        uint32_t flow;               /* its slot on the thread */
        struct notice to_close;      /* from the home thread */
    } at[CORE_STRIPES_MAX];
};

enum { STRIPE_NOTED = 8 }; /* receives whose longest message is expected to come again */

/* CORE_EVENT_MSG of a request: if it is a receive, how long was its message? */
static inline void stripe_note_length(const struct uccl_request *request)
{
    const struct core_msg *msg = &request->msg;
    struct stripe_set *stripes = request->stripes;
    if (!stripes || msg->kind != CORE_RECV || msg->status != UCCL_OK) /* without: a part */
        return;
    if (stripes->longest_bytes < msg->moved_bytes)
        stripes->longest_bytes = msg->moved_bytes;
    bool longer = stripes->expected_bytes < msg->moved_bytes;
    if (++stripes->noted < STRIPE_NOTED && !longer)
        return;
    stripes->expected_bytes = stripes->longest_bytes;
    stripes->longest_bytes = 0;
    stripes->noted = 0;
}

/*
 * A connection over `count` threads. `places`: its NIC places what the peer sends. Then a message has no parts, since
 * its data QP belongs to one flow; only connections take turns on the threads.
 */
void stripe_init(struct stripe_set *stripes, unsigned count, const struct params *params, bool places);

/* Submits a request of the application, with parts where it is a large receive. */
void stripe_submit(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/* Submits a part on the thread that it was handed to. */
void stripe_submit_part(struct engine_thread *thread, struct uccl_request *part, uint64_t now_ns);
/* CORE_EVENT_SPLIT of a send. */
void stripe_split(struct engine_thread *thread, struct uccl_request *request);
/* COMMAND_CANCEL of a request that is pending: the application's, or of a part that has ended early. */
void stripe_cancel(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/* CORE_EVENT_MSG of a request or of a part. */
void stripe_ended(struct engine_thread *thread, struct uccl_request *request);
/* A request with staged memory or with parts has ended, parts and all: the application may have it back. */
void stripe_request_over(struct uccl_request *request);
/*
 * Closing. The home end closes first, since parts belong to its messages; then the others, each on its thread. Nobody
 * waits: the request `closing` ends when all have.
 */
/* Keeps the connection from being over. False: it is. Any thread. */
bool stripe_hold(struct stripe_set *stripes);
/* What a hold was for has ended; the connection may be freed at any time from now on. Any thread. */
void stripe_let_go(struct stripe_set *stripes);
/* COMMAND_CLOSE, which has a hold: closes the end on this thread. */
void stripe_close(struct engine_thread *thread, struct stripe_set *stripes, uint64_t linger_ns, uint64_t now_ns);
/* CORE_EVENT_CONN_ENDED of end `index`. */
void stripe_end_closed(struct stripe_set *stripes, unsigned index);

/* Retries commands that found another thread's ring full. */
void stripe_retry(struct engine_thread *thread);

#endif
