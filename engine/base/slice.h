/* SPDX-License-Identifier: Apache-2.0 */
/* How soon a thread runs again on a machine whose cores are all in use. */
#ifndef UCCL_SLICE_H
#define UCCL_SLICE_H

/*
 * Asks the kernel for time slices of 0.7 ms for the calling thread, a quarter of the usual ones on a machine of many
 * cores. Its share of the cores stays the same. But the scheduler serves the earliest virtual deadline first, which a
 * short slice brings forward: a thread that wakes up takes the core from one with longer slices (EEVDF: Stoica and
 * Abdel-Wahab 1995; Linux 6.12). Needs no privilege. Slices of 0.1 ms gain no more there, and cost up to a third where
 * engine threads are more than cores. Older kernels and sandboxes that forbid it leave the thread as it is, and so does
 * a policy that the application has chosen, such as SCHED_FIFO.
 */
void slice_shorten(void);

#endif
