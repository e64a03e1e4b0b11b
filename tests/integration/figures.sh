#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the tools report is true: compared with figures that are known, since the library, the peer, the clock and the
# processor are played (tests/figures/played.c), or the machine is made up. No time is measured.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"

TOOLS=$SOURCE/tests/figures/tools.py
for case in $(python3 "$TOOLS" --list); do
    check "${case//_/ }" timeout 120 python3 "$TOOLS" "$BUILD" "$case"
done

if unshare -mn true 2>/dev/null; then
    check "uccl_info, a machine that is made up" timeout 120 unshare -mn python3 "$SOURCE/tests/figures/machine.py" "$BUILD"
else
    skip "uccl_info, a machine that is made up" "not allowed to make namespaces"
fi
finish
