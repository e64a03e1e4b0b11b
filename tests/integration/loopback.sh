#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two real processes over loopback, IPv4 and IPv6: sizes, kinds of test, many connections, and the
# parameters that change how bytes travel. Contents are verified by transport_test.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 100 99

basic() { pair "$1" --perftype=basic --msize="$2" --iterations="$3"; }

in_seconds() {
    local begin
    begin=$(now_ms)
    pair 127.0.0.1 --perftype=basic --iterations=8 || return 1
    [ $(($(now_ms) - begin)) -lt 10000 ] || { echo "took $(($(now_ms) - begin)) ms" && return 1; }
}

UNEQUAL=0 # the defaults
check "basic as in the README, in seconds" in_seconds
UNEQUAL=1

addresses=(127.0.0.1)
if [ -e /proc/net/if_inet6 ] && ip -6 addr show dev lo 2>/dev/null | grep -q ::1; then
    addresses+=(::1)
else
    skip "IPv6" "no ::1 on this machine" 11
fi
for address in "${addresses[@]}"; do
    for size_iterations in 0:8 1:100 2000:100 4096:100 65537:20 1048576:20 67108864:2; do
        check "$address basic ${size_iterations%:*} B" \
            basic "$address" "${size_iterations%:*}" "${size_iterations#*:}"
    done
done

for address in "${addresses[@]}"; do
    check "$address lat" pair "$address" --perftype=lat --msize=8 --iterations=500
    check "$address lat prints percentiles" said client 'p99'
    check "$address tpt" pair "$address" --perftype=tpt --msize=1048576 --iterations=200
    check "$address tpt prints retransmissions" said client 'retransm'
    check "$address bi" pair "$address" --perftype=bi --msize=262144 --iterations=200
done

check "several messages and requests outstanding" \
    pair 127.0.0.1 --perftype=basic --msize=30000 --nmsg=8 --nreq=4 --iterations=20
check "several connections, both directions" \
    pair 127.0.0.1 --perftype=basic --msize=100000 --nflow=4 --nmsg=4 --nreq=2 --bi --iterations=10
check "flush and warm-up" \
    pair 127.0.0.1 --perftype=basic --msize=10000 --flush --warmup=5 --iterations=5
check "values after a space" \
    pair 127.0.0.1 --perftype basic --msize 10000 --iterations 5 --bi=false --logtostderr=true --flush
connections=200
[ "$SHORT" = 0 ] || connections=40
check "$connections connections" \
    pair 127.0.0.1 --perftype=basic --msize=65536 --nflow=$connections --iterations=4
check "$connections connections, small messages both ways" \
    pair 127.0.0.1 --perftype=bi --msize=256 --nflow=$connections --iterations=20
if [ "$SHORT" = 0 ]; then
    UNEQUAL=0
    check "a message of 1 GiB" basic 127.0.0.1 1073741824 1
    UNEQUAL=1
fi

# parameters: each on both sides, then the two sides different where that must work
with() {
    read -ra SERVER_ENV <<<"$1"
    CLIENT_ENV=("${SERVER_ENV[@]}")
    shift
    pair "$@"
    local result=$?
    SERVER_ENV=() CLIENT_ENV=()
    return "$result"
}
for setting in UCCL_UDP_IO=mmsg UCCL_LEND=yes UCCL_LEND=no UCCL_NUM_ENGINES=1 UCCL_NUM_ENGINES=2 \
    UCCL_NUM_ENGINES=4 UCCL_CC=timely UCCL_CC=eqds UCCL_PATH_POLICY=rr UCCL_PATH_POLICY=pow2 \
    UCCL_PORT_ENTROPY=1 UCCL_PORT_ENTROPY=32 UCCL_PAYLOAD_CRC=1 UCCL_EAGER_KB=0 \
    UCCL_EAGER_KB=64 UCCL_CHUNK_SIZE_KB=1 UCCL_CHUNK_SIZE_KB=4 UCCL_MTU=1500 UCCL_MTU=1280 \
    UCCL_SPIN_US=0 UCCL_SPIN_US=100000 UCCL_RING_ENTRIES=16 UCCL_MAX_REQUESTS=64 \
    UCCL_MSG_WINDOW=16 UCCL_CHUNK_WINDOW=64 UCCL_SOCKET_BUFFER_KB=64 UCCL_PIN=1 \
    UCCL_ACK_EVERY=1 UCCL_ACK_DELAY_US=0 UCCL_LOG_LEVEL=debug; do
    for size in 300 200000; do
        check "$setting, $size B" \
            with "$setting" 127.0.0.1 --perftype=basic --msize=$size --nmsg=4 --nreq=8 --iterations=20
    done
done
# a ring belongs to one thread, so it does not go with lent engines
uring="UCCL_UDP_IO=uring UCCL_LEND=no"
if uring_works; then
    for size_iterations in 300:20 200000:20 4000000:6; do
        check "io_uring, ${size_iterations%:*} B" with "$uring" 127.0.0.1 --perftype=basic \
            --msize="${size_iterations%:*}" --nmsg=4 --nreq=4 --iterations="${size_iterations#*:}"
    done
    check "io_uring, ping-pong" with "$uring" 127.0.0.1 --perftype=lat --msize=8 --iterations=500
    check "io_uring, 4 engines, 16 connections both ways" with "$uring UCCL_NUM_ENGINES=4" \
        127.0.0.1 --perftype=basic --msize=50000 --nflow=16 --bi --iterations=20
    read -ra CLIENT_ENV <<<"$uring"
    SERVER_ENV=(UCCL_UDP_IO=mmsg)
    check "io_uring against mmsg" pair 127.0.0.1 --perftype=basic --msize=300000 --iterations=20
else
    skip "io_uring" "not in this build, or not allowed here" 6
fi
CLIENT_ENV=(UCCL_NUM_ENGINES=3 UCCL_CC=eqds UCCL_CHUNK_SIZE_KB=8 UCCL_MSG_WINDOW=64 UCCL_CHUNK_WINDOW=256 UCCL_EAGER_KB=2 UCCL_PORT_ENTROPY=2)
SERVER_ENV=(UCCL_NUM_ENGINES=1 UCCL_LEND=no UCCL_EAGER_KB=16 UCCL_MTU=4000 UCCL_PAYLOAD_CRC=1)
for size in 3000 300000; do
    check "the two sides configured differently, $size B" \
        pair 127.0.0.1 --perftype=basic --msize=$size --nmsg=4 --nreq=4 --bi --iterations=20
done
finish
