/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and ending the connections of a communicator, as NCCL's service thread does: a listener per channel, whose
 * handle the rank before fetches; connect and accept called until they give something, by turns; the listener closed
 * at once; buffers registered. In the end memory goes right after its registration, before the connection is closed.
 */
#include "host.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

size_t largest_size(const struct options *options)
{
    size_t most = 0;
    for (unsigned i = 0; i < options->size_count; i++)
        most = options->sizes[i] > most ? options->sizes[i] : most;
    return most;
}

static void make_buffer(struct link *link, size_t slot_bytes)
{
    link->slot_bytes = (slot_bytes + 4095) & ~(size_t)4095;
    link->buffer = mmap(NULL, link->slot_bytes * SLOTS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(link->buffer != MAP_FAILED, "no memory");
}

void comm_begin(struct comm *comm, const struct options *options, struct net *net, unsigned number, unsigned rank)
{
    int count;
    *comm = (struct comm){.options = options, .net = net, .board = board, .number = number, .rank = rank};
    comm->sends = calloc(options->channels, sizeof(*comm->sends));
    comm->receives = calloc(options->channels, sizeof(*comm->receives));
    comm->listeners = calloc(options->channels, sizeof(*comm->listeners));
    CHECK(comm->sends && comm->receives && comm->listeners, "no memory");
    for (unsigned c = 0; c < options->channels; c++) {
        comm->sends[c] = (struct link){.sends = true, .channel = c, .peer = (rank + 1) % options->ranks};
        comm->receives[c] = (struct link){.channel = c, .peer = (rank + options->ranks - 1) % options->ranks};
    }
    GOOD(net_init(net, &comm->context, logger));
    GOOD(net_devices(net, &count));
    CHECK(count >= 1, "%d devices", count);
    comm->device = options->spread ? (int)rank % count : 0;
}

static void listen_all(struct comm *comm)
{
    struct board *shared = comm->board;
    for (unsigned c = 0; c < comm->options->channels; c++) {
        uint8_t *handle = shared->handle[comm->number][comm->rank][c];
        GOOD(net_listen(comm->net, comm->context, comm->device, handle, &comm->listeners[c]));
        CHECK(comm->listeners[c], "listen succeeded and gave no listener");
        atomic_store_explicit(&shared->handle_there[comm->number][comm->rank][c], 1, memory_order_release);
    }
}

static void link_up(struct comm *comm, struct link *link)
{
    make_buffer(link, largest_size(comm->options));
    GOOD(net_register(comm->net, link->comm, link->buffer, link->slot_bytes * SLOTS, &link->mr));
}

/* One more look at a channel's two ends. Returns how many have come up. */
static unsigned connect_more(struct comm *comm, unsigned c, uint8_t *handle, bool accepts)
{
    struct link *send = &comm->sends[c], *receive = &comm->receives[c];
    struct board *shared = comm->board;
    unsigned up = 0;
    if (!send->comm && atomic_load_explicit(&shared->handle_there[comm->number][send->peer][c], memory_order_acquire)) {
        /* NCCL keeps one copy, in which the plugin may keep the state of the connect */
        if (!handle[NCCL_NET_HANDLE_BYTES]) {
            memcpy(handle, shared->handle[comm->number][send->peer][c], NCCL_NET_HANDLE_BYTES);
            handle[NCCL_NET_HANDLE_BYTES] = 1;
        }
        GOOD(net_connect(comm->net, comm->context, comm->device, handle, &send->comm));
        if (send->comm) {
            link_up(comm, send);
            up++;
        }
    }
    if (!receive->comm && accepts) {
        GOOD(net_accept(comm->net, comm->listeners[c], &receive->comm));
        if (receive->comm) {
            GOOD(net_close_listen(comm->net, comm->listeners[c]));
            comm->listeners[c] = NULL;
            link_up(comm, receive);
            up++;
        }
    }
    return up;
}

void comm_connect(struct comm *comm)
{
    unsigned channels = comm->options->channels, up = 0;
    uint8_t(*handles)[NCCL_NET_HANDLE_BYTES + 1] = calloc(channels, sizeof(*handles));
    double start = now_s(), accept_at = start + comm->options->skew_ms * comm->rank / 1000.0;
    CHECK(handles, "no memory");
    listen_all(comm);
    while (up < 2 * channels) {
        bool accepts = now_s() >= accept_at;
        for (unsigned c = 0; c < channels; c++)
            up += connect_more(comm, c, handles[c], accepts);
        CHECK(now_s() - start < PATIENCE_S, "connecting takes for ever: %u of %u", up, 2 * channels);
        nap_us(50); /* NCCL spins; here two processors are shared */
    }
    free(handles);
}

void *comm_register_on(void *data)
{
    enum { SIZE = 64 << 10 };
    struct comm *comm = data;
    uint8_t *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED, "no memory");
    for (unsigned n = 0; !atomic_load(&comm->stop); n++) {
        struct link *link =
            n & 1 ? &comm->sends[n / 2 % comm->options->channels] : &comm->receives[n / 2 % comm->options->channels];
        void *mr;
        GOOD(net_register(comm->net, link->comm, memory + n % 16 * 4096, 4096 * (1 + n % 8), &mr));
        GOOD(net_deregister(comm->net, link->comm, mr));
        nap_us(200);
    }
    munmap(memory, SIZE);
    return NULL;
}

static void end_link(struct comm *comm, struct link *link)
{
    if (!link->comm)
        return;
    GOOD(net_deregister(comm->net, link->comm, link->mr));
    /* whoever touches it from now on is found out */
    CHECK(mprotect(link->buffer, link->slot_bytes * SLOTS, PROT_NONE) == 0, "mprotect");
    GOOD(link->sends ? net_close_send(comm->net, link->comm) : net_close_receive(comm->net, link->comm));
    munmap(link->buffer, link->slot_bytes * SLOTS);
    *link = (struct link){.sends = link->sends};
}

void comm_end(struct comm *comm)
{
    for (unsigned c = 0; c < comm->options->channels; c++) {
        end_link(comm, &comm->sends[c]);
        end_link(comm, &comm->receives[c]);
    }
    GOOD(net_finalize(comm->net, comm->context));
    free(comm->sends);
    free(comm->receives);
    free(comm->listeners);
}
