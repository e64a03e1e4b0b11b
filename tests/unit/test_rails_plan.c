/* SPDX-License-Identifier: Apache-2.0 */
/* The rails of a peer: out of both sides' NICs and the handshake's own route. */
#include "boot/rails.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static union nic_address parse(const char *text)
{
    union nic_address address = {0};
    if (inet_pton(AF_INET, text, &address.v4.sin_addr) == 1) {
        address.v4.sin_family = AF_INET;
    } else {
        cr_assert_eq(inet_pton(AF_INET6, text, &address.v6.sin6_addr), 1, "%s", text);
        address.v6.sin6_family = AF_INET6;
    }
    return address;
}

/* Our NICs: 10.0.0.1, 10.0.1.1 and so on, /24. */
static unsigned our_count;

static unsigned fake_list(const struct nic *nic, struct nic_end out[NIC_ENDS_MAX])
{
    (void)nic;
    for (unsigned i = 0; i < our_count; i++) {
        out[i] = (struct nic_end){.prefix_bits = 24, .mtu = 9000, .speed_mbps = 100000};
        out[i].address.v4.sin_family = AF_INET;
        out[i].address.v4.sin_addr.s_addr = htonl(0x0a000001 + (i << 8));
    }
    return our_count;
}

/* Our NIC i also has the address fd00::i. */
static int fake_holder(const struct nic *nic, const union nic_address *address)
{
    (void)nic;
    for (unsigned i = 0; i < our_count; i++) {
        uint32_t v4 = htonl(0x0a000001 + (i << 8));
        const uint8_t *bytes = address->v6.sin6_addr.s6_addr;
        if (address->any.sa_family == AF_INET ? address->v4.sin_addr.s_addr == v4
            : bytes[0] == 0xfd                ? bytes[15] == i
                                              : memcmp(bytes + 12, &v4, sizeof v4) == 0)
            return (int)i;
    }
    return -1;
}

static const struct nic_end_ops fake_ends = {.list = fake_list, .holder = fake_holder};
static const struct nic several = {.ends = &fake_ends}, single;

/* What the peer offers: NICs 10.0.N.HOST/24 for each digit N. */
static struct boot_offer offer_of(const char *subnets, unsigned host)
{
    struct boot_offer offer = {0};
    for (; *subnets; subnets++) {
        struct nic_end *nic = &offer.nics[offer.nic_count++];
        *nic = (struct nic_end){.prefix_bits = 24, .mtu = 1500 + offer.nic_count};
        nic->address.v4.sin_family = AF_INET;
        nic->address.v4.sin_addr.s_addr = htonl(0x0a000000 + ((unsigned)(*subnets - '0') << 8) + host);
    }
    return offer;
}

/* "1>10.0.0.2 0>..." : our NIC (0: the route decides) and the address; "!": the handshake's. */
static void expect(const struct nic *nic, const char *local, const char *remote, const struct boot_offer *offer,
                   const char *expected)
{
    struct rail_plan rails[CORE_RAILS_MAX];
    struct nic_host host = {.address = parse(remote), .local = parse(local)};
    unsigned count = rails_plan(nic, &host, offer, true, rails);
    char text[512] = "";
    for (unsigned i = 0; i < count; i++) {
        char address[64];
        const union nic_address *to = &rails[i].host.address;
        inet_ntop(to->any.sa_family, to->any.sa_family == AF_INET ? (const void *)&to->v4.sin_addr : &to->v6.sin6_addr,
                  address, sizeof address);
        sprintf(text + strlen(text), "%s%u>%s%s", i ? " " : "", rails[i].host.nic, address,
                rails[i].handshake ? "!" : "");
        cr_expect_eq(rails[i].peer_mtu == 0, rails[i].handshake, "the offer tells the MTU of the peer's NICs");
    }
    cr_expect_str_eq(text, expected, "from %s to %s", local, remote);
}

Test(rails_plan, one_where_there_is_no_choice)
{
    struct boot_offer two = offer_of("01", 2), none = offer_of("", 2);
    our_count = 2;
    expect(&single, "10.0.0.1", "10.0.0.2", &two, "0>10.0.0.2!");
    expect(&several, "10.0.0.1", "10.0.0.2", &none, "0>10.0.0.2!");
    struct boot_offer ourselves = offer_of("01", 1);
    expect(&several, "10.0.0.1", "10.0.0.1", &ourselves, "0>10.0.0.1!");
    expect(&several, "127.0.0.1", "127.0.0.1", &ourselves, "0>127.0.0.1!");
}

