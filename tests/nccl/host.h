/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NCCL: ranks are processes, made by fork() before the plugin is loaded. Each communicator of a rank
 * has a service thread (listen, connect, accept, registrations, closes) and a progress thread (isend, irecv, test),
 * and may have a thread that looks at pending receive buffers as a GPU does. What NCCL's own network would carry goes
 * through memory that the ranks share.
 */
#ifndef TESTS_NCCL_HOST_H
#define TESTS_NCCL_HOST_H

#include "net.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    RANKS_MAX = 4,
    CHANNELS_MAX = 64,
    COMMS_MAX = 2, /* communicators of a process */
    SLOTS = 8,     /* messages of a channel in flight: NCCL_STEPS */
    SIZES_MAX = 16,
    BARRIERS_MAX = 64,
    LINES_MAX = 64, /* of the log */
    PATIENCE_S = 30 /* for anything */
};

/* What messages hold */
enum kind {
    KIND_ALL_REDUCE, /* a ring all-reduce of 32-bit integers */
    KIND_CHUNKS,     /* messages to the next rank, each with contents of its own */
    KIND_LL,         /* 8 bytes: data, flag; the GPU takes each as soon as its flag shows */
    KIND_LL128       /* 128 bytes: 15 words of data, then a flag */
};

struct options {
    const char *plugin;
    unsigned version, ranks, channels, messages; /* messages: of a channel; for all-reduce, slices */
    enum kind kind;
    size_t sizes[SIZES_MAX];
    unsigned size_count;
    unsigned skew_ms;  /* how much later each rank accepts than the one before */
    unsigned limit_ms; /* that a scenario allows for something */
    unsigned comms;
    bool spread;    /* rank r has device r, as far as there are some */
    bool registers; /* memory is registered and deregistered all the time */
};

/* Shared by the processes */
struct board {
    atomic_uint handle_there[COMMS_MAX][RANKS_MAX][CHANNELS_MAX];
    uint8_t handle[COMMS_MAX][RANKS_MAX][CHANNELS_MAX][NCCL_NET_HANDLE_BYTES];
    atomic_uint arrived[BARRIERS_MAX];
    atomic_uint progress[RANKS_MAX]; /* messages received, for who waits for the middle of something */
    _Atomic pid_t process[RANKS_MAX];
};

/* One direction of a channel: NCCL has a buffer of SLOTS messages on each side. */
struct link {
    bool sends;
    unsigned channel, peer;
    void *comm, *mr;
    uint8_t *buffer;
    size_t slot_bytes;
};

struct comm {
    const struct options *options;
    struct net *net;
    struct board *board;
    unsigned number, rank; /* of the communicators of a process; in the communicator */
    int device;
    void *context;
    struct link *sends, *receives;
    void **listeners;
    pthread_t service, progress;
    bool early;       /* receives may complete early, as NCCL says of LL and LL128 */
    atomic_bool stop; /* ends the registrations that go on beside traffic */
};

extern struct board *board;

double now_s(void);
void nap_us(unsigned us);
/* Waits until `count` processes have come to `number`. */
void barrier(unsigned number, unsigned count);

/* ---- the log of the plugin ---- */
void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Warnings so far, and one of them */
unsigned warnings(void);
const char *warning(unsigned index);

/* ---- connections (links.c) ---- */
/* init, then a ring of channels, on the calling thread as on a service thread. */
void comm_begin(struct comm *comm, const struct options *options, struct net *net, unsigned number, unsigned rank);
/* Connects; `comm->sends[c]` leads to the next rank, `comm->receives[c]` to the one before. */
void comm_connect(struct comm *comm);
/* As NCCL tears down: deregisters, takes the memory away, closes one after another; finalize. Errors are failures. */
void comm_end(struct comm *comm);
/* Registers and deregisters memory of its own until comm->stop. */
void *comm_register_on(void *comm);
size_t largest_size(const struct options *options);

/* ---- traffic (traffic.c) ---- */
/* All messages of all channels. Returns the first error, or success when all are through and right. */
enum nccl_result run_traffic(struct comm *comm);
/* The data word of message `m` at place `i` of a channel between two ranks */
uint32_t word_of(unsigned sender, unsigned channel, uint64_t m, size_t i);
size_t size_of(const struct options *options, unsigned channel, uint64_t m);

/* ---- a GPU that looks (lines.c) ---- */
struct watcher;
struct watcher *watcher_start(struct comm *comm);
/* A receive into the slot of message `m` is about to be posted. */
void watcher_posted(struct watcher *watcher, unsigned channel, uint64_t m);
/* Messages of a channel that the GPU has taken whole */
uint64_t watcher_head(struct watcher *watcher, unsigned channel);
/* Fills the slot of message `m` as the GPU of a sender does. */
void lines_fill(const struct comm *comm, unsigned channel, uint64_t m, uint64_t *words, size_t bytes);
/* Waits for the end (`whole`: until the GPU has seen all); ends the process if a line was torn. */
void watcher_end(struct watcher *watcher, bool whole);

/* ---- scenarios ---- */
struct scenario {
    const char *name, *what;
    void (*rank)(const struct options *options, unsigned rank); /* in each process */
    bool kills_last;                                            /* the last rank does not end by itself */
};
extern const struct scenario scenarios[];

#endif
