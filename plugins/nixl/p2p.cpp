/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libuccl_p2p.so: the names of uccl_engine.h, over the public API. NIXL keeps handles after it has destroyed their
 * objects, polls transfers or forgets them, and may never ask for its notifications. So handles are numbers that are
 * looked up, each connection keeps its pending requests, and a thread per engine accepts connections and takes
 * notifications, which would else hold up the peers that send them.
 *
 * Locks, in this order: Engine::use, Connection::lock, then one of the others, which are held for moments only.
 */
#include "deaf.hpp"
#include "line.hpp"
#include "packed.hpp"
#include "uccl/engine.h"
#include "uccl_engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

static_assert(sizeof(FifoItem) == FIFO_SIZE, "NIXL copies as many bytes");
static_assert(sizeof(FifoItem::reference) >= UCCL_REF_BYTES, "a reference must fit");

namespace
{

using Reference = std::array<uint8_t, UCCL_REF_BYTES>;
using Request = uccl_request *;

constexpr int IDLE_MS = 100;                /* between two looks for notifications */
constexpr int BUSY_MS = 2;                  /* the same, where the last look has found some */
constexpr int ROOM_MS = 10000;              /* how long a call waits for a peer that makes no room */
constexpr int CLOSE_MS = 2000;              /* how long transfers of a closed connection are waited for, together */
constexpr int REVOKE_MS = 1000;             /* one attempt of those that end a registration */
constexpr unsigned DEREGISTER_TOLD = 10000; /* attempts of those, between two lines that tell of them */
constexpr size_t INBOX_MAX = 1u << 20;      /* notifications that nobody takes; more wait at their senders */
constexpr size_t IMPORTED_MAX = 1024;       /* references that a connection keeps between two calls */
constexpr size_t REAP_FROM = 64;            /* pending requests from which completed ones are looked for */

struct Registration {
    uccl_mr *mr;
    uccl_export *exported;
    Reference reference;
};

/* A reference as a connection uses it. */
struct Imported {
    uccl_remote *remote;
    uint64_t address; /* of its first byte, at the peer */
};

struct Engine {
    std::shared_mutex use;       /* shared: `uccl` stays open */
    uccl_engine *uccl = nullptr; /* nullptr: destroyed */
    uccl_listener *listener = nullptr;
    uccl_handle handle = {};
    std::thread server;
    std::atomic<bool> closing{false};
    std::mutex lock; /* of what follows */
    std::condition_variable changed;
    bool stopped = false;
    std::list<std::pair<uccl_conn_t *, std::string>> accepted; /* and the addresses of their peers */
    uccl_mr_t last_registration = 0;
    std::map<uccl_mr_t, Registration> registrations;
};

struct Connection {
    std::shared_ptr<Engine> engine;
    std::mutex lock;           /* of what follows */
    uccl_conn *uccl = nullptr; /* nullptr: destroyed */
    bool failed = false;       /* a transfer or a notification has failed */
    uint64_t posted = 0;       /* transfers so far: they are numbered from 1 */
    std::unordered_map<uint64_t, Request> pending;
    std::unordered_set<uint64_t> lost; /* transfers that have failed: at most those that were pending at the first */
    std::deque<Request> notifications;
    std::map<Reference, Imported> imported;
    size_t reap_at = REAP_FROM;
    /* Pending transfers need no imported reference. */
    void forget_imported()
    {
        for (auto &entry : imported)
            uccl_remote_free(entry.second.remote);
        imported.clear();
    }
    ~Connection()
    {
        forget_imported();
    }
};

/* What a process has; never freed, since threads may use it while the process ends. */
struct Tables {
    std::mutex lock;
    uintptr_t last = 0;
    std::unordered_map<uintptr_t, std::shared_ptr<Engine>> engines;
    std::unordered_map<uintptr_t, std::shared_ptr<Connection>> connections;
};
struct Inbox {
    std::mutex lock; /* also of uccl_notify_next(): what one thread takes first stands before what another takes */
    std::deque<std::string> messages; /* as pack() has made them */
};
Tables *tables = new Tables;
Inbox *inbox = new Inbox;

/* A child of fork() begins anew, as locks may be held for ever there, without engines. No old handle comes again. */
__attribute__((constructor)) void watch_forks()
{
    pthread_atfork(nullptr, nullptr, [] {
        uintptr_t last = tables->last;
        tables = new Tables;
        tables->last = last;
        inbox = new Inbox;
    });
}

__attribute__((format(printf, 1, 2))) void warn(const char *format, ...)
{
    char line[512] = "uccl_p2p: ";
    size_t begin = strlen(line), room = sizeof line - begin - 1; /* a newline follows */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + begin, room, format, arguments);
    va_end(arguments);
    strcat(line, "\n");
    write_line(line);
}

