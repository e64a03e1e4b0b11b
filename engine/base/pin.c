/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pin.h"

#include "base/descriptor.h"
#include "base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    ROUNDS = 16,          /* claims of one core that are counted */
    LIST_TEXT_MAX = 8192, /* bytes of a list of processors in sysfs */
    SLOTS_MAX = 4096,
};

#define SET_BYTES sizeof(struct pin_set)

static bool has(const struct pin_set *set, unsigned cpu)
{
    return cpu < PIN_CPUS_MAX && CPU_ISSET_S(cpu, SET_BYTES, set->parts);
}

static void clear(struct pin_set *set)
{
    memset(set, 0, sizeof *set);
}

/* Reads a number at `*text` and moves past it. */
static bool parse_number(const char **text, unsigned *out)
{
    char *end;
    if (**text < '0' || **text > '9')
        return false;
    errno = 0;
    unsigned long value = strtoul(*text, &end, 10);
    if (errno || value >= PIN_CPUS_MAX)
        return false;
    *out = (unsigned)value;
    *text = end;
    return true;
}

bool pin_parse(const char *text, struct pin_set *out)
{
    clear(out);
    for (;;) {
        unsigned first, last;
        if (!parse_number(&text, &first))
            return false;
        last = first;
        if (*text == '-' && (text++, !parse_number(&text, &last) || last < first))
            return false;
        for (unsigned cpu = first; cpu <= last; cpu++)
            CPU_SET_S(cpu, SET_BYTES, out->parts);
        if (*text == '\0')
            return true;
        if (*text++ != ',')
            return false;
    }
}

/* Reads a list of processors. False: there is none. */
static bool read_set(const char *path, struct pin_set *out)
{
    char text[LIST_TEXT_MAX];
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    if (!read)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return pin_parse(text, out);
}

/* The processors of the core of `cpu`. */
static void read_core(const char *sysfs, unsigned cpu, struct pin_set *out)
{
    char path[256];
    snprintf(path, sizeof path, "%.200s/cpu/cpu%u/topology/thread_siblings_list", sysfs, cpu);
    if (read_set(path, out) && has(out, cpu))
        return;
    clear(out);
    CPU_SET_S(cpu, SET_BYTES, out->parts);
}

static void read_node(const char *sysfs, int numa_node, struct pin_set *out)
{
    char path[256];
    snprintf(path, sizeof path, "%.200s/node/node%d/cpulist", sysfs, numa_node);
    if (numa_node < 0 || !read_set(path, out))
        clear(out);
}

/* The first processor in both sets; PIN_CPUS_MAX: none. */
static unsigned first_of(const struct pin_set *a, const struct pin_set *b)
{
    unsigned cpu = 0;
    while (cpu < PIN_CPUS_MAX && !(has(a, cpu) && has(b, cpu)))
        cpu++;
    return cpu;
}

unsigned pin_slots(const char *sysfs, const struct pin_set *may, bool each, int numa_node, struct pin_slot *out,
                   unsigned max)
{
    struct pin_set node, core;
    unsigned count = 0;
    read_node(sysfs, numa_node, &node);
    for (int near = each ? 0 : 1; near >= 0; near--) {
        for (unsigned cpu = 0; cpu < PIN_CPUS_MAX && count < max; cpu++) {
            if (!has(may, cpu) || (!each && has(&node, cpu) != near))
                continue;
            read_core(sysfs, cpu, &core);
            if (each || first_of(&core, may) == cpu)
                out[count++] = (struct pin_slot){first_of(&core, &core), cpu, near};
        }
    }
    return count;
}

unsigned pin_take(const struct pin_slot *slots, unsigned count, int *claim)
{
    int fd = descriptor_keep(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    for (unsigned i = 0; fd >= 0 && i < ROUNDS * count; i++) {
        struct sockaddr_un name = {.sun_family = AF_UNIX}; /* the first byte of the path stays 0: abstract */
        int length = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "uccl-engine/core/%u/%u",
                              slots[i % count].core, i / count);
        socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
        if (bind(fd, (const struct sockaddr *)&name, size) == 0) {
            *claim = fd;
            return i % count;
        }
        if (errno != EADDRINUSE)
            break;
    }
    pin_release(fd);
    *claim = -1;
    return count; /* nobody can tell who has which */
}

void pin_release(int claim)
{
    if (claim >= 0)
        close(claim);
}

/* "2-5,8" */
static void set_text(const struct pin_set *set, char *out, size_t size)
{
    size_t length = 0;
    out[0] = '\0';
    for (unsigned cpu = 0; cpu < PIN_CPUS_MAX && length < size; cpu++) {
        unsigned last = cpu;
        if (!has(set, cpu))
            continue;
        while (has(set, last + 1))
            last++;
        length += (size_t)snprintf(out + length, size - length, cpu == last ? "%s%u" : "%s%u-%u", length ? "," : "",
                                   cpu, last);
        cpu = last;
    }
}

void pin_slot_set(const char *sysfs, const struct pin_slot *slot, bool each, const struct pin_set *may,
                  struct pin_set *out)
{
    clear(out);
    if (each)
        CPU_SET_S(slot->cpu, SET_BYTES, out->parts);
    else {
        read_core(sysfs, slot->cpu, out);
        CPU_AND_S(SET_BYTES, out->parts, out->parts, may->parts);
    }
}

int pin_thread(const char *cpus, int numa_node, unsigned index)
{
    static const char sysfs[] = "/sys/devices/system";
    bool each = cpus[0] != '\0';
    struct pin_slot *slots = malloc(SLOTS_MAX * sizeof *slots);
    struct pin_set may, set;
    char text[64];
    int claim = -1;
    clear(&may);
    bool known = each ? pin_parse(cpus, &may) : sched_getaffinity(0, SET_BYTES, may.parts) == 0;
    unsigned count = slots && known ? pin_slots(sysfs, &may, each, numa_node, slots, SLOTS_MAX) : 0;
    if (count) {
        unsigned slot = pin_take(slots, count, &claim);
        pin_slot_set(sysfs, &slots[slot < count ? slot : index % count], each, &may, &set);
        set_text(&set, text, sizeof text);
    }
    if (!count) {
        LOG_WARNING("cannot pin engine thread %u: the processors that it may use are unknown", index);
    } else if (sched_setaffinity(0, SET_BYTES, set.parts)) {
        LOG_WARNING("cannot pin engine thread %u to CPU %s: %s%s", index, text, strerror(errno),
                    each ? " (UCCL_CPUS)" : "");
        pin_release(claim);
        claim = -1;
    } else {
        LOG_INFORM("engine thread %u runs on CPU %s", index, text);
    }
    free(slots);
    return claim;
}
