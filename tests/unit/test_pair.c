/* SPDX-License-Identifier: Apache-2.0 */
/* Which NICs of two hosts pair up, and which addresses a stranger may name. */
#include "nic/pair.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "10.0.0.1/24" */
static struct nic_end parse(const char *text)
{
    struct nic_end end = {.mtu = 1500};
    char host[64];
    snprintf(host, sizeof host, "%.*s", (int)strcspn(text, "/"), text);
    end.prefix_bits = (uint8_t)atoi(strchr(text, '/') + 1);
    if (inet_pton(AF_INET, host, &end.address.v4.sin_addr) == 1) {
        end.address.v4.sin_family = AF_INET;
    } else {
        cr_assert_eq(inet_pton(AF_INET6, host, &end.address.v6.sin6_addr), 1, "%s", text);
        end.address.v6.sin6_family = AF_INET6;
    }
    return end;
}

/* Of a list with blanks between; returns how many. */
static unsigned parse_all(const char *text, struct nic_end out[NIC_ENDS_MAX])
{
    char copy[256], *rest = copy;
    unsigned count = 0;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest));)
        out[count++] = parse(word);
    return count;
}

static const struct {
    const char *ours, *theirs, *pairs;
} rows[] = {
    {"10.0.0.1/24 10.0.1.1/24", "10.0.0.2/24 10.0.1.2/24", "00 11"},
    {"10.0.0.1/24 10.0.1.1/24", "10.0.1.2/24 10.0.0.2/24", "01 10"},
    {"10.0.0.1/24 10.0.1.1/24", "10.0.0.2/24", "00"}, /* nobody in 10.0.1.0: that NIC has no pair */
    {"10.0.0.1/24", "10.0.0.2/24 10.0.1.2/24", "00"},
    /* one subnet for all: as many pairs as the side with more NICs has */
    {"10.0.0.1/24 10.0.0.3/24", "10.0.0.2/24 10.0.0.4/24", "00 11"},
    {"10.0.0.1/24 10.0.0.3/24 10.0.0.5/24", "10.0.0.2/24 10.0.0.4/24", "00 11 20"},
    {"10.0.0.1/24", "10.0.0.2/24 10.0.0.4/24 10.0.0.6/24", "00 01 02"},
    /* two subnets of two NICs each */
    {"10.0.0.1/24 10.0.1.1/24 10.0.0.3/24 10.0.1.3/24", "10.0.0.2/24 10.0.0.4/24 10.0.1.2/24 10.0.1.4/24",
     "00 21 12 33"},
    /* no subnet in common: routers decide */
    {"10.0.0.1/24 10.0.1.1/24", "10.0.2.2/24 10.0.3.2/24", "00 11"},
    {"10.0.0.1/32 10.0.0.2/32", "10.0.0.3/32 10.0.0.4/32", "00 11"},
    {"10.0.0.1/24 10.0.1.1/24", "10.0.2.2/24", "00 10"},
    /* some are in one subnet, the others are left to routers */
    {"10.0.0.1/24 10.0.5.1/24", "10.0.6.2/24 10.0.0.2/24", "01 10"},
    /* they disagree on the prefix: neither sees the other on its link unless both do */
    {"10.0.0.1/16", "10.0.9.2/24", "00"},
    {"10.0.0.1/23", "10.0.1.2/24", "00"},
    {"10.0.0.1/31", "10.0.0.0/31", "00"},
    {"10.0.0.129/25 10.0.0.1/25", "10.0.0.2/25 10.0.0.130/25", "01 10"},
    /* families do not mix */
    {"10.0.0.1/24 fd00::1/64", "fd00::2/64 10.0.0.2/24", "01 10"},
    {"10.0.0.1/24", "fd00::2/64", ""},
    {"fd00::1/64 fd01::1/64", "fd02::2/64 fd03::2/64", "00 11"},
    {"fd00:0:0:1::1/64 fd00:0:0:2::1/64", "fd00:0:0:2::2/64 fd00:0:0:1::2/64", "01 10"},
    {"fd00::1/0", "fd01::2/0", "00"},
    /* the same machine */
    {"10.0.0.1/24 10.0.1.1/24", "10.0.0.1/24 10.0.1.1/24", ""},
    {"10.0.0.1/24 10.0.1.1/24", "", ""},
    {"", "10.0.0.1/24", ""},
};

static unsigned pairs_of(const char *ours, const char *theirs, struct nic_pair *out, unsigned max)
{
    struct nic_end a[NIC_ENDS_MAX], b[NIC_ENDS_MAX];
    unsigned n = parse_all(ours, a), m = parse_all(theirs, b);
    return nic_pairs(a, n, b, m, out, max);
}

