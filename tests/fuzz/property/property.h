/* SPDX-License-Identifier: MIT
 *
 * The property fuzzer: random cases, each a few steps of some ranks. It checks all that the library
 * promises about them.
 *
 *     draw.c       a seed and a number give a case; its twin
 *     gradients.c  its gradients
 *     words.c      its description
 *     simpler.c    simpler cases
 *     ranks.c      threads for ranks, which stay from case to case; a caller's own all-gather
 *     run.c, steps.c, events.c   run a case through the public API and record what each rank saw
 *     model.c      what each rank has accumulated in a step, by the formulas of tamis.h, bit for
 *                  bit
 *     check.c, entry.c, choice.c   what must then hold for every step
 *     bound.c      rows that are listed
 *     figures.c    statistics, counts, and the comparison with the twin
 */
#ifndef FUZZ_PROPERTY_H
#define FUZZ_PROPERTY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>
#include <tamis/tamis.h>

enum {
    MOST_RANKS = 16,
    MOST_SEGMENTS = 24,
    MOST_STEPS = 8,
    MOST_LENGTH = 1 << 13, /* elements */
    SENTENCE = 512
};

/* -- draw.c ----------------------------------------------------------------------------------- */

typedef enum data_kind {
    DATA_WHOLE, /* small whole numbers, whose sums are exact */
    DATA_REAL,  /* full mantissas, many exponents */
    DATA_HARD,  /* the same, with NaN, Inf, -0, denormals and huge numbers in places */
    DATA_KINDS
} data_kind;

typedef enum event_kind {
    EVENT_NONE,
    EVENT_DENSITY,  /* tamis_reducer_set_density */
    EVENT_MEMORY,   /* save into memory, a new reducer, restore */
    EVENT_FILE,     /* save into a file, a new reducer, load */
    EVENT_RESIDUAL, /* the residual replaced by itself */
    EVENT_MISUSE,   /* calls that must be refused and change nothing */
    EVENTS
} event_kind;

typedef struct step_plan {
    event_kind event;
    bool late;       /* the event comes after the micro-batches */
    double density;  /* for EVENT_DENSITY */
    uint32_t micros; /* gradients that are accumulated before the one that is exchanged */
} step_plan;

/* What must be refused: a rank that asks for something else than the others, or for something
 * invalid. */
typedef enum odd_kind {
    ODD_NONE,
    ODD_DENSITY,
    ODD_SCHEME,
    ODD_LENGTH,
    ODD_AVERAGE,
    ODD_DECAY,
    ODD_CODEC,
    ODD_ARGUMENT, /* the first of many invalid arguments */
    ODDS = ODD_ARGUMENT + 16
} odd_kind;

typedef struct fuzz_case {
    uint64_t seed, number;
    uint32_t nranks, nsegments, nsteps;
    uint32_t lengths[MOST_SEGMENTS], rows[MOST_SEGMENTS]; /* rows: length of one; 0: none */
    char scheme[64];
    tamis_reducer_config config; /* scheme and update are set before use */
    tamis_update update;
    bool updates;
    data_kind data;
    uint32_t quiet;    /* one in this many rank-steps has a gradient of zeros; 0: none */
    uint32_t touched;  /* one in this many rows is touched */
    uint32_t bad;      /* hard data: one in this many entries is special */
    uint32_t specials; /* hard data: bits of the special kinds */
    bool scaled;       /* steps have scales other than 1 */
    step_plan steps[MOST_STEPS];
    uint32_t odd;      /* an odd_kind */
    uint32_t odd_rank; /* nranks: all of them */
    /* What must not change the results: */
    uint64_t order_seed; /* forms of the gradient, order of readiness */
    bool ordered;        /* all segments at once, as one vector */
    bool callback;       /* over the caller's all-gather, or */
    bool messages;       /* over the caller's messages, in stages */
    bool uninterrupted;  /* leave out events that must have no effect */
} fuzz_case;

uint64_t fuzz_mix(uint64_t x);

void fuzz_draw(uint64_t seed, uint64_t number, fuzz_case *out);

/** A copy of the case with changes that must not affect the results. */
void fuzz_twin(const fuzz_case *of, fuzz_case *out);

/** The `way`-th simplification. @return false: there is none; *changed: whether the case changed */
bool fuzz_simplify(const fuzz_case *of, uint32_t way, fuzz_case *out, bool *changed);

/** Describe all that is special about a case. */
void fuzz_describe(const fuzz_case *c, char *text, size_t size);

