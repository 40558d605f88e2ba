/* SPDX-License-Identifier: MIT
 *
 * Where buckets are cut, and how the entries of a step are divided among them.
 */
#include "lib/policy/bucket.h"
#include "tests/support/data.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

/* -- the plan --------------------------------------------------------------------------------- */

enum { SEGMENTS_MOST = 300 };

static tamis_layout *make_layout(const uint64_t *lengths, size_t count) {
    tamis_segment segments[SEGMENTS_MOST];
    tamis_layout *layout;
    for (size_t i = 0; i < count; i++)
        segments[i] = (tamis_segment){NULL, lengths[i]};
    assert_int_equal(tamis_layout_create(segments, count, &layout), TAMIS_OK);
    return layout;
}

/* 50 us and 1 Gbit/s, 5 us of processor for a message. */
static const tam_net usual_net = {
    .ranks_per_node = 1, .far_s = 50e-6, .far_s_per_byte = 8e-9, .message_s = 5e-6};

/* All with all. */
static uint32_t plan_buckets(const tamis_layout *layout, uint64_t bucket_length, double density,
                             uint32_t nranks, bool dense, const tam_net *net,
                             tam_bucket_range *out) {
    const tam_bucket_rule rule = {bucket_length, density, dense,
                                  0.0,           *net,    tam_plan_linear(nranks)};
    return tam_bucket_plan(layout, &rule, out);
}

static void check_plan(const uint64_t *lengths, size_t count, uint64_t bucket_length,
                       double density, uint32_t nranks, const char *expected) {
    tam_bucket_range ranges[SEGMENTS_MOST];
    tamis_layout *layout = make_layout(lengths, count);
    uint32_t n = plan_buckets(layout, bucket_length, density, nranks, false, &usual_net, ranges);
    char got[256] = "";
    for (uint32_t b = 0; b < n; b++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%u+%u", b ? " " : "",
                 ranges[b].first_segment, ranges[b].nsegments);
    assert_string_equal(got, expected);
    tamis_layout_destroy(layout);
}

static void segments_are_joined_until_there_are_enough(void **state) {
    (void)state;
    static const uint64_t lengths[] = {5, 30, 10, 20, 40, 50};
    check_plan(lengths, 6, 0, 1.0, 4, "0+6");
    check_plan(lengths, 6, 1, 1.0, 4, "5+1 4+1 3+1 2+1 1+1 0+1");
    check_plan(lengths, 6, 50, 1.0, 4, "5+1 3+2 0+3"); /* 50; 40 + 20; 10 + 30 + 5, the rest */
    check_plan(lengths, 6, 51, 1.0, 4, "4+2 1+3 0+1"); /* 90; 20 + 10 + 30; 5 */
    check_plan(lengths, 6, 155, 1.0, 4, "0+6");
    check_plan(lengths, 6, UINT64_MAX - 1, 1.0, 4, "0+6");
    check_plan(lengths, 1, 2, 1.0, 4, "0+1");
    check_plan(lengths, 6, 50, 1.0, 1, "5+1 3+2 0+3");
}

static void check_rows(const uint32_t *rows, size_t nrows, uint64_t bucket_length,
                       const char *expected) {
    static const uint64_t lengths[] = {5, 30, 10, 20, 40, 50};
    tam_bucket_range ranges[TAM_BUCKETS_MAX];
    tamis_layout *layout = make_layout(lengths, 6);
    char got[256] = "";
    for (size_t i = 0; i < nrows; i++)
        assert_int_equal(tamis_layout_set_rows(layout, rows[i], 5), TAMIS_OK);
    uint32_t n = plan_buckets(layout, bucket_length, 1.0, 4, false, &usual_net, ranges);
    for (uint32_t b = 0; b < n; b++)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%u+%u", b ? " " : "",
                 ranges[b].first_segment, ranges[b].nsegments);
    assert_string_equal(got, expected);
    tamis_layout_destroy(layout);
}

