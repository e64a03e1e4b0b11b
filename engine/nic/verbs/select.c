/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choices among verbs devices, ports, GIDs, MTUs and queue pairs. They are made once, when an engine or a
 * peer is set up, and are what users stumble over most (a link-local GID, a port of the wrong network, an
 * MTU that the other end lacks), so each gives its reason.
 */
#include "nic/verbs/select.h"

#include "nic/nic.h"

#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* IPv6, UDP, base, RDMA and immediate headers, invariant CRC: what RoCE v2 adds to one MTU */
    PACKET_OVERHEAD = 40 + 8 + 12 + 16 + 4 + 4,
};

const char *verbs_mode_name(enum verbs_mode mode)
{
    static const char *const names[VERBS_MODES] = {[VERBS_UD] = "UD", [VERBS_UC] = "UC", [VERBS_RC] = "RC"};

    assert(mode < VERBS_MODES);
    return names[mode];
}

/* ---- devices and ports ----------------------------------------------------------------------- */

struct device_port {
    const char *device;
    unsigned port;
};

/* One item without its "^" and "=": "mlx5_1" or "mlx5_1:2". */
static bool item_matches(char *item, bool exact, const void *context)
{
    const struct device_port *wants = context;
    char *colon = strchr(item, ':');

    if (colon) {
        char *end;
        unsigned long wanted = strtoul(colon + 1, &end, 10);

        if (end == colon + 1 || *end != '\0' || wanted != wants->port)
            return false;
        *colon = '\0';
    }
    return filter_name_matches(item, exact, wants->device);
}

bool verbs_item_names(const struct filter_item *item, const char *device, unsigned port)
{
    return filter_item_matches(item, item_matches, &(struct device_port){device, port});
}

bool verbs_admits(const char *filter, const char *device, unsigned port)
{
    return filter_admits(filter, item_matches, &(struct device_port){device, port});
}

/* ---- GIDs ------------------------------------------------------------------------------------ */

