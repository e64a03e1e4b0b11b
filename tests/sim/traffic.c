/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The application threads of a node and the judge of what they are told. A worker serves its streams in
 * random order: it posts, tests, waits with and without a limit, waits for the event descriptor, cancels,
 * and closes. Everything that it may see is a rule here; everything else fails the run.
 */
#include "cluster.h"
#include "content.h"

#include "request/request.h"
#include "seam.h"

#include <stdio.h>

enum {
    BURST_MAX = 8,
    IDLE_NS = 3000000, /* an idle worker looks again */
    WAIT_MS_MAX = 25,
    WAIT_LATE_NS = 30000000,   /* a wait may end so much after its time */
    DEAD_LATE_NS = 1500000000, /* and requests after the dead-peer time */
    ABORT_LATE_MS = 1000,      /* and what has to do with an abort, after that */
};

/* One message, as both ends know it. */
struct plan {
    uint64_t size, capacity;
    bool watched;
    bool cancel[KINDS];
    uint32_t cancel_after_ns[KINDS];
};

static uint64_t plan_size(struct rng *rng)
{
    const struct cluster_options *options = &cluster.options;
    uint64_t size = 0, near = rng_below(rng, 5), eager = options->params.eager_kb * 1024;
    uint64_t room = options->nic.datagram_bytes - 64;
    switch (rng_below(rng, 10)) {
    case 0:
        size = near;
        break;
    case 1:
        size = eager + near - 2;
        break;
    case 2:
        size = room + near - 2;
        break;
    case 3:
        size = (1 + rng_below(rng, 40)) * room + near - 2;
        break;
    case 4:
        size = (1 + rng_below(rng, 4)) * options->params.stripe_min_kb * 1024 + near - 2;
        break;
    case 5:
    case 6:
        size = rng_below(rng, (uint32_t)(options->size_max < UINT32_MAX ? options->size_max : UINT32_MAX));
        break;
    default:
        size = rng_below(rng, 3000);
    }
    size = size > UINT64_MAX / 2 ? 0 : size % (options->size_max + 1);
    return options->size_min > size ? options->size_min : size;
}

static struct plan plan_of(const struct session *session, unsigned sender, unsigned number)
{
    const struct cluster_options *options = &cluster.options;
    struct rng rng = {content_key(session->index, sender, number) ^ UINT64_C(0x706c616e)};
    struct plan plan = {.size = plan_size(&rng)};
    plan.capacity = plan.size;
    if (rng_below(&rng, 3) == 0)
        plan.capacity += rng_below(&rng, 20000);
    if (rng_below(&rng, 1000) < options->truncate_permille && plan.size)
        plan.capacity = rng_below(&rng, plan.size < UINT32_MAX ? (uint32_t)plan.size : UINT32_MAX);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        plan.cancel[kind] = rng_below(&rng, 2000) < options->cancel_permille;
        uint32_t scale = 1u << (10 + rng_below(&rng, 13));
        plan.cancel_after_ns[kind] = rng_below(&rng, scale);
    }
    plan.watched = rng_below(&rng, 4) == 0 && plan.capacity;
    return plan;
}

static int8_t *make_status(unsigned count)
{
    int8_t *status = malloc(count + 1);
    if (!status)
        abort();
    return memset(status, NOT_POSTED, count + 1);
}

void traffic_plan(struct session *session)
{
    const struct cluster_options *options = &cluster.options;
    for (unsigned sender = 0; sender < 2; sender++) {
        unsigned count = (options->messages + 1) / 2 + cluster_random(options->messages / 2 + 1);
        session->count[sender] = count;
        for (unsigned kind = 0; kind < KINDS; kind++) {
            session->status[sender][kind] = make_status(count);
            session->cancelled[sender][kind] = calloc(count + 1, sizeof(bool));
            if (!session->cancelled[sender][kind])
                abort();
        }
    }
}

void traffic_free(struct session *session)
{
    for (unsigned sender = 0; sender < 2; sender++) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            free(session->status[sender][kind]);
            free(session->cancelled[sender][kind]);
        }
    }
}

