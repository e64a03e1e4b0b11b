/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gone.h"
#include "core/flow.h"
#include "core/state.h"

static struct conn **bucket_of(struct flow *flow, uint32_t remote_id)
{
    /* multiplicative hashing (Knuth, TAOCP 3, 6.4) under a secret odd multiplier */
    return &flow->gone.by_remote[((remote_id ^ flow->gone.key >> 8) * (flow->gone.key | 1)) >> 24];
}
_Static_assert(GONE_BUCKETS == 1 << 8, "the hash has 8 bits");

void gone_add_conn(struct conn *conn)
{
    struct conn **bucket = bucket_of(conn->flow, conn->remote_id);
    conn->next_remote = *bucket;
    conn->remote_link = bucket;
    if (*bucket)
        (*bucket)->remote_link = &conn->next_remote;
    *bucket = conn;
}

void gone_remove_conn(struct conn *conn)
{
    *conn->remote_link = conn->next_remote; /* thousands of connections share a bucket: no look at the others */
    if (conn->next_remote)
        conn->next_remote->remote_link = conn->remote_link;
}

/* Where the FIN of a connection is remembered: a connection and its annexes share their index. */
static struct gone_fin *fin_slot(struct flow *flow, uint32_t id)
{
    return &flow->gone.fins[(id + (id >> CORE_ANNEX_SHIFT) % (1 << CORE_ANNEX_BITS)) % GONE_FINS];
}

unsigned gone_room(const struct flow *flow)
{
    return GONE_IDS - flow->gone.count;
}

void gone_await_fin(const struct conn *conn)
{
    *fin_slot(conn->flow, conn->local_id) = (struct gone_fin){.seq = conn->fin_seq, .id = conn->local_id, .used = true};
}

/* The FIN that is known of a connection, or NULL. */
static struct gone_fin *fin_of(struct flow *flow, uint32_t id)
{
    struct gone_fin *fin = fin_slot(flow, id);
    return fin->used && fin->id == id ? fin : NULL;
}

static bool fin_on_its_way(struct flow *flow, uint32_t id)
{
    const struct gone_fin *fin = fin_of(flow, id);
    return fin && (fin->queued || (!fin->kept && !sent_is_acked(&flow->sent, fin->seq)));
}

void gone_keep_fin(struct conn *conn, const struct wire_credit *credit)
{
    struct flow *flow = conn->flow;
    *fin_slot(flow, conn->local_id) =
        (struct gone_fin){.credit = *credit, .id = conn->local_id, .used = true, .kept = true};
    if (flow_proven(flow)) /* else the peer may not exist; if it does, gone_send_fins() is called */
        gone_answer(flow, conn->local_id);
}

void gone_send_fins(struct flow *flow)
{
    for (unsigned i = 0; i < GONE_FINS; i++) {
        const struct gone_fin *fin = &flow->gone.fins[i];
        if (fin->used && fin->kept)
            gone_answer(flow, fin->id);
    }
}

void gone_answer(struct flow *flow, uint32_t id)
{
    struct gone *gone = &flow->gone;
    if (fin_on_its_way(flow, id))
        return;
    if (gone->count && gone->ids[(gone->first + gone->count - 1) % GONE_IDS] == id)
        return; /* several frames of one packet name it */
    if (gone->count == GONE_IDS)
        return;
    struct gone_fin *fin = fin_of(flow, id);
    if (fin)
        fin->queued = fin->kept;
    gone->ids[(gone->first + gone->count++) % GONE_IDS] = id;
    flow_wake(flow);
}

bool gone_fin_left(const struct conn *conn, uint64_t *seq)
{
    const struct gone_fin *fin = fin_of(conn->flow, conn->local_id);
    if (!fin || fin->kept)
        return false;
    *seq = fin->seq;
    return true;
}

bool gone_bars_data_qps(const struct conn *conn)
{
    struct gone_fin *fin = fin_of(conn->flow, conn->local_id);
    if (!fin || !fin->kept)
        return false;
    conn->flow->gone.barring += !fin->bars;
    fin->bars = true;
    return true;
}

static unsigned put_kept_fin(struct flow *flow, struct gone_fin *fin, uint8_t *at, uint64_t seq)
{
    struct wire_credit credit = fin->credit;
    flow->gone.barring -= fin->bars;
    if (fin->bars && flow->qps.barred_until < seq + 1)
        flow->qps.barred_until = seq + 1;
    fin->bars = false;
    unsigned bytes = wire_put_credit(at, &credit);
    fin->kept = fin->queued = false;
    fin->seq = seq;
    return bytes + wire_put_fin(at + bytes, &(struct wire_fin){credit.conn, true, true});
}

unsigned gone_put(struct flow *flow, uint8_t *at, uint32_t room, uint64_t seq, unsigned *frames)
{
    struct gone *gone = &flow->gone;
    unsigned bytes = 0;
    *frames = 0;
    for (unsigned i = 0; i < GONE_PER_PACKET_MAX && gone->count; i++) {
        uint32_t id = gone->ids[gone->first];
        struct gone_fin *fin = fin_of(flow, id);
        bool kept = fin && fin->kept;
        if (room - bytes < (kept ? WIRE_CREDIT_BYTES + WIRE_FIN_BYTES : WIRE_GONE_BYTES))
            break;
        if (kept) {
            bytes += put_kept_fin(flow, fin, at + bytes, seq);
            *frames += 2;
        } else {
            bytes += wire_put_gone(at + bytes, &(struct wire_gone){id});
            *frames += 1;
        }
        gone->first = (gone->first + 1) % GONE_IDS;
        gone->count--;
    }
    return bytes;
}

struct conn *gone_find(struct flow *flow, uint32_t remote_id)
{
    struct conn *conn = *bucket_of(flow, remote_id);
    while (conn && conn->remote_id != remote_id)
        conn = conn->next_remote;
    return conn;
}
