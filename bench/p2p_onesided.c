/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Phases of p2p_bench whose messages are written or read. A write goes from one side's send memory to the other's
 * receive memory, a read the other way. Each side that operates tells the other by a message how many it has moved
 * when it has done so; until then the other serves, which costs it nothing where contents are not checked.
 *
 * Ping-pong: a write sets a word at the other side behind its bytes, and the other side answers with one. A read is a
 * round trip by itself.
 */
#include "p2p_side.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define PING_STOP (UINT64_MAX >> 1)

static const char doing[] = "telling the peer of message buffers";

void p2p_onesided_open(struct side *side)
{
    static const struct device_choice host = {.kind = DEVICE_CPU};
    region_make(&side->word, side->engine, &host, 64);
    memset(side->word.base, 0, 64);
    struct {
        const struct region *region;
        uccl_remote **peers;
    } parts[] = {{&side->send_memory, &side->peer_send},
                 {&side->receive_memory, &side->peer_receive},
                 {&side->word, &side->peer_word}};
    for (unsigned i = 0; i < 3; i++) {
        struct tool_mail mail;
        tool_mail_post(side->conns[CONTROL], &mail);
        onesided_export(side->conns[CONTROL], parts[i].region, &side->exports[i], doing);
        onesided_import(&mail, &side->conns[DATA], 1, parts[i].peers, doing);
    }
}

void p2p_onesided_close(struct side *side)
{
    for (unsigned i = 0; i < 3; i++)
        onesided_revoke(side->exports[i]);
    uccl_remote_free(side->peer_send);
    uccl_remote_free(side->peer_receive);
    uccl_remote_free(side->peer_word);
    region_free(&side->word);
}

static struct stream make_stream(struct side *side, const struct phase *phase, bool operates)
{
    bool write = phase->op == STREAM_WRITE;
    struct region *region = operates == write ? &side->send_memory : &side->receive_memory;
    uint64_t slot = onesided_slot(phase->size, (uint32_t)phase->pieces);
    struct stream s = {
        .conn = side->conns[DATA],
        .channel = operates == side->server, /* 1: the server operates */
        .sends = operates,
        .op = side->op,
        .ops = &onesided_ops,
        .pieces = (uint32_t)phase->pieces,
        .check = phase->check,
        .window = (uint32_t)phase->window,
        .group = 1,
        .buffer_count = p2p_buffers(side, phase, slot),
        .stride = slot,
        .region = region,
        .buffers = region->base,
        .size = phase->size,
        .remote = write ? side->peer_receive : side->peer_send,
        .requests = operates ? side->send_requests : side->receive_requests,
    };
    stream_restart(&s, phase->number << TOOL_PHASE_SHIFT, STREAM_NONE);
    return s;
}

/* Until the peer has told that it has moved all, and how many. */
static void serve_target(struct side *side, struct stream *streams, unsigned count, struct stream *target,
                         struct tool_mail *mail)
{
    struct tool_message message;
    unsigned next = 0;
    int rc;
    while ((rc = tool_mail_wait(mail, target->check ? 0 : -1, &message)) == UCCL_ETIMEDOUT)
        onesided_turn(side->engine, streams, count, &next);
    if (rc < 0)
        tool_fail_uccl(rc, "waiting for the peer to move its messages");
    if (rc != 0 || message.kind != TOOL_READY)
        tool_fail("the peer sent another message than how many it has moved");
    while (target->check && target->ended < message.field[0])
        onesided_turn(side->engine, streams, count, &next);
    onesided_settle(target);
    if (!target->check)
        target->bytes = message.field[0] * target->size;
}

static void run_operations(struct side *side, const struct phase *phase, struct stream *s, struct stream *streams,
                           unsigned count, struct outcome *out)
{
    unsigned next = 0;
    uint64_t start_ns = tool_now_ns();
    while (s->ended != s->total) {
        onesided_turn(side->engine, streams, count, &next);
        stream_end_in_time(s, start_ns, phase->limit_ns);
    }
    out->elapsed_ns = tool_now_ns() - start_ns;
    out->messages = s->ended;
}

/* ---- ping-pong ---- */

static void await_word(struct side *side, uint64_t value)
{
    const uint64_t *word = (const uint64_t *)side->word.base;
    unsigned char bytes[64];
    for (unsigned i = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) < value; i++) {
        uccl_notify_next(side->engine, bytes, sizeof(bytes), NULL, NULL); /* lets the engine work here */
        int rc = i % 1024 == 0 ? uccl_conn_status(side->conns[DATA]) : 0;
        if (rc != 0)
            tool_fail_uccl(rc, "waiting for the peer's signal");
        if (i % 64 == 0)
            sched_yield();
    }
}

