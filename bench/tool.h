/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transport_test and p2p_bench share: command line values, connecting, messages between the
 * two ends. Their data is in stream.h.
 *
 * The tools have one thread. What cannot go on is said once on stderr, and the process ends with 1.
 */
#ifndef TOOL_H
#define TOOL_H

#include "uccl/engine.h"

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define NS_PER_S UINT64_C(1000000000)
#define NS_PER_MS UINT64_C(1000000)

enum {
    TOOL_PORT = 30042,        /* default of --oobport; below the ports that Linux hands out itself */
    TOOL_CONNECT_S = 10,      /* default of --connect-timeout */
    TOOL_ANSWER_MS = 20000,   /* how long a new peer may take to say what it wants */
    TOOL_OUTSTANDING = 16384, /* messages posted at once by one process, per direction */
};

#define TOOL_SIZE_MAX (16 * GIB)        /* largest message */
#define TOOL_MEMORY_MAX (64 * GIB)      /* all buffers of one direction */
#define TOOL_SHARED_BUFFERS (128 * MIB) /* above this, messages whose contents nobody checks share buffers */

/* "Client" or "Server": starts every line that a tool prints. */
extern const char *tool_role;

/* ---- ending in failure ---- */

/* Says "[Client] error: ..." on stderr and exits with 1. */
void tool_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* The same, followed by the text and name of a library error. */
void tool_fail_uccl(int error, const char *format, ...) __attribute__((format(printf, 2, 3), noreturn));
/* Wipes a progress bar from stderr, where there may be one. */
void tool_start_error_line(void);

/* ---- command line: a bad value ends in argp's usage error, which names flag, value and range ---- */

bool tool_parse_bool(struct argp_state *state, const char *flag, const char *text);
uint64_t tool_parse_number(struct argp_state *state, const char *flag, const char *text, uint64_t min, uint64_t max);
/* Bytes with an optional suffix K, M or G (powers of 1024). */
uint64_t tool_parse_size(struct argp_state *state, const char *flag, const char *text, uint64_t min, uint64_t max);
double tool_parse_real(struct argp_state *state, const char *flag, const char *text, double min, double max);
/* "64.0 KB" (of 1024 bytes) into `out`; returns `out`. */
const char *tool_size_text(uint64_t bytes, char out[16]);
/* Prints the library's version for argp's --version. */
void tool_print_version(FILE *stream, struct argp_state *state);

struct tool_address {
    const char *host; /* NULL: none given */
    uint16_t port;
    unsigned timeout_s; /* try again for so long while nobody listens */
};
/* --backend and --dev of this side; NULL: not given. */
struct tool_nic {
    const char *backend; /* a word of UCCL_BACKEND */
    const char *dev;     /* a verbs device, with or without ":port", or a network interface */
};
/*
 * Makes this process, and those it starts, use that NIC, by the environment. A device without a backend is a
 * verbs device where there is one of that name, else a network interface.
 */
void tool_choose_nic(const struct tool_nic *nic);
/* Engine threads likewise; NULL: as the library chooses. */
void tool_choose_threads(const char *number);

/* Which end this process is, and how it reaches the other; starts as TOOL_ENDS. */
struct tool_ends {
    bool server;
    bool role_server, role_client; /* as --role says; by the end of parsing that is in the others */
    struct tool_address server_at;
    bool port_given;
    struct tool_nic nic;
    const char *num_cpus; /* NULL: not given */
    bool log_info;
};
#define TOOL_ENDS                                                                                                      \
    {                                                                                                                  \
        .server_at = { NULL, TOOL_PORT, TOOL_CONNECT_S }                                                               \
    }
/*
 * The options that fill it in, for argp's children: groups TOOL_GROUP_* of --help, of which a tool's own
 * options may be too; those between are the tool's.
 */
enum { TOOL_GROUP_SIDE = 1, TOOL_GROUP_OWN = 8, TOOL_GROUP_CONNECTING = 9 };
extern const struct argp_child tool_ends_options[];

/* ---- measuring ---- */

