/* SPDX-License-Identifier: MIT
 *
 * Values that are summed, as float32: how they lie in messages, and what checks them. The values of
 * the union follow each other, but behind those of each shard come four floats, of which the last
 * checks it: what it holds, the step and the configuration. Two ranks, shards of four values, seven
 * values:
 *
 *     | 0 1 2 3 . . . C | 4 5 6 - . . . C |
 *
 * Sums lie in the same places. A shard may come damaged, or not at all: its owner then sends sums
 * whose check is wrong, so that all ranks refuse the step, as a rank that refuses the packets
 * sends shards with wrong checks. A step may run again after a state was loaded, so the checks of
 * what is to be received are cleared before.
 */
#ifndef TAM_CUDA_SHARDS_CUH
#define TAM_CUDA_SHARDS_CUH

#include "kernels/cuda/packets.cuh"

enum {
    TAM_SENT,
    TAM_RECEIVED,
    TAM_SUMS
}; /* tam_cuda_exchange.checks; sent: shards, then own sums */

/** Values of a shard. */
static __device__ __forceinline__ uint32_t tam_shard_values(const tam_cuda_exchange &x) {
    return x.checked ? (uint32_t)x.shard_length - TAM_SHARD_CHECK : UINT32_MAX;
}

/** Where value i of the union, or its sum, lies. */
static __device__ __forceinline__ uint64_t tam_value_position(const tam_cuda_exchange &x,
                                                              uint32_t i) {
    return i + (uint64_t)(i / tam_shard_values(x)) * TAM_SHARD_CHECK;
}

/** The check of what rank r sends. */
static __device__ __forceinline__ uint32_t tam_shard_check(const tam_cuda_exchange &x, uint32_t r,
                                                           uint64_t sum) {
    const tam_header_due due = {tam_config_of(x), x.params->step, x.record->last_result, r, 0};
    return tam_header_check_of(&due, sum);
}

static __device__ __forceinline__ uint32_t *tam_check_in(const tam_cuda_exchange &x, float *shards,
                                                         uint32_t r) {
    return reinterpret_cast<uint32_t *>(shards + (r + 1) * x.shard_length) - 1;
}

/** This thread's part of the check of floats `begin` to `end` - 1 of a shard. */
static __device__ __forceinline__ uint64_t tam_part_of_check(const float *shard, uint32_t begin,
                                                             uint32_t end) {
    uint64_t sum = 0;
    for (uint32_t i = begin + threadIdx.x; i < end; i += TAM_BLOCK_THREADS)
        sum += tam_sum_word(TAM_SUM_VALUES, i, tam_bits_of(shard[i]));
    return sum;
}

/** Up to `count`, the end of the piece that begins at `first`. */
static __device__ __forceinline__ uint32_t tam_piece_end(uint32_t first, uint32_t count) {
    return count - first < TAM_PIECE ? count : first + TAM_PIECE;
}

enum { TAM_SHARDS_AT_ONCE = 4 };

/* The entries i, i + 256, ... before `upto` of one shard, which begins with `first`. Several are
 * loaded before the first is used. @return this thread's part of the check */
template <typename LOAD, typename WORK>
static __device__ __forceinline__ uint64_t tam_walk_shard(uint32_t i, uint32_t first, uint32_t upto,
                                                          uint64_t shift, LOAD load, WORK work) {
    uint64_t sum = 0;
    for (uint64_t j = i; j < upto; j += TAM_SHARDS_AT_ONCE * TAM_BLOCK_THREADS) {
        float value[TAM_SHARDS_AT_ONCE];
#pragma unroll
        for (uint32_t q = 0; q < TAM_SHARDS_AT_ONCE; q++) {
            uint64_t at = j + q * TAM_BLOCK_THREADS;
            value[q] = at < upto ? load((uint32_t)at, at + shift) : 0.0f;
        }
#pragma unroll
        for (uint32_t q = 0; q < TAM_SHARDS_AT_ONCE; q++) {
            uint64_t at = j + q * TAM_BLOCK_THREADS;
            if (at >= upto)
                break;
            work((uint32_t)at, at + shift, value[q]);
            sum += tam_sum_word(TAM_SUM_VALUES, (uint32_t)at - first, tam_bits_of(value[q]));
        }
    }
    return sum;
}

/** For the entries from `begin` to `end` - 1: value = load(i, place), then work(i, place, value);
 * the values become part of the checks of their shards. Thread t takes begin + t, and those 256
 * apart from it, ascending. The whole block calls it. */
template <typename LOAD, typename WORK>
static __device__ __forceinline__ void tam_walk_shards(const tam_cuda_exchange &x, uint32_t begin,
                                                       uint32_t end, uint32_t which, LOAD load,
                                                       WORK work) {
    uint32_t values = tam_shard_values(x);
    for (uint32_t at = begin; at < end;) {
        uint32_t shard = at / values, first = shard * values;
        uint32_t upto = end - first > values ? first + values : end;
        uint32_t i = at - (at - begin) % TAM_BLOCK_THREADS + threadIdx.x;
        i += i < at ? TAM_BLOCK_THREADS : 0;
        uint64_t sum =
            tam_walk_shard(i, first, upto, (uint64_t)shard * TAM_SHARD_CHECK, load, work);
        if (x.checked) { /* uniform in the block */
            sum = tam_block_sum(sum);
            if (threadIdx.x == 0)
                tam_add64(&x.checks[which][shard], sum);
        }
        at = upto;
    }
}

/** All values are there: the checks of the shards. The last block. */
static __device__ __forceinline__ void tam_close_shards(const tam_cuda_exchange &x, bool refuses) {
    if (!x.checked)
        return;
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS) {
        *tam_check_in(x, x.values, r) =
            tam_shard_check(x, x.packets.rank, x.checks[TAM_SENT][r]) ^ (uint32_t)refuses;
        *tam_check_in(x, x.shards, r) = 0;
        x.checks[TAM_SENT][r] = 0;
    }
}

#endif
