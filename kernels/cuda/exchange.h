/* SPDX-License-Identifier: MIT
 *
 * The exchange on the device: packets in device memory, the verdict that all ranks draw from them,
 * and the launchers between two collectives. A packet, see lib/base/header.h:
 *
 *     | tam_header | counters, nstats shares of means | indices, ascending | values (pairs) |
 *
 * The packets of all ranks follow each other. Lists that are packed (pack.cu) lie in memory of
 * their own, and their codes in the packets.
 *
 *     tam_launch_list     rows: the own list, in place of a selection
 *     tam_launch_pack     packed: the codes of the own list
 *     tam_launch_seal     values in the own packet; its header and checksum. Without values the
 *                         launch before seals it: tam_launch_pack, or tam_launch_emit_sealed
 *                         ... all-gather of the packets ...
 *     tam_launch_unpack   packed: the lists of the other ranks
 *     tam_launch_check    every packet, every index; the first verdict; exclusive: what count does
 *     tam_launch_count    entries of the union in every range
 *     tam_launch_union    the union, the values there
 *     tam_launch_expand   rows: the elements of the union, and the values there
 *     tam_launch_encode_values
 *                         rounded: those that each rank gets, encoded
 *                         ... all-to-all of the values ...
 *     tam_launch_add      sums, in the order of lib/base/tree.h
 *                         ... all-gather of the sums ...
 *     tam_launch_decode_sums
 *                         rounded: all sums
 *     tam_launch_validate
 *                         are the sums complete and finite; last bucket: the verdict for all
 *                         ... when all buckets have been validated ...
 *     tam_launch_apply_result
 *                         gradient, residual, hash of the result; bucket by bucket
 *     tam_launch_control  of all: the next step; figures of this one, into pinned memory
 *
 * The host does not check between two of these, and an abandoned collective leaves its buffers half
 * written. So nothing received is trusted: the seals of the previous step's packets are cleared, as
 * are the checks in which shards and sums end (shards.cuh, rounded.cu). A rank that refuses
 * the packets sends shards with wrong checks, so that all ranks refuse the step together. Scheme
 * dense fills the target of a collective with TAM_CUDA_ABSENT before, and a rank that refuses sends
 * it.
 */
#ifndef TAM_CUDA_EXCHANGE_H
#define TAM_CUDA_EXCHANGE_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/view.h"
#include "lib/base/fold.h"
#include "lib/base/header.h"
#include "lib/policy/control.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TAM_SHARD_CHECK = 4 }; /* floats behind the values of a shard */

/* A NaN that no arithmetic produces: scheme dense. */
#define TAM_CUDA_ABSENT 0xffa51edfu

typedef struct tam_cuda_packets {
    unsigned char *memory; /* [nranks * bytes] */
    size_t bytes;          /* of a packet */
    uint32_t rank, nranks, nstats, capacity;
    uint32_t first, stride; /* rank r here is rank first + r * stride of the communicator */
    uint32_t nwords;        /* behind the counters: node.cu */
    uint32_t index_bytes;   /* room for indices */
    uint32_t with_values;
    tam_cuda_value_codec value_codec; /* of these */
    tam_cuda_packed packed;
} tam_cuda_packets;

/* Packets, shards and sums are multiples of so many bytes: where a rank's part begins elsewhere,
 * NCCL's protocol Simple moves one byte at a time (device/common_kernel.h). */
enum { TAM_CUDA_PART = 16 };

/** The outcome, the same on all ranks unless `status` is PROTOCOL: one for each bucket, cleared at
 * the beginning of its step, and one for all buckets. */
