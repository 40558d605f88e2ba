#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Builds the library and runs its tests. The last line is "N passed, N failed[, N skipped]".
#
#     bash tests/run.sh [--all] [--slow] [--no-install]
#
#                    release, without code for a GPU: all tests but the long ones
#     --all          the builds dev, with the sanitizers of addresses and undefined behaviour, and tsan, with
#                    that of threads, too; with code for a GPU
#     --slow         the long tests in place of the others, with --all also in dev
#     --no-install   do not install missing Debian packages, name them and stop; nor nvcc
#
# Which tests a build runs is said in their heads (tests/CMakeLists.txt). The Python package is built and
# tested in release only, with Debian's Python and torch; its wheel in every CPython of the machine.
#
# CUDA is tested without a GPU (tests/cuda), with the headers of a toolkit; compiling it for one needs
# nvcc, too. Both are put into build/nvcc where the machine has none and the Python package index can
# be reached.
#
# A few of many similar cases are tried, and every second long test of torch: TEST_DRAW, a number that
# is printed, chooses them. It follows from the commit, so what has passed passes again.
# TEST_WHOLE=1 runs all tests. A test by itself tries all its cases.
#
# TAMIS_WERROR=ON makes compiler warnings errors in release too.
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

# Prints one number for one commit.
draw_of_commit() {
    local number
    read -r number _ < <(git rev-parse HEAD 2>/dev/null | cksum)
    echo $((number % 1000))
}

builds=release
select=(--label-exclude '^(slow|long|elsewhere)$')
gpu=OFF
install=() slow_packages=''
for argument in "$@"; do
    case $argument in
        --all)
            builds="release dev tsan"
            gpu=AUTO
            ;;
        --slow)
            select=(--label-regex '^slow$')
            gpu=AUTO
            slow_packages="munge slurm-wlm python3-matplotlib"
            ;;
        --no-install) install=(--no-install) ;;
        *) echo "usage: bash tests/run.sh [--all] [--slow] [--no-install]" >&2; exit 2 ;;
    esac
done

[ -z "$slow_packages" ] || builds=${builds% tsan} # which has no long tests

# Similar cases are drawn by it (tests/support/ranks.h).
export TEST_FEW=1 TEST_DRAW=${TEST_DRAW-$(draw_of_commit)}

need_packages "${install[@]}" cmake ninja-build ccache gcc g++ libc6-dev pkg-config libopenmpi-dev libucx-dev \
    openmpi-bin libopenblas-dev libcmocka-dev libjansson-dev zlib1g-dev libxxhash-dev \
    dataset-fashion-mnist iproute2 python3-dev python3-numpy python3-torch python3-mpi4py \
    python3-pytest python3-pip python3-setuptools python3-wheel \
    clang libclang-rt-14-dev $slow_packages || exit 1
find_nvcc "${install[@]}" "$top/build/nvcc"

TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

share_objects

# A word to this script, not to the library, which warns about settings that it does not know.
werror=${TAMIS_WERROR:+-DTAMIS_WERROR=$TAMIS_WERROR}
unset TAMIS_WERROR

# What is tested may not shrink because something is missing here.
parts() { # build
    local demanded="TESTS MPI UCX OPENMP BENCH"
    case $1 in
        release)
            demanded+=" PYTHON LAB"
            printf -- "-DTAMIS_%s=$gpu " CUDA NCCL # also where the last run said something else
            printf -- '-DCMAKE_CUDA_ARCHITECTURES=90-real ' # one: nvcc is half of the build
            ;;
        tsan) demanded=TESTS ;;
    esac
    printf -- '-DTAMIS_%s=ON ' $demanded
}

# Every second long test of torch: these go through the same hooks.
left_out() { # build -> names
    [ -z "${TEST_WHOLE:-}" ] || return
    ctest --preset "$1" -N "${select[@]}" -R '^python[.]torch_' | sed -n 's/^ *Test *#[0-9]*: //p' | sort |
        awk -v draw="$TEST_DRAW" '(NR + draw) % 2' | paste -s -d ' '
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
    left=
    [[ ${select[*]} != *slow\$ ]] || left=$(left_out "$build")
    [ -z "$left" ] || echo "left out: $left"
    $steady ctest --preset "$build" -j "$((4 * $(nproc)))" --no-tests=error --output-junit "$junit" \
        "${select[@]}" --exclude-regex "^(${left// /|})\$"
    count_tests "$junit" $?
done
finish
