#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A process that lies in all that it sends, and an honest one, at the same server: the server lives, the honest one's
# messages come back whole and in time, and in the end the server has everything back (ASan sees that).
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 2

HOSTILE=$BUILD/tests/hostile
export UCCL_SOCKET_IFNAME=lo UCCL_STRIPE_MIN_KB=64 UCCL_DEAD_PEER_MS=1500 UCCL_LOG_LEVEL=error
SECONDS_OF_LIES=4
[ "$SHORT" = 0 ] || SECONDS_OF_LIES=3

# beside_liars ENGINES UDP_IO LEND
beside_liars() {
    local victim honest liar liars=() i result=0 over=$WORK/over
    export UCCL_NUM_ENGINES=$1 UCCL_LEND=$3
    rm -f "$over"
    next_port
    start victim env UCCL_UDP_IO="$2" "$HOSTILE" victim "$PORT" "$over"
    victim=$PID
    wait_listening "$victim" "$PORT" || return 1
    start honest env UCCL_UDP_IO="$2" "$HOSTILE" honest "$PORT" "$SECONDS_OF_LIES"
    honest=$PID
    for i in 1 2; do
        start "liar$i" "$HOSTILE" liar "$PORT" "$SECONDS_OF_LIES" "$SEED$i"
        liars+=("$PID")
    done
    ended "$honest" $((SECONDS_OF_LIES + 20)) && [ "$STATUS" = 0 ] || { echo "honest: $STATUS" && result=1; }
    for liar in "${liars[@]}"; do
        ended "$liar" 20 && [ "$STATUS" = 0 ] || { echo "liar: $STATUS" && result=1; }
    done
    : >"$over"
    ended "$victim" 20 && [ "$STATUS" = 0 ] || { echo "victim: $STATUS" && result=1; }
    [ "$result" = 0 ] || echo "seeds of the lies: ${SEED}1 ${SEED}2"
    return "$result"
}

SEED=$RANDOM
io=(uring mmsg)
"$BUILD/tests/no_uring" true && UCCL_UDP_IO=uring "$BUILD/bench/uccl_info" >/dev/null 2>&1 || io=(mmsg mmsg)
check "one engine thread, ${io[1]}, lent: an honest peer notices nothing of a liar" beside_liars 1 "${io[1]}" yes
SEED=$((SEED + 1))
check "three engine threads, parts, ${io[0]}: an honest peer notices nothing of a liar" beside_liars 3 "${io[0]}" no
finish
