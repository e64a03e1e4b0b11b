/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time, engines and network. Every engine runs the round that core.h describes whenever something
 * arrives, a timer is due or the application acts; in between, time jumps.
 */
#include "firewall.h"
#include "judge.h"
#include "pipes.h"
#include "placing.h"
#include "rails.h"
#include "stops.h"

#include "core/crc32c.h"
#include "core/state.h"
#include "unequal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DATAGRAM_MAX = CORE_RECORD_BYTES_MAX };

/* ---- helpers --------------------------------------------------------------------------------- */

void *sim_alloc(size_t bytes)
{
    size_t rounded = (bytes + 63) & ~(size_t)63;
    void *memory = aligned_alloc(64, rounded ? rounded : 64);
    if (!memory)
        abort();
    return memset(memory, 0, rounded);
}

_Noreturn void world_fail(const struct world *world, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    trace_print_recent(&world->trace);
    printf("# at %.6f ms: ", (double)(world->now_ns - world->start_ns) / 1e6);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
    app_report(world);
    printf("# trace hash %016llx\n", (unsigned long long)world->trace.hash);
    fflush(stdout);
    _exit(1); /* the parent says which seed it was */
}

void world_note(struct world *world, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
    trace_note(&world->trace, world->now_ns - world->start_ns, what, a, b, c);
}

/* ---- queue of events ------------------------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void world_push(struct world *world, uint64_t at_ns, enum event_kind kind, unsigned end, void *what, uint32_t extra)
{
    if (world->heap_count == world->heap_room) {
        world->heap_room = world->heap_room ? 2 * world->heap_room : 256;
        world->heap = realloc(world->heap, world->heap_room * sizeof *world->heap);
        if (!world->heap)
            abort();
    }
    struct event event = {at_ns, world->next_order++, (uint8_t)kind, (uint8_t)end, what, extra};
    size_t i = world->heap_count++;
    for (; i > 0 && before(&event, &world->heap[(i - 1) / 2]); i = (i - 1) / 2)
        world->heap[i] = world->heap[(i - 1) / 2];
    world->heap[i] = event;
}

static struct event pop(struct world *world)
{
    struct event top = world->heap[0], last = world->heap[--world->heap_count];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < world->heap_count) {
        if (child + 1 < world->heap_count && before(&world->heap[child + 1], &world->heap[child]))
            child++;
        if (!before(&world->heap[child], &last))
            break;
        world->heap[i] = world->heap[child];
        i = child;
    }
    world->heap[i] = last;
    return top;
}

/* ---- clocks ---------------------------------------------------------------------------------- */

uint64_t world_clock_ns(const struct world *world, const struct end *end)
{
    int64_t passed_ns = (int64_t)(world->now_ns - world->start_ns);
    return world->now_ns + (uint64_t)(passed_ns / PPM * end->drift_ppm + passed_ns % PPM * end->drift_ppm / PPM);
}

/* When its clock shows `clock_ns`, or little later. */
static uint64_t true_ns(const struct world *world, const struct end *end, uint64_t clock_ns)
{
    if (!end->drift_ppm || clock_ns == UINT64_MAX)
        return clock_ns;
    uint64_t passed_ns = clock_ns - world->start_ns, rate = (uint64_t)(PPM + end->drift_ppm);
    return world->start_ns + passed_ns / rate * PPM + passed_ns % rate * PPM / rate + 1;
}

/* ---- network --------------------------------------------------------------------------------- */

/* It has a probe of the kinds that get lost on this link now. */
static bool loses_probe(const struct world *world, const struct net *net, const uint8_t *bytes, size_t length)
{
    uint64_t at_ns = world->now_ns - world->start_ns;
    const struct wire_frame *frame;
    struct wire_packet packet;
    if (!net->lost_probes || at_ns < net->probes_from_ns || at_ns >= net->probes_until_ns ||
        !wire_parse(bytes, length, crc32c_portable, &packet))
        return false;
    while ((frame = wire_next_frame(&packet))) {
        if (frame->kind == FRAME_PROBE && net->lost_probes & (frame->probe.echo ? PROBE_ECHO : PROBE_ASK))
            return true;
    }
    return false;
}