static void a_segment_with_rows_is_a_bucket(void **state) {
    (void)state;
    check_rows((const uint32_t[]){3}, 1, 0, "4+2 3+1 0+3");
    check_rows((const uint32_t[]){3}, 1, 45, "5+1 4+1 3+1 0+3"); /* 50; 40, the rest; 45 */
    check_rows((const uint32_t[]){0, 5}, 2, 0, "5+1 1+4 0+1");
    check_rows((const uint32_t[]){0, 1}, 2, 1, "5+1 4+1 3+1 2+1 1+1 0+1");
    check_rows((const uint32_t[]){0, 1, 2, 3, 4, 5}, 6, 0, "5+1 4+1 3+1 2+1 1+1 0+1");
}

/* 20 of 300 segments have rows, every 15th: 20 runs of 14 others lie between. */
static void segments_with_rows_count_among_the_buckets(void **state) {
    (void)state;
    uint64_t lengths[SEGMENTS_MOST];
    tam_bucket_range ranges[SEGMENTS_MOST];
    for (int i = 0; i < SEGMENTS_MOST; i++)
        lengths[i] = 1000;
    tamis_layout *layout = make_layout(lengths, SEGMENTS_MOST);
    for (size_t s = 0; s < SEGMENTS_MOST; s += 15)
        assert_int_equal(tamis_layout_set_rows(layout, s, 10), TAMIS_OK);
    for (uint64_t least = 1; least <= 100000; least *= 10) {
        uint32_t n = plan_buckets(layout, least, 1.0, 4, false, &usual_net, ranges), end = 300;
        assert_true(n >= 40 && n <= TAM_BUCKETS_MAX);
        for (uint32_t b = 0; b < n; b++) {
            assert_int_equal(ranges[b].first_segment + ranges[b].nsegments, end);
            end = ranges[b].first_segment;
            for (uint32_t s = 0; s < ranges[b].nsegments; s++)
                assert_true((end + s) % 15 != 0 || ranges[b].nsegments == 1);
        }
        assert_int_equal(end, 0);
    }
    for (size_t s = 1; s < SEGMENTS_MOST; s += 5)
        assert_int_equal(tamis_layout_set_rows(layout, s, 10), TAMIS_OK);
    assert_int_equal(plan_buckets(layout, 0, 1.0, 4, false, &usual_net, ranges), 0);
    tamis_layout_destroy(layout);
}

/* P = 4: a gather of nothing takes 50 us, 2.5 us to send the first message and 3 times 2.5 us to
 * receive: 60 us; with the sum, which takes two gathers, 180 us. An element at density 0.01: 12 *
 * 0.01 * 3/4 = 0.09 bytes, 0.72 ns. Four times the latency is 0.72 ms: 1,000,000 elements. */
static void a_planned_bucket_pays_for_its_latency(void **state) {
    (void)state;
    static const uint64_t lengths[] = {1000, 999998, 1, 999998, 1000002};
    check_plan(lengths, 5, TAMIS_BUCKETS_PLANNED, 0.01, 4, "4+1 1+3 0+1");
    static const uint64_t small[] = {999998, 1000};
    check_plan(small, 2, TAMIS_BUCKETS_PLANNED, 0.01, 4, "0+2");
    check_plan(lengths, 5, TAMIS_BUCKETS_PLANNED, 0.01, 1, "0+5");
}

/* P = 2: a sum of nothing takes 2 * 55 us, an element 8 * 1/2 * 8 ns = 32 ns: 13,750 elements. */
static void scheme_dense_has_rounds_and_bytes_of_its_own(void **state) {
    (void)state;
    static const uint64_t lengths[] = {13748, 13750, 3, 13748};
    tam_bucket_range ranges[4];
    tamis_layout *layout = make_layout(lengths, 4);
    uint32_t n = plan_buckets(layout, TAMIS_BUCKETS_PLANNED, 1e-9, 2, true, &usual_net, ranges);
    assert_int_equal(n, 3);
    assert_int_equal(ranges[0].first_segment, 2);
    assert_int_equal(ranges[1].first_segment, 1);
    assert_int_equal(ranges[2].first_segment, 0);
    tamis_layout_destroy(layout);
}

