#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests that run in the guest, in TAP; started by vm.sh. Checks whose names /run/job/done has were
# made before the guest died and are left out. VM_ONLY, a shell pattern, chooses checks by name. TEST_SHORT=1 leaves
# repetitions out.
#
# Software emulation moves about ten megabytes a second: every check moves a few.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 133 78
[ "${VM_ONLY:-*}" = "*" ] || planned=

link=$SOURCE/tests/vm/link.sh
done_before=/run/job/done
[ -e $done_before ] || : >$done_before
checks=$(wc -l <$done_before)
PAIR_LIMIT_S=240 LISTEN_LIMIT_S=60 UNEQUAL=0

# Left out with TEST_SHORT=1: what a harder check contains, and on RC and UD what no kind of queue pair changes
repetitions=("*: two ports, *" "*: one port against two" "*: sizes, 0.1% loss" "*: NCCL's LL, GPUs look" "*: from GPU to GPU" "*: one-sided, notify"
    "uc: sizes, 1% loss" "ud: one-sided, write" "ud: one-sided, read")
for other in rc ud; do
    repetitions+=("$other: NCCL's all-reduce" "$other: from GPU to host and back" "$other: one-sided, notify, 1% loss"
        "$other: network device MTU 9000" "$other: the link goes down and up at the sender"
        "$other: one path, 1% loss" "$other: smallest chunks")
done
# the NIC repairs, and engines see nothing of it
repetitions+=("rc: sizes, 1% loss" "rc: one-sided, write, 1% loss" "rc: one-sided, read, 1% loss" "rc: reordering"
    "rc: duplicates")

# a post to a device that goes down at this very moment may never come back: the driver of Linux 6.1 tries to send for
# ever with its processor's softirqs off, for which the device's going down waits
repetitions+=("*: one of two ports goes down and up")

# clear_up: what a check that failed has left would slow down all that follow, or keep them from their ports
clear_up() {
    local device
    end_all
    for device in v0 v1 v2 v3; do "$link" up $device; done
}

# guest NAME COMMAND...: as check(), over a link without faults
guest() {
    local pattern
    # shellcheck disable=SC2053 # a pattern
    [[ $1 == ${VM_ONLY:-*} ]] || return 0
    for pattern in "${repetitions[@]}"; do
        # shellcheck disable=SC2053
        [ "$SHORT" = 0 ] || [[ $1 != $pattern ]] || return 0
    done
    grep -qxF -- "$1" $done_before && return
    local begin=$SECONDS
    check "$@" || clear_up
    say "$((SECONDS - begin)) s"
    "$link" clean
}

# ---- the bed itself -------------------------------------------------------------------------

both_devices() {
    local device
    for device in rxe0 rxe1; do
        ibv_devinfo -d "$device" >"$WORK/$device.log" || return 1
        said "$device" 'state:.*PORT_ACTIVE' && said "$device" 'active_mtu:.*4096' || return 1
    done
}
guest "both devices are there, active, with the MTU of the link" both_devices

# perftest TOOL FLAG...: between rxe1 and rxe0
perftest() {
    local tool=$1
    shift
    next_port
    start server "$tool" -d rxe1 -p "$PORT" -F "$@"
    wait_listening "$PID" "$PORT" || { echo "the server does not listen" && return 1; }
    "$tool" -d rxe0 -p "$PORT" -F "$@" 10.0.0.2 || { echo "client: $?" && return 1; }
    ended "$PID" 30 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
}
for connection in UD UC RC; do
    guest "perftest sends over $connection" perftest ib_send_bw -c $connection -s 4096 -n 200
done

