/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of each scenario do while all is well: properties, traffic, reloading, several communicators. */
#include "ends.h"
#include "host.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool settles(const char *folder, unsigned most)
{
    double start = now_s();
    while (entries_of(folder) > most) { /* the kernel takes a moment to forget a thread that was joined */
        if (now_s() - start > 2)
            return false;
        nap_us(1000);
    }
    return true;
}

/* ---- properties ------------------------------------------------------------------------------ */

static bool written(int value)
{
    return value != (int)0xa5a5a5a5;
}

static void check_properties(const struct nccl_net_properties_v12 *p, int count)
{
    CHECK(p->name && p->name[0] && strlen(p->name) < 255, "a device without a name");
    CHECK(!p->pciPath || strchr(p->pciPath, '/'), "pciPath %s is no path", p->pciPath);
    CHECK(p->guid != 0xa5a5a5a5a5a5a5a5u, "guid was not written");
    CHECK(p->ptrSupport & NCCL_PTR_HOST && p->ptrSupport <= 7, "ptrSupport %d", p->ptrSupport);
    CHECK(p->regIsGlobal == 0 || p->regIsGlobal == 1, "regIsGlobal %d", p->regIsGlobal);
    CHECK(p->forceFlush == 0 || p->forceFlush == 1, "forceFlush %d", p->forceFlush);
    CHECK(p->speed > 0 && written(p->speed), "speed %d", p->speed);
    CHECK(p->port >= 0 && written(p->port), "port %d", p->port);
    CHECK(p->latency >= 0 && p->latency < 1e6f, "latency %f", (double)p->latency);
    CHECK(p->maxComms > 0 && written(p->maxComms), "maxComms %d", p->maxComms);
    CHECK(p->maxRecvs == 1, "maxRecvs %d", p->maxRecvs);
    CHECK(p->netDeviceType == NCCL_NET_DEVICE_HOST && p->netDeviceVersion == 0, "device type %d, version %d",
          (int)p->netDeviceType, p->netDeviceVersion);
    CHECK(p->vProps.ndevs == 1 && p->vProps.devs[0] >= 0 && p->vProps.devs[0] < count, "vProps %d, %d", p->vProps.ndevs,
          p->vProps.devs[0]);
    CHECK(p->maxP2pBytes > 0 && p->maxP2pBytes <= (size_t)1 << 40, "maxP2pBytes %zu", p->maxP2pBytes);
    CHECK(p->maxCollBytes > 0 && p->maxCollBytes <= (size_t)1 << 40, "maxCollBytes %zu", p->maxCollBytes);
    CHECK(p->maxMultiRequestSize == 1, "maxMultiRequestSize %d", p->maxMultiRequestSize);
    CHECK(p->railId == -1 && p->planeId == -1, "railId %d, planeId %d", p->railId, p->planeId);
}

static void rank_properties(const struct options *options, unsigned rank)
{
    struct nccl_net_properties_v12 first = {0}, p;
    struct net net;
    void *context;
    int count;
    net_load(&net, options->plugin, options->version);
    GOOD(net_init(&net, &context, logger));
    GOOD(net_devices(&net, &count));
    CHECK(count >= 1 && count < 128, "%d devices", count);
    for (int device = 0; device < count; device++) {
        GOOD(net_properties(&net, device, &p));
        check_properties(&p, count);
        if (device == 0)
            first = p;
        else
            CHECK(strcmp(first.name, p.name) != 0, "two devices are called %s", p.name);
        CHECK(device == 0 || first.guid != p.guid || first.port != p.port, "%s and %s are one card to NCCL", first.name,
              p.name);
    }
    GOOD(net_properties(&net, 0, &p)); /* NCCL asks again and again */
    CHECK(strcmp(first.name, p.name) == 0, "another name at the second look");
    CHECK(net_properties(&net, count, &p) != NCCL_SUCCESS, "properties of a device that does not exist");
    CHECK(net_properties(&net, -1, &p) != NCCL_SUCCESS, "properties of device -1");
    /* what NCCL gives where a connect or a registration has failed */
    GOOD(net_close_send(&net, NULL));
    GOOD(net_close_receive(&net, NULL));
    GOOD(net_finalize(&net, context));
    net_unload(&net);
    printf("rank %u: %d devices, the first %s with %d Mbps\n", rank, count, first.name, first.speed);
}

/* ---- traffic --------------------------------------------------------------------------------- */

static void *service_begin(void *data)
{
    comm_connect(data);
    return NULL;
}

static void *service_end(void *data)
{
    comm_end(data);
    return NULL;
}

/* One step on a thread of its own, as NCCL's service thread has it. */
static void on_service_thread(struct comm *comm, void *(*step)(void *))
{
    CHECK(pthread_create(&comm->service, NULL, step, comm) == 0, "no thread");
    CHECK(pthread_join(comm->service, NULL) == 0, "join");
}

