/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/boot_wire.h"

#include "base/le.h"
#include "base/siphash.h"
#include "nic/pair.h"

#include <assert.h>
#include <string.h>

enum {
    MAGIC_BYTES = 4,
    SECTION_HEADER_BYTES = 4,
    CONNECTION_BYTES = 6,
    QUEUES_FIXED_BYTES = 14,
    FLOW_FIXED_BYTES = 21,
    NICS_FIXED_BYTES = 2,
    NIC_FIXED_BYTES = 10,
    IPV4_BYTES = 4,
    IPV6_BYTES = 16,
    DATAGRAM_BYTES_MAX = (1 << 24) - 1, /* over UDP at most 65,535, over TCP as long as a record may be */
};

/* Sections of an OFFER, in ascending order, so that none comes twice. Reserved: 6, for security. */
enum section {
    SECTION_CONNECTION = 1,
    SECTION_QUEUES = 2,
    SECTION_KNOWN = 3,
    SECTION_NICS = 4,
    SECTION_PRIVATE = 5,
    SECTION_BESIDE = 7,
    SECTION_OPTIONAL = 0x8000, /* a receiver that does not know the type skips the section; else it refuses the OFFER */
};

_Static_assert(BOOT_HEADER_BYTES + 5 * SECTION_HEADER_BYTES + CONNECTION_BYTES + QUEUES_FIXED_BYTES +
                       BOOT_FLOWS_MAX * (FLOW_FIXED_BYTES + NIC_QUEUE_ADDRESS_MAX + 1 + BOOT_BESIDE_MAX) +
                       NICS_FIXED_BYTES + NIC_ENDS_MAX * (NIC_FIXED_BYTES + IPV6_BYTES) + BOOT_PRIVATE_MAX <=
                   BOOT_MESSAGE_MAX,
               "the largest offer fits a message");
_Static_assert(BOOT_PROOFS_BYTES_MAX <= BOOT_SMALL_MAX, "the most proofs fit a message");

/* The first byte begins no text protocol. */
static const uint8_t MAGIC[MAGIC_BYTES] = {0xB7, 'U', 'C', 'B'};

/* A peer may offer whatever a user may set: the ranges of params.def. */
enum {
#define PARAM_U64(field, name, default_, min, max, unit, doc) MIN_##field = (min), MAX_##field = (max),
#define PARAM_BOOL(field, name, default_, doc)
#define PARAM_ENUM(field, name, default_, choices, doc)
#define PARAM_STR(field, name, default_, doc)
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
};

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Writes the low `bytes` bytes of `value` at `*at`, little-endian, and moves on. */
static void put_le(uint8_t **at, uint64_t value, unsigned bytes)
{
    *at = le_put(*at, value, bytes);
}

static void put_bytes(uint8_t **at, const uint8_t *bytes, size_t length)
{
    memcpy(*at, bytes, length);
    *at += length;
}

/* Reads `bytes` bytes at `*at`, little-endian, and moves on. The caller has checked the length. */
static uint64_t take_le(const uint8_t **at, unsigned bytes)
{
    uint64_t value = le_get(*at, bytes);
    *at += bytes;
    return value;
}

static void take_bytes(const uint8_t **at, uint8_t *out, size_t length)
{
    memcpy(out, *at, length);
    *at += length;
}

bool boot_is_magic(const uint8_t *bytes, size_t length)
{
    return memcmp(bytes, MAGIC, length < MAGIC_BYTES ? length : MAGIC_BYTES) == 0;
}

static void put_message_header(uint8_t **at, enum boot_kind kind, enum boot_sender sender, size_t length)
{
    assert(length >= BOOT_HEADER_BYTES && length <= BOOT_MESSAGE_MAX);
    put_bytes(at, MAGIC, MAGIC_BYTES);
    put_le(at, kind, 1);
    put_le(at, sender, 1);
    put_le(at, length - BOOT_HEADER_BYTES, 2);
}

