#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# p2p_bench next to what a user would pick instead, in one run on this machine; see compare.py.
#
#   bench/compare.sh [--quick] [--networks lo,veth,...] [--sizes 256,1M,...] [--rounds N]
#
# Builds the library (build-bench, optimised) and the peers' small programs. Peers are used where
# they are installed: apt-get install ucx-utils iperf3 openmpi-bin libopenmpi-dev libfabric-dev
# ethtool clang libbpf-dev linux-perf. Networks other than lo need root, for their namespaces.
set -eu
cd "$(dirname "$0")/.."

case " $* " in
*" --help "* | *" -h "*) exec python3 bench/compare.py --help ;;
esac

BUILD=${BENCH_BUILD:-build-bench}
mkdir -p "$BUILD"
options=(--buildtype=release)
[ ! -f "$BUILD/build.ninja" ] || options+=(--reconfigure)
if ! { meson setup "$BUILD" "${options[@]}" && ninja -C "$BUILD"; } >"$BUILD/compare-build.log" 2>&1; then
    tail -n 40 "$BUILD/compare-build.log" >&2
    echo "compare: the build failed; all of it is in $BUILD/compare-build.log" >&2
    exit 1
fi

# peer NAME COMPILER...: builds one program; a peer whose headers are missing is left out, and the
# table says which package it wants
mkdir -p "$BUILD/peers"
peer() {
    local name=$1
    shift
    rm -f "$BUILD/peers/$name"
    "$@" -O2 -std=c11 -D_GNU_SOURCE -o "$BUILD/peers/$name" 2>"$BUILD/peers/$name.log" ||
        echo "compare: $name was not built (see $BUILD/peers/$name.log)" >&2
}
peer raw_udp cc bench/raw_udp.c
peer raw_tcp cc bench/raw_tcp.c
peer tcp_cubic.so cc -shared -fPIC bench/tcp_cubic.c -ldl
peer cores_apart cc bench/cores_apart.c -pthread
peer peer_ofi cc bench/peer_ofi.c -lfabric
if command -v mpicc >/dev/null; then
    peer peer_mpi mpicc bench/peer_mpi.c
fi
exec python3 bench/compare.py --build "$BUILD" "$@"
