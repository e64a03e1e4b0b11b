/* SPDX-License-Identifier: Apache-2.0 */
/* Distances between GPUs and NICs on made-up machines, and fair shares; hwloc reads them as XML. */
#include "base/topology.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

/* ---- machines as XML ------------------------------------------------------------------------- */

static char xml[65536];
static size_t xml_length;
static unsigned next_id;

__attribute__((format(printf, 1, 2))) static void put(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(xml + xml_length, sizeof xml - xml_length, format, arguments);
    va_end(arguments);
    cr_assert_lt(xml_length + (size_t)length, sizeof xml);
    xml_length += (size_t)length;
}

/* A normal object; the sets are those of its cores and nodes, which are equal here. */
static void open_object(const char *type, unsigned index, unsigned set)
{
    put("<object type=\"%s\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\""
        " complete_nodeset=\"0x%x\" gp_index=\"%u\"",
        type, index, set, set, set, set, ++next_id);
}

static void open_machine(unsigned set)
{
    xml_length = 0;
    next_id = 0;
    put("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
        "<topology version=\"2.0\">\n");
    open_object("Machine", 0, set);
    put(" allowed_cpuset=\"0x%x\" allowed_nodeset=\"0x%x\">\n", set, set);
}

static void open_socket(unsigned index)
{
    open_object("Package", index, 1u << index);
    put(">\n");
    open_object("NUMANode", index, 1u << index);
    put(" local_memory=\"1048576\"/>\n");
    open_object("PU", index, 1u << index);
    put("/>\n");
}

static void close_objects(unsigned count)
{
    while (count--)
        put("</object>\n");
}

static struct topology *close_machine(void)
{
    struct topology *topology = NULL;
    put("</object>\n</topology>\n");
    cr_assert_eq(topology_open(xml, xml_length + 1, &topology), UCCL_OK, "%s", xml);
    return topology;
}

/* A host bridge with busses `first` to `last`. */
static void open_host_bridge(unsigned first, unsigned last)
{
    put("<object type=\"Bridge\" gp_index=\"%u\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[%02x-%02x]\">\n",
        ++next_id, first, last);
}

/* A bridge at `bus`:`device`.0 with busses `first` to `last` below it, `depth` below the host bridge. */
static void open_bridge(unsigned depth, unsigned bus, unsigned device, unsigned first, unsigned last)
{
    put("<object type=\"Bridge\" gp_index=\"%u\" bridge_type=\"1-1\" depth=\"%u\" bridge_pci=\"0000:[%02x-%02x]\""
        " pci_busid=\"0000:%02x:%02x.0\" pci_type=\"0604 [1000:c030] [0000:0000] b0\" pci_link_speed=\"0\">\n",
        ++next_id, depth, first, last, bus, device);
}

static void gpu(unsigned bus)
{
    put("<object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"0000:%02x:00.0\""
        " pci_type=\"0302 [10de:2330] [0000:0000] a1\" pci_link_speed=\"0\"/>\n",
        ++next_id, bus);
}

/* A port of a card: an interface and, at the same device, a verbs device. */
static void nic(unsigned bus, unsigned function, const char *interface, const char *verbs)
{
    put("<object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"0000:%02x:00.%u\""
        " pci_type=\"0200 [15b3:1021] [0000:0000] 00\" pci_link_speed=\"0\">\n",
        ++next_id, bus, function);
    put("<object type=\"OSDev\" gp_index=\"%u\" name=\"%s\" osdev_type=\"2\"/>\n", ++next_id, interface);
    if (verbs)
        put("<object type=\"OSDev\" gp_index=\"%u\" name=\"%s\" osdev_type=\"3\"/>\n", ++next_id, verbs);
    put("</object>\n");
}

enum { SWITCHES = 4, GPUS = 8, PORTS = 8 };

static const char *gpu_at(unsigned i)
{
    static char text[GPUS][16];
    snprintf(text[i], sizeof text[i], "0000:%02X:00.0", i / 2 * 0x20 + (i % 2 ? 5 : 4)); /* as CUDA writes it */
    return text[i];
}

