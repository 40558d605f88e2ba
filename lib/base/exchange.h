/* SPDX-License-Identifier: MIT
 *
 * The exchange contract: how the ranks come from their residuals to one result. A row is one way of
 * doing so; the reducer drives it and knows of no row more than its traits.
 *
 *     collect      what has to travel before the gradient can be taken in
 *     accumulate   the gradient into the residual: one pass
 *     plan, pick   this rank's entries, into its message
 *     run          all that travels; then view->out says what the step has come to
 *     drop         sums that are not finite
 *     apply        the result into the gradient, what was given out of the residual; or
 *     skip         nothing at all
 *
 * Every row is complete: an entry that has nothing to do does nothing, so callers never test a
 * pointer. Collective entries (collect, plan, run) are called in the same order on all ranks; each
 * returns by the deadline of its link, and a failure ends the communicator. Until drop nothing that
 * the caller of the library sees has changed, but for the gradient of a row that does not pick.
 *
 * What a row knows of its bucket is the struct below, which belongs to the reducer and outlives the
 * row. Elements are counted from the begin of the bucket, in `held` lists from the begin of what
 * this rank holds of it (lib/policy/slice.h).
 */
#ifndef TAM_BASE_EXCHANGE_H
#define TAM_BASE_EXCHANGE_H

#include "lib/base/device.h"
#include "lib/base/head.h"
#include "lib/base/transport.h"

/** What the reducer must know of a row. */
enum {
    TAM_TRAIT_PICKS = 1,    /* entries of the residual, which takes the gradient in; else the
                                  gradient itself is summed, by run, where it lies */
    TAM_TRAIT_LEARNS = 2,   /* by thresholds that follow from what all ranks picked */
    TAM_TRAIT_COLLECTS = 4, /* accumulate needs what collect has brought */
    TAM_TRAIT_TIMED = 8,    /* heads tell when each rank began */
    TAM_TRAIT_DEVICE = 16   /* a device can run such steps by itself */
};

/** A list of entries, index ascending. */
typedef struct tam_entries {
    uint32_t *indices;
    float *values;
    size_t count;
} tam_entries;

/** What a step has come to. The lists are valid until the next step. */
typedef struct tam_outcome {
    tam_entries result; /* what all ranks apply, and the sums; indices NULL: every element, and the
                           sums are in the gradient */
    tam_entries held;   /* of it what lies in what this rank holds */
    tam_entries given;  /* what leaves this rank's residual; values: what stays, NULL: nothing */
    double given_sum;   /* of squares: by how much that lessens the residual's */
    tam_heads heads;    /* of those among whom was picked */
    uint32_t *picked;   /* [comm_nranks] entries that each rank of the communicator picked */
    uint64_t deferred, candidates, rescans, nonfinite; /* as in tamis_stats, of all ranks */
    uint32_t bad_first, bad_ranks; /* whose gradients, or whose sum, had the first such entry */
    double *means;                 /* [sums in a head] of the sums of squares, over the heads */
    double norm;                   /* sum of their roots, of all that was picked among */
} tam_outcome;

/** A bucket, as its exchange sees it. */
typedef struct tam_bucket_view {
    /* From open to close. */
    const tamis_reducer_config *config; /* defaults resolved */
    const tamis_layout *layout;         /* of the bucket */
    const struct tam_slice *slice;      /* what this rank holds of it, */
    struct tam_division *division;      /* and how that is divided among those who pick */
    struct tam_control *control;
    const tam_device *device;
    void *kernels;          /* of what this rank holds, */
    void *gradient_kernels; /* and of the bucket */
    float *acc;             /* the residual of what this rank holds */
    bool keeps;             /* what is not applied stays there for the steps to come */
    float *masked;          /* moments that are cleared where an entry was applied; NULL: none */
    uint32_t comm_rank, comm_nranks;
    uint32_t rank, nranks;       /* among those who pick */
    uint32_t index;              /* of the bucket */
    uint64_t begin;              /* of it in the whole vector */
    uint64_t reducer;            /* among those of the communicator */
    uint64_t config_hash;        /* of what all ranks agreed on, and of this bucket alone */
    uint64_t k_max, whole_k_max; /* most that k and whole_k can be */
    bool norms;                  /* wanted in heads, to share k among buckets */
    bool gathers;                /* TAM_CAP_GATHERS */
    tamis_index_format format;   /* [in] as asked for; [out] as chosen */
    size_t result_max;           /* [out] most entries of a result; 0: it is no list */
    size_t gather_max;           /* [out] most bytes that a rank gives to one all-gather */
    size_t staging_floats;       /* [out] that steps need, */
    float *staging;              /* which are here, shared with the reducer's other buckets */

    /* Of the next step. */
    uint64_t whole_k, k;      /* entries to send: of the bucket, of what this rank holds */
    uint64_t early_nonfinite; /* entries dropped from the residual before it */
    bool pending;             /* the residual may hold what was accumulated before it */
    uint64_t last_result;     /* sum of the values of the step before */

    /* Of the step under way. */
    uint64_t step;
    tam_accumulate target;
    tam_accumulated accumulated;
    float divisor;              /* of sums, before they are applied */
    uint32_t began_us, busy_us; /* for the head */
    bool decides; /* whether to skip a step; a column of nodes leaves it to them all */
    bool skipped; /* [in,out] all ranks know that it will be */
    tam_outcome out;
} tam_bucket_view;

typedef struct tam_exchange {
    uint32_t traits;

    /** Take all memory that steps will need. @param  out  NULL after a failure */
    tamis_status (*open)(tam_bucket_view *view, void **out);
    /** @param  lingers  the transport may still use what it was given, which stays.
     * NULL is fine. */
    void (*close)(void *self, bool lingers);

    /** view->k and whole_k were set. */
    void (*limit)(void *self);

    tamis_status (*collect)(void *self, tam_link *link);
    /** Fills view->accumulated. */
    tamis_status (*accumulate)(void *self);
    /** What the ranks must agree on before they pick. Only ownership `bins` uses the link. */
    tamis_status (*plan)(void *self, tam_link *link);
    tamis_status (*pick)(void *self);
    /** Fills view->out. A step that all ranks know will be skipped needs no result. */
    tamis_status (*run)(void *self, tam_link *link);

    /** Entries of the result that are not finite, or would not be as applied, are 0 from here on,
     * and nothing of them is kept, else every later step would meet them again. @return how many */
    uint64_t (*drop)(void *self);
    tamis_status (*apply)(void *self);
    tamis_status (*skip)(void *self);

    /** What it must remember from step to step, as words of a state: the same on all ranks. */
    size_t (*state_words)(uint32_t nranks);
    uint64_t *(*state)(void *self);
    bool (*state_valid)(const tam_bucket_view *view, const uint64_t *words);
} tam_exchange;

#endif