# what uccl_info says of both ports: usable, GID, state, kind of queue pair, why not
ports() {
    "$BUILD/bench/uccl_info" --json >"$WORK/info.json" || return 1
    python3 - "$WORK/info.json" "$1" <<'EOF'
import json, sys
ports = json.load(open(sys.argv[1]))["verbs"]["ports"]
said = "; ".join(f"{p['device']} {p['active']} {p['gid_index']} {p['mode']} {p['usable']} {p['why_not']}".strip() for p in ports)
print("said:  ", said)
print("wanted:", sys.argv[2])
sys.exit(said != sys.argv[2])
EOF
}
filtered() {
    UCCL_IB_HCA='^=rxe0' UCCL_RCMODE=1 NCCL_IB_GID_INDEX=0 ports \
        "rxe0 True 0 RC False UCCL_IB_HCA does not admit it; rxe1 True 0 RC True; rxe2 True 0 RC True; rxe3 True 0 RC True"
}
one_down() {
    local result
    "$link" down v0 || return 1
    until_true 30 ports "rxe0 False 1 UC False it is not active; rxe1 False 1 UC False it is not active; rxe2 True 1 UC True; rxe3 True 1 UC True"
    result=$?
    "$link" up v0
    return "$result"
}
guest "uccl_info: all ports would do" ports "rxe0 True 1 UC True; rxe1 True 1 UC True; rxe2 True 1 UC True; rxe3 True 1 UC True"
guest "uccl_info: as the parameters say" filtered
guest "uccl_info: a link that is down" one_down

SERVER_ENV=(UCCL_BACKEND=udp) CLIENT_ENV=(UCCL_BACKEND=udp)
guest "udp: verified messages over the veth pair" pair 10.0.0.2 --msize=1000000 --iterations=20

# ---- verbs, each kind of queue pair ---------------------------------------------------------

# use KIND [NAME=VALUE...]: what the following checks run with
use() {
    # delays under emulation are milliseconds, and where the host is busy a guest stands still for seconds
    local settings=(UCCL_BACKEND=verbs UCCL_SWIFT_TARGET_US=100000 UCCL_DEAD_PEER_MS=60000)
    kind=$1
    shift
    case $kind in
    ud) settings+=(UCCL_UDMODE=1) ;;
    rc) settings+=(UCCL_RCMODE=1) ;;
    esac
    SERVER_ENV=("${settings[@]}" UCCL_IB_HCA==rxe1 "$@")
    CLIENT_ENV=("${settings[@]}" UCCL_IB_HCA==rxe0 "$@")
}

takes_kind() {
    env "${CLIENT_ENV[@]}" "$BUILD/bench/uccl_info" >"$WORK/info.log" 2>&1
    said info "rxe0 \(verbs\)" && said info "${kind^^} queue pairs"
}

# sweep SIZES FLAG...: verified messages of several sizes
sweep() {
    local sizes=$1 server result=0
    shift
    next_port
    start server env "${SERVER_ENV[@]}" "$P2P_BENCH" --server --oobport="$PORT"
    server=$PID
    wait_listening "$server" "$PORT" || { echo "the server does not listen" && return 1; }
    start client env "${CLIENT_ENV[@]}" "$P2P_BENCH" --serverip=10.0.0.2 --oobport="$PORT" --csv \
        --verify=true --seconds=0.01 --iterations=4 --warmup=1 --window=4 --sizes="$sizes" "$@"
    ended "$PID" "$PAIR_LIMIT_S" && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && result=1; }
    ended "$server" 15 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && result=1; }
    return "$result"
}

# onesided TYPE FLAG...: verified operations; NICs place their bytes where they place those of messages
onesided() {
    local size=100000
    [ "$1" != notify ] || size=10000
    pair 10.0.0.2 --perftype="$@" --msize=$size --nreq=4
}

# Memory that is revoked under writes, which no NIC changes any more: both ends are on one device.
revoked() {
    env "${SERVER_ENV[@]}" timeout "$PAIR_LIMIT_S" "$BUILD/tests/onesided/revoker" write 3 1500 || return 1
    grep -qE ': [1-9][0-9]* operations moved' "$WORK/check.log" || { echo "nothing had moved before" && return 1; }
    [ "$kind" = ud ] || grep -qE '^[1-9][0-9]* chunks were placed' "$WORK/check.log"
}

# faulty "NETEM ARGUMENTS" COMMAND...
faulty() {
    local faults
    read -ra faults <<<"$1"
    shift
    "$link" netem "${faults[@]}" && "$@"
}

# repaired COMMAND...: it passes, and something was sent again
repaired() {
    "$@" || return 1
    [ "$(retransmits)" -gt 0 ] || { echo "nothing was sent again" && return 1; }
}

