/* SPDX-License-Identifier: Apache-2.0 */
#include "fabric.h"

#include <stdlib.h>
#include <string.h>

enum { DUPLICATE_NS_MAX = 2000000 };

/* An output port of a host or a switch. */
struct port {
    uint64_t mbps, free_ns, last_ns; /* last_ns: when the newest gets to the other side */
};

struct fabric_counts fabric_counts;

const char *const fabric_drop_names[DROP_KINDS] = {"loss", "burst", "outage", "queue", "socket", "nobody", "refused"};

static struct {
    struct fabric_options options;
    struct rng rng;
    bool (*deliver)(struct packet *, enum drop *);
    unsigned nodes, leaves;
    struct port *up, *down;           /* of hosts: to their leaf, and from it */
    struct port *leaf_up, *leaf_down; /* leaf * spines + spine: to the spine, and from it */
    struct port *slow;                /* of hosts: straight to others */
    uint64_t *burst_until_ns;         /* by sending node */
} fabric;

static struct port *make_ports(size_t count, uint64_t mbps)
{
    struct port *ports = calloc(count + 1, sizeof *ports);
    if (!ports)
        abort();
    for (size_t i = 0; i < count; i++)
        ports[i].mbps = mbps;
    return ports;
}

void fabric_begin(const struct fabric_options *options, unsigned nodes, uint64_t seed,
                  bool (*deliver)(struct packet *packet, enum drop *why))
{
    memset(&fabric, 0, sizeof fabric);
    memset(&fabric_counts, 0, sizeof fabric_counts);
    fabric.options = *options;
    fabric.rng.state = seed;
    fabric.deliver = deliver;
    fabric.nodes = nodes;
    fabric.leaves = options->spines ? (nodes + options->hosts_per_leaf - 1) / options->hosts_per_leaf : 0;
    unsigned nics = options->nics ? options->nics : 1;
    fabric.up = make_ports(nodes * nics, options->host_mbps);
    fabric.down = make_ports(nodes * nics, options->host_mbps);
    fabric.leaf_up = make_ports(fabric.leaves * options->spines, options->spine_mbps);
    fabric.leaf_down = make_ports(fabric.leaves * options->spines, options->spine_mbps);
    fabric.slow = make_ports(nodes, options->slow_mbps);
    fabric.burst_until_ns = calloc(nodes, sizeof *fabric.burst_until_ns);
    if (!fabric.burst_until_ns)
        abort();
}

void fabric_end(void)
{
    free(fabric.up);
    free(fabric.down);
    free(fabric.leaf_up);
    free(fabric.leaf_down);
    free(fabric.slow);
    free(fabric.burst_until_ns);
}

static bool chance(uint32_t ppm)
{
    return ppm && rng_below(&fabric.rng, 1000000) < ppm;
}

static void drop(struct packet *packet, enum drop why)
{
    machine_note(fabric_drop_names[why], packet->from, packet->to, packet->length);
    fabric_counts.dropped[why]++;
    fabric_counts.in_flight--;
    free(packet);
}

/* ---- ports ----------------------------------------------------------------------------------- */

/* The output port that a packet leaves by at its next hop. NULL: it has arrived. */
static struct port *next_port(const struct packet *packet)
{
    const struct fabric_options *options = &fabric.options;
    unsigned spines = options->spines;
    unsigned from_leaf = spines ? packet->from / options->hosts_per_leaf : 0;
    unsigned to_leaf = spines ? packet->to / options->hosts_per_leaf : 0;
    bool local = from_leaf == to_leaf;
    unsigned up = packet->from + packet->nic * fabric.nodes, down = packet->to + packet->nic * fabric.nodes;
    if (options->slow_mbps && packet->port == options->slow_queue)
        return packet->hop ? NULL : &fabric.slow[packet->from];
    switch (packet->hop) {
    case 0:
        return &fabric.up[up];
    case 1:
        if (local)
            return &fabric.down[down];
        return &fabric.leaf_up[from_leaf * spines + (packet->path + packet->from + packet->to) % spines];
    case 2:
        if (local)
            return NULL;
        return &fabric.leaf_down[to_leaf * spines + (packet->path + packet->from + packet->to) % spines];
    case 3:
        return &fabric.down[down];
    default:
        return NULL;
    }
}

