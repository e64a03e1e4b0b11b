/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What scale_sim takes for true of the network, and what it calls ideal. Results are comparable
 * only under one model, so this file changes in commits of its own and never to reach a mark.
 *
 * The network is the usual three-tier fat tree of k-port switches (Al-Fares, SIGCOMM 2008): k pods
 * of k/2 top-of-rack and k/2 aggregation switches, (k/2)^2 cores, k^3/4 hosts, every link 100 Gbps.
 * A switch has an output queue per link, first in first out, that drops what does not fit (no
 * trimming, no priorities, no pause frames) and marks as RED does between two thresholds, when a
 * packet enters. ECMP hashes (source, destination, path) once for each choice on the way up.
 *
 * The figures are those of the public htsim simulators where they have one: packets of 4,096 + 64
 * bytes, 1 us per link, marking from 20% to 80% of the queue, a degraded link at a quarter of its
 * rate. Their queues hold one round trip of a link (42 packets) and trim what does not fit; where
 * packets are lost instead, 100 packets stand for the shallow end of what switches without trimming
 * have per port.
 */
#ifndef SCALE_MODEL_H
#define SCALE_MODEL_H

#include <stdint.h>

enum {
    MODEL_PAYLOAD_BYTES = 4096,   /* of a full packet */
    MODEL_HEADER_BYTES = 64,      /* in front of it: all of it, Ethernet to ours */
    MODEL_PS_PER_BYTE = 80,       /* 100 Gbps */
    MODEL_LINK_PS = 1000 * 1000,  /* time of flight of each link */
    MODEL_SWITCH_PS = 300 * 1000, /* from the end of a packet's arrival to its entry into a queue */
    MODEL_QUEUE_BYTES = 100 * (MODEL_PAYLOAD_BYTES + MODEL_HEADER_BYTES),
    MODEL_ECN_LOW_BYTES = MODEL_QUEUE_BYTES / 5,      /* nothing is marked below it */
    MODEL_ECN_HIGH_BYTES = MODEL_QUEUE_BYTES / 5 * 4, /* everything above it */
    MODEL_DEGRADED = 4,                               /* a degraded link has 1/4 of its rate */
    /* A host hands its NIC no more while so much waits there: two full packets. */
    MODEL_NIC_BYTES = 2 * (MODEL_PAYLOAD_BYTES + MODEL_HEADER_BYTES),
    MODEL_HOPS_MAX = 6, /* links between hosts of different pods */
};

/* Bytes on the wire of a message. */
static inline uint64_t model_wire_bytes(uint64_t bytes)
{
    uint64_t packets = bytes ? (bytes + MODEL_PAYLOAD_BYTES - 1) / MODEL_PAYLOAD_BYTES : 1;
    return bytes + packets * MODEL_HEADER_BYTES;
}

/* From the first bit sent of a message's last packet to the last bit received, past `links` empty
 * links, without the serialisation at the bottleneck. */
static inline uint64_t model_base_ps(unsigned links, uint64_t message_bytes)
{
    uint64_t packet = message_bytes < MODEL_PAYLOAD_BYTES ? message_bytes : MODEL_PAYLOAD_BYTES;
    return (uint64_t)links * MODEL_LINK_PS + (uint64_t)(links - 1) * MODEL_SWITCH_PS +
           (links - 1) * (packet + MODEL_HEADER_BYTES) * MODEL_PS_PER_BYTE;
}

/*
 * Ideal: the time after which everything can have been received, no matter what the transport does.
 * Take any link of a host, or the uplinks that still work of a rack or of a pod, in either
 * direction: what starts at a time or later has to pass them, and
 *
 *     that time + bytes on the wire / rate + base delay
 *
 * is a lower bound for its end. The ideal is the largest of these bounds less the earliest start.
 * `quarters`: how many quarters of a link all of them are worth; more than 0.
 */
static inline uint64_t model_bound_ps(uint64_t start_ps, uint64_t wire_bytes, uint64_t quarters, uint64_t base_ps)
{
    return start_ps + wire_bytes * (MODEL_PS_PER_BYTE * MODEL_DEGRADED) / quarters + base_ps;
}

#endif
