/* SPDX-License-Identifier: Apache-2.0 */
/* One-sided operations through the public calls: what moves, in which order, and what is refused. */
#include "onesided_pair.h"

#include "../../api/objects.h"

#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { MB = 1 << 20 };

BOTH(onesided, writes_of_every_size)
{
    static const size_t sizes[] = {0, 1, 7, 8, 4096, 8191, 8192, 8193, 65536, 100001, MB, 5 * MB + 3};
    struct one one;
    one_open(&one, lend, 6 * MB, UCCL_ACCESS_WRITE);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(one.memory, 0, one.bytes);
        fill(one.local, sizes[i], i);
        cr_assert_eq(end_of(post_write(&one, 0, sizes[i], 13), 0), sizes[i]);
        check(one.memory + 13, sizes[i], i);
        for (size_t at = 0; at < 13; at++)
            cr_assert_eq(one.memory[at], 0);
        for (size_t at = 13 + sizes[i]; at < 13 + sizes[i] + 64; at++)
            cr_assert_eq(one.memory[at], 0, "%zu: byte %zu", sizes[i], at);
    }
    one_close(&one);
}

BOTH(onesided, reads_of_every_size)
{
    static const size_t sizes[] = {0, 1, 8, 8192, 8193, 65536, 100001, MB, 5 * MB + 3};
    struct one one;
    one_open(&one, lend, 6 * MB, UCCL_ACCESS_READ);
    fill(one.memory, one.bytes, 3);
    for (unsigned i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        memset(one.local, 0xee, one.bytes);
        cr_assert_eq(end_of(post_read(&one, 5, sizes[i], 77), 0), sizes[i]);
        for (size_t at = 0; at < sizes[i]; at++)
            cr_assert_eq(one.local[5 + at], content(3, 77 + at));
        cr_assert_eq(one.local[4], 0xee);
        cr_assert_eq(one.local[5 + sizes[i]], 0xee);
    }
    one_close(&one);
}

/* Pieces of all sizes, in an order of their own on either side. */
BOTH(onesided, vectors)
{
    enum { COUNT = 1000, STEP = 5000 };
    struct one one;
    one_open(&one, lend, COUNT * STEP, ALL);
    struct uccl_piece *pieces = calloc(COUNT, sizeof *pieces);
    size_t total = 0;
    for (unsigned i = 0; i < COUNT; i++) {
        size_t length = i % 10 == 3 ? 0 : i % 97 == 1 ? STEP : (i * 37) % STEP;
        pieces[i] = piece_of(&one, (size_t)i * STEP, length, (uint64_t)(i * 7 % COUNT) * STEP);
        fill(one.local + (size_t)i * STEP, length, i);
        total += length;
    }
    cr_assert_eq(end_of(post_pieces(&one, true, pieces, COUNT, NULL), 0), total);
    for (unsigned i = 0; i < COUNT; i++) {
        check(one.memory + pieces[i].offset, pieces[i].length, i);
        for (size_t at = pieces[i].length; at < STEP; at++)
            cr_assert_eq(one.memory[pieces[i].offset + at], 0);
    }
    memset(one.local, 0xee, one.bytes);
    cr_assert_eq(end_of(post_pieces(&one, false, pieces, COUNT, NULL), 0), total);
    for (unsigned i = 0; i < COUNT; i++) {
        check(one.local + (size_t)i * STEP, pieces[i].length, i);
        for (size_t at = pieces[i].length; at < STEP; at++)
            cr_assert_eq(one.local[(size_t)i * STEP + at], 0xee);
    }
    free(pieces);
    one_close(&one);
}

BOTH(onesided, both_sides_at_the_same_time)
{
    enum { COUNT = 40, BYTES = 300000 };
    struct one one;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_export *exported;
    uccl_remote *remote;
    uccl_request *requests[3 * COUNT];
    one_open(&one, lend, 2 * BYTES, ALL);
    IS(uccl_export_mr(one.mr[0], one.local, one.bytes, ALL, ref, &exported), 0);
    IS(uccl_import(one.pair.conn[1], ref, &remote), 0);
    fill(one.local, BYTES, 1);
    fill(one.memory + BYTES, BYTES, 2);
    for (unsigned i = 0; i < COUNT; i++) {
        struct uccl_piece back = {.local = one.memory + BYTES, .length = BYTES, .remote = remote, .offset = BYTES};
        requests[3 * i] = post_write(&one, 0, BYTES, 0);
        IS(uccl_write_async(one.pair.conn[1], &back, 1, NULL, &requests[3 * i + 1]), 0);
        IS(uccl_send_async(one.pair.conn[0], one.local, i, NULL, &requests[3 * i + 2]), 0);
    }
    uint8_t buffer[COUNT];
    for (unsigned i = 0; i < COUNT; i++)
        cr_assert_eq(end_of(post_recv(one.pair.conn[1], buffer, sizeof buffer), 0), i);
    for (unsigned i = 0; i < 3 * COUNT; i++)
        end_of(requests[i], 0);
    check(one.memory, BYTES, 1);
    check(one.local + BYTES, BYTES, 2);
    IS(uccl_remote_free(remote), 0);
    one_close(&one);
}

