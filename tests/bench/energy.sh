#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: slow release
#
# energy.sh TRAIN MPIRUN PYTHON REPLAY: training on two ranks of a host whose one counter, a folder in the
# form of powercap, gains 100 W: joules are counted once, add up, and go on in a run that goes on.
set -euo pipefail

train=$1 mpirun=$2 python=$3 replay=$4
export OPENBLAS_NUM_THREADS=1

fail() {
    echo "FAILED: $*"
    exit 1
}

top=$(mktemp -d)
feeder=
trap '[ -z "$feeder" ] || kill "$feeder"; rm -rf "$top"' EXIT
zone=$top/sys/class/powercap/intel-rapl:0
mkdir -p "$zone" "$top/proc/sys/kernel/random"
echo package-0 >"$zone/name"
echo 262143328850 >"$zone/max_energy_range_uj"
echo 1 >"$zone/enabled"
echo 0f0e0d0c-0001-0002-0003-000000000000 >"$top/proc/sys/kernel/random/boot_id"
echo 0 >"$zone/energy_uj"

feed() { # 100 W are 0.1 uJ in a nanosecond; a rename is never seen half done
    local begin
    begin=$(date +%s%N)
    while sleep 0.01; do
        echo $((($(date +%s%N) - begin) / 10)) >"$top/next"
        mv "$top/next" "$zone/energy_uj"
    done
}
feed &
feeder=$!

export TAMIS_SYSFS_ROOT=$top TAMIS_ENERGY=rapl
run() { # options: the summary
    bash "$mpirun" 2 100 "$train" --hidden 256 --depth 3 --quiet --json - "$@" | tail -n 1
}

begin=$(date +%s%N)
run --steps 1500 --scheme tamis --energy-log "$top/log.jsonl" --save "$top/saved" >"$top/first.json"
most=$((($(date +%s%N) - begin) / 1000000)) # ms
run --steps 1600 --scheme tamis --load "$top/saved" >"$top/second.json"
# The counter gains 100 W whatever the knobs say, so 50 W are out of reach.
run --steps 600 --scheme tamis --density 0.01 --budget 50 --pace-max 0.001 --density-min 0.005 \
    --decisions "$top/decisions.jsonl" >"$top/governed.json"
"$replay" --log "$top/decisions.jsonl" --policy budget --budget 50 --pace-max 0.001 \
    --density-min 0.005 --density-max 0.01 >"$top/verified" ||
    fail "decisions of the run are not those of a replay: $(cat "$top/verified")"
unset TAMIS_SYSFS_ROOT
TAMIS_ENERGY=none run --steps 10 >"$top/blind.json"

"$python" - "$top" "$most" <<'PYTHON' || fail "see above"
import json, sys

top, most_j = sys.argv[1], float(sys.argv[2]) * 1e-3 * 100
first, second, blind = (json.load(open(f"{top}/{name}.json")) for name in ("first", "second", "blind"))
print("joules of 100 W:", first["energy_j"], "in", first["time_s"], "s and in at most", most_j / 100)
assert first["energy_reason"] is None, first["energy_reason"]
assert 60 * first["time_s"] <= first["energy_j"] <= most_j, "one counter, counted once"

energy = first["energy"]
phases = energy["phases"]
total = sum(phase["j"] for phase in phases.values()) + energy["unattributed_j"]
assert abs(total - first["energy_j"]) < 1e-5 * total, (total, first["energy_j"])
for name in ("compute", "exchange", "apply", "optimizer", "evaluate", "idle"):
    assert name in phases, (name, phases)
assert energy["step_j"] > 0 and energy["pj_per_bit"] > 0, energy
assert energy["co2_g"] is None

assert second["energy_j"] > first["energy_j"], "a run that goes on has the joules of both parts"
assert blind["energy_j"] is None and blind["energy"] is None and blind["energy_reason"], blind

governed = json.load(open(f"{top}/governed.json"))
decisions = [json.loads(line) for line in open(f"{top}/decisions.jsonl")]
assert all(line["type"] == "decision" for line in decisions), decisions
print("decisions:", [(line["reason"], line["density"], line["pace_s"]) for line in decisions])
assert len(decisions) == 6 and any(line["pace_s"] > 0 for line in decisions), decisions
watts = [line["watts"] for line in decisions[1:]]  # a busy machine feeds late
assert 50 < sum(watts) / len(watts) < 150, decisions
assert governed["replicas_identical"] and governed["density_min"] < governed["density_max"], governed

for path in ("log.jsonl", "log.jsonl.rank1"):
    lines = [json.loads(line) for line in open(f"{top}/{path}")]
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "header" and kinds[-1] == "summary" and "window" in kinds, kinds
    windows = [line for line in lines if line["type"] == "window" and not line["overlaps"]]
    ends = [0] + [w["step1"] for w in windows]
    assert ends[:-1] == [w["step0"] for w in windows] and ends[-1] == 1500, ends
    sums = sum(w["domains"][0]["uj"] for w in windows)
    assert sums == lines[-1]["domains"][0]["uj"], (sums, lines[-1])
    assert lines[-1]["steps"] == 1500, lines[-1]
PYTHON
