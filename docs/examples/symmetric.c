/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A symmetric heap on one-sided operations, as OpenSHMEM and NVSHMEM have one. Every process, called processing element
 * or PE, allocates the same objects in the same order, so an address here names the object of every other PE as well.
 *
 *   cc symmetric.c -o symmetric $(pkg-config --cflags --libs uccl-engine) -ldl
 *   ./symmetric                                   two PEs on this machine; --pes=4: four
 *   mpirun -n 4 ./symmetric                       on one machine; on several, with UCCL_ROOT
 *   UCCL_PE=1 UCCL_NPES=4 UCCL_ROOT=10.0.0.1:30050 ./symmetric       each PE by itself
 *
 * UCCL_ROOT is where PE 0 listens until all have come. --heap=cuda:0 puts the heap in the memory of a GPU. --wait=10 is
 * the time limit in seconds for everything that waits for another PE. One thread; machines of one byte order.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <argp.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <uccl/engine.h>

enum {
    PES_MAX = 1024,
    HEAP_BYTES = 64 << 20,
    WORDS = 4096, /* 64-bit words that signals and barriers use; in host memory, wherever the heap is */
    BARRIER_WORDS = 16,
    PENDING_MAX = 256,
    ROOT_PORT = 30050,
};

/* What a PE tells the root, and the root tells all. */
struct member {
    uint32_t pe, npes; /* in the root's answer, npes 0: `pe` has not come */
    struct uccl_handle handle;
    uint8_t heap[UCCL_REF_BYTES], words[UCCL_REF_BYTES];
};

struct peer {
    uccl_conn *conn;
    uccl_remote *heap, *words;
};

/* ---- this PE ------------------------------------------------------------------------------------------------- */

static int me = -1, npes;
static const char *root_host = "127.0.0.1";
static int root_port = ROOT_PORT, root_pipe[2] = {-1, -1}; /* of a start on one machine: the root's port goes there */
static int wait_ms = 10000, gpu = -1;
static uccl_engine *engine;
static uccl_listener *listener;
static struct member members[PES_MAX];
static struct peer peers[PES_MAX];
static unsigned char *heap;
static size_t heap_used;
static uint64_t *words; /* the first ones are the barrier's */
static size_t words_used = BARRIER_WORDS;
static uccl_mr *heap_mr, *words_mr;
static uccl_export *heap_export, *words_export;
static uccl_request *pending[PENDING_MAX];
static int pending_pe[PENDING_MAX], pending_count;
static uint64_t barriers;

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fflush(stdout);
    fprintf(stderr, "PE %d: ", me);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    exit(1);
}

static void check(int result, const char *what)
{
    if (result < 0)
        fail("%s: %s", what, uccl_strerror(result));
}

static void check_peer(int result, const char *what, int pe)
{
    if (result < 0)
        fail("%s PE %d: %s", what, pe, uccl_strerror(result));
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void nap(void)
{
    nanosleep(&(struct timespec){0, 50000}, NULL);
}

static int left_ms(long long deadline_ms)
{
    long long left = deadline_ms - now_ms();
    return left > 0 ? (int)left : 0;
}

/* ---- memory of a GPU: the driver's calls that are needed, by their names in libcuda.so.1 ------------------------ */

static int (*cuda_init)(unsigned), (*cuda_context)(void **, int), (*cuda_use)(void *),
    (*cuda_allocate)(void **, size_t), (*cuda_load)(void *, const void *, size_t);

static void *cuda_heap(size_t bytes)
{
    static const struct {
        const char *name;
        void *at;
    } calls[] = {{"cuInit", &cuda_init},
                 {"cuDevicePrimaryCtxRetain", &cuda_context},
                 {"cuCtxSetCurrent", &cuda_use},
                 {"cuMemAlloc_v2", &cuda_allocate},
                 {"cuMemcpyDtoH_v2", &cuda_load}};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context, *out;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        void *found = driver ? dlsym(driver, calls[i].name) : NULL;
        if (!found)
            fail("--heap=cuda:%d: no CUDA driver here (libcuda.so.1)", gpu);
        memcpy(calls[i].at, &found, sizeof found);
    }
    if (cuda_init(0) || cuda_context(&context, gpu) || cuda_use(context) || cuda_allocate(&out, bytes))
        fail("--heap=cuda:%d: no such GPU, or no memory on it", gpu);
    return out;
}

