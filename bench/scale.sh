#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# How the exchange scales: 2 to 64 ranks on this machine beside tuned MPI, as threads, as processes and on
# emulated hosts; bytes sent against those predicted; and simulated, 4 to 4096 ranks. Writes a page with tables
# and a plot, build/scale/scale.md.
#
#     bash bench/scale.sh [--quick] [--no-install] [--mpirun "CMD" [--ranks "P P ..."]]
#
#     --quick     fewer ranks and repetitions: at most two minutes
#     --mpirun    on a cluster: ranks are started by CMD P PROGRAM..., as in
#                 --mpirun "mpirun --hostfile hosts -np" or --mpirun "srun --mpi=pmix -n"; then nothing is
#                 emulated
#     --ranks     how many to start so
#
# Emulated hosts need the right to make network namespaces (root); without it they are left out.
set -eu

# MPI_Allreduce at its best here; bench/lab/overlap.sh says why these.
TUNED=(--mca btl_tcp_flags 1 --mca coll_tuned_use_dynamic_rules 1
    --mca coll_tuned_allreduce_algorithm 5 --mca coll_tuned_allreduce_algorithm_segmentsize 131072)
MESSAGE_US=5 # of a pair over TCP, as measured elsewhere: what cluster_link cannot tell apart

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
. tests/support/packages.sh
. bench/build.sh

usage() {
    echo 'usage: bash bench/scale.sh [--quick] [--no-install] [--mpirun "CMD" [--ranks "P ..."]]' >&2
    exit 2
}

quick='' launch='' given_ranks="2 4 8 16 32 64"
install=()
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes ;;
        --no-install) install=(--no-install) ;;
        --mpirun) launch=${2-}; [ -n "$launch" ] || usage; shift ;;
        --ranks) given_ranks=${2-}; [ -n "$given_ranks" ] || usage; shift ;;
        *) usage ;;
    esac
    shift
done
need_packages "${install[@]}" cmake ninja-build gcc libc6-dev pkg-config libopenmpi-dev openmpi-bin \
    libjansson-dev libxxhash-dev python3-matplotlib iproute2 util-linux

build_programs "${BUILD:=build/release}" tamis_perf tamis_scale cluster_link
perf=$(find_program "$PWD/$BUILD" tamis_perf)
scale=$(find_program "$PWD/$BUILD" tamis_scale)
link=$(find_program "$PWD/$BUILD" cluster_link)
cluster=$PWD/bench/cluster/cluster.sh
out=$PWD/build/scale
mkdir -p "$out"
rm -f "$out"/*
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

n=1000000 times=20 threads="2 4 8 16 32 64" processes="2 4 8 16 32 64" hosts="4 8 16" slow="4 8"
if [ -n "$quick" ]; then
    times=5 threads="4 16" processes="2 4 8" hosts=4 slow=''
fi
measure=(--elements $n --density 0.01 -n $times -w 3 -c 0)

# One run that fails, or takes too long on a busy machine, must not lose the others.
try() { # name, ranks, command...: a record more in measured-NAME.jsonl
    local name=$1 ranks=$2
    shift 2
    printf '%-10s %3s ranks ... ' "$name" "$ranks"
    SECONDS=0
    if "$@" --json "$out/one.jsonl" >"$out/said.txt" 2>&1; then
        cat "$out/one.jsonl" >>"$out/measured-$name.jsonl"
        echo "done in $SECONDS s"
    else
        echo "failed after $SECONDS s: $(tail -n 1 "$out/said.txt")"
    fi
}

verify() { # ranks, command that starts them...
    local ranks=$1
    shift
    "$@" "$scale" --verify --elements $n --density 0.01 --steps $times --json "$out/one.jsonl"
    cat "$out/one.jsonl" >>"$out/verify.jsonl"
}

# Run inside a cluster of four emulated hosts.
over_hosts() { # rate, numbers of ranks...
    local rate=$1 ranks
    shift
    "$cluster" run 4 60 --mca btl_tcp_flags 1 "$link" 1048576 >"$out/link-$rate.json" || rm -f "$out/link-$rate.json"
    for ranks in "$@"; do
        try "$rate" "$ranks" "$cluster" run "$ranks" 200 "${TUNED[@]}" "$perf" "${measure[@]}"
    done
}
export -f try over_hosts
declare -p measure TUNED >"$out/arrays.sh"

if [ -n "$launch" ]; then
    for ranks in $given_ranks; do
        # shellcheck disable=SC2086
        try given "$ranks" $launch "$ranks" "$perf" "${measure[@]}"
        # shellcheck disable=SC2086
        verify "$ranks" $launch "$ranks"
    done
    where="Ranks were started by \`$launch\`."
else
    for ranks in $threads; do
        try threads "$ranks" "$perf" --transport local --ranks "$ranks" "${measure[@]}"
    done
    for ranks in $processes; do
        try processes "$ranks" tests/support/mpirun.sh "$ranks" 200 "${TUNED[@]}" "$perf" "${measure[@]}"
    done
    for ranks in 2 4 8 $([ -n "$quick" ] || echo 16); do
        verify "$ranks" tests/support/mpirun.sh "$ranks" 200
    done
    where="All ranks ran on one machine with $(getconf _NPROCESSORS_ONLN) processors,"
    where+=" load $(cut -d' ' -f1 /proc/loadavg) at the end."
    if "$cluster" check; then
        export out cluster link perf
        # shellcheck disable=SC2016,SC2086
        "$cluster" with 4 1gbit bash -c '. "$out/arrays.sh"; over_hosts 1gbit "$@"' _ $hosts
        # shellcheck disable=SC2016,SC2086
        [ -z "$slow" ] ||
            "$cluster" with 4 100mbit bash -c '. "$out/arrays.sh"; over_hosts 100mbit "$@"' _ $slow
    else
        where+=" Emulated hosts cannot work here."
    fi
fi

# The emulated network, from what cluster_link measured: a message's latency there includes the processors.
for rate in 1gbit 100mbit; do
    [ -e "$out/link-$rate.json" ] || continue
    net=$(/usr/bin/python3 - "$out/link-$rate.json" $MESSAGE_US <<'END'
import json, sys
said = json.load(open(sys.argv[1]))
o = float(sys.argv[2])
print(f"{max(said['latency_us']['median'] - o, 1)},{o},{said['gbit_s']['one_way']['median']}")
END
    )
    "$scale" --net "$net" --elements $n --density 0.01 --ranks 4,8,16,64 --local-steps 100 \
        --json "$out/scale-0-$rate.jsonl" >"$out/scale-0-$rate.txt"
done
for net in ib tcp wan; do
    "$scale" --net $net --density 0.01 --local-steps 100 --json "$out/scale-$net.jsonl" | tee "$out/scale-$net.txt"
done
/usr/bin/python3 bench/scale/plot.py "$out/scale.png" "$out"/scale-{ib,tcp,wan}.jsonl
{
    echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown). $where"
    echo
    echo "Made by \`bash bench/scale.sh\`; ${n} elements, 1 %, ${times} repetitions."
} >"$out/notes.txt"
/usr/bin/python3 bench/scale/report.py "$out" >"$out/scale.md"
rm -f "$out"/{one.jsonl,said.txt,arrays.sh}
echo "Wrote $out/scale.md"
