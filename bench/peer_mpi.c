/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a user gets from MPI with the pattern of p2p_bench: one MPI_Isend and one MPI_Irecv per
 * message, a window of them outstanding. Two ranks.
 *
 *   mpirun -np 2 peer_mpi SIZE WINDOW SECONDS     bandwidth
 *   mpirun -np 2 peer_mpi SIZE 0 SECONDS          ping-pong: median half round trip
 *
 * Rank 0 prints one line of name=value; CPU is that of both ranks.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TAG = 1, BLOCK = 64 /* windows between two looks at the clock */ };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Keeps `window` requests outstanding, for `count` messages. */
static void stream(int rank, char *buffers, size_t size, int window, long count)
{
    MPI_Request *requests = malloc((size_t)window * sizeof *requests);
    if (!requests)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (long i = 0; i < count + window; i++) {
        int slot = (int)(i % window);
        char *buffer = buffers + (size_t)slot * size;
        if (i >= window)
            MPI_Wait(&requests[slot], MPI_STATUS_IGNORE);
        if (i >= count)
            continue;
        if (rank == 0)
            MPI_Isend(buffer, (int)size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &requests[slot]);
        else
            MPI_Irecv(buffer, (int)size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &requests[slot]);
    }
    free(requests);
    char done = 0; /* the last message is there */
    if (rank == 0)
        MPI_Recv(&done, 1, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&done, 1, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
}

static void bandwidth(int rank, char *buffers, size_t size, int window, double seconds)
{
    long count = window, total = 0;
    double cpu, all_cpu, start, elapsed;

    stream(rank, buffers, size, window, window); /* warm */
    MPI_Barrier(MPI_COMM_WORLD);
    cpu = cpu_s();
    start = MPI_Wtime();
    for (elapsed = 0; elapsed < seconds;) {
        stream(rank, buffers, size, window, count);
        total += count;
        elapsed = MPI_Wtime() - start;
        /* blocks of about an eighth of the time, so that the pauses between them do not count */
        count = (long)((double)total * seconds / elapsed / 8) + window;
        MPI_Bcast(&elapsed, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        MPI_Bcast(&count, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    }
    cpu = cpu_s() - cpu;
    MPI_Reduce(&cpu, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("size_bytes=%zu gbytes_per_s=%.3f msgs_per_s=%.0f cpu_s_per_gib=%.3f\n", size,
               (double)total * (double)size / elapsed / 1e9, (double)total / elapsed,
               all_cpu / ((double)total * (double)size / (1 << 30)));
}

static void latency(int rank, char *buffer, size_t size, double seconds)
{
    enum { SAMPLES = 200000 };
    double *samples = malloc(SAMPLES * sizeof *samples);
    double start = MPI_Wtime();
    int count = 0, go = 1;

    while (go) {
        for (int i = 0; i < BLOCK; i++) {
            double before = MPI_Wtime();
            if (rank == 0) {
                MPI_Send(buffer, (int)size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
                MPI_Recv(buffer, (int)size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else {
                MPI_Recv(buffer, (int)size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(buffer, (int)size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
            }
            if (samples && count < SAMPLES)
                samples[count++] = (MPI_Wtime() - before) / 2 * 1e6;
        }
        go = MPI_Wtime() - start < seconds && count + BLOCK <= SAMPLES;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank == 0 && samples) {
        qsort(samples, (size_t)count, sizeof *samples, compare);
        printf("size_bytes=%zu lat_us_p50=%.3f lat_us_p99=%.3f\n", size, samples[count / 2],
               samples[(long)count * 99 / 100]);
    }
    free(samples);
}

int main(int argc, char **argv)
{
    int rank, ranks;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t size = argc == 4 ? strtoull(argv[1], NULL, 10) : 0;
    int window = argc == 4 ? atoi(argv[2]) : -1;
    if (ranks != 2 || size == 0 || window < 0) {
        fputs("usage: mpirun -np 2 peer_mpi SIZE WINDOW SECONDS\n", stderr);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    char *buffers = malloc(size * (size_t)(window ? window : 1));
    if (!buffers)
        MPI_Abort(MPI_COMM_WORLD, 1);
    memset(buffers, 1, size * (size_t)(window ? window : 1));
    if (window > 0)
        bandwidth(rank, buffers, size, window, atof(argv[3]));
    else
        latency(rank, buffers, size, atof(argv[3]));
    free(buffers);
    MPI_Finalize();
    return 0;
}
