/* SPDX-License-Identifier: Apache-2.0 */
#include "handle.h"

#include "base/fault.h"
#include "base/le.h"
#include "base/log.h"
#include "base/process.h"
#include "export.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

/*
 * Layout of uccl_handle.listener: version, number of addresses, port (big-endian), the listener's nonce
 * (little-endian), then the addresses, each a kind and its bytes; zeros to the end. Five IPv6 addresses and three IPv4
 * ones fill it. A listener writes no interface number: it means nothing on another machine.
 */
enum {
    HANDLE_VERSION = 2,
    HANDLE_PORT = 2,
    HANDLE_NONCE = 4,
    HANDLE_ADDRESSES = 12,
    HANDLE_BYTES = sizeof((struct uccl_handle *)0)->listener,
};

enum kind {
    KIND_IPV4 = 4,
    KIND_IPV6 = 6,
    KIND_IPV6_SCOPED = 7, /* with an interface number: from uccl_handle_from_address("fe80::1%eth0") */
};

_Static_assert(HANDLE_ADDRESSES + 5 * 17 + 3 * 5 == HANDLE_BYTES, "eight addresses fit");

/* ---- addresses ------------------------------------------------------------------------------- */

static bool is_v6(const union nic_address *address)
{
    return address->any.sa_family == AF_INET6;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static enum kind kind_of(const union nic_address *address)
{
    if (!is_v6(address))
        return KIND_IPV4;
    return address->v6.sin6_scope_id ? KIND_IPV6_SCOPED : KIND_IPV6;
}

/* Bytes of an address and its kind; 0: no such kind. */
static size_t bytes_of(unsigned kind)
{
    switch (kind) {
    case KIND_IPV4:
        return 1 + sizeof(struct in_addr);
    case KIND_IPV6:
        return 1 + sizeof(struct in6_addr);
    case KIND_IPV6_SCOPED:
        return 1 + sizeof(struct in6_addr) + sizeof(uint32_t);
    default:
        return 0;
    }
}

static void put_address(uint8_t *at, const union nic_address *address)
{
    at[0] = kind_of(address);
    if (at[0] == KIND_IPV4) {
        memcpy(at + 1, &address->v4.sin_addr, sizeof address->v4.sin_addr);
        return;
    }
    memcpy(at + 1, &address->v6.sin6_addr, sizeof address->v6.sin6_addr);
    if (at[0] == KIND_IPV6_SCOPED)
        memcpy(at + 1 + sizeof address->v6.sin6_addr, &address->v6.sin6_scope_id, sizeof(uint32_t));
}

static void get_address(const uint8_t *at, union nic_address *out)
{
    memset(out, 0, sizeof *out);
    if (at[0] == KIND_IPV4) {
        out->v4.sin_family = AF_INET;
        memcpy(&out->v4.sin_addr, at + 1, sizeof out->v4.sin_addr);
        return;
    }
    out->v6.sin6_family = AF_INET6;
    memcpy(&out->v6.sin6_addr, at + 1, sizeof out->v6.sin6_addr);
    if (at[0] == KIND_IPV6_SCOPED)
        memcpy(&out->v6.sin6_scope_id, at + 1 + sizeof out->v6.sin6_addr, sizeof(uint32_t));
}

void handle_put(struct uccl_handle *handle, uint64_t listener, in_port_t port, const union nic_address *addresses,
                unsigned count)
{
    uint8_t *at = handle->listener;
    size_t end = HANDLE_ADDRESSES;
    unsigned all[2] = {0}, put[2] = {0}; /* IPv4, IPv6 */
    memset(handle, 0, sizeof *handle);
    for (unsigned i = 0; i < count; i++)
        all[is_v6(&addresses[i])]++;
    at[0] = HANDLE_VERSION;
    memcpy(at + HANDLE_PORT, &port, sizeof port);
    le_put(at + HANDLE_NONCE, listener, 8);
    for (unsigned i = 0; i < count; i++) {
        unsigned family = is_v6(&addresses[i]), other = all[!family];
        unsigned left = HANDLE_ADDRESSES_MAX - (other < HANDLE_ADDRESSES_MAX / 2 ? other : HANDLE_ADDRESSES_MAX / 2);
        size_t bytes = bytes_of(kind_of(&addresses[i]));
        if (put[family] == left || put[0] + put[1] == HANDLE_ADDRESSES_MAX || end + bytes > HANDLE_BYTES)
            continue;
        put_address(at + end, &addresses[i]);
        end += bytes;
        put[family]++;
    }
    at[1] = (uint8_t)(put[0] + put[1]);
}

/* NULL, or the fault of a handle of our version. */
static const char *handle_take(const uint8_t *at, struct handle_target *out)
{
    size_t end = HANDLE_ADDRESSES;
    in_port_t port;
    memcpy(&port, at + HANDLE_PORT, sizeof port);
    out->count = at[1];
    out->listener = le_get(at + HANDLE_NONCE, 8);
    if (port == 0)
        return "it has no port";
    if (out->count == 0 || out->count > HANDLE_ADDRESSES_MAX)
        return "the number of its addresses is out of range";
    for (unsigned i = 0; i < out->count; i++) {
        size_t bytes = end < HANDLE_BYTES ? bytes_of(at[end]) : 0;
        if (bytes == 0 || end + bytes > HANDLE_BYTES)
            return "an address of no known kind, or cut short";
        get_address(at + end, &out->addresses[i]);
        *nic_address_port(&out->addresses[i]) = port;
        end += bytes;
    }
    while (end < HANDLE_BYTES) {
        if (at[end++])
            return "something follows its addresses";
    }
    return NULL;
}

bool handle_get(const struct uccl_handle *handle, struct handle_target *out)
{
    if (handle->listener[0] != HANDLE_VERSION) {
        LOG_ERR("a listen handle has version %u; this library reads only version %d", handle->listener[0],
                HANDLE_VERSION);
        return false;
    }
    const char *fault = handle_take(handle->listener, out);
    if (fault)
        LOG_ERR("a listen handle is malformed: %s", fault);
    return !fault;
}

/* ---- names ----------------------------------------------------------------------------------- */

/* Copies the host without the brackets of "[::1]". False: too long. */
static bool take_brackets_off(const char *host, char out[NI_MAXHOST])
{
    size_t length = strlen(host);
    if (length >= 2 && host[0] == '[' && host[length - 1] == ']') {
        host++;
        length -= 2;
    }
    if (length >= NI_MAXHOST)
        return false;
    memcpy(out, host, length);
    out[length] = '\0';
    return true;
}

/* Copies the resolver's addresses in its order (RFC 6724), each once. */
static unsigned collect_addresses(const struct addrinfo *found, union nic_address *out, unsigned max)
{
    unsigned count = 0;
    for (; found && count < max; found = found->ai_next) {
        union nic_address *address = &out[count];
        bool twice = false;
        if ((found->ai_family != AF_INET && found->ai_family != AF_INET6) || found->ai_addrlen > sizeof *address)
            continue;
        memset(address, 0, sizeof *address);
        memcpy(address, found->ai_addr, found->ai_addrlen);
        for (unsigned i = 0; i < count; i++)
            twice = twice || memcmp(&out[i], address, sizeof *address) == 0;
        count += !twice;
    }
    return count;
}

UCCL_API int uccl_handle_from_address(const char *host, uint16_t port, struct uccl_handle *out)
{
    enum { FOUND_MAX = 64 };
    if (!host || !out || port == 0)
        return UCCL_EINVAL;
    CANCEL_LATER;
    char service[8], bare[NI_MAXHOST];
    union nic_address addresses[FOUND_MAX];
    snprintf(service, sizeof service, "%u", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found = NULL;
    errno = 0;
    int failed = take_brackets_off(host, bare) ? getaddrinfo(bare, service, &hints, &found) : EAI_NONAME;
    if (failed) {
        char why[FAULT_TEXT];
        int error = errno; /* of the resolver's last call: without a descriptor it resolves nothing */
        bool ran_out = failed == EAI_MEMORY || (error && fault_error(error) == UCCL_ENOMEM);
        LOG_ERR("cannot resolve '%s': %s", host,
                ran_out ? fault_text(failed == EAI_MEMORY ? ENOMEM : error, why) : gai_strerror(failed));
        return ran_out ? UCCL_ENOMEM : UCCL_EADDR;
    }
    unsigned count = collect_addresses(found, addresses, FOUND_MAX);
    freeaddrinfo(found);
    if (count == 0) {
        LOG_ERR("cannot resolve '%s': it has no IPv4 or IPv6 address", host);
        return UCCL_EADDR;
    }
    handle_put(out, 0, htons(port), addresses, count);
    return UCCL_OK;
}
