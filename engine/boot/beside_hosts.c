/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/beside_hosts.h"

#include "core/units.h"
#include "nic/pair.h"

#include <string.h>

static const uint64_t KEPT_NS = 300 * NS_PER_S;

/* Its index; `count`: it is not there. */
static unsigned find(const struct beside_hosts *hosts, const union nic_address *address)
{
    unsigned i = 0;
    while (i < hosts->count && !nic_same_host(&hosts->hosts[i].address, address))
        i++;
    return i;
}

static void take_out(struct beside_hosts *hosts, unsigned index)
{
    hosts->count--;
    memmove(&hosts->hosts[index], &hosts->hosts[index + 1], (hosts->count - index) * sizeof hosts->hosts[0]);
}

bool beside_hosts_have(const struct beside_hosts *hosts, const union nic_address *address, uint64_t now_ns)
{
    unsigned i = find(hosts, address);
    return i < hosts->count && now_ns < hosts->hosts[i].until_ns;
}

void beside_hosts_add(struct beside_hosts *hosts, const union nic_address *address, uint64_t now_ns)
{
    beside_hosts_forget(hosts, address);
    if (hosts->count == BESIDE_HOSTS_MAX)
        take_out(hosts, 0);
    hosts->hosts[hosts->count++] = (struct beside_host){*address, now_ns + KEPT_NS};
}

void beside_hosts_forget(struct beside_hosts *hosts, const union nic_address *address)
{
    unsigned i = find(hosts, address);
    if (i < hosts->count)
        take_out(hosts, i);
}
