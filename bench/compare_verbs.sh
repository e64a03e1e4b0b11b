#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# p2p_bench over verbs beside perftest, with the same message size and MTU, in one boot of the guest of
# tests/vm (soft-RoCE under emulation). Only the ratios mean anything. On a machine with RDMA
# devices: --here, with the devices in COMPARE_SERVER and COMPARE_CLIENT.
#
#   bench/compare_verbs.sh [--here] [--rounds N] [--mib N] [KIND...]
#
# KIND: uc rc ud loss; all without one. Each row is measured --rounds times (3), the two taking turns; the
# ratio is the median one. --mib: moved per measurement (32). Builds the library, optimised (build-bench).
set -eu
cd "$(dirname "$0")/.."
here=0 rounds=3 mib=32 kinds=()
while [ $# -gt 0 ]; do
    case $1 in
    --here) here=1 ;;
    --rounds) shift && rounds=$1 ;;
    --mib) shift && mib=$1 ;;
    uc | rc | ud | loss) kinds+=("$1") ;;
    *)
        sed -n '3,/^set/s/^# \{0,1\}//p' "$0" >&2
        exit 2
        ;;
    esac
    shift
done
[ ${#kinds[@]} -gt 0 ] || kinds=(uc rc ud loss)

BUILD=${BENCH_BUILD:-build-bench}
if [ $here -eq 0 ]; then
    mkdir -p "$BUILD"
    options=(--buildtype=release)
    [ ! -f "$BUILD/build.ninja" ] || options+=(--reconfigure)
    if ! { meson setup "$BUILD" "${options[@]}" && ninja -C "$BUILD" bench/p2p_bench; } >"$BUILD/compare-build.log" 2>&1; then
        tail -n 40 "$BUILD/compare-build.log" >&2
        exit 1
    fi
    export BENCH_BUILD=$BUILD VM_PASS="BENCH_BUILD" VM_TIMEOUT=${VM_TIMEOUT:-1800}
    exec tests/vm/boot.sh "bench/compare_verbs.sh --here --rounds $rounds --mib $mib ${kinds[*]}"
fi

server_device=${COMPARE_SERVER:-rxe1} client_device=${COMPARE_CLIENT:-rxe0}
server_address=${COMPARE_ADDRESS:-10.0.0.2}
work=$(mktemp -d)
port=21000
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    [ -e /run/job/command ] && tests/vm/link.sh clean
    rm -rf "$work"
}
trap cleanup EXIT

# both SECONDS SERVER_COMMAND -- CLIENT_COMMAND: the client's output, once the server listens on $port
both() {
    local limit=$1 command=()
    shift
    while [ "$1" != -- ]; do
        command+=("$1")
        shift
    done
    shift
    timeout "$limit" "${command[@]}" >"$work/server.log" 2>&1 &
    server=$!
    for ((i = 0; i < 100; i++)); do
        ss -Hltn "sport = :$port" | grep -q . && break
        sleep 0.1
    done
    timeout "$limit" "$@" 2>"$work/client.log" || { cat "$work"/*.log >&2 && return 1; }
    wait "$server" || true
    server=
}

# peer TOOL CONNECTION BYTES: Gbit/s of perftest
peer() {
    local count=$((mib * 1048576 / $3))
    local flags=(-c "$2" -s "$3" -n $((count > 16 ? count : 16)) -m 4096 -F --report_gbits -p "$port")
    both 300 "$1" -d "$server_device" "${flags[@]}" -- \
        "$1" -d "$client_device" "${flags[@]}" "$server_address" |
        awk -v size="$3" '$1 == size && NF >= 4 { print $4 }'
}

# engine KIND BYTES [NAME=VALUE...]: Gbit/s of p2p_bench
engine() {
    # delays under emulation are milliseconds; Swift's default aims at what NICs and kernels have
    local kind=$1 bytes=$2 settings=(UCCL_BACKEND=verbs UCCL_SWIFT_TARGET_US=100000)
    local count=$((mib * 1048576 / bytes))
    shift 2
    case $kind in
    rc) settings+=(UCCL_RCMODE=1) ;;
    ud) settings+=(UCCL_UDMODE=1) ;;
    esac
    both 300 env "${settings[@]}" "$@" "$BUILD/bench/p2p_bench" --server --dev="$server_device" --oobport=$port -- \
        env "${settings[@]}" "$@" "$BUILD/bench/p2p_bench" --serverip="$server_address" --json \
        --dev="$client_device" --oobport=$port --verify=false --sizes="$bytes" --seconds=0.2 \
        --iterations=$((count > 16 ? count : 16)) |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["results"][0]["gbps"])'
}

# row NAME AIM "PEER ARGUMENTS" "ENGINE ARGUMENTS"
row() {
    local name=$1 aim=$2 ours theirs round arguments
    : >"$work/pairs"
    for ((round = 0; round < rounds; round++)); do
        read -ra arguments <<<"$3"
        port=$((port + 1))
        theirs=$(peer "${arguments[@]}") || theirs=
        read -ra arguments <<<"$4"
        port=$((port + 1))
        ours=$(engine "${arguments[@]}") || ours=
        echo "${ours:-0} ${theirs:-0}" >>"$work/pairs"
    done
    awk -v name="$name" -v peer="$3" -v aim="$aim" '
        $1 > 0 && $2 > 0 { ratio[++n] = $1 / $2; ours[n] = $1; theirs[n] = $2 }
        END {
            for (i = 1; i <= n; i++)
                for (j = i + 1; j <= n; j++)
                    if (ratio[j] < ratio[i]) {
                        t = ratio[i]; ratio[i] = ratio[j]; ratio[j] = t
                        t = ours[i]; ours[i] = ours[j]; ours[j] = t
                        t = theirs[i]; theirs[i] = theirs[j]; theirs[j] = t
                    }
            m = int((n + 1) / 2)
            if (n == 0)
                printf "%-34s failed\n", name
            else
                printf "%-34s %9.4f %9.4f  %6.2fx  %5.2fx%s   %.2f..%.2f  %s\n", name, ours[m],
                    theirs[m], ratio[m], aim, ratio[m] < aim ? " missed" : " reached", ratio[1],
                    ratio[n], peer
        }' "$work/pairs"
}

printf '%-34s %9s %9s  %7s  %-14s %-11s %s\n' "" "p2p_bench" perftest ratio "aim" "spread" \
    "Gbit/s; perftest's flags"
for kind in "${kinds[@]}"; do
    case $kind in
    uc | rc)
        for bytes in 65536 1048576; do
            row "$kind, $((bytes / 1024)) KiB" 0.85 "ib_write_bw ${kind^^} $bytes" "$kind $bytes"
        done
        ;;
    ud)
        # a message of UD is one packet
        for bytes in 65536 1048576; do
            row "ud, $((bytes / 1024)) KiB" 0.80 "ib_send_bw UD 4096" "ud $bytes"
        done
        ;;
    loss)
        tests/vm/link.sh netem loss 1%
        row "1% loss, uc, 1024 KiB" 5 "ib_write_bw RC 1048576" "uc 1048576"
        row "1% loss, uc, 1024 KiB, chunks 4 KiB" 5 "ib_write_bw RC 1048576" \
            "uc 1048576 UCCL_CHUNK_SIZE_KB=4"
        tests/vm/link.sh clean
        ;;
    esac
done
