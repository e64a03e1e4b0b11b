/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One-sided operations between GPU and host memory through the public API, on real GPUs and on the stand-ins alike:
 * which one the loader finds. A plain main that prints TAP.
 *
 *   gpu_onesided cuda|hip GPU cuda|hip GPU [STAND-IN...]     of side 0, and of side 1
 *
 * Two engines in one process, one per side, each with GPU and host memory that it exports; each writes to and reads
 * from the other. What an operation must not touch is looked at as well. On the stand-ins copies fail too, at either
 * end: the operation ends with an error, soon; the next one works; and what was held of the runtime is given back.
 */
#include "contents.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

enum { SIDES = 2, HOST = 1, SOON_MS = 10000 };
enum { RIGHTS = UCCL_ACCESS_READ | UCCL_ACCESS_WRITE };

#define REGION_BYTES (UINT64_C(24) << 20)

/* One side's memory of one kind. */
struct place {
    struct region region;
    uccl_export *exported;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_remote *remote; /* at the other side */
};

static const char *const names[] = {"GPU", "host"};
static struct device_choice gpu[SIDES];
static uccl_engine *engine[SIDES];
static uccl_listener *listener;
static uccl_conn *conn[SIDES];
static struct place places[SIDES][2]; /* by 0: GPU, HOST */
static uint64_t number;
static int cases;

__attribute__((format(printf, 1, 2))) static void passed(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("ok %d - ", ++cases);
    vprintf(format, arguments);
    printf("\n");
    fflush(stdout);
    va_end(arguments);
}

static uint64_t word_at(struct region *region, uint64_t offset)
{
    uint64_t word;
    unsigned char *contents = region_scratch(region, region->base + offset, sizeof word);
    region_load(region, region->base + offset, sizeof word);
    memcpy(&word, contents, sizeof word);
    return word;
}

/* ---- operations ---- */

/* From `from`'s memory of one kind to or from the other side's memory of a kind. */
struct way {
    int from, local, remote;
};

static struct region *local_of(const struct way *way)
{
    return &places[way->from][way->local].region;
}

static struct region *remote_of(const struct way *way)
{
    return &places[!way->from][way->remote].region;
}

static struct uccl_piece piece_of(const struct way *way, uint64_t local, uint64_t length, uint64_t offset)
{
    struct region *region = local_of(way);
    return (struct uccl_piece){.local = region->base + local,
                               .mr = region->mr,
                               .length = length,
                               .remote = places[way->from][way->remote].remote,
                               .offset = offset};
}

static uccl_request *post(const struct way *way, bool write, const struct uccl_piece *pieces, size_t count,
                          const struct uccl_tail *tail)
{
    uccl_request *request = NULL;
    OK((write ? uccl_write_async : uccl_read_async)(conn[way->from], pieces, count, tail, &request));
    return request;
}

static int end_of(uccl_request *request)
{
    int status = uccl_wait(request, SOON_MS, NULL);
    CHECK(status != UCCL_ETIMEDOUT, "an operation does not end");
    return status;
}

static int one(const struct way *way, bool write, uint64_t local, uint64_t size, uint64_t offset)
{
    struct uccl_piece piece = piece_of(way, local, size, offset);
    return end_of(post(way, write, &piece, 1, NULL));
}

/* A write, and what a read then brings. */
static void there_and_back(const struct way *way, uint64_t local, uint64_t size, uint64_t offset)
{
    uint64_t of = ++number;
    fill(local_of(way), local, size, of);
    poison(remote_of(way), offset, size);
    OK(one(way, true, local, size, offset));
    expect(remote_of(way), offset, size, size, of);
    poison(local_of(way), local, size);
    OK(one(way, false, local, size, offset));
    expect(local_of(way), local, size, size, of);
}

static void all_sizes(const struct way *way)
{
    static const uint64_t sizes[] = {0, 1, 7, 64, 4096, 8191, 8192, 8193, 65536, 262144, 999999, (5 << 20) + 13};
    static const uint64_t offsets[] = {0, 1, 8, 511};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (size_t o = 0; o < sizeof offsets / sizeof *offsets; o++)
            there_and_back(way, GUARD + offsets[o], sizes[s], GUARD + offsets[(o * 2 + s) % 4]);
    }
}

