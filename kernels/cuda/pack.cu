/* SPDX-License-Identifier: MIT
 *
 * Lists that travel packed: from elements to positions in a part to codes, and back. The bytes, and
 * what is refused, are those of the host (collectives/exchange/codec.h, codec_*.c).
 *
 *     pack      the own list, which the cut has written to packed.lists; a slot without values is
 *               complete then, and is sealed
 *     unpack    those of the other ranks, checked: a code that no encoder writes is a fault
 *
 * block16, the usual one, is read and written by many blocks; of the others one block takes a list,
 * 256 threads at a time, with what the threads before found carried along.
 */
#include "kernels/cuda/rice.cuh"
#include "kernels/cuda/seal.cuh"

/* -- block16 ---------------------------------------------------------------------------------- */

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
    return x.slots.packed.offsets + (uint64_t)r * (blocks + 1);
}

/* Write the counts, whose offsets are known. One CUDA block.
 * @param sum  [in,out]  of the codes that this thread wrote  @return their bytes */
static __device__ __forceinline__ uint32_t pack_counts(const packing &p, const uint32_t *offsets,
                                                       uint64_t *sum) {
    uint32_t blocks = (uint32_t)tam_block16_blocks(p.span), done = 0;
    for (uint32_t at = 0; at < blocks; at += TAM_BLOCK_THREADS) { /* all threads alike */
        uint32_t b = at + threadIdx.x, count = 0, bytes = 0;
        if (b < blocks) {
            uint32_t end = b + 1 < blocks ? offsets[b + 1] : p.count;
            count = end - offsets[b];
            bytes = count_bytes(count);
        }
        pair_sum places = scan_pair(0, bytes);
        if (bytes > 0)
            *sum += put_count(p, done + low_of(places.before), count);
        done += (uint32_t)low_of(places.all);
    }
    return done;
}

/* First: where the blocks of the own list begin. The last CUDA block writes the counts. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) count16(const tam_cuda_exchange x) {
    const packing p = own_packing(x);
    uint32_t blocks = (uint32_t)tam_block16_blocks(p.span);
    uint32_t *offsets = offsets_of(x, x.slots.rank, blocks);
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
    for (uint32_t at = 0; at < bytes; at += TAM_BLOCK_THREADS) { /* all threads alike */
        count_end end = {};
        if (at + threadIdx.x < bytes) {
            end = read_count(p, at + threadIdx.x);
            bad |= !end.valid || (at + threadIdx.x == bytes - 1 && !end.ends);
        }
        pair_sum sum = scan_pair(end.ends, end.ends ? end.count : 0);
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

/* -- gap8: one block -------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t pack_gap8(const packing &p) {
    uint32_t done = 0;
    for (uint32_t at = 0; at < p.count; at += TAM_BLOCK_THREADS) {
        uint32_t i = at + threadIdx.x, gap = i < p.count ? gap_before(p, i) : 0;
        uint32_t bytes = i < p.count ? 1 + gap / TAM_GAP8_ON : 0;
        pair_sum sum = scan_pair(0, bytes);
        unsigned char *out = p.codes + done + low_of(sum.before);
        for (; gap >= TAM_GAP8_ON; gap -= TAM_GAP8_ON)
            *out++ = TAM_GAP8_ON;
        if (bytes > 0)
            *out = (unsigned char)gap;
        done += (uint32_t)low_of(sum.all);
    }
    return done;
}

/* Every byte moves on; those that end a gap are entries. */
static __device__ __forceinline__ uint32_t unpack_gap8(const packing &p) {
    uint32_t done = 0, faults = 0;
    uint64_t next = 0;
    for (uint32_t at = 0; at < p.bytes; at += 4 * TAM_BLOCK_THREADS) {
        uint32_t w = at / 4 + threadIdx.x, word = word_of(p, w), entries = 0, moves = 0;
        uint32_t length = 4 * w < p.bytes ? p.bytes - 4 * w : 0;
        length = length < 4 ? length : 4;
        for (uint32_t i = 0; i < length; i++) {
            uint32_t byte = word >> 8 * i & 255u;
            entries += byte != TAM_GAP8_ON;
            moves += byte + (byte != TAM_GAP8_ON);
        }
        pair_sum sum = scan_pair(entries, moves);
        uint64_t place = next + low_of(sum.before);
        uint32_t entry = done + high_of(sum.before);
        for (uint32_t i = 0; i < length; i++) {
            uint32_t byte = word >> 8 * i & 255u;
            if (byte != TAM_GAP8_ON)
                faults |= put(p, entry++, place + byte);
            place += byte + (byte != TAM_GAP8_ON);
        }
        done += high_of(sum.all);
        next += low_of(sum.all);
    }
    bool ends = p.bytes == 0 || p.codes[p.bytes - 1] != TAM_GAP8_ON;
    return faults | (ends && done == p.count && next <= p.span ? 0 : 1u << TAM_REFUSED_CODE);
}

/* -- bitmap: a word for each thread, one block ------------------------------------------------ */

static __device__ __forceinline__ uint32_t bitmap_bytes(uint64_t span) {
    return (uint32_t)((span + 7) / 8);
}

