/* SPDX-License-Identifier: MIT
 *
 * Sums of many numbers in an order that a block of a GPU and a CPU can both keep at full speed:
 * number i goes to lane i mod 256, each lane adds its own one after another, and the lanes fold:
 * in every warp of 32 halves are added to halves, then the eight warps likewise. On a device:
 * tam_block_fold (kernels/cuda/packets.cuh).
 */
#ifndef TAM_BASE_FOLD_H
#define TAM_BASE_FOLD_H

#include <stddef.h>

enum {
    TAM_FOLD_LANES = 256,
    TAM_FOLD_PIECE =
        2048 /* values whose squares are added before these sums are added in the same way */
};

double tam_fold_list(const double *list, size_t count);

/** The sum of squares: of each piece, then of these. */
double tam_fold_squares(const float *values, size_t count);

#endif
