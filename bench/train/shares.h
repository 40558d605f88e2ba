/* SPDX-License-Identifier: MIT
 *
 * Who goes on with what another number of ranks left. What waits in the residuals must come to the
 * same mean over ranks, so with Q old and P new ones the new residuals sum to P / Q times what the
 * old ones did. Fewer ranks take several old residuals each, more ranks share one:
 *
 *     4 -> 2   (a + c) / 2   (b + d) / 2
 *     2 -> 4   a   b   a   b                  each of two takes half of twice a
 *     2 -> 3   3a/4   3b/2   3a/4
 */
#ifndef TAMIS_TRAIN_SHARES_H
#define TAMIS_TRAIN_SHARES_H

#include <stdint.h>

/** What the residual of `rank`, of `ranks`, takes of that of `old`, of `olds`: a factor; 0 where it
 * takes nothing. With as many ranks as before 1 of its own. */
double share_of(uint32_t rank, uint32_t ranks, uint32_t old, uint32_t olds);

#endif
