#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Everything that needs a GPU, in one command: parity with the CPU, speed and baselines, replayed
# graphs, checkers, several NCCL ranks on one device; after the build under 6 minutes, the most
# important first. Records go to bench/results/<gpu>-<date>.jsonl, a summary to stdout; the last line
# is "N passed, N failed, N skipped".
#
#     bash tests/gpu.sh [--sweep] [--build-only | --bundle FOLDER | --run-only]
#
#     --build-only      build what the rest needs, and stop; needs no GPU
#     --bundle FOLDER   the same, and put all that --run-only needs there, libraries included, for a
#                       machine that has only a driver: cd FOLDER && bash tests/gpu.sh --run-only
#     --run-only        build nothing
#     --sweep           in place of all that: other values of the parameters in tests/gpu/sweep.txt,
#                       each compiled into a library and timed against the present one, and what to
#                       change; under 4 minutes. A bundle made with --sweep is for both
#
# To build, it needs bash, cmake, ninja or make, nvcc, pkg-config and xxhash. NCCL, jansson (for
# tamis_perf), cmocka (for one parity test), compute-sanitizer, Python and PyTorch are optional: what
# needs them is skipped, with a count. No network, no MPI. Without a GPU it builds, says so and ends
# with 77.
#
# What a step has found is kept when a later one hangs: with OUT=FOLDER also there, in three files.
#
#     TAMIS_DEPS=DIR     unpacked Debian packages that hold what the system does not
#     TAMIS_COMMIT       what to call a tree without git
#     TAMIS_GPU_BUILD    another build folder than build/gpu
#     TAMIS_GPU_ARCH     another architecture than that of the GPU
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null

mode=all bundle='' sweep=''
if [ "${1:-}" = --sweep ]; then
    sweep=--sweep
    shift
fi
case "$#:${1:-}" in
    0:) ;;
    1:--build-only | 1:--run-only) mode=${1#--} ;;
    2:--bundle) mode=build-only bundle=$2 ;;
    *) echo "usage: bash tests/gpu.sh [--sweep] [--build-only | --bundle FOLDER | --run-only]" >&2; exit 2 ;;
esac

BUILD_S=360 # of the build
RUN_S=350   # of all that follows
[ -z "$sweep" ] || { BUILD_S=1500 RUN_S=235; } # the kernels several times
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
SECONDS=0 total_s=$BUILD_S

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

file_records() { # what, behind the date
    local name out
    name=$(tr -cs 'A-Za-z0-9\n' '-' <<<"$gpu" | tr 'A-Z' 'a-z')
    mkdir -p bench/results
    out=bench/results/$name-$(date -u +%F)$1.jsonl
    cp "$results" "$out" && echo "Records: $out; logs: $logs"
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
    cmake -S . -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DTAMIS_MPI=OFF \
        -DTAMIS_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=$architecture \
        -DCMAKE_CUDA_FLAGS=-Xfatbin=-compress-all # else most of a bundle is the numbers of lines
}

# Not everything: the suite of the CPU is for tests/run.sh.
build_programs() {
    local wanted=(tamis) have target
    have=$(cmake --build "$build" --target help) || return 1
    for target in tamis_info tamis_perf tamis_syncs tamis_cub gpu_test_step gpu_nccl_ranks gpu_pass \
        test_gpu_device ${sweep:+gpu_sweep}; do
        grep -qw "$target" <<<"$have" && wanted+=("$target")
    done
    echo "Targets: ${wanted[*]}"
    cmake --build "$build" -j "$cores" --target "${wanted[@]}"
}

if [ $mode != run-only ]; then
    export build architecture cores sweep
    export -f configure build_programs
    step configure 90 bash -c configure || finish 1
    step build $((BUILD_S - 90)) bash -c build_programs || finish 1
    grep -E '^-- (CUDA|NCCL|BENCH|TESTS):' "$logs/configure.log"
fi
if [ -n "$bundle" ]; then
    step bundle 120 bash tests/gpu/bundle.sh $sweep "$build" "$bundle"
    cat "$logs/bundle.log"
fi
[ $mode = build-only ] && finish
total_s=$((SECONDS + RUN_S))

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
test_device=$(find "$build/tests/gpu" -name test_device -type f 2>/dev/null)
test_step=$(program gpu_test_step) nccl_ranks=$(program gpu_nccl_ranks) pass=$(program gpu_pass)
syncs=$(find "$build" -name 'libtamis_syncs.so' | head -n 1)

