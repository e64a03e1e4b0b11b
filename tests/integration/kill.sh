#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# kill -9 (and a freeze) of either side at each stage: the other one must say so and exit with a
# status other than 0 within the dead-peer time.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 30

export UCCL_DEAD_PEER_MS=1000 UCCL_CONNECT_MS=2000 UCCL_LINGER_MS=1000
LIMIT_S=6 # dead-peer time, linger, and a margin for a loaded machine

# complains PID LOG: it ends in time, not with 0, not by a signal, and with a message
complains() {
    local begin
    begin=$(now_ms)
    ended "$1" "$LIMIT_S" || return 1
    echo "$2 ended after $(($(now_ms) - begin)) ms with status $STATUS"
    [ "$STATUS" -ne 0 ] || { echo "status 0 although the peer died" && return 1; }
    [ "$STATUS" -lt 128 ] || { echo "killed by a signal" && return 1; }
    [ -s "$WORK/$2.log" ] || { echo "without a word" && return 1; }
}

# victim_and_other server|client
choose() {
    if [ "$1" = server ]; then
        VICTIM=$SERVER_PID SURVIVOR=$CLIENT_PID SURVIVOR_LOG=client
    else
        VICTIM=$CLIENT_PID SURVIVOR=$SERVER_PID SURVIVOR_LOG=server
    fi
}

mid_transfer() {
    local who=$1 signal=$2
    shift 2
    start_pair 127.0.0.1 "$@" || return 1
    choose "$who"
    # both have begun; a moment later some of it is under way
    until_true 10 grep -q outstanding "$WORK/client.log" && until_true 10 grep -q outstanding "$WORK/server.log" ||
        return 1
    sleep 0.3
    kill -0 "$SURVIVOR" 2>/dev/null || { echo "ended before the kill" && return 1; }
    kill "-$signal" "$VICTIM"
    complains "$SURVIVOR" "$SURVIVOR_LOG"
    local result=$?
    kill -KILL "$VICTIM" 2>/dev/null
    ended "$VICTIM" 5
    return "$result"
}

for who in client server; do
    for signal in KILL STOP; do
        check "$signal of the $who mid-transfer" mid_transfer $who $signal \
            --perftype=tpt --msize=1048576 --nreq=4 --iterations=100000000
        check "$signal of the $who in a ping-pong" mid_transfer $who $signal \
            --perftype=lat --msize=8 --iterations=100000000
    done
    check "KILL of the $who with 16 connections both ways" mid_transfer $who KILL \
        --perftype=bi --msize=65536 --nflow=16 --nreq=2 --iterations=100000000
    check "KILL of the $who in a verified run" mid_transfer $who KILL \
        --perftype=basic --msize=4194304 --nreq=2 --iterations=100000000
done

# the server is stopped while the client is in its bootstrap
bootstrap_server_dies() {
    next_port
    start server "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    SERVER_PID=$PID
    wait_listening "$SERVER_PID" "$PORT" || return 1
    kill -STOP "$SERVER_PID"
    start client "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic \
        --connect-timeout=2
    CLIENT_PID=$PID
    until_true 20 established "$CLIENT_PID" "$PORT" || { echo "no connection" && return 1; }
    kill "-$1" "$SERVER_PID"
    complains "$CLIENT_PID" client
    local result=$?
    kill -KILL "$SERVER_PID" 2>/dev/null
    ended "$SERVER_PID" 5
    return "$result"
}
check "KILL of the server during the bootstrap" bootstrap_server_dies KILL
check "the server is silent during the bootstrap" bootstrap_server_dies STOP

# the client dies in its bootstrap: the server either says so and ends, or serves the next client
bootstrap_client_dies() {
    next_port
    start server "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    SERVER_PID=$PID
    wait_listening "$SERVER_PID" "$PORT" || return 1
    kill -STOP "$SERVER_PID"
    start victim "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic
    CLIENT_PID=$PID
    until_true 20 established "$CLIENT_PID" "$PORT" || { echo "no connection" && return 1; }
    kill -KILL "$CLIENT_PID"
    kill -CONT "$SERVER_PID"
    sleep 1
    if ! kill -0 "$SERVER_PID" 2>/dev/null; then
        complains "$SERVER_PID" server
        return
    fi
    start client "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic \
        --iterations=4
    CLIENT_PID=$PID
    ended "$CLIENT_PID" 20 && [ "$STATUS" = 0 ] || { echo "next client: $STATUS" && return 1; }
    ended "$SERVER_PID" 10 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
}
check "KILL of the client during the bootstrap" bootstrap_client_dies

