/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that have met: who proves what, and what is told to whom. */
#include "boot_pair.h"

TestSuite(boot_known, .init = boot_set_up, .timeout = 60);

/* ---- known peers ----------------------------------------------------------------------------- */

static const struct boot_key KEYS[3] = {{11, 12}, {21, 22}, {31, 32}};

/*
 * The proof of docs/bootstrap.md, from the bytes of both HELLOs as they were sent and of the connection section as it
 * is (NULL: none).
 */
static uint64_t proof_of(const struct boot_key *key, unsigned prover, const uint8_t *client_hello,
                         const uint8_t *server_hello, const uint8_t *connection)
{
    uint8_t bytes[1 + 50 + 50 + 6];
    bytes[0] = (uint8_t)prover;
    memcpy(bytes + 1, client_hello + 8, 50);
    memcpy(bytes + 51, server_hello + 8, 50);
    if (connection)
        memcpy(bytes + 101, connection, 6);
    return siphash(key->to_client, key->to_server, bytes, connection ? 107 : 101);
}

/* Is a token of KEYS in there, or the other way round: do these bytes tell anybody one? */
static bool tells_a_token(const uint8_t *bytes, size_t length)
{
    for (size_t at = 0; at + 8 <= length; at++) {
        uint64_t value = 0;
        for (unsigned i = 0; i < 8; i++)
            value |= (uint64_t)bytes[at + i] << 8 * i;
        for (unsigned i = 0; i < 3; i++) {
            if (value == KEYS[i].to_client || value == KEYS[i].to_server)
                return true;
        }
    }
    return false;
}

/* Both know the same flows: no flow and no token is offered. */
Test(boot_known, known_peers_share_their_flows)
{
    union nic_address address = loopback(AF_INET);
    struct side client, server;
    make_pair(&address, &client, &server);
    client.keys = &KEYS[1];
    client.key_count = 1;
    server.keys = KEYS;
    server.key_count = 3;
    run_both(&client, &server);
    cr_assert_eq(bootstrap_status(client.boot), 0, "%s", logged.text);
    cr_assert_eq(bootstrap_status(server.boot), 0, "%s", logged.text);
    for (int i = 0; i < 2; i++) {
        const struct boot_offer *got = bootstrap_peer_offer(i ? server.boot : client.boot);
        cr_assert(got->known && got->flow_count == 0);
        cr_assert_eq(got->conn_id, i ? client.offer.conn_id : server.offer.conn_id);
        cr_assert_eq(got->home, i ? client.offer.home : server.offer.home);
        cr_assert_eq(bootstrap_features(i ? server.boot : client.boot), WIRE_FEATURES_ALL);
    }
    cr_assert_eq(logged.lines, 0);
    bootstrap_free(client.boot);
    bootstrap_free(server.boot);
}

/* Keys that only one side has, half of one, or one the other way round: separate peers, with new flows. */
Test(boot_known, strangers_do_not_share)
{
    static const struct boot_key OTHERS[] = {{11, 13}, {12, 11}, {13, 12}, {22, 22}};
    for (unsigned i = 0; i < 4; i++) {
        union nic_address address = loopback(AF_INET);
        struct side client, server;
        make_pair(&address, &client, &server);
        client.keys = &OTHERS[i];
        client.key_count = 1;
        server.keys = KEYS;
        server.key_count = 3;
        run_both(&client, &server);
        cr_assert_eq(bootstrap_status(client.boot), 0, "%s", logged.text);
        expect_offer(bootstrap_peer_offer(client.boot), &server.offer);
        expect_offer(bootstrap_peer_offer(server.boot), &client.offer);
        bootstrap_free(client.boot);
        bootstrap_free(server.boot);
    }
}

/* What a client says to a server that has proved itself, byte by byte; and each answer that it must not believe. */
Test(boot_known, client_claims_only_to_a_server_that_proves)
{
    enum { HONEST, WRONG_PROOF, ITS_OWN_PROOF_BACK, NEW_FLOWS, ANSWERS };
    for (unsigned answer = 0; answer < ANSWERS; answer++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        uint8_t theirs[HELLO_BYTES], ours[HELLO_BYTES], bytes[BOOT_MESSAGE_MAX], want[BOOT_MESSAGE_MAX];
        client.keys = &KEYS[2];
        client.key_count = 1;
        memset(&logged, 0, sizeof logged);
        cr_assert_neq(step(&client), BOOT_FAILED);
        cr_assert_eq(read_up_to(raw, ours, HELLO_BYTES), HELLO_BYTES);
        send_all(raw, theirs, hello(theirs, FROM_SERVER, BOOT_VERSION, 0));
        uint64_t values[2] = {99, proof_of(&KEYS[2], 1, ours, theirs, NULL)};
        send_all(raw, bytes, proofs(bytes, values, 2));
        wait_for(client.boot, POLLIN);
        while (step(&client) != BOOT_OFFERING)
            wait_for(client.boot, POLLIN);
        struct boot_offer known = {.conn_id = client.offer.conn_id, .home = client.offer.home, .known = true};
        connection_section(bytes, &known);
        known.proof = proof_of(&KEYS[2], 2, ours, theirs, bytes + 4);
        size_t length = offer(want, FROM_CLIENT, &known);
        cr_assert_eq(read_up_to(raw, bytes, length), length);
        cr_assert_arr_eq(bytes, want, length);
        cr_assert_not(tells_a_token(bytes, length));

        struct boot_offer reply = {.conn_id = 77, .home = 1, .known = true, .proof = known.proof};
        if (answer == NEW_FLOWS) {
            reply = make_offer(2, 8);
        } else if (answer != ITS_OWN_PROOF_BACK) {
            connection_section(bytes, &reply);
            reply.proof = proof_of(&KEYS[2], 3, ours, theirs, bytes + 4) + (answer == WRONG_PROOF);
        }
        send_all(raw, bytes, offer(bytes, FROM_SERVER, &reply));
        enum boot_state state = run_one(&client);
        cr_assert_eq(state, answer == HONEST ? BOOT_DONE : BOOT_FAILED, "answer %u: %s", answer, logged.text);
        cr_assert_eq(bootstrap_status(client.boot), answer == HONEST ? 0 : UCCL_EPROTO);
        bootstrap_free(client.boot);
        close(raw);
    }
}

