/* SPDX-License-Identifier: MIT
 *
 * What is said of steps that no rank applies, for NaN or Inf: where the first such entry was, and
 * how many of these steps came in a row. A loss scale is halved in each of them, so when they do
 * not end, the sentence must not be about the scale.
 */
#include "collectives/reducer/reducer.h"

#include <stdio.h>

enum { WARNS_AT = 10 }; /* and ten times as many, and so on */

void tam_nonfinite_record(tam_bucket *b, const tam_accumulated *seen) {
    if (seen->nonfinite > 0 && b->bad_segment == TAM_SEGMENT_UNKNOWN)
        b->bad_segment = seen->nonfinite_segment;
}

const char *tam_nonfinite_segment(const tamis_reducer *r) {
    for (uint32_t i = r->nbuckets; i-- > 0;) { /* the last one holds the first segments */
        const tam_bucket *b = &r->buckets[i];
        if (b->bad_segment != TAM_SEGMENT_UNKNOWN)
            return b->layout->names[b->bad_segment];
    }
    return NULL;
}

static bool is_power_of_ten(uint64_t x) {
    while (x > 0 && x % 10 == 0)
        x /= 10;
    return x == 1;
}

void tam_nonfinite_count(tamis_reducer *r, uint64_t step, const char *where) {
    if (r->bad_steps == 0) {
        r->bad_since = step;
        snprintf(r->bad_where, sizeof r->bad_where, "%s", where);
    }
    r->bad_steps++;
    char text[TAM_NONFINITE_TEXT];
    if (r->comm->rank == 0 && r->bad_steps >= WARNS_AT && is_power_of_ten(r->bad_steps) &&
        r->config.nonfinite == TAMIS_NONFINITE_SKIP)
        tam_log(TAM_WARN, "no rank applied step %llu%s; find the cause: it is not the loss scale",
                (unsigned long long)step, tam_nonfinite_row_text(r, text));
}

const char *tam_nonfinite_row_text(const tamis_reducer *r, char text[TAM_NONFINITE_TEXT]) {
    text[0] = '\0';
    if (r->bad_steps > 1)
        snprintf(text, TAM_NONFINITE_TEXT,
                 ", %llu steps in a row have NaN or Inf, from step %llu on, there %s",
                 (unsigned long long)r->bad_steps, (unsigned long long)r->bad_since, r->bad_where);
    return text;
}

tamis_status tam_nonfinite_say(const tamis_reducer *r, uint64_t step, uint64_t bad,
                               const char *where, const char *row) {
    if (r->config.nonfinite == TAMIS_NONFINITE_SKIP)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_NONFINITE,
                    "step %llu: entries that are NaN or Inf: %llu (%s); no rank applied the step%s",
                    (unsigned long long)step, (unsigned long long)bad, where, row);
}

void tam_nonfinite_forget(tamis_reducer *r) {
    r->bad_steps = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->buckets[i].bad_segment = TAM_SEGMENT_UNKNOWN;
}
