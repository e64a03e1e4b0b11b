/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same from C++17: small owners that close what they hold, errors as exceptions, and two
 * engines in one process, one per thread.
 *
 *   c++ -std=c++17 example.cpp -o example $(pkg-config --cflags --libs uccl-engine) -lpthread
 */
#include <cstdio>
#include <exception>
#include <future>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <uccl/engine.h>

namespace
{

void check(int result, const char *what)
{
    if (result < 0)
        throw std::runtime_error(std::string(what) + ": " + uccl_strerror(result));
}

// One owner type per handle: the deleter is the library's own close call.
template <typename T, int (*Close)(T *)> struct Closer {
    void operator()(T *handle) const
    {
        Close(handle);
    }
};
using Engine = std::unique_ptr<uccl_engine, Closer<uccl_engine, uccl_close>>;
using Listener = std::unique_ptr<uccl_listener, Closer<uccl_listener, uccl_listener_close>>;
using Connection = std::unique_ptr<uccl_conn, Closer<uccl_conn, uccl_conn_close>>;

Engine open_engine()
{
    // Settings win over the environment and the configuration file.
    uccl_config *config = nullptr;
    check(uccl_config_create(&config), "config_create");
    uccl_engine *engine = nullptr;
    int result = uccl_config_set(config, "NUM_ENGINES", "1");
    if (result == 0)
        result = uccl_open(config, &engine);
    uccl_config_destroy(config);
    check(result, "open");
    return Engine(engine);
}

size_t finish(uccl_request *request)
{
    size_t bytes = 0;
    check(uccl_wait(request, 10000, &bytes), "wait");
    return bytes;
}

// Receives numbers, as many as fit, and returns their sum.
long long receive(std::promise<uccl_handle> &where)
{
    Engine engine = open_engine();
    uccl_handle handle{};
    uccl_listener *listening = nullptr;
    check(uccl_listen(engine.get(), 0, 0, &handle, &listening), "listen");
    Listener listener(listening);
    where.set_value(handle);

    uccl_conn *accepted = nullptr;
    check(uccl_accept(listener.get(), 10000, &accepted), "accept");
    Connection connection(accepted);

    std::vector<int> numbers(1 << 20);
    uccl_request *request = nullptr;
    check(uccl_recv_async(connection.get(), numbers.data(), numbers.size() * sizeof(int), nullptr, &request),
          "recv_async");
    numbers.resize(finish(request) / sizeof(int));
    return std::accumulate(numbers.begin(), numbers.end(), 0LL);
}

void send(uccl_handle handle, const std::vector<int> &numbers)
{
    Engine engine = open_engine();
    uccl_conn *connected = nullptr;
    check(uccl_connect(engine.get(), &handle, 10000, &connected), "connect");
    Connection connection(connected);

    uccl_request *request = nullptr;
    check(uccl_send_async(connection.get(), numbers.data(), numbers.size() * sizeof(int), nullptr, &request),
          "send_async");
    finish(request); // the send has completed: the receiver has every byte
}

} // namespace

int main()
{
    try {
        std::vector<int> numbers(100000);
        std::iota(numbers.begin(), numbers.end(), 1);

        std::promise<uccl_handle> where;
        auto sum = std::async(std::launch::async, [&where] {
            try {
                return receive(where);
            } catch (...) {
                try { // the sender may be waiting for the handle
                    where.set_exception(std::current_exception());
                } catch (const std::future_error &) {
                }
                throw;
            }
        });
        send(where.get_future().get(), numbers);

        long long expected = 100000LL * 100001 / 2, got = sum.get();
        std::printf("sum of the numbers received: %lld, expected %lld\n", got, expected);
        return got == expected ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
