#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What a user gets wrong, and what strangers send: each ends with a message that names the cause,
# with a status other than 0, soon.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 81
UNEQUAL=0 # looks at what is refused

export UCCL_CONNECT_MS=2000

# refuses SECONDS PATTERN COMMAND...: ends in time, not with 0, not by a signal, and the output says
# PATTERN
refuses() {
    local limit=$1 pattern=$2
    shift 2
    start refused "$@"
    ended "$PID" "$limit" || return 1
    echo "status $STATUS"
    [ "$STATUS" -ne 0 ] && [ "$STATUS" -lt 128 ] || return 1
    said refused "$pattern"
}

# those that its --help names
takes_backends() {
    local names name
    names=$("$1" --help | tr -s ' \n' ' ' | sed -nE 's/.*--backend=NAME ([a-z, ]+) \(default.*/\1/p' | sed 's/,//g; s/ or / /')
    echo "$names"
    [ "$(wc -w <<<"$names")" -ge 4 ] || return 1
    for name in $names; do
        "$1" --backend="$name" --help >/dev/null || return 1
    done
}

for tool in "$TRANSPORT_TEST" "$P2P_BENCH"; do
    name=$(basename "$tool")
    check "$name takes each backend that it names" takes_backends "$tool"
    check "$name --help" timeout 5 "$tool" --help
    check "$name --help explains --oobport" eval "'$tool' --help | grep -q oobport"
    check "$name: unknown flag" refuses 5 'no-such-flag' "$tool" --no-such-flag=1
    check "$name: no role" refuses 5 'server' "$tool"
    check "$name: a port that is no number" refuses 5 'oobport|port' "$tool" --server=true --oobport=abc
    check "$name: a port too large" refuses 5 'oobport|port' "$tool" --server=true --oobport=70000
    check "$name: no server there" refuses 8 'refused|127.0.0.1' \
        "$tool" --serverip=127.0.0.1 --oobport=1 --connect-timeout=2
    check "$name: unknown backend" refuses 5 'backend.*verbs' "$tool" --server --backend=quic
    check "$name: a device that is not there" refuses 5 'nosuchdev0' "$tool" --server --dev=nosuchdev0
    check "$name: a verbs device that is not there" refuses 5 'verbs' \
        "$tool" --server --backend=verbs --dev=nosuchdev0
    check "$name: a name that does not resolve" refuses 30 'no-such-host' \
        "$tool" --serverip=no-such-host.invalid --oobport=1 --connect-timeout=2
done
check "unknown perftype" refuses 5 'perftype|basic' \
    "$TRANSPORT_TEST" --serverip=127.0.0.1 --perftype=fast
check "negative msize" refuses 5 'msize' "$TRANSPORT_TEST" --serverip=127.0.0.1 --msize=-1
check "boolean that is none" refuses 5 'bi' "$TRANSPORT_TEST" --serverip=127.0.0.1 --bi=maybe
check "no iterations" refuses 5 'iterations' "$TRANSPORT_TEST" --serverip=127.0.0.1 --iterations=x
check "sizes that are none" refuses 5 'sizes' "$P2P_BENCH" --local --sizes=12,many
check "an empty entry of sizes" refuses 5 'sizes=64,,65: entry 2 is empty' "$P2P_BENCH" --local --sizes=64,,65

# beyond LIMIT...: "TOOL FLAG" each, which is refused as wrong usage that names the flag
beyond() {
    local row words
    for row in "$@"; do
        read -ra words <<<"$row"
        timeout 10 "$BUILD/bench/${words[0]}" --serverip=127.0.0.1 --oobport=1 --connect-timeout=0 "${words[@]:1}" >"$WORK/beyond" 2>&1
        STATUS=$?
        [ "$STATUS" = 64 ] && grep -q -- "${words[-1]%%=*}" "$WORK/beyond" && continue
        echo "$row: status $STATUS"
        cat "$WORK/beyond"
        return 1
    done
}
many=$(seq -s, 65)
check "values beyond what is allowed" beyond "transport_test --msize=17G" "transport_test --msize=18446744073709551617" \
    "transport_test --msize=18014398509481984K" "transport_test --iterations=0" "transport_test --nmsg=4096 --nreq=5" \
    "transport_test --perftype=lat --iterations=100000001" "p2p_bench --sizes=$many" "p2p_bench --sizes=0" \
    "p2p_bench --seconds=nan" "p2p_bench --seconds=inf" "p2p_bench --seconds=0" "p2p_bench --seconds=1x" \
    "p2p_bench --window=4097" "p2p_bench --connect-timeout=86401"
