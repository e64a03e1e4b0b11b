/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/verbs/address.h"

#include "base/le.h"

#include <assert.h>
#include <string.h>

enum { LINK_INFINIBAND, LINK_ETHERNET, LINKS };
enum { GID_AT = 16, GID_MULTICAST = 0xff, IPV4_MULTICAST = 0xe0 };

void verbs_address_append(const struct verbs_address *address, struct nic_queue_address *out)
{
    uint8_t *at = out->bytes + out->length;
    assert(out->length + VERBS_ADDRESS_BYTES <= NIC_QUEUE_ADDRESS_MAX);
    memset(at, 0, VERBS_ADDRESS_BYTES);
    out->length += VERBS_ADDRESS_BYTES;
    at[0] = NIC_ADDRESS_VERBS;
    at[1] = address->ethernet ? LINK_ETHERNET : LINK_INFINIBAND;
    at[2] = address->mode;
    at[3] = address->mtu_shift;
    le_put(at + 4, address->lid, 2);
    at[6] = address->prefix_bits;
    le_put(at + 8, address->qpn, 4);
    le_put(at + 12, address->qkey, 4);
    memcpy(at + GID_AT, address->gid, sizeof address->gid);
}

unsigned verbs_address_count(const struct nic_queue_address *bytes)
{
    unsigned count = bytes->length / VERBS_ADDRESS_BYTES;
    return bytes->length % VERBS_ADDRESS_BYTES == 0 && count <= NIC_PLACERS_MAX ? count : 0;
}

/* Whether it stands for one port: not for none, for a group, or for everybody, by IPv4 either. */
static bool is_of_port(const uint8_t gid[16])
{
    static const uint8_t none[16], mapped[12] = {[10] = 0xff, [11] = 0xff}, everybody[4] = {255, 255, 255, 255};
    if (memcmp(gid, mapped, sizeof mapped) != 0)
        return memcmp(gid, none, sizeof none) != 0 && gid[0] != GID_MULTICAST;
    const uint8_t *ipv4 = gid + sizeof mapped;
    return memcmp(ipv4, none, sizeof everybody) != 0 && memcmp(ipv4, everybody, sizeof everybody) != 0 &&
           (ipv4[0] & 0xf0) != IPV4_MULTICAST;
}

const char *verbs_address_decode(const struct nic_queue_address *bytes, unsigned index, struct verbs_address *out)
{
    if (bytes->length < 1 || bytes->bytes[0] != NIC_ADDRESS_VERBS)
        return "it is of another backend; set the same UCCL_BACKEND on both sides";
    if (index >= verbs_address_count(bytes))
        return "wrong length";
    const uint8_t *at = bytes->bytes + (size_t)index * VERBS_ADDRESS_BYTES;
    if (at[0] != NIC_ADDRESS_VERBS || at[1] >= LINKS || at[2] >= VERBS_MODES)
        return "unknown link or mode";
    struct verbs_address address = {.ethernet = at[1] == LINK_ETHERNET,
                                    .mode = at[2],
                                    .mtu_shift = at[3],
                                    .lid = (uint16_t)le_get(at + 4, 2),
                                    .prefix_bits = at[6],
                                    .qpn = (uint32_t)le_get(at + 8, 4),
                                    .qkey = (uint32_t)le_get(at + 12, 4)};
    memcpy(address.gid, at + GID_AT, sizeof address.gid);
    if (address.mtu_shift < VERBS_MTU_SHIFT_MIN || address.mtu_shift > VERBS_MTU_SHIFT_MAX)
        return "path MTU out of range";
    if (!verbs_qpn_is_valid(address.qpn))
        return "queue pair number out of range";
    if (address.prefix_bits > (address.ethernet && verbs_gid_is_ipv4(address.gid) ? 32 : 128))
        return "subnet prefix longer than the address";
    if (address.ethernet && !is_of_port(address.gid))
        return "no GID of a host";
    if (!address.ethernet && (address.lid == 0 || address.lid >= 0xc000))
        return "no LID of a host";
    *out = address;
    return NULL;
}
