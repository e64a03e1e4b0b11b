/* SPDX-License-Identifier: Apache-2.0 */
/* Threads with little stack, as some languages and C libraries make them, call all that sets up a connection. */
#include <criterion/criterion.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "uccl/engine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STACK_BYTES = 1 << 20 }; /* frames are larger there */
#else
enum { STACK_BYTES = 64 << 10 };
#endif
enum { SOON_MS = 20000, BYTES = 100000 };

static struct uccl_handle handle;
static sem_t listens, is_sent;
static char *bytes[2];

static void *serve(void *argument)
{
    uccl_engine *engine;
    uccl_listener *listener;
    uccl_conn *conn;
    uccl_request *request;
    (void)argument;
    cr_assert_eq(uccl_open(NULL, &engine), 0);
    cr_assert_eq(uccl_listen(engine, -1, 0, &handle, &listener), 0);
    sem_post(&listens);
    cr_assert_eq(uccl_accept(listener, SOON_MS, &conn), 0);
    cr_assert_eq(uccl_recv_async(conn, bytes[1], BYTES, NULL, &request), 0);
    cr_assert_eq(uccl_wait(request, SOON_MS, NULL), 0);
    sem_wait(&is_sent);
    cr_assert_eq(uccl_close(engine), 0);
    return NULL;
}

static void *call(void *argument)
{
    uccl_engine *engine;
    uccl_conn *conn;
    uccl_request *request;
    (void)argument;
    cr_assert_eq(uccl_open(NULL, &engine), 0);
    sem_wait(&listens);
    cr_assert_eq(uccl_connect(engine, &handle, SOON_MS, &conn), 0);
    cr_assert_eq(uccl_send_async(conn, bytes[0], BYTES, NULL, &request), 0);
    cr_assert_eq(uccl_wait(request, SOON_MS, NULL), 0);
    sem_post(&is_sent);
    cr_assert_eq(uccl_close(engine), 0);
    return NULL;
}

Test(small_stack, a_connection_and_a_message, .timeout = 60)
{
    pthread_t threads[2];
    pthread_attr_t attributes;
    for (unsigned i = 0; i < 2; i++) {
        bytes[i] = malloc(BYTES);
        memset(bytes[i], i ? 0 : 7, BYTES);
    }
    sem_init(&listens, 0, 0);
    sem_init(&is_sent, 0, 0);
    pthread_attr_init(&attributes);
    cr_assert_eq(pthread_attr_setstacksize(&attributes, STACK_BYTES), 0);
    cr_assert_eq(pthread_create(&threads[0], &attributes, serve, NULL), 0);
    cr_assert_eq(pthread_create(&threads[1], &attributes, call, NULL), 0);
    for (unsigned i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    cr_assert_arr_eq(bytes[0], bytes[1], BYTES);
    free(bytes[0]);
    free(bytes[1]);
}
