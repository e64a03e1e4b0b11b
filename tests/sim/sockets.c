/* SPDX-License-Identifier: Apache-2.0 */
#include "sockets.h"

#include "seam.h"

#include <stdarg.h>
#include <stdio.h>

enum { FD_FIRST = 1000, BACKLOG_MAX = 64, PORT_FIRST = 40000 };

enum kind { CLOSED, FRESH, LISTENING, CONNECTING, CONNECTED, EVENT };

/* One descriptor. Slots are used again once both ends are closed. */
struct end {
    uint8_t kind;
    bool used, eof, reset;
    struct process *process;
    int peer;           /* index, -1: none (yet, or any more) */
    uint32_t peer_life; /* of its slot: the next user is a stranger */
    uint32_t peer_address;
    uint16_t port, peer_port;
    int error;      /* of connect() */
    uint8_t *bytes; /* received, not read yet */
    size_t length, room;
    uint64_t sent_until_ns; /* arrival of the last segment that it sent: none overtakes */
    int backlog[BACKLOG_MAX];
    unsigned backlog_count;
    uint64_t value; /* of an event descriptor */
    uint32_t life;  /* counts uses of the slot */
};

static struct {
    struct sockets_options options;
    struct process *(*find)(uint32_t);
    uint32_t (*address_of)(const struct process *);
    struct end *ends;
    int count, room;
    uint16_t next_port;
    char poll_key;
} net;

/* ---- slots ----------------------------------------------------------------------------------- */

void sockets_begin(const struct sockets_options *options, struct process *(*find)(uint32_t address),
                   uint32_t (*address_of)(const struct process *process))
{
    net.options = *options;
    net.find = find;
    net.address_of = address_of;
    net.count = 0;
    net.next_port = PORT_FIRST;
}

void sockets_end(void)
{
    for (int i = 0; i < net.count; i++)
        free(net.ends[i].bytes);
    free(net.ends);
    net.ends = NULL;
    net.count = net.room = 0;
}

static int take(struct process *process, enum kind kind)
{
    int index = 0;
    while (index < net.count && net.ends[index].used)
        index++;
    if (index == net.room) {
        int room = net.room ? 2 * net.room : 64;
        net.ends = realloc(net.ends, (size_t)room * sizeof *net.ends);
        if (!net.ends)
            abort();
        memset(net.ends + net.room, 0, (size_t)(room - net.room) * sizeof *net.ends);
        net.room = room;
    }
    if (index == net.count)
        net.count++;
    struct end *end = &net.ends[index];
    uint32_t life = end->life + 1;
    free(end->bytes);
    *end = (struct end){.kind = (uint8_t)kind, .used = true, .process = process, .peer = -1, .life = life};
    return index;
}

static struct end *end_of(int fd)
{
    int index = fd - FD_FIRST;
    if (index < 0 || index >= net.count || !net.ends[index].used || net.ends[index].process != machine_process() ||
        net.ends[index].kind == CLOSED)
        machine_fail("descriptor %d is not open", fd);
    return &net.ends[index];
}

static int fail(int error)
{
    errno = error;
    return -1;
}

static void news(struct end *end)
{
    machine_wake(end->process, &net.poll_key, UINT32_MAX);
}

unsigned sockets_open(const struct process *process)
{
    unsigned open = 0;
    for (int i = 0; i < net.count; i++)
        open += net.ends[i].used && net.ends[i].process == process && net.ends[i].kind != CLOSED;
    return open;
}

/* ---- what travels ---------------------------------------------------------------------------- */

enum message_kind { SYN, SYN_ACK, RST, FIN, DATA };

struct message {
    uint8_t kind;
    int to, from;
    uint32_t to_life, from_life;
    uint32_t address, from_address; /* of a SYN */
    uint16_t port, from_port;
    size_t length;
    uint8_t bytes[];
};

static void arrive(void *what, uint64_t extra);

static struct message *message(enum message_kind kind, int from, int to, uint32_t to_life, size_t length)
{
    struct message *message = calloc(1, sizeof *message + length);
    if (!message)
        abort();
    message->kind = (uint8_t)kind;
    message->from = from;
    message->to = to;
    message->to_life = to_life;
    message->from_life = net.ends[from].life;
    message->length = length;
    return message;
}

static void post(int from, struct message *message)
{
    struct end *end = &net.ends[from];
    uint64_t at_ns = machine.now_ns + net.options.delay_ns + machine_random((uint32_t)net.options.delay_ns + 1);
    if (at_ns < end->sent_until_ns)
        at_ns = end->sent_until_ns;
    end->sent_until_ns = at_ns;
    machine_at(at_ns, arrive, message, 0);
}

static int listener_at(const struct process *process, uint16_t port)
{
    for (int i = 0; i < net.count; i++) {
        const struct end *end = &net.ends[i];
        if (end->used && end->kind == LISTENING && end->process == process && end->port == port)
            return i;
    }
    return -1;
}

