/* SPDX-License-Identifier: Apache-2.0 */
#include "base/stand_in.h"

#include "base/log.h"
#include "base/warned.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A value of another library, and the same in our words. */
struct word {
    const char *theirs, *ours;
};

/* NCCL still accepts the numbers that preceded its words. */
static const struct word gdr_levels[] = {
    {"LOC", "loc"}, {"PIX", "pix"}, {"PXB", "pxb"}, {"PHB", "phb"}, {"NODE", "node"}, {"SYS", "sys"}, {"0", "loc"},
    {"1", "pix"},   {"2", "pxb"},   {"3", "phb"},   {"4", "sys"},   {"5", "sys"},     {NULL, NULL}};

/* 2, the default: where the machine can. Our 1 means the same. */
static const struct word relaxed_orderings[] = {{"0", "0"}, {"1", "1"}, {"2", "1"}, {NULL, NULL}};

/* 0: NCCL registers by address. 1: by dma-buf, and by address where that fails. */
static const struct word dmabuf_switches[] = {{"0", "peermem"}, {"1", "auto"}, {NULL, NULL}};

/* VERSION asks for one line more and hides no warnings. */
static const struct word debug_levels[] = {{"VERSION", "warn"}, {"WARN", "warn"},   {"INFO", "info"},
                                           {"ABORT", "info"},   {"TRACE", "debug"}, {NULL, NULL}};

/*
 * Of several stand-ins for one parameter the first one wins. `automatic` is the value that chooses nothing;
 * `words` translates all values, where they differ from ours, and ends with a NULL.
 */
static const struct {
    enum param_index index;
    const char *name;
    const char *automatic;
    const struct word *words;
} stand_ins[] = {
    {INDEX_socket_ifname, "NCCL_SOCKET_IFNAME", NULL, NULL},
    {INDEX_ib_hca, "NCCL_IB_HCA", NULL, NULL},
    {INDEX_ib_gid_index, "UCCL_ROCE_GID_IDX", "-1", NULL},
    {INDEX_ib_gid_index, "NCCL_IB_GID_INDEX", "-1", NULL},
    {INDEX_ib_sl, "NCCL_IB_SL", "-1", NULL},
    {INDEX_ib_tc, "NCCL_IB_TC", "-1", NULL},
    {INDEX_ib_timeout, "NCCL_IB_TIMEOUT", "-1", NULL},
    {INDEX_ib_retry_cnt, "NCCL_IB_RETRY_CNT", "-1", NULL},
    {INDEX_ib_relaxed_ordering, "NCCL_IB_PCI_RELAXED_ORDERING", NULL, relaxed_orderings},
    {INDEX_gdr, "NCCL_DMABUF_ENABLE", NULL, dmabuf_switches},
    {INDEX_gdr_level, "NCCL_NET_GDR_LEVEL", "-1", gdr_levels},
    {INDEX_log_level, "NCCL_DEBUG", NULL, debug_levels},
};

enum { STAND_INS = sizeof stand_ins / sizeof stand_ins[0] };

/* Translates a value of a stand-in; NULL: its library does not know it either. */
static const char *translate(const struct word *words, const char *text)
{
    if (!words)
        return text;
    for (; words->theirs; words++)
        if (strcasecmp(text, words->theirs) == 0)
            return words->ours;
    return NULL;
}

static void warn_of_stand_in(size_t i, const char *text)
{
    const struct param_row *row = &param_rows[stand_ins[i].index];
    const char *unit = row->unit;
    char words[PARAM_VALUE_SHOWN] = "";
    if (!warned_first(stand_ins[i].name))
        return;
    for (const struct word *word = stand_ins[i].words; word && word->theirs; word++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%s", *words ? "|" : "", word->theirs);
    LOG_WARNING("%s=\"%.*s\" (environment), read for %s, is not understood and has no effect; allowed: %s%s%s",
                stand_ins[i].name, PARAM_VALUE_SHOWN, text, row->name, *words ? words : row->range, *unit ? " " : "",
                unit);
}

const char *stand_in_find(enum param_index index, const char **name)
{
    for (size_t i = 0; i < STAND_INS; i++) {
        const char *given = stand_ins[i].index == index ? getenv(stand_ins[i].name) : NULL;
        if (!given || (stand_ins[i].automatic && strcmp(given, stand_ins[i].automatic) == 0))
            continue;
        struct params scratch;
        const char *text = translate(stand_ins[i].words, given);
        bool ours = strncmp(stand_ins[i].name, PARAM_PREFIX, PARAM_PREFIX_LENGTH) == 0;
        if (!text || (!ours && !param_parse(index, text, &scratch))) {
            warn_of_stand_in(i, given);
            continue;
        }
        *name = stand_ins[i].name;
        return text;
    }
    return NULL;
}

bool stand_in_is(const char *name)
{
    for (size_t i = 0; i < STAND_INS; i++)
        if (strcmp(name, stand_ins[i].name) == 0)
            return true;
    return false;
}