static void a_link_without_speed_gives_one_bucket(void **state) {
    (void)state;
    static const uint64_t lengths[] = {1000000, 1000000, 1000000, 1000000};
    static const double links[][2] = {{50e-6, 0.0},     {NAN, 8e-9}, {50e-6, NAN},
                                      {INFINITY, 8e-9}, {0.0, 0.0},  {0.0, 8e-9}};
    tam_bucket_range ranges[4];
    tamis_layout *layout = make_layout(lengths, 4);
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        const tam_net net = {.ranks_per_node = 1,
                             .far_s = links[i][0],
                             .far_s_per_byte = links[i][1],
                             .message_s = 0.1 * links[i][0]};
        bool instant = links[i][0] == 0.0 && links[i][1] > 0.0;
        assert_int_equal(plan_buckets(layout, TAMIS_BUCKETS_PLANNED, 0.01, 4, false, &net, ranges),
                         instant ? 4 : 1);
    }
    assert_int_equal(plan_buckets(layout, TAMIS_BUCKETS_PLANNED, NAN, 4, false, &usual_net, ranges),
                     1);
    tamis_layout_destroy(layout);
}

/* Whether the transfer of so many elements takes four times the latency: what they add to messages
 * that are already long. */
static bool pays(const tam_bucket_rule *rule, double length) {
    const tam_net *net = &rule->net;
    const tam_plan *plan = &rule->plan;
    const double far = 1e9, bytes = 4.0 * rule->density * length;
    double latency_s =
        rule->beside_s + tam_plan_gather_s(net, plan, 0.0) + tam_plan_sum_s(net, plan, 0.0);
    double transfer_s = tam_plan_gather_s(net, plan, (far + bytes) / plan->nranks) -
                        tam_plan_gather_s(net, plan, far / plan->nranks) +
                        tam_plan_sum_s(net, plan, far + bytes) - tam_plan_sum_s(net, plan, far);
    return transfer_s >= 4.0 * latency_s;
}

/* 64 segments of 4,000,000 at 1 %, 10 Gbit/s. */
static uint32_t count_of_many(const tam_plan *plan, double beside_s) {
    enum { LENGTH = 4000000 };
    uint64_t lengths[64];
    tam_bucket_range ranges[TAM_BUCKETS_MAX];
    tam_bucket_rule rule = {TAMIS_BUCKETS_PLANNED, 0.01, false, beside_s, usual_net, *plan};
    rule.net.far_s_per_byte = 8e-10;
    for (int i = 0; i < 64; i++)
        lengths[i] = LENGTH;
    tamis_layout *layout = make_layout(lengths, 64);
    uint32_t count = tam_bucket_plan(layout, &rule, ranges);
    double length = (double)ranges[0].nsegments * LENGTH;
    assert_true(count == 1 || pays(&rule, 1.01 * length));
    assert_false(pays(&rule, 0.99 * length - LENGTH));
    tamis_layout_destroy(layout);
    return count;
}

static void the_more_ranks_send_to_all_the_fewer_are_the_buckets(void **state) {
    uint32_t linear[4], staged[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        const uint32_t nranks = (uint32_t[]){2, 64, 1024, 4096}[i];
        const tam_plan all = tam_plan_linear(nranks), stages = tam_plan_make(nranks, 1, 8);
        linear[i] = count_of_many(&all, 0.0);
        staged[i] = count_of_many(&stages, 0.0);
        assert_true(i == 0 || (linear[i] <= linear[i - 1] && staged[i] <= staged[i - 1]));
    }
    assert_int_equal(linear[0], staged[0]);
    assert_true(linear[0] > 10 && linear[1] < linear[0] && linear[1] > 1 && staged[3] > 4);
    assert_int_equal(linear[2], 1);
    assert_int_equal(linear[3], 1);
    const tam_plan two = tam_plan_linear(2);
    uint32_t slower = count_of_many(&two, 1e-3);
    assert_true(slower > 1 && slower < linear[0]);
}

