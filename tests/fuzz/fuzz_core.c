/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes a core with two flows, connections and requests in every state: the peer, who has the flows'
 * token and can compute a checksum, says whatever it likes. It may end requests wrongly, but never trip
 * an assert, make the core write outside a buffer, keep or lose a request, or leak chunk records.
 *
 * The input is a list of records {kind, length, bytes}: a raw datagram, one made of frames whose
 * fields are near the right ones, or a step of the application or of a NIC that places payload. If its
 * size is a multiple of five the first flow has two rails, and its peer a key for each pair of NICs.
 */
#include "../param_defaults.h"
#include "core/crc32c.h"
#include "core/state.h"
#include "require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    AT_FLAGS = 1,
    AT_HEADER_LENGTH = 2,
    AT_CRC = 4,
    AT_TOKEN = 8,
    FLOWS = 2, /* the first has a NIC that places payload; both have the same connections */
    FLOW_CONNS = 4,
    CONNS = FLOWS * FLOW_CONNS,
    FLOW_ANNEXES = 2, /* behind those: one, and one that follows it, where no NIC places */
    ALL_CONNS = CONNS + FLOWS * FLOW_ANNEXES,
    AHEAD_BYTES = 5000,
    PART_CONN = 3, /* of each flow: carries part 1 of messages striped over three flows */
    STRIPES = 3,
    REQUESTS = 64,
    PART_BYTES = 70000,
    BUFFER_BYTES = 1 << 17,
    PATHS = 4,
    DRAINS = 64,
    DATAGRAM_BYTES = 1472,
    DEAD_STEPS = 20, /* in which the dead-peer time passes: a core that looks less often takes itself for stopped */
};
static const uint64_t rx_tokens[FLOWS] = {(UINT64_C(77) << 12) | 1, (UINT64_C(79) << 12) | 2};
static const uint64_t tx_tokens[FLOWS] = {(UINT64_C(78) << 12) | 2, (UINT64_C(80) << 12) | 1};

struct request {
    struct core_msg msg;
    bool live;
    bool wanted;      /* staged, and its bytes are not there yet */
    uint64_t arrived; /* of a striped receive */
};

static struct params params;
static struct counters counters;
static struct core *core;
static struct flow *flows[FLOWS];
static struct flow *flow; /* of them, to which the peer speaks now */
static unsigned flow_index;
static struct conn *conns[ALL_CONNS]; /* those of the first flow first; the index is the id */
static void *conn_memory[ALL_CONNS], *flow_memory[FLOWS];
static bool closed[ALL_CONNS];
static struct request requests[REQUESTS];
static uint8_t buffer[BUFFER_BYTES];
static uint64_t now_ns;
static bool flow_dead;
static uint64_t part_numbers[FLOWS];
static uint64_t last_cookie;                 /* of what went over a queue pair */
static unsigned rails;                       /* of the first flow */
static bool keys_known;                      /* each key of the peer's has been made by key_of() */
static struct core_qp_action drains[DRAINS]; /* asked for, to be answered */
static unsigned drain_count;
static bool drain_at_once;

/* A key that the peer gives for writes by a pair of NICs. */
static uint32_t key_of(unsigned pair, unsigned slot)
{
    return (pair + 1) << 16 | slot;
}

/* The annex of a flow whose messages announce those of the next one. */
static unsigned leader_of(unsigned index)
{
    return CONNS + index * FLOW_ANNEXES;
}

static void set_params(void)
{
    params = param_defaults();
    params.tx_buffers = 4;
    params.tx_small_buffers = 64;
    params.port_entropy = PATHS;
    params.grants = 16;
    params.qp_depth = 64;
}

static void pull_releases(void)
{
    struct core_release release;
    while (core_next_release(core, &release)) {
        require(((struct request *)release.msg)->live && release.msg->block_bytes);
        require(release.offset_bytes <= release.msg->size_bytes &&
                release.length <= release.msg->size_bytes - release.offset_bytes);
    }
}