/* Runs `body`; returns `failure` where memory or threads have run out. */
template <typename Result, typename Body> Result guarded(Result failure, Body body)
{
    try {
        return body();
    } catch (const std::exception &error) {
        warn("out of memory or threads: %s", error.what());
        return failure;
    }
}

/* ---- handles --------------------------------------------------------------------------------- */

template <typename Handle, typename Object>
Handle *hand_out(std::unordered_map<uintptr_t, std::shared_ptr<Object>> &table, std::shared_ptr<Object> object)
{
    std::lock_guard<std::mutex> guard(tables->lock);
    table.emplace(++tables->last, std::move(object));
    return reinterpret_cast<Handle *>(tables->last);
}

template <typename Object>
std::shared_ptr<Object> find(std::unordered_map<uintptr_t, std::shared_ptr<Object>> &table, const void *handle,
                             bool remove = false)
{
    std::lock_guard<std::mutex> guard(tables->lock);
    auto found = table.find(reinterpret_cast<uintptr_t>(handle));
    if (found == table.end())
        return nullptr;
    std::shared_ptr<Object> object = found->second;
    if (remove)
        table.erase(found);
    return object;
}

/* Runs `body` on an engine that stays open meanwhile, or returns -1. */
template <typename Body> int with_engine(uccl_engine_t *handle, Body body)
{
    return guarded(-1, [&] {
        std::shared_ptr<Engine> engine = find(tables->engines, handle);
        if (!engine)
            return -1;
        std::shared_lock<std::shared_mutex> use(engine->use);
        return engine->uccl ? body(engine) : -1;
    });
}

/* Runs `body` on a connection under its lock, or returns -1. */
template <typename Body> int with_connection(uccl_conn_t *handle, Body body)
{
    return guarded(-1, [&] {
        std::shared_ptr<Connection> connection = find(tables->connections, handle);
        if (!connection)
            return -1;
        std::lock_guard<std::mutex> guard(connection->lock);
        return connection->uccl ? body(*connection) : -1;
    });
}

/* ---- notifications --------------------------------------------------------------------------- */

/*
 * Takes what has arrived at an open engine, as far as there is room; returns whether something had. There is a place
 * for each before it is taken: where memory is short it waits.
 */
bool take_notifications(const Engine &engine)
{
    bool some = false;
    std::lock_guard<std::mutex> guard(inbox->lock);
    while (inbox->messages.size() < INBOX_MAX) {
        size_t length = 0;
        int error = uccl_notify_next(engine.uccl, nullptr, 0, &length, nullptr); /* takes an empty one */
        if (error == UCCL_ETRUNCATED) {
            std::string &next = inbox->messages.emplace_back(length, '\0');
            error = uccl_notify_next(engine.uccl, &next[0], length, &length, nullptr); /* or one behind it */
            next.resize(error ? 0 : length);
            if (!is_packed(next))
                inbox->messages.pop_back();
        }
        if (error && error != UCCL_ETRUNCATED)
            break;
        some = true;
    }
    return some;
}

/* ---- connections, under their locks ---------------------------------------------------------- */

void note_failure(Connection &connection, const char *what, int error)
{
    char peer[128] = "a peer";
    uccl_conn_peer(connection.uccl, peer, sizeof peer);
    if (!connection.failed)
        warn("%s: a %s has failed: %s; from now on all fail on this connection", peer, what, uccl_strerror(error));
    connection.failed = true;
}

