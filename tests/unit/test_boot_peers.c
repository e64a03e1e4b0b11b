/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake with peers that misbehave, that are silent or slow, and that are not there. */
#include "boot_pair.h"

TestSuite(boot_peers, .init = boot_set_up, .timeout = 60);

/* ---- peers that misbehave -------------------------------------------------------------------- */

enum stage { AT_ONCE, AFTER_HELLO, AFTER_OFFER }; /* AFTER_OFFER: a server awaits READY */
enum then { STAYS, CLOSES, RESETS };
enum { CLIENT = 1, SERVER = 2, BOTH = 3 };

#define TEXT(text) text, sizeof text - 1

static const struct misdeed {
    const char *name;
    int sides; /* which side of ours it is done to */
    enum stage stage;
    const char *bytes; /* what it says then */
    size_t length;
    enum then then;
    int client_status;
    int server_status;
    const char *log; /* part of the line */
    bool stranger;   /* a server logs it at info */
} MISDEEDS[] = {
    {"zeros", BOTH, AT_ONCE, TEXT("\0\0\0\0\0\0\0\0"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "00 00 00 00", true},
    {"one wrong byte", BOTH, AT_ONCE, TEXT("x"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "another protocol", true},
    {"almost the magic", BOTH, AT_ONCE, TEXT("\xB7UCX"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "b7 55 43 58", true},
    {"HTTP", BOTH, AT_ONCE, TEXT("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "47 45 54 20",
     true},
    {"HTTP and close", BOTH, AT_ONCE, TEXT("GET / HTTP/1.0\r\n\r\n"), CLOSES, UCCL_EPROTO, UCCL_EPROTO, "47 45 54 20",
     true},
    {"close at once", BOTH, AT_ONCE, TEXT(""), CLOSES, UCCL_EPROTO, UCCL_EPROTO, "early", true},
    {"close within the header", BOTH, AT_ONCE, TEXT("\xB7UCB\1"), CLOSES, UCCL_EPROTO, UCCL_EPROTO, "early", true},
    {"close within HELLO", SERVER, AT_ONCE, TEXT("\xB7UCB\1\1\x12\0\1\0"), CLOSES, 0, UCCL_EPROTO, "early", false},
    {"close within HELLO", CLIENT, AT_ONCE, TEXT("\xB7UCB\1\2\x12\0\1\0"), CLOSES, UCCL_EPROTO, 0, "early", false},
    {"close before the offer", BOTH, AFTER_HELLO, TEXT(""), CLOSES, UCCL_ECLOSED, UCCL_ECLOSED, "OFFER", false},
    {"close within the offer", SERVER, AFTER_HELLO, TEXT("\xB7UCB\2\1\x80\0abc"), CLOSES, 0, UCCL_ECLOSED, "early",
     false},
    {"close within the offer", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\2\2\x80\0abc"), CLOSES, UCCL_ECLOSED, 0, "early",
     false},
    {"close before READY", SERVER, AFTER_OFFER, TEXT(""), CLOSES, 0, UCCL_ECLOSED, "READY", false},
    {"close within READY", SERVER, AFTER_OFFER, TEXT("\xB7UCB\3"), CLOSES, 0, UCCL_ECLOSED, "READY", false},
    {"reset at once", BOTH, AT_ONCE, TEXT(""), RESETS, UCCL_EREFUSED, UCCL_EPROTO, "reset", true},
    {"reset after HELLO", BOTH, AFTER_HELLO, TEXT(""), RESETS, UCCL_ECLOSED, UCCL_ECLOSED, "", false},
    {"reset before READY", SERVER, AFTER_OFFER, TEXT(""), RESETS, 0, UCCL_ECLOSED, "", false},
    {"oversized HELLO", SERVER, AT_ONCE, TEXT("\xB7UCB\1\1\xf9\x0f"), STAYS, 0, UCCL_EPROTO, "4097 bytes", false},
    {"oversized HELLO", CLIENT, AT_ONCE, TEXT("\xB7UCB\1\2\xff\xff"), STAYS, UCCL_EPROTO, 0, "65543 bytes", false},
    {"oversized offer", SERVER, AFTER_HELLO, TEXT("\xB7UCB\2\1\xff\xff"), STAYS, 0, UCCL_EPROTO, "65543", false},
    {"oversized offer", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\2\2\xff\xff"), STAYS, UCCL_EPROTO, 0, "65543", false},
    {"short HELLO", SERVER, AT_ONCE, TEXT("\xB7UCB\1\1\2\0\1\0"), STAYS, 0, UCCL_EPROTO, "malformed HELLO", false},
    {"an offer first", SERVER, AT_ONCE, TEXT("\xB7UCB\2\1\x80\0"), STAYS, 0, UCCL_EPROTO, "kind 2", false},
    {"HELLO twice", SERVER, AFTER_HELLO, TEXT("\xB7UCB\1\1\x12\0"), STAYS, 0, UCCL_EPROTO, "kind 1", false},
    {"READY with a body", SERVER, AFTER_OFFER, TEXT("\xB7UCB\3\1\1\0x"), STAYS, 0, UCCL_EPROTO, "malformed READY",
     false},
    {"garbage for READY", SERVER, AFTER_OFFER, TEXT("READY\n\n\n"), STAYS, 0, UCCL_EPROTO, "52 45 41 44", false},
    {"proofs of a client", SERVER, AFTER_HELLO, TEXT("\xB7UCB\5\1\0\0"), STAYS, 0, UCCL_EPROTO, "kind 5", false},
    {"proofs twice", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\5\2\0\0"), STAYS, UCCL_EPROTO, 0, "kind 5", false},
    {"unknown kind", BOTH, AFTER_HELLO, TEXT("\xB7UCB\6\1\0\0"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "", false},
    {"unknown sender", BOTH, AT_ONCE, TEXT("\xB7UCB\1\3\x12\0"), STAYS, UCCL_EPROTO, UCCL_EPROTO, "wrong side", false},
    {"our echo", CLIENT, AT_ONCE, TEXT("\xB7UCB\1\1\x12\0"), STAYS, UCCL_EPROTO, 0, "echo", false},
    {"empty offer", SERVER, AFTER_HELLO, TEXT("\xB7UCB\2\1\0\0"), STAYS, 0, UCCL_EPROTO, "bad OFFER", false},
    {"empty reject", SERVER, AFTER_HELLO, TEXT("\xB7UCB\4\1\0\0"), STAYS, 0, UCCL_EPROTO, "malformed REJECT", false},
    {"long reject", CLIENT, AFTER_HELLO, TEXT("\xB7UCB\4\2\3\0\3\0x"), STAYS, UCCL_EPROTO, 0, "malformed REJECT",
     false},
    {"reject at once", CLIENT, AT_ONCE, TEXT("\xB7UCB\4\2\2\0\3\0"), CLOSES, UCCL_ENOMEM, 0, "out of memory", false},
    {"reject of kinds", SERVER, AFTER_HELLO, TEXT("\xB7UCB\4\1\2\0\x0b\0"), CLOSES, 0, UCCL_EPROTO, "UCCL_BACKEND",
     false},
    {"reject for READY", SERVER, AFTER_OFFER, TEXT("\xB7UCB\4\1\2\0\x0d\0"), CLOSES, 0, UCCL_ENODEV, "rejected", false},
};

static void misbehave(const struct misdeed *deed, bool server)
{
    int raw;
    struct side side = face_raw(server, PLENTY_MS, &raw);
    int sender = server ? FROM_CLIENT : FROM_SERVER;
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    size_t length = 0;
    if (deed->stage != AT_ONCE)
        length += greeting(bytes, sender);
    if (deed->stage == AFTER_OFFER)
        length += offer(bytes + length, sender, &theirs);
    memset(&logged, 0, sizeof logged);
    send_all(raw, bytes, length);
    if (deed->then == RESETS) /* else the reset may overtake what we would read */
        for (int i = 0; i < 3; i++)
            step(&side);
    send_all(raw, deed->bytes, deed->length);
    if (deed->then == CLOSES)
        shutdown(raw, SHUT_WR);
    if (deed->then == RESETS)
        reset(raw);
    cr_assert_eq(run_one(&side), BOOT_FAILED, "%s", deed->name);
    cr_assert_eq(bootstrap_status(side.boot), server ? deed->server_status : deed->client_status,
                 "%s (server %d): %d: %s", deed->name, server, bootstrap_status(side.boot), logged.text);
    cr_assert_eq(bootstrap_step(side.boot, now_ns()), BOOT_FAILED, "failed for good");
    bool info = server && deed->stranger;
    expect_log(info ? UCCL_LOG_INFO : UCCL_LOG_WARN, deed->log, deed->name);
    /* a server whose peer was reset before it was looked at cannot know the address */
    cr_assert_not_null(strstr(logged.text, "127.0.0.1:"), "%s: %s", deed->name, logged.text);
    bootstrap_free(side.boot);
    if (deed->then != RESETS)
        close(raw);
}

Test(boot_peers, misbehaving_peers)
{
    for (size_t i = 0; i < sizeof MISDEEDS / sizeof MISDEEDS[0]; i++) {
        if (MISDEEDS[i].sides & CLIENT)
            misbehave(&MISDEEDS[i], false);
        if (MISDEEDS[i].sides & SERVER)
            misbehave(&MISDEEDS[i], true);
    }
}

/* To a client that has the offer a server has nothing to say but REJECT. No kind of message is 0. */
Test(boot_peers, kind_0_is_no_message)
{
    for (unsigned resets = 0; resets < 2; resets++) {
        int raw;
        struct side client = face_raw(false, PLENTY_MS, &raw);
        struct boot_offer theirs = make_offer(2, 8);
        uint8_t bytes[2 * BOOT_MESSAGE_MAX];
        send_all(raw, bytes, greeting(bytes, FROM_SERVER));
        wait_for(client.boot, POLLIN);
        cr_assert_eq(step(&client), BOOT_OFFERING);
        memset(&logged, 0, sizeof logged);
        size_t length = offer(bytes, FROM_SERVER, &theirs);
        send_all(raw, bytes, length + message(bytes + length, 0, FROM_SERVER, NULL, 0));
        if (resets)
            reset(raw);
        cr_assert_eq(run_one(&client), BOOT_FAILED);
        cr_assert_eq(bootstrap_status(client.boot), UCCL_EPROTO);
        expect_log(UCCL_LOG_WARN, "kind 0", "kind 0");
        bootstrap_free(client.boot);
        if (!resets)
            close(raw);
    }
}

/* A peer that was reset between the TCP handshake and accept() has no address any more, whatever it has said. */
static void reset_before_serve(const uint8_t *bytes, size_t length)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 8);
    int raw = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(raw, &address.any, nic_address_length(&address)), 0);
    send_all(raw, bytes, length);
    reset(raw);
    memset(&logged, 0, sizeof logged);
    struct side server = {.server = true};
    cr_assert_eq(bootstrap_serve(accept_soon(listener), SERVER_ID, LISTENER, in_ms(PLENTY_MS), &server.boot), 0);
    cr_assert_eq(run_one(&server), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(server.boot), UCCL_EPROTO);
    expect_log(UCCL_LOG_INFO, "reset", "reset before serve");
    bootstrap_free(server.boot);
    close(listener);
}

Test(boot_peers, reset_before_serve)
{
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    struct boot_offer theirs = make_offer(2, 8);
    size_t length = introduction(bytes, FROM_CLIENT, &theirs);
    length += ready(bytes + length, FROM_CLIENT);
    reset_before_serve(bytes, 0);
    reset_before_serve(bytes, length);
}

/* Versions: told apart from garbage, both named, and the peer learns ours. */
Test(boot_peers, wrong_version)
{
    static const struct {
        unsigned version;
        size_t trailing;
        const char *log;
    } CASES[] = {
        {BOOT_VERSION + 1, 0, "version 4 of the handshake, this library version 3"},
        {BOOT_VERSION + 1, 40, "version 4 of the handshake, this library version 3"},
        {0xffff, 64, "version 65535 of the handshake, this library version 3"},
        {BOOT_VERSION - 1, 0, "version 2 of the handshake, this library version 3"},
        {BOOT_VERSION - 1, 1, "malformed HELLO"},
        {BOOT_VERSION, 1, "malformed HELLO"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        for (int server = 0; server < 2; server++) {
            int raw;
            struct side side = face_raw(server, PLENTY_MS, &raw);
            uint8_t bytes[BOOT_MESSAGE_MAX];
            size_t length = hello(bytes, server ? FROM_CLIENT : FROM_SERVER, CASES[i].version, CASES[i].trailing);
            memset(&logged, 0, sizeof logged);
            send_all(raw, bytes, length);
            cr_assert_eq(run_one(&side), BOOT_FAILED);
            cr_assert_eq(bootstrap_status(side.boot), UCCL_EPROTO);
            expect_log(UCCL_LOG_WARN, CASES[i].log, "version");
            bootstrap_free(side.boot);
            bool mismatch = strstr(CASES[i].log, "version") != NULL;
            if (!server || mismatch) {
                uint8_t want[HELLO_BYTES];
                cr_assert_eq(read_up_to(raw, bytes, sizeof bytes), HELLO_BYTES);
                own_hello(want, server ? FROM_SERVER : FROM_CLIENT, bytes);
                cr_assert_arr_eq(bytes, want, HELLO_BYTES);
            }
            close(raw);
        }
    }
}

/* A server must not name a flow that the client does not have: we would index with it. */
Test(boot_peers, home_must_exist_here)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    client.offer = make_offer(2, 1);
    struct boot_offer theirs = make_offer(4, 2);
    theirs.home = 2;
    uint8_t bytes[2 * BOOT_MESSAGE_MAX];
    size_t length = introduction(bytes, FROM_SERVER, &theirs);
    send_all(raw, bytes, length);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EPROTO);
    expect_log(UCCL_LOG_WARN, "home", "home");
    bootstrap_free(client.boot);
    close(raw);
}

/* ---- time ------------------------------------------------------------------------------------ */

static void silent_peer(bool server, enum stage stage, const char *log)
{
    int raw;
    enum { LIMIT_MS = 150 };
    uint64_t start = now_ns();
    struct side side = face_raw(server, LIMIT_MS, &raw);
    int sender = server ? FROM_CLIENT : FROM_SERVER;
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[3 * BOOT_MESSAGE_MAX];
    size_t length = 0;
    if (stage != AT_ONCE)
        length += greeting(bytes, sender);
    if (stage == AFTER_OFFER)
        length += offer(bytes + length, sender, &theirs);
    memset(&logged, 0, sizeof logged);
    send_all(raw, bytes, length);
    cr_assert_eq(run_one(&side), BOOT_FAILED);
    uint64_t took_ms = (now_ns() - start) / 1000000;
    cr_assert_eq(bootstrap_status(side.boot), UCCL_ETIMEDOUT);
    cr_assert_leq(side.steps, 8, "%u steps in %d ms of silence", side.steps, LIMIT_MS);
    cr_assert_geq(took_ms, LIMIT_MS);
    cr_assert_leq(took_ms, LIMIT_MS + 1000, "%d ms became %llu", LIMIT_MS, (unsigned long long)took_ms);
    expect_log(server && stage == AT_ONCE ? UCCL_LOG_INFO : UCCL_LOG_WARN, log, "silence");
    bootstrap_free(side.boot);
    close(raw);
}

Test(boot_peers, silent_peers_time_out)
{
    silent_peer(true, AT_ONCE, "no HELLO");
    silent_peer(false, AT_ONCE, "no HELLO");
    silent_peer(true, AFTER_HELLO, "no OFFER");
    silent_peer(false, AFTER_HELLO, "no OFFER");
    silent_peer(true, AFTER_OFFER, "no READY");
}

/* A peer that always says a little more does not get more time. */
Test(boot_peers, dripping_peer_times_out)
{
    int raw;
    struct side server = face_raw(true, PLENTY_MS, &raw);
    uint64_t deadline = bootstrap_deadline(server.boot);
    uint8_t bytes[HELLO_BYTES];
    hello(bytes, FROM_CLIENT, BOOT_VERSION, 0);
    for (int i = 0; i < HELLO_BYTES - 1; i++) {
        send_all(raw, bytes + i, 1);
        cr_assert_eq(bootstrap_step(server.boot, deadline - 1), BOOT_HELLO);
    }
    cr_assert_eq(bootstrap_step(server.boot, deadline), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(server.boot), UCCL_ETIMEDOUT);
    expect_log(UCCL_LOG_WARN, "UCCL_CONNECT_MS)", "drip"); /* of the parameter alone, in a server */
    bootstrap_free(server.boot);
    close(raw);
}

/* What has arrived before the deadline counts even if we look after it. */
Test(boot_peers, late_look_is_not_a_timeout)
{
    int raw;
    struct side server = face_raw(true, PLENTY_MS, &raw);
    struct boot_offer theirs = make_offer(2, 8);
    uint8_t bytes[2 * BOOT_MESSAGE_MAX];
    size_t length = introduction(bytes, FROM_CLIENT, &theirs);
    send_all(raw, bytes, length);
    wait_for(server.boot, POLLIN);
    step(&server);
    length = ready(bytes, FROM_CLIENT);
    send_all(raw, bytes, length);
    wait_for(server.boot, POLLIN);
    cr_assert_eq(bootstrap_step(server.boot, UINT64_MAX), BOOT_DONE, "%s", logged.text);
    bootstrap_free(server.boot);
    close(raw);
}

/* Our own side may be what is slow; the peer is told. */
Test(boot_peers, own_slowness_times_out)
{
    int raw;
    struct side client = face_raw(false, PLENTY_MS, &raw);
    uint8_t bytes[BOOT_MESSAGE_MAX];
    send_all(raw, bytes, greeting(bytes, FROM_SERVER));
    wait_for(client.boot, POLLIN);
    cr_assert_eq(bootstrap_step(client.boot, now_ns()), BOOT_NEED_OFFER);
    cr_assert_eq(bootstrap_step(client.boot, UINT64_MAX), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ETIMEDOUT);
    expect_log(UCCL_LOG_WARN, "this side", "slow");
    bootstrap_free(client.boot);
    uint8_t want[2 * BOOT_MESSAGE_MAX];
    size_t have = read_up_to(raw, bytes, sizeof bytes);
    size_t length = own_hello(want, FROM_CLIENT, bytes);
    length += rejection(want + length, FROM_CLIENT, 4);
    cr_assert_eq(have, length);
    cr_assert_arr_eq(bytes, want, length);
    close(raw);
}

/* A listener whose queue is full answers no connect: the client waits, without spinning, in CONNECTING. */
Test(boot_peers, unanswered_connect_times_out)
{
    union nic_address address = loopback(AF_INET);
    int listener = listen_at(&address, 0);
    int fillers[4];
    for (int i = 0; i < 4; i++) {
        fillers[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)connect(fillers[i], &address.any, nic_address_length(&address));
    }
    struct side client = {0};
    uint64_t start = now_ns();
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(200), NULL, &client.boot), 0);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_ETIMEDOUT);
    cr_assert_leq(client.steps, 4);
    cr_assert_leq((now_ns() - start) / 1000000, 1200);
    expect_log(UCCL_LOG_WARN, "TCP connect", "full queue");
    bootstrap_free(client.boot);
    for (int i = 0; i < 4; i++)
        close(fillers[i]);
    close(listener);
}

