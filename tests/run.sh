#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Builds the library three ways and runs the tests in each, but for the long ones, labelled `slow`:
# release; dev, with the sanitizers of addresses and undefined behaviour; tsan, with that of threads.
# The last line is "N passed, N failed[, N skipped]".
#
#     bash tests/run.sh [--quick | --slow] [--no-install]
#
#     --quick        release only, without code for a GPU
#     --slow         the long tests, in release and dev: a part of tests/full.sh
#     --no-install   do not install missing Debian packages, name them and stop; nor nvcc
#
# The Python package is built and tested in release only, with Debian's Python and torch; its wheel in
# every CPython of the machine.
#
# CUDA is tested without a GPU (tests/cuda), with the headers of a toolkit; compiling it for one needs
# nvcc, too. Both are put into build/nvcc where the machine has none and the Python package index can
# be reached.
#
# Of many alike cases few are tried, each day others, and so are whole tests that take long and have
# many like them: TEST_DRAW, a number that is printed, chooses them again; TEST_WHOLE=1 tries all tests.
# A test by itself tries all its cases.
#
# TAMIS_WERROR=ON makes compiler warnings errors in release too. ccache is used where there is one.
set -u

# Of many alike cases each day tries others (tests/support/ranks.h).
export TEST_FEW=1 TEST_DRAW=${TEST_DRAW-$(date +%-j)}

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

builds="release dev tsan"
select=(--label-exclude '^(slow|long)$')
gpu=AUTO
install=() slow_packages=''
for argument in "$@"; do
    case $argument in
        --quick)
            builds=release
            gpu=OFF
            ;;
        --slow)
            builds="release dev" # ThreadSanitizer has no use for them, see tests/CMakeLists.txt
            select=(--label-regex '^slow$')
            slow_packages="munge slurm-wlm"
            ;;
        --no-install) install=(--no-install) ;;
        *) echo "usage: bash tests/run.sh [--quick | --slow] [--no-install]" >&2; exit 2 ;;
    esac
done

need_packages "${install[@]}" cmake ninja-build gcc g++ libc6-dev pkg-config libopenmpi-dev \
    openmpi-bin libopenblas-dev libcmocka-dev libjansson-dev zlib1g-dev libxxhash-dev \
    dataset-fashion-mnist iproute2 python3-dev python3-numpy python3-torch python3-mpi4py \
    python3-pytest python3-pip python3-setuptools python3-wheel \
    clang libclang-rt-14-dev $slow_packages || exit 1
find_nvcc "${install[@]}" "$top/build/nvcc"

TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER-ccache}
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER-ccache}
    export CMAKE_CUDA_COMPILER_LAUNCHER=${CMAKE_CUDA_COMPILER_LAUNCHER-ccache}
fi

# A word to this script, not to the library, which warns about settings that it does not know.
werror=${TAMIS_WERROR:+-DTAMIS_WERROR=$TAMIS_WERROR}
unset TAMIS_WERROR

# What is tested may not shrink because something is missing here.
parts() { # build
    local demanded="TESTS MPI OPENMP BENCH"
    case $1 in
        release)
            demanded+=" PYTHON"
            printf -- "-DTAMIS_%s=$gpu " CUDA NCCL # also where the last run said something else
            printf -- '-DCMAKE_CUDA_ARCHITECTURES=90-real ' # one: nvcc is half of the build
            ;;
        tsan) demanded=TESTS ;;
    esac
    printf -- '-DTAMIS_%s=ON ' $demanded
}

# Tests that this run leaves out: of those whose names match, one in SHARE runs today. The others go
# through the same threads, kernels and hooks.
for_another_day() { # build -> names
    local pattern share=2
    case $builds:$1 in
        *:tsan) pattern='^(multi|cuda)[.]' ;;
        'release dev:dev') pattern='^cuda[.]' share=4 ;;
        'release dev:release') pattern='^python[.]torch_' ;;
        *) return ;;
    esac
    [ -z "${TEST_WHOLE:-}" ] || return
    ctest --preset "$1" -N "${select[@]}" -R "$pattern" | sed -n 's/^ *Test *#[0-9]*: //p' | sort |
        awk -v share=$share -v draw="$TEST_DRAW" '(NR + draw) % share != 0' | paste -s -d ' '
}

# ThreadSanitizer of gcc 12 cannot start where the kernel spreads addresses more widely than it
# was written for; without spreading it can.
steady=
setarch -R true 2>/dev/null && steady="setarch -R"

echo "TEST_DRAW=$TEST_DRAW"
for build in $builds; do
    echo "== $build"
    log=$TMPDIR/$build.log
    if ! { cmake --preset "$build" $(parts "$build") $werror &&
           cmake --build --preset "$build"; } >"$log" 2>&1; then
        cat "$log"
        echo "The build \"$build\" failed."
        failed=$((failed + 1))
        continue
    fi
    grep -E '^-- (MPI|OPENMP|CUDA|NCCL|PYTHON|BENCH|TESTS):' "$log"
    junit=$TMPDIR/$build.xml
    left=$(for_another_day "$build")
    [ -z "$left" ] || echo "for another day: $left"
    $steady ctest --preset "$build" -j "$((4 * $(nproc)))" --no-tests=error --output-junit "$junit" \
        "${select[@]}" --exclude-regex "^(${left// /|})\$"
    count_tests "$junit" $?
done
finish
