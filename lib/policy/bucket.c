/* SPDX-License-Identifier: MIT */
#include "lib/policy/bucket.h"

#define TIMES_LATENCY 4.0 /* least transfer time in latencies; then latency is a fifth at most */

#define LONG 1073741824.0 /* bytes: whatever overlaps with a message's latency is long over */

/* A step that gathers so many bytes of each rank and sums so many. */
static double bucket_step_s(const tam_bucket_rule *rule, double bytes) {
    double gather_s =
        rule->dense ? 0.0 : tam_plan_gather_s(&rule->net, &rule->plan, bytes / rule->plan.nranks);
    return gather_s + tam_plan_sum_s(&rule->net, &rule->plan, bytes);
}

static double planned_length(const tam_bucket_rule *rule) {
    double byte_s = (bucket_step_s(rule, 2.0 * LONG) - bucket_step_s(rule, LONG)) / LONG;
    double bytes = rule->dense ? 4.0 : 4.0 * rule->density;
    return TIMES_LATENCY * (bucket_step_s(rule, 0.0) + rule->beside_s) / (bytes * byte_s);
}

static double least_length(double n, uint32_t most_buckets, const tam_bucket_rule *rule) {
    double entries = rule->dense ? n : rule->density * n;
    bool planned = rule->length == TAMIS_BUCKETS_PLANNED;
    /* One bucket: asked for, the only possible one, with one entry, or planned for one rank. */
    if (rule->length == 0 || most_buckets == 0 || entries < 1.0 ||
        (planned && rule->plan.nranks == 1))
        return n;
    double least = planned ? planned_length(rule) : (double)rule->length;
    if (!(least < n)) /* also NaN */
        return n;
    double most = entries >= most_buckets ? most_buckets
                  : entries >= 1.0        ? (double)(uint32_t)entries
                                          : 1.0;
    return least > n / most ? least : n / most;
}

/* Runs of ordinary segments between those that have rows. */
static uint32_t count_runs(const tamis_layout *layout) {
    uint32_t runs = 0;
    for (uint32_t s = 0; s < layout->nsegments; s++)
        runs += !tam_segment_has_sparse_rows(layout, s) &&
                (s == 0 || tam_segment_has_sparse_rows(layout, s - 1));
    return runs;
}

uint32_t tam_bucket_plan(const tamis_layout *layout, const tam_bucket_rule *rule,
                         tam_bucket_range *out) {
    uint32_t count = 0, end = layout->nsegments,
             runs = layout->nrow_segments ? count_runs(layout) : 0;
    if ((uint64_t)layout->nrow_segments + runs > TAM_BUCKETS_MAX)
        return 0;
    double least = least_length((double)layout->ordinary,
                                TAM_BUCKETS_MAX - layout->nrow_segments - runs, rule);
    for (uint32_t s = end; s-- > 0;) {
        bool first = s == 0 || tam_segment_has_sparse_rows(layout, s) ||
                     tam_segment_has_sparse_rows(layout, s - 1);
        if ((double)(layout->begins[end] - layout->begins[s]) < least && !first)
            continue;
        out[count++] = (tam_bucket_range){s, end - s};
        end = s;
    }
    return count;
}

uint64_t tam_bucket_budget_max(uint64_t k, uint64_t length, uint64_t n,
                               tamis_bucket_budget bucket_budget, uint32_t nbuckets) {
    if (k < nbuckets)
        return k > 0;
    uint64_t rest = k - nbuckets, spare = n - nbuckets;
    uint64_t most = 1 + (spare ? (rest * (length - 1) + spare - 1) / spare : 0);
    if (bucket_budget == TAMIS_BUCKET_BUDGET_NORM)
        most =
            tam_bucket_bounds(most, length, tam_bucket_more(k, nbuckets, TAM_BUCKET_TENTHS)).high;
    return most < rest + 1 ? most : rest + 1; /* the others get one at least */
}
