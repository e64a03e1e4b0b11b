/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of the plugin one by one, both ends of a connection in one process: what each writes, what it refuses, and
 * what is left afterwards. Each case runs in a process of its own, which loads the plugin anew. TAP.
 *
 * usage: nccl_calls PLUGIN LIBRARY_LIKE_RCCL
 */
#include "pair.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const char *rccl_path;

/* Each field of the properties of each version, whatever stood there. */
struct field {
    const char *structure, *name;
    size_t offset, size;
};
#define FIELD(type, field, offset, size) {#type, #field, offset, size},
#define SIZE(type, bytes)
#define ALIGNMENT(type, bytes)
static const struct field FIELDS[] = {
#include "layout.def"
};
#undef FIELD
#undef SIZE
#undef ALIGNMENT

static void fields_are_equal(const char *structure, const void *a, const void *b)
{
    unsigned compared = 0;
    for (size_t i = 0; i < sizeof FIELDS / sizeof FIELDS[0]; i++) {
        const struct field *field = &FIELDS[i];
        if (strcmp(field->structure, structure) != 0)
            continue;
        CHECK_SAY(memcmp((const char *)a + field->offset, (const char *)b + field->offset, field->size) == 0,
                  "%s.%s is not written", structure, field->name);
        compared++;
    }
    CHECK(compared > 10);
}

