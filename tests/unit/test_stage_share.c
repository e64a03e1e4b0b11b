/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two devices on one engine thread. One of them stands still, which is the slowest that a device can be; what it holds
 * of the blocks leaves the other enough to go on. No time is measured: the other's messages end while none of the first
 * one's can.
 */
#include "stage_pair.h"

enum { STILL = 4, GOING = 5, LENGTH = 300000, MESSAGES = 6 };

struct message {
    struct side from, to;
    uccl_request *send, *recv;
};

static struct side side_on(uccl_engine *engine, int device, size_t length)
{
    struct side side = {.device = device >= 0};
    side.memory = side.device ? fake_alloc(length, device) : malloc(length);
    IS(uccl_reg_mr(engine, side.memory, length, UCCL_MEM_AUTO, &side.mr), 0);
    return side;
}

static void start(struct message *message, int from, int to, size_t length, unsigned number)
{
    message->from = side_on(pair.engine[0], from, length);
    message->to = side_on(pair.engine[1], to, length);
    fill(shadow, length, number);
    side_write(&message->from, 0, shadow, length);
    IS(uccl_recv_async(pair.conn[1], message->to.memory, length, message->to.mr, &message->recv), 0);
    IS(uccl_send_async(pair.conn[0], message->from.memory, length, message->from.mr, &message->send), 0);
}

static void end(struct message *message, size_t length, unsigned number)
{
    end_of(message->recv, 0);
    end_of(message->send, 0);
    side_read(&message->to, 0, shadow, length);
    check(shadow, length, number);
    side_free(&message->from);
    side_free(&message->to);
}

/* On the second connection; a connection's small messages go in the order of their posts. */
static void on_other_connection(uccl_conn *other[2])
{
    for (int i = 0; i < 2; i++) {
        uccl_conn *first = pair.conn[i];
        pair.conn[i] = other[i];
        other[i] = first;
    }
}

/* Messages go the other way from now on. */
static void turn_round(uccl_conn *other[2])
{
    uccl_engine *engine = pair.engine[0];
    uccl_conn *first = pair.conn[0], *first_other = other[0];
    pair.engine[0] = pair.engine[1];
    pair.engine[1] = engine;
    pair.conn[0] = pair.conn[1];
    pair.conn[1] = first;
    other[0] = other[1];
    other[1] = first_other;
}

static void expect_pending(uccl_request *request)
{
    int done = 0;
    IS(uccl_test(request, &done, NULL), 0);
    cr_assert_not(done);
}

/* The other side of each message is the host's. */
static void one_stands_still(const char *lend, bool receives, unsigned messages, size_t length)
{
    struct message still[MESSAGES], going[MESSAGES], host;
    uccl_conn *other[2];
    stage_open_pair(lend, "64", "16", "mmsg", "1");
    connect_now(pair.engine[0], &pair.handle, pair.listener, other);
    fake.hold_device = STILL;
    for (unsigned i = 0; i < messages; i++)
        start(&still[i], receives ? -1 : STILL, receives ? STILL : -1, length, i);
    on_other_connection(other);
    for (unsigned i = 0; i < MESSAGES; i++)
        start(&going[i], receives ? -1 : GOING, receives ? GOING : -1, length, i + MESSAGES);
    for (unsigned i = 0; i < MESSAGES; i++)
        end(&going[i], length, i + MESSAGES);
    start(&host, -1, -1, length, 2 * MESSAGES);
    end(&host, length, 2 * MESSAGES);
    for (unsigned i = 0; i < messages; i++)
        expect_pending(receives ? still[i].recv : still[i].send);
    fake.hold_device = -1;
    for (unsigned i = 0; i < messages; i++)
        end(&still[i], length, i);
    stage_close_pair();
}

BOTH(stage_share, fetches)
{
    one_stands_still(lend, false, MESSAGES, LENGTH);
}

BOTH(stage_share, fetches_of_small_ones)
{
    one_stands_still(lend, false, MESSAGES, 1000);
}

/* What finds no block of the device's share is kept meanwhile. */
BOTH(stage_share, uploads)
{
    one_stands_still(lend, true, 3, LENGTH);
}

BOTH(stage_share, uploads_of_small_ones)
{
    one_stands_still(lend, true, MESSAGES, 1000);
}

/*
 * A device that stands still has all the copies in flight that it takes, up to it. Others go on, both ways, behind what
 * waits for it.
 */
