/* SPDX-License-Identifier: MIT
 *
 * The interface of CUDA to the reducer.
 *
 * tam_device_cuda implements the device contract: results come back to the host, which waits for
 * them (it polls, with a deadline). It serves every scheme over every transport.
 *
 * tam_cuda_step is a whole step of a bucket on the device without the host: for schemes whose
 * packets have a fixed size, over a transport that works in stream order. The reducer defines the
 * order of phases and collectives, run does the rest:
 *
 *     begin    accumulate, select, seal the packet
 *     enqueue  ... all-gather of the packets ...
 *              union    check the packets, union, my values there; of rows: at all their elements
 *              ... all-to-all of shards of the values ...
 *              add      sum the shards
 *              ... all-gather of the sums ...
 *     validate are the sums complete and finite
 *
 * and when this has run for every bucket, for all of them
 *
 *     apply    gradient, residual == result ==
 *     finish   after the result: control of the next step, report
 *
 * A collective that is abandoned midway does no harm: every rank detects what it left unwritten
 * before anything is applied (exchange.h).
 *
 * Buckets. A step of several buckets has a tam_cuda_step for each. The first one leads: it holds
 * what they share, and calls that concern all go to it. Where there are two streams, one
 * compresses; the other runs the collectives and the phases between them, so that bucket 1 is
 * compressed while bucket 0 is exchanged:
 *
 *     gradient   ready 0       ready 1        ready 2
 *     compress     [begin 0]     [begin 1]      [begin 2]
 *     comm                  [enqueue 0, validate][enqueue 1, validate][...][apply 0 1 2] finish
 *
 * With one bucket nothing can overlap: one stream does it all.
 *
 * Three ranks, five values at the union, shards of two (padded to six):
 *
 *     rank 0  a0 a1 a2 a3 a4 --   all-to-all  rank 0 has  a0 a1 | b0 b1 | c0 c1   adds to  s0 s1
 *     rank 1  b0 b1 b2 b3 b4 --               rank 1      a2 a3 | b2 b3 | c2 c3            s2 s3
 *     rank 2  c0 c1 c2 c3 c4 --               rank 2      a4 -- | b4 -- | c4 --            s4 --
 *                                 all-gather  every rank  s0 s1 s2 s3 s4 --
 */
#ifndef TAM_CUDA_CUDA_H
#define TAM_CUDA_CUDA_H

#include "lib/contracts/device.h"
#include "lib/base/header.h"
#include "lib/base/members.h"
#include "lib/policy/bucket.h"
#include "lib/policy/control.h"
#include "lib/policy/norm_matching.h"
#include "lib/policy/strided.h"

extern const tam_device tam_device_cuda; /* open takes the current CUDA device */

/** @return NULL if a CUDA device can be used here, else why not. Lives as long as the thread. */
const char *tam_cuda_reason(void);

/** The row, if a CUDA device can be used here. @return what tam_cuda_reason returns */
const char *tam_cuda_find(const tam_device **out);

/** A version, "CUDA 13.0, driver 13.0, NVIDIA H200 (9.0)", or the known part of it. As above. */
const char *tam_cuda_version(void);

typedef struct tam_cuda_step tam_cuda_step;

/** Elements that this rank owns, when the parts of all are lined up by rank: before to upto - 1. */
typedef struct tam_cuda_span {
    uint32_t before, upto;
} tam_cuda_span;

/** How many entries this rank selects in a step with target k; at most the packet's capacity. */
typedef struct tam_cuda_quota {
    const tam_cuda_span *spans; /* [nranks] at step t: its part of k by spans[t mod nranks] */
    double capacity;            /* above 0: instead up to capacity * k / ranks, and at most `own` */
    double ranks;
    uint64_t own; /* elements that it owns */
} tam_cuda_quota;

/** What the steps of all buckets have in common. */
typedef struct tam_cuda_whole {
    uint32_t nbuckets;
    uint32_t nrow_segments;  /* of these, segments with rows, which have no part of k */
    bool by_norm;            /* shared by norms: then nstats of every plan is not 0 */
    const uint64_t *lengths; /* [nbuckets] elements of those that share k; then anything */
} tam_cuda_whole;

