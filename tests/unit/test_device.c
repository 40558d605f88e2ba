/* SPDX-License-Identifier: MIT
 *
 * The CPU device against plain oracles: every way to a cut gives the entries that sorting gives.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/tile.h"
#include "lib/base/base.h"
#include "tests/support/data.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum { GROUPS = 5, BLOCK = 1000, PARTS = 3 };

/* A vector of GROUPS groups of odd lengths, each a segment, in tiles of at most BLOCK elements. */
typedef struct world {
    tam_grid grid;
    tam_group groups[GROUPS];
    uint32_t begins[GROUPS];
    void *device;
    float *acc;
    uint32_t *indices, *expected;
    tam_accumulated seen;
} world;

/* Parts go round by tile, or by group, and the last group may be common. */
enum { BY_TILE, BY_GROUP, LAST_COMMON };

static uint32_t part_of(int parts, uint32_t tile, uint32_t group) {
    if (parts == LAST_COMMON && group == GROUPS - 1)
        return TAM_PART_COMMON;
    return (parts == BY_GROUP ? group : tile) % PARTS;
}

static void add_tiles(world *w, int parts, uint32_t g) {
    tam_group *group = &w->groups[g];
    group->first_tile = w->grid.ntiles;
    for (uint32_t at = 0; at < group->length; at += BLOCK) {
        uint32_t left = group->length - at, t = w->grid.ntiles++;
        w->grid.tiles[t] =
            (tam_tile){group->begin + at, left < BLOCK ? left : BLOCK, g, part_of(parts, t, g)};
    }
    group->ntiles = w->grid.ntiles - group->first_tile;
}

static void open_world(world *w, uint32_t n, int parts, size_t capacity, uint32_t threads) {
    const uint32_t shares[GROUPS] = {n / 7, 1, n / 2, 37, n - n / 7 - n / 2 - 38};
    *w = (world){.grid = {.n = n, .groups = w->groups, .ngroups = GROUPS}};
    w->grid.tiles = test_calloc(n / BLOCK + GROUPS, sizeof(tam_tile));
    for (uint32_t g = 0, begin = 0; g < GROUPS; begin += shares[g++]) {
        w->groups[g] = (tam_group){.begin = begin, .length = shares[g], .segment = g};
        w->begins[g] = begin;
        add_tiles(w, parts, g);
    }
    assert_int_equal(tam_device_cpu.open(&w->grid, capacity, threads, &w->device), TAMIS_OK);
    w->acc = tam_device_cpu.alloc(w->device, n * sizeof w->acc[0]);
    w->indices = test_calloc(n + 1, sizeof w->indices[0]);
    w->expected = test_calloc(n + 1, sizeof w->expected[0]);
    assert_non_null(w->acc);
}

static void close_world(world *w) {
    tam_device_cpu.release(w->device, w->acc);
    tam_device_cpu.close(w->device);
    test_free(w->indices);
    test_free(w->expected);
    test_free(w->grid.tiles);
}

enum { HEAVY, TIES, ZERO, EQUAL, SPARSE, DENORMAL, LARGE, CLUSTERED, PATTERNS };

static float value_of(int pattern, uint32_t i, uint32_t n) {
    uint64_t random = data_mix(i + 99);
    float u = ((float)(random >> 40) + 1) / 16777217.0f, x = 1 / (u * u * u);
    switch (pattern) {
    case TIES:
        x = (float)(random >> 8 & 3);
        break;
    case ZERO:
        x = 0;
        break;
    case EQUAL:
        x = 3;
        break;
    case SPARSE:
        x = random % 500 == 7 ? x : 0;
        break;
    case DENORMAL:
        x = tam_float((uint32_t)(random >> 45));
        break;
    case LARGE:
        x = u > 0.7f ? FLT_MAX : u * FLT_MAX;
        break;
    case CLUSTERED:
        x = i > n - n / 40 ? x * 1e6f : u;
        break;
    default:
        break;
    }
    return random & 1 ? -x : x;
}

static void fill_world(world *w, int pattern) {
    for (uint32_t i = 0; i < w->grid.n; i++)
        w->acc[i] = value_of(pattern, i, (uint32_t)w->grid.n);
}