#define PROPERTIES(version, kind, ...)                                                                                 \
    do {                                                                                                               \
        struct nccl_net_##version *net_ = load("ncclNetPlugin_" #version);                                             \
        struct kind a_, b_;                                                                                            \
        memset(&a_, 0xa5, sizeof a_);                                                                                  \
        memset(&b_, 0x5a, sizeof b_);                                                                                  \
        CHECK(strcmp(net_->name, "uccl") == 0);                                                                        \
        IS(net_->init(__VA_ARGS__), NCCL_SUCCESS);                                                                     \
        IS(net_->getProperties(0, &a_), NCCL_SUCCESS);                                                                 \
        IS(net_->getProperties(0, &b_), NCCL_SUCCESS);                                                                 \
        fields_are_equal(#kind, &a_, &b_);                                                                             \
        CHECK(strcmp(a_.name, "lo") == 0 && !a_.pciPath && a_.ptrSupport == NCCL_PTR_HOST);                            \
        CHECK(a_.speed > 0 && a_.maxComms > 0 && a_.maxRecvs == 1 && a_.latency > 0 && a_.regIsGlobal == 0);           \
        CHECK(net_->getProperties(1, &a_) != NCCL_SUCCESS && net_->getProperties(-1, &a_) != NCCL_SUCCESS);            \
    } while (0)

static void properties(void)
{
    void *contexts[2];
    struct nccl_net_comm_config config = {NCCL_NET_UNDEFINED};
    PROPERTIES(v8, nccl_net_properties_v8, logger);
    PROPERTIES(v9, nccl_net_properties_v9, logger);
    PROPERTIES(v10, nccl_net_properties_v9, logger, NULL);
    PROPERTIES(v11, nccl_net_properties_v11, &contexts[0], 1, &config, logger, NULL);
    PROPERTIES(v12, nccl_net_properties_v12, &contexts[1], 2, &config, logger, NULL);
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    struct nccl_net_properties_v12 full;
    setenv("UCCL_LINK_GBPS", "25", 1);
    IS(net->getProperties(0, &full), NCCL_SUCCESS);
    IS(full.speed, 25000);
    unsetenv("UCCL_LINK_GBPS");
    IS(net->getProperties(0, &full), NCCL_SUCCESS);
    IS(net->finalize(contexts[0]), NCCL_SUCCESS);
    IS(net->finalize(contexts[1]), NCCL_SUCCESS);
    CHECK_SAY(full.speed != 25000, "%d: no longer", full.speed);
    CHECK_SAY(full.latency == 5, "%g us: that of UDP", full.latency);
    CHECK(full.vProps.ndevs == 1 && full.vProps.devs[0] == 0 && full.railId == -1 && full.planeId == -1);
    CHECK(full.maxP2pBytes == (size_t)1 << 30 && full.maxCollBytes == (size_t)1 << 30 && full.maxMultiRequestSize == 1);
}

static void exports_nothing_else(void)
{
    void *library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    CHECK(!dlsym(library, "uccl_open") && !dlsym(library, "log_line") && !dlsym(library, "ncclCollNetPlugin_v12"));
}

/* A traffic class that no packet can carry is the application's mistake, and no lack of memory. */
static void bad_traffic_class(void)
{
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    struct nccl_net_comm_config config = {.trafficClass = 256};
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *context, *listen_comm = POISON;
    IS(net->init(&context, 7, &config, logger, NULL), NCCL_SUCCESS);
    IS(net->listen(context, 0, handle, &listen_comm), NCCL_INVALID_ARGUMENT);
    CHECK(!listen_comm);
    IS(warnings("cannot open an engine on lo: invalid argument"), 1);
    IS(net->finalize(context), NCCL_SUCCESS);
}

/* Engines open with the first listener and close with the last context. */
static void engine_while_needed(void)
{
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    struct nccl_net_properties_v12 full;
    void *contexts[2], *listen_comm;
    struct nccl_net_v12 *net = start(&contexts[0]);
    int before = threads();
    IS(net->init(&contexts[1], 8, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->getProperties(0, &full), NCCL_SUCCESS);
    threads_are(before);
    IS(net->listen(contexts[0], 0, handle, &listen_comm), NCCL_SUCCESS);
    int open = threads();
    CHECK(open > before);
    IS(net->listen(contexts[1], 0, handle, &listen_comm), NCCL_SUCCESS);
    threads_are(open);
    IS(net->closeListen(listen_comm), NCCL_SUCCESS);
    IS(net->finalize(contexts[0]), NCCL_SUCCESS); /* its listener is still there */
    threads_are(open);
    IS(net->finalize(contexts[1]), NCCL_SUCCESS);
    threads_are(before);
}

/* Before v11 nothing tells the end but the last communicator. */
static void engine_of_v8(void)
{
    struct nccl_net_v8 *net = load("ncclNetPlugin_v8");
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *listen_comms[2];
    int before = threads();
    IS(net->init(logger), NCCL_SUCCESS);
    for (int round = 0; round < 3; round++) {
        IS(net->listen(0, handle, &listen_comms[0]), NCCL_SUCCESS);
        IS(net->listen(0, handle, &listen_comms[1]), NCCL_SUCCESS);
        IS(net->closeListen(listen_comms[0]), NCCL_SUCCESS);
        CHECK(threads() > before);
        IS(net->closeListen(listen_comms[1]), NCCL_SUCCESS);
        threads_are(before);
    }
}

static void reload(void)
{
    int before = threads(), open = -1;
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
        struct pair pair = new_pair();
        char text[6] = "";
        void *receive = post_receive(&pair, text, sizeof text, NULL), *send = post_send(&pair, "hello", 6, NULL);
        IS(finish(&pair, send), 6);
        IS(finish(&pair, receive), 6);
        CHECK(strcmp(text, "hello") == 0);
        close_pair(&pair);
        threads_are(before);
        open = round == 0 ? descriptors() : open;
        IS(descriptors(), open);
        dlclose(library);
    }
}

static void messages(void)
{
    static const size_t SIZES[] = {0, 1, 7, 1000, 8192, 100000, 131072, 1 << 20};
    enum { COUNT = sizeof SIZES / sizeof SIZES[0], SLOT = 1 << 20 };
    struct pair pair = new_pair();
    uint8_t *from = pages(COUNT * SLOT), *to = pages(COUNT * SLOT);
    void *from_mr, *to_mr, *sends[COUNT], *receives[COUNT];
    int done;
    for (size_t i = 0; i < (size_t)COUNT * SLOT; i++)
        from[i] = (uint8_t)(i * 7 + (i >> 9));
    IS(pair.net->regMr(pair.send, from, COUNT * SLOT, NCCL_PTR_HOST, &from_mr), NCCL_SUCCESS);
    IS(pair.net->regMr(pair.recv, to, COUNT * SLOT, NCCL_PTR_HOST, &to_mr), NCCL_SUCCESS);
    CHECK(from_mr && to_mr && from_mr != POISON && to_mr != POISON);
    for (size_t i = 0; i < COUNT; i++)
        receives[i] = post_receive(&pair, to + i * SLOT, SLOT, to_mr);
    for (size_t i = 0; i < COUNT; i++)
        sends[i] = post_send(&pair, SIZES[i] ? from + i * SLOT : NULL, SIZES[i], SIZES[i] ? from_mr : NULL);
    for (size_t i = 0; i < COUNT; i++) {
        void *data = to + i * SLOT, *flushed = POISON;
        int size = SLOT;
        IS(finish(&pair, receives[i]), (int)SIZES[i]);
        CHECK_SAY(memcmp(data, from + i * SLOT, SIZES[i]) == 0, "%zu bytes", SIZES[i]);
        for (int flush = 0; flush <= NCCL_NET_REQUESTS_MAX; flush++) { /* which leave the requests to others */
            IS(pair.net->iflush(pair.recv, 1, &data, &size, &to_mr, &flushed), NCCL_SUCCESS);
            CHECK_SAY(!flushed, "host memory needs no flush");
        }
        IS(finish(&pair, sends[i]), (int)SIZES[i]);
    }
    /* nobody has to ask for sizes */
    receives[0] = post_receive(&pair, to, SLOT, to_mr);
    sends[0] = post_send(&pair, from, 10, from_mr);
    for (done = 0; !done;)
        IS(pair.net->test(receives[0], &done, NULL), NCCL_SUCCESS);
    for (done = 0; !done;)
        IS(pair.net->test(sends[0], &done, NULL), NCCL_SUCCESS);
    IS(pair.net->deregMr(pair.send, from_mr), NCCL_SUCCESS);
    IS(pair.net->deregMr(pair.recv, to_mr), NCCL_SUCCESS);
    IS(pair.net->deregMr(pair.recv, NULL), NCCL_SUCCESS);
    close_pair(&pair);
}

/* UDP sockets of this process. */
static int datagram_sockets(void)
{
    int count = 0;
    for (int fd = 0; fd < 1024; fd++) {
        int type = 0, domain = 0;
        socklen_t size = sizeof type;
        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
            getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0)
            count += type == SOCK_DGRAM && (domain == AF_INET || domain == AF_INET6);
    }
    return count;
}

