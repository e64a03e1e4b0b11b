/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a rail is used. A flow with a single rail uses it whatever happens; of several,
 *
 *     UP       is used
 *     SUSPECT  a timeout has passed without an answer, or acks that went over it seem lost: takes nothing new, is asked
 *     DOWN     another rail was heard, and this one not for UCCL_NIC_DEAD_MS, or the device reports it gone: what was
 *              in flight is lost at once. Asked again and again, more and more rarely
 *
 *     UP -> SUSPECT -> DOWN -> UP after three answers in a row, or after one if no other is UP;
 *     SUSPECT -> UP at any answer
 *
 * An answer is the echo of a probe that left over the rail, or an ack of a packet that did, both since the doubt began,
 * and of those that bring it back each since the one before. So the answer to any of the tries counts: it may take
 * longer than the wait for the next try, as on a way that has become longer. It may come over any rail: one direction
 * of a rail can be dead, and the ends know their own directions alone. The dead-peer time is the flow's (silence.h); it
 * does not depend on rails.
 *
 * An address that is not proven is asked in the same way once another one is.
 */
#include "core/rail.h"
#include "core/state.h"

enum {
    TRIES_TO_SUSPECT = 3, /* unanswered, after acks seemed lost */
    TRIES_TO_DOWN = 3,    /* and at least so many before DOWN */
    TIMEOUTS_TO_DOWN = 4, /* and so many timeouts of time */
    ANSWERS_TO_UP = 3,    /* in a row */
    TRY_BACKOFF_MAX = 7,
    FLAPS_MAX = 6, /* doublings of the time between the answers */
};
#define TRY_NS (4 * NS_PER_MS)            /* between tries at first, or the time of an answer */
#define TRY_DOWN_MAX_NS (500 * NS_PER_MS) /* and at last, while it is down or its address is not proven */
#define RETURN_NS (10 * NS_PER_MS)        /* between the answers that bring a rail back, doubled for each flap */
#define CALM_NS (10 * NS_PER_S)           /* UP for so long: earlier flaps are forgotten */

/* ---- what the flow is told --------------------------------------------------------------------- */

static void report(struct rail *rail)
{
    queue_append(&rail->flow->core->flow_events, &rail->flow->event);
}

static void turn(struct rail *rail, enum rail_state state)
{
    bool was_down = rail->state == RAIL_DOWN;
    rail->state = (uint8_t)state;
    if (was_down != (state == RAIL_DOWN))
        report(rail);
    flow_choose_main(rail->flow);
    flow_wake(rail->flow);
}

bool rail_has_report(const struct rail *rail)
{
    return rail->reported_down != (rail->state == RAIL_DOWN);
}

/* ---- asking ------------------------------------------------------------------------------------ */

/* Tries begin: the first one goes at once. */
static void begin_tries(struct rail *rail)
{
    rail->doubt_ns = rail->flow->core->now_ns;
    rail->tries = rail->answers = 0;
    rail->try_count = 0;
    rail->try_at_ns = rail->doubt_ns;
    rail->try_acks = (uint16_t)rail->flow->ack.number;
    rail->asked = true;
    flow_wake(rail->flow);
}

/* How long the newest try may take. */
static uint64_t try_patience_ns(const struct rail *rail)
{
    uint64_t answer_ns = rail_probe_ns(rail), least_ns = answer_ns > TRY_NS ? answer_ns : TRY_NS;
    unsigned backoff = rail->tries < TRY_BACKOFF_MAX ? rail->tries : TRY_BACKOFF_MAX;
    uint64_t wait_ns = least_ns << backoff, most_ns = TRY_DOWN_MAX_NS;
    if (probe_proven(&rail->probe) && rail->state != RAIL_DOWN) {
        uint64_t share_ns = rail->flow->core->params->nic_dead_ms * NS_PER_MS / (TRIES_TO_DOWN + 1);
        most_ns = share_ns > least_ns ? share_ns : least_ns;
    }
    return wait_ns < most_ns ? wait_ns : most_ns;
}

/* Whether the rail is asked: in doubt, or unproven where another is proven. */
static bool is_asked(const struct rail *rail)
{
    return rail->asked && !rail->cut && flow_proven(rail->flow);
}

uint64_t rail_next_try(const struct rail *rail, bool expects)
{
    bool wanted = expects || rail->try_acks != (uint16_t)rail->flow->ack.number;
    bool leaves = rail->probe.due & PROBE_ASK && rail_has_room(rail, false);
    return is_asked(rail) && wanted && !leaves ? rail->try_at_ns : UINT64_MAX;
}

uint64_t rail_try(struct rail *rail, uint64_t now_ns)
{
    rail->try_acks = (uint16_t)rail->flow->ack.number;
    if (!probe_proven(&rail->probe)) {
        rail->try_at_ns = now_ns + try_patience_ns(rail);
        rail->tries += rail->tries < UINT8_MAX;
        return rail->probe.nonce;
    }
    if (!rail->asked)
        return rail->index;
    if (rail->try_count == 0)
        rail->try_nonce = rng_next(&rail->flow->core->rng) | 1;
    rail->try_at_ns = now_ns + try_patience_ns(rail);
    rail->tries += rail->tries < UINT8_MAX;
    return rail->try_nonce + rail->try_count++;
}

