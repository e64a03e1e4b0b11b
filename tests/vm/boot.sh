#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Boots a kernel with soft-RoCE in QEMU, on this machine's root file system (read-only, with a tmpfs
# on top), and runs COMMAND in it as root, in the current directory. What the command writes comes
# out here; the exit status is the command's, 77 where there is no QEMU or kernel (the reason is on stdout),
# 124 when the time is over, 125 when the guest died, as it also does where its kernel finds a processor or a task stuck.
#
#   boot.sh 'ibv_devinfo; ib_send_bw ...'
#
# In the guest: rxe0 10.0.0.1 and rxe1 10.0.0.2 over a veth pair v0, v1; rxe2 10.0.1.1 and rxe3 10.0.1.2 over v2, v3; /run/job is the directory VM_JOB of
# the host, and writable.
#
# VM_KDIR     unpacked kernel; not given: Debian's, downloaded below VM_WORK
# VM_WORK     images and logs (build/vm)
# VM_JOB      directory that the guest may write to (a new one below VM_WORK, removed in the end)
# VM_PASS     names of variables that the command gets too
# VM_TIMEOUT  seconds (600)
# VM_MTU      of the veth pairs (4200: RoCE packets of 4096 bytes)
# VM_SMP, VM_MEMORY   processors (2), MiB (2048)
# VM_ACCEL    tcg (default), or kvm where that works
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=${VM_WORK:-$(cd "$here/../.." && pwd)/build/vm}
[ $# -eq 1 ] || {
    sed -n '3,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

for tool in qemu-system-x86_64 busybox cpio depmod; do
    command -v $tool >/dev/null || [ -x "/sbin/$tool" ] || {
        echo "no $tool"
        exit 77
    }
done
[ "$(uname -m)" = x86_64 ] || {
    echo "the guest runs this machine's programs and needs an x86_64"
    exit 77
}
PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$work"
work=$(cd "$work" && pwd)
kernel=$("$here/kernel.sh" "$work") || {
    echo "$kernel"
    exit 77
}
image=$(find "$kernel/boot" -name 'vmlinuz-*' | head -n 1)
initramfs=$work/initramfs-${image##*/vmlinuz-}.cpio
if [ ! "$initramfs" -nt "$here/guest_init" ] || [ ! "$initramfs" -nt "$here/initramfs.sh" ]; then
    "$here/initramfs.sh" "$kernel" "$initramfs" || exit 1
fi

job=${VM_JOB:-$(mktemp -d "$work/job.XXXXXX")}
qemu=
cleanup() {
    [ -z "$qemu" ] || kill "$qemu" 2>/dev/null
    [ -n "${VM_JOB:-}" ] || rm -rf "$job"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
rm -f "$job/status"
cp "$here/guest_main.sh" "$job/"
printf '%s\n' "$1" >"$job/command"
{
    printf 'VM_HERE=%q\nVM_DIRECTORY=%q\nVM_MTU=%q\n' "$here" "$PWD" "${VM_MTU:-4200}"
    for name in ${VM_PASS:-}; do printf 'export %s=%q\n' "$name" "${!name}"; done
} >"$job/environment"

acceleration=tcg,thread=multi,tb-size=512 processor=max,la57=off clock=
if [ "${VM_ACCEL:-tcg}" = kvm ]; then
    acceleration=kvm processor=host
else
    # told, since a kernel that measures it itself while this machine is busy finds less at times: all times in the
    # guest were too short by a factor of 2.5 once
    clock=$(python3 "$here/tsc.py") && clock=tsc_early_khz=$clock
fi
timeout --foreground -k 5 "${VM_TIMEOUT:-600}" qemu-system-x86_64 \
    -nodefaults -no-user-config -display none -no-reboot \
    -machine pc -accel $acceleration -cpu $processor -smp "${VM_SMP:-2}" -m "${VM_MEMORY:-2048}" \
    -kernel "$image" -initrd "$initramfs" \
    -append "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr no_timer_check tsc=reliable \
random.trust_cpu=on cryptomgr.notests panic=-1 softlockup_panic=1 watchdog_thresh=30 hung_task_panic=1 $clock" \
    -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
    -device virtio-9p-pci,fsdev=host,mount_tag=host \
    -fsdev local,id=job,path="$job",security_model=none \
    -device virtio-9p-pci,fsdev=job,mount_tag=job \
    -device isa-debug-exit,iobase=0xf4,iosize=0x4 -device virtio-rng-pci \
    -serial "file:$work/console.log" -serial stdio </dev/null &
qemu=$!
wait $qemu
ended=$?
qemu=
[ ! -s "$job/setup.log" ] || sed 's/^/guest set-up: /' "$job/setup.log" >&2
if [ -s "$job/status" ]; then
    exit "$(cat "$job/status")"
fi
echo "the guest ended without a status (qemu: $ended); the end of $work/console.log:" >&2
tail -n 80 "$work/console.log" >&2
[ $ended -ne 124 ] || exit 124
exit 125