static bool logged(const char *text)
{
    bool found = false;
    for (int i = 0; i < line_count && i < LINES_MAX; i++)
        found |= strstr(lines[i].text, text) != NULL;
    return found;
}

/* The user's UCCL_BACKEND counts; what nobody has set is UDP. */
static void backends(void)
{
    static const struct {
        const char *name, *told;
        bool datagrams;
    } rows[] = {{"tcp", "lo, TCP from", false}, {"udp", "lo, UDP from", true}, {NULL, "lo, UDP from", true}};
    setenv("UCCL_IB_HCA", "=nosuchhca", 1); /* also where there are verbs devices */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        static char from[300000], to[sizeof from];
        line_count = 0;
        unsetenv("UCCL_BACKEND");
        if (rows[i].name)
            setenv("UCCL_BACKEND", rows[i].name, 1);
        struct pair pair = new_pair();
        CHECK_SAY(logged(rows[i].told), "%s", rows[i].told);
        CHECK_SAY((datagram_sockets() > 0) == rows[i].datagrams, "%s: %d", rows[i].told, datagram_sockets());
        memset(from, (int)i + 1, sizeof from);
        void *receive = post_receive(&pair, to, sizeof to, NULL), *send = post_send(&pair, from, sizeof from, NULL);
        IS(finish(&pair, send), (int)sizeof from);
        IS(finish(&pair, receive), (int)sizeof from);
        CHECK(memcmp(from, to, sizeof from) == 0);
        close_pair(&pair);
    }
}

static void as_many_as_there_are(void)
{
    struct pair pair = new_pair();
    uint8_t *to = pages(1 << 16);
    void *receives[NCCL_NET_REQUESTS_MAX];
    for (int i = 0; i < NCCL_NET_REQUESTS_MAX; i++)
        receives[i] = post_receive(&pair, to + i, 1, NULL);
    CHECK_SAY(!post_receive(&pair, to, 1, NULL), "one too many");
    for (int i = 0; i < NCCL_NET_REQUESTS_MAX; i++) {
        uint8_t byte = (uint8_t)(i + 1);
        IS(finish(&pair, post_send(&pair, &byte, 1, NULL)), 1);
        IS(finish(&pair, receives[i]), 1);
        IS(to[i], i + 1);
    }
    void *again = post_receive(&pair, to, 1, NULL);
    IS(finish(&pair, post_send(&pair, to + 5, 1, NULL)), 1);
    IS(finish(&pair, again), 1);
    close_pair(&pair);
}

