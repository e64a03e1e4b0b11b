/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C++ names of libuccl_p2p.so, which NIXL's plugin UCCL (v1.4.0) calls. Its build finds this header and the
 * library; programs of their own use uccl/engine.h instead, which can tell why a transfer has failed. This interface
 * cannot: see docs/nixl.md.
 *
 * Threads: any thread may call anything, also while another destroys the object; a call on a destroyed object, or in a
 * child of fork(), fails. Nothing here throws or prints to stdout. Failures are told once, on stderr.
 */
#ifndef UCCL_P2P_ENGINE_H
#define UCCL_P2P_ENGINE_H

#include <stddef.h>
#include <stdint.h>
#include <vector>

#define MSG_SIZE 256      /* bytes of the name and of the text of a notification */
#define FIFO_SIZE 64      /* bytes that describe a registration to peers */
#define IPC_INFO_SIZE 128 /* bytes for memory that is shared inside a host; nothing is in them */

/* Handles: numbers, not addresses. No two objects of a process have the same. */
typedef struct uccl_engine uccl_engine_t;
typedef struct uccl_conn uccl_conn_t;
typedef uint64_t uccl_mr_t;

/* A piece of a peer's registration. Peers exchange it as FIFO_SIZE bytes. */
struct FifoItem {
    uint64_t address;
    uint32_t size; /* the lowest 32 bits: the length of a transfer counts */
    uint8_t reference[52];
};

/* Both are binary; zeros at their ends are padding. */
typedef struct notify_msg {
    char name[MSG_SIZE]; /* a C string */
    char msg[MSG_SIZE];
} notify_msg_t;

/* ---- engine ---------------------------------------------------------------------------------- */

/* Opens an engine, which listens. UCCL_* variables set its parameters; both arguments are ignored. NULL: failure. */
uccl_engine_t *uccl_engine_create(int num_cpus, bool in_python);

/* Closes all connections of the engine, ends its registrations and frees it. Blocks as uccl_close() does. */
void uccl_engine_destroy(uccl_engine_t *engine);

/*
 * Writes "HOST:PORT?LISTENER", which tells peers where the engine listens, as a string from new char[]: the caller
 * deletes it. HOST and PORT are for people; LISTENER has all addresses, as hexadecimal digits. Returns 0 or -1.
 */
int uccl_engine_get_metadata(uccl_engine_t *engine, char **metadata);

/* ---- connections ----------------------------------------------------------------------------- */

/*
 * Connects to a peer, or to the engine itself, by the parts of its metadata; where `listener` is no listener, by `host`
 * and `port`. Blocks until the peer has answered, at most UCCL_CONNECT_MS. NULL: failure. `same_process` is ignored.
 */
uccl_conn_t *uccl_engine_connect(uccl_engine_t *engine, const char *host, const char *listener, int port,
                                 bool same_process = false);

/*
 * Waits for the next connection that a peer has made, and writes the peer's address and port. NULL, once the engine has
 * been told to stop, or has been destroyed. `gpu` gets -1.
 */
uccl_conn_t *uccl_engine_accept(uccl_engine_t *engine, char *address, size_t address_size, int *gpu);

/* From now on uccl_engine_accept() returns NULL, also where threads wait in it. */
void uccl_engine_stop_accept(uccl_engine_t *engine);

/* There is nothing to start: an engine listens for notifications by itself. Returns 0. */
int uccl_engine_start_listener(uccl_conn_t *conn);

/* Closes a connection. Pending transfers end; notifications still leave. Blocks as uccl_conn_close() does. */
void uccl_engine_conn_destroy(uccl_conn_t *conn);

/* Whether transfers should use what uccl_engine_get_ipc_info() writes: never. */
bool uccl_engine_conn_is_local(uccl_conn_t *conn);

/* ---- memory ---------------------------------------------------------------------------------- */

/*
 * Registers memory of host or GPU and lets peers that get its description read and write it. Returns 0 or -1. The
 * memory must stay until uccl_engine_mr_destroy() has returned.
 */
int uccl_engine_reg(uccl_engine_t *engine, uintptr_t data, size_t size, uccl_mr_t &mr);

/* Ends a registration. Waits until no transfer, of this side or of a peer, touches the memory any more. */
void uccl_engine_mr_destroy(uccl_engine_t *engine, uccl_mr_t mr);

/* Writes the FIFO_SIZE bytes that describe [data, data + size) of a registration. Returns 0 or -1. */
int uccl_engine_prepare_fifo(uccl_engine_t *engine, uccl_mr_t mr, const void *data, size_t size, char *fifo);

/* Reads such bytes; lets the item describe another piece of the same registration (0). */
void deserialize_fifo_item(const char *fifo, FifoItem *item);
int uccl_engine_update_fifo(FifoItem &item, uint64_t address, uint32_t size);

/* For memory that is shared inside a host. This library shares none: `has_ipc` gets false. Both return 0. */
int uccl_engine_get_ipc_info(uccl_engine_t *engine, uintptr_t address, char *ipc, bool *has_ipc);
int uccl_engine_update_ipc_info(char *ipc, uintptr_t address, uintptr_t base, size_t size);

/* ---- transfers ------------------------------------------------------------------------------- */

/*
 * Post a read from a peer, or a write to it, of `count` pieces, of which each is sizes[i] bytes at local[i], inside
 * registration mrs[i], and at items[i].address of the peer. Return 0 and a number for uccl_engine_xfer_status(), or
 * -1. They block only while too many transfers are pending. `ipc` is ignored.
 *   After a transfer of a connection has failed, all later ones, and notifications, fail here.
 */
int uccl_engine_read_vector(uccl_conn_t *conn, std::vector<uccl_mr_t> mrs, std::vector<void *> local,
                            std::vector<size_t> sizes, std::vector<FifoItem> items, int count, uint64_t *transfer,
                            std::vector<char *> ipc = {});
int uccl_engine_write_vector(uccl_conn_t *conn, std::vector<uccl_mr_t> mrs, std::vector<void *> local,
                             std::vector<size_t> sizes, std::vector<FifoItem> items, int count, uint64_t *transfer,
                             std::vector<char *> ipc = {});

/*
 * Whether a transfer has completed: its bytes are visible at their target. Never true for one that has failed, or
 * whose connection has been destroyed. Waits for nothing but another thread's call on the connection.
 */
bool uccl_engine_xfer_status(uccl_conn_t *conn, uint64_t transfer);

/* ---- notifications --------------------------------------------------------------------------- */

/* Sends a notification: it arrives once, in the order of the connection. Returns 0 or -1. */
int uccl_engine_send_notif(uccl_conn_t *conn, notify_msg_t *message);

/* Takes all notifications that have arrived at any engine of the process. */
std::vector<notify_msg_t> uccl_engine_get_notifs();

#endif
