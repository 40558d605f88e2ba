/* SPDX-License-Identifier: MIT */
#include "tests/support/vranks.h"

#include <string.h>

uint32_t vranks_list(uint32_t nranks, uint32_t *who, bool *primary) {
    uint32_t vranks = 1, rank = 0;
    while (vranks < nranks)
        vranks *= 2;
    uint32_t own = 2 * nranks - vranks;
    memset(primary, 0, vranks * sizeof primary[0]);
    for (uint32_t r = 0; r < nranks; r++)
        primary[r < own ? r : own + 2 * (r - own)] = true;
    for (uint32_t v = 0; v < vranks; v++) {
        rank += v > 0 && primary[v];
        who[v] = rank;
    }
    return vranks;
}
