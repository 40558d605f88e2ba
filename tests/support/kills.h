/* SPDX-License-Identifier: MIT
 *
 * A run in which one or two ranks are killed at any moment, also while the others recover from the
 * first; all others make all steps and hold the same parameters.
 */
#ifndef TEST_KILLS_H
#define TEST_KILLS_H

#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum { KILLS_MOST = 30000 }; /* entries */

/** Make a step of plain descent on gradients that change every 4 steps.
 * @param  n       at most KILLS_MOST
 * @param  number  [inout]  of the step, counted on after success
 * @param  params  [inout]
 * @param  before  [out]    what the parameters were */
tamis_status kills_step(tamis_reducer *r, uint32_t rank, size_t n, uint64_t *number, float *params,
                        float *before);

/** Make the run of a seed, an even one with one death, an odd one with two, on a communicator that
 * is destroyed. Ends the process with status 9 where it cannot go on.
 * @param  dies  false: nobody does
 * @return       how often this rank had to recover */
uint64_t kills_run(tamis_comm *comm, uint64_t seed, bool dies);

#endif