# the largest that is allowed comes as far as the server that is not there
within() {
    beyond "$@" && return 1
    [ "$STATUS" = 1 ] && grep -q 'cannot connect.*(UCCL_EREFUSED)' "$WORK/beyond"
}
many=$(seq -s, 64)
for row in "transport_test --perftype=tpt --msize=16G --nmsg=4 --nreq=4096" "p2p_bench --sizes=$many --window=4096"; do
    check "values at the limit: ${row:0:30}" within "$row"
done
check "a device whose name only begins so" refuses 5 '"=?l"' "$TRANSPORT_TEST" --server --dev=l

for setting in UCCL_CC=fastest UCCL_CHUNK_SIZE_KB=65 UCCL_CHUNK_SIZE_KB=abc UCCL_NUM_ENGINES=-1 \
    UCCL_PATH_POLICY= UCCL_DEAD_PEER_MS=1e9 UCCL_PAYLOAD_CRC=perhaps UCCL_MSG_WINDOW=100 \
    UCCL_SOCKET_IFNAME=nosuchif UCCL_CONF_FILE=/nonexistent/uccl.conf; do
    check "$setting" refuses 5 "${setting%%=*}|nosuchif|/nonexistent" \
        env "$setting" "$TRANSPORT_TEST" --server=true --oobport=$((PORT + 50))
done
unknown_warns_once() {
    CLIENT_ENV=(UCCL_NO_SUCH_THING=1)
    pair 127.0.0.1 --perftype=basic --iterations=2 || return 1
    [ "$(grep -c UCCL_NO_SUCH_THING "$WORK/client.log")" = 1 ]
}
check "an unknown UCCL_ name warns once" unknown_warns_once
CLIENT_ENV=()
printf 'UCCL_CC=timely\nUCCL_LOG_LEVEL=bad\n' >"$WORK/bad.conf"
check "a bad value in a file names the file" refuses 5 'bad.conf' \
    env UCCL_CONF_FILE="$WORK/bad.conf" "$TRANSPORT_TEST" --server=true --oobport=$((PORT + 51))

