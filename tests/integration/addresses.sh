#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Which address a machine goes by, and how others get there: interfaces without carrier, an address on loopback,
# link-local addresses whose interfaces have other numbers on the other machine.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
need_namespaces

INFO=$BUILD/bench/uccl_info
NS_A=uccl-adr-a-$$ NS_B=uccl-adr-b-$$
namespaces=("$NS_A" "$NS_B")
IN_SERVER=(ip netns exec "$NS_A")
IN_CLIENT=(ip netns exec "$NS_B")

make_two() {
    "$NETNS" down "$NS_A" "$NS_B"
    local ns
    for ns in "$NS_A" "$NS_B"; do
        ip netns add "$ns"
        ip -n "$ns" link set lo up
    done
}

# devices EXPECTED: "name address" of every device of A in order, comma-separated
devices() {
    local seen
    seen=$("${IN_SERVER[@]}" env UCCL_BACKEND=udp "$INFO" --json | python3 -c "
import json, sys
print(','.join(d['name'] + ' ' + d['address'] for d in json.load(sys.stdin)['devices']))")
    echo "devices: $seen"
    [ "$seen" = "$1" ]
}

# the first, by number too, has nothing plugged in
make_two
ip -n "$NS_A" link add dead0 type veth peer name dead1
ip -n "$NS_A" addr add 10.70.0.1/24 dev dead0
ip -n "$NS_A" link set dead0 up
ip -n "$NS_A" link add live0 type veth peer name live1
ip -n "$NS_A" addr add 10.71.0.1/24 dev live0
for end in live0 live1; do
    ip netns exec "$NS_A" sh -c "echo 1 >/proc/sys/net/ipv6/conf/$end/disable_ipv6"
    ip -n "$NS_A" link set "$end" up
done
check "an interface without carrier is the last choice" \
    devices "live0 10.71.0.1,lo 127.0.0.1,dead0 10.70.0.1"
ip -n "$NS_A" link set live0 down
check "also behind loopback" devices "lo 127.0.0.1,dead0 10.70.0.1"

# routed to the host: link-local addresses alone on the links, the host's own on loopback
make_two
ip -n "$NS_A" link add link0 type veth peer name link0 netns "$NS_B"
host=1
for ns in "$NS_A" "$NS_B"; do
    ip -n "$ns" addr add "169.254.7.$host/24" dev link0
    ip netns exec "$ns" sh -c "echo 1 >/proc/sys/net/ipv6/conf/link0/disable_ipv6"
    ip -n "$ns" link set link0 up
    host=2
done
check "without an address of the host loopback is behind what has a link" \
    devices "link0 169.254.7.1,lo 127.0.0.1"
ip -n "$NS_A" addr add 10.99.0.1/32 dev lo
ip -n "$NS_B" addr add 10.99.0.2/32 dev lo
ip -n "$NS_A" route add 10.99.0.2 via 169.254.7.2
ip -n "$NS_B" route add 10.99.0.1 via 169.254.7.1
check "the host's address on loopback is found" devices "lo 10.99.0.1,link0 169.254.7.1"

# by_handle ADDRESS CLIENT_ENV...: A offers, B takes and goes to ADDRESS; a message each way
by_handle() {
    local address=$1 offer
    shift
    rm -f "$WORK/handle"
    start offer "${IN_SERVER[@]}" "$ENDPOINT" offer "$WORK/handle" recv:300000 wait send:8 wait
    offer=$PID
    until_true 10 test -e "$WORK/handle" || return 1
    start take "${IN_CLIENT[@]}" env UCCL_CONNECT_MS=8000 "$@" \
        "$ENDPOINT" take "$WORK/handle" send:300000 wait recv:8 wait
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "take: $STATUS" && return 1; }
    ended "$offer" 10 && [ "$STATUS" = 0 ] || { echo "offer: $STATUS" && return 1; }
    said take "^peer .*$address" || return 1
}
check "and others get there by a handle" by_handle "10.99.0.1"

# link-local IPv6 alone; interfaces before it make its number another on each side
make_two
ip -n "$NS_B" link add other0 type veth peer name other1
ip -n "$NS_B" link add other2 type veth peer name other3
ip -n "$NS_A" link add veth0 type veth peer name zeth0 netns "$NS_B"
ip -n "$NS_A" link set veth0 up
ip -n "$NS_B" link set zeth0 up
settled() {
    local ns
    for ns in "$NS_A" "$NS_B"; do
        ip -n "$ns" -6 -o addr show scope link | grep -q . || return 1
        ! ip -n "$ns" -6 -o addr show scope link tentative | grep -q . || return 1
    done
}
check "link-local addresses are settled" until_true 10 settled
index_of() { ip -n "$1" -o link show "$2" | cut -d: -f1; }
check "numbers differ" [ "$(index_of "$NS_A" veth0)" != "$(index_of "$NS_B" zeth0)" ]
check "by a handle with a link-local address" by_handle 'fe80::.*%zeth0'
# a second interface with a link-local address here, which comes first by its number
ip -n "$NS_B" link set other0 up
ip -n "$NS_B" link set other1 up
check "link-local addresses are settled again" until_true 10 settled
check "by a handle, on the interface that UCCL_SOCKET_IFNAME names" \
    by_handle 'fe80::.*%zeth0' UCCL_SOCKET_IFNAME=zeth0
address=$(ip -n "$NS_A" -6 -o addr show dev veth0 scope link | awk '{print $4}' | cut -d/ -f1)
by_address() {
    CLIENT_ENV=()
    pair "$address%zeth0" --perftype=basic --iterations=3
}
check "by address%interface, whatever else there is" by_address
on_one_machine() {
    local IN_CLIENT=("${IN_SERVER[@]}")
    by_handle 'fe80::.*%veth0'
}
check "by a handle with an address of this machine" on_one_machine
finish
