/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what parses the bytes of a handshake's peer: both decoders, and the server's state machine
 * with the input as all that its peer ever says. What is accepted must keep the promises of
 * engine/bootstrap.h, since the rest of the engine trusts them.
 */
#include "bootstrap.h"
#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Not assert(): it must also hold in a build without. */
static void require(bool promise)
{
    if (!promise)
        abort();
}

static bool power_of_two_within(uint32_t value, uint32_t min, uint32_t max)
{
    for (uint64_t power = 1; power <= max; power *= 2)
        if (power == value)
            return value >= min;
    return false;
}

static void check_offer(const struct boot_offer *offer)
{
    require(offer->flow_count >= 1 && offer->flow_count <= BOOT_FLOWS_MAX);
    require(offer->home < offer->flow_count);
    require(power_of_two_within(offer->chunk_window, 64, 16384));
    require(power_of_two_within(offer->msg_window, 16, 65536));
    require(offer->eager_window_kb >= 128 && offer->eager_window_kb <= 65536);
    for (unsigned i = 0; i < offer->flow_count; i++) {
        const struct boot_flow *flow = &offer->flows[i];
        require(flow->token != 0 && flow->rx_bytes != 0);
        require(flow->address.length >= 1 && flow->address.length <= NIC_QUEUE_ADDRESS_MAX);
        require(flow->datagram_bytes >= CORE_DATAGRAM_MIN && flow->datagram_bytes <= 65535);
    }
}

static void decode(const uint8_t *data, size_t size)
{
    struct boot_hello hello;
    struct boot_offer offer;
    int status = bootstrap_decode_hello(data, size, &hello);
    require(status == 0 || status == UCCL_EPROTO);
    status = bootstrap_decode_offer(data, size, &offer);
    require(status == 0 || status == UCCL_EPROTO);
    if (status == 0)
        check_offer(&offer);
}

/* The input is the whole stream: the server must come to an end by itself. */
static void serve(const uint8_t *data, size_t size)
{
    static const uint8_t id[16] = {1};
    int ends[2];
    struct bootstrap *boot;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        return;
    ssize_t written = send(ends[1], data, size, MSG_DONTWAIT);
    (void)written; /* a shorter stream is as good */
    (void)shutdown(ends[1], SHUT_WR);
    require(bootstrap_serve(ends[0], id, UINT64_MAX, &boot) == 0);

    enum boot_state state = bootstrap_step(boot, 0);
    if (state == BOOT_HAVE_OFFER) {
        struct boot_offer offer = *bootstrap_peer_offer(boot);
        check_offer(&offer);
        bootstrap_offer(boot, &offer);
        state = bootstrap_step(boot, 0);
    }
    require(state == BOOT_DONE || state == BOOT_FAILED);
    int status = bootstrap_status(boot);
    require(state == BOOT_DONE ? status == 0 : status < UCCL_EAGAIN && status >= UCCL_EIO);
    bootstrap_free(boot);
    close(ends[1]);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    log_set_level(UCCL_LOG_NONE);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    decode(data, size);
    serve(data, size);
    return 0;
}