static void *progress(void *data)
{
    struct comm *comm = data;
    GOOD(run_traffic(comm));
    return NULL;
}

/* Makes a communicator, runs the traffic of the options, and ends it. `beside` is done during the traffic. */
static void communicate(struct net *net, const struct options *options, unsigned number, unsigned rank,
                        void (*beside)(struct comm *))
{
    struct comm comm;
    pthread_t registering;
    comm_begin(&comm, options, net, number, rank);
    on_service_thread(&comm, service_begin);
    if (options->registers)
        CHECK(pthread_create(&registering, NULL, comm_register_on, &comm) == 0, "no thread");
    CHECK(pthread_create(&comm.progress, NULL, progress, &comm) == 0, "no thread");
    if (beside)
        beside(&comm);
    pthread_join(comm.progress, NULL);
    atomic_store(&comm.stop, true);
    if (options->registers)
        pthread_join(registering, NULL);
    on_service_thread(&comm, service_end);
}

struct one_of_several {
    struct net *net;
    const struct options *options;
    unsigned number, rank;
    pthread_t thread;
};

static void *communicate_beside(void *data)
{
    struct one_of_several *one = data;
    communicate(one->net, one->options, one->number, one->rank, NULL);
    return NULL;
}

/* All communicators of a process at the same time, each with its threads. */
static void communicate_all(struct net *net, const struct options *options, unsigned rank)
{
    struct one_of_several each[COMMS_MAX];
    for (unsigned i = 0; i < options->comms; i++) {
        each[i] = (struct one_of_several){net, options, i, rank, 0};
        CHECK(pthread_create(&each[i].thread, NULL, communicate_beside, &each[i]) == 0, "no thread");
    }
    for (unsigned i = 0; i < options->comms; i++)
        pthread_join(each[i].thread, NULL);
}

static void rank_traffic(const struct options *options, unsigned rank)
{
    struct net net;
    net_load(&net, options->plugin, options->version);
    communicate_all(&net, options, rank);
    CHECK(warnings() == 0, "%u warnings, the first: %s", warnings(), warning(0));
    net_unload(&net);
}

/* ---- again ----------------------------------------------------------------------------------- */

static void *nothing(void *data)
{
    return NULL;
}

/* Loading, running and unloading three times leaves no thread and no descriptor behind. */
static void rank_reload(const struct options *options, unsigned rank)
{
    unsigned threads, descriptors = 0;
    pthread_t first;
    /* sanitizers have threads of their own, from the first one on */
    CHECK(pthread_create(&first, NULL, nothing, NULL) == 0 && pthread_join(first, NULL) == 0, "no thread");
    threads = entries_of("/proc/self/task");
    for (unsigned round = 0; round < 3; round++) {
        struct net net;
        net_load(&net, options->plugin, options->version);
        communicate_all(&net, options, rank);
        net_unload(&net);
        for (unsigned i = 0; i < options->comms; i++) /* listeners of this round are not those of the next */
            for (unsigned c = 0; c < options->channels; c++)
                atomic_store(&board->handle_there[i][rank][c], 0);
        barrier(round, options->ranks);
        if (round == 0) /* what is opened once for good is open now */
            descriptors = entries_of("/proc/self/fd");
        CHECK(settles("/proc/self/task", threads), "%u threads, %u before", entries_of("/proc/self/task"), threads);
        CHECK(settles("/proc/self/fd", descriptors), "%u descriptors, after the first round %u",
              entries_of("/proc/self/fd"), descriptors);
    }
}

/* ---- forks and stops in the middle ----------------------------------------------------------- */

static void wait_for_messages(struct comm *comm)
{
    enum { COUNT = 20 };
    double start = now_s();
    while (atomic_load(&comm->board->progress[comm->rank]) < COUNT) {
        CHECK(now_s() - start < PATIENCE_S, "no %d messages", COUNT);
        nap_us(500);
    }
}

/* Every call that a child may try says no, and comes back at once. */
static void in_child(struct comm *comm)
{
    uint8_t handle[NCCL_NET_HANDLE_BYTES] = {0}, byte[128] = {0};
    void *out;
    alarm(20);
    fail_as("child");
    CHECK(net_listen(comm->net, comm->context, 0, handle, &out) != NCCL_SUCCESS, "listen works in a child");
    CHECK(net_connect(comm->net, comm->context, 0, handle, &out) != NCCL_SUCCESS, "connect works in a child");
    CHECK(net_register(comm->net, comm->sends[0].comm, byte, sizeof(byte), &out) != NCCL_SUCCESS,
          "regMr works in a child");
    CHECK(net_send(comm->net, comm->sends[0].comm, byte, 1, 0, comm->sends[0].mr, &out) != NCCL_SUCCESS,
          "isend works in a child");
    CHECK(net_receive(comm->net, comm->receives[0].comm, byte, 1, 0, comm->receives[0].mr, NET_GARBAGE, &out) !=
              NCCL_SUCCESS,
          "irecv works in a child");
    net_deregister(comm->net, comm->sends[0].comm, comm->sends[0].mr);
    net_close_send(comm->net, comm->sends[0].comm);
    net_close_receive(comm->net, comm->receives[0].comm);
    net_finalize(comm->net, comm->context);
    exit(0); /* with the plugin's destructor */
}

