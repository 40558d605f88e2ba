#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Put what `tests/gpu.sh --run-only` needs into one folder: programs, the libraries that they load
# (but for the C library's), the scripts. A machine with a driver can then run it.
#
#     bash tests/gpu/bundle.sh [--sweep] BUILD FOLDER [SM]
#
#     --sweep   and what `tests/gpu.sh sweep --run-only` needs
#     SM   architecture whose code NCCL keeps (90)
#
# The last line is the size. A bundle of more than 64 MiB is a failure.
set -eu

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
sweep=''
if [ "$1" = --sweep ]; then
    sweep=yes
    shift
fi
build=$(cd "$1" && pwd) sm=${3:-90}
LIMIT_MIB=64
if [ -e "$2" ] && [ -n "$(ls -A "$2")" ]; then
    echo "$2 is not empty: nothing was written there" >&2
    exit 1
fi
mkdir -p "$2"
out=$(cd "$2" && pwd)
to=$out/build/gpu
mkdir -p "$to/programs" "$to/tests/gpu" "$to/lib/nccl" "$out/tests/gpu" "$out/bench/lab/gpu"

files=()
for name in tamis_info tamis_perf tamis_cub gpu_test_step gpu_nccl_ranks gpu_pass \
    libtamis_syncs.so; do
    file=$(find "$build" -name "$name" -type f -perm -u+x | head -n 1)
    [ -z "$file" ] || files+=("$file")
done
if [ -n "$sweep" ]; then
    mapfile -t -O ${#files[@]} files < <(find "$build" -type f -name gpu_sweep
        find "$build" -type f -name 'libsweep_*.so')
fi
[ ${#files[@]} -gt 0 ] || { echo "There are no programs in $build." >&2; exit 1; }
cp "${files[@]}" "$to/programs/"
device=$(find "$build/tests/gpu" -name test_gpu -type f 2>/dev/null | head -n 1)
[ -z "$device" ] || { cp "$device" "$to/tests/gpu/" && files+=("$device"); }

# Those of the C library belong to the machine.
libraries() {
    ldd "${files[@]}" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u |
        grep -vE '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so[^/]*$'
}
for library in $(libraries); do
    case $library in
        */libnccl.so.2)
            python3 "$top/tests/gpu/slim.py" "$library" "$sm" "$to/lib/nccl/libnccl.so.2.gz" ;;
        *) cp -L "$library" "$to/lib/" ;;
    esac
done

cp "$top/tests/gpu.sh" "$out/tests/"
cp "$top"/tests/gpu/{first,speed,deep,bundled}.sh "$top"/tests/gpu/{goals,kernels}.py \
    "$top"/tests/gpu/sweep.{sh,py,txt} "$out/tests/gpu/"
if [ -d "$build/python/tamis" ]; then
    cp -rL "$build/python" "$to/"
    cp "$top"/tests/gpu/torch_rank{s,}.py "$out/tests/gpu/"
fi
cp "$top/bench/lab/gpu/torch_topk.py" "$out/bench/lab/gpu/"
git -C "$top" describe --always --dirty --abbrev=40 --exclude '*' >"$out/COMMIT" 2>/dev/null ||
    echo unknown >"$out/COMMIT"

kib=$(du -sk "$out" | cut -f 1)
echo "$out: $((kib / 1024 + 1)) MiB"
[ "$kib" -le $((LIMIT_MIB * 1024)) ]
