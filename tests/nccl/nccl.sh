#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plugin driven as NCCL does (host.h), over loopback, with datagrams lost and repeated.
#
#   nccl.sh versions      each version of the interface
#   nccl.sh collectives   ring all-reduces and point to point, in many ways
#   nccl.sh watched       GPUs that look at receive buffers
#   nccl.sh ends          kills, aborts, forks, late and stopped ranks
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

HOST=$BUILD/tests/nccl/nccl_host
export NCCL_PLUGIN_FILE=$BUILD/plugins/nccl/libnccl-net-uccl.so UCCL_SOCKET_IFNAME=lo UCCL_BACKEND=udp
CASE_LIMIT_S=120

# host SCENARIO [NAME=VALUE of the host]..., with VARIABLES in its environment
VARIABLES=()
host() { env "${VARIABLES[@]}" timeout "$CASE_LIMIT_S" "$HOST" "$@"; }
# drive NAME ARGUMENT OF host()...
drive() {
    local name=$1
    shift
    if [ "$failures" -ge 3 ]; then # each may have waited for something that never comes
        say "three have failed: the rest is not tried"
        finish
    fi
    check "$name" host "$@"
}

ALL_VERSIONS="8 9 10 11 12"
SOME_VERSIONS="8 9 12"
factor=1
if [ "$SHORT" = 1 ]; then
    SOME_VERSIONS=12 factor=4
fi

# background NAME ENVIRONMENT... -- ARGUMENT OF host()...
background() {
    local name=$1 variables=()
    shift
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    start "$name" env "${variables[@]}" timeout "$CASE_LIMIT_S" "$HOST" "$@"
}

ended_well() { ended "$1" "$CASE_LIMIT_S" && [ "$STATUS" = 0 ]; }

# ---- each version ----------------------------------------------------------------------------

versions() {
    plan 17 13
    local version interfaces
    for version in $ALL_VERSIONS; do
        drive "version $version: properties" properties version="$version"
        drive "version $version: all-reduce, 4 channels, some of no bytes, registrations meanwhile" \
            traffic version="$version" channels=4 sizes=131072,0,4,70000 messages=$((40 / factor)) registers=1
    done
    for version in $SOME_VERSIONS; do
        drive "version $version: 128 KiB messages" \
            traffic version="$version" kind=chunks channels=4 sizes=131072 messages=$((300 / factor)) registers=1
        drive "version $version: reloaded" reload version="$version" messages=5
    done
    # in a namespace of the network that has the /sys of another one, as in some containers
    interfaces="ip link add va type veth peer name vb && ip addr add 10.77.0.1/24 dev va &&
        ip addr add 10.77.1.1/24 dev vb && ip link set va up && ip link set vb up"
    if unshare -n sh -c "$interfaces" 2>/dev/null; then
        check "properties of interfaces that /sys does not know" env UCCL_SOCKET_IFNAME=va,vb timeout "$CASE_LIMIT_S" \
            unshare -n sh -c "$interfaces && exec $HOST properties"
    else
        skip "properties of interfaces that /sys does not know" "not allowed to make a namespace"
    fi
}

# ---- collectives -----------------------------------------------------------------------------

collectives() {
    plan 16
    local channels setting
    for channels in 2 8 16; do
        drive "all-reduce of 2 ranks over $channels channels" traffic channels="$channels" sizes=524288,1000 messages=$((24 / factor))
    done
    drive "all-reduce of 3 ranks" traffic ranks=3 channels=2 sizes=131072,8 messages=$((40 / factor))
    drive "all-reduce of 4 ranks" traffic ranks=4 channels=2 sizes=65536,12 messages=$((40 / factor))
    drive "two communicators in each process" traffic comms=2 channels=4 messages=$((40 / factor)) registers=1
    drive "1 KiB messages" traffic kind=chunks channels=8 sizes=1024,0,4 messages=$((4000 / factor))
    for setting in UCCL_NUM_ENGINES=1 UCCL_NUM_ENGINES=4 UCCL_LEND=yes UCCL_LEND=no UCCL_UDP_IO=mmsg; do
        VARIABLES=("$setting")
        drive "$setting: all-reduce" traffic channels=4 sizes=131072,100 messages=$((40 / factor))
    done
    for setting in tcp auto; do
        VARIABLES=(UCCL_BACKEND="$setting" UCCL_NIC_DEAD_MS=10000) # a busy machine may keep datagrams back; that is a warning
        drive "UCCL_BACKEND=$setting: all-reduce" traffic channels=4 sizes=524288,100 messages=$((40 / factor))
    done
    VARIABLES=(UCCL_UDP_IO=mmsg LOSE=0.02 TWICE=0.01)
    drive "2% of datagrams lost: all-reduce" traffic channels=4 sizes=131072,0,4,70000 messages=$((40 / factor))
    drive "2% of datagrams lost: 128 KiB messages" traffic kind=chunks channels=4 messages=$((100 / factor))
    VARIABLES=()
}

# ---- GPUs that look --------------------------------------------------------------------------

