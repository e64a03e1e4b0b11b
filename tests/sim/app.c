/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The application of the simulated world, and the judge of what it is told. Both ends know the plan:
 * what message k of each direction of each connection is, and how large its receive is. What arrives is a
 * function of connection, direction, number and offset, so swapped, shifted and stale bytes are seen;
 * buffers are exact, have guards, and are freed as soon as their request ends.
 */
#include "content.h"
#include "pipes.h"
#include "placing.h"
#include "stops.h"

#include "core/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_ENDED = 1, GUARD_BYTE = 0xa5, OPEN_CHECKS_MAX = 100 };

struct side;

/* One message of the plan. */
struct message {
    uint64_t size, capacity;
    bool cancel[2]; /* by kind: will be cancelled a while after it was posted */
    bool cancel_asked[2];
    bool posted[2];
    bool watched;      /* its receive is */
    int32_t status[2]; /* NOT_ENDED, or how it ended */
    struct request *request[2];
    uint64_t posted_ns; /* of the later request */
};

struct request {
    struct core_msg msg;
    struct side *side;
    struct message *message;
    uint64_t number, bytes; /* bytes: of the buffer */
    uint64_t posted_ns;
    uint64_t copied_to; /* where the copy before ended */
    uint8_t *memory;    /* guard, buffer, guard */
};

/* One end of a connection. */
struct side {
    struct conn_sim *conn;
    unsigned side, end;
    struct conn *core_conn;
    void *memory;
    unsigned posted[2], live[2]; /* by kind */
    bool post_queued[2];
    uint64_t recv_from_ns; /* receives are posted from then on */
    bool closed, failed, over;
    unsigned close_checks;
};

struct conn_sim {
    struct pair *pair;
    unsigned index, ended_requests;
    struct side sides[2];
    unsigned count[2];
    struct message *messages[2]; /* by sending side */
    bool closing;
};

/* ---- contents -------------------------------------------------------------------------------- */

static bool is_guard(const uint8_t *at, uint64_t size)
{
    return size == 0 || (at[0] == GUARD_BYTE && memcmp(at, at + 1, size - 1) == 0);
}

/* ---- plan ------------------------------------------------------------------------------------ */

/* Sizes that are likely to meet a boundary, and any others. */
static uint64_t plan_size(struct world *world)
{
    const struct options *options = world->options;
    struct rng *rng = &world->app_rng;
    uint64_t size = 0, near = rng_below(rng, 5);
    if (options->one_size)
        return options->size_max;
    switch (rng_below(rng, 12)) {
    case 0:
        size = 0;
        break;
    case 1:
        size = near;
        break;
    case 2:
        size = options->params.eager_kb * 1024 + near - 2;
        break;
    case 3:
        size = options->datagram_bytes - 64 + near - 2;
        break;
    case 4:
        size = options->datagram_bytes - 60 + near - 2;
        break;
    case 5:
        size = (1 + rng_below(rng, 3)) * options->params.chunk_size_kb * 1024 + near - 2;
        break;
    case 6:
        size = (1 + rng_below(rng, 100)) * (uint64_t)(options->datagram_bytes - 64) + near - 2;
        break;
    case 7:
        size = rng_below(rng, (uint32_t)options->size_max + 1);
        break;
    default:
        size = rng_below(rng, 2048);
    }
    return size > UINT64_MAX / 2 ? 0 : size > options->size_max ? size % (options->size_max + 1) : size;
}

static void plan_message(struct world *world, struct message *message)
{
    const struct options *options = world->options;
    struct rng *rng = &world->app_rng;
    message->status[0] = message->status[1] = NOT_ENDED;
    message->size = plan_size(world);
    message->capacity = message->size;
    if (rng_below(rng, 3) == 0)
        message->capacity += rng_below(rng, rng_below(rng, 4) ? 100 : 20000);
    if (rng_below(rng, 1000) < options->truncate_permille && message->size)
        message->capacity = rng_below(rng, 2) ? message->size - 1 : rng_below(rng, (uint32_t)message->size);
    for (unsigned kind = 0; kind < 2; kind++)
        message->cancel[kind] = rng_below(rng, 2000) < options->cancel_permille;
    message->watched = rng_below(rng, 4) == 0;
}