struct boot_header boot_take_header(const uint8_t *bytes)
{
    struct boot_header header;
    const uint8_t *at = bytes + MAGIC_BYTES;
    header.kind = (uint8_t)take_le(&at, 1);
    header.sender = (uint8_t)take_le(&at, 1);
    header.length = BOOT_HEADER_BYTES + (size_t)take_le(&at, 2);
    return header;
}

/* Checks a whole message: its kind, and that its header says `length`. Moves `*at` to the body. */
static bool open_message(const uint8_t **at, size_t length, enum boot_kind kind)
{
    if (length < BOOT_HEADER_BYTES || length > BOOT_MESSAGE_MAX || !boot_is_magic(*at, length))
        return false;
    struct boot_header header = boot_take_header(*at);
    *at += BOOT_HEADER_BYTES;
    return header.kind == kind && header.length == length &&
           (header.sender == BOOT_FROM_CLIENT || header.sender == BOOT_FROM_SERVER);
}

/* ---- HELLO, PROOFS, READY, REJECT ------------------------------------------------------------ */

const char *boot_decode_hello(const uint8_t *bytes, size_t length, struct boot_hello *out)
{
    const uint8_t *at = bytes;
    struct boot_hello hello = {0};
    if (!open_message(&at, length, BOOT_HELLO_MSG) || length < BOOT_OLD_HELLO_BYTES)
        return "malformed";
    hello.version = (uint16_t)take_le(&at, 2);
    take_bytes(&at, hello.engine_id, sizeof hello.engine_id);
    /* A later release may send more; in our own and older versions trailing bytes are garbage. */
    if (hello.version < BOOT_VERSION && length != BOOT_OLD_HELLO_BYTES)
        return "malformed";
    if (hello.version == BOOT_VERSION) {
        if (length != BOOT_HELLO_BYTES)
            return "malformed";
        take_bytes(&at, hello.nonce, sizeof hello.nonce);
        hello.features = take_le(&at, 8);
        hello.listener = take_le(&at, 8);
    }
    *out = hello;
    return NULL;
}

/* The body of a HELLO; a proof covers the same bytes. */
static void put_hello(uint8_t **at, const struct boot_hello *hello)
{
    put_le(at, hello->version, 2);
    put_bytes(at, hello->engine_id, sizeof hello->engine_id);
    put_bytes(at, hello->nonce, sizeof hello->nonce);
    put_le(at, hello->features, 8);
    put_le(at, hello->listener, 8);
}

size_t boot_put_hello(uint8_t *out, enum boot_sender sender, const struct boot_hello *hello)
{
    uint8_t *at = out;
    put_message_header(&at, BOOT_HELLO_MSG, sender, BOOT_HELLO_BYTES);
    put_hello(&at, hello);
    return BOOT_HELLO_BYTES;
}

const char *boot_decode_proofs(const uint8_t *bytes, size_t length, struct boot_proofs *out)
{
    const uint8_t *at = bytes;
    if (!open_message(&at, length, BOOT_PROOFS_MSG))
        return "malformed";
    size_t body = length - BOOT_HEADER_BYTES;
    if (body % BOOT_PROOF_BYTES || body / BOOT_PROOF_BYTES > BOOT_PROOFS_MAX)
        return "number of proofs out of range";
    memset(out, 0, sizeof *out);
    out->count = (unsigned)(body / BOOT_PROOF_BYTES);
    for (unsigned i = 0; i < out->count; i++)
        out->at[i] = take_le(&at, BOOT_PROOF_BYTES);
    return NULL;
}

size_t boot_put_proofs(uint8_t *out, const struct boot_proofs *proofs)
{
    assert(proofs->count <= BOOT_PROOFS_MAX);
    uint8_t *at = out;
    put_message_header(&at, BOOT_PROOFS_MSG, BOOT_FROM_SERVER,
                       BOOT_HEADER_BYTES + (size_t)proofs->count * BOOT_PROOF_BYTES);
    for (unsigned i = 0; i < proofs->count; i++)
        put_le(&at, proofs->at[i], BOOT_PROOF_BYTES);
    return (size_t)(at - out);
}

