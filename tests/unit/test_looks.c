/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How often a round of an engine thread looks at the clock, and how old the times are that the core is given: with a
 * clock that only moves by what a NIC and a core of this test take.
 */
#include "../param_defaults.h"
#include "base/clock.h"
#include "thread/loop.h"
#include "thread/post.h"
#include "thread/thread.h"
#include "woken_queue.h"

#include <criterion/criterion.h>

enum { TIMEOUT_S = 10, CALL_NS = 1000, PACKET_NS = 10, DESCS_MAX = 8 };

static struct engine_thread thread;
static struct params params;
static _Atomic uint32_t armed;
static _Thread_local bool playing; /* the engine thread plays a round for the test, which waits */

/* ---- the clock ------------------------------------------------------------------------------- */

static uint64_t time_ns;
static unsigned looks;

uint64_t __real_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void);
uint64_t __wrap_clock_now_ns(void)
{
    if (!playing)
        return __real_clock_now_ns();
    looks++;
    return time_ns;
}

/* ---- a NIC ----------------------------------------------------------------------------------- */

static struct nic_queue queue;
static unsigned packets; /* to be received, */
static uint32_t packet_bytes;

static unsigned test_poll(struct nic_queue *from, struct nic_rx *out, unsigned max)
{
    static const uint8_t bytes[1];
    unsigned count = packets < max ? packets : 0;
    (void)from;
    if (!playing)
        return 0;
    time_ns += CALL_NS;
    packets -= count;
    for (unsigned i = 0; i < count; i++)
        out[i] = (struct nic_rx){.data = bytes, .length = packet_bytes, .stride = packet_bytes};
    return count;
}

static void test_release(struct nic_queue *of, const struct nic_rx *rx)
{
    (void)of, (void)rx;
}

static bool test_send(struct nic_queue *to, const struct tx_desc *desc)
{
    (void)to, (void)desc;
    time_ns += PACKET_NS;
    return true;
}

static unsigned test_flush(struct nic_queue *of)
{
    (void)of;
    time_ns += CALL_NS;
    return 0;
}

static const struct nic_datagram_ops test_datagram_ops = {
    .poll = test_poll, .release = test_release, .send = test_send, .flush = test_flush, .follow = woken_follow};

static int test_open(struct nic *of, const struct nic_queue_setup *setup, struct nic_queue **out)
{
    (void)setup;
    wake_fd = eventfd(0, 0);
    queue = (struct nic_queue){.nic = of, .ops = &woken_ops, .datagram = &test_datagram_ops};
    *out = &queue;
    return UCCL_OK;
}

static const struct nic_device_ops test_device_ops = {.queue_open = test_open};
static struct nic nic = {.ops = &test_device_ops};

/* ---- a core ---------------------------------------------------------------------------------- */

static uint64_t expired_ns;           /* the time that it was given last, */
static uint64_t asked_ns[DESCS_MAX];  /* and when it was asked for something to send */
static int64_t asked_late[DESCS_MAX]; /* how old that time was */
static unsigned asked;
static struct tx_desc to_send[DESCS_MAX];
static unsigned send_count;

bool __real_core_rx_copied(struct core *core, const uint8_t *datagram, size_t length, const uint8_t *payload, bool ce,
                           uint64_t now_ns);
bool __wrap_core_rx_copied(struct core *core, const uint8_t *datagram, size_t length, const uint8_t *payload, bool ce,
                           uint64_t now_ns);
bool __wrap_core_rx_copied(struct core *core, const uint8_t *datagram, size_t length, const uint8_t *payload, bool ce,
                           uint64_t now_ns)
{
    (void)core, (void)datagram, (void)length, (void)payload, (void)ce;
    cr_assert_eq(now_ns, time_ns, "round trips are measured by this");
    time_ns += PACKET_NS;
    return true;
}

void __real_core_expire(struct core *core, uint64_t now_ns);
void __wrap_core_expire(struct core *core, uint64_t now_ns);
void __wrap_core_expire(struct core *core, uint64_t now_ns)
{
    if (!playing)
        __real_core_expire(core, now_ns);
    else
        expired_ns = now_ns;
}

