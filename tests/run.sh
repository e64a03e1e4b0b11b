#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the tests need, builds, and runs tests. See usage() or --help.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

SOURCES=tests # of the tests
PARTS="house unit sim mem nccl onesided integration sanitize stress fuzz model" # without any named
CI_PARTS="arm64 vm"                                                             # with CI=true these too
MORE_PARTS="mutants rails tcp"                                                  # only by name

# Options of a part, for its program to read: --NAME, or --NAME=VALUE for one with a value
declare -A OPTIONS=(
    [fuzz]="--seconds=N"
    [model]="--deep"
    [nccl]="--real"
    [sim]="--scenario=NAME --seed=S --seeds=N --trace --jobs=N --seconds=T --failures=F --campaign --hours=H"
)

usage() {
    cat <<'EOF'
usage: tests/run.sh [--list] [PART [option of PART...]]...

Without PART runs house to model, in about 15 minutes on two cores. With CI=true, as .ci/run sets it, arm64 and
vm too, in less than half an hour; and a skip that tests/allowed-skips.txt does not list counts as a failure then.
The last line is always "N passed, N failed, N skipped"; the exit status is 0 only when nothing failed. With options
a part runs its program alone and shows what that prints: tests/run.sh sim --scenario burst --seeds 1000

What failed is told again in the end, with the last lines that it printed, and then once more by name alone.

EOF
    list_parts
    echo
    local part
    for part in $PARTS $CI_PARTS $MORE_PARTS; do
        [ -z "${OPTIONS[$part]:-}" ] || echo "options of $part: ${OPTIONS[$part]}"
    done
}

list_parts() {
    cat <<'EOF'
house        the sources themselves: layers, circles, lengths, words, format; man pages, texts, mutants
unit         each source file by itself (Criterion)
sim          real cores, and whole engines, on a simulated network in virtual time
mem          GPU memory in messages, on stand-ins for the CUDA and HIP runtimes, with failures
nccl         the plugin for NCCL, driven as NCCL does; --real also loads it into a libnccl of PyPI
onesided     writes, reads and notifications between processes, revoked memory, the library for NIXL
integration  real processes on loopback and in network namespaces, with loss and killed peers
sanitize     unit, sim, mem, and shorter nccl and integration under AddressSanitizer and UBSan
stress       rings, lending and wake-up with many threads, as shipped and under ThreadSanitizer; there nccl too
fuzz         what parses bytes of a peer: the corpus, then new inputs for N seconds (libFuzzer)
model        Spin models: sleeping, waking and lending; clear-to-send and credit under loss
arm64        (.ci/run, or when named) cross-compiled and emulated: the fuzzers' corpora, a seed of each scenario, rings, object code
vm           (.ci/run, or when named) verbs on the kernel's soft-RoCE, in a QEMU guest; all checks when named; VM_KDIR: a kernel
rails        (only when named) two NICs: what they carry together, and 20 cuts of one; takes two minutes and a quiet machine
mutants      (only when named) for a minute and a half, whether tests notice what was broken in files that have changed of late
tcp          (only when named) integration's exchanges, addresses, killed peers and cut NICs over TCP instead of UDP
EOF
}

passed=0 failed=0 skipped=0
WORK=$(mktemp -d)
FAILURES=$WORK/failures # each failure, with the end of what it printed
: >"$FAILURES"
clean_up() {
    local process
    for process in "${BESIDE[@]}"; do kill -- "-$process" 2>/dev/null; done
    rm -rf "$WORK"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
finish() {
    local lines=300 names=30 count
    if [ -s "$FAILURES" ]; then
        echo "---- what failed, and the last lines that it printed"
        head -n $lines "$FAILURES" | cut -c 1-300
        echo "---- what failed" # last: of a long log often only the end is seen
        grep '^FAILED' "$FAILURES" | head -n $names | cut -c 1-150
        count=$(grep -c '^FAILED' "$FAILURES")
        [ "$count" -le $names ] || echo "and $((count - names)) more"
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ] && exit 0
    exit 1
}

