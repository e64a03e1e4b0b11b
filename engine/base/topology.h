/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which NIC a GPU uses: the machine's topology as hwloc reports it.
 * Containers and virtual machines often show a flat topology, or no PCI devices: what hwloc does not show is unknown,
 * never an error. For set-up; any thread, one at a time per `struct topology`.
 */
#ifndef UCCL_TOPOLOGY_H
#define UCCL_TOPOLOGY_H

#include "uccl/engine.h"

#include <stdbool.h>

struct topology;

/*
 * Opens the topology of this machine, or the one that `xml` (of `length` bytes, hwloc's format; NULL: none)
 * describes. UCCL_ENOTSUP: hwloc fails (logged); UCCL_ENOMEM. The other calls take NULL for a topology that shows
 * nothing.
 */
int topology_open(const char *xml, size_t length, struct topology **out);
void topology_close(struct topology *topology);

/*
 * The distance between the PCI device at `pci` ("0000:3b:00.0") and the interface or verbs device `nic`.
 * UCCL_DISTANCE_UNKNOWN: hwloc does not show one of them, as for loopback.
 */
enum uccl_distance topology_distance(const struct topology *topology, const char *pci, const char *nic);

/* The machine, looked at when somebody first asks. All zero to begin with; one thread at a time. */
struct topology_cache {
    struct topology *machine; /* NULL: it shows nothing, or nobody has asked */
    bool asked;
};

const struct topology *topology_get(struct topology_cache *cache);

/* "PIX" and so on; "unknown" for any other number. */
const char *topology_distance_name(int distance);

/* The NUMA node of a PCI device; -1: unknown, or near several. */
int topology_node(const struct topology *topology, const char *pci);

/*
 * Chooses a NIC for each GPU: the nearest of those at least half as fast as the fastest; of several, the one with the
 * fewest GPUs. `distance` has `nics` entries per GPU; `speed_mbps` may be 0 for unknown. `nearest[gpu]` is -1 where no
 * distance is known.
 */
void topology_share(const enum uccl_distance *distance, unsigned gpus, const uint64_t *speed_mbps, unsigned nics,
                    int *nearest);

#endif
