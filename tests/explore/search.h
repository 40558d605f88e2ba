/* SPDX-License-Identifier: MIT
 *
 * Depth-first over the choices of executions: each is run from the beginning, shows its decisions,
 * and each option of a decision after its last choice is a choice more.
 */
#ifndef EXPLORE_SEARCH_H
#define EXPLORE_SEARCH_H

#include "tests/explore/world.h"

/** All executions with at most so many faults and deviations. */
typedef struct bounds {
    uint32_t faults, deviations;
    uint32_t stride[CHOICES_MOST]; /* of the choices at a depth, one of so many; at the first one
                                      test_stride(6) times as many */
} bounds;

enum { JOBS_MOST = 8 };

typedef struct path {
    choice choices[CHOICES_MOST];
    uint32_t nchoices;
} path;

/** What several processes found, in memory that they share. */
typedef struct findings {
    figures seen;
    char failure[1024]; /* the first, */
    path at;            /* and the choices that lead there */
    bool failed;
    path under_way[JOBS_MOST];
} findings;

/** @param jobs  processes that share the work
 *  @param out   [in,out]  added to; the search ends early where something fails */
void search_run(const setting *set, const bounds *b, uint32_t jobs, findings *out);

/** Run an execution and check what only the whole can show. @param w  [out] */
void search_try(world *w, const setting *set, const choice *choices, uint32_t nchoices,
                const uint64_t *reference, bool traced);

#endif
