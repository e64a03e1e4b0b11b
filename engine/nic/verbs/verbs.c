/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs backend: which ports it uses, its table of operations, how a queue sleeps, and what the devices report by
 * themselves.
 *
 * Sleeping: the completion queue is armed, then looked at once more (what came before the arming raises no event), then
 * one ppoll() waits for the completion channel, the wake descriptor and the device's events. Events of the device
 * belong to all queues: whichever sees them takes and counts them (`port_events`, `qp_events`), and each queue asks its
 * port again when the count has changed. Some drivers change a port's MTU without an event, so it is asked now and then
 * anyway.
 */
#include "nic/verbs/data_qp.h"

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "nic/pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 100, DRAIN_NAP_NS = NS_PER_MS, STALL_NAP_NS = 200 * NS_PER_MS };

/* ---- the device in use ----------------------------------------------------------------------- */

/* Says why there is no device: an error where the user asked for verbs, a remark where we only tried. */
static int no_device(const struct params *params, const char *why)
{
    LOG(params->backend == BACKEND_VERBS ? UCCL_LOG_ERROR : UCCL_LOG_DEBUG, "no verbs device to use: %s", why);
    return UCCL_ENODEV;
}

static bool is_there(const struct filter_item *item, const struct verbs_port *ports, int count)
{
    for (int i = 0; i < count; i++)
        if (verbs_item_names(item, ports[i].device, ports[i].number))
            return true;
    return false;
}

/*
 * Whoever names a device wants it: without a word, a misspelt one would mean another NIC, or UDP. One that is shut
 * out may well be missing: such lists are written for many machines.
 */
static void tell_missing_ports(const char *filter, const struct verbs_port *ports, int count)
{
    struct filter_items items = filter_items(filter);
    struct filter_item item;
    while (filter_next(&items, &item)) {
        if (!is_there(&item, ports, count))
            LOG(item.excludes ? UCCL_LOG_INFO : UCCL_LOG_WARN, "UCCL_IB_HCA: no port of a verbs device matches \"%s\"",
                item.name);
    }
}

/* Keeps the ports that the user admits and that work. */
static void keep_usable(struct verbs_backend *backend)
{
    int kept = 0;
    for (int i = 0; i < backend->port_count; i++) {
        struct verbs_port port = backend->ports[i];
        struct verbs_choice choice;
        verbs_port_judge(&port, &backend->params, &choice);
        if (choice.usable) {
            backend->ports[kept++] = port;
            continue;
        }
        LOG_INFORM("verbs device %s port %u is not used: %s", port.device, port.number, choice.why_not);
        free(port.gids);
    }
    backend->port_count = kept;
}

union nic_address verbs_ip_of(const uint8_t gid[16])
{
    union nic_address address = {0};
    if (verbs_gid_is_ipv4(gid)) {
        address.v4.sin_family = AF_INET;
        memcpy(&address.v4.sin_addr, gid + 12, sizeof address.v4.sin_addr);
    } else {
        address.v6.sin6_family = AF_INET6;
        memcpy(&address.v6.sin6_addr, gid, 16);
    }
    return address;
}

/*
 * Where listeners are reached: the address that the first port's GID stands for, unless the user names
 * interfaces or the machine has no such address (InfiniBand); then that of the best interface.
 */
static int find_host(struct verbs_backend *backend)
{
    struct netdev *devs = NULL;
    int count = netdev_list(backend->params.socket_ifname, &devs);
    if (count <= 0) {
        free(devs);
        return count < 0 ? count
                         : no_device(&backend->params, "no network interface for the handshake is up "
                                                       "(UCCL_SOCKET_IFNAME)");
    }
    backend->host = devs[0].address;
    if (backend->nics[0].port->ethernet) {
        union nic_address own = verbs_ip_of(backend->nics[0].gid.gid);
        for (int i = 0; i < count; i++)
            if (nic_same_host(&own, &devs[i].address))
                backend->host = own;
    }
    free(devs);
    return 0;
}

