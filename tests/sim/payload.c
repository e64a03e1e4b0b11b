/* SPDX-License-Identifier: Apache-2.0 */
#include "payload.h"

#include "content.h"
#include "core/crc32c.h"
#include "request/request.h"
#include "seam.h"
#include "thread/crc32c_hw.h"

enum { GAP_BYTES = 4096, UNIT = CORE_WATCHED_BYTES };

/* No process has memory there: between the heap and the libraries of every 64-bit system. */
static const uint64_t FIRST_ADDRESS = UINT64_C(0x180000000000), END_ADDRESS = UINT64_C(0x280000000000);

static struct {
    struct buffer **buffers; /* by address; over ones are swept out */
    size_t count, room, over;
    uint64_t next_address;
    bool copying;                 /* a device is */
    const struct process *nic_of; /* a NIC does, for this one */
    bool watched_copy;            /* the routine for watched receives does */
} payload;

uint64_t payload_bytes;

void payload_begin(void)
{
    memset(&payload, 0, sizeof payload);
    payload.next_address = FIRST_ADDRESS;
    payload_bytes = 0;
}

static void free_buffer(struct buffer *buffer)
{
    free(buffer->extents);
    free(buffer);
}

void payload_end(void)
{
    for (size_t i = 0; i < payload.count; i++)
        free_buffer(payload.buffers[i]);
    free(payload.buffers);
}

static void sweep(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < payload.count; i++) {
        if (payload.buffers[i]->over)
            free_buffer(payload.buffers[i]);
        else
            payload.buffers[kept++] = payload.buffers[i];
    }
    payload.count = kept;
    payload.over = 0;
}

struct buffer *payload_buffer(uint64_t size, uint64_t key, bool receives)
{
    if (payload.over > 64 && payload.over > payload.count / 2)
        sweep();
    if (payload.count == payload.room) {
        payload.room = payload.room ? 2 * payload.room : 256;
        payload.buffers = realloc(payload.buffers, payload.room * sizeof(void *));
        if (!payload.buffers)
            abort();
    }
    struct buffer *buffer = calloc(1, sizeof *buffer);
    if (!buffer)
        abort();
    *buffer = (struct buffer){.address = payload.next_address + rng_below(&machine.rng, 64),
                              .size = size,
                              .key = key,
                              .receives = receives,
                              .process = machine_process()};
    payload.next_address += (size / GAP_BYTES + 2) * GAP_BYTES;
    if (payload.next_address > END_ADDRESS)
        machine_fail("no addresses are left for payload");
    return payload.buffers[payload.count++] = buffer;
}

void payload_watch(struct buffer *buffer, uint64_t message)
{
    buffer->watched = true;
    buffer->message = message;
    buffer->address = (buffer->address + UNIT - 1) / UNIT * UNIT; /* the gap behind it is large enough */
}

static void retire(struct buffer *buffer)
{
    buffer->over = true;
    free(buffer->extents);
    buffer->extents = NULL;
    payload.over++;
}

void payload_release(struct buffer *buffer)
{
    retire(buffer);
}

void payload_kill(const struct process *process)
{
    for (size_t i = 0; i < payload.count; i++) {
        if (payload.buffers[i]->process == process && !payload.buffers[i]->over)
            retire(payload.buffers[i]);
    }
}

/* ---- access ---------------------------------------------------------------------------------- */

static bool is_payload(const void *address)
{
    return (uintptr_t)address >= FIRST_ADDRESS && (uintptr_t)address < END_ADDRESS;
}

