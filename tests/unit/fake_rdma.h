/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs device of fake_verbs.h under whole engines, with memory of the fake device (fake_device.h) in its reach:
 * GPUDirect RDMA without a GPU or a NIC. A thread lets happen what is posted; a lock makes one device of it for all
 * threads.
 *
 * Memory of the device is registered as a dma-buf or by its address, as far as a test allows. A registration maps
 * the pages that were there then, as a real one does: written to later than it should be, it changes memory that
 * nobody looks at. Every access names a key, and is checked against it: a read needs one that allows no writes, and
 * the other way round, since what peers may write to they may not read.
 *
 * With `posts_writes` what was written to the device is not there before a read of it, as on PCIe.
 */
#ifndef UCCL_TEST_FAKE_RDMA_H
#define UCCL_TEST_FAKE_RDMA_H

#include "../fake/fake_device.h"

#define FAKE_REQUIRE(condition) ((condition) ? (void)0 : fake_die("verbs: not " #condition))
#define fake fake_nic /* both devices call their state so */
#include "fake_verbs.h"
#undef fake

#include <sys/stat.h>

enum { RDMA_MRS = 512, RDMA_POSTED = 4096, RDMA_KEY = 1000, RDMA_ARMED = 64 };

struct rdma_mr {
    struct ibv_mr mr;
    uint8_t *mapped; /* NULL: free */
    uint64_t from;   /* as work requests name it */
    size_t length;
    int access;
    unsigned device; /* of the NIC */
};

/* A write that the device has not got yet. */
struct rdma_posted {
    uint64_t range; /* where it begins */
    uint8_t *to, *bytes;
    size_t length;
};

static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    _Atomic bool stop;
    unsigned staged_device; /* 1 + the NIC that takes no dma-buf; 0: all do */
    int dmabuf_errno;       /* what registering fails with; 0: it works */
    bool peer_memory;       /* addresses of the device can be registered */
    int refuse_host;        /* what registering host memory fails with; 0: it works */
    bool no_reads;          /* nothing can be registered to be read */
    _Atomic bool posts_writes;
    _Atomic unsigned lose_one_in;               /* writes; 0: none is lost */
    _Atomic unsigned break_writes, break_reads; /* so many more fail with their queue pair */
    unsigned count;                             /* of writes */
    struct rdma_mr mrs[RDMA_MRS];
    _Atomic unsigned mrs_alive, mrs_made, reads, writes; /* reads to flush, and writes, of device memory */
    struct rdma_posted posted[RDMA_POSTED];
    unsigned posted_count;
    struct fake_cq *armed[RDMA_ARMED];
} rdma = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP};

static void rdma_unlock(const int *unused)
{
    (void)unused;
    pthread_mutex_unlock(&rdma.lock);
}
#define RDMA_LOCKED __attribute__((cleanup(rdma_unlock), unused)) int locked_ = pthread_mutex_lock(&rdma.lock)

/* ---- memory ---------------------------------------------------------------------------------- */

static struct ibv_mr *rdma_map(unsigned device, int fd, off_t offset, size_t length, uint64_t from, int access)
{
    struct rdma_mr *mr = rdma.mrs;
    while (mr->mapped)
        FAKE_REQUIRE(++mr < rdma.mrs + RDMA_MRS);
    off_t begin = offset / FAKE_PAGE * FAKE_PAGE;
    size_t slack = (size_t)(offset - begin);
    uint8_t *mapped = mmap(NULL, length + slack, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin);
    FAKE_REQUIRE(mapped != MAP_FAILED);
    int may = access & ~IBV_ACCESS_RELAXED_ORDERING;
    FAKE_REQUIRE(may == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE) || may == IBV_ACCESS_REMOTE_READ);
    if (rdma.no_reads && may == IBV_ACCESS_REMOTE_READ) {
        munmap(mapped, length + slack);
        errno = ENOMEM;
        return NULL;
    }
    uint32_t key = RDMA_KEY + (uint32_t)(mr - rdma.mrs) + RDMA_MRS * rdma.mrs_made++;
    *mr = (struct rdma_mr){.mr = {.lkey = key, .rkey = key},
                           .mapped = mapped + slack,
                           .from = from,
                           .length = length,
                           .access = may,
                           .device = device};
    rdma.mrs_alive++;
    return &mr->mr;
}

static struct ibv_mr *rdma_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t from, int fd,
                                         int access)
{
    RDMA_LOCKED;
    struct stat file;
    unsigned device = fake_device_of(pd->context);
    FAKE_REQUIRE(fstat(fd, &file) == 0 && offset + length <= (uint64_t)file.st_size);
    if (rdma.dmabuf_errno || rdma.staged_device == device + 1) {
        errno = rdma.dmabuf_errno ? rdma.dmabuf_errno : EOPNOTSUPP;
        return NULL;
    }
    return rdma_map(device, fd, (off_t)offset, length, from, access);
}

