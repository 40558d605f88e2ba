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

/** Make the run of a seed, an even one with one death, an odd one with two, on a communicator that
 * is destroyed. Ends the process with status 9 where it cannot go on.
 * @param  dies  false: nobody does
 * @return       how often this rank had to recover */
uint64_t kills_run(tamis_comm *comm, uint64_t seed, bool dies);

#endif
