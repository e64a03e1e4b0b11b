#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `meson install` puts in place is enough to build and run the examples, in C and in C++.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 19

ROOT=$WORK/root
install_all() {
    DESTDIR=$ROOT meson install -C "$BUILD" --no-rebuild
}
check "meson install" install_all
PC=$(find "$ROOT" -name uccl-engine.pc | head -n 1)
LIBRARY=$(find "$ROOT" -name 'libuccl-engine.so' | head -n 1)
check "a pkg-config file and a library" test -n "$PC" -a -n "$LIBRARY"
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR=$ROOT LD_LIBRARY_PATH
PKG_CONFIG_PATH=$(dirname "$PC")
LD_LIBRARY_PATH=$(dirname "$LIBRARY")

# no loader knows of this place
tools_run() {
    local tool
    for tool in transport_test p2p_bench uccl_info; do
        env -u LD_LIBRARY_PATH "$(find "$ROOT" -path "*/bin/$tool")" --version || return 1
    done
}
if [ -d "$ROOT/usr/bin" ]; then
    skip "the tools find the library" "with the prefix /usr the loader does"
else
    check "the tools find the library" tools_run
fi

# uccl_open(3) leads to uccl-engine(3), as all calls do
man_pages() {
    local man page
    man=$(dirname "$(find "$ROOT" -type d -name man1)")
    for page in man1/transport_test.1 man1/p2p_bench.1 man1/uccl_info.1 man3/uccl-engine.3 man5/uccl-engine.conf.5; do
        [ -s "$man/$page" ] || { echo "no $page" && return 1; }
    done
    [ -s "$man/$(sed -n 's/^\.so //p' "$man/man3/uccl_open.3")" ]
}
check "man pages" man_pages

soname() { readelf -d "$LIBRARY" | grep -q 'SONAME.*libuccl-engine.so.0'; }
check "soname" soname

# builds COMPILER SOURCE OUTPUT FLAG...
builds() {
    local flags
    read -ra flags <<<"$(pkg-config --cflags --libs uccl-engine)"
    "$1" "${@:4}" -Wall -Wextra -Werror -pedantic "$2" -o "$3" "${flags[@]}" -lpthread
}
runs() { timeout 60 "$@"; }

for file in "$SOURCE"/docs/examples/*.c "$SOURCE"/docs/examples/*.cpp; do
    [ -e "$file" ] || continue
    name=$(basename "$file")
    case $name in
    *.c) check "$name builds" builds cc "$file" "$WORK/$name.out" -std=c11 ;;
    *.cpp) check "$name builds" builds c++ "$file" "$WORK/$name.out" -std=c++17 ;;
    esac
    check "$name runs" runs "$WORK/$name.out"
done

# the program of README.md, under a name that is longer than its text has room for
readme_runs() {
    local receiver
    start receiver "$WHERE/hello.out"
    receiver=$PID
    wait_listening "$receiver" "$PORT" || return 1
    start sender "$WHERE/hello.out" 127.0.0.1
    ended "$PID" 20 && [ "$STATUS" = 0 ] && ended "$receiver" 20 && [ "$STATUS" = 0 ] && said receiver '^63 bytes: hello from /'
}
next_port
sed -n '/^```c$/,/^```$/p' "$SOURCE/README.md" | sed "/^\`\`\`/d; s/30050/$PORT/" >"$WORK/hello.c"
WHERE=$WORK/$(printf 'folder%.0s' 1 2 3 4 5 6 7 8)
mkdir "$WHERE"
check "README.md's program builds" builds cc "$WORK/hello.c" "$WHERE/hello.out" -std=c11 -Wconversion
check "README.md's program runs" readme_runs

printf '#include <uccl/engine.h>\nint main(void) { return uccl_version()[0] == 0; }\n' >"$WORK/header.c"
cp "$WORK/header.c" "$WORK/header.cpp"
check "the header as C99" builds cc "$WORK/header.c" "$WORK/header.out" -std=c99
check "the header as C++11" builds c++ "$WORK/header.cpp" "$WORK/header.out" -std=c++11

# programs are built where the packages that the library itself is built with are not installed
alone() { PKG_CONFIG_LIBDIR=$PKG_CONFIG_PATH pkg-config --cflags --libs uccl-engine; }
check "pkg-config asks for no other package" alone

nixl_library() {
    local library
    library=$(find "$ROOT" -name libuccl_p2p.so)
    printf '#include <uccl_engine.h>\nint main() { return uccl_engine_create(1, false) == nullptr; }\n' >"$WORK/nixl.cpp"
    c++ -std=c++17 -Wall -Wextra -Werror -I"$(dirname "$(find "$ROOT" -name uccl_engine.h)")" "$WORK/nixl.cpp" \
        "$library" -o "$WORK/nixl.out" && LD_LIBRARY_PATH=$(dirname "$library") timeout 60 "$WORK/nixl.out"
}
if [ -n "$(find "$ROOT" -name libuccl_p2p.so)" ]; then
    check "the library for NIXL and its header" nixl_library
else
    skip "the library for NIXL and its header" "built without it"
fi

# as README.md says
static_archive() {
    local flags
    read -ra flags <<<"$(pkg-config --cflags --libs --static uccl-engine)"
    cc -std=c11 "$SOURCE/docs/examples/example.c" "${flags[@]/#-luccl-engine/-l:libuccl-engine.a}" -o "$WORK/static.out" &&
        runs env -u LD_LIBRARY_PATH "$WORK/static.out"
}
check "the static archive" static_archive

# a machine without Criterion: what would pass then is not the unit tests
without_criterion() {
    local real
    real=$(command -v pkg-config)
    printf '#!/bin/sh\ncase "$*" in *criterion*) exit 1 ;; esac\nexec %s "$@"\n' "$real" >"$WORK/pkg-config"
    chmod +x "$WORK/pkg-config"
    PKG_CONFIG_PATH='' PKG_CONFIG_SYSROOT_DIR='' PKG_CONFIG=$WORK/pkg-config \
        meson setup "$WORK/without" "$SOURCE" >/dev/null || return 1
    ! meson test -C "$WORK/without" --no-rebuild --suite unit criterion >"$WORK/unit.log" 2>&1 || return 1
    grep -q 'Criterion (libcriterion-dev) is missing' "$WORK/without/meson-logs/testlog.txt"
}
check "without Criterion the unit tests fail, and say why" without_criterion
finish
