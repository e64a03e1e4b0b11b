/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuccl_p2p.so where memory is short: each allocation of a call fails in turn, and those of the library's own thread.
 * The call fails and has done nothing, or has done all; the next one works; and the process lives.
 */
#include "nixl_ends.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <malloc.h>
#include <new>
#include <thread>
#include <unistd.h>

namespace
{

constexpr unsigned LIMIT_S = 40, SHORT_US = 500000;
constexpr int ALLOCATIONS_MAX = 100;

thread_local bool is_main = false;
thread_local int until_failure = 0;   /* allocations of this thread; 0: none fails */
std::atomic<bool> others_fail{false}; /* those of other threads */
std::atomic<int> failed_elsewhere{0};

bool fails_now()
{
    if (is_main)
        return until_failure && --until_failure == 0;
    failed_elsewhere += others_fail;
    return others_fail;
}

int threads()
{
    int count = 0;
    DIR *directory = opendir("/proc/self/task");
    CHECK(directory);
    while (dirent *entry = readdir(directory))
        count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

/* An engine that could not be made leaves none of its threads. */
void creating()
{
    int before = threads(), tries = 0;
    uccl_engine_t *engine = nullptr;
    while (!engine && ++tries < ALLOCATIONS_MAX) {
        until_failure = tries;
        engine = uccl_engine_create(0, false);
        until_failure = 0;
        for (int i = 0; i < 100 && !engine && threads() != before; i++)
            usleep(1000); /* a thread that was joined may be seen for a moment more */
        CHECK(engine || threads() == before);
    }
    fprintf(stderr, "# %d allocations of an engine\n", tries - 1);
    CHECK(engine && tries > 2);
    uccl_engine_destroy(engine);
}

/* A registration that could not be kept is none. */
void registering(uccl_engine_t *engine)
{
    static char memory[64];
    uccl_mr_t mr = 0;
    int tries = 0;
    do
        until_failure = ++tries;
    while (uccl_engine_reg(engine, reinterpret_cast<uintptr_t>(memory), sizeof memory, mr) && tries < ALLOCATIONS_MAX);
    until_failure = 0;
    CHECK(mr == 1); /* the first that there is */
    uccl_engine_mr_destroy(engine, mr);
}

/* The library's thread accepts connections, and has no memory for one of them. */
void accepting(uccl_engine_t *here, uccl_engine_t *there)
{
    char address[128];
    int gpu;
    others_fail = true;
    uccl_conn_t *first = connect_by(metadata_of(there), here, true);
    for (int i = 0; i < 100 && failed_elsewhere == 0; i++)
        usleep(SHORT_US / 10);
    CHECK(failed_elsewhere > 0);
    others_fail = false;
    uccl_conn_t *second = connect_by(metadata_of(there), here, true);
    CHECK(second && uccl_engine_accept(there, address, sizeof address, &gpu));
    uccl_engine_conn_destroy(first);
    uccl_engine_conn_destroy(second);
}

/* A write that could not be posted writes nothing. */
void posting(uccl_engine_t *here, uccl_engine_t *there)
{
    static char from[64], to[64];
    uccl_mr_t from_mr, to_mr;
    char fifo[FIFO_SIZE];
    FifoItem item;
    int tries = 0, rc = -1;
    uccl_conn_t *conn = connect_by(metadata_of(there), here, true);
    CHECK(conn);
    CHECK(uccl_engine_reg(here, reinterpret_cast<uintptr_t>(from), sizeof from, from_mr) == 0);
    CHECK(uccl_engine_reg(there, reinterpret_cast<uintptr_t>(to), sizeof to, to_mr) == 0);
    CHECK(uccl_engine_prepare_fifo(there, to_mr, to, sizeof to, fifo) == 0);
    deserialize_fifo_item(fifo, &item);
    while (rc && ++tries < ALLOCATIONS_MAX) {
        std::vector<uccl_mr_t> mrs = {from_mr};
        std::vector<void *> local = {from};
        std::vector<size_t> sizes = {sizeof from};
        std::vector<FifoItem> items = {item};
        uint64_t transfer = 0;
        memset(from, tries, sizeof from);
        until_failure = tries;
        rc = uccl_engine_write_vector(conn, std::move(mrs), std::move(local), std::move(sizes), std::move(items), 1,
                                      &transfer, {});
        until_failure = 0;
        if (rc) {
            usleep(SHORT_US / 10);
            CHECK(to[0] != tries);
            continue;
        }
        for (int i = 0; i < 10000 && !uccl_engine_xfer_status(conn, transfer); i++)
            usleep(1000);
        CHECK(memcmp(from, to, sizeof to) == 0);
    }
    fprintf(stderr, "# %d allocations of a write\n", tries - 1);
    CHECK(rc == 0 && tries > 2);
    uccl_engine_conn_destroy(conn);
}

bool is_whole(const notify_msg_t &message, char letter)
{
    for (size_t i = 0; i < MSG_SIZE; i++)
        if (message.msg[i] != letter)
            return false;
    return strcmp(message.name, "a name that needs memory of its own") == 0;
}

/* Takes one that comes within some time, where the first `tries` of its allocations have none. */
bool take_one(int tries, char letter)
{
    for (int i = 0; i < 2000; i++, usleep(1000)) {
        until_failure = i ? 0 : tries;
        std::vector<notify_msg_t> got = uccl_engine_get_notifs();
        until_failure = 0;
        if (got.empty())
            continue;
        CHECK(got.size() == 1 && is_whole(got[0], letter));
        return true;
    }
    return false;
}

/* A notification for which there is no memory yet waits, and comes once: whoever takes it, the library or the caller.
 */
void notifying(uccl_engine_t *here, uccl_engine_t *there)
{
    notify_msg_t message = {};
    char address[128];
    int gpu;
    uccl_conn_t *conn = connect_by(metadata_of(there), here, true);
    for (int i = 0; i < 2; i++) /* that of posting(), and this one */
        CHECK(conn && uccl_engine_accept(there, address, sizeof address, &gpu));
    strcpy(message.name, "a name that needs memory of its own");
    for (int tries = 1; tries < 12; tries++) {
        memset(message.msg, 'a' + tries, MSG_SIZE);
        others_fail = true;
        failed_elsewhere = 0;
        CHECK(uccl_engine_send_notif(conn, &message) == 0);
        for (int i = 0; i < 100 && failed_elsewhere == 0; i++)
            usleep(SHORT_US / 10);
        CHECK(failed_elsewhere > 0);
        CHECK(take_one(tries, static_cast<char>('a' + tries)));
        others_fail = false;
    }
    CHECK(uccl_engine_get_notifs().empty());
    uccl_engine_conn_destroy(conn);
}

/* A peer that registers memory anew for each transfer: what this side knows of what it had before does not pile up. */
void registering_anew(uccl_engine_t *here, uccl_engine_t *there)
{
    constexpr int TIMES = 12000, WARM_UP = 2000;
    constexpr size_t MOST_BYTES = 1000000; /* TIMES references take twice that */
    static char from[64], to[64];
    uccl_mr_t from_mr, to_mr;
    size_t before = 0;
    uccl_conn_t *conn = connect_by(metadata_of(there), here, true);
    CHECK(conn && uccl_engine_reg(here, reinterpret_cast<uintptr_t>(from), sizeof from, from_mr) == 0);
    for (int i = 0; i < TIMES; i++) {
        char fifo[FIFO_SIZE];
        FifoItem item;
        uint64_t transfer = 0;
        CHECK(uccl_engine_reg(there, reinterpret_cast<uintptr_t>(to), sizeof to, to_mr) == 0);
        CHECK(uccl_engine_prepare_fifo(there, to_mr, to, sizeof to, fifo) == 0);
        deserialize_fifo_item(fifo, &item);
        CHECK(uccl_engine_write_vector(conn, {from_mr}, {from}, {sizeof from}, {item}, 1, &transfer, {}) == 0);
        while (!uccl_engine_xfer_status(conn, transfer))
            std::this_thread::yield();
        uccl_engine_mr_destroy(there, to_mr);
        before = i == WARM_UP ? mallinfo2().uordblks : before;
    }
    size_t after = mallinfo2().uordblks;
    fprintf(stderr, "# %zu bytes of the heap before, %zu after\n", before, after);
    CHECK(after < before + MOST_BYTES);
    uccl_engine_conn_destroy(conn);
}

} // namespace

__attribute__((noinline)) void *operator new(size_t bytes)
{
    void *memory = fails_now() ? nullptr : malloc(bytes);
    if (!memory)
        throw std::bad_alloc();
    return memory;
}

__attribute__((noinline)) void operator delete(void *memory) noexcept
{
    free(memory);
}

__attribute__((noinline)) void operator delete(void *memory, size_t) noexcept
{
    free(memory);
}

int main()
{
    is_main = true;
    alarm(LIMIT_S);
    creating();
    uccl_engine_t *here = uccl_engine_create(0, false), *there = uccl_engine_create(0, false);
    CHECK(here && there);
    registering(here);
    accepting(here, there);
    posting(here, there);
    notifying(here, there);
    registering_anew(here, there);
    uccl_engine_destroy(here);
    uccl_engine_destroy(there);
    return 0;
}
