/* SPDX-License-Identifier: Apache-2.0 */
#include "thread/notes.h"

#include "base/descriptor.h"
#include "base/fault.h"
#include "base/log.h"
#include "uccl/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

void notes_init(struct notes *notes)
{
    *notes = (struct notes){.fd = -1};
    pthread_mutex_init(&notes->lock, NULL);
}

void notes_free(struct notes *notes)
{
    /* in a child of fork() another thread may have been changing the list: it is left then */
    bool whole = pthread_mutex_trylock(&notes->lock) == 0;
    while (whole && notes->head) {
        struct note *note = notes->head;
        notes->head = note->next;
        free(note);
    }
    if (whole)
        pthread_mutex_unlock(&notes->lock);
    if (notes->fd >= 0)
        close(notes->fd);
    pthread_mutex_destroy(&notes->lock);
}

static void make_readable(const struct notes *notes)
{
    uint64_t one = 1;
    ssize_t written = write(notes->fd, &one, sizeof one);
    (void)written; /* a full counter is readable as well */
}

int notes_fd(struct notes *notes)
{
    pthread_mutex_lock(&notes->lock);
    if (notes->fd < 0) {
        notes->fd = descriptor_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (notes->fd >= 0 && notes->head)
            make_readable(notes);
    }
    int fd = notes->fd, error = errno;
    pthread_mutex_unlock(&notes->lock);
    if (fd >= 0)
        return fd;
    char text[FAULT_TEXT];
    LOG_ERR("cannot make an event descriptor: %s", fault_text(error, text));
    return fault_error(error);
}

bool notes_add(struct notes *notes, struct onesided *from, struct notes_waiting *waiting, const void *bytes,
               size_t length)
{
    pthread_mutex_lock(&notes->lock);
    struct note *note = NULL;
    bool over = waiting->over;
    if (!over && !waiting->early && waiting->bytes < NOTES_WAITING_MAX)
        note = malloc(sizeof *note + length);
    waiting->full = !over && !note && (waiting->early || waiting->bytes);
    waiting->again = !over && !note && !waiting->full;
    if (note) {
        *note = (struct note){.from = from, .length = length};
        memcpy(note->bytes, bytes, length);
        waiting->bytes += length + NOTE_COST;
        if (notes->head)
            notes->tail->next = note;
        else
            notes->head = note;
        notes->tail = note;
        if (notes->head == note && notes->fd >= 0)
            make_readable(notes);
    }
    pthread_mutex_unlock(&notes->lock);
    return note || over;
}

/* The queue has become empty. */
static void make_unreadable(const struct notes *notes)
{
    uint64_t count;
    if (notes->fd < 0)
        return;
    ssize_t got = read(notes->fd, &count, sizeof count);
    (void)got;
}

struct note *notes_take(struct notes *notes)
{
    struct note *note = notes->head;
    notes->head = note->next;
    if (!notes->head)
        make_unreadable(notes);
    return note;
}

void notes_drop(struct notes *notes, const struct onesided *from, struct notes_waiting *waiting)
{
    struct note *before = NULL;
    pthread_mutex_lock(&notes->lock);
    bool some = notes->head;
    waiting->over = true;
    /* no further than its last: those of others may be very many */
    for (struct note **link = &notes->head, *note; waiting->bytes && (note = *link);) {
        if (note->from != from) {
            before = note;
            link = &note->next;
            continue;
        }
        *link = note->next;
        if (notes->tail == note)
            notes->tail = before;
        waiting->bytes -= note->length + NOTE_COST;
        free(note);
    }
    if (some && !notes->head)
        make_unreadable(notes);
    pthread_mutex_unlock(&notes->lock);
}
