/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a NIC reaches memory of a GPU by itself (GPUDirect RDMA), and its registration there. Of several NICs each
 * finds out for itself: one beside the GPU may reach it and one at another processor not.
 *
 * A range has one registration, and peers may write to whatever a grant's key reaches. So it covers just that range
 * and not the allocation, whose rest an allocator may have given to others. All registrations of the same range share
 * it. The last of them ends it: the region is kept for the next one, but pages that a NIC holds cannot be freed. How
 * the allocation was made decides which way works, so each range finds out anew.
 *
 * Thread: any; under the engine's lock.
 */
#ifndef UCCL_DIRECT_H
#define UCCL_DIRECT_H

#include "base/topology.h"
#include "mem/region.h"
#include "nic/nic.h"

enum { DIRECT_WHY_TEXT = 256 };

/* Of an engine. */
struct direct {
    const struct params *params;
    struct nic *nic;
    struct topology_cache *machine;
    bool told_direct, told_staged; /* the log says once that some device memory is so */
};

/* A range of device memory, while it is registered. */
struct direct_range {
    struct direct_range *next; /* of the same region */
    uintptr_t address;
    size_t length;
    uint32_t users;                     /* registrations of just this range */
    struct nic_mr nic[NIC_PLACERS_MAX]; /* handle NULL: it is staged for this one */
    char why[DIRECT_WHY_TEXT]; /* "direct, as a dma-buf", or "staged: " and why; for each NIC, if they differ */
};

/* Whether NIC `index` may reach memory of the GPU at `pci` by itself; else why not. */
bool direct_allowed(struct direct *direct, unsigned index, const char *pci, char why[DIRECT_WHY_TEXT]);

/* A DMA-BUF of the application's, in which memory to register begins at `offset_bytes`. */
struct direct_dmabuf {
    int fd;
    uint64_t offset_bytes;
};

/*
 * A registration of [address, address + length) in a region of device memory begins. `dmabuf` contains that memory;
 * NULL: we export one. UCCL_ENOMEM.
 */
int direct_get(struct direct *direct, struct mem_region *region, const void *address, size_t length,
               const struct direct_dmabuf *dmabuf, struct direct_range **out);
/* It ends. */
void direct_put(struct direct *direct, struct mem_region *region, struct direct_range *range);

#endif
