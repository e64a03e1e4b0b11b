/* SPDX-License-Identifier: Apache-2.0 */
/* Every public call, in one table, on what they need: a test compares the table with the header. */
#ifndef TEST_EVERY_CALL_H
#define TEST_EVERY_CALL_H

#include "api_pair.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>

enum { SHORT_MS = 20 };

/* What the calls work on: a connected pair, and one object of each kind. */
struct world {
    struct pair pair;
    uccl_engine *engine; /* of the others: a third one, that nobody is connected to */
    uccl_listener *listener;
    struct uccl_handle handle, half_way; /* of the listener; the second has a connect under way */
    uccl_mr *mr;
    uccl_request *request, *other; /* a receive that stays pending; what the calls post */
    uint8_t buffer[64], registered[64], memory[64];
    uccl_mr *memory_mr; /* of engine 1 of the pair, with two exports */
    uccl_export *exported, *revoked;
    uccl_remote *remote; /* of `exported` */
    uint8_t ref[UCCL_REF_BYTES];
};

static inline void world_open(struct world *w, const char *lend)
{
    uccl_conn *conn;
    pair_open(&w->pair, lend);
    w->engine = open_engine(lend, "LINGER_MS", "100", NULL);
    IS(uccl_listen(w->engine, 0, 0, &w->handle, &w->listener), 0);
    w->half_way = w->handle;
    IS(uccl_connect(w->pair.engine[0], &w->half_way, 0, &conn), UCCL_EAGAIN);
    IS(uccl_reg_mr(w->engine, w->registered, sizeof w->registered, UCCL_MEM_HOST, &w->mr), 0);
    IS(uccl_reg_mr(w->pair.engine[1], w->memory, sizeof w->memory, UCCL_MEM_HOST, &w->memory_mr), 0);
    IS(uccl_export_mr(w->memory_mr, w->memory, 64, UCCL_ACCESS_READ, w->ref, &w->revoked), 0);
    IS(uccl_export_mr(w->memory_mr, w->memory, 64, UCCL_ACCESS_WRITE, w->ref, &w->exported), 0);
    IS(uccl_import(w->pair.conn[0], w->ref, &w->remote), 0);
    w->request = post_recv(w->pair.conn[0], w->buffer, sizeof w->buffer);
}

#define CALL(name) static int call_##name(struct world *w)
#define CALL_ALONE(name) static int call_##name(struct world *w __attribute__((unused)))

CALL_ALONE(strerror)
{
    return uccl_strerror(0) ? 0 : -1;
}
CALL_ALONE(version)
{
    return uccl_version() ? 0 : -1;
}
CALL_ALONE(build_info)
{
    return uccl_build_info() ? 0 : -1;
}
CALL_ALONE(distance_name)
{
    return uccl_distance_name(0) ? 0 : -1;
}

CALL_ALONE(set_log)
{
    uccl_set_log(log_nothing, NULL);
    return 0;
}

CALL_ALONE(config_create)
{
    uccl_config *config;
    int result = uccl_config_create(&config);
    uccl_config_destroy(config);
    return result;
}

CALL_ALONE(config_set)
{
    uccl_config *config;
    uccl_config_create(&config);
    int result = uccl_config_set(config, "CC", "bbr") == UCCL_EINVAL ? 0 : -1; /* which is logged */
    uccl_config_destroy(config);
    return result;
}

CALL_ALONE(param_info)
{
    struct uccl_param_info info;
    return uccl_param_info(0, &info);
}

CALL_ALONE(param_value)
{
    char value[64], source[64];
    return uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source);
}

CALL_ALONE(counter_info)
{
    const char *name, *doc;
    return uccl_counter_info(0, &name, &doc);
}

CALL_ALONE(cores)
{
    return uccl_cores() > 0 ? 0 : -1;
}

CALL_ALONE(mem_status)
{
    char text[256];
    return uccl_mem_status(UCCL_MEM_HOST, text, sizeof text);
}

static void port_is_there(void *user, const struct uccl_verbs_port *port)
{
    (void)user;
    (void)port;
}

CALL_ALONE(verbs_ports)
{
    char status[256];
    uccl_verbs_ports(NULL, port_is_there, NULL, status, sizeof status);
    return 0;
}

static void interface_is_there(void *user, const struct uccl_interface *interface)
{
    (void)interface;
    ++*(int *)user;
}

CALL_ALONE(interfaces)
{
    int told = 0, count = uccl_interfaces(NULL, interface_is_there, &told);
    return count > 0 && count == told ? 0 : UCCL_ENODEV;
}

CALL_ALONE(handle_from_address)
{
    struct uccl_handle handle;
    return uccl_handle_from_address("127.0.0.1", 1, &handle);
}

CALL_ALONE(open)
{
    uccl_engine *engine = open_engine("no", NULL);
    return uccl_close(engine);
}

