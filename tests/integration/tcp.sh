#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# UCCL_BACKEND=tcp: connections that are reset, half-open, stopped or tiny, strangers on their ports, and a network that
# drops UDP. What other scripts do over UDP also runs over TCP with `tests/run.sh tcp`.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 24

export UCCL_BACKEND=tcp UCCL_LINGER_MS=1000

check "verified over IPv4" pair 127.0.0.1 --msize=1M --nreq=4 --iterations=50
check "verified over IPv6, both ways" pair ::1 --bi --perftype=basic --msize=300K --nreq=4 --iterations=50
check "200 connections" pair 127.0.0.1 --nflow=200 --msize=20K --nreq=2 --iterations=5

# running: neither side has ended
running() { kill -0 "$CLIENT_PID" "$SERVER_PID" 2>/dev/null || { echo "a side has ended" && return 1; }; }

# interrupt: both sides of a verified run, of which the client has found nothing wrong. (In the background SIGINT is ignored)
interrupt() {
    kill -TERM "$CLIENT_PID" "$SERVER_PID" 2>/dev/null
    ended "$CLIENT_PID" 10 && ended "$SERVER_PID" 10 || return 1
    ! grep -v interrupted "$WORK/client.log" | grep -iE 'mismatch|wrong|error'
}

# ports PID: those on which the process listens, but that of the handshake
ports() {
    "${IN_SERVER[@]}" ss -Hltnp 2>/dev/null | grep "pid=$1," | awk '{ sub(/.*:/, "", $4); print $4 }' | grep -vx "$PORT"
}

# reset_one PORTS: one of the connections to these ports ends by a reset
reset_one() {
    local port
    for port in $(shuf -e "$@"); do
        ss -HK state established "dport = :$port or sport = :$port" >/dev/null 2>&1
    done
}

# One path of four at a time, at any moment of a verified run
resets() {
    local i line to from kills=0 list
    start_pair 127.0.0.1 --bi --msize=1M --nreq=4 --iterations=1000000 --perftype=basic --logtostderr || return 1
    until_true 20 grep -q outstanding "$WORK/client.log" || return 1
    list=$(ports "$SERVER_PID")
    [ -n "$list" ] || { echo "no port of a queue" && return 1; }
    for ((i = 0; i < 100 && kills < 20; i++)); do
        line=$(ss -Htn state established | awk '{ print $3, $4 }' | grep -E ":($(tr '\n' '|' <<<"$list")0)\$" | shuf -n 1)
        read -r from to <<<"$line"
        [ -n "$to" ] || { sleep 0.1 && continue; }
        ss -K "sport = :${from##*:} and dport = :${to##*:}" 2>/dev/null | grep -q "${to##*:}" && kills=$((kills + 1))
        sleep 0.1
    done
    echo "$kills resets"
    running && interrupt || return 1
    [ "$kills" -eq 20 ] || { echo "too few resets" && return 1; }
    said client 'TCP connection of path'
}

# The same with an end: every byte is compared, and both sides exit with 0
resets_verified() {
    local i line to from list kills=0
    start_pair 127.0.0.1 --bi --msize=4M --nreq=4 --iterations="$1" --perftype=basic || return 1
    until_true 20 grep -q outstanding "$WORK/client.log" || return 1
    list=$(ports "$SERVER_PID")
    for ((i = 0; i < 20; i++)); do
        line=$(ss -Htn state established | awk '{ print $3, $4 }' | grep -E ":($(tr '\n' '|' <<<"$list")0)\$" | shuf -n 1)
        read -r from to <<<"$line"
        [ -z "$to" ] || { ss -K "sport = :${from##*:} and dport = :${to##*:}" 2>/dev/null | grep -q "${to##*:}" && kills=$((kills + 1)); }
        sleep 0.02
    done
    echo "$kills resets"
    ended "$CLIENT_PID" 60 && [ "$STATUS" = 0 ] || { echo "client: status $STATUS" && return 1; }
    ended "$SERVER_PID" 15 && [ "$STATUS" = 0 ] || { echo "server: status $STATUS" && return 1; }
    [ "$kills" -gt 0 ] || { echo "no reset" && return 1; }
}

# can_reset: does ss -K end a connection here? Says why not
can_reset() {
    python3 - <<'END'
import socket, subprocess, sys
listener = socket.create_server(("127.0.0.1", 0))
port = listener.getsockname()[1]
client = socket.create_connection(("127.0.0.1", port))
client.settimeout(10)
said = subprocess.run(["ss", "-K", f"dport = :{port}"], capture_output=True, text=True)
try:
    client.recv(1)
except ConnectionError:
    sys.exit(0)
except TimeoutError:
    pass
print(f"ss -K ended no connection: status {said.returncode}, {(said.stdout + said.stderr).strip()!r}")
sys.exit(1)
END
}
if why_not=$(can_reset); then
    check "20 resets at any moment" resets
    check "20 resets in a verified run" resets_verified 200
