#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# survive.sh MPIRUN RANKS PROGRAM: of RANKS processes of examples/survive.c the last one dies, where MPI
# tolerates faults; the others go on from that step, learn on, and end with equal replicas. The
# launcher's status says only that one was killed.
set -euo pipefail

mpirun=$1 ranks=$2 program=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/../bench/expect.sh"

bash "$mpirun" "$ranks" 300 --with-ft ulfm "$program" die >"$dir/out" 2>&1 || :
for line in "$((ranks - 1)) of $ranks ranks go on from step 500" "replicas identical"; do
    grep -qx "$line" "$dir/out" || fail "no line \"$line\": $(cat "$dir/out")"
done
sed -n 's/^step .*, loss //p' "$dir/out" >"$dir/losses"
awk 'NR > 1 && $1 >= last { exit 1 } { last = $1 } END { exit NR != 4 }' "$dir/losses" ||
    fail "the loss does not fall: $(tr '\n' ' ' <"$dir/losses")"
