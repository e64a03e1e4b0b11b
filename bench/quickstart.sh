#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to numbers: installs packages (Debian, Ubuntu), builds, moves verified messages
# between two processes on this machine, and sweeps message sizes. A few minutes.
#
#   [PORT=N] bench/quickstart.sh        PORT: TCP port of the servers (30042)
set -eu
if [ $# -gt 0 ]; then
    sed -n '3,/^set/s/^#\( \|$\)//p' "$0" >&2
    [ "$1" = --help ] && exit
    exit 64
fi
cd "$(dirname "$0")/.."

# the last three: to build for RDMA devices, to drive them, and to have their kernel modules loaded
PACKAGES=(gcc meson ninja-build pkg-config liburing-dev libhwloc-dev libjansson-dev
    libibverbs-dev ibverbs-providers rdma-core)
PORT=${PORT:-30042}

step() { printf '\n==> %s\n' "$*"; }
stop() {
    printf '\nquickstart: %s\n' "$*" >&2
    exit 1
}

step "Packages"
options=()
if command -v dpkg-query >/dev/null; then
    missing=()
    for package in "${PACKAGES[@]}"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        sudo=()
        if [ "$(id -u)" -ne 0 ]; then
            command -v sudo >/dev/null ||
                stop "packages are missing and there is no sudo; as root: apt-get install ${missing[*]}"
            sudo=(sudo)
        fi
        echo "installing ${missing[*]}"
        "${sudo[@]}" apt-get update -qq || stop "apt-get update failed; see above"
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
            stop "apt-get install failed; see above"
    fi
    echo "all there"
    options=(-Dio_uring=enabled -Dverbs=enabled) # not without what was just installed
else
    echo "not Debian or Ubuntu: needed are ${PACKAGES[*]} or what they are called here"
fi

step "Build (build/)"
mkdir -p build
[ ! -f build/build.ninja ] || options+=(--reconfigure)
if ! { meson setup build "${options[@]}" && ninja -C build; } >build/quickstart.log 2>&1; then
    tail -n 40 build/quickstart.log >&2
    stop "the build failed; all of it is in build/quickstart.log"
fi
if build/bench/uccl_info --version | grep -q 'verbs=no'; then
    echo "built without verbs: the headers of libibverbs are missing, and RDMA devices would not be used"
    [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ] || stop "this machine has RDMA devices: install libibverbs-dev or its like"
fi
build/bench/uccl_info || stop "uccl_info failed"

step "transport_test: verified messages between two processes, port $PORT"
log=$(mktemp)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -f "$log"' EXIT
for perftype in basic lat tpt; do
    build/bench/transport_test --server=true --oobport="$PORT" >"$log" 2>&1 &
    server=$!
    for ((i = 0; i < 100; i++)); do
        # the server listens, or has already ended
        grep -qE "^ *[0-9]+: [0-9A-F]+:$(printf %04X "$PORT") [0-9A-F:]+ 0A " \
            /proc/net/tcp /proc/net/tcp6 2>/dev/null && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    flags=("--perftype=$perftype")
    case $perftype in
    basic) flags+=(--iterations=8) ;;
    lat) flags+=(--msize=8 --iterations=10000) ;;
    tpt) flags+=(--msize=1048576 --iterations=5000) ;;
    esac
    echo "\$ transport_test --server=true & transport_test --serverip=127.0.0.1 ${flags[*]}"
    if ! timeout 120 build/bench/transport_test --serverip=127.0.0.1 --oobport="$PORT" "${flags[@]}"; then
        sed 's/^/server: /' "$log" >&2
        stop "transport_test failed (is port $PORT in use? choose another: PORT=N $0)"
    fi
    wait "$server" || {
        sed 's/^/server: /' "$log" >&2
        stop "the server of transport_test failed"
    }
    server=
done

step "p2p_bench: a sweep over message sizes"
timeout 300 build/bench/p2p_bench --local --oobport="$PORT" --seconds=0.5 || stop "p2p_bench failed"

step "Done"
cat <<'EOF'
Between two hosts:    build/bench/p2p_bench --server            on one,
                      build/bench/p2p_bench --serverip=ADDRESS  on the other.
Tests:                tests/run.sh
Against other tools:  bench/compare.sh
EOF
