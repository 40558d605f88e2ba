/* SPDX-License-Identifier: MIT
 *
 * The passes of the device contract: accumulate, gather, apply, put, copies, memory.
 */
#include "tests/support/device_body.h"
#include "tests/support/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* -- sums of squares, and candidates ---------------------------------------------------------- */

static double oracle_tile(const float *s, uint32_t length) {
    double sum = 0;
    for (uint32_t at = 0; at < length; at += 512) {
        float u[128] = {0};
        for (uint32_t i = at; i < length && i < at + 512; i++)
            u[i % 128] += s[i] * s[i];
        for (int half = 64; half > 0; half /= 2) {
            for (int l = 0; l < half; l++)
                u[l] += u[l + half];
        }
        sum += (double)u[0];
    }
    return sum;
}

/* Sums in exactly the order that kernels/cpu/tile.h fixes. */
static double oracle_group(const world *w, uint32_t g) {
    double u[256] = {0};
    const tam_group *group = &w->groups[g];
    for (uint32_t t = 0; t < group->ntiles; t++) {
        const tam_tile *tile = &w->grid.tiles[group->first_tile + t];
        u[t % 256] += oracle_tile(w->mirror + tile->begin, tile->length);
    }
    for (int half = 128; half > 0; half /= 2) {
        for (int j = 0; j < half; j++)
            u[j] += u[j + half];
    }
    return u[0];
}

static void check_sums(uint32_t n, uint32_t block, int pattern) {
    world w;
    world_open(&w, (world_plan){.n = n, .block = block, .capacity = 10});
    world_fill(&w, pattern);
    world_take_uniform(&w, TAM_PART_ALL, TAM_INFINITE_BITS);
    for (uint32_t g = 0; g < GROUPS; g++) {
        double want = oracle_group(&w, g);
        if (memcmp(&w.seen.group_sums[g], &want, sizeof want) != 0)
            fail_msg("n %u, block %u, pattern %d: the sum of group %u is %a, not %a", n, block,
                     pattern, g, w.seen.group_sums[g], want);
    }
    world_close(&w);
}

static void test_sums_are_added_in_the_fixed_order(void **state) {
    (void)state;
    const int patterns[] = {HEAVY, CLUSTERED, DENORMAL, LARGE};
    for (size_t p = 0; p < LENGTH(patterns); p++) {
        check_sums(1600, 3, patterns[p]); /* groups of less and of more than 256 tiles */
        check_sums(world_length(300000), 3000, patterns[p]);
        check_sums(world_length(100000), 511, patterns[p]);
    }
}

static void test_only_own_tiles_give_candidates_and_all_tiles_give_sums(void **state) {
    (void)state;
    world w;
    uint32_t n = world_length(60000);
    world_open(&w, (world_plan){.n = n, .parts = LAST_COMMON, .capacity = n});
    world_fill(&w, EQUAL);
    for (uint32_t part = 0; part < PARTS; part++) {
        size_t own = 0;
        world_take_uniform(&w, part, 1);
        for (uint32_t t = 0; t < w.grid.ntiles; t++)
            own += w.grid.tiles[t].part == part ? w.grid.tiles[t].length : 0;
        assert_int_equal(w.seen.candidates.count, own);
        for (uint32_t g = 0; g < GROUPS; g++)
            assert_true(w.seen.group_sums[g] == 9.0 * w.groups[g].length);
    }
    world_close(&w);
}

static uint64_t count_reaching(const world *w, uint32_t threshold) {
    uint64_t count = 0;
    for (uint64_t i = 0; i < w->grid.n; i++)
        count += tam_magnitude(w->mirror[i]) >= threshold;
    return count;
}

static void test_all_entries_that_reach_a_threshold_are_counted(void **state) {
    (void)state;
    const uint32_t lengths[] = {300, 511, 1000, 70000, 200000};
    for (size_t i = 0; i < LENGTH(lengths); i++) {
        uint32_t n = world_length(lengths[i]);
        world w;
        world_open(&w, (world_plan){.n = n, .capacity = 10, .threads = 1 + i % 3});
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            world_fill(&w, pattern);
            const uint32_t thresholds[] = {1, tam_bits(3.0f), tam_bits(3.0f) + 1, tam_bits(1e6f),
                                           TAM_INFINITE_BITS - 1};
            for (size_t t = 0; t < LENGTH(thresholds); t++) {
                uint64_t count = 99;
                assert_int_equal(w.row->count(w.device, w.acc, thresholds[t], &count), TAMIS_OK);
                assert_int_equal(count, count_reaching(&w, thresholds[t]));
            }
        }
        world_close(&w);
    }
}

