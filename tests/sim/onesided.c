/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations between whole engines, beside sends, under loss, reordering and preemption. Each node exports a
 * region of slots. The checker knows of each byte of every region when it may change, and to what:
 *   - a slot on which no write is under way has the bytes that it had;
 *   - on a slot with a write each byte is the old one or the new one; new, once the write has completed without error;
 *   - after an error, and after the export was revoked, the slot stays as it is.
 * A signal has its value when its operation has completed; the sum of all that were added is exact. A notification
 * comes once, in order, and finds the bytes of its operation. Where rails are cut and others work, no operation takes
 * long.
 */
#include "service.h"

#include "core/units.h"
#include "seam.h"

#include "../../api/objects.h"

enum {
    NODES = 3,
    SLOTS = 24,
    SLOT_BYTES = 49152,
    WORDS = 64, /* of 8 bytes, behind the slots */
    REGION_BYTES = SLOTS * SLOT_BYTES + WORDS * 8,
    EXPORTS = 3, /* of a region: all rights, write, read */
    OPS = 60,    /* of one node on another */
    LIVE = 6,    /* of them, at once */
    SPAN = 3,    /* slots of one operation, at most */
    PIECES = 200,
    DIAL_LIMIT_MS = 4000,
};
#define OP_NS (2000 * NS_PER_MS) /* an operation takes less, where a rail works */

static const unsigned export_access[EXPORTS] = {UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, UCCL_ACCESS_WRITE,
                                                UCCL_ACCESS_READ};

/* An export in one of its lives. */
struct published {
    uint8_t ref[UCCL_REF_BYTES];
    uccl_export *exported;
    unsigned life;
    bool revoked; /* and uccl_revoke() has succeeded */
};

struct region {
    _Alignas(64) uint8_t bytes[REGION_BYTES];
    uint8_t shadow[REGION_BYTES]; /* what is known of it */
    bool writing[SLOTS];
    unsigned readers[SLOTS];
    uccl_mr *mr, *locals; /* locals: of operations on others */
    struct published exports[EXPORTS];
    uint64_t added; /* to word 0, by operations that have completed without error */
};

struct operation {
    bool live, write, sealed, cancelled, refused; /* refused: the target must refuse it */
    unsigned number, slots, slot[SPAN];
    uint64_t key; /* of the new content */
    unsigned use, life;
    uint64_t begun_ns;
    uint8_t *local, *sealed_bytes;
    uccl_request *request;
    uccl_remote *remote;
    struct uccl_tail tail;
    bool noted; /* its notification was taken */
    uint8_t status_seen;
};

/* What one node does at another. */
struct initiator {
    unsigned from, to;
    uccl_conn *conn;
    struct operation ops[LIVE];
    struct uccl_piece pieces[PIECES];
    unsigned begun, ended;
    uint64_t word;           /* last value set in its own word */
    unsigned notes_sent;     /* numbers of notifications given out */
    unsigned notes_next;     /* the least that may come next at the target */
    unsigned notes_expected; /* completed without error */
    unsigned notes_taken;
    bool over;
};

static struct {
    unsigned nodes, ready, over, finished;
    struct region region[NODES];
    struct initiator initiator[NODES][NODES];
    bool cancels, revokes, stop;
    bool places, places_surely; /* NICs do, where they can */
    uint32_t gap_ns;            /* longest between two looks at the operations of an initiator */
    uint64_t op_ns;             /* longest that an operation may take; 0: any */
} world;

static uint8_t locals[NODES][NODES][LIVE][SPAN * SLOT_BYTES];

struct note_text {
    uint32_t from, number, slot_index; /* UINT32_MAX: it is no tail */
};

/* ---- the checker ------------------------------------------------------------------------------- */

static uint8_t *slot_at(uint8_t *bytes, unsigned slot)
{
    return bytes + (size_t)slot * SLOT_BYTES;
}

/* No slot changes on which no write is under way. */
static void check_idle(unsigned node)
{
    struct region *region = &world.region[node];
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        if (!region->writing[slot] &&
            memcmp(slot_at(region->bytes, slot), slot_at(region->shadow, slot), SLOT_BYTES) != 0)
            machine_fail("node %u: slot %u changed on its own", node, slot);
    }
}

