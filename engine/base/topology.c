/* SPDX-License-Identifier: Apache-2.0 */
#include "base/topology.h"

#include "base/log.h"

#include <glob.h>
#include <hwloc.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- GPUs and NICs --------------------------------------------------------------------------- */

struct topology {
    hwloc_topology_t hwloc;
};

/*
 * Only this library loads GPU runtimes, and only when the application uses them. hwloc reads PCI devices from /sys as
 * well as through libpciaccess, whose tables are never freed.
 */
static void keep_out(hwloc_topology_t hwloc)
{
    static const char *const components[] = {"cuda", "nvml", "rsmi", "opencl", "levelzero", "gl", "pci"};
    for (size_t i = 0; i < sizeof components / sizeof *components; i++)
        hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, components[i]);
}

/* Without this file hwloc reads nothing of a machine and complains on stderr: it is not called then. */
static bool sysfs_shows_cores(void)
{
    static const char pattern[] =
        "/sys/devices/system/cpu/cpu[0-9]*/topology/{core_cpus,package_cpus,core_siblings,thread_siblings}";
    glob_t found = {0};
    bool any = glob(pattern, GLOB_BRACE | GLOB_NOSORT, NULL, &found) == 0;
    globfree(&found);
    return any;
}

int topology_open(const char *xml, size_t length, struct topology **out)
{
    struct topology *topology = calloc(1, sizeof *topology);
    if (!topology)
        return UCCL_ENOMEM;
    if (hwloc_topology_init(&topology->hwloc)) {
        free(topology);
        return UCCL_ENOMEM;
    }
    hwloc_topology_t hwloc = topology->hwloc;
    keep_out(hwloc);
    hwloc_topology_set_type_filter(hwloc, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_type_filter(hwloc, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    hwloc_topology_set_type_filter(hwloc, HWLOC_OBJ_OS_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    /* a device near cores that this process may not use is still near their node */
    hwloc_topology_set_flags(hwloc, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if ((xml && hwloc_topology_set_xmlbuffer(hwloc, xml, (int)length)) || (!xml && !sysfs_shows_cores()) ||
        hwloc_topology_load(hwloc)) {
        LOG_WARNING("hwloc cannot read this machine: distances between GPUs and NICs are unknown");
        topology_close(topology);
        return UCCL_ENOTSUP;
    }
    *out = topology;
    return UCCL_OK;
}

void topology_close(struct topology *topology)
{
    if (!topology)
        return;
    hwloc_topology_destroy(topology->hwloc);
    free(topology);
}

const struct topology *topology_get(struct topology_cache *cache)
{
    if (!cache->asked && topology_open(NULL, 0, &cache->machine))
        cache->machine = NULL;
    cache->asked = true;
    return cache->machine;
}

const char *topology_distance_name(int distance)
{
    static const char *const names[] = {"PIX", "PXB", "PHB", "NODE", "SYS", "unknown"};
    return names[distance >= 0 && distance < UCCL_DISTANCE_UNKNOWN ? distance : UCCL_DISTANCE_UNKNOWN];
}

static hwloc_obj_t find_pci(const struct topology *topology, const char *pci)
{
    unsigned domain, bus, device, function;
    if (!topology || sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return NULL;
    return hwloc_get_pcidev_by_busid(topology->hwloc, domain, bus, device, function);
}

/* The PCI device behind an interface or a verbs device. */
static hwloc_obj_t find_nic(const struct topology *topology, const char *nic)
{
    hwloc_obj_t device = NULL;
    while (topology && (device = hwloc_get_next_osdev(topology->hwloc, device))) {
        enum hwloc_obj_osdev_type_e type = device->attr->osdev.type;
        if ((type == HWLOC_OBJ_OSDEV_NETWORK || type == HWLOC_OBJ_OSDEV_OPENFABRICS) && device->name &&
            strcmp(device->name, nic) == 0)
            break;
    }
    while (device && device->type != HWLOC_OBJ_PCI_DEVICE)
        device = device->parent;
    return device;
}

static unsigned levels_above(hwloc_obj_t object)
{
    unsigned count = 0;
    while ((object = object->parent))
        count++;
    return count;
}

/* hwloc's own function needs depths, which devices do not have. */
static hwloc_obj_t common_ancestor(hwloc_obj_t a, hwloc_obj_t b)
{
    unsigned above_a = levels_above(a), above_b = levels_above(b);
    for (; above_a > above_b; above_a--)
        a = a->parent;
    for (; above_b > above_a; above_b--)
        b = b->parent;
    for (; a != b; a = a->parent)
        b = b->parent;
    return a;
}

/* Bridges strictly between `from` and its ancestor `to`. */
static unsigned bridges_between(hwloc_obj_t from, hwloc_obj_t to)
{
    unsigned count = 0;
    while ((from = from->parent) && from != to)
        count += from->type == HWLOC_OBJ_BRIDGE;
    return count;
}

enum uccl_distance topology_distance(const struct topology *topology, const char *pci, const char *nic)
{
    hwloc_obj_t gpu = find_pci(topology, pci), near = find_nic(topology, nic);
    if (!gpu || !near)
        return UCCL_DISTANCE_UNKNOWN;
    hwloc_obj_t meet = common_ancestor(gpu, near);
    if (meet->type == HWLOC_OBJ_BRIDGE && meet->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST)
        return UCCL_DISTANCE_PHB;
    if (meet->type == HWLOC_OBJ_BRIDGE || meet->type == HWLOC_OBJ_PCI_DEVICE) {
        /* `meet` is the upstream port of a switch; each side has a downstream port of that switch below it */
        bool one = bridges_between(gpu, meet) <= 1 && bridges_between(near, meet) <= 1;
        return one ? UCCL_DISTANCE_PIX : UCCL_DISTANCE_PXB;
    }
    hwloc_obj_t gpu_place = hwloc_get_non_io_ancestor_obj(topology->hwloc, gpu);
    hwloc_obj_t nic_place = hwloc_get_non_io_ancestor_obj(topology->hwloc, near);
    return hwloc_bitmap_intersects(gpu_place->nodeset, nic_place->nodeset) ? UCCL_DISTANCE_NODE : UCCL_DISTANCE_SYS;
}

int topology_node(const struct topology *topology, const char *pci)
{
    hwloc_obj_t gpu = find_pci(topology, pci);
    hwloc_obj_t place = gpu ? hwloc_get_non_io_ancestor_obj(topology->hwloc, gpu) : NULL;
    return place && hwloc_bitmap_weight(place->nodeset) == 1 ? hwloc_bitmap_first(place->nodeset) : -1;
}

/* ---- a NIC for each GPU ---------------------------------------------------------------------- */

/* Whether `nic` is among the nearest of a GPU; `row` has its distances. */
static bool is_nearest(const enum uccl_distance *row, const uint64_t *speed_mbps, unsigned nics, unsigned nic)
{
    uint64_t fastest = 0;
    for (unsigned i = 0; i < nics; i++) {
        if (row[i] != UCCL_DISTANCE_UNKNOWN && speed_mbps[i] > fastest)
            fastest = speed_mbps[i];
    }
    enum uccl_distance least = UCCL_DISTANCE_UNKNOWN;
    for (unsigned i = 0; i < nics; i++) {
        if (speed_mbps[i] >= fastest / 2 && row[i] < least)
            least = row[i];
    }
    return row[nic] == least && least != UCCL_DISTANCE_UNKNOWN && speed_mbps[nic] >= fastest / 2;
}

/* The number of GPUs that `nic` serves so far. */
static unsigned served(const int *nearest, unsigned gpus, unsigned nic)
{
    unsigned count = 0;
    for (unsigned i = 0; i < gpus; i++)
        count += nearest[i] == (int)nic;
    return count;
}

/*
 * GPUs with the fewest nearest NICs choose first. On a tree of switches two sets of nearest NICs are disjoint or
 * nested, so that this order gives no NIC more GPUs than necessary.
 */
void topology_share(const enum uccl_distance *distance, unsigned gpus, const uint64_t *speed_mbps, unsigned nics,
                    int *nearest)
{
    for (unsigned i = 0; i < gpus; i++)
        nearest[i] = -1;
    for (unsigned choice = 1; choice <= nics; choice++) {
        for (unsigned gpu = 0; gpu < gpus; gpu++) {
            const enum uccl_distance *row = distance + (size_t)gpu * nics;
            unsigned ties = 0, least = UINT_MAX;
            int best = -1;
            for (unsigned nic = 0; nic < nics; nic++) {
                if (!is_nearest(row, speed_mbps, nics, nic))
                    continue;
                ties++;
                if (served(nearest, gpus, nic) < least) {
                    least = served(nearest, gpus, nic);
                    best = (int)nic;
                }
            }
            if (ties == choice)
                nearest[gpu] = best;
        }
    }
}