/* Accumulate a zero gradient: the residual stays, candidates are taken. */
static void take(world *w, uint32_t mine, const uint32_t thresholds[GROUPS]) {
    float *zero = test_calloc(w->grid.n, sizeof zero[0]);
    tam_accumulate job = {
        .acc = w->acc, .grad = zero, .scale = 1, .mine = mine, .thresholds = thresholds};
    assert_int_equal(tam_device_cpu.accumulate(w->device, &job, &w->seen), TAMIS_OK);
    test_free(zero);
}

static void take_uniform(world *w, uint32_t mine, uint32_t threshold) {
    const uint32_t thresholds[GROUPS] = {threshold, threshold, threshold, threshold, threshold};
    take(w, mine, thresholds);
}

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

/* Entries of the own tiles of groups `first` to `last` with their keys. */
static size_t list_own(const world *w, uint32_t mine, const float *weights, uint32_t first,
                       uint32_t last, tam_pair *out) {
    size_t count = 0;
    for (uint32_t t = 0; t < w->grid.ntiles; t++) {
        const tam_tile *tile = &w->grid.tiles[t];
        if (!owned(mine, tile->part) || tile->group < first || tile->group > last)
            continue;
        for (uint32_t i = tile->begin; i < tile->begin + tile->length; i++) {
            float key = tam_float(tam_magnitude(w->acc[i])) * (weights ? weights[tile->group] : 1);
            out[count++] = (tam_pair){tam_magnitude(key), i};
        }
    }
    return count;
}

static size_t keep_largest(tam_pair *pairs, size_t count, size_t k) {
    qsort(pairs, count, sizeof pairs[0], by_key);
    return count < k ? count : k;
}

static void expect(world *w, const tam_pair *pairs, size_t count, const tam_cut_result *have) {
    for (size_t i = 0; i < count; i++)
        w->expected[i] = (uint32_t)pairs[i].value;
    qsort(w->expected, count, sizeof w->expected[0], by_index);
    assert_int_equal(have->count, count);
    assert_memory_equal(w->indices, w->expected, count * sizeof w->indices[0]);
    assert_int_equal(tam_bits(have->key), count > 0 ? pairs[count - 1].key : 0);
}

static tam_cut_result cut(world *w, const tam_cut *job) {
    tam_cut_result result;
    memset(w->indices, 0x77, (w->grid.n + 1) * sizeof w->indices[0]);
    assert_int_equal(tam_device_cpu.cut(w->device, job, w->indices, &result), TAMIS_OK);
    assert_int_equal(w->indices[result.count], 0x77777777); /* no room beyond the result */
    return result;
}

static void check_total(world *w, const tam_cut *job) {
    tam_pair *pairs = test_calloc(w->grid.n + 1, sizeof pairs[0]);
    size_t own = list_own(w, job->mine, job->weights, 0, GROUPS - 1, pairs);
    size_t count = keep_largest(pairs, own, job->k);
    tam_cut_result result = cut(w, job);
    expect(w, pairs, count, &result);
    assert_int_equal(result.deferred, 0);
    test_free(pairs);
}

/* The same cut by way of a list, of a search and of a scan: capacity decides. */
static void check_ways(uint32_t n, int pattern, uint32_t mine, size_t k, const float *weights) {
    const size_t capacities[] = {n, 3 * k, 1};
    for (size_t i = 0; i < LENGTH(capacities); i++) {
        world w;
        open_world(&w, n, LAST_COMMON, capacities[i], 1);
        fill_world(&w, pattern);
        tam_cut job = {
            .kind = TAM_CUT_TOTAL, .acc = w.acc, .mine = mine, .k = k, .weights = weights};
        check_total(&w, &job);
        take_uniform(&w, mine, 1);
        job.candidates = &w.seen.candidates;
        check_total(&w, &job);
        close_world(&w);
    }
}

static void test_total_equals_sorting_by_list_search_and_scan(void **state) {
    (void)state;
    const uint32_t sizes[] = {2000, 150000};
    for (size_t s = 0; s < LENGTH(sizes); s++) {
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
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < LENGTH(weights); i++)
            check_ways(120000, pattern, i == 0 ? 2 : TAM_PART_ALL, 1200, weights[i]);
    }
}

