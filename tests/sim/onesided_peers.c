/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations with peers that are killed, stop, or lie. Two nodes have a session after another: a connection,
 * and at each end a slice of memory that is exported for it alone. The checker knows of each byte of a slice when it
 * may change:
 *   - in a slot with an operation under way each byte is the old one or the new one, whatever becomes of the initiator;
 *   - a word that has the value of an operation's signal stands behind all bytes of that operation;
 *   - once the export is revoked nothing changes any more, and the node uses the slice for other things.
 * An operation that has ended without error has moved all its bytes. One may end with an error only if its peer was
 * killed, has stopped, has ended the session, or lies. What a liar does shows in its own sessions alone.
 */
#include "service.h"

#include "../lies.h"
#include "core/units.h"
#include "seam.h"

#include "../../api/objects.h"

#define NOBODY UINT32_MAX

enum {
    NODES = 4,
    LIVE = 3, /* operations of one end at once, each with its own slots */
    SLOTS = 2 * LIVE,
    SLOT_BYTES = 90000,                           /* large ones are striped */
    SLICE_BYTES = SLOTS * SLOT_BYTES + SLOTS * 8, /* a word for each slot */
    SLICE_STRIDE = (SLICE_BYTES + 63) / 64 * 64,
    OPS = 24, /* that one node is to complete at another, in all of its sessions */
    PIECES = 40,
    SESSIONS = 3000,
    LINKS = 64,
    DIAL_LIMIT_MS = 400,
    HELLO_LIMIT_MS = 2000,
};

/* What may happen to a slot. */
struct promise {
    bool live, write;
    uint32_t length; /* bytes from its beginning on */
    uint64_t key;    /* of the new ones */
    uint64_t word;   /* that may be there afterwards */
};

/* What one node exports to another. */
struct slice {
    uint8_t *bytes;
    uint8_t known[SLICE_BYTES]; /* when nothing is under way */
    struct promise promises[SLOTS];
    uint32_t session; /* that has it, or NOBODY */
    bool revoked;     /* or about to be */
};

struct operation {
    bool live, write, noted;
    unsigned slot, number;
    uccl_request *request;
    uccl_remote *remote;
    struct uccl_tail tail;
    bool good; /* it has completed without error */
};

struct meeting {
    unsigned node[2], life[2];
    uccl_conn *conn[2];
    uint8_t ref[2][UCCL_REF_BYTES];
    bool offered[2]; /* its slice is exported */
    bool over[2];    /* posts no more, and all of its operations have completed */
    bool ended[2];   /* closes */
    bool lies;       /* one of its ends does */
    unsigned notes_sent[2], notes_next[2];
    struct operation ops[2][LIVE];
};

/* A connection of a node, as its notifications name it. */
struct link {
    uccl_conn *conn;
    uint32_t session;
};

static struct {
    unsigned nodes, session_count;
    uint64_t next_key, gap_ns;
    bool stops;
    struct meeting sessions[SESSIONS];
    struct slice slices[NODES][NODES]; /* of a node, for another */
    struct link links[NODES][LINKS];
    uccl_mr *mr[NODES];
    unsigned done[NODES][NODES];
} world;

static _Alignas(64) uint8_t memory[NODES][NODES][SLICE_STRIDE];
static _Alignas(64) uint8_t locals[NODES][NODES][LIVE][SLOT_BYTES];

enum note_kind { NOTE_HELLO, NOTE_TAIL };
struct note_text {
    uint32_t kind, session, side, op, number;
};

/* ---- the checker ------------------------------------------------------------------------------- */

static uint64_t word_in(const uint8_t *bytes, unsigned slot)
{
    uint64_t value;
    memcpy(&value, bytes + (size_t)SLOTS * SLOT_BYTES + 8 * slot, sizeof value);
    return value;
}

static void set_word(uint8_t *bytes, unsigned slot, uint64_t value)
{
    memcpy(bytes + (size_t)SLOTS * SLOT_BYTES + 8 * slot, &value, sizeof value);
}