bool __real_core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns);
bool __wrap_core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns);
bool __wrap_core_tx(struct core *core, struct tx_desc *desc, uint64_t now_ns)
{
    if (!playing)
        return __real_core_tx(core, desc, now_ns);
    asked_ns[asked] = now_ns;
    asked_late[asked++] = (int64_t)(time_ns - now_ns);
    if (send_count == 0)
        return false;
    *desc = to_send[--send_count];
    return true;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

static void ignore_event(void *context, const struct core_event *event)
{
    (void)context, (void)event;
}

static void play(struct engine_thread *of, void *argument)
{
    (void)argument;
    playing = true;
    time_ns = NS_PER_S;
    looks = asked = 0;
    loop_round(of);
    playing = false;
}

static void play_round(void)
{
    thread_run(&thread, play, NULL);
}

static void start(void)
{
    params = param_defaults();
    params.spin_us = 0;
    params.pin = false;
    cr_assert_eq(thread_start(&thread, &(struct thread_setup){.params = &params,
                                                              .nic = &nic,
                                                              .numa_node = -1,
                                                              .event_fd = -1,
                                                              .event_armed = &armed,
                                                              .on_event = ignore_event}),
                 UCCL_OK);
}

static void stop(void)
{
    thread_stop(&thread);
    thread_free(&thread);
}

static void receive_some(unsigned count, uint32_t bytes)
{
    packets = count;
    packet_bytes = bytes;
    play_round();
    cr_assert_eq(packets, 0);
}

static void send_some(unsigned count, uint8_t datagrams, uint32_t bytes)
{
    send_count = count;
    for (unsigned i = 0; i < count; i++)
        to_send[i] = (struct tx_desc){
            .kind = TX_FRAMES, .count = datagrams, .mask = 1, .datagram_bytes = bytes, .last_bytes = bytes};
    play_round();
    cr_assert_eq(send_count, 0);
}

Test(looks, a_round_without_work_has_one_behind_the_poll, .timeout = TIMEOUT_S)
{
    start();
    play_round();
    cr_assert_eq(looks, 1);
    cr_assert_eq(expired_ns, NS_PER_S + CALL_NS);
    cr_assert_eq(asked_ns[0], NS_PER_S + CALL_NS);
    stop();
}

Test(looks, a_small_packet_takes_a_moment, .timeout = TIMEOUT_S)
{
    start();
    receive_some(1, 100);
    cr_assert_eq(looks, 1);
    cr_assert_eq(expired_ns, NS_PER_S + CALL_NS, "when the packet came");
    stop();
}

Test(looks, what_takes_long_is_followed_by_another_one, .timeout = TIMEOUT_S)
{
    start();
    receive_some(3, 100);
    cr_assert_eq(expired_ns, time_ns);
    cr_assert_eq(looks, 4);
    receive_some(1, 60000);
    cr_assert_eq(expired_ns, time_ns);
    stop();
}

Test(looks, one_small_packet_that_leaves_needs_no_other, .timeout = TIMEOUT_S)
{
    start();
    send_some(1, 1, 100);
    cr_assert_eq(asked, 2);
    cr_assert_eq(asked_ns[1], asked_ns[0]);
    cr_assert_eq(looks, 1);
    send_some(3, 1, 100);
    cr_assert_eq(asked_late[1], PACKET_NS, "not older than one packet");
    cr_assert_eq(asked_late[2], 0);
    cr_assert_eq(asked_late[3], 0);
    send_some(1, 4, 100);
    cr_assert_eq(asked_late[1], 0);
    send_some(1, 1, 60000);
    cr_assert_eq(asked_late[1], 0);
    stop();
}

/* A command that takes a while. */
static void note_time(struct engine_thread *of, void *argument)
{
    uint64_t *late_ns = argument;
    *late_ns = time_ns - thread_now_ns(of);
    time_ns += PACKET_NS;
}

enum { COMMANDS = 6 };

static uint64_t late_ns[COMMANDS];

/* A round without work, and later one with `*argument` commands. */
static void play_commands(struct engine_thread *of, void *argument)
{
    struct thread_call calls[COMMANDS];
    unsigned count = *(unsigned *)argument;
    play(of, NULL);
    time_ns += CALL_NS;
    for (unsigned i = 0; i < count; i++) {
        calls[i] = (struct thread_call){.run = note_time, .argument = &late_ns[i]};
        cr_assert(thread_post(of, COMMAND_CALL, &calls[i]));
    }
    playing = true;
    looks = asked = 0;
    loop_round(of);
    playing = false;
}

Test(looks, commands_have_one_of_their_own_round, .timeout = TIMEOUT_S)
{
    start();
    unsigned count = 2;
    thread_run(&thread, play_commands, &count);
    cr_assert_eq(late_ns[0], 0);
    cr_assert_eq(late_ns[1], PACKET_NS, "few take a moment");
    cr_assert_eq(asked_late[0], 2 * PACKET_NS);
    cr_assert_eq(looks, 2, "for them, and behind the poll");
    count = COMMANDS;
    thread_run(&thread, play_commands, &count);
    cr_assert_eq(asked_late[0], 0);
    cr_assert_eq(looks, 3);
    stop();
}
