/* SPDX-License-Identifier: Apache-2.0 */
#include "pair.h"
#include "../entries.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { SOON_MS = 20000, SETTLED_MS = 5000 };

const char *plugin_path;

void begin_cases(const char *plugin, unsigned count)
{
    plugin_path = plugin;
    setenv("UCCL_SOCKET_IFNAME", "=lo", 1);
    setenv("UCCL_BACKEND", "udp", 1);
    setenv("UCCL_LINGER_MS", "500", 1);
    printf("1..%u\n", count);
}

bool run_case(unsigned number, const char *name, void (*run)(void))
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(CASE_S);
        run();
        exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    printf("%sok %u - %s\n", status == 0 ? "" : "not ", number, name);
    if (status != 0)
        printf("# status %#x\n", (unsigned)status);
    return status == 0;
}

int run_cases(const char *plugin, const struct plain_case *cases, unsigned count)
{
    unsigned failed = 0;
    begin_cases(plugin, count);
    for (unsigned i = 0; i < count; i++)
        failed += !run_case(i + 1, cases[i].name, cases[i].run);
    return failed != 0;
}

/* ---- what is logged --------------------------------------------------------------------------- */

struct logged_line lines[LINES_MAX];
int line_count;

void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    va_list arguments;
    int i = __atomic_fetch_add(&line_count, 1, __ATOMIC_SEQ_CST);
    if (i >= LINES_MAX)
        return;
    lines[i].level = level;
    va_start(arguments, format);
    vsnprintf(lines[i].text, sizeof lines[i].text, format, arguments);
    va_end(arguments);
}

int warnings(const char *text)
{
    int count = 0;
    for (int i = 0; i < line_count && i < LINES_MAX; i++)
        count += lines[i].level == NCCL_LOG_WARN && strstr(lines[i].text, text);
    return count;
}

/* ---- what is there ---------------------------------------------------------------------------- */

uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void nap(void)
{
    nanosleep(&(struct timespec){0, 100000}, NULL);
}

int threads(void)
{
    return (int)entries_of("/proc/self/task") - 2 /* . and .. */;
}

void threads_are(int expected)
{
    uint64_t end_ms = now_ms() + SETTLED_MS;
#ifdef __SANITIZE_THREAD__
    return; /* it has some of its own */
#endif
    while (threads() != expected && now_ms() < end_ms)
        nap();
    IS(threads(), expected);
}

int descriptors(void)
{
    return (int)entries_of("/proc/self/fd") - 2 /* . and .. */;
}

void *load(const char *symbol)
{
    void *library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    CHECK_SAY(library, "%s", dlerror());
    void *table = dlsym(library, symbol);
    CHECK_SAY(table, "%s is missing", symbol);
    return table;
}

/* ---- a pair ----------------------------------------------------------------------------------- */

struct nccl_net_v12 *start(void **context)
{
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    int count = -1;
    *context = POISON;
    IS(net->init(context, 7, &(struct nccl_net_comm_config){NCCL_NET_UNDEFINED}, logger, NULL), NCCL_SUCCESS);
    CHECK(*context != POISON);
    IS(net->devices(&count), NCCL_SUCCESS);
    IS(count, 1);
    return net;
}

void finish_connect(struct pair *pair, uint8_t handle[NCCL_NET_HANDLE_BYTES], void *listen_comm)
{
    uint64_t end_ms = now_ms() + SOON_MS;
    pair->send = pair->recv = NULL;
    while (!pair->send || !pair->recv) {
        if (!pair->send) {
            pair->send = POISON;
            IS(pair->net->connect(pair->context, 0, handle, &pair->send, NULL), NCCL_SUCCESS);
        }
        if (!pair->recv) {
            pair->recv = POISON;
            IS(pair->net->accept(listen_comm, &pair->recv, NULL), NCCL_SUCCESS);
        }
        CHECK_SAY(now_ms() < end_ms, "no connection");
        nap();
    }
    IS(pair->net->closeListen(listen_comm), NCCL_SUCCESS);
}

void connect_pair(struct pair *pair)
{
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *listen_comm = POISON;
    memset(handle, 0xa5, sizeof handle);
    IS(pair->net->listen(pair->context, 0, handle, &listen_comm), NCCL_SUCCESS);
    finish_connect(pair, handle, listen_comm);
}

struct pair new_pair(void)
{
    struct pair pair;
    pair.net = start(&pair.context);
    connect_pair(&pair);
    return pair;
}

void close_pair(struct pair *pair)
{
    IS(pair->net->closeSend(pair->send), NCCL_SUCCESS);
    IS(pair->net->closeRecv(pair->recv), NCCL_SUCCESS);
    IS(pair->net->finalize(pair->context), NCCL_SUCCESS);
}

void *post_send(struct pair *pair, void *data, size_t size, void *mhandle)
{
    void *request = POISON;
    IS(pair->net->isend(pair->send, data, size, 3, mhandle, NULL, &request), NCCL_SUCCESS);
    CHECK(request != POISON);
    return request;
}

enum nccl_result try_receive(struct pair *pair, void *data, size_t size, void *mhandle, void **request)
{
    int tag = 3;
    return pair->net->irecv(pair->recv, 1, &data, &size, &tag, &mhandle, NULL, request);
}

void *post_receive(struct pair *pair, void *data, size_t size, void *mhandle)
{
    void *request = POISON;
    IS(try_receive(pair, data, size, mhandle, &request), NCCL_SUCCESS);
    CHECK(request != POISON);
    return request;
}

int finish(struct pair *pair, void *request)
{
    int done = 0, sizes = -1;
    uint64_t end_ms = now_ms() + SOON_MS;
    CHECK_SAY(request, "no request");
    while (!done) {
        done = 0x5a5a;
        IS(pair->net->test(request, &done, &sizes), NCCL_SUCCESS);
        CHECK(done == 0 || done == 1);
        CHECK_SAY(now_ms() < end_ms, "a request does not end");
    }
    return sizes;
}

void *pages(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}
