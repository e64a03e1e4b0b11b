/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/pair.h"

#include <string.h>

enum { MTU_MIN = 576, MTU_MAX = 65536, SPEED_MAX_MBPS = 3200000 };

static const uint8_t *bytes_of(const union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? address->v6.sin6_addr.s6_addr
                                              : (const uint8_t *)&address->v4.sin_addr.s_addr;
}

static unsigned bits_of(const union nic_address *address)
{
    return address->any.sa_family == AF_INET6 ? 128 : 32;
}

bool nic_same_host(const union nic_address *a, const union nic_address *b)
{
    return a->any.sa_family == b->any.sa_family && memcmp(bytes_of(a), bytes_of(b), bits_of(a) / 8) == 0;
}

bool nic_end_covers(const struct nic_end *end, const union nic_address *address)
{
    const uint8_t *a = bytes_of(&end->address), *b = bytes_of(address);
    unsigned whole = end->prefix_bits / 8, rest = end->prefix_bits % 8;
    if (end->address.any.sa_family != address->any.sa_family || memcmp(a, b, whole) != 0)
        return false;
    return rest == 0 || ((a[whole] ^ b[whole]) & (0xff00 >> rest)) == 0;
}

const char *nic_end_fault(const struct nic_end *end)
{
    const union nic_address *address = &end->address;
    uint32_t v4 = address->any.sa_family == AF_INET ? ntohl(address->v4.sin_addr.s_addr) : 0;
    const struct in6_addr *v6 = &address->v6.sin6_addr;
    if (address->any.sa_family != AF_INET && address->any.sa_family != AF_INET6)
        return "family of a NIC's address";
    if (address->any.sa_family == AF_INET && (v4 >> 24 == 0 || v4 >> 24 == 127 || v4 >> 28 >= 14 || v4 >> 16 == 0xa9fe))
        return "a NIC's address is not that of one host";
    if (address->any.sa_family == AF_INET6 &&
        (IN6_IS_ADDR_UNSPECIFIED(v6) || IN6_IS_ADDR_LOOPBACK(v6) || IN6_IS_ADDR_MULTICAST(v6) ||
         IN6_IS_ADDR_LINKLOCAL(v6) || IN6_IS_ADDR_V4MAPPED(v6)))
        return "a NIC's address is not that of one host";
    if (end->prefix_bits > bits_of(address))
        return "a NIC's prefix is longer than its address";
    if (end->mtu < MTU_MIN || end->mtu > MTU_MAX)
        return "a NIC's MTU is out of range";
    return end->speed_mbps > SPEED_MAX_MBPS ? "a NIC's speed is out of range" : NULL;
}

static bool share_subnet(const struct nic_end *a, const struct nic_end *b)
{
    return nic_end_covers(a, &b->address) && nic_end_covers(b, &a->address);
}

/* The NICs among `ends` that share the subnet of one of `others` (`shared`), or of none. */
static uint32_t sharing(const struct nic_end *ends, unsigned count, const struct nic_end *others, unsigned other_count,
                        bool shared)
{
    uint32_t set = 0;
    for (unsigned i = 0; i < count; i++) {
        bool some = false;
        for (unsigned j = 0; j < other_count; j++)
            some = some || share_subnet(&ends[i], &others[j]);
        set |= (uint32_t)(some == shared) << i;
    }
    return set;
}

/* The number of the k-th member of a set, counted round. */
static uint8_t member(uint32_t set, unsigned k)
{
    for (k %= (unsigned)__builtin_popcount(set); k > 0; k--)
        set &= set - 1;
    return (uint8_t)__builtin_ctz(set);
}

struct pairs {
    struct nic_pair *out;
    unsigned count, max;
    const struct nic_end *ours, *theirs;
};

/* Pairs the members of two sets. Two NICs with one address are on one machine, or cannot talk to each other. */
static void pair_up(struct pairs *pairs, uint32_t ours, uint32_t theirs)
{
    if (ours == 0 || theirs == 0)
        return;
    unsigned n = (unsigned)__builtin_popcount(ours), m = (unsigned)__builtin_popcount(theirs);
    for (unsigned k = 0; k < (n > m ? n : m) && pairs->count < pairs->max; k++) {
        struct nic_pair pair = {member(ours, k), member(theirs, k)};
        const union nic_address *a = &pairs->ours[pair.ours].address, *b = &pairs->theirs[pair.theirs].address;
        if (a->any.sa_family == b->any.sa_family && !nic_same_host(a, b))
            pairs->out[pairs->count++] = pair;
    }
}

unsigned nic_pairs(const struct nic_end *ours, unsigned our_count, const struct nic_end *theirs, unsigned their_count,
                   struct nic_pair *out, unsigned max)
{
    struct pairs pairs = {.out = out, .max = max, .ours = ours, .theirs = theirs};
    uint32_t left = sharing(ours, our_count, theirs, their_count, true);
    while (left) { /* subnet by subnet, in the order of our NICs */
        const struct nic_end *first = &ours[__builtin_ctz(left)];
        uint32_t group = sharing(ours, our_count, first, 1, true) & left;
        pair_up(&pairs, group, sharing(theirs, their_count, first, 1, true));
        left &= ~group;
    }
    pair_up(&pairs, sharing(ours, our_count, theirs, their_count, false),
            sharing(theirs, their_count, ours, our_count, false));
    return pairs.count;
}
