#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tests of run.sh itself: programs that end early, run nothing or are killed turn its last line red. Each case is a
# small Meson project whose tests are shell scripts, counted by the functions of run.sh. TAP.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/integration/lib.sh"
plan 45

# What run.sh says of COMMAND..., which calls its functions: the status is that of run.sh
run_sh() {
    (cd "$FAKE" && CI=true bash -c '. "$1/tests/run.sh"; cd "$2"; SOURCES=$2/tests; shift 2; "$@"; finish' run_sh "$SOURCE" "$FAKE" "$@")
}

# A project with a suite for each kind of test, all of them good
FAKE=$WORK/fake
mkdir -p "$FAKE/tests/"{unit,stress,integration,sim}
cp "$SOURCE/tests/"{tally,expected}.py "$FAKE/tests"
: >"$FAKE/tests/allowed-skips.txt"
printf '%s\n' '# comment' 'one 1 00' 'two 1 00' 'two 2 00' >"$FAKE/tests/sim/corpus.txt"
echo 'enum { CASES = 2 };' >"$FAKE/tests/stress/stress_fake.c"
echo 'plan 2' >"$FAKE/tests/integration/script.sh"
cp "$SOURCE/tests/unit/test_crc32c.c" "$FAKE/tests/unit"
mkdir "$FAKE/programs"
cat >"$FAKE/meson.build" <<'EOF'
project('fake')
test('stress_fake', find_program('programs/stress_fake'), suite: 'stress')
test('script', find_program('programs/script'), suite: 'integration', protocol: 'tap')
test('corpus', find_program('programs/corpus'), suite: 'sim')
test('sim', find_program('programs/sim'), suite: 'sim')
test('crc32c', find_program(get_option('crc32c')), args: '--tap=-', suite: 'unit', protocol: 'tap')
EOF
echo "option('crc32c', type: 'string')" >"$FAKE/meson_options.txt"

# program_is NAME LINE...
program_is() {
    local name=$1
    shift
    { echo '#!/bin/sh' && printf '%s\n' "$@"; } >"$FAKE/programs/$name"
    chmod +x "$FAKE/programs/$name"
}
TWO='printf "1..2\nok - a\nok - b\n"'
all_good() {
    program_is stress_fake "$TWO"
    program_is script "$TWO"
    program_is corpus 'echo "3 passed, 0 failed"'
    program_is sim 'echo "9 passed, 0 failed"'
}

# red PATTERN COMMAND...: the last line of run.sh is red, and it says so
red() {
    local pattern=$1
    shift
    run_sh "$@" >"$WORK/said.log" 2>&1 && { echo "it passed" && return 1; }
    tail -n 1 "$WORK/said.log" | grep -qE '^[0-9]+ passed, [1-9][0-9]* failed, [0-9]+ skipped$' || return 1
    grep -qE "$pattern" "$WORK/said.log"
}
green() {
    run_sh "$@" >"$WORK/said.log" 2>&1 && [ "$(tail -n 1 "$WORK/said.log")" = "$GREEN passed, 0 failed, 0 skipped" ]
}

# bad_program NAME SUITE LINE...: red when this program is so
bad_program() {
    local name=$1 suite=$2
    shift 2
    all_good
    program_is "$name" "$@"
    red "^FAILED part/$name/" suites part build "$suite"
}

all_good
(cd "$FAKE" && meson setup build -Dcrc32c="$BUILD/tests/test_crc32c") >"$WORK/setup.log" 2>&1
GREEN=4 check "good programs are green" green suites part build stress integration
GREEN=12 check "good simulators are green" green suites part build sim

# "empty program" and the like, of each kind
bad() {
    local name=$1 suite=$2
    check "$suite: an empty program" bad_program "$name" "$suite" ''
    check "$suite: one that plans nothing" bad_program "$name" "$suite" 'echo 1..0'
    check "$suite: one that ends early with 0" bad_program "$name" "$suite" \
        'printf "1..2\nok - a\n"; exit 0'
    check "$suite: one that plans too few" bad_program "$name" "$suite" 'printf "1..1\nok - a\n"'
    check "$suite: one that is killed" bad_program "$name" "$suite" "$TWO" 'kill -KILL $$'
}
bad stress_fake stress
bad script integration
check "the corpus: too few seeds" bad_program corpus sim 'echo "2 passed, 0 failed"'
check "the simulator: fewer seeds than scenarios" bad_program sim sim 'echo "0 passed, 0 failed"'
check "the simulator: ends early" bad_program sim sim 'exit 0'