/* After each datagram. */
static void copies(void)
{
    struct core_copy copy;
    pull_releases();
    while (core_next_copy(core, &copy)) {
        if (copy.msg) {
            struct request *request = (struct request *)copy.msg;
            require(request >= requests && request < requests + REQUESTS && request->live);
            require(copy.offset_bytes <= copy.msg->size_bytes &&
                    copy.length <= copy.msg->size_bytes - copy.offset_bytes);
            require(!copy.msg->watched || copy.offset_bytes % 64 == 0); /* the rings wrap at multiples of 64 */
            memcpy(buffer, copy.from, copy.length);
        } else {
            memcpy(copy.to, copy.from, copy.length);
        }
    }
}

static void send_desc(const struct tx_desc *desc)
{
    static uint8_t header[WIRE_BULK_HEADER_BYTES];
    uint64_t whole = desc->count == 64 ? UINT64_MAX : (UINT64_C(1) << desc->count) - 1;
    require(desc->mask && !(desc->mask & ~whole));
    if (desc->on_path) {
        require(desc->sequenced && desc->path < flows[0]->qps.count && desc->generation);
        require(flows[0]->qps.qps[desc->path].rail == &flows[0]->rails[desc->rail]);
        last_cookie = desc->cookie;
    }
    if (desc->kind == TX_PLACE) {
        require(desc->on_path && desc->place_bytes && ((struct request *)desc->bulk_msg)->live &&
                desc->bulk_offset + (uint64_t)desc->count * desc->place_bytes <= desc->bulk_msg->size_bytes);
        require(!keys_known || desc->remote_key >> 16 == flows[0]->rails[desc->rail].pair + 1u);
        return;
    }
    for (unsigned i = 0; desc->kind == TX_FRAMES && i < desc->piece_count; i++) {
        const struct tx_piece *piece = &desc->pieces[i];
        require(((struct request *)piece->msg)->live);
        require(piece->offset_bytes + piece->length <= piece->msg->size_bytes);
        memset(desc->buffer + piece->at, 0x5a, piece->length);
    }
    for (unsigned i = 0; i < desc->count; i++) {
        if (desc->kind == TX_BULK) {
            require(((struct request *)desc->bulk_msg)->live);
            wire_bulk_header(desc, i, 0, crc32c_portable, header);
        } else if (desc->mask >> i & 1) {
            uint32_t length = i + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
            wire_seal(desc, i, desc->buffer + (size_t)i * desc->datagram_bytes, length, crc32c_portable);
        }
    }
}

static void conn_over(void *owner)
{
    unsigned index = (unsigned)((struct conn **)owner - conns);
    require(index < ALL_CONNS && conns[index] && closed[index]);
    for (unsigned i = 0; i < REQUESTS; i++)
        require(!requests[i].live || requests[i].msg.conn != conns[index]);
    conns[index] = NULL;
    if (index < CONNS) /* annexes know each other */
        free(conn_memory[index]);
}

/* Some messages go whole. Of the others each flow carries all: the core does not know what the others have. */
static void give_range(struct core_msg *msg, uint64_t bytes)
{
    uint64_t from = msg->end_bytes, to = from + bytes < msg->size_bytes ? from + bytes : msg->size_bytes;
    require(((struct request *)msg)->live && bytes);
    if (from == 0 && !msg->conn->for_parts && msg->number & 1)
        core_unsplit(core, msg);
    else
        core_send_range(core, msg, from, to);
}

/* Half of the message is all of it: the other half came over another flow. */
static void add_up(const struct core_event *event)
{
    struct request *request = (struct request *)event->msg;
    require(request->live && event->bytes && event->total <= event->msg->size_bytes);
    request->arrived += event->bytes;
    require(request->arrived <= event->total);
    if (2 * request->arrived < event->total)
        return;
    if (event->msg->conn->for_parts)
        core_end_part(core, event->msg, now_ns);
    else
        core_msg_whole(core, event->msg, event->total, now_ns);
}

static void pull_events(void)
{
    struct core_event event;
    while (core_next_event(core, &event)) {
        if (event.kind == CORE_EVENT_MSG) {
            struct request *request = (struct request *)event.msg;
            require(request->live && event.status <= 0);
            require(event.msg->moved_bytes <= event.msg->size_bytes);
            request->live = false;
        } else if (event.kind == CORE_EVENT_RANGE) {
            give_range(event.msg, event.bytes);
        } else if (event.kind == CORE_EVENT_ARRIVED) {
            add_up(&event);
        } else if (event.kind == CORE_EVENT_WANTED) {
            struct request *request = (struct request *)event.msg;
            require(request->live && event.msg->block_bytes);
            request->wanted = true;
        } else if (event.kind == CORE_EVENT_CONN_ENDED) {
            conn_over(event.owner);
        } else if (event.kind == CORE_EVENT_FLOW_DEAD) {
            flow_dead = true;
        }
    }
}