# fail WHAT: one failure that is not a test case
fail() {
    echo "FAILED $1"
    echo "FAILED $1" >>"$FAILURES"
    failed=$((failed + 1))
}

# ---- packages -------------------------------------------------------------------------------

PACKAGES=(gcc g++ meson ninja-build pkg-config python3 liburing-dev libhwloc-dev libcriterion-dev libjansson-dev
    iproute2 nftables procps ethtool strace groff-base clang clang-format libclang-rt-dev llvm spin libbpf-dev binutils
    libibverbs-dev)
declare -A PACKAGES_OF=( # of a part alone
    [arm64]="qemu-user-static"
    [vm]="qemu-system-x86 busybox-static cpio kmod zstd xz-utils rdma-core ibverbs-utils perftest"
)

if [ "$(uname -m)" = x86_64 ]; then
    PACKAGES+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross) # integration compiles by it as well
else
    CI_PARTS=${CI_PARTS/arm64 /} # on arm64 all parts are
fi

# unnamed_parts: those that run where none is named
unnamed_parts() {
    echo "$PARTS$([ "${CI:-}" != true ] || echo " $CI_PARTS")"
}

# say_left_out PART...: in one line, which of those that run with CI=true are not among these
say_left_out() {
    local part left=
    for part in $CI_PARTS; do
        [[ " $* " == *" $part "* ]] || left+=" $part"
    done
    [ -z "$left" ] || echo "left to .ci/run:$left (name them to run them here)"
}

