/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Binding engine threads to processors (UCCL_PIN, UCCL_CPUS). The problem: the processes of a host do not
 * know of each other, and each would choose the same cores, the first ones near the NIC. And a launcher may
 * have restricted this process to a part of the machine.
 *
 * So a thread claims a core among the processors that it may run on, cores near the NIC first. The claim is a socket
 * bound to a name in the abstract namespace, made of the core and a round. If the name is taken, the thread tries the
 * next core; if all are, the next round: threads share cores evenly, and only when none is free. The kernel frees a
 * name when its process ends, in whatever way.
 *
 * Names belong to a network namespace: containers with networks of their own do not see each other's names.
 */
#ifndef UCCL_PIN_H
#define UCCL_PIN_H

#include <sched.h>
#include <stdbool.h>

enum { PIN_CPUS_MAX = 8192, PIN_SET_PARTS = PIN_CPUS_MAX / CPU_SETSIZE };

/* A set of processors by number. */
struct pin_set {
    cpu_set_t parts[PIN_SET_PARTS]; /* for CPU_SET_S() and the like, with sizeof parts */
};

/* A core that a thread may have. */
struct pin_slot {
    unsigned core; /* its lowest processor: the same for all processes */
    unsigned cpu;  /* its first processor that this process may use */
    bool near;
};

/* Parses numbers and ranges, as in "2-5,8". False: malformed, or empty. */
bool pin_parse(const char *text, struct pin_set *out);

/*
 * Lists the cores of the processors in `may`, those near NUMA node `numa_node` (-1: unknown) first; with `each`
 * an entry per processor, in order. `sysfs` is "/sys/devices/system", or a test's directory: a processor that it does
 * not show counts as a core of its own, on no node. At most `max`; returns how many.
 */
unsigned pin_slots(const char *sysfs, const struct pin_set *may, bool each, int numa_node, struct pin_slot *out,
                   unsigned max);

/* The processors to bind a thread to at `slot`: those of its core in `may`; with `each` only its own. */
void pin_slot_set(const char *sysfs, const struct pin_slot *slot, bool each, const struct pin_set *may,
                  struct pin_set *out);

/* Claims the first slot with the fewest claims. Returns its index; `claim` is a descriptor that keeps it, -1: none. */
unsigned pin_take(const struct pin_slot *slots, unsigned count, int *claim);
/* Releases a claim; -1: none. */
void pin_release(int claim);

/*
 * Binds the calling thread to one of the cores that it may run on, near `numa_node` if possible, or to one of
 * the processors in `cpus` if that is not empty. Memory that the thread touches first then comes from
 * there, too. Returns a claim that keeps others from that core until pin_release(). Where binding fails (logged) the
 * kernel places the thread.
 */
int pin_thread(const char *cpus, int numa_node, unsigned index);

#endif
