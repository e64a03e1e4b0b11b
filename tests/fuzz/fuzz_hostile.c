/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole sessions of three cores: one that lies (tests/lies.h), its victim, and an honest one, which the victim serves
 * beside it. The liar's own core is real, so that its lies come in every state that a peer can bring about: striped
 * messages with parts on a second flow, staged sends, writes whose bytes leave right behind their announcement, queue
 * pairs that place payload, of one pair of NICs or of two. The input says what applications, time, the network and the
 * liar do.
 *
 * It may end the requests that it is in as it likes. But nothing is written outside a buffer or after its request, each
 * request ends once, the messages between victim and honest core are whole, and all buffers are back in the end.
 */
#include "../lies.h"
#include "../param_defaults.h"
#include "core/crc32c.h"
#include "core/state.h"
#include "require.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum who { VICTIM, LIAR, HONEST, CORES };
enum link { HOME_LINK, PART_LINK, HONEST_LINK, LINKS }; /* HOME_LINK and PART_LINK: victim and liar */
/* CONN_WRITES follows CONN_CONTROL: annexes of a connection that nobody opens. */
enum {
    CONN_STRIPED,
    CONN_STAGED,
    CONN_PARTS,
    CONN_HONEST,
    PLAIN_CONNS,
    CONN_CONTROL = PLAIN_CONNS,
    CONN_WRITES,
    CONNS
};
enum {
    REQUESTS = 96,
    HONEST_BYTES_MAX = 255 * 80, /* of a message between victim and honest core */
    WINDOW_BYTES = 1 << 20,
    DATAGRAM_BYTES = 1472,
    QUEUE_MAX = 2048, /* datagrams under way on a link, each way; what is more is lost */
    PATHS = 4,
    DESCRIPTORS_MAX = 600, /* that a core sends at one moment */
    STEPS_MAX = 400,
    DEAD_STEPS = 20, /* in which the dead-peer time passes: a core that looks less often takes itself for stopped */
    SETTLE_STEPS = 400,
    AHEAD_BYTES = 8000,
    WRITE_BYTES_MAX = 40000,
};
static const enum link link_of[CONNS] = {HOME_LINK, HOME_LINK, PART_LINK, HONEST_LINK, PART_LINK, PART_LINK};
static const struct annex_setup annexes[] = {{.msg_window = 16, .eager_bytes = 8192, .eager_window_kb = 128},
                                             {.msg_window = 16, .ahead_bytes = AHEAD_BYTES}};

struct request {
    struct core_msg msg;
    enum who who;
    unsigned conn;
    bool live, wanted;
    int32_t status;
    unsigned message;              /* on CONN_HONEST: which, of its direction */
    struct request *parent, *part; /* of a striped message: its only part */
    uint64_t spread, total;        /* of its home: bytes that are given to flows, or have arrived; its length then */
    uint8_t *buffer;               /* exactly size_bytes */
};

struct datagram {
    uint32_t length;
    bool write; /* a NIC has placed it */
    uint16_t path;
    uint32_t generation, immediate;
    uint8_t bytes[];
};

struct end {
    struct core *core;
    struct flow *flow;
    void *flow_memory;
    struct datagram *queue[QUEUE_MAX]; /* to it */
    unsigned head, tail;
};

static struct params params;
static struct counters counters[CORES];
static struct core *cores[CORES];
static struct end ends[LINKS][2]; /* 0: of the victim */
static struct conn *conns[CONNS][2];
static void *conn_memory[CONNS][2];
static bool closed[CONNS][2];
static struct request requests[REQUESTS];
static unsigned honest_posted[2][2], honest_whole; /* by side and kind */
static struct liar liars[2];                       /* of the links to the victim */
static enum liar_habit habit;
static unsigned lies_permille;
static uint64_t now_ns;
static bool places, liar_is_silent;
static unsigned pairs; /* of NICs, on HOME_LINK */
static struct rng script;

static unsigned other_of(enum link link)
{
    return link == HONEST_LINK ? HONEST : LIAR;
}

static uint8_t content(unsigned side, unsigned message, uint64_t offset)
{
    return (uint8_t)(side * 101 + message * 37 + offset * 2654435761u / 251);
}

/* ---- the wire -------------------------------------------------------------------------------- */

