/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process-wide log. The problem: any thread may write a line while another one changes the
 * callback, and a line must never meet one caller's function with another caller's `user`, yet
 * writing takes no lock.
 *
 * So the pair lives in one of a few slots, and `current` names the slot in force. A writer of lines
 * counts itself into the slot, checks that the slot is still in force, copies the pair and counts
 * itself out before it calls the callback. uccl_set_log() fills a slot that is neither in force nor
 * counted into, then puts it in force. Invariant: a slot in force is never written.
 *
 * Why no reader copies a slot that is being filled: both sides first write (the reader its count,
 * the setter `current`) and then read what the other wrote, all sequentially consistent, so at
 * least one of them sees the other. A reader that sees a changed `current` backs off without
 * reading the pair; a setter that sees a count chooses another slot.
 */
#include "log.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../api/export.h"

enum {
    LOG_TEXT_MAX = 1024, /* bytes of a message with its NUL */
    LOG_SLOTS = 4,       /* one in force; more than one spare, so that setters rarely wait */
};

struct sink {
    uccl_log_fn fn; /* NULL: stderr */
    void *user;
};

struct slot {
    atomic_uint readers; /* threads that are copying the pair, for a few instructions each */
    struct sink sink;
};

static struct slot slots[LOG_SLOTS];
static _Atomic(struct slot *) current = &slots[0];
static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER; /* setters only */
static atomic_int level_now = UCCL_LOG_WARN;

/* Relaxed: the level guards no other data, and a message more or less around a change is fine. */
void log_set_level(enum uccl_log_level level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

enum uccl_log_level log_level(void)
{
    return (enum uccl_log_level)atomic_load_explicit(&level_now, memory_order_relaxed);
}

UCCL_API void uccl_set_log(uccl_log_fn fn, void *user)
{
    pthread_mutex_lock(&set_lock);
    struct slot *old = atomic_load(&current);
    struct slot *slot = old;
    /* Ends: a count on a spare slot is a reader about to leave it. Pairs with the counting in
     * sink_now(); reading 0 also means that the last reader's copy is over. */
    for (unsigned i = 0; slot == old || atomic_load(&slot->readers) != 0; i++) {
        if (i >= LOG_SLOTS)
            sched_yield();
        slot = &slots[i % LOG_SLOTS];
    }
    slot->sink = (struct sink){fn, user};
    atomic_store(&current, slot); /* pairs with the loads in sink_now() */
    pthread_mutex_unlock(&set_lock);
}

static struct sink sink_now(void)
{
    for (;;) {
        struct slot *slot = atomic_load(&current);
        atomic_fetch_add(&slot->readers, 1); /* pairs with the load of readers in uccl_set_log() */
        bool in_force = atomic_load(&current) == slot;
        struct sink sink = {NULL, NULL};
        if (in_force)
            sink = slot->sink;
        atomic_fetch_sub(&slot->readers, 1);
        if (in_force) /* else a setter was faster; it has made progress, so try again */
            return sink;
    }
}

static const char *level_name(enum uccl_log_level level)
{
    switch (level) {
    case UCCL_LOG_ERROR:
        return "error";
    case UCCL_LOG_WARN:
        return "warning";
    case UCCL_LOG_INFO:
        return "info";
    case UCCL_LOG_DEBUG:
    case UCCL_LOG_NONE:
        break;
    }
    return "debug";
}

/* Values, names and peers' strings end up in messages: none may start a line of its own. */
static void make_one_line(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
}

/* One write, so that lines of several threads do not mix. Nobody is left to tell if it fails. */
static void write_stderr(enum uccl_log_level level, const char *text)
{
    char line[LOG_TEXT_MAX + 32];
    int length = snprintf(line, sizeof line, "uccl: %s: %s\n", level_name(level), text);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    (void)written;
}

void log_write(enum uccl_log_level level, const char *format, ...)
{
    int errno_kept = errno; /* callers report a failure and then act on its errno */
    char text[LOG_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    if (length < 0)
        snprintf(text, sizeof text, "(a message that could not be formatted) %s", format);
    else if ((size_t)length >= sizeof text)
        memcpy(text + sizeof text - sizeof "...", "...", sizeof "...");
    make_one_line(text);

    struct sink sink = sink_now();
    if (sink.fn)
        sink.fn(sink.user, level, text);
    else
        write_stderr(level, text);
    errno = errno_kept;
}
