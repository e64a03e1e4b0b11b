/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUDirect RDMA: whole engines over a verbs device and a GPU that are not there (fake_rdma.h). That the CPU
 * touches no memory of the device, the fake device sees to; a GPU call on an application's thread aborts.
 */
#include "gdr_pair.h"

TestSuite(gdr, .init = gdr_set_up, .timeout = 60);

/* ---- which way, and why not ------------------------------------------------------------------ */

Test(gdr, as_dmabuf)
{
    rdma.peer_memory = true;
    expect("auto", "sys", "RCMODE", "1", "direct, as a dma-buf");
}

Test(gdr, only_as_dmabuf)
{
    expect("dmabuf", "sys", "RCMODE", "1", "direct, as a dma-buf");
}

Test(gdr, device_exports_nothing)
{
    fake.exports = false;
    rdma.peer_memory = true;
    expect("auto", "sys", "RCMODE", "1", "direct, as peer memory; dma-buf: the fake device exports nothing");
}

Test(gdr, nic_takes_no_dmabuf)
{
    rdma.dmabuf_errno = EOPNOTSUPP;
    rdma.peer_memory = true;
    expect("auto", "sys", "RCMODE", "1",
           "direct, as peer memory; dma-buf: the device takes no dma-buf: Operation not supported");
}

Test(gdr, library_knows_no_dmabuf)
{
    rdma_lib.reg_dmabuf_mr = NULL;
    rdma.peer_memory = true;
    expect("auto", "sys", "RCMODE", "1",
           "direct, as peer memory; dma-buf: libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 or later is needed)");
}

Test(gdr, only_peer_memory)
{
    rdma.peer_memory = true;
    expect("peermem", "sys", "RCMODE", "1", "direct, as peer memory");
}

Test(gdr, nothing_works)
{
    rdma.dmabuf_errno = EOPNOTSUPP;
    expect("auto", "sys", "RCMODE", "1",
           "staged: the device takes no dma-buf: Operation not supported; no driver resolves the address (peer memory "
           "module): Bad address");
}

Test(gdr, dmabuf_that_fails_is_not_replaced)
{
    rdma.dmabuf_errno = EINVAL;
    rdma.peer_memory = true;
    expect("dmabuf", "sys", "RCMODE", "1", "staged: the device takes no dma-buf: Invalid argument");
}

Test(gdr, peer_memory_that_fails_is_not_replaced)
{
    expect("peermem", "sys", "RCMODE", "1", "staged: no driver resolves the address (peer memory module): Bad address");
}

Test(gdr, off)
{
    rdma.peer_memory = true;
    expect("off", "sys", "RCMODE", "1", "staged: UCCL_GDR=off");
}

Test(gdr, managed_memory)
{
    fake.managed = true;
    rdma.peer_memory = true;
    expect("auto", "sys", "RCMODE", "1", "staged: managed memory moves between device and host");
}

Test(gdr, no_queue_pairs_to_flush_with)
{
    fake_nic.no_rc = true;
    expect("auto", "sys", "RCMODE", "1",
           "staged: the device makes no RC queue pairs, which flushing needs; the device "
           "makes no RC queue pairs, which flushing needs");
}

Test(gdr, ud)
{
    expect("auto", "sys", "UDMODE", "1", "staged: the NIC places no payload");
}

Test(gdr, level_of_none)
{
    expect("auto", "loc", "RCMODE", "1", "staged: UCCL_GDR_LEVEL=loc");
}

Test(gdr, unknown_distance)
{
    expect("auto", "node", "RCMODE", "1", "staged: the distance to the NIC is unknown, beyond UCCL_GDR_LEVEL=node");
}

/* A peer tells an address where nobody answers: engine threads, who serve all peers, do not wait for that. */
Test(gdr, peer_that_cannot_be_reached)
{
    uccl_conn *conn[2] = {NULL, NULL};
    open_gdr("auto", "sys", "RCMODE", "1");
    int connected = UCCL_EAGAIN;
    uint64_t end_ms = now_ms() + SOON_MS;
    fake_nic.handle_errno = ETIMEDOUT;
    uccl_engine *third = open_engine("no", "BACKEND", "verbs", "NUM_ENGINES", "1", NULL);
    while (connected == UCCL_EAGAIN) {
        connected = uccl_connect(third, &pair.handle, 0, &conn[0]);
        cr_assert_eq(uccl_accept(pair.listener, 0, &conn[1]), UCCL_EAGAIN);
        cr_assert(now_ms() < end_ms);
    }
    cr_assert_eq(connected, UCCL_EADDR, "%d", connected);
    cr_assert_eq(fake_nic.handles_refused, 1, "nobody but the one that is to find out");
    fake_nic.handle_errno = 0;
    IS(uccl_close(third), 0);
    close_gdr();
}