/* Bits of the subnet that a GID is in. InfiniBand's have 64; those of RoCE are those of the interface's address. */
static uint8_t prefix_of(const struct verbs_nic *nic)
{
    enum { IPV4_USUAL = 24, IPV6_USUAL = 64 };
    union nic_address own = verbs_ip_of(nic->gid.gid);
    struct netdev *devs = NULL;
    int count = nic->port->ethernet ? netdev_list("", &devs) : 0;
    uint8_t bits = nic->ipv4 ? IPV4_USUAL : IPV6_USUAL;
    for (int i = 0; i < count; i++)
        if (nic_same_host(&own, &devs[i].address))
            bits = devs[i].prefix_bits;
    free(devs);
    return bits;
}

static int open_port(struct verbs_backend *backend, struct verbs_port *port)
{
    struct verbs_nic *nic = &backend->nics[backend->nic_count];
    char text[VERBS_GID_TEXT];
    struct verbs_choice choice;
    nic->backend = backend;
    nic->index = backend->nic_count;
    nic->lib = backend->lib;
    nic->params = &backend->params;
    nic->port = port;
    backend->nic_count++; /* verbs_close() closes what is open */
    verbs_port_judge(port, nic->params, &choice);
    if (choice.gid) {
        nic->gid = *choice.gid;
        LOG_INFORM("verbs device %s port %u: GID %d, %s (%s)", port->device, port->number, nic->gid.index,
                   verbs_gid_text(nic->gid.gid, text), choice.why_gid);
    }
    nic->mode = (uint8_t)choice.mode;
    LOG_INFORM("verbs device %s port %u: data over %s (%s)", port->device, port->number, verbs_mode_name(nic->mode),
               choice.why_mode);
    nic->ipv4 = port->ethernet && verbs_gid_is_ipv4(nic->gid.gid);
    nic->prefix_bits = prefix_of(nic);
    atomic_store(&nic->lid, port->lid);
    nic->datagram_bytes = 1u << verbs_choose_mtu(port->mtu_shift, port->mtu_shift, nic->params->mtu);
    if (nic->datagram_bytes < CORE_DATAGRAM_MIN)
        return no_device(nic->params, "its path MTU is below 512 bytes: raise the MTU of its network "
                                      "interface");
    nic->context = verbs_device_open(nic->lib, port->device);
    if (!nic->context)
        return fault_error(errno) == UCCL_ENOMEM ? UCCL_ENOMEM : UCCL_ENODEV;
    fcntl(nic->context->async_fd, F_SETFL, fcntl(nic->context->async_fd, F_GETFL) | O_NONBLOCK);
    nic->pd = nic->lib->alloc_pd(nic->context);
    return nic->pd ? 0 : verbs_fault(nic, "make a protection domain", errno);
}

static void close_port(struct verbs_nic *nic)
{
    if (nic->pd)
        nic->lib->dealloc_pd(nic->pd);
    if (nic->context)
        nic->lib->close_device(nic->context);
}

static void verbs_close(struct nic *base)
{
    struct verbs_backend *backend = verbs_backend_of(base);
    for (unsigned i = 0; i < backend->nic_count; i++)
        close_port(&backend->nics[i]);
    verbs_ports_free(backend->ports, backend->port_count);
    free(backend);
}

/* The first usable port, and others like it: verbs_joins(). One of those that does not open is left out. */
static int open_ports(struct verbs_backend *backend)
{
    int error = open_port(backend, &backend->ports[0]);
    for (int i = 1; !error && i < backend->port_count && verbs_may_join(&backend->params, backend->nic_count); i++) {
        struct verbs_port *port = &backend->ports[i];
        if (!verbs_joins(&backend->params, &backend->ports[0], port))
            continue;
        error = open_port(backend, port);
        if (error && error != UCCL_ENOMEM) {
            struct verbs_nic *nic = &backend->nics[--backend->nic_count];
            close_port(nic);
            memset(nic, 0, sizeof *nic);
            error = UCCL_OK;
        }
    }
    return error;
}

