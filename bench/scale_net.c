/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link is a queue whose packets leave one after the other, so the time at which a packet leaves
 * is known when it enters: one event per packet and link, none for the queue itself. Packets live
 * in two pools, which grow and never shrink; events in a heap with four children per node.
 */
#include "scale_net.h"

#include "tool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void *allocated(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        tool_fail("no memory for %zu times %zu bytes", count, size);
    return memory;
}

/* ---- the tree -------------------------------------------------------------------------------- */

/*
 * Links by group: up from host h; down to host h; between rack switch t (counted over all pods) and
 * the a-th aggregation switch of its pod, up and down; between aggregation switch g (likewise) and
 * its i-th core, up and down.
 */
static uint32_t host_link(const struct net *net, enum link_group group, uint32_t host)
{
    return net->first[group] + host;
}

static uint32_t tor_link(const struct net *net, uint32_t tor, uint32_t agg, bool down)
{
    return net->first[LINK_TOR] + 2 * (tor * net->half + agg) + down;
}

static uint32_t agg_link(const struct net *net, uint32_t agg, uint32_t core, bool down)
{
    return net->first[LINK_AGG] + 2 * (agg * net->cores_per_agg + core) + down;
}

static uint32_t tor_of(const struct net *net, uint32_t host)
{
    return host / net->half;
}

static uint32_t pod_of(const struct net *net, uint32_t host)
{
    return host / (net->half * net->half);
}

void net_create(struct net *net, uint32_t nodes, uint32_t oversubscription, uint64_t seed)
{
    *net = (struct net){.k = 2, .rng = {seed}};
    while ((uint64_t)net->k * net->k * net->k / 4 < nodes)
        net->k += 2;
    net->half = net->k / 2;
    net->hosts = net->k * net->half * net->half;
    net->cores_per_agg = net->half / oversubscription;
    if (net->cores_per_agg == 0)
        tool_fail("aggregation switches with %" PRIu32 " uplinks cannot be oversubscribed %" PRIu32 " times", net->half,
                  oversubscription);
    net->hash_seed = rng_next(&net->rng);
    uint32_t switches = net->k * net->half;
    uint32_t groups[LINK_GROUPS] = {net->hosts, net->hosts, 2 * switches * net->half,
                                    2 * switches * net->cores_per_agg};
    for (unsigned i = 0; i < LINK_GROUPS; i++)
        net->first[i + 1] = net->first[i] + groups[i];
    net->link_count = net->first[LINK_GROUPS];
    net->links = allocated(net->link_count, sizeof *net->links);
    for (uint32_t i = 0; i < net->link_count; i++)
        net->links[i].ps_per_byte = MODEL_PS_PER_BYTE;
    for (uint32_t i = 0; i < net->hosts; i++)
        net->links[host_link(net, LINK_HOST_DOWN, i)].host = true;
    net->pools[0].bytes = PACKET_SMALL_BYTES;
    net->pools[1].bytes = PACKET_LARGE_BYTES;
}

void net_destroy(struct net *net)
{
    free(net->links);
    free(net->heap);
    for (unsigned i = 0; i < PACKET_CLASSES; i++)
        free(net->pools[i].memory);
}

static void set_both(struct net *net, uint32_t up, unsigned quarters)
{
    for (uint32_t i = up; i < up + 2; i++)
        net->links[i].ps_per_byte = quarters ? MODEL_PS_PER_BYTE * MODEL_DEGRADED / quarters : 0;
}

bool net_set_link(struct net *net, const struct failure *link, unsigned quarters)
{
    uint32_t switches = net->k * net->half;
    switch (link->tier) {
    case TIER_TOR:
        if (link->switch_id >= switches || link->link >= net->half)
            return false;
        set_both(net, tor_link(net, link->switch_id, link->link, false), quarters);
        return true;
    case TIER_AGG:
        if (link->switch_id >= switches || link->link >= net->cores_per_agg)
            return false;
        set_both(net, agg_link(net, link->switch_id, link->link, false), quarters);
        return true;
    case TIER_CORE:
        if (link->switch_id >= net->half * net->cores_per_agg || link->link >= net->k)
            return false;
        set_both(net,
                 agg_link(net, link->link * net->half + link->switch_id / net->cores_per_agg,
                          link->switch_id % net->cores_per_agg, false),
                 quarters);
        return true;
    }
    return false;
}

