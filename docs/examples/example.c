/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on this machine: the child listens and receives, the parent connects and sends.
 * Build and run, once the library is installed:
 *
 *   cc example.c -o example $(pkg-config --cflags --libs uccl-engine) && ./example
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <uccl/engine.h>

#define MESSAGE_BYTES 1000000

/* Ends the process when a call has failed; every call returns 0 or a negative code. */
static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, uccl_strerror(result));
        exit(1);
    }
}

/* Receives one message, checks it, and answers with its size. */
static void receiver(int handle_pipe)
{
    uccl_engine *engine;
    uccl_listener *listener;
    uccl_conn *conn;
    uccl_request *request;
    struct uccl_handle handle;
    unsigned char *buffer = malloc(MESSAGE_BYTES);
    size_t bytes;

    /* An engine opens the machine's devices and starts the threads that move the bytes. */
    check(uccl_open(NULL, &engine), "open");
    /* Device 0, any free port. The handle says where we are; it may travel by any means. */
    check(uccl_listen(engine, 0, 0, &handle, &listener), "listen");
    if (!buffer || write(handle_pipe, &handle, sizeof handle) != (ssize_t)sizeof handle)
        exit(1);
    check(uccl_accept(listener, 10000, &conn), "accept");

    /* Posting never waits. The buffer may be larger than what comes: `bytes` is the truth. */
    check(uccl_recv_async(conn, buffer, MESSAGE_BYTES, NULL, &request), "recv_async");
    check(uccl_wait(request, 10000, &bytes), "wait for the message");
    for (size_t i = 0; i < bytes; i++)
        if (buffer[i] != (unsigned char)(i * 7))
            exit(1);

    check(uccl_send_async(conn, &bytes, sizeof bytes, NULL, &request), "send_async");
    check(uccl_wait(request, 10000, NULL), "wait for the answer's end");
    check(uccl_conn_close(conn), "close");
    check(uccl_close(engine), "close the engine");
    free(buffer);
}

/* Sends one message and waits for the answer, doing other things meanwhile. */
static void sender(int handle_pipe)
{
    uccl_engine *engine;
    uccl_conn *conn;
    uccl_request *send, *answer;
    struct uccl_handle handle;
    unsigned char *buffer = malloc(MESSAGE_BYTES);
    size_t received = 0;
    int done = 0;

    if (!buffer || read(handle_pipe, &handle, sizeof handle) != (ssize_t)sizeof handle)
        exit(1);
    check(uccl_open(NULL, &engine), "open");
    check(uccl_connect(engine, &handle, 10000, &conn), "connect");

    for (size_t i = 0; i < MESSAGE_BYTES; i++)
        buffer[i] = (unsigned char)(i * 7);
    /* Post both; the buffers belong to the engine until the requests have completed. */
    check(uccl_recv_async(conn, &received, sizeof received, NULL, &answer), "recv_async");
    check(uccl_send_async(conn, buffer, MESSAGE_BYTES, NULL, &send), "send_async");

    /* uccl_test() never waits; a program would do its own work between the calls. */
    while (!done)
        check(uccl_test(send, &done, NULL), "test");
    check(uccl_wait(answer, 10000, NULL), "wait for the answer");
    printf("sent %d bytes, the receiver got and checked %zu\n", MESSAGE_BYTES, received);

    check(uccl_conn_close(conn), "close");
    check(uccl_close(engine), "close the engine");
    free(buffer);
    if (received != MESSAGE_BYTES)
        exit(1);
}

int main(void)
{
    int fds[2], status;
    pid_t child;

    /* Fork before any engine exists: engines and their threads do not survive a fork. */
    if (pipe(fds) != 0 || (child = fork()) < 0)
        return 1;
    if (child == 0) {
        receiver(fds[1]);
        return 0;
    }
    close(fds[1]);
    sender(fds[0]);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