CALL(device_count)
{
    return uccl_device_count(w->engine);
}

CALL(device_get)
{
    struct uccl_device device;
    return uccl_device_get(w->engine, 0, &device);
}

CALL(device_stats)
{
    struct uccl_device_stats stats = {.size = sizeof stats};
    return uccl_device_stats(w->engine, 0, &stats);
}

CALL(gpu_count)
{
    return uccl_gpu_count(w->engine);
}

CALL(gpu_get)
{
    struct uccl_gpu gpu;
    return uccl_gpu_get(w->engine, 0, &gpu);
}

CALL(gpu_distance)
{
    return uccl_gpu_distance(w->engine, 0, 0);
}

CALL(listen)
{
    uccl_listener *listener;
    struct uccl_handle handle;
    int result = uccl_listen(w->engine, 0, 0, &handle, &listener);
    return result ? result : uccl_listener_close(listener);
}

CALL(listen_with)
{
    uccl_listener *listener;
    struct uccl_handle handle;
    struct uccl_conn_options options = {.size = sizeof options};
    int result = uccl_listen_with(w->engine, 0, 0, &options, &handle, &listener);
    return result ? result : uccl_listener_close(listener);
}

CALL(listener_port)
{
    return uccl_listener_port(w->listener) ? 1 : UCCL_EFORKED; /* it cannot say more */
}

CALL(connect)
{
    uccl_conn *conn;
    struct uccl_handle handle = w->handle;
    return uccl_connect(w->pair.engine[0], &handle, SHORT_MS, &conn);
}

CALL(connect_with)
{
    uccl_conn *conn;
    struct uccl_handle handle = w->handle;
    struct uccl_conn_options options = {.size = sizeof options};
    return uccl_connect_with(w->pair.engine[0], &handle, SHORT_MS, &options, &conn);
}

CALL(accept)
{
    uccl_conn *conn;
    return uccl_accept(w->pair.listener, SHORT_MS, &conn);
}

CALL(connect_cancel)
{
    uccl_connect_cancel(&w->half_way);
    return 0;
}

CALL(conn_status)
{
    return uccl_conn_status(w->pair.conn[0]);
}

CALL(conn_peer)
{
    char text[96];
    return uccl_conn_peer(w->pair.conn[0], text, sizeof text);
}

CALL(conn_peer_id)
{
    uint8_t id[16];
    return uccl_conn_peer_id(w->pair.conn[0], id);
}

CALL(conn_private)
{
    uint8_t data[UCCL_PRIVATE_MAX];
    return uccl_conn_private(w->pair.conn[0], data, sizeof data);
}

CALL(reg_mr)
{
    uccl_mr *mr;
    int result = uccl_reg_mr(w->engine, w->buffer, sizeof w->buffer, UCCL_MEM_AUTO, &mr);
    return result ? result : uccl_dereg_mr(mr);
}

CALL(reg_mr_dmabuf)
{
    uccl_mr *mr;
    int result = uccl_reg_mr_dmabuf(w->engine, w->buffer, sizeof w->buffer, UCCL_MEM_HOST, STDERR_FILENO, 0, &mr);
    return result ? result : uccl_dereg_mr(mr);
}

CALL(mr_get_info)
{
    struct uccl_mr_info info;
    return uccl_mr_get_info(w->mr, &info);
}

CALL(dereg_mr)
{
    return uccl_dereg_mr(w->mr);
}
CALL(send_async)
{
    return uccl_send_async(w->pair.conn[1], "hello", 5, NULL, &w->other);
}
CALL(recv_async)
{
    return uccl_recv_async(w->pair.conn[1], w->buffer, 8, NULL, &w->other);
}

CALL(recv_with_async)
{
    static _Alignas(128) uint8_t watched[8];
    return uccl_recv_with_async(w->pair.conn[1], watched, sizeof watched, NULL, UCCL_RECV_WATCHED, &w->other);
}

CALL(flush)
{
    return uccl_flush(w->pair.conn[0], w->buffer, 8, NULL, &w->other);
}

CALL(export_mr)
{
    uccl_export *exported;
    uint8_t ref[UCCL_REF_BYTES];
    return uccl_export_mr(w->memory_mr, w->memory, 8, UCCL_ACCESS_READ, ref, &exported);
}
CALL(revoke)
{
    return uccl_revoke(w->revoked, SOON_MS);
}

CALL(import)
{
    uccl_remote *remote;
    int result = uccl_import(w->pair.conn[0], w->ref, &remote);
    return result ? result : uccl_remote_free(remote);
}

CALL(remote_get_info)
{
    struct uccl_remote_info info;
    return uccl_remote_get_info(w->remote, &info);
}

CALL(write_async)
{
    struct uccl_piece piece = {.local = w->buffer, .length = 8, .remote = w->remote};
    return uccl_write_async(w->pair.conn[0], &piece, 1, NULL, &w->other);
}

