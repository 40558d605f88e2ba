/* SPDX-License-Identifier: MIT
 *
 * Totals of one stretch after another. The error of a phase's watts is the same in all of them, so
 * half widths of intervals add up as they are.
 */
#include "lib/energy/meter/meter.h"

#include <stdio.h>

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

/* What an earlier part lacked is still missing. */
static void join_missing(const tamis_energy_totals *earlier, char missing[TAMIS_ENERGY_TEXT]) {
    if (missing[0] || (earlier->known && !earlier->missing[0]))
        return;
    snprintf(missing, TAMIS_ENERGY_TEXT, "of an earlier part: %.*s", TAMIS_ENERGY_TEXT - 32,
             earlier->missing[0] ? earlier->missing : "nothing is known");
}

void tam_totals_join(tamis_energy_totals *sum, const tamis_energy_totals *earlier) {
    char missing[sizeof sum->missing];
    memcpy(missing, sum->missing, sizeof missing);
    tam_totals_add(sum, earlier);
    join_missing(earlier, missing);
    memcpy(sum->missing, missing, sizeof missing);
}

void tam_totals_explain(tamis_energy_totals *t, uint32_t ndomains) {
    if (!t->known && !t->missing[0])
        snprintf(t->missing, sizeof t->missing, "%s",
                 ndomains == 0 ? "no source of energy is open" : "no counter has been read yet");
}

void tam_seen_add(tam_seen *seen, const tamis_energy_totals *chunk) {
    seen->known = seen->known || chunk->known;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        const tamis_energy_share *s = &chunk->shares[p];
        seen->groups[p] |= s->group;
        seen->methods[p] = s->method > seen->methods[p] ? (uint8_t)s->method : seen->methods[p];
    }
}

static void subtract_share(tamis_energy_share *from, const tamis_energy_share *less,
                           const tam_seen *seen, uint32_t phase) {
    from->seconds -= less->seconds;
    from->uj -= less->uj;
    from->low_uj -= less->low_uj;
    from->high_uj -= less->high_uj;
    from->group = seen->groups[phase];
    from->method = from->uj != 0 ? (tamis_energy_method)seen->methods[phase] : TAMIS_ENERGY_NONE;
}

void tam_totals_since(const tam_past *before, const tamis_energy_totals *after,
                      tamis_energy_totals *out) {
    const tamis_energy_totals *less = &before->totals;
    *out = *after;
    out->seconds -= less->seconds;
    out->steps -= less->steps;
    out->wire_bytes -= less->wire_bytes;
    out->known = before->seen.known;
    out->uj -= less->uj;
    out->unattributed_uj -= less->unattributed_uj;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++)
        subtract_share(&out->shares[p], &less->shares[p], &before->seen, p);
    out->grams -= less->grams;
}

bool tam_totals_sound(const tamis_energy_totals *t) {
    int64_t sum = t->unattributed_uj;
    if (!(t->seconds >= 0.0 && t->seconds < 1e12) || t->uj < 0 || t->uj > INT64_MAX / 4 ||
        sum < 0 || sum > t->uj || !memchr(t->missing, '\0', sizeof t->missing))
        return false;
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        const tamis_energy_share *s = &t->shares[p];
        if (s->uj < 0 || s->uj > t->uj - sum || !(s->seconds >= 0.0 && s->seconds < 1e12) ||
            s->low_uj < 0 || s->low_uj > s->uj || s->high_uj < s->uj || s->high_uj > INT64_MAX / 4)
            return false;
        sum += s->uj;
    }
    return sum == t->uj;
}