/* ---- distance -------------------------------------------------------------------------------- */

/* A machine on which the fake device 3 is behind the same host bridge as the fake NIC, or the same switch. */
static void machine(bool one_switch)
{
    static char name[] = "/tmp/test-gdr-XXXXXX";
    const char *open_switch =
        "<object type=\"Bridge\" gp_index=\"6\" bridge_type=\"1-1\" depth=\"1\" bridge_pci=\"fa4e:[02-04]\""
        " pci_busid=\"fa4e:01:00.0\" pci_type=\"0604 [1000:c030] [0000:0000] b0\" pci_link_speed=\"0\">\n";
    int fd = mkstemp(name);
    FILE *xml = fdopen(fd, "w");
    cr_assert_not_null(xml);
    fprintf(xml,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n"
            "<topology version=\"2.0\">\n"
            "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\""
            " complete_nodeset=\"0x1\" gp_index=\"1\" allowed_cpuset=\"0x1\" allowed_nodeset=\"0x1\">\n"
            "<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\""
            " complete_nodeset=\"0x1\" gp_index=\"3\" local_memory=\"1048576\"/>\n"
            "<object type=\"PU\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\""
            " complete_nodeset=\"0x1\" gp_index=\"4\"/>\n"
            "<object type=\"Bridge\" gp_index=\"5\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"fa4e:[00-04]\">\n%s"
            "<object type=\"PCIDev\" gp_index=\"7\" pci_busid=\"fa4e:03:00.0\""
            " pci_type=\"0302 [10de:2330] [0000:0000] a1\" pci_link_speed=\"0\"/>\n"
            "<object type=\"PCIDev\" gp_index=\"8\" pci_busid=\"fa4e:04:00.0\""
            " pci_type=\"0207 [15b3:1021] [0000:0000] 00\" pci_link_speed=\"0\">\n"
            "<object type=\"OSDev\" gp_index=\"9\" name=\"fake0\" osdev_type=\"3\"/>\n</object>\n"
            "</object>\n%s</object>\n</topology>\n",
            one_switch ? open_switch : "", one_switch ? "</object>\n" : "");
    fclose(xml);
    setenv("HWLOC_XMLFILE", name, 1);
}

Test(gdr, within_the_level)
{
    machine(true);
    expect("auto", "pix", "RCMODE", "1", "direct, as a dma-buf");
}

Test(gdr, just_within_the_level)
{
    machine(false);
    expect("auto", "phb", "RCMODE", "1", "direct, as a dma-buf");
}

Test(gdr, beyond_the_level)
{
    machine(false);
    expect("auto", "pxb", "RCMODE", "1", "staged: the distance to the NIC is PHB, beyond UCCL_GDR_LEVEL=pxb");
}

/* ---- watched receives ------------------------------------------------------------------------ */

/* Host memory that the NIC could write to: it does not. Memory of a device: refused, however it is reached. */
Test(gdr, watched_receives)
{
    static _Alignas(128) uint8_t from[100000], to[100000];
    open_gdr("auto", "sys", "RCMODE", "1");
    warm_up();
    struct side device = side_make(pair.engine[1], true, LENGTH);
    uccl_request *send, *recv = NULL;
    uccl_mr *mr[2];
    cr_assert_str_eq(reached(&device), "direct, as a dma-buf");
    IS(uccl_recv_with_async(pair.conn[1], device.memory, 4096, device.mr, UCCL_RECV_WATCHED, &recv), UCCL_ENOTSUP);
    cr_assert_null(recv);
    IS(uccl_reg_mr(pair.engine[0], from, sizeof from, UCCL_MEM_AUTO, &mr[0]), 0);
    IS(uccl_reg_mr(pair.engine[1], to, sizeof to, UCCL_MEM_AUTO, &mr[1]), 0);
    uint64_t placed = counter(1, "rx_placed");
    for (unsigned i = 0; i < 4; i++) {
        bool watched = i < 3;
        fill(from, sizeof from, i);
        IS(uccl_recv_with_async(pair.conn[1], to, sizeof to, mr[1], watched ? UCCL_RECV_WATCHED : 0, &recv), 0);
        IS(uccl_send_async(pair.conn[0], from, sizeof from, mr[0], &send), 0);
        cr_assert_eq(end_of(recv, 0), sizeof to);
        cr_assert_eq(end_of(send, 0), sizeof to);
        check(to, sizeof to, i);
        cr_assert_eq(counter(1, "rx_placed") == placed, watched);
    }
    side_free(&device);
    for (int i = 0; i < 2; i++)
        IS(uccl_dereg_mr(mr[i]), 0);
    close_gdr();
}

