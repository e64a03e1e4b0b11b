#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A network in which large packets vanish without a word: a message of 1 MB arrives within seconds, and whoever sends large
# packets into the hole says so once.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 17
need_namespaces
export UCCL_BACKEND=udp # large messages go over TCP otherwise: the last check
[ -c /dev/net/tun ] || skip_all "no /dev/net/tun"

LIMIT_MS=15000 # what is lost for good would never arrive; on a busy machine the search took 6 s

# behind RELAY_FLAG...: what follows runs with such a relay
behind() {
    start relay "$RELAY" --hole 1400 "$@" "$NS_A" "$NS_B"
    relay=$PID
    until_true 10 grep -q ready "$WORK/relay.log"
}

over() {
    kill -TERM "$relay"
    ended "$relay" 10
}

warnings() { grep -c 'vanish' "$WORK/$1.log"; }

# told LOG COUNT: so many warnings, of the right words
told() {
    [ "$(warnings "$1")" = "$2" ] || { echo "$(warnings "$1") warnings in $1.log instead of $2" && return 1; }
    [ "$2" = 0 ] || said "$1" "those of $PASSES get through.* UCCL_MTU=$PASSES"
}

# both STEP...: the client's steps; the server receives and sends likewise
both() {
    local steps=("$@")
    next_port
    rm -f "$WORK"/server.log "$WORK"/client.log "$WORK/hole" "$WORK/go"
    steps=("${steps[@]//send:/S:}")
    steps=("${steps[@]//recv:/send:}")
    start server "${IN_SERVER[@]}" env "${SERVER_ENV[@]}" "$ENDPOINT" listen "$PORT" "${steps[@]//S:/recv:}"
    SERVER=$PID
    wait_listening "$SERVER" "$PORT" || return 1
    start client "${IN_CLIENT[@]}" env "${CLIENT_ENV[@]}" "$ENDPOINT" connect "$ADDRESS" "$PORT" "$@"
    CLIENT=$PID
}

# soon SINCE_MS PATTERN: the client has said so within the time
soon() {
    local took_ms result=0
    until_true 20 grep -q "$2" "$WORK/client.log" || result=1
    took_ms=$(($(now_ms) - $1))
    echo "it took $took_ms ms"
    [ "$result" = 0 ] && [ "$took_ms" -le "$LIMIT_MS" ]
}

# ends CLIENT_WARNINGS SERVER_WARNINGS: each side has warned so often when its searches are over
ends() {
    local result=0
    until_true 40 eval "[ \$(warnings client) = $1 ] && [ \$(warnings server) = $2 ]" || result=1
    sleep 0.3 # for one too many
    touch "$WORK/go"
    ended "$CLIENT" 60 && [ "$STATUS" = 0 ] || result=1
    ended "$SERVER" 60 && [ "$STATUS" = 0 ] || result=1
    told client "$1" && told server "$2" || result=1
    over || result=1
    return "$result"
}

# from_the_start CLIENT_WARNINGS SERVER_WARNINGS RELAY_FLAG...: 1 MB there and back
from_the_start() {
    local since_ms result=0 client=$1 server=$2
    shift 2
    behind "$@" || return 1
    since_ms=$(now_ms)
    both send:1000000 wait recv:1000000 wait "until:$WORK/go" || return 1
    soon "$since_ms" '^receive 0: ' || result=1
    ends "$client" "$server" || result=1
    return "$result"
}

# under_way CLIENT_WARNINGS SERVER_WARNINGS RELAY_FLAG...: amid traffic. The last ten messages wait for the hole, so that
# a script which is held up does not come too late
under_way() {
    local since_ms result=0 client=$1 server=$2 one=(send:1000000 wait) before=() behind=()
    shift 2
    behind --hole-later "$@" || return 1
    for _ in {1..50}; do before+=("${one[@]}"); done
    for _ in {1..10}; do behind+=("${one[@]}"); done
    both "${before[@]}" "until:$WORK/hole" "${behind[@]}" "until:$WORK/go" "${one[@]}" || return 1
    until_true 40 grep -q '^send 9: ' "$WORK/client.log" || return 1
    kill -USR1 "$relay"
    since_ms=$(now_ms)
    touch "$WORK/hole"
    soon "$since_ms" '^send 50: ' || result=1
    until_true 30 grep -q '^send 59: ' "$WORK/client.log" || result=1
    ends "$client" "$server" || result=1
    return "$result"
}

# with_tcp: large packets of both kinds vanish. TCP carries large messages all the same, once two connections have broken
with_tcp() {
    local result=0
    behind --hole-tcp || return 1
    next_port
    start receiver "${IN_SERVER[@]}" env UCCL_BACKEND=auto "$BUILD/tests/steady" receive "$PORT"
    SERVER=$PID
    wait_listening "$SERVER" "$PORT" || return 1
    start sender "${IN_CLIENT[@]}" env UCCL_BACKEND=auto UCCL_LOG_LEVEL=info \
        "$BUILD/tests/steady" send 10.78.0.1 "$PORT" 15 1000000 4
    until_true 14 grep -q 'TCP segments of .* bytes vanish' "$WORK/sender.log" || result=1
    ended "$PID" 60 && [ "$STATUS" = 0 ] || result=1
    ended "$SERVER" 30 && [ "$STATUS" = 0 ] || result=1
    cat "$WORK/sender.log"
    grep -E 'TCP carries large|connections are broken' "$WORK/sender.log" | tail -n 1 | grep -q carries || result=1
    over || result=1
    return "$result"
}

drivers=(mmsg)
if uring_works; then
    drivers+=(uring)
else
    skip "io_uring" "not in this build, or not allowed here" 8
fi
for mtu in 1500 9000; do
    # what the search finds below 1400: a multiple of 128 bytes of payload, and headers
    if [ "$mtu" = 1500 ]; then ADDRESS=10.78.0.1 PASSES=1372; else ADDRESS=fd78::1 PASSES=1392; fi
    two_namespaces tun "$mtu"
    for io in "${drivers[@]}"; do
        lend=$([ "$io" = uring ] && echo no || echo auto)
        SERVER_ENV=(UCCL_UDP_IO="$io" UCCL_LEND="$lend") CLIENT_ENV=("${SERVER_ENV[@]}")
        check "no hole: nothing is said, MTU $mtu, $io" from_the_start 0 0 --hole-later
        check "packets above 1400 to the server vanish, MTU $mtu, $io" from_the_start 1 0 --hole-to 0
        check "packets above 1400 vanish both ways, MTU $mtu, $io" from_the_start 1 1
        check "packets above 1400 to the server vanish under way, MTU $mtu, $io" under_way 1 0 --hole-to 0
    done
done
two_namespaces tun 1500
check "packets above 1400 vanish, those of TCP too" with_tcp
finish