/* ---- what is refused ---------------------------------------------------------------------------- */

BOTH(onesided, range_right_and_reference_are_checked)
{
    struct one one;
    one_open(&one, lend, MB, UCCL_ACCESS_WRITE);
    static const struct {
        uint64_t offset;
        size_t length;
    } beyond[] = {{MB, 1}, {MB - 9, 10}, {MB - 9000, 9001}, {UINT64_MAX, 1}, {UINT64_MAX - 3, 8}, {0, MB + 1 - 1 + 0}};
    uint8_t *large = malloc(2 * MB);
    for (unsigned i = 0; i < 5; i++) {
        struct uccl_piece piece = {
            .local = large, .length = beyond[i].length, .remote = one.remote, .offset = beyond[i].offset};
        end_of(post_pieces(&one, true, &piece, 1, NULL), UCCL_EACCESS);
    }
    struct uccl_piece all = {.local = large, .length = MB + 1, .remote = one.remote};
    end_of(post_pieces(&one, true, &all, 1, NULL), UCCL_EACCESS);
    end_of(post_read(&one, 0, 8, 0), UCCL_EACCESS);
    end_of(post_read(&one, 0, MB, 0), UCCL_EACCESS);
    for (size_t i = 0; i < one.bytes; i++)
        cr_assert_eq(one.memory[i], 0);
    /* the connection goes on */
    memset(one.local, 9, 100);
    end_of(post_write(&one, 0, 100, MB - 100), 0);
    cr_assert_eq(one.memory[MB - 1], 9);
    free(large);
    one_close(&one);
}

/* One bad piece among good ones: an error, and no byte outside the export. */
BOTH(onesided, one_bad_piece)
{
    enum { COUNT = 200, BYTES = 5000 };
    struct one one;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_export *half;
    uccl_remote *remote;
    one_open(&one, lend, MB, ALL);
    IS(uccl_export_mr(one.mr[1], one.memory, MB / 2, ALL, ref, &half), 0);
    IS(uccl_import(one.pair.conn[0], ref, &remote), 0);
    struct uccl_piece pieces[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        pieces[i] = piece_of(&one, 0, BYTES, 1000);
        pieces[i].remote = remote;
    }
    pieces[150].offset = MB / 2 - BYTES + 1;
    struct uccl_tail tail = {.kind = UCCL_TAIL_SET, .remote = remote, .offset = 8, .value = 1};
    end_of(post_pieces(&one, true, pieces, COUNT, &tail), UCCL_EACCESS);
    end_of(post_pieces(&one, false, pieces, COUNT, &tail), UCCL_EACCESS);
    cr_assert_eq(one.memory[8], 0, "the tail of a failed operation");
    for (size_t i = MB / 2; i < MB; i++)
        cr_assert_eq(one.memory[i], 0);
    IS(uccl_remote_free(remote), 0);
    one_close(&one);
}

Test(onesided, references, .timeout = TIMEOUT_S)
{
    struct one one;
    uccl_remote *remote;
    one_open(&one, "no", 4096, ALL);
    struct uccl_remote_info info;
    IS(uccl_remote_get_info(one.remote, &info), 0);
    cr_assert_eq(info.address, (uintptr_t)one.memory);
    cr_assert_eq(info.length, 4096);
    cr_assert_eq(info.access, ALL);
    cr_assert_eq(info.is_host, 1);
    for (unsigned i = 0; i < UCCL_REF_BYTES; i++) {
        uint8_t ref[UCCL_REF_BYTES];
        memcpy(ref, one.ref, sizeof ref);
        ref[i] ^= 0x10;
        IS(uccl_import(one.pair.conn[0], ref, &remote), UCCL_EINVAL);
    }
    IS(uccl_import(one.pair.conn[1], one.ref, &remote), UCCL_EACCESS); /* that engine's own memory */
    IS(uccl_import(NULL, one.ref, &remote), UCCL_EINVAL);
    IS(uccl_import(one.pair.conn[0], NULL, &remote), UCCL_EINVAL);
    IS(uccl_import(one.pair.conn[0], one.ref, NULL), UCCL_EINVAL);
    uccl_export *exported;
    uint8_t ref[UCCL_REF_BYTES];
    IS(uccl_export_mr(one.mr[1], one.memory, 4097, ALL, ref, &exported), UCCL_EINVAL);
    IS(uccl_export_mr(one.mr[1], one.memory, 8, 0, ref, &exported), UCCL_EINVAL);
    IS(uccl_export_mr(one.mr[1], one.memory, 8, 4, ref, &exported), UCCL_EINVAL);
    IS(uccl_export_mr(NULL, one.memory, 8, ALL, ref, &exported), UCCL_EINVAL);
    one_close(&one);
}

