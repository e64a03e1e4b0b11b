/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL's progress thread does with the channels of a communicator, and the kernels' part of it where nobody
 * looks at buffers before they are done: at most SLOTS messages ahead, in slots used again and again; a receive takes
 * a whole slot, whatever comes; requests are tested in order; NULL for a request means to call again.
 */
#include "host.h"

#include <stdlib.h>
#include <string.h>

struct stream {
    struct comm *comm;
    struct link *send, *receive;
    unsigned channel;
    uint64_t total;
    uint64_t filled, posted, sent; /* messages that go out */
    uint64_t expected, received;   /* receives posted, receives done */
    void *send_request[SLOTS], *receive_request[SLOTS];
    uint32_t *work; /* all-reduce: this channel's elements */
    struct watcher *watcher;
};

uint32_t word_of(unsigned sender, unsigned channel, uint64_t m, size_t i)
{
    return (uint32_t)m * 2654435761u ^ (uint32_t)channel << 27 ^ sender << 24 ^ (uint32_t)i * 40503u;
}

size_t size_of(const struct options *options, unsigned channel, uint64_t m)
{
    return options->sizes[(m + channel) % options->size_count];
}

/* ---- the ring all-reduce --------------------------------------------------------------------- */

/*
 * Slices follow each other; of a slice of `ranks` chunks, 2 (ranks - 1) steps. In step s a rank sends chunk (rank -
 * s) and receives chunk (rank - s - 1): to add in the first half, to keep in the second.
 */
static unsigned steps_of(const struct stream *s)
{
    return 2 * (s->comm->options->ranks - 1);
}

/* Elements of a chunk. Sizes differ from slice to slice; a size of no element happens. */
static size_t chunk_words(const struct stream *s, uint64_t slice)
{
    return size_of(s->comm->options, s->channel, slice) / 4;
}

static uint32_t *chunk_at(const struct stream *s, uint64_t m, unsigned behind, size_t *words)
{
    unsigned ranks = s->comm->options->ranks, steps = steps_of(s);
    unsigned chunk = (s->comm->rank + 2 * ranks - (unsigned)(m % steps) - behind) % ranks;
    size_t largest = largest_size(s->comm->options) / 4;
    *words = chunk_words(s, m / steps);
    return s->work + (m / steps * ranks + chunk) * largest;
}

static void fill_work(struct stream *s)
{
    const struct options *options = s->comm->options;
    size_t largest = largest_size(options) / 4;
    s->work = malloc(options->messages * options->ranks * largest * sizeof(*s->work));
    CHECK(s->work, "no memory");
    for (size_t i = 0; i < options->messages * options->ranks * largest; i++)
        s->work[i] = word_of(s->comm->rank, s->channel, 1, i);
}

static void check_work(const struct stream *s)
{
    const struct options *options = s->comm->options;
    size_t largest = largest_size(options) / 4;
    for (unsigned slice = 0; slice < options->messages; slice++) {
        size_t words = chunk_words(s, slice);
        for (size_t at = 0; at < options->ranks * largest; at++) {
            size_t i = slice * options->ranks * largest + at;
            uint32_t sum = 0;
            if (at % largest >= words)
                continue; /* not part of it */
            for (unsigned rank = 0; rank < options->ranks; rank++)
                sum += word_of(rank, s->channel, 1, i);
            CHECK(s->work[i] == sum, "all-reduce, channel %u, slice %u, element %zu: %08x in place of %08x", s->channel,
                  slice, at, s->work[i], sum);
        }
    }
}

/* ---- filling and taking ---------------------------------------------------------------------- */

static uint8_t *slot_of(struct link *link, uint64_t m)
{
    return link->buffer + m % SLOTS * link->slot_bytes;
}

static size_t message_bytes(const struct stream *s, uint64_t m)
{
    return s->comm->options->kind == KIND_ALL_REDUCE ? chunk_words(s, m / steps_of(s)) * 4
                                                     : size_of(s->comm->options, s->channel, m);
}

/* The GPU fills message `m` of the sender's slots. False: what it is made of has not come yet. */
static bool fill(struct stream *s, uint64_t m)
{
    uint32_t *slot = (uint32_t *)(void *)slot_of(s->send, m);
    size_t bytes = message_bytes(s, m), words;
    switch (s->comm->options->kind) {
    case KIND_ALL_REDUCE: {
        if (m % steps_of(s) != 0 && s->received < m)
            return false;
        const uint32_t *chunk = chunk_at(s, m, 0, &words);
        memcpy(slot, chunk, words * 4);
        break;
    }
    case KIND_CHUNKS:
        for (size_t i = 0; i < bytes / 4; i++)
            slot[i] = word_of(s->comm->rank, s->channel, m, i);
        break;
    default:
        lines_fill(s->comm, s->channel, m, (uint64_t *)(void *)slot, bytes);
        break;
    }
    return true;
}

static void take(struct stream *s, uint64_t m)
{
    const uint32_t *slot = (const uint32_t *)(const void *)slot_of(s->receive, m);
    size_t bytes = message_bytes(s, m), words;
    if (s->comm->options->kind == KIND_ALL_REDUCE) {
        uint32_t *chunk = chunk_at(s, m, 1, &words);
        bool adds = m % steps_of(s) < steps_of(s) / 2;
        for (size_t i = 0; i < words; i++)
            chunk[i] = adds ? chunk[i] + slot[i] : slot[i];
    } else if (s->comm->options->kind == KIND_CHUNKS) {
        for (size_t i = 0; i < bytes / 4; i++)
            CHECK(slot[i] == word_of(s->receive->peer, s->channel, m, i),
                  "channel %u, message %llu, word %zu of %zu: %08x", s->channel, (unsigned long long)m, i, bytes / 4,
                  slot[i]);
    } /* else the GPU has looked */
}