typedef struct tam_cuda_verdict {
    uint32_t status;  /* a tamis_status: OK, NONFINITE (nothing is applied), PROTOCOL */
    uint32_t refused; /* a tam_refusal */
    uint32_t rank;    /* of the communicator: that was refused, or that had the first bad entry */
    uint32_t in_sums; /* NONFINITE: found in the sums */
    uint32_t known;   /* every rank reported its candidates */
    uint32_t rescans, sent_max;
    uint32_t count;       /* of the union, then of the result */
    uint32_t offset;      /* where the result begins in that of all buckets */
    uint32_t row_entries; /* of all buckets: of the count, entries of segments with rows */
    uint64_t selected;    /* counts and deferred, all ranks */
    uint64_t deferred;    /* all ranks, as the next two */
    uint64_t candidates, nonfinite;
    uint64_t result; /* TAM_SUM_RESULT over the values applied */
    double sent_sum; /* of squares of what this rank sent */
    double
        own_sum; /* norm_matching: of squares of what a rank selected from, as a mean over ranks */
    double all_sum; /* norm_matching: of squares of the sums */
    uint64_t step;  /* of the packets */
} tam_cuda_verdict;

/* -- from the packets to the result ----------------------------------------------------------- */

enum {
    TAM_RANGE_WORDS = TAM_RANGE / 32,
    TAM_PIECE = TAM_FOLD_PIECE /* entries of a list that one block takes at a time */
};

/** The checks of one packet, added up piece by piece. */
typedef struct tam_cuda_packet_check {
    uint64_t checksum;
    uint32_t faults;   /* bits: 1 << TAM_REFUSED_CODE, _ORDER, _OWNER */
    uint32_t unpacked; /* ticket, rice: pieces of the codes; 0 between its launches */
} tam_cuda_packet_check;

/** Scratch of one step, cleared when it begins. Tickets count the blocks of a launch that have
 * finished; the last block completes the work. */
typedef struct tam_cuda_scratch {
    tam_cuda_verdict verdict;
    uint64_t sent;       /* checksum of the codes and values in the own packet */
    uint64_t bad;        /* sums that are not finite */
    uint32_t code_bytes; /* of the own list, packed */
    uint32_t absent;
    uint32_t damaged; /* a shard that was received: of values, of gradients in a node */
    uint32_t touched, packed, sealed, checked, counted, joined, expanded, filled, added, decoded,
        validated, applied; /* tickets */
} tam_cuda_scratch;

/** Blocks of 256 values whose sums a rank makes: two runs. */
typedef struct tam_cuda_shard {
    uint32_t begin[2], count[2];
} tam_cuda_shard;

/** Values, or sums, that are rounded on their way (collectives/exchange/value_sum.h). A shard has
 * the blocks that its owner adds, one after another, then 4 bytes that check it. */
typedef struct tam_cuda_rounded {
    tam_cuda_value_codec up, down;
    uint32_t blocks;         /* of a shard, at most; 0: nothing is rounded */
    tam_cuda_shard *shards;  /* [nranks] of this step */
    unsigned char *sent;     /* [nranks * shard_bytes]; then the sums, [nranks * sum_bytes] */
    unsigned char *received; /* [nranks * shard_bytes] */
    size_t shard_bytes, sum_bytes;
    double *squares; /* [pieces of the union] of errors */
} tam_cuda_rounded;

/** State of a bucket between steps. */
typedef struct tam_cuda_record {
    uint64_t config; /* what the packets of all ranks must carry, */
    uint64_t agreed; /* and what is added to it in this step */
    uint64_t last_result;
    tam_cuda_found early; /* nonfinite: dropped from micro-batches since the last step */
} tam_cuda_record;

/** State that the buckets share. */
typedef struct tam_cuda_common {
    tam_cuda_verdict verdict; /* of the step, once the last bucket has been exchanged */
    uint64_t serials[2]; /* reports made: of steps that the host launched, of the caller's graphs */
    uint32_t refused, rank; /* of the refusal that broke the exchange */
    uint32_t has_norms;     /* of a step: tam_cuda_budgets.norms */
    uint32_t learned;       /* ticket of the control; 0 between its launches */
    float divisor; /* of the sums of a step, with the scale; with norm matching once the last
                               bucket has been exchanged */
    uint32_t zero;
    double scale; /* of updates, which the divisor includes */
    double ratio; /* tamis_update.norm_matching, of the density */
    tam_norm_matching norm_matching;
} tam_cuda_common;

