/* SPDX-License-Identifier: MIT
 *
 * From the sums to the result: the verdict on all buckets, then gradient and residual.
 */
#include "kernels/cuda/packets.cuh"

#include "kernels/cuda/gradient.cuh"
#include "kernels/cuda/shards.cuh"
#include "lib/policy/bucket.h"

/* -- decide: for all buckets ------------------------------------------------------------------ */

/* Sums and minima over the buckets, one thread for each bucket. */
struct bucket_totals {
    unsigned long long selected, deferred, candidates, nonfinite, bad;
    uint32_t rescans, sent_max;
    uint32_t row_entries;     /* entries of the result in segments with rows */
    uint32_t refused;         /* the first bucket whose packets or sums are refused, or nbuckets */
    uint32_t found_nonfinite; /* the first rank whose gradient was not finite, or UINT32_MAX */
    uint32_t counts[TAM_BUCKETS_MAX];
    double squares[TAM_BUCKETS_MAX], own[TAM_BUCKETS_MAX], sums[TAM_BUCKETS_MAX];
};

static __device__ void add_verdict(const tam_cuda_exchange &x, uint32_t b, bucket_totals *all) {
    const tam_cuda_scratch *scratch = x.all[b].scratch;
    const tam_cuda_verdict *v = &scratch->verdict;
    if (v->status == TAMIS_E_PROTOCOL)
        atomicMin(&all->refused, b);
    else if (v->status == TAMIS_E_NONFINITE)
        atomicMin(&all->found_nonfinite, v->rank);
    atomicAdd(&all->selected, (unsigned long long)v->selected);
    atomicAdd(&all->deferred, (unsigned long long)v->deferred);
    atomicAdd(&all->candidates, (unsigned long long)v->candidates);
    atomicAdd(&all->nonfinite, (unsigned long long)v->nonfinite);
    atomicAdd(&all->bad, (unsigned long long)scratch->bad);
    atomicAdd(&all->rescans, v->rescans);
    all->counts[b] = v->count;
    if (tam_scheme_is_sparse_rows(x.all[b].scheme))
        atomicAdd(&all->row_entries, v->count);
    all->squares[b] = v->sent_sum;
    all->own[b] = v->own_sum;
    all->sums[b] = v->all_sum;
}

/* Ranks that the packets tell of. Those of a node's results hold what each rank of their inter-node
 * group selected. */
static __device__ uint32_t ranks_of(const tam_cuda_packets &s) {
    return s.nwords > 0 ? (s.nwords - 1) * s.nranks : s.nranks;
}

static __device__ uint32_t apply_selected_of(const tam_cuda_packets &s, uint32_t rank) {
    return s.nwords > 0 ? tam_words_of(s, rank % s.nranks)[rank / s.nranks] : tam_count_of(s, rank);
}

/* Entries that a rank selected in all buckets. Arbitrary if its packets are refused. */
static __device__ uint32_t count_of(const tam_cuda_exchange &x, uint32_t rank) {
    uint32_t count = 0;
    for (uint32_t b = 0; b < x.nbuckets; b++)
        count += tam_scheme_is_sparse_rows(x.all[b].scheme)
                     ? 0
                     : apply_selected_of(x.all[b].packets, rank);
    return count;
}

static __device__ void use_scale(const tam_cuda_exchange &x) {
    tam_cuda_common *common = x.common;
    common->scale = tam_norm_matching_scale(common->norm_matching, common->ratio, x.scale_most);
    common->divisor = (float)(x.divisor / common->scale);
}

/* norm_matching: the scale of this step includes what it taught (collectives/reducer/finish.c). */
static __device__ void learn_scale(const tam_cuda_exchange &x, const bucket_totals &all) {
    tam_cuda_common *common = x.common;
    double own = 0.0, applied = 0.0, divisor = x.divisor;
    for (uint32_t b = 0; b < x.nbuckets; b++) {
        own += all.own[b];
        applied += all.sums[b];
    }
    common->norm_matching =
        tam_norm_matching_learn(common->norm_matching, own, applied / (divisor * divisor));
    use_scale(x);
}

/* All ranks have the same headers and sums, so they reach the same verdict. If the headers end the
 * step, the sums are not examined. */
