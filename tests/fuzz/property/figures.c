/* SPDX-License-Identifier: MIT
 *
 * Statistics and counts of a step, and the comparison of two runs that must be the same.
 */
#include "tests/fuzz/property/property.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>

static bool fail(char *failure, uint32_t step, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool fail(char *failure, uint32_t step, const char *format, ...) {
    int used = snprintf(failure, SENTENCE, "step %u: ", step);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure + used, SENTENCE - (size_t)used, format, arguments);
    va_end(arguments);
    return false;
}

#define NEEDS(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return fail(failure, step, __VA_ARGS__);                                               \
    } while (0)

#define WIDE(x) ((unsigned long long)(x))

static bool is_kind(const tamis_bucket *b, const char *kind) {
    return strcmp(b->exchange, kind) == 0;
}

/* -- counts ----------------------------------------------------------------------------------- */

static bool counts_exactly(const fuzz_case *c) {
    bool known = fuzz_is(c, 2, "exact") || fuzz_is(c, 2, "predict");
    return known && (fuzz_is(c, 0, "cyclic") || fuzz_is(c, 0, "rotate") || fuzz_is(c, 0, "leader"));
}

static uint64_t count_within(const common *all, uint64_t count, const tamis_bucket *b) {
    uint64_t found = 0;
    for (uint64_t i = 0; i < count; i++)
        found += all->indices[i] >= b->begin && all->indices[i] < b->begin + b->length;
    return found;
}

/* k follows the density, and every bucket sends as many entries as it announced. */
static bool check_counts(const record *r, uint32_t step, char failure[SENTENCE]) {
    const common *all = &r->common[step];
    const tamis_stats *s = &r->moments[step][0].stats;
    uint64_t sum = 0, ordinary = fuzz_ordinary(r->fuzz), n = 0;
    bool dense = false;
    for (uint32_t i = 0; i < all->nbuckets; i++) {
        const tamis_bucket *b = &all->buckets[i];
        if (is_kind(b, "sparse-rows"))
            continue;
        dense = dense || is_kind(b, "dense");
        sum += b->target;
        n += b->length;
        if (!s->skipped && all->listed && counts_exactly(r->fuzz)) {
            uint64_t found = count_within(all, r->moments[step][0].count, b);
            NEEDS(found == b->target, "bucket %u sent %llu entries, not %llu", i, WIDE(found),
                  WIDE(b->target));
        }
    }
    bool whole = fuzz_is(r->fuzz, 3, "quantized");
    uint64_t k = whole ? ordinary : (uint64_t)(all->density * (double)ordinary);
    k = k > 0 ? k : ordinary > 0;
    NEEDS(n == ordinary, "the buckets hold %llu of %llu", WIDE(n), WIDE(ordinary));
    NEEDS(dense || sum == k, "the buckets are to send %llu, density %g of %llu is %llu", WIDE(sum),
          all->density, WIDE(ordinary), WIDE(k));
    NEEDS(s->target == sum, "stats.target is %llu, the buckets said %llu", WIDE(s->target),
          WIDE(sum));
    NEEDS(s->skipped || !counts_exactly(r->fuzz) || s->selected == sum,
          "selected %llu, promised %llu", WIDE(s->selected), WIDE(sum));
    return true;
}

/* -- statistics ------------------------------------------------------------------------------- */

static uint64_t count_listed(const record *r, uint32_t step) {
    const common *all = &r->common[step];
    uint64_t count = r->moments[step][0].count, found = count;
    for (uint32_t i = 0; i < all->nbuckets && all->listed; i++) {
        if (is_kind(&all->buckets[i], "sparse-rows"))
            found -= count_within(all, count, &all->buckets[i]);
    }
    return found;
}

static bool same_everywhere(const record *r, uint32_t step, char failure[SENTENCE]) {
    const tamis_stats *a = &r->moments[step][0].stats;
    for (uint32_t rank = 1; rank < r->fuzz->nranks; rank++) {
        const tamis_stats *b = &r->moments[step][rank].stats;
        NEEDS(a->selected == b->selected && a->target == b->target && a->deferred == b->deferred &&
                  a->sent_max == b->sent_max && a->candidates == b->candidates &&
                  a->rescans == b->rescans && a->nonfinite == b->nonfinite &&
                  a->skipped == b->skipped,
              "statistics of all ranks differ between rank 0 and %u", rank);
    }
    return true;
}