static bool swallowed(struct world *world, struct link *link, unsigned side, const struct tx_desc *desc, size_t length)
{
    const struct net *net = &link->net;
    uint64_t at_ns = world->now_ns - world->start_ns;
    if (at_ns >= net->black_from_ns && at_ns < net->black_until_ns)
        return true;
    if (rails_swallow(world, side, desc->rail))
        return true;
    if (net->hole_bytes && length > net->hole_bytes && at_ns >= net->hole_from_ns && at_ns < net->hole_until_ns)
        return true;
    if (!world->nic && desc->port < 32 && net->dead_paths >> desc->port & 1)
        return true;
    if (world->now_ns >= link->burst_until_ns && world_chance(world, net->burst_ppm))
        link->burst_until_ns = world->now_ns + rng_below(&world->rng, (uint32_t)net->burst_ns);
    if (world->now_ns < link->burst_until_ns)
        return true;
    return world_chance(world, net->loss_ppm);
}

/* Flips a bit: anywhere where payload has a checksum, else where the header has one. */
static void corrupt(struct world *world, const struct tx_desc *desc, uint8_t *bytes, size_t length)
{
    size_t region = length;
    if (!desc->payload_crc)
        region = bytes[2] | (size_t)bytes[3] << 8;
    uint32_t bit = rng_below(&world->rng, (uint32_t)region * 8);
    bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
}

static void deliver_later(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc,
                          const uint8_t *bytes, size_t length, uint64_t at_ns)
{
    const struct net *net = &pair->link[side][desc->rail].net;
    size_t kept = length;
    if (world_chance(world, net->truncate_ppm))
        kept = rng_below(&world->rng, (uint32_t)length);
    struct datagram *datagram = malloc(sizeof *datagram + kept);
    if (!datagram)
        abort();
    datagram->next = NULL;
    datagram->length = kept;
    datagram->ce = world_chance(world, net->ce_ppm);
    memcpy(datagram->bytes, bytes, kept);
    world->faults += kept != length;
    world->dropped += kept != length;
    if (kept == length && world_chance(world, net->corrupt_ppm)) {
        world->faults++;
        world->dropped++;
        corrupt(world, desc, datagram->bytes, length);
    }
    world_push(world, at_ns, EVENT_ARRIVAL, pair->end[!side], datagram, 0);
}

/* What an earlier incarnation of the sender had under way: another token, other numbers, all checksums right. */
static void deliver_stray(struct world *world, struct pair *pair, unsigned side, const uint8_t *bytes, size_t length,
                          uint64_t at_ns)
{
    enum { AT_CRC = 4, AT_TOKEN = 8, AT_SEQ = 16 };
    struct datagram *datagram = malloc(sizeof *datagram + length);
    if (!datagram)
        abort();
    *datagram = (struct datagram){.length = length};
    memcpy(datagram->bytes, bytes, length);
    size_t header_length = bytes[2] | (size_t)bytes[3] << 8;
    datagram->bytes[AT_TOKEN + 2] ^= 1; /* the low 12 bits choose the flow, as before */
    datagram->bytes[AT_SEQ] += 3;
    uint32_t start, crc;
    memcpy(&start, bytes, sizeof start);
    crc = crc32c_portable(start, datagram->bytes + AT_TOKEN, header_length - AT_TOKEN);
    memcpy(datagram->bytes + AT_CRC, &crc, sizeof crc);
    world->faults++;
    world_push(world, at_ns + rng_below(&world->rng, NS_PER_MS), EVENT_ARRIVAL, pair->end[!side], datagram, 0);
}