static unsigned sender_of(const struct stream *stream)
{
    return stream->kind == SEND ? stream->side->index : !stream->side->index;
}

static unsigned planned(const struct stream *stream)
{
    return stream->side->session->count[sender_of(stream)];
}

void traffic_wake(struct node *node)
{
    machine_wake(node->process, node, UINT32_MAX);
}

/* ---- posting --------------------------------------------------------------------------------- */

static bool may_post(const struct stream *stream)
{
    const struct side *side = stream->side;
    return side->state == SIDE_OPEN && !side->failed && stream->posted < planned(stream) &&
           stream->live_count < cluster.options.outstanding;
}

/* The connection takes no more messages. */
static void failed(struct side *side, int error)
{
    if (error != UCCL_ECLOSED && error != UCCL_EPEERDEAD)
        machine_fail("session %u: posting failed with %d", side->session->index, error);
    side->failed = true;
}

/* Memory of a device must be registered; that of the host need not. */
static uccl_mr *register_buffer(const struct side *side, const struct buffer *buffer)
{
    uccl_mr *mr = NULL;
    if (!buffer->device && machine_random(4) >= (cluster.options.nic.queue_pairs ? 3 : 1))
        return NULL;
    int error = uccl_reg_mr(side->node->engine, payload_address(buffer), buffer->size, UCCL_MEM_AUTO, &mr);
    if (error)
        machine_fail("a registration failed with %d", error);
    return mr;
}

static void deregister(uccl_mr *mr)
{
    int error = mr ? uccl_dereg_mr(mr) : UCCL_OK;
    if (error)
        machine_fail("the end of a registration failed with %d", error);
}

/* False: not now. */
static bool post(struct stream *stream)
{
    struct side *side = stream->side;
    struct session *session = side->session;
    unsigned sender = sender_of(stream), number = stream->posted;
    struct plan plan = plan_of(session, sender, number);
    bool sends = stream->kind == SEND;
    struct buffer *buffer =
        payload_buffer(sends ? plan.size : plan.capacity, content_key(session->index, sender, number), !sends);
    uccl_request *request;
    side->calls++;
    buffer->device = cluster_chance(cluster.options.device_permille);
    buffer->dubious = cluster_hostile(session);
    bool watched = !sends && plan.watched && !buffer->device;
    if (watched)
        payload_watch(buffer, plan.size);
    uccl_mr *mr = register_buffer(side, buffer);
    int error = sends ? uccl_send_async(side->conn, payload_address(buffer), buffer->size, mr, &request)
                      : uccl_recv_with_async(side->conn, payload_address(buffer), buffer->size, mr,
                                             watched ? UCCL_RECV_WATCHED : 0, &request);
    side->calls--;
    if (error) {
        deregister(mr);
        payload_release(buffer);
        if (error != UCCL_EAGAIN)
            failed(side, error);
        return false;
    }
    machine_note(sends ? "send" : "recv", session->index * 2 + side->index, number, buffer->size);
    struct pending *pending = calloc(1, sizeof *pending);
    if (!pending)
        abort();
    *pending = (struct pending){.request = request,
                                .buffer = buffer,
                                .mr = mr,
                                .number = number,
                                .posted_ns = machine.now_ns,
                                .cancel_ns = UINT64_MAX};
    if (plan.cancel[stream->kind])
        pending->cancel_ns = machine.now_ns + plan.cancel_after_ns[stream->kind];
    buffer->request = request_find(request);
    *stream->live_tail = pending;
    stream->live_tail = &pending->next;
    stream->live_count++;
    stream->posted++;
    session->status[sender][stream->kind][number] = NOT_ENDED;
    return true;
}

static void post_some(struct stream *stream)
{
    const struct cluster_options *options = &cluster.options;
    for (unsigned burst = 1 + cluster_random(BURST_MAX); burst > 0 && may_post(stream); burst--) {
        if (!post(stream)) {
            machine_sleep(1 + cluster_random(20000)); /* no room: somebody has to collect */
            break;
        }
    }
    uint64_t gap_ns = stream->kind == SEND ? options->post_gap_ns : options->recv_gap_ns;
    stream->next_post_ns = machine.now_ns + cluster_random((uint32_t)gap_ns + 1);
}

