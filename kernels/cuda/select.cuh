/* SPDX-License-Identifier: MIT
 *
 * The keys that a selection visits: those of the list, or of the own chunks. Every block takes its
 * run.
 */
#ifndef TAM_CUDA_SELECT_CUH
#define TAM_CUDA_SELECT_CUH

#include "kernels/cuda/kernel.cuh"

#include "kernels/cuda/chunk.cuh"

/* -- keys ------------------------------------------------------------------------------------- */

/* How keys of a group's entries are computed. */
struct tam_rule {
    uint32_t least; /* magnitude that an entry must reach to take part */
    float weight;
    bool weighted;
};

static __device__ __forceinline__ tam_rule tam_rule_of(const tam_cuda_select_job &job,
                                                       uint32_t group) {
    tam_rule r = {0, 1.0f, false};
    if (job.kind == TAM_SELECT_ALL) {
        uint32_t threshold = job.thresholds[group];
        r.least = threshold < TAM_INFINITE_BITS ? threshold : UINT32_MAX;
    } else if (job.weights) {
        r.weighted = true;
        r.weight = job.weights[group];
    }
    return r;
}

static __device__ __forceinline__ uint32_t tam_key_by(const tam_rule &r, uint32_t magnitude) {
    return r.weighted ? tam_key_of(magnitude, r.weight) : magnitude;
}

/* All entries of the list take part. */
static __device__ __forceinline__ uint32_t tam_candidate_key(const tam_cuda_select_job &job,
                                                             uint32_t magnitude,
                                                             const uint32_t *group) {
    if (job.kind == TAM_SELECT_ALL || !job.weights)
        return magnitude;
    return tam_key_of(magnitude, job.weights[*group]);
}

/* Magnitudes may have signs, see choose.c. */
static __device__ __forceinline__ uint32_t tam_list_key(const tam_cuda_select_job &job,
                                                        uint32_t i) {
    return tam_candidate_key(job, job.candidates.magnitude[i] & 0x7fffffffu,
                             job.candidates.group + i);
}

/* -- walks: every block takes its run --------------------------------------------------------- */

static __device__ __forceinline__ tam_run tam_list_run(const tam_cuda_select_job &job) {
    return tam_run_of(0, job.found->count, blockIdx.x, gridDim.x);
}

static __device__ __forceinline__ tam_run tam_chunk_run(const tam_cuda_select_job &job) {
    return tam_run_of(job.first_chunk, job.end_chunk, blockIdx.x, gridDim.x);
}

template <typename VISIT>
static __device__ __forceinline__ void tam_walk_list(const tam_cuda_select_job &job, VISIT visit) {
    tam_run run = tam_list_run(job);
    for (uint32_t i = run.first + threadIdx.x; i < run.end; i += TAM_BLOCK_THREADS)
        visit(tam_list_key(job, i));
}

template <tam_form FORM, typename VISIT>
static __device__ __forceinline__ void tam_walk_chunk(const tam_cuda_select_job &job,
                                                      const tam_cuda_chunk &chunk, VISIT visit) {
    float x[16];
    tam_rule r = tam_rule_of(job, chunk.group);
    tam_load_chunk<FORM>(job.acc + chunk.begin, chunk.length, x);
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        bool inside = tam_inside<FORM>(tam_element_of<FORM>(threadIdx.x % 32, i), chunk.length);
        uint32_t magnitude = tam_magnitude_of(x[i]);
        if (inside && magnitude >= r.least)
            visit(tam_key_by(r, magnitude));
    }
}

/* `leave(number)` is called after each chunk, including those that are not own. */
template <typename VISIT, typename LEAVE>
static __device__ __forceinline__ void tam_walk_chunks(const tam_cuda_select_job &job, VISIT visit,
                                                       LEAVE leave) {
    tam_run run = tam_chunk_run(job);
    uint32_t mine = job.params->mine;
    for (uint32_t i = run.first + threadIdx.x / 32; i < run.end; i += TAM_BLOCK_WARPS) {
        tam_cuda_chunk chunk = tam_chunk_of(job.grid, i);
        if (tam_owns_part(mine, chunk.part)) {
            if (chunk.length == TAM_CHUNK && tam_aligned(job.acc + chunk.begin, 16))
                tam_walk_chunk<TAM_VECTOR>(job, chunk, visit);
            else
                tam_walk_chunk<TAM_PART>(job, chunk, visit);
        }
        leave(i);
    }
}

#endif