/* Has a pending transfer ended in any way? */
bool transfer_ended(Connection &connection, uint64_t number, Request request)
{
    int done = 0, error = uccl_test(request, &done, nullptr);
    if (error) {
        connection.lost.insert(number);
        note_failure(connection, "transfer", error);
    }
    return error || done;
}

/* Collects notifications, and transfers that have ended, of which some are never asked for. */
void reap(Connection &connection)
{
    for (auto at = connection.pending.begin(); at != connection.pending.end();)
        at = transfer_ended(connection, at->first, at->second) ? connection.pending.erase(at) : std::next(at);
    while (!connection.notifications.empty() && connection.notifications.front()) {
        int done = 0, error = uccl_test(connection.notifications.front(), &done, nullptr);
        if (!error && !done)
            break;
        connection.notifications.pop_front();
        if (error)
            note_failure(connection, "notification", error);
    }
}

/*
 * Posts by `post`, which is called again while there is no room. Returns 0 or an error. An error of the call alone
 * leaves the connection as it was.
 */
template <typename Post> int post_when_room(Connection &connection, const char *what, Post post)
{
    auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ROOM_MS);
    if (connection.pending.size() + connection.notifications.size() >= connection.reap_at) {
        reap(connection);
        connection.reap_at = std::max(REAP_FROM, 2 * (connection.pending.size() + connection.notifications.size()));
    }
    while (!connection.failed) {
        int error = post();
        if (error == UCCL_EAGAIN && std::chrono::steady_clock::now() < until) {
            reap(connection);
            std::this_thread::sleep_for(std::chrono::microseconds(50));
            continue;
        }
        if (error == UCCL_EAGAIN)
            warn("no room for a %s within %d s: is the peer too busy to take any?", what, ROOM_MS / 1000);
        else if (error && uccl_conn_status(connection.uccl))
            note_failure(connection, what, error);
        else if (error) /* of this call alone */
            warn("a %s cannot be posted: %s", what, uccl_strerror(error));
        return error;
    }
    return UCCL_ECLOSED;
}

/* All its requests end, but those whose copies a GPU does not end; notifications that have come stay. */
void close_connection(Connection &connection)
{
    take_notifications(*connection.engine);
    uccl_conn_close(connection.uccl);
    bool hung = false;
    for (auto &entry : connection.pending)
        hung |= uccl_wait(entry.second, hung ? 0 : CLOSE_MS, nullptr) == UCCL_ETIMEDOUT;
    for (Request request : connection.notifications)
        hung |= uccl_wait(request, hung ? 0 : CLOSE_MS, nullptr) == UCCL_ETIMEDOUT;
    connection.uccl = nullptr;
    if (hung)
        warn("a connection is closed with transfers that do not end: a GPU does not end its copies");
}

uccl_conn_t *adopt(const std::shared_ptr<Engine> &engine, uccl_conn *uccl)
{
    auto connection = std::make_shared<Connection>();
    connection->engine = engine;
    connection->uccl = uccl;
    return hand_out<uccl_conn_t>(tables->connections, std::move(connection));
}

/* ---- engines --------------------------------------------------------------------------------- */

/* What allocates comes first, so that either all is done or nothing. */
void take_in(const std::shared_ptr<Engine> &engine, uccl_conn *uccl)
{
    char peer[128] = "";
    uccl_conn_peer(uccl, peer, sizeof peer);
    bool taken = guarded(false, [&] {
        std::list<std::pair<uccl_conn_t *, std::string>> one;
        one.emplace_back(nullptr, peer);
        one.front().first = adopt(engine, uccl);
        std::lock_guard<std::mutex> guard(engine->lock);
        engine->accepted.splice(engine->accepted.end(), one);
        engine->changed.notify_one();
        return true;
    });
    if (!taken)
        uccl_conn_abort(uccl);
}

/* The engine's own thread. */
void serve(const std::shared_ptr<Engine> engine)
{
    int wait_ms = IDLE_MS;
    while (!engine->closing) {
        uccl_conn *uccl;
        int error = uccl_accept(engine->listener, wait_ms, &uccl);
        if (!error)
            take_in(engine, uccl);
        else if (error != UCCL_ETIMEDOUT)
            std::this_thread::sleep_for(std::chrono::milliseconds(IDLE_MS));
        wait_ms = guarded(false, [&] { return take_notifications(*engine); }) ? BUSY_MS : IDLE_MS;
    }
}