static void transmit(struct world *world, struct pair *pair, unsigned side, const struct tx_desc *desc,
                     const uint8_t *bytes, size_t length)
{
    struct link *link = &pair->link[side][desc->rail];
    const struct net *net = &link->net;
    world->datagrams++;
    bool opens = !desc->sequenced && desc->opens;
    bool guards = net->firewall || pair->link[!side][desc->rail].net.firewall;
    if (guards &&
        !firewall_passes(desc->destination, desc->destination ^ 1, desc->path, opens, net->firewall, world->now_ns)) {
        world->faults++;
        world->dropped++;
        world->refused += !opens;
        judge_refused(world, pair, side, desc);
        return;
    }
    if (opens) /* nobody reads that port */
        return;
    if (loses_probe(world, net, bytes, length) || swallowed(world, link, side, desc, length)) {
        world->faults++;
        world->dropped++;
        return;
    }
    if (length > pair->passed_bytes[side][desc->rail])
        pair->passed_bytes[side][desc->rail] = (uint32_t)length;
    uint64_t leaves_ns = world->now_ns;
    if (net->rate_mbps) {
        uint64_t from_ns = link->free_ns > world->now_ns ? link->free_ns : world->now_ns;
        if (net->queue_bytes && (from_ns - world->now_ns) * net->rate_mbps / 8000 > net->queue_bytes) {
            world->faults++;
            world->dropped++;
            return;
        }
        leaves_ns = from_ns + length * 8000 / net->rate_mbps;
        link->free_ns = leaves_ns;
    }
    uint64_t at_ns = leaves_ns + net->delay_ns;
    if (net->jitter_ns)
        at_ns += rng_below(&world->rng, (uint32_t)net->jitter_ns);
    if (world_chance(world, net->reorder_ppm)) {
        world->faults++;
        at_ns += rng_below(&world->rng, (uint32_t)net->reorder_ns);
    } else {
        if (at_ns < link->last_ns)
            at_ns = link->last_ns; /* jitter alone does not reorder */
        link->last_ns = at_ns;
    }
    deliver_later(world, pair, side, desc, bytes, length, at_ns);
    if (world_chance(world, net->stray_ppm))
        deliver_stray(world, pair, side, bytes, length, at_ns);
    if (world_chance(world, net->duplicate_ppm)) {
        world->faults++;
        deliver_later(world, pair, side, desc, bytes, length, at_ns + rng_below(&world->rng, 2 * NS_PER_MS));
    }
}

/* A datagram reaches the socket: dropped when its buffer is full. */
static void arrive(struct world *world, struct end *end, struct datagram *datagram)
{
    uint64_t charge = datagram->length + CORE_KERNEL_BYTES;
    if (end->halted || end->inbox_charge + charge > end->inbox_limit) {
        world->faults++;
        world->dropped++;
        free(datagram);
        return;
    }
    end->inbox_charge += charge;
    *end->inbox_tail = datagram;
    end->inbox_tail = &datagram->next;
    end->dirty = true;
    world_note(world, "arrive", (uint64_t)(end - world->ends), datagram->length, 0);
}

/* ---- engine rounds --------------------------------------------------------------------------- */

uint32_t world_lay_out(struct world *world, const struct tx_desc *desc, unsigned i, uint8_t *out)
{
    uint32_t length = i + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
    if (desc->kind == TX_FRAMES) {
        uint8_t *datagram = desc->buffer + (size_t)i * desc->datagram_bytes;
        wire_seal(desc, i, datagram, length, crc32c_portable);
        memcpy(out, datagram, length);
        return length;
    }
    uint32_t bytes = i + 1u == desc->count ? desc->bulk_last : desc->bulk_stride;
    const uint8_t *payload =
        app_payload(world, desc->bulk_msg, desc->bulk_offset + (uint64_t)i * desc->bulk_stride, bytes);
    uint32_t crc = desc->payload_crc ? crc32c_portable(0, payload, bytes) : 0;
    wire_bulk_header(desc, i, crc, crc32c_portable, out);
    memcpy(out + WIRE_BULK_HEADER_BYTES, payload, bytes);
    if (bytes + WIRE_BULK_HEADER_BYTES != length)
        world_fail(world, "a bulk datagram of %u bytes with %u of payload", length, bytes);
    return length;
}

