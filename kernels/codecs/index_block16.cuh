/* SPDX-License-Identifier: MIT
 *
 * The index codec block16 (kernels/codecs/index_block16.c) by many blocks.
 *
 *     pack      counts     where the blocks of the own list begin; the last block writes the counts
 *               lows       the low bits, a word for each thread
 *     unpack    counts     one block a list: where its blocks begin
 *               lows       every entry looks up its block
 */
#ifndef TAM_KERNELS_CODECS_INDEX_BLOCK16_CUH
#define TAM_KERNELS_CODECS_INDEX_BLOCK16_CUH

#include "kernels/codecs/index_codecs.cuh"

static __device__ __forceinline__ uint32_t count_bytes(uint32_t count) {
    return 1 + (count >> 7 > 0) + (count >> 14 > 0);
}

/* Write one byte of the codes. @return its part of their checksum, which is linear in a word */
static __device__ __forceinline__ uint64_t put_byte(const packing &p, uint64_t at, uint32_t value) {
    p.codes[at] = (unsigned char)value;
    return tam_sum_word(TAM_SUM_INDICES, at / 4, (value & 255u) << at % 4 * 8);
}

static __device__ __forceinline__ uint64_t put_count(const packing &p, uint64_t at,
                                                     uint32_t count) {
    uint64_t sum = 0;
    for (; count >= TAM_BLOCK16_MORE; count >>= 7)
        sum += put_byte(p, at++, count | TAM_BLOCK16_MORE);
    return sum + put_byte(p, at, count);
}

static __device__ __forceinline__ uint32_t *offsets_of(const tam_cuda_exchange &x, uint32_t r,
                                                       uint32_t blocks) {
    return x.packets.packed.offsets + (uint64_t)r * (blocks + 1);
}

/* Write the counts, whose offsets are known. One CUDA block.
 * @param sum  [in,out]  of the codes that this thread wrote  @return their bytes */
static __device__ __forceinline__ uint32_t pack_counts(const packing &p, const uint32_t *offsets,
                                                       uint64_t *sum) {
    uint32_t blocks = (uint32_t)tam_block16_blocks(p.span), done = 0;
    for (uint32_t at = 0; at < blocks; at += TAM_BLOCK_THREADS) { /* uniform in the block */
        uint32_t b = at + threadIdx.x, count = 0, bytes = 0;
        if (b < blocks) {
            uint32_t end = b + 1 < blocks ? offsets[b + 1] : p.count;
            count = end - offsets[b];
            bytes = count_bytes(count);
        }
        scan_sum places = scan_pair(0, bytes);
        if (bytes > 0)
            *sum += put_count(p, done + low_of(places.before), count);
        done += (uint32_t)low_of(places.all);
    }
    return done;
}

static __device__ __forceinline__ uint64_t low16_of(const packing &p, uint32_t i) {
    return position_of(p, i) & ((1u << TAM_BLOCK16_BITS) - 1);
}

/* Byte `at` of the codes, behind the counts. */
static __device__ __forceinline__ uint64_t put_low_byte(const packing &p, uint32_t counts,
                                                        uint32_t at) {
    uint32_t i = at - counts;
    return put_byte(p, at, (uint32_t)(low16_of(p, i / 2) >> 8 * (i % 2)));
}

/* The words that the low bits share with what is before them, and with nothing: byte by byte. */
static __device__ __forceinline__ uint64_t pack_ends(const packing &p, uint32_t counts,
                                                     uint32_t end) {
    uint32_t whole = (counts + 3) / 4 * 4, head = whole < end ? whole : end;
    uint32_t tail = end / 4 * 4 > head ? end / 4 * 4 : head;
    uint32_t first = counts + threadIdx.x, last = tail + threadIdx.x;
    return (first < head ? put_low_byte(p, counts, first) : 0) +
           (last < end ? put_low_byte(p, counts, last) : 0);
}

/* The second: low bits, a word for each thread. @return this thread's part of their checksum */
static __device__ __forceinline__ uint64_t pack_lows(const tam_cuda_exchange &x, const packing &p) {
    uint32_t end = x.scratch->code_bytes, counts = end - 2 * p.count, odd = counts % 2;
    uint64_t sum = blockIdx.x == 0 ? pack_ends(p, counts, end) : 0;
    for (uint64_t w = (counts + 3) / 4 + tam_thread_of_grid(); w < end / 4;
         w += tam_threads_of_grid()) {
        uint32_t i = (uint32_t)(4 * w - counts) / 2;
        uint64_t lows = low16_of(p, i) | low16_of(p, i + 1) << 16;
        lows |= odd ? low16_of(p, i + 2) << 32 : 0;
        uint32_t word = (uint32_t)(lows >> 8 * odd);
        reinterpret_cast<uint32_t *>(p.codes)[w] = word;
        sum += tam_sum_word(TAM_SUM_INDICES, w, word);
    }
    return sum;
}

/* The bytes of a count end with one that says so. */
struct count_end {
    uint32_t count;
    bool ends, valid;
};

static __device__ count_end read_count(const packing &p, uint32_t at) {
    uint32_t byte = p.codes[at];
    count_end end = {byte & 0x7fu, (byte & TAM_BLOCK16_MORE) == 0, true};
    uint32_t more = 0;
    if (!end.ends)
        return end;
    for (; more < 3 && more < at && (p.codes[at - more - 1] & TAM_BLOCK16_MORE); more++)
        end.count = end.count << 7 | (p.codes[at - more - 1] & 0x7fu);
    end.valid = more < 3 && (more == 0 || byte > 0);
    return end;
}

