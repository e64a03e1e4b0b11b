#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# transport_test and p2p_bench by one-sided operations: contents verified, with all flags, with loss, and with killed
# peers.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 31 29

PRELOAD= # a sanitizer's library comes first
[ "${TEST_SANITIZED:-0}" = 0 ] || PRELOAD=$(gcc -print-file-name=libasan.so):

for type in write read notify; do
    check "$type, as by default" pair 127.0.0.1 --perftype=$type --iterations=200
    check "$type of nothing" pair 127.0.0.1 --perftype=$type --msize=0 --iterations=50
    check "$type of 1 byte" pair 127.0.0.1 --perftype=$type --msize=1 --iterations=50
    check "$type, several connections both ways, warm-up, flush" pair 127.0.0.1 --perftype=$type --msize=9001 --nflow=4 \
        --nmsg=3 --nreq=5 --bi --warmup=7 --iterations=20 --flush
done
for type in write read; do
    check "$type of 1000 pieces" pair 127.0.0.1 --perftype=$type --msize=4096 --nmsg=1000 --nreq=4 --iterations=10
    if [ "$SHORT" = 0 ]; then
        check "$type of 32 MiB" pair 127.0.0.1 --perftype=$type --msize=32M --iterations=6
    fi
done
check "notify of 64 KiB" pair 127.0.0.1 --perftype=notify --msize=64K --iterations=100
check "notify, 100 connections" pair 127.0.0.1 --perftype=notify --nflow=100 --iterations=30

# ---- loss: each end loses and repeats some of its datagrams ----
lossy() {
    local result
    SERVER_ENV=(UCCL_UDP_IO=mmsg LOSE=0.02 TWICE=0.01 LOSE_SEED=3 LD_PRELOAD="$PRELOAD$BUILD/tests/lose.so")
    CLIENT_ENV=("${SERVER_ENV[@]}" LOSE_SEED=4)
    pair 127.0.0.1 "$@" && [ "$(retransmits)" -gt 0 ]
    result=$?
    SERVER_ENV=() CLIENT_ENV=()
    return "$result"
}
check "write with loss" lossy --perftype=write --iterations=100
check "read with loss" lossy --perftype=read --iterations=100
check "notify with loss" lossy --perftype=notify --iterations=10000
check "writes of 300 pieces both ways with loss" lossy --perftype=write --msize=1000 --nmsg=300 --nflow=2 --bi --iterations=20

# ---- the peer dies: the other says so in time ----
export UCCL_DEAD_PEER_MS=1000 UCCL_LINGER_MS=500
dies() {
    local victim other log
    start_pair 127.0.0.1 --perftype="$2" --iterations=100000000 || return 1
    until_true 10 grep -q outstanding "$WORK/client.log" && until_true 10 grep -q outstanding "$WORK/server.log" ||
        return 1
    victim=$SERVER_PID other=$CLIENT_PID log=client
    [ "$1" = server ] || victim=$CLIENT_PID other=$SERVER_PID log=server
    sleep 0.2
    kill -KILL "$victim"
    ended "$other" 6 && [ "$STATUS" = 1 ] && said "$log" 'error: .*UCCL_E'
}
for type in write read notify; do
    check "the server is killed, $type" dies server $type
done
check "the client is killed, write" dies client write

# ---- p2p_bench ----
valid() {
    local count=$1 pieces=$2
    shift 2
    timeout 100 "$P2P_BENCH" --local --json "$@" >"$WORK/out.json" 2>"$WORK/p2p.log" || return 1
    python3 - "$WORK/out.json" "$count" "$pieces" <<'END'
import json, sys
report = json.load(open(sys.argv[1]))
rows = report["results"]
print(report)
assert report["op"] in ("write", "read") and len(rows) == int(sys.argv[2])
for row in rows:
    assert row["verified"] is True and row["pieces"] == min(int(sys.argv[3]), row["size_bytes"])
    assert row["gbps"] > 0 and 0 < row["lat_us_p50"] <= row["lat_us_p99"] and row["messages"] > 0
END
}
check "p2p_bench --op=write --pieces=1000" valid 3 1000 --op=write --pieces=1000 --sizes=256,64K,4M --seconds=0.2
check "p2p_bench --op=read, all verified" valid 2 7 --op=read --pieces=7 --sizes=100,1M --seconds=0.2 --verify --bi
check "p2p_bench --op=write, all verified, both ways" valid 2 1 --op=write --sizes=8,1M --seconds=0.2 --verify --bi
check "p2p_bench --op=read by count" valid 1 1 --op=read --sizes=1M --iterations=50
usage() {
    local flag
    for flag in --op=notify --op= "--pieces=2" "--op=write --pieces=0" "--op=write --pieces=65537"; do
        # shellcheck disable=SC2086
        "$P2P_BENCH" --local $flag >"$WORK/usage" 2>&1
        [ $? = 64 ] || { echo "$flag" && cat "$WORK/usage" && return 1; }
    done
    "$TRANSPORT_TEST" --serverip=127.0.0.1 --perftype=notify --msize=65537 >"$WORK/usage" 2>&1
    [ $? = 64 ] && grep -q -- '--msize: at most 64K with --perftype=notify' "$WORK/usage"
}
check "flags that make no sense are refused" usage
finish
