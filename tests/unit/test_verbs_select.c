/* SPDX-License-Identifier: Apache-2.0 */
/* Choices among verbs devices as tables: filter, GID, MTU, traffic class, kind of queue pair. */
#include "nic/verbs/select.h"

#include "../param_defaults.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* ---- the filter ---- */

/* A machine: ports by letter, in the order of the letters in the table below. */
static const struct {
    char letter;
    const char *device;
    unsigned port;
} machine[] = {
    {'a', "mlx5_0", 1},  {'b', "mlx5_1", 1},   {'c', "mlx5_1", 2},
    {'d', "mlx5_10", 1}, {'e', "bnxt_re0", 1}, {'f', "rxe0", 1},
};

Test(verbs_select, filter)
{
    static const struct {
        const char *filter, *admitted;
    } rows[] = {
        {"", "abcdef"},
        {"mlx5", "abcd"},
        {"mlx5_1", "bcd"},
        {"=mlx5_1", "bc"},
        {"mlx5_1:1", "bd"},
        {"=mlx5_1:1", "b"},
        {"=mlx5_1:2", "c"},
        {"=mlx5_1:3", ""},
        {"mlx5_0,rxe", "af"},
        {"mlx5_0:1,mlx5_1:2", "ac"},
        {"=mlx5_0,mlx5_1", "abc"},
        {"=mlx5", ""},
        {"^mlx5", "ef"},
        {"^mlx5_1", "aef"},
        {"^=mlx5_1", "adef"},
        {"=^mlx5_1:2", "abdef"},
        {"^mlx5_0,rxe0", "bcde"},
        {"mlx5,^mlx5_1:2", "abd"},
        {"^bnxt_re0,=rxe0", "abcd"},
        {"rxe0, mlx5_0 ,", "af"},
        {",", "abcdef"},
        {"MLX5", ""},
        {"mlx5_1:", ""},
        {"mlx5_1:x", ""},
        {"mlx5_1:1x", ""},
        {"mlx5_1:2:1", ""},
        {":2", "c"},
        {"=", "abcdef"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char admitted[16] = "";
        for (size_t d = 0; d < sizeof machine / sizeof machine[0]; d++)
            if (verbs_admits(rows[i].filter, machine[d].device, machine[d].port))
                admitted[strlen(admitted)] = machine[d].letter;
        cr_expect_str_eq(admitted, rows[i].admitted, "\"%s\": %s, not %s", rows[i].filter, admitted, rows[i].admitted);
    }
}

Test(verbs_select, item_longer_than_any_device_matches_nothing)
{
    char filter[300], device[300];

    memset(filter, 'm', sizeof filter);
    filter[sizeof filter - 1] = '\0';
    memset(device, 'm', sizeof device);
    device[71] = '\0'; /* what is left of the item when it is cut */
    cr_assert_not(verbs_admits(filter, device, 1));
    filter[71] = '\0';
    cr_assert(verbs_admits(filter, device, 1));
}

/* ---- GIDs ---- */

struct entry {
    int index;
    enum verbs_gid_type type;
    const char *address;
};

enum { ENTRIES = 5 };

static int table(struct verbs_gid *out, const struct entry *entries)
{
    int count = 0;

    for (; count < ENTRIES && entries[count].address; count++) {
        char text[64];
        out[count] = (struct verbs_gid){.index = entries[count].index, .type = entries[count].type};
        snprintf(text, sizeof text, "%s%s",
                 strchr(entries[count].address, ':') ? "" : "::ffff:", entries[count].address);
        cr_assert_eq(inet_pton(AF_INET6, text, out[count].gid), 1);
    }
    return count;
}

#define V1 VERBS_GID_ROCE_V1
#define V2 VERBS_GID_ROCE_V2
#define IB VERBS_GID_IB

Test(verbs_select, gid)
{
    static const struct {
        struct entry entries[ENTRIES];
        uint64_t wanted;
        int index;       /* -1: none */
        const char *why; /* part of it */
    } rows[] = {
        /* as a RoCE card with an IPv4 address has it */
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {2, V1, "10.0.0.1"}, {3, V2, "10.0.0.1"}},
         VERBS_GID_AUTO,
         3,
         "RoCE v2, IPv4"},
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {4, V2, "2001:db8::1"}, {5, V2, "10.0.0.1"}},
         VERBS_GID_AUTO,
         5,
         "IPv4"},
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {4, V1, "2001:db8::1"}, {5, V2, "2001:db8::1"}},
         VERBS_GID_AUTO,
         5,
         "IPv6"},
        {{{0, V2, "fe80::1"}, {1, V1, "10.0.0.1"}}, VERBS_GID_AUTO, 1, "no v2"},
        {{{0, V2, "fe80::1"}, {1, V2, "169.254.3.4"}, {2, V1, "2001:db8::1"}}, VERBS_GID_AUTO, 2, "no v2"},
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}}, VERBS_GID_AUTO, 1, "link-local"},
        {{{0, V2, "febf::1"}, {1, V2, "fec0::1"}}, VERBS_GID_AUTO, 1, "IPv6"},
        {{{3, V2, "10.0.0.1"}, {5, V2, "10.0.0.2"}}, VERBS_GID_AUTO, 3, "IPv4"},
        {{{0, IB, "fe80::2:c903:1"}, {1, IB, "2001:db8::1"}}, VERBS_GID_AUTO, 0, "InfiniBand"},
        {{{0}}, VERBS_GID_AUTO, -1, "no GID"},
        /* as the user says */
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {3, V2, "10.0.0.1"}}, 0, 0, "GID_INDEX=0"},
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {3, V2, "10.0.0.1"}}, 1, 1, "GID_INDEX=1"},
        {{{0, V1, "fe80::1"}, {1, V2, "fe80::1"}, {3, V2, "10.0.0.1"}}, 2, 3, "=2 is empty or unr"},
        {{{0}}, 3, -1, "no GID"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct verbs_gid gids[ENTRIES];
        char why[VERBS_WHY_TEXT];
        int count = table(gids, rows[i].entries);
        const struct verbs_gid *chosen = verbs_choose_gid(gids, count, rows[i].wanted, why);
        cr_expect_eq(chosen ? chosen->index : -1, rows[i].index, "row %zu: %s", i, why);
        cr_expect_not_null(strstr(why, rows[i].why), "row %zu: \"%s\" in \"%s\"", i, rows[i].why, why);
    }
}

