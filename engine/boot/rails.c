/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/rails.h"

#include "base/log.h"
#include "nic/netdev.h"
#include "nic/pair.h"

#include <string.h>

/* How well a NIC of the peer fits the address that the handshake knows: 2 it has it, 1 it is in its subnet, 0. */
static int fit(const struct nic_end *end, const union nic_address *address)
{
    return nic_same_host(&end->address, address) ? 2 : nic_end_covers(end, address) ? 1 : 0;
}

/* The pair that the handshake went over: of our NIC `local`, and of the NIC of the peer that fits best. -1: none. */
static int pair_of_handshake(const struct nic_pair *pairs, unsigned count, int local, const union nic_address *address,
                             const struct boot_offer *offer)
{
    int found = -1, best = 0;
    for (unsigned i = 0; i < count && local >= 0; i++) {
        int fits = pairs[i].ours == local ? fit(&offer->nics[pairs[i].theirs], address) : 0;
        if (fits > best) {
            best = fits;
            found = (int)i;
        }
    }
    return found;
}

void rails_prefer(struct rail_plan *rails, unsigned index)
{
    struct rail_plan first = rails[index];
    memmove(rails + 1, rails, index * sizeof *rails);
    rails[0] = first;
}

/* By the NICs that queue addresses name. One pair is the handshake's: it must do. */
static unsigned plan_by_address(const struct nic *nic, const struct nic_host *host, const struct boot_offer *offer,
                                bool client, struct rail_plan out[CORE_RAILS_MAX])
{
    struct nic_pair pairs[CORE_PAIRS_MAX] = {{0}};
    unsigned count = nic->pairs(nic, &offer->flows[0].address, client, pairs, CORE_PAIRS_MAX);
    if (count == 0)
        count = 1; /* peer_add() says what is wrong */
    for (unsigned i = 0; i < count; i++) {
        out[i] = (struct rail_plan){.host = *host, .handshake = count == 1, .pair = (uint8_t)i};
        out[i].host.nic = nic->ends ? pairs[i].ours + 1u : 0;
        out[i].host.peer_nic = pairs[i].theirs;
    }
    return count;
}

unsigned rails_plan(const struct nic *nic, const struct nic_host *host, const struct boot_offer *offer, bool client,
                    struct rail_plan out[CORE_RAILS_MAX])
{
    if (nic->pairs)
        return plan_by_address(nic, host, offer, client, out);
    struct nic_end ours[NIC_ENDS_MAX];
    struct nic_pair pairs[CORE_RAILS_MAX];
    unsigned ends = nic_ends(nic, ours);
    union nic_address address = netdev_unmapped(&host->address);
    unsigned count = nic_pairs(ours, ends, offer->nics, offer->nic_count, pairs, CORE_RAILS_MAX - 1);
    int local = count ? nic->ends->holder(nic, &host->local) : -1;
    int known = pair_of_handshake(pairs, count, local, &address, offer);
    for (unsigned i = 0; i < count; i++)
        out[i] = (struct rail_plan){.host = {.address = offer->nics[pairs[i].theirs].address,
                                             .local = ours[pairs[i].ours].address,
                                             .nic = pairs[i].ours + 1u,
                                             .traffic_class = host->traffic_class},
                                    .peer_mtu = offer->nics[pairs[i].theirs].mtu};
    if (known < 0)
        known = (int)count++; /* a way of its own, to be used last */
    out[known] = (struct rail_plan){.host = *host, .handshake = true, .peer_mtu = 0};
    out[known].host.nic = count > 1 && local >= 0 ? (unsigned)local + 1 : 0;
    return count;
}

void rails_order(struct rail_plan *rails, unsigned count, unsigned home_end)
{
    for (unsigned i = 1; i < count && rails[0].host.nic != home_end + 1; i++) {
        if (rails[i].host.nic == home_end + 1)
            rails_prefer(rails, i);
    }
}

void rails_tell(const struct nic *nic, const struct rail_plan *rails, unsigned count)
{
    char text[NETDEV_ADDRESS_TEXT];
    for (unsigned i = 0; i < count && count > 1; i++) {
        struct uccl_device device = {.name = "the kernel's route"};
        union nic_address address;
        unsigned end = rails[i].host.nic;
        if (end)
            nic->ops->device(nic, nic->ends->device(nic, end - 1), &device, &address);
        LOG_INFORM("rail %u of %u: %s -> %s", i + 1, count, device.name,
                   netdev_address_text(&rails[i].host.address, text));
    }
}

void rails_offer(const struct nic *nic, struct boot_offer *offer)
{
    if (!nic->pairs)
        offer->nic_count = (uint8_t)nic_ends(nic, offer->nics);
}