/* What the NIC does with a descriptor: builds the datagrams and sends those of the mask. */
static void send_desc(struct world *world, const struct tx_desc *desc, bool fail)
{
    static uint8_t buffer[DATAGRAM_MAX];
    struct pair *pair = &world->pairs[desc->destination % 64 / 2];
    unsigned side = desc->destination % 2;
    if (desc->on_path) {
        if (!fail)
            placing_send(world, pair, side, desc);
        return;
    }
    if (desc->kind == TX_FRAMES) {
        for (uint32_t i = 0; i < desc->piece_count; i++) {
            const struct tx_piece *piece = &desc->pieces[i];
            memcpy(desc->buffer + piece->at, app_payload(world, piece->msg, piece->offset_bytes, piece->length),
                   piece->length);
        }
    }
    for (unsigned i = 0; i < desc->count && !fail; i++) {
        if (desc->mask >> i & 1 && pipes_are(world->options, desc->rail))
            pipes_carry(world, pair, side, desc->rail, desc->port, buffer, world_lay_out(world, desc, i, buffer));
        else if (desc->mask >> i & 1)
            transmit(world, pair, side, desc, buffer, world_lay_out(world, desc, i, buffer));
    }
}

/* Sends all that the core has; the NIC may refuse a descriptor, and takes none for a while then. */
static void run_tx(struct world *world, struct end *end)
{
    struct tx_desc desc;
    memset(&desc, 0xdb, sizeof desc);
    if (end->blocked_until_ns > world->now_ns)
        return;
    for (unsigned sent = 0;; sent++) {
        judge_before(world, end);
        if (!core_tx(end->core, &desc, world_clock_ns(world, end)))
            return;
        if (sent > 200000)
            world_fail(world, "core_tx() does not come to an end");
        unsigned side = desc.destination % 2;
        judge_desc(world, &world->pairs[desc.destination % 64 / 2], side, &desc);
        world_note(world, desc.sequenced ? desc.retransmission ? "retransmission" : "chunk" : "ack",
                   (uint64_t)(end - world->ends), desc.sequenced ? desc.seq : 0, desc.count);
        bool full = pipes_are(world->options, desc.rail) &&
                    !pipes_take(world, &world->pairs[desc.destination % 64 / 2], side, desc.rail, desc.port);
        bool fail = full || world_chance(world, world->options->tx_fail_ppm);
        send_desc(world, &desc, fail);
        if (full) { /* other pipes may have room */
            core_tx_failed(end->core, &desc, world_clock_ns(world, end));
            continue;
        }
        if (fail) {
            world->faults++;
            world->dropped += (unsigned)__builtin_popcountll(desc.mask);
            core_tx_failed(end->core, &desc, world_clock_ns(world, end));
            end->blocked_until_ns = world->now_ns + 1 + rng_below(&world->rng, 50 * NS_PER_US);
            world_push(world, end->blocked_until_ns, EVENT_RUN, (unsigned)(end - world->ends), NULL, 0);
            return;
        }
    }
}

static void run_rx(struct world *world, struct end *end)
{
    if (world->nic)
        placing_poll(world, end);
    while (end->inbox) {
        struct datagram *datagram = end->inbox;
        end->inbox = datagram->next;
        if (!end->inbox)
            end->inbox_tail = &end->inbox;
        end->inbox_charge -= datagram->length + CORE_KERNEL_BYTES;
        core_rx(end->core, datagram->bytes, datagram->length, datagram->ce, world_clock_ns(world, end));
        app_copy(world, end);
        free(datagram);
    }
}

static void run_round(struct world *world, struct end *end)
{
    struct core_event event;
    end->dirty = false;
    run_rx(world, end);
    core_expire(end->core, world_clock_ns(world, end));
    for (unsigned rounds = 0;; rounds++) {
        bool news = false;
        if (rounds > 100000)
            world_fail(world, "events do not come to an end");
        run_tx(world, end);
        news |= world->nic && placing_act(world, end);
        if (news)
            placing_poll(world, end);
        while (core_next_event(end->core, &event)) {
            news = true;
            app_event(world, end, &event);
        }
        if (!news)
            break;
    }
    if (rng_below(&world->rng, 8) == 0) { /* as before a sleep */
        core_flush_acks(end->core);
        run_tx(world, end);
    }
}

