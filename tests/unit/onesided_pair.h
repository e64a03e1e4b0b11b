/* SPDX-License-Identifier: Apache-2.0 */
/* Two connected engines, of which engine 1 exports memory to engine 0. */
#ifndef TEST_ONESIDED_PAIR_H
#define TEST_ONESIDED_PAIR_H

#include "api_pair.h"

struct one {
    struct pair pair;
    uint8_t *local, *memory; /* of engine 0; exported by engine 1 */
    size_t bytes;
    uccl_mr *mr[2];
    uint8_t ref[UCCL_REF_BYTES];
    uccl_export *exported;
    uccl_remote *remote;
};

enum { ALL = UCCL_ACCESS_READ | UCCL_ACCESS_WRITE };

/* Over the connected pair. */
static inline void one_begin(struct one *one, size_t bytes, unsigned access)
{
    one->bytes = bytes;
    one->local = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    one->memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(one->local, 0xee, bytes);
    memset(one->memory, 0, bytes);
    IS(uccl_reg_mr(one->pair.engine[0], one->local, bytes, UCCL_MEM_HOST, &one->mr[0]), 0);
    IS(uccl_reg_mr(one->pair.engine[1], one->memory, bytes, UCCL_MEM_HOST, &one->mr[1]), 0);
    IS(uccl_export_mr(one->mr[1], one->memory, bytes, access, one->ref, &one->exported), 0);
    IS(uccl_import(one->pair.conn[0], one->ref, &one->remote), 0);
}

/* Lent: with one engine thread. Else with three, which share messages of two units and more. */
static inline void one_open(struct one *one, const char *lend, size_t bytes, unsigned access)
{
    const char *threads = strcmp(lend, "yes") == 0 ? "1" : "3";
    for (int i = 0; i < 2; i++)
        one->pair.engine[i] =
            open_engine(lend, "LINGER_MS", "300", "NUM_ENGINES", threads, "STRIPE_MIN_KB", "64", NULL);
    pair_connect(&one->pair);
    one_begin(one, bytes, access);
}

static inline void one_close(struct one *one)
{
    IS(uccl_remote_free(one->remote), 0);
    pair_close(&one->pair);
    free(one->local);
    free(one->memory);
}

static inline struct uccl_piece piece_of(const struct one *one, size_t from, size_t length, uint64_t offset)
{
    return (struct uccl_piece){
        .local = one->local + from, .mr = one->mr[0], .length = length, .remote = one->remote, .offset = offset};
}

static inline uccl_request *post_pieces(const struct one *one, bool write, const struct uccl_piece *pieces,
                                        size_t count, const struct uccl_tail *tail)
{
    uccl_request *request = NULL;
    IS((write ? uccl_write_async : uccl_read_async)(one->pair.conn[0], pieces, count, tail, &request), 0);
    return request;
}

static inline uccl_request *post_write(const struct one *one, size_t from, size_t length, uint64_t offset)
{
    struct uccl_piece piece = piece_of(one, from, length, offset);
    return post_pieces(one, true, &piece, 1, NULL);
}

static inline uccl_request *post_read(const struct one *one, size_t from, size_t length, uint64_t offset)
{
    struct uccl_piece piece = piece_of(one, from, length, offset);
    return post_pieces(one, false, &piece, 1, NULL);
}

/* Waits for the next notification of engine 1; returns its length. */
static inline size_t next_note(const struct one *one, void *buffer, size_t size)
{
    size_t length = 0;
    uccl_conn *from = NULL;
    int error;
    for (uint64_t end_ms = now_ms() + SOON_MS;
         (error = uccl_notify_next(one->pair.engine[1], buffer, size, &length, &from)) == UCCL_EAGAIN;)
        cr_assert(now_ms() < end_ms, "no notification");
    IS(error, 0);
    cr_assert_eq(from, one->pair.conn[1]);
    return length;
}

#endif
