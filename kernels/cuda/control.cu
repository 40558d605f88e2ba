/* SPDX-License-Identifier: MIT
 *
 * The control on the device, one block for each bucket. It does what the reducer, control.c and
 * budget.c do on the host, with the same bits (lib/policy/rules.h).
 *
 *     observe     ranks and groups to threads    smallest keys, means, sizes of groups
 *     learn       thread 0                       state; the update of all groups' levels
 *     budgets     all sort, thread 0 walks       k among the groups
 *     levels      groups to threads
 *     divide      thread 0 of the last block     k among the buckets; in a second launch:
 *     retarget    groups to threads              levels, for another k
 *     prepare     groups to threads              thresholds, weights; thread 0: parameters
 *     report      the last block                 figures of the step, for the host
 *
 * Cost, counted, not measured: in thread 0 each group adds a division that depends on the previous
 * one, some 250 cycles, and each rank two; then come a binary search in the union and ten
 * logarithms and powers, one after another, some 1000 cycles each. With 161 groups and 8 ranks that
 * is 90,000 cycles, 50 us at 1.8 GHz. The sort is G log^2 G / 512 rounds of a thread. Thousands of
 * groups cost 0.15 us each.
 */
#include "kernels/cuda/report.cuh"

#include "lib/policy/bucket.h"
#include "lib/policy/rules.h"

#define NO_KEY 4096.0 /* larger than the logarithm of any float */

/* Shared memory of the block. */
struct shared_state {
    tam_control_state state;
    tam_observed seen; /* without the groups, which are in the job's memory */
    tam_level_update update;
    double norm; /* of what is exchanged here */
    /* The groups that get their budgets next, by descending norm. */
    double norms[TAM_BLOCK_THREADS];
    uint32_t lengths[TAM_BLOCK_THREADS], budgets[TAM_BLOCK_THREADS];
};

/* How many of so many entries of the bucket are selected here: for a shard its part. */
static __device__ uint64_t control_part_of(const tam_cuda_control &job, uint64_t k) {
    return tam_rule_rank_budget(k, job.whole, job.node_shard.before, job.node_shard.upto);
}

/* Those that thresholds are learned for. A shard may get none of a small k. */
static __device__ uint64_t control_threshold_k_of(const tam_cuda_control &job, uint64_t k) {
    uint64_t part = control_part_of(job, k);
    return part > 0 ? part : 1;
}

/* -- observe ---------------------------------------------------------------------------------- */

static __device__ void read_min_keys(const tam_cuda_control &job) {
    for (uint32_t r = threadIdx.x; r < job.packets.nranks; r += TAM_BLOCK_THREADS) {
        const tam_header *h = tam_header_of(job.packets, r);
        bool has_key = tam_header_flags(h) & TAM_HEADER_HAS_KEY;
        job.min_keys[r] = has_key ? tam_log2(h->key) : NO_KEY;
    }
}

/* Thread 0: removes the gaps between smallest keys, keeping rank order. */
static __device__ tam_observed control_observe(const tam_cuda_control &job) {
    tam_observed seen = {};
    seen.selected = job.verdict->selected;
    seen.candidates = job.verdict->known ? job.verdict->candidates : 0;
    seen.min_keys = job.min_keys;
    for (uint32_t r = 0; r < job.packets.nranks; r++) {
        double key = job.min_keys[r];
        if (key != NO_KEY)
            job.min_keys[seen.nmin_keys++] = key;
    }
    return seen;
}

/* Store where each group ends in the union in job.order, which is free until the sort. */
static __device__ void find_groups(const tam_cuda_control &job) {
    for (uint32_t g = threadIdx.x; g < job.grid.ngroups; g += TAM_BLOCK_THREADS) {
        uint32_t end = job.grid.groups[g].begin + job.grid.groups[g].length;
        job.order[g] = tam_entries_before(job.indices, job.verdict->count, end);
    }
}

/* Only if the packets carry them. */
static __device__ void measure_groups(const tam_cuda_control &job) {
    for (uint32_t g = threadIdx.x; g < job.packets.nstats; g += TAM_BLOCK_THREADS) {
        double mean = tam_mean_of(job.packets, g);
        job.means[g] = mean;
        job.norms[g] = sqrt(mean);
    }
}

