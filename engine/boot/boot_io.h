/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP socket that carries messages of the handshake and never blocks: the bytes that wait to be sent, and the one
 * message that is being read.
 *
 * Invariants:
 *   - rx never holds more than the message being read: the bytes behind it stay in the socket.
 *   - A peer that has not sent HELLO costs no more than this struct: rx gets memory of its own once the header of a
 *     long message is here.
 *   - tx has room for all that this side may still send, except its OFFER, which brings memory of its own.
 *
 * Threads: one at a time per object.
 */
#ifndef UCCL_BOOT_IO_H
#define UCCL_BOOT_IO_H

#include "boot/boot_wire.h"

#include <sys/types.h>

enum {
    /* HELLO, PROOFS or READY, REJECT: all that one side sends beside its OFFER */
    BOOT_TX_SMALL = BOOT_HELLO_BYTES + BOOT_PROOFS_BYTES_MAX + BOOT_REJECT_BYTES,
    BOOT_TX_AFTER_OFFER = BOOT_READY_BYTES + BOOT_REJECT_BYTES,
};

struct boot_io {
    int fd;
    uint32_t process; /* that made it (process.h) */
    uint8_t *tx;      /* tx_small, or memory of its own */
    size_t tx_room;
    size_t tx_begin; /* first byte not yet sent */
    size_t tx_end;
    uint8_t *rx;    /* rx_small, or memory for a long message */
    size_t rx_have; /* bytes of the current message */
    uint8_t tx_small[BOOT_TX_SMALL];
    uint8_t rx_small[BOOT_SMALL_MAX];
};

/* Owns `fd` from now on. */
void boot_io_init(struct boot_io *io, int fd);
/* Ends the connection, unless this is a child of fork(): then the connection is the parent's. */
void boot_io_free(struct boot_io *io);

/* Room for `length` bytes behind those that wait to be sent. The caller adds the bytes that it wrote to tx_end. */
uint8_t *boot_io_reserve(struct boot_io *io, size_t length);
/* Moves tx to memory for what waits, an OFFER of `length` bytes and all that may follow it. False: no memory. */
bool boot_io_grow(struct boot_io *io, size_t length);
size_t boot_io_waiting(const struct boot_io *io);
/* Sends what waits as far as the socket takes it. 0, or the errno that ended it. */
int boot_io_flush(struct boot_io *io);
/*
 * Flushes before the socket is closed, best effort, and discards unread bytes: they would turn the close into a reset,
 * which may overtake the bytes sent last.
 */
void boot_io_flush_last(struct boot_io *io);

/* Reads the current message up to `length` bytes. Returns how many came, 0 at the end of the stream, or -errno. */
ssize_t boot_io_read(struct boot_io *io, size_t length);
/* Makes room for a message of `length` bytes whose header is in rx. False: no memory. */
bool boot_io_expect(struct boot_io *io, size_t length);
/* Frees the message in rx. */
void boot_io_drop(struct boot_io *io);

/* Whether the TCP connect has ended. Then `*system_error` is its errno, 0: connected. */
bool boot_io_connected(const struct boot_io *io, int *system_error);

/* The library's error for the errno of a socket call. */
int boot_io_error(int system_error);

#endif