/**
 * The vector in ranges of TAM_RANGE elements. A range of the union is built in shared memory:
 *
 *     list of rank 0   .. 3  17 | 40 ..      |  every entry between runs[range] and runs[range + 1]
 *     list of rank 1   .. 17 21 | 35 ..      |  sets the bit of its element; so the union is
 *     bits             0001...1...1......    |  ascending and without duplicates
 */
typedef struct tam_cuda_ranges {
    uint32_t count;
    const uint32_t *first_chunk; /* [count + 1] chunk of its first element; exclusive owners only */
    uint32_t *runs;              /* [(count + 1) * nranks] entries of a rank's list before it */
    uint32_t *entries;           /* [count] of the union; rows: at first, that this rank touched */
    uint32_t *offsets;           /* [count + 1] where they begin in the union */
    double *sums;                /* [count] of squares of this rank's values */
} tam_cuda_ranges;

/** A segment with rows: ranges, lists and their union are of rows, until these are expanded. */
typedef struct tam_cuda_rows {
    uint32_t length, count; /* elements of a row; rows. 0: there are none */
    uint32_t *touched;      /* [count / 32, rounded up] a bit for each */
    uint32_t *union_rows;   /* [most of a union] */
} tam_cuda_rows;

/** Arguments of the launchers above, for one bucket. Copied into every launch. */
typedef struct tam_cuda_exchange {
    tam_cuda_grid grid;
    tam_cuda_packets packets;
    tam_cuda_ranges ranges;
    tam_cuda_rows rows;
    tam_scheme scheme;
    uint32_t nonfinite;               /* a tamis_nonfinite */
    float divisor;                    /* before the scale of updates */
    bool matches;      /* the scale follows from norms, by common->ratio */
    double scale_most; /* tam_cuda_update */
    float *masked;
    uint32_t blocks;  /* CUDA blocks of every launch, at most */
    uint32_t still;   /* parts stay with their ranks; else they rotate */
    uint32_t decides; /* this bucket is validated last: the verdict of all follows */

    const tam_cuda_params *params;
    const tam_cuda_found *found;
    const tam_cuda_select_result *selected;
    const double *group_sums; /* [nsums] */
    uint32_t nsums;
    float *acc; /* NULL: this exchange leaves the residual to another */

    uint64_t shard_length; /* floats, a multiple of 4; 0 for pairs */
    uint64_t capacity; /* floats that `values` has: nranks * shard_length, or the largest union */
    uint32_t checked;  /* shards end in a check: shards.cuh; scheme dense: not */
    uint32_t *indices;
    float *values, *shards;
    float *applied;      /* the result, from the sums; in place, or where shards were */
    uint64_t *checks[3]; /* [nranks] of shards sent, of those received, of sums; cleared */
    tam_cuda_rounded rounded;
    float *errors; /* what rounding takes: of `values`; pairs: of the own list. NULL: nothing */

    tam_cuda_packet_check *packet_checks; /* [nranks], cleared when a step begins */
    double *piece_sums;                   /* pairs: [pieces of the own list] of squares */
    double *value_sums;                   /* norm_matching: [pieces of `values`] of squares */
    tam_cuda_scratch *scratch;
    tam_cuda_record *record;

    uint32_t nbuckets, begin;            /* begin: its first element in the whole vector */
    const struct tam_cuda_exchange *all; /* [nbuckets] device memory: of each */
    tam_cuda_common *common;
    uint32_t *all_indices; /* the result of several buckets, as of one; else NULL */
    float *all_values;
} tam_cuda_exchange;

/** Rows, in place of a selection: those that this rank lists, at most the packet's capacity.
 * @param  list    [out]  ascending
 * @param  selected  [out]  deferred: elements of touched rows that are not listed */
int tam_launch_list(const tam_cuda_exchange *job, uint32_t *list, tam_cuda_select_result *selected,
                    void *stream);
/** Rows, after the union: the elements of the union, and this rank's values there. */
int tam_launch_expand(const tam_cuda_exchange *job, void *stream);

