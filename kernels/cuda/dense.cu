/* SPDX-License-Identifier: MIT
 *
 * Scheme dense: the gradient to floats and back, piece by piece. One warp takes one chunk of the
 * grid at a time; a lane takes four neighbours, if both sides are aligned for that:
 *
 *     gradient   ... | chunk | chunk | chunk | ...            float32, or 16 bits
 *                     \                     /
 *     values           | 0 .. shard - 1 | .. 2 shard - 1 | .. 0 0 |     one shard for every rank
 *
 * In between the shards are exchanged and added up (apply.cu). Values that did not arrive are
 * TAM_CUDA_ABSENT; their entries of the gradient stay unchanged, so an abandoned step leaves it
 * partly reduced, as tamis.h documents for scheme dense.
 */
#include "kernels/cuda/packets.cuh"

#include "kernels/cuda/widen.cuh"

/* -- widen ------------------------------------------------------------------------------------ */

/* Zeros behind the piece, so that shards are whole; of a rank whose exchange is broken the first is
 * 1. Mark all shards as not arrived. */
static __device__ void prepare_buffers(const tam_cuda_exchange &x, const tam_cuda_piece &piece,
                                       bool broken) {
    uint64_t thread = tam_thread_of_grid(), threads = tam_threads_of_grid();
    float a = __uint_as_float(TAM_CUDA_ABSENT);
    for (uint64_t i = piece.count + thread; i < x.capacity; i += threads)
        x.values[i] = broken && i == piece.count ? 1.0f : 0.0f;
    for (uint64_t i = thread; i < x.capacity / 4; i += threads)
        reinterpret_cast<float4 *>(x.shards)[i] = make_float4(a, a, a, a);
}

template <typename TYPE>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    widen_values(const tam_cuda_exchange x, const tam_cuda_accumulate target,
                const tam_cuda_piece piece) {
    bool broken = x.params->broken != 0 || x.scratch->verdict.status != TAMIS_OK;
    float scale = target.source->scale;
    prepare_buffers(x, piece, broken);
    for (uint32_t c = piece.first_chunk + tam_warp_of_grid(); c < piece.end_chunk;
         c += tam_warps_of_grid()) {
        tam_cuda_chunk chunk = tam_chunk_of(target.grid, c);
        tam_widen_chunk<TYPE, false>(tam_gradient_of<typename TYPE::element>(target, chunk),
                                     chunk.length, scale, broken,
                                     {x.values + (chunk.begin - piece.begin), 0});
    }
}

/* -- narrow ----------------------------------------------------------------------------------- */

/* What a lane has found. */
struct witness {
    uint64_t bad;
    bool absent;
};

static __device__ __forceinline__ bool arrived(float sum, witness *seen) {
    bool absent = tam_bits_of(sum) == TAM_CUDA_ABSENT;
    seen->absent = seen->absent || absent;
    return !absent;
}

/* A sum that is not finite becomes 0; unless bad entries are dropped, apply zeros all. */
static __device__ __forceinline__ float divide_sums(float sum, float divisor, witness *seen) {
    float value = __fdiv_rn(sum, divisor);
    bool finite = tam_magnitude_of(value) < TAM_INFINITE_BITS;
    seen->bad += !finite;
    return finite ? value : 0.0f;
}

template <typename TYPE>
static __device__ void narrow_row(float4 sums, float divisor, witness *seen,
                                  typename TYPE::row *to) {
    float x[4] = {sums.x, sums.y, sums.z, sums.w};
    bool whole = true;
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        whole = arrived(x[c], seen) && whole;
        x[c] = divide_sums(x[c], divisor, seen);
    }
    if (whole)
        __stcs(to, TYPE::narrow(x));
}

template <typename TYPE>
static __device__ void narrow_chunk(const float *from, uint32_t length, float divisor,
                                    witness *seen, typename TYPE::element *to) {
    uint32_t lane = threadIdx.x % 32, nrows = tam_rows_of<TYPE>(to, from, length);
#pragma unroll 4
    for (uint32_t i = lane; i < nrows; i += 32)
        narrow_row<TYPE>(reinterpret_cast<const float4 *>(from)[i], divisor, seen,
                         reinterpret_cast<typename TYPE::row *>(to) + i);
    for (uint32_t i = 4 * nrows + lane; i < length; i += 32) {
        float sum = from[i];
        if (arrived(sum, seen))
            __stcs(to + i, TYPE::narrow(divide_sums(sum, divisor, seen)));
    }
}

/* A transport that adds up makes other NaNs of TAM_CUDA_ABSENT, so a rank that refuses is counted
 * instead. A NaN is not 0 either: the count did not arrive. */
static __device__ __forceinline__ bool refused(const tam_cuda_exchange &x,
                                               const tam_cuda_piece &piece) {
    return piece.flagged && !(x.values[piece.count] == 0.0f);
}

