#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two network namespaces joined by a veth pair, or by a pair of TUN devices for tests/net/relay.
#
#   netns.sh up A B [MTU [segmented|joined]]   veth: A has 10.77.0.1 fd77::1, B has 10.77.0.2 fd77::2
#   netns.sh tun A B [MTU]              TUN device tun0: A has 10.78.0.1 fd78::1, B has .2 ::2
#   netns.sh down A B [C...]            removes them, and all that is in them
#
# `segmented` switches every offload off, so that datagrams really cross the wire one by one at the
# MTU; without it veth passes whole GSO trains and the MTU hardly matters. With `joined` they do, and the
# receiver joins what follows each other to trains again (GRO), as it is with a NIC. "up" and "tun" make
# the namespaces where they do not exist yet.
set -eu

usage() {
    sed -n '3,13s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

make_namespaces() {
    for ns in "$1" "$2"; do
        [ -e "/run/netns/$ns" ] || ip netns add "$ns"
        ip -n "$ns" link set lo up
    done
}

[ $# -ge 3 ] || usage
a=$2 b=$3 mtu=${4:-1500}
case $1 in
up)
    make_namespaces "$a" "$b"
    ip link add veth0 netns "$a" type veth peer name veth0 netns "$b"
    host=1
    for ns in "$a" "$b"; do
        ip -n "$ns" addr add "10.77.0.$host/24" dev veth0
        ip -n "$ns" addr add "fd77::$host/64" dev veth0 nodad
        if [ -n "${5:-}" ]; then
            # the last one is missing on some kernels; gso off already splits before the device
            ip netns exec "$ns" ethtool -K veth0 gso off tso off gro off >/dev/null
            ip netns exec "$ns" ethtool -K veth0 tx-udp-segmentation off >/dev/null 2>&1 || true
        fi
        [ "${5:-}" != joined ] || ip netns exec "$ns" ethtool -K veth0 gro on >/dev/null
        ip -n "$ns" link set veth0 mtu "$mtu" up
        host=2
    done
    ;;
tun)
    make_namespaces "$a" "$b"
    host=1
    for ns in "$a" "$b"; do
        ip -n "$ns" tuntap add dev tun0 mode tun
        ip -n "$ns" addr add "10.78.0.$host/24" dev tun0
        ip -n "$ns" addr add "fd78::$host/64" dev tun0 nodad
        ip -n "$ns" link set tun0 mtu "$mtu" txqueuelen 10000 up
        host=2
    done
    ;;
down)
    shift
    for ns in "$@"; do
        [ ! -e "/run/netns/$ns" ] || ip netns del "$ns"
    done
    ;;
*) usage ;;
esac
