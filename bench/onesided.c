/* SPDX-License-Identifier: Apache-2.0 */
/* See onesided.h. */
#include "onesided.h"

#include <endian.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

/* What a notification of 16 bytes says, where contents are checked: two little-endian words, this and a number. */
enum { MOVED = 0x4d4f5645, FREE = 0x46524545 };

enum { REFERENCE_WORDS = (UCCL_REF_BYTES + 7) / 8, GAP_BYTES = 64, WAIT_MS = 20 };

/* ---- memory that the other side uses ---- */

void onesided_export(uccl_conn *conn, const struct region *region, uccl_export **out, const char *doing)
{
    uint8_t bytes[REFERENCE_WORDS * 8] = {0};
    uint64_t words[REFERENCE_WORDS];
    int rc = uccl_export_mr(region->mr, region->base, region->bytes, UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, bytes, out);
    if (rc != 0)
        tool_fail_uccl(rc, "exporting message buffers");
    for (unsigned i = 0; i < REFERENCE_WORDS; i++) {
        memcpy(&words[i], bytes + 8 * i, 8);
        words[i] = le64toh(words[i]);
    }
    tool_tell(conn, TOOL_READY, words, REFERENCE_WORDS, doing);
}

void onesided_import(struct tool_mail *mail, uccl_conn **conns, uint32_t count, uccl_remote **out, const char *doing)
{
    struct tool_message message;
    uint8_t bytes[REFERENCE_WORDS * 8];
    tool_expect_mail(mail, TOOL_READY, -1, doing, &message);
    for (unsigned i = 0; i < REFERENCE_WORDS; i++) {
        uint64_t word = htole64(message.field[i]);
        memcpy(bytes + 8 * i, &word, 8);
    }
    for (uint32_t i = 0; i < count; i++) {
        int rc = uccl_import(conns[i], bytes, &out[i]);
        if (rc != 0)
            tool_fail_uccl(rc, "connection %u, importing the peer's message buffers", (unsigned)i);
    }
}

void onesided_revoke(uccl_export *exported)
{
    if (exported)
        uccl_revoke(exported, -1);
}

/* ---- pieces ---- */

static uint32_t pieces_of(const struct stream *s)
{
    return s->pieces != 0 ? s->pieces : 1;
}

/* The first pieces are a byte longer, where it does not come out even. */
static uint64_t piece_bytes(uint64_t size, uint32_t pieces, uint32_t index)
{
    return size / pieces + (index < size % pieces);
}

static uint64_t piece_stride(uint64_t size, uint32_t pieces)
{
    return stream_stride(piece_bytes(size, pieces, 0)) + GAP_BYTES;
}

uint64_t onesided_slot(uint64_t size, uint32_t pieces)
{
    return pieces <= 1 ? stream_stride(size) : pieces * piece_stride(size, pieces);
}

static uint64_t piece_at(const struct stream *s, uint32_t index)
{
    return pieces_of(s) == 1 ? 0 : index * piece_stride(s->size, s->pieces);
}

static uint64_t piece_channel(const struct stream *s, uint32_t index)
{
    return s->channel | (uint64_t)index << TOOL_PIECE_SHIFT;
}

/* Contents of a message where it is written from or read from; elsewhere, what must be overwritten. */
static void fill_slot(struct stream *s, unsigned char *slot, uint64_t number, bool contents)
{
    uint32_t pieces = pieces_of(s);
    uint64_t bytes = pieces == 1 ? s->size : s->stride;
    unsigned char *at = region_scratch(s->region, slot, bytes);
    if (!contents || pieces != 1)
        tool_poison(at, bytes);
    for (uint32_t i = 0; contents && i < pieces; i++)
        tool_fill(at + piece_at(s, i), piece_bytes(s->size, pieces, i), piece_channel(s, i), number);
    region_store(s->region, slot, bytes);
}

/* Where a message has arrived: its pieces are right, and nothing between them was touched. */
static bool slot_is_right(struct stream *s, unsigned char *slot, uint64_t number, struct tool_mismatch *out)
{
    uint32_t pieces = pieces_of(s);
    uint64_t bytes = pieces == 1 ? s->size : s->stride;
    unsigned char *at = region_scratch(s->region, slot, bytes), untouched[GAP_BYTES + 64];
    region_load(s->region, slot, bytes);
    tool_poison(untouched, sizeof(untouched));
    for (uint32_t i = 0; i < pieces; i++) {
        uint64_t begin = piece_at(s, i), length = piece_bytes(s->size, pieces, i), end = piece_at(s, i + 1);
        if (!tool_verify(at + begin, length, piece_channel(s, i), number, out))
            return false;
        if (pieces != 1 && memcmp(at + begin + length, untouched, end - begin - length) != 0) {
            *out = (struct tool_mismatch){piece_channel(s, i), number, length, 0xdbdbdbdbdbdbdbdb, 0};
            memcpy(&out->got, at + begin + length, 8);
            return false;
        }
    }
    return true;
}

