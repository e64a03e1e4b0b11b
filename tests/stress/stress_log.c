/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many threads write to the log while others change where it goes. A line always meets a function and
 * its own `user`, never one of another pair; lines come whole; and once uccl_set_log() has returned,
 * lines that start later go to the new place, and nobody uses what belonged to the old one.
 */
#include "stress.h"

#include "base/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { WRITERS = 6, SETTERS = 2, SINKS = 4 };

static unsigned rounds;
static _Atomic unsigned lines;
static _Atomic int over;

struct sink {
    unsigned index;
    _Atomic unsigned lines;
};

static struct sink sinks[SINKS] = {{.index = 0}, {.index = 1}, {.index = 2}, {.index = 3}};

static void take(unsigned index, void *user, enum uccl_log_level level, const char *text)
{
    struct sink *sink = user;
    unsigned thread, number;
    char rest[64];
    CHECK(sink == &sinks[index], "function %u has another's user", index);
    CHECK(level == UCCL_LOG_ERROR, "level %d", (int)level);
    CHECK(sscanf(text, "thread %u line %u %63s", &thread, &number, rest) == 3 && thread < WRITERS + 1 &&
              strcmp(rest, "whole") == 0,
          "a broken line: %s", text);
    atomic_fetch_add(&sink->lines, 1);
    atomic_fetch_add(&lines, 1);
}

#define TAKE(index)                                                                                                    \
    static void take_##index(void *user, enum uccl_log_level level, const char *text)                                  \
    {                                                                                                                  \
        take(index, user, level, text);                                                                                \
    }
TAKE(0)
TAKE(1)
TAKE(2)
TAKE(3)

static const uccl_log_fn functions[SINKS] = {take_0, take_1, take_2, take_3};

static void *write_lines(void *argument)
{
    unsigned index = *(unsigned *)argument;
    for (unsigned i = 0; i < rounds; i++) {
        log_write(NULL, UCCL_LOG_ERROR, "thread %u line %u %s", index, i, "whole");
        LOG_DBG("thread %u says what nobody wants to know", index);
    }
    return NULL;
}

static uint64_t random_of_setters;

static void *set_sinks(void *argument)
{
    uint64_t random = random_of_setters + *(unsigned *)argument;
    while (!atomic_load(&over)) {
        unsigned index = (unsigned)(random_next(&random) % SINKS);
        uccl_set_log(functions[index], &sinks[index]);
        if (random_next(&random) % 64 == 0)
            sleep_us(100);
    }
    return NULL;
}

/* ---- data that is freed once it was replaced ---- */

enum { ALIVE = 0x600d };

static void take_owned(void *user, enum uccl_log_level level, const char *text)
{
    volatile unsigned *owned = user;
    (void)level;
    (void)text;
    CHECK(*owned == ALIVE, "freed");
    if (text[0] == 'a') /* lines of some threads take longer */
        sleep_us(1);
    CHECK(*owned == ALIVE, "freed meanwhile");
}

static void *write_until_over(void *argument)
{
    unsigned index = *(unsigned *)argument;
    while (!atomic_load(&over))
        log_write(NULL, UCCL_LOG_ERROR, "%c", 'a' + (char)index);
    return NULL;
}

static void free_what_was_replaced(void)
{
    pthread_t writers[WRITERS];
    static unsigned indices[WRITERS];
    volatile unsigned *owned = NULL;
    atomic_store(&over, 0);
    uccl_set_log(take_0, &sinks[0]);
    for (unsigned i = 0; i < rounds / 20; i++) {
        volatile unsigned *next = malloc(sizeof *next);
        CHECK(next, "malloc");
        *next = ALIVE;
        uccl_set_log(take_owned, (void *)(uintptr_t)next);
        if (owned)
            *owned = 0;
        free((void *)(uintptr_t)owned);
        owned = next;
        for (unsigned j = 0; i == 0 && j < WRITERS; j++) {
            indices[j] = j;
            CHECK(pthread_create(&writers[j], NULL, write_until_over, &indices[j]) == 0, "pthread_create");
        }
    }
    atomic_store(&over, 1);
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    uccl_set_log(functions[0], &sinks[0]);
    free((void *)(uintptr_t)owned);
}

enum { CASES = 1 };

int main(int argc, char **argv)
{
    begin_cases(CASES);
    uint64_t seed = seed_of(argc, argv);
    pthread_t writers[WRITERS], setters[SETTERS];
    static unsigned indices[WRITERS + SETTERS];
    rounds = SANITIZED ? 20000 : 200000;
    random_of_setters = seed;
    log_set_level(UCCL_LOG_WARN);
    uccl_set_log(functions[0], &sinks[0]);
    for (unsigned i = 0; i < WRITERS + SETTERS; i++) {
        indices[i] = i;
        pthread_t *thread = i < WRITERS ? &writers[i] : &setters[i - WRITERS];
        CHECK(pthread_create(thread, NULL, i < WRITERS ? write_lines : set_sinks, &indices[i]) == 0, "pthread_create");
    }
    for (unsigned i = 0; i < WRITERS; i++)
        pthread_join(writers[i], NULL);
    atomic_store(&over, 1);
    for (unsigned i = 0; i < SETTERS; i++)
        pthread_join(setters[i], NULL);
    CHECK(atomic_load(&lines) == WRITERS * rounds, "%u of %u lines came", atomic_load(&lines), WRITERS * rounds);
    for (unsigned i = 0; i < 1000; i++) {
        struct sink *sink = &sinks[i % SINKS];
        unsigned before = atomic_load(&sink->lines);
        uccl_set_log(functions[i % SINKS], sink);
        log_write(NULL, UCCL_LOG_ERROR, "thread %u line %u %s", (unsigned)WRITERS, i, "whole");
        CHECK(atomic_load(&sink->lines) == before + 1, "a line went to the old place");
    }
    free_what_was_replaced();
    end_case("%u lines", atomic_load(&lines));
    return 0;
}
