#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two namespaces with a bad network between them. Over veth with offloads off, a native XDP program
# on each end drops single datagrams; between TUN devices a relay plays reordering, duplication,
# corruption and delay as well. Each case checks that the fault really happened.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 62 54
need_namespaces
export UCCL_BACKEND=udp # large messages would go over TCP

XDP_LOSS=$BUILD/tests/xdp_loss
PAIR_LIMIT_S=120 # datagrams of their own size take a loaded machine long
scale=1
[ "$SHORT" = 0 ] || scale=4

# counted NAME LOG: one of the counts that a fault tool printed at its end
counted() { grep -oE "$1 [0-9]+" "$WORK/$2.log" | grep -oE '[0-9]+' | grep . || echo 0; }

# faults_on PERCENT: drop datagrams at both ends of the veth pair
faults_on() {
    faults=()
    [ "$1" != 0 ] || return 0
    local ns
    for ns in "$NS_A" "$NS_B"; do
        start "loss-$ns" "$XDP_LOSS" "$BUILD/tests/xdp_loss.bpf.o" "$ns" veth0 "$1"
        faults+=("$PID")
        until_true 10 grep -q ready "$WORK/loss-$ns.log" || return 1
    done
    # attaching takes the link down for a moment
    for ns in "$NS_A" "$NS_B"; do
        until_true 20 eval "ip -n $ns -br link show veth0 | grep -q ' UP '" || return 1
    done
}

# ends the fault tools and lets them print
faults_off() {
    local pid
    for pid in "${faults[@]}"; do
        kill -TERM "$pid"
        ended "$pid" 10 || return 1
    done
}

# lossy PERCENT LEAST ADDRESS FLAG...: the pair succeeds, at least LEAST datagrams were dropped,
# and repeats were counted
lossy() {
    local percent=$1 least=$2 result=0 lost
    shift 2
    faults_on "$percent" || return 1
    pair "$@" || result=1
    faults_off || result=1
    if [ "$percent" != 0 ]; then
        lost=$(($(counted lost "loss-$NS_A") + $(counted lost "loss-$NS_B")))
        echo "dropped $lost, retransmits $(retransmits)"
        [ "$lost" -ge "$least" ] || { echo "too few datagrams were dropped" && result=1; }
        [ "$least" -eq 0 ] || [ "$(retransmits)" -gt 0 ] || {
            echo "no retransmission was counted"
            result=1
        }
    fi
    return "$result"
}

if [ -x "$XDP_LOSS" ]; then
    for mtu in 1500 9000; do
        two_namespaces up "$mtu" segmented
        for loss in 0 0.1 1 5; do
            [ "$SHORT" = 0 ] || [ "$loss" != 0.1 ] || continue
            [ "$loss" = 0.1 ] && messages=120 || messages=60 # 7000 datagrams of 9000 bytes lose none once in a thousand runs
            check "MTU $mtu loss $loss%, 1 B" \
                lossy $loss 0 10.77.0.1 --perftype=basic --msize=1 --nreq=8 --iterations=$((400 / scale))
            check "MTU $mtu loss $loss%, 4 KiB" \
                lossy $loss 0 10.77.0.1 --perftype=basic --msize=4096 --nreq=8 --iterations=$((400 / scale))
            check "MTU $mtu loss $loss%, 1 MiB" \
                lossy $loss 1 10.77.0.1 --perftype=basic --msize=1048576 --nreq=4 --iterations=$((messages / scale))
            check "MTU $mtu loss $loss%, 16 MiB both ways" \
                lossy $loss 1 10.77.0.1 --perftype=basic --msize=16777216 --bi --iterations=$((4 / scale))
        done
        check "MTU $mtu loss 1%, IPv6" \
            lossy 1 1 fd77::1 --perftype=basic --msize=1000000 --iterations=$((40 / scale))
        check "MTU $mtu loss 1%, throughput both ways on 8 connections" \
            lossy 1 1 10.77.0.1 --perftype=bi --msize=262144 --nflow=8 --iterations=$((40 / scale))
        check "MTU $mtu loss 1%, latency" \
            lossy 1 0 10.77.0.1 --perftype=lat --msize=8 --iterations=$((1000 / scale))
    done
    two_namespaces up 9000 joined # trains with holes and strangers in them: payload is received in place
    for loss in 0 1 5; do
        check "MTU 9000 joined by GRO, loss $loss%, 1 MiB both ways" \
            lossy $loss 1 10.77.0.1 --perftype=basic --msize=1048576 --nreq=4 --bi --iterations=$((60 / scale))
        check "MTU 9000 joined by GRO, loss $loss%, 8 connections" \
            lossy $loss 1 10.77.0.1 --perftype=basic --msize=262144 --nflow=8 --iterations=$((40 / scale))
    done
    two_namespaces up 9000
    check "offloads on" pair 10.77.0.1 --perftype=basic --msize=1048576 --iterations=50
    check "offloads on, IPv6" pair fd77::1 --perftype=basic --msize=1048576 --iterations=50
