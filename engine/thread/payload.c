/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/payload.h"

#include "core/wire.h"
#include "gpu/stage.h"
#include "thread/state.h"
#include "thread/watched.h"

#include <string.h>

const void *payload_at(const struct core_msg *msg, uint64_t offset)
{
    const struct uccl_request *request = request_of(msg);
    return request->staged.memory ? stage_at(request->thread->stage, request, offset) : request->buffer + offset;
}

uint64_t payload_local(const struct core_msg *msg, uint64_t offset, uint32_t *key)
{
    const struct uccl_request *request = request_of(msg);
    *key = request->nic_mr->local_key;
    return (uintptr_t)request->buffer + offset;
}

void payload_gather(void *to, const struct core_msg *msg, uint64_t offset, size_t length)
{
    memcpy(to, payload_at(msg, offset), length);
}

void payload_write(const struct core_msg *msg, uint64_t offset, const void *from, size_t length)
{
    struct uccl_request *request = request_of(msg);
    if (request->staged.memory)
        stage_write(request->thread->stage, request, offset, from, length);
    else if (msg->watched)
        watched_copy(request->buffer + offset, from, length);
    else if (request->buffer + offset != from) /* else the NIC has received it there */
        memcpy(request->buffer + offset, from, length);
}

void *payload_target(void *owner, const uint8_t *header, size_t length, size_t stride, unsigned *count)
{
    struct engine_thread *thread = owner;
    struct core_msg *msg;
    uint64_t offset;
    *count = core_copy_target(thread->core, header, length, stride, &msg, &offset);
    if (*count == 0)
        return NULL;
    struct uccl_request *request = request_of(msg);
    return request->staged.memory
               ? stage_target(thread->stage, request, offset, wire_bulk_payload(length, stride, *count))
               : request->buffer + offset;
}
