/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Binding engine threads to processors (UCCL_PIN, UCCL_CPUS). The problem: the processes of a host do not
 * know of each other, and each would take the same cores, the first ones near the NIC. And a launcher may
 * have left this process only a part of the machine.
 *
 * So a thread takes a core among the processors that it may run on anyway, cores near the NIC first. It takes
 * it by binding a socket to a name in the abstract namespace, made of the core and a round. Where the name is
 * taken it tries the next core, and where all are, the next round: so cores are shared evenly, and only when
 * none is free. The kernel frees a name when its process ends, in whatever way; nothing is left behind.
 *
 * Names belong to a network namespace: containers with networks of their own do not see each other's.
 */
#ifndef UCCL_PIN_H
#define UCCL_PIN_H

#include <sched.h>
#include <stdbool.h>

enum { PIN_CPUS_MAX = 8192, PIN_SET_PARTS = PIN_CPUS_MAX / CPU_SETSIZE };

/* Processors by their numbers. */
struct pin_set {
    cpu_set_t parts[PIN_SET_PARTS]; /* for CPU_SET_S() and its kind, of sizeof parts bytes */
};

/* A core that a thread may have. */
struct pin_place {
    unsigned core; /* the lowest number of its processors: the same for all processes */
    unsigned cpu;  /* the first of them that is ours */
    bool near;
};

/* Numbers and ranges, as in "2-5,8". False: it is something else, or holds none. */
bool pin_parse(const char *text, struct pin_set *out);

/*
 * The cores of the processors in `may`, those near to NUMA node `numa_node` (-1: none is) first; with `each`
 * an entry for each processor, in their order. `sysfs` is "/sys/devices/system", or what a test has put in
 * its place: what it does not show counts as a core of its own, on no node. At most `max`; returns how many.
 */
unsigned pin_places(const char *sysfs, const struct pin_set *may, bool each, int numa_node, struct pin_place *out,
                    unsigned max);

/* The processors that a thread is bound to at `place`: those of its core that are in `may`, with `each` its own alone. */
void pin_place_set(const char *sysfs, const struct pin_place *place, bool each, const struct pin_set *may,
                   struct pin_set *out);

/* Takes the first place that nobody has, or that the fewest have. Its index, and in `claim` what keeps it: */
unsigned pin_take(const struct pin_place *places, unsigned count, int *claim);
/* gives it back; -1 is none. */
void pin_release(int claim);

/*
 * Binds the calling thread to a core of those that it may run on, near `numa_node` if possible, or to one of
 * the processors in `cpus` where that is not empty. Memory that the thread touches first then comes from
 * there, too. Returns what keeps others from that core until pin_release(). Where it is not possible
 * (logged): as well as the kernel can.
 */
int pin_thread(const char *cpus, int numa_node, unsigned index);

#endif
