/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUDirect RDMA: what the NIC reaches of a GPU's memory, from when to when, and through which DMA-BUF.
 */
#include "gdr_pair.h"

#include <fcntl.h>

TestSuite(gdr_register, .init = gdr_set_up, .timeout = 60);

/* ---- registrations --------------------------------------------------------------------------- */

/* Registrations of one range share one with the NIC; it ends with the last, so that memory can be freed. */
Test(gdr_register, one_registration_for_a_range)
{
    open_gdr("auto", "sys", "RCMODE", "1");
    uint8_t *memory = fake_alloc(LENGTH, 3);
    uccl_mr *mr[3];
    for (unsigned i = 0; i < 3; i++)
        IS(uccl_reg_mr(pair.engine[0], memory + 1000, 5000, UCCL_MEM_AUTO, &mr[i]), 0);
    for (unsigned i = 0; i < 3; i++) {
        cr_assert_eq(rdma.mrs_alive, 2);
        IS(uccl_dereg_mr(mr[i]), 0);
    }
    cr_assert_eq(rdma.mrs_alive, 0);
    IS(uccl_reg_mr(pair.engine[0], memory, 1, UCCL_MEM_AUTO, &mr[0]), 0);
    cr_assert_eq(rdma.mrs_alive, 2, "what is left is deregistered with the engine");
    close_gdr();
    fake_free(memory);
}

/* The registrations that allow this; of those the range. */
static unsigned ranges(int access, uintptr_t *from, size_t *length)
{
    unsigned count = 0;
    for (unsigned i = 0; i < RDMA_MRS; i++) {
        if (!rdma.mrs[i].mapped || !(rdma.mrs[i].access & access))
            continue;
        *from = rdma.mrs[i].from;
        *length = rdma.mrs[i].length;
        count++;
    }
    return count;
}

/* What peers may write to is what was registered, to the byte; what can be read is one byte, by another key. */
static void expect_no_more(const char *gdr)
{
    static const struct {
        size_t at, length;
    } pieces[] = {{0, LENGTH}, {0, 1}, {1, 1}, {4095, 2}, {4096, 4096}, {5000, 12345}, {LENGTH - 1, 1}};
    uintptr_t from;
    size_t length;
    open_gdr(gdr, "sys", "RCMODE", "1");
    uint8_t *memory = fake_alloc(LENGTH, 3);
    for (unsigned i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        uccl_mr *mr;
        IS(uccl_reg_mr(pair.engine[0], memory + pieces[i].at, pieces[i].length, UCCL_MEM_AUTO, &mr), 0);
        cr_assert_eq(ranges(IBV_ACCESS_REMOTE_WRITE, &from, &length), 1);
        cr_assert_eq(from, (uintptr_t)memory + pieces[i].at);
        cr_assert_eq(length, pieces[i].length);
        cr_assert_eq(ranges(IBV_ACCESS_REMOTE_READ, &from, &length), 1);
        cr_assert_eq(from, (uintptr_t)memory + pieces[i].at);
        cr_assert_eq(length, 1);
        IS(uccl_dereg_mr(mr), 0);
        cr_assert_eq(rdma.mrs_alive, 0);
    }
    close_gdr();
    fake_free(memory);
}

Test(gdr_register, dmabuf_exposes_only_what_is_registered)
{
    expect_no_more("dmabuf");
}

Test(gdr_register, peer_memory_exposes_only_what_is_registered)
{
    rdma.peer_memory = true;
    expect_no_more("peermem");
}

/* Pieces of one allocation, ended in another order than they began. */
Test(gdr_register, ranges_of_an_allocation_come_and_go)
{
    enum { PIECES = 4 };
    uccl_mr *mr[PIECES];
    uintptr_t from;
    size_t length;
    open_gdr("auto", "sys", "RCMODE", "1");
    uint8_t *memory = fake_alloc(LENGTH, 3);
    int next = dup(STDERR_FILENO); /* the lowest that is free */
    close(next);
    for (unsigned i = 0; i < PIECES; i++)
        IS(uccl_reg_mr(pair.engine[0], memory + i * 1000, 5000, UCCL_MEM_AUTO, &mr[i]), 0);
    cr_assert_eq(rdma.mrs_alive, 2 * PIECES);
    for (unsigned i = 0; i < PIECES; i++) {
        struct uccl_mr_info info;
        IS(uccl_mr_get_info(mr[i], &info), 0);
        cr_assert_eq(info.base, memory, "that of the allocation");
        cr_assert_geq(info.base_length, LENGTH);
    }
    IS(uccl_dereg_mr(mr[1]), 0);
    IS(uccl_dereg_mr(mr[3]), 0);
    IS(uccl_dereg_mr(mr[0]), 0);
    cr_assert_eq(ranges(IBV_ACCESS_REMOTE_WRITE, &from, &length), 1);
    cr_assert_eq(from, (uintptr_t)memory + 2000);
    IS(uccl_dereg_mr(mr[2]), 0);
    cr_assert_eq(rdma.mrs_alive, 0);
    cr_assert_eq(dup(STDERR_FILENO), next, "a dma-buf's descriptor is kept");
    close_gdr();
    fake_free(memory);
}

/* One registration works and the byte to flush with does not: nothing is left, and all is staged. */
Test(gdr_register, nothing_to_flush_with)
{
    rdma.no_reads = true;
    expect("dmabuf", "sys", "RCMODE", "1", "staged: the device takes no dma-buf: Cannot allocate memory");
}

