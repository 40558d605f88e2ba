# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: MIT
#
# Sourced by tests/gpu.sh: what takes long or may hang.
for ranks in 2 3; do
    run parity_step_$ranks "$test_step" 60 "$test_step" $ranks
done
run nccl_1 "$nccl_ranks" 60 "${nccl_one_gpu[@]}" "$nccl_ranks" 1 small
run nccl_3 "$nccl_ranks" 60 "${nccl_one_gpu[@]}" "$nccl_ranks" 3 small
run nccl_lazy "$nccl_ranks" 60 "${nccl_one_gpu[@]}" CUDA_MODULE_LOADING=LAZY "$nccl_ranks" 2 small
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
for tool in memcheck racecheck synccheck; do
    if [ -z "$sanitizer" ]; then
        skip "sanitizer_$tool" "compute-sanitizer was not found"
        continue
    fi
    run sanitizer_$tool "$test_step" 90 "$sanitizer" --tool $tool --target-processes all \
        --error-exitcode 1 "$test_step" 1 small brief
done
perf perf_2_31 --elements 2200000000 --grad bf16 --density 0.001 --check 0 --iters 2
run nccl_dead "$nccl_ranks" 45 "${nccl_one_gpu[@]}" "$nccl_ranks" 3 dead small
