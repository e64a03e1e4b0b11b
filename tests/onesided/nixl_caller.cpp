/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls libuccl_p2p.so in the order in which NIXL's plugin UCCL calls it: an agent opens an engine and accepts on a
 * thread of its own, registers memory, gives its description away as hexadecimal digits, connects under the lock that
 * its accepting thread needs too, prepares, posts and polls transfers, and sends a notification for each that has
 * completed. Two processes, since notifications are of the process; what they have to tell each other goes through
 * pipes.
 *
 * usage: nixl_caller [name] NUMBER     runs a case, or prints its name
 */
#include "nixl_ends.hpp"
#include "uccl/engine.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <time.h>
#include <unistd.h>

namespace
{

constexpr size_t MIB = 1 << 20;
constexpr int LIMIT_MS = 20000;

/* Waits until something is so. */
bool soon(const std::function<bool()> &so, int limit_ms = LIMIT_MS)
{
    for (long until_ms = now_ms() + limit_ms; !so(); usleep(100))
        if (now_ms() > until_ms)
            return false;
    return true;
}

/* ---- what the two processes say to each other ------------------------------------------------- */

struct Pipe {
    int in, out;
    void say(const std::string &text) const
    {
        uint32_t length = static_cast<uint32_t>(text.size());
        CHECK(write(out, &length, sizeof length) == sizeof length);
        CHECK(write(out, text.data(), length) == static_cast<ssize_t>(length));
    }
    std::string hear() const
    {
        uint32_t length;
        CHECK(read(in, &length, sizeof length) == sizeof length);
        std::string text(length, '\0');
        for (size_t got = 0; got < length;) {
            ssize_t more = read(in, &text[got], length - got);
            CHECK(more > 0);
            got += static_cast<size_t>(more);
        }
        return text;
    }
    /* Both come to here. */
    void meet() const
    {
        say("here");
        CHECK(hear() == "here");
    }
};

/* ---- an agent, as NIXL's plugin makes one ------------------------------------------------------ */

std::string digits_of(const char *bytes, size_t count)
{
    std::string out;
    char two[3];
    for (size_t i = 0; i < count; i++) {
        snprintf(two, sizeof two, "%02x", static_cast<unsigned char>(bytes[i]));
        out += two;
    }
    return out;
}

struct Memory {
    unsigned char *at;
    size_t size;
    uccl_mr_t mr;
    char fifo[FIFO_SIZE];
    std::string description() const
    {
        return std::to_string(reinterpret_cast<uintptr_t>(at)) + " " + digits_of(fifo, FIFO_SIZE);
    }
};

/* A registration of the peer. */
struct Remote {
    uintptr_t at;
    char fifo[FIFO_SIZE];
    explicit Remote(const std::string &description)
    {
        size_t end;
        at = std::stoul(description, &end);
        for (size_t i = 0; i < FIFO_SIZE; i++)
            fifo[i] = static_cast<char>(std::stoul(description.substr(end + 1 + 2 * i, 2), nullptr, 16));
    }
};

class Agent
{
  public:
    explicit Agent(const char *own_name) : name(own_name)
    {
        engine = uccl_engine_create(4, true);
        CHECK(engine);
        listener = std::thread([this] { accept_all(); });
    }
    ~Agent()
    {
        stop = true;
        uccl_engine_stop_accept(engine);
        listener.join();
        for (auto &[peer, conn] : connections)
            uccl_engine_conn_destroy(conn);
        uccl_engine_destroy(engine);
    }
    uccl_conn_t *connect(const std::string &peer, const std::string &metadata, bool same_process = false)
    {
        std::lock_guard<std::mutex> guard(lock);
        uccl_conn_t *conn = connect_by(metadata, engine, same_process);
        if (conn) {
            CHECK(uccl_engine_start_listener(conn) == 0);
            connections[peer] = conn;
        }
        return conn;
    }
    size_t connected()
    {
        std::lock_guard<std::mutex> guard(lock);
        return connections.size();
    }
    void disconnect(const std::string &peer)
    {
        std::lock_guard<std::mutex> guard(lock);
        uccl_engine_conn_destroy(connections.at(peer));
        connections.erase(peer);
    }
    Memory reg(size_t size)
    {
        Memory memory = {};
        memory.at = static_cast<unsigned char *>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        memory.size = size;
        uintptr_t address = reinterpret_cast<uintptr_t>(memory.at);
        bool has_ipc = true;
        char ipc[IPC_INFO_SIZE] = {};
        CHECK(memory.at != MAP_FAILED);
        CHECK(uccl_engine_reg(engine, address, size, memory.mr) == 0 && memory.mr != 0);
        CHECK(uccl_engine_prepare_fifo(engine, memory.mr, memory.at, size, memory.fifo) == 0);
        CHECK(uccl_engine_get_ipc_info(engine, address, ipc, &has_ipc) == 0 && !has_ipc);
        return memory;
    }
    void dereg(const Memory &memory)
    {
        uccl_engine_mr_destroy(engine, memory.mr);
    }

