#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Several application threads at both ends post on the same connections and wait side by side (callers.c), with other
# numbers of them, and other settings, at each end.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 14 8

CALLERS=$BUILD/tests/callers
export UCCL_SOCKET_IFNAME=lo
factor=1
[ "$SHORT" = 0 ] || factor=4

# server SENDERS RECEIVERS NAME=VALUE...: on $PORT
server() {
    local senders=$1 receivers=$2
    shift 2
    next_port
    draw_settings
    start server env "${SETTINGS[@]}" "$@" "$CALLERS" serve "$PORT" "$senders" "$receivers"
    SERVER_PID=$PID
    wait_listening "$SERVER_PID" "$PORT"
}

# served N: the server ends well and has had so many connections, none of which failed
served() {
    kill -TERM "$SERVER_PID"
    ended "$SERVER_PID" 10 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
    said server "served $1 failed 0$"
}

# callers "SENDERS RECEIVERS" "SENDERS RECEIVERS" CONNECTIONS MESSAGES NAME=VALUE...: at the server and at the client
callers() {
    local server client connections=$3 messages=$4
    read -ra server <<<"$1"
    read -ra client <<<"$2"
    shift 4
    server "${server[@]}" "$@" || return 1
    draw_settings
    start client env "${SETTINGS[@]}" "$@" "$CALLERS" call 127.0.0.1 "$PORT" "$connections" "$messages" "${client[@]}"
    ended "$PID" 60 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
    served "$connections"
}

# several clients at once, the connections of all of which two threads of the server accept
clients() {
    local i result=0 pids=()
    server 2 2 "$@" || return 1
    for i in 1 2 3; do
        draw_settings
        start "client$i" env "${SETTINGS[@]}" "$CALLERS" call 127.0.0.1 "$PORT" 2 $((200 / factor)) "$i" 2
        pids+=("$PID")
    done
    for i in "${pids[@]}"; do
        ended "$i" 60 && [ "$STATUS" = 0 ] || { echo "a client: $STATUS" && result=1; }
    done
    served 6 && return "$result"
}

modes=(UCCL_LEND=yes UCCL_LEND=no)
[ "$SHORT" = 1 ] || modes+=(UCCL_NUM_ENGINES=3)
for mode in "${modes[@]}"; do
    check "one connection, $mode" callers "2 2" "2 2" 1 $((600 / factor)) "$mode"
    check "one connection, more threads at one end, $mode" callers "1 4" "3 1" 1 $((600 / factor)) "$mode"
    check "five connections, $mode" callers "3 2" "4 3" 5 $((150 / factor)) "$mode"
    check "three clients, $mode" clients "$mode"
done
if [ "$SHORT" = 0 ]; then
    check "eight connections, full rings" callers "2 1" "2 2" 8 100 UCCL_MSG_WINDOW=16 UCCL_RING_ENTRIES=16
    check "parts of messages over several threads" \
        callers "2 2" "2 2" 2 200 UCCL_NUM_ENGINES=2 UCCL_STRIPE_MIN_KB=64 UCCL_LEND=no
fi
finish
