/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets that a peer could have written, who may lie: to side 1 of two cores, whose connections are those of duo.h and
 * an end of parts.
 */
#ifndef UCCL_TEST_PACKETS_H
#define UCCL_TEST_PACKETS_H

#include "duo.h"

enum { PART_ID = 100, PART_REMOTE = 101, UNKNOWN_ID = 200, HOME_ID = 1 };

static struct conn *part_end; /* at side 1, beside the home ends of duo_conn[1], whose first has HOME_ID */
static unsigned part_ended;

static inline void open_with_part(void)
{
    duo_open();
    part_end = core_part_conn_open(duo_core[1], duo_zeroed(core_part_conn_size(&duo_setup[1])), duo_flow[1],
                                   &duo_setup[1], PART_ID, PART_REMOTE, &part_ended, duo_now);
}

static uint8_t packet[8192];
static unsigned packet_header, packet_payload;
static uint8_t payload_bytes[2048];

static inline void begin(void)
{
    packet_header = WIRE_HEADER_BYTES;
    packet_payload = 0;
}

/* A frame of each kind, as legal as it can be, for connection `id`. */
static inline void add(enum wire_frame_kind kind, uint32_t id)
{
    uint8_t *at = packet + packet_header;
    switch (kind) {
    case FRAME_DATA: { /* only wire_bulk_header() writes such */
        memset(at, 0, WIRE_DATA_BYTES);
        at[0] = FRAME_DATA;
        at[2] = 8; /* bytes */
        memcpy(at + 4, &id, 4);
        at[20] = 100; /* total */
        packet_header += WIRE_DATA_BYTES;
        packet_payload += 8;
        break;
    }
    case FRAME_EAGER:
        packet_header += wire_put_eager(at, &(struct wire_eager){.conn = id, .total = 10, .length = 10});
        packet_payload += 10;
        break;
    case FRAME_CTS:
        packet_header += wire_put_cts(at, &(struct wire_cts){.conn = id, .length = 10});
        break;
    case FRAME_RTS:
        packet_header += wire_put_rts(at, &(struct wire_rts){.conn = id, .total = 10});
        break;
    case FRAME_CREDIT:
        packet_header += wire_put_credit(at, &(struct wire_credit){.conn = id});
        break;
    case FRAME_ABORT:
        packet_header +=
            wire_put_abort(at, &(struct wire_abort){.conn = id, .status = UCCL_ECANCELED, .of_send = true});
        break;
    case FRAME_FIN:
        packet_header += wire_put_fin(at, &(struct wire_fin){.conn = id});
        break;
    case FRAME_FLOW:
        packet_header += wire_put_flow(at, &(struct wire_flow){FLOW_CLOSED});
        break;
    case FRAME_ACK:
        packet_header += wire_put_ack(at, &(struct wire_ack){.window_kb = 1024});
        break;
    case FRAME_DEMAND:
        packet_header += wire_put_demand(at, &(struct wire_demand){.target = INT32_MAX});
        break;
    case FRAME_GRANT:
        packet_header += wire_put_grant(at, &(struct wire_grant){.granted = 1});
        break;
    case FRAME_QP:
        packet_header += wire_put_qp(at, &(struct wire_qp){.what = QP_OFFER, .generation = 1});
        break;
    case FRAME_GONE:
        packet_header += wire_put_gone(at, &(struct wire_gone){.id = UNKNOWN_ID});
        break;
    case FRAME_PROBE:
        packet_header += wire_put_probe(at, &(struct wire_probe){.nonce = 77});
        break;
    case FRAME_FRAGMENT: /* the first of two */
        packet_header += wire_put_fragment(at, &(struct wire_fragment){.length = 128, .total = 200});
        packet_payload += 128;
        break;
    default:
        cr_assert_fail("frame kind %d", (int)kind);
    }
}

/* Side 1 receives the packet; `seq` UINT64_MAX: it has no sequence number. */
static inline bool receive(uint64_t seq)
{
    struct tx_desc desc = {.kind = TX_FRAMES,
                           .count = 1,
                           .path_seq = (uint32_t)seq + 1,
                           .seq = seq,
                           .sequenced = seq != UINT64_MAX,
                           .token = duo_setup[1].rx_token,
                           .time_stamp = wire_time(duo_now)};
    memcpy(packet + packet_header, payload_bytes, packet_payload);
    wire_set_header_length(packet, (uint16_t)packet_header);
    wire_seal(&desc, 0, packet, packet_header + packet_payload, crc32c_portable);
    bool good = core_rx(duo_core[1], packet, packet_header + packet_payload, false, duo_now);
    duo_copies(1);
    duo_releases(1);
    duo_events(1);
    return good;
}

static inline uint64_t malformed(void)
{
    return duo_count(&duo_counters[1].rx_malformed);
}

static inline uint64_t stale(void)
{
    return duo_count(&duo_counters[1].rx_stale_frames);
}

#endif
