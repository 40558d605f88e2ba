#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# A bundle of tests/gpu.sh, run by itself: without a GPU it starts, says so, keeps what it found and
# ends with 77; a folder that holds something is left alone.
#
#     bash tests/gpu/bundle_runs.sh BUILD
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/kept"

die() {
    echo "$1"
    exit 1
}

bash "$top/tests/gpu/bundle.sh" "$1" "$folder/bundle" || die "no bundle was made"
bash "$top/tests/gpu/bundle.sh" "$1" "$folder/bundle" >/dev/null 2>&1 &&
    die "it wrote over a folder that was not empty"

# nvidia-smi, where there is one, is not in this path.
mkdir "$folder/bin"
for name in bash awk basename cat cp cut date dirname find git grep gunzip gzip head ldconfig ls mkdir \
    mktemp nproc python3 rm sed sh tail tee timeout tr uname env; do
    path=$(PATH=$PATH:/sbin command -v $name) && ln -s "$path" "$folder/bin/"
done
cd "$folder/bundle" || exit 1
env -i PATH="$folder/bin" OUT="$folder/kept" bash tests/gpu.sh --run-only >"$folder/log" 2>&1
status=$?
cat "$folder/log"
[ $status -eq 77 ] || die "it ended with $status, not 77"
grep -q "There is no GPU here" "$folder/log" || die "it does not say that there is no GPU"
grep -q "^PASS  info" "$folder/kept/summary.txt" || die "its summary was not kept"
grep -q "libtamis 0" "$folder/kept/logs.txt" || die "its logs were not kept"
