/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data QPs (UC) of the simulator's NIC: writes with immediate and sends, straight from and to memory of the application
 * or of a device. Their packets cross the fabric like datagrams; a data QP refuses damaged, reordered and duplicated
 * ones. A work request reads memory when its turn comes, and a write changes memory when it arrives, even if the
 * request has completed meanwhile: payload.c judges both.
 *
 * A device sees what was written to it once a later read has completed.
 *
 * The NIC of a hostile node sends what it likes over its data QPs. The receiving NIC refuses what real ones refuse: a
 * key that names no memory of that process, bytes beyond that memory, reads, a data QP that is connected to somebody
 * else. It cannot refuse registered memory, even of a receive that has completed (docs/verbs.md). No peer guesses a
 * key.
 */
#include "nic_queue.h"

#include "../lies.h"
#include "core/wire.h"
#include "payload.h"
#include "seam.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PSN_MASK = 0xffffff,
    READ_NS_MAX = 3000,
    WRITE_BYTES_MAX = 65536, /* UCCL_CHUNK_SIZE_KB, at most */
};

/* The header of a packet. */
struct place_header {
    uint32_t number; /* queue pair that it goes to */
    uint32_t sequence;
    bool write, read;
    uint32_t key, immediate; /* of a write, or a read */
    uint64_t address;
};

struct work {
    struct work *next;
    uint64_t local_address; /* of a write */
    uint32_t local_key;
    uint64_t cookie;
    bool last;        /* of its descriptor */
    uint32_t length;  /* of `packet` */
    uint8_t packet[]; /* header, and payload */
};

enum pair_state { PAIR_MADE, PAIR_UP, PAIR_DRAINING, PAIR_DRAINED };

/* Kept to the end of the run: packets may still name it. */
struct queue_pair {
    struct sim_queue *queue; /* NULL: closed, or killed */
    struct process *process;
    struct nic_qp_id is; /* flow NULL: it was closed */
    unsigned node, nic;
    uint32_t psn, peer_number;
    unsigned peer_node;
    uint8_t state; /* enum pair_state */
    bool error;    /* sends and takes nothing any more */
    bool tell_failed;
    bool has_done; /* poll_done() is to report newest_done */
    uint64_t newest_done;
    struct work *works, **works_tail;
    uint32_t work_count;
    uint64_t turn_ns; /* of its last work */
    uint32_t next_sequence, expected;
};

struct region {
    const struct process *process; /* NULL: it has ended */
    unsigned nic;
    uintptr_t address;
    size_t length;
    bool flush; /* for reads that flush, and nothing else */
};

static struct {
    struct queue_pair **pairs; /* queue pair `number` is pairs[number - 1] */
    uint32_t pair_count;
    struct region *regions; /* likewise by key */
    uint32_t region_count;
} place;

/* Room for one more; it doubles at powers of two. */
static void *grown(void *array, uint32_t count, size_t bytes)
{
    if (count & (count - 1))
        return array;
    void *larger = realloc(array, (count ? 2 * (size_t)count : 1) * bytes);
    if (!larger)
        abort();
    return larger;
}

static void drop_works(struct queue_pair *pair)
{
    while (pair->works) {
        struct work *work = pair->works;
        pair->works = work->next;
        free(work);
    }
    pair->works_tail = &pair->works;
    pair->work_count = 0;
}

