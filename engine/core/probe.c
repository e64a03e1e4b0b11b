/* SPDX-License-Identifier: Apache-2.0 */
#include "core/probe.h"
#include "core/flow.h"
#include "core/state.h"

enum { PROBE_BACKOFF_MAX = 8, GREETINGS = 3 };
#define ASK_AGAIN_NS (4 * NS_PER_MS) /* at first; doubles up to a second */

void probe_init(struct rail *rail, uint64_t nonce, bool greets)
{
    rail->probe =
        (struct probe){.nonce = nonce, .ask_at_ns = UINT64_MAX, .ask_path = UINT16_MAX, .echo_path = UINT16_MAX};
    if (nonce && greets) {
        rail->probe.greetings = GREETINGS;
        rail->probe.ask_at_ns = rail->flow->core->now_ns + ASK_AGAIN_NS; /* most peers have asked by then */
    }
}

/* The rail's address is proven. */
static void prove(struct rail *rail)
{
    struct probe *probe = &rail->probe;
    struct flow *flow = rail->flow;
    probe->nonce = 0;
    probe->asking = false;
    probe->due &= (uint8_t)~PROBE_ASK;
    probe->greetings = 0;
    probe->ask_at_ns = UINT64_MAX;
    if (flow->proven++ == 0) {
        flow->proof_report_due = true;
        queue_append(&flow->core->flow_events, &flow->event);
        gone_send_fins(flow);
    }
    rail_proven(rail);
    reach_begin(rail);
    mtu_search(rail);
}

static void on_echo(struct rail *rail, uint64_t nonce, uint64_t now_ns)
{
    if (probe_proven(&rail->probe)) {
        bool answers_try = rail_tried(rail, nonce);
        reach_on_echo(rail, nonce);
        mtu_on_echo(rail, answers_try ? rail->index : nonce, now_ns);
        rail_on_echo(rail, nonce, now_ns);
    } else if (nonce == rail->probe.nonce) {
        prove(rail);
    }
}

void probe_on_frame(struct rail *rail, const struct wire_probe *frame, uint64_t now_ns)
{
    struct flow *flow = rail->flow;
    struct probe *probe = &rail->probe;
    if (!frame->echo)
        probe->echoed = 0;
    if (!frame->echo && frame->length) {
        probe->due |= PROBE_ECHO_SIZE;
        probe->size_nonce = frame->nonce;
    } else if (!frame->echo) {
        if (probe->due & PROBE_ECHO && frame->nonce != probe->echo_nonce) {
            probe->due |= PROBE_ECHO_OLDER;
            probe->older_nonce = probe->echo_nonce;
        }
        probe->due |= PROBE_ECHO;
        probe->echoes_again = frame->nonce == probe->echo_nonce;
        probe->echo_nonce = frame->nonce;
        if (!probe_proven(probe))
            probe->due |= PROBE_ASK; /* the peer knows the flow by now: an earlier probe may have come too soon */
    } else {
        for (unsigned i = 0; i < flow->rail_count; i++)
            on_echo(&flow->rails[i], frame->nonce, now_ns);
    }
    flow_wake(flow);
}

void probe_wait(struct rail *rail, bool waits)
{
    struct probe *probe = &rail->probe;
    if (waits && !probe->asking) {
        flow_expect_peer(rail->flow, rail->flow->core->now_ns);
        probe->backoff = 0;
    }
    probe->asking = waits;
    if (!waits)
        probe->ask_at_ns = probe->greetings ? probe->ask_at_ns : UINT64_MAX;
    else if (probe->ask_at_ns == UINT64_MAX)
        probe->due |= PROBE_ASK;
}

void probe_expire(struct rail *rail, uint64_t now_ns)
{
    struct probe *probe = &rail->probe;
    if (probe->ask_at_ns > now_ns)
        return;
    probe->ask_at_ns = UINT64_MAX;
    probe->asks_again = true;
    if (probe->greetings) {
        probe->greetings--;
        probe->due |= PROBE_ASK;
    }
    flow_wake(rail->flow); /* where something still waits */
}

bool probe_opens(const struct probe *probe)
{
    uint16_t last_path = probe->due & PROBE_ECHOES ? probe->echo_path : probe->ask_path;
    return last_path != 0;
}

int probe_avoids(const struct probe *probe)
{
    if (probe->due & PROBE_ASK && probe->asks_again)
        return probe->ask_path;
    return probe->due & PROBE_ECHO && probe->echoes_again ? probe->echo_path : -1;
}

void probe_leaves(struct probe *probe, unsigned what, uint16_t path)
{
    if (what & PROBE_ASK)
        probe->ask_path = path;
    if (what & PROBE_ECHOES)
        probe->echo_path = path;
}

unsigned probe_put(struct rail *rail, unsigned what, uint8_t *at, uint64_t now_ns)
{
    struct probe *probe = &rail->probe;
    unsigned bytes = 0;
    if (what & PROBE_ECHO)
        bytes += wire_put_probe(at, &(struct wire_probe){.echo = true, .nonce = probe->echo_nonce});
    if (what & PROBE_ECHO_OLDER)
        bytes += wire_put_probe(at + bytes, &(struct wire_probe){.echo = true, .nonce = probe->older_nonce});
    if (what & PROBE_ECHO_SIZE)
        bytes += wire_put_probe(at + bytes, &(struct wire_probe){.echo = true, .nonce = probe->size_nonce});
    if (what & PROBE_ASK) {
        bytes += wire_put_probe(at + bytes, &(struct wire_probe){.nonce = rail_try(rail, now_ns)});
        silence_ask(rail->flow, now_ns);
    }
    if (what & PROBE_ASK && !probe_proven(probe)) {
        probe->ask_at_ns = now_ns + (ASK_AGAIN_NS << probe->backoff);
        if (probe->backoff < PROBE_BACKOFF_MAX)
            probe->backoff++;
    }
    probe->due &= (uint8_t)~what;
    return bytes;
}

void probe_undo(struct rail *rail, unsigned due)
{
    struct probe *probe = &rail->probe;
    probe->due |= (uint8_t)due;
    if (due & PROBE_ECHOES)
        probe->echoed = 0;
    if (due & PROBE_ASK && !probe_proven(probe) && probe->backoff)
        probe->backoff--;
    if (due & PROBE_ASK)
        rail_untry(rail);
}