/* The bytes of a write that has ended, or that nothing may change any more: `whole`: it has succeeded. */
static void check_written(const struct operation *op, unsigned to, bool whole)
{
    struct region *region = &world.region[to];
    for (unsigned i = 0; i < op->slots; i++) {
        const uint8_t *now = slot_at(region->bytes, op->slot[i]), *before = slot_at(region->shadow, op->slot[i]);
        for (size_t at = 0; at < SLOT_BYTES; at++) {
            uint8_t fresh = content(op->key + i, at);
            if (now[at] != fresh && (whole || now[at] != before[at]))
                machine_fail("node %u: byte %zu of slot %u is %02x, not %02x%s", to, at, op->slot[i], now[at], fresh,
                             whole ? "" : ", nor what it was");
        }
    }
}

/* From now on nothing of it may change. */
static void seal(struct operation *op, unsigned to)
{
    check_written(op, to, false);
    op->sealed = true;
    op->sealed_bytes = sim_malloc((size_t)SPAN * SLOT_BYTES);
    for (unsigned i = 0; i < op->slots; i++)
        memcpy(op->sealed_bytes + (size_t)i * SLOT_BYTES, slot_at(world.region[to].bytes, op->slot[i]), SLOT_BYTES);
}

static void check_sealed(const struct operation *op, unsigned to)
{
    for (unsigned i = 0; op->sealed && i < op->slots; i++) {
        if (memcmp(op->sealed_bytes + (size_t)i * SLOT_BYTES, slot_at(world.region[to].bytes, op->slot[i]),
                   SLOT_BYTES) != 0)
            machine_fail("node %u: slot %u changed after its export was revoked", to, op->slot[i]);
    }
}

static uint64_t word_of(unsigned node, unsigned index)
{
    uint64_t value;
    memcpy(&value, world.region[node].bytes + (size_t)SLOTS * SLOT_BYTES + index * 8, sizeof value);
    return value;
}

/* ---- operations -------------------------------------------------------------------------------- */

static bool pick_slots(struct operation *op, unsigned to)
{
    struct region *region = &world.region[to];
    op->slots = 1 + cluster_random(SPAN);
    unsigned first = cluster_random(SLOTS);
    for (unsigned i = 0; i < op->slots; i++) {
        unsigned slot = (first + i * (world.places ? 1 : 7)) % SLOTS;
        if (region->writing[slot] || (op->write && region->readers[slot]))
            return false;
        op->slot[i] = slot;
    }
    for (unsigned i = 0; i < op->slots; i++) {
        region->writing[op->slot[i]] |= op->write;
        region->readers[op->slot[i]] += !op->write;
    }
    return true;
}

static void leave_slots(const struct operation *op, unsigned to)
{
    struct region *region = &world.region[to];
    for (unsigned i = 0; i < op->slots; i++) {
        uint8_t *bytes = slot_at(region->bytes, op->slot[i]);
        if (op->write) {
            memcpy(slot_at(region->shadow, op->slot[i]), bytes, SLOT_BYTES);
            region->writing[op->slot[i]] = false;
        } else {
            region->readers[op->slot[i]]--;
        }
    }
}

/* Cuts the slots into pieces, some of no bytes. */
static unsigned cut(const struct initiator *me, const struct operation *op, struct uccl_piece *pieces)
{
    unsigned count = 0;
    uint32_t most = cluster_random(3) == 0 ? 500 : 1 + cluster_random(2 * SLOT_BYTES);
    if (world.places && op->slot[op->slots - 1] >= op->slot[0] && cluster_random(2)) {
        /* NICs place messages in one piece alone */
        pieces[0] = (struct uccl_piece){.local = op->local,
                                        .mr = world.region[me->from].locals,
                                        .length = (size_t)op->slots * SLOT_BYTES,
                                        .remote = op->remote,
                                        .offset = (uint64_t)op->slot[0] * SLOT_BYTES};
        return 1;
    }
    for (unsigned i = 0; i < op->slots; i++) {
        for (size_t at = 0; at < SLOT_BYTES;) {
            size_t length = 1 + cluster_random(most), left = SLOT_BYTES - at;
            if (length > left || count + SPAN - i >= PIECES)
                length = left;
            pieces[count++] = (struct uccl_piece){.local = op->local + (size_t)i * SLOT_BYTES + at,
                                                  .mr = world.places ? world.region[me->from].locals : NULL,
                                                  .length = length,
                                                  .remote = op->remote,
                                                  .offset = (uint64_t)op->slot[i] * SLOT_BYTES + at};
            at += length;
        }
    }
    return count;
}

