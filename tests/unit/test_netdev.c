/* SPDX-License-Identifier: Apache-2.0 */
/* The interface filter as a table over a made-up machine, and the list of the real one. */
#include "base/log.h"
#include "nic/netdev.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static union nic_address parse(const char *text)
{
    union nic_address address = {0};

    if (inet_pton(AF_INET, text, &address.v4.sin_addr) == 1) {
        address.v4.sin_family = AF_INET;
    } else {
        cr_assert_eq(inet_pton(AF_INET6, text, &address.v6.sin6_addr), 1);
        address.v6.sin6_family = AF_INET6;
    }
    return address;
}

/* A machine: interfaces by letter, in the order of the letters in the table below. */
static const struct {
    char letter;
    const char *name, *address;
} machine[] = {
    {'a', "eth0", "192.0.2.1"},    {'b', "eth1", "192.0.2.2"},     {'c', "eth10", "2001:db8::10"},
    {'d', "ib0", "198.51.100.1"},  {'e', "docker0", "172.17.0.1"}, {'f', "lo", "127.0.0.1"},
    {'g', "ens1f0np0", "fe80::1"},
};

Test(netdev, filter)
{
    static const struct {
        const char *filter, *admitted;
    } rows[] = {
        {"", "abcdefg"},
        {"eth", "abc"},
        {"eth1", "bc"},
        {"=eth1", "b"},
        {"eth,ib", "abcd"},
        {"eth0,lo", "af"},
        {"=eth0,ib0", "ad"}, /* "=" at the front holds for the whole list */
        {"=eth1,eth", "b"},
        {"^eth", "defg"},
        {"^docker,lo", "abcdg"}, /* "^" too */
        {"^=eth1", "acdefg"},
        {"=^eth1", "acdefg"},
        {"^=eth1,ib", "acdefg"},
        {"eth,^eth1", "a"}, /* or for one item */
        {"eth,^=eth1", "ac"},
        {"eth,=ib", "abc"},
        {"^docker,^lo", "abcdg"},
        {"192.0.2.2", "b"},
        {"=192.0.2.2", "b"},
        {"192.0.2", ""}, /* addresses match whole */
        {"^192.0.2.2", "acdefg"},
        {"2001:db8::10", "c"},
        {"2001:0db8:0::0010,ib", "cd"},
        {"2001:db8::11", ""}, /* both halves of them */
        {"2001:db9::10", ""},
        {"fe80::1%ens1f0np0", "g"},
        {"nothing", ""},
        {"^nothing", "abcdefg"},
        {",", "abcdefg"},
        {"eth,", "abc"},
        {" eth0 , ib0", "ad"},
        {"^", "abcdefg"},
        {"=", "abcdefg"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char admitted[16] = "";

        for (size_t k = 0; k < sizeof machine / sizeof machine[0]; k++) {
            union nic_address address = parse(machine[k].address);

            if (netdev_admits(rows[i].filter, machine[k].name, &address))
                admitted[strlen(admitted)] = machine[k].letter;
        }
        cr_expect_str_eq(admitted, rows[i].admitted, "\"%s\": wanted \"%s\", got \"%s\"", rows[i].filter,
                         rows[i].admitted, admitted);
    }
}

Test(netdev, long_filters_are_cut_not_overrun)
{
    union nic_address address = parse("192.0.2.1");
    char filter[1000];

    memset(filter, 'e', sizeof filter - 1);
    filter[sizeof filter - 1] = '\0';
    cr_assert_not(netdev_admits(filter, "eth0", &address));
    memset(filter, ',', sizeof filter - 1);
    cr_assert(netdev_admits(filter, "eth0", &address));
}

Test(netdev, list)
{
    struct netdev *devs;
    int count = netdev_list("", &devs);

    cr_assert_geq(count, 1);
    for (int i = 0; i < count; i++) {
        cr_assert_gt(devs[i].mtu, 0);
        cr_assert_neq(devs[i].index, 0);
        cr_assert_geq(devs[i].numa_node, -1);
        if (i > 0)
            cr_assert_geq(devs[i].class, devs[i - 1].class, "best first");
        for (int k = 0; k < i; k++)
            cr_assert_str_neq(devs[i].name, devs[k].name, "one device per interface");
    }
    while (count > 1 && devs[count - 1].class == NETDEV_NO_CARRIER)
        count--;
    cr_assert_eq(devs[count - 1].class, NETDEV_LOOPBACK);
    cr_assert_str_eq(devs[count - 1].name, "lo");
    free(devs);
}

Test(netdev, list_by_address)
{
    char text[NETDEV_ADDRESS_TEXT];
    struct netdev *devs;

    cr_assert_eq(netdev_list("127.0.0.1", &devs), 1);
    cr_assert_str_eq(netdev_address_text(&devs[0].address, text), "127.0.0.1");
    free(devs);
    cr_assert_eq(netdev_list("=nosuchinterface", &devs), 0);
    free(devs);
}

/* ---- what /sys says, made up ------------------------------------------------------------------ */

/* A loopback interface that is up, and a /sys/class/net without it. False: not allowed. */
static bool alone_with_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int namespaces = CLONE_NEWNS | CLONE_NEWNET, fd;

    if (unshare(namespaces) != 0 && unshare(namespaces | CLONE_NEWUSER) != 0)
        return false;
    cr_assert_eq(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    cr_assert_eq(mount("none", "/sys/class/net", "tmpfs", 0, NULL), 0);
    fd = socket(AF_INET, SOCK_DGRAM, 0);
    cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
    return true;
}

static void write_sys(const char *file, const char *text)
{
    char path[128];
    FILE *stream;

    snprintf(path, sizeof path, "/sys/class/net/lo/%s", file);
    unlink(path);
    if (!text)
        return;
    stream = fopen(path, "we");
    cr_assert_neq(stream, NULL);
    fputs(text, stream);
    fclose(stream);
}

/* Loopback has a device, of which write_sys() tells. Skips the test where that cannot be. */
static void make_up_sys(void)
{
    if (!alone_with_loopback())
        cr_skip_test("/sys cannot be made up: no namespaces");
    cr_assert_eq(mkdir("/sys/class/net/lo", 0755), 0);
    cr_assert_eq(mkdir("/sys/class/net/lo/device", 0755), 0);
}

static void write_setting(const char *name, const char *text)
{
    char path[128];
    FILE *stream;

    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%s", name);
    stream = fopen(path, "we");
    cr_assert_neq(stream, NULL, "%s", path);
    fputs(text, stream);
    cr_assert_eq(fclose(stream), 0, "%s", path);
}

Test(netdev, speed_and_node)
{
    static const struct {
        const char *speed, *node;
        uint64_t speed_mbps;
        int numa_node;
    } rows[] = {
        {NULL, NULL, 0, -1},
        {"10\n", "0\n", 10, 0},
        {"2500\n", "1\n", 2500, 1},
        {"100000\n", "7\n", 100000, 7},
        {"1600000\n", "255\n", 1600000, 255},
        {"0\n", "-1\n", 0, -1},
        {"-1\n", "4294967295\n", 0, -1},
        {"4294967295\n", "\n", 0, -1}, /* -1 without its sign, as some drivers write it */
        {"18446744073709551615\n", "", 0, -1},
        {"99999999999999999999\n", "-2\n", 0, -1},
        {"", "unknown\n", 0, -1},
        {"unknown\n", "2\n", 0, 2},
    };

    make_up_sys();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct netdev *devs;

        write_sys("speed", rows[i].speed);
        write_sys("device/numa_node", rows[i].node);
        cr_assert_eq(netdev_list("", &devs), 1);
        cr_expect_eq(devs[0].speed_mbps, rows[i].speed_mbps, "row %zu: %llu", i,
                     (unsigned long long)devs[0].speed_mbps);
        cr_expect_eq(devs[0].numa_node, rows[i].numa_node, "row %zu: %d", i, devs[0].numa_node);
        free(devs);
    }
}

