/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/direct.h"

#include "base/config.h"
#include "base/log.h"
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

static void device_of(const struct direct *direct, unsigned index, struct uccl_device *out)
{
    union nic_address address;
    memset(out, 0, sizeof *out);
    direct->nic->ops->device(
        direct->nic, direct->nic->ends ? direct->nic->ends->device(direct->nic, index) : BACKEND_DEVICE, out, &address);
}

/* The distance of a GPU to a NIC. The first look at the machine takes up to a second. */
static enum uccl_distance distance_of(struct direct *direct, unsigned index, const char *pci)
{
    struct uccl_device properties;
    device_of(direct, index, &properties);
    return topology_distance(topology_get(direct->machine), pci, properties.name);
}

/* ---- permission ------------------------------------------------------------------------------ */

bool direct_allowed(struct direct *direct, unsigned index, const char *pci, char why[DIRECT_WHY_TEXT])
{
    const struct params *params = direct->params;
    if (!direct->nic->memory) {
        say(why, "the NIC places no payload");
        return false;
    }
    if (params->gdr == GDR_OFF || params->gdr_level == GDR_LEVEL_LOC) {
        say(why, params->gdr == GDR_OFF ? "UCCL_GDR=off" : "UCCL_GDR_LEVEL=loc");
        return false;
    }
    if (params->gdr_level == GDR_LEVEL_SYS)
        return true;
    enum uccl_distance distance = distance_of(direct, index, pci);
    /* levels count from `loc`, distances from PIX, which is one further away */
    if (distance != UCCL_DISTANCE_UNKNOWN && (unsigned)distance + 1 <= params->gdr_level)
        return true;
    char level[LEVEL_TEXT];
    config_format(params, offsetof(struct params, gdr_level), level, sizeof level);
    snprintf(why, DIRECT_WHY_TEXT, "the distance to the NIC is %s, beyond UCCL_GDR_LEVEL=%s",
             topology_distance_name((int)distance), level);
    return false;
}

/* ---- registration ---------------------------------------------------------------------------- */

/* Registers by the dma-buf that the application has given. */
static bool by_given(struct direct *direct, struct nic_device_memory memory, const struct direct_dmabuf *dmabuf,
                     struct nic_mr *out, char why[NIC_WHY_TEXT])
{
    memory.dmabuf_fd = dmabuf->fd;
    memory.offset_bytes = dmabuf->offset_bytes;
    return direct->nic->memory->reg_device(direct->nic, out->nic, &memory, out, why) == UCCL_OK;
}

/* Registers by a dma-buf that we export. It covers whole pages, of which the NIC takes just the range. */
static bool by_dmabuf(struct direct *direct, const struct mem_identity *is, struct nic_device_memory memory,
                      struct nic_mr *out, char why[NIC_WHY_TEXT])
{
    _Static_assert((int)NIC_WHY_TEXT == (int)MEM_WHY_TEXT, "one text for both");
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = memory.address / page * page;
    uintptr_t to = (memory.address + memory.length + page - 1) / page * page;
    if (is->ops->export_dmabuf(is, from, to - from, &memory.dmabuf_fd, &memory.offset_bytes, why))
        return false;
    memory.offset_bytes += memory.address - from;
    int error = direct->nic->memory->reg_device(direct->nic, out->nic, &memory, out, why);
    close(memory.dmabuf_fd); /* the registration has a reference of its own */
    return error == UCCL_OK;
}

static bool by_address(struct direct *direct, struct nic_device_memory memory, struct nic_mr *out,
                       char why[NIC_WHY_TEXT])
{
    return direct->nic->memory->reg_device(direct->nic, out->nic, &memory, out, why) == UCCL_OK;
}

/* With the NIC that `out` names. */
static void try_ways(struct direct *direct, const struct mem_region *region, const struct direct_dmabuf *dmabuf,
                     const struct direct_range *range, struct nic_mr *out, char why[DIRECT_WHY_TEXT])
{
    unsigned way = direct->params->gdr;
    struct nic_device_memory memory = {.address = range->address, .length = range->length, .dmabuf_fd = -1};
    char no_dmabuf[NIC_WHY_TEXT] = "", no_address[NIC_WHY_TEXT] = "";
    if (way != GDR_PEERMEM && (dmabuf ? by_given(direct, memory, dmabuf, out, no_dmabuf)
                                      : by_dmabuf(direct, &region->is, memory, out, no_dmabuf))) {
        say(why, "direct, as a dma-buf");
        return;
    }
    if (way != GDR_DMABUF && by_address(direct, memory, out, no_address)) {
        snprintf(why, DIRECT_WHY_TEXT, "direct, as peer memory%s%s", *no_dmabuf ? "; dma-buf: " : "", no_dmabuf);
        return;
    }
    snprintf(why, DIRECT_WHY_TEXT, "staged: %s%s%s", no_dmabuf, *no_dmabuf && *no_address ? "; " : "", no_address);
}