    const char *name;
    uccl_engine_t *engine;

  private:
    void accept_all()
    {
        while (!stop) {
            char address[256];
            int gpu;
            uccl_conn_t *conn = uccl_engine_accept(engine, address, sizeof address, &gpu);
            if (!conn)
                continue;
            CHECK(uccl_engine_start_listener(conn) == 0);
            std::lock_guard<std::mutex> guard(lock);
            connections[address] = conn;
        }
    }
    std::atomic<bool> stop{false};
    std::thread listener;
    std::mutex lock;
    std::map<std::string, uccl_conn_t *> connections;
};

/* ---- transfers --------------------------------------------------------------------------------- */

struct Piece {
    size_t local, remote, size;
};

/* Returns 0 and the number of the transfer, as prepXfer() and postXfer() of the plugin come to it. */
int post(bool write, uccl_conn_t *conn, const Memory &memory, const Remote &remote, const std::vector<Piece> &pieces,
         uint64_t *number)
{
    std::vector<uccl_mr_t> mrs;
    std::vector<void *> local;
    std::vector<size_t> sizes;
    std::vector<FifoItem> items(pieces.size());
    CHECK(!uccl_engine_conn_is_local(conn));
    for (size_t i = 0; i < pieces.size(); i++) {
        deserialize_fifo_item(remote.fifo, &items[i]);
        CHECK(uccl_engine_update_fifo(items[i], remote.at + pieces[i].remote, static_cast<uint32_t>(pieces[i].size)) ==
              0);
        mrs.push_back(memory.mr);
        local.push_back(memory.at + pieces[i].local);
        sizes.push_back(pieces[i].size);
    }
    return (write ? uccl_engine_write_vector : uccl_engine_read_vector)(conn, mrs, local, sizes, items,
                                                                        static_cast<int>(pieces.size()), number, {});
}

int notify(uccl_conn_t *conn, const char *name, const std::string &text)
{
    notify_msg_t message = {};
    snprintf(message.name, sizeof message.name, "%s", name);
    memcpy(message.msg, text.data(), text.size());
    return uccl_engine_send_notif(conn, &message);
}

/* A transfer and its notification. */
void move(bool write, uccl_conn_t *conn, const Agent &agent, const Memory &memory, const Remote &remote,
          const std::vector<Piece> &pieces, const std::string &text)
{
    uint64_t number = 0;
    CHECK(post(write, conn, memory, remote, pieces, &number) == 0);
    CHECK(soon([&] { return uccl_engine_xfer_status(conn, number); }));
    CHECK(uccl_engine_xfer_status(conn, number)); /* it stays so */
    CHECK(notify(conn, agent.name, text) == 0);
}

std::vector<notify_msg_t> &taken = *new std::vector<notify_msg_t>;

/* Takes what has come; returns the next one's text. */
std::string next_notification(const char *from)
{
    static size_t next;
    CHECK(soon([] {
        for (const notify_msg_t &message : uccl_engine_get_notifs())
            taken.push_back(message);
        return taken.size() > next;
    }));
    const notify_msg_t &message = taken[next++];
    CHECK(strcmp(message.name, from) == 0);
    return std::string(message.msg, strnlen(message.msg, MSG_SIZE));
}

void fill(const Memory &memory, unsigned seed)
{
    for (size_t i = 0; i < memory.size; i++)
        memory.at[i] = static_cast<unsigned char>(i * 31 + i / 251 + seed);
}

bool is_filled(const Memory &memory, unsigned seed)
{
    for (size_t i = 0; i < memory.size; i++)
        if (memory.at[i] != static_cast<unsigned char>(i * 31 + i / 251 + seed))
            return false;
    return true;
}

/* ---- the cases: one side begins the transfers, the other only has memory ------------------------ */

using Side = void (*)(Agent &, const Pipe &);

/* Metadata goes to both sides, and each connects, as NIXL's agents do. */
uccl_conn_t *get_known(Agent &agent, const Pipe &pipe, const char *peer)
{
    pipe.say(metadata_of(agent.engine));
    uccl_conn_t *conn = agent.connect(peer, pipe.hear());
    CHECK(conn);
    CHECK(soon([&] { return agent.connected() == 2; })); /* its own, and the peer's */
    pipe.meet();
    return conn;
}

void write_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = get_known(agent, pipe, "target");
    Memory memory = agent.reg(MIB);
    Remote remote(pipe.hear());
    fill(memory, 1);
    move(true, conn, agent, memory, remote, {{0, 0, MIB}}, "written");
    pipe.meet();
    fill(memory, 3);
    move(false, conn, agent, memory, remote, {{0, 0, MIB}}, "read");
    CHECK(is_filled(memory, 2));
    pipe.meet();
    agent.dereg(memory);
}
void write_has(Agent &agent, const Pipe &pipe)
{
    get_known(agent, pipe, "initiator");
    Memory memory = agent.reg(MIB);
    pipe.say(memory.description());
    CHECK(next_notification("initiator") == "written");
    CHECK(is_filled(memory, 1));
    fill(memory, 2);
    pipe.meet();
    CHECK(next_notification("initiator") == "read");
    CHECK(is_filled(memory, 2));
    pipe.meet();
    agent.dereg(memory);
}