/* Includes rows with a single nonzero entry, the first or the last. */
static void test_rows_with_an_entry_that_is_not_zero_are_marked(void **state) {
    (void)state;
    enum { FILLER = 0x5a };
    const uint32_t row_lengths[] = {1, 7, 32, 100, 257};
    world w;
    world_open(&w, (world_plan){.n = world_length(30000), .capacity = 10, .threads = 2});
    uint32_t n = (uint32_t)w.grid.n;
    unsigned char *marks = test_malloc(n);
    float *acc = test_calloc(n, sizeof *acc);
    for (size_t l = 0; l < LENGTH(row_lengths); l++) {
        uint32_t length = row_lengths[l], nrows = n / length;
        memset(acc, 0, n * sizeof *acc);
        for (uint32_t r = 0; r < nrows; r++) {
            acc[(size_t)r * length] = r % 5 == 1 ? -0.5f : -0.0f;
            if (r % 5 == 2)
                acc[(size_t)r * length + length - 1] = tam_float(1);
        }
        assert_int_equal(w.row->write(w.device, acc, n * sizeof *acc, w.acc), TAMIS_OK);
        memset(marks, FILLER, n);
        assert_int_equal(w.row->mark(w.device, w.acc, length, nrows, marks), TAMIS_OK);
        for (uint32_t r = 0; r < n; r++)
            assert_int_equal(marks[r], r >= nrows ? FILLER : r % 5 == 1 || r % 5 == 2);
    }
    test_free(acc);
    test_free(marks);
    world_close(&w);
}

static void test_an_overfull_list_is_incomplete_and_the_pass_is_not_affected(void **state) {
    (void)state;
    uint32_t n = world_length(50000);
    world small, large;
    world_open(&small, (world_plan){.n = n, .capacity = 49});
    world_open(&large, (world_plan){.n = n, .capacity = n});
    world_fill(&small, EQUAL);
    world_fill(&large, EQUAL);
    world_take_uniform(&small, TAM_PART_ALL, 1);
    world_take_uniform(&large, TAM_PART_ALL, 1);
    assert_false(small.seen.candidates.complete);
    assert_int_equal(small.seen.candidates.count, 0);
    assert_true(large.seen.candidates.complete);
    assert_int_equal(large.seen.candidates.count, n);
    world_look(&small);
    world_look(&large);
    assert_memory_equal(small.mirror, large.mirror, n * sizeof small.mirror[0]);
    assert_memory_equal(small.seen.group_sums, large.seen.group_sums, GROUPS * sizeof(double));
    world_close(&small);
    world_close(&large);
}

static void test_a_list_that_is_just_full_is_complete(void **state) {
    (void)state;
    uint32_t n = world_length(80000);
    for (uint32_t threads = 1; threads <= 7; threads += 2) {
        for (size_t missing = 0; missing < 2; missing++) {
            world w;
            world_open(&w, (world_plan){.n = n, .capacity = n - missing, .threads = threads});
            world_fill(&w, EQUAL);
            world_take_uniform(&w, TAM_PART_ALL, 1);
            assert_int_equal(w.seen.candidates.complete, missing == 0);
            world_close(&w);
        }
    }
}

/* -- chosen entries --------------------------------------------------------------------------- */

static void test_chosen_entries_are_gathered_divided_written_and_cleared(void **state) {
    (void)state;
    enum { N = 1000 };
    const uint32_t indices[] = {0, 1, 17, 500, N - 1};
    static float written[N];
    float values[LENGTH(indices)];
    world w;
    world_open(&w, (world_plan){.n = N, .capacity = 10});
    world_fill(&w, HEAVY);
    w.row->gather(w.device, w.acc, indices, LENGTH(indices), values);
    w.row->apply(w.device, &(tam_accumulate){.grad = w.zero}, indices, LENGTH(indices), 4.0f,
                 values);
    assert_int_equal(w.row->read(w.device, w.zero, sizeof written, written), TAMIS_OK);
    for (uint32_t i = 0, at = 0; i < N; i++) {
        bool chosen = at < LENGTH(indices) && indices[at] == i;
        assert_true(written[i] == (chosen ? w.mirror[i] / 4.0f : 0.0f));
        assert_true(!chosen || values[at] == written[i]);
        at += chosen;
    }
    w.row->apply(w.device, &(tam_accumulate){0}, indices, LENGTH(indices), 2.0f, values);
    assert_true(values[0] == written[0] / 2.0f); /* without a gradient values are still divided */
    w.row->put(w.device, w.acc, indices, LENGTH(indices), NULL);
    world_look(&w);
    for (uint32_t i = 0, at = 0; i < N; i++) {
        bool cleared = at < LENGTH(indices) && indices[at] == i;
        at += cleared;
        assert_true(w.mirror[i] == (cleared ? 0.0f : world_value(HEAVY, i, N)));
    }
    world_close(&w);
}

