/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs devices and their ports: what is there, whether it is up, what it can do. For set-up and for
 * uccl_info; any thread.
 */
#ifndef UCCL_VERBS_DEVICE_H
#define UCCL_VERBS_DEVICE_H

#include "nic/nic.h"
#include "nic/verbs/clock.h"
#include "nic/verbs/lib.h"
#include "nic/verbs/select.h"

/* One port of one device. */
struct verbs_port {
    char device[64]; /* as the kernel names it: mlx5_0 */
    uint8_t number;  /* from 1 */
    bool active;
    bool ethernet;     /* RoCE; else InfiniBand */
    uint8_t mtu_shift; /* log2 of the path MTU in effect */
    uint16_t lid;
    uint64_t speed_mbps;    /* 0: unknown */
    uint32_t max_message;   /* bytes of a work request */
    int numa_node;          /* -1: unknown */
    int gid_table;          /* entries of its GID table */
    struct verbs_gid *gids; /* readable ones that are not empty */
    int gid_count;
    struct verbs_able able;
    struct verbs_clock_kind clock;
    struct ibv_device_attr limits;
};

/*
 * All ports of all devices that open, in the kernel's order. `*out` goes to verbs_ports_free(). Returns how
 * many, or UCCL_ENOMEM. A device that does not open is logged and left out.
 */
int verbs_ports_list(const struct verbs_lib *lib, struct verbs_port **out);
void verbs_ports_free(struct verbs_port *ports, int count);

/* verbs_judge() of a port. `out` points into it. */
void verbs_port_judge(const struct verbs_port *port, const struct params *params, struct verbs_choice *out);

/* Whether an engine that uses `count` ports may use another one (UCCL_MAX_NICS). */
bool verbs_may_join(const struct params *params, unsigned count);
/*
 * Whether an engine that uses port `first` uses this usable port beside it: they have the same link and kind of queue
 * pair; and it is at least half as fast, or UCCL_IB_HCA names it, or UCCL_MAX_NICS asks for more.
 */
bool verbs_joins(const struct params *params, const struct verbs_port *first, const struct verbs_port *port);

/* Opens the device of that name; NULL: logged. */
struct ibv_context *verbs_device_open(const struct verbs_lib *lib, const char *name);

/* Reads what changes of a port: state, MTU, LID, speed. False: the device is gone. */
bool verbs_port_refresh(const struct verbs_lib *lib, struct ibv_context *context, struct verbs_port *port);

#endif
