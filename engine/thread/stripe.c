/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/stripe.h"

#include "base/clock.h"
#include "base/race_point.h"
#include "gpu/stage.h"
#include "thread/post.h"

void stripe_init(struct stripe_set *stripes, unsigned count, const struct params *params, bool places,
                 const struct stripe_wish *wish, struct request_pool *parts)
{
    stripes->count = count;
    stripes->parts = parts;
    stripes->open = 1;
    atomic_init(&stripes->holds, count);
    stripes->min_bytes = wish->from_bytes ? wish->from_bytes : params->stripe_min_kb * 1024;
    stripes->send_min_bytes = wish->off ? UINT64_MAX : wish->from_bytes;
    if (places || wish->off)
        stripes->min_bytes = UINT64_MAX;
    stripes->stream_min_bytes = stripes->min_bytes;
    if (!places && !wish->off && !wish->from_bytes && stripes->min_bytes >= 2 * CORE_STRIPE_UNIT)
        stripes->stream_min_bytes /= 2;
    for (unsigned class = 0; class < STRIPE_CLASSES; class ++)
        stripes->expects[class] = (struct stripe_expects){.bytes = UINT64_MAX, .flows = count};
}

/* ---- how a message is shared ------------------------------------------------------------------ */

enum {
    STREAM = 4,                       /* so many messages under way, of one class in one direction, are a stream */
    FINE_UNIT = CORE_STRIPE_UNIT / 2, /* the least range of a short message that is in none, */
    FINE_FLOWS = 3,                   /* for which there are so many flows */
    HOME_FLOWS = 4                    /* with more, the home flow of a stream leaves short messages to the others */
};

static uint64_t share(uint64_t bytes, uint64_t of)
{
    return (bytes + of - 1) / of;
}

static bool in_stream(const struct uccl_request *request, const unsigned *under_way)
{
    return under_way[request->class] >= STREAM;
}

/*
 * The least of a message of `bytes` that is worth another of `flows`. In a stream that is a unit: each range costs its
 * thread as much as copying some 30 KiB, and all threads have work. A message that is nearly alone is over sooner if
 * more threads copy at the same time.
 */
static uint64_t least_range(const struct uccl_request *request, uint64_t bytes, unsigned flows, bool stream)
{
    bool fine = !stream && flows >= FINE_FLOWS && !request->staged.memory && bytes >= 2 * CORE_STRIPE_UNIT &&
                bytes <= flows * 2 * (uint64_t)CORE_STRIPE_UNIT;
    return fine ? FINE_UNIT : CORE_STRIPE_UNIT;
}

/* ---- commands between engine threads --------------------------------------------------------- */

static bool deliver(struct notice *notice)
{
    return thread_push(notice->to, notice->object, notice->what);
}

/* Never fails and never waits: a notice that finds no room is kept, and each round tries it again. */
static void send_notice(struct engine_thread *thread, struct notice *notice, struct engine_thread *to, void *object,
                        uint64_t what)
{
    notice->to = to;
    notice->object = object;
    notice->what = what;
    RACE_POINT();
    if (notice->waiting || deliver(notice)) /* waiting: something else, which matters less than this */
        return;
    notice->waiting = true;
    notice->next = thread->notices;
    thread->notices = notice;
}

static void notify(struct engine_thread *thread, struct notice *notice, struct uccl_request *request,
                   enum thread_command command)
{
    send_notice(thread, notice, request->thread, request, thread_command_for(command, request));
}

/* ---- parts ----------------------------------------------------------------------------------- */

static void free_parts(struct uccl_request *request)
{
    struct uccl_request *part;
    while ((part = request->parts)) {
        request->parts = part->next_part;
        part->parent = NULL;
        request_put(part);
    }
}

static unsigned end_on(const struct stripe_set *stripes, const struct engine_thread *thread)
{
    unsigned index = 0;
    while (stripes->at[index].thread != thread)
        index++;
    return index;
}

static const struct stripe_set *stripes_of(const struct uccl_request *request)
{
    return (request->parent ? request->parent : request)->stripes;
}

