/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ports in one verbs engine. Each engine thread has a queue on every port, with queue pairs, completion queues
 * and memory of its own; this file makes one queue of them. Whoever uses the whole names a part by the number of a
 * destination, or by `nic` of what was received or registered. Since queues are independent of each other, a device
 * that fails or is removed takes nothing along but its own.
 *
 * A flow has a rail per pair of ports that reach each other (core/rail.h), with data QPs of its own. Both ends number
 * the pairs alike: verbs_pairs(), from the addresses in the handshake alone.
 *
 * Thread: the queue's owner, but for the calls on a `nic`: any.
 */
#include "nic/verbs/data_qp.h"

#include "nic/datagram.h"
#include "nic/pair.h"

#include <stdlib.h>
#include <string.h>

struct verbs_several {
    struct nic_queue base;
    unsigned count;
    struct verbs_queue *of[NIC_PLACERS_MAX]; /* by port */
    unsigned turn;                           /* whose receives come first */
    uint32_t down, changed;                  /* bits of ports: as event() has told; to be told */
    uint32_t cursor;                         /* the next peer to tell of, of the lowest port in `changed` */
};

static struct verbs_several *several_of(const struct nic_queue *base)
{
    return (struct verbs_several *)(uintptr_t)base;
}

/* The queue that a destination belongs to. */
static struct nic_queue *part_of(const struct nic_queue *base, uint32_t destination)
{
    return &several_of(base)->of[destination >> VERBS_NIC_SHIFT]->base;
}

/* ---- pairs ------------------------------------------------------------------------------------- */

/* InfiniBand's GIDs are no IP addresses, but have a subnet prefix likewise. */
static struct nic_end end_of(bool ethernet, const uint8_t gid[16], uint8_t prefix_bits)
{
    struct nic_end end = {.prefix_bits = prefix_bits};
    if (ethernet)
        end.address = verbs_ip_of(gid);
    else
        end.address.v6.sin6_family = AF_INET6;
    if (!ethernet)
        memcpy(&end.address.v6.sin6_addr, gid, sizeof end.address.v6.sin6_addr);
    return end;
}

static unsigned their_ends(const struct nic_queue_address *theirs, struct nic_end out[NIC_PLACERS_MAX])
{
    unsigned count = verbs_address_count(theirs);
    for (unsigned i = 0; i < count; i++) {
        struct verbs_address address;
        if (verbs_address_decode(theirs, i, &address))
            return 0;
        out[i] = end_of(address.ethernet, address.gid, address.prefix_bits);
    }
    return count;
}

static void swap(struct nic_pair *pair)
{
    *pair = (struct nic_pair){.ours = pair->theirs, .theirs = pair->ours};
}

/* Orders pairs so that the client's ports take turns: flow i is to begin with port i, counted round. */
static void take_turns(struct nic_pair *pairs, unsigned count, unsigned ports)
{
    for (unsigned i = 0; i < count; i++) {
        unsigned at = i;
        while (at < count && pairs[at].ours != i % ports)
            at++;
        if (at == count) /* that one has no more pairs */
            continue;
        struct nic_pair pair = pairs[at];
        memmove(&pairs[i + 1], &pairs[i], (at - i) * sizeof pair);
        pairs[i] = pair;
    }
}

/* As pair.h says, from the client's side; the client's ports take turns. Ports of one engine, or none that share a
 * subnet as far as can be seen, pair up as they are numbered. */
unsigned verbs_pairs(const struct nic *base, const struct nic_queue_address *theirs, bool client, struct nic_pair *out,
                     unsigned max)
{
    const struct verbs_backend *backend = verbs_backend_of(base);
    struct nic_end ours[NIC_PLACERS_MAX], others[NIC_PLACERS_MAX];
    unsigned n = backend->nic_count, m = their_ends(theirs, others);
    for (unsigned i = 0; i < n; i++)
        ours[i] = end_of(backend->nics[i].port->ethernet, backend->nics[i].gid.gid, backend->nics[i].prefix_bits);
    if (m == 0)
        return 0;
    unsigned count = client ? nic_pairs(ours, n, others, m, out, max) : nic_pairs(others, m, ours, n, out, max);
    for (bool none = count == 0; none && count < (n > m ? n : m) && count < max; count++)
        out[count] = (struct nic_pair){(uint8_t)(count % (client ? n : m)), (uint8_t)(count % (client ? m : n))};
    take_turns(out, count, client ? n : m);
    for (unsigned i = 0; i < count && !client; i++)
        swap(&out[i]);
    return count;
}

