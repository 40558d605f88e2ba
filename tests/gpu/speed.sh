# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: MIT
#
# Sourced by tests/gpu.sh: how fast is a step, where does its time go, and what do others take?
for n in 25000000 138000000; do
    for grad in fp32 bf16; do
        perf perf_${n}_$grad --elements $n --grad $grad --density 0.01,0.001
    done
    run pass_$n "$pass" 40 "$pass" $n
done
perf perf_37_buckets --elements 124000000 --density 0.01 --check 0 --set bucket_length=3300000
perf perf_one_segment --elements 138000000 --density 0.01 --check 0 --segments 1
perf perf_fp4 --elements 138000000 --density 0.08 --check 0 --values fp4
perf perf_dense_output --elements 138000000 --density 0.01 --output dense
perf perf_exact --elements 138000000 --density 0.01 --check 0 --scheme cyclic+global+predict+union
perf perf_threshold --elements 138000000 --density 0.01 --check 0 --capacity 1.5 \
    --scheme cyclic+global+step+union
for n in 25000000 138000000; do
    for density in 0.01 0.001; do
        run cub_${n}_$density "$cub" 30 "$cub" $n $density
        run torch_${n}_$density "$(command -v python3)" 60 python3 bench/lab/gpu/torch_topk.py $n \
            $density
    done
done
ncu=$(command -v ncu || ls /usr/local/cuda/bin/ncu 2>/dev/null)
for case in "25000000 0.001" "138000000 0.01"; do
    read -r n density <<<"$case"
    if [ -z "$ncu" ]; then
        skip "kernels_${n}_$density" "ncu was not found"
        continue
    fi
    run "kernels_${n}_$density" "$perf" 60 python3 tests/gpu/kernels.py "$ncu" $n $density \
        "${perf_command[@]}" --elements $n --density $density --check 0
    cat "$logs/kernels_${n}_$density.log" 2>/dev/null
done
run goals "$(command -v python3)" 20 python3 tests/gpu/goals.py "$results"
cat "$logs/goals.log" 2>/dev/null
