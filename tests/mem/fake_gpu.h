/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU that is not there, behind the stand-in runtime libraries (fake_cuda.c, fake_hip.c). Its memory
 * faults when the CPU touches it. Copies that are queued on a stream run late, one at a time, when
 * somebody asks whether they have ended, and they touch nothing but its own memory and page-locked host
 * memory. What an engine must never do, such as waiting for a stream, ends the process with a word on stderr.
 *
 * Settings from the environment, for whole programs:
 *   FAKE_GPU_DEVICES=2               devices
 *   FAKE_GPU_FAIL=NAME:ERROR:N[:TIMES][,...] the function NAME returns ERROR from its Nth call on, or so many times;
 *                                    "*": all functions. 719: the devices are lost, with all copies under way
 *   FAKE_GPU_LATE=2                  questions that a copy outlasts
 */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FAKE_DEVICES_MAX = 8, DEVICE_LOST = 719 };

#define FAKE_API __attribute__((visibility("default")))

/* For tests in the same process, by dlsym(): adds an item as FAKE_GPU_FAIL has it; NULL: none any more. */
FAKE_API void fake_gpu_fail(const char *item);
/* For tests: contexts that were made on a device so far. */
FAKE_API int fake_gpu_contexts(int device);
/* For tests: calls of a function so far, failed ones too. */
FAKE_API int fake_gpu_calls(const char *function);
/* For tests: calls that were made to fail since the last fake_gpu_fail(). */
FAKE_API int fake_gpu_failed(void);
/* For tests: streams, events, uses of contexts and ranges of page-locked memory that there are. */
FAKE_API int fake_gpu_held(void);
/* A context is used once more, or less. */
void fake_hold(int more);

/* Counts a call of `function`; the error that it is to return, or 0. */
int fake_enter(const char *function);

int fake_devices(void);
/* "0000:04:00.0"; the bus of device i is i / 2 * 32 + 4 + i % 2: two GPUs on each switch. */
void fake_pci(int device, char *out, size_t size);
/* Remembers that a context was made on the device. */
void fake_context_made(int device);

struct fake_allocation {
    uintptr_t base;
    size_t length;
    uint64_t id; /* never given twice */
    int device;
};

/* NULL: out of memory. An address that was freed is given again as soon as it fits. */
void *fake_alloc(int device, size_t bytes);
bool fake_free(void *memory);
/* The allocation that an address lies in. */
bool fake_find(const void *address, struct fake_allocation *out);

/* Page-locked host memory; false: (partly) so already, or not so. */
bool fake_pin(void *memory, size_t bytes);
bool fake_unpin(void *memory);
/* Whether an address is in page-locked memory; `base` and `length` of that (may be NULL). */
bool fake_pinned(const void *address, uintptr_t *base, size_t *length);

/* Copies now, between any two of device memory and host memory. False: outside of an allocation. */
bool fake_copy(void *to, const void *from, size_t bytes);

struct fake_stream;
struct fake_event;
struct fake_stream *fake_stream_make(int device);
/* What is queued runs first. */
void fake_stream_end(struct fake_stream *stream);
/* False: not both in device memory or page-locked memory. */
bool fake_stream_copy(struct fake_stream *stream, void *to, const void *from, size_t bytes);
struct fake_event *fake_event_make(void);
void fake_event_end(struct fake_event *event);
void fake_event_record(struct fake_event *event, struct fake_stream *stream);
bool fake_event_poll(struct fake_event *event);

/* Ends the process: what nobody may do was done. */
__attribute__((format(printf, 1, 2), noreturn)) void fake_violation(const char *format, ...);

#endif