/* Two numbers in hexadecimal: of the vendor, and the vendor's of the device. */
Test(netdev, model)
{
    static const struct {
        const char *vendor, *device;
        uint32_t model;
    } rows[] = {
        {NULL, NULL, 0},
        {"0x15b3\n", "0x1021\n", 0x15b31021},
        {"0xffff\n", "0x000a\n", 0xffff000a},
        {"unknown\n", "0x1021\n", 0x1021},
    };

    make_up_sys();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct netdev *devs;

        write_sys("device/vendor", rows[i].vendor);
        write_sys("device/device", rows[i].device);
        cr_assert_eq(netdev_list("", &devs), 1);
        cr_expect_eq(devs[0].model, rows[i].model, "row %zu: %x", i, devs[0].model);
        free(devs);
    }
}

/* ARP: the larger of a setting of all interfaces and one of their own counts. */
Test(netdev, an_interface_may_mix_addresses)
{
    static const struct {
        const char *all_ignore, *own_ignore, *all_announce, *own_announce;
        bool mixes;
    } rows[] = {
        {"0", "0", "0", "0", true},  {"1", "0", "0", "0", true},  {"0", "0", "2", "0", true},
        {"1", "0", "1", "1", true},  {"1", "0", "2", "0", false}, {"0", "1", "0", "2", false},
        {"2", "0", "0", "2", false}, {"0", "1", "1", "0", true},
    };

    if (!alone_with_loopback())
        cr_skip_test("settings cannot be made up: no namespaces");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        write_setting("all/arp_ignore", rows[i].all_ignore);
        write_setting("lo/arp_ignore", rows[i].own_ignore);
        write_setting("all/arp_announce", rows[i].all_announce);
        write_setting("lo/arp_announce", rows[i].own_announce);
        cr_expect_eq(netdev_mixes_addresses("lo"), rows[i].mixes, "row %zu", i);
    }
    cr_assert(netdev_mixes_addresses("nosuchinterface") == netdev_mixes_addresses("lo")); /* that of all counts */
}

