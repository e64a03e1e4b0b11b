/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of this thread's fails once, from init to finalize: the call that needed it says so, with a result
 * that blames this machine, nothing is left behind, and the plugin works the next time. TAP.
 *
 * usage: nccl_no_memory PLUGIN
 */
#include "pair.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

enum { CASES = 1, MOST = 1000, SOON_MS = 20000, ALL_WELL = 77 };

/* ---- memory that runs out: the plugin's library finds these before the C library's --------------- */

#define EXPORTED __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);

static pthread_t failing_thread;
static unsigned until_failure; /* 0: none fails */
static bool has_failed;

static bool fails(void)
{
    if (until_failure == 0 || !pthread_equal(pthread_self(), failing_thread) || --until_failure > 0)
        return false;
    has_failed = true;
    errno = ENOMEM;
    return true;
}

EXPORTED void *malloc(size_t size)
{
    return fails() ? NULL : __libc_malloc(size);
}

EXPORTED void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : __libc_calloc(count, size);
}

EXPORTED void *realloc(void *old, size_t size)
{
    return fails() ? NULL : __libc_realloc(old, size);
}

/* ---- one life of a communicator ----------------------------------------------------------------- */

struct life {
    struct pair pair;
    void *listen_comm, *mr[2];
    const char *where; /* the call that failed */
    enum nccl_result result;
};

#define TRY(life, call)                                                                                                \
    do {                                                                                                               \
        if (((life)->result = (call))) {                                                                               \
            (life)->where = #call;                                                                                     \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static void live(struct life *life)
{
    static char from[70000], to[sizeof from];
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    struct pair *pair = &life->pair;
    uint64_t end_ms = now_ms() + SOON_MS;
    int count = 0;
    TRY(life, pair->net->devices(&count));
    if (count == 0)
        return;
    TRY(life, pair->net->listen(pair->context, 0, handle, &life->listen_comm));
    while (!pair->send || !pair->recv) {
        if (!pair->send)
            TRY(life, pair->net->connect(pair->context, 0, handle, &pair->send, NULL));
        if (!pair->recv)
            TRY(life, pair->net->accept(life->listen_comm, &pair->recv, NULL));
        CHECK_SAY(now_ms() < end_ms, "no connection");
        nap();
    }
    TRY(life, pair->net->closeListen(life->listen_comm));
    TRY(life, pair->net->regMr(pair->send, from, sizeof from, NCCL_PTR_HOST, &life->mr[0]));
    TRY(life, pair->net->regMr(pair->recv, to, sizeof to, NCCL_PTR_HOST, &life->mr[1]));
    memset(from, 7, sizeof from);
    void *receive = post_receive(pair, to, sizeof to, life->mr[1]);
    IS(finish(pair, post_send(pair, from, sizeof from, life->mr[0])), sizeof from);
    IS(finish(pair, receive), sizeof from);
    CHECK(memcmp(from, to, sizeof from) == 0);
}

static int warned(void)
{
    return warnings("");
}

/* The `number`th allocation fails. */
static void fail_at(unsigned number)
{
    struct life life = {.pair.net = load("ncclNetPlugin_v12")};
    const struct nccl_net_v12 *net = life.pair.net;
    IS(net->init(&life.pair.context, 7, NULL, logger, NULL), NCCL_SUCCESS); /* what is allocated for good */
    IS(net->finalize(life.pair.context), NCCL_SUCCESS);
    int fds = descriptors();
    line_count = 0;
    failing_thread = pthread_self();
    until_failure = number;
    IS(net->init(&life.pair.context, 7, NULL, logger, NULL), NCCL_SUCCESS);
    live(&life);
    until_failure = 0;
    if (life.pair.send)
        IS(net->deregMr(life.pair.send, life.mr[0]), NCCL_SUCCESS);
    if (life.pair.recv)
        IS(net->deregMr(life.pair.recv, life.mr[1]), NCCL_SUCCESS);
    IS(net->closeSend(life.pair.send), NCCL_SUCCESS);
    IS(net->closeRecv(life.pair.recv), NCCL_SUCCESS);
    IS(net->finalize(life.pair.context), NCCL_SUCCESS);
    if (!has_failed)
        exit(ALL_WELL);
    /* a connect learns from its other side, here the same process, that there was no memory */
    CHECK_SAY(!life.result || life.result == NCCL_SYSTEM_ERROR || strstr(life.where, "connect"), "%u: %s gave %d",
              number, life.where, (int)life.result);
    CHECK_SAY(!life.result || warned() > 0, "%u: %s failed without a word", number, life.where);
    threads_are(1);
    CHECK_SAY(descriptors() <= fds + 2, "%u: %d descriptors of %d", number, descriptors(), fds); /* the library's own */
    life.pair = new_pair();
    char text[4] = "";
    void *receive = post_receive(&life.pair, text, sizeof text, NULL);
    IS(finish(&life.pair, post_send(&life.pair, "abc", 4, NULL)), 4);
    IS(finish(&life.pair, receive), 4);
    close_pair(&life.pair);
}

int main(int argc, char **argv)
{
    unsigned number = 0, failed = 0;
    int status = 0;
    if (argc < 2)
        return 2;
    begin_cases(argv[1], CASES);
    while (!failed && number < MOST && !(WIFEXITED(status) && WEXITSTATUS(status) == ALL_WELL)) {
        number++;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            alarm(CASE_S);
            fail_at(number);
            exit(0);
        }
        waitpid(child, &status, 0);
        failed += status != 0 && !(WIFEXITED(status) && WEXITSTATUS(status) == ALL_WELL);
    }
    if (failed)
        printf("# allocation %u: status %#x\n", number, (unsigned)status);
    failed += number < 20 || number == MOST;
    printf("%sok 1 - each of %u allocations fails\n", failed ? "not " : "", number - 1);
    return failed != 0;
}
