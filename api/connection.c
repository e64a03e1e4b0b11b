/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections: engine threads, asked through their rings, open the ends that a handshake has agreed on. connect.c and
 * listener.c have the handshakes, close.c closes connections.
 */
#include "objects.h"

#include "base/log.h"
#include "base/unmap.h"
#include "nic/netdev.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- connections of the engine --------------------------------------------------------------- */

bool take_conn_id(struct uccl_engine *engine, uint32_t *id)
{
    for (uint32_t i = 0; i < CORE_CONNS_MAX; i++) {
        uint32_t index = (engine->conn_cursor + i) % CORE_CONNS_MAX;
        uint64_t bit = UINT64_C(1) << index % 64;
        if (engine->conn_indices[index / 64] & bit)
            continue;
        engine->conn_indices[index / 64] |= bit;
        engine->conn_cursor = index + 1;
        *id = index | (uint32_t)++engine->conn_generations[index] << CORE_CONN_INDEX_BITS;
        return true;
    }
    LOG_ERR("cannot open one more connection: all %d are in use", CORE_CONNS_MAX);
    return false;
}

void put_conn_id(struct uccl_engine *engine, uint32_t id)
{
    uint32_t index = id % CORE_CONNS_MAX;
    engine->conn_indices[index / 64] &= ~(UINT64_C(1) << index % 64);
}

struct open_call {
    struct uccl_conn *conn;
    struct peer_flow *flow;
    uint32_t remote_id;
    unsigned stripe;
    bool announce; /* at the home end of the side that connects */
};

/* The ids of the connections of a class have the number of its annex. */
static const uint32_t class_numbers[STRIPE_CLASSES] = {
    [CLASS_WRITES] = (ANNEX_WRITES + 1) << CORE_ANNEX_SHIFT, [CLASS_READS] = (ANNEX_READS + 1) << CORE_ANNEX_SHIFT};

/* The connections of an end that carries parts. Few parts of annexes are under way at once. */
enum { ANNEX_PARTS_WINDOW = 64 };
static struct flow_setup part_setup(const struct peer_flow *flow, enum stripe_class class)
{
    struct flow_setup setup = flow->setup;
    if (class != CLASS_MESSAGES && setup.msg_window > ANNEX_PARTS_WINDOW)
        setup.msg_window = ANNEX_PARTS_WINDOW;
    return setup;
}

static void open_parts(struct engine_thread *thread, const struct open_call *call, struct conn **conns, uint64_t now_ns)
{
    struct conn_end *end = &call->conn->ends[call->stripe];
    unsigned classes = call->conn->stripes.onesided ? STRIPE_CLASSES : 1;
    uint8_t *at = end->memory;
    for (unsigned class = 0; class < classes; class ++) {
        struct flow_setup setup = part_setup(call->flow, class);
        conns[class] =
            core_part_conn_open(thread->core, at, call->flow->flow, &setup, call->conn->id | class_numbers[class],
                                call->remote_id | class_numbers[class], end, now_ns);
        at += core_part_conn_size(&setup);
    }
}

static void open_in_core(struct engine_thread *thread, void *argument)
{
    struct open_call *call = argument;
    struct conn_end *end = &call->conn->ends[call->stripe];
    struct peer_flow *flow = call->flow;
    uint32_t id = call->conn->id;
    uint64_t now_ns = clock_now_ns();
    struct onesided *one = call->conn->stripes.onesided;
    struct conn **conns = call->conn->stripes.at[call->stripe].conns;
    if (call->stripe) {
        open_parts(thread, call, conns, now_ns);
        return;
    }
    conns[CLASS_MESSAGES] =
        core_conn_open(thread->core, end->memory, flow->flow, &flow->setup, id, call->remote_id, end, now_ns);
    for (unsigned i = 0; one && i < ANNEXES; i++) {
        uint32_t number = (i + 1) << CORE_ANNEX_SHIFT;
        one->annexes[i] =
            core_annex_open(thread->core, call->conn->annexes[i].memory, flow->flow, &flow->setup, onesided_annex(i),
                            id | number, call->remote_id | number, &call->conn->annexes[i], now_ns);
    }
    if (one)
        onesided_begin(one);
    if (call->announce)
        core_conn_announce(thread->core, conns[CLASS_MESSAGES], now_ns);
    stripe_home_open(thread, &call->conn->stripes, now_ns);
}

