/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the handshake: the layout of its messages, and the ranges of their fields. No other file writes or reads
 * them; docs/bootstrap.md has the same as tables. The decoders are fuzzed.
 *
 * Threads: any; no state.
 */
#ifndef UCCL_BOOT_WIRE_H
#define UCCL_BOOT_WIRE_H

#include "nic/nic.h"
#include "uccl/engine.h"

enum {
    BOOT_VERSION = 3,
    BOOT_FLOWS_MAX = 64,
    BOOT_PROOFS_MAX = 32,     /* peers of one engine id that a server proves to know, at most */
    BOOT_MESSAGE_MAX = 16384, /* bytes of an OFFER; longer is UCCL_EPROTO */
    BOOT_SMALL_MAX = 512,     /* bytes of any other message */
    BOOT_HEADER_BYTES = 8,
    BOOT_HELLO_BYTES = BOOT_HEADER_BYTES + 50,
    BOOT_OLD_HELLO_BYTES = BOOT_HEADER_BYTES + 18, /* of versions 1 and 2; every version begins so */
    BOOT_READY_BYTES = BOOT_HEADER_BYTES,
    BOOT_REJECT_BYTES = BOOT_HEADER_BYTES + 2,
    BOOT_PROOF_BYTES = 8,
    BOOT_PRIVATE_MAX = 256, /* bytes of private data */
    BOOT_BESIDE_MAX = 16,   /* and of the address of a queue that stands beside another */
    BOOT_PROOFS_BYTES_MAX = BOOT_HEADER_BYTES + BOOT_PROOFS_MAX * BOOT_PROOF_BYTES,
};

enum boot_kind { BOOT_NONE, BOOT_HELLO_MSG, BOOT_OFFER_MSG, BOOT_READY_MSG, BOOT_REJECT_MSG, BOOT_PROOFS_MSG };

/* Who sent a message. Detects an echo service, and a socket that connected to itself. */
enum boot_sender { BOOT_FROM_CLIENT = 1, BOOT_FROM_SERVER = 2 };

struct boot_header {
    uint8_t kind;   /* enum boot_kind, or any byte that the peer wrote */
    uint8_t sender; /* enum boot_sender, likewise */
    size_t length;  /* of the whole message */
};

/* Feature bits of HELLO from 41 on: the sender takes flows whose queues have addresses of kind k; older ones none. */
#define BOOT_TAKES(kind) (UINT64_C(1) << (40 + (kind)))

struct boot_hello {
    uint16_t version;
    uint8_t engine_id[16];
    uint8_t nonce[16]; /* drawn for this handshake; this and all below are zero where the version is not ours */
    uint64_t features;
    uint64_t listener; /* a server's: nonce of the listener that the client has reached; a client's: 0 */
};

/* The HELLOs of both sides: every proof covers them. */
struct boot_transcript {
    struct boot_hello client, server;
};

/* The tokens of a peer's flow 0, by the end that expects them. Only the two engines know both. */
struct boot_key {
    uint64_t to_client;
    uint64_t to_server;
};

/* One engine thread of the sender. */
struct boot_flow {
    uint64_t token;                   /* the sender expects it in packets */
    struct nic_queue_address address; /* of the thread's queue; the NIC reads it */
    struct nic_queue_address beside;  /* and of the queue beside it; length 0: none, as with all flows of the offer */
    uint32_t datagram_bytes;          /* full datagram that the sender's route to the receiver allows */
    uint64_t rx_bytes;                /* share of the sender's receive buffer that the receiver may fill */
};

struct boot_offer {
    uint32_t conn_id;      /* the peer writes it into frames for this connection */
    uint16_t home;         /* index of the flow that serves the connection; the client chooses, the server echoes it */
    bool known;            /* both sides have the flows already; `proof` has a value, the fields of flows are 0 */
    uint64_t proof;        /* where known: that the sender has both tokens of flow 0 */
    uint16_t flow_count;   /* 1..BOOT_FLOWS_MAX; both sides use the smaller count */
    uint32_t chunk_window; /* the sender's parameters; both sides use the smaller */
    uint32_t msg_window;
    uint32_t eager_window_kb;
    struct boot_flow flows[BOOT_FLOWS_MAX];
    /* the sender's NICs, if it uses several; the queue of each flow has its address on every one of them */
    uint8_t nic_count; /* 0 or 2..NIC_ENDS_MAX */
    struct nic_end nics[NIC_ENDS_MAX];
    /* of the application, in every handshake */
    uint16_t private_bytes; /* 0..BOOT_PRIVATE_MAX */
    uint8_t private_data[BOOT_PRIVATE_MAX];
};

struct boot_proofs {
    unsigned count;
    uint64_t at[BOOT_PROOFS_MAX];
};

/* Whether the first `length` bytes, up to 4, may begin a message. */
bool boot_is_magic(const uint8_t *bytes, size_t length);
/* From BOOT_HEADER_BYTES bytes whose magic has been checked. */
struct boot_header boot_take_header(const uint8_t *bytes);

/* NULL, or the fault of an offer. */
const char *boot_offer_fault(const struct boot_offer *offer);

/* Decoders of a whole message. NULL: `*out` is set. Otherwise: the fault, and `*out` is unchanged. */
const char *boot_decode_hello(const uint8_t *bytes, size_t length, struct boot_hello *out);
const char *boot_decode_offer(const uint8_t *bytes, size_t length, struct boot_offer *out);
const char *boot_decode_proofs(const uint8_t *bytes, size_t length, struct boot_proofs *out);
const char *boot_decode_reject(const uint8_t *bytes, size_t length, uint16_t *code);

/* Encoders: each writes a whole message at `out`, which has room, and returns its bytes. */
size_t boot_offer_bytes(const struct boot_offer *offer);
size_t boot_put_hello(uint8_t *out, enum boot_sender sender, const struct boot_hello *hello);
size_t boot_put_offer(uint8_t *out, enum boot_sender sender, const struct boot_offer *offer);
size_t boot_put_proofs(uint8_t *out, const struct boot_proofs *proofs);
size_t boot_put_ready(uint8_t *out, enum boot_sender sender);
size_t boot_put_reject(uint8_t *out, enum boot_sender sender, uint16_t code);

/* Who proves, in which message: a proof of one kind is no proof of another. */
enum boot_prover {
    BOOT_SERVER_PROVES = 1, /* in PROOFS, before the client's offer */
    BOOT_CLIENT_CLAIMS = 2, /* in the client's OFFER; covers its connection section */
    BOOT_SERVER_OFFERS = 3, /* in the server's OFFER; covers its connection section */
};
/*
 * Proves that the sender has both tokens of `key`: SipHash-2-4 of the two HELLOs, the prover, and the connection
 * offered (NULL: none yet). The nonces in the HELLOs make the proof useless in any other handshake.
 */
uint64_t boot_proof(const struct boot_key *key, enum boot_prover prover, const struct boot_transcript *transcript,
                    const struct boot_offer *offer);

#endif
