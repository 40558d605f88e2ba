/* SPDX-License-Identifier: MIT
 *
 * The pass over the gradient: acc = decay * acc + scale * grad, or + what the rule of an update
 * makes of it (lib/policy/update_rule.h); candidates and sums of squares, with the bits of
 * kernels/cpu/tile.h. One warp takes one chunk at a time, without synchronising with others; a lane
 * holds 16 of its elements in registers:
 *
 *     register 4 j + c        vector: element 128 j + 4 t + c      j, c = 0..3, lane t
 *                             else:   element 128 j + 32 c + t
 *
 * Either way a lane first adds the squares of j = 0..3, in the order of tile.h, and every load of
 * the warp is one run of memory. TAM_VECTOR loads 4 elements at a time; it needs a whole chunk
 * aligned to 4 elements. Others are not shifted into place: docs/cuda.md has the costs.
 */
#include "kernels/cuda/kernel.cuh"

#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/chunk.cuh"
#include "lib/base/half.h"
#include "lib/policy/update_rule.h"

/* -- types of gradients: how they are stored, how they are widened ---------------------------- */

struct float32 {
    using element = float;
    using row = float4; /* four neighbours */
    static __device__ void widen(row x, float to[4]) {
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    static __device__ float widen(element x) {
        return x;
    }
};

/* As tam_float16_widen, with fewer registers: shift the fraction into place, then one exact product
 * by a power of two corrects the exponent, even of a subnormal number. */
static __device__ __forceinline__ float widen_float16(uint16_t half) {
    uint32_t magnitude = (half & 0x7fffu) << 13;
    uint32_t x = __float_as_uint(__fmul_rn(__uint_as_float(magnitude), 0x1p112f));
    if (magnitude >= 0x0f800000u) /* Inf and NaN */
        x = magnitude | 0x7f800000u;
    return __uint_as_float(x | (half & 0x8000u) << 16);
}

/* Two elements in a word, the first in its lower half. */
template <float (*WIDEN)(uint16_t)> struct bits16 {
    using element = unsigned short;
    using row = uint2;
    static __device__ void widen(row x, float to[4]) {
        to[0] = WIDEN((uint16_t)x.x), to[1] = WIDEN((uint16_t)(x.x >> 16));
        to[2] = WIDEN((uint16_t)x.y), to[3] = WIDEN((uint16_t)(x.y >> 16));
    }
    static __device__ float widen(element x) {
        return WIDEN(x);
    }
};

using float16 = bits16<widen_float16>;
using bfloat16 = bits16<tam_bfloat16_widen>;

/* -- one chunk -------------------------------------------------------------------------------- */

template <typename TYPE, tam_form FORM>
static __device__ void load_gradient(const typename TYPE::element *from, uint32_t length,
                                     float g[16]) {
    uint32_t lane = threadIdx.x % 32;
    if (FORM == TAM_VECTOR) {
        using row = typename TYPE::row;
        row raw[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            raw[j] = tam_load(reinterpret_cast<const row *>(from) + 32 * j + lane);
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            TYPE::widen(raw[j], g + 4 * j);
    } else {
#pragma unroll
        for (uint32_t r = 0; r < 16; r++) {
            uint32_t i = tam_element_of<FORM>(lane, r);
            g[r] = tam_inside<FORM>(i, length) ? TYPE::widen(tam_load(from + i)) : 0.0f;
        }
    }
}

template <typename TYPE, tam_form FORM>
static __device__ void clear_gradient(typename TYPE::element *to, uint32_t length) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t r = 0; r < 16; r += FORM == TAM_VECTOR ? 4 : 1) {
        if (FORM == TAM_VECTOR)
            tam_store(reinterpret_cast<typename TYPE::row *>(to) + 8 * r + lane,
                      typename TYPE::row{});
        else if (tam_inside<FORM>(tam_element_of<FORM>(lane, r), length))
            tam_store(to + tam_element_of<FORM>(lane, r), typename TYPE::element{});
    }
}

/* Moments lie like the residual. Zeros where there are none. */
static __device__ void load_moments(const float *from, uint32_t begin, float x[16]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        float4 row = {};
        if (from)
            row = tam_load(reinterpret_cast<const float4 *>(from + begin) + 32 * j + lane);
        float32::widen(row, x + 4 * j);
    }
}

static __device__ void store_moments(float *to, uint32_t begin, const float x[16]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++)
        if (to)
            tam_store(reinterpret_cast<float4 *>(to + begin) + 32 * j + lane,
                      make_float4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]));
}

