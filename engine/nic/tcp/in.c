/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading records. Plain ones are read many at a time into a slot and handed out from there. The payload of a bulk
 * record goes straight to where it belongs, and the same read takes the head of the next record. A connection for bulk
 * reads no more than a head where it knows of no record, so that no payload ends up in a slot.
 *
 * A record may take many reads, and its message may end meanwhile. So its target is asked for before each read. Once
 * it has gone, the rest is discarded, and the core gets the header with payload that it will not look at: it acks the
 * chunk.
 *
 * Thread: the queue's owner.
 */
#include "nic/tcp/tcp.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum {
    STASH_MIN_BYTES = 256,
    READS_MAX = 4,    /* of one connection before the next one's turn */
    LOOK_EVERY = 16,  /* polls, at most, while connections are ready anyway, or the queue is calm */
    CALM_LOOKS = 64,  /* that found nothing */
    SOLE_READS = 8,   /* of one connection alone, before it is read without a look */
    SOLE_EVERY = 4,   /* polls, at most, for each look then */
    AWAKE_READS = 16, /* of it without a sleep, before epoll does without it */
};

void tcp_free_spent(struct tcp_queue *queue)
{
    while (queue->spent_count)
        free(queue->spent[--queue->spent_count]);
}

/* Keeps bytes for the next read. False: the connection is broken now. */
static bool stash(struct tcp_queue *queue, struct tcp_conn *conn, const uint8_t *bytes, size_t count)
{
    if (conn->stash_capacity < count) {
        size_t capacity = count < STASH_MIN_BYTES ? STASH_MIN_BYTES : count;
        uint8_t *more = realloc(conn->stash, capacity);
        if (!more) {
            tcp_break(queue, conn, "no memory for a part of a record");
            return false;
        }
        conn->stash = more;
        conn->stash_capacity = (uint32_t)capacity;
    }
    memmove(conn->stash, bytes, count);
    conn->stash_bytes = (uint32_t)count;
    return true;
}

/* Reads; -1: nothing, or the connection is broken now. */
static ssize_t read_some(struct tcp_queue *queue, struct tcp_conn *conn, struct iovec *iovecs, unsigned count)
{
    struct msghdr message = {.msg_iov = iovecs, .msg_iovlen = count};
    size_t wanted = 0;
    ssize_t got;
    for (unsigned i = 0; i < count; i++)
        wanted += iovecs[i].iov_len;
    do {
        got = count == 1 ? recv(conn->fd, iovecs->iov_base, wanted, MSG_DONTWAIT)
                         : recvmsg(conn->fd, &message, MSG_DONTWAIT);
        COUNT(queue->setup.counters, rx_syscalls, 1);
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
        /* an edge comes with whatever arrives later; the end of the stream brings none of its own to one that waits */
        if ((size_t)got < wanted && !conn->hung_up)
            conn->readable = false;
        return got;
    }
    if (conn->write_error)
        tcp_break_of(queue, conn, conn->write_error);
    else if (got == 0)
        tcp_break(queue, conn, "the peer has closed it");
    else if (errno == EAGAIN || errno == ENOMEM || errno == ENOBUFS)
        conn->readable = false;
    else
        tcp_break_of(queue, conn, errno);
    return -1;
}

/* ---- bulk records ---------------------------------------------------------------------------- */

/* The datagram of the bulk record under way, without its payload. */
static uint8_t *header_of(struct tcp_conn *conn)
{
    return conn->heads[conn->head] + RECORD_PREFIX_BYTES;
}

static uint8_t *target_of(const struct tcp_queue *queue, struct tcp_conn *conn)
{
    unsigned count = 0;
    size_t length = conn->body_bytes + WIRE_BULK_HEADER_BYTES;
    nic_target_fn ask = queue->setup.kept_target;
    void *target = ask ? ask(queue->setup.owner, header_of(conn), length, length, &count) : NULL;
    return count == 1 ? target : NULL;
}

/* Whether the record still has its target. */
static void check_target(const struct tcp_queue *queue, struct tcp_conn *conn)
{
    if (conn->body == BODY_TARGET && target_of(queue, conn) != conn->body_to)
        conn->body = BODY_DISCARD;
}

/* Begins with a bulk record of `length` bytes, of which `count` are at `bytes`, prefix included. */
static bool begin_body(struct tcp_queue *queue, struct tcp_conn *conn, uint32_t length, const uint8_t *bytes,
                       size_t count)
{
    size_t there = count - RECORD_HEAD_BYTES;
    conn->head ^= 1;
    memcpy(conn->heads[conn->head], bytes, RECORD_HEAD_BYTES);
    conn->body_bytes = length - WIRE_BULK_HEADER_BYTES;
    conn->body_to = target_of(queue, conn);
    conn->body = BODY_TARGET;
    if (!conn->body_to) {
        conn->body_to = malloc(conn->body_bytes);
        conn->body = BODY_BUFFER;
        if (!conn->body_to) {
            conn->body = BODY_NONE;
            tcp_break(queue, conn, "no memory for a record");
            return false;
        }
    }
    memcpy(conn->body_to, bytes + RECORD_HEAD_BYTES, there);
    conn->body_done = (uint32_t)there;
    return true;
}