/* A thousand pieces, in another order at the other side. */
void vector_begins(Agent &agent, const Pipe &pipe)
{
    constexpr size_t COUNT = 1000, SIZE = 512;
    uccl_conn_t *conn = get_known(agent, pipe, "target");
    Memory memory = agent.reg(COUNT * SIZE), back = agent.reg(COUNT * SIZE);
    Remote remote(pipe.hear());
    std::vector<Piece> pieces;
    for (size_t i = 0; i < COUNT; i++)
        pieces.push_back({i * SIZE, i * 7 % COUNT * SIZE, SIZE});
    fill(memory, 5);
    move(true, conn, agent, memory, remote, pieces, "");
    move(false, conn, agent, back, remote, pieces, "done");
    CHECK(memcmp(back.at, memory.at, COUNT * SIZE) == 0);
    std::vector<Piece> none;
    move(true, conn, agent, memory, remote, none, "");
    pipe.meet(); /* the target has looked at what the next ones write over */
    /* transfers that nobody asks for hold up nothing */
    for (int i = 0; i < 300; i++) {
        uint64_t number;
        CHECK(post(true, conn, memory, remote, {{0, 0, 4096}, {5000, 5000, 4096}}, &number) == 0);
    }
    long begin_ms = now_ms();
    agent.dereg(memory);
    CHECK(now_ms() - begin_ms < LIMIT_MS);
    CHECK(notify(conn, agent.name, "forgotten") == 0);
    pipe.meet();
}
void vector_has(Agent &agent, const Pipe &pipe)
{
    constexpr size_t COUNT = 1000, SIZE = 512;
    get_known(agent, pipe, "initiator");
    Memory memory = agent.reg(COUNT * SIZE);
    pipe.say(memory.description());
    CHECK(next_notification("initiator") == "");
    for (size_t i = 0; i < COUNT * SIZE; i++) {
        size_t from = i / SIZE * 143 % COUNT * SIZE + i % SIZE; /* 7 * 143 is 1 modulo 1000 */
        CHECK(memory.at[i] == static_cast<unsigned char>(from * 31 + from / 251 + 5));
    }
    CHECK(next_notification("initiator") == "done");
    CHECK(next_notification("initiator") == "");
    pipe.meet();
    CHECK(next_notification("initiator") == "forgotten");
    pipe.meet();
}

