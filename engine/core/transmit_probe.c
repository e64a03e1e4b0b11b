/* SPDX-License-Identifier: Apache-2.0 */
/* Probes, echoes and farewells: packets without a sequence number, which go even where nothing else may. */
#include "core/transmit.h"

/* The next rail for the echoes of a proven peer. NULL: they have gone over all. */
static struct rail *next_way(struct rail *rail)
{
    struct flow *flow = rail->flow;
    struct probe *probe = &rail->probe;
    while (probe->echoed < flow->rail_count) {
        struct rail *way = &flow->rails[(rail->index + probe->echoed++) % flow->rail_count];
        if (!way->cut && (way == rail || rail_carries(way)) && rail_has_room(way, false))
            return way;
    }
    return NULL;
}

/*
 * Over which rail `*what` goes, of the probe and the echoes that are due; NULL: over none. A probe goes over its rail,
 * that is what it asks about. An echo says that the peer's direction of a rail works. Ours may not, and we may not know
 * yet. Nor is it sure that the probe came over this rail, as the peer may number its paths otherwise. So an echo goes
 * over all rails, one after the other. While none is proven it goes over one, in turn: an address that may be anybody's
 * gets no more packets than it sends.
 */
static struct rail *choose_way(struct rail *rail, unsigned *what)
{
    struct flow *flow = rail->flow;
    struct probe *probe = &rail->probe;
    *what = probe->due & (PROBE_ASK | PROBE_ECHOES);
    if (flow->rail_count == 1 || !(*what & PROBE_ECHOES))
        return rail;
    struct rail *way;
    if (flow_proven(flow))
        way = next_way(rail);
    else
        way = &flow->rails[(rail->index + probe->echo_turn++) % flow->rail_count];
    if (!way)
        probe->due &= (uint8_t)~PROBE_ECHOES;
    *what &= way == rail ? PROBE_ASK | PROBE_ECHOES : way ? PROBE_ECHOES : PROBE_ASK; /* the probe is next */
    return *what == PROBE_ASK ? rail : way;
}

/* The probe or the echoes that are due. False: none is, after all. */
static bool send_probe(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = rail->flow->core;
    struct train train = tx_scratch_train(core);
    unsigned what;
    struct rail *way = choose_way(rail, &what);
    uint16_t path = 0;
    if (!way)
        return false;
    if (!rail_has_room(way, false))
        way = rail;
    bool copy = way != rail && flow_proven(rail->flow);
    if (way->reliable || copy || !probe_opens(&rail->probe))
        path = (uint16_t)rail_probe_path(way, way == rail ? probe_avoids(&rail->probe) : -1);
    if (!copy)
        probe_leaves(&rail->probe, what, path);
    train.header += probe_put(rail, what, train_at(&train) + train.header, now_ns);
    if (flow_proven(rail->flow) && rail->probe.echoed < rail->flow->rail_count && rail->flow->rail_count > 1)
        rail->probe.due |= (uint8_t)(what & PROBE_ECHOES); /* over the others */
    train_end_datagram(core, &train);
    tx_describe_unnumbered(way, train.buffer, train.header, path, what, desc, now_ns);
    desc->due_rail = rail->index;
    return true;
}

/* A padded probe. False: not now. */
static bool send_size_probe(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    uint8_t *buffer;
    uint32_t bytes = mtu_probe(rail, &buffer, now_ns);
    if (bytes == 0)
        return false;
    wire_put_probe(buffer + WIRE_HEADER_BYTES,
                   &(struct wire_probe){.nonce = rail->mtu.nonce,
                                        .length = (uint16_t)(bytes - WIRE_HEADER_BYTES - WIRE_PROBE_BYTES)});
    wire_set_header_length(buffer, WIRE_HEADER_BYTES + WIRE_PROBE_BYTES);
    uint16_t path = mtu_opens(&rail->mtu) ? 0 : path_choose_safe(&rail->paths, -1, false);
    tx_describe_unnumbered(rail, buffer, bytes, path, PROBE_SIZE, desc, now_ns);
    desc->whole = true;
    return true;
}

/* A datagram that opens a firewall, or tries a path. False: none is due after all. */
static bool send_reach(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = rail->flow->core;
    struct reach_probe probe;
    if (!reach_next(rail, &probe, now_ns))
        return false;
    struct train train = tx_scratch_train(core);
    train.header += wire_put_probe(train_at(&train) + train.header, &(struct wire_probe){.nonce = probe.nonce});
    train_end_datagram(core, &train);
    tx_describe_unnumbered(rail, train.buffer, train.header, probe.opens ? 0 : probe.path,
                           probe.opens ? PROBE_OPEN : PROBE_TRY, desc, now_ns);
    desc->opens = probe.opens;
    if (probe.opens)
        desc->path = probe.path;
    return true;
}

/*
 * The rail's device is gone: only echoes are left, for another rail. An ask counts as if the NIC had refused it, so
 * that the peer is given up in time where no device is left.
 */
static void drop_probes(struct rail *rail, uint64_t now_ns)
{
    bool away = rail != rail->flow->main && rail_carries(rail->flow->main);
    if (rail->probe.due & PROBE_ASK)
        silence_ask(rail->flow, now_ns);
    rail->probe.due &= away ? PROBE_ECHOES : 0;
}

bool tx_send_probes(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    if (!rail_has_room(rail, false)) /* its connections are full, or not there */
        return false;
    if (rail->cut)
        drop_probes(rail, now_ns);
    if (!rail->probe.due)
        return false;
    if (rail->probe.due & PROBE_SIZE && send_size_probe(rail, desc, now_ns))
        return true;
    if (rail->probe.due & (PROBE_ASK | PROBE_ECHOES))
        return send_probe(rail, desc, now_ns);
    return send_reach(rail, desc, now_ns);
}

bool tx_send_farewell(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct rail *rail = flow->main;
    struct train train = tx_scratch_train(core);
    uint16_t path = (uint16_t)rail_probe_path(rail, -1);
    train.header += wire_put_flow(train_at(&train) + train.header, &(struct wire_flow){FLOW_CLOSED});
    train_end_datagram(core, &train);
    tx_describe_unnumbered(rail, train.buffer, train.header, path, TX_DUE_FAREWELL, desc, now_ns);
    flow->farewell_due = false;
    return true;
}