/* `whole`: the operation has taken effect. */
static void check_slot(const struct slice *slice, unsigned slot, bool whole)
{
    const struct promise *promise = &slice->promises[slot];
    const uint8_t *now = slice->bytes + (size_t)slot * SLOT_BYTES, *known = slice->known + (size_t)slot * SLOT_BYTES;
    uint64_t word = word_in(slice->bytes, slot), before = word_in(slice->known, slot);
    if (word != before && !(promise->live && word == promise->word))
        machine_fail("word %u is %llx, not %llx", slot, (unsigned long long)word, (unsigned long long)before);
    if (promise->live && word == promise->word && word != before)
        whole = true;
    else if (whole && promise->word != before)
        machine_fail("word %u is not there", slot);
    size_t fresh = promise->live && promise->write ? promise->length : 0;
    for (size_t at = 0; at < fresh; at++) {
        if (now[at] != content(promise->key, at) && (whole || now[at] != known[at]))
            machine_fail("byte %zu of slot %u is %02x, not %02x%s", at, slot, now[at], content(promise->key, at),
                         whole ? "" : ", nor what it was");
    }
    if (memcmp(now + fresh, known + fresh, SLOT_BYTES - fresh) != 0)
        machine_fail("slot %u changed on its own", slot);
}

/* What is there stays there. */
static void settle_slot(struct slice *slice, unsigned slot)
{
    size_t at = (size_t)slot * SLOT_BYTES;
    memcpy(slice->known + at, slice->bytes + at, SLOT_BYTES);
    set_word(slice->known, slot, word_in(slice->bytes, slot));
    slice->promises[slot] = (struct promise){0};
}

static void check_slice(const struct slice *slice)
{
    for (unsigned slot = 0; slot < SLOTS; slot++)
        check_slot(slice, slot, false);
}

/* The node has its slice back, and uses it for other things. */
static void use_again(struct slice *slice)
{
    uint64_t key = ++world.next_key << 32;
    memset(slice->promises, 0, sizeof slice->promises);
    for (size_t at = 0; at < SLICE_BYTES; at++)
        slice->bytes[at] = slice->known[at] = content(key, at);
    machine_sleep(cluster_random((cluster_random(8) ? 100 : 5000) * NS_PER_US));
    check_slice(slice);
}

/* ---- sessions ---------------------------------------------------------------------------------- */

static bool is_over(void)
{
    for (unsigned from = 0; from < world.nodes; from++) {
        for (unsigned to = 0; to < world.nodes; to++) {
            if (from != to && !cluster_hostile_node(from) && !cluster_hostile_node(to) && world.done[from][to] < OPS)
                return false;
        }
    }
    return true;
}

static struct meeting *session_at(uint32_t number)
{
    return &world.sessions[number];
}

static bool is_gone(const struct meeting *session, unsigned side)
{
    const struct node *node = &cluster.nodes[session->node[side]];
    return !node->up || node->life != session->life[side] || session->ended[side];
}

/* The session is the one that has the slice, and may have what it asks for. */
static bool has_slice(const struct meeting *session, const struct slice *slice)
{
    return slice->session == session - world.sessions && !slice->revoked;
}

static struct slice *slice_of(const struct meeting *session, unsigned side)
{
    return &world.slices[session->node[side]][session->node[!side]];
}

/* Of a connection that may have no entry yet. */
static struct link *link_of(const struct node *node, uccl_conn *conn)
{
    struct link *links = world.links[node->index], *free = NULL;
    for (unsigned i = LINKS; i-- > 0;) {
        if (links[i].conn == conn)
            return &links[i];
        if (!links[i].conn)
            free = &links[i];
    }
    if (!free)
        machine_fail("node %u has too many connections", node->index);
    *free = (struct link){conn, NOBODY};
    return free;
}

static bool is_liar(const uccl_conn *conn)
{
    const struct node *liar = cluster.options.hostile ? &cluster.nodes[cluster.options.hostile - 1] : NULL;
    return liar && liar->engine && memcmp(conn->peer->engine_id, liar->engine->id, 16) == 0;
}

/* ---- operations -------------------------------------------------------------------------------- */

struct end {
    struct node *node;
    struct meeting *session;
    unsigned side, begun, planned;
    bool failed;
    uint64_t patient_ns; /* until then */
};

