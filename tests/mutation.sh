#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Breaks the library in named ways and shows that the tests catch each: tests/mutation/mutate.py --help.
exec python3 "$(dirname "$0")/mutation/mutate.py" "$@"