uint64_t fuzz_length(const fuzz_case *c);

/** Number of elements in segments without rows. */
uint64_t fuzz_ordinary(const fuzz_case *c);

/** Gradient number `micro` of a rank in a step as the library gets it, widened to float[n], and
 * scale. */
void fuzz_gradient(const fuzz_case *c, uint32_t step, uint32_t rank, uint32_t micro, float *out);
float fuzz_scale(const fuzz_case *c, uint32_t step, uint32_t rank, uint32_t micro);

/** Which moments the case has, in update mode. */
bool fuzz_has_first(const fuzz_case *c);
bool fuzz_has_second(const fuzz_case *c);

/** Whether the case supports tamis_reducer_accumulate. */
bool fuzz_accumulates(const fuzz_case *c);

/** One of the four words of a scheme, 0 to 3; a preset's too. */
const char *fuzz_policy(const fuzz_case *c, int word);
bool fuzz_is(const fuzz_case *c, int word, const char *policy);

/* -- ranks.c ---------------------------------------------------------------------------------- */

/** Run `body` on `nranks` threads, rank 0 on the caller's. */
void ranks_do(uint32_t nranks, void (*body)(void *context, uint32_t rank), void *context);

extern uint32_t fuzz_timeout_ms; /* of communicators */

/** Communicators over an all-gather or messages between the threads, or over local. @return false:
 * none */
typedef struct fuzz_board fuzz_board;
bool ranks_connect(const fuzz_case *c, fuzz_board **board, tamis_comm **comms);

/** Abandon a communicator, so that no rank waits for this one. */
void ranks_leave(fuzz_board *board, tamis_comm *comm);
void ranks_part(uint32_t nranks, fuzz_board *board, tamis_comm **comms);

/* -- run.c ------------------------------------------------------------------------------------ */

/* What one rank saw of a step. */
typedef struct moment {
    tamis_status status;
    uint64_t count;
    uint64_t result_hash, gradient_hash, residual_hash, moments_hash;
    uint64_t passes;
    tamis_stats stats;
    float *residual, *first, *second; /* [n] after the step; NULL: there is none */
} moment;

/* What all ranks have in common, taken from rank 0. */
typedef struct common {
    uint32_t nbuckets;
    tamis_bucket buckets[64]; /* before the step */
    double density;           /* asked for and granted */
    bool listed;              /* there are indices */
    uint32_t *indices;
    float *values, *gradient;
} common;

typedef struct record {
    const fuzz_case *fuzz;
    tamis_status created[MOST_RANKS];
    char sentence[MOST_RANKS][SENTENCE];
    bool refused;
    uint32_t nsteps; /* steps run */
    moment moments[MOST_STEPS][MOST_RANKS];
    common common[MOST_STEPS];
} record;

/** @param  memory  which of two arenas holds it. @return false: `failure` says what is wrong */
bool fuzz_run(const fuzz_case *c, int memory, record *out, char failure[SENTENCE]);

/* -- model.c ---------------------------------------------------------------------------------- */

/* What a step must have started from; with nodes, each node counts as a rank. */
typedef struct model {
    uint32_t nranks;
    float *acc[MOST_RANKS];   /* accumulated, bad entries dropped; dense: what is summed */
    float *first[MOST_RANKS]; /* updated moments; NULL: none */
    float *second[MOST_RANKS];
    uint64_t bad;       /* entries dropped in buckets that are not dense */
    uint64_t early_bad; /* entries of micro-batches dropped in dense buckets */
    float divisor;
} model;

void fuzz_model(const record *r, uint32_t step, model *out);

/** The residual of a rank, or of a node, after a step. */
void fuzz_residual(const record *r, uint32_t step, uint32_t rank, float *out);

/** Bucket of an element, by its number in common.buckets. */
const tamis_bucket *fuzz_bucket(const record *r, uint32_t step, uint64_t element);

/* -- check.c, figures.c ----------------------------------------------------------------------- */

/** @return false: `failure` says what is wrong */
bool fuzz_check(const record *r, char failure[SENTENCE]);
bool fuzz_check_figures(const record *r, uint32_t step, const model *m, char failure[SENTENCE]);
bool fuzz_check_twin(const record *a, const record *b, char failure[SENTENCE]);

/** A digest of the bits of all that the ranks got: the same with all kernels and on all
 * processors. */
uint64_t fuzz_digest(const record *r);

#endif
