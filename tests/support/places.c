/* SPDX-License-Identifier: MIT */
#include "tests/support/places.h"

#include <string.h>

uint32_t places_list(uint32_t nranks, uint32_t *who, bool *seated) {
    uint32_t places = 1, rank = 0;
    while (places < nranks)
        places *= 2;
    uint32_t own = 2 * nranks - places;
    memset(seated, 0, places * sizeof seated[0]);
    for (uint32_t r = 0; r < nranks; r++)
        seated[r < own ? r : own + 2 * (r - own)] = true;
    for (uint32_t v = 0; v < places; v++) {
        rank += v > 0 && seated[v];
        who[v] = rank;
    }
    return places;
}
