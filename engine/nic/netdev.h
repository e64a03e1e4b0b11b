/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network interfaces of the machine, as devices to choose from: one per interface, with the
 * best of its addresses. Any thread; everything here is for set-up, not for the data path.
 */
#ifndef UCCL_NETDEV_H
#define UCCL_NETDEV_H

#include "nic/nic.h"

#include <net/if.h>

/* How an interface ranks when the user does not choose: lower is better. */
enum netdev_class {
    NETDEV_NIC,        /* anything not below */
    NETDEV_VIRTUAL,    /* bridges, container and virtual machine plumbing */
    NETDEV_HOST,       /* loopback with an address of the host that routers know */
    NETDEV_LINK_LOCAL, /* has no address that reaches beyond its link */
    NETDEV_LOOPBACK,
    NETDEV_NO_CARRIER, /* up, but nothing is plugged in */
};

struct netdev {
    char name[IF_NAMESIZE];
    unsigned index;            /* the kernel's number of the interface */
    union nic_address address; /* the best one, port 0 */
    uint8_t prefix_bits;       /* of that address: which others are on its link */
    uint64_t speed_mbps;       /* 0: unknown */
    uint32_t mtu;
    int numa_node;  /* -1: unknown */
    uint8_t class;  /* enum netdev_class */
    uint8_t kind;   /* the same, but as if it had a carrier */
    bool hardware;  /* a device of the machine is behind it */
    uint32_t model; /* vendor and device number of that; 0: unknown */
    bool named;     /* the user's list asks for it, by an item that does not exclude */
    int place;      /* of the address in the kernel's list */
};

/* What every IPv6 link takes (RFC 8200 5), and in practice every IPv4 one. */
enum { NETDEV_MTU_UNKNOWN = 1280 };

enum { NETDEV_ADDRESS_TEXT = 80 }; /* "[v6 address%scope]:port" fits */

/*
 * Whether `filter` (UCCL_SOCKET_IFNAME; its syntax: filter.h) admits address `address` of interface `name`. Items are
 * prefixes of names, or addresses. Pure.
 */
bool netdev_admits(const char *filter, const char *name, const union nic_address *address);

/*
 * Lists the usable interfaces, best first: `*out` is the caller's to free(). Returns how many (0:
 * none is up or admitted), or UCCL_EIO, UCCL_ENOMEM (logged).
 */
int netdev_list(const char *filter, struct netdev **out);

/*
 * All addresses by which this machine may be reached, in the order of that list, and of one interface IPv4 first:
 * up to `max` into `out`, port 0. Loopback's own, and those of interfaces without carrier, are among them only where
 * there are no better ones. Returns how many, or UCCL_EIO, UCCL_ENOMEM (logged).
 */
int netdev_addresses(const char *filter, union nic_address *out, int max);

/*
 * Chooses the interfaces that an engine uses at once, out of a list as netdev_list() returns it: their indices in
 * `out`, best first. `max` (UCCL_MAX_NICS) 0: those that the user names, and hardware at least half as fast as the
 * fastest. Others of the first one's class come only if `max` allows more. None is loopback or link-local. Behind all
 * others come those that have no carrier yet: those that the user names, and, if several others are chosen, hardware of
 * the same model as one of these. Returns how many, at most NIC_ENDS_MAX; 0 or 1: leave the choice to the kernel's
 * routes. Pure.
 */
unsigned netdev_choose(const struct netdev *devs, int count, unsigned max, unsigned out[NIC_ENDS_MAX]);

/* The number of the interface that has this address, also as IPv4 written as IPv6; 0: it is none of ours. */
unsigned netdev_of_address(const union nic_address *address);

/*
 * Whether interface `name` answers ARP requests for IPv4 addresses of other interfaces of this machine, or sends its
 * own in their names, as Linux does unless told otherwise (arp_ignore, arp_announce). Then others in its subnet send to
 * it what is meant for those.
 */
bool netdev_mixes_addresses(const char *name);

/*
 * A link-local IPv6 address is complete with the interface that leads to its link, whose number means nothing on
 * another machine. Where `address` is such and names none: sets the interface that has this very address (the peer
 * is on this machine), else the best that `filter` (UCCL_SOCKET_IFNAME) admits, has a link-local address and is
 * neither loopback nor without carrier. Other addresses, and one for which there is none, are left as they are.
 */
void netdev_find_scope(const char *filter, union nic_address *address);

/*
 * MTU of the route to `to`, from `from` if that has a family and through interface `interface` if that is not 0, as the
 * kernel knows it now, path MTU discovery included; where the system does not tell, the interface's MTU, else
 * NETDEV_MTU_UNKNOWN. 0: no route, or no socket to ask with (errno). `*by_itself`: the kernel sends from `from` without
 * being told, or `from` has no family.
 */
uint32_t netdev_route_mtu(const union nic_address *to, const union nic_address *from, unsigned interface,
                          bool *by_itself);

/* An IPv4 address that is written as an IPv6 one, as an IPv4 address; any other as it is. */
union nic_address netdev_unmapped(const union nic_address *address);

/* Numeric text of an address; with its port where that is not 0. Returns `out`. */
const char *netdev_address_text(const union nic_address *address, char out[NETDEV_ADDRESS_TEXT]);

#endif