static __device__ __forceinline__ uint32_t pack_bitmap(const packing &p) {
    uint32_t bytes = bitmap_bytes(p.span), words = bytes / 4 + (bytes % 4 > 0);
    for (uint32_t w = threadIdx.x; w < words; w += TAM_BLOCK_THREADS) {
        uint32_t word = 0;
        uint64_t begin = 32 * (uint64_t)w, position;
        for (uint32_t i = entries_below(p, begin); i < p.count; i++) {
            position = position_of(p, i);
            if (position >= begin + 32)
                break;
            word |= 1u << (position - begin);
        }
        reinterpret_cast<uint32_t *>(p.codes)[w] = word; /* the room is whole words */
    }
    return bytes;
}

static __device__ __forceinline__ uint32_t unpack_bitmap(const packing &p) {
    uint32_t done = 0, faults = 0;
    for (uint32_t at = 0; at < p.bytes; at += 4 * TAM_BLOCK_THREADS) {
        uint32_t w = at / 4 + threadIdx.x, word = word_of(p, w);
        pair_sum sum = scan_pair((uint32_t)__popc(word), 0);
        uint32_t entry = done + high_of(sum.before);
        for (uint32_t rest = word; rest; rest &= rest - 1)
            faults |= put(p, entry++, 32 * (uint64_t)w + (uint32_t)__ffs((int)rest) - 1);
        done += high_of(sum.all);
    }
    bool good = p.bytes == bitmap_bytes(p.span) && done == p.count;
    return faults | (good ? 0 : 1u << TAM_REFUSED_CODE);
}

/* -- the kernels ------------------------------------------------------------------------------ */

static __device__ __forceinline__ uint32_t pack_list(uint32_t format, const packing &p) {
    switch (format) {
    case TAMIS_INDEX_GAP8:
        return pack_gap8(p);
    case TAMIS_INDEX_BITMAP:
        return pack_bitmap(p);
    default:
        return pack_rice(p);
    }
}

/* One block packs it all. @return this thread's part of the checksum */
static __device__ __forceinline__ uint64_t pack_alone(const tam_cuda_exchange &x,
                                                      const packing &p) {
    uint32_t bytes = pack_list(x.slots.packed.format, p);
    if (threadIdx.x == 0)
        x.scratch->code_bytes = bytes;
    __syncthreads(); /* the codes are written */
    return tam_share_of_bytes(TAM_SUM_INDICES, p.codes, bytes, 0, UINT32_MAX);
}

static __device__ __forceinline__ uint32_t unpack_list(uint32_t format, const packing &p) {
    switch (format) {
    case TAMIS_INDEX_GAP8:
        return unpack_gap8(p);
    case TAMIS_INDEX_BITMAP:
        return unpack_bitmap(p);
    default:
        return unpack_rice(p);
    }
}

/* Two blocks of a multiprocessor at least: with fewer registers there are spills. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2) pack(const tam_cuda_exchange x) {
    const packing p = own_packing(x);
    bool many = x.slots.packed.format == TAMIS_INDEX_BLOCK16;
    uint64_t sum = tam_block_sum(many ? pack_lows(x, p) : pack_alone(x, p));
    if (threadIdx.x == 0)
        tam_add64(&x.scratch->sent, sum);
    if (!x.slots.with_values && tam_last_block(&x.scratch->sealed))
        tam_seal_slot(x, 0.0);
}

/* The own list is where it was. A block takes a rank. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) unpack(const tam_cuda_exchange x) {
    if (x.turn->broken)
        return;
    for (uint32_t r = blockIdx.x; r < x.slots.nranks; r += gridDim.x) {
        if (r == x.slots.rank)
            continue;
        if (x.slots.packed.format == TAMIS_INDEX_BLOCK16)
            read_counts(x, r);
        else
            blame(x, r, unpack_list(x.slots.packed.format, packing_from(x, r)));
    }
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) unpack16(const tam_cuda_exchange x) {
    uint32_t pieces = tam_pieces_of(x.slots.capacity);
    if (x.turn->broken)
        return;
    for (uint64_t i = blockIdx.x; i < (uint64_t)pieces * x.slots.nranks; i += gridDim.x) {
        uint32_t r = (uint32_t)(i / pieces), first = (uint32_t)(i % pieces) * TAM_PIECE;
        if (r != x.slots.rank)
            unpack_lows(x, r, first, first + TAM_PIECE);
    }
}

static int launch_counts(const tam_cuda_exchange *job, void *stream) {
    uint64_t blocks = tam_block16_blocks(job->slots.packed.span) / TAM_BLOCK_THREADS + 1;
    return tam_launch(count16, tam_blocks_for(job, blocks), stream, *job);
}

extern "C" int tam_launch_pack(const tam_cuda_exchange *job, void *stream) {
    if (job->slots.packed.format != TAMIS_INDEX_BLOCK16)
        return tam_launch(pack, 1, stream, *job);
    uint64_t words = job->slots.index_bytes / 4 / TAM_BLOCK_THREADS + 1;
    int error = launch_counts(job, stream);
    return error ? error : tam_launch(pack, tam_blocks_for(job, words), stream, *job);
}

extern "C" int tam_launch_unpack(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = tam_pieces_of(job->slots.capacity);
    int error = tam_launch(unpack, tam_blocks_for(job, job->slots.nranks), stream, *job);
    if (error || job->slots.packed.format != TAMIS_INDEX_BLOCK16)
        return error;
    return tam_launch(unpack16, tam_blocks_for(job, pieces * job->slots.nranks), stream, *job);
}
