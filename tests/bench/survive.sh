#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: slow release
#
# survive.sh TRAIN PYTHON MPIRUN INFO: of four processes one is killed or hangs. The run ends by itself,
# and goes on from the newest step that all have saved with the bits of a run without a stop; flight
# recorders name the rank that hung.
set -euo pipefail

train=$1 python=$2 mpirun=$3 info=$4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

export TAMIS_PLAN=usual # what is measured at the start may differ, and figures in the states follow it
ranks=4
options=("${lm[@]}" --reduce update --eval-every 1000000000 --quiet)
# Every process records its id, so that this test ends none but its own.
cat >"$dir/rank.sh" <<'END_OF_RANK'
echo $$ >"$1/pid.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"
exec "${@:2}"
END_OF_RANK
begin() { # in the background, saving every 50 steps
    rm -rf "$dir"/pid.* "$dir"/run.*
    bash "$mpirun" $ranks 300 bash "$dir/rank.sh" "$dir" "$train" "${options[@]}" --steps 1000000000 \
        --save "$dir/run" --save-every 50 >"$dir/out" 2>&1 &
    job=$!
    await 200 test -f "$dir/run.step100.rank0.state"
}
await() { # seconds, command...: until it succeeds
    local end=$(($(date +%s) + $1))
    shift
    until "$@" 2>/dev/null; do
        kill -0 "$job" 2>/dev/null || fail "the job has ended: $(tail -n 5 "$dir/out")"
        [ "$(date +%s)" -lt $end ] || fail "timed out: $*"
        sleep 0.05 # between looks
    done
}
pid_of() {
    cat "$dir/pid.$1"
}
ends() { # statuses
    local status=0
    wait "$job" || status=$?
    [[ " $1 " = *" $status "* ]] || fail "status $status, not $1: $(tail -n 5 "$dir/out")"
}
newest() { # step of which the files of all ranks are there
    find "$dir" -name 'run.step*.rank*.state' | sed 's/.*step\([0-9]*\).*/\1/' | sort -n | uniq -c |
        awk '$1 == 4 { step = $2 } END { print step }'
}
# From there to some steps later, beside a run that never stopped.
finish() { # name, options
    bash "$mpirun" $ranks 300 "$train" "${options[@]}" --save "$dir/$1" --json "$dir/$1.json" "${@:2}" \
        2>"$dir/said" || fail "status $?: ${*:2}: $(cat "$dir/said")"
}
goes_on() { # what for
    local step
    step=$(newest)
    finish then --steps $((step + 7)) --load "$dir/run.step$step"
    [ "$(tail -n 1 "$dir/then.json" | field steps)" = 7 ] || fail "$1: not from step $step"
    finish once --steps $((step + 7))
    same once then "$1: gone on, but elsewhere"
    [ "$(tail -n 1 "$dir/then.json" | field model_hash)" = "$(tail -n 1 "$dir/once.json" | field model_hash)" ] ||
        fail "$1: another model_hash"
}

# A dead rank: the launcher ends the others, or the library's deadline does.
begin
kill -KILL "$(pid_of 2)"
ends "1 137 143"
goes_on "rank 2 was killed"

# A rank that hangs. The others say so before their deadline, and leave their flight recorders when they
# give up, unless the first of them has ended the job before.
mkdir "$dir/flight"
export TAMIS_TIMEOUT_MS=6000 TAMIS_FLIGHT=$dir/flight
begin
kill -STOP "$(pid_of 1)"
await 200 grep -q "rank [023], .*: has waited 1.0 s for rank(s) 1, and gives up in" "$dir/out"
ends "1 134 137 143"
grep -q "TAMIS_E_TIMEOUT\|did not answer within" "$dir/out" || fail "$(cat "$dir/out")"
kill -KILL "$(pid_of 1)" 2>/dev/null || :
"$info" --flight "$dir/flight" --trace "$dir/trace.json" >"$dir/flights"
grep -q "[123] rank(s) waited for rank 1 in collective" "$dir/flights" || fail "given up: $(cat "$dir/flights")"
grep -q "TAMIS_E_TIMEOUT" "$dir/flights" || fail "not lost: $(cat "$dir/flights")"
"$python" -c 'import json, sys; spans = json.load(open(sys.argv[1]))["traceEvents"]
assert any(s["ph"] == "X" for s in spans)
' "$dir/trace.json"
unset TAMIS_TIMEOUT_MS TAMIS_FLIGHT
goes_on "rank 1 hung"
echo "survive: ok"