/* ---- flush ----------------------------------------------------------------------------------- */

Test(gdr, flush_makes_what_was_received_visible)
{
    open_gdr("auto", "sys", "RCMODE", "1");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *send, *recv, *request;
    rdma.posts_writes = true;
    fill(shadow, LENGTH, 1);
    side_write(&from, 0, shadow, LENGTH);
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    cr_assert_eq(end_of(recv, 0), LENGTH);
    end_of(send, 0);
    side_read(&to, LENGTH - 100, shadow, 100);
    cr_assert_neq(shadow[0], content(1, LENGTH - 100), "nothing was held back: the test is void");
    IS(uccl_flush(pair.conn[1], to.memory, LENGTH, to.mr, &request), 0);
    cr_assert_not_null(request);
    cr_assert_eq(end_of(request, 0), 0);
    side_read(&to, 0, shadow, LENGTH);
    check(shadow, LENGTH, 1);
    sides_free(&from, &to);
    close_gdr();
}

/* More than the NIC takes at once; registrations are in use meanwhile; a cancel changes nothing. */
Test(gdr, many_flushes)
{
    enum { FLUSHES = 200 };
    uccl_request *request[FLUSHES];
    open_gdr("auto", "sys", "RCMODE", "1");
    struct side to = side_make(pair.engine[1], true, LENGTH);
    for (unsigned i = 0; i < FLUSHES; i++)
        IS(uccl_flush(pair.conn[1], to.memory + i, 10, to.mr, &request[i]), 0);
    IS(uccl_dereg_mr(to.mr), UCCL_EAGAIN);
    IS(uccl_cancel(request[FLUSHES - 1]), 0);
    for (unsigned i = 0; i < FLUSHES; i++)
        cr_assert_eq(end_of(request[i], 0), 0);
    cr_assert_eq(rdma.reads, FLUSHES);
    side_free(&to);
    close_gdr();
}

Test(gdr, flushes_with_nothing_to_do)
{
    static uint8_t host[100];
    uccl_request *request = (uccl_request *)host;
    uccl_mr *mr;
    open_gdr("auto", "sys", "RCMODE", "1");
    struct side to = side_make(pair.engine[1], true, LENGTH);
    IS(uccl_reg_mr(pair.engine[1], host, sizeof host, UCCL_MEM_AUTO, &mr), 0);
    IS(uccl_flush(pair.conn[1], host, sizeof host, mr, &request), 0);
    cr_assert_null(request);
    request = (uccl_request *)host;
    IS(uccl_flush(pair.conn[1], host, sizeof host, NULL, &request), 0);
    cr_assert_null(request);
    request = (uccl_request *)host;
    IS(uccl_flush(pair.conn[1], to.memory, 0, to.mr, &request), 0);
    cr_assert_null(request);
    IS(uccl_flush(pair.conn[1], to.memory + LENGTH, 1, to.mr, &request), UCCL_EINVAL);
    IS(uccl_flush(pair.conn[1], host, 1, to.mr, &request), UCCL_EINVAL);
    cr_assert_eq(rdma.reads, 0);
    IS(uccl_dereg_mr(mr), 0);
    side_free(&to);
    close_gdr();
}

