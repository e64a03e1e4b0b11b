/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which interfaces are there, and which would the user want? Without a filter the order is: network
 * cards, then bridges and container plumbing, then loopback where it has an address of the host, then
 * interfaces with only a link-local address, loopback, and what has no carrier, so that device 0 is
 * reachable from elsewhere wherever that is possible, and loopback is there when nothing else is.
 *
 * Where the network is routed to the host (BGP on the host), its NICs have link-local addresses alone, and
 * the address by which others reach it is on loopback.
 *
 * Thread: any; no state.
 */
#include "nic/netdev.h"

#include "base/fault.h"
#include "base/log.h"
#include "nic/filter.h"
#include "nic/pair.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

const char *netdev_address_text(const union nic_address *address, char out[NETDEV_ADDRESS_TEXT])
{
    char host[INET6_ADDRSTRLEN] = "?";
    char scope[IF_NAMESIZE + 1] = "";
    unsigned port;
    bool v6 = address->any.sa_family == AF_INET6;

    if (v6 && IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr)) {
        inet_ntop(AF_INET, &address->v6.sin6_addr.s6_addr[12], host, sizeof host);
        port = ntohs(address->v6.sin6_port);
        v6 = false;
    } else if (v6) {
        inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
        port = ntohs(address->v6.sin6_port);
        if (address->v6.sin6_scope_id != 0) {
            scope[0] = '%';
            if (!if_indextoname(address->v6.sin6_scope_id, scope + 1))
                snprintf(scope + 1, sizeof scope - 1, "%u", address->v6.sin6_scope_id);
        }
    } else if (address->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
        port = ntohs(address->v4.sin_port);
    } else {
        snprintf(out, NETDEV_ADDRESS_TEXT, "an unknown address (family %d)", address->any.sa_family);
        return out;
    }
    if (port == 0)
        snprintf(out, NETDEV_ADDRESS_TEXT, "%s%s", host, scope);
    else
        snprintf(out, NETDEV_ADDRESS_TEXT, v6 ? "[%s%s]:%u" : "%s%s:%u", host, scope, port);
    return out;
}

/* ---- the filter ------------------------------------------------------------------------------ */

static bool item_is_address(const char *item, const union nic_address *address)
{
    char text[FILTER_ITEM_MAX];
    struct in6_addr parsed;

    snprintf(text, sizeof text, "%s", item);
    text[strcspn(text, "%")] = '\0'; /* the scope is the interface's business */
    if (address->any.sa_family == AF_INET)
        return inet_pton(AF_INET, text, &parsed) == 1 &&
               memcmp(&parsed, &address->v4.sin_addr, sizeof address->v4.sin_addr) == 0;
    return inet_pton(AF_INET6, text, &parsed) == 1 && memcmp(&parsed, &address->v6.sin6_addr, sizeof parsed) == 0;
}

struct interface {
    const char *name;
    const union nic_address *address;
};

static bool item_matches(char *item, bool exact, const void *context)
{
    const struct interface *interface = context;

    return filter_name_matches(item, exact, interface->name) || item_is_address(item, interface->address);
}

bool netdev_admits(const char *filter, const char *name, const union nic_address *address)
{
    return filter_admits(filter, item_matches, &(struct interface){name, address});
}

/* ---- properties ------------------------------------------------------------------------------ */

/* The number in a file; `fallback` where it is missing, or no count of anything. */
static long number_in(const char *path, long fallback)
{
    long value = -1;
    FILE *stream = fopen(path, "re");

    if (!stream)
        return fallback;
    if (fscanf(stream, "%li", &value) != 1) /* decimal, or with 0x in front */
        value = -1;
    fclose(stream);
    return value < 0 || value > INT32_MAX ? fallback : value;
}

/* From /sys/class/net/NAME/FILE. Drivers write the -1 of an unknown speed also as 4294967295. */
static long sysfs_number(const char *name, const char *file, long fallback)
{
    char path[128];

    snprintf(path, sizeof path, "/sys/class/net/%s/%s", name, file);
    return number_in(path, fallback);
}

/* A setting of IPv4 that counts for an interface: its own or that of all, whichever is larger. */
static long sysctl_number(const char *name, const char *setting)
{
    char path[128];
    long all, own;

    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/all/%s", setting);
    all = number_in(path, 0);
    snprintf(path, sizeof path, "/proc/sys/net/ipv4/conf/%s/%s", name, setting);
    own = number_in(path, 0);
    return all > own ? all : own;
}

