/* SPDX-License-Identifier: MIT
 *
 * Lists that travel packed: from elements to positions in a part to codes, and back. The bytes, and
 * what is refused, are those of the host (collectives/exchange/index_codecs.h, index_*.c).
 *
 *     pack      the own list, as selected, in packed.lists; a packet without values is
 *               complete then, and is sealed
 *     unpack    those of the other ranks, checked: a code that no encoder writes is a fault
 *
 * block16 and rice are read and written by many blocks; of the others one block takes a list, 256
 * threads at a time, with what the threads before found carried along.
 */
#include "kernels/cuda/block16.cuh"
#include "kernels/cuda/rice.cuh"
#include "kernels/cuda/seal.cuh"

static_assert(TAMIS_INDEX_END == 6, "a new index codec needs pack_list and tam_launch_unpack here");

/* -- gap8: one block -------------------------------------------------------------------------- */

static __device__ __forceinline__ uint32_t pack_gap8(const packing &p) {
    uint32_t done = 0;
    for (uint32_t at = 0; at < p.count; at += TAM_BLOCK_THREADS) {
        uint32_t i = at + threadIdx.x, gap = i < p.count ? gap_before(p, i) : 0;
        uint32_t bytes = i < p.count ? 1 + gap / TAM_GAP8_ON : 0;
        scan_sum sum = scan_pair(0, bytes);
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
        scan_sum sum = scan_pair(entries, moves);
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

static __device__ __forceinline__ uint32_t pack_bitmap_bytes(uint64_t span) {
    return (uint32_t)((span + 7) / 8);
}

static __device__ __forceinline__ uint32_t pack_bitmap(const packing &p) {
    uint32_t bytes = pack_bitmap_bytes(p.span), words = bytes / 4 + (bytes % 4 > 0);
    for (uint32_t w = threadIdx.x; w < words; w += TAM_BLOCK_THREADS) {
        uint32_t word = 0;
        uint64_t begin = 32 * (uint64_t)w, position;
        for (uint32_t i = entries_below(p, begin); i < p.count; i++) {
            position = position_of(p, i);
            if (position >= begin + 32)
                break;
            word |= 1u << (position - begin);
        }
        reinterpret_cast<uint32_t *>(p.codes)[w] = word; /* the capacity is whole words */
    }
    return bytes;
}

static __device__ __forceinline__ uint32_t unpack_bitmap(const packing &p) {
    uint32_t done = 0, faults = 0;
    for (uint32_t at = 0; at < p.bytes; at += 4 * TAM_BLOCK_THREADS) {
        uint32_t w = at / 4 + threadIdx.x, word = word_of(p, w);
        scan_sum sum = scan_pair((uint32_t)__popc(word), 0);
        uint32_t entry = done + high_of(sum.before);
        for (uint32_t rest = word; rest; rest &= rest - 1)
            faults |= put(p, entry++, 32 * (uint64_t)w + (uint32_t)__ffs((int)rest) - 1);
        done += high_of(sum.all);
    }
    bool good = p.bytes == pack_bitmap_bytes(p.span) && done == p.count;
    return faults | (good ? 0 : 1u << TAM_REFUSED_CODE);
}

/* -- pack ------------------------------------------------------------------------------------- */

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

/* First: what each piece of the own list has of zeros. The last block adds them up. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    count_rice(const tam_cuda_exchange x) {
    const packing p = own_packing(x);
    uint32_t pieces = tam_pieces_of(p.count), low = tam_rice_low(p.span, p.count);
    uint32_t *zeros = x.packets.packed.zeros;
    clear_codes(p);
    for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
        uint32_t own = count_zeros(p, piece, low);
        if (threadIdx.x == 0)
            zeros[piece] = own;
    }
    if (!tam_last_block(&x.scratch->packed))
        return;
    uint64_t bits = offset_zeros(zeros, pieces) + (uint64_t)p.count * (1 + low);
    if (threadIdx.x == 0)
        x.scratch->code_bytes = (uint32_t)((bits + 7) / 8);
}

/* The second. @return this thread's part of the checksum */
static __device__ __forceinline__ uint64_t pack_rice(const tam_cuda_exchange &x, const packing &p) {
    uint32_t pieces = tam_pieces_of(p.count), low = tam_rice_low(p.span, p.count);
    uint64_t sum = 0;
    for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
        sum += pack_piece(p, piece, low, x.packets.packed.zeros[piece]);
    return sum;
}

/* One block packs it all. @return this thread's part of the checksum */
static __device__ __forceinline__ uint64_t pack_alone(const tam_cuda_exchange &x,
                                                      const packing &p) {
    bool gaps = x.packets.packed.index_codec == TAMIS_INDEX_GAP8;
    uint32_t bytes = gaps ? pack_gap8(p) : pack_bitmap(p);
    if (threadIdx.x == 0)
        x.scratch->code_bytes = bytes;
    __syncthreads(); /* the codes are written */
    return tam_part_of_bytes(TAM_SUM_INDICES, p.codes, bytes, 0, UINT32_MAX);
}

static __device__ __forceinline__ uint64_t pack_list(const tam_cuda_exchange &x, const packing &p) {
    if (x.packets.packed.index_codec == TAMIS_INDEX_BLOCK16)
        return pack_lows(x, p);
    return x.packets.packed.index_codec == TAMIS_INDEX_RICE ? pack_rice(x, p) : pack_alone(x, p);
}

/* Two blocks of a multiprocessor at least: with fewer registers there are spills. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2) pack(const tam_cuda_exchange x) {
    const packing p = own_packing(x);
    uint64_t sum = tam_block_sum(pack_list(x, p));
    if (threadIdx.x == 0)
        tam_add64(&x.scratch->sent, sum);
    if (!x.packets.with_values && tam_last_block(&x.scratch->sealed))
        tam_seal_packet(x, 0.0);
}

static int launch_first(const tam_cuda_exchange *job, void *stream) {
    uint64_t blocks = tam_block16_blocks(job->packets.packed.span) / TAM_BLOCK_THREADS + 1;
    if (job->packets.packed.index_codec == TAMIS_INDEX_BLOCK16)
        return tam_launch(count16, tam_blocks_for(job, blocks), stream, *job);
    return tam_launch(count_rice, tam_blocks_for(job, tam_pieces_of(job->packets.capacity)), stream,
                      *job);
}

static bool has_many_blocks(const tam_cuda_exchange *job) {
    return job->packets.packed.index_codec == TAMIS_INDEX_BLOCK16 ||
           job->packets.packed.index_codec == TAMIS_INDEX_RICE;
}

extern "C" int tam_launch_pack(const tam_cuda_exchange *job, void *stream) {
    if (!has_many_blocks(job))
        return tam_launch(pack, 1, stream, *job);
    uint64_t words = job->packets.index_bytes / 4 / TAM_BLOCK_THREADS + 1;
    int error = launch_first(job, stream);
    return error ? error : tam_launch(pack, tam_blocks_for(job, words), stream, *job);
}

/* -- unpack: the own list is where it was ----------------------------------------------------- */

/* A block takes a rank. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) pack_unpack(const tam_cuda_exchange x) {
    if (x.params->broken)
        return;
    for (uint32_t r = blockIdx.x; r < x.packets.nranks; r += gridDim.x) {
        if (r == x.packets.rank)
            continue;
        if (x.packets.packed.index_codec == TAMIS_INDEX_BLOCK16)
            read_counts(x, r);
        else if (x.packets.packed.index_codec == TAMIS_INDEX_GAP8)
            blame(x, r, unpack_gap8(packing_from(x, r)));
        else
            blame(x, r, unpack_bitmap(packing_from(x, r)));
    }
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

/* rice: visit(r, piece, pieces of that list). All blocks; uniform in each. */
template <typename VISIT>
static __device__ __forceinline__ void visit_pieces(const tam_cuda_exchange &x, VISIT visit) {
    uint32_t most = tam_rice_pieces(x.packets.index_bytes);
    if (x.params->broken)
        return;
    for (uint64_t i = blockIdx.x; i < (uint64_t)most * x.packets.nranks; i += gridDim.x) {
        uint32_t r = (uint32_t)(i / most), piece = (uint32_t)(i % most);
        uint32_t pieces = tam_rice_pieces(tam_code_bytes_of(x.packets, r));
        if (r != x.packets.rank && piece < pieces)
            visit(r, piece, pieces);
    }
}

/* Whether all pieces of a list have been visited by now. */
static __device__ __forceinline__ bool is_last_piece(const tam_cuda_exchange &x, uint32_t r,
                                                     uint32_t pieces) {
    bool last = tam_last_of(pieces, &x.packet_checks[r].unpacked);
    if (last && threadIdx.x == 0)
        x.packet_checks[r].unpacked = 0; /* for the next launch */
    return last;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) join_rice(const tam_cuda_exchange x) {
    __shared__ functions f;
    visit_pieces(x, [&](uint32_t r, uint32_t piece, uint32_t pieces) {
        join_words(piece_from(x, r, piece), f);
        if (is_last_piece(x, r, pieces))
            join_pieces(pieces_from(x, r), pieces, f);
    });
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    measure_rice(const tam_cuda_exchange x) {
    __shared__ functions f;
    visit_pieces(x, [&](uint32_t r, uint32_t piece, uint32_t pieces) {
        count_codes(piece_from(x, r, piece), f);
        if (!is_last_piece(x, r, pieces))
            return;
        uint32_t count = tam_count_of(x.packets, r);
        bool good = offset_pieces(pieces_from(x, r), pieces) == count;
        good = good && (count > 0 || tam_code_bytes_of(x.packets, r) == 0);
        if (threadIdx.x == 0)
            blame(x, r, good ? 0 : 1u << TAM_REFUSED_CODE);
    });
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) unpack_rice(const tam_cuda_exchange x) {
    visit_pieces(x, [&](uint32_t r, uint32_t piece, uint32_t) {
        blame(x, r, put_elements(piece_from(x, r, piece)));
    });
}

static int launch_rice(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = (uint64_t)job->packets.nranks * tam_rice_pieces(job->packets.index_bytes);
    unsigned blocks = tam_blocks_for(job, pieces);
    int error = tam_launch(join_rice, blocks, stream, *job);
    error = error ? error : tam_launch(measure_rice, blocks, stream, *job);
    return error ? error : tam_launch(unpack_rice, blocks, stream, *job);
}

extern "C" int tam_launch_unpack(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = tam_pieces_of(job->packets.capacity);
    if (job->packets.packed.index_codec == TAMIS_INDEX_RICE)
        return launch_rice(job, stream);
    int error = tam_launch(pack_unpack, tam_blocks_for(job, job->packets.nranks), stream, *job);
    if (error || job->packets.packed.index_codec != TAMIS_INDEX_BLOCK16)
        return error;
    return tam_launch(unpack16, tam_blocks_for(job, pieces * job->packets.nranks), stream, *job);
}
