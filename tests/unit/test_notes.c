/* SPDX-License-Identifier: Apache-2.0 */
/* The notifications that wait at an engine: their order, whose they are, and the descriptor that tells of them. */
#include "thread/notes.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>

static struct notes notes;
static struct notes_waiting waiting[3];
static int peers[3]; /* their addresses stand for connections */

static struct onesided *from(unsigned i)
{
    return (struct onesided *)(void *)&peers[i];
}

static void add(unsigned i, uint8_t byte)
{
    cr_assert(notes_add(&notes, from(i), &waiting[i], &byte, 1));
}

static void expect(unsigned i, uint8_t byte)
{
    struct note *note = notes.head;
    cr_assert_not_null(note);
    cr_assert_eq(notes_take(&notes), note);
    cr_assert(note->from == from(i) && note->length == 1 && note->bytes[0] == byte, "byte %u", note->bytes[0]);
    waiting[i].bytes -= note->length + NOTE_COST; /* as uccl_notify_next() does */
    free(note);
}

static bool readable(int fd)
{
    struct pollfd look = {.fd = fd, .events = POLLIN};
    return poll(&look, 1, 0) == 1;
}

Test(notes, keep_their_order_when_some_are_dropped, .timeout = 20)
{
    notes_init(&notes);
    add(0, 1), add(1, 2), add(0, 3), add(1, 4);
    notes_drop(&notes, from(1), &waiting[1]); /* the last, too: what comes is appended to another */
    add(0, 5), add(1, 6), add(2, 7);
    expect(0, 1), expect(0, 3), expect(0, 5), expect(2, 7);
    cr_assert_null(notes.head);
    add(2, 8);
    notes_drop(&notes, from(2), &waiting[2]);
    add(0, 9);
    expect(0, 9);
    notes_free(&notes);
}

Test(notes, the_descriptor_is_readable_while_some_wait, .timeout = 20)
{
    notes_init(&notes);
    add(0, 1), add(1, 2);
    int fd = notes_fd(&notes); /* made when some wait already */
    cr_assert(fd >= 0 && readable(fd));
    cr_assert_eq(notes_fd(&notes), fd);
    expect(0, 1);
    cr_assert(readable(fd));
    expect(1, 2);
    cr_assert_not(readable(fd));
    add(0, 3), add(1, 4);
    notes_drop(&notes, from(0), &waiting[0]);
    cr_assert(readable(fd));
    notes_drop(&notes, from(1), &waiting[1]);
    cr_assert_not(readable(fd));
    notes_free(&notes);
}

/* However many wait, the end of a connection costs what its own cost: who goes through the others crashes. */
Test(notes, an_end_looks_no_further_than_its_last, .timeout = 20)
{
    void *shut = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shut, MAP_FAILED);
    notes_init(&notes);
    add(0, 1), add(1, 2), add(0, 3);
    struct note *first = notes.head, *last = notes.tail, *second = first->next;
    first->next = shut;
    notes_drop(&notes, from(2), &waiting[2]); /* has none */
    first->next = second;
    last->next = shut;
    notes_drop(&notes, from(1), &waiting[1]);
    last->next = NULL;
    expect(0, 1), expect(0, 3);
    munmap(shut, 4096);
    notes_free(&notes);
}