/* Replace g by what the rule makes of it. */
static __device__ void make_updates(const tam_optimizer &rule, uint32_t begin, float g[16],
                                    float m[16], float v[16]) {
#pragma unroll
    for (uint32_t r = 0; r < 16; r++) { /* no pointers chosen at run time: m, v stay in registers */
        if (!rule.second)
            g[r] = tam_optimizer_momentum(&rule, g[r], &m[r]);
        else if (rule.first)
            g[r] = tam_optimizer_adam(&rule, g[r], &m[r], &v[r]);
        else
            g[r] = tam_optimizer_adam(&rule, g[r], nullptr, &v[r]);
    }
    store_moments(rule.first, begin, m);
    store_moments(rule.second, begin, v);
}

/* Moments of chunks that are no vectors, in memory. */
template <tam_form FORM>
static __device__ void make_updates(const tam_optimizer &rule, const tam_cuda_chunk &chunk,
                                    float g[16]) {
#pragma unroll
    for (uint32_t r = 0; r < 16; r++) {
        uint32_t i = tam_element_of<FORM>(threadIdx.x % 32, r);
        if (tam_inside<FORM>(i, chunk.length))
            g[r] = tam_optimizer_take(&rule, chunk.begin + i, g[r]);
    }
}

/* The selection reads own chunks again: they may stay in the cache, others should not evict
 * them. */
template <tam_form FORM>
static __device__ void store(float *to, uint32_t length, bool own, const float s[16]) {
    uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t r = 0; r < 16; r += FORM == TAM_VECTOR ? 4 : 1) {
        if (FORM == TAM_VECTOR) {
            float4 x = {s[r], s[r + 1], s[r + 2], s[r + 3]};
            float4 *at = reinterpret_cast<float4 *>(to) + 8 * r + lane;
            if (own)
                *at = x;
            else
                tam_store(at, x);
        } else {
            uint32_t i = tam_element_of<FORM>(lane, r);
            if (tam_inside<FORM>(i, length))
                to[i] = s[r];
        }
    }
}

/* The sum of squares of a chunk, in lane 0: rows, then halves fold. */
template <tam_form FORM> static __device__ float sum_squares(const float s[16]) {
    float u[4];
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        u[c] = __fmul_rn(s[c], s[c]);
#pragma unroll
        for (uint32_t j = 1; j < 4; j++)
            u[c] = __fadd_rn(u[c], __fmul_rn(s[4 * j + c], s[4 * j + c]));
    }
    if (FORM == TAM_VECTOR) { /* u[c] of lane t is number 4 t + c */
#pragma unroll
        for (uint32_t step = 16; step > 0; step /= 2)
#pragma unroll
            for (uint32_t c = 0; c < 4; c++)
                u[c] = __fadd_rn(u[c], __shfl_down_sync(TAM_WARP, u[c], step));
        return __fadd_rn(__fadd_rn(u[0], u[2]), __fadd_rn(u[1], u[3]));
    }
    float sum = __fadd_rn(__fadd_rn(u[0], u[2]), __fadd_rn(u[1], u[3])); /* number 32 c + t */
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2)
        sum = __fadd_rn(sum, __shfl_down_sync(TAM_WARP, sum, step));
    return sum;
}

/* What the warps of a block share: registers are scarce. */
struct block_state {
    tam_cuda_source source;
    uint32_t mine;
    uint32_t nonfinite;
    uint32_t run, next; /* numbers of runs */
    uint32_t found;     /* candidates in this run */
};

/* A warp on its way through a run. */
struct walker {
    uint32_t number, end; /* of its chunk; of the run's chunks */
    tam_cuda_chunk next;
    uint32_t cursor; /* of the pool */
};

/* Read what the chunk after this one is, so that it is there when it is needed. */
static __device__ __forceinline__ void look_ahead(const tam_cuda_accumulate &job, walker *w) {
    uint32_t number = w->number + TAM_BLOCK_WARPS;
    w->next = tam_chunk_of(job.grid, number < w->end ? number : w->number);
}

/* The compiler moves no load past the barrier: so all of them are under way before one is waited
 * for, and what they do not need is read behind it. Left alone, it waits after 6 of 8 vectors, or
 * after 14 of 32 words and then for every pair: registers are scarce. Too scarce for a chunk that
 * also tests every place: there it may do as it likes. */