static struct ibv_mr *rdma_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    RDMA_LOCKED;
    struct ibv_mr *mr = NULL;
    pthread_mutex_lock(&fake.lock);
    const struct fake_allocation *a = fake_find((uintptr_t)address);
    if (a && rdma.peer_memory)
        mr = rdma_map(fake_device_of(pd->context), a->fd, (uint8_t *)address - a->address, length, (uintptr_t)address,
                      access);
    pthread_mutex_unlock(&fake.lock);
    if (!a && !rdma.refuse_host)
        return fake_reg_mr(pd, address, length, access);
    errno = a ? EFAULT : rdma.refuse_host;
    return mr;
}

/* What waits to be written to ranges that begin as this one gets there. */
static void rdma_settle(uint32_t key)
{
    uint64_t range = rdma.mrs[(key - RDMA_KEY) % RDMA_MRS].from;
    unsigned left = 0;
    for (unsigned i = 0; i < rdma.posted_count; i++) {
        struct rdma_posted *posted = &rdma.posted[i];
        if (posted->range != range) {
            rdma.posted[left++] = *posted;
            continue;
        }
        memcpy(posted->to, posted->bytes, posted->length);
        free(posted->bytes);
    }
    rdma.posted_count = left;
}

static int rdma_dereg_mr(struct ibv_mr *ibv)
{
    RDMA_LOCKED;
    struct rdma_mr *mr = (struct rdma_mr *)ibv;
    if (mr < rdma.mrs || mr >= rdma.mrs + RDMA_MRS)
        return fake_dereg_mr(ibv);
    FAKE_REQUIRE(mr->mapped);
    rdma_settle(mr->mr.lkey);
    munmap((void *)((uintptr_t)mr->mapped / FAKE_PAGE * FAKE_PAGE), mr->length + (uintptr_t)mr->mapped % FAKE_PAGE);
    mr->mapped = NULL;
    rdma.mrs_alive--;
    return 0;
}

/* Where the device has it; NULL: it is host memory. `access`: one of those that are needed. */
static uint8_t *rdma_find(unsigned device, uint64_t address, uint32_t key, size_t length, int access)
{
    if (key < RDMA_KEY || key >= FAKE_OWN_KEYS) {
        pthread_mutex_lock(&fake.lock);
        FAKE_REQUIRE(!fake_find(address)); /* memory of the device by a key of host memory */
        pthread_mutex_unlock(&fake.lock);
        return NULL;
    }
    const struct rdma_mr *mr = &rdma.mrs[(key - RDMA_KEY) % RDMA_MRS];
    FAKE_REQUIRE(mr->mapped && mr->mr.lkey == key); /* a registration that has ended */
    FAKE_REQUIRE(mr->access & access);
    FAKE_REQUIRE(mr->device == device); /* a key of another NIC */
    FAKE_REQUIRE(address >= mr->from && address - mr->from + length <= mr->length);
    return mr->mapped + (address - mr->from);
}

static void rdma_move(uint64_t to, uint32_t to_key, uint64_t from, uint32_t from_key, size_t length)
{
    uint8_t *to_device = rdma_find(fake_nic.moves_to, to, to_key, length, IBV_ACCESS_REMOTE_WRITE);
    const uint8_t *source =
        rdma_find(fake_nic.moves_from, from, from_key, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    if (source)
        rdma_settle(from_key); /* a read does not overtake writes */
    if (!source)
        source = (const uint8_t *)(uintptr_t)from;
    rdma.writes += to_device != NULL;
    if (!to_device || !rdma.posts_writes) {
        memcpy(to_device ? to_device : (uint8_t *)(uintptr_t)to, source, length);
        return;
    }
    FAKE_REQUIRE(rdma.posted_count < RDMA_POSTED);
    struct rdma_posted *posted = &rdma.posted[rdma.posted_count++];
    *posted = (struct rdma_posted){.range = rdma.mrs[(to_key - RDMA_KEY) % RDMA_MRS].from,
                                   .to = to_device,
                                   .bytes = malloc(length),
                                   .length = length};
    memcpy(posted->bytes, source, length);
}

static enum ibv_wc_status rdma_fate(const struct fake_qp *qp, const struct ibv_send_wr *wr, bool *lost)
{
    (void)qp;
    bool read = wr->opcode == IBV_WR_RDMA_READ, write = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    rdma.reads += read;
    rdma.count += write;
    if (write && rdma.lose_one_in && rdma.count % rdma.lose_one_in == 0)
        *lost = true;
    if ((write && rdma.break_writes && rdma.break_writes--) || (read && rdma.break_reads && rdma.break_reads--))
        return IBV_WC_LOC_QP_OP_ERR;
    return IBV_WC_SUCCESS;
}

/* ---- one device for all threads -------------------------------------------------------------- */

static int rdma_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    RDMA_LOCKED;
    return fake_post_send(qp, wr, bad);
}

static int rdma_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    RDMA_LOCKED;
    return fake_post_recv(qp, wr, bad);
}

static int rdma_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    RDMA_LOCKED;
    return fake_post_srq_recv(srq, wr, bad);
}