Test(onesided, arguments, .timeout = TIMEOUT_S)
{
    struct one one;
    uccl_request *request;
    one_open(&one, "no", 4096, ALL);
    uccl_conn *conn = one.pair.conn[0];
    struct uccl_piece piece = piece_of(&one, 1, 4096, 0), good = piece_of(&one, 0, 8, 0);
    IS(uccl_write_async(conn, &piece, 1, NULL, &request), UCCL_EINVAL);            /* beyond its registration */
    IS(uccl_write_async(one.pair.conn[1], &good, 1, NULL, &request), UCCL_EINVAL); /* of another connection */
    IS(uccl_write_async(conn, NULL, 1, NULL, &request), UCCL_EINVAL);
    IS(uccl_write_async(conn, &good, 1, NULL, NULL), UCCL_EINVAL);
    IS(uccl_write_async(NULL, &good, 1, NULL, &request), UCCL_EINVAL);
    good.remote = NULL;
    IS(uccl_read_async(conn, &good, 1, NULL, &request), UCCL_EINVAL);
    struct uccl_tail tail = {.kind = UCCL_TAIL_SET, .remote = one.remote, .offset = 4};
    IS(uccl_write_async(conn, NULL, 0, &tail, &request), UCCL_EINVAL);
    tail = (struct uccl_tail){.kind = 9};
    IS(uccl_write_async(conn, NULL, 0, &tail, &request), UCCL_EINVAL);
    tail = (struct uccl_tail){.kind = UCCL_TAIL_NOTIFY, .bytes = one.local, .length = UCCL_NOTIFY_MAX + 1};
    IS(uccl_write_async(conn, NULL, 0, &tail, &request), UCCL_EINVAL);
    static const uint8_t most[UCCL_NOTIFY_MAX];
    tail = (struct uccl_tail){.kind = UCCL_TAIL_NOTIFY, .bytes = most, .length = UCCL_NOTIFY_MAX};
    IS(uccl_write_async(conn, NULL, 0, &tail, &request), 0);
    IS(uccl_wait(request, SOON_MS, NULL), 0);
    tail = (struct uccl_tail){.kind = UCCL_TAIL_NOTIFY, .length = 1};
    IS(uccl_write_async(conn, NULL, 0, &tail, &request), UCCL_EINVAL);
    struct uccl_piece large[] = {{.local = one.local, .length = SIZE_MAX / 4, .remote = one.remote},
                                 {.local = one.local, .length = 1, .remote = one.remote}};
    IS(uccl_write_async(conn, large, 2, NULL, &request), UCCL_EINVAL); /* longer than any memory, in all */
    IS(uccl_notify_async(conn, one.local, UCCL_NOTIFY_MAX + 1, &request), UCCL_EINVAL);
    IS(uccl_notify_async(conn, NULL, 1, &request), UCCL_EINVAL);
    IS(uccl_quiet_async(conn, NULL), UCCL_EINVAL);
    IS(uccl_fence(NULL), UCCL_EINVAL);
    IS(uccl_notify_next(NULL, NULL, 0, NULL, NULL), UCCL_EINVAL);
    IS(uccl_revoke(NULL, 0), UCCL_EINVAL);
    one_close(&one);
}

/* ---- tails -------------------------------------------------------------------------------------- */

/* Whoever sees a signal may close: the write ends well, though its DONE would have waited for an answer. */
BOTH(onesided, a_close_tells_what_is_done)
{
    for (unsigned i = 0; i < 5; i++) {
        struct one one;
        one_open(&one, lend, MB, ALL);
        _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)one.memory;
        struct uccl_tail tail = {.kind = UCCL_TAIL_SET, .remote = one.remote, .value = 77};
        uccl_request *request = post_pieces(&one, true, NULL, 0, &tail);
        while (atomic_load(word) != 77) {
            uccl_notify_next(one.pair.engine[0], NULL, 0, NULL, NULL); /* runs the lent engines */
            uccl_notify_next(one.pair.engine[1], NULL, 0, NULL, NULL);
        }
        IS(uccl_conn_close(one.pair.conn[1]), 0);
        end_of(request, 0);
        one_close(&one);
    }
}

