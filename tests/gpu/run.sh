#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests on real GPUs. Builds into a folder that can be carried to a machine that has GPUs and little else, and
# runs there. See usage() or --help.
set -u
ROOT=$(cd "$(dirname "$0")/../.." && pwd)

usage() {
    cat <<'EOF'
usage: tests/gpu/run.sh [build | run] [--compare]
       build-gpu/carry/bench/compare_nccl.sh [option...]

build   builds here, and gathers programs, scripts and the libraries that they need in build-gpu/carry
run     runs in such a folder: build-gpu/carry/tests/gpu/run.sh run
Without either does both, on one machine. --compare also prints bench/compare_gpu.sh's tables; NCCL's collectives over the
plugin and over sockets are compared by bench/compare_nccl.sh of the folder.

The last line is "N passed, N failed, N skipped"; the exit status is 0 only when nothing failed.
EOF
}

# ---- building -------------------------------------------------------------------------------

# libraries that the other machine may lack; the C library is not among them
CARRIED='libhwloc|libjansson|liburing|libudev'

build() {
    local build=$ROOT/build-gpu/build carry=$ROOT/build-gpu/carry options=(--buildtype=release) file
    mkdir -p "$build"
    [ ! -f "$build/build.ninja" ] || options+=(--reconfigure)
    if ! { meson setup "$build" "$ROOT" "${options[@]}" &&
        ninja -C "$build" bench/p2p_bench bench/transport_test bench/uccl_info tests/mem/gpu_messages \
        tests/mem/gpu_onesided tests/mem/gpu_export tests/lose.so tests/onesided/symmetric plugins/nccl/libnccl-net-uccl.so; } \
        >"$ROOT/build-gpu/build.log" 2>&1; then
        tail -n 40 "$ROOT/build-gpu/build.log"
        echo "the build failed; all of it is in build-gpu/build.log"
        return 1
    fi
    rm -rf "$carry"
    mkdir -p "$carry"/{lib,bench,tests/gpu,tests/mem}
    cp "$build"/bench/{p2p_bench,transport_test,uccl_info} "$ROOT"/bench/{compare_gpu.sh,compare_gpu.py,peer_nccl.py} \
        "$ROOT"/bench/{compare_nccl.sh,compare_nccl.py,hogs.py,peer_collectives.py} "$carry/bench"
    cp "$build"/tests/mem/gpu_{messages,onesided,export} "$build/tests/onesided/symmetric" "$ROOT"/tests/mem/headers.c "$carry/tests/mem"
    mkdir -p "$carry/engine/mem"
    cp "$ROOT"/engine/mem/*.h "$carry/engine/mem"
    cp "$ROOT/tests/gpu/run.sh" "$carry/tests/gpu"
    cp -L "$build/libuccl-engine.so.0" "$build/tests/lose.so" "$build/plugins/nccl/libnccl-net-uccl.so" "$carry/lib"
    ldd "$build/bench/p2p_bench" | awk -v wanted="$CARRIED" '$1 ~ wanted {print $3}' | while read -r file; do
        cp -L "$file" "$carry/lib"
    done
    strip "$carry"/bench/{p2p_bench,transport_test,uccl_info} "$carry"/tests/mem/{gpu_messages,gpu_onesided,gpu_export,symmetric} "$carry"/lib/*.so*
    echo "built $(du -sh "$carry" | cut -f 1) in build-gpu/carry"
}

# ---- running --------------------------------------------------------------------------------

passed=0 failed=0 skipped=0

# check NAME COMMAND...: shows the end of its output where it fails
check() {
    local name=$1 log started=$SECONDS status=0
    shift
    log=$(mktemp)
    timeout 150 "$@" >"$log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok - $name ($((SECONDS - started)) s)"
    else
        failed=$((failed + 1))
        echo "not ok - $name (status $status): $*"
        tail -n 25 "$log" | sed 's/^/#   /'
    fi
    rm -f "$log"
}

skip() {
    skipped=$((skipped + 1))
    echo "ok - $1 # skip $2"
}

# the declarations that the library has of its own, and the vendor's
headers() {
    local include
    for include in /usr/local/cuda/include /usr/local/cuda-*/include /usr/include; do
        if [ -f "$include/cuda.h" ] && command -v cc >/dev/null; then
            check "our declarations against $include/cuda.h" \
                cc -std=gnu11 -fsyntax-only -Werror -I"$include" -I"$ROOT/engine" "$ROOT/tests/mem/headers.c"
            return
        fi
    done
    skip "our declarations against cuda.h" "no cuda.h, or no C compiler"
}

