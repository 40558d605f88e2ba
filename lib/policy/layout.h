/* SPDX-License-Identifier: MIT
 *
 * What the flat vector means: segments one after another.
 */
#ifndef TAM_POLICY_LAYOUT_H
#define TAM_POLICY_LAYOUT_H

#include "lib/base/base.h"

#define TAM_LENGTH_MAX (UINT64_C(0xffffffff) - 0xffff) /* so that begin + length fits 32 bits */

struct tamis_layout {
    uint64_t length;
    uint32_t nsegments;
    uint32_t *begins; /* [nsegments + 1]; the last is the length */
    char **names;
    uint64_t hash;          /* of the lengths, not of the names */
    uint32_t *rows;         /* [nsegments] length of a row; 0: an ordinary segment */
    uint32_t nrow_segments; /* segments that have rows */
    uint64_t ordinary;      /* elements of the others */
    uint64_t rows_hash;     /* of all row lengths; 0: there are none */
};

/** A deep copy of some of its segments, so that a reducer outlives its layout. */
tamis_status tam_layout_part(const tamis_layout *from, uint32_t first_segment, uint32_t nsegments,
                             tamis_layout **out);

static inline uint32_t tam_segment_length(const tamis_layout *layout, uint32_t segment) {
    return layout->begins[segment + 1] - layout->begins[segment];
}

/** Whether a segment is exchanged by sparse rows. */
static inline bool tam_segment_has_sparse_rows(const tamis_layout *layout, uint32_t segment) {
    return layout->rows[segment] > 0;
}

#endif
