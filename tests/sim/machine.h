/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated machines: processes whose threads are fibers, stepped on one real thread in virtual time. A
 * fiber runs until it waits, reads the clock while something else is due, or is preempted (sim_step(),
 * where the seed says); then the earliest event is next. So one seed is one interleaving of all threads
 * of all processes, and code that blocks (thread_wait(), the NIC's wait, the handshake) runs as it is.
 *
 * Each process has a clock of its own with an offset and a drift, and accounts for its memory, which goes
 * when it is killed and must be back when it ends well.
 */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include "core/rng.h"
#include "trace.h"

#include <stddef.h>

enum { CALLS_PER_PREEMPTION = 8 };

struct fiber;
struct allocation;

struct process {
    struct process *next; /* for its owner's list */
    unsigned index;       /* of its node */
    void *owner;          /* the node */
    uint64_t clock_offset_ns;
    int32_t clock_drift_ppm;
    bool killed;
    uint64_t stopped_until_ns; /* none of its fibers runs before; its clock goes on */
    uint32_t preempt_every;    /* atomic operations between two preemptions, on average; 0: none */
    uint32_t preempt_ns;       /* longest of them */
    struct fiber *fibers;
    struct allocation *allocations;
    uint64_t allocation_count;
};

typedef void (*machine_event_fn)(void *what, uint64_t extra);

struct machine_event {
    uint64_t at_ns, order;
    machine_event_fn run;
    void *what;
    uint64_t extra;
};

struct machine {
    uint64_t now_ns;   /* true time, from 0 */
    uint64_t limit_ns; /* a run that lasts longer has failed */
    uint32_t tick_ns;  /* what a look at the clock costs */
    struct rng rng;    /* of the scheduler */
    struct trace trace;
    struct machine_event *heap;
    size_t heap_count, heap_room;
    uint64_t next_order;
    struct fiber *current; /* NULL: the scheduler */
    struct fiber *all;     /* every fiber that ever was, newest first */
    uint32_t steps_left;
    uint64_t switches;
    void (*on_fail)(void); /* prints what is known */
};

extern struct machine machine;

void machine_begin(uint64_t seed, bool print_trace);
/* Frees fibers and events; processes have ended or were killed. */
void machine_end(void);
/* Runs the earliest event. False: there is none. */
bool machine_step(void);
_Noreturn void machine_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
void machine_note(const char *what, uint64_t a, uint64_t b, uint64_t c);

/* Calls `run(what, extra)` on the scheduler at a time. */
void machine_at(uint64_t at_ns, machine_event_fn run, void *what, uint64_t extra);

/* ---- processes ---- */
struct fiber *machine_spawn(struct process *process, void (*run)(void *), void *argument);
/* Ends all its fibers where they are and frees its memory. Not from one of them. */
void machine_kill(struct process *process);
/* None of its fibers runs until then, as after SIGSTOP; what is sent to it waits. */
void machine_stop(struct process *process, uint64_t until_ns);

/* ---- for fibers ---- */
struct process *machine_process(void);
/* It is a thread that the engine has made. */
bool machine_engine_thread(void);
void machine_sleep(uint64_t duration_ns);
/* Something takes so long: others may run meanwhile. */
void machine_spend(uint32_t duration_ns);
/* The same in a system call, where a busy machine often gives the core to others. */
void machine_system_call(uint32_t duration_ns);
/* Waits on `on` until machine_wake() or a true time. False: the time came. */
bool machine_park(const void *on, uint64_t until_ns);
/* Wakes up to `count` fibers that wait on `on`; returns how many. From anywhere. */
unsigned machine_wake(struct process *process, const void *on, unsigned count);
/* A duration on the process's clock, as a true time from now on. UINT64_MAX stays. */
uint64_t machine_deadline(uint64_t duration_ns);

static inline uint32_t machine_random(uint32_t bound)
{
    return bound ? rng_below(&machine.rng, bound) : 0;
}

#endif
