#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The veth pair v0, v1 in the guest.
#
#   link.sh up|down DEVICE     what the kernel forgets of a device that goes down is set again
#   link.sh mtu BYTES          of both
#   link.sh netem ARGUMENT...  on what either sends: loss 1%, delay 1ms reorder 25%, ...
#   link.sh late MS            what either sends on unreliable connected queue pairs comes MS late
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

# The first byte of a RoCE v2 packet's base header, 28 bytes into the IP packet, names the kind of queue
# pair in its upper three bits: 001 for unreliable connected.
late() {
    for device in v0 v1; do
        tc qdisc add dev $device root handle 1: prio bands 2 priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
        tc qdisc add dev $device parent 1:2 netem delay "$1ms" limit 100000
        tc filter add dev $device parent 1: protocol ip u32 match ip protocol 17 0xff \
            match u16 4791 0xffff at 22 match u8 0x20 0xe0 at 28 flowid 1:2
    done
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
clean) clean ;;
*) exit 2 ;;
esac
