/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device whose memory faults when the CPU touches it. An allocation is a memfd mapped twice: without any
 * access at the address that the application gets, and hidden, readable and writable, for the copies
 * alone. Copies run on streams, take some polls each, and end in order on their stream, in any order across
 * streams; the bytes move when a copy ends, no earlier. What a real device would forbid aborts: copies to
 * host memory that is not pinned, of memory that is not allocated any more, from threads that
 * may not make GPU calls.
 *
 * In a header, since each test is a program of one file. One process has one set of devices.
 */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include "mem/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FAKE_ALLOCATIONS = 1024, FAKE_STREAMS = 32, FAKE_COPIES = 512, FAKE_PAGE = 4096 };

struct fake_allocation {
    uint8_t *address; /* NULL: free */
    uint8_t *hidden;
    size_t length, mapped;
    int fd;
    uint64_t id;
    int device;
};

struct fake_copy {
    enum mem_direction direction;
    uintptr_t device_address;
    uint8_t *host;
    size_t length;
    void *cookie;
    unsigned polls; /* until it ends */
};

struct mem_stage {
    int device;
    unsigned streams, next[2], copies_max, in_flight, turn;
    struct fake_ring {
        struct fake_copy copies[FAKE_COPIES];
        unsigned head, count;
    } rings[2 * FAKE_STREAMS];
};

static struct {
    pthread_mutex_t lock;
    struct fake_allocation allocations[FAKE_ALLOCATIONS];
    uint64_t ids;
    uint64_t random;
    _Atomic int stages;      /* open */
    _Atomic unsigned copies; /* ended */
    _Atomic unsigned polls_max;
    _Atomic bool hold; /* no copy ends */
    /* Once this is not 0, `ending_polls` polls find nothing, and the next takes `stall_us` and ends `hold`. */
    const _Atomic uint32_t *_Atomic ending;
    unsigned ending_polls, stall_us;
    _Atomic int hold_device;     /* no copy of this one ends */
    _Atomic int fail_after;      /* copies; below 0: none fails */
    _Atomic uintptr_t fail_from; /* copies to or from this address and above fail; 0: none */
    _Atomic int refuse_after[2]; /* copies of each direction, from which on none is taken; below 0: all are */
    _Atomic int open_error, pin_error;
    bool exports, managed; /* dma-bufs; all of its memory is */
    pthread_t forbidden;
    bool forbids;
    struct {
        uint8_t *memory;
        size_t length;
    } pins[64];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .random = 1,
          .polls_max = 20,
          .hold_device = -1,
          .fail_after = -1,
          .refuse_after = {-1, -1}};

static inline void fake_die(const char *why)
{
    fprintf(stderr, "fake device: %s\n", why);
    abort();
}

/* GPU calls from this thread abort. */
static inline void fake_forbid_this_thread(void)
{
    fake.forbidden = pthread_self();
    fake.forbids = true;
}

static inline void fake_check_thread(void)
{
    if (fake.forbids && pthread_equal(fake.forbidden, pthread_self()))
        fake_die("a GPU call on an application's thread");
}

/* ---- memory ---------------------------------------------------------------------------------- */

static inline uint8_t *fake_alloc(size_t length, int device)
{
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    size_t mapped = (length + FAKE_PAGE - 1) / FAKE_PAGE * FAKE_PAGE;
    if (fd < 0 || ftruncate(fd, (off_t)mapped))
        fake_die("no memory");
    pthread_mutex_lock(&fake.lock);
    struct fake_allocation *a = fake.allocations;
    while (a < fake.allocations + FAKE_ALLOCATIONS && a->address)
        a++;
    if (a == fake.allocations + FAKE_ALLOCATIONS)
        fake_die("too many allocations");
    *a = (struct fake_allocation){
        .address = mmap(NULL, mapped, PROT_NONE, MAP_SHARED, fd, 0),
        .hidden = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0),
        .length = length,
        .mapped = mapped,
        .fd = fd,
        .id = ++fake.ids,
        .device = device,
    };
    if (a->address == MAP_FAILED || a->hidden == MAP_FAILED)
        fake_die("no memory");
    pthread_mutex_unlock(&fake.lock);
    return a->address;
}

/* Under the lock. The allocation that has this address, or NULL. */
static inline struct fake_allocation *fake_find(uintptr_t address)
{
    for (struct fake_allocation *a = fake.allocations; a < fake.allocations + FAKE_ALLOCATIONS; a++) {
        if (a->address && address >= (uintptr_t)a->address && address - (uintptr_t)a->address < a->length)
            return a;
    }
    return NULL;
}

