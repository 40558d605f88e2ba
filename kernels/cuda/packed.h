/* SPDX-License-Identifier: MIT
 *
 * Lists that travel packed, as host and kernels describe them. C11 and CUDA C++.
 */
#ifndef TAM_CUDA_PACKED_H
#define TAM_CUDA_PACKED_H

#include "kernels/cuda/view.h"
#include "lib/policy/strided.h"

enum { TAM_RICE_PIECE = 4 * TAM_BLOCK_THREADS }; /* bytes of codes: a word for each thread */

/** A piece of the codes of a list (rice.cuh). */
typedef struct tam_cuda_rice {
    unsigned char skips[32]; /* by what this piece skips, what the next one does */
    uint64_t lows;           /* of it; then, of those before it: the sum of low bits, */
    uint32_t entries;        /* and how many */
    uint32_t skip;           /* bits at its beginning that belong to a code before it */
} tam_cuda_rice;

/** Lists whose indices do not travel as u32. */
typedef struct tam_cuda_packed {
    uint32_t index_codec; /* a tamis_index_codec; AUTO: u32 */
    uint64_t span;
    const tam_strided *parts; /* [nranks] */
    uint32_t *lists;          /* [nranks * capacity] elements */
    uint32_t *offsets;        /* block16: [nranks * (blocks + 1)] entries before each block */
    uint32_t *zeros;          /* rice: [pieces of the own list] zeros before each */
    tam_cuda_rice *pieces;    /* rice: [nranks * tam_rice_pieces] */
    unsigned char *skips;     /* rice: [TAM_BLOCK_THREADS] of each piece, what its words skip */
} tam_cuda_packed;

/** Pieces of so many bytes of codes: one at least, the last perhaps of none. */
TAM_SHARED uint32_t tam_rice_pieces(uint32_t bytes) {
    return bytes / TAM_RICE_PIECE + 1;
}

#endif
