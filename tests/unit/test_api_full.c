/* SPDX-License-Identifier: Apache-2.0 */
/* An engine whose sockets take nothing: it sleeps over it, counted in rounds, and goes on once they do. */
#include "api_pair.h"
#include "forbid.h"

BOTH(api_full, sleeps_while_nothing_can_be_sent)
{
    enum { BYTES = 1 << 20, WAIT_MS = 300, ROUNDS_MOST = 3000 }; /* a look per millisecond, and both timers */
    struct pair pair;
    uint8_t *bytes = calloc(1, BYTES);
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine(lend, "LINGER_MS", "100", "SPIN_US", "0", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    exchange(pair.conn[0], pair.conn[1], 100, 1);

    uccl_request *receive = post_recv(pair.conn[1], bytes, BYTES); /* its CTS goes out, or not: all the same */
    forbid(__NR_sendmmsg, EAGAIN);
    uint64_t rounds = counter_of(pair.engine[0], "rounds") + counter_of(pair.engine[1], "rounds");
    uint64_t blocked = counter_of(pair.engine[0], "tx_blocked");
    uccl_request *send = post_send(pair.conn[0], bytes, BYTES);
    IS(uccl_wait(send, WAIT_MS, NULL), UCCL_ETIMEDOUT);
    cr_assert_gt(counter_of(pair.engine[0], "tx_blocked"), blocked);
    rounds = counter_of(pair.engine[0], "rounds") + counter_of(pair.engine[1], "rounds") - rounds;
    cr_assert_lt(rounds, ROUNDS_MOST, "%llu rounds", (unsigned long long)rounds);

    for (int i = 0; i < 2; i++)
        IS(uccl_close(pair.engine[i]), 0);
    (void)receive;
    free(bytes);
}
