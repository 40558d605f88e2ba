/* SPDX-License-Identifier: MIT
 *
 * From the lists of all ranks to one ascending list without duplicates, and the values there.
 *
 * One block builds one range of the union: the lists' entries in it set bits in shared memory, and
 * the bits, read in order, are the union. Any number of ranks, any overlap. `build_union` knows
 * where to write them, because `count`, or for exclusive owners the check of the packets, has
 * counted the entries of each range.
 */
#include "kernels/cuda/ranges.cuh"
#include "kernels/cuda/shards.cuh"

#include "lib/base/tree.h"

enum { WORDS = TAM_RANGE_WORDS / TAM_BLOCK_THREADS }; /* of a range, for each thread */

/* -- one range -------------------------------------------------------------------------------- */

/* Set the bits of the entries i, i + step, ... of a list. The loads do not wait for each other. */
static __device__ __forceinline__ void set_listed(const uint32_t *list, uint32_t i, uint32_t end,
                                                  uint32_t step, uint32_t bits[TAM_RANGE_WORDS]) {
    enum { AT_ONCE = 4 };
    for (uint64_t j = i; j < end; j += AT_ONCE * step) {
        uint32_t at[AT_ONCE];
#pragma unroll
        for (uint32_t q = 0; q < AT_ONCE; q++)
            at[q] = j + q * step < end ? list[j + q * step] % TAM_RANGE : (uint32_t)TAM_RANGE;
#pragma unroll
        for (uint32_t q = 0; q < AT_ONCE; q++)
            if (at[q] < TAM_RANGE)
                atomicOr(&bits[at[q] / 32], 1u << at[q] % 32);
    }
}

/* Set the bits of a range. Warps take ranks, several warps a rank if there are few; lanes take
 * entries. The whole block must call it. */
static __device__ __forceinline__ void set_bits(const tam_cuda_exchange &x, uint32_t range,
                                                uint32_t bits[TAM_RANGE_WORDS]) {
    uint32_t nranks = x.packets.nranks,
             each = nranks < TAM_BLOCK_WARPS ? TAM_BLOCK_WARPS / nranks : 1;
    const uint32_t *runs = x.ranges.runs + (uint64_t)range * nranks;
    __syncthreads(); /* the previous range may still be read */
    for (uint32_t i = threadIdx.x; i < TAM_RANGE_WORDS; i += TAM_BLOCK_THREADS)
        bits[i] = 0;
    __syncthreads();
    uint32_t warp = threadIdx.x / 32, lane = warp % each * 32 + threadIdx.x % 32;
    for (uint32_t r = warp / each; r < nranks; r += TAM_BLOCK_WARPS / each)
        set_listed(tam_indices_of(x.packets, r), runs[r] + lane, runs[nranks + r], 32 * each, bits);
    __syncthreads();
}

/* Number of set bits in this thread's words, which are adjacent. */
static __device__ __forceinline__ uint32_t own_bits(const uint32_t bits[TAM_RANGE_WORDS]) {
    uint32_t count = 0;
    for (uint32_t w = 0; w < WORDS; w++)
        count += __popc(bits[threadIdx.x * WORDS + w]);
    return count;
}

/* -- count ------------------------------------------------------------------------------------ */

static __device__ void count_shared(const tam_cuda_exchange &x) {
    __shared__ uint32_t bits[TAM_RANGE_WORDS];
    for (uint32_t range = blockIdx.x; range < x.ranges.count; range += gridDim.x) {
        set_bits(x, range, bits);
        uint64_t entries = tam_block_sum(own_bits(bits));
        if (threadIdx.x == 0)
            x.ranges.entries[range] = (uint32_t)entries;
    }
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) union_count(const tam_cuda_exchange x) {
    if (x.scratch->verdict.status != TAMIS_OK)
        return;
    count_shared(x);
    if (tam_last_block(&x.scratch->counted))
        tam_begin_union(x);
}

/* -- union ------------------------------------------------------------------------------------ */

/* Write the entries of this thread's words. @param at  entries of the range before them */
static __device__ __forceinline__ void union_write_indices(uint32_t range, uint32_t at,
                                                           const uint32_t bits[TAM_RANGE_WORDS],
                                                           uint32_t *indices) {
    for (uint32_t w = threadIdx.x * WORDS; w < (threadIdx.x + 1) * WORDS; w++) {
        for (uint32_t rest = bits[w]; rest; rest &= rest - 1)
            indices[at++] = range * TAM_RANGE + w * 32 + (uint32_t)__ffs((int)rest) - 1;
    }
}

