/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of the handshake: truncated, altered, out of range, and sections of later versions. */
#include "boot_pair.h"

TestSuite(boot_wire, .init = boot_set_up, .timeout = 60);

/* ---- decoders -------------------------------------------------------------------------------- */

enum message_kind { HELLO, OFFER, PROOFS };

/* Decodes from memory that ends where the bytes end, so that ASan sees a read beyond. NULL, or what is wrong. */
static const char *decode(enum message_kind kind, const uint8_t *bytes, size_t length)
{
    static union {
        struct boot_hello hello;
        struct boot_offer offer;
        struct boot_proofs proofs;
        uint8_t bytes[sizeof(struct boot_offer)];
    } out;
    uint8_t *exact = malloc(length == 0 ? 1 : length);
    cr_assert_not_null(exact);
    memcpy(exact, bytes, length);
    memset(&out, 0x5a, sizeof out);
    const char *fault = kind == HELLO   ? boot_decode_hello(exact, length, &out.hello)
                        : kind == OFFER ? boot_decode_offer(exact, length, &out.offer)
                                        : boot_decode_proofs(exact, length, &out.proofs);
    for (size_t i = 0; fault && i < sizeof out; i++)
        cr_assert_eq(out.bytes[i], 0x5a, "a refused message writes nothing");
    free(exact);
    return fault;
}

/* What is wrong with an offer says so. */
static void expect_fault(const uint8_t *bytes, size_t length, const char *part)
{
    const char *fault = decode(OFFER, bytes, length);
    cr_assert_not_null(fault, "taken, though: %s", part);
    cr_assert_not_null(strstr(fault, part), "'%s' is not in: %s", part, fault);
}

Test(boot_wire, every_truncation_is_refused)
{
    struct boot_offer value = make_offer(64, 3), known = {.known = true, .proof = 1};
    uint64_t values[2] = {1, 2};
    uint8_t bytes[BOOT_MESSAGE_MAX + 1] = {0};
    for (int i = 0; i < 4; i++) {
        enum message_kind kind = i == 0 ? HELLO : i == 1 ? PROOFS : OFFER;
        size_t length = i == 0   ? hello(bytes, FROM_CLIENT, BOOT_VERSION, 0)
                        : i == 1 ? proofs(bytes, values, 2)
                                 : offer(bytes, FROM_CLIENT, i == 2 ? &value : &known);
        cr_assert_null(decode(kind, bytes, length));
        for (enum message_kind other = HELLO; other <= PROOFS; other++)
            cr_assert(other == kind || decode(other, bytes, length), "the other kind");
        cr_assert_not_null(decode(kind, bytes, length + 1), "a byte too many");
        for (size_t cut = 0; cut < length; cut++) {
            cr_assert_not_null(decode(kind, bytes, cut), "%zu of %zu bytes", cut, length);
            if (cut < 8)
                continue;
            uint8_t honest[BOOT_MESSAGE_MAX]; /* the header admits that it is short */
            memcpy(honest, bytes, cut);
            le(honest + 6, cut - 8, 2);
            bool fewer_proofs = kind == PROOFS && cut % 8 == 0;
            cr_assert_eq(!decode(kind, honest, cut), fewer_proofs, "%zu of %zu bytes, admitted", cut, length);
        }
    }
}