static struct datagram *queued(struct end *to, size_t bytes)
{
    if (to->tail - to->head == QUEUE_MAX)
        return NULL;
    struct datagram *datagram = malloc(sizeof *datagram + bytes);
    require(datagram);
    *datagram = (struct datagram){.length = (uint32_t)bytes};
    to->queue[to->tail++ % QUEUE_MAX] = datagram;
    return datagram;
}

static void put(struct end *to, const uint8_t *bytes, size_t length)
{
    struct datagram *datagram = queued(to, length);
    if (datagram)
        memcpy(datagram->bytes, bytes, length);
}

/* What the liar's core sends to the victim. */
static void put_lies(enum link link, const uint8_t *bytes, size_t length)
{
    static uint8_t spoilt[LIE_BYTES_MAX], twisted[2 * LIE_BYTES_MAX];
    struct liar *liar = &liars[link];
    struct end *to = &ends[link][0];
    bool instead = false;
    if (liar_is_silent)
        return;
    liar_hear(liar, bytes, length);
    liar_spoil(liar, habit, bytes, length, spoilt);
    if (rng_below(&script, 1000) < lies_permille) {
        size_t other = liar_twist(liar, spoilt, length, twisted);
        put(to, twisted, other);
        instead = rng_below(&script, 2);
    }
    if (!instead)
        put(to, spoilt, length);
}

static void send_datagram(enum link link, unsigned side, const uint8_t *bytes, size_t length)
{
    if (side == 1 && link != HONEST_LINK)
        put_lies(link, bytes, length);
    else
        put(&ends[link][!side], bytes, length);
}

static void invent(enum link link)
{
    static uint8_t made[LIE_BYTES_MAX];
    size_t length = liar_invent(&liars[link], DATAGRAM_BYTES, made);
    if (length && !liar_is_silent)
        put(&ends[link][0], made, length);
}

/* ---- out ------------------------------------------------------------------------------------- */

static const uint8_t *read_from(const struct core_msg *msg, uint64_t offset, uint32_t length)
{
    const struct request *request = (const struct request *)msg;
    require(request->live && msg->kind == CORE_SEND);
    require(offset <= msg->size_bytes && length <= msg->size_bytes - offset);
    return request->buffer + offset;
}

/* False: the victim's NIC refuses it, since it names other memory, or reads. */
static bool lie_about(enum link link, struct liar_write *write)
{
    const struct liar_write right = *write;
    liar_hear_write(&liars[link], write);
    if (rng_below(&script, 1000) < lies_permille)
        liar_twist_write(&liars[link], write);
    return !write->read && write->key == right.key && write->address == right.address;
}

static void place_writes(enum link link, unsigned side, const struct tx_desc *desc)
{
    if (side == 1) /* what the victim has granted to that NIC */
        require(desc->remote_key == 1u + ends[link][1].flow->rails[desc->rail].pair);
    for (unsigned i = 0; i < desc->count; i++) {
        read_from(desc->bulk_msg, desc->bulk_offset + (uint64_t)i * desc->place_bytes, desc->place_bytes);
        struct liar_write said = {.address = desc->remote_address + (uint64_t)i * desc->place_bytes,
                                  .key = desc->remote_key,
                                  .immediate = wire_immediate_after(desc->immediate, i),
                                  .length = desc->place_bytes};
        if (side == 1 && !lie_about(link, &said))
            continue;
        struct datagram *write = queued(&ends[link][!side], 0);
        if (!write)
            return;
        write->write = true;
        write->path = desc->path;
        write->generation = desc->generation;
        write->length = said.length;
        write->immediate = said.immediate;
    }
}

