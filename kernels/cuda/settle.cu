/* SPDX-License-Identifier: MIT
 *
 * From the values of all ranks to the result: sums in rank order, the last verdict, then gradient
 * and residual, and a report for the host.
 */
#include "kernels/cuda/slots.cuh"

#include "kernels/cuda/gradient.cuh"
#include "lib/policy/rules.h"

/* -- add -------------------------------------------------------------------------------------- */

static __device__ __forceinline__ bool absent(float x) {
    return tam_bits_of(x) == TAM_CUDA_ABSENT;
}

/* A NaN does not travel through additions with all its bits. */
static __device__ __forceinline__ float add(float sum, float x) {
    return absent(sum) || absent(x) ? __uint_as_float(TAM_CUDA_ABSENT) : __fadd_rn(sum, x);
}

/* Four entries of the own share. */
static __device__ __forceinline__ float4 add_ranks(const tam_cuda_exchange &x, uint64_t at) {
    const float4 *shares = reinterpret_cast<const float4 *>(x.shares);
    float4 sum = shares[at];
    for (uint32_t r = 1; r < x.slots.nranks; r++) {
        float4 other = shares[r * (x.share / 4) + at];
        sum.x = add(sum.x, other.x);
        sum.y = add(sum.y, other.y);
        sum.z = add(sum.z, other.z);
        sum.w = add(sum.w, other.w);
    }
    return sum;
}

/* The sums go to their place among the values, which have been sent by now; the sums of the other
 * ranks must come in place of the rest. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) add_shares(const tam_cuda_exchange x) {
    float4 *values = reinterpret_cast<float4 *>(x.values);
    float a = __uint_as_float(TAM_CUDA_ABSENT);
    uint64_t share = x.share / 4, mine = x.slots.rank * share;
    for (uint64_t i = tam_thread_of_grid(); i < share * x.slots.nranks; i += tam_threads_of_grid())
        values[i] =
            i >= mine && i < mine + share ? add_ranks(x, i - mine) : make_float4(a, a, a, a);
}

/* -- survey ----------------------------------------------------------------------------------- */

/* All ranks see the same sums, and so come to the same verdict. */
static __device__ void conclude(const tam_cuda_exchange &x) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    uint64_t bad = x.scratch->bad;
    if (x.scratch->absent) {
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = TAM_CUDA_REFUSED_ABSENT;
        verdict->rank = x.slots.rank;
    } else if (bad > 0) {
        verdict->nonfinite += bad;
        if (x.nonfinite != TAMIS_NONFINITE_DROP) {
            verdict->status = TAMIS_E_NONFINITE;
            verdict->in_sums = 1;
            verdict->rank = 0;
        }
    }
    if (verdict->status != TAMIS_OK)
        verdict->picked_sum = 0.0;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS) survey(const tam_cuda_exchange x) {
    const tam_cuda_verdict *verdict = &x.scratch->verdict;
    uint64_t bad = 0, count = verdict->count;
    bool incomplete = false;
    if (verdict->status != TAMIS_OK)
        return;
    for (uint64_t i = tam_thread_of_grid(); i < count; i += tam_threads_of_grid()) {
        float sum = x.values[i];
        bad += tam_magnitude_of(sum) >= TAM_INFINITE_BITS;
        incomplete = incomplete || absent(sum);
    }
    if (bad > 0)
        tam_add64(&x.scratch->bad, bad);
    if (incomplete)
        atomicOr(&x.scratch->absent, 1u);
    if (tam_last_block(&x.scratch->surveyed) && threadIdx.x == 0)
        conclude(x);
}

/* -- settle ----------------------------------------------------------------------------------- */

/* What the own list holds has been given, whatever became of the others'. */
static __device__ void clear_picks(const tam_cuda_exchange &x) {
    const uint32_t *indices = tam_indices_of(x.slots, x.slots.rank);
    for (uint64_t i = tam_thread_of_grid(); i < x.picked->count; i += tam_threads_of_grid())
        x.acc[indices[i]] = 0.0f;
}

/* A sum that is not finite is dropped with what made it, also where the step is skipped: else every
 * later step would meet it again. */
static __device__ uint64_t settle_all(const tam_cuda_exchange &x, const tam_cuda_accumulate &target,
                                      bool applied) {
    uint64_t hash = 0, count = x.scratch->verdict.count;
    for (uint64_t i = tam_thread_of_grid(); i < count; i += tam_threads_of_grid()) {
        uint32_t index = x.indices[i];
        float value = x.values[i];
        bool finite = tam_magnitude_of(value) < TAM_INFINITE_BITS;
        if (!finite || (applied && !x.slots.with_values))
            x.acc[index] = 0.0f;
        if (!applied)
            continue;
        value = __fdiv_rn(finite ? value : 0.0f, x.divisor);
        x.values[i] = value;
        if (target.source)
            tam_write_gradient(target, *target.source, index, value);
        hash += tam_mix(i, tam_bits_of(value));
    }
    return hash;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    settle(const tam_cuda_exchange x, const tam_cuda_accumulate target) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    bool applied = verdict->status == TAMIS_OK;
    if (verdict->status != TAMIS_E_PROTOCOL) {
        uint64_t hash = tam_block_sum(settle_all(x, target, applied));
        if (applied && x.slots.with_values)
            clear_picks(x);
        if (threadIdx.x == 0)
            tam_add64(&verdict->result, hash);
    }
    if (!tam_last_block(&x.scratch->applied) || threadIdx.x > 0)
        return;
    if (applied)
        x.ledger->last_result = verdict->result;
    else
        verdict->count = 0;
}

