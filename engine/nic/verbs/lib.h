/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs, loaded when it is first needed, so that one binary runs on machines with and without it.
 * Its functions are reached through a table, one row each; calls on the data path (posting, polling) are
 * inline in its header and go through the device's own table. Tests put a table of their own in place.
 *
 * Any thread.
 */
#ifndef UCCL_VERBS_LIB_H
#define UCCL_VERBS_LIB_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* CALL(result, name without "ibv_", symbol version that the header goes with, parameters) */
#define VERBS_CALLS(CALL)                                                                                              \
    CALL(struct ibv_device **, get_device_list, "IBVERBS_1.1", (int *))                                                \
    CALL(void, free_device_list, "IBVERBS_1.1", (struct ibv_device **))                                                \
    CALL(const char *, get_device_name, "IBVERBS_1.1", (struct ibv_device *))                                          \
    CALL(struct ibv_context *, open_device, "IBVERBS_1.1", (struct ibv_device *))                                      \
    CALL(int, close_device, "IBVERBS_1.1", (struct ibv_context *))                                                     \
    CALL(int, get_async_event, "IBVERBS_1.1", (struct ibv_context *, struct ibv_async_event *))                        \
    CALL(void, ack_async_event, "IBVERBS_1.1", (struct ibv_async_event *))                                             \
    CALL(const char *, event_type_str, "IBVERBS_1.1", (enum ibv_event_type))                                           \
    CALL(const char *, wc_status_str, "IBVERBS_1.1", (enum ibv_wc_status))                                             \
    CALL(int, query_device, "IBVERBS_1.1", (struct ibv_context *, struct ibv_device_attr *))                           \
    CALL(int, query_port, "IBVERBS_1.1", (struct ibv_context *, uint8_t, void *))                                      \
    CALL(int, query_gid, "IBVERBS_1.1", (struct ibv_context *, uint8_t, int, union ibv_gid *))                         \
    CALL(struct ibv_pd *, alloc_pd, "IBVERBS_1.1", (struct ibv_context *))                                             \
    CALL(int, dealloc_pd, "IBVERBS_1.1", (struct ibv_pd *))                                                            \
    CALL(struct ibv_mr *, reg_mr, "IBVERBS_1.1", (struct ibv_pd *, void *, size_t, int))                               \
    CALL(int, dereg_mr, "IBVERBS_1.1", (struct ibv_mr *))                                                              \
    CALL(struct ibv_comp_channel *, create_comp_channel, "IBVERBS_1.0", (struct ibv_context *))                        \
    CALL(int, destroy_comp_channel, "IBVERBS_1.0", (struct ibv_comp_channel *))                                        \
    CALL(struct ibv_cq *, create_cq, "IBVERBS_1.1",                                                                    \
         (struct ibv_context *, int, void *, struct ibv_comp_channel *, int))                                          \
    CALL(int, destroy_cq, "IBVERBS_1.1", (struct ibv_cq *))                                                            \
    CALL(int, get_cq_event, "IBVERBS_1.1", (struct ibv_comp_channel *, struct ibv_cq **, void **))                     \
    CALL(void, ack_cq_events, "IBVERBS_1.1", (struct ibv_cq *, unsigned))                                              \
    CALL(struct ibv_srq *, create_srq, "IBVERBS_1.1", (struct ibv_pd *, struct ibv_srq_init_attr *))                   \
    CALL(int, destroy_srq, "IBVERBS_1.1", (struct ibv_srq *))                                                          \
    CALL(struct ibv_qp *, create_qp, "IBVERBS_1.1", (struct ibv_pd *, struct ibv_qp_init_attr *))                      \
    CALL(int, modify_qp, "IBVERBS_1.1", (struct ibv_qp *, struct ibv_qp_attr *, int))                                  \
    CALL(int, query_qp, "IBVERBS_1.1", (struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *))        \
    CALL(int, destroy_qp, "IBVERBS_1.1", (struct ibv_qp *))                                                            \
    CALL(struct ibv_ah *, create_ah, "IBVERBS_1.1", (struct ibv_pd *, struct ibv_ah_attr *))                           \
    CALL(int, destroy_ah, "IBVERBS_1.1", (struct ibv_ah *))

/* Younger than the library that must be there: NULL where it is older. */
#define VERBS_OPTIONAL_CALLS(CALL)                                                                                     \
    CALL(struct ibv_mr *, reg_mr_iova2, "IBVERBS_1.8", (struct ibv_pd *, void *, size_t, uint64_t, unsigned))          \
    CALL(struct ibv_mr *, reg_dmabuf_mr, "IBVERBS_1.12", (struct ibv_pd *, uint64_t, size_t, uint64_t, int, int))

struct verbs_lib {
#define CALL(result, name, version, parameters) result(*name) parameters;
    VERBS_CALLS(CALL)
    VERBS_OPTIONAL_CALLS(CALL)
#undef CALL
};

/*
 * The library, loaded by the first call and kept; NULL: it is not there, and `*why` says what is missing
 * and how to get it.
 */
const struct verbs_lib *verbs_lib(const char **why);
/* For tests, before the first call: a library to find in its place. */
void verbs_set_test_lib(const struct verbs_lib *test_lib);

/* The bits of time stamps on completions, and the rate of their clock. False: there are none. */
bool verbs_query_clock(struct ibv_context *context, uint64_t *mask, uint64_t *khz);

/* ibv_query_port(), which is inline in the header and refers to the library by name. 0 or an errno. */
int verbs_query_port(const struct verbs_lib *lib, struct ibv_context *context, uint8_t port, struct ibv_port_attr *out);

#endif