/* Copies from this PE's own part of the heap. */
static void load(void *to, const void *from, size_t bytes)
{
    if (gpu < 0)
        memcpy(to, from, bytes);
    else if (cuda_load(to, from, bytes))
        fail("a copy from the GPU has failed");
}

/* ---- one-sided operations -------------------------------------------------------------------------------------- */

static bool in_heap(const void *at)
{
    return (const unsigned char *)at >= heap && (const unsigned char *)at < heap + HEAP_BYTES;
}

/* An operation of one contiguous piece. An object of the heap may be its local side too, on a GPU as well. */
static uccl_request *post(bool write, void *symmetric, void *local, size_t bytes, const struct uccl_tail *tail, int pe)
{
    struct uccl_piece piece = {.local = local,
                               .mr = in_heap(local) ? heap_mr : NULL,
                               .length = bytes,
                               .remote = peers[pe].heap,
                               .offset = (uint64_t)((unsigned char *)symmetric - heap)};
    uccl_request *request;
    int result;
    while ((result = write ? uccl_write_async(peers[pe].conn, &piece, 1, tail, &request)
                           : uccl_read_async(peers[pe].conn, &piece, 1, tail, &request)) == UCCL_EAGAIN)
        nap();
    check_peer(result, write ? "a put to" : "a get from", pe);
    return request;
}

static void finish(uccl_request *request, const char *what, int pe)
{
    int result = uccl_wait(request, wait_ms, NULL);
    check_peer(result, what, pe);
}

/* What nobody waits for by itself is waited for by sym_quiet(). */
static void finish_later(uccl_request *request, int pe)
{
    if (pending_count == PENDING_MAX) {
        finish(pending[0], "a put to", pending_pe[0]);
        pending_count--;
        memmove(pending, pending + 1, sizeof pending[0] * (size_t)pending_count);
        memmove(pending_pe, pending_pe + 1, sizeof pending_pe[0] * (size_t)pending_count);
    }
    pending[pending_count] = request;
    pending_pe[pending_count++] = pe;
}

/* The source may be changed, and the bytes have arrived, on return. */
static void sym_put(void *to, const void *from, size_t bytes, int pe)
{
    finish(post(true, to, (void *)from, bytes, NULL, pe), "a put to", pe);
}

/* The source is in use until sym_quiet(). */
static void sym_put_nbi(void *to, const void *from, size_t bytes, int pe)
{
    finish_later(post(true, to, (void *)from, bytes, NULL, pe), pe);
}

static void sym_get(void *to, const void *from, size_t bytes, int pe)
{
    finish(post(false, (void *)from, to, bytes, NULL, pe), "a get from", pe);
}

static void sym_put_word(void *to, uint64_t value, int pe)
{
    sym_put(to, &value, sizeof value, pe);
}

static uint64_t sym_get_word(const void *from, int pe)
{
    uint64_t value;
    sym_get(&value, from, sizeof value, pe);
    return value;
}

static struct uccl_tail set_word(const uint64_t *word, uint64_t value, int pe)
{
    return (struct uccl_tail){.kind = UCCL_TAIL_SET,
                              .remote = peers[pe].words,
                              .offset = (uint64_t)((const char *)word - (const char *)words),
                              .value = value};
}

/* As sym_put_nbi(); the signal is set once the bytes can be seen there. */
static void sym_put_signal(void *to, const void *from, size_t bytes, const uint64_t *signal, uint64_t value, int pe)
{
    struct uccl_tail tail = set_word(signal, value, pe);
    finish_later(post(true, to, (void *)from, bytes, &tail, pe), pe);
}

static void sym_signal(const uint64_t *signal, uint64_t value, int pe)
{
    sym_put_signal(heap, heap, 0, signal, value, pe);
}

/* Waits until `pe`, or somebody else, has set a signal to `value` or more. */
static void sym_wait_until(const uint64_t *signal, uint64_t value, int pe)
{
    long long deadline_ms = now_ms() + wait_ms;
    while (__atomic_load_n(signal, __ATOMIC_ACQUIRE) < value) {
        check_peer(uccl_conn_status(peers[pe].conn), "waiting for a signal of", pe);
        if (now_ms() >= deadline_ms)
            fail("no signal of PE %d within %d s", pe, wait_ms / 1000);
        nap();
    }
}

/* What is put to a PE after this arrives after what was put there before. */
static void sym_fence(void)
{
    for (int pe = 0; pe < npes; pe++)
        check_peer(uccl_fence(peers[pe].conn), "a fence to", pe);
}

