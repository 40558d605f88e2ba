/* SPDX-License-Identifier: MIT
 *
 * What must hold for every step: replicas, the list, the gradient, skipped steps, and that whole
 * numbers add up.
 */
#include "tests/fuzz/property/look.h"

#include "lib/base/half.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/overlap.h>

static float nodes[MOST_RANKS][MOST_LENGTH]; /* residuals of nodes */
static bool member[MOST_LENGTH];             /* entry is in the result */
static float value[MOST_LENGTH];             /* of the result; 0 elsewhere */
static bool leaves[MOST_LENGTH];             /* entry is of a row that is listed */
static double owed[MOST_LENGTH];             /* gradients less what was applied, over all steps */

bool look_fail(look *l, const char *format, ...) {
    int used = snprintf(l->failure, SENTENCE, "step %u: ", l->step);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(l->failure + used, SENTENCE - (size_t)used, format, arguments);
    va_end(arguments);
    return false;
}

bool look_is_kind(const tamis_bucket *b, const char *kind) {
    return strcmp(b->exchange, kind) == 0;
}

/* -- replicas --------------------------------------------------------------------------------- */

static bool check_replicas(look *l) {
    const moment *first = &l->r->moments[l->step][0];
    for (uint32_t r = 1; r < l->c->nranks; r++) {
        const moment *m = &l->r->moments[l->step][r];
        if (m->status != first->status)
            return look_fail(l, "rank 0 got %s, rank %u %s", tamis_status_name(first->status), r,
                             tamis_status_name(m->status));
        if (m->count != first->count || m->result_hash != first->result_hash)
            return look_fail(l, "the result of rank %u is not that of rank 0", r);
        if (l->c->config.output == TAMIS_OUTPUT_DENSE && m->gradient_hash != first->gradient_hash)
            return look_fail(l, "the gradient of rank %u is not that of rank 0", r);
    }
    return true;
}

static bool check_finite(look *l) {
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        for (uint64_t i = 0; i < l->n; i++) {
            if (!isfinite(l->after[v][i]))
                return look_fail(l, "residual[%llu] of %u is %g", (unsigned long long)i, v,
                                 (double)l->after[v][i]);
        }
    }
    return true;
}

/* -- the list --------------------------------------------------------------------------------- */

/* Without a list an entry is in the result if a residual has changed there. */
static bool read_unlisted(look *l) {
    for (uint64_t i = 0; i < l->n; i++) {
        bool rows = look_is_kind(fuzz_bucket(l->r, l->step, i), "sparse-rows");
        value[i] = l->all->gradient[i];
        member[i] = rows || value[i] != 0.0f;
        for (uint32_t v = 0; v < l->m.nranks; v++)
            member[i] = member[i] || l->after[v][i] != l->m.acc[v][i];
    }
    return true;
}

static bool read_list(look *l) {
    uint64_t count = l->r->moments[l->step][0].count;
    memset(member, 0, (size_t)l->n);
    memset(value, 0, (size_t)l->n * sizeof value[0]);
    if (!l->all->listed)
        return l->skipped || read_unlisted(l);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t at = l->all->indices[i];
        if (at >= l->n || (i > 0 && at <= l->all->indices[i - 1]))
            return look_fail(l, "index[%llu] = %u of %llu does not ascend", (unsigned long long)i,
                             at, (unsigned long long)l->n);
        member[at] = true;
        value[at] = l->all->values[i];
        if (!isfinite(value[at]))
            return look_fail(l, "the result at %u is %g", at, (double)value[at]);
    }
    return true;
}

/* Dense output is the list, rounded, and zero elsewhere. */
static bool check_gradient(look *l) {
    tamis_dtype type = l->c->config.grad_dtype;
    for (uint64_t i = 0; i < l->n && l->c->config.output == TAMIS_OUTPUT_DENSE; i++) {
        uint16_t half[2];
        float rounded;
        tam_narrow(&value[i], 1, type, half);
        tam_widen(type, half, 1, &rounded);
        if (l->all->gradient[i] != rounded)
            return look_fail(l, "gradient[%llu] is %.9g, the result there is %.9g",
                             (unsigned long long)i, (double)l->all->gradient[i], (double)rounded);
    }
    return true;
}

/* -- a step ----------------------------------------------------------------------------------- */

/* Whether something was not finite, or may not have been. */
static bool has_cause(const look *l) {
    if (l->m.bad > 0 || l->m.early_bad > 0)
        return true;
    for (uint64_t i = 0; i < l->n; i++) {
        if (look_may_overflow(l, i))
            return true;
    }
    return false;
}

