#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Measures how much of an exchange the backward pass hides: steps with and without overlap, dense and
# sparse, over emulated links between four hosts and in shared memory. Prints tables; writes records
# (overlap.jsonl) and a plot (overlap.png) into build/overlap.
#
#     bash bench/lab/overlap.sh [--quick] [--no-install]
#
#     --quick    the link of 1 Gbit/s and eight buckets alone: under two minutes instead of six
#
# Slow links need the right to make network namespaces (root); without it the script says so and
# measures only shared memory.
set -eu

RANKS=4
# With this model a tuned dense exchange over 1 Gbit/s takes over four times as long as computing.
LARGE="--hidden 1024 --depth 16 --batch 96"
SMALL="--hidden 512 --depth 16 --batch 96" # for the sweep, whose slowest link takes a second a step

# MPI_Allreduce at its best here. By default, messages that cross over TCP take turns; sending
# instead of putting lets both directions run. Do not add btl_tcp_links 2: with it Open MPI 4.1.4
# hangs when large messages cross (without this library, too).
TUNED=(--mca btl_tcp_flags 1 --mca coll_tuned_use_dynamic_rules 1
    --mca coll_tuned_allreduce_algorithm 5 --mca coll_tuned_allreduce_algorithm_segmentsize 131072)

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null
. tests/support/packages.sh
. bench/build.sh

quick=''
install=()
for argument in "$@"; do
    case $argument in
        --quick) quick=yes ;;
        --no-install) install=(--no-install) ;;
        *) echo "usage: bash bench/lab/overlap.sh [--quick] [--no-install]" >&2; exit 2 ;;
    esac
done
need_packages "${install[@]}" cmake ninja-build gcc libc6-dev pkg-config libopenmpi-dev openmpi-bin \
    libopenblas-dev libjansson-dev zlib1g-dev libxxhash-dev python3-matplotlib iproute2 util-linux

build_programs build/release tamis_overlap cluster_link
overlap=$(find_program "$PWD/build/release" tamis_overlap)
link=$(find_program "$PWD/build/release" cluster_link)
cluster=$PWD/bench/cluster/cluster.sh
out=$PWD/build/overlap
mkdir -p "$out"
rm -f "$out"/*
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

measure=("$overlap" --baseline "segmented ring, ${TUNED[*]}")
records=()

in_memory() { # name of the records, options...
    records+=("$out/$1.jsonl")
    echo
    echo "== shared memory"
    tests/support/mpirun.sh $RANKS 600 "${TUNED[@]}" "${measure[@]}" --link memory \
        --json "$out/$1.jsonl" "${@:2}"
}

# First measures the link without this library.
over_link() { # rate, name of the records, options...
    records+=("$out/$2.jsonl")
    echo
    echo "== $1 between $RANKS hosts"
    # shellcheck disable=SC2016
    "$cluster" with $RANKS "$1" bash -c '"$0" run 4 60 --mca btl_tcp_flags 1 "$1" &&
        "$0" run 4 600 "${@:2}"' "$cluster" "$link" "${TUNED[@]}" "${measure[@]}" --link "$1" \
        --json "$out/$2.jsonl" "${@:3}"
}

may=yes
"$cluster" check || may=''

if [ -n "$may" ]; then
    over_link 1gbit large $LARGE --buckets 8 -n 12 -w 2
else
    echo "Only shared memory is measured."
fi
if [ -z "$quick" ]; then
    sweep=($SMALL --buckets 1,2,4,8,16,planned --density 0.01)
    in_memory memory "${sweep[@]}" -n 10 -w 2
    for rate in ${may:+10gbit 1gbit}; do
        over_link $rate "$rate" "${sweep[@]}" --link-gbit "${rate%gbit}" -n 8 -w 2
    done
    [ -z "$may" ] || over_link 200mbit 200mbit "${sweep[@]}" --link-gbit 0.2 -n 4 -w 1
    /usr/bin/python3 bench/lab/overlap_plot.py "$out/overlap.png" "${records[@]}"
    echo
    echo "Wrote $out/overlap.png"
elif [ -z "$may" ]; then
    in_memory memory $SMALL --buckets 8 -n 10 -w 2
fi
[ ${#records[@]} -eq 0 ] || cat "${records[@]}" >"$out/overlap.jsonl"
echo "Wrote $out/overlap.jsonl"
