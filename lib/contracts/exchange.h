/* SPDX-License-Identifier: MIT
 *
 * The exchange contract: how the ranks turn their residuals into one result. A row of the table is
 * one kind of exchange. The reducer calls its entries and knows only its traits.
 *
 *     collect      communicate what accumulate needs
 *     accumulate   add the gradient to the residual: one pass
 *     plan, select  put this rank's entries into its message
 *     run          communicate; view->out then holds the outcome of the step
 *     drop         remove sums that are not finite
 *     apply        write the result to the gradient, remove what was sent from the residual; or
 *     skip         apply nothing
 *
 * An entry that has nothing to do is NULL: callers go through tam_exchange_* below.
 * All ranks call collective entries (collect, plan, run) in the same order; each returns by the
 * deadline of its link, and a failure ends the communicator. Before drop, nothing that the caller
 * of the library sees has changed, except the gradient of a row that does not select.
 *
 * The struct below describes the bucket of a row. It belongs to the reducer and outlives the row.
 * Elements are counted from the begin of the bucket; in `local` lists they are counted from the
 * begin of what this rank holds of it (lib/policy/node_shard.h).
 */
#ifndef TAM_CONTRACTS_EXCHANGE_H
#define TAM_CONTRACTS_EXCHANGE_H

#include "lib/contracts/device.h"
#include "lib/base/header.h"
#include "lib/contracts/transport.h"

/** What the reducer must know of a row. */
enum {
    TAM_TRAIT_SELECTS = 1,      /* selects entries of the residual, into which the gradient is
                                  accumulated; else run sums the gradient itself, in place */
    TAM_TRAIT_LEARNS = 2,       /* adapts thresholds to what all ranks selected */
    TAM_TRAIT_COLLECTS = 4,     /* accumulate needs the data of collect */
    TAM_TRAIT_TIMED = 8,        /* headers report when each rank began */
    TAM_TRAIT_HAS_RESIDUAL = 16 /* what it does not send stays in the residual */
};

/** How a device runs the steps of a row by itself (collectives/reducer/stream_rows.c). */
typedef enum tam_on_device {
    TAM_ON_DEVICE_NOT = 0, /* the host drives */
    TAM_ON_DEVICE_DENSE,
    TAM_ON_DEVICE_PACKETS,
    TAM_ON_DEVICE_ROWS,
    TAM_ON_DEVICE_NODES,
    TAM_ON_DEVICE_ROW_COUNT
} tam_on_device;

/** A list of entries, index ascending. */
typedef struct tam_entries {
    uint32_t *indices;
    float *values;
    size_t count;
} tam_entries;

/** The outcome of a step. The lists are valid until the next step. */
typedef struct tam_outcome {
    tam_entries result; /* entries that all ranks apply, and their sums; indices NULL: every
                           element, and the sums are in the gradient */
    tam_entries local;  /* the part of it in what this rank holds */
    tam_entries sent;   /* what leaves this rank's residual; values: what stays, NULL: nothing */
    double sent_sum;    /* reduction of the residual's sum of squares by that */
    uint32_t *selected; /* [comm_nranks] entries that each rank of the communicator selected */
    uint64_t deferred, candidates, rescans, nonfinite; /* as in tamis_stats, of all ranks */
    uint32_t bad_first, bad_ranks; /* first rank with a bad entry; ranks that its sum is over */
    double norm;                   /* sum of the roots of means, of all that was selected among */

    /* From the ranks that selected among themselves: what the control learns from. */
    tam_headers headers;
    uint64_t found, own_found; /* selected and deferred, of all and of this rank */
    uint64_t seen;             /* candidates; 0: unknown */
    uint32_t nmeans;
    double *means; /* [nmeans] of the groups' sums of squares, over the ranks */
} tam_outcome;