/* Everything that was put has arrived. */
static void sym_quiet(void)
{
    for (int i = 0; i < pending_count; i++)
        finish(pending[i], "a put to", pending_pe[i]);
    pending_count = 0;
}

/* Everything that any PE has put has arrived. In round k, a PE tells the one 2^k further, as Hensgen et al. 1988 do. */
static void sym_barrier_all(void)
{
    sym_quiet();
    barriers++;
    for (int round = 0, distance = 1; distance < npes; round++, distance *= 2) {
        sym_signal(&words[round], barriers, (me + distance) % npes);
        sym_wait_until(&words[round], barriers, (me + npes - distance) % npes);
    }
    sym_quiet();
}

/* All PEs call it in the same order with the same size, and wait for each other. */
static void *sym_malloc(size_t bytes)
{
    unsigned char *out = heap + heap_used;
    if (bytes > HEAP_BYTES - heap_used)
        fail("no room for %zu bytes in the symmetric heap", bytes);
    heap_used += (bytes + 63) / 64 * 64;
    sym_barrier_all();
    return out;
}

static uint64_t *sym_signal_malloc(void)
{
    if (words_used == WORDS)
        fail("no room for another signal");
    sym_barrier_all();
    return &words[words_used++];
}

/* ---- coming together ------------------------------------------------------------------------------------------- */

static void open_heap(struct member *self)
{
    heap = gpu < 0 ? aligned_alloc(4096, HEAP_BYTES) : cuda_heap(HEAP_BYTES);
    words = aligned_alloc(4096, WORDS * sizeof *words);
    if (!heap || !words)
        fail("no memory for the symmetric heap");
    if (gpu < 0)
        memset(heap, 0, HEAP_BYTES);
    memset(words, 0, WORDS * sizeof *words);
    check(uccl_reg_mr(engine, heap, HEAP_BYTES, UCCL_MEM_AUTO, &heap_mr), "registering the heap");
    check(uccl_reg_mr(engine, words, WORDS * sizeof *words, UCCL_MEM_HOST, &words_mr), "registering signals");
    check(uccl_export_mr(heap_mr, heap, HEAP_BYTES, UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, self->heap, &heap_export),
          "exporting the heap");
    check(uccl_export_mr(words_mr, words, WORDS * sizeof *words, UCCL_ACCESS_WRITE, self->words, &words_export),
          "exporting signals");
}

static int transfer(bool send, uccl_conn *conn, void *data, size_t bytes, long long deadline_ms)
{
    uccl_request *request;
    size_t moved = 0;
    int result =
        send ? uccl_send_async(conn, data, bytes, NULL, &request) : uccl_recv_async(conn, data, bytes, NULL, &request);
    if (!result)
        result = uccl_wait(request, left_ms(deadline_ms), &moved);
    return !result && moved != bytes ? UCCL_EPROTO : result;
}

/* The root has waited long enough: tells those that have come, and ends. */
static void fail_missing(long long deadline_ms)
{
    int missing = 1;
    while (missing < npes && peers[missing].conn)
        missing++;
    for (int pe = 1; pe < npes; pe++)
        if (peers[pe].conn)
            transfer(true, peers[pe].conn, &(struct member){.pe = (uint32_t)missing}, sizeof(struct member),
                     deadline_ms + 1000);
    uccl_close(engine); /* which lets that leave */
    fail("PE %d of %d has not come within %d s", missing, npes, wait_ms / 1000);
}

static void gather(long long deadline_ms)
{
    for (int count = 1; count < npes; count++) {
        struct member member;
        uccl_conn *conn;
        if (uccl_accept(listener, left_ms(deadline_ms), &conn) < 0 ||
            transfer(false, conn, &member, sizeof member, deadline_ms) < 0)
            fail_missing(deadline_ms);
        if (member.npes != (uint32_t)npes || member.pe < 1 || member.pe >= (uint32_t)npes || peers[member.pe].conn)
            fail("a process says that it is PE %u of %u; here are %d PEs, and each may come once", (unsigned)member.pe,
                 (unsigned)member.npes, npes);
        members[member.pe] = member;
        peers[member.pe].conn = conn;
    }
    for (int pe = 1; pe < npes; pe++)
        check_peer(transfer(true, peers[pe].conn, members, sizeof members[0] * (size_t)npes, deadline_ms),
                   "telling all to", pe);
}