static unsigned char *slot_of(const struct stream *s, uint64_t index)
{
    return s->buffers + index % s->window % s->buffer_count * s->stride;
}

/* ---- the side that operates ---- */

static void prepare(struct stream *s, unsigned char *buffer, uint64_t number)
{
    if (s->op == STREAM_NOTIFY)
        tool_fill(buffer, s->size, s->channel, number);
    else
        fill_slot(s, buffer, number, s->op == STREAM_WRITE);
}

static void say(unsigned char out[16], uint64_t what, uint64_t number)
{
    uint64_t words[] = {htole64(what), htole64(number)};
    memcpy(out, words, sizeof(words));
}

static int post(struct stream *s, unsigned char *buffer, uccl_request **request)
{
    uint32_t pieces = pieces_of(s);
    uint64_t remote_at = s->remote_at + (uint64_t)(buffer - s->buffers);
    unsigned char moved[16];
    struct uccl_tail told = {.kind = UCCL_TAIL_NOTIFY, .bytes = moved, .length = sizeof(moved)};
    const struct uccl_tail *tail = s->tail ? s->tail : s->check ? &told : NULL;
    if (s->op == STREAM_NOTIFY)
        return uccl_notify_async(s->conn, buffer, s->size, request);
    if (!s->list)
        s->list = calloc(pieces, sizeof(*s->list));
    if (!s->list)
        tool_fail("out of memory for %u pieces", pieces);
    for (uint32_t i = 0; i < pieces; i++)
        s->list[i] = (struct uccl_piece){.local = buffer + piece_at(s, i),
                                         .mr = s->region->mr,
                                         .length = piece_bytes(s->size, pieces, i),
                                         .remote = s->remote,
                                         .offset = remote_at + piece_at(s, i)};
    say(moved, MOVED, s->first_number + s->posted);
    return s->op == STREAM_WRITE ? uccl_write_async(s->conn, s->list, pieces, tail, request)
                                 : uccl_read_async(s->conn, s->list, pieces, tail, request);
}

static void ended(struct stream *s, unsigned char *buffer)
{
    struct tool_mismatch mismatch;
    if (s->op != STREAM_READ)
        return;
    if (s->flush || s->check)
        stream_flush(s, buffer, pieces_of(s) == 1 ? s->size : s->stride);
    if (s->check && !slot_is_right(s, buffer, s->first_number + s->ended, &mismatch))
        stream_note_wrong(s, &mismatch);
}

const struct stream_ops onesided_ops = {prepare, post, ended};

/* ---- the target ---- */

void onesided_offer(struct stream *s)
{
    memset(s->requests, 0, s->window * sizeof(*s->requests)); /* of telling that buffers are free */
    for (; s->check && s->op != STREAM_NOTIFY && s->posted < s->window && s->posted < s->total; s->posted++)
        fill_slot(s, slot_of(s, s->posted), s->first_number + s->posted, s->op == STREAM_READ);
}

/* Has the peer taken what it was told of this slot before? Waits for that, or looks (0). */
static bool told(struct stream *s, uint64_t index, int timeout_ms)
{
    uccl_request **request = &s->requests[index % s->window];
    int rc = *request ? uccl_wait(*request, timeout_ms, NULL) : 0;
    if (rc == UCCL_ETIMEDOUT)
        return false;
    *request = NULL;
    if (rc != 0)
        tool_fail_uccl(rc, "connection %" PRIu64 ", telling that a buffer is free", s->channel / 2);
    return true;
}

/* Buffers of messages that have been moved are for others, as far as there are any. Returns how many it has offered. */
static unsigned offer_freed(struct stream *s)
{
    unsigned char bytes[16];
    unsigned count = 0;
    for (; s->posted < s->ended + s->window && s->posted < s->total; s->posted++, count++) {
        if (!told(s, s->posted, 0))
            break;
        fill_slot(s, slot_of(s, s->posted), s->first_number + s->posted, s->op == STREAM_READ);
        say(bytes, FREE, s->first_number + s->posted);
        int rc = uccl_notify_async(s->conn, bytes, sizeof(bytes), &s->requests[s->posted % s->window]);
        if (rc == UCCL_EAGAIN)
            break;
        if (rc != 0)
            tool_fail_uccl(rc, "connection %" PRIu64 ", telling that a buffer is free", s->channel / 2);
    }
    return count;
}

/* The next message has been moved. */
static void target_moved(struct stream *s, const unsigned char *bytes, size_t length)
{
    uint64_t number = s->first_number + s->ended;
    struct tool_mismatch mismatch;
    if (s->ended == s->total)
        tool_fail("connection %" PRIu64 ": more has come than was announced", s->channel / 2);
    if (s->op == STREAM_NOTIFY && length != s->size)
        tool_fail("connection %" PRIu64 ", message %" PRIu64 ": expected %" PRIu64 " bytes, got %zu", s->channel / 2,
                  s->ended, s->size, length);
    bool right = s->op == STREAM_NOTIFY  ? tool_verify(bytes, length, s->channel, number, &mismatch)
                 : s->op == STREAM_WRITE ? slot_is_right(s, slot_of(s, s->ended), number, &mismatch)
                                         : true;
    if (!right)
        stream_note_wrong(s, &mismatch);
    s->ended++;
    s->bytes += s->size;
}

