/* SPDX-License-Identifier: MIT
 *
 * The head of the own slot: the length of its list, tallies, means of groups, and the check of it
 * all. Written by the last block of the launch that completes the rest.
 */
#ifndef TAM_CUDA_SEAL_CUH
#define TAM_CUDA_SEAL_CUH

#include "kernels/cuda/slots.cuh"

static __device__ __forceinline__ void fill_tallies(const tam_cuda_exchange &x, float *tallies) {
    const tam_cuda_picked *picked = x.picked;
    bool known = x.turn->listed && x.found->complete;
    tam_tally_count(tallies, TAM_TALLY_DEFERRED, picked->deferred);
    tam_tally_count(tallies, TAM_TALLY_CANDIDATES, known ? (uint32_t)x.found->total : 0);
    tam_tally_count(tallies, TAM_TALLY_NONFINITE,
                    tam_at_most_32_bits(x.found->nonfinite + x.ledger->early.nonfinite));
    tallies[TAM_TALLY_UNKNOWN] = known ? 0.0f : 1.0f;
    tallies[TAM_TALLY_RESCANS] = picked->rescanned ? 1.0f : 0.0f;
}

static __device__ __forceinline__ void fill_header(const tam_cuda_exchange &x, tam_head *h) {
    const tam_cuda_picked *picked = x.picked;
    const tam_head_due due = tam_due_of(x, x.slots.rank);
    bool key = picked->count > 0 && picked->key > 0 && picked->key < TAM_INFINITE_BITS;
    bool bad = x.found->nonfinite + x.ledger->early.nonfinite > 0;
    tam_head own = {};
    own.count = picked->count;
    own.index_bytes =
        tam_is_packed(x.slots) ? x.scratch->code_bytes : picked->count * (uint32_t)sizeof(uint32_t);
    own.key = __uint_as_float(picked->key);
    tam_head_flag(&own, (key ? TAM_HEAD_HAS_KEY : 0u) | (bad ? TAM_HEAD_NONFINITE : 0u));
    tam_head_address(&own, &due);
    *h = own;
}

/* A broken exchange stays broken: it keeps the verdict of the step that broke it. A gradient of the
 * node that was damaged breaks it, too: scratch.damaged, with the rank that it came from. */
static __device__ __forceinline__ void open_verdict(const tam_cuda_exchange &x, double squares) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    verdict->step = x.turn->step;
    verdict->picked_sum = squares;
    if (x.turn->broken) {
        verdict->status = x.turn->broken;
        verdict->refused = x.common->refused;
        verdict->rank = x.common->rank;
    } else if (x.scratch->damaged) {
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = TAM_REFUSED_GRADIENT;
    }
}

/** All threads of that block call this. @param squares  of the values that the slot gives */
static __device__ void tam_seal_slot(const tam_cuda_exchange &x, double squares) {
    tam_forget_slots(x);
    tam_head *h = tam_header_of(x.slots, x.slots.rank);
    float *tallies = tam_tallies_of(x.slots, x.slots.rank);
    for (uint32_t g = threadIdx.x; g < x.slots.nstats; g += TAM_BLOCK_THREADS)
        tallies[TAM_TALLIES + g] = tam_tally_share(x.group_sums[g], x.slots.nranks);
    if (threadIdx.x == 0) {
        fill_header(x, h);
        fill_tallies(x, tallies);
        open_verdict(x, squares);
    }
    __syncthreads();
    uint64_t head = tam_block_sum(tam_share_of_head(x.slots, x.slots.rank));
    if (threadIdx.x == 0) {
        const tam_head_due due = tam_due_of(x, x.slots.rank);
        uint64_t list = tam_is_packed(x.slots) ? 0 : x.picked->checksum;
        h->check = tam_head_check_of(&due, head + list + x.scratch->sent);
        if (x.scratch->damaged)
            h->turn = 0; /* not sealed: the other ranks refuse it */
    }
}

#endif
