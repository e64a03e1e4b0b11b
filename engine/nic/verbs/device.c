/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/verbs/device.h"

#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading /sys ---------------------------------------------------------------------------- */

/* First line of a file under /sys/class/infiniband, without its end; false: not readable. */
__attribute__((format(printf, 3, 4))) static bool read_sys(char *out, size_t size, const char *format, ...)
{
    char path[256], *end;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool got = fgets(out, (int)size, file) != NULL;
    fclose(file);
    if (got && (end = strchr(out, '\n')))
        *end = 0;
    return got;
}

static int numa_node_of(const char *device)
{
    char text[32];
    return read_sys(text, sizeof text, "/sys/class/infiniband/%s/device/numa_node", device) ? atoi(text) : -1;
}

/* ---- ports ----------------------------------------------------------------------------------- */

/* Width times speed of the link, as the kernel codes both: 4x is four times what 1x is. */
static uint64_t speed_of(const struct ibv_port_attr *attr)
{
    static const struct {
        uint8_t code;
        uint32_t mbps;
    } speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
    static const struct {
        uint8_t code, width;
    } widths[] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint64_t mbps = 0, width = 0;
    for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++)
        if (speeds[i].code == attr->active_speed)
            mbps = speeds[i].mbps;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        if (widths[i].code == attr->active_width)
            width = widths[i].width;
    return mbps * width;
}

bool verbs_port_refresh(const struct verbs_lib *lib, struct ibv_context *context, struct verbs_port *port)
{
    struct ibv_port_attr attr;
    if (verbs_query_port(lib, context, port->number, &attr) != 0)
        return false;
    port->active = attr.state == IBV_PORT_ACTIVE;
    port->ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    port->mtu_shift = (uint8_t)(attr.active_mtu + VERBS_MTU_SHIFT_MIN - IBV_MTU_256);
    port->lid = attr.lid;
    port->max_message = attr.max_msg_sz;
    port->speed_mbps = speed_of(&attr);
    port->gid_table = attr.gid_tbl_len;
    return true;
}

/* Readable entries of the port's GID table that are not empty; the others are skipped, not fatal. */
static bool read_gids(const struct verbs_lib *lib, struct ibv_context *context, struct verbs_port *port)
{
    static const union ibv_gid empty;
    port->gids = calloc(port->gid_table > 0 ? (size_t)port->gid_table : 1, sizeof *port->gids);
    if (!port->gids)
        return false;
    for (int i = 0; i < port->gid_table; i++) {
        struct verbs_gid *gid = &port->gids[port->gid_count];
        union ibv_gid raw;
        char type[32];
        if (lib->query_gid(context, port->number, i, &raw) != 0 || memcmp(&raw, &empty, sizeof empty) == 0)
            continue;
        memcpy(gid->gid, raw.raw, sizeof gid->gid);
        gid->index = i;
        bool typed = read_sys(type, sizeof type, "/sys/class/infiniband/%s/ports/%u/gid_attrs/types/%d", port->device,
                              port->number, i);
        gid->type = !port->ethernet                         ? VERBS_GID_IB
                    : typed && strcmp(type, "RoCE v2") == 0 ? VERBS_GID_ROCE_V2
                                                            : VERBS_GID_ROCE_V1;
        port->gid_count++;
    }
    return true;
}

/*
 * Which kinds of queue pair the device makes: tried, since nothing tells. False: memory or descriptors are short, so
 * that nothing is known. Of UC and RC that cannot be told from a device that lacks them: what there is will do.
 */
static bool find_able(const struct verbs_lib *lib, struct ibv_context *context, struct verbs_able *out)
{
    struct verbs_able able = {0};
    errno = 0; /* not every driver sets it */
    struct ibv_pd *pd = lib->alloc_pd(context);
    struct ibv_cq *cq = pd ? lib->create_cq(context, 2, NULL, NULL, 0) : NULL;
    bool enough = cq || fault_error(errno) != UCCL_ENOMEM;
    struct {
        enum ibv_qp_type type;
        bool *able;
    } kinds[] = {{IBV_QPT_UD, &able.ud}, {IBV_QPT_UC, &able.uc}, {IBV_QPT_RC, &able.rc}};
    for (size_t i = 0; cq && i < sizeof kinds / sizeof kinds[0]; i++) {
        struct ibv_qp_init_attr attr = {
            .send_cq = cq,
            .recv_cq = cq,
            .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
            .qp_type = kinds[i].type};
        errno = 0;
        struct ibv_qp *qp = lib->create_qp(pd, &attr);
        *kinds[i].able = qp != NULL;
        if (!qp && kinds[i].type == IBV_QPT_UD)
            enough = fault_error(errno) != UCCL_ENOMEM;
        if (qp)
            lib->destroy_qp(qp);
    }
    if (cq)
        lib->destroy_cq(cq);
    if (pd)
        lib->dealloc_pd(pd);
    *out = able;
    return enough;
}

