/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One end of a connection that does as it is told, for tests that need what the tools never do:
 * stay idle, close with data under way, receive into a buffer of another size.
 *
 *   endpoint listen PORT[/DEVICE] STEP...   endpoint connect HOST PORT STEP...
 *   endpoint offer FILE STEP...             endpoint take FILE STEP...    by the handle, through a file
 *
 * Steps, in order:  send:N  recv:N   post a message or receive of N bytes
 *                   wait  wait=E     wait for the oldest request; E: its status must be that name
 *                   cancel           cancel the oldest request; wait for it all the same
 *                   pause:MS         do nothing
 *                   until:FILE       do nothing before there is such a file
 *                   reach:NAME=N     do nothing before that counter of the engine is N
 *                   tell:NAME        print that counter of the engine
 *                   keep:FILE        use the buffer of the last receive waited for for other things before
 *                                    there is such a file: nobody else may write to it
 *                   close            close the connection, and say how long it took
 *                   anew:PORT        connect to another port of HOST
 * Who connects says to whom, and after how many milliseconds. Contents of message k are checked. Prints a line for each
 * step that ends. Exit status 0 when all went as told, else 1. UCCL_CONNECT_MS limits the connection.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uccl/engine.h>
#include <unistd.h>

enum { POSTED_MAX = 64 };

struct posted {
    uccl_request *request;
    uccl_mr *mr; /* of the buffer: registered memory is where a NIC may place payload */
    unsigned char *buffer;
    size_t length;
    unsigned number; /* of the message, in its direction */
    int is_receive;
};

struct endpoint {
    uccl_engine *engine;
    uccl_conn *conn;
    const char *host; /* that it has connected to */
    struct posted posted[POSTED_MAX];
    unsigned first, count;
    unsigned sent, received;
    struct posted kept; /* the last receive waited for, with its buffer */
};

static unsigned char content(unsigned number, size_t offset)
{
    return (unsigned char)((offset * 2654435761u >> 7) + offset + number * 97);
}

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int report(const char *what, int error)
{
    if (error)
        fprintf(stderr, "endpoint: %s: %s (%d)\n", what, uccl_strerror(error), error);
    return error;
}

static void release(struct posted *p)
{
    if (p->mr)
        report("dereg_mr", uccl_dereg_mr(p->mr));
    free(p->buffer);
    *p = (struct posted){0};
}

static int post(struct endpoint *e, int is_receive, size_t length)
{
    struct posted *p = &e->posted[e->count];
    int error;

    if (e->count == POSTED_MAX)
        return report("too many requests", UCCL_EINVAL);
    p->buffer = malloc(length + 1);
    if (!p->buffer)
        return report("malloc", UCCL_ENOMEM);
    error = uccl_reg_mr(e->engine, p->buffer, length + 1, UCCL_MEM_HOST, &p->mr);
    if (error)
        return report("reg_mr", error);
    p->length = length;
    p->is_receive = is_receive;
    p->number = is_receive ? e->received++ : e->sent++;
    memset(p->buffer, 0, length + 1);
    for (size_t i = 0; !is_receive && i < length; i++)
        p->buffer[i] = content(p->number, i);
    do {
        error = is_receive ? uccl_recv_async(e->conn, p->buffer, length, p->mr, &p->request)
                           : uccl_send_async(e->conn, p->buffer, length, p->mr, &p->request);
    } while (error == UCCL_EAGAIN);
    if (error == 0)
        e->count++;
    return report(is_receive ? "recv_async" : "send_async", error);
}

