/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiver-driven credit (EQDS; docs/congestion-control.md). The receiver knows its own link best, so it says who sends
 * how much. The sending half advertises its demand and sends what is granted. The receiving halves of a core's flows
 * share one pacer, which grants no faster than the link delivers. Every core serves demands, whatever its own algorithm
 * is; only a flow whose algorithm is `credited` waits for grants.
 */
#ifndef UCCL_CREDIT_H
#define UCCL_CREDIT_H

#include "core/queue.h"
#include "core/wire.h"

struct flow;

/* The sending half. All are totals of payload bytes since the flow began, retransmissions included. */
struct credit_tx {
    uint64_t used_bytes;       /* sent */
    uint64_t granted_bytes;    /* may be sent; begins with what is sent without asking */
    uint64_t advertised_bytes; /* the demand as last sent: the aim of used_bytes */
    uint64_t heard_bytes;      /* the demand that the receiver has confirmed */
    uint64_t ask_at_ns;        /* when the demand is sent again; UINT64_MAX: never */
    uint8_t backoff;           /* doublings of that wait since the last grant */
    bool due;                  /* the demand goes with the next ack */
};

enum credit_list { CREDIT_WANTING, CREDIT_IDLE, CREDIT_LISTS, CREDIT_NONE = CREDIT_LISTS };

/* The receiving half. */
struct credit_rx {
    uint64_t demand_bytes, granted_bytes;
    struct queue_link turn; /* on its list of the pacer */
    uint8_t list;           /* enum credit_list */
    bool exhausted;         /* off its list: its packets have earned no further grant */
    uint64_t grants;        /* grants that it got, or has let pass */
};

/* One per core. */
struct pacer {
    struct queue lists[CREDIT_LISTS]; /* flows with unmet demand; flows without, whose advance is not full */
    uint64_t next_ns;                 /* when the next quantum is granted */
    uint64_t link_mbps;
};

void credit_init(struct flow *flow);
/* The flow is gone: it leaves the pacer. */
void credit_forget(struct flow *flow);

/* Whether the flow may send `payload_bytes` now; how many it may; and that it sends them. */
bool credit_takes(const struct flow *flow, uint64_t payload_bytes);
uint64_t credit_left(const struct flow *flow);
void credit_use(struct flow *flow, uint64_t payload_bytes);
/* The NIC refused it. */
void credit_unuse(struct flow *flow, uint64_t payload_bytes);
/* A chunk was lost: the flow gives up the rest of its unasked credit. */
void credit_on_loss(struct flow *flow);
/* Advertises the demand once it exceeds both the grants and the demand last advertised. */
void credit_update(struct flow *flow, uint64_t now_ns);
/* Advertises the demand again: no grant came in time. */
void credit_ask_again(struct flow *flow, uint64_t now_ns);

/*
 * An exhausted flow goes on once a further packet has earned a grant. An ack of ours alone is no reason: one that a
 * full NIC refuses is made again and again, and each time the pacer's deadline would be now, so nobody would sleep.
 */
void credit_resume(struct flow *flow);
void credit_on_demand(struct flow *flow, const struct wire_demand *demand, uint64_t now_ns);
void credit_on_grant(struct flow *flow, const struct wire_grant *grant, uint64_t now_ns);
/* Appends DEMAND and GRANT, where due, to an ack. Returns the bytes written. */
unsigned credit_put(struct flow *flow, uint8_t *at);

struct core;
void pacer_run(struct core *core, uint64_t now_ns);
/* When to run it next; UINT64_MAX: nobody waits. */
uint64_t pacer_deadline(const struct core *core);

#endif
