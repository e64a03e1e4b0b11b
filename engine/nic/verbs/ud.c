/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers, and sending datagrams to them on the UD queue pair.
 *
 * Datagrams are copied, header and payload, into the slot of their work request's number, so that flush() leaves no
 * reference to the caller's memory. Short ones without bulk payload go inline: the device's library copies them. Work
 * requests are chained and posted with one doorbell. One per quarter of the queue is signalled; its completion frees
 * all earlier ones.
 *
 * A path is a flow label, from which RoCE devices make the UDP source port.
 */
#include "nic/verbs/data_qp.h"

#include "base/log.h"
#include "core/wire.h"
#include "nic/datagram.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FLOW_LABEL_MASK = 0xfffff, HOPS = 64, COMPLETIONS = 16 };

/* ---- peers ----------------------------------------------------------------------------------- */

static unsigned paths_of(const struct verbs_queue *queue)
{
    unsigned wanted = (unsigned)queue->setup.params->port_entropy;
    return !queue->nic->port->ethernet ? 1 : wanted < VERBS_UD_PATHS_MAX ? wanted : VERBS_UD_PATHS_MAX;
}

static void free_handles(struct verbs_queue *queue, struct verbs_peer *peer)
{
    for (unsigned i = 0; i < VERBS_UD_PATHS_MAX && peer->handles[i]; i++)
        queue->lib->destroy_ah(peer->handles[i]);
}

/*
 * A class that is asked for also chooses the service level on InfiniBand, whose packets have no class: by its three
 * upper bits, as networks map classes to priorities.
 */
struct ibv_ah_attr verbs_route_to(const struct verbs_nic *nic, const struct verbs_address *address, unsigned path,
                                  unsigned traffic_class)
{
    enum { PRIORITY_SHIFT = 5 };
    const struct params *params = nic->params;
    bool by_class = traffic_class && !address->ethernet;
    uint64_t class = traffic_class ? traffic_class : params->ib_tc ? params->ib_tc : params->traffic_class;
    struct ibv_ah_attr attr = {.dlid = address->lid,
                               .sl = (uint8_t)(by_class ? traffic_class >> PRIORITY_SHIFT : params->ib_sl),
                               .port_num = nic->port->number,
                               .is_global = address->ethernet};
    if (!address->ethernet)
        return attr;
    attr.grh = (struct ibv_global_route){.sgid_index = (uint8_t)nic->gid.index,
                                         .hop_limit = HOPS,
                                         .traffic_class = verbs_traffic_class(class),
                                         .flow_label =
                                             (address->qpn * 0x9e3779b1u ^ path * 0x85ebca6bu) >> 8 & FLOW_LABEL_MASK};
    memcpy(attr.grh.dgid.raw, address->gid, sizeof attr.grh.dgid.raw);
    return attr;
}

static int make_handles(struct verbs_queue *queue, struct verbs_peer *peer)
{
    const struct verbs_nic *nic = queue->nic;
    for (unsigned i = 0; i < paths_of(queue); i++) {
        struct ibv_ah_attr attr = verbs_route_to(nic, &peer->address, i, peer->traffic_class);
        peer->handles[i] = queue->lib->create_ah(nic->pd, &attr);
        if (!peer->handles[i]) {
            int error = errno;
            free_handles(queue, peer);
            return verbs_fault(nic, "make an address handle", error) == UCCL_ENOMEM ? UCCL_ENOMEM : UCCL_EADDR;
        }
    }
    return 0;
}

/*
 * Making a handle to a RoCE address waits for its link address: seconds, where nobody answers. This handle is destroyed
 * again, but the link address stays known for a while.
 */
static int reach(struct verbs_nic *nic, const struct verbs_address *address)
{
    char text[VERBS_GID_TEXT];
    if (!address->ethernet || !nic->port->ethernet || verbs_is_gone(nic))
        return UCCL_OK;
    struct ibv_ah_attr attr = verbs_route_to(nic, address, 0, 0);
    struct ibv_ah *handle = nic->lib->create_ah(nic->pd, &attr);
    if (!handle) {
        int error = errno;
        LOG(nic->backend->nic_count == 1 ? UCCL_LOG_ERROR : UCCL_LOG_WARN,
            "verbs device %s: cannot reach GID %s, which a peer gave as its own: %s", nic->port->device,
            verbs_gid_text(address->gid, text), strerror(error));
        return error == ENOMEM ? UCCL_ENOMEM : UCCL_EADDR;
    }
    nic->lib->destroy_ah(handle);
    return UCCL_OK;
}