/* A block more of a staged send, or the rest of it. */
static void fetch(struct request *request, bool all)
{
    struct core_msg *msg = &request->msg;
    if (!request->live || !request->wanted)
        return;
    uint64_t bytes = msg->available_bytes + msg->block_bytes;
    bytes -= bytes % msg->block_bytes;
    if (all || bytes > msg->end_bytes)
        bytes = msg->end_bytes;
    request->wanted = bytes < msg->end_bytes;
    core_available(core, msg, bytes, now_ns);
}

/* What the core wants done to queue pairs is done at once, but for drains. */
static void pull_paths(void)
{
    struct core_qp_action action;
    while (core_next_qp_action(core, &action)) {
        require(action.flow == flows[0] && action.owner == &flows[0] && action.path < flows[0]->qps.count);
        if (action.kind == QP_OPEN)
            core_qp_opened(core, flows[0], action.path, action.generation, action.path + 1, 7, now_ns);
        else if (action.kind == QP_CONNECT)
            core_qp_connected(core, flows[0], action.path, action.generation, now_ns);
        else if (action.kind == QP_DRAIN && (drain_at_once || drain_count == DRAINS))
            core_qp_drained(core, flows[0], action.path, action.generation, now_ns);
        else if (action.kind == QP_DRAIN)
            drains[drain_count++] = action;
    }
}

static void pull(void)
{
    struct tx_desc desc;
    pull_paths();
    pull_releases();
    pull_events();
    for (unsigned sent = 0; core_tx(core, &desc, now_ns); sent++) {
        require(sent < 100000);
        send_desc(&desc);
        pull_releases();
    }
    pull_events();
}

static void post(unsigned which, unsigned kind, uint64_t size)
{
    struct request *request = requests;
    while (request < requests + REQUESTS && request->live)
        request++;
    if (request == requests + REQUESTS || !conns[which])
        return;
    memset(request, 0xcd, sizeof *request);
    request->live = true;
    request->msg.kind = (uint8_t)kind;
    request->msg.size_bytes = size;
    unsigned role = which < CONNS ? which % FLOW_CONNS : 0;
    request->msg.stripes = kind == CORE_RECV && role == 1 ? STRIPES : 0;
    request->msg.block_bytes = kind == CORE_SEND && role != 0 && size ? 4096 : 0; /* staged */
    request->msg.placeable = which < FLOW_CONNS && role != 2;
    if (request->msg.placeable && rails > 1)
        request->msg.placeable = (uint8_t)(1 + size % 3);
    request->msg.ahead = which >= CONNS && (which - CONNS) % FLOW_ANNEXES && size & 2;
    request->msg.watched = kind == CORE_RECV && size & 1 && which < CONNS;
    request->msg.grant_keys[0] = 9;
    request->msg.grant_keys[1] = 10;
    request->msg.grant_address = 4096;
    request->wanted = false;
    request->arrived = 0;
    if (role == PART_CONN) {
        request->msg.number = part_numbers[which / FLOW_CONNS]++;
        request->msg.size_bytes += PART_BYTES; /* so that there is a second part */
        request->msg.stripes = STRIPES;
        core_submit_part(core, conns[which], &request->msg, now_ns);
    } else {
        core_submit(core, conns[which], &request->msg, now_ns);
    }
    copies();
}

static void close_conn(unsigned which, uint64_t linger_ns)
{
    if (!conns[which] || closed[which])
        return;
    closed[which] = true;
    core_conn_close(core, conns[which], linger_ns, now_ns);
}

/* What begins ahead of its clear-to-send has been announced. */
static void post_on_annex(unsigned which, unsigned kind, uint64_t size)
{
    if (kind == CORE_SEND && (which - CONNS) % FLOW_ANNEXES)
        post(which - 1, kind, 100);
    post(which, kind, size);
}

static void turn_to(unsigned index)
{
    flow_index = index;
    flow = flows[index];
}

