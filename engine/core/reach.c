/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reach.h"
#include "core/flow.h"
#include "core/state.h"

enum { EARLY_ROUNDS = 4, REACH_BACKOFF_MAX = 8 };
#define OPEN_AGAIN_NS (250 * NS_PER_MS) /* after the first round; times four after each of the early ones */
#define OPEN_PERIOD_NS (15 * NS_PER_S)  /* half of Linux's nf_conntrack_udp_timeout */
#define TRY_AGAIN_NS (4 * NS_PER_MS)    /* at first, or the time of an answer; doubles up to a second */
#define TRY_AGAIN_MAX_NS NS_PER_S

void reach_init(struct rail *rail, uint16_t peer_ports)
{
    rail->reach = (struct reach){.open_at_ns = UINT64_MAX, .peer_ports = peer_ports};
    if (probe_proven(&rail->probe))
        reach_begin(rail);
}

void reach_begin(struct rail *rail)
{
    struct reach *reach = &rail->reach;
    if (reach->peer_ports < 2)
        return;
    reach->opened_ns = rail->flow->core->now_ns;
    reach->open_at_ns = UINT64_MAX;
    reach->port = 1;
    rail->probe.due |= PROBE_OPEN;
    flow_wake(rail->flow);
}

static void end_round(struct reach *reach)
{
    uint64_t wait_ns = reach->rounds < EARLY_ROUNDS - 1 ? OPEN_AGAIN_NS << 2 * reach->rounds : OPEN_PERIOD_NS;
    reach->open_at_ns = reach->opened_ns + wait_ns;
    if (reach->rounds < EARLY_ROUNDS)
        reach->rounds++;
}

void reach_on_echo(struct rail *rail, uint64_t nonce)
{
    struct reach *reach = &rail->reach;
    if (nonce == 0 || nonce != reach->nonce)
        return;
    reach->nonce = 0;
    reach->backoff = 0;
    reach->try_at_ns = 0;
    path_works(&rail->paths, reach->tried);
}

/* Whether another round of opening comes: only if the peer has sent something since the last. */
static bool opens_again(const struct rail *rail)
{
    return rail->reach.open_at_ns != UINT64_MAX && rail->flow->heard_ns > rail->reach.opened_ns;
}

uint64_t reach_deadline(const struct rail *rail, bool expects)
{
    uint64_t at_ns = opens_again(rail) ? rail->reach.open_at_ns : UINT64_MAX;
    bool tries = rail->paths.closed && expects && !(rail->probe.due & PROBE_TRY);
    return tries && rail->reach.try_at_ns < at_ns ? rail->reach.try_at_ns : at_ns;
}

void reach_expire(struct rail *rail, bool expects, uint64_t now_ns)
{
    if (opens_again(rail) && rail->reach.open_at_ns <= now_ns)
        reach_begin(rail);
    if (rail->paths.closed && expects && rail->reach.try_at_ns <= now_ns) {
        rail->probe.due |= PROBE_TRY;
        flow_wake(rail->flow);
    }
}

/*
 * Whether a packet has come from the port lately, so that it is open. Not known of rails behind the first one: the
 * numbers of the peer's paths there depend on the peer's parameters.
 */
static bool port_is_open(const struct rail *rail, uint16_t port, uint64_t now_ns)
{
    const struct sack_path *path = &rail->flow->sack.paths[port];
    return rail->index == 0 && path->path_seq && path->at_ns + OPEN_PERIOD_NS > now_ns;
}

static bool next_port(struct rail *rail, struct reach_probe *probe, uint64_t now_ns)
{
    struct reach *reach = &rail->reach;
    while (reach->port < reach->peer_ports && port_is_open(rail, reach->port, now_ns))
        reach->port++;
    if (reach->port < reach->peer_ports) {
        *probe = (struct reach_probe){.path = reach->port++, .opens = true};
        return true;
    }
    rail->probe.due &= (uint8_t)~PROBE_OPEN;
    end_round(reach);
    return false;
}

static bool next_try(struct rail *rail, struct reach_probe *probe, uint64_t now_ns)
{
    struct reach *reach = &rail->reach;
    int path = path_next_closed(&rail->paths, (uint16_t)(reach->tried + 1));
    rail->probe.due &= (uint8_t)~PROBE_TRY;
    if (path < 0)
        return false;
    uint64_t answer_ns = rail_probe_ns(rail), least_ns = answer_ns < TRY_AGAIN_NS ? TRY_AGAIN_NS : answer_ns;
    uint64_t wait_ns = least_ns << reach->backoff;
    if (wait_ns > TRY_AGAIN_MAX_NS)
        wait_ns = least_ns < TRY_AGAIN_MAX_NS ? TRY_AGAIN_MAX_NS : least_ns;
    reach->try_at_ns = now_ns + wait_ns;
    if (reach->backoff < REACH_BACKOFF_MAX)
        reach->backoff++;
    reach->tried = (uint16_t)path;
    reach->nonce = rng_next(&rail->flow->core->rng) | 1;
    *probe = (struct reach_probe){.nonce = reach->nonce, .path = reach->tried};
    return true;
}

void reach_undo(struct rail *rail, uint16_t path, bool opens)
{
    struct reach *reach = &rail->reach;
    if (opens) {
        reach->port = path;
        return;
    }
    reach->nonce = 0;
    reach->tried = (uint16_t)(path - 1); /* this one's turn comes again */
    if (reach->backoff)
        reach->backoff--;
}

bool reach_next(struct rail *rail, struct reach_probe *probe, uint64_t now_ns)
{
    if (rail->probe.due & PROBE_OPEN && next_port(rail, probe, now_ns))
        return true;
    return rail->probe.due & PROBE_TRY && next_try(rail, probe, now_ns);
}
