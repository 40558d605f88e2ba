/* SPDX-License-Identifier: MIT
 *
 * The header of the own packet: the length of its list, counters, means of groups, and the check of
 * it all. Written by the last block of the launch that completes the rest.
 */
#ifndef TAM_CUDA_SEAL_CUH
#define TAM_CUDA_SEAL_CUH

#include "kernels/cuda/packets.cuh"

static __device__ __forceinline__ void fill_counters(const tam_cuda_exchange &x, float *counters) {
    const tam_cuda_select_result *selected = x.selected;
    bool known = x.params->listed && x.found->complete;
    tam_counter_set(counters, TAM_COUNTER_DEFERRED, selected->deferred);
    tam_counter_set(counters, TAM_COUNTER_CANDIDATES, known ? (uint32_t)x.found->total : 0);
    tam_counter_set(counters, TAM_COUNTER_NONFINITE,
                    tam_at_most_32_bits(x.found->nonfinite + x.record->early.nonfinite));
    counters[TAM_COUNTER_UNKNOWN] = known ? 0.0f : 1.0f;
    counters[TAM_COUNTER_RESCANS] = selected->rescanned ? 1.0f : 0.0f;
}

static __device__ __forceinline__ void fill_header(const tam_cuda_exchange &x, tam_header *h) {
    const tam_cuda_select_result *selected = x.selected;
    const tam_header_due due = tam_due_of(x, x.packets.rank);
    bool key = selected->count > 0 && selected->key > 0 && selected->key < TAM_INFINITE_BITS;
    bool bad = x.found->nonfinite + x.record->early.nonfinite > 0;
    tam_header own = {};
    own.count = selected->count;
    own.index_bytes = tam_is_packed(x.packets) ? x.scratch->code_bytes
                                               : selected->count * (uint32_t)sizeof(uint32_t);
    own.key = __uint_as_float(selected->key);
    tam_header_flag(&own, (key ? TAM_HEADER_HAS_KEY : 0u) | (bad ? TAM_HEADER_NONFINITE : 0u));
    tam_header_address(&own, &due);
    *h = own;
}

/* A broken exchange stays broken: it keeps the verdict of the step that broke it. A gradient of the
 * node that was damaged breaks it, too: scratch.damaged, with the rank that it came from. */
static __device__ __forceinline__ void open_verdict(const tam_cuda_exchange &x, double squares) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    verdict->step = x.params->step;
    verdict->sent_sum = squares;
    if (x.params->broken) {
        verdict->status = x.params->broken;
        verdict->refused = x.common->refused;
        verdict->rank = x.common->rank;
    } else if (x.scratch->damaged) {
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = TAM_REFUSED_GRADIENT;
    }
}

/** All threads of that block call this. @param squares  of the values that the packet carries */
static __device__ void tam_seal_packet(const tam_cuda_exchange &x, double squares) {
    tam_forget_packets(x);
    tam_header *h = tam_header_of(x.packets, x.packets.rank);
    float *counters = tam_counters_of(x.packets, x.packets.rank);
    for (uint32_t g = threadIdx.x; g < x.packets.nstats; g += TAM_BLOCK_THREADS)
        counters[TAM_COUNTERS + g] = tam_counter_share(x.group_sums[g], x.packets.nranks);
    if (threadIdx.x == 0) {
        fill_header(x, h);
        fill_counters(x, counters);
        open_verdict(x, squares);
    }
    __syncthreads();
    uint64_t header = tam_block_sum(tam_part_of_header(x.packets, x.packets.rank));
    if (threadIdx.x == 0) {
        const tam_header_due due = tam_due_of(x, x.packets.rank);
        uint64_t list = tam_is_packed(x.packets) ? 0 : x.selected->checksum;
        h->check = tam_header_check_of(&due, header + list + x.scratch->sent);
        if (x.scratch->damaged)
            h->step_flags = 0; /* not sealed: the other ranks refuse it */
    }
}

#endif
