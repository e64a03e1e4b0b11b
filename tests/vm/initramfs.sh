#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Makes the guest's first file system: busybox, the modules that it needs, and guest_init.
#
#   initramfs.sh KERNEL_DIRECTORY OUT
set -eu
kernel=$1 out=$2
version=$(basename "$(find "$kernel/lib/modules" -mindepth 1 -maxdepth 1 -type d | head -n 1)")
modules=(virtio_pci 9pnet_virtio 9p overlay virtio_rng crc32c_generic crc32_generic crc32c-intel
    crc32-pclmul veth sch_netem sch_plug sch_prio cls_u32 rdma_rxe ib_uverbs rdma_ucm ib_umad)

root=$(mktemp -d "$out.XXXXXX")
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,proc,sys,dev,host,job,rw,new} "$root/lib/modules/$version"
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp "$(dirname "$0")/guest_init" "$root/init"

# Debian's package has no modules.dep before it is installed
[ -e "$kernel/lib/modules/$version/modules.dep" ] || depmod -b "$kernel" "$version"
for module in "${modules[@]}"; do
    # not every kernel has each of them; what is really missing shows when the guest loads it
    modprobe -d "$kernel" -S "$version" --show-depends "$module" 2>/dev/null || true
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | sort -u | while read -r file; do
    to=$root/lib/modules/${file##*/lib/modules/}
    mkdir -p "$(dirname "$to")"
    case $file in
    *.xz) xz -dc "$file" >"${to%.xz}" ;;
    *.zst) zstd -qdc "$file" >"${to%.zst}" ;;
    *) cp "$file" "$to" ;;
    esac
done
cp "$kernel/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$version/"
depmod -b "$root" "$version"
(cd "$root" && find . -print0 | cpio -0 -o -H newc --quiet) >"$out.new"
mv "$out.new" "$out"