/* More notifications than anybody has room for at once, of a peer that takes its time; each once, in order, whole. */
constexpr int MANY = 20000;
void notify_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = get_known(agent, pipe, "target");
    for (int i = 0; i < MANY; i++)
        CHECK(notify(conn, "initiator", std::to_string(i)) == 0);
    CHECK(notify(conn, "initiator", std::string(MSG_SIZE, 'x')) == 0);
    notify_msg_t full = {};
    memset(full.name, 'n', MSG_SIZE); /* without its end */
    strcpy(full.msg, "b");
    CHECK(uccl_engine_send_notif(conn, &full) == 0);
    notify_msg_t holes = {};
    strcpy(holes.name, "initiator");
    memcpy(holes.msg, "a\0b", 3);
    CHECK(uccl_engine_send_notif(conn, &holes) == 0);
    pipe.meet();
}
void notify_has(Agent &agent, const Pipe &pipe)
{
    get_known(agent, pipe, "initiator");
    usleep(700000);
    for (int i = 0; i < MANY; i++)
        CHECK(next_notification("initiator") == std::to_string(i));
    CHECK(next_notification("initiator") == std::string(MSG_SIZE, 'x'));
    CHECK(next_notification(std::string(MSG_SIZE - 1, 'n').c_str()) == "b");
    CHECK(next_notification("initiator") == "a");
    CHECK(memcmp(taken.back().msg, "a\0b\0", 4) == 0);
    pipe.meet();
    CHECK(uccl_engine_get_notifs().empty());
}

/* An agent that is its own peer. */
void self_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = agent.connect("initiator", metadata_of(agent.engine), true);
    CHECK(conn);
    Memory from = agent.reg(100000), to = agent.reg(100000);
    fill(from, 9);
    move(true, conn, agent, from, Remote(to.description()), {{0, 0, 100000}}, "self");
    CHECK(is_filled(to, 9));
    CHECK(next_notification("initiator") == "self");
    pipe.meet();
}
void self_has(Agent &, const Pipe &pipe)
{
    pipe.meet();
}

/* Memory that is no export any more: the transfer never completes, and the connection tells it by failing. */
void stale_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = get_known(agent, pipe, "target");
    Memory memory = agent.reg(MIB);
    Remote remote(pipe.hear());
    uint64_t number = 0, other = 0;
    move(true, conn, agent, memory, remote, {{0, 0, MIB}}, "");
    pipe.say("take it away");
    CHECK(pipe.hear() == "it is away");
    CHECK(post(true, conn, memory, remote, {{0, 0, MIB}}, &number) == 0);
    CHECK(soon([&] {
        CHECK(!uccl_engine_xfer_status(conn, number));
        return post(true, conn, memory, remote, {{0, 0, 1}}, &other) == -1;
    }));
    CHECK(!uccl_engine_xfer_status(conn, number));
    CHECK(notify(conn, "initiator", "late") == -1);
    /* a new connection works */
    agent.disconnect("target");
    CHECK(post(true, conn, memory, remote, {{0, 0, 1}}, &other) == -1);
    CHECK(!uccl_engine_xfer_status(conn, number) && notify(conn, "initiator", "late") == -1);
    conn = agent.connect("target", pipe.hear());
    CHECK(conn);
    move(true, conn, agent, memory, Remote(pipe.hear()), {{0, 0, MIB}}, "again");
    pipe.meet();
}
void stale_has(Agent &agent, const Pipe &pipe)
{
    get_known(agent, pipe, "initiator");
    Memory memory = agent.reg(MIB), other = agent.reg(MIB);
    pipe.say(memory.description());
    CHECK(pipe.hear() == "take it away");
    agent.dereg(memory);
    CHECK(mprotect(memory.at, memory.size, PROT_NONE) == 0); /* whoever touches it from here on dies */
    pipe.say("it is away");
    pipe.say(metadata_of(agent.engine));
    pipe.say(other.description());
    CHECK(next_notification("initiator") == "");
    CHECK(next_notification("initiator") == "again");
    pipe.meet();
}