int tam_launch_pack(const tam_cuda_exchange *job, void *stream);
int tam_launch_unpack(const tam_cuda_exchange *job, void *stream);
int tam_launch_encode_values(const tam_cuda_exchange *job, void *stream);
int tam_launch_decode_sums(const tam_cuda_exchange *job, void *stream);
int tam_launch_seal(const tam_cuda_exchange *job, void *stream);
/** tam_launch_emit and _seal, of a packet whose list is u32 and has no values. */
int tam_launch_emit_sealed(const tam_cuda_select_job *selection, const tam_cuda_exchange *job,
                           void *stream);
int tam_launch_check(const tam_cuda_exchange *job, void *stream);
int tam_launch_count(const tam_cuda_exchange *job, void *stream);
int tam_launch_union(const tam_cuda_exchange *job, void *stream);
int tam_launch_add(const tam_cuda_exchange *job, void *stream);
int tam_launch_add_rounded(const tam_cuda_exchange *job, void *stream); /* by tam_launch_add */
int tam_launch_validate(const tam_cuda_exchange *job, void *stream);

/** @param target  gradient (device pointers), or none: only the result is computed */
int tam_launch_apply_result(const tam_cuda_exchange *job, const tam_cuda_accumulate *target,
                            void *stream);

/** What a report on all buckets is made of, and where it goes. */
typedef struct tam_cuda_reporting {
    uint32_t nbuckets;
    uint32_t launcher;            /* index into common->serials */
    const tam_cuda_exchange *all; /* [nbuckets] device memory */
    tam_cuda_common *common;
    const tam_control_state *state; /* of any, for the log */
    const uint64_t *targets;        /* [nbuckets] of the next step, or NULL */
    tam_cuda_report *ring;          /* [TAM_CUDA_STEPS] */
} tam_cuda_reporting;

/** The report of scheme dense; elsewhere the control ends with it. */
int tam_launch_report(const tam_cuda_reporting *job, void *stream);

/* -- scheme dense: the whole gradient, a piece at a time -------------------------------------- */

/** A run of whole chunks. For its launches, shard_length and capacity of the exchange are those of
 * the piece: as many floats as are sent. */
typedef struct tam_cuda_piece {
    uint32_t first_chunk, end_chunk;
    uint32_t begin, count; /* elements */
    uint32_t flagged;      /* the sum behind those of the elements says whether a rank refuses */
} tam_cuda_piece;

/** values = scale * gradient, padded with zeros; shards are marked absent. Then follow the
 * all-to-all of shards, tam_launch_add, and the all-gather of sums. */
int tam_launch_dense_widen(const tam_cuda_exchange *job, const tam_cuda_accumulate *target,
                           const tam_cuda_piece *piece, void *stream);

/** gradient = values / divisor, rounded to its type; absent and non-finite values are recorded. */
int tam_launch_dense_narrow(const tam_cuda_exchange *job, const tam_cuda_accumulate *target,
                            const tam_cuda_piece *piece, void *stream);

/** After the last piece of the last bucket, for each bucket: zero the gradient if the step is
 * skipped, advance the parameters; for the last bucket also set the verdict of all. */
int tam_launch_dense_apply(const tam_cuda_exchange *job, const tam_cuda_accumulate *target,
                           tam_cuda_params *params, void *stream);

/* -- nodes: before and behind the exchange between nodes -------------------------------------- */

/** The sum of a node's gradients, a piece at a time: every rank gets what the others have of its
 * shard. A shard has as many values as fit, and ends in 4 words, of which the last checks it. */
typedef struct tam_cuda_gathered {
    const tam_strided *node_shards; /* [nlocal] */
    uint32_t local, nlocal, first_rank;
    uint64_t length; /* elements of the own shard */
    float *sent, *received;
    float *sum;            /* [length], and up to 3 more */
    uint64_t *checks[2];   /* [nlocal] of shards sent, of those received; zeros between pieces */
    tam_cuda_source *pass; /* what the pass over the shard adds: the sum */
} tam_cuda_gathered;

