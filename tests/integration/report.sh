#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A tool's report arrives whole, or its exit status is not 0 and a line says why. Nothing here is measured.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 67 63

INFO=$BUILD/bench/uccl_info
SCALE=$BUILD/bench/scale_sim
BRIEF=(--local "--sizes=64,128" --iterations=20)

# lost PATTERN COMMAND_LINE: a shell command line; its status is that of a failure, and stderr says PATTERN
lost() {
    local pattern=$1
    timeout 60 bash -c "$2" 2>"$WORK/lost.log" >"$WORK/out"
    STATUS=$?
    echo "status $STATUS"
    [ "$STATUS" -ne 0 ] && [ "$STATUS" -lt 124 ] && said lost "$pattern"
}

for sink in '>&-' '>/dev/full'; do
    for command in "$INFO" "$INFO --json" "$INFO --params" "$INFO --counters" "$INFO --help" "$INFO --version" \
        "$INFO --params-markdown" "$P2P_BENCH --help" "$P2P_BENCH --version" "$P2P_BENCH ${BRIEF[*]}" \
        "$P2P_BENCH ${BRIEF[*]} --json" "$P2P_BENCH ${BRIEF[*]} --csv" "$TRANSPORT_TEST --help" \
        "$SCALE --nodes=2 --size=1000" "$SCALE --nodes=2 --size=1000 --json"; do
        check "${command##*/} $sink" lost 'standard output' "$command $sink"
    done
done

# a pipe that nobody reads, where a parent has set SIGPIPE to be ignored
mkfifo "$WORK/pipe"
check "a pipe without a reader" lost 'standard output' "trap '' PIPE; exec 3<>$WORK/pipe 4>$WORK/pipe 3>&-; $INFO >&4"

# sides of transport_test whose output is lost: both ways the other side ends too
one_side_lost() {
    local lost=$1 server client
    next_port
    start server bash -c "exec '$TRANSPORT_TEST' --server --oobport=$PORT $([ "$lost" = server ] && echo '>/dev/full')"
    server=$PID
    wait_listening "$server" "$PORT" || [ "$lost" = server ] || return 1
    start client bash -c "exec '$TRANSPORT_TEST' --serverip=127.0.0.1 --oobport=$PORT --iterations=5 --connect-timeout=2 \
        $([ "$lost" = client ] && echo '>/dev/full')"
    client=$PID
    ended "$client" 30 && echo "client $STATUS" || return 1
    [ "$lost" = server ] || [ "$STATUS" = 1 ] || return 1
    ended "$server" 30 && echo "server $STATUS" || return 1
    [ "$lost" = client ] || [ "$STATUS" = 1 ] || return 1
    said "$lost" 'standard output'
}
check "transport_test: the client's report is lost" one_side_lost client
check "transport_test: the server's report is lost" one_side_lost server

# descriptors that were closed are not given to sockets: what is printed would go there
closed_input() { timeout 60 "$P2P_BENCH" "${BRIEF[@]}" --json <&- 2>&- | python3 -m json.tool; }
check "stdin and stderr closed: the report arrives" closed_input

# ---- too few descriptors, too little memory ----

# short LIMIT VALUES COMMAND...: with each of them as that ulimit the command fails and says why, or its report is whole
# and no error is said. Warnings may be: without TCP beside it, UDP carries all.
short() {
    local limit=$1 value values=$2 result=0 failed=0
    shift 2
    for value in $values; do
        # what a parent has left open takes none of the few
        (exec 3>&- 4>&- 5>&- 6>&- && ulimit "$limit" "$value" && exec timeout 20 "$@") >"$WORK/out" 2>"$WORK/short.log"
        STATUS=$?
        [ "$STATUS" = 0 ] || failed=$((failed + 1))
        if [ "$STATUS" -ge 124 ] || { [ "$STATUS" = 0 ] && grep -v '^uccl: warning: ' "$WORK/short.log" | grep -qE 'cannot|error|no memory'; } ||
            { [ "$STATUS" != 0 ] && ! grep -qE 'ulimit|resource limit|Too many open files|shared libraries' "$WORK/short.log"; }; then
            echo "ulimit $limit $value: status $STATUS"
            cat "$WORK/short.log" "$WORK/out"
            result=1
        fi
    done
    echo "$failed failed"
    [ "$failed" -gt 0 ] && return "$result"
}
check "few descriptors: uccl_info" short -n "4 5 6 7 8 9 10 11 12 14 16 20 40" "$INFO"
check "few descriptors: uccl_info --json" short -n "4 6 8 9 10 11 12 14 20" "$INFO" --json
check "few descriptors: p2p_bench --local" short -n "4 6 8 10 12 14 16 18 24" "$P2P_BENCH" "${BRIEF[@]}"
if [ "$SHORT" = 0 ]; then # a sanitizer needs room of its own
    check "little memory: uccl_info" short -v "10000 16000 22000 28000 40000" "$INFO"
    check "little memory: p2p_bench --local" short -v "12000 22000 28000 40000" "$P2P_BENCH" "${BRIEF[@]}"
