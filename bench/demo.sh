#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Trains a small network on Fashion-MNIST with four MPI ranks on this machine, dense and sparse, and
# compares accuracy, traffic and time: a table, build/demo/demo.jsonl and build/demo/demo.png.
#
#     bash bench/demo.sh [--no-install]
set -eu

EPOCHS=${EPOCHS:-8}
BATCH=${BATCH:-32}         # per rank
LR=${LR:-0.2}              # the best for dense among 0.05, 0.1, 0.2 and 0.4
MOMENTUM=${MOMENTUM:-0}    # 0: plain SGD
SEEDS=${SEEDS:-"1 2 3"}
RANKS=${RANKS:-4}
DATA=${DATA:-/usr/share/datasets/fashion-mnist}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
. tests/support/packages.sh
. bench/build.sh

install=()
case "$*" in
    "") ;;
    --no-install) install=(--no-install) ;;
    *) echo "usage: bash bench/demo.sh [--no-install]" >&2; exit 2 ;;
esac
need_packages "${install[@]}" cmake ninja-build gcc libc6-dev pkg-config libopenmpi-dev openmpi-bin \
    libopenblas-dev libjansson-dev zlib1g-dev libxxhash-dev dataset-fashion-mnist \
    python3-matplotlib

TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

build_programs build/release tamis_train
train=$(find_program build/release tamis_train)
out=build/demo
mkdir -p $out
rm -f $out/*

# Ranks share the cores: one thread each. OpenBLAS would otherwise start one per core and rank.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1

optimizer=(--optimizer sgd)
[ "$MOMENTUM" = 0 ] || optimizer=(--optimizer momentum --momentum "$MOMENTUM")

files=()
run() { # scheme, density, seed
    local file=$out/$1-$2-seed$3.jsonl
    printf '%-6s density %-6s seed %s ... ' "$1" "$2" "$3"
    SECONDS=0
    tests/support/mpirun.sh "$RANKS" 300 "$train" --workload mlp --data "$DATA" \
        --scheme "$1" --density "$2" --epochs "$EPOCHS" --batch "$BATCH" \
        "${optimizer[@]}" --lr "$LR" --lr-decay cosine --seed "$3" --transport mpi \
        --json "$file" --quiet
    echo "done in $SECONDS s"
    files+=("$file")
}

for seed in $SEEDS; do run dense 1 "$seed"; done
for seed in $SEEDS; do run tamis 0.01 "$seed"; done
for seed in $SEEDS; do run tamis 0.001 "$seed"; done
first=${SEEDS%% *}
run micro 0.01 "$first"
run deft 0.01 "$first"

echo
/usr/bin/python3 bench/plot.py --out $out "${files[@]}"
echo
echo "Wrote $out/demo.jsonl and $out/demo.png"
