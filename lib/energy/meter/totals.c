/* SPDX-License-Identifier: MIT
 *
 * Totals of one stretch after another. The error of a phase's watts is the same in all of them, so
 * half widths of intervals add up as they are.
 */
#include "lib/energy/meter/meter.h"

static void add_share(tamis_energy_share *sum, const tamis_energy_share *more) {
    sum->seconds += more->seconds;
    sum->uj += more->uj;
    sum->low_uj += more->low_uj;
    sum->high_uj += more->high_uj;
    sum->group |= more->group;
    sum->method = more->method > sum->method ? more->method : sum->method;
}

void tam_totals_add(tamis_energy_totals *sum, const tamis_energy_totals *more) {
    sum->seconds += more->seconds;
    sum->steps += more->steps;
    sum->wire_bytes += more->wire_bytes;
    sum->known = sum->known || more->known;
    sum->uj += more->uj;
    sum->unattributed_uj += more->unattributed_uj;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        add_share(&sum->shares[p], &more->shares[p]);
    sum->grams += more->grams;
    memcpy(sum->missing, more->missing, sizeof sum->missing);
}

void tam_totals_join(tamis_energy_totals *sum, const tamis_energy_totals *earlier) {
    char missing[sizeof sum->missing];
    memcpy(missing, sum->missing, sizeof missing);
    tam_totals_add(sum, earlier);
    memcpy(sum->missing, missing, sizeof missing);
}

static void subtract_share(tamis_energy_share *from, const tamis_energy_share *less) {
    from->seconds -= less->seconds;
    from->uj -= less->uj;
    from->low_uj -= less->low_uj;
    from->high_uj -= less->high_uj;
}

void tam_totals_since(const tamis_energy_totals *before, const tamis_energy_totals *after,
                      tamis_energy_totals *out) {
    *out = *after;
    out->seconds -= before->seconds;
    out->steps -= before->steps;
    out->wire_bytes -= before->wire_bytes;
    out->uj -= before->uj;
    out->unattributed_uj -= before->unattributed_uj;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        subtract_share(&out->shares[p], &before->shares[p]);
    out->grams -= before->grams;
}

bool tam_totals_sound(const tamis_energy_totals *t) {
    int64_t sum = t->unattributed_uj;
    if (!(t->seconds >= 0.0) || t->uj < 0 || t->unattributed_uj < 0)
        return false;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        const tamis_energy_share *s = &t->shares[p];
        if (s->uj < 0 || s->uj > t->uj || !(s->seconds >= 0.0))
            return false;
        sum += s->uj;
        if (sum > t->uj)
            return false;
    }
    return sum == t->uj;
}
