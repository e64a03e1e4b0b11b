/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drops single UDP datagrams (and TCP segments, if asked) at random on the device it is attached to. Attached natively
 * to the receiving end of a veth pair it makes the kernel split GSO trains before they cross, so that one datagram is
 * lost and not a whole train. See xdp_loss.c for the program that loads this.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* set by the loader */
struct config {
    __u32 drop_below; /* a packet is dropped when a random 32-bit number is below this */
    __u32 tcp_too;
};
const volatile struct config config = {0};

/* 0: packets of these protocols seen, 1: dropped */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

static __always_inline void count(__u32 index)
{
    __u64 *value = bpf_map_lookup_elem(&counts, &index);
    if (value)
        ++*value;
}

static __always_inline int is_ours(const unsigned char *p, const unsigned char *end)
{
    if (p + 34 > end)
        return 0;
    __u16 type = (__u16)(p[12] << 8 | p[13]);
    __u8 protocol = type == ETH_P_IP ? p[23] : type == ETH_P_IPV6 ? p[20] : 0;
    return protocol == 17 || (protocol == 6 && config.tcp_too);
}

SEC("xdp.frags")
int xdp_loss(struct xdp_md *ctx)
{
    if (!is_ours((void *)(long)ctx->data, (void *)(long)ctx->data_end))
        return XDP_PASS;
    count(0);
    if (bpf_get_prandom_u32() >= config.drop_below)
        return XDP_PASS;
    count(1);
    return XDP_DROP;
}

char program_license[] SEC("license") = "GPL";
