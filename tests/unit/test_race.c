/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of several addresses leads to the listener: hosts 127.0.0.1, 127.0.0.2 and so on with one port, where somebody
 * says HELLO, nobody listens, or nothing is ever said. Time is what the test says it is.
 */
#include "../../api/race.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MS = 1000000, LIMIT_MS = 10000 };

static const uint8_t OURS[16] = {1}, THEIRS[16] = {2};
static const uint64_t LISTENER = 77, BEGIN_NS = 1000000000;

static struct {
    unsigned count[5]; /* by level */
    char text[8][512];
    unsigned lines;
} logged;

static void take_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    logged.count[level]++;
    if (logged.lines < 8)
        snprintf(logged.text[logged.lines++], sizeof logged.text[0], "%s", text);
}

/* What is at an address. */
enum host {
    REFUSES, /* nobody listens */
    MUTE,    /* TCP connects; no HELLO comes */
    RIGHT,   /* the listener */
    WRONG,   /* another listener */
    BABBLES, /* speaks another protocol */
};

struct street {
    unsigned count;
    enum host kind[HANDLE_ADDRESSES_MAX];
    int listener[HANDLE_ADDRESSES_MAX];
    struct bootstrap *server[HANDLE_ADDRESSES_MAX]; /* NULL: nobody has come */
    struct race race;
    struct bootstrap *won;
};

static struct sockaddr_in house(unsigned i, in_port_t port)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i)};
}

/* A port that is free at all of them: bound, it refuses until somebody listens. */
static bool bind_all(struct street *street)
{
    in_port_t port = 0;
    for (unsigned i = 0; i < street->count; i++) {
        struct sockaddr_in address = house(i, port);
        socklen_t length = sizeof address;
        street->listener[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (bind(street->listener[i], (struct sockaddr *)&address, length)) {
            for (unsigned k = 0; k <= i; k++)
                close(street->listener[k]);
            return false;
        }
        getsockname(street->listener[i], (struct sockaddr *)&address, &length);
        port = address.sin_port;
        street->race.target.addresses[i].v4 = house(i, port);
    }
    return true;
}

static void build(struct street *street, unsigned count, const enum host *hosts, uint64_t limit_ns)
{
    *street = (struct street){.count = count};
    uccl_set_log(take_log, NULL);
    log_set_level(UCCL_LOG_INFO);
    memcpy(street->kind, hosts, count * sizeof *hosts);
    while (!bind_all(street))
        ;
    for (unsigned i = 0; i < count; i++) {
        if (hosts[i] != REFUSES)
            cr_assert_eq(listen(street->listener[i], 8), 0);
    }
    struct handle_target target = street->race.target;
    target.listener = LISTENER;
    target.count = count;
    race_init(&street->race, &target, OURS, "", BEGIN_NS, BEGIN_NS + limit_ns);
}

static void tear_down(struct street *street)
{
    bootstrap_free(street->won);
    race_end(&street->race);
    for (unsigned i = 0; i < street->count; i++) {
        bootstrap_free(street->server[i]);
        close(street->listener[i]);
    }
}

static void serve(struct street *street, unsigned i)
{
    int babbler = street->kind[i] == BABBLES ? accept(street->listener[i], NULL, NULL) : -1;
    if (babbler >= 0) {
        cr_assert_eq(send(babbler, "SSH-2.0-x\r\n", 11, MSG_NOSIGNAL), 11);
        shutdown(babbler, SHUT_WR);
        close(babbler);
    }
    if (street->kind[i] != RIGHT && street->kind[i] != WRONG)
        return;
    if (!street->server[i]) {
        int fd = accept(street->listener[i], NULL, NULL);
        if (fd < 0)
            return;
        cr_assert_eq(bootstrap_serve(fd, THEIRS, LISTENER + (street->kind[i] == WRONG), UINT64_MAX, &street->server[i]),
                     0);
    }
    if (bootstrap_step(street->server[i], BEGIN_NS) == BOOT_NEED_PROOFS)
        bootstrap_prove(street->server[i], NULL, 0);
}

/* At that moment, until nothing moves any more: loopback takes no time that would have to be waited for. */
static int at(struct street *street, uint64_t ms)
{
    int result = UCCL_EAGAIN;
    for (unsigned rounds = 0; rounds < 20 && result == UCCL_EAGAIN; rounds++) {
        result = race_step(&street->race, BEGIN_NS + ms * MS, &street->won);
        for (unsigned i = 0; i < street->count; i++)
            serve(street, i);
    }
    return result;
}

/* Does a mute host hear a HELLO, and then that nothing is wrong? */
static bool let_go(const struct street *street, unsigned i)
{
    uint8_t bytes[BOOT_SMALL_MAX];
    int fd = accept(street->listener[i], NULL, NULL);
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    uint16_t code = 0;
    bool good = got == BOOT_HELLO_BYTES + BOOT_REJECT_BYTES &&
                !boot_decode_reject(bytes + BOOT_HELLO_BYTES, BOOT_REJECT_BYTES, &code) && code == -UCCL_EAGAIN;
    close(fd);
    return good;
}

Test(race, the_first_answers)
{
    struct street street;
    build(&street, 3, (enum host[]){RIGHT, RIGHT, RIGHT}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 0), 0);
    cr_assert_eq(street.race.winner, 0);
    cr_assert_eq(street.race.begun, 1, "nobody else is bothered");
    race_tell(&street.race, 0);
    cr_assert_eq(logged.lines, 0);
    tear_down(&street);
}