uint64_t tool_now_ns(void);
void tool_sleep_ns(uint64_t ns);
/* CPU time of this process, user and system, all threads. */
uint64_t tool_cpu_ns(void);
uint64_t tool_retransmits(const uccl_engine *engine);
/* Where the engine uses several NICs: a line for each, what went over it and whether it was lost. */
void tool_print_nics(const uccl_engine *engine);
double tool_gbps(uint64_t bytes, uint64_t elapsed_ns);
double tool_per_gib(uint64_t cpu_ns, uint64_t bytes);
/* Sorts in place; tool_percentile() wants sorted samples and takes the nearest rank. */
void tool_sort(uint32_t *samples, size_t count);
uint32_t tool_percentile(const uint32_t *sorted, size_t count, double percent);
/* Nanoseconds as a sample; 4.29 s at most, of which the user is told. */
uint32_t tool_sample(uint64_t elapsed_ns);

/* ---- opening and connecting ---- */

/* Memory in huge pages where there are any, touched; ends the process when there is none. */
void *tool_allocate(uint64_t bytes);

/* Opens an engine; `info` shows the library's log from level info, unless UCCL_LOG_LEVEL says else. */
uccl_engine *tool_open(bool info);
/* Listens on every address and says so; fails with the port named. */
uccl_listener *tool_listen(uccl_engine *engine, uint16_t port);

/* ---- messages between the two ends: 128 bytes, little-endian words ---- */

enum tool_kind {
    TOOL_HELLO = 1, /* client: the settings of the run */
    TOOL_JOIN,      /* client: a further connection of the same run */
    TOOL_WELCOME,   /* server: settings accepted */
    TOOL_REFUSE,    /* server: field 0 is an enum tool_refusal, field 1 a detail */
    TOOL_READY,     /* receives are posted */
    TOOL_PHASE,     /* client: what to run next */
    TOOL_RESULT,    /* what a side has seen */
    TOOL_END        /* client: no further phase; server: neither */
};

enum tool_refusal { TOOL_OTHER_TOOL = 1, TOOL_OTHER_VERSION, TOOL_BAD_SETTING, TOOL_BUSY, TOOL_NO_DEVICE };

enum tool_id { TOOL_TRANSPORT_TEST = 1, TOOL_P2P_BENCH = 2 };

enum { TOOL_VERSION = 4, TOOL_FIELDS = 14 };

struct tool_message {
    uint32_t kind;
    uint64_t field[TOOL_FIELDS];
};

/* One expected message: posted first, so that it is ahead of receives for data, and waited for
 * later. */
struct tool_mail {
    unsigned char bytes[128];
    uccl_request *request;
};

/* Which tool this is; goes into every message. Set once, before the first one. */
extern enum tool_id tool_self;

/* Sends a message and waits until it has arrived. Returns the library's error. */
int tool_message_send(uccl_conn *conn, uint32_t kind, const uint64_t *fields, unsigned count);
void tool_mail_post(uccl_conn *conn, struct tool_mail *mail);
/*
 * Waits for the message (timeout_ms < 0: as long as the peer lives). Returns 0, a library error, or
 * the positive enum tool_refusal that a message of another tool or version deserves.
 */
int tool_mail_wait(struct tool_mail *mail, int timeout_ms, struct tool_message *out);
/* Both calls, for as long as the peer lives and a message that must be of `kind`; anything else ends the process
 * ("while ..."). */
void tool_expect(uccl_conn *conn, uint32_t kind, const char *doing, struct tool_message *out);
/* The same for a message that is posted already. */
void tool_expect_mail(struct tool_mail *mail, uint32_t kind, int timeout_ms, const char *doing,
                      struct tool_message *out);
/* Sends; an error ends the process ("while ..."). */
void tool_tell(uccl_conn *conn, uint32_t kind, const uint64_t *fields, unsigned count, const char *doing);

/* ---- the connections of a client ---- */

/*
 * Server: may a client with this HELLO be served? 0, or an enum tool_refusal. Field 0 is the tools' own, the
 * settings follow.
 */
typedef uint64_t (*tool_settings_fn)(const struct tool_message *hello, void *context);
/*
 * Waits for a client. Its first connection brings HELLO; a peer that is refused is told so, and the
 * process ends. The caller answers TOOL_WELCOME when it is ready, then calls tool_accept_joins().
 */
uccl_conn *tool_accept_client(uccl_listener *listener, tool_settings_fn allowed, void *context, uint64_t *nonce);
/* Accepts the client's connections 1 to count - 1; others that come are turned away. */
void tool_accept_joins(uccl_listener *listener, uint64_t nonce, uccl_conn **conns, uint32_t count);

/* Client: makes `count` connections; the first takes the settings to the server. */
void tool_connect_all(uccl_engine *engine, const struct tool_address *address, const uint64_t *settings,
                      unsigned setting_count, uccl_conn **conns, uint32_t count);

#endif