# a test that the build does not know, or that Meson has not come to
all_good
echo 'plan 1' >"$FAKE/tests/integration/forgotten.sh"
check "a script that no build lists" red 'part/forgotten/absent' suites part build integration
rm "$FAKE/tests/integration/forgotten.sh"
echo 'int main;' >"$FAKE/tests/integration/script.sh"
check "a script without a plan" red 'no line "plan N"' suites part build integration
echo 'plan 2' >"$FAKE/tests/integration/script.sh"
check "a suite without tests" red 'no tests' suites part build nothing

# programs that run.sh counts by their last line
program_is counts 'echo "3 passed, 0 failed"'
with_count() {
    expected=$1
    shift
    export expected
    "$@"
}
GREEN=3 check "a program with the right count is green" with_count 3 green program part programs/counts
check "a program with another count" with_count 4 red 'its source says 4' program part programs/counts
check "a script whose plan is not to be read" with_count unknown red 'its source says' program part programs/counts
program_is counts 'echo "0 passed, 0 failed"'
check "a program that counts to nothing" red 'ran 0' program part programs/counts
program_is counts 'exit 0'
check "a program that says nothing" red 'ended with 0' program part programs/counts

# Of a long log often only the end is seen: it names all that failed.
# ends_in LINE...: run.sh's last lines are these
ends_in() {
    tail -n $# "$WORK/said.log" | diff - <(printf '%s\n' "$@")
}
names_last() {
    all_good
    program_is script 'echo 1..2; echo "not ok 1 - one"; seq 50; echo "not ok 2 - two"; seq 50'
    program_is corpus 'echo "not ok: scenario two, seed 1; replay: x"; seq 50; echo "2 passed, 1 failed"'
    red '^  [|] 50' suites part build integration sim &&
        ends_in '---- what failed' 'FAILED part/script/one' 'FAILED part/script/two' \
            'FAILED part/corpus/scenario two, seed 1; replay: x' '11 passed, 3 failed, 0 skipped'
}
check "the last lines name what failed" names_last
many_names() {
    all_good
    program_is script 'echo 1..40; for i in $(seq 40); do echo "not ok $i - check $i"; seq 50; done'
    red '^  [|] 50' suites part build integration &&
        ends_in 'FAILED part/script/check 30' 'and 11 more' '0 passed, 41 failed, 0 skipped'
}
check "of many failures 30, and how many more there are" many_names
program_is counts 'echo "not ok wire: 0 executions"; seq 50; echo "3 passed, 1 failed"'
name_of_program() {
    red '^  [|] 50' program part programs/counts &&
        ends_in '---- what failed' 'FAILED part: wire: 0 executions' '3 passed, 1 failed, 0 skipped'
}
check "what a program names is named" name_of_program
all_good

# a fuzzer that is not one
mkdir -p "$FAKE/fuzz/tests"
for target in "$SOURCE"/tests/fuzz/fuzz_*.c; do
    ln -s "$(command -v true)" "$FAKE/fuzz/tests/$(basename "$target" .c)"
done
idle_fuzzers() {
    "$SOURCE/tests/fuzz/run.sh" "$FAKE/fuzz" --seconds 1 >"$WORK/said.log" 2>&1 && { echo "it passed" && return 1; }
    grep -q '^not ok wire: [0-9]* inputs of the corpus' "$WORK/said.log" &&
        grep -q '^not ok wire: 0 executions' "$WORK/said.log"
}
check "fuzz: programs that run nothing" idle_fuzzers

# said_by CI COMMAND...: what functions of run.sh say
said_by() { CI=$1 bash -c '. "$1/tests/run.sh"; shift; "$@"' said_by "$SOURCE" "${@:2}"; }

