/* SPDX-License-Identifier: MIT
 *
 * A whole step from inside: step.c has what all kinds have in common, their memory and state;
 * sparse.c and dense.c have the two kinds, with their phases; run.c enqueues a step, directly or as
 * a graph, and follows it.
 */
#ifndef TAM_CUDA_STEP_H
#define TAM_CUDA_STEP_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/exchange.h"
#include "kernels/cuda/runtime.h"

enum { TAM_CUDA_BY_HOST, TAM_CUDA_BY_CALLER, TAM_CUDA_LANES }; /* who launches: rings, serials */

/** What a kind of step does in its own way. */
typedef struct tam_cuda_kind {
    /** Its part of the device memory; called twice, as arenas are. */
    void (*take)(tam_cuda_step *step, tam_cuda_arena *arena);
    /** The memory is there: what points into it, what never changes. */
    tamis_status (*fill)(tam_cuda_step *step);
    /** State beside the ledger: enqueued on the lane. */
    tamis_status (*load)(tam_cuda_step *step, uint64_t number);
    tamis_status (*save)(tam_cuda_step *step);
    /** What follows the result, the report at the end. @param by  whose */
    tamis_status (*finish)(tam_cuda_step *step, uint32_t by);
} tam_cuda_kind;

struct tam_cuda_step {
    const tam_cuda_kind *kind;
    tam_cuda_device *device;
    tam_cuda_plan plan;
    tam_cuda_lane lane;      /* the stream of all steps */
    cudaEvent_t given;       /* recorded by the caller's stream: the gradient is there */
    cudaEvent_t ready;       /* the result is there */
    cudaEvent_t done;        /* the report too */
    cudaEvent_t fork, merge; /* inside a graph of the caller, in place of given and done */

    unsigned char *memory; /* device: everything below */
    tam_cuda_exchange exchange;
    tam_cuda_control control; /* dense: turn and state alone */
    tam_cuda_mail mail;       /* sparse */
    uint32_t *picks;          /* sparse: control.picks */
    uint32_t *first_chunk;    /* sparse: exchange.ranges.first_chunk */
    tam_cuda_source
        *sources; /* [TAM_CUDA_LANES] where the gradient lies: of each launcher's steps */
    void **grads[TAM_CUDA_LANES]; /* [nsegments] for each launcher */

    tam_cuda_piece *pieces; /* dense, host: [npieces] */
    uint32_t npieces;

    unsigned char *pinned;
    tam_cuda_report *reports[TAM_CUDA_LANES]; /* [TAM_CUDA_STEPS] */
    void **grads_sent;                        /* [TAM_CUDA_STEPS * nsegments] on their way */
    void **grads_now;                         /* host: [nsegments] what the host's will hold */
    void **grads_captured;                    /* host: [nsegments] what the caller's hold; NULLs */

    tam_cuda_accumulate target; /* of the step that is being enqueued */
    cudaGraphExec_t graph;      /* begin to settle of any step that the host launches; or NULL */
    uint64_t asked_ns;          /* when poll last asked the driver */
    uint64_t serial;            /* of the last step that the host launched */
    uint32_t by;                /* TAM_CUDA_BY_HOST, or TAM_CUDA_BY_CALLER */
    bool captured;              /* a graph of the caller holds a step */
};

/** Take over a step of which kind, device, plan, sizes of the exchange and `pieces` are set: give it
 * the rest, or free it. */
tamis_status tam_cuda_step_make(tam_cuda_step *step, tam_cuda_step **out);

/** A step begins: clear its scratch. */
tamis_status tam_cuda_step_clear(tam_cuda_step *step);

#define TAM_CUDA_LAUNCH(call) TAM_CUDA_TRY(call, "launching a kernel")

static inline size_t tam_cuda_round_up(size_t x, size_t to) {
    return (x + to - 1) / to * to;
}

#endif
