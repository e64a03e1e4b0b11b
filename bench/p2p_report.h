/* SPDX-License-Identifier: Apache-2.0 */
/* What p2p_bench prints: a line per size, CSV, JSON, a plot. Failures end the program. */
#ifndef P2P_REPORT_H
#define P2P_REPORT_H

#include "stream.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum verify { VERIFY_NONE, VERIFY_FIRST, VERIFY_ALL };

/* How it was measured, as far as the report says it. */
struct report_setup {
    bool local;
    bool bi;
    double seconds;      /* per size */
    uint64_t iterations; /* 0: by time */
    enum verify verify;
    enum stream_op op;
    uint32_t pieces;        /* of a message, where it has as many bytes */
    char sender_device[32]; /* where the messages lie */
    char receiver_device[32];
};

/* A row of the report. */
struct result {
    uint64_t size;
    uint32_t window;
    uint32_t pieces;
    bool verified;
    uint64_t messages;
    uint64_t elapsed_ns;
    double gbps;
    double gbps_sent;
    double gbps_received;
    double messages_per_s;
    double latency_us[2]; /* p50, p99 */
    size_t latency_samples;
    uint64_t retransmits;
    double cpu_client; /* seconds per GiB */
    double cpu_server;
};

/* Words of enum stream_op. */
extern const char *const report_op_names[];
/* Says so where messages lie in other than plain host memory. */
void report_devices(const struct report_setup *setup);
void report_row(const struct report_setup *setup, const struct result *r);
void report_csv(const struct result *rows, unsigned count);
void report_json(const struct report_setup *setup, const struct result *rows, unsigned count);
/* Before minutes of measuring: is there a gnuplot, and may the file be written? */
void report_check_plot(const char *path);
void report_plot(const struct report_setup *setup, const char *path, const struct result *rows, unsigned count);

#endif