static void arrive_syn(const struct message *syn)
{
    struct process *process = net.find(syn->address);
    int listener = process ? listener_at(process, syn->port) : -1;
    if (listener < 0 || net.ends[listener].backlog_count == BACKLOG_MAX) {
        post(syn->from, message(RST, syn->from, syn->from, syn->from_life, 0));
        return;
    }
    int index = take(process, CONNECTED);
    struct end *end = &net.ends[index];
    end->peer = syn->from;
    end->peer_life = syn->from_life;
    end->peer_address = syn->from_address;
    end->peer_port = syn->from_port;
    end->port = syn->port;
    net.ends[listener].backlog[net.ends[listener].backlog_count++] = index;
    news(&net.ends[listener]);
    post(index, message(SYN_ACK, index, syn->from, syn->from_life, 0));
}

static void take_bytes(struct end *end, const struct message *message)
{
    if (end->length + message->length > end->room) {
        end->room = end->length + message->length;
        end->bytes = realloc(end->bytes, end->room);
        if (!end->bytes)
            abort();
    }
    memcpy(end->bytes + end->length, message->bytes, message->length);
    end->length += message->length;
}

static void arrive(void *what, uint64_t extra)
{
    struct message *message = what;
    (void)extra;
    struct end *end = message->to >= 0 ? &net.ends[message->to] : NULL;
    if (message->kind == SYN) {
        arrive_syn(message);
    } else if (end->used && end->life == message->to_life && end->kind != CLOSED) {
        switch ((enum message_kind)message->kind) {
        case SYN_ACK:
            end->kind = CONNECTED;
            end->peer = message->from;
            end->peer_life = message->from_life;
            break;
        case RST:
            if (end->kind == CONNECTING)
                end->error = ECONNREFUSED;
            end->kind = CONNECTED;
            end->reset = true;
            end->peer = -1;
            break;
        case FIN:
            end->eof = true;
            break;
        case DATA:
            take_bytes(end, message);
            break;
        case SYN:
            break;
        }
        news(end);
    }
    free(message);
}

/* This end is gone; the other hears of it. */
static void leave(int index, enum message_kind how)
{
    struct end *end = &net.ends[index];
    for (unsigned i = 0; i < end->backlog_count; i++)
        leave(end->backlog[i], RST);
    end->backlog_count = 0;
    int peer = end->peer;
    if (peer >= 0)
        post(index, message(how, index, peer, end->peer_life, 0));
    end->kind = CLOSED;
    end->used = false;
}

void sockets_kill(struct process *process)
{
    for (int i = 0; i < net.count; i++) {
        if (net.ends[i].used && net.ends[i].process == process)
            leave(i, RST);
    }
}

/* ---- calls ----------------------------------------------------------------------------------- */

int sim_socket(int family, int type, int protocol)
{
    (void)family;
    (void)type;
    (void)protocol;
    return FD_FIRST + take(machine_process(), FRESH);
}

int sim_setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
    (void)level;
    (void)name;
    (void)value;
    (void)length;
    end_of(fd);
    return 0;
}

int sim_getsockopt(int fd, int level, int name, void *value, socklen_t *length)
{
    struct end *end = end_of(fd);
    if (level != SOL_SOCKET || name != SO_ERROR || *length < sizeof(int))
        return fail(ENOPROTOOPT);
    memcpy(value, &end->error, sizeof(int));
    end->error = 0;
    return 0;
}

static uint16_t port_of(const struct sockaddr *address)
{
    return ntohs(address->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)address)->sin6_port
                                                : ((const struct sockaddr_in *)(const void *)address)->sin_port);
}

int sim_bind(int fd, const struct sockaddr *address, socklen_t length)
{
    struct end *end = end_of(fd);
    (void)length;
    uint16_t port = port_of(address);
    if (port && listener_at(end->process, port) >= 0)
        return fail(EADDRINUSE);
    end->port = port ? port : net.next_port++;
    return 0;
}

int sim_listen(int fd, int backlog)
{
    (void)backlog;
    end_of(fd)->kind = LISTENING;
    return 0;
}

static int put_address(uint32_t address, uint16_t port, struct sockaddr *out, socklen_t *length)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    v4.sin_addr.s_addr = htonl(address);
    if (*length < sizeof v4)
        return fail(EINVAL);
    memset(out, 0, *length);
    memcpy(out, &v4, sizeof v4);
    *length = sizeof v4;
    return 0;
}

int sim_getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
    const struct end *end = end_of(fd);
    return put_address(net.address_of(end->process), end->port, address, length);
}

int sim_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
    const struct end *end = end_of(fd);
    if (end->kind != CONNECTED || end->reset)
        return fail(ENOTCONN);
    return put_address(end->peer_address, end->peer_port, address, length);
}