static void run_end(struct world *world, struct end *end)
{
    const struct options *options = world->options;
    if (end->halted) {
        end->dirty = false;
        return;
    }
    if (options->stall_every_ns && world->now_ns >= end->next_stall_ns) {
        end->stalled_until_ns = world->now_ns + rng_below(&world->rng, (uint32_t)options->stall_ns);
        end->next_stall_ns = end->stalled_until_ns + rng_below(&world->rng, (uint32_t)options->stall_every_ns * 2);
        world_push(world, end->stalled_until_ns, EVENT_RUN, (unsigned)(end - world->ends), NULL, 0);
    }
    if (end->stalled_until_ns > world->now_ns)
        return;
    run_round(world, end);
    uint64_t due_ns = true_ns(world, end, core_deadline(end->core));
    if (due_ns <= world->now_ns)
        due_ns = world->now_ns + 1;
    if (due_ns < end->run_at_ns) {
        end->run_at_ns = due_ns;
        world_push(world, due_ns, EVENT_RUN, (unsigned)(end - world->ends), NULL, 0);
    }
}

/* ---- from begin to end ----------------------------------------------------------------------- */

uint64_t world_wrap(struct world *world)
{
    return UINT64_C(0xffffffff) - rng_below(&world->rng, 300);
}

/* As if the pair had talked for long. */
static void wrap_pair(struct world *world, struct pair *pair)
{
    for (unsigned side = 0; side < 2; side++) {
        struct flow *from = pair->flow[side], *to = pair->flow[!side];
        from->sent.next_seq = from->sent.cumulative = world_wrap(world);
        to->sack.cumulative = to->sack.end = from->sent.next_seq;
        from->ack.number = (uint32_t)world_wrap(world);
        EACH_RAIL(from, rail)
        {
            for (unsigned i = 0; from->qps.count && i < rail->qps.count; i++) {
                rail->qps.paths[i].next_seq = (uint32_t)world_wrap(world);
                rail->qps.paths[i].acked_seq = rail->qps.paths[i].next_seq - 1;
            }
        }
        EACH_RAIL(from, rail)
        {
            for (unsigned i = 0; i < rail->paths.count; i++) {
                rail->paths.paths[i].next_seq = (uint32_t)world_wrap(world);
                rail->paths.paths[i].acked_seq = rail->paths.paths[i].next_seq - 1;
            }
        }
    }
}

/* As the UDP backend's address has it (NIC_PORTS_TOLD_MAX). */
static uint16_t ports_told(const struct end *end)
{
    enum { MAX = 16 };
    return (uint16_t)(end->params.port_entropy < MAX ? end->params.port_entropy : MAX);
}