BOTH(onesided, signals)
{
    struct one one;
    one_open(&one, lend, 4 * MB, ALL);
    _Atomic uint64_t *word = (_Atomic uint64_t *)(void *)(one.memory + 64);
    for (unsigned i = 0; i < 200; i++) {
        size_t length = i % 3 == 0 ? 8 : i % 3 == 1 ? 100000 : MB;
        fill(one.local, length, i);
        struct uccl_piece piece = piece_of(&one, 0, length, MB);
        struct uccl_tail tail = {.kind = i % 2 ? UCCL_TAIL_ADD : UCCL_TAIL_SET, .remote = one.remote, .offset = 64};
        uint64_t before = atomic_load(word), expected = i % 2 ? before + 1000000007 : i + UINT64_MAX / 3;
        tail.value = i % 2 ? 1000000007 : expected;
        uccl_request *request = post_pieces(&one, true, &piece, 1, &tail);
        if (i % 5 == 0) { /* whoever sees the signal sees the bytes */
            while (atomic_load(word) == before) {
                uccl_notify_next(one.pair.engine[0], NULL, 0, NULL, NULL); /* runs the lent engines */
                uccl_notify_next(one.pair.engine[1], NULL, 0, NULL, NULL);
            }
            check(one.memory + MB, length, i);
        }
        end_of(request, 0);
        cr_assert_eq(atomic_load(word), expected);
        check(one.memory + MB, length, i);
    }
    struct uccl_tail tail = {.kind = UCCL_TAIL_ADD, .remote = one.remote, .offset = 64, .value = 5};
    uint64_t before = atomic_load(word);
    end_of(post_pieces(&one, true, NULL, 0, &tail), 0);
    cr_assert_eq(atomic_load(word), before + 5);
    struct uccl_piece piece = piece_of(&one, 0, MB, 0);
    end_of(post_pieces(&one, false, &piece, 1, &tail), 0);
    cr_assert_eq(atomic_load(word), before + 10);
    end_of(post_pieces(&one, false, NULL, 0, &tail), 0);
    cr_assert_eq(atomic_load(word), before + 15);
    tail.offset = 4 * MB; /* beyond */
    end_of(post_pieces(&one, true, &piece, 1, &tail), UCCL_EACCESS);
    one_close(&one);
}

/* What an operation has used is free when it is over, whatever it has for a tail. */
BOTH(onesided, operations_let_their_memory_go)
{
    struct one one;
    one_open(&one, lend, 65536, ALL);
    for (unsigned i = 0; i < 16; i++) {
        static const enum uccl_tail_kind kinds[] = {UCCL_TAIL_SET, UCCL_TAIL_ADD, UCCL_TAIL_NOTIFY};
        struct uccl_tail tail = {.kind = kinds[i % 3], .remote = one.remote, .bytes = one.local, .length = 10};
        size_t length = i / 8 ? 65536 : 100;
        struct uccl_piece pieces[2] = {piece_of(&one, 0, length / 2, 8), piece_of(&one, 8, length / 2, 0)};
        end_of(post_pieces(&one, i % 2, pieces, 1 + i / 4 % 2, i % 5 ? &tail : NULL), 0);
        cr_assert_eq(atomic_load(&one.mr[0]->users), 0, "operation %u", i);
    }
    IS(uccl_dereg_mr(one.mr[0]), 0);
    IS(uccl_revoke(one.exported, 0), 0);
    IS(uccl_dereg_mr(one.mr[1]), 0);
    one_close(&one);
}

BOTH(onesided, notifications_follow_their_bytes)
{
    struct one one;
    uint8_t got[64];
    one_open(&one, lend, 4 * MB, ALL);
    for (unsigned i = 0; i < 100; i++) {
        size_t length = i % 4 == 0 ? 8 : i % 4 == 1 ? 200000 : i % 4 == 2 ? 2 * MB : 0;
        fill(one.local, length, i);
        struct uccl_piece piece = piece_of(&one, 0, length, 9);
        struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = &i, .length = sizeof i};
        uccl_request *request = post_pieces(&one, i % 8 != 7, &piece, 1, &tail);
        cr_assert_eq(next_note(&one, got, sizeof got), sizeof i);
        cr_assert(memcmp(got, &i, sizeof i) == 0);
        if (i % 8 != 7)
            check(one.memory + 9, length, i);
        end_of(request, 0);
    }
    /* of failed operations there is none */
    struct uccl_piece piece = piece_of(&one, 0, 2 * MB, 3 * MB);
    struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = "no", .length = 2};
    end_of(post_pieces(&one, true, &piece, 1, &tail), UCCL_EACCESS);
    piece.length = 8;
    piece.offset = 4 * MB - 7;
    end_of(post_pieces(&one, true, &piece, 1, &tail), UCCL_EACCESS);
    end_of(post_pieces(&one, false, &piece, 1, &tail), UCCL_EACCESS);
    uccl_request *request;
    IS(uccl_notify_async(one.pair.conn[0], "yes", 3, &request), 0);
    cr_assert_eq(next_note(&one, got, sizeof got), 3);
    end_of(request, 0);
    one_close(&one);
}

