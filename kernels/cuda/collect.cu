/* SPDX-License-Identifier: MIT
 *
 * After the pass: the pool becomes one ascending list, sums of chunks become sums of groups. In one
 * launch some blocks do the sums, the others the list; in a step, where a cut follows, they also
 * count the list for its first pass.
 *
 * Order of a group's sum, in binary64: chunks of a tile are added in order to +0; lane j of 256
 * adds the sums of the group's tiles j, j + 256, ... in order to +0; then halves fold:
 * u[j] += u[j + 128], u[j + 64], ..., u[j + 1].
 */
#include "kernels/cuda/histogram.cuh"

/* -- sums ------------------------------------------------------------------------------------- */

enum {
    TILES_AT_ONCE = 4, /* read before the additions, which depend on each other */
    CHUNKS_AT_ONCE = 8 /* a tile seldom has more */
};

/* Adds the sums of tiles t, t + stride, ... (TILES_AT_ONCE of them, those before `end`) to u. */
static __device__ double add_tiles(const tam_cuda_accumulate &job, uint64_t t, uint64_t end,
                                   double u) {
    uint32_t first[TILES_AT_ONCE], count[TILES_AT_ONCE];
    float x[TILES_AT_ONCE][CHUNKS_AT_ONCE];
#pragma unroll
    for (uint32_t q = 0; q < TILES_AT_ONCE; q++) {
        uint64_t tile = t + q * TAM_BLOCK_THREADS;
        first[q] = tile < end ? job.grid.tile_chunks[tile] : 0;
        count[q] = tile < end ? job.grid.tile_chunks[tile + 1] - first[q] : 0;
    }
#pragma unroll
    for (uint32_t q = 0; q < TILES_AT_ONCE; q++)
#pragma unroll
        for (uint32_t c = 0; c < CHUNKS_AT_ONCE; c++)
            x[q][c] = c < count[q] ? job.chunk_sums[first[q] + c] : 0.0f;
#pragma unroll
    for (uint32_t q = 0; q < TILES_AT_ONCE; q++) {
        double sum = 0.0; /* adding +0 for missing chunks changes nothing */
#pragma unroll
        for (uint32_t c = 0; c < CHUNKS_AT_ONCE; c++)
            sum += (double)x[q][c];
        for (uint32_t c = CHUNKS_AT_ONCE; c < count[q]; c++)
            sum += (double)job.chunk_sums[first[q] + c];
        u += sum;
    }
    return u;
}

static __device__ void sum_group(const tam_cuda_accumulate &job, uint32_t g) {
    __shared__ double u[TAM_BLOCK_THREADS];
    const tam_group group = job.grid.groups[g];
    uint64_t end = (uint64_t)group.first_tile + group.ntiles;
    double sum = 0.0;
    for (uint64_t t = group.first_tile + threadIdx.x; t < end;
         t += TILES_AT_ONCE * TAM_BLOCK_THREADS)
        sum = add_tiles(job, t, end, sum);
    u[threadIdx.x] = sum;
    for (uint32_t step = TAM_BLOCK_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step)
            u[threadIdx.x] += u[threadIdx.x + step];
    }
    if (threadIdx.x == 0)
        job.group_sums[g] = u[0];
    __syncthreads();
}

/* -- the list --------------------------------------------------------------------------------- */

/* Candidates of as many chunks as the block has threads. */
struct batch {
    uint32_t before[TAM_BLOCK_THREADS]; /* candidates of the chunks before */
    uint32_t offset[TAM_BLOCK_THREADS]; /* in the pool */
    uint32_t group[TAM_BLOCK_THREADS];
};

/* The last chunk of the batch that has at most `entry` candidates before it. */
static __device__ uint32_t chunk_with(const batch &b, uint32_t entry) {
    uint32_t chunk = 0;
    for (uint32_t step = TAM_BLOCK_THREADS / 2; step > 0; step /= 2)
        chunk += b.before[chunk + step] <= entry ? step : 0;
    return chunk;
}

