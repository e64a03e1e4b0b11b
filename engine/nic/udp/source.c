/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/udp/udp.h"

#include <string.h>

void udp_set_source(struct udp_source *source, const union nic_address *local, uint32_t interface)
{
    bool v6 = local->any.sa_family == AF_INET6;
    uint32_t length = v6 ? sizeof(struct in6_pktinfo) : sizeof(struct in_pktinfo);
    struct cmsghdr *cmsg = (struct cmsghdr *)(void *)source->bytes;

    *source = (struct udp_source){.length = CMSG_SPACE(length)};
    cmsg->cmsg_level = v6 ? IPPROTO_IPV6 : IPPROTO_IP;
    cmsg->cmsg_type = v6 ? IPV6_PKTINFO : IP_PKTINFO;
    cmsg->cmsg_len = CMSG_LEN(length);
    if (v6) { /* the kernel takes a mapped IPv4 address there too */
        struct in6_pktinfo info = {.ipi6_addr = local->v6.sin6_addr,
                                   .ipi6_ifindex = interface != 0 ? interface : local->v6.sin6_scope_id};

        memcpy(CMSG_DATA(cmsg), &info, sizeof info);
    } else {
        struct in_pktinfo info = {.ipi_spec_dst = local->v4.sin_addr, .ipi_ifindex = (int)interface};

        memcpy(CMSG_DATA(cmsg), &info, sizeof info);
    }
}