/* The same while writes are under way, over and over. */
void revoke_begins(Agent &agent, const Pipe &pipe)
{
    Memory memory = agent.reg(MIB);
    for (int round = 0; round < 5; round++) {
        uccl_conn_t *conn = round == 0 ? get_known(agent, pipe, "target") : agent.connect("target", pipe.hear());
        CHECK(conn);
        Remote remote(pipe.hear());
        uint64_t number;
        while (post(true, conn, memory, remote, {{0, 0, MIB}}, &number) == 0)
            ; /* and never asked for */
        agent.disconnect("target");
        pipe.meet();
    }
}
void revoke_has(Agent &agent, const Pipe &pipe)
{
    for (int round = 0; round < 5; round++) {
        if (round == 0)
            get_known(agent, pipe, "initiator");
        else
            pipe.say(metadata_of(agent.engine));
        Memory memory = agent.reg(MIB);
        pipe.say(memory.description());
        usleep(20000 + 7000 * static_cast<unsigned>(round));
        agent.dereg(memory);
        CHECK(mprotect(memory.at, memory.size, PROT_NONE) == 0);
        pipe.meet();
    }
}

/* The peer is killed. */
void kill_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = get_known(agent, pipe, "target");
    Memory memory = agent.reg(MIB);
    Remote remote(pipe.hear());
    uint64_t number = 0;
    pipe.say("end");
    CHECK(soon([&] { return post(true, conn, memory, remote, {{0, 0, MIB}}, &number) == -1; }));
    CHECK(!uccl_engine_xfer_status(conn, number));
    agent.dereg(memory);
}
void kill_has(Agent &agent, const Pipe &pipe)
{
    get_known(agent, pipe, "initiator");
    Memory memory = agent.reg(MIB);
    pipe.say(memory.description());
    CHECK(pipe.hear() == "end");
    kill(getpid(), SIGKILL);
}

