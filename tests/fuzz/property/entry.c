/* SPDX-License-Identifier: MIT
 *
 * An entry of a step, and the moments. A rank either keeps what it has accumulated at an entry or
 * sends it; the result is the sum of what was sent, in the order of lib/base/tree.h, divided once.
 */
#include "tests/fuzz/property/look.h"
#include "tests/support/rank_tree.h"

#include "lib/base/half.h"

#include <float.h>
#include <math.h>
#include <tamis/overlap.h>

/* Values and their sums, where those travel. */
static bool is_bfloat16(const look *l) {
    tamis_value_codec sum = l->c->config.sum_codec;
    return l->c->config.value_codec == TAMIS_VALUE_BFLOAT16 &&
           (sum == TAMIS_VALUE_AUTO || sum == TAMIS_VALUE_BFLOAT16);
}

/* Types with a scale a block. */
static bool quantizes_in_blocks(const look *l) {
    const tamis_reducer_config *o = &l->c->config;
    if (fuzz_is(l->c, 3, "quantized") && o->value_codec == TAMIS_VALUE_AUTO)
        return true;
    return o->value_codec >= TAMIS_VALUE_INT8 || o->sum_codec >= TAMIS_VALUE_INT8;
}

/* Types with scales, or one for values and another for sums. */
bool look_is_mixed(const look *l) {
    const tamis_reducer_config *o = &l->c->config;
    return quantizes_in_blocks(l) || (!is_bfloat16(l) && (o->value_codec > TAMIS_VALUE_FLOAT32 ||
                                                          o->sum_codec > TAMIS_VALUE_FLOAT32));
}

/* Whether a sum of the entry over ranks, or the quotient, may be infinite. */
bool look_may_overflow(const look *l, uint64_t i) {
    double sum = 0.0, by = fabs((double)l->m.divisor);
    for (uint32_t v = 0; v < l->m.nranks; v++)
        sum += fabs((double)l->m.acc[v][i]);
    if (quantizes_in_blocks(l)) /* a small entry may arrive as large as the largest of its block */
        sum += l->largest * l->m.nranks;
    return !(sum < 0.99 * FLT_MAX && sum / by < 0.99 * FLT_MAX);
}

static bool all_cleared(const look *l, uint64_t i) {
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        if (l->after[v][i] != 0.0f)
            return false;
    }
    return true;
}

static bool compare(look *l, uint64_t i, float sum) {
    float expected = sum / l->m.divisor, got = l->value[i];
    tamis_dtype type = l->c->config.grad_dtype;
    if (!isfinite(expected)) { /* must be dropped, or the step skipped */
        if (l->c->config.nonfinite != TAMIS_NONFINITE_DROP)
            return look_fail(l, "entry %llu: %g was applied", (unsigned long long)i,
                             (double)expected);
        expected = 0.0f;
    }
    if (!l->all->listed) { /* only the rounded value is known */
        uint16_t half[2];
        tam_narrow(&expected, 1, type, half);
        tam_widen(type, half, 1, &expected);
    }
    if (got == expected)
        return true;
    return look_fail(l, "entry %llu: %.9g was applied, %.9g was given (sum %.9g)",
                     (unsigned long long)i, (double)got, (double)expected, (double)sum);
}

static float sum_of_all(const look *l, uint64_t i) {
    float values[MOST_RANKS];
    for (uint32_t v = 0; v < l->m.nranks; v++)
        values[v] = l->m.acc[v][i];
    return rank_tree_sum(values, 1, l->m.nranks);
}

static bool check_everything(look *l, uint64_t i) {
    if (!all_cleared(l, i))
        return look_fail(l, "entry %llu: everything travels, and something stays",
                         (unsigned long long)i);
    return compare(l, i, sum_of_all(l, i));
}

static bool check_kept(look *l, uint64_t i) {
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        if (l->after[v][i] != l->m.acc[v][i])
            return look_fail(l, "entry %llu is not in the result; rank %u had %.9g and keeps %.9g",
                             (unsigned long long)i, v, (double)l->m.acc[v][i],
                             (double)l->after[v][i]);
    }
    return true;
}

static bool check_bound_entry(look *l, uint64_t i) {
    if (l->all->listed && l->member[i] != l->leaves[i])
        return look_fail(l, "entry %llu of a row that is %slisted is %sin the result",
                         (unsigned long long)i, l->leaves[i] ? "" : "not ",
                         l->member[i] ? "" : "not ");
    return l->leaves[i] ? check_everything(l, i) : check_kept(l, i);
}

static bool check_row_entry(look *l, const tamis_bucket *b, uint64_t i) {
    uint32_t length = l->c->rows[b->first_segment];
    uint64_t begin = i - (i - b->begin) % length;
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        for (uint64_t j = begin; j < begin + length && !l->member[i]; j++) {
            if (l->m.acc[v][j] != 0.0f)
                return look_fail(l, "entry %llu of a row that rank %u touched is not in the result",
                                 (unsigned long long)i, v);
        }
    }
    return check_everything(l, i);
}

/* @return false: neither kept nor given */
static bool look_at_rank(const look *l, uint32_t v, uint64_t i, float *given) {
    float acc = l->m.acc[v][i], after = l->after[v][i];
    *given = 0.0f;
    if (is_bfloat16(l)) {
        float sent = tam_bfloat16_widen(tam_bfloat16_clamp(acc));
        *given = after != acc ? sent : 0.0f;
        return after == acc || after == acc - sent;
    }
    *given = after != acc ? acc : 0.0f;
    return after == acc || after == 0.0f;
}