/** A bucket, as its exchange sees it. */
typedef struct tam_bucket_view {
    /* From open to close. */
    const tamis_reducer_config *config;      /* defaults resolved */
    const tamis_layout *layout;              /* of the bucket */
    const struct tam_node_shard *node_shard; /* what this rank holds of the bucket */
    struct tam_division *division;           /* how that is divided among the ranks that select */
    struct tam_control *control;
    const tam_device *device;
    void *kernels;          /* of what this rank holds */
    void *gradient_kernels; /* of the whole bucket */
    float *acc;             /* the residual of what this rank holds */
    bool has_residual;      /* what is not applied stays there for later steps */
    float *masked;          /* moments that are cleared where an entry was applied; NULL: none */
    uint32_t comm_rank, comm_nranks;
    uint32_t rank, nranks;         /* among the ranks that select */
    uint32_t index;                /* of the bucket */
    uint64_t begin;                /* of the bucket in the whole vector */
    uint64_t reducer;              /* number of the reducer on its communicator */
    uint64_t config_hash;          /* of what all ranks agreed on, and of this bucket alone */
    uint64_t k_max, whole_k_max;   /* largest k and whole_k */
    bool norms;                    /* counters carry norms, to divide k among buckets */
    bool gathers;                  /* TAM_CAP_GATHERS */
    bool encoded;                  /* the transport has a tam_encoded_transport */
    tamis_index_codec index_codec; /* [in] as asked for; [out] as chosen */
    size_t result_max;             /* [out] most entries of a result; 0: it is no list */
    size_t gather_max;             /* [out] most bytes that a rank gives to one all-gather */
    size_t staging_floats;         /* [out] length of staging that steps need */
    float *staging;                /* shared with the reducer's other buckets */

    /* For the next step. */
    uint64_t whole_k, k;      /* entries to send: of the bucket, of what this rank holds */
    uint64_t early_nonfinite; /* entries dropped from the residual before the step */
    bool pending;             /* the residual may hold what was accumulated before the step */
    uint64_t last_result;     /* sum of what the step before summed: values, counters */

    /* For the step under way. */
    uint64_t step;
    tam_accumulate target;
    tam_accumulated accumulated;
    float divisor;                    /* of sums, before they are applied */
    uint32_t began_us, busy_us;       /* for the header */
    uint32_t computing_us, waited_us; /* for its words: of the step before, the first bucket's */
    bool decides; /* decides whether to skip a step; an inter-node group leaves that to its nodes */
    bool skipped; /* [in,out] all ranks know that the step will be skipped */
    tam_outcome out;
} tam_bucket_view;

/** What headers of a step compare. k is in it, for packets of another density may be as long. */
static inline uint64_t tam_view_config(const tam_bucket_view *v, uint64_t k) {
    return v->config_hash + v->target.agreed + k;
}

typedef struct tam_exchange {
    uint32_t traits;
    tam_on_device on_device;

    /** Allocate all memory that steps will need. @param  out  NULL after a failure */
    tamis_status (*open)(tam_bucket_view *view, void **out);
    /** NULL is fine.
     * @param  in_flight  the transport may still use its buffers: do not free them */
    void (*close)(void *self, bool in_flight);

    /** Called after view->k and whole_k were set. */
    void (*limit)(void *self);

    tamis_status (*collect)(void *self, tam_link *link);
    /** Fills view->accumulated. */
    tamis_status (*accumulate)(void *self);
    /** Agree on what all ranks must know before they select. Only ownership `bins` uses the
     * link. */
    tamis_status (*plan)(void *self, tam_link *link);
    tamis_status (*select)(void *self);
    /** Fills view->out. A step that all ranks know will be skipped needs no result. */
    tamis_status (*run)(void *self, tam_link *link);

    /** Set to 0 the entries of the result that are not finite, or would not be once applied. The
     * residual keeps nothing of them: they would return in every later step. @return how many */
    uint64_t (*drop)(void *self);
    tamis_status (*apply)(void *self);
    tamis_status (*skip)(void *self);

    /** What the exchange keeps between steps, as words of a state: the same on all ranks. */
    size_t (*state_words)(uint32_t nranks);
    uint64_t *(*state)(void *self);
    bool (*state_valid)(const tam_bucket_view *view, const uint64_t *words);
} tam_exchange;

/* -- entries that may be NULL ----------------------------------------------------------------- */

static inline void tam_exchange_limit(const tam_exchange *row, void *self) {
    if (row->limit)
        row->limit(self);
}

/** Run accumulate, select, apply or skip. */
static inline tamis_status tam_exchange_do(tamis_status (*entry)(void *), void *self) {
    return entry ? entry(self) : TAMIS_OK;
}

/** Run collect or plan. */
static inline tamis_status tam_exchange_send(tamis_status (*entry)(void *, tam_link *), void *self,
                                             tam_link *link) {
    return entry ? entry(self, link) : TAMIS_OK;
}

/** Words that the row keeps between steps; only if there are any it has state and state_valid. */
static inline size_t tam_exchange_words(const tam_exchange *row, uint32_t nranks) {
    return row->state_words ? row->state_words(nranks) : 0;
}

#endif