# install_packages PART...: what these need. apt is run only when something is missing
install_packages() {
    local part
    for part in "$@"; do
        # shellcheck disable=SC2206 # several words
        PACKAGES+=(${PACKAGES_OF[$part]:-})
    done
    if ! command -v dpkg-query >/dev/null; then
        echo "not a Debian or Ubuntu system; these packages, or their like, are needed:" "${PACKAGES[@]}"
        return 0
    fi
    local missing=() package sudo=()
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
            echo "missing packages, and neither root nor sudo without a password here. Run:"
            echo "  apt-get install ${missing[*]}"
            return 1
        fi
        sudo=(sudo -n)
    fi
    echo "installing ${missing[*]}"
    "${sudo[@]}" apt-get update -qq &&
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# ---- building and running -------------------------------------------------------------------

# build DIRECTORY [meson option...]; with targets=NAME only that
build() {
    local directory=$1 log
    shift
    mkdir -p "$directory"
    log=$directory/run-build.log
    if [ -f "$directory/build.ninja" ]; then
        set -- --reconfigure "$@"
    fi
    echo "building $directory"
    if ! { meson setup "$directory" "$@" && nice ninja -C "$directory" ${targets:-}; } >"$log" 2>&1; then
        tail -n 60 "$log"
        fail "building $directory (all of it: $log)"
        tail -n 20 "$log" | sed 's/^/  | /' >>"$FAILURES"
        return 1
    fi
    if grep -q 'warning:' "$log"; then
        grep -A4 'warning:' "$log" | head -n 40
    fi
}

# suites PART DIRECTORY SUITE... [-- meson test option...]; with logbase=NAME its logs are called that
suites() {
    local part=$1 directory=$2 base=${logbase:-$1} names=() selected=() logs results output p f s
    shift 2
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        names+=("$1") selected+=(--suite "$1")
        shift
    done
    [ $# -eq 0 ] || shift
    logs=$directory/meson-logs
    rm -f "$logs/$base"*.json
    meson test -C "$directory" --no-rebuild --logbase "$base" "${selected[@]}" "$@" >"$directory/run-$base.log" 2>&1
    results=$(find "$logs" -name "$base*.json") # a wrapper's name is in it
    if [ -z "$results" ]; then
        tail -n 20 "$directory/run-$base.log"
        fail "$part: no tests were run"
        return
    fi
    output=$(python3 tests/tally.py "$part" "$results" "$SOURCES" "$FAILURES" "${names[@]}") ||
        fail "$part: counting the results"
    echo "$output" | grep -v '^TALLY '
    read -r p f s <<<"$(echo "$output" | sed -n 's/^TALLY //p' | grep . || echo 0 0 0)"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
}

# planned FILE: how many checks a script says that it makes, in its line "plan N"
planned() { sed -nE 's/^plan ([0-9]+).*/\1/p' "$1" | grep . || echo unknown; }

# lines_of_corpus
lines_of_corpus() { grep -cE '^[^#]' "$SOURCES/sim/corpus.txt"; }

# program PART COMMAND...: one that prints as it goes and ends with "N passed, N failed"; with expected=N as many
program() {
    local part=$1 log status p f
    shift
    log=$(mktemp)
    "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    read -r p f <<<"$(sed -nE '$s/^([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$log")"
    if [ -z "$p" ] || { [ "$status" -ne 0 ] && [ "$f" -eq 0 ]; }; then
        fail "$part: $1 ended with $status"
        tail -n 20 "$log" | sed 's/^/  | /' >>"$FAILURES"
    elif [ "$((p + f))" -eq 0 ] || { [ "${expected:-$((p + f))}" != "$((p + f))" ] && [ "$f" -eq 0 ]; }; then
        fail "$part: $* ran $p, its source says ${expected:-1 or more}"
    elif [ "$f" -gt 0 ]; then
        { sed -nE "s/^not ok[ :]+/FAILED $part: /Ip" "$log" | grep . || echo "FAILED $part: $*"; } >>"$FAILURES"
        tail -n 20 "$log" | sed 's/^/  | /' >>"$FAILURES"
    fi
    rm -f "$log"
    passed=$((passed + ${p:-0})) failed=$((failed + ${f:-0}))
}

# ---- beside the others ----------------------------------------------------------------------

declare -A BESIDE # process of each

# beside NAME BEFORE COMMAND...: in the background, once what was put there as BEFORE has ended; `nothing`: at once
beside() {
    local name=$1 before=${BESIDE[$2]:-}
    shift 2
    set -m # a group of its own, which can be ended as a whole
    (
        set +m
        passed=0 failed=0 skipped=0
        [ -z "$before" ] || tail --pid="$before" -f /dev/null
        "$@"
        status=$?
        echo "$passed $failed $skipped" >"$WORK/$name.counts"
        exit "$status"
    ) >"$WORK/$name.log" 2>&1 </dev/null &
    set +m
    BESIDE[$name]=$!
}

# joined NAME: waits for it, and shows and counts what came of it; the status is that of its command
joined() {
    local status p=0 f=0 s=0
    wait "${BESIDE[$1]}"
    status=$?
    unset "BESIDE[$1]"
    cat "$WORK/$1.log"
    if ! read -r p f s 2>/dev/null <"$WORK/$1.counts"; then
        fail "$1: it was ended by another, with $status"
        return 1
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    return "$status"
}

# The builds of parts to come, one by one, and what needs processors alone: fuzz and model, then arm64 and the guest
# together. The guest keeps one processor busy or two for minutes: at the end, alone, it would leave the other one idle
begin_beside() {
    local part last=nothing short=1
    [ "$named" = no ] || short=0
    for part in "${parts[@]}"; do
        case $part in
        sanitize)
            # -O1: checks make code that takes twice as long to optimize further; -g1: lines are all that reports
            # show; nothing of this part uses nixl
            beside build-asan $last build build-asan -Doptimization=1 -Db_sanitize=address,undefined \
                -Dc_args="-fno-sanitize-recover=all -g1" -Dnixl=disabled
            last=build-asan
            ;;
        stress)
            targets="stress nccl" beside build-tsan $last build build-tsan -Doptimization=1 -Db_sanitize=thread \
                -Dc_args=-g1 -Drace_points=true
            last=build-tsan
            ;;
        fuzz)
            CC=clang targets=fuzz beside build-fuzz $last build build-fuzz -Dfuzz=true -Db_sanitize=address,undefined \
                -Db_lundef=false -Dc_args=-fno-sanitize-recover=all
            last=build-fuzz
            if runs_beside fuzz; then
                beside fuzz $last behind fuzz
                last=fuzz
            fi
            ;;
        model)
            if runs_beside model; then
                beside model $last behind model
                last=model
            fi
            ;;
        arm64)
            beside arm64 $last arm64
            ;;
        vm)
            [ "$built" != yes ] || TEST_SHORT=$short beside vm $last suites vm build vm
            ;;
        esac
    done
}