/* ---- the device -------------------------------------------------------------------------------- */

static unsigned ends_list(const struct nic *base, struct nic_end out[NIC_ENDS_MAX])
{
    const struct verbs_backend *backend = verbs_backend_of(base);
    for (unsigned i = 0; i < backend->nic_count; i++) {
        const struct verbs_nic *nic = &backend->nics[i];
        out[i] = end_of(nic->port->ethernet, nic->gid.gid, nic->prefix_bits);
        out[i].speed_mbps = (uint32_t)nic->port->speed_mbps;
        out[i].mtu = nic->datagram_bytes;
    }
    return backend->nic_count;
}

static int ends_holder(const struct nic *base, const union nic_address *address)
{
    const struct verbs_backend *backend = verbs_backend_of(base);
    for (unsigned i = 0; i < backend->nic_count; i++) {
        union nic_address own = verbs_ip_of(backend->nics[i].gid.gid);
        if (nic_same_host(&own, address))
            return (int)i;
    }
    return -1;
}

static int ends_device(const struct nic *nic, unsigned end)
{
    (void)nic;
    return (int)end;
}

static bool is_up(const struct verbs_nic *nic)
{
    return !verbs_is_gone(nic) && !(atomic_load_explicit(&nic->port_epoch, memory_order_relaxed) & 1);
}

static bool ends_up(const struct nic *nic, unsigned end)
{
    return is_up(&verbs_backend_of(nic)->nics[end]);
}

static bool ends_event(struct nic_queue *base, struct nic_end_event *out)
{
    struct verbs_several *several = several_of(base);
    for (unsigned i = 0; i < several->count; i++) {
        uint32_t bit = UINT32_C(1) << i;
        if (is_up(several->of[i]->nic) == !(several->down & bit))
            continue;
        several->down ^= bit;
        several->changed |= bit;
        several->cursor = 0;
    }
    while (several->changed) {
        unsigned port = (unsigned)__builtin_ctz(several->changed);
        const struct verbs_queue *queue = several->of[port];
        while (several->cursor < queue->peer_count) {
            uint32_t index = several->cursor++;
            if (!queue->peers[index].used)
                continue;
            *out = (struct nic_end_event){.destination = port << VERBS_NIC_SHIFT | index,
                                          .up = !(several->down >> port & 1)};
            return true;
        }
        several->changed &= several->changed - 1;
        several->cursor = 0;
    }
    return false;
}

const struct nic_end_ops verbs_end_ops = {
    .list = ends_list, .holder = ends_holder, .device = ends_device, .up = ends_up, .event = ends_event};

/* ---- the queue --------------------------------------------------------------------------------- */

static void several_close(struct nic_queue *base)
{
    struct verbs_several *several = several_of(base);
    for (unsigned i = 0; i < several->count; i++)
        verbs_queue_ops.close(&several->of[i]->base);
    free(several);
}

static void several_address(const struct nic_queue *base, struct nic_queue_address *out)
{
    const struct verbs_several *several = several_of(base);
    out->length = 0;
    for (unsigned i = 0; i < several->count; i++) {
        struct verbs_address address;
        verbs_address_of(several->of[i], &address);
        verbs_address_append(&address, out);
    }
}

/* All of a peer's datagrams may come by one port. */
static uint64_t several_rx_bytes(const struct nic_queue *base)
{
    const struct verbs_several *several = several_of(base);
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < several->count; i++) {
        uint64_t bytes = verbs_queue_ops.rx_bytes(&several->of[i]->base);
        least = bytes < least ? bytes : least;
    }
    return least;
}

static void several_arm(struct nic_queue *base, uint64_t *timeout_ns)
{
    struct verbs_several *several = several_of(base);
    verbs_arm_all(several->of, several->count, timeout_ns);
}

static void several_wait(struct nic_queue *base, int beside_fd, uint64_t timeout_ns)
{
    (void)beside_fd;
    struct verbs_several *several = several_of(base);
    verbs_wait_all(several->of, several->count, timeout_ns);
}

