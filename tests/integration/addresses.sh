#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Which address a machine goes by, and how others get there: interfaces without carrier, an address on loopback,
# link-local addresses whose interfaces have other numbers on the other machine; machines with several addresses, of
# which some lead elsewhere.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 22
exec 3>&1
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
    start take "${IN_CLIENT[@]}" env UCCL_CONNECT_MS=40000 "$@" \
        "$ENDPOINT" take "$WORK/handle" send:300000 wait recv:8 wait
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "take: $STATUS" && return 1; }
    ended "$offer" 10 && [ "$STATUS" = 0 ] || { echo "offer: $STATUS" && return 1; }
    said take "^peer .*$address" || return 1
    took=$(sed -n 's/^peer .* after \([0-9]*\) ms$/\1/p' "$WORK/take.log")
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

# Several addresses. A's first interface has an address that B has too, as Docker's bridge has everywhere; a listener
# with the same port answers there.
make_two
ip -n "$NS_A" link add common0 type veth peer name common1
ip -n "$NS_B" link add common0 type veth peer name common1
ip -n "$NS_A" link add veth0 type veth peer name zeth0 netns "$NS_B"
for ns in "$NS_A" "$NS_B"; do
    ip -n "$ns" link set common1 up
    ip -n "$ns" addr add 172.31.0.1/24 dev common0
    ip -n "$ns" link set common0 up
done
ip -n "$NS_A" addr add 10.72.0.1/24 dev veth0
ip -n "$NS_A" -6 addr add fd72::1/64 dev veth0 nodad
ip -n "$NS_B" -6 addr add fd72::2/64 dev zeth0 nodad
ip -n "$NS_A" link set veth0 up
ip -n "$NS_B" link set zeth0 up
check "addresses are settled" until_true 10 settled

# elsewhere COMMAND...: while B has a listener of its own with the port of A's
elsewhere() {
    local offer wrong port
    rm -f "$WORK/handle"
    start offer "${IN_SERVER[@]}" "$ENDPOINT" offer "$WORK/handle" recv:300000 wait send:8 wait
    offer=$PID
    until_true 10 test -e "$WORK/handle" || return 1
    port=$(od -An -j18 -N2 -tu1 "$WORK/handle" | awk '{print $1 * 256 + $2}')
    start wrong "${IN_CLIENT[@]}" "$ENDPOINT" listen "$port"
    wrong=$PID
    wait_listening "$wrong" "$port" || return 1
    start take "${IN_CLIENT[@]}" env UCCL_LOG_LEVEL=info "$ENDPOINT" take "$WORK/handle" send:300000 wait recv:8 wait
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "take: $STATUS" && return 1; }
    ended "$offer" 10 && [ "$STATUS" = 0 ] || { echo "offer: $STATUS" && return 1; }
    kill -KILL "$wrong"
    ended "$wrong" 5
}
# An answer that takes a tenth of a second comes too late to be told: the next address has won by then
first_leads_elsewhere() {
    local round
    for round in 1 2 3 4 5; do
        elsewhere || return 1
        said take '^peer \[fd72::1\]' || return 1
        ! grep -E 'warning' "$WORK/take.log" "$WORK/wrong.log" "$WORK/offer.log" || return 1
        ! said take '172\.31\.0\.1.*another listener' || return 0
    done
    return 1
}
check "by a handle whose first address is another host's here" first_leads_elsewhere

# the worker has IPv6 alone; then IPv4 alone
check "by a handle of a machine with IPv4 and IPv6, from one with IPv6" by_handle '\[fd72::1\]'
ip -n "$NS_B" addr flush dev zeth0 scope global
ip -n "$NS_B" addr add 10.72.0.2/24 dev zeth0
check "and from one with IPv4" by_handle '10\.72\.0\.1'

# silent: what B sends to 172.31.0.1 and to 10.74.0.1 goes to a station that is not there
ip -n "$NS_B" addr del 172.31.0.1/24 dev common0
ip -n "$NS_B" addr add 10.74.0.2/24 dev common0
ip -n "$NS_B" route add 172.31.0.1 dev common0
ip -n "$NS_B" -6 addr add fd74::2/64 dev common0 nodad
for address in 172.31.0.1 10.74.0.1 fd74::1; do
    ip -n "$NS_B" neigh add "$address" lladdr 02:00:00:00:00:99 dev common0 nud permanent
done
# it would be ten seconds if each address had its share of the time
soon() { say "after $took ms" >&3 && [ "$took" -lt 8000 ]; }
first_is_silent() { by_handle '10\.72\.0\.1' && soon; }
check "by a handle whose first address never answers, without waiting for it" first_is_silent

# by_name PEER HOST PORT[/DEVICE] HOSTS...: HOSTS are the lines of B's /etc/hosts
by_name() {
    local peer=$1 host=$2 listen=$3 listener line
    shift 3
    for line in "$@"; do echo "$line"; done >"$WORK/hosts"
    start listen "${IN_SERVER[@]}" "$ENDPOINT" listen "$listen" recv:300000 wait send:8 wait
    listener=$PID
    wait_listening "$listener" "${listen%/*}" || return 1
    # shellcheck disable=SC2016
    start take "${IN_CLIENT[@]}" sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$WORK/hosts" \
        env UCCL_CONNECT_MS=40000 "$ENDPOINT" connect "$host" "${listen%/*}" send:300000 wait recv:8 wait
    ended "$PID" 20 && [ "$STATUS" = 0 ] || { echo "connect: $STATUS" && return 1; }
    ended "$listener" 10 && [ "$STATUS" = 0 ] || { echo "listen: $STATUS" && return 1; }
    said take "^peer .*$peer" || return 1
    took=$(sed -n 's/^peer .* after \([0-9]*\) ms$/\1/p' "$WORK/take.log")
}
next_port
ip -n "$NS_B" -6 addr add fd72::2/64 dev zeth0 nodad
device=$("${IN_SERVER[@]}" env UCCL_BACKEND=udp "$INFO" --json | python3 -c "
import json, sys
print([d['name'] for d in json.load(sys.stdin)['devices']].index('veth0'))")
check "by a name with IPv4 and IPv6, to a listener that has IPv4 alone" \
    by_name '10\.72\.0\.1' head "$PORT/$device" 'fd72::1 head' '10.72.0.1 head'
silent_name() { by_name "$@" && soon; }
next_port
check "by a name, one address of which never answers" \
    silent_name '10\.72\.0\.1' head "$PORT" '10.74.0.1 head' 'fd74::1 head' '10.72.0.1 head'
next_port
check "by an address in brackets" by_name '\[fd72::1\]' '[fd72::1]' "$PORT"

# no address leads to it: each is told once
nobody() {
    printf 'fd72::1 head\n10.72.0.1 head\n' >"$WORK/hosts"
    # shellcheck disable=SC2016
    start take "${IN_CLIENT[@]}" sh -c 'mount --bind "$0" /etc/hosts && exec "$@"' "$WORK/hosts" \
        "$ENDPOINT" connect head "$PORT"
    ended "$PID" 20 || return 1
    said take 'connection refused' || return 1
    [ "$(grep -c 'warning.*refused' "$WORK/take.log")" = 2 ]
}
next_port
check "and each is told where nobody listens" nobody

# a machine without IPv4
make_two
ip -n "$NS_A" addr del 127.0.0.1/8 dev lo
check "p2p_bench --local where there is only IPv6" \
    "${IN_SERVER[@]}" timeout 20 "$P2P_BENCH" --local --sizes=4K --iters=5
finish