/* A server proves its keys to whoever shows the id; it believes a claim that covers every byte, and no other. */
Test(boot_known, server_believes_only_proofs)
{
    enum { HONEST, OTHER_CONNECTION, SERVERS_PROOF_BACK, OTHER_KEY, CLAIMS };
    for (unsigned claim = 0; claim < CLAIMS; claim++) {
        int raw;
        struct side server = face_raw(true, PLENTY_MS, &raw);
        uint8_t theirs[HELLO_BYTES], ours[HELLO_BYTES], bytes[BOOT_MESSAGE_MAX], want[BOOT_MESSAGE_MAX];
        server.keys = KEYS;
        server.key_count = 2;
        memset(&logged, 0, sizeof logged);
        send_all(raw, theirs, hello(theirs, FROM_CLIENT, BOOT_VERSION, 0));
        wait_for(server.boot, POLLIN);
        while (step(&server) != BOOT_OFFERING)
            wait_for(server.boot, POLLIN);
        cr_assert_eq(read_up_to(raw, ours, HELLO_BYTES), HELLO_BYTES);
        uint64_t values[2];
        for (unsigned i = 0; i < 2; i++)
            values[i] = proof_of(&KEYS[i], 1, theirs, ours, NULL);
        size_t length = proofs(want, values, 2);
        cr_assert_eq(read_up_to(raw, bytes, length), length);
        cr_assert_arr_eq(bytes, want, length);
        cr_assert_not(tells_a_token(bytes, length));

        struct boot_offer known = {.conn_id = 5, .home = 1, .known = true};
        connection_section(bytes, &known);
        known.proof = proof_of(&KEYS[claim == OTHER_KEY ? 2 : 1], 2, theirs, ours, bytes + 4);
        if (claim == SERVERS_PROOF_BACK)
            known.proof = values[1];
        known.conn_id += claim == OTHER_CONNECTION;
        send_all(raw, bytes, offer(bytes, FROM_CLIENT, &known));
        if (claim == HONEST) {
            send_all(raw, bytes, ready(bytes, FROM_CLIENT));
            cr_assert_eq(run_one(&server), BOOT_DONE, "%s", logged.text);
            struct boot_offer reply = {.conn_id = server.offer.conn_id, .home = server.offer.home, .known = true};
            connection_section(bytes, &reply);
            reply.proof = proof_of(&KEYS[1], 3, theirs, ours, bytes + 4);
            length = offer(want, FROM_SERVER, &reply);
        } else {
            cr_assert_eq(run_one(&server), BOOT_FAILED);
            cr_assert_eq(bootstrap_status(server.boot), UCCL_EAGAIN);
            length = rejection(want, FROM_SERVER, 1);
        }
        bootstrap_free(server.boot);
        cr_assert_eq(read_up_to(raw, bytes, sizeof bytes), length, "claim %u", claim);
        cr_assert_arr_eq(bytes, want, length);
        close(raw);
    }
}

/* No two handshakes have one nonce: what was said in one proves nothing in the next. */
Test(boot_known, nonces_differ)
{
    uint8_t seen[2][HELLO_BYTES];
    for (int i = 0; i < 2; i++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        step(&client);
        cr_assert_eq(read_up_to(raw, seen[i], HELLO_BYTES), HELLO_BYTES);
        bootstrap_free(client.boot);
        close(raw);
    }
    cr_assert_arr_neq(seen[0] + 26, seen[1] + 26, 16);
}

/* The server has lost the peer that the client claims: the client hears it as "again", once; not without a claim. */
Test(boot_known, lost_claim_is_told)
{
    union nic_address address = loopback(AF_INET);
    struct side client, server;
    make_pair(&address, &client, &server);
    client.keys = server.keys = KEYS;
    client.key_count = server.key_count = 1;
    server.reject = UCCL_EAGAIN;
    run_both(&client, &server);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EAGAIN);
    expect_log(UCCL_LOG_INFO, "begins again", "lost claim");
    bootstrap_free(client.boot);
    bootstrap_free(server.boot);
}

Test(boot_known, malformed_proofs)
{
    static const size_t BODIES[] = {7, 12, 33 * 8};
    for (unsigned i = 0; i < 4; i++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        uint8_t bytes[BOOT_MESSAGE_MAX], body[34 * 8] = {0};
        size_t length = hello(bytes, FROM_SERVER, BOOT_VERSION, 0);
        struct boot_offer theirs = make_offer(2, 8);
        length += i < 3 ? message(bytes + length, 5, FROM_SERVER, body, BODIES[i])
                        : offer(bytes + length, FROM_SERVER, &theirs);
        memset(&logged, 0, sizeof logged);
        send_all(raw, bytes, length);
        cr_assert_eq(run_one(&client), BOOT_FAILED);
        cr_assert_eq(bootstrap_status(client.boot), UCCL_EPROTO);
        expect_log(UCCL_LOG_WARN, i < 3 ? "bad PROOFS" : "kind 2 came instead of kind 5", "proofs");
        bootstrap_free(client.boot);
        close(raw);
    }
}
