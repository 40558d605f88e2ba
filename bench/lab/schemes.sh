#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Runs every preset of the library on the same gradients; writes a Markdown report, plots and records
# into build/schemes. docs/algorithm.md ("Side by side") explains each figure.
#
#     bash bench/lab/schemes.sh [--quick] [--only SECTION] [--no-install]
#
#     recorded     gradients of a short dense training run, replayed to each preset
#     synthetic    heavy-tailed gradients of changing scale
#     ranks        the same, on 1 to 32 ranks: time of accumulate and select
#     accuracy     training runs, plain SGD, the same seeds for all
#     speed        whole steps of 4 MPI ranks in shared memory, beside MPI's all-reduce
#
#     --quick      smaller and fewer: under four minutes on two idle cores
#
# Ends with status 1 if a preset breaks a rule. With --only speed no rules are checked.
set -eu

DENSITY=${DENSITY:-0.01}
DATA=${DATA:-/usr/share/datasets/fashion-mnist}
SPEED_ELEMENTS=${SPEED_ELEMENTS:-14700000}
# The presets whose time after accumulation is compared.
SPEED_SCHEMES=${SPEED_SCHEMES:-tamis,topk,oktopk}

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null
. tests/support/packages.sh
. bench/build.sh

quick=''
only=''
install=()
usage() {
    echo "usage: bash bench/lab/schemes.sh [--quick] [--only recorded|synthetic|ranks|accuracy|speed]" \
        "[--no-install]" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes ;;
        --only) only=${2-}; shift || usage ;;
        --no-install) install=(--no-install) ;;
        *) usage ;;
    esac
    shift || usage
done
case $only in '' | recorded | synthetic | ranks | accuracy | speed) ;; *) usage ;; esac
need_packages "${install[@]}" cmake ninja-build gcc libc6-dev pkg-config libopenmpi-dev openmpi-bin \
    libopenblas-dev libjansson-dev zlib1g-dev libxxhash-dev dataset-fashion-mnist \
    python3-matplotlib

build_programs "${BUILD:=build/release}" tamis_schemes tamis_train
train=$(find_program "$BUILD" tamis_train)
schemes=$(find_program "$BUILD" tamis_schemes)
out=${OUT:-build/schemes}
mkdir -p "$out"
rm -f "$out"/*.jsonl "$out"/*.png "$out"/schemes.md "$out"/gradients
presets=$("$schemes" --list | paste -sd, -)
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 # the ranks already run in parallel

if [ -n "$quick" ]; then
    record=(--hidden 64 --steps 400 --record-every 4) recorded=(--steps 100 --checks 10)
    synthetic=(--elements 262144 --steps 200 --checks 10)
    ranks=(--elements 131072 --steps 15 --checks 2)
    training=(--hidden 128 --steps 600) seeds=1 densities=$DENSITY
    speed=(--steps 5 --warmup 1)
else
    record=(--hidden 256 --steps 800 --record-every 4) recorded=(--steps 200 --checks 20)
    synthetic=(--elements 1048576 --steps 600 --checks 20)
    ranks=(--elements 262144 --steps 40 --checks 3)
    training=(--hidden 256 --epochs 4) seeds="1 2 3" densities="$DENSITY 0.001"
    speed=(--steps 20 --warmup 3)
fi

files=()
broken=0
wanted() { # section
    [ -z "$only" ] || [ "$only" = "$1" ] || return 1
    echo
    echo "== $1"
    SECONDS=0
}

replay() { # section, options...
    files+=("$out/$1.jsonl")
    "$schemes" --density "$DENSITY" --json "$out/$1.jsonl" "${@:2}" || broken=1
    echo "$SECONDS s"
}

load() { cut -d' ' -f1-3 /proc/loadavg; }

if wanted recorded; then
    "$train" --data "$DATA" --transport local --ranks 4 --scheme dense --quiet \
        --record "$out/gradients" "${record[@]}"
    replay recorded --input "$out/gradients" "${recorded[@]}"
    rm -f "$out/gradients"
fi
if wanted synthetic; then
    replay synthetic --ranks 8 "${synthetic[@]}"
fi
if wanted ranks; then
    replay ranks --ranks 1,2,4,8,16,32 "${ranks[@]}"
fi
if wanted accuracy; then
    for density in $densities; do
        for scheme in ${presets//,/ }; do
            if [ "$scheme" = dense ] && [ "$density" != "$DENSITY" ]; then continue; fi
            for seed in $seeds; do
                file=$out/train-$scheme-$density-seed$seed.jsonl
                files+=("$file")
                "$train" --data "$DATA" --transport local --ranks 4 --scheme "$scheme" \
                    --density "$density" --optimizer sgd --lr 0.2 --lr-decay cosine --seed "$seed" \
                    "${training[@]}" --json "$file" --quiet || broken=1
            done
        done
    done
    echo "$SECONDS s"
fi
if wanted speed; then
    before=$(load)
    # MPI_Allreduce at its best here, as in bench/lab/overlap.sh.
    tests/support/mpirun.sh 4 1200 --mca coll_tuned_use_dynamic_rules 1 \
        --mca coll_tuned_allreduce_algorithm 5 \
        --mca coll_tuned_allreduce_algorithm_segmentsize 131072 \
        "$schemes" --speed --schemes "$SPEED_SCHEMES" --elements "$SPEED_ELEMENTS" \
        --density 0.01,0.001 "${speed[@]}" --json "$out/speed.jsonl" || broken=1
    printf '{"record":"load","section":"speed","before":"%s","after":"%s","cores":%d}\n' \
        "$before" "$(load)" "$(getconf _NPROCESSORS_ONLN)" >"$out/load.jsonl"
    files+=("$out/speed.jsonl" "$out/load.jsonl")
    echo "$SECONDS s"
fi

# Sections without replays have no records to check presets by.
case $only in '' | recorded | synthetic | ranks) must=(--presets "$presets") ;; *) must=() ;; esac
echo
/usr/bin/python3 bench/lab/schemes_report.py --out "$out" "${must[@]}" "${files[@]}" || broken=1
cat "${files[@]}" >"$out/schemes.jsonl.new"
rm -f "${files[@]}"
mv "$out/schemes.jsonl.new" "$out/schemes.jsonl"
sed -n '/^## All presets/,/^## On/p; /^## Whole steps/,/^## Plots/p' "$out/schemes.md" |
    grep -vE '^## (On|Plots)' || :
exit $broken
