/* SPDX-License-Identifier: MIT
 *
 * Slices of a vector. Place v owns the slice whose number is v with its bits reversed:
 *
 *     slice   0 1 2 3 4 5 6 7
 *     place   0 4 2 6 1 5 3 7
 *
 * so that the places that are equal modulo 2^j, which a stage tells apart, own one run of memory. A
 * place that a rank plays besides its own makes two slices of half the length, so that all ranks
 * sum as much. Whoever sums, and so keeps what rounding takes, does not depend on the plan.
 */
#include "collectives/coll/coll.h"

static uint32_t reverse(uint32_t place, uint32_t nplaces) {
    uint32_t out = 0;
    for (uint32_t bit = 1; bit < nplaces; bit *= 2, place /= 2)
        out = 2 * out + place % 2;
    return out;
}

tamis_status tam_coll_weigh(tam_coll *coll) {
    uint32_t places = coll->plan.nplaces;
    coll->weights = tam_alloc_array((size_t)places + 1, sizeof coll->weights[0]);
    if (!coll->weights)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the slices of %u ranks", coll->plan.nranks);
    for (uint32_t s = 0; s < places; s++)
        coll->weights[s + 1] =
            coll->weights[s] + (reverse(s, places) < tam_plan_own(&coll->plan) ? 2 : 1);
    return TAMIS_OK;
}

static size_t begin_of(const tam_coll *coll, uint32_t slice) {
    return (size_t)((unsigned __int128)coll->bytes * coll->weights[slice] /
                    coll->weights[coll->plan.nplaces]);
}

size_t tam_coll_slices(const tam_coll *coll, uint32_t place, size_t *length) {
    uint32_t modulus = coll->fused ? coll->stride : coll->stride * coll->radix;
    uint32_t each = coll->plan.nplaces / modulus;
    uint32_t first = reverse(place % modulus, modulus) * each;
    size_t begin = begin_of(coll, first);
    *length = begin_of(coll, first + each) - begin;
    return begin;
}
