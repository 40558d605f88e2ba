#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh TREE TRAIN: the scripts of bench/slurm on a Slurm of four pretended nodes (cluster.sh): a job on
# one node, one on several that is queued again and goes on, and the scaling run with its report. Exit 77, with
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
saved() { [ "$(find . -name "$1*.state" | wc -l)" = 3 ]; }

# As a job whose time is over: its script gets the signal and has it queued again.
stop_and_go_on() { # tree
    sbatch -N 3 --ntasks-per-node=1 "$1/bench/slurm/nodes.sbatch" --steps 800 --save-every 50 --quiet
    await 60 saved tamis-2.step50.
    scancel --batch -s TERM 2
    await 60 is 2 PENDING
    await 60 cleaned # Slurm would wait for two minutes
    scontrol update JobId=2 StartTime=now
    await 90 is 2 COMPLETED
    python3 - tamis-2.jsonl <<'END'
import json, sys
summary = [json.loads(line) for line in open(sys.argv[1])][-1]
steps = summary["steps"]
assert summary["record"] == "summary" and summary["ranks"] == 3, summary
assert steps in range(50, 800, 50), summary
print(f"queued again, went on with {steps} more steps")
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
