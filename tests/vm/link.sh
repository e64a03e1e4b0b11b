#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The veth pair v0, v1 in the guest.
#
#   link.sh up|down DEVICE     what the kernel forgets of a device that goes down is set again
#   link.sh mtu BYTES          of both
#   link.sh netem ARGUMENT...  on what either sends: loss 1%, delay 1ms reorder 25%, ...
#   link.sh late MS            what either sends to the connected queue pairs that there are now comes MS late
#   link.sh held               prints how many packets wait to be late
#   link.sh clean              without any of that
set -eu

number() { echo "${1#v}"; }

up() {
    local device=$1 own=$(($(number "$1") + 1))
    local peer=$((3 - own))
    ip link set "$device" up
    # no ARP, which loss would hit too
    ip neigh replace 10.0.0.$peer lladdr 02:00:00:00:00:0$peer dev "$device" nud permanent
    ip route replace 10.0.0.$peer dev "$device" src 10.0.0.$own table $((50 + own))
}

clean() {
    for device in v0 v1; do tc qdisc del dev $device root 2>/dev/null || true; done
}

# late MS: RoCE v2's base header, 28 bytes into the IP packet, has the destination's queue pair in its
# second word
late() {
    local device number
    for device in v0 v1; do
        tc qdisc add dev $device root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
        tc qdisc add dev $device parent 1:2 handle 2: netem delay "$1ms" limit 100000
    done
    for number in $(rdma resource show qp | sed -n 's/^link rxe[01].* lqpn \([0-9]*\) .*type [UR]C .*/\1/p'); do
        for device in v0 v1; do # each number is one of either device; the other one has no use for it
            tc filter add dev $device parent 1: protocol ip u32 match ip protocol 17 0xff \
                match u16 4791 0xffff at 22 match u32 "$number" 0xffffff at 32 flowid 1:2
        done
    done
}

held() {
    for device in v0 v1; do tc -s qdisc show dev $device; done |
        awk '/^qdisc/ { late = $2 == "netem" } late && $1 == "backlog" { sum += $3 } END { print sum + 0 }'
}

action=$1
shift
case $action in
up) up "$1" ;;
down) ip link set "$1" down ;;
mtu) for device in v0 v1; do ip link set $device mtu "$1"; done ;;
netem)
    clean # "change" would keep what the new arguments do not mention
    for device in v0 v1; do tc qdisc add dev $device root netem "$@" limit 100000; done
    ;;
late)
    clean
    late "$1"
    ;;
held) held ;;
clean) clean ;;
*) exit 2 ;;
esac
