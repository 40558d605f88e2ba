/* SPDX-License-Identifier: MIT
 *
 * Small parts of the kernels of the exchange: packets, checksums, sums in a fixed order.
 */
#ifndef TAM_CUDA_PACKETS_CUH
#define TAM_CUDA_PACKETS_CUH

#include "kernels/cuda/kernel.cuh"

#include "kernels/cuda/exchange.h"
#include "lib/base/tree.h"

/* -- packets ---------------------------------------------------------------------------------- */

static __device__ __forceinline__ tam_header *tam_header_of(const tam_cuda_packets &s, uint32_t r) {
    return reinterpret_cast<tam_header *>(s.memory + r * s.bytes);
}

/** Counters, and behind them the shares of means. */
static __device__ __forceinline__ float *tam_counters_of(const tam_cuda_packets &s, uint32_t r) {
    return reinterpret_cast<float *>(tam_header_of(s, r) + 1);
}

static __device__ __forceinline__ size_t tam_packet_header_bytes(const tam_cuda_packets &s) {
    return tam_header_bytes(TAM_COUNTERS + s.nstats + s.nwords);
}

/** A rank of the communicator. */
static __device__ __forceinline__ uint32_t tam_rank_of(const tam_cuda_packets &s, uint32_t r) {
    return s.first + r * s.stride;
}

/** Behind the counters. */
static __device__ __forceinline__ uint32_t *tam_words_of(const tam_cuda_packets &s, uint32_t r) {
    return reinterpret_cast<uint32_t *>(tam_counters_of(s, r) + TAM_COUNTERS + s.nstats);
}

TAM_SHARED bool tam_is_packed(const tam_cuda_packets &s) {
    return s.packed.index_codec != TAMIS_INDEX_AUTO;
}

/** What a packet holds behind its header: indices, or their codes. */
static __device__ __forceinline__ uint32_t *tam_codes_of(const tam_cuda_packets &s, uint32_t r) {
    return reinterpret_cast<uint32_t *>(s.memory + r * s.bytes + tam_packet_header_bytes(s));
}

static __device__ __forceinline__ uint32_t *tam_indices_of(const tam_cuda_packets &s, uint32_t r) {
    return tam_is_packed(s) ? s.packed.lists + (uint64_t)r * s.capacity : tam_codes_of(s, r);
}

/** Entries of a list, or words of its codes, at most. */
TAM_SHARED uint32_t tam_packet_words(const tam_cuda_packets &s) {
    return s.index_bytes / 4 > s.capacity ? s.index_bytes / 4 : s.capacity;
}

/** pairs: encoded by their value codec. */
static __device__ __forceinline__ unsigned char *tam_values_of(const tam_cuda_packets &s,
                                                               uint32_t r) {
    return reinterpret_cast<unsigned char *>(tam_codes_of(s, r)) + s.index_bytes;
}

/** The sum of squares of a group, as a mean over ranks. */
static __device__ __forceinline__ double tam_mean_of(const tam_cuda_packets &s, uint32_t group) {
    uint32_t own = tam_tree_own(s.nranks);
    tam_tree_sum mean;
    mean.count = mean.vrank = 0;
    for (uint32_t r = 0; r < s.nranks; r++)
        tam_tree_add(&mean, tam_tree_vrank(r, own), tam_counters_of(s, r)[TAM_COUNTERS + group]);
    return tam_tree_end(&mean);
}

/** Entries of a list, limited to the capacity: a damaged packet may claim more. */
static __device__ __forceinline__ uint32_t tam_count_of(const tam_cuda_packets &s, uint32_t r) {
    uint32_t count = tam_header_of(s, r)->count;
    return count < s.capacity ? count : s.capacity;
}

/** Bytes of packed indices, at most as many as fit. */
static __device__ __forceinline__ uint32_t tam_code_bytes_of(const tam_cuda_packets &s,
                                                             uint32_t r) {
    uint32_t bytes = tam_header_of(s, r)->index_bytes;
    return bytes < s.index_bytes ? bytes : s.index_bytes;
}

/** Word w of so many bytes; those past the end are 0. */
static __device__ __forceinline__ uint32_t tam_word_of(const void *memory, uint32_t bytes,
                                                       uint32_t w) {
    uint32_t whole = bytes / 4;
    uint32_t known = w < whole ? UINT32_MAX : w == whole ? (1u << bytes % 4 * 8) - 1 : 0;
    return known > 0 ? static_cast<const uint32_t *>(memory)[w] & known : 0;
}

/** This thread's part of the sum tam_sum_bytes of so many bytes, of their words from `begin` to
 * `end`. The last word may be incomplete. */
