/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NICs, by the same rules as the engine's: verbs ports where a usable one exists, else network interfaces. Of these
 * NCCL gets all that the user has named, or those that are fittest: with a network card no bridge, with a bridge no
 * loopback. NCCL itself chooses among the devices, by speed and by distance from each GPU.
 *
 * GPU memory is offered only where a NIC reaches it, and only if NCCL is to use no protocol but Simple: what a GPU may
 * see of a pending receive is promised for host memory alone (requests.c).
 */
#include "plugin.h"

#include <limits.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEVICES_MAX = 127, /* NCCL has arrays of 128, and does not look */
    /* Of a link whose speed nobody knows. For one GPU NCCL takes two channels up to 200 Gbit/s, which carry 10 GB/s at
     * most over this plugin, and four here. */
    UNKNOWN_MBPS = 400000,
    GONE_MBPS = 1, /* so that NCCL takes another one */
    COMMS_MAX = 65536,
    MESSAGE_BYTES_MAX = 1 << 30, /* sizes of what has arrived are ints */
};

/* Half a round trip between hosts next to each other, in us: NCCL adds it to what it knows of its protocols. */
static const float LATENCY_UDP_US = 5, LATENCY_VERBS_US = 2;

enum reach { REACH_UNKNOWN, REACH_HOST, REACH_GPU };

struct listed {
    struct device device;
    atomic_int reach; /* enum reach, once somebody has asked */
    int rank;
    bool gone; /* it was there at an earlier look: see keep_gone() */
};

/* A list is never changed nor freed, since NCCL has its names: one that is no longer right stays behind. */
struct list {
    struct list *older;
    int count; /* with those that are gone */
    int there; /* they are the first */
    struct listed at[];
};
static _Atomic(struct list *) current;

/* ---- the list --------------------------------------------------------------------------------- */

struct gathering {
    struct list *list;
    bool failed; /* out of memory */
};

static struct listed *one_more(struct gathering *gathering)
{
    int count = gathering->list ? gathering->list->count : 0;
    if (count == DEVICES_MAX || gathering->failed)
        return NULL;
    struct list *list = realloc(gathering->list, sizeof *list + ((size_t)count + 1) * sizeof list->at[0]);
    if (!list) {
        gathering->failed = true;
        return NULL;
    }
    gathering->list = list;
    list->count = count + 1;
    list->older = NULL;
    memset(&list->at[count], 0, sizeof list->at[count]);
    return &list->at[count];
}

static void gather_port(void *user, const struct uccl_verbs_port *port)
{
    struct listed *listed = port->usable ? one_more(user) : NULL;
    if (!listed)
        return;
    struct device *device = &listed->device;
    snprintf(device->name, sizeof device->name, "%.31s:%u", port->device, port->port);
    snprintf(device->mode, sizeof device->mode, "%.7s", port->mode);
    device->verbs = true;
    device->port = (int)port->port;
    device->speed_mbps = port->speed_mbps;
    device->guid = sys_number("/sys/class/infiniband", port->device, "node_guid");
    sys_pci_path("/sys/class/infiniband", port->device, device->pci_path);
}

static void gather_interface(void *user, const struct uccl_interface *interface)
{
    struct listed *listed = one_more(user);
    if (!listed)
        return;
    struct device *device = &listed->device;
    snprintf(device->name, sizeof device->name, "%s", interface->name);
    snprintf(device->address, sizeof device->address, "%s", interface->address);
    device->port = 1;
    device->speed_mbps = interface->speed_mbps;
    /* what shares a card's address, such as VLANs, differs in the number; a container's /sys may tell nothing */
    uint64_t number = if_nametoindex(interface->name);
    device->guid = sys_number("/sys/class/net", interface->name, "address") ^ number << 48;
    sys_pci_path("/sys/class/net", interface->name, device->pci_path);
    listed->rank = interface->rank;
}

/* Whether UCCL_SOCKET_IFNAME asks for interfaces: not if it is empty, or if all its items exclude. */
static bool asks_for_some(const char *filter)
{
    size_t marks = strspn(filter, "^="); /* which hold for all items */
    bool all_exclude = memchr(filter, '^', marks) != NULL;
    for (filter += marks; *filter; filter += *filter == ',') {
        const char *item = filter + strspn(filter, "^= ");
        bool excludes = all_exclude || memchr(filter, '^', (size_t)(item - filter));
        if (!excludes && *item && *item != ',')
            return true;
        filter = item + strcspn(item, ",");
    }
    return false;
}