Test(rails_plan, handshake_is_one_of_the_pairs)
{
    struct boot_offer two = offer_of("01", 2), turned = offer_of("10", 2);
    our_count = 2;
    expect(&several, "10.0.0.1", "10.0.0.2", &two, "1>10.0.0.2! 2>10.0.1.2");
    expect(&several, "10.0.1.1", "10.0.1.2", &two, "1>10.0.0.2 2>10.0.1.2!");
    expect(&several, "10.0.0.1", "10.0.0.2", &turned, "1>10.0.0.2! 2>10.0.1.2");
    expect(&several, "::ffff:10.0.0.1", "::ffff:10.0.0.2", &two, "1>::ffff:10.0.0.2! 2>10.0.1.2");
    /* another address of the peer in that NIC's subnet: the handshake knows that it answers */
    expect(&several, "10.0.0.1", "10.0.0.77", &two, "1>10.0.0.77! 2>10.0.1.2");
}

Test(rails_plan, handshake_goes_another_way)
{
    struct boot_offer two = offer_of("01", 2), routed = offer_of("89", 2);
    our_count = 2;
    /* over an interface that is none of the NICs */
    expect(&several, "192.168.0.1", "192.168.0.2", &two, "1>10.0.0.2 2>10.0.1.2 0>192.168.0.2!");
    /* over one of ours, to an address that is none of the peer's NICs: address translation */
    expect(&several, "10.0.1.1", "8.8.8.8", &two, "1>10.0.0.2 2>10.0.1.2 2>8.8.8.8!");
    expect(&several, "fd00::1", "fd00::99", &two, "1>10.0.0.2 2>10.0.1.2 2>fd00::99!");
    /* no subnet in common: routers may lead there */
    expect(&several, "10.0.0.1", "10.0.8.2", &routed, "1>10.0.8.2! 2>10.0.9.2");
    expect(&several, "10.0.0.1", "10.0.9.2", &routed, "1>10.0.8.2 2>10.0.9.2 1>10.0.9.2!");
}

/* Several of the peer's NICs stand in one subnet, ours is alone there. */
Test(rails_plan, the_nic_that_the_handshake_reached_is_told_by_its_address)
{
    struct boot_offer both = offer_of("00", 2);
    both.nics[1].address.v4.sin_addr.s_addr = htonl(0x0a000003);
    our_count = 2;
    expect(&several, "10.0.0.1", "10.0.0.2", &both, "1>10.0.0.2! 1>10.0.0.3");
    expect(&several, "10.0.0.1", "10.0.0.3", &both, "1>10.0.0.2 1>10.0.0.3!");
}

/* However many a stranger names. */
Test(rails_plan, no_more_than_a_flow_has)
{
    struct boot_offer many = {.nic_count = NIC_ENDS_MAX};
    struct rail_plan rails[CORE_RAILS_MAX];
    our_count = 2;
    for (unsigned i = 0; i < NIC_ENDS_MAX; i++) {
        many.nics[i] = (struct nic_end){.prefix_bits = 24, .mtu = 1500};
        many.nics[i].address.v4.sin_family = AF_INET;
        many.nics[i].address.v4.sin_addr.s_addr = htonl(0x0a000002 + i);
    }
    struct nic_host host = {.address = parse("8.8.8.8"), .local = parse("192.168.0.1")};
    unsigned count = rails_plan(&several, &host, &many, true, rails);
    cr_assert_eq(count, CORE_RAILS_MAX);
    cr_assert(rails[count - 1].handshake);
}

Test(rails_plan, each_thread_begins_with_its_own)
{
    struct boot_offer three = offer_of("012", 2);
    our_count = 3;
    for (unsigned end = 0; end < 5; end++) {
        struct rail_plan rails[CORE_RAILS_MAX];
        struct nic_host host = {.address = parse("10.0.0.2"), .local = parse("10.0.0.1")};
        unsigned count = rails_plan(&several, &host, &three, true, rails), sum = 0;
        rails_order(rails, count, end);
        for (unsigned i = 0; i < count; i++)
            sum += rails[i].host.nic;
        cr_assert_eq(sum, 6, "each is there once");
        cr_assert_eq(rails[0].host.nic, end < 3 ? end + 1 : 1, "thread of NIC %u", end);
    }
}