# flap DEVICE: the link is down for a second in the midst of a transfer, which it slows to 20 Mbit/s before
flap() {
    "$link" netem rate 20mbit || return 1
    start_pair 10.0.0.2 --msize=1000000 --nreq=2 --iterations=20 || return 1
    moving 2000000 || { echo "nothing moves" && return 1; }
    kill -0 "$CLIENT_PID" 2>/dev/null || { echo "ended before the link went down" && return 1; }
    "$link" down "$1"
    sleep 1
    "$link" up "$1"
    "$link" clean
    ended "$CLIENT_PID" "$PAIR_LIMIT_S" && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
    ended "$SERVER_PID" 15 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
}

# killed server|client: the other one says so and ends
killed() {
    local victim survivor
    start_pair 10.0.0.2 --perftype=tpt --msize=100000 --iterations=100000000 || return 1
    moving 500000 || { echo "nothing moves" && return 1; }
    if [ "$1" = server ]; then
        victim=$SERVER_PID survivor=$CLIENT_PID
    else
        victim=$CLIENT_PID survivor=$SERVER_PID
    fi
    kill -0 "$survivor" 2>/dev/null || { echo "ended before the kill" && return 1; }
    kill -KILL "$victim"
    ended "$victim" 5
    ended "$survivor" 30 || return 1
    echo "status $STATUS"
    [ "$STATUS" -ne 0 ] && [ "$STATUS" -lt 128 ]
}

# started and mid-transfer
moving() {
    local before
    before=$(cat /sys/class/net/v0/statistics/tx_bytes)
    until_true 60 eval "[ \$(cat /sys/class/net/v0/statistics/tx_bytes) -gt $((before + $1)) ]"
}

# what a check of late writes has seen when it fails
late_state() {
    local device
    echo "$*: $("$link" held) packets are held back"
    rdma resource show qp
    for device in v0 v1; do tc -s filter show dev "$device" parent 1: | grep -E 'match|flowid' | paste -sd' '; done
    return 1
}

# No stale placement: all that the sender writes to its queue pairs is held back, the message is repaired another
# way meanwhile, and the receiver's application uses the buffer for other things when the writes come.
stale_write() {
    local server client begin paths=2
    rm -f "$WORK/held" "$WORK/over"
    # kept in error while packets may still come, as the parameter promises; RC gives up before they do
    local settings=(UCCL_PORT_ENTROPY="$paths" UCCL_PACKET_LIFETIME_MS=60000
        UCCL_IB_TIMEOUT=14 UCCL_IB_RETRY_CNT=3)
    SERVER_ENV+=("${settings[@]}") CLIENT_ENV+=("${settings[@]}")
    next_port
    start server env "${SERVER_ENV[@]}" "$ENDPOINT" listen "$PORT" \
        recv:100000 wait recv:100000 wait keep:"$WORK/over"
    server=$PID
    wait_listening "$server" "$PORT" || { echo "the server does not listen" && return 1; }
    start client env "${CLIENT_ENV[@]}" "$ENDPOINT" connect 10.0.0.2 "$PORT" \
        send:100000 wait reach:qps_up="$paths" until:"$WORK/held" send:100000 wait until:"$WORK/over"
    client=$PID
    until_true 60 said client 'reached qps_up' >/dev/null || { late_state "no way to write" || return 1; }
    "$link" hold || return 1
    begin=$(now_ms)
    : >"$WORK/held"
    until_true 60 said server 'receive 1:' >/dev/null || { late_state "no other way was found" || return 1; }
    echo "another way was found after $(($(now_ms) - begin)) ms"
    [ "$("$link" held)" -ge 20 ] || { late_state "the writes were not held back" || return 1; }
    "$link" release
    until_true 20 eval "[ \$('$link' held) -eq 0 ]" || { late_state "the writes do not come" || return 1; }
    sleep 1 # they are with the device now, which has time to write
    : >"$WORK/over"
    ended "$server" 30 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
    ended "$client" 30 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
}

# ---- several ports -----------------------------------------------------------------------------

# sent DEVICE: bytes that it has sent
sent() { cat "/sys/class/net/$1/statistics/tx_bytes"; }

# carries DEVICE BYTES: it has sent more than that
carries() { [ "$(sent "$1")" -gt "$2" ]; }