Test(pair, nics_of_one_subnet_pair_up)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct nic_pair pairs[NIC_ENDS_MAX];
        unsigned count = pairs_of(rows[i].ours, rows[i].theirs, pairs, NIC_ENDS_MAX);
        char text[64] = "";
        for (unsigned k = 0; k < count; k++)
            sprintf(text + strlen(text), "%s%u%u", k ? " " : "", pairs[k].ours, pairs[k].theirs);
        cr_expect_str_eq(text, rows[i].pairs, "row %zu: %s and %s", i, rows[i].ours, rows[i].theirs);
    }
}

/* What one side sees as a pair, the other does. */
Test(pair, both_sides_find_the_same)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct nic_pair here[NIC_ENDS_MAX], there[NIC_ENDS_MAX];
        unsigned count = pairs_of(rows[i].ours, rows[i].theirs, here, NIC_ENDS_MAX);
        cr_expect_eq(pairs_of(rows[i].theirs, rows[i].ours, there, NIC_ENDS_MAX), count, "row %zu", i);
        for (unsigned k = 0; k < count; k++) {
            bool found = false;
            for (unsigned l = 0; l < count; l++)
                found = found || (there[l].ours == here[k].theirs && there[l].theirs == here[k].ours);
            cr_expect(found, "row %zu: %u with %u", i, here[k].ours, here[k].theirs);
        }
    }
}

Test(pair, no_more_than_there_is_room_for)
{
    struct nic_pair pairs[3] = {{9, 9}, {9, 9}, {9, 9}};
    cr_assert_eq(pairs_of("10.0.0.1/24", "10.0.0.2/24 10.0.0.3/24 10.0.0.4/24 10.0.0.5/24", pairs, 2), 2);
    cr_assert_eq(pairs[2].ours, 9);
}

Test(pair, addresses_of_strangers)
{
    static const char *const good[] = {"10.0.0.1/24", "8.8.8.8/32", "192.168.255.255/0", "fd00::1/128",
                                       "2001:db8::1/64"};
    static const char *const bad[] = {
        "0.0.0.0/0",   "0.1.2.3/8",          "127.0.0.1/8",        "127.255.0.1/32", "224.0.0.1/4", "239.1.1.1/24",
        "240.0.0.1/4", "255.255.255.255/32", "169.254.1.1/16",     "10.0.0.1/33",    "::/0",        "::1/128",
        "ff02::1/64",  "fe80::1/64",         "::ffff:10.0.0.1/96", "fd00::1/129"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        struct nic_end end = parse(good[i]);
        cr_expect_null(nic_end_fault(&end), "%s: %s", good[i], nic_end_fault(&end));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct nic_end end = parse(bad[i]);
        cr_expect_not_null(nic_end_fault(&end), "%s", bad[i]);
    }
    struct nic_end end = parse("10.0.0.1/24");
    static const uint32_t mtus[] = {575, 576, 65536, 65537}, speeds[] = {0, 3200000, 3200001};
    for (unsigned i = 0; i < 4; i++) {
        end.mtu = mtus[i];
        cr_expect_eq(!nic_end_fault(&end), i == 1 || i == 2, "MTU %u", mtus[i]);
    }
    end.mtu = 1500;
    for (unsigned i = 0; i < 3; i++) {
        end.speed_mbps = speeds[i];
        cr_expect_eq(!nic_end_fault(&end), i < 2, "speed %u", speeds[i]);
    }
    end = (struct nic_end){.mtu = 1500};
    cr_expect_not_null(nic_end_fault(&end), "no family");
}

Test(pair, same_hosts)
{
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {{"2001:db8::1", "2001:db8::1", true},  {"2001:db8::1", "2001:db8::2", false},
                 {"2001:db8::1", "2001:db9::1", false}, {"192.0.2.1", "192.0.2.1", true},
                 {"192.0.2.1", "192.0.2.2", false},     {"192.0.2.1", "::ffff:192.0.2.1", false}};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        union nic_address address[2] = {0};
        const char *text[2] = {cases[i].a, cases[i].b};
        for (unsigned k = 0; k < 2; k++) {
            bool v6 = inet_pton(AF_INET6, text[k], &address[k].v6.sin6_addr) == 1;
            address[k].any.sa_family = v6 ? AF_INET6 : AF_INET;
            cr_assert(v6 || inet_pton(AF_INET, text[k], &address[k].v4.sin_addr) == 1);
            *nic_address_port(&address[k]) = htons((uint16_t)(100 + k)); /* means nothing */
        }
        cr_assert_eq(nic_same_host(&address[0], &address[1]), cases[i].same, "%s, %s", cases[i].a, cases[i].b);
    }
}
