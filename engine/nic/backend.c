/* SPDX-License-Identifier: Apache-2.0 */
#include "nic/backend.h"

#include "base/log.h"

int backend_open(const struct params *params, struct nic **out)
{
    if (params->backend == BACKEND_TCP)
        return tcp_device_ops.open(params, out);
#ifdef HAVE_VERBS
    if (params->backend != BACKEND_UDP) {
        int error = verbs_device_ops.open(params, out);
        /* short of descriptors or memory, UDP would hide that there is a device */
        if (!error || error == UCCL_ENOMEM || params->backend == BACKEND_VERBS)
            return error;
    }
#else
    if (params->backend == BACKEND_VERBS) {
        LOG_ERR("UCCL_BACKEND=verbs: libuccl-engine was built without libibverbs (libibverbs-dev)");
        return UCCL_ENOTSUP;
    }
    if (params->backend == BACKEND_AUTO && params->ib_hca[0])
        LOG_WARNING("UCCL_IB_HCA=\"%s\" has no effect: libuccl-engine was built without libibverbs (libibverbs-dev)",
                    params->ib_hca);
#endif
    int error = udp_device_ops.open(params, out);
    if (!error && params->backend == BACKEND_AUTO)
        (*out)->beside = &tcp_device_ops;
    return error;
}