/* The norm of the bucket. All buckets that share k have them, or none: the first says so. */
static __device__ void add_norms(const tam_cuda_control &job, shared_state &shared) {
    double sum = tam_add_in_order(job.norms, job.packets.nstats, 0.0);
    if (threadIdx.x > 0)
        return;
    shared.norm = sum;
    *job.norm = job.results.memory ? tam_mean_of(job.results, 0) : sum;
    if (job.budget_at == 0)
        job.common->has_norms = job.packets.nstats > 0;
}

static __device__ void count_selected(const tam_cuda_control &job) {
    for (uint32_t g = threadIdx.x; g < job.grid.ngroups; g += TAM_BLOCK_THREADS)
        job.group_selected[g] = job.order[g] - (g > 0 ? job.order[g - 1] : 0);
}

/* -- budgets of groups ------------------------------------------------------------------------ */

static __device__ bool comes_before(const double *norms, uint32_t a, uint32_t b) {
    uint64_t key_a = tam_rule_descending(norms[a]), key_b = tam_rule_descending(norms[b]);
    return key_a != key_b ? key_a < key_b : a < b;
}

/* Bitonic sort. A merge first compares mirror images, i with width - 1 - i, so every comparison
 * moves the later entry up. Entries past the end count as later than all and never move. */
static __device__ __forceinline__ void sort_by(const double *norms, uint32_t ngroups,
                                               uint32_t *order) {
    for (uint32_t g = threadIdx.x; g < ngroups; g += TAM_BLOCK_THREADS)
        order[g] = g;
    __syncthreads();
    for (uint32_t width = 2; width < 2 * ngroups; width *= 2) {
        for (uint32_t flip = width - 1; flip > 0; flip = flip == width - 1 ? width / 4 : flip / 2) {
            for (uint32_t i = threadIdx.x; i < ngroups; i += TAM_BLOCK_THREADS) {
                uint32_t j = i ^ flip;
                if (j <= i || j >= ngroups)
                    continue;
                uint32_t a = order[i], b = order[j];
                if (comes_before(norms, b, a)) {
                    order[i] = b;
                    order[j] = a;
                }
            }
            __syncthreads();
        }
    }
}

/* In shared memory, if they fit. */
static __device__ void sort_groups(const tam_cuda_control &job) {
    enum { NEAR = 1024 };
    __shared__ double norms[NEAR];
    __shared__ uint32_t order[NEAR];
    uint32_t ngroups = job.grid.ngroups;
    if (ngroups > NEAR) {
        sort_by(job.norms, ngroups, job.order);
        return;
    }
    for (uint32_t g = threadIdx.x; g < ngroups; g += TAM_BLOCK_THREADS)
        norms[g] = job.norms[g];
    sort_by(norms, ngroups, order);
    for (uint32_t g = threadIdx.x; g < ngroups; g += TAM_BLOCK_THREADS)
        job.order[g] = order[g];
    __syncthreads();
}

/* Every budget depends on those before it: thread 0 computes, the others load and store. */
static __device__ void budget_groups(const tam_cuda_control &job, shared_state &shared) {
    uint32_t ngroups = job.grid.ngroups;
    tam_rest rest = {static_cast<double>(control_threshold_k_of(job, *job.k)),
                     shared.norm}; /* thread 0's */
    for (uint32_t first = 0; first < ngroups; first += TAM_BLOCK_THREADS) {
        uint32_t count = min(ngroups - first, static_cast<uint32_t>(TAM_BLOCK_THREADS));
        uint32_t g = threadIdx.x < count ? job.order[first + threadIdx.x] : 0;
        shared.norms[threadIdx.x] = job.norms[g];
        shared.lengths[threadIdx.x] = job.grid.groups[g].length;
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < count; i++)
            shared.budgets[i] = tam_rule_budget(&rest, shared.norms[i], shared.lengths[i]);
        __syncthreads();
        if (threadIdx.x < count)
            job.budgets[g] = shared.budgets[threadIdx.x];
    }
    __syncthreads();
}

/* -- learn ------------------------------------------------------------------------------------ */

