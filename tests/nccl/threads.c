/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many engine threads a rank has, on machines that are made up: what the plugin asks the system is answered here.
 * Each case runs in a process of its own. TAP.
 *
 * usage: nccl_threads PLUGIN
 */
#include "../entries.h"
#include "pair.h"
#include "plugin.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- the machine: the plugin's library finds these before the C library's ------------------------- */

static const char PCI[] = "/sys/bus/pci/devices";
static unsigned cores;
static char pci[64]; /* stands for PCI; empty: there is none */

EXPORTED int sched_getaffinity(pid_t thread, size_t size, cpu_set_t *set)
{
    (void)thread;
    memset(set, 0, size);
    for (unsigned i = 0; i < cores; i++)
        CPU_SET_S(i, size, set);
    return 0;
}

EXPORTED DIR *opendir(const char *name)
{
    DIR *(*next)(const char *);
    *(void **)&next = dlsym(RTLD_NEXT, "opendir");
    return next(strcmp(name, PCI) == 0 ? pci : name);
}

EXPORTED FILE *fopen(const char *name, const char *mode)
{
    FILE *(*next)(const char *, const char *);
    char path[256];
    *(void **)&next = dlsym(RTLD_NEXT, "fopen");
    if (strcmp(name, "/proc/self/cgroup") == 0) { /* no quota */
        errno = ENOENT;
        return NULL;
    }
    if (strncmp(name, PCI, sizeof PCI - 1) != 0)
        return next(name, mode);
    snprintf(path, sizeof path, "%s%s", pci, name + sizeof PCI - 1);
    return next(path, mode);
}

static void write_number(const char *device, const char *file, unsigned number)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s/%s", pci, device, file);
    FILE *stream = fopen(path, "w");
    CHECK(stream);
    fprintf(stream, "0x%04x\n", number);
    CHECK(fclose(stream) == 0);
}

static void plug_in(unsigned vendor, unsigned class)
{
    static unsigned slot;
    char name[32], path[128];
    snprintf(name, sizeof name, "0000:%02x:00.0", slot++);
    snprintf(path, sizeof path, "%s/%s", pci, name);
    CHECK(mkdir(path, 0700) == 0);
    write_number(name, "vendor", vendor);
    write_number(name, "class", class);
}

/* A machine with some GPUs, and with what looks like one. */
static void machine(unsigned with_cores, unsigned gpus)
{
    enum { NVIDIA = 0x10de, AMD = 0x1002, ASPEED = 0x1a03, MELLANOX = 0x15b3 };
    char command[160];
    cores = with_cores;
    strcpy(pci, "/tmp/uccl-pci.XXXXXX");
    CHECK(mkdtemp(pci));
    for (unsigned i = 0; i < gpus; i++)
        plug_in(i % 2 ? AMD : NVIDIA, i % 2 ? 0x120000 : 0x030200);
    plug_in(ASPEED, 0x030000);
    plug_in(NVIDIA, 0x068000); /* NVSwitch */
    plug_in(NVIDIA, 0x040300); /* a GPU's sound */
    plug_in(AMD, 0x060000);
    plug_in(MELLANOX, 0x020000);
    /* they are gone once the case has ended, however it ends */
    snprintf(command, sizeof command, "(while kill -0 %d; do sleep 0.2; done; rm -rf %s) >/dev/null 2>&1 &", getpid(),
             pci);
    CHECK(system(command) == 0);
}

/* By their names: a sanitizer may have a thread of its own. */
static int engine_threads(void)
{
    return (int)threads_called("uccl-engine-*");
}

static void expect(int wanted)
{
    enum { SOON_MS = 10000, MORE_MS = 50 };
    void *context, *listen_comm;
    uint8_t handle[NCCL_NET_HANDLE_BYTES];
    struct nccl_net_v12 *net = start(&context);
    IS(engine_threads(), 0);
    IS(net->listen(context, 0, handle, &listen_comm), NCCL_SUCCESS);
    for (uint64_t end_ms = now_ms() + SOON_MS; engine_threads() < wanted && now_ms() < end_ms;)
        nap();
    for (uint64_t end_ms = now_ms() + MORE_MS; now_ms() < end_ms;)
        nap();
    IS(engine_threads(), wanted);
    IS(net->closeListen(listen_comm), NCCL_SUCCESS);
    IS(net->finalize(context), NCCL_SUCCESS);
}

/* ---- cases ---------------------------------------------------------------------------------------- */

static void half_of_the_cores(void)
{
    machine(32, 2);
    expect(8);
}

static void few_cores_for_each(void)
{
    machine(96, 8);
    expect(6);
}

static void many_cores(void)
{
    machine(1000, 2);
    expect(8);
}

static void too_few_cores(void)
{
    machine(64, 8);
    expect(4); /* what the engine takes by itself */
}

static void no_gpu(void)
{
    machine(64, 0);
    expect(4);
}

static void no_sys(void)
{
    cores = 64;
    expect(4);
}

static void small_machine(void)
{
    machine(4, 1);
    expect(1);
}

static void more_nics_than_gpus(void)
{
    IS(threads_wanted(96, 2, 8), 6); /* a rank has several engines */
    IS(threads_wanted(96, 2, 9), 5);
    IS(threads_wanted(96, 2, 10), 0); /* 4, as the engine takes by itself */
    IS(threads_wanted(96, 8, 2), 6);
}

static void named(void)
{
    machine(32, 2);
    setenv("UCCL_NUM_ENGINES", "3", 1);
    expect(3);
    setenv("UCCL_NUM_ENGINES", "0", 1);
    expect(4);
}

static const struct plain_case CASES[] = {
    {"32 cores and 2 GPUs: 8 threads", half_of_the_cores},
    {"96 cores and 8 GPUs: 6 threads", few_cores_for_each},
    {"cores in plenty: 8 threads", many_cores},
    {"64 cores and 8 GPUs: as many as the engine takes", too_few_cores},
    {"no GPU: as many as the engine takes", no_gpu},
    {"no /sys: as many as the engine takes", no_sys},
    {"4 cores: one", small_machine},
    {"more NICs than GPUs: each has an engine", more_nics_than_gpus},
    {"a number that is named counts", named},
};

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    return run_cases(argv[1], CASES, sizeof CASES / sizeof CASES[0]);
}