static bool check_skipped(look *l) {
    if (!has_cause(l))
        return look_fail(l, "skipped, and everything is finite");
    if (l->r->moments[l->step][0].count != 0)
        return look_fail(l, "skipped, and the result has entries");
    for (uint64_t i = 0; i < l->n; i++) {
        if (look_is_kind(fuzz_bucket(l->r, l->step, i), "dense") || fuzz_is(l->c, 3, "dense"))
            continue; /* drops what it held, or keeps part of it */
        for (uint32_t v = 0; v < l->m.nranks; v++) {
            float after = l->after[v][i], acc = l->m.acc[v][i];
            if (after != acc && !(after == 0.0f && look_may_overflow(l, i)))
                return look_fail(l, "skipped: rank %u had %.9g at %llu and keeps %.9g", v,
                                 (double)acc, (unsigned long long)i, (double)after);
        }
    }
    return true;
}

static bool check_applied(look *l) {
    bool drops = l->c->config.nonfinite == TAMIS_NONFINITE_DROP;
    if (!drops && (l->m.bad > 0 || l->m.early_bad > 0))
        return look_fail(l, "%llu bad entries, and the step was applied",
                         (unsigned long long)(l->m.bad + l->m.early_bad));
    for (uint64_t i = 0; i < l->n; i++) {
        if (!look_entry(l, fuzz_bucket(l->r, l->step, i), i))
            return false;
    }
    return true;
}

/* -- all steps -------------------------------------------------------------------------------- */

static void open_look(look *l, uint32_t step) {
    l->step = step;
    l->all = &l->r->common[step];
    l->skipped = l->r->moments[step][0].stats.skipped != 0;
    fuzz_model(l->r, step, &l->m);
    look_rows(l, leaves);
    l->largest = 0.0;
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        for (uint64_t i = 0; i < l->n; i++) {
            double size = fabs((double)l->m.acc[v][i]);
            l->largest = size > l->largest ? size : l->largest; /* fmax: GCC 12 for arm64 stops */
        }
    }
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        l->after[v] = l->r->moments[step][v].residual;
        if (l->m.nranks == l->c->nranks)
            continue;
        fuzz_residual(l->r, step, v, nodes[v]);
        l->after[v] = nodes[v];
    }
}

/* Whether the case has only whole numbers, without rounding: checks then need no model. */
static bool is_exact(const look *l) {
    const tamis_reducer_config *o = &l->c->config;
    bool divided = o->op == TAMIS_OP_MEAN && (l->c->nranks & (l->c->nranks - 1)) != 0;
    return l->c->data == DATA_WHOLE && !l->c->updates && o->residual_decay == 1.0 && !divided &&
           (l->all->listed || o->grad_dtype == TAMIS_DTYPE_FLOAT32) && !look_is_mixed(l);
}

static void add_owed(const look *l) {
    static float grad[MOST_LENGTH];
    uint32_t micros = l->c->steps[l->step].micros;
    double by = l->c->config.op == TAMIS_OP_MEAN ? l->c->nranks : 1.0;
    for (uint32_t rank = 0; rank < l->c->nranks; rank++) {
        for (uint32_t micro = fuzz_accumulates(l->c) ? 0 : micros; micro <= micros; micro++) {
            fuzz_gradient(l->c, l->step, rank, micro, grad);
            double scale = (double)fuzz_scale(l->c, l->step, rank, micro);
            for (uint64_t i = 0; i < l->n; i++)
                owed[i] += scale * (double)grad[i];
        }
    }
    for (uint64_t i = 0; i < l->n; i++)
        owed[i] -= by * (double)value[i];
}

static bool check_conservation(look *l) {
    if (!is_exact(l))
        return true;
    add_owed(l);
    for (uint64_t i = 0; i < l->n; i++) {
        double held = 0.0;
        for (uint32_t v = 0; v < l->m.nranks; v++)
            held += (double)l->after[v][i];
        if (held != owed[i])
            return look_fail(l,
                             "entry %llu: gradients less applied make %.17g, residuals hold %.17g",
                             (unsigned long long)i, owed[i], held);
    }
    return true;
}

static bool check_step(look *l) {
    if (!check_replicas(l) || !check_finite(l) || !read_list(l) || !check_gradient(l))
        return false;
    if (!(l->skipped ? check_skipped(l) : check_applied(l)))
        return false;
    uint64_t k = (uint64_t)(l->all->density * (double)fuzz_ordinary(l->c));
    return look_choice(l, k > 0 ? k : 1) && look_moments(l) && check_conservation(l) &&
           fuzz_check_figures(l->r, l->step, &l->m, l->failure);
}

bool fuzz_check(const record *r, char failure[SENTENCE]) {
    look l = {.r = r,
              .c = r->fuzz,
              .n = fuzz_length(r->fuzz),
              .member = member,
              .value = value,
              .leaves = leaves,
              .failure = failure};
    memset(owed, 0, (size_t)l.n * sizeof owed[0]);
    for (uint32_t step = 0; step < r->nsteps; step++) {
        open_look(&l, step);
        if (!check_step(&l))
            return false;
    }
    return true;
}
