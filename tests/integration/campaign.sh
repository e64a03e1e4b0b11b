#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/campaign.sh: it keeps to its time, stops when told, plays every scenario, and tells what failed.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 8 7

CARRY=$WORK/carry
KEEP=$WORK/keep
row() { grep -E '^\| [0-9-]{10} \|' "$1" | tail -n 1; }
# column N OF FILE
column() { row "$2" | cut -d '|' -f $(($1 + 1)) | tr -d ' ,'; }

keeps_its_time() {
    local begun=${EPOCHREALTIME/./} took
    "$CARRY/run.sh" --minutes 0.1 --fuzz 0 --jobs 2 --keep "$KEEP" >"$WORK/campaign.log" 2>&1 || return 1
    took=$((${EPOCHREALTIME/./} - begun))
    [ "$took" -lt 12000000 ] || { echo "it took $took us" && return 1; }
    [ "$(column 5 "$WORK/campaign.log")" -gt 0 ] && [ "$(column 10 "$WORK/campaign.log")" = 0 ]
}

all_scenarios_alike() {
    local least most
    read -r least most < <(grep -E '^[a-z0-9-]+ +[0-9]+ seeds' "$KEEP/logs/sim" | grep -v '^all ' |
        awk '{print $2}' | sort -n | sed -n '1p;$p' | tr '\n' ' ')
    # a seed that was cut off is one less
    [ "$((most - least))" -le 2 ] || { echo "between $least and $most seeds" && return 1; }
}

# both ask for seeds in the same second
never_the_same_seeds() {
    local one two
    "$CARRY/run.sh" --minutes 0.05 --fuzz 0 --jobs 1 >"$WORK/one.log" 2>&1 &
    "$CARRY/run.sh" --minutes 0.05 --fuzz 0 --jobs 1 >"$WORK/two.log" 2>&1
    wait $!
    one=$(sed -n 's/.*seeds from //p' "$WORK/one.log") two=$(sed -n 's/.*seeds from //p' "$WORK/two.log")
    [ "$one" -gt 1000000 ] && [ "$two" -gt 1000000 ] && [ $((one >> 20)) -ne $((two >> 20)) ]
}

stops_when_told() {
    local begun pid took
    # in the background a shell ignores SIGINT
    timeout -k 10 60 env --default-signal=INT "$CARRY/run.sh" --minutes 9 --fuzz 0 --jobs 2 >"$WORK/stopped.log" 2>&1 &
    pid=$!
    until_true 20 grep -q 'seeds from' "$WORK/stopped.log" || return 1
    sleep 1
    begun=${EPOCHREALTIME/./}
    kill -"$1" "$pid"
    wait "$pid" || return 1
    took=$((${EPOCHREALTIME/./} - begun))
    [ "$took" -lt 8000000 ] || { echo "it took $took us" && return 1; }
    [ -n "$(row "$WORK/stopped.log")" ] && ! pgrep -f "$CARRY/bin"
}

# A simulator of which two seeds fail alike, the second with the shorter trace; and a fuzzer that finds something
broken_programs() {
    cat >"$CARRY/bin/sim" <<'END'
#!/bin/bash
case " $* " in
*" --list "*) echo quiet ;;
*" --seed 7 "*--trace*) printf '%s\n' 1 2 3 '# at 1.5 ms: 4 bytes are gone' 'not ok: scenario quiet, seed 7; replay: x' ;;
*" --seed 8 "*--trace*) printf '%s\n' 1 '# at 2.5 ms: 9 bytes are gone' 'not ok: scenario quiet, seed 8; replay: x' ;;
*)
    printf 'not ok: scenario quiet, seed %s; replay: x\n' 7 8
    echo "all                       1232 seeds        0 messages"
    ;;
esac
END
    cat >"$CARRY/bin/fuzz_wire" <<'END'
#!/bin/bash
for argument; do
    case $argument in
    -artifact_prefix=*) found=${argument#*=}crash-1 ;;
    -exact_artifact_path=*) exit 1 ;;
    */found/*) echo "x.c:5:6: runtime error: division by zero" && exit 1 ;;
    esac
done
[ ! -f "$found" ] || sleep 1
echo lie >"$found"
echo "stat::number_of_executed_units: 1000"
exit 77
END
    chmod +x "$CARRY"/bin/*
}

tells_what_failed() {
    broken_programs
    "$CARRY/run.sh" --minutes 0.1 --jobs 2 --keep "$WORK/broken" >"$WORK/broken.log" 2>&1 && return 1
    grep -q '^2 x quiet: 9 bytes are gone$' "$WORK/broken.log" &&
        grep -q 'tests/run.sh sim --scenario quiet --seed 8 --seeds 1 --trace$' "$WORK/broken.log" &&
        grep -q '^fuzz_wire: x.c:5:6: runtime error: division by zero' "$WORK/broken.log" &&
        grep -q "base64 -d >input <<<$(echo lie | base64) " "$WORK/broken.log" &&
        [ "$(column 5 "$WORK/broken.log")" = 1234 ] && [ "$(column 6 "$WORK/broken.log")" -ge 1000 ] &&
        [ "$(column 10 "$WORK/broken.log")" = 3 ]
}

records_a_row() {
    local copy=$WORK/tree table
    table=$copy/docs/testing.md
    mkdir -p "$copy/docs" "$copy/tests"
    cp "$SOURCE/tests/campaign.sh" "$copy/tests" && cp "$SOURCE/docs/testing.md" "$copy/docs" || return 1
    "$copy/tests/campaign.sh" record "$WORK/broken.log" || return 1
    "$copy/tests/campaign.sh" record "$WORK/broken.log" || return 1 # again: nothing more
    [ "$(diff "$SOURCE/docs/testing.md" "$table" | grep -c '^[<>]')" = 1 ] || return 1
    diff "$SOURCE/docs/testing.md" "$table" | grep -qF "> $(row "$WORK/broken.log")"
}

check "gathering programs" "$SOURCE/tests/campaign.sh" gather "$CARRY" "$BUILD/tests/sim"
check "it ends in the time that it is given" keeps_its_time
[ "$SHORT" = 1 ] || check "the same number of seeds of each scenario" all_scenarios_alike
check "no seeds twice" never_the_same_seeds
for signal in TERM INT; do
    check "told to stop by SIG$signal, it tells and leaves nothing behind" stops_when_told $signal
done
check "what failed is told, the smallest of a kind" tells_what_failed
check "a row for the table" records_a_row
finish
