/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LD_PRELOAD library: every TCP socket of the process uses the congestion control named in
 * TCP_CONGESTION_NAME (default "cubic"). A kernel may default to BBR, which is slow on loopback and
 * veth, so that a comparison against it is worth nothing; a namespace may refuse to change the
 * default. Accepted sockets inherit it from the listening one.
 */
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef int (*socket_fn)(int domain, int type, int protocol);

__attribute__((visibility("default"))) int socket(int domain, int type, int protocol)
{
    static _Atomic(socket_fn) real;
    socket_fn call = real;

    if (!call) {
        void *symbol = dlsym(RTLD_NEXT, "socket");
        memcpy(&call, &symbol, sizeof call); /* ISO C has no cast from object to function pointer */
        real = call;
    }
    int fd = call(domain, type, protocol);
    int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 && (domain == AF_INET || domain == AF_INET6) && kind == SOCK_STREAM) {
        const char *name = getenv("TCP_CONGESTION_NAME");
        if (!name)
            name = "cubic";
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name));
    }
    return fd;
}
