#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# properties.sh SECONDS: runs random cases for that long, different ones each time, with the program of
# the build "release". Prints for a failure the command that repeats it. The last line is
# "N passed, N failed[, N skipped]".
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. tests/support/counts.sh

program=build/release/tests/fuzz/properties
if [ ! -x $program ]; then
    echo "skipped: $program is not built (bash tests/run.sh builds it)"
    skipped=1
elif "$program" --seed random --seconds "$1"; then
    passed=1
else
    failed=1
fi
finish