/* One bit wrong anywhere in header, version or counts: refused, or a change that cannot be noticed. */
Test(boot_wire, header_bits_matter)
{
    struct boot_offer value = make_offer(2, 3);
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length = offer(bytes, FROM_CLIENT, &value);
    for (unsigned bit = 0; bit < 8 * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        cr_assert_not_null(decode(OFFER, bytes, length), "bit %u", bit);
        bytes[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    bytes[5] = FROM_SERVER;
    cr_assert_null(decode(OFFER, bytes, length));
}

Test(boot_wire, newer_hello_may_be_longer)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    struct boot_hello out;
    size_t length = hello(bytes, FROM_SERVER, BOOT_VERSION + 1, 33);
    cr_assert_null(boot_decode_hello(bytes, length, &out));
    cr_assert_eq(out.version, BOOT_VERSION + 1);
    cr_assert_arr_eq(out.engine_id, SERVER_ID, 16);
    length = hello(bytes, FROM_SERVER, BOOT_VERSION, 33);
    cr_assert_not_null(decode(HELLO, bytes, length));
    length = hello(bytes, FROM_SERVER, BOOT_VERSION, 0);
    cr_assert_null(boot_decode_hello(bytes, length, &out));
    cr_assert_arr_eq(out.nonce, NONCE, 16);
    cr_assert_eq(out.features, FEATURES);
}

#define BAD(field, value_)                                                                                             \
    do {                                                                                                               \
        struct boot_offer bad = make_offer(3, 4);                                                                      \
        uint8_t wire[BOOT_MESSAGE_MAX];                                                                                \
        bad.field = (value_);                                                                                          \
        cr_assert_not_null(decode(OFFER, wire, offer(wire, FROM_CLIENT, &bad)), #field " = " #value_ " is taken");     \
    } while (0)
#define GOOD(field, value_)                                                                                            \
    do {                                                                                                               \
        struct boot_offer good = make_offer(3, 4);                                                                     \
        struct boot_offer got;                                                                                         \
        uint8_t wire[BOOT_MESSAGE_MAX];                                                                                \
        good.field = (value_);                                                                                         \
        cr_assert_null(boot_decode_offer(wire, offer(wire, FROM_CLIENT, &good), &got),                                 \
                       #field " = " #value_ " is refused");                                                            \
        expect_offer(&got, &good);                                                                                     \
    } while (0)

Test(boot_wire, offer_fields_are_checked)
{
    GOOD(conn_id, 0);
    GOOD(conn_id, UINT32_MAX);
    GOOD(home, 0);
    GOOD(home, 2);
    BAD(home, 3);
    BAD(home, 65535);
    BAD(flow_count, 0);
    BAD(flow_count, 65);
    BAD(flow_count, 65535);
    GOOD(chunk_window, 64);
    GOOD(chunk_window, 16384);
    BAD(chunk_window, 0);
    BAD(chunk_window, 32);
    BAD(chunk_window, 32768);
    BAD(chunk_window, 96);
    BAD(chunk_window, UINT32_MAX);
    GOOD(msg_window, 16);
    GOOD(msg_window, 65536);
    BAD(msg_window, 0);
    BAD(msg_window, 8);
    BAD(msg_window, 131072);
    BAD(msg_window, 1000);
    BAD(msg_window, 0x80000000u);
    GOOD(eager_window_kb, 128);
    GOOD(eager_window_kb, 129);
    GOOD(eager_window_kb, 65536);
    BAD(eager_window_kb, 0);
    BAD(eager_window_kb, 127);
    BAD(eager_window_kb, 65537);
    BAD(eager_window_kb, UINT32_MAX);
    for (unsigned i = 0; i < 3; i++) {
        GOOD(flows[i].token, 1);
        GOOD(flows[i].token, UINT64_MAX);
        BAD(flows[i].token, 0);
        GOOD(flows[i].address.length, 1);
        GOOD(flows[i].address.length, NIC_QUEUE_ADDRESS_MAX);
        BAD(flows[i].address.length, 0);
        BAD(flows[i].address.length, NIC_QUEUE_ADDRESS_MAX + 1);
        BAD(flows[i].address.length, UINT8_MAX);
        GOOD(flows[i].datagram_bytes, CORE_DATAGRAM_MIN);
        GOOD(flows[i].datagram_bytes, (1 << 24) - 1);
        BAD(flows[i].datagram_bytes, 0);
        BAD(flows[i].datagram_bytes, CORE_DATAGRAM_MIN - 1);
        BAD(flows[i].datagram_bytes, (1 << 24));
        BAD(flows[i].datagram_bytes, UINT32_MAX);
        GOOD(flows[i].rx_bytes, 1);
        GOOD(flows[i].rx_bytes, UINT64_MAX);
        BAD(flows[i].rx_bytes, 0);
    }
}

/* A message of kind OFFER whose count and length disagree, in both directions. */
Test(boot_wire, count_and_length_must_agree)
{
    struct boot_offer value = make_offer(5, 3);
    value.home = 0;
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length = offer(bytes, FROM_CLIENT, &value);
    size_t expected = QUEUES_AT + QUEUES_FIXED_BYTES;
    for (unsigned i = 0; i < 5; i++)
        expected += FLOW_FIXED_BYTES + (size_t)value.flows[i].address.length;
    cr_assert_eq(length, expected);
    for (unsigned count = 0; count <= 70; count++) {
        le(bytes + FLOW_COUNT_AT, count, 2);
        cr_assert_eq(!decode(OFFER, bytes, length), count == 5, "count %u", count);
    }
}

/* ---- sections -------------------------------------------------------------------------------- */

Test(boot_wire, sections_are_checked)
{
    struct boot_offer value = make_offer(2, 3), got;
    uint8_t body[BOOT_MESSAGE_MAX], wire[BOOT_MESSAGE_MAX + 8];
    uint8_t *at = connection_section(body, &value);

    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, 0), "no connection");
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(at - body)), "no flows");
    uint8_t *end = known_section(queues_section(at, &value), 1);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "both");
    end = queues_section(queues_section(at, &value), &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "twice");
    end = connection_section(queues_section(body, &value), &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "order");
    end = queues_section(body, &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "no connection");

    /* private data is optional, and never empty or too long */
    at = queues_section(connection_section(body, &value), &value);
    for (unsigned length = 0; length <= BOOT_PRIVATE_MAX + 1; length += length < 2 ? 1 : 51) {
        value.private_bytes = (uint16_t)length;
        memset(value.private_data, (int)length, sizeof value.private_data);
        end = private_section(at, &value);
        const uint8_t *sent = wire + 8 + (at - body);
        size_t bytes = message(wire, 2, FROM_CLIENT, body, (size_t)(end - body));
        if (length < 1 || length > BOOT_PRIVATE_MAX) {
            expect_fault(wire, bytes, "private data");
        } else {
            cr_assert_null(boot_decode_offer(wire, bytes, &got));
            expect_offer(&got, &value);
            uint8_t again[BOOT_MESSAGE_MAX];
            cr_assert_eq(boot_put_offer(again, BOOT_FROM_CLIENT, &value), bytes);
            cr_assert_arr_eq(again, wire, bytes);
            cr_assert_eq(sent[0], 5);
            cr_assert_eq(sent[1], 0x80, "a peer that does not know it skips it");
        }
    }
    value.private_bytes = 0;

    /* types to come, with and without leave to skip them: 6 and the last one; type 0 is none */
    static const unsigned TYPES[] = {6, 0x7fff};
    for (unsigned i = 0; i < 2; i++) {
        at = queues_section(connection_section(body, &value), &value);
        end = section(at, 0x8000 | TYPES[i], 5) + 5;
        cr_assert_null(boot_decode_offer(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), &got));
        expect_offer(&got, &value);
        section(at, TYPES[i], 5);
        expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "does not know");
        section(at, 0x8000 | TYPES[i], 6);
        expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "longer");
        section(at, 0x8000 | TYPES[i], 5);
        expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body) + 3), "cut short");
    }
    end = queues_section(connection_section(section(body, 0x8000, 0), &value), &value);
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), "order");

    /* the flag does not make a known type another one */
    end = queues_section(connection_section(body, &value), &value);
    le(body, 0x8001, 2);
    cr_assert_null(boot_decode_offer(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(end - body)), &got));
    expect_offer(&got, &value);
}