static void test_candidates_that_reach_below_the_cut_are_not_searched_again(void **state) {
    (void)state;
    world w;
    open_world(&w, 100000, BY_TILE, 4000, 1);
    fill_world(&w, HEAVY);
    take_uniform(&w, TAM_PART_ALL, tam_bits(50000.0f));
    assert_true(w.seen.candidates.complete);
    assert_in_range(w.seen.candidates.count, 1000, 4000);
    tam_cut job = {.kind = TAM_CUT_TOTAL,
                   .acc = w.acc,
                   .mine = TAM_PART_ALL,
                   .k = 1000,
                   .floor_key = 60000.0f,
                   .candidates = &w.seen.candidates};
    assert_false(cut(&w, &job).rescanned);
    check_total(&w, &job);
    job.floor_key = 1e30f; /* as if the list held nothing of use */
    assert_true(cut(&w, &job).rescanned);
    job.candidates = NULL;
    check_total(&w, &job);
    close_world(&w);
}

static void test_a_cut_at_the_floor_itself_is_searched_again(void **state) {
    (void)state;
    const uint32_t thresholds[GROUPS] = {TAM_INFINITE_BITS, 1, 1, 1, 1};
    world w;
    open_world(&w, 50000, BY_TILE, 50000, 1);
    fill_world(&w, EQUAL);
    take(&w, TAM_PART_ALL, thresholds); /* the first group is as large as the others: 3 */
    tam_cut job = {.kind = TAM_CUT_TOTAL,
                   .acc = w.acc,
                   .mine = TAM_PART_ALL,
                   .k = 100,
                   .floor_key = 3.0f,
                   .candidates = &w.seen.candidates};
    check_total(&w, &job);
    close_world(&w);
}

static void test_a_search_considers_few_entries(void **state) {
    (void)state;
    world w;
    open_world(&w, 400000, BY_TILE, 8000, 1);
    fill_world(&w, HEAVY);
    tam_cut_result result =
        cut(&w, &(tam_cut){.kind = TAM_CUT_TOTAL, .acc = w.acc, .mine = TAM_PART_ALL, .k = 4000});
    assert_in_range(result.candidates, 4000, 8000);
    close_world(&w);
}

static void check_groups(world *w, const tam_cut *job) {
    tam_pair *chosen = test_calloc(w->grid.n + 1, sizeof chosen[0]);
    size_t total = 0;
    for (uint32_t g = 0; g < GROUPS; g++) {
        size_t own = list_own(w, job->mine, NULL, g, g, chosen + total);
        total += keep_largest(chosen + total, own, job->budgets[g]);
    }
    size_t count = keep_largest(chosen, total, job->k);
    tam_cut_result result = cut(w, job);
    expect(w, chosen, count, &result);
    assert_int_equal(result.deferred, total - count);
    test_free(chosen);
}

static void check_group_budgets(int pattern, size_t capacity, size_t most, uint32_t threads) {
    const uint32_t budgets[GROUPS] = {700, 5, 0, 30, 2000};
    world w;
    open_world(&w, 200000, BY_GROUP, capacity, threads);
    fill_world(&w, pattern);
    for (uint32_t part = 0; part <= PARTS; part++) {
        uint32_t mine = part < PARTS ? part : TAM_PART_ALL;
        tam_cut job = {
            .kind = TAM_CUT_GROUPS, .acc = w.acc, .mine = mine, .k = most, .budgets = budgets};
        check_groups(&w, &job);
    }
    close_world(&w);
}

static void test_groups_equals_sorting_each_group(void **state) {
    (void)state;
    const size_t capacities[] = {200000, 6000, 10};
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < LENGTH(capacities); i++) {
            check_group_budgets(pattern, capacities[i], 5000, 1);
            check_group_budgets(pattern, capacities[i], 5000, 3);
            check_group_budgets(pattern, capacities[i], 500, 3);
        }
    }
}