/* The slot of the flow that carries a request or a part. */
static uint32_t flow_of(const struct uccl_request *request)
{
    const struct stripe_set *stripes = stripes_of(request);
    return stripes->at[end_on(stripes, request->thread)].flow;
}

/* Makes part `index` of a message and puts it into its list. False: the pool has none. */
static bool make_part(struct uccl_request *request, unsigned index)
{
    struct uccl_request *part = request_take(request->stripes->parts);
    if (!part)
        return false;
    part->msg = (struct core_msg){.kind = request->msg.kind,
                                  .size_bytes = request->msg.size_bytes,
                                  .stripes = request->msg.stripes,
                                  .range_units = request->msg.range_units,
                                  .watched = request->msg.watched};
    part->buffer = request->buffer;
    part->pieces = request->pieces;
    part->exported = request->exported;
    part->class = request->class;
    part->staged.memory = request->staged.memory;
    part->staged.error = UCCL_OK;
    part->mr_users = NULL;
    part->part = (uint8_t)index;
    part->carries = false;
    part->stripes = NULL;
    part->parent = request;
    part->parts = NULL;
    part->to_home = part->to_part = (struct notice){0};
    part->next_part = request->parts;
    request->parts = part;
    atomic_store_explicit(&part->state, REQUEST_PENDING, memory_order_release); /* see still_pending() */
    return true;
}

/* Hands a part to its thread, once the message has its number. */
static void submit_part(struct engine_thread *thread, struct uccl_request *part)
{
    struct uccl_request *request = part->parent;
    struct stripe_set *stripes = request->stripes;
    unsigned end = core_stripe_end(request->msg.number, stripes->count, part->part);
    part->msg.number = request->msg.number;
    part->msg.conn = stripes->at[end].conns[request->class];
    atomic_store_explicit(&part->thread, stripes->at[end].thread, memory_order_relaxed);
    if (part->staged.memory)
        atomic_fetch_add(&part->thread->staged, 1);
    atomic_fetch_add_explicit(&request->unfinished, 1, memory_order_relaxed);
    notify(thread, &part->to_part, part, COMMAND_PART);
}

/* Of a message that has, or gets, parts. */
static void hold_for_parts(struct uccl_request *request)
{
    if (!request->staged.memory && !request->service) /* staged: counted when it was posted; service: whoever it is */
        atomic_fetch_add(&request->stripes->holds, 1);
}

void stripe_submit_part(struct engine_thread *thread, struct uccl_request *part, uint64_t now_ns)
{
    if (part->staged.memory)
        stage_begin(thread->stage, part, flow_of(part));
    core_submit_part(thread->core, part->msg.conn, &part->msg, now_ns);
    if (part->staged.memory)
        stage_began(thread->stage, part);
}

/*
 * Ranges of a staged message: one for each of `count` flows, as long as the wire can say. Its blocks are fetched ahead
 * within a range, and end where it ends.
 */
static uint8_t staged_range_units(uint64_t bytes, unsigned count)
{
    uint64_t units = share(bytes, (uint64_t)count * CORE_STRIPE_UNIT);
    return (uint8_t)(units < UINT8_MAX ? units : UINT8_MAX);
}

/* ---- receives -------------------------------------------------------------------------------- */

/*
 * How many flows may share the message of a receive. Each further one wakes a thread, which should be worth it. So the
 * expected length counts: buffers are often far larger (NCCL posts whole slots for every message). One more than the
 * last messages took. In a stream another flow may carry a message of one unit whole.
 */