/* An interface that is down may have addresses: they are nobody's. */
Test(netdev, down)
{
    static const short flags[] = {IFF_UP, 0, IFF_UP};

    if (!alone_with_loopback())
        cr_skip_test("no interface can be changed: no namespaces");
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        struct ifreq request = {.ifr_name = "lo", .ifr_flags = flags[i]};
        union nic_address address;
        struct netdev *devs = NULL;
        int fd = socket(AF_INET, SOCK_DGRAM, 0);

        cr_assert_eq(ioctl(fd, SIOCSIFFLAGS, &request), 0);
        cr_assert_eq(ioctl(fd, SIOCGIFADDR, &request), 0, "its address stays");
        close(fd);
        cr_expect_eq(netdev_list("", &devs), flags[i] != 0, "%zu", i);
        cr_expect_eq(netdev_addresses("", &address, 1), flags[i] != 0, "%zu", i);
        free(devs);
    }
}

/* The MTU is the interface's, not that of another. */
Test(netdev, mtu)
{
    static const int mtus[] = {1280, 1500, 9000, 65536};

    if (!alone_with_loopback())
        cr_skip_test("no interface can be changed: no namespaces");
    for (size_t i = 0; i < sizeof mtus / sizeof mtus[0]; i++) {
        struct ifreq request = {.ifr_name = "lo", .ifr_mtu = mtus[i]};
        struct netdev *devs;
        int fd = socket(AF_INET, SOCK_DGRAM, 0);

        cr_assert_eq(ioctl(fd, SIOCSIFMTU, &request), 0);
        close(fd);
        cr_assert_eq(netdev_list("", &devs), 1);
        cr_expect_eq(devs[0].mtu, (uint32_t)mtus[i]);
        free(devs);
    }
}

Test(netdev, addresses)
{
    union nic_address all[64], best;
    struct netdev *devs;
    char text[NETDEV_ADDRESS_TEXT];
    int count = netdev_addresses("", all, 64);

    cr_assert_geq(count, 1);
    cr_assert_geq(netdev_list("", &devs), 1);
    cr_assert_eq(memcmp(&all[0], &devs[0].address, sizeof all[0]), 0, "the best device's first");
    free(devs);
    cr_assert_eq(netdev_addresses("", &best, 1), 1);
    cr_assert_eq(memcmp(&all[0], &best, sizeof best), 0);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < i; k++)
            cr_assert_neq(memcmp(&all[i], &all[k], sizeof all[i]), 0, "each once");

    count = netdev_addresses("lo", all, 64);
    cr_assert_geq(count, 1);
    cr_assert_str_eq(netdev_address_text(&all[0], text), "127.0.0.1");
    cr_assert_eq(netdev_addresses("=nosuchinterface", all, 64), 0);
}

static char said[2048];

static void keep_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%d %s\n", level, text);
}

/* A name that matches nothing beside others that do: nobody would notice. */
Test(netdev, names_that_match_nothing_are_told)
{
    static const struct {
        const char *filter;
        enum uccl_log_level level;
        const char *missing[3];
    } rows[] = {
        {"lo", 0, {NULL}},
        {"=lo", 0, {NULL}},
        {"127.0.0.1", 0, {NULL}},
        {"lo,nosuchif0", UCCL_LOG_WARN, {"nosuchif0"}},
        {"=lo,l", UCCL_LOG_WARN, {"l"}},
        {" nosuchif0 , lo,=nosuchif1,192.0.2.77", UCCL_LOG_WARN, {"nosuchif0", "nosuchif1", "192.0.2.77"}},
        {"^nosuchif0", UCCL_LOG_INFO, {"nosuchif0"}},
        {"^nosuchif0,=nosuchif1", UCCL_LOG_INFO, {"nosuchif0", "nosuchif1"}},
    };

    uccl_set_log(keep_log, NULL);
    log_set_level(UCCL_LOG_INFO);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char expected[2048] = "";
        struct netdev *devs;

        said[0] = '\0';
        for (size_t k = 0; k < 3 && rows[i].missing[k]; k++)
            snprintf(expected + strlen(expected), sizeof expected - strlen(expected),
                     "%d UCCL_SOCKET_IFNAME: no network interface that is up and has an address matches \"%s\"\n",
                     rows[i].level, rows[i].missing[k]);
        cr_assert_geq(netdev_list(rows[i].filter, &devs), 1);
        cr_expect_str_eq(said, expected, "\"%s\": %s", rows[i].filter, said);
        free(devs);
    }
}

