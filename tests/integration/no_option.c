/* SPDX-License-Identifier: Apache-2.0 */
/*
 * no_option NAME,... COMMAND...: runs it where these socket options are missing, as in sandboxes and emulators of
 * Linux: getsockopt() and setsockopt() of them fail with ENOPROTOOPT, by a seccomp filter. "ifmtu" stands for
 * ioctl(SIOCGIFMTU), which fails with ENOTTY. "list" as NAME prints all names.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPTION(level, name)                                                                                            \
    {                                                                                                                  \
#name, level, name                                                                                             \
    }

static const struct option {
    const char *name;
    uint32_t level, number;
} OPTIONS[] = {
    OPTION(SOL_SOCKET, SO_RCVBUF),
    OPTION(SOL_SOCKET, SO_RCVBUFFORCE),
    OPTION(SOL_SOCKET, SO_SNDBUF),
    OPTION(SOL_SOCKET, SO_SNDBUFFORCE),
    OPTION(SOL_SOCKET, SO_RXQ_OVFL),
    OPTION(SOL_SOCKET, SO_REUSEADDR),
    OPTION(IPPROTO_IP, IP_MTU),
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER),
    OPTION(IPPROTO_IP, IP_TOS),
    OPTION(IPPROTO_IP, IP_RECVTOS),
    OPTION(IPPROTO_IPV6, IPV6_MTU),
    OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER),
    OPTION(IPPROTO_IPV6, IPV6_TCLASS),
    OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS),
    OPTION(IPPROTO_IPV6, IPV6_V6ONLY),
    OPTION(IPPROTO_UDP, UDP_SEGMENT),
    OPTION(IPPROTO_UDP, UDP_GRO),
    OPTION(IPPROTO_TCP, TCP_NODELAY),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT),
};
enum { COUNT = sizeof OPTIONS / sizeof *OPTIONS, PER_OPTION = 5, CODE_MAX = 16 + PER_OPTION * COUNT };

static struct sock_filter code[CODE_MAX];
static unsigned length;

static void put(struct sock_filter statement)
{
    code[length++] = statement;
}

/* The low half of an argument of the call. */
static void load_argument(unsigned index)
{
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[index]) +
                                                                   4 * (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)));
}

/* The next statement is for this call alone; else `skip` statements are passed over. */
static void if_call(uint32_t number, uint8_t skip)
{
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, skip));
}

static void refuse(uint32_t error)
{
    put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
}

static int has(const char *list, const char *name)
{
    size_t bytes = strlen(name);

    for (const char *at = list; (at = strstr(at, name)); at += bytes)
        if ((at == list || at[-1] == ',') && (at[bytes] == ',' || at[bytes] == '\0'))
            return 1;
    return 0;
}

/* For both calls on options: `level` and `number` are their arguments 1 and 2. */
static unsigned make_filter(const char *list)
{
    unsigned found = 0;

    if (has(list, "ifmtu")) {
        found++;
        if_call(SYS_ioctl, 3);
        load_argument(1);
        put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SIOCGIFMTU, 0, 1));
        refuse(ENOTTY);
    }
    put((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 2, 0));
    put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsockopt, 1, 0));
    put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    for (unsigned i = 0; i < COUNT; i++) {
        if (!has(list, OPTIONS[i].name))
            continue;
        found++;
        load_argument(1);
        put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OPTIONS[i].level, 0, 3));
        load_argument(2);
        put((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OPTIONS[i].number, 0, 1));
        refuse(ENOPROTOOPT);
    }
    put((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    return found;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (unsigned i = 0; i < COUNT; i++)
            puts(OPTIONS[i].name);
        return 0;
    }
    if (argc < 3 || make_filter(argv[1]) == 0) {
        fputs("usage: no_option NAME,... COMMAND... | no_option list\n", stderr);
        return 2;
    }
    struct sock_fprog program = {(unsigned short)length, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        fprintf(stderr, "no_option: seccomp: %s\n", strerror(errno));
        return 77;
    }
    execvp(argv[2], argv + 2);
    fprintf(stderr, "no_option: %s: %s\n", argv[2], strerror(errno));
    return 127;
}