/* exchange `union`: gather this rank's values there. @return this thread's sum of squares */
static __device__ __forceinline__ double gather_range(const tam_cuda_exchange &x, uint32_t first,
                                                      uint32_t entries) {
    double squares = 0.0;
    tam_walk_shards(
        x, first, first + entries, TAM_SENT,
        [&](uint32_t i, uint64_t) { return x.acc[x.indices[i]]; },
        [&](uint32_t, uint64_t place, float value) {
            x.values[place] = value;
            squares += (double)value * value;
        });
    return squares;
}

/* The first entry of a list, from `at` on and before `end`, that is not below `index`; or `end`. */
static __device__ __forceinline__ uint32_t find_from(const uint32_t *list, uint32_t at,
                                                     uint32_t end, uint32_t index) {
    while (at < end) {
        uint32_t middle = at + (end - at) / 2;
        if (list[middle] < index)
            at = middle + 1;
        else
            end = middle;
    }
    return at;
}

/* pairs: add up what the ranks sent for each entry. A thread looks it up in all lists: neighbours
 * in the union are neighbours there, so threads of a warp read the same few words. */
static __device__ void add_pairs(const tam_cuda_exchange &x, uint32_t range,
                                 const uint32_t *indices, uint32_t entries, float *values) {
    uint32_t nranks = x.packets.nranks, own = tam_tree_own(nranks);
    const uint32_t *runs = x.ranges.runs + (uint64_t)range * nranks;
    for (uint32_t i = threadIdx.x; i < entries; i += TAM_BLOCK_THREADS) {
        tam_tree_sum sum;
        sum.count = sum.vrank = 0;
        for (uint32_t r = 0; r < nranks; r++) {
            const uint32_t *list = tam_indices_of(x.packets, r);
            uint32_t end = runs[nranks + r], at = find_from(list, runs[r], end, indices[i]);
            if (at < end && list[at] == indices[i])
                tam_tree_add(&sum, tam_tree_vrank(r, own),
                             tam_value_at(x.packets.value_codec, tam_values_of(x.packets, r), at));
        }
        values[i] = tam_tree_end(&sum);
    }
}

static __device__ void build_range(const tam_cuda_exchange &x, uint32_t range) {
    typedef cub::BlockScan<uint32_t, TAM_BLOCK_THREADS> scan;
    __shared__ typename scan::TempStorage space;
    __shared__ uint32_t bits[TAM_RANGE_WORDS];
    uint32_t offset = x.ranges.offsets[range], entries = x.ranges.entries[range], at;
    double squares = 0.0;
    bool sparse_rows = tam_scheme_is_sparse_rows(x.scheme);
    uint32_t *list = sparse_rows ? x.rows.union_rows : x.indices;
    if (entries > 0) { /* uniform in the block */
        set_bits(x, range, bits);
        scan(space).ExclusiveSum(own_bits(bits), at);
        union_write_indices(range, at, bits, list + offset);
        __syncthreads();
        if (sparse_rows) /* values come with all elements of rows (rows.cu) */
            squares = 0.0;
        else if (x.packets.with_values)
            add_pairs(x, range, x.indices + offset, entries, x.values + offset);
        else
            squares = gather_range(x, offset, entries);
    }
    squares = tam_block_fold(squares);
    if (threadIdx.x == 0)
        x.ranges.sums[range] = squares;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) build_union(const tam_cuda_exchange x) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    bool refuses = verdict->status != TAMIS_OK;
    for (uint32_t range = blockIdx.x; range < x.ranges.count && !refuses; range += gridDim.x)
        build_range(x, range);
    if (x.packets.with_values || !tam_last_block(&x.scratch->joined))
        return;
    if (!refuses) {
        double squares = tam_block_fold_list(x.ranges.sums, x.ranges.count);
        if (threadIdx.x == 0)
            verdict->sent_sum = squares;
    }
    if (!tam_scheme_is_sparse_rows(x.scheme)) /* whose values come with all elements (rows.cu) */
        tam_close_shards(x, refuses);
}

/* -- launch ----------------------------------------------------------------------------------- */

static unsigned blocks_of(const tam_cuda_exchange *job) {
    return job->ranges.count < job->blocks ? job->ranges.count : job->blocks;
}

extern "C" int tam_launch_count(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(union_count, blocks_of(job), stream, *job);
}

extern "C" int tam_launch_union(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(build_union, blocks_of(job), stream, *job);
}