bool netdev_mixes_addresses(const char *name)
{
    enum { OWN_ALONE = 1, BEST_ALONE = 2 };
    return sysctl_number(name, "arp_ignore") < OWN_ALONE || sysctl_number(name, "arp_announce") < BEST_ALONE;
}

static bool sysfs_exists(const char *name, const char *file)
{
    char path[128];

    snprintf(path, sizeof path, "/sys/class/net/%s/%s", name, file);
    return access(path, F_OK) == 0;
}

static bool is_virtual(const char *name)
{
    static const char *const prefixes[] = {"docker",  "br-",  "virbr",  "lxc",  "lxd", "cni",
                                           "flannel", "cali", "podman", "veth", "vnet"};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return sysfs_exists(name, "bridge") || sysfs_exists(name, "tun_flags");
}

static bool is_link_local(const union nic_address *address)
{
    if (address->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr);
    return (ntohl(address->v4.sin_addr.s_addr) >> 16) == 0xa9fe; /* 169.254/16 */
}

/* 127/8, ::1 */
static bool is_of_loopback(const union nic_address *address)
{
    if (address->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
    return ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
}

/* IPv4 before global IPv6, then link-local ones, then those that mean this machine everywhere. */
static int address_rank(const union nic_address *address)
{
    return 4 * is_of_loopback(address) + 2 * is_link_local(address) + (address->any.sa_family == AF_INET6);
}

static uint8_t kind_of(const struct netdev *dev, unsigned flags)
{
    if (flags & IFF_LOOPBACK)
        return is_of_loopback(&dev->address) || is_link_local(&dev->address) ? NETDEV_LOOPBACK : NETDEV_HOST;
    if (is_link_local(&dev->address))
        return NETDEV_LINK_LOCAL;
    return is_virtual(dev->name) ? NETDEV_VIRTUAL : NETDEV_NIC;
}

static uint32_t model_of(const char *name)
{
    return (uint32_t)sysfs_number(name, "device/vendor", 0) << 16 | (uint32_t)sysfs_number(name, "device/device", 0);
}

static void describe(struct netdev *dev, unsigned flags, int socket)
{
    struct ifreq request = {0};

    memcpy(request.ifr_name, dev->name, sizeof request.ifr_name);
    dev->mtu = socket >= 0 && ioctl(socket, SIOCGIFMTU, &request) == 0 ? (uint32_t)request.ifr_mtu : 1500;
    dev->index = if_nametoindex(dev->name);
    dev->speed_mbps = (uint64_t)sysfs_number(dev->name, "speed", 0);
    dev->numa_node = (int)sysfs_number(dev->name, "device/numa_node", -1);
    dev->kind = kind_of(dev, flags);
    dev->class = flags & IFF_RUNNING ? dev->kind : NETDEV_NO_CARRIER;
    dev->hardware = sysfs_exists(dev->name, "device");
    dev->model = model_of(dev->name);
}

/* Leading ones of a netmask. */
static uint8_t prefix_of(const struct sockaddr *mask)
{
    uint8_t bytes[16] = {0};
    unsigned bits = 0;

    if (!mask)
        return 0;
    if (mask->sa_family == AF_INET6)
        memcpy(bytes, &((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr, 16);
    else
        memcpy(bytes, &((const struct sockaddr_in *)(const void *)mask)->sin_addr, 4);
    while (bits < 128 && bytes[bits / 8] & 0x80 >> bits % 8)
        bits++;
    return (uint8_t)bits;
}

static int compare(const void *left, const void *right)
{
    const struct netdev *a = left, *b = right;
    int rank_a = address_rank(&a->address), rank_b = address_rank(&b->address);

    if (a->class != b->class)
        return a->class < b->class ? -1 : 1;
    if (rank_a != rank_b)
        return rank_a < rank_b ? -1 : 1;
    if (a->index != b->index)
        return a->index < b->index ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Copies a usable address of an interface that is up; false where it is not one. */
static bool usable(const struct ifaddrs *entry, union nic_address *out)
{
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP))
        return false;
    memset(out, 0, sizeof *out);
    if (entry->ifa_addr->sa_family == AF_INET)
        memcpy(&out->v4, entry->ifa_addr, sizeof out->v4);
    else if (entry->ifa_addr->sa_family == AF_INET6)
        memcpy(&out->v6, entry->ifa_addr, sizeof out->v6);
    else
        return false;
    return true;
}

/* Whether an item names any interface that can be used. */
static bool item_is_there(const struct filter_item *item, const struct ifaddrs *all)
{
    union nic_address address;

    for (; all; all = all->ifa_next)
        if (usable(all, &address) &&
            filter_item_matches(item, item_matches, &(struct interface){all->ifa_name, &address}))
            return true;
    return false;
}

/*
 * A misspelt name among others would go unnoticed: traffic would take fewer interfaces than the user meant. One that
 * is shut out may well be missing: such lists are written for many machines.
 */
static void tell_missing_interfaces(const char *filter, const struct ifaddrs *all)
{
    struct filter_items items = filter_items(filter);
    struct filter_item item;

    while (filter_next(&items, &item)) {
        if (item_is_there(&item, all))
            continue;
        LOG(item.excludes ? UCCL_LOG_INFO : UCCL_LOG_WARN,
            "UCCL_SOCKET_IFNAME: no network interface that is up and has an address matches \"%s\"", item.name);
    }
}

/* Whether the user asks for an interface: an item names it, and does not exclude it. */
static bool is_named(const char *filter, const char *name, const union nic_address *address)
{
    struct filter_items items = filter_items(filter);
    struct filter_item item;

    while (filter_next(&items, &item))
        if (!item.excludes && filter_item_matches(&item, item_matches, &(struct interface){name, address}))
            return true;
    return false;
}

static struct netdev *find_netdev(struct netdev *devs, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strncmp(devs[i].name, name, sizeof devs[i].name) == 0)
            return &devs[i];
    return NULL;
}

/* Those of getifaddrs(): one per interface, or one per address. */
static int list(const char *filter, const struct ifaddrs *all, bool each_address, struct netdev **out)
{
    const struct ifaddrs *entry;
    struct netdev *devs;
    char text[FAULT_TEXT];
    int count = 0, bound = 0, place = 0, socket_fd;

    for (entry = all; entry; entry = entry->ifa_next)
        bound++;
    devs = calloc((size_t)bound + 1, sizeof *devs);
    if (!devs) {
        LOG_ERR("no memory for a list of %d network interfaces", bound);
        return UCCL_ENOMEM;
    }
    socket_fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0)
        socket_fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (socket_fd < 0 && fault_error(errno) == UCCL_ENOMEM) {
        LOG_ERR("cannot ask network interfaces for their MTU: %s", fault_text(errno, text));
        free(devs);
        return UCCL_ENOMEM;
    }
    for (entry = all; entry; entry = entry->ifa_next, place++) {
        union nic_address address;
        struct netdev *dev;

        if (!usable(entry, &address) || !netdev_admits(filter, entry->ifa_name, &address))
            continue;
        dev = each_address ? NULL : find_netdev(devs, count, entry->ifa_name);
        if (!dev) {
            dev = &devs[count++];
            snprintf(dev->name, sizeof dev->name, "%s", entry->ifa_name);
        } else if (address_rank(&dev->address) <= address_rank(&address)) {
            continue;
        }
        dev->address = address;
        dev->prefix_bits = prefix_of(entry->ifa_netmask);
        dev->named = is_named(filter, entry->ifa_name, &address);
        dev->place = place;
        describe(dev, entry->ifa_flags, socket_fd);
    }
    if (socket_fd >= 0)
        close(socket_fd);
    qsort(devs, (size_t)count, sizeof *devs, compare);
    *out = devs;
    return count;
}

