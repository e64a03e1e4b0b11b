/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving mapped memory back. Mappings side by side are one to the kernel. One that is taken out of the middle makes two
 * of it, and munmap() fails with ENOMEM where the process has vm.max_map_count of them. Then the pages go back all the
 * same, and only the addresses are lost.
 */
#ifndef UCCL_UNMAP_H
#define UCCL_UNMAP_H

#include <stddef.h>
#include <sys/mman.h>

static inline void unmap(void *memory, size_t bytes)
{
    if (munmap(memory, bytes) != 0)
        madvise(memory, bytes, MADV_DONTNEED);
}

#endif
