#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: slow long release
#
# elastic.sh TRAIN PYTHON [MPIRUN ulfm|plain [DIE_AT]]: ranks die, and the others go on: as many as are left,
# with equal parameters, on samples that are nobody else's, and the same bits in every run and over
# every transport. What they save can be gone on from, with as many ranks or more.
set -euo pipefail

train=$1 python=$2 mpirun=${3:-} faults=${4:-plain} die_at=${5:-}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

# Ranks that are threads and dead keep their memory.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export TAMIS_TIMEOUT_MS=5000
ranks=4
last() { # record file, field
    tail -n 1 "$1" | field "$2"
}
shrinks() { # record file: step and ranks of each
    grep '"record":"shrink"' "$1" | sed 's/.*"step":\([0-9]*\),"ranks":\([0-9]*\).*/\1:\2/' | tr '\n' ' '
}
went_on() { # record file, shrinks, what for
    [ "$(shrinks "$1")" = "$2 " ] || fail "$3: shrank at $(shrinks "$1"), not $2"
    [ "$(last "$1" ranks)" = "${2##*:}" ] || fail "$3: ended with $(last "$1" ranks) ranks"
    [ "$(last "$1" replicas_identical)" = true ] || fail "$3: replicas differ"
    grep '"record":"shrink"' "$1" | field time_s >>"$dir/times.$(last "$1" transport)"
}

# -- threads: two deaths, the second of rank 0 -------------------------------------------------------
drill=(--steps 24 --elastic 2 --lose "2@6,0@15" --eval-every 8 --check-every 1)
survive() { # options
    local sum
    run "$dir/one.json" "$@" "${drill[@]}" 2>"$dir/said"
    went_on "$dir/one.json" "6:3 15:2" "$*"
    grep -q "^rank 1: 1 rank(s) are gone; 2 go on from step 15 after" "$dir/said" || fail "$(cat "$dir/said")"
    sum=$(last "$dir/one.json" model_hash)
    run "$dir/whole.json" "$@" --steps 24
    [ "$(last "$dir/whole.json" model_hash)" != "$sum" ] || fail "nobody was missed: $*"
    [ "$faults" = ulfm ] || return 0
    # The launcher's status says only that ranks were killed.
    bash "$mpirun" $ranks 200 --with-ft ulfm "$train" --quiet --json "$dir/mpi.json" "$@" "${drill[@]}" \
        >"$dir/out" 2>&1 || :
    [ -s "$dir/mpi.json" ] || fail "over MPI: $(cat "$dir/out")"
    went_on "$dir/mpi.json" "6:3 15:2" "over MPI: $*: $(tail -n 5 "$dir/out")"
    [ "$(last "$dir/mpi.json" model_hash)" = "$sum" ] || fail "over MPI another model_hash: $*"
}
survive "${mlp[@]}"
again=$(last "$dir/one.json" model_hash)
survive "${mlp[@]}"
[ "$(last "$dir/one.json" model_hash)" = "$again" ] || fail "another model_hash"
survive "${lm[@]}" --reduce update
survive "${mlp[@]}" --optimizer adamw --scheme dense
survive "${mlp[@]}" --overlap on --bucket-length 1000 --optimizer momentum --set value_codec=bfloat16

# -- between the steps -------------------------------------------------------------------------------
# A rank dies while all look at each other: in the first check, a validation, or the summary. Nothing
# that is reported is missing, twice there, or cut off.
die_between() { # rank:call
    rm -f "$dir/mpi.json"
    DIE_AT=$1 bash "$mpirun" $ranks 200 --with-ft ulfm -x DIE_AT -x LD_PRELOAD="$die_at" "$train" "${mlp[@]}" \
        --quiet --json "$dir/mpi.json" --steps 4 --eval-every 2 --elastic 1 >"$dir/out" 2>&1 || :
    grep -q "dies in call" "$dir/out" || fail "nobody died: $1"
    "$python" - "$dir/mpi.json" <<'END_OF_CHECK' || fail "death at $1: $(tail -n 5 "$dir/out")"
import json, sys
records = [json.loads(line) for line in open(sys.argv[1])]
steps = [r["step"] for r in records if r["record"] == "step"]
summaries = [r for r in records if r["record"] == "summary"]
assert steps == [2, 4] and all(r["train_loss"] > 0 for r in records if r["record"] == "step"), steps
assert len(summaries) == 1 and records[-1] == summaries[0], "summaries: %d" % len(summaries)
told = {name: summaries[0][name] for name in ("ranks", "ranks_gone", "steps", "replicas_identical")}
assert told == {"ranks": 3, "ranks_gone": 1, "steps": 4, "replicas_identical": True}, told
END_OF_CHECK
}
if [ -n "$die_at" ]; then
    for at in 0:3 2:6 1:9 0:13 3:20 2:24 0:31 1:44; do
        die_between $at
    done