# transfer NAME FLAG OF THE SERVER, FLAG OF THE CLIENT, OTHER FLAGS OF THE CLIENT...: transport_test, verified
transfer() {
    local server=$1 client=$2 log port pid status
    shift 2
    log=$(mktemp)
    "$BENCH/transport_test" --server --oobport=0 --gpu="$server" >"$log" 2>&1 &
    pid=$!
    for _ in {1..100}; do
        port=$(sed -n 's/.*TCP port \([0-9]*\)$/\1/p' "$log")
        [ -z "$port" ] || break
        sleep 0.1
    done
    "$BENCH/transport_test" --serverip=127.0.0.1 --oobport="${port:-1}" --gpu="$client" "$@"
    status=$?
    [ "$status" -eq 0 ] || kill "$pid" 2>/dev/null
    wait "$pid" || status=1
    cat "$log"
    rm -f "$log"
    return $status
}

gpu_count() {
    "$BENCH/uccl_info" --json | python3 -c 'import json, sys; print(sum(g["name"].startswith("cuda") for g in json.load(sys.stdin)["gpus"]))'
}

no_gpu() {
    local text
    text=$(CUDA_VISIBLE_DEVICES='' "$BENCH/uccl_info")
    echo "$text"
    grep -q 'GPUs: none' <<<"$text" &&
        CUDA_VISIBLE_DEVICES='' "$BENCH/p2p_bench" --local --sizes=64K,1M --seconds=0.1
}

run() {
    local gpus other io
    export -f transfer
    export BENCH UCCL_SOCKET_IFNAME=lo
    "$BENCH/uccl_info" --topology
    gpus=$(gpu_count)
    echo "$gpus GPUs"
    if [ "${gpus:-0}" -eq 0 ]; then
        failed=$((failed + 1))
        echo "not ok - no GPU here"
        return
    fi
    other=$((gpus > 1 ? 1 : 0))
    headers
    export -f no_gpu
    check "without a GPU" bash -c no_gpu
    check "export as a dma-buf" "$MEM/gpu_export" cuda
    "$MEM/gpu_export" cuda # what came of it
    check "messages between GPU 0 and GPU $other" "$MEM/gpu_messages" cuda 0 $other
    check "one-sided operations between GPU 0 and GPU $other" "$MEM/gpu_onesided" cuda 0 cuda $other
    [ "$other" -eq 0 ] || check "messages on GPU 0, GPU 1 stays untouched" "$MEM/gpu_messages" cuda 0 0 1
    for io in mmsg uring; do
        check "messages with UCCL_UDP_IO=$io" env UCCL_UDP_IO=$io "$MEM/gpu_messages" cuda 0 $other
    done
    check "messages with one engine thread" env UCCL_NUM_ENGINES=1 "$MEM/gpu_messages" cuda 0 $other
    check "transport_test, both sides on GPUs" bash -c "transfer cuda:$other cuda:0"
    check "transport_test, GPU to host, both directions" bash -c "transfer cpu cuda:0 --bi"
    check "transport_test, host to GPU, 4 connections, odd size" \
        bash -c "transfer 0 cpu --nflow=4 --msize=300001 --iterations=500"
    for type in write read; do
        check "transport_test --perftype=$type, both sides on GPUs" \
            bash -c "transfer cuda:$other cuda:0 --perftype=$type --iterations=200"
        check "transport_test --perftype=$type, vectors between GPU and host, both directions" \
            bash -c "transfer cpu cuda:0 --perftype=$type --bi --nmsg=20 --msize=30001 --nflow=2 --iterations=20"
    done
    check "a symmetric heap on a GPU" "$MEM/symmetric" --pes=3 --heap=cuda:0
    check "p2p_bench --op=write, every message verified, both directions" "$BENCH/p2p_bench" --local --bi --verify \
        --op=write --pieces=3 --sizes=8,64K,4M --seconds=0.2 --sender-device=cuda:0 --receiver-device=cuda:$other
    check "p2p_bench, every message verified, both directions" "$BENCH/p2p_bench" --local --bi --verify --seconds=0.2 \
        --sender-device=cuda:0 --receiver-device=cuda:$other
    check "p2p_bench, page-locked host memory" "$BENCH/p2p_bench" --local --pinned --seconds=0.1
}

# ---- arguments ------------------------------------------------------------------------------

building=yes running=yes comparing=no
for argument; do
    case $argument in
    build) running=no ;;
    run) building=no ;;
    --compare) comparing=yes ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        exit 64
        ;;
    esac
done
if [ "$building" = yes ]; then
    build || exit 1
    ROOT=$ROOT/build-gpu/carry
fi
[ "$running" = yes ] || exit 0
BENCH=$ROOT/bench MEM=$ROOT/tests/mem
export LD_LIBRARY_PATH=$ROOT/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
run
if [ "$comparing" = yes ]; then
    P2P_BENCH=$BENCH/p2p_bench "$BENCH/compare_gpu.sh" || failed=$((failed + 1))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
