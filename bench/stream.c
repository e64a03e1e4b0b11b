/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See stream.h. A ring of requests whose oldest is waited for first, so that one post and one
 * completion per message is all that a message costs the tool.
 */
#include "stream.h"

#include <endian.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define POISON 0xdbdbdbdbdbdbdbdbull

/* ---- contents ---- */

/* Steps by an odd constant: words of one message never repeat; bases of messages are far apart. */
#define WORD_STEP 0x9e3779b97f4a7c15ull

/* Mixes all bits of `x` into all others (a bijection: multiplications by odd numbers, xor-shifts).
 */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 31) * 0xd6e8feb86659fd93ull;
    x = (x ^ x >> 29) * 0xa0761d6478bd642full;
    return x ^ x >> 32;
}

static uint64_t content_base(uint64_t channel, uint64_t number)
{
    return mix(mix(channel + 1) + number);
}

/* Word `index` of a message. The shift keeps a wrong base from cancelling against a wrong index. */
static inline uint64_t content_word(uint64_t base, uint64_t index)
{
    uint64_t x = base + index * WORD_STEP;
    return x ^ x >> 27;
}

void tool_fill(void *buffer, uint64_t size, uint64_t channel, uint64_t number)
{
    unsigned char *at = buffer;
    uint64_t base = content_base(channel, number), words = size / 8;
    for (uint64_t i = 0; i < words; i++) {
        uint64_t word = htole64(content_word(base, i));
        memcpy(at + i * 8, &word, 8);
    }
    uint64_t last = htole64(content_word(base, words));
    memcpy(at + words * 8, &last, size % 8);
}

void tool_poison(void *buffer, uint64_t size)
{
    memset(buffer, (int)(POISON & 0xff), size);
}

bool tool_verify(const void *buffer, uint64_t size, uint64_t channel, uint64_t number, struct tool_mismatch *out)
{
    enum { BLOCK = 512 }; /* words compared without a branch in between */
    const unsigned char *at = buffer;
    uint64_t base = content_base(channel, number), words = size / 8, word;
    for (uint64_t start = 0; start < words; start += BLOCK) {
        uint64_t end = words - start < BLOCK ? words : start + BLOCK, differs = 0;
        for (uint64_t i = start; i < end; i++) {
            memcpy(&word, at + i * 8, 8);
            differs |= le64toh(word) ^ content_word(base, i);
        }
        for (uint64_t i = start; differs != 0 && i < end; i++) {
            memcpy(&word, at + i * 8, 8);
            if (le64toh(word) != content_word(base, i)) {
                *out = (struct tool_mismatch){channel, number, i * 8, content_word(base, i), le64toh(word)};
                return false;
            }
        }
    }
    uint64_t last = htole64(content_word(base, words)), expected = 0, got = 0;
    memcpy(&expected, &last, size % 8);
    memcpy(&got, at + words * 8, size % 8);
    if (expected == got)
        return true;
    *out = (struct tool_mismatch){channel, number, words * 8, le64toh(expected), le64toh(got)};
    return false;
}

void tool_print_mismatch(const char *who, const struct tool_mismatch *m)
{
    char phase[40] = "", piece[40] = "";
    uint64_t channel = m->channel & ((1 << TOOL_PIECE_SHIFT) - 1);
    if (m->channel != channel)
        snprintf(piece, sizeof(piece), "piece %" PRIu64 ", ", m->channel >> TOOL_PIECE_SHIFT);
    if (m->number >> TOOL_PHASE_SHIFT != 0)
        snprintf(phase, sizeof(phase), "phase %" PRIu64 ", ", m->number >> TOOL_PHASE_SHIFT);
    tool_start_error_line();
    fprintf(stderr,
            "[%s] error: wrong data: connection %" PRIu64 ", %smessage %" PRIu64 " sent by the %s, %soffset %" PRIu64
            ": expected 0x%016" PRIx64 ", got 0x%016" PRIx64 "%s\n",
            who, channel / 2, phase, m->number & ((UINT64_C(1) << TOOL_PHASE_SHIFT) - 1),
            channel % 2 != 0 ? "server" : "client", piece, m->offset, m->expected, m->got,
            m->got == POISON ? " (never written)" : "");
}

/* ---- streams ---- */

