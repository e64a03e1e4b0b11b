/* SPDX-License-Identifier: Apache-2.0 */
#include "topology.h"

#include "log.h"

#include <errno.h>
#include <hwloc.h>
#include <string.h>

/* The `index`-th core, in turn, with a processor in `allowed`; NULL: there is none. */
static hwloc_obj_t pick_core(hwloc_topology_t topology, hwloc_const_cpuset_t allowed, unsigned index)
{
    int count = hwloc_get_nbobjs_inside_cpuset_by_type(topology, allowed, HWLOC_OBJ_CORE);
    if (count > 0)
        return hwloc_get_obj_inside_cpuset_by_type(topology, allowed, HWLOC_OBJ_CORE,
                                                   index % (unsigned)count);
    /* flat machines, and sets that cut through cores */
    count = hwloc_get_nbobjs_inside_cpuset_by_type(topology, allowed, HWLOC_OBJ_PU);
    return count > 0 ? hwloc_get_obj_inside_cpuset_by_type(topology, allowed, HWLOC_OBJ_PU,
                                                           index % (unsigned)count)
                     : NULL;
}

int topology_pin(int numa_node, unsigned index)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) || hwloc_topology_load(topology)) {
        LOG_WARNING("cannot pin engine thread %u: hwloc does not know this machine", index);
        return UCCL_ENOTSUP;
    }
    hwloc_obj_t node = NULL, core = NULL;
    while (numa_node >= 0 && (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node))) {
        if (node->os_index == (unsigned)numa_node)
            core = pick_core(topology, node->cpuset, index);
    }
    if (!core)
        core = pick_core(topology, hwloc_topology_get_allowed_cpuset(topology), index);
    int failed = core ? hwloc_set_cpubind(topology, core->cpuset, HWLOC_CPUBIND_THREAD) : -1;
    if (failed)
        LOG_WARNING("cannot pin engine thread %u: %s", index, core ? strerror(errno) : "no core to be had");
    else
        LOG_INFORM("engine thread %u runs on core %u", index, core->logical_index);
    hwloc_topology_destroy(topology);
    return failed ? UCCL_ENOTSUP : UCCL_OK;
}