static void buckets_cover_every_segment_once_from_last_to_first(void **state) {
    (void)state;
    static const double densities[] = {1.0, 0.1, 0.01, 0.001};
    uint64_t lengths[SEGMENTS_MOST];
    tam_bucket_range ranges[TAM_BUCKETS_MAX];
    for (uint64_t seed = 0; seed < 2000; seed++) {
        size_t count = 1 + data_mix(seed) % SEGMENTS_MOST;
        for (size_t i = 0; i < count; i++)
            lengths[i] = 1 + data_mix(seed * 1000 + i) % (i % 3 ? 5000 : 10);
        tamis_layout *layout = make_layout(lengths, count);
        uint64_t least = data_mix(seed + 77) % (seed % 2 ? 20 : 20000);
        double density = densities[seed % 4];
        uint32_t n = plan_buckets(layout, least, density, 3, false, &usual_net, ranges);
        uint32_t end = layout->nsegments;
        assert_true(n >= 1 && n <= TAM_BUCKETS_MAX);
        assert_true(n == 1 || n <= density * (double)layout->length);
        for (uint32_t b = 0; b < n; b++) {
            uint64_t length = layout->begins[end] - layout->begins[ranges[b].first_segment];
            assert_true(ranges[b].nsegments > 0);
            assert_int_equal(ranges[b].first_segment + ranges[b].nsegments, end);
            end = ranges[b].first_segment;
            assert_true(length >= least || b == n - 1);
        }
        assert_int_equal(end, 0);
        tamis_layout_destroy(layout);
    }
}

static void many_segments_make_64_buckets(void **state) {
    (void)state;
    uint64_t lengths[SEGMENTS_MOST];
    for (size_t i = 0; i < SEGMENTS_MOST; i++)
        lengths[i] = 1000;
    tam_bucket_range ranges[TAM_BUCKETS_MAX];
    tamis_layout *layout = make_layout(lengths, 256);
    assert_int_equal(plan_buckets(layout, 1, 0.1, 4, false, &usual_net, ranges), 64);
    /* k = 25, so 10,240 elements at least: 23 buckets of 11 segments, and 3 are left */
    assert_int_equal(plan_buckets(layout, 1, 1e-4, 4, false, &usual_net, ranges), 24);
    assert_int_equal(plan_buckets(layout, 1, 1e-9, 4, false, &usual_net, ranges), 1);
    tamis_layout_destroy(layout);
}

/* -- parts ------------------------------------------------------------------------------------ */

__extension__ typedef unsigned __int128 wide;

static void parts_are_exact_beyond_64_bits(void **state) {
    (void)state;
    static const uint64_t limits[] = {1, 1000, UINT32_MAX, UINT64_C(1) << 32,
                                      (UINT64_C(1) << 47) - 1};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        for (uint64_t seed = 0; seed < 3000; seed++) {
            uint64_t c = limits[i] - data_mix(seed) % (limits[i] / 2 + 1);
            uint64_t a = seed % 5 ? data_mix(seed + 1) % (c + 1) : c;
            uint64_t b = seed % 7 ? data_mix(seed + 2) % (c + 1) : c;
            assert_true(tam_bucket_part(a, b, c) == (uint64_t)((wide)a * b / c));
        }
    }
}

/* -- budgets ---------------------------------------------------------------------------------- */

enum { BUCKETS = TAM_BUCKETS_MAX };

typedef struct budget_case {
    uint32_t nbuckets;
    uint64_t k, n, lengths[BUCKETS], even[BUCKETS], budgets[BUCKETS];
    double norms[BUCKETS];
} budget_case;

static double uniform(uint64_t seed) {
    return (double)(data_mix(seed) >> 11) / 9007199254740992.0;
}

/* Norms of 1e-290 to 1e290, of nearly the same size, mostly zero, or as lengths would give. */
static double draw_norm(uint64_t kind, uint64_t seed, uint64_t length) {
    switch (kind) {
    case 0:
        return pow(10.0, 580.0 * uniform(seed) - 290.0);
    case 1:
        return 1.0 + 1e-3 * uniform(seed);
    case 2:
        return uniform(seed) < 0.8 ? 0.0 : uniform(seed + 1);
    default:
        return sqrt((double)length) * (0.2 + uniform(seed));
    }
}