/* Interfaces come best first: what is as good as the first, unless the user has named some. */
static void keep_fittest(struct list *list)
{
    char filter[256] = "";
    if (!list || (parameter("UCCL_SOCKET_IFNAME", filter, sizeof filter) > 0 && asks_for_some(filter)))
        return;
    for (int i = 1; i < list->count; i++) {
        if (list->at[i].rank != list->at[0].rank)
            list->count = i;
    }
}

/* Why there is none. `status` is that of the last look, `why` what it said of verbs. */
static const char *why_none(const struct gathering *gathering, const char *backend, int status, const char *why)
{
    if (gathering->failed)
        return "out of memory";
    if (status == UCCL_EINVAL)
        return "a parameter is not allowed (its own warning names it)";
    if (strcmp(backend, "verbs") == 0)
        return *why ? why : "no verbs port is usable (UCCL_IB_HCA)";
    return status < 0 ? uccl_strerror(status) : "no network interface is up and admitted by UCCL_SOCKET_IFNAME";
}

static struct list *gather(void)
{
    struct gathering gathering = {0};
    int status = UCCL_OK;
    char backend[16] = "auto", why[256] = "";
    int set = parameter("UCCL_BACKEND", backend, sizeof backend);
    bool tcp = strcmp(backend, "tcp") == 0;
    if (set < 0)
        status = set;
    else if (!tcp && strcmp(backend, "udp") != 0)
        status = uccl_verbs_ports(NULL, gather_port, &gathering, why, sizeof why);
    bool refused = set < 0 || status == UCCL_EINVAL; /* it would be said once more */
    if (!gathering.list && !refused && strcmp(backend, "verbs") != 0) {
        status = uccl_interfaces(NULL, gather_interface, &gathering);
        keep_fittest(gathering.list);
    }
    for (int i = 0; gathering.list && i < gathering.list->count; i++)
        gathering.list->at[i].device.tcp = tcp;
    if (!gathering.list)
        WARN("no device: %s", why_none(&gathering, backend, status, why));
    return gathering.list;
}

static bool has_device(const struct list *list, const char *name)
{
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->at[i].device.name, name) == 0)
            return true;
    }
    return false;
}

/*
 * NCCL may keep the number of devices that it was told at first, and ask for the properties of so many: 2.24 and 2.25
 * do for good, later ones with NCCL_NET_PLUGIN_REF_COUNT=1. So a list does not become shorter: devices that are gone
 * follow those that are there.
 */
static struct list *keep_gone(struct list *list, const struct list *before)
{
    struct gathering gathering = {.list = list};
    list->there = list->count;
    for (int i = 0; before && i < before->count && gathering.list->count < before->count; i++) {
        struct listed *listed = has_device(gathering.list, before->at[i].device.name) ? NULL : one_more(&gathering);
        if (listed) {
            listed->device = before->at[i].device;
            listed->gone = true;
        }
    }
    return gathering.list;
}

static bool same_devices(const struct list *a, const struct list *b)
{
    bool same = a && b && a->count == b->count && a->there == b->there;
    for (int i = 0; same && i < a->count; i++)
        same = memcmp(&a->at[i].device, &b->at[i].device, sizeof a->at[i].device) == 0;
    return same;
}

void devices_look(void)
{
    static struct list none;
    struct list *list = gather(), *before = atomic_load(&current);
    if (!list) {
        if (before && before->there) {
            none.older = before;
            atomic_store(&current, &none);
        }
        return;
    }
    for (int i = 0; i < list->count; i++)
        INFO("device %d: %s, %s%s, %llu Mbit/s%s", i, list->at[i].device.name,
             list->at[i].device.verbs ? "verbs "
             : list->at[i].device.tcp ? "TCP from "
                                      : "UDP from ",
             list->at[i].device.verbs ? list->at[i].device.mode : list->at[i].device.address,
             (unsigned long long)list->at[i].device.speed_mbps, list->at[i].device.speed_mbps ? "" : " (unknown)");
    list = keep_gone(list, before == &none ? none.older : before);
    if (same_devices(list, before)) {
        free(list);
        return;
    }
    list->older = before;
    atomic_store(&current, list);
}