void net_fail_links(struct net *net, uint32_t count, unsigned quarters)
{
    uint32_t racks = net->k * net->half;
    if (count > racks)
        tool_fail("%" PRIu32 " racks have no %" PRIu32 " uplinks to fail, one each", racks, count);
    uint32_t first = rng_below(&net->rng, racks);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t rack = (first + (uint32_t)((uint64_t)i * racks / count)) % racks;
        struct failure link = {TIER_TOR, rack, rng_below(&net->rng, net->half)};
        net_set_link(net, &link, quarters);
    }
}

/* How many links lie between two hosts: 2, 4 or 6. */
static unsigned distance_of(const struct net *net, uint32_t src, uint32_t dst)
{
    if (tor_of(net, src) == tor_of(net, dst))
        return 2;
    return pod_of(net, src) == pod_of(net, dst) ? 4 : 6;
}

/* ---- ideal ----------------------------------------------------------------------------------- */

/* Something that messages have to pass. */
struct cut {
    uint64_t bytes, base_ps, quarters;
};

static uint64_t quarters_of(const struct net *net, uint32_t link)
{
    uint32_t ps_per_byte = net->links[link].ps_per_byte;
    return ps_per_byte ? MODEL_PS_PER_BYTE * MODEL_DEGRADED / ps_per_byte : 0;
}

/* Takes a message into the cut; the bound for it and for all later ones, or UINT64_MAX. */
static uint64_t pass(struct cut *cut, const struct message *message, uint64_t base_ps)
{
    if (cut->bytes == 0 || base_ps < cut->base_ps)
        cut->base_ps = base_ps;
    cut->bytes += model_wire_bytes(message->bytes);
    if (cut->quarters == 0)
        return UINT64_MAX;
    return model_bound_ps(message->start_ps, cut->bytes, cut->quarters, cut->base_ps);
}

static int by_start_down(const void *a, const void *b)
{
    const struct message *const *first = a, *const *second = b;
    if ((*first)->start_ps != (*second)->start_ps)
        return (*first)->start_ps < (*second)->start_ps ? 1 : -1;
    return *first < *second ? -1 : 1;
}

enum { CUT_HOST, CUT_RACK, CUT_POD, CUT_TIERS };

/* The cuts of one direction, of all tiers one behind the other. */
static struct cut *make_cuts(const struct net *net, bool down, uint32_t first[CUT_TIERS])
{
    uint32_t racks = net->k * net->half;
    first[CUT_HOST] = 0;
    first[CUT_RACK] = net->hosts;
    first[CUT_POD] = net->hosts + racks;
    struct cut *cuts = allocated(net->hosts + racks + net->k, sizeof *cuts);
    for (uint32_t i = 0; i < net->hosts; i++)
        cuts[i].quarters = MODEL_DEGRADED;
    for (uint32_t rack = 0; rack < racks; rack++) {
        for (uint32_t i = 0; i < net->half; i++)
            cuts[first[CUT_RACK] + rack].quarters += quarters_of(net, tor_link(net, rack, i, down));
        for (uint32_t i = 0; i < net->cores_per_agg; i++) /* there are as many aggregation switches */
            cuts[first[CUT_POD] + rack / net->half].quarters += quarters_of(net, agg_link(net, rack, i, down));
    }
    return cuts;
}