enum { SAID_BYTES = 256 };

/* Until the root is there each attempt would be told: the last line is kept. Engine threads may have something to say
 * too. */
static void keep_line(void *user, enum uccl_log_level level, const char *text)
{
    static bool busy;
    (void)level;
    if (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE))
        return;
    snprintf(user, SAID_BYTES, "%s", text);
    __atomic_clear(&busy, __ATOMIC_RELEASE);
}

/* Finds the root, which may start later. */
static void join(const struct member *self, long long deadline_ms)
{
    struct uccl_handle handle;
    uint16_t port = (uint16_t)root_port;
    char said[SAID_BYTES] = "";
    int result;
    if (root_pipe[0] >= 0 && read(root_pipe[0], &port, sizeof port) != sizeof port)
        fail("PE 0 has ended");
    check(uccl_handle_from_address(root_host, port, &handle), "UCCL_ROOT");
    do {
        uccl_set_log(keep_line, said);
        result = uccl_connect(engine, &handle, left_ms(deadline_ms) + 1, &peers[0].conn);
        uccl_set_log(NULL, NULL);
        if (result == UCCL_EREFUSED)
            nanosleep(&(struct timespec){0, 50000000}, NULL);
    } while (result == UCCL_EREFUSED && left_ms(deadline_ms) > 0);
    if (result < 0)
        fail("PE 0 has not come within %d s: at %s, port %u: %s; %s", wait_ms / 1000, root_host, port,
             uccl_strerror(result), said);
    check_peer(transfer(true, peers[0].conn, (void *)self, sizeof *self, deadline_ms), "telling", 0);
    uccl_request *request;
    size_t bytes = 0;
    check(uccl_recv_async(peers[0].conn, members, sizeof members[0] * (size_t)npes, NULL, &request), "receiving");
    /* the root knows who is missing: it may need a little longer */
    check_peer(uccl_wait(request, left_ms(deadline_ms) + 5000, &bytes), "waiting for", 0);
    if (bytes == sizeof members[0] && members[0].npes == 0)
        fail("PE %u of %d has not come within %d s", (unsigned)members[0].pe, npes, wait_ms / 1000);
    if (bytes != sizeof members[0] * (size_t)npes)
        fail("PE 0 speaks another language");
}

/* Each connects to the PEs below it, and accepts those above it; the root has connections to all. */
static void mesh(long long deadline_ms)
{
    uint32_t pe = (uint32_t)me;
    for (int i = 1; i < me; i++) {
        check_peer(uccl_connect(engine, &members[i].handle, left_ms(deadline_ms) + 1, &peers[i].conn), "connecting to",
                   i);
        check_peer(transfer(true, peers[i].conn, &pe, sizeof pe, deadline_ms), "connecting to", i);
    }
    for (int i = me + 1; me > 0 && i < npes; i++) {
        uccl_conn *conn;
        check(uccl_accept(listener, left_ms(deadline_ms) + 1, &conn), "waiting for the PEs above this one");
        check(transfer(false, conn, &pe, sizeof pe, deadline_ms), "waiting for the PEs above this one");
        if (pe <= (uint32_t)me || pe >= (uint32_t)npes || peers[pe].conn)
            fail("PE %u has come where another was expected", (unsigned)pe);
        peers[pe].conn = conn;
    }
}

/* A PE's own part of the heap is reached the same way. */
static void connect_self(void)
{
    struct uccl_handle handle = members[me].handle;
    uccl_conn *accepted = NULL;
    int result;
    do {
        result = uccl_connect(engine, &handle, 0, &peers[me].conn);
        if (!accepted)
            uccl_accept(listener, 0, &accepted);
    } while (result == UCCL_EAGAIN);
    check(result, "connecting to itself");
    if (!accepted)
        check(uccl_accept(listener, wait_ms, &accepted), "connecting to itself");
}

static void gather_all(void)
{
    long long deadline_ms = now_ms() + wait_ms;
    struct member *self = &members[me];
    check(uccl_open(NULL, &engine), "opening an engine");
    *self = (struct member){.pe = (uint32_t)me, .npes = (uint32_t)npes};
    check(uccl_listen(engine, -1, (uint16_t)(me == 0 ? root_port : 0), &self->handle, &listener), "listening");
    uint16_t port = uccl_listener_port(listener);
    for (int i = 1; me == 0 && root_pipe[1] >= 0 && i < npes; i++)
        if (write(root_pipe[1], &port, sizeof port) != sizeof port)
            fail("the others have ended");
    open_heap(self);
    struct member copy = *self; /* the root's answer comes where it was */
    if (me == 0)
        gather(deadline_ms);
    else
        join(&copy, deadline_ms);
    mesh(deadline_ms);
    connect_self();
}