static void plan_tail(struct initiator *me, struct operation *op, struct note_text *text, unsigned index)
{
    op->tail = (struct uccl_tail){0};
    switch (op->refused ? 3 : cluster_random(5)) {
    case 0:
        op->tail = (struct uccl_tail){.kind = UCCL_TAIL_NOTIFY, .bytes = text, .length = sizeof *text};
        *text = (struct note_text){me->from, me->notes_sent++, index};
        break;
    case 1:
        op->tail = (struct uccl_tail){.kind = UCCL_TAIL_SET,
                                      .remote = op->remote,
                                      .offset = (uint64_t)SLOTS * SLOT_BYTES + 8 * (1 + index + me->from * LIVE),
                                      .value = ++me->word};
        break;
    case 2:
        op->tail = (struct uccl_tail){.kind = UCCL_TAIL_ADD,
                                      .remote = op->remote,
                                      .offset = (uint64_t)SLOTS * SLOT_BYTES,
                                      .value = 1 + cluster_random(1000)};
        break;
    default:
        break;
    }
}

/* A fault that the target must see: of the range, or of the right. */
static void spoil(struct operation *op, struct uccl_piece *pieces, unsigned count)
{
    struct uccl_piece *piece = &pieces[cluster_random(count)];
    piece->offset = cluster_random(2) ? REGION_BYTES - piece->length + 1 : UINT64_MAX - cluster_random(100);
    op->refused = true;
}

static void begin(struct initiator *me, unsigned index)
{
    struct uccl_piece *pieces = me->pieces;
    struct operation *op = &me->ops[index];
    struct region *region = &world.region[me->to];
    *op = (struct operation){
        .number = me->begun, .use = cluster_random(EXPORTS), .local = op->local, .begun_ns = machine.now_ns};
    op->write = cluster_random(3) > 0;
    if (!pick_slots(op, me->to))
        return;
    const struct published *published = &region->exports[op->use];
    op->life = published->life;
    op->key = ((uint64_t)me->from << 56 | (uint64_t)me->to << 48 | (uint64_t)op->number << 16) + 1;
    unsigned right = op->write ? UCCL_ACCESS_WRITE : UCCL_ACCESS_READ;
    op->refused = !(export_access[op->use] & right);
    int error = uccl_import(me->conn, published->ref, &op->remote);
    if (error)
        machine_fail("an import returned %d", error);
    for (size_t at = 0; at < (size_t)op->slots * SLOT_BYTES; at++)
        op->local[at] = op->write ? content(op->key + at / SLOT_BYTES, at % SLOT_BYTES) : 0x5a;
    unsigned count = cut(me, op, pieces);
    if (!op->refused && cluster_random(12) == 0)
        spoil(op, pieces, count);
    struct note_text text;
    plan_tail(me, op, &text, index);
    if (op->tail.kind && op->tail.kind != UCCL_TAIL_NOTIFY && !(export_access[op->use] & UCCL_ACCESS_WRITE))
        op->refused = true;
    op->live = true; /* its notification may come before the call returns */
    while ((error = (op->write ? uccl_write_async : uccl_read_async)(
                me->conn, pieces, count, op->tail.kind ? &op->tail : NULL, &op->request)) == UCCL_EAGAIN)
        machine_sleep(NS_PER_US);
    if (error)
        machine_fail("posting an operation returned %d", error);
    me->begun++;
    if (cluster_random(6) == 0 && (error = uccl_fence(me->conn)) && error != UCCL_EAGAIN)
        machine_fail("a fence returned %d", error);
    if (world.cancels && cluster_random(4) == 0) {
        machine_sleep(cluster_random(200 * NS_PER_US));
        op->cancelled = uccl_cancel(op->request) == UCCL_OK;
    }
}

static void judge_signal(struct initiator *me, const struct operation *op, int status)
{
    bool done = status == UCCL_OK;
    if (op->tail.kind == UCCL_TAIL_SET) {
        uint64_t value = word_of(me->to, (unsigned)(op->tail.offset - (uint64_t)SLOTS * SLOT_BYTES) / 8);
        if ((value == op->tail.value) != done)
            machine_fail("the signal of %s %u of node %u on node %u is %s, which ended with %d",
                         op->write ? "write" : "read", op->number, me->from, me->to, done ? "not there" : "there",
                         status);
    } else if (op->tail.kind == UCCL_TAIL_ADD && done) {
        world.region[me->to].added += op->tail.value;
    }
}