/* ---- notifications ------------------------------------------------------------------------------ */

static size_t note_length(unsigned i)
{
    return i % 50 == 0 ? UCCL_NOTIFY_MAX : i % 7 == 0 ? 0 : (i * 131) % 3000;
}

/* More than wait anywhere: back-pressure holds them, and none is lost, doubled or out of order. */
BOTH(onesided, notifications_once_and_in_order)
{
    enum { COUNT = 4000 };
    struct one one;
    static uint8_t bytes[UCCL_NOTIFY_MAX], got[UCCL_NOTIFY_MAX];
    one_open(&one, lend, 4096, ALL);
    uccl_request **requests = calloc(COUNT, sizeof *requests);
    for (unsigned i = 0; i < COUNT; i++) {
        fill(bytes, note_length(i), i);
        IS(uccl_notify_async(one.pair.conn[0], bytes, note_length(i), &requests[i]), 0);
    }
    int done;
    sleep_us(100000);
    IS(uccl_test(requests[COUNT - 1], &done, NULL), 0);
    cr_assert(!done, "nobody takes them: they wait");
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert_eq(next_note(&one, got, sizeof got), note_length(i), "%u", i);
        check(got, note_length(i), i);
    }
    for (unsigned i = 0; i < COUNT; i++)
        end_of(requests[i], 0);
    IS(uccl_notify_next(one.pair.engine[1], got, sizeof got, NULL, NULL), UCCL_EAGAIN);
    free(requests);
    one_close(&one);
}

/*
 * The tails of more operations than may be under way, while nobody takes notifications: those that have come, but wait
 * behind others, stay when later operations take the places of theirs.
 */
BOTH(onesided, notifications_of_operations_wait)
{
    enum { COUNT = 600, BYTES = 4096 };
    struct one one;
    static uint8_t bytes[BYTES], got[BYTES];
    uccl_request *requests[COUNT];
    one_open(&one, lend, 4096, ALL);
    for (unsigned i = 0; i < COUNT; i++) {
        fill(bytes, BYTES, i);
        struct uccl_piece piece = piece_of(&one, 0, 8, 0);
        struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = bytes, .length = BYTES};
        requests[i] = post_pieces(&one, i % 3 != 2, &piece, 1, &tail);
    }
    int done;
    sleep_us(100000);
    IS(uccl_test(requests[COUNT - 1], &done, NULL), 0);
    cr_assert(!done, "nobody takes them: they wait");
    for (unsigned i = 0; i < COUNT; i++) {
        cr_assert_eq(next_note(&one, got, sizeof got), BYTES, "%u", i);
        check(got, BYTES, i);
    }
    for (unsigned i = 0; i < COUNT; i++)
        end_of(requests[i], 0);
    one_close(&one);
}

static bool readable(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, 0) == 1;
}

BOTH(onesided, the_queue_has_a_descriptor)
{
    struct one one;
    char got[8];
    size_t length;
    one_open(&one, lend, 4096, ALL);
    uccl_engine *engine = one.pair.engine[1];
    int fd = uccl_notify_fd(engine), events = uccl_event_fd(engine);
    cr_assert_geq(fd, 0);
    cr_assert_eq(uccl_notify_fd(engine), fd);
    cr_assert(!readable(fd));
    IS(uccl_event_arm(engine), 0);
    uccl_request *request;
    IS(uccl_notify_async(one.pair.conn[0], "12345678", 8, &request), 0);
    end_of(request, 0);
    struct pollfd entries[] = {{.fd = fd, .events = POLLIN}, {.fd = events, .events = POLLIN}};
    cr_assert_eq(poll(entries, 1, SOON_MS), 1);
    cr_assert_eq(poll(entries + 1, 1, SOON_MS), 1);
    uccl_conn *from = NULL;
    IS(uccl_notify_next(engine, got, 7, &length, &from), UCCL_ETRUNCATED);
    cr_assert(length == 8 && from == one.pair.conn[1]);
    cr_assert(readable(fd));
    IS(uccl_notify_next(engine, got, 8, NULL, NULL), 0);
    cr_assert(memcmp(got, "12345678", 8) == 0);
    cr_assert(!readable(fd));
    one_close(&one);
}