template <typename TYPE>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    narrow_values(const tam_cuda_exchange x, const tam_cuda_accumulate target,
                 const tam_cuda_piece piece) {
    witness seen = {};
    seen.absent = refused(x, piece);
    uint32_t end = seen.absent ? 0 : piece.end_chunk;
    for (uint32_t c = piece.first_chunk + tam_warp_of_grid(); c < end; c += tam_warps_of_grid()) {
        tam_cuda_chunk chunk = tam_chunk_of(target.grid, c);
        narrow_chunk<TYPE>(x.values + (chunk.begin - piece.begin), chunk.length, x.divisor, &seen,
                           tam_gradient_of<typename TYPE::element>(target, chunk));
    }
    if (seen.bad > 0)
        tam_add64(&x.scratch->bad, seen.bad);
    if (seen.absent)
        atomicOr(&x.scratch->absent, 1u);
}

/* -- apply ------------------------------------------------------------------------------------ */

/* A rank that refused a packet or found absent sums refuses this step and all later ones; in those
 * the verdict on the packets is still that of the first refusal. */
static __device__ void dense_refuse(const tam_cuda_exchange &x, tam_cuda_verdict *verdict) {
    verdict->status = TAMIS_E_PROTOCOL;
    verdict->refused = TAM_REFUSED_ABSENT;
    verdict->rank = tam_rank_of(x.packets, x.packets.rank);
    for (uint32_t b = x.nbuckets; b-- > 0;) {
        const tam_cuda_verdict *why = &x.all[b].scratch->verdict;
        if (why->status != TAMIS_E_PROTOCOL)
            continue;
        verdict->refused = why->refused;
        verdict->rank = why->rank;
    }
}

/* All ranks have the same sums, so they reach the same verdict. */
static __device__ void dense_conclude(const tam_cuda_exchange &x, bool refused, bool skipped) {
    tam_cuda_verdict *verdict = &x.common->verdict;
    *verdict = {};
    verdict->step = x.params->step;
    if (refused) {
        dense_refuse(x, verdict);
        return;
    }
    for (uint32_t b = 0; b < x.nbuckets; b++) {
        verdict->nonfinite += x.all[b].scratch->bad;
        verdict->count += skipped ? 0 : (uint32_t)x.all[b].grid.n;
    }
    if (skipped) {
        verdict->status = TAMIS_E_NONFINITE;
        verdict->in_sums = 1;
    }
}

/* A broken exchange has absent sums in every later step. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    apply_sums(const tam_cuda_exchange x, const tam_cuda_accumulate target,
                       tam_cuda_params *params) {
    bool there = threadIdx.x < x.nbuckets;
    const tam_cuda_scratch *seen = x.all[there ? threadIdx.x : 0].scratch;
    bool refuses = seen->absent || seen->verdict.status == TAMIS_E_PROTOCOL;
    bool refused = __syncthreads_count(there && refuses) > 0;
    bool bad = __syncthreads_count(there && seen->bad > 0) > 0;
    bool skipped = bad && !refused && x.nonfinite != TAMIS_NONFINITE_DROP;
    if (skipped && target.type == TAMIS_DTYPE_FLOAT32)
        tam_clear_all<float>(target);
    else if (skipped)
        tam_clear_all<uint16_t>(target);
    if (blockIdx.x > 0 || threadIdx.x > 0)
        return;
    if (x.decides)
        dense_conclude(x, refused, skipped);
    if (refused) /* not applied, so not counted */
        params->broken = TAMIS_E_PROTOCOL;
    else
        params->step++;
}

/* -- launch ----------------------------------------------------------------------------------- */

/* A chunk for every warp. */
static unsigned dense_blocks_for(const tam_cuda_exchange *job, uint32_t nchunks) {
    uint32_t blocks = (nchunks + TAM_BLOCK_WARPS - 1) / TAM_BLOCK_WARPS;
    return blocks < job->blocks ? blocks : job->blocks;
}

typedef void (*mover)(const tam_cuda_exchange, const tam_cuda_accumulate, const tam_cuda_piece);

static int move(const mover of_type[3], const tam_cuda_exchange *job,
                const tam_cuda_accumulate *target, const tam_cuda_piece *piece, void *stream) {
    unsigned blocks = dense_blocks_for(job, piece->end_chunk - piece->first_chunk);
    return tam_launch(of_type[target->type], blocks, stream, *job, *target, *piece);
}

extern "C" int tam_launch_dense_widen(const tam_cuda_exchange *job,
                                      const tam_cuda_accumulate *target,
                                      const tam_cuda_piece *piece, void *stream) {
    static const mover of_type[] = {widen_values<tam_as_float32>, widen_values<tam_as_float16>,
                                    widen_values<tam_as_bfloat16>};
    return move(of_type, job, target, piece, stream);
}

extern "C" int tam_launch_dense_narrow(const tam_cuda_exchange *job,
                                       const tam_cuda_accumulate *target,
                                       const tam_cuda_piece *piece, void *stream) {
    static const mover of_type[] = {narrow_values<tam_as_float32>, narrow_values<tam_as_float16>,
                                    narrow_values<tam_as_bfloat16>};
    return move(of_type, job, target, piece, stream);
}

extern "C" int tam_launch_dense_apply(const tam_cuda_exchange *job,
                                      const tam_cuda_accumulate *target, tam_cuda_params *params,
                                      void *stream) {
    return tam_launch(apply_sums, dense_blocks_for(job, target->grid.nchunks), stream, *job,
                      *target, params);
}
