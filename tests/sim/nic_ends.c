/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several NICs in a node of the simulator, alike on all nodes: NIC i has an address in subnet i and reaches NIC i of
 * the others, so there is a rail for each. A NIC may be gone for a while, which its device reports; outages of the
 * fabric, which nobody reports, may be of one NIC's packets.
 */
#include "nic_queue.h"

#include <string.h>

static bool is_gone(const struct sim_nic *nic, unsigned end)
{
    return nic->gone >> end & 1;
}

uint32_t nic_ends_address(const struct sim_nic *nic, unsigned end)
{
    return nic->options.address + ((uint32_t)end << NIC_SUBNET_SHIFT);
}

static union nic_address address_of(const struct sim_nic *nic, unsigned end)
{
    union nic_address address;
    memset(&address, 0, sizeof address);
    address.v4.sin_family = AF_INET;
    address.v4.sin_addr.s_addr = htonl(nic_ends_address(nic, end));
    return address;
}

/* ---- gone ------------------------------------------------------------------------------------- */

static void turn(void *what, uint64_t end)
{
    struct sim_nic *nic = what;
    nic->gone ^= UINT32_C(1) << end;
    if (!nic->process)
        return;
    machine_note(is_gone(nic, (unsigned)end) ? "device gone" : "device back", nic->process->index, end, 0);
    for (unsigned i = 0; i < NIC_QUEUES_MAX; i++) {
        struct sim_queue *queue = nic->queues[i];
        if (!queue)
            continue;
        if (is_gone(nic, (unsigned)end))
            nic_place_cut(queue, (unsigned)end);
        queue->woken = true;
        machine_wake(nic->process, queue, 1);
    }
}

void nic_ends_plan(struct sim_nic *nic, unsigned node)
{
    nic->gone = 0;
    for (unsigned i = 0; i < nic->options.cut_count; i++) {
        const struct nic_cut *cut = &nic->options.cuts[i];
        if (cut->node != node)
            continue;
        machine_at(cut->begin_ns, turn, nic, cut->nic);
        machine_at(cut->end_ns, turn, nic, cut->nic);
    }
}

/* ---- what the engine sees ---------------------------------------------------------------------- */

static unsigned ends_list(const struct nic *base, struct nic_end out[NIC_ENDS_MAX])
{
    const struct sim_nic *nic = sim_nic_of(base);
    for (unsigned i = 0; i < nic->options.nics; i++)
        out[i] = (struct nic_end){.address = address_of(nic, i),
                                  .prefix_bits = 32 - NIC_SUBNET_SHIFT,
                                  .mtu = nic->options.datagram_bytes + NIC_IP_UDP_BYTES};
    return nic->options.nics;
}

static int ends_holder(const struct nic *base, const union nic_address *address)
{
    const struct sim_nic *nic = sim_nic_of(base);
    for (unsigned i = 0; address->any.sa_family == AF_INET && i < nic->options.nics; i++) {
        if (ntohl(address->v4.sin_addr.s_addr) == nic_ends_address(nic, i))
            return (int)i;
    }
    return -1;
}

static int ends_device(const struct nic *nic, unsigned end)
{
    (void)nic;
    return (int)end;
}

static bool ends_up(const struct nic *base, unsigned end)
{
    return !is_gone(sim_nic_of(base), end);
}

static bool ends_event(struct nic_queue *base, struct nic_end_event *out)
{
    struct sim_queue *queue = sim_queue_of(base);
    const struct sim_nic *nic = queue->nic;
    if (queue->gone_seen != nic->gone) { /* again, perhaps, before all were told */
        queue->gone_seen = nic->gone;
        queue->gone_told = 0;
        queue->gone_news = true;
    }
    while (queue->gone_news && queue->gone_told < queue->peer_count) {
        uint32_t destination = queue->gone_told++;
        const struct peer_to *peer = &queue->peers[destination];
        if (!peer->used)
            continue;
        *out = (struct nic_end_event){.destination = destination, .up = !is_gone(nic, peer->nic)};
        return true;
    }
    queue->gone_news = false; /* of peers that are added later nothing is told, as by the real ones */
    return false;
}

const struct nic_end_ops nic_ends_ops = {
    .list = ends_list, .holder = ends_holder, .device = ends_device, .up = ends_up, .event = ends_event};

unsigned nic_ends_pairs(const struct nic *base, const struct nic_queue_address *theirs, bool client,
                        struct nic_pair *out, unsigned max)
{
    const struct sim_nic *nic = sim_nic_of(base);
    unsigned count = nic->options.nics < max ? nic->options.nics : max;
    (void)theirs, (void)client; /* alike at both ends */
    for (unsigned i = 0; i < count; i++)
        out[i] = (struct nic_pair){(uint8_t)i, (uint8_t)i};
    return count;
}