static void queue_post(struct world *world, struct side *side, unsigned kind, uint64_t at_ns)
{
    side->post_queued[kind] = true;
    world_push(world, at_ns, EVENT_POST, side->end, side, kind);
}

/* As if side `s` had sent for long. */
static void wrap_messages(struct world *world, struct conn_sim *conn, unsigned s)
{
    struct conn *from = conn->sides[s].core_conn, *to = conn->sides[!s].core_conn;
    uint64_t number = world_wrap(world), ring = world_wrap(world) * 64 - (UINT64_C(63) << 32);
    from->send_next = from->send_admitted = from->delivered = number;
    to->recv_next = to->recv_admitted = to->recv_base = number;
    from->ring_used = ring;
    from->ring_limit = ring + from->ring_bytes;
    to->ring_freed = ring;
}

static void create_conn(struct world *world, struct conn_sim *conn, struct pair *pair, unsigned index)
{
    const struct options *options = world->options;
    struct rng *rng = &world->app_rng;
    uint32_t ids[2];
    *conn = (struct conn_sim){.pair = pair, .index = index};
    for (unsigned side = 0; side < 2; side++)
        ids[side] = (2 * index + side) | rng_below(rng, 1 << 16) << CORE_CONN_INDEX_BITS;
    for (unsigned s = 0; s < 2; s++) {
        struct side *side = &conn->sides[s];
        struct end *end = &world->ends[pair->end[s]];
        *side = (struct side){.conn = conn, .side = s, .end = pair->end[s]};
        side->memory = sim_alloc(core_conn_size(&pair->setup[s]));
        side->core_conn = core_conn_open(end->core, side->memory, pair->flow[s], &pair->setup[s], ids[s], ids[!s], side,
                                         world_clock_ns(world, end));
        conn->count[s] = options->one_way && s ? 0 : options->messages;
        conn->messages[s] = calloc(conn->count[s] + 1, sizeof *conn->messages[s]);
        for (unsigned i = 0; i < conn->count[s]; i++)
            plan_message(world, &conn->messages[s][i]);
        side->recv_from_ns = world->now_ns;
        if (options->recv_late_ns && rng_below(rng, 2))
            side->recv_from_ns += rng_below(rng, (uint32_t)options->recv_late_ns);
        uint64_t start_ns = world->now_ns + (rng_below(rng, 2) ? rng_below(rng, NS_PER_MS) : 0);
        queue_post(world, side, CORE_SEND, start_ns);
        queue_post(world, side, CORE_RECV, start_ns > side->recv_from_ns ? start_ns : side->recv_from_ns);
    }
    for (unsigned s = 0; s < 2 && options->wrap; s++)
        wrap_messages(world, conn, s);
    if (options->close_early && rng_below(rng, 4)) {
        struct side *first = &conn->sides[rng_below(rng, 2)];
        uint64_t at_ns = world->now_ns + rng_below(rng, 1u << (14 + rng_below(rng, 12)));
        world_push(world, at_ns, EVENT_CLOSE, first->end, first, 0);
        if (rng_below(rng, 3) == 0) {
            struct side *second = &conn->sides[!first->side];
            world_push(world, at_ns + rng_below(rng, NS_PER_MS), EVENT_CLOSE, second->end, second, 0);
        }
    }
}

void app_create(struct world *world)
{
    const struct options *options = world->options;
    world->conn_count = world->pair_count * options->conns;
    world->conns = calloc(world->conn_count, sizeof *world->conns);
    for (unsigned i = 0; i < world->conn_count; i++)
        create_conn(world, &world->conns[i], &world->pairs[i / options->conns], i);
}

static void free_request(struct world *world, struct request *request)
{
    if (world->nic)
        placing_forget(world, &request->msg);
    free(request->memory);
    free(request);
}