static unsigned parts_of(const struct uccl_request *request)
{
    const struct stripe_set *stripes = request->stripes;
    const struct stripe_expects *expects = &stripes->expects[request->class];
    uint64_t bytes = request->msg.size_bytes;
    unsigned most = expects->flows + 1;
    bool stream = in_stream(request, stripes->receives);
    if (request->msg.kind != CORE_RECV)
        return 1;
    if (bytes > expects->bytes && request->class == CLASS_MESSAGES) /* the others know their length */
        bytes = expects->bytes;
    if (bytes < (stream && request->class == CLASS_MESSAGES ? stripes->stream_min_bytes : stripes->min_bytes))
        return 1;
    uint64_t units = share(bytes, least_range(request, bytes, stripes->count, stream));
    if (stream && units == 1)
        units = 2;
    if (most > stripes->count)
        most = stripes->count;
    return units < most ? (unsigned)units : most;
}

static void make_receive_parts(struct uccl_request *request, unsigned count)
{
    request->msg.stripes = (uint8_t)count;
    if (request->staged.memory)
        request->msg.range_units = staged_range_units(request->msg.size_bytes, count);
    request->carries = false;
    atomic_store_explicit(&request->spread_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&request->total_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&request->flows, 0, memory_order_relaxed);
    for (unsigned i = count; i-- > 1;) {
        if (!make_part(request, i)) {
            free_parts(request);
            request->msg.stripes = request->msg.range_units = 0;
            return;
        }
    }
    hold_for_parts(request);
}

void stripe_submit(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns)
{
    unsigned count = parts_of(request);
    if (count > 1)
        make_receive_parts(request, count);
    stripe_count(request, 1);
    if (request->staged.memory)
        stage_begin(thread->stage, request, flow_of(request));
    core_submit(thread->core, request->msg.conn, &request->msg, now_ns);
    if (request->staged.memory)
        stage_began(thread->stage, request);
    for (struct uccl_request *part = request->parts; part; part = part->next_part)
        submit_part(thread, part);
}

static struct uccl_request *whole_of(struct uccl_request *request)
{
    return request->parent ? request->parent : request;
}

void stripe_arrived(struct engine_thread *thread, struct uccl_request *request, uint64_t bytes, uint64_t total)
{
    struct uccl_request *whole = whole_of(request);
    uint64_t known = 0;
    if (!request->carries)
        atomic_fetch_add_explicit(&whole->flows, 1, memory_order_relaxed);
    request->carries = true;
    if (!atomic_compare_exchange_strong(&whole->total_bytes, &known, total) && known != total)
        return; /* the peer contradicts itself: the message stays as it is */
    RACE_POINT();
    /* the thread that completes the message sees what the others have copied */
    uint64_t before = atomic_fetch_add_explicit(&whole->spread_bytes, bytes, memory_order_acq_rel);
    if (before >= total || before + bytes < total)
        return;
    if (request == whole) {
        core_msg_whole(thread->core, &whole->msg, total, clock_now_ns());
        return;
    }
    notify(thread, &request->to_home, whole, COMMAND_LOOK);
    core_end_part(thread->core, &request->msg, clock_now_ns());
}

/* ---- sends ----------------------------------------------------------------------------------- */

enum {
    RANGES = 128,           /* of a large message, about */
    RANGE_ALIGNMENT = 4096, /* of a short one */
};

/*
 * Length of the ranges of a short message, one for each flow. 0: the flows take ranges as it fits. They do as well if
 * the threads sleep: to wake one takes longer than to copy 32 KiB.
 */
static uint64_t even_range(const struct uccl_request *request)
{
    const struct core_msg *msg = &request->msg;
    const struct stripe_set *stripes = request->stripes;
    uint64_t least = least_range(request, msg->size_bytes, msg->stripes, in_stream(request, stripes->sends));
    unsigned next = core_stripe_end(msg->number, stripes->count, 1);
    if (least == CORE_STRIPE_UNIT || msg->offset_bytes || thread_sleeps(stripes->at[next].thread))
        return 0;
    uint64_t ranges = share(msg->size_bytes, least);
    uint64_t bytes = share(msg->size_bytes, ranges < msg->stripes ? ranges : msg->stripes);
    return share(bytes, RANGE_ALIGNMENT) * RANGE_ALIGNMENT;
}

