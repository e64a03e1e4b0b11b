/* SPDX-License-Identifier: Apache-2.0 */
/* uccl_interfaces(): network interfaces as the engine sees them, without an engine. Any thread. */
#include "base/config.h"
#include "base/process.h"
#include "export.h"
#include "nic/netdev.h"
#include "uccl/engine.h"

#include <stdio.h>
#include <stdlib.h>

static void describe_interface(const struct netdev *dev, struct uccl_interface *out)
{
    char text[NETDEV_ADDRESS_TEXT];

    *out = (struct uccl_interface){.speed_mbps = dev->speed_mbps,
                                   .mtu = dev->mtu,
                                   .numa_node = dev->numa_node,
                                   .rank = dev->class,
                                   .is_loopback = dev->class == NETDEV_LOOPBACK};
    snprintf(out->name, sizeof out->name, "%s", dev->name);
    snprintf(out->address, sizeof out->address, "%.63s", netdev_address_text(&dev->address, text));
}

UCCL_API int uccl_interfaces(const uccl_config *config, uccl_interface_fn tell, void *user)
{
    struct params params;
    struct netdev *devs = NULL;

    if (!tell)
        return UCCL_EINVAL;
    CANCEL_LATER;
    int result = config_resolve(config, &params);
    if (!result)
        result = netdev_list(params.socket_ifname, &devs);
    for (int i = 0; i < result; i++) {
        struct uccl_interface out;
        describe_interface(&devs[i], &out);
        tell(user, &out);
    }
    free(devs);
    return result;
}