/* The second begins 100 ms after a first one that says nothing, and not before. */
Test(race, the_first_is_silent)
{
    struct street street;
    build(&street, 3, (enum host[]){MUTE, RIGHT, RIGHT}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 0), UCCL_EAGAIN);
    cr_assert_eq(at(&street, 99), UCCL_EAGAIN);
    cr_assert_eq(street.race.begun, 1);
    cr_assert_eq(at(&street, 100), 0);
    cr_assert_eq(street.race.winner, 1);
    cr_assert_eq(street.race.begun, 2);
    cr_assert(let_go(&street, 0));
    race_tell(&street.race, 0);
    cr_assert_eq(logged.lines, 0);
    tear_down(&street);
}

/* An attempt that has begun goes on while others do. */
Test(race, the_first_answers_late)
{
    struct street street;
    build(&street, 3, (enum host[]){MUTE, MUTE, MUTE}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 250), UCCL_EAGAIN);
    cr_assert_eq(street.race.begun, 3, "who looks rarely begins several");
    street.kind[0] = RIGHT;
    cr_assert_eq(at(&street, 5000), 0);
    cr_assert_eq(street.race.winner, 0);
    cr_assert(let_go(&street, 1));
    cr_assert(let_go(&street, 2));
    tear_down(&street);
}

/* A failure makes the next one begin at once; the race tells of it when it is over, and not as a warning. */
Test(race, refused_and_another_listener)
{
    struct street street;
    build(&street, 4, (enum host[]){REFUSES, WRONG, RIGHT, RIGHT}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 0), 0);
    cr_assert_eq(street.race.winner, 2);
    cr_assert_eq(street.race.begun, 3);
    cr_assert_eq(logged.count[UCCL_LOG_WARN], 0);
    cr_assert_eq(bootstrap_step(street.server[1], BEGIN_NS), BOOT_FAILED, "told that nobody wants it");
    memset(&logged, 0, sizeof logged);
    race_tell(&street.race, 0);
    race_tell(&street.race, UCCL_EPROTO);
    cr_assert_eq(logged.count[UCCL_LOG_INFO], 2);
    cr_assert_eq(logged.lines, 2, "once");
    cr_assert(strstr(logged.text[0], "127.0.0.1:"), "%s", logged.text[0]);
    cr_assert(strstr(logged.text[1], "127.0.0.2:"), "%s", logged.text[1]);
    tear_down(&street);
}

