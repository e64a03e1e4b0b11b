/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that the NIC reaches by itself (direct.c). All under the engine's lock. */
#ifndef UCCL_DIRECT_H
#define UCCL_DIRECT_H

#include "../api/objects.h"

enum { DIRECT_WHY_TEXT = 256 };

/* Of a range of device memory, while it is registered. */
struct direct {
    struct direct *next;        /* of the same region */
    uintptr_t address;
    size_t length;
    uint32_t users;             /* registrations of just this range */
    struct nic_mr nic;          /* handle NULL: it is staged */
    char why[DIRECT_WHY_TEXT];  /* "direct, as a dma-buf", or "staged: " and why */
};

/* Whether the NIC may reach memory of the GPU at `pci` by itself; else why not. */
bool direct_allowed(struct uccl_engine *engine, const char *pci, char why[DIRECT_WHY_TEXT]);

/* A DMA-BUF of the application's, in which memory to register begins at `offset_bytes`. */
struct direct_dmabuf {
    int fd;
    uint64_t offset_bytes;
};

/*
 * A registration of device memory begins: `mr->nic` is what the NIC knows it by, if it does. `dmabuf`: what it lies in,
 * or NULL: it is for us to export one. UCCL_ENOMEM.
 */
int direct_get(struct uccl_engine *engine, struct uccl_mr *mr, const struct direct_dmabuf *dmabuf);
/* It ends; of host memory there is nothing to do. */
void direct_put(struct uccl_engine *engine, struct uccl_mr *mr);

#endif
