/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A verbs device made of plain memory, in place of libibverbs: for what no soft device does, failed
 * completions first of all. Both ends of everything live in this process, so a write goes straight to the
 * address that it names. There may be several devices: the even ones are in one network, the odd ones in another. What
 * is posted waits until fake_run() lets it happen; queues that overflow, and completion queues that do, fail the test.
 *
 * Whoever includes it defines FAKE_REQUIRE(condition).
 */
#ifndef UCCL_TEST_FAKE_VERBS_H
#define UCCL_TEST_FAKE_VERBS_H

#include "fake_queues.h"

#include <arpa/inet.h>
#include <unistd.h>

static struct ibv_device **fake_get_device_list(int *count)
{
    *count = (int)(fake.device_count ? fake.device_count : 1);
    for (int i = 0; i < *count; i++)
        fake.list[i] = &fake.devices[i];
    return fake.list;
}

static void fake_free_device_list(struct ibv_device **list)
{
    (void)list;
}

static const char *fake_get_device_name(struct ibv_device *device)
{
    static const char *const names[FAKE_DEVICES] = {"fake0", "fake1", "fake2", "fake3"};
    return names[device - fake.devices];
}

static struct ibv_context *fake_open_device(struct ibv_device *device)
{
    if (fake.open_errno) {
        errno = fake.open_errno;
        return NULL;
    }
    struct verbs_context *verbs = &fake.verbs[device - fake.devices];
    verbs->context.device = device;
    verbs->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    verbs->sz = sizeof *verbs;
    verbs->create_cq_ex = fake_create_cq_ex;
    verbs->query_device_ex = fake_query_device_ex;
    verbs->query_rt_values = fake_query_rt_values;
    verbs->context.ops.post_send = fake_post_send;
    verbs->context.ops.post_recv = fake_post_recv;
    verbs->context.ops.post_srq_recv = fake_post_srq_recv;
    verbs->context.ops.poll_cq = fake_poll_cq;
    verbs->context.ops.req_notify_cq = fake_req_notify_cq;
    verbs->context.async_fd = eventfd(0, EFD_NONBLOCK);
    return &verbs->context;
}

static int fake_close_device(struct ibv_context *context)
{
    FAKE_REQUIRE(fake.events_unacked == 0); /* or it hangs */
    return close(context->async_fd);
}

static int fake_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    uint32_t i = 0;
    while (i < fake.event_count && fake.event_devices[i] != fake_device_of(context))
        i++;
    if (i == fake.event_count)
        return -1;
    *event = fake.events[i];
    for (fake.event_count--; i < fake.event_count; i++) {
        fake.events[i] = fake.events[i + 1];
        fake.event_devices[i] = fake.event_devices[i + 1];
    }
    fake.events_unacked++;
    return 0;
}

static void fake_ack_async_event(struct ibv_async_event *event)
{
    (void)event;
    fake.events_unacked--;
}

static const char *fake_event_type_str(enum ibv_event_type type)
{
    return type == IBV_EVENT_QP_FATAL       ? "local work queue catastrophic error"
           : type == IBV_EVENT_DEVICE_FATAL ? "local catastrophic error"
                                            : "event";
}

static const char *fake_wc_status_str(enum ibv_wc_status status)
{
    return status == IBV_WC_RETRY_EXC_ERR ? "transport retry counter exceeded" : "local QP operation error";
}

static int fake_query_device(struct ibv_context *context, struct ibv_device_attr *out)
{
    (void)context;
    *out = fake.limits;
    return 0;
}

static int fake_query_port(struct ibv_context *context, uint8_t port, void *out)
{
    (void)port;
    memcpy(out, &fake.port, sizeof fake.port);
    if (fake.down[fake_device_of(context)])
        ((struct ibv_port_attr *)out)->state = IBV_PORT_DOWN;
    return 0;
}

