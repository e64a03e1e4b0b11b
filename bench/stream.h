/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data of the tools: contents that can be verified, and streams (messages of one size kept
 * outstanding in one direction of a connection). One thread; what goes wrong ends the process.
 * Streams of one-sided operations are in onesided.h.
 */
#ifndef UCCL_STREAM_H
#define UCCL_STREAM_H

#include "device.h"
#include "tool.h"

/* ---- contents ---- */

/*
 * Fills with 8-byte words that depend on connection, direction, message number and offset: swapped,
 * shifted, repeated or stale bytes differ from what tool_verify() computes.
 */
void tool_fill(void *buffer, uint64_t size, uint64_t channel, uint64_t number);
/* What a receive buffer holds before the message arrives. */
void tool_poison(void *buffer, uint64_t size);

enum { TOOL_PHASE_SHIFT = 40, TOOL_PIECE_SHIFT = 16 };

struct tool_mismatch {
    uint64_t channel; /* connection * 2, +1 when the server sent it; from bit TOOL_PIECE_SHIFT on, the piece */
    uint64_t number;  /* message; p2p_bench has the number of the phase above TOOL_PHASE_SHIFT bits */
    uint64_t offset;  /* byte of the first wrong word */
    uint64_t expected;
    uint64_t got;
};
/* Compares; false writes what differs first. */
bool tool_verify(const void *buffer, uint64_t size, uint64_t channel, uint64_t number, struct tool_mismatch *out);
void tool_print_mismatch(const char *who, const struct tool_mismatch *mismatch);

/* ---- streams ---- */

#define STREAM_NONE UINT64_MAX
enum { STREAM_PIECES_MAX = 65536 };

/* How messages move: by a send and a receive, or by an operation of one side, to or from its target. */
enum stream_op { STREAM_SEND, STREAM_WRITE, STREAM_READ, STREAM_NOTIFY };

/* What takes the place of a send (onesided.h): makes a buffer ready, posts, looks at what has ended. */
struct stream;
struct stream_ops {
    void (*prepare)(struct stream *s, unsigned char *buffer, uint64_t number);
    int (*post)(struct stream *s, unsigned char *buffer, uccl_request **request);
    void (*ended)(struct stream *s, unsigned char *buffer);
};

/* Messages of one size in one direction of one connection. The counters start at 0. */
struct stream {
    uccl_conn *conn;
    uint64_t channel; /* for contents: see struct tool_mismatch */
    bool sends;       /* or writes, reads, notifies; else it receives, or is the target of that */
    enum stream_op op;
    const struct stream_ops *ops; /* NULL: a send or receive */
    bool check;                   /* fill before each send, poison before and verify after each receive */
    bool flush;                   /* uccl_flush() after each receive, which checking does anyway */
    uint32_t window;              /* messages outstanding at most; the ring of requests has as many slots */
    uint32_t group;               /* messages that are posted together; divides window */
    uint32_t buffer_count;        /* buffers that the slots take in turn; at least window when checked */
    uint64_t stride;              /* bytes from one buffer to the next */
    struct region *region;        /* where they lie */
    unsigned char *buffers;
    uint64_t size;         /* bytes per message */
    uint64_t first_number; /* number of message 0, for contents */
    uint64_t total;        /* post so many; the user may change it while the stream runs */
    uint64_t stop_from;    /* sender: messages from here on are empty, which tells the receiver to stop */
    uint64_t posted;
    uint64_t ended;
    uint64_t look_at;    /* stream_end_in_time() reads the clock when so many have ended */
    uint64_t bytes;      /* of the messages that have ended */
    uint64_t wrong;      /* messages with wrong contents */
    uint64_t stopped_at; /* receiver that allows it: the first empty message */
    bool may_stop;       /* receiver: empty messages are allowed */
    struct tool_mismatch first_wrong;
    uccl_request **requests;
    uint32_t post_slot;
    uint32_t reap_slot;
    uint64_t starved_since_ns; /* EAGAIN with nothing outstanding; 0: not so */
    /* of writes and reads alone */
    uint32_t pieces;              /* of a message: each lies by itself, at both sides; 0: one */
    struct uccl_piece *list;      /* room for them; NULL: not made yet */
    const uccl_remote *remote;    /* where the target's buffers lie */
    uint64_t remote_at;           /* offset of the first */
    unsigned char *moved;         /* target: whether the message of a slot has been moved; NULL: none yet */
    const struct uccl_tail *tail; /* of each; NULL: as checking needs it */
    uint64_t free_until;          /* checked: the target's buffers are not free yet for messages from here on */
};

/* Buffers that `window` messages take: one each when checked, else at most TOOL_SHARED_BUFFERS. */
uint32_t stream_buffers(uint64_t stride, uint32_t window, bool check, uint64_t memory);
uint64_t stream_stride(uint64_t size);
/* For onesided.c: makes what the NIC has written visible; counts and shows wrong contents. */
void stream_flush(struct stream *s, unsigned char *buffer, size_t bytes);
void stream_note_wrong(struct stream *s, const struct tool_mismatch *mismatch);
/* Back to no messages, with the next numbers. */
void stream_restart(struct stream *s, uint64_t first_number, uint64_t total);
/* Posts what total, window and groups allow; returns how many. */
unsigned stream_post(struct stream *s);
/*
 * Lets nothing more be posted once `limit_ns` have passed since `start_ns`; 0: no limit. The clock costs as much as a
 * small message: it is read every 16th or so.
 */
void stream_end_in_time(struct stream *s, uint64_t start_ns, uint64_t limit_ns);
/* Takes the oldest message if it ends within `timeout_ms` (0: now). */
bool stream_reap(struct stream *s, int timeout_ms);
/* One step of `count` streams: posts, reaps, and waits a little when nothing moved. */
void stream_turn(struct stream *streams, unsigned count, unsigned *next);
/* Adds `count` to the total and posts all of them. */
void stream_advance(struct stream *s, uint64_t count);
/* Waits until at most `left` of the total have not ended. */
void stream_finish(struct stream *s, uint64_t left);

#endif
