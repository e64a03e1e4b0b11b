# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034
# Helpers of the integration scripts. A script sources this, makes checks, and ends with `finish`.
# Output is TAP. Whatever was started is killed and reaped, and whatever was made is removed, when
# the script ends in any way.
set -u

SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
BUILD=${TEST_BUILD_DIR:-$SOURCE/build}
TRANSPORT_TEST=$BUILD/bench/transport_test
P2P_BENCH=$BUILD/bench/p2p_bench
ENDPOINT=$BUILD/tests/endpoint
RELAY=$BUILD/tests/relay
NETNS=$SOURCE/tests/net/netns.sh
SHORT=${TEST_SHORT:-0} # 1: fewer and smaller cases, for sanitizers
export SHORT
WORK=$(mktemp -d)

IN_SERVER=() # command prefix of servers, such as: ip netns exec NAME
IN_CLIENT=()

checks=0 failures=0 planned=
namespaces=()

# Processes that have been started and live, in LIVING. Where other scripts start many, the number of a process that
# has ended is soon another one's: never signal it, nor ask whether it lives.
living() {
    jobs -rp >"$WORK/living"
    mapfile -t LIVING <"$WORK/living"
}

# lives PID: of those that have been started
lives() {
    living
    [[ " ${LIVING[*]} " == *" $1 "* ]]
}

