/* SPDX-License-Identifier: Apache-2.0 */
/* Which hosts are met over connections at once, since no datagram came back from them. */
#include "boot/beside_hosts.h"
#include "core/units.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>

static union nic_address host(uint32_t number, uint16_t port)
{
    union nic_address address = {.any.sa_family = AF_INET};
    address.v4.sin_addr.s_addr = htonl(number);
    address.v4.sin_port = htons(port);
    return address;
}

Test(beside_hosts, a_host_is_known_by_its_address_for_some_minutes)
{
    static struct beside_hosts hosts;
    union nic_address one = host(1, 5), other_port = host(1, 6), two = host(2, 5), v6 = {.any.sa_family = AF_INET6};
    uint64_t now_ns = 7 * NS_PER_S;
    cr_assert_not(beside_hosts_have(&hosts, &one, now_ns));
    beside_hosts_add(&hosts, &one, now_ns);
    cr_assert(beside_hosts_have(&hosts, &other_port, now_ns));
    cr_assert_not(beside_hosts_have(&hosts, &two, now_ns));
    cr_assert_not(beside_hosts_have(&hosts, &v6, now_ns));
    cr_assert(beside_hosts_have(&hosts, &one, now_ns + 60 * NS_PER_S));
    cr_assert_not(beside_hosts_have(&hosts, &one, now_ns + 600 * NS_PER_S));
    beside_hosts_add(&hosts, &one, now_ns + 600 * NS_PER_S);
    cr_assert(beside_hosts_have(&hosts, &one, now_ns + 600 * NS_PER_S));
    beside_hosts_forget(&hosts, &two);
    beside_hosts_forget(&hosts, &other_port);
    cr_assert_not(beside_hosts_have(&hosts, &one, now_ns + 600 * NS_PER_S));
    cr_assert_eq(hosts.count, 0);
}

Test(beside_hosts, the_oldest_makes_room)
{
    static struct beside_hosts hosts;
    for (uint32_t i = 0; i < 3 * BESIDE_HOSTS_MAX; i++) {
        union nic_address address = host(i, 0), first = host(0, 0);
        beside_hosts_add(&hosts, &address, i);
        beside_hosts_add(&hosts, &address, i); /* again: takes no room */
        beside_hosts_add(&hosts, &first, i);   /* needed again and again: stays */
    }
    for (uint32_t i = 0; i < 3 * BESIDE_HOSTS_MAX; i++) {
        union nic_address address = host(i, 0);
        bool newest = i == 0 || i > 2 * BESIDE_HOSTS_MAX;
        cr_assert_eq(beside_hosts_have(&hosts, &address, 1000), newest, "%u", i);
    }
}
