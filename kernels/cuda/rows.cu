/* SPDX-License-Identifier: MIT
 *
 * Segments with rows (collectives/exchange/sparse_rows.c): what differs from entries that are
 * selected one by one. There is no selection, and the union is one of rows.
 *
 *     touch    a bit for each row of the residual that is not 0, and their number in each range
 *     list     of these at most as many as the packet holds, the first ones from a row on that
 *     moves
 *              in every step, in a circle
 *     ...      seal, all-gather, check, count and union, as of entries
 *     expand   all elements of the union, and this rank's values there
 *
 * Eight rows, room for three, the circle begins at row 5:
 *
 *     touched      1  .  3  4  .  6  7      all of the circle   6 7 | 1 3 4
 *     listed       1  .  .  .  .  6  7
 */
#include "kernels/cuda/ranges.cuh"

#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/shards.cuh"
#include "lib/policy/rules.h"

enum { WORDS = TAM_RANGE_WORDS / TAM_BLOCK_THREADS }; /* of a range, for each thread */

static __device__ __forceinline__ uint32_t words_of(const tam_cuda_rows &rows) {
    return rows.count / 32 + (rows.count % 32 > 0);
}

/* -- touch ------------------------------------------------------------------------------------ */

/* Short rows lie close together: each lane reads one. */
static __device__ uint32_t touched_by_lanes(const float *rows, uint32_t nrows, uint32_t length) {
    uint32_t lane = threadIdx.x % 32, any = 0;
    for (uint32_t j = 0; lane < nrows && j < length; j++)
        any |= tam_magnitude_of(rows[lane * length + j]);
    return __ballot_sync(TAM_WARP, any > 0);
}

/* Bits of the 32 rows of a word, in all threads; the whole block calls it. Warps share the rows. */
static __device__ uint32_t touched_of(const tam_cuda_exchange &x, uint32_t word) {
    __shared__ uint32_t parts[TAM_BLOCK_WARPS];
    uint32_t length = x.rows.length, left = x.rows.count - word * 32, warp = threadIdx.x / 32;
    const float *rows = x.acc + (uint64_t)word * 32 * length;
    uint32_t nrows = left < 32 ? left : 32, bits = 0;
    if (length < 32 && warp == 0)
        bits = touched_by_lanes(rows, nrows, length);
    for (uint32_t q = warp; length >= 32 && q < nrows; q += TAM_BLOCK_WARPS)
        bits |= (uint32_t)tam_touches(rows + (uint64_t)q * length, length) << q;
    if (threadIdx.x % 32 == 0)
        parts[warp] = bits;
    __syncthreads();
    bits = 0;
    for (uint32_t w = 0; w < TAM_BLOCK_WARPS; w++)
        bits |= parts[w];
    __syncthreads(); /* parts are written again */
    return bits;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) touch(const tam_cuda_exchange x) {
    uint32_t nwords = words_of(x.rows);
    if (x.params->broken)
        return;
    for (uint32_t w = blockIdx.x; w < nwords; w += gridDim.x) {
        uint32_t bits = touched_of(x, w);
        if (threadIdx.x == 0) {
            x.rows.touched[w] = bits;
            atomicAdd(&x.ranges.entries[w / TAM_RANGE_WORDS], (uint32_t)__popc(bits));
        }
    }
    if (tam_last_block(&x.scratch->touched))
        tam_lay_out_ranges(x);
}

/* -- list ------------------------------------------------------------------------------------- */

/* The touched rows by their numbers among these, as a circle that begins with number `first`. */
struct circle {
    uint32_t all, first, capacity;
};

/* In the last range, words past the end have no rows. */
static __device__ __forceinline__ uint32_t word_of(const tam_cuda_rows &rows, uint64_t word) {
    return word < words_of(rows) ? rows.touched[word] : 0;
}

/* Touched rows below `row`; the whole block calls it. */
static __device__ uint32_t touched_before(const tam_cuda_exchange &x, uint32_t row) {
    uint32_t range = row / TAM_RANGE, last = row / 32, count = 0;
    for (uint32_t w = range * TAM_RANGE_WORDS + threadIdx.x; w <= last; w += TAM_BLOCK_THREADS)
        count += __popc(x.rows.touched[w] & (w < last ? UINT32_MAX : (1u << row % 32) - 1));
    return x.ranges.offsets[range] + (uint32_t)tam_block_sum(count);
}