# endpoints SERVER_STEPS CLIENT_STEPS: ids in SERVER_PID and CLIENT_PID once both are connected
endpoints() {
    local server client
    read -ra server <<<"$1"
    read -ra client <<<"$2"
    next_port
    start server "$ENDPOINT" listen "$PORT" "${server[@]}"
    SERVER_PID=$PID
    wait_listening "$SERVER_PID" "$PORT" || return 1
    start client "$ENDPOINT" connect 127.0.0.1 "$PORT" "${client[@]}"
    CLIENT_PID=$PID
    until_true 10 grep -q connected "$WORK/client.log" || return 1
    until_true 10 grep -q connected "$WORK/server.log"
}

idle() {
    endpoints "recv:1000 wait" "recv:1000 wait" || return 1
    choose "$1"
    sleep 0.3
    kill "-$2" "$VICTIM"
    complains "$SURVIVOR" "$SURVIVOR_LOG"
    local result=$?
    kill -KILL "$VICTIM" 2>/dev/null
    ended "$VICTIM" 5
    return "$result"
}

# the survivor closes with data under way that the dead peer never takes
closing() {
    UCCL_DEAD_PEER_MS=2000 endpoints "pause:100000" "send:8000000 pause:1500 close" || return 1
    sleep 0.5
    kill "-$1" "$SERVER_PID"
    ended "$CLIENT_PID" 12 || return 1
    [ "$STATUS" -lt 128 ] || { echo "killed by a signal" && return 1; }
    said client 'close took [0-9]+ ms' || return 1
    [ "$(grep -oE 'close took [0-9]+' "$WORK/client.log" | grep -oE '[0-9]+')" -le 3000 ] ||
        { echo "the close took longer than the linger time" && return 1; }
    kill -KILL "$SERVER_PID" 2>/dev/null
    ended "$SERVER_PID" 5 || true
}

# the peer dies while both close
both_closing() {
    endpoints "recv:100 wait close" "send:100 wait pause:200 close" || return 1
    choose "$1"
    kill -KILL "$VICTIM"
    ended "$SURVIVOR" "$LIMIT_S" || return 1
    [ "$STATUS" -lt 128 ] || { echo "killed by a signal" && return 1; }
    ended "$VICTIM" 5
}

for who in client server; do
    check "KILL of the $who while idle" idle $who KILL
    check "STOP of the $who while idle" idle $who STOP
    check "KILL of the $who while both close" both_closing $who
done
check "close with data under way to a killed peer" closing KILL
check "close with data under way to a frozen peer" closing STOP

# closers HOW LIMIT_MS ENGINES LEND: 16 connections to a killed peer end in time, and the engine at once afterwards. The
# linger time is so long that a busy machine's own time is not taken for another one
CLOSERS_LINGER_MS=4000
closers() {
    local log=$WORK/closers.log times
    UCCL_LINGER_MS=$CLOSERS_LINGER_MS UCCL_DEAD_PEER_MS=40000 UCCL_NUM_ENGINES=$3 UCCL_LEND=$4 \
        timeout 100 "$BUILD/tests/closers" "$1" 16 >"$log" 2>&1 || return 1
    mapfile -t times < <(grep -oE 'took [0-9]+' "$log" | grep -oE '[0-9]+')
    [ "${times[0]}" -le "$2" ] || { echo "longer than $2 ms" && return 1; }
    [ "${times[1]}" -lt $CLOSERS_LINGER_MS ] || { echo "the engine's close took a linger time" && return 1; }
}
# the linger time of one, the moment that goodbyes get once sends are given up, and a margin
for how in "1 yes" "4 no"; do
    read -r engines lend <<<"$how"
    check "16 closes to a killed peer, one after another, $engines threads" closers close $((2 * CLOSERS_LINGER_MS)) "$engines" "$lend"
    check "16 closes to a killed peer at once, $engines threads" closers async $((2 * CLOSERS_LINGER_MS)) "$engines" "$lend"
    check "16 aborts to a killed peer, $engines threads" closers abort $((CLOSERS_LINGER_MS - 1)) "$engines" "$lend"
done

# a restarted server is not confused with the one before it
restarted() {
    start_pair 127.0.0.1 --perftype=tpt --msize=1048576 --iterations=100000000 || return 1
    until_true 10 grep -q outstanding "$WORK/client.log" || return 1 # else it would be the new server's client
    sleep 0.3
    kill -KILL "$SERVER_PID"
    local old_client=$CLIENT_PID port=$PORT
    start server2 "$TRANSPORT_TEST" --server=true --oobport="$port"
    local new_server=$PID
    wait_listening "$new_server" "$port" || { echo "the port is not free again" && return 1; }
    start client2 "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$port" --perftype=basic --iterations=8
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "new client: $STATUS" && return 1; }
    ended "$new_server" 10 && [ "$STATUS" = 0 ] || { echo "new server: $STATUS" && return 1; }
    complains "$old_client" client
}
check "a server restarted on the same port serves, and the old client ends" restarted
finish
