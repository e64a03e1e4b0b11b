/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many engine threads a rank gets. The engine's own rule, a quarter of the cores and at most 4, is for a process
 * whose neighbours nobody knows. Here they are known: each GPU of the host has a rank, which takes the NICs near it.
 * With 8 threads large operations are 1.3 to 1.8 times as fast as with 4, if the cores are there.
 */
#include "plugin.h"

#include <dirent.h>

enum {
    OWN_MAX = 4,     /* threads that the engine takes by itself */
    THREADS_MAX = 8, /* more gain little (docs/performance.md) */
    CORES_SHARE = 2, /* all ranks' engine threads take one of so many cores */
    VENDOR_NVIDIA = 0x10de,
    VENDOR_AMD = 0x1002,
    CLASS_DISPLAY = 0x03, /* of PCI, with 3D controllers */
    CLASS_ACCELERATOR = 0x12,
};

unsigned threads_gpus(const char *directory)
{
    DIR *devices = opendir(directory);
    unsigned count = 0;
    for (struct dirent *entry; devices && (entry = readdir(devices));) {
        uint64_t vendor = sys_number(directory, entry->d_name, "vendor");
        uint64_t class = sys_number(directory, entry->d_name, "class") >> 16;
        count +=
            (vendor == VENDOR_NVIDIA || vendor == VENDOR_AMD) && (class == CLASS_DISPLAY || class == CLASS_ACCELERATOR);
    }
    if (devices)
        closedir(devices);
    return count;
}

unsigned threads_wanted(unsigned cores, unsigned gpus, unsigned devices)
{
    unsigned engines = gpus > devices ? gpus : devices; /* of the host: a rank has one, or several if NICs are more */
    if (gpus == 0)
        return 0;
    unsigned threads = cores / (CORES_SHARE * engines);
    return threads <= OWN_MAX ? 0 : threads < THREADS_MAX ? threads : THREADS_MAX;
}
