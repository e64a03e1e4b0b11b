#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One of two NICs is cut three times. Over TCP, links that go down. With rates, and more cuts: tests/run.sh rails.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/rails/lib.sh
. "$(dirname "$0")/../rails/lib.sh"

plan 9
check_cuts 3
export UCCL_BACKEND=tcp
KINDS=(down) CUTS_S=(0.3 0.5 0.8) RETURN_S=3 LONGEST_MS_MAX=2000
check_cuts 2
check "the log tells of the link" said sender 'network interface nic[01] is down or gone'
finish