/* The first range is asked for; `left`: left_to_others(). False: the message goes whole. */
static bool begin_ranges(struct engine_thread *thread, struct uccl_request *request, bool left)
{
    struct core_msg *msg = &request->msg;
    unsigned count = msg->stripes, units = msg->range_units; /* the receiver's blocks */
    bool whole =
        (msg->size_bytes < 2 * CORE_STRIPE_UNIT && !left) || msg->size_bytes < request->stripes->send_min_bytes;
    if (whole || count > request->stripes->count) {
        core_unsplit(thread->core, msg);
        return false;
    }
    if (!units && request->staged.memory)
        units = staged_range_units(msg->size_bytes, count);
    request->range_bytes = units ? (uint64_t)units * CORE_STRIPE_UNIT : even_range(request);
    /* what went ahead of the clear-to-send is carried */
    atomic_store_explicit(&request->spread_bytes, msg->offset_bytes, memory_order_relaxed);
    atomic_store_explicit(&request->flows, 1, memory_order_relaxed);
    request->parts_made = 0;
    return true;
}

/*
 * How much a flow takes next of `left` bytes: about a 128th of the message, less towards its end, so that all flows end
 * at about the same time. In whole chunks, and no small rest.
 */
static uint64_t range_length(const struct uccl_request *request, uint64_t left, uint64_t chunk_bytes)
{
    uint64_t bytes = request->range_bytes;
    if (bytes)
        return left < bytes ? left : bytes;
    if (request->msg.size_bytes < 2 * CORE_STRIPE_UNIT)
        return left;
    uint64_t even = left / (2 * ((uint64_t)atomic_load_explicit(&request->flows, memory_order_relaxed) + 1));
    bytes = request->msg.size_bytes / RANGES;
    if (bytes > even)
        bytes = even;
    if (bytes < CORE_STRIPE_UNIT)
        bytes = CORE_STRIPE_UNIT;
    if (bytes < chunk_bytes)
        bytes = chunk_bytes;
    bytes = (bytes + chunk_bytes / 2) / chunk_bytes * chunk_bytes;
    return left < bytes + chunk_bytes / 2 ? left : bytes;
}

/* Takes the next range of a message; an empty one if nothing is left. Any thread that carries the message. */
static void take_range(struct uccl_request *request, uint64_t chunk_bytes, uint64_t *from, uint64_t *to)
{
    uint64_t size = request->msg.size_bytes;
    *from = atomic_load_explicit(&request->spread_bytes, memory_order_relaxed);
    do {
        RACE_POINT();
        *to = *from < size ? *from + range_length(request, size - *from, chunk_bytes) : *from;
    } while (*from < *to && !atomic_compare_exchange_weak(&request->spread_bytes, from, *to));
}

/* The home thread hands the next part of a send to its flow. */
static bool add_flow(struct engine_thread *thread, struct uccl_request *request)
{
    bool first = !request->parts;
    if (!make_part(request, request->parts_made + 1u))
        return false; /* the flows that are there carry all */
    if (first)
        hold_for_parts(request);
    request->parts_made++;
    atomic_fetch_add_explicit(&request->flows, 1, memory_order_relaxed);
    submit_part(thread, request->parts);
    return true;
}

/* All flows that get one begin at the same time: one called by another would wait for a round of that one's thread. */
static bool add_flows(struct engine_thread *thread, struct uccl_request *request, uint64_t count)
{
    while (request->parts_made < count && request->parts_made + 1u < request->msg.stripes)
        if (!add_flow(thread, request))
            break;
    return request->parts_made > 0;
}

/*
 * Whether the home flow leaves a message that begins to the others: it is of a stream, and has no more ranges than
 * flows. If the home flow had a range of every message, a stream of short ones would be no faster than two threads.
 * With up to HOME_FLOWS it has its even share of the ranges. With more it has none: its thread has the messages
 * themselves to see to.
 */