/* More values than a device takes at a time. */
static void test_values_are_put_where_they_belong(void **state) {
    (void)state;
    uint32_t n = world_length(200000), count = 0;
    world w;
    world_open(&w, (world_plan){.n = n, .capacity = 10});
    world_fill(&w, HEAVY);
    float *values = calloc(n, sizeof *values);
    assert_non_null(values);
    for (uint32_t i = 0; i < n; i += 1 + i % 2) {
        w.indices[count] = i;
        values[count++] = (float)i - 0.5f;
    }
    assert_int_equal(w.row->put(w.device, w.acc, w.indices, count, values), TAMIS_OK);
    world_look(&w);
    for (uint32_t i = 0, at = 0; i < n; i++) {
        bool chosen = at < count && w.indices[at] == i;
        assert_true(w.mirror[i] == (chosen ? values[at] : world_value(HEAVY, i, n)));
        at += chosen;
    }
    free(values);
    world_close(&w);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void test_memory_is_zeroed_and_copied_both_ways(void **state) {
    (void)state;
    enum { BYTES = (9 << 20) + 5, FROM = 3, FILLER = 0x5a }; /* more than any staging area holds */
    world w;
    world_open(&w, (world_plan){.n = 1000, .capacity = 10});
    unsigned char *there = w.row->alloc(w.device, BYTES), *here = test_malloc(BYTES);
    assert_non_null(there);
    assert_int_equal((uintptr_t)there % 64, 0);
    if (w.row->check)
        assert_int_equal(w.row->check(w.device, there, "the gradient"), TAMIS_OK);
    memset(here, FILLER, BYTES);
    assert_int_equal(w.row->read(w.device, there, BYTES, here), TAMIS_OK);
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(here[i], 0);
        here[i] = (unsigned char)(i * 7 >> 3);
    }
    assert_int_equal(w.row->write(w.device, here, BYTES - FROM, there + FROM), TAMIS_OK);
    assert_int_equal(w.row->write(w.device, here, 0, there), TAMIS_OK);
    memset(here, FILLER, BYTES);
    assert_int_equal(w.row->read(w.device, there, BYTES, here), TAMIS_OK);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(here[i], i < FROM ? 0 : (unsigned char)((i - FROM) * 7 >> 3));
    w.row->release(w.device, there);
    test_free(here);
    world_close(&w);
}

static void test_no_call_after_open_allocates(void **state) {
    (void)state;
    uint32_t n = world_length(150000);
    const uint32_t budgets[GROUPS] = {9, 9, 9, 9, 90};
    float values[1000];
    unsigned char marks[1500];
    world w;
    world_open(&w, (world_plan){.n = n, .parts = BY_GROUP, .capacity = n / 30});
    world_fill(&w, HEAVY);
    uint64_t made = tam_alloc_made();
    world_take_uniform(&w, TAM_PART_ALL, tam_bits(1e6f));
    for (int kind = TAM_SELECT_TOTAL; kind <= TAM_SELECT_ALL; kind++) {
        tam_select_job job = {
            .kind = kind, .acc = w.acc, .mine = TAM_PART_ALL, .k = n / 150, .budgets = budgets};
        uint64_t counted;
        size_t count = world_select(&w, &job).count;
        w.row->count(w.device, w.acc, 1, &counted);
        w.row->mark(w.device, w.acc, 100, n / 100, marks);
        w.row->gather(w.device, w.acc, w.indices, count, values);
        w.row->apply(w.device, &(tam_accumulate){.grad = w.zero}, w.indices, count, 2.0f, values);
        w.row->put(w.device, w.acc, w.indices, count, values);
    }
    world_look(&w);
    assert_int_equal(tam_alloc_made(), made);
    world_close(&w);
}

static void test_open_without_memory_fails_and_leaves_nothing(void **state) {
    (void)state;
    world w;
    world_open(&w, (world_plan){.n = world_length(20000), .capacity = 10});
    uint64_t live = tam_alloc_live();
    void *device = NULL;
    tamis_status status = TAMIS_E_NOMEM;
    for (long budget = 0; budget < 100 && status != TAMIS_OK; budget++) {
        tam_alloc_budget(budget);
        status = w.row->open(&w.grid, 10, 2, &device);
        tam_alloc_budget(-1);
        assert_true(status == TAMIS_OK || (status == TAMIS_E_NOMEM && !device));
        if (status != TAMIS_OK)
            assert_int_equal(tam_alloc_live(), live);
    }
    assert_int_equal(status, TAMIS_OK);
    w.row->close(device);
    assert_int_equal(tam_alloc_live(), live);
    world_close(&w);
}

int device_passes(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_added_in_the_fixed_order),
        cmocka_unit_test(test_only_own_tiles_give_candidates_and_all_tiles_give_sums),
        cmocka_unit_test(test_all_entries_that_reach_a_threshold_are_counted),
        cmocka_unit_test(test_rows_with_an_entry_that_is_not_zero_are_marked),
        cmocka_unit_test(test_an_overfull_list_is_incomplete_and_the_pass_is_not_affected),
        cmocka_unit_test(test_a_list_that_is_just_full_is_complete),
        cmocka_unit_test(test_chosen_entries_are_gathered_divided_written_and_cleared),
        cmocka_unit_test(test_values_are_put_where_they_belong),
        cmocka_unit_test(test_memory_is_zeroed_and_copied_both_ways),
        cmocka_unit_test(test_no_call_after_open_allocates),
        cmocka_unit_test(test_open_without_memory_fails_and_leaves_nothing),
    };
    return cmocka_run_group_tests_name("passes", tests, NULL, NULL);
}

int device_body(const tam_device *row, uint32_t longest) {
    world_use(row, longest);
    return device_selections() + device_passes() + device_types() + device_divisions() +
           device_updates();
}