/** Update mode (tamis_update). All zero: gradients are accumulated. */
typedef struct tam_cuda_update {
    bool moments;  /* targets have an optimizer */
    bool corrects; /* whose numbers are others in every pass */
    float *masked; /* moments that are cleared where the residual is; or NULL */
    bool matches;      /* the scale follows from norms (tamis_update.norm_matching); needs nstats */
    double scale_most; /* of such a scale */
} tam_cuda_update;

/** A value codec (lib/contracts/value_codec.h), as kernels know it. All zero: float32. */
typedef struct tam_cuda_value_codec {
    tamis_value_codec type; /* AUTO: float32 */
    uint32_t bits, scale_bytes;
} tam_cuda_value_codec;

/** How selected entries travel. All zero: indices as u32, values as float32. */
typedef struct tam_cuda_codecs {
    tamis_index_codec index;
    uint64_t index_bytes;          /* of a packet: room for its indices, a multiple of 4 */
    uint64_t span;                 /* of the codec */
    const tam_strided *parts;      /* [nranks] copied; positions count elements of a part */
    tam_cuda_value_codec up, down; /* of values, of sums */
} tam_cuda_codecs;

/** A node, whose ranks add up their gradients and hold a shard of the sum each. */
typedef struct tam_cuda_node {
    void *device;                   /* of tam_device_cuda.open, for the whole bucket */
    const tam_grid *grid;           /* of the whole bucket: part g is shard g */
    const tam_strided *node_shards; /* [among.count] copied */
    tam_members among;              /* the ranks of the node */
    tam_cuda_span own;              /* elements of this rank's shard, when shards are lined up */
    uint32_t run;                   /* most elements of a shard that follow each other */
    uint32_t packet_capacity;       /* most entries of a shard's result */
    uint32_t result_max;            /* of the node's */
} tam_cuda_node;

/** Parameters of a step; fixed for its life. Copied, except `grid`, `node` and `control`. */
typedef struct tam_cuda_plan {
    const tam_cuda_whole *whole; /* NULL: there is one bucket */
    tam_cuda_step *first;        /* of bucket 0; NULL: this is it. Opened in the order of buckets */
    uint32_t bucket, begin;      /* its number, and its first element in the whole vector */
    const tam_grid *grid;        /* of the bucket, or of the shard, as all that follows */
    tam_members among;           /* the ranks that select; count 0: all, as the next two say */
    uint32_t rank, nranks;
    const tam_cuda_node *node; /* NULL: there are no nodes */
    tam_select_kind kind;      /* TOTAL or ALL */
    bool weighted;             /* keys are weighed by control->weights */
    tam_cuda_quota quota;
    uint32_t packet_capacity, union_max;
    uint32_t row_length; /* of a segment with rows, of which packets hold packet_capacity; else 0 */
    uint32_t nstats;     /* ngroups if the packet carries sums of squares; else 0 */
    bool with_values;    /* exchange `pairs` */
    tam_cuda_codecs codecs;
    bool dense_output;
    tamis_dtype type; /* of gradients */
    float divisor;    /* of sums, before the scale of updates */
    tam_cuda_update update;
    tamis_nonfinite nonfinite;
    tamis_sum_order sum_order; /* dense */
    uint64_t timeout_ns;       /* of every wait; 0: TAMIS_TIMEOUT_MS */
    tam_control *control;      /* thresholds; read at load, written at save */
} tam_cuda_plan;

/** Comm buffers: the messages of a step. All pointers are device memory. */
typedef struct tam_cuda_comm_buffers {
    void *stream;
    tam_members among;
    unsigned char *packets; /* [among.count * packet_bytes]; the own one, sealed, is at its place */
    size_t packet_bytes;
    size_t shard_bytes, sum_bytes; /* of a shard of the values, and of its sums; 0 for pairs, whose
                                      values are in the packets */
    unsigned char *values;         /* [among.count * shard_bytes] to each rank */
    unsigned char *shards;         /* [among.count * shard_bytes] received */
    unsigned char *sums;           /* [among.count * sum_bytes]; the own ones are at their place */
} tam_cuda_comm_buffers;

