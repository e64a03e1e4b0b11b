/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cores_apart CORE CORE: prints the time in ns that a cache line takes from one core to the other and back, median of
 * 20 runs of 2,000 round trips.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { RUNS = 20, TRIPS = 2000 };

static _Alignas(128) _Atomic int turn; /* whose it is: 0 or 1 */

static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0) {
        perror("cores_apart: sched_setaffinity");
        exit(1);
    }
}

static void play(int mine)
{
    for (int i = 0; i < TRIPS; i++) {
        while (atomic_load_explicit(&turn, memory_order_acquire) != mine)
            ;
        atomic_store_explicit(&turn, !mine, memory_order_release);
    }
}

static void *other(void *core)
{
    pin(*(int *)core);
    for (int run = 0; run < RUNS; run++)
        play(1);
    return NULL;
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: cores_apart CORE CORE\n");
        return 2;
    }
    int cores[2] = {atoi(argv[1]), atoi(argv[2])};
    pthread_t thread;
    double took[RUNS];

    pin(cores[0]);
    if (pthread_create(&thread, NULL, other, &cores[1]) != 0) {
        fprintf(stderr, "cores_apart: no thread\n");
        return 1;
    }
    for (int run = 0; run < RUNS; run++) {
        double start = now_ns();
        play(0);
        took[run] = (now_ns() - start) / TRIPS;
    }
    pthread_join(thread, NULL);
    qsort(took, RUNS, sizeof took[0], by_value);
    printf("%.0f\n", took[RUNS / 2]);
    return 0;
}
