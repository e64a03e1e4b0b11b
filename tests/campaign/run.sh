#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a campaign in a folder that tests/campaign.sh has built. See usage() or --help.
set -u
HERE=$(cd "$(dirname "$0")" && pwd)

usage() {
    cat <<'END'
usage: run.sh --minutes N [option...]

Plays fresh simulator seeds, the same number of each scenario, and fuzzes, on all processors. Replays what failed,
makes it smaller, and prints it with one row for the table of docs/testing.md. All of it ends within N minutes, and
within seconds of SIGTERM or SIGINT. The exit status is 0 only when nothing failed.

--minutes N       may be a fraction
--seeds-from S    the first seed; without it a range that date, machine and process make its own
--scenario NAME   only this one
--jobs J          processors to use; without it all
--fuzz PERCENT    of the processors for the fuzzers (25); 0: none, 100: no simulator
--fuzzers NAMES   only these, comma-separated, of: bootstrap, core, handle, hostile, onesided, stream, wire
--keep FOLDER     where findings and logs go (a new folder in TMPDIR); nothing else is written
END
}

die() {
    echo "run.sh: $1" >&2
    exit 64
}

# ---- arguments ------------------------------------------------------------------------------

minutes='' seeds_from='' scenario='' jobs=$(nproc) fuzz_percent=25 fuzzers_wanted='' keep=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    --minutes | --seeds-from | --scenario | --jobs | --fuzz | --fuzzers | --keep)
        [ $# -ge 2 ] || die "$1 takes a value"
        case $1 in
        --minutes) minutes=$2 ;;
        --seeds-from) seeds_from=$2 ;;
        --scenario) scenario=$2 ;;
        --jobs) jobs=$2 ;;
        --fuzz) fuzz_percent=$2 ;;
        --fuzzers) fuzzers_wanted=$2 ;;
        --keep) keep=$2 ;;
        esac
        shift 2
        ;;
    *)
        usage >&2
        exit 64
        ;;
    esac
done
[[ $minutes =~ ^[0-9]*\.?[0-9]+$ ]] || die "--minutes N is needed"
[[ $seeds_from =~ ^[0-9]*$ && $jobs =~ ^[1-9][0-9]*$ && $fuzz_percent =~ ^(100|[0-9]{1,2})$ ]] || die "not a number"

# ---- time, in milliseconds ------------------------------------------------------------------

now() {
    local time=${EPOCHREALTIME/[.,]/}
    echo $((time / 1000))
}

# seconds MS: for those that take seconds, at least some
seconds() {
    local ms=$(($1 > 100 ? $1 : 100))
    printf '%d.%03d' $((ms / 1000)) $((ms % 1000))
}

# The C library keeps what is freed: giving it back to the kernel for each seed costs a fifth of the time
export MALLOC_TRIM_THRESHOLD_=2000000000 MALLOC_MMAP_THRESHOLD_=1000000000 MALLOC_TOP_PAD_=16000000

start=$(now)
whole_ms=$(awk -v minutes="$minutes" 'BEGIN {printf "%d", minutes * 60000}')
[ "$whole_ms" -ge 3000 ] || die "three seconds are the least"
# the last tenth is for replaying and telling
report_ms=$((whole_ms / 10))
[ $report_ms -le 60000 ] || report_ms=60000
[ $report_ms -ge 2500 ] || report_ms=$((whole_ms > 7500 ? 2500 : whole_ms / 3))
end=$((start + whole_ms - 300))
hunt_end=$((end - report_ms))
left() { echo $(($1 - $(now))); }

# ---- programs -------------------------------------------------------------------------------

kept=yes
if [ -z "$keep" ]; then
    kept=no # unless something is found
    keep=$(mktemp -d "${TMPDIR:-/tmp}/campaign.XXXXXX") || exit 2
fi
mkdir -p "$keep"/{logs,found,corpus} && : >"$keep/logs/sim" || exit 2
keep=$(cd "$keep" && pwd)

# The machine's own C library is used where it will do, else the carried one with its loader.
mkdir -p "$keep/lib"
for file in "$HERE"/lib/*; do
    case ${file##*/} in
    ld-linux* | libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so*) ;;
    *) ln -sf "$file" "$keep/lib" ;;
    esac
done
own_loader=yes
# program NAME: sets the array command, to which arguments are added
program() {
    command=(env "LD_LIBRARY_PATH=$keep/lib" "$HERE/bin/$1")
    [ $own_loader = yes ] || command=("$HERE"/lib/ld-linux*.so* --library-path "$HERE/lib" "$HERE/bin/$1")
}
program sim
if ! "${command[@]}" --list >"$keep/scenarios" 2>"$keep/logs/loader"; then
    own_loader=no
    program sim
    "${command[@]}" --list >"$keep/scenarios" 2>>"$keep/logs/loader" ||
        die "the programs do not run here: $(tail -n 2 "$keep/logs/loader")"
