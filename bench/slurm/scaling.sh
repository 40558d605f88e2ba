#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# How training scales from 1 to N nodes, dense beside sparse: weak, with as many samples for each rank, and
# strong, with as many in each step. Writes scaling.jsonl, scaling.md and scaling.png.
#
#     bash bench/slurm/scaling.sh --most NODES [--per-node RANKS] [--out FOLDER] [--steps N]
#         [--batch N] [--launch "CMD"] [--program FILE] [-- OPTION...]
#
#     --most      1, 2, 4, ... nodes up to this number, and this number
#     --batch     weak: samples of each rank and step [32]; strong: this times all ranks of all nodes
#     --launch    starts ranks, with %n for the nodes and %r for the ranks. Slurm, in an allocation:
#                 "srun --mpi=pmix -N %n -n %r" (the default). A file of hosts, for Open MPI:
#                 "mpirun --hostfile hosts --map-by ppr:4:node -np %r"; for MPICH:
#                 "mpirun -f hosts -ppn 4 -np %r"
#     --program   tamis_train, if not in PATH
#     OPTION      of tamis_train, as --data FOLDER --density 0.001 --hidden 2048
set -eu

most='' each=1 out=tamis-scaling steps=200 batch=32 program=tamis_train
launch='srun --mpi=pmix -N %n -n %r'
while [ $# -gt 0 ]; do
    case $1 in
        --most) most=$2 ;;
        --per-node) each=$2 ;;
        --out) out=$2 ;;
        --steps) steps=$2 ;;
        --batch) batch=$2 ;;
        --launch) launch=$2 ;;
        --program) program=$2 ;;
        --) shift; break ;;
        *) sed -n 's/^#     bash/usage: bash/p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
    shift 2
done
[[ $most =~ ^[1-9][0-9]*$ && $each =~ ^[1-9][0-9]*$ ]] ||
    { echo "scaling.sh: --most and --per-node are numbers from 1 on" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out"
: >"$out/scaling.jsonl"

run() { # kind, nodes, batch, scheme
    local ranks=$(($2 * each)) command=${launch//%n/$2}
    command=${command//%r/$ranks}
    printf '%-6s %3s nodes, %4s ranks, %-6s ' "$1" "$2" "$ranks" "$4"
    # shellcheck disable=SC2086
    if $command "$program" --scheme "$4" --steps "$steps" --batch "$3" --quiet --json "$out/run.jsonl" \
        "${options[@]}" >"$out/said.txt" 2>&1 </dev/null; then
        grep '"record": *"summary"' "$out/run.jsonl" |
            sed "s/^{/{\"kind\":\"$1\",\"nodes\":$2,\"batch\":$3,/" >>"$out/scaling.jsonl"
        echo done
    else
        echo "failed: $(tail -n 1 "$out/said.txt")" # the others may still be of use
    fi
}

options=("$@")
numbers=()
for ((nodes = 1; nodes < most; nodes *= 2)); do numbers+=("$nodes"); done
for nodes in "${numbers[@]}" "$most"; do
    for scheme in dense tamis; do
        run weak "$nodes" "$batch" $scheme
        run strong "$nodes" $((batch * most / nodes)) $scheme
    done
done
rm -f "$out/run.jsonl" "$out/said.txt"
python=python3 # or Debian's, which has Debian's matplotlib
"$python" -c 'import matplotlib' 2>/dev/null || [ ! -x /usr/bin/python3 ] || python=/usr/bin/python3
"$python" "$here/report.py" "$out"