template <typename TYPE, tam_form FORM, bool CLEAR, bool UPDATE>
static __device__ void take_chunk(const tam_cuda_accumulate &job, const tam_cuda_chunk &chunk,
                                  bool own, uint32_t threshold, typename TYPE::element *grad,
                                  block_state *all, walker *w) {
    uint32_t lane = threadIdx.x % 32, hits = 0, bad = 0, count = 0, offset = 0;
    const tam_optimizer &rule = all->source.optimizer;
    const bool moments = UPDATE && FORM == TAM_VECTOR; /* in registers */
    float s[16], g[16], m[16], v[16];
    float *acc = job.acc + chunk.begin;
    tam_load_chunk<FORM>(acc, chunk.length, s);
    load_gradient<TYPE, FORM>(grad, chunk.length, g);
    if (moments) {
        load_moments(rule.first, chunk.begin, m);
        load_moments(rule.second, chunk.begin, v);
    }
    if (FORM != TAM_PART)
        __syncwarp();
    look_ahead(job, w);
    float scale = all->source.scale, decay = all->source.decay;
#pragma unroll
    for (uint32_t r = 0; r < 16; r++) {
        s[r] = __fmul_rn(decay, s[r]);
        g[r] = __fmul_rn(scale, g[r]);
    }
    if (moments)
        make_updates(rule, chunk.begin, g, m, v);
    else if (UPDATE)
        make_updates<FORM>(rule, chunk, g);
#pragma unroll
    for (uint32_t r = 0; r < 16; r++) {
        float x = __fadd_rn(s[r], g[r]);
        bool inside = tam_inside<FORM>(tam_element_of<FORM>(lane, r), chunk.length);
        bool finite = tam_magnitude_of(x) < TAM_INFINITE_BITS;
        s[r] = inside && finite ? x : s[r];
        bad |= (uint32_t)(inside && !finite) << r;
        hits |= (uint32_t)(inside && tam_magnitude_of(s[r]) >= threshold) << r;
    }
    store<FORM>(acc, chunk.length, own, s);
    if (CLEAR)
        clear_gradient<TYPE, FORM>(grad, chunk.length);
    float sum = sum_squares<FORM>(s);
    if (bad != 0)
        atomicAdd(&all->nonfinite, (uint32_t)__popc(bad));
    if (threshold < TAM_INFINITE_BITS && __ballot_sync(TAM_WARP, hits != 0) != 0) {
        count = FORM == TAM_VECTOR ? tam_append_rows(job, chunk.begin, hits, &w->cursor)
                                   : tam_append_columns(job, chunk.begin, hits, &w->cursor);
        offset = w->cursor - count;
        if (lane == 0)
            atomicAdd(&all->found, count);
    }
    if (lane == 0) {
        job.chunk_sums[w->number] = sum;
        if (own) {
            job.candidates.chunk_offset[w->number] = offset;
            job.candidates.chunk_count[w->number] = count;
        }
    }
}

/* -- the kernel ------------------------------------------------------------------------------- */

template <typename ELEMENT>
static __device__ ELEMENT *gradient_of(const tam_cuda_accumulate &job,
                                       const tam_cuda_source &source, const tam_cuda_chunk &chunk) {
    if (source.grad)
        return static_cast<ELEMENT *>(source.grad) + chunk.begin;
    uint32_t segment = job.grid.groups[chunk.group].segment;
    return static_cast<ELEMENT *>(source.grads[segment]) + (chunk.begin - job.seg_begin[segment]);
}

static __device__ void accumulate_add(uint64_t *to, uint32_t count) {
    atomicAdd(reinterpret_cast<unsigned long long *>(to), (unsigned long long)count);
}