static bool check_selects(const record *r, uint32_t step, char failure[SENTENCE]) {
    const fuzz_case *c = r->fuzz;
    const tamis_stats *s = &r->moments[step][0].stats;
    uint64_t sum = 0, most = 0;
    for (uint32_t rank = 0; rank < c->nranks; rank++) {
        uint64_t sent = r->moments[step][rank].stats.sent;
        sum += sent;
        most = sent > most ? sent : most;
    }
    NEEDS(s->sent_max == most, "sent_max is %llu, the most is %llu", WIDE(s->sent_max), WIDE(most));
    if (s->skipped || !r->common[step].listed)
        return true;
    bool common_groups = fuzz_is(c, 0, "bins");
    NEEDS(common_groups || s->selected <= sum, "selected %llu of %llu entries", WIDE(s->selected),
          WIDE(sum));
    if (fuzz_is(c, 0, "all"))
        NEEDS(fuzz_is(c, 3, "balanced-pairs") || most <= s->selected,
              "a rank sent %llu, the union has %llu", WIDE(most), WIDE(s->selected));
    else
        NEEDS(common_groups ? sum <= s->selected : sum == s->selected,
              "owners sent %llu, the union has %llu", WIDE(sum), WIDE(s->selected));
    if ((fuzz_is(c, 2, "exact") || fuzz_is(c, 2, "predict")) && c->config.rows_capacity == 0)
        NEEDS(s->deferred == 0, "%llu deferred, and the count is exact", WIDE(s->deferred));
    return true;
}

/* -- norms ------------------------------------------------------------------------------------ */

static bool near(double a, double b, double scale) {
    return fabs(a - b) <= 1e-3 * scale + 1e-12;
}

/* For flat exchanges, without numbers whose squares overflow or vanish. */
static bool check_norms(const record *r, uint32_t step, const model *m, char failure[SENTENCE]) {
    const fuzz_case *c = r->fuzz;
    if (c->data == DATA_HARD || c->config.ranks_per_node > 1 || c->updates)
        return true;
    for (uint32_t rank = 0; rank < c->nranks; rank++) {
        const moment *now = &r->moments[step][rank];
        double acc = 0.0, rest = 0.0;
        for (uint32_t i = 0; i < r->common[step].nbuckets; i++) {
            const tamis_bucket *b = &r->common[step].buckets[i];
            bool selects = !is_kind(b, "dense") && !is_kind(b, "sparse-rows");
            for (uint64_t e = b->begin; selects && e < b->begin + b->length; e++) {
                acc += (double)m->acc[rank][e] * m->acc[rank][e];
                rest += (double)now->residual[e] * now->residual[e];
            }
        }
        NEEDS(near(now->stats.acc_norm, sqrt(acc), sqrt(acc)), "rank %u: acc_norm is %g, not %g",
              rank, now->stats.acc_norm, sqrt(acc));
        /* rounding sums may leave more on their owner than it had */
        NEEDS(near(now->stats.residual_norm * now->stats.residual_norm, rest, acc + rest),
              "rank %u: residual_norm is %g, not %g", rank, now->stats.residual_norm, sqrt(rest));
    }
    return true;
}

/* -- a rank ----------------------------------------------------------------------------------- */

static bool check_rank(const record *r, uint32_t step, uint32_t rank, char failure[SENTENCE]) {
    const fuzz_case *c = r->fuzz;
    const moment *m = &r->moments[step][rank];
    const tamis_stats *s = &m->stats;
    uint64_t ordinary = fuzz_ordinary(c);
    double density = (double)s->selected / (double)(ordinary ? ordinary : 1);
    uint64_t before = step ? r->moments[step - 1][rank].stats.wire_bytes_total : 0;
    NEEDS(s->steps == step + 1u, "stats.steps is %llu", WIDE(s->steps));
    NEEDS(s->length == fuzz_length(c), "stats.length is %llu", WIDE(s->length));
    NEEDS(s->density == density, "stats.density is %.17g, not %.17g", s->density, density);
    NEEDS((s->wire_bytes > 0) == (c->nranks > 1), "%llu wire_bytes of %u ranks",
          WIDE(s->wire_bytes), c->nranks);
    NEEDS(s->wire_bytes_total == before + s->wire_bytes, "wire_bytes_total is %llu, not %llu",
          WIDE(s->wire_bytes_total), WIDE(before + s->wire_bytes));
    NEEDS(s->skipped <= 1 && (m->status == TAMIS_E_NONFINITE) ==
                                 (s->skipped && c->config.nonfinite == TAMIS_NONFINITE_ERROR),
          "skipped is %llu with %s", WIDE(s->skipped), tamis_status_name(m->status));
    NEEDS(!s->skipped || (c->config.nonfinite != TAMIS_NONFINITE_DROP && s->nonfinite > 0),
          "skipped, with %llu bad entries", WIDE(s->nonfinite));
    NEEDS(s->skipped || c->config.nonfinite == TAMIS_NONFINITE_DROP || s->nonfinite == 0,
          "applied, with %llu bad entries", WIDE(s->nonfinite));
    return true;
}

/* If an accumulate pass sees every bad entry, all of them are counted. */
static bool check_bad(const record *r, uint32_t step, const model *m, char failure[SENTENCE]) {
    uint64_t said = r->moments[step][0].stats.nonfinite;
    for (uint32_t i = 0; i < r->common[step].nbuckets; i++) {
        if (is_kind(&r->common[step].buckets[i], "dense"))
            return true;
    }
    bool sums = r->fuzz->data == DATA_HARD && m->bad == 0; /* bad sums have no exact count */
    NEEDS(sums || said >= m->bad, "stats.nonfinite is %llu, there were %llu", WIDE(said),
          WIDE(m->bad));
    NEEDS(r->fuzz->data == DATA_HARD || said == m->bad || r->fuzz->updates,
          "stats.nonfinite is %llu of finite data", WIDE(said));
    return true;
}

