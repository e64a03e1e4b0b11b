/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin as NCCL sees it: loaded with dlopen(), one table of versions 8 to 12, each called as NCCL calls it. What
 * NCCL relies on without a word is checked in each call: that outputs are written, that NULL means "later".
 */
#ifndef TESTS_NCCL_NET_H
#define TESTS_NCCL_NET_H

#include "nccl_net.h"

#include <stdbool.h>

struct net {
    void *library;
    unsigned version;
    union {
        const struct nccl_net_v8 *v8;
        const struct nccl_net_v9 *v9;
        const struct nccl_net_v10 *v10;
        const struct nccl_net_v11 *v11;
        const struct nccl_net_v12 *v12;
    };
};

enum { NET_OLDEST = 8, NET_NEWEST = 12 };

/* What *request holds before a call */
enum net_preset {
    NET_GARBAGE, /* a pointer of before */
    NET_EARLY    /* 1, since version 9: a GPU looks at the buffer itself (LL, LL128) */
};

/* Loads `path` and takes the table of `version`. Ends the process where that fails. */
void net_load(struct net *net, const char *path, unsigned version);
void net_unload(struct net *net);

/* Calls, in the version of `net`. `context` is of net_init(); versions before 11 have none. */
enum nccl_result net_init(const struct net *net, void **context, nccl_logger_fn logger);
enum nccl_result net_finalize(const struct net *net, void *context);
enum nccl_result net_devices(const struct net *net, int *count);
/* As version 12 has them, with NCCL's values for what older versions lack */
enum nccl_result net_properties(const struct net *net, int device, struct nccl_net_properties_v12 *out);
enum nccl_result net_listen(const struct net *net, void *context, int device, void *handle, void **listener);
enum nccl_result net_connect(const struct net *net, void *context, int device, void *handle, void **comm);
enum nccl_result net_accept(const struct net *net, void *listener, void **comm);
enum nccl_result net_register(const struct net *net, void *comm, void *data, size_t size, void **mr);
enum nccl_result net_deregister(const struct net *net, void *comm, void *mr);
enum nccl_result net_send(const struct net *net, void *comm, void *data, size_t size, int tag, void *mr,
                          void **request);
enum nccl_result net_receive(const struct net *net, void *comm, void *data, size_t size, int tag, void *mr,
                             enum net_preset preset, void **request);
/* `size` may be NULL */
enum nccl_result net_test(const struct net *net, void *request, int *done, int *size);
enum nccl_result net_flush(const struct net *net, void *comm, void *data, int size, void *mr, void **request);
enum nccl_result net_consumed(const struct net *net, void *comm, void *request);
enum nccl_result net_close_send(const struct net *net, void *comm);
enum nccl_result net_close_receive(const struct net *net, void *comm);
enum nccl_result net_close_listen(const struct net *net, void *listener);

/* Tells what went wrong, and ends the process with 1. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Begins lines of fail() */
void fail_as(const char *who);

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            fail(__VA_ARGS__);                                                                                         \
    } while (0)
/* A call of the plugin that has to succeed */
#define GOOD(call)                                                                                                     \
    do {                                                                                                               \
        enum nccl_result result_ = (call);                                                                             \
        CHECK(result_ == NCCL_SUCCESS, "%s:%d: %s gave %d", __FILE__, __LINE__, #call, (int)result_);                  \
    } while (0)

#endif
