/* SPDX-License-Identifier: Apache-2.0 */
#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

static void say_lost(const char *why)
{
    fprintf(stderr, "%s: error: cannot write to standard output: %s; what it printed is not complete\n", name, why);
}

/* The last of the handlers of exit(): the first that was registered. */
static void end(void)
{
    bool before = ferror(stdout); /* of which nobody kept the errno */
    if (fflush(stdout) == 0 && close(STDOUT_FILENO) == 0 && !before)
        return;
    say_lost(before ? "a line was lost before" : strerror(errno));
    _exit(EXIT_FAILURE);
}

/* Writes a message and dies of the signal, so that whoever waits sees it. */
static void interrupted(int signal)
{
    static const char text[] = ": error: interrupted; there is no result\n";
    ssize_t written = write(STDERR_FILENO, name, strlen(name));
    written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    raise(signal); /* its action is the default one again (SA_RESETHAND) */
}

/* Not where it is ignored, as under nohup. */
static void tell_interruptions(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction old, action = {.sa_handler = interrupted, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL);
}

void output_begin(const char *who)
{
    int closed = 0;
    name = who;
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        closed |= fd == STDOUT_FILENO;
        if (open("/dev/null", O_RDWR) != fd) /* the lowest that is free */
            _exit(EXIT_FAILURE);
    }
    if (closed) {
        say_lost("it is closed");
        _exit(EXIT_FAILURE);
    }
    atexit(end);
    tell_interruptions();
}

void output_check(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        exit(EXIT_FAILURE); /* which says so */
}