/* Memory comes back at the same address: a registration of what was there before would write to nobody's pages. */
Test(gdr_register, memory_at_the_same_address)
{
    open_gdr("auto", "sys", "RCMODE", "1");
    warm_up();
    const uint8_t *before[2] = {NULL, NULL};
    for (unsigned i = 0; i < 4; i++) {
        struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
        cr_assert(i == 0 || from.memory == before[0] || from.memory == before[1]);
        move(&from, &to, LENGTH, i);
        before[0] = from.memory;
        before[1] = to.memory;
        sides_free(&from, &to);
    }
    cr_assert_eq(counter(1, "gpu_uploads"), 0);
    cr_assert_eq(rdma.mrs_made, 16);
    close_gdr();
}

/* ---- a DMA-BUF of the application's ---------------------------------------------------------- */

/* Of memory from fake_alloc(); the caller's. */
static int dmabuf_of(const uint8_t *memory)
{
    int fd = dup(fake_find((uintptr_t)memory)->fd);
    cr_assert_geq(fd, 0);
    return fd;
}

/* What the fake device does not export itself, it can only have from there. */
Test(gdr_register, given_dmabuf)
{
    enum { AT = 5000, BYTES = 300001 };
    fake.exports = false;
    open_gdr("auto", "sys", "RCMODE", "1");
    warm_up();
    struct side from = side_make(pair.engine[0], true, LENGTH), to = side_make(pair.engine[1], true, LENGTH);
    struct side part[2];
    cr_assert_eq(strncmp(reached(&from), "staged", 6), 0);
    for (unsigned i = 0; i < 2; i++) {
        uint8_t *memory = (i ? to : from).memory;
        int fd = dmabuf_of(memory);
        part[i] = (struct side){.device = true, .memory = memory + AT};
        uintptr_t begin;
        size_t length;
        IS(uccl_reg_mr_dmabuf(pair.engine[i], part[i].memory, BYTES, UCCL_MEM_AUTO, fd, AT, &part[i].mr), 0);
        cr_assert_geq(fcntl(fd, F_GETFD), 0, "the descriptor is the caller's");
        close(fd);
        cr_assert_str_eq(reached(&part[i]), "direct, as a dma-buf");
        cr_assert_eq(ranges(IBV_ACCESS_REMOTE_WRITE, &begin, &length), i + 1);
        cr_assert(i || (begin == (uintptr_t)part[i].memory && length == BYTES));
    }
    for (unsigned i = 0; i < 5; i++)
        move(&part[0], &part[1], BYTES - i, i);
    cr_assert_eq(counter(1, "gpu_uploads"), 0);
    for (unsigned i = 0; i < 2; i++)
        IS(uccl_dereg_mr(part[i].mr), 0);
    cr_assert_eq(rdma.mrs_alive, 0);
    sides_free(&from, &to);
    close_gdr();
}

/* A range that is staged, and of which a dma-buf comes later; one that fails leaves it staged. */
Test(gdr_register, given_dmabuf_of_what_is_registered)
{
    fake.exports = false;
    open_gdr("auto", "sys", "RCMODE", "1");
    uint8_t *memory = fake_alloc(LENGTH, 3);
    struct side staged = {.memory = memory}, direct = staged, third = staged, failed = staged;
    int fd = dmabuf_of(memory);
    IS(uccl_reg_mr_dmabuf(pair.engine[0], memory, LENGTH, UCCL_MEM_AUTO, -1, 0, &staged.mr), UCCL_EINVAL);
    IS(uccl_reg_mr(pair.engine[0], memory, LENGTH, UCCL_MEM_AUTO, &staged.mr), 0);
    rdma.dmabuf_errno = EINVAL;
    IS(uccl_reg_mr_dmabuf(pair.engine[0], memory, LENGTH, UCCL_MEM_AUTO, fd, 0, &failed.mr), 0);
    rdma.dmabuf_errno = 0;
    cr_assert_str_eq(reached(&failed), "staged: the device takes no dma-buf: Invalid argument; no driver resolves the "
                                       "address (peer memory module): Bad address");
    IS(uccl_reg_mr_dmabuf(pair.engine[0], memory, LENGTH, UCCL_MEM_AUTO, fd, 0, &direct.mr), 0);
    cr_assert_str_eq(reached(&direct), "direct, as a dma-buf");
    cr_assert_eq(strncmp(reached(&staged), "staged", 6), 0);
    IS(uccl_reg_mr(pair.engine[0], memory, LENGTH, UCCL_MEM_AUTO, &third.mr), 0);
    cr_assert_str_eq(reached(&third), "direct, as a dma-buf", "it is shared");
    cr_assert_eq(rdma.mrs_alive, 2);
    IS(uccl_dereg_mr(staged.mr), 0);
    IS(uccl_dereg_mr(direct.mr), 0);
    IS(uccl_dereg_mr(failed.mr), 0);
    cr_assert_eq(rdma.mrs_alive, 2);
    IS(uccl_dereg_mr(third.mr), 0);
    cr_assert_eq(rdma.mrs_alive, 0);
    close(fd);
    close_gdr();
    fake_free(memory);
}

static void expect_given(const char *gdr, const char *name, const char *value, const char *how)
{
    open_gdr(gdr, "sys", name, value);
    struct side side = {.memory = fake_alloc(LENGTH, 3)};
    int fd = dmabuf_of(side.memory);
    IS(uccl_reg_mr_dmabuf(pair.engine[0], side.memory, LENGTH, UCCL_MEM_AUTO, fd, 0, &side.mr), 0);
    cr_assert_str_eq(reached(&side), how);
    IS(uccl_dereg_mr(side.mr), 0);
    close(fd);
    close_gdr();
    fake_free(side.memory);
}

Test(gdr_register, given_dmabuf_but_by_address)
{
    rdma.peer_memory = true;
    expect_given("peermem", "RCMODE", "1", "direct, as peer memory");
}

Test(gdr_register, given_dmabuf_but_nothing_is_placed)
{
    expect_given("auto", "UDMODE", "1", "staged: the NIC places no payload");
}
