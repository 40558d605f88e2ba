/* SPDX-License-Identifier: MIT
 *
 * Divides the residuals of a run among another number of ranks. Their mean over ranks must stay the
 * same, so with Q old and P new ranks the new residuals sum to P / Q times the old sum. Fewer ranks
 * take several old residuals each; more ranks share one:
 *
 *     4 -> 2   (a + c) / 2   (b + d) / 2
 *     2 -> 4   a   b   a   b                  each of two ranks takes half of 2 a
 *     2 -> 3   3a/4   3b/2   3a/4
 */
#ifndef TAMIS_TRAIN_FACTORS_H
#define TAMIS_TRAIN_FACTORS_H

#include <stdint.h>

/** The factor with which `rank`, of `ranks`, takes the residual of `old`, of `olds`; 0: it takes
 * nothing. With as many ranks as before it is 1 for its own residual. */
double factor_of(uint32_t rank, uint32_t ranks, uint32_t old, uint32_t olds);

#endif
