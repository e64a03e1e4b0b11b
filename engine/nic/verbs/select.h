/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to take of the verbs devices that were found: which ports, which GID, which path MTU, which kind
 * of queue pair, and why, in words for the log and uccl_info. Pure functions over plain values: no
 * libibverbs, no state. Any thread.
 */
#ifndef UCCL_VERBS_SELECT_H
#define UCCL_VERBS_SELECT_H

#include "defs/params.h"
#include "nic/filter.h"

#include <stddef.h>

/* How bulk data travels; control always goes by UD. */
enum verbs_mode { VERBS_UD, VERBS_UC, VERBS_RC, VERBS_MODES };

enum {
    VERBS_MTU_SHIFT_MIN = 8, /* 256 bytes */
    VERBS_MTU_SHIFT_MAX = 12,
    VERBS_GID_AUTO = 65535, /* UCCL_IB_GID_INDEX: choose */
    VERBS_GID_TEXT = 48,    /* an IPv6 address fits */
    VERBS_WHY_TEXT = 192,   /* what the functions below write at most, NUL included */
};

enum verbs_gid_type { VERBS_GID_IB, VERBS_GID_ROCE_V1, VERBS_GID_ROCE_V2 };

/* An entry of a port's GID table that could be read and is not empty. */
struct verbs_gid {
    int index;
    uint8_t type; /* enum verbs_gid_type */
    uint8_t gid[16];
};

/* Kinds of queue pair that a device was seen to make. */
struct verbs_able {
    bool ud, uc, rc;
};

/* "UD", "UC", "RC". */
const char *verbs_mode_name(enum verbs_mode mode);

/*
 * Does `filter` (UCCL_IB_HCA) admit port `port` of `device`? NCCL's syntax: a comma list of name
 * prefixes, each with an optional ":port"; "=" before an item wants the whole name, "^" shuts out what
 * it matches; before the first item they hold for the whole list. An empty filter admits everything.
 */
bool verbs_admits(const char *filter, const char *device, unsigned port);
/* Is this port one that an item of such a list means? */
bool verbs_item_names(const struct filter_item *item, const char *device, unsigned port);

/*
 * The GID that a port should use, or NULL where it has none. `wanted` (UCCL_IB_GID_INDEX) is taken where
 * it is in the table, else ignored: compare with the result's index to tell the user. By itself: an
 * address that reaches beyond its link before one that does not, then RoCE v2 before v1, IPv4 before
 * IPv6, low index before high.
 */
const struct verbs_gid *verbs_choose_gid(const struct verbs_gid *gids, int count, uint64_t wanted,
                                         char why[VERBS_WHY_TEXT]);
/* Whether a GID stands for an IPv4 address. */
bool verbs_gid_is_ipv4(const uint8_t gid[16]);
/* "10.0.0.1" or "2001:db8::1"; returns `out`. */
const char *verbs_gid_text(const uint8_t gid[16], char out[VERBS_GID_TEXT]);

/*
 * log2 of the path MTU between two ports: the smaller one of both, and no more than makes an IP packet of
 * `packet_max` bytes (UCCL_MTU; 0: no limit). At least 256 bytes, since none is smaller.
 */
unsigned verbs_choose_mtu(unsigned ours_shift, unsigned theirs_shift, uint64_t packet_max);

/* The kind of queue pair for bulk data, an enum verbs_mode, or -1: this device cannot serve. */
int verbs_choose_mode(const struct verbs_able *able, const struct params *params, char why[VERBS_WHY_TEXT]);

/* A port, as far as choosing goes. */
struct verbs_candidate {
    const char *device;
    unsigned number;
    bool active, ethernet;
    struct verbs_able able;
    const struct verbs_gid *gids;
    int gid_count;
};

/* What the engine makes of a port. */
struct verbs_choice {
    bool usable;
    char why_not[VERBS_WHY_TEXT]; /* empty where it is usable */
    const struct verbs_gid *gid;  /* NULL: none */
    char why_gid[VERBS_WHY_TEXT];
    int mode; /* enum verbs_mode, or -1 */
    char why_mode[VERBS_WHY_TEXT];
};

/* Judges a port; the GID and mode are filled in for unusable ones too. */
void verbs_judge(const struct verbs_candidate *port, const struct params *params, struct verbs_choice *out);

/*
 * UCCL_IB_TC as it may be sent. Its two low bits are ECN's, and both set would mark every packet as having
 * met congestion: that becomes "ECN capable".
 */
uint8_t verbs_traffic_class(uint64_t wanted);

#endif
