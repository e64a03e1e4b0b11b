/* SPDX-License-Identifier: Apache-2.0 */
/* Notifications name a connection: as long as the application has its handle, and not before or after. */
#include "onesided_pair.h"

#include <poll.h>

static bool readable(int fd)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, 0) == 1;
}

/* Nobody gets a handle that he has given up, though the end itself takes its time, and the peer goes on meanwhile. */
BOTH(onesided_handles, none_comes_after_the_end)
{
    struct one one;
    char got[8];
    uccl_request *requests[40], *closing = NULL;
    for (unsigned way = 0; way < 2; way++) {
        one_open(&one, lend, 4096, ALL);
        uccl_engine *engine = one.pair.engine[1];
        int fd = uccl_notify_fd(engine);
        for (unsigned i = 0; i < 40; i++) {
            IS(uccl_notify_async(one.pair.conn[0], "12345678", 8, &requests[i]), 0);
            if (i < 20)
                end_of(requests[i], 0);
        }
        cr_assert(readable(fd));
        IS(way ? uccl_conn_close_async(one.pair.conn[1], &closing) : uccl_conn_abort(one.pair.conn[1]), 0);
        for (uint64_t end_ms = now_ms() + 50; now_ms() < end_ms;)
            IS(uccl_notify_next(engine, got, sizeof got, NULL, NULL), UCCL_EAGAIN);
        cr_assert(!readable(fd));
        for (unsigned i = 20; i < 40; i++)
            uccl_wait(requests[i], SOON_MS, NULL);
        if (way)
            end_of(closing, 0);
        one.pair.conn[1] = NULL;
        one_close(&one);
    }
}

/* A connection that the peer has made, and has used at once, is unknown here until it is accepted. */
BOTH(onesided_handles, none_comes_before_the_connection)
{
    struct pair pair = {0};
    uccl_request *requests[30];
    uccl_conn *from = NULL;
    uint8_t got;
    int connected, done = 0;
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine(lend, "LINGER_MS", "300", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    while ((connected = uccl_connect(pair.engine[0], &pair.handle, 0, &pair.conn[0])) == UCCL_EAGAIN)
        IS(uccl_accept(pair.listener, 0, &pair.conn[1]), UCCL_EAGAIN);
    IS(connected, 0);
    for (uint8_t i = 0; i < 30; i++)
        IS(uccl_notify_async(pair.conn[0], &i, 1, &requests[i]), 0);
    for (uint64_t end_ms = now_ms() + 50; now_ms() < end_ms;) {
        IS(uccl_notify_next(pair.engine[1], &got, 1, NULL, NULL), UCCL_EAGAIN);
        IS(uccl_test(requests[29], &done, NULL), 0);
        cr_assert(!done);
    }
    IS(uccl_accept(pair.listener, SOON_MS, &pair.conn[1]), 0);
    for (unsigned i = 0; i < 30; i++) {
        int error;
        for (uint64_t end_ms = now_ms() + SOON_MS;
             (error = uccl_notify_next(pair.engine[1], &got, 1, NULL, &from)) == UCCL_EAGAIN;)
            cr_assert(now_ms() < end_ms);
        IS(error, 0);
        cr_assert(got == i && from == pair.conn[1], "%u, not %u", got, i);
        end_of(requests[i], 0);
    }
    pair_close(&pair);
}