/* The record is whole. */
static void end_body(struct tcp_queue *queue, struct tcp_conn *conn, struct nic_rx *out)
{
    check_target(queue, conn);
    *out = (struct nic_rx){.data = header_of(conn),
                           .length = conn->body_bytes + WIRE_BULK_HEADER_BYTES,
                           .stride = conn->body_bytes + WIRE_BULK_HEADER_BYTES,
                           .in_place = 1,
                           .payload = conn->body == BODY_DISCARD ? queue->zeros : conn->body_to};
    if (conn->body == BODY_BUFFER)
        queue->spent[queue->spent_count++] = conn->body_to;
    conn->body = BODY_NONE;
}

/* Reads on. True: the record is whole, in `out`. */
static bool read_body(struct tcp_queue *queue, struct tcp_conn *conn, struct nic_rx *out)
{
    uint8_t *next = conn->heads[conn->head ^ 1];
    uint32_t left = conn->body_bytes - conn->body_done;
    struct iovec iovecs[2] = {{NULL, left}, {next, RECORD_HEAD_BYTES}};
    unsigned count = 2;
    check_target(queue, conn);
    if (conn->body != BODY_DISCARD) {
        iovecs[0].iov_base = conn->body_to + conn->body_done;
    } else {
        iovecs[0].iov_base = queue->discard;
        if (left > TCP_DISCARD_BYTES) {
            iovecs[0].iov_len = TCP_DISCARD_BYTES;
            count = 1;
        }
    }
    ssize_t got = read_some(queue, conn, iovecs, count);
    if (got < 0)
        return false;
    if ((size_t)got < left) {
        conn->body_done += (uint32_t)got;
        return false;
    }
    conn->body_done = conn->body_bytes;
    if ((size_t)got > left && !stash(queue, conn, next, (size_t)got - left))
        return false; /* broken: this record comes again */
    end_body(queue, conn, out);
    return true;
}

/* ---- plain records --------------------------------------------------------------------------- */

/* How many bytes to read behind the `have` that are known. */
static size_t room_for(const struct tcp_conn *conn, const uint8_t *bytes, size_t have)
{
    uint32_t length;
    if (conn->path == 0)
        return TCP_SLOT_BYTES - have;
    enum record_shape shape = record_look(bytes, have, &length);
    size_t whole = RECORD_PREFIX_BYTES + (size_t)length;
    return shape == RECORD_PLAIN && whole > have ? whole - have : RECORD_HEAD_BYTES - have;
}

/*
 * Hands out the records in a slot, `have` bytes from `bytes` on, and begins with a bulk record that is not whole.
 * Returns how many. What is left is stashed.
 */
static unsigned hand_out(struct tcp_queue *queue, struct tcp_conn *conn, const uint8_t *bytes, size_t have,
                         struct nic_rx *out, unsigned max)
{
    unsigned count = 0;
    uint32_t length;
    while (count < max) {
        enum record_shape shape = record_look(bytes, have, &length);
        size_t whole = RECORD_PREFIX_BYTES + (size_t)length;
        if (shape == RECORD_BAD) {
            tcp_break(queue, conn, "the peer has sent bytes that are no record");
            return count;
        }
        if (shape == RECORD_SHORT || (shape == RECORD_PLAIN && whole > have))
            break;
        if (whole > have) {
            conn->stash_bytes = 0;
            begin_body(queue, conn, length, bytes, have);
            return count;
        }
        out[count++] = (struct nic_rx){
            .data = bytes + RECORD_PREFIX_BYTES, .length = length, .stride = length, .slot = queue->slots_used};
        bytes += whole;
        have -= whole;
    }
    conn->stash_bytes = 0;
    if (have)
        stash(queue, conn, bytes, have);
    return count;
}

/* Whether the stash alone has something to hand out. */
static bool stash_has_record(const struct tcp_conn *conn)
{
    uint32_t length;
    enum record_shape shape = record_look(conn->stash, conn->stash_bytes, &length);
    return shape == RECORD_BAD || shape == RECORD_BULK ||
           (shape == RECORD_PLAIN && RECORD_PREFIX_BYTES + (size_t)length <= conn->stash_bytes);
}

static unsigned read_plain(struct tcp_queue *queue, struct tcp_conn *conn, struct nic_rx *out, unsigned max)
{
    uint8_t *slot = queue->slots + (size_t)queue->slots_used * TCP_SLOT_BYTES;
    size_t have = conn->stash_bytes;
    if (!(have && stash_has_record(conn))) {
        struct iovec iovec = {slot + have, room_for(conn, conn->stash, have)};
        ssize_t got = read_some(queue, conn, &iovec, 1);
        if (got < 0)
            return 0;
        if (have)
            memcpy(slot, conn->stash, have);
        have += (size_t)got;
    } else {
        memcpy(slot, conn->stash, have);
    }
    unsigned count = hand_out(queue, conn, slot, have, out, max);
    queue->slots_used += count > 0;
    return count;
}