# runs_beside PART: there is something to run beside, and nobody waits for what an option makes it print
runs_beside() { [ ${#parts[@]} -gt 1 ] && [ -z "${chosen[$1]:-}" ]; }

# behind COMMAND...: where other processes want the processors they come first
behind() {
    renice -n 10 -p "$BASHPID" >/dev/null
    "$@"
}

# ---- the parts ------------------------------------------------------------------------------

# One seed is one history, whatever a compiler makes of the code. The parts sanitize and arm64 have other options of gcc.
# Only with CI=true: it takes half a minute
other_compiler() {
    local targets=tests/sim expected
    expected=$(lines_of_corpus)
    CC=clang build build-sim-clang -Doptimization=3 -Ddebug=false &&
        program sim build-sim-clang/tests/sim --corpus tests/sim/corpus.txt
}

arm64() {
    echo "building build-arm64"
    mkdir -p build-arm64
    if ! tests/arm64/run.sh build build-arm64 >build-arm64/run-build.log 2>&1; then
        tail -n 60 build-arm64/run-build.log
        fail "building build-arm64 (all of it: build-arm64/run-build.log)"
        return 1
    fi
    grep -A4 'warning:' build-arm64/run-build.log | head -n 40
    expected=$(tests/arm64/run.sh plan) program arm64 tests/arm64/run.sh test build-arm64
}

# fuzz [option...]: each target twice, and what its corpus reaches
fuzz() {
    local expected=$((2 * $(find tests/fuzz -name 'fuzz_*.c' | wc -l) + 1))
    program fuzz tests/fuzz/run.sh build-fuzz "$@"
}

model() {
    local expected=
    [ $# -gt 0 ] || expected=$(planned tests/spin/run.sh)
    program model tests/spin/run.sh "$@"
}

# Of the files that the last commits have changed. All of them: tests/mutation.sh
mutants() {
    local base
    base=$(git rev-parse -q --verify HEAD~25 2>/dev/null || git rev-list --max-parents=0 HEAD 2>/dev/null | head -n 1)
    # allowed-skips.txt. A clone of the last commit alone has no change to look at, either
    if [ -z "$base" ] || [ -z "$(tests/mutation.sh --list --changed "$base")" ]; then
        echo "mutants/history: skipped, it has no file with mutants that has changed"
        skipped=$((skipped + 1))
    else
        program mutants tests/mutation.sh --changed "$base" --minutes 1.5
    fi
}

# What Meson may run at once waits for some of its time: the scripts of integration for most of it, unit tests and stress
# programs for a third
side_by_side=(--num-processes $((2 * $(nproc))))

# sanitized LOGS SUITE...: two of these at once
sanitized() {
    # Criterion takes a leak for a pass unless the process aborts
    ASAN_OPTIONS=abort_on_error=1:detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 \
    LSAN_OPTIONS=print_suppressions=0:suppressions=$PWD/tests/lsan.supp TEST_SHORT=1 logbase=$1 \
        suites sanitize build-asan "${@:2}" -- -t 3 --num-processes "$(nproc)"
}

run_part() {
    local options
    read -ra options <<<"${chosen[$1]:-}"
    case $1${options:+ with options} in
    "sim with options")
        [ "$built" = yes ] || return
        program sim build/tests/sim "${options[@]}"
        ;;
    "nccl with options")
        [ "$built" = yes ] || return
        NCCL_REAL=1 suites nccl build nccl
        ;;
    unit | onesided | integration)
        [ "$built" = yes ] || return
        suites "$1" build "$1" -- "${side_by_side[@]}"
        ;;
    house | sim | mem | nccl | rails | tcp)
        [ "$built" = yes ] || return
        suites "$1" build "$1"
        [ "$1" != sim ] || [ "${CI:-}" != true ] || other_compiler
        ;;
    sanitize)
        joined build-asan || return
        # unit and sim compute, and have ended when the scripts come to those that run alone, which are the last
        beside computing nothing sanitized computing unit sim
        sanitized scripts mem nccl integration
        joined computing
        ;;
    stress)
        # as it is shipped, for what a sanitizer hides: allocations, locks, CPU time
        [ "$built" != yes ] || suites stress build stress -- "${side_by_side[@]}"
        local wrapper=()
        # older ThreadSanitizers do not cope with all of today's address randomisation
        setarch -R true 2>/dev/null && wrapper=(--wrapper "setarch -R")
        joined build-tsan || return
        TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 TEST_SHORT=1 \
            suites stress-tsan build-tsan stress nccl -- "${wrapper[@]}" "${side_by_side[@]}"
        ;;
    fuzz*)
        joined build-fuzz || return
        if runs_beside fuzz; then joined fuzz; else fuzz "${options[@]}"; fi
        ;;
    model*)
        if runs_beside model; then joined model; else model "${options[@]}"; fi
        ;;
    mutants)
        mutants
        ;;
    arm64 | vm)
        [ -z "${BESIDE[$1]:-}" ] || joined "$1"
        ;;
    esac
}