static unsigned cut(const struct operation *op, uint8_t *local, size_t length, struct uccl_piece *pieces)
{
    unsigned count = 0;
    uint32_t most = cluster_random(2) ? SLOT_BYTES : 1 + cluster_random(3000);
    for (size_t at = 0; at < length;) {
        size_t bytes = most == SLOT_BYTES ? length : 1 + cluster_random(most);
        if (bytes > length - at || count == PIECES - 1)
            bytes = length - at;
        pieces[count++] = (struct uccl_piece){
            .local = local + at, .length = bytes, .remote = op->remote, .offset = (uint64_t)op->slot * SLOT_BYTES + at};
        at += bytes;
    }
    return count;
}

static void plan_tail(struct end *end, struct operation *op, unsigned index, struct note_text *text)
{
    struct meeting *session = end->session;
    struct slice *slice = slice_of(session, !end->side);
    struct promise *promise = &slice->promises[op->slot];
    uint64_t before = word_in(slice->known, op->slot);
    promise->word = before;
    op->tail = (struct uccl_tail){.remote = op->remote, .offset = (uint64_t)SLOTS * SLOT_BYTES + 8 * op->slot};
    switch (cluster_random(4)) {
    case 0:
        *text = (struct note_text){NOTE_TAIL, (uint32_t)(session - world.sessions), end->side, index, 0};
        text->number = op->number = session->notes_sent[end->side]++;
        op->tail = (struct uccl_tail){.kind = UCCL_TAIL_NOTIFY, .bytes = text, .length = sizeof *text};
        break;
    case 1:
        op->tail.kind = UCCL_TAIL_SET;
        op->tail.value = promise->word = ++world.next_key;
        break;
    case 2:
        op->tail.kind = UCCL_TAIL_ADD;
        op->tail.value = 1 + cluster_random(1000);
        promise->word = before + op->tail.value;
        break;
    default:
        break;
    }
}

/* The call was not made after all. */
static void take_back(struct end *end, struct operation *op, int error)
{
    if (error != UCCL_EPEERDEAD && error != UCCL_ECLOSED && !end->session->lies)
        machine_fail("posting an operation returned %d", error);
    slice_of(end->session, !end->side)->promises[op->slot] = (struct promise){0};
    uccl_remote_free(op->remote);
    *op = (struct operation){0};
    end->failed = true;
}

static void begin(struct end *end, unsigned index)
{
    struct meeting *session = end->session;
    struct operation *op = &session->ops[end->side][index];
    struct slice *slice = slice_of(session, !end->side);
    uccl_conn *conn = session->conn[end->side];
    uint8_t *local = locals[session->node[end->side]][session->node[!end->side]][index];
    struct uccl_piece pieces[PIECES];
    struct note_text text;
    uccl_remote *remote;
    int error = uccl_import(conn, session->ref[!end->side], &remote);
    if (error) /* the reference does not lie: it came another way */
        machine_fail("an import returned %d", error);
    if (!session->lies && (!has_slice(session, slice) || is_gone(session, !end->side))) {
        uccl_remote_free(remote);
        end->failed = true;
        return;
    }
    *op = (struct operation){.slot = 2 * index + cluster_random(2), .remote = remote};
    op->write = cluster_random(3) > 0;
    uint32_t length = cluster_random(3) ? SLOT_BYTES : cluster_random(SLOT_BYTES);
    struct promise *promise = &slice->promises[op->slot];
    *promise = (struct promise){.live = true, .write = op->write, .length = length, .key = ++world.next_key << 32};
    for (size_t at = 0; at < length; at++)
        local[at] = op->write ? content(promise->key, at) : 0x5a;
    unsigned count = cut(op, local, length, pieces);
    plan_tail(end, op, index, &text);
    op->live = true;
    end->begun++;
    while ((error = (op->write ? uccl_write_async : uccl_read_async)(
                conn, pieces, count, op->tail.kind ? &op->tail : NULL, &op->request)) == UCCL_EAGAIN)
        machine_sleep(NS_PER_US);
    if (error)
        take_back(end, op, error);
}