/* A read that fails fails those behind it; the next one has a queue pair that works. */
Test(gdr, flush_that_fails)
{
    uccl_request *request;
    open_gdr("auto", "sys", "RCMODE", "1");
    struct side to = side_make(pair.engine[1], true, LENGTH);
    for (unsigned i = 0; i < 3; i++) {
        rdma.break_reads = 1;
        IS(uccl_flush(pair.conn[1], to.memory, 1, to.mr, &request), 0);
        end_of(request, UCCL_EIO);
        flush(&to);
    }
    fake_nic.no_rc = true; /* nor can one be made */
    rdma.break_reads = 1;
    for (unsigned i = 0; i < 2; i++) {
        IS(uccl_flush(pair.conn[1], to.memory, 1, to.mr, &request), 0);
        end_of(request, UCCL_EIO);
    }
    side_free(&to);
    close_gdr();
}

/* What has been received is flushed although the peer is gone; closing waits for flushes. */
Test(gdr, flush_at_the_end)
{
    uccl_request *request;
    uint64_t end_ms = now_ms() + SOON_MS;
    int done = 0;
    open_gdr("auto", "sys", "RCMODE", "1");
    struct side to = side_make(pair.engine[1], true, LENGTH);
    IS(uccl_conn_close(pair.conn[0]), 0);
    while (uccl_conn_status(pair.conn[1]) == 0)
        cr_assert(now_ms() < end_ms);
    flush(&to);
    IS(uccl_flush(pair.conn[1], to.memory, 1, to.mr, &request), 0);
    IS(uccl_conn_close(pair.conn[1]), 0);
    IS(uccl_test(request, &done, NULL), 0);
    cr_assert(done);
    side_free(&to);
    close_gdr();
}

/* ---- what cannot go directly ----------------------------------------------------------------- */

/* Small messages and those with host memory at one end, all sizes: mixed as they come. */
Test(gdr, every_size)
{
    open_gdr("auto", "sys", "RCMODE", "0");
    warm_up();
    all_sizes();
    cr_assert_gt(rdma.writes, 0);
    cr_assert_gt(counter(0, "gpu_fetches"), 0, "small messages are staged");
    close_gdr();
}

/* Before there are queue pairs all is staged, and where the other side is not direct. */
Test(gdr, only_one_side_is_direct)
{
    open_gdr("auto", "sys", "RCMODE", "1");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH);
    fake.managed = true;
    struct side to = side_make(pair.engine[1], true, LENGTH);
    cr_assert_str_eq(reached(&from), "direct, as a dma-buf");
    cr_assert_str_eq(reached(&to), "staged: managed memory moves between device and host");
    for (unsigned i = 0; i < 3; i++)
        move(&from, &to, LENGTH, i);
    cr_assert_eq(rdma.writes, 0);
    cr_assert_gt(counter(1, "gpu_uploads"), 0);
    sides_free(&from, &to);
    close_gdr();
}

/* Lost writes are retransmitted by datagrams: fetched from the device for that, and copied up to it there. */
Test(gdr, lost_writes_are_retransmitted)
{
    open_gdr("auto", "sys", "RCMODE", "0");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    rdma.lose_one_in = 7;
    for (unsigned i = 0; i < 10; i++)
        move(&from, &to, LENGTH - i * 7001, i);
    cr_assert_gt(rdma.writes, 50);
    cr_assert_gt(counter(0, "gpu_fetches"), 5);
    cr_assert_gt(counter(1, "gpu_uploads"), 5);
    sides_free(&from, &to);
    close_gdr();
}

/* Queue pairs fail in the midst of messages, one after the other. */
static void broken_paths(const char *rc)
{
    open_gdr("auto", "sys", "RCMODE", rc);
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    for (unsigned i = 0; i < 6; i++) {
        rdma.break_writes = 1 + i % 3 * 2;
        move(&from, &to, LENGTH - i * 7001, i);
    }
    cr_assert_gt(rdma.writes, 0);
    cr_assert_gt(counter(0, "gpu_fetches"), 0);
    sides_free(&from, &to);
    close_gdr();
}

Test(gdr, broken_paths_of_uc)
{
    broken_paths("0");
}

Test(gdr, broken_paths_of_rc)
{
    broken_paths("1");
}

/* Many at once, both ways, small and large, host and device, with loss: more retransmissions than places for them. */
Test(gdr, crowd)
{
    open_gdr("auto", "sys", "RCMODE", "0");
    warm_up();
    rdma.lose_one_in = 5;
    crowd(60, 300000);
    cr_assert_gt(rdma.writes, 0);
    close_gdr();
}

