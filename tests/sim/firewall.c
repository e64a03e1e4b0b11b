/* SPDX-License-Identifier: Apache-2.0 */
#include "firewall.h"

#include <stddef.h>
#include <stdlib.h>

enum { PAIRS_MAX = 4096 };

/* Ports that something may come by: from port `path` of `from` to port 0 of `to`. */
static struct pair_of_ports {
    uint32_t from, to;
    uint16_t path;
    uint64_t until_ns;
} known[PAIRS_MAX];
static unsigned known_count;

void firewalls_forget(void)
{
    known_count = 0;
}

static struct pair_of_ports *find(uint32_t from, uint32_t to, uint16_t path)
{
    for (unsigned i = 0; i < known_count; i++) {
        if (known[i].from == from && known[i].to == to && known[i].path == path)
            return &known[i];
    }
    return NULL;
}

static void know(uint32_t from, uint32_t to, uint16_t path, uint64_t now_ns)
{
    struct pair_of_ports *pair = find(from, to, path);
    if (!pair && known_count == PAIRS_MAX)
        abort();
    if (!pair)
        pair = &known[known_count++];
    *pair = (struct pair_of_ports){from, to, path, now_ns + FIREWALL_NS};
}

bool firewall_passes(uint32_t from, uint32_t to, uint16_t path, bool opens, bool guarded, uint64_t now_ns)
{
    if (opens || path == 0)
        know(to, from, path, now_ns);
    if (!guarded)
        return true;
    struct pair_of_ports *pair = find(from, to, path);
    if (!pair || pair->until_ns < now_ns)
        return false;
    pair->until_ns = now_ns + FIREWALL_NS;
    return true;
}