else
    skip "single-datagram loss on veth" "xdp_loss was not built (clang, libbpf-dev)" $((SHORT ? 38 : 46))
fi

# relayed NAME "RELAY FLAGS" COUNT: a relay with these faults; the pair succeeds and the relay's
# COUNT (lost, duplicated, ...) is above 0
relayed() {
    local flags=$1 count=$2 result=0
    shift 2
    read -ra flags <<<"$flags"
    start relay "$RELAY" "${flags[@]}" "$NS_A" "$NS_B"
    faults=("$PID")
    until_true 10 grep -q ready "$WORK/relay.log" || return 1
    pair "$@" || result=1
    faults_off || result=1
    [ "$(counted "$count" relay)" -gt 0 ] || { echo "the relay's count '$count' is 0" && result=1; }
    return "$result"
}

if [ -c /dev/net/tun ]; then
    two_namespaces tun 1500
    big=(--perftype=basic --msize=1048576 --nreq=2 --iterations=$((40 / scale)))
    small=(--perftype=basic --msize=300 --nreq=8 --iterations=$((400 / scale)))
    check "relay, no fault" relayed "" packets 10.78.0.1 "${big[@]}"
    check "relay, IPv6" relayed "--loss 1" lost fd78::1 "${big[@]}"
    for kind in "reordering:--jitter-us 1000 --reorder 10:delayed" \
        "heavy reordering:--jitter-us 5000:delayed" \
        "duplication:--dup 5:duplicated" \
        "delay of 5 ms each way and loss:--delay-us 5000 --loss 1:lost" \
        "200 Mbit/s with a queue that overflows:--rate-mbit 200 --delay-us 500:packets" \
        "loss, duplication and reordering:--loss 1 --dup 2 --jitter-us 500 --reorder 20:lost"; do
        IFS=: read -r name flags count <<<"$kind"
        # a path longer than Swift's target is slow without this, and small chunks make it slower
        SERVER_ENV=() few=()
        if [[ $flags == *5000* ]]; then SERVER_ENV=(UCCL_SWIFT_TARGET_US=20000) few=(--iterations=$((12 / scale))); fi
        CLIENT_ENV=("${SERVER_ENV[@]}")
        check "$name, 1 MiB" relayed "$flags" "$count" 10.78.0.1 "${big[@]}" "${few[@]}"
        check "$name, 300 B" relayed "$flags" "$count" 10.78.0.1 "${small[@]}"
    done
    SERVER_ENV=(UCCL_PAYLOAD_CRC=1) CLIENT_ENV=(UCCL_PAYLOAD_CRC=1)
    check "flipped bits with UCCL_PAYLOAD_CRC=1, 1 MiB" \
        relayed "--corrupt 1" corrupted 10.78.0.1 "${big[@]}"
    check "flipped bits with UCCL_PAYLOAD_CRC=1, 300 B" \
        relayed "--corrupt 1" corrupted 10.78.0.1 "${small[@]}"
    SERVER_ENV=() CLIENT_ENV=()
else
    skip "reordering and duplication" "no /dev/net/tun" 16
fi
finish