static bool is_direct(const struct direct_range *range)
{
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++)
        if (range->nic[i].handle)
            return true;
    return false;
}

static void tell_once(struct direct *direct, const struct mem_region *region, const struct direct_range *range)
{
    bool *told = is_direct(range) ? &direct->told_direct : &direct->told_staged;
    if (!*told)
        LOG_INFORM("memory of %s device %d (%s) is %s", region->is.ops->name, region->is.device,
                   *region->is.pci ? region->is.pci : "no PCI address", range->why);
    *told = true;
}

/* Registers with one NIC, where it may and can. */
static void join_nic(struct direct *direct, const struct mem_region *region, const struct direct_dmabuf *dmabuf,
                     struct direct_range *range, unsigned index, char why[DIRECT_WHY_TEXT])
{
    char refused[DIRECT_WHY_TEXT];
    range->nic[index].nic = (uint8_t)index;
    if (direct_allowed(direct, index, region->is.pci, refused))
        try_ways(direct, region, dmabuf, range, &range->nic[index], why);
    else
        snprintf(why, DIRECT_WHY_TEXT, "staged: %.200s", refused);
}

static void join_nics(struct direct *direct, const struct mem_region *region, const struct direct_dmabuf *dmabuf,
                      struct direct_range *range)
{
    char why[NIC_PLACERS_MAX][DIRECT_WHY_TEXT];
    unsigned count = nic_placers(direct->nic);
    bool alike = true;
    join_nic(direct, region, dmabuf, range, 0, why[0]);
    for (unsigned i = 1; i < count; i++) {
        join_nic(direct, region, dmabuf, range, i, why[i]);
        alike = alike && strcmp(why[i], why[0]) == 0;
    }
    say(range->why, why[0]);
    for (unsigned i = 0, used = 0; i < count && !alike && used < sizeof range->why; i++) {
        struct uccl_device device;
        device_of(direct, i, &device);
        used += (unsigned)snprintf(range->why + used, sizeof range->why - used, "%s%s %s", i ? "; " : "", device.name,
                                   why[i]);
    }
}

static struct direct_range *range_make(struct direct *direct, const struct mem_region *region, const void *address,
                                       size_t length, const struct direct_dmabuf *dmabuf)
{
    struct direct_range *range = calloc(1, sizeof *range);
    if (!range)
        return NULL;
    range->address = (uintptr_t)address;
    range->length = length;
    if (region->is.managed)
        say(range->why, "staged: managed memory moves between device and host");
    else if (length == 0)
        say(range->why, "staged: no bytes");
    else
        join_nics(direct, region, dmabuf, range);
    tell_once(direct, region, range);
    return range;
}

/* Whether a registration may share it. A dma-buf of its own may help where the range is staged. */
static bool serves(const struct direct_range *range, const void *address, size_t length,
                   const struct direct_dmabuf *dmabuf)
{
    return range->address == (uintptr_t)address && range->length == length && (is_direct(range) || !dmabuf);
}

int direct_get(struct direct *direct, struct mem_region *region, const void *address, size_t length,
               const struct direct_dmabuf *dmabuf, struct direct_range **out)
{
    struct direct_range *range = region->ranges;
    while (range && !serves(range, address, length, dmabuf))
        range = range->next;
    if (!range) {
        range = range_make(direct, region, address, length, dmabuf);
        if (!range)
            return UCCL_ENOMEM;
        range->next = region->ranges;
        region->ranges = range;
    }
    range->users++;
    *out = range;
    return UCCL_OK;
}

void direct_put(struct direct *direct, struct mem_region *region, struct direct_range *range)
{
    struct direct_range **link = &region->ranges;
    if (--range->users)
        return;
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++)
        if (range->nic[i].handle)
            direct->nic->memory->dereg_mr(direct->nic, &range->nic[i]);
    while (*link != range)
        link = &(*link)->next;
    *link = range->next;
    free(range);
}
