/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections through several NICs: which addresses they have, of which rail an accepted one is, and what becomes of
 * them when a NIC goes down and comes back. The kernel's answers about links are made up.
 */
#include "nic/udp/udp.h"
#include "tcp_pair.h"

#include <net/if.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

enum { RAILS = 2 };

static int index_of_loopback(const struct nic *nic)
{
    struct uccl_device device;
    union nic_address address;
    for (int i = 0; i < nic->ops->device_count(nic); i++) {
        cr_assert_eq(nic->ops->device(nic, i, &device, &address), 0);
        if (device.is_loopback)
            return i;
    }
    return -1;
}

static int all_are_loopback(const struct nic *nic, unsigned end)
{
    (void)end;
    return index_of_loopback(nic);
}

static const struct nic_end_ops fake_ends = {.device = all_are_loopback};

/* The rails: the dialling side's addresses, and the other's. */
static const char *const addresses[RAILS][2] = {{"127.0.0.1", "127.0.0.1"}, {"127.0.0.2", "127.0.0.3"}};

/* Adds a rail at a side, whose index there is `as`. Returns its destination. */
static uint32_t add_rail(struct side *side, struct side *other, unsigned rail, unsigned as)
{
    struct nic_host host = {.address = address_of(addresses[rail][!side->index]),
                            .local = address_of(addresses[rail][side->index]),
                            .nic = rail + 1};
    struct nic_queue_address queue_address;
    uint32_t destination, bytes = 0;
    tcp_queue_ops.address(&other->queue->base, &queue_address);
    host.local.v4.sin_port = htons(9); /* of the handshake, and no connection's */
    cr_assert_eq(tcp_datagram_ops.peer_add(&side->queue->base, &host, &queue_address, &destination, &bytes), 0);
    tcp_channel_ops.introduce(&side->queue->base, destination,
                              &(struct nic_flow){.flow = (struct flow *)side,
                                                 .rail = (uint8_t)as,
                                                 .rails = RAILS,
                                                 .rx_token = tokens[side->index] + 16,
                                                 .tx_token = tokens[!side->index] + 16,
                                                 .dials = side->index == 0,
                                                 .patience_ms = side->pair->params.dead_peer_ms});
    return destination;
}

/* Rounds without events, until the paths of the peer are up. */
static bool are_up(struct side *side, uint32_t destination)
{
    struct nic_channel_event event;
    struct nic_rx rx[8];
    cr_assert_eq(tcp_datagram_ops.poll(&side->queue->base, rx, 8), 0);
    while (tcp_channel_ops.event(&side->queue->base, &event))
        ;
    for (uint16_t path = 0; path < PATHS; path++)
        if (tcp_conn_of(side->queue, destination, path)->state != TCP_UP)
            return false;
    return true;
}

static void assert_name(int fd, bool own, const char *text)
{
    union nic_address address, expected = address_of(text);
    socklen_t length = sizeof address;
    int failed = own ? getsockname(fd, &address.any, &length) : getpeername(fd, &address.any, &length);
    cr_assert_eq(failed, 0);
    address = netdev_unmapped(&address);
    cr_assert_eq(address.v4.sin_addr.s_addr, expected.v4.sin_addr.s_addr, "not %s", text);
}

/* The sides number their rails differently. `shared`: what is meant for one NIC may come by another. */
static void check_addresses(bool shared)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    uint32_t destinations[2][RAILS];
    pair->nic->ends = &fake_ends;
    udp_nic_of(pair->nic)->shared = shared ? (1u << RAILS) - 1 : 0;
    for (unsigned i = 0; i < RAILS; i++)
        destinations[1][i] = add_rail(&pair->sides[1], &pair->sides[0], i, RAILS - 1 - i);
    for (unsigned i = 0; i < RAILS; i++)
        destinations[0][i] = add_rail(&pair->sides[0], &pair->sides[1], i, i);
    for (unsigned rail = 0; rail < RAILS; rail++) {
        uint64_t until_ns = now_ns() + UINT64_C(10000000000);
        for (unsigned up = 0; up < 2;) {
            up = are_up(&pair->sides[0], destinations[0][rail]);
            up += are_up(&pair->sides[1], destinations[1][rail]);
            cr_assert_lt(now_ns(), until_ns, "rail %u", rail);
        }
        for (unsigned side = 0; side < 2; side++)
            for (uint16_t path = 0; path < PATHS; path++) {
                int fd = tcp_conn_of(pair->sides[side].queue, destinations[side][rail], path)->fd;
                char name[IF_NAMESIZE] = "";
                socklen_t length = sizeof name;
                assert_name(fd, true, addresses[rail][side]);
                assert_name(fd, false, addresses[rail][!side]);
                cr_assert_eq(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &length), 0);
                cr_assert_str_eq(name, shared ? "" : "lo");
            }
    }
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < RAILS; i++)
            tcp_datagram_ops.peer_remove(&pair->sides[side].queue->base, destinations[side][i]);
    close_pair(pair);
}

