/* SPDX-License-Identifier: Apache-2.0 */
#include "core/reach.h"
#include "core/flow.h"
#include "core/state.h"

enum { EARLY_ROUNDS = 4, REACH_BACKOFF_MAX = 8 };
#define OPEN_AGAIN_NS UINT64_C(250000000)    /* after the first round; times four after each of the early ones */
#define OPEN_PERIOD_NS UINT64_C(15000000000) /* half of Linux's nf_conntrack_udp_timeout */
#define TRY_AGAIN_NS UINT64_C(4000000)       /* at first, or the time of an answer; doubles up to a second */
#define TRY_AGAIN_MAX_NS UINT64_C(1000000000)

void reach_init(struct flow *flow, uint16_t peer_ports)
{
    flow->reach = (struct reach){.open_at_ns = UINT64_MAX, .peer_ports = peer_ports};
    if (probe_proven(&flow->probe))
        reach_begin(flow);
}

void reach_begin(struct flow *flow)
{
    struct reach *reach = &flow->reach;
    if (reach->peer_ports < 2)
        return;
    reach->opened_ns = flow->core->now_ns;
    reach->open_at_ns = UINT64_MAX;
    reach->port = 1;
    flow->probe.due |= PROBE_OPEN;
    flow_wake(flow);
}

static void end_round(struct reach *reach)
{
    uint64_t wait_ns = reach->rounds < EARLY_ROUNDS - 1 ? OPEN_AGAIN_NS << 2 * reach->rounds : OPEN_PERIOD_NS;
    reach->open_at_ns = reach->opened_ns + wait_ns;
    if (reach->rounds < EARLY_ROUNDS)
        reach->rounds++;
}

void reach_on_echo(struct flow *flow, uint64_t nonce)
{
    struct reach *reach = &flow->reach;
    if (nonce == 0 || nonce != reach->nonce)
        return;
    reach->nonce = 0;
    reach->backoff = 0;
    reach->try_at_ns = 0;
    path_works(&flow->paths, reach->tried);
}

/* Whether another round of opening comes: only if the peer has sent something since the last. */
static bool opens_again(const struct flow *flow)
{
    return flow->reach.open_at_ns != UINT64_MAX && flow->heard_ns > flow->reach.opened_ns;
}

uint64_t reach_deadline(const struct flow *flow, bool expects)
{
    uint64_t at_ns = opens_again(flow) ? flow->reach.open_at_ns : UINT64_MAX;
    bool tries = flow->paths.closed && expects && !(flow->probe.due & PROBE_TRY);
    return tries && flow->reach.try_at_ns < at_ns ? flow->reach.try_at_ns : at_ns;
}

void reach_expire(struct flow *flow, bool expects, uint64_t now_ns)
{
    if (opens_again(flow) && flow->reach.open_at_ns <= now_ns)
        reach_begin(flow);
    if (flow->paths.closed && expects && flow->reach.try_at_ns <= now_ns) {
        flow->probe.due |= PROBE_TRY;
        flow_wake(flow);
    }
}

/* Whether a packet has come from the port lately, so that it is open. */
static bool port_is_open(const struct flow *flow, uint16_t port, uint64_t now_ns)
{
    const struct sack_path *path = &flow->sack.paths[port];
    return path->path_seq && path->at_ns + OPEN_PERIOD_NS > now_ns;
}

static bool next_port(struct flow *flow, struct reach_probe *probe, uint64_t now_ns)
{
    struct reach *reach = &flow->reach;
    while (reach->port < reach->peer_ports && port_is_open(flow, reach->port, now_ns))
        reach->port++;
    if (reach->port < reach->peer_ports) {
        *probe = (struct reach_probe){.path = reach->port++, .opens = true};
        return true;
    }
    flow->probe.due &= (uint8_t)~PROBE_OPEN;
    end_round(reach);
    return false;
}

static bool next_try(struct flow *flow, struct reach_probe *probe, uint64_t now_ns)
{
    struct reach *reach = &flow->reach;
    int path = path_next_closed(&flow->paths, (uint16_t)(reach->tried + 1));
    flow->probe.due &= (uint8_t)~PROBE_TRY;
    if (path < 0)
        return false;
    uint64_t answer_ns = flow_probe_ns(flow), least_ns = answer_ns < TRY_AGAIN_NS ? TRY_AGAIN_NS : answer_ns;
    uint64_t wait_ns = least_ns << reach->backoff;
    if (wait_ns > TRY_AGAIN_MAX_NS)
        wait_ns = least_ns < TRY_AGAIN_MAX_NS ? TRY_AGAIN_MAX_NS : least_ns;
    reach->try_at_ns = now_ns + wait_ns;
    if (reach->backoff < REACH_BACKOFF_MAX)
        reach->backoff++;
    reach->tried = (uint16_t)path;
    reach->nonce = rng_next(&flow->core->rng) | 1;
    *probe = (struct reach_probe){.nonce = reach->nonce, .path = reach->tried};
    return true;
}

void reach_undo(struct flow *flow, uint16_t path, bool opens)
{
    struct reach *reach = &flow->reach;
    if (opens) {
        reach->port = path;
        return;
    }
    reach->nonce = 0;
    reach->tried = (uint16_t)(path - 1); /* this one's turn comes again */
    if (reach->backoff)
        reach->backoff--;
}

bool reach_next(struct flow *flow, struct reach_probe *probe, uint64_t now_ns)
{
    if (flow->probe.due & PROBE_OPEN && next_port(flow, probe, now_ns))
        return true;
    return flow->probe.due & PROBE_TRY && next_try(flow, probe, now_ns);
}