# command lines as users of the system we follow know them
roles() {
    next_port
    start server "$P2P_BENCH" --role=server --remote-ip=0.0.0.0 --local-gpu-idx=0 --num-cpus=2 --oobport="$PORT"
    local server=$PID
    wait_listening "$server" "$PORT" || return 1
    start client "$P2P_BENCH" --role=client --remote-ip=127.0.0.1 --local-gpu-idx=0 --num-cpus=2 --iters=7 --sizes=4K \
        --json --oobport="$PORT"
    ended "$PID" 30 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
    ended "$server" 10 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
    sed -n '/^{/,$p' "$WORK/client.log" | python3 -c "
import json, sys
report = json.load(sys.stdin)
assert report['iterations'] == 7 and report['results'][0]['messages'] == 7, report"
}
check "p2p_bench --role --remote-ip --local-gpu-idx --num-cpus --iters" roles
# scripts give both sides the same: a server needs no gnuplot, and says what it does not heed
clients_flags() {
    next_port
    start server "$P2P_BENCH" --server --oobport="$PORT" --iters=9 --sizes=64K --num-cpus=1 --json --plot=/nonexistent/x.svg
    local server=$PID
    wait_listening "$server" "$PORT" || return 1
    start client "$P2P_BENCH" --serverip=127.0.0.1 --sizes=64 --iters=7 --oobport="$PORT"
    ended "$PID" 30 && [ "$STATUS" = 0 ] && said client '^.Client. +64.0 B' || return 1
    ended "$server" 10 && [ "$STATUS" = 0 ] && said server 'without effect here: --sizes, --iterations, --json, --plot$'
}
check "p2p_bench: a server with flags of the client" clients_flags
threads() {
    # one sees how many there are by an engine thread's number in the log
    env UCCL_LOG_LEVEL=debug timeout 20 "$P2P_BENCH" --local --sizes=64 --iters=5 --num-cpus="$1" >"$WORK/threads.log" 2>&1
    [ "$(grep -c 'UDP queue [0-9]*: port' "$WORK/threads.log")" = $((2 * $1)) ]
}
check "--num-cpus: engine threads of both ends" threads 3
check "--role: neither" refuses 5 'role.*server and client' "$P2P_BENCH" --role=both
check "--role=client without a host" refuses 5 'remote-ip' "$P2P_BENCH" --role=client
check "--role=client and --server" refuses 5 'exclude' "$P2P_BENCH" --role=client --server --remote-ip=127.0.0.1
check "--num-cpus: none" refuses 5 'num-cpus.*1 to 64' "$P2P_BENCH" --local --num-cpus=0
check "--local-gpu-idx: no number" refuses 5 'local-gpu-idx' "$P2P_BENCH" --local --local-gpu-idx=x
# warms_up COUNT FLAG...
warms_up() {
    local count=$1
    shift
    pair 127.0.0.1 --iterations=3 --msize=64 "$@" && said client "3 iterations \($count before\)"
}
check "transport_test --warmup=true: the default" warms_up 1000 --warmup=true --perftype=lat
check "transport_test --warmup=true before its type" warms_up 100 --warmup=true --perftype=tpt
check "transport_test --warmup=true: basic" warms_up 100 --warmup=true
check "transport_test --warmup=false" warms_up 0 --perftype=lat --warmup=false
check "transport_test --warmup=1" warms_up 1 --perftype=lat --warmup=true --warmup=1
check "transport_test --warmup=maybe" refuses 5 'warmup' "$TRANSPORT_TEST" --serverip=127.0.0.1 --warmup=maybe
# the origin of a value, by the variable's name
origin() {
    env NCCL_DEBUG=INFO NCCL_IB_PCI_RELAXED_ORDERING=0 "$BUILD/bench/uccl_info" --json 2>/dev/null | python3 -c "
import json, sys
rows = {r['name']: r for r in json.load(sys.stdin)['params']}
for name, value, source in (('UCCL_LOG_LEVEL', 'info', 'environment, NCCL_DEBUG'),
                            ('UCCL_IB_RELAXED_ORDERING', '0', 'environment, NCCL_IB_PCI_RELAXED_ORDERING'),
                            ('UCCL_GDR', 'auto', 'default')):
    print(rows[name])
    assert rows[name]['value'] == value and rows[name]['source'] == source" || return 1
    env NCCL_DEBUG=INFO "$BUILD/bench/uccl_info" 2>/dev/null |
        grep -q '^  UCCL_LOG_LEVEL = info  (from environment, NCCL_DEBUG; default warn)$'
}
check "uccl_info names the origin" origin
# what is wrong is in the report, and in the exit status
wrong_report() {
    env UCCL_CC=fastest "$BUILD/bench/uccl_info" --params >"$WORK/wrong" 2>&1
    [ $? = 1 ] && grep -q '^UCCL_CC  *NOT ALLOWED ' "$WORK/wrong" || return 1
    env UCCL_CONF_FILE=/nonexistent/uccl.conf "$BUILD/bench/uccl_info" >"$WORK/wrong" 2>&1
    [ $? = 1 ] && grep -q '^  unknown: the configuration file' "$WORK/wrong" && ! grep -qi 'not allowed' "$WORK/wrong" || return 1
    env UCCL_BACKEND=udp UCCL_SOCKET_IFNAME=nosuchif UCCL_CC=fastest "$BUILD/bench/uccl_info" --json >"$WORK/wrong" 2>/dev/null
    [ $? = 1 ] && python3 -c "
import json, sys
report = json.load(open(sys.argv[1]))
assert report['devices'] == [] and report['error'], report['error']
assert [row['value'] for row in report['params'] if row['name'] == 'UCCL_CC'] == [None]" "$WORK/wrong"
}
check "uccl_info of a machine that is configured wrongly" wrong_report
passed_over() {
    CLIENT_ENV=(NCCL_IB_GID_INDEX= NCCL_IB_TC=0x10)
    pair 127.0.0.1 --perftype=basic --iterations=2 || return 1
    said client 'NCCL_IB_GID_INDEX="".*no effect' && said client 'NCCL_IB_TC="0x10".*no effect'
}
check "another library's variables are no reason to fail" passed_over
missing() {
    CLIENT_ENV=("UCCL_SOCKET_IFNAME=lo,nosuchif7" UCCL_IB_HCA=nosuchhca7)
    pair 127.0.0.1 --perftype=basic --iterations=2 || return 1
    said client 'UCCL_SOCKET_IFNAME.*"nosuchif7"' && said client 'UCCL_IB_HCA.*nosuchhca7'
}
check "names that match nothing are told" missing
CLIENT_ENV=()