int verbs_open_with(const struct verbs_lib *lib, const struct params *params, struct nic **out)
{
    struct verbs_backend *backend = calloc(1, sizeof *backend);
    if (!backend)
        return UCCL_ENOMEM;
    backend->lib = lib;
    backend->params = *params;
    int error = backend->port_count = verbs_ports_list(lib, &backend->ports);
    if (error < 0) {
        free(backend);
        return error;
    }
    int found = backend->port_count;
    tell_missing_ports(params->ib_hca, backend->ports, backend->port_count);
    keep_usable(backend);
    error = 0;
    if (backend->port_count == 0)
        error =
            no_device(params, found ? "no port is active, usable and admitted by UCCL_IB_HCA" : "the machine has none");
    if (!error)
        error = open_ports(backend);
    if (!error)
        error = find_host(backend);
    if (error) {
        verbs_close(&backend->base);
        return error;
    }
    uint8_t mode = backend->nics[0].mode; /* all ports' */
    backend->base = (struct nic){.ops = &verbs_device_ops,
                                 .ends = backend->nic_count > 1 ? &verbs_end_ops : NULL,
                                 .pairs = verbs_pairs,
                                 .ways = &verbs_way_ops,
                                 .memory = mode == VERBS_UD ? NULL : &verbs_memory_ops,
                                 .caps = {.reliable = mode == VERBS_RC,
                                          .in_order = params->in_order,
                                          .lendable = true,
                                          .close_in_child = false}}; /* it would destroy the parent's queue pairs */
    *out = &backend->base;
    return 0;
}

static int verbs_open(const struct params *params, struct nic **out)
{
    const char *why;
    const struct verbs_lib *lib = verbs_lib(&why);
    if (lib)
        return verbs_open_with(lib, params, out);
    tell_missing_ports(params->ib_hca, NULL, 0);
    return no_device(params, why);
}

static int verbs_device_count(const struct nic *nic)
{
    return (int)verbs_backend_of(nic)->nic_count;
}

static int verbs_device(const struct nic *base, int index, struct uccl_device *out, union nic_address *address)
{
    const struct verbs_backend *backend = verbs_backend_of(base);
    if (index < 0 || (unsigned)index >= backend->nic_count)
        return UCCL_ENODEV;
    const struct verbs_nic *nic = &backend->nics[index];
    const struct verbs_port *port = nic->port;
    char text[NETDEV_ADDRESS_TEXT];
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%.31s", port->device);
    snprintf(out->backend, sizeof out->backend, "verbs");
    snprintf(out->address, sizeof out->address, "%.63s", netdev_address_text(&backend->host, text));
    snprintf(out->description, sizeof out->description, "%s queue pairs on %s port %u, GID index %d, timed by the %s",
             verbs_mode_name(nic->mode), port->ethernet ? "RoCE" : "InfiniBand", port->number, nic->gid.index,
             port->clock.mask ? "NIC" : "engine");
    out->speed_mbps = port->speed_mbps;
    out->mtu = 1u << port->mtu_shift;
    out->numa_node = port->numa_node;
    *address = backend->host;
    return 0;
}

static int verbs_addresses(const struct nic *nic, union nic_address *out, int max)
{
    return netdev_addresses(verbs_backend_of(nic)->params.socket_ifname, out, max);
}

/* ---- queues ---------------------------------------------------------------------------------- */

static void verbs_queue_close(struct nic_queue *base)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    verbs_reads_close(queue);
    verbs_data_qps_close(queue);
    verbs_ud_close(queue);
    verbs_peers_free(queue);
    if (queue->channel)
        queue->lib->destroy_comp_channel(queue->channel);
    if (queue->wake_fd >= 0)
        close(queue->wake_fd);
    free(queue);
}

int verbs_queue_open(struct verbs_nic *nic, const struct nic_queue_setup *setup, struct verbs_queue **out)
{
    struct verbs_queue *queue = calloc(1, sizeof *queue);
    int error = 0;
    if (!queue)
        return UCCL_ENOMEM;
    queue->base = (struct nic_queue){.nic = &nic->backend->base,
                                     .ops = &verbs_queue_ops,
                                     .datagram = &verbs_datagram_ops,
                                     .data_qp = nic->mode == VERBS_UD ? NULL : &verbs_data_qp_ops};
    queue->nic = nic;
    queue->lib = nic->lib;
    queue->setup = *setup;
    queue->peer_free = queue->peer_retired = VERBS_NO_PEER;
    queue->port_bytes = nic->datagram_bytes;
    queue->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (queue->wake_fd >= 0)
        queue->channel = nic->lib->create_comp_channel(nic->context);
    if (!queue->channel)
        error = verbs_fault(nic, queue->wake_fd < 0 ? "make an eventfd" : "make a completion channel", errno);
    else
        fcntl(queue->channel->fd, F_SETFL, fcntl(queue->channel->fd, F_GETFL) | O_NONBLOCK);
    verbs_clock_open(&queue->clock, nic->context, nic->port->clock);
    if (!error)
        error = verbs_ud_open(queue);
    if (!error)
        error = verbs_data_qps_open(queue);
    if (error) {
        verbs_queue_close(&queue->base);
        return error;
    }
    LOG_DBG("verbs queue %u: UD queue pair 0x%x, %u receives of %u bytes, %u sends, %u bytes inline", setup->index,
            queue->ud->qp_num, queue->receives.count, queue->receives.slot_bytes, queue->sends.depth,
            queue->sends.inline_bytes);
    *out = queue;
    return 0;
}

