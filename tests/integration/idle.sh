#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An idle engine uses less than 1% of a core: one that waits for a client, one whose connection is
# quiet, with a receive pending and without, with dedicated engine threads and with lent ones.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"

SECONDS_MEASURED=4

# quiet PID...: each uses at most 1% of a core over some seconds
quiet() {
    local before=() pid i=0 used result=0
    for pid; do before+=("$(cpu_ticks "$pid")"); done
    sleep "$SECONDS_MEASURED"
    for pid; do
        used=$(($(cpu_ticks "$pid") - before[i]))
        i=$((i + 1))
        echo "process $pid: $used ticks of $((SECONDS_MEASURED * $(getconf CLK_TCK)))"
        [ $((used * 100)) -le $((SECONDS_MEASURED * $(getconf CLK_TCK))) ] || result=1
    done
    return "$result"
}

waiting_server() {
    next_port
    start server "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    wait_listening "$PID" "$PORT" || return 1
    sleep 0.5
    quiet "$PID"
    local result=$?
    kill -KILL "$PID"
    ended "$PID" 5
    return "$result"
}

quiet_pair() {
    local steps server
    read -ra steps <<<"$1"
    next_port
    start server "$ENDPOINT" listen "$PORT" "${steps[@]}"
    server=$PID
    wait_listening "$server" "$PORT" || return 1
    start client "$ENDPOINT" connect 127.0.0.1 "$PORT" "${steps[@]}"
    until_true 10 grep -q connected "$WORK/client.log" || return 1
    sleep 1
    quiet "$server" "$PID"
    local result=$?
    kill -KILL "$server" "$PID"
    ended "$server" 5 && ended "$PID" 5
    return "$result"
}

for lend in auto yes no; do
    export UCCL_LEND=$lend
    check "UCCL_LEND=$lend: a server that waits for a client" waiting_server
    check "UCCL_LEND=$lend: connected, nothing posted" quiet_pair "pause:100000"
    check "UCCL_LEND=$lend: connected, a receive waits" quiet_pair "recv:1000 wait"
done
export UCCL_LEND=no UCCL_UDP_IO=mmsg
check "mmsg: connected, a receive waits" quiet_pair "recv:1000 wait"
finish