static int wait_oldest(struct endpoint *e, const char *expected)
{
    size_t bytes = 0;
    struct posted *p = &e->posted[e->first++];

    if (p >= &e->posted[e->count])
        return report("nothing to wait for", UCCL_EINVAL);
    int error = uccl_wait(p->request, -1, &bytes);
    printf("%s %u: %s, %zu bytes\n", p->is_receive ? "receive" : "send", p->number, uccl_strerror(error), bytes);
    if (p->buffer[p->length] != 0)
        return report("written beyond the buffer", UCCL_EIO);
    for (size_t i = 0; error == 0 && i < bytes; i++)
        if (p->buffer[i] != content(p->number, i))
            return report("wrong contents", UCCL_EIO);
    if (p->is_receive) {
        release(&e->kept);
        e->kept = *p;
    } else {
        release(p);
    }
    if (!expected)
        return report("request", error);
#define NAME(name, value, text)                                                                                        \
    if (error == (value) && strcmp(expected, #name) == 0)                                                              \
        return 0;
    UCCL_ERROR_ROWS(NAME)
#undef NAME
    fprintf(stderr, "endpoint: status is %d and not %s\n", error, expected);
    return UCCL_EIO;
}

static void pause_ms(unsigned long ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static int reach(struct endpoint *e, const char *name, const char *value)
{
    char counter[64];
    uint64_t now = 0, wanted = value ? strtoull(value + 1, NULL, 10) : 0;

    snprintf(counter, sizeof counter, "%.*s", value ? (int)(value - name) : 0, name);
    do {
        int error = uccl_counter_by_name(e->engine, counter, &now);
        if (error)
            return report(name, error);
        if (now < wanted)
            pause_ms(10);
    } while (now < wanted);
    printf("reached %s\n", name);
    return 0;
}

static int tell(const struct endpoint *e, const char *name)
{
    uint64_t value = 0;
    int error = uccl_counter_by_name(e->engine, name, &value);

    printf("%s %llu\n", name, (unsigned long long)value);
    return report(name, error);
}

/* After a receive has ended its buffer is the application's. */
static int keep(struct endpoint *e, const char *file)
{
    enum { OTHER_USE = 0xa5 };
    int over;

    if (!e->kept.buffer)
        return report("nothing to keep", UCCL_EINVAL);
    memset(e->kept.buffer, OTHER_USE, e->kept.length);
    do {
        over = access(file, F_OK) == 0;
        pause_ms(10);
        for (size_t i = 0; i < e->kept.length; i++)
            if (e->kept.buffer[i] != OTHER_USE) {
                fprintf(stderr, "endpoint: byte %zu of the buffer was written after the receive\n", i);
                return UCCL_EIO;
            }
    } while (!over);
    puts("kept");
    return 0;
}

static int connect_to(struct endpoint *e, struct uccl_handle *handle)
{
    char peer[96] = "";
    long start = now_ms();
    int error = uccl_connect(e->engine, handle, -1, &e->conn);
    e->sent = e->received = 0;
    if (error == 0)
        uccl_conn_peer(e->conn, peer, sizeof peer);
    printf("peer %s after %ld ms\n", peer, now_ms() - start);
    return report("connect", error);
}

static int connect_host(struct endpoint *e, unsigned long port)
{
    struct uccl_handle handle;
    int error = e->host && !e->conn ? uccl_handle_from_address(e->host, (uint16_t)port, &handle) : UCCL_EINVAL;
    return error ? report("handle_from_address", error) : connect_to(e, &handle);
}

static int step(struct endpoint *e, const char *text)
{
    const char *value = strpbrk(text, ":=");
    unsigned long number = value && *value == ':' ? strtoul(value + 1, NULL, 10) : 0;

    if (strncmp(text, "send:", 5) == 0)
        return post(e, 0, number);
    if (strncmp(text, "recv:", 5) == 0)
        return post(e, 1, number);
    if (strcmp(text, "wait") == 0 || strncmp(text, "wait=", 5) == 0)
        return wait_oldest(e, value ? value + 1 : NULL);
    if (strcmp(text, "cancel") == 0)
        return report(text, e->first < e->count ? uccl_cancel(e->posted[e->first].request) : UCCL_EINVAL);
    if (strncmp(text, "pause:", 6) == 0) {
        pause_ms(number);
        return 0;
    }
    if (strncmp(text, "until:", 6) == 0) {
        while (access(text + 6, F_OK) != 0)
            pause_ms(10);
        return 0;
    }
    if (strncmp(text, "reach:", 6) == 0)
        return reach(e, text + 6, strchr(text, '='));
    if (strncmp(text, "tell:", 5) == 0)
        return tell(e, text + 5);
    if (strncmp(text, "keep:", 5) == 0)
        return keep(e, text + 5);
    if (strcmp(text, "close") == 0) {
        long start = now_ms();
        int error = uccl_conn_close(e->conn);
        e->conn = NULL;
        printf("close took %ld ms\n", now_ms() - start);
        return report("close", error);
    }
    if (strncmp(text, "anew:", 5) == 0)
        return connect_host(e, number);
    return report(text, UCCL_EINVAL);
}

/* Listens on all devices; the file is there with the whole handle or not at all. */
static int offer(struct endpoint *e, const char *file)
{
    char unfinished[4096];
    struct uccl_handle handle;
    uccl_listener *listener;
    int error = uccl_listen(e->engine, -1, 0, &handle, &listener);
    if (error)
        return report("listen", error);
    snprintf(unfinished, sizeof unfinished, "%s.unfinished", file);
    FILE *to = fopen(unfinished, "w");
    if (!to || fwrite(&handle, sizeof handle, 1, to) != 1 || fclose(to) != 0 || rename(unfinished, file) != 0)
        return report(file, UCCL_EIO);
    error = uccl_accept(listener, -1, &e->conn);
    uccl_listener_close(listener);
    return report("accept", error);
}

static int take(struct endpoint *e, const char *file)
{
    struct uccl_handle handle;
    FILE *from = fopen(file, "r");
    if (!from || fread(&handle, sizeof handle, 1, from) != 1 || fclose(from) != 0)
        return report(file, UCCL_EIO);
    return connect_to(e, &handle);
}

static int establish(struct endpoint *e, int argc, char **argv, int *first_step)
{
    struct uccl_handle handle;
    uccl_listener *listener;
    int error;

    if (argc > 2 && strcmp(argv[1], "listen") == 0) {
        const char *device = strchr(argv[2], '/');
        *first_step = 3;
        error = uccl_listen(e->engine, device ? atoi(device + 1) : -1, (uint16_t)atoi(argv[2]), &handle, &listener);
        if (error)
            return report("listen", error);
        error = uccl_accept(listener, -1, &e->conn);
        uccl_listener_close(listener);
        return report("accept", error);
    }
    if (argc > 3 && strcmp(argv[1], "connect") == 0) {
        *first_step = 4;
        e->host = argv[2];
        return connect_host(e, strtoul(argv[3], NULL, 10));
    }
    if (argc > 2 && (strcmp(argv[1], "offer") == 0 || strcmp(argv[1], "take") == 0)) {
        *first_step = 3;
        return strcmp(argv[1], "offer") == 0 ? offer(e, argv[2]) : take(e, argv[2]);
    }
    return report("arguments", UCCL_EINVAL);
}

int main(int argc, char **argv)
{
    static struct endpoint e;
    int next = 0;
    int error = report("open", uccl_open(NULL, &e.engine));

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (error)
        return 1;
    error = establish(&e, argc, argv, &next);
    if (error == 0)
        puts("connected");
    for (; error == 0 && next < argc; next++)
        error = step(&e, argv[next]);
    if (e.conn)
        uccl_conn_close(e.conn);
    release(&e.kept);
    report("engine close", uccl_close(e.engine));
    return error ? 1 : 0;
}
