/* SPDX-License-Identifier: MIT
 *
 * The index codec rice (kernels/codecs/index_rice.c) by many blocks: a list is packed in
 * pieces of TAM_PIECE entries and unpacked in pieces of 8,192 bits, a word for each thread.
 *
 *     pack      zeros      of every piece: the zeros of its gaps; the last block adds them up
 *               codes      every entry knows where its code begins
 *     unpack    skips      how many bits of a piece belong to a code before it
 *               entries    how many entries a piece has, and the sum of their low bits
 *               elements   every word knows its first entry
 */
#ifndef TAM_KERNELS_CODECS_INDEX_RICE_CUH
#define TAM_KERNELS_CODECS_INDEX_RICE_CUH

#include "kernels/codecs/index_codecs.cuh"

/* -- pack ------------------------------------------------------------------------------------- */

static __device__ __forceinline__ void clear_codes(const packing &p) {
    for (uint64_t w = tam_thread_of_grid(); w < p.most_bytes / 4; w += tam_threads_of_grid())
        reinterpret_cast<uint32_t *>(p.codes)[w] = 0;
}

/* Count zeros of a piece, in all threads. */
static __device__ uint32_t count_zeros(const packing &p, uint32_t piece, uint32_t low) {
    uint64_t first = (uint64_t)piece * TAM_PIECE, end = first + TAM_PIECE, zeros = 0;
    end = end < p.count ? end : p.count;
    for (uint64_t i = first + threadIdx.x; i < end; i += TAM_BLOCK_THREADS)
        zeros += gap_before(p, (uint32_t)i) >> low;
    return (uint32_t)tam_block_sum(zeros);
}

/* From zeros of each piece to those before it. One block. @return all */
static __device__ uint64_t offset_zeros(uint32_t *zeros, uint32_t pieces) {
    uint64_t done = 0;
    for (uint32_t at = 0; at < pieces; at += TAM_BLOCK_THREADS) { /* uniform in the block */
        uint32_t i = at + threadIdx.x;
        scan_sum sum = scan(i < pieces ? zeros[i] : 0);
        if (i < pieces)
            zeros[i] = (uint32_t)(done + sum.before);
        done += sum.all;
    }
    return done;
}

/* Bits of a code: zeros, a one, `low` bits of the gap. Without its zeros it has 32 bits at most, so
 * it reaches two words. @return its part of the checksum, which is linear in a word's bits */
static __device__ __forceinline__ uint64_t put_code(const packing &p, uint64_t at, uint64_t code) {
    uint64_t w = at / 32;
    uint32_t *words = reinterpret_cast<uint32_t *>(p.codes) + w;
    code <<= at % 32;
    atomicOr(&words[0], (uint32_t)code);
    if (code >> 32)
        atomicOr(&words[1], (uint32_t)(code >> 32));
    return tam_sum_word(TAM_SUM_INDICES, w, (uint32_t)code) +
           tam_sum_word(TAM_SUM_INDICES, w + 1, (uint32_t)(code >> 32));
}

/* The codes of a piece. Before entry i lie i (1 + low) bits that are not zeros of a gap.
 * @param  zeros  before the piece  @return this thread's part of the checksum */
static __device__ uint64_t pack_piece(const packing &p, uint32_t piece, uint32_t low,
                                      uint64_t zeros) {
    uint64_t first = (uint64_t)piece * TAM_PIECE, mask = (UINT64_C(1) << low) - 1, sum = 0;
    for (uint32_t at = 0; at < TAM_PIECE; at += TAM_BLOCK_THREADS) {
        uint64_t i = first + at + threadIdx.x;
        uint32_t gap = i < p.count ? gap_before(p, (uint32_t)i) : 0;
        scan_sum before = scan(gap >> low);
        uint64_t begin = i * (1 + low) + zeros + before.before;
        if (i < p.count)
            sum += put_code(p, begin + (gap >> low), 1 | (gap & mask) << 1);
        zeros += before.all;
    }
    return sum;
}

/* -- unpack: what a word skips ---------------------------------------------------------------- */

/*
 * Where a code begins depends on all codes before it, so a list cannot simply be split. But what a
 * word needs to know of them is little: how many of its first bits are low bits of a code that
 * ended its zeros before, at most 31. A word is thus a function from 32 numbers to 32 numbers: what
 * the word behind it must skip. Functions are joined by looking up one in the other, so warps join
 * their 32 words for all 32 numbers at once, a lane each, then 8 warps follow one another, and then
 * every word knows its own number (Ladner and Fischer, 1980: any finite automaton is a scan). A
 * piece is such a function, too, so the pieces of a list are joined as the words of a piece.
 */
struct functions {
    /* [s][i]: of function i, for the number s. Rows begin in different banks of shared memory. */
    unsigned char of[32][TAM_BLOCK_THREADS + 4];
    unsigned char warp[TAM_BLOCK_WARPS][32]; /* of 32 functions */
};