void app_destroy(struct world *world)
{
    for (unsigned i = 0; i < world->conn_count; i++) {
        struct conn_sim *conn = &world->conns[i];
        for (unsigned s = 0; s < 2; s++) {
            for (unsigned k = 0; k < conn->count[s]; k++) {
                for (unsigned kind = 0; kind < 2; kind++) {
                    if (conn->messages[s][k].request[kind]) /* of an end that died */
                        free_request(world, conn->messages[s][k].request[kind]);
                }
            }
            free(conn->messages[s]);
            free(conn->sides[s].memory);
        }
    }
    free(world->conns);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void post_one(struct world *world, struct side *side, unsigned kind)
{
    struct conn_sim *conn = side->conn;
    struct end *end = &world->ends[side->end];
    unsigned sender = kind == CORE_SEND ? side->side : !side->side;
    uint64_t number = side->posted[kind]++;
    struct message *message = &conn->messages[sender][number];
    struct request *request = malloc(sizeof *request);
    if (!request)
        abort();
    memset(request, 0xcd, sizeof *request);
    request->side = side;
    request->message = message;
    request->number = number;
    request->posted_ns = message->posted_ns = world->now_ns;
    request->bytes = kind == CORE_SEND ? message->size : message->capacity;
    request->memory = malloc(request->bytes + 2 * GUARD_BYTES);
    if (!request->memory)
        abort();
    memset(request->memory, GUARD_BYTE, request->bytes + 2 * GUARD_BYTES);
    if (kind == CORE_SEND)
        content_write(request->memory + GUARD_BYTES, content_key(conn->index, sender, number), 0, request->bytes);
    request->msg.kind = (uint8_t)kind;
    request->msg.size_bytes = request->bytes;
    request->msg.stripes = 0;
    request->msg.placeable = false;
    if (world->nic) {
        request->msg.grant_address = (uint64_t)(uintptr_t)(request->memory + GUARD_BYTES);
        placing_register(world, &request->msg, request->memory + GUARD_BYTES, request->bytes);
    }
    request->msg.block_bytes = 0;
    request->msg.ahead = false;
    request->msg.watched = kind == CORE_RECV && message->watched;
    request->copied_to = 0;
    message->posted[kind] = true;
    message->request[kind] = request;
    side->live[kind]++;
    world->requests_live++;
    world_note(world, kind == CORE_SEND ? "send" : "recv", conn->index * 2 + side->side, number, request->bytes);
    if (message->cancel[kind])
        world_push(world, world->now_ns + rng_below(&world->app_rng, 1u << rng_below(&world->app_rng, 23)),
                   EVENT_CANCEL, side->end, side, (uint32_t)number << 1 | kind);
    core_submit(end->core, side->core_conn, &request->msg, world_clock_ns(world, end));
    app_copy(world, end);
}

static bool may_post(const struct world *world, const struct side *side, unsigned kind)
{
    unsigned sender = kind == CORE_SEND ? side->side : !side->side;
    return !side->closed && side->posted[kind] < side->conn->count[sender] &&
           side->live[kind] < world->options->outstanding;
}

static void schedule_post(struct world *world, struct side *side, unsigned kind)
{
    const struct options *options = world->options;
    if (side->post_queued[kind] || !may_post(world, side, kind))
        return;
    uint64_t gap_ns = kind == CORE_SEND ? options->send_gap_ns : options->recv_gap_ns;
    uint64_t pause_ns = gap_ns ? rng_below(&world->app_rng, (uint32_t)gap_ns) : 0;
    queue_post(world, side, kind, world->now_ns + pause_ns);
}

void app_post(struct world *world, struct event *event)
{
    struct side *side = event->what;
    unsigned kind = event->extra;
    side->post_queued[kind] = false;
    if (!may_post(world, side, kind))
        return;
    post_one(world, side, kind);
    schedule_post(world, side, kind);
}

void app_cancel(struct world *world, struct event *event)
{
    struct side *side = event->what;
    unsigned kind = event->extra & 1;
    unsigned sender = kind == CORE_SEND ? side->side : !side->side;
    struct message *message = &side->conn->messages[sender][event->extra >> 1];
    struct end *end = &world->ends[side->end];
    if (!message->request[kind])
        return;
    message->cancel_asked[kind] = true;
    world_note(world, "cancel", side->conn->index * 2 + side->side, event->extra >> 1, kind);
    core_cancel(end->core, &message->request[kind]->msg, world_clock_ns(world, end));
}

static bool flows_at_rest(const struct conn_sim *conn)
{
    for (unsigned s = 0; s < 2; s++) {
        const struct flow *flow = conn->pair->flow[s];
        if (flow->sent.next_seq != flow->sent.cumulative || flow->ack.pending || flow->ctrl.head)
            return false;
    }
    return true;
}

/* Every message has ended on both sides and all was told: credit and numbers must be back. */
static void check_credit(struct world *world, const struct conn_sim *conn)
{
    for (unsigned s = 0; s < 2; s++) {
        const struct conn *sender = conn->sides[s].core_conn, *receiver = conn->sides[!s].core_conn;
        if (sender->delivered != sender->send_next || receiver->recv_base != receiver->recv_next)
            world_fail(world, "connection %u: %llu of %llu sends delivered, %llu of %llu receives passed", conn->index,
                       (unsigned long long)sender->delivered, (unsigned long long)sender->send_next,
                       (unsigned long long)receiver->recv_base, (unsigned long long)receiver->recv_next);
        if (sender->ring_limit - sender->ring_used != sender->ring_bytes)
            world_fail(world, "connection %u: %llu of %u bytes of eager credit came back", conn->index,
                       (unsigned long long)(sender->ring_limit - sender->ring_used), sender->ring_bytes);
        for (unsigned kind = 0; kind < DUE_KINDS; kind++) {
            if (sender->due_count[kind])
                world_fail(world, "connection %u: frames of kind %u are due for ever", conn->index, kind);
        }
        if (sender->sends_pending || sender->eager.head || sender->bulk.head || sender->settling.head)
            world_fail(world, "connection %u: sends are left", conn->index);
    }
}

static bool all_ended(const struct conn_sim *conn)
{
    return conn->ended_requests == 2 * (conn->count[0] + conn->count[1]);
}

void app_close(struct world *world, struct event *event)
{
    struct side *side = event->what;
    struct conn_sim *conn = side->conn;
    if (side->closed)
        return;
    if (all_ended(conn) && !side->failed && !conn->sides[!side->side].closed && !conn->sides[!side->side].failed) {
        if (flows_at_rest(conn)) {
            check_credit(world, conn);
        } else if (conn->index % 2 && side->close_checks++ < OPEN_CHECKS_MAX) {
            world_push(world, world->now_ns + 10 * NS_PER_MS, EVENT_CLOSE, side->end, side, 0);
            return;
        }
    }
    uint64_t linger_ns = world->options->linger_ns;
    if (world->options->close_early && rng_below(&world->app_rng, 3) == 0)
        linger_ns = rng_below(&world->app_rng, 2) ? rng_below(&world->app_rng, NS_PER_MS) : 0;
    side->closed = true;
    world_note(world, "close", conn->index * 2 + side->side, linger_ns, 0);
    struct end *end = &world->ends[side->end];
    core_conn_close(end->core, side->core_conn, linger_ns, world_clock_ns(world, end));
}

void app_close_rest(struct world *world)
{
    for (unsigned i = 0; i < world->conn_count; i++) {
        for (unsigned s = 0; s < 2; s++) {
            struct side *side = &world->conns[i].sides[s];
            if (!side->closed && !world->ends[side->end].halted)
                world_push(world, world->now_ns, EVENT_CLOSE, side->end, side, 0);
        }
    }
}

/* ---- what the core asks for ------------------------------------------------------------------ */

/* What is written to a watched receive: whole units, but at its end; two copies share one where the eager ring wraps.
 */
static void check_watched(const struct world *world, struct request *request, const struct core_copy *copy)
{
    uint64_t from = copy->offset_bytes, to = from + copy->length;
    bool begins = from % CORE_WATCHED_BYTES == 0 || (from % 8 == 0 && from == request->copied_to);
    bool ends = to % CORE_WATCHED_BYTES == 0 || to == request->message->size ||
                (to % 8 == 0 && from == 0); /* a message from the ring begins with its first byte */
    if (request->message->watched && !(begins && ends))
        world_fail(world, "a copy of bytes %llu to %llu of a watched receive", (unsigned long long)from,
                   (unsigned long long)to);
    request->copied_to = to;
}

uint8_t *app_place(struct world *world, const struct core_msg *msg, uint64_t offset, uint64_t length)
{
    const struct request *request = (const struct request *)msg;
    if (msg->kind != CORE_RECV || offset > request->bytes || length > request->bytes - offset)
        world_fail(world, "a copy of %llu bytes to offset %llu of a buffer of %llu", (unsigned long long)length,
                   (unsigned long long)offset, (unsigned long long)request->bytes);
    return request->memory + GUARD_BYTES + offset;
}

void app_copy(struct world *world, struct end *end)
{
    struct core_copy copy;
    while (core_next_copy(end->core, &copy)) {
        if (!copy.msg) {
            memcpy(copy.to, copy.from, copy.length);
            continue;
        }
        uint8_t *to = app_place(world, copy.msg, copy.offset_bytes, copy.length);
        check_watched(world, (struct request *)copy.msg, &copy);
        if (to != copy.from) /* else a pipe was read there */
            memcpy(to, copy.from, copy.length);
    }
}

const uint8_t *app_payload(struct world *world, const struct core_msg *msg, uint64_t offset, uint64_t length)
{
    const struct request *request = (const struct request *)msg;
    if (msg->kind != CORE_SEND || offset > request->bytes || length > request->bytes - offset)
        world_fail(world, "payload of %llu bytes at offset %llu of a buffer of %llu", (unsigned long long)length,
                   (unsigned long long)offset, (unsigned long long)request->bytes);
    return request->memory + GUARD_BYTES + offset;
}

/* ---- what the core tells --------------------------------------------------------------------- */

static void close_both(struct world *world, struct conn_sim *conn)
{
    if (conn->closing)
        return;
    conn->closing = true;
    unsigned first = rng_below(&world->app_rng, 2);
    for (unsigned s = 0; s < 2; s++) {
        struct side *side = &conn->sides[s];
        if (s == first || rng_below(&world->app_rng, 2)) /* else when it hears of the other's */
            world_push(world, world->now_ns + rng_below(&world->app_rng, (uint32_t)world->options->close_after_ns),
                       EVENT_CLOSE, side->end, side, 0);
    }
}

static void check_received(struct world *world, const struct request *request, const struct core_msg *msg)
{
    const struct side *side = request->side;
    const uint8_t *buffer = request->memory + GUARD_BYTES;
    uint64_t moved = msg->moved_bytes, size = request->message->size;
    if (!is_guard(request->memory, GUARD_BYTES) || !is_guard(buffer + request->bytes, GUARD_BYTES))
        world_fail(world, "receive %llu wrote outside its buffer", (unsigned long long)request->number);
    if (msg->status != UCCL_OK)
        return;
    if (moved != size)
        world_fail(world, "receive %llu of connection %u has %llu bytes of %llu", (unsigned long long)request->number,
                   side->conn->index, (unsigned long long)moved, (unsigned long long)size);
    uint64_t key = content_key(side->conn->index, !side->side, request->number);
    uint64_t wrong = content_right(buffer, key, 0, size);
    if (wrong < size)
        world_fail(world, "receive %llu of connection %u differs at byte %llu of %llu",
                   (unsigned long long)request->number, side->conn->index, (unsigned long long)wrong,
                   (unsigned long long)size);
    if (!is_guard(buffer + size, request->bytes - size))
        world_fail(world, "receive %llu wrote beyond the message", (unsigned long long)request->number);
}

static void on_message(struct world *world, struct end *end, struct core_msg *msg, int32_t status)
{
    struct request *request = (struct request *)msg;
    struct side *side = request->side;
    struct message *message = request->message;
    unsigned kind = msg->kind;
    if (&world->ends[side->end] != end || message->request[kind] != request || status != msg->status)
        world_fail(world, "an event for a request that is not there");
    world_note(world, kind == CORE_SEND ? "sent" : "received", side->conn->index * 2 + side->side, request->number,
               (uint64_t)(int64_t)status);
    message->status[kind] = status;
    message->request[kind] = NULL;
    if (kind == CORE_RECV && status == UCCL_OK && world->now_ns - message->posted_ns > world->message_max_ns)
        world->message_max_ns = world->now_ns - message->posted_ns;
    if (kind == CORE_RECV)
        check_received(world, request, msg);
    else if (status == UCCL_OK && msg->moved_bytes != message->size)
        world_fail(world, "send %llu moved %llu bytes of %llu", (unsigned long long)request->number,
                   (unsigned long long)msg->moved_bytes, (unsigned long long)message->size);
    if (status != UCCL_OK && msg->moved_bytes != 0)
        world_fail(world, "a failed request moved bytes");
    side->live[kind]--;
    world->requests_live--;
    world->requests_ended++;
    world->bytes_moved += msg->moved_bytes;
    if (world->ends[side->conn->sides[!side->side].end].halted)
        world->dead_end_max_ns = world->now_ns;
    else
        world->living_end_max_ns = world->now_ns;
    side->conn->ended_requests++;
    free_request(world, request);
    schedule_post(world, side, kind);
    if (all_ended(side->conn))
        close_both(world, side->conn);
}

/* The pair and the side of a flow's event. */
static struct pair *pair_of(struct world *world, const struct core_event *event, unsigned *side)
{
    for (unsigned i = 0; i < world->pair_count; i++) {
        struct pair *pair = &world->pairs[i];
        for (*side = 0; *side < 2; ++*side) {
            if (event->owner == &pair->flow[*side])
                return pair;
        }
    }
    world_fail(world, "an event for no flow");
    return NULL;
}

/* A rail is lost or back: the two come in turn. */
static void on_rail(struct world *world, const struct core_event *event)
{
    bool lost = event->kind == CORE_EVENT_RAIL_LOST;
    unsigned side;
    struct pair *pair = pair_of(world, event, &side);
    if (pair->rail_lost[side][event->rail] == lost)
        world_fail(world, "rail %u is lost twice, or back twice", event->rail);
    pair->rail_lost[side][event->rail] = lost;
    *(lost ? &world->rails_lost : &world->rails_back) += 1;
}

/* Side 0 makes the pipes (pipes.h). */
static void on_wanted(struct world *world, const struct core_event *event)
{
    unsigned side;
    struct pair *pair = pair_of(world, event, &side);
    if (side == 0)
        pipes_create(world, pair);
}

static void on_proven(struct world *world, const struct core_event *event)
{
    unsigned side;
    struct pair *pair = pair_of(world, event, &side);
    if (pair->proven[side] || pair->dead[side])
        world_fail(world, "a flow was proven twice, or after its end");
    pair->proven[side] = true;
}

static void on_death(struct world *world, const struct core_event *event)
{
    unsigned side;
    struct pair *pair = pair_of(world, event, &side);
    if (pair->dead[side] || !world->options->expect_dead)
        world_fail(world, "a flow died");
    if (world->options->stops)
        stops_judge_death(world, pair, side);
    pair->dead[side] = true;
}

void app_event(struct world *world, struct end *end, const struct core_event *event)
{
    struct side *side = event->owner;
    switch (event->kind) {
    case CORE_EVENT_MSG:
        on_message(world, end, event->msg, event->status);
        break;
    case CORE_EVENT_RANGE:
    case CORE_EVENT_ARRIVED:
    case CORE_EVENT_WANTED:
        world_fail(world, "a message is striped on a connection without parts, or wanted and not staged");
    case CORE_EVENT_CONN_ENDED:
        world_note(world, "ended", side->conn->index * 2 + side->side, 0, 0);
        if (!side->closed || side->over || side->live[0] || side->live[1])
            world_fail(world, "connection %u ended too early or twice", side->conn->index);
        side->over = true;
        free(side->memory);
        side->memory = NULL;
        break;
    case CORE_EVENT_CONN_FAILED:
        world_note(world, "failed", side->conn->index * 2 + side->side, (uint64_t)(int64_t)event->status, 0);
        if (side->failed || side->closed || side->live[0] || side->live[1])
            world_fail(world, "connection %u failed twice, or with requests open", side->conn->index);
        if (event->status == UCCL_EPEERDEAD && !world->options->expect_dead)
            world_fail(world, "connection %u lost its peer", side->conn->index);
        side->failed = true;
        world_push(world, world->now_ns + rng_below(&world->app_rng, 10 * NS_PER_MS), EVENT_CLOSE, side->end, side, 0);
        break;
    case CORE_EVENT_RAILS_WANTED:
        world_note(world, "wanted", (uint64_t)(int64_t)event->status, 0, 0);
        on_wanted(world, event);
        break;
    case CORE_EVENT_CONN_CALLED:
        world_fail(world, "connection %u was called, and is no annex", side->conn->index);
    case CORE_EVENT_FLOW_HOLE:
        world_note(world, "hole", event->passing_bytes, event->route_bytes, 0);
        if (event->passing_bytes >= event->route_bytes)
            world_fail(world, "a hole above %u of %u bytes", event->passing_bytes, event->route_bytes);
        break;
    case CORE_EVENT_RAIL_LOST:
    case CORE_EVENT_RAIL_BACK:
        world_note(world, event->kind == CORE_EVENT_RAIL_LOST ? "rail lost" : "rail back", event->rail, 0, 0);
        on_rail(world, event);
        break;
    case CORE_EVENT_FLOW_PROVEN:
        on_proven(world, event);
        break;
    case CORE_EVENT_FLOW_DEAD:
        on_death(world, event);
        break;
    }
}

/* ---- at the end ------------------------------------------------------------------------------ */

int app_waits(const struct world *world, const struct pair *pair, unsigned side, uint64_t at_ns)
{
    for (unsigned i = 0; i < world->conn_count; i++) {
        const struct conn_sim *conn = &world->conns[i];
        for (unsigned kind = 0; kind < 2 && conn->pair == pair; kind++) {
            unsigned sender = kind == CORE_SEND ? side : !side;
            for (unsigned k = 0; k < conn->count[sender]; k++) {
                const struct request *request = conn->messages[sender][k].request[kind];
                if (request && request->posted_ns < at_ns)
                    return (int)i;
            }
        }
    }
    return -1;
}

bool app_over(const struct world *world)
{
    for (unsigned i = 0; i < world->conn_count; i++) {
        for (unsigned s = 0; s < 2; s++) {
            const struct side *side = &world->conns[i].sides[s];
            if (!world->ends[side->end].halted && !side->over)
                return false;
        }
    }
    return true;
}

/* Why a request of this kind may have ended with this status. */
static bool excused(const struct world *world, const struct conn_sim *conn, const struct message *message,
                    unsigned sender, unsigned kind)
{
    unsigned own = kind == CORE_SEND ? sender : !sender;
    switch (message->status[kind]) {
    case UCCL_OK:
        return message->size <= message->capacity;
    case UCCL_ETRUNCATED:
        return message->size > message->capacity;
    case UCCL_ECANCELED:
        return message->cancel_asked[0] || message->cancel_asked[1] || conn->sides[own].closed;
    case UCCL_ECLOSED:
        return conn->sides[!own].closed;
    case UCCL_EPEERDEAD:
        return world->options->expect_dead;
    default:
        return false;
    }
}

/* The two ends of one message agree. */
static bool agree(const struct world *world, const struct conn_sim *conn, const struct message *message,
                  unsigned sender)
{
    int32_t sent = message->status[CORE_SEND], received = message->status[CORE_RECV];
    if (!message->posted[CORE_SEND] || !message->posted[CORE_RECV])
        return sent != UCCL_OK && received != UCCL_OK;
    if (sent == UCCL_OK)
        return received == UCCL_OK || world->ends[conn->sides[!sender].end].halted;
    if (received != UCCL_OK || world->options->expect_dead)
        return true;
    /* The receiver has it, yet the sender says no: only if the sender gave up by itself. */
    return sent == UCCL_ECANCELED && (message->cancel_asked[CORE_SEND] || conn->sides[sender].closed);
}

void app_check(struct world *world)
{
    for (unsigned i = 0; i < world->conn_count; i++) {
        const struct conn_sim *conn = &world->conns[i];
        for (unsigned sender = 0; sender < 2; sender++) {
            for (unsigned k = 0; k < conn->count[sender]; k++) {
                const struct message *message = &conn->messages[sender][k];
                for (unsigned kind = 0; kind < 2; kind++) {
                    unsigned end = conn->sides[kind == CORE_SEND ? sender : !sender].end;
                    if (!message->posted[kind] || world->ends[end].halted)
                        continue;
                    if (!excused(world, conn, message, sender, kind))
                        world_fail(world, "connection %u, %s %u of %llu bytes into %llu: status %d", i,
                                   kind == CORE_SEND ? "send" : "receive", k, (unsigned long long)message->size,
                                   (unsigned long long)message->capacity, message->status[kind]);
                }
                if (!agree(world, conn, message, sender))
                    world_fail(world, "connection %u, message %u from side %u: sent %d, received %d", i, k, sender,
                               message->status[CORE_SEND], message->status[CORE_RECV]);
            }
        }
    }
    const struct options *options = world->options;
    if (options->halt_ns != UINT64_MAX && options->halt_ns < options->limit_ns) {
        uint64_t bound_ns = options->halt_ns + options->halts * options->halt_gap_ns +
                            /* what its NIC was given before, and what comes late, postpone the verdict */
                            options->nic_work_ns + options->path_stall_ns +
                            (options->params.dead_peer_ms * 5 / 4 + 10) * NS_PER_MS + /* it is asked after a quarter */
                            options->nic_drain_ns; /* what was granted ends when its queue pairs are drained */
        if (world->dead_end_max_ns > world->start_ns + bound_ns)
            world_fail(world, "a request outlived its peer by %.3f ms",
                       (double)(world->dead_end_max_ns - world->start_ns - options->halt_ns) / 1e6);
    }
}

void app_report(const struct world *world)
{
    for (unsigned i = 0; i < world->end_count; i++) {
        const struct counters *counters = &world->ends[i].counters;
        printf("# end %u:", i);
#define COUNTER(field, doc)                                                                                            \
    if (counters->field)                                                                                               \
        printf(" %s %llu", #field, (unsigned long long)counters->field);
#include "defs/counters.def"
#undef COUNTER
        printf("\n");
    }
    printf("# %llu requests live, %llu ended, %llu datagrams\n", (unsigned long long)world->requests_live,
           (unsigned long long)world->requests_ended, (unsigned long long)world->datagrams);
    for (unsigned i = 0; i < world->conn_count; i++) {
        for (unsigned s = 0; s < 2; s++) {
            const struct side *side = &world->conns[i].sides[s];
            if (side->over || world->ends[side->end].halted)
                continue;
            printf("# connection %u side %u: posted %u sends, %u receives; open %u, %u; %s\n", i, s, side->posted[0],
                   side->posted[1], side->live[0], side->live[1],
                   side->closed   ? "closed"
                   : side->failed ? "failed"
                                  : "open");
        }
    }
    for (unsigned i = 0; i < world->pair_count; i++) {
        for (unsigned s = 0; s < 2; s++) {
            const struct flow *flow = world->pairs[i].flow[s];
            if (!flow)
                continue;
            printf("# flow %u.%u: chunks %llu to %llu, %u flying, cwnd %llu, gap %llu, srtt %llu us, backoff %u\n", i,
                   s, (unsigned long long)flow->sent.cumulative, (unsigned long long)flow->sent.next_seq,
                   flow->rails->flying_chunks, (unsigned long long)flow->rails->cc.cwnd_bytes,
                   (unsigned long long)flow->rails->cc.pace_gap_ns,
                   (unsigned long long)flow->rails->rtt.srtt_ns / NS_PER_US, flow->rails->loss.rto_backoff);
            if (world->nic)
                placing_report(flow);
        }
    }
}