static void open_flow(unsigned index)
{
    struct flow_setup setup = {
        .rx_token = rx_tokens[index],
        .tx_token = tx_tokens[index],
        .rails = {{2 * index, .datagram_bytes = DATAGRAM_BYTES}, {2 * index + 1, .datagram_bytes = DATAGRAM_BYTES}},
        .rail_count = index == 0 ? rails : 1,
        .chunk_window = 64,
        .msg_window = 16,
        .tx_window_bytes = 1 << 20,
        .rx_window_bytes = 1 << 20,
        .eager_window_kb = 128,
        .features = WIRE_FEATURES,
        .owner = &flows[index],
        .places = index == 0,
    };
    flow_memory[index] = zeroed(core_flow_size(&params, &setup));
    flows[index] = core_flow_open(core, flow_memory[index], &setup, now_ns);
    for (unsigned i = index * FLOW_CONNS; i < (index + 1) * FLOW_CONNS; i++) {
        closed[i] = false;
        conn_memory[i] = zeroed(core_conn_size(&setup));
        conns[i] = i % FLOW_CONNS == PART_CONN
                       ? core_part_conn_open(core, conn_memory[i], flows[index], &setup, i, i, &conns[i], now_ns)
                       : core_conn_open(core, conn_memory[i], flows[index], &setup, i, i, &conns[i], now_ns);
    }
    static const struct annex_setup annexes[FLOW_ANNEXES] = {
        {.msg_window = 16, .eager_bytes = 8192, .eager_window_kb = 128},
        {.msg_window = 16, .ahead_bytes = AHEAD_BYTES}};
    for (unsigned k = 0; k < FLOW_ANNEXES; k++) {
        unsigned i = leader_of(index) + k;
        closed[i] = false;
        conn_memory[i] = zeroed(core_annex_size(&setup, &annexes[k]));
        conns[i] = core_annex_open(core, conn_memory[i], flows[index], &setup, &annexes[k], i, i, &conns[i], now_ns);
    }
    core_annex_follow(conns[leader_of(index) + 1], conns[leader_of(index)]);
}

static void open_all(void)
{
    struct core_setup core_setup = {.params = &params,
                                    .counters = &counters,
                                    .crc32c = crc32c_portable,
                                    .seed = 1,
                                    .whole_trains = true,
                                    .places_in_order = true};
    drain_count = 0;
    drain_at_once = false;
    keys_known = true;
    now_ns = 1000000;
    flow_dead = false;
    memset(part_numbers, 0, sizeof part_numbers);
    memset(requests, 0, sizeof requests);
    static void *memory;
    if (!memory)
        memory = zeroed(core_size(&params));
    memset(memory, 0, sizeof *core); /* the buffers behind it are written before they are read */
    core = core_init(memory, &core_setup, now_ns);
    for (unsigned i = 0; i < FLOWS; i++)
        open_flow(i);
    turn_to(0);
    /* small and large, more than the window takes; and on one connection nothing at all */
    for (unsigned i = 0; i < 20; i++) {
        post(0, CORE_SEND, i % 3 * 7000);
        post(1, CORE_RECV, i % 5 * 6000);
        if (i < 6)
            post(PART_CONN, i % 2, 1000 * i);
    }
    for (unsigned i = 0; i < 4; i++) {
        post(FLOW_CONNS + 0, CORE_SEND, i % 3 * 70000);
        post(FLOW_CONNS + 1, CORE_RECV, i * 60000);
        post(FLOW_CONNS + PART_CONN, i % 2, 1000 * i);
        post(leader_of(1), CORE_RECV, 500);
        if (i < 2)
            post_on_annex(leader_of(1) + 1, CORE_SEND, 4002 + i * 20000);
    }
}