static const char *port_at(unsigned i)
{
    static char text[PORTS][24];
    snprintf(text[i], sizeof text[i], "ens%uf%unp%u", i / 2, i % 2, i % 2);
    return text[i];
}

/*
 * Two sockets with two switches each; a switch has two GPUs and a card with two ports. Root port, upstream
 * port, and a downstream port for each of the three.
 */
static struct topology *eight_gpus(void)
{
    open_machine(3);
    for (unsigned i = 0; i < SWITCHES; i++) {
        unsigned base = i * 0x20;
        char verbs[2][16];
        snprintf(verbs[0], sizeof verbs[0], "mlx5_%u", i * 2);
        snprintf(verbs[1], sizeof verbs[1], "mlx5_%u", i * 2 + 1);
        if (i % 2 == 0)
            open_socket(i / 2);
        open_host_bridge(base, base + 0x1f);
        open_bridge(1, base, 1, base + 1, base + 0x1f);
        open_bridge(2, base + 1, 0, base + 2, base + 0x1f);
        for (unsigned port = 0; port < 3; port++) {
            open_bridge(3, base + 2, port, base + 4 + port, base + 4 + port);
            if (port < 2) {
                gpu(base + 4 + port);
            } else {
                nic(base + 6, 0, port_at(i * 2), verbs[0]);
                nic(base + 6, 1, port_at(i * 2 + 1), verbs[1]);
            }
            close_objects(1);
        }
        close_objects(3 + (i % 2));
    }
    return close_machine();
}

/* ---- distances ------------------------------------------------------------------------------- */

Test(topology, eight_gpus_four_dual_port_cards)
{
    struct topology *topology = eight_gpus();
    for (unsigned g = 0; g < GPUS; g++) {
        cr_assert_eq(topology_node(topology, gpu_at(g)), (int)g / 4);
        for (unsigned p = 0; p < PORTS; p++) {
            enum uccl_distance expected = g / 2 == p / 2   ? UCCL_DISTANCE_PIX
                                          : g / 4 == p / 4 ? UCCL_DISTANCE_NODE
                                                           : UCCL_DISTANCE_SYS;
            char verbs[16];
            snprintf(verbs, sizeof verbs, "mlx5_%u", p);
            cr_assert_eq(topology_distance(topology, gpu_at(g), port_at(p)), expected, "%u %u", g, p);
            cr_assert_eq(topology_distance(topology, gpu_at(g), verbs), expected, "%u %u", g, p);
        }
    }
    topology_close(topology);
}

Test(topology, a_port_of_its_own_for_each_gpu)
{
    struct topology *topology = eight_gpus();
    enum uccl_distance distance[GPUS * PORTS];
    uint64_t speed_mbps[PORTS];
    int nearest[GPUS];
    for (unsigned i = 0; i < GPUS * PORTS; i++)
        distance[i] = topology_distance(topology, gpu_at(i / PORTS), port_at(i % PORTS));
    for (unsigned i = 0; i < PORTS; i++)
        speed_mbps[i] = 200000;
    topology_share(distance, GPUS, speed_mbps, PORTS, nearest);
    for (unsigned i = 0; i < GPUS; i++)
        cr_assert_eq(nearest[i], (int)i, "GPU %u has port %d", i, nearest[i]);
    topology_close(topology);
}