static void refused(void)
{
    struct pair pair = new_pair();
    char text[16];
    void *data[2] = {text, text}, *mhandles[2] = {NULL, NULL}, *request = POISON, *mr = POISON;
    size_t sizes[2] = {8, 8};
    int tags[2] = {0, 0};
    CHECK(pair.net->irecv(pair.recv, 2, data, sizes, tags, mhandles, NULL, &request) != NCCL_SUCCESS);
    CHECK(!request);
    CHECK(pair.net->regMr(pair.recv, text, sizeof text, 0x40, &mr) != NCCL_SUCCESS && !mr);
    mr = POISON;
    CHECK(pair.net->regMrDmaBuf(pair.recv, text, sizeof text, NCCL_PTR_HOST, 0, -1, &mr) != NCCL_SUCCESS && !mr);
    IS(pair.net->closeSend(NULL), NCCL_SUCCESS);
    IS(pair.net->closeRecv(NULL), NCCL_SUCCESS);
    IS(pair.net->closeListen(NULL), NCCL_SUCCESS);
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *comm = POISON;
    CHECK(pair.net->listen(pair.context, 1, handle, &comm) != NCCL_SUCCESS && !comm);
    memset(handle, 0, sizeof handle);
    comm = POISON;
    CHECK(pair.net->connect(pair.context, 0, handle, &comm, NULL) != NCCL_SUCCESS && !comm);
    close_pair(&pair);
}

/* A handle comes from another rank: what its state bytes say is trusted by nobody. */
static void forged_handle(void)
{
    struct pair pair;
    uint8_t handle[NCCL_NET_HANDLE_BYTES], mine[NCCL_NET_HANDLE_BYTES];
    void *listen_comm, *comm = POISON;
    pair.net = start(&pair.context);
    IS(pair.net->listen(pair.context, 0, mine, &listen_comm), NCCL_SUCCESS);
    memcpy(handle, mine, sizeof handle);
    for (unsigned i = 0; i < 32; i++) {
        if (i == 16) { /* a connect is under way: its state, changed, is nobody's */
            IS(pair.net->connect(pair.context, 0, mine, &comm, NULL), NCCL_SUCCESS);
            CHECK(!comm);
            memcpy(handle, mine, sizeof handle);
        }
        handle[i % 16] ^= 0x41;
        comm = POISON;
        CHECK(pair.net->connect(pair.context, 0, handle, &comm, NULL) != NCCL_SUCCESS && !comm);
        handle[i % 16] ^= 0x41;
    }
    finish_connect(&pair, mine, listen_comm);
    close_pair(&pair);
}

/* The other side is minutes behind: the time of a handshake begins when it accepts. */
static void accepted_late(void)
{
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    struct pair pair;
    void *listen_comm;
    setenv("UCCL_CONNECT_MS", "500", 1);
    pair.net = start(&pair.context);
    IS(pair.net->listen(pair.context, 0, handle, &listen_comm), NCCL_SUCCESS);
    for (int i = 0; i < 4; i++) {
        pair.send = POISON;
        IS(pair.net->connect(pair.context, 0, handle, &pair.send, NULL), NCCL_SUCCESS);
        CHECK(!pair.send);
        usleep(150000);
    }
    finish_connect(&pair, handle, listen_comm);
    close_pair(&pair);
}