/* All fail: each address is told once, and the limit was what ended it. */
Test(race, nobody)
{
    struct street street;
    build(&street, 3, (enum host[]){REFUSES, MUTE, WRONG}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 0), UCCL_EAGAIN);
    cr_assert_eq(at(&street, LIMIT_MS - 1), UCCL_EAGAIN);
    cr_assert_eq(at(&street, LIMIT_MS), UCCL_ETIMEDOUT);
    memset(&logged, 0, sizeof logged);
    race_tell(&street.race, UCCL_ETIMEDOUT);
    cr_assert_eq(logged.count[UCCL_LOG_WARN], 3);
    cr_assert_eq(logged.lines, 3);
    static const char *const words[] = {"refused", "time is up", "another listener"};
    for (unsigned i = 0; i < 3; i++)
        cr_assert(strstr(logged.text[i], words[i]), "%s", logged.text[i]);
    tear_down(&street);
    memset(&logged, 0, sizeof logged);

    build(&street, 2, (enum host[]){REFUSES, REFUSES}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 0), UCCL_EREFUSED);
    tear_down(&street);
}

/* The right address may be one whose turn has not come. */
Test(race, time_is_up_before_the_last)
{
    struct street street;
    build(&street, 2, (enum host[]){REFUSES, RIGHT}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, LIMIT_MS), UCCL_ETIMEDOUT);
    cr_assert_eq(street.race.begun, 1);
    tear_down(&street);
}

/* Of several failures that of the address which came nearest to the listener is told, wherever it stands. */
Test(race, the_most_telling_failure)
{
    static const struct {
        enum host hosts[2];
        int error;
    } cases[] = {{{BABBLES, MUTE}, UCCL_ETIMEDOUT},
                 {{REFUSES, MUTE}, UCCL_ETIMEDOUT},
                 {{REFUSES, BABBLES}, UCCL_EPROTO},
                 {{WRONG, REFUSES}, UCCL_EREFUSED}};
    struct street street;
    for (unsigned i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        enum host hosts[] = {cases[i / 2].hosts[i % 2], cases[i / 2].hosts[!(i % 2)]};
        build(&street, 2, hosts, (uint64_t)LIMIT_MS * MS);
        int result = at(&street, 0);
        for (unsigned looks = 0; looks < 1000 && result == UCCL_EAGAIN; looks++, usleep(looks > 20 ? 1000 : 0))
            result = at(&street, looks < 100 ? 1000 : LIMIT_MS);
        cr_assert_eq(result, cases[i / 2].error, "case %u: %d", i, result);
        tear_down(&street);
    }
}

/* What became of the winner is a warning where it failed. */
Test(race, the_winner_fails)
{
    struct street street;
    build(&street, 2, (enum host[]){REFUSES, RIGHT}, (uint64_t)LIMIT_MS * MS);
    cr_assert_eq(at(&street, 0), 0);
    while (bootstrap_step(street.won, BEGIN_NS) != BOOT_NEED_OFFER)
        serve(&street, 1);
    struct boot_offer offer = {.conn_id = 1, .known = true};
    bootstrap_offer(street.won, &offer, &(struct boot_key){1, 2});
    cr_assert_eq(bootstrap_step(street.won, BEGIN_NS + (uint64_t)LIMIT_MS * MS), BOOT_FAILED);
    race_tell(&street.race, UCCL_ETIMEDOUT);
    cr_assert_eq(logged.count[UCCL_LOG_WARN], 1);
    cr_assert_eq(logged.count[UCCL_LOG_INFO], 1);
    tear_down(&street);
}

/* A short limit leaves time for the last address, too. */
Test(race, little_time)
{
    struct street street;
    build(&street, 3, (enum host[]){MUTE, MUTE, RIGHT}, (uint64_t)40 * MS);
    cr_assert_eq(at(&street, 0), UCCL_EAGAIN);
    cr_assert_eq(at(&street, 19), UCCL_EAGAIN);
    cr_assert_eq(street.race.begun, 2);
    cr_assert_eq(at(&street, 20), 0);
    cr_assert_eq(street.race.winner, 2);
    tear_down(&street);
}

/* Of a handle that names nobody in particular the first HELLO will do. */
Test(race, any_listener)
{
    struct street street;
    build(&street, 2, (enum host[]){WRONG, RIGHT}, (uint64_t)LIMIT_MS * MS);
    street.race.target.listener = 0;
    cr_assert_eq(at(&street, 0), 0);
    cr_assert_eq(street.race.winner, 0);
    tear_down(&street);
}
