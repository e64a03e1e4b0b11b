#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Programs that fork with an engine open, as Python's do.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 2

LIBRARY=$BUILD/libuccl-engine.so.0

for lend in yes no; do
    check "Python forks, UCCL_LEND=$lend" timeout 100 env UCCL_LEND=$lend UCCL_SOCKET_IFNAME=lo \
        python3 "$SOURCE/tests/integration/fork.py" "$LIBRARY"
done
finish
