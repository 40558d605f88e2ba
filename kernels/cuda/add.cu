/* SPDX-License-Identifier: MIT
 *
 * The sums of the own shard, from what all ranks sent, in the order of lib/base/tree.h: checked
 * (shards.cuh), or as marks tell (scheme dense).
 */
#include "kernels/cuda/shards.cuh"

#include "kernels/cuda/sums.cuh"

/* Add up the own shard. @return this thread's part of their check */
static __device__ __forceinline__ uint64_t add_own(const tam_cuda_exchange &x, uint32_t count) {
    uint64_t shard = x.shard_length / 4, sum = 0;
    float4 *sums = reinterpret_cast<float4 *>(x.values) + x.packets.rank * shard;
    tam_received g = {reinterpret_cast<const float4 *>(x.shards), shard, x.packets.nranks,
                      tam_tree_own(x.packets.nranks)};
    for (uint64_t i = tam_thread_of_grid(); 4 * i < count; i += tam_threads_of_grid()) {
        float4 four = tam_add_ranks(g, i);
        const float s[4] = {four.x, four.y, four.z, four.w};
        sums[i] = four;
        for (uint32_t c = 0; c < 4 && 4 * i + c < count; c++)
            sum += tam_sum_word(TAM_SUM_VALUES, 4 * i + c, tam_bits_of(s[c]));
    }
    return sum;
}

/* The checks of the received shards, piece by piece. */
static __device__ __forceinline__ void add_check_received(const tam_cuda_exchange &x,
                                                          uint32_t count) {
    uint32_t pieces = tam_pieces_of(count);
    for (uint64_t task = blockIdx.x; task < (uint64_t)pieces * x.packets.nranks;
         task += gridDim.x) {
        uint32_t r = (uint32_t)(task / pieces), first = (uint32_t)(task % pieces) * TAM_PIECE;
        uint64_t sum = tam_block_sum(
            tam_part_of_check(x.shards + r * x.shard_length, first, tam_piece_end(first, count)));
        if (threadIdx.x == 0)
            tam_add64(&x.checks[TAM_RECEIVED][r], sum);
    }
}

/* The sums go to the places of the values, which have been sent by now. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    add_checked(const tam_cuda_exchange x) {
    const tam_cuda_verdict *verdict = &x.scratch->verdict;
    uint32_t values = tam_shard_values(x), refuses = verdict->status != TAMIS_OK;
    uint64_t before = (uint64_t)x.packets.rank * values, all = refuses ? 0 : verdict->count;
    uint32_t count = all < before ? 0 : all - before < values ? (uint32_t)(all - before) : values;
    add_check_received(x, count);
    uint64_t sum = tam_block_sum(add_own(x, count));
    if (threadIdx.x == 0)
        tam_add64(&x.checks[TAM_SENT][x.packets.rank], sum);
    if (!tam_last_block(&x.scratch->added))
        return;
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS) {
        if (!refuses &&
            tam_shard_check(x, r, x.checks[TAM_RECEIVED][r]) != *tam_check_in(x, x.shards, r))
            atomicOr(&x.scratch->damaged, 1u);
        *tam_check_in(x, x.values, r) = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *tam_check_in(x, x.values, x.packets.rank) =
            tam_shard_check(x, x.packets.rank, x.checks[TAM_SENT][x.packets.rank]) ^
            (refuses | x.scratch->damaged);
}

/* Scheme dense. Write the sums to their place among the values, which have been sent by now, and
 * mark the rest absent, where the sums of the other ranks must arrive. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) add_shards(const tam_cuda_exchange x) {
    float4 *values = reinterpret_cast<float4 *>(x.values);
    float a = __uint_as_float(TAM_CUDA_ABSENT);
    uint64_t shard = x.shard_length / 4, mine = x.packets.rank * shard;
    tam_received g = {reinterpret_cast<const float4 *>(x.shards), shard, x.packets.nranks,
                      tam_tree_own(x.packets.nranks)};
    for (uint64_t i = tam_thread_of_grid(); i < shard * x.packets.nranks;
         i += tam_threads_of_grid())
        values[i] =
            i >= mine && i < mine + shard ? tam_add_ranks(g, i - mine) : make_float4(a, a, a, a);
}

/* -- launch ----------------------------------------------------------------------------------- */

extern "C" int tam_launch_add(const tam_cuda_exchange *job, void *stream) {
    if (job->rounded.blocks > 0)
        return tam_launch_add_rounded(job, stream);
    return tam_launch(job->checked ? add_checked : add_shards,
                      tam_blocks_for(job, job->capacity / (16 * TAM_BLOCK_THREADS) + 1), stream,
                      *job);
}