port_in_use() {
    next_port
    start first "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    local first=$PID
    wait_listening "$first" "$PORT" || return 1
    refuses 5 "$PORT" "$TRANSPORT_TEST" --server=true --oobport="$PORT" || return 1
    refuses 5 "$PORT" "$P2P_BENCH" --local --oobport="$PORT" --sizes=64 --iters=5 || return 1
    start client "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic --iterations=2
    ended "$PID" 20 && [ "$STATUS" = 0 ] || return 1
    ended "$first" 10 && [ "$STATUS" = 0 ]
}
check "port in use" port_in_use

# a server on a free port, which it prints; its client has come before it, and has waited
free_port() {
    start server "$TRANSPORT_TEST" --server --oobport=0
    local server=$PID port
    until_true 10 grep -q 'on TCP port' "$WORK/server.log" || return 1
    port=$(sed -nE 's/.* on TCP port ([0-9]+)$/\1/p' "$WORK/server.log")
    start client "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$port" --perftype=basic --iterations=2
    ended "$PID" 20 && [ "$STATUS" = 0 ] && ended "$server" 10 && [ "$STATUS" = 0 ]
}
check "--oobport=0" free_port
before_its_server() {
    next_port
    start client "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic --iterations=2
    local client=$PID
    sleep 1
    start server "$TRANSPORT_TEST" --server --oobport="$PORT"
    ended "$client" 20 && [ "$STATUS" = 0 ] && ended "$PID" 10 && [ "$STATUS" = 0 ]
}
check "a client that comes before its server" before_its_server
# what the library says of the end counts, though it is not told of each attempt before
refused_later() {
    next_port
    start client env UCCL_BACKEND=tcp "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT"
    local client=$PID
    until_true 10 grep -q 'tries for up to' "$WORK/client.log" || return 1
    start server env UCCL_BACKEND=udp "$TRANSPORT_TEST" --server --oobport="$PORT"
    ended "$client" 20 && [ "$STATUS" = 1 ] && said client 'warning: .*another UCCL_BACKEND' && said client UCCL_EPROTO &&
        [ "$(grep -c 'Connection refused' "$WORK/client.log")" = 1 ]
    local result=$?
    kill "$PID"
    ended "$PID" 5
    return "$result"
}
check "a client that comes before its server, and is refused then" refused_later

# strangers CODE: Python that talks to the listening server; a real client must then succeed, and
# the server must not have spun
strangers() {
    next_port
    start server "$TRANSPORT_TEST" --server=true --oobport="$PORT"
    local server=$PID before used
    wait_listening "$server" "$PORT" || return 1
    before=$(cpu_ticks "$server")
    timeout 30 python3 -c "
import os, socket, struct, time
port = $PORT
def connect():
    s = socket.create_connection(('127.0.0.1', port)); s.settimeout(10); return s
def drain(s):
    try:
        while s.recv(65536): pass
    except OSError: pass
$1" || return 1
    sleep 0.3
    kill -0 "$server" 2>/dev/null || { echo "the server ended" && return 1; }
    used=$(($(cpu_ticks "$server") - before))
    echo "the server used $used ticks of CPU"
    [ "$used" -lt 150 ] || { echo "it was spinning" && return 1; }
    start client "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic --iterations=2
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
    ended "$server" 10 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
}
check "strangers: connect and close" strangers "for i in range(50): connect().close()"
check "strangers: reset" strangers "
for i in range(20):
    s = connect(); s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()"