else
    skip "20 resets at any moment" "$why_not" 2
fi

# A peer that reads nothing for a while is slow and not dead
slow_reader() {
    UCCL_DEAD_PEER_MS=20000 start_pair 127.0.0.1 --bi --msize=1M --nreq=8 --iterations=300 || return 1
    until_true 20 grep -q outstanding "$WORK/client.log" || return 1
    kill -STOP "$SERVER_PID"
    sleep 2
    kill -CONT "$SERVER_PID"
    ended "$CLIENT_PID" 60 && [ "$STATUS" = 0 ] || { echo "client: status $STATUS" && return 1; }
    ended "$SERVER_PID" 15 && [ "$STATUS" = 0 ] || { echo "server: status $STATUS" && return 1; }
}
check "a peer that is stopped for a while" slow_reader

# Strangers on the ports of the queues, while a verified run goes on: it goes on
strangers() {
    local port each=$((SHORT ? 36 : 120))
    start_pair 127.0.0.1 --bi --msize=1M --nreq=4 --iterations=1000000 || return 1
    until_true 20 grep -q outstanding "$WORK/client.log" || return 1
    for port in $(ports "$SERVER_PID") $(ports "$CLIENT_PID"); do
        python3 - "$port" "$each" <<'END' || return 1
import os, socket, sys
port, held = int(sys.argv[1]), []
for kind in range(int(sys.argv[2])):
    s = socket.create_connection(("127.0.0.1", port), timeout=5)
    try:
        if kind % 3 == 0:
            s.sendall(os.urandom(32 + kind))
        elif kind % 3 == 1:
            s.sendall(b"UCTP\x01\x00" + os.urandom(40))
        else:
            s.sendall(b"GET / HTTP/1.0\r\n"[:kind % 16])
    except OSError:
        pass
    held.append(s) # never closed
END
    done
    running && interrupt
}
check "garbage and half greetings on the ports" strangers

# ---- namespaces -------------------------------------------------------------------------------

# both NAME COMMAND...: in both namespaces
both() {
    ip netns exec "$NS_A" "$@" && ip netns exec "$NS_B" "$@"
}

no_udp() {
    both nft add table inet uccl && both nft 'add chain inet uccl in { type filter hook input priority 0; }' &&
        both nft add rule inet uccl in meta l4proto udp drop || return 1
    UCCL_BACKEND=udp UCCL_CONNECT_MS=1000 start_pair 10.77.0.1 --iterations=5 || return 1
    ended "$CLIENT_PID" 15
    kill "$SERVER_PID"
    ended "$SERVER_PID" 5
    said client 'timed out|no data came back' || return 1
    pair 10.77.0.1 --msize=1M --nreq=4 --iterations=50
}

# marked BACKEND FAMILY ADDRESS: each side receives packets of the other one's traffic class, DSCP 26
marked() {
    local ns packets result=0
    both nft add table inet marks && both nft 'add chain inet marks in { type filter hook input priority 0; }' &&
        both nft add rule inet marks in "$2" dscp 26 counter || return 1
    UCCL_BACKEND=$1 UCCL_TRAFFIC_CLASS=104 pair "$3" --msize=1M --nreq=4 --iterations=20 || result=1
    for ns in "$NS_A" "$NS_B"; do
        packets=$(ip netns exec "$ns" nft list table inet marks | grep -oE 'packets [0-9]+' | grep -oE '[0-9]+')
        echo "$ns: $packets packets"
        [ "$packets" -ge 20 ] || result=1
    done
    both nft delete table inet marks
    return "$result"
}

# ends CLIENT SERVER: both sides have these statuses
ends() {
    ended "$CLIENT_PID" 100 && [ "$STATUS" = "$1" ] || { echo "client: status $STATUS, not $1" && return 1; }
    ended "$SERVER_PID" 15 && [ "$STATUS" = "$2" ] || { echo "server: status $STATUS, not $2" && return 1; }
}

# auto CLIENT SERVER: backends of the two sides, in a network that drops UDP: they meet over TCP
auto() {
    SERVER_ENV=(UCCL_BACKEND="$2") CLIENT_ENV=(UCCL_BACKEND="$1")
    start_pair 10.77.0.1 --bi --msize=1M --nreq=4 --iterations=50 "${@:3}"
    local started=$?
    SERVER_ENV=() CLIENT_ENV=()
    [ "$started" = 0 ] && ends 0 0
}

