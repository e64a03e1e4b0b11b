/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing records. They wait for flush(), or until they are a batch whose system call costs little beside its bytes;
 * payload leaves from where it lies. What the kernel does not take goes on from a copy, so that a cancelled message
 * does not wait for a peer that has stopped reading. Batches are small after that: of less a copy is made.
 *
 * Thread: the queue's owner.
 */
#include "base/clock.h"
#include "core/wire.h"
#include "nic/datagram.h"
#include "nic/tcp/tcp.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

enum {
    RETRY_NS = 1000 * 1000, /* after a lack of memory */
    JOINED_BYTES = 512,     /* a copy of so few costs less than sendmsg() over several places */
};

/* There was no memory, and epoll may never tell that there is some. */
static void write_later(struct tcp_queue *queue, struct tcp_conn *conn)
{
    conn->act_ns = clock_now_ns() + RETRY_NS;
    tcp_act_at(queue, conn->act_ns);
}

/* The kernel takes no more: epoll tells when it does. */
static void fill_up(struct tcp_queue *queue, struct tcp_conn *conn)
{
    conn->full = true;
    queue->awake_reads = 0;
    if (!tcp_watch_again(queue, conn))
        write_later(queue, conn);
}

/*
 * The peer has closed the connection. What it has sent before may be unread: last of all that it has given us up, where
 * this process was stopped. So reading comes first, and meets the end.
 */
static void read_to_the_end(struct tcp_queue *queue, struct tcp_conn *conn, int error)
{
    conn->full = conn->readable = conn->hung_up = true;
    conn->write_error = error;
    queue_append(&queue->ready, &conn->ready);
}

/*
 * sendmsg() that counts. Returns the bytes taken, 0 where there is no room, -1: the connection is broken now, or once
 * it has been read.
 */
