/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A verbs device that refuses: the n-th call of each function of its library fails while a NIC, two queues, their
 * peers and a path between them are made and memory is registered, for each n until a run comes through in which none
 * did. The step that fails says so by a code, nothing of it is left, and the next time all works.
 */
#include "../entries.h"
#include "verbs_pair.h"

enum { N_MAX = 200 };

#define CALLS(ROW)                                                                                                     \
    ROW(open_device)                                                                                                   \
    ROW(query_device)                                                                                                  \
    ROW(query_port)                                                                                                    \
    ROW(query_gid)                                                                                                     \
    ROW(alloc_pd)                                                                                                      \
    ROW(reg_mr)                                                                                                        \
    ROW(create_comp_channel)                                                                                           \
    ROW(create_cq)                                                                                                     \
    ROW(create_srq)                                                                                                    \
    ROW(create_qp)                                                                                                     \
    ROW(modify_qp)                                                                                                     \
    ROW(query_qp)                                                                                                      \
    ROW(create_ah)

enum call {
#define ROW(name) CALL_##name,
    CALLS(ROW)
#undef ROW
};

static struct {
    bool armed;
    enum call call;
    int error;
    unsigned left;
    bool failed;
} plan;
static int alive; /* contexts, domains, channels, completion queues, shared queues */

static bool fails(enum call call)
{
    if (!plan.armed || plan.call != call || plan.failed || --plan.left)
        return false;
    plan.failed = true;
    errno = plan.error;
    return true;
}

