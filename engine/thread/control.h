/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the messages on the annexes for one-sided operations (docs/wire.md). Little endian. Parsing checks all
 * that needs no state.
 */
#ifndef UCCL_CONTROL_H
#define UCCL_CONTROL_H

#include "thread/exports.h"

/* The annexes of a connection, in the order of their numbers, from 1. */
enum annex {
    ANNEX_CONTROL, /* WRITE, READ, DONE */
    ANNEX_WRITES,  /* payload of writes */
    ANNEX_READS,   /* payload of reads */
    ANNEX_NOTES,   /* notifications */
    ANNEXES
};

enum {
    CONTROL_BYTES_MAX = 12288,
    CONTROL_INLINE_MAX = 8192,      /* bytes of a write that travel in its WRITE */
    WRITE_AHEAD_BYTES = 256 * 1024, /* of a larger write that leave behind its WRITE, without a clear-to-send */
    CONTROL_PIECES_MAX = 256,       /* PAYLOAD_PIECES_MAX */
    CONTROL_HEADER_BYTES = 16,
    CONTROL_PIECE_BYTES = 32,
    CONTROL_TAIL_BYTES = 32,
    CONTROL_DONE_BYTES = 12,
    CONTROL_DONES_MAX = 256,
    NOTE_HEADER_BYTES = 16,
};

enum control_kind { CONTROL_WRITE = 1, CONTROL_READ = 2, CONTROL_DONE = 3 };

enum control_flag {
    CONTROL_FIRST = 1,     /* of its operation */
    CONTROL_LAST = 2,      /* of its operation: the tail follows */
    CONTROL_INLINE = 4,    /* WRITE: the payload is in this message; else it is the next message of ANNEX_WRITES */
    CONTROL_SET = 8,       /* LAST: the tail is a signal */
    CONTROL_ADD = 16,      /* likewise */
    CONTROL_NOTE = 32,     /* LAST: a notification waits for the operation */
    CONTROL_CANCELLED = 64 /* LAST: the operation ends without its tail */
};

struct control_piece {
    struct export_ref ref;
    uint64_t offset, length;
};

struct control_tail {
    struct export_ref ref;
    uint64_t offset, value;
};

struct control {
    uint8_t kind, flags;
    uint16_t count; /* pieces, or operations that are done */
    uint64_t id;    /* of the operation */
    struct control_tail tail;
    uint64_t total;         /* bytes of all pieces */
    const uint8_t *entries; /* pieces, or operations that are done */
    const uint8_t *payload; /* CONTROL_INLINE */
};

/* False: malformed. */
bool control_parse(const uint8_t *bytes, size_t length, struct control *control);
struct control_piece control_piece(const struct control *control, unsigned index);
/* The id of an operation that is done, and its status: 0 or a negative uccl_error. */
uint64_t control_done(const struct control *control, unsigned index, int32_t *status);

/* Appends at `at`, which has room; returns the end. */
uint8_t *control_put_header(uint8_t *at, const struct control *control);
uint8_t *control_put_piece(uint8_t *at, const struct control_piece *piece);
uint8_t *control_put_done(uint8_t *at, uint64_t id, int32_t status);

/* A notification: its header, then its bytes. It waits for operation `id`, if `waits`. */
bool note_parse(const uint8_t *bytes, size_t length, bool *waits, uint64_t *id);
uint8_t *note_put_header(uint8_t *at, bool waits, uint64_t id);

#endif