fi

# ---- machines that lack something ----

# without FOLDERS COMMAND...: in a mount namespace where these are empty
without() {
    local folders=$1
    shift
    # shellcheck disable=SC2016
    LD_LIBRARY_PATH=$BUILD timeout 60 unshare -m bash -c \
        'for folder in $0; do mount -t tmpfs none "$folder" || exit 99; done; exec "$@"' "$folders" "$@"
}
if without /sys true 2>/dev/null; then
    check "without /sys" without /sys "$P2P_BENCH" "${BRIEF[@]}"
    if [ "$SHORT" = 0 ]; then # a sanitizer needs /proc
        check "without /sys and /proc" without "/sys /proc" "$P2P_BENCH" "${BRIEF[@]}"
        check "without /sys and /proc: uccl_info" without "/sys /proc" "$INFO"
    fi
    printf 'MemAvailable: 1024 kB\nSwapFree: 1024 kB\n' >"$WORK/meminfo"
    check "more than the machine has left is not touched" lost 'message buffers: the machine has 2 MiB left' \
        "unshare -m sh -c 'mount --bind $WORK/meminfo /proc/meminfo && exec $P2P_BENCH --local --sizes=4M --iterations=20'"
    # a limit of 3 MiB, of which 1 is taken; what gives way are files and swap, half a MiB each
    mkdir "$WORK/group"
    echo 3145728 >"$WORK/group/memory.max"
    echo 1048576 >"$WORK/group/memory.current"
    echo 524288 >"$WORK/group/memory.swap.max"
    echo 0 >"$WORK/group/memory.swap.current"
    printf 'anon 524288\ninactive_file 262144\nactive_file 262144\n' >"$WORK/group/memory.stat"
    echo '0::/' >"$WORK/cgroup"
    echo "31 23 0:28 / $WORK/group rw - cgroup2 cgroup2 rw" >"$WORK/mountinfo"
    printf 'MemAvailable: 1048576 kB\nSwapFree: 1024 kB\n' >"$WORK/meminfo"
    # shellcheck disable=SC2016
    check "nor more than a control group has left" lost 'message buffers: the control group has 3 MiB left' \
        "unshare -m sh -c 'mount --bind $WORK/meminfo /proc/meminfo && mount --bind $WORK/cgroup /proc/\$\$/cgroup &&
            mount --bind $WORK/mountinfo /proc/\$\$/mountinfo && exec $P2P_BENCH --local --sizes=4M --iterations=20'"
    check "without /dev: it says so" lost '/dev/null' "$(declare -f without); BUILD=$BUILD without /dev $P2P_BENCH ${BRIEF[*]}"
    check "without any interface: it says so" lost 'no network interface is up and has an address$' "unshare -n $INFO"
else
    skip "without /sys, /proc, /dev" "not allowed to make mount namespaces" $((SHORT ? 5 : 7))
fi
check "without HOME, a locale and the rest of the environment" env -i "$P2P_BENCH" "${BRIEF[@]}"
odd_locale() { LC_ALL=de_DE.UTF-8 timeout 60 "$P2P_BENCH" "${BRIEF[@]}" --json | python3 -m json.tool; }
check "an odd locale: numbers are as ever" odd_locale

# ---- plots: gnuplot is played ----

mkdir "$WORK/bin"
# gnuplot_does BODY: the program; $output is where it shall write
gnuplot_does() {
    # shellcheck disable=SC2016
    printf '#!/bin/bash\nscript=$(cat); output=$(sed -n "s/^set output .\\(.*\\).$/\\1/p" <<<"$script")\n%s\n' "$1" \
        >"$WORK/bin/gnuplot"
    chmod +x "$WORK/bin/gnuplot"
}
export PATH=$WORK/bin:$PATH
# shellcheck disable=SC2016
whole='printf "<svg>\n</svg>\n\n" >"$output"'

