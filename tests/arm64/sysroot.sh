#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Puts the arm64 libraries that the tree links against into a folder, and nothing into the system: apt is told to use
# lists of its own for another architecture, so that this needs no root and upgrades no package here.
#
#   sysroot.sh DIR
set -eu
packages=(libhwloc-dev libhwloc15 libudev1 libjansson-dev libjansson4 liburing-dev liburing2
    libibverbs-dev libnl-3-dev libnl-route-3-dev)
mkdir -p "$1"
cd "$1"
[ "$(cat complete 2>/dev/null)" != "${packages[*]}" ] || exit 0

rm -rf ./*
mkdir -p state/lists/partial cache/archives/partial debs root
: >state/status
options=(-qq -o "Dir::State=$PWD/state" -o "Dir::State::status=$PWD/state/status" -o "Dir::Cache=$PWD/cache"
    -o APT::Architecture=arm64 -o APT::Architectures=arm64)
[ "$(id -u)" -ne 0 ] || options+=(-o APT::Sandbox::User=root) # its own user may not be let into this folder
apt-get "${options[@]}" update
(cd debs && apt-get "${options[@]}" download "${packages[@]}")
for deb in debs/*.deb; do
    dpkg-deb -x "$deb" root
done
rm -rf state cache debs
echo "${packages[*]}" >complete