/* A flow between the first end and this one. */
static void open_pair(struct world *world, unsigned second)
{
    const struct options *options = world->options;
    unsigned index = world->pair_count++;
    struct pair *pair = &world->pairs[index];
    uint64_t tokens[2], window_bytes[2] = {options->window_bytes, options->window_bytes}; /* of each receiver */
    uint32_t datagram_bytes[2] = {options->datagram_bytes, options->datagram_bytes};
    bool piped = pipes_are(options, 0);
    for (unsigned side = 0; side < 2 && options->unequal; side++) {
        struct rng rng = {world->seed ^ (UINT64_C(1) << 48) * (2 * index + side + 1)};
        window_bytes[side] = unequal_buffer(window_bytes[side], &rng);
        datagram_bytes[side] = unequal_datagram(datagram_bytes[side], &rng);
    }
    pair->end[1] = (uint8_t)second;
    for (unsigned side = 0; side < 2; side++) {
        tokens[side] = core_make_token(rng_next(&world->rng), 2 * index + side);
        for (unsigned i = 0; i < RAILS_MAX; i++)
            pair->link[side][i].net = *rails_net(options, side, i);
    }
    for (unsigned side = 0; side < 2; side++) {
        struct end *end = &world->ends[pair->end[side]];
        pair->setup[side] = (struct flow_setup){
            .rx_token = tokens[side],
            .tx_token = tokens[!side],
            .rails[0] = {.destination = 2 * index + side,
                         .datagram_bytes = datagram_bytes[side],
                         .base_bytes = piped ? 0 : CORE_DATAGRAM_BASE,
                         .reliable = piped,
                         .nonce = rng_next(&world->rng),
                         .greets = side == 1 && options->net[0].firewall,
                         .peer_ports = piped ? 0 : ports_told(&world->ends[pair->end[!side]])},
            .rail_count = 1,
            .chunk_window = options->chunk_window,
            .msg_window = options->msg_window,
            .tx_window_bytes = window_bytes[!side],
            .rx_window_bytes = window_bytes[side],
            .eager_window_kb = options->eager_window_kb,
            .features = WIRE_FEATURES,
            .owner = &pair->flow[side],
            .places = options->places,
        };
        unsigned rails = side && options->rails_of_last ? options->rails_of_last : options->rails;
        for (unsigned i = 1; i < rails; i++) {
            struct rail_setup *rail = &pair->setup[side].rails[i];
            *rail = pair->setup[side].rails[0];
            rail->destination += 64 * i;
            rail->datagram_bytes = piped ? datagram_bytes[side] : rails_datagram(options, i);
            rail->nonce = rng_next(&world->rng);
            if (options->pipes_beside && pipes_are(options, i))
                *rail = (struct rail_setup){.destination = rail->destination,
                                            .datagram_bytes = CORE_RECORD_BYTES_MAX,
                                            .peer_datagram_bytes = CORE_RECORD_BYTES_MAX,
                                            .reliable = true,
                                            .joins = true};
            pair->setup[side].rail_count = i + 1;
        }
        pair->flow_memory[side] = sim_alloc(core_flow_size(&end->params, &pair->setup[side]));
        pair->flow[side] = core_flow_open(end->core, pair->flow_memory[side], &pair->setup[side], world->now_ns);
        end->inbox_limit += window_bytes[side] + CONTROL_RESERVE_BYTES;
    }
    if (options->wrap)
        wrap_pair(world, pair);
    if (options->pipe_bytes)
        pipes_begin(world, pair);
}

void world_create(struct world *world, const char *scenario, const struct options *options, uint64_t seed, bool trace)
{
    *world = (struct world){.scenario = scenario, .seed = seed, .options = options};
    trace_init(&world->trace, trace);
    firewalls_forget();
    world->rng.state = seed;
    world->app_rng.state = seed ^ UINT64_C(0x5deece66d);
    world->now_ns = world->start_ns = rng_next(&world->rng) >> 16; /* clocks begin anywhere */
    if (options->wrap)                                             /* just before some such time, and never before 0 */
        world->now_ns = world->start_ns =
            (((world->start_ns >> 36) + 1) << 36) - rng_below(&world->rng, 10 * NS_PER_MS);
    world->end_count = options->ends;
    for (unsigned i = 0; i < world->end_count; i++) {
        struct end *end = &world->ends[i];
        end->params = options->params;
        if (options->unequal)
            unequal_params(&end->params, &(struct rng){seed ^ (UINT64_C(1) << 40) * (i + 1)});
        /* An end whose only path swallows everything is as good as dead. */
        if ((options->net[0].dead_paths || options->net[1].dead_paths) && !options->places &&
            end->params.port_entropy == 1)
            end->params.port_entropy = 2;
        if (options->same_rate) {
            end->params.cc = options->params.cc;
            end->params.chunk_size_kb = options->params.chunk_size_kb;
        }
        if (i && options->eager_kb_of_last != UINT64_MAX)
            end->params.eager_kb = options->eager_kb_of_last;
        end->inbox_tail = &end->inbox;
        end->run_at_ns = UINT64_MAX;
        end->next_stall_ns = world->now_ns + options->stall_every_ns;
        struct core_setup setup = {.params = &end->params,
                                   .counters = &end->counters,
                                   .crc32c = crc32c_portable,
                                   .seed = rng_next(&world->rng),
                                   .paths_in_order = options->paths_in_order,
                                   .whole_trains = !options->places,
                                   .places_reliably = options->paths_reliable,
                                   .places_in_order = !options->paths_reorder};
        end->core = core_init(sim_alloc(core_size(&end->params)), &setup, world->now_ns);
    }
    stops_create(world);
    rails_create(world);
    if (options->places)
        placing_create(world);
    if (world->end_count == 1)
        open_pair(world, 0);
    for (unsigned i = 1; i < world->end_count; i++)
        open_pair(world, i);
    app_create(world);
}

