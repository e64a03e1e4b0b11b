/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process-wide log. The problem: any thread may write a line while another one changes the callback. No
 * line may reach one caller's function with another caller's `user`. Once the callback has been replaced, no thread
 * may be inside the old one, so that its data can be freed. Yet writing takes no lock.
 *
 * So the pair of function and `user` lives in one of two slots, and `current` names the slot in force. A reader, a
 * thread with a line to write, counts itself into the slot, checks that the slot is still in force, calls, and counts
 * itself out. log_replace() fills the other slot, puts it in force, and waits until the old one is empty. Invariants:
 * nobody writes a slot in force; without a log_replace() under way the other slot is empty.
 *
 * Why no reader meets a slot that is being filled: both sides first write (the reader its count, the setter `current`)
 * and then read the other's variable, all sequentially consistent, so at least one of them sees the other. A reader
 * that sees a changed `current` backs off without reading the pair; a setter that sees a count waits for it.
 *
 * A callback that replaced the callback would wait for itself, and two of them for each other. So inside the callback
 * log_set_callback() only notes the new pair, and the thread replaces the old one once it is outside. Lines that a
 * callback causes go to stderr: otherwise it would call itself without end.
 */
#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process.h"
#include "base/race_point.h"
#include "base/unsignalled.h"

enum {
    LOG_TEXT_MAX = 1024,  /* bytes of a message with its NUL */
    LOG_NAP_NS = 50000,   /* between two looks whether a callback has returned */
    LOG_PATIENCE_MS = 20, /* with a stderr that has taken all so far */
};

struct sink {
    uccl_log_fn fn; /* NULL: stderr */
    void *user;
};

struct slot {
    atomic_uint readers; /* threads inside the callback, or about to check `current` */
    struct sink sink;
};

static struct slot slots[2];
static _Atomic(struct slot *) current = &slots[0];
static pthread_mutex_t set_lock = PTHREAD_MUTEX_INITIALIZER; /* for setters only */
static atomic_int level_now = UCCL_LOG_WARN;
static atomic_uint lines_lost; /* since stderr took one; guards nothing */

/* The calling thread: */
static _Thread_local struct {
    struct slot *inside; /* the callback of this slot; NULL: none */
    bool replaces;       /* the thread puts `next` in force once it is outside */
    struct sink next;
} mine;

/* Relaxed: the level guards no other data; a line more or less around a change does no harm. */
void log_set_level(enum uccl_log_level level)
{
    atomic_store_explicit(&level_now, (int)level, memory_order_relaxed);
}

enum uccl_log_level log_level(void)
{
    return (enum uccl_log_level)atomic_load_explicit(&level_now, memory_order_relaxed);
}

/* Puts `sink` in force and waits until no thread is inside the old one. Not from inside a callback. */
static void log_replace(struct sink sink)
{
    struct timespec nap = {0, LOG_NAP_NS};
    pthread_mutex_lock(&set_lock);
    struct slot *old = atomic_load(&current);
    struct slot *slot = old == &slots[0] ? &slots[1] : &slots[0];
    /* A reader that came too late may still be about to leave this slot. Both loops pair with the counting in
     * log_enter(); reading 0 also makes the callback's effects visible. */
    while (atomic_load(&slot->readers))
        nanosleep(&nap, NULL);
    RACE_POINT();
    slot->sink = sink;
    RACE_POINT();
    atomic_store(&current, slot); /* pairs with the loads in log_enter() */
    RACE_POINT();
    while (atomic_load(&old->readers))
        nanosleep(&nap, NULL);
    pthread_mutex_unlock(&set_lock);
}

/* In a child of fork() only the calling thread can be inside the callback. */
static void log_in_child(void)
{
    for (unsigned i = 0; i < 2; i++)
        atomic_store(&slots[i].readers, mine.inside == &slots[i]);
    pthread_mutex_init(&set_lock, NULL);
}

static void log_watch_forks(void)
{
    process_in_child(log_in_child);
}

static pthread_once_t forks_watched = PTHREAD_ONCE_INIT;

void log_set_callback(uccl_log_fn fn, void *user)
{
    struct sink sink = {fn, user};
    pthread_once(&forks_watched, log_watch_forks);
    if (mine.inside) {
        mine.next = sink;
        mine.replaces = true;
    } else {
        log_replace(sink);
    }
}

