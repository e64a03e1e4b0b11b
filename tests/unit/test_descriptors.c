/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process that runs out of descriptors: every call that needs one, with every number of them left, ends with
 * UCCL_ENOMEM and a line that names the limit, keeps none, and succeeds once there are some.
 */
#include "api_pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { LEFT_MAX = 64 };

static char said[4096];

static void keep_log(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    if (level <= UCCL_LOG_WARN)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

/* The limit counts numbers: below the highest in use none must be free. */
static void fill_gaps(void)
{
    int last = -1, fd;
    for (int i = 0; i < 1024; i++)
        last = fcntl(i, F_GETFD) >= 0 ? i : last;
    while ((fd = dup(STDERR_FILENO)) >= 0 && fd < last)
        house_descriptors++; /* it stays */
    close(fd);
}

/* As many are open as before, perhaps after a moment: an engine thread may hold one for a question. */
static void check_kept(unsigned before)
{
    for (uint64_t end_ms = now_ms() + SOON_MS; entries_of("/proc/self/fd") != before && now_ms() < end_ms;)
        sleep_us(1000);
    cr_assert_eq(entries_of("/proc/self/fd"), before, "descriptors are kept");
}

/* Lets the process open `count` more. */
static void leave(unsigned count)
{
    struct rlimit limit;
    int next = dup(STDERR_FILENO);
    cr_assert_geq(next, 0);
    close(next);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = (rlim_t)next + count;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void leave_enough(void)
{
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 1024 < limit.rlim_max ? 1024 : limit.rlim_max;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static uccl_engine *open_backend(const char *lend, const char *backend)
{
    uccl_config *config = NULL;
    uccl_engine *engine = NULL;
    IS(uccl_config_create(&config), 0);
    IS(uccl_config_set(config, "UCCL_LEND", lend), 0);
    IS(uccl_config_set(config, "UCCL_BACKEND", backend), 0);
    IS(uccl_config_set(config, "UCCL_NUM_ENGINES", "1"), 0);
    int error = uccl_open(config, &engine);
    uccl_config_destroy(config);
    cr_assert(error == 0 || !engine);
    cr_assert(error == 0 || error == UCCL_ENOMEM, "%s: %s", uccl_strerror(error), said);
    return engine;
}

static uccl_engine *open_lending(const char *lend)
{
    return open_backend(lend, "udp");
}

static void check_said(unsigned left)
{
    cr_assert(strstr(said, "ulimit -n"), "with %u descriptors left: '%s'", left, said);
    said[0] = '\0';
}

BOTH(descriptors, open)
{
    unsigned left = 0, before;
    uccl_engine *engine = NULL;
    uccl_close(open_lending(lend)); /* what is kept for the life of the process */
    fill_gaps();
    house_note();
    uccl_set_log(keep_log, NULL);
    before = entries_of("/proc/self/fd");
    for (; !engine && left < LEFT_MAX; left++) {
        leave(left);
        engine = open_lending(lend);
        leave_enough();
        if (!engine) {
            check_said(left);
            check_kept(before);
        }
    }
    cr_assert_not_null(engine);
    cr_assert_gt(left, 6, "an engine takes some");
    IS(uccl_close(engine), 0);
    cr_assert_eq(entries_of("/proc/self/fd"), before);
}

BOTH(descriptors, listen)
{
    struct uccl_handle handle;
    uccl_listener *listener = NULL;
    uccl_engine *engine = open_lending(lend);
    int error;
    fill_gaps();
    uccl_set_log(keep_log, NULL);
    leave(0);
    error = uccl_listen(engine, -1, 0, &handle, &listener);
    leave_enough();
    IS(error, UCCL_ENOMEM);
    check_said(0);
    IS(uccl_listen(engine, -1, 0, &handle, &listener), 0);
    IS(uccl_close(engine), 0);
}

Test(descriptors, resolve, .timeout = TIMEOUT_S)
{
    struct uccl_handle handle;
    fill_gaps();
    uccl_set_log(keep_log, NULL);
    leave(0);
    int number = uccl_handle_from_address("127.0.0.1", 1, &handle);
    int name = uccl_handle_from_address("localhost", 1, &handle);
    leave_enough();
    IS(number, 0);
    IS(name, UCCL_ENOMEM);
    check_said(0);
}

/* Accepts connections in a process of its own, whose descriptors are not ours; its port comes up the pipe. */
static pid_t start_server(const char *lend, const char *backend, unsigned connections, uint16_t *port)
{
    struct uccl_handle handle;
    uccl_listener *listener = NULL;
    uccl_conn *conn = NULL;
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        uccl_engine *engine = open_backend(lend, backend);
        bool good = uccl_listen(engine, -1, 0, &handle, &listener) == 0;
        *port = good ? uccl_listener_port(listener) : 0;
        good = write(ends[1], port, sizeof *port) == sizeof *port;
        for (; good && connections; connections--)
            good = uccl_accept(listener, SOON_MS, &conn) == 0;
        uccl_close(engine);
        _exit(good ? 0 : 1);
    }
    cr_assert_eq(read(ends[0], port, sizeof *port), sizeof *port);
    close(ends[0]);
    close(ends[1]);
    return child;
}

/* The handshake takes one, and the question for the route's MTU another. */
BOTH(descriptors, connect)
{
    struct uccl_handle handle;
    uccl_conn *conn = NULL;
    uint16_t port;
    int status, error = UCCL_ENOMEM;
    unsigned left = 0, before;
    pid_t server = start_server(lend, "udp", 1, &port);
    uccl_engine *engine = open_lending(lend);
    IS(uccl_handle_from_address("127.0.0.1", port, &handle), 0);
    fill_gaps();
    before = entries_of("/proc/self/fd");
    uccl_set_log(keep_log, NULL);
    for (; error && left < LEFT_MAX; left++) {
        leave(left);
        error = uccl_connect(engine, &handle, SOON_MS, &conn);
        leave_enough();
        if (error) {
            IS(error, UCCL_ENOMEM);
            check_said(left);
        }
        check_kept(before);
    }
    cr_assert_gt(left, 2);
    IS(error, 0);
    IS(uccl_close(engine), 0);
    cr_assert_eq(waitpid(server, &status, 0), server);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the server: %x", status);
}

/* TCP beside UDP takes no descriptor that the connection cannot do without: with more it does not fail again. */
BOTH(descriptors, connect_both)
{
    enum { MORE = 8 }; /* than suffice */
    struct uccl_handle handle;
    uccl_conn *conn = NULL;
    uint16_t port;
    int status;
    unsigned good = 0;
    pid_t server = start_server(lend, "auto", MORE, &port);
    IS(uccl_handle_from_address("127.0.0.1", port, &handle), 0);
    uccl_close(open_backend(lend, "auto"));
    for (unsigned left = 0; good < MORE && left < LEFT_MAX; left++) {
        uccl_engine *engine = open_backend(lend, "auto");
        fill_gaps();
        leave(left);
        int error = uccl_connect(engine, &handle, SOON_MS, &conn);
        leave_enough();
        cr_assert(error == 0 || (error == UCCL_ENOMEM && good == 0), "with %u descriptors left: %s", left,
                  uccl_strerror(error));
        good += error == 0;
        IS(uccl_close(engine), 0);
    }
    cr_assert_eq(good, MORE);
    cr_assert_eq(waitpid(server, &status, 0), server);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the server: %x", status);
}

/* The listener hears of a connection when something has been said on it (TCP_DEFER_ACCEPT). */
static int connect_stranger(uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    cr_assert_geq(fd, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    cr_assert_eq(send(fd, "x", 1, 0), 1);
    return fd;
}

/* accept() wants a descriptor before it looks whether anybody is there: only who waits counts. */
BOTH(descriptors, accept)
{
    struct uccl_handle handle;
    uccl_listener *listener = NULL;
    uccl_conn *conn = NULL;
    uccl_engine *engine = open_lending(lend);
    int stranger, none, some, forever;
    IS(uccl_listen(engine, -1, 0, &handle, &listener), 0);
    fill_gaps();
    uccl_set_log(keep_log, NULL);
    leave(0);
    none = uccl_accept(listener, 20, &conn);
    leave_enough();
    IS(none, UCCL_ETIMEDOUT);
    cr_assert_str_empty(said);
    stranger = connect_stranger(uccl_listener_port(listener));
    leave(0);
    some = uccl_accept(listener, 0, &conn);
    forever = uccl_accept(listener, -1, &conn);
    leave_enough();
    IS(some, UCCL_ENOMEM);
    IS(forever, UCCL_ENOMEM);
    cr_assert_null(conn);
    cr_assert(strstr(said, "ulimit -n"), "%s", said);
    cr_assert_eq(strchr(said, '\n')[1], '\0', "told once: %s", said);
    close(stranger);
    IS(uccl_accept(listener, 0, &conn), UCCL_EAGAIN);
    IS(uccl_listener_close(listener), 0);
    IS(uccl_close(engine), 0);
}

/* Settings do not vanish because their file cannot be opened. */
Test(descriptors, configuration_file, .timeout = TIMEOUT_S)
{
    char directory[] = "/tmp/uccl-descriptors-XXXXXX", path[64], value[32], source[256];
    cr_assert_not_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/.uccl.conf", directory);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert_eq(write(fd, "CC=timely\n", 10), 10);
    close(fd);
    fill_gaps();
    uccl_set_log(keep_log, NULL);
    for (int named = 0; named < 2; named++) {
        if (named)
            setenv("UCCL_CONF_FILE", path, 1);
        else
            setenv("HOME", directory, 1);
        leave(0);
        int error = uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source);
        leave_enough();
        IS(error, UCCL_ENOMEM);
        check_said(0);
        IS(uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source), 0);
    }
    unlink(path);
    rmdir(directory);
}

static void set_limit(rlim_t count)
{
    struct rlimit limit;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = count;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/*
 * A process gives up the right to open anything, as in a sandbox: ppoll() takes none of its descriptors any more.
 * Engine threads nap instead of asking it all the time, and messages go on.
 */
static void check_no_more_descriptors(const char *backend)
{
    enum { IDLE_MS = 200 };
    struct pair pair = {.engine = {open_backend("no", backend), open_backend("no", backend)}};
    pair_connect(&pair);
    set_limit(0);
    exchange(pair.conn[0], pair.conn[1], 1000000, 1);
    uint64_t begin_ms = now_ms(), sleeps = counter_of(pair.engine[0], "engine_sleeps");
    sleep_us(IDLE_MS * 1000);
    sleeps = counter_of(pair.engine[0], "engine_sleeps") - sleeps;
    uint64_t took_ms = now_ms() - begin_ms;
    leave_enough();
    cr_assert_leq(sleeps, 2 * took_ms + 10, "%s: %lu sleeps in %lu ms", backend, sleeps, took_ms);
    pair_close(&pair);
}

Test(descriptors, udp_sleeps_without_the_right_to_any, .timeout = 60)
{
    check_no_more_descriptors("udp");
}

Test(descriptors, tcp_sleeps_without_the_right_to_any, .timeout = 60)
{
    check_no_more_descriptors("tcp");
}

/* What a process prints and logs that has closed its standard streams goes into no descriptor of ours. */
static void check_streams_left_alone(const char *backend)
{
    int kept[STDERR_FILENO + 1];
    uccl_close(open_backend("no", backend)); /* what is kept for the life of the process */
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        kept[fd] = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
        close(fd);
    }
    struct pair pair = {.engine = {open_backend("no", backend), open_backend("no", backend)}};
    pair_connect(&pair);
    exchange(pair.conn[0], pair.conn[1], 1000000, 1);
    int notify_fd = uccl_notify_fd(pair.engine[0]), event_fd = uccl_event_fd(pair.engine[0]), taken = -1;
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        taken = fcntl(fd, F_GETFD) >= 0 ? fd : taken;
        dup2(kept[fd], fd);
        close(kept[fd]);
    }
    cr_assert_eq(taken, -1, "%s: descriptor %d is one of the engine's", backend, taken);
    cr_assert_gt(notify_fd, STDERR_FILENO);
    cr_assert_gt(event_fd, STDERR_FILENO);
    pair_close(&pair);
}

Test(descriptors, udp_leaves_the_standard_streams_alone, .timeout = TIMEOUT_S)
{
    check_streams_left_alone("udp");
}

Test(descriptors, tcp_leaves_the_standard_streams_alone, .timeout = TIMEOUT_S)
{
    check_streams_left_alone("tcp");
}
