/* SPDX-License-Identifier: MIT
 *
 * One rank of a case: shared by the files that run it.
 */
#ifndef FUZZ_WORKER_H
#define FUZZ_WORKER_H

#include "tests/fuzz/property/property.h"

#include <pthread.h>

typedef struct trial {
    const fuzz_case *c;
    record *out;
    uint64_t n;
    fuzz_board *board;
    tamis_comm *comms[MOST_RANKS];
    tamis_reducer *reducers[MOST_RANKS];
    pthread_mutex_t lock;
    char *failure; /* of the first rank that failed */
} trial;

/* One rank at work. */
typedef struct worker {
    trial *team;
    const fuzz_case *c;
    uint32_t rank, step;
    uint64_t n;
    size_t element;
    tamis_reducer *reducer;
    float *values;                /* [n] */
    unsigned char *flat, *before; /* elements as the library gets them, and a copy */
    void *pieces[MOST_SEGMENTS];  /* the same, segment by segment */
    uint64_t random;              /* state: forms and orders */
    bool failed;
} worker;

/** Record what is wrong, if nothing was before, and abandon the communicator. @return false */
bool worker_fail(worker *w, const char *format, ...) __attribute__((format(printf, 2, 3)));

/** As worker_fail if `got` is not `expected`. */
bool worker_expect(worker *w, tamis_status expected, tamis_status got, const char *call);

#define GIVES(w, expected, call) worker_expect(w, expected, call, #call)

/** A random number below `sides`, independent on each rank. */
uint32_t worker_roll(worker *w, uint32_t sides);

/** A reducer of the case for one rank. */
tamis_status trial_reducer(trial *team, uint32_t rank, tamis_reducer **out);

/** Run the event of a step's plan. */
bool worker_event(worker *w, const step_plan *plan);

/** All steps of one rank. @param context  the trial */
void trial_steps(void *context, uint32_t rank);

#endif