static ssize_t write_some(struct tcp_queue *queue, struct tcp_conn *conn, struct iovec *iovecs, size_t count)
{
    struct msghdr message = {.msg_iov = iovecs, .msg_iovlen = count};
    ssize_t taken;
    do {
        taken = count == 1 ? send(conn->fd, iovecs->iov_base, iovecs->iov_len, MSG_DONTWAIT | MSG_NOSIGNAL)
                           : sendmsg(conn->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        COUNT(queue->setup.counters, tx_syscalls, 1);
    } while (taken < 0 && errno == EINTR);
    if (taken >= 0) {
        struct nic_end_counters *end = tcp_end_of(queue, conn->peer);
        COUNT(queue->setup.counters, tx_bytes, (uint64_t)taken);
        if (end)
            COUNT(end, tx_bytes, (uint64_t)taken);
        tcp_look_for_loss(queue, conn, (size_t)taken);
        return taken;
    }
    int error = errno;
    if (error == EAGAIN || error == ENOBUFS || error == ENOMEM) {
        fill_up(queue, conn);
        if (error != EAGAIN)
            write_later(queue, conn);
        return 0;
    }
    if (error == EPIPE || error == ECONNRESET)
        read_to_the_end(queue, conn, error);
    else
        tcp_break_of(queue, conn, error);
    return -1;
}

/* Copies what follows the first `skipped` bytes. */
static void gather(uint8_t *to, const struct iovec *iovecs, size_t count, size_t skipped)
{
    for (size_t i = 0; i < count; i++) {
        size_t skip = skipped < iovecs[i].iov_len ? skipped : iovecs[i].iov_len;
        memcpy(to, (const uint8_t *)iovecs[i].iov_base + skip, iovecs[i].iov_len - skip);
        to += iovecs[i].iov_len - skip;
        skipped -= skip;
    }
}

/* Keeps what follows the first `taken` bytes, to be written later. */
static void keep_tail(struct tcp_queue *queue, struct tcp_conn *conn, const struct iovec *iovecs, size_t count,
                      size_t taken, size_t total)
{
    uint8_t *to = malloc(total - taken);
    fill_up(queue, conn);
    if (!to) {
        tcp_break(queue, conn, "no memory for the rest of a record");
        return;
    }
    conn->tail = to;
    conn->tail_bytes = (uint32_t)(total - taken);
    conn->tail_done = 0;
    gather(to, iovecs, count, taken);
}

/* Writes the records that wait. False: the kernel takes nothing, and none of them is kept, as `or_none` says. */
static bool write_held(struct tcp_queue *queue, bool or_none)
{
    struct tcp_conn *conn = queue->held_by;
    size_t total = queue->held_bytes, count = queue->iovec_count;
    tcp_forget_held(queue);
    if (!conn || total == 0)
        return true;
    uint8_t joined[JOINED_BYTES];
    if (total <= sizeof joined) {
        gather(joined, queue->iovecs, count, 0);
        queue->iovecs[0] = (struct iovec){joined, total};
        count = 1;
    }
    ssize_t taken = write_some(queue, conn, queue->iovecs, count);
    if (taken == (ssize_t)total && total >= conn->batch_bytes)
        conn->batch_bytes = conn->batch_bytes < TCP_BATCH_MAX / 2 ? 2 * conn->batch_bytes : TCP_BATCH_MAX;
    if (taken < 0 || (size_t)taken == total)
        return true;
    conn->batch_bytes = TCP_BATCH_MIN;
    if (taken == 0 && or_none)
        return false;
    keep_tail(queue, conn, queue->iovecs, count, (size_t)taken, total);
    return true;
}

void tcp_write_on(struct tcp_queue *queue, struct tcp_conn *conn)
{
    if (conn->write_error)
        return;
    conn->full = false;
    while (conn->tail) {
        struct iovec rest = {conn->tail + conn->tail_done, conn->tail_bytes - conn->tail_done};
        ssize_t taken = write_some(queue, conn, &rest, 1);
        if (taken < 0)
            return;
        conn->tail_done += (uint32_t)taken;
        if (conn->tail_done < conn->tail_bytes) {
            if (conn->full || taken == 0)
                return;
            continue;
        }
        free(conn->tail);
        conn->tail = NULL;
    }
    if (conn->refused && !conn->full) {
        conn->refused = false;
        conn->room_due = true;
        tcp_report(queue, conn);
    }
}

/* Counts records that are sent, or takes back what the kernel has refused. */
static void count_records(struct tcp_queue *queue, const struct tcp_conn *conn, uint64_t records)
{
    struct nic_end_counters *end = tcp_end_of(queue, conn->peer);
    COUNT(queue->setup.counters, tx_datagrams, records);
    if (end)
        COUNT(end, tx_datagrams, records);
}

/* Appends a record to what waits: its prefix and the first bytes stand in `head`, the rest at `body`. */
static void hold(struct tcp_queue *queue, struct tcp_conn *conn, uint8_t *head, uint32_t head_bytes,
                 const uint8_t *body, uint32_t body_bytes)
{
    struct iovec *iovecs = queue->iovecs + queue->iovec_count;
    iovecs[0] = (struct iovec){head, head_bytes};
    iovecs[1] = (struct iovec){(void *)(uintptr_t)body, body_bytes};
    queue->iovec_count += body_bytes ? 2 : 1;
    queue->held_records++;
    queue->held_bytes += head_bytes + body_bytes;
    queue->held_by = conn;
    count_records(queue, conn, 1);
}

/* The payload of a bulk descriptor where the CPU can read it, from datagram 0 on. NULL: no memory to gather it. */
static const uint8_t *bulk_payload(struct tcp_queue *queue, const struct tx_desc *desc)
{
    const uint8_t *payload = queue->setup.payload(desc->bulk_msg, desc->bulk_offset);
    size_t bytes = (desc->count - 1u) * (size_t)desc->bulk_stride + desc->bulk_last;
    if (payload)
        return payload;
    assert(bytes <= RECORD_BULK_MAX);
    if (!queue->gathered)
        queue->gathered = malloc(RECORD_BULK_MAX);
    if (queue->gathered)
        queue->setup.gather(queue->gathered, desc->bulk_msg, desc->bulk_offset, bytes);
    return queue->gathered;
}

static void hold_datagram(struct tcp_queue *queue, struct tcp_conn *conn, const struct tx_desc *desc, unsigned index,
                          const uint8_t *payload)
{
    uint8_t *head = queue->heads[queue->held_records];
    uint32_t length = datagram_length(desc, index);
    record_put_prefix(head, length);
    if (desc->kind == TX_BULK) {
        const uint8_t *body = datagram_bulk(&queue->setup, desc, index, payload, false, head + RECORD_PREFIX_BYTES);
        hold(queue, conn, head, RECORD_HEAD_BYTES, body, length - WIRE_BULK_HEADER_BYTES);
    } else {
        uint8_t *datagram = desc->buffer + (size_t)index * desc->datagram_bytes;
        wire_seal(desc, index, datagram, length, queue->setup.crc32c);
        hold(queue, conn, head, RECORD_PREFIX_BYTES, datagram, length);
    }
}

/* No room on the path: the core hears of it when there is some. */
static bool refuse(struct tcp_conn *conn)
{
    if (conn)
        conn->refused = true;
    return false;
}

bool tcp_send(struct nic_queue *base, const struct tx_desc *desc)
{
    struct tcp_queue *queue = tcp_queue_of(base);
    struct tcp_conn *conn = tcp_conn_of(queue, desc->destination, desc->port);
    uint64_t mask = desc->mask & (UINT64_MAX >> (CORE_TRAIN_MAX - desc->count));
    unsigned datagrams = (unsigned)__builtin_popcountll(mask);
    const uint8_t *payload = NULL;
    if (desc->kind == TX_FRAMES)
        datagram_gather(&queue->setup, desc, mask); /* also when there is no room: a retransmission has no pieces */
    if (!conn || conn->state != TCP_UP || conn->full || conn->tail)
        return refuse(conn);
    if (queue->held_by && (queue->held_by != conn || queue->held_records + datagrams > TCP_HELD_MAX))
        write_held(queue, false);
    if (conn->state != TCP_UP || conn->full)
        return refuse(conn);
    if (desc->kind == TX_BULK && !(payload = bulk_payload(queue, desc))) {
        conn->full = true;
        write_later(queue, conn);
        return refuse(conn);
    }
    bool gathered = payload && payload == queue->gathered;
    unsigned held_before = queue->held_records;
    for (unsigned i = 0; i < desc->count; i++)
        if (mask >> i & 1)
            hold_datagram(queue, conn, desc, i, payload);
    if (!gathered && queue->held_bytes < conn->batch_bytes)
        return true;
    if (write_held(queue, held_before == 0))
        return true; /* or the connection broke: lost on the way */
    count_records(queue, conn, -(uint64_t)datagrams);
    return refuse(conn);
}

unsigned tcp_flush(struct nic_queue *base)
{
    write_held(tcp_queue_of(base), false);
    return 0;
}
