#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The veth pairs v0, v1 and v2, v3 in the guest.
#
#   link.sh up|down DEVICE     what the kernel forgets of a device that goes down is set again
#   link.sh mtu BYTES          of v0 and v1
#   link.sh netem ARGUMENT...  on what v0 or v1 sends: loss 1%, delay 1ms reorder 25%, ...
#   link.sh hold               what either sends to the connected queue pairs that the other has now is held back
#   link.sh held               prints how many packets are held back
#   link.sh release            they come, and what is sent from now on
#   link.sh swallow DEVICE     RoCE packets that it sends are lost
#   link.sh clean              without any of that
set -eu

number() { echo "${1#v}"; }

up() {
    local device=$1 index
    index=$(number "$1")
    local pair=$((index / 2)) own=$((index % 2 + 1)) peer=$((2 - index % 2))
    ip link set "$device" up
    # no ARP, which loss would hit too
    ip neigh replace 10.0.$pair.$peer lladdr 02:00:00:00:0$pair:0$peer dev "$device" nud permanent
    ip route replace 10.0.$pair.$peer dev "$device" src 10.0.$pair.$own table $((50 + index))
}

clean() {
    for device in v0 v1 v2 v3; do tc qdisc del dev $device root 2>/dev/null || true; done
}

# TCP goes on: the handshake's packets are not the NIC's
swallow() {
    tc qdisc replace dev "$1" root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
    tc qdisc replace dev "$1" parent 1:2 handle 2: netem loss 100%
    tc filter add dev "$1" parent 1: protocol ip u32 match ip protocol 17 0xff match u16 4791 0xffff at 22 flowid 1:2
}

# RoCE v2's base header, 28 bytes into the IP packet, has the destination's queue pair in its second word. Only
# numbers of the device that receives: the same one may be another kind of queue pair on the other device.
hold() {
    local device peer number
    for device in v0 v1; do
        tc qdisc add dev $device root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
        tc qdisc add dev $device parent 1:2 handle 2: plug limit 100000000
        peer=rxe$((1 - $(number $device)))
        for number in $(rdma resource show qp | sed -n "s/^link $peer.* lqpn \([0-9]*\) .*type [UR]C .*/\1/p"); do
            tc filter add dev $device parent 1: protocol ip u32 match ip protocol 17 0xff \
                match u16 4791 0xffff at 22 match u32 "$number" 0xffffff at 32 flowid 1:2
        done
    done
}

release() {
    local device
    for device in v0 v1; do tc qdisc change dev $device parent 1:2 handle 2: plug release_indefinite; done
}

held() {
    local device
    for device in v0 v1; do tc -s qdisc show dev $device; done |
        awk '/^qdisc/ { plug = $2 == "plug" } plug && $1 == "backlog" { sum += $3 } END { print sum + 0 }'
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
hold)
    clean
    hold
    ;;
held) held ;;
release) release ;;
swallow) swallow "$1" ;;
clean) clean ;;
*) exit 2 ;;
esac
