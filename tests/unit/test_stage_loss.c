/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staged messages over a network that loses, repeats and reorders single datagrams. The program has its own
 * sendmmsg(), which takes the trains apart; both engines send through it.
 */
#include "stage_pair.h"

#include <netinet/udp.h>
#include <sys/socket.h>

enum { TRAIN_MAX = 65536 };

static _Atomic unsigned lose_per_mille, repeat_per_mille, delay_per_mille;
static _Atomic unsigned lost, repeated, delayed;

/* One at a time per thread: a datagram that is overtaken by the next. */
static _Thread_local struct {
    uint8_t bytes[TRAIN_MAX];
    size_t length;
} held;

static bool chance(unsigned per_mille)
{
    return fake_random(1000) < per_mille;
}

static void send_one(int fd, const struct msghdr *train, const uint8_t *bytes, size_t length)
{
    struct iovec iovec = {(void *)(uintptr_t)bytes, length};
    struct msghdr one = {
        .msg_name = train->msg_name, .msg_namelen = train->msg_namelen, .msg_iov = &iovec, .msg_iovlen = 1};
    sendmsg(fd, &one, MSG_DONTWAIT); /* a full socket is one more loss */
}

static void send_badly(int fd, const struct msghdr *train, const uint8_t *bytes, size_t length)
{
    if (chance(lose_per_mille)) {
        lost++;
        return;
    }
    if (held.length == 0 && chance(delay_per_mille)) {
        memcpy(held.bytes, bytes, length);
        held.length = length;
        delayed++;
        return;
    }
    send_one(fd, train, bytes, length);
    if (held.length)
        send_one(fd, train, held.bytes, held.length);
    held.length = 0;
    if (chance(repeat_per_mille)) {
        send_one(fd, train, bytes, length);
        repeated++;
    }
}

int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    static _Thread_local uint8_t bytes[TRAIN_MAX];
    (void)flags;
    for (unsigned i = 0; i < count; i++) {
        const struct msghdr *train = &messages[i].msg_hdr;
        size_t length = 0, segment = TRAIN_MAX;
        for (size_t k = 0; k < train->msg_iovlen; k++) {
            memcpy(bytes + length, train->msg_iov[k].iov_base, train->msg_iov[k].iov_len);
            length += train->msg_iov[k].iov_len;
        }
        if (train->msg_controllen) {
            uint16_t value;
            memcpy(&value, CMSG_DATA(CMSG_FIRSTHDR(train)), sizeof value);
            segment = value;
        }
        for (size_t at = 0; at < length; at += segment)
            send_badly(fd, train, bytes + at, length - at < segment ? length - at : segment);
    }
    return (int)count;
}

static void open_bad_network(const char *lend, const char *block_kb, const char *threads, const char *mtu)
{
    mem_set_test_kind(&fake_ops);
    fake_forbid_this_thread();
    for (int i = 0; i < 2; i++)
        pair.engine[i] = open_engine(lend, "LINGER_MS", "300", "GPU_BLOCK_KB", block_kb, "GPU_BLOCKS", "8", "UDP_IO",
                                     "mmsg", "NUM_ENGINES", threads, "MTU", mtu, "RTO_MIN_US", "2000", NULL);
    IS(uccl_listen(pair.engine[1], 0, 0, &pair.handle, &pair.listener), 0);
    connect_now(pair.engine[0], &pair.handle, pair.listener, pair.conn);
    lose_per_mille = 20;
    repeat_per_mille = 20;
    delay_per_mille = 20;
}

static void close_bad_network(void)
{
    cr_assert(lost && repeated && delayed);
    lose_per_mille = 0;
    stage_close_pair();
}

BOTH(stage_loss, all_sizes)
{
    open_bad_network(lend, "64", "1", "1500");
    all_sizes();
    cr_assert(counter(0, "retransmits"));
    close_bad_network();
}

Test(stage_loss, all_sizes_striped_large_datagrams, .timeout = TIMEOUT_S)
{
    open_bad_network("no", "128", "2", "0");
    all_sizes();
    close_bad_network();
}

Test(stage_loss, crowd_with_few_blocks, .timeout = TIMEOUT_S)
{
    open_bad_network("no", "64", "1", "4000");
    crowd(50, 300000);
    close_bad_network();
}
