#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library for NIXL: it exports the names that NIXL's plugin UCCL (v1.4.0) needs and no others, and serves a caller
# with that plugin's order of calls.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 13

LIBRARY=$BUILD/plugins/nixl/libuccl_p2p.so
names() {
    diff "$SOURCE/tests/onesided/nixl_symbols.txt" <(nm -D --defined-only "$LIBRARY" | awk '{print $3}' | LC_ALL=C sort)
}
check "the names that it exports" names
for ((i = 1; i <= 10; i++)); do
    check "$("$BUILD/tests/onesided/nixl_caller" name $i)" timeout 100 "$BUILD/tests/onesided/nixl_caller" $i
done
check "a GPU that hangs" env UCCL_SOCKET_IFNAME=lo timeout 60 "$BUILD/tests/onesided/nixl_gpu" "$BUILD/tests/mem/libfake-cuda.so"
check "memory is short" env UCCL_SOCKET_IFNAME=lo timeout 60 "$BUILD/tests/onesided/nixl_memory"
finish
