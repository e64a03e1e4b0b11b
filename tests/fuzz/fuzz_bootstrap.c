/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what parses the bytes of a handshake's peer: the decoders, and the state machines of both sides with the input
 * as all that the peer ever says. What is accepted must keep the promises of engine/boot/bootstrap.h, since the rest of
 * the engine trusts them.
 */
#include "base/log.h"
#include "boot/bootstrap.h"
#include "nic/verbs/address.h"
#include "require.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool power_of_two_within(uint32_t value, uint32_t min, uint32_t max)
{
    for (uint64_t power = 1; power <= max; power *= 2)
        if (power == value)
            return value >= min;
    return false;
}

/* What is taken for the address of a verbs queue is one, and encodes to the same bytes but for the spare ones. */
static void check_address(const struct nic_queue_address *bytes)
{
    enum { SPARE = 7 };
    struct nic_queue_address again = {0}, known = *bytes;
    for (unsigned i = 0; i < NIC_PLACERS_MAX; i++) {
        struct verbs_address address;
        if (verbs_address_decode(bytes, i, &address))
            return;
        require(i < verbs_address_count(bytes));
        require(address.mode < VERBS_MODES && address.qpn >> VERBS_QPN_BITS == 0);
        require(address.mtu_shift >= VERBS_MTU_SHIFT_MIN && address.mtu_shift <= VERBS_MTU_SHIFT_MAX);
        verbs_address_append(&address, &again);
        known.bytes[i * VERBS_ADDRESS_BYTES + SPARE] = 0;
        require(memcmp(again.bytes, known.bytes, again.length) == 0);
    }
}

static void check_offer(const struct boot_offer *offer)
{
    require(offer->home < BOOT_FLOWS_MAX && offer->private_bytes <= BOOT_PRIVATE_MAX);
    require(offer->nic_count == 0 || (offer->nic_count >= 2 && offer->nic_count <= NIC_ENDS_MAX && !offer->known));
    for (unsigned i = 0; i < offer->nic_count; i++) {
        const union nic_address *address = &offer->nics[i].address;
        bool v6 = address->any.sa_family == AF_INET6;
        require(v6 || address->any.sa_family == AF_INET);
        require(offer->nics[i].prefix_bits <= (v6 ? 128 : 32) && offer->nics[i].mtu >= 576);
        require(v6 ? address->v6.sin6_addr.s6_addr[0] != 0xff : ntohl(address->v4.sin_addr.s_addr) >> 28 < 14);
    }
    if (offer->known) {
        require(offer->flow_count == 0);
        return;
    }
    require(offer->flow_count >= 1 && offer->flow_count <= BOOT_FLOWS_MAX);
    require(offer->home < offer->flow_count);
    require(power_of_two_within(offer->chunk_window, 64, 16384));
    require(power_of_two_within(offer->msg_window, 16, 65536));
    require(offer->eager_window_kb >= 128 && offer->eager_window_kb <= 65536);
    for (unsigned i = 0; i < offer->flow_count; i++) {
        const struct boot_flow *flow = &offer->flows[i];
        require(flow->token != 0 && flow->rx_bytes != 0);
        require(flow->address.length >= 1 && flow->address.length <= NIC_QUEUE_ADDRESS_MAX);
        require(flow->beside.length <= BOOT_BESIDE_MAX && !flow->beside.length == !offer->flows[0].beside.length);
        require(flow->datagram_bytes >= CORE_DATAGRAM_MIN && flow->datagram_bytes < 1 << 24);
        check_address(&flow->address);
    }
}

/* What is taken, encoded again, is taken again and means the same. */
static void check_round_trip(const struct boot_offer *offer)
{
    static uint8_t bytes[BOOT_MESSAGE_MAX];
    struct boot_offer again;
    size_t length = boot_put_offer(bytes, BOOT_FROM_CLIENT, offer);
    require(length == boot_offer_bytes(offer));
    require(!boot_decode_offer(bytes, length, &again));
    require(again.conn_id == offer->conn_id && again.home == offer->home && again.known == offer->known);
    require(again.nic_count == offer->nic_count);
    require(memcmp(again.nics, offer->nics, sizeof again.nics) == 0);
    require(again.private_bytes == offer->private_bytes);
    require(memcmp(again.private_data, offer->private_data, offer->private_bytes) == 0);
    require(again.proof == offer->proof && again.flow_count == offer->flow_count);
    for (unsigned i = 0; i < offer->flow_count; i++)
        require(again.flows[i].token == offer->flows[i].token &&
                again.flows[i].beside.length == offer->flows[i].beside.length);
}