static int verbs_thread_queue_open(struct nic *base, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    struct verbs_backend *backend = verbs_backend_of(base);
    struct verbs_queue *queue;
    if (backend->nic_count > 1)
        return verbs_several_open(backend, setup, out);
    int error = verbs_queue_open(backend->nics, setup, &queue);
    if (!error)
        *out = &queue->base;
    return error;
}

void verbs_address_of(const struct verbs_queue *queue, struct verbs_address *out)
{
    const struct verbs_nic *nic = queue->nic;
    *out = (struct verbs_address){
        .ethernet = nic->port->ethernet,
        .mode = nic->mode,
        .mtu_shift = (uint8_t)__builtin_ctz(atomic_load(&queue->port_bytes)),
        .lid = atomic_load(&nic->lid),
        .prefix_bits = nic->prefix_bits,
        .qpn = queue->ud->qp_num,
        .qkey = queue->qkey,
    };
    memcpy(out->gid, nic->gid.gid, sizeof out->gid);
}

static void verbs_queue_address(const struct nic_queue *base, struct nic_queue_address *out)
{
    struct verbs_address address;
    verbs_address_of(verbs_queue_of(base), &address);
    out->length = 0;
    verbs_address_append(&address, out);
}

/*
 * In the core's measure, where a datagram costs its bytes and CORE_KERNEL_BYTES, however large its slot is: as many
 * half-full datagrams as there are slots.
 */
static uint64_t verbs_queue_rx_bytes(const struct nic_queue *base)
{
    const struct verbs_queue *queue = verbs_queue_of(base);
    return (uint64_t)queue->receives.count * (queue->nic->datagram_bytes / 2 + CORE_KERNEL_BYTES);
}

static int verbs_route(struct nic_queue *queue, const struct nic_host *host, uint32_t *datagram_bytes)
{
    (void)host; /* the peer's port may take less: its address tells */
    *datagram_bytes = verbs_queue_of(queue)->port_bytes;
    return 0;
}

/* ---- memory and data QPs --------------------------------------------------------------------- */

static int verbs_reg_mr(struct nic *base, unsigned index, void *address, size_t length, struct nic_mr *out)
{
    struct verbs_nic *nic = &verbs_backend_of(base)->nics[index];
    enum { OWN = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE };
    const struct verbs_lib *lib = nic->lib;
    struct ibv_mr *mr = NULL;
    if (length == 0 || verbs_is_gone(nic))
        return UCCL_ENOTSUP;
    if (lib->reg_mr_iova2 && nic->params->ib_relaxed_ordering)
        mr = lib->reg_mr_iova2(nic->pd, address, length, (uintptr_t)address, OWN | IBV_ACCESS_RELAXED_ORDERING);
    if (!mr)
        mr = lib->reg_mr(nic->pd, address, length, OWN);
    if (!mr && (errno == EFAULT || errno == EACCES)) /* memory that may only be read */
        mr = lib->reg_mr(nic->pd, address, length, 0);
    if (!mr && (errno == EOPNOTSUPP || errno == EFAULT || errno == EINVAL))
        return UCCL_ENOTSUP;
    if (!mr)
        return verbs_fault(nic, "register memory", errno);
    *out = (struct nic_mr){.local_key = mr->lkey, .remote_key = mr->rkey, .handle = mr, .nic = (uint8_t)index};
    return 0;
}

static void verbs_dereg_mr(struct nic *base, struct nic_mr *mr)
{
    const struct verbs_lib *lib = verbs_backend_of(base)->lib;
    if (mr->flush_handle)
        lib->dereg_mr(mr->flush_handle);
    if (mr->handle)
        lib->dereg_mr(mr->handle);
    mr->handle = mr->flush_handle = NULL;
}