/* Ends everything; all must come back. */
static void close_all(void)
{
    for (unsigned i = 0; i < ALL_CONNS; i++)
        close_conn(i, 0);
    drain_at_once = true;
    while (drain_count > 0) {
        struct core_qp_action action = drains[--drain_count];
        core_qp_drained(core, flows[0], action.path, action.generation, now_ns);
    }
    for (unsigned step = 0; step < 4 * DEAD_STEPS; step++) {
        pull();
        now_ns += params.dead_peer_ms * 1000000 / DEAD_STEPS;
        core_expire(core, now_ns);
    }
    pull();
    for (unsigned i = 0; i < ALL_CONNS; i++)
        require(!conns[i]);
    for (unsigned i = CONNS; i < ALL_CONNS; i++)
        free(conn_memory[i]);
    for (unsigned i = 0; i < REQUESTS; i++)
        require(!requests[i].live);
    for (unsigned i = 0; i < FLOWS; i++)
        core_flow_close(core, flows[i]);
    require(core->small.count == params.tx_small_buffers && core->big.count == params.tx_buffers);
    require(core_deadline(core) == UINT64_MAX);
    for (unsigned i = 0; i < FLOWS; i++)
        free(flow_memory[i]);
}

/*
 * A NIC that looks at the header alone first and asks where the payload goes, as udp/mmsg.c does. Then
 * the core must take it, and the copies that it asks for need no other memory.
 */
static bool arrive_in_place(const uint8_t *datagram, size_t length, bool ce)
{
    struct core_msg *msg;
    uint64_t offset_bytes;
    if (length < WIRE_BULK_HEADER_BYTES)
        return false;
    uint8_t *header = malloc(WIRE_BULK_HEADER_BYTES); /* exact, as all that is parsed here */
    require(header);
    memcpy(header, datagram, WIRE_BULK_HEADER_BYTES);
    bool placed = core_copy_target(core, header, length, length, &msg, &offset_bytes);
    if (placed) {
        size_t payload_bytes = length - WIRE_BULK_HEADER_BYTES;
        require(((struct request *)msg)->live && offset_bytes <= msg->size_bytes &&
                payload_bytes <= msg->size_bytes - offset_bytes);
        uint8_t *payload = malloc(payload_bytes ? payload_bytes : 1);
        require(payload);
        memcpy(payload, datagram + WIRE_BULK_HEADER_BYTES, payload_bytes);
        bool payload_crc = header[AT_FLAGS] & WIRE_PAYLOAD_CRC;
        require(core_rx_copied(core, header, length, payload, ce, now_ns) || payload_crc);
        copies();
        free(payload);
    }
    free(header);
    return placed;
}

static void arrive(const uint8_t *datagram, size_t length, bool ce)
{
    if (arrive_in_place(datagram, length, ce))
        return;
    core_rx(core, datagram, length, ce, now_ns);
    copies();
}

static void receive(const uint8_t *data, size_t length)
{
    if (length < WIRE_HEADER_BYTES)
        return;
    uint8_t *datagram = malloc(length);
    uint16_t header_length;
    uint32_t seed, crc;
    require(datagram);
    keys_known = false;
    memcpy(datagram, data, length);
    datagram[0] = WIRE_VERSION;
    memcpy(&header_length, datagram + AT_HEADER_LENGTH, 2);
    if (header_length > length || header_length < WIRE_HEADER_BYTES) {
        header_length = (uint16_t)length;
        memcpy(datagram + AT_HEADER_LENGTH, &header_length, 2);
    }
    memcpy(datagram + AT_TOKEN, &rx_tokens[datagram[AT_TOKEN] & 1], 8);
    memcpy(&seed, datagram, 4);
    crc = crc32c_portable(seed, datagram + AT_TOKEN, header_length - AT_TOKEN);
    memcpy(datagram + AT_CRC, &crc, 4);
    arrive(datagram, length, length & 1);
    free(datagram);
}

/* Bytes of the input, zero beyond its end. */
struct reader {
    const uint8_t *at, *end;
};

static uint8_t next(struct reader *reader)
{
    return reader->at < reader->end ? *reader->at++ : 0;
}

/* A number near `base`: mostly a little above it. */
static uint64_t near(struct reader *reader, uint64_t base)
{
    return base + (uint64_t)(int8_t)next(reader);
}