/* Pieces of all kinds of memory in one operation. */
static void vectors(int from)
{
    enum { COUNT = 60, STEP = 1 << 17, MOST = 60000 };
    struct uccl_piece pieces[COUNT];
    struct way ways[COUNT];
    uint64_t random = 11, first = number + 1;
    number += COUNT;
    for (unsigned i = 0; i < COUNT; i++) {
        ways[i] = (struct way){from, i % 2, i / 2 % 2};
        uint64_t length = i % 7 == 3 ? 0 : random_next(&random) % MOST, remote = (COUNT - i) * (uint64_t)STEP;
        pieces[i] = piece_of(&ways[i], i * (uint64_t)STEP + GUARD, length, remote);
        fill(local_of(&ways[i]), i * (uint64_t)STEP + GUARD, length, first + i);
        poison(remote_of(&ways[i]), remote, length);
    }
    OK(end_of(post(&ways[0], true, pieces, COUNT, NULL)));
    for (unsigned i = 0; i < COUNT; i++) {
        expect(remote_of(&ways[i]), pieces[i].offset, pieces[i].length, pieces[i].length, first + i);
        poison(local_of(&ways[i]), i * (uint64_t)STEP + GUARD, pieces[i].length);
    }
    OK(end_of(post(&ways[0], false, pieces, COUNT, NULL)));
    for (unsigned i = 0; i < COUNT; i++)
        expect(local_of(&ways[i]), i * (uint64_t)STEP + GUARD, pieces[i].length, pieces[i].length, first + i);
    passed("side %d: vectors of GPU and host memory at both ends", from);
}

/* A notification finds all bytes, in memory of a GPU too. */
static void notifications(const struct way *way)
{
    for (unsigned i = 0; i < 12; i++) {
        uint64_t size = i % 3 == 0 ? 100 : i % 3 == 1 ? 9000 : 700000, of = ++number, got = 0;
        struct uccl_tail tail = {.kind = UCCL_TAIL_NOTIFY, .bytes = &of, .length = sizeof of};
        struct uccl_piece piece = piece_of(way, GUARD, size, GUARD);
        bool write = i % 4 != 3;
        struct region *to = write ? remote_of(way) : local_of(way);
        fill(write ? local_of(way) : remote_of(way), GUARD, size, of);
        poison(to, GUARD, size);
        uccl_request *request = post(way, write, &piece, 1, &tail);
        uint64_t end_ns = now_ns() + SOON_MS * UINT64_C(1000000);
        while (uccl_notify_next(engine[!way->from], &got, sizeof got, NULL, NULL) == UCCL_EAGAIN)
            CHECK(now_ns() < end_ns, "no notification");
        CHECK(got == of, "another notification");
        if (write)
            expect(to, GUARD, size, size, of);
        OK(end_of(request));
        expect(to, GUARD, size, size, of);
    }
}

/* Signals in memory of the other kind than the bytes, and of the same. */
static void signals(const struct way *way, int kind)
{
    struct way words = {way->from, way->local, kind};
    const uccl_remote *remote = places[way->from][kind].remote;
    uint64_t at = REGION_BYTES - 4096;
    fill(remote_of(&words), at, 8, 0);
    for (unsigned i = 0; i < 8; i++) {
        uint64_t size = i % 2 ? 500000 : 64, before = word_at(remote_of(&words), at), of = ++number;
        bool write = i % 4 != 3, add = kind == HOST && i % 3 == 0;
        struct uccl_tail tail = {.kind = add ? UCCL_TAIL_ADD : UCCL_TAIL_SET,
                                 .remote = remote,
                                 .offset = at,
                                 .value = before / 2 + of * 1000003};
        struct uccl_piece piece = piece_of(way, GUARD, size, GUARD);
        fill(write ? local_of(way) : remote_of(way), GUARD, size, of);
        poison(write ? remote_of(way) : local_of(way), GUARD, size);
        OK(end_of(post(way, write, &piece, 1, &tail)));
        expect(write ? remote_of(way) : local_of(way), GUARD, size, size, of);
        CHECK(word_at(remote_of(&words), at) == (add ? before + tail.value : tail.value), "another value is there");
    }
    struct uccl_tail tail = {.kind = UCCL_TAIL_ADD, .remote = places[way->from][0].remote, .offset = at, .value = 1};
    uccl_request *request;
    int error = uccl_write_async(conn[way->from], NULL, 0, &tail, &request);
    CHECK(error == UCCL_ENOTSUP, "adding to memory of a GPU: %d", error);
}

