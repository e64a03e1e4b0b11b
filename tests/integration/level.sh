#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A server that lives long: after clients that come and go, die, or talk rubbish, it has in use what it had before. The
# engine counts for itself (api/budget.h), the kernel its descriptors, threads and mappings.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 16

CALLERS=$BUILD/tests/callers
export UCCL_SOCKET_IFNAME=lo UCCL_DEAD_PEER_MS=1500 UCCL_LINGER_MS=300 UCCL_CONNECT_MS=3000 UCCL_LOG_LEVEL=error
CLIENTS=12
[ "$SHORT" = 0 ] || CLIENTS=6

entries() { find "/proc/$1" -mindepth 1 -maxdepth 1 | wc -l; }

# answer SIGNAL PATTERN: the server has printed one more such line after the signal
answer() {
    local lines
    lines=$(grep -c "$2" "$WORK/server.log")
    kill "-$1" "$SERVER_PID"
    until_true 10 eval "[ \$(grep -c '$2' '$WORK/server.log') -gt $lines ]"
}

# counts: of the server, in COUNTS and, of mappings, in MAPPINGS
counts() {
    answer USR1 '^peers' || return 1
    COUNTS="$(grep '^peers' "$WORK/server.log" | tail -n 1 | sed 's/ served .*//'), descriptors $(entries "$SERVER_PID/fd"), threads $(entries "$SERVER_PID/task")"
    MAPPINGS=$(wc -l <"/proc/$SERVER_PID/maps")
}

# An engine keeps a peer for some seconds after its last connection. A client comes, before whom that time is over for all
# others; it is the one that is kept then.
settled() {
    answer USR2 '^aged' && "$CALLERS" call 127.0.0.1 "$PORT" 1 1 1 1 && counts
}
# mappings grow by stacks and arenas that the C library keeps, and by what a sanitizer does
is_level() { settled && [ "$COUNTS" = "$LEVEL" ] && { [ "${TEST_SANITIZED:-0}" = 1 ] || [ "$MAPPINGS" -le $((mappings + 24)) ]; }; }

# level COMMAND...: the command succeeds, and soon after it all counts are back
level() {
    "$@" || return 1
    until_true 15 is_level || {
        echo "before: $LEVEL, mappings $mappings"
        echo "after:  $COUNTS, mappings $MAPPINGS"
        return 1
    }
}

# ---- clients: each of these comes CLIENTS times, but for the strangers -------------------------

good() {
    local i
    for ((i = 0; i < ${1:-$CLIENTS}; i++)); do
        "$CALLERS" call 127.0.0.1 "$PORT" 2 20 2 2 || return 1
    done
}

# killed SIGNAL: in the middle of a transfer, all of them
killed() {
    local i pids=()
    for ((i = 0; i < CLIENTS / 2; i++)); do
        start "victim$i" "$CALLERS" call 127.0.0.1 "$PORT" 2 4000 2 2
        pids+=("$PID")
        until_true 10 grep -q connected "$WORK/victim$i.log" || return 1
    done
    sleep 0.1
    kill "-$1" "${pids[@]}"
    # those that are stopped must seem dead to the server; then they end as well
    if [ "$1" = STOP ]; then
        until_true 20 nobody_left || { echo "after: $COUNTS" && return 1; }
        kill -KILL "${pids[@]}"
    fi
    for i in "${pids[@]}"; do ended "$i" 10; done
}
nobody_left() { counts && [[ $COUNTS == *" conns 0 "*" running 0,"* ]]; }

# idle ones, and ones that die as soon as they may be in the handshake
brief() {
    local i
    for ((i = 0; i < 2 * CLIENTS; i++)); do
        start brief "$ENDPOINT" connect 127.0.0.1 "$PORT" pause:10000
        sleep 0.00$((i % 10))
        kill -KILL "$PID"
        ended "$PID" 5
    done
}

# strangers CODE: Python that talks to the listener
strangers() {
    timeout 30 python3 -c "
import os, socket, struct
def connect():
    s = socket.create_connection(('127.0.0.1', $PORT)); s.settimeout(10); return s
def drain(s):
    try:
        while s.recv(65536): pass
    except OSError: pass
for i in range($CLIENTS):
$1"
}
rubbish() {
    strangers "
    s = connect()
    try: s.sendall(os.urandom(1 << i)); drain(s)
    except OSError: pass
    s = connect(); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"
}
silent() {
    strangers "
    globals().setdefault('kept', []).append(connect())
for s in kept: drain(s)"
}

# lies in all that it sends, in the handshake as well
liar() {
    "$BUILD/tests/hostile" liar "$PORT" 2 "$SEED"
}

UNEQUAL=0 # parameters that are drawn change what is in use
for mode in "UCCL_LEND=yes UCCL_UDP_IO=mmsg" "UCCL_LEND=no UCCL_NUM_ENGINES=2 UCCL_STRIPE_MIN_KB=64"; do
    read -ra settings <<<"$mode"
    next_port
    start server env "${settings[@]}" "$CALLERS" serve "$PORT" 2 2
    SERVER_PID=$PID
    wait_listening "$SERVER_PID" "$PORT"
    { settled && good 4 && settled && until_true 10 nobody_left; } >"$WORK/first.log" 2>&1
    LEVEL=$COUNTS mappings=$MAPPINGS
    check "clients one after another, $mode" level good
    check "clients that are killed, $mode" level killed KILL
    check "clients that are stopped, $mode" level killed STOP
    check "clients that do not live long, $mode" level brief
    check "rubbish, $mode" level rubbish
    check "silence, $mode" level silent
    check "lies, $mode" level liar
    kill -TERM "$SERVER_PID"
    check "the server ends well, $mode" eval "ended '$SERVER_PID' 10 && [ \$STATUS = 0 ]"
    say "mappings: $mappings, in the end $MAPPINGS"
done
finish