/* Those that have come stay when the peer goes; those that wait go with the connection. */
BOTH(onesided, notifications_outlive_the_peer)
{
    struct one one;
    char got[8];
    uccl_request *request;
    one_open(&one, lend, 4096, ALL);
    IS(uccl_notify_async(one.pair.conn[0], "first", 5, &request), 0);
    IS(uccl_notify_async(one.pair.conn[0], "second", 6, &request), 0);
    IS(uccl_conn_close(one.pair.conn[0]), 0);
    cr_assert_eq(next_note(&one, got, sizeof got), 5);
    IS(uccl_conn_close(one.pair.conn[1]), 0);
    IS(uccl_notify_next(one.pair.engine[1], got, sizeof got, NULL, NULL), UCCL_EAGAIN);
    one_close(&one);
}

/* A child that was made while another thread had the queue can close what it inherited. */
BOTH(onesided, a_child_leaves_the_queue)
{
    struct one one;
    char got[8];
    uccl_request *request;
    int status;
    one_open(&one, lend, 4096, ALL);
    struct uccl_engine *engine = one.pair.engine[1];
    IS(uccl_notify_async(one.pair.conn[0], "there", 5, &request), 0);
    end_of(request, 0);
    pthread_mutex_lock(&engine->notes.lock);
    pid_t child = fork();
    if (child == 0) {
        alarm(SOON_MS / 1000);
        _exit(uccl_notify_next(engine, got, sizeof got, NULL, NULL) != UCCL_EFORKED || uccl_close(engine) != 0);
    }
    pthread_mutex_unlock(&engine->notes.lock);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%x", (unsigned)status);
    cr_assert_eq(next_note(&one, got, sizeof got), 5);
    one_close(&one);
}

/* ---- order -------------------------------------------------------------------------------------- */

BOTH(onesided, a_fence_orders)
{
    struct one one;
    one_open(&one, lend, 4 * MB, ALL);
    uccl_request *requests[3];
    for (unsigned i = 0; i < 50; i++) {
        fill(one.local, 2 * MB, i);
        fill(one.local + 2 * MB, 8, i + 1);
        requests[0] = post_write(&one, 0, 2 * MB, 0);
        IS(uccl_fence(one.pair.conn[0]), 0);
        requests[1] = post_write(&one, 2 * MB, 8, 0); /* over the first: it must come later */
        IS(uccl_quiet_async(one.pair.conn[0], &requests[2]), 0);
        end_of(requests[2], 0);
        check(one.memory, 8, i + 1);
        cr_assert_eq(one.memory[8], content(i, 8));
        int done;
        for (unsigned k = 0; k < 2; k++) {
            IS(uccl_test(requests[k], &done, NULL), 0);
            cr_assert(done, "quiet means that all before have completed");
        }
    }
    IS(uccl_fence(one.pair.conn[0]), 0);
    IS(uccl_fence(one.pair.conn[0]), 0);
    IS(uccl_quiet_async(one.pair.conn[0], &requests[0]), 0);
    end_of(requests[0], 0);
    one_close(&one);
}

/* ---- revoke, dereg, cancel, close --------------------------------------------------------------- */

BOTH(onesided, revoked_memory_is_free)
{
    struct one one;
    for (unsigned round = 0; round < 8; round++) {
        one_open(&one, lend, 8 * MB, ALL);
        uccl_request *requests[20];
        for (unsigned i = 0; i < 20; i++)
            requests[i] = i % 2 ? post_read(&one, 0, 4 * MB, 0) : post_write(&one, 4 * MB, 4 * MB, 4 * MB);
        if (round % 2)
            end_of(requests[0], 0);
        sleep_us(round * 300);
        IS(uccl_revoke(one.exported, SOON_MS), 0);
        mprotect(one.memory, one.bytes, PROT_NONE);
        for (unsigned i = round % 2; i < 20; i++) {
            int status = uccl_wait(requests[i], SOON_MS, NULL);
            cr_assert(status == 0 || status == UCCL_EACCESS, "%d", status);
        }
        end_of(post_write(&one, 0, 8, 0), UCCL_EACCESS);
        end_of(post_read(&one, 0, MB, 0), UCCL_EACCESS);
        IS(uccl_revoke(one.exported, 0), UCCL_EINVAL);
        mprotect(one.memory, one.bytes, PROT_READ | PROT_WRITE);
        IS(uccl_dereg_mr(one.mr[1]), 0);
        one_close(&one);
    }
}

/* A thread that revokes what another one revokes too. */
static struct {
    pthread_barrier_t both;
    uccl_export *exported;
    bool over;
    int error;
} second;

static void *revoke_too(void *unused)
{
    for (pthread_barrier_wait(&second.both); !second.over; pthread_barrier_wait(&second.both)) {
        second.error = uccl_revoke(second.exported, SOON_MS);
        pthread_barrier_wait(&second.both);
    }
    return unused;
}