auto_says() {
    auto auto auto && said client 'no data came back.*Its data goes over TCP connections' &&
        [ "$(grep -c 'goes over TCP' "$WORK/client.log")" = 1 ]
}

at_once() {
    auto "$@" && ! said client 'no data came back'
}

# remembered: a peer on a host whose UDP is dropped costs a second, and the next one nothing
remembered() {
    local first second servers=() i
    next_port
    first=$PORT
    next_port
    second=$PORT
    for i in "$first" "$second"; do
        start "server$i" "${IN_SERVER[@]}" env UCCL_BACKEND=auto "$ENDPOINT" listen "$i" recv:1000 wait
        servers+=("$PID")
        wait_listening "$PID" "$i" || return 1
    done
    start client "${IN_CLIENT[@]}" env UCCL_BACKEND=auto "$ENDPOINT" connect 10.77.0.1 "$first" send:1000 wait close \
        "anew:$second" send:1000 wait close
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
    for i in "${servers[@]}"; do
        ended "$i" 10 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
    done
    grep -o 'after .* ms' "$WORK/client.log"
    [ "$(grep -c 'goes over TCP' "$WORK/client.log")" = 1 ] &&
        grep -o 'after [0-9]* ms' "$WORK/client.log" |
        awk '{ ms[NR] = $2 } END { exit !(NR == 2 && ms[1] >= 900 && ms[2] < 900) }'
}

# beside ITERATIONS [NAME=VALUE...]: a run of large messages begins in which TCP carries these and UDP all else
beside() {
    SERVER_ENV=(UCCL_BACKEND=auto UCCL_LOG_LEVEL=info UCCL_CC=swift "${@:2}")
    CLIENT_ENV=("${SERVER_ENV[@]}")
    start_pair 10.77.0.1 --bi --msize=1M --nreq=4 --perftype=basic --iterations="$1"
    local started=$?
    SERVER_ENV=() CLIENT_ENV=()
    [ "$started" = 0 ] && until_true 20 said client 'connects TCP for large messages'
}

# drop WHAT...: so much is dropped from now on; pass: nothing is any more
drop() { both nft add table inet drops && both nft 'add chain inet drops in { type filter hook input priority 0; }' &&
    both nft add rule inet drops in "$@" drop; }
pass() { both nft delete table inet drops; }

# Datagrams stop, or TCP does, in the midst of a verified run, which goes on
goes_on() {
    local what=$1 text=$2 result=0 ports
    beside $((SHORT ? 1500 : 3000)) || return 1 # for seconds, sanitized or not
    ports=$(ports "$SERVER_PID" | paste -sd,)
    case $what in
    udp) drop meta l4proto udp || result=1 ;;
    tcp) drop tcp dport "{ $ports }" || result=1 ;;
    esac
    until_true 20 said client "$text" || { echo "nothing said" && result=1; }
    pass
    ends 0 0 || result=1
    return "$result"
}

# carried send|fetch: bytes that have gone this way
carried() { ip netns exec "$NS_A" cat "/sys/class/net/veth0/statistics/$([ "$1" = send ] && echo rx || echo tx)_bytes"; }

# carries send|fetch BYTES: more of them have gone this way
carries() { [ "$(carried "$1")" -gt "$2" ]; }

# goes_on_anew send|fetch: datagrams stop before any connection has been worth making. The client sends, or waits for what
# the server sends, for as long as it takes
goes_on_anew() {
    local receiver sender source result=0
    next_port
    start receiver "${IN_SERVER[@]}" env UCCL_BACKEND=auto UCCL_DEAD_PEER_MS=4000 "$BUILD/tests/steady" receive "$PORT"
    receiver=$PID
    wait_listening "$receiver" "$PORT" || return 1
    start sender "${IN_CLIENT[@]}" env UCCL_BACKEND=auto UCCL_DEAD_PEER_MS=4000 UCCL_LOG_LEVEL=info \
        "$BUILD/tests/steady" "$1" 10.77.0.1 "$PORT" 100 3000 4
    sender=$PID
    source=$([ "$1" = send ] && echo "$sender" || echo "$receiver")
    until_true 20 carries "$1" $(($(carried "$1") + 300000)) || return 1
    drop meta l4proto udp || return 1
    until_true 20 said sender 'datagrams get no answer; connects TCP' || result=1
    until_true 20 carries "$1" $(($(carried "$1") + 300000)) || result=1
    kill -TERM "$source" 2>/dev/null
    ended "$sender" 20 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && result=1; }
    ended "$receiver" 20 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && result=1; }
    pass
    cat "$WORK/sender.log" "$WORK/receiver.log" | grep ^messages
    # what the machine did not run the ends is not the engine's time
    awk '/^held/ { held += $2 } /^messages.*longest/ { longest = $4; seen = 1 } END { exit !(seen && longest < 3000 + held) }' \
        "$WORK/sender.log" "$WORK/receiver.log" &&
        return "$result"
}

