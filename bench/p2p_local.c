/* SPDX-License-Identifier: Apache-2.0 */
/* See p2p_local.h. The server is killed when this process ends in any way. */
#include "p2p_local.h"

#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t local_server; /* 0: none */

static void kill_local_server(void)
{
    if (local_server > 0) {
        kill(local_server, SIGKILL);
        waitpid(local_server, NULL, 0);
    }
}

/* In the child: becomes the server. Its lines would double ours, so only its errors are shown. */
static void exec_server(uint16_t want_port, bool log_info, int report_fd, pid_t parent)
{
    char port[32], report[32];
    char *arguments[] = {
        (char[]){"p2p_bench"}, (char[]){"--server"}, port, report, log_info ? (char[]){"--logtostderr"} : NULL, NULL};
    snprintf(port, sizeof(port), "--oobport=%u", want_port);
    snprintf(report, sizeof(report), "--report-fd=%d", report_fd);
    int null = open("/dev/null", O_WRONLY);
    if (null < 0 || dup2(null, STDOUT_FILENO) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        fprintf(stderr, "[Server] error: /dev/null: %s\n", strerror(errno));
        _exit(126);
    }
    if (getppid() != parent)
        _exit(126);
    char self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (length > 0) {
        self[length] = '\0';
        execv(self, arguments); /* by its name, which ps and pgrep then show */
    }
    execv("/proc/self/exe", arguments);         /* the file has been replaced since */
    execvp(program_invocation_name, arguments); /* no /proc here */
    fprintf(stderr, "[Server] error: cannot start %s: %s\n", program_invocation_name, strerror(errno));
    _exit(127);
}

static const char *status_text(int status, char out[64])
{
    if (WIFSIGNALED(status))
        snprintf(out, 64, "was killed by signal %d", WTERMSIG(status));
    else
        snprintf(out, 64, "ended with status %d", WEXITSTATUS(status));
    return out;
}

uint16_t local_start(uint16_t want_port, bool log_info)
{
    int fds[2], status = 0;
    uint16_t port = 0;
    char text[64];
    pid_t parent = getpid();
    if (pipe(fds) != 0)
        tool_fail("cannot start the server process: %s", strerror(errno));
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        tool_fail("cannot start the server process: %s", strerror(errno));
    if (child == 0) {
        close(fds[0]);
        exec_server(want_port, log_info, fds[1], parent);
    }
    close(fds[1]);
    local_server = child;
    atexit(kill_local_server);
    ssize_t got;
    while ((got = read(fds[0], &port, sizeof(port))) < 0 && errno == EINTR)
        ;
    close(fds[0]);
    if (got != sizeof(port)) {
        waitpid(child, &status, 0);
        local_server = 0;
        tool_fail("the server process %s before it listened", status_text(status, text));
    }
    return port;
}

const char *local_host(void)
{
    struct sockaddr_in ipv4 = {.sin_family = AF_INET, .sin_port = 1, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* to connect it sends nothing */
    bool there = fd >= 0 && connect(fd, (const struct sockaddr *)&ipv4, sizeof(ipv4)) == 0;
    if (fd >= 0)
        close(fd);
    return there ? "127.0.0.1" : "::1";
}

int local_end(void)
{
    int status = 0;
    char text[64];
    pid_t child = local_server, got;
    while ((got = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    local_server = 0;
    if (got == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return EXIT_SUCCESS;
    fprintf(stderr, "[Client] error: the server process %s\n", status_text(status, text));
    return EXIT_FAILURE;
}
