/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds which of several addresses leads to a listener, by Happy Eyeballs (RFC 8305): tries the addresses one after the
 * other, best first. Each attempt begins 100 ms after the one before, or at once when one has failed; earlier attempts
 * go on. The first server that sends HELLO with the listener's nonce wins, since another host may have the same private
 * address. The others are closed.
 *
 * At most HANDLE_ADDRESSES_MAX descriptors. Threads: one at a time per object; nothing blocks but race_wait().
 */
#ifndef UCCL_RACE_H
#define UCCL_RACE_H

#include "boot/bootstrap.h"
#include "handle.h"

struct race_attempt {
    struct bootstrap *boot;      /* NULL: not begun, lost or failed, or the winner's, which the caller has */
    int error;                   /* why it failed */
    char fault[BOOT_FAULT_TEXT]; /* the same in words, for race_tell(); empty: none */
};

struct race {
    struct handle_target target;
    const uint8_t *engine_id; /* ours */
    const char *ifname;       /* UCCL_SOCKET_IFNAME, for link-local addresses */
    uint64_t features;        /* that our HELLOs tell beside those of frames */
    uint64_t deadline_ns;
    uint64_t gap_ns;  /* between two attempts */
    uint64_t next_ns; /* when the next one begins at the latest */
    unsigned begun;
    int winner; /* its index; -1: none yet */
    struct race_attempt attempts[HANDLE_ADDRESSES_MAX];
};

/* The caller keeps `engine_id` and `ifname`, which outlive the race. */
void race_init(struct race *race, const struct handle_target *target, const uint8_t engine_id[16], const char *ifname,
               uint64_t now_ns, uint64_t deadline_ns);
/* Another deadline, also for the attempts under way. */
void race_limit(struct race *race, uint64_t now_ns, uint64_t deadline_ns);
/*
 * Goes as far as possible. 0: won; `*out` is the handshake, past its HELLO, which the caller frees before the race.
 * UCCL_EAGAIN: wait. Otherwise all attempts have failed: returns the error that says most.
 */
int race_step(struct race *race, uint64_t now_ns, struct bootstrap **out);
/* Waits for the sockets, or until the next attempt is due. */
void race_wait(const struct race *race);
/*
 * Logs the line of each failed attempt, once. `error`: the result of the connect. Lines that explain a failure are
 * warnings: those of all attempts, or the winner's.
 */
void race_tell(struct race *race, int error);
/* Closes the attempts under way; sends nothing. */
void race_end(struct race *race);

#endif