Test(tcp_rails, each_connection_has_the_addresses_of_its_rail, .timeout = 60)
{
    check_addresses(false);
}

/* A connection that is bound to a NIC would refuse what comes by another one. */
Test(tcp_rails, where_nics_answer_for_each_other_addresses_must_do, .timeout = 60)
{
    check_addresses(true);
}

/* A connection with other addresses than any rail is a stranger's, and the rail goes without. */
Test(tcp_rails, other_addresses_are_of_no_rail, .timeout = 60)
{
    struct pair *pair = open_pair(0, "127.0.0.1");
    struct side *from = &pair->sides[0], *to = &pair->sides[1];
    pair->nic->ends = &fake_ends;
    uint32_t theirs = add_rail(to, from, 0, 0), ours = add_rail(from, to, 1, 0);
    uint64_t until_ns = now_ns() + UINT64_C(10000000000);
    while (to->counters.rx_strangers < PATHS) {
        cr_assert_lt(now_ns(), until_ns);
        are_up(from, ours);
        cr_assert_not(are_up(to, theirs));
    }
    tcp_datagram_ops.peer_remove(&from->queue->base, ours);
    tcp_datagram_ops.peer_remove(&to->queue->base, theirs);
    close_pair(pair);
}

/* ---- links ----------------------------------------------------------------------------------- */

static short flags[RAILS];     /* of the rails' interfaces at side 0 */
static unsigned number[RAILS]; /* the kernel's */

int __real_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...);
int __wrap_ioctl(int fd, unsigned long what, ...)
{
    va_list arguments;
    va_start(arguments, what);
    struct ifreq *request = va_arg(arguments, struct ifreq *);
    va_end(arguments);
    if (strncmp(request->ifr_name, "rail", 4) != 0)
        return __real_ioctl(fd, what, request);
    if (what == SIOCGIFINDEX)
        request->ifr_ifindex = (int)number[request->ifr_name[4] - '0'];
    else
        request->ifr_flags = flags[request->ifr_name[4] - '0'];
    return 0;
}

static struct pair *linked;
static struct netdev devs[RAILS];
static _Atomic uint32_t told_down;
static int news[2]; /* what is sent to the first is news */
static uint32_t of_rail[2][RAILS];
static unsigned broken[2][RAILS];
static bool beside; /* side 0's queue stands beside this one: nobody asks it for events of links */
static struct nic_queue main_queue;

/* One round of both sides. */
static void play(void)
{
    struct nic_channel_event event;
    struct nic_end_event end;
    struct nic_rx rx[8];
    for (unsigned side = 0; side < 2; side++) {
        struct nic_queue *queue = &linked->sides[side].queue->base;
        cr_assert_eq(tcp_datagram_ops.poll(queue, rx, 8), 0);
        cr_assert(beside || !tcp_links_event(queue, &end));
        while (tcp_channel_ops.event(queue, &event))
            broken[side][event.destination == of_rail[side][1]] += event.broken;
    }
}

static bool rail_is(unsigned side, unsigned rail, enum tcp_conn_state state)
{
    for (uint16_t path = 0; path < PATHS; path++)
        if (tcp_conn_of(linked->sides[side].queue, of_rail[side][rail], path)->state != state)
            return false;
    return true;
}