# stream_over_two [PORTS]: two ports at each end, or PORTS at the receiver's, of which the first engine thread's own is
# v0 to v1. In the background
stream_over_two() {
    local from
    SERVER_ENV+=(UCCL_IB_HCA="${1:-=rxe1,=rxe3}" UCCL_NUM_ENGINES=1) CLIENT_ENV+=(UCCL_IB_HCA==rxe0,=rxe2 UCCL_NUM_ENGINES=1)
    next_port
    start receiver env "${SERVER_ENV[@]}" "$BUILD/tests/steady" receive "$PORT"
    RECEIVER_PID=$PID
    wait_listening "$RECEIVER_PID" "$PORT" || { echo "the receiver does not listen" && return 1; }
    from=$(sent v0)
    start sender env "${CLIENT_ENV[@]}" "$BUILD/tests/steady" send 10.0.0.2 "$PORT" 900 262144 4
    SENDER_PID=$PID
    until_true 60 carries v0 $((from + 2000000)) || { echo "nothing moves" && return 1; }
}

stream_ends() {
    kill -TERM "$SENDER_PID"
    ended "$SENDER_PID" "$PAIR_LIMIT_S" && [ "$STATUS" = 0 ] || { echo "sender: $STATUS" && return 1; }
    ended "$RECEIVER_PID" 30 && [ "$STATUS" = 0 ] || { echo "receiver: $STATUS" && return 1; }
    cat "$WORK/sender.log"
}

# harm KIND, mend KIND: of the way v0 - v1
harm() {
    case $1 in
    down) "$link" down v0 ;;
    one_way) "$link" swallow v0 ;;
    esac
}
mend() {
    case $1 in
    down) "$link" up v0 ;;
    *) "$link" clean ;;
    esac
}

# The first port is lost in the midst of a stream, which goes on over the second one, and comes back
port_lost() {
    local from
    stream_over_two || return 1
    harm "$1" || return 1
    until_true 60 said sender 'nothing gets through by network interface rxe0' || return 1
    from=$(sent v2)
    until_true 20 carries v2 $((from + 1000000)) || { echo "the second port does not take over" && return 1; }
    mend "$1"
    until_true 60 said sender 'network interface rxe0 works again' || return 1
    from=$(sent v0)
    until_true 20 carries v0 $((from + 1000000)) || { echo "the first port does not come back" && return 1; }
    stream_ends || return 1
    read -r _ _ _ _ _ _ lost _ back _ <<<"$(grep '^messages' "$WORK/sender.log")"
    [ "$lost" -gt 0 ] && [ "$back" -gt 0 ]
}

# Both ports carry the stream
over_both() {
    local from
    stream_over_two || return 1
    from=$(sent v2)
    until_true 20 carries v2 $((from + 1000000)) || { echo "the second port carries nothing" && return 1; }
}

# goes_on: what is sent after this moment arrives
goes_on() {
    local from
    from=$(($(sent v0) + $(sent v2)))
    until_true 30 eval "[ \$((\$(sent v0) + \$(sent v2))) -gt $((from + 3000000)) ]" || { echo "nothing moves" && return 1; }
}

# refused PID NAME: it ends by itself, with an error
refused() {
    ended "$1" 40 && [ "$STATUS" = 1 ] || { echo "$2: $STATUS" && return 1; }
}

# two_killed sender|receiver: while both ports carry; the other end says so
two_killed() {
    local victim survivor
    over_both || return 1
    victim=$RECEIVER_PID survivor=$SENDER_PID
    [ "$1" = receiver ] || { victim=$SENDER_PID survivor=$RECEIVER_PID; }
    kill -KILL "$victim"
    ended "$victim" 5
    refused "$survivor" survivor
}

# two_stopped SECONDS: one end stops while both ports carry, and goes on
two_stopped() {
    over_both || return 1
    kill -STOP "$RECEIVER_PID"
    sleep "$1"
    kill -CONT "$RECEIVER_PID"
}

stopped_for_a_while() {
    two_stopped 3 && goes_on && stream_ends
}

# For longer than the other end waits. Each says that the connection is over
stopped_for_too_long() {
    two_stopped 12 || return 1
    refused "$SENDER_PID" sender && refused "$RECEIVER_PID" receiver
}

# One port after the other is down, at this end and at that one, and never both for long
crosswise() {
    local device
    over_both || return 1
    for device in v0 v3 v1 v2 v0 v3; do
        "$link" down "$device"
        sleep 0.7
        "$link" up "$device"
        sleep 0.3
    done
    goes_on && stream_ends
}