static void several_wake(struct nic_queue *base)
{
    verbs_queue_ops.wake(&several_of(base)->of[0]->base);
}

static const struct nic_queue_ops several_queue_ops = {.close = several_close,
                                                       .address = several_address,
                                                       .rx_bytes = several_rx_bytes,
                                                       .arm = several_arm,
                                                       .wait = several_wait,
                                                       .wake = several_wake};

/* ---- datagrams --------------------------------------------------------------------------------- */

static int several_route(struct nic_queue *base, const struct nic_host *host, uint32_t *datagram_bytes)
{
    const struct verbs_several *several = several_of(base);
    *datagram_bytes = UINT32_MAX;
    for (unsigned i = 0; i < several->count; i++) {
        uint32_t bytes;
        verbs_datagram_ops.route(&several->of[i]->base, host, &bytes);
        *datagram_bytes = bytes < *datagram_bytes ? bytes : *datagram_bytes;
    }
    return 0;
}

static int several_peer_add(struct nic_queue *base, const struct nic_host *host,
                            const struct nic_queue_address *address, uint32_t *destination, uint32_t *datagram_bytes)
{
    unsigned port = host->nic ? host->nic - 1 : 0;
    return verbs_peer_add(&several_of(base)->of[port]->base, host, address, destination, datagram_bytes);
}

static void several_peer_remove(struct nic_queue *base, uint32_t destination)
{
    verbs_peer_remove(part_of(base, destination), destination);
}

static void count_sent(struct nic_end_counters *end, const struct tx_desc *desc)
{
    uint64_t mask = desc->mask & wire_full_mask(desc->count);
    uint64_t datagrams = desc->kind == TX_PLACE ? desc->count : (unsigned)__builtin_popcountll(mask), bytes;
    if (desc->kind == TX_PLACE)
        bytes = datagrams * desc->place_bytes;
    else
        bytes = datagrams * desc->datagram_bytes -
                (mask >> (desc->count - 1) & 1) * (desc->datagram_bytes - desc->last_bytes);
    COUNT(end, tx_datagrams, datagrams);
    COUNT(end, tx_bytes, bytes);
}

static bool several_send(struct nic_queue *base, const struct tx_desc *desc)
{
    if (!verbs_send(part_of(base, desc->destination), desc))
        return false;
    count_sent(&base->ends[desc->destination >> VERBS_NIC_SHIFT], desc);
    return true;
}

static unsigned several_flush(struct nic_queue *base)
{
    const struct verbs_several *several = several_of(base);
    unsigned lost = 0;
    for (unsigned i = 0; i < several->count; i++)
        lost += verbs_flush(&several->of[i]->base);
    return lost;
}

/*
 * Of a removed device nobody waits for datagrams, so what it still delivers is dropped. The ack of one, by another
 * port, would hold the peer at this way, and each of its frames would lie here until something else wakes the thread.
 */
static unsigned drop_datagrams(struct verbs_queue *queue, struct nic_rx *rx, unsigned count)
{
    unsigned kept = 0;
    for (unsigned i = 0; i < count; i++) {
        if (rx[i].flow) /* the end of a data QP, which is drained */
            rx[kept++] = rx[i];
        else
            verbs_release(&queue->base, &rx[i]);
    }
    return kept;
}

static unsigned several_poll(struct nic_queue *base, struct nic_rx *out, unsigned max)
{
    struct verbs_several *several = several_of(base);
    unsigned count = 0;
    for (unsigned i = 0; i < several->count && count < max; i++) {
        unsigned port = (several->turn + i) % several->count;
        struct verbs_queue *queue = several->of[port];
        unsigned got = verbs_poll(&queue->base, out + count, max - count);
        if (got > 0 && verbs_is_gone(queue->nic))
            got = drop_datagrams(queue, out + count, got);
        for (; got > 0; got--, count++) {
            out[count].nic = (uint8_t)(port + 1);
            COUNT(&base->ends[port], rx_datagrams, 1);
            COUNT(&base->ends[port], rx_bytes, out[count].length);
        }
    }
    several->turn = (several->turn + 1) % several->count;
    return count;
}