/* ---- ends of requests ------------------------------------------------------------------------ */

static void drop_pending(struct stream *stream, struct pending *pending)
{
    struct pending **link = &stream->live;
    while (*link != pending)
        link = &(*link)->next;
    *link = pending->next;
    if (!*link)
        stream->live_tail = link;
    stream->live_count--;
    stream->ended++;
    deregister(pending->mr);
    payload_release(pending->buffer);
    free(pending);
}

static void check_moved(const struct stream *stream, const struct pending *pending, int status, size_t bytes)
{
    const struct session *session = stream->side->session;
    uint64_t size = plan_of(session, sender_of(stream), pending->number).size;
    if (status != UCCL_OK && bytes != 0)
        machine_fail("session %u: a failed request moved %zu bytes", session->index, bytes);
    if (bytes > pending->buffer->size)
        machine_fail("session %u: request %u moved %zu bytes, of a buffer of %llu", session->index, pending->number,
                     bytes, (unsigned long long)pending->buffer->size);
    if (cluster_hostile(session))
        return;
    if (status == UCCL_OK && bytes != size)
        machine_fail("session %u: request %u moved %zu bytes of %llu", session->index, pending->number, bytes,
                     (unsigned long long)size);
    if (status == UCCL_OK && stream->kind == RECV && !payload_fills(pending->buffer, size))
        machine_fail("session %u: receive %u is not whole: %llu bytes of %llu in %u pieces", session->index,
                     pending->number, (unsigned long long)pending->buffer->written, (unsigned long long)size,
                     pending->buffer->extent_count);
}

/* What the NIC has written to a device is there when it has been flushed. */
static void flush(struct side *side, struct pending *pending)
{
    struct buffer *buffer = pending->buffer;
    uccl_request *request = NULL;
    int error = UCCL_EAGAIN;
    side->calls++;
    while (side->conn && error == UCCL_EAGAIN) {
        error = uccl_flush(side->conn, payload_address(buffer), buffer->size, pending->mr, &request);
        if (error == UCCL_EAGAIN)
            machine_sleep(10000);
    }
    int status = request ? uccl_wait(request, -1, NULL) : UCCL_OK;
    side->calls--;
    if (side->conn && (error || status || buffer->unflushed_ns) && !cluster_hostile(side->session))
        machine_fail("session %u: flushing receive %u: %d, %d, written at %llu", side->session->index, pending->number,
                     error, status, (unsigned long long)buffer->unflushed_ns);
}

/*
 * A peer that is dead is noticed in time. That goes for the end of the request, not for when it is looked at: a close
 * blocks its caller for up to UCCL_LINGER_MS, as it says, and that long where two workers close to each other, each of
 * which is to receive what the other's close waits for. So what has ended when the close returns is not judged.
 */
static void check_time(const struct side *side, const struct pending *pending, int status)
{
    if (status != UCCL_EPEERDEAD || pending->ended_unseen)
        return;
    const struct side *other = &side->session->sides[!side->index];
    if (!other->killed && !other->muted && !cluster.options.expect_dead && !cluster_hostile(side->session) &&
        !node_stops_excuse(side->session))
        machine_fail("session %u: a living peer is called dead", side->session->index);
    uint64_t dead_ns = side->node->params.dead_peer_ms * 1000000;
    if (machine.now_ns - pending->posted_ns > 2 * dead_ns + DEAD_LATE_NS && other->killed &&
        machine.now_ns - other->killed_ns > 2 * dead_ns + DEAD_LATE_NS)
        machine_fail("session %u: a request outlived its peer by %.3f ms", side->session->index,
                     (double)(machine.now_ns - other->killed_ns) / 1e6);
}

