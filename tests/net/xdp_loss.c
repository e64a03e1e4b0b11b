/* SPDX-License-Identifier: Apache-2.0 */
/*
 * xdp_loss OBJECT NAMESPACE DEVICE PERCENT [tcp]: drops that share of the UDP datagrams (with tcp, of
 * TCP segments too) that arrive at the device (see xdp_loss.bpf.c), natively or not at all, for
 * generic XDP would drop whole GRO trains. Prints "ready" once attached; at SIGTERM or SIGINT detaches and prints what
 * it did.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "xdp_loss: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void enter_namespace(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        fail(path);
    close(fd);
}

/* the same as in xdp_loss.bpf.c */
struct config {
    uint32_t drop_below;
    uint32_t tcp_too;
};

static struct bpf_object *load(const char *file, double percent, bool tcp)
{
    struct bpf_object *object = bpf_object__open_file(file, NULL);
    if (!object)
        fail(file);
    struct bpf_map *constants = bpf_object__find_map_by_name(object, ".rodata");
    struct config config = {(uint32_t)(percent / 100 * 4294967295.0), tcp};
    if (!constants || bpf_map__set_initial_value(constants, &config, sizeof config) != 0)
        fail("the constants of the program");
    if (bpf_object__load(object) != 0)
        fail("loading the program");
    return object;
}

static uint64_t sum(int map, uint32_t index)
{
    int cpus = libbpf_num_possible_cpus();
    uint64_t *values = cpus > 0 ? calloc((size_t)cpus, sizeof *values) : NULL;
    uint64_t total = 0;
    if (!values || bpf_map_lookup_elem(map, &index, values) != 0)
        fail("reading the counts");
    for (int i = 0; i < cpus; i++)
        total += values[i];
    free(values);
    return total;
}

int main(int argc, char **argv)
{
    bool tcp = argc == 6 && strcmp(argv[5], "tcp") == 0;
    if (argc != 5 && !tcp) {
        fputs("usage: xdp_loss OBJECT NAMESPACE DEVICE PERCENT [tcp]\n", stderr);
        return 2;
    }
    struct bpf_object *object = load(argv[1], atof(argv[4]), tcp);
    int program = bpf_program__fd(bpf_object__find_program_by_name(object, "xdp_loss"));
    int counts = bpf_object__find_map_fd_by_name(object, "counts");

    enter_namespace(argv[2]);
    int device = (int)if_nametoindex(argv[3]);
    if (device == 0)
        fail(argv[3]);
    if (bpf_xdp_attach(device, program, XDP_FLAGS_DRV_MODE, NULL) != 0)
        fail("attaching natively");

    sigset_t signals;
    int number;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    puts("ready");
    fflush(stdout);
    sigwait(&signals, &number);

    bpf_xdp_detach(device, XDP_FLAGS_DRV_MODE, NULL);
    printf("packets %llu lost %llu\n", (unsigned long long)sum(counts, 0), (unsigned long long)sum(counts, 1));
    bpf_object__close(object);
    return 0;
}
