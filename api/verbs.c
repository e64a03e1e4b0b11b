/* SPDX-License-Identifier: Apache-2.0 */
/* uccl_verbs_ports(): verbs ports as the engine sees them, without an engine. Any thread. */
#include "base/config.h"
#include "base/process.h"
#include "export.h"
#include "uccl/engine.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_VERBS

#include "nic/verbs/device.h"

static void describe_gid(const struct verbs_gid *gid, struct uccl_verbs_gid *out)
{
    static const char *const types[] = {
        [VERBS_GID_IB] = "InfiniBand", [VERBS_GID_ROCE_V1] = "RoCE v1", [VERBS_GID_ROCE_V2] = "RoCE v2"};
    char text[VERBS_GID_TEXT];

    out->index = gid->index;
    snprintf(out->type, sizeof out->type, "%s", types[gid->type]);
    snprintf(out->address, sizeof out->address, "%s", verbs_gid_text(gid->gid, text));
}

static void judge_port(const struct verbs_port *port, const struct params *params, struct uccl_verbs_port *out)
{
    struct verbs_choice choice;

    verbs_port_judge(port, params, &choice);
    out->usable = choice.usable;
    out->gid_index = choice.gid ? choice.gid->index : -1;
    snprintf(out->why_not, sizeof out->why_not, "%s", choice.why_not);
    snprintf(out->why_gid, sizeof out->why_gid, "%s", choice.why_gid);
    snprintf(out->why_mode, sizeof out->why_mode, "%s", choice.why_mode);
    if (choice.mode >= 0)
        snprintf(out->mode, sizeof out->mode, "%s", verbs_mode_name((enum verbs_mode)choice.mode));
}

static int tell_port(const struct verbs_port *port, const struct params *params, uccl_verbs_port_fn tell, void *user)
{
    struct uccl_verbs_gid *gids = calloc((size_t)port->gid_count + 1, sizeof *gids);
    struct uccl_verbs_port out = {
        .port = port->number,
        .active = port->active,
        .mtu = 1u << port->mtu_shift,
        .lid = port->lid,
        .speed_mbps = port->speed_mbps,
        .numa_node = port->numa_node,
        .ud = port->able.ud,
        .uc = port->able.uc,
        .rc = port->able.rc,
        .max_message = port->max_message,
        .max_queue_pairs = (uint32_t)port->limits.max_qp,
        .max_work_requests = (uint32_t)port->limits.max_qp_wr,
        .max_completions = (uint32_t)port->limits.max_cqe,
        .max_shared_receives = (uint32_t)port->limits.max_srq_wr,
        .clock_khz = port->clock.mask ? (uint32_t)port->clock.khz : 0,
        .gid_count = (uint32_t)port->gid_count,
        .gids = gids,
    };

    if (!gids)
        return UCCL_ENOMEM;
    snprintf(out.device, sizeof out.device, "%s", port->device);
    snprintf(out.link, sizeof out.link, "%s", port->ethernet ? "RoCE" : "InfiniBand");
    for (int i = 0; i < port->gid_count; i++)
        describe_gid(&port->gids[i], &gids[i]);
    judge_port(port, params, &out);
    tell(user, &out);
    free(gids);
    return 0;
}

static int tell_ports(const struct params *params, uccl_verbs_port_fn tell, void *user, const char **why)
{
    const struct verbs_lib *lib = verbs_lib(why);
    struct verbs_port *ports = NULL;
    int error = 0;

    if (!lib)
        return UCCL_ENODEV;
    int count = verbs_ports_list(lib, &ports);
    for (int i = 0; i < count && !error; i++)
        error = tell_port(&ports[i], params, tell, user);
    if (count >= 0)
        verbs_ports_free(ports, count);
    return error ? error : count;
}

#else

static int tell_ports(const struct params *params, uccl_verbs_port_fn tell, void *user, const char **why)
{
    (void)params, (void)tell, (void)user;
    *why = "not built in (libibverbs-dev, -Dverbs=enabled)";
    return UCCL_ENOTSUP;
}

#endif

UCCL_API int uccl_verbs_ports(const uccl_config *config, uccl_verbs_port_fn tell, void *user, char *status, size_t size)
{
    struct params params;
    const char *why = "";

    if (!tell || !status || size == 0)
        return UCCL_EINVAL;
    CANCEL_LATER;
    *status = '\0';
    int result = config_resolve(config, &params);
    if (!result)
        result = tell_ports(&params, tell, user, &why);
    snprintf(status, size, "%s", why);
    return result;
}