static void several_release(struct nic_queue *base, const struct nic_rx *rx)
{
    verbs_release(&several_of(base)->of[rx->nic - 1]->base, rx);
}

static bool several_follow(struct nic_queue *base, uint32_t *destination, uint32_t *datagram_bytes)
{
    const struct verbs_several *several = several_of(base);
    for (unsigned i = 0; i < several->count; i++)
        if (verbs_datagram_ops.follow(&several->of[i]->base, destination, datagram_bytes))
            return true;
    return false;
}

static const struct nic_datagram_ops several_datagram_ops = {.route = several_route,
                                                             .peer_add = several_peer_add,
                                                             .peer_remove = several_peer_remove,
                                                             .send = several_send,
                                                             .flush = several_flush,
                                                             .poll = several_poll,
                                                             .release = several_release,
                                                             .follow = several_follow};

/* ---- data QPs ---------------------------------------------------------------------------------- */

static bool several_places(const struct nic_queue *base, const struct nic_queue_address *theirs)
{
    return verbs_data_qp_ops.places(&several_of(base)->of[0]->base, theirs);
}

static int several_qp_open(struct nic_queue *base, const struct nic_qp_id *id, uint32_t *number, uint32_t *psn)
{
    return verbs_data_qp_open(part_of(base, id->destination), id, number, psn);
}

static int several_qp_connect(struct nic_queue *base, const struct nic_qp_id *id, uint32_t number, uint32_t psn)
{
    return verbs_data_qp_connect(part_of(base, id->destination), id, number, psn);
}

static void several_qp_drain(struct nic_queue *base, const struct nic_qp_id *id)
{
    verbs_data_qp_drain(part_of(base, id->destination), id);
}

static void several_qp_destroy(struct nic_queue *base, const struct nic_qp_id *id)
{
    verbs_data_qp_destroy(part_of(base, id->destination), id);
}

static bool several_qp_event(struct nic_queue *base, struct nic_qp_event *out)
{
    const struct verbs_several *several = several_of(base);
    for (unsigned i = 0; i < several->count; i++)
        if (verbs_data_qp_event(&several->of[i]->base, out))
            return true;
    return false;
}

static unsigned several_poll_done(struct nic_queue *base, struct nic_done *done, unsigned max)
{
    const struct verbs_several *several = several_of(base);
    unsigned count = 0;
    for (unsigned i = 0; i < several->count && count < max; i++)
        count += verbs_poll_done(&several->of[i]->base, done + count, max - count);
    return count;
}

static bool several_flush_device(struct nic_queue *base, const struct nic_mr *mr, void *cookie)
{
    return verbs_flush_device(&several_of(base)->of[mr->nic]->base, mr, cookie);
}

static unsigned several_poll_flushed(struct nic_queue *base, struct nic_flushed *out, unsigned max)
{
    const struct verbs_several *several = several_of(base);
    unsigned count = 0;
    for (unsigned i = 0; i < several->count && count < max; i++)
        count += verbs_poll_flushed(&several->of[i]->base, out + count, max - count);
    return count;
}

static const struct nic_data_qp_ops several_data_qp_ops = {.places = several_places,
                                                           .open = several_qp_open,
                                                           .connect = several_qp_connect,
                                                           .drain = several_qp_drain,
                                                           .destroy = several_qp_destroy,
                                                           .event = several_qp_event,
                                                           .poll_done = several_poll_done,
                                                           .flush_device = several_flush_device,
                                                           .poll_flushed = several_poll_flushed};

/* ---- opening ----------------------------------------------------------------------------------- */

int verbs_several_open(struct verbs_backend *backend, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    struct verbs_several *several = calloc(1, sizeof *several);
    if (!several)
        return UCCL_ENOMEM;
    several->base = (struct nic_queue){.nic = &backend->base,
                                       .ops = &several_queue_ops,
                                       .datagram = &several_datagram_ops,
                                       .data_qp = backend->nics[0].mode == VERBS_UD ? NULL : &several_data_qp_ops};
    for (unsigned i = 0; i < backend->nic_count; i++) {
        int error = verbs_queue_open(&backend->nics[i], setup, &several->of[i]);
        if (error) {
            several_close(&several->base);
            return error;
        }
        several->count++;
    }
    *out = &several->base;
    return 0;
}