# what runs beside the others
vanishes() {
    # shellcheck disable=SC2016 # for the inner shell
    red 'it was ended by another' eval 'vanish() { kill -KILL "$BASHPID"; }; passed=1; beside it nothing vanish; joined it'
}
check "a part beside the others that is killed" vanishes
# fuzz_and_model RESULT BUILD: the last line of a run whose programs pass two tests each, where builds are so
fuzz_and_model() {
    # shellcheck disable=SC2016 # for the inner shell
    said_by "" eval 'parts=(mem fuzz model) built=no named=yes; declare -A chosen; build() { '"$2"'; }
        program() { passed=$((passed + 2)); }; begin_beside; run_part fuzz; run_part model; finish' >"$WORK/said.log" 2>&1
    cat "$WORK/said.log"
    [ "$(tail -n 1 "$WORK/said.log")" = "$1" ]
}
check "fuzz and model run beside the others" fuzz_and_model "4 passed, 0 failed, 0 skipped" :
check "fuzz whose build fails" fuzz_and_model "2 passed, 1 failed, 0 skipped" 'fail "the build"; return 1'
# the part sanitize, on the same build, which has nothing of mem and nccl: what computes runs beside the scripts
ln -s build "$FAKE/build-asan"
mkdir "$FAKE/tests/nccl" && : >"$FAKE/tests/nccl/nccl.sh"
echo 'sanitize/*/absent' >"$FAKE/tests/allowed-skips.txt"
sanitize() { "$@" eval 'declare -A chosen; beside build-asan nothing true; run_part sanitize'; }
all_good
GREEN=19 check "sanitize: both halves are counted" sanitize green
program_is corpus 'echo "2 passed, 0 failed"'
check "sanitize: what fails beside the scripts is told" sanitize red '^FAILED sanitize/corpus/'
all_good


# which parts run, and what is said of the others; .ci/run sets CI=true
parts_of_ci() {
    local usual ci
    usual=$(said_by "" unnamed_parts) ci=$(said_by true unnamed_parts)
    echo "$usual; $ci"
    [[ " $usual " != *" vm "* && " $usual " != *" arm64 "* && "$ci" == "$usual "*vm ]]
}
check "the guest and the emulator run with CI=true" parts_of_ci
told_of_parts() {
    # shellcheck disable=SC2046 # words
    said_by "" say_left_out $(said_by "" unnamed_parts) | tee "$WORK/said.log"
    # shellcheck disable=SC2046
    [ "$(wc -l <"$WORK/said.log")" = 1 ] && grep -q '^left to .ci/run:.* vm ' "$WORK/said.log" &&
        [ -z "$(said_by true say_left_out $(said_by true unnamed_parts))" ]
}
check "what is left to .ci/run is told" told_of_parts
listed_parts() {
    local part
    # shellcheck disable=SC2016 # for the inner shell
    for part in $(said_by true eval 'echo $PARTS $CI_PARTS $MORE_PARTS'); do
        said_by "" list_parts | grep -q "^$part  *[^ ]" || { echo "$part is not listed" && return 1; }
    done
}
check "each part is listed" listed_parts
named_twice() {
    timeout 20 "$SOURCE/tests/run.sh" model house model >"$WORK/said.log" 2>&1 && { echo "it passed" && return 1; }
    grep -q '^model is named twice' "$WORK/said.log"
}
check "a part that is named twice is refused" named_twice

# of an unpacked release, and of a clone with the last commit alone: nothing is known to have changed
no_history() {
    printf '#!/bin/sh\n' >"$FAKE/tests/mutation.sh"
    chmod +x "$FAKE/tests/mutation.sh"
    # what can be told of a clone's only commit: its number
    git() { [ "$1" = rev-list ] && echo "$COMMIT"; }
    export -f git
    local COMMIT
    for COMMIT in "" 2dc0ffee; do
        export COMMIT
        run_sh mutants >"$WORK/said.log" 2>&1
        [ "$(tail -n 1 "$WORK/said.log")" = "0 passed, 0 failed, 1 skipped" ] || return 1
    done
}
check "mutants without a history are skipped" no_history
unset -f git

