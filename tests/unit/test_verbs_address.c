/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of verbs queues: what the peer tells is checked before anything trusts it. */
#include "nic/verbs/address.h"

#include <criterion/criterion.h>
#include <string.h>

static struct verbs_address example(bool ethernet)
{
    return (struct verbs_address){.ethernet = ethernet,
                                  .mode = VERBS_UC,
                                  .mtu_shift = 12,
                                  .lid = ethernet ? 0 : 0x1234,
                                  .prefix_bits = 24,
                                  .qpn = 0xabcdef,
                                  .qkey = 0x71727374,
                                  .gid = {[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};
}

static const char *decode(const struct nic_queue_address *bytes)
{
    struct verbs_address out;
    return verbs_address_decode(bytes, 0, &out);
}

Test(verbs_address, comes_back_as_it_was)
{
    for (int ethernet = 0; ethernet < 2; ethernet++) {
        struct verbs_address in = example(ethernet), out;
        struct nic_queue_address bytes = {0};
        verbs_address_append(&in, &bytes);
        cr_assert_leq(bytes.length, NIC_QUEUE_ADDRESS_MAX);
        cr_assert_null(verbs_address_decode(&bytes, 0, &out));
        cr_assert_eq(out.ethernet, in.ethernet);
        cr_assert_eq(out.mode, in.mode);
        cr_assert_eq(out.mtu_shift, in.mtu_shift);
        cr_assert_eq(out.lid, in.lid);
        cr_assert_eq(out.prefix_bits, in.prefix_bits);
        cr_assert_eq(out.qpn, in.qpn);
        cr_assert_eq(out.qkey, in.qkey);
        cr_assert_arr_eq(out.gid, in.gid, sizeof in.gid);
    }
}

Test(verbs_address, layout_is_that_of_the_page)
{
    static const uint8_t wire[VERBS_ADDRESS_BYTES] = {2,    1,    1,           12,          0,         0,       24,
                                                      0,    0xef, 0xcd,        0xab,        0,         0x74,    0x73,
                                                      0x72, 0x71, [26] = 0xff, [27] = 0xff, [28] = 10, [31] = 1};
    struct verbs_address in = example(true);
    struct nic_queue_address bytes = {0};
    verbs_address_append(&in, &bytes);
    cr_assert_eq(bytes.length, sizeof wire);
    cr_assert_arr_eq(bytes.bytes, wire, sizeof wire);
}

/* Encodes the example with `field` changed. */
#define WITH(ethernet, field, value, good)                                                                             \
    do {                                                                                                               \
        struct verbs_address changed = example(ethernet);                                                              \
        struct nic_queue_address bytes = {0};                                                                          \
        changed.field = (value);                                                                                       \
        verbs_address_append(&changed, &bytes);                                                                        \
        cr_assert_eq(!decode(&bytes), good, #field " = " #value);                                                      \
    } while (0)

Test(verbs_address, fields_are_checked)
{
    WITH(true, mode, VERBS_UD, true);
    WITH(true, mode, VERBS_RC, true);
    WITH(true, mode, VERBS_MODES, false);
    WITH(true, mtu_shift, VERBS_MTU_SHIFT_MIN, true);
    WITH(true, mtu_shift, VERBS_MTU_SHIFT_MIN - 1, false);
    WITH(true, mtu_shift, VERBS_MTU_SHIFT_MAX + 1, false);
    WITH(true, mtu_shift, 255, false);
    WITH(true, qpn, 2, true);
    WITH(true, qpn, 1, false);
    WITH(true, qpn, 0, false);
    WITH(true, qpn, 0xfffffe, true);
    WITH(true, qpn, 0xffffff, false); /* multicast */
    WITH(true, qpn, 0x1000000, false);
    WITH(true, qpn, 0xffffffff, false);
    WITH(false, lid, 0, false);
    WITH(false, lid, 1, true);
    WITH(false, lid, 0xbfff, true);
    WITH(false, lid, 0xc000, false); /* multicast */
    WITH(true, gid[0], 0xff, false);
    WITH(true, prefix_bits, 0, true);
    WITH(true, prefix_bits, 32, true);
    WITH(true, prefix_bits, 33, false);
}

/* A GID is written to before anybody has answered from there. */
Test(verbs_address, gid_is_that_of_one_port)
{
    static const struct {
        uint8_t ipv4[4];
        bool good;
    } hosts[] = {{{10, 0, 0, 1}, true},        {{0, 0, 0, 0}, false},        {{127, 0, 0, 1}, true},
                 {{223, 255, 255, 255}, true}, {{224, 0, 0, 1}, false},      {{239, 1, 2, 3}, false},
                 {{240, 0, 0, 1}, true},       {{255, 255, 255, 254}, true}, {{255, 255, 255, 255}, false}};
    struct nic_queue_address bytes;
    for (unsigned i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        struct verbs_address address = example(true);
        memcpy(address.gid + 12, hosts[i].ipv4, sizeof hosts[i].ipv4);
        bytes.length = 0;
        verbs_address_append(&address, &bytes);
        cr_assert_eq(!decode(&bytes), hosts[i].good, "IPv4 %u.%u.%u.%u", hosts[i].ipv4[0], hosts[i].ipv4[1],
                     hosts[i].ipv4[2], hosts[i].ipv4[3]);
        address.gid[0] = 0xfe; /* no IPv4 address any more */
        bytes.length = 0;
        verbs_address_append(&address, &bytes);
        cr_assert_null(decode(&bytes));
    }
}

/* One record per port, each checked when it is read. */
Test(verbs_address, several_ports)
{
    struct nic_queue_address bytes = {0};
    struct verbs_address out;
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++) {
        struct verbs_address in = example(true);
        in.gid[15] = (uint8_t)(i + 1);
        cr_assert_eq(verbs_address_count(&bytes), i);
        verbs_address_append(&in, &bytes);
    }
    cr_assert_eq(verbs_address_count(&bytes), NIC_PLACERS_MAX);
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++) {
        cr_assert_null(verbs_address_decode(&bytes, i, &out));
        cr_assert_eq(out.gid[15], i + 1);
    }
    cr_assert_not_null(verbs_address_decode(&bytes, NIC_PLACERS_MAX, &out));
    bytes.bytes[VERBS_ADDRESS_BYTES + 3] = 0; /* no MTU */
    cr_assert_null(verbs_address_decode(&bytes, 0, &out));
    cr_assert_not_null(verbs_address_decode(&bytes, 1, &out));
    bytes.bytes[2 * VERBS_ADDRESS_BYTES] = NIC_ADDRESS_UDP;
    cr_assert_not_null(verbs_address_decode(&bytes, 2, &out));
    bytes.length--;
    cr_assert_eq(verbs_address_count(&bytes), 0);
}

Test(verbs_address, other_shapes_are_refused)
{
    struct verbs_address in = example(true);
    struct nic_queue_address good = {0}, bytes;
    verbs_address_append(&in, &good);
    for (unsigned length = 0; length <= NIC_QUEUE_ADDRESS_MAX; length++) {
        bytes = good;
        bytes.length = (uint8_t)length;
        cr_assert_eq(!decode(&bytes), length > 0 && length % VERBS_ADDRESS_BYTES == 0, "length %u", length);
    }
    bytes = good;
    bytes.bytes[0] = NIC_ADDRESS_UDP;
    cr_assert_not_null(strstr(decode(&bytes), "UCCL_BACKEND"));
    bytes = good;
    bytes.bytes[1] = 2; /* no such link */
    cr_assert_not_null(decode(&bytes));
    bytes = good;
    memset(bytes.bytes + 16, 0, 16); /* no GID */
    cr_assert_not_null(decode(&bytes));
}
