/* SPDX-License-Identifier: Apache-2.0 */
/* What backends share. */
#include "nic/nic.h"

#include "core/units.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

void nic_arm_nothing(struct nic_queue *queue, uint64_t *timeout_ns)
{
    (void)queue, (void)timeout_ns;
}

void nic_wake_eventfd(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    (void)written; /* fails only when 2^64 - 2 wakes are pending */
}

int nic_sleep(struct pollfd *fds, unsigned count, uint64_t timeout_ns)
{
    enum { BLIND_NAP_NS = NS_PER_MS };
    struct timespec limit = {.tv_sec = (time_t)(timeout_ns / NS_PER_S), .tv_nsec = (long)(timeout_ns % NS_PER_S)};
    int ready = ppoll(fds, count, timeout_ns == UINT64_MAX ? NULL : &limit, NULL);
    if (ready >= 0 || errno != EINVAL)
        return ready;
    limit = (struct timespec){.tv_nsec = timeout_ns < BLIND_NAP_NS ? (long)timeout_ns : BLIND_NAP_NS};
    nanosleep(&limit, NULL);
    return 0;
}

int nic_failure(const struct nic_queue *queue)
{
    return atomic_load_explicit(&queue->nic->failure, memory_order_relaxed);
}

bool nic_goes_beside(const struct nic *nic, const struct nic_queue_address *theirs)
{
    return nic->beside && theirs->bytes[0] == nic->beside->kind;
}

uint16_t nic_queue_ports(const struct nic_queue_address *address)
{
    return address->bytes[0] == NIC_ADDRESS_UDP ? (uint16_t)((address->length - 1) / 2) : 1;
}

const char *nic_queue_address_text(const struct nic_queue_address *address, char out[NIC_QUEUE_TEXT])
{
    const uint8_t *at = address->bytes;

    if (at[0] == NIC_ADDRESS_UDP && address->length >= 3)
        snprintf(out, NIC_QUEUE_TEXT, "UDP port %u", (unsigned)at[1] << 8 | at[2]);
    else if (at[0] == NIC_ADDRESS_TCP && address->length >= 3)
        snprintf(out, NIC_QUEUE_TEXT, "TCP port %u", (unsigned)at[1] << 8 | at[2]);
    else if (at[0] == NIC_ADDRESS_VERBS && address->length >= 12)
        snprintf(out, NIC_QUEUE_TEXT, "queue pair %u",
                 (unsigned)(at[8] | at[9] << 8 | at[10] << 16 | (uint32_t)at[11] << 24));
    else
        snprintf(out, NIC_QUEUE_TEXT, "a queue of kind %u", at[0]);
    return out;
}

unsigned nic_placers(const struct nic *nic)
{
    struct nic_end ends[NIC_ENDS_MAX];
    unsigned count = nic->memory ? nic_ends(nic, ends) : 0;
    return nic->memory && count == 0 ? 1 : count;
}

unsigned nic_ends(const struct nic *nic, struct nic_end out[NIC_ENDS_MAX])
{
    return nic->ends ? nic->ends->list(nic, out) : 0;
}