fi
fuzzers=()
for file in "$HERE"/bin/fuzz_*; do
    name=${file##*/fuzz_}
    [ ! -x "$file" ] || [[ -n $fuzzers_wanted && ,$fuzzers_wanted, != *,$name,* ]] || fuzzers+=("$name")
done
IFS=, read -ra wanted <<<"$fuzzers_wanted"
for name in "${wanted[@]}"; do
    [ -x "$HERE/bin/fuzz_$name" ] || die "--fuzzers: there is no fuzzer $name"
done

# ---- how it is shared -----------------------------------------------------------------------

[ ${#fuzzers[@]} -gt 0 ] || fuzz_percent=0
fuzz_jobs=$((jobs * fuzz_percent / 100))
[ "$fuzz_percent" -eq 0 ] || [ $fuzz_jobs -gt 0 ] || fuzz_jobs=1
sim_jobs=$((jobs - fuzz_jobs))
[ "$fuzz_percent" -eq 100 ] || [ $sim_jobs -gt 0 ] || sim_jobs=1

# A core's inputs take a hundred times as long as a datagram's: it has two turns of five.
turns=()
for name in "${fuzzers[@]}"; do
    turns+=("$name")
    [ "$name" != core ] || turns+=("$name")
done
turn_ms=$(((hunt_end - start) * (fuzz_jobs > 0 ? fuzz_jobs : 1) / (${#turns[@]} + 1) + 1))
[ $turn_ms -le 60000 ] || turn_ms=60000

# A range of 2^20 seeds: by the second, and within it by machine and process.
if [ -z "$seeds_from" ]; then
    machine=$(cat /etc/machine-id /proc/sys/kernel/random/boot_id 2>/dev/null; hostname 2>/dev/null; echo $$ "$EPOCHREALTIME")
    machine=$(cksum <<<"$machine" | cut -d ' ' -f 1)
    seeds_from=$(((EPOCHSECONDS << 32) | ((machine & 4095) << 20)))
fi

# ---- hunting --------------------------------------------------------------------------------

FINDINGS_MAX=40 # of one fuzzing worker: then it is over, the same one is found again and again

# fuzz_turn WORKER TARGET MS: one run of a fuzzer
fuzz_turn() {
    local folder=$keep/corpus/$2-$1
    mkdir -p "$folder"
    local longest=4200
    [ "$2" = bootstrap ] && longest=17000 # an OFFER has up to 16 KiB
    program "fuzz_$2"
    "${command[@]}" -verbosity=0 -print_final_stats=1 -max_len=$longest -timeout=25 -rss_limit_mb=4096 \
        -max_total_time=$(($3 / 1000)) -seed=$((SRANDOM >> 1 | 1)) -artifact_prefix="$keep/found/$2-" \
        "$folder" "$HERE/corpus/$2" >>"$keep/logs/fuzz-$2-$1" 2>&1 &
    wait $!
}

# fuzz_worker NUMBER: takes turns among the targets, until the time is up
fuzz_worker() {
    local turn=$1 findings=0 ms target
    trap 'hunt_end=0' TERM
    while ms=$(left "$hunt_end") && [ "$ms" -ge 1000 ] && [ $findings -lt $FINDINGS_MAX ]; do
        target=${turns[turn % ${#turns[@]}]}
        fuzz_turn "$1" "$target" $((ms < turn_ms ? ms : turn_ms)) || findings=$((findings + 1))
        turn=$((turn + 1))
    done
}

groups=() # process groups of ours that may still run
stopped=no
end_groups() {
    local group
    for group in "${groups[@]}"; do kill "-$1" -- "-$group" 2>/dev/null; done
}
# told to stop: what there is, is told within seconds
stop() {
    [ $stopped = no ] || return
    stopped=yes
    # no substitution of commands here: bash 5.2 may be in the middle of parsing another one
    local ms=$((${EPOCHREALTIME/[.,]/} / 1000))
    hunt_end=$((ms < hunt_end ? ms : hunt_end))
    end=$((ms + 4000 < end ? ms + 4000 : end))
    end_groups TERM
}
trap stop TERM INT HUP
clean_up() {
    end_groups KILL
    rm -rf "${keep:?}/lib" "$keep/corpus"
    [ $kept = yes ] || [ "${failures:-1}" -ne 0 ] || rm -rf "$keep"
}
trap clean_up EXIT

echo "campaign of $(cat "$HERE/commit"): $minutes min, $sim_jobs processors for the simulator, $fuzz_jobs for fuzzers (${fuzzers[*]}); seeds from $seeds_from"
set -m # each in a group of its own
if [ $sim_jobs -gt 0 ]; then
    program sim
    "${command[@]}" --campaign --seconds "$(seconds "$(left "$hunt_end")")" --jobs $sim_jobs --seed "$seeds_from" \
        --failures 400 ${scenario:+--scenario "$scenario"} >"$keep/logs/sim" 2>"$keep/logs/sim-errors" &
    groups+=($!)
fi
for ((i = 0; i < fuzz_jobs; i++)); do
    fuzz_worker "$i" 2>/dev/null &
    groups+=($!)
done
set +m

running() {
    local group
    for group in "${groups[@]}"; do
        ! kill -0 -- "-$group" 2>/dev/null || return 0
    done
    return 1
}
sleep_ms() {
    sleep "$(seconds "$1")" &
    wait $!
}
while running && [ "$(left $((hunt_end + 300)))" -gt 0 ]; do sleep_ms 100; done
end_groups TERM
for ((i = 0; i < 10; i++)); do
    ! running || sleep_ms 100
done
end_groups KILL
hunted_ms=$(($(now) - start))

# ---- what failed ----------------------------------------------------------------------------

SHOWN_MAX=12 # kinds of failures; an output stays readable

# replay SCENARIO SEED: "lines of the trace, scenario, seed, message", by tabs
replay() {
    program sim
    timeout -k 0.2 "$(seconds "$(left $((end - 500)))")" "${command[@]}" --scenario "$1" --seed "$2" --seeds 1 --trace 2>&1 |
        awk -v scenario="$1" -v seed="$2" '
        /^# at .* ms: / && !message {message = $0; sub(/^# at [^:]*: /, "", message)}
        /[Aa]ssert|runtime error:|ERROR: AddressSanitizer|it does not repeat itself/ && !message {message = $0}
        /^# killed by signal/ && !message {message = $0}
        /^not ok/ {failed = 1}
        {lines++}
        END {printf "%d\t%s\t%s\t%s\n", lines, scenario, seed,
             message ? message : failed ? "failed" : "no failure, or no end, when it is replayed"}'
}

sim_failures() {
    local scenario seed begun=0
    sed -nE 's/^not ok: scenario ([^,]+), seed ([0-9]+);.*/\1 \2/p' "$keep/logs/sim" | sort -u >"$keep/failed"
    [ -s "$keep/failed" ] || return
    echo "seeds that failed:"
    awk '{line[$1] = line[$1] " " $2} END {for (name in line) print "    " name line[name]}' "$keep/failed" | sort |
        cut -c 1-300 | head -n 30
    # those of different scenarios first
    awk '{print seen[$1]++, $0}' "$keep/failed" | sort -n | cut -d ' ' -f 2- | {
        while read -r scenario seed; do
            [ "$(left $((end - 700)))" -gt 0 ] || break
            replay "$scenario" "$seed" >>"$keep/replayed" &
            begun=$((begun + 1))
            [ $((begun % jobs)) -ne 0 ] || wait
        done
        wait
    }
    # the shortest of each kind: scenario and message without its numbers
    [ ! -s "$keep/replayed" ] || sort -n "$keep/replayed" | awk -F '\t' '
        {kind = $4; gsub(/[0-9]+/, "N", kind); kind = $2 " " kind; count[kind]++}
        !(kind in first) {first[kind] = $0; order[++kinds] = kind}
        END {for (i = 1; i <= kinds; i++) print count[order[i]] "\t" first[order[i]]}' | sort -t $'\t' -k 1,1nr >"$keep/kinds"
    if [ -s "$keep/kinds" ]; then
        head -n $SHOWN_MAX "$keep/kinds" | while IFS=$'\t' read -r count lines scenario seed message; do
            echo "$count x $scenario: ${message:0:200}"
            echo "    the shortest ($lines lines): tests/run.sh sim --scenario $scenario --seed $seed --seeds 1 --trace"
        done
        echo "$(wc -l <"$keep/kinds") kinds of failures of the simulator in all"
    fi
}

# kind_of FILE: what libFuzzer or a sanitizer says of an input, and where (without addresses)
kind_of() {
    awk '/runtime error:|ERROR: (AddressSanitizer|libFuzzer|LeakSanitizer)/ && !what {what = $0; sub(/^==[0-9]+==/, "", what)}
        /^ *#[0-9]+ 0x.*\(.*fuzz_/ && frames < 6 {frame = $0; sub(/.*\(/, "(", frame); sub(/ \(BuildId.*/, "", frame)
            where = where frame; frames++}
        END {sub(/0x[0-9a-f]+/, "N", what); gsub(/[^()+]*\//, "", where); print what, where}' "$1"
}

# fails TARGET INPUT
fails() {
    program "fuzz_$1"
    ! timeout -k 0.2 5 "${command[@]}" -timeout=4 "$2" >"$keep/logs/replayed" 2>&1
}

# smaller TARGET INPUT: the input made as small as the time allows; stdout: its file
smaller() {
    local budget made=$2.min
    budget=$(($(left $((end - 700))) / 2))
    [ $budget -le 20000 ] || budget=20000
    # it starts itself again, which a loader in front forbids
    if [ $own_loader = yes ] && [ $budget -gt 1000 ]; then
        program "fuzz_$1"
        timeout -k 0.2 "$(seconds "$budget")" "${command[@]}" -minimize_crash=1 -max_total_time=$((budget / 1000)) \
            -timeout=4 -exact_artifact_path="$made" "$2" >"$keep/logs/smaller" 2>&1
    fi
    if [ -s "$made" ] && fails "$1" "$made"; then
        echo "$made"
    else
        echo "$2"
    fi
}

fuzz_failures() {
    local input target kind shown=0 file
    : >"$keep/fuzz-kinds"
    for input in "$keep"/found/*; do
        [ -f "$input" ] && [ "$(left $((end - 900)))" -gt 0 ] || continue
        target=${input##*/} target=${target%%-*}
        kind="no failure when it is replayed"
        ! fails "$target" "$input" || kind=$(kind_of "$keep/logs/replayed")
        printf '%s\t%s\t%s\t%s\n' "$target" "$(stat -c %s "$input")" "$input" "$kind" >>"$keep/fuzz-kinds"
    done
    sort -t $'\t' -k 2,2n "$keep/fuzz-kinds" | awk -F '\t' '!seen[$1 $4]++' >"$keep/fuzz-shortest"
    while IFS=$'\t' read -r target _ input kind; do
        [ $((shown++)) -lt $SHOWN_MAX ] || break
        file=$(smaller "$target" "$input")
        echo "fuzz_$target: ${kind:0:300}"
        if [ "$(stat -c %s "$file")" -le 600 ]; then
            echo "    base64 -d >input <<<$(base64 -w 0 "$file") && build-fuzz/tests/fuzz_$target input"
        else
            echo "    $(stat -c %s "$file") bytes: $file"
        fi
    done <"$keep/fuzz-shortest"
}

# In the background, so that it can be cut off
set -m
{ sim_failures; fuzz_failures; } >"$keep/report" 2>"$keep/logs/report" &
groups=($!)
set +m
while running && [ "$(left "$end")" -gt 0 ]; do sleep_ms 100; done
! running || echo "(cut off, the time was up)" >>"$keep/report"
end_groups KILL
wait 2>/dev/null

# ---- telling --------------------------------------------------------------------------------

# 1234567 as 1,234,567
grouped() { sed -E ':a; s/^([0-9]+)([0-9]{3})/\1,\2/; ta' <<<"$1"; }

seeds_passed=$(sed -nE 's/^all +([0-9]+) seeds.*/\1/p' "$keep/logs/sim" | tail -n 1)
seeds_failed=$(grep -c '^not ok: scenario' "$keep/logs/sim")
inputs_failed=$(find "$keep/found" -type f ! -name '*.min' | wc -l)
failures=$((seeds_failed + inputs_failed))
head -c 9000 "$keep/report"
counts=''
for target in wire bootstrap core hostile; do
    inputs=$(cat "$keep/logs/fuzz-$target"-* 2>/dev/null | awk '/^stat::number_of_executed_units/ {sum += $2} END {print sum + 0}')
    counts+=" $(grouped "$inputs") |"
done
grep '^# .* had not ended' "$keep/logs/sim"
echo "$((hunted_ms / 1000)) s of hunting, $((($(now) - start) / 1000)) s in all$([ $failures -eq 0 ] || echo "; inputs and logs: $keep")"
echo "| date | commit | cores | minutes | seeds | wire | bootstrap | core | hostile | failures |"
echo "| $(date -u +%F) | $(cat "$HERE/commit") | $jobs | $minutes | $(grouped $((${seeds_passed:-0} + seeds_failed))) |$counts $failures |"
[ $failures -eq 0 ] && { [ "${seeds_passed:-0}" -gt 0 ] || [ $sim_jobs -eq 0 ]; }
