/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A notification on its way: the length of its name, the name, the text. Zeros at the ends stay at the sender. Bytes
 * that have come may be a stranger's: is_packed() comes before unpack().
 */
#ifndef UCCL_P2P_PACKED_H
#define UCCL_P2P_PACKED_H

#include "uccl_engine.h"

#include <string.h>
#include <string>

enum { PACKED_MAX = 2 * MSG_SIZE };

static inline size_t pack(const notify_msg_t &message, uint8_t out[PACKED_MAX])
{
    size_t name = strnlen(message.name, MSG_SIZE - 1), text = MSG_SIZE;
    while (text > 0 && message.msg[text - 1] == '\0')
        text--;
    out[0] = static_cast<uint8_t>(name);
    memcpy(out + 1, message.name, name);
    memcpy(out + 1 + name, message.msg, text);
    return 1 + name + text;
}

static inline bool is_packed(const std::string &bytes)
{
    size_t name = bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]);
    return bytes.size() > name && bytes.size() - 1 - name <= MSG_SIZE;
}

static inline void unpack(const std::string &bytes, notify_msg_t &out)
{
    size_t name = static_cast<uint8_t>(bytes[0]);
    out = {};
    memcpy(out.name, bytes.data() + 1, name);
    memcpy(out.msg, bytes.data() + 1 + name, bytes.size() - 1 - name);
}

#endif