/* The place of the export in the engine's table has its next one before both are done. */
BOTH(onesided, two_revoke_one_export)
{
    enum { ROUNDS = 1000 };
    struct one one;
    pthread_t thread;
    one_open(&one, lend, MB, ALL);
    second.over = false;
    pthread_barrier_init(&second.both, NULL, 2);
    pthread_create(&thread, NULL, revoke_too, NULL);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uccl_request *request = round % 16 ? NULL : post_write(&one, 0, MB, 0);
        second.exported = one.exported;
        pthread_barrier_wait(&second.both);
        int error = uccl_revoke(one.exported, SOON_MS);
        IS(uccl_export_mr(one.mr[1], one.memory, one.bytes, ALL, one.ref, &one.exported), 0);
        pthread_barrier_wait(&second.both);
        cr_assert((error == 0 && second.error == 0) || error + second.error == UCCL_EINVAL, "%d, %d", error,
                  second.error);
        cr_assert(export_holds(one.exported->entry), "round %u: one of them has revoked the next export", round);
        if (request)
            uccl_wait(request, SOON_MS, NULL);
        IS(uccl_remote_free(one.remote), 0);
        IS(uccl_import(one.pair.conn[0], one.ref, &one.remote), 0);
    }
    end_of(post_write(&one, 0, 64, 0), 0);
    second.over = true;
    pthread_barrier_wait(&second.both);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&second.both);
    one_close(&one);
}

BOTH(onesided, dereg_revokes)
{
    struct one one;
    one_open(&one, lend, 8 * MB, ALL);
    uccl_request *requests[40]; /* so many that some are under way, even if this thread is kept from its processor */
    for (unsigned i = 0; i < 40; i++)
        requests[i] = post_write(&one, 0, 8 * MB, 0);
    IS(uccl_dereg_mr(one.mr[0]), UCCL_EAGAIN); /* of the writes */
    int error;
    for (uint64_t end_ms = now_ms() + SOON_MS; (error = uccl_dereg_mr(one.mr[1])) == UCCL_EAGAIN;) {
        cr_assert(now_ms() < end_ms);
        sleep_us(100);
    }
    IS(error, 0);
    mprotect(one.memory, one.bytes, PROT_NONE);
    for (unsigned i = 0; i < 40; i++) {
        int status = uccl_wait(requests[i], SOON_MS, NULL);
        cr_assert(status == 0 || status == UCCL_EACCESS, "%d", status);
    }
    IS(uccl_revoke(one.exported, 0), UCCL_EINVAL);
    mprotect(one.memory, one.bytes, PROT_READ | PROT_WRITE);
    IS(uccl_dereg_mr(one.mr[0]), 0);
    one_close(&one);
}

/* After a cancel has ended neither side's memory is touched. */
BOTH(onesided, cancels)
{
    struct one one;
    for (unsigned round = 0; round < 20; round++) {
        one_open(&one, lend, 8 * MB, ALL);
        bool write = round % 2;
        struct uccl_piece piece = piece_of(&one, 0, 8 * MB, 0);
        struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = "done", .length = 4};
        uccl_request *request = post_pieces(&one, write, &piece, 1, &tail);
        sleep_us(round * 100);
        IS(uccl_cancel(request), 0);
        int status = uccl_wait(request, SOON_MS, NULL);
        cr_assert(status == 0 || status == UCCL_ECANCELED, "%d", status);
        mprotect(one.local, one.bytes, PROT_NONE);
        mprotect(one.memory, one.bytes, PROT_NONE);
        char got[8];
        if (status == 0)
            cr_assert_eq(next_note(&one, got, sizeof got), 4);
        sleep_us(2000);
        IS(uccl_notify_next(one.pair.engine[1], got, sizeof got, NULL, NULL), UCCL_EAGAIN);
        mprotect(one.local, one.bytes, PROT_READ | PROT_WRITE);
        mprotect(one.memory, one.bytes, PROT_READ | PROT_WRITE);
        one_close(&one);
    }
}

BOTH(onesided, cancels_of_what_waits)
{
    struct one one;
    one_open(&one, lend, 8 * MB, ALL);
    uccl_request *first = post_write(&one, 0, 8 * MB, 0), *requests[3];
    IS(uccl_fence(one.pair.conn[0]), 0);
    requests[0] = post_write(&one, 0, 8, 0);
    IS(uccl_notify_async(one.pair.conn[0], "x", 1, &requests[1]), 0);
    IS(uccl_quiet_async(one.pair.conn[0], &requests[2]), 0);
    for (unsigned i = 0; i < 3; i++)
        IS(uccl_cancel(requests[i]), 0);
    for (unsigned i = 0; i < 3; i++) {
        int status = uccl_wait(requests[i], SOON_MS, NULL);
        cr_assert(status == 0 || status == UCCL_ECANCELED, "%d", status);
    }
    end_of(first, 0);
    end_of(post_write(&one, 0, 8, 0), 0);
    one_close(&one);
}

