#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Does sparse training learn what dense training learns? Workloads x optimizers x schemes x seeds, with
# tuned learning rates; bench/lab/fidelity.py says how. Tables and plots go to build/fidelity.
#
#     bash bench/lab/fidelity.sh [--quick] [--only mlp|cnn|lm] [--rows PATTERN] [--no-install]
#
#     --quick      few steps, one seed, rates that are not tuned
#     --rows       dense, and variants whose names match
#
# The full form takes hours; if stopped, it resumes where it was.
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec </dev/null
. tests/support/packages.sh
. bench/build.sh

options=()
install=()
while [ $# -gt 0 ]; do
    case $1 in
        --quick) options+=(--quick) ;;
        --rows) options+=(--rows "${2-}"); shift ;;
        --only) options+=(--only "${2-}"); shift ;;
        --no-install) install=(--no-install) ;;
        *)
            echo "usage: bash bench/lab/fidelity.sh [--quick] [--only mlp|cnn|lm] [--rows PATTERN] [--no-install]" >&2
            exit 2
            ;;
    esac
    shift
done
need_packages "${install[@]}" cmake ninja-build gcc libc6-dev pkg-config libopenmpi-dev \
    libopenblas-dev libjansson-dev zlib1g-dev libxxhash-dev dataset-fashion-mnist bible-kjv \
    python3-matplotlib

build_programs "${BUILD:=build/release}" tamis_train
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 # the ranks already run in parallel
/usr/bin/python3 bench/lab/fidelity.py --train "$(find_program "$BUILD" tamis_train)" \
    --out "${OUT:-build/fidelity}" "${options[@]}"
