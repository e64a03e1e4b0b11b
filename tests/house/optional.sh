#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds without verbs or without GPUs leave out the tests of these.
# shellcheck source=tests/house/lib.sh
. "$(dirname "$0")/lib.sh"
plan 3

"$BUILD/bench/uccl_info" --version | grep -q 'verbs=yes cuda=yes hip=yes' ||
    skip_all "this build has not everything itself"
ls "$BUILD"/tests/test_*.p >/dev/null 2>&1 || skip_all "no unit tests are built"

optional() { python3 "$HOUSE/optional.py" "$1" "$BUILD"; }

check "tests of what options leave out are left out with it" optional "$SOURCE"
fresh_copy
cp "$SOURCE/meson.build" "$COPY"
sed -i "s/^\(needs_verbs = \[\)'[a-z_]*', /\1/" "$COPY/tests/meson.build"
check "one that would not link is found" finds 'which is there only if verbs.found\(\): put ' optional "$COPY"
cp "$SOURCE/tests/meson.build" "$COPY/tests"
sed -i "s/^\(needs_gpu = \[\)/\1'ring', /" "$COPY/tests/meson.build"
check "one that need not be left out is found" finds "needs_gpu lists 'ring', " optional "$COPY"
finish