# mutants: of a project with one test, which fails with the one and hangs with the other
MUTATED=$WORK/mutated
mkdir -p "$MUTATED/tests/mutation"
cp "$SOURCE/tests/mutation/mutate.py" "$MUTATED/tests/mutation"
printf '#include <unistd.h>\nint main(void)\n{\n    return 0;\n}\n' >"$MUTATED/one.c"
printf '%s\n' "project('mutated', 'c')" "test('one', executable('one', 'one.c'))" >"$MUTATED/meson.build"
for mutant in "fails: return 1;" "hangs: return pause();"; do
    printf '== %s: it does\nfile one.c\ncaught test one\n-    return 0;\n+    %s\n' "${mutant%%:*}" "${mutant#*: }"
done >"$MUTATED/tests/mutation/mutants.txt"
mutation() { (cd "$MUTATED" && timeout 60 python3 tests/mutation/mutate.py --jobs 1 "$@"); }
WORKER=$MUTATED/build-mutation/worker-0
interrupted_mutation() {
    start mutation bash -c "cd '$MUTATED' && exec python3 tests/mutation/mutate.py --jobs 1 hangs"
    until_true 30 pgrep -f "^$WORKER/build/one" || return 1
    kill -KILL "$PID"
    ended "$PID" 5
}
check "a mutant is caught, where there is no git" mutation fails
check "mutants: a run is killed" interrupted_mutation
refuses_mutation() { ! mutation fails && grep -q 'another run' "$WORK/check.log"; }
check "mutants: no other run while what it has left works there" refuses_mutation
made_anew() {
    pkill -KILL -f "^$WORKER/build/one"
    until_true 5 eval "! pgrep -f '^$WORKER/build/one'"
    rm "$WORKER/build/build.ninja" # as if it had been configuring
    mutation fails && grep -q 'made anew' "$WORK/check.log"
}
check "mutants: what a killed run has left is made anew" made_anew

# A process that has ended may have left its number to another script's
signals_its_own() {
    # shellcheck disable=SC2016 # for the inner shell
    bash -c '. "$1/tests/integration/lib.sh"
        kill() { echo "kill $*"; builtin kill "$@"; }
        start gone true; gone=$PID
        ended "$gone" 20
        start left sh -c "exit 7"
        left=$PID naps=0
        until [ ! -e "/proc/$left" ]; do nap; done
        start lives sleep 100
        echo "its own: kill -KILL $PID"
        ended "$gone" 0 && ended "$left" 0 && echo "status $STATUS"' signals_its_own "$SOURCE" >"$WORK/said.log" 2>&1
    cat "$WORK/said.log"
    grep -q '^status 7$' "$WORK/said.log" &&
        [ "$(grep '^kill' "$WORK/said.log")" = "$(sed -n 's/^its own: //p' "$WORK/said.log")" ]
}
check "a script signals no process that has ended" signals_its_own

# a typing error plays nothing, instead of the seeds up to it
numbers_of_sim() {
    local option
    for option in "--seeds 1e4" "--seeds 10K" "--seeds -1" "--seed x" "--jobs 2x" "--failures ''" "--hours 1,5" "--seconds nan"; do
        eval "'$BUILD/tests/sim' --scenario clean $option" >"$WORK/said.log" 2>&1
        [ $? = 2 ] && said said "^sim: ${option%% *} .*: allowed are" || return 1
    done
}
check "the simulator refuses what is no number" numbers_of_sim

# a real program of Criterion, which finds its own tests in /proc
program_is without_proc "exec unshare -m sh -c 'mount -t tmpfs none /proc && exec \"\$@\"' sh \"\$@\""
GREEN=5 check "a program of Criterion is green" green suites part build unit
if unshare -m true 2>/dev/null; then
    check "a program of Criterion where /proc is not mounted" red 'not run: .*crc32c_chaining' \
        suites part build unit -- --wrapper "$FAKE/programs/without_proc"
else
    skip "a program of Criterion where /proc is not mounted" "not allowed to make mount namespaces"
fi
finish