/* One that works will do. */
static int verbs_ask(struct nic *base, const struct nic_queue_address *theirs, bool client, const _Atomic bool *stop,
                     uint32_t *closed)
{
    struct nic_pair pairs[CORE_PAIRS_MAX];
    unsigned count = verbs_pairs(base, theirs, client, pairs, CORE_PAIRS_MAX), open = 0;
    int error = UCCL_OK;
    *closed = 0;
    for (unsigned i = 0; i < count && error != UCCL_ENOMEM && !atomic_load(stop); i++) {
        struct verbs_address address;
        verbs_address_decode(theirs, pairs[i].theirs, &address);
        int failed = reach(&verbs_backend_of(base)->nics[pairs[i].ours], &address);
        *closed |= (uint32_t)(failed != 0) << i;
        open += !failed;
        error = failed ? failed : error;
    }
    return open && error != UCCL_ENOMEM ? UCCL_OK : error;
}

/* Queues of one engine differ by their queue pairs. */
static bool verbs_same(const struct nic_queue_address *a, const struct nic_queue_address *b)
{
    unsigned count = verbs_address_count(a);
    bool same = a->length == b->length;
    for (unsigned i = 0; i < count && same; i++) {
        struct verbs_address one, other;
        same = verbs_address_decode(a, i, &one) || verbs_address_decode(b, i, &other) ||
               (one.ethernet == other.ethernet && memcmp(one.gid, other.gid, sizeof one.gid) == 0);
    }
    return same;
}

const struct nic_way_ops verbs_way_ops = {.ask = verbs_ask, .same = verbs_same};

/* Destroys handles of removed peers once no send under way can use them. */
static void free_retired(struct verbs_queue *queue)
{
    int32_t *link = &queue->peer_retired;
    while (*link != VERBS_NO_PEER) {
        int32_t index = *link;
        struct verbs_peer *peer = &queue->peers[index];
        if ((int32_t)(queue->sends.done - peer->retired_at) < 0) {
            link = &peer->next;
            continue;
        }
        free_handles(queue, peer);
        *link = peer->next;
        peer->next = queue->peer_free;
        queue->peer_free = index;
    }
}

