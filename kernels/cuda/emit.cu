/* SPDX-License-Identifier: MIT
 *
 * The end of a selection. It chooses all keys over the cutoff and the first few of those equal to
 * it. The number of both kinds before an entry gives its position in the result.
 *
 *     count_cutoff   counts both kinds by block, and by chunk
 *     emit           prefix sums give every block, chunk and lane its position
 *     emit_sealed    the same into a packet, which is then complete: its last block seals it
 */
#include "kernels/cuda/seal.cuh"
#include "kernels/cuda/select.cuh"

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    count_cutoff(const tam_cuda_select_job job) {
    using reduce = cub::BlockReduce<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename reduce::TempStorage memory[2];
    uint32_t source = job.select.search->source, cutoff = job.select.search->key;
    uint32_t more = 0, ties = 0; /* of this thread: in this chunk */
    uint32_t all_more = 0, all_ties = 0;
    auto visit = [&](uint32_t key) {
        more += key > cutoff;
        ties += key == cutoff;
    };
    auto leave = [&](uint32_t chunk) {
        uint32_t both = more << 16 | ties;
        for (uint32_t step = 16; step > 0; step /= 2)
            both += __shfl_down_sync(TAM_WARP, both, step);
        if (threadIdx.x % 32 == 0) {
            job.candidates.chunk_count[chunk] = both >> 16;
            job.candidates.chunk_offset[chunk] = both & 0xffffu;
        }
        all_more += more;
        all_ties += ties;
        more = ties = 0;
    };
    if (source == TAM_FROM_NOTHING)
        return;
    if (source == TAM_FROM_LIST)
        tam_walk_list(job, visit);
    else
        tam_walk_chunks(job, visit, leave);
    more = reduce(memory[0]).Sum(more + all_more);
    ties = reduce(memory[1]).Sum(ties + all_ties);
    if (threadIdx.x == 0) {
        job.select.block_more[blockIdx.x] = more;
        job.select.block_ties[blockIdx.x] = ties;
    }
}

/* -- the result ------------------------------------------------------------------------------- */

struct writer {
    uint32_t *indices;
    uint32_t cutoff, ties; /* how many of those equal to the cutoff are taken */
    uint32_t more, equal;  /* before the next entry of this block; the same in all threads */
    uint64_t checksum;     /* of what this thread wrote */
};

static __device__ void emit_put(writer *w, uint32_t key, uint32_t more, uint32_t equal,
                                uint32_t index) {
    if (key < w->cutoff || (key == w->cutoff && equal >= w->ties))
        return;
    uint32_t place = more + (equal < w->ties ? equal : w->ties);
    w->indices[place] = index;
    w->checksum += tam_sum_word(TAM_SUM_INDICES, place, index);
}

enum { NEIGHBOURS = 4 };

/* Neighbours in the list, for a thread: from entry `at` on, before `end`. */
struct neighbours {
    uint32_t key[NEIGHBOURS];
    uint32_t both; /* how many are over the cutoff << 16, and equal to it */
};

static __device__ __forceinline__ neighbours load_keys(const tam_cuda_select_job &job, uint64_t at,
                                                       uint32_t end, uint32_t cutoff) {
    neighbours mine;
    mine.both = 0;
#pragma unroll
    for (uint32_t q = 0; q < NEIGHBOURS; q++)
        mine.key[q] = at + q < end ? tam_list_key(job, (uint32_t)(at + q)) : 0;
#pragma unroll
    for (uint32_t q = 0; q < NEIGHBOURS; q++)
        if (at + q < end)
            mine.both += mine.key[q] > cutoff ? 1u << 16 : mine.key[q] == cutoff;
    return mine;
}

static __device__ void emit_list(const tam_cuda_select_job &job, writer *w) {
    using scan = cub::BlockScan<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename scan::TempStorage memory;
    tam_run run = tam_list_run(job);
    for (uint64_t from = run.first; from < run.end; from += NEIGHBOURS * TAM_BLOCK_THREADS) {
        uint64_t at = from + NEIGHBOURS * threadIdx.x;
        const neighbours mine = load_keys(job, at, run.end, w->cutoff);
        uint32_t before, all;
        scan(memory).ExclusiveSum(mine.both, before, all);
        uint32_t more = w->more + (before >> 16), equal = w->equal + (before & 0xffffu);
#pragma unroll
        for (uint32_t q = 0; q < NEIGHBOURS; q++) {
            uint32_t key = mine.key[q];
            if (at + q >= run.end || key < w->cutoff)
                continue;
            emit_put(w, key, more, equal, job.candidates.index[at + q]);
            more += key > w->cutoff;
            equal += key == w->cutoff;
        }
        w->more += all >> 16;
        w->equal += all & 0xffffu;
        __syncthreads(); /* memory is reused */
    }
}