static void decode(const uint8_t *data, size_t size)
{
    struct boot_hello hello;
    struct boot_proofs proofs;
    struct boot_offer offer;
    uint16_t code;
    boot_decode_hello(data, size, &hello);
    boot_decode_reject(data, size, &code);
    if (!boot_decode_proofs(data, size, &proofs))
        require(proofs.count <= BOOT_PROOFS_MAX);
    if (!boot_decode_offer(data, size, &offer)) {
        check_offer(&offer);
        check_round_trip(&offer);
    }
}

static const struct boot_key KEY = {1, 2};

static const struct boot_offer own_offer = {.flow_count = 1,
                                            .chunk_window = 64,
                                            .msg_window = 16,
                                            .eager_window_kb = 128,
                                            .flows = {{.token = 3,
                                                       .address = {.length = 3, .bytes = {NIC_ADDRESS_UDP, 1, 2}},
                                                       .datagram_bytes = CORE_DATAGRAM_MIN,
                                                       .rx_bytes = 1}}};

/*
 * One side of a handshake whose peer has said all that it will: the side must come to an end by itself. `server_fd`: of
 * a client the other end, which is closed, and so resets the connection, once the client has the offer (`resets`).
 */
static void run(struct bootstrap *boot, int server_fd, bool tries, bool resets)
{
    enum boot_state state;
    bool closed = false;
    for (;;) {
        state = bootstrap_step(boot, 0);
        if (state == BOOT_NEED_PROOFS) {
            bootstrap_prove(boot, &KEY, 1);
        } else if (state == BOOT_NEED_OFFER) {
            require(!bootstrap_proves(boot, &KEY));
            bootstrap_offer(boot, &own_offer, NULL);
        } else if (state == BOOT_HAVE_OFFER && server_fd >= 0) {
            check_offer(bootstrap_peer_offer(boot));
            require(bootstrap_peer_offer(boot)->home < own_offer.flow_count);
            if (resets)
                close(server_fd);
            closed = resets;
            if (tries)
                bootstrap_try(boot, "nothing");
            else
                bootstrap_accept_offer(boot);
        } else if (state == BOOT_TRYING) {
            bootstrap_accept_offer(boot);
        } else if (state == BOOT_HAVE_OFFER) {
            const struct boot_offer *theirs = bootstrap_peer_offer(boot);
            check_offer(theirs);
            require(!theirs->known || !bootstrap_proves(boot, &KEY)); /* it has not seen our nonce */
            if (theirs->known)
                bootstrap_reject(boot, UCCL_EAGAIN);
            else
                bootstrap_offer(boot, theirs, NULL);
        } else if (state == BOOT_DONE || state == BOOT_FAILED) {
            break;
        } else { /* the kernel may deliver a little later */
            struct pollfd fd = {.fd = bootstrap_fd(boot), .events = bootstrap_events(boot)};
            require(poll(&fd, 1, 10000) == 1);
        }
    }
    int status = bootstrap_status(boot);
    require(state == BOOT_DONE ? status == 0 : status <= UCCL_EAGAIN && status >= UCCL_EIO);
    bootstrap_free(boot);
    if (server_fd >= 0 && !closed)
        close(server_fd);
}

/* The input is the whole stream of a client. */
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
    require(bootstrap_serve(ends[0], id, 0, UINT64_MAX, &boot) == 0);
    run(boot, -1, false, false);
    close(ends[1]);
}

/* Or that of a server. */
static void connect_to(const uint8_t *data, size_t size)
{
    static const uint8_t id[16] = {2};
    static const struct linger at_once = {.l_onoff = 1};
    static int listener = -1;
    static union nic_address address;
    struct bootstrap *boot;
    socklen_t length = sizeof address.v4;
    if (listener < 0) {
        address.v4.sin_family = AF_INET;
        address.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener = socket(AF_INET, SOCK_STREAM, 0);
        if (listen(listener, 8) != 0 || getsockname(listener, &address.any, &length) != 0)
            abort();
    }
    if (bootstrap_connect(&address, id, 0, UINT64_MAX, NULL, &boot) != 0)
        return;
    int fd = accept(listener, NULL, NULL);
    ssize_t written = send(fd, data, size, MSG_DONTWAIT);
    (void)written;
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once); /* leaves no port in TIME_WAIT */
    (void)shutdown(fd, SHUT_WR);
    run(boot, fd, size & 1, size & 2);
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
    connect_to(data, size);
    return 0;
}