/* ---- progress -------------------------------------------------------------------------------- */

static enum nccl_result progress_sends(struct stream *s)
{
    struct comm *comm = s->comm;
    enum nccl_result result = NCCL_SUCCESS;
    while (s->filled < s->total && s->filled - s->sent < SLOTS && fill(s, s->filled))
        s->filled++;
    while (s->posted < s->filled && result == NCCL_SUCCESS) {
        void **request = &s->send_request[s->posted % SLOTS];
        result = net_send(comm->net, s->send->comm, slot_of(s->send, s->posted), message_bytes(s, s->posted),
                          (int)comm->rank, s->send->mr, request);
        if (result != NCCL_SUCCESS || !*request)
            break;
        s->posted++;
    }
    while (s->sent < s->posted && result == NCCL_SUCCESS) {
        int done, size = -1, *where = s->sent % 2 ? &size : NULL;
        result = net_test(comm->net, s->send_request[s->sent % SLOTS], &done, where);
        if (result != NCCL_SUCCESS || !done)
            break;
        CHECK(!where || size == (int)message_bytes(s, s->sent), "a send of %zu bytes says %d",
              message_bytes(s, s->sent), size);
        s->sent++;
    }
    return result;
}

/* Whether the slot of the next receive is free */
static bool may_receive(const struct stream *s)
{
    return s->expected < s->total && s->expected - s->received < SLOTS &&
           (!s->watcher || s->expected - watcher_head(s->watcher, s->channel) < SLOTS);
}

static enum nccl_result progress_receives(struct stream *s)
{
    struct comm *comm = s->comm;
    enum nccl_result result = NCCL_SUCCESS;
    while (may_receive(s)) {
        void **request = &s->receive_request[s->expected % SLOTS];
        if (s->watcher)
            watcher_posted(s->watcher, s->channel, s->expected);
        result = net_receive(comm->net, s->receive->comm, slot_of(s->receive, s->expected), s->receive->slot_bytes,
                             (int)s->receive->peer, s->receive->mr, s->comm->early ? NET_EARLY : NET_GARBAGE, request);
        if (result != NCCL_SUCCESS || !*request)
            break;
        s->expected++;
    }
    while (s->received < s->expected && result == NCCL_SUCCESS) {
        /* NCCL gives room for as many as a receive may have buffers */
        int done, sizes[64] = {0}, *where = s->received % 3 ? sizes : NULL;
        void *request = s->receive_request[s->received % SLOTS];
        result = net_test(comm->net, request, &done, where);
        if (result != NCCL_SUCCESS || !done)
            break;
        CHECK(!where || sizes[0] == (int)message_bytes(s, s->received) ||
                  (s->watcher && comm->net->version >= 9 && sizes[0] == 0),
              "a receive of %zu bytes says %d", message_bytes(s, s->received), sizes[0]);
        CHECK(sizes[1] == 0, "test wrote the size of a second buffer");
        GOOD(net_consumed(comm->net, s->receive->comm, request));
        take(s, s->received);
        s->received++;
        atomic_fetch_add_explicit(&comm->board->progress[comm->rank], 1, memory_order_relaxed);
    }
    return result;
}

static bool over(const struct stream *s)
{
    return s->sent == s->total && s->received == s->total &&
           (!s->watcher || watcher_head(s->watcher, s->channel) == s->total);
}

static uint64_t done_so_far(const struct stream *streams, unsigned count)
{
    uint64_t sum = 0;
    for (unsigned c = 0; c < count; c++)
        sum += streams[c].sent + streams[c].received;
    return sum;
}

enum nccl_result run_traffic(struct comm *comm)
{
    const struct options *options = comm->options;
    struct stream *streams = calloc(options->channels, sizeof(*streams));
    bool looked_at = options->kind >= KIND_LL;
    const char *optional = getenv("NCCL_NET_OPTIONAL_RECV_COMPLETION");
    struct watcher *watcher = looked_at ? watcher_start(comm) : NULL;
    enum nccl_result result = NCCL_SUCCESS;
    double moved_at = now_s();
    uint64_t before = 0;
    unsigned open;
    CHECK(streams, "no memory");
    comm->early = looked_at && !(optional && strcmp(optional, "0") == 0);
    for (unsigned c = 0; c < options->channels; c++) {
        struct stream *s = &streams[c];
        *s = (struct stream){.comm = comm,
                             .send = &comm->sends[c],
                             .receive = &comm->receives[c],
                             .channel = c,
                             .total = options->messages,
                             .watcher = watcher};
        if (options->kind == KIND_ALL_REDUCE) {
            fill_work(s);
            s->total *= steps_of(s);
        }
    }
    do {
        open = 0;
        for (unsigned c = 0; c < options->channels && result == NCCL_SUCCESS; c++) {
            result = progress_sends(&streams[c]);
            if (result == NCCL_SUCCESS)
                result = progress_receives(&streams[c]);
            open += !over(&streams[c]);
        }
        if (done_so_far(streams, options->channels) != before) {
            before = done_so_far(streams, options->channels);
            moved_at = now_s();
        } else {
            CHECK(now_s() - moved_at < PATIENCE_S, "nothing has moved for %d s: %u channels open", PATIENCE_S, open);
            nap_us(20);
        }
    } while (open && result == NCCL_SUCCESS);
    if (watcher)
        watcher_end(watcher, result == NCCL_SUCCESS);
    for (unsigned c = 0; c < options->channels; c++) {
        if (options->kind == KIND_ALL_REDUCE && result == NCCL_SUCCESS)
            check_work(&streams[c]);
        free(streams[c].work);
    }
    free(streams);
    return result;
}