/* An offer of `count` NICs in which no two fields are equal. */
static struct boot_offer offer_of_nics(uint8_t count)
{
    struct boot_offer value = make_offer(3, 3);
    value.nic_count = count;
    for (unsigned i = 0; i < count && i < NIC_ENDS_MAX; i++) {
        struct nic_end *nic = &value.nics[i];
        *nic = (struct nic_end){.prefix_bits = (uint8_t)(i + 8), .speed_mbps = 100000 + i, .mtu = 1500 + i};
        if (i % 2) {
            nic->address.v6.sin6_family = AF_INET6;
            nic->address.v6.sin6_addr.s6_addr[0] = 0xfd;
            nic->address.v6.sin6_addr.s6_addr[15] = (uint8_t)i;
        } else {
            nic->address.v4.sin_family = AF_INET;
            nic->address.v4.sin_addr.s_addr = htonl(0x0a000001 + i);
        }
    }
    return value;
}

Test(boot_wire, nics_are_checked)
{
    uint8_t wire[BOOT_MESSAGE_MAX], again[BOOT_MESSAGE_MAX], altered[BOOT_MESSAGE_MAX];
    struct boot_offer got, value;
    for (uint8_t count = 1; count <= NIC_ENDS_MAX; count++) {
        value = offer_of_nics(count);
        size_t length = offer(wire, FROM_SERVER, &value);
        if (count == 1) {
            expect_fault(wire, length, "number of NICs");
            continue;
        }
        cr_assert_null(boot_decode_offer(wire, length, &got));
        expect_offer(&got, &value);
        cr_assert_eq(boot_put_offer(again, BOOT_FROM_SERVER, &value), length);
        cr_assert_arr_eq(again, wire, length);
    }
    value = offer_of_nics(2);
    size_t length = offer(wire, FROM_SERVER, &value), at = length - 2 - 14 - 26;
    cr_assert_eq(wire[at], 2);
    static const struct {
        size_t offset;
        uint8_t byte;
        const char *part;
    } rows[] = {
        {0, 0, "number of NICs"},
        {0, 1, "number of NICs"},
        {0, 17, "number of NICs"},
        {0, 3, "disagree"},
        {1, 1, "queues per NIC"},
        {2, 16, "disagree"},
        {2, 6, "another length"},
        {2, 0, "another length"},
        {3, 33, "longer than its"},
        {7, 0xff, "speed"},
        {9, 0, "MTU"},
        {11, 1, "MTU"},
        {12, 224, "one host"},
        {12, 127, "one host"},
        {12, 0, "one host"},
        {16, 4, "disagree"},
        {26, 0xff, "one host"},
        {17, 129, "longer than its"},
        {2, 255, "another length"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        memcpy(altered, wire, length);
        altered[at + rows[i].offset] = rows[i].byte;
        expect_fault(altered, length, rows[i].part);
    }
    for (size_t cut = 0; cut < 42; cut++) { /* a section that admits that it is short */
        memcpy(altered, wire, length);
        le(altered + at - 2, cut, 2);
        le(altered + 6, length - 8 - (42 - cut), 2);
        cr_assert_not_null(decode(OFFER, altered, length - (42 - cut)), "%zu bytes", cut);
    }
    /* flows that are known already are not told their NICs again */
    struct boot_offer known = {.known = true, .proof = 1, .nic_count = 2};
    memcpy(known.nics, value.nics, sizeof known.nics);
    expect_fault(wire, offer(wire, FROM_SERVER, &known), "number of NICs");
}

/* Queues beside the main ones: each flow of an offer has one, or none does. */
Test(boot_wire, queues_beside_are_checked)
{
    uint8_t wire[BOOT_MESSAGE_MAX], again[BOOT_MESSAGE_MAX], body[BOOT_MESSAGE_MAX];
    struct boot_offer got, value = make_offer(3, 3);
    for (unsigned i = 0; i < 3; i++)
        value.flows[i].beside = (struct nic_queue_address){(uint8_t)(4 + i), {3, 1, 2, 3, (uint8_t)i}};
    size_t length = offer(wire, FROM_SERVER, &value);
    cr_assert_null(boot_decode_offer(wire, length, &got));
    expect_offer(&got, &value);
    cr_assert_eq(boot_put_offer(again, BOOT_FROM_SERVER, &value), length);
    cr_assert_arr_eq(again, wire, length);
    for (unsigned i = 0; i < 3; i++) {
        static const uint8_t bad[] = {0, BOOT_BESIDE_MAX + 1, 255};
        for (unsigned k = 0; k < 4; k++) {
            struct boot_offer altered = value;
            altered.flows[i].beside.length = k < 3 ? bad[k] : BOOT_BESIDE_MAX;
            length = offer(wire, FROM_SERVER, &altered);
            cr_assert_eq(!decode(OFFER, wire, length), k == 3 || (i == 0 && k == 0), "flow %u, length %u", i,
                         altered.flows[i].beside.length);
        }
    }
    value.flow_count = 2; /* more or fewer addresses than flows */
    uint8_t *at = queues_section(connection_section(body, &value), &value);
    value.flow_count = 3;
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(beside_section(at, &value) - body)), "than flows");
    value.home = 0;
    value.flow_count = 1;
    expect_fault(wire, message(wire, 2, FROM_CLIENT, body, (size_t)(beside_section(at, &value) - body)),
                 "queue beside");
}