Test(verbs_select, gid_text)
{
    static const char *const texts[] = {"10.0.0.1", "2001:db8::1", "fe80::1"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct entry entries[ENTRIES] = {{0, V2, texts[i]}};
        struct verbs_gid gids[ENTRIES];
        char text[VERBS_GID_TEXT];
        table(gids, entries);
        cr_assert_str_eq(verbs_gid_text(gids[0].gid, text), texts[i]);
    }
}

/* ---- MTU, traffic class ---- */

Test(verbs_select, mtu)
{
    static const struct {
        unsigned ours, theirs;
        uint64_t packet_max;
        unsigned chosen;
    } rows[] = {
        {12, 12, 0, 12},    {12, 10, 0, 10},    {10, 12, 0, 10}, {12, 12, 9000, 12}, {12, 12, 4180, 12},
        {12, 12, 4179, 11}, {12, 12, 1500, 10}, {12, 12, 1, 8},  {9, 12, 9000, 9},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect_eq(verbs_choose_mtu(rows[i].ours, rows[i].theirs, rows[i].packet_max), rows[i].chosen, "row %zu", i);
}

Test(verbs_select, traffic_class_never_marks_congestion)
{
    cr_assert_eq(verbs_traffic_class(0), 0);
    cr_assert_eq(verbs_traffic_class(106), 106); /* DSCP 26, ECN capable */
    cr_assert_eq(verbs_traffic_class(3), 2);
    cr_assert_eq(verbs_traffic_class(255), 254);
    cr_assert_eq(verbs_traffic_class(105), 105);
}

/* ---- kinds of queue pair ---- */

Test(verbs_select, mode)
{
    static const struct {
        bool ud, uc, rc; /* the device */
        bool udmode, rcmode, in_order;
        int mode;
        const char *why; /* part of it */
    } rows[] = {
        {1, 1, 1, 0, 0, 1, VERBS_UC, "default"},
        {1, 1, 1, 0, 1, 1, VERBS_RC, "UCCL_RCMODE=1"},
        {1, 1, 1, 1, 0, 1, VERBS_UD, "UCCL_UDMODE=1"},
        {1, 1, 1, 1, 1, 1, VERBS_UD, "outranks"},
        {1, 1, 1, 0, 0, 0, VERBS_RC, "UCCL_IN_ORDER=0"},
        {1, 1, 1, 0, 1, 0, VERBS_RC, "UCCL_RCMODE=1"},
        {1, 1, 0, 0, 0, 0, VERBS_UD, "UCCL_IN_ORDER=0"},
        {1, 1, 0, 0, 1, 1, VERBS_UC, "no RC"},
        {1, 1, 0, 0, 1, 0, VERBS_UD, "no RC"},
        {1, 0, 1, 0, 0, 1, VERBS_RC, "no UC"},
        {1, 0, 1, 0, 0, 0, VERBS_RC, "no UC"},
        {1, 0, 0, 0, 0, 1, VERBS_UD, "neither"},
        {1, 0, 0, 0, 1, 1, VERBS_UD, "no RC"},
        {0, 1, 1, 0, 0, 1, -1, "no UD"},
        {0, 1, 1, 0, 1, 1, -1, "no UD"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct params params = param_defaults();
        struct verbs_able able = {.ud = rows[i].ud, .uc = rows[i].uc, .rc = rows[i].rc};
        char why[VERBS_WHY_TEXT];
        params.udmode = rows[i].udmode;
        params.rcmode = rows[i].rcmode;
        params.in_order = rows[i].in_order;
        int mode = verbs_choose_mode(&able, &params, why);
        cr_expect_eq(mode, rows[i].mode, "row %zu: %d, %s", i, mode, why);
        cr_expect_not_null(strstr(why, rows[i].why), "row %zu: \"%s\" in \"%s\"", i, rows[i].why, why);
    }
}

/* ---- ports ---- */

Test(verbs_select, judges_ports)
{
    static const struct {
        bool active, ethernet, ud;
        int gid_count;
        const char *filter, *why_not; /* "": usable */
    } rows[] = {
        {1, 1, 1, 1, "", ""},
        {1, 0, 1, 0, "", ""}, /* InfiniBand goes by LID */
        {1, 1, 1, 1, "=mlx5_0:2", ""},
        {1, 1, 1, 1, "=mlx5_0:1", "UCCL_IB_HCA does not admit it"},
        {0, 1, 1, 1, "", "it is not active"},
        {0, 1, 1, 1, "^mlx5", "UCCL_IB_HCA does not admit it"},
        {1, 1, 1, 0, "", "the port has no GID (has its interface an IP address?)"},
        {1, 1, 0, 1, "", "the device makes no UD queue pairs, which control needs"},
    };
    struct verbs_gid gid = {.index = 3, .type = VERBS_GID_ROCE_V2, .gid = {[10] = 255, [11] = 255}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct params params = param_defaults();
        struct verbs_candidate port = {.device = "mlx5_0",
                                       .number = 2,
                                       .active = rows[i].active,
                                       .ethernet = rows[i].ethernet,
                                       .able = {.ud = rows[i].ud, .rc = true},
                                       .gids = &gid,
                                       .gid_count = rows[i].gid_count};
        struct verbs_choice choice;
        strcpy(params.ib_hca, rows[i].filter);
        verbs_judge(&port, &params, &choice);
        cr_expect_str_eq(choice.why_not, rows[i].why_not, "row %zu: %s", i, choice.why_not);
        cr_expect_eq(choice.usable, *rows[i].why_not == '\0');
        cr_expect_eq(choice.gid, rows[i].gid_count ? &gid : NULL);
        cr_expect_eq(choice.mode, rows[i].ud ? VERBS_RC : -1);
    }
}
