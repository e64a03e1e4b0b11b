#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The plugin in a real NCCL, as far as that goes without a GPU: 2.21.5 loads it in ncclGetUniqueId. Only when asked for, since
# it is a download of 190 MB from PyPI: tests/run.sh nccl --real. NCCL_REAL=FILE names a libnccl.so.2 that is there.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
plan 2

[ -n "${NCCL_REAL:-}" ] || skip_all "not asked for (tests/run.sh nccl --real)"

PACKAGE=nvidia-nccl-cu12==2.21.5
library=$BUILD/real-nccl/nvidia/nccl/lib/libnccl.so.2
if [ -f "$NCCL_REAL" ]; then
    library=$NCCL_REAL
elif [ ! -f "$library" ]; then
    mkdir -p "$BUILD/real-nccl"
    timeout 250 python3 -m pip download -q --no-deps -d "$WORK" "$PACKAGE" >"$WORK/pip.log" 2>&1 &&
        python3 -m zipfile -e "$WORK"/nvidia_nccl_cu12-*.whl "$BUILD/real-nccl" ||
        skip_all "$PACKAGE cannot be downloaded: $(tail -n 1 "$WORK/pip.log")"
fi

# load PLUGIN: NCCL's words in $WORK/nccl.log, and whether the plugin lies in the process afterwards
load() {
    env NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET NCCL_NET_PLUGIN="$1" NCCL_SOCKET_IFNAME=lo UCCL_BACKEND=udp \
        timeout 60 python3 - "$library" "$1" >"$WORK/nccl.log" 2>&1 <<'PYTHON'
import ctypes, os, sys
library = ctypes.CDLL(sys.argv[1])
version, identifier = ctypes.c_int(), (ctypes.c_char * 128)()
library.ncclGetVersion(ctypes.byref(version))
result = library.ncclGetUniqueId(identifier)
with open("/proc/self/maps", encoding="ascii") as maps:
    mapped = os.path.basename(sys.argv[2]) in maps.read()
print("version", version.value, "result", result, "mapped", mapped)
sys.exit(result)
PYTHON
}
taken() {
    load "$BUILD/plugins/nccl/libnccl-net-uccl.so" && said nccl 'result 0 mapped True' &&
        ! grep -q 'Failed to find ncclNetPlugin' "$WORK/nccl.log"
}
# what it says of a library that is none, so that its silence above means something
refused() { load "$BUILD/tests/nccl/librccl.so" && said nccl 'Failed to find ncclNetPlugin'; }

check "NCCL takes the plugin" taken
say "$(grep '^version' "$WORK/nccl.log")"
check "NCCL does not take another library" refused
finish