void rail_untry(struct rail *rail)
{
    rail->tries -= rail->tries > 0;
    rail->try_count -= rail->try_count > 0;
}

/* ---- doubt and loss ---------------------------------------------------------------------------- */

/* Another rail that is used. */
static bool has_other(const struct rail *rail)
{
    const struct flow *flow = rail->flow;
    for (unsigned i = 0; i < flow->rail_count; i++) {
        if (&flow->rails[i] != rail && rail_usable(&flow->rails[i]))
            return true;
    }
    return false;
}

/* Another rail has been heard since. */
static bool others_are_heard(const struct rail *rail, uint64_t since_ns)
{
    const struct flow *flow = rail->flow;
    for (unsigned i = 0; i < flow->rail_count; i++) {
        if (&flow->rails[i] != rail && flow->rails[i].heard_ns > since_ns)
            return true;
    }
    return false;
}

void rail_doubt(struct rail *rail)
{
    if (rail->asked || !has_other(rail))
        return;
    begin_tries(rail);
}

void rail_stalls(struct rail *rail)
{
    if (others_are_heard(rail, rail->last_ack_ns))
        rail_doubt(rail);
}

void rail_suspect(struct rail *rail)
{
    if (rail->flow->rail_count == 1 || rail->state != RAIL_UP || !probe_proven(&rail->probe))
        return;
    if (!rail->asked)
        begin_tries(rail);
    turn(rail, RAIL_SUSPECT);
}

/* What is in flight is lost, for no fault of the other rails. Writes wait until their queue pairs are drained. */
static void lose_all(struct rail *rail)
{
    struct sent *sent = &rail->flow->sent;
    unsigned lost = 0;
    for (struct chunk *chunk = rail_oldest(rail), *next; chunk; chunk = next) {
        next = rail_next(chunk);
        if (chunk->placed)
            continue;
        sent_lose(sent, chunk);
        lost++;
    }
    for (unsigned i = 0; rail->reliable && i < rail->paths.count; i++)
        lost += sent_lose_path(sent, &rail->paths.paths[i]);
    rail->large_lost_ns = 0;
    data_qps_drain_rail(rail); /* no write lands late: the peer drains too before they go another way */
    COUNT(rail->flow->core->counters, lost_chunks, lost);
}

static void go_down(struct rail *rail)
{
    COUNT(rail->flow->core->counters, rails_lost, 1);
    if (rail->flow->core->now_ns - rail->up_ns > CALM_NS)
        rail->flaps = 0;
    else if (rail->flaps < FLAPS_MAX)
        rail->flaps++;
    begin_tries(rail);
    lose_all(rail);
    rail->loss = (struct loss){.rack_at_ns = UINT64_MAX};
    turn(rail, RAIL_DOWN);
}

static uint64_t rail_dead_ns(const struct rail *rail)
{
    uint64_t least_ns = TIMEOUTS_TO_DOWN * rail_rto_ns(rail, 0);
    uint64_t ns = rail->flow->core->params->nic_dead_ms * NS_PER_MS;
    return ns > least_ns ? ns : least_ns;
}

/* A try has not been answered in time: judges the rail. */
static void judge_rail(struct rail *rail, uint64_t now_ns)
{
    if (!probe_proven(&rail->probe) || rail->try_count == 0)
        return;
    if (rail->state == RAIL_UP && rail->tries >= TRIES_TO_SUSPECT)
        turn(rail, RAIL_SUSPECT);
    if (rail->state != RAIL_SUSPECT || rail->tries < TRIES_TO_DOWN)
        return;
    flow_choose_main(rail->flow); /* see rank() */
    if (now_ns - rail->doubt_ns >= rail_dead_ns(rail) && others_are_heard(rail, rail->doubt_ns))
        go_down(rail);
}

void rail_expire_tries(struct rail *rail, bool expects, uint64_t now_ns)
{
    if (rail_next_try(rail, expects) > now_ns)
        return;
    judge_rail(rail, now_ns);
    if (!rail_has_room(rail, false)) /* its connection is full: nobody reads, which is no answer either */
        rail_try(rail, now_ns);
    rail->probe.due |= PROBE_ASK;
    flow_wake(rail->flow);
}

/* ---- answers ----------------------------------------------------------------------------------- */

static void come_back(struct rail *rail)
{
    struct flow *flow = rail->flow;
    COUNT(flow->core->counters, rails_returned, 1);
    rail_init_cc(rail);                 /* it may be another way, */
    rail->bulk_seq = rail->bulk_ns = 0; /* whose round trip the next chunk tells */
    rail->last_ack_ns = flow->core->now_ns;
    rail->up_ns = flow->core->now_ns;
    rail->asked = false;
    mtu_forgive(rail);
    turn(rail, RAIL_UP);
}

