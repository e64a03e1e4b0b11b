#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One of two NICs is cut three times. With rates, and more cuts: tests/run.sh rails.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/rails/lib.sh
. "$(dirname "$0")/../rails/lib.sh"

plan 4
check_cuts 3
finish