static void hop(void *what, uint64_t extra)
{
    const struct fabric_options *options = &fabric.options;
    struct packet *packet = what;
    struct port *port = next_port(packet);
    uint64_t now_ns = machine.now_ns;
    (void)extra;
    if (!port) {
        enum drop why = DROP_NOBODY;
        fabric_counts.delivered++;
        fabric_counts.in_flight--;
        machine_note("arrive", packet->from, packet->to, packet->length);
        if (!fabric.deliver(packet, &why)) {
            fabric_counts.delivered--;
            fabric_counts.in_flight++;
            drop(packet, why);
        }
        return;
    }
    uint64_t from_ns = port->free_ns > now_ns ? port->free_ns : now_ns;
    uint64_t waiting = (from_ns - now_ns) * port->mbps / 8000;
    if (waiting > options->queue_bytes) {
        drop(packet, DROP_QUEUE);
        return;
    }
    if (waiting > options->ecn_bytes && !packet->ce) {
        packet->ce = true;
        fabric_counts.marked++;
    }
    port->free_ns = from_ns + packet->length * 8000ull / port->mbps;
    uint64_t at_ns = port->free_ns + options->delay_ns;
    if (options->jitter_ns)
        at_ns += rng_below(&fabric.rng, (uint32_t)options->jitter_ns);
    if (chance(options->reorder_ppm)) {
        at_ns += rng_below(&fabric.rng, (uint32_t)options->reorder_ns);
        fabric_counts.reordered++;
    } else {
        at_ns = at_ns > port->last_ns ? at_ns : port->last_ns; /* jitter alone does not reorder */
        port->last_ns = at_ns;
    }
    packet->hop++;
    machine_at(at_ns, hop, packet, 0);
}

/* ---- faults ---------------------------------------------------------------------------------- */

static bool matches(uint16_t pattern, unsigned value)
{
    return pattern == FABRIC_ANY || pattern == value;
}

static bool cut_off(const struct packet *packet)
{
    for (unsigned i = 0; i < fabric.options.outage_count; i++) {
        const struct outage *outage = &fabric.options.outages[i];
        if (machine.now_ns >= outage->begin_ns && machine.now_ns < outage->end_ns &&
            matches(outage->from, packet->from) && matches(outage->to, packet->to) &&
            matches(outage->path, packet->path) && packet->length > outage->passing_bytes &&
            (outage->nic == 0 || outage->nic == packet->nic + 1) &&
            (outage->queue == 0 || outage->queue == packet->port + 1))
            return true;
    }
    return false;
}

static bool in_burst(const struct packet *packet)
{
    const struct fabric_options *options = &fabric.options;
    uint64_t *until_ns = &fabric.burst_until_ns[packet->from];
    if (machine.now_ns >= *until_ns && chance(options->burst_ppm))
        *until_ns = machine.now_ns + rng_below(&fabric.rng, (uint32_t)options->burst_ns);
    return machine.now_ns < *until_ns;
}

static void damage(struct packet *packet, uint32_t safe_bytes)
{
    if (chance(fabric.options.truncate_ppm)) {
        packet->length = 1 + rng_below(&fabric.rng, packet->length);
    } else if (chance(fabric.options.corrupt_ppm)) {
        uint32_t bit = rng_below(&fabric.rng, safe_bytes * 8);
        packet->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    } else {
        return;
    }
    packet->damaged = true;
    fabric_counts.damaged++;
}

static struct packet *copy_of(const struct packet *packet)
{
    struct packet *copy = malloc(sizeof *copy + packet->length);
    if (!copy)
        abort();
    memcpy(copy, packet, sizeof *copy + packet->length);
    return copy;
}

void fabric_send(const struct fabric_way *way, const uint8_t *bytes, uint32_t length, uint32_t safe_bytes)
{
    struct packet *packet = malloc(sizeof *packet + length);
    if (!packet)
        abort();
    *packet = (struct packet){.from = (uint16_t)way->from,
                              .to = (uint16_t)way->to,
                              .port = way->port,
                              .path = way->path,
                              .nic = (uint8_t)way->nic,
                              .length = length};
    memcpy(packet->bytes, bytes, length);
    machine_note("depart", way->from, way->to, length);
    fabric_counts.sent++;
    fabric_counts.in_flight++;
    if (cut_off(packet)) {
        drop(packet, DROP_OUTAGE);
    } else if (in_burst(packet)) {
        drop(packet, DROP_BURST);
    } else if (chance(fabric.options.loss_ppm)) {
        drop(packet, DROP_LOSS);
    } else {
        if (chance(fabric.options.duplicate_ppm)) {
            fabric_counts.duplicated++;
            fabric_counts.in_flight++;
            machine_at(machine.now_ns + rng_below(&fabric.rng, DUPLICATE_NS_MAX), hop, copy_of(packet), 0);
        }
        damage(packet, safe_bytes);
        hop(packet, 0);
    }
}

void fabric_check(void)
{
    const struct fabric_counts *counts = &fabric_counts;
    uint64_t out = counts->delivered;
    for (unsigned i = 0; i < DROP_KINDS; i++)
        out += counts->dropped[i];
    if (counts->in_flight || counts->sent + counts->duplicated != out)
        machine_fail("the network lost count: %llu sent, %llu duplicated, %llu delivered or dropped, %llu in flight",
                     (unsigned long long)counts->sent, (unsigned long long)counts->duplicated, (unsigned long long)out,
                     (unsigned long long)counts->in_flight);
}