uint64_t stream_stride(uint64_t size)
{
    return size == 0 ? 64 : (size + 63) / 64 * 64;
}

uint32_t stream_buffers(uint64_t stride, uint32_t window, bool check, uint64_t memory)
{
    uint64_t fit = memory / stride;
    return check || fit >= window ? window : fit == 0 ? 1 : (uint32_t)fit;
}

void stream_restart(struct stream *s, uint64_t first_number, uint64_t total)
{
    s->first_number = first_number;
    s->total = total;
    s->posted = s->ended = s->look_at = s->bytes = 0;
    s->stop_from = s->stopped_at = STREAM_NONE;
    s->post_slot = s->reap_slot = 0;
    s->free_until = s->op == STREAM_NOTIFY ? STREAM_NONE : s->window; /* what the target has at first */
    s->starved_since_ns = 0;
}

/* Number of message `index` of a stream, for people: without the phase. */
static uint64_t shown_number(const struct stream *s, uint64_t index)
{
    return (s->first_number + index) & ((UINT64_C(1) << TOOL_PHASE_SHIFT) - 1);
}

static const char *stream_verb(const struct stream *s)
{
    static const char *const verbs[] = {"sending", "writing", "reading", "notifying of"};
    return s->sends ? verbs[s->op] : "receiving";
}

/* Out of requests although none of ours is outstanding: right for a moment, wrong for long. */
static void stream_starved(struct stream *s)
{
    uint64_t now_ns = tool_now_ns();
    if (s->starved_since_ns == 0)
        s->starved_since_ns = now_ns;
    if (now_ns - s->starved_since_ns > TOOL_ANSWER_MS * NS_PER_MS)
        tool_fail_uccl(UCCL_EAGAIN, "connection %" PRIu64 ", %s message %" PRIu64, s->channel / 2, stream_verb(s),
                       shown_number(s, s->posted));
}

/* Makes the contents of the next message, or of the buffer before it arrives. */
static void stream_prepare(struct stream *s, unsigned char *buffer, uint64_t size)
{
    if (s->ops) {
        s->ops->prepare(s, buffer, s->first_number + s->posted);
        return;
    }
    void *contents = region_scratch(s->region, buffer, size);
    if (s->sends)
        tool_fill(contents, size, s->channel, s->first_number + s->posted);
    else
        tool_poison(contents, size);
    region_store(s->region, buffer, size);
}

/* May the next message be posted? Groups are posted whole, as soon as a whole group has ended. */
static bool stream_has_room(const struct stream *s)
{
    if (s->posted >= s->total || (s->ops && s->check && s->posted >= s->free_until))
        return false;
    if (s->group == 1)
        return s->posted - s->ended < s->window;
    return s->posted / s->group - s->ended / s->group < s->window / s->group;
}

unsigned stream_post(struct stream *s)
{
    unsigned count = 0;
    while (stream_has_room(s)) {
        unsigned char *buffer = s->buffers + (s->post_slot % s->buffer_count) * s->stride;
        uint64_t size = s->posted >= s->stop_from ? 0 : s->size;
        uccl_request **request = &s->requests[s->post_slot];
        int rc;
        if (s->check)
            stream_prepare(s, buffer, size);
        if (s->ops)
            rc = s->ops->post(s, buffer, request);
        else if (s->sends)
            rc = uccl_send_async(s->conn, buffer, size, s->region->mr, request);
        else
            rc = uccl_recv_async(s->conn, buffer, size, s->region->mr, request);
        if (rc == UCCL_EAGAIN) {
            if (s->posted == s->ended)
                stream_starved(s);
            break;
        }
        if (rc != 0)
            tool_fail_uccl(rc, "connection %" PRIu64 ", %s message %" PRIu64, s->channel / 2, stream_verb(s),
                           shown_number(s, s->posted));
        s->starved_since_ns = 0;
        s->posted++;
        count++;
        s->post_slot = s->post_slot + 1 == s->window ? 0 : s->post_slot + 1;
    }
    return count;
}

void stream_flush(struct stream *s, unsigned char *buffer, size_t bytes)
{
    uccl_request *request = NULL;
    int rc = uccl_flush(s->conn, buffer, bytes, s->region->mr, &request);
    if (rc == 0 && request)
        rc = uccl_wait(request, -1, NULL);
    if (rc != 0)
        tool_fail_uccl(rc, "connection %" PRIu64 ", flushing message %" PRIu64, s->channel / 2,
                       shown_number(s, s->ended));
}