size_t boot_put_ready(uint8_t *out, enum boot_sender sender)
{
    put_message_header(&out, BOOT_READY_MSG, sender, BOOT_READY_BYTES);
    return BOOT_READY_BYTES;
}

const char *boot_decode_reject(const uint8_t *bytes, size_t length, uint16_t *code)
{
    const uint8_t *at = bytes;
    if (!open_message(&at, length, BOOT_REJECT_MSG) || length != BOOT_REJECT_BYTES)
        return "malformed";
    *code = (uint16_t)take_le(&at, 2);
    return NULL;
}

size_t boot_put_reject(uint8_t *out, enum boot_sender sender, uint16_t code)
{
    put_message_header(&out, BOOT_REJECT_MSG, sender, BOOT_REJECT_BYTES);
    put_le(&out, code, 2);
    return BOOT_REJECT_BYTES;
}

/* ---- OFFER ----------------------------------------------------------------------------------- */

static bool power_of_two_within(uint32_t value, uint32_t min, uint32_t max)
{
    return value >= min && value <= max && (value & (value - 1)) == 0;
}

static const char *queues_fault(const struct boot_offer *offer)
{
    if (offer->flow_count < 1 || offer->flow_count > BOOT_FLOWS_MAX)
        return "number of flows out of range";
    if (!power_of_two_within(offer->chunk_window, MIN_chunk_window, MAX_chunk_window))
        return "chunk window out of range or no power of two";
    if (!power_of_two_within(offer->msg_window, MIN_msg_window, MAX_msg_window))
        return "message window out of range or no power of two";
    if (offer->eager_window_kb < MIN_eager_window_kb || offer->eager_window_kb > MAX_eager_window_kb)
        return "eager window out of range";
    for (unsigned i = 0; i < offer->flow_count; i++) {
        const struct boot_flow *flow = &offer->flows[i];
        if (flow->token == 0)
            return "a flow without token";
        if (flow->address.length == 0 || flow->address.length > NIC_QUEUE_ADDRESS_MAX)
            return "length of a flow's address out of range";
        if (flow->datagram_bytes < CORE_DATAGRAM_MIN || flow->datagram_bytes > DATAGRAM_BYTES_MAX)
            return "datagram size out of range";
        if (flow->rx_bytes == 0)
            return "a flow without receive buffer";
        if (flow->beside.length > BOOT_BESIDE_MAX || (flow->beside.length == 0) != (offer->flows[0].beside.length == 0))
            return "length of an address of a queue beside out of range";
    }
    return NULL;
}

static const char *nics_fault(const struct boot_offer *offer)
{
    if (offer->nic_count == 1 || offer->nic_count > NIC_ENDS_MAX || (offer->known && offer->nic_count))
        return "number of NICs out of range";
    const char *fault = NULL;
    for (unsigned i = 0; i < offer->nic_count && !fault; i++)
        fault = nic_end_fault(&offer->nics[i]);
    return fault;
}

const char *boot_offer_fault(const struct boot_offer *offer)
{
    if (offer->home >= (offer->known ? BOOT_FLOWS_MAX : offer->flow_count))
        return "home is none of its flows";
    if (offer->private_bytes > BOOT_PRIVATE_MAX)
        return "too much private data";
    const char *fault = nics_fault(offer);
    if (fault)
        return fault;
    return offer->known ? NULL : queues_fault(offer);
}

/* Reads a flow at `*at` and moves on. False: `end` comes first, or the address is too long. */
static bool take_flow(const uint8_t **at, const uint8_t *end, struct boot_flow *flow)
{
    if (end - *at < FLOW_FIXED_BYTES)
        return false;
    flow->token = take_le(at, 8);
    flow->rx_bytes = take_le(at, 8);
    flow->datagram_bytes = (uint32_t)take_le(at, 4);
    flow->address.length = (uint8_t)take_le(at, 1);
    if (flow->address.length > NIC_QUEUE_ADDRESS_MAX || end - *at < flow->address.length)
        return false;
    take_bytes(at, flow->address.bytes, flow->address.length);
    return true;
}