static void collected(struct stream *stream, struct pending *pending, int status, size_t bytes)
{
    struct side *side = stream->side;
    struct node *node = side->node;
    int8_t *at = &side->session->status[sender_of(stream)][stream->kind][pending->number];
    machine_note(stream->kind == SEND ? "sent" : "received", side->session->index * 2 + side->index, pending->number,
                 (uint64_t)(int64_t)status);
    if (*at != NOT_ENDED)
        machine_fail("session %u: request %u ended twice", side->session->index, pending->number);
    *at = (int8_t)status;
    check_moved(stream, pending, status, bytes);
    check_time(side, pending, status);
    pending->buffer->ended = true;
    pending->buffer->request = NULL;
    if (status == UCCL_OK && stream->kind == RECV && side->state == SIDE_OPEN)
        flush(side, pending);
    cluster.requests_ended++;
    if (status == UCCL_OK) {
        *(stream->kind == SEND ? &node->sends : &node->receives) += 1;
        *(stream->kind == SEND ? &node->bytes_sent : &node->bytes_received) += bytes;
    }
    if (status == UCCL_OK && stream->kind == RECV) {
        cluster.messages++;
        cluster.bytes += bytes;
    }
    if (status == UCCL_ECLOSED || status == UCCL_EPEERDEAD)
        side->failed = true;
    drop_pending(stream, pending);
    traffic_wake(node);
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool try_collect(struct stream *stream, struct pending *pending)
{
    int done = 0;
    size_t bytes = 0;
    int status = uccl_test(pending->request, &done, &bytes);
    if (done)
        collected(stream, pending, status, bytes);
    else if (status != UCCL_OK)
        machine_fail("uccl_test() returned %d", status);
    return done;
}

static void wait_for(struct stream *stream, struct pending *pending, int timeout_ms)
{
    size_t bytes = 0;
    uint64_t begun_ns = machine.now_ns, until_ns = machine_deadline((uint64_t)timeout_ms * 1000000);
    pending->waited_for = true;
    int status = uccl_wait(pending->request, timeout_ms, &bytes);
    pending->waited_for = pending->ended_seen = false;
    if (status != UCCL_ETIMEDOUT)
        collected(stream, pending, status, bytes);
    else if (timeout_ms < 0)
        machine_fail("a wait without limit ended by time");
    /* preempted at every step, the waiter's own rounds are long: a command may have to do with each engine thread */
    uint64_t late_ns = WAIT_LATE_NS;
    if (cluster.options.preempt_every)
        late_ns +=
            cluster.options.params.num_engines * 1000 * cluster.options.preempt_ns / cluster.options.preempt_every;
    late_ns += node_stopped_ns(stream->side->node, begun_ns, machine.now_ns);
    if (timeout_ms >= 0 && machine.now_ns > until_ns + late_ns)
        machine_fail("a wait of %d ms took %.3f ms longer", timeout_ms, (double)(machine.now_ns - until_ns) / 1e6);
}

/* The oldest request of some stream, if it has ended. */
static bool collect_any(const struct worker *worker)
{
    for (struct side *side = worker->node->sides; side; side = side->next) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            struct stream *stream = &side->streams[kind];
            if (stream->worker == worker->index && stream->live && try_collect(stream, stream->live))
                return true;
        }
    }
    return false;
}

/* Arms the descriptor, looks, and sleeps on it. */
static void wait_for_event(struct worker *worker)
{
    struct node *node = worker->node;
    uccl_event_arm(node->engine);
    if (collect_any(worker))
        return;
    struct pollfd fd = {.fd = uccl_event_fd(node->engine), .events = POLLIN};
    sim_poll(&fd, 1, 1 + (int)cluster_random(WAIT_MS_MAX));
}

/* Nothing that this worker has yet to do could be what another node waits for. */
static bool may_wait_for_ever(const struct worker *worker)
{
    const struct cluster_options *options = &cluster.options;
    if (options->cancel_permille || options->close_early || options->crashes || options->stops ||
        options->expect_dead || options->hostile)
        return false;
    for (const struct side *side = worker->node->sides; side; side = side->next) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            const struct stream *stream = &side->streams[kind];
            if (stream->worker == worker->index && stream->posted < planned(stream))
                return false;
        }
    }
    return cluster.opening == 0;
}

