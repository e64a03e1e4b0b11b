/* SPDX-License-Identifier: Apache-2.0 */
/* See fake_gpu.h. One lock for everything: this is for tests. */
#include "fake_gpu.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALLOCATIONS_MAX = 4096, PINS_MAX = 1024, FUNCTIONS_MAX = 64, NAME_MAX_ = 48, GRANULE = 512 };

#define DEVICE_BYTES ((size_t)4 << 30) /* of address space; what is touched takes memory */

struct fake_op {
    struct fake_op *next;
    void *to; /* NULL: a mark, for an event */
    const void *from;
    size_t bytes;
    unsigned late; /* questions until it runs */
    unsigned life; /* of the devices, in which it was queued */
};

struct fake_stream {
    struct fake_op *first, **last;
    uint64_t queued, done; /* operations */
};

struct fake_event {
    struct fake_stream *stream; /* NULL: not recorded */
    uint64_t mark;              /* has ended when so many operations are done */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static char *device_memory; /* nobody may touch it: the addresses that programs see */
static char *shadow;        /* what is behind them, at the same offsets */
static struct fake_allocation allocations[ALLOCATIONS_MAX];
static size_t allocation_count;
static uint64_t next_id = 1;
static struct {
    uintptr_t base;
    size_t length;
} pins[PINS_MAX];
static size_t pin_count;
static struct {
    char name[NAME_MAX_];
    int calls;
    int fail, from, until;
} functions[FUNCTIONS_MAX];
static size_t function_count;
static int device_count = 2, contexts[FAKE_DEVICES_MAX];
static unsigned late = 2;
static unsigned life;    /* how often the devices were lost: what had been queued before never runs */
static int failed, made; /* calls that were made to fail; streams and events that are */

void fake_violation(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fake GPU: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

/* ---- settings and failures ------------------------------------------------------------------- */

/* Under the lock. */
static size_t function_of(const char *name, size_t length)
{
    for (size_t i = 0; i < function_count; i++) {
        if (strlen(functions[i].name) == length && strncmp(functions[i].name, name, length) == 0)
            return i;
    }
    if (function_count == FUNCTIONS_MAX || length >= NAME_MAX_)
        fake_violation("too many functions, or too long a name: %s", name);
    memcpy(functions[function_count].name, name, length);
    return function_count++;
}

static void add_failures(const char *list)
{
    while (list && *list) {
        size_t length = strcspn(list, ":");
        int fail = 0, from = 0, times = 0;
        if (sscanf(list + length, ":%d:%d:%d", &fail, &from, &times) < 2 || from < 1 || times < 0)
            fake_violation("FAKE_GPU_FAIL: NAME:ERROR:N or NAME:ERROR:N:TIMES is wanted, not %s", list);
        size_t function = function_of(list, length);
        functions[function].fail = fail;
        functions[function].from = functions[function].calls + from;
        functions[function].until = times ? functions[function].from + times : INT_MAX;
        list += strcspn(list, ",");
        list += *list == ',';
    }
}

static void start(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *devices = getenv("FAKE_GPU_DEVICES"),
               *outlasts = getenv("FAKE_GPU_LATE");
    if (devices)
        device_count = atoi(devices);
    if (visible && !*visible)
        device_count = 0;
    if (outlasts)
        late = (unsigned)atoi(outlasts);
    size_t bytes = FAKE_DEVICES_MAX * DEVICE_BYTES;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    device_memory = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
    shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (device_count < 0 || device_count > FAKE_DEVICES_MAX || device_memory == MAP_FAILED || shadow == MAP_FAILED)
        fake_violation("no address space, or too many devices");
    add_failures(getenv("FAKE_GPU_FAIL"));
}

static void enter(void)
{
    pthread_once(&once, start);
    pthread_mutex_lock(&lock);
}

static void leave(void)
{
    pthread_mutex_unlock(&lock);
}

static bool fails_now(size_t function)
{
    int calls = functions[function].calls;
    return functions[function].from && calls >= functions[function].from && calls < functions[function].until;
}

int fake_enter(const char *name)
{
    enter();
    size_t all = function_of("*", 1), function = function_of(name, strlen(name));
    functions[all].calls++;
    functions[function].calls++;
    int fail = 0;
    if (fails_now(function))
        fail = functions[function].fail;
    else if (fails_now(all))
        fail = functions[all].fail;
    failed += fail != 0;
    life += fail == DEVICE_LOST;
    leave();
    return fail;
}

void fake_gpu_fail(const char *item)
{
    enter();
    for (size_t i = 0; !item && i < function_count; i++)
        functions[i].from = 0;
    add_failures(item);
    failed = 0;
    leave();
}

int fake_gpu_failed(void)
{
    enter();
    int count = failed;
    leave();
    return count;
}

int fake_gpu_held(void)
{
    enter();
    int count = made + (int)pin_count;
    leave();
    return count;
}

void fake_hold(int more)
{
    enter();
    made += more;
    leave();
}

int fake_gpu_calls(const char *function)
{
    enter();
    int calls = functions[function_of(function, strlen(function))].calls;
    leave();
    return calls;
}

/* ---- devices --------------------------------------------------------------------------------- */

int fake_devices(void)
{
    pthread_once(&once, start);
    return device_count;
}

void fake_pci(int device, char *out, size_t size)
{
    snprintf(out, size, "0000:%02X:00.0", device / 2 * 32 + 4 + device % 2);
}

void fake_context_made(int device)
{
    enter();
    contexts[device]++;
    leave();
}

int fake_gpu_contexts(int device)
{
    enter();
    int count = contexts[device];
    leave();
    return count;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool find(const void *address, size_t bytes, struct fake_allocation *out)
{
    uintptr_t at = (uintptr_t)address;
    for (size_t i = 0; i < allocation_count; i++) {
        const struct fake_allocation *a = &allocations[i];
        if (at >= a->base && at - a->base < a->length && bytes <= a->length - (at - a->base)) {
            *out = *a;
            return true;
        }
    }
    return false;
}

/* The lowest gap that fits: `allocations` is in the order of addresses. */
void *fake_alloc(int device, size_t bytes)
{
    enter();
    uintptr_t begin = (uintptr_t)device_memory + (size_t)device * DEVICE_BYTES, end = begin + DEVICE_BYTES;
    size_t i = 0, rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    for (; i < allocation_count && allocations[i].base < end; i++) {
        if (allocations[i].base >= begin && allocations[i].base - begin >= rounded)
            break;
        uintptr_t after = (allocations[i].base + allocations[i].length + GRANULE - 1) / GRANULE * GRANULE;
        begin = after > begin ? after : begin;
    }
    void *memory = NULL;
    if (allocation_count < ALLOCATIONS_MAX && bytes && end - begin >= rounded) {
        memmove(&allocations[i + 1], &allocations[i], (allocation_count - i) * sizeof *allocations);
        allocation_count++;
        allocations[i] = (struct fake_allocation){begin, bytes, next_id++, device};
        memory = (void *)begin;
    }
    leave();
    return memory;
}

bool fake_free(void *memory)
{
    enter();
    size_t i = 0;
    while (i < allocation_count && allocations[i].base != (uintptr_t)memory)
        i++;
    bool found = i < allocation_count;
    if (found) {
        /* what it held is gone, so that whoever reads it later is seen */
        memset(shadow + (allocations[i].base - (uintptr_t)device_memory), 0x5a, allocations[i].length);
        memmove(&allocations[i], &allocations[i + 1], (--allocation_count - i) * sizeof *allocations);
    }
    leave();
    return found;
}

bool fake_find(const void *address, struct fake_allocation *out)
{
    enter();
    bool found = find(address, 1, out);
    leave();
    return found;
}

bool fake_pin(void *memory, size_t bytes)
{
    enter();
    bool fits = pin_count < PINS_MAX && bytes;
    uintptr_t at = (uintptr_t)memory;
    for (size_t i = 0; i < pin_count; i++)
        fits = fits && (at + bytes <= pins[i].base || at >= pins[i].base + pins[i].length);
    if (fits) {
        pins[pin_count].base = at;
        pins[pin_count++].length = bytes;
    }
    leave();
    return fits;
}

bool fake_unpin(void *memory)
{
    enter();
    size_t i = 0;
    while (i < pin_count && pins[i].base != (uintptr_t)memory)
        i++;
    bool found = i < pin_count;
    if (found)
        pins[i] = pins[--pin_count];
    leave();
    return found;
}

static bool pinned(const void *address, size_t bytes, size_t *index)
{
    uintptr_t at = (uintptr_t)address;
    for (size_t i = 0; i < pin_count; i++) {
        *index = i;
        if (at >= pins[i].base && at - pins[i].base < pins[i].length && bytes <= pins[i].length - (at - pins[i].base))
            return true;
    }
    return false;
}

bool fake_pinned(const void *address, uintptr_t *base, size_t *length)
{
    size_t index;
    enter();
    bool found = pinned(address, 1, &index);
    if (found && base)
        *base = pins[index].base;
    if (found && length)
        *length = pins[index].length;
    leave();
    return found;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool in_device_space(const void *address)
{
    const char *at = address;
    return at >= device_memory && at < device_memory + FAKE_DEVICES_MAX * DEVICE_BYTES;
}

/* Where the CPU finds what is at `address`; NULL: device memory that is not allocated. */
static char *behind(const void *address, size_t bytes)
{
    struct fake_allocation allocation;
    if (!in_device_space(address))
        return (char *)(uintptr_t)address;
    return find(address, bytes, &allocation) ? shadow + ((const char *)address - device_memory) : NULL;
}

static bool copy(void *to, const void *from, size_t bytes)
{
    char *target = behind(to, bytes), *source = behind(from, bytes);
    if (bytes && (!target || !source))
        return false;
    memmove(target, source, bytes);
    return true;
}

bool fake_copy(void *to, const void *from, size_t bytes)
{
    enter();
    bool copied = copy(to, from, bytes);
    leave();
    return copied;
}

static void count_made(int count)
{
    enter();
    made += count;
    leave();
}

struct fake_stream *fake_stream_make(int device)
{
    (void)device;
    struct fake_stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        fake_violation("out of memory");
    stream->last = &stream->first;
    count_made(1);
    return stream;
}

static void append(struct fake_stream *stream, struct fake_op op)
{
    struct fake_op *copy_of = malloc(sizeof op);
    if (!copy_of)
        fake_violation("out of memory");
    *copy_of = op;
    copy_of->life = life;
    *stream->last = copy_of;
    stream->last = &copy_of->next;
    stream->queued++;
}

/* Runs the first operation, if it is due. */
static void step(struct fake_stream *stream, bool now)
{
    struct fake_op *op = stream->first;
    if (!op || (!now && op->late && op->late--))
        return;
    if (op->to && op->life == life && !copy(op->to, op->from, op->bytes))
        fake_violation("memory was freed under a copy of %zu bytes", op->bytes);
    stream->first = op->next;
    if (!stream->first)
        stream->last = &stream->first;
    stream->done++;
    free(op);
}

void fake_stream_end(struct fake_stream *stream)
{
    enter();
    while (stream->first)
        step(stream, true);
    made--;
    leave();
    free(stream);
}

/* Device memory, or page-locked. */
static bool fit_for_copies(const void *address, size_t bytes)
{
    size_t index;
    return in_device_space(address) ? behind(address, bytes) != NULL : pinned(address, bytes, &index);
}

bool fake_stream_copy(struct fake_stream *stream, void *to, const void *from, size_t bytes)
{
    enter();
    bool fit = fit_for_copies(to, bytes) && fit_for_copies(from, bytes);
    if (fit)
        append(stream, (struct fake_op){.to = to, .from = from, .bytes = bytes, .late = late});
    leave();
    return fit;
}

struct fake_event *fake_event_make(void)
{
    struct fake_event *event = calloc(1, sizeof *event);
    if (!event)
        fake_violation("out of memory");
    count_made(1);
    return event;
}

void fake_event_end(struct fake_event *event)
{
    count_made(-1);
    free(event);
}

void fake_event_record(struct fake_event *event, struct fake_stream *stream)
{
    enter();
    append(stream, (struct fake_op){0});
    event->stream = stream;
    event->mark = stream->queued;
    leave();
}

bool fake_event_poll(struct fake_event *event)
{
    if (!event->stream)
        return true;
    enter();
    if (event->stream->done < event->mark)
        step(event->stream, false);
    bool ended = event->stream->done >= event->mark;
    leave();
    return ended;
}