void conn_unmap_ends(struct uccl_conn *conn)
{
    for (unsigned i = 0; i < CORE_STRIPES_MAX && conn->ends[i].memory; i++)
        unmap(conn->ends[i].memory, conn->ends[i].memory_bytes);
    if (conn->annexes[0].memory)
        unmap(conn->annexes[0].memory, conn->annexes[0].memory_bytes);
}

/* The flow of end i, home first. Its setup determines the layout of the end. */
static struct peer_flow *flow_of_end(const struct uccl_conn *conn, unsigned home, unsigned i)
{
    return &conn->peer->flows[(home + i) % conn->peer->flows_open];
}

/* Whether the peer has one-sided operations. */
static bool has_onesided(const struct uccl_conn *conn, unsigned home)
{
    return conn->peer->flows[home].setup.features & WIRE_ONESIDED;
}

static size_t end_size(const struct uccl_conn *conn, unsigned home, unsigned i)
{
    const struct peer_flow *flow = flow_of_end(conn, home, i);
    unsigned classes = has_onesided(conn, home) ? STRIPE_CLASSES : 1;
    size_t bytes = 0;
    if (i == 0)
        return core_conn_size(&flow->setup);
    for (unsigned class = 0; class < classes; class ++) {
        struct flow_setup setup = part_setup(flow, class);
        bytes += core_part_conn_size(&setup);
    }
    return bytes;
}

static bool map_ends(struct uccl_conn *conn, unsigned home)
{
    for (unsigned i = 0; i < conn->stripes.count; i++) {
        struct conn_end *end = &conn->ends[i];
        end->of = conn;
        end->memory_bytes = end_size(conn, home, i);
        end->memory = mmap(NULL, end->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (end->memory == MAP_FAILED) {
            LOG_ERR("cannot map %zu bytes for a connection: %s", end->memory_bytes, strerror(errno));
            end->memory = NULL;
            conn_unmap_ends(conn);
            return false;
        }
    }
    return true;
}

/* Makes the one-sided operations of the connection, and the memory of its annexes, in one mapping. */
static bool map_annexes(struct uccl_conn *conn, unsigned home)
{
    struct uccl_engine *engine = conn->engine;
    const struct flow_setup *setup = &flow_of_end(conn, home, 0)->setup;
    size_t bytes = 0;
    for (unsigned i = 0; i < ANNEXES; i++)
        bytes += core_annex_size(setup, onesided_annex(i));
    uint8_t *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        LOG_ERR("cannot map %zu bytes for a connection: %s", bytes, strerror(errno));
        return false;
    }
    for (unsigned i = 0; i < ANNEXES; i++) {
        conn->annexes[i] = (struct conn_end){.of = conn, .annex = (uint8_t)(i + 1), .memory = at};
        at += core_annex_size(setup, onesided_annex(i));
    }
    conn->annexes[0].memory_bytes = bytes;
    conn->stripes.onesided = onesided_new(conn->thread, &conn->stripes, conn, &engine->exports, &engine->notes);
    if (!conn->stripes.onesided)
        return false;
    conn->stripes.onesided->pairs = conn->pairs;
    conn->stripes.onesided->waiting.early = true; /* until conn_hand_out() */
    conn->stripes.close_onesided = onesided_close;
    conn->stripes.open++;
    atomic_fetch_add(&conn->stripes.holds, 1 + (conn->stripes.count - 1) * (STRIPE_CLASSES - 1));
    return true;
}

int conn_make(struct uccl_engine *engine, const struct conn_plan *plan, struct uccl_conn **out)
{
    struct peer *peer = plan->peer;
    unsigned home = plan->home;
    struct uccl_conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return UCCL_ENOMEM;
    conn->engine = engine;
    conn->thread = peer->flows[home].thread;
    conn->peer = peer;
    conn->id = plan->id;
    conn->pairs = peer_pairs(&peer->flows[home]);
    conn->address = *plan->address;
    conn->private_bytes = plan->theirs->private_bytes;
    memcpy(conn->private_data, plan->theirs->private_data, conn->private_bytes);
    stripe_init(&conn->stripes, peer->flows_open, &engine->params, peer->flows[home].setup.places, &plan->wishes->parts,
                &engine->parts);
    if (!map_ends(conn, home)) {
        free(conn);
        return UCCL_ENOMEM;
    }
    if (has_onesided(conn, home) && !map_annexes(conn, home)) {
        conn_unmap_ends(conn);
        free(conn);
        return UCCL_ENOMEM;
    }
    for (unsigned i = 0; i < conn->stripes.count; i++) { /* before an end is open, which may fail at once */
        conn->stripes.at[i].thread = flow_of_end(conn, home, i)->thread;
        conn->stripes.at[i].flow = flow_of_end(conn, home, i)->slot;
    }
    for (unsigned i = conn->stripes.count; i-- > 0;) { /* home last: it announces, once the parts are ready */
        struct peer_flow *flow = flow_of_end(conn, home, i);
        struct open_call call = {conn, flow, plan->theirs->conn_id, i, i == 0 && !peer->is_server};
        thread_run(flow->thread, open_in_core, &call);
    }
    conn->next = engine->conns;
    if (conn->next)
        conn->next->prev = conn;
    engine->conns = conn;
    *out = conn;
    return UCCL_OK;
}

