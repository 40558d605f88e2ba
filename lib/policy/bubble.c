/* SPDX-License-Identifier: MIT */
#include "lib/policy/bubble.h"
#include "lib/policy/rules.h"

enum { HALVINGS = 100 }; /* more than the precision of a double */

typedef struct bubble {
    uint32_t nstages;
    const uint64_t *lengths, *even;
    const double *windows_s, *entry_s;
    uint64_t more; /* than an even budget, at most */
} bubble;

static bool bubble_usable(const bubble *b) {
    bool some_window = false;
    for (uint32_t s = 0; s < b->nstages; s++) {
        if (!(b->entry_s[s] > 0.0 && isfinite(b->entry_s[s]) && isfinite(b->windows_s[s])))
            return false;
        some_window = some_window || b->windows_s[s] > 0.0;
    }
    return some_window;
}

static tam_bounds bounds_of(const bubble *b, uint32_t s) {
    return tam_bucket_bounds(b->even[s], b->lengths[s], b->more);
}

/* How long after its window the exchange of so many entries ends. */
static double lateness(const bubble *b, uint32_t s, uint64_t entries) {
    return b->entry_s[s] * (double)entries - b->windows_s[s];
}

/* The number of entries whose exchange ends at the level. */
static double entries_at(const bubble *b, uint32_t s, double level) {
    tam_bounds bounds = bounds_of(b, s);
    return tam_rule_clip((level + b->windows_s[s]) / b->entry_s[s], (double)bounds.low,
                         (double)bounds.high);
}

static double find_level(const bubble *b, uint64_t k) {
    double low = lateness(b, 0, bounds_of(b, 0).low), high = low;
    for (uint32_t s = 0; s < b->nstages; s++) {
        double first = lateness(b, s, bounds_of(b, s).low);
        double last = lateness(b, s, bounds_of(b, s).high);
        low = first < low ? first : low;
        high = last > high ? last : high;
    }
    for (int i = 0; i < HALVINGS; i++) {
        double middle = 0.5 * low + 0.5 * high, sum = 0.0;
        for (uint32_t s = 0; s < b->nstages; s++)
            sum += entries_at(b, s, middle);
        if (sum < (double)k)
            low = middle;
        else
            high = middle;
    }
    return high;
}

void tam_bubble_divide(uint64_t k, uint32_t nstages, const uint64_t *lengths,
                       const double *windows_s, const double *entry_s, uint64_t *even,
                       uint64_t *budgets) {
    uint64_t more = tam_bucket_more(k, nstages, TAM_STAGE_TENTHS);
    bubble b = {nstages, lengths, even, windows_s, entry_s, more};
    tam_bucket_even(k, nstages, lengths, even);
    if (k < nstages || !bubble_usable(&b)) {
        memcpy(budgets, even, nstages * sizeof budgets[0]);
        return;
    }
    double level = find_level(&b, k);
    tam_rounding rounding = tam_rounding_begin(k, nstages, lengths, even, more);
    for (uint32_t s = 0; s < nstages; s++)
        budgets[s] = tam_rounding_next(&rounding, bounds_of(&b, s), entries_at(&b, s, level));
}