plot_arrives() {
    gnuplot_does "$whole"
    echo "an older one, which is longer than the new one" >"$WORK/plot.svg"
    timeout 60 "$P2P_BENCH" "${BRIEF[@]}" --plot="$WORK/plot.svg" || return 1
    [ "$(cat "$WORK/plot.svg")" = "$(printf '<svg>\n</svg>')" ]
}
check "a plot" plot_arrives
# shellcheck disable=SC2016
for fault in 'exit 3' ':' 'printf "<svg>" >"$output"' "$whole; exit 1"; do
    gnuplot_does "$fault"
    echo older >"$WORK/plot.svg"
    check "gnuplot: $fault" lost 'gnuplot' "$P2P_BENCH ${BRIEF[*]} --plot=$WORK/plot.svg"
    check "and the older plot is untouched" grep -qx older "$WORK/plot.svg"
done
# shellcheck disable=SC2016
gnuplot_does '{ echo "<svg>"; seq 20000; echo "</svg>"; } >"$output"'
mkdir "$WORK/small"
full_disk() {
    export WORK
    # shellcheck disable=SC2016
    unshare -m bash -c 'mount -t tmpfs -o size=64k none "$WORK/small" && echo older >"$WORK/small/plot.svg" &&
        ! timeout 60 "$@" --plot="$WORK/small/plot.svg" 2>"$WORK/full.log" && grep -qx older "$WORK/small/plot.svg"' sh \
        "$P2P_BENCH" "${BRIEF[@]}" && said full 'plot=.*No space left'
}
if unshare -m mount -t tmpfs none "$WORK/small" 2>/dev/null; then
    check "no room for a plot: the older one is untouched" full_disk
else
    skip "no room for a plot" "not allowed to make mount namespaces"
fi
gnuplot_does "$whole"
linked_plot() {
    ln -sf "$WORK/target.svg" "$WORK/link.svg"
    ! timeout 60 "$P2P_BENCH" --serverip=127.0.0.1 --oobport=1 --connect-timeout=0 --plot="$WORK/link.svg" &&
        [ -L "$WORK/link.svg" ] && timeout 60 "$P2P_BENCH" "${BRIEF[@]}" --plot="$WORK/link.svg" && [ -L "$WORK/link.svg" ] &&
        [ "$(cat "$WORK/target.svg")" = "$(printf '<svg>\n</svg>')" ]
}
check "a plot by a link to where nothing is yet" linked_plot
check "a plot on a full disk" lost 'plot=/dev/full' "$P2P_BENCH ${BRIEF[*]} --plot=/dev/full"
check "a plot where none may be" lost 'plot=/nonexistent' "$P2P_BENCH ${BRIEF[*]} --plot=/nonexistent/plot.svg"
rm -f "$WORK/plot.svg"
check "a plot of a run that fails" lost 'cannot connect' \
    "$P2P_BENCH --serverip=127.0.0.1 --oobport=1 --connect-timeout=1 --plot=$WORK/plot.svg"
check "leaves no file" [ ! -e "$WORK/plot.svg" ]
export TMPDIR=$WORK/none
check "no room for gnuplot's file" lost 'gnuplot' "$P2P_BENCH ${BRIEF[*]} --plot=$WORK/plot.svg"
unset TMPDIR

# ---- a run that does not end by itself ----

# interrupted SIGNAL STATUS: it says so, prints no JSON, and dies of the signal
interrupted() {
    start run "$P2P_BENCH" --local --sizes=1K --seconds=60 --json
    local run=$PID server
    until_true 10 eval "pgrep -P $run >/dev/null" || return 1
    server=$(pgrep -P "$run")
    sleep 0.5
    kill "-$1" "$run"
    ended "$run" 10 || return 1
    echo "status $STATUS"
    [ "$STATUS" = "$2" ] && said run 'interrupted' && ! grep -q '{' "$WORK/run.log" || return 1
    until_true 5 eval "! kill -0 $server 2>/dev/null"
}
check "SIGTERM" interrupted TERM 143
check "SIGHUP" interrupted HUP 129

# the server dies in the middle: no report, and no status of success
midway() {
    next_port
    start server "$P2P_BENCH" --server --oobport="$PORT"
    local server=$PID
    wait_listening "$server" "$PORT" || return 1
    start client env UCCL_DEAD_PEER_MS=500 "$P2P_BENCH" --serverip=127.0.0.1 --oobport="$PORT" --sizes=1K --seconds=60 --csv
    until_true 10 grep -q 'Server. client' "$WORK/server.log" || return 1
    sleep 0.5
    kill -KILL "$server"
    ended "$PID" 20 || return 1
    echo "status $STATUS"
    [ "$STATUS" = 1 ] && said client 'UCCL_EPEERDEAD' && ! grep -q size_bytes "$WORK/client.log"
}
check "the server dies midway: no report" midway
finish