/* Writes a message, or nothing, and sets the word behind it. */
static uccl_request *write_with_word(struct side *side, struct stream *s, uint64_t value, bool message)
{
    struct uccl_tail tail = {.kind = UCCL_TAIL_SET, .remote = side->peer_word, .value = value};
    uccl_request *request;
    int rc;
    s->tail = &tail;
    while ((rc = message ? onesided_ops.post(s, s->buffers, &request)
                         : uccl_write_async(s->conn, NULL, 0, &tail, &request)) == UCCL_EAGAIN)
        tool_sleep_ns(50000);
    s->tail = NULL;
    if (rc != 0)
        tool_fail_uccl(rc, "writing a message");
    return request;
}

static void collect(uccl_request *request)
{
    int rc = uccl_wait(request, -1, NULL);
    if (rc != 0)
        tool_fail_uccl(rc, "writing a message");
}

static void ping_writes(struct side *side, const struct phase *phase, struct stream *s, struct stream *target,
                        struct outcome *out)
{
    uint64_t base = phase->number << TOOL_PHASE_SHIFT, start_ns = tool_now_ns(), count = 0;
    int64_t warmup = phase->size <= 65536 ? 50 : 2;
    for (uint64_t i = 1;; i++) {
        if (s->check)
            onesided_ops.prepare(s, s->buffers, s->first_number + i * s->window);
        uint64_t post_ns = tool_now_ns();
        uccl_request *request = NULL;
        if (!side->server)
            request = write_with_word(side, s, base + i, true);
        await_word(side, base + i);
        uint64_t now_ns = tool_now_ns();
        if (side->server && __atomic_load_n((uint64_t *)side->word.base, __ATOMIC_ACQUIRE) == PING_STOP)
            break;
        if (target->check)
            onesided_verify(target, i * target->window);
        if (side->server)
            request = write_with_word(side, s, base + i, true);
        collect(request);
        if (side->server)
            continue;
        if (warmup-- <= 0)
            side->samples[count++] = tool_sample((now_ns - post_ns) / 2);
        if (count == phase->count || (count >= PING_MIN && now_ns - start_ns >= phase->limit_ns))
            break;
    }
    *(uint64_t *)side->word.base = 0;
    if (!side->server)
        collect(write_with_word(side, s, PING_STOP, false));
    out->messages = count;
}

static void ping_reads(struct side *side, const struct phase *phase, struct stream *s, struct outcome *out)
{
    uint64_t start_ns = tool_now_ns(), count = 0;
    unsigned next = 0;
    for (int64_t warmup = phase->size <= 65536 ? 50 : 2; count < phase->count; warmup--) {
        while (s->check && s->posted == s->free_until)
            onesided_turn(side->engine, s, 1, &next);
        s->total++;
        uint64_t post_ns = tool_now_ns();
        while (s->ended != s->total)
            onesided_turn(side->engine, s, 1, &next);
        uint64_t now_ns = tool_now_ns();
        if (warmup <= 0)
            side->samples[count++] = tool_sample(now_ns - post_ns);
        if (count >= PING_MIN && now_ns - start_ns >= phase->limit_ns)
            break;
    }
    out->messages = count;
}

/* ---- a phase ---- */

struct outcome p2p_onesided_phase(struct side *side, const struct phase *phase,
                                  void (*begin)(struct side *, const struct phase *))
{
    bool ping = phase->kind == PHASE_PING, writes = ping && phase->op == STREAM_WRITE;
    bool operates = !side->server || (ping ? writes : phase->bi),
         is_target = side->server || (ping ? writes : phase->bi);
    struct stream streams[2], *own = NULL, *target = NULL;
    struct tool_mail mail;
    struct outcome out = {0};
    unsigned count = 0;
    if (operates) {
        own = &streams[count++];
        *own = make_stream(side, phase, true);
        own->total = ping ? 0 : phase->count != 0 ? phase->count : STREAM_NONE;
    }
    if (is_target) {
        target = &streams[count++];
        *target = make_stream(side, phase, false);
        onesided_offer(target);
    }
    /* on each side it comes after what is said at the beginning */
    if (target && side->server)
        tool_mail_post(side->conns[CONTROL], &mail);
    begin(side, phase);
    if (target && !side->server)
        tool_mail_post(side->conns[CONTROL], &mail);
    uint64_t retransmits = tool_retransmits(side->engine), cpu_ns = tool_cpu_ns(), start_ns = tool_now_ns();
    if (writes)
        ping_writes(side, phase, own, target, &out);
    else if (ping && own)
        ping_reads(side, phase, own, &out);
    else if (own)
        run_operations(side, phase, own, streams, count, &out);
    if (own)
        tool_tell(side->conns[CONTROL], TOOL_READY, &own->ended, 1, "telling how many messages were moved");
    if (target)
        serve_target(side, streams, count, target, &mail);
    if (!own)
        out.elapsed_ns = tool_now_ns() - start_ns;
    out.cpu_ns = tool_cpu_ns() - cpu_ns;
    out.retransmits = tool_retransmits(side->engine) - retransmits;
    p2p_add_streams(&out, streams, count);
    for (unsigned i = 0; i < count; i++) {
        free(streams[i].list);
        free(streams[i].moved);
    }
    return out;
}
