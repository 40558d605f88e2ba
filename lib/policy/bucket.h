/* SPDX-License-Identifier: MIT
 *
 * Buckets: runs of whole segments that are exchanged one after another, from the last segment to
 * the first, and how the entries of a step are divided among them.
 *
 *     segments   0    1    2    3    4    5
 *     buckets    |  2 |      1       |  0 |
 *                |  3 |    2    |  1 |  0 |     segment 3 has rows
 *
 * Kernels compile the budgets, too (as rules.h): +, -, *, / in a fixed order.
 */
#ifndef TAM_POLICY_BUCKET_H
#define TAM_POLICY_BUCKET_H

#include "lib/policy/layout.h"
#include "lib/policy/plan.h"

enum { TAM_BUCKETS_MAX = 64 };

/* -- which segments form a bucket ------------------------------------------------------------- */

typedef struct tam_bucket_range {
    uint32_t first_segment, nsegments;
} tam_bucket_range;

/** How long buckets shall be. */
typedef struct tam_bucket_rule {
    uint64_t length; /* as in tamis_reducer_config.bucket_length */
    double density;
    bool dense;      /* scheme dense: density does not matter */
    double beside_s; /* what a bucket takes beside its messages; with all below, for
                        TAMIS_BUCKETS_PLANNED only */
    tam_net net;
    tam_plan plan;
} tam_bucket_rule;

/**
 * Join segments, from the last to the first, until a bucket has at least rule->length elements.
 *
 * TAMIS_BUCKETS_PLANNED chooses a length at which transfer >= 4 * latency. Times are those of the
 * stages in which the ranks exchange (plan.h), of d = 4 density n_b bytes of indices and as many of
 * values, or of 4 n_b bytes with scheme dense:
 *
 *              latency                             transfer: what long messages take, a byte more
 *     sparse   gather_s(0) + sum_s(0) + beside_s   gather_s(d / P) + sum_s(d)
 *     dense    sum_s(0) + beside_s                 sum_s(4 n_b)
 *
 * Over a wire of beta seconds per byte transfer is 12 density n_b (P - 1) / P beta, dense 8 of n_b.
 * There is one bucket if nothing travels or the link has no speed (one rank, NaN). There are never
 * more buckets than TAM_BUCKETS_MAX, nor than entries of a step; the least length grows with that.
 *
 * The first segments, exchanged last, may make a shorter bucket: kept apart it costs at most one
 * latency; joined, its neighbour's whole transfer would begin only when backward has ended.
 *
 * A segment that has rows is a bucket, whatever its length, and separates the segments before it
 * from those behind it; the least length applies to the others.
 *
 * @param  out  [out]  tam_bucket_range[min(nsegments, TAM_BUCKETS_MAX)], in the exchange's order
 * @return             their number; 0: too many segments have rows
 */
uint32_t tam_bucket_plan(const tamis_layout *layout, const tam_bucket_rule *rule,
                         tam_bucket_range *out);

/** Most entries that a bucket of `length` of n elements gets for k and for every smaller k. */
uint64_t tam_bucket_budget_max(uint64_t k, uint64_t length, uint64_t n,
                               tamis_bucket_budget bucket_budget, uint32_t nbuckets);

/* -- how many entries each gets --------------------------------------------------------------- */

/** floor(a * b / c), exactly. a, b <= c; 0 < c < 2^47 */
TAM_SHARED uint64_t tam_bucket_part(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t quotient = 0, rest = 0;
    if (c >> 32 == 0)
        return a * b / c;
    for (int shift = 32; shift >= 0; shift -= 16) {
        rest = (rest << 16) + a * (b >> shift & 0xffff);
        quotient = (quotient << 16) + rest / c;
        rest %= c;
    }
    return quotient;
}

/**
 * Budgets by length: one each, the others in proportion to length - 1 by differences of
 * floor((k - nbuckets) * elements so far / all). They sum to k, and none exceeds its length.
 *
 * With fewer entries than buckets the first k buckets get one each and the others none: what they
 * hold waits in the residual for a larger k.
 *
 * @param  k  [in]  at most the sum of the lengths, which is below 2^47
 */
