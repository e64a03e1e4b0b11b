/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One listener, several addresses: which one leads to it? Happy Eyeballs (RFC 8305): the addresses are tried one after
 * the other, best first. The next one begins 100 ms after the one before, or at once where one has failed, and none is
 * given up for it. The first whose server says HELLO with the listener's nonce wins: a private address may be
 * another host's too. The others are closed.
 *
 * At most HANDLE_ADDRESSES_MAX descriptors. Threads: one at a time per object; nothing blocks but race_wait().
 */
#ifndef UCCL_RACE_H
#define UCCL_RACE_H

#include "boot/bootstrap.h"
#include "handle.h"

struct race_attempt {
    struct bootstrap *boot;      /* NULL: not begun, lost, failed, or the winner's, which has been taken */
    int error;                   /* why it failed */
    char fault[BOOT_FAULT_TEXT]; /* the same in words, to be logged when all is over; empty: nothing to say */
};

struct race {
    struct handle_target target;
    const uint8_t *engine_id;    /* ours */
    const char *ifname;          /* UCCL_SOCKET_IFNAME, for link-local addresses */
    uint64_t deadline_ns;
    uint64_t gap_ns;             /* between two attempts */
    uint64_t next_ns;            /* when the next one begins at the latest */
    unsigned begun;
    int winner;                  /* index, once one has won; else -1 */
    struct race_attempt attempts[HANDLE_ADDRESSES_MAX];
};

/* `engine_id` and `ifname` stay the caller's, and must outlive the race. */
void race_init(struct race *race, const struct handle_target *target, const uint8_t engine_id[16], const char *ifname,
               uint64_t now_ns, uint64_t deadline_ns);
/*
 * Goes as far as it can. 0: won; `*out` is the handshake, past its HELLO, the caller's to free before the race.
 * UCCL_EAGAIN: wait. Else all attempts have failed: of their errors the one that says most.
 */
int race_step(struct race *race, uint64_t now_ns, struct bootstrap **out);
/* Waits for the sockets, or until there is something to do. */
void race_wait(const struct race *race);
/*
 * Logs what each failed attempt had to say, once. `error`: how the connect has ended. What made it fail is a warning:
 * all attempts, or what became of the winner.
 */
void race_tell(struct race *race, int error);
/* Closes what is under way; nobody is told. */
void race_end(struct race *race);

#endif
