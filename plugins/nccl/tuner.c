/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL's protocol LL takes over this plugin. LL has the lowest latency, and NCCL expects it to use half of a
 * link's bandwidth. Over UDP and TCP it moves LL_BYTES_PER_US at most, however fast the link is: its receives are
 * watched, so one thread copies each of them, eight bytes at a time. Simple is faster from about 128 KiB on, where NCCL
 * would still choose LL. So LL's times get what its bytes take. Nothing else is changed.
 */
#include "nccl_tuner.h"
#include "plugin.h"

#include <stdlib.h>
#include <strings.h>

/* As measured over 2 and 4 channels (docs/performance.md). Of data: LL sends a flag with each four bytes. The first
 * bytes of a collective take what NCCL expects: they fit in a message or two of each channel. */
static const float LL_BYTES_PER_US = 2000, LL_FREE_BYTES = 32768;

struct tuner {
    float ranks;
    float bytes_per_us; /* LL's between two nodes; 0: NCCL's times stay */
};

/* Whether what crosses nodes is ours, and not verbs', where LL was not measured. */
static bool is_used(void)
{
    const char *network = getenv("NCCL_NET");
    const struct device *device = devices_get(0);
    return device && !device->verbs && (!network || !*network || strcasecmp(network, "uccl") == 0);
}

static enum nccl_result init(size_t ranks, size_t nodes, nccl_logger_fn logger, void **context)
{
    struct tuner *tuner = calloc(1, sizeof *tuner);
    *context = tuner;
    if (!tuner || nodes < 2 || !is_used())
        return NCCL_SUCCESS;
    /* processes of one node that have NICs of their own move their channels' bytes at the same time */
    size_t beside = ranks / nodes, devices = (size_t)devices_count();
    tuner->ranks = (float)ranks;
    tuner->bytes_per_us = LL_BYTES_PER_US * (float)(beside < devices ? beside : devices);
    return NCCL_SUCCESS;
}

/* How many times the bytes of a collective cross between two ranks of a ring; 0: of no such collective. */
static float crossings(int collective, float ranks)
{
    switch (collective) {
    case NCCL_BROADCAST:
    case NCCL_REDUCE:
        return 1;
    case NCCL_ALL_GATHER:
    case NCCL_REDUCE_SCATTER:
        return (ranks - 1) / ranks;
    case NCCL_ALL_REDUCE:
        return 2 * (ranks - 1) / ranks;
    default:
        return 0;
    }
}

static enum nccl_result tune(void *context, int collective, size_t bytes, int operations, float **times, int algorithms,
                             int protocols, int registered, int *channels)
{
    const struct tuner *tuner = context;
    float *time = (float *)(void *)times;
    if (!tuner || tuner->bytes_per_us <= 0 || protocols <= NCCL_PROTOCOL_SIMPLE)
        return NCCL_SUCCESS;
    float slow_bytes = crossings(collective, tuner->ranks) * (float)bytes - LL_FREE_BYTES;
    if (slow_bytes <= 0)
        return NCCL_SUCCESS;
    for (int a = 0; a < algorithms; a++) {
        float *ll = &time[a * protocols + NCCL_PROTOCOL_LL];
        if (*ll >= 0)
            *ll += slow_bytes / tuner->bytes_per_us;
    }
    return NCCL_SUCCESS;
}

static enum nccl_result tune_v3(void *context, int collective, size_t bytes, int operations, float **times,
                                int algorithms, int protocols, int *channels)
{
    return tune(context, collective, bytes, operations, times, algorithms, protocols, 0, channels);
}

static enum nccl_result destroy(void *context)
{
    free(context);
    return NCCL_SUCCESS;
}

EXPORTED struct nccl_tuner_v4 ncclTunerPlugin_v4 = {
    .name = "uccl",
    .init = init,
    .getCollInfo = tune,
    .destroy = destroy,
};

EXPORTED struct nccl_tuner_v3 ncclTunerPlugin_v3 = {
    .name = "uccl",
    .init = init,
    .getCollInfo = tune_v3,
    .destroy = destroy,
};