void stream_note_wrong(struct stream *s, const struct tool_mismatch *mismatch)
{
    if (s->wrong++ == 0)
        s->first_wrong = *mismatch;
    if (s->wrong <= 5)
        tool_print_mismatch(tool_role, mismatch);
}

/* A message has arrived in `buffer`. */
static void stream_received(struct stream *s, unsigned char *buffer, size_t bytes)
{
    uint64_t number = s->first_number + s->ended;
    struct tool_mismatch mismatch;
    if (bytes == 0 && s->may_stop) {
        if (s->stopped_at == STREAM_NONE)
            s->stopped_at = s->ended;
        return;
    }
    if (bytes != s->size || s->stopped_at != STREAM_NONE)
        tool_fail("connection %" PRIu64 ", message %" PRIu64 ": expected %" PRIu64 " bytes, got %zu", s->channel / 2,
                  shown_number(s, s->ended), s->size, bytes);
    if (s->flush || s->check) /* what is compared must be there */
        stream_flush(s, buffer, bytes);
    if (!s->check)
        return;
    void *contents = region_scratch(s->region, buffer, bytes);
    region_load(s->region, buffer, bytes);
    if (!tool_verify(contents, s->size, s->channel, number, &mismatch))
        stream_note_wrong(s, &mismatch);
}

void stream_end_in_time(struct stream *s, uint64_t start_ns, uint64_t limit_ns)
{
    if (limit_ns == 0 || s->posted >= s->total || s->ended < s->look_at)
        return;
    s->look_at = s->ended + (s->size < 16384 ? 16 : 0); /* several may end together: no multiple of 16 need be seen */
    if (tool_now_ns() - start_ns >= limit_ns)
        s->total = s->posted;
}

bool stream_reap(struct stream *s, int timeout_ms)
{
    size_t bytes = 0;
    int rc, done = 0;
    if (s->ended == s->posted)
        return false;
    if (timeout_ms == 0) {
        rc = uccl_test(s->requests[s->reap_slot], &done, &bytes);
        if (rc == 0 && !done)
            return false;
    } else {
        rc = uccl_wait(s->requests[s->reap_slot], timeout_ms, &bytes);
        if (rc == UCCL_ETIMEDOUT)
            return false;
    }
    if (rc != 0)
        tool_fail_uccl(rc, "connection %" PRIu64 ", %s message %" PRIu64, s->channel / 2, stream_verb(s),
                       shown_number(s, s->ended));
    unsigned char *buffer = s->buffers + (s->reap_slot % s->buffer_count) * s->stride;
    if (s->ops)
        s->ops->ended(s, buffer);
    else if (!s->sends)
        stream_received(s, buffer, bytes);
    s->ended++;
    s->bytes += !s->ops ? bytes : s->size;
    s->reap_slot = s->reap_slot + 1 == s->window ? 0 : s->reap_slot + 1;
    return true;
}

/*
 * A single stream waits for its oldest message. Several are looked at in turn; when none moved, the
 * wait is for the oldest of one, another one each time, and short.
 */
void stream_turn(struct stream *streams, unsigned count, unsigned *next)
{
    bool moved = false;
    for (unsigned i = 0; i < count; i++) {
        moved |= stream_post(&streams[i]) != 0;
        while (count > 1 && stream_reap(&streams[i], 0))
            moved = true;
    }
    if (moved && count > 1)
        return;
    for (unsigned i = 0; i < count; i++) {
        struct stream *s = &streams[(*next)++ % count];
        if (s->ended != s->posted) {
            stream_reap(s, count == 1 ? 200 : 1);
            return;
        }
    }
    if (!moved)
        tool_sleep_ns(50000);
}

void stream_advance(struct stream *s, uint64_t count)
{
    s->total += count;
    for (;;) {
        stream_post(s);
        if (s->posted == s->total)
            return;
        if (!stream_reap(s, 200) && s->posted == s->ended)
            tool_sleep_ns(50000);
    }
}

void stream_finish(struct stream *s, uint64_t left)
{
    while (s->total - s->ended > left) {
        stream_post(s);
        stream_reap(s, 200);
    }
}