static void send_desc(enum who who, const struct tx_desc *desc)
{
    static uint8_t bulk[LIE_BYTES_MAX];
    enum link link = (enum link)(desc->destination / 2 % LINKS);
    unsigned side = desc->destination % 2;
    require((side ? other_of(link) : VICTIM) == who);
    if (desc->kind == TX_PLACE) {
        place_writes(link, side, desc);
    }
    for (unsigned i = 0; desc->kind == TX_FRAMES && i < desc->piece_count; i++) {
        const struct tx_piece *piece = &desc->pieces[i];
        memcpy(desc->buffer + piece->at, read_from(piece->msg, piece->offset_bytes, piece->length), piece->length);
    }
    for (unsigned i = 0; desc->kind != TX_PLACE && i < desc->count; i++) {
        uint32_t length = i + 1u == desc->count ? desc->last_bytes : desc->datagram_bytes;
        if (!(desc->mask >> i & 1))
            continue;
        if (desc->kind == TX_BULK) {
            uint32_t bytes = length - WIRE_BULK_HEADER_BYTES;
            wire_bulk_header(desc, i, 0, crc32c_portable, bulk);
            memcpy(bulk + WIRE_BULK_HEADER_BYTES,
                   read_from(desc->bulk_msg, desc->bulk_offset + (uint64_t)i * desc->bulk_stride, bytes), bytes);
            send_datagram(link, side, bulk, length);
        } else {
            uint8_t *at = desc->buffer + (size_t)i * desc->datagram_bytes;
            wire_seal(desc, i, at, length, crc32c_portable);
            send_datagram(link, side, at, length);
        }
    }
    if (desc->on_path)
        core_tx_done(cores[who], desc->cookie, now_ns);
}

