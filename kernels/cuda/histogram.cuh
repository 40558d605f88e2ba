/* SPDX-License-Identifier: MIT
 *
 * The histograms of a selection, and its first pass: digit 1 of the list, and whether the list
 * suffices.
 */
#ifndef TAM_CUDA_HISTOGRAM_CUH
#define TAM_CUDA_HISTOGRAM_CUH

#include "kernels/cuda/select.cuh"

/* -- histograms ------------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t tam_shift_of(uint32_t digit) {
    return digit == 0 ? 20 : digit == 1 ? 9 : 0;
}

/* Most magnitudes of a gradient share a few exponents, so most lanes of a warp would add to the
 * same few words of the first digit, one after another. Each bin has copies, side by side,
 * for lanes to share. */
enum { TAM_COPIES = 4 };

template <uint32_t EACH> static __device__ void tam_clear_bins(uint32_t *bins) {
    for (uint32_t i = threadIdx.x; i < EACH * TAM_DIGITS; i += TAM_BLOCK_THREADS)
        bins[i] = 0;
    __syncthreads();
}

template <uint32_t EACH>
static __device__ void tam_add_bins(const uint32_t *bins, uint32_t *histogram) {
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < TAM_DIGITS; i += TAM_BLOCK_THREADS) {
        uint32_t sum = 0;
        for (uint32_t copy = 0; copy < EACH; copy++)
            sum += bins[i * EACH + copy];
        if (sum > 0)
            atomicAdd(histogram + i, sum);
    }
}

/* Find the bin that holds the rank-th largest key; rank becomes its rank in that bin. Each thread
 * takes 8 bins, the largest first. */
static __device__ void tam_find_digit(const volatile uint32_t *histogram, uint32_t digit,
                                      tam_cuda_search *search) {
    enum { BINS = TAM_DIGITS / TAM_BLOCK_THREADS };
    using scan = cub::BlockScan<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename scan::TempStorage memory;
    uint32_t rank = search->rank, sum = 0, before;
    uint32_t highest = TAM_DIGITS - 1 - BINS * threadIdx.x;
    for (uint32_t i = 0; i < BINS; i++)
        sum += histogram[highest - i];
    scan(memory).ExclusiveSum(sum, before); /* all have read the rank when this returns */
    if (before >= rank || rank - before > sum)
        return;
    uint32_t bin = highest;
    for (rank -= before; histogram[bin] < rank; bin--)
        rank -= histogram[bin];
    search->key |= bin << tam_shift_of(digit);
    search->rank = rank;
}

/* -- the first pass --------------------------------------------------------------------------- */

/* In the last block: set how many to choose, and find the first digit. */
static __device__ void tam_begin_search(const tam_cuda_select_job &job, uint32_t source,
                                        uint32_t eligible) {
    tam_cuda_search *search = job.select.search;
    uint32_t k = job.params->k < eligible ? job.params->k : eligible;
    if (threadIdx.x == 0) {
        job.selected->count = k;
        job.selected->candidates = eligible;
        job.selected->deferred = job.kind == TAM_SELECT_ALL ? eligible - k : 0;
        job.selected->rescanned = source == TAM_FROM_CHUNKS;
        search->source = k > 0 ? source : (uint32_t)TAM_FROM_NOTHING;
        search->rank = k;
    }
    __syncthreads();
    if (k > 0)
        tam_find_digit(job.select.histogram, 0, search);
}

/* All blocks of a launch call it. `walk(visit)` calls visit(key) for each entry of this block's
 * part of the list; it is not called if the list does not serve.
 * @param complete, count  what collect says of the list */
template <typename WALK>
static __device__ void tam_count_list(const tam_cuda_select_job &job, bool complete, uint32_t count,
                                      WALK walk) {
    __shared__ uint32_t bins[TAM_COPIES * TAM_DIGITS];
    __shared__ uint32_t reach;
    const tam_cuda_params params = *job.params;
    tam_cuda_search *search = job.select.search;
    bool total = job.kind == TAM_SELECT_TOTAL;
    if (params.broken || (total && params.k == 0))
        return;
    bool serves = params.listed && complete;
    if (serves) {
        uint32_t mine = 0, *copy = bins + threadIdx.x % TAM_COPIES;
        tam_clear_bins<TAM_COPIES>(bins);
        walk([&](uint32_t key) {
            atomicAdd(&copy[(key >> tam_shift_of(0)) * TAM_COPIES], 1u);
            mine += key >= params.floor;
        });
        tam_add_bins<TAM_COPIES>(bins, job.select.histogram);
        if (threadIdx.x == 0)
            reach = 0;
        __syncthreads();
        atomicAdd(&reach, mine);
        __syncthreads();
        if (threadIdx.x == 0 && reach > 0)
            atomicAdd(&search->reach, reach);
    }
    if (!tam_last_block(&search->ticket[0]))
        return;
    if (serves && (!total || *(volatile uint32_t *)&search->reach >= params.k)) {
        tam_begin_search(job, TAM_FROM_LIST, count);
        return;
    }
    tam_clear_bins<1>(job.select.histogram);
    if (threadIdx.x == 0)
        search->source = TAM_FROM_CHUNKS;
}

#endif