typedef struct tam_cuda_stretch {
    uint32_t first_chunk, end_chunk; /* of the bucket */
    uint32_t first;                  /* position in every shard */
    uint32_t last;                   /* there is no other after this */
    uint64_t shard_length;           /* floats, a multiple of 4 */
} tam_cuda_stretch;

/** The gradient, scaled, to the owners of all shards. */
int tam_launch_node_send(const tam_cuda_exchange *inter, const tam_cuda_gathered *node,
                         const tam_cuda_accumulate *target, const tam_cuda_stretch *piece,
                         void *stream);
/** The sum of what was received. A damaged shard, or one of another step or configuration:
 * scratch.damaged, and after the last piece the sum is 0. */
int tam_launch_node_add(const tam_cuda_exchange *inter, const tam_cuda_gathered *node,
                        const tam_cuda_accumulate *target, const tam_cuda_stretch *piece,
                        void *stream);
/** Zeros into the gradient, unless a shard was damaged. */
int tam_launch_node_clear(const tam_cuda_exchange *inter, const tam_cuda_accumulate *target,
                          void *stream);
/** The packet of this shard's result, for the node. Runs when the sums between nodes have been
 * validated. */
int tam_launch_node_seal(const tam_cuda_exchange *inter, const tam_cuda_exchange *node,
                         const tam_cuda_gathered *gathered, void *stream);

/* -- the control of the next step ------------------------------------------------------------- */

/** The control of a bucket for the next step. Runs last; only the next pass waits for it. */
typedef struct tam_cuda_control {
    tam_cuda_grid grid;
    tam_scheme scheme;
    double over;
    tam_cuda_quota quota; /* spans: in device memory */
    tam_cuda_packets packets;
    tam_cuda_packets results; /* of the shards of a node, whose norms are added; else no memory */
    tam_cuda_span node_shard; /* what is exchanged here of the bucket's `whole` elements */
    uint64_t whole;
    const uint32_t *indices; /* the union, verdict->count of them */
    const tam_cuda_verdict *verdict;
    tam_cuda_common *common;
    uint64_t *k;        /* [in,out] entries of the bucket in this step, then in the next */
    double *norm;       /* of this step: determines the budgets of the next */
    uint32_t budget_at; /* its number among those that share k */

    tam_cuda_params *params; /* of the next step: written here */
    tam_control_state *state;
    double *levels;           /* [ngroups] */
    uint32_t *thresholds;     /* [ngroups] */
    float *weights;           /* [ngroups] */
    uint32_t *budgets;        /* [ngroups] scratch */
    double *norms;            /* [ngroups] scratch */
    double *means;            /* [ngroups] scratch */
    uint32_t *group_selected; /* [ngroups] scratch */
    uint32_t *order;          /* [ngroups] scratch */
    double *min_keys;         /* [nranks] scratch */
} tam_cuda_control;

/** How the entries of a step are divided among buckets (lib/policy/bucket.h); in device memory. */
typedef struct tam_cuda_budgets {
    uint32_t nbuckets;      /* that share them, */
    uint32_t nrow_segments; /* and those that have rows */
    uint32_t by_norm;       /* else every bucket keeps its k */
    uint64_t k;             /* of all together */
    const uint64_t *lengths;
    double *norms;
    uint64_t *even; /* scratch */
    uint64_t *next;
    uint64_t *now; /* the k of each */
} tam_cuda_budgets;

/**
 * Learn from the step (unless its verdict is not OK), divide k among the buckets, prepare
 * thresholds, weights and parameters of the next: params->step + 1, mine, k, floor, listed. After
 * PROTOCOL only params->broken is set. In any case report.
 *
 * @param jobs  [nbuckets] in device memory
 */
int tam_launch_control(const tam_cuda_control *jobs, const tam_cuda_budgets *budgets,
                       const tam_cuda_reporting *reporting, void *stream);

/** The first ones: thresholds, weights and parameters from *state, levels, *k and the step
 * number. */
int tam_launch_prepare(const tam_cuda_control *job, uint64_t step, void *stream);

#ifdef __cplusplus
}
#endif

#endif
