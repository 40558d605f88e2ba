#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Everything that needs a GPU, in three parts; each takes less than 9 minutes after the build, what
# decides most comes first, and what a step has found is kept when a later one hangs. Records go to
# bench/results/<gpu>-<date>-<part>.jsonl, a summary to stdout; the last line is
# "N passed, N failed, N skipped".
#
#     bash tests/gpu.sh [first | speed | deep | sweep] [--build-only | --bundle FOLDER | --run-only]
#
#     first             is it right: parity with the CPU, replayed graphs, two NCCL ranks on one GPU,
#                       PyTorch; and how fast the pass is
#     speed             the step, by kernel too, against the copy rate, CUB and PyTorch
#     deep              three NCCL ranks, a dead one, checkers of memory and races, large vectors
#     sweep             other values of the parameters in tests/gpu/sweep.txt, each compiled into a
#                       library and timed against the present one, and what to change
#     (nothing)         first, speed, deep
#     --build-only      build what the rest needs, and stop; needs no GPU
#     --bundle FOLDER   the same, and put all that --run-only needs there, libraries included, for a
#                       machine that has only a driver: cd FOLDER && bash tests/gpu.sh PART --run-only.
#                       The bundle of sweep is for all parts
#     --run-only        build nothing
#
# To build, it needs bash, cmake, ninja or make, nvcc, pkg-config and xxhash. NCCL, jansson (for
# tamis_perf), cmocka (for one parity test), compute-sanitizer, ncu, Python and PyTorch are optional:
# what needs them is skipped, with a count. No network, no MPI. Without a GPU it builds, says so and
# ends with 77.
#
# With OUT=FOLDER records, summary and logs are there, too, after every step.
#
#     TAMIS_DEPS=DIR     unpacked Debian packages that hold what the system does not
#     TAMIS_COMMIT       what to call a tree without git
#     TAMIS_GPU_BUILD    another build folder than build/gpu
#     TAMIS_GPU_ARCH     another architecture than that of the GPU
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null

mode=all bundle='' parts='first speed deep' sweep=''
case ${1:-} in
    first | speed | deep | sweep)
        parts=$1
        shift ;;
esac
case "$#:${1:-}" in
    0:) ;;
    1:--build-only | 1:--run-only) mode=${1#--} ;;
    2:--bundle) mode=build-only bundle=$2 ;;
    *)
        echo "usage: bash tests/gpu.sh [first | speed | deep | sweep]" \
            "[--build-only | --bundle FOLDER | --run-only]" >&2
        exit 2 ;;
esac
[ "$parts" = sweep ] && sweep=--sweep

PART_S=530 # of each part
build=${TAMIS_GPU_BUILD:-build/gpu}
mkdir -p "$build/logs" || exit 1
build=$(cd "$build" && pwd)
logs=$build/logs
results=$logs/results.jsonl summary=$logs/summary.txt all=$logs/logs.txt
: >"$results" && : >"$summary" && : >"$all" || exit 1

# -- what the machine has ----------------------------------------------------------------------

if [ -n "${TAMIS_DEPS:-}" ]; then
    deps=$(cd "$TAMIS_DEPS" && pwd) || exit 1
    multi=$deps/usr/lib/x86_64-linux-gnu
    export PATH=$PATH:$deps/usr/bin
    export CPATH=$deps/usr/include${CPATH:+:$CPATH}
    export LIBRARY_PATH=$multi${LIBRARY_PATH:+:$LIBRARY_PATH}
    export LD_LIBRARY_PATH=$multi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export CMAKE_PREFIX_PATH=$deps/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
    export PKG_CONFIG_PATH=$multi/pkgconfig:$deps/usr/share/pkgconfig:$deps/pkgconfig
fi
[ -x /usr/local/cuda/bin/nvcc ] && PATH=$PATH:/usr/local/cuda/bin
export PATH
case $(nvidia-smi -L 2>/dev/null) in
    GPU*) gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) architecture=${TAMIS_GPU_ARCH:-native} ;;
    *) gpu='' architecture=${TAMIS_GPU_ARCH:-90-real} ;;