static void judge(struct end *end, struct operation *op, unsigned index, int status)
{
    struct meeting *session = end->session;
    struct slice *slice = slice_of(session, !end->side);
    const struct promise *promise = &slice->promises[op->slot];
    bool current = has_slice(session, slice), given_up = !current || is_gone(session, !end->side) || world.stops;
    if (status != UCCL_OK) {
        end->failed = true;
        bool known = status == UCCL_EACCESS || status == UCCL_ECLOSED || status == UCCL_EPEERDEAD;
        if (!known || !given_up)
            machine_fail("operation in slot %u of node %u on node %u ended with %d", op->slot, session->node[end->side],
                         session->node[!end->side], status);
        return;
    }
    op->good = true;
    world.done[session->node[end->side]][session->node[!end->side]]++;
    if (!current)
        return;
    const uint8_t *local = locals[session->node[end->side]][session->node[!end->side]][index];
    check_slot(slice, op->slot, true);
    if (!op->write && memcmp(local, slice->known + (size_t)op->slot * SLOT_BYTES, promise->length) != 0)
        machine_fail("a read of slot %u brought other bytes", op->slot);
}

/* Looks at one operation. */
static void poll_op(struct end *end, unsigned index)
{
    struct meeting *session = end->session;
    struct operation *op = &session->ops[end->side][index];
    struct slice *slice = slice_of(session, !end->side);
    if (op->request) {
        int done = 0, status = uccl_test(op->request, &done, NULL);
        if (!done)
            return;
        op->request = NULL;
        if (session->lies)
            end->failed |= status != UCCL_OK;
        else
            judge(end, op, index, status);
    }
    /* its slot stays as it is until its notification has been judged */
    if (op->tail.kind == UCCL_TAIL_NOTIFY && op->good && !op->noted && has_slice(session, slice) &&
        !is_gone(session, !end->side) && !end->failed)
        return;
    bool judged = op->tail.kind != UCCL_TAIL_NOTIFY || op->noted;
    if (op->good && judged && has_slice(session, slice))
        settle_slot(slice, op->slot); /* after an error the bytes may come yet */
    int error = uccl_remote_free(op->remote);
    if (error)
        machine_fail("freeing a remote returned %d", error);
    op->live = false;
}

static bool some_live(const struct end *end)
{
    for (unsigned i = 0; i < LIVE; i++) {
        if (end->session->ops[end->side][i].live)
            return true;
    }
    return false;
}

static void poll_all(struct end *end)
{
    for (unsigned i = 0; i < LIVE; i++) {
        if (end->session->ops[end->side][i].live)
            poll_op(end, i);
    }
}

static void operate(struct end *end)
{
    uint64_t end_ns = machine.now_ns + (end->session->lies ? cluster_random(100u * NS_PER_MS) : UINT64_MAX / 2);
    while (machine.now_ns < end_ns) {
        bool more = end->begun < end->planned && !end->failed && !is_gone(end->session, !end->side) && !is_over();
        poll_all(end);
        for (unsigned i = 0; i < LIVE && more; i++) {
            if (!end->session->ops[end->side][i].live && end->begun < end->planned && !end->failed)
                begin(end, i);
        }
        if (!more && !some_live(end))
            return;
        machine_sleep(cluster_random((uint32_t)world.gap_ns));
    }
}

/* ---- one end of a session ------------------------------------------------------------------------ */

/* The session cannot go on. Of a liar nothing is known for certain, so that patience with it has an end. */
static bool is_dead(const struct end *end)
{
    return machine.now_ns > end->patient_ns || uccl_conn_status(end->session->conn[end->side]) != UCCL_OK ||
           is_gone(end->session, !end->side);
}

