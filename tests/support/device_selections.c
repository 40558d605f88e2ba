/* SPDX-License-Identifier: MIT
 *
 * Compares selections with sorting: every method must give the entries that sorting gives.
 */
#include "tests/support/device_body.h"
#include "tests/support/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static int by_key(const void *a, const void *b) {
    const tam_pair *x = a, *y = b;
    if (x->key != y->key)
        return x->key > y->key ? -1 : 1;
    return x->value < y->value ? -1 : 1;
}

static int by_index(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : 1;
}

static bool owned(uint32_t mine, uint32_t part) {
    return part != TAM_PART_COMMON && (mine == TAM_PART_ALL || part == mine);
}

/* Entries of this part's tiles in groups `first` to `last`, with their keys. */
static size_t list_own(const world *w, uint32_t mine, const float *weights, uint32_t first,
                       uint32_t last, tam_pair *out) {
    size_t count = 0;
    for (uint32_t t = 0; t < w->grid.ntiles; t++) {
        const tam_tile *tile = &w->grid.tiles[t];
        if (!owned(mine, tile->part) || tile->group < first || tile->group > last)
            continue;
        for (uint32_t i = tile->begin; i < tile->begin + tile->length; i++) {
            float key =
                tam_float(tam_magnitude(w->mirror[i])) * (weights ? weights[tile->group] : 1);
            out[count++] = (tam_pair){tam_magnitude(key), i};
        }
    }
    return count;
}

static size_t keep_largest(tam_pair *pairs, size_t count, size_t k) {
    qsort(pairs, count, sizeof pairs[0], by_key);
    return count < k ? count : k;
}

static void expect(world *w, const tam_pair *pairs, size_t count, const tam_select_result *have) {
    for (size_t i = 0; i < count; i++)
        w->expected[i] = (uint32_t)pairs[i].value;
    qsort(w->expected, count, sizeof w->expected[0], by_index);
    assert_int_equal(have->count, count);
    assert_memory_equal(w->indices, w->expected, count * sizeof w->indices[0]);
    assert_int_equal(tam_bits(have->key), count > 0 ? pairs[count - 1].key : 0);
}

static void check_total(world *w, const tam_select_job *job) {
    tam_pair *pairs = test_calloc(w->grid.n + 1, sizeof pairs[0]);
    size_t own = list_own(w, job->mine, job->weights, 0, GROUPS - 1, pairs);
    size_t count = keep_largest(pairs, own, job->k);
    tam_select_result result = world_select(w, job);
    expect(w, pairs, count, &result);
    assert_int_equal(result.deferred, 0);
    test_free(pairs);
}

/* A selection by a list, by a search and by a scan gives the same, chosen by capacity. */
static void check_ways(uint32_t n, int pattern, uint32_t mine, size_t k, const float *weights) {
    const size_t capacities[] = {n, 3 * k, 1};
    for (size_t i = 0; i < LENGTH(capacities); i++) {
        world w;
        world_open(&w, (world_plan){.n = n, .parts = LAST_COMMON, .capacity = capacities[i]});
        world_fill(&w, pattern);
        tam_select_job job = {
            .kind = TAM_SELECT_TOTAL, .acc = w.acc, .mine = mine, .k = k, .weights = weights};
        check_total(&w, &job);
        world_take_uniform(&w, mine, 1);
        job.candidates = &w.seen.candidates;
        check_total(&w, &job);
        world_close(&w);
    }
}

static void test_total_equals_sorting_by_list_search_and_scan(void **state) {
    (void)state;
    const uint32_t sizes[] = {world_length(2000), world_length(150000)};
    for (size_t s = 0; s < (sizes[0] < sizes[1] ? 2 : 1); s++) {
        const size_t ks[] = {0, 1, 7, sizes[s] / 1000, sizes[s] / 90, sizes[s] / 3, sizes[s]};
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            for (size_t k = 0; k < LENGTH(ks); k++)
                check_ways(sizes[s], pattern, k % 2 ? TAM_PART_ALL : 1, ks[k], NULL);
        }
    }
}

