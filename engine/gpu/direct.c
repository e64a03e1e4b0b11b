/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the NIC reaches memory of a GPU by itself (GPUDirect RDMA), and its registration there.
 *
 * One for each range that is registered, since peers may write to whatever a grant's key reaches: not to the rest of
 * the allocation, which an application's allocator may have given to others. It is shared by all registrations of just
 * this range and ended with the last of them: unlike the region it is not kept for the next one, since the
 * allocation's pages could not be freed meanwhile. Which way works depends on how the allocation was made, and is
 * found out anew.
 *
 * Thread: any; under the engine's lock.
 */
#include "gpu/direct.h"

#include "base/config.h"
#include "base/log.h"
#include "base/topology.h"
#include "nic/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEVEL_TEXT = 8 }; /* a word of UCCL_GDR_LEVEL */

static void say(char why[DIRECT_WHY_TEXT], const char *text)
{
    snprintf(why, DIRECT_WHY_TEXT, "%s", text);
}

/* The distance of a GPU to the NIC; the topology is looked at once per engine, for up to a second. */
static enum uccl_distance distance_of(struct uccl_engine *engine, const char *pci)
{
    struct uccl_device device = {0};
    uccl_device_get(engine, BACKEND_DEVICE, &device);
    return topology_distance(engine_topology(engine), pci, device.name);
}

/* ---- what may be ----------------------------------------------------------------------------- */

bool direct_allowed(struct uccl_engine *engine, const char *pci, char why[DIRECT_WHY_TEXT])
{
    const struct params *params = &engine->params;
    if (!engine->nic->caps(engine->device)->places_payload) {
        say(why, "the NIC places no payload");
        return false;
    }
    if (params->gdr == GDR_OFF || params->gdr_level == GDR_LEVEL_LOC) {
        say(why, params->gdr == GDR_OFF ? "UCCL_GDR=off" : "UCCL_GDR_LEVEL=loc");
        return false;
    }
    if (params->gdr_level == GDR_LEVEL_SYS)
        return true;
    enum uccl_distance distance = distance_of(engine, pci);
    /* levels count from loc, distances from PIX, which is one further */
    if (distance != UCCL_DISTANCE_UNKNOWN && (unsigned)distance + 1 <= params->gdr_level)
        return true;
    char level[LEVEL_TEXT];
    config_format(params, offsetof(struct params, gdr_level), level, sizeof level);
    snprintf(why, DIRECT_WHY_TEXT, "the distance to the NIC is %s, beyond UCCL_GDR_LEVEL=%s",
             uccl_distance_name((int)distance), level);
    return false;
}

/* ---- registration ---------------------------------------------------------------------------- */

/* By the dma-buf that the application has. */
static bool by_given(struct uccl_engine *engine, struct nic_device_memory memory, const struct direct_dmabuf *dmabuf,
                     struct direct *direct, char why[NIC_WHY_TEXT])
{
    memory.dmabuf_fd = dmabuf->fd;
    memory.offset_bytes = dmabuf->offset_bytes;
    return engine->nic->reg_device(engine->device, &memory, &direct->nic, why) == UCCL_OK;
}

/* By one of our own. Only whole pages can be exported; the NIC takes of them what is registered. */
static bool by_dmabuf(struct uccl_engine *engine, const struct mem_identity *is, struct nic_device_memory memory,
                      struct direct *direct, char why[NIC_WHY_TEXT])
{
    _Static_assert((int)NIC_WHY_TEXT == (int)MEM_WHY_TEXT, "one text for both");
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = memory.address / page * page;
    uintptr_t to = (memory.address + memory.length + page - 1) / page * page;
    if (is->ops->export_dmabuf(is, from, to - from, &memory.dmabuf_fd, &memory.offset_bytes, why))
        return false;
    memory.offset_bytes += memory.address - from;
    int error = engine->nic->reg_device(engine->device, &memory, &direct->nic, why);
    close(memory.dmabuf_fd); /* the registration has a reference of its own */
    return error == UCCL_OK;
}

