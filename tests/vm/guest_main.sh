# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# First process of the guest once it is in the host's root: sets up the network, runs the command of
# the job, and leaves its status in the job's directory.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
job=/run/job
stty -F /dev/ttyS1 raw -echo
ulimit -l unlimited
ulimit -c 0
# shellcheck source=/dev/null
. $job/environment
{
    ip link set lo up
    modprobe -a rdma_rxe ib_uverbs rdma_ucm ib_umad
    # shellcheck source=tests/vm/guest_links.sh
    . "$VM_HERE/guest_links.sh"
} >$job/setup.log 2>&1
echo "<3>guest: the command starts $SECONDS s after the first process" >/dev/kmsg
cd "$VM_DIRECTORY" || cd /
setsid -w bash $job/command </dev/null >/dev/ttyS1 2>&1
status=$?
echo "<3>guest: the command ended with $status after $SECONDS s" >/dev/kmsg
echo $status >$job/status
sync
# any write to this port ends qemu; the other way is slower
printf '\1' | dd of=/dev/port bs=1 seek=$((0xf4)) count=1 2>/dev/null
echo o >/proc/sysrq-trigger
sleep 10