/* The buffer that begins last at or below. */
static struct buffer *at_or_below(uint64_t address)
{
    size_t low = 0, high = payload.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (payload.buffers[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? payload.buffers[low - 1] : NULL;
}

static struct buffer *find(uint64_t address, uint64_t length, const char *doing)
{
    struct buffer *buffer = at_or_below(address);
    if (!buffer || address - buffer->address > buffer->size || length > buffer->size - (address - buffer->address))
        machine_fail("%s of %llu bytes outside any posted buffer", doing, (unsigned long long)length);
    if (buffer->over || buffer->ended ||
        (buffer->request && *(uint32_t *)(void *)&buffer->request->state == REQUEST_ENDED))
        machine_fail("%s of %llu bytes in a buffer whose request has ended", doing, (unsigned long long)length);
    if (buffer->process != (payload.nic_of ? payload.nic_of : machine_process()))
        machine_fail("%s of a buffer of another process", doing);
    if (!payload.nic_of && buffer->device != payload.copying)
        machine_fail("%s of %s memory by %s", doing, buffer->device ? "a device's" : "host",
                     buffer->device ? "the CPU" : "a device");
    return buffer;
}

static void add_extent(struct buffer *buffer, uint64_t from, uint64_t to)
{
    struct extent *e = buffer->extents;
    unsigned at = buffer->extent_count;
    while (at > 0 && e[at - 1].from >= from)
        at--;
    if ((at < buffer->extent_count && e[at].from < to) || (at > 0 && e[at - 1].to > from))
        machine_fail("bytes %llu to %llu of a receive were written twice", (unsigned long long)from,
                     (unsigned long long)to);
    bool joins_last = at > 0 && e[at - 1].to == from;
    bool joins_next = at < buffer->extent_count && e[at].from == to;
    buffer->written += to - from;
    if (joins_last && joins_next) {
        e[at - 1].to = e[at].to;
        memmove(e + at, e + at + 1, (--buffer->extent_count - at) * sizeof *e);
    } else if (joins_last) {
        e[at - 1].to = to;
    } else if (joins_next) {
        e[at].from = from;
    } else {
        if (buffer->extent_count == buffer->extent_room) {
            buffer->extent_room = buffer->extent_room ? 2 * buffer->extent_room : 8;
            buffer->extents = e = realloc(e, buffer->extent_room * sizeof *e);
            if (!e)
                abort();
        }
        memmove(e + at + 1, e + at, (buffer->extent_count++ - at) * sizeof *e);
        e[at] = (struct extent){from, to};
    }
}

bool payload_fills(const struct buffer *buffer, uint64_t size)
{
    if (size == 0)
        return buffer->extent_count == 0;
    return buffer->extent_count == 1 && buffer->extents[0].from == 0 && buffer->extents[0].to == size;
}

const struct buffer *payload_device_buffer(const void *address)
{
    const struct buffer *buffer = is_payload(address) ? at_or_below((uintptr_t)address) : NULL;
    bool inside = buffer && (uintptr_t)address - buffer->address <= buffer->size;
    return inside && buffer->device && !buffer->over ? buffer : NULL;
}

void payload_device_copy(uint64_t device_address, void *host, size_t length, bool to_device)
{
    payload.copying = true;
    if (to_device)
        sim_memcpy((void *)(uintptr_t)device_address, host, length);
    else
        sim_memcpy(host, (const void *)(uintptr_t)device_address, length);
    payload.copying = false;
}

void payload_nic_read(const struct process *process, uint64_t address, void *out, size_t length)
{
    payload.nic_of = process;
    sim_memcpy(out, (const void *)(uintptr_t)address, length);
    payload.nic_of = NULL;
}

void payload_nic_write(const struct process *process, uint64_t address, const void *bytes, size_t length)
{
    struct buffer *buffer = is_payload((const void *)(uintptr_t)address) ? at_or_below(address) : NULL;
    payload.nic_of = process;
    sim_memcpy((void *)(uintptr_t)address, bytes, length);
    payload.nic_of = NULL;
    if (buffer && buffer->device)
        buffer->unflushed_ns = machine.now_ns;
}

void payload_lied_write(uint64_t address, size_t length)
{
    const struct buffer *buffer = at_or_below(address);
    if (!buffer || address - buffer->address > buffer->size || length > buffer->size - (address - buffer->address))
        machine_fail("a hostile write of %zu bytes beyond any buffer", length);
    if (!buffer->dubious)
        machine_fail("a hostile write into the buffer of others");
    payload_bytes += length;
}

void payload_flushed(const struct process *process, uint64_t posted_ns)
{
    for (size_t i = 0; i < payload.count; i++)
        if (payload.buffers[i]->process == process && payload.buffers[i]->unflushed_ns <= posted_ns)
            payload.buffers[i]->unflushed_ns = 0;
}

void payload_foreseen(void *to, const void *from, size_t length)
{
    if (!is_payload(to)) {
        memcpy(to, from, length);
        return;
    }
    const struct buffer *buffer = find((uintptr_t)to, length, "a foreseen write");
    if (buffer->watched)
        machine_fail("a watched receive was written by foresight");
    uint64_t begin = (uintptr_t)to - buffer->address;
    for (unsigned i = 0; i < buffer->extent_count; i++) {
        if (buffer->extents[i].from < begin + length && begin < buffer->extents[i].to)
            machine_fail("bytes %llu to %llu of a receive, of which some have arrived, were written by foresight",
                         (unsigned long long)begin, (unsigned long long)(begin + length));
    }
}

/*
 * A copy into a watched receive: by the routine for that, and of whole units, but for the end of the message. Two
 * copies share a unit where the eager ring wraps, one right after the other.
 */
static void check_watched(struct buffer *buffer, uint64_t from, uint64_t to)
{
    if (!payload.watched_copy)
        machine_fail("bytes %llu to %llu of a watched receive were written in any order", (unsigned long long)from,
                     (unsigned long long)to);
    if (from % 8 || (to % 8 && to != buffer->message && !buffer->dubious))
        machine_fail("bytes %llu to %llu of a watched receive are no whole words", (unsigned long long)from,
                     (unsigned long long)to);
    if (from % UNIT && from != buffer->copied_to)
        machine_fail("byte %llu of a watched receive was written before those in front of it",
                     (unsigned long long)from);
    buffer->copied_to = to;
}

void sim_watched_copy(void *to, const void *from, size_t length)
{
    payload.watched_copy = true;
    sim_memcpy(to, from, length);
    payload.watched_copy = false;
}

/* Of payload in its place it is that of the right bytes; what hostile nodes have written is not kept, so that none is
 * right. */
static uint32_t checksum(uint32_t start, const void *data, size_t length)
{
    if (!is_payload(data))
        return crc32c_best()(start, data, length);
    const struct buffer *buffer = find((uintptr_t)data, length, "a checksum");
    uint64_t offset = (uintptr_t)data - buffer->address;
    for (size_t at = 0; at < length;) {
        uint8_t bytes[4096];
        size_t some = length - at < sizeof bytes ? length - at : sizeof bytes;
        content_write(bytes, buffer->key, offset + at, some);
        start = crc32c_best()(start, bytes, some);
        at += some;
    }
    return buffer->dubious ? ~start : start;
}

crc32c_fn sim_crc32c_best(void)
{
    return checksum;
}

void *sim_memcpy(void *to, const void *from, size_t length)
{
    if (length == 0)
        return to;
    if (is_payload(to)) {
        struct buffer *buffer = find((uintptr_t)to, length, "a write");
        uint64_t offset = (uintptr_t)to - buffer->address;
        if (!buffer->receives)
            machine_fail("a write into the buffer of a send");
        payload_bytes += length;
        if (buffer->watched)
            check_watched(buffer, offset, offset + length);
        if (buffer->dubious)
            return to;
        uint64_t right = content_right(from, buffer->key, offset, length);
        if (right < length)
            machine_fail("a wrong byte for offset %llu of a receive", (unsigned long long)(offset + right));
        add_extent(buffer, offset, offset + length);
        return to;
    }
    if (is_payload(from)) {
        const struct buffer *buffer = find((uintptr_t)from, length, "a read");
        if (buffer->receives)
            machine_fail("a read from the buffer of a receive");
        content_write(to, buffer->key, (uintptr_t)from - buffer->address, length);
        return to;
    }
    return memcpy(to, from, length);
}
