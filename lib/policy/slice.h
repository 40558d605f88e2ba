/* SPDX-License-Identifier: MIT
 *
 * What a rank holds of a bucket. If the ranks of a node divide a bucket among themselves, it is cut
 * into chunks and each chunk into G runs; slice g is the g-th run of every chunk. So a chunk of a
 * gradient is sent in place, its sum is computed in cache, and every slice has parts of all layers.
 * G = 2, runs of 3, 14 elements:
 *
 *     element   0 1 2 3 4 5 | 6 7 8 9 10 11 | 12 13
 *     slice     0 0 0 1 1 1 | 0 0 0 1  1  1 |  0  0
 *
 * This is ownership cyclic among the G ranks of a node, without rotation. With G = 1 a rank holds
 * the whole bucket in one run.
 */
#ifndef TAM_POLICY_SLICE_H
#define TAM_POLICY_SLICE_H

#include "lib/policy/grid.h"

enum { TAM_SLICE_RUN = 65536 }; /* elements of a run, at most, where there are several slices */

typedef struct tam_slice {
    uint32_t local, nlocal; /* g, G */
    tam_division division;  /* of the bucket: part g is slice g, in every step */
    tamis_layout *layout;   /* of the own slice: the parts of segments that it holds */
} tam_slice;

/** Errors: UNSUPPORTED if a slice would be empty, NOMEM. Close it in any case. */
tamis_status tam_slice_open(const tamis_layout *whole, uint32_t local, uint32_t nlocal,
                            tam_slice *out);
void tam_slice_close(tam_slice *slice);

/** The share of the own slice in k entries of the bucket, in proportion to its length. */
uint64_t tam_slice_share(const tam_slice *slice, uint64_t k);

#endif