static unsigned put_ack(struct reader *reader, unsigned kind, uint8_t *at)
{
    struct wire_ack ack = {.number = next(reader), .cumulative = (uint32_t)near(reader, flow->sent.cumulative)};
    ack.word_count = kind >> 3 & 1;
    ack.partial_count = kind >> 4 & 1;
    ack.path_count = kind >> 5 & 1;
    ack.window_kb = next(reader);
    ack.words[0] = near(reader, 0);
    ack.partials[0].seq = (uint32_t)near(reader, flow->sent.cumulative);
    ack.partials[0].mask = near(reader, 0);
    ack.paths[0].path = next(reader) % 6;
    ack.paths[0].on_path = kind >> 6 & 1;
    ack.paths[0].by_sequence = kind >> 7;
    ack.next = (uint32_t)near(reader, flow->sack.cumulative);
    ack.paths[0].path_seq = next(reader);
    ack.paths[0].time_stamp = wire_time(now_ns) - next(reader) * 100u;
    return wire_put_ack(at, &ack);
}

static unsigned put_frame_of_flow(struct reader *reader, unsigned kind, uint8_t *at)
{
    if (kind & 8) {
        unsigned path = next(reader) % (flow->qps.count + 1u);
        uint32_t generation = path < flow->qps.count ? flow->qps.qps[path].generation : 1;
        struct wire_qp frame = {.what = (uint8_t)(1 + (kind >> 4) % 3),
                                .path = (uint16_t)path,
                                .generation = generation + next(reader) % 3 - (kind >> 7)};
        if (frame.generation == 0)
            frame.generation = 1;
        return wire_put_qp(at, &frame);
    }
    if (kind & 16) {
        struct wire_demand demand = {(uint32_t)(flow->credit_rx.demand_bytes + near(reader, 0) * 1000)};
        return wire_put_demand(at, &demand);
    }
    if (kind & 32) {
        struct wire_grant grant = {(uint32_t)(flow->credit_tx.granted_bytes + near(reader, 0) * 100),
                                   (uint32_t)near(reader, flow->credit_tx.advertised_bytes)};
        return wire_put_grant(at, &grant);
    }
    return wire_put_flow(at, &(struct wire_flow){FLOW_CLOSED});
}

static unsigned put_frame(struct reader *reader, uint8_t *at, uint32_t *payload)
{
    unsigned kind = next(reader), chosen = next(reader), which = chosen % (FLOW_CONNS + 1);
    which = which < FLOW_CONNS && chosen < 250 ? which + flow_index * FLOW_CONNS
                                               : chosen % (CONNS + 1); /* or of another flow */
    if (chosen >= 240 && chosen < 250)
        which = leader_of(flow_index) + chosen % FLOW_ANNEXES;
    else if (which == CONNS)
        which = ALL_CONNS; /* unknown */
    const struct conn *conn = which < ALL_CONNS ? conns[which] : NULL;
    uint32_t sends = conn ? (uint32_t)conn->delivered : 0, receives = conn ? (uint32_t)conn->recv_base : 0;
    uint32_t freed = conn ? (uint32_t)conn->ring_freed : 0;
    if ((kind & 0x17) == 0x10) { /* of a message that shares its datagram with others, ahead of its receive perhaps */
        struct wire_data part = {.conn = which, .msg = (uint32_t)near(reader, receives)};
        part.total = next(reader) * 40u;
        part.offset = next(reader) * 40u;
        part.length = part.offset <= part.total ? (uint32_t)(part.total - part.offset) : 0;
        if (part.length > 400)
            part.length = 400;
        *payload += part.length;
        return wire_put_data(at, &part);
    }
    switch (kind % 8) {
    case 0: {
        struct wire_eager eager = {.conn = which, .granted = kind & 8};
        eager.msg = (uint32_t)near(reader, receives);
        eager.total = next(reader) * 40u;
        eager.offset = next(reader) * 40u;
        eager.length = eager.offset <= eager.total ? eager.total - eager.offset : 0;
        eager.ring = (uint32_t)near(reader, 0) * 64 + freed;
        if (eager.length > 400)
            eager.length = 400;
        *payload += eager.length;
        return wire_put_eager(at, &eager);
    }
    case 1: {
        struct wire_cts cts = {.conn = which, .msg = (uint32_t)near(reader, sends), .length = next(reader) * 100u};
        cts.stripes = next(reader) % 5;
        if (kind & 8) {
            cts.placeable = 1 + next(reader) % 15;
            cts.slot = next(reader);
            for (unsigned i = 0; i < CORE_PAIRS_MAX; i++)
                cts.keys[i] = key_of(i, cts.slot);
            cts.address = near(reader, 0);
        }
        return wire_put_cts(at, &cts);
    }
    case 2: {
        struct wire_rts rts = {.conn = which, .msg = (uint32_t)near(reader, receives), .total = next(reader) * 100u};
        return wire_put_rts(at, &rts);
    }
    case 3: {
        struct wire_credit credit = {.conn = which, .delivered = (uint32_t)near(reader, sends)};
        credit.eager_total = (uint32_t)near(reader, 2048) * 64;
        credit.beyond = near(reader, 0);
        return wire_put_credit(at, &credit);
    }
    case 4: {
        struct wire_abort end = {.conn = which, .of_send = kind & 8, .status = -1 - next(reader)};
        end.msg = (uint32_t)near(reader, end.of_send ? receives : sends);
        return wire_put_abort(at, &end);
    }
    case 5: {
        struct wire_fin fin = {.conn = which, .sends_over = kind & 8, .receives_over = kind & 16};
        return wire_put_fin(at, &fin);
    }
    case 6:
        return put_ack(reader, kind, at);
    default:
        return put_frame_of_flow(reader, kind, at);
    }
}

