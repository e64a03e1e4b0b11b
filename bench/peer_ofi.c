/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a user gets from libfabric with the pattern of p2p_bench: one fi_send and one fi_recv per
 * message, a window of them outstanding. By default over the provider "udp;ofi_rxd", reliable
 * messages over UDP sockets, the nearest thing to this library.
 *
 *   peer_ofi ADDRESS PORT SIZE WINDOW SECONDS            the receiving side, at ADDRESS
 *   peer_ofi -c ADDRESS PORT SIZE WINDOW SECONDS         the sending side
 *
 * WINDOW 0 plays ping-pong. The sending side prints one line of name=value. FI_PROVIDER_NAME
 * chooses another provider.
 */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LATENCY_SAMPLES = 200000, NAME_MAX_BYTES = 128, STOP = 0xff };

struct peer {
    bool client;
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_ep *ep;
    struct fid_cq *tx_cq, *rx_cq;
    struct fid_av *av;
    fi_addr_t other;
    size_t size;
    long window;
    double seconds;
    unsigned char *buffers;
    unsigned char control[256]; /* the other's name, then end marks */
};

static void check(long result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "peer_ofi: %s: %s\n", what, fi_strerror((int)-result));
        exit(1);
    }
}

static double clock_s(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

static void open_endpoint(struct peer *p, const char *address, const char *port)
{
    struct fi_info *hints = fi_allocinfo();
    struct fi_cq_attr cq = {.format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_NONE};
    struct fi_av_attr av = {.type = FI_AV_TABLE};
    const char *provider = getenv("FI_PROVIDER_NAME");

    hints->fabric_attr->prov_name = strdup(provider ? provider : "udp;ofi_rxd");
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    check(fi_getinfo(FI_VERSION(1, 14), address, port, p->client ? 0 : FI_SOURCE, hints, &p->info), "fi_getinfo");
    check(fi_fabric(p->info->fabric_attr, &p->fabric, NULL), "fi_fabric");
    check(fi_domain(p->fabric, p->info, &p->domain, NULL), "fi_domain");
    check(fi_cq_open(p->domain, &cq, &p->tx_cq, NULL), "fi_cq_open");
    check(fi_cq_open(p->domain, &cq, &p->rx_cq, NULL), "fi_cq_open");
    check(fi_av_open(p->domain, &av, &p->av, NULL), "fi_av_open");
    check(fi_endpoint(p->domain, p->info, &p->ep, NULL), "fi_endpoint");
    check(fi_ep_bind(p->ep, &p->av->fid, 0), "bind av");
    check(fi_ep_bind(p->ep, &p->tx_cq->fid, FI_TRANSMIT), "bind tx");
    check(fi_ep_bind(p->ep, &p->rx_cq->fid, FI_RECV), "bind rx");
    check(fi_enable(p->ep), "fi_enable");
    fi_freeinfo(hints);
}

/* Takes up to `most` completions of one queue and drives the other. */
static long reap(struct peer *p, struct fid_cq *cq, long most)
{
    struct fi_cq_entry entries[64];
    ssize_t count = fi_cq_read(cq, entries, (size_t)(most < 64 ? most : 64));

    if (count == -FI_EAVAIL) {
        struct fi_cq_err_entry error = {0};
        fi_cq_readerr(cq, &error, 0);
        fprintf(stderr, "peer_ofi: completion: %s\n", fi_strerror(error.err));
        exit(1);
    }
    if (count == -FI_EAGAIN) {
        fi_cq_read(cq == p->tx_cq ? p->rx_cq : p->tx_cq, NULL, 0);
        return 0;
    }
    check(count, "fi_cq_read");
    return count;
}

static void wait_one(struct peer *p, struct fid_cq *cq)
{
    while (reap(p, cq, 1) == 0)
        ;
}

static void post_send(struct peer *p, void *buffer, size_t size)
{
    ssize_t result;
    while ((result = fi_send(p->ep, buffer, size, NULL, p->other, NULL)) == -FI_EAGAIN)
        fi_cq_read(p->tx_cq, NULL, 0);
    check(result, "fi_send");
}

static void post_recv(struct peer *p, void *buffer, size_t size)
{
    ssize_t result;
    while ((result = fi_recv(p->ep, buffer, size, NULL, FI_ADDR_UNSPEC, NULL)) == -FI_EAGAIN)
        fi_cq_read(p->rx_cq, NULL, 0);
    check(result, "fi_recv");
}

/* The client tells its name in the first message; the server answers. */
static void greet(struct peer *p)
{
    char name[NAME_MAX_BYTES];
    size_t length = sizeof name;

    if (p->client) {
        check(fi_av_insert(p->av, p->info->dest_addr, 1, &p->other, 0, NULL), "fi_av_insert");
        check(fi_getname(&p->ep->fid, name, &length), "fi_getname");
        post_recv(p, p->control, sizeof p->control);
        post_send(p, name, length);
        wait_one(p, p->tx_cq);
        wait_one(p, p->rx_cq);
    } else {
        post_recv(p, p->control, sizeof p->control);
        wait_one(p, p->rx_cq);
        check(fi_av_insert(p->av, p->control, 1, &p->other, 0, NULL), "fi_av_insert");
        post_send(p, "hello", 5);
        wait_one(p, p->tx_cq);
    }
}

/* Receives until a message starts with STOP, then reports its CPU time. */
static void receive(struct peer *p)
{
    double cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    bool stop = false;

    for (long i = 0; i < p->window; i++)
        post_recv(p, p->buffers + (size_t)i * p->size, p->size);
    for (long next = 0; !stop; next = (next + 1) % p->window) {
        unsigned char *buffer = p->buffers + (size_t)next * p->size;
        wait_one(p, p->rx_cq);
        stop = buffer[0] == STOP;
        if (!stop)
            post_recv(p, buffer, p->size);
    }
    cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    post_send(p, &cpu, sizeof cpu);
    wait_one(p, p->tx_cq);
    for (double end = now_s() + 0.2; now_s() < end;) /* the acks of the last message */
        fi_cq_read(p->rx_cq, NULL, 0);
}

static void transmit(struct peer *p)
{
    double cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID), start = now_s(), elapsed, other_cpu;
    long sent = 0, done = 0;

    memset(p->buffers, 1, p->size * (size_t)p->window);
    post_recv(p, &other_cpu, sizeof other_cpu);
    while (now_s() - start < p->seconds) {
        while (sent - done < p->window)
            post_send(p, p->buffers + (size_t)(sent++ % p->window) * p->size, p->size);
        done += reap(p, p->tx_cq, sent - done);
    }
    while (done < sent)
        done += reap(p, p->tx_cq, sent - done);
    p->buffers[0] = STOP;
    post_send(p, p->buffers, p->size);
    wait_one(p, p->tx_cq);
    wait_one(p, p->rx_cq);
    elapsed = now_s() - start;
    cpu = clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu + other_cpu;
    double bytes = (double)(sent + 1) * (double)p->size;
    printf("size_bytes=%zu gbytes_per_s=%.3f msgs_per_s=%.0f cpu_s_per_gib=%.3f\n", p->size, bytes / elapsed / 1e9,
           (double)sent / elapsed, cpu / (bytes / (1 << 30)));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void ping_pong(struct peer *p)
{
    static double samples[LATENCY_SAMPLES];
    double start = now_s();
    long count = 0;
    bool stop = false;

    p->buffers[0] = 1;
    while (!stop) {
        double before = now_s();
        post_recv(p, p->buffers + p->size, p->size);
        if (p->client) {
            stop = before - start > p->seconds || count + 1 == LATENCY_SAMPLES;
            p->buffers[0] = stop ? STOP : 1;
            post_send(p, p->buffers, p->size);
            wait_one(p, p->rx_cq);
        } else {
            wait_one(p, p->rx_cq);
            stop = p->buffers[p->size] == STOP;
            post_send(p, p->buffers, p->size);
        }
        wait_one(p, p->tx_cq);
        samples[count < LATENCY_SAMPLES ? count++ : 0] = (now_s() - before) / 2 * 1e6;
    }
    for (double end = now_s() + 0.2; !p->client && now_s() < end;)
        fi_cq_read(p->rx_cq, NULL, 0);
    if (p->client) {
        qsort(samples, (size_t)count, sizeof *samples, compare);
        printf("size_bytes=%zu lat_us_p50=%.3f lat_us_p99=%.3f\n", p->size, samples[count / 2],
               samples[count * 99 / 100]);
    }
}

int main(int argc, char **argv)
{
    static struct peer p;

    p.client = argc > 1 && strcmp(argv[1], "-c") == 0;
    argv += p.client;
    argc -= p.client;
    if (argc != 6 || strtoull(argv[3], NULL, 10) == 0) {
        fputs("usage: peer_ofi [-c] ADDRESS PORT SIZE WINDOW SECONDS\n", stderr);
        return 2;
    }
    p.size = strtoull(argv[3], NULL, 10);
    p.window = atol(argv[4]);
    p.seconds = atof(argv[5]);
    p.buffers = calloc((size_t)(p.window > 1 ? p.window : 2), p.size);
    if (!p.buffers)
        return 1;
    open_endpoint(&p, argv[1], argv[2]);
    greet(&p);
    if (p.window == 0)
        ping_pong(&p);
    else if (p.client)
        transmit(&p);
    else
        receive(&p);
    return 0; /* the process ends: nothing is worth closing in order */
}
