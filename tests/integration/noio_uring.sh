#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where io_uring is forbidden, UCCL_UDP_IO=auto works and uring fails with the reason.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
plan 3
UNEQUAL=0 # looks at one driver

NO_URING=$BUILD/tests/no_uring
"$NO_URING" true || skip_all "no seccomp here"

IN_SERVER=("$NO_URING")
IN_CLIENT=("$NO_URING")
for lend in auto no; do
    export UCCL_LEND=$lend
    SERVER_ENV=(UCCL_UDP_IO=auto) CLIENT_ENV=(UCCL_UDP_IO=auto)
    check "auto, UCCL_LEND=$lend" pair 127.0.0.1 --perftype=basic --msize=1000000 --iterations=8
done
SERVER_ENV=() CLIENT_ENV=()

refused() {
    start server "$NO_URING" env UCCL_UDP_IO=uring UCCL_LEND=no "$TRANSPORT_TEST" --server=true \
        --oobport=$((PORT + 1))
    ended "$PID" 5 || return 1
    [ "$STATUS" -ne 0 ] && [ "$STATUS" -lt 128 ] && said server 'uring' &&
        said server 'not permitted|forbidden|EPERM|without io_uring'
}
check "uring fails and says why" refused
finish