static int rdma_poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *out)
{
    RDMA_LOCKED;
    return fake_poll_cq(cq, max, out);
}

static int rdma_req_notify_cq(struct ibv_cq *cq, int solicited)
{
    RDMA_LOCKED;
    unsigned at = 0;
    (void)solicited;
    while (rdma.armed[at] && rdma.armed[at] != (struct fake_cq *)cq)
        FAKE_REQUIRE(++at < RDMA_ARMED);
    rdma.armed[at] = (struct fake_cq *)cq;
    return 0;
}

static int rdma_destroy_cq(struct ibv_cq *cq)
{
    RDMA_LOCKED;
    for (unsigned i = 0; i < RDMA_ARMED; i++)
        if (rdma.armed[i] == (struct fake_cq *)cq)
            rdma.armed[i] = NULL;
    return fake_destroy_cq(cq);
}

/* Queues that were armed and have something tell their channels. */
static void rdma_notify(void)
{
    for (unsigned i = 0; i < RDMA_ARMED; i++) {
        struct fake_cq *cq = rdma.armed[i];
        uint64_t one = 1;
        if (!cq || cq->head == cq->tail)
            continue;
        FAKE_REQUIRE(write(cq->cq.channel->fd, &one, sizeof one) == sizeof one);
        rdma.armed[i] = NULL;
    }
}

static int rdma_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user)
{
    uint64_t count;
    ssize_t got = read(channel->fd, &count, sizeof count); /* it says nothing more */
    (void)cq, (void)user, (void)got;
    return -1;
}

/* Each engine opens it for itself. */
static struct ibv_context *rdma_open_device(struct ibv_device *device)
{
    RDMA_LOCKED;
    struct ibv_context *context = calloc(1, sizeof *context);
    const struct ibv_context *opened = fake_open_device(device);
    close(opened->async_fd);
    context->device = device;
    context->ops.post_send = rdma_post_send;
    context->ops.post_recv = rdma_post_recv;
    context->ops.post_srq_recv = rdma_post_srq_recv;
    context->ops.poll_cq = rdma_poll_cq;
    context->ops.req_notify_cq = rdma_req_notify_cq;
    context->async_fd = eventfd(0, EFD_NONBLOCK);
    return context;
}

static int rdma_close_device(struct ibv_context *context)
{
    close(context->async_fd);
    free(context);
    return 0;
}

static struct ibv_qp *rdma_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    RDMA_LOCKED;
    return fake_create_qp(pd, attr);
}

static int rdma_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
    RDMA_LOCKED;
    return fake_modify_qp(qp, attr, mask);
}

static int rdma_destroy_qp(struct ibv_qp *qp)
{
    RDMA_LOCKED;
    return fake_destroy_qp(qp);
}

static struct ibv_ah *rdma_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    RDMA_LOCKED;
    return fake_create_ah(pd, attr);
}

static int rdma_destroy_ah(struct ibv_ah *handle)
{
    RDMA_LOCKED;
    return fake_destroy_ah(handle);
}

static struct verbs_lib rdma_lib;

static void *rdma_run(void *unused)
{
    struct timespec moment = {0, 20 * 1000};
    while (!rdma.stop) {
        pthread_mutex_lock(&rdma.lock);
        fake_run();
        rdma_notify();
        pthread_mutex_unlock(&rdma.lock);
        nanosleep(&moment, NULL);
    }
    return unused;
}

/* A device that engines find. */
static void rdma_start(void)
{
    fake_reset();
    rdma_lib = fake_lib;
    rdma_lib.open_device = rdma_open_device;
    rdma_lib.close_device = rdma_close_device;
    rdma_lib.reg_mr = rdma_reg_mr;
    rdma_lib.reg_dmabuf_mr = rdma_reg_dmabuf_mr;
    rdma_lib.dereg_mr = rdma_dereg_mr;
    rdma_lib.destroy_cq = rdma_destroy_cq;
    rdma_lib.get_cq_event = rdma_get_cq_event;
    rdma_lib.create_qp = rdma_create_qp;
    rdma_lib.modify_qp = rdma_modify_qp;
    rdma_lib.destroy_qp = rdma_destroy_qp;
    rdma_lib.create_ah = rdma_create_ah;
    rdma_lib.destroy_ah = rdma_destroy_ah;
    fake_nic.move = rdma_move;
    fake_nic.fate = rdma_fate;
    verbs_set_test_lib(&rdma_lib);
    FAKE_REQUIRE(pthread_create(&rdma.thread, NULL, rdma_run, NULL) == 0);
}

/* Engines are closed: nothing may be left. */
static void rdma_end(void)
{
    rdma.stop = true;
    pthread_join(rdma.thread, NULL);
    FAKE_REQUIRE(rdma.mrs_alive == 0);
    FAKE_REQUIRE(fake_nic.qps_alive == 0);
    FAKE_REQUIRE(fake_nic.mrs_alive == 0);
}

#endif
