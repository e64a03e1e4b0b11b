#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One of two NICs is cut three times; UDP or TCP is dropped by one of them or by both. Over TCP, links that go down. With
# rates, and more cuts: tests/run.sh rails.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/rails/lib.sh
. "$(dirname "$0")/../rails/lib.sh"

plan 13

# kind_is_dropped KIND WHO NIC...: amid a verified stream, whose messages TCP carries, what is of this kind (udp, tcp) gets
# through by these NICs no more. The log says so; the stream goes on, by both NICs, and ends well.
kind_is_dropped() {
    local -x UCCL_BACKEND=auto # also where all else goes over TCP
    local kind=$1 who=$2 nic from0 from1 ns result=0
    network "$R" "$R" || return 1
    UCCL_LOG_LEVEL=info stream 200 1048576 4 || return 1
    until_true 20 grep -q 'connects TCP for large messages' "$WORK/sender.log" || return 1
    sleep 0.3
    shift 2
    for ns in "${NS[@]}"; do
        ip netns exec "$ns" nft "add table inet cut; add chain inet cut in { type filter hook input priority 0; }"
        for nic in "$@"; do
            ip netns exec "$ns" nft "add rule inet cut in iifname nic$nic meta l4proto $kind drop" || return 1
        done
    done
    for nic in "$@"; do
        until_true 20 grep -q "$who by network interface nic$nic;" "$WORK/sender.log" ||
            { echo "nothing is said of nic$nic" && result=1; }
    done
    from0=$(($(sent 0) + 5000000)) from1=$(($(sent 1) + 5000000))
    until_true 20 carries 0 "$from0" && until_true 20 carries 1 "$from1" || { echo "a NIC carries nothing" && result=1; }
    mend "$kind"
    kill -TERM "$SENDER_PID" 2>/dev/null || { echo "the stream ended early" && result=1; }
    stream_ends 60 && return "$result"
}

# mostly_tcp: of what went by each NIC since it is counted
mostly_tcp() {
    local nic kind tcp udp result=0
    for nic in 0 1; do
        for kind in tcp udp; do
            read -r "$kind" < <(ip netns exec "${NS[1]}" nft list counter inet seen "$kind$nic" |
                grep -oE 'bytes [0-9]+' | grep -oE '[0-9]+')
        done
        echo "nic$nic: $tcp bytes of TCP, $udp of UDP"
        [ "$tcp" -ge 5000000 ] && [ "$udp" -le $((tcp / 10)) ] || result=1
    done
    return "$result"
}

# both_have_connections: and what goes by the NICs is TCP
both_have_connections() {
    local -x UCCL_BACKEND=auto
    local nic result=0
    network "$R" "$R" || return 1
    UCCL_LOG_LEVEL=info stream 200 1048576 4 || return 1
    until_true 20 grep -q 'connects TCP for large messages' "$WORK/sender.log" || return 1
    sleep 0.3
    for nic in 0 1; do
        ip netns exec "${NS[1]}" nft "add table inet seen; add chain inet seen out { type filter hook output priority 0; }; \
            add counter inet seen tcp$nic; add counter inet seen udp$nic; \
            add rule inet seen out oifname nic$nic meta l4proto tcp counter name tcp$nic; \
            add rule inet seen out oifname nic$nic meta l4proto udp counter name udp$nic" || return 1
    done
    until_true 20 mostly_tcp || result=1
    kill -TERM "$SENDER_PID"
    stream_ends 60 && return "$result"
}

# link_is_told: by the end whose link is set down, which the kernel tells at once. The other end's carrier is lost too,
# but the kernel tells that up to a second late, when a short cut is over
link_is_told() {
    cat "$WORK/sender.log" "$WORK/receiver.log" >"$WORK/both.log"
    said both 'network interface nic[01] is down or gone'
}

check_cuts 3
check "UDP is dropped by one NIC: all goes on, by both" kind_is_dropped udp 'no datagram gets through' 0
check "UDP is dropped by both NICs: TCP carries all" kind_is_dropped udp 'no datagram gets through' 0 1
check "TCP is dropped by both NICs: UDP carries all" kind_is_dropped tcp 'no TCP gets through' 0 1
check "large messages go over TCP by both NICs" both_have_connections
export UCCL_BACKEND=tcp
KINDS=(down) CUTS_S=(0.3 0.5 0.8) RETURN_S=3 LONGEST_MS_MAX=2000
check_cuts 2
check "the log tells of the link" link_is_told
finish