void connection_on_event(void *context, const struct core_event *event)
{
    (void)context;
    if (event->kind == CORE_EVENT_FLOW_DEAD) {
        peer_flow_turned(event->owner, FLOW_DEAD);
        return;
    }
    if (event->kind == CORE_EVENT_FLOW_PROVEN) {
        peer_flow_turned(event->owner, FLOW_PROVEN);
        return;
    }
    if (event->kind == CORE_EVENT_FLOW_HOLE) {
        peer_flow_has_hole(event->owner, event->passing_bytes, event->route_bytes);
        return;
    }
    if (event->kind == CORE_EVENT_RAILS_WANTED) {
        peer_flow_connect_beside(event->owner, event->status != UCCL_OK);
        return;
    }
    if (event->kind == CORE_EVENT_RAIL_LOST || event->kind == CORE_EVENT_RAIL_BACK) {
        peer_flow_lost_rail(event->owner, event->rail, event->kind == CORE_EVENT_RAIL_LOST);
        return;
    }
    struct conn_end *end = event->owner;
    if (end->annex) {
        onesided_event(end->of->stripes.onesided, end->annex - 1u, event->kind, event->status);
        return;
    }
    struct stripe_set *stripes = &end->of->stripes;
    unsigned index = (unsigned)(end - end->of->ends); /* 0: the home end */
    if (event->kind == CORE_EVENT_CONN_FAILED) {
        int32_t was = atomic_load(&end->of->status);
        while (was != UCCL_ECLOSED && !atomic_compare_exchange_weak(&end->of->status, &was, event->status))
            ; /* a close stays what has ended it */
        /* what came before a close of the peer arrives at the home end by itself */
        if (index > 0 && event->status != UCCL_ECLOSED)
            stripe_end_failed(stripes, index, event->status);
        if (index == 0 && event->status == UCCL_EPEERDEAD && stripes->onesided)
            onesided_peer_dead(stripes->onesided);
        return;
    }
    if (event->status == UCCL_ETIMEDOUT || event->status == UCCL_EPEERDEAD)
        atomic_store_explicit(&end->of->peer->silent_ns, clock_now_ns(), memory_order_relaxed);
    stripe_end_closed(stripes, index);
}

UCCL_API int uccl_conn_status(const uccl_conn *conn)
{
    if (!conn)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    return atomic_load_explicit(&conn->status, memory_order_acquire);
}

UCCL_API int uccl_conn_peer(const uccl_conn *conn, char *out, size_t size)
{
    if (!conn || !out || size == 0)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (!conn->peer) /* closed */
        return UCCL_ECLOSED;
    CANCEL_LATER;
    char text[NETDEV_ADDRESS_TEXT];
    snprintf(out, size, "%s", netdev_address_text(&conn->address, text));
    return UCCL_OK;
}

UCCL_API int uccl_conn_peer_id(const uccl_conn *conn, uint8_t out[16])
{
    if (!conn || !out)
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (!conn->peer) /* closed */
        return UCCL_ECLOSED;
    memcpy(out, conn->peer->engine_id, sizeof conn->peer->engine_id);
    return UCCL_OK;
}

UCCL_API int uccl_conn_private(const uccl_conn *conn, void *out, size_t size)
{
    if (!conn || (!out && size))
        return UCCL_EINVAL;
    if (inherited(conn->engine))
        return UCCL_EFORKED;
    if (!conn->peer) /* closed */
        return UCCL_ECLOSED;
    size_t length = conn->private_bytes < size ? conn->private_bytes : size;
    if (length)
        memcpy(out, conn->private_data, length);
    return conn->private_bytes;
}