static __device__ void apply_conclude(const tam_cuda_exchange &x, const bucket_totals &all) {
    tam_cuda_verdict *verdict = &x.common->verdict;
    *verdict = {};
    verdict->step = x.scratch->verdict.step;
    verdict->selected = all.selected;
    verdict->sent_max = all.sent_max;
    verdict->deferred = all.deferred;
    verdict->candidates = all.candidates;
    verdict->rescans = all.rescans;
    verdict->nonfinite = all.nonfinite;
    if (all.refused < x.nbuckets) {
        const tam_cuda_verdict *why = &x.all[all.refused].scratch->verdict;
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = why->refused;
        verdict->rank = why->rank;
        return;
    }
    if (all.found_nonfinite < UINT32_MAX) {
        verdict->status = TAMIS_E_NONFINITE;
        verdict->rank = all.found_nonfinite;
        return;
    }
    verdict->nonfinite += all.bad;
    if (x.matches) /* if nothing is learned: as after the step before */
        use_scale(x);
    if (all.bad > 0 && x.nonfinite != TAMIS_NONFINITE_DROP) {
        verdict->status = TAMIS_E_NONFINITE;
        verdict->in_sums = 1;
        return;
    }
    verdict->row_entries = all.row_entries;
    for (uint32_t b = 0; b < x.nbuckets; b++) {
        verdict->count += all.counts[b];
        verdict->sent_sum += all.squares[b];
    }
    if (x.matches)
        learn_scale(x, all);
}

/* The last bucket holds the first elements: its result comes first. */
static __device__ void apply_decide(const tam_cuda_exchange &x) {
    __shared__ bucket_totals all;
    uint32_t b = threadIdx.x, offset = 0;
    if (b == 0) {
        all = bucket_totals();
        all.refused = x.nbuckets;
        all.found_nonfinite = UINT32_MAX;
    }
    __syncthreads();
    if (b < x.nbuckets)
        add_verdict(x, b, &all);
    for (uint32_t r = threadIdx.x; r < ranks_of(x.packets); r += TAM_BLOCK_THREADS)
        atomicMax(&all.sent_max, count_of(x, r));
    __syncthreads();
    if (b == 0)
        apply_conclude(x, all);
    for (uint32_t later = b + 1; later < x.nbuckets; later++)
        offset += all.counts[later];
    if (b < x.nbuckets)
        x.all[b].scratch->verdict.offset = offset;
}

/* -- validate --------------------------------------------------------------------------------- */

/* With norm matching the scale is not known yet, and need not be: it makes no step longer than the
 * ranks' own times a constant. */
static __device__ __forceinline__ float divisor_of(const tam_cuda_exchange &x) {
    return x.matches ? x.divisor : x.common->divisor;
}

/* What would be applied is finite. */
static __device__ __forceinline__ bool stays_finite(float sum, float divisor) {
    return tam_magnitude_of(__fdiv_rn(sum, divisor)) < TAM_INFINITE_BITS;
}

static __device__ void put_sum(double mine, double *to) {
    double sum = tam_block_fold(mine);
    if (threadIdx.x == 0)
        *to = sum;
}

/* @return bad sums that this thread saw */
static __device__ uint64_t validate_piece(const tam_cuda_exchange &x, uint32_t piece,
                                          uint32_t count) {
    uint32_t begin = piece * TAM_PIECE, left = count - begin;
    float divisor = divisor_of(x);
    double squares = 0.0, kept = 0.0;
    uint64_t bad = 0;
    tam_walk_shards(
        x, begin, begin + (left < TAM_PIECE ? left : TAM_PIECE), TAM_SUMS,
        [&](uint32_t, uint64_t place) { return x.values[place]; },
        [&](uint32_t i, uint64_t, float sum) {
            bad += !stays_finite(sum, divisor);
            squares += (double)sum * sum;
            float error = x.rounded.blocks > 0 ? x.errors[i] : 0.0f;
            kept += (double)error * error;
        });
    if (x.matches) /* uniform in the block */
        put_sum(squares, &x.value_sums[piece]);
    if (x.rounded.blocks > 0)
        put_sum(kept, &x.rounded.squares[piece]);
    return bad;
}

/* The last block: whether all sums are what their owners sent. */
static __device__ void check_sums(const tam_cuda_exchange &x) {
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS) {
        if (tam_shard_check(x, r, x.checks[TAM_SUMS][r]) != *tam_check_in(x, x.values, r))
            atomicOr(&x.scratch->absent, 1u);
    }
    __syncthreads();
}

/* The last block: what the scale follows from. */
static __device__ void apply_add_squares(const tam_cuda_exchange &x, uint32_t pieces,
                                         tam_cuda_verdict *verdict) {
    double own = 0.0;
    for (uint32_t g = threadIdx.x; g < x.packets.nstats; g += TAM_BLOCK_THREADS)
        own += tam_mean_of(x.packets, g);
    own = tam_block_fold(own);
    double all = tam_block_fold_list(x.value_sums, pieces);
    if (threadIdx.x > 0)
        return;
    verdict->own_sum = own;
    verdict->all_sum = all;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    apply_validate(const tam_cuda_exchange x) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    uint32_t count = verdict->status == TAMIS_OK ? verdict->count : 0;
    uint32_t pieces = tam_pieces_of(count);
    uint64_t bad = 0;
    for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
        bad += validate_piece(x, piece, count);
    if (bad > 0)
        tam_add64(&x.scratch->bad, bad);
    if (!tam_last_block(&x.scratch->validated))
        return;
    if (x.checked && verdict->status == TAMIS_OK)
        check_sums(x);
    if (x.matches)
        apply_add_squares(x, pieces, verdict);
    if (x.rounded.blocks > 0) {
        double kept = tam_block_fold_list(x.rounded.squares, pieces);
        if (threadIdx.x == 0)
            verdict->sent_sum -= kept;
    }
    if (threadIdx.x == 0 && x.scratch->absent) {
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = TAM_REFUSED_ABSENT;
        verdict->rank = tam_rank_of(x.packets, x.packets.rank);
    }
    __syncthreads();
    if (x.decides)
        apply_decide(x);
}

