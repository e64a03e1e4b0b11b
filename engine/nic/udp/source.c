/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/udp/udp.h"

#include <string.h>

static void append(struct udp_source *source, int level, int type, const void *value, uint32_t length)
{
    struct cmsghdr *cmsg = (struct cmsghdr *)(void *)(source->bytes + source->length);

    cmsg->cmsg_level = level;
    cmsg->cmsg_type = type;
    cmsg->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(cmsg), value, length);
    source->length += (uint32_t)CMSG_SPACE(length);
}

static void append_address(struct udp_source *source, const union nic_address *local, uint32_t interface)
{
    if (local->any.sa_family == AF_INET6) { /* the kernel takes a mapped IPv4 address there too */
        struct in6_pktinfo info = {.ipi6_addr = local->v6.sin6_addr,
                                   .ipi6_ifindex = interface != 0 ? interface : local->v6.sin6_scope_id};

        append(source, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof info);
    } else {
        struct in_pktinfo info = {.ipi_spec_dst = local->v4.sin_addr, .ipi_ifindex = (int)interface};

        append(source, IPPROTO_IP, IP_PKTINFO, &info, sizeof info);
    }
}

void udp_set_source(struct udp_peer *peer, bool addressed)
{
    const union nic_address *to = &peer->address;
    bool v6 = to->any.sa_family == AF_INET6 && !IN6_IS_ADDR_V4MAPPED(&to->v6.sin6_addr);
    int field = udp_class_field(peer->traffic_class);

    peer->source = (struct udp_source){.addressed = addressed};
    if (addressed)
        append_address(&peer->source, &peer->local, peer->interface);
    if (peer->traffic_class != 0)
        append(&peer->source, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_TCLASS : IP_TOS, &field, sizeof field);
}