esac
cores=$(nproc)
commit=${TAMIS_COMMIT:-unknown}
# Words to this script, not to the library, which warns about settings that it does not know.
unset TAMIS_DEPS TAMIS_GPU_BUILD TAMIS_GPU_ARCH TAMIS_COMMIT

# -- steps -------------------------------------------------------------------------------------

passed=0 failed=0 skipped=0
SECONDS=0 total_s=1000000 # a build takes what it takes

keep() {
    [ -z "${OUT:-}" ] || cp "$results" "$summary" "$all" "$OUT/"
}

tell() { # format, words...
    # shellcheck disable=SC2059
    printf "$@" | tee -a "$summary"
}

skip() { # name, reason
    tell 'SKIP  %-28s %s\n' "$1" "$2"
    skipped=$((skipped + 1))
}

# step NAME SECONDS COMMAND...: run under a time limit; lines of JSON on stdout become records.
step() {
    local name=$1 limit=$2 log=$logs/$1.log begin=$SECONDS status left
    shift 2
    left=$((total_s - SECONDS))
    if [ $left -lt 5 ]; then
        skip "$name" "no time is left of $total_s s"
        return 1
    fi
    [ $left -lt "$limit" ] && limit=$left
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    status=$?
    grep '^{"record"' "$log" | grep -v '^{"record":"syncs"' >>"$results"
    { echo "== $name: status $status"; tail -c 100000 "$log"; } >>"$all"
    case $status in
        0)
            tell 'PASS  %-28s %s s\n' "$name" $((SECONDS - begin))
            passed=$((passed + 1)) ;;
        77)
            skip "$name" "$(tail -n 1 "$log")" ;;
        *)
            tell 'FAIL  %-28s %s s, status %s%s\n' "$name" $((SECONDS - begin)) $status \
                "$([ $status -eq 124 ] && echo " (over its limit)")"
            tail -n 15 "$log" | sed 's/^/      /' | tee -a "$summary"
            failed=$((failed + 1)) ;;
    esac
    keep
    return $status
}

file_records() { # part
    local name out
    name=$(tr -cs 'A-Za-z0-9\n' '-' <<<"$gpu" | tr 'A-Z' 'a-z')
    mkdir -p bench/results
    out=bench/results/$name-$(date -u +%F)-$1.jsonl
    cp "$results" "$out" && echo "Records: $out; logs: $logs"
    [ -z "${OUT:-}" ] || cp "$out" "$OUT/"
}

finish() {
    tell '%s passed, %s failed, %s skipped\n' $passed $failed $skipped
    keep
    [ $failed -eq 0 ] || exit 1
    exit "${1:-0}"
}

# -- build -------------------------------------------------------------------------------------

configure() {
    local generator=()
    command -v ninja >/dev/null && generator=(-G Ninja)
    cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTAMIS_MPI=OFF -DTAMIS_LAB=ON \
        -DTAMIS_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$architecture \
        -DCMAKE_CUDA_FLAGS=-Xfatbin=-compress-all # else most of a bundle is the numbers of lines
}

# Not everything: the suite of the CPU is for tests/run.sh.
build_programs() {
    local wanted=(tamis) have target
    have=$(cmake --build "$build" --target help) || return 1
    for target in tamis_info tamis_perf tamis_syncs tamis_cub gpu_test_step gpu_nccl_ranks gpu_pass \
        test_gpu_device tamis_python ${sweep:+gpu_sweep}; do
        grep -qw "$target" <<<"$have" && wanted+=("$target")
    done
    echo "Targets: ${wanted[*]}"
    cmake --build "$build" -j "$cores" --target "${wanted[@]}"
}

if [ $mode != run-only ]; then
    export build architecture cores sweep
    export -f configure build_programs
    step configure 600 bash -c configure || finish 1
    step build 7200 bash -c build_programs || finish 1
    grep -E '^-- (CUDA|NCCL|BENCH|TESTS):' "$logs/configure.log"
fi
if [ -n "$bundle" ]; then
    step bundle 120 bash tests/gpu/bundle.sh $sweep "$build" "$bundle"
    cat "$logs/bundle.log"