static int fake_query_gid(struct ibv_context *context, uint8_t port, int index, union ibv_gid *gid)
{
    (void)port;
    *gid = (union ibv_gid){.raw = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
    if (index < fake.gids_empty)
        *gid = (union ibv_gid){0};
    else if (fake.device_count > 1)
        fake_own_gid(fake_device_of(context), gid->raw);
    return 0;
}

static struct ibv_pd *fake_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = calloc(1, sizeof *pd);
    pd->context = context;
    return pd;
}

static int fake_dealloc_pd(struct ibv_pd *pd)
{
    free(pd);
    return 0;
}

static struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *address, size_t length, int access)
{
    uint32_t key = FAKE_KEY_DEVICE * fake_device_of(pd->context);
    FAKE_REQUIRE(!(access & (IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC))); /* no peer reads host memory */
    if (fake.register_errno || fake.removed[fake_device_of(pd->context)]) {
        errno = fake.register_errno ? fake.register_errno : EIO;
        return NULL;
    }
    if (fake.read_only && access) {
        errno = EFAULT;
        return NULL;
    }
    fake.access = access;
    struct ibv_mr *mr = calloc(1, sizeof *mr);
    *mr = (struct ibv_mr){.addr = address, .length = length, .lkey = key + 1, .rkey = key + 2, .context = pd->context};
    fake.mrs_alive++;
    return fake_key_given(mr, access);
}

static int fake_dereg_mr(struct ibv_mr *mr)
{
    return fake_key_ends(mr), fake.mrs_alive--, 0;
}

static struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *context)
{
    struct ibv_comp_channel *channel = calloc(1, sizeof *channel);
    channel->context = context;
    channel->fd = eventfd(0, EFD_NONBLOCK);
    return channel;
}

static int fake_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    free(channel);
    return 0;
}

static struct ibv_cq *fake_create_cq(struct ibv_context *context, int entries, void *user,
                                     struct ibv_comp_channel *channel, int vector)
{
    (void)user, (void)vector;
    struct fake_cq *cq = calloc(1, sizeof *cq);
    FAKE_REQUIRE(entries <= fake.limits.max_cqe);
    cq->cq.context = context;
    cq->cq.channel = channel;
    cq->size = (uint32_t)entries;
    fake.cqs_alive++;
    return &cq->cq;
}

static void fake_forget_event(uint32_t at)
{
    fake.told[at] = fake.told[--fake.told_count];
}

static int fake_destroy_cq(struct ibv_cq *cq)
{
    FAKE_REQUIRE(((struct fake_cq *)cq)->unacked == 0); /* or it hangs */
    pthread_mutex_lock(&told_lock);
    for (uint32_t i = 0; i < fake.told_count;) {
        if (&fake.told[i]->cq == cq)
            fake_forget_event(i);
        else
            i++;
    }
    pthread_mutex_unlock(&told_lock);
    free(cq);
    fake.cqs_alive--;
    return 0;
}

static int fake_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **user)
{
    eventfd_t count;
    int result = -1;
    (void)user;
    pthread_mutex_lock(&told_lock);
    (void)eventfd_read(channel->fd, &count);
    for (uint32_t i = 0; i < fake.told_count && result; i++) {
        if (fake.told[i]->cq.channel != channel)
            continue;
        *cq = &fake.told[i]->cq;
        fake.told[i]->unacked++;
        fake_forget_event(i);
        result = 0;
    }
    pthread_mutex_unlock(&told_lock);
    return result;
}

static void fake_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    ((struct fake_cq *)cq)->unacked -= count;
}

static struct ibv_srq *fake_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
    struct fake_srq *srq = calloc(1, sizeof *srq);
    FAKE_REQUIRE(attr->attr.max_wr <= (uint32_t)fake.limits.max_srq_wr);
    srq->srq.context = pd->context;
    srq->receives.size = attr->attr.max_wr;
    return &srq->srq;
}

static int fake_destroy_srq(struct ibv_srq *srq)
{
    free(srq);
    return 0;
}

static struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
    unsigned at = 0;
    if ((attr->qp_type == IBV_QPT_UC && fake.no_uc) || (attr->qp_type == IBV_QPT_RC && fake.no_rc)) {
        errno = EOPNOTSUPP;
        return NULL;
    }
    FAKE_REQUIRE(attr->cap.max_send_wr <= (uint32_t)fake.limits.max_qp_wr);
    FAKE_REQUIRE(attr->cap.max_recv_wr <= (uint32_t)fake.limits.max_qp_wr);
    while (fake.qps[at])
        FAKE_REQUIRE(++at < FAKE_QPS);
    struct fake_qp *qp = calloc(1, sizeof *qp);
    qp->qp = (struct ibv_qp){.context = pd->context,
                             .qp_context = attr->qp_context,
                             .send_cq = attr->send_cq,
                             .recv_cq = attr->recv_cq,
                             .srq = attr->srq,
                             .qp_num = 100 + fake.qps_made++,
                             .qp_type = attr->qp_type};
    qp->sends_max = attr->cap.max_send_wr;
    qp->receives.size = attr->cap.max_recv_wr;
    fake.qps[at] = qp;
    fake.qps_alive++;
    return &qp->qp;
}

static int fake_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
    struct fake_qp *qp = (struct fake_qp *)ibv;
    if (attr->qp_state == IBV_QPS_ERR && fake.stop_errno)
        return fake.stop_errno;
    if (mask & IBV_QP_ACCESS_FLAGS)
        qp->access = (int)attr->qp_access_flags;
    if (mask & IBV_QP_DEST_QPN) {
        /* who reads is connected to itself, and is read by nobody else; whoever writes does not read */
        int may = qp->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
        FAKE_REQUIRE(may == (attr->dest_qp_num == ibv->qp_num ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE));
        qp->peer = attr->dest_qp_num;
    }
    if (mask & IBV_QP_AV)
        qp->to_receive = *attr;
    if (mask & IBV_QP_SQ_PSN)
        qp->to_send = *attr;
    ibv->state = attr->qp_state;
    if (attr->qp_state == IBV_QPS_RESET) { /* forgets all */
        for (; qp->sends_head != qp->sends_tail; qp->sends_head++)
            if (qp->sends[qp->sends_head % FAKE_RING].send_flags & IBV_SEND_INLINE)
                free((void *)(uintptr_t)qp->pieces[qp->sends_head % FAKE_RING].addr);
        qp->receives.head = qp->receives.tail;
    }
    return 0;
}

static int fake_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
    (void)mask, (void)init;
    attr->qp_state = qp->state;
    return 0;
}

static int fake_destroy_qp(struct ibv_qp *ibv)
{
    fake_modify_qp(ibv, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE);
    for (unsigned i = 0; i < FAKE_QPS; i++)
        if (fake.qps[i] == (struct fake_qp *)ibv)
            fake.qps[i] = NULL;
    free(ibv);
    fake.qps_alive--;
    return 0;
}

static struct ibv_ah *fake_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
    if (fake.handle_errno && (!fake.handle_device || fake.handle_device == fake_device_of(pd->context) + 1)) {
        fake.handles_refused++;
        errno = fake.handle_errno;
        return NULL;
    }
    struct fake_handle *handle = calloc(1, sizeof *handle);
    handle->ah.context = pd->context;
    handle->route = *attr;
    fake.handles_alive++;
    return &handle->ah;
}

static int fake_destroy_ah(struct ibv_ah *handle)
{
    free(handle);
    fake.handles_alive--;
    return 0;
}

static const struct verbs_lib fake_lib = {
#define CALL(result, name, version, parameters) .name = fake_##name,
    VERBS_CALLS(CALL)
#undef CALL
};

/* A device with large queues and one active RoCE port of the largest MTU. */
static void fake_reset(void)
{
    memset(&fake, 0, sizeof fake);
    fake.limits =
        (struct ibv_device_attr){.max_qp_wr = 4096, .max_cqe = FAKE_RING, .max_srq_wr = 4096, .phys_port_cnt = 1};
    fake.port = (struct ibv_port_attr){
        .state = IBV_PORT_ACTIVE, .active_mtu = IBV_MTU_4096, .gid_tbl_len = 1, .link_layer = IBV_LINK_LAYER_ETHERNET};
}

#endif
