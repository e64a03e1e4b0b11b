# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Two NICs in one engine: two veth pairs between two namespaces, shaped by tbf. What each carries is read from the
# kernel's statistics of the interfaces. Then one of the two is cut again and again, at random phases: the link goes
# down, packets vanish both ways, or one way. A script sources this after the lib.sh of integration.

STEADY=$BUILD/tests/steady
UNEQUAL=0
need_namespaces
# some 2 Gbit/s each where that leaves processors idle
[ -n "${RAILS_MBIT:-}" ] || { [ "$(nproc)" -ge 8 ] && RAILS_MBIT=2000 || RAILS_MBIT=400; }
R=$RAILS_MBIT
NS=(uccl-ra-$$ uccl-rb-$$)
SWITCH=uccl-rs-$$
namespaces=("${NS[@]}" "$SWITCH")
NETWORK=network              # or one_subnet: what cuts() makes
KINDS=(down hole one_way)    # of cuts; unplug: of one_subnet, where one end alone sees it
export UCCL_SOCKET_IFNAME=nic UCCL_LEND=no UCCL_NUM_ENGINES=1

# shape NIC MBIT: in both namespaces
shape() {
    local ns
    for ns in "${NS[@]}"; do
        tc -n "$ns" qdisc replace dev "nic$1" root tbf rate "$2mbit" burst 256k limit 1m
    done
}

# network MBIT MBIT: afresh
network() {
    local i
    "$NETNS" down "${NS[@]}"
    ip netns add "${NS[0]}" && ip netns add "${NS[1]}" || return 1
    for i in 0 1; do
        ip link add "nic$i" netns "${NS[0]}" type veth peer name "nic$i" netns "${NS[1]}"
        ip -n "${NS[0]}" addr add "10.79.$i.1/24" dev "nic$i"
        ip -n "${NS[1]}" addr add "10.79.$i.2/24" dev "nic$i"
        ip -n "${NS[0]}" link set "nic$i" mtu 9000 up
        ip -n "${NS[1]}" link set "nic$i" mtu 9000 up
    done
    shape 0 "$1" && shape 1 "$2" && until_true 20 all_up
}

# one_subnet MBIT MBIT: afresh. The NICs of both ends are in one subnet, at one bridge. SYSCTLS has what an administrator
# would set in the namespaces of both
one_subnet() {
    local i side ns
    "$NETNS" down "${NS[@]}" "$SWITCH"
    for ns in "${NS[@]}" "$SWITCH"; do
        ip netns add "$ns" || return 1
    done
    ip -n "$SWITCH" link add bridge type bridge && ip -n "$SWITCH" link set bridge up || return 1
    for side in 0 1; do
        ns=${NS[side]}
        # shellcheck disable=SC2086 # several words
        [ -z "$SYSCTLS" ] || ip netns exec "$ns" sysctl -qw $SYSCTLS || return 1
        for i in 0 1; do
            ip link add "nic$i" netns "$ns" type veth peer name "port$side$i" netns "$SWITCH" || return 1
            ip -n "$SWITCH" link set "port$side$i" mtu 9000 master bridge up
            ip -n "$ns" addr add "10.79.0.$((10 * i + side + 1))/24" dev "nic$i"
            ip -n "$ns" link set "nic$i" mtu 9000 up
        done
    done
    shape 0 "$1" && shape 1 "$2" && until_true 20 all_up
}

# source_routes: what leaves from the address of a NIC leaves by this NIC
source_routes() {
    local i side ns
    for side in 0 1; do
        ns=${NS[side]}
        for i in 0 1; do
            ip -n "$ns" route add 10.79.0.0/24 dev "nic$i" table "10$i" || return 1
            ip -n "$ns" rule add from "10.79.0.$((10 * i + side + 1))" table "10$i" || return 1
        done
    done
}

# crossed: each end sends to either NIC of the other what is meant for the other one, as the answers to ARP requests can
# have it where both NICs answer for both addresses
crossed() {
    local side i dev mac
    for side in 0 1; do
        for i in 0 1; do
            mac=$(ip netns exec "${NS[!side]}" cat "/sys/class/net/nic$((!i))/address") || return 1
            for dev in nic0 nic1; do
                ip -n "${NS[side]}" neigh replace "10.79.0.$((10 * i + !side + 1))" lladdr "$mac" dev "$dev" \
                    nud permanent || return 1
            done
        done
    done
}

