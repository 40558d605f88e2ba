/* SPDX-License-Identifier: MIT
 *
 * The implementation of a whole step: step.c has the memory and state common to all kinds; sparse.c
 * and dense.c have the two kinds, with their phases; bucket_group.c has what the buckets share;
 * run.c enqueues, directly or as graphs; report.c reads the outcome of steps; resize.c changes the
 * sizes of messages.
 */
#ifndef TAM_CUDA_STEP_H
#define TAM_CUDA_STEP_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/exchange.h"
#include "kernels/cuda/runtime.h"

enum {
    TAM_CUDA_BY_HOST,
    TAM_CUDA_BY_CALLER,
    TAM_CUDA_LAUNCHERS
}; /* who launches: rings, serials */

/** What differs between the kinds of step. */
typedef struct tam_cuda_kind {
    bool alone;               /* one stream does everything */
    tam_cuda_urgency urgency; /* else of `comm`, with several buckets */
    /** Take its part of the device memory; called twice, see tam_cuda_arena. */
    void (*take)(tam_cuda_step *step, tam_cuda_arena *arena);
    /** Set pointers into the memory, and what never changes. */
    tamis_status (*fill)(tam_cuda_step *step);
    /** State besides the record: enqueued on the queue. */
    tamis_status (*load)(tam_cuda_step *step, uint64_t number);
    tamis_status (*save)(tam_cuda_step *step, const tam_cuda_past *past);

    /** Before the collectives; after them; when those of all buckets are over. */
    tamis_status (*begin)(tam_cuda_step *step);
    tamis_status (*validate)(tam_cuda_step *step);
    tamis_status (*apply)(tam_cuda_step *step);
    /** What follows the result, for all buckets, with the report. @param by  the launcher */
    tamis_status (*finish)(tam_cuda_step *first, uint32_t by);

    /* What it has beside the exchange of the step; NULL: nothing. */
    /** Bytes of scratch, behind that of the exchange, and where they lie. */
    size_t (*scratch)(const tam_cuda_step *step);
    void (*lay_out)(tam_cuda_step *step, unsigned char *scratch);
    /** Other sizes of its results. */
    void (*resize)(tam_cuda_step *step, const tam_cuda_capacity *capacity);
    /** Free host memory only. */
    void (*close)(tam_cuda_step *step);
} tam_cuda_kind;

/** What the steps of all buckets share; belongs to the first one. */
typedef struct tam_cuda_bucket_group {
    uint32_t nbuckets;
    tam_cuda_step **steps; /* [nbuckets] */

    tam_cuda_queue queue;     /* compresses; with one bucket, and nodes: does everything */
    cudaStream_t comm_stream; /* collectives and all that follows; or queue.stream */
    cudaStream_t coll;        /* dense: its collectives, beside its kernels on `comm`; or NULL */
    cudaEvent_t given;        /* recorded by the caller's stream: the gradient is ready */
    cudaEvent_t sealed;       /* the packet of a bucket can be sent */
    cudaEvent_t ready;        /* the result is complete */
    cudaEvent_t done;         /* the report is complete, too */
    cudaEvent_t fork, merge;  /* inside a graph of the caller, in place of given and done */
    cudaEvent_t handed;       /* dense: buffers can be sent */
    cudaEvent_t arrived[2];   /* dense, of each pair of buffers: their collective is over */
    bool hangs;               /* enqueued work never ended */

    unsigned char *memory; /* device: all that follows */
    tam_cuda_common *common;
    tam_cuda_exchange *exchanges; /* [nbuckets] */
    tam_cuda_control *controls;   /* [nbuckets] */
    tam_cuda_budgets budgets;
    uint64_t *lengths;     /* budgets.lengths */
    unsigned char *result; /* device: of several buckets */

    unsigned char *pinned;
    tam_cuda_report *reports[TAM_CUDA_LAUNCHERS]; /* [TAM_CUDA_STEPS] */

    uint64_t asked_ns; /* when poll last asked the driver */
    uint64_t serial;   /* of the last step that the host launched */
    uint32_t begun;    /* buckets of the step under way that were run; 0 between steps */
    uint32_t by;       /* TAM_CUDA_BY_HOST, or TAM_CUDA_BY_CALLER */
    bool captured;     /* a graph of the caller holds a step */
} tam_cuda_bucket_group;