# end_all: of those that have been started
end_all() {
    living
    [ ${#LIVING[@]} -eq 0 ] || kill -KILL "${LIVING[@]}" 2>/dev/null
    wait 2>/dev/null
}

cleanup() {
    end_all
    [ ${#namespaces[@]} -eq 0 ] || "$NETNS" down "${namespaces[@]}"
    rm -rf "$WORK"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# ---- reporting ------------------------------------------------------------------------------

# plan N [M]: how many checks the script makes, M of them with SHORT=1. tests/expected.py reads it
# from the source, so that a script which ends early is seen
plan() {
    planned=$1
    [ "$SHORT" = 0 ] || planned=${2:-$1}
}

# say TEXT: a comment in the output
say() { echo "# $*"; }

# check NAME COMMAND...: passes when the command succeeds; shows its output and all logs otherwise
check() {
    local name=$1 log
    shift
    checks=$((checks + 1))
    local since_s=$SECONDS
    if "$@" >"$WORK/check.log" 2>&1 9>&-; then
        echo "ok $checks - $name"
        [ $((SECONDS - since_s)) -lt 10 ] || say "took $((SECONDS - since_s)) s;" $(grep drawn "$WORK/check.log")
        return 0
    fi
    failures=$((failures + 1))
    echo "not ok $checks - $name"
    echo "# command: $*"
    for log in "$WORK"/*.log; do
        [ -s "$log" ] || continue
        echo "# ---- $(basename "$log")"
        tail -n 30 "$log" | cut -c 1-300 | sed 's/^/#   /'
    done
    [ "${TEST_FAIL_FAST:-0}" = 0 ] || exit 1
    return 1
}

# skip NAME WHY [COUNT]: in place of COUNT checks, else of one
skip() {
    local i
    for ((i = 0; i < ${3:-1}; i++)); do
        checks=$((checks + 1))
        echo "ok $checks - $1 # SKIP $2"
    done
}

# skip_all WHY: leaves the script
skip_all() {
    echo "1..0 # SKIP $1"
    exit 0
}

finish() {
    echo "1..$checks"
    if [ -n "$planned" ] && [ "$checks" != "$planned" ]; then
        echo "# plan $planned, but $checks checks were made"
        failures=$((failures + 1))
    fi
    [ "$failures" -eq 0 ]
    exit
}

# ---- processes ------------------------------------------------------------------------------

# start NAME COMMAND...: in the background, output to $WORK/NAME.log, process id in PID
start() {
    local name=$1
    shift
    : >"$WORK/$name.log" # now: who looks before the process runs must not see what one before it has printed
    "$@" >>"$WORK/$name.log" 2>&1 </dev/null 9>&- &
    PID=$!
}

# nap: a moment between two looks, each time a little longer up to 30 ms, by the caller's `naps`: most that is
# waited for is there soon. Not `read -t`: bash 5.2 sets a random signal mask where that time is over before it reads, as
# on a busy machine; then it hears of no child's end any more, and its children hear of no signal
nap() {
    naps=$((naps < 3 ? naps + 1 : 3))
    sleep 0.0$naps
}

# ended PID SECONDS: waits for its end and leaves its exit status in STATUS; kills it when too slow
ended() {
    local pid=$1 until_us=$((${EPOCHREALTIME//[!0-9]/} + $2 * 1000000)) naps=0
    while lives "$pid"; do
        if [ "${EPOCHREALTIME//[!0-9]/}" -ge "$until_us" ]; then
            kill -KILL "$pid" 2>/dev/null
            wait "$pid" 2>/dev/null
            STATUS=timeout
            echo "process $pid did not end within $2 s"
            return 1
        fi
        nap
    done
    wait "$pid" 2>/dev/null
    STATUS=$?
    return 0
}

now_ms() {
    local us=${EPOCHREALTIME//[!0-9]/}
    echo "${us%???}"
}

# uring_works: this build and this machine have io_uring for engines (a ring belongs to one thread: none is lent)
uring_works() {
    env UCCL_UDP_IO=uring UCCL_LEND=no timeout 20 "$BUILD/bench/uccl_info" --devices >/dev/null 2>&1
}

# until_true SECONDS COMMAND...
until_true() {
    local until_us=$((${EPOCHREALTIME//[!0-9]/} + $1 * 1000000)) naps=0
    shift
    until "$@"; do
        [ "${EPOCHREALTIME//[!0-9]/}" -lt "$until_us" ] || return 1
        nap
    done
}

# CPU seconds times 100 that a process has used
cpu_ticks() {
    local fields
    read -r fields <"/proc/$1/stat"
    # the name in parentheses may hold spaces
    read -ra fields <<<"${fields##*) }"
    echo $((fields[11] + fields[12]))
}

# has_socket PID PORT STATE: is there a TCP socket with that local port in the process's namespace
# and state (0A listening, 01 established)?
has_socket() {
    local port
    printf -v port %04X "$2"
    grep -qE "^ *[0-9]+: [0-9A-F]+:$port [0-9A-F:]+ $3 " \
        "/proc/$1/net/tcp" "/proc/$1/net/tcp6" 2>/dev/null
}

listening() { has_socket "$1" "$2" 0A; }
established() { has_socket "$1" "$2" 01; }

# wait_listening PID PORT: until the server listens, or has ended
LISTEN_LIMIT_S=20
wait_listening() {
    until_true "$LISTEN_LIMIT_S" eval "listening $1 $2 || ! lives $1"
    listening "$1" "$2"
}

# The script's own range of ports, among those of scripts that run beside it. Descriptor 9 holds a lock on it, and is
# not passed on. Where there is no flock, nothing runs beside it.
range=$(($$ % 100))
until exec 9>"${TMPDIR:-/tmp}/uccl-test-ports-$range" && { flock -n 9 2>/dev/null || [ $? = 127 ]; }; do
    range=$(((range + 1) % 100))
done
PORT=$((11000 + range * 200))

# next_port: a TCP port that nothing uses, below the range the kernel picks from, in PORT
next_port() {
    PORT=$((PORT + 1))
    while listening self "$PORT"; do PORT=$((PORT + 1)); done
}

# ---- pairs of transport_test ----------------------------------------------------------------

SERVER_ENV=() # NAME=VALUE for one side
CLIENT_ENV=()
SERVER_FLAGS=()
PAIR_LIMIT_S=60

# The two ends of a pair are configured differently, unless a script sets UNEQUAL=0 because it looks at what parameters
# do. TEST_SEED=N repeats what a script has drawn; what SERVER_ENV and CLIENT_ENV have counts before that.
UNEQUAL=1
SEED=${TEST_SEED:-$((SRANDOM % 1000000))}
drawn=$SEED

# draw WORD...: one of the words, in DRAWN
draw() {
    drawn=$(((drawn * 1103515245 + 12345) & 0x7fffffff))
    shift $(((drawn >> 12) % $#))
    DRAWN=$1
}

# draw_settings: of an end, in SETTINGS, some of all that it decides for itself and of what both agree on
draw_settings() {
    local row words
    SETTINGS=()
    [ "$UNEQUAL" = 1 ] || return 0
    for row in LEND,UDP_IO:yes,mmsg:no,mmsg:no,auto NUM_ENGINES:1:2:3 CHUNK_SIZE_KB:4:16:64 MSG_WINDOW:16:256:4096 \
        CHUNK_WINDOW:128:512:4096 EAGER_KB:0:2:64 EAGER_WINDOW_KB:128:512 PORT_ENTROPY:1:3:16 CC:swift:timely:eqds \
        PATH_POLICY:recycle:pow2:rr ACK_EVERY:1:16 MTU:1500:4000:9000 SOCKET_BUFFER_KB:512:2048 SPIN_US:0:200 \
        PAYLOAD_CRC:0:1 TX_BUFFERS:16:512 RING_ENTRIES:32:1024; do
        draw yes no
        [ "$DRAWN" = yes ] || continue
        IFS=: read -ra words <<<"$row"
        draw "${words[@]:1}"
        while [ -n "$DRAWN" ]; do # of several names as many values
            SETTINGS+=("UCCL_${words[0]%%,*}=${DRAWN%%,*}")
            words[0]=${words[0]#*,}
            [[ $DRAWN == *,* ]] && DRAWN=${DRAWN#*,} || DRAWN=
        done
    done
    echo "drawn from TEST_SEED=$SEED: ${SETTINGS[*]}"
}

# start_pair ADDRESS CLIENT_FLAG...: ids in SERVER_PID and CLIENT_PID
start_pair() {
    local address=$1
    shift
    rm -f "$WORK"/server.log "$WORK"/client.log
    next_port
    draw_settings
    start server "${IN_SERVER[@]}" env "${SETTINGS[@]}" "${SERVER_ENV[@]}" "$TRANSPORT_TEST" --server=true \
        --oobport="$PORT" "${SERVER_FLAGS[@]}"
    SERVER_PID=$PID
    if ! wait_listening "$SERVER_PID" "$PORT"; then
        echo "the server does not listen on port $PORT"
        return 1
    fi
    draw_settings
    start client "${IN_CLIENT[@]}" env "${SETTINGS[@]}" "${CLIENT_ENV[@]}" "$TRANSPORT_TEST" \
        --serverip="$address" --oobport="$PORT" "$@"
    CLIENT_PID=$PID
}

# pair ADDRESS CLIENT_FLAG...: runs a server and a client; both must exit 0
pair() {
    local result=0
    start_pair "$@" || return 1
    ended "$CLIENT_PID" "$PAIR_LIMIT_S" || result=1
    [ "$STATUS" = 0 ] || { echo "client: status $STATUS" && result=1; }
    ended "$SERVER_PID" $((result ? 15 : 10)) || result=1
    [ "$STATUS" = 0 ] || { echo "server: status $STATUS" && result=1; }
    return "$result"
}

# retransmits: the largest number that either side printed
retransmits() {
    cat "$WORK"/server.log "$WORK"/client.log 2>/dev/null |
        grep -oiE 'retransm[a-z]*[^0-9a-z]+[0-9]+|[0-9]+ +(datagrams )?retransm[a-z]*' |
        grep -oE '[0-9]+' | sort -n | tail -n 1 | grep . || echo 0
}

# said FILE PATTERN: a log has such a line
said() {
    grep -qiE "$2" "$WORK/$1.log" || {
        echo "no line with '$2' in $1.log"
        return 1
    }
}

# ---- namespaces -----------------------------------------------------------------------------

# two_namespaces up|tun ...: names in NS_A and NS_B; servers run in A, clients in B
two_namespaces() {
    local kind=$1
    shift
    [ ${#namespaces[@]} -eq 0 ] || "$NETNS" down "${namespaces[@]}"
    NS_A=uccl-a-$$ NS_B=uccl-b-$$
    namespaces=("$NS_A" "$NS_B")
    IN_SERVER=(ip netns exec "$NS_A")
    IN_CLIENT=(ip netns exec "$NS_B")
    "$NETNS" "$kind" "$NS_A" "$NS_B" "$@"
}

need_namespaces() {
    local probe=uccl-probe-$$
    ip netns add "$probe" 2>/dev/null || skip_all "not allowed to make network namespaces"
    ip netns del "$probe"
}
