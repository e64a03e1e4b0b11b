/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives are posted, and their clear-to-sends have arrived, before the first message starts, as
 * programs do that care for time. Two nodes that have messages for each other share one flow with
 * one connection. A node's work takes no time: what costs time here is the network. The checksum of
 * headers is left out, since the model damages nothing.
 */
#include "scale_run.h"

#include "core/wire.h"
#include "tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* From posting the receives to the first start. */
#define WARM_UP_PS (UINT64_C(200) * 1000 * 1000 * 1000)
/* Clocks of cores do not begin at 0, which means "never" in some places. */
#define CLOCK_START_NS UINT64_C(1000000000)
#define WINDOW_BYTES (UINT64_C(1) << 40) /* no socket buffer stands in the way */
enum { DATAGRAM_BYTES = MODEL_PAYLOAD_BYTES + WIRE_BULK_HEADER_BYTES };
_Static_assert((int)WIRE_BULK_HEADER_BYTES == (int)MODEL_HEADER_BYTES, "our header is all of the model's");

/* Two nodes with a flow between them: sides 0 and 1. */
struct pair {
    uint32_t host[2];
    struct flow *flow[2];
    struct conn *conn[2];
};

/* One direction of a connection. Its messages are numbered as they start; a receive gets whichever
 * is sent as its number. */
struct channel {
    uint32_t pair;
    unsigned side;  /* that sends */
    uint32_t first; /* its part of run.sent and of the receives begins here */
    uint32_t started;
};

struct request {
    struct core_msg msg;
    uint32_t index; /* a send's message, a receive's channel */
};

struct host {
    struct core *core;
    struct counters counters;
    uint64_t wake_ps; /* an event is queued for then; UINT64_MAX: none */
    uint32_t flows;
};

struct run {
    struct net *net;
    struct matrix *matrix;
    const struct params *params;
    struct run_result *result;
    struct host *hosts;
    struct pair *pairs;
    struct channel *channels;
    uint32_t pair_count;
    uint32_t *channel_of;             /* message: its channel */
    uint32_t *sent;                   /* channel.first + number: the message that was sent as this number */
    struct request *sends, *receives; /* by message; by channel */
    uint64_t *started_ps;             /* by message */
    struct memory *memory;
    uint64_t first_start_ps, last_end_ps;
};

/* What is to be freed at the end. */
struct memory {
    struct memory *next;
};

/* Zeroed, 64-byte aligned, freed at the end. Large ones cost only what is touched. */
static void *kept(struct run *run, size_t bytes)
{
    struct memory *memory = calloc(1, bytes + 2 * 64);
    if (!memory)
        tool_fail("no memory for %zu bytes", bytes);
    memory->next = run->memory;
    run->memory = memory;
    return (void *)(((uintptr_t)memory + 64 + 63) & ~(uintptr_t)63);
}

static uint32_t no_checksum(uint32_t crc, const void *data, size_t length)
{
    (void)crc, (void)data, (void)length;
    return 0;
}

static uint64_t clock_ns(const struct run *run)
{
    return CLOCK_START_NS + run->net->now_ps / 1000;
}

/* ---- sending --------------------------------------------------------------------------------- */

static void send_datagram(struct run *run, const struct tx_desc *desc, unsigned index)
{
    struct net *net = run->net;
    const struct pair *pair = &run->pairs[desc->destination / 2];
    unsigned side = desc->destination % 2;
    uint32_t length = index + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
    uint32_t header_bytes = WIRE_BULK_HEADER_BYTES;
    uint8_t *datagram = NULL;
    if (desc->kind == TX_FRAMES) {
        datagram = desc->buffer + (size_t)index * desc->datagram_bytes;
        wire_seal(desc, index, datagram, length, no_checksum);
        struct wire_packet parsed;
        if (!wire_parse(datagram, length, no_checksum, &parsed))
            tool_fail("node %" PRIu32 " makes a datagram that it would not read", pair->host[side]);
        header_bytes = (uint32_t)(parsed.frames_end - datagram);
    }
    uint32_t handle = net_new_packet(net, header_bytes);
    struct packet *packet = net_packet(net, handle);
    packet->length = length;
    packet->header_bytes = (uint16_t)header_bytes;
    if (datagram)
        memcpy(packet->header, datagram, header_bytes);
    else
        wire_bulk_header(desc, index, 0, no_checksum, packet->header);
    net_send(net, handle, pair->host[side], pair->host[!side], desc->path);
}