bool verbs_gid_is_ipv4(const uint8_t gid[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(gid, mapped, sizeof mapped) == 0;
}

static bool is_link_local(const uint8_t gid[16])
{
    if (verbs_gid_is_ipv4(gid))
        return gid[12] == 169 && gid[13] == 254;
    return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* Lower is better. On InfiniBand all are of one type, and the first is the port's own. */
static unsigned gid_rank(const struct verbs_gid *gid)
{
    if (gid->type == VERBS_GID_IB)
        return 0;
    return 4U * is_link_local(gid->gid) + 2U * (gid->type == VERBS_GID_ROCE_V1) + !verbs_gid_is_ipv4(gid->gid);
}

const char *verbs_gid_text(const uint8_t gid[16], char out[VERBS_GID_TEXT])
{
    bool v4 = verbs_gid_is_ipv4(gid);

    return inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? gid + 12 : gid, out, VERBS_GID_TEXT);
}

static const char *gid_reason(const struct verbs_gid *gid)
{
    static const char *const reasons[] = {
        "RoCE v2, IPv4",
        "RoCE v2, IPv6",
        "RoCE v1, no v2 there",
        "RoCE v1, no v2 there",
        "link-local, which other networks cannot reach: the port has no other address",
    };
    unsigned rank = gid_rank(gid);

    if (gid->type == VERBS_GID_IB)
        return "the first of an InfiniBand port";
    return reasons[rank < 4 ? rank : 4];
}

const struct verbs_gid *verbs_choose_gid(const struct verbs_gid *gids, int count, uint64_t wanted,
                                         char why[VERBS_WHY_TEXT])
{
    const struct verbs_gid *best = NULL;
    char missing[64] = "";

    for (int i = 0; i < count; i++) {
        if (wanted != VERBS_GID_AUTO && (uint64_t)gids[i].index == wanted) {
            snprintf(why, VERBS_WHY_TEXT, "UCCL_IB_GID_INDEX=%d", gids[i].index);
            return &gids[i];
        }
        if (!best || gid_rank(&gids[i]) < gid_rank(best))
            best = &gids[i];
    }
    if (!best) {
        snprintf(why, VERBS_WHY_TEXT, "the port has no GID (has its interface an IP address?)");
        return NULL;
    }
    if (wanted != VERBS_GID_AUTO)
        snprintf(missing, sizeof missing, "UCCL_IB_GID_INDEX=%u is empty or unreadable; ", (unsigned)wanted);
    snprintf(why, VERBS_WHY_TEXT, "%s%s", missing, gid_reason(best));
    return best;
}

/* ---- MTU and traffic class ------------------------------------------------------------------- */

unsigned verbs_choose_mtu(unsigned ours_shift, unsigned theirs_shift, uint64_t packet_max)
{
    unsigned shift = ours_shift < theirs_shift ? ours_shift : theirs_shift;

    while (packet_max != 0 && shift > VERBS_MTU_SHIFT_MIN && (UINT64_C(1) << shift) + PACKET_OVERHEAD > packet_max)
        shift--;
    return shift;
}

uint8_t verbs_traffic_class(uint64_t wanted)
{
    if ((wanted & NIC_ECN_CE) == NIC_ECN_CE)
        wanted = (wanted & ~(uint64_t)NIC_ECN_CE) | NIC_ECN_ECT0;
    return (uint8_t)wanted;
}

/* ---- kinds of queue pair --------------------------------------------------------------------- */

static int mode_because(enum verbs_mode mode, char why[VERBS_WHY_TEXT], const char *reason)
{
    snprintf(why, VERBS_WHY_TEXT, "%s", reason);
    return (int)mode;
}

int verbs_choose_mode(const struct verbs_able *able, const struct params *params, char why[VERBS_WHY_TEXT])
{
    bool uc = able->uc && params->in_order;

    if (!able->ud) {
        snprintf(why, VERBS_WHY_TEXT, "the device makes no UD queue pairs, which control needs");
        return -1;
    }
    if (params->udmode)
        return mode_because(VERBS_UD, why,
                            params->rcmode ? "UCCL_UDMODE=1, which outranks UCCL_RCMODE=1" : "UCCL_UDMODE=1");
    if (params->rcmode && able->rc)
        return mode_because(VERBS_RC, why, "UCCL_RCMODE=1");
    if (params->rcmode)
        return mode_because(uc ? VERBS_UC : VERBS_UD, why, "UCCL_RCMODE=1, but the device makes no RC queue pairs");
    if (uc)
        return mode_because(VERBS_UC, why, "the default");
    if (able->uc)
        return mode_because(able->rc ? VERBS_RC : VERBS_UD, why,
                            "UCCL_IN_ORDER=0: on UC the NIC could place late copies");
    return mode_because(able->rc ? VERBS_RC : VERBS_UD, why,
                        able->rc ? "the device makes no UC queue pairs"
                                 : "the device makes neither UC nor RC queue pairs");
}

/* ---- ports ----------------------------------------------------------------------------------- */

void verbs_judge(const struct verbs_candidate *port, const struct params *params, struct verbs_choice *out)
{
    const char *why_not = "";

    *out = (struct verbs_choice){0};
    out->gid = verbs_choose_gid(port->gids, port->gid_count, params->ib_gid_index, out->why_gid);
    out->mode = verbs_choose_mode(&port->able, params, out->why_mode);
    if (!verbs_admits(params->ib_hca, port->device, port->number))
        why_not = "UCCL_IB_HCA does not admit it";
    else if (!port->active)
        why_not = "it is not active";
    else if (port->ethernet && !out->gid)
        why_not = out->why_gid;
    else if (out->mode < 0)
        why_not = out->why_mode;
    snprintf(out->why_not, sizeof out->why_not, "%s", why_not);
    out->usable = *why_not == '\0';
}