/* What lies beyond the export, or was revoked, stays as it is. */
static void refused(const struct way *way)
{
    struct region *region = remote_of(way);
    uint64_t size = 3 << 20, of = ++number;
    uccl_export *exported;
    uint8_t ref[UCCL_REF_BYTES];
    uccl_remote *part;
    OK(uccl_export_mr(region->mr, region->base + GUARD, size, RIGHTS, ref, &exported));
    OK(uccl_import(conn[way->from], ref, &part));
    fill(local_of(way), GUARD, size, of);
    poison(region, GUARD, size);
    struct uccl_piece piece = piece_of(way, GUARD, size, 1);
    piece.remote = part;
    int error = end_of(post(way, true, &piece, 1, NULL));
    CHECK(error == UCCL_EACCESS, "beyond: %d", error);
    error = end_of(post(way, false, &piece, 1, NULL));
    CHECK(error == UCCL_EACCESS, "beyond: %d", error);
    piece.offset = UINT64_MAX - 5;
    piece.length = 10;
    error = end_of(post(way, true, &piece, 1, NULL));
    CHECK(error == UCCL_EACCESS, "modulo 2^64: %d", error);
    expect(region, GUARD, 0, size, 0);
    uccl_request *requests[8];
    fill(local_of(way), GUARD, size, of);
    for (unsigned i = 0; i < 8; i++) {
        piece = piece_of(way, i % 4 == 3 ? size + 4096 : GUARD, size, 0);
        piece.remote = part;
        requests[i] = post(way, i % 4 != 3, &piece, 1, NULL);
    }
    sleep_us(of % 5 * 700);
    OK(uccl_revoke(exported, SOON_MS));
    poison(region, GUARD, size); /* it is the application's again */
    for (unsigned i = 0; i < 8; i++) {
        error = end_of(requests[i]);
        CHECK(error == UCCL_OK || error == UCCL_EACCESS, "revoked: %d", error);
    }
    expect(region, GUARD, 0, size, 0);
    OK(uccl_remote_free(part));
    there_and_back(way, GUARD, 100000, GUARD);
}

/* Cancelled operations touch no memory once they have completed. */
static void cancelled(const struct way *way)
{
    uint64_t size = 4 << 20;
    for (unsigned i = 0; i < 6; i++) {
        uint64_t of = ++number;
        bool write = i % 2 == 0;
        struct region *to = write ? remote_of(way) : local_of(way);
        struct uccl_piece piece = piece_of(way, GUARD, size, GUARD);
        fill(write ? local_of(way) : remote_of(way), GUARD, size, of);
        uccl_request *request = post(way, write, &piece, 1, NULL);
        sleep_us(i * 400);
        OK(uccl_cancel(request));
        int status = end_of(request);
        CHECK(status == UCCL_OK || status == UCCL_ECANCELED, "%d", status);
        poison(to, GUARD, size);
        sleep_us(2000);
        expect(to, GUARD, 0, size, 0);
    }
    there_and_back(way, GUARD, 100000, GUARD);
}

static void all_of(int from, int local, int remote)
{
    struct way way = {from, local, remote};
    all_sizes(&way);
    passed("side %d: %s and %s, every size and offset", from, names[local], names[remote]);
    notifications(&way);
    signals(&way, 0);
    signals(&way, HOST);
    passed("side %d: %s and %s, tails", from, names[local], names[remote]);
    refused(&way);
    cancelled(&way);
    passed("side %d: %s and %s, refused, revoked and cancelled", from, names[local], names[remote]);
}

/* ---- failures, on the stand-ins ------------------------------------------------------------------ */

struct stand_in {
    void (*fail)(const char *item);
    int (*failed)(void), (*held)(void);
};

/* Of a side's GPU. False: it is a real one. */
static bool look_up(int side, struct stand_in *out)
{
    bool hip = gpu[side].kind == DEVICE_HIP;
    void *library = dlopen(hip ? "libamdhip64.so.6" : "libcuda.so.1", RTLD_NOW);
    CHECK(library, "%s", dlerror());
    *(void **)&out->fail = dlsym(library, "fake_gpu_fail");
    *(void **)&out->failed = dlsym(library, "fake_gpu_failed");
    *(void **)&out->held = dlsym(library, "fake_gpu_held");
    return out->fail && out->failed && out->held;
}

static const struct {
    const char *function[2]; /* CUDA's, HIP's */
    int error;
    bool fetches, uploads; /* which direction of copies it concerns */
} rows[] = {
    {{"cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync"}, 1, true, false},
    {{"cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync"}, 1, false, true},
    {{"cuEventQuery", "hipEventQuery"}, 719, true, true},
};

