/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long whoever has found no work looks for some before it sleeps: UCCL_SPIN_US, or up to 200 us where that finds
 * what comes soon after a sleep has begun. KVM's host polls like this before it halts a virtual CPU (Linux,
 * Documentation/virt/kvm/halt-polling.rst): work that ended a sleep and came within 200 us of the work before doubles
 * the time, work that came later halves it. UCCL_SPIN_US=0 never spins.
 *
 * On a core that others want this costs more than it saves: they get the core for a time slice, a millisecond and more,
 * where the kernel would run one that sleeps as soon as it is woken. So whoever has lost its core while it span sleeps
 * at once for a while: 5 ms, and twice as long each time that it loses the core again soon, up to two seconds.
 *
 * Thread: the engine's owner.
 */
#ifndef UCCL_SPIN_H
#define UCCL_SPIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct spin {
    uint64_t idle_ns;         /* since when there is no work; 0: there was some */
    uint64_t seen_ns;         /* the last look, which was to be followed by another at once; 0: it was not */
    _Atomic uint64_t from_ns; /* no spinning before; also read by threads that wait for the engine's owner */
    uint64_t rest_ns;         /* how long that has lasted */
    uint64_t longer_ns;       /* how long to look where UCCL_SPIN_US is less */
};

/* Whether the core is wanted. Callable from any thread. */
static inline bool spin_rests(const struct spin *spin, uint64_t now_ns)
{
    return now_ns < atomic_load_explicit(&spin->from_ns, memory_order_relaxed); /* guards nothing else */
}

/* Nobody has looked so far. */
static inline void spin_begin(struct spin *spin)
{
    spin->idle_ns = spin->seen_ns = 0;
}

/* Whether to look again at once, since there was no work. `usual_ns`: UCCL_SPIN_US. */
bool spin_goes_on(struct spin *spin, uint64_t usual_ns, uint64_t now_ns);
/* There was work at last, after a look that found none. */
void spin_ends(struct spin *spin, uint64_t usual_ns, uint64_t now_ns);

#endif
