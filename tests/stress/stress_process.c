/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends a process, or seems to: a signal that the application reads from a descriptor is taken by no
 * engine thread; and exit() in one thread, while others wait, accept and connect, ends the process at once,
 * also where a handler of atexit() closes an engine on which threads wait. With lent engines and with engine
 * threads of their own. Each case is a process.
 */
#include "engines.h"

#include "../await_callers.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

enum { CASE_S = 30, EXIT_STATUS = 7 };

/* ---- signals --------------------------------------------------------------------------------- */

static void read_signal(const char *lend)
{
    uccl_engine *engine = engine_open(lend, "50");
    struct signalfd_siginfo info;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0, "pthread_sigmask"); /* after the engine's threads were made */
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    kill(getpid(), SIGTERM);
    CHECK(read(fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGTERM, "signalfd");
    close(fd);
    OK(uccl_close(engine));
    exit(EXIT_STATUS);
}

/* ---- exit ------------------------------------------------------------------------------------ */

static uccl_engine *waited_on;

static void close_it(void)
{
    OK(uccl_close(waited_on));
}

static void *wait_for_ever(void *request)
{
    uccl_wait(request, -1, NULL);
    return NULL;
}

static void *accept_for_ever(void *listener)
{
    uccl_conn *conn;
    uccl_accept(listener, -1, &conn);
    return NULL;
}

/* Nobody joins it: the process ends with it. */
static void start(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, argument) == 0 && pthread_detach(thread) == 0, "pthread_create");
}

struct connect {
    uccl_engine *engine;
    struct uccl_handle handle;
};

static void *connect_for_ever(void *argument)
{
    struct connect *connect = argument;
    uccl_conn *conn;
    uccl_connect(connect->engine, &connect->handle, -1, &conn);
    return NULL;
}

static void exit_while_others_wait(const char *lend)
{
    uccl_engine *engine[2] = {engine_open(lend, "50"), engine_open(lend, "50")};
    static struct connect connect;
    static char bytes[6];
    struct uccl_handle handle;
    uccl_listener *listener, *silent;
    uccl_conn *conn[2];
    uccl_request *recv[6];
    uccl_conn *other[2];
    waited_on = engine_open(lend, "50");
    CHECK(atexit(close_it) == 0, "atexit");
    OK(uccl_listen(engine[1], 0, 0, &handle, &listener));
    OK(uccl_listen(engine[1], 0, 0, &connect.handle, &silent)); /* where nobody accepts */
    engines_connect(engine[0], &handle, listener, conn);
    engines_connect(waited_on, &handle, listener, other);
    for (unsigned i = 0; i < 6; i++) {
        OK(uccl_recv_async(i < 3 ? conn[i % 2] : other[0], &bytes[i], 1, NULL, &recv[i]));
        start(wait_for_ever, recv[i]);
    }
    connect.engine = engine[0];
    start(accept_for_ever, listener);
    start(connect_for_ever, &connect);
    await_callers(waited_on, 3); /* a handle means nothing once its engine is closed */
    sleep_us(20000);
    exit(EXIT_STATUS);
}

/* ---------------------------------------------------------------------------------------------- */

static void in_a_process(const char *name, void (*run)(const char *lend), const char *lend)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(CASE_S);
        run(lend);
    }
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_STATUS, "%s, UCCL_LEND=%s: wait status 0x%x", name, lend,
          (unsigned)status);
    end_case("%s, UCCL_LEND=%s", name, lend);
}

enum { CASES = 20 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    seed_of(argc, argv);
    static const char *const lend[] = {"yes", "no"};
    for (unsigned i = 0; i < 10; i++) {
        in_a_process("a signal is read from a descriptor", read_signal, lend[i % 2]);
        in_a_process("exit while others wait", exit_while_others_wait, lend[i % 2]);
    }
    return 0;
}