static bool by_address(struct uccl_engine *engine, struct nic_device_memory memory, struct direct *direct,
                       char why[NIC_WHY_TEXT])
{
    return engine->nic->reg_device(engine->device, &memory, &direct->nic, why) == UCCL_OK;
}

static void try_ways(struct uccl_engine *engine, const struct mem_region *region, const struct direct_dmabuf *dmabuf,
                     struct direct *direct)
{
    unsigned way = engine->params.gdr;
    struct nic_device_memory memory = {.address = direct->address, .length = direct->length, .dmabuf_fd = -1};
    char no_dmabuf[NIC_WHY_TEXT] = "", no_address[NIC_WHY_TEXT] = "";
    if (way != GDR_PEERMEM && (dmabuf ? by_given(engine, memory, dmabuf, direct, no_dmabuf)
                                      : by_dmabuf(engine, &region->is, memory, direct, no_dmabuf))) {
        say(direct->why, "direct, as a dma-buf");
        return;
    }
    if (way != GDR_DMABUF && by_address(engine, memory, direct, no_address)) {
        snprintf(direct->why, sizeof direct->why, "direct, as peer memory%s%s", *no_dmabuf ? "; dma-buf: " : "",
                 no_dmabuf);
        return;
    }
    snprintf(direct->why, sizeof direct->why, "staged: %s%s%s", no_dmabuf, *no_dmabuf && *no_address ? "; " : "",
             no_address);
}

static void tell_once(struct uccl_engine *engine, const struct mem_region *region, const struct direct *direct)
{
    bool *told = direct->nic.handle ? &engine->told_direct : &engine->told_staged;
    if (!*told)
        LOG_INFORM("memory of %s device %d (%s) is %s", region->is.ops->name, region->is.device,
                   *region->is.pci ? region->is.pci : "no PCI address", direct->why);
    *told = true;
}

static struct direct *make(struct uccl_engine *engine, const struct uccl_mr *mr, const struct direct_dmabuf *dmabuf)
{
    char why[DIRECT_WHY_TEXT];
    const struct mem_region *region = mr->region;
    struct direct *direct = calloc(1, sizeof *direct);
    if (!direct)
        return NULL;
    direct->address = (uintptr_t)mr->address;
    direct->length = mr->length;
    if (region->is.managed)
        say(direct->why, "staged: managed memory moves between device and host");
    else if (mr->length == 0)
        say(direct->why, "staged: no bytes");
    else if (direct_allowed(engine, region->is.pci, why))
        try_ways(engine, region, dmabuf, direct);
    else
        snprintf(direct->why, sizeof direct->why, "staged: %.200s", why);
    tell_once(engine, region, direct);
    return direct;
}

/* Whether a registration may share it: where none worked, that of a dma-buf may. */
static bool serves(const struct direct *direct, const struct uccl_mr *mr, const struct direct_dmabuf *dmabuf)
{
    return direct->address == (uintptr_t)mr->address && direct->length == mr->length && (direct->nic.handle || !dmabuf);
}

int direct_get(struct uccl_engine *engine, struct uccl_mr *mr, const struct direct_dmabuf *dmabuf)
{
    struct direct *direct = mr->region->direct;
    while (direct && !serves(direct, mr, dmabuf))
        direct = direct->next;
    if (!direct) {
        direct = make(engine, mr, dmabuf);
        if (!direct)
            return UCCL_ENOMEM;
        direct->next = mr->region->direct;
        mr->region->direct = direct;
    }
    direct->users++;
    mr->direct = direct;
    mr->nic = direct->nic;
    return UCCL_OK;
}

void direct_put(struct uccl_engine *engine, struct uccl_mr *mr)
{
    struct direct *direct = mr->direct, **link = &mr->region->direct;
    if (!direct)
        return;
    mr->direct = NULL;
    mr->nic.handle = mr->nic.flush_handle = NULL; /* they are the range's */
    if (--direct->users)
        return;
    engine->nic->dereg_mr(engine->device, &direct->nic);
    while (*link != direct)
        link = &(*link)->next;
    *link = direct->next;
    free(direct);
}
