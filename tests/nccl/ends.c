/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a scenario do where something ends early: a killed peer, an abort, connections that nobody makes
 * whole. */
#include "ends.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- a killed peer --------------------------------------------------------------------------- */

static void *die_in_the_middle(void *data)
{
    struct comm *comm = data;
    while (atomic_load(&board->progress[comm->rank]) < comm->options->channels * 4)
        nap_us(200);
    raise(SIGKILL);
    return NULL;
}

/* NCCL ends the progress thread at the first error, and then everything in turn, with requests open. */
void rank_kill(const struct options *options, unsigned rank)
{
    struct net net;
    struct comm comm;
    pthread_t death;
    net_load(&net, options->plugin, options->version);
    comm_begin(&comm, options, &net, 0, rank);
    comm_connect(&comm);
    if (rank == options->ranks - 1)
        CHECK(pthread_create(&death, NULL, die_in_the_middle, &comm) == 0, "no thread");
    enum nccl_result result = run_traffic(&comm);
    CHECK(result == NCCL_REMOTE_ERROR, "the peer was killed, and the error is %d", (int)result);
    double start = now_s();
    comm_end(&comm);
    double took_ms = (now_s() - start) * 1000;
    printf("rank %u: all closed after %.0f ms; said: %s\n", rank, took_ms, warning(0));
    CHECK(took_ms < options->limit_ms, "%u channels to a killed peer took %.0f ms to close", options->channels,
          took_ms);
    /* in a ring of more than two a rank that gives up is lost to those beside it, too */
    CHECK(warnings() >= 1 && warnings() < options->ranks, "%u warnings for one dead peer: %s | %s", warnings(),
          warning(0), warning(1));
    CHECK(strchr(warning(0), '.') && strchr(warning(0), ':'), "the warning names no address: %s", warning(0));
    net_unload(&net);
}

/* ---- an abort -------------------------------------------------------------------------------- */

enum { CANARY = 0xc7, WATCH_US = 300000 };

static bool untouched(const struct link *link)
{
    size_t size = link->slot_bytes * SLOTS;
    return link->buffer[0] == CANARY && memcmp(link->buffer, link->buffer + 1, size - 1) == 0;
}

/* Receives on all channels until one message of each is there, and gives up in the middle of the next ones. */
static void abort_receives(struct comm *comm)
{
    unsigned channels = comm->options->channels;
    void *request[CHANNELS_MAX][SLOTS];
    double start = now_s();
    for (unsigned c = 0; c < channels; c++) {
        struct link *link = &comm->receives[c];
        for (unsigned i = 0; i < SLOTS; i++) {
            GOOD(net_receive(comm->net, link->comm, link->buffer + i * link->slot_bytes, link->slot_bytes, 0, link->mr,
                             c & 1 ? NET_EARLY : NET_GARBAGE, &request[c][i]));
            CHECK(request[c][i], "no room for %d receives", SLOTS);
        }
    }
    barrier(0, comm->options->ranks);
    for (unsigned c = 0; c < channels; c++) {
        for (int done = 0; !done;) {
            GOOD(net_test(comm->net, request[c][0], &done, NULL));
            CHECK(now_s() - start < PATIENCE_S, "nothing comes on channel %u", c);
        }
    }
    for (unsigned c = 0; c < channels; c++) {
        struct link *link = &comm->receives[c];
        GOOD(net_deregister(comm->net, link->comm, link->mr));
        /* from here on the memory is somebody else's */
        memset(link->buffer, CANARY, link->slot_bytes * SLOTS);
    }
    nap_us(WATCH_US);
    for (unsigned c = 0; c < channels; c++) {
        struct link *link = &comm->receives[c];
        CHECK(untouched(link), "channel %u: memory was written to after deregMr", c);
        CHECK(mprotect(link->buffer, link->slot_bytes * SLOTS, PROT_NONE) == 0, "mprotect");
    }
    nap_us(WATCH_US);
    for (unsigned c = 0; c < channels; c++) {
        GOOD(net_close_receive(comm->net, comm->receives[c].comm));
        comm->receives[c].comm = NULL;
    }
}