# The first record: what the figures below belong to.
describe() {
    local driver
    commit=$(git describe --always --dirty --abbrev=40 --exclude '*' 2>/dev/null || echo "$commit")
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
    printf '{"record":"machine","gpu":"%s","driver":"%s","nvcc":"%s",' "$gpu" "$driver" \
        "$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')"
    printf '"commit":"%s","date":"%s","kernel":"%s","cores":%s}\n' "$commit" \
        "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$(uname -r)" "$cores"
}
describe >"$logs/machine.jsonl"
cat "$logs/machine.jsonl" >>"$results"
echo "$gpu, $(date -u +%F)"

# -- device and parity -------------------------------------------------------------------------

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

run info "$info" 30 "$info"
if [ -n "$sweep" ]; then
    . tests/gpu/sweep.sh
    file_records -sweep
    finish
fi
run device "$cub" 30 "$cub" device
run parity_kernels "$test_device" 60 "$test_device"
run parity_step_1 "$test_step" 60 "$test_step" 1

# -- speed -------------------------------------------------------------------------------------

# perf NAME ARGUMENTS...: steps replayed as a graph, calls that wait counted, bits compared.
transport=nccl
[ -n "$nccl_ranks" ] || transport=local # then the host drives the steps: nothing is replayed
perf() {
    local name=$1
    shift
    run "$name" "$perf" 60 env LD_PRELOAD="$syncs" "$perf" --device cuda --transport $transport \
        --output sparse --iters 30 --threads "$cores" --segments 161 --json - "$@"
}

both=0.01,0.001
for n in 25000000 138000000; do
    for grad in fp32 bf16; do
        perf perf_${n}_$grad --elements $n --grad $grad --density $both
    done
    run pass_$n "$pass" 40 "$pass" $n
done
perf perf_dense_output --elements 138000000 --density 0.01 --output dense
perf perf_exact --elements 138000000 --density 0.01 --check 0 --scheme cyclic+global+predict+union
perf perf_threshold --elements 138000000 --density 0.01 --check 0 --capacity 1.5 \
    --scheme cyclic+global+step+union
for n in 25000000 138000000; do
    for density in 0.01 0.001; do
        run cub_${n}_$density "$cub" 30 "$cub" $n $density
        run torch_${n}_$density yes 60 python3 bench/gpu/torch_topk.py $n $density
    done
done

run goals "$(command -v python3)" 20 python3 tests/gpu/goals.py "$results"
cat "$logs/goals.log" 2>/dev/null

# -- more ranks, over pinned memory ------------------------------------------------------------

for ranks in 2 3; do
    run parity_step_$ranks "$test_step" 60 "$test_step" $ranks
done

# -- several NCCL ranks on one device: correctness only, never timed ---------------------------

# Ranks pass for machines, joined by sockets over the loopback; every other path, and what would
# start more threads, is off. Few blocks, for the ranks' kernels must run at the same time.
nccl_one_gpu=(env NCCL_NET=Socket NCCL_NET_PLUGIN=none NCCL_IB_DISABLE=1 NCCL_SOCKET_IFNAME=lo
    NCCL_SOCKET_FAMILY=AF_INET NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_MNNVL_ENABLE=0
    NCCL_NVLS_ENABLE=0 NCCL_GIN_ENABLE=0 NCCL_RAS_ENABLE=0 NCCL_CUMEM_HOST_ENABLE=0
    NCCL_MAX_CTAS=2 NCCL_ALGO=Ring NCCL_PROTO=Simple CUDA_DEVICE_MAX_CONNECTIONS=8
    CUDA_MODULE_LOADING=EAGER)

# Checkers, which are slow.

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck; do
    if [ -z "$sanitizer" ]; then
        skip "sanitizer_$tool" "compute-sanitizer was not found"
        skip "sanitizer_nccl_$tool" "compute-sanitizer was not found"
    else
        run sanitizer_$tool "$test_step" 90 "$sanitizer" --tool $tool --target-processes all \
            --error-exitcode 1 "$test_step" 1 small
        run sanitizer_nccl_$tool "$nccl_ranks" 90 "${nccl_one_gpu[@]}" "$sanitizer" --tool $tool \
            --target-processes all --error-exitcode 1 "$nccl_ranks" 1 small
    fi
done

# What may hang comes last.
for ranks in 1 2 3; do
    run nccl_$ranks "$nccl_ranks" 90 "${nccl_one_gpu[@]}" "$nccl_ranks" $ranks small
done
# As users run it, kernels loaded when they are first needed.
run nccl_lazy "$nccl_ranks" 90 "${nccl_one_gpu[@]}" CUDA_MODULE_LOADING=LAZY "$nccl_ranks" 2 small
run nccl_dead "$nccl_ranks" 60 "${nccl_one_gpu[@]}" "$nccl_ranks" 3 dead

# -- results -----------------------------------------------------------------------------------

file_records ''
finish