void stop_accepting(Engine &engine)
{
    std::lock_guard<std::mutex> guard(engine.lock);
    engine.stopped = true;
    engine.changed.notify_all();
}

/* Ends the connections of an engine without waiting for each, then the engine. */
void close_engine(Engine &engine)
{
    std::unique_lock<std::shared_mutex> use(engine.use);
    std::vector<std::shared_ptr<Connection>> own;
    {
        std::lock_guard<std::mutex> guard(tables->lock);
        for (auto at = tables->connections.begin(); at != tables->connections.end();) {
            bool mine = at->second->engine.get() == &engine;
            if (mine)
                own.push_back(at->second);
            at = mine ? tables->connections.erase(at) : std::next(at);
        }
    }
    for (auto &connection : own) {
        std::lock_guard<std::mutex> guard(connection->lock);
        connection->uccl = nullptr;
    }
    uccl_close(engine.uccl);
    engine.uccl = nullptr;
}

/* One that may be open in part. */
void end_engine(Engine &engine)
{
    engine.closing = true;
    if (engine.server.joinable())
        engine.server.join();
    if (engine.uccl)
        close_engine(engine);
}

int open_engine(const std::shared_ptr<Engine> &engine)
{
    int error = uccl_open(nullptr, &engine->uccl);
    if (!error)
        error = uccl_listen(engine->uccl, -1, 0, &engine->handle, &engine->listener);
    if (error)
        return error;
    Deaf now;
    engine->server = std::thread(serve, engine);
    return UCCL_OK;
}

/* The hexadecimal digits of a listener, and back; false: these are none. */
std::string listener_text(const uccl_handle &handle)
{
    std::string text;
    char digits[3];
    for (uint8_t byte : handle.listener) {
        snprintf(digits, sizeof digits, "%02x", byte);
        text += digits;
    }
    return text;
}

bool listener_of(const char *text, uccl_handle &handle)
{
    handle = {};
    if (strspn(text, "0123456789abcdef") != 2 * sizeof handle.listener || text[2 * sizeof handle.listener] != '\0')
        return false;
    for (uint8_t &byte : handle.listener) {
        const char digits[] = {text[0], text[1], '\0'};
        byte = static_cast<uint8_t>(strtoul(digits, nullptr, 16));
        text += 2;
    }
    return true;
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* What a reference names, imported once; under the connection's lock. */
int import(Connection &connection, const FifoItem &item, Imported &out)
{
    Reference reference;
    memcpy(reference.data(), item.reference, reference.size());
    auto [at, fresh] = connection.imported.try_emplace(reference, Imported{});
    if (fresh) {
        uccl_remote_info info;
        int error = uccl_import(connection.uccl, reference.data(), &at->second.remote);
        if (error) {
            connection.imported.erase(at);
            return error;
        }
        uccl_remote_get_info(at->second.remote, &info);
        at->second.address = info.address;
    }
    out = at->second;
    return UCCL_OK;
}

/* nullptr: there is none. It stays valid while a transfer uses it. */
uccl_mr *registration_of(Engine &engine, uccl_mr_t mr)
{
    std::lock_guard<std::mutex> guard(engine.lock);
    auto found = engine.registrations.find(mr);
    return found == engine.registrations.end() ? nullptr : found->second.mr;
}

/* What a call of uccl_engine_write_vector() or uccl_engine_read_vector() has. */
struct Vector {
    const std::vector<uccl_mr_t> &mrs;
    const std::vector<void *> &local;
    const std::vector<size_t> &sizes;
    const std::vector<FifoItem> &items;
    size_t count;
};

bool pieces_of(Connection &connection, const Vector &vector, const char *what, std::vector<uccl_piece> &pieces)
{
    if (connection.imported.size() >= IMPORTED_MAX) /* nobody tells which of them the peer still has */
        connection.forget_imported();
    for (size_t i = 0; i < vector.count; i++) {
        Imported imported;
        uccl_mr *mr = registration_of(*connection.engine, vector.mrs[i]);
        int error = mr ? import(connection, vector.items[i], imported) : UCCL_EINVAL;
        if (error) {
            warn("%s: %s of piece %zu: %s", what, mr ? "the peer's registration" : "the registration here", i,
                 uccl_strerror(error));
            return false;
        }
        pieces.push_back(
            {vector.local[i], mr, vector.sizes[i], imported.remote, vector.items[i].address - imported.address});
    }
    return true;
}

using Transfer = int (*)(uccl_conn *, const uccl_piece *, size_t, const uccl_tail *, uccl_request **);

int post_vector(uccl_conn_t *handle, const char *what, Transfer transfer, const Vector &vector, int count,
                uint64_t *number)
{
    if (count < 0 || !number ||
        std::min({vector.mrs.size(), vector.local.size(), vector.sizes.size(), vector.items.size()}) < vector.count)
        return -1;
    return with_connection(handle, [&](Connection &connection) {
        std::vector<uccl_piece> pieces;
        Request request = nullptr;
        std::unordered_map<uint64_t, Request> one{
            {connection.posted + 1, nullptr}}; /* a posted request needs a place */
        connection.pending.reserve(connection.pending.size() + 1);
        if (!pieces_of(connection, vector, what, pieces) || post_when_room(connection, what, [&] {
                return transfer(connection.uccl, pieces.data(), pieces.size(), nullptr, &request);
            }))
            return -1;
        *number = ++connection.posted;
        one.begin()->second = request;
        connection.pending.insert(one.extract(one.begin()));
        return 0;
    });
}

} // namespace

