/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Losses of a rail's chunks: what congestion control hears of them, whether they prove needless, and the timers that
 * find them. Those are RACK's (sent.h), the tail-loss probe (RFC 8985 7) and the retransmission timeout (RFC 6298 5).
 */
#ifndef UCCL_LOSS_H
#define UCCL_LOSS_H

#include <stdbool.h>
#include <stdint.h>

struct rail;

struct loss {
    uint64_t rack_at_ns;      /* when RACK looks again; UINT64_MAX: never */
    uint8_t rto_backoff;      /* doublings of the retransmission timeout */
    bool tail_probed;         /* a tail-loss probe was sent since the last progress */
    bool tail_probe_due;      /* one is about to go, whatever the window */
    bool undo_startup;        /* the window was growing as at the start when undo_cwnd_bytes was taken */
    uint64_t undo_cwnd_bytes; /* the window before the last losses, should they prove needless; 0: none */
    uint64_t undo_since_ns;   /* when those losses were found */
};

void loss_init(struct rail *rail);
/* `lost` chunks have been declared lost: congestion control reacts. */
void loss_count(struct rail *rail, unsigned lost, uint64_t now_ns);
/*
 * An ack has come. `spurious`: it shows that a loss was none, so the window is as before. Else it may confirm the
 * losses.
 */
void loss_settle(struct rail *rail, bool spurious);
/* When the tail-loss probe goes, once, or the retransmission timeout fires; UINT64_MAX: never. */
uint64_t loss_deadline(const struct rail *rail);
/* RACK's timer. */
void loss_expire_rack(struct rail *rail, uint64_t now_ns);
/* The timer of loss_deadline(). */
void loss_expire(struct rail *rail, uint64_t now_ns);

#endif
