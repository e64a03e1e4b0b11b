/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plugin in this process, and both ends of a connection: what every case of calls.c needs.
 */
#ifndef TESTS_NCCL_PAIR_H
#define TESTS_NCCL_PAIR_H

#include "nccl_net.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK_SAY(condition, ...)                                                                                      \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("# %s:%d: %s: ", __FILE__, __LINE__, #condition);                                                   \
            printf(__VA_ARGS__);                                                                                       \
            printf("\n");                                                                                              \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)
#define CHECK(condition) CHECK_SAY(condition, "no")
#define IS(call, expected)                                                                                             \
    do {                                                                                                               \
        int is_ = (int)(call), expected_ = (int)(expected);                                                            \
        CHECK_SAY(is_ == expected_, "%s is %d, not %d", #call, is_, expected_);                                        \
    } while (0)

#define POISON ((void *)(uintptr_t)0xa5a5a5a5a5a5a5a0)

enum { LINES_MAX = 256, LINE_BYTES = 512 };

/* Cases of this plugin follow, over UDP on loopback: prints the plan of TAP. */
void begin_cases(const char *plugin, unsigned count);
enum { CASE_S = 60 }; /* most that a case takes */
/* Runs a case in a process of its own, and prints its line of TAP. False: it failed. */
bool run_case(unsigned number, const char *name, void (*run)(void));
/* All of a program, plan and cases. Its exit status. */
struct plain_case {
    const char *name;
    void (*run)(void);
};
int run_cases(const char *plugin, const struct plain_case *cases, unsigned count);

extern const char *plugin_path;

/* What the plugin has logged; NCCL's logger. */
extern struct logged_line {
    int level;
    char text[LINE_BYTES];
} lines[LINES_MAX];
extern int line_count;

void logger(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);
/* Warnings with this text. */
int warnings(const char *text);

uint64_t now_ms(void);
void nap(void);
int threads(void);
/* A thread that was joined may be seen for a moment more. */
void threads_are(int expected);
int descriptors(void);
void *load(const char *symbol);
void *pages(size_t size);

struct pair {
    struct nccl_net_v12 *net;
    void *context, *send, *recv;
};

struct nccl_net_v12 *start(void **context);
/* Both ends, and the listener closes. */
void finish_connect(struct pair *pair, uint8_t handle[NCCL_NET_HANDLE_BYTES], void *listen_comm);
void connect_pair(struct pair *pair);
struct pair new_pair(void);
void close_pair(struct pair *pair);
void *post_send(struct pair *pair, void *data, size_t size, void *mhandle);
enum nccl_result try_receive(struct pair *pair, void *data, size_t size, void *mhandle, void **request);
void *post_receive(struct pair *pair, void *data, size_t size, void *mhandle);
/* The bytes moved. */
int finish(struct pair *pair, void *request);

#endif
