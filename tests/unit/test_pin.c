/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processors engine threads are bound to: lists of them, cores of made-up machines, what other processes
 * have taken. Names of cores are the host's, so those taken here have numbers that no machine has.
 */
#include "base/pin.h"
#include "fini.h"

#include "api_pair.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct pin_set set_of(const char *text)
{
    struct pin_set set;
    cr_assert(pin_parse(text, &set), "%s", text);
    return set;
}

static unsigned size_of(const struct pin_set *set)
{
    return (unsigned)CPU_COUNT_S(sizeof *set, set->parts);
}

static bool holds(const struct pin_set *set, unsigned cpu)
{
    return CPU_ISSET_S(cpu, sizeof *set, set->parts);
}

/* ---- lists ----------------------------------------------------------------------------------- */

Test(pin, lists)
{
    struct pin_set set = set_of("2-5,8");
    cr_assert_eq(size_of(&set), 5);
    cr_assert(holds(&set, 2) && holds(&set, 5) && holds(&set, 8) && !holds(&set, 6));
    set = set_of("8191");
    cr_assert(size_of(&set) == 1 && holds(&set, 8191));
    set = set_of("3,3,1-3");
    cr_assert_eq(size_of(&set), 3);
}

Test(pin, what_is_no_list)
{
    static const char *const bad[] = {"",   "-",   "1-",     "-1",  "1,", ",1",   "5-2",   "1 2",
                                      "a",  "1-a", "8192",   "0x1", "+1", "1--2", "1-2-3", "99999999999999999999",
                                      " 1", "1 ",  "0-8192", "1;2"};
    struct pin_set set;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert(!pin_parse(bad[i], &set), "'%s'", bad[i]);
}

/* ---- machines -------------------------------------------------------------------------------- */

static char sysfs[64];

static void write_file(const char *content, const char *format, unsigned number)
{
    char path[160], name[64];
    snprintf(name, sizeof name, format, number);
    snprintf(path, sizeof path, "%s/%s", sysfs, name);
    for (char *slash = path + strlen(sysfs) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = '\0';
        mkdir(path, 0700);
    }
    FILE *file = fopen(path, "w");
    cr_assert(file, "%s", path);
    fprintf(file, "%s\n", content);
    fclose(file);
}

/* Two sockets with a node each, of four cores with two threads each: 0-3 and 8-11; 4-7 and 12-15. */
static void make_machine(void)
{
    strcpy(sysfs, "/tmp/uccl-test-pin-XXXXXX");
    cr_assert(mkdtemp(sysfs));
    for (unsigned cpu = 0; cpu < 16; cpu++) {
        char siblings[16];
        snprintf(siblings, sizeof siblings, "%u,%u", cpu % 8, cpu % 8 + 8);
        write_file(siblings, "cpu/cpu%u/topology/thread_siblings_list", cpu);
    }
    write_file("0-3,8-11", "node/node%u/cpulist", 0);
    write_file("4-7,12-15", "node/node%u/cpulist", 1);
}

static void remove_machine(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", sysfs);
    FINI_ASSERT(system(command) == 0);
}

static void expect_slots(const char *may, bool each, int numa_node, unsigned count, const struct pin_slot *expected)
{
    struct pin_slot slots[32];
    struct pin_set set = set_of(may);
    cr_assert_eq(pin_slots(sysfs, &set, each, numa_node, slots, 32), count, "%s", may);
    for (unsigned i = 0; i < count; i++)
        cr_assert(slots[i].core == expected[i].core && slots[i].cpu == expected[i].cpu &&
                      slots[i].near == expected[i].near,
                  "%s: slot %u is core %u, CPU %u", may, i, slots[i].core, slots[i].cpu);
}

#define SLOTS(...)                                                                                                     \
    (const struct pin_slot[])                                                                                          \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define EXPECT_SLOTS(may, each, node, count, ...) expect_slots(may, each, node, count, SLOTS(__VA_ARGS__))

Test(pin, cores_of_a_machine, .init = make_machine, .fini = remove_machine)
{
    /* a core once, the near ones first */
    EXPECT_SLOTS("0-15", false, 1, 8, {4, 4, true}, {5, 5, true}, {6, 6, true}, {7, 7, true}, {0, 0, false},
                 {1, 1, false}, {2, 2, false}, {3, 3, false});
    EXPECT_SLOTS("0-2", false, 0, 3, {0, 0, true}, {1, 1, true}, {2, 2, true});
    /* none near; a node that is not known */
    EXPECT_SLOTS("4-5", false, 0, 2, {4, 4, false}, {5, 5, false});
    EXPECT_SLOTS("4-5", false, -1, 2, {4, 4, false}, {5, 5, false});
    EXPECT_SLOTS("4-5", false, 7, 2, {4, 4, false}, {5, 5, false});
    /* where only the second processor is ours, the core has its name still */
    EXPECT_SLOTS("9,10,2", false, 0, 2, {2, 2, true}, {1, 9, true});
    /* by hand: all in their order */
    EXPECT_SLOTS("3,9,1,12", true, 1, 4, {1, 1, false}, {3, 3, false}, {1, 9, false}, {4, 12, false});
}