/* ---- the names ------------------------------------------------------------------------------- */

uccl_engine_t *uccl_engine_create(int, bool)
{
    std::shared_ptr<Engine> engine;
    uccl_engine_t *out = guarded<uccl_engine_t *>(nullptr, [&]() -> uccl_engine_t * {
        engine = std::make_shared<Engine>();
        int error = open_engine(engine);
        if (!error)
            return hand_out<uccl_engine_t>(tables->engines, engine);
        warn("cannot open an engine: %s", uccl_strerror(error));
        return nullptr;
    });
    if (!out && engine)
        end_engine(*engine);
    return out;
}

void uccl_engine_destroy(uccl_engine_t *handle)
{
    guarded(-1, [&] {
        std::shared_ptr<Engine> engine = find(tables->engines, handle, true);
        if (!engine)
            return -1;
        stop_accepting(*engine);
        end_engine(*engine);
        return 0;
    });
}

int uccl_engine_get_metadata(uccl_engine_t *handle, char **metadata)
{
    return with_engine(handle, [&](const std::shared_ptr<Engine> &engine) {
        uccl_device device;
        if (!metadata || uccl_device_get(engine->uccl, 0, &device))
            return -1;
        std::string text = device.address;
        std::replace(text.begin(), text.end(), ':', '-'); /* NIXL looks for the first colon */
        text += ":" + std::to_string(uccl_listener_port(engine->listener)) + "?" + listener_text(engine->handle);
        *metadata = new char[text.size() + 1];
        memcpy(*metadata, text.c_str(), text.size() + 1);
        return 0;
    });
}

uccl_conn_t *uccl_engine_connect(uccl_engine_t *handle, const char *host, const char *listener, int port, bool)
{
    uccl_conn_t *out = nullptr;
    with_engine(handle, [&](const std::shared_ptr<Engine> &engine) {
        uccl_handle at;
        uccl_conn *uccl;
        int error = UCCL_OK;
        if (!listener || !listener_of(listener, at))
            error = host && port > 0 && port <= UINT16_MAX
                        ? uccl_handle_from_address(host, static_cast<uint16_t>(port), &at)
                        : UCCL_EINVAL;
        if (!error)
            error = uccl_connect(engine->uccl, &at, -1, &uccl);
        if (error) {
            warn("cannot connect to %s, port %d: %s", host ? host : "", port, uccl_strerror(error));
            return -1;
        }
        out = guarded<uccl_conn_t *>(nullptr, [&] { return adopt(engine, uccl); });
        if (!out)
            uccl_conn_abort(uccl);
        return 0;
    });
    return out;
}

