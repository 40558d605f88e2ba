/* SPDX-License-Identifier: MIT */
#include "lib/policy/strided.h"

/* Both walk run by run: one division per run that has entries, none per element. */

void tam_strided_number(const tam_strided *strided, const uint32_t *elements, size_t count,
                        uint32_t *positions) {
    uint64_t end = strided->first + strided->run, shift = strided->first;
    for (size_t i = 0; i < count; i++) {
        if (elements[i] >= end) {
            uint64_t run = (elements[i] - strided->first) / strided->stride;
            shift = strided->first + run * (strided->stride - strided->run);
            end = strided->first + run * strided->stride + strided->run;
        }
        positions[i] = (uint32_t)(elements[i] - shift);
    }
}

void tam_strided_locate(const tam_strided *strided, const uint32_t *positions, size_t count,
                        uint32_t *elements) {
    uint64_t end = strided->run, shift = strided->first;
    for (size_t i = 0; i < count; i++) {
        if (positions[i] >= end) {
            uint64_t run = positions[i] / strided->run;
            shift = strided->first + run * (strided->stride - strided->run);
            end = (run + 1) * strided->run;
        }
        elements[i] = (uint32_t)(positions[i] + shift);
    }
}
