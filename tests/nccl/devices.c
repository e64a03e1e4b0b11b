/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices the plugin has, and what a parameter does to them that is not allowed. Each case runs in a process of
 * its own. TAP.
 *
 * usage: nccl_devices PLUGIN
 */
#include "pair.h"

#include <stdlib.h>
#include <string.h>

/* How many there are where a parameter is set. */
static int devices_with(struct nccl_net_v12 *net, const char *name, const char *value)
{
    void *context;
    int count = -1;
    if (value)
        setenv(name, value, 1);
    IS(net->init(&context, 7, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->devices(&count), NCCL_SUCCESS);
    IS(net->finalize(context), NCCL_SUCCESS);
    unsetenv(name);
    return count;
}

static void no_device(void)
{
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    void *context;
    int count = -1;
    setenv("UCCL_SOCKET_IFNAME", "=nosuchif", 1);
    IS(net->init(&context, 7, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->devices(&count), NCCL_SUCCESS);
    IS(count, 0);
    IS(warnings("no device: no network interface"), 1);
    IS(net->finalize(context), NCCL_SUCCESS);
    IS(devices_with(net, "UCCL_SOCKET_IFNAME", "=lo"), 1); /* looked at again where nothing is in use */
}

/* Where nobody names interfaces, loopback is one only if there is no other. */
static void chosen_devices(void)
{
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    struct nccl_net_properties_v12 full;
    void *context;
    int named = devices_with(net, "UCCL_SOCKET_IFNAME", "lo,eth,en,veth,wl"), count = -1;
    unsetenv("NCCL_SOCKET_IFNAME");
    IS(net->init(&context, 7, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->devices(&count), NCCL_SUCCESS);
    CHECK_SAY(named > 0 && count > 0, "%d, %d", named, count);
    for (int i = 0; i < count; i++) {
        IS(net->getProperties(i, &full), NCCL_SUCCESS);
        CHECK(full.vProps.devs[0] == i);
        CHECK_SAY(named == 1 || strcmp(full.name, "lo") != 0, "loopback among %d", count);
    }
    IS(net->finalize(context), NCCL_SUCCESS);
}

/* Who says what not to take, or nothing, has not asked for loopback. */
static void excluded_devices(void)
{
    static const char *const EXCLUDES[] = {"", " ,", "^nosuchif", "^=nosuchif,other", ", ^nosuchif,=^other"};
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    unsetenv("UCCL_SOCKET_IFNAME");
    unsetenv("NCCL_SOCKET_IFNAME");
    int count = devices_with(net, "UCCL_SOCKET_IFNAME", NULL);
    for (size_t i = 0; i < sizeof EXCLUDES / sizeof EXCLUDES[0]; i++) {
        IS(devices_with(net, "UCCL_SOCKET_IFNAME", EXCLUDES[i]), count);
        IS(devices_with(net, "NCCL_SOCKET_IFNAME", EXCLUDES[i]), count);
    }
    IS(devices_with(net, "UCCL_SOCKET_IFNAME", "^nosuchif,=other,=lo"), count); /* ^ holds for all */
    IS(devices_with(net, "UCCL_SOCKET_IFNAME", "=lo"), 1);
    IS(devices_with(net, "UCCL_SOCKET_IFNAME", "lo,^nosuchif"), 1);
}

/*
 * An interface that is gone when all communicators have ended: where NCCL keeps the number of devices, it asks for as
 * many as before.
 */
static void gone_device(void)
{
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    struct nccl_net_properties_v12 first, full;
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *context, *listen_comm;
    int named = devices_with(net, "UCCL_SOCKET_IFNAME", "lo,eth,en,veth,wl"), count = -1;
    IS(devices_with(net, "UCCL_SOCKET_IFNAME", "=nosuchif"), 0); /* no device: what was there is not forgotten */
    setenv("UCCL_SOCKET_IFNAME", "=lo", 1);
    IS(net->init(&context, 7, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->devices(&count), NCCL_SUCCESS);
    IS(count, 1); /* for an NCCL that begins anew */
    IS(net->getProperties(0, &first), NCCL_SUCCESS);
    CHECK(strcmp(first.name, "lo") == 0 && first.speed > 1);
    for (int i = 1; i < named; i++) {
        IS(net->getProperties(i, &full), NCCL_SUCCESS);
        CHECK_SAY(strcmp(full.name, "lo") != 0 && full.vProps.devs[0] == i, "%s", full.name);
        CHECK_SAY(full.speed == 1, "%s with %d Mbit/s", full.name, full.speed); /* NCCL takes others */
    }
    CHECK(net->getProperties(named, &full) != NCCL_SUCCESS);
    IS(net->listen(context, 0, handle, &listen_comm), NCCL_SUCCESS);
    IS(net->finalize(context), NCCL_SUCCESS);
    IS(devices_with(net, "UCCL_SOCKET_IFNAME", "lo,eth,en,veth,wl"), named); /* it is back */
    IS(net->getProperties(named - 1, &full), NCCL_SUCCESS);
    CHECK_SAY(full.speed > 1, "%s with %d Mbit/s", full.name, full.speed);
}

/* A parameter that is out of range is no reason to fail before there is something to open. */
static void bad_parameter(void)
{
    struct nccl_net_v12 *net = load("ncclNetPlugin_v12");
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *context, *listen_comm = POISON;
    int count = -1;
    unsetenv("UCCL_BACKEND"); /* verbs ports are looked for, too: it is said once all the same */
    setenv("UCCL_CHUNK_SIZE_KB", "17000000", 1);
    IS(net->init(&context, 7, NULL, logger, NULL), NCCL_SUCCESS);
    IS(net->devices(&count), NCCL_SUCCESS);
    if (count > 0) {
        CHECK(net->listen(context, 0, handle, &listen_comm) != NCCL_SUCCESS && !listen_comm);
    }
    IS(warnings("UCCL_CHUNK_SIZE_KB"), 1);
    IS(warnings("no device: a parameter is not allowed"), 1);
    IS(net->finalize(context), NCCL_SUCCESS);
}

/* Nor does one of the plugin's own defaults stand in for what the user got wrong. */
static void bad_parameter_later(void)
{
    static const char *const ROWS[][2] = {{"UCCL_SPIN_US", "abc"}, {"UCCL_BACKEND", "udq"}, {"UCCL_MSG_WINDOW", "65"}};
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    void *context, *listen_comm;
    struct nccl_net_v12 *net = start(&context);
    unsetenv("UCCL_BACKEND");
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        setenv(ROWS[i][0], ROWS[i][1], 1);
        listen_comm = POISON;
        IS(net->listen(context, 0, handle, &listen_comm), NCCL_INVALID_ARGUMENT);
        CHECK(!listen_comm);
        IS(warnings(ROWS[i][0]), 1);
        unsetenv(ROWS[i][0]);
    }
    IS(net->listen(context, 0, handle, &listen_comm), NCCL_SUCCESS);
    IS(net->finalize(context), NCCL_SUCCESS);
}

static const struct plain_case CASES[] = {
    {"no device: init succeeds", no_device},
    {"devices that nobody names", chosen_devices},
    {"devices where a list only excludes", excluded_devices},
    {"devices that are gone", gone_device},
    {"a parameter out of range: init succeeds, with no device", bad_parameter},
    {"a parameter out of range after init: listen fails", bad_parameter_later},
};

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    return run_cases(argv[1], CASES, sizeof CASES / sizeof CASES[0]);
}
