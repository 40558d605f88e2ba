/* SPDX-License-Identifier: MIT
 *
 * Attempts of ranks that are threads of this process: run, judge, go on. Any broken rule fails the
 * test, with its context.
 */
#ifndef TEST_FAULTS_OUTCOME_H
#define TEST_FAULTS_OUTCOME_H

#include "tests/faults/attempt.h"

typedef struct outcome {
    const fault_config *config;
    uint32_t nranks, timeout_ms;
    bool late;      /* a wrong result may be noticed by the next step only */
    bool tells;     /* a rank that fails abandons its communicator, so that others need not wait */
    bool file;      /* states are saved to files */
    bool failed;    /* [out] some rank */
    attempt *ranks; /* [nranks], by outcome_try; see outcome_free */
} outcome;

/** The reference of a config, made once. */
const reference *outcome_reference(const fault_config *config, uint32_t nranks);

/** Attempts over communicators of the caller, which stay; then from the saved states over new ones
 * in shared memory. */
void outcome_try(outcome *o, tamis_comm *const *comms);

/** Reducers, before their communicators, and the rest. */
void outcome_free(outcome *o);

/** How many of `most` cases of a kind are passed over for each one that is tried: 2 are tried, in a
 * quick run 1; or as many as the program's argument says, a number or "all". */
uint64_t outcome_stride(uint64_t most);
void outcome_arguments(int argc, char **argv);

/** Whether this configuration's turn has come: always, but under a sanitizer, where every wait is
 * three times as long, one of two in a run, and the others on the next day. */
bool outcome_drawn(void);

/** Printed at the end. */
void outcome_count(bool fired, bool failed);
void outcome_show(void);

#endif
