#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# abi.sh [REVISION]: may programs that were built with an earlier libtamis.so use that of the working tree?
# Compares both by abidiff, with the public headers: new functions and fields at the end of structs are
# said, everything else fails. REVISION: of git; if not given the newest tag. Exit 77, with the reason,
# where there is no tag: there was no release. Files are in build/packages/abi.
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
exec </dev/null
. tests/support/packages.sh

revision=${1:-$(git describe --tags --abbrev=0 2>/dev/null)} ||
    { echo "skipped: no tag, so no release to compare with"; exit 77; }
git rev-parse -q --verify "$revision^{commit}" >/dev/null || { echo "no revision $revision"; exit 2; }
need_packages abigail-tools cmake ninja-build gcc libc6-dev pkg-config libopenmpi-dev libxxhash-dev || exit 1

folder=$PWD/build/packages/abi
rm -rf "$folder"
mkdir -p "$folder/old/tree"
git archive "$revision" | tar -x -C "$folder/old/tree" || exit 1

build() { # tree, folder
    cmake -S "$1" -B "$2/build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DTAMIS_MPI=ON -DTAMIS_CUDA=OFF \
        -DTAMIS_NCCL=OFF -DTAMIS_PYTHON=OFF -DTAMIS_BENCH=OFF -DTAMIS_TESTS=OFF >"$2.log" 2>&1 &&
        cmake --build "$2/build" --target tamis >>"$2.log" 2>&1 && return
    tail -n 20 "$2.log"
    exit 1
}
build "$folder/old/tree" "$folder/old"
build "$PWD" "$folder/new"

printf '%s\n' '[suppress_type]' 'type_kind = struct' 'has_data_member_inserted_at = end' >"$folder/grown"
old=$folder/old/build/libtamis.so new=$folder/new/build/libtamis.so
compare() {
    abidiff --headers-dir1 "$folder/old/tree/include" --headers-dir2 include "$@" "$old" "$new"
}
compare
compare --suppressions "$folder/grown" --no-added-syms >"$folder/broken.txt" && {
    echo "ABI: programs built with $revision may use this library"
    exit 0
}
echo "ABI: changed since $revision:"
cat "$folder/broken.txt"
exit 1