static void close_end(struct end *end)
{
    struct meeting *session = end->session;
    uccl_conn *conn = session->conn[end->side];
    session->ended[end->side] = true;
    link_of(end->node, conn)->conn = NULL; /* its address may come again */
    int error = cluster_random(2) ? uccl_conn_close(conn) : uccl_conn_abort(conn);
    if (error)
        machine_fail("a close returned %d", error);
    for (end->failed = true; some_live(end); machine_sleep(10 * NS_PER_US)) {
        for (unsigned i = 0; i < LIVE; i++) { /* what a close has ended */
            struct operation *op = &session->ops[end->side][i];
            int done = 0, status = op->request ? uccl_test(op->request, &done, NULL) : UCCL_OK;
            if (!op->live || (op->request && !done))
                continue;
            if (!session->lies && status != UCCL_OK && status != UCCL_ECANCELED && status != UCCL_EACCESS &&
                status != UCCL_EPEERDEAD && status != UCCL_ECLOSED)
                machine_fail("a closed operation ended with %d", status);
            uccl_remote_free(op->remote);
            op->live = false;
        }
    }
}

static void take_slice_back(struct end *end, uccl_export *exported)
{
    struct slice *slice = slice_of(end->session, end->side);
    int error;
    slice->revoked = true;
    while ((error = uccl_revoke(exported, (int)cluster_random(3))) == UCCL_ETIMEDOUT)
        machine_sleep(cluster_random(100 * NS_PER_US));
    if (error)
        machine_fail("a revocation returned %d", error);
    if (!end->session->lies)
        check_slice(slice);
    use_again(slice);
}

static void run_end(struct node *node, struct meeting *session, unsigned side)
{
    struct end end = {.node = node, .session = session, .side = side};
    struct slice *slice = slice_of(session, side);
    uccl_export *exported = NULL;
    end.planned = 4 + cluster_random(40);
    end.patient_ns = session->lies ? machine.now_ns + HELLO_LIMIT_MS * (uint64_t)NS_PER_MS : UINT64_MAX;
    link_of(node, session->conn[side])->session = (uint32_t)(session - world.sessions);
    while (slice->session != NOBODY && !is_dead(&end)) /* a session before has not ended here */
        machine_sleep(20 * NS_PER_US);
    if (slice->session == NOBODY) {
        slice->session = (uint32_t)(session - world.sessions);
        slice->revoked = false;
        int error = uccl_export_mr(world.mr[node->index], slice->bytes, SLICE_BYTES,
                                   UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, session->ref[side], &exported);
        if (error)
            machine_fail("an export returned %d", error);
        session->offered[side] = true;
    }
    while (exported && !session->offered[!side] && !is_dead(&end))
        machine_sleep(20 * NS_PER_US);
    if (exported && session->offered[!side])
        operate(&end);
    session->over[side] = !some_live(&end);
    bool patient = cluster_random(4) && !end.failed && session->over[side];
    while (patient && !session->over[!side] && !is_dead(&end))
        machine_sleep(20 * NS_PER_US);
    bool revokes_first = cluster_random(2);
    if (exported && revokes_first)
        take_slice_back(&end, exported);
    close_end(&end);
    if (exported && !revokes_first)
        take_slice_back(&end, exported);
    if (exported)
        slice->session = NOBODY;
}

/* ---- fibers ------------------------------------------------------------------------------------- */

static struct meeting *new_session(struct node *node, unsigned to, uccl_conn *conn)
{
    if (world.session_count == SESSIONS)
        machine_fail("too many sessions");
    struct meeting *session = session_at(world.session_count++);
    session->node[0] = node->index;
    session->node[1] = to;
    session->life[0] = node->life;
    session->life[1] = cluster.nodes[to].life;
    session->conn[0] = conn;
    session->lies = cluster_hostile_node(node->index) || cluster_hostile_node(to);
    return session;
}

static void dial(struct node *node, unsigned to)
{
    while (!is_over()) {
        uccl_conn *conn;
        struct uccl_handle handle = cluster.nodes[to].handle;
        if (!cluster.nodes[to].known || uccl_connect(node->engine, &handle, DIAL_LIMIT_MS, &conn)) {
            machine_sleep(cluster_random(2 * NS_PER_MS));
            continue;
        }
        struct meeting *session = new_session(node, to, conn);
        struct note_text hello = {NOTE_HELLO, (uint32_t)(session - world.sessions), 0, 0, 0};
        uccl_request *request = NULL;
        int error;
        while ((error = uccl_notify_async(conn, &hello, sizeof hello, &request)) == UCCL_EAGAIN)
            machine_sleep(NS_PER_US);
        run_end(node, session, 0);
        if (request) /* it has ended with the connection */
            (void)uccl_wait(request, -1, NULL);
        machine_sleep(cluster_random(NS_PER_MS));
    }
}