static __device__ void shift_levels(const tam_cuda_control &job, double shift) {
    for (uint32_t g = threadIdx.x; g < job.grid.ngroups; g += TAM_BLOCK_THREADS)
        job.levels[g] = tam_rule_clip_level(job.levels[g] + shift);
}

static __device__ void shape_levels(const tam_cuda_control &job, const tam_level_update &update) {
    for (uint32_t g = threadIdx.x; g < job.grid.ngroups; g += TAM_BLOCK_THREADS)
        job.levels[g] = tam_rule_level(&update, job.levels[g], job.means[g], job.group_selected[g],
                                       job.budgets[g], job.grid.groups[g].length);
}

/* Called after read_min_keys and find_groups. */
static __device__ void learn_levels(const tam_cuda_control &job, shared_state &shared) {
    bool by_norm = job.scheme.budget == TAM_BUDGET_NORM;
    if (threadIdx.x == 0) {
        shared.seen = control_observe(job);
        if (shared.seen.nmin_keys > 0)
            shared.update = tam_rule_learn(&shared.seen, job.scheme.budget, job.over, job.levels[0],
                                           &shared.state);
        /* The groups cover the vector, so every entry of the union is in some group. */
        shared.update.share =
            tam_rule_union_share(control_threshold_k_of(job, *job.k), job.verdict->count);
    }
    if (by_norm)
        count_selected(job);
    __syncthreads();
    if (shared.seen.nmin_keys == 0)
        return;
    if (!by_norm) {
        shift_levels(job, shared.update.shift);
        return;
    }
    sort_groups(job);
    budget_groups(job, shared);
    shape_levels(job, shared.update);
}

static __device__ void control_learn(const tam_cuda_control &job, shared_state &shared) {
    bool has_levels = tam_scheme_has_levels(job.scheme);
    measure_groups(job);
    if (has_levels)
        read_min_keys(job);
    if (has_levels && job.scheme.budget == TAM_BUDGET_NORM)
        find_groups(job);
    __syncthreads();
    add_norms(job, shared);
    if (has_levels)
        learn_levels(job, shared);
    else if (job.scheme.threshold == TAM_THRESHOLD_STEP && threadIdx.x == 0)
        shared.state.threshold = tam_rule_step(shared.state.threshold, job.verdict->selected,
                                               control_threshold_k_of(job, *job.k));
    if (threadIdx.x == 0)
        *job.state = shared.state;
}

/* -- prepare ---------------------------------------------------------------------------------- */

static __device__ uint32_t control_selected_of(const tam_cuda_control &job, uint64_t k,
                                               uint32_t at) {
    const tam_cuda_quota &quota = job.quota;
    if (quota.capacity > 0.0)
        return static_cast<uint32_t>(tam_rule_capacity(quota.capacity, k, quota.ranks, quota.own));
    const tam_cuda_span &span = quota.spans[at];
    return static_cast<uint32_t>(tam_rule_rank_budget(k, job.grid.n, span.before, span.upto));
}

static __device__ void write_params(const tam_cuda_control &job, const tam_control_state &state,
                                    uint64_t k, uint64_t step) {
    uint32_t nranks = job.packets.nranks, at = static_cast<uint32_t>(step % nranks);
    float floor_key = tam_rule_floor(job.scheme.budget, &state, job.levels[0]);
    job.params->step = step;
    job.params->mine = job.scheme.ownership == TAM_OWN_ALL
                           ? TAM_PART_ALL
                           : tam_scheme_part(job.scheme, step, job.packets.rank, nranks);
    job.params->k = control_selected_of(job, control_part_of(job, k), at);
    job.params->floor = tam_bits(floor_key) + 1;
    job.params->listed = tam_rule_listed(job.scheme.threshold, &state);
}

/* A group is handled by the thread that handled it in learn: levels need no barrier, only the
 * state does. */
static __device__ void control_prepare(const tam_cuda_control &job,
                                       const tam_control_state &state) {
    for (uint32_t g = threadIdx.x; g < job.grid.ngroups; g += TAM_BLOCK_THREADS) {
        job.thresholds[g] = tam_rule_threshold(job.scheme.threshold, &state, job.levels[g]);
        job.weights[g] = tam_rule_weight(&state, job.levels[g]);
    }
}