/* That of this thread's word, from the last bit to the first. If no code ends in the word, zeros go
 * on behind it. */
static __device__ __forceinline__ void set_word(functions &f, uint32_t word, uint32_t low) {
    for (uint32_t bit = 32; bit-- > 0;) {
        uint32_t next = word >> bit & 1 ? bit + 1 + low : bit + 1;
        f.of[bit][threadIdx.x] = next < 32 ? f.of[next][threadIdx.x] : (unsigned char)(next - 32);
    }
}

/* All threads have set theirs. */
static __device__ void join_warps(functions &f) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, skip = lane;
    __syncthreads();
    for (uint32_t i = 32 * warp; i < 32 * warp + 32; i++)
        skip = f.of[skip][i];
    f.warp[warp][lane] = (unsigned char)skip;
    __syncthreads();
}

/* Join the functions of all threads. @return what is skipped behind them if the first skips
 * `skip` */
static __device__ __forceinline__ uint32_t join_all(const functions &f, uint32_t skip) {
    for (uint32_t w = 0; w < TAM_BLOCK_WARPS; w++)
        skip = f.warp[w][skip];
    return skip;
}

/* @return what this thread's word skips if the first one skips `skip` */
static __device__ __forceinline__ uint32_t skip_of(const functions &f, uint32_t skip) {
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (uint32_t w = 0; w < warp; w++)
        skip = f.warp[w][skip];
    for (uint32_t i = 32 * warp; i < 32 * warp + lane; i++)
        skip = f.of[skip][i];
    return skip;
}

/* -- unpack: pieces --------------------------------------------------------------------------- */

/* A piece of the codes that came from a rank, and this thread's word of it. */
struct rice_piece {
    packing p;
    tam_cuda_rice *piece;
    unsigned char *skip; /* of the word */
    uint32_t low, w, word;
};

static __device__ __forceinline__ tam_cuda_rice *pieces_from(const tam_cuda_exchange &x,
                                                             uint32_t r) {
    return x.packets.packed.pieces + (uint64_t)r * tam_rice_pieces(x.packets.index_bytes);
}

static __device__ __forceinline__ rice_piece piece_from(const tam_cuda_exchange &x, uint32_t r,
                                                        uint32_t piece) {
    rice_piece mine = {};
    const packing p = packing_from(x, r);
    mine.p = p;
    mine.piece = pieces_from(x, r) + piece;
    mine.skip = x.packets.packed.skips + threadIdx.x +
                (uint64_t)(mine.piece - x.packets.packed.pieces) * TAM_BLOCK_THREADS;
    mine.low = tam_rice_low(p.span, p.count < p.span ? p.count : (uint32_t)p.span);
    mine.w = piece * TAM_BLOCK_THREADS + threadIdx.x;
    mine.word = word_of(p, mine.w);
    return mine;
}

/* First: its function. */
static __device__ void join_words(const rice_piece &mine, functions &f) {
    set_word(f, mine.word, mine.low);
    join_warps(f);
    if (threadIdx.x < 32)
        mine.piece->skips[threadIdx.x] = (unsigned char)join_all(f, threadIdx.x);
}

/* That of this thread's piece; behind the last one nothing is skipped. */
static __device__ __forceinline__ void set_piece(functions &f, const tam_cuda_rice *piece) {
    const uint32_t *words = reinterpret_cast<const uint32_t *>(piece->skips);
    for (uint32_t s = 0; s < 32; s += 4) {
        uint32_t four = words[s / 4];
        for (uint32_t i = 0; i < 4; i++)
            f.of[s + i][threadIdx.x] = (unsigned char)(four >> 8 * i);
    }
}

/* One block, when all pieces of a list have their functions: what each skips. */
static __device__ void join_pieces(tam_cuda_rice *pieces, uint32_t count, functions &f) {
    uint32_t skip = 0;
    for (uint32_t at = 0; at < count; at += TAM_BLOCK_THREADS) { /* uniform in the block */
        uint32_t i = at + threadIdx.x;
        set_piece(f, &pieces[i < count ? i : count - 1]);
        join_warps(f);
        if (i < count)
            pieces[i].skip = skip_of(f, skip);
        skip = join_all(f, skip);
        __syncthreads(); /* f is reused */
    }
}

/* The low bits behind a one at bit `at` of the list. */
static __device__ __forceinline__ uint32_t rice_low_bits(const packing &p, uint64_t at,
                                                         uint32_t low) {
    uint32_t w = (uint32_t)((at + 1) / 32);
    uint64_t bits = word_of(p, w) | (uint64_t)word_of(p, w + 1) << 32;
    return (uint32_t)(bits >> (at + 1) % 32) & (uint32_t)((UINT64_C(1) << low) - 1);
}