/*
 * It works, after all. What is in flight there may be lost: its timeout, which has been doubled, is near again. If a
 * try went unanswered, the rail has been cut for a while. In a hole for large datagrams the first try is answered.
 */
static void clear_doubt(struct rail *rail)
{
    rail->asked = false;
    if (rail->tries > 1)
        mtu_forgive(rail);
    if (rail->loss.rto_backoff > 1)
        rail->loss.rto_backoff = 1;
    if (rail->state == RAIL_SUSPECT)
        turn(rail, RAIL_UP);
}

void rail_on_echo(struct rail *rail, uint64_t nonce, uint64_t now_ns)
{
    if (!rail_tried(rail, nonce))
        return;
    rail->try_count = 0;
    rail->heard_ns = now_ns;
    if (rail->state != RAIL_DOWN) {
        clear_doubt(rail);
        return;
    }
    rail->tries = 0;
    rail->try_at_ns = now_ns + (RETURN_NS << rail->flaps);
    rail->answers = nonce == rail->try_nonce ? rail->answers + 1 : 1; /* else a try before it got no answer */
    if (rail->answers >= ANSWERS_TO_UP || !has_other(rail))
        come_back(rail);
}

void rail_heard(struct rail *rail, uint64_t sent_ns, uint64_t now_ns)
{
    rail->heard_ns = now_ns;
    if (rail->asked && rail->state != RAIL_DOWN && sent_ns >= rail->doubt_ns)
        clear_doubt(rail);
}

void rail_enter(struct rail *rail)
{
    if (probe_proven(&rail->probe)) {
        rail->flow->proven++;
        mtu_search(rail);
    }
}

/* Where nothing is answered, the others get nothing new until they answer. */
static void suspect_datagrams(struct flow *flow)
{
    EACH_RAIL(flow, rail)
    {
        if (!rail->reliable && silence_is_unanswered(flow))
            rail_suspect(rail);
    }
}

void rail_join(struct flow *flow)
{
    for (unsigned i = 1; i < flow->rail_most && flow_proven(flow); i++) {
        struct rail *rail = &flow->rails[i];
        if (!rail->joins || !channel_up(&rail->paths))
            continue;
        while (flow->rail_count < flow->rail_most) {
            flow->rails[flow->rail_count - 1].next = &flow->rails[flow->rail_count];
            flow->rail_count++;
        }
        rail->joins = rail->cut = rail->reported_down = false;
        rail->state = RAIL_UP;
        flow->reliable = true;
        rail_enter(rail);
        flow_choose_main(flow);
        suspect_datagrams(flow);
    }
}

void rail_proven(struct rail *rail)
{
    rail->asked = false;
    rail->heard_ns = rail->flow->core->now_ns;
    if (rail->cut) /* meanwhile */
        go_down(rail);
    flow_choose_main(rail->flow);
    rail_join(rail->flow);
    EACH_RAIL(rail->flow, other)
    {
        if (!probe_proven(&other->probe) && !other->asked)
            begin_tries(other);
    }
}

/* ---- the device -------------------------------------------------------------------------------- */

void rail_cut(struct rail *rail)
{
    if (rail->cut || rail->flow->rail_count == 1)
        return;
    rail->cut = true;
    rail->try_count = 0; /* an answer that is under way says nothing of what comes */
    flow_choose_main(rail->flow);
    if (probe_proven(&rail->probe) && rail->state != RAIL_DOWN)
        go_down(rail);
}

void rail_mend(struct rail *rail)
{
    if (!rail->cut)
        return;
    rail->cut = false;
    flow_choose_main(rail->flow);
    begin_tries(rail);
    if (probe_proven(&rail->probe)) { /* what was asked meanwhile has not left */
        reach_begin(rail);
        mtu_search(rail);
    }
}

/* ---- choice ------------------------------------------------------------------------------------ */

/*
 * How much the rail is to be preferred for what is small: usable, then in doubt, then down. Connections that lose much
 * come behind a rail that has been in doubt for a moment: what they are given then would take them longer.
 */
static unsigned rank(const struct rail *rail)
{
    if (!rail_carries(rail))
        return 0;
    if (rail->state == RAIL_DOWN)
        return 1;
    if (rail->state == RAIL_SUSPECT)
        return rail->tries < TRIES_TO_DOWN ? 4 : 2;
    return rail_is_lossy(rail) ? 3 : 5;
}

void flow_choose_main(struct flow *flow)
{
    flow->main = flow->rails;
    EACH_RAIL(flow, rail)
    {
        if (rank(rail) > rank(flow->main))
            flow->main = rail;
    }
    flow->carries = rail_carries(flow->main);
    flow->bulk = NULL;
    EACH_RAIL(flow, rail)
    {
        if (!flow->bulk && rail->reliable && !flow->main->reliable && rail_usable(rail))
            flow->bulk = rail;
    }
}
