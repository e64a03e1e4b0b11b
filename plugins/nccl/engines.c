/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One engine per NIC and traffic class, for all communicators of the process: they share its threads, and with equal
 * peers its flows. It is opened by the first that listens or connects, on a thread that NCCL has bound near its GPU.
 */
#include "plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCI_DEVICES "/sys/bus/pci/devices"

static struct engine *engines; /* under plugin_lock */

/* ---- settings --------------------------------------------------------------------------------- */

int parameter(const char *name, char *value, size_t size)
{
    struct uccl_param_info info;
    char source[64];
    unsigned i = 0;
    while (uccl_param_info(i, &info) == UCCL_OK && strcmp(info.name, name) != 0)
        i++;
    int error = uccl_param_value(NULL, i, value, size, source, sizeof source);
    return error ? error : strcmp(source, "default") != 0;
}

/* For NCCL, what the user has not set is so. */
static const struct {
    const char *name, *value;
} DEFAULTS[] = {
    {"UCCL_MSG_WINDOW", "64"},           /* at most 32 requests are outstanding, and memory goes with it */
    {"UCCL_EAGER_WINDOW_KB", "128"},     /* likewise, of small messages */
    {"UCCL_ACCEPT_WAIT_MS", "86400000"}, /* NCCL itself knows how long to wait for a rank */
    {"UCCL_MAX_REQUESTS", "1048576"},    /* receives of many communicators must leave some to sends */
    {"UCCL_SPIN_US", "200"},             /* threads that share short messages have one every 100 us or so */
    {"UCCL_BACKEND", "udp"},             /* TCP, alone or beside UDP (auto), is for who asks: NCCL was slower over it */
};

/* Unless the user has set it. A value that is not allowed is an error here, as it is where nothing stands in for it. */
static int set_default(uccl_config *config, const char *name, const char *value)
{
    char users[64];
    int set = parameter(name, users, sizeof users);
    return set == 0 ? uccl_config_set(config, name, value) : set < 0 ? set : UCCL_OK;
}

static int set_all(uccl_config *config, const struct device *device, int traffic_class)
{
    char value[64];
    int error = UCCL_OK;
    for (size_t i = 0; i < sizeof DEFAULTS / sizeof DEFAULTS[0] && !error; i++)
        error = set_default(config, DEFAULTS[i].name, DEFAULTS[i].value);
    if (!error && device->verbs)
        error = uccl_config_set(config, "UCCL_BACKEND", "verbs");
    /* an address says which one of an interface's; one with an interface in it is no item of that list */
    snprintf(value, sizeof value, "=%s", device->name);
    if (!error && device->verbs)
        error = uccl_config_set(config, "UCCL_IB_HCA", value);
    else if (!error)
        error = uccl_config_set(config, "UCCL_SOCKET_IFNAME", strchr(device->address, '%') ? value : device->address);
    /* NICs that do the work themselves need no more threads */
    unsigned threads =
        device->verbs ? 0 : threads_wanted(uccl_cores(), threads_gpus(PCI_DEVICES), (unsigned)devices_count());
    snprintf(value, sizeof value, "%u", threads);
    if (!error && threads)
        error = set_default(config, "UCCL_NUM_ENGINES", value);
    snprintf(value, sizeof value, "%d", traffic_class);
    if (!error && traffic_class != NCCL_NET_UNDEFINED)
        error = uccl_config_set(config, device->verbs ? "UCCL_IB_TC" : "UCCL_TRAFFIC_CLASS", value);
    return error;
}

int engine_config(const struct device *device, int traffic_class, uccl_config **out)
{
    uccl_config *config;
    int error = uccl_config_create(&config);
    if (error)
        return error;
    error = set_all(config, device, traffic_class);
    if (error)
        uccl_config_destroy(config);
    else
        *out = config;
    return error;
}

/* ---- engines ---------------------------------------------------------------------------------- */

/* Under the lock. */
static struct engine *find(int device, int traffic_class)
{
    struct engine *engine = engines;
    while (engine && (engine->device != device || engine->traffic_class != traffic_class))
        engine = engine->next;
    return engine;
}

/* Under the lock, which keeps others from opening the same one. */
static enum nccl_result open_engine(int index, const struct device *device, int traffic_class, struct engine **out)
{
    struct engine *engine = calloc(1, sizeof *engine);
    uccl_config *config = NULL;
    int error = engine ? engine_config(device, traffic_class, &config) : UCCL_ENOMEM;
    if (!error) {
        process_engines(1);
        error = uccl_open(config, &engine->uccl);
        if (error)
            process_engines(-1);
    }
    if (config)
        uccl_config_destroy(config);
    if (error) {
        WARN("cannot open an engine on %s: %s", device->name, uccl_strerror(error));
        free(engine);
        return result_of(error);
    }
    engine->device = index;
    engine->traffic_class = traffic_class;
    engine->next = engines;
    engines = engine;
    *out = engine;
    return NCCL_SUCCESS;
}

enum nccl_result engine_get(int index, int traffic_class, struct engine **out)
{
    const struct device *device = devices_get(index);
    enum nccl_result result = NCCL_SUCCESS;
    if (!device)
        return NCCL_INVALID_ARGUMENT;
    pthread_mutex_lock(&plugin_lock);
    struct engine *engine = find(index, traffic_class);
    if (!engine)
        result = open_engine(index, device, traffic_class, &engine);
    if (!result) {
        comms_sweep(engine);
        engine->users++;
        *out = engine;
    }
    pthread_mutex_unlock(&plugin_lock);
    return result;
}

/* Takes the first out that nobody uses. Under the lock. */
static struct engine *take_idle(void)
{
    struct engine **link = &engines, *engine;
    if (plugin_keeps_engines())
        return NULL;
    while (*link && (*link)->users)
        link = &(*link)->next;
    engine = *link;
    if (engine)
        *link = engine->next;
    return engine;
}

void engines_close_idle(void)
{
    struct engine *engine;
    do {
        pthread_mutex_lock(&plugin_lock);
        engine = take_idle();
        pthread_mutex_unlock(&plugin_lock);
        if (engine) {
            uccl_close(engine->uccl); /* waits for goodbyes */
            process_engines(-1);
            while (engine->closing) {
                struct comm *comm = engine->closing;
                engine->closing = comm->next;
                free(comm);
            }
            free(engine->told);
            free(engine);
        }
    } while (engine);
}

void engine_put(struct engine *engine)
{
    pthread_mutex_lock(&plugin_lock);
    engine->users--;
    pthread_mutex_unlock(&plugin_lock);
    engines_close_idle();
}

/* Where in the list of those whose failure the log knows; its length: nowhere. Under the lock. */
static unsigned find_told(const struct engine *engine, const uint8_t peer_id[16])
{
    unsigned i = 0;
    while (i < engine->told_count && memcmp(engine->told[i], peer_id, sizeof engine->told[i]) != 0)
        i++;
    return i;
}

bool engine_told(struct engine *engine, const uint8_t peer_id[16])
{
    if (find_told(engine, peer_id) < engine->told_count)
        return true;
    uint8_t(*more)[16] = realloc(engine->told, (engine->told_count + 1) * sizeof *more);
    if (more) { /* else it is told again */
        memcpy(more[engine->told_count++], peer_id, sizeof *more);
        engine->told = more;
    }
    return false;
}

void engine_met(struct engine *engine, const uint8_t peer_id[16])
{
    unsigned i = find_told(engine, peer_id);
    if (i < engine->told_count && i < --engine->told_count)
        memcpy(engine->told[i], engine->told[engine->told_count], sizeof engine->told[i]);
}
