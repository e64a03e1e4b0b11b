/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations of a connection (docs/onesided.md), both ends: what this process writes and reads at the peer
 * (onesided_ops.c), and what the engine does here for the peer (onesided_serve.c). They travel as ordinary messages on
 * annexes of the connection, so loss, order, credit, staging, placement, cancelling and closing are those of messages.
 *
 *   write   WRITE on ANNEX_CONTROL names the pieces. Small payload travels inside, larger as the next message of
 *           ANNEX_WRITES, for which the target posts a receive into the exported memory.
 *   read    The initiator posts a receive on ANNEX_READS: the grant. Then READ on ANNEX_CONTROL; the target answers
 *           with the next send on ANNEX_READS. A refused one has no bytes.
 *   done    The target answers each write operation by DONE, after its tail.
 *   notes   Each notification is a message of ANNEX_NOTES. One that is a tail waits at the target for its operation.
 *
 * A vector is cut into parts of at most CONTROL_PIECES_MAX pieces, each with its own WRITE or READ.
 *
 * Threads: the owner of the connection's home thread, unless said otherwise.
 */
#ifndef UCCL_ONESIDED_H
#define UCCL_ONESIDED_H

#include "request/request.h"
#include "thread/control.h"
#include "thread/notes.h"
#include "thread/payload.h"
#include "thread/stripe.h"

/* ---- operations ------------------------------------------------------------------------------ */

enum op_kind { OP_WRITE, OP_READ, OP_NOTIFY, OP_FENCE, OP_QUIET };

struct op_piece {
    uint8_t *local;
    uint64_t length;
    const struct mem_identity *memory; /* NULL: the CPU reaches it */
    const struct nic_mr *nic_mr;       /* NULL: the NIC does not reach it */
    _Atomic uint32_t *mr_users;        /* counted; or NULL */
    struct control_piece remote;
    bool remote_host;
};

/* An operation of the application, from its call to its completion. */
struct op {
    struct op *next, *prev; /* all of the connection, in the order of the calls */
    struct op *next_ripe;
    struct onesided *of;
    struct uccl_request *request; /* NULL: a fence */
    uint8_t kind;                 /* enum op_kind */
    uint8_t tail;                 /* CONTROL_SET, CONTROL_ADD or CONTROL_NOTE, if it has yet to be sent; 0 */
    bool reads;                   /* it began as a read */
    bool tail_host;               /* the signal is in memory that the peer's CPU reaches */
    struct control_tail signal;
    uint8_t *note; /* message of ANNEX_NOTES, its header left out; until it is sent */
    size_t note_bytes;
    /* the engine's */
    uint64_t id;
    uint64_t bytes;   /* of all pieces */
    uint32_t live;    /* messages that have not ended, and the DONE */
    int32_t status;   /* first error */
    int32_t fault;    /* why bytes of a write could not be sent, which the peer takes for a cancelled message; 0 */
    bool started;     /* it has its id */
    bool first_sent;  /* its first WRITE */
    bool all_sent;    /* all of its messages; of a write the last WRITE */
    bool awaits_done; /* counted in `live` */
    bool cancelled;   /* by the application */
    bool ripe;        /* on that list */
    size_t count, next_piece;
    struct op_piece pieces[]; /* `count`, and one more for the tail */
};

/* Any thread. NULL: no memory. `note_bytes`: with the header. */
struct op *op_new(enum op_kind kind, size_t count, size_t note_bytes);
/* An operation that was not submitted. Any thread. */
void op_free(struct op *op);

/* ---- connections ----------------------------------------------------------------------------- */

enum {
    OPS_MAX = 256,          /* operations at the peer at once */
    PARTS_MAX = 128,        /* messages of ANNEX_WRITES and ANNEX_READS at once that we began */
    CONTROLS_OUT_MAX = 512, /* messages of ANNEX_CONTROL at once that name pieces: as many as its window has room for */
    SERVED_MAX = 400,       /* those that the peer began; then its next messages wait */
    /* Messages with DONEs that the peer has not taken. An honest one leaves fewer: those of a window, and one for each
     * of its operations. */
    DONES_OUT_MAX = 2048,
    CONTROL_POSTED = 16,
    NOTES_POSTED = 8,
};

enum one_kind {
    ONE_CONTROL_OUT,
    ONE_DONES_OUT,
    ONE_CONTROL_IN,
    ONE_WRITE_OUT,
    ONE_WRITE_IN,
    ONE_READ_OUT, /* the answer to the peer's read */
    ONE_READ_IN,
    ONE_NOTE_OUT,
    ONE_NOTE_IN,
};

/* A message of ours on an annex. */
struct one_request {
    struct uccl_request request; /* first */
    struct onesided *of;
    struct one_request *next, *prev; /* all of the connection; or the free list */
    struct one_request *next_in;     /* posted receives of an annex, in order */
    uint8_t kind;                    /* enum one_kind */
    bool over;                       /* of posted receives: complete, and waits for those before */
    bool goes;                       /* of a notification: all before it has happened */
    bool revoked;                    /* an export that it uses was revoked */
    bool ahead;                      /* of a write: to host memory, which needs no clear-to-send to begin */
    struct op *op;
    struct served *served;
    uint8_t *bytes; /* of its own */
    struct payload_pieces *pieces;
    unsigned pinned;                  /* exports that it has entered */
    struct exported **exports, *only; /* of each piece; `only`: room for one */
};

/* A write operation of the peer's. */
struct served {
    uint64_t id;
    bool used;     /* under way, or a notification is to come */
    bool last;     /* its last WRITE has come */
    bool finished; /* DONE is sent: only a notification is to come */
    bool lost;     /* the connection has failed before all bytes were there */
    uint8_t tail;  /* CONTROL_SET, CONTROL_ADD, CONTROL_NOTE or 0 */
    int32_t status;
    uint32_t pending; /* messages of ANNEX_WRITES to come */
    struct control_tail signal;
};