BOTH(stage_share, one_takes_no_more_copies)
{
    enum { MANY = 300, SMALL = 1000 };
    static struct message many[MANY], fetched, going[2];
    uccl_conn *other[2];
    stage_open_pair(lend, "64", "32", "mmsg", "1");
    connect_now(pair.engine[0], &pair.handle, pair.listener, other);
    fake.hold_device = STILL;
    for (unsigned i = 0; i < MANY; i++)
        start(&many[i], -1, STILL, SMALL, i);
    uint64_t end_ms = now_ms() + SOON_MS;
    while (counter(1, "gpu_uploads") < 256) {
        expect_pending(many[MANY - 1].recv); /* and drives an engine that is lent */
        cr_assert(now_ms() < end_ms);
    }
    turn_round(other);
    start(&fetched, STILL, -1, LENGTH, MANY);
    on_other_connection(other);
    start(&going[0], GOING, -1, LENGTH, MANY + 1);
    end(&going[0], LENGTH, MANY + 1);
    turn_round(other);
    start(&going[1], -1, GOING, LENGTH, MANY + 2);
    end(&going[1], LENGTH, MANY + 2);
    expect_pending(fetched.send);
    fake.hold_device = -1;
    end(&fetched, LENGTH, MANY);
    for (unsigned i = 0; i < MANY; i++)
        end(&many[i], SMALL, i);
    stage_close_pair();
}

/* What comes for a device that stands still is not kept without bound: receives fail, and others notice nothing. */
BOTH(stage_share, too_much_for_one_that_stands_still)
{
    enum { MANY = 12 };
    struct message still[MANY], going[MESSAGES], host;
    uccl_conn *other[2];
    unsigned failed = 0;
    stage_open_pair(lend, "64", "16", "mmsg", "1");
    connect_now(pair.engine[0], &pair.handle, pair.listener, other);
    uccl_set_log(log_nothing, NULL);
    fake.hold_device = STILL;
    for (unsigned i = 0; i < MANY; i++)
        start(&still[i], -1, STILL, LENGTH, i);
    on_other_connection(other);
    for (unsigned i = 0; i < MESSAGES; i++)
        start(&going[i], -1, GOING, LENGTH, i + MANY);
    for (unsigned i = 0; i < MESSAGES; i++)
        end(&going[i], LENGTH, i + MANY);
    start(&host, -1, -1, LENGTH, 2 * MANY);
    end(&host, LENGTH, 2 * MANY);
    int32_t sent[MANY];
    for (unsigned i = 0; i < MANY; i++)
        sent[i] = uccl_wait(still[i].send, SOON_MS, NULL);
    fake.hold_device = -1;
    for (unsigned i = 0; i < MANY; i++) {
        int32_t status = uccl_wait(still[i].recv, SOON_MS, NULL);
        failed += status == UCCL_EIO;
        /* a message that is here as a whole before the thread gives up counts as delivered */
        cr_assert(status == UCCL_EIO ? sent[i] == UCCL_ECANCELED || sent[i] == UCCL_OK
                                     : status == UCCL_OK && sent[i] == UCCL_OK,
                  "%u: received %d, sent %d", i, status, sent[i]);
        side_free(&still[i].from);
        side_free(&still[i].to);
    }
    cr_assert(failed > 0 && failed < MANY, "%u", failed);
    stage_close_pair();
}

/*
 * Datagrams with more small messages than the pool has spans, for a device that copies nothing yet: what finds no block
 * is kept, and arrives once blocks are free.
 */
BOTH(stage_share, spills)
{
    enum { MANY = 300, SMALL = 100, SPILL_MS = 500 };
    static struct message many[MANY];
    stage_open_pair(lend, "64", "8", "mmsg", "1");
    fake.hold = true;
    for (unsigned i = 0; i < MANY; i++) {
        many[i].from = side_on(pair.engine[0], -1, SMALL);
        many[i].to = side_on(pair.engine[1], GOING, SMALL);
        fill(many[i].from.memory, SMALL, i);
        IS(uccl_recv_async(pair.conn[1], many[i].to.memory, SMALL, many[i].to.mr, &many[i].recv), 0);
    }
    for (unsigned i = 0; i < MANY; i++)
        IS(uccl_send_async(pair.conn[0], many[i].from.memory, SMALL, many[i].from.mr, &many[i].send), 0);
    /* a sender that the machine keeps from sending many in one datagram finds room for all: that is right, too */
    for (uint64_t end_ms = now_ms() + SPILL_MS; counter(1, "gpu_spills") == 0 && now_ms() < end_ms;) {
        int done; /* it cannot be; the call drives an engine that is lent */
        IS(uccl_test(many[MANY - 1].recv, &done, NULL), 0);
    }
    fake.hold = false;
    for (unsigned i = 0; i < MANY; i++)
        end(&many[i], SMALL, i);
    stage_close_pair();
}