TAM_SHARED void tam_bucket_even(uint64_t k, uint32_t nbuckets, const uint64_t *lengths,
                                uint64_t *budgets) {
    uint64_t spare = 0, upto = 0, given = 0;
    for (uint32_t b = 0; b < nbuckets; b++)
        spare += lengths[b] - 1;
    for (uint32_t b = 0; b < nbuckets; b++) {
        upto += lengths[b] - 1;
        uint64_t sum = spare && k >= nbuckets ? tam_bucket_part(k - nbuckets, upto, spare) : 0;
        budgets[b] = sum - given + (b < k);
        given = sum;
    }
}

/** The least and most entries that a bucket may get. */
typedef struct tam_bounds {
    uint64_t low, high;
} tam_bounds;

/** How much more than its even budget a bucket may get, in tenths of the mean budget. A device
 * fixes the sizes of its messages before it knows the budgets, so they have room for the most, and
 * all of it travels: 1.1 k. A stage (bubble.h) learns its budget first. */
enum { TAM_BUCKET_TENTHS = 1, TAM_STAGE_TENTHS = 10 };

TAM_SHARED uint64_t tam_bucket_more(uint64_t k, uint32_t nbuckets, uint32_t tenths) {
    return k / nbuckets * tenths / 10;
}

/** Half of the even budget, rounded up, to `more` than it. @param  even  at least 1 */
TAM_SHARED tam_bounds tam_bucket_bounds(uint64_t even, uint64_t length, uint64_t more) {
    tam_bounds bounds = {(even + 1) / 2, even + more < length ? even + more : length};
    return bounds;
}

/** Rounds wished budgets to whole numbers, one bucket after another. */
typedef struct tam_rounding {
    uint64_t given, left;
    tam_bounds rest; /* of the buckets that follow, together */
    double upto;     /* sum of the wishes so far */
} tam_rounding;

TAM_SHARED tam_rounding tam_rounding_begin(uint64_t k, uint32_t nbuckets, const uint64_t *lengths,
                                           const uint64_t *even, uint64_t more) {
    tam_rounding r = {0, k, {0, 0}, 0.0};
    for (uint32_t b = 0; b < nbuckets; b++) {
        tam_bounds bounds = tam_bucket_bounds(even[b], lengths[b], more);
        r.rest.low += bounds.low;
        r.rest.high += bounds.high;
    }
    return r;
}

/** The next budget: the rounded sum of all wishes so far, minus what was given. It is limited so
 * that later buckets can get their low bounds and can take what is left: bounds and sum hold,
 * whatever the wishes. */
TAM_SHARED uint64_t tam_rounding_next(tam_rounding *r, tam_bounds bounds, double wish) {
    uint64_t low = bounds.low, high = bounds.high;
    r->rest.low -= low;
    r->rest.high -= high;
    low = r->left > r->rest.high + low ? r->left - r->rest.high : low;
    high = r->left < r->rest.low + high ? r->left - r->rest.low : high;
    r->upto += wish;
    double lacks = r->upto + 0.5 - (double)r->given;
    uint64_t budget = lacks >= (double)high ? high : lacks > (double)low ? (uint64_t)lacks : low;
    r->given += budget;
    r->left -= budget;
    return budget;
}

/** Buckets that get what is left in proportion, and buckets that are fixed at a bound. */
typedef struct tam_bucket_pool {
    uint32_t nbuckets;
    const uint64_t *lengths, *even;
    const double *norms; /* NULL: by even budget */
    uint64_t *fixed;     /* 0: not fixed */
    uint64_t more;       /* than an even budget, at most */
    double left, weight; /* of those that are not */
} tam_bucket_pool;

TAM_SHARED tam_bounds tam_pool_bounds(const tam_bucket_pool *p, uint32_t b) {
    return tam_bucket_bounds(p->even[b], p->lengths[b], p->more);
}