# A port goes down, and before anybody can have noticed the connection is closed
closed_while_down() {
    over_both || return 1
    "$link" down v0
    stream_ends
    local result=$?
    "$link" up v0
    return "$result"
}

# A receive is cancelled while the port over which it is being written is down. When that is back, nobody writes
# to its buffer
cancelled_while_down() {
    local server client
    rm -f "$WORK/down" "$WORK/over"
    next_port
    SERVER_ENV+=(UCCL_IB_HCA==rxe1,=rxe3) CLIENT_ENV+=(UCCL_IB_HCA==rxe0,=rxe2)
    start server env "${SERVER_ENV[@]}" "$ENDPOINT" listen "$PORT" recv:100000 wait recv:100000000 until:"$WORK/down" \
        cancel wait=UCCL_ECANCELED keep:"$WORK/over" recv:100000 wait
    server=$PID
    wait_listening "$server" "$PORT" || { echo "the server does not listen" && return 1; }
    start client env "${CLIENT_ENV[@]}" "$ENDPOINT" connect 10.0.0.2 "$PORT" send:100000 wait reach:qps_up=2 \
        send:100000000 wait=UCCL_ECANCELED until:"$WORK/over" send:100000 wait
    client=$PID
    moving 4000000 || { echo "nothing moves" && return 1; }
    "$link" down v0
    : >"$WORK/down"
    until_true 30 said server 'receive 1:' >/dev/null || { echo "the receive does not end" && "$link" up v0 && return 1; }
    "$link" up v0
    sleep 2
    : >"$WORK/over"
    ended "$server" 60 && [ "$STATUS" = 0 ] || { echo "server: $STATUS" && return 1; }
    ended "$client" 60 && [ "$STATUS" = 0 ] || { echo "client: $STATUS" && return 1; }
}

# An end with one port, and one with two
unequal_ports() {
    local from
    stream_over_two "=rxe1" || return 1
    goes_on && stream_ends
}

# When the port is back there is no descriptor to be had
no_descriptors() {
    local pid
    over_both || return 1
    for pid in "$SENDER_PID" "$RECEIVER_PID"; do
        prlimit --pid "$pid" --nofile="$(find "/proc/$pid/fd" -mindepth 1 | wc -l)" || return 1
    done
    "$link" down v0
    sleep 1
    "$link" up v0
    goes_on && stream_ends
}

# with_mtu BYTES COMMAND...
with_mtu() {
    local result=0
    "$link" mtu "$1" || return 1
    shift
    "$@" || result=1
    "$link" mtu "${VM_MTU:-4200}"
    return "$result"
}

# one end on UDP, one on verbs: refused, and the one that refuses says why
mixed() {
    SERVER_ENV=(UCCL_BACKEND=udp) CLIENT_ENV=(UCCL_BACKEND=verbs)
    start_pair 10.0.0.2 --msize=1000 --iterations=1 || return 1
    ended "$CLIENT_PID" 30 || return 1
    echo "client: $STATUS"
    [ "$STATUS" -eq 1 ] || return 1
    kill -KILL "$SERVER_PID" # a stranger does not end it
    until_true 10 said server 'UCCL_BACKEND on both sides'
}
guest "one end on UDP, one on verbs" mixed

# drive ARGUMENT...: the NCCL plugin driven as NCCL does, a rank per port
drive() {
    env "${CLIENT_ENV[@]}" UCCL_IB_HCA= NCCL_PLUGIN_FILE="$BUILD/plugins/nccl/libnccl-net-uccl.so" \
        timeout "$PAIR_LIMIT_S" "$BUILD/tests/nccl/nccl_host" "$@" spread=1
}

# The driver of a GPU that is not there (tests/mem). Soft-RoCE can register none of its memory, so that all of it
# is staged; it is asked to all the same.
mkdir -p "$WORK/gpu"
ln -sf "$BUILD/tests/mem/libfake-cuda.so" "$WORK/gpu/libcuda.so.1"
GPU=(LD_LIBRARY_PATH="$WORK/gpu" FAKE_GPU_DEVICES=2 UCCL_GDR_LEVEL=sys)