void nic_place_end(void)
{
    for (uint32_t i = 0; i < place.pair_count; i++) {
        drop_works(place.pairs[i]);
        free(place.pairs[i]);
    }
    free(place.pairs);
    free(place.regions);
    memset(&place, 0, sizeof place);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static uint32_t add_region(const struct sim_nic *nic, unsigned index, const void *address, size_t length, bool flush)
{
    place.regions = grown(place.regions, place.region_count, sizeof *place.regions);
    place.regions[place.region_count++] = (struct region){nic->process, index, (uintptr_t)address, length, flush};
    return place.region_count;
}

static int place_reg_mr(struct nic *base, unsigned index, void *address, size_t length, struct nic_mr *out)
{
    struct sim_nic *nic = sim_nic_of(base);
    uint32_t key = add_region(nic, index, address, length, false);
    *out = (struct nic_mr){.local_key = key, .remote_key = key, .handle = nic, .nic = (uint8_t)index};
    return UCCL_OK;
}

static int place_reg_device(struct nic *base, unsigned index, const struct nic_device_memory *memory,
                            struct nic_mr *out, char why[NIC_WHY_TEXT])
{
    struct sim_nic *nic = sim_nic_of(base);
    snprintf(why, NIC_WHY_TEXT, "not this memory");
    if (machine_random(1000) < nic->options.unreachable_permille)
        return UCCL_ENOTSUP;
    int error = place_reg_mr(base, index, (void *)memory->address, memory->length, out);
    if (!error) {
        out->flush_key = add_region(nic, index, (void *)memory->address, 1, true);
        out->flush_handle = nic;
        out->flush_address = memory->address;
    }
    return error;
}

static void drop_region(struct sim_nic *nic, uint32_t key)
{
    struct region *region = &place.regions[key - 1];
    if (region->process != nic->process)
        machine_fail("memory of node %u is deregistered twice", nic->process->index);
    region->process = NULL;
}

static void place_dereg_mr(struct nic *base, struct nic_mr *mr)
{
    struct sim_nic *nic = sim_nic_of(base);
    if (mr->handle)
        drop_region(nic, mr->local_key);
    if (mr->flush_handle)
        drop_region(nic, mr->flush_key);
}

void nic_place_check_memory(const struct process *process)
{
    for (uint32_t i = 0; i < place.region_count; i++)
        if (place.regions[i].process == process)
            machine_fail("node %u leaves registered memory", process->index);
}

void nic_place_drop_memory(const struct process *process)
{
    for (uint32_t i = 0; i < place.region_count; i++)
        if (place.regions[i].process == process)
            place.regions[i].process = NULL;
}

static bool allows(const struct process *process, unsigned nic, uint32_t key, uint64_t address, size_t length,
                   bool flush)
{
    const struct region *region = key && key <= place.region_count ? &place.regions[key - 1] : NULL;
    return region && region->process == process && region->nic == nic && region->flush == flush &&
           address >= region->address && address - region->address <= region->length &&
           length <= region->length - (address - region->address);
}

static void check_region(const struct process *process, unsigned nic, uint32_t key, uint64_t address, size_t length,
                         bool flush, const char *doing)
{
    if (!allows(process, nic, key, address, length, flush))
        machine_fail("NIC %u of node %u %s %zu bytes that key %u does not allow", nic, process->index, doing, length,
                     key);
}

static bool place_flush_device(struct nic_queue *base, const struct nic_mr *mr, void *cookie)
{
    struct sim_queue *queue = sim_queue_of(base);
    if (queue->read_count == NIC_READS_MAX)
        return false;
    check_region(queue->nic->process, mr->nic, mr->flush_key, mr->flush_address, 1, true, "reads");
    uint64_t done_ns = machine.now_ns + machine_random(READ_NS_MAX);
    if (queue->read_count && queue->reads[queue->read_count - 1].done_ns > done_ns)
        done_ns = queue->reads[queue->read_count - 1].done_ns;
    queue->reads[queue->read_count++] = (struct nic_flushing_read){cookie, machine.now_ns, done_ns};
    return true;
}

static unsigned place_poll_flushed(struct nic_queue *base, struct nic_flushed *out, unsigned max)
{
    struct sim_queue *queue = sim_queue_of(base);
    unsigned count = 0;
    while (count < max && count < queue->read_count && queue->reads[count].done_ns <= machine.now_ns) {
        payload_flushed(queue->nic->process, queue->reads[count].posted_ns);
        out[count] = (struct nic_flushed){.cookie = queue->reads[count].cookie};
        count++;
    }
    queue->read_count -= count;
    memmove(queue->reads, queue->reads + count, queue->read_count * sizeof queue->reads[0]);
    return count;
}

/* ---- queue pairs ----------------------------------------------------------------------------- */

static struct queue_pair *find(const struct sim_queue *queue, const struct nic_qp_id *id)
{
    for (uint32_t i = place.pair_count; i-- > 0;) {
        struct queue_pair *pair = place.pairs[i];
        if (pair->queue == queue && pair->is.flow && pair->is.destination == id->destination &&
            pair->is.path == id->path && pair->is.generation == id->generation)
            return pair;
    }
    return NULL;
}

static void wake(const struct queue_pair *pair)
{
    if (!pair->queue)
        return;
    pair->queue->woken = true; /* if it does not sleep yet, it need not */
    machine_wake(pair->process, pair->queue, 1);
}

static void to_error(struct queue_pair *pair)
{
    pair->error = true;
    drop_works(pair);
}

static int place_qp_open(struct nic_queue *base, const struct nic_qp_id *id, uint32_t *number, uint32_t *psn)
{
    struct sim_queue *queue = sim_queue_of(base);
    unsigned nic = queue->peers[id->destination].nic;
    if (machine_random(1000000) < queue->nic->options.open_fail_ppm || queue->nic->gone >> nic & 1)
        return UCCL_EIO;
    if (find(queue, id))
        machine_fail("a queue pair is made twice");
    struct queue_pair *pair = calloc(1, sizeof *pair);
    if (!pair)
        abort();
    place.pairs = grown(place.pairs, place.pair_count, sizeof(void *));
    place.pairs[place.pair_count++] = pair;
    *pair = (struct queue_pair){.queue = queue,
                                .process = queue->nic->process,
                                .is = *id,
                                .node = queue->nic->process->index,
                                .nic = nic,
                                .psn = machine_random(PSN_MASK),
                                .works_tail = &pair->works};
    *number = place.pair_count;
    *psn = pair->psn;
    return UCCL_OK;
}

static int place_qp_connect(struct nic_queue *base, const struct nic_qp_id *id, uint32_t number, uint32_t psn)
{
    struct sim_queue *queue = sim_queue_of(base);
    struct queue_pair *pair = find(queue, id);
    if (machine_random(1000000) < queue->nic->options.open_fail_ppm)
        return UCCL_EIO;
    const struct queue_pair *peer = number && number <= place.pair_count ? place.pairs[number - 1] : NULL;
    unsigned node = queue->peers[id->destination].node;
    bool known = peer && peer->psn == psn && peer->node == node && peer->is.path == id->path &&
                 peer->nic == queue->peers[id->destination].nic;
    if (!pair || pair->state != PAIR_MADE || (!known && !nic_sim_lies(node) && !nic_sim_lies(pair->node)))
        machine_fail("a queue pair of node %u is connected to a stranger", pair ? pair->node : 0);
    pair->peer_number = number;
    pair->peer_node = node;
    pair->state = PAIR_UP;
    return UCCL_OK;
}

/* The drain is done; what had arrived is in the inbox. */
static void drained(void *what, uint64_t extra)
{
    struct queue_pair *pair = what;
    (void)extra;
    to_error(pair);
    wake(pair);
}

static void place_qp_drain(struct nic_queue *base, const struct nic_qp_id *id)
{
    struct sim_queue *queue = sim_queue_of(base);
    struct queue_pair *pair = find(queue, id);
    if (!pair || pair->state > PAIR_UP)
        machine_fail("a queue pair is drained that is not there, or twice");
    pair->state = PAIR_DRAINING;
    pair->tell_failed = false;
    machine_at(machine.now_ns + machine_random(queue->nic->options.drain_ns), drained, pair, 0);
}

static void place_qp_destroy(struct nic_queue *base, const struct nic_qp_id *id)
{
    struct sim_queue *queue = sim_queue_of(base);
    struct queue_pair *pair = find(queue, id);
    if (!pair || pair->state != PAIR_DRAINED)
        machine_fail("a queue pair is closed that was not drained");
    pair->is.flow = NULL;
}

void nic_place_forget(struct sim_queue *queue, uint32_t destination)
{
    for (uint32_t i = 0; i < place.pair_count; i++) {
        struct queue_pair *pair = place.pairs[i];
        if (pair->queue != queue || pair->is.destination != destination)
            continue;
        to_error(pair);
        pair->is.flow = NULL;
    }
}

void nic_place_kill(struct sim_queue *queue)
{
    for (uint32_t i = 0; i < place.pair_count; i++) {
        struct queue_pair *pair = place.pairs[i];
        if (pair->queue != queue)
            continue;
        to_error(pair);
        pair->queue = NULL;
    }
}

static struct queue_pair *pair_of(const struct packet *packet, struct place_header *header)
{
    memcpy(header, packet->bytes, sizeof *header);
    return place.pairs[header->number - 1];
}

/* Whether received packets of it wait to be polled. */
static bool has_received(const struct queue_pair *pair)
{
    struct place_header header;
    for (const struct packet *packet = pair->queue->inbox; packet; packet = packet->next)
        if (packet->port == NIC_PLACE_PORT && pair_of(packet, &header) == pair)
            return true;
    return false;
}

static bool place_qp_event(struct nic_queue *base, struct nic_qp_event *out)
{
    struct sim_queue *queue = sim_queue_of(base);
    for (uint32_t i = 0; i < place.pair_count; i++) {
        struct queue_pair *pair = place.pairs[i];
        if (pair->queue != queue || !pair->is.flow)
            continue;
        bool drained = pair->state == PAIR_DRAINING && pair->error && !has_received(pair);
        if (!drained && !pair->tell_failed)
            continue;
        if (drained)
            pair->state = PAIR_DRAINED;
        pair->tell_failed = false;
        *out = (struct nic_qp_event){.id = pair->is, .drained = drained};
        return true;
    }
    return false;
}

static unsigned place_poll_done(struct nic_queue *base, struct nic_done *done, unsigned max)
{
    struct sim_queue *queue = sim_queue_of(base);
    unsigned count = 0;
    for (uint32_t i = 0; i < place.pair_count && count < max; i++) {
        struct queue_pair *pair = place.pairs[i];
        if (pair->queue != queue || !pair->is.flow || !pair->has_done)
            continue;
        pair->has_done = false;
        done[count++] = (struct nic_done){.cookie = pair->newest_done};
    }
    return count;
}

/* ---- what goes out, and lies ----------------------------------------------------------------- */

/* Sends a packet of `length` bytes; sets the sequence number in its header. */
static void put(struct queue_pair *pair, uint8_t *packet, uint32_t length)
{
    struct place_header header;
    memcpy(&header, packet, sizeof header);
    header.sequence = pair->next_sequence++;
    memcpy(packet, &header, sizeof header);
    const struct fabric_way way = {pair->node, pair->peer_node, pair->nic, NIC_PLACE_PORT, pair->is.path};
    fabric_send(&way, packet, length, length);
}

static struct liar *liar_of(const struct queue_pair *pair)
{
    return pair->queue->peers[pair->is.destination].liar;
}

/* Sends a write. A key that the liar has not heard matches nothing. Now and then another data QP gets it. */
static void put_write(struct queue_pair *pair, const struct liar_write *write, const uint8_t *payload, uint32_t length)
{
    static uint8_t packet[sizeof(struct place_header) + WRITE_BYTES_MAX + LIE_BYTES_MAX];
    const struct liar *liar = liar_of(pair);
    struct rng *rng = &pair->queue->nic->lies;
    const struct place_header header = {
        .number = rng_below(rng, 16) ? pair->peer_number : rng_below(rng, place.pair_count + 2),
        .write = !write->read,
        .read = write->read,
        .key = liar_knows_key(liar, write->key) ? write->key : write->key | UINT32_C(1) << 31,
        .immediate = write->immediate,
        .address = write->address};
    memcpy(packet, &header, sizeof header);
    memcpy(packet + sizeof header, payload, length < write->length ? length : write->length);
    put(pair, packet, (uint32_t)sizeof header + write->length);
}

/* Sends a twisted write before the right one, or instead of it. True: instead. */
static bool lie_for_write(struct queue_pair *pair, const struct work *work)
{
    struct place_header header;
    struct sim_nic *nic = pair->queue->nic;
    memcpy(&header, work->packet, sizeof header);
    struct liar_write write = {
        .address = header.address, .key = header.key, .immediate = header.immediate, .length = work->length};
    write.length -= (uint32_t)sizeof header;
    uint32_t length = write.length;
    liar_hear_write(liar_of(pair), &write);
    if (rng_below(&nic->lies, 1000) >= nic->options.lies_permille)
        return false;
    liar_twist_write(liar_of(pair), &write);
    put_write(pair, &write, work->packet + sizeof header, length);
    return rng_below(&nic->lies, 2);
}

/* The same for a retransmission. */
static bool lie_for_datagram(struct queue_pair *pair, const struct work *work)
{
    static uint8_t packet[sizeof(struct place_header) + CORE_TRAIN_BYTES_MAX + LIE_BYTES_MAX];
    const uint32_t header_bytes = sizeof(struct place_header);
    struct sim_nic *nic = pair->queue->nic;
    uint32_t length = work->length - header_bytes;
    if (rng_below(&nic->lies, 1000) >= nic->options.lies_permille)
        return false;
    memcpy(packet, work->packet, header_bytes);
    length = (uint32_t)liar_twist(liar_of(pair), work->packet + header_bytes, length, packet + header_bytes);
    put(pair, packet, header_bytes + length);
    return rng_below(&nic->lies, 2);
}

void nic_place_lie(struct sim_queue *queue)
{
    static const uint8_t nothing[LIE_BYTES_MAX];
    for (uint32_t i = 0; i < place.pair_count; i++) {
        struct queue_pair *pair = place.pairs[i];
        struct liar_write write;
        if (pair->queue == queue && pair->is.flow && pair->state == PAIR_UP && !pair->error &&
            liar_invent_write(liar_of(pair), &write))
            put_write(pair, &write, nothing, sizeof nothing);
    }
}

static void transmit(struct queue_pair *pair, struct work *work)
{
    struct place_header header;
    memcpy(&header, work->packet, sizeof header);
    bool instead = liar_of(pair) && (header.write ? lie_for_write(pair, work) : lie_for_datagram(pair, work));
    if (!instead)
        put(pair, work->packet, work->length);
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The data QP fails by itself. */
static void fail(struct queue_pair *pair)
{
    machine_note("qp-fails", pair->node, pair->is.path, pair->is.generation);
    to_error(pair);
    pair->tell_failed = pair->state <= PAIR_UP;
    wake(pair);
}

void nic_place_cut(struct sim_queue *queue, unsigned nic)
{
    for (uint32_t i = 0; i < place.pair_count; i++) {
        struct queue_pair *pair = place.pairs[i];
        if (pair->queue == queue && pair->is.flow && pair->nic == nic && !pair->error)
            fail(pair);
    }
}

/* Executes the next work request. */
static void execute(void *what, uint64_t extra)
{
    struct queue_pair *pair = what;
    struct work *work = pair->works;
    const size_t header_bytes = sizeof(struct place_header);
    (void)extra;
    if (!work || pair->error)
        return;
    pair->works = work->next;
    if (!work->next)
        pair->works_tail = &pair->works;
    pair->work_count--;
    if (work->local_key) {
        check_region(pair->process, pair->nic, work->local_key, work->local_address, work->length - header_bytes, false,
                     "sends");
        payload_nic_read(pair->process, work->local_address, work->packet + header_bytes, work->length - header_bytes);
    }
    transmit(pair, work);
    if (work->last) {
        pair->has_done = true;
        pair->newest_done = work->cookie;
        wake(pair);
    }
    free(work);
    if (machine_random(1000000) < pair->queue->nic->options.fail_ppm)
        fail(pair);
}

/* Adds a work request with room for `length` bytes behind its header; the caller sets a write's fields. */
static struct work *add_work(struct queue_pair *pair, const struct tx_desc *desc, uint32_t length, bool last)
{
    const struct place_header header = {.number = pair->peer_number};
    struct work *work = malloc(sizeof *work + sizeof header + length);
    if (!work)
        abort();
    *work = (struct work){.cookie = desc->cookie, .last = last, .length = (uint32_t)sizeof header + length};
    memcpy(work->packet, &header, sizeof header);
    *pair->works_tail = work;
    pair->works_tail = &work->next;
    pair->work_count++;
    uint64_t at_ns = machine.now_ns + machine_random(pair->queue->nic->options.work_ns);
    pair->turn_ns = at_ns > pair->turn_ns ? at_ns : pair->turn_ns;
    machine_at(pair->turn_ns, execute, pair, 0);
    return work;
}

static void send_write(struct queue_pair *pair, const struct tx_desc *desc, unsigned i)
{
    struct work *work = add_work(pair, desc, desc->place_bytes, i + 1u == desc->count);
    struct place_header header;
    uint64_t at = (uint64_t)i * desc->place_bytes;
    work->local_address = pair->queue->setup.local(desc->bulk_msg, desc->bulk_offset + at, pair->nic, &work->local_key);
    memcpy(&header, work->packet, sizeof header);
    header.write = true;
    header.key = desc->remote_key;
    header.immediate = wire_immediate_after(desc->immediate, i);
    header.address = desc->remote_address + at;
    memcpy(work->packet, &header, sizeof header);
}

static void send_datagrams(struct queue_pair *pair, const struct tx_desc *desc, uint64_t mask)
{
    for (unsigned i = 0; i < desc->count; i++) {
        uint32_t length;
        if (!(mask >> i & 1))
            continue;
        const uint8_t *datagram = nic_sim_lay_out(&pair->queue->setup, desc, i, &length);
        struct work *work = add_work(pair, desc, length, mask >> i == 1);
        memcpy(work->packet + sizeof(struct place_header), datagram, length);
    }
}

bool nic_place_send(struct sim_queue *queue, const struct tx_desc *desc)
{
    const struct nic_qp_id id = {
        .flow = desc->flow, .destination = desc->destination, .generation = desc->generation, .path = desc->path};
    struct queue_pair *pair = find(queue, &id);
    bool writes = desc->kind == TX_PLACE;
    uint64_t mask = writes ? 0 : desc->mask & wire_full_mask(desc->count);
    uint32_t count = writes ? desc->count : (uint32_t)__builtin_popcountll(mask);
    if (!pair || pair->state != PAIR_UP || pair->error || pair->work_count + count > queue->setup.params->qp_depth)
        return false;
    for (unsigned i = 0; writes && i < count; i++)
        send_write(pair, desc, i);
    if (!writes)
        send_datagrams(pair, desc, mask);
    return true;
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* Whether the data QP that the packet names is up and connected to its sender. */
static bool takes(const struct packet *packet, const struct place_header *header)
{
    if (packet->damaged || !header->number || header->number > place.pair_count)
        return false;
    const struct queue_pair *pair = place.pairs[header->number - 1];
    return pair->queue && !pair->error && pair->state != PAIR_MADE && pair->node == packet->to &&
           pair->peer_node == packet->from && pair->nic == packet->nic && header->sequence >= pair->expected;
}

/* Refuses a packet without touching memory; returns false. */
static bool refuse(struct queue_pair *pair, enum drop *why)
{
    struct sim_nic *nic = pair->queue->nic;
    *why = DROP_REFUSED;
    nic->counts.refused++;
    if (nic->options.refusal_fails)
        fail(pair);
    return false;
}

bool nic_place_deliver(struct packet *packet, enum drop *why)
{
    struct place_header header;
    memcpy(&header, packet->bytes, sizeof header);
    *why = DROP_NOBODY;
    if (!takes(packet, &header))
        return false;
    struct queue_pair *pair = place.pairs[header.number - 1];
    uint32_t length = packet->length - (uint32_t)sizeof header;
    bool lies = nic_sim_lies(packet->from) || nic_sim_lies(packet->to);
    if (header.write && !lies)
        check_region(pair->process, pair->nic, header.key, header.address, length, false, "writes");
    if (header.read || (header.write && !allows(pair->process, pair->nic, header.key, header.address, length, false)))
        return refuse(pair, why);
    if (!nic_sim_receive(pair->queue, packet, why)) /* no receive is posted */
        return false;
    pair->expected = header.sequence + 1;
    if (header.write && lies)
        payload_lied_write(header.address, length);
    else if (header.write)
        payload_nic_write(pair->process, header.address, packet->bytes + sizeof header, length);
    return true;
}

bool nic_place_receive(const struct packet *packet, struct nic_rx *rx)
{
    struct place_header header;
    const struct queue_pair *pair = pair_of(packet, &header);
    if (!pair->is.flow)
        return false;
    *rx = (struct nic_rx){.data = packet->bytes + sizeof header,
                          .length = packet->length - (uint32_t)sizeof header,
                          .placed = header.write,
                          .path = pair->is.path,
                          .generation = pair->is.generation,
                          .immediate = header.immediate,
                          .flow = pair->is.flow};
    rx->stride = rx->length;
    return true;
}

static bool place_places(const struct nic_queue *queue, const struct nic_queue_address *theirs)
{
    (void)queue, (void)theirs; /* alike on all nodes */
    return true;
}

const struct nic_memory_ops nic_place_memory_ops = {
    .reg_mr = place_reg_mr,
    .reg_device = place_reg_device,
    .dereg_mr = place_dereg_mr,
};

const struct nic_data_qp_ops nic_place_data_qp_ops = {
    .places = place_places,
    .open = place_qp_open,
    .connect = place_qp_connect,
    .drain = place_qp_drain,
    .destroy = place_qp_destroy,
    .event = place_qp_event,
    .poll_done = place_poll_done,
    .flush_device = place_flush_device,
    .poll_flushed = place_poll_flushed,
};