static void expect_set(const char *may, bool each, unsigned cpu, const char *expected)
{
    struct pin_set allowed = set_of(may), wanted = set_of(expected), set;
    pin_slot_set(sysfs, &(struct pin_slot){.core = cpu % 8, .cpu = cpu}, each, &allowed, &set);
    cr_assert(memcmp(&set, &wanted, sizeof set) == 0, "CPU %u of %s", cpu, may);
}

/* A thread has both processors of its core, unless the process may not run on one of them. */
Test(pin, processors_of_a_place, .init = make_machine, .fini = remove_machine)
{
    expect_set("0-15", false, 3, "3,11");
    expect_set("0-7", false, 3, "3");
    expect_set("9,10", false, 9, "9");
    expect_set("0-15", true, 11, "11");
}

Test(pin, machine_that_shows_nothing)
{
    strcpy(sysfs, "/nonexistent");
    EXPECT_SLOTS("0-1,5", false, 0, 3, {0, 0, false}, {1, 1, false}, {5, 5, false});
}

/* ---- what others have ------------------------------------------------------------------------ */

static const struct pin_slot free_cores[] = {{100001, 1, true}, {100002, 2, true}, {100003, 3, false}};

static void expect_taken(unsigned expected, int *claim)
{
    cr_assert_eq(pin_take(free_cores, 3, claim), expected);
    cr_assert_geq(*claim, 0);
}

Test(pin, cores_are_shared_evenly)
{
    int claims[9], again;
    for (unsigned i = 0; i < 9; i++)
        expect_taken(i % 3, &claims[i]);
    pin_release(claims[7]); /* the third of the second core */
    expect_taken(1, &claims[7]);
    pin_release(claims[2]); /* the first of the third: it has the fewest then */
    expect_taken(2, &claims[2]);
    expect_taken(0, &again);
    pin_release(again);
    for (unsigned i = 0; i < 9; i++)
        pin_release(claims[i]);
    expect_taken(0, &again);
    pin_release(again);
}

/* A process that is killed leaves nothing behind. */
Test(pin, cores_of_the_dead_are_free, .timeout = TIMEOUT_S)
{
    int told[2], claim;
    char byte;
    cr_assert_eq(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        int claims[2];
        unsigned first = pin_take(free_cores, 3, &claims[0]), second = pin_take(free_cores, 3, &claims[1]);
        if (first != 0 || second != 1 || write(told[1], "x", 1) != 1)
            _exit(1);
        pause();
    }
    close(told[1]);
    cr_assert_eq(read(told[0], &byte, 1), 1);
    expect_taken(2, &claim);
    pin_release(claim);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    expect_taken(0, &claim);
    pin_release(claim);
    close(told[0]);
}

Test(pin, without_sockets_nothing_is_known)
{
    struct rlimit limit, none;
    int claim = 7;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){0, limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    unsigned taken = pin_take(free_cores, 3, &claim);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert_eq(taken, 3);
    cr_assert_eq(claim, -1);
    pin_release(claim);
}

/* ---- engines --------------------------------------------------------------------------------- */

/* Where the one thread that is not in `old` may run. */
static struct pin_set affinity_of_new(const int *old, unsigned old_count)
{
    DIR *dir = opendir("/proc/self/task");
    struct dirent *task;
    struct pin_set set = {0};
    unsigned found = 0;
    while ((task = readdir(dir))) {
        int id = atoi(task->d_name);
        bool is_old = !isdigit((unsigned char)task->d_name[0]);
        for (unsigned i = 0; i < old_count; i++)
            is_old = is_old || old[i] == id;
        if (is_old)
            continue;
        found++;
        cr_assert_eq(sched_getaffinity(id, sizeof set, set.parts), 0);
    }
    closedir(dir);
    cr_assert_eq(found, 1);
    return set;
}

/* Opens an engine with one more setting and waits until its thread is bound to `cpu` alone. */
static void expect_bound(const char *name, const char *value, unsigned cpu)
{
    int old[16];
    unsigned old_count = list_threads(old);
    uccl_engine *engine = open_engine("no", "NUM_ENGINES", "1", name, value, NULL);
    uint64_t end_ms = now_ms() + SOON_MS;
    for (;;) {
        struct pin_set set = affinity_of_new(old, old_count);
        if (size_of(&set) == 1 && holds(&set, cpu))
            break;
        cr_assert(now_ms() < end_ms, "%s=%s: not bound to CPU %u", name, value, cpu);
        sleep_us(1000);
    }
    IS(uccl_close(engine), 0);
}

Test(pin, engines_stay_where_the_process_may_run, .timeout = TIMEOUT_S)
{
    struct pin_set may = {0};
    cr_assert_eq(sched_getaffinity(0, sizeof may, may.parts), 0);
    for (unsigned cpu = 0, seen = 0; cpu < PIN_CPUS_MAX && seen < 4; cpu++) {
        struct pin_set one = {0};
        char text[16];
        if (!holds(&may, cpu))
            continue;
        seen++;
        snprintf(text, sizeof text, "%u", cpu);
        expect_bound("CPUS", text, cpu);
        CPU_SET_S(cpu, sizeof one, one.parts);
        cr_assert_eq(sched_setaffinity(0, sizeof one, one.parts), 0);
        expect_bound("PIN", "1", cpu);
        cr_assert_eq(sched_setaffinity(0, sizeof may, may.parts), 0);
    }
}