static void serve(struct node *node, unsigned index)
{
    struct link *link = &world.links[node->index][index];
    uint64_t end_ns = machine.now_ns + HELLO_LIMIT_MS * (uint64_t)NS_PER_MS;
    while (link->session == NOBODY && !uccl_conn_status(link->conn) && machine.now_ns < end_ns)
        machine_sleep(20 * NS_PER_US);
    if (link->session != NOBODY) {
        run_end(node, session_at(link->session), 1);
    } else {
        uccl_conn *conn = link->conn;
        link->conn = NULL; /* its address may come again */
        int error = uccl_conn_close(conn);
        if (error)
            machine_fail("a close returned %d", error);
    }
}

static void accept_all(struct node *node, unsigned index)
{
    (void)index;
    while (!is_over()) {
        uccl_conn *conn;
        int error = uccl_accept(node->listener, 50, &conn);
        if (error == UCCL_OK)
            node_spawn(node, serve, (unsigned)(link_of(node, conn) - world.links[node->index]));
        else if (error != UCCL_ETIMEDOUT)
            machine_sleep(100 * NS_PER_US);
    }
}

static void take_hello(const struct node *node, uccl_conn *from, const struct note_text *text)
{
    struct meeting *session = text->session < world.session_count ? session_at(text->session) : NULL;
    bool fits = session && session->node[1] == node->index && !session->conn[1] &&
                is_liar(from) == cluster_hostile_node(session->node[0]);
    if (!fits && !is_liar(from))
        machine_fail("a hello of no session");
    if (!fits)
        return;
    session->conn[1] = from;
    session->life[1] = node->life;
    link_of(node, from)->session = text->session;
}

static void take_tail(const struct node *node, const uccl_conn *from, const struct note_text *text)
{
    struct meeting *session = session_at(text->session);
    if (text->session >= world.session_count || text->side > 1 || text->op >= LIVE ||
        session->node[!text->side] != node->index || session->conn[!text->side] != from)
        machine_fail("a notification of no session");
    if (text->number < session->notes_next[text->side] || text->number >= session->notes_sent[text->side])
        machine_fail("notification %u came after %u", text->number, session->notes_next[text->side]);
    session->notes_next[text->side] = text->number + 1;
    struct operation *op = &session->ops[text->side][text->op];
    const struct slice *slice = slice_of(session, !text->side);
    if (!has_slice(session, slice) || is_gone(session, text->side))
        return; /* it has been ended, and its slice is another's */
    if (op->noted || op->tail.kind != UCCL_TAIL_NOTIFY || op->number != text->number)
        machine_fail("a notification of no operation");
    check_slot(slice, op->slot, true);
    op->noted = true;
}

static void take_notes(struct node *node, unsigned index)
{
    (void)index;
    while (!is_over() || node->helpers > 1) {
        struct note_text text;
        size_t length;
        uccl_conn *from;
        int error = uccl_notify_next(node->engine, &text, sizeof text, &length, &from);
        if (error == UCCL_EAGAIN) {
            machine_sleep(cluster_random((cluster_random(8) ? 30 : 1000) * NS_PER_US));
            continue;
        }
        bool lies = cluster_hostile_node(node->index) || (cluster.options.hostile && from && is_liar(from));
        if (error == UCCL_ETRUNCATED && lies) {
            static uint8_t whole[UCCL_NOTIFY_MAX];
            error = uccl_notify_next(node->engine, whole, sizeof whole, &length, &from);
            if (!error)
                continue;
        }
        if (error || (!lies && length != sizeof text))
            machine_fail("taking a notification returned %d, %zu bytes", error, length);
        if (length == sizeof text && text.kind == NOTE_HELLO)
            take_hello(node, from, &text);
        else if (!lies)
            take_tail(node, from, &text);
    }
}

