/* SPDX-License-Identifier: MIT
 *
 * The elements in which one rank may select, numbered without gaps. Messages carry these positions:
 * their gaps are P times smaller than those between elements.
 *
 *     element     0 1 2 3 4 5 6 7 8 9 10 11 12 13     P = 3, blocks of 2, part 1
 *     part        0 0 1 1 2 2 0 0 1 1  2  2  0  0
 *     position        0 1         2 3
 *
 * C11 and CUDA C++.
 */
#ifndef TAM_POLICY_STRIDED_H
#define TAM_POLICY_STRIDED_H

#include "lib/base/numbers.h"

#include <stddef.h>

/** Runs of `run` elements, one every `stride`, the last perhaps shorter. */
typedef struct tam_strided {
    uint64_t first; /* element of position 0 */
    uint64_t run, stride;
    uint64_t length; /* elements of all runs */
} tam_strided;

TAM_SHARED uint64_t tam_strided_position(const tam_strided *strided, uint64_t element) {
    uint64_t run = (element - strided->first) / strided->stride;
    return element - strided->first - run * (strided->stride - strided->run);
}

/** @param  position  may be the length or more: an element that is past all of them */
TAM_SHARED uint64_t tam_strided_element(const tam_strided *strided, uint64_t position) {
    uint64_t run = position / strided->run;
    return position + strided->first + run * (strided->stride - strided->run);
}

/** @param  elements  [in]  ascending, all of this part; may be `positions` */
void tam_strided_number(const tam_strided *strided, const uint32_t *elements, size_t count,
                        uint32_t *positions);

/** @param  positions  [in]  ascending, below the length; may be `elements` */
void tam_strided_locate(const tam_strided *strided, const uint32_t *positions, size_t count,
                        uint32_t *elements);

#endif
