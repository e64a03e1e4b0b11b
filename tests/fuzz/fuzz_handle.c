/* SPDX-License-Identifier: Apache-2.0 */
/* Listen handles from anywhere: what is read of one is in its bounds, and written again it is the same. */
#include "../../api/handle.h"

#include "base/log.h"
#include "require.h"

#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(UCCL_LOG_NONE);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct uccl_handle handle, again;
    struct handle_target target, same;
    memset(&handle, 0, sizeof handle);
    memset(&target, 0, sizeof target);
    memset(&same, 0, sizeof same);
    memcpy(handle.listener, data, size < sizeof handle.listener ? size : sizeof handle.listener);
    if (!handle_get(&handle, &target))
        return 0;
    require(target.count >= 1 && target.count <= HANDLE_ADDRESSES_MAX);
    for (unsigned i = 0; i < target.count; i++)
        require(*nic_address_port(&target.addresses[i]) != 0);
    handle_put(&again, target.listener, *nic_address_port(&target.addresses[0]), target.addresses, target.count);
    require(handle_get(&again, &same));
    require(memcmp(&target, &same, sizeof same) == 0);
    return 0;
}