/* A free entry of the table of peers, which grows; VERBS_NO_PEER: out of memory. */
static int32_t verbs_take_peer(struct verbs_queue *queue)
{
    free_retired(queue);
    int32_t index = queue->peer_free;
    if (index != VERBS_NO_PEER) {
        queue->peer_free = queue->peers[index].next;
        return index;
    }
    if (queue->peer_count == queue->peer_capacity) {
        uint32_t capacity = queue->peer_capacity ? 2 * queue->peer_capacity : 16;
        struct verbs_peer *peers = capacity > VERBS_PEERS_MAX ? NULL : realloc(queue->peers, capacity * sizeof *peers);
        if (!peers)
            return VERBS_NO_PEER;
        queue->peers = peers;
        queue->peer_capacity = capacity;
    }
    return (int32_t)queue->peer_count++;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

int verbs_peer_add(struct nic_queue *base, const struct nic_host *host, const struct nic_queue_address *bytes,
                   uint32_t *destination, uint32_t *datagram_bytes)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_address address;
    char text[NETDEV_ADDRESS_TEXT];
    if (verbs_is_gone(queue->nic))
        return UCCL_EIO; /* logged before */
    const char *fault = verbs_address_decode(bytes, host->peer_nic, &address);
    if (!fault && address.ethernet != queue->nic->port->ethernet)
        fault = "one side is on Ethernet, the other on InfiniBand";
    if (fault) {
        LOG_ERR("verbs cannot reach a queue of peer %s: %s", netdev_address_text(&host->address, text), fault);
        return UCCL_EPROTO;
    }
    struct verbs_peer peer = {
        .address = address, .nic = host->peer_nic, .nics = verbs_address_count(bytes), .used = true};
    peer.traffic_class = host->traffic_class;
    peer.datagram_bytes = peer.path_mtu = smaller(queue->port_bytes, 1u << address.mtu_shift);
    if (peer.datagram_bytes < CORE_DATAGRAM_MIN) {
        LOG_ERR("the port of peer %s has a path MTU of %u bytes; %d are needed: raise the MTU of its network "
                "interface",
                netdev_address_text(&host->address, text), peer.datagram_bytes, CORE_DATAGRAM_MIN);
        return UCCL_EADDR;
    }
    bool several = peer.nics > 1 || queue->nic->backend->nic_count > 1;
    peer.qp_count = (unsigned)queue->setup.params->port_entropy * (several ? CORE_PAIRS_MAX : 1);
    if (queue->data_qps)
        peer.qps = calloc(peer.qp_count, sizeof *peer.qps);
    if (queue->data_qps && !peer.qps)
        return verbs_fault(queue->nic, "add a peer", ENOMEM);
    int error = make_handles(queue, &peer);
    int32_t index = error ? VERBS_NO_PEER : verbs_take_peer(queue);
    if (index == VERBS_NO_PEER) {
        free(peer.qps);
        if (error)
            return error;
        free_handles(queue, &peer);
        return verbs_fault(queue->nic, "add a peer", ENOMEM);
    }
    queue->peers[index] = peer;
    *destination = queue->nic->index << VERBS_NIC_SHIFT | (uint32_t)index;
    *datagram_bytes = peer.datagram_bytes;
    return 0;
}

void verbs_peer_remove(struct nic_queue *base, uint32_t destination)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    struct verbs_peer *peer = verbs_peer_at(queue, destination);
    assert((uint32_t)(peer - queue->peers) < queue->peer_count && peer->used);
    verbs_flush(base);
    verbs_data_qps_forget(queue, destination);
    free(peer->qps);
    peer->qps = NULL;
    peer->used = false;
    peer->retired_at = queue->sends.posted;
    peer->next = queue->peer_retired;
    queue->peer_retired = (int32_t)(peer - queue->peers);
}

/* After the queue pair, so that no handle is in use. */
void verbs_peers_free(struct verbs_queue *queue)
{
    queue->sends.done = queue->sends.posted;
    free_retired(queue);
    for (uint32_t i = 0; i < queue->peer_count; i++)
        if (queue->peers[i].used) {
            free_handles(queue, &queue->peers[i]);
            free(queue->peers[i].qps);
        }
    free(queue->peers);
}

/* ---- sending --------------------------------------------------------------------------------- */

void verbs_reap_sends(struct verbs_queue *queue)
{
    struct verbs_ud_sends *sends = &queue->sends;
    struct ibv_wc completions[COMPLETIONS];
    uint64_t at_ns[COMPLETIONS];
    unsigned count;
    do {
        count = verbs_cq_poll(queue, &queue->send_cq, completions, at_ns, COMPLETIONS);
        for (unsigned i = 0; i < count; i++) {
            const struct ibv_wc *wc = &completions[i];
            if (wc->wr_id >> 32 != queue->epoch)
                continue;
            sends->done = (uint32_t)wc->wr_id + 1;
            if (wc->status == IBV_WC_SUCCESS)
                continue;
            if (!queue->broken && wc->status != IBV_WC_WR_FLUSH_ERR)
                LOG_WARNING("verbs device %s: a UD send failed: %s (vendor code 0x%x); the queue pair is set "
                            "up again",
                            queue->nic->port->device, queue->lib->wc_status_str(wc->status), wc->vendor_err);
            queue->broken = true;
        }
    } while (count == COMPLETIONS);
}

