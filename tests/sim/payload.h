/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload without memory. A buffer is a range of addresses where nothing is mapped; what engines read
 * from it is generated from (session, sender, message, offset), and what they write is compared with that
 * and noted, so that messages of any size cost nothing to hold, and every single write is judged: into a
 * posted receive that has not ended, within its bounds, the right bytes, each byte once. Of a watched receive also how.
 */
#ifndef SIM_PAYLOAD_H
#define SIM_PAYLOAD_H

#include "machine.h"

struct uccl_request;

struct extent {
    uint64_t from, to;
};

struct buffer {
    uint64_t address, size;
    uint64_t key; /* of its content */
    bool receives;
    bool device;           /* the CPU must not touch it */
    bool watched;          /* it is read while the receive is pending; then also: */
    uint64_t message;      /* bytes that will arrive */
    uint64_t copied_to;    /* where the copy before ended */
    bool dubious;          /* a hostile node says what is written: anything, but into this buffer */
    bool ended;            /* its request has */
    bool over;             /* and has been collected */
    uint64_t unflushed_ns; /* when a NIC wrote to a device what is not there yet for certain; 0: all is */
    struct process *process;
    struct uccl_request *request; /* once posted */
    struct extent *extents;       /* written, sorted, none touch */
    unsigned extent_count, extent_room;
    uint64_t written;
};

void payload_begin(void);
void payload_end(void);
struct buffer *payload_buffer(uint64_t size, uint64_t key, bool receives);
/* It is watched, before it is posted; `message`: bytes that will arrive. */
void payload_watch(struct buffer *buffer, uint64_t message);
static inline void *payload_address(const struct buffer *buffer)
{
    return (void *)(uintptr_t)buffer->address;
}
/* The buffer of a device that has this address, or NULL. */
const struct buffer *payload_device_buffer(const void *address);
/* A device's copy from or to its memory. */
void payload_device_copy(uint64_t device_address, void *host, size_t length, bool to_device);
/* A NIC reads or writes it by itself, for the application of a process. */
void payload_nic_read(const struct process *process, uint64_t address, void *out, size_t length);
void payload_nic_write(const struct process *process, uint64_t address, const void *bytes, size_t length);
/* A hostile node writes, or is written to: into a buffer that it has to do with, perhaps after the request of that has
 * ended. */
void payload_lied_write(uint64_t address, size_t length);
/* What it had written by then is there. */
void payload_flushed(const struct process *process, uint64_t posted_ns);
/* A NIC writes what may turn out to be something else: into a receive that has not ended, and where nothing has
 * arrived. */
void payload_foreseen(void *to, const void *from, size_t length);
/* Its request has ended and was collected; who touches the buffer from now on is wrong. */
void payload_release(struct buffer *buffer);
/* A process was killed: nobody will touch its buffers. */
void payload_kill(const struct process *process);
bool payload_fills(const struct buffer *buffer, uint64_t size); /* exactly [0, size) was written */

extern uint64_t payload_bytes; /* checked so far */

#endif
