/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs that call libuccl_p2p.so share: checks that end the process, and connecting by metadata. */
#ifndef NIXL_ENDS_HPP
#define NIXL_ENDS_HPP

#include "uccl_engine.h"

#include <cstdio>
#include <string>
#include <time.h>
#include <unistd.h>

#define CHECK(condition) ((condition) ? (void)0 : fail(__LINE__, #condition))

namespace
{

[[noreturn]] inline void fail(int line, const char *what)
{
    fprintf(stderr, "# line %d, process %d: %s\n", line, getpid(), what);
    _exit(1);
}

inline long now_ms()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

inline std::string metadata_of(uccl_engine_t *engine)
{
    char *text = nullptr;
    CHECK(uccl_engine_get_metadata(engine, &text) == 0 && text);
    std::string metadata = text;
    delete[] text;
    return metadata;
}

/* As NIXL takes the metadata of a peer apart: HOST:PORT?GPU. */
inline uccl_conn_t *connect_by(const std::string &metadata, uccl_engine_t *engine, bool same_process)
{
    size_t colon = metadata.find(':'), mark = metadata.find('?', colon);
    CHECK(colon != std::string::npos && mark != std::string::npos);
    std::string host = metadata.substr(0, colon), gpu = metadata.substr(mark + 1);
    int port = std::stoi(metadata.substr(colon + 1, mark - colon - 1));
    return uccl_engine_connect(engine, host.c_str(), gpu.c_str(), port, same_process);
}

} // namespace

#endif
