#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checks the models, of the sleep, wake and lend protocol (lend.pml), of clear-to-send and credit (credit.pml), and of
# single windows between threads (ring, arm, cancel, pool, log, holds): that they hold, and that they do not once a rule is taken out, so that the check is known
# to bite. Needs spin and gcc. The last line is "N passed, N failed".
#
#   run.sh [--deep]     larger configurations: many minutes, up to 8 GiB
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d) && trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
number=0 passed=0 failed=0
deep=no megabytes=2048 states=
[ "${1:-}" = --deep ] && deep=yes megabytes=8192 states=-DCOLLAPSE # states take less memory then, and more time
jobs_max=$(nproc)
[ "$jobs_max" -le 4 ] || jobs_max=4 # each takes up to a GiB

if ! command -v spin >/dev/null; then
    echo "no spin (Debian: spin)"
    exit 2
fi

# check EXPECTED MODEL KIND DEFINE...: in a folder of its own; the outcome is in its file `result`
check() {
    local expected=$1 model=$2 kind=$3 compile="-DSAFETY -DNOCLAIM" pan="" level=-O2 outcome=pass
    shift 3
    [ "$kind" = safety ] || compile="-DNFAIR=3" pan="-a -f"
    [ "$expected" = pass ] || level=-O0 # it ends at once: compiling is all the time
    # shellcheck disable=SC2086 # lists of words
    if ! { spin -a "${@/#/-D}" "$here/$model.pml" &&
        gcc "$level" -w $states -DVECTORSZ=2048 -DMEMLIM=$megabytes $compile -o pan pan.c &&
        ./pan -m2000000 $pan; } >log 2>&1; then
        outcome=broken
    elif grep -q "max search depth too small\|reached -DMEMLIM\|out of memory" log; then
        outcome="not finished"
    elif ! grep -q "errors: 0" log; then
        outcome=fail
    fi
    echo "$outcome $(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' log | head -1)" >result
}

# verify EXPECTED MODEL KIND NAME [DEFINE...]: EXPECTED is pass or fail; KIND is safety or served
names=() expectations=()
verify() {
    number=$((number + 1))
    names[number]="$2: $4" expectations[number]=$1
    local folder=$number expected=$1 model=$2 kind=$3
    shift 4
    mkdir "$folder"
    while [ "$(jobs -rp | wc -l)" -ge "$jobs_max" ]; do
        wait -n
    done
    (cd "$folder" && check "$expected" "$model" "$kind" "$@") &
}

# verify_window MODEL NAME RULE...: the model of a single window holds, and without any of its rules it does not
verify_window() {
    local model=$1 name=$2 rule
    shift 2
    verify pass "$model" safety "$name"
    for rule; do
        verify fail "$model" safety "broken: $rule" "$rule"
    done
}

# plan N: how many there are without --deep; tests/run.sh compares
plan() { planned=$1; }

report() {
    local i outcome states
    wait
    [ "$deep" = yes ] || [ "$number" = "$planned" ] || { echo "not ok $number checks, not $planned" && failed=1; }
    for ((i = 1; i <= number; i++)); do
        read -r outcome states <"$i/result" || outcome=broken
        if [ "$outcome" = "${expectations[i]}" ]; then
            echo "ok ${names[i]} ($states states)"
            passed=$((passed + 1))
        else
            echo "not ok ${names[i]}: $outcome"
            sed 's/^/# /' "$i/log" | tail -30
            failed=$((failed + 1))
        fi
    done
    echo "$passed passed, $failed failed"
}

plan 56
verify pass lend served "whoever posts and waits is served"
verify pass lend safety "both borrow: one owner, one sleeper, no deadlock" BOTH_BORROW
verify pass lend safety "one owner, one sleeper, no deadlock"
verify pass lend safety "two engine threads: no deadlock" STRIPED ALONE ROUNDS=2
verify pass lend served "two engine threads: whoever posts and waits is served" STRIPED ALONE
for rule in NO_RECHECK TWO_IN_NIC NO_REST_WAKE WAKE_FIRST SLEEP_BLIND COUNT_LATE; do
    verify fail lend safety "broken: $rule" $rule
done
for rule in NO_PART_WAKE NO_PUSH_WAKE; do
    verify fail lend safety "broken: $rule" $rule STRIPED ALONE
done
verify pass lend served "who waits returns, though others post for ever" FLOOD
verify fail lend served "broken: BORROW_ON" BORROW_ON FLOOD
verify pass credit safety "three messages" MESSAGES=3 CANCELS=0
verify pass credit safety "two messages, two cancelled" MESSAGES=2 WINDOW=1 CANCELS=2
for rule in NO_REPAIR CREDIT_LATE PASS_WITHDRAWN NO_END_ANSWER NO_UNBLOCK NO_RTS FORGET_RTS IGNORE_CREDIT; do
    verify fail credit safety "broken: $rule" $rule MESSAGES=3 CANCELS=0
done
verify fail credit safety "broken: NO_LATE_CHARGE" NO_LATE_CHARGE MESSAGES=2 WINDOW=1 CANCELS=2
verify_window ring "two producers, a consumer that sleeps" PUBLISH_FIRST FREE_FIRST NO_CLAIM WAKE_FIRST NO_RECHECK
verify_window arm "the event descriptor" ARM_FIRST TELL_FIRST DISARM_LATE TEST_FIRST
verify_window cancel "cancels that come late" GENERATION_LATE NO_GENERATION GENERATION_FIRST NO_STATE
verify_window pool "requests are handed out once" NO_TAG LINK_LATE NO_CLAIM
verify_window log "the callback is replaced" NO_CHECK COUNT_LATE FILL_LATE NO_WAIT_OLD
verify_window holds "a connection ends" NO_COMMAND_HOLD HOLD_BLIND CLOSING_LATE HOME_LATE
if [ "$deep" = yes ]; then
    verify pass lend safety "two rounds: one owner, one sleeper, no deadlock" ROUNDS=2
    verify pass lend safety "two engine threads and two applications: no deadlock" STRIPED
    verify pass lend served "both borrow: whoever posts and waits is served" BOTH_BORROW
    verify pass credit safety "two messages in a window of two, two cancelled" MESSAGES=2 CANCELS=2
    verify pass credit safety "three messages, one cancelled" MESSAGES=3 CANCELS=1
fi
report
[ "$failed" -eq 0 ]