/** What a bucket gets, or would get if nothing were bounded or rounded. */
TAM_SHARED double tam_bucket_wish(const tam_bucket_pool *p, uint32_t b) {
    double weight = p->norms ? p->norms[b] : (double)p->even[b];
    return p->fixed[b] ? (double)p->fixed[b] : p->left * (weight / p->weight);
}

TAM_SHARED void tam_bucket_weigh(uint64_t k, tam_bucket_pool *p) {
    double by_norm = 0.0, by_even = 0.0;
    p->left = (double)k;
    for (uint32_t b = 0; b < p->nbuckets; b++) {
        p->left -= (double)p->fixed[b];
        by_norm += p->norms && !p->fixed[b] ? p->norms[b] : 0.0;
        by_even += p->fixed[b] ? 0.0 : (double)p->even[b];
    }
    if (!(by_norm > 0.0)) /* only buckets of norm 0 are left */
        p->norms = NULL;
    p->weight = p->norms ? by_norm : by_even;
}

/* How far its bounds move the wish of a bucket that is not fixed. */
TAM_SHARED double tam_bucket_excess(const tam_bucket_pool *p, uint32_t b) {
    tam_bounds bounds = tam_pool_bounds(p, b);
    double low = (double)bounds.low, high = (double)bounds.high, wish = tam_bucket_wish(p, b);
    if (p->fixed[b])
        return 0.0;
    return wish < low ? low - wish : wish > high ? high - wish : 0.0;
}

/* If bounds add more than they take, the other buckets will get less: those at the lower bound stay
 * there and are fixed. Else those at the upper bound are. @return whether any was fixed */
TAM_SHARED bool tam_bucket_fix_at_bounds(tam_bucket_pool *p) {
    double added = 0.0;
    bool any = false;
    for (uint32_t b = 0; b < p->nbuckets; b++)
        added += tam_bucket_excess(p, b);
    for (uint32_t b = 0; b < p->nbuckets; b++) {
        tam_bounds bounds = tam_pool_bounds(p, b);
        double excess = tam_bucket_excess(p, b);
        if ((excess > 0.0 && added >= 0.0) || (excess < 0.0 && added <= 0.0)) {
            p->fixed[b] = excess > 0.0 ? bounds.low : bounds.high;
            any = true;
        }
    }
    return any;
}

/**
 * Budgets in proportion to norms, each between half of the budget by length and that and a tenth of
 * k / nbuckets; what the bounds take or give is shared among the others in the same proportion.
 * They sum to k.
 *
 * Budgets are by length without norms, if none is above 0, if one is negative or NaN, if their sum
 * is too large, or with fewer entries than buckets.
 *
 * @param  norms  [in]       double[nbuckets], or NULL
 * @param  even   [scratch]  uint64[nbuckets]: the budgets by length
 */
TAM_SHARED void tam_bucket_budgets(uint64_t k, uint32_t nbuckets, const uint64_t *lengths,
                                   const double *norms, uint64_t *even, uint64_t *budgets) {
    bool usable = norms != NULL && k >= nbuckets;
    double sum = 0.0;
    tam_bucket_even(k, nbuckets, lengths, even);
    for (uint32_t b = 0; b < nbuckets; b++) {
        usable = usable && norms[b] >= 0.0;
        sum += usable ? norms[b] : 0.0;
        budgets[b] = even[b];
    }
    if (!usable || !(sum > 0.0 && sum < 1e300))
        return;

    uint64_t more = tam_bucket_more(k, nbuckets, TAM_BUCKET_TENTHS);
    tam_bucket_pool pool = {nbuckets, lengths, even, norms, budgets, more, 0.0, 0.0};
    for (uint32_t b = 0; b < nbuckets; b++)
        budgets[b] = 0;
    do
        tam_bucket_weigh(k, &pool);
    while (tam_bucket_fix_at_bounds(&pool));
    tam_rounding rounding = tam_rounding_begin(k, nbuckets, lengths, even, more);
    for (uint32_t b = 0; b < nbuckets; b++)
        budgets[b] =
            tam_rounding_next(&rounding, tam_pool_bounds(&pool, b), tam_bucket_wish(&pool, b));
}

#endif