kinds=(uc rc ud)
for kind in "${kinds[@]}"; do
    use "$kind"
    guest "$kind: the engine takes it" takes_kind
    guest "$kind: sizes" sweep 1,4096,4097,64K,1M
    guest "$kind: sizes, both directions" sweep 1,64K,300000 --bi
    for loss in 0.1 1 5; do
        guest "$kind: sizes, $loss% loss" faulty "loss $loss%" sweep 1,4K,64K,300000
    done
    # on RC the NIC repairs
    [ "$kind" = rc ] || guest "$kind: 1% loss is repaired" faulty "loss 1%" repaired \
        pair 10.0.0.2 --msize=200000 --iterations=20 # some 1000 packets, of which one is lost for certain
    guest "$kind: 16 connections, both directions" pair 10.0.0.2 --nflow=16 --nreq=2 --bi \
        --msize=30000 --iterations=4
    guest "$kind: the link goes down and up at the receiver" flap v1
    guest "$kind: the link goes down and up at the sender" flap v0
    for mtu in 1500 9000; do
        guest "$kind: network device MTU $mtu" with_mtu $mtu sweep 4096,64K,300000
    done
    [ "$kind" = ud ] || guest "$kind: a late write changes nothing" stale_write
    for type in write read notify; do
        guest "$kind: one-sided, $type" onesided "$type" --iterations=200
        guest "$kind: one-sided, $type, 1% loss" faulty "loss 1%" onesided "$type" --iterations=40
    done
    guest "$kind: one-sided, revoked memory" revoked
    for type in write read; do
        guest "$kind: one-sided, $type of 1000 pieces" sweep 4K,256K --op=$type --pieces=1000
    done
    guest "$kind: one of two ports goes down and up" port_lost down
    use "$kind"
    guest "$kind: one of two ports loses all that it sends" port_lost one_way
    use "$kind"
    guest "$kind: NCCL's all-reduce" drive traffic channels=2 sizes=65536,1000 messages=4
    guest "$kind: NCCL's LL, GPUs look" drive traffic kind=ll channels=2 sizes=1024,5120,65536 messages=30
    guest "$kind: NCCL's LL, GPUs look, 1% loss" faulty "loss 1%" \
        drive traffic kind=ll channels=2 sizes=1024,5120,65536 messages=30
    use "$kind" "${GPU[@]}"
    guest "$kind: from GPU to GPU" sweep 1,4097,64K,1M --sender-device=cuda:0 --receiver-device=cuda:1
    guest "$kind: from GPU to GPU, 1% loss" faulty "loss 1%" sweep 4097,300000 --sender-device=cuda:1 --receiver-device=cuda:0
    guest "$kind: from GPU to host and back" sweep 64K,300000 --sender-device=cuda:0 --bi
    use "$kind" UCCL_PORT_ENTROPY=1
    guest "$kind: one path, 1% loss" faulty "loss 1%" sweep 64K,300000
    use "$kind" UCCL_CHUNK_SIZE_KB=1
    guest "$kind: smallest chunks" sweep 64K,300000
    use "$kind" UCCL_IN_ORDER=0
    guest "$kind: reordering" faulty "delay 2ms reorder 25% 50%" sweep 1,4K,64K,300000
    guest "$kind: duplicates" faulty "duplicate 5%" sweep 1,4K,64K,300000
    use "$kind" UCCL_DEAD_PEER_MS=4000
    guest "$kind: killed server" killed server
    guest "$kind: killed client" killed client
    [ "$kind" = ud ] && continue # there the engine retransmits everything, and no buffer is written by itself
    attack() {
        use "$kind" ${3:+"$3"}
        guest "$kind: $1" $2
    }
    attack "two ports, killed sender" "two_killed sender" UCCL_DEAD_PEER_MS=4000
    attack "two ports, killed receiver" "two_killed receiver" UCCL_DEAD_PEER_MS=4000
    attack "two ports, an end stops for a while" stopped_for_a_while
    attack "two ports, an end stops for too long" stopped_for_too_long UCCL_DEAD_PEER_MS=4000
    attack "two ports, one after the other down" crosswise
    attack "two ports, a close while one is down" closed_while_down
    attack "two ports, a cancel while one is down" cancelled_while_down
    attack "one port against two" unequal_ports
    attack "two ports, no descriptors when one is back" no_descriptors
done
finish