/** Figures of a finished step of all buckets, which the device writes to pinned memory. */
typedef struct tam_cuda_report {
    uint64_t serial;  /* counts the reports of its launcher, from 1 */
    uint64_t step;    /* its number */
    uint32_t status;  /* a tamis_status: OK, NONFINITE (also for skip), PROTOCOL */
    uint32_t refused; /* PROTOCOL: why, a tam_refusal */
    uint32_t rank;    /* PROTOCOL: whose packet, or this rank if sums were missing; NONFINITE:
                               first rank with a bad entry */
    uint32_t in_sums; /* NONFINITE: in the sum over ranks */
    uint32_t count;   /* of the result */
    uint32_t sent, sent_max, selected; /* without segments with rows, as key and squares */
    uint32_t rescans;
    uint64_t deferred, candidates, nonfinite;
    float key;       /* smallest this rank sent */
    double acc_sum;  /* of squares of acc */
    double sent_sum; /* of squares of what was sent */
    double update_scale;
    double margin, slope;              /* of the first bucket, for the log */
    uint32_t targets[TAM_BUCKETS_MAX]; /* entries of each bucket in the next step; dense: 0 */
} tam_cuda_report;

/** @param device  of tam_device_cuda.open, on the same grid; @param acc  of its alloc */
tamis_status tam_cuda_step_open(void *device, const tam_cuda_plan *plan, float *acc,
                                tam_cuda_step **out);
void tam_cuda_step_close(tam_cuda_step *step);

/** What a step continues from, besides plan.control (but for its k) and acc. */
typedef struct tam_cuda_past {
    uint64_t number; /* of the next step */
    uint64_t k, all; /* its entries, of the bucket and of all together */
    uint64_t last_result, early_nonfinite;
    double norm;                     /* of the bucket in the last step */
    bool has_norms;                  /* of all buckets */
    tam_norm_matching norm_matching; /* as well */
    double scale; /* of updates, unless there is norm matching; 0: there are none */
    double ratio; /* tamis_update.norm_matching */
} tam_cuda_past;

/** Start from `past` and the state in plan.control: for every bucket, before the first step, while
 * no step is under way. @param config  what the packets of all ranks must carry */
tamis_status tam_cuda_step_load(tam_cuda_step *step, uint64_t config, const tam_cuda_past *past);

/** Copy past and plan.control to the host. Waits for all steps, by its deadline; acc is then
 * complete, too. */
tamis_status tam_cuda_step_save(tam_cuda_step *step, tam_cuda_past *past);

/** Enqueues the collectives and the phases between them, or the collectives: the reducer's. */
typedef tamis_status (*tam_cuda_enqueue)(void *context, tam_cuda_step *step);

/** Run collectives while no step is under way, and wait for them, by the deadline of the plan. */
tamis_status tam_cuda_step_warm_up(tam_cuda_step *step, tam_cuda_enqueue enqueue, void *context);

/**
 * Capture begin to apply, with the collectives between them, as graphs that every later run
 * launches. Kernels read the gradient's address and scale from device memory, so the graphs serve
 * all steps, until sizes change. Whether a collective is captured must be the same on all ranks:
 * all call this for every bucket, or none does. Call it after the first load of all buckets.
 *
 * Errors:  DEVICE if it cannot be captured; what `enqueue` returns
 */
tamis_status tam_cuda_step_capture(tam_cuda_step *step, tam_cuda_enqueue enqueue, void *context);

/** Most entries of steps to come. None is more than the plan said, for which there is memory. */
typedef struct tam_cuda_capacity {
    uint32_t packet_capacity, union_max;
    uint64_t index_bytes;
    uint32_t result_capacity,
        result_max; /* nodes: packet_capacity and result_max of tam_cuda_node */
} tam_cuda_capacity;