/* 16 KiB are enough for what is to come, and not a byte more is taken. */
Test(boot_wire, largest_offer)
{
    struct boot_offer value = make_offer(64, 3);
    for (unsigned more = 0; more < 2; more++) {
        int raw;
        struct side server = face_raw(true, PLENTY_MS, &raw);
        static uint8_t body[BOOT_MESSAGE_MAX], bytes[2 * BOOT_MESSAGE_MAX];
        uint8_t *at = queues_section(connection_section(body, &value), &value);
        size_t left = BOOT_MESSAGE_MAX - 8 + more - (size_t)(at - body) - 4;
        section(at, 0x8006, left);
        size_t length = greeting(bytes, FROM_CLIENT);
        length += message(bytes + length, 2, FROM_CLIENT, body, BOOT_MESSAGE_MAX - 8 + more);
        length += ready(bytes + length, FROM_CLIENT);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&server), more ? BOOT_FAILED : BOOT_DONE, "%s", logged.text);
        if (more)
            expect_log(UCCL_LOG_WARN, "16385 bytes, more than the 16384", "too large");
        else
            expect_offer(bootstrap_peer_offer(server.boot), &value);
        bootstrap_free(server.boot);
        close(raw);
    }
}

/* A kind of frame that every connection needs is not understood: refused, with the bit. */
Test(boot_wire, features_are_needed)
{
    for (int server = 0; server < 2; server++) {
        int raw;
        struct side side = face_raw(server, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX];
        size_t length = greeting(bytes, server ? FROM_CLIENT : FROM_SERVER);
        le(bytes + 42, WIRE_FEATURES & ~(UINT64_C(1) << FRAME_EAGER), 8);
        memset(&logged, 0, sizeof logged);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&side), BOOT_FAILED);
        cr_assert_eq(bootstrap_status(side.boot), UCCL_EPROTO);
        expect_log(UCCL_LOG_WARN, "lacks features 0x4", "features");
        bootstrap_free(side.boot);
        close(raw);
    }
}

/* What a later version can do besides is no matter, and nothing that both can do. */
Test(boot_wire, features_are_those_of_both)
{
    for (int server = 0; server < 2; server++) {
        int raw;
        struct side side = face_raw(server, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX];
        size_t length = greeting(bytes, server ? FROM_CLIENT : FROM_SERVER);
        le(bytes + 42, WIRE_FEATURES | UINT64_C(1) << 63, 8);
        send_all(raw, bytes, length);
        for (uint64_t end_ns = in_ms(PLENTY_MS); !bootstrap_greeted(side.boot);) {
            cr_assert_lt(in_ms(0), end_ns);
            bootstrap_step(side.boot, in_ms(0));
        }
        cr_assert_eq(bootstrap_features(side.boot), WIRE_FEATURES);
        bootstrap_free(side.boot);
        close(raw);
    }
}