/* The body of each section, from `at` to `end`. NULL, or what is wrong with it. */
static const char *take_connection(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    if (end - at != CONNECTION_BYTES)
        return "length of the connection section";
    offer->conn_id = (uint32_t)take_le(&at, 4);
    offer->home = (uint16_t)take_le(&at, 2);
    return NULL;
}

static const char *take_queues(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    if (end - at < QUEUES_FIXED_BYTES)
        return "length of the queues section";
    offer->chunk_window = (uint32_t)take_le(&at, 4);
    offer->msg_window = (uint32_t)take_le(&at, 4);
    offer->eager_window_kb = (uint32_t)take_le(&at, 4);
    offer->flow_count = (uint16_t)take_le(&at, 2);
    if (offer->flow_count < 1 || offer->flow_count > BOOT_FLOWS_MAX)
        return "number of flows out of range";
    for (unsigned i = 0; i < offer->flow_count; i++) {
        if (!take_flow(&at, end, &offer->flows[i]))
            return "number of flows and length disagree, or an address is too long";
    }
    return at == end ? NULL : "number of flows and length disagree";
}

static const char *take_known(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    if (end - at != BOOT_PROOF_BYTES)
        return "length of the section of known flows";
    offer->known = true;
    offer->proof = take_le(&at, BOOT_PROOF_BYTES);
    return NULL;
}

/* Reads a NIC at `*at` and moves on. False: `end` comes first, or its address is of no family. */
static bool take_nic(const uint8_t **at, const uint8_t *end, struct nic_end *nic)
{
    if (end - *at < NIC_FIXED_BYTES)
        return false;
    unsigned bytes = (unsigned)take_le(at, 1);
    nic->prefix_bits = (uint8_t)take_le(at, 1);
    nic->speed_mbps = (uint32_t)take_le(at, 4);
    nic->mtu = (uint32_t)take_le(at, 4);
    if ((bytes != IPV4_BYTES && bytes != IPV6_BYTES) || end - *at < (ptrdiff_t)bytes)
        return false;
    if (bytes == IPV6_BYTES) {
        nic->address.v6.sin6_family = AF_INET6;
        take_bytes(at, nic->address.v6.sin6_addr.s6_addr, bytes);
    } else {
        nic->address.v4.sin_family = AF_INET;
        take_bytes(at, (uint8_t *)&nic->address.v4.sin_addr, bytes);
    }
    return true;
}

static const char *take_nics(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    if (end - at < NICS_FIXED_BYTES)
        return "length of the section of NICs";
    offer->nic_count = (uint8_t)take_le(&at, 1);
    if (offer->nic_count < 2 || offer->nic_count > NIC_ENDS_MAX)
        return "number of NICs out of range";
    if (take_le(&at, 1) != 0)
        return "addresses of queues per NIC, which this version does not know";
    for (unsigned i = 0; i < offer->nic_count; i++) {
        if (!take_nic(&at, end, &offer->nics[i]))
            return "number of NICs and length disagree, or an address has another length";
    }
    return at == end ? NULL : "number of NICs and length disagree";
}

static const char *take_private(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    if (end == at || end - at > BOOT_PRIVATE_MAX)
        return "length of the private data";
    offer->private_bytes = (uint16_t)(end - at);
    take_bytes(&at, offer->private_data, offer->private_bytes);
    return NULL;
}

/* Comes behind the queues; a flow for each of theirs. */
static const char *take_beside(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    for (unsigned i = 0; i < offer->flow_count; i++) {
        struct nic_queue_address *address = &offer->flows[i].beside;
        address->length = (uint8_t)(at < end ? take_le(&at, 1) : 0);
        if (address->length == 0 || address->length > BOOT_BESIDE_MAX || end - at < address->length)
            return "length of an address of a queue beside";
        take_bytes(&at, address->bytes, address->length);
    }
    return at == end ? NULL : "more addresses of queues beside than flows";
}

