/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls without what they need: each says so and does nothing. */
#include "api_pair.h"

Test(api_arguments, calls_about_engines_survive_nothing, .timeout = TIMEOUT_S)
{
    struct pair pair;
    struct uccl_device device;
    struct uccl_param_info info;
    const char *name, *doc;
    uint64_t value;
    char text[64];
    uccl_set_log(log_nothing, NULL);
    pair_open(&pair, "no");
    uccl_engine *engine = pair.engine[0];
    IS(uccl_config_create(NULL), UCCL_EINVAL);
    IS(uccl_open(NULL, NULL), UCCL_EINVAL);
    IS(uccl_close(NULL), UCCL_EINVAL);
    IS(uccl_param_info(0, NULL), UCCL_EINVAL);
    IS(uccl_param_info(10000, &info), UCCL_EINVAL);
    IS(uccl_param_value(NULL, 10000, text, sizeof text, text, sizeof text), UCCL_EINVAL);
    IS(uccl_device_count(NULL), UCCL_EINVAL);
    IS(uccl_device_get(NULL, 0, &device), UCCL_EINVAL);
    IS(uccl_device_get(engine, 0, NULL), UCCL_EINVAL);
    IS(uccl_device_get(engine, -1, &device), UCCL_ENODEV);
    IS(uccl_device_get(engine, uccl_device_count(engine), &device), UCCL_ENODEV);
    IS(uccl_event_fd(NULL), UCCL_EINVAL);
    IS(uccl_event_arm(NULL), UCCL_EINVAL);
    IS(uccl_counter_info(0, NULL, &doc), UCCL_EINVAL);
    IS(uccl_counter_info(0, &name, NULL), UCCL_EINVAL);
    IS(uccl_counter_info(10000, &name, &doc), UCCL_EINVAL);
    IS(uccl_counter(NULL, 0, &value), UCCL_EINVAL);
    IS(uccl_counter(engine, 0, NULL), UCCL_EINVAL);
    IS(uccl_counter(engine, 10000, &value), UCCL_EINVAL);
    IS(uccl_counter_by_name(NULL, "msgs_sent", &value), UCCL_EINVAL);
    IS(uccl_counter_by_name(engine, NULL, &value), UCCL_EINVAL);
    IS(uccl_counter_by_name(engine, "msgs_sent", NULL), UCCL_EINVAL);
    IS(uccl_counter_by_name(engine, "no such", &value), UCCL_EINVAL);
    pair_close(&pair);
}

Test(api_arguments, calls_about_connections_survive_nothing, .timeout = TIMEOUT_S)
{
    struct pair pair;
    struct uccl_handle handle, empty = {{0}, {0}};
    uccl_listener *listener;
    uccl_conn *conn;
    uint8_t id[16];
    char text[64];
    uccl_set_log(log_nothing, NULL);
    pair_open(&pair, "no");
    uccl_engine *engine = pair.engine[0];
    IS(uccl_listen(NULL, 0, 0, &handle, &listener), UCCL_EINVAL);
    IS(uccl_listen(engine, 0, 0, NULL, &listener), UCCL_EINVAL);
    IS(uccl_listen(engine, 0, 0, &handle, NULL), UCCL_EINVAL);
    IS(uccl_listen(engine, -2, 0, &handle, &listener), UCCL_EINVAL);
    IS(uccl_listen(engine, 99, 0, &handle, &listener), UCCL_ENODEV);
    cr_assert_eq(uccl_listener_port(NULL), 0);
    IS(uccl_listener_close(NULL), UCCL_EINVAL);
    IS(uccl_handle_from_address(NULL, 1, &handle), UCCL_EINVAL);
    IS(uccl_handle_from_address("127.0.0.1", 0, &handle), UCCL_EINVAL);
    IS(uccl_handle_from_address("127.0.0.1", 1, NULL), UCCL_EINVAL);
    IS(uccl_handle_from_address("no such host", 1, &handle), UCCL_EADDR);
    IS(uccl_connect(NULL, &pair.handle, 0, &conn), UCCL_EINVAL);
    IS(uccl_connect(engine, NULL, 0, &conn), UCCL_EINVAL);
    IS(uccl_connect(engine, &pair.handle, 0, NULL), UCCL_EINVAL);
    IS(uccl_connect(engine, &empty, 0, &conn), UCCL_EINVAL);
    uccl_connect_cancel(NULL);
    uccl_connect_cancel(&empty);
    IS(uccl_accept(NULL, 0, &conn), UCCL_EINVAL);
    IS(uccl_accept(pair.listener, 0, NULL), UCCL_EINVAL);
    IS(uccl_conn_close(NULL), UCCL_EINVAL);
    IS(uccl_conn_status(NULL), UCCL_EINVAL);
    IS(uccl_conn_peer(NULL, text, sizeof text), UCCL_EINVAL);
    IS(uccl_conn_peer(pair.conn[0], NULL, 8), UCCL_EINVAL);
    IS(uccl_conn_peer(pair.conn[0], text, 0), UCCL_EINVAL);
    IS(uccl_conn_peer_id(NULL, id), UCCL_EINVAL);
    IS(uccl_conn_peer_id(pair.conn[0], NULL), UCCL_EINVAL);
    IS(uccl_interfaces(NULL, NULL, NULL), UCCL_EINVAL);
    pair_close(&pair);
}

