#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests that run in the guest, in TAP; started by vm.sh. Checks whose names /run/job/done has were
# made before the guest died and are left out. VM_ONLY, a shell pattern, chooses checks by name.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"

done_before=/run/job/done
[ -e $done_before ] || : >$done_before
checks=$(wc -l <$done_before)

# guest NAME COMMAND...: as check()
guest() {
    # shellcheck disable=SC2053 # a pattern
    [[ $1 == ${VM_ONLY:-*} ]] || return 0
    grep -qxF -- "$1" $done_before || check "$@"
}

# ---- the bed itself -------------------------------------------------------------------------

both_devices() {
    local device
    for device in rxe0 rxe1; do
        ibv_devinfo -d "$device" >"$WORK/$device.log" || return 1
        said "$device" 'state:.*PORT_ACTIVE' && said "$device" 'active_mtu:.*4096' || return 1
    done
}
guest "both devices are there, active, with the MTU of the link" both_devices

# perftest TOOL FLAG...: between rxe1 and rxe0
perftest() {
    local tool=$1
    shift
    next_port
    start server "$tool" -d rxe1 -p "$PORT" -F "$@"
    until_true 10 listening self "$PORT" || return 1
    "$tool" -d rxe0 -p "$PORT" -F "$@" 10.0.0.2 || return 1
    ended "$PID" 10 && [ "$STATUS" = 0 ]
}
for connection in UD UC RC; do
    guest "perftest sends over $connection" perftest ib_send_bw -c $connection -s 4096 -n 500
done

# ---- UDP in the guest -----------------------------------------------------------------------

SERVER_ENV=(UCCL_BACKEND=udp) CLIENT_ENV=(UCCL_BACKEND=udp)
guest "udp: verified messages over the veth pair" pair 10.0.0.2 --msize=1000000 --iterations=50
finish