int devices_count(void)
{
    const struct list *list = atomic_load(&current);
    return list ? list->there : 0;
}

static struct listed *listed_at(int index)
{
    struct list *list = atomic_load(&current);
    return list && index >= 0 && index < list->count ? &list->at[index] : NULL;
}

const struct device *devices_get(int index)
{
    const struct listed *listed = listed_at(index);
    return listed ? &listed->device : NULL;
}

/* ---- what they can ---------------------------------------------------------------------------- */

static bool has_gpus(void)
{
    char text[256];
    return uccl_mem_status(UCCL_MEM_CUDA, text, sizeof text) == UCCL_OK ||
           uccl_mem_status(UCCL_MEM_HIP, text, sizeof text) == UCCL_OK;
}

/*
 * Whether the NIC reaches the memory of GPUs: of one at least, and of each that NCCL counts as near (PXB). It takes an
 * engine to find out.
 */
static bool reaches_gpus(const struct device *device)
{
    struct uccl_gpu gpu;
    uccl_engine *engine;
    uccl_config *config;
    bool some = false, all = true;
    if (engine_config(device, NCCL_NET_UNDEFINED, &config) != UCCL_OK)
        return false;
    process_engines(1);
    if (uccl_open(config, &engine) == UCCL_OK) {
        for (int i = 0; uccl_gpu_get(engine, i, &gpu) == UCCL_OK; i++) {
            bool direct = strncmp(gpu.reached, "direct", strlen("direct")) == 0;
            some |= direct;
            all &= direct || uccl_gpu_distance(engine, i, 0) > UCCL_DISTANCE_PXB;
        }
        uccl_close(engine);
    }
    process_engines(-1);
    uccl_config_destroy(config);
    return some && all;
}

static bool offers_gpu_memory(struct listed *listed)
{
    int reach = atomic_load(&listed->reach);
    if (listed->gone || !listed->device.verbs || strcmp(listed->device.mode, "UD") == 0 || !requests_simple_only())
        return false;
    if (reach == REACH_UNKNOWN) {
        reach = has_gpus() && reaches_gpus(&listed->device) ? REACH_GPU : REACH_HOST;
        atomic_store(&listed->reach, reach);
    }
    return reach == REACH_GPU;
}

static int speed_of(const struct device *device)
{
    char text[32] = "";
    uint64_t mbps = device->speed_mbps;
    if (parameter("UCCL_LINK_GBPS", text, sizeof text) > 0 && strtoull(text, NULL, 10) > 0)
        mbps = strtoull(text, NULL, 10) * 1000;
    return mbps > 0 && mbps <= INT_MAX ? (int)mbps : UNKNOWN_MBPS;
}

enum nccl_result devices_properties(int index, struct nccl_net_properties_v12 *out)
{
    struct listed *listed = listed_at(index);
    if (!listed)
        return NCCL_INVALID_ARGUMENT;
    const struct device *device = &listed->device;
    bool gpu = offers_gpu_memory(listed);
    *out = (struct nccl_net_properties_v12){
        .name = (char *)(uintptr_t)device->name,
        .pciPath = device->pci_path[0] ? (char *)(uintptr_t)device->pci_path : NULL,
        .guid = device->guid,
        .ptrSupport = gpu ? NCCL_PTR_HOST | NCCL_PTR_CUDA | NCCL_PTR_DMABUF : NCCL_PTR_HOST,
        .regIsGlobal = 0, /* the engines of two traffic classes share none; equal registrations share what they can */
        .forceFlush = gpu,
        .speed = listed->gone ? GONE_MBPS : speed_of(device),
        .port = device->port,
        .latency = device->verbs ? LATENCY_VERBS_US : LATENCY_UDP_US,
        .maxComms = COMMS_MAX,
        .maxRecvs = 1,
        .netDeviceType = NCCL_NET_DEVICE_HOST,
        .netDeviceVersion = 0,
        .vProps = {.ndevs = 1, .devs = {index}},
        .maxP2pBytes = MESSAGE_BYTES_MAX,
        .maxCollBytes = MESSAGE_BYTES_MAX,
        .maxMultiRequestSize = 1,
        .railId = NCCL_NET_UNDEFINED,
        .planeId = NCCL_NET_UNDEFINED,
    };
    return NCCL_SUCCESS;
}