/* Prepare the next step, with target k: learned levels are shifted accordingly. */
static __device__ void write_next_params(const tam_cuda_control &job,
                                         const tam_control_state &state, uint64_t k) {
    uint64_t now = control_threshold_k_of(job, *job.k), next = control_threshold_k_of(job, k);
    if (next != now && state.primed && tam_scheme_has_levels(job.scheme))
        shift_levels(job, tam_rule_target_shift(&state, now, next));
    control_prepare(job, state);
    __syncthreads(); /* all have read k */
    if (threadIdx.x > 0)
        return;
    *job.k = k;
    write_params(job, state, k, job.params->step + 1);
}

/* -- kernels ---------------------------------------------------------------------------------- */

/* Whether this is the last bucket of the launch. It takes all the tickets back. */
static __device__ bool is_last_bucket(tam_cuda_common *common) {
    bool last = tam_last_block(&common->learned);
    if (last && threadIdx.x == 0)
        common->learned = 0;
    return last;
}

static __device__ void control_end_step(const tam_cuda_control &job, bool by_norm) {
    __shared__ shared_state shared;
    uint32_t status = job.common->verdict.status;
    if (status != TAMIS_OK && status != TAMIS_E_NONFINITE) {
        if (threadIdx.x == 0)
            job.params->broken = status;
        return;
    }
    if (job.params->broken != TAMIS_OK)
        return;
    if (threadIdx.x == 0) /* no other thread reads the state before the barrier */
        shared.state = *job.state;
    if (status == TAMIS_OK)
        control_learn(job, shared);
    __syncthreads();
    if (!by_norm || status != TAMIS_OK || tam_scheme_is_sparse_rows(job.scheme))
        write_next_params(job, shared.state, *job.k);
}

static __global__ void control(const tam_cuda_control *jobs, const tam_cuda_reporting reporting) {
    control_end_step(jobs[blockIdx.x], false);
    if (is_last_bucket(reporting.common))
        tam_report(reporting);
}

/* Where k is divided by norms: in the last block all of them are known. */
static __global__ void control_divide(const tam_cuda_control *jobs, const tam_cuda_budgets budgets,
                                      tam_cuda_common *common) {
    control_end_step(jobs[blockIdx.x], true);
    if (is_last_bucket(common) && threadIdx.x == 0 && common->verdict.status == TAMIS_OK)
        tam_bucket_budgets(budgets.k, budgets.nbuckets, budgets.lengths, budgets.norms,
                           budgets.even, budgets.next);
}

/* After an applied step, with its share of k. */
static __device__ void begin_step(const tam_cuda_control &job, uint64_t k) {
    __shared__ tam_control_state state;
    if (job.common->verdict.status != TAMIS_OK || job.params->broken != TAMIS_OK ||
        tam_scheme_is_sparse_rows(job.scheme))
        return;
    if (threadIdx.x == 0)
        state = *job.state;
    __syncthreads();
    write_next_params(job, state, k);
}

static __global__ void retarget(const tam_cuda_control *jobs, const tam_cuda_budgets budgets,
                                const tam_cuda_reporting reporting) {
    begin_step(jobs[blockIdx.x], budgets.next[jobs[blockIdx.x].budget_at]);
    if (is_last_bucket(reporting.common))
        tam_report(reporting);
}

static __global__ void write_first_params(const tam_cuda_control job, uint64_t step) {
    control_prepare(job, *job.state);
    if (threadIdx.x > 0)
        return;
    write_params(job, *job.state, *job.k, step);
    job.params->broken = TAMIS_OK;
    job.params->zero = 0;
}

extern "C" int tam_launch_control(const tam_cuda_control *jobs, const tam_cuda_budgets *budgets,
                                  const tam_cuda_reporting *reporting, void *stream) {
    uint32_t nbuckets = budgets->nbuckets + budgets->nrow_segments;
    if (!budgets->by_norm)
        return tam_launch(control, nbuckets, stream, jobs, *reporting);
    int error = tam_launch(control_divide, nbuckets, stream, jobs, *budgets, reporting->common);
    return error ? error : tam_launch(retarget, nbuckets, stream, jobs, *budgets, *reporting);
}

extern "C" int tam_launch_prepare(const tam_cuda_control *job, uint64_t step, void *stream) {
    return tam_launch(write_first_params, 1, stream, *job, step);
}