static void complete_one(struct worker *worker, struct stream *stream)
{
    struct pending *pending = stream->live;
    for (unsigned skip = cluster_random(4) ? 0 : cluster_random(stream->live_count); skip > 0; skip--)
        pending = pending->next;
    for (struct pending *due = stream->live; due; due = due->next) {
        if (due->cancel_ns > machine.now_ns)
            continue;
        due->cancel_ns = UINT64_MAX;
        stream->side->session->cancelled[sender_of(stream)][stream->kind][due->number] = true;
        machine_note("cancel", stream->side->session->index * 2 + stream->side->index, due->number, stream->kind);
        if (uccl_cancel(due->request) == UCCL_EAGAIN)
            due->cancel_ns = machine.now_ns + 10000;
        return; /* others ran meanwhile: the list may be another */
    }
    if (stream->side->state == SIDE_CLOSED) {
        const struct side *side = stream->side;
        if (try_collect(stream, pending))
            return;
        uint64_t late_ns =
            ABORT_LATE_MS * UINT64_C(1000000) + node_stopped_ns(side->node, side->aborted_ns, machine.now_ns);
        if (!side->aborted || machine.now_ns > side->aborted_ns + late_ns)
            machine_fail("session %u is closed, and request %u has not ended", side->session->index, pending->number);
        machine_sleep(cluster_random(1000000));
        return;
    }
    switch (cluster_random(4)) {
    case 0:
        if (cluster.options.events && worker->index == 0) {
            wait_for_event(worker);
            return;
        }
        /* fall through */
    case 1:
        if (!try_collect(stream, pending))
            machine_sleep(cluster_random(20000));
        return;
    default:
        wait_for(stream, pending, may_wait_for_ever(worker) ? -1 : (int)cluster_random(WAIT_MS_MAX + 1));
    }
}

/* ---- closing --------------------------------------------------------------------------------- */

enum way { CLOSE, CLOSE_ASYNC, ABORT, CLOSE_ASYNC_ABORT, WAYS };

static bool finished(const struct side *side)
{
    if (side->calls)
        return false; /* another worker is posting */
    for (unsigned kind = 0; kind < KINDS; kind++) {
        const struct stream *stream = &side->streams[kind];
        bool more = side->state == SIDE_OPEN && !side->failed && stream->posted < planned(stream);
        if (stream->live_count || more)
            return false;
    }
    return true;
}

/* With cancels, who is done may not close as soon as that: what it has cancelled may not be posted yet
 * at the other end, which would call that a connection closed too early. */
static bool other_is_done(const struct side *side)
{
    const struct side *other = &side->session->sides[!side->index];
    return !cluster.options.cancel_permille || cluster_hostile(side->session) || side->failed || other->failed ||
           other->killed || other->state == SIDE_OVER || other->state == SIDE_CLOSING || other->state == SIDE_CLOSED ||
           (other->state == SIDE_OPEN && finished(other));
}

static bool to_be_closed(const struct side *side)
{
    return side->state == SIDE_OPEN && ((finished(side) && other_is_done(side)) || machine.now_ns >= side->close_ns);
}

/* The same whatever the schedule. */
static enum way way_to_close(const struct side *side)
{
    struct rng rng = {content_key(side->session->index, side->index, UINT32_MAX) ^ UINT64_C(0x77617973)};
    enum way way = (enum way)rng_below(&rng, WAYS);
    if (cluster.options.abort_early && machine.now_ns >= side->close_ns)
        return ABORT;
    bool may_abort = side->close_ns != UINT64_MAX || side->failed; /* what it has sent may be lost */
    return may_abort || way < ABORT ? way : CLOSE_ASYNC;
}