static void draw(uint64_t seed, budget_case *c) {
    uint64_t base = data_mix(seed) << 8;
    *c = (budget_case){.nbuckets = 1 + (uint32_t)(data_mix(base) % BUCKETS)};
    for (uint32_t b = 0; b < c->nbuckets; b++) {
        uint64_t r = data_mix(base + 2 * b + 10);
        c->lengths[b] = r % 5 == 0 ? 1 : 1 + (r >> 8) % (r % 5 == 1 ? 60000000 : 3000);
        c->norms[b] = draw_norm(seed % 4, base + 2 * b + 11, c->lengths[b]);
        c->n += c->lengths[b];
    }
    uint64_t r = data_mix(base + 1);
    c->k = r % 7 == 0 ? c->n : r % 7 == 1 ? (r >> 8) % c->n : (r >> 8) % (c->n / 50 + 1);
    c->k = c->k ? c->k : 1;
}

static uint64_t sum_of(const uint64_t *values, uint32_t count) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

static uint64_t budget_max(const budget_case *c, uint32_t b, tamis_bucket_budget bucket_budget) {
    return tam_bucket_budget_max(c->k, c->lengths[b], c->n, bucket_budget, c->nbuckets);
}

static void budgets_sum_to_k_within_their_bounds(void **state) {
    (void)state;
    budget_case c;
    for (uint64_t seed = 0; seed < 40000; seed++) {
        draw(seed, &c);
        tam_bucket_budgets(c.k, c.nbuckets, c.lengths, c.norms, c.even, c.budgets);
        assert_int_equal(sum_of(c.budgets, c.nbuckets), c.k);
        assert_int_equal(sum_of(c.even, c.nbuckets), c.k);
        for (uint32_t b = 0; b < c.nbuckets; b++) {
            assert_true(c.even[b] <= c.lengths[b] && c.budgets[b] <= c.lengths[b]);
            assert_true(c.k < c.nbuckets || c.budgets[b] >= 1);
            assert_true(2 * c.budgets[b] >= c.even[b]);
            assert_true(c.budgets[b] <= c.even[b] + c.k / c.nbuckets / 10);
            assert_true(c.even[b] <= budget_max(&c, b, TAMIS_BUCKET_BUDGET_LENGTH));
            assert_true(c.budgets[b] <= budget_max(&c, b, TAMIS_BUCKET_BUDGET_NORM));
            assert_true(budget_max(&c, b, TAMIS_BUCKET_BUDGET_NORM) <= c.lengths[b]);
        }
    }
}

/* Buffers are sized for the largest k, and smaller ones are asked for later. */
static void the_most_a_bucket_gets_does_not_fall_with_k(void **state) {
    (void)state;
    static const uint64_t lengths[] = {1, 500, 20, 3};
    for (uint32_t b = 0; b < 4; b++) {
        for (int budget = TAMIS_BUCKET_BUDGET_NORM; budget <= TAMIS_BUCKET_BUDGET_LENGTH;
             budget++) {
            uint64_t before = 0;
            for (uint64_t k = 1; k <= 524; k++) {
                uint64_t most =
                    tam_bucket_budget_max(k, lengths[b], 524, (tamis_bucket_budget)budget, 4);
                assert_true(most >= before);
                before = most;
            }
            assert_int_equal(before, lengths[b]); /* k = n */
        }
    }
    assert_int_equal(tam_bucket_budget_max(100, 5000, 5000, TAMIS_BUCKET_BUDGET_NORM, 1), 100);
}

static void by_length_is_in_proportion_to_length(void **state) {
    (void)state;
    budget_case c;
    for (uint64_t seed = 0; seed < 5000; seed++) {
        draw(seed, &c);
        tam_bucket_budgets(c.k, c.nbuckets, c.lengths, NULL, c.even, c.budgets);
        assert_memory_equal(c.budgets, c.even, c.nbuckets * sizeof c.even[0]);
        for (uint32_t b = 0; b < c.nbuckets && c.k >= c.nbuckets; b++) {
            double exact = 1.0 + (double)(c.k - c.nbuckets) * (double)(c.lengths[b] - 1) /
                                     fmax(1.0, (double)(c.n - c.nbuckets));
            assert_true(fabs((double)c.budgets[b] - exact) < 1.0 + 1e-6);
        }
    }
}