static int get_all(struct ifaddrs **out)
{
    char text[FAULT_TEXT];
    int error;

    if (getifaddrs(out) == 0)
        return 0;
    error = errno;
    LOG_ERR("cannot list network interfaces: %s", fault_text(error, text));
    return fault_error(error);
}

int netdev_list(const char *filter, struct netdev **out)
{
    struct ifaddrs *all;
    int count = get_all(&all);

    if (count != 0)
        return count;
    count = list(filter, all, false, out);
    if (count > 0) /* else the caller says so, with the whole list */
        tell_missing_interfaces(filter, all);
    freeifaddrs(all);
    return count;
}

int netdev_addresses(const char *filter, union nic_address *out, int max)
{
    struct netdev *devs = NULL;
    struct ifaddrs *all;
    int count = get_all(&all), worst;

    if (count != 0)
        return count;
    count = list(filter, all, true, &devs);
    freeifaddrs(all);
    if (count < 0)
        return count;
    worst = count > 0 && devs[0].class > NETDEV_LINK_LOCAL ? devs[0].class : NETDEV_LINK_LOCAL;
    if (count > max)
        count = max;
    for (int i = 0; i < count; i++) {
        if (devs[i].class > worst)
            count = i;
        else
            out[i] = devs[i].address;
    }
    free(devs);
    return count;
}

