/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of listen handles: which addresses are in them, in which order, and which handles are refused. */
#include "api_pair.h"
#include "logged.h"
#include "nic/netdev.h"

#include "../../api/handle.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>

static union nic_address parse(const char *text)
{
    union nic_address address;
    memset(&address, 0, sizeof address);
    if (inet_pton(AF_INET, text, &address.v4.sin_addr) == 1) {
        address.v4.sin_family = AF_INET;
    } else {
        cr_assert_eq(inet_pton(AF_INET6, text, &address.v6.sin6_addr), 1);
        address.v6.sin6_family = AF_INET6;
    }
    return address;
}

/* Addresses by letters: "4" is the next of 192.0.2.1 and so on, "6" of 2001:db8::1 and so on. */
static unsigned make(const char *families, union nic_address *out)
{
    unsigned count = 0, next[2] = {1, 1};
    for (; families[count]; count++) {
        char text[32];
        unsigned v6 = families[count] == '6';
        snprintf(text, sizeof text, v6 ? "2001:db8::%x" : "192.0.2.%u", next[v6]++);
        out[count] = parse(text);
    }
    return count;
}

static void read_back(const struct uccl_handle *handle, char *out)
{
    struct handle_target target;
    cr_assert(handle_get(handle, &target), "%s", logged.text);
    unsigned next[2] = {1, 1};
    for (unsigned i = 0; i < target.count; i++) {
        char text[32], host[NETDEV_ADDRESS_TEXT];
        unsigned v6 = target.addresses[i].any.sa_family == AF_INET6;
        snprintf(text, sizeof text, v6 ? "[2001:db8::%x]:513" : "192.0.2.%u:513", next[v6]++);
        cr_assert_str_eq(netdev_address_text(&target.addresses[i], host), text,
                         "the first ones are left, in their order");
        *out++ = v6 ? '6' : '4';
    }
    *out = '\0';
}

/* The layout of docs/bootstrap.md, byte by byte. */
Test(handle, layout)
{
    static const uint8_t want[] = {2, 2,    2,    1,    8,    7, 6, 5, 4, 3, 2, 1, 4, 192, 0, 2, 1,
                                   6, 0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0,   0, 0, 1};
    static const uint8_t zeros[112];
    union nic_address addresses[2];
    struct uccl_handle handle;
    memset(&handle, 0xee, sizeof handle);
    handle_put(&handle, UINT64_C(0x0102030405060708), htons(513), addresses, make("46", addresses));
    cr_assert_arr_eq(handle.state, zeros, sizeof handle.state);
    cr_assert_arr_eq(handle.listener, want, sizeof want);
    cr_assert_arr_eq(handle.listener + sizeof want, zeros, sizeof handle.listener - sizeof want);
    struct handle_target target;
    cr_assert(handle_get(&handle, &target));
    cr_assert_eq(target.listener, UINT64_C(0x0102030405060708));
    cr_assert_eq(target.count, 2);
}

