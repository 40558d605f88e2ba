/* SPDX-License-Identifier: MIT
 *
 * Hostile configurations, one rank, and structs of other versions: refused with a message that
 * names the field, and without effect.
 */
#include "tests/multi/arguments_case.h"

#include <tamis/stats.h>

/* -- configurations --------------------------------------------------------------------------- */

static void refuse_config(tamis_status expected, const char *words,
                          const tamis_reducer_config *config) {
    tamis_reducer *out = NULL;
    EXPECT(expected, words, tamis_reducer_create(comm, layout, config, &out));
    assert_null(out);
    EXPECT_OK(tamis_comm_status(comm));
}

static void test_density_lies_in_0_to_1(void **state) {
    const double bad[] = {-0.1, -1e-300, 1.0000001, 2, -INFINITY, INFINITY, NAN};
    (void)state;
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        tamis_reducer_config config = usual_config();
        config.density = bad[b];
        refuse_config(TAMIS_E_ARGUMENT, "density", &config);
    }
    expect_usable();
}

static void test_a_denormal_density_chooses_one_entry(void **state) {
    tamis_reducer_config config = usual_config();
    tamis_reducer *out = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_step step = usual_step();
    (void)state;
    config.density = 5e-324;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &out));
    EXPECT_OK(tamis_reducer_start(out, &step));
    EXPECT_OK(tamis_reducer_wait(out));
    EXPECT_OK(tamis_reducer_result(out, &result));
    assert_int_equal(result.count, 1);
    tamis_reducer_destroy(out);
}

static void test_schemes_are_spelt_out(void **state) {
    static const struct {
        const char *scheme;
        tamis_status status;
    } bad[] = {
        {"", TAMIS_E_ARGUMENT},
        {"sieve", TAMIS_E_ARGUMENT},
        {"Tamis", TAMIS_E_ARGUMENT},
        {"tamis ", TAMIS_E_ARGUMENT},
        {"cyclic", TAMIS_E_ARGUMENT},
        {"cyclic+norm", TAMIS_E_ARGUMENT},
        {"cyclic+norm+predict", TAMIS_E_ARGUMENT},
        {"cyclic+norm+predict+", TAMIS_E_ARGUMENT},
        {"cyclic+norm+predict+union+", TAMIS_E_ARGUMENT},
        {"cyclic+norm+predict+union+pairs", TAMIS_E_ARGUMENT},
        {"+norm+predict+union", TAMIS_E_ARGUMENT},
        {"norm+cyclic+predict+union", TAMIS_E_ARGUMENT},
        {"cyclic+norm+predict+unions", TAMIS_E_ARGUMENT},
        {"++++", TAMIS_E_ARGUMENT},
        {"%s%s%n", TAMIS_E_ARGUMENT},
        {"all+global+exact+dense", TAMIS_E_UNSUPPORTED},
        {"bins+global+exact+union", TAMIS_E_UNSUPPORTED},
        {"rotate+norm+step+union", TAMIS_E_UNSUPPORTED},
    };
    char endless[4000];
    tamis_reducer_config config = usual_config();
    (void)state;
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        config.scheme = bad[b].scheme;
        refuse_config(bad[b].status, "scheme", &config);
    }
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    config.scheme = endless;
    refuse_config(TAMIS_E_ARGUMENT, "scheme", &config);
    expect_usable();
}

static void test_options_lie_in_their_ranges(void **state) {
    const double bad_over[] = {-1, 0.5, 1.05, 8.5, INFINITY, NAN};
    const double bad_share[] = {-1, -INFINITY, INFINITY, NAN};
    const uint32_t bad_block[] = {1, 31, 33, 65568, UINT32_MAX};
    tamis_reducer_config config;
    (void)state;
    for (size_t b = 0; b < sizeof bad_over / sizeof bad_over[0]; b++) {
        config = usual_config();
        config.overselect = bad_over[b];
        refuse_config(TAMIS_E_ARGUMENT, "overselect", &config);
    }
    for (size_t b = 0; b < sizeof bad_share / sizeof bad_share[0]; b++) {
        config = usual_config();
        config.scheme = "micro";
        config.capacity = bad_share[b];
        refuse_config(TAMIS_E_ARGUMENT, "capacity", &config);
        config.capacity = 0;
        config.threshold = bad_share[b];
        refuse_config(TAMIS_E_ARGUMENT, "threshold", &config);
    }
    for (size_t b = 0; b < sizeof bad_block / sizeof bad_block[0]; b++) {
        config = usual_config();
        config.block = bad_block[b];
        refuse_config(TAMIS_E_ARGUMENT, "block", &config);
    }
    config = usual_config();
    config.threads = UINT32_MAX;
    refuse_config(TAMIS_E_ARGUMENT, "threads", &config);
    expect_usable();
}

