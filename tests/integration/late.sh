#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# NICs that come late: the link of one comes up when the engine has been opened, or its peer has been met. Then it
# carries. Until then nothing is logged of it.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/rails/lib.sh
. "$(dirname "$0")/../rails/lib.sh"
plan 23 15

# harm_and_settle: the kernel has told the other end of the link, too
harm_and_settle() { harm "$@" && sleep 1.5; }

# comes_late KIND SIDE FROM: nic1 of a side is harmed when the listening end has been opened and the other has not; it is
# mended while the end FROM sends
comes_late() {
    local from late=0
    SENDING=$3
    "$NETWORK" "$R" "$R" || return 1
    BEFORE_SENDER=(harm_and_settle "$1" 1 "$2")
    stream 20 262144 4 || return 1
    BEFORE_SENDER=(true)
    sleep 0.5
    from=$(($(sent 1) + 2000000))
    mend "$1" 1 "$2"
    until_true 10 carries 1 "$from" || { echo "nic1 does not carry" && late=1; }
    kill -TERM "$([ "$SENDING" = 1 ] && echo "$SENDER_PID" || echo "$RECEIVER_PID")"
    stream_ends 60 && [ "$late" = 0 ]
}

# both_come_late: no NIC of side 1 has a carrier when it opens, and connects
both_come_late() {
    "$NETWORK" "$R" "$R" || return 1
    SENDING=1
    harm unplug 0 1
    harm_and_settle unplug 1 1
    BEFORE_SENDER=(mend_soon)
    stream 20 262144 4 || return 1
    BEFORE_SENDER=(true)
    until_true 10 carries 1 2000000 || { echo "nic1 does not carry" && return 1; }
    kill -TERM "$SENDER_PID"
    stream_ends 60
}
mend_soon() {
    (sleep 1 && mend unplug 0 1 && mend unplug 1 1) &
}

# is_quiet: the end that was opened then does not warn of a NIC that has never carried anything
is_quiet() { ! grep -E 'nic1 .*(down|gone)|by network interface nic1' "$WORK/sender.log"; }

for backend in udp tcp auto; do
    export UCCL_BACKEND=$backend
    for from in 0 1; do
        [ "$from" = 0 ] || [ "$SHORT$backend" = 0udp ] || [ "$SHORT$backend" = 0tcp ] || continue
        NETWORK=network
        check "$backend, side $from sends: a link is down when side 1 opens and both meet" comes_late down 0 $from
        check "$backend, side $from sends: side 1 logs nothing of it" is_quiet
        SYSCTLS="net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.all.rp_filter=2"
        NETWORK=one_subnet
        check "$backend, side $from sends: a NIC of side 0 is down when it is met" comes_late down 0 $from
        check "$backend, side $from sends: a NIC of side 1 has no carrier when it opens" comes_late unplug 1 $from
    done
    check "$backend: no NIC of side 1 has a carrier when it opens and connects" both_come_late
done
finish
