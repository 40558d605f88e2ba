# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: MIT
#
# Sourced by tests/gpu.sh sweep: each parameter of sweep.txt by the values there, one after another,
# against how things are now; then what to change, in words.
now=$(find "$build" -name 'libtamis.so.*' -type f | head -n 1)
gpu_sweep=$(program gpu_sweep)
while read -r name _ value others cases _; do
    libraries=("$value=$now")
    for other in ${others//,/ }; do
        library=$(program "libsweep_${name}_$other.so")
        [ -z "$library" ] || libraries+=("$other=$library")
    done
    run "sweep_$name" "$gpu_sweep" 60 "$gpu_sweep" "$name" "$cases" "${libraries[@]}"
done < <(grep -v '^#' tests/gpu/sweep.txt)
run sweep "$(command -v python3)" 20 python3 tests/gpu/sweep.py "$results"
cat "$logs/sweep.log" 2>/dev/null
