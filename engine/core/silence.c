/* SPDX-License-Identifier: Apache-2.0 */
#include "core/silence.h"
#include "core/flow.h"
#include "core/state.h"

static uint64_t dead_ns(const struct flow *flow)
{
    return flow->core->params->dead_peer_ms * NS_PER_MS;
}

bool silence_is_unanswered(const struct flow *flow)
{
    return flow->silence.since_ns > flow->last_rx_ns;
}

void silence_ask(struct flow *flow, uint64_t now_ns)
{
    struct silence *silence = &flow->silence;
    if (!silence_is_unanswered(flow))
        *silence = (struct silence){.since_ns = now_ns, .asked_ns = now_ns, .ran_ns = silence->ran_ns, .asks = 1};
    if (now_ns - silence->asked_ns < dead_ns(flow) / SILENCE_PARTS)
        return;
    silence->asked_ns = now_ns;
    silence->asks++;
}

void silence_overrun(struct flow *flow, uint64_t deadline_ns, uint64_t now_ns)
{
    struct silence *silence = &flow->silence;
    uint64_t from_ns = deadline_ns > silence->ran_ns ? deadline_ns : silence->ran_ns;
    if (silence_is_unanswered(flow) && now_ns > from_ns + dead_ns(flow) / SILENCE_PARTS)
        silence->since_ns += now_ns - from_ns;
    silence->ran_ns = now_ns; /* the timer may fire again now, for other deadlines that passed during the stop */
}

uint64_t silence_next_ask(const struct flow *flow)
{
    if (silence_is_unanswered(flow))
        return flow->silence.asked_ns + dead_ns(flow) / SILENCE_PARTS;
    if (flow->cut_ns) /* nothing that was sent now could be answered */
        return flow->last_rx_ns + 1;
    return flow->last_rx_ns + dead_ns(flow) / SILENCE_QUIET;
}

static uint64_t death_at_ns(const struct flow *flow)
{
    return flow->silence.asks >= SILENCE_ASKS ? flow->silence.since_ns + dead_ns(flow) : UINT64_MAX;
}

uint64_t silence_deadline(const struct flow *flow, bool due)
{
    uint64_t ask_ns = due ? UINT64_MAX : silence_next_ask(flow);
    uint64_t end_ns = silence_is_unanswered(flow) ? death_at_ns(flow) : UINT64_MAX;
    return ask_ns < end_ns ? ask_ns : end_ns;
}

bool silence_is_death(const struct flow *flow, uint64_t now_ns)
{
    return silence_is_unanswered(flow) && now_ns >= death_at_ns(flow);
}
