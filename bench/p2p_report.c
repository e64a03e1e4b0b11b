/* SPDX-License-Identifier: Apache-2.0 */
#include "p2p_report.h"
#include "tool.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

const char *const report_op_names[] = {"send", "write", "read"};

static const char *rate_text(double per_s, char out[32])
{
    if (per_s >= 1e6)
        snprintf(out, 32, "%.2f M msg/s", per_s / 1e6);
    else if (per_s >= 1e3)
        snprintf(out, 32, "%.2f K msg/s", per_s / 1e3);
    else
        snprintf(out, 32, "%.2f msg/s", per_s);
    return out;
}

void report_devices(const struct report_setup *setup)
{
    if (strcmp(setup->sender_device, "cpu") != 0 || strcmp(setup->receiver_device, "cpu") != 0)
        printf("[Client] messages lie on %s at the client, on %s at the server\n", setup->sender_device,
               setup->receiver_device);
}

void report_row(const struct report_setup *setup, const struct result *r)
{
    char size[16], rate[32];
    printf("[Client] %8s : %6.2f Gbps | %6.2f GB/s | p50 %.2f us, p99 %.2f us | %s | "
           "retransmissions %" PRIu64 " | CPU %.3f + %.3f s/GiB (client + server)",
           tool_size_text(r->size, size), r->gbps, r->gbps / 8, r->latency_us[0], r->latency_us[1],
           rate_text(r->messages_per_s, rate), r->retransmits, r->cpu_client, r->cpu_server);
    if (setup->bi)
        printf(" | sent %.2f, received %.2f Gbps", r->gbps_sent, r->gbps_received);
    printf("%s\n", setup->verify == VERIFY_NONE ? "" : r->verified ? " | verified" : " | WRONG DATA");
}

/* What CSV and JSON hold of row `r`, besides `verified`. */
#define REPORT_COLUMNS(WHOLE, REAL)                                                                                    \
    WHOLE(size_bytes, r->size)                                                                                         \
    WHOLE(window, r->window)                                                                                           \
    WHOLE(pieces, r->pieces)                                                                                           \
    REAL(gbps, r->gbps)                                                                                                \
    REAL(gbytes_per_s, r->gbps / 8)                                                                                    \
    REAL(gbps_sent, r->gbps_sent)                                                                                      \
    REAL(gbps_received, r->gbps_received)                                                                              \
    REAL(msgs_per_s, r->messages_per_s)                                                                                \
    REAL(lat_us_p50, r->latency_us[0])                                                                                 \
    REAL(lat_us_p99, r->latency_us[1])                                                                                 \
    WHOLE(lat_samples, r->latency_samples)                                                                             \
    WHOLE(retransmits, r->retransmits)                                                                                 \
    REAL(cpu_s_per_gib, r->cpu_client + r->cpu_server)                                                                 \
    REAL(cpu_s_per_gib_client, r->cpu_client)                                                                          \
    REAL(cpu_s_per_gib_server, r->cpu_server)                                                                          \
    WHOLE(messages, r->messages)                                                                                       \
    REAL(elapsed_s, (double)r->elapsed_ns / 1e9)

void report_csv(const struct result *rows, unsigned count)
{
#define CSV_NAME(name, value) printf(#name ",");
#define CSV_WHOLE(name, value) printf("%" PRIu64 ",", (uint64_t)(value));
#define CSV_REAL(name, value) printf("%.9g,", value);
    REPORT_COLUMNS(CSV_NAME, CSV_NAME)
    printf("verified\n");
    for (const struct result *r = rows; r < rows + count; r++) {
        REPORT_COLUMNS(CSV_WHOLE, CSV_REAL)
        printf("%s\n", r->verified ? "true" : "false");
    }
}

static json_t *row_json(const struct result *r)
{
    json_t *row = json_object();
    int failures = !row;
#define PUT_WHOLE(name, value) failures |= json_object_set_new(row, #name, json_integer((json_int_t)(value)));
#define PUT_REAL(name, value) failures |= json_object_set_new(row, #name, json_real(value));
    REPORT_COLUMNS(PUT_WHOLE, PUT_REAL)
    failures |= json_object_set_new(row, "verified", json_boolean(r->verified));
    if (failures)
        tool_fail("cannot make the JSON report");
    return row;
}

void report_json(const struct report_setup *setup, const struct result *rows, unsigned count)
{
    static const char *const verify_names[] = {"none", "first", "all"};
    json_t *list = json_array();
    for (unsigned i = 0; i < count; i++)
        json_array_append_new(list, row_json(&rows[i]));
    json_t *root = json_pack("{s:s, s:s, s:s, s:b, s:s, s:b, s:f, s:I, s:s, s:s, s:s, s:o}", "tool", "p2p_bench",
                             "version", uccl_version(), "build", uccl_build_info(), "local", setup->local, "op",
                             report_op_names[setup->op], "bi", setup->bi, "seconds", setup->seconds, "iterations",
                             (json_int_t)setup->iterations, "verify", verify_names[setup->verify], "sender_device",
                             setup->sender_device, "receiver_device", setup->receiver_device, "results", list);
    if (!root || json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0)
        tool_fail("cannot write the JSON report");
    printf("\n");
    json_decref(root);
}