/* -- apply ------------------------------------------------------------------------------------ */

/* What is left of an entry of the residual that this rank has sent; of its momentum, where that
 * counts twice, nothing. */
static __device__ __forceinline__ void apply_leave(const tam_cuda_exchange &x, uint32_t index,
                                                   float error) {
    x.acc[index] = error;
    if (x.masked)
        x.masked[index] = 0.0f;
}

/* Entry i of the result leaves the residual if this rank has sent it: at the union always, of
 * pairs if it is in the own list. */
static __device__ void leave_sent(const tam_cuda_exchange &x, uint32_t i, uint32_t index,
                                  bool finite) {
    const uint32_t *list = tam_indices_of(x.packets, x.packets.rank);
    uint32_t at = i, count = x.selected->count;
    if (x.packets.with_values) {
        at = tam_entries_before(list, count, index);
        if (at == count || list[at] != index)
            return;
    }
    apply_leave(x, index, finite && x.errors ? x.errors[at] : 0.0f);
}

/* A sum that is not finite is dropped, and its entries are removed from the residual, even if the
 * step is skipped because of it: otherwise it would return in every later step. */
static __device__ uint64_t apply_all(const tam_cuda_exchange &x, const tam_cuda_accumulate &target,
                                     bool applied) {
    const tam_cuda_verdict *verdict = &x.scratch->verdict;
    uint64_t hash = 0, count = verdict->count;
    float divisor = x.common->divisor;
    for (uint64_t i = tam_thread_of_grid(); i < count; i += tam_threads_of_grid()) {
        uint32_t index = x.indices[i];
        float value = x.values[tam_value_position(x, (uint32_t)i)];
        bool finite = stays_finite(value, divisor);
        if (!finite && x.acc)
            apply_leave(x, index, 0.0f);
        if (!applied)
            continue;
        if (x.acc)
            leave_sent(x, (uint32_t)i, index, finite);
        value = __fdiv_rn(finite ? value : 0.0f, divisor);
        x.applied[i] = value;
        if (x.all_indices) {
            x.all_indices[verdict->offset + i] = index + x.begin;
            x.all_values[verdict->offset + i] = value;
        }
        if (target.source)
            tam_write_gradient(target, *target.source, index, value);
        hash += tam_sum_word(TAM_SUM_RESULT, i, tam_bits_of(value));
    }
    return hash;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    apply_result(const tam_cuda_exchange x, const tam_cuda_accumulate target) {
    const tam_cuda_verdict *all = &x.common->verdict;
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    bool applied = all->status == TAMIS_OK;
    if (applied || all->in_sums) {
        uint64_t hash = tam_block_sum(apply_all(x, target, applied));
        if (threadIdx.x == 0)
            tam_add64(&verdict->result, hash);
    }
    if (!tam_last_block(&x.scratch->applied) || threadIdx.x > 0)
        return;
    if (all->status != TAMIS_E_PROTOCOL) /* they have been reported to all ranks */
        x.record->early.nonfinite = 0;
    if (applied)
        x.record->last_result = verdict->result;
    else
        verdict->count = 0;
}

/* -- launch ----------------------------------------------------------------------------------- */

/* A few entries for every thread. */
static unsigned apply_blocks_for(const tam_cuda_exchange *job, uint64_t entries) {
    uint64_t blocks = (entries + 4 * TAM_BLOCK_THREADS - 1) / (4 * TAM_BLOCK_THREADS);
    blocks = blocks < job->blocks ? blocks : job->blocks;
    return blocks > 0 ? (unsigned)blocks : 1;
}

extern "C" int tam_launch_validate(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = job->capacity / TAM_PIECE + 1;
    return tam_launch(apply_validate, pieces < job->blocks ? (unsigned)pieces : job->blocks, stream,
                      *job);
}

extern "C" int tam_launch_apply_result(const tam_cuda_exchange *job,
                                       const tam_cuda_accumulate *target, void *stream) {
    return tam_launch(apply_result, apply_blocks_for(job, job->capacity), stream, *job, *target);
}