/* What a NIC that places payload does: things arrive, finish, fail, in any order. */
static void nic(struct reader reader)
{
    unsigned what = next(&reader);
    turn_to(0);
    uint16_t path = (uint16_t)(next(&reader) % (flow->qps.count + 1u));
    uint32_t generation = path < flow->qps.count ? flow->qps.qps[path].generation : 1;
    if (what & 0x80)
        generation += next(&reader);
    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        core_rx_immediate(core, flow, path, generation, wire_immediate(next(&reader), near(&reader, flow->sack.end)),
                          next(&reader) * (what & 0x40 ? 1000000u : 500u), now_ns);
        break;
    case 3:
        core_tx_done(core, last_cookie + (uint64_t)(int8_t)next(&reader), now_ns);
        break;
    case 4:
        core_qp_failed(core, flow, path, generation, now_ns);
        break;
    case 5:
        if (drain_count > 0) {
            struct core_qp_action action = drains[--drain_count];
            core_qp_drained(core, flows[0], action.path, action.generation, now_ns);
        }
        break;
    case 6: { /* a retransmission, or what pretends to be one */
        struct tx_desc desc = {.kind = TX_BULK,
                               .token = rx_tokens[0],
                               .mask = 1,
                               .count = 1,
                               .sequenced = true,
                               .retransmission = true,
                               .on_path = !(what & 0x20),
                               .path = path};
        uint8_t datagram[WIRE_BULK_HEADER_BYTES + 1024] = {0};
        desc.conn_id = next(&reader) % 2;
        desc.seq = near(&reader, flow->sack.end);
        desc.path_seq = next(&reader);
        desc.msg_number = (uint32_t)near(&reader, conns[desc.conn_id] ? conns[desc.conn_id]->recv_base : 0);
        desc.msg_total = next(&reader) * 200u;
        desc.bulk_offset = next(&reader) * 200u;
        desc.bulk_last = next(&reader) * 4u;
        wire_bulk_header(&desc, 0, 0, crc32c_portable, datagram);
        core_rx_on_qp(core, flow, path, generation, datagram, WIRE_BULK_HEADER_BYTES + desc.bulk_last, now_ns);
        copies();
        break;
    }
    default:
        if (what & 8 && rails > 1) {
            core_destination_changed(core, what >> 5 & 1, what & 0x10, now_ns);
            break;
        }
        core_qp_opened(core, flow, path, generation, 1, 1, now_ns);
        core_qp_connected(core, flow, path, generation, now_ns);
        core_qp_drained(core, flow, path, generation ^ (what >> 4), now_ns);
    }
}

