#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A client behind a firewall, and a server with several addresses: datagrams have to come from the address that the client
# connected to. Firewalls at both ends, of which the server's lets in TCP and answers; a client whose address is translated. And a
# network that passes TCP alone: connect goes over TCP, or says so where UCCL_BACKEND=udp.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 22
need_namespaces
[ -c /dev/net/tun ] || skip_all "no /dev/net/tun"

two_namespaces tun 1500
ip -n "$NS_A" addr add 10.78.0.9/24 dev tun0
ip -n "$NS_A" addr add fd78::9/64 dev tun0 nodad

# behind RELAY_FLAG...: what follows runs with such a relay
behind() {
    start relay "$RELAY" "$@" "$NS_A" "$NS_B"
    relay=$PID
    until_true 10 grep -q ready "$WORK/relay.log"
}

over() {
    kill -TERM "$relay"
    ended "$relay" 10
}

counted() { grep -oE "$1 [0-9]+" "$WORK/relay.log" | grep -oE '[0-9]+'; } # counted WHAT: by the relay

# answered ADDRESS RELAY_FLAG...: both ways through a firewall, which passes most of what comes: each path of each thread may lose
# a chunk before it is open
answered() {
    local result=0
    behind "${@:2}" || return 1
    pair "$1" --perftype=basic --msize=300000 --bi --iterations=20 || result=1
    over || result=1
    echo "refused $(counted refused) of $(counted packets)"
    [ "$(counted refused)" -le $((400 + $(counted packets) / 8)) ] || result=1
    return "$result"
}

# tcp_alone ADDRESS: connect fails when its time is over, and both sides say why. That is time enough for the handshake,
# also where the server is held up
tcp_alone() {
    local result=0 server since_ms
    behind --loss 100 || return 1
    next_port
    start server "${IN_SERVER[@]}" "$ENDPOINT" listen "$PORT"
    server=$PID
    wait_listening "$server" "$PORT" || return 1
    since_ms=$(now_ms)
    start client "${IN_CLIENT[@]}" env UCCL_BACKEND=udp UCCL_CONNECT_MS=4000 UCCL_DEAD_PEER_MS=20000 "$ENDPOINT" connect "$1" "$PORT"
    ended "$PID" 30 && [ "$STATUS" = 1 ] || result=1
    echo "it took $(($(now_ms) - since_ms)) ms"
    said client "connect: timed out" && said client "no data came back: sent from UDP port [0-9]+ here to UDP port [0-9]+ there" &&
        said client UCCL_BACKEND && until_true 20 said server "rejected it with code 4" || result=1
    kill -KILL "$server"
    ended "$server" 5
    over || result=1
    return "$result"
}

# over_tcp ADDRESS: so connect takes TCP by itself
over_tcp() {
    local result=0
    behind --loss 100 || return 1
    pair "$1" --msize=300000 --bi --iterations=20 || result=1
    said client 'no data came back.*Its data goes over TCP' || result=1
    over || result=1
    return "$result"
}

io=(mmsg)
if uring_works; then
    io+=(uring)
else
    skip "io_uring" "not in this build, or not allowed here" 6
fi
for io in "${io[@]}"; do
    lend=$([ "$io" = uring ] && echo no || echo auto)
    SERVER_ENV=(UCCL_UDP_IO="$io" UCCL_LEND="$lend") CLIENT_ENV=("${SERVER_ENV[@]}")
    for address in 10.78.0.1 10.78.0.9 fd78::1 fd78::9; do
        check "a stateful firewall at the client, which connects to $address, $io" answered "$address" --firewall
    done
    check "firewalls at both ends, fd78::9, $io" answered fd78::9 --firewalls
    check "a client's address is translated, and firewalls at both ends, $io" answered 10.78.0.1 --nat --firewalls
done
UNEQUAL=0
for policy in recycle pow2 rr; do
    for paths in 4 16; do
        SERVER_ENV=(UCCL_PATH_POLICY="$policy" UCCL_PORT_ENTROPY="$paths") CLIENT_ENV=("${SERVER_ENV[@]}")
        check "firewalls at both ends, $policy over $paths paths" answered fd78::9 --firewalls
    done
done
SERVER_ENV=() CLIENT_ENV=()
for address in 10.78.0.1 fd78::1; do
    check "TCP passes alone to $address: connect says so" tcp_alone "$address"
    check "TCP passes alone to $address: connect takes it" over_tcp "$address"
done
finish
