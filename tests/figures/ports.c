/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Verbs ports that uccl_info, linked with this, has to show: one per line of the file $PORTS, the device's name
 * first, then numbers in the order of struct uccl_verbs_port.
 */
#include "uccl/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int uccl_verbs_ports(const uccl_config *config, uccl_verbs_port_fn tell, void *user, char *status, size_t size)
{
    static const struct uccl_verbs_gid gids[] = {{3, "RoCE v1", "fe80::1"}, {5, "RoCE v2", "192.0.2.7"}};
    const char *path = getenv("PORTS");
    FILE *file = path ? fopen(path, "re") : NULL;
    struct uccl_verbs_port port = {
        .link = "RoCE", .mode = "UC", .why_mode = "it can", .why_gid = "the best", .gids = gids, .gid_count = 2};
    int count = 0;
    (void)config;
    snprintf(status, size, "played");
    while (file && fscanf(file,
                          "%63s %" SCNu32 " %d %" SCNu32 " %" SCNu32 " %" SCNu64 " %d %d %d %d %" SCNu32 " %" SCNu32
                          " %" SCNu32 " %" SCNu32 " %" SCNu32 " %" SCNu32 " %d %d",
                          port.device, &port.port, &port.active, &port.mtu, &port.lid, &port.speed_mbps,
                          &port.numa_node, &port.ud, &port.uc, &port.rc, &port.max_message, &port.max_queue_pairs,
                          &port.max_work_requests, &port.max_completions, &port.max_shared_receives, &port.clock_khz,
                          &port.usable, &port.gid_index) == 18) {
        tell(user, &port);
        count++;
    }
    if (file)
        fclose(file);
    return count;
}
