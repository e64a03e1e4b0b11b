/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rail takes what. A flow with one rail has no choice. Of several:
 *
 * - Small messages and control frames take the main rail: the first of the caller's order that works. Another one takes
 *   them while the main one's window is full.
 * - A chunk of a large message takes the rail that has room and is likely to deliver it first. The rate of a rail is
 *   what its window delivers per round trip. So each rail gets what it can carry, and a message's end does not wait for
 *   a slow rail that has taken too much. Where some rails can write it, only these count: queue pairs place faster than
 *   datagrams are sent.
 * - Of a message that starts ahead of its clear-to-send the chunks take the main rail, if that has room, so that they
 *   do not overtake its leader.
 * - Where rails of connections stand beside those of datagrams, they carry large messages, each chunk by the one that
 *   is likely to deliver it first, and the rails of datagrams carry all else (tx_bulk_rail()). Each kind stands in for
 *   the other where no rail of that works.
 * - A lost chunk goes by its own rail again, if that one gets something through; else by another one that has room, if
 *   possible one whose datagrams are large enough. Connections that lose much take none from a rail of datagrams: a
 *   network that loses much has windows that are full, and timeouts, and connections are slower there.
 *
 * Where no rail is usable, those in doubt carry everything (rail_state.c).
 */
#include "core/transmit.h"

/* Whether a chunk may go over the rail now, or over a doubtful one where there is nothing better. */
static bool is_candidate(const struct rail *rail)
{
    const struct rail *main = rail->flow->main;
    return rail_usable(rail) || (!rail_usable(main) && rail->state == main->state && rail_carries(rail));
}

/* The same for a new chunk: no rail of connections helps one of datagrams out that works. */
static bool takes_new(const struct rail *rail, bool bulk)
{
    return !rail_is_beside(rail) && is_candidate(rail) && rail_has_room(rail, bulk);
}

static bool send_frames(struct rail *rail, bool ctrl, struct tx_desc *desc, uint64_t now_ns)
{
    return (ctrl || !tx_is_paced_out(rail, now_ns)) && tx_send_frames(rail, ctrl, desc, now_ns);
}

bool tx_send_small_by_some(struct flow *flow, bool ctrl, struct tx_desc *desc, uint64_t now_ns)
{
    if (send_frames(flow->main, ctrl, desc, now_ns))
        return true;
    EACH_RAIL(flow, rail)
    {
        if (rail != flow->main && takes_new(rail, false) && send_frames(rail, ctrl, desc, now_ns))
            return true;
    }
    return false;
}

/* The rails (bits) by which the message cannot be written; 0: it can be by none. */
static uint32_t not_writing(struct flow *flow, const struct conn *conn, const struct core_msg *msg)
{
    uint32_t rails = 0;
    bool some = false;
    EACH_RAIL(flow, rail)
    {
        bool writes = rail->qps_usable && is_candidate(rail) && conn_grant(conn, msg, 1u << rail->pair);
        rails |= (uint32_t)!writes << rail->index;
        some |= writes;
    }
    return some ? rails : 0;
}

bool tx_send_large_by_some(struct flow *flow, struct conn *conn, struct tx_desc *desc, uint64_t now_ns)
{
    const struct core_msg *msg = conn_bulk_ready(conn);
    struct rail *bulk = tx_bulk_rail(flow, msg);
    if (bulk)
        return rail_has_room(bulk, true) && tx_send_bulk(bulk, conn, desc, now_ns);
    uint32_t tried = data_qps_usable(&flow->qps) ? not_writing(flow, conn, msg) : 0;
    const struct rail *leaders = msg->flags & MSG_AHEAD ? flow->main : NULL;
    for (;;) {
        struct rail *best = NULL;
        EACH_RAIL(flow, rail)
        {
            bool better = !best || (best != leaders && (rail == leaders || rail_cost(rail) < rail_cost(best)));
            if (!(tried >> rail->index & 1) && takes_new(rail, true) && better)
                best = rail;
        }
        if (!best)
            return false;
        if (!tx_is_paced_out(best, now_ns) && tx_send_bulk(best, conn, desc, now_ns))
            return true;
        tried |= UINT32_C(1) << best->index;
    }
}

struct rail *tx_other_rail_for_ack(struct flow *flow)
{
    struct rail *last = flow_rail_of(flow, flow->ack.path);
    if (!last)
        return flow->main;
    rail_doubt(last);
    for (unsigned i = 1; i < flow->rail_count; i++) {
        struct rail *rail = &flow->rails[(last->index + i) % flow->rail_count];
        /* where none is usable, one that was lost may have come back for this direction alone */
        if (is_candidate(rail) || (!rail_usable(flow->main) && rail_carries(rail)))
            return rail;
    }
    return flow->main;
}

static bool has_room(const struct rail *rail, const struct chunk *chunk)
{
    return rail->flying_chunks == 0 || rail->flying_payload + chunk->payload_bytes <= rail->cc.cwnd_bytes;
}

struct rail *tx_rail_again(struct flow *flow, const struct chunk *chunk)
{
    struct rail *own = sent_rail(&flow->sent, chunk), *best = NULL;
    if (flow->rail_count == 1 || chunk->placed)
        return own;
    if (rail_usable(own) && (own->loss.tail_probe_due || (own->loss.rto_backoff == 0 && has_room(own, chunk))))
        return own;
    unsigned best_score = 0;
    for (unsigned i = 1; i <= flow->rail_count; i++) {
        struct rail *rail = &flow->rails[(own->index + i) % flow->rail_count];
        bool lossy = rail_is_beside(rail) && rail_is_lossy(rail);
        if (!is_candidate(rail) || (lossy && !rail_is_beside(own)))
            continue;
        unsigned score = 1 + 4u * has_room(rail, chunk) + 2u * (chunk_largest(chunk) <= rail->datagram_bytes);
        if (score > best_score) {
            best = rail;
            best_score = score;
        }
    }
    return best;
}
