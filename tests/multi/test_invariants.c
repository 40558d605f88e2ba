/* SPDX-License-Identifier: MIT
 *
 * What always holds, for every scheme, number of ranks, size and density: mass is conserved, all
 * ranks hold the same bits, the union is a set, the count is k if the scheme promises it.
 */
#include "tests/support/rank_tree.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/trial.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const uint32_t all_ranks[] = {1, 2, 3, 5, 8};

/* Checks for every record, whatever the scheme. */
static void check_always(const trial_record *record) {
    check_ranks_identical(record);
    check_union(record);
    check_stats(record);
    if (record->trial.op == TAMIS_OP_SUM && !record->trial.real)
        check_conservation(record);
}

static void check_sent(const trial_record *record) {
    const trial *what = &record->trial;
    for (uint32_t step = 0; step < what->steps; step++)
        for (uint32_t r = 0; r < what->nranks; r++) {
            uint64_t sent = record_moment(record, step, r)->stats.sent;
            if (sent != trial_target(what))
                fail_msg("[%s] step %u: rank %u sent %llu, not k = %llu", test_context_text(), step,
                         r, (unsigned long long)sent, (unsigned long long)trial_target(what));
        }
}

static void check_scheme(const scheme_case *scheme, const trial_record *record) {
    check_always(record);
    if (scheme->exclusive && scheme->counted)
        check_count(record);
    if (scheme->all && scheme->counted && !scheme->by_segment)
        check_sent(record);
    if (scheme->all_at_once && (scheme->whole || record->trial.density == 1))
        check_all_applied(record);
}

/* @return whether the scheme exists in this combination */
static bool try_trial(const scheme_case *scheme, const trial *what) {
    trial_record record;
    bool ran = trial_run(what, &record);
    if (ran)
        check_scheme(scheme, &record);
    record_free(&record);
    return ran;
}

static void run_trial(const scheme_case *scheme, const trial *what) {
    if (!try_trial(scheme, what))
        fail_msg("[%s] was refused: %s", test_context_text(), tamis_last_error());
}

static void test_presets_keep_all_rules(void **state) {
    static const size_t sizes[] = {1, 2, 7, 1000, 4097};
    static const double densities[] = {1, 0.5, 0.1, 0.01, 0.001};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < COUNT(all_ranks); p++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t d = (s + p + n) % test_stride(5); d < COUNT(densities);
                     d += test_stride(5)) {
                    trial what = trial_usual(scheme.name, all_ranks[p], sizes[n], densities[d]);
                    run_trial(&scheme, &what);
                }
}

static void test_presets_keep_all_rules_at_20000_entries(void **state) {
    static const double densities[] = {0.1, 0.001, 0.0002};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 1; p < COUNT(all_ranks); p += 2)
            for (size_t d = 0; d < COUNT(densities); d++) {
                if (!test_drawn(5))
                    continue;
                trial what = trial_usual(scheme.name, all_ranks[p], 20000, densities[d]);
                run_trial(&scheme, &what);
            }
}

/* Every rank refuses, with the same status and a message. */
static void check_refusal(const scheme_case *scheme) {
    trial what = trial_usual(scheme->name, 3, 64, 0.25);
    trial_record record;
    bool ran = trial_run(&what, &record);
    for (uint32_t r = 0; !ran && r < what.nranks; r++) {
        if (record.created[r] != TAMIS_E_UNSUPPORTED)
            fail_msg("[%s] rank %u: %s (%s)", scheme->name, r, tamis_status_name(record.created[r]),
                     record.sentence[r]);
        if (strlen(record.sentence[r]) < 10)
            fail_msg("[%s] was refused without a sentence", scheme->name);
    }
    record_free(&record);
}

static void test_combinations_keep_all_rules_or_are_refused(void **state) {
    static const uint32_t ranks_of[] = {3, 1, 8};
    static const size_t sizes[] = {7, 1000, 4097};
    static const double densities[] = {1, 0.1, 0.003};
    scheme_case scheme;
    size_t counts = test_slowness() > 1 ? 1 : COUNT(ranks_of);
    unsigned refused = 0;
    (void)state;
    for (size_t s = 0; scheme_combination(s, &scheme); s++) {
        bool ran = true;
        for (size_t p = 0; ran && p < counts; p++)
            for (size_t n = 0; ran && n < COUNT(sizes); n++)
                for (size_t d = 0; ran && d < COUNT(densities); d++) {
                    trial what = trial_usual(scheme.name, ranks_of[p], sizes[n], densities[d]);
                    ran = (n + d > 0 && !test_drawn(4)) || try_trial(&scheme, &what);
                }
        if (!ran) {
            check_refusal(&scheme);
            refused++;
        }
    }
    print_message("%u of 216 combinations are refused\n", refused);
    assert_int_equal(refused, 143);
}

