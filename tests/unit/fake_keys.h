/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys that the device of fake_verbs.h checks, if a test wants it: each registration has one of its own, never used
 * again. Writes that are refused fail on RC, and are lost on UC.
 */
#ifndef UCCL_TEST_FAKE_KEYS_H
#define UCCL_TEST_FAKE_KEYS_H

#include "nic/verbs/data_qp.h"

#include <stdlib.h>

enum { FAKE_OWN_KEYS = 1 << 24, FAKE_REGIONS = 4096 };

struct fake_region {
    struct ibv_mr mr;
    bool writable;
};

static struct {
    bool checked;
    void (*forge)(struct ibv_send_wr *wr); /* may change a write that is about to happen; or NULL */
    unsigned refused, made;
    struct fake_region *regions[FAKE_REGIONS]; /* by key, from FAKE_OWN_KEYS on */
} fake_keys;

/* Whether the key is that of a registration that has not ended. */
static inline bool fake_key_lives(uint32_t key)
{
    return key >= FAKE_OWN_KEYS && key - FAKE_OWN_KEYS < fake_keys.made && fake_keys.regions[key - FAKE_OWN_KEYS];
}

/* Whether a peer may write to memory of this device by the key that it names. */
static inline bool fake_key_allows(const struct ibv_context *context, const struct ibv_send_wr *wr, uint32_t length)
{
    uint32_t key = wr->wr.rdma.rkey;
    if (!fake_keys.checked || length == 0)
        return true;
    const struct fake_region *region = fake_key_lives(key) ? fake_keys.regions[key - FAKE_OWN_KEYS] : NULL;
    uint64_t at = region ? wr->wr.rdma.remote_addr - (uintptr_t)region->mr.addr : 0;
    bool allows = region && region->writable && region->mr.context->device == context->device &&
                  at <= region->mr.length && length <= region->mr.length - at;
    fake_keys.refused += !allows;
    return allows;
}

/* What becomes of a write that works else. */
static inline enum ibv_wc_status fake_key_fate(const struct ibv_qp *qp, const struct ibv_context *to,
                                               struct ibv_send_wr *wr, uint32_t length, bool *lost)
{
    if (wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
        return IBV_WC_SUCCESS;
    if (fake_keys.forge)
        fake_keys.forge(wr);
    *lost = !fake_key_allows(to, wr, length);
    return *lost && qp->qp_type == IBV_QPT_RC ? IBV_WC_REM_ACCESS_ERR : IBV_WC_SUCCESS;
}

/* The registration with a key of its own. */
static inline struct ibv_mr *fake_key_given(struct ibv_mr *mr, int access)
{
    if (!fake_keys.checked)
        return mr;
    struct fake_region *region = realloc(mr, sizeof *region);
    FAKE_REQUIRE(region && fake_keys.made < FAKE_REGIONS);
    region->mr.rkey = FAKE_OWN_KEYS + fake_keys.made;
    region->writable = access & IBV_ACCESS_REMOTE_WRITE;
    fake_keys.regions[fake_keys.made++] = region;
    return &region->mr;
}

static inline void fake_key_ends(struct ibv_mr *mr)
{
    if (mr->rkey >= FAKE_OWN_KEYS)
        fake_keys.regions[mr->rkey - FAKE_OWN_KEYS] = NULL;
    free(mr);
}

#endif