static bool left_to_others(const struct uccl_request *request)
{
    const struct core_msg *msg = &request->msg;
    const struct stripe_set *stripes = request->stripes;
    uint64_t ranges = msg->size_bytes / CORE_STRIPE_UNIT;
    if (ranges == 0 || ranges > msg->stripes || msg->offset_bytes > 0 || msg->range_units || request->staged.memory ||
        !in_stream(request, stripes->sends))
        return false;
    return stripes->count > HOME_FLOWS || msg->number % stripes->count >= ranges;
}

/* The first range of a message: it is given to as many flows as it has ranges. */
static void begin(struct engine_thread *thread, struct uccl_request *request, uint64_t chunk_bytes)
{
    struct core_msg *msg = &request->msg;
    bool left = left_to_others(request);
    uint64_t from = 0, to = 0; /* nothing */
    if (!begin_ranges(thread, request, left))
        return;
    if (left && add_flows(thread, request, msg->size_bytes / CORE_STRIPE_UNIT)) {
        atomic_fetch_sub_explicit(&request->flows, 1, memory_order_relaxed);
    } else {
        take_range(request, chunk_bytes, &from, &to);
        uint64_t rest = msg->size_bytes - to, range = to - from;
        if (rest)
            add_flows(thread, request, request->range_bytes ? share(rest, range) : (rest + range / 2) / range);
    }
    core_send_range(thread->core, msg, from, to);
}

void stripe_range(struct engine_thread *thread, struct uccl_request *request, uint64_t chunk_bytes)
{
    struct uccl_request *whole = whole_of(request);
    uint64_t from, to;
    if (request == whole && request->msg.end_bytes == 0) {
        begin(thread, request, chunk_bytes);
        return;
    }
    take_range(whole, chunk_bytes, &from, &to);
    core_send_range(thread->core, &request->msg, from, to);
    if (from == to)
        atomic_fetch_sub_explicit(&whole->flows, 1, memory_order_relaxed);
}

void stripe_look(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns)
{
    core_msg_whole(thread->core, &request->msg, atomic_load_explicit(&request->total_bytes, memory_order_acquire),
                   now_ns);
}

/* ---- ends ------------------------------------------------------------------------------------ */

void stripe_request_over(struct uccl_request *request)
{
    struct stripe_set *stripes = request->stripes;
    bool staged = request->staged.memory;
    RACE_POINT();
    /* pairs with the acquire in test and wait; before thread_tell_waiters() looks at who sleeps at home */
    atomic_store(&request->state, REQUEST_ENDED);
    RACE_POINT();
    if (staged)
        atomic_fetch_sub(&stripes->staged, 1);
    RACE_POINT();
    stripe_let_go(stripes); /* last: whoever has closed finds the request ended */
}

/*
 * A receive is whole, but bytes of a part may not have reached its memory: their copies end after the core has reported
 * them. Those of the home thread's share: copier_settle().
 */
static void note_failed_copies(struct uccl_request *request)
{
    struct core_msg *msg = &request->msg;
    for (const struct uccl_request *part = request->parts; part && msg->status == UCCL_OK; part = part->next_part) {
        if (part->carries && part->staged.error) {
            msg->status = part->staged.error;
            msg->moved_bytes = 0;
        }
    }
}

/* The home thread's share or a part has finished; the last of them completes the request. */
static void finish_one(struct engine_thread *thread, struct uccl_request *request)
{
    RACE_POINT();
    if (atomic_fetch_sub_explicit(&request->unfinished, 1, memory_order_acq_rel) != 1)
        return;
    RACE_POINT();
    int32_t part_status = atomic_load_explicit(&request->part_status, memory_order_relaxed);
    /* If a part's error cancelled the message (stripe_cancel()), that error is the status. A message that ended well is
     * whole all the same: a send may still await acks, and a short message did not need some parts. */
    if (request->msg.status == UCCL_ECANCELED && part_status != UCCL_OK)
        request->msg.status = part_status;
    if (request->msg.kind == CORE_RECV && request->staged.memory)
        note_failed_copies(request);
    free_parts(request);
    if (!request->service)
        stripe_request_over(request);
    else if (request->thread == thread)
        request->service(thread, request);
    else
        notify(thread, &request->to_home, request, COMMAND_SERVICE);
}

