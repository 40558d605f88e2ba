#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: slow release
#
# survive.sh TRAIN PYTHON MPIRUN INFO: of four processes one is killed, hangs, or gets a signal. The run ends
# by itself, names the set to go on from, and goes on from there with the bits of a run without a stop.
set -euo pipefail

train=$1 python=$2 mpirun=$3 info=$4
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

ranks=4
options=("${lm[@]}" --reduce update --eval-every 1000000000 --quiet)
# Every process records its id, so that this test ends none but its own.
cat >"$dir/rank.sh" <<'END_OF_RANK'
echo $$ >"$1/pid.${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"
exec "${@:2}"
END_OF_RANK
begin() { # options: in the background, saving sets
    rm -rf "$dir"/pid.* "$dir/sets"
    bash "$mpirun" $ranks 300 bash "$dir/rank.sh" "$dir" "$train" "${options[@]}" --steps 1000000000 \
        --states "$dir/sets" "$@" >"$dir/out" 2>&1 &
    job=$!
    await 200 has_sets 2
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
steps() { # of manifests
    find "$dir/sets" -name '*.set' | sed 's/.*step0*\([0-9]*\).set/\1/' | sort -n
}
has_sets() { # number
    [ "$(steps | wc -l)" -ge "$1" ]
}
pid_of() {
    cat "$dir/pid.$1"
}
ends() { # statuses, what is said
    local status=0
    wait "$job" || status=$?
    [[ " $1 " = *" $status "* ]] || fail "status $status, not $1: $(tail -n 5 "$dir/out")"
    grep -q -- "$2" "$dir/out" || fail "no \"$2\": $(cat "$dir/out")"
}
# From the newest set to some steps later, beside a run that never stopped.
finish() { # name, options
    bash "$mpirun" $ranks 300 "$train" "${options[@]}" --save "$dir/$1" --json "$dir/$1.json" "${@:2}" \
        2>"$dir/said" || fail "status $?: ${*:2}: $(cat "$dir/said")"
}
goes_on() { # what for
    local newest
    newest=$(steps | tail -n 1)
    finish then --steps $((newest + 7)) --load "$dir/sets"
    [ "$(tail -n 1 "$dir/then.json" | field steps)" = 7 ] || fail "$1: not from step $newest"
    finish once --steps $((newest + 7))
    same once then "$1: gone on, but elsewhere"
    [ "$(tail -n 1 "$dir/then.json" | field model_hash)" = "$(tail -n 1 "$dir/once.json" | field model_hash)" ] ||
        fail "$1: another model_hash"
}

# A dead rank. The launcher ends the others, who say where to go on, or the library's deadline does.
begin --save-every 50
kill -KILL "$(pid_of 2)"
ends "1 137 143" "the last complete set is that of step [1-9][0-9]*; resume with --load $dir/sets"
has_sets 2 || fail "a set was lost with a rank"
goes_on "rank 2 was killed"

# A rank that hangs. The others say so before their deadline, leave their flight recorders when they are
# asked and when they give up, and these name it.
mkdir "$dir/flight"
export TAMIS_TIMEOUT_MS=6000 TAMIS_FLIGHT=$dir/flight
begin --save-seconds 0.2
kill -STOP "$(pid_of 1)"
await 200 grep -q "rank [023], .*: has waited 1.0 s for rank(s) 1, and gives up in" "$dir/out"
left() { # files
    [ "$(find "$dir/flight" -name 'flight-*.jsonl' | wc -l)" -ge "$1" ]
}
for rank in 0 2 3; do kill -USR2 "$(pid_of $rank)"; done
await 200 left 3
named="[123] rank(s) waited for rank 1 in collective [0-9]*, "
"$info" --flight "$dir/flight" --trace "$dir/trace.json" >"$dir/flights"
grep -q "=> rank(s) 1 left no file: dead, or not given the folder; $named" "$dir/flights" ||
    fail "asked: $(cat "$dir/flights")"
"$python" -c 'import json, sys; spans = json.load(open(sys.argv[1]))["traceEvents"]
assert {0, 2, 3} == {s["tid"] for s in spans}
assert any(s["args"]["status"] == "did not end" for s in spans if s["ph"] == "X")
' "$dir/trace.json"
ends "1 134 137 143" "TAMIS_E_TIMEOUT\|did not answer within"
grep -q "^rank [023]: the last complete set is that of step [1-9][0-9]*; resume with" "$dir/out" ||
    fail "$(cat "$dir/out")"
kill -KILL "$(pid_of 1)" 2>/dev/null || :
"$info" --flight "$dir/flight" >"$dir/flights"
grep -q "$named" "$dir/flights" || fail "given up: $(cat "$dir/flights")"
grep -q "TAMIS_E_TIMEOUT" "$dir/flights" || fail "not lost: $(cat "$dir/flights")"
unset TAMIS_TIMEOUT_MS TAMIS_FLIGHT
goes_on "rank 1 hung"

# One rank gets a signal; all end after the same step, with a set of it.
for signal in TERM USR1; do
    begin --save-seconds 0.2 --json "$dir/stopped"
    kill -$signal "$(pid_of 3)"
    ends 3 "^rank 0: signal $(kill -l $signal), which rank 3 got, ended the run after step"
    step=$(tail -n 1 "$dir/stopped" | field step)
    [ "$(steps | tail -n 1)" = "$step" ] || fail "ended after step $step, sets of $(steps | tr '\n' ' ')"
    goes_on "SIG$signal"
done

# The second signal ends at once, though another rank does not answer. It counts half a second after
# the first, so it is sent until the process is gone.
begin --save-seconds 0.2
kill -STOP "$(pid_of 0)"
gone() {
    kill -TERM "$(pid_of 3)" || return 0
    return 1
}
end=$(($(date +%s) + 200))
until gone 2>/dev/null; do
    [ "$(date +%s)" -lt $end ] || fail "a second signal ends nothing"
    sleep 0.1
done
kill -KILL "$(pid_of 0)" 2>/dev/null || :
ends "1 137 143" ""
goes_on "two signals"
echo "survive: ok"
