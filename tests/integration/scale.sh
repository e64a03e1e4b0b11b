#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/scale_sim: the core on a modelled fat tree. Time in it is virtual, so bounds hold on any machine.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 20 14

SCALE_SIM=$BUILD/bench/scale_sim

# within LOW HIGH KEY FLAG...: all messages are done, and this value of the result is within bounds
within() {
    local low=$1 high=$2 key=$3
    shift 3
    timeout 120 "$SCALE_SIM" --json "$@" >"$WORK/scale.json" 2>"$WORK/scale.log" && between "$low" "$high" "$key"
}

# between LOW HIGH KEY: of what ran last
between() {
    python3 - "$WORK/scale.json" "$@" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))
print(result)
assert result["done"] == result["messages"]
assert float(sys.argv[2]) <= result[sys.argv[4]] <= float(sys.argv[3]), sys.argv[4]
END
}

repeats() {
    "$SCALE_SIM" --nodes=32 --policy=pow2 --json >"$WORK/first.log" &&
        "$SCALE_SIM" --nodes=32 --policy=pow2 --json >"$WORK/second.log" && cmp "$WORK/first.log" "$WORK/second.log"
}

# all_us FLAG...: when the last message was done
all_us() {
    timeout 120 "$SCALE_SIM" --json "$@" | python3 -c "import json, sys; print(json.load(sys.stdin)['all_us'])"
}

degraded() {
    local seed
    for seed in 1 2 3 4 5 6; do
        all_us --nodes=128 --degraded=4 --cc=eqds --seed=$seed || return 1
        all_us --nodes=128 --degraded=4 --cc=eqds --seed=$seed --policy=rr || return 1
    done >"$WORK/degraded.log"
    awk 'NR % 2 { recycled += $1 } !(NR % 2) { oblivious += $1 } END { exit !(NR == 12 && 0.7 * oblivious >= recycled) }' \
        "$WORK/degraded.log"
}

# matrix LINE...: writes a connection matrix
matrix() {
    printf '%s\n' "$@" >"$WORK/test.cm"
}

# refused TEXT LINE...: this matrix is refused with an error that says TEXT
refused() {
    local text=$1
    shift
    matrix "$@"
    ! "$SCALE_SIM" --matrix="$WORK/test.cm" >"$WORK/refused.log" 2>&1 && grep -q "$text" "$WORK/refused.log"
}

HEADER=("Nodes 16" "Connections 2")

matrix "# alone on its path" "Nodes 16" "Connections 1" "0->15 id 1 start 1000000 size 2000000"
check "a message alone takes the ideal time" within 0.999 1.001 ratio --matrix="$WORK/test.cm"
matrix "${HEADER[@]}" "Triggers 1" "0->15 id 1 start 0 size 100000 recv_done_trigger 1" \
    "15->0 id 2 trigger 1 size 100000" "trigger id 1 oneshot"
check "a trigger starts the second message" within 31 36 all_us --matrix="$WORK/test.cm"
matrix "Nodes 16" "Connections 1" "Failures 2" "0->15 id 1 start 0 size 2000000" \
    "failure switch_type TOR switch_id 0 link_id 0" "failure switch_type CORE switch_id 1 link_id 3"
check "failures are read" within 1 2 ratio --matrix="$WORK/test.cm"
check "permutation of 32" within 1 1.25 ratio --nodes=32
check "dead uplinks, permutation of 32 with receiver credit" within 1 2.5 ratio --nodes=32 --dead=2 --cc=eqds
check "all to all of 16" within 1 1.5 ratio --nodes=16 --traffic=alltoall --size=200000
if [ "$SHORT" = 0 ]; then # else it takes long, and shows nothing that the small ones do not
    check "permutation of 128 over 128 paths: 1.15 of ideal" within 1 1.15 ratio --nodes=128 --paths=128
    check "the same with receiver credit" within 1 1.15 ratio --nodes=128 --paths=128 --cc=eqds
    check "incast of 127 with receiver credit: 1.02 of ideal" within 1 1.02 ratio --nodes=128 --traffic=incast --cc=eqds
    check "and under 10,000 packets sent again" between 0 9999 retransmissions
    check "degraded uplinks: recycled paths take two thirds of the time of oblivious ones, over six seeds" degraded
    check "dead uplinks" within 1 2.5 ratio --nodes=128 --dead=4 --cc=eqds
fi
check "the same seed gives the same result" repeats

check "no header" refused 'line 1.*no "Nodes N"' "0->1 start 0 size 1"
check "a node that is not there" refused "line 3.*destination 16" "${HEADER[@]}" "0->16 start 0 size 1"
check "an unknown word" refused "line 3.*unknown word: sise" "${HEADER[@]}" "0->1 start 0 sise 1"
check "no start" refused "line 3.*either a start or a trigger" "${HEADER[@]}" "0->1 size 1"
check "too few connections" refused "1 connections.*header says 2" "${HEADER[@]}" "0->1 start 0 size 1"
check "a trigger that is not there" refused "names a trigger" "Nodes 16" "Connections 1" "0->1 trigger 7 size 1"
check "a link that is not there" refused "has no link 9" "Nodes 16" "Connections 1" "Failures 1" \
    "0->1 start 0 size 1" "failure switch_type AGG switch_id 0 link_id 9"
finish
