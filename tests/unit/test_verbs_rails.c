/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines with two verbs ports each: that connections write by both, keys of host and GPU memory, and what becomes of
 * messages when a port or its device is lost. The first engine has devices 0 and 1, the second one 2 and 3; 0 reaches
 * 2, and 1 reaches 3. The device refuses keys of another one.
 */
#include "gdr_pair.h"

#include "core/state.h"

#include <dlfcn.h>

TestSuite(verbs_rails, .init = gdr_set_up, .timeout = 60);

enum { SMALL = 20000, TIMES = 40 };

static void open_engines(const char *threads, const char *name, const char *value)
{
    static const char *const hcas[] = {"fake0,fake1", "fake2,fake3"};
    fake_nic.device_count = 4;
    mem_set_test_kind(&fake_ops);
    fake_forbid_this_thread();
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine("no", "BACKEND", "verbs", "IB_HCA", hcas[i], "GDR_LEVEL", "sys", "LINGER_MS",
                                     "300", "DEAD_PEER_MS", "10000", "PACKET_LIFETIME_MS", "20", "QP_RETRY_MS", "1",
                                     "NIC_DEAD_MS", "400", "NUM_ENGINES", threads, name, value, NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
}

/* A connection whose own port is a device of ours, or near something; NULL: any. */
static void connect_near(const char *device, const char *near)
{
    struct uccl_conn_options options = {.size = sizeof options, .device = device, .near = near};
    int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
    uint64_t end_ms = now_ms() + SOON_MS;
    while (connected == UCCL_EAGAIN || accepted == UCCL_EAGAIN) {
        if (connected == UCCL_EAGAIN)
            connected = uccl_connect_with(pair.engine[0], &pair.handle, 0, &options, &pair.conn[0]);
        if (accepted == UCCL_EAGAIN)
            accepted = uccl_accept(pair.listener, 0, &pair.conn[1]);
        cr_assert(now_ms() < end_ms, "connect %d, accept %d", connected, accepted);
    }
    IS(connected, 0);
    IS(accepted, 0);
}

static void connect_by(const char *device)
{
    connect_near(device, NULL);
}

static struct uccl_device_stats stats_of(int engine, int device)
{
    struct uccl_device_stats stats = {.size = sizeof stats};
    IS(uccl_device_stats(pair.engine[engine], device, &stats), 0);
    return stats;
}

static uint64_t sent_by(int device)
{
    return stats_of(0, device).tx_bytes;
}

/* What an event of a device tells both engines' threads. */
static void happens(unsigned device, enum ibv_event_type type)
{
    RDMA_LOCKED;
    fake_nic.events[fake_nic.event_count] = (struct ibv_async_event){.event_type = type, .element.port_num = 1};
    fake_nic.event_devices[fake_nic.event_count++] = device;
}

static void close_engines(struct side *from, struct side *to)
{
    side_free(from);
    side_free(to);
    close_gdr();
}

/* Whichever port a connection begins at, it writes by both. */
Test(verbs_rails, connection_writes_by_all_ports)
{
    open_engines("2", "RCMODE", "0");
    for (int device = 0; device < 2; device++) {
        struct side from = {0}, to = {0};
        connect_by(device ? "fake1" : "fake0");
        cr_expect_eq(pair.conn[0]->thread->index % 2, (unsigned)device);
        from = side_make(pair.engine[0], false, LENGTH);
        to = side_make(pair.engine[1], false, LENGTH);
        uint64_t before[2], placed, end_ms = now_ms() + SOON_MS;
        do { /* until all queue pairs are up */
            placed = counter(0, "tx_placed");
            before[0] = sent_by(0);
            before[1] = sent_by(1);
            for (unsigned i = 0; i < 5; i++)
                move(&from, &to, LENGTH, i);
            cr_assert(now_ms() < end_ms, "%llu and %llu bytes", (unsigned long long)(sent_by(0) - before[0]),
                      (unsigned long long)(sent_by(1) - before[1]));
        } while (counter(0, "tx_placed") < placed + 5 * LENGTH / 65536 || sent_by(0) < before[0] + LENGTH ||
                 sent_by(1) < before[1] + LENGTH);
        cr_expect_eq(stats_of(0, device).in_use, 1);
        cr_expect_eq(stats_of(0, device).up, 1);
        cr_assert_str_eq(reached(&from), "direct");
        sides_free(&from, &to);
    }
    close_gdr();
}

/* Small messages go by the port at which their connection begins. */
Test(verbs_rails, small_messages_go_by_the_own_port)
{
    enum { FEW = 5, BYTES = 1000 };
    open_engines("2", "RCMODE", "0");
    for (int device = 0; device < 2; device++) {
        struct side from = {0}, to = {0};
        connect_by(device ? "fake1" : "fake0");
        from = side_make(pair.engine[0], false, LENGTH);
        to = side_make(pair.engine[1], false, LENGTH);
        uint64_t own, other, end_ms = now_ms() + SOON_MS;
        do { /* a busy machine may take a port for dead for a moment */
            own = sent_by(device);
            other = sent_by(!device);
            for (unsigned i = 0; i < FEW; i++)
                move(&from, &to, BYTES, i);
            own = sent_by(device) - own;
            other = sent_by(!device) - other;
            cr_assert(now_ms() < end_ms, "device %d: %llu and %llu bytes", device, (unsigned long long)own,
                      (unsigned long long)other);
        } while (own < FEW * BYTES || other >= FEW * BYTES);
        sides_free(&from, &to);
    }
    close_gdr();
}

/* Messages from host memory while the first port is lost, by what the device tells; no byte may be wrong, no message
 * may fail, and writes go by that port again when it is back. */
static void port_lost(const char *name, const char *value, bool removed)
{
    open_engines("1", name, value);
    connect_by(NULL);
    struct side from = side_make(pair.engine[0], false, LENGTH), to = side_make(pair.engine[1], false, LENGTH);
    bool places = strcmp(name, "UDMODE") != 0;
    if (places)
        warm_up();
    for (unsigned i = 0; i < TIMES; i++) {
        if (i == TIMES / 4) {
            fake_nic.down[0] = !removed;
            happens(0, removed ? IBV_EVENT_DEVICE_FATAL : IBV_EVENT_PORT_ERR);
        }
        while (i == TIMES / 2 && counter(0, "rails_lost") == 0)
            move(&from, &to, SMALL, 1); /* a thread looks for events every tenth of a second */
        if (i == TIMES / 2 && !removed) {
            fake_nic.down[0] = false;
            happens(0, IBV_EVENT_PORT_ACTIVE);
        }
        move(&from, &to, SMALL * (1 + i), i);
    }
    cr_expect_geq(counter(0, "rails_lost"), 1);
    cr_expect_eq(stats_of(0, 0).losses, counter(0, "rails_lost"));
    cr_expect_gt(sent_by(1), LENGTH, "the other one has taken over");
    uint64_t end_ms = now_ms() + SOON_MS, placed = counter(0, "tx_placed"), by_first = sent_by(0);
    while ((!removed && (counter(0, "rails_returned") == 0 || sent_by(0) < by_first + 5 * LENGTH)) ||
           (places && counter(0, "tx_placed") < placed + 5)) {
        move(&from, &to, LENGTH, 77);
        cr_assert(now_ms() < end_ms, "%llu rails are back", (unsigned long long)counter(0, "rails_returned"));
    }
    cr_expect_eq(stats_of(0, 0).up, !removed);
    cr_expect_eq(stats_of(0, 1).up, 1);
    cr_expect_eq(stats_of(0, 1).losses, 0);
    cr_expect_eq(stats_of(0, 0).returns, counter(0, "rails_returned"));
    close_engines(&from, &to);
}

Test(verbs_rails, port_down_and_up_uc)
{
    port_lost("RCMODE", "0", false);
}

Test(verbs_rails, port_down_and_up_rc)
{
    port_lost("RCMODE", "1", false);
}

Test(verbs_rails, port_down_and_up_ud)
{
    port_lost("UDMODE", "1", false);
}

Test(verbs_rails, removed_device_uc)
{
    port_lost("RCMODE", "0", true);
}

Test(verbs_rails, removed_device_rc)
{
    port_lost("RCMODE", "1", true);
}

Test(verbs_rails, removed_device_ud)
{
    port_lost("UDMODE", "1", true);
}

/* Two sockets with a GPU and a verbs device each: GPU i is the stand-in's, and fake<i> is beside it. */
static void two_sockets(void)
{
    static char name[] = "/tmp/test-rails-XXXXXX";
    FILE *xml = fdopen(mkstemp(name), "w");
    cr_assert_not_null(xml);
    fprintf(xml, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
                 "<topology version=\"2.0\">\n"
                 "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x3\" complete_cpuset=\"0x3\" nodeset=\"0x3\""
                 " complete_nodeset=\"0x3\" gp_index=\"1\" allowed_cpuset=\"0x3\" allowed_nodeset=\"0x3\">\n");
    for (unsigned i = 0; i < 2; i++) {
        static const char *const kinds[] = {"Package", "NUMANode", "PU"};
        for (unsigned k = 0; k < 3; k++)
            fprintf(xml,
                    "<object type=\"%s\" os_index=\"%u\" cpuset=\"0x%x\" complete_cpuset=\"0x%x\" nodeset=\"0x%x\""
                    " complete_nodeset=\"0x%x\" gp_index=\"%u\"%s>\n",
                    kinds[k], i, 1 << i, 1 << i, 1 << i, 1 << i, 10 * (i + 1) + k, k ? "/" : "");
        unsigned bus = i ? 0x05 : 0x01, gpu = i ? 0x05 : 0x04;
        fprintf(xml,
                "<object type=\"Bridge\" gp_index=\"%u\" bridge_type=\"0-1\" depth=\"0\""
                " bridge_pci=\"0000:[%02x-%02x]\">\n"
                "<object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"0000:%02x:00.0\""
                " pci_type=\"0302 [10de:2330] [0000:0000] a1\" pci_link_speed=\"0\"/>\n"
                "<object type=\"PCIDev\" gp_index=\"%u\" pci_busid=\"0000:%02x:01.0\""
                " pci_type=\"0207 [15b3:1021] [0000:0000] 00\" pci_link_speed=\"0\">\n"
                "<object type=\"OSDev\" gp_index=\"%u\" name=\"fake%u\" osdev_type=\"3\"/>\n</object>\n</object>\n"
                "</object>\n",
                10 * (i + 1) + 3, bus, i ? 0x08 : 0x04, 10 * (i + 1) + 4, gpu, 10 * (i + 1) + 5, gpu, 10 * (i + 1) + 6,
                i);
    }
    fprintf(xml, "</object>\n</topology>\n");
    fclose(xml);
    setenv("HWLOC_XMLFILE", name, 1);
}

/* The driver of two GPUs that are not there (tests/mem): who asks for it finds it loaded. */
static void load_two_gpus(void)
{
    char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    cr_assert_gt(length, 0);
    path[length] = 0;
    strcpy(strrchr(path, '/'), "/libunit-cuda.so");
    setenv("FAKE_GPU_DEVICES", "2", 1);
    cr_assert_not_null(dlopen(path, RTLD_NOW), "%s", dlerror());
}

/* What the queues of all engine threads have counted for a port. */
static uint64_t sent_over(unsigned port)
{
    uint64_t sent = 0;
    for (unsigned i = 0; i < pair.engine[0]->thread_count; i++)
        sent += atomic_load(&pair.engine[0]->threads[i].queue->ends[port].tx_datagrams);
    return sent;
}

/* The choice is the application's, by the name of its GPU alone. */
Test(verbs_rails, gpu_gets_the_port_beside_it)
{
    load_two_gpus();
    two_sockets();
    open_engines("2", "RCMODE", "0");
    for (int gpu = 1; gpu >= 0; gpu--) {
        struct uccl_gpu is;
        IS(uccl_gpu_get(pair.engine[0], gpu, &is), 0);
        cr_expect_eq(is.used_device, gpu, "%s: device %d", is.name, is.used_device);
        cr_expect_eq(uccl_gpu_distance(pair.engine[0], gpu, !gpu), UCCL_DISTANCE_SYS);
        connect_near(NULL, gpu ? "cuda:1" : "cuda:0");
        cr_expect_eq(pair.conn[0]->thread->index % 2, (unsigned)gpu, "whose first port is beside it");
    }
    struct uccl_gpu none;
    IS(uccl_gpu_get(pair.engine[0], 2, &none), UCCL_ENODEV);
    IS(uccl_gpu_get(pair.engine[0], -1, &none), UCCL_ENODEV);
    for (unsigned port = 0; port < 2; port++) {
        struct uccl_device_stats stats = {.size = sizeof stats};
        uint64_t before = sent_over(port);
        IS(uccl_device_stats(pair.engine[0], (int)port, &stats), 0);
        cr_expect(before > 0 && before <= stats.tx_datagrams && stats.tx_datagrams <= sent_over(port), "port %u", port);
    }
    close_gdr();
}

/* Memory of a GPU that one of our ports reaches: that one writes it, wherever the connection begins. */
Test(verbs_rails, gpu_memory_by_what_the_ports_can)
{
    rdma.staged_device = 1 + 1;
    open_engines("2", "RCMODE", "1");
    for (int device = 0; device < 2; device++) {
        connect_by(device ? "fake1" : "fake0");
        warm_up();
        struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
        cr_assert_not_null(strstr(reached(&from), "fake0 direct, as a dma-buf; fake1 staged: "), "%s", reached(&from));
        cr_assert_str_eq(reached(&to), "direct, as a dma-buf");
        uint64_t fetches, writes, reads, end_ms = now_ms() + SOON_MS;
        do { /* until its queue pairs are up, and have stayed so */
            fetches = counter(0, "gpu_fetches"), writes = rdma.writes, reads = rdma.reads;
            for (unsigned i = 0; i < 3; i++)
                move(&from, &to, LENGTH, i);
            fetches = counter(0, "gpu_fetches") - fetches, writes = rdma.writes - writes, reads = rdma.reads - reads;
        } while ((fetches > 0 || reads != 6) && now_ms() < end_ms);
        cr_expect_eq(fetches, 0, "device %d", device);
        cr_expect_gt(writes, 0, "device %d", device);
        cr_expect_eq(reads, 6, "and each is flushed by both ports there: either may have written it");
        sides_free(&from, &to);
    }
    close_gdr();
}

/* The same where the peer's first port does not reach its memory: what the second one writes is flushed all the same.
 */
Test(verbs_rails, gpu_memory_that_the_first_port_does_not_reach)
{
    rdma.staged_device = 2 + 1;
    open_engines("2", "RCMODE", "1");
    connect_by("fake1");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    cr_assert_not_null(strstr(reached(&to), "; fake3 direct, as a dma-buf"), "%s", reached(&to));
    uint64_t reads = rdma.reads;
    for (unsigned i = 0; i < 3; i++)
        move(&from, &to, LENGTH, i);
    cr_expect_eq(rdma.reads - reads, 3);
    close_engines(&from, &to);
}

/* Found in review: no memory could be registered any more after one of the devices had been removed. */
Test(verbs_rails, memory_is_registered_without_a_removed_device)
{
    open_engines("1", "RCMODE", "1");
    connect_by(NULL);
    struct side before[2] = {side_make(pair.engine[0], false, LENGTH), side_make(pair.engine[1], false, LENGTH)};
    for (unsigned noticed = 0; noticed < 2; noticed++) {
        fake_nic.removed[0] = true;
        if (noticed)
            happens(0, IBV_EVENT_DEVICE_FATAL);
        uint64_t end_ms = now_ms() + SOON_MS;
        while (noticed && stats_of(0, 0).up) {
            move(&before[0], &before[1], SMALL, 1);
            cr_assert(now_ms() < end_ms);
        }
        struct side from = side_make(pair.engine[0], false, LENGTH), to = side_make(pair.engine[1], false, LENGTH);
        cr_assert_str_eq(reached(&from), "direct by some NICs, copied for others");
        move(&from, &to, LENGTH, noticed);
        uint8_t ref[UCCL_REF_BYTES];
        uccl_export *exported;
        IS(uccl_export_mr(from.mr, from.memory, LENGTH, UCCL_ACCESS_WRITE, ref, &exported), 0);
        IS(uccl_revoke(exported, SOON_MS), 0);
        sides_free(&from, &to);
    }
    close_engines(&before[0], &before[1]);
}

/* Host memory that one of the ports does not take is told as such. */
Test(verbs_rails, host_memory_that_one_port_does_not_take)
{
    static uint8_t memory[4096];
    static const char *const how[] = {"copied", "direct by some NICs, copied for others",
                                      "direct by some NICs, copied for others", "direct"};
    open_engines("1", "RCMODE", "1");
    connect_by("fake0");
    for (unsigned reaches = 0; reaches < 4; reaches++) {
        struct uccl_mr_info info;
        struct nic_mr others[2] = {{0}};
        uccl_mr *mr;
        IS(uccl_reg_mr(pair.engine[0], memory, sizeof memory, UCCL_MEM_HOST, &mr), 0);
        for (unsigned i = 0; i < 2; i++) { /* as if it had been refused */
            others[i] = mr->nic[i];
            if (!(reaches >> i & 1))
                mr->nic[i].handle = NULL;
        }
        IS(uccl_mr_get_info(mr, &info), 0);
        cr_expect_str_eq(info.reached, how[reaches], "%u: %s", reaches, info.reached);
        memcpy(mr->nic, others, sizeof others);
        IS(uccl_dereg_mr(mr), 0);
    }
    close_gdr();
}

/* Connections at a port take its threads in turn; the rate is that of all ports together. */
Test(verbs_rails, threads_of_a_port_take_turns)
{
    uccl_conn *conns[4][2];
    bool taken[4] = {false};
    open_engines("4", "LINK_GBPS", "100");
    for (unsigned i = 0; i < 4; i++) {
        cr_expect_eq(pair.engine[0]->threads[i].core->pacer.link_mbps, 2 * 100000 / 4);
        connect_by(i % 2 ? "fake1" : "fake0");
        memcpy(conns[i], pair.conn, sizeof pair.conn);
        unsigned thread = pair.conn[0]->thread->index;
        cr_expect_eq(thread % 2, i % 2, "connection %u", i);
        cr_expect_not(taken[thread], "connection %u", i);
        taken[thread] = true;
    }
    for (unsigned i = 0; i < 3; i++)
        for (unsigned end = 0; end < 2; end++)
            IS(uccl_conn_close(conns[i][end]), 0);
    close_gdr();
}

/* What the lost port had written is there; flushes by the other one alone will do from then on. */
Test(verbs_rails, gpu_memory_is_flushed_without_a_lost_port)
{
    open_engines("1", "RCMODE", "1");
    connect_by(NULL);
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    for (unsigned i = 0; i < 3; i++)
        move(&from, &to, LENGTH, i);
    happens(2, IBV_EVENT_DEVICE_FATAL);
    uint64_t end_ms = now_ms() + SOON_MS;
    while (stats_of(1, 0).up) {
        move(&from, &to, LENGTH, 5);
        cr_assert(now_ms() < end_ms);
    }
    for (unsigned i = 0; i < 5; i++)
        move(&from, &to, LENGTH, i);
    close_engines(&from, &to);
}