/* Posts the chain. Datagrams that a failed queue pair refuses are lost. */
static void post_batch(struct verbs_queue *queue)
{
    struct verbs_ud_sends *sends = &queue->sends;
    struct ibv_send_wr *bad;
    if (sends->batched == 0)
        return;
    sends->requests[sends->batched - 1].next = NULL;
    if (ibv_post_send(queue->ud, sends->requests, &bad) != 0)
        queue->broken = true; /* there is room: the queue pair is in error, and is set up again */
    sends->posted = sends->built;
    sends->batched = 0;
}

/* Whether there is room for `count` more work requests and their slots. */
static bool sends_have_room(struct verbs_queue *queue, uint32_t count)
{
    struct verbs_ud_sends *sends = &queue->sends;
    if (sends->depth - (sends->built - sends->done) >= count)
        return true;
    post_batch(queue);
    verbs_reap_sends(queue);
    return sends->depth - (sends->built - sends->done) >= count;
}

/* Adds the send of one datagram of the descriptor to the chain. */
static void build_send(struct verbs_queue *queue, const struct verbs_peer *peer, struct ibv_ah *handle,
                       const struct tx_desc *desc, unsigned index, const uint8_t *payload)
{
    struct verbs_ud_sends *sends = &queue->sends;
    uint32_t length = datagram_length(desc, index), number = sends->built++;
    uint8_t *slot = sends->pool.memory + (size_t)(number & (sends->depth - 1)) * sends->slot_bytes;
    const uint8_t *from = slot;
    assert(length <= sends->slot_bytes);
    if (desc->kind == TX_BULK) {
        datagram_bulk(&queue->setup, desc, index, payload, true, slot);
    } else {
        uint8_t *datagram = desc->buffer + (size_t)index * desc->datagram_bytes;
        wire_seal(desc, index, datagram, length, queue->setup.crc32c);
        if (length <= sends->inline_bytes)
            from = datagram;
        else
            memcpy(slot, datagram, length);
    }
    struct ibv_send_wr *request = &sends->requests[sends->batched];
    struct ibv_sge *sge = &sends->sges[sends->batched];
    *sge = (struct ibv_sge){.addr = (uintptr_t)from, .length = length, .lkey = sends->pool.mr->lkey};
    request->wr_id = (uint64_t)queue->epoch << 32 | number;
    request->next = request + 1;
    request->sg_list = sge;
    request->num_sge = 1;
    request->opcode = IBV_WR_SEND;
    request->send_flags = length <= sends->inline_bytes ? IBV_SEND_INLINE : 0;
    request->wr.ud.ah = handle;
    request->wr.ud.remote_qpn = peer->address.qpn;
    request->wr.ud.remote_qkey = peer->address.qkey;
    if (number - sends->asked >= sends->depth / 4) {
        sends->asked = number;
        request->send_flags |= IBV_SEND_SIGNALED;
    }
    if (++sends->batched == VERBS_BATCH)
        post_batch(queue);
}

bool verbs_send(struct nic_queue *base, const struct tx_desc *desc)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    assert(verbs_peer_at(queue, desc->destination)->used);
    if (desc->on_path)
        return verbs_data_qp_send(queue, desc);
    uint64_t mask = desc->mask & wire_full_mask(desc->count);
    const uint8_t *payload = NULL;
    assert(desc->count >= 1 && desc->count <= CORE_TRAIN_MAX);
    if (desc->kind == TX_FRAMES)
        datagram_gather(&queue->setup, desc, mask); /* also when there is no room: a retransmission has no pieces */
    if (!sends_have_room(queue, (uint32_t)__builtin_popcountll(mask)))
        return false;
    if (desc->kind == TX_BULK)
        payload = queue->setup.payload(desc->bulk_msg, desc->bulk_offset);
    const struct verbs_peer *peer = verbs_peer_at(queue, desc->destination);
    struct ibv_ah *handle = peer->handles[desc->path % paths_of(queue)];
    for (unsigned i = 0; i < desc->count; i++)
        if (mask >> i & 1)
            build_send(queue, peer, handle, desc, i, payload);
    return true;
}

unsigned verbs_flush(struct nic_queue *base)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    post_batch(queue);
    verbs_data_qps_flush(queue);
    return 0; /* lost datagrams count as lost in the network */
}