bool fuzz_check_figures(const record *r, uint32_t step, const model *m, char failure[SENTENCE]) {
    uint64_t selected = r->moments[step][0].stats.selected;
    for (uint32_t rank = 0; rank < r->fuzz->nranks; rank++) {
        if (!check_rank(r, step, rank, failure))
            return false;
    }
    NEEDS(!r->common[step].listed || selected == count_listed(r, step),
          "selected %llu, the list has %llu", WIDE(selected), WIDE(count_listed(r, step)));
    return same_everywhere(r, step, failure) && check_counts(r, step, failure) &&
           check_selects(r, step, failure) && check_norms(r, step, m, failure) &&
           check_bad(r, step, m, failure);
}

/* -- twins ------------------------------------------------------------------------------------ */

static bool check_twin_figures(const tamis_stats *a, const tamis_stats *b, uint32_t step,
                               char failure[SENTENCE]) {
    NEEDS(a->selected == b->selected, "selected %llu and %llu", WIDE(a->selected),
          WIDE(b->selected));
    NEEDS(a->sent == b->sent && a->sent_max == b->sent_max && a->target == b->target,
          "sent %llu and %llu", WIDE(a->sent), WIDE(b->sent));
    NEEDS(a->deferred == b->deferred && a->candidates == b->candidates && a->rescans == b->rescans,
          "candidates %llu and %llu, rescans %llu and %llu", WIDE(a->candidates),
          WIDE(b->candidates), WIDE(a->rescans), WIDE(b->rescans));
    NEEDS(a->nonfinite == b->nonfinite && a->skipped == b->skipped,
          "nonfinite %llu and %llu, skipped %llu and %llu", WIDE(a->nonfinite), WIDE(b->nonfinite),
          WIDE(a->skipped), WIDE(b->skipped));
    NEEDS(a->threshold == b->threshold && a->acc_norm == b->acc_norm &&
              a->residual_norm == b->residual_norm,
          "threshold %.17g and %.17g, norms %.17g and %.17g, %.17g and %.17g", a->threshold,
          b->threshold, a->acc_norm, b->acc_norm, a->residual_norm, b->residual_norm);
    return true;
}

static bool check_twin_moment(const moment *a, const moment *b, uint32_t step, uint32_t rank,
                              char failure[SENTENCE]) {
    NEEDS(a->status == b->status, "twin: rank %u: %s and %s", rank, tamis_status_name(a->status),
          tamis_status_name(b->status));
    NEEDS(a->count == b->count, "twin: rank %u: %llu and %llu entries", rank, WIDE(a->count),
          WIDE(b->count));
    NEEDS(a->result_hash == b->result_hash, "twin: rank %u: the results differ", rank);
    NEEDS(a->gradient_hash == b->gradient_hash, "twin: rank %u: the gradients differ", rank);
    NEEDS(a->residual_hash == b->residual_hash, "twin: rank %u: the residuals differ", rank);
    NEEDS(a->moments_hash == b->moments_hash, "twin: rank %u: the moments differ", rank);
    return check_twin_figures(&a->stats, &b->stats, step, failure);
}

bool fuzz_check_twin(const record *a, const record *b, char failure[SENTENCE]) {
    uint32_t step = 0;
    NEEDS(a->refused == b->refused, "the twin is %srefused", b->refused ? "" : "not ");
    for (; step < a->nsteps; step++) {
        for (uint32_t rank = 0; rank < a->fuzz->nranks; rank++) {
            if (!check_twin_moment(&a->moments[step][rank], &b->moments[step][rank], step, rank,
                                   failure))
                return false;
        }
    }
    return true;
}

static uint64_t stir(uint64_t digest, uint64_t word) {
    return fuzz_mix(digest ^ word) + word;
}

static uint64_t stir_moment(uint64_t digest, const moment *m) {
    const double norms[] = {m->stats.acc_norm, m->stats.residual_norm};
    const uint64_t words[] = {(uint64_t)m->status, m->count,         m->result_hash,
                              m->gradient_hash,    m->residual_hash, m->moments_hash};
    uint64_t bits[2];
    memcpy(bits, norms, sizeof bits);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        digest = stir(digest, words[i]);
    return stir(stir(digest, bits[0]), bits[1]);
}

uint64_t fuzz_digest(const record *r) {
    uint64_t digest = r->fuzz->number;
    for (uint32_t rank = 0; rank < r->fuzz->nranks; rank++)
        digest = stir(digest, (uint64_t)r->created[rank]);
    for (uint32_t step = 0; step < r->nsteps; step++) {
        for (uint32_t rank = 0; rank < r->fuzz->nranks; rank++)
            digest = stir_moment(digest, &r->moments[step][rank]);
    }
    return digest;
}
