/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Return routability (RFC 9000 8): the handshake tells an address to which packets shall go, and may lie. Until that
 * address has echoed a number that nobody else can know, nothing but probes goes there, one for each of the peer's packets at most and
 * a few by the clock. So nobody can make an engine send to a third party.
 *
 * Who is connected to says something unasked, though little, where the peer's probes do not come: a stateful firewall in front of
 * us refuses them until something has left for the peer.
 *
 * Probes also ask a silent peer whether it lives (silence.h): they need no chunk record and no buffer. Their nonce is 0
 * then. Padded ones ask what sizes get through (mtu.h); their echo is as small as any.
 */
#ifndef UCCL_PROBE_H
#define UCCL_PROBE_H

#include "core/wire.h"

struct flow;

enum {
    PROBE_ASK = 1,
    PROBE_ECHO = 2,
    PROBE_ECHO_SIZE = 4, /* of a padded one */
    PROBE_SIZE = 8,      /* a padded one, for mtu.h */
    PROBE_OPEN = 16, /* reach.h */
    PROBE_TRY = 32,
};

struct probe {
    uint64_t nonce;      /* that the peer's address is to echo; 0: it has, or need not */
    uint64_t ask_at_ns;  /* when to ask again; UINT64_MAX: now, or not at all */
    uint8_t backoff;     /* of that */
    uint8_t greetings;   /* asks by the clock that are left though nothing waits */
    bool asking;         /* something waits for the proof: the peer's silence counts */
    uint8_t due;         /* bits: PROBE_* */
    bool proof_report_due;/* the owner is about to be told that the address is proven */
    uint64_t echo_nonce; /* of the peer's newest probe */
    uint64_t size_nonce; /* of its newest padded one */
    uint16_t ask_path, echo_path; /* that the last ones took */
    bool asks_again, echoes_again; /* these may have been lost on their way: another one is better */
};

static inline bool probe_proven(const struct probe *probe)
{
    return probe->nonce == 0;
}

void probe_init(struct flow *flow, uint64_t nonce, bool greets);
void probe_on_frame(struct flow *flow, const struct wire_probe *frame, uint64_t now_ns);
/* Whether something waits for the proof: then a probe is due, unless one has just gone. */
void probe_wait(struct flow *flow, bool waits);
/* The time has come to ask again. */
void probe_expire(struct flow *flow, uint64_t now_ns);
/*
 * Whether what is due takes the first path: every other ask and every other echo does, at both ends. It joins the ports that were
 * told in the handshake, the only pair for which firewalls at both ends can have seen something leave.
 */
bool probe_opens(const struct probe *probe);
/* The path to keep off with what is due, or -1; and the one that it takes. */
int probe_avoids(const struct probe *probe);
void probe_leaves(struct probe *probe, uint16_t path);
/* Writes the frames that are due, but for a padded one; the bytes written. */
unsigned probe_put(struct flow *flow, uint8_t *at, uint64_t now_ns);

#endif