fi
[ $mode = build-only ] && finish

program() { # file name -> path; empty if it was not built
    find "$build" -name "$1" -type f -perm -u+x | head -n 1
}
[ -d "$build/programs" ] && . tests/gpu/bundled.sh # of a bundle: sets the path of libraries
info=$(program tamis_info) perf=$(program tamis_perf) cub=$(program tamis_cub)
if [ -z "$info$perf$cub" ]; then
    echo "There are no programs in $build: bash tests/gpu.sh --build-only makes them." >&2
    exit 1
fi
if [ -z "$gpu" ]; then
    [ -z "$info" ] || step info 30 "$info"
    grep -i cuda "$logs/info.log" 2>/dev/null
    echo "There is no GPU here (nvidia-smi finds none): nothing else was run."
    finish 77
fi
torch_libraries=${torch_libraries:-${LD_LIBRARY_PATH:-}} # a bundle says another
test_device=$(find "$build/tests/gpu" -name test_gpu -type f 2>/dev/null)
test_step=$(program gpu_test_step) nccl_ranks=$(program gpu_nccl_ranks) pass=$(program gpu_pass)
syncs=$(find "$build" -name 'libtamis_syncs.so' | head -n 1)

# The first record: what the figures below belong to.
describe() {
    local driver
    [ "$commit" != unknown ] || # a bundle says
        commit=$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo unknown)
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
    printf '{"record":"machine","gpu":"%s","driver":"%s","nvcc":"%s",' "$gpu" "$driver" \
        "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    printf '"commit":"%s","date":"%s","kernel":"%s","cores":%s}\n' "$commit" \
        "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(uname -r)" "$cores"
}
# run NAME PROGRAM SECONDS COMMAND...: a step, or a skip where the program was not built.
run() {
    local name=$1 needs=$2 limit=$3
    shift 3
    if [ -z "$needs" ]; then
        skip "$name" "its program was not built (see $logs/configure.log)"
        return 1
    fi
    step "$name" "$limit" "$@"
}

# Steps replayed as a graph, calls that wait counted: perf NAME ARGUMENTS...
transport=nccl
[ -n "$nccl_ranks" ] || transport=local # then the host drives the steps: nothing is replayed
perf_command=(env LD_PRELOAD="$syncs" "$perf" --device cuda --transport $transport --output sparse
    --iters 30 --threads "$cores" --segments 161)
perf() {
    local name=$1
    shift
    run "$name" "$perf" 60 "${perf_command[@]}" --json - "$@"
}

# Several NCCL ranks on one GPU, for correctness only, never timed: ranks pass for machines, joined
# by sockets over the loopback; every other path, and what would start more threads, is off. Few
# blocks, for the ranks' kernels must run at the same time.
nccl_one_gpu=(env NCCL_NET=Socket NCCL_NET_PLUGIN=none NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo
    NCCL_SOCKET_FAMILY=AF_INET NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0
    NCCL_NVLS_ENABLE=0 NCCL_GIN_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0
    NCCL_MAX_CTAS=2)

# PyTorch that sees a GPU, with the package just built: torch NAME SECONDS SCRIPT ARGUMENTS...
package=$build/python
[ -d "$package/tamis" ] || package=''
[ -z "$package" ] ||
    python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null || package=''
torch() {
    local name=$1 limit=$2
    shift 2
    if [ -z "$package" ]; then
        skip "$name" "there is no PyTorch with a GPU, or no package in $build/python"
        return 1
    fi
    step "$name" "$limit" env LD_LIBRARY_PATH="$torch_libraries" PYTHONPATH="$package" \
        PYTHONUNBUFFERED=1 python3 "$@"
}

for part in $parts; do
    echo "$gpu, $(date -u +%F): $part"
    : >"$results"
    describe | tee "$logs/machine.jsonl" >>"$results"
    total_s=$((SECONDS + PART_S))
    run info "$info" 30 "$info"
    . "tests/gpu/$part.sh"
    file_records "$part"
done
finish