static __device__ circle circle_of(const tam_cuda_exchange &x) {
    circle c = {x.ranges.offsets[x.ranges.count], 0, x.packets.capacity};
    c.first = touched_before(x, tam_rule_first_row(x.params->step, c.capacity, x.rows.count));
    return c;
}

/* Where the i-th touched row comes in the list, which ascends. @return whether it is listed */
static __device__ __forceinline__ bool find_place(const circle &c, uint32_t i, uint32_t *place) {
    uint32_t behind = c.all - c.first; /* those from the first on, which come first */
    bool turned = i < c.first;
    uint32_t before = c.all <= c.capacity ? c.first : c.capacity > behind ? c.capacity - behind : 0;
    *place = turned ? i : before + (i - c.first);
    return c.all <= c.capacity || (turned ? i < before : i - c.first < c.capacity);
}

/* @return this thread's part of the checksum of the list */
static __device__ uint64_t list_range(const tam_cuda_exchange &x, const circle &c, uint32_t range,
                                      uint32_t *list) {
    typedef cub::BlockScan<uint32_t, TAM_BLOCK_THREADS> scan;
    __shared__ typename scan::TempStorage space;
    uint64_t first = (uint64_t)range * TAM_RANGE_WORDS + threadIdx.x * WORDS, checksum = 0;
    uint32_t count = 0, before, place;
    for (uint32_t w = 0; w < WORDS; w++)
        count += __popc(word_of(x.rows, first + w));
    scan(space).ExclusiveSum(count, before);
    uint32_t i = x.ranges.offsets[range] + before;
    for (uint64_t w = first; w < first + WORDS; w++) {
        for (uint32_t rest = word_of(x.rows, w); rest; rest &= rest - 1, i++) {
            uint32_t row = (uint32_t)w * 32 + (uint32_t)__ffs((int)rest) - 1;
            if (!find_place(c, i, &place))
                continue;
            list[place] = row;
            checksum += tam_sum_word(TAM_SUM_INDICES, place, row);
        }
    }
    __syncthreads(); /* space is reused */
    return checksum;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    list_rows(const tam_cuda_exchange x, uint32_t *list, tam_cuda_select_result *selected) {
    if (x.params->broken)
        return;
    const circle c = circle_of(x);
    uint64_t checksum = 0;
    for (uint32_t range = blockIdx.x; range < x.ranges.count; range += gridDim.x)
        checksum += list_range(x, c, range, list);
    checksum = tam_block_sum(checksum);
    if (threadIdx.x > 0)
        return;
    tam_add64(&selected->checksum, checksum);
    if (blockIdx.x > 0)
        return;
    selected->count = c.all < c.capacity ? c.all : c.capacity;
    selected->deferred = (c.all - selected->count) * x.rows.length;
}

/* -- expand ----------------------------------------------------------------------------------- */

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    rows_expand(const tam_cuda_exchange x) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    bool refuses = verdict->status != TAMIS_OK;
    uint32_t length = x.rows.length, count = refuses ? 0 : verdict->count * length;
    for (uint64_t at = (uint64_t)blockIdx.x * TAM_PIECE; at < count;
         at += (uint64_t)gridDim.x * TAM_PIECE) {
        uint32_t end = count - at < TAM_PIECE ? count : (uint32_t)at + TAM_PIECE;
        auto element = [&](uint32_t i) {
            return x.rows.union_rows[i / length] * length + i % length;
        };
        tam_walk_shards(
            x, (uint32_t)at, end, TAM_SENT, [&](uint32_t i, uint64_t) { return x.acc[element(i)]; },
            [&](uint32_t i, uint64_t place, float value) {
                x.indices[i] = element(i);
                x.values[place] = value;
            });
    }
    if (!tam_last_block(&x.scratch->expanded))
        return;
    tam_close_shards(x, refuses);
    if (threadIdx.x == 0 && !refuses)
        verdict->count = count;
}

/* -- launch ----------------------------------------------------------------------------------- */

extern "C" int tam_launch_list(const tam_cuda_exchange *job, uint32_t *list,
                               tam_cuda_select_result *selected, void *stream) {
    uint32_t words = job->rows.count / 32 + 1;
    int error = tam_launch(touch, tam_blocks_for(job, words), stream, *job);
    return error ? error
                 : tam_launch(list_rows, tam_blocks_for(job, job->ranges.count), stream, *job, list,
                              selected);
}

extern "C" int tam_launch_expand(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(rows_expand, tam_blocks_for(job, job->capacity / TAM_PIECE + 1), stream,
                      *job);
}
