/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory is revoked while a peer writes to it or reads it, over and over.
 *
 * usage: revoker write|read|dereg ROUNDS [PAUSE_MS]     before each end of an export, and a little
 *
 * The target exports memory, and at some time ends the export, by uccl_revoke() or with its registration. From then on
 * the memory is protected: whoever in this process touches it dies, and its contents are compared in the end, since a
 * system call would only fail. Each operation of the initiator ends with 0 or UCCL_EACCESS, one at least with that, and
 * all that it begins later; another export of the same engine works on.
 */
#include "uccl/engine.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 8 << 20, OTHER = 4096, WINDOW = 24, LIMIT_MS = 20000, PIECES = 100 };

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition, 0))
#define WORKS(call) works(__LINE__, #call, call)

static void fail(int line, const char *what, int error)
{
    fprintf(stderr, "line %d, process %d: %s%s%s\n", line, (int)getpid(), what, error ? ": " : "",
            error ? uccl_strerror(error) : "");
    exit(1);
}

static int works(int line, const char *what, int result)
{
    if (result < 0)
        fail(line, what, result);
    return result;
}

static void wait_for(uccl_request *request)
{
    WORKS(uccl_wait(request, LIMIT_MS, NULL));
}

static void send_all(uccl_conn *conn, const void *bytes, size_t length)
{
    uccl_request *request;
    WORKS(uccl_send_async(conn, bytes, length, NULL, &request));
    wait_for(request);
}

static void receive_all(uccl_conn *conn, void *bytes, size_t length)
{
    uccl_request *request;
    WORKS(uccl_recv_async(conn, bytes, length, NULL, &request));
    wait_for(request);
}

/* ---- the target ---- */

struct exported {
    unsigned char *at;
    uccl_mr *mr;
    uccl_export *exported;
    uint8_t ref[UCCL_REF_BYTES];
};

static struct exported export_some(uccl_engine *engine, size_t bytes)
{
    struct exported out = {.at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)};
    CHECK(out.at != MAP_FAILED);
    for (size_t i = 0; i < bytes; i++)
        out.at[i] = (unsigned char)(i * 13);
    WORKS(uccl_reg_mr(engine, out.at, bytes, UCCL_MEM_HOST, &out.mr));
    WORKS(uccl_export_mr(out.mr, out.at, bytes, UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, out.ref, &out.exported));
    return out;
}

static void end_export(struct exported *some, bool dereg)
{
    int error;
    if (!dereg) {
        WORKS(uccl_revoke(some->exported, LIMIT_MS));
        return;
    }
    for (int i = 0; (error = uccl_dereg_mr(some->mr)) == UCCL_EAGAIN && i < LIMIT_MS; i++)
        usleep(1000);
    WORKS(error);
}

static void target_round(uccl_engine *engine, uccl_conn *conn, const char *mode, unsigned round, unsigned pause_ms)
{
    struct exported big = export_some(engine, BYTES), other = export_some(engine, OTHER);
    unsigned char *before = malloc(BYTES), word = 0;
    send_all(conn, big.ref, sizeof big.ref);
    send_all(conn, other.ref, sizeof other.ref);
    receive_all(conn, &word, 1); /* the first operation is under way */
    usleep(pause_ms * 1000 + round * 1777 % 12000);
    end_export(&big, strcmp(mode, "dereg") == 0);
    memcpy(before, big.at, BYTES);
    CHECK(mprotect(big.at, BYTES, PROT_NONE) == 0);
    receive_all(conn, &word, 1); /* the peer has tried again and again */
    CHECK(mprotect(big.at, BYTES, PROT_READ) == 0);
    CHECK(memcmp(before, big.at, BYTES) == 0);
    for (size_t i = 0; i < OTHER; i++)
        CHECK(other.at[i] == (unsigned char)(i * 5 + round));
    WORKS(uccl_revoke(other.exported, LIMIT_MS));
    WORKS(uccl_dereg_mr(other.mr));
    if (strcmp(mode, "dereg") != 0)
        WORKS(uccl_dereg_mr(big.mr));
    munmap(big.at, BYTES);
    munmap(other.at, OTHER);
    free(before);
    send_all(conn, &word, 1);
}

/* ---- the initiator ---- */

struct local {
    unsigned char *at;
    uccl_mr *mr; /* so that a NIC may place what comes from here or goes there */
};