/* ---- nobody there ---------------------------------------------------------------------------- */

static void refused(int family, const char *name)
{
    union nic_address address = loopback(family);
    /* bound but not listening: nobody else can take the port meanwhile */
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(fd, &address.any, nic_address_length(&address)), 0);
    socklen_t length = sizeof address;
    cr_assert_eq(getsockname(fd, &address.any, &length), 0);
    memset(&logged, 0, sizeof logged);
    struct side client = {0};
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &client.boot), 0);
    cr_assert_eq(run_one(&client), BOOT_FAILED);
    cr_assert_eq(bootstrap_status(client.boot), UCCL_EREFUSED);
    expect_log(UCCL_LOG_WARN, name, "refused");
    bootstrap_free(client.boot);
    close(fd);
}

Test(boot_peers, connection_refused)
{
    refused(AF_INET, "127.0.0.1:");
    if (have_ipv6())
        refused(AF_INET6, "[::1]:");
}

/* None of these sends a packet. */
Test(boot_peers, unusable_addresses)
{
    struct {
        const char *name;
        union nic_address address;
    } cases[7];
    memset(cases, 0, sizeof cases);
    size_t count = 0;
    cases[count].name = "no family";
    count++;
    cases[count].name = "another family";
    cases[count].address = loopback(AF_INET);
    cases[count++].address.any.sa_family = AF_UNIX;
    cases[count].name = "no port";
    cases[count++].address = loopback(AF_INET);
    cases[count].name = "multicast";
    cases[count].address = loopback(AF_INET);
    cases[count].address.v4.sin_port = htons(9);
    cases[count++].address.v4.sin_addr.s_addr = htonl(0xe0000001u);
    cases[count].name = "broadcast";
    cases[count].address = loopback(AF_INET);
    cases[count].address.v4.sin_port = htons(9);
    cases[count++].address.v4.sin_addr.s_addr = htonl(INADDR_BROADCAST);
    if (have_ipv6()) {
        for (uint32_t scope = 0; scope < 2; scope++) {
            cases[count].name = scope == 0 ? "link-local without interface" : "no such interface";
            cases[count].address = loopback(AF_INET6);
            cases[count].address.v6.sin6_port = htons(9);
            cases[count].address.v6.sin6_scope_id = scope == 0 ? 0 : 0x7ffffff0;
            cases[count].address.v6.sin6_addr.s6_addr[0] = 0xfe;
            cases[count++].address.v6.sin6_addr.s6_addr[1] = 0x80;
        }
    }
    for (size_t i = 0; i < count; i++) {
        struct bootstrap *boot = NULL;
        memset(&logged, 0, sizeof logged);
        int status = bootstrap_connect(&cases[i].address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &boot);
        cr_assert_eq(status, UCCL_EADDR, "%s: %d: %s", cases[i].name, status, logged.text);
        cr_assert_null(boot, "%s", cases[i].name);
        expect_log(UCCL_LOG_WARN, "", cases[i].name);
    }
}

/* IPv6 scopes: named in the log, and kept on the way to connect(). */
Test(boot_peers, scope_is_named)
{
    if (!have_ipv6())
        cr_skip_test("no ::1 on this machine");
    union nic_address address = loopback(AF_INET6);
    address.v6.sin6_addr.s6_addr[0] = 0xfe;
    address.v6.sin6_addr.s6_addr[1] = 0x80;
    address.v6.sin6_port = htons(9);
    address.v6.sin6_scope_id = 0x7ffffff0;
    struct bootstrap *boot = NULL;
    cr_assert_eq(bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &boot), UCCL_EADDR);
    expect_log(UCCL_LOG_WARN, "[fe80::1%2147483632]:9", "scope");
}

Test(boot_peers, out_of_descriptors)
{
    union nic_address address = loopback(AF_INET);
    address.v4.sin_port = htons(9);
    struct rlimit before;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct bootstrap *boot = NULL;
    int status = bootstrap_connect(&address, CLIENT_ID, 0, in_ms(PLENTY_MS), NULL, &boot);
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    cr_assert_eq(status, UCCL_ENOMEM);
    expect_log(UCCL_LOG_WARN, "127.0.0.1:9", "descriptors");
}
