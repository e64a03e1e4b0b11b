#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A thread reads receives that are pending, between two namespaces whose network loses, repeats and reorders datagrams:
# with UCCL_RECV_WATCHED it sees no word that is half there, and no last word of 128 bytes before the others. Without
# it, it does, or else it could not be trusted to.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 13
need_namespaces

WATCHER=$BUILD/tests/watcher
SIZES=(1024 2048 5000 8192 65536)
FAULTS="--loss 2 --dup 2 --jitter-us 200 --reorder 10"
seconds=1

# watch SECONDS watched|plain ADDRESS "NAME=VALUE..." SIZE...: sets counts of what the watcher has seen
watch() {
    local limit=$1 how=$2 address=$3 result=0 settings receiver sender line
    read -ra settings <<<"$4"
    shift 4
    next_port
    start receiver "${IN_SERVER[@]}" env "${settings[@]}" "$WATCHER" receive "$PORT" "$limit" "$how" "$@"
    receiver=$PID
    wait_listening "$receiver" "$PORT" || return 1
    start sender "${IN_CLIENT[@]}" env "${settings[@]}" "$WATCHER" send "$address" "$PORT" "$@"
    sender=$PID
    ended "$receiver" $((limit + 60)) || result=1
    [ "$STATUS" = 0 ] || { echo "receiver: status $STATUS" && result=1; }
    ended "$sender" 20 || result=1
    [ "$STATUS" = 0 ] || { echo "sender: status $STATUS" && result=1; }
    line=$(grep '^steps' "$WORK/receiver.log")
    echo "$line"
    [[ $line =~ ^steps\ ([0-9]+)\ scans\ ([0-9]+)\ torn\ ([0-9]+)\ behind\ ([0-9]+) ]] || return 1
    steps=${BASH_REMATCH[1]} scans=${BASH_REMATCH[2]} torn=${BASH_REMATCH[3]} behind=${BASH_REMATCH[4]}
    return "$result"
}

# faulty FLAGS COMMAND...: with a relay between the namespaces
faulty() {
    local flags result=0
    read -ra flags <<<"$1"
    shift
    start relay "$RELAY" "${flags[@]}" "$NS_A" "$NS_B"
    local relay=$PID
    until_true 10 grep -q ready "$WORK/relay.log" || return 1
    "$@" || result=1
    kill -TERM "$relay"
    ended "$relay" 10 || result=1
    return "$result"
}

whole() {
    watch "$seconds" watched "$@" || return 1
    [ "$scans" -ge 50 ] || { echo "too little was looked at" && return 1; }
    [ "$torn" = 0 ] && [ "$behind" = 0 ]
}

torn() {
    watch 60 plain "$@" || return 1
    [ "$torn" -gt 0 ] && [ "$behind" -gt 0 ]
}

MMSG="UCCL_UDP_IO=mmsg UCCL_LEND=yes"
URING="UCCL_UDP_IO=uring UCCL_LEND=no"
drivers=("$MMSG")
# an engine opens, though nobody listens on port 1
if env UCCL_UDP_IO=uring UCCL_LEND=no "$WATCHER" send 127.0.0.1 1 8 2>&1 | grep -q 'watcher: connect'; then
    drivers+=("$URING")
else
    skip "io_uring" "not allowed, or not built" 5
fi

if [ -c /dev/net/tun ]; then
    two_namespaces tun 1480
    check "not watched, MTU 1480: torn words are seen" faulty "$FAULTS" torn 10.78.0.1 "$MMSG" 65536
    for mtu in 1480 1500 8924 9000; do
        two_namespaces tun "$mtu"
        for driver in "${drivers[@]}"; do
            check "watched, MTU $mtu, $driver" faulty "$FAULTS" whole 10.78.0.1 "$driver" "${SIZES[@]}"
        done
    done
    check "watched, MTU $mtu, parts" faulty "$FAULTS" whole 10.78.0.1 \
        "UCCL_NUM_ENGINES=2 UCCL_STRIPE_MIN_KB=64 UCCL_LEND=no" "${SIZES[@]}" 300000
    check "watched, MTU $mtu, IPv6" faulty "$FAULTS" whole fd78::1 "$MMSG" "${SIZES[@]}"
else
    skip "with faults" "no /dev/net/tun"
fi

two_namespaces up 8924 joined # trains, which are received in place where nobody watches
for driver in "${drivers[@]}"; do
    check "watched, joined by GRO, $driver" whole 10.77.0.1 "$driver" "${SIZES[@]}" 1000000
done
finish