static int post(bool write, uccl_conn *conn, const uccl_remote *remote, struct local local, unsigned number,
                uccl_request **out)
{
    static const size_t sizes[] = {1 << 20, 100, 9000, 300000};
    struct uccl_piece pieces[PIECES];
    size_t count = number % 5 == 0 ? PIECES : 1, size = count == 1 ? sizes[number % 4] : 4096;
    for (size_t i = 0; i < count; i++) {
        uint64_t offset = ((uint64_t)number * 123457 + i * 65537) % (BYTES - size);
        pieces[i] = (struct uccl_piece){
            .local = local.at + offset, .mr = local.mr, .length = size, .remote = remote, .offset = offset};
    }
    return write ? uccl_write_async(conn, pieces, count, NULL, out) : uccl_read_async(conn, pieces, count, NULL, out);
}

static void initiator_round(uccl_conn *conn, bool write, struct local local, unsigned round)
{
    uint8_t ref[UCCL_REF_BYTES], other_ref[UCCL_REF_BYTES], word = 0;
    uccl_remote *remote, *other;
    uccl_request *ring[WINDOW] = {0};
    unsigned refused = 0, moved = 0, after = 0;
    receive_all(conn, ref, sizeof ref);
    receive_all(conn, other_ref, sizeof other_ref);
    WORKS(uccl_import(conn, ref, &remote));
    WORKS(uccl_import(conn, other_ref, &other));
    for (unsigned i = 0; refused == 0 || after < 2 * WINDOW; i++) {
        uccl_request **slot = &ring[i % WINDOW];
        int error = *slot ? uccl_wait(*slot, LIMIT_MS, NULL) : UCCL_OK;
        if (error != UCCL_OK && error != UCCL_EACCESS)
            fail(__LINE__, "an operation ended", error);
        refused += error == UCCL_EACCESS;
        moved += *slot && error == UCCL_OK;
        after += refused > 0;
        WORKS(post(write, conn, remote, local, i, slot));
        if (i == 0)
            send_all(conn, &word, 1);
    }
    for (unsigned i = 0; i < WINDOW; i++) /* posted when the first had been refused */
        CHECK(uccl_wait(ring[i], LIMIT_MS, NULL) == UCCL_EACCESS);
    for (size_t i = 0; i < OTHER; i++)
        local.at[i] = (unsigned char)(i * 5 + round);
    struct uccl_piece piece = {.local = local.at, .mr = local.mr, .length = OTHER, .remote = other};
    WORKS(uccl_write_async(conn, &piece, 1, NULL, &ring[0]));
    wait_for(ring[0]);
    printf("round %u: %u operations moved, %u refused\n", round, moved, refused + WINDOW);
    send_all(conn, &word, 1);
    receive_all(conn, &word, 1);
    uccl_remote_free(remote);
    uccl_remote_free(other);
}

int main(int argc, char **argv)
{
    int handles[2], status = 1;
    uccl_engine *engine;
    uccl_listener *listener;
    uccl_conn *conn;
    struct uccl_handle handle;
    CHECK((argc == 3 || argc == 4) && pipe(handles) == 0);
    unsigned rounds = (unsigned)atoi(argv[2]);
    uint64_t placed;
    setvbuf(stdout, NULL, _IOLBF, 0);
    pid_t child = fork();
    alarm(100);
    WORKS(uccl_open(NULL, &engine));
    if (child == 0) {
        struct local local = {.at = calloc(1, BYTES)};
        CHECK(local.at);
        WORKS(uccl_reg_mr(engine, local.at, BYTES, UCCL_MEM_HOST, &local.mr));
        CHECK(read(handles[0], &handle, sizeof handle) == sizeof handle);
        WORKS(uccl_connect(engine, &handle, LIMIT_MS, &conn));
        for (unsigned i = 0; i < rounds; i++)
            initiator_round(conn, strcmp(argv[1], "read") != 0, local, i);
        uccl_close(engine);
        free(local.at);
        return 0;
    }
    WORKS(uccl_listen(engine, 0, 0, &handle, &listener));
    CHECK(write(handles[1], &handle, sizeof handle) == sizeof handle);
    WORKS(uccl_accept(listener, LIMIT_MS, &conn));
    for (unsigned i = 0; i < rounds; i++)
        target_round(engine, conn, argv[1], i, argc > 3 ? (unsigned)atoi(argv[3]) : 0);
    WORKS(uccl_counter_by_name(engine, "rx_placed", &placed));
    printf("%lu chunks were placed at the target\n", (unsigned long)placed);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    uccl_close(engine);
    return 0;
}
