#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# kills.sh RUNS PROGRAM [SEED [EVERY]]: as many runs of 2 to 5 ranks in which one or two are killed at any
# moment (test_kills.c), where MPI tolerates faults. Prints what became of them: a run is sound if all
# others end well, ended if one of them does not, hung after 100 s. Ends with 0 if all are sound. An even
# seed kills one rank, an odd one two. Seeds are SEED, SEED + EVERY, ..., by default 1, 2, ...
set -uo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
runs=$1 program=$2 first=${3:-1} every=${4:-1}
sound=0 ended=0 hung=0 recovered=0
for ((i = 0; i < runs; i++)); do
    seed=$((first + i * every))
    ranks=$((2 + seed / 2 % 4))
    out=$("$here/../support/mpirun.sh" "$ranks" 100 --with-ft ulfm "$program" kills "$seed" 2>&1 | tr -d '\0')
    status=$?
    well=$(grep -c '^a rank ends well' <<<"$out") dead=$(grep -c '^a rank dies' <<<"$out")
    [ "$dead" -gt 0 ] && grep -q 'after [1-9][0-9]* recover' <<<"$out" && recovered=$((recovered + 1))
    if [ $((well + dead)) -ge "$ranks" ] && [ "$well" -gt 0 ]; then
        sound=$((sound + 1))
        continue
    fi
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then hung=$((hung + 1)); else ended=$((ended + 1)); fi
    printf '%s\n' "seed $seed of $ranks ranks: $well ended well, $dead died, status $status" "$out"
done
echo "$runs runs: $sound sound ($recovered with a recovery), $ended ended, $hung hung"
[ "$sound" -eq "$runs" ]