/* What makes no sense fails; nothing falls over. */
void wrong_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = get_known(agent, pipe, "target"), *none = reinterpret_cast<uccl_conn_t *>(12345678);
    Memory memory = agent.reg(4096);
    Remote remote(pipe.hear());
    uint64_t number = 0;
    char *text = nullptr, fifo[FIFO_SIZE];
    uccl_mr_t mr;
    CHECK(!uccl_engine_connect(agent.engine, "127.0.0.1", "0000:18:00.0", 1));
    CHECK(!uccl_engine_connect(agent.engine, "127.0.0.1", "", 70000));
    CHECK(!uccl_engine_connect(nullptr, "127.0.0.1", "", 1));
    CHECK(uccl_engine_get_metadata(nullptr, &text) == -1 && uccl_engine_reg(nullptr, 0, 1, mr) == -1);
    CHECK(uccl_engine_prepare_fifo(agent.engine, 12345, memory.at, 1, fifo) == -1);
    CHECK(post(true, none, memory, remote, {{0, 0, 1}}, &number) == -1 && !uccl_engine_xfer_status(none, 1));
    CHECK(notify(none, "", "") == -1 && uccl_engine_start_listener(none) == -1);
    CHECK(!uccl_engine_xfer_status(conn, 0) && !uccl_engine_xfer_status(conn, 1));
    CHECK(uccl_engine_write_vector(conn, {memory.mr}, {}, {1}, {FifoItem{}}, 1, &number) == -1);
    CHECK(uccl_engine_write_vector(conn, {memory.mr}, {memory.at}, {1}, {FifoItem{}}, 1, &number) == -1);
    CHECK(uccl_engine_write_vector(conn, {}, {}, {}, {}, -1, &number) == -1);
    FifoItem item;
    deserialize_fifo_item(remote.fifo, &item);
    for (unsigned shorter = 0; shorter < 4; shorter++) {
        auto length = [&](unsigned list) { return list == shorter ? 1u : 2u; };
        CHECK(uccl_engine_write_vector(conn, std::vector<uccl_mr_t>(length(0), memory.mr),
                                       std::vector<void *>(length(1), memory.at), std::vector<size_t>(length(2), 1),
                                       std::vector<FifoItem>(length(3), item), 2, &number) == -1);
    }
    Memory unknown = memory;
    unknown.mr = 777;
    CHECK(post(true, conn, unknown, remote, {{0, 0, 1}}, &number) == -1);
    CHECK(post(true, conn, memory, remote, {{memory.size, 0, 1}}, &number) == -1);
    uccl_engine_mr_destroy(agent.engine, 777);
    uccl_engine_conn_destroy(none);
    uccl_engine_destroy(nullptr);
    /* none of that has failed the connection */
    move(true, conn, agent, memory, remote, {{0, 0, 4096}}, "ok");
    /* a child of fork() cannot use what it has inherited, but what it makes itself; and it may end */
    pid_t child = fork();
    if (child == 0) {
        CHECK(post(true, conn, memory, remote, {{0, 0, 1}}, &number) == -1 && uccl_engine_get_notifs().empty());
        uccl_engine_conn_destroy(conn);
        uccl_engine_destroy(agent.engine);
        uccl_engine_t *own = uccl_engine_create(1, true);
        CHECK(own && own != agent.engine && uccl_engine_get_metadata(own, &text) == 0);
        delete[] text;
        int nobody[2]; /* reads what is told */
        CHECK(::pipe(nobody) == 0 && dup2(nobody[1], STDERR_FILENO) == STDERR_FILENO && close(nobody[0]) == 0);
        signal(SIGPIPE, SIG_DFL);
        CHECK(!uccl_engine_connect(own, "127.0.0.1", "", 70000));
        uccl_engine_destroy(own);
        _exit(7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    move(true, conn, agent, memory, remote, {{0, 0, 4096}}, "still ok");
    pipe.meet();
}
void wrong_has(Agent &agent, const Pipe &pipe)
{
    get_known(agent, pipe, "initiator");
    Memory memory = agent.reg(4096);
    pipe.say(memory.description());
    CHECK(next_notification("initiator") == "ok");
    CHECK(next_notification("initiator") == "still ok");
    pipe.meet();
}

/* Notifications of a stranger, which are none of NIXL's: too long, empty, with a name that goes beyond the end. */
void stranger_begins(Agent &agent, const Pipe &pipe)
{
    uccl_conn_t *conn = get_known(agent, pipe, "target");
    std::string at = pipe.hear(), bytes(UCCL_NOTIFY_MAX, 'x');
    size_t colon = at.find(':');
    uccl_engine *engine;
    uccl_handle handle;
    uccl_conn *plain;
    CHECK(uccl_open(nullptr, &engine) == 0);
    std::string host = at.substr(0, colon);
    std::replace(host.begin(), host.end(), '-', ':');
    CHECK(uccl_handle_from_address(host.c_str(), static_cast<uint16_t>(std::stoul(at.substr(colon + 1))), &handle) ==
          0);
    CHECK(uccl_connect(engine, &handle, -1, &plain) == 0);
    for (size_t length : {bytes.size(), size_t(0), size_t(513), size_t(2)}) {
        uccl_request *request;
        CHECK(uccl_notify_async(plain, bytes.data(), length, &request) == 0);
        CHECK(uccl_wait(request, LIMIT_MS, nullptr) == 0);
    }
    CHECK(notify(conn, "initiator", "of a friend") == 0);
    pipe.meet();
    uccl_close(engine);
}
void stranger_has(Agent &agent, const Pipe &pipe)
{
    get_known(agent, pipe, "initiator");
    pipe.say(metadata_of(agent.engine));
    CHECK(next_notification("initiator") == "of a friend");
    pipe.meet();
    CHECK(uccl_engine_get_notifs().empty());
}

/* The signals that each thread blocks, by its number. */
std::map<int, unsigned long long> blocked_signals()
{
    std::map<int, unsigned long long> out;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream status(entry.path() / "status");
        for (std::string line; std::getline(status, line);)
            if (line.rfind("SigBlk:", 0) == 0)
                out[std::stoi(entry.path().filename())] = std::stoull(line.substr(7), nullptr, 16);
    }
    return out;
}

