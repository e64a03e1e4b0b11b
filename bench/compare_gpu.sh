#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# p2p_bench between two GPUs of this machine over UDP on loopback, next to host memory and to NCCL over
# sockets; see compare_gpu.py.
#
#   bench/compare_gpu.sh [--rounds N] [--seconds S] [--sizes 64K,1M,...] [--gpus 0,1]
#
# Builds the library (build-bench, optimised), unless P2P_BENCH names a p2p_bench. NCCL is used where python3
# has PyTorch with CUDA.
set -eu
cd "$(dirname "$0")/.."

if [ -z "${P2P_BENCH:-}" ] && [[ " $* " != *" --help "* && " $* " != *" -h "* ]]; then
    BUILD=${BENCH_BUILD:-build-bench}
    mkdir -p "$BUILD"
    options=(--buildtype=release)
    [ ! -f "$BUILD/build.ninja" ] || options+=(--reconfigure)
    if ! { meson setup "$BUILD" "${options[@]}" && ninja -C "$BUILD" bench/p2p_bench; } >"$BUILD/compare-build.log" 2>&1; then
        tail -n 40 "$BUILD/compare-build.log" >&2
        echo "compare_gpu: the build failed; all of it is in $BUILD/compare-build.log" >&2
        exit 1
    fi
    export P2P_BENCH=$BUILD/bench/p2p_bench
fi
exec python3 bench/compare_gpu.py "$@"