struct tam_cuda_step {
    const tam_cuda_kind *kind;
    tam_cuda_bucket_group *group;
    tam_cuda_device *device;
    tam_cuda_device *whole;  /* on the grid of the gradient: `device`, unless there are nodes */
    tam_cuda_inside *inside; /* nodes; else NULL */
    tam_cuda_plan plan;

    unsigned char *memory;         /* device: everything below */
    tam_cuda_exchange exchange;    /* among the ranks that select */
    tam_cuda_exchange *outcome;    /* whose result is that of the step */
    uint32_t result_max;           /* entries of it; dense: 0 */
    tam_cuda_control control;      /* dense: only params and state */
    tam_cuda_comm_buffers buffers; /* sparse */
    tam_cuda_span *spans;          /* sparse: control.quota.spans */
    tam_cuda_params *nobody;       /* sparse: parameters with which no rank selects any element */
    uint32_t *first_chunk;         /* sparse: exchange.ranges.first_chunk */
    tam_strided *parts;            /* packed lists: exchange.packets.packed.parts */
    tam_cuda_source
        *sources; /* [TAM_CUDA_LAUNCHERS] the gradient's address, for each launcher's steps */
    void **grads[TAM_CUDA_LAUNCHERS]; /* [nsegments] for each launcher */

    tam_cuda_piece *pieces;  /* dense, host: [npieces] */
    uint32_t npieces, piece; /* dense: most elements of a piece */
    void **grads_now; /* host: [nsegments] copy of grads[TAM_CUDA_BY_HOST] after the last send */

    tam_cuda_accumulate target; /* of the step that is being enqueued */
    /* Graphs of steps that the host launches: on the queue; on `comm`, if that is another. Or
     * NULL. */
    cudaGraphExec_t graphs[2];
    char names[2][40]; /* of these parts, for profilers */
};

/** Complete a step whose kind, device, plan, sizes of the exchange and `pieces` are set, or free
 * it. */
tamis_status tam_cuda_step_make(tam_cuda_step *step, tam_cuda_step **out);

/** Free the host memory of a step that has none on the device. */
void tam_cuda_step_free(tam_cuda_step *step);

/** The graphs of a step that is not under way. */
void tam_cuda_step_drop_graphs(tam_cuda_step *step);

/** Bytes of scratch of an exchange, and where its parts lie. @return the end of its memory */
size_t tam_cuda_scratch_bytes(const tam_cuda_exchange *exchange);
unsigned char *tam_cuda_lay_out_scratch(tam_cuda_exchange *exchange, unsigned char *memory);

/** Set the pointers of an exchange to what its step and the bucket group own. */
void tam_cuda_step_connect(const tam_cuda_step *step, tam_cuda_exchange *exchange);

/** What is cleared when a step begins. */
tam_cuda_fresh tam_cuda_step_fresh(const tam_cuda_step *step);

/** A pass over the gradient that `source` names, in float32, on the grid of that device. */
tam_cuda_accumulate tam_cuda_pass_of(const tam_cuda_step *step, const tam_cuda_device *device,
                                     const tam_cuda_source *source);

/** The messages of an exchange whose values are floats in equal shards. */
void tam_cuda_step_describe_buffers(const tam_cuda_step *step, const tam_cuda_exchange *exchange,
                                    tam_cuda_comm_buffers *out);

/* sparse.c and sparse_memory.c; steps of nodes are sparse steps among the ranks of an inter-node
 * group */

/** Bytes for the indices of a packet. */
uint64_t tam_cuda_index_capacity(const tam_cuda_plan *plan);
/** A sparse step of this plan, without memory on the device: tam_cuda_step_make takes that. */
tamis_status tam_cuda_sparse_new(void *device, const tam_cuda_plan *plan, float *acc,
                                 tam_cuda_step **out);