/* To be said to the peer. */
struct done {
    uint64_t id;
    int32_t status;
};

struct one_fifo {
    struct one_request *head, *tail;
};

struct onesided {
    struct engine_thread *thread;
    struct stripe_set *home; /* of the connection; we hold it until all is over */
    void *owner;             /* the connection */
    struct request_pairs pairs;
    void (*on_ended)(struct engine_thread *thread, struct uccl_request *request); /* of its messages */
    struct exports *exports;
    struct notes *notes;
    struct notes_waiting waiting; /* under the lock of `notes` */
    struct onesided *next, *prev; /* all of the thread */
    struct onesided *next_due;    /* DONE messages are due, or notes to be tried again */
    bool due;
    bool closed;
    bool dropped;    /* the operations of a failed one have been ended */
    bool told;       /* the flows of parts, that all annexes have ended */
    bool parting;    /* all annexes have ended: they are not used any more. What is left waits for copies of a device */
    bool notes_end;  /* one of its notifications is lost with it: none behind that may be told */
    int32_t status;  /* why no operation may go on; 0 */
    unsigned ended;  /* annexes that have */
    uint32_t live;   /* messages */
    uint32_t copied; /* of them: to or from memory of a device, each with a hold on the connection */
    struct one_request *requests;
    /* our operations */
    struct op *first, *last;
    struct op *unsent;    /* the first that has something to send */
    struct op *ripe;      /* those with nothing left to send or to wait for */
    struct op **inflight; /* OPS_MAX, by id; made on first use */
    uint64_t next_op;
    uint32_t parts;        /* messages of ANNEX_WRITES and ANNEX_READS */
    uint32_t controls_out; /* those of ANNEX_CONTROL that name pieces */
    /* the peer's */
    struct one_fifo controls, arriving; /* receives of ANNEX_CONTROL, ANNEX_NOTES */
    struct served *served;              /* OPS_MAX, by id; made on first use */
    uint32_t serving;                   /* messages of ANNEX_WRITES and ANNEX_READS */
    struct done *dones;                 /* CONTROL_DONES_MAX, of which `done_count` are due; made with `served` */
    unsigned done_count;
    uint32_t dones_out; /* messages with such, under way */
    uint64_t dones_ns;  /* when they are sent at the latest; 0: at once */
    struct conn *annexes[ANNEXES];
};

/* The windows of an annex. */
const struct annex_setup *onesided_annex(enum annex annex);

/* Any thread. NULL: no memory. The caller opens the annexes on `thread`, then calls onesided_begin() there. */
struct onesided *onesided_new(struct engine_thread *thread, struct stripe_set *home, void *owner,
                              struct exports *exports, struct notes *notes);
void onesided_begin(struct onesided *one);
/* All is over, and its notifications are dropped. NULL: nothing is done. Any thread. */
void onesided_free(struct onesided *one);

/* COMMAND_OP. */
void onesided_submit(struct engine_thread *thread, struct op *op);
/* COMMAND_CANCEL of an operation's request. */
void onesided_cancel(struct engine_thread *thread, struct op *op);
/* COMMAND_NOTES: notifications were taken. */
void onesided_resume(struct engine_thread *thread, struct onesided *one);
/* An annex was called, has failed or has ended. */
void onesided_event(struct onesided *one, enum annex annex, enum core_event_kind kind, int32_t status);
/* Another flow of the connection has died. */
void onesided_peer_dead(struct onesided *one);
/* Closes the annexes. */
void onesided_close(struct onesided *one, uint64_t linger_ns, uint64_t now_ns);
/* Sends what is due, once the events of a round have been taken. `all`: before a sleep, also what may wait. */
void onesided_flush(struct engine_thread *thread, bool all);
/* Cancels what uses a revoked export, on this thread. */
void onesided_revoke(struct engine_thread *thread, const struct exported *exported);
/* The memory of the thread's messages. The thread has stopped. */
void onesided_end_thread(struct engine_thread *thread);

/* ---- among the files ------------------------------------------------------------------------- */

/* A message to submit. NULL: no memory. */
struct one_request *one_take(struct onesided *one, enum one_kind kind);
/* Where its payload is. A single piece may be in memory of a device. */
void one_submit(struct one_request *r, uint8_t *buffer, uint64_t bytes, const struct mem_identity *memory,
                const struct nic_mr *nic_mr);
/* Frees a message that has ended. */
void one_put(struct one_request *r);
/* A message of ANNEX_CONTROL: `bytes` of it become the message's. False: no memory, so that the annexes end. */
bool one_send_control(struct onesided *one, enum one_kind kind, uint8_t *bytes, size_t length);
/* Tells the peer which of its operations are done. */
void one_send_dones(struct onesided *one);
void one_be_due(struct onesided *one);
/* No operation can go on; ops_launch() ends them. */
static inline void one_fail(struct onesided *one, int32_t status)
{
    if (one->status == UCCL_OK)
        one->status = status;
}
/* The same, and the annexes end: memory is short, or the peer breaks the protocol. */
void one_break(struct onesided *one, int32_t status);

void ops_submit(struct onesided *one, struct op *op);
void ops_cancel(struct onesided *one, struct op *op);
/* Sends what may be sent, and ends what is over. The last step of whatever happens to a connection. */
void ops_launch(struct onesided *one);
void ops_on_done(struct onesided *one, const struct control *control);
void ops_part_ended(struct one_request *r);

void serve_called(struct onesided *one, enum annex annex);
void serve_received(struct one_request *r);
void serve_ended(struct one_request *r);
void serve_notes(struct onesided *one);

#endif
