/* SPDX-License-Identifier: Apache-2.0 */
/* What /sys tells of a device. A container's may tell nothing. */
#include "plugin.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sys_number(const char *folder, const char *name, const char *file)
{
    char path[512], text[64];
    uint64_t number = 0;
    snprintf(path, sizeof path, "%s/%s/%s", folder, name, file);
    FILE *stream = fopen(path, "re");
    bool got = stream && fgets(text, sizeof text, stream);
    if (stream)
        fclose(stream);
    for (const char *c = text; got && *c && *c != '\n'; c++) {
        if (*c == ':')
            continue;
        const char digit[2] = {*c, '\0'};
        number = number << 4 | strtoul(digit, NULL, 16);
    }
    return number;
}

void sys_pci_path(const char *folder, const char *name, char out[static 256])
{
    char path[192], real[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/device", folder, name);
    if (realpath(path, real) && strlen(real) < 256)
        strcpy(out, real);
}