static void sym_init(void)
{
    gather_all();
    for (int pe = 0; pe < npes; pe++) {
        check_peer(uccl_import(peers[pe].conn, members[pe].heap, &peers[pe].heap), "importing the heap of", pe);
        check_peer(uccl_import(peers[pe].conn, members[pe].words, &peers[pe].words), "importing the signals of", pe);
    }
    sym_barrier_all();
}

static void sym_finalize(void)
{
    sym_barrier_all();
    for (int pe = 0; pe < npes; pe++) {
        uccl_remote_free(peers[pe].heap);
        uccl_remote_free(peers[pe].words);
    }
    check(uccl_close(engine), "closing the engine"); /* and all that came from it */
}

/* ---- the program ----------------------------------------------------------------------------------------------- */

/* Each PE puts eight numbers to the next one. */
static void ring(void)
{
    int *inbox = sym_malloc(8 * sizeof *inbox), numbers[8], before = (me + npes - 1) % npes;
    char line[128] = "";
    for (int i = 0; i < 8; i++)
        numbers[i] = 100 * me + i;
    sym_put(inbox, numbers, sizeof numbers, (me + 1) % npes);
    sym_barrier_all();
    load(numbers, inbox, sizeof numbers);
    for (int i = 0; i < 8; i++) {
        snprintf(line + strlen(line), sizeof line - strlen(line), " %d", numbers[i]);
        if (numbers[i] != 100 * before + i)
            fail("wrong number at %d:%s", i, line);
    }
    printf("PE %d of %d: from PE %d:%s\n", me, npes, before, line);
}

/* A large block, announced by a signal; then single words, of which the second must not overtake the first. */
static void signals(void)
{
    enum { BLOCK = 3 << 20, PIECES = 6 };
    unsigned char *block = sym_malloc(BLOCK), *bytes = malloc(BLOCK);
    uint64_t *word = sym_malloc(sizeof *word), *signal = sym_signal_malloc();
    int next = (me + 1) % npes, before = (me + npes - 1) % npes;
    if (!bytes)
        fail("no memory");
    for (size_t i = 0; i < BLOCK; i++)
        bytes[i] = (unsigned char)(i * 7 + (size_t)me);
    for (size_t i = 0; i < PIECES; i++)
        sym_put_nbi(block + i * (BLOCK / PIECES), bytes + i * (BLOCK / PIECES), BLOCK / PIECES, next);
    sym_fence();
    sym_put_signal(block, bytes, 1, signal, 1, next);
    sym_wait_until(signal, 1, before);
    unsigned char *got = malloc(BLOCK);
    if (!got)
        fail("no memory");
    load(got, block, BLOCK);
    for (size_t i = 0; i < BLOCK; i++)
        if (got[i] != (unsigned char)(i * 7 + (size_t)before))
            fail("byte %zu of PE %d's block is wrong when its signal is there", i, before);
    sym_quiet();
    sym_put_word(word, 1000 + (uint64_t)me, next);
    if (sym_get_word(word, next) != 1000 + (uint64_t)me)
        fail("PE %d's word is not what was put there", next);
    sym_get(got, block, BLOCK, next);
    if (memcmp(got, bytes, BLOCK) != 0)
        fail("PE %d's block is not what was put there", next);
    sym_barrier_all();
    free(bytes);
    free(got);
    printf("PE %d of %d: block, signal and word of PE %d are right\n", me, npes, before);
}

/* Beyond the end of the heap: the peer's engine refuses it, and nothing else comes to harm. */
static void refused(void)
{
    uint64_t value = 0;
    int next = (me + 1) % npes;
    int result = uccl_wait(post(true, heap + HEAP_BYTES - 4, &value, sizeof value, NULL, next), wait_ms, NULL);
    if (result != UCCL_EACCESS)
        fail("a put beyond the heap of PE %d ended with: %s", next, uccl_strerror(result));
    sym_put_word(sym_malloc(sizeof value), 1, next);
    printf("PE %d of %d: a put beyond the heap of PE %d: %s\n", me, npes, next, uccl_strerror(result));
}

