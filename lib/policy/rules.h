/* SPDX-License-Identifier: MIT
 *
 * The arithmetic of control and budgets: one group, or one scalar, at a time. control.c and
 * budget.c loop over it; kernels give a group to a thread. Both compile this code, so the numbers
 * have the same bits wherever they are computed (lib/base/numbers.h has the conditions). control.h
 * and budget.h explain the rules and name their sources.
 */
#ifndef TAM_POLICY_RULES_H
#define TAM_POLICY_RULES_H

#include "lib/base/numbers.h"
#include "lib/policy/control.h"

#include <math.h> /* sqrt and ceil alone: exact everywhere */

enum { TAM_LEVEL_LIMIT = 120 }; /* |log2 tau|: 1 / tau stays a normal number */

#define TAM_SUM_LIMIT 2.9e38 /* sums are sent as floats, larger ones are clipped */

TAM_SHARED double tam_rule_clip(double x, double low, double high) {
    return x < low ? low : x > high ? high : x;
}

TAM_SHARED double tam_rule_clip_level(double level) {
    return tam_rule_clip(level, -TAM_LEVEL_LIMIT, TAM_LEVEL_LIMIT);
}

/** A magnitude rounded to binary32, but never infinite. Applied to the binary64 sum, product or
 * quotient of two such numbers, it gives what binary32 arithmetic would, if that is normal. */
TAM_SHARED double tam_rule_single(double magnitude) {
    return (double)(float)tam_rule_clip(magnitude, 0.0, 3e38);
}

/* -- budgets ---------------------------------------------------------------------------------- */

/** A sort key for a value >= 0 that puts larger values first. */
TAM_SHARED uint64_t tam_rule_descending(double value) {
    return ~tam_bits64(value);
}

/** What is left for the groups that follow; begins with k and the sum of all norms. */
typedef struct tam_rest {
    double left, norms;
} tam_rest;

/** The budget of the next group in descending order of norms. */
TAM_SHARED uint32_t tam_rule_budget(tam_rest *rest, double norm, uint32_t length) {
    double exact = rest->norms > 0.0 ? rest->left * norm / rest->norms : 0.0;
    double most = length;
    uint32_t budget = exact >= most ? length : exact >= 1.0 ? (uint32_t)exact : 1;
    rest->left -= budget;
    rest->left = rest->left > 0.0 ? rest->left : 0.0;
    rest->norms -= norm;
    return budget;
}

/* -- counts ----------------------------------------------------------------------------------- */

/** Entries of k that a rank selects if it owns entries `before` to `upto` - 1 of n, with the
 * entries of all owners lined up: never more than it owns. k and n are below 2^32: the products
 * fit. */
TAM_SHARED uint64_t tam_rule_rank_budget(uint64_t k, uint64_t n, uint64_t before, uint64_t upto) {
    return k * upto / n - k * before / n;
}

/** Entries that fit a packet with room for `capacity` times its part of k. */
TAM_SHARED uint64_t tam_rule_capacity(double capacity, uint64_t k, double ranks, uint64_t own) {
    double most = ceil(capacity * (double)k / ranks);
    return most < (double)own ? (uint64_t)most : own;
}

/** Row from which a list begins that has no room for all touched rows: each row comes first in one
 * of count / most steps, rounded up. */
TAM_SHARED uint32_t tam_rule_first_row(uint64_t step, uint32_t most, uint32_t count) {
    return (uint32_t)(step % count * most % count);
}

/* -- learning: all groups together ------------------------------------------------------------ */

TAM_SHARED double tam_rule_slope(const tam_control_state *s) {
    return tam_rule_clip(s->fit_xy / s->fit_xx, 1.0, 60.0);
}

TAM_SHARED double tam_rule_margin(const tam_control_state *s, double over) {
    double for_count = tam_log2(over) / tam_rule_slope(s);
    double for_miss = 3.0 * sqrt(s->spread);
    return -(for_count > for_miss ? for_count : for_miss);
}

/** MiCRO, threshold scaling, with the constants of its public code. There the third branch cannot
 * be reached, because it asks for q > 0 where q > 1 is meant; here it can (docs/algorithm.md). */
TAM_SHARED double tam_rule_step(double threshold, uint64_t selected, uint64_t k) {
    double q = (double)selected / (double)k;
    if (q > 1.1)
        threshold *= 1.005;
    else if (q > 1.0)
        threshold *= 1.00125;
    else if (q > 0.909)
        threshold *= 0.9987;
    else
        threshold *= 0.995;
    return tam_rule_clip(threshold, 1e-38, 1e38);
}

/** SAGE: factor on the threshold before entries over it are counted. A sample of zeros only says
 * nothing about the scale. */