static void judge(struct initiator *me, struct operation *op, int status, size_t bytes)
{
    bool done = status == UCCL_OK;
    const struct published *published = &world.region[me->to].exports[op->use];
    bool revoked = published->life != op->life || published->revoked;
    if (op->refused ? status != UCCL_EACCESS && !(op->cancelled && status == UCCL_ECANCELED)
                    : !done && !(op->cancelled && status == UCCL_ECANCELED) && !(revoked || world.revokes))
        machine_fail("operation %u of node %u on node %u ended with %d", op->number, me->from, me->to, status);
    if (!done && status != UCCL_EACCESS && status != UCCL_ECANCELED)
        machine_fail("operation %u of node %u on node %u ended with %d", op->number, me->from, me->to, status);
    if (bytes != (done ? (size_t)op->slots * SLOT_BYTES : 0))
        machine_fail("an operation moved %zu bytes", bytes);
    if (world.op_ns && machine.now_ns - op->begun_ns > world.op_ns)
        machine_fail("operation %u of node %u on node %u took %.3f ms", op->number, me->from, me->to,
                     (double)(machine.now_ns - op->begun_ns) / 1e6);
    check_sealed(op, me->to);
    if (op->write)
        check_written(op, me->to, done);
    for (unsigned i = 0; done && !op->write && i < op->slots; i++) {
        if (memcmp(op->local + (size_t)i * SLOT_BYTES, slot_at(world.region[me->to].shadow, op->slot[i]), SLOT_BYTES))
            machine_fail("a read of slot %u brought other bytes", op->slot[i]);
    }
    judge_signal(me, op, status);
    if (op->noted && !done)
        machine_fail("%s %u has notified, and ended with %d", op->write ? "write" : "read", op->number, status);
    if (op->tail.kind == UCCL_TAIL_NOTIFY && done)
        me->notes_expected++;
}

/* Looks at one operation. */
static void poll_op(struct initiator *me, struct operation *op)
{
    int done = 0;
    size_t bytes = 0;
    if (op->request) {
        int status = uccl_test(op->request, &done, &bytes);
        if (!done)
            return;
        op->request = NULL;
        op->status_seen = (uint8_t)-status;
        judge(me, op, status, bytes);
    }
    /* its slots stay as they are until its notification has been judged */
    if (op->tail.kind == UCCL_TAIL_NOTIFY && op->status_seen == 0 && !op->noted)
        return;
    leave_slots(op, me->to);
    check_idle(me->to);
    int error = uccl_remote_free(op->remote);
    if (error)
        machine_fail("freeing a remote returned %d", error);
    if (op->sealed)
        sim_free(op->sealed_bytes);
    op->live = false;
    me->ended++;
}

static void send_note(struct initiator *me)
{
    uccl_request *request;
    struct note_text text = {me->from, me->notes_sent++, UINT32_MAX};
    int error;
    while ((error = uccl_notify_async(me->conn, &text, sizeof text, &request)) == UCCL_EAGAIN)
        machine_sleep(NS_PER_US);
    if (error)
        machine_fail("a notification returned %d", error);
    me->notes_expected++;
    if ((error = uccl_wait(request, -1, NULL)) != UCCL_OK)
        machine_fail("a notification ended with %d", error);
}

static void initiator_main(struct initiator *me)
{
    while (me->ended < OPS) {
        for (unsigned i = 0; i < LIVE; i++) {
            struct operation *op = &me->ops[i];
            if (op->live)
                poll_op(me, op);
            else if (me->begun < OPS)
                begin(me, i);
        }
        if (cluster_random(40) == 0)
            send_note(me);
        machine_sleep(cluster_random(world.gap_ns));
    }
    uccl_request *request;
    int error;
    while ((error = uccl_quiet_async(me->conn, &request)) == UCCL_EAGAIN)
        machine_sleep(NS_PER_US);
    if (error || (error = uccl_wait(request, -1, NULL)))
        machine_fail("quiet ended with %d", error);
    me->over = true;
    world.over++;
}

/* ---- notifications ----------------------------------------------------------------------------- */