static void check_all(world *w, const tam_cut *job, const uint32_t thresholds[GROUPS]) {
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
    tam_cut_result result = cut(w, job);
    expect(w, pairs, count, &result);
    assert_int_equal(result.deferred, total - count);
    assert_int_equal(result.candidates, total);
    test_free(pairs);
}

static void test_all_takes_what_reaches_its_threshold_and_defers_the_rest(void **state) {
    (void)state;
    const uint32_t thresholds[GROUPS] = {1, tam_bits(2.0f), tam_bits(900.0f), TAM_INFINITE_BITS,
                                         tam_bits(3.0f)};
    const size_t capacities[] = {60000, 300}, most[] = {60000, 100, 0};
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        for (size_t i = 0; i < 2 * LENGTH(most); i++) {
            world w;
            open_world(&w, 60000, BY_TILE, capacities[i % 2], 1);
            fill_world(&w, pattern);
            uint32_t mine = i % 4 < 2 ? 0 : TAM_PART_ALL;
            take(&w, mine, thresholds);
            tam_cut job = {.kind = TAM_CUT_ALL,
                           .acc = w.acc,
                           .mine = mine,
                           .k = most[i / 2],
                           .candidates = &w.seen.candidates};
            check_all(&w, &job, thresholds);
            close_world(&w);
        }
    }
}

static void test_an_overfull_list_is_incomplete_and_the_pass_is_not_affected(void **state) {
    (void)state;
    world small, large;
    open_world(&small, 50000, BY_TILE, 49, 1);
    open_world(&large, 50000, BY_TILE, 50000, 1);
    fill_world(&small, EQUAL);
    fill_world(&large, EQUAL);
    take_uniform(&small, TAM_PART_ALL, 1);
    take_uniform(&large, TAM_PART_ALL, 1);
    assert_false(small.seen.candidates.complete);
    assert_true(large.seen.candidates.complete);
    assert_int_equal(large.seen.candidates.count, 50000);
    assert_memory_equal(small.acc, large.acc, 50000 * sizeof small.acc[0]);
    assert_memory_equal(small.seen.group_sums, large.seen.group_sums, GROUPS * sizeof(double));
    close_world(&small);
    close_world(&large);
}

static void test_a_list_that_is_just_full_is_complete(void **state) {
    (void)state;
    for (uint32_t threads = 1; threads <= 7; threads += 2) {
        for (size_t missing = 0; missing < 2; missing++) {
            world w;
            open_world(&w, 80000, BY_TILE, 80000 - missing, threads);
            fill_world(&w, EQUAL);
            take_uniform(&w, TAM_PART_ALL, 1);
            assert_int_equal(w.seen.candidates.complete, missing == 0);
            close_world(&w);
        }
    }
}

static void test_only_own_tiles_give_candidates_and_all_tiles_give_sums(void **state) {
    (void)state;
    world w;
    open_world(&w, 60000, LAST_COMMON, 60000, 1);
    fill_world(&w, EQUAL);
    for (uint32_t part = 0; part < PARTS; part++) {
        size_t own = 0;
        take_uniform(&w, part, 1);
        for (uint32_t t = 0; t < w.grid.ntiles; t++)
            own += w.grid.tiles[t].part == part ? w.grid.tiles[t].length : 0;
        assert_int_equal(w.seen.candidates.count, own);
        for (uint32_t g = 0; g < GROUPS; g++)
            assert_true(w.seen.group_sums[g] == 9.0 * w.groups[g].length);
    }
    close_world(&w);
}

/* One step on a gradient with bad entries; everything it leaves behind. */
static void step(world *w, float *grad, float *const *grads, bool clear) {
    const uint32_t thresholds[GROUPS] = {tam_bits(30.0f), 1, tam_bits(10.0f), 1, tam_bits(90.0f)};
    tam_accumulate job = {.acc = w->acc,
                          .grad = grad,
                          .grads = grads,
                          .seg_begin = w->begins,
                          .scale = 0.7f,
                          .clear = clear,
                          .mine = 1,
                          .thresholds = thresholds};
    assert_int_equal(tam_device_cpu.accumulate(w->device, &job, &w->seen), TAMIS_OK);
    tam_cut_result r = cut(w, &(tam_cut){.kind = TAM_CUT_TOTAL,
                                         .acc = w->acc,
                                         .mine = 1,
                                         .k = 2000,
                                         .candidates = &w->seen.candidates,
                                         .floor_key = 91.0f});
    assert_int_equal(r.count, 2000);
}