static const char *take_section(unsigned type, bool optional, const uint8_t *at, const uint8_t *end,
                                struct boot_offer *offer)
{
    switch (type) {
    case SECTION_CONNECTION:
        return take_connection(at, end, offer);
    case SECTION_QUEUES:
        return take_queues(at, end, offer);
    case SECTION_KNOWN:
        return take_known(at, end, offer);
    case SECTION_NICS:
        return take_nics(at, end, offer);
    case SECTION_PRIVATE:
        return take_private(at, end, offer);
    case SECTION_BESIDE:
        return take_beside(at, end, offer);
    default:
        return optional ? NULL : "a section that this version does not know, and that is not optional";
    }
}

/* Decodes into `offer`, which is zero. */
static const char *take_offer(const uint8_t *at, const uint8_t *end, struct boot_offer *offer)
{
    unsigned before = 0;
    bool connection = false;
    while (at < end) {
        if (end - at < SECTION_HEADER_BYTES)
            return "a section cut short";
        unsigned type = (unsigned)take_le(&at, 2);
        size_t length = (size_t)take_le(&at, 2);
        bool optional = type & SECTION_OPTIONAL;
        type &= ~(unsigned)SECTION_OPTIONAL;
        if ((size_t)(end - at) < length)
            return "a section longer than the message";
        if (type <= before)
            return "sections twice or out of order";
        const char *fault = take_section(type, optional, at, at + length, offer);
        if (fault)
            return fault;
        connection = connection || type == SECTION_CONNECTION;
        before = type;
        at += length;
    }
    if (!connection)
        return "no connection in it";
    if (offer->known == (offer->flow_count != 0))
        return offer->known ? "flows both known and new" : "no flows in it";
    return boot_offer_fault(offer);
}

const char *boot_decode_offer(const uint8_t *bytes, size_t length, struct boot_offer *out)
{
    const uint8_t *at = bytes;
    struct boot_offer offer;
    memset(&offer, 0, sizeof offer);
    if (!open_message(&at, length, BOOT_OFFER_MSG))
        return "malformed";
    const char *fault = take_offer(at, bytes + length, &offer);
    if (!fault)
        *out = offer;
    return fault;
}

static size_t queues_bytes(const struct boot_offer *offer)
{
    size_t length = QUEUES_FIXED_BYTES;
    for (unsigned i = 0; i < offer->flow_count; i++)
        length += FLOW_FIXED_BYTES + (size_t)offer->flows[i].address.length;
    return length;
}

static size_t address_bytes(const struct nic_end *nic)
{
    return nic->address.any.sa_family == AF_INET6 ? IPV6_BYTES : IPV4_BYTES;
}

/* 0: there is no such section. */
static size_t nics_bytes(const struct boot_offer *offer)
{
    size_t length = offer->nic_count ? NICS_FIXED_BYTES : 0;
    for (unsigned i = 0; i < offer->nic_count; i++)
        length += NIC_FIXED_BYTES + address_bytes(&offer->nics[i]);
    return length;
}

/* Likewise. */
static size_t beside_bytes(const struct boot_offer *offer)
{
    size_t length = 0;
    for (unsigned i = 0; i < offer->flow_count && offer->flows[0].beside.length; i++)
        length += 1 + (size_t)offer->flows[i].beside.length;
    return length;
}

/* Bytes of an optional section whose body has `length`. */
static size_t section_bytes(size_t length)
{
    return length ? SECTION_HEADER_BYTES + length : 0;
}

size_t boot_offer_bytes(const struct boot_offer *offer)
{
    size_t flows = offer->known ? (size_t)BOOT_PROOF_BYTES : queues_bytes(offer);
    return BOOT_HEADER_BYTES + SECTION_HEADER_BYTES + CONNECTION_BYTES + SECTION_HEADER_BYTES + flows +
           section_bytes(nics_bytes(offer)) + section_bytes(offer->private_bytes) + section_bytes(beside_bytes(offer));
}

static void put_section(uint8_t **at, unsigned type, size_t length)
{
    put_le(at, type, 2);
    put_le(at, length, 2);
}

