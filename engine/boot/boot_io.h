/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP socket that carries messages of the handshake and never blocks: the bytes that wait to be sent, and the one
 * message that is being read.
 *
 * Invariants:
 *   - rx never holds more than the message that is being read: the bytes behind it stay in the socket.
 *   - Whoever has not said HELLO costs no more than this struct: rx gets memory of its own once the header of a long
 *     message is here.
 *   - tx has room for what this side may still have to say but its OFFER, which brings its own.
 *
 * Threads: one at a time per object.
 */
#ifndef UCCL_BOOT_IO_H
#define UCCL_BOOT_IO_H

#include "boot/boot_wire.h"

#include <sys/types.h>

enum {
    /* HELLO, PROOFS or READY, REJECT: what one side says but its OFFER */
    BOOT_TX_SMALL = BOOT_HELLO_BYTES + BOOT_PROOFS_BYTES_MAX + BOOT_REJECT_BYTES,
    BOOT_TX_AFTER_OFFER = BOOT_READY_BYTES + BOOT_REJECT_BYTES,
};

struct boot_io {
    int fd;
    uint8_t *tx;     /* tx_small, or memory of its own */
    size_t tx_room;
    size_t tx_begin; /* first byte not yet sent */
    size_t tx_end;
    uint8_t *rx;     /* rx_small, or memory for a long message */
    size_t rx_have;  /* bytes of the message under way */
    uint8_t tx_small[BOOT_TX_SMALL];
    uint8_t rx_small[BOOT_SMALL_MAX];
};

/* Owns `fd` from now on. */
void boot_io_init(struct boot_io *io, int fd);
void boot_io_free(struct boot_io *io);

/* Where `length` bytes to be sent belong: behind those that wait. The caller adds what it wrote to tx_end. */
uint8_t *boot_io_place(struct boot_io *io, size_t length);
/* Memory of its own for `length` more bytes behind those that wait, and for what may follow an OFFER. False: none. */
bool boot_io_grow(struct boot_io *io, size_t length);
size_t boot_io_waiting(const struct boot_io *io);
/* Sends what waits as far as the socket takes it. 0, or the errno that ended it. */
int boot_io_flush(struct boot_io *io);
/*
 * The last words before the socket is closed, best effort. What lies unread in the socket would turn
 * the close into a reset, which may overtake them: it is taken out first.
 */
void boot_io_flush_last(struct boot_io *io);

/* Reads on up to `length` bytes of the message under way: how many came, 0 at the end of the stream, or -errno. */
ssize_t boot_io_read(struct boot_io *io, size_t length);
/* Room for a message of `length` bytes whose header is here. False: there is no memory. */
bool boot_io_expect(struct boot_io *io, size_t length);
/* The message in rx is done with. */
void boot_io_drop(struct boot_io *io);

/* Whether the TCP connect has ended: then `*system_error` says how, 0 well. */
bool boot_io_connected(const struct boot_io *io, int *system_error);

/* The library's error for the errno of a socket call. */
int boot_io_error(int system_error);
/* An IPv4 peer shows as ::ffff:a.b.c.d at a listener for both families; its IPv4 form serves all uses. */
void boot_io_unmap(union nic_address *address);

#endif
