/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of the messages of annexes, and the table of exports. */
#include "thread/control.h"

#include <criterion/criterion.h>
#include <string.h>

#include "uccl/engine.h"

static uint8_t bytes[CONTROL_BYTES_MAX + 1];

static size_t put(struct control control, uint64_t length, const char *payload)
{
    uint8_t *at = control_put_header(bytes, &control);
    for (unsigned i = 0; i < control.count; i++)
        at = control_put_piece(at, &(struct control_piece){{i + 1, i + 2, i + 3}, i + 4, length});
    memcpy(at, payload, strlen(payload));
    return (size_t)(at - bytes) + strlen(payload);
}

Test(control, a_write_byte_by_byte)
{
    static const uint8_t expected[] = {
        1,   15, 1, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0,                                                 /* header */
        9,   0,  0, 0, 8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, /* tail */
        1,   0,  0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, /* piece */
        'h', 'i'};
    struct control written = {.kind = CONTROL_WRITE,
                              .flags = CONTROL_FIRST | CONTROL_LAST | CONTROL_INLINE | CONTROL_SET,
                              .count = 1,
                              .id = 258,
                              .tail = {{9, 8, 7}, 6, 5}},
                   read;
    cr_assert_eq(put(written, 2, "hi"), sizeof expected);
    cr_assert(memcmp(bytes, expected, sizeof expected) == 0);
    cr_assert(control_parse(bytes, sizeof expected, &read));
    cr_assert(read.kind == CONTROL_WRITE && read.flags == written.flags && read.count == 1 && read.id == 258);
    cr_assert(memcmp(&read.tail, &written.tail, sizeof read.tail) == 0);
    cr_assert_eq(read.total, 2);
    cr_assert(memcmp(read.payload, "hi", 2) == 0);
    struct control_piece piece = control_piece(&read, 0);
    cr_assert(piece.ref.index == 1 && piece.ref.generation == 2 && piece.ref.nonce == 3);
    cr_assert(piece.offset == 4 && piece.length == 2);
    for (size_t length = 0; length < sizeof expected; length++)
        cr_assert(!control_parse(bytes, length, &read), "%zu bytes of it", length);
    cr_assert(!control_parse(bytes, sizeof expected + 1, &read));
}

Test(control, flags_that_do_not_fit)
{
    struct control read;
    for (unsigned kind = 0; kind < 6; kind++) {
        for (unsigned flags = 0; flags < 256; flags++) {
            bool tail = flags & (CONTROL_SET | CONTROL_ADD);
            size_t length = put((struct control){.kind = (uint8_t)kind, .flags = (uint8_t)flags}, 0, "");
            unsigned tails = !!(flags & CONTROL_SET) + !!(flags & CONTROL_ADD) + !!(flags & CONTROL_NOTE);
            bool last = flags & CONTROL_LAST, cancelled = flags & CONTROL_CANCELLED;
            bool good = kind == CONTROL_WRITE
                            ? flags < 128 && tails <= 1 && (last || (!tails && !cancelled)) && !(cancelled && tails)
                            : kind >= CONTROL_READ && kind <= CONTROL_DONE && flags == 0;
            cr_assert_eq(control_parse(bytes, length, &read), good, "kind %u, flags %u, tail %d", kind, flags, tail);
        }
    }
}

Test(control, pieces_that_do_not_fit)
{
    struct control read, written = {.kind = CONTROL_READ, .count = CONTROL_PIECES_MAX};
    cr_assert(control_parse(bytes, put(written, 1, ""), &read));
    cr_assert_eq(read.total, CONTROL_PIECES_MAX);
    cr_assert(!control_parse(bytes, put(written, UINT64_MAX / 2, ""), &read), "more bytes than there are");
    cr_assert(!control_parse(bytes, put(written, UINT64_MAX, ""), &read));
    written.count++;
    cr_assert(!control_parse(bytes, put(written, 1, ""), &read));
    written = (struct control){.kind = CONTROL_WRITE, .flags = CONTROL_INLINE, .count = 1};
    cr_assert(!control_parse(bytes, put(written, 3, "hi"), &read));
    cr_assert(!control_parse(bytes, put(written, 1, "hi"), &read));
}