static void with_fewer_entries_than_buckets_the_first_get_one(void **state) {
    (void)state;
    static const uint64_t lengths[] = {4, 400, 40, 1};
    static const double norms[] = {0.0, 1.0, 9.0, 1e9};
    uint64_t even[4], budgets[4];
    tam_bucket_budgets(2, 4, lengths, norms, even, budgets);
    assert_memory_equal(budgets, ((uint64_t[]){1, 1, 0, 0}), sizeof budgets);
    tam_bucket_budgets(4, 4, lengths, norms, even, budgets);
    assert_memory_equal(budgets, ((uint64_t[]){1, 1, 1, 1}), sizeof budgets);
}

/* Even budgets are 100 each of 1000 elements, so bounds are 50 and 110. */
static void check_by_norm(uint32_t nbuckets, const double *norms, const uint64_t *expected) {
    static const uint64_t lengths[] = {1000, 1000, 1000, 1000, 1000, 1000, 1000};
    uint64_t even[7], budgets[7];
    tam_bucket_budgets(100 * nbuckets, nbuckets, lengths, norms, even, budgets);
    for (uint32_t b = 0; b < nbuckets; b++) {
        assert_int_equal(even[b], 100);
        assert_int_equal(budgets[b], expected[b]);
    }
}

static void examples_by_norm_worked_by_hand(void **state) {
    (void)state;
    check_by_norm(4, (double[]){1, 1, 1, 1}, (uint64_t[]){100, 100, 100, 100});
    check_by_norm(4, (double[]){9, 9, 9, 7}, (uint64_t[]){106, 106, 106, 82});
    check_by_norm(4, (double[]){2, 3, 4, 1}, (uint64_t[]){110, 110, 110, 70}); /* 180 at 2:1 */
    check_by_norm(4, (double[]){6, 1, 1, 1}, (uint64_t[]){110, 97, 96, 97});   /* 290 among three */
    check_by_norm(4, (double[]){9, 0, 0, 0}, (uint64_t[]){110, 97, 96, 97}); /* silent: by length */
    check_by_norm(4, (double[]){1e-300, 1e280, 1e280, 1e-300}, (uint64_t[]){90, 110, 110, 90});
    /* 0 and six times 117: once the first has its 50, the others have 108 */
    check_by_norm(7, (double[]){0, 1, 1, 1, 1, 1, 1},
                  (uint64_t[]){50, 108, 109, 108, 108, 109, 108});
}

static void norms_that_say_nothing_leave_budgets_by_length(void **state) {
    (void)state;
    static const uint64_t lengths[] = {10, 2000, 300, 1};
    static const double useless[][4] = {{0, 0, 0, 0},        {1, NAN, 1, 1},
                                        {1, 1, INFINITY, 1}, {1e300, 1e300, 1e300, 1},
                                        {1, 1, 1, -1},       {-0.0, 0, 0, 0}};
    uint64_t even[4], budgets[4];
    for (size_t i = 0; i < sizeof useless / sizeof useless[0]; i++) {
        memset(budgets, 0xff, sizeof budgets);
        tam_bucket_budgets(231, 4, lengths, useless[i], even, budgets);
        assert_memory_equal(budgets, even, sizeof even);
    }
}

static void a_larger_norm_gets_more(void **state) {
    (void)state;
    uint64_t lengths[BUCKETS], even[BUCKETS], budgets[BUCKETS];
    double norms[BUCKETS];
    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint32_t nbuckets = 2 + (uint32_t)(seed % (BUCKETS - 1));
        double norm = 0.01;
        for (uint32_t b = 0; b < nbuckets; b++) {
            lengths[b] = 4096;
            norms[b] = norm;
            norm *= 1.0 + uniform(seed * BUCKETS + b) * (seed % 3 ? 0.1 : 2.0);
        }
        tam_bucket_budgets((1 + seed % 97) * nbuckets, nbuckets, lengths, norms, even, budgets);
        for (uint32_t b = 1; b < nbuckets; b++)
            assert_true(budgets[b] + 1 >= budgets[b - 1]); /* both are rounded */
    }
}

