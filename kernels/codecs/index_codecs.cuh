/* SPDX-License-Identifier: MIT
 *
 * What index codecs share on a device: a list that travels packed, its elements, its positions in a
 * part, its codes. Each index_<name>.cuh has two functions that enqueue kernels. Bytes and refusals
 * are those of index_<name>.c:
 *
 *     tam_pack_<name>     the own list, as selected, in packed.lists; its codes by tam_pack_codes,
 *                         which also seals a packet without values
 *     tam_unpack_<name>   those of the other ranks, checked: a code that no encoder writes is a
 *                         fault
 *
 * block16 and rice are read and written by many blocks; of the others one block takes a list, 256
 * threads at a time, with what the threads before found carried along.
 */
#ifndef TAM_KERNELS_CODECS_INDEX_CODECS_CUH
#define TAM_KERNELS_CODECS_INDEX_CODECS_CUH

#include "kernels/cuda/seal.cuh"

#include "kernels/codecs/index_code.h"

/* A list and its codes. */
struct packing {
    tam_strided part;
    uint64_t span;
    uint32_t *list; /* elements */
    unsigned char *codes;
    uint32_t count, bytes, capacity;
    uint32_t most_bytes; /* of codes, a multiple of 4 */
};

static __device__ __forceinline__ packing packing_of(const tam_cuda_exchange &x, uint32_t r) {
    uint32_t part = tam_scheme_part(x.scheme, x.params->step, r, x.packets.nranks);
    packing p = {};
    p.part = x.packets.packed.parts[part];
    p.span = x.packets.packed.span;
    p.list = tam_indices_of(x.packets, r);
    p.codes = reinterpret_cast<unsigned char *>(tam_codes_of(x.packets, r));
    p.capacity = x.packets.capacity;
    p.most_bytes = x.packets.index_bytes;
    return p;
}

/* What this rank sends. */
static __device__ __forceinline__ packing own_packing(const tam_cuda_exchange &x) {
    packing p = packing_of(x, x.packets.rank);
    p.count = x.selected->count;
    return p;
}

/* What was received. */
static __device__ __forceinline__ packing packing_from(const tam_cuda_exchange &x, uint32_t r) {
    packing p = packing_of(x, r);
    p.count = tam_count_of(x.packets, r);
    p.bytes = tam_code_bytes_of(x.packets, r);
    return p;
}

static __device__ __forceinline__ uint64_t position_of(const packing &p, uint32_t i) {
    return tam_strided_position(&p.part, p.list[i]);
}

/* Positions skipped before entry i. */
static __device__ __forceinline__ uint32_t gap_before(const packing &p, uint32_t i) {
    uint64_t next = i > 0 ? position_of(p, i - 1) + 1 : 0;
    return (uint32_t)(position_of(p, i) - next);
}

/* Entries at positions below `end`. */
static __device__ __forceinline__ uint32_t entries_below(const packing &p, uint64_t end) {
    return tam_entries_before(p.list, p.count, tam_strided_element(&p.part, end));
}

/* Write entry i. What damaged codes say may be anything. @return bits of faults */
static __device__ __forceinline__ uint32_t put(const packing &p, uint64_t i, uint64_t position) {
    if (i >= p.count)
        return 1u << TAM_REFUSED_CODE;
    p.list[i] = (uint32_t)tam_strided_element(&p.part, position);
    if (position >= p.span)
        return 1u << TAM_REFUSED_CODE;
    return position < p.part.length ? 0 : 1u << TAM_REFUSED_OWNER;
}

static __device__ __forceinline__ void blame(const tam_cuda_exchange &x, uint32_t r,
                                             uint32_t faults) {
    if (faults)
        atomicOr(&x.packet_checks[r].faults, faults);
}

/* Sums over the threads before, and over the block. */
struct scan_sum {
    uint64_t before, all;
};

static __device__ __forceinline__ scan_sum scan(uint64_t mine) {
    typedef cub::BlockScan<uint64_t, TAM_BLOCK_THREADS> block_scan;
    __shared__ typename block_scan::TempStorage space;
    scan_sum sum;
    block_scan(space).ExclusiveSum(mine, sum.before, sum.all);
    __syncthreads(); /* space is reused */
    return sum;
}

/* Sums of two numbers at once: `low` sums below 2^40 in a block, `high` below 2^24. */
enum { PAIR = 40 };

static __device__ __forceinline__ scan_sum scan_pair(uint64_t high, uint64_t low) {
    return scan(high << PAIR | low);
}

static __device__ __forceinline__ uint32_t high_of(uint64_t pair) {
    return (uint32_t)(pair >> PAIR);
}

static __device__ __forceinline__ uint64_t low_of(uint64_t pair) {
    return pair & ((UINT64_C(1) << PAIR) - 1);
}

static __device__ __forceinline__ uint32_t word_of(const packing &p, uint32_t w) {
    return tam_word_of(p.codes, p.bytes, w);
}

/* -- kernels ---------------------------------------------------------------------------------- */

/* CODES::write writes the own list's codes and returns this thread's part of their checksum. Two
 * blocks of a multiprocessor at least: with fewer registers there are spills. */
template <typename CODES>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2)
    tam_pack_codes(const tam_cuda_exchange x) {
    const packing p = own_packing(x);
    uint64_t sum = tam_block_sum(CODES::write(x, p));
    if (threadIdx.x == 0)
        tam_add64(&x.scratch->sent, sum);
    if (!x.packets.with_values && tam_last_block(&x.scratch->sealed))
        tam_seal_packet(x, 0.0);
}

/* CODES::read reads the list of a rank, which a block takes; the own one is where it was. */
template <typename CODES>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    tam_unpack_lists(const tam_cuda_exchange x) {
    if (x.params->broken)
        return;
    for (uint32_t r = blockIdx.x; r < x.packets.nranks; r += gridDim.x) {
        if (r != x.packets.rank)
            CODES::read(x, r);
    }
}

/* One block writes all codes of a list, and one reads them: LIST::write returns their bytes,
 * LIST::read bits of faults. */
template <typename LIST> struct tam_codes_alone {
    static __device__ __forceinline__ uint64_t write(const tam_cuda_exchange &x, const packing &p) {
        uint32_t bytes = LIST::write(p);
        if (threadIdx.x == 0)
            x.scratch->code_bytes = bytes;
        __syncthreads(); /* the codes are written */
        return tam_part_of_bytes(TAM_SUM_INDICES, p.codes, bytes, 0, UINT32_MAX);
    }

    static __device__ __forceinline__ void read(const tam_cuda_exchange &x, uint32_t r) {
        blame(x, r, LIST::read(packing_from(x, r)));
    }
};

template <typename LIST> static int tam_pack_alone(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(tam_pack_codes<tam_codes_alone<LIST>>, 1, stream, *job);
}

template <typename CODES> static int tam_launch_lists(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(tam_unpack_lists<CODES>, tam_blocks_for(job, job->packets.nranks), stream,
                      *job);
}

/* Blocks for a pass over the codes, a word for each thread. */
static inline unsigned tam_code_blocks(const tam_cuda_exchange *job) {
    return tam_blocks_for(job, job->packets.index_bytes / 4 / TAM_BLOCK_THREADS + 1);
}

#endif
