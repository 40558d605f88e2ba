/* SPDX-License-Identifier: MIT
 *
 * A trial: one reducer per rank and a few steps on known gradients, all recorded. The checks read
 * the record afterwards, on the main thread.
 */
#ifndef TEST_TRIAL_H
#define TEST_TRIAL_H

#include "tests/support/data.h"
#include <stdbool.h>
#include <tamis/stats.h>

/** Where a trial runs when it is not the CPU over local communicators. */
typedef struct trial_backend {
    const char *name;
    tamis_device device;
    /* Zeroed memory for a gradient, which the test can read directly between steps. */
    void *(*alloc)(size_t bytes);
    void (*release)(void *memory);
    /* Makes the calling thread ready and gives the communicator to use: one made over `local`,
     * which the trial destroys, or `local` itself. NULL: tamis_last_error says why. */
    tamis_comm *(*connect)(uint32_t rank, tamis_comm *local);
    bool odd; /* only ranks of an odd number are there; the others on the CPU */
} trial_backend;

typedef struct trial {
    const char *scheme;
    double density;
    size_t n;
    uint32_t nranks, steps;
    data_pattern pattern;
    tamis_output output;
    tamis_op op; /* trial_usual sets SUM, for which all figures are exact */
    float scale;
    uint32_t threads, block;
    double capacity;
    bool by_segment;        /* one pointer per segment, each to separate memory */
    bool real;              /* data_fill_real instead of the pattern */
    tamis_dtype type;       /* of the gradients that the library gets */
    tamis_dtype fits;       /* gradients hold only numbers that this type has */
    uint64_t bucket_length; /* as in the configuration */
    tamis_bucket_budget bucket_budget;
    tamis_worker worker;
    uint32_t disorder; /* 0: start marks all segments; else a seed: ready marks them one by one, in
                          a new order on every rank in every step, and start perhaps the rest */
    const trial_backend *backend; /* NULL: host memory, local communicators */
    tamis_index_codec index_codec;
    tamis_value_codec value_codec, sum_codec;
    const tamis_update *update; /* NULL: gradients */
    double forgets;             /* 1 - residual_decay */
    double latency_us, gbit;    /* the link by which exchange auto chooses */
    uint32_t ranks_per_node;    /* as in the configuration */
} trial;

/** A trial of 12 steps with heavy-tailed data; change what matters. */
trial trial_usual(const char *scheme, uint32_t nranks, size_t n, double density);

/** One step as one rank saw it. */
typedef struct moment {
    tamis_status status;
    size_t count;
    uint64_t sparse_hash; /* of indices and values */
    uint64_t dense_hash;  /* of the gradient after wait */
    tamis_stats stats;
} moment;

typedef struct trial_record {
    trial trial;
    tamis_status *created; /* [rank] */
    char (*sentence)[256]; /* [rank] tamis_last_error if create failed */
    moment *moments;       /* [step][rank] */
    float *residuals;  /* [step][rank][n]; zero for a scheme without, and where it holds nothing */
    float *results;    /* [step][n] of rank 0, dense */
    uint32_t *indices; /* [step][n] of rank 0; not set for a scheme without */
    float *values;     /* [step][n] of rank 0 */
    bool has_residual, has_indices;
    tamis_device result_memory; /* of rank 0 */
} trial_record;

/** Run and record. Fails the test only if a step or the setup fails; a refused create is recorded.
 * @return whether all ranks created their reducer. */
bool trial_run(const trial *what, trial_record *out);
void record_free(trial_record *record);

moment *record_moment(const trial_record *record, uint32_t step, uint32_t rank);
float *record_residual(const trial_record *record, uint32_t step, uint32_t rank);
float *record_result(const trial_record *record, uint32_t step);

/** Gradient of a rank in a step of this trial. */
void trial_fill(const trial *what, uint32_t rank, uint32_t step, float *out);

/** k as the header defines it. */
uint64_t trial_target(const trial *what);

/* -- checks: each fails the running test with a description of the trial ---------------------- */

/** All ranks hold the same bits in every step. */
void check_ranks_identical(const trial_record *record);

/** Sum over ranks of gradients = applied + change of the sum of residuals, at every entry. */
void check_conservation(const trial_record *record);

/** Ascending, no duplicates, in range; the dense result is the sparse one, zero elsewhere. */
void check_union(const trial_record *record);

/** Every step selected exactly k, and the statistics say so. */
void check_count(const trial_record *record);

/** Statistics that every scheme must report. */
void check_stats(const trial_record *record);

/** The result is the dense sum of the gradients in the first step, and the residual is zero. */
void check_all_applied(const trial_record *record);

/** Both records hold the same results and residuals, bit for bit. */
void check_same(const trial_record *a, const trial_record *b);

#endif
