/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connect succeeds when datagrams have got across both ways: engines in this process against servers that are played
 * here, whose datagrams come, come late, lie, or do not come.
 */
#include "played.h"

static char last_warning[512];

static void log_keep(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    if (level == UCCL_LOG_WARN)
        snprintf(last_warning, sizeof last_warning, "%s", text);
}

/* A server that says all of a handshake, up to its offer. */
static struct played play_offer(struct uccl_handle *handle, struct engine_side *side, int *udp)
{
    static const uint8_t id[16] = {7};
    struct boot_proofs none = {0};
    struct boot_offer ours = some_offer(1, 99);
    int listener = play_listener(handle);
    struct played server = play_server(listener, side, id, &none);
    close(listener);
    *udp = play_queue(&ours);
    say_offer(&server, &ours);
    return server;
}

/* READY leaves when an echo has come, of the right number, and not before. */
BOTH(proof, a_connect_waits_for_the_echo)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    int udp;
    struct uccl_handle handle;
    uccl_engine *client = open_engine(lend, NULL);
    struct engine_side side = {.client = client, .handle = &handle, .result = UCCL_EAGAIN};
    struct played server = play_offer(&handle, &side, &udp);
    uint64_t nonce = take_probe(udp, &side);
    say_echo(&server.theirs.flows[0], nonce ^ 1);
    for (unsigned i = 0; i < 3; i++) /* it asks again and again */
        cr_assert_eq(take_probe(udp, &side), nonce);
    cr_assert_eq(recv(server.fd, bytes, sizeof bytes, MSG_DONTWAIT), -1);
    cr_assert_eq(side.result, UCCL_EAGAIN);
    say_echo(&server.theirs.flows[0], nonce);
    cr_assert(take_message(&server, &side, BOOT_READY_MSG, bytes, &length));
    while (side.result == UCCL_EAGAIN)
        run_once(&side);
    IS(side.result, 0);
    close(udp);
    close(server.fd);
    IS(uccl_close(client), 0);
}

/* What the log says of an engine whose server offered `udp`. */
static void check_log(const struct played *server, int udp)
{
    char here[64], there[64];
    struct sockaddr_in address;
    const uint8_t *at = server->theirs.flows[0].address.bytes;
    getsockname(udp, (struct sockaddr *)&address, &(socklen_t){sizeof address});
    snprintf(here, sizeof here, "UDP port %u here", (unsigned)at[1] << 8 | at[2]);
    snprintf(there, sizeof there, "UDP port %u there", ntohs(address.sin_port));
    cr_assert(strstr(last_warning, here) && strstr(last_warning, there) &&
                  strstr(last_warning, "UCCL_CONNECT_MS, unless the call") && strstr(last_warning, "UCCL_BACKEND"),
              "%s", last_warning);
}

/* A firewall passes TCP alone: when time is over both sides learn it, and the log names the ports. */
BOTH(proof, no_datagram_comes_back)
{
    uint8_t bytes[BOOT_MESSAGE_MAX];
    size_t length;
    int udp;
    uint16_t code;
    struct uccl_handle handle;
    uccl_engine *client = open_engine(lend, "CONNECT_MS", "1000", NULL);
    struct engine_side side = {.client = client, .handle = &handle, .result = UCCL_EAGAIN};
    struct played server = play_offer(&handle, &side, &udp);
    uccl_set_log(log_keep, NULL);
    cr_assert_not(take_message(&server, &side, BOOT_READY_MSG, bytes, &length));
    cr_assert_eq(boot_take_header(bytes).kind, BOOT_REJECT_MSG);
    cr_assert_null(boot_decode_reject(bytes, length, &code));
    cr_assert_eq(code, -UCCL_ETIMEDOUT);
    IS(side.result, UCCL_ETIMEDOUT);
    check_log(&server, udp);
    uint64_t end_ms = now_ms() + SOON_MS;
    while (peers_of(client) && now_ms() < end_ms) {
        sleep_us(1000);
        free_abandoned(client);
    }
    cr_assert_eq(peers_of(client), 0, "nothing of it is left");
    close(udp);
    close(server.fd);
    IS(uccl_close(client), 0);
}

/* The peer counts as dead before the time is over. */
BOTH(proof, the_flow_dies_while_it_is_tried)
{
    int udp;
    struct uccl_handle handle;
    uccl_conn *conn;
    uccl_engine *client = open_engine(lend, "DEAD_PEER_MS", "50", NULL);
    struct engine_side side = {.client = client, .handle = &handle, .result = UCCL_EAGAIN};
    struct played server = play_offer(&handle, &side, &udp);
    uccl_set_log(log_keep, NULL);
    if (side.result == UCCL_EAGAIN)
        side.result = uccl_connect(client, &handle, -1, &conn);
    IS(side.result, UCCL_EPEERDEAD);
    cr_assert(strstr(last_warning, "UDP port"), "%s", last_warning);
    close(udp);
    close(server.fd);
    IS(uccl_close(client), 0);
}

/* A server that gives up meanwhile is not waited for, in a call that blocks either. */
BOTH(proof, the_server_leaves_while_datagrams_are_tried)
{
    for (unsigned how = 0; how < 2; how++) {
        int udp;
        uint8_t reject[BOOT_SMALL_MAX];
        struct uccl_handle handle;
        uccl_conn *conn;
        uccl_engine *client = open_engine(lend, NULL);
        struct engine_side side = {.client = client, .handle = &handle, .result = UCCL_EAGAIN};
        struct played server = play_offer(&handle, &side, &udp);
        take_probe(udp, &side);
        if (how)
            say(&server, reject, boot_put_reject(reject, BOOT_FROM_SERVER, -UCCL_ECLOSED));
        close(server.fd);
        IS(uccl_connect(client, &handle, -1, &conn), UCCL_ECLOSED);
        close(udp);
        IS(uccl_close(client), 0);
    }
}
