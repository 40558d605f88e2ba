# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: MIT
#
# Sourced by tests/gpu.sh: is it right on a real runtime, with real graphs, real NCCL and PyTorch?
# How fast is the pass?
run device "$cub" 30 "$cub" device
run parity_kernels "$test_device" 60 "$test_device" device
run parity_brief "$test_step" 60 "$test_step" 1 small brief
run nccl_2 "$nccl_ranks" 75 "${nccl_one_gpu[@]}" "$nccl_ranks" 2 small
run nccl_2_direct "$nccl_ranks" 60 "${nccl_one_gpu[@]}" TAMIS_GRAPHS=off "$nccl_ranks" 2 small
torch torch_2 150 tests/gpu/torch_ranks.py
torch torch_2_nccl 60 tests/gpu/torch_ranks.py --group nccl dense sgd
run parity_step_1 "$test_step" 60 "$test_step" 1
run pass_25000000 "$pass" 30 "$pass" 25000000