void report_check_plot(const char *path)
{
    struct stat before;
    bool there = lstat(path, &before) == 0; /* or a link to where nothing is yet */
    FILE *file = fopen(path, "a");
    if (!file)
        tool_fail("--plot=%s: %s", path, strerror(errno));
    fclose(file);
    if (!there)
        unlink(path); /* an empty plot would be one if the run failed */
    if (system("command -v gnuplot >/dev/null 2>&1") != 0)
        tool_fail("--plot needs gnuplot, which is not on the PATH (Debian, Ubuntu: apt install "
                  "gnuplot-nox)");
}

/* What gnuplot calls a whole SVG ends so; where its disk is full it stops before and says nothing. */
static bool is_whole(const char *svg, size_t length)
{
    static const char end[] = "</svg>";
    while (length > 0 && isspace((unsigned char)svg[length - 1]))
        length--;
    return length >= sizeof(end) - 1 && memcmp(svg + length - (sizeof(end) - 1), end, sizeof(end) - 1) == 0;
}

/* An older plot stays where there is no room for this one. */
static void write_plot(const char *path, const char *svg, size_t length)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)length) != 0 && (errno == ENOSPC || errno == EDQUOT)))
        tool_fail("--plot=%s: %s", path, strerror(errno));
    FILE *out = fdopen(fd, "w");
    bool written = out && fwrite(svg, 1, length, out) == length && fflush(out) == 0;
    bool cut = written && (ftruncate(fd, (off_t)length) == 0 || errno == EINVAL); /* EINVAL: it is no file */
    if (!cut || fclose(out) != 0)
        tool_fail("--plot=%s: %s; it is not complete", path, strerror(errno));
}

/* Takes a file that gnuplot has written to where it shall be, and removes it. */
static void deliver_plot(const char *from, const char *path)
{
    char *svg = NULL;
    size_t length = 0, got;
    char block[65536];
    FILE *in = fopen(from, "r"), *memory = open_memstream(&svg, &length);
    while (in && memory && (got = fread(block, 1, sizeof(block), in)) > 0)
        fwrite(block, 1, got, memory);
    bool read = in && memory && !ferror(in) && fclose(memory) == 0;
    unlink(from);
    if (!read || !is_whole(svg, length))
        tool_fail("gnuplot has not written a whole plot to %s (is that disk full?); %s is not written", from, path);
    fclose(in);
    write_plot(path, svg, length);
    free(svg);
}

void report_plot(const struct report_setup *setup, const char *path, const struct result *rows, unsigned count)
{
    const char *directory = getenv("TMPDIR");
    char size[16], file[4096];
    snprintf(file, sizeof(file), "%s/uccl-plot-XXXXXX", directory && *directory ? directory : "/tmp");
    int fd = mkstemp(file);
    if (fd < 0 || close(fd) != 0)
        tool_fail("cannot make a file for gnuplot to write to, %s: %s", file, strerror(errno));
    signal(SIGPIPE, SIG_IGN); /* a gnuplot that ends early is told by its status */
    FILE *gnuplot = popen("gnuplot", "w");
    if (!gnuplot)
        tool_fail("cannot start gnuplot: %s", strerror(errno));
    fprintf(gnuplot, "$rows << END_OF_ROWS\n");
    for (const struct result *r = rows; r < rows + count; r++)
        fprintf(gnuplot, "%" PRIu64 " \"%s\" %.6g %.6g %.6g\n", r->size, tool_size_text(r->size, size), r->gbps / 8,
                r->latency_us[0], r->latency_us[1]);
    fprintf(gnuplot, "END_OF_ROWS\nset terminal svg size 900,500 background 'white'\nset output '");
    for (const char *c = file; *c != '\0'; c++)
        fprintf(gnuplot, *c == '\'' ? "''" : "%c", *c);
    fprintf(gnuplot,
            "'\nset title 'p2p\\_bench'\nset key top left\nset grid\nset logscale x 2\n"
            "set xlabel 'message size'\nset ylabel 'throughput (GB/s)'\nset yrange [0:*]\n"
            "set ytics nomirror\nset logscale y2\nset y2label '%s (us)'\nset y2tics\n"
            "set xtics rotate by -30\n"
            "plot $rows using 1:3:xtic(2) with linespoints lw 2 title 'throughput', \\\n"
            "     $rows using 1:4 axes x1y2 with linespoints dt 2 title 'p50', \\\n"
            "     $rows using 1:5 axes x1y2 with linespoints dt 3 title 'p99'\n",
            setup->op == STREAM_READ ? "time of a read" : "half round trip");
    int status = pclose(gnuplot);
    if (status != 0) {
        unlink(file);
        tool_fail("gnuplot ended with status %d; %s is not written", WIFEXITED(status) ? WEXITSTATUS(status) : status,
                  path);
    }
    deliver_plot(file, path);
}
