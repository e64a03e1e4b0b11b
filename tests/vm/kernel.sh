#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Prints the directory of an unpacked kernel with soft-RoCE (boot/vmlinuz-*, lib/modules/*). VM_KDIR
# names one that is there; else Debian's current one is downloaded and unpacked below
# DIRECTORY, never installed. Exit status 77, with the reason on stdout: there is none.
#
#   kernel.sh DIRECTORY
set -eu

give_up() {
    echo "$*"
    exit 77
}

# complete DIRECTORY: does it hold a kernel and the driver?
complete() {
    compgen -G "$1/boot/vmlinuz-*" >/dev/null &&
        [ -n "$(find "$1"/lib/modules/ -name 'rdma_rxe.ko*' -print -quit 2>/dev/null)" ]
}

# of the package that the meta package stands for: its name changes with every security update
current_package() {
    apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p'
}

if [ -n "${VM_KDIR:-}" ]; then
    complete "$VM_KDIR" || give_up "VM_KDIR=$VM_KDIR holds no boot/vmlinuz-* or no module rdma_rxe"
    echo "$VM_KDIR"
    exit
fi

mkdir -p "$1"
kept=$(find "$1" -mindepth 1 -maxdepth 1 -type d -name 'linux-image-*' | sort -V | tail -n 1)
if [ -n "$kept" ] && complete "$kept"; then
    echo "$kept"
    exit
fi
command -v apt-get >/dev/null || give_up "no apt-get to download a kernel with; VM_KDIR names one"
package=$(current_package)
if [ -z "$package" ] && [ "$(id -u)" -eq 0 ]; then
    apt-get update -qq >/dev/null 2>&1 || true
    package=$(current_package)
fi
[ -n "$package" ] || give_up "apt knows no linux-image-amd64 (Debian's kernel); VM_KDIR names another"
work=$(mktemp -d "$1/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! (cd "$work" && apt-get download -q "$package") >"$1/download.log" 2>&1; then
    give_up "apt-get download $package failed: $(grep -m1 '^E:' "$1/download.log")"
fi
dpkg -x "$work"/*.deb "$work/root" || give_up "$package does not unpack"
complete "$work/root" || give_up "$package holds no kernel or no module rdma_rxe"
mv "$work/root" "$1/$package"
echo "$1/$package"