/* The GPU of `side` fails while side 0 writes or reads. */
static void fails(int side, bool write, size_t row, unsigned nth)
{
    struct stand_in stand_in;
    struct way way = {0, side == 0 ? 0 : HOST, side == 0 ? HOST : 0}, hosts = {0, HOST, HOST};
    uint64_t size = 3 << 20, of = ++number;
    bool fetches = (side == 0) == write, concerned = fetches ? rows[row].fetches : rows[row].uploads;
    char item[128];
    look_up(side, &stand_in);
    fill(write ? local_of(&way) : remote_of(&way), GUARD, size, of);
    poison(write ? remote_of(&way) : local_of(&way), GUARD, size);
    snprintf(item, sizeof item, "%s:%d:%u:1", rows[row].function[gpu[side].kind == DEVICE_HIP], rows[row].error, nth);
    uint64_t word_offset = REGION_BYTES - 4096, before = word_at(remote_of(&hosts), word_offset);
    struct uccl_tail tail = {
        .kind = UCCL_TAIL_SET, .remote = places[0][HOST].remote, .offset = word_offset, .value = before + 1};
    struct uccl_piece piece = piece_of(&way, GUARD, size, GUARD);
    stand_in.fail(item);
    int status = end_of(post(&way, write, &piece, 1, &tail));
    bool happened = stand_in.failed() > 0;
    stand_in.fail(NULL);
    CHECK(happened == concerned, "%s: it was %scalled", item, happened ? "" : "not ");
    /* of a GPU there a read says that the peer does not give the bytes */
    int expected = !happened ? UCCL_OK : write || side == 0 ? UCCL_EIO : UCCL_EACCESS;
    CHECK(status == expected, "%s at side %d, %s: %d, not %d", item, side, write ? "write" : "read", status, expected);
    CHECK(word_at(remote_of(&hosts), word_offset) == before + (status == UCCL_OK), "the tail of an operation that %s",
          status ? "has failed" : "has not");
    OK(uccl_conn_status(conn[0]));
    OK(uccl_conn_status(conn[1]));
    there_and_back(&hosts, GUARD, 5000, GUARD);
    if (rows[row].error != 719) /* else the device is lost */
        there_and_back(&way, GUARD, size, GUARD);
}

/* ---- all ------------------------------------------------------------------------------------------- */

static void open_all(void)
{
    static const struct device_choice host = {DEVICE_CPU, 0, false};
    struct uccl_handle handle;
    for (int side = 0; side < SIDES; side++)
        engine[side] = engine_open("no", "20");
    OK(uccl_listen(engine[1], 0, 0, &handle, &listener));
    engines_connect(engine[0], &handle, listener, conn);
    for (int side = 0; side < SIDES; side++) {
        for (int kind = 0; kind < 2; kind++) {
            struct place *place = &places[side][kind];
            char fault[256];
            if (kind == 0)
                CHECK(device_open(&gpu[side], fault), "%s", fault);
            region_make(&place->region, engine[side], kind ? &host : &gpu[side], REGION_BYTES);
            OK(uccl_export_mr(place->region.mr, place->region.base, REGION_BYTES, RIGHTS, place->ref,
                              &place->exported));
            OK(uccl_import(conn[!side], place->ref, &places[!side][kind].remote));
        }
    }
}

static void close_all(void)
{
    for (int side = 0; side < SIDES; side++) {
        for (int kind = 0; kind < 2; kind++) {
            OK(uccl_remote_free(places[side][kind].remote));
            OK(uccl_revoke(places[side][kind].exported, SOON_MS));
            region_free(&places[side][kind].region);
        }
    }
    OK(uccl_listener_close(listener));
    for (int side = 0; side < SIDES; side++)
        OK(uccl_close(engine[side]));
}

/* False: real GPUs do not fail on command. */
static bool all_failures(void)
{
    struct stand_in stand_in[SIDES];
    int held[SIDES] = {0};
    for (int side = 0; side < SIDES; side++) {
        if (!look_up(side, &stand_in[side]))
            return false;
        held[side] = stand_in[side].held();
    }
    setenv("UCCL_GPU_BLOCK_KB", "64", 1); /* many copies of an operation */
    setenv("UCCL_LOG_LEVEL", "none", 1);
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        for (unsigned i = 0; i < 8; i++) {
            open_all();
            fails(i % 2, i / 2 % 2, row, i < 4 ? 1 : 4);
            close_all();
        }
        passed("%s fails, at either end", rows[row].function[gpu[0].kind == DEVICE_HIP]);
    }
    for (int side = 0; side < SIDES; side++)
        CHECK(stand_in[side].held() == held[side], "streams, events or page-locked memory are left");
    return true;
}

enum { CASES = 23 }; /* on stand-ins; expected.py reads it */

int main(int argc, char **argv)
{
    CHECK(argc >= 5, "gpu_onesided cuda|hip GPU cuda|hip GPU [STAND-IN...]");
    for (int i = 5; i < argc; i++) /* whoever asks for a library of its name gets this one */
        CHECK(dlopen(argv[i], RTLD_NOW), "%s", dlerror());
    for (int side = 0; side < SIDES; side++) {
        gpu[side].kind = strcmp(argv[1 + 2 * side], "hip") == 0 ? DEVICE_HIP : DEVICE_CUDA;
        gpu[side].index = atoi(argv[2 + 2 * side]);
    }
    open_all();
    for (int from = 0; from < SIDES; from++) {
        for (int i = 0; i < 3; i++) /* host and host: test_onesided */
            all_of(from, i / 2, i % 2);
        vectors(from);
    }
    close_all();
    bool failed = all_failures();
    printf("1..%d\n", cases);
    return failed && cases != CASES;
}
