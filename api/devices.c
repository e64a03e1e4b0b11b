/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of an engine. Any thread. */
#include "objects.h"

UCCL_API int uccl_device_count(const uccl_engine *engine)
{
    if (!engine)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    return engine->nic->ops->device_count(engine->nic);
}

UCCL_API int uccl_device_get(const uccl_engine *engine, int device, struct uccl_device *out)
{
    union nic_address address;
    if (!engine || !out)
        return UCCL_EINVAL;
    if (inherited(engine))
        return UCCL_EFORKED;
    CANCEL_LATER;
    int error = engine->nic->ops->device(engine->nic, device, out, &address);
    if (!error)
        out->engines = engine->thread_count;
    return error;
}