static bool has_carrier(const struct netdev *dev)
{
    return dev->class != NETDEV_NO_CARRIER;
}

/* Whether an engine may use the interface beside the first one. */
static bool may_join(const struct netdev *first, const struct netdev *dev)
{
    return dev->kind == first->kind && !is_link_local(&dev->address);
}

/* Whether it is used without being asked for by number. */
static bool joins_by_itself(const struct netdev *dev, uint64_t fastest_mbps)
{
    return dev->named || (dev->hardware && dev->speed_mbps != 0 && dev->speed_mbps >= fastest_mbps / 2);
}

/*
 * Whether an interface without carrier is used once it has one. The system does not tell its speed yet. By itself it
 * comes only beside several others: for its sake alone an engine with one NIC does not become one with several.
 */
static bool may_come_late(const struct netdev *dev, const struct netdev *devs, const unsigned *working, unsigned count)
{
    bool twin = false;

    for (unsigned i = 0; i < count; i++)
        twin = twin || dev->model == devs[working[i]].model;
    return dev->named || (dev->hardware && dev->model != 0 && twin && count > 1);
}

unsigned netdev_choose(const struct netdev *devs, int count, unsigned max, unsigned out[NIC_ENDS_MAX])
{
    uint64_t fastest_mbps = 0;
    unsigned chosen = 0, working = 0, most = max != 0 && max < NIC_ENDS_MAX ? max : NIC_ENDS_MAX;

    if (count == 0 || devs[0].kind > NETDEV_VIRTUAL)
        return 0;
    for (int i = 0; i < count; i++)
        if (may_join(&devs[0], &devs[i]) && has_carrier(&devs[i]) && devs[i].speed_mbps > fastest_mbps)
            fastest_mbps = devs[i].speed_mbps;
    for (int i = 0; i < count && chosen < most; i++) {
        const struct netdev *dev = &devs[i];
        bool works = has_carrier(dev);

        if (!may_join(&devs[0], dev) ||
            !(works ? max != 0 || joins_by_itself(dev, fastest_mbps) : may_come_late(dev, devs, out, working)))
            continue;
        out[chosen++] = (unsigned)i;
        working += works;
    }
    return chosen;
}

/* The interface by that name if it has a link-local IPv6 address; without a name the one that has `wanted`. 0: none. */
static uint32_t scope_of(const struct ifaddrs *all, const char *name, const struct in6_addr *wanted)
{
    union nic_address own;

    for (; all; all = all->ifa_next)
        if (usable(all, &own) && own.any.sa_family == AF_INET6 && is_link_local(&own) &&
            (name ? strcmp(name, all->ifa_name) == 0 : IN6_ARE_ADDR_EQUAL(&own.v6.sin6_addr, wanted)))
            return own.v6.sin6_scope_id;
    return 0;
}

void netdev_find_scope(const char *filter, union nic_address *address)
{
    struct netdev *devs = NULL;
    struct ifaddrs *all;
    char text[NETDEV_ADDRESS_TEXT];
    uint32_t scope;
    int count;

    if (address->any.sa_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr) ||
        address->v6.sin6_scope_id != 0 || get_all(&all) != 0)
        return;
    scope = scope_of(all, NULL, &address->v6.sin6_addr);
    count = scope == 0 ? list(filter, all, false, &devs) : 0;
    for (int i = 0; i < count && scope == 0; i++)
        if (devs[i].class != NETDEV_LOOPBACK && devs[i].class != NETDEV_NO_CARRIER)
            scope = scope_of(all, devs[i].name, NULL);
    free(devs);
    freeifaddrs(all);
    address->v6.sin6_scope_id = scope;
    if (scope != 0)
        LOG_INFORM("link-local address of a peer: tried as %s", netdev_address_text(address, text));
}