/* One warp, one chunk; elements of one register are neighbours. */
static __device__ void emit_chunk(const tam_cuda_select_job &job, const tam_cuda_chunk &chunk,
                                  uint32_t more, uint32_t equal, writer *w) {
    uint32_t lane = threadIdx.x % 32, below = (1u << lane) - 1;
    tam_rule rule = tam_rule_of(job, chunk.group);
    for (uint32_t r = 0; r < 16; r++) {
        uint32_t i = tam_element_of<TAM_PART>(lane, r), key = 0;
        bool takes_part = false;
        if (i < chunk.length) {
            uint32_t magnitude = tam_magnitude_of(job.acc[chunk.begin + i]);
            key = tam_key_by(rule, magnitude);
            takes_part = magnitude >= rule.least;
        }
        uint32_t overs = __ballot_sync(TAM_WARP, takes_part && key > w->cutoff);
        uint32_t equals = __ballot_sync(TAM_WARP, takes_part && key == w->cutoff);
        if (takes_part)
            emit_put(w, key, more + (uint32_t)__popc(overs & below),
                     equal + (uint32_t)__popc(equals & below), chunk.begin + i);
        more += (uint32_t)__popc(overs);
        equal += (uint32_t)__popc(equals);
    }
}

static __device__ void emit_chunks(const tam_cuda_select_job &job, writer *w) {
    using scan = cub::BlockScan<uint64_t, TAM_BLOCK_THREADS>;
    __shared__ typename scan::TempStorage memory;
    __shared__ uint32_t more[TAM_BLOCK_THREADS], equal[TAM_BLOCK_THREADS], any[TAM_BLOCK_THREADS];
    tam_run run = tam_chunk_run(job);
    for (uint32_t at = run.first; at < run.end; at += TAM_BLOCK_THREADS) {
        uint32_t i = at + threadIdx.x, left = run.end - at;
        uint64_t both = 0, before, all;
        if (i < run.end)
            both = (uint64_t)job.candidates.chunk_count[i] << 32 | job.candidates.chunk_offset[i];
        scan(memory).ExclusiveSum(both, before, all);
        more[threadIdx.x] = w->more + (uint32_t)(before >> 32);
        equal[threadIdx.x] = w->equal + (uint32_t)before;
        any[threadIdx.x] = both >> 32 > 0 || (both > 0 && equal[threadIdx.x] < w->ties);
        __syncthreads();
        for (uint32_t c = threadIdx.x / 32; c < TAM_BLOCK_THREADS && c < left; c += TAM_BLOCK_WARPS)
            if (any[c])
                emit_chunk(job, tam_chunk_of(job.grid, at + c), more[c], equal[c], w);
        w->more += (uint32_t)(all >> 32);
        w->equal += (uint32_t)all;
        __syncthreads(); /* shared memory is reused */
    }
}

static __device__ void emit_write_indices(const tam_cuda_select_job &job) {
    using reduce = cub::BlockReduce<uint64_t, TAM_BLOCK_THREADS>;
    __shared__ typename reduce::TempStorage memory;
    const tam_cuda_search search = *job.select.search;
    if (search.source == TAM_FROM_NOTHING)
        return;
    writer w = {job.indices, search.key, search.rank, 0, 0, 0};
    w.more = tam_sum_before(job.select.block_more, blockIdx.x);
    w.equal = tam_sum_before(job.select.block_ties, blockIdx.x);
    if (search.source == TAM_FROM_LIST)
        emit_list(job, &w);
    else
        emit_chunks(job, &w);
    uint64_t checksum = reduce(memory).Sum(w.checksum);
    if (threadIdx.x == 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&job.selected->checksum),
                  (unsigned long long)checksum);
}

/* -- the kernels ------------------------------------------------------------------------------ */

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    emit(const tam_cuda_select_job job) {
    emit_write_indices(job);
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    emit_sealed(const tam_cuda_select_job job, const tam_cuda_exchange x) {
    emit_write_indices(job);
    if (tam_last_block(&x.scratch->sealed))
        tam_seal_packet(x, 0.0);
}

/* -- launch ----------------------------------------------------------------------------------- */

extern "C" int tam_launch_emit(const tam_cuda_select_job *job, void *stream) {
    int error = tam_launch(count_cutoff, job->grid.blocks, stream, *job);
    return error ? error : tam_launch(emit, job->grid.blocks, stream, *job);
}

extern "C" int tam_launch_emit_sealed(const tam_cuda_select_job *job,
                                      const tam_cuda_exchange *packet, void *stream) {
    int error = tam_launch(count_cutoff, job->grid.blocks, stream, *job);
    return error ? error : tam_launch(emit_sealed, job->grid.blocks, stream, *job, *packet);
}
