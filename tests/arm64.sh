#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# 64-bit Arm without such a machine: cross-compiles the library, with OpenMP and without MPI, and runs
# tests of it under qemu-user. Then random cases of everything: digests of what the ranks got must be
# the same with all kernels, those of this processor and those of the emulated one. The last line is
# "N passed, N failed[, N skipped]".
#
#     bash tests/arm64.sh
#
# Compiler and qemu are packages of Debian; xxHash and cmocka for arm64 are unpacked into build/arm64.
# Where they are not to be had it is skipped, with the reason.
set -u

# As in tests/run.sh.
export TEST_FEW=1 TEST_DRAW=${TEST_DRAW-$(date +%-j)}

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

# All of unit but what takes long under qemu, and what ranks compute.
unit=$(ls tests/unit | sed -n 's/^test_\(.*\)\.c$/\1/p' |
    grep -vxE 'bucket|index_codec|coll|coll_faults|device|ok_topk')
multi="golden local mixed nonfinite rows sum_order types update norm_matching values"
cases="--seed 1 --cases 300"
triplet=aarch64-linux-gnu
root=$top/build/arm64/root

skip() { # reason
    echo "skipped: $1"
    skipped=$((skipped + 1))
}

build() { # name, targets, options of cmake...
    local log=$TMPDIR/$1.log
    cmake -S . -B "build/arm64/$1" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTAMIS_TESTS=ON \
        -DTAMIS_OPENMP=ON -DTAMIS_MPI=OFF -DTAMIS_BENCH=OFF -DTAMIS_CUDA=OFF -DTAMIS_NCCL=OFF \
        -DTAMIS_PYTHON=OFF "${@:3}" >"$log" 2>&1 &&
        cmake --build "build/arm64/$1" --target $2 >>"$log" 2>&1 && return
    cat "$log"
    echo "The build \"$1\" failed."
    failed=$((failed + 1))
    finish
}

# Neither compilers nor libraries for it may join a product and a sum.
fused() {
    $triplet-objdump -d build/arm64/cross/libtamis_static.a | grep -E '\sf(n?m(add|sub)|ml[as])\s'
}

# If the program computes with other kernels than those asked for, they are missing here.
digest() { # kernels, program...
    local kernels=$1 out
    out=$(TAMIS_CPU=$kernels "${@:2}" $cases | tee "$TMPDIR/digest" |
        sed -n 's/^digest \([0-9a-f]*\), kernels \(.*\)$/\1 \2/p')
    if [ "${out#* }" != "$kernels" ] && grep -q '^[0-9]* passed, 0 failed$' "$TMPDIR/digest"; then
        skip "digest of $kernels: this processor lacks these kernels"
        return
    fi
    : "${first:=${out% *}}"
    if grep -q '^[0-9]* passed, 0 failed$' "$TMPDIR/digest" && [ "${out% *}" = "$first" ]; then
        echo "digest of $kernels, ${2##*/}: ${out% *}"
        passed=$((passed + 1))
    else
        cat "$TMPDIR/digest"
        echo "digest of $kernels, ${2##*/}: not $first"
        failed=$((failed + 1))
    fi
}

TMPDIR=$(mktemp -d) || exit 1
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

if [ "$(uname -m)" = aarch64 ]; then
    skip "this is such a machine: tests/run.sh tests it"
    finish
fi
if ! need_packages cmake ninja-build ccache gcc libc6-dev pkg-config libcmocka-dev libxxhash-dev \
        gcc-$triplet libc6-dev-arm64-cross qemu-user ||
    ! unpack_foreign arm64 "$root" libxxhash-dev libcmocka-dev libcmocka0; then
    skip "no packages for arm64"
    finish
fi
share_objects

build native fuzz_properties
export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_LIBDIR=$root/usr/lib/$triplet/pkgconfig
build cross "fuzz_properties test_unit test_multi" \
    --toolchain cmake/aarch64.cmake

pattern="^(unit\.($(tr -s ' \n' '|' <<<"$unit" | sed 's/|$//'))|multi\.(${multi// /|}))$"
ctest --test-dir build/arm64/cross -R "$pattern" -j "$((4 * $(nproc)))" --no-tests=error \
    --output-on-failure --output-junit "$TMPDIR/cross.xml"
count_tests "$TMPDIR/cross.xml" $?

if fused; then
    echo "fused multiply-adds"
    failed=$((failed + 1))
else
    passed=$((passed + 1))
fi

first=
for kernels in portable avx2 avx512; do
    digest $kernels build/arm64/native/tests/fuzz/properties
done
for kernels in portable neon; do
    digest $kernels qemu-aarch64 -L /usr/$triplet build/arm64/cross/tests/fuzz/properties
done
finish
