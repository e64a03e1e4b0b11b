#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What two NICs in one engine carry, together and each, and 20 cuts. For a machine that does nothing else.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/../integration/lib.sh"
# shellcheck source=tests/rails/lib.sh
. "$(dirname "$0")/lib.sh"
SECONDS_EACH=4

plan 13
for backend in udp tcp auto; do
    export UCCL_BACKEND=$backend
    check "$backend, equal NICs: 90% of both rates, 45 to 55% each ($R Mbit/s)" equal_nics
    check "$backend, unequal NICs: 85% of the sum" unequal_nics
    check "$backend, one NIC becomes slow: 85% of what is left, 2 s later" one_becomes_slow
done
unset UCCL_BACKEND
check_cuts 20
finish