/* offsets[b]: entries before block b of a list, or UINT32_MAX behind the last if the counts are
 * refused. One block. */
static __device__ void read_counts(const tam_cuda_exchange &x, uint32_t r) {
    packing p = packing_from(x, r);
    uint32_t blocks = (uint32_t)tam_block16_blocks(p.span), seen = 0, bad = 0;
    uint32_t *offsets = offsets_of(x, r, blocks);
    uint32_t bytes = p.count <= p.bytes / 2 ? p.bytes - 2 * p.count : 0;
    uint64_t done = 0;
    for (uint32_t at = 0; at < bytes; at += TAM_BLOCK_THREADS) { /* uniform in the block */
        count_end end = {};
        if (at + threadIdx.x < bytes) {
            end = read_count(p, at + threadIdx.x);
            bad |= !end.valid || (at + threadIdx.x == bytes - 1 && !end.ends);
        }
        scan_sum sum = scan_pair(end.ends, end.ends ? end.count : 0);
        uint32_t b = seen + high_of(sum.before);
        if (end.ends && b < blocks)
            offsets[b] = (uint32_t)(done + low_of(sum.before));
        seen += high_of(sum.all);
        done += low_of(sum.all);
    }
    bool good = __syncthreads_count(bad != 0) == 0 && seen == blocks && done == p.count;
    if (threadIdx.x > 0)
        return;
    offsets[blocks] = good ? p.count : UINT32_MAX;
    blame(x, r, good ? 0 : 1u << TAM_REFUSED_CODE);
}

static __device__ __forceinline__ uint32_t low_bits_of(const unsigned char *lows, uint32_t i) {
    return lows[2 * (uint64_t)i] | (uint32_t)lows[2 * (uint64_t)i + 1] << 8;
}

/* Entries of a list from `first` on, before `end`. */
static __device__ void unpack_lows(const tam_cuda_exchange &x, uint32_t r, uint32_t first,
                                   uint32_t end) {
    packing p = packing_from(x, r);
    uint32_t blocks = (uint32_t)tam_block16_blocks(p.span), faults = 0;
    const uint32_t *offsets = offsets_of(x, r, blocks);
    const unsigned char *lows = p.codes + (p.bytes - 2 * p.count);
    if (offsets[blocks] != p.count) /* refused */
        return;
    end = end < p.count ? end : p.count;
    for (uint32_t i = first + threadIdx.x; i < end; i += TAM_BLOCK_THREADS) {
        uint32_t b = tam_entries_before(offsets, blocks, (uint64_t)i + 1) - 1;
        uint32_t low = low_bits_of(lows, i);
        if (i > offsets[b] && low <= low_bits_of(lows, i - 1))
            faults |= 1u << TAM_REFUSED_CODE;
        faults |= put(p, i, (uint64_t)b << TAM_BLOCK16_BITS | low);
    }
    blame(x, r, faults);
}

/* -- kernels ---------------------------------------------------------------------------------- */

/* First: where the blocks of the own list begin. The last CUDA block writes the counts. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) count16(const tam_cuda_exchange x) {
    const packing p = own_packing(x);
    uint32_t blocks = (uint32_t)tam_block16_blocks(p.span);
    uint32_t *offsets = offsets_of(x, x.packets.rank, blocks);
    for (uint64_t b = tam_thread_of_grid(); b < blocks; b += tam_threads_of_grid())
        offsets[b] = entries_below(p, b << TAM_BLOCK16_BITS);
    if (!tam_last_block(&x.scratch->packed))
        return;
    uint64_t sum = 0;
    uint32_t bytes = pack_counts(p, offsets, &sum);
    sum = tam_block_sum(sum);
    if (threadIdx.x > 0)
        return;
    tam_add64(&x.scratch->sent, sum);
    x.scratch->code_bytes = bytes + 2 * p.count;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    unpack16(const tam_cuda_exchange x) {
    uint32_t pieces = tam_pieces_of(x.packets.capacity);
    if (x.params->broken)
        return;
    for (uint64_t i = blockIdx.x; i < (uint64_t)pieces * x.packets.nranks; i += gridDim.x) {
        uint32_t r = (uint32_t)(i / pieces), first = (uint32_t)(i % pieces) * TAM_PIECE;
        if (r != x.packets.rank)
            unpack_lows(x, r, first, first + TAM_PIECE);
    }
}

struct tam_codes_block16 {
    static __device__ __forceinline__ uint64_t write(const tam_cuda_exchange &x, const packing &p) {
        return pack_lows(x, p);
    }

    static __device__ __forceinline__ void read(const tam_cuda_exchange &x, uint32_t r) {
        read_counts(x, r);
    }
};

static int tam_pack_block16(const tam_cuda_exchange *job, void *stream) {
    uint64_t blocks = tam_block16_blocks(job->packets.packed.span) / TAM_BLOCK_THREADS + 1;
    int error = tam_launch(count16, tam_blocks_for(job, blocks), stream, *job);
    return error
               ? error
               : tam_launch(tam_pack_codes<tam_codes_block16>, tam_code_blocks(job), stream, *job);
}

static int tam_unpack_block16(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = (uint64_t)tam_pieces_of(job->packets.capacity) * job->packets.nranks;
    int error = tam_launch_lists<tam_codes_block16>(job, stream);
    return error ? error : tam_launch(unpack16, tam_blocks_for(job, pieces), stream, *job);
}

#endif