static bool take_note(const struct node *node)
{
    struct note_text text;
    size_t length;
    uccl_conn *from;
    int error = uccl_notify_next(node->engine, &text, sizeof text, &length, &from);
    if (error == UCCL_EAGAIN)
        return false;
    if (error || length != sizeof text || text.from >= world.nodes)
        machine_fail("taking a notification returned %d, %zu bytes", error, length);
    struct initiator *sender = &world.initiator[text.from][node->index];
    if (text.number < sender->notes_next || text.number >= sender->notes_sent)
        machine_fail("notification %u came after %u", text.number, sender->notes_next);
    sender->notes_next = text.number + 1;
    sender->notes_taken++;
    if (text.slot_index == UINT32_MAX)
        return true;
    struct operation *op = &sender->ops[text.slot_index];
    if (!op->live || op->noted || op->tail.kind != UCCL_TAIL_NOTIFY)
        machine_fail("a notification of no operation");
    if (op->write)
        check_written(op, node->index, true);
    op->noted = true;
    return true;
}

static void notes_main(struct node *node, unsigned index)
{
    (void)index;
    while (!world.stop) {
        while (take_note(node))
            ;
        machine_sleep(cluster_random((cluster_random(8) ? 30 : 3000) * NS_PER_US));
    }
    while (take_note(node))
        ;
}

/* ---- exports ----------------------------------------------------------------------------------- */

static void publish(unsigned node, unsigned index)
{
    struct region *region = &world.region[node];
    struct published *published = &region->exports[index];
    int error = uccl_export_mr(region->mr, region->bytes, REGION_BYTES, export_access[index], published->ref,
                               &published->exported);
    if (error)
        machine_fail("an export returned %d", error);
    published->life++;
    published->revoked = false;
}

static void revoke_one(unsigned node, unsigned index)
{
    struct published *published = &world.region[node].exports[index];
    int error;
    while ((error = uccl_revoke(published->exported, (int)cluster_random(3))) == UCCL_ETIMEDOUT)
        machine_sleep(cluster_random(100 * NS_PER_US));
    if (error)
        machine_fail("a revocation returned %d", error);
    published->revoked = true;
    for (unsigned from = 0; from < world.nodes; from++) {
        struct initiator *sender = &world.initiator[from][node];
        for (unsigned i = 0; i < LIVE; i++) {
            struct operation *op = &sender->ops[i];
            if (op->live && op->request && op->write && op->use == index && op->life == published->life && !op->sealed)
                seal(op, node);
        }
    }
    machine_sleep(cluster_random(500 * NS_PER_US));
    publish(node, index);
}

static void revoker_main(struct node *node, unsigned index)
{
    (void)index;
    while (!world.stop) {
        machine_sleep(cluster_random(4 * NS_PER_MS));
        revoke_one(node->index, cluster_random(EXPORTS));
    }
}

/* ---- beside sends ------------------------------------------------------------------------------ */

static void messages_main(struct node *node, unsigned index)
{
    enum { MESSAGES = 40, MOST = 60000 };
    unsigned to = index / 2 >= node->index ? index / 2 + 1 : index / 2;
    uccl_conn *conn = world.initiator[node->index][to].conn;
    uint8_t *bytes = sim_malloc(MOST);
    memset(bytes, 0, MOST);
    for (unsigned i = 0; i < MESSAGES; i++) {
        uccl_request *request;
        int error;
        while ((error = index % 2 ? uccl_recv_async(conn, bytes, MOST, NULL, &request)
                                  : uccl_send_async(conn, bytes, cluster_random(MOST), NULL, &request)) == UCCL_EAGAIN)
            machine_sleep(NS_PER_US);
        if (error || (error = uccl_wait(request, -1, NULL)))
            machine_fail("a message beside them ended with %d", error);
    }
    sim_free(bytes);
}

/* ---- the script -------------------------------------------------------------------------------- */

static void initiate(struct node *node, unsigned to)
{
    initiator_main(&world.initiator[node->index][to]);
}