static void change_datagrams(struct world *world)
{
    for (unsigned i = 0; i < world->pair_count; i++) {
        struct pair *pair = &world->pairs[i];
        for (unsigned side = 0; side < 2; side++) {
            if (pair->flow[side])
                core_set_datagram(world->ends[pair->end[side]].core, pair->setup[side].rails[0].destination,
                                  world->options->datagram_bytes_later);
        }
    }
}

/* Everything was told and acked: chunk records, buffers and timers are back. */
static bool at_rest(const struct world *world)
{
    for (unsigned i = 0; i < world->pair_count; i++) {
        const struct pair *pair = &world->pairs[i];
        for (unsigned side = 0; side < 2; side++) {
            const struct flow *flow = pair->flow[side];
            if (world->ends[pair->end[side]].halted || pair->dead[side])
                continue;
            if (flow->sent.next_seq != flow->sent.cumulative || flow->ack.pending)
                return false;
        }
    }
    return true;
}

static void check_rail(struct world *world, const struct rail *rail)
{
    if (rail->flying_chunks || rail->flying_payload || rail->by_time.head)
        world_fail(world, "rail %u of a flow at rest has chunks in flight", rail->index);
    for (unsigned i = 0; i < rail->paths.count; i++) {
        if (rail->paths.paths[i].in_flight)
            world_fail(world, "path %u of rail %u of a flow at rest has chunks in flight", i, rail->index);
    }
}

static void check_flow(struct world *world, const struct flow *flow)
{
    const struct sent *sent = &flow->sent;
    if (flow->msgs_pending || flow->closers.head || flow->all_head || flow->active.head || flow->ctrl.head)
        world_fail(world, "a flow keeps messages or connections");
    if (flow->held[BUFFER_SMALL] || flow->held[BUFFER_BIG] || flow->own_used)
        world_fail(world, "a flow at rest holds buffers");
    if (flow->place.deferred.head || flow->place.free_count != flow->place.slot_count)
        world_fail(world, "%u of %u grants came back", flow->place.free_count, flow->place.slot_count);
    if (flow->dead)
        return;
    if (sent->flying_charge || sent->lost.head)
        world_fail(world, "a flow at rest has chunks in flight");
    for (unsigned i = 0; i < sent->window; i++) {
        if (sent->chunks[i].state != CHUNK_FREE)
            world_fail(world, "a flow at rest has a chunk record in use");
    }
    for (unsigned i = 0; i < flow->rail_count; i++)
        check_rail(world, &flow->rails[i]);
}

static void close_world(struct world *world)
{
    app_check(world);
    placing_check(world);
    judge_run(world);
    for (unsigned i = 0; i < world->pair_count; i++) {
        struct pair *pair = &world->pairs[i];
        for (unsigned side = 0; side < 2; side++) {
            struct end *end = &world->ends[pair->end[side]];
            if (!end->halted) {
                check_flow(world, pair->flow[side]);
                core_flow_close(end->core, pair->flow[side]);
            }
            free(pair->flow_memory[side]);
        }
    }
    for (unsigned i = 0; i < world->end_count; i++) {
        struct end *end = &world->ends[i];
        const struct core *core = end->core;
        struct tx_desc desc;
        struct core_event event;
        if (!end->halted) {
            if (core->small.count != end->params.tx_small_buffers || core->big.count != end->params.tx_buffers)
                world_fail(world, "buffers of end %u are missing: %u small, %u big left", i, core->small.count,
                           core->big.count);
            if (core_tx(end->core, &desc, world_clock_ns(world, end)) || core_next_event(end->core, &event))
                world_fail(world, "end %u still has something to say", i);
            if (core_deadline(core) != UINT64_MAX)
                world_fail(world, "a timer of end %u is left", i);
        }
        while (end->inbox) {
            struct datagram *datagram = end->inbox;
            end->inbox = datagram->next;
            free(datagram);
        }
        free(end->core);
    }
    while (world->heap_count) {
        struct event event = pop(world);
        if (event.kind == EVENT_ARRIVAL)
            free(event.what);
        else if (event.kind == EVENT_NIC)
            placing_free_event(event.what);
        else if (event.kind == EVENT_PIPE)
            pipes_free_event(event.what);
    }
    app_destroy(world);
    if (world->nic)
        placing_destroy(world);
    free(world->heap);
}