static void test_choices_are_of_the_list(void **state) {
    tamis_reducer_config config = usual_config();
    (void)state;
    config.output = (tamis_output)7;
    refuse_config(TAMIS_E_ARGUMENT, "output", &config);
    config = usual_config();
    config.op = (tamis_op)7;
    refuse_config(TAMIS_E_ARGUMENT, "op", &config);
    config = usual_config();
    config.nonfinite = (tamis_nonfinite)7;
    refuse_config(TAMIS_E_ARGUMENT, "nonfinite", &config);
}

/* -- structs of other versions ---------------------------------------------------------------- */

static void test_structs_of_a_wrong_size_are_refused(void **state) {
    static const size_t sizes[] = {0, 1, sizeof(size_t), SIZE_MAX, SIZE_MAX / 2};
    tamis_reducer_config config = usual_config();
    tamis_step step = usual_step();
    tamis_stats stats = TAMIS_STATS_INIT;
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        config.size = step.size = sizes[s];
        stats.size = sizes[s] == sizeof(size_t) ? 0 : sizes[s]; /* one field alone is valid */
        refuse_config(TAMIS_E_ARGUMENT, "size", &config);
        EXPECT(TAMIS_E_ARGUMENT, "size", tamis_reducer_start(reducer, &step));
        EXPECT(TAMIS_E_ARGUMENT, "size", tamis_reducer_stats(reducer, &stats));
    }
    expect_usable();
}

/* A program built with a newer header: unknown fields are fine as long as they are zero. */
static void test_larger_structs_work_if_their_tail_is_zero(void **state) {
    struct {
        tamis_reducer_config known;
        uint64_t unknown[2];
    } config = {usual_config(), {0, 0}};
    struct {
        tamis_step known;
        uint64_t unknown;
    } step = {usual_step(), 0};
    struct {
        tamis_stats known;
        uint64_t unknown;
    } stats = {TAMIS_STATS_INIT, 99};
    tamis_reducer *out = NULL;
    (void)state;
    config.known.size = sizeof config;
    step.known.size = sizeof step;
    stats.known.size = sizeof stats;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config.known, &out));
    EXPECT_OK(tamis_reducer_start(out, &step.known));
    EXPECT_OK(tamis_reducer_wait(out));
    EXPECT_OK(tamis_reducer_stats(out, &stats.known));
    assert_int_equal(stats.known.length, N);
    assert_int_equal(stats.known.size, sizeof stats);
    assert_true(stats.unknown == 0 || stats.unknown == 99);
    step.unknown = 1;
    EXPECT(TAMIS_E_UNSUPPORTED, "step", tamis_reducer_start(out, &step.known));
    tamis_reducer_destroy(out);
    config.unknown[1] = 1;
    refuse_config(TAMIS_E_UNSUPPORTED, "config", &config.known);
    expect_usable();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_density_lies_in_0_to_1),
        cmocka_unit_test(test_a_denormal_density_chooses_one_entry),
        cmocka_unit_test(test_schemes_are_spelt_out),
        cmocka_unit_test(test_options_lie_in_their_ranges),
        cmocka_unit_test(test_choices_are_of_the_list),
        cmocka_unit_test(test_structs_of_a_wrong_size_are_refused),
        cmocka_unit_test(test_larger_structs_work_if_their_tail_is_zero),
    };
    return cmocka_run_group_tests_name("configs", tests, set_up, tear_down);
}