# all_up: the kernel has seen the carrier, which takes it up to a second
all_up() {
    local ns i
    for ns in "${NS[@]}"; do
        for i in 0 1; do
            [ "$(ip netns exec "$ns" cat "/sys/class/net/nic$i/operstate")" = up ] || return 1
        done
    done
}

# sent NIC: bytes that the sender's interface has sent
SENDING=1 # the side that sends
sent() { ip netns exec "${NS[SENDING]}" cat "/sys/class/net/nic$1/statistics/tx_bytes"; }

# stream SECONDS SIZE OUTSTANDING: from the second namespace to the first, which listens, in the background; or, if
# SENDING is 0, the other direction. BEFORE_SENDER: a command while one end alone runs
BEFORE_SENDER=(true)
stream() {
    next_port
    start receiver ip netns exec "${NS[0]}" "$STEADY" receive "$PORT"
    RECEIVER_PID=$PID
    wait_listening "$RECEIVER_PID" "$PORT" || return 1
    "${BEFORE_SENDER[@]}"
    start sender ip netns exec "${NS[1]}" "$STEADY" "$([ "$SENDING" = 1 ] && echo send || echo fetch)" 10.79.0.1 "$PORT" "$@"
    SENDER_PID=$PID
    until_true 20 eval '[ "$(sent 0)" -gt 1000000 ]'
}

# stream_ends SECONDS: both ends, well
stream_ends() {
    ended "$SENDER_PID" "$1" && [ "$STATUS" = 0 ] || { echo "sender: $STATUS" && return 1; }
    ended "$RECEIVER_PID" 10 && [ "$STATUS" = 0 ] || { echo "receiver: $STATUS" && return 1; }
}

# rates SECONDS: Mbit/s of both NICs over a time, in RATE0 and RATE1
rates() {
    local from0 from1 to0 to1 at_ms took_ms
    from0=$(sent 0) from1=$(sent 1) at_ms=$(now_ms)
    sleep "$1"
    to0=$(sent 0) to1=$(sent 1) took_ms=$(($(now_ms) - at_ms))
    RATE0=$(((to0 - from0) * 8 / took_ms / 1000)) RATE1=$(((to1 - from1) * 8 / took_ms / 1000))
    echo "nic0 $RATE0, nic1 $RATE1 Mbit/s"
}

# at_least PERCENT MBIT: of the sum that the NICs allow
at_least() { [ $(((RATE0 + RATE1) * 100)) -ge $(($1 * $2)) ]; }

equal_nics() {
    network "$R" "$R" || return 1
    stream "$((SECONDS_EACH + 2))" 16777216 2 || return 1
    sleep 1
    rates "$SECONDS_EACH"
    stream_ends 60 || return 1
    at_least 90 $((2 * R)) || return 1
    [ $((RATE0 * 100)) -ge $((45 * (RATE0 + RATE1))) ] && [ $((RATE0 * 100)) -le $((55 * (RATE0 + RATE1))) ]
}

unequal_nics() {
    network "$R" $((2 * R)) || return 1
    stream "$((SECONDS_EACH + 2))" 16777216 2 || return 1
    sleep 1
    rates "$SECONDS_EACH"
    stream_ends 60 || return 1
    at_least 85 $((3 * R))
}

one_becomes_slow() {
    network "$R" "$R" || return 1
    stream "$((SECONDS_EACH + 5))" 16777216 2 || return 1
    sleep 1
    shape 1 $((R / 2))
    sleep 2
    rates "$SECONDS_EACH"
    stream_ends 60 || return 1
    at_least 85 $((R + R / 2))
}

# harm KIND NIC SIDE, and mend KIND NIC SIDE
harm() {
    case $1 in
    down) ip -n "${NS[$3]}" link set "nic$2" down ;;
    unplug) ip -n "$SWITCH" link set "port$3$2" down ;;
    hole) for ns in "${NS[@]}"; do drop "$ns" "$2"; done ;;
    one_way) drop "${NS[$3]}" "$2" ;;
    esac
}

drop() {
    ip netns exec "$1" nft "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; \
        add rule inet cut in iifname nic$2 meta l4proto { tcp, udp } drop"
}

mend() {
    local ns
    case $1 in
    down) ip -n "${NS[$3]}" link set "nic$2" up ;;
    unplug) ip -n "$SWITCH" link set "port$3$2" up ;;
    *) for ns in "${NS[@]}"; do ip netns exec "$ns" nft delete table inet cut 2>/dev/null; done ;;
    esac
    return 0
}