# bad_argument WHAT
bad_argument() {
    echo "$1 (see tests/run.sh --help)"
    fail "arguments"
    finish
}

# take_option PART ARGUMENT [NEXT]: notes an option of the part. False: it has taken NEXT as well
take_option() {
    local part=$1 name=${2%%=*} option value
    for option in ${OPTIONS[$part]:-}; do
        [ "$name" = "${option%%=*}" ] || continue
        if [ "$option" = "$name" ]; then
            [ "$2" = "$name" ] || bad_argument "$name takes no value"
            chosen[$part]+=" $name"
            return 0
        fi
        value=${2#*=}
        [ "$2" != "$name" ] || value=${3:-}
        [[ "$value" =~ ^[A-Za-z0-9_./][A-Za-z0-9_.,/-]*$ ]] || bad_argument "$part wants $option"
        chosen[$part]+=" $name $value"
        [ "$2" != "$name" ]
        return
    done
    bad_argument "$part has no option $name; it has ${OPTIONS[$part]:-none}"
}

# for tests/harness.sh, which uses the functions
[ "${BASH_SOURCE[0]}" = "$0" ] || return 0

parts=()
declare -A chosen
while [ $# -gt 0 ]; do
    case $1 in
    --list)
        list_parts
        exit 0
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        [ ${#parts[@]} -gt 0 ] || bad_argument "an option stands behind its part: $1"
        take_option "${parts[-1]}" "$@" || shift
        ;;
    *)
        [[ " $PARTS $CI_PARTS $MORE_PARTS " == *" $1 "* ]] ||
            bad_argument "no such part: $1; there are $PARTS $CI_PARTS $MORE_PARTS"
        [[ " ${parts[*]} " != *" $1 "* ]] || bad_argument "$1 is named twice"
        parts+=("$1")
        ;;
    esac
    shift
done
named=yes
if [ ${#parts[@]} -eq 0 ]; then
    named=no
    read -ra parts <<<"$(unnamed_parts)"
fi

if ! install_packages "${parts[@]}"; then
    fail "installing packages"
    finish
fi
built=no
if [[ " sanitize fuzz model arm64 " == *" ${parts[*]} "* ]] || build build; then
    built=yes
fi
# what integration scripts draw their settings from
export TEST_SEED=${TEST_SEED:-$((SRANDOM % 1000000))}
echo "TEST_SEED=$TEST_SEED"
begun=no
for part in "${parts[@]}"; do
    # house ends soon, unit and sim keep all processors busy, the others wait for much of their time
    if [ $begun = no ] && [[ ! $part =~ ^(house|unit|sim)$ ]]; then
        begin_beside
        begun=yes
    fi
    started=$SECONDS before=$((passed + failed + skipped))
    run_part "$part"
    [ $((passed + failed + skipped)) -gt "$before" ] || [ "$failed" -gt 0 ] || fail "$part: it ran nothing"
    echo "$part took $((SECONDS - started)) s"
done
[ $named = yes ] || say_left_out "${parts[@]}"
finish