Test(handle, which_addresses_are_in_it)
{
    static const struct {
        const char *have, *want;
    } rows[] = {
        {"4", "4"},
        {"6", "6"},
        {"644", "644"},
        {"44444444", "44444444"},
        {"444444444444", "44444444"},
        {"666666666", "66666"},   /* no more fit */
        {"66666444", "66666444"}, /* just fills it */
        {"44466666", "44466666"},
        {"4444444466", "44444466"}, /* neither family takes the other's half */
        {"6666666644", "6666644"},
        {"44444444666666666", "44446666"},
        {"66666666444444444", "66664444"},
        {"4646464646464646", "46464646"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        union nic_address addresses[32];
        struct uccl_handle handle;
        char got[32];
        handle_put(&handle, 1, htons(513), addresses, make(rows[i].have, addresses));
        read_back(&handle, got);
        cr_expect_str_eq(got, rows[i].want, "%s: %s and not %s", rows[i].have, got, rows[i].want);
    }
}

/* The interface's number of a link-local address stays. */
Test(handle, scope)
{
    union nic_address addresses[8];
    struct uccl_handle handle;
    struct handle_target target;
    for (unsigned i = 0; i < 8; i++) {
        addresses[i] = parse("fe80::1");
        addresses[i].v6.sin6_scope_id = 1000000 + i;
    }
    handle_put(&handle, 0, htons(513), addresses, 8);
    cr_assert(handle_get(&handle, &target));
    cr_assert_eq(target.count, 4);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_eq(target.addresses[i].v6.sin6_scope_id, 1000000 + i);
}

static void refused(const struct uccl_handle *handle, const char *word)
{
    struct handle_target target;
    memset(&logged, 0, sizeof logged);
    cr_assert_not(handle_get(handle, &target), "%s", word);
    cr_assert_eq(logged.lines, 1, "%s", word);
    cr_assert_eq(logged.level, UCCL_LOG_ERROR, "%s", word);
    cr_assert(strstr(logged.text, word), "%s: %s", word, logged.text);
}

Test(handle, from_elsewhere)
{
    union nic_address addresses[8];
    struct uccl_handle good, handle;
    uccl_set_log(take_log, NULL);
    handle_put(&good, 1, htons(513), addresses, make("64", addresses));
    for (unsigned version = 0; version < 256; version++) {
        char word[32];
        snprintf(word, sizeof word, "version %u;", version);
        handle = good;
        handle.listener[0] = (uint8_t)version;
        if (version != 2)
            refused(&handle, word);
    }
    handle = good;
    memset(handle.listener + 2, 0, 2);
    refused(&handle, "no port");
    static const unsigned counts[] = {0, 9, 255};
    for (unsigned i = 0; i < 3; i++) {
        handle = good;
        handle.listener[1] = (uint8_t)counts[i];
        refused(&handle, "number of its addresses");
    }
    for (unsigned kind = 0; kind < 256; kind++) {
        handle = good;
        handle.listener[12] = (uint8_t)kind;
        if (kind < 4 || kind == 5 || kind > 7)
            refused(&handle, "no known kind");
    }
    handle = good;
    handle.listener[1] = 3; /* the third would be of kind 0 */
    refused(&handle, "no known kind");
    handle = good;
    handle.listener[1] = 1;
    refused(&handle, "something follows");
    for (unsigned at = 12 + 17 + 5; at < 112; at++) {
        handle = good;
        handle.listener[at] = 1;
        refused(&handle, "something follows");
    }
    /* cut short: the last kind wants more bytes than are left */
    handle_put(&good, 1, htons(513), addresses, make("66666444", addresses));
    handle = good;
    handle.listener[112 - 5] = 6;
    refused(&handle, "cut short");
}

/* ---- from a host and a port ------------------------------------------------------------------ */

static struct handle_target resolved(const char *host)
{
    struct uccl_handle handle;
    struct handle_target target;
    IS(uccl_handle_from_address(host, 513, &handle), 0);
    cr_assert(handle_get(&handle, &target));
    cr_assert_eq(target.listener, 0, "of nobody in particular");
    return target;
}

Test(handle, literal_addresses)
{
    static const struct {
        const char *host, *text;
    } rows[] = {
        {"192.0.2.1", "192.0.2.1:513"}, {"2001:db8::1", "[2001:db8::1]:513"}, {"[2001:db8::1]", "[2001:db8::1]:513"},
        {"[::1]", "[::1]:513"},         {"fe80::1%lo", "[fe80::1%lo]:513"},   {"[fe80::1%lo]", "[fe80::1%lo]:513"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[NETDEV_ADDRESS_TEXT];
        struct handle_target target = resolved(rows[i].host);
        cr_assert_eq(target.count, 1);
        cr_expect_str_eq(netdev_address_text(&target.addresses[0], text), rows[i].text);
    }
}

Test(handle, no_hosts)
{
    char longest[5000], edge[NI_MAXHOST + 1], in_brackets[NI_MAXHOST + 3];
    memset(edge, 'a', sizeof edge - 1);
    edge[sizeof edge - 1] = '\0';
    snprintf(in_brackets, sizeof in_brackets, "[%s]", edge);
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    const char *const hosts[] = {"",        "[]",           "[",     "]",  "[::1",     "::1]",
                                 "[[::1]]", "no such host", longest, edge, in_brackets};
    struct uccl_handle handle;
    uccl_set_log(take_log, NULL);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        memset(&logged, 0, sizeof logged);
        IS(uccl_handle_from_address(hosts[i], 513, &handle), UCCL_EADDR);
        cr_assert_eq(logged.lines, 1, "%s: %s", hosts[i], logged.text);
    }
}

/* ---- of a listener --------------------------------------------------------------------------- */

/* Two listeners of one port, one after the other, are not the same; a handle of all devices names loopback only as a
 * last resort. */
Test(handle, of_a_listener, .timeout = TIMEOUT_S)
{
    struct uccl_handle handle;
    struct handle_target first, second, one;
    uccl_listener *listener;
    uccl_engine *engine = open_engine("no", NULL);
    IS(uccl_listen(engine, -1, 0, &handle, &listener), 0);
    uint16_t port = uccl_listener_port(listener);
    cr_assert(handle_get(&handle, &first));
    cr_assert(first.listener != 0 && first.count >= 1);
    char text[NETDEV_ADDRESS_TEXT], want[96];
    snprintf(want, sizeof want, "127.0.0.1:%u", port);
    cr_assert_str_eq(netdev_address_text(&first.addresses[0], text), want, "UCCL_SOCKET_IFNAME=lo");
    IS(uccl_listener_close(listener), 0);
    IS(uccl_listen(engine, -1, port, &handle, &listener), 0);
    cr_assert(handle_get(&handle, &second));
    cr_assert(second.listener != 0 && second.listener != first.listener);
    cr_assert_eq(second.count, first.count);
    IS(uccl_listener_close(listener), 0);
    IS(uccl_listen(engine, 0, port, &handle, &listener), 0);
    cr_assert(handle_get(&handle, &one));
    cr_assert_eq(one.count, 1, "its socket has the address of one device");
    IS(uccl_close(engine), 0);
}

/* The handle of a listener that has gone, and another one listens on its port. */
BOTH(handle, another_listener_on_the_port)
{
    struct uccl_handle old, handle;
    uccl_listener *listener;
    uccl_conn *conn[2] = {0};
    uccl_engine *client = open_engine(lend, NULL), *server = open_engine(lend, NULL);
    uccl_set_log(take_log, NULL);
    IS(uccl_listen(server, 0, 0, &old, &listener), 0);
    uint16_t port = uccl_listener_port(listener);
    IS(uccl_listener_close(listener), 0);
    IS(uccl_listen(server, 0, port, &handle, &listener), 0);
    int result;
    uint64_t end_ms = now_ms() + SOON_MS;
    while ((result = uccl_connect(client, &old, 0, &conn[0])) == UCCL_EAGAIN) {
        IS(uccl_accept(listener, 0, &conn[1]), UCCL_EAGAIN);
        cr_assert(now_ms() < end_ms);
    }
    IS(result, UCCL_EREFUSED);
    cr_assert(strstr(logged.text, "another listener"), "%s", logged.text);
    connect_now(client, &handle, listener, conn);
    IS(uccl_close(client), 0);
    IS(uccl_close(server), 0);
}