static void test_total_weighs_groups_with_one_rounding(void **state) {
    (void)state;
    static const float weights[][GROUPS] = {{1e-38f, 1e38f, 1, 1e20f, 3e-3f},
                                            {0.1f, 0.3f, 0.7f, 1.1f, 1e-45f},
                                            {3e38f, 3e38f, 3e38f, 1, 3e38f}};
    uint32_t n = world_length(120000);
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < LENGTH(weights); i++)
            check_ways(n, pattern, i == 0 ? 2 : TAM_PART_ALL, n / 100, weights[i]);
    }
}

static void test_candidates_that_reach_below_the_threshold_are_not_searched_again(void **state) {
    (void)state;
    uint32_t n = world_length(100000);
    world w;
    world_open(&w, (world_plan){.n = n, .capacity = n / 25});
    world_fill(&w, HEAVY);
    world_take_uniform(&w, TAM_PART_ALL, tam_bits(50000.0f));
    assert_true(w.seen.candidates.complete);
    assert_in_range(w.seen.candidates.count, n / 100, n / 25);
    tam_select_job job = {.kind = TAM_SELECT_TOTAL,
                          .acc = w.acc,
                          .mine = TAM_PART_ALL,
                          .k = n / 100,
                          .floor_key = 60000.0f,
                          .candidates = &w.seen.candidates};
    assert_false(world_select(&w, &job).rescanned);
    check_total(&w, &job);
    job.floor_key = 1e30f; /* as if the list were useless */
    assert_true(world_select(&w, &job).rescanned);
    job.candidates = NULL;
    check_total(&w, &job);
    world_close(&w);
}

static void test_a_threshold_at_the_floor_itself_is_searched_again(void **state) {
    (void)state;
    const uint32_t thresholds[GROUPS] = {TAM_INFINITE_BITS, 1, 1, 1, 1};
    uint32_t n = world_length(50000);
    world w;
    world_open(&w, (world_plan){.n = n, .capacity = n});
    world_fill(&w, EQUAL);
    world_take(&w, TAM_PART_ALL, thresholds); /* the first group is as large as the others: 3 */
    tam_select_job job = {.kind = TAM_SELECT_TOTAL,
                          .acc = w.acc,
                          .mine = TAM_PART_ALL,
                          .k = 100,
                          .floor_key = 3.0f,
                          .candidates = &w.seen.candidates};
    check_total(&w, &job);
    world_close(&w);
}

static void check_groups(world *w, const tam_select_job *job) {
    tam_pair *chosen = test_calloc(w->grid.n + 1, sizeof chosen[0]);
    size_t total = 0;
    for (uint32_t g = 0; g < GROUPS; g++) {
        size_t own = list_own(w, job->mine, NULL, g, g, chosen + total);
        total += keep_largest(chosen + total, own, job->budgets[g]);
    }
    size_t count = keep_largest(chosen, total, job->k);
    tam_select_result result = world_select(w, job);
    expect(w, chosen, count, &result);
    assert_int_equal(result.deferred, total - count);
    test_free(chosen);
}

static void check_group_budgets(int pattern, size_t capacity, size_t most, uint32_t threads) {
    uint32_t n = world_length(200000);
    const uint32_t budgets[GROUPS] = {n / 285, 5, 0, 30, n / 100};
    world w;
    world_open(&w,
               (world_plan){.n = n, .parts = BY_GROUP, .capacity = capacity, .threads = threads});
    world_fill(&w, pattern);
    for (uint32_t part = 0; part <= PARTS; part++) {
        uint32_t mine = part < PARTS ? part : TAM_PART_ALL;
        tam_select_job job = {
            .kind = TAM_SELECT_GROUPS, .acc = w.acc, .mine = mine, .k = most, .budgets = budgets};
        check_groups(&w, &job);
    }
    world_close(&w);
}