union nic_address netdev_unmapped(const union nic_address *address)
{
    union nic_address out = *address;

    if (address->any.sa_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr))
        return out;
    out.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = address->v6.sin6_port};
    memcpy(&out.v4.sin_addr, &address->v6.sin6_addr.s6_addr[12], sizeof out.v4.sin_addr);
    return out;
}

unsigned netdev_of_address(const union nic_address *address)
{
    union nic_address wanted = netdev_unmapped(address), own;
    struct ifaddrs *all;
    unsigned index = 0;

    if (get_all(&all) != 0)
        return 0;
    for (const struct ifaddrs *entry = all; entry && index == 0; entry = entry->ifa_next)
        if (usable(entry, &own) && nic_same_host(&own, &wanted))
            index = if_nametoindex(entry->ifa_name);
    freeifaddrs(all);
    return index;
}

/*
 * A datagram socket that is connected to `to`, from `from` if that has a family and is ours, through `interface` if
 * that is not 0; -1: no route, or no socket (errno). It is one of its own, since connecting changes what a socket
 * receives.
 */
static int connect_to(const union nic_address *to, const union nic_address *from, unsigned interface)
{
    int fd = socket(to->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), error, number = (int)interface;

    if (fd < 0)
        return -1;
    if (interface != 0) /* older systems refuse it: then the route decides */
        (void)setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &number, sizeof number);
    if (from->any.sa_family != AF_UNSPEC)
        (void)bind(fd, &from->any, nic_address_length(from));
    if (connect(fd, &to->any, nic_address_length(to)) == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static bool leaves_from(int fd, const union nic_address *address)
{
    union nic_address own;
    socklen_t length = sizeof own;

    return getsockname(fd, &own.any, &length) == 0 && nic_same_host(&own, address);
}

/* MTU of the interface that has the address which a socket leaves from; 0: it cannot be found out. */
static uint32_t interface_mtu(int fd)
{
    struct ifreq request = {0};
    struct ifaddrs *all;
    union nic_address own;

    if (getifaddrs(&all) != 0)
        return 0;
    for (const struct ifaddrs *entry = all; entry && request.ifr_name[0] == '\0'; entry = entry->ifa_next)
        if (usable(entry, &own) && leaves_from(fd, &own))
            snprintf(request.ifr_name, sizeof request.ifr_name, "%s", entry->ifa_name);
    freeifaddrs(all);
    if (request.ifr_name[0] == '\0' || ioctl(fd, SIOCGIFMTU, &request) != 0 || request.ifr_mtu <= 0)
        return 0;
    return (uint32_t)request.ifr_mtu;
}

/* Sandboxes and emulators of Linux may know no MTU of routes, and no interfaces either. */
static uint32_t mtu_of(int fd, bool v6)
{
    int mtu = 0;
    socklen_t length = sizeof mtu;

    if (getsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MTU : IP_MTU, &mtu, &length) == 0 && mtu > 0)
        return (uint32_t)mtu;
    int error = errno;
    uint32_t bytes = interface_mtu(fd);
    bool known = bytes > 0;

    bytes = known ? bytes : NETDEV_MTU_UNKNOWN;
    LOG_DBG("the MTU of a route cannot be asked for (%s): taken for %u bytes%s", strerror(error), bytes,
            known ? ", as of its interface" : "");
    return bytes;
}

uint32_t netdev_route_mtu(const union nic_address *to, const union nic_address *from, unsigned interface,
                          bool *by_itself)
{
    union nic_address target = netdev_unmapped(to), own = netdev_unmapped(from), any = {0};
    int fd = connect_to(&target, &any, interface);
    uint32_t mtu;

    *by_itself = own.any.sa_family == AF_UNSPEC || (fd >= 0 && leaves_from(fd, &own));
    if (!*by_itself) {
        if (fd >= 0)
            close(fd);
        own.v4.sin_port = 0; /* in the same place in both families */
        fd = connect_to(&target, &own, interface);
    }
    if (fd < 0)
        return 0;
    mtu = mtu_of(fd, target.any.sa_family == AF_INET6);
    close(fd);
    return mtu;
}