int sim_accept4(int fd, struct sockaddr *address, socklen_t *length, int flags)
{
    sim_step(); /* before anything is looked at: others may run here */
    struct end *end = end_of(fd);
    (void)address;
    (void)length;
    (void)flags;
    if (end->backlog_count == 0)
        return fail(EAGAIN);
    int index = end->backlog[0];
    end->backlog_count--;
    memmove(end->backlog, end->backlog + 1, end->backlog_count * sizeof end->backlog[0]);
    return FD_FIRST + index;
}

int sim_connect(int fd, const struct sockaddr *address, socklen_t length)
{
    struct end *end = end_of(fd);
    (void)length;
    if (address->sa_family != AF_INET)
        return fail(EAFNOSUPPORT);
    end->kind = CONNECTING;
    end->port = net.next_port++;
    end->peer_address = ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr);
    end->peer_port = port_of(address);
    if (end->peer_address < SOCKETS_SILENT && machine_random(1000000) >= net.options.silent_ppm) {
        struct message *syn = message(SYN, fd - FD_FIRST, -1, 0, 0);
        syn->address = end->peer_address;
        syn->port = end->peer_port;
        syn->from_address = net.address_of(end->process);
        syn->from_port = end->port;
        post(fd - FD_FIRST, syn);
    }
    return fail(EINPROGRESS);
}

ssize_t sim_send(int fd, const void *bytes, size_t length, int flags)
{
    sim_step(); /* before anything is looked at: others may run here */
    struct end *end = end_of(fd);
    (void)flags;
    if (end->reset)
        return fail(ECONNRESET);
    if (end->kind != CONNECTED)
        return fail(EAGAIN);
    if (machine_random(8) == 0)
        return fail(EAGAIN);
    size_t some = 1 + machine_random((uint32_t)length);
    if (some > length || machine_random(2))
        some = length;
    if (end->peer >= 0) {
        struct message *data = message(DATA, fd - FD_FIRST, end->peer, end->peer_life, some);
        memcpy(data->bytes, bytes, some);
        post(fd - FD_FIRST, data);
    }
    return (ssize_t)some;
}

ssize_t sim_recv(int fd, void *bytes, size_t length, int flags)
{
    sim_step(); /* before anything is looked at: others may run here */
    struct end *end = end_of(fd);
    (void)flags;
    if (end->length == 0) {
        if (end->reset)
            return fail(ECONNRESET);
        return end->eof ? 0 : fail(EAGAIN);
    }
    size_t some = length < end->length ? length : end->length;
    memcpy(bytes, end->bytes, some);
    end->length -= some;
    memmove(end->bytes, end->bytes + some, end->length);
    return (ssize_t)some;
}

static short ready(const struct end *end)
{
    switch ((enum kind)end->kind) {
    case LISTENING:
        return end->backlog_count ? POLLIN : 0;
    case CONNECTED:
        if (end->reset)
            return POLLIN | POLLOUT | POLLERR | POLLHUP;
        return end->length || end->eof ? POLLIN | POLLOUT : POLLOUT;
    case EVENT:
        return end->value ? POLLIN : 0;
    default:
        return 0;
    }
}

int sim_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    uint64_t until_ns = timeout_ms < 0 ? UINT64_MAX : machine_deadline((uint64_t)timeout_ms * 1000000);
    sim_step();
    for (;;) {
        int some = 0;
        for (nfds_t i = 0; i < count; i++) {
            fds[i].revents = ready(end_of(fds[i].fd)) & (short)(fds[i].events | POLLERR | POLLHUP);
            some += fds[i].revents != 0;
        }
        if (some || machine.now_ns >= until_ns)
            return some;
        machine_park(&net.poll_key, until_ns);
    }
}

int sim_fcntl(int fd, int command, ...)
{
    (void)command;
    end_of(fd);
    return 0;
}

int sim_eventfd(unsigned value, int flags)
{
    (void)flags;
    int index = take(machine_process(), EVENT);
    net.ends[index].value = value;
    return FD_FIRST + index;
}

ssize_t sim_read(int fd, void *out, size_t length)
{
    sim_step(); /* before anything is looked at: others may run here */
    struct end *end = end_of(fd);
    if (end->kind != EVENT || length < sizeof end->value)
        return fail(EINVAL);
    if (end->value == 0)
        return fail(EAGAIN);
    memcpy(out, &end->value, sizeof end->value);
    end->value = 0;
    return sizeof end->value;
}

ssize_t sim_write(int fd, const void *bytes, size_t length)
{
    sim_step(); /* before anything is looked at: others may run here */
    struct end *end = end_of(fd);
    uint64_t more;
    if (end->kind != EVENT || length < sizeof more)
        return fail(EINVAL);
    memcpy(&more, bytes, sizeof more);
    end->value += more;
    news(end);
    return sizeof more;
}

/* No process forks here: a close() comes next, and ends the connection. */
int sim_shutdown(int fd, int how)
{
    (void)how;
    end_of(fd);
    return 0;
}

int sim_close(int fd)
{
    end_of(fd);
    leave(fd - FD_FIRST, FIN);
    return 0;
}