static void fill_gradient(float *grad, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        grad[i] = i % 1009 == 5 ? NAN : value_of(HEAVY, i + 1234567, n);
}

static void same_worlds(const world *a, const world *b) {
    assert_memory_equal(a->acc, b->acc, a->grid.n * sizeof a->acc[0]);
    assert_memory_equal(a->indices, b->indices, 2000 * sizeof a->indices[0]);
    assert_memory_equal(a->seen.group_sums, b->seen.group_sums, GROUPS * sizeof(double));
    assert_int_equal(a->seen.nonfinite, b->seen.nonfinite);
    assert_true(a->seen.nonfinite > 0);
    const tam_candidates *x = &a->seen.candidates, *y = &b->seen.candidates;
    assert_int_equal(x->count, y->count);
    assert_memory_equal(x->index, y->index, x->count * sizeof x->index[0]);
    assert_memory_equal(x->magnitude, y->magnitude, x->count * sizeof x->magnitude[0]);
}

static void test_any_number_of_threads_gives_the_same_bits(void **state) {
    (void)state;
    enum { N = 300001 };
    static float grad[N];
    world one, three;
    open_world(&one, N, BY_TILE, N, 1);
    open_world(&three, N, BY_TILE, N, 3);
    fill_world(&one, CLUSTERED);
    fill_world(&three, CLUSTERED);
    fill_gradient(grad, N);
    step(&one, grad, NULL, false);
    step(&three, grad, NULL, false);
    same_worlds(&one, &three);
    close_world(&one);
    close_world(&three);
}

/* Gradients of the segments, each 4-byte aligned only, cut out of one array. */
static void split(const world *w, const float *flat, float *pool, float *grads[GROUPS]) {
    for (uint32_t g = 0; g < GROUPS; g++) {
        grads[g] = pool + w->begins[g] + 3 * g + 1;
        memcpy(grads[g], flat + w->begins[g], w->groups[g].length * sizeof flat[0]);
    }
}

/* Write to the first and the last entry of every segment, both ways. */
static void apply_at_edges(world *w, float *flat, float *const *grads) {
    float values[2 * GROUPS], again[2 * GROUPS];
    uint32_t edges[2 * GROUPS], count = 0;
    for (uint32_t g = 0; g < GROUPS; g++) {
        edges[count++] = w->begins[g];
        if (w->groups[g].length > 1)
            edges[count++] = w->begins[g] + w->groups[g].length - 1;
    }
    for (uint32_t i = 0; i < count; i++)
        values[i] = again[i] = (float)(i + 1);
    tam_accumulate to_flat = {.grad = flat}, to_grads = {.grads = grads, .seg_begin = w->begins};
    tam_device_cpu.apply(w->device, &to_flat, edges, count, 3.0f, values);
    tam_device_cpu.apply(w->device, &to_grads, edges, count, 3.0f, again);
    assert_memory_equal(values, again, count * sizeof values[0]);
}

static void test_gradients_by_segment_equal_one_flat_gradient(void **state) {
    (void)state;
    enum { N = 70001 };
    static float flat[N], pool[N + 4 * GROUPS];
    float *grads[GROUPS];
    world a, b;
    open_world(&a, N, BY_TILE, N, 1);
    open_world(&b, N, BY_TILE, N, 1);
    fill_world(&a, HEAVY);
    fill_world(&b, HEAVY);
    fill_gradient(flat, N);
    split(&b, flat, pool, grads);
    step(&a, flat, NULL, true);
    step(&b, NULL, grads, true);
    same_worlds(&a, &b);
    apply_at_edges(&a, flat, grads);
    for (uint32_t g = 0; g < GROUPS; g++)
        assert_memory_equal(grads[g], flat + a.begins[g], a.groups[g].length * sizeof flat[0]);
    close_world(&a);
    close_world(&b);
}

