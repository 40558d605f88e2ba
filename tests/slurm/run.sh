#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh TREE TRAIN: the scripts of bench/slurm on a Slurm of four pretended nodes (cluster.sh): a job on
# one node, one on several that is stopped and goes on, and the scaling run with its report. Exit 77, with
# the reason, where there can be no Slurm. OUT: a folder for the report.
set -u

tree=$1 train=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OUT=${OUT:-$work/out} PROGRAM=$train TREE=$tree LOGS=$work/logs

# Ranks of all nodes share processors and /dev/shm, where Open MPI's own names would collide.
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl=self,tcp

await() { # seconds, command...
    local end=$((SECONDS + $1))
    until "${@:2}"; do
        [ $SECONDS -lt $end ] || { echo "not within $1 s: ${*:2}"; return 1; }
        sleep 0.1
    done
}
is() { [ "$(squeue -h -j "$1" -t all -o %T)" = "$2" ]; }
cleaned() { ! pgrep -x slurmstepd >/dev/null; }
saved() { ls "$1"/* >/dev/null 2>&1; }

# As a job whose time is over: its ranks get the signal, save and end; it is queued again.
stop_and_go_on() { # tree
    sbatch -N 3 --ntasks-per-node=1 "$1/bench/slurm/nodes.sbatch" --steps 800 --save-every 50 --quiet
    await 60 saved tamis-states-2
    scancel -s TERM 2
    await 60 is 2 PENDING
    cp tamis-2.jsonl first.jsonl
    await 60 cleaned # Slurm would wait for two minutes
    scontrol update JobId=2 StartTime=now
    await 90 is 2 COMPLETED
    python3 - first.jsonl tamis-2.jsonl <<'END'
import json, sys
first, second = ([json.loads(line) for line in open(name)][-1] for name in sys.argv[1:])
assert first["record"] == "stopped" and second["record"] == "summary" and second["ranks"] == 3
assert 0 < first["step"] < 800 and first["step"] + second["steps"] == 800, (first, second)
print(f"stopped after step {first['step']}, went on with {second['steps']} more")
END
}

jobs() { # tree, train: inside the cluster
    set -eu
    cd "$OUT"
    sbatch -W --ntasks-per-node=2 "$1/bench/slurm/one_node.sbatch" --steps 20 --quiet
    grep -q '"record": *"summary"' tamis-1.jsonl
    stop_and_go_on "$1"
    sbatch -W -N 4 --ntasks-per-node=1 "$1/bench/slurm/scaling.sbatch" --steps 20 --out "$OUT/scaling" \
        --program "$2" --batch 8
    cat "$OUT/scaling/scaling.md"
    [ "$(grep -c '^| [124] |' "$OUT/scaling/scaling.md")" -eq 12 ] # 2 kinds, 2 schemes, 3 numbers
    # Over so few ranks, too, all must end in the same way.
    ! srun --mpi=none -n 2 "$2" --steps 1 --quiet >alone.txt 2>&1
    grep 'does not start MPI' alone.txt
}
export -f await is cleaned saved stop_and_go_on jobs
mkdir -p "$OUT"
timeout -s KILL 300 bash "$tree/tests/slurm/cluster.sh" 4 2 bash -c 'jobs "$@"' _ "$tree" "$train"
status=$?
[ $status -eq 0 ] || [ $status -eq 77 ] || {
    cat "$OUT"/slurm-*.out
    for log in "$LOGS"/*.log; do echo "-- $log"; tail -n 5 "$log"; done
}
exit $status
