/* SPDX-License-Identifier: MIT
 *
 * After the pass: the pool becomes one ascending list, sums of chunks become sums of groups. In one
 * launch some blocks do the sums, the others the list; in a step, where a selection follows, they
 * also count the list for its first pass.
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

static __device__ void collect_sum_group(const tam_cuda_accumulate &job, uint32_t g) {
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
        if (tam_owns_part(job.params->mine, chunk.part)) {
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

/* A place on the way through the list, where a run of the pass is as long as it takes: its entries,
 * and as many more as its chunks take without any. So no block gets all of a dense layer, nor all
 * of an empty one. */
struct waypoint {
    uint32_t run;    /* that the place lies in */
    uint32_t before; /* entries of the runs before it */
    uint32_t entry;  /* the first one behind the place */
};

static __device__ __forceinline__ uint64_t way_of_run(const tam_cuda_accumulate &job) {
    return 2 * job.grid.run; /* reading a chunk costs about as much as copying two entries */
}

/* Each thread goes through a part of the runs, from weight `way` on, `before` entries before them;
 * whoever passes the place writes it. */
static __device__ void look_for(const tam_cuda_accumulate &job, tam_run runs, uint64_t way,
                                uint32_t before, uint64_t place, waypoint *to) {
    for (uint32_t r = runs.first; r < runs.end; r++) {
        uint32_t count = job.candidates.run_count[r];
        uint64_t length = count + way_of_run(job);
        if (way <= place && place < way + length) {
            uint64_t inside = place - way;
            *to = {r, before, before + (inside < count ? (uint32_t)inside : count)};
        }
        way += length;
        before += count;
    }
}

/* Where the part of block b of `blocks` begins and ends; in all threads. */
static __device__ void collect_find_part(const tam_cuda_accumulate &job, uint32_t b,
                                         uint32_t blocks, waypoint *from, waypoint *to) {
    using scan = cub::BlockScan<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename scan::TempStorage memory;
    __shared__ waypoint ends[2];
    tam_run runs = tam_run_of(0, job.grid.nruns, threadIdx.x, TAM_BLOCK_THREADS);
    uint32_t count = 0, before, all;
    for (uint32_t r = runs.first; r < runs.end; r++)
        count += job.candidates.run_count[r];
    scan(memory).ExclusiveSum(count, before, all);
    uint64_t way = before + runs.first * way_of_run(job);
    uint64_t whole = all + job.grid.nruns * way_of_run(job);
    if (threadIdx.x == 0)
        ends[1] = {job.grid.nruns, all, all}; /* the end of it all is in no run */
    __syncthreads();
    look_for(job, runs, way, before, whole * b / blocks, &ends[0]);
    look_for(job, runs, way, before, whole * (b + 1) / blocks, &ends[1]);
    __syncthreads();
    *from = ends[0];
    *to = ends[1];
}

/* Block b of `blocks` copies its part of the candidates, and visits each:
 * visit(magnitude, group). */
template <typename VISIT>
static __device__ void list_part(const tam_cuda_accumulate &job, uint32_t b, uint32_t blocks,
                                 VISIT visit) {
    __shared__ batch now;
    const tam_cuda_candidates &list = job.candidates;
    waypoint from, to;
    collect_find_part(job, b, blocks, &from, &to);
    uint32_t before = from.before; /* entries before the batch */
    for (uint32_t i = from.run * job.grid.run; i < job.grid.nchunks && before < to.entry;
         i += TAM_BLOCK_THREADS) {
        uint32_t all = fill_batch(job, i, job.grid.nchunks, &now);
        uint32_t first = from.entry > before ? from.entry - before : 0;
        uint32_t end = to.entry - before < all ? to.entry - before : all;
        for (uint32_t entry = first + threadIdx.x; entry < end; entry += TAM_BLOCK_THREADS) {
            uint32_t chunk = chunk_with(now, entry);
            uint32_t place = now.offset[chunk] + (entry - now.before[chunk]);
            uint32_t magnitude = list.pool_magnitude[place];
            list.index[before + entry] = list.pool_index[place];
            list.magnitude[before + entry] = magnitude;
            list.group[before + entry] = now.group[chunk];
            visit(magnitude, &now.group[chunk]);
        }
        before += all;
    }
}

/* -- the kernels ------------------------------------------------------------------------------ */

/* The first `summing` blocks. */
static __device__ void sum_groups(const tam_cuda_accumulate &job, uint32_t summing) {
    for (uint32_t g = blockIdx.x; g < job.grid.ngroups; g += summing)
        collect_sum_group(job, g);
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
        list_part(job, blockIdx.x - summing, gridDim.x - summing,
                  [](uint32_t, const uint32_t *) {});
}

/* The list is written only if the selection takes it. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    collect_counted(const tam_cuda_accumulate job, const tam_cuda_select_job selection,
                    uint32_t summing) {
    if (blockIdx.x < summing)
        sum_groups(job, summing);
    bool complete = close_list(job);
    tam_count_list(selection, complete, (uint32_t)job.found->total, [&](auto visit) {
        if (blockIdx.x < summing)
            return;
        list_part(job, blockIdx.x - summing, gridDim.x - summing,
                  [&](uint32_t magnitude, const uint32_t *group) {
                      visit(tam_candidate_key(selection, magnitude, group));
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

extern "C" int tam_launch_collect_counted(const tam_cuda_accumulate *job,
                                          const tam_cuda_select_job *selection, void *stream) {
    uint32_t summing = summing_blocks(job);
    return tam_launch(collect_counted, summing + job->grid.blocks, stream, *job, *selection,
                      summing);
}