/* Sends on all channels until the other side gives up. Its memory goes while sends are pending. */
static void send_on(struct comm *comm)
{
    unsigned channels = comm->options->channels, broken = 0;
    double start = now_s();
    barrier(0, comm->options->ranks);
    bool ended[CHANNELS_MAX] = {false};
    void *request[CHANNELS_MAX] = {NULL};
    while (broken < channels) {
        CHECK(now_s() - start < PATIENCE_S, "sends to a rank that has given up go on: %u of %u channels have failed",
              broken, channels);
        for (unsigned c = 0; c < channels; c++) {
            struct link *link = &comm->sends[c];
            enum nccl_result result = NCCL_SUCCESS;
            int done = 0;
            if (ended[c])
                continue;
            if (!request[c])
                result = net_send(comm->net, link->comm, link->buffer, link->slot_bytes, 0, link->mr, &request[c]);
            else
                result = net_test(comm->net, request[c], &done, NULL);
            if (done)
                request[c] = NULL;
            if (result == NCCL_SUCCESS)
                continue;
            CHECK(result == NCCL_REMOTE_ERROR, "the peer has given up, and the error is %d", (int)result);
            ended[c] = true;
            broken++;
        }
        nap_us(50);
    }
}

void rank_abort(const struct options *options, unsigned rank)
{
    struct net net;
    struct comm comm;
    net_load(&net, options->plugin, options->version);
    comm_begin(&comm, options, &net, 0, rank);
    comm_connect(&comm);
    /* of a ring of two: rank 0 receives, rank 1 sends, and what is left is closed with nothing pending */
    if (rank == 0)
        abort_receives(&comm);
    else
        send_on(&comm);
    barrier(1, options->ranks);
    comm_end(&comm);
    net_unload(&net);
}

/* ---- half made ------------------------------------------------------------------------------- */

/* A first round, after which everything is open that stays open. */
static void warm_up(struct net *net)
{
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *context, *listener;
    GOOD(net_init(net, &context, logger));
    GOOD(net_listen(net, context, 0, handle, &listener));
    GOOD(net_close_listen(net, listener));
    GOOD(net_finalize(net, context));
}

/*
 * Each rank listens on several channels, connects to all of the other, and accepts the first alone. Then NCCL gives
 * up: nothing is closed but by finalize.
 */
void rank_halves(const struct options *options, unsigned rank)
{
    uint8_t handles[CHANNELS_MAX][NCCL_NET_HANDLE_BYTES];
    void *listeners[CHANNELS_MAX], *sends[CHANNELS_MAX] = {NULL}, *accepted = NULL, *context;
    struct net net;
    net_load(&net, options->plugin, options->version);
    warm_up(&net);
    unsigned threads = entries_of("/proc/self/task"), descriptors = entries_of("/proc/self/fd"),
             other = (rank + 1) % options->ranks;
    GOOD(net_init(&net, &context, logger));
    for (unsigned c = 0; c < options->channels; c++)
        GOOD(net_listen(&net, context, 0, board->handle[0][rank][c], &listeners[c]));
    barrier(0, options->ranks);
    memcpy(handles, board->handle[0][other], sizeof(handles));
    double start = now_s();
    while (!accepted || !sends[0] || now_s() - start < 0.3) {
        for (unsigned c = 0; c < options->channels; c++) {
            if (!sends[c])
                GOOD(net_connect(&net, context, 0, handles[c], &sends[c]));
        }
        if (!accepted)
            GOOD(net_accept(&net, listeners[0], &accepted));
        CHECK(now_s() - start < PATIENCE_S, "the first channel does not come up");
    }
    barrier(1, options->ranks);
    start = now_s();
    GOOD(net_finalize(&net, context));
    double took_ms = (now_s() - start) * 1000;
    CHECK(took_ms < options->limit_ms, "finalize took %.0f ms", took_ms);
    /* older versions have no finalize: what NCCL leaves open there stays */
    CHECK(net.version < 11 || settles("/proc/self/task", threads), "%u threads are left",
          entries_of("/proc/self/task") - threads);
    CHECK(net.version < 11 || settles("/proc/self/fd", descriptors), "%u descriptors are left",
          entries_of("/proc/self/fd") - descriptors);
    net_unload(&net);
}