/* The tail of message `number`, counted from the stream's first. Those of writes come in order, as they were posted. */
static void target_told(struct stream *s, uint64_t number)
{
    if (number < s->ended || number >= s->posted || (s->op == STREAM_WRITE && number != s->ended))
        tool_fail("connection %" PRIu64 ": message %" PRIu64 " is told to be there, expected was %" PRIu64,
                  s->channel / 2, number, s->ended);
    if (!s->moved)
        s->moved = calloc(s->window, 1);
    if (!s->moved)
        tool_fail("out of memory for requests");
    for (s->moved[number % s->window] = 1; s->moved[s->ended % s->window] != 0; target_moved(s, NULL, 0))
        s->moved[s->ended % s->window] = 0;
}

void onesided_settle(struct stream *s)
{
    for (uint64_t i = 0; i < s->window; i++)
        told(s, i, -1);
}

void onesided_verify(struct stream *s, uint64_t index)
{
    struct tool_mismatch mismatch;
    if (!slot_is_right(s, slot_of(s, index), s->first_number + index, &mismatch))
        stream_note_wrong(s, &mismatch);
    fill_slot(s, slot_of(s, index), 0, false);
}

/* ---- both ---- */

/* The stream that a notification is for: those of a connection stand together, and one's turn comes after another's. */
static struct stream *stream_for(struct stream *streams, unsigned count, unsigned *next, const uccl_conn *conn,
                                 bool sends)
{
    for (unsigned i = 0; i < count; i++) {
        struct stream *s = &streams[*next % count];
        if (s->conn == conn && s->sends == sends)
            return s;
        *next = (*next + 1) % count;
    }
    tool_fail("a notification has come that nobody here expects");
}

static void act_on(struct stream *streams, unsigned count, unsigned *next, const uccl_conn *from,
                   const unsigned char *bytes, size_t length)
{
    uint64_t words[2] = {0};
    bool control = streams[0].op != STREAM_NOTIFY;
    if (control && length == sizeof(words))
        memcpy(words, bytes, sizeof(words));
    uint64_t what = le64toh(words[0]), number = le64toh(words[1]);
    if (control && what != MOVED && what != FREE)
        tool_fail("a notification has come that nobody here expects");
    if (control && number < streams[0].first_number)
        return; /* of a phase that is over */
    struct stream *s = stream_for(streams, count, next, from, what == FREE);
    if (what == FREE)
        s->free_until = number - s->first_number + 1;
    else if (what == MOVED)
        target_told(s, number - s->first_number);
    else
        target_moved(s, bytes, length);
}

static bool take_notifications(uccl_engine *engine, struct stream *streams, unsigned count, unsigned *next)
{
    static unsigned char bytes[UCCL_NOTIFY_MAX];
    size_t length;
    uccl_conn *from;
    unsigned taken = 0;
    int rc = 0;
    while (taken < 256 && (rc = uccl_notify_next(engine, bytes, sizeof(bytes), &length, &from)) == 0) {
        act_on(streams, count, next, from, bytes, length);
        taken++;
    }
    if (rc != 0 && rc != UCCL_EAGAIN)
        tool_fail_uccl(rc, "taking notifications");
    return taken != 0;
}

void onesided_turn(uccl_engine *engine, struct stream *streams, unsigned count, unsigned *next)
{
    static unsigned notified;
    bool moved = streams[0].check && take_notifications(engine, streams, count, &notified);
    struct stream *waiting = NULL;
    for (unsigned i = 0; i < count; i++) {
        struct stream *s = &streams[i];
        if (!s->sends) {
            moved |= s->check && s->op != STREAM_NOTIFY && offer_freed(s) != 0;
            continue;
        }
        moved |= stream_post(s) != 0;
        if (count > 1 || s->check)
            while (stream_reap(s, 0))
                moved = true;
    }
    for (unsigned i = 0; i < count && !waiting; i++) {
        struct stream *s = &streams[(*next)++ % count];
        if (s->sends && s->ended != s->posted)
            waiting = s;
    }
    if (waiting && count == 1 && !waiting->check) {
        stream_reap(waiting, 200);
    } else if (!moved && waiting) {
        stream_reap(waiting, 1);
    } else if (!moved) {
        struct pollfd fd = {.fd = uccl_notify_fd(engine), .events = POLLIN};
        int rc = poll(&fd, 1, WAIT_MS) == 0 ? uccl_conn_status(streams[0].conn) : 0;
        if (rc != 0)
            tool_fail_uccl(rc, "connection %" PRIu64 ", waiting for the peer", streams[0].channel / 2);
    }
}