static inline void fake_free(void *address)
{
    pthread_mutex_lock(&fake.lock);
    struct fake_allocation *a = fake_find((uintptr_t)address);
    if (!a || a->address != address)
        fake_die("freed what was not allocated");
    munmap(a->address, a->mapped);
    munmap(a->hidden, a->mapped);
    close(a->fd);
    a->address = NULL;
    pthread_mutex_unlock(&fake.lock);
}

/* The next allocation comes to the same address, as another buffer. */
static inline void fake_replace(void *address)
{
    pthread_mutex_lock(&fake.lock);
    fake_find((uintptr_t)address)->id = ++fake.ids;
    pthread_mutex_unlock(&fake.lock);
}

/* What a kernel on the device does. */
static inline void fake_access(uintptr_t address, void *host, size_t length, enum mem_direction direction)
{
    if (length == 0)
        return;
    pthread_mutex_lock(&fake.lock);
    struct fake_allocation *a = fake_find(address);
    if (!a || length > a->length - (address - (uintptr_t)a->address))
        fake_die("a copy beyond device memory, or of memory that was freed");
    uint8_t *hidden = a->hidden + (address - (uintptr_t)a->address);
    if (direction == MEM_FROM_DEVICE)
        memcpy(host, hidden, length);
    else
        memcpy(hidden, host, length);
    pthread_mutex_unlock(&fake.lock);
}

static inline void fake_read(void *to, const void *address, size_t length)
{
    fake_access((uintptr_t)address, to, length, MEM_FROM_DEVICE);
}

static inline void fake_write(void *address, const void *from, size_t length)
{
    fake_access((uintptr_t)address, (void *)(uintptr_t)from, length, MEM_TO_DEVICE);
}

/* ---- the kind of memory ---------------------------------------------------------------------- */

static const struct mem_ops fake_ops;

static inline int fake_identify(const void *address, struct mem_identity *out)
{
    pthread_mutex_lock(&fake.lock);
    const struct fake_allocation *a = fake_find((uintptr_t)address);
    if (a) {
        *out = (struct mem_identity){.ops = &fake_ops,
                                     .device = a->device,
                                     .base = (uintptr_t)a->address,
                                     .base_length = a->length,
                                     .buffer_id = a->id,
                                     .managed = fake.managed};
        snprintf(out->pci, sizeof out->pci, "fa4e:%02x:00.0", (unsigned)a->device & 0xff);
    }
    pthread_mutex_unlock(&fake.lock);
    return a ? UCCL_OK : UCCL_ENOTSUP;
}

static inline int fake_status(char *text, size_t size)
{
    snprintf(text, size, "fake");
    return UCCL_OK;
}

static inline int fake_device(int index, struct mem_device *out)
{
    (void)index; /* there are as many as tests name */
    *out = (struct mem_device){.model = "fake"};
    return UCCL_OK;
}

/* A device that exports gives a file of the allocation: two descriptors of it would be of the same memory. */
static inline int fake_export_dmabuf(const struct mem_identity *of, uintptr_t from, size_t length, int *fd,
                                     uint64_t *offset_bytes, char why[MEM_WHY_TEXT])
{
    (void)of;
    if (from % FAKE_PAGE || length % FAKE_PAGE)
        fake_die("a dma-buf of broken pages");
    pthread_mutex_lock(&fake.lock);
    const struct fake_allocation *a = fake_find(from);
    if (!a || from - (uintptr_t)a->address + length > a->mapped)
        fake_die("a dma-buf of what is not allocated");
    *fd = fake.exports ? dup(a->fd) : -1;
    *offset_bytes = from - (uintptr_t)a->address;
    pthread_mutex_unlock(&fake.lock);
    snprintf(why, MEM_WHY_TEXT, "the fake device exports nothing");
    return *fd >= 0 ? UCCL_OK : UCCL_ENOTSUP;
}

static inline int fake_stage_open(const struct mem_identity *of, unsigned streams, unsigned copies_max,
                                  struct mem_stage **out)
{
    fake_check_thread();
    if (fake.open_error)
        return fake.open_error;
    struct mem_stage *stage = calloc(1, sizeof *stage);
    if (!stage || streams > FAKE_STREAMS || copies_max > FAKE_COPIES)
        fake_die("too many streams or copies");
    stage->device = of->device;
    stage->streams = streams;
    stage->copies_max = copies_max;
    fake.stages++;
    *out = stage;
    return UCCL_OK;
}

static inline void fake_stage_close(struct mem_stage *stage)
{
    fake_check_thread();
    if (stage->in_flight)
        fake_die("closed with copies in flight");
    fake.stages--;
    free(stage);
}