check "strangers: HTTP" strangers "s = connect(); s.sendall(b'GET / HTTP/1.0\r\n\r\n'); drain(s)"
check "strangers: random bytes" strangers "
for n in (1, 16, 64, 200, 4096, 100000):
    s = connect()
    try: s.sendall(os.urandom(n)); drain(s)
    except OSError: pass"
check "strangers: a flood of zeros" strangers "
s = connect()
try:
    for i in range(200): s.sendall(bytes(65536))
except OSError: pass"
check "strangers: silent ones, given up after the time limit" strangers "
quiet = [connect() for i in range(20)]
time.sleep(3)
for s in quiet: drain(s)"
check "strangers: one byte at a time" strangers "
s = connect()
try:
    for i in range(25): s.sendall(b'U'); time.sleep(0.1)
except OSError: pass"
check "strangers: silent while a real client comes" strangers "
import builtins; builtins.kept = [connect() for i in range(5)]
if os.fork() == 0: time.sleep(5); os._exit(0)"

# what looks like our bootstrap and is not: half of a real client's first bytes, and another version
captured() {
    next_port
    timeout 20 python3 -c "
import socket, sys
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', $PORT)); s.listen(1); s.settimeout(15)
c, _ = s.accept(); c.settimeout(1)
data = b''
try:
    while True:
        d = c.recv(4096)
        if not d: break
        data += d
except OSError: pass
open('$WORK/hello', 'wb').write(data)" &
    local sink=$!
    until_true 5 eval "ss -Hltn 'sport = :$PORT' 2>/dev/null | grep -q ." || sleep 1
    refuses 8 '.' "$TRANSPORT_TEST" --serverip=127.0.0.1 --oobport="$PORT" --perftype=basic \
        --connect-timeout=2 || return 1
    wait "$sink"
    [ -s "$WORK/hello" ]
}
check "a server that accepts and closes" captured
if [ -s "$WORK/hello" ]; then
    check "strangers: the first half of a handshake" strangers "
data = open('$WORK/hello', 'rb').read()
for n in range(1, len(data)):
    s = connect(); s.sendall(data[:n]); s.close()"
    check "strangers: a handshake with one byte changed" strangers "
data = bytearray(open('$WORK/hello', 'rb').read())
for i in range(min(len(data), 32)):
    bad = bytearray(data); bad[i] ^= 0xff
    s = connect()
    try: s.sendall(bad); s.shutdown(socket.SHUT_WR); drain(s)
    except OSError: pass"
fi

# a server address that swallows packets; only in a namespace of our own
if ip netns add "uccl-a-$$" 2>/dev/null; then
    NS_A=uccl-a-$$
    namespaces=("$NS_A" "$NS_A")
    ip -n "$NS_A" link set lo up
    ip -n "$NS_A" route add blackhole 10.99.0.0/24
    # a neighbour that does not exist, behind one end of a veth pair
    ip -n "$NS_A" link add veth0 type veth peer name veth1
    ip -n "$NS_A" link set veth1 up
    ip -n "$NS_A" addr add 10.98.0.1/24 dev veth0
    ip -n "$NS_A" link set veth0 up
    ip -n "$NS_A" neigh add 10.98.0.2 lladdr 02:00:00:00:00:01 dev veth0
    check "no route to the server" refuses 8 '10.99.0.1' \
        ip netns exec "$NS_A" "$TRANSPORT_TEST" --serverip=10.99.0.1 --perftype=basic --connect-timeout=2
    check "a server that never answers" refuses 8 '10.98.0.2' \
        ip netns exec "$NS_A" "$TRANSPORT_TEST" --serverip=10.98.0.2 --perftype=basic --connect-timeout=2
else
    skip "unreachable addresses" "not allowed to make network namespaces" 2
fi
finish