#define PLAY_UNTIL(condition)                                                                                          \
    for (uint64_t until_ns = now_ns() + UINT64_C(10000000000); !(condition);) {                                        \
        play();                                                                                                        \
        cr_assert_lt(now_ns(), until_ns, #condition);                                                                  \
    }

/* Side 0 has interfaces that are made up; the kernel tells of them by a socket. */
static void open_links(void)
{
    unsigned ends[RAILS];
    linked = open_pair(0, "127.0.0.1");
    linked->nic->ends = &fake_ends;
    for (unsigned i = 0; i < RAILS; i++) {
        ends[i] = i;
        flags[i] = IFF_UP | IFF_RUNNING;
        devs[i].index = number[i] = 1000 + i;
        snprintf(devs[i].name, sizeof devs[i].name, "rail%u", i);
        of_rail[1][i] = add_rail(&linked->sides[1], &linked->sides[0], i, i);
    }
    struct tcp_queue *queue = linked->sides[0].queue;
    queue->setup.beside = beside ? &main_queue : NULL;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, news), 0);
    link_watch_open(&queue->links, devs, ends, RAILS, &told_down, queue->listen_fd);
    link_watch_close(&queue->links);
    queue->links.netlink_fd = news[1];
    cr_assert(tcp_watch_links(queue));
    for (unsigned i = 0; i < RAILS; i++)
        of_rail[0][i] = add_rail(&linked->sides[0], &linked->sides[1], i, i);
    for (unsigned i = 0; i < RAILS; i++)
        PLAY_UNTIL(rail_is(0, i, TCP_UP) && rail_is(1, i, TCP_UP));
}

static void close_links(void)
{
    close(news[0]);
    for (unsigned side = 0; side < 2; side++)
        for (unsigned i = 0; i < RAILS; i++)
            tcp_datagram_ops.peer_remove(&linked->sides[side].queue->base, of_rail[side][i]);
    close_pair(linked);
}

static void change(unsigned rail, short now)
{
    flags[rail] = now;
    cr_assert_eq(send(news[0], "news", 4, 0), 4);
}

TestSuite(tcp_links, .init = open_links, .fini = close_links, .timeout = 60);

static void break_and_come_back(void)
{
    enum { SOME_NS = 50000000 }; /* after some failures that would be enough to dial again */
    const struct tcp_queue *queue = linked->sides[0].queue;
    for (unsigned rail = 0; rail < RAILS; rail++) {
        uint32_t generation = tcp_conn_of(queue, of_rail[0][rail], 0)->generation;
        change(rail, IFF_UP); /* the cable is pulled */
        PLAY_UNTIL(broken[0][rail]);
        cr_assert_eq(broken[0][rail], PATHS);
        cr_assert(tcp_channel_ops.swallowed(&queue->base, of_rail[0][rail]));
        cr_assert_eq(told_down, 1u << rail);
        for (uint64_t until_ns = now_ns() + SOME_NS; now_ns() < until_ns;)
            play();
        cr_assert(rail_is(0, rail, TCP_DOWN) && rail_is(1, rail, TCP_DOWN));
        cr_assert_eq(tcp_conn_of(queue, of_rail[0][rail], 0)->generation, generation);
        cr_assert(rail_is(0, !rail, TCP_UP) && rail_is(1, !rail, TCP_UP));
        cr_assert(broken[0][rail] == PATHS && broken[0][!rail] == 0);
        change(rail, IFF_UP | IFF_RUNNING);
        PLAY_UNTIL(rail_is(0, rail, TCP_UP) && rail_is(1, rail, TCP_UP));
        cr_assert_eq(tcp_conn_of(queue, of_rail[0][rail], 0)->generation, generation + 1);
        cr_assert_eq(told_down, 0);
        broken[0][rail] = 0;
    }
}

Test(tcp_links, connections_break_with_their_link_and_come_back_with_it)
{
    break_and_come_back();
}

static void open_links_beside(void)
{
    beside = true;
    open_links();
}

TestSuite(tcp_links_beside, .init = open_links_beside, .fini = close_links, .timeout = 60);

Test(tcp_links_beside, they_break_and_come_back_with_their_link)
{
    break_and_come_back();
}