Test(api_arguments, calls_about_messages_survive_nothing, .timeout = TIMEOUT_S)
{
    struct pair pair;
    uccl_request *request;
    uccl_mr *mr;
    char text[64];
    int done;
    uccl_set_log(log_nothing, NULL);
    pair_open(&pair, "no");
    uccl_engine *engine = pair.engine[0];
    IS(uccl_reg_mr(NULL, text, 1, UCCL_MEM_HOST, &mr), UCCL_EINVAL);
    IS(uccl_reg_mr(engine, NULL, 1, UCCL_MEM_HOST, &mr), UCCL_EINVAL);
    IS(uccl_reg_mr(engine, text, 1, UCCL_MEM_HOST, NULL), UCCL_EINVAL);
    IS(uccl_reg_mr(engine, text, SIZE_MAX, UCCL_MEM_HOST, &mr), UCCL_EINVAL); /* beyond the last address */
    IS(uccl_reg_mr(engine, text, 1, (enum uccl_mem)77, &mr), UCCL_ENOTSUP);
    IS(uccl_dereg_mr(NULL), UCCL_EINVAL);
    IS(uccl_send_async(NULL, text, 1, NULL, &request), UCCL_EINVAL);
    IS(uccl_send_async(pair.conn[0], NULL, 1, NULL, &request), UCCL_EINVAL);
    IS(uccl_send_async(pair.conn[0], text, 1, NULL, NULL), UCCL_EINVAL);
    IS(uccl_recv_async(NULL, text, 1, NULL, &request), UCCL_EINVAL);
    IS(uccl_recv_async(pair.conn[0], NULL, 1, NULL, &request), UCCL_EINVAL);
    IS(uccl_recv_async(pair.conn[0], text, 1, NULL, NULL), UCCL_EINVAL);
    IS(uccl_test(NULL, &done, NULL), UCCL_EINVAL);
    IS(uccl_wait(NULL, 0, NULL), UCCL_EINVAL);
    IS(uccl_cancel(NULL), UCCL_EINVAL);
    IS(uccl_flush(NULL, text, 1, NULL, &request), UCCL_EINVAL);
    IS(uccl_flush(pair.conn[0], text, 1, NULL, NULL), UCCL_EINVAL);

    /* test without `done` must not lose the request */
    request = post_recv(pair.conn[0], text, sizeof text);
    IS(uccl_test(request, NULL, NULL), UCCL_EINVAL);
    uccl_request *send = post_send(pair.conn[1], "x", 1);
    cr_assert_eq(end_of(request, 0), 1);
    end_of(send, 0);
    pair_close(&pair);
}
