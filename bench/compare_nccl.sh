#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NCCL's collectives between two GPUs of this machine, over its own sockets and over the plugin; see compare_nccl.py.
#
#   bench/compare_nccl.sh [--quick] [--minutes M] [--threads 4,8,12] [--protocols default,LL,Simple] [--ddp] [--loss PERCENT]
#
# Builds p2p_bench, the plugin and what loses datagrams (build-bench, optimised), unless NCCL_PLUGIN_FILE,
# P2P_BENCH and LOSE_FILE name them or this is a folder that tests/gpu/run.sh has built. python3 has to have PyTorch with CUDA;
# no network is needed.
set -eu
cd "$(dirname "$0")/.."

carried=lib/libnccl-net-uccl.so
if [ -f "$carried" ]; then
    export NCCL_PLUGIN_FILE=${NCCL_PLUGIN_FILE:-$PWD/$carried}
    export P2P_BENCH=${P2P_BENCH:-$PWD/bench/p2p_bench} LOSE_FILE=${LOSE_FILE:-$PWD/lib/lose.so}
    export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
if [ -z "${NCCL_PLUGIN_FILE:-}" ] && [[ ! " $* " =~ " "(--help|-h|--dry)" " ]]; then
    BUILD=${BENCH_BUILD:-build-bench}
    mkdir -p "$BUILD"
    options=(--buildtype=release)
    [ ! -f "$BUILD/build.ninja" ] || options+=(--reconfigure)
    if ! { meson setup "$BUILD" "${options[@]}" &&
        ninja -C "$BUILD" bench/p2p_bench plugins/nccl/libnccl-net-uccl.so tests/lose.so; } \
        >"$BUILD/compare-build.log" 2>&1; then
        tail -n 40 "$BUILD/compare-build.log" >&2
        echo "compare_nccl: the build failed; all of it is in $BUILD/compare-build.log" >&2
        exit 1
    fi
    export NCCL_PLUGIN_FILE=$PWD/$BUILD/plugins/nccl/libnccl-net-uccl.so
    export P2P_BENCH=${P2P_BENCH:-$PWD/$BUILD/bench/p2p_bench} LOSE_FILE=${LOSE_FILE:-$PWD/$BUILD/tests/lose.so}
fi
exec python3 bench/compare_nccl.py "$@"