/* Copies for retransmissions that fail end their messages, and no others. */
Test(gdr, retransmissions_that_cannot_be_fetched)
{
    open_gdr("auto", "sys", "RCMODE", "0");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *send, *recv;
    fake.fail_after = 0;
    rdma.lose_one_in = 2;
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    end_of(send, UCCL_EIO);
    end_of(recv, UCCL_ECANCELED);
    fake.fail_after = -1;
    rdma.lose_one_in = 0;
    move(&from, &to, LENGTH, 1);
    sides_free(&from, &to);
    close_gdr();
}

/* A cancel while a retransmission is being fetched: the send ends when no copy touches its memory any more. */
Test(gdr, cancelled_while_a_retransmission_is_fetched)
{
    open_gdr("auto", "sys", "RCMODE", "0");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    uccl_request *send, *recv;
    uint64_t end_ms = now_ms() + SOON_MS;
    int done = 0;
    fake.hold = true;
    rdma.lose_one_in = 2;
    IS(uccl_recv_async(pair.conn[1], to.memory, LENGTH, to.mr, &recv), 0);
    IS(uccl_send_async(pair.conn[0], from.memory, LENGTH, from.mr, &send), 0);
    while (counter(0, "gpu_fetches") == 0)
        cr_assert(now_ms() < end_ms);
    IS(uccl_cancel(send), 0);
    end_of(recv, UCCL_ECANCELED);
    IS(uccl_test(send, &done, NULL), 0);
    cr_assert(!done, "it ended with a copy in flight");
    fake.hold = false;
    end_of(send, UCCL_ECANCELED);
    rdma.lose_one_in = 0;
    move(&from, &to, LENGTH, 1);
    sides_free(&from, &to);
    close_gdr();
}

/* Host memory that the NIC does not take: nothing is left of it. */
Test(gdr, refused_host_memory)
{
    static uint8_t memory[4096];
    uccl_mr *mr = NULL;
    open_gdr("auto", "sys", "RCMODE", "1");
    rdma.refuse_host = ENOMEM;
    IS(uccl_reg_mr(pair.engine[0], memory, sizeof memory, UCCL_MEM_HOST, &mr), UCCL_ENOMEM);
    cr_assert_null(mr);
    for (unsigned i = 0; i < MEM_CACHE_BUCKETS; i++)
        cr_assert_null(pair.engine[0]->regions.buckets[i], "a region is left");
    rdma.refuse_host = 0;
    IS(uccl_reg_mr(pair.engine[0], memory, sizeof memory, UCCL_MEM_HOST, &mr), 0);
    IS(uccl_dereg_mr(mr), 0);
    close_gdr();
}

/* A registration that begins in the middle of a page: a dma-buf is of whole pages. */
Test(gdr, in_the_middle_of_a_page)
{
    enum { AT = 5000, BYTES = 20000 };
    static uint8_t sent[BYTES], all[LENGTH];
    uccl_mr *mr, *own;
    uccl_request *recv, *send;
    open_gdr("dmabuf", "sys", "RCMODE", "1");
    warm_up();
    uint8_t *memory = fake_alloc(LENGTH, 3);
    uint64_t writes = rdma.writes;
    memset(all, 0x5a, sizeof all);
    fake_write(memory, all, LENGTH);
    fill(sent, BYTES, 1);
    IS(uccl_reg_mr(pair.engine[1], memory + AT, BYTES, UCCL_MEM_AUTO, &mr), 0);
    IS(uccl_recv_async(pair.conn[1], memory + AT, BYTES, mr, &recv), 0);
    IS(uccl_reg_mr(pair.engine[0], sent, BYTES, UCCL_MEM_HOST, &own), 0);
    IS(uccl_send_async(pair.conn[0], sent, BYTES, own, &send), 0);
    cr_assert_eq(end_of(recv, 0), BYTES);
    end_of(send, 0);
    cr_assert_gt(rdma.writes, writes, "the NIC has written it");
    fake_read(all, memory, LENGTH);
    check(all + AT, BYTES, 1);
    cr_assert(all[AT - 1] == 0x5a && all[AT + BYTES] == 0x5a && all[0] == 0x5a);
    IS(uccl_dereg_mr(mr), 0);
    IS(uccl_dereg_mr(own), 0);
    close_gdr();
    fake_free(memory);
}
