/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs of the machine and how they reach the engine's devices. Looked up once per engine, when somebody asks:
 * it loads the GPU runtimes, which an application without GPUs has no use for.
 */
#include "objects.h"

#include "base/topology.h"
#include "mem/mem.h"
#include "nic/backend.h"

#include <stdio.h>
#include <stdlib.h>

struct gpu_map {
    unsigned gpus, devices;
    struct uccl_gpu *gpu;
    enum uccl_distance *distance; /* a row of `devices` per GPU */
};

void gpu_map_free(struct gpu_map *map)
{
    if (!map)
        return;
    free(map->gpu);
    free(map->distance);
    free(map);
}

/* Appends the GPUs of a runtime, if this build knows it. */
static int list_gpus(struct gpu_map *map, enum uccl_mem kind)
{
    const struct mem_ops *ops = mem_ops_of(kind);
    struct mem_device device = {0};
    for (int i = 0; ops && ops->device(i, &device) == UCCL_OK; i++) {
        struct uccl_gpu *grown = realloc(map->gpu, (map->gpus + 1) * sizeof *grown);
        if (!grown)
            return UCCL_ENOMEM;
        map->gpu = grown;
        struct uccl_gpu *gpu = &map->gpu[map->gpus++];
        *gpu = (struct uccl_gpu){.numa_node = -1, .nearest_device = -1, .used_device = -1};
        snprintf(gpu->name, sizeof gpu->name, "%s:%d", ops->name, i);
        snprintf(gpu->pci, sizeof gpu->pci, "%s", device.pci);
        snprintf(gpu->model, sizeof gpu->model, "%s", device.model);
    }
    return UCCL_OK;
}

/* The device at which a connection near each GPU begins: the nearest of those in use, if these are several. */
static int share_ends(const struct gpu_map *map, const struct uccl_engine *engine, const uint64_t *speed_mbps,
                      int *used)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned count = nic_ends(engine->nic, ends);
    for (unsigned g = 0; g < map->gpus; g++)
        used[g] = engine->nic->caps.routed ? -1 : BACKEND_DEVICE;
    if (count == 0)
        return UCCL_OK;
    enum uccl_distance *distance = calloc((size_t)map->gpus * map->devices + 1, sizeof *distance);
    if (!distance)
        return UCCL_ENOMEM;
    for (unsigned i = 0; i < map->gpus * map->devices; i++)
        distance[i] = UCCL_DISTANCE_UNKNOWN;
    for (unsigned i = 0; i < count; i++) {
        unsigned d = (unsigned)engine->nic->ends->device(engine->nic, i);
        for (unsigned g = 0; g < map->gpus; g++)
            distance[g * map->devices + d] = map->distance[g * map->devices + d];
    }
    topology_share(distance, map->gpus, speed_mbps, map->devices, used);
    free(distance);
    return UCCL_OK;
}

/* Fills in the distance of every GPU to every NIC, and per GPU the NUMA node, the nearest NIC and the text that says
 * whether the GPU's memory is used directly or staged. */
static int measure(struct gpu_map *map, struct uccl_engine *engine)
{
    const struct topology *topology = topology_get(&engine->machine);
    uint64_t *speed_mbps = calloc(map->devices + 1, sizeof *speed_mbps);
    int *nearest = calloc(map->gpus, sizeof *nearest), *used = calloc(map->gpus, sizeof *used);
    map->distance = calloc((size_t)map->gpus * map->devices + 1, sizeof *map->distance);
    int error = speed_mbps && nearest && used && map->distance ? UCCL_OK : UCCL_ENOMEM;
    if (error)
        goto out;
    for (unsigned d = 0; d < map->devices; d++) {
        struct uccl_device device = {0};
        union nic_address address;
        engine->nic->ops->device(engine->nic, (int)d, &device, &address);
        speed_mbps[d] = device.speed_mbps;
        for (unsigned g = 0; g < map->gpus; g++)
            map->distance[g * map->devices + d] = topology_distance(topology, map->gpu[g].pci, device.name);
    }
    topology_share(map->distance, map->gpus, speed_mbps, map->devices, nearest);
    error = share_ends(map, engine, speed_mbps, used);
    if (error)
        goto out;
    for (unsigned g = 0; g < map->gpus; g++) {
        map->gpu[g].numa_node = topology_node(topology, map->gpu[g].pci);
        map->gpu[g].nearest_device = nearest[g];
        map->gpu[g].used_device = used[g];
        char why[DIRECT_WHY_TEXT];
        unsigned index = engine->nic->memory && used[g] > 0 ? (unsigned)used[g] : 0; /* each device is a NIC */
        bool direct = direct_allowed(&engine->direct, index, map->gpu[g].pci, why);
        snprintf(map->gpu[g].reached, sizeof map->gpu[g].reached,
                 direct ? "direct, where it can be registered" : "staged: %.100s", why);
    }
out:
    free(speed_mbps);
    free(nearest);
    free(used);
    return error;
}

static int make_map(struct uccl_engine *engine, struct gpu_map **out)
{
    struct gpu_map *map = calloc(1, sizeof *map);
    if (!map)
        return UCCL_ENOMEM;
    int devices = engine->nic->ops->device_count(engine->nic);
    map->devices = devices > 0 ? (unsigned)devices : 0;
    int error = list_gpus(map, UCCL_MEM_CUDA);
    if (!error)
        error = list_gpus(map, UCCL_MEM_HIP);
    if (!error && map->gpus)
        error = measure(map, engine);
    if (error) {
        gpu_map_free(map);
        return error;
    }
    *out = map;
    return UCCL_OK;
}

/* 0, and `*out` belongs to the engine. */
static int get_map(uccl_engine *engine, const struct gpu_map **out)
{
    if (!engine)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    pthread_mutex_lock(&engine->lock);
    int error = engine->gpus ? UCCL_OK : make_map(engine, &engine->gpus);
    *out = engine->gpus;
    pthread_mutex_unlock(&engine->lock);
    return error;
}

UCCL_API int uccl_gpu_count(uccl_engine *engine)
{
    const struct gpu_map *map;
    int error = get_map(engine, &map);
    return error ? error : (int)map->gpus;
}

UCCL_API int uccl_gpu_get(uccl_engine *engine, int gpu, struct uccl_gpu *out)
{
    const struct gpu_map *map;
    int error = out ? get_map(engine, &map) : UCCL_EINVAL;
    if (error)
        return error;
    if (gpu < 0 || (unsigned)gpu >= map->gpus)
        return UCCL_ENODEV;
    *out = map->gpu[gpu];
    return UCCL_OK;
}

UCCL_API const char *uccl_distance_name(int distance)
{
    return topology_distance_name(distance);
}

UCCL_API int uccl_gpu_distance(uccl_engine *engine, int gpu, int device)
{
    const struct gpu_map *map;
    int error = get_map(engine, &map);
    if (error)
        return error;
    if (gpu < 0 || (unsigned)gpu >= map->gpus || device < 0 || (unsigned)device >= map->devices)
        return UCCL_ENODEV;
    return (int)map->distance[(unsigned)gpu * map->devices + (unsigned)device];
}
