/* SPDX-License-Identifier: Apache-2.0 */
#include "race.h"

#include "base/log.h"
#include "nic/netdev.h"
#include "objects.h"

#include <poll.h>
#include <string.h>

/* RFC 8305 recommends at least 100 ms and allows no less than 10 ms. */
static const uint64_t GAP_NS = 100 * NS_PER_MS;

void race_init(struct race *race, const struct handle_target *target, const uint8_t engine_id[16], const char *ifname,
               uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t share_ns = (deadline_ns - now_ns) / (target->count + 1); /* leaves time for the last address */
    *race = (struct race){
        .target = *target, .engine_id = engine_id, .ifname = ifname, .deadline_ns = deadline_ns, .winner = -1};
    race->gap_ns = share_ns < GAP_NS ? share_ns : GAP_NS;
    race->next_ns = now_ns;
}

void race_limit(struct race *race, uint64_t now_ns, uint64_t deadline_ns)
{
    uint64_t share_ns = (deadline_ns - now_ns) / (race->target.count - race->begun + 1);
    race->deadline_ns = deadline_ns;
    race->gap_ns = share_ns < GAP_NS ? share_ns : GAP_NS;
    if (race->next_ns > now_ns + race->gap_ns)
        race->next_ns = now_ns + race->gap_ns;
    for (unsigned i = 0; i < race->begun; i++) {
        if (race->attempts[i].boot)
            bootstrap_set_deadline(race->attempts[i].boot, deadline_ns);
    }
}

static unsigned under_way(const struct race *race)
{
    unsigned count = 0;
    for (unsigned i = 0; i < race->begun; i++)
        count += race->attempts[i].boot != NULL;
    return count;
}

/* Makes the next attempt due. */
static void attempt_failed(struct race *race, struct race_attempt *attempt, int error, uint64_t now_ns)
{
    bootstrap_free(attempt->boot);
    attempt->boot = NULL;
    attempt->error = error;
    race->next_ns = now_ns;
}

/* Begins the next attempt if it is due by the clock; the caller repeats that. False: none is due. */
static bool begin_next(struct race *race, uint64_t now_ns)
{
    if (race->begun == race->target.count || now_ns < race->next_ns || (now_ns >= race->deadline_ns && race->begun > 0))
        return false;
    struct race_attempt *attempt = &race->attempts[race->begun];
    union nic_address *address = &race->target.addresses[race->begun++];
    race->next_ns += race->gap_ns;
    netdev_find_scope(race->ifname, address);
    int error = bootstrap_connect(address, race->engine_id, race->target.listener, race->deadline_ns, attempt->fault,
                                  &attempt->boot);
    if (error)
        attempt_failed(race, attempt, error, now_ns);
    else
        bootstrap_add_features(attempt->boot, race->features);
    return true;
}

/*
 * Ranks errors: our own first, then the listener's; then a time-out, since that address might still have been right;
 * then the answers of strangers, and last an address without a route.
 */
static int telling(int error)
{
    switch (error) {
    case UCCL_OK:
        return 0;
    case UCCL_EADDR:
        return 1;
    case UCCL_EREFUSED:
        return 2;
    case UCCL_EPROTO:
        return 3;
    case UCCL_ETIMEDOUT:
        return 4;
    case UCCL_ENOMEM:
    case UCCL_EIO:
        return 6;
    default:
        return 5;
    }
}

/* Why the race is lost: time was up before the turn of those that have not begun. */
static int most_telling(const struct race *race)
{
    int error = race->begun < race->target.count ? UCCL_ETIMEDOUT : UCCL_OK;
    for (unsigned i = 0; i < race->begun; i++) {
        if (telling(race->attempts[i].error) > telling(error))
            error = race->attempts[i].error;
    }
    return error;
}

/* Tells a server that has our HELLO that nothing is wrong. */
static void close_losers(struct race *race)
{
    for (unsigned i = 0; i < race->begun; i++) {
        struct race_attempt *attempt = &race->attempts[i];
        if (attempt->boot)
            bootstrap_reject(attempt->boot, UCCL_EAGAIN);
        bootstrap_free(attempt->boot);
        attempt->boot = NULL;
    }
}

int race_step(struct race *race, uint64_t now_ns, struct bootstrap **out)
{
    for (unsigned i = 0; i < race->begun || begin_next(race, now_ns); i++) {
        struct race_attempt *attempt = &race->attempts[i];
        if (!attempt->boot)
            continue;
        if (bootstrap_step(attempt->boot, now_ns) == BOOT_FAILED) {
            attempt_failed(race, attempt, bootstrap_status(attempt->boot), now_ns);
        } else if (bootstrap_greeted(attempt->boot)) {
            *out = attempt->boot;
            attempt->boot = NULL;
            race->winner = (int)i;
            close_losers(race);
            return UCCL_OK;
        }
    }
    return under_way(race) ? UCCL_EAGAIN : most_telling(race);
}

void race_wait(const struct race *race)
{
    struct pollfd fds[HANDLE_ADDRESSES_MAX];
    unsigned count = 0;
    uint64_t until_ns = race->deadline_ns;
    if (race->begun < race->target.count && race->next_ns < until_ns)
        until_ns = race->next_ns;
    for (unsigned i = 0; i < race->begun; i++) {
        struct bootstrap *boot = race->attempts[i].boot;
        if (boot)
            fds[count++] = (struct pollfd){.fd = bootstrap_fd(boot), .events = bootstrap_events(boot)};
    }
    sleep_on(fds, count, clock_poll_ms(until_ns));
}

void race_tell(struct race *race, int error)
{
    for (unsigned i = 0; i < race->begun; i++) {
        char *fault = race->attempts[i].fault;
        bool guilty = error != UCCL_OK && (race->winner < 0 || race->winner == (int)i);
        if (*fault)
            LOG(guilty ? UCCL_LOG_WARN : UCCL_LOG_INFO, "%s", fault);
        *fault = '\0';
    }
}

void race_end(struct race *race)
{
    for (unsigned i = 0; i < race->begun; i++) {
        bootstrap_free(race->attempts[i].boot);
        race->attempts[i].boot = NULL;
    }
}