/* Appends the ports of a device. False: out of memory. */
static bool add_ports(const struct verbs_lib *lib, struct ibv_context *context, const char *name,
                      struct verbs_port **ports, int *count)
{
    struct ibv_device_attr limits;
    if (lib->query_device(context, &limits) != 0) {
        LOG_WARNING("verbs device %s cannot be asked for its limits: %s", name, strerror(errno));
        return true;
    }
    struct verbs_able able;
    if (!find_able(lib, context, &able))
        return false;
    struct verbs_clock_kind clock = verbs_clock_find(lib, context);
    for (uint8_t number = 1; number <= limits.phys_port_cnt; number++) {
        struct verbs_port *grown = realloc(*ports, ((size_t)*count + 1) * sizeof **ports);
        if (!grown)
            return false;
        *ports = grown;
        struct verbs_port *port = &grown[*count];
        *port = (struct verbs_port){
            .number = number, .numa_node = numa_node_of(name), .able = able, .clock = clock, .limits = limits};
        snprintf(port->device, sizeof port->device, "%s", name);
        if (!verbs_port_refresh(lib, context, port)) {
            LOG_WARNING("verbs device %s port %u cannot be asked for its state: %s", name, number, strerror(errno));
            continue;
        }
        if (!read_gids(lib, context, port))
            return false;
        ++*count;
    }
    return true;
}

int verbs_ports_list(const struct verbs_lib *lib, struct verbs_port **out)
{
    struct verbs_port *ports = NULL;
    int devices = 0, count = 0;
    bool enough = true;
    struct ibv_device **list = lib->get_device_list(&devices);
    for (int i = 0; list && i < devices && enough; i++) {
        const char *name = lib->get_device_name(list[i]);
        struct ibv_context *context = lib->open_device(list[i]);
        if (!context) {
            char text[FAULT_TEXT];
            int error = errno;
            enough = fault_error(error) != UCCL_ENOMEM;
            LOG_WARNING("verbs device %s does not open: %s%s", name, fault_text(error, text),
                        enough ? " (may this process use /dev/infiniband?)" : "");
            continue;
        }
        enough = add_ports(lib, context, name, &ports, &count);
        lib->close_device(context);
    }
    if (list)
        lib->free_device_list(list);
    if (!enough) {
        LOG_ERR("no memory or descriptors to list verbs devices");
        verbs_ports_free(ports, count);
        return UCCL_ENOMEM;
    }
    *out = ports;
    return count;
}

void verbs_ports_free(struct verbs_port *ports, int count)
{
    for (int i = 0; i < count; i++)
        free(ports[i].gids);
    free(ports);
}

void verbs_port_judge(const struct verbs_port *port, const struct params *params, struct verbs_choice *out)
{
    enum { SHARED_MIN = 64 };
    struct verbs_candidate candidate = {.device = port->device,
                                        .number = port->number,
                                        .active = port->active,
                                        .ethernet = port->ethernet,
                                        .able = port->able,
                                        .gids = port->gids,
                                        .gid_count = port->gid_count};
    verbs_judge(&candidate, params, out);
    if (out->mode > VERBS_UD && port->limits.max_srq_wr < SHARED_MIN) {
        out->mode = VERBS_UD;
        snprintf(out->why_mode, sizeof out->why_mode,
                 "the device has no shared receive queues, which connected queue pairs need");
    }
}

bool verbs_may_join(const struct params *params, unsigned count)
{
    return count < NIC_PLACERS_MAX && (params->max_nics == 0 || count < params->max_nics);
}

/* Whether an item of UCCL_IB_HCA asks for the port, rather than that none excludes it. */
static bool is_named(const char *filter, const struct verbs_port *port)
{
    struct filter_items items = filter_items(filter);
    struct filter_item item;
    while (filter_next(&items, &item))
        if (!item.excludes && verbs_item_names(&item, port->device, port->number))
            return true;
    return false;
}

bool verbs_joins(const struct params *params, const struct verbs_port *first, const struct verbs_port *port)
{
    struct verbs_choice of_first, own;
    verbs_port_judge(first, params, &of_first);
    verbs_port_judge(port, params, &own);
    if (!own.usable || own.mode != of_first.mode || port->ethernet != first->ethernet)
        return false;
    return params->max_nics > 1 || is_named(params->ib_hca, port) ||
           (port->speed_mbps && port->speed_mbps >= first->speed_mbps / 2);
}

struct ibv_context *verbs_device_open(const struct verbs_lib *lib, const char *name)
{
    int devices = 0;
    struct ibv_device **list = lib->get_device_list(&devices);
    struct ibv_context *context = NULL;
    char text[FAULT_TEXT];
    errno = ENODEV;
    for (int i = 0; list && i < devices && !context; i++) {
        if (strcmp(lib->get_device_name(list[i]), name) == 0)
            context = lib->open_device(list[i]);
    }
    int error = errno;
    if (!context)
        LOG_ERR("verbs device %s does not open: %s", name, fault_text(error, text));
    if (list)
        lib->free_device_list(list);
    errno = error;
    return context;
}