/* The library's threads leave the signals of the process to the application, and faults to themselves. */
void signals_begins(Agent &, const Pipe &pipe)
{
    auto bit = [](int number) { return 1ull << (number - 1); };
    auto before = blocked_signals();
    uccl_engine_t *engine = uccl_engine_create(2, true);
    CHECK(engine && blocked_signals().at(getpid()) == before.at(getpid()));
    CHECK(soon([&] { /* one that is just beginning blocks all */
                     unsigned right = 0, others = 0;
                     for (auto &[thread, blocked] : blocked_signals()) {
                         others += before.count(thread) == 0;
                         right += before.count(thread) == 0 && blocked & bit(SIGTERM) && blocked & bit(SIGUSR1) &&
                                  !(blocked & bit(SIGSEGV));
                     }
                     return others >= 2 && right == others;
    }));
    uccl_engine_destroy(engine);
    pipe.meet();
}
void signals_has(Agent &, const Pipe &pipe)
{
    pipe.meet();
}

const struct {
    const char *name;
    Side begins, has;
    bool killed;
} CASES[] = {
    {"a write, a read, and their notifications", write_begins, write_has, false},
    {"vectors of a thousand pieces", vector_begins, vector_has, false},
    {"notifications arrive once and in order, also where they wait", notify_begins, notify_has, false},
    {"an agent that connects to itself", self_begins, self_has, false},
    {"a registration that has ended fails a transfer and its connection", stale_begins, stale_has, false},
    {"registrations end while writes are under way", revoke_begins, revoke_has, false},
    {"a peer that is killed", kill_begins, kill_has, true},
    {"calls that make no sense, and fork", wrong_begins, wrong_has, false},
    {"notifications of a stranger", stranger_begins, stranger_has, false},
    {"its threads take no signals", signals_begins, signals_has, false},
};

bool side(Side run, const char *name, const Pipe &pipe)
{
    pid_t child = fork();
    if (child > 0)
        return true;
    alarm(60);
    {
        Agent agent(name);
        run(agent, pipe);
    }
    _exit(child < 0 ? 1 : 0);
}

} // namespace

int main(int argc, char **argv)
{
    constexpr int COUNT = sizeof CASES / sizeof CASES[0];
    bool name = argc == 3 && strcmp(argv[1], "name") == 0;
    int number = argc > 1 ? atoi(argv[argc - 1]) : 0, one[2], other[2], wrong = 0, status;
    CHECK(number >= 1 && number <= COUNT);
    const auto &chosen = CASES[number - 1];
    if (name)
        return puts(chosen.name) < 0;
    setenv("UCCL_DEAD_PEER_MS", "2000", 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK(pipe(one) == 0 && pipe(other) == 0);
    side(chosen.begins, "initiator", {one[0], other[1]});
    side(chosen.has, "target", {other[0], one[1]});
    for (int descriptor : {one[0], one[1], other[0], other[1]})
        close(descriptor);
    while (wait(&status) > 0)
        wrong += !(WIFEXITED(status) && WEXITSTATUS(status) == 0) &&
                 !(chosen.killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return wrong != 0;
}