static bool verbs_places(const struct nic_queue *queue, const struct nic_queue_address *theirs)
{
    struct verbs_address address;
    unsigned count = verbs_address_count(theirs), alike = 0;
    while (alike < count && !verbs_address_decode(theirs, alike, &address) &&
           address.mode == verbs_nic_of(queue->nic)->mode)
        alike++;
    return count && alike == count;
}

/* ---- what the device reports ----------------------------------------------------------------- */

uint64_t verbs_now_ms(void)
{
    return clock_now_ns() / NS_PER_MS;
}

/* An event of a queue pair. Its data QP outlives the acknowledgement of the event. */
static void take_qp_event(struct verbs_nic *nic, const struct ibv_async_event *event, const char *what)
{
    const struct ibv_qp *ibv = event->element.qp;
    struct verbs_data_qp *qp = ibv->qp_type != IBV_QPT_UD ? ibv->qp_context : NULL;
    if (event->event_type != IBV_EVENT_QP_LAST_WQE_REACHED)
        LOG_WARNING("verbs device %s: queue pair 0x%x has failed: %s", nic->port->device, ibv->qp_num, what);
    if (!qp)
        return;
    /* pair with the loads in verbs/data_qp.c */
    atomic_store(event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED ? &qp->last_receive : &qp->broken, 1);
    atomic_fetch_add(&nic->qp_events, 1);
}

/* Counts each change once, by whoever sees it first. Data QPs that were made before it have failed. */
static void note_port(struct verbs_nic *nic, bool active)
{
    uint32_t epoch = atomic_load(&nic->port_epoch);
    if ((epoch & 1) != active || !atomic_compare_exchange_strong(&nic->port_epoch, &epoch, epoch + 1))
        return;
    atomic_fetch_add(&nic->qp_events, 1);
    if (active)
        LOG_INFORM("verbs device %s: port %u is active again", nic->port->device, nic->port->number);
    else
        LOG_WARNING("verbs device %s: port %u is down: its queue pairs have failed, and are made anew when it is "
                    "active again",
                    nic->port->device, nic->port->number);
}

static void take_port_event(struct verbs_nic *nic, const struct ibv_async_event *event, const char *what)
{
    if (event->element.port_num != nic->port->number)
        return;
    if (event->event_type == IBV_EVENT_PORT_ERR || event->event_type == IBV_EVENT_PORT_ACTIVE)
        note_port(nic, event->event_type == IBV_EVENT_PORT_ACTIVE);
    else
        LOG_INFORM("verbs device %s: %s on port %u", nic->port->device, what, nic->port->number);
    atomic_fetch_add(&nic->port_events, 1);
}

void verbs_lost(struct verbs_nic *nic, const char *why)
{
    struct verbs_backend *backend = nic->backend;
    bool known = atomic_exchange(&nic->gone, true);
    unsigned gone = 0;
    for (unsigned i = 0; i < backend->nic_count; i++)
        gone += verbs_is_gone(&backend->nics[i]);
    if (gone == backend->nic_count)
        atomic_store(&backend->base.failure, UCCL_EIO);
    if (!known)
        LOG_ERR("verbs device %s has failed or was removed: nothing more is sent or received on it, and what was "
                "posted ends with an error (%s)",
                nic->port->device, why);
    atomic_fetch_add(&nic->qp_events, 1);
}

static void take_event(struct verbs_nic *nic, const struct ibv_async_event *event)
{
    const char *what = nic->lib->event_type_str(event->event_type);
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
        take_port_event(nic, event, what);
        break;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR: /* nothing completes there any more, and nobody can make it work again */
        verbs_lost(nic, what);
        break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        take_qp_event(nic, event, what);
        break;
    default:
        LOG_DBG("verbs device %s: %s", nic->port->device, what);
        break;
    }
}

static void take_events(struct verbs_nic *nic)
{
    struct ibv_async_event event;
    while (nic->lib->get_async_event(nic->context, &event) == 0) {
        take_event(nic, &event);
        nic->lib->ack_async_event(&event);
    }
}

