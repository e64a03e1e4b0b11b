#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An idle engine uses less than 1% of a core: one that waits for a client, one whose connection is
# quiet, with a receive pending and without, with dedicated engine threads and with lent ones, one whose peer was
# killed. All are measured over the same seconds.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 12

SECONDS_MEASURED=4
names=() processes=() # of each check: what it is called, ids of its processes
before=() results=()  # CPU time when it began, per process id; outcome of each check

# idle NAME COMMAND...: the command starts some processes and leaves their ids in PIDS
idle() {
    local name=$1
    shift
    if "$@" >"$WORK/start.log" 2>&1; then
        names+=("$name")
        processes+=("$PIDS")
    else
        check "$name" false
    fi
}

waiting_server() {
    next_port
    start "server-$PORT" "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    PIDS=$PID
    wait_listening "$PID" "$PORT"
}

quiet_pair() {
    local steps
    read -ra steps <<<"$1"
    next_port
    start "server-$PORT" "$ENDPOINT" listen "$PORT" "${steps[@]}"
    PIDS=$PID
    wait_listening "$PID" "$PORT" || return 1
    start "client-$PORT" "$ENDPOINT" connect 127.0.0.1 "$PORT" "${steps[@]}"
    PIDS+=" $PID"
    until_true 10 grep -q connected "$WORK/client-$PORT.log"
}

# bereft: an end whose peer was killed, while the application keeps the failed connection
bereft() {
    local server
    next_port
    start "server-$PORT" "$ENDPOINT" listen "$PORT" pause:100000
    server=$PID
    wait_listening "$server" "$PORT" || return 1
    UCCL_DEAD_PEER_MS=500 start "client-$PORT" \
        "$ENDPOINT" connect 127.0.0.1 "$PORT" recv:1000 wait=UCCL_EPEERDEAD pause:100000
    PIDS=$PID
    until_true 10 grep -q connected "$WORK/client-$PORT.log" || return 1
    kill -KILL "$server"
    until_true 10 grep -q 'receive 0' "$WORK/client-$PORT.log"
}

# quiet PID...: each has used at most 1% of a core
quiet() {
    local pid used result=0
    for pid; do
        kill -0 "$pid" || result=1
        used=$(($(cpu_ticks "$pid") - before[pid]))
        echo "process $pid: $used ticks of $((SECONDS_MEASURED * $(getconf CLK_TCK)))"
        [ $((used * 100)) -le $((SECONDS_MEASURED * $(getconf CLK_TCK))) ] || result=1
    done
    return "$result"
}

for lend in auto yes no; do
    export UCCL_LEND=$lend
    idle "UCCL_LEND=$lend: a server that waits for a client" waiting_server
    idle "UCCL_LEND=$lend: connected, nothing posted" quiet_pair "pause:100000"
    idle "UCCL_LEND=$lend: connected, a receive waits" quiet_pair "recv:1000 wait"
done
export UCCL_LEND=no UCCL_UDP_IO=mmsg
idle "mmsg: connected, a receive waits" quiet_pair "recv:1000 wait"
for backend in udp tcp; do
    UCCL_BACKEND=$backend idle "$backend: the peer was killed" bereft
done

sleep 1
for pid in ${processes[*]}; do before[pid]=$(cpu_ticks "$pid"); done
sleep "$SECONDS_MEASURED"
# all of it before the first check, which takes time of its own
for i in "${!names[@]}"; do
    read -ra pids <<<"${processes[i]}"
    quiet "${pids[@]}" >"$WORK/quiet-$i.log" && good=true || good=false
    results+=("$good")
done
for i in "${!names[@]}"; do check "${names[i]}" "${results[i]}"; done
finish