static void pull_paths(enum who who)
{
    struct core_qp_action action;
    while (core_next_qp_action(cores[who], &action)) {
        if (action.kind == QP_OPEN)
            core_qp_opened(cores[who], action.flow, action.path, action.generation, action.path + 1, 7, now_ns);
        else if (action.kind == QP_CONNECT)
            core_qp_connected(cores[who], action.flow, action.path, action.generation, now_ns);
        else if (action.kind == QP_DRAIN)
            core_qp_drained(cores[who], action.flow, action.path, action.generation, now_ns);
    }
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct request *request_make(enum who who, unsigned conn, unsigned kind, uint64_t size)
{
    for (unsigned i = 0; i < REQUESTS; i++) {
        struct request *request = &requests[i];
        if (request->live || request->buffer)
            continue;
        *request = (struct request){.who = who, .conn = conn, .live = true};
        request->msg.kind = (uint8_t)kind;
        request->msg.size_bytes = size;
        request->buffer = malloc(size ? size : 1);
        require(request->buffer);
        return request;
    }
    return NULL;
}

static void collect(struct request *request)
{
    free(request->buffer);
    request->buffer = NULL;
}

static void copies(enum who who)
{
    struct core_copy copy;
    struct core_release release;
    while (core_next_release(cores[who], &release))
        require(((struct request *)release.msg)->live);
    while (core_next_copy(cores[who], &copy)) {
        if (!copy.msg) {
            memcpy(copy.to, copy.from, copy.length);
            continue;
        }
        struct request *request = (struct request *)copy.msg;
        require(request->live && request->who == who && copy.msg->kind == CORE_RECV);
        require(copy.offset_bytes <= copy.msg->size_bytes && copy.length <= copy.msg->size_bytes - copy.offset_bytes);
        uint8_t *to = request->parent ? request->parent->buffer : request->buffer;
        memcpy(to + copy.offset_bytes, copy.from, copy.length);
    }
}

static void post(unsigned conn, unsigned side, unsigned kind, uint64_t size)
{
    enum who who = side ? other_of(link_of[conn]) : VICTIM;
    if (!conns[conn][side] || closed[conn][side] || conn == CONN_PARTS)
        return;
    struct request *request = request_make(who, conn, kind, size);
    if (!request)
        return;
    bool has_parts = conns[CONN_PARTS][side] && !closed[CONN_PARTS][side];
    bool striped = conn == CONN_STRIPED && kind == CORE_RECV && !places && has_parts && size > 64 * 1024;
    struct request *part = striped ? request_make(who, CONN_PARTS, kind, size) : NULL;
    if (kind == CORE_SEND) {
        request->message = honest_posted[side][CORE_SEND];
        for (uint64_t i = 0; conn == CONN_HONEST && i < size; i++) /* of the others nobody reads any */
            request->buffer[i] = content(side, request->message, i);
    } else {
        request->message = honest_posted[side][CORE_RECV];
        memset(request->buffer, 0, size);
    }
    honest_posted[side][kind] += conn == CONN_HONEST;
    request->msg.stripes = part ? 2 : 0;
    request->msg.block_bytes = conn == CONN_STAGED && kind == CORE_SEND && size ? 4096 : 0;
    request->msg.placeable = places && link_of[conn] == HOME_LINK ? (uint8_t)(pairs > 1 ? 1 + size % 3 : 1) : 0;
    request->msg.ahead = conn == CONN_WRITES;
    request->msg.watched = kind == CORE_RECV && size & 1 && conn < PLAIN_CONNS;
    for (unsigned i = 0; i < CORE_PAIRS_MAX; i++)
        request->msg.grant_keys[i] = 1 + i;
    request->msg.grant_address = 4096;
    core_submit(cores[who], conns[conn][side], &request->msg, now_ns);
    copies(who);
    if (part) {
        part->msg.number = request->msg.number;
        part->msg.watched = request->msg.watched;
        part->msg.stripes = 2;
        part->parent = request;
        request->part = part;
        core_submit_part(cores[who], conns[CONN_PARTS][side], &part->msg, now_ns);
        copies(who);
    }
}

/* A write, as one-sided operations make them: announced, and not granted. */
static void post_write(unsigned side, uint64_t size)
{
    post(CONN_CONTROL, !side, CORE_RECV, 500);
    post(CONN_CONTROL, side, CORE_SEND, 48);
    post(CONN_WRITES, side, CORE_SEND, size);
}

/* A part of the send, if it is to have one. */
static void split(struct request *request)
{
    unsigned side = request->who != VICTIM;
    struct request *part = NULL;
    if (request->msg.stripes == 2 && conns[CONN_PARTS][side] && !closed[CONN_PARTS][side])
        part = request_make(request->who, CONN_PARTS, CORE_SEND, request->msg.size_bytes);
    if (!part) {
        core_unsplit(cores[request->who], &request->msg);
        return;
    }
    memset(part->buffer, 0x5a, part->msg.size_bytes);
    part->msg.number = request->msg.number;
    part->msg.stripes = 2;
    part->parent = request;
    request->part = part;
    request->spread = 0;
    core_submit_part(cores[request->who], conns[CONN_PARTS][side], &part->msg, now_ns);
}

/* Home and part take turns, as they have sent what they had. */
static void give_range(struct request *request, uint64_t bytes)
{
    struct request *home = request->parent ? request->parent : request;
    require(request->live && bytes);
    if (home == request && request->msg.end_bytes == 0)
        split(request);
    if (home == request && request->msg.stripes == 0)
        return;
    uint64_t from = home->spread, left = home->msg.size_bytes - from;
    if (!home->live)
        left = 0;
    home->spread += left < bytes ? left : bytes;
    core_send_range(cores[request->who], &request->msg, from, from + (left < bytes ? left : bytes));
}

static void add_up(struct request *request, const struct core_event *event)
{
    struct request *home = request->parent ? request->parent : request;
    require(request->live && event->bytes && event->total <= request->msg.size_bytes);
    if (!home->live || (home->total && home->total != event->total))
        return;
    bool before = home->total && home->spread >= home->total;
    home->total = event->total;
    home->spread += event->bytes;
    if (!before && home->spread >= home->total)
        core_msg_whole(cores[home->who], &home->msg, home->total, now_ns);
}

static void check_honest(const struct request *request)
{
    require(request->status == UCCL_OK);
    if (request->msg.kind == CORE_SEND)
        return;
    unsigned from = request->who == VICTIM;
    for (uint64_t i = 0; i < request->msg.moved_bytes; i++)
        require(request->buffer[i] == content(from, request->message, i));
    honest_whole++;
}

static bool settling; /* connections are being closed */

static void msg_over(struct request *request, int32_t status)
{
    require(request->live && status <= 0 && request->msg.moved_bytes <= request->msg.size_bytes);
    request->live = false;
    request->status = status;
    if (request->conn == CONN_HONEST && !settling)
        check_honest(request);
    if (request->conn == CONN_CONTROL && request->msg.kind == CORE_RECV && status == UCCL_OK)
        post(CONN_WRITES, request->who != VICTIM, CORE_RECV, request->buffer[0] * (WRITE_BYTES_MAX / 255u));
    if (request->parent) {
        struct request *home = request->parent;
        home->part = NULL;
        if (home->live && status != UCCL_OK)
            core_cancel(cores[home->who], &home->msg, now_ns);
        if (!home->live)
            collect(home);
    } else if (request->part) {
        /* the buffer stays until its part is over */
        if (!(request->msg.kind == CORE_SEND && status == UCCL_OK))
            core_end_part(cores[request->who], &request->part->msg, now_ns);
        return;
    }
    collect(request);
}

static void conn_over(void *owner)
{
    unsigned index = (unsigned)((struct conn **)owner - &conns[0][0]);
    require(index < 2 * CONNS && closed[index / 2][index % 2]);
    for (unsigned i = 0; i < REQUESTS; i++)
        require(!requests[i].live || requests[i].msg.conn != conns[index / 2][index % 2]);
    conns[index / 2][index % 2] = NULL;
    if (index / 2 < PLAIN_CONNS) /* annexes know each other */
        free(conn_memory[index / 2][index % 2]);
}

static void pull_events(enum who who)
{
    struct core_event event;
    while (core_next_event(cores[who], &event)) {
        struct request *request = (struct request *)event.msg;
        if (event.kind == CORE_EVENT_MSG) {
            msg_over(request, event.msg->status);
        } else if (event.kind == CORE_EVENT_RANGE) {
            give_range(request, event.bytes);
        } else if (event.kind == CORE_EVENT_ARRIVED) {
            add_up(request, &event);
        } else if (event.kind == CORE_EVENT_WANTED) {
            require(request->live && event.msg->block_bytes);
            request->wanted = true;
        } else if (event.kind == CORE_EVENT_CONN_ENDED) {
            conn_over(event.owner);
        }
    }
}

static void fetch_all(void)
{
    for (unsigned i = 0; i < REQUESTS; i++) {
        struct request *request = &requests[i];
        if (request->live && request->wanted) {
            request->wanted = false;
            core_available(cores[request->who], &request->msg, request->msg.end_bytes, now_ns);
        }
    }
}

static void pull(enum who who)
{
    struct tx_desc desc;
    unsigned sent = 0;
    pull_paths(who);
    pull_events(who);
    while (sent < DESCRIPTORS_MAX && core_tx(cores[who], &desc, now_ns)) {
        send_desc(who, &desc);
        copies(who);
        sent++;
    }
    pull_events(who);
    pull_paths(who);
}

/* ---- in -------------------------------------------------------------------------------------- */

static void arrive(enum link link, unsigned side, const struct datagram *datagram)
{
    struct end *end = &ends[link][side];
    enum who who = side ? other_of(link) : VICTIM;
    if (datagram->write)
        core_rx_immediate(end->core, end->flow, datagram->path, datagram->generation, datagram->immediate,
                          datagram->length, now_ns);
    else if (datagram->length > 1 && datagram->bytes[1] & WIRE_ON_PATH)
        core_rx_on_qp(end->core, end->flow, (uint16_t)(datagram->bytes[24] | datagram->bytes[25] << 8),
                      end->flow->qps.count ? end->flow->qps.qps[0].generation : 1, datagram->bytes, datagram->length,
                      now_ns);
    else
        core_rx(end->core, datagram->bytes, datagram->length, false, now_ns);
    copies(who);
}

static void deliver(enum link link, unsigned side, unsigned count, bool lose)
{
    struct end *end = &ends[link][side];
    for (; count > 0 && end->head != end->tail; count--) {
        struct datagram *datagram = end->queue[end->head++ % QUEUE_MAX];
        if (!lose)
            arrive(link, side, datagram);
        free(datagram);
    }
}

static void deliver_all(void)
{
    for (unsigned link = 0; link < LINKS; link++)
        for (unsigned side = 0; side < 2; side++)
            deliver((enum link)link, side, QUEUE_MAX, false);
}

/* The honest core and the victim are in time for each other. */
static void pass(uint64_t ns)
{
    for (unsigned side = 0; side < 2; side++) {
        pull(side ? HONEST : VICTIM);
        deliver(HONEST_LINK, !side, QUEUE_MAX, false);
    }
    now_ns += ns;
    for (unsigned who = 0; who < CORES; who++)
        core_expire(cores[who], now_ns);
}

/* ---- a session ------------------------------------------------------------------------------- */

static void close_conn(unsigned conn, unsigned side, uint64_t linger_ns)
{
    if (!conns[conn][side] || closed[conn][side])
        return;
    closed[conn][side] = true;
    core_conn_close(cores[side ? other_of(link_of[conn]) : VICTIM], conns[conn][side], linger_ns, now_ns);
}

static void open_annexes(unsigned side, const struct flow_setup *setup)
{
    struct end *end = &ends[PART_LINK][side];
    for (unsigned k = 0; k < 2; k++) {
        unsigned conn = CONN_CONTROL + k, id = PLAIN_CONNS | (k + 1) << CORE_ANNEX_SHIFT;
        conn_memory[conn][side] = zeroed(core_annex_size(setup, &annexes[k]));
        closed[conn][side] = false;
        conns[conn][side] = core_annex_open(end->core, conn_memory[conn][side], end->flow, setup, &annexes[k], id, id,
                                            &conns[conn][side], now_ns);
    }
    core_annex_follow(conns[CONN_WRITES][side], conns[CONN_CONTROL][side]);
}

static void open_link(enum link link)
{
    struct flow_setup setups[2];
    for (unsigned side = 0; side < 2; side++) {
        /* the low bits are the slot of the flow in its core */
        uint64_t slot = 1 + link, other_slot = 1 + link;
        setups[side] =
            (struct flow_setup){.rx_token = core_make_token(100 + 2 * link + side, (uint32_t)slot),
                                .tx_token = core_make_token(100 + 2 * link + !side, (uint32_t)other_slot),
                                .rails = {{.destination = 2 * link + side, .datagram_bytes = DATAGRAM_BYTES},
                                          {.destination = 2 * (link + LINKS) + side, .datagram_bytes = DATAGRAM_BYTES}},
                                .rail_count = link == HOME_LINK ? pairs : 1,
                                .chunk_window = 64,
                                .msg_window = 16,
                                .tx_window_bytes = WINDOW_BYTES,
                                .rx_window_bytes = WINDOW_BYTES,
                                .eager_window_kb = 128,
                                .features = WIRE_FEATURES,
                                .places = places && link == HOME_LINK};
        struct end *end = &ends[link][side];
        end->core = cores[side ? other_of(link) : VICTIM];
        setups[side].owner = end;
        end->flow_memory = zeroed(core_flow_size(&params, &setups[side]));
        end->flow = core_flow_open(end->core, end->flow_memory, &setups[side], now_ns);
        end->head = end->tail = 0;
    }
    for (unsigned conn = 0; conn < PLAIN_CONNS; conn++) {
        for (unsigned side = 0; link_of[conn] == link && side < 2; side++) {
            struct end *end = &ends[link][side];
            void *memory = zeroed(core_conn_size(&setups[side]));
            conn_memory[conn][side] = memory;
            closed[conn][side] = false;
            conns[conn][side] = conn == CONN_PARTS ? core_part_conn_open(end->core, memory, end->flow, &setups[side],
                                                                         conn, conn, &conns[conn][side], now_ns)
                                                   : core_conn_open(end->core, memory, end->flow, &setups[side], conn,
                                                                    conn, &conns[conn][side], now_ns);
        }
    }
    for (unsigned side = 0; link == PART_LINK && side < 2; side++)
        open_annexes(side, &setups[side]);
}

static void open_all(void)
{
    static void *memory[CORES];
    now_ns = 1000000;
    settling = liar_is_silent = false;
    honest_whole = 0;
    memset(requests, 0, sizeof requests);
    memset(honest_posted, 0, sizeof honest_posted);
    for (unsigned who = 0; who < CORES; who++) {
        struct core_setup setup = {.params = &params,
                                   .counters = &counters[who],
                                   .crc32c = crc32c_portable,
                                   .seed = 1 + who,
                                   .whole_trains = true,
                                   .places_in_order = true};
        if (!memory[who])
            memory[who] = zeroed(core_size(&params));
        memset(memory[who], 0, sizeof(struct core));
        cores[who] = core_init(memory[who], &setup, now_ns);
    }
    for (unsigned link = 0; link < LINKS; link++)
        open_link((enum link)link);
}

static void step(uint8_t what, uint8_t how)
{
    unsigned conn = how % PLAIN_CONNS, side = how >> 2 & 1;
    switch (what % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
        if (conn == CONN_HONEST)
            post(conn, side, what & 1, what & 1 ? HONEST_BYTES_MAX : how * 80u);
        else
            post(conn, side, what & 1, (uint64_t)how * how * 3);
        break;
    case 4:
    case 5:
    case 6:
        deliver((enum link)(how % LINKS), side, 1 + (how >> 3), what == 6 && how % LINKS != HONEST_LINK);
        break;
    case 7:
        pass((uint64_t)how << (how % 20));
        break;
    case 8:
    case 9:
        for (unsigned i = 0; i <= how >> 5; i++)
            invent(how & 1 ? PART_LINK : HOME_LINK);
        break;
    case 10:
        if (requests[how % REQUESTS].live && requests[how % REQUESTS].conn < CONN_PARTS)
            core_cancel(cores[requests[how % REQUESTS].who], &requests[how % REQUESTS].msg, now_ns);
        break;
    case 11:
        if (how & 0x80)
            post_write(side, (how & 0x78u) * (WRITE_BYTES_MAX / 0x78));
        else if (conn != CONN_HONEST && (how & 0xf0) == 0)
            close_conn(conn, side, (uint64_t)how * 1000000);
        break;
    case 12:
        fetch_all();
        break;
    case 13:
        lies_permille = how * 4u;
        break;
    case 14:
        deliver_all();
        break;
    default:
        pass(how * 1000u);
    }
    pull((enum who)(what / 16 % CORES));
}

static void round_of_all(uint64_t ns)
{
    for (unsigned who = 0; who < CORES; who++)
        pull((enum who)who);
    fetch_all();
    deliver_all();
    pass(ns);
}

/* What the honest core and the victim have posted that matches is whole in the end, whatever the liar does. */
static void settle(void)
{
    unsigned expected = 0;
    for (unsigned side = 0; side < 2; side++) {
        unsigned sends = honest_posted[side][CORE_SEND], receives = honest_posted[!side][CORE_RECV];
        for (unsigned i = receives; i < sends; i++) /* bounded by what requests there are */
            post(CONN_HONEST, !side, CORE_RECV, HONEST_BYTES_MAX);
        receives = honest_posted[!side][CORE_RECV];
        expected += sends < receives ? sends : receives;
    }
    for (unsigned i = 0; i < SETTLE_STEPS && honest_whole < expected; i++)
        round_of_all(100000);
    require(honest_whole == expected);
}

static void close_all(void)
{
    settling = liar_is_silent = true;
    for (unsigned conn = 0; conn < CONNS; conn++)
        for (unsigned side = 0; side < 2; side++)
            close_conn(conn, side, 0);
    for (unsigned i = 0; i < 4 * DEAD_STEPS; i++)
        round_of_all(params.dead_peer_ms * 1000000 / DEAD_STEPS);
    for (unsigned i = 0; i < 4; i++)
        round_of_all(1000);
    for (unsigned conn = 0; conn < CONNS; conn++)
        require(!conns[conn][0] && !conns[conn][1]);
    for (unsigned side = 0; side < 2; side++) {
        free(conn_memory[CONN_CONTROL][side]);
        free(conn_memory[CONN_WRITES][side]);
    }
    for (unsigned i = 0; i < REQUESTS; i++)
        require(!requests[i].live && !requests[i].buffer);
    for (unsigned link = 0; link < LINKS; link++) {
        for (unsigned side = 0; side < 2; side++) {
            core_flow_close(ends[link][side].core, ends[link][side].flow);
            deliver((enum link)link, side, QUEUE_MAX, true);
            free(ends[link][side].flow_memory);
        }
    }
    for (unsigned who = 0; who < CORES; who++) {
        require(cores[who]->small.count == params.tx_small_buffers && cores[who]->big.count == params.tx_buffers);
        require(core_deadline(cores[who]) == UINT64_MAX);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4)
        return 0;
    if (params.tx_buffers == 0) {
        params = param_defaults();
        params.tx_buffers = 16;
        params.tx_small_buffers = 64;
        params.port_entropy = PATHS;
        params.qp_depth = 64;
    }
    script.state = data[0] | (unsigned)data[1] << 8;
    params.cc = data[2] % 3;
    places = data[2] >> 4 & 1;
    pairs = places && data[2] >> 5 & 1 ? 2 : 1;
    habit = data[3] & 0x80 ? data[3] % LIAR_HABITS : LIAR_HONEST;
    lies_permille = data[3] & 7 ? 1u << (data[3] & 7) : 0;
    for (unsigned link = 0; link < 2; link++)
        liar_init(&liars[link], rng_next(&script));
    open_all();
    for (size_t i = 4; i + 1 < size && i < 4 + 2 * STEPS_MAX; i += 2)
        step(data[i], data[i + 1]);
    settle();
    close_all();
    return 0;
}