static inline int fake_pin(struct mem_stage *stage, void *memory, size_t length)
{
    fake_check_thread();
    (void)stage;
    if (fake.pin_error)
        return fake.pin_error;
    pthread_mutex_lock(&fake.lock);
    unsigned i = 0;
    while (fake.pins[i].memory)
        i++;
    fake.pins[i].memory = memory;
    fake.pins[i].length = length;
    pthread_mutex_unlock(&fake.lock);
    return UCCL_OK;
}

static inline void fake_unpin(struct mem_stage *stage, void *memory)
{
    (void)stage;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < sizeof fake.pins / sizeof fake.pins[0]; i++) {
        if (fake.pins[i].memory == memory) {
            fake.pins[i].memory = NULL;
            pthread_mutex_unlock(&fake.lock);
            return;
        }
    }
    fake_die("unpinned what was not pinned");
}

static inline void fake_check_pinned(const uint8_t *host, size_t length)
{
    bool found = false;
    pthread_mutex_lock(&fake.lock);
    for (unsigned i = 0; i < sizeof fake.pins / sizeof fake.pins[0]; i++)
        found |= fake.pins[i].memory && host >= fake.pins[i].memory &&
                 host + length <= fake.pins[i].memory + fake.pins[i].length;
    pthread_mutex_unlock(&fake.lock);
    if (!found)
        fake_die("a copy from or to host memory that is not pinned");
}

static inline unsigned fake_random(unsigned below)
{
    pthread_mutex_lock(&fake.lock);
    fake.random = fake.random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    unsigned value = (unsigned)(fake.random >> 33) % below;
    pthread_mutex_unlock(&fake.lock);
    return value;
}

static inline int fake_copy(struct mem_stage *stage, enum mem_direction direction, uintptr_t device_address,
                            void *host_address, size_t length, void *cookie)
{
    if (fake.refuse_after[direction] == 0)
        return UCCL_EIO;
    if (fake.refuse_after[direction] > 0)
        fake.refuse_after[direction]--;
    fake_check_thread();
    fake_check_pinned(host_address, length);
    if (stage->in_flight == stage->copies_max)
        return UCCL_EAGAIN;
    unsigned stream = stage->next[direction]++ % stage->streams;
    struct fake_ring *ring = &stage->rings[direction * FAKE_STREAMS + stream];
    ring->copies[(ring->head + ring->count++) % FAKE_COPIES] =
        (struct fake_copy){.direction = direction,
                           .device_address = device_address,
                           .host = host_address,
                           .length = length,
                           .cookie = cookie,
                           .polls = 1 + fake_random(fake.polls_max)};
    stage->in_flight++;
    return UCCL_OK;
}

/* By polls, not by time: a loaded machine may run a thread that waits for a time much later. */
static inline void fake_let_go(void)
{
    if (!fake.ending || !atomic_load(fake.ending) || fake.ending_polls-- > 0)
        return;
    fake.ending = NULL;
    usleep(fake.stall_us);
    fake.hold = false;
}

static inline int fake_poll(struct mem_stage *stage, void **cookie)
{
    fake_check_thread();
    fake_let_go();
    if (stage->device == fake.hold_device)
        return 0;
    for (unsigned i = 0; i < 2 * FAKE_STREAMS && stage->in_flight && !fake.hold; i++) {
        struct fake_ring *ring = &stage->rings[stage->turn++ % (2 * FAKE_STREAMS)];
        struct fake_copy *copy = &ring->copies[ring->head];
        if (ring->count == 0 || --copy->polls)
            continue;
        ring->head = (ring->head + 1) % FAKE_COPIES;
        ring->count--;
        stage->in_flight--;
        *cookie = copy->cookie;
        if (fake.fail_after == 0 || (fake.fail_from && copy->device_address >= fake.fail_from))
            return UCCL_EIO;
        if (fake.fail_after > 0)
            fake.fail_after--;
        fake.copies++;
        fake_access(copy->device_address, copy->host, copy->length, copy->direction);
        return 1;
    }
    return 0;
}

static const struct mem_ops fake_ops = {
    .name = "fake",
    .kind = (enum uccl_mem)99,
    .cpu_readable = false,
    .identify = fake_identify,
    .status = fake_status,
    .device = fake_device,
    .export_dmabuf = fake_export_dmabuf,
    .stage_open = fake_stage_open,
    .stage_close = fake_stage_close,
    .pin = fake_pin,
    .unpin = fake_unpin,
    .copy = fake_copy,
    .poll = fake_poll,
};

#endif