/* ---- poll ------------------------------------------------------------------------------------ */

/* Whether another read may bring something. */
static bool has_more(const struct tcp_conn *conn)
{
    return conn->state == TCP_UP &&
           (conn->readable || (conn->body == BODY_NONE && conn->stash_bytes && stash_has_record(conn)));
}

static unsigned read_conn(struct tcp_queue *queue, struct tcp_conn *conn, struct nic_rx *out, unsigned max)
{
    for (unsigned reads = 0; reads < READS_MAX && has_more(conn); reads++) {
        unsigned count = conn->body != BODY_NONE ? read_body(queue, conn, out) : read_plain(queue, conn, out, max);
        if (count)
            return count;
    }
    return 0;
}

static void count_read(struct tcp_queue *queue, const struct tcp_conn *conn, const struct nic_rx *rx, unsigned count)
{
    struct nic_end_counters *end = tcp_end_of(queue, conn->peer);
    if (!end)
        return;
    COUNT(end, rx_datagrams, count);
    for (unsigned i = 0; i < count; i++)
        COUNT(end, rx_bytes, rx[i].length);
}

/* Something has come over the connection. */
static void note_sole(struct tcp_queue *queue, struct tcp_conn *conn)
{
    if (queue->sole != conn) {
        queue->sole_reads = queue->awake_reads = 0;
        if (queue->sole && !tcp_watch_again(queue, queue->sole))
            tcp_break_of(queue, queue->sole, errno);
    }
    queue->sole = conn;
    queue->sole_reads++;
    queue->awake_reads++;
}

/*
 * Whether small messages come over one connection alone, as in a ping-pong. It is read without a look then, which saves
 * a system call for each message. Other connections and strangers wait for SOLE_EVERY polls at most.
 *
 * Soon it is taken from epoll as well, until the queue sleeps, its socket is full, or another one brings something.
 * Else the kernel tells epoll of each segment before the sender goes on, in memory that both processors then write: a
 * twentieth of a round trip.
 */
static bool has_sole(const struct tcp_queue *queue)
{
    return queue->sole && queue->sole->path == 0 && queue->sole_reads >= SOLE_READS && !queue->setup.beside;
}

/*
 * Whether to ask the kernel, which is a system call. The rounds of a queue beside another are that one's: without
 * connections it is hardly looked at, and where these have been calm for long, now and then and after each sleep.
 */
static bool is_to_look(struct tcp_queue *queue)
{
    queue->since_look++;
    if (queue->ready.head)
        return queue->since_look >= LOOK_EVERY;
    if (!queue->setup.beside)
        return !has_sole(queue) || queue->since_look >= SOLE_EVERY;
    if (queue->live == 0 && queue->stranger_count == 0)
        return queue->since_look >= LOOK_UNUSED;
    return queue->calm_looks < CALM_LOOKS || queue->since_look >= LOOK_EVERY;
}

unsigned tcp_poll(struct nic_queue *base, struct nic_rx *out, unsigned max)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    unsigned count = 0;
    tcp_free_spent(queue);
    queue->slots_used = 0;
    if (max > TCP_SLOTS)
        max = TCP_SLOTS;
    bool looks = is_to_look(queue);
    if (looks) {
        tcp_look(queue);
        if (queue->setup.beside && queue->links.count) /* nobody else asks */
            tcp_links_event(&queue->base, NULL);
    }
    if (has_sole(queue) && (!looks || queue->sole->unwatched)) {
        queue->sole->readable = true;
        queue_append(&queue->ready, &queue->sole->ready);
    }
    queue->turn++;
    while (count < max) {
        struct tcp_conn *conn = QUEUE_HOLDER(queue->ready.head, struct tcp_conn, ready);
        if (!conn || conn->turn == queue->turn)
            break; /* one turn each: what a connection has handed out stays until the next poll() */
        conn->turn = queue->turn;
        queue_remove(&queue->ready, &conn->ready);
        unsigned read = read_conn(queue, conn, out + count, max - count);
        count_read(queue, conn, out + count, read);
        count += read;
        if (read)
            note_sole(queue, conn);
        if (read && conn->failures && conn->state == TCP_UP) /* bytes that are no record may be another server's */
            tcp_succeed(queue, conn);
        if (has_more(conn))
            queue_append(&queue->ready, &conn->ready);
    }
    if (queue->awake_reads >= AWAKE_READS && has_sole(queue) && !queue->sole->unwatched && !queue->sole->full)
        tcp_unwatch(queue, queue->sole);
    return count;
}

void tcp_release(struct nic_queue *base, const struct nic_rx *rx)
{
    (void)base, (void)rx; /* the next poll() takes all back */
}