static void handle(struct world *world, struct event *event)
{
    struct end *end = &world->ends[event->end];
    bool action = event->kind == EVENT_POST || event->kind == EVENT_CANCEL || event->kind == EVENT_CLOSE ||
                  event->kind == EVENT_RAIL;
    if (action && end->halted)
        return;
    if (action && end->stalled_until_ns > world->now_ns) {
        world_push(world, end->stalled_until_ns, (enum event_kind)event->kind, event->end, event->what, event->extra);
        return;
    }
    switch ((enum event_kind)event->kind) {
    case EVENT_ARRIVAL:
        arrive(world, end, event->what);
        break;
    case EVENT_POST:
        app_post(world, event);
        break;
    case EVENT_CANCEL:
        app_cancel(world, event);
        break;
    case EVENT_CLOSE:
        app_close(world, event);
        break;
    case EVENT_RUN:
        if (world->now_ns >= end->run_at_ns)
            end->run_at_ns = UINT64_MAX;
        break;
    case EVENT_RAIL:
        rails_event(world, end, event->extra);
        break;
    case EVENT_NIC:
        placing_event(world, event);
        break;
    case EVENT_PIPE:
        pipes_event(world, event->what);
        break;
    case EVENT_STOP:
        stops_begin(world, end);
        break;
    case EVENT_GO_ON:
        stops_end(world, end);
        break;
    }
    end->dirty = true;
}

static void halt_ends(struct world *world, uint64_t passed_ns)
{
    const struct options *options = world->options;
    unsigned halts = options->halts ? options->halts : 1;
    for (unsigned i = 0; i < halts; i++) {
        if (passed_ns >= options->halt_ns + i * options->halt_gap_ns)
            world->ends[world->end_count - 1 - i].halted = true;
    }
}

void world_run(struct world *world)
{
    const struct options *options = world->options;
    enum { INSTANTS_MAX = 2000000 }; /* many times what any run takes */
    bool changed = options->change_datagram_ns == 0;
    uint64_t instants = 0;
    while (!app_over(world) || !at_rest(world)) {
        if (world->heap_count == 0 && options->expect_dead)
            app_close_rest(world);
        if (world->heap_count == 0)
            world_fail(world, "nothing will ever happen, and not all is over");
        world->now_ns = world->heap[0].at_ns;
        uint64_t passed_ns = world->now_ns - world->start_ns;
        if (passed_ns > options->limit_ns)
            world_fail(world, "not all is over in time");
        if (++instants > INSTANTS_MAX)
            world_fail(world, "timers run at %u instants, and nothing comes to an end", INSTANTS_MAX);
        if (!changed && passed_ns >= options->change_datagram_ns) {
            changed = true;
            change_datagrams(world);
        }
        if (passed_ns >= options->halt_ns)
            halt_ends(world, passed_ns);
        while (world->heap_count && world->heap[0].at_ns == world->now_ns) {
            struct event event = pop(world);
            handle(world, &event);
        }
        for (unsigned i = 0; i < world->end_count; i++) {
            if (world->ends[i].dirty)
                run_end(world, &world->ends[i]);
        }
    }
    close_world(world);
}
