/* SPDX-License-Identifier: MIT
 *
 * Some steps of one rank in which something may go wrong, over any transport, and what must hold
 * afterwards whatever it was:
 *
 *     a step that returned OK has the result of a run without a fault (reference.c)
 *     a failed one has lost nothing: the residual is what it was before, or holds the gradient
 *     the state can be saved and loaded
 *     over a new communicator all ranks go on from it, and nothing is missing in the end
 */
#ifndef TEST_FAULTS_ATTEMPT_H
#define TEST_FAULTS_ATTEMPT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum {
    ATTEMPT_N = 600,
    ATTEMPT_STEPS = 4,
    ATTEMPT_AFTER = 3, /* steps after a recovery */
    ATTEMPT_RANKS = 16,
    ATTEMPT_TEXT = 400
};

/** What is exchanged, and how. */
typedef struct fault_config {
    const char *name, *scheme;
    tamis_value_codec value_codec;
    uint64_t bucket_length;
    bool rows; /* the second segment has rows of which few are touched */
} fault_config;

/** The index-th; NULL past the end. */
const fault_config *fault_config_at(size_t index);
const fault_config *fault_config_find(const char *name);

/** What a step of a run without a fault leaves on all ranks. */
typedef struct reference {
    const fault_config *config;
    uint32_t nranks;
    uint64_t hash[ATTEMPT_STEPS];
} reference;

/** Makes such a run over shared memory, and checks it element by element: what left the residuals
 * is what was applied. @return whether it was right; a word on stderr if not */
bool reference_make(const fault_config *config, uint32_t nranks, reference *out);

typedef struct attempt {
    const fault_config *config;
    uint32_t rank, nranks;
    tamis_reducer *reducer;
    const char *states; /* before each step a state is saved to STATES.STEP; NULL: none */

    /* What came of it: of the call that failed, or of the last one. */
    tamis_status status;
    const char *at; /* "reducer", "step" */
    uint32_t step;
    char sentence[ATTEMPT_TEXT];
    uint32_t done; /* steps that returned OK */
    uint64_t hash[ATTEMPT_STEPS];
    double slowest_s; /* of all calls, without the time in which it could run but had no core */

    /* For a watchdog: the call under way, and when it began. */
    const char *_Atomic where; /* NULL: none */
    _Atomic double since_s;
    double starved_s; /* before it began */

    /* params[t]: what the first t steps applied. given: what this rank added up */
    float params[ATTEMPT_STEPS + ATTEMPT_AFTER + 1][ATTEMPT_N];
    float gradient[ATTEMPT_N], before[ATTEMPT_N], left[ATTEMPT_N];
    double given[ATTEMPT_N];
    bool has_residual;         /* the scheme has a residual */
    char broken[ATTEMPT_TEXT]; /* what did not hold; "": nothing */
    void *control;             /* saved, with `left` */
    size_t control_bytes;
    uint64_t after_hash; /* of all results after a recovery */
} attempt;

double attempt_now_s(void);

/** How long the kernel has let this thread wait for a core: on a busy machine a call is late by as
 * much, which is no fault of the library's. 0 where the kernel does not say. */
double attempt_starved_s(void);

/** All zero, with what is known before. */
void attempt_clear(attempt *a, const fault_config *config, uint32_t rank, uint32_t nranks);

/** Create a reducer and make the steps, until one fails. */
void attempt_run(attempt *a, tamis_comm *comm);

/** The newest step of which there is a state; -1: none. */
int attempt_newest(const attempt *a);

/** Go on from the state of step `from` on, in another process. */
void attempt_resume(attempt *a, tamis_comm *comm, uint32_t from);

/** After a failure, or not: what the residual must hold; save, load, compare.
 * @param  path  of a file to save to; NULL: in memory */
void attempt_save(attempt *a, const char *path);

/** Over a new communicator, by all ranks: a new reducer loads what was saved, all resync and go on.
 * Leaves params at `step`, and the residual in `left`. The old reducer is destroyed first. */
void attempt_recover(attempt *a, tamis_comm *comm);

void attempt_free(attempt *a);

/** Whether all is there after a recovery: of element i, residuals of all ranks + params = given.
 * @param  params  of any rank */
bool attempt_adds_up(const fault_config *config, double residuals, double params, double given);

#endif