static void meet(struct node *node)
{
    for (unsigned to = 0; to < node->index; to++) {
        struct initiator *me = &world.initiator[node->index][to];
        while (!cluster.nodes[to].known)
            machine_sleep(10 * NS_PER_US);
        struct uccl_handle handle = cluster.nodes[to].handle;
        uint32_t hello = node->index;
        uccl_request *request;
        int error = uccl_connect(node->engine, &handle, DIAL_LIMIT_MS, &me->conn);
        if (error || uccl_notify_async(me->conn, &hello, sizeof hello, &request) || uccl_wait(request, -1, NULL))
            machine_fail("node %u cannot connect to node %u: %d", node->index, to, error);
    }
    for (unsigned i = node->index + 1; i < world.nodes; i++) {
        uccl_conn *conn, *from;
        uint32_t hello;
        int error = uccl_accept(node->listener, DIAL_LIMIT_MS, &conn);
        if (error)
            machine_fail("node %u accepts nobody: %d", node->index, error);
        while ((error = uccl_notify_next(node->engine, &hello, sizeof hello, NULL, &from)) == UCCL_EAGAIN)
            machine_sleep(10 * NS_PER_US);
        if (error || hello >= world.nodes)
            machine_fail("a hello returned %d", error);
        world.initiator[node->index][hello].conn = from;
    }
}

static void script(struct node *node)
{
    struct region *region = &world.region[node->index];
    for (size_t i = 0; i < REGION_BYTES; i++)
        region->bytes[i] = region->shadow[i] = i < (size_t)SLOTS * SLOT_BYTES ? content(node->index, i) : 0;
    if (uccl_reg_mr(node->engine, region->bytes, REGION_BYTES, UCCL_MEM_HOST, &region->mr))
        machine_fail("a registration failed");
    if (world.places &&
        uccl_reg_mr(node->engine, locals[node->index], sizeof locals[0], UCCL_MEM_HOST, &region->locals))
        machine_fail("a registration failed");
    for (unsigned i = 0; i < EXPORTS; i++)
        publish(node->index, i);
    meet(node);
    world.ready++;
    while (world.ready < world.nodes)
        machine_sleep(10 * NS_PER_US);
    for (unsigned to = 0; to < world.nodes; to++) {
        if (to != node->index)
            node_spawn(node, initiate, to);
    }
    node_spawn(node, notes_main, 0);
    if (world.revokes)
        node_spawn(node, revoker_main, 0);
    for (unsigned i = 0; i < 2 * (world.nodes - 1); i++)
        node_spawn(node, messages_main, i);
    while (world.over < world.nodes * (world.nodes - 1))
        machine_sleep(100 * NS_PER_US);
    machine_sleep(20 * NS_PER_MS);
    world.stop = true;
    while (node->helpers)
        machine_sleep(10 * NS_PER_US);
    check_idle(node->index);
    if (word_of(node->index, 0) != region->added)
        machine_fail("node %u: %llu was added, not %llu", node->index, (unsigned long long)word_of(node->index, 0),
                     (unsigned long long)region->added);
    for (unsigned to = 0; to < world.nodes; to++) {
        struct initiator *me = &world.initiator[node->index][to];
        if (me->notes_taken != me->notes_expected)
            machine_fail("node %u took %u notifications of node %u, not %u", to, me->notes_taken, node->index,
                         me->notes_expected);
    }
    uint64_t placed = 0;
    if (world.places_surely && (uccl_counter_by_name(node->engine, "rx_placed", &placed) || placed == 0))
        machine_fail("the NIC of node %u has placed nothing", node->index);
    world.finished++;
    while (world.finished < world.nodes) /* closing earlier would end what is judged */
        machine_sleep(10 * NS_PER_US);
    for (unsigned i = 0; i < EXPORTS; i++) {
        if (uccl_revoke(region->exports[i].exported, -1))
            machine_fail("a last revocation failed");
    }
    int error;
    while ((error = uccl_dereg_mr(region->mr)) == UCCL_EAGAIN)
        machine_sleep(10 * NS_PER_US);
    if (error || (world.places && (error = uccl_dereg_mr(region->locals))))
        machine_fail("a deregistration returned %d", error);
    for (unsigned to = 0; to < world.nodes; to++) {
        if (to == node->index)
            continue;
        if ((error = uccl_conn_close(world.initiator[node->index][to].conn)))
            machine_fail("a close returned %d", error);
    }
}