static void script(struct node *node)
{
    uccl_mr **mr = &world.mr[node->index];
    int error;
    memset(world.links[node->index], 0, sizeof world.links[0]);
    for (unsigned from = 0; from < world.nodes; from++) {
        struct slice *slice = &world.slices[node->index][from];
        slice->session = NOBODY;
        slice->bytes = memory[node->index][from];
        memset(slice->promises, 0, sizeof slice->promises);
        memset(slice->bytes, 0, SLICE_BYTES);
        memset(slice->known, 0, SLICE_BYTES);
    }
    if ((error = uccl_reg_mr(node->engine, memory[node->index], sizeof memory[0], UCCL_MEM_HOST, mr)))
        machine_fail("a registration returned %d", error);
    node_spawn(node, take_notes, 0);
    node_spawn(node, accept_all, 0);
    for (unsigned to = 0; to < node->index; to++)
        node_spawn(node, dial, to);
    while (node->helpers)
        machine_sleep(100 * NS_PER_US);
    uccl_listener_close(node->listener); /* and whom nobody has accepted */
    node->listener = NULL;
    while ((error = uccl_dereg_mr(*mr)) == UCCL_EAGAIN)
        machine_sleep(10 * NS_PER_US);
    if (error)
        machine_fail("a deregistration returned %d", error);
}

/* ---- scenarios ---------------------------------------------------------------------------------- */

static void begin_world(struct cluster_options *options, struct rng *rng)
{
    memset(&world, 0, sizeof world);
    world.nodes = options->nodes;
    world.gap_ns = 1u << (12 + rng_below(rng, 9));
    options->script = script;
    options->script_ns = UINT64_C(60000) * NS_PER_MS;
    options->sessions = 0;
    options->params.stripe_min_kb = 64;
    options->params.num_engines = 3;
    options->nic.in_place = rng_below(rng, 2);
    options->fabric.loss_ppm = rng_below(rng, 2) * 10000;
    options->fabric.duplicate_ppm = rng_below(rng, 2) * 20000;
    options->fabric.reorder_ppm = rng_below(rng, 2) * 20000;
    options->fabric.reorder_ns = 1u << (14 + rng_below(rng, 12)); /* what an old life sent meets the new one */
    if (rng_below(rng, 2))
        options->nic.datagram_bytes = 8972;
}

/* Processes are killed at any time, and come back. */
void onesided_crash(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 2 + rng_below(rng, 2);
    begin_world(options, rng);
    options->params.dead_peer_ms = 50 + rng_below(rng, 400);
    options->params.linger_ms = rng_below(rng, 200);
    options->crashes = 1 + rng_below(rng, CRASHES_MAX);
    options->crash_ns = 1u << (20 + rng_below(rng, 7));
    options->down_ns = 1u << (10 + rng_below(rng, 20));
}

/* Nodes stop and continue, some for so long that they are given up; also while a peer revokes what they write to. */
void onesided_stops(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 2 + rng_below(rng, 2);
    begin_world(options, rng);
    world.stops = true;
    options->params.dead_peer_ms = 100 + rng_below(rng, 200);
    options->params.linger_ms = rng_below(rng, 200);
    options->stops = 1 + rng_below(rng, 6);
    options->stop_ns = options->params.dead_peer_ms * 2 * NS_PER_MS;
    options->stop_gap_ns = options->params.dead_peer_ms * (NS_PER_MS / 8);
}

/* One of several lies to all others. */
void onesided_hostile(struct cluster_options *options, struct rng *rng)
{
    options->nodes = 3;
    begin_world(options, rng);
    options->hostile = 1 + rng_below(rng, options->nodes);
    options->lies_permille = 1u << rng_below(rng, 10);
    options->lie_gap_ns = 1u << (14 + rng_below(rng, 7));
    options->habit = (uint8_t)(rng_below(rng, 3) == 0 ? rng_below(rng, LIAR_HABITS) : LIAR_HONEST);
    options->params.dead_peer_ms = 1000 + rng_below(rng, 2000);
    options->params.linger_ms = rng_below(rng, 200);
    options->params.payload_crc = rng_below(rng, 2);
}