/* Closes without waiting, and then waits; or has it cut short. */
static void close_async(const struct worker *worker, struct side *side, bool abort)
{
    uccl_request *request;
    int error, status = UCCL_ETIMEDOUT, done = 0;
    while ((error = uccl_conn_close_async(side->conn, &request)) == UCCL_EAGAIN)
        if (!collect_any(worker))
            machine_sleep(10000);
    if (error || uccl_conn_status(side->conn) != UCCL_ECLOSED ||
        uccl_conn_close_async(side->conn, &request) != UCCL_EINVAL)
        machine_fail("uccl_conn_close_async() returned %d", error);
    if (abort) {
        status = uccl_wait(request, (int)machine_random(2), NULL);
        uint64_t aborted_ns = machine.now_ns;
        if (status == UCCL_ETIMEDOUT && (error = uccl_conn_abort(side->conn)) == UCCL_OK)
            status = uccl_wait(request, ABORT_LATE_MS, NULL);
        if (status == UCCL_ETIMEDOUT && node_stopped_ns(side->node, aborted_ns, machine.now_ns))
            status =
                uccl_wait(request, ABORT_LATE_MS, NULL); /* the time went by in a stop, in which nothing ended either */
        if (status == UCCL_ETIMEDOUT)
            machine_fail("session %u: an abort did not cut its close short", side->session->index);
    } else if (machine_random(2)) {
        while (!done && (error = status = uccl_test(request, &done, NULL)) == UCCL_OK)
            machine_sleep(done ? 0 : machine_random(100000));
    }
    if (status == UCCL_ETIMEDOUT)
        status = uccl_wait(request, -1, NULL);
    if (error || status)
        machine_fail("a close ended with %d, %d", error, status);
}

static void close_in_its_way(const struct worker *worker, struct side *side)
{
    enum way way = way_to_close(side);
    int error = UCCL_OK;
    if (way == CLOSE) {
        error = uccl_conn_close(side->conn);
    } else if (way == ABORT) {
        side->aborted = true;
        side->aborted_ns = machine.now_ns;
        error = uccl_conn_abort(side->conn);
    } else {
        close_async(worker, side, way == CLOSE_ASYNC_ABORT);
    }
    if (error)
        machine_fail("closing in way %u returned %d", way, error);
}

/* What a worker finds ended when it comes back from a close. */
static void note_ended(const struct worker *worker)
{
    for (struct side *side = worker->node->sides; side; side = side->next) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            const struct stream *stream = &side->streams[kind];
            for (struct pending *pending = stream->live; pending && stream->worker == worker->index;
                 pending = pending->next) {
                const struct uccl_request *request = request_find(pending->request); /* NULL: just collected */
                pending->ended_unseen |= request && request->state == REQUEST_ENDED;
            }
        }
    }
}

static void close_side(const struct worker *worker, struct side *side)
{
    struct session *session = side->session;
    if (finished(side) && !side->failed && side->index == 0)
        session->relation->done = true;
    machine_note("close", session->index * 2 + side->index, finished(side), side->failed);
    side->state = SIDE_CLOSING;
    while (side->calls)
        machine_sleep(1000);
    close_in_its_way(worker, side);
    note_ended(worker);
    machine_note("closed", session->index * 2 + side->index, 0, 0);
    side->conn = NULL;
    side->state = SIDE_CLOSED;
    traffic_wake(side->node);
}

/* ---- a worker -------------------------------------------------------------------------------- */

static bool has_work(const struct stream *stream)
{
    const struct side *side = stream->side;
    if (side->state == SIDE_ABSENT || side->state == SIDE_OVER)
        return false;
    if (may_post(stream) && machine.now_ns >= stream->next_post_ns)
        return true;
    if (stream->live_count)
        return true;
    return stream->kind == SEND && (to_be_closed(side) || side->state == SIDE_CLOSED);
}

/* A random one of those that the worker can do something for. */
static struct stream *choose(const struct worker *worker)
{
    struct stream *chosen = NULL;
    unsigned seen = 0;
    for (struct side *side = worker->node->sides; side; side = side->next) {
        for (unsigned kind = 0; kind < KINDS; kind++) {
            struct stream *stream = &side->streams[kind];
            if (stream->worker == worker->index && has_work(stream) && cluster_random(++seen) == 0)
                chosen = stream;
        }
    }
    return chosen;
}

static void serve(struct worker *worker, struct stream *stream)
{
    struct side *side = stream->side;
    bool post_now = may_post(stream) && machine.now_ns >= stream->next_post_ns;
    if (stream->kind == SEND && to_be_closed(side))
        close_side(worker, side);
    else if (stream->kind == SEND && side->state == SIDE_CLOSED && finished(side))
        cluster_side_over(side);
    else if (post_now && (!stream->live || cluster_random(2)))
        post_some(stream);
    else if (stream->live)
        complete_one(worker, stream);
    else
        machine_sleep(1 + cluster_random(10000)); /* the other stream's worker has something to collect */
}