static void test_hard_gradients_keep_all_rules(void **state) {
    static const char *const more[] = {"rotate+norm+predict+union", "cyclic+global+predict+union",
                                       "cyclic+norm+predict+pairs", "all+global+predict+pairs"};
    static const uint32_t ranks_of[] = {1, 3, 8};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < COUNT(ranks_of); p++)
            for (int pattern = 0; pattern < DATA_PATTERNS; pattern++) {
                if (!test_drawn(5))
                    continue;
                trial what = trial_usual(scheme.name, ranks_of[p], 3000, 0.01);
                what.pattern = (data_pattern)pattern;
                run_trial(&scheme, &what);
            }
    for (size_t s = 0; scheme_combination(s, &scheme); s++)
        for (size_t m = 0; m < COUNT(more); m++)
            for (int pattern = 0; strcmp(more[m], scheme.name) == 0 && pattern < DATA_PATTERNS;
                 pattern++) {
                trial what = trial_usual(scheme.name, 3, 3000, 0.01);
                what.pattern = (data_pattern)pattern;
                try_trial(&scheme, &what);
            }
}

/* -- ways of calling that must not matter ----------------------------------------------------- */

static void compare_with_usual(const trial *usual, const trial *other) {
    trial_record a, b;
    if (!trial_run(usual, &a))
        fail_msg("[%s] was refused", test_context_text());
    if (!trial_run(other, &b))
        fail_msg("[%s] was refused", test_context_text());
    check_always(&b);
    check_same(&a, &b);
    record_free(&a);
    record_free(&b);
}

/* Runs every preset twice, as usual and changed by `change`, and compares the bits. */
static void compare_all_presets(void (*change)(trial *what)) {
    static const uint32_t ranks_of[] = {1, 3, 5};
    scheme_case scheme;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < COUNT(ranks_of); p++) {
            if (!test_drawn(4))
                continue;
            trial usual = trial_usual(scheme.name, ranks_of[p], 4097, 0.02);
            trial other = usual;
            change(&other);
            compare_with_usual(&usual, &other);
        }
}

static void change_nothing(trial *what) {
    (void)what;
}

static void change_to_segments(trial *what) {
    what->by_segment = true;
}

static void change_to_sparse(trial *what) {
    if (strcmp(what->scheme, "dense") != 0)
        what->output = TAMIS_OUTPUT_SPARSE;
}

static void change_to_two_threads(trial *what) {
    what->threads = 2;
}

static void test_repeated_run_is_bit_identical(void **state) {
    (void)state;
    compare_all_presets(change_nothing);
}

static void test_flat_and_segment_pointers_give_the_same_bits(void **state) {
    (void)state;
    compare_all_presets(change_to_segments);
}

static void test_sparse_output_gives_the_same_bits_and_leaves_the_gradient(void **state) {
    (void)state;
    compare_all_presets(change_to_sparse);
}

static void test_two_threads_give_the_same_bits(void **state) {
    (void)state;
    compare_all_presets(change_to_two_threads);
    for (uint32_t nranks = 1; nranks <= 2; nranks++) {
        trial usual = trial_usual("tamis", nranks, 70000, 0.01);
        trial other = usual;
        usual.steps = other.steps = 4;
        change_to_two_threads(&other);
        compare_with_usual(&usual, &other);
    }
}

/* -- values ----------------------------------------------------------------------------------- */

/* One rounding for each addition: what scheme dense must give, bit for bit. */
static void test_dense_is_the_sum_by_the_tree(void **state) {
    enum { N = 5003, MOST = 8 };
    static float sum[N], gradients[MOST][N];
    (void)state;
    for (size_t p = 0; p < COUNT(all_ranks); p++) {
        trial what = trial_usual("dense", all_ranks[p], N, 1);
        trial_record record;
        what.real = true;
        assert_true(trial_run(&what, &record));
        check_always(&record);
        for (uint32_t step = 0; step < what.steps; step++) {
            assert_true(what.nranks <= MOST);
            for (uint32_t r = 0; r < what.nranks; r++)
                data_fill_real(r, step, N, gradients[r]);
            for (size_t i = 0; i < N; i++)
                sum[i] = rank_tree_sum(&gradients[0][i], N, what.nranks);
            assert_memory_equal(sum, record_result(&record, step), sizeof sum);
        }
        record_free(&record);
    }
}

/* Equal entries and residuals; values divided once. */
static void check_mean(const trial_record *sums, const trial_record *means) {
    const trial *what = &sums->trial;
    for (uint32_t step = 0; step < what->steps; step++) {
        const float *sum = record_result(sums, step), *mean = record_result(means, step);
        for (size_t i = 0; i < what->n; i++) {
            float expected = sum[i] / (float)what->nranks;
            if (mean[i] != expected)
                fail_msg("[%s] step %u, entry %zu: mean %.9g, sum / P %.9g", test_context_text(),
                         step, i, (double)mean[i], (double)expected);
        }
        for (uint32_t r = 0; r < what->nranks; r++)
            assert_memory_equal(record_residual(sums, step, r), record_residual(means, step, r),
                                what->n * sizeof(float));
    }
}

