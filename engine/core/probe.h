/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Return routability (RFC 9000 8). The handshake names the address for our packets, and may lie. Until that address
 * has echoed a number that nobody else can know, only probes go there: at most one for each packet of the peer, and a
 * few by the clock. So nobody can make an engine send to a third party.
 *
 * The accepting side sends a few probes by the clock if the peer's do not come: a stateful firewall in front of us
 * refuses these until a packet has left for the peer.
 *
 * Probes also ask a silent peer whether it lives (silence.h). They need no chunk record and no buffer, and their nonce
 * is the number of the rail. Padded ones find out which sizes get through (mtu.h); their echo is as small as any.
 */
#ifndef UCCL_PROBE_H
#define UCCL_PROBE_H

#include "core/wire.h"

struct rail;

enum {
    PROBE_ASK = 1,
    PROBE_ECHO = 2,
    PROBE_ECHO_SIZE = 4, /* of a padded one */
    PROBE_SIZE = 8,      /* a padded one, for mtu.h */
    PROBE_OPEN = 16,     /* reach.h */
    PROBE_TRY = 32,
    PROBE_ECHO_OLDER = 64, /* of the one before the newest, with PROBE_ECHO: they may ask different things */
    PROBE_ECHOES = PROBE_ECHO | PROBE_ECHO_OLDER | PROBE_ECHO_SIZE,
};

struct probe {
    uint64_t nonce;                /* that the peer's address must echo; 0: it has, or need not */
    uint64_t ask_at_ns;            /* when to ask again; UINT64_MAX: now, or not at all */
    uint8_t backoff;               /* doublings of the wait before that */
    uint8_t greetings;             /* probes by the clock that are left, even while nothing waits */
    bool asking;                   /* something waits for the proof: the peer's silence counts */
    uint8_t due;                   /* bits: PROBE_* */
    uint64_t echo_nonce;           /* of the peer's newest probe */
    uint64_t older_nonce;          /* of the one before it */
    uint64_t size_nonce;           /* of its newest padded one */
    uint16_t ask_path, echo_path;  /* of the last probe and echo */
    bool asks_again, echoes_again; /* the last one may be lost: the next takes another path */
    uint8_t echoed;                /* rails that the echoes have had, once some is proven */
    uint8_t echo_turn;             /* of rails, while none is proven */
};

static inline bool probe_proven(const struct probe *probe)
{
    return probe->nonce == 0;
}

void probe_init(struct rail *rail, uint64_t nonce, bool greets);
/* A probe has come, over the rail; or the echo of a probe of any rail. */
void probe_on_frame(struct rail *rail, const struct wire_probe *frame, uint64_t now_ns);
/* Notes whether something waits for the proof: then a probe is due, unless one has just gone. */
void probe_wait(struct rail *rail, bool waits);
/* The time has come to ask again. */
void probe_expire(struct rail *rail, uint64_t now_ns);
/*
 * Whether the due probe or echo takes the first path: every other one does, at both ends. The first path joins the
 * ports that the handshake named, the only pair for which firewalls at both ends can have seen a packet leave.
 */
bool probe_opens(const struct probe *probe);
/* The path that the due probe or echo should avoid, or -1; and the path that it takes. */
int probe_avoids(const struct probe *probe);
void probe_leaves(struct probe *probe, unsigned what, uint16_t path);
/* Writes those of the frames `what` that are due: PROBE_ASK, PROBE_ECHOES. Returns the bytes written. */
unsigned probe_put(struct rail *rail, unsigned what, uint8_t *at, uint64_t now_ns);
/* The NIC has refused what was `due`: PROBE_*. */
void probe_undo(struct rail *rail, unsigned due);

#endif