/* Asks the port for its MTU; next_mtu_change() then reports peer by peer. */
static void ask_port(struct verbs_queue *queue)
{
    struct verbs_port port = *queue->nic->port;
    if (!verbs_port_refresh(queue->lib, queue->nic->context, &port))
        return;
    note_port(queue->nic, port.active); /* some drivers raise no event */
    if (port.lid && atomic_exchange(&queue->nic->lid, port.lid) != port.lid)
        LOG_WARNING(
            "verbs device %s port %u: its LID is %u now: whoever was told another one does not reach it any more",
            port.device, port.number, port.lid);
    uint32_t bytes = 1u << verbs_choose_mtu(port.mtu_shift, port.mtu_shift, queue->setup.params->mtu);
    if (bytes > queue->nic->datagram_bytes)
        bytes = queue->nic->datagram_bytes; /* receive slots hold no more */
    if (bytes == queue->port_bytes || bytes < CORE_DATAGRAM_MIN)
        return;
    LOG_INFORM("verbs device %s port %u: path MTU is %u bytes now", port.device, port.number, bytes);
    queue->port_bytes = bytes;
    queue->mtu_peer = 0;
}

/* Looks after sends, data QPs, clock, events and port: every LOOK_MS, or when the device has reported something. */
static void look_around(struct verbs_queue *queue)
{
    uint32_t events = atomic_load(&queue->nic->port_events);
    uint64_t at_ms = verbs_now_ms();
    queue->until_look = VERBS_LOOK_AROUND;
    if (events == queue->port_events_seen && at_ms - queue->looked_ms < LOOK_MS)
        return;
    queue->looked_ms = at_ms;
    verbs_reap_sends(queue); /* failed sends show here */
    if (queue->data_qps)
        verbs_data_qps_sweep(queue, at_ms);
    verbs_clock_sync(&queue->clock);
    take_events(queue->nic);
    queue->port_events_seen = atomic_load(&queue->nic->port_events);
    ask_port(queue);
}

/* The next peer whose datagram size has changed with our port's MTU. False: none. */
static bool next_mtu_change(struct verbs_queue *queue, uint32_t *destination, uint32_t *datagram_bytes)
{
    while (queue->mtu_peer < queue->peer_count) {
        uint32_t index = queue->mtu_peer++;
        struct verbs_peer *peer = &queue->peers[index];
        uint32_t theirs = 1u << peer->address.mtu_shift;
        uint32_t bytes = queue->port_bytes < theirs ? queue->port_bytes : theirs;
        if (!peer->used || bytes == peer->datagram_bytes)
            continue;
        peer->datagram_bytes = bytes;
        *destination = queue->nic->index << VERBS_NIC_SHIFT | index;
        *datagram_bytes = bytes;
        return true;
    }
    queue->mtu_peer = UINT32_MAX;
    return false;
}

static bool verbs_follow(struct nic_queue *base, uint32_t *destination, uint32_t *datagram_bytes)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    uint32_t left = atomic_load_explicit(&queue->until_look, memory_order_relaxed);
    atomic_store_explicit(&queue->until_look, left - 1, memory_order_relaxed);
    if (left == 0)
        look_around(queue);
    return next_mtu_change(queue, destination, datagram_bytes);
}

/* ---- sleeping -------------------------------------------------------------------------------- */

static void take_completion_events(struct verbs_queue *queue)
{
    struct ibv_cq *cq;
    void *context;
    while (queue->lib->get_cq_event(queue->channel, &cq, &context) == 0)
        queue->lib->ack_cq_events(cq, 1); /* a queue with unacknowledged ones could not be closed */
}

/* The longest sleep: drains may complete without an event, and hung work must be noticed. */
static uint64_t longest_nap(struct verbs_queue *queue)
{
    const struct verbs_data_qps *qps = queue->data_qps;
    if (!qps || qps->draining + qps->requests == 0)
        return UINT64_MAX;
    queue->until_look = 0;
    return qps->draining ? DRAIN_NAP_NS : STALL_NAP_NS;
}

/* Asks the device for an event with the next completion. True: completions wait already. */
static bool arm_queue(struct verbs_queue *queue)
{
    if (ibv_req_notify_cq(queue->receive_cq.cq, 0) != 0)
        queue->broken = true;
    return verbs_data_qps_arm(queue) || verbs_receive(queue) || queue->broken;
}

