/* SPDX-License-Identifier: Apache-2.0 */
/* Probes, echoes and farewells: packets without a sequence number, which go even where nothing else may. */
#include "core/transmit.h"

/* The probe and the echoes that are due. */
static bool send_probe(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = rail->flow->core;
    struct train train = tx_scratch_train(core);
    uint16_t path = 0;
    if (!probe_opens(&rail->probe))
        path = path_choose_safe(&rail->paths, probe_avoids(&rail->probe), false);
    probe_leaves(&rail->probe, path);
    uint8_t due = rail->probe.due & (PROBE_ASK | PROBE_ECHO | PROBE_ECHO_SIZE);
    train.header += probe_put(rail, train_at(&train) + train.header, now_ns);
    train_end_datagram(core, &train);
    tx_describe_unnumbered(rail, train.buffer, train.header, path, due, desc, now_ns);
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

bool tx_send_probes(struct rail *rail, struct tx_desc *desc, uint64_t now_ns)
{
    if (rail->probe.due & PROBE_SIZE && send_size_probe(rail, desc, now_ns))
        return true;
    if (rail->probe.due & (PROBE_ASK | PROBE_ECHO | PROBE_ECHO_SIZE))
        return send_probe(rail, desc, now_ns);
    return send_reach(rail, desc, now_ns);
}

bool tx_send_farewell(struct flow *flow, struct tx_desc *desc, uint64_t now_ns)
{
    struct core *core = flow->core;
    struct rail *rail = flow->main;
    struct train train = tx_scratch_train(core);
    train.header += wire_put_flow(train_at(&train) + train.header, &(struct wire_flow){FLOW_CLOSED});
    train_end_datagram(core, &train);
    tx_describe_unnumbered(rail, train.buffer, train.header, path_choose_safe(&rail->paths, -1, false), TX_DUE_FAREWELL,
                           desc, now_ns);
    flow->farewell_due = false;
    return true;
}
