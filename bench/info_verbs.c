/* SPDX-License-Identifier: Apache-2.0 */
/* See info_verbs.h. */
#include "info_verbs.h"

#include "uccl/engine.h"

#include <inttypes.h>
#include <stdio.h>

enum { STATUS_MAX = 256 };

/* ---- for people ------------------------------------------------------------------------------ */

static void print_port(void *user, const struct uccl_verbs_port *port)
{
    unsigned *count = user;
    if ((*count)++ == 0)
        printf("\nVerbs ports:\n");
    printf("  %s port %" PRIu32 ": %s, %s, MTU %" PRIu32, port->device, port->port, port->link,
           port->active ? "active" : "not active", port->mtu);
    if (port->lid != 0)
        printf(", LID %" PRIu32, port->lid);
    if (port->speed_mbps != 0)
        printf(", %g Gbit/s", (double)port->speed_mbps / 1000);
    if (port->numa_node >= 0)
        printf(", NUMA node %d", port->numa_node);
    printf("\n     makes%s%s%s queue pairs: %" PRIu32 " at most, of %" PRIu32
           " work requests; completion queues of %" PRIu32 ", shared receive queues of %" PRIu32
           ", messages of %" PRIu32 " bytes\n",
           port->ud ? " UD" : "", port->uc ? " UC" : "", port->rc ? " RC" : "", port->max_queue_pairs,
           port->max_work_requests, port->max_completions, port->max_shared_receives, port->max_message);
    if (port->clock_khz != 0)
        printf("     completions are timed by the NIC, whose clock runs at %g MHz\n", (double)port->clock_khz / 1000);
    else
        printf("     completions are timed by the engine: they bear no time stamps\n");
    for (uint32_t i = 0; i < port->gid_count; i++)
        printf("     GID %d: %s, %s%s%s%s\n", port->gids[i].index, port->gids[i].address, port->gids[i].type,
               port->gids[i].index == port->gid_index ? "  <- chosen (" : "",
               port->gids[i].index == port->gid_index ? port->why_gid : "",
               port->gids[i].index == port->gid_index ? ")" : "");
    if (port->usable)
        printf("     usable: data would go by %s (%s)\n", port->mode, port->why_mode);
    else
        printf("     not usable: %s\n", port->why_not);
}

/* No verbs here is an answer; a lack of descriptors or memory, or a value that is not allowed, is none. */
static bool is_answer(int result)
{
    return result != UCCL_EINVAL && result != UCCL_ENOMEM;
}

bool verbs_print(void)
{
    char status[STATUS_MAX];
    unsigned count = 0;
    int result = uccl_verbs_ports(NULL, print_port, &count, status, sizeof status);
    if (!is_answer(result))
        printf("\nVerbs ports: unknown: %s\n", *status ? status : uccl_strerror(result));
    else if (count == 0)
        printf("\nVerbs ports: none%s%s\n", *status ? ": " : "", status);
    return is_answer(result);
}

/* ---- for programs ---------------------------------------------------------------------------- */

static json_t *gids_json(const struct uccl_verbs_port *port)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < port->gid_count; i++)
        json_array_append_new(array, json_pack("{s:i, s:s, s:s}", "index", port->gids[i].index, "type",
                                               port->gids[i].type, "address", port->gids[i].address));
    return array;
}

static void add_port(void *user, const struct uccl_verbs_port *port)
{
    json_t *row = json_pack("{s:s, s:i, s:b, s:s, s:i, s:i, s:I, s:i}", "device", port->device, "port", (int)port->port,
                            "active", port->active, "link", port->link, "mtu", (int)port->mtu, "lid", (int)port->lid,
                            "speed_mbps", (json_int_t)port->speed_mbps, "numa_node", port->numa_node);
    json_object_update_new(row, json_pack("{s:b, s:b, s:b}", "ud", port->ud, "uc", port->uc, "rc", port->rc));
    json_object_update_new(row, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "clock_khz", (json_int_t)port->clock_khz,
                                          "max_message", (json_int_t)port->max_message, "max_queue_pairs",
                                          (json_int_t)port->max_queue_pairs, "max_work_requests",
                                          (json_int_t)port->max_work_requests, "max_completions",
                                          (json_int_t)port->max_completions, "max_shared_receives",
                                          (json_int_t)port->max_shared_receives));
    json_object_update_new(row, json_pack("{s:b, s:s, s:i, s:s, s:s, s:s}", "usable", port->usable, "why_not",
                                          port->why_not, "gid_index", port->gid_index, "why_gid", port->why_gid, "mode",
                                          port->mode, "why_mode", port->why_mode));
    json_object_set_new(row, "gids", gids_json(port));
    json_array_append_new(user, row);
}

bool verbs_add_json(json_t *root)
{
    char status[STATUS_MAX];
    json_t *ports = json_array();
    int result = uccl_verbs_ports(NULL, add_port, ports, status, sizeof status);
    json_object_set_new(root, "verbs",
                        json_pack("{s:s, s:o}", "status", *status || is_answer(result) ? status : uccl_strerror(result),
                                  "ports", ports));
    return is_answer(result);
}