uint64_t net_ideal_ps(const struct net *net, const struct matrix *matrix)
{
    const struct message **sorted = allocated(matrix->message_count, sizeof *sorted);
    uint64_t first_ps = UINT64_MAX, bound_ps = 0;
    bool known = true;
    for (uint32_t i = 0; i < matrix->message_count; i++) {
        sorted[i] = &matrix->messages[i];
        known = known && sorted[i]->trigger == 0;
        if (sorted[i]->start_ps < first_ps)
            first_ps = sorted[i]->start_ps;
    }
    qsort(sorted, matrix->message_count, sizeof *sorted, by_start_down);
    for (unsigned down = 0; down < 2; down++) {
        uint32_t first[CUT_TIERS];
        struct cut *cuts = make_cuts(net, down, first);
        for (uint32_t i = 0; i < matrix->message_count; i++) {
            const struct message *message = sorted[i];
            uint32_t host = down ? message->dst : message->src;
            uint32_t at[CUT_TIERS] = {host, tor_of(net, host), pod_of(net, host)};
            unsigned distance = distance_of(net, message->src, message->dst);
            uint64_t base_ps = model_base_ps(distance, message->bytes);
            for (unsigned tier = 0; tier < distance / 2; tier++) {
                uint64_t end_ps = pass(&cuts[first[tier] + at[tier]], message, base_ps);
                known = known && end_ps != UINT64_MAX;
                if (end_ps > bound_ps)
                    bound_ps = end_ps;
            }
        }
        free(cuts);
    }
    free(sorted);
    return known ? bound_ps - first_ps : 0;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool before(const struct event *a, const struct event *b)
{
    return a->at_ps != b->at_ps ? a->at_ps < b->at_ps : a->order < b->order;
}

void net_schedule(struct net *net, uint64_t at_ps, enum event_kind kind, uint32_t what)
{
    if (net->heap_count == net->heap_room) {
        net->heap_room = net->heap_room ? 2 * net->heap_room : 4096;
        net->heap = realloc(net->heap, net->heap_room * sizeof *net->heap);
        if (!net->heap)
            tool_fail("no memory for %zu events", net->heap_room);
    }
    struct event event = {at_ps, net->next_order++, what, kind};
    size_t i = net->heap_count++;
    for (; i > 0 && before(&event, &net->heap[(i - 1) / 4]); i = (i - 1) / 4)
        net->heap[i] = net->heap[(i - 1) / 4];
    net->heap[i] = event;
}

static struct event take_first(struct net *net)
{
    struct event *heap = net->heap, top = heap[0], last = heap[--net->heap_count];
    size_t i = 0, count = net->heap_count;
    for (;;) {
        size_t child = 4 * i + 1, end = child + 4 < count ? child + 4 : count;
        if (child >= count)
            break;
        size_t best = child;
        for (size_t c = child + 1; c < end; c++) {
            if (before(&heap[c], &heap[best]))
                best = c;
        }
        if (!before(&heap[best], &last))
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = last;
    return top;
}

/* ---- packets --------------------------------------------------------------------------------- */

/* The handle's low bit names the pool. */
struct packet *net_packet(const struct net *net, uint32_t handle)
{
    const struct packet_pool *pool = &net->pools[handle & 1];
    return (struct packet *)(pool->memory + (size_t)(handle >> 1) * pool->bytes);
}

uint32_t net_new_packet(struct net *net, uint32_t header_bytes)
{
    uint32_t class = sizeof(struct packet) + header_bytes > PACKET_SMALL_BYTES;
    struct packet_pool *pool = &net->pools[class];
    if (sizeof(struct packet) + header_bytes > pool->bytes)
        tool_fail("a header of %" PRIu32 " bytes is too long for a packet", header_bytes);
    if (pool->free_head) {
        uint32_t handle = (pool->free_head - 1) << 1 | class;
        pool->free_head = net_packet(net, handle)->next_free;
        return handle;
    }
    if (pool->used == pool->room) {
        pool->room = pool->room ? 2 * pool->room : 1024;
        pool->memory = realloc(pool->memory, (size_t)pool->room * pool->bytes);
        if (!pool->memory)
            tool_fail("no memory for %" PRIu32 " packets", pool->room);
    }
    return pool->used++ << 1 | class;
}

void net_free_packet(struct net *net, uint32_t handle)
{
    struct packet_pool *pool = &net->pools[handle & 1];
    net_packet(net, handle)->next_free = pool->free_head;
    pool->free_head = (handle >> 1) + 1;
}

static uint64_t mix(uint64_t z)
{
    struct rng rng = {z};
    return rng_next(&rng);
}

/* The links from host to host; ECMP chooses the aggregation switch and the core. */
static void route(const struct net *net, struct packet *packet, uint32_t src, uint32_t dst, uint32_t path)
{
    uint32_t src_tor = tor_of(net, src), dst_tor = tor_of(net, dst);
    uint32_t src_pod = pod_of(net, src), dst_pod = pod_of(net, dst);
    uint64_t hash = mix(mix(net->hash_seed ^ ((uint64_t)src << 32 | dst)) ^ path);
    uint32_t agg = (uint32_t)((hash & UINT32_MAX) * net->half >> 32);
    uint32_t core = (uint32_t)((hash >> 32) * net->cores_per_agg >> 32);
    uint32_t *link = packet->links;
    *link++ = host_link(net, LINK_HOST_UP, src);
    if (src_tor != dst_tor) {
        *link++ = tor_link(net, src_tor, agg, false);
        if (src_pod != dst_pod) {
            *link++ = agg_link(net, src_pod * net->half + agg, core, false);
            *link++ = agg_link(net, dst_pod * net->half + agg, core, true);
        }
        *link++ = tor_link(net, dst_tor, agg, true);
    }
    *link++ = host_link(net, LINK_HOST_DOWN, dst);
    packet->hops = (uint8_t)(link - packet->links);
}

static uint64_t backlog_ps(const struct net *net, const struct link *link)
{
    return link->free_ps > net->now_ps ? link->free_ps - net->now_ps : 0;
}

static bool marks(struct net *net, uint64_t queued)
{
    if (queued <= MODEL_ECN_LOW_BYTES)
        return false;
    return queued >= MODEL_ECN_HIGH_BYTES ||
           rng_below(&net->rng, MODEL_ECN_HIGH_BYTES - MODEL_ECN_LOW_BYTES) < queued - MODEL_ECN_LOW_BYTES;
}

/* The packet enters the queue of its next link, or is dropped. */
static void enter(struct net *net, uint32_t handle, struct packet *packet)
{
    struct link *link = &net->links[packet->links[packet->hop]];
    uint64_t waits_ps = backlog_ps(net, link);
    if (link->ps_per_byte == 0) {
        net->dropped_dead++;
        net_free_packet(net, handle);
        return;
    }
    if (packet->hop > 0) { /* the first queue is the host's own, which holds itself back */
        uint64_t queued = waits_ps / link->ps_per_byte;
        if (queued + packet->length > MODEL_QUEUE_BYTES) {
            net->dropped_full++;
            net_free_packet(net, handle);
            return;
        }
        if (queued > net->queue_max_bytes)
            net->queue_max_bytes = queued;
        if (!packet->ce && marks(net, queued)) {
            packet->ce = true;
            net->marked++;
        }
    }
    link->free_ps = net->now_ps + waits_ps + (uint64_t)packet->length * link->ps_per_byte;
    packet->hop++;
    net_schedule(net, link->free_ps + MODEL_LINK_PS + (link->host ? 0 : MODEL_SWITCH_PS), EVENT_PACKET, handle);
}

void net_send(struct net *net, uint32_t handle, uint32_t src, uint32_t dst, uint32_t path)
{
    struct packet *packet = net_packet(net, handle);
    packet->host = dst;
    packet->hop = 0;
    packet->ce = false;
    if (packet->length < MODEL_HEADER_BYTES)
        packet->length = MODEL_HEADER_BYTES;
    route(net, packet, src, dst, path);
    net->sent++;
    enter(net, handle, packet);
}

uint64_t net_nic_backlog(const struct net *net, uint32_t host)
{
    return backlog_ps(net, &net->links[host_link(net, LINK_HOST_UP, host)]) / MODEL_PS_PER_BYTE;
}

uint64_t net_nic_drained_ps(const struct net *net, uint32_t host, uint64_t bytes)
{
    uint64_t free_ps = net->links[host_link(net, LINK_HOST_UP, host)].free_ps;
    uint64_t early_ps = bytes * MODEL_PS_PER_BYTE;
    return free_ps > net->now_ps + early_ps ? free_ps - early_ps : net->now_ps;
}

bool net_next(struct net *net, struct event *event)
{
    while (net->heap_count) {
        *event = take_first(net);
        net->now_ps = event->at_ps;
        net->events++;
        if (event->kind != EVENT_PACKET)
            return true;
        struct packet *packet = net_packet(net, event->what);
        if (packet->hop == packet->hops)
            return true;
        enter(net, event->what, packet);
    }
    return false;
}