static double bounded(const budget_case *c, uint32_t b, double scale) {
    double wish = scale * c->norms[b];
    double low = (double)((c->even[b] + 1) / 2),
           high = (double)(c->even[b] + c->k / c->nbuckets / 10);
    high = fmin(high, (double)c->lengths[b]);
    return fmin(fmax(wish, low), high);
}

/* The factor at which bounded norms sum to k, by bisection of its logarithm. */
static double find_scale(const budget_case *c) {
    double low = -1000.0, high = 1000.0;
    for (int i = 0; i < 100; i++) {
        double middle = 0.5 * (low + high), sum = 0.0;
        for (uint32_t b = 0; b < c->nbuckets; b++)
            sum += bounded(c, b, exp2(middle));
        *(sum < (double)c->k ? &low : &high) = middle;
    }
    return exp2(high);
}

static void budgets_are_bounded_norms_in_one_proportion(void **state) {
    (void)state;
    budget_case c;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        draw(seed, &c);
        if (seed % 4 == 2 || c.k < c.nbuckets) /* zeros have no proportion */
            continue;
        tam_bucket_budgets(c.k, c.nbuckets, c.lengths, c.norms, c.even, c.budgets);
        double scale = find_scale(&c);
        for (uint32_t b = 0; b < c.nbuckets; b++)
            assert_true(fabs((double)c.budgets[b] - bounded(&c, b, scale)) < 1.01);
    }
}

/* Away from the bounds budgets are norms up to rounding, so their scale does not matter. */
static void between_the_bounds_budgets_are_norms(void **state) {
    (void)state;
    uint64_t lengths[8], even[8], budgets[8];
    double norms[8];
    for (uint64_t seed = 0; seed < 1000; seed++) {
        double sum = 0.0, scale = pow(10.0, 400.0 * uniform(seed + 5) - 200.0);
        for (uint32_t b = 0; b < 8; b++) {
            lengths[b] = 100000;
            norms[b] = scale * (0.96 + 0.08 * uniform(seed * 8 + b));
            sum += norms[b];
        }
        tam_bucket_budgets(8000, 8, lengths, norms, even, budgets);
        for (uint32_t b = 0; b < 8; b++)
            assert_true(fabs((double)budgets[b] - 8000.0 * norms[b] / sum) < 1.0 + 1e-6);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_are_joined_until_there_are_enough),
        cmocka_unit_test(a_segment_with_rows_is_a_bucket),
        cmocka_unit_test(segments_with_rows_count_among_the_buckets),
        cmocka_unit_test(a_planned_bucket_pays_for_its_latency),
        cmocka_unit_test(scheme_dense_has_rounds_and_bytes_of_its_own),
        cmocka_unit_test(a_link_without_speed_gives_one_bucket),
        cmocka_unit_test(the_more_ranks_send_to_all_the_fewer_are_the_buckets),
        cmocka_unit_test(buckets_cover_every_segment_once_from_last_to_first),
        cmocka_unit_test(many_segments_make_64_buckets),
        cmocka_unit_test(parts_are_exact_beyond_64_bits),
        cmocka_unit_test(budgets_sum_to_k_within_their_bounds),
        cmocka_unit_test(the_most_a_bucket_gets_does_not_fall_with_k),
        cmocka_unit_test(by_length_is_in_proportion_to_length),
        cmocka_unit_test(with_fewer_entries_than_buckets_the_first_get_one),
        cmocka_unit_test(examples_by_norm_worked_by_hand),
        cmocka_unit_test(norms_that_say_nothing_leave_budgets_by_length),
        cmocka_unit_test(a_larger_norm_gets_more),
        cmocka_unit_test(budgets_are_bounded_norms_in_one_proportion),
        cmocka_unit_test(between_the_bounds_budgets_are_norms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