/* One switch below another; a card in a slot of the same host bridge; one on the other socket. */
Test(topology, every_distance)
{
    open_machine(3);
    open_socket(0);
    open_host_bridge(0, 0x1f);
    open_bridge(1, 0, 1, 1, 0xf);
    open_bridge(2, 1, 0, 2, 0xf);
    open_bridge(3, 2, 0, 3, 3);
    gpu(3);
    close_objects(1);
    open_bridge(3, 2, 1, 4, 4);
    nic(4, 0, "same", "mlx5_0");
    close_objects(1);
    open_bridge(3, 2, 2, 5, 0xf);
    open_bridge(4, 5, 0, 6, 0xf);
    open_bridge(5, 6, 0, 7, 7);
    nic(7, 0, "below", NULL);
    close_objects(3 + 2);
    open_bridge(1, 0, 2, 0x10, 0x10);
    nic(0x10, 0, "slot", NULL);
    close_objects(2);
    open_host_bridge(0x20, 0x2f);
    nic(0x20, 0, "bridge", NULL);
    close_objects(2);
    open_socket(1);
    open_host_bridge(0x80, 0x8f);
    nic(0x80, 0, "far", NULL);
    close_objects(2);
    struct topology *topology = close_machine();
    static const struct {
        const char *nic;
        enum uccl_distance distance;
    } rows[] = {
        {"same", UCCL_DISTANCE_PIX},   {"mlx5_0", UCCL_DISTANCE_PIX},  {"below", UCCL_DISTANCE_PXB},
        {"slot", UCCL_DISTANCE_PHB},   {"bridge", UCCL_DISTANCE_NODE}, {"far", UCCL_DISTANCE_SYS},
        {"lo", UCCL_DISTANCE_UNKNOWN}, {"", UCCL_DISTANCE_UNKNOWN},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        cr_assert_eq(topology_distance(topology, "0000:03:00.0", rows[i].nic), rows[i].distance, "%s", rows[i].nic);
    cr_assert_eq(topology_distance(topology, "00000000:03:00.0", "same"), UCCL_DISTANCE_PIX); /* as NVML writes it */
    cr_assert_eq(topology_distance(topology, "0000:44:00.0", "same"), UCCL_DISTANCE_UNKNOWN);
    cr_assert_eq(topology_distance(topology, "", "same"), UCCL_DISTANCE_UNKNOWN);
    cr_assert_eq(topology_distance(topology, "nonsense", "same"), UCCL_DISTANCE_UNKNOWN);
    topology_close(topology);
}

/* A virtual machine with everything on one bus. */
Test(topology, flat)
{
    open_machine(1);
    open_socket(0);
    open_host_bridge(0, 0);
    put("<object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"0000:00:05.0\""
        " pci_type=\"0302 [10de:2330] [0000:0000] a1\" pci_link_speed=\"0\"/>\n",
        ++next_id);
    nic(0, 0, "eth0", NULL);
    close_objects(2);
    struct topology *topology = close_machine();
    cr_assert_eq(topology_distance(topology, "0000:00:05.0", "eth0"), UCCL_DISTANCE_PHB);
    cr_assert_eq(topology_node(topology, "0000:00:05.0"), 0);
    topology_close(topology);
}

/* A container that shows no PCI devices; no topology at all; this machine, whatever it is. */
Test(topology, nothing_to_see)
{
    open_machine(1);
    open_socket(0);
    close_objects(1);
    struct topology *topology = close_machine();
    cr_assert_eq(topology_distance(topology, "0000:03:00.0", "eth0"), UCCL_DISTANCE_UNKNOWN);
    cr_assert_eq(topology_node(topology, "0000:03:00.0"), -1);
    topology_close(topology);
    cr_assert_eq(topology_distance(NULL, "0000:03:00.0", "eth0"), UCCL_DISTANCE_UNKNOWN);
    cr_assert_eq(topology_node(NULL, "0000:03:00.0"), -1);
    topology_close(NULL);
    cr_assert_eq(topology_open(NULL, 0, &topology), UCCL_OK);
    cr_assert_eq(topology_distance(topology, "ffff:ff:1f.7", "lo"), UCCL_DISTANCE_UNKNOWN);
    topology_close(topology);
    cr_assert_eq(topology_open("<nonsense/>", sizeof "<nonsense/>", &topology), UCCL_ENOTSUP);
}

/* A bridge of the whole machine is near to no node. */
Test(topology, between_the_nodes)
{
    open_machine(3);
    for (unsigned i = 0; i < 2; i++) {
        open_socket(i);
        close_objects(1);
    }
    open_host_bridge(0, 3);
    gpu(3);
    close_objects(1);
    struct topology *topology = close_machine();
    cr_assert_eq(topology_node(topology, "0000:03:00.0"), -1);
    topology_close(topology);
}

static void log_nothing(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    (void)level;
    (void)text;
}

/* hwloc would tell so on stderr, which is the application's. */
Test(topology, machine_that_shows_no_cores)
{
    struct topology *topology;
    char said[256];
    int stderr_now[2], stderr_kept = dup(STDERR_FILENO);
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS))
        cr_skip_test("/sys cannot be hidden: no namespaces");
    cr_assert_eq(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
    cr_assert_eq(mount("none", "/sys", "tmpfs", 0, NULL), 0);
    uccl_set_log(log_nothing, NULL);
    cr_assert_eq(pipe(stderr_now), 0);
    dup2(stderr_now[1], STDERR_FILENO);
    int result = topology_open(NULL, 0, &topology);
    dup2(stderr_kept, STDERR_FILENO);
    close(stderr_now[1]);
    ssize_t length = read(stderr_now[0], said, sizeof said - 1);
    cr_assert_eq(result, UCCL_ENOTSUP);
    cr_assert_eq(length, 0, "%.*s", (int)length, said);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Rows of letters: P PIX, B PHB, S SYS, - unknown. Speeds in Gbit/s. Expected: a digit, or - for none. */
static void expect_shares(const char *rows, unsigned nics, const uint64_t *speed_gbps, const char *expected)
{
    enum uccl_distance distance[64];
    uint64_t speed_mbps[8];
    unsigned gpus = (unsigned)strlen(expected);
    int nearest[8];
    cr_assert_eq(strlen(rows), gpus * nics);
    for (unsigned i = 0; i < gpus * nics; i++)
        distance[i] = rows[i] == 'P'   ? UCCL_DISTANCE_PIX
                      : rows[i] == 'B' ? UCCL_DISTANCE_PHB
                      : rows[i] == 'S' ? UCCL_DISTANCE_SYS
                                       : UCCL_DISTANCE_UNKNOWN;
    for (unsigned i = 0; i < nics; i++)
        speed_mbps[i] = speed_gbps[i] * 1000;
    topology_share(distance, gpus, speed_mbps, nics, nearest);
    for (unsigned i = 0; i < gpus; i++)
        cr_assert_eq(nearest[i], expected[i] == '-' ? -1 : expected[i] - '0', "%s, GPU %u has %d", rows, i, nearest[i]);
}

Test(topology, shares)
{
    static const uint64_t equal[8] = {100, 100, 100, 100, 100, 100, 100, 100};
    static const uint64_t unknown[8] = {0};
    static const uint64_t slow_first[8] = {1, 200, 200};
    static const uint64_t unlike[8] = {100, 200, 200};
    expect_shares("B"
                  "B"
                  "B",
                  1, equal, "000");
    expect_shares("BB"
                  "BB"
                  "BB"
                  "BB",
                  2, equal, "0101");
    expect_shares("BB"
                  "BB",
                  2, unknown, "01");
    expect_shares("PS"
                  "SP"
                  "BB"
                  "BB",
                  2, equal, "0101");
    /* GPU 1 has no choice, so GPU 0 takes the other, although it comes first */
    expect_shares("PP"
                  "PS",
                  2, equal, "10");
    /* a slow interface of the mainboard is not taken although it is nearer, one of half the speed is */
    expect_shares("PSS"
                  "PSS",
                  3, slow_first, "12");
    expect_shares("PSS"
                  "PSS",
                  3, unlike, "00");
    /* nor where both are as near */
    expect_shares("PP"
                  "PP",
                  2, (const uint64_t[]){10, 200}, "11");
    expect_shares("PP"
                  "PP",
                  2, (const uint64_t[]){200, 99}, "00");
    expect_shares("PP"
                  "PP",
                  2, (const uint64_t[]){200, 100}, "01");
    /* what cannot be seen does not count, however fast */
    expect_shares("-S"
                  "-S",
                  2, (const uint64_t[]){400, 100}, "11");
    expect_shares("--"
                  "-P",
                  2, equal, "-1");
}
