#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Sandboxes and emulators of Linux lack socket options. There is something instead of each, at either side and at both.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 37
UNEQUAL=0 # looks at one option at a time

NO_OPTION=$BUILD/tests/no_option
"$NO_OPTION" IP_MTU true || skip_all "no seccomp here"
export UCCL_SOCKET_IFNAME=lo
mapfile -t options < <("$NO_OPTION" list)
all=$(IFS=, && echo "${options[*]}")

# without SERVER CLIENT ADDRESS FLAG...: options that each side lacks, or "-"
without() {
    IN_SERVER=("$NO_OPTION" "$1") IN_CLIENT=("$NO_OPTION" "$2")
    [ "$1" != - ] || IN_SERVER=()
    [ "$2" != - ] || IN_CLIENT=()
    shift 2
    pair "$@"
}

for option in "${options[@]}"; do
    for address in 127.0.0.1 ::1; do
        case $option in
        IP_* | *_TCP) [ "$address" = 127.0.0.1 ] || continue ;;
        IPV6_V6ONLY) [ "$address" = 127.0.0.1 ] || continue ;; # its sockets are for IPv4 then
        IPV6_*) [ "$address" = ::1 ] || continue ;;
        esac
        check "without $option, $address" \
            without "$option" "$option" "$address" --perftype=basic --msize=300000 --bi --iterations=4
    done
done
few=(--perftype=basic --msize=1000000 --bi --iterations=8)
for lend in auto no; do
    export UCCL_LEND=$lend
    check "without any, UCCL_LEND=$lend" without "$all,ifmtu" "$all,ifmtu" 127.0.0.1 "${few[@]}"
    check "without any at the server, UCCL_LEND=$lend" without "$all,ifmtu" - 127.0.0.1 "${few[@]}"
    check "without any at the client, UCCL_LEND=$lend" without - "$all,ifmtu" 127.0.0.1 "${few[@]}"
done

# mtu_said OPTIONS BYTES: the path MTU of loopback as the library takes it
mtu_said() {
    SERVER_ENV=(UCCL_LOG_LEVEL=debug) CLIENT_ENV=("${SERVER_ENV[@]}")
    without "$1" "$1" 127.0.0.1 --perftype=basic --msize=300000 --iterations=4 &&
        said client "the MTU of a route cannot be asked for .*: taken for $2 bytes"
}
check "without IP_MTU the interface's MTU is taken" mtu_said IP_MTU "$(cat /sys/class/net/lo/mtu)"
check "without that either 1280 bytes are" mtu_said IP_MTU,ifmtu 1280
finish