/** Other sizes of messages, while no step is under way. All ranks warm up and capture anew. */
tamis_status tam_cuda_step_resize(tam_cuda_step *step, const tam_cuda_capacity *capacity);

/**
 * Before sizes change, while messages have the old ones: `announce` waits for the caller's stream,
 * which may still read the last result, and puts an empty packet with this header into the own one;
 * the collectives follow (of all buckets), and `check_announced` compares the headers of all ranks.
 * A rank that runs a step meanwhile refuses that packet, and its own is refused here.
 *
 * Errors:  PROTOCOL: a rank has another header
 */
tamis_status tam_cuda_step_announce(tam_cuda_step *step, void *caller, const tam_header_due *due);
tamis_status tam_cuda_step_check_announced(tam_cuda_step *step, const tam_header_due *due);

/**
 * Run a bucket of a step, in the order of buckets; the last one applies the step. Waits in stream
 * order for `stream`, then launches the graphs, or enqueues if there are none. If the caller is
 * capturing `stream`, everything becomes part of its graph: all buckets of a step, or none.
 *
 * In a graph of the caller: launches of the graph must not overlap each other or other steps; the
 * graph must be destroyed before the step is closed.
 *
 * @param  target  [in]   gradient and scale; by segment `grads` is a host array of device pointers
 * @param  serial  [out]  names the step for poll, the same for all its buckets; 0 if the caller
 *                        captures it
 */
tamis_status tam_cuda_step_run(tam_cuda_step *step, const tam_accumulate *target, void *stream,
                               tam_cuda_enqueue enqueue, void *context, uint64_t *serial);

/** Only add the gradient to acc, in the order of `stream`, which continues once that is read. */
tamis_status tam_cuda_step_accumulate(tam_cuda_step *step, const tam_accumulate *target,
                                      void *stream);

/** The phases that `enqueue` calls, in this order. */
tamis_status tam_cuda_step_union(tam_cuda_step *step);
tamis_status tam_cuda_step_add(tam_cuda_step *step);
const tam_cuda_comm_buffers *tam_cuda_step_buffers(const tam_cuda_step *step);

/* Called for the first bucket, on behalf of all. */

/** Whether some buckets of a step have been run, and others have not. */
bool tam_cuda_step_halfway(const tam_cuda_step *first);

/** Whether the caller captures `stream`. STATE: the capture has failed already. */
tamis_status tam_cuda_step_find_capture(const tam_cuda_step *first, void *stream, bool *captured);

/** Whether step `serial` has ended; never waits. Any thread. Serial 0: the newest report of a graph
 * of the caller, `done` if there is one. @return OK: *out is set if it is `done`; DEVICE: it will
 * never end; STATE: too late, a later report has overwritten it */
tamis_status tam_cuda_step_poll(tam_cuda_step *step, uint64_t serial, bool *done,
                                tam_cuda_report *out);

/** Number of reports kept: run may be called for step s when s - TAM_CUDA_STEPS has ended. */
enum { TAM_CUDA_STEPS = 8 };

/** Later launches of `step` run after the last step of `other`: collectives of reducers that share
 * a communicator must not overtake each other. Both are between steps. */
tamis_status tam_cuda_step_follow(tam_cuda_step *step, const tam_cuda_step *other);

/** Work enqueued on `stream` from here on runs after the result of the last step. STATE if the
 * caller captures only one of run and join. */
tamis_status tam_cuda_step_join(tam_cuda_step *step, void *stream);

