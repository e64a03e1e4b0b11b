/* SPDX-License-Identifier: Apache-2.0 */
/* What backends share; most of it is for the tables of those that place nothing. */
#include "nic/nic.h"

#include <stdio.h>
#include <unistd.h>

void nic_wake_eventfd(int fd)
{
    uint64_t one = 1;
    ssize_t written = write(fd, &one, sizeof one);
    (void)written; /* fails only when 2^64 - 2 wakes are pending */
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
    else if (at[0] == NIC_ADDRESS_VERBS && address->length >= 12)
        snprintf(out, NIC_QUEUE_TEXT, "queue pair %u",
                 (unsigned)(at[8] | at[9] << 8 | at[10] << 16 | (uint32_t)at[11] << 24));
    else
        snprintf(out, NIC_QUEUE_TEXT, "a queue of kind %u", at[0]);
    return out;
}

int nic_no_failure(const struct nic_queue *queue)
{
    (void)queue;
    return 0;
}

int nic_reach_all(struct nic *nic, const struct nic_queue_address *address)
{
    (void)nic, (void)address;
    return UCCL_OK;
}

int nic_no_reg_mr(struct nic *nic, void *address, size_t length, struct nic_mr *out)
{
    (void)nic, (void)address, (void)length, (void)out;
    return UCCL_ENOTSUP;
}

void nic_no_dereg_mr(struct nic *nic, struct nic_mr *mr)
{
    (void)nic, (void)mr;
}

int nic_no_reg_device(struct nic *nic, const struct nic_device_memory *memory, struct nic_mr *out,
                      char why[NIC_WHY_TEXT])
{
    (void)nic, (void)memory, (void)out;
    snprintf(why, NIC_WHY_TEXT, "the NIC places no payload");
    return UCCL_ENOTSUP;
}

bool nic_no_read(struct nic_queue *queue, const struct nic_mr *mr, void *cookie)
{
    (void)queue, (void)mr, (void)cookie;
    return false;
}

unsigned nic_no_poll_reads(struct nic_queue *queue, struct nic_read *out, unsigned max)
{
    (void)queue, (void)out, (void)max;
    return 0;
}

bool nic_no_places(const struct nic_queue *queue, const struct nic_queue_address *theirs)
{
    (void)queue, (void)theirs;
    return false;
}

int nic_no_path_open(struct nic_queue *queue, const struct nic_qp *path, uint32_t *number, uint32_t *psn)
{
    (void)queue, (void)path, (void)number, (void)psn;
    return UCCL_ENOTSUP;
}

int nic_no_path_connect(struct nic_queue *queue, const struct nic_qp *path, uint32_t number, uint32_t psn)
{
    (void)queue, (void)path, (void)number, (void)psn;
    return UCCL_ENOTSUP;
}

void nic_no_path(struct nic_queue *queue, const struct nic_qp *path)
{
    (void)queue, (void)path;
}

bool nic_no_path_event(struct nic_queue *queue, struct nic_qp_event *out)
{
    (void)queue, (void)out;
    return false;
}

unsigned nic_no_poll_tx(struct nic_queue *queue, struct nic_done *done, unsigned max)
{
    (void)queue, (void)done, (void)max;
    return 0;
}
