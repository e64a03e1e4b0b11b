/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Striping of large messages over the engine threads of a NIC. A request of the application has, beside
 * itself, a part per further thread, a request of its own from the same pool, which that thread's core
 * carries on its connection of the same ids (core/part.c).
 *
 *   receive  parts go to their threads before the clear-to-send that allows them leaves; a part that
 *            arrives is reported to the home thread, whose core then knows when the message is whole
 *   send     parts are made when the clear-to-send comes (CORE_EVENT_SPLIT)
 *   end      when the home's own message ends, parts that are left are ended; the request ends when
 *            it and all parts have: until then some thread may touch its memory
 *
 * Threads: each function by the owner of the thread given.
 */
#ifndef UCCL_STRIPE_H
#define UCCL_STRIPE_H

#include "request.h"

struct stripe_set {
    unsigned count;                  /* threads, the home thread first */
    /* requests that have not ended, though the core may be done with them: the connection stays */
    _Atomic uint32_t staged;         /* with memory of a device, which may keep them */
    _Atomic uint32_t striped;        /* others with parts: until threads have heard of each other */
    uint64_t min_bytes;
    struct {
        struct engine_thread *thread;
        struct conn *conn;
    } at[CORE_STRIPES_MAX];
};

/*
 * The bytes of its message that a request or a part carries, if both sides have it as large as this one has. By the
 * owner of its thread.
 */
void stripe_range(const struct uccl_request *request, uint64_t *from, uint64_t *to);

/* Submits a request of the application, with parts where it is a large receive. */
void stripe_submit(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns);
/* Submits a part on the thread that it was handed to. */
void stripe_submit_part(struct engine_thread *thread, struct uccl_request *part, uint64_t now_ns);
/* CORE_EVENT_SPLIT of a send. */
void stripe_split(struct engine_thread *thread, struct uccl_request *request);
/* CORE_EVENT_MSG of a request or of a part. */
void stripe_ended(struct engine_thread *thread, struct uccl_request *request);
/* A request with staged memory or with parts has ended, parts and all: the application may have it back. */
void stripe_request_over(struct uccl_request *request);
/* Retries commands that found another thread's ring full. */
void stripe_retry(struct engine_thread *thread);

#endif