void stripe_retry(struct engine_thread *thread)
{
    struct notice **link = &thread->notices;
    while (*link) {
        struct notice *notice = *link, *next = notice->next;
        struct uccl_request *then = notice->then;
        notice->waiting = false; /* whoever gets it may use it again at once */
        if (!deliver(notice)) {
            notice->waiting = true;
            link = &notice->next;
            continue;
        }
        *link = next;
        if (then)
            finish_one(thread, then);
    }
}

/* Takes a part back whose submission still waits in our list, so its thread never heard of it. */
static void recall(struct engine_thread *thread, struct uccl_request *part)
{
    for (struct notice **link = &thread->notices; *link; link = &(*link)->next) {
        if (*link == &part->to_part) {
            *link = part->to_part.next;
            break;
        }
    }
    part->to_part.waiting = false;
    if (part->staged.memory)
        atomic_fetch_sub(&part->thread->staged, 1);
    atomic_store_explicit(&part->state, REQUEST_ENDED, memory_order_release);
    finish_one(thread, part->parent);
}

void stripe_recall(struct engine_thread *thread, struct uccl_request *request)
{
    for (struct uccl_request *part = request->parts; part; part = part->next_part) {
        if (part->to_part.waiting)
            recall(thread, part);
    }
}

static void part_ended(struct engine_thread *thread, struct uccl_request *part)
{
    struct uccl_request *request = part->parent;
    int32_t status = part->msg.status, none = UCCL_OK;
    if (status != UCCL_OK) {
        atomic_compare_exchange_strong(&request->part_status, &none, status);
        notify(thread, &part->to_home, request, COMMAND_CANCEL);
    }
    RACE_POINT();
    atomic_store_explicit(&part->state, REQUEST_ENDED, memory_order_release);
    RACE_POINT();
    if (part->to_home.waiting)
        part->to_home.then = request; /* the part must stay until its notice is sent */
    else
        finish_one(thread, request);
}

/*
 * If a part's flow is dead, the peer is dead for the whole connection: to cancel only the message would tell the peer
 * that somebody had cancelled it.
 */
void stripe_cancel(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns)
{
    if (request->staged.memory && request->staged.over) /* it waits for copies, and its connection may be gone */
        return;
    if (request->parts && atomic_load_explicit(&request->part_status, memory_order_relaxed) == UCCL_EPEERDEAD)
        core_conn_fail(thread->core, request->msg.conn, UCCL_EPEERDEAD, now_ns);
    else
        core_cancel(thread->core, &request->msg, now_ns);
}

/* Asks the part's thread to end it. The part may end by itself meanwhile, but the notice lies in it: so while the
 * notice waits here, the part and its request must stay. */
static void end_part(struct engine_thread *thread, struct uccl_request *request, struct uccl_request *part)
{
    notify(thread, &part->to_part, part, COMMAND_END_PART);
    if (part->to_part.waiting) {
        part->to_part.then = request;
        atomic_fetch_add_explicit(&request->unfinished, 1, memory_order_relaxed);
    }
}

void stripe_end_early(struct engine_thread *thread, struct uccl_request *request, uint64_t now_ns)
{
    uint32_t unfinished = atomic_load(&request->unfinished);
    request->let_go = true;
    if (!atomic_load_explicit(&request->home_over, memory_order_relaxed)) {
        core_cancel(thread->core, &request->msg, now_ns);
        return;
    }
    do {
        if (unfinished == 0) /* another thread has ended it, and has freed its parts */
            return;
    } while (!atomic_compare_exchange_weak(&request->unfinished, &unfinished, unfinished + 1));
    for (struct uccl_request *part = request->parts; part; part = part->next_part) {
        if (atomic_load_explicit(&part->state, memory_order_acquire) == REQUEST_PENDING && !part->to_part.waiting)
            end_part(thread, request, part);
    }
    finish_one(thread, request);
}