void traffic_worker(void *argument)
{
    struct worker worker = *(struct worker *)argument;
    sim_free(argument);
    while (!cluster.finishing) {
        struct stream *stream = choose(&worker);
        if (stream)
            serve(&worker, stream);
        else
            machine_park(worker.node, machine.now_ns + cluster_random(IDLE_NS));
    }
    worker.node->helpers--;
}

void traffic_watch(struct side *side)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (struct pending *pending = side->streams[kind].live; pending; pending = pending->next) {
            const struct uccl_request *request = request_find(pending->request); /* NULL: just collected */
            if (!pending->waited_for || !request || request->state != REQUEST_ENDED)
                continue;
            if (pending->ended_seen)
                machine_fail("session %u: request %u has ended, and who waits for it sleeps on", side->session->index,
                             pending->number);
            pending->ended_seen = true;
        }
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

void traffic_kill(struct side *side)
{
    for (unsigned kind = 0; kind < KINDS; kind++) {
        struct stream *stream = &side->streams[kind];
        while (stream->live) {
            struct pending *pending = stream->live;
            stream->live = pending->next;
            free(pending);
        }
        stream->live_count = 0;
    }
}

/* Why a request may have ended so. */
static bool excused(const struct session *session, unsigned sender, unsigned kind, unsigned number)
{
    const struct side *own = &session->sides[kind == SEND ? sender : !sender];
    const struct side *other = &session->sides[!own->index];
    struct plan plan = plan_of(session, sender, number);
    if (cluster_hostile(session))
        return session->status[sender][kind][number] <= UCCL_OK;
    switch (session->status[sender][kind][number]) {
    case UCCL_OK:
        return plan.size <= plan.capacity;
    case UCCL_ETRUNCATED:
        return plan.size > plan.capacity;
    case UCCL_ECANCELED:
        return session->cancelled[sender][SEND][number] || session->cancelled[sender][RECV][number] ||
               own->close_ns != UINT64_MAX;
    case UCCL_ECLOSED:
        return other->close_ns != UINT64_MAX || other->failed || other->killed || other->state == SIDE_ABSENT;
    case UCCL_EPEERDEAD:
        return other->killed || other->muted || cluster.options.expect_dead || node_stops_excuse(session);
    default:
        return false;
    }
}

/* The two ends of one message agree. */
static bool agree(const struct session *session, unsigned sender, unsigned number)
{
    if (cluster_hostile(session))
        return true;
    int sent = session->status[sender][SEND][number], received = session->status[sender][RECV][number];
    const struct side *from = &session->sides[sender], *to = &session->sides[!sender];
    if (sent == UCCL_OK)
        return received == UCCL_OK || to->killed;
    if (received != UCCL_OK || sent == NOT_ENDED || cluster.options.expect_dead || to->killed ||
        node_stops_excuse(session))
        return true;
    if (sent == NOT_POSTED && from->killed) /* in the middle of posting it */
        return true;
    /* The receiver has it, yet the sender says no: only if the sender gave up by itself. */
    return sent == UCCL_ECANCELED && (session->cancelled[sender][SEND][number] || from->close_ns != UINT64_MAX);
}

void traffic_check(const struct session *session)
{
    for (unsigned sender = 0; sender < 2; sender++) {
        for (unsigned number = 0; number < session->count[sender]; number++) {
            for (unsigned kind = 0; kind < KINDS; kind++) {
                const struct side *own = &session->sides[kind == SEND ? sender : !sender];
                int status = session->status[sender][kind][number];
                if (status == NOT_POSTED || own->killed)
                    continue;
                if (!excused(session, sender, kind, number))
                    machine_fail("session %u, %s %u from side %u: status %d", session->index,
                                 kind == SEND ? "send" : "receive", number, sender, status);
            }
            if (!agree(session, sender, number))
                machine_fail("session %u, message %u from side %u: sent %d, received %d", session->index, number,
                             sender, session->status[sender][SEND][number], session->status[sender][RECV][number]);
        }
    }
}