/* -- report ----------------------------------------------------------------------------------- */

/* In the order in which the host adds them; the others bring them near. */
static __device__ double add_groups(const double *sums, uint32_t ngroups) {
    __shared__ double near[TAM_BLOCK_THREADS];
    double all = 0.0;
    for (uint32_t first = 0; first < ngroups; first += TAM_BLOCK_THREADS) {
        uint32_t most = ngroups - first < TAM_BLOCK_THREADS ? ngroups - first : TAM_BLOCK_THREADS;
        if (threadIdx.x < most)
            near[threadIdx.x] = sums[first + threadIdx.x];
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < most; i++)
            all += near[i];
        __syncthreads();
    }
    return all;
}

/* All but the serial. */
static __device__ void describe(const tam_cuda_exchange &x, const tam_control_state *state,
                                double acc_sum, tam_cuda_report *out) {
    const tam_cuda_verdict *verdict = &x.scratch->verdict;
    out->step = verdict->step;
    out->status = verdict->status;
    out->refused = verdict->refused;
    out->rank = verdict->rank;
    out->in_sums = verdict->in_sums;
    out->picked = x.picked->count;
    out->picked_max = verdict->picked_max;
    out->selected = verdict->count;
    out->rescans = verdict->rescans;
    out->deferred = verdict->deferred;
    out->candidates = verdict->candidates;
    out->nonfinite = verdict->nonfinite;
    out->key = __uint_as_float(x.picked->key);
    out->picked_sum = verdict->picked_sum;
    out->margin = state->margin;
    out->slope = tam_rule_slope(state);
    out->acc_sum = acc_sum;
}

/* A broken exchange goes on to report why it broke. */
static __device__ void remember_refusal(const tam_cuda_exchange &x) {
    const tam_cuda_verdict *verdict = &x.scratch->verdict;
    if (verdict->status != TAMIS_E_PROTOCOL || x.ledger->refused)
        return;
    x.ledger->refused = verdict->refused;
    x.ledger->rank = verdict->rank;
}

/* The serial comes last: who sees it sees the rest. */
static __device__ void publish(uint64_t *to, uint64_t serial) {
#ifdef TAM_CUDA_EMULATED /* atomics are all that checkers of races on hosts understand */
    atomicExch(reinterpret_cast<unsigned long long *>(to), (unsigned long long)serial);
#else
    __threadfence_system();
    *static_cast<volatile uint64_t *>(to) = serial;
    __threadfence_system();
#endif
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    report(const tam_cuda_exchange x, const tam_control_state *state, uint32_t lane,
           tam_cuda_report *ring) {
    double acc_sum = add_groups(x.group_sums, x.grid.ngroups);
    if (threadIdx.x > 0)
        return;
    uint64_t serial = ++x.ledger->serials[lane];
    tam_cuda_report *to = &ring[serial % TAM_CUDA_STEPS];
    remember_refusal(x);
    publish(&to->serial, 0); /* what lies there is being overwritten */
    describe(x, state, acc_sum, to);
    publish(&to->serial, serial);
}

/* -- launch ----------------------------------------------------------------------------------- */

/* A few entries for every thread. */
static unsigned blocks_for(const tam_cuda_exchange *job, uint64_t entries) {
    uint64_t blocks = (entries + 4 * TAM_BLOCK_THREADS - 1) / (4 * TAM_BLOCK_THREADS);
    blocks = blocks < job->blocks ? blocks : job->blocks;
    return blocks > 0 ? (unsigned)blocks : 1;
}

extern "C" int tam_launch_add(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(add_shares, blocks_for(job, job->room / 4), stream, *job);
}

extern "C" int tam_launch_survey(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(survey, blocks_for(job, job->room), stream, *job);
}

extern "C" int tam_launch_settle(const tam_cuda_exchange *job, const tam_cuda_accumulate *target,
                                 void *stream) {
    return tam_launch(settle, blocks_for(job, job->room), stream, *job, *target);
}

extern "C" int tam_launch_report(const tam_cuda_exchange *job, const tam_control_state *state,
                                 uint32_t lane, tam_cuda_report *ring, void *stream) {
    return tam_launch(report, 1, stream, *job, state, lane, ring);
}