/* @return  candidates in chunks `first` to first + 255, before `end` */
static __device__ uint32_t fill_batch(const tam_cuda_accumulate &job, uint32_t first, uint32_t end,
                                      batch *b) {
    using scan = cub::BlockScan<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename scan::TempStorage memory;
    uint32_t count = 0, before, all, i = first + threadIdx.x;
    __syncthreads(); /* the previous batch has been copied */
    if (i < end) {
        tam_cuda_chunk chunk = tam_chunk_of(job.grid, i);
        if (tam_owns_part(job.turn->mine, chunk.part)) {
            count = job.candidates.chunk_count[i];
            b->offset[threadIdx.x] = job.candidates.chunk_offset[i];
            b->group[threadIdx.x] = chunk.group;
        }
    }
    scan(memory).ExclusiveSum(count, before, all);
    b->before[threadIdx.x] = before;
    __syncthreads();
    return all;
}

/* Block b of `blocks` copies the candidates of its runs of the pass, and visits each:
 * visit(magnitude, group). */
template <typename VISIT>
static __device__ void list_runs(const tam_cuda_accumulate &job, uint32_t b, uint32_t blocks,
                                 VISIT visit) {
    __shared__ batch now;
    const tam_cuda_candidates &list = job.candidates;
    tam_run runs = tam_run_of(0, job.grid.nruns, b, blocks);
    tam_run chunks = tam_chunks_of(job.grid, runs);
    uint32_t to = tam_sum_before(list.run_count, runs.first);
    for (uint32_t i = chunks.first; i < chunks.end; i += TAM_BLOCK_THREADS) {
        uint32_t all = fill_batch(job, i, chunks.end, &now);
        for (uint32_t entry = threadIdx.x; entry < all; entry += TAM_BLOCK_THREADS) {
            uint32_t chunk = chunk_with(now, entry);
            uint32_t from = now.offset[chunk] + (entry - now.before[chunk]);
            uint32_t magnitude = list.pool_magnitude[from];
            list.index[to + entry] = list.pool_index[from];
            list.magnitude[to + entry] = magnitude;
            list.group[to + entry] = now.group[chunk];
            visit(magnitude, &now.group[chunk]);
        }
        to += all;
    }
}

/* -- the kernels ------------------------------------------------------------------------------ */

/* The first `summing` blocks. */
static __device__ void sum_groups(const tam_cuda_accumulate &job, uint32_t summing) {
    for (uint32_t g = blockIdx.x; g < job.grid.ngroups; g += summing)
        sum_group(job, g);
}

/* In every block; one says so for all. @return whether the list is complete */
static __device__ bool close_list(const tam_cuda_accumulate &job) {
    uint64_t total = job.found->total;
    bool complete =
        total <= job.candidates.capacity && job.found->pool_used <= job.candidates.pool_capacity;
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
        job.found->complete = complete;
        job.found->count = complete ? (uint32_t)total : 0;
    }
    return complete;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    collect(const tam_cuda_accumulate job, uint32_t summing) {
    if (blockIdx.x < summing)
        sum_groups(job, summing);
    else if (close_list(job))
        list_runs(job, blockIdx.x - summing, gridDim.x - summing,
                  [](uint32_t, const uint32_t *) {});
}

/* The list is written only if the cut takes it. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    collect_counted(const tam_cuda_accumulate job, const tam_cuda_cut cut, uint32_t summing) {
    if (blockIdx.x < summing)
        sum_groups(job, summing);
    bool complete = close_list(job);
    tam_count_list(cut, complete, (uint32_t)job.found->total, [&](auto visit) {
        if (blockIdx.x < summing)
            return;
        list_runs(job, blockIdx.x - summing, gridDim.x - summing,
                  [&](uint32_t magnitude, const uint32_t *group) {
                      visit(tam_candidate_key(cut, magnitude, group));
                  });
    });
}

/* -- launch ----------------------------------------------------------------------------------- */

static uint32_t summing_blocks(const tam_cuda_accumulate *job) {
    return job->grid.ngroups < job->grid.blocks ? job->grid.ngroups : job->grid.blocks;
}

extern "C" int tam_launch_collect(const tam_cuda_accumulate *job, void *stream) {
    uint32_t summing = summing_blocks(job);
    return tam_launch(collect, summing + job->grid.blocks, stream, *job, summing);
}

extern "C" int tam_launch_collect_counted(const tam_cuda_accumulate *job, const tam_cuda_cut *cut,
                                          void *stream) {
    uint32_t summing = summing_blocks(job);
    return tam_launch(collect_counted, summing + job->grid.blocks, stream, *job, *cut, summing);
}