void verbs_arm_all(struct verbs_queue *const *queues, unsigned count, uint64_t *timeout_ns)
{
    for (unsigned i = 0; i < count; i++) {
        bool waits = !verbs_is_gone(queues[i]->nic) && arm_queue(queues[i]);
        uint64_t nap_ns = waits ? 0 : longest_nap(queues[i]);
        *timeout_ns = *timeout_ns > nap_ns ? nap_ns : *timeout_ns;
    }
}

void verbs_wait_all(struct verbs_queue *const *queues, unsigned count, uint64_t timeout_ns)
{
    struct verbs_queue *first = queues[0];
    struct pollfd fds[1 + 2 * NIC_PLACERS_MAX] = {{.fd = first->wake_fd, .events = POLLIN}};
    COUNT(first->setup.counters, wait_syscalls, 1);
    for (unsigned i = 0; i < count; i++) {
        struct verbs_queue *queue = queues[i];
        bool gone = verbs_is_gone(queue->nic); /* then there is nothing to wait for */
        fds[2 * i + 1] = (struct pollfd){.fd = gone ? -1 : queue->channel->fd, .events = POLLIN};
        fds[2 * i + 2] = (struct pollfd){.fd = gone ? -1 : queue->nic->context->async_fd, .events = POLLIN};
    }
    if (nic_sleep(fds, 1 + 2 * count, timeout_ns) <= 0)
        return;
    if (fds[0].revents & POLLIN) {
        uint64_t wakes; /* pairs with the write in verbs_wake() */
        ssize_t got = read(first->wake_fd, &wakes, sizeof wakes);
        (void)got;
        COUNT(first->setup.counters, wait_syscalls, 1);
    }
    for (unsigned i = 0; i < count; i++) {
        if (fds[2 * i + 1].revents)
            take_completion_events(queues[i]);
        if (fds[2 * i + 2].revents) {
            take_events(queues[i]->nic);
            atomic_store_explicit(&queues[i]->until_look, 0, memory_order_relaxed);
        }
    }
}

static void verbs_arm(struct nic_queue *base, uint64_t *timeout_ns)
{
    struct verbs_queue *queue = verbs_queue_of(base);
    verbs_arm_all(&queue, 1, timeout_ns);
}

static void verbs_wait(struct nic_queue *base, int beside_fd, uint64_t timeout_ns)
{
    (void)beside_fd;
    struct verbs_queue *queue = verbs_queue_of(base);
    verbs_wait_all(&queue, 1, timeout_ns);
}

/* On any thread. */
static void verbs_wake(struct nic_queue *queue)
{
    nic_wake_eventfd(verbs_queue_of(queue)->wake_fd);
}

const struct nic_device_ops verbs_device_ops = {
    .kind = NIC_ADDRESS_VERBS,
    .open = verbs_open,
    .close = verbs_close,
    .device_count = verbs_device_count,
    .device = verbs_device,
    .addresses = verbs_addresses,
    .queue_open = verbs_thread_queue_open,
};

const struct nic_memory_ops verbs_memory_ops = {
    .reg_mr = verbs_reg_mr,
    .reg_device = verbs_reg_device,
    .dereg_mr = verbs_dereg_mr,
};

const struct nic_queue_ops verbs_queue_ops = {
    .close = verbs_queue_close,
    .address = verbs_queue_address,
    .rx_bytes = verbs_queue_rx_bytes,
    .arm = verbs_arm,
    .wait = verbs_wait,
    .wake = verbs_wake,
};

const struct nic_datagram_ops verbs_datagram_ops = {
    .route = verbs_route,
    .peer_add = verbs_peer_add,
    .peer_remove = verbs_peer_remove,
    .send = verbs_send,
    .flush = verbs_flush,
    .poll = verbs_poll,
    .release = verbs_release,
    .follow = verbs_follow,
};

const struct nic_data_qp_ops verbs_data_qp_ops = {
    .places = verbs_places,
    .open = verbs_data_qp_open,
    .connect = verbs_data_qp_connect,
    .drain = verbs_data_qp_drain,
    .destroy = verbs_data_qp_destroy,
    .event = verbs_data_qp_event,
    .poll_done = verbs_poll_done,
    .flush_device = verbs_flush_device,
    .poll_flushed = verbs_poll_flushed,
};
