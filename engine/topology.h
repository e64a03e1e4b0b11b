/* SPDX-License-Identifier: Apache-2.0 */
/* Where threads and memory go: the machine's topology as hwloc tells it. */
#ifndef UCCL_TOPOLOGY_H
#define UCCL_TOPOLOGY_H

/*
 * Binds the calling thread to a core near `numa_node` (-1: anywhere it may run), the `index`-th of them
 * in turn; memory that it touches first then comes from there too. Where the node has no core for us,
 * any core will do. UCCL_ENOTSUP: not possible here (logged).
 */
int topology_pin(int numa_node, unsigned index);

#endif
