/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the plugin tells NCCL that a collective takes under its protocol LL (plugins/nccl/tuner.c). TAP.
 *
 * usage: nccl_tuner PLUGIN
 */
#include "nccl_tuner.h"
#include "pair.h"

#include <stdlib.h>

enum { ALGORITHMS = 7, PROTOCOLS = 3 };

/* What a tuner adds to LL's time of a collective, in us. All else is to stay. */
static float added_to_ll(const struct nccl_tuner_v4 *tuner, size_t ranks, size_t nodes, int collective, size_t bytes)
{
    float times[ALGORITHMS][PROTOCOLS], ll;
    void *context = POISON;
    int channels = 77;
    for (int a = 0; a < ALGORITHMS; a++)
        for (int p = 0; p < PROTOCOLS; p++)
            times[a][p] = (float)(100 + 10 * a + p);
    times[0][NCCL_PROTOCOL_LL] = times[2][NCCL_PROTOCOL_SIMPLE] = -1; /* what NCCL will not choose */
    IS(tuner->init(ranks, nodes, logger, &context), NCCL_SUCCESS);
    IS(tuner->getCollInfo(context, collective, bytes, 1, (float **)(void *)times, ALGORITHMS, PROTOCOLS, 0, &channels),
       NCCL_SUCCESS);
    IS(tuner->destroy(context), NCCL_SUCCESS);
    IS(channels, 77);
    CHECK(times[0][NCCL_PROTOCOL_LL] == -1 && times[2][NCCL_PROTOCOL_SIMPLE] == -1);
    ll = times[1][NCCL_PROTOCOL_LL] - 110;
    for (int a = 0; a < ALGORITHMS; a++) {
        float off = times[a][NCCL_PROTOCOL_LL] - (float)(100 + 10 * a) - ll;
        CHECK_SAY(a == 0 || (off < 0.1F && off > -0.1F), "row %d: %g us more than another", a, off);
        CHECK(times[a][NCCL_PROTOCOL_LL128] == (float)(101 + 10 * a));
        CHECK(a == 2 || times[a][NCCL_PROTOCOL_SIMPLE] == (float)(102 + 10 * a));
    }
    return ll;
}

#define ADDS(expected, ...)                                                                                            \
    do {                                                                                                               \
        float is_ = added_to_ll(__VA_ARGS__), off_ = is_ - (float)(expected);                                          \
        CHECK_SAY(off_<0.1F && off_> - 0.1F, "%s adds %g us, not %g", #__VA_ARGS__, is_, (double)(expected));          \
    } while (0)

/* 2,000 bytes a us of what crosses between two ranks of a ring, beyond 32 KiB. */
static void times_of_ll(void)
{
    const struct nccl_tuner_v4 *tuner = load("ncclTunerPlugin_v4");
    void *context;
    ADDS(0, tuner, 2, 2, NCCL_ALL_REDUCE, 1 << 20); /* NCCL has not begun with the plugin */
    struct nccl_net_v12 *net = start(&context);
    ADDS(0, tuner, 2, 2, NCCL_ALL_REDUCE, 8);
    ADDS(0, tuner, 2, 2, NCCL_ALL_REDUCE, 32768);
    ADDS(48, tuner, 2, 2, NCCL_ALL_REDUCE, 128768);
    ADDS(96, tuner, 4, 4, NCCL_ALL_REDUCE, 149846); /* crosses one and a half times */
    ADDS(48, tuner, 2, 2, NCCL_ALL_GATHER, 257536);
    ADDS(48, tuner, 2, 2, NCCL_REDUCE_SCATTER, 257536);
    ADDS(48, tuner, 2, 2, NCCL_BROADCAST, 128768);
    ADDS(48, tuner, 2, 2, NCCL_REDUCE, 128768);
    ADDS(48, tuner, 16, 2, NCCL_BROADCAST, 128768); /* one NIC for the eight of a node */
    ADDS(0, tuner, 2, 2, 5, 1 << 20);               /* send and receive */
    ADDS(0, tuner, 8, 1, NCCL_ALL_REDUCE, 1 << 20); /* nothing crosses nodes */
    ADDS(0, tuner, 0, 0, NCCL_ALL_REDUCE, 1 << 20);
    setenv("NCCL_NET", "Socket", 1);
    ADDS(0, tuner, 2, 2, NCCL_BROADCAST, 1 << 20);
    setenv("NCCL_NET", "uccl", 1);
    ADDS(48, tuner, 2, 2, NCCL_BROADCAST, 128768);
    unsetenv("NCCL_NET");
    IS(net->finalize(context), NCCL_SUCCESS);
}

static void version_3(void)
{
    const struct nccl_tuner_v3 *tuner = load("ncclTunerPlugin_v3");
    float times[PROTOCOLS] = {1, 2, 3}, none = 1;
    void *context, *tuned;
    int channels = 77;
    struct nccl_net_v12 *net = start(&context);
    IS(tuner->init(2, 2, logger, &tuned), NCCL_SUCCESS);
    IS(tuner->getCollInfo(tuned, NCCL_BROADCAST, 128768, 1, (float **)(void *)times, 1, PROTOCOLS, &channels),
       NCCL_SUCCESS);
    CHECK_SAY(times[0] > 48.9F && times[0] < 49.1F && times[1] == 2 && times[2] == 3, "%g", times[0]);
    /* a table of one column is none that the plugin knows */
    IS(tuner->getCollInfo(tuned, NCCL_BROADCAST, 128768, 1, (float **)(void *)&none, 1, 1, &channels), NCCL_SUCCESS);
    CHECK(none == 1 && channels == 77);
    IS(tuner->destroy(tuned), NCCL_SUCCESS);
    IS(net->finalize(context), NCCL_SUCCESS);
}

static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    {"times of LL", times_of_ll},
    {"version 3", version_3},
};

int main(int argc, char **argv)
{
    unsigned count = sizeof CASES / sizeof CASES[0];
    if (argc < 2)
        return 2;
    unsetenv("NCCL_NET");
    begin_cases(argv[1], count);
    for (unsigned i = 0; i < count; i++) {
        CASES[i].run();
        printf("ok %u - %s\n", i + 1, CASES[i].name);
    }
    return 0;
}