/** Set exchange and control, but for what lies in memory that is not there yet. */
void tam_cuda_sparse_describe(tam_cuda_step *step, float *acc);
/** Set the sizes that follow from the plan's capacity, and what repeats them. */
void tam_cuda_sparse_resize(tam_cuda_step *step);
void tam_cuda_sparse_take(tam_cuda_step *step, tam_cuda_arena *arena);
/** Memory of an exchange for packets, and for a union of at most so many entries.
 * @return ranges.first_chunk */
uint32_t *tam_cuda_sparse_take_lists(tam_cuda_exchange *exchange, size_t most,
                                     tam_cuda_arena *arena);
tamis_status tam_cuda_sparse_fill(tam_cuda_step *step);
tamis_status tam_cuda_sparse_load(tam_cuda_step *step, uint64_t number);
tamis_status tam_cuda_sparse_save(tam_cuda_step *step, const tam_cuda_past *past);
/** Accumulate what `pass` says, select, seal. */
tamis_status tam_cuda_sparse_select(tam_cuda_step *step, const tam_cuda_accumulate *pass);
tamis_status tam_cuda_sparse_validate(tam_cuda_step *step);
tamis_status tam_cuda_sparse_finish(tam_cuda_step *first, uint32_t by);
/** Write ranges.first_chunk of an exchange on this grid, in device memory. */
tamis_status tam_cuda_sparse_ranges(const tam_cuda_step *step, const tam_grid *grid,
                                    uint32_t nranges, uint32_t *first_chunk);

/* node.c */

/** A sparse step whose fields are set becomes one of a node. */
tamis_status tam_cuda_node_join(tam_cuda_step *step);

/** The stream of the phases between begin and finish; sparse: also of the collectives. */
static inline cudaStream_t tam_cuda_comm_stream(const tam_cuda_step *step) {
    return step->group->comm_stream;
}

/** The rank of the communicator, for sentences. */
static inline uint32_t tam_cuda_rank(const tam_cuda_step *step) {
    const tam_cuda_packets *packets = &step->exchange.packets;
    return packets->first + packets->rank * packets->stride;
}

/** Whether compression and communication have a stream each. */
static inline bool tam_cuda_is_split(const tam_cuda_step *step) {
    return step->group->comm_stream != step->group->queue.stream;
}

static inline bool tam_cuda_is_last(const tam_cuda_step *step) {
    return step->plan.bucket == step->group->nbuckets - 1;
}

/* bucket_group.c, with the device current */

/** Open the bucket group of the first step, whose plan is set. */
tamis_status tam_cuda_bucket_group_open(tam_cuda_step *first);

/** Add a step that has its memory to its bucket group; the last one completes the group. */
tamis_status tam_cuda_bucket_group_join(tam_cuda_step *step);

/** Report to the kernels of all buckets what has changed in the exchange and control of this
 * one. */
tamis_status tam_cuda_bucket_group_report(const tam_cuda_step *step);

/** The report on a step of that launcher, without targets. */
tam_cuda_reporting tam_cuda_bucket_group_reporting(const tam_cuda_step *first, uint32_t by);

/** Later work on `behind` runs after what `stream` holds now. */
tamis_status tam_cuda_follow(cudaStream_t behind, cudaStream_t stream, cudaEvent_t event);

/** Later work on the queue runs after all work that is now on the other streams. */
tamis_status tam_cuda_bucket_group_gather(tam_cuda_bucket_group *group);

/** Wait until nothing is under way. @return false: it never ended */
bool tam_cuda_bucket_group_idle(tam_cuda_bucket_group *group, uint32_t rank);

void tam_cuda_bucket_group_close(tam_cuda_bucket_group *group);

/** Free only host memory, when nothing on the device can be freed any more. */
void tam_cuda_bucket_group_forget(tam_cuda_bucket_group *group);

/** Whether its lists hold rows. */
static inline bool tam_cuda_is_packed(const tam_cuda_plan *plan) {
    return plan->codecs.index > TAMIS_INDEX_U32;
}

static inline bool tam_cuda_is_sparse_rows(const tam_cuda_plan *plan) {
    return plan->row_length > 0;
}

#define TAM_CUDA_LAUNCH(call) TAM_CUDA_TRY(call, "launching a kernel")

static inline size_t tam_cuda_round_up(size_t x, size_t to) {
    return (x + to - 1) / to * to;
}

#endif