watched() {
    plan 34 24
    local mtu version setting mtus=(1480 9000)
    # at these two, payloads of datagrams are multiples of 8 and of 128 bytes by nature
    [ "$SHORT" = 1 ] || mtus+=(1500 8924)
    for mtu in "${mtus[@]}"; do
        VARIABLES=(UCCL_UDP_IO=mmsg LOSE=0.02 TWICE=0.01 UCCL_MTU="$mtu")
        drive "LL at MTU $mtu, 1 to 8 KiB, 2% lost" traffic kind=ll channels=8 sizes=1024,2048,5120,8192,16 messages=$((1500 / factor))
        drive "LL at MTU $mtu, 64 KiB, 2% lost" traffic kind=ll channels=8 sizes=65536 messages=$((200 / factor))
        drive "LL128 at MTU $mtu, 2% lost" traffic kind=ll128 channels=4 sizes=5120,65536,128 messages=$((600 / factor))
        VARIABLES=(UCCL_MTU="$mtu")
        drive "LL at MTU $mtu" traffic kind=ll channels=8 sizes=1024,5120,65536 messages=$((300 / factor))
        drive "LL128 at MTU $mtu" traffic kind=ll128 channels=8 sizes=1024,5120,65536 messages=$((300 / factor))
    done
    VARIABLES=(UCCL_UDP_IO=mmsg LOSE=0.02 UCCL_MTU=1480)
    for version in 8 9; do
        drive "version $version: LL, 2% lost" traffic version="$version" kind=ll channels=8 sizes=1024,5120,65536 messages=$((200 / factor))
    done
    VARIABLES+=(NCCL_NET_OPTIONAL_RECV_COMPLETION=0)
    drive "LL, not told apart by NCCL, 2% lost" traffic kind=ll channels=8 sizes=1024,5120,65536 messages=$((200 / factor))
    # send and receive use LL where NCCL_PROTO, which is about collectives, says Simple
    for setting in NCCL_ALLOC_P2P_NET_LL_BUFFERS=1 NCCL_NET_SHARED_BUFFERS=0; do
        VARIABLES=(UCCL_UDP_IO=mmsg LOSE=0.02 UCCL_MTU=1480 NCCL_PROTO=Simple "$setting")
        drive "version 8: $setting: LL of send and receive" traffic version=8 kind=ll channels=8 sizes=1024,5120,65536 messages=100
    done
    drive "LL of send and receive" traffic kind=ll channels=8 sizes=1024,5120,65536 messages=100
    VARIABLES=(UCCL_BACKEND=tcp)
    drive "LL over TCP" traffic kind=ll channels=8 sizes=1024,5120,65536,524288 messages=$((200 / factor))
    drive "LL128 over TCP" traffic kind=ll128 channels=8 sizes=1024,5120,65536,524288 messages=$((200 / factor))
    VARIABLES=(UCCL_UDP_IO=mmsg LOSE=0.02 UCCL_MTU=1480 UCCL_NUM_ENGINES=4 UCCL_STRIPE_MIN_KB=64)
    drive "LL in parts over 4 engine threads, 2% lost" traffic kind=ll channels=4 sizes=262144,5120 messages=$((60 / factor))
    if uring_works; then
        for mtu in 1480 9000; do
            VARIABLES=(UCCL_UDP_IO=uring UCCL_LEND=no UCCL_MTU="$mtu")
            drive "io_uring: LL at MTU $mtu" traffic kind=ll channels=8 sizes=1024,5120,65536 messages=$((200 / factor))
            drive "io_uring: LL128 at MTU $mtu" traffic kind=ll128 channels=8 sizes=1024,5120,65536 messages=$((200 / factor))
        done
        VARIABLES=(UCCL_UDP_IO=uring UCCL_LEND=no)
        drive "io_uring: all-reduce" traffic channels=4 sizes=131072,100 messages=$((40 / factor))
    else
        skip "io_uring" "not in this build, or not allowed here" 5
    fi
    VARIABLES=()
}

# ---- ends ------------------------------------------------------------------------------------

ends() {
    plan 20 10
    local skew stop version
    # a rank that comes later than any time of the engine's own
    background skew -- traffic skew_ms=$((SHORT ? 2000 : 11000)) channels=4
    skew=$PID
    background stop -- stop limit_ms=3000 messages=$((6000 / factor)) sizes=20000
    stop=$PID

    for version in $SOME_VERSIONS; do
        drive "version $version: more sends than may be outstanding" flood version="$version"
        drive "version $version: listeners and connects that nobody ends" halves version="$version" channels=4
        drive "version $version: deregMr with requests pending" abort version="$version" channels=4 sizes=524288
        VARIABLES=(UCCL_DEAD_PEER_MS=2000)
        drive "version $version: a killed peer, one channel" \
            kill version="$version" channels=1 messages=1000000 sizes=4096 kind=chunks limit_ms=1500
        drive "version $version: a killed peer, 64 channels: as fast, said once" \
            kill version="$version" channels=64 messages=1000000 sizes=4096,100,60000 kind=chunks limit_ms=1500
        VARIABLES=()
    done
    VARIABLES=(UCCL_DEAD_PEER_MS=2000)
    drive "a killed rank of four" kill ranks=4 channels=4 messages=1000000 sizes=65536 kind=chunks limit_ms=1500
    VARIABLES=()
    drive "deregMr with requests pending, small messages" abort channels=8 sizes=4096
    if [ "${TEST_SANITIZED:-0}" = 1 ]; then
        skip "a fork in the middle" "a sanitizer's own locks may hang in a child"
    else
        drive "a fork in the middle" fork messages=1000 sizes=10000
    fi
    check "a rank that comes late" ended_well "$skew"
    check "a rank that is stopped and goes on" ended_well "$stop"
}

case ${1:-} in
versions | collectives | watched | ends) "$1" ;;
*)
    echo "usage: ${0##*/} versions|collectives|watched|ends" >&2
    exit 64
    ;;
esac
finish