void stripe_ended(struct engine_thread *thread, struct uccl_request *request)
{
    if (request->parent) {
        part_ended(thread, request);
        return;
    }
    bool sent = request->msg.kind == CORE_SEND && request->msg.status == UCCL_OK && !request->let_go;
    if (request->msg.kind == CORE_SEND) /* no flow takes any more of it */
        atomic_store(&request->spread_bytes, request->msg.size_bytes);
    stripe_recall(thread, request);
    for (struct uccl_request *part = request->parts; part; part = part->next_part) {
        if (!sent && atomic_load_explicit(&part->state, memory_order_acquire) == REQUEST_PENDING)
            end_part(thread, request, part);
    }
    RACE_POINT();
    atomic_store_explicit(&request->home_over, true, memory_order_relaxed);
    finish_one(thread, request);
}

/* ---- closing --------------------------------------------------------------------------------- */

bool stripe_hold(struct stripe_set *stripes)
{
    uint32_t holds = atomic_load(&stripes->holds);
    RACE_POINT();
    while (holds && !atomic_compare_exchange_weak(&stripes->holds, &holds, holds + 1))
        ;
    return holds > 0;
}

void stripe_let_go(struct stripe_set *stripes)
{
    struct engine_thread *home = stripes->at[0].thread; /* it outlives the connection */
    if (atomic_fetch_sub(&stripes->holds, 1) == 1) {
        struct uccl_request *closing = stripes->closing;
        RACE_POINT();
        atomic_store(&stripes->over, 1);
        RACE_POINT();
        if (closing) /* else a thread that waits for `over` frees the connection, perhaps already */
            atomic_store(&closing->state, REQUEST_ENDED);
    }
    RACE_POINT();
    thread_tell_waiters(home);
}

void stripe_close(struct engine_thread *thread, struct stripe_set *stripes, uint64_t linger_ns, uint64_t now_ns)
{
    unsigned index = end_on(stripes, thread), classes = index ? STRIPE_CLASSES : 1;
    for (unsigned class = 0; class < classes && stripes->at[index].conns[class]; class ++) {
        struct conn *conn = stripes->at[index].conns[class];
        core_conn_silent_since(thread->core, conn,
                               atomic_load_explicit(&stripes->silent_since_ns, memory_order_relaxed));
        core_conn_close(thread->core, conn, linger_ns, now_ns);
    }
    if (index == 0 && stripes->onesided)
        stripes->close_onesided(stripes->onesided, linger_ns, now_ns);
    stripe_let_go(stripes);
}

void stripe_end_failed(struct stripe_set *stripes, unsigned index, int32_t status)
{
    if (stripes->at[index].failed)
        return;
    stripes->at[index].failed = true;
    atomic_fetch_add(&stripes->holds, 1);
    send_notice(stripes->at[index].thread, &stripes->at[index].to_home, stripes->at[0].thread, stripes,
                COMMAND_FAIL | (uint64_t)(uint32_t)status << 32);
}

void stripe_home_open(struct engine_thread *thread, struct stripe_set *stripes, uint64_t now_ns)
{
    if (stripes->status)
        core_conn_fail(thread->core, stripes->at[0].conns[CLASS_MESSAGES], stripes->status, now_ns);
}

void stripe_fail(struct engine_thread *thread, struct stripe_set *stripes, int32_t status, uint64_t now_ns)
{
    stripes->status = status;
    if (stripes->at[0].conns[CLASS_MESSAGES])
        stripe_home_open(thread, stripes, now_ns);
    stripe_let_go(stripes);
}

void stripe_home_over(struct stripe_set *stripes)
{
    if (--stripes->open)
        return;
    for (unsigned i = 1; i < stripes->count; i++) {
        atomic_fetch_add(&stripes->holds, 1);
        send_notice(stripes->at[0].thread, &stripes->at[i].to_close, stripes->at[i].thread, stripes, COMMAND_CLOSE);
    }
}

void stripe_end_closed(struct stripe_set *stripes, unsigned index)
{
    if (index == 0)
        stripe_home_over(stripes);
    stripe_let_go(stripes);
}
