#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The example of a symmetric heap: rings of processes, however they are started, and what is said when one is missing.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 11

SYMMETRIC=$BUILD/tests/onesided/symmetric

# right COUNT FILE: each PE has its neighbour's numbers, blocks and words, and was refused beyond the heap
right() {
    local pe before numbers i
    cat "$2"
    for ((pe = 0; pe < $1; pe++)); do
        before=$(((pe + $1 - 1) % $1)) numbers=
        for i in 0 1 2 3 4 5 6 7; do numbers+=" $((100 * before + i))"; done
        grep -qx "PE $pe of $1: from PE $before:$numbers" "$2" || { echo "PE $pe has other numbers" && return 1; }
        grep -qx "PE $pe of $1: block, signal and word of PE $before are right" "$2" || return 1
        grep -qx "PE $pe of $1: a put beyond the heap of PE $(((pe + 1) % $1)): the peer refuses the access.*" "$2" ||
            return 1
    done
    [ "$(wc -l <"$2")" = $((3 * $1)) ]
}

here() {
    timeout 60 "$SYMMETRIC" --wait=40 "${@:2}" >"$WORK/here" || { echo "status $?" && return 1; }
    right "$1" "$WORK/here"
}
check "two PEs, without a word" here 2
check "four PEs" here 4 --pes=4
check "one PE" here 1 --pes=1

# numbers that do not fit into an int would be others
wrong_numbers() {
    local flag status
    for flag in --pes=0 --pes=4294967298 --wait=4294968 --wait=x --heap=cuda:4294967296 --heap=cuda:-1; do
        status=0
        "$SYMMETRIC" "$flag" >"$WORK/wrong" 2>&1 || status=$?
        [ "$status" -eq 64 ] && grep -q "^symmetric: $flag: allowed are" "$WORK/wrong" || { echo "$flag: $status" && return 1; }
    done
}
check "numbers out of range are refused" wrong_numbers

# each NAME COUNT LIMIT_S PE...: these PEs, each started by itself, as NAME says it; statuses in STATUSES
each() {
    local name=$1 count=$2 limit_s=$3 pe pids=()
    shift 3
    next_port
    for pe in "$@"; do
        case $name in
        uccl) start "pe$pe" env UCCL_PE="$pe" UCCL_NPES="$count" UCCL_ROOT="127.0.0.1:$PORT" "$SYMMETRIC" --wait="$limit_s" ;;
        ompi) start "pe$pe" env OMPI_COMM_WORLD_RANK="$pe" OMPI_COMM_WORLD_SIZE="$count" UCCL_ROOT="[::1]:$PORT" "$SYMMETRIC" --wait="$limit_s" ;;
        pmi) start "pe$pe" env PMI_RANK="$pe" PMI_SIZE="$count" UCCL_ROOT="localhost:$PORT" "$SYMMETRIC" --wait="$limit_s" ;;
        esac
        pids+=("$PID")
    done
    STATUSES=
    for pe in "${pids[@]}"; do
        ended "$pe" 60
        STATUSES+="$STATUS "
    done
}
together() {
    each "$1" 4 40 3 1 0 2
    cat "$WORK"/pe?.log >"$WORK/all"
    right 4 "$WORK/all" && [ "$STATUSES" = "0 0 0 0 " ]
}
check "four PEs, by UCCL_PE, UCCL_NPES, UCCL_ROOT" together uccl
if [ -e /proc/net/if_inet6 ] && grep -q ' lo$' /proc/net/if_inet6; then
    check "four PEs, by Open MPI's variables, over IPv6" together ompi
else
    skip "four PEs, by Open MPI's variables, over IPv6" "no ::1 on this machine"
fi
check "four PEs, by PMI's variables" together pmi

missing() {
    local begin
    begin=$(now_ms)
    each uccl 4 6 0 1 3
    [ "$STATUSES" = "1 1 1 " ] || { echo "statuses: $STATUSES" && return 1; }
    [ $(($(now_ms) - begin)) -lt 25000 ] || return 1
    said pe0 '^PE 0: PE 2 of 4 has not come within 6 s$' && said pe1 '^PE 1: PE 2 of 4 has not come within 6 s$' &&
        said pe3 '^PE 3: PE 2 of 4 has not come within 6 s$'
}
check "a PE that is missing is named by all" missing
no_root() {
    each uccl 2 1 1
    [ "$STATUSES" = "1 " ] && said pe1 '^PE 1: PE 0 has not come within 1 s: at 127.0.0.1, port [0-9]+: connection refused; .*nobody listens'
}
check "so is the root" no_root
refusing() {
    next_port
    start pe0 env UCCL_BACKEND=udp UCCL_PE=0 UCCL_NPES=2 UCCL_ROOT="127.0.0.1:$PORT" "$SYMMETRIC" --wait=3
    local root=$PID
    start pe1 env UCCL_BACKEND=tcp UCCL_PE=1 UCCL_NPES=2 UCCL_ROOT="127.0.0.1:$PORT" "$SYMMETRIC" --wait=3
    ended "$PID" 20 && [ "$STATUS" = 1 ] && said pe1 'another UCCL_BACKEND' && ended "$root" 20 && [ "$STATUS" = 1 ]
}
check "a root that refuses: it is told why" refusing
wrong() {
    local name
    for name in UCCL_PE=4 UCCL_PE=x UCCL_NPES=0 UCCL_ROOT=localhost:0 UCCL_NPES=2000; do
        env UCCL_PE=0 UCCL_NPES=2 "$name" timeout 10 "$SYMMETRIC" >"$WORK/wrong" 2>&1
        [ $? = 1 ] && grep -q "${name%%=*}=${name#*=}: " "$WORK/wrong" || { echo "$name" && cat "$WORK/wrong" && return 1; }
    done
    env UCCL_PE=0 timeout 10 "$SYMMETRIC" >"$WORK/wrong" 2>&1
    [ $? = 1 ] && grep -q "UCCL_PE and UCCL_NPES belong together" "$WORK/wrong"
}
check "settings that are wrong are named" wrong
finish