/* What makes something; what takes it away; what returns an error by itself. */
#define MAKES(result, name, counts, parameters, arguments)                                                             \
    static result try_##name parameters                                                                                \
    {                                                                                                                  \
        result made = fails(CALL_##name) ? NULL : fake_##name arguments;                                               \
        alive += (counts) && made;                                                                                     \
        return made;                                                                                                   \
    }
#define TAKES(name, parameters, arguments)                                                                             \
    static int try_##name parameters                                                                                   \
    {                                                                                                                  \
        alive--;                                                                                                       \
        return fake_##name arguments;                                                                                  \
    }
#define ASKS(name, parameters, arguments)                                                                              \
    static int try_##name parameters                                                                                   \
    {                                                                                                                  \
        return fails(CALL_##name) ? plan.error : fake_##name arguments;                                                \
    }

MAKES(struct ibv_context *, open_device, true, (struct ibv_device * device), (device))
TAKES(close_device, (struct ibv_context * context), (context))
ASKS(query_device, (struct ibv_context * context, struct ibv_device_attr *out), (context, out))
ASKS(query_port, (struct ibv_context * context, uint8_t port, void *out), (context, port, out))
ASKS(query_gid, (struct ibv_context * context, uint8_t port, int index, union ibv_gid *out),
     (context, port, index, out))
MAKES(struct ibv_pd *, alloc_pd, true, (struct ibv_context * context), (context))
TAKES(dealloc_pd, (struct ibv_pd * pd), (pd))
MAKES(struct ibv_mr *, reg_mr, false, (struct ibv_pd * pd, void *address, size_t length, int access),
      (pd, address, length, access))
MAKES(struct ibv_comp_channel *, create_comp_channel, true, (struct ibv_context * context), (context))
TAKES(destroy_comp_channel, (struct ibv_comp_channel * channel), (channel))
MAKES(struct ibv_cq *, create_cq, true,
      (struct ibv_context * context, int entries, void *user, struct ibv_comp_channel *channel, int vector),
      (context, entries, user, channel, vector))
TAKES(destroy_cq, (struct ibv_cq * cq), (cq))
MAKES(struct ibv_srq *, create_srq, true, (struct ibv_pd * pd, struct ibv_srq_init_attr *attr), (pd, attr))
TAKES(destroy_srq, (struct ibv_srq * srq), (srq))
MAKES(struct ibv_qp *, create_qp, false, (struct ibv_pd * pd, struct ibv_qp_init_attr *attr), (pd, attr))
ASKS(modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr *attr, int mask), (qp, attr, mask))
ASKS(query_qp, (struct ibv_qp * qp, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init),
     (qp, attr, mask, init))
MAKES(struct ibv_ah *, create_ah, false, (struct ibv_pd * pd, struct ibv_ah_attr *attr), (pd, attr))

static struct verbs_lib failing_lib(void)
{
    struct verbs_lib lib = fake_lib;
    lib.close_device = try_close_device;
    lib.dealloc_pd = try_dealloc_pd;
    lib.destroy_comp_channel = try_destroy_comp_channel;
    lib.destroy_cq = try_destroy_cq;
    lib.destroy_srq = try_destroy_srq;
#define ROW(name) lib.name = try_##name;
    CALLS(ROW)
#undef ROW
    return lib;
}

/* ---- all steps, as far as they go ------------------------------------------------------------ */

static int try_path(unsigned end, uint32_t *number, uint32_t *psn)
{
    struct nic_qp_id id = path_id(end, 0, 1);
    return verbs_data_qp_ops.open(&queues[end]->base, &id, number, psn);
}

static int use_queues(void)
{
    uint32_t *const destinations[2] = {&to_second, &to_first}, number[2], psn[2], bytes;
    struct nic_host host = {.address.v4.sin_family = AF_INET};
    struct nic_mr mr = {0};
    int error = 0;
    for (unsigned i = 0; i < 2 && !error; i++) {
        struct nic_queue_address address;
        verbs_queue_ops.address(&queues[!i]->base, &address);
        error = verbs_datagram_ops.peer_add(&queues[i]->base, &host, &address, destinations[i], &bytes);
    }
    for (unsigned i = 0; i < 2 && !error; i++)
        error = try_path(i, &number[i], &psn[i]);
    for (unsigned i = 0; i < 2 && !error; i++) {
        struct nic_qp_id id = path_id(i, 0, 1);
        error = verbs_data_qp_ops.connect(&queues[i]->base, &id, number[!i], psn[!i]);
    }
    if (!error)
        error = verbs_memory_ops.reg_mr(nic, 0, target.bytes, sizeof target.bytes, &mr);
    if (!error)
        verbs_memory_ops.dereg_mr(nic, &mr);
    return error;
}

/* The first error; without one the paths carry a datagram and a write. */
static int use_all(const struct verbs_lib *lib)
{
    unsigned opened = 0;
    int error = verbs_open_with(lib, &params, &nic);
    if (error)
        return error;
    while (!error && opened < 2) {
        struct nic_queue_setup setup = {.params = &params,
                                        .counters = &counters,
                                        .crc32c = crc32c_portable,
                                        .payload = payload,
                                        .local = local,
                                        .index = opened};
        struct nic_queue *queue = NULL;
        error = verbs_device_ops.queue_open(nic, &setup, &queue);
        queues[opened] = verbs_queue_of(queue);
        opened += !error;
    }
    if (!error)
        error = use_queues();
    plan.armed = false;
    if (!error) {
        send_and_take();
        cr_assert(send_write(0, 1, 0, 3000, 5));
        deliver();
        cr_assert_eq(take_writes(), 1);
        cr_assert_eq(memcmp(source.bytes, target.bytes, 3000), 0);
    }
    while (opened > 0)
        verbs_queue_ops.close(&queues[--opened]->base);
    verbs_device_ops.close(nic);
    return error;
}

#define ONE(code) (1u << -(code))

/* A device that does not open, or does not tell what it is, is passed over: then there is none. */
static const struct {
    enum call call;
    const char *name;
    int error;
    unsigned expected; /* the codes that are seen over all n */
} rows[] = {
    {CALL_open_device, "open_device", EMFILE, ONE(UCCL_ENOMEM)},
    {CALL_open_device, "open_device", EACCES, ONE(UCCL_ENODEV)},
    {CALL_query_device, "query_device", EIO, ONE(UCCL_ENODEV)},
    {CALL_query_port, "query_port", EIO, ONE(UCCL_ENODEV)},
    {CALL_query_gid, "query_gid", EIO, ONE(UCCL_ENODEV)},
    {CALL_alloc_pd, "alloc_pd", ENOMEM, ONE(UCCL_ENOMEM)},
    {CALL_reg_mr, "reg_mr", ENOMEM, ONE(UCCL_ENOMEM)},
    {CALL_create_comp_channel, "create_comp_channel", EMFILE, ONE(UCCL_ENOMEM)},
    {CALL_create_cq, "create_cq", ENOMEM, ONE(UCCL_ENOMEM)},
    {CALL_create_srq, "create_srq", ENOMEM, ONE(UCCL_ENOMEM)},
    {CALL_create_qp, "create_qp", ENOMEM, ONE(UCCL_ENOMEM) | ONE(UCCL_OK)}, /* there is RC where there is no UC */
    {CALL_modify_qp, "modify_qp", EINVAL, ONE(UCCL_EIO)},
    {CALL_create_ah, "create_ah", ENOMEM, ONE(UCCL_ENOMEM)},
};

Test(verbs_failures, each_call, .init = set_up, .timeout = 60)
{
    struct verbs_lib lib = failing_lib();
    cr_assert_eq(use_all(&lib), 0, "%s", said);
    int files = (int)entries_of("/proc/self/fd");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned seen = 0, n = 1;
        for (; n < N_MAX; n++) {
            said[0] = '\0';
            plan.call = rows[i].call;
            plan.error = rows[i].error;
            plan.left = n;
            plan.failed = false;
            plan.armed = true;
            int error = use_all(&lib);
            plan.armed = false;
            cr_assert(plan.failed || error == 0, "%s: no call failed: %d, %s", rows[i].name, error, said);
            cr_assert(error == 0 || said[0], "%s %u: nothing is said of it", rows[i].name, n);
            cr_assert_eq(alive, 0, "%s %u leaves %d objects", rows[i].name, n, alive);
            cr_assert(fake.qps_alive == 0 && fake.handles_alive == 0 && fake.mrs_alive == 0, "%s %u leaves %u, %u, %u",
                      rows[i].name, n, fake.qps_alive, fake.handles_alive, fake.mrs_alive);
            cr_assert_eq((int)entries_of("/proc/self/fd"), files, "%s %u leaves descriptors", rows[i].name, n);
            if (!plan.failed)
                break;
            seen |= ONE(error);
            cr_assert_eq(use_all(&lib), 0, "after %s %u: %s", rows[i].name, n, said);
        }
        cr_assert_gt(n, 1, "%s is never called", rows[i].name);
        cr_assert_eq(seen, rows[i].expected, "%s fails with %d: %#x, not %#x", rows[i].name, rows[i].error, seen,
                     rows[i].expected);
    }
}