static __device__ __forceinline__ uint64_t tam_part_of_bytes(uint32_t area, const void *memory,
                                                             uint32_t bytes, uint32_t begin,
                                                             uint32_t end) {
    uint32_t nwords = bytes / 4 + (bytes % 4 > 0);
    uint64_t sum = 0;
    end = end < nwords ? end : nwords;
    for (uint32_t i = begin + threadIdx.x; i < end; i += TAM_BLOCK_THREADS)
        sum += tam_sum_word(area, i, tam_word_of(memory, bytes, i));
    return sum;
}

/** This thread's part of the sum tam_sum_header. */
static __device__ __forceinline__ uint64_t tam_part_of_header(const tam_cuda_packets &s,
                                                              uint32_t r) {
    const uint32_t *words = reinterpret_cast<const uint32_t *>(tam_header_of(s, r));
    uint32_t nwords = (uint32_t)(tam_packet_header_bytes(s) / sizeof words[0]);
    uint32_t hole = offsetof(tam_header, check) / 4;
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < nwords; i += TAM_BLOCK_THREADS)
        sum += tam_sum_word(TAM_SUM_HEADER, i, i == hole ? 0 : words[i]);
    return sum;
}

static __device__ __forceinline__ uint64_t tam_config_of(const tam_cuda_exchange &x) {
    return x.record->config + x.record->agreed;
}

/** What the header of rank r must say. */
static __device__ __forceinline__ tam_header_due tam_due_of(const tam_cuda_exchange &x,
                                                            uint32_t r) {
    tam_header_due due = {tam_config_of(x), x.params->step, x.record->last_result, r,
                          x.packets.capacity};
    return due;
}

/** Clear the packets of the last step: what this step's gather does not overwrite must not look
 * valid. All threads of a block. */
static __device__ __forceinline__ void tam_forget_packets(const tam_cuda_exchange &x) {
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS) {
        if (r != x.packets.rank)
            tam_header_of(x.packets, r)->step_flags = 0; /* not sealed */
    }
}

static __device__ __forceinline__ uint32_t tam_at_most_32_bits(uint64_t count) {
    return count < UINT32_MAX ? (uint32_t)count : UINT32_MAX;
}

/** Host: one block for each of `count` tasks, up to job->blocks. */
static inline unsigned tam_blocks_for(const tam_cuda_exchange *job, uint64_t count) {
    if (count > job->blocks)
        count = job->blocks;
    return count > 0 ? (unsigned)count : 1;
}

/** Pieces of a list. */
TAM_SHARED uint32_t tam_pieces_of(uint64_t count) {
    return (uint32_t)((count + TAM_PIECE - 1) / TAM_PIECE);
}

/* -- the whole block -------------------------------------------------------------------------- */

/** Sum over the block modulo 2^64, in all threads. */
static __device__ __forceinline__ uint64_t tam_block_sum(uint64_t mine) {
    typedef cub::BlockReduce<unsigned long long, TAM_BLOCK_THREADS> reduce;
    __shared__ typename reduce::TempStorage space;
    __shared__ uint64_t all;
    uint64_t sum = reduce(space).Sum(mine);
    if (threadIdx.x == 0)
        all = sum;
    __syncthreads();
    sum = all;
    __syncthreads(); /* `space` and `all` may be used again */
    return sum;
}

static_assert((int)TAM_BLOCK_THREADS == (int)TAM_FOLD_LANES, "a lane is a thread");

/** Sum over the block, in all threads, in the order of lib/base/fold.h. */
static __device__ __forceinline__ double tam_block_fold(double mine) {
    __shared__ double warps[TAM_BLOCK_WARPS];
    for (int by = 16; by > 0; by /= 2)
        mine += __shfl_down_sync(TAM_WARP, mine, by);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = mine;
    __syncthreads();
    double sum = ((warps[0] + warps[4]) + (warps[2] + warps[6])) +
                 ((warps[1] + warps[5]) + (warps[3] + warps[7]));
    __syncthreads();
    return sum;
}

/** Fold a list. */
static __device__ __forceinline__ double tam_block_fold_list(const double *list, uint32_t count) {
    double mine = 0.0;
    for (uint32_t i = threadIdx.x; i < count; i += TAM_BLOCK_THREADS)
        mine += list[i];
    return tam_block_fold(mine);
}

static __device__ __forceinline__ void tam_add64(uint64_t *to, uint64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long *>(to), (unsigned long long)value);
}

/** The number of entries below `end`; any number up to count if the list is out of order. */
static __device__ __forceinline__ uint32_t tam_entries_before(const uint32_t *list, uint32_t count,
                                                              uint64_t end) {
    uint32_t from = 0;
    while (from < count) {
        uint32_t middle = from + (count - from) / 2;
        if (list[middle] < end)
            from = middle + 1;
        else
            count = middle;
    }
    return from;
}

#endif
