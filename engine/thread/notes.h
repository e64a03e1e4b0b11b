/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notifications that have arrived at an engine, over all of its connections, until the application takes them.
 *
 * Threads: any; the lock covers everything.
 */
#ifndef UCCL_NOTES_H
#define UCCL_NOTES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct onesided;

struct note {
    struct note *next;
    struct onesided *from;
    size_t length;
    uint8_t bytes[];
};

enum { NOTES_WAITING_MAX = 1 << 20 }; /* bytes that wait, per connection; each note counts NOTE_COST more */
enum { NOTE_COST = 64 };

struct notes {
    pthread_mutex_t lock;
    struct note *head, *tail;
    int fd; /* readable while there are some; -1: not made yet */
};

/* What wait of one connection. Under the lock. */
struct notes_waiting {
    uint64_t bytes;
    bool early; /* the application does not have the connection yet */
    bool full;  /* the engine thread waits until some are taken, or until the application has the connection */
    bool again; /* there is no memory, and none waits that could be taken: to be tried again. The engine thread's */
    bool over;  /* the application has closed it: what still comes is dropped */
};

void notes_init(struct notes *notes);
void notes_free(struct notes *notes);
/* The descriptor, or an error. */
int notes_fd(struct notes *notes);

/* Appends a notification of a connection. False: as many wait as may, or there is no memory (`waiting`). */
bool notes_add(struct notes *notes, struct onesided *from, struct notes_waiting *waiting, const void *bytes,
               size_t length);
/* Takes the head off, which the caller frees. Under the lock. */
struct note *notes_take(struct notes *notes);
/* Drops all of a connection, and what comes later. */
void notes_drop(struct notes *notes, const struct onesided *from, struct notes_waiting *waiting);

#endif