CALL(read_async)
{
    struct uccl_piece piece = {.local = w->buffer, .length = 8, .remote = w->remote};
    return uccl_read_async(w->pair.conn[0], &piece, 1, NULL, &w->other);
}
CALL(fence)
{
    return uccl_fence(w->pair.conn[0]);
}
CALL(quiet_async)
{
    return uccl_quiet_async(w->pair.conn[0], &w->other);
}
CALL(notify_async)
{
    return uccl_notify_async(w->pair.conn[0], "hello", 5, &w->other);
}

CALL(notify_next)
{
    int result = uccl_notify_next(w->pair.engine[0], NULL, 0, NULL, NULL);
    return result == UCCL_EAGAIN ? 0 : result;
}
CALL(notify_fd)
{
    return uccl_notify_fd(w->engine);
}
CALL(remote_free)
{
    return uccl_remote_free(w->remote);
}

CALL(test)
{
    int done;
    return uccl_test(w->request, &done, NULL);
}

CALL(wait)
{
    return uccl_wait(w->request, SHORT_MS, NULL);
}
CALL(cancel)
{
    return uccl_cancel(w->request);
}
CALL(event_fd)
{
    return uccl_event_fd(w->engine);
}
CALL(event_arm)
{
    return uccl_event_arm(w->engine);
}

CALL(counter)
{
    uint64_t value;
    return uccl_counter(w->engine, 0, &value);
}

CALL(thread_counter)
{
    uint64_t value;
    return uccl_thread_counter(w->engine, 0, 0, &value);
}

CALL(counter_by_name)
{
    uint64_t value;
    return uccl_counter_by_name(w->engine, "rounds", &value);
}

CALL(conn_close)
{
    return uccl_conn_close(w->pair.conn[0]);
}
CALL(conn_close_async)
{
    return uccl_conn_close_async(w->pair.conn[1], &w->other);
}
CALL(conn_abort)
{
    return uccl_conn_abort(w->pair.conn[1]);
}
CALL(listener_close)
{
    return uccl_listener_close(w->listener);
}
CALL(close)
{
    return uccl_close(w->engine);
}

/* In an order in which they can all be made. */
static const struct call {
    const char *name;
    int (*run)(struct world *w);
    bool bound; /* to an engine: fails in a child of fork() */
} calls[] = {
#define ALONE(name)                                                                                                    \
    {                                                                                                                  \
        "uccl_" #name, call_##name, false                                                                              \
    }
#define BOUND(name)                                                                                                    \
    {                                                                                                                  \
        "uccl_" #name, call_##name, true                                                                               \
    }
    ALONE(set_log),
    ALONE(strerror),
    ALONE(version),
    ALONE(build_info),
    ALONE(distance_name),
    ALONE(config_create),
    {"uccl_config_destroy", call_config_create, false},
    ALONE(config_set),
    ALONE(param_info),
    ALONE(param_value),
    ALONE(counter_info),
    ALONE(cores),
    ALONE(mem_status),
    ALONE(verbs_ports),
    ALONE(interfaces),
    ALONE(handle_from_address),
    BOUND(device_count),
    BOUND(device_get),
    BOUND(device_stats),
    BOUND(gpu_count),
    BOUND(gpu_get),
    BOUND(gpu_distance),
    BOUND(listen),
    BOUND(listen_with),
    BOUND(listener_port),
    BOUND(connect),
    BOUND(connect_with),
    BOUND(accept),
    BOUND(conn_status),
    BOUND(conn_peer),
    BOUND(conn_peer_id),
    BOUND(conn_private),
    BOUND(reg_mr),
    BOUND(reg_mr_dmabuf),
    BOUND(mr_get_info),
    BOUND(dereg_mr),
    BOUND(flush),
    BOUND(test),
    BOUND(wait),
    BOUND(send_async),
    BOUND(recv_async),
    BOUND(recv_with_async),
    BOUND(export_mr),
    BOUND(revoke),
    BOUND(import),
    BOUND(remote_get_info),
    BOUND(write_async),
    BOUND(read_async),
    BOUND(fence),
    BOUND(quiet_async),
    BOUND(notify_async),
    BOUND(notify_next),
    BOUND(notify_fd),
    BOUND(remote_free),
    BOUND(cancel),
    BOUND(event_fd),
    BOUND(event_arm),
    BOUND(counter),
    BOUND(thread_counter),
    BOUND(counter_by_name),
    BOUND(conn_close),
    BOUND(conn_close_async),
    BOUND(conn_abort),
    BOUND(listener_close),
    ALONE(connect_cancel),
    ALONE(close),
    ALONE(open),
#undef ALONE
#undef BOUND
};

enum { CALLS = sizeof calls / sizeof calls[0] };

#endif