/* ---- start ----------------------------------------------------------------------------------------------------- */

/* False: it is no number from `min` to `max`. */
static bool read_number(const char *text, long min, long max, int *out)
{
    char *end;
    long value = strtol(text, &end, 10);
    *out = (int)value;
    return end != text && *end == '\0' && value >= min && value <= max;
}

/* Of the first variable that there is. The library takes no notice of UCCL_PE and its like: it would wonder. */
static int number_of(const char *const *names, long min, long max, int otherwise)
{
    for (; *names; names++) {
        const char *text = getenv(*names);
        int value;
        if (!text)
            continue;
        if (!read_number(text, min, max, &value))
            fail("%s=%s: allowed are %ld to %ld", *names, text, min, max);
        return value;
    }
    return otherwise;
}

/* "HOST", "HOST:PORT" or "[IPv6]:PORT" */
static void read_root(void)
{
    static char host[256];
    const char *text = getenv("UCCL_ROOT"), *colon, *port = NULL;
    if (!text)
        return;
    snprintf(host, sizeof host, "%s", text);
    colon = strrchr(host, ':');
    if (colon && (strchr(host, ':') == colon || colon[-1] == ']'))
        port = colon + 1;
    if (port) {
        if (!read_number(port, 1, 65535, &root_port))
            fail("UCCL_ROOT=%s: wanted is HOST:PORT, with a port from 1 to 65535", text);
        host[colon - host] = '\0';
    }
    root_host = host;
}

static void read_environment(void)
{
    static const char *const pe[] = {"UCCL_PE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    static const char *const all[] = {"UCCL_NPES", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    npes = number_of(all, 1, PES_MAX, 0);
    me = number_of(pe, 0, npes > 0 ? npes - 1 : PES_MAX - 1, -1);
    if ((npes == 0) != (me < 0))
        fail("UCCL_PE and UCCL_NPES belong together: one of them is not set");
    read_root();
    unsetenv("UCCL_PE");
    unsetenv("UCCL_NPES");
    unsetenv("UCCL_ROOT");
}

static int run(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    sym_init();
    ring();
    signals();
    refused();
    sym_finalize();
    return 0;
}

/* All PEs on this machine, each a process. Forks before any engine exists. */
static int run_here(int count)
{
    int status = 0, result = 0;
    npes = count;
    root_port = 0; /* any: it goes through the pipe */
    if (pipe(root_pipe) != 0)
        fail("no pipe");
    for (int pe = 0; pe < count; pe++) {
        pid_t child = fork();
        if (child < 0)
            fail("cannot start PE %d", pe);
        if (child > 0)
            continue;
        me = pe;
        close(root_pipe[me == 0 ? 0 : 1]);
        root_pipe[me == 0 ? 0 : 1] = -1;
        exit(run());
    }
    close(root_pipe[0]);
    close(root_pipe[1]);
    while (wait(&status) > 0)
        result |= status;
    return result != 0;
}

static int local_pes = 2;

static error_t parse(int key, char *text, struct argp_state *state)
{
    switch (key) {
    case 'n':
        if (!read_number(text, 1, PES_MAX, &local_pes))
            argp_error(state, "--pes=%s: allowed are 1 to %d", text, PES_MAX);
        return 0;
    case 'w':
        if (!read_number(text, 1, 1000, &wait_ms))
            argp_error(state, "--wait=%s: allowed are 1 to 1000 seconds", text);
        wait_ms *= 1000;
        return 0;
    case 'g':
        if (strcmp(text, "host") != 0 && (strncmp(text, "cuda:", 5) != 0 || !read_number(text + 5, 0, INT_MAX, &gpu)))
            argp_error(state, "--heap=%s: allowed are host and cuda:N", text);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"pes", 'n', "N", 0, "Start N PEs on this machine, where the environment does not say which one this is (2)",
         0},
        {"heap", 'g', "WHERE", 0, "host or cuda:N (host)", 0},
        {"wait", 'w', "SECONDS", 0, "Time limit for each wait for other PEs (10)", 0},
        {0},
    };
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "A ring exchange on a symmetric heap. UCCL_PE, UCCL_NPES and UCCL_ROOT, or mpirun, "
        "say which PE this is, of how many, and where PE 0 listens.",
        NULL,
        NULL,
        NULL};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    read_environment();
    return me < 0 ? run_here(local_pes) : run();
}
