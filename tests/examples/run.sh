#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh MPIRUN RANKS PROGRAM: an example of examples/*.c learns, says so, and ends with equal replicas.
set -euo pipefail

mpirun=$1 ranks=$2 program=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/../bench/expect.sh"

expect 0 "^replicas identical$" bash "$mpirun" "$ranks" 300 "$program"
sed -n 's/^step .*, loss //p' "$dir/out" >"$dir/losses"
[ "$(wc -l <"$dir/losses")" = 4 ] || fail "no four losses: $(cat "$dir/out")"
awk 'NR > 1 && $1 >= last { exit 1 } { first = NR == 1 ? $1 : first; last = $1 }
    END { exit !(last > 0 && last < 0.6 * first) }' "$dir/losses" ||
    fail "the loss does not fall: $(tr '\n' ' ' <"$dir/losses")"
cat "$dir/out"