void onesided_scenario(struct cluster_options *options, struct rng *rng)
{
    memset(&world, 0, sizeof world);
    world.nodes = 2 + rng_below(rng, NODES - 1);
    world.gap_ns = 50 * NS_PER_US;
    world.cancels = rng_below(rng, 2);
    world.revokes = rng_below(rng, 2);
    for (unsigned from = 0; from < world.nodes; from++) {
        for (unsigned to = 0; to < world.nodes; to++) {
            world.initiator[from][to].from = from;
            world.initiator[from][to].to = to;
            for (unsigned i = 0; from != to && i < LIVE; i++)
                world.initiator[from][to].ops[i].local = locals[from][to][i];
        }
    }
    options->script = script;
    options->script_ns = UINT64_C(60000) * NS_PER_MS;
    options->nodes = world.nodes;
    options->sessions = 0;
    options->params.stripe_min_kb = 64;
    options->params.num_engines = 3;
    options->nic.in_place = rng_below(rng, 2);
    unsigned loss_ppm = 1000u << rng_below(rng, 5);
    options->fabric.loss_ppm = rng_below(rng, 2) * loss_ppm;
    options->fabric.reorder_ppm = rng_below(rng, 2) * 20000;
    options->fabric.reorder_ns = 1u << (14 + rng_below(rng, 6));
    options->fabric.duplicate_ppm = rng_below(rng, 2) * 20000;
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 8972;
}

/* NICs write to exported memory and to that of reads by themselves, over queue pairs that lose, fail and are cut off.
 */
void onesided_direct(struct cluster_options *options, struct rng *rng)
{
    onesided_scenario(options, rng);
    world.places = true;
    options->params.packet_lifetime_ms = 20;
    options->params.qp_retry_ms = 1;
    options->params.qp_depth = 64u << rng_below(rng, 3);
    options->params.port_entropy = 1 + rng_below(rng, 4);
    options->nic.in_place = false;
    options->nic.queue_pairs = true;
    options->nic.open_fail_ppm = rng_below(rng, 2) * 100000;
    options->nic.fail_ppm = rng_below(rng, 2) ? 1000u << rng_below(rng, 4) : 0;
    options->nic.work_ns = 1u << (6 + rng_below(rng, 10));
    options->nic.drain_ns = 1u << (10 + rng_below(rng, 12));
    options->nic.datagram_bytes = 1024u << rng_below(rng, 3);
    world.places_surely = !options->nic.open_fail_ppm && !options->nic.fail_ppm && !options->fabric.loss_ppm;
}

/* Several rails, of which one at a time is cut: the device of a node is gone, or packets vanish, in both directions or
 * in one. */
static void with_rails(struct cluster_options *options, struct rng *rng)
{
    options->nic.nics = 2 + rng_below(rng, NICS_MAX - 1);
    options->params.nic_dead_ms = 10 + rng_below(rng, 100);
    uint64_t at_ns = rng_below(rng, 6 * NS_PER_MS);
    for (unsigned i = 1 + rng_below(rng, NIC_CUTS_MAX); i > 0; i--) {
        unsigned nic = rng_below(rng, options->nic.nics), node = rng_below(rng, world.nodes);
        unsigned kind = rng_below(rng, 3);
        uint32_t most_ns = (uint32_t)((rng_below(rng, 4) ? 20 : 300) * NS_PER_MS);
        uint64_t end_ns = at_ns + 1 + rng_below(rng, most_ns);
        if (kind == 0)
            options->nic.cuts[options->nic.cut_count++] =
                (struct nic_cut){.node = (uint16_t)node, .nic = (uint8_t)nic, .begin_ns = at_ns, .end_ns = end_ns};
        else
            options->fabric.outages[options->fabric.outage_count++] =
                (struct outage){.from = kind == 1 ? FABRIC_ANY : (uint16_t)node,
                                .to = FABRIC_ANY,
                                .path = FABRIC_ANY,
                                .begin_ns = at_ns,
                                .end_ns = end_ns,
                                .nic = (uint8_t)(nic + 1)};
        at_ns = end_ns + rng_below(rng, 20 * NS_PER_MS);
    }
    world.places_surely = false;
    world.gap_ns = 1000 * NS_PER_US; /* some cuts end before the operations do */
    world.op_ns = OP_NS;
}

void onesided_rails(struct cluster_options *options, struct rng *rng)
{
    onesided_scenario(options, rng);
    with_rails(options, rng);
}

void onesided_direct_rails(struct cluster_options *options, struct rng *rng)
{
    onesided_direct(options, rng);
    with_rails(options, rng);
}