fi

# -- what they save ----------------------------------------------------------------------------------
# The set of step 10 is of three ranks. Whoever goes on from it with three takes the samples that come
# next there, and ends with the bits of those that went on without a stop.
sets=$dir/sets
drill=("${mlp[@]}" --elastic 2 --lose 2@6)
run "$dir/once.json" "${drill[@]}" --steps 30 --save "$dir/once" 2>"$dir/said"
run "$dir/part.json" "${drill[@]}" --steps 30 --stop 10 --states "$sets" --save-every 4 2>"$dir/said"
ranks=3
run "$dir/then.json" "${mlp[@]}" --steps 30 --load "$sets" --save "$dir/then"
same once then "gone on with three, but elsewhere"
# With four again: the samples of a step are others, and that is said.
ranks=4
expect 1 "it was saved by 3 ranks with --batch 4; ranks times --batch must stay 12 .* or give --elastic" \
    "$train" "${mlp[@]}" --transport local --ranks 4 --quiet --steps 30 --load "$sets"
run "$dir/more.json" "${mlp[@]}" --steps 30 --load "$sets" --elastic 1
[ "$(last "$dir/more.json" steps)" = 20 ] && [ "$(last "$dir/more.json" ranks)" = 4 ] ||
    fail "four ranks do not go on from the set of three"

# A signal while they wait for one that is gone: they go on without it, and end with a set. Ranks are
# named by the numbers that they began with; threads all get it, and the last one is named.
rm -rf "$sets"
"$train" "${mlp[@]}" --transport local --ranks 4 --quiet --elastic 2 --lose 0@5 --steps 1000000000 \
    --states "$sets" 2>"$dir/said" & job=$!
until grep -q "has waited" "$dir/said"; do
    kill -0 $job 2>/dev/null || fail "ended before the signal: $(cat "$dir/said")"
    sleep 0.05
done
kill -TERM $job
status=0
wait $job || status=$?
[ $status = 3 ] || fail "a signal during a recovery: status $status: $(cat "$dir/said")"
grep -q "^rank 1: signal 15, which rank 3 got, ended the run after step" "$dir/said" || fail "$(cat "$dir/said")"
grep -q . "$sets"/*.set || fail "a signal during a recovery leaves no set"

# -- too few, and alone ------------------------------------------------------------------------------
rm -rf "$sets"
expect 3 "rank 0: 2 rank(s) are left, fewer than --elastic 3: the run ends at step 9" \
    "$train" "${mlp[@]}" --transport local --ranks 4 --quiet --elastic 3 --lose 1@4,3@9 --steps 30 --states "$sets"
grep -q . "$sets/step000000000009.set" || fail "the state of the last two is not saved"
expect 0 '"record":"shrink".*"ranks":1,' \
    "$train" "${mlp[@]}" --transport local --ranks 2 --quiet --elastic 1 --lose 0@3 --steps 9 --json -

expect 1 "all 2 ranks have died" \
    "$train" "${mlp[@]}" --transport local --ranks 2 --quiet --elastic 1 --lose 0@3,1@3 --steps 9

# -- wrong usage -------------------------------------------------------------------------------------
refuse() { # what is said, options
    expect 2 "$1" "$train" "${mlp[@]}" --transport local --ranks 2 --quiet --steps 2 "${@:2}"
}
refuse "lose needs --elastic" --lose 1@1
for list in 1 1@ @1 1@1, 1@1,,0@2 x@1 1@-1; do
    refuse "is no list of RANK@STEP" --elastic 1 --lose "$list"
done
expect 1 "there is no rank 2 of 2" \
    "$train" "${mlp[@]}" --transport local --ranks 2 --quiet --steps 2 --elastic 1 --lose 2@1
expect 1 "the run begins with 2 ranks, fewer than it may have" \
    "$train" "${mlp[@]}" --transport local --ranks 2 --quiet --steps 2 --elastic 3
refuse "goes without --dense-segments, --local-steps" --elastic 1 --local-steps 2
refuse "goes without --record, --trace and --budget" --elastic 1 --trace "$dir/trace"
if [ -n "$mpirun" ] && [ "$faults" = plain ]; then
    expect 1 "rank [01]: --elastic: .*MPI" \
        bash "$mpirun" 2 100 "$train" "${mlp[@]}" --quiet --steps 2 --elastic 1
fi
for times in "$dir"/times.*; do
    sort -g "$times" | awk -v name="${times##*.}" '{ all[NR] = $1 } END {
        printf "%s: %d recoveries, s from the first error to the next step: median %.2f, largest %.2f\n",
               name, NR, all[int((NR + 1) / 2)], all[NR] }'
done
echo "elastic: ok"
