#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# usage.sh PROGRAM...: what no program takes, each says in a sentence with its own name, before it
# does anything, and ends with status 2: options that there are not, numbers that are none or out of
# range. Processes of a launcher that does not start MPI are no run of so many ranks.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
for variable in $(env | sed -n 's/^\(OMPI_[A-Z_]*\|PMI[A-Z_]*\|SLURM_[A-Z_]*\|RANK\|WORLD_SIZE\)=.*/\1/p'); do
    unset "$variable"
done

# A number, and the share of entries, of each.
declare -A number=([tamis_train]=lr [tamis_perf]=beta1 [tamis_auto_bench]=seconds [tamis_wait_bench]=late-ms
    [tamis_energy]=seconds [tamis_replay]=hours [tamis_schemes]=steps [tamis_overlap]=lr
    [tamis_scale]=jitter)
declare -A density=([tamis_train]=density [tamis_perf]=density [tamis_auto_bench]=density
    [tamis_wait_bench]=density [tamis_replay]=density-max [tamis_schemes]=density [tamis_overlap]=density
    [tamis_scale]=density)

for program in "$@"; do
    name=$(basename "$program")
    expect 2 "^$name: unknown option --nonsense; options are: .*--help$" "$program" --nonsense
    expect 2 "^$name: unknown option nonsense; options are: " "$program" nonsense
    [ -n "${number[$name]:-}" ] || continue
    for value in nan -1 inf 1x ""; do
        expect 2 "^$name: --${number[$name]} .*\(is out of range\|needs a\)" \
            "$program" --"${number[$name]}" "$value"
    done
    expect 2 "^$name: option --${number[$name]} requires a value" "$program" --"${number[$name]}"
    [ -n "${density[$name]:-}" ] || continue
    for value in 10 nan -0.1 0.1x; do
        expect 2 "^$name: --${density[$name]} .*\(is out of range\|needs \)" \
            "$program" --"${density[$name]}" "$value"
    done
    case $name in
    tamis_perf | tamis_train)
        expect 2 "^$name: --set oker: a reducer has no such option" "$program" --set oker=2
        expect 2 "^$name: --set overselect: .* name=value" "$program" --set overselect
        expect 2 "^$name: --set block=64: it is given twice" "$program" --set block=32,block=64
        expect 2 "^$name: --set block=x: the value is not a number" "$program" --set overselect=2,block=x
        expect 2 "^$name: --set bucket_budget=odd: the value must be one of norm|length" \
            "$program" --set bucket_budget=odd
        expect 2 "^$name: --set density: the program sets this option itself" "$program" --set density=1
        ;;
    esac
    case $name in tamis_replay | tamis_scale) continue ;; esac # which have no ranks

    # Under each of these P processes would be P runs of one rank.
    case $name in
    tamis_schemes) alone="without --speed all ranks run in one process" ;;
    tamis_overlap) alone="is 4, but MPI sees one rank" ;;
    *) alone="is 4, but the launcher of these processes does not start MPI.*mpirun -np 4, or srun --mpi=pmix" ;;
    esac
    status=2
    [ $name != tamis_overlap ] || status=1
    expect $status "$alone" env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_NTASKS=4 "$program"
    expect $status "$alone" env WORLD_SIZE=4 RANK=0 "$program"
    [ $name = tamis_train ] || continue # the others than the first give that one time to speak
    expect $status "$alone" env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_NTASKS=4 "$program"
done

# Those that can do without MPI, told to use it: MPI knows one rank, the launcher four.
for program in "$@"; do
    "$program" --help | grep -q -- "--transport .*local.*mpi" || continue
    said=$("$program" --transport mpi --ranks 2 2>&1 || true)
    case $said in *"not in this build"*) continue ;; esac
    for variables in "OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_RANK" "PMI_SIZE PMI_RANK" \
        "SLURM_STEP_NUM_TASKS PMIX_RANK" "SLURM_STEP_NUM_TASKS SLURM_PROCID"; do
        read -r size rank <<<"$variables"
        expect 1 "$size is 4, but MPI sees one rank" env $size=4 $rank=0 "$program" --transport mpi
    done
done
echo "usage: ok"