/* The slot in force. It stays filled until the caller decrements its count. */
static struct slot *log_enter(void)
{
    for (;;) {
        struct slot *slot = atomic_load(&current);
        RACE_POINT();
        atomic_fetch_add(&slot->readers, 1); /* pairs with the loads of readers in log_replace() */
        RACE_POINT();
        if (atomic_load(&current) == slot)
            return slot;
        atomic_fetch_sub(&slot->readers, 1); /* a setter was faster: try again */
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

/* Lines contain values, names and strings of peers: none may start another line. */
static void make_one_line(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = ' ';
}

/*
 * Whether stderr takes a line, perhaps after a moment. A pipe or a terminal that nobody reads never does: write() would
 * stop an engine thread, and with it all its peers.
 */
static bool stderr_takes_one(void)
{
    struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
    for (int tries = 0; tries < 3; tries++) { /* signals may interrupt each */
        bool waits = tries == 0 && !atomic_load_explicit(&lines_lost, memory_order_relaxed);
        int ready = poll(&fd, 1, waits ? LOG_PATIENCE_MS : 0);
        if (ready >= 0 || errno != EINTR)
            return ready != 0; /* a failure: write() may find another one */
    }
    return false;
}

/* One write(), so that lines of several threads do not mix. Its failure can be reported nowhere. */
static void write_stderr(enum uccl_log_level level, const char *text)
{
    char line[LOG_TEXT_MAX + 128];
    if (!stderr_takes_one()) {
        atomic_fetch_add_explicit(&lines_lost, 1, memory_order_relaxed);
        return;
    }
    unsigned lost = atomic_exchange_explicit(&lines_lost, 0, memory_order_relaxed);
    int length =
        lost ? snprintf(line, sizeof line, "uccl: warning: stderr took no more: %u lines are lost\n", lost) : 0;
    length += snprintf(line + length, sizeof line - (size_t)length, "uccl: %s: %s\n", level_name(level), text);
    write_unsignalled(line, (size_t)length);
}

static void log_tell(enum uccl_log_level level, const char *text)
{
    CANCEL_LATER;
    pthread_once(&forks_watched, log_watch_forks);
    if (mine.inside) {
        write_stderr(level, text);
        return;
    }
    struct slot *slot = mine.inside = log_enter();
    RACE_POINT();
    if (slot->sink.fn)
        slot->sink.fn(slot->sink.user, level, text);
    else
        write_stderr(level, text);
    mine.inside = NULL;
    RACE_POINT();
    atomic_fetch_sub(&slot->readers, 1); /* pairs with the loads in log_replace(): the callback's effects are visible */
    if (mine.replaces) {
        mine.replaces = false;
        log_replace(mine.next);
    }
}

bool log_may(struct log_budget *budget, enum uccl_log_level level)
{
    if (level > UCCL_LOG_WARN)
        return true;
    uint64_t now_ns = clock_now_ns(), spent_ns = atomic_load_explicit(&budget->spent_ns, memory_order_relaxed), next_ns;
    do {
        if (spent_ns > now_ns + (LOG_BURST_LINES - 1) * LOG_INTERVAL_NS) {
            atomic_fetch_add_explicit(&budget->left_out, 1, memory_order_relaxed);
            return false;
        }
        next_ns = (spent_ns > now_ns ? spent_ns : now_ns) + LOG_INTERVAL_NS;
    } while (!atomic_compare_exchange_weak_explicit(&budget->spent_ns, &spent_ns, next_ns, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

/* Adds how many lines of this kind were left out. */
static void tell_left_out(struct log_budget *budget, char text[LOG_TEXT_MAX])
{
    char note[64];
    unsigned left_out = budget ? atomic_exchange_explicit(&budget->left_out, 0, memory_order_relaxed) : 0;
    if (left_out == 0)
        return;
    size_t bytes = (size_t)snprintf(note, sizeof note, " (%u such lines before it were left out)", left_out) + 1;
    size_t at = strlen(text), most = LOG_TEXT_MAX - bytes;
    memcpy(text + (at < most ? at : most), note, bytes);
}

void log_write(struct log_budget *budget, enum uccl_log_level level, const char *format, ...)
{
    int errno_kept = errno; /* callers log a failure and then act on its errno */
    char text[LOG_TEXT_MAX];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    if (length < 0)
        snprintf(text, sizeof text, "(a message that could not be formatted) %s", format);
    else if ((size_t)length >= sizeof text)
        memcpy(text + sizeof text - sizeof "...", "...", sizeof "...");
    tell_left_out(budget, text);
    make_one_line(text);

    log_tell(level, text);
    errno = errno_kept;
}