/* Visit the ends of zeros in a word: visit(bit of the list, low bits behind it). */
template <typename VISIT>
static __device__ __forceinline__ void visit_codes(const rice_piece &mine, uint32_t skip,
                                                   VISIT visit) {
    for (uint32_t bit = skip; bit < 32 && mine.word >> bit;) {
        bit += (uint32_t)__ffs((int)(mine.word >> bit)) - 1;
        uint64_t one = 32 * (uint64_t)mine.w + bit;
        visit(one, rice_low_bits(mine.p, one, mine.low));
        bit += 1 + mine.low;
    }
}

/* Entries and low bits: of the words before this thread's, and of all. */
static __device__ __forceinline__ scan_sum scan_codes(const rice_piece &mine, uint32_t skip) {
    uint64_t entries = 0, lows = 0;
    visit_codes(mine, skip, [&](uint64_t, uint32_t bits) {
        entries++;
        lows += bits;
    });
    return scan_pair(entries, lows);
}

/* Second: its entries. */
static __device__ void count_codes(const rice_piece &mine, functions &f) {
    set_word(f, mine.word, mine.low);
    join_warps(f);
    uint32_t skip = skip_of(f, mine.piece->skip);
    *mine.skip = (unsigned char)skip;
    scan_sum sum = scan_codes(mine, skip);
    if (threadIdx.x > 0)
        return;
    mine.piece->entries = high_of(sum.all);
    mine.piece->lows = low_of(sum.all);
}

/* One block, when all pieces of a list have been counted: what is before each.
 * @return entries of the list */
static __device__ uint64_t offset_pieces(tam_cuda_rice *pieces, uint32_t count) {
    uint64_t entries = 0, lows = 0;
    for (uint32_t at = 0; at < count; at += TAM_BLOCK_THREADS) { /* uniform in the block */
        uint32_t i = at + threadIdx.x;
        scan_sum before = scan(i < count ? pieces[i].entries : 0);
        scan_sum below = scan(i < count ? pieces[i].lows : 0);
        if (i < count) {
            pieces[i].entries = (uint32_t)(entries + before.before);
            pieces[i].lows = lows + below.before;
        }
        entries += before.all;
        lows += below.all;
    }
    return entries;
}

/* Third: its elements. In the codes before number i, whose one is bit `one`, i (1 +
 * low) bits are not zeros of a gap. So its position follows from `one`, i and the sum of all low
 * bits up to its own. With the last entry the list must end. @return bits of faults */
static __device__ uint32_t put_elements(const rice_piece &mine) {
    const packing &p = mine.p;
    uint32_t skip = *mine.skip, faults = 0;
    scan_sum sum = scan_codes(mine, skip);
    uint64_t entry = mine.piece->entries + (uint64_t)high_of(sum.before);
    uint64_t lows = mine.piece->lows + low_of(sum.before);
    visit_codes(mine, skip, [&](uint64_t one, uint32_t bits) {
        lows += bits;
        faults |= put(p, entry, ((one - entry * (1 + mine.low)) << mine.low) + lows + entry);
        entry++;
        if (entry == p.count && (one + 1 + mine.low + 7) / 8 != p.bytes)
            faults |= 1u << TAM_REFUSED_CODE;
    });
    return faults;
}

/* -- kernels ---------------------------------------------------------------------------------- */

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
static __device__ __forceinline__ uint64_t write_rice(const tam_cuda_exchange &x,
                                                      const packing &p) {
    uint32_t pieces = tam_pieces_of(p.count), low = tam_rice_low(p.span, p.count);
    uint64_t sum = 0;
    for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
        sum += pack_piece(p, piece, low, x.packets.packed.zeros[piece]);
    return sum;
}

/* visit(r, piece, pieces of that list). All blocks; uniform in each. */
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

struct tam_codes_rice {
    static __device__ __forceinline__ uint64_t write(const tam_cuda_exchange &x, const packing &p) {
        return write_rice(x, p);
    }
};

static int tam_pack_rice(const tam_cuda_exchange *job, void *stream) {
    unsigned pieces = tam_blocks_for(job, tam_pieces_of(job->packets.capacity));
    int error = tam_launch(count_rice, pieces, stream, *job);
    return error ? error
                 : tam_launch(tam_pack_codes<tam_codes_rice>, tam_code_blocks(job), stream, *job);
}

static int tam_unpack_rice(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = (uint64_t)job->packets.nranks * tam_rice_pieces(job->packets.index_bytes);
    unsigned blocks = tam_blocks_for(job, pieces);
    int error = tam_launch(join_rice, blocks, stream, *job);
    error = error ? error : tam_launch(measure_rice, blocks, stream, *job);
    return error ? error : tam_launch(unpack_rice, blocks, stream, *job);
}

#endif