static void test_chosen_entries_are_gathered_divided_written_and_cleared(void **state) {
    (void)state;
    enum { N = 5000 };
    const uint32_t indices[] = {0, 1, 17, 2500, N - 1};
    static float grad[N];
    float values[LENGTH(indices)];
    world w;
    open_world(&w, N, BY_TILE, 10, 1);
    fill_world(&w, HEAVY);
    tam_device_cpu.gather(w.device, w.acc, indices, LENGTH(indices), values);
    tam_device_cpu.apply(w.device, &(tam_accumulate){.grad = grad}, indices, LENGTH(indices), 4.0f,
                         values);
    for (size_t i = 0; i < LENGTH(indices); i++)
        assert_true(grad[indices[i]] == w.acc[indices[i]] / 4.0f && values[i] == grad[indices[i]]);
    tam_device_cpu.apply(w.device, &(tam_accumulate){0}, indices, LENGTH(indices), 2.0f, values);
    assert_true(values[0] == grad[0] / 2.0f); /* without a gradient values are still divided */
    tam_device_cpu.clear(w.device, w.acc, indices, LENGTH(indices));
    for (uint32_t i = 0, at = 0; i < N; i++) {
        bool cleared = at < LENGTH(indices) && indices[at] == i;
        at += cleared;
        assert_true(w.acc[i] == (cleared ? 0.0f : value_of(HEAVY, i, N)));
    }
    close_world(&w);
}

static void test_no_call_after_open_allocates(void **state) {
    (void)state;
    world w;
    open_world(&w, 150000, BY_GROUP, 5000, 1);
    fill_world(&w, HEAVY);
    const uint32_t budgets[GROUPS] = {9, 9, 9, 9, 90};
    uint64_t made = tam_alloc_made();
    take_uniform(&w, TAM_PART_ALL, tam_bits(1e6f));
    for (int kind = TAM_CUT_TOTAL; kind <= TAM_CUT_ALL; kind++) {
        cut(&w,
            &(tam_cut){
                .kind = kind, .acc = w.acc, .mine = TAM_PART_ALL, .k = 2000, .budgets = budgets});
    }
    assert_int_equal(tam_alloc_made(), made);
    close_world(&w);
}

static void test_open_without_memory_fails_and_leaves_nothing(void **state) {
    (void)state;
    world w;
    open_world(&w, 20000, BY_TILE, 10, 1);
    uint64_t live = tam_alloc_live();
    void *device = NULL;
    tamis_status status = TAMIS_E_NOMEM;
    for (long budget = 0; budget < 100 && status != TAMIS_OK; budget++) {
        tam_alloc_budget(budget);
        status = tam_device_cpu.open(&w.grid, 10, 2, &device);
        tam_alloc_budget(-1);
        assert_true(status == TAMIS_OK || (status == TAMIS_E_NOMEM && !device));
        if (status != TAMIS_OK)
            assert_int_equal(tam_alloc_live(), live);
    }
    assert_int_equal(status, TAMIS_OK);
    tam_device_cpu.close(device);
    assert_int_equal(tam_alloc_live(), live);
    close_world(&w);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_total_equals_sorting_by_list_search_and_scan),
        cmocka_unit_test(test_total_weighs_groups_with_one_rounding),
        cmocka_unit_test(test_candidates_that_reach_below_the_cut_are_not_searched_again),
        cmocka_unit_test(test_a_cut_at_the_floor_itself_is_searched_again),
        cmocka_unit_test(test_a_search_considers_few_entries),
        cmocka_unit_test(test_groups_equals_sorting_each_group),
        cmocka_unit_test(test_all_takes_what_reaches_its_threshold_and_defers_the_rest),
        cmocka_unit_test(test_an_overfull_list_is_incomplete_and_the_pass_is_not_affected),
        cmocka_unit_test(test_a_list_that_is_just_full_is_complete),
        cmocka_unit_test(test_only_own_tiles_give_candidates_and_all_tiles_give_sums),
        cmocka_unit_test(test_any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(test_gradients_by_segment_equal_one_flat_gradient),
        cmocka_unit_test(test_chosen_entries_are_gathered_divided_written_and_cleared),
        cmocka_unit_test(test_no_call_after_open_allocates),
        cmocka_unit_test(test_open_without_memory_fails_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