Test(control, done)
{
    struct control read;
    uint8_t *at = control_put_header(bytes, &(struct control){.kind = CONTROL_DONE, .count = 5});
    at = control_put_done(at, UINT64_MAX, UCCL_OK);
    at = control_put_done(at, 5, UCCL_ECANCELED);
    at = control_put_done(at, 6, -1000);
    at = control_put_done(at, 7, UCCL_EPEERNOMEM);
    at = control_put_done(at, 8, UCCL_EIO);
    int32_t status;
    cr_assert(control_parse(bytes, (size_t)(at - bytes), &read));
    cr_assert(control_done(&read, 0, &status) == UINT64_MAX && status == UCCL_OK);
    cr_assert(control_done(&read, 1, &status) == 5 && status == UCCL_ECANCELED);
    cr_assert(control_done(&read, 2, &status) == 6 && status == UCCL_EACCESS, "only errors of ours");
    cr_assert(control_done(&read, 3, &status) == 7 && status == UCCL_EPEERNOMEM);
    cr_assert(control_done(&read, 4, &status) == 8 && status == UCCL_EIO);
    cr_assert(!control_parse(bytes, (size_t)(at - bytes) - 1, &read));
}

Test(control, notes)
{
    bool waits;
    uint64_t id;
    cr_assert_eq(note_put_header(bytes, true, 77), bytes + NOTE_HEADER_BYTES);
    cr_assert(note_parse(bytes, NOTE_HEADER_BYTES, &waits, &id) && waits && id == 77);
    cr_assert(!note_parse(bytes, NOTE_HEADER_BYTES - 1, &waits, &id));
    cr_assert(!note_parse(bytes, NOTE_HEADER_BYTES + UCCL_NOTIFY_MAX + 1, &waits, &id));
    bytes[0] = 2;
    cr_assert(!note_parse(bytes, NOTE_HEADER_BYTES, &waits, &id));
}

/* ---- exports ------------------------------------------------------------------------------------ */

Test(exports, an_access_needs_all_of_it)
{
    static struct exports exports;
    static uint8_t memory[100];
    struct exported *entry = export_add(
        &exports, &(struct exported){.base = memory, .length = 100, .access = UCCL_ACCESS_READ, .ref.nonce = 9});
    struct export_ref ref = entry->ref, wrong;
    cr_assert(ref.nonce == 9);
    cr_assert_eq(export_enter(&exports, &ref, UCCL_ACCESS_READ, 0, 100), entry);
    cr_assert(!export_is_idle(entry));
    export_leave(entry);
    cr_assert(export_enter(&exports, &ref, UCCL_ACCESS_READ, 100, 0));
    export_leave(entry);
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 0, 101));
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 99, 2));
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 101, 0));
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, UINT64_MAX, 2));
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 1, UINT64_MAX));
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_WRITE, 0, 1));
    wrong = ref, wrong.nonce++;
    cr_assert(!export_enter(&exports, &wrong, UCCL_ACCESS_READ, 0, 1));
    wrong = ref, wrong.generation++;
    cr_assert(!export_enter(&exports, &wrong, UCCL_ACCESS_READ, 0, 1));
    wrong = ref, wrong.index = 1;
    cr_assert(!export_enter(&exports, &wrong, UCCL_ACCESS_READ, 0, 1));
    wrong.index = UINT32_MAX;
    cr_assert(!export_enter(&exports, &wrong, UCCL_ACCESS_READ, 0, 1));
    cr_assert(export_is_idle(entry));
    export_revoke(entry);
    cr_assert(!export_holds(entry));
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 0, 1));
    export_remove(&exports, entry);
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 0, 1));
    /* its place is used again, under another name */
    struct exported *next = export_add(
        &exports, &(struct exported){.base = memory, .length = 1, .access = UCCL_ACCESS_READ, .ref.nonce = 9});
    cr_assert_eq(next, entry);
    cr_assert(!export_enter(&exports, &ref, UCCL_ACCESS_READ, 0, 1));
    cr_assert(export_enter(&exports, &next->ref, UCCL_ACCESS_READ, 0, 1));
    export_leave(next);
    exports_free(&exports);
}

Test(exports, as_many_as_there_are)
{
    static struct exports exports;
    static struct exported *all[EXPORTS_MAX];
    struct exported *entry;
    unsigned count = 0;
    for (; (entry = export_add(&exports, &(struct exported){.length = 1})); all[count++] = entry)
        cr_assert_eq(entry->ref.index, count);
    cr_assert_eq(count, EXPORTS_MAX);
    /* places that were given back are used again, however many, in whatever order */
    for (unsigned few = 1; few < EXPORTS_MAX; few *= 7) {
        for (unsigned i = 0; i < few; i++) {
            export_revoke(all[i * 5 % EXPORTS_MAX]);
            export_remove(&exports, all[i * 5 % EXPORTS_MAX]);
        }
        for (unsigned i = 0; i < few; i++) {
            entry = export_add(&exports, &(struct exported){.length = 1});
            cr_assert(entry && entry == all[entry->ref.index]);
        }
        cr_assert(!export_add(&exports, &(struct exported){.length = 1}));
    }
    exports_free(&exports);
}