Test(tcp_links_beside, the_main_queue_counts_what_they_carry)
{
    static uint8_t buffer[2000];
    struct side *side = &linked->sides[0];
    uint32_t before = side->destination;
    side->destination = of_rail[0][1];
    cr_assert(send_small(side, 0, 1000, 0, buffer));
    tcp_datagram_ops.flush(&side->queue->base);
    side->destination = before;
    cr_assert(main_queue.ends[1].tx_bytes > 1000 && main_queue.ends[0].tx_bytes == 0);
}

/* The news end a sleep. */
Test(tcp_links, a_sleep_ends_when_a_link_goes_down)
{
    struct nic_queue *queue = &linked->sides[0].queue->base;
    for (unsigned i = 0; i < 3; i++)
        play();
    change(1, 0);
    uint64_t begun_ns = now_ns();
    sleep_in(queue, UINT64_C(20000000000));
    cr_assert_lt(now_ns() - begun_ns, UINT64_C(5000000000));
    play();
    play();
    cr_assert_eq(broken[0][1], PATHS);
    for (unsigned i = 0; i < 3; i++)
        play();
    begun_ns = now_ns();
    sleep_in(queue, 20000000); /* nothing is left to do */
    cr_assert_geq(now_ns() - begun_ns, 20000000);
}

/* An interface that was removed and made again has another number: what is bound to the old one reaches nobody. */
Test(tcp_links, connections_of_an_interface_made_anew_are_made_anew)
{
    const struct tcp_queue *queue = linked->sides[0].queue;
    number[1] += 7;
    change(1, IFF_UP | IFF_RUNNING);
    PLAY_UNTIL(broken[0][1]);
    PLAY_UNTIL(rail_is(0, 1, TCP_UP) && rail_is(1, 1, TCP_UP));
    cr_assert(broken[0][1] == PATHS && broken[0][0] == 0);
    cr_assert_eq(tcp_conn_of(queue, of_rail[0][1], 0)->generation, 2);
}

/* A peer that is met while a NIC is down is dialled over it later. */
Test(tcp_links, who_is_met_while_a_link_is_down_is_dialled_when_it_is_up)
{
    struct side *side = &linked->sides[0];
    tcp_datagram_ops.peer_remove(&side->queue->base, of_rail[0][1]);
    change(1, 0);
    PLAY_UNTIL(told_down);
    of_rail[0][1] = add_rail(side, &linked->sides[1], 1, 1);
    for (unsigned i = 0; i < 3; i++)
        play();
    cr_assert(rail_is(0, 1, TCP_DOWN));
    change(1, IFF_UP | IFF_RUNNING);
    PLAY_UNTIL(rail_is(0, 1, TCP_UP) && rail_is(1, 1, TCP_UP));
}

/* Where the kernel tells nothing of links, a connection that breaks lets look, and dialling goes on. */
Test(tcp_links, without_news_broken_connections_let_look)
{
    struct tcp_queue *queue = linked->sides[0].queue;
    link_watch_close(&queue->links);
    flags[1] = 0;
    for (unsigned i = 0; i < 3; i++)
        play();
    cr_assert_eq(told_down, 0);
    shutdown(tcp_conn_of(queue, of_rail[0][1], 0)->fd, SHUT_RDWR);
    PLAY_UNTIL(told_down == 2 && rail_is(0, 1, TCP_DOWN));
    cr_assert_eq(broken[0][1], PATHS);
    flags[1] = IFF_UP | IFF_RUNNING;
    PLAY_UNTIL(told_down == 0 && rail_is(0, 1, TCP_UP) && rail_is(1, 1, TCP_UP));
}

/* A process without descriptors looks at its links, too: a dialling that fails for want of one lets it. */
Test(link_watch, a_shortage_of_descriptors_takes_no_link, .timeout = 60)
{
    struct netdev lo = {.name = "lo", .index = if_nametoindex("lo")};
    struct rlimit limit, none;
    struct link_watch watch;
    struct link_changes changes;
    unsigned end = 0;
    int any = socket(AF_INET, SOCK_DGRAM, 0);
    link_watch_open(&watch, &lo, &end, 1, &told_down, any);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    cr_assert(link_watch_look(&watch, &changes));
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    cr_assert(changes.state == 0 && changes.number == 0 && told_down == 0);
    link_watch_close(&watch);
    close(any);
}