/**
 * Scheme dense: a step that differs only in its phases. The gradient is exchanged in pieces, so
 * that memory is bounded. There is no residual, and the packets hold no entries. A rank that
 * refuses a packet sends no values, so all ranks refuse the step.
 *
 *     begin
 *                                ... all-gather of the packets ...
 *                       check
 *     for every piece:  widen    values = scale * gradient
 *                                ... all-to-all of shards of the values ...
 *                       add      sum the shards
 *                                ... all-gather of the sums ...
 *                       narrow   gradient = sum / divisor
 *     for all buckets:  apply    verdict; zeros if the step is skipped
 *
 * With sum_order transport it adds up the values itself, from the buffer of values to that of
 * shards, and there is no phase add.
 *
 * Two pieces of a bucket are under way at a time: the kernels of one beside the collectives of the
 * other, which have a stream of their own (dense.c).
 *
 * A collective that is abandoned midway is detected (verdict PROTOCOL), but the pieces before it
 * are already reduced.
 *
 * @param  plan   its fields for selection and control are not read
 * @param  piece  most elements of a piece, at least TAM_CHUNK; the same for all buckets
 */
tamis_status tam_cuda_dense_open(void *device, const tam_cuda_plan *plan, uint32_t piece,
                                 tam_cuda_step **out);
uint32_t tam_cuda_dense_pieces(const tam_cuda_step *step);
/** @return packet_bytes is 0 except for the first piece */
tam_cuda_comm_buffers tam_cuda_dense_buffers(const tam_cuda_step *step, uint32_t piece);

/**
 * Nodes: a sparse step among the ranks that hold the same shard in all nodes (an inter-node group),
 * with two more exchanges inside the node. One stream does all of it, also with several buckets.
 *
 *     begin
 *     for every piece:  send     scale * gradient, by shards
 *                                ... all-to-all in the node ...
 *                       add      the own shard of the sum
 *     select   accumulate, select, seal the packet
 *                                ... as any sparse step, between nodes ...
 *     gather   validate the sums, seal the result of the shard
 *                                ... all-gather in the node ...
 *              check, join the shards' results
 *     validate, apply, finish
 *
 * A rank whose shard was damaged seals no packet, so its inter-node group refuses the step; a rank
 * whose group refused seals no result, so its node refuses. Every node has a rank in every group.
 */
typedef struct tam_cuda_inside tam_cuda_inside;

/** One collective of a step. */
typedef enum tam_cuda_comm_phase {
    TAM_CUDA_PACKETS,
    TAM_CUDA_SHARDS,
    TAM_CUDA_SUMS,
    TAM_CUDA_VALUES, /* sum_order transport, in place of the two: sums of `values` to `shards` */
    TAM_CUDA_COMM_PHASES
} tam_cuda_comm_phase;

/** Enqueues one collective on buffers->stream: the reducer's. */
typedef tamis_status (*tam_cuda_enqueue_comm)(void *context, const tam_cuda_comm_buffers *buffers,
                                              tam_cuda_comm_phase phase);

/** All that `enqueue` does with nodes.
 * @param inter  what it does without nodes, among the ranks that select */
tamis_status tam_cuda_node_exchange(tam_cuda_step *step, tam_cuda_enqueue_comm enqueue_comm,
                                    tam_cuda_enqueue inter, void *context);

/** Its collectives alone. @param inter  those among the ranks that select */
tamis_status tam_cuda_node_warm_up(tam_cuda_step *step, tam_cuda_enqueue_comm enqueue_comm,
                                   tam_cuda_enqueue inter, void *context);

/** Bytes that a rank sends inside its node in a step. */
uint64_t tam_cuda_node_bytes(const tam_cuda_step *step);

/** All that `enqueue` does: check to narrow, of all pieces. */
tamis_status tam_cuda_dense_reduce(tam_cuda_step *step, tam_cuda_enqueue_comm enqueue_comm,
                                   void *context);

/** Its collectives alone, one of each size. */
tamis_status tam_cuda_dense_warm_up(tam_cuda_step *step, tam_cuda_enqueue_comm enqueue_comm,
                                    void *context);

/** Result of a sparse step of all buckets, in device memory: indices[*count], values[*count]. */
typedef struct tam_cuda_result {
    const uint32_t *count, *indices;
    const float *values;
} tam_cuda_result;
tam_cuda_result tam_cuda_step_result(const tam_cuda_step *first);

#endif