/* Whether the NIC takes more. */
static bool nic_takes(const struct run *run, uint32_t host)
{
    return net_nic_backlog(run->net, host) <= MODEL_NIC_BYTES;
}

static void transmit(struct run *run, uint32_t index)
{
    struct tx_desc desc;
    while (nic_takes(run, index) && core_tx(run->hosts[index].core, &desc, clock_ns(run))) {
        for (unsigned i = 0; i < desc.count; i++) {
            if (desc.mask >> i & 1)
                send_datagram(run, &desc, i);
        }
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

static void run_host(struct run *run, uint32_t index);

static void start_message(struct run *run, uint32_t index)
{
    struct channel *channel = &run->channels[run->channel_of[index]];
    const struct pair *pair = &run->pairs[channel->pair];
    uint32_t src = pair->host[channel->side];
    run->sent[channel->first + channel->started++] = index;
    run->started_ps[index] = run->net->now_ps;
    if (run->net->now_ps < run->first_start_ps)
        run->first_start_ps = run->net->now_ps;
    core_submit(run->hosts[src].core, pair->conn[channel->side], &run->sends[index].msg, clock_ns(run));
    run_host(run, src);
}

/* The next message that this trigger starts, from `from` on; message_count: none. */
static uint32_t waiting_message(const struct matrix *matrix, uint32_t id, uint32_t from)
{
    while (from < matrix->message_count && matrix->messages[from].trigger != id)
        from++;
    return from;
}

static void pull_trigger(struct run *run, uint32_t id)
{
    struct matrix *matrix = run->matrix;
    struct trigger *trigger = matrix->triggers;
    if (id == 0)
        return;
    while (trigger->id != id)
        trigger++;
    trigger->pulled++;
    uint32_t after = trigger->kind == TRIGGER_BARRIER ? trigger->count : 1;
    if (trigger->kind != TRIGGER_MULTISHOT && trigger->pulled != (after ? after : 1))
        return;
    do {
        uint32_t index = waiting_message(matrix, id, trigger->next);
        if (index == matrix->message_count)
            return;
        trigger->next = index + 1;
        net_schedule(run->net, run->net->now_ps, EVENT_START, index);
    } while (trigger->kind != TRIGGER_MULTISHOT);
}

static void on_message_end(struct run *run, const struct core_msg *msg)
{
    const struct request *request = (const struct request *)msg;
    struct run_result *result = run->result;
    if (msg->status != UCCL_OK)
        tool_fail("a message ended with status %" PRId32, msg->status);
    if (msg->kind == CORE_SEND) {
        pull_trigger(run, run->matrix->messages[request->index].send_done);
        return;
    }
    uint32_t index = run->sent[run->channels[request->index].first + msg->number];
    const struct message *message = &run->matrix->messages[index];
    if (msg->moved_bytes != message->bytes)
        tool_fail("a message of %" PRIu64 " bytes ended with %" PRIu64, message->bytes, msg->moved_bytes);
    result->completion_ps[index] = run->net->now_ps - run->started_ps[index];
    result->done++;
    run->last_end_ps = run->net->now_ps;
    pull_trigger(run, message->recv_done);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

static void wake_at(struct run *run, uint32_t index, uint64_t at_ps)
{
    struct host *host = &run->hosts[index];
    if (at_ps >= host->wake_ps)
        return;
    host->wake_ps = at_ps;
    net_schedule(run->net, at_ps, EVENT_HOST, index);
}

static void run_host(struct run *run, uint32_t index)
{
    struct host *host = &run->hosts[index];
    struct core_event event;
    bool news = true;
    core_expire(host->core, clock_ns(run));
    while (news) {
        transmit(run, index);
        news = false;
        while (core_next_event(host->core, &event)) {
            if (event.kind != CORE_EVENT_MSG)
                tool_fail("node %" PRIu32 " lost a peer: event %d", index, (int)event.kind);
            on_message_end(run, event.msg);
            news = true;
        }
    }
    if (!nic_takes(run, index))
        wake_at(run, index, net_nic_drained_ps(run->net, index, MODEL_NIC_BYTES));
    uint64_t due_ns = core_deadline(host->core);
    if (due_ns != UINT64_MAX) {
        uint64_t due_ps = due_ns > clock_ns(run) ? (due_ns - CLOCK_START_NS) * 1000 : run->net->now_ps + 1000;
        wake_at(run, index, due_ps);
    }
}

static void receive(struct run *run, uint32_t handle)
{
    static uint8_t datagram[DATAGRAM_BYTES];
    struct packet *packet = net_packet(run->net, handle);
    uint32_t index = packet->host, length = packet->length;
    bool ce = packet->ce;
    struct core_copy copy;
    memcpy(datagram, packet->header, packet->header_bytes);
    net_free_packet(run->net, handle);
    core_rx(run->hosts[index].core, datagram, length, ce, clock_ns(run));
    while (core_next_copy(run->hosts[index].core, &copy))
        ;
    run_host(run, index);
}

/* ---- set-up ---------------------------------------------------------------------------------- */

static int by_pair(const void *a, const void *b, void *context)
{
    const struct message *messages = context;
    uint32_t first = *(const uint32_t *)a, second = *(const uint32_t *)b;
    const struct message *m[2] = {&messages[first], &messages[second]};
    uint64_t key[2];
    for (unsigned i = 0; i < 2; i++) {
        uint32_t low = m[i]->src < m[i]->dst ? m[i]->src : m[i]->dst;
        uint32_t high = m[i]->src < m[i]->dst ? m[i]->dst : m[i]->src;
        key[i] = (uint64_t)low << 33 | (uint64_t)high << 1 | (m[i]->src != low);
    }
    return key[0] != key[1] ? (key[0] < key[1] ? -1 : 1) : first < second ? -1 : first > second;
}

/* Groups the messages into channels and the channels into pairs. */
static void find_channels(struct run *run)
{
    const struct matrix *matrix = run->matrix;
    uint32_t count = matrix->message_count;
    uint32_t *sorted = kept(run, count * sizeof *sorted);
    for (uint32_t i = 0; i < count; i++)
        sorted[i] = i;
    qsort_r(sorted, count, sizeof *sorted, by_pair, matrix->messages);
    struct channel *channel = run->channels - 1;
    struct pair *pair = run->pairs - 1;
    for (uint32_t i = 0; i < count; i++) {
        const struct message *message = &matrix->messages[sorted[i]];
        uint32_t low = message->src < message->dst ? message->src : message->dst;
        uint32_t high = message->src < message->dst ? message->dst : message->src;
        unsigned side = message->src != low;
        if (i == 0 || pair->host[0] != low || pair->host[1] != high) {
            *++pair = (struct pair){.host = {low, high}};
            run->pair_count++;
        }
        uint32_t pair_index = run->pair_count - 1;
        if (i == 0 || channel->pair != pair_index || channel->side != side)
            *++channel = (struct channel){.pair = pair_index, .side = side, .first = i};
        run->channel_of[sorted[i]] = run->receives[i].index = (uint32_t)(channel - run->channels);
        run->sends[i].index = i;
    }
}

static void open_hosts(struct run *run)
{
    for (uint32_t i = 0; i < run->matrix->nodes; i++) {
        struct host *host = &run->hosts[i];
        struct core_setup setup = {.params = run->params,
                                   .counters = &host->counters,
                                   .crc32c = no_checksum,
                                   .seed = rng_next(&run->net->rng)};
        host->core = core_init(kept(run, core_size(run->params)), &setup, clock_ns(run));
        host->wake_ps = UINT64_MAX;
    }
}

static void open_pair(struct run *run, uint32_t index)
{
    struct pair *pair = &run->pairs[index];
    uint32_t slot[2];
    uint64_t token[2];
    for (unsigned side = 0; side < 2; side++) {
        slot[side] = run->hosts[pair->host[side]].flows++;
        if (slot[side] == CORE_FLOWS_MAX)
            tool_fail("node %" PRIu32 " has more than %d peers", pair->host[side], CORE_FLOWS_MAX);
        token[side] = core_make_token(rng_next(&run->net->rng), slot[side]);
    }
    for (unsigned side = 0; side < 2; side++) {
        struct core *core = run->hosts[pair->host[side]].core;
        struct flow_setup setup = {
            .rx_token = token[side],
            .tx_token = token[!side],
            .rails[0] = {.destination = 2 * index + side, .datagram_bytes = DATAGRAM_BYTES},
            .rail_count = 1,
            .chunk_window = (uint32_t)run->params->chunk_window,
            .msg_window = (uint32_t)run->params->msg_window,
            .tx_window_bytes = WINDOW_BYTES,
            .rx_window_bytes = WINDOW_BYTES,
            .eager_window_kb = (uint32_t)run->params->eager_window_kb,
            .features = WIRE_FEATURES,
        };
        pair->flow[side] = core_flow_open(core, kept(run, core_flow_size(run->params, &setup)), &setup, clock_ns(run));
        pair->conn[side] = core_conn_open(core, kept(run, core_conn_size(&setup)), pair->flow[side], &setup, slot[side],
                                          slot[!side], NULL, clock_ns(run));
    }
}

static void post_receives(struct run *run)
{
    const struct matrix *matrix = run->matrix;
    uint64_t largest = 0;
    for (uint32_t i = 0; i < matrix->message_count; i++) {
        uint64_t bytes = matrix->messages[i].bytes;
        run->sends[i].msg = (struct core_msg){.kind = CORE_SEND, .size_bytes = bytes};
        if (bytes > largest)
            largest = bytes;
    }
    for (uint32_t i = 0; i < matrix->message_count; i++) {
        struct request *request = &run->receives[i];
        const struct channel *channel = &run->channels[request->index];
        const struct pair *pair = &run->pairs[channel->pair];
        request->msg = (struct core_msg){.kind = CORE_RECV, .size_bytes = largest};
        core_submit(run->hosts[pair->host[!channel->side]].core, pair->conn[!channel->side], &request->msg,
                    clock_ns(run));
    }
}

static void add_counters(struct counters *sum, const struct counters *more)
{
#define COUNTER(field, doc) COUNT(sum, field, atomic_load_explicit(&more->field, memory_order_relaxed));
#include "defs/counters.def"
#undef COUNTER
}

static void handle(struct run *run, const struct event *event)
{
    switch ((enum event_kind)event->kind) {
    case EVENT_PACKET:
        receive(run, event->what);
        break;
    case EVENT_HOST:
        if (run->hosts[event->what].wake_ps == event->at_ps) {
            run->hosts[event->what].wake_ps = UINT64_MAX;
            run_host(run, event->what);
        }
        break;
    case EVENT_START:
        start_message(run, event->what);
        break;
    }
}

static void prepare(struct run *run)
{
    const struct matrix *matrix = run->matrix;
    uint32_t count = matrix->message_count;
    run->hosts = kept(run, matrix->nodes * sizeof *run->hosts);
    run->pairs = kept(run, count * sizeof *run->pairs);
    run->channels = kept(run, count * sizeof *run->channels);
    run->channel_of = kept(run, count * sizeof *run->channel_of);
    run->sent = kept(run, count * sizeof *run->sent);
    run->sends = kept(run, count * sizeof *run->sends);
    run->receives = kept(run, count * sizeof *run->receives);
    run->started_ps = kept(run, count * sizeof *run->started_ps);
    find_channels(run);
    open_hosts(run);
    for (uint32_t i = 0; i < run->pair_count; i++)
        open_pair(run, i);
    post_receives(run);
    for (uint32_t i = 0; i < matrix->nodes; i++)
        run_host(run, i);
    for (uint32_t i = 0; i < count; i++) {
        if (matrix->messages[i].trigger == 0)
            net_schedule(run->net, WARM_UP_PS + matrix->messages[i].start_ps, EVENT_START, i);
    }
}

void run_matrix(struct net *net, struct matrix *matrix, const struct params *params, uint64_t limit_ps,
                struct run_result *result)
{
    struct run run = {.net = net, .matrix = matrix, .params = params, .result = result, .first_start_ps = UINT64_MAX};
    uint32_t count = matrix->message_count;
    struct event event;
    *result = (struct run_result){.completion_ps = malloc(count * sizeof *result->completion_ps)};
    if (!result->completion_ps)
        tool_fail("no memory for %" PRIu32 " results", count);
    memset(result->completion_ps, 0xff, count * sizeof *result->completion_ps);
    prepare(&run);
    while (result->done < count && net_next(net, &event) && event.at_ps <= WARM_UP_PS + limit_ps)
        handle(&run, &event);
    if (result->done)
        result->makespan_ps = run.last_end_ps - run.first_start_ps;
    for (uint32_t i = 0; i < matrix->nodes; i++)
        add_counters(&result->counters, &run.hosts[i].counters);
    while (run.memory) {
        struct memory *memory = run.memory;
        run.memory = memory->next;
        free(memory);
    }
}

void run_result_free(struct run_result *result)
{
    free(result->completion_ps);
}
