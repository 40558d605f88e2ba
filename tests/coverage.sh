#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Which lines of the library the tests reach, by gcov, and which that report a failure they do not.
# In a build of its own, without CUDA, NCCL and Python. A process that is killed writes no counts.
#
#     bash tests/coverage.sh [--report] [LABELS]
#
#     LABELS     of the tests to run, a regular expression; else those below, but for the long ones
#     --report   of what ran last; no build, no tests
set -eu

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
exec </dev/null
build=build/coverage
run=yes
[ "${1:-}" != --report ] || { run=no; shift; }
labels=${1:-^(unit|multi|energy|mpi|fuzz|faults)$}

if [ $run = yes ]; then
    cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="--coverage -O1" \
        -DTAMIS_TESTS=ON -DTAMIS_MPI=AUTO -DTAMIS_BENCH=OFF -DTAMIS_CUDA=OFF -DTAMIS_NCCL=OFF \
        -DTAMIS_PYTHON=OFF >/dev/null
    cmake --build $build -j "$(nproc)" | tail -n 1
    find $build -name '*.gcda' -delete
    ctest --test-dir $build -L "$labels" -LE slow -j "$((2 * $(nproc)))" | tail -n 5
fi

# An object per source and library: the counts of a line are the sum over them.
find "$top/$build" -name '*.gcda' -path '*.dir/*' |
    grep -E "/(lib|kernels|collectives)/CMakeFiles/" >$build/counts.txt
[ -s $build/counts.txt ] || { echo "no counts: run it without --report" >&2; exit 1; }
xargs gcov --json-format --stdout --branch-probabilities <$build/counts.txt 2>/dev/null |
    python3 tests/coverage.py "$top"
