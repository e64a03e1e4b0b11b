#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# System calls per message, and which: nothing but sending, receiving, sleeping and waking, and not more of it than this. An idle
# engine makes next to none. Counted by strace, under which all is slow, so that more sleep and wake than otherwise.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 9
UNEQUAL=0 # counts
command -v strace >/dev/null || skip_all "no strace"
strace -c -o /dev/null true 2>/dev/null || skip_all "not allowed to trace"

DATA='sendmmsg|sendmsg|recvmmsg|recvmsg|io_uring_enter'
SLEEP='futex|ppoll|poll|sched_yield|read|write'
SECONDS_IDLE=2

# calls FILE PATTERN: how many calls there were whose names match
calls() {
    awk -v pattern="^($2)\$" '$1 ~ pattern && $2 > 0 { sum += $2 } END { print sum + 0 }' "$1"
}

# within NAME CALLS MESSAGES PERCENT: at most so many per hundred messages
within() {
    echo "$1: $2 for $3 messages, of at most $(($3 * $4 / 100))"
    [ $(($2 * 100)) -le $(($3 * $4)) ]
}

# counted COMMAND...: its calls by name go to $WORK/$TRACE.calls
counted() {
    exec strace -f -c -U name,calls -o "$WORK/$TRACE.calls" "$@"
}

# busy SIZE MESSAGES DATA SLEEP: the last two: calls per hundred messages, of each side
busy() {
    local result=0 server side all others
    next_port
    TRACE=server start server counted "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    server=$PID
    wait_listening "$server" "$PORT" || return 1
    TRACE=client start client counted "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=tpt --warmup=0 \
        --msize="$1" --iterations="$2"
    ended "$PID" 60 && [ "$STATUS" = 0 ] || return 1
    ended "$server" 10 && [ "$STATUS" = 0 ] || return 1
    for side in server client; do
        all=$(calls "$WORK/$side.calls" '[a-z].*')
        all=$((all - $(calls "$WORK/$side.calls" 'total|syscall')))
        others=$((all - $(calls "$WORK/$side.calls" "$DATA|$SLEEP")))
        within "$side, data" "$(calls "$WORK/$side.calls" "$DATA")" "$2" "$3" || result=1
        within "$side, sleep" "$(calls "$WORK/$side.calls" "$SLEEP")" "$2" "$4" || result=1
        [ "$others" -le 1500 ] || result=1 # start and end: devices, memory, threads
        echo "$side, others: $others, of at most 1500"
        [ "$result" = 0 ] || cat "$WORK/$side.calls"
    done
    return "$result"
}

# idle: both ends are connected, one waits for a message; after a while each is traced for some seconds
idle() {
    local result=0 pid pids tracers=() all
    next_port
    start server "$ENDPOINT" listen "$PORT" "recv:1000 wait"
    pids=$PID
    wait_listening "$PID" "$PORT" || return 1
    start client "$ENDPOINT" connect 127.0.0.1 "$PORT" "pause:100000"
    pids+=" $PID"
    until_true 10 grep -q connected "$WORK/client.log" || return 1
    sleep 1
    for pid in $pids; do
        start "trace-$pid" strace -f -c -U name,calls -o "$WORK/$pid.calls" -p "$pid"
        tracers+=("$PID")
    done
    sleep "$SECONDS_IDLE"
    kill -INT "${tracers[@]}"
    for pid in "${tracers[@]}"; do ended "$pid" 5; done
    for pid in $pids; do
        [ -e "$WORK/$pid.calls" ] || { echo "no trace of $pid" && result=1 && continue; }
        all=$(($(calls "$WORK/$pid.calls" '[a-z].*') - $(calls "$WORK/$pid.calls" total)))
        echo "process $pid: $all calls in $SECONDS_IDLE s"
        [ "$all" -le $((SECONDS_IDLE * 50)) ] || { cat "$WORK/$pid.calls" && result=1; }
        kill -KILL "$pid"
        ended "$pid" 5
    done
    return "$result"
}

modes=("mmsg no" "mmsg yes")
! uring_works || modes+=("uring no")
for mode in "${modes[@]}"; do
    read -r UCCL_UDP_IO UCCL_LEND <<<"$mode"
    export UCCL_UDP_IO UCCL_LEND
    check "an idle engine, $UCCL_UDP_IO, lend=$UCCL_LEND" idle
    check "messages of 256 bytes, $UCCL_UDP_IO, lend=$UCCL_LEND" busy 256 20000 200 150
    check "messages of 64 KiB, $UCCL_UDP_IO, lend=$UCCL_LEND" busy 64K 3000 1100 300
done
finish