static bool check_pairs(look *l, uint64_t i) {
    float given[MOST_RANKS];
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        if (!look_at_rank(l, v, i, &given[v]))
            return look_fail(l, "entry %llu: rank %u had %.9g and keeps %.9g",
                             (unsigned long long)i, v, (double)l->m.acc[v][i],
                             (double)l->after[v][i]);
        if (given[v] != 0.0f && !l->member[i])
            return look_fail(l, "entry %llu: rank %u gave %.9g, and it is not in the result",
                             (unsigned long long)i, v, (double)given[v]);
    }
    return compare(l, i, rank_tree_sum(given, 1, l->m.nranks)); /* what is not given counts as 0 */
}

/* bfloat16: the rank that rounded the sum also keeps the rounding error. */
static bool check_rounded_union(look *l, uint64_t i) {
    float sent[MOST_RANKS];
    uint32_t rounders = 0;
    for (uint32_t v = 0; v < l->m.nranks; v++)
        sent[v] = tam_bfloat16_widen(tam_bfloat16_clamp(l->m.acc[v][i]));
    float sum = rank_tree_sum(sent, 1, l->m.nranks);
    float result = tam_bfloat16_widen(tam_bfloat16_clamp(sum));
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        float rest = l->m.acc[v][i] - sent[v], after = l->after[v][i];
        if (after == rest)
            continue;
        if (after != rest + (sum - result) || rounders++ > 0)
            return look_fail(l, "entry %llu: rank %u had %.9g, sent %.9g, keeps %.9g",
                             (unsigned long long)i, v, (double)l->m.acc[v][i], (double)sent[v],
                             (double)after);
    }
    return compare(l, i, result);
}

static bool check_union(look *l, uint64_t i) {
    if (is_bfloat16(l))
        return check_rounded_union(l, i);
    if (!all_cleared(l, i))
        return look_fail(l, "entry %llu is in the result, and a rank keeps something of it",
                         (unsigned long long)i);
    return compare(l, i, sum_of_all(l, i));
}

/* What a scale makes of an entry follows from its neighbours too, which this does not model: what
 * was applied and what is kept must still be what there was. The decoded values have few digits, so
 * only sums of them over ranks, and what is kept of these, are rounded. */
static bool check_conserved(look *l, uint64_t i) {
    double before = 0.0, after = 0.0, all = l->largest * l->m.nranks;
    for (uint32_t v = 0; v < l->m.nranks; v++) {
        before += (double)l->m.acc[v][i];
        after += (double)l->after[v][i];
    }
    double applied = (double)l->value[i] * (double)l->m.divisor;
    double by = fmax((double)l->c->nranks, fabs((double)l->m.divisor));
    double least = 2.0 * (double)FLT_TRUE_MIN * by; /* of quotients */
    double known = l->all->listed || l->c->config.grad_dtype == TAMIS_DTYPE_FLOAT32 ? 0.0 : 0x1p-8;
    if (!(all < 0.9 * FLT_MAX) ||
        fabs(before - after - applied) <= 0x1p-18 * all + known * fabs(applied) + least)
        return true;
    return look_fail(l, "entry %llu: ranks had %.9g and keep %.9g, %.9g was applied",
                     (unsigned long long)i, before, after, applied);
}

bool look_entry(look *l, const tamis_bucket *b, uint64_t i) {
    if (look_is_kind(b, "dense"))
        return check_everything(l, i);
    if (look_is_kind(b, "sparse-rows"))
        return l->c->config.rows_capacity > 0 ? check_bound_entry(l, i) : check_row_entry(l, b, i);
    bool drops = l->c->config.nonfinite == TAMIS_NONFINITE_DROP;
    if (drops && l->value[i] == 0.0f && look_may_overflow(l, i) && all_cleared(l, i))
        return true;
    if (!l->member[i])
        return check_kept(l, i);
    if (look_is_mixed(l))
        return check_conserved(l, i);
    bool sums = look_is_kind(b, "union") || look_is_kind(b, "quantized");
    return sums ? check_union(l, i) : check_pairs(l, i);
}

/* -- moments ---------------------------------------------------------------------------------- */

/* Momentum is cleared at applied entries, below a density of 40 %. */
bool look_moments(look *l) {
    bool masks =
        l->c->updates && l->c->update.rule == TAMIS_UPDATE_MOMENTUM && l->c->config.density < 0.4;
    for (uint32_t v = 0; v < l->m.nranks && l->c->updates; v++) {
        const moment *now = &l->r->moments[l->step][v];
        if (now->passes != (uint64_t)l->step + 1)
            return look_fail(l, "%llu passes", (unsigned long long)now->passes);
        for (uint64_t i = 0; i < l->n; i++) {
            bool masked = masks && !l->skipped && l->member[i];
            bool given = look_is_kind(fuzz_bucket(l->r, l->step, i), "union");
            bool may_clear = masked || (masks && look_may_overflow(l, i));
            float first = now->first ? now->first[i] : 0.0f;
            float moved = now->first ? l->m.first[v][i] : 0.0f;
            bool fine =
                masked && given ? first == 0.0f : first == moved || (may_clear && first == 0.0f);
            if (!fine || (now->second && now->second[i] != l->m.second[v][i]))
                return look_fail(l, "moments of rank %u at %llu are %.9g, not %.9g", v,
                                 (unsigned long long)i, (double)first, (double)moved);
        }
    }
    return true;
}
