/* SPDX-License-Identifier: MIT
 *
 * The report of a step on all its buckets, for the host: report.c reads it from pinned memory. One
 * block writes it: the last of the control, or where there is none that of report.cu.
 */
#ifndef TAM_CUDA_REPORT_CUH
#define TAM_CUDA_REPORT_CUH

#include "kernels/cuda/packets.cuh"

#include "lib/policy/rules.h"

/** Thread 0 adds in the order of the host; the others load the sums into shared memory. */
static __device__ double tam_add_in_order(const double *sums, uint32_t ngroups, double all) {
    __shared__ double near[TAM_BLOCK_THREADS];
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

/* Figures of this rank; one thread loads those of each bucket. Segments with rows have none. */
struct own_figures {
    uint32_t sent[TAM_BUCKETS_MAX], keys[TAM_BUCKETS_MAX], targets[TAM_BUCKETS_MAX];
};

static __device__ void load_figures(const tam_cuda_reporting &job, own_figures *out) {
    uint32_t b = threadIdx.x;
    if (b < job.nbuckets) {
        bool sparse_rows = tam_scheme_is_sparse_rows(job.all[b].scheme);
        out->sent[b] = sparse_rows ? 0 : job.all[b].selected->count;
        out->keys[b] = job.all[b].selected->key;
        out->targets[b] = job.targets && !sparse_rows ? (uint32_t)job.targets[b] : 0;
    }
    __syncthreads();
}

/* Keys are not negative, so their bits compare like their values. */
static __device__ void describe_own(const own_figures &own, uint32_t nbuckets,
                                    tam_cuda_report *out) {
    uint32_t least = 0;
    out->sent = 0;
    for (uint32_t b = 0; b < nbuckets; b++) {
        out->sent += own.sent[b];
        out->targets[b] = own.targets[b];
        if (own.keys[b] > 0 && (least == 0 || own.keys[b] < least))
            least = own.keys[b];
    }
    out->key = __uint_as_float(least);
}

/* All but the serial. */
static __device__ void describe(const tam_cuda_common *common, const tam_control_state *state,
                                double acc_sum, tam_cuda_report *out) {
    const tam_cuda_verdict *verdict = &common->verdict;
    out->step = verdict->step;
    out->status = verdict->status;
    out->refused = verdict->refused;
    out->rank = verdict->rank;
    out->in_sums = verdict->in_sums;
    out->sent_max = verdict->sent_max;
    out->count = verdict->count;
    out->selected = verdict->count - verdict->row_entries;
    out->rescans = verdict->rescans;
    out->deferred = verdict->deferred;
    out->candidates = verdict->candidates;
    out->nonfinite = verdict->nonfinite;
    out->sent_sum = verdict->sent_sum;
    out->update_scale = common->scale;
    out->margin = state->margin;
    out->slope = tam_rule_slope(state);
    out->acc_sum = acc_sum;
}

/* A broken exchange reports the first refusal in all later steps. */
static __device__ void remember_refusal(tam_cuda_common *common) {
    const tam_cuda_verdict *verdict = &common->verdict;
    if (verdict->status != TAMIS_E_PROTOCOL || common->refused)
        return;
    common->refused = verdict->refused;
    common->rank = verdict->rank;
}

/* The serial is written last: a reader that sees it sees the rest. */
static __device__ void publish(uint64_t *to, uint64_t serial) {
#ifdef TAM_CUDA_EMULATED /* race checkers on the host understand only atomics */
    atomicExch(reinterpret_cast<unsigned long long *>(to), (unsigned long long)serial);
#else
    __threadfence_system();
    *static_cast<volatile uint64_t *>(to) = serial;
    __threadfence_system();
#endif
}

/** All threads of the block call this. */
static __device__ void tam_report(const tam_cuda_reporting &job) {
    __shared__ own_figures own;
    double acc_sum = 0.0;
    for (uint32_t b = 0; b < job.nbuckets; b++)
        acc_sum = tam_add_in_order(job.all[b].group_sums, job.all[b].nsums, acc_sum);
    load_figures(job, &own);
    if (threadIdx.x > 0)
        return;
    uint64_t serial = ++job.common->serials[job.launcher];
    tam_cuda_report *to = &job.ring[serial % TAM_CUDA_STEPS];
    remember_refusal(job.common);
    publish(&to->serial, 0); /* invalid while it is being overwritten */
    describe(job.common, job.state, acc_sum, to);
    describe_own(own, job.nbuckets, to);
    publish(&to->serial, serial);
}

#endif