# Datagrams stop in the midst of a verified run; then the connections, which carry all, are reset again and again. New
# ones take over, and every byte is right.
resets_without_udp() {
    local result=0 ports port i kills=0
    beside $((SHORT ? 1500 : 3000)) || return 1
    ports=$(ports "$SERVER_PID")
    drop meta l4proto udp || return 1
    until_true 20 said client 'datagrams do not get through|has no answer|TCP carries all' ||
        { echo "nothing said" && result=1; }
    for ((i = 0; i < 10; i++)); do
        for port in $ports; do
            ip netns exec "$NS_B" ss -HK state established "dport = :$port" 2>/dev/null | grep -q . && kills=$((kills + 1))
        done
        sleep 0.2
    done
    echo "$kills times connections were reset"
    [ "$kills" -ge 5 ] || { echo "too few" && result=1; }
    ends 0 0 || result=1
    pass
    return "$result"
}

# Lossy networks get large messages over UDP. How long the kernel takes to carry what two looks need is chance
lossy_tcp() {
    local result=0
    drop meta l4proto tcp numgen random mod 100 \< 3 || return 1
    # each of many connections would take long to lose segments in twice 4 MiB
    beside 1000000 UCCL_PORT_ENTROPY=4 UCCL_NUM_ENGINES=1 && until_true 30 said client 'TCP loses' || result=1
    sleep 1
    running || result=1
    interrupt || result=1
    pass
    return "$result"
}

tiny() {
    both sysctl -qw net.ipv4.tcp_rmem="4096 4096 4096" net.ipv4.tcp_wmem="4096 4096 4096" || return 1
    pair 10.77.0.1 --bi --msize=200K --nreq=4 --iterations=10
}

# Nothing passes any more, and no reset says so
half_open() {
    UCCL_DEAD_PEER_MS=1000 start_pair 10.77.0.1 --bi --msize=1M --nreq=4 --iterations=100000000 || return 1
    until_true 20 grep -q outstanding "$WORK/client.log" || return 1
    both nft add rule inet uccl in iifname veth0 drop || return 1
    ended "$CLIENT_PID" 8 || return 1
    [ "$STATUS" != 0 ] || { echo "the client says nothing" && return 1; }
    ended "$SERVER_PID" 8
    [ "$STATUS" != 0 ] || { echo "the server says nothing" && return 1; }
}

if ip netns add "uccl-probe-$$" 2>/dev/null; then
    ip netns del "uccl-probe-$$"
    two_namespaces up 1500
    check "traffic class over UDP" marked udp ip 10.77.0.1
    check "traffic class over UDP, IPv6" marked udp ip6 fd77::1
    check "traffic class over TCP" marked tcp ip 10.77.0.1
    check "traffic class over TCP, IPv6" marked tcp ip6 fd77::1
    check "a network that drops UDP" no_udp
    check "there auto takes TCP, and says so once" auto_says
    check "and the next peer on that host at once" remembered
    check "auto and tcp meet at once" at_once auto tcp
    both nft flush chain inet uccl in
    check "auto: datagrams stop, TCP carries all" goes_on udp 'datagrams do not get through|has no answer|TCP carries all'
    check "auto: datagrams stop before there are connections, which carry all then" goes_on_anew send
    check "auto: the same where the client waits for a message" goes_on_anew fetch
    check "auto: TCP stops, datagrams carry all" goes_on tcp 'its TCP connections are broken'
    if why_not=$(can_reset); then
        check "auto: datagrams stop, then connections are reset, and new ones carry all" resets_without_udp
    else
        skip "auto: datagrams stop, then connections are reset" "$why_not"
    fi
    check "auto: TCP loses segments" lossy_tcp
    both nft add rule inet uccl in meta l4proto udp drop
    check "tcp and auto meet at once" at_once tcp auto
    check "socket buffers of 4 KiB, both ways" tiny
    both sysctl -qw net.ipv4.tcp_rmem="4096 131072 6291456" net.ipv4.tcp_wmem="4096 16384 4194304"
    check "a half-open peer" half_open
else
    skip "namespaces" "not allowed to make network namespaces" 17
fi
finish