/* What NCCL gives up without a word goes with its context, and no other's. */
static void given_up(void)
{
    uint8_t handles[3][NCCL_NET_HANDLE_BYTES];
    void *contexts[2], *listen_comm, *send_comm, *theirs;
    struct nccl_net_v12 *net = start(&contexts[0]);
    int fds = descriptors();
    IS(net->init(&contexts[1], 8, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->listen(contexts[1], 0, handles[2], &theirs), NCCL_SUCCESS);
    int with_engine = descriptors();
    for (int i = 0; i < 2; i++) {
        IS(net->listen(contexts[0], 0, handles[i], &listen_comm), NCCL_SUCCESS);
        IS(net->connect(contexts[0], 0, handles[i], &send_comm, NULL), NCCL_SUCCESS);
        CHECK(!send_comm);
    }
    CHECK(descriptors() > with_engine);
    IS(net->finalize(contexts[0]), NCCL_SUCCESS);
    IS(descriptors(), with_engine);
    /* the other one works on */
    struct pair pair = {net, contexts[1], NULL, NULL};
    finish_connect(&pair, handles[2], theirs);
    close_pair(&pair);
    CHECK_SAY(descriptors() <= fds + 1, "%d of %d", descriptors(), fds); /* maybe one of the library's */
}

/* NCCL takes memory away with requests pending, when it aborts. Nothing may be written there afterwards. */
static void deregistered_while_pending(void)
{
    enum { BYTES = 1 << 16, MESSAGE = 3000 };
    struct pair pair = new_pair();
    uint8_t *to = pages(BYTES), *from = pages(BYTES);
    void *mr, *requests[8], *request = POISON;
    int done = 0;
    IS(pair.net->regMr(pair.recv, to, BYTES, NCCL_PTR_HOST, &mr), NCCL_SUCCESS);
    for (int i = 0; i < 8; i++)
        requests[i] = post_receive(&pair, to + i * MESSAGE, MESSAGE, mr);
    IS(pair.net->deregMr(pair.recv, mr), NCCL_SUCCESS);
    CHECK(mprotect(to, BYTES, PROT_NONE) == 0);
    /* the peer notices at some time, and meanwhile sends what fits */
    for (int i = 0; i < 100; i++) {
        request = POISON;
        enum nccl_result result = pair.net->isend(pair.send, from, MESSAGE, 0, NULL, NULL, &request);
        CHECK(request != POISON);
        if (result)
            break;
        usleep(2000);
    }
    CHECK(pair.net->test(requests[0], &done, NULL) != NCCL_SUCCESS && done == 1);
    request = POISON;
    CHECK(try_receive(&pair, from, MESSAGE, NULL, &request) != NCCL_SUCCESS && !request);
    close_pair(&pair);
}

/* Closing with requests pending: by whatever is left, at once. */
static void closed_while_pending(void)
{
    struct pair pair = new_pair();
    int fds = descriptors();
    char text[8] = "";
    post_receive(&pair, text, sizeof text, NULL);
    uint64_t began_ms = now_ms();
    IS(pair.net->closeRecv(pair.recv), NCCL_SUCCESS);
    IS(pair.net->closeSend(pair.send), NCCL_SUCCESS);
    IS(pair.net->finalize(pair.context), NCCL_SUCCESS);
    CHECK(now_ms() - began_ms < 5000);
    CHECK(descriptors() < fds);
}

/* A close does not wait for requests that other communicators have and may keep. */
static void closed_without_requests(void)
{
    static char byte;
    setenv("UCCL_MAX_REQUESTS", "16", 1);
    struct pair pair = new_pair(), other = {pair.net, pair.context, NULL, NULL};
    connect_pair(&other);
    int taken = 0;
    while (post_receive(&pair, &byte, 1, NULL))
        taken++;
    CHECK_SAY(taken < NCCL_NET_REQUESTS_MAX, "%d: not the engine's last", taken);
    uint64_t began_ms = now_ms();
    IS(pair.net->closeRecv(other.recv), NCCL_SUCCESS);
    IS(pair.net->closeSend(other.send), NCCL_SUCCESS);
    CHECK_SAY(now_ms() - began_ms < 5000, "%u ms", (unsigned)(now_ms() - began_ms));
    close_pair(&pair);
}

/* Ranks that disagree on a size learn it, with who and what. */
static void truncated(void)
{
    struct pair pair = new_pair();
    static char big[1000];
    char small[10];
    int done = 0;
    void *receive = post_receive(&pair, small, sizeof small, NULL), *send = post_send(&pair, big, sizeof big, NULL);
    enum nccl_result result = NCCL_SUCCESS;
    while (!done)
        result = pair.net->test(receive, &done, NULL);
    IS(result, NCCL_INVALID_USAGE);
    for (done = 0; !done;)
        result = pair.net->test(send, &done, NULL);
    IS(result, NCCL_INVALID_USAGE);
    IS(warnings("message larger than the receive buffer"), 2);
    IS(warnings("127.0.0.1"), 2);
    close_pair(&pair);
}

/* Receives that GPUs watch, and a buffer of which that cannot be promised. */
static void watched(void)
{
    struct pair pair = new_pair();
    uint8_t *to = pages(1 << 16), *from = pages(1 << 16);
    memset(from, 0x77, 1 << 16);
    void *request = (void *)(uintptr_t)NCCL_NET_EARLY;
    IS(try_receive(&pair, to + 128, 5000, NULL, &request), NCCL_SUCCESS);
    CHECK(request && request != (void *)(uintptr_t)NCCL_NET_EARLY);
    IS(finish(&pair, post_send(&pair, from, 5000, NULL)), 5000);
    IS(finish(&pair, request), 5000);
    CHECK(memcmp(to + 128, from, 5000) == 0 && to[127] == 0 && to[128 + 5000] == 0);
    request = (void *)(uintptr_t)NCCL_NET_EARLY;
    IS(try_receive(&pair, to + 64, 5000, NULL, &request), NCCL_INVALID_USAGE);
    CHECK(!request);
    IS(warnings("not aligned to 128"), 1);
    request = (void *)(uintptr_t)NCCL_NET_EARLY; /* no byte, no place */
    IS(try_receive(&pair, to + 64, 0, NULL, &request), NCCL_SUCCESS);
    IS(finish(&pair, post_send(&pair, NULL, 0, NULL)), 0);
    IS(finish(&pair, request), 0);
    close_pair(&pair);
    setenv("NCCL_PROTO", "simple", 1); /* collectives do without LL; what NCCL calls one of LL is one all the same */
    pair = new_pair();
    request = (void *)(uintptr_t)NCCL_NET_EARLY;
    IS(try_receive(&pair, to + 64, 5000, NULL, &request), NCCL_INVALID_USAGE);
    IS(warnings("not aligned to 128"), 2);
    close_pair(&pair);
}

/* Numbers of levels as RCCL has had them since 2.27.7. */
static void levels_of_rccl(void)
{
    struct nccl_net_v8 *net = load("ncclNetPlugin_v8");
    void *library = dlopen(rccl_path, RTLD_NOW | RTLD_LOCAL);
    CHECK_SAY(library, "%s", dlerror());
    nccl_logger_fn theirs;
    *(void **)(void *)&theirs = dlsym(library, "rccl_logger");
    int *last_level = dlsym(library, "rccl_last_level"), *version = dlsym(library, "rccl_version");
    CHECK(theirs && last_level && version);
    setenv("UCCL_SOCKET_IFNAME", "=nosuchif", 1);
    *version = 22703;
    IS(net->init(theirs), NCCL_SUCCESS);
    IS(*last_level, 2);
    *version = 22707;
    IS(net->init(theirs), NCCL_SUCCESS);
    IS(*last_level, 3);
}

/* Another rank, in a process of its own: accepts `count` connections, posts a receive on each, and waits to be killed.
 */
static pid_t start_rank(int count, int handles_fd, int ready_fd)
{
    pid_t rank = fork();
    if (rank != 0)
        return rank;
    static char text[64];
    struct pair pair = {0};
    pair.net = start(&pair.context);
    alarm(CASE_S);
    for (int i = 0; i < count; i++) {
        uint8_t handle[NCCL_NET_HANDLE_BYTES];
        void *listen_comm;
        IS(pair.net->listen(pair.context, 0, handle, &listen_comm), NCCL_SUCCESS);
        CHECK(write(handles_fd, handle, sizeof handle) == sizeof handle);
        for (pair.recv = NULL; !pair.recv; nap())
            IS(pair.net->accept(listen_comm, &pair.recv, NULL), NCCL_SUCCESS);
        CHECK(post_receive(&pair, text + i, 1, NULL));
    }
    CHECK(write(ready_fd, "", 1) == 1);
    for (;;)
        pause();
}

/* All communicators to a killed rank fail, told of once, and close in the time of one, busy ones and idle ones. */
static void killed_rank(void)
{
    enum { COUNT = 64, LINGER_MS = 500 };
    struct pair pairs[COUNT];
    void *requests[COUNT];
    int handles[2], ready[2], status, done = 0;
    static char byte;
    setenv("UCCL_DEAD_PEER_MS", "500", 1);
    CHECK(pipe(handles) == 0 && pipe(ready) == 0);
    pid_t rank = start_rank(COUNT, handles[1], ready[1]);
    void *context;
    struct nccl_net_v12 *net = start(&context);
    for (int i = 0; i < COUNT; i++) {
        uint8_t handle[NCCL_NET_HANDLE_BYTES];
        pairs[i] = (struct pair){net, context, NULL, NULL};
        CHECK(read(handles[0], handle, sizeof handle) == sizeof handle);
        for (; !pairs[i].send; nap())
            IS(net->connect(context, 0, handle, &pairs[i].send, NULL), NCCL_SUCCESS);
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    CHECK(kill(rank, SIGKILL) == 0 && waitpid(rank, &status, 0) == rank);
    for (int i = 0; i < COUNT; i += 2)
        requests[i] = post_send(&pairs[i], &byte, 1, NULL);
    for (int i = 0; i < COUNT; i += 2) {
        enum nccl_result result = NCCL_SUCCESS;
        for (done = 0; !done;)
            result = net->test(requests[i], &done, NULL);
        IS(result, NCCL_REMOTE_ERROR);
    }
    IS(warnings("peer stopped answering"), 1);
    IS(warnings("127.0.0.1:"), 1);
    uint64_t began_ms = now_ms();
    for (int i = 0; i < COUNT; i++)
        IS(net->closeSend(pairs[i].send), NCCL_SUCCESS);
    IS(net->finalize(context), NCCL_SUCCESS);
    CHECK_SAY(now_ms() - began_ms < 6 * LINGER_MS, "%u ms", (unsigned)(now_ms() - began_ms));
    threads_are(1);
    for (int i = 0; i < line_count; i++)
        CHECK_SAY(lines[i].level != NCCL_LOG_WARN || strstr(lines[i].text, "peer stopped answering"), "%s",
                  lines[i].text);
}

/* A peer that has failed and connects again, which may fail again. */
static void failed_again(void)
{
    struct pair pair = {0};
    static char byte;
    void *mr, *request, *context;
    pair.net = start(&context);
    pair.context = context;
    for (int round = 1; round <= 3; round++) {
        struct pair other = pair;
        connect_pair(&pair);
        connect_pair(&other);
        struct pair *both[] = {&pair, &other};
        for (int i = 0; i < 2; i++) {
            IS(pair.net->regMr(both[i]->recv, &byte, 1, NCCL_PTR_HOST, &mr), NCCL_SUCCESS);
            CHECK(post_receive(both[i], &byte, 1, mr));
            IS(pair.net->deregMr(both[i]->recv, mr), NCCL_SUCCESS); /* gives up */
            request = POISON;
            enum nccl_result result = NCCL_SUCCESS;
            for (uint64_t end_ms = now_ms() + 10000; !result && now_ms() < end_ms; nap()) {
                int done = request == POISON || !request;
                if (request && request != POISON)
                    result = pair.net->test(request, &done, NULL);
                if (!result && done)
                    result = pair.net->isend(both[i]->send, &byte, 1, 0, NULL, NULL, &request);
            }
            IS(result, NCCL_REMOTE_ERROR);
            IS(pair.net->closeSend(both[i]->send), NCCL_SUCCESS);
            IS(pair.net->closeRecv(both[i]->recv), NCCL_SUCCESS);
        }
        IS(warnings("connection closed"), round); /* once for both */
    }
    IS(pair.net->finalize(context), NCCL_SUCCESS);
}

/* A child has neither threads nor a say; the parent notices nothing. */
static void forked(void)
{
    struct pair pair = new_pair();
    struct nccl_net_v12 *net = pair.net;
    uint8_t handle[NCCL_NET_HANDLE_BYTES] = {0};
    char text[8] = "";
    void *listen_comm, *data = text, *out = POISON, *mr, *parents, *none = NULL;
    IS(net->listen(pair.context, 0, handle, &listen_comm), NCCL_SUCCESS);
    IS(net->regMr(pair.recv, text, sizeof text, NCCL_PTR_HOST, &mr), NCCL_SUCCESS);
    parents = post_receive(&pair, text, sizeof text, mr);
    pid_t child = fork();
    if (child == 0) {
        size_t size = sizeof text;
        int number = 5, done = 5, log_lines = line_count, tag = 0, flush_size = 4;
        struct nccl_net_properties_v12 full;
        alarm(10);
        CHECK(net->init(&out, 9, NULL, logger, NULL));
        CHECK(net->devices(&number) && number == 0);
        CHECK(net->getProperties(0, &full));
        CHECK(net->listen(pair.context, 0, handle, &out) && !out);
        out = POISON;
        CHECK(net->connect(pair.context, 0, handle, &out, NULL) && !out);
        out = POISON;
        CHECK(net->accept(listen_comm, &out, NULL) && !out);
        out = POISON;
        CHECK(net->regMr(pair.recv, text, sizeof text, NCCL_PTR_HOST, &out) && !out);
        out = POISON;
        CHECK(net->isend(pair.send, text, 1, 0, NULL, NULL, &out) && !out);
        out = POISON;
        CHECK(net->irecv(pair.recv, 1, &data, &size, &tag, &none, NULL, &out) && !out);
        out = POISON;
        CHECK(net->iflush(pair.recv, 1, &data, &flush_size, &none, &out) && !out);
        CHECK(net->test(parents, &done, NULL) && done == 0);
        CHECK(net->deregMr(pair.recv, mr));
        CHECK(net->closeSend(pair.send) && net->closeRecv(pair.recv) && net->closeListen(listen_comm));
        CHECK(net->finalize(pair.context));
        CHECK(line_count == log_lines);
        _exit(0);
    }
    int status;
    CHECK_SAY(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", (unsigned)status);
    IS(finish(&pair, post_send(&pair, "parent", 7, NULL)), 7);
    IS(finish(&pair, parents), 7);
    CHECK(strcmp(text, "parent") == 0);
    IS(net->deregMr(pair.recv, mr), NCCL_SUCCESS);
    close_pair(&pair);
}

/* A child of a process that has loaded the plugin, and no more, may use it. */
static void forked_early(void)
{
    void *context;
    struct nccl_net_v12 *net = start(&context);
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        struct pair pair = new_pair();
        char text[4];
        void *receive = post_receive(&pair, text, 4, NULL);
        IS(finish(&pair, post_send(&pair, "abc", 4, NULL)), 4);
        IS(finish(&pair, receive), 4);
        close_pair(&pair);
        threads_are(1);
        _exit(0);
    }
    int status;
    CHECK_SAY(waitpid(child, &status, 0) == child && status == 0, "the child ended with %#x", (unsigned)status);
    IS(net->finalize(context), NCCL_SUCCESS);
}

/* ---- running them ----------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(void);
    bool forks; /* with threads, which AddressSanitizer does not take */
} CASES[] = {
    {"every field of every version's properties is written", properties, false},
    {"nothing but the tables is exported", exports_nothing_else, false},
    {"a traffic class out of range", bad_traffic_class, false},
    {"an engine is open while it is needed", engine_while_needed, false},
    {"before v11, while there is a communicator", engine_of_v8, false},
    {"loaded again and again", reload, false},
    {"messages of many sizes in slots", messages, false},
    {"UCCL_BACKEND of the user", backends, false},
    {"as many requests as NCCL has", as_many_as_there_are, false},
    {"what is refused, with outputs written", refused, false},
    {"state bytes of a handle that are no connect's", forged_handle, false},
    {"a connect that is accepted late", accepted_late, false},
    {"listeners and connects that were given up", given_up, false},
    {"a registration that ends with receives pending", deregistered_while_pending, false},
    {"a close with a receive pending", closed_while_pending, false},
    {"a close where requests are short", closed_without_requests, false},
    {"a message larger than its receive", truncated, false},
    {"a rank that was killed", killed_rank, false},
    {"a rank that fails, connects again, and fails again", failed_again, false},
    {"receives that GPUs watch", watched, false},
    {"log levels of RCCL", levels_of_rccl, false},
    {"a child of fork() with engines", forked, true},
    {"a child of fork() without", forked_early, true},
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool SANITIZED = true;
#else
static const bool SANITIZED = false;
#endif

int main(int argc, char **argv)
{
    unsigned failed = 0, count = sizeof CASES / sizeof CASES[0];
    if (argc < 3)
        return 2;
    rccl_path = argv[2];
    begin_cases(argv[1], count);
    for (unsigned i = 0; i < count; i++) {
        if (CASES[i].forks && SANITIZED) {
            printf("ok %u - %s # SKIP sanitizers do not take forks of threads\n", i + 1, CASES[i].name);
            continue;
        }
        failed += !run_case(i + 1, CASES[i].name, CASES[i].run);
    }
    return failed != 0;
}