uccl_conn_t *uccl_engine_accept(uccl_engine_t *handle, char *address, size_t address_size, int *gpu)
{
    return guarded<uccl_conn_t *>(nullptr, [&]() -> uccl_conn_t * {
        std::shared_ptr<Engine> engine = find(tables->engines, handle);
        if (!engine) {
            /* NIXL asks again and again until it is told to end */
            std::this_thread::sleep_for(std::chrono::milliseconds(IDLE_MS));
            return nullptr;
        }
        std::unique_lock<std::mutex> guard(engine->lock);
        engine->changed.wait(guard, [&] { return engine->stopped || !engine->accepted.empty(); });
        if (engine->stopped)
            return nullptr;
        auto [conn, peer] = engine->accepted.front();
        engine->accepted.pop_front();
        if (address && address_size > 0)
            snprintf(address, address_size, "%s", peer.c_str());
        if (gpu)
            *gpu = -1;
        return conn;
    });
}

void uccl_engine_stop_accept(uccl_engine_t *handle)
{
    guarded(-1, [&] {
        std::shared_ptr<Engine> engine = find(tables->engines, handle);
        if (engine)
            stop_accepting(*engine);
        return 0;
    });
}

int uccl_engine_start_listener(uccl_conn_t *handle)
{
    return with_connection(handle, [](Connection &) { return 0; });
}

void uccl_engine_conn_destroy(uccl_conn_t *handle)
{
    guarded(-1, [&] {
        std::shared_ptr<Connection> connection = find(tables->connections, handle, true);
        if (!connection)
            return -1;
        std::shared_lock<std::shared_mutex> use(connection->engine->use);
        std::lock_guard<std::mutex> guard(connection->lock);
        if (connection->uccl)
            close_connection(*connection);
        return 0;
    });
}

bool uccl_engine_conn_is_local(uccl_conn_t *)
{
    return false;
}

int uccl_engine_reg(uccl_engine_t *handle, uintptr_t data, size_t size, uccl_mr_t &out)
{
    return with_engine(handle, [&](const std::shared_ptr<Engine> &engine) {
        void *address = reinterpret_cast<void *>(data);
        std::map<uccl_mr_t, Registration> one; /* what is registered must find its place */
        Registration &made = one[0];
        int error = uccl_reg_mr(engine->uccl, address, size, UCCL_MEM_AUTO, &made.mr);
        if (!error) {
            error = uccl_export_mr(made.mr, address, size, UCCL_ACCESS_READ | UCCL_ACCESS_WRITE, made.reference.data(),
                                   &made.exported);
            if (error)
                uccl_dereg_mr(made.mr);
        }
        if (error) {
            warn("cannot register %zu bytes at %p: %s", size, address, uccl_strerror(error));
            return -1;
        }
        std::lock_guard<std::mutex> guard(engine->lock);
        auto node = one.extract(one.begin());
        node.key() = out = ++engine->last_registration;
        engine->registrations.insert(std::move(node));
        return 0;
    });
}