/* A datagram of frames, or of bulk data. */
static void receive_frames(const uint8_t *data, size_t length)
{
    static uint8_t datagram[WIRE_HEADER_BYTES + 16 * (WIRE_ACK_BYTES_MAX + 400)];
    struct reader reader = {data, data + length};
    unsigned flags = next(&reader);
    turn_to(flags >> 5 & 1);
    struct tx_desc desc = {.kind = flags & 1 ? TX_BULK : TX_FRAMES, .token = rx_tokens[flow_index], .mask = 1};
    desc.sequenced = flags & 2 || flags & 1;
    desc.retransmission = flags & 4;
    desc.count = flags & 8 ? 1 + next(&reader) % CORE_TRAIN_MAX : 1;
    unsigned index = flags & 8 ? next(&reader) % desc.count : 0;
    desc.seq = near(&reader, flow->sack.end);
    desc.path = next(&reader);
    desc.path_seq = next(&reader);
    size_t bytes = WIRE_HEADER_BYTES;
    if (flags & 1) {
        desc.conn_id = flow_index * FLOW_CONNS + next(&reader) % FLOW_CONNS;
        bool on_annex = (flags & 0xc0) == 0xc0;
        if (on_annex)
            desc.conn_id = leader_of(flow_index) + 1;
        desc.msg_number = (uint32_t)near(&reader, conns[desc.conn_id] ? conns[desc.conn_id]->recv_base : 0);
        desc.stripes = next(&reader) % 5;
        desc.msg_total = next(&reader) * 200u;
        if (!on_annex && desc.conn_id % FLOW_CONNS == PART_CONN) {
            desc.msg_total += PART_BYTES;
            desc.bulk_offset = 65536;
        }
        desc.bulk_stride = desc.bulk_last = next(&reader) * 4u;
        desc.bulk_offset += next(&reader) * 200u;
        wire_bulk_header(&desc, index, 0, crc32c_portable, datagram);
        bytes = WIRE_BULK_HEADER_BYTES + desc.bulk_last;
    } else {
        uint32_t payload = 0;
        for (unsigned i = 0; i < 16 && reader.at < reader.end; i++)
            bytes += put_frame(&reader, datagram + bytes, &payload);
        wire_set_header_length(datagram, (uint16_t)bytes);
        bytes += payload;
        wire_seal(&desc, index, datagram, (uint32_t)bytes, crc32c_portable);
    }
    uint8_t *exact = malloc(bytes);
    require(exact);
    memcpy(exact, datagram, bytes);
    arrive(exact, bytes, flags & 16);
    free(exact);
}

static bool is_part_conn(const struct conn *conn)
{
    return conn && (conn == conns[PART_CONN] || conn == conns[FLOW_CONNS + PART_CONN]);
}

static void step(unsigned kind, const uint8_t *data, size_t length)
{
    unsigned first = length ? data[0] : 0, second = length > 1 ? data[1] : 0;
    switch (kind) {
    case 0:
        if (first >= 240)
            post_on_annex(CONNS + first % (ALL_CONNS - CONNS), second & 1, (uint64_t)second * 81);
        else
            post(first % CONNS, second & 1, (uint64_t)second * 80);
        break;
    case 1:
        if (requests[first % REQUESTS].live && is_part_conn(requests[first % REQUESTS].msg.conn))
            core_end_part(core, &requests[first % REQUESTS].msg, now_ns);
        else if (requests[first % REQUESTS].live)
            core_cancel(core, &requests[first % REQUESTS].msg, now_ns);
        break;
    case 2:
        close_conn(first % (first < 240 ? CONNS : ALL_CONNS), second * 1000000u);
        break;
    case 3:
        now_ns += (uint64_t)first << (second % 24);
        core_expire(core, now_ns);
        break;
    case 4:
        core_flush_acks(core);
        if (length > 1) /* the route takes other datagrams from now on */
            core_set_datagram(core, 0, CORE_DATAGRAM_MIN + first * 32);
        break;
    case 5:
        fetch(&requests[first % REQUESTS], second & 1);
        break;
    case 6:
        pull();
        break;
    default:
        nic((struct reader){data, data + length});
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (params.tx_buffers == 0)
        set_params();
    params.cc = size % 3 ? CC_SWIFT : CC_EQDS;
    params.speculate_kb = size % 2;
    rails = size % 5 ? 1 : 2;
    open_all();
    pull();
    while (size >= 3) {
        size_t length = data[1] | (size_t)(data[2] & 7) << 8;
        if (length > size - 3)
            length = size - 3;
        if (data[0] < 0x20)
            receive(data + 3, length);
        else if (data[0] < 0xc0)
            receive_frames(data + 3, length);
        else
            step(data[0] & 7, data + 3, length);
        if (data[0] & 1)
            pull();
        data += 3 + length;
        size -= 3 + length;
    }
    close_all();
    return 0;
}
