#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the tools report is true: compared with figures that are known, since the library, the peer, the clock and
# the processor are played (tests/figures/played.c), or the machine is made up. No time is measured.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 40

TOOLS=$SOURCE/tests/figures/tools.py
for case in $(python3 "$TOOLS" --list); do
    check "${case//_/ }" timeout 120 python3 "$TOOLS" "$BUILD" "$case"
done

if unshare -mn true 2>/dev/null; then
    check "uccl_info, a machine that is made up" \
        timeout 120 unshare -mn python3 "$SOURCE/tests/figures/machine.py" "$BUILD"
else
    skip "uccl_info, a machine that is made up" "not allowed to make namespaces"
fi

# ---- the engine's own counter, over a network that loses: the relay knows what was there before ----

# repeats ADDRESS RELAY_FLAG...: each end tells as many retransmissions as have come from there. The relay reads
# datagrams alone: where a process stands still for a second, others would take TCP meanwhile.
repeats() {
    local address=$1 result=0 relay server posts=() waits=() i
    shift
    start relay "$RELAY" "$@" "$NS_A" "$NS_B"
    relay=$PID
    until_true 10 grep -q ready "$WORK/relay.log" || return 1
    for i in 3 70000 1000 300 1300 64 20000 150000; do
        posts+=("send:$i" "recv:$i" "send:$((i * 2))" "recv:$((i * 2))")
        waits+=(wait wait wait wait)
    done
    posts+=("${posts[@]}") waits+=("${waits[@]}")
    next_port
    posts+=("${waits[@]}" close pause:500 tell:retransmits)
    start server "${IN_SERVER[@]}" env UCCL_BACKEND=udp "$ENDPOINT" listen "$PORT" "${posts[@]}"
    server=$PID
    wait_listening "$server" "$PORT" || return 1
    start client "${IN_CLIENT[@]}" env UCCL_BACKEND=udp "$ENDPOINT" connect "$address" "$PORT" "${posts[@]}"
    ended "$PID" 60 && [ "$STATUS" = 0 ] || result=1
    ended "$server" 30 && [ "$STATUS" = 0 ] || result=1
    kill -TERM "$relay"
    ended "$relay" 10 || result=1
    cat "$WORK/server.log" "$WORK/client.log" "$WORK/relay.log"
    [ "$(counted retransmits server)" = "$(counted first_repeats relay)" ] &&
        [ "$(counted retransmits client)" = "$(counted second_repeats relay)" ] &&
        [ "$(($(counted first_repeats relay) + $(counted second_repeats relay)))" -gt 3 ] && return "$result"
}
counted() { grep -oE "$1 [0-9]+" "$WORK/$2.log" | grep -oE '[0-9]+$'; }
if [ -c /dev/net/tun ] && ip netns add "uccl-probe-$$" 2>/dev/null; then
    ip netns del "uccl-probe-$$"
    two_namespaces tun 1500
    check "retransmissions, loss" repeats 10.78.0.1 --loss 5
    check "retransmissions, loss, IPv6" repeats fd78::1 --loss 5
    check "retransmissions, loss, delay and reordering" \
        repeats 10.78.0.1 --loss 5 --delay-us 2000 --jitter-us 1000 --reorder 20
else
    skip "retransmissions" "not allowed to make network namespaces, or no TUN devices" 3
fi
finish
