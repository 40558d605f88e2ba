/* SPDX-License-Identifier: MIT
 *
 * Selection: exactly k indices, ascending, ties to the lowest. Radix selection over keys of 31 bits
 * in digits of 11, 11 and 9. Each pass adds to a histogram; the last block to finish finds the
 * digit that holds the k-th largest key.
 *
 *     count_list     digit 1 of the list, and whether the list suffices; in a step: by collect.cu
 *     count_chunks   digit 1 of the own chunks, if it does not
 *     count_digit    digits 2 and 3 of the one that is used
 *     emit.cu        counts entries over the cutoff and at it, writes the indices
 *
 * The device decides which one is used; passes that are not needed return at once.
 */
#include "kernels/cuda/histogram.cuh"

enum { DIGITS = 3 };

/* -- histograms ------------------------------------------------------------------------------- */

/* Number of entries in the histogram, in all threads. */
static __device__ uint32_t sum_bins(const volatile uint32_t *histogram) {
    using reduce = cub::BlockReduce<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ typename reduce::TempStorage memory;
    __shared__ uint32_t all;
    uint32_t sum = 0;
    for (uint32_t i = threadIdx.x; i < TAM_DIGITS; i += TAM_BLOCK_THREADS)
        sum += histogram[i];
    sum = reduce(memory).Sum(sum);
    if (threadIdx.x == 0)
        all = sum;
    __syncthreads();
    return all;
}

/* -- passes ----------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    count_list(const tam_cuda_select_job job) {
    tam_count_list(job, job.found->complete, job.found->count,
                   [&](auto visit) { tam_walk_list(job, visit); });
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    select_count_chunks(const tam_cuda_select_job job) {
    __shared__ uint32_t bins[TAM_COPIES * TAM_DIGITS];
    if (job.select.search->source != TAM_FROM_CHUNKS)
        return;
    tam_clear_bins<TAM_COPIES>(bins);
    uint32_t *mine = bins + threadIdx.x % TAM_COPIES;
    tam_walk_chunks(
        job, [&](uint32_t key) { atomicAdd(&mine[(key >> tam_shift_of(0)) * TAM_COPIES], 1u); },
        [](uint32_t) {});
    tam_add_bins<TAM_COPIES>(bins, job.select.histogram);
    if (tam_last_block(&job.select.search->ticket[1]))
        tam_begin_search(job, TAM_FROM_CHUNKS, sum_bins(job.select.histogram));
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    select_count_digit(const tam_cuda_select_job job, uint32_t digit) {
    __shared__ uint32_t bins[TAM_DIGITS];
    tam_cuda_search *search = job.select.search;
    uint32_t source = search->source, shift = tam_shift_of(digit), above = tam_shift_of(digit - 1);
    uint32_t prefix = search->key >> above, *histogram = job.select.histogram + digit * TAM_DIGITS;
    if (source == TAM_FROM_NOTHING)
        return;
    auto visit = [&](uint32_t key) {
        if (key >> above == prefix)
            atomicAdd(&bins[key >> shift & ((1u << (above - shift)) - 1)], 1u);
    };
    tam_clear_bins<1>(bins);
    if (source == TAM_FROM_LIST)
        tam_walk_list(job, visit);
    else
        tam_walk_chunks(job, visit, [](uint32_t) {});
    tam_add_bins<1>(bins, histogram);
    if (!tam_last_block(&search->ticket[1 + digit]))
        return;
    tam_find_digit(histogram, digit, search);
    __syncthreads();
    if (digit == DIGITS - 1 && threadIdx.x == 0)
        job.selected->key = *(volatile uint32_t *)&search->key;
}

/* -- launch ----------------------------------------------------------------------------------- */

/* A thread for each word of the histograms. */
enum { CLEARING = DIGITS * TAM_DIGITS / TAM_BLOCK_THREADS };

static __device__ void select_clear(const tam_cuda_fresh &fresh) {
    uint32_t i = blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x;
    for (uint32_t w = i; w < fresh.scratch.count; w += gridDim.x * TAM_BLOCK_THREADS)
        fresh.scratch.words[w] = 0;
    fresh.select.histogram[i] = 0;
    if (i > 0)
        return;
    if (fresh.found)
        *fresh.found = tam_cuda_found{};
    if (fresh.agreed.to)
        *fresh.agreed.to = fresh.agreed.value;
    *fresh.select.search = tam_cuda_search{};
    *fresh.selected = tam_cuda_select_result{};
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) reset(const tam_cuda_fresh fresh) {
    select_clear(fresh);
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    select_start(tam_cuda_source *to, const tam_cuda_source value, const tam_cuda_fresh fresh) {
    select_clear(fresh);
    if (tam_thread_of_grid() == 0)
        *to = value;
}

extern "C" int tam_launch_reset(const tam_cuda_fresh *fresh, void *stream) {
    return tam_launch(reset, CLEARING, stream, *fresh);
}

extern "C" int tam_launch_start(tam_cuda_source *to, tam_cuda_source value,
                                const tam_cuda_fresh *fresh, void *stream) {
    return tam_launch(select_start, CLEARING, stream, to, value, *fresh);
}

extern "C" int tam_launch_search(const tam_cuda_select_job *job, void *stream) {
    uint32_t blocks = job->grid.blocks;
    int error = tam_launch(select_count_chunks, blocks, stream, *job);
    for (uint32_t digit = 1; digit < DIGITS && !error; digit++)
        error = tam_launch(select_count_digit, blocks, stream, *job, digit);
    return error;
}

extern "C" int tam_launch_select(const tam_cuda_select_job *job, void *stream) {
    int error = tam_launch(count_list, job->grid.blocks, stream, *job);
    if (!error)
        error = tam_launch_search(job, stream);
    return error ? error : tam_launch_emit(job, stream);
}
