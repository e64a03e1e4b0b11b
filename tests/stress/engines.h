/* SPDX-License-Identifier: Apache-2.0 */
/* Two engines in one process, or one twice, for the stress programs; public calls only. */
#ifndef UCCL_STRESS_ENGINES_H
#define UCCL_STRESS_ENGINES_H

#include "stress.h"
#include "uccl/engine.h"

#include <stdarg.h>
#include <string.h>

#define OK(expression)                                                                                                 \
    do {                                                                                                               \
        int ok_ = (expression);                                                                                        \
        CHECK(ok_ == 0, "%s: %s", #expression, uccl_strerror(ok_));                                                    \
    } while (0)

/* An engine on loopback with these settings, each a name and a value; then NULL. */
static inline uccl_engine *engine_open_with(const char *name, ...)
{
    uccl_config *config;
    uccl_engine *engine;
    va_list settings;
    OK(uccl_config_create(&config));
    OK(uccl_config_set(config, "SOCKET_IFNAME", "lo"));
    va_start(settings, name);
    for (; name; name = va_arg(settings, const char *))
        OK(uccl_config_set(config, name, va_arg(settings, const char *)));
    va_end(settings);
    OK(uccl_open(config, &engine));
    uccl_config_destroy(config);
    return engine;
}

static inline uccl_engine *engine_open(const char *lend, const char *spin_us)
{
    return engine_open_with("LEND", lend, "SPIN_US", spin_us, "LINGER_MS", "500", NULL);
}

/* Connects `a` to `b`'s listener; conn[0] is of `a`. */
static inline void engines_connect(uccl_engine *a, struct uccl_handle *handle, uccl_listener *listener,
                                   uccl_conn *conn[2])
{
    int connected = UCCL_EAGAIN, accepted = UCCL_EAGAIN;
    uint64_t end_ns = now_ns() + UINT64_C(20000000000);
    while (connected == UCCL_EAGAIN || accepted == UCCL_EAGAIN) {
        if (connected == UCCL_EAGAIN)
            connected = uccl_connect(a, handle, 0, &conn[0]);
        if (accepted == UCCL_EAGAIN)
            accepted = uccl_accept(listener, 0, &conn[1]);
        CHECK(now_ns() < end_ns, "connect %d, accept %d", connected, accepted);
    }
    OK(connected);
    OK(accepted);
}

#endif