static void test_groups_equals_sorting_each_group(void **state) {
    (void)state;
    uint32_t n = world_length(200000);
    const size_t capacities[] = {n, n / 33, 10};
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < LENGTH(capacities); i++) {
            check_group_budgets(pattern, capacities[i], n / 40 + 100, 1);
            check_group_budgets(pattern, capacities[i], n / 40 + 100, 3);
            check_group_budgets(pattern, capacities[i], n / 400, 3);
        }
    }
}

static void check_all(world *w, const tam_select_job *job, const uint32_t thresholds[GROUPS]) {
    tam_pair *pairs = test_calloc(w->grid.n + 1, sizeof pairs[0]);
    size_t over = 0, total = 0;
    for (uint32_t g = 0; g < GROUPS; g++) {
        size_t own = list_own(w, job->mine, NULL, g, g, pairs + over), end = over + own;
        for (size_t i = over; i < end; i++) {
            if (pairs[i].key >= thresholds[g])
                pairs[total++] = pairs[i];
        }
        over = total;
    }
    size_t count = keep_largest(pairs, total, job->k);
    tam_select_result result = world_select(w, job);
    expect(w, pairs, count, &result);
    assert_int_equal(result.deferred, total - count);
    assert_int_equal(result.candidates, total);
    test_free(pairs);
}

static void test_all_takes_what_reaches_its_threshold_and_defers_the_rest(void **state) {
    (void)state;
    const uint32_t thresholds[GROUPS] = {1, tam_bits(2.0f), tam_bits(900.0f), TAM_INFINITE_BITS,
                                         tam_bits(3.0f)};
    uint32_t n = world_length(60000);
    const size_t capacities[] = {n, n / 200}, most[] = {n, 100, 0};
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < 2 * LENGTH(most); i++) {
            world w;
            world_open(&w, (world_plan){.n = n, .capacity = capacities[i % 2]});
            world_fill(&w, pattern);
            uint32_t mine = i % 4 < 2 ? 0 : TAM_PART_ALL;
            world_take(&w, mine, thresholds);
            tam_select_job job = {.kind = TAM_SELECT_ALL,
                                  .acc = w.acc,
                                  .mine = mine,
                                  .k = most[i / 2],
                                  .candidates = &w.seen.candidates};
            check_all(&w, &job, thresholds);
            world_close(&w);
        }
    }
}

/* Independent of the thresholds of the last accumulate. */
static void test_all_with_a_threshold_of_its_own_needs_no_candidates(void **state) {
    (void)state;
    const uint32_t thresholds[] = {1, tam_bits(2.0f), tam_bits(900.0f)};
    uint32_t n = world_length(60000);
    const size_t capacities[] = {n, n / 200}, most[] = {n, 100, 0};
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < 2 * LENGTH(most); i++) {
            world w;
            uint32_t mine = i % 4 < 2 ? 0 : TAM_PART_ALL, all[GROUPS];
            world_open(&w, (world_plan){.n = n, .capacity = capacities[i % 2]});
            world_fill(&w, pattern);
            world_take_uniform(&w, mine, i % 3 ? TAM_INFINITE_BITS : tam_bits(30.0f));
            for (uint32_t g = 0; g < GROUPS; g++)
                all[g] = thresholds[i % LENGTH(thresholds)];
            tam_select_job job = {.kind = TAM_SELECT_ALL,
                                  .acc = w.acc,
                                  .mine = mine,
                                  .k = most[i / 2],
                                  .threshold = all[0]};
            check_all(&w, &job, all);
            world_close(&w);
        }
    }
}

int device_selections(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_total_equals_sorting_by_list_search_and_scan),
        cmocka_unit_test(test_total_weighs_groups_with_one_rounding),
        cmocka_unit_test(test_candidates_that_reach_below_the_threshold_are_not_searched_again),
        cmocka_unit_test(test_a_threshold_at_the_floor_itself_is_searched_again),
        cmocka_unit_test(test_groups_equals_sorting_each_group),
        cmocka_unit_test(test_all_takes_what_reaches_its_threshold_and_defers_the_rest),
        cmocka_unit_test(test_all_with_a_threshold_of_its_own_needs_no_candidates),
    };
    return cmocka_run_group_tests_name("selections", tests, NULL, NULL);
}