/* The chunks of a run; warps take them in turn. */
template <typename TYPE, bool CLEAR, bool UPDATE>
static __device__ void accumulate_walk(const tam_cuda_accumulate &job, block_state *all,
                                       walker *w) {
    const tam_cuda_source &source = all->source;
    tam_run chunks = tam_chunks_of(job.grid, {all->run, all->run + 1});
    w->number = chunks.first + threadIdx.x / 32;
    w->end = chunks.end;
    if (w->number < w->end)
        w->next = tam_chunk_of(job.grid, w->number);
    for (; w->number < w->end; w->number += TAM_BLOCK_WARPS) {
        tam_cuda_chunk chunk = w->next;
        bool own = tam_owns_part(all->mine, chunk.part);
        uint32_t threshold = own ? __ldg(job.thresholds + chunk.group) : TAM_INFINITE_BITS;
        auto *grad = gradient_of<typename TYPE::element>(job, source, chunk);
        bool aligned =
            tam_aligned(job.acc + chunk.begin, 16) && tam_aligned(grad, sizeof(typename TYPE::row));
        if (UPDATE)
            aligned = aligned && tam_aligned(source.optimizer.first + chunk.begin, 16) &&
                      tam_aligned(source.optimizer.second + chunk.begin, 16);
        if (chunk.length < TAM_CHUNK)
            take_chunk<TYPE, TAM_PART, CLEAR, UPDATE>(job, chunk, own, threshold, grad, all, w);
        else if (aligned)
            take_chunk<TYPE, TAM_VECTOR, CLEAR, UPDATE>(job, chunk, own, threshold, grad, all, w);
        else
            take_chunk<TYPE, TAM_WHOLE, CLEAR, UPDATE>(job, chunk, own, threshold, grad, all, w);
    }
}

/* Count what was found in this run, and go to the next. */
static __device__ void close_run(const tam_cuda_accumulate &job, block_state *all) {
    job.candidates.run_count[all->run] = all->found;
    if (all->found > 0)
        accumulate_add(&job.found->total, all->found);
    all->found = 0;
    all->run = all->next;
}

/* Blocks that fit a multiprocessor at once: with four a thread has 64 registers. Blackwell's code
 * and that of nvcc 13.1 and later need some more, and three blocks have more loads under way than
 * memory can answer. */
#if defined(__CUDA_ARCH__) && TAM_PASS_RESIDENT > 3 &&                                             \
    (__CUDA_ARCH__ >= 1000 || __CUDACC_VER_MAJOR__ > 13 ||                                         \
     (__CUDACC_VER_MAJOR__ == 13 && __CUDACC_VER_MINOR__ >= 1))
enum { RESIDENT = 3 };
#else
enum { RESIDENT = TAM_PASS_RESIDENT };
#endif

/* Block b begins with run b; what is left of the runs goes to whoever asks first. Beside NCCL or
 * backward not all blocks fit at once, and a fixed share would then make the pass twice as long:
 * so late blocks find one run each. More blocks instead, of one run each, would need as much more
 * of the pool, of which every warp holds a batch. Each run that is done asks once: nruns times, and
 * the counter is 0 again, also where nothing resets it (micro-batches). */
template <typename TYPE, bool CLEAR, bool UPDATE>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS,
                                         UPDATE ? TAM_PASS_RESIDENT / 2 : RESIDENT)
    accumulate(const tam_cuda_accumulate job) {
    __shared__ block_state all;
    walker w = {};
    if (threadIdx.x == 0)
        all = {*job.source, job.params->mine, 0, blockIdx.x, 0, 0};
    __syncthreads();
    while (all.run < job.grid.nruns) {
        if (threadIdx.x == 0) /* early: only this warp waits for the answer */
            all.next = gridDim.x + atomicInc(&job.found->taken, job.grid.nruns - 1);
        accumulate_walk<TYPE, CLEAR, UPDATE>(job, &all, &w);
        __syncthreads();
        if (threadIdx.x == 0)
            close_run(job, &all);
        __syncthreads();
    }
    if (threadIdx.x == 0 && all.nonfinite > 0)
        accumulate_add(&job.found->nonfinite, all.nonfinite);
}

template <typename TYPE, bool UPDATE>
static int launch_form(const tam_cuda_accumulate *job, void *stream) {
    if (job->clear)
        return tam_launch(accumulate<TYPE, true, UPDATE>, job->grid.blocks, stream, *job);
    return tam_launch(accumulate<TYPE, false, UPDATE>, job->grid.blocks, stream, *job);
}

template <typename TYPE> static int launch(const tam_cuda_accumulate *job, void *stream) {
    return job->update ? launch_form<TYPE, true>(job, stream)
                       : launch_form<TYPE, false>(job, stream);
}

extern "C" int tam_launch_accumulate(const tam_cuda_accumulate *job, void *stream) {
    switch (job->type) {
    case TAMIS_DTYPE_FLOAT16:
        return launch<float16>(job, stream);
    case TAMIS_DTYPE_BFLOAT16:
        return launch<bfloat16>(job, stream);
    case TAMIS_DTYPE_FLOAT32:
        break;
    }
    return launch<float32>(job, stream);
}