static void fork_once(struct comm *comm)
{
    int status;
    wait_for_messages(comm);
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (child == 0)
        in_child(comm);
    CHECK(waitpid(child, &status, 0) == child, "waitpid");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %s %d",
          WIFSIGNALED(status) ? "signal" : "status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Rank 0 does `beside` during the traffic. */
static void disturb(const struct options *options, unsigned rank, void (*beside)(struct comm *))
{
    struct net net;
    net_load(&net, options->plugin, options->version);
    communicate(&net, options, 0, rank, rank == 0 ? beside : NULL);
    net_unload(&net);
}

static void rank_fork(const struct options *options, unsigned rank)
{
    disturb(options, rank, fork_once);
}

/* Stops the last rank for a while. */
static void stop_other(struct comm *comm)
{
    pid_t other = atomic_load(&board->process[comm->options->ranks - 1]);
    wait_for_messages(comm);
    CHECK(kill(other, SIGSTOP) == 0, "kill");
    nap_us(comm->options->limit_ms * 1000);
    CHECK(kill(other, SIGCONT) == 0, "kill");
}

static void rank_stop(const struct options *options, unsigned rank)
{
    disturb(options, rank, stop_other);
}

/* ---- more than there is room for ------------------------------------------------------------- */

/* Sends without a receive: all that NCCL may have outstanding is taken, then comes NULL, and no error. */
static void flood(struct comm *comm)
{
    enum { MOST = 200, BYTES = 1024 };
    struct link *send = &comm->sends[0], *receive = &comm->receives[0];
    void *sends[MOST], *request;
    unsigned posted = 0, received = 0, sent = 0;
    double start = now_s();
    memset(send->buffer, 1, BYTES);
    while (posted < MOST) {
        GOOD(net_send(comm->net, send->comm, send->buffer, BYTES, 0, send->mr, &sends[posted]));
        if (!sends[posted])
            break;
        posted++;
    }
    CHECK(posted >= NCCL_NET_REQUESTS_MAX, "only %u requests outstanding", posted);
    CHECK(posted < MOST, "%u requests outstanding, without an end", posted);
    barrier(0, comm->options->ranks);
    while (received < posted || sent < posted) {
        int done;
        CHECK(now_s() - start < PATIENCE_S, "%u sent, %u received of %u", sent, received, posted);
        if (received < posted) {
            GOOD(net_receive(comm->net, receive->comm, receive->buffer, BYTES, 0, receive->mr, NET_GARBAGE, &request));
            for (done = !request; !done;) {
                GOOD(net_test(comm->net, request, &done, NULL));
                CHECK(now_s() - start < PATIENCE_S, "receive %u of %u", received, posted);
            }
            received += request != NULL;
        }
        if (sent < posted) {
            GOOD(net_test(comm->net, sends[sent], &done, NULL));
            sent += done == 1;
        }
    }
    /* host memory needs none: there is nothing to wait for */
    GOOD(net_flush(comm->net, receive->comm, receive->buffer, BYTES, receive->mr, &request));
    CHECK(!request, "a flush of host memory has a request");
}

static void rank_flood(const struct options *options, unsigned rank)
{
    struct net net;
    struct comm comm;
    net_load(&net, options->plugin, options->version);
    comm_begin(&comm, options, &net, 0, rank);
    comm_connect(&comm);
    flood(&comm);
    barrier(1, options->ranks);
    comm_end(&comm);
    net_unload(&net);
}

const struct scenario scenarios[] = {
    {"properties", "devices and their properties", rank_properties, false},
    {"traffic", "connect, messages, teardown", rank_traffic, false},
    {"reload", "the same three times, unloading in between", rank_reload, false},
    {"fork", "a fork in the middle, whose child tries everything", rank_fork, false},
    {"stop", "the last rank is stopped for limit_ms", rank_stop, false},
    {"flood", "more sends than may be outstanding", rank_flood, false},
    {"kill", "the last rank is killed in the middle; the others' ends take limit_ms at most", rank_kill, true},
    {"abort", "registrations end with requests pending; memory is not touched afterwards", rank_abort, false},
    {"halves", "listeners and connects that nobody ends", rank_halves, false},
    {NULL, NULL, NULL, false},
};