# carries NIC BYTES: more has been sent since
carries() { [ "$(sent "$1")" -gt "$2" ]; }

# cut_limits: a connection takes longer than a datagram to notice that packets vanish, and that they do so no more;
# shorter cuts it survives
cut_limits() {
    if [ "${UCCL_BACKEND:-}" = tcp ]; then
        CUTS_S=(1.7 2 2.6) RETURN_S=5 LONGEST_MS_MAX=3000
    else
        CUTS_S=(0.5 0.8 1.3) RETURN_S=2 LONGEST_MS_MAX=1000
        # of connections beside datagrams the acks alone may vanish, which the end that gets none learns late
        [ "${UCCL_BACKEND:-auto}" != auto ] || LONGEST_MS_MAX=2500
    fi
}
cut_limits

# cuts N: each is followed by traffic over the NIC soon after its return
cuts() {
    local i kind nic side from mended_ms took_ms back_ms=0 late=0
    "$NETWORK" "$R" "$R" || return 1
    stream $(($1 * 30 + 10)) 262144 4 || return 1
    for ((i = 0; i < $1; i++)); do
        draw 0.1 0.25 0.4 0.6 0.85
        sleep "$DRAWN"
        draw "${KINDS[@]}"
        kind=$DRAWN
        draw 0 1
        nic=$DRAWN
        draw 0 1
        side=$DRAWN
        harm "$kind" "$nic" "$side"
        draw "${CUTS_S[@]}"
        echo "$(now_ms) $kind of nic$nic at side $side for $DRAWN s"
        sleep "$DRAWN"
        from=$(($(sent "$nic") + 2000000))
        mend "$kind" "$nic" "$side"
        mended_ms=$(now_ms)
        until_true 20 carries "$nic" "$from" || { echo "nic$nic does not carry again" && late=1; }
        took_ms=$(($(now_ms) - mended_ms))
        back_ms=$((took_ms > back_ms ? took_ms : back_ms))
    done
    kill -TERM "$SENDER_PID" 2>/dev/null || { echo "the stream ended early" && late=1; }
    stream_ends 120 || return 1
    cat "$WORK/sender.log"
    read -r _ MESSAGES _ LONGEST_MS _ _ LOST _ BACK _ MOVED _ <<<"$(grep '^messages' "$WORK/sender.log")"
    echo "each carried again within $back_ms ms, of which the machine may have taken $(held_ms)"
    [ "$late" = 0 ] && [ "$back_ms" -le $((RETURN_S * 1000 + $(held_ms))) ]
}

# cuts_that_move N: cuts until one has hit chunks, and was noticed before it was over, as nearly all are
cuts_that_move() {
    local round
    for round in 1 2 3; do
        cuts "$1" || return 1
        ! chunks_were_moved || break
        echo "round $round: nothing was lost and moved"
    done
}

# held_ms: for so long the machine did not run an end, at most
held_ms() { cat "$WORK/sender.log" "$WORK/receiver.log" | awk '/^held/ { sum += $2 } END { print sum + 0 }'; }

# A sanitizer takes time of its own, and so does a machine that does not run one of the ends
longest_is_short() {
    echo "$LONGEST_MS ms, of which the machine may have taken $(held_ms)"
    [ "$LONGEST_MS" -le $(((SHORT ? 5000 : LONGEST_MS_MAX) + $(held_ms))) ]
}

# over TCP the other end's link may be down for less time than our kernel takes to tell: its connections have ended, and
# nothing is lost that this end would know of
chunks_were_moved() {
    [ "$MOVED" -gt 0 ] && [ "$BACK" -gt 0 ] && { [ "$LOST" -gt 0 ] || [ "${UCCL_BACKEND:-}" = tcp ]; }
}
nic_is_named() { grep -qE 'nic[01]' "$WORK/sender.log"; }

# check_cuts N: four checks; KINDS and the limits are set
check_cuts() {
    check "a NIC is cut $1 times: nothing is lost, and it carries again within $RETURN_S s" cuts_that_move "$1"
    check "no message takes longer than $LONGEST_MS_MAX ms" longest_is_short
    check "chunks were moved, NICs were lost and came back" chunks_were_moved
    check "the log names the NIC" nic_is_named
}