TAM_SHARED double tam_rule_sage_scale(double mean, double mean_before) {
    return mean > 0.0 && mean_before > 0.0 ? tam_rule_single(mean / mean_before) : 1.0;
}

/** SAGE: the threshold after that. @param density  asked for; @param found  of those counted */
TAM_SHARED double tam_rule_sage_correct(double threshold, double density, double found) {
    double beta = 2.0 / (1.0 + tam_exp2((density - found) / TAM_LN2));
    double ratio = found / density;
    double gamma = ratio < 0.1 ? 0.95 : ratio > 10.0 ? 1.05 : 1.0;
    threshold = tam_rule_single(threshold * tam_rule_single(beta));
    return tam_rule_single(threshold * tam_rule_single(gamma));
}

/* Ok-Topk: thresholds are searched every 32nd step and adapted in every step. Constants are those
 * of the public code for VGG; as there, thresholds are binary64 and compared as binary32. */

enum { TAM_REUSE_STEPS = 32, TAM_REUSE_RAISES = 5 };

#define TAM_REUSE_RAISE 1.03

/** For how many more steps a threshold found in step `step` is used. */
TAM_SHARED uint64_t tam_rule_hold(uint64_t step) {
    return TAM_REUSE_STEPS - 1 - step % TAM_REUSE_STEPS;
}

/** Before the selection: whether so many are over the threshold that it is raised, at most
 * TAM_REUSE_RAISES times. */
TAM_SHARED bool tam_rule_too_many(uint64_t found, uint64_t k) {
    return 3 * found > 4 * k;
}

TAM_SHARED double tam_rule_nudge(double threshold, double factor, bool too_few, bool too_many) {
    double moved = too_few ? threshold / factor : too_many ? threshold * factor : threshold;
    return tam_rule_clip(moved, 1e-45, 3e38);
}

/** The threshold of a rank after a step in which so many were over it. */
TAM_SHARED double tam_rule_adapt(double threshold, uint64_t found, uint64_t k) {
    return tam_rule_nudge(threshold, 1.012, 3 * found<2 * k, 4 * found> 5 * k);
}

/** The threshold of the sums. */
TAM_SHARED double tam_rule_adapt_sums(double threshold, uint64_t found, uint64_t k) {
    return tam_rule_nudge(threshold, 1.008, 3 * found<2 * k, 3 * found> 4 * k);
}

/* `mean_key` and the margin are relative to the levels that were used. */
TAM_SHARED void tam_rule_fit(const tam_observed *seen, double mean_key, tam_control_state *s) {
    double distance = mean_key - s->margin;
    if (seen->candidates == 0 || distance > 1.0 || distance < -1.0)
        return;
    double count = tam_log2(((double)seen->candidates + 0.5) / ((double)seen->selected + 0.5));
    s->fit_xx = 0.8 * s->fit_xx + 0.2 * tam_rule_clip(distance * distance, 1e-6, 1.0);
    s->fit_xy = 0.8 * s->fit_xy + 0.2 * distance * count;
}

/* Move the levels by what the smallest keys showed: part of a small miss, the whole of a jump. */
TAM_SHARED double tam_rule_shift(double mean_key, tam_control_state *s) {
    if (mean_key > 0.6 || mean_key < -0.6) {
        s->drift = 0.0;
        return mean_key;
    }
    s->drift = 0.8 * s->drift + 0.15 * mean_key;
    return 0.7 * mean_key + s->drift;
}

/** How a step changes the levels of all groups. */
typedef struct tam_level_update {
    double shift; /* add to the level */
    double slope;
    double share; /* of a group's entries in the union, counts against its budget; budget norm */
    bool primed;  /* the levels had been measured before */
} tam_level_update;

/** For ownership `all` the union is larger than k: only k of it count against the budgets. */
TAM_SHARED double tam_rule_union_share(uint64_t k, double union_count) {
    return union_count > 0.0 ? (double)k / union_count : 1.0;
}

/**
 * Learn what concerns all groups; the caller sets `share` of the update.
 *
 * @param  seen    [in]  nmin_keys at least 1; the figures of groups are not read
 * @param  level   [in]  of the first group, as used in the step
 */
TAM_SHARED tam_level_update tam_rule_learn(const tam_observed *seen, tam_budget budget, double over,
                                           double level, tam_control_state *s) {
    /* Keys of budget norm are relative to the levels already, magnitudes are not. */
    double used = s->primed && budget == TAM_BUDGET_GLOBAL ? level : 0.0;
    double mean_key = 0.0, short_of = 0.0;
    for (uint32_t i = 0; i < seen->nmin_keys; i++) {
        double one = seen->min_keys[i] - used;
        mean_key += one / seen->nmin_keys;
        short_of += one < 0.0 ? one * one / seen->nmin_keys : 0.0;
    }
    tam_level_update update = {mean_key, 0.0, 1.0, s->primed != 0};
    if (s->primed) {
        s->spread = 0.9 * s->spread + 0.1 * tam_rule_clip(short_of, 1e-6, 0.1);
        tam_rule_fit(seen, mean_key, s);
        update.shift = tam_rule_shift(mean_key, s);
    }
    update.slope = tam_rule_slope(s);
    s->margin = tam_rule_margin(s, over);
    s->primed = 1;
    return update;
}

