/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiver-driven credit (EQDS; docs/congestion-control.md): the receiver knows its own link best, so it says who
 * sends how much. The sending half tells its demand and sends what has been granted; the receiving half of all flows
 * of a core shares one pacer, which grants no faster than the link delivers. Every core serves demands,
 * whatever its own algorithm is; only a flow whose algorithm is `credited` waits for grants.
 */
#ifndef UCCL_CREDIT_H
#define UCCL_CREDIT_H

#include "core/queue.h"
#include "core/wire.h"

struct flow;

/* The sending half. All are totals over the life of the flow, of payload bytes, repeats included. */
struct credit_tx {
    uint64_t used_bytes;    /* sent */
    uint64_t granted_bytes; /* may be sent; begins with what is sent without asking */
    uint64_t advertised_bytes;    /* the demand as last told: how far used_bytes is to go */
    uint64_t heard_bytes;   /* the demand that the receiver has heard of */
    uint64_t ask_at_ns;     /* when it is told again; UINT64_MAX: not */
    uint8_t backoff;        /* of that, since the last grant */
    bool due;               /* to be told with the next ack */
};

enum credit_list { CREDIT_WANTING, CREDIT_IDLE, CREDIT_LISTS, CREDIT_NONE = CREDIT_LISTS };

/* The receiving half. */
struct credit_rx {
    uint64_t demand_bytes, granted_bytes;
    struct queue_link turn; /* on its list of the pacer */
    uint8_t list;           /* enum credit_list */
    bool exhausted;         /* taken off its list, since it has no grants left that its packets have earned */
    uint64_t grants;        /* that it got, or has let pass */
};

/* One per core. */
struct pacer {
    struct queue lists[CREDIT_LISTS]; /* of flows: with unmet demand; and without, but with less than they may have in advance */
    uint64_t next_ns;       /* when the next quantum is granted */
    uint64_t link_mbps;
};

void credit_init(struct flow *flow);
/* The flow is gone: it leaves the pacer. */
void credit_forget(struct flow *flow);

/* Whether so much payload may be sent now; how much at most; and that it is. */
bool credit_takes(const struct flow *flow, uint64_t payload_bytes);
uint64_t credit_left(const struct flow *flow);
void credit_use(struct flow *flow, uint64_t payload_bytes);
/* The last of it was not sent after all. */
void credit_unuse(struct flow *flow, uint64_t payload_bytes);
/* Something was lost: what is left of the credit that nobody asked for is given up. */
void credit_on_loss(struct flow *flow);
/* Tells the demand where it has grown beyond what is granted and told. */
void credit_update(struct flow *flow, uint64_t now_ns);
/* The demand is told again: no grant came in time. */
void credit_ask_again(struct flow *flow, uint64_t now_ns);

/*
 * An exhausted flow goes on where a packet has come since and has earned a grant. Not at an ack alone: one that a full
 * NIC refuses is made again and again, and the pacer's deadline would be now each time, so nobody would sleep.
 */
void credit_resume(struct flow *flow);
void credit_on_demand(struct flow *flow, const struct wire_demand *demand, uint64_t now_ns);
void credit_on_grant(struct flow *flow, const struct wire_grant *grant, uint64_t now_ns);
/* Appends what is due to an ack; the bytes written. */
unsigned credit_put(struct flow *flow, uint8_t *at);

struct core;
void pacer_run(struct core *core, uint64_t now_ns);
/* When to run it next; UINT64_MAX: nobody waits. */
uint64_t pacer_deadline(const struct core *core);

#endif