/* The body of the connection section; a proof covers the same bytes. */
static void put_connection(uint8_t **at, const struct boot_offer *offer)
{
    put_le(at, offer->conn_id, 4);
    put_le(at, offer->home, 2);
}

static void put_queues(uint8_t **at, const struct boot_offer *offer)
{
    put_le(at, offer->chunk_window, 4);
    put_le(at, offer->msg_window, 4);
    put_le(at, offer->eager_window_kb, 4);
    put_le(at, offer->flow_count, 2);
    for (unsigned i = 0; i < offer->flow_count; i++) {
        const struct boot_flow *flow = &offer->flows[i];
        put_le(at, flow->token, 8);
        put_le(at, flow->rx_bytes, 8);
        put_le(at, flow->datagram_bytes, 4);
        put_le(at, flow->address.length, 1);
        put_bytes(at, flow->address.bytes, flow->address.length);
    }
}

static void put_nics(uint8_t **at, const struct boot_offer *offer)
{
    put_le(at, offer->nic_count, 1);
    put_le(at, 0, 1); /* no addresses of queues per NIC */
    for (unsigned i = 0; i < offer->nic_count; i++) {
        const struct nic_end *nic = &offer->nics[i];
        bool v6 = nic->address.any.sa_family == AF_INET6;
        put_le(at, address_bytes(nic), 1);
        put_le(at, nic->prefix_bits, 1);
        put_le(at, nic->speed_mbps, 4);
        put_le(at, nic->mtu, 4);
        put_bytes(at, v6 ? nic->address.v6.sin6_addr.s6_addr : (const uint8_t *)&nic->address.v4.sin_addr,
                  address_bytes(nic));
    }
}

static void put_beside(uint8_t **at, const struct boot_offer *offer)
{
    for (unsigned i = 0; i < offer->flow_count; i++) {
        put_le(at, offer->flows[i].beside.length, 1);
        put_bytes(at, offer->flows[i].beside.bytes, offer->flows[i].beside.length);
    }
}

size_t boot_put_offer(uint8_t *out, enum boot_sender sender, const struct boot_offer *offer)
{
    assert(!boot_offer_fault(offer));
    uint8_t *at = out;
    put_message_header(&at, BOOT_OFFER_MSG, sender, boot_offer_bytes(offer));
    put_section(&at, SECTION_CONNECTION, CONNECTION_BYTES);
    put_connection(&at, offer);
    if (offer->known) {
        put_section(&at, SECTION_KNOWN, BOOT_PROOF_BYTES);
        put_le(&at, offer->proof, BOOT_PROOF_BYTES);
    } else {
        put_section(&at, SECTION_QUEUES, queues_bytes(offer));
        put_queues(&at, offer);
    }
    if (offer->nic_count) {
        put_section(&at, SECTION_NICS | SECTION_OPTIONAL, nics_bytes(offer));
        put_nics(&at, offer);
    }
    if (offer->private_bytes) {
        put_section(&at, SECTION_PRIVATE | SECTION_OPTIONAL, offer->private_bytes);
        put_bytes(&at, offer->private_data, offer->private_bytes);
    }
    if (offer->flow_count && offer->flows[0].beside.length) {
        put_section(&at, SECTION_BESIDE | SECTION_OPTIONAL, beside_bytes(offer));
        put_beside(&at, offer);
    }
    assert((size_t)(at - out) == boot_offer_bytes(offer));
    return (size_t)(at - out);
}

/* ---- proofs ---------------------------------------------------------------------------------- */

uint64_t boot_proof(const struct boot_key *key, enum boot_prover prover, const struct boot_transcript *transcript,
                    const struct boot_offer *offer)
{
    uint8_t bytes[1 + 2 * (BOOT_HELLO_BYTES - BOOT_HEADER_BYTES) + CONNECTION_BYTES];
    uint8_t *at = bytes;
    put_le(&at, prover, 1);
    put_hello(&at, &transcript->client);
    put_hello(&at, &transcript->server);
    if (offer)
        put_connection(&at, offer);
    return siphash(key->to_client, key->to_server, bytes, (size_t)(at - bytes));
}