Test(netdev, route_mtu)
{
    union nic_address v4 = parse("127.0.0.1"), v6 = parse("::1"), mapped = parse("::ffff:127.0.0.1"),
                      second = parse("127.0.0.5"), strange = parse("192.0.2.1"), any = {0}, yes, no;

    const union nic_address *rows[][3] = {{&v4, &any, &yes},        {&v4, &v4, &yes},        {&mapped, &any, &yes},
                                          {&mapped, &mapped, &yes}, {&v6, &any, &yes},       {&v6, &v6, &yes},
                                          {&v4, &second, &no},      {&mapped, &second, &no}, {&second, &v4, &yes},
                                          {&second, &second, &no},  {&v4, &strange, &no}};

    int next = dup(STDERR_FILENO); /* the lowest that is free */
    close(next);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool by_itself = rows[i][2] != &yes;
        cr_expect_geq(netdev_route_mtu(rows[i][0], rows[i][1], 0, &by_itself), 16384, "row %zu", i);
        cr_expect_eq(by_itself, rows[i][2] == &yes, "row %zu", i);
        cr_assert_eq(dup(STDERR_FILENO), next, "row %zu keeps a descriptor", i);
        close(next);
    }
}

Test(netdev, address_text)
{
    static const struct {
        const char *address;
        uint16_t port;
        const char *text;
    } rows[] = {
        {"192.0.2.1", 0, "192.0.2.1"},          {"192.0.2.1", 80, "192.0.2.1:80"},
        {"2001:db8::1", 0, "2001:db8::1"},      {"2001:db8::1", 65535, "[2001:db8::1]:65535"},
        {"::ffff:192.0.2.1", 7, "192.0.2.1:7"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        union nic_address address = parse(rows[i].address);
        char text[NETDEV_ADDRESS_TEXT];

        address.v4.sin_port = htons(rows[i].port); /* in the same place in both families */
        cr_expect_str_eq(netdev_address_text(&address, text), rows[i].text);
    }
}

Test(netdev, address_text_of_scopes_and_strangers)
{
    union nic_address address = parse("fe80::1");
    char text[NETDEV_ADDRESS_TEXT];
    address.v6.sin6_scope_id = 1;
    cr_expect_str_eq(netdev_address_text(&address, text), "fe80::1%lo");
    address.v6.sin6_scope_id = 0x7ffffff0; /* no interface */
    address.v6.sin6_port = htons(9);
    cr_expect_str_eq(netdev_address_text(&address, text), "[fe80::1%2147483632]:9");
    address.any.sa_family = AF_UNIX;
    cr_expect_str_eq(netdev_address_text(&address, text), "an unknown address (family 1)");
}

/* ---- which ones an engine uses at once ------------------------------------------------------- */

/*
 * Interfaces by letter: of class NIC unless told. "h" hardware, "n" named by the user, "v" virtual, "L" loopback, "c"
 * without carrier, "m" of a known model, "M" of another; then the speed in Gbit/s, 0 for unknown. In the order of the
 * list.
 */
static int made_up(const char *text, struct netdev devs[NIC_ENDS_MAX + 4])
{
    char copy[256], *rest = copy;
    int count = 0;

    snprintf(copy, sizeof copy, "%s", text);
    for (char *word; (word = strtok_r(rest, " ", &rest)); count++) {
        bool carrier = true;

        devs[count] = (struct netdev){.kind = NETDEV_NIC, .address = parse("10.0.0.1")};
        for (; *word && !strchr("123456789", *word) && strcmp(word, "0") != 0; word++) {
            devs[count].hardware |= *word == 'h';
            devs[count].named |= *word == 'n';
            devs[count].model |= *word == 'm' || *word == 'M' ? (uint32_t)*word : 0;
            carrier = carrier && *word != 'c';
            devs[count].kind = *word == 'v' ? NETDEV_VIRTUAL : *word == 'L' ? NETDEV_LOOPBACK : devs[count].kind;
        }
        devs[count].class = carrier ? devs[count].kind : NETDEV_NO_CARRIER;
        devs[count].speed_mbps = (uint64_t)atoi(word) * 1000;
    }
    return count;
}

Test(netdev, as_many_as_are_worth_it)
{
    static const struct {
        const char *devs;
        unsigned max;
        const char *chosen;
    } rows[] = {
        {"h100 h100 h100", 0, "012"},
        {"h100 h50 h40", 0, "01"},  /* at least half as fast as the fastest */
        {"h1 h100 h100", 0, "12"},  /* the one for administration is left out */
        {"h10 h0", 0, "0"},         /* nobody knows whether the second is worth it */
        {"h0 h0", 0, ""},           /* the kernel's routes decide */
        {"h100 100", 0, "0"},       /* VLANs and tunnels share the hardware of others */
        {"h100 n100 n1", 0, "012"}, /* what the user names counts at any speed */
        {"vn10 vn10", 0, "01"},     /* virtual ones too, if named */
        {"v10 v10", 0, ""},         /* but not by themselves */
        {"hn100 vn10", 0, "0"},     /* nor beside better ones */
        {"Ln0 Ln0", 0, ""},
        {"h100 cn0", 0, "01"}, /* it may have a carrier later: named, */
        {"cn0 cn0", 0, "01"},
        {"hm9 hm9 hmc0", 0, "012"}, /* or of the same model as others */
        {"hM9 hm9 hmc0", 0, "012"},
        {"hm9 hm9 hMc0", 0, "01"},
        {"hm9 hm9 mc0", 0, "01"},
        {"h9 h9 hc0", 0, "01"}, /* nobody knows */
        {"hm9 hmc0", 0, "0"},   /* an engine with one NIC stays one */
        {"hm9 hmc0 hmc0", 0, "0"},
        {"hm9 hmc0", 2, "0"}, /* not even asked for by number */
        {"hm9 hm9 hmc0", 2, "01"},
        {"h9 hn9 cn9", 2, "01"},  /* those that work come first */
        {"h9 h9 hc100", 0, "01"}, /* a speed that it no longer has shuts out none */
        {"h9 vcn9", 0, "0"},
        {"hmc0 hmc0", 0, ""},
        {"Lcn0 Lcn0", 0, ""},
        {"h100 h100 h100", 1, "0"},
        {"h100 h100 h100", 2, "01"},
        {"h10 h0", 2, "01"}, /* asked for by number */
        {"v10 v10", 2, "01"},
        {"100 h1", 16, "01"},
        {"", 0, ""},
        {"L0 h100", 2, ""},
        {"h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9 h9", 0, "0123456789:;<=>?"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct netdev devs[NIC_ENDS_MAX + 4];
        unsigned out[NIC_ENDS_MAX];
        int count = made_up(rows[i].devs, devs);
        unsigned chosen = netdev_choose(devs, count, rows[i].max, out);
        char text[NIC_ENDS_MAX + 1] = "";

        for (unsigned k = 0; k < chosen; k++)
            text[k] = (char)('0' + out[k]);
        cr_expect_str_eq(text, rows[i].chosen, "row %zu: %s, at most %u", i, rows[i].devs, rows[i].max);
    }
    struct netdev link_local[2] = {{.kind = NETDEV_NIC, .named = true, .address = parse("10.0.0.1")},
                                   {.kind = NETDEV_NIC, .named = true, .address = parse("169.254.1.1")}};
    unsigned out[NIC_ENDS_MAX];
    cr_expect_eq(netdev_choose(link_local, 2, 0, out), 1);
}

/* A list knows the prefix of an address, whether the user names it, and which interface has an address. */
Test(netdev, the_list_has_what_pairs_need)
{
    struct netdev *devs;
    int count = netdev_list("=lo", &devs);

    cr_assert_eq(count, 1);
    cr_assert_eq(devs[0].prefix_bits, 8, "127.0.0.1/8 has %u", devs[0].prefix_bits);
    cr_assert(devs[0].named);
    cr_assert_not(devs[0].hardware);
    cr_assert_eq(netdev_of_address(&devs[0].address), devs[0].index);
    free(devs);
    count = netdev_list("^nothing", &devs);
    cr_assert_gt(count, 0);
    cr_assert_not(devs[0].named);
    free(devs);
    union nic_address mapped = parse("::ffff:127.0.0.1"), strange = parse("192.0.2.77");
    cr_assert_eq(netdev_of_address(&mapped), if_nametoindex("lo"));
    cr_assert_eq(netdev_of_address(&strange), 0);
}
