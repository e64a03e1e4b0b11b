/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that reads receive buffers before they are done, as a GPU does under LL and LL128.
 *
 * LL: 8 bytes, data below and flag above. Where the flag is the new one the data has to be, too. LL128: 128 bytes,
 * whose last 8 are the flag. A GPU has a thread per line, so that lines are looked at in no order: each pass looks at
 * all lines of all pending messages. A line that was right stays right until the GPU gives the slot back.
 */
#include "host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LL_WORDS = 1, /* words of 8 bytes that a line has */
    LL128_WORDS = 16
};

struct looked_at {
    _Atomic uint64_t posted; /* messages whose slot may be written to; pairs with the acquire in look() */
    _Atomic uint64_t head;   /* messages that have been taken; pairs with the acquire in watcher_head() */
};

struct watcher {
    struct comm *comm;
    pthread_t thread;
    atomic_bool stop;
    struct looked_at channel[CHANNELS_MAX];
    uint64_t torn, looks, lines;
    char first[160]; /* what the first torn line was */
};

/* Flags of slots used again differ; 0 is what memory holds at first. */
static uint32_t flag_of(uint64_t m)
{
    return (uint32_t)m + 1;
}

static uint64_t flag128_of(uint64_t m)
{
    return (m + 1) * 0x100000001u;
}

static uint64_t word128_of(unsigned sender, unsigned channel, uint64_t m, size_t i)
{
    return (uint64_t)word_of(sender, channel, m, 2 * i) << 32 | word_of(sender, channel, m, 2 * i + 1);
}

void lines_fill(const struct comm *comm, unsigned channel, uint64_t m, uint64_t *words, size_t bytes)
{
    for (size_t i = 0; i < bytes / 8; i++) {
        if (comm->options->kind == KIND_LL)
            words[i] = (uint64_t)flag_of(m) << 32 | word_of(comm->rank, channel, m, i);
        else
            words[i] = i % LL128_WORDS == LL128_WORDS - 1 ? flag128_of(m) : word128_of(comm->rank, channel, m, i);
    }
}

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static void tell_torn(struct watcher *w, unsigned channel, uint64_t m, size_t i, uint64_t seen)
{
    if (w->torn++ == 0)
        snprintf(w->first, sizeof(w->first), "channel %u, message %" PRIu64 ", byte %zu of %zu: %016" PRIx64, channel,
                 m, i * 8, size_of(w->comm->options, channel, m), seen);
}

/* Has line `line` of the message arrived? Counts it where it is torn. */
static bool look_at_line(struct watcher *w, const struct link *link, uint64_t m, const uint64_t *words, size_t line)
{
    if (w->comm->options->kind == KIND_LL) {
        uint64_t seen = load(&words[line]);
        if (seen >> 32 != flag_of(m))
            return false;
        if ((uint32_t)seen != word_of(link->peer, link->channel, m, line))
            tell_torn(w, link->channel, m, line, seen);
        return true;
    }
    words += line * LL128_WORDS;
    if (load(&words[LL128_WORDS - 1]) != flag128_of(m))
        return false;
    for (size_t i = 0; i < LL128_WORDS - 1; i++) {
        uint64_t seen = load(&words[i]);
        if (seen != word128_of(link->peer, link->channel, m, line * LL128_WORDS + i))
            tell_torn(w, link->channel, m, line * LL128_WORDS + i, seen);
    }
    return true;
}

/* One pass over a pending message; whether all of it is there. */
static bool look_at_message(struct watcher *w, const struct link *link, uint64_t m)
{
    const uint64_t *words = (const uint64_t *)(const void *)(link->buffer + m % SLOTS * link->slot_bytes);
    size_t line_words = w->comm->options->kind == KIND_LL ? LL_WORDS : LL128_WORDS;
    size_t lines = size_of(w->comm->options, link->channel, m) / 8 / line_words, there = 0;
    for (size_t line = 0; line < lines; line++)
        there += look_at_line(w, link, m, words, line);
    w->looks++;
    return there == lines;
}

static void *look(void *data)
{
    struct watcher *w = data;
    while (!atomic_load(&w->stop)) {
        bool moved = false;
        for (unsigned c = 0; c < w->comm->options->channels; c++) {
            struct looked_at *at = &w->channel[c];
            uint64_t posted = atomic_load_explicit(&at->posted, memory_order_acquire);
            uint64_t head = atomic_load_explicit(&at->head, memory_order_relaxed);
            for (uint64_t m = head; m < posted; m++) {
                if (look_at_message(w, &w->comm->receives[c], m) && m == head) {
                    w->lines += size_of(w->comm->options, c, m) / 8;
                    atomic_store_explicit(&at->head, ++head, memory_order_release);
                    moved = true;
                }
            }
        }
        if (!moved)
            nap_us(0);
    }
    return NULL;
}

struct watcher *watcher_start(struct comm *comm)
{
    struct watcher *w = calloc(1, sizeof(*w));
    CHECK(w, "no memory");
    w->comm = comm;
    CHECK(pthread_create(&w->thread, NULL, look, w) == 0, "no thread");
    return w;
}

void watcher_posted(struct watcher *w, unsigned channel, uint64_t m)
{
    atomic_store_explicit(&w->channel[channel].posted, m + 1, memory_order_release);
}

uint64_t watcher_head(struct watcher *w, unsigned channel)
{
    return atomic_load_explicit(&w->channel[channel].head, memory_order_acquire);
}

void watcher_end(struct watcher *w, bool whole)
{
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    printf("rank %u: %" PRIu64 " words, %" PRIu64 " looks, %" PRIu64 " torn\n", w->comm->rank, w->lines, w->looks,
           w->torn);
    CHECK(w->torn == 0, "%" PRIu64 " torn words, the first: %s", w->torn, w->first);
    CHECK(!whole || w->looks > 0, "nobody has looked");
    free(w);
}