/* Notifications that wait for room are cancelled: those behind them come all the same. */
BOTH(onesided, cancelled_notifications_make_room)
{
    enum { COUNT = 60, BYTES = UCCL_NOTIFY_MAX };
    struct one one;
    static uint8_t bytes[BYTES], got[BYTES];
    uccl_request *requests[COUNT];
    one_open(&one, lend, 4096, ALL);
    for (unsigned i = 0; i < COUNT; i++) {
        fill(bytes, BYTES, i);
        IS(uccl_notify_async(one.pair.conn[0], bytes, BYTES, &requests[i]), 0);
    }
    sleep_us(50000); /* nobody takes them */
    unsigned cancelled = 0, next = 0;
    for (unsigned i = COUNT - 30; i < COUNT; i++)
        IS(uccl_cancel(requests[i]), 0);
    for (unsigned i = 0; i < COUNT; i++) {
        int status;
        while ((status = uccl_wait(requests[i], 1, NULL)) == UCCL_ETIMEDOUT) {
            if (uccl_notify_next(one.pair.engine[1], got, sizeof got, NULL, NULL) == 0)
                check(got, BYTES, next++);
        }
        cr_assert(status == 0 || status == UCCL_ECANCELED, "%d", status);
        cancelled += status != 0;
    }
    cr_assert_geq(cancelled, 20);
    while (next + cancelled < COUNT) {
        cr_assert_eq(next_note(&one, got, sizeof got), BYTES);
        next++;
    }
    for (unsigned i = 0; i < COUNT; i++) {
        uccl_request *request;
        IS(uccl_notify_async(one.pair.conn[0], &i, sizeof i, &request), 0);
        cr_assert_eq(next_note(&one, got, sizeof got), sizeof i);
        cr_assert(memcmp(got, &i, sizeof i) == 0);
        end_of(request, 0);
    }
    one_close(&one);
}

BOTH(onesided, closes_end_operations)
{
    struct one one;
    for (unsigned round = 0; round < 6; round++) {
        one_open(&one, lend, 8 * MB, ALL);
        uccl_request *requests[4];
        for (unsigned i = 0; i < 4; i++)
            requests[i] = i % 2 ? post_read(&one, 0, 4 * MB, 0) : post_write(&one, 4 * MB, 4 * MB, 4 * MB);
        sleep_us(round * 200);
        bool here = round % 2;
        IS(round % 3 == 2 ? uccl_conn_abort(one.pair.conn[!here]) : uccl_conn_close(one.pair.conn[!here]), 0);
        for (unsigned i = 0; i < 4; i++) {
            int status = uccl_wait(requests[i], SOON_MS, NULL);
            cr_assert(status == 0 || status == (here ? UCCL_ECANCELED : UCCL_ECLOSED), "%d in round %u", status, round);
        }
        one_close(&one);
    }
}

/* ---- peers without them ------------------------------------------------------------------------- */

Test(onesided, a_peer_may_lack_them, .timeout = TIMEOUT_S)
{
    struct one one;
    uccl_conn *conn[2];
    uccl_remote *remote;
    uccl_request *request;
    one_open(&one, "no", 4096, ALL);
    for (unsigned i = 0; i < 2; i++) {
        struct peer *peer = one.pair.conn[i]->peer;
        for (unsigned k = 0; k < peer->flows_open; k++)
            peer->flows[k].setup.features &= ~WIRE_ONESIDED;
    }
    connect_now(one.pair.engine[0], &one.pair.handle, one.pair.listener, conn);
    struct uccl_piece piece = piece_of(&one, 0, 8, 0);
    IS(uccl_import(conn[0], one.ref, &remote), UCCL_ENOTSUP);
    IS(uccl_write_async(conn[0], &piece, 1, NULL, &request), UCCL_ENOTSUP);
    IS(uccl_read_async(conn[0], &piece, 1, NULL, &request), UCCL_ENOTSUP);
    IS(uccl_notify_async(conn[0], "", 0, &request), UCCL_ENOTSUP);
    IS(uccl_quiet_async(conn[0], &request), UCCL_ENOTSUP);
    IS(uccl_fence(conn[0]), UCCL_ENOTSUP);
    exchange(conn[0], conn[1], 100000, 1);
    end_of(post_write(&one, 0, 8, 0), 0);
    one_close(&one);
}