void uccl_engine_mr_destroy(uccl_engine_t *handle, uccl_mr_t mr)
{
    with_engine(handle, [&](const std::shared_ptr<Engine> &engine) {
        Registration registration;
        {
            std::lock_guard<std::mutex> guard(engine->lock);
            auto found = engine->registrations.find(mr);
            if (found == engine->registrations.end())
                return -1;
            registration = found->second;
            engine->registrations.erase(found);
        }
        /* both end at the latest when peers that do not answer are given up */
        while (uccl_revoke(registration.exported, REVOKE_MS) == UCCL_ETIMEDOUT)
            warn("memory is not free yet: a transfer of a peer is under way");
        for (unsigned tries = 1; uccl_dereg_mr(registration.mr) == UCCL_EAGAIN; tries++) {
            if (tries % DEREGISTER_TOLD == 0)
                warn("memory is not free yet: a transfer from here is under way");
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
        return 0;
    });
}

int uccl_engine_prepare_fifo(uccl_engine_t *handle, uccl_mr_t mr, const void *data, size_t size, char *fifo)
{
    return with_engine(handle, [&](const std::shared_ptr<Engine> &engine) {
        std::lock_guard<std::mutex> guard(engine->lock);
        auto found = engine->registrations.find(mr);
        if (found == engine->registrations.end() || !fifo)
            return -1;
        FifoItem item;
        memcpy(item.reference, found->second.reference.data(), sizeof item.reference);
        uccl_engine_update_fifo(item, reinterpret_cast<uintptr_t>(data), static_cast<uint32_t>(size));
        memcpy(fifo, &item, sizeof item);
        return 0;
    });
}

void deserialize_fifo_item(const char *fifo, FifoItem *item)
{
    memcpy(item, fifo, sizeof *item);
}

int uccl_engine_update_fifo(FifoItem &item, uint64_t address, uint32_t size)
{
    item.address = address;
    item.size = size;
    return 0;
}

int uccl_engine_get_ipc_info(uccl_engine_t *, uintptr_t, char *, bool *has_ipc)
{
    *has_ipc = false;
    return 0;
}

int uccl_engine_update_ipc_info(char *, uintptr_t, uintptr_t, size_t)
{
    return 0;
}

int uccl_engine_read_vector(uccl_conn_t *conn, std::vector<uccl_mr_t> mrs, std::vector<void *> local,
                            std::vector<size_t> sizes, std::vector<FifoItem> items, int count, uint64_t *transfer,
                            std::vector<char *>)
{
    return post_vector(conn, "read", uccl_read_async, {mrs, local, sizes, items, static_cast<size_t>(count)}, count,
                       transfer);
}

int uccl_engine_write_vector(uccl_conn_t *conn, std::vector<uccl_mr_t> mrs, std::vector<void *> local,
                             std::vector<size_t> sizes, std::vector<FifoItem> items, int count, uint64_t *transfer,
                             std::vector<char *>)
{
    return post_vector(conn, "write", uccl_write_async, {mrs, local, sizes, items, static_cast<size_t>(count)}, count,
                       transfer);
}

bool uccl_engine_xfer_status(uccl_conn_t *handle, uint64_t transfer)
{
    return with_connection(handle, [&](Connection &connection) {
               auto pending = connection.pending.find(transfer);
               if (pending != connection.pending.end()) {
                   if (!transfer_ended(connection, transfer, pending->second))
                       return 0;
                   connection.pending.erase(pending);
               }
               return transfer != 0 && transfer <= connection.posted && connection.lost.count(transfer) == 0 ? 1 : 0;
           }) == 1;
}

int uccl_engine_send_notif(uccl_conn_t *handle, notify_msg_t *message)
{
    return with_connection(handle, [&](Connection &connection) {
        uint8_t bytes[PACKED_MAX];
        Request request = nullptr;
        size_t length = pack(*message, bytes);
        connection.notifications.push_back(nullptr); /* a posted request must find its place */
        if (post_when_room(connection, "notification",
                           [&] { return uccl_notify_async(connection.uccl, bytes, length, &request); })) {
            connection.notifications.pop_back();
            return -1;
        }
        connection.notifications.back() = request;
        return 0;
    });
}

std::vector<notify_msg_t> uccl_engine_get_notifs()
{
    return guarded(std::vector<notify_msg_t>(), [] {
        std::vector<std::shared_ptr<Engine>> engines;
        {
            std::lock_guard<std::mutex> guard(tables->lock);
            for (auto &entry : tables->engines)
                engines.push_back(entry.second);
        }
        for (auto &engine : engines) {
            std::shared_lock<std::shared_mutex> use(engine->use);
            if (engine->uccl)
                take_notifications(*engine);
        }
        std::lock_guard<std::mutex> guard(inbox->lock);
        std::vector<notify_msg_t> out(inbox->messages.size());
        for (notify_msg_t &message : out) {
            unpack(inbox->messages.front(), message);
            inbox->messages.pop_front();
        }
        return out;
    });
}