/* -- learning: one group ---------------------------------------------------------------------- */

/** log2 of the magnitude that `budget` entries would exceed if acc were Laplacian: a first guess,
 * and the middle of the range in which the measured level may move. */
TAM_SHARED double tam_rule_guess(double sum, uint32_t length, uint32_t budget) {
    double ratio = (double)length / budget;
    double spread = 0.7071 * 0.69315 * tam_log2(ratio > 2.0 ? ratio : 2.0);
    return 0.5 * tam_log2(sum / length) + tam_log2(spread);
}

/** The next level of a group for budget norm, from its own figures.
 * @param  sum  of acc squared, mean over ranks; @param  selected  entries of the union */
TAM_SHARED double tam_rule_level(const tam_level_update *update, double level, double sum,
                                 uint32_t selected, uint32_t budget, uint32_t length) {
    bool measured = sum > 0.0 && sum < TAM_SUM_LIMIT; /* squares may underflow or be clipped */
    if (!measured && selected == 0)                   /* silent: nothing to learn */
        return level;
    double next = level + update->shift;
    if (update->primed) {
        double miss = tam_log2((update->share * selected + 2.0) / (budget + 2.0));
        next += 0.5 * tam_rule_clip(miss, -2.0, 2.0) / update->slope;
    }
    if (measured) {
        double guess = tam_rule_guess(sum, length, budget);
        next = tam_rule_clip(update->primed ? next : guess, guess - 3.0, guess + 3.0);
    }
    return tam_rule_clip_level(next);
}

/* -- what follows from the state -------------------------------------------------------------- */

/** Bits of a positive magnitude; never 0, for zeros are not candidates. */
TAM_SHARED uint32_t tam_rule_bits(double magnitude) {
    if (magnitude >= 3e38)
        return TAM_INFINITE_BITS - 1;
    uint32_t bits = tam_bits((float)magnitude);
    return bits ? bits : 1;
}

/** Least magnitude bits over a threshold of Ok-Topk: an entry equal to it is not selected. */
TAM_SHARED uint32_t tam_rule_over(double threshold) {
    return tam_rule_bits(threshold) + 1;
}

/** Candidates are the entries with magnitude bits at or over this. */
TAM_SHARED uint32_t tam_rule_threshold(tam_threshold rule, const tam_control_state *s,
                                       double level) {
    if (rule == TAM_THRESHOLD_STEP || rule == TAM_THRESHOLD_FIXED)
        return tam_rule_bits(s->threshold);
    if (rule == TAM_THRESHOLD_REUSE && s->primed)
        return tam_rule_over(s->threshold);
    if (rule == TAM_THRESHOLD_PREDICT && s->primed)
        return tam_rule_bits(tam_exp2(level + s->margin));
    return TAM_INFINITE_BITS;
}

TAM_SHARED float tam_rule_weight(const tam_control_state *s, double level) {
    return s->primed ? (float)tam_exp2(-level) : 1.0f;
}

/** Candidates are complete above this key. @param  level  of the first group */
TAM_SHARED float tam_rule_floor(tam_budget budget, const tam_control_state *s, double level) {
    if (!s->primed)
        return 0.0f;
    if (budget == TAM_BUDGET_GLOBAL) /* the selection compares magnitudes without weights */
        return tam_float(tam_rule_bits(tam_exp2(level + s->margin)) - 1);
    /* Weights round, thresholds round: a key this close to the margin may have been missed. */
    return (float)(tam_exp2(s->margin) * (1.0 + 1e-5));
}

/** The shift of the levels when the next step shall find `to` entries instead of `from`. */
TAM_SHARED double tam_rule_target_shift(const tam_control_state *s, uint64_t from, uint64_t to) {
    return tam_log2((double)from / (double)to) / tam_rule_slope(s);
}

/** Whether the selection may start from the candidates. */
TAM_SHARED bool tam_rule_listed(tam_threshold rule, const tam_control_state *s) {
    return rule == TAM_THRESHOLD_STEP || rule == TAM_THRESHOLD_FIXED ||
           ((rule == TAM_THRESHOLD_PREDICT || rule == TAM_THRESHOLD_REUSE) && s->primed);
}

#endif
