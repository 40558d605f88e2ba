/* SPDX-License-Identifier: MIT */
#include "lib/policy/slices.h"

#include "lib/policy/plan.h"

uint32_t tam_slices_reverse(uint32_t place, uint32_t nplaces) {
    uint32_t out = 0;
    for (uint32_t bit = 1; bit < nplaces; bit *= 2, place /= 2)
        out = 2 * out + place % 2;
    return out;
}

/* Slices before this one whose places are below `own`. For every bit of `slice` that is set there
 * is a run of smaller numbers: they share the bits above it, lack it, and have any bits below. With
 * the bits reversed, these are every `step`-th place from `first` on. */
static uint64_t count_own(uint32_t slice, uint32_t nplaces, uint32_t own) {
    uint64_t count = 0;
    if (slice == nplaces)
        return own;
    for (uint32_t bit = nplaces / 2; bit > 0; bit /= 2) {
        uint32_t step = nplaces / bit, first = tam_slices_reverse(slice / (2 * bit), step / 2);
        if ((slice & bit) != 0 && own > first)
            count += (own - first + step - 1) / step;
    }
    return count;
}

size_t tam_slices_begin(size_t units, uint32_t nranks, uint32_t slice) {
    uint32_t nplaces = tam_plan_places(nranks), own = 2 * nranks - nplaces;
    uint64_t before = slice + count_own(slice, nplaces, own);
    return (size_t)((unsigned __int128)units * before / ((uint64_t)nplaces + own));
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

uint32_t tam_slices_of(size_t count, size_t block, uint32_t nranks, uint32_t rank,
                       tam_owned out[2]) {
    const tam_plan plan = {.nranks = nranks, .nplaces = tam_plan_places(nranks)};
    size_t units = count / block + (count % block > 0);
    uint32_t places[2], nplaces = tam_plan_played(&plan, rank, places);
    for (uint32_t i = 0; i < nplaces; i++) {
        uint32_t slice = tam_slices_reverse(places[i], plan.nplaces);
        out[i].begin = least(block * tam_slices_begin(units, nranks, slice), count);
        out[i].length =
            least(block * tam_slices_begin(units, nranks, slice + 1), count) - out[i].begin;
    }
    return nplaces;
}