static void test_mean_is_the_sum_divided_once(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t p = 0; p < COUNT(all_ranks); p++)
            for (int real = 0; real < 2; real++) {
                if (!test_drawn(7))
                    continue;
                trial usual = trial_usual(scheme.name, all_ranks[p], 1000, 0.05);
                trial_record sums, means;
                usual.real = real;
                assert_true(trial_run(&usual, &sums));
                usual.op = TAMIS_OP_MEAN;
                assert_true(trial_run(&usual, &means));
                check_always(&means);
                check_mean(&sums, &means);
                record_free(&sums);
                record_free(&means);
            }
}

static void test_scale_multiplies_the_gradient(void **state) {
    static const float scales[] = {0.5f, -2.0f, 0.0f};
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (size_t f = 0; f < COUNT(scales); f++) {
            trial what = trial_usual(scheme.name, 3, 1000, 0.05);
            what.scale = scales[f];
            run_trial(&scheme, &what);
        }
}

/* -- limits ----------------------------------------------------------------------------------- */

static void test_packets_hold_what_capacity_allows(void **state) {
    static const double capacities[] = {1, 1.5, 4};
    static const char *const names[] = {"micro",
                                        "exdyna",
                                        "threshold",
                                        "sage",
                                        "leader+global+step+union",
                                        "all+global+reuse+pairs",
                                        "oktopk"};
    (void)state;
    for (size_t c = 0; c < COUNT(capacities) * COUNT(names); c++)
        for (size_t p = 0; p < COUNT(all_ranks); p++) {
            if (!test_drawn(4))
                continue;
            scheme_case scheme = {.dense = false};
            trial what = trial_usual(names[c / COUNT(capacities)], all_ranks[p], 4097, 0.01);
            trial_record record;
            what.capacity = capacities[c % COUNT(capacities)];
            what.pattern = p % 2 ? DATA_BURSTS : DATA_HEAVY;
            if (!trial_run(&what, &record))
                fail_msg("[%s] was refused", test_context_text());
            check_scheme(&scheme, &record);
            double sharing = c / COUNT(capacities) < 2 ? what.nranks : 1; /* ranks that share k */
            double most = what.capacity * (double)trial_target(&what) / sharing + 1;
            uint64_t deferred = 0;
            for (uint32_t step = 0; step < what.steps; step++) {
                const tamis_stats *s = &record_moment(&record, step, 0)->stats;
                if ((double)s->sent_max > most)
                    fail_msg("[%s] step %u: a rank sent %llu, its packet holds %g",
                             test_context_text(), step, (unsigned long long)s->sent_max, most);
                deferred += s->deferred;
            }
            /* the number of entries above a reused threshold varies around k */
            bool reused = c / COUNT(capacities) >= 5 && what.capacity > 1;
            assert_true(deferred > 0 || reused);
            record_free(&record);
        }
}

static void test_blocks_of_any_size_keep_all_rules(void **state) {
    static const uint32_t blocks[] = {32, 96, 1024, 65536};
    scheme_case scheme = {.name = "tamis", .exclusive = true, .counted = true};
    (void)state;
    for (size_t b = 0; b < COUNT(blocks); b++)
        for (size_t p = 0; p < COUNT(all_ranks); p++) {
            trial what = trial_usual("tamis", all_ranks[p], 4097, 0.03);
            what.block = blocks[b];
            run_trial(&scheme, &what);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets_keep_all_rules),
        cmocka_unit_test(test_presets_keep_all_rules_at_20000_entries),
        cmocka_unit_test(test_combinations_keep_all_rules_or_are_refused),
        cmocka_unit_test(test_hard_gradients_keep_all_rules),
        cmocka_unit_test(test_repeated_run_is_bit_identical),
        cmocka_unit_test(test_flat_and_segment_pointers_give_the_same_bits),
        cmocka_unit_test(test_sparse_output_gives_the_same_bits_and_leaves_the_gradient),
        cmocka_unit_test(test_two_threads_give_the_same_bits),
        cmocka_unit_test(test_dense_is_the_sum_by_the_tree),
        cmocka_unit_test(test_mean_is_the_sum_divided_once),
        cmocka_unit_test(test_scale_multiplies_the_gradient),
        cmocka_unit_test(test_packets_hold_what_capacity_allows),
        cmocka_unit_test(test_blocks_of_any_size_keep_all_rules),
    };
    return cmocka_run_group_tests_name("invariants", tests, NULL, NULL);
}
