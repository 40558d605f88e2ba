/* SPDX-License-Identifier: MIT
 *
 * Hostile arguments, one rank: each gets the right status and a sentence that names the culprit,
 * has no effect, and leaves the object usable.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 100, FIRST = 60 };

static tamis_comm *comm;
static tamis_layout *layout;
static tamis_reducer *reducer;
static float gradient[N + 1];

static tamis_reducer_config usual_config(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.1;
    return config;
}

static tamis_step usual_step(void) {
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_HEAVY, 0, 0, N, gradient);
    step.grad = gradient;
    return step;
}

static int set_up(void **state) {
    const tamis_segment segments[] = {{"first", FIRST}, {"second", N - FIRST}};
    tamis_reducer_config config = usual_config();
    (void)state;
    return tamis_comm_create_local(1, NULL, &comm) != TAMIS_OK ||
           tamis_layout_create(segments, 2, &layout) != TAMIS_OK ||
           tamis_reducer_create(comm, layout, &config, &reducer) != TAMIS_OK;
}

static int tear_down(void **state) {
    (void)state;
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    return 0;
}

/* `words`: the sentence must hold one of them; they are separated by '|'. */
static void expect_status(const char *call, tamis_status expected, tamis_status got,
                          const char *words) {
    if (got != expected)
        fail_msg("%s: %s, not %s (%s)", call, tamis_status_name(got), tamis_status_name(expected),
                 tamis_last_error());
    if (!has_word(tamis_last_error(), words))
        fail_msg("%s: \"%s\" does not name %s", call, tamis_last_error(), words);
}

#define EXPECT(expected, words, call) expect_status(#call, expected, call, words)

#define EXPECT_OK(call)                                                                            \
    do {                                                                                           \
        if ((call) != TAMIS_OK)                                                                    \
            fail_msg("%s: %s", #call, tamis_last_error());                                         \
    } while (0)

/* After a refused call: a whole step works. */
static void expect_usable(void) {
    tamis_step step = usual_step();
    tamis_result result;
    EXPECT_OK(tamis_comm_status(comm));
    EXPECT_OK(tamis_reduce_start(reducer, &step));
    EXPECT_OK(tamis_reduce_wait(reducer));
    EXPECT_OK(tamis_reduce_result(reducer, &result));
    assert_int_equal(result.count, 10);
}

/* -- NULL ------------------------------------------------------------------------------------- */

static void test_null_is_refused_everywhere(void **state) {
    const tamis_segment segment = {"only", 5};
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_step step = usual_step();
    tamis_layout *no_layout = NULL;
    tamis_reducer *none = NULL;
    tamis_result result;
    tamis_stats stats = TAMIS_STATS_INIT;
    const float *residual;
    (void)state;
    EXPECT(TAMIS_E_ARGUMENT, "comms", tamis_comm_create_local(1, NULL, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "callbacks", tamis_comm_create_callback(NULL, NULL, &comm));
    EXPECT(TAMIS_E_ARGUMENT, "out|callback", tamis_comm_create_callback(&callbacks, NULL, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "comm", tamis_comm_abort(NULL));
    EXPECT(TAMIS_E_ARGUMENT, "segment", tamis_layout_create(NULL, 1, &no_layout));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_layout_create(&segment, 1, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "comm", tamis_reducer_create(NULL, layout, NULL, &none));
    EXPECT(TAMIS_E_ARGUMENT, "layout", tamis_reducer_create(comm, NULL, NULL, &none));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_reducer_create(comm, layout, NULL, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reduce_start(NULL, &step));
    EXPECT(TAMIS_E_ARGUMENT, "step", tamis_reduce_start(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reduce_wait(NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reduce_result(NULL, &result));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_reduce_result(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_residual(NULL, &residual));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_reducer_residual(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_stats(NULL, &stats));
    EXPECT(TAMIS_E_ARGUMENT, "out|stats", tamis_reducer_stats(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_save(NULL, "state"));
    EXPECT(TAMIS_E_ARGUMENT, "path", tamis_reducer_save(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_load(NULL, "state"));
    EXPECT(TAMIS_E_ARGUMENT, "path", tamis_reducer_load(reducer, NULL));
    assert_null(none);
    assert_null(no_layout);
    expect_usable();
}

static void test_null_is_fine_where_the_header_says_so(void **state) {
    tamis_reducer *with_defaults = NULL;
    tamis_status status;
    (void)state;
    tamis_comm_destroy(NULL);
    tamis_layout_destroy(NULL);
    tamis_reducer_destroy(NULL);
    assert_int_equal(tamis_comm_rank(NULL), 0);
    assert_int_equal(tamis_comm_nranks(NULL), 0);
    assert_string_equal(tamis_comm_transport(NULL), "");
    assert_int_equal(tamis_comm_status(NULL), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_layout_length(NULL), 0);
    assert_int_equal(tamis_scheme_list(0, NULL), 0);
    assert_int_equal(tamis_setting_list(0, NULL), 0);
    assert_int_equal(tamis_feature_list(0, NULL), 0);
    assert_int_equal(tamis_status_list(0, NULL), 0);
    assert_int_equal(tamis_status_list(1000000, &status), 0);
    EXPECT_OK(tamis_reducer_create(comm, layout, NULL, &with_defaults));
    tamis_reducer_destroy(with_defaults);
}

/* -- communicators and layouts ---------------------------------------------------------------- */

static tamis_status never_called(void *context, const void *send, void *recv, size_t bytes) {
    (void)context, (void)send, (void)recv, (void)bytes;
    return TAMIS_E_TRANSPORT;
}

static void test_communicators_check_their_arguments(void **state) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_comm *out[1] = {NULL};
    (void)state;
    EXPECT(TAMIS_E_ARGUMENT, "rank", tamis_comm_create_local(0, NULL, out));
    EXPECT(TAMIS_E_ARGUMENT, "100000", tamis_comm_create_local(100000, NULL, out));
    config.size = 0;
    EXPECT(TAMIS_E_ARGUMENT, "size", tamis_comm_create_local(1, &config, out));
    config.size = SIZE_MAX;
    EXPECT(TAMIS_E_ARGUMENT, "size", tamis_comm_create_local(1, &config, out));
    callbacks.nranks = 1;
    EXPECT(TAMIS_E_ARGUMENT, "allgather", tamis_comm_create_callback(&callbacks, NULL, out));
    callbacks.allgather = never_called;
    callbacks.nranks = 0;
    EXPECT(TAMIS_E_ARGUMENT, "rank", tamis_comm_create_callback(&callbacks, NULL, out));
    callbacks.nranks = 3;
    callbacks.rank = 3;
    EXPECT(TAMIS_E_ARGUMENT, "rank 3", tamis_comm_create_callback(&callbacks, NULL, out));
    callbacks.rank = 0;
    callbacks.size = 8;
    EXPECT(TAMIS_E_ARGUMENT, "size", tamis_comm_create_callback(&callbacks, NULL, out));
    assert_null(out[0]);
}

static void test_layouts_check_their_segments(void **state) {
    static const struct {
        tamis_segment segments[3];
        size_t count;
        const char *words;
    } bad[] = {
        {{{"a", 1}}, 0, "segment"},
        {{{"a", 0}}, 1, "a|length"},
        {{{"a", 3}, {"empty", 0}, {"c", 2}}, 3, "empty"},
        {{{"a", 3}, {NULL, 0}, {"c", 2}}, 3, "segment 1"},
        {{{"a", UINT64_C(1) << 32}}, 1, "element|length|n "},
        {{{"a", UINT64_C(1) << 31}, {"b", UINT64_C(1) << 31}}, 2, "element|length|n "},
        {{{"a", UINT64_MAX}, {"b", 2}}, 2, "element|length|n "},
        {{{"a", 5}, {"b", UINT64_MAX - 4}, {"c", 7}}, 3, "element|length|n "},
        {{{"a", (UINT64_C(1) << 32) - (1 << 16) + 1}}, 1, "element|length|n "},
    };
    (void)state;
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        tamis_layout *out = NULL;
        EXPECT(TAMIS_E_ARGUMENT, bad[b].words,
               tamis_layout_create(bad[b].segments, bad[b].count, &out));
        assert_null(out);
    }
}

static void test_the_largest_layout_is_accepted(void **state) {
    const tamis_segment large = {"all", (UINT64_C(1) << 32) - (1 << 16)};
    tamis_layout *out = NULL;
    (void)state;
    EXPECT_OK(tamis_layout_create(&large, 1, &out));
    assert_true(tamis_layout_length(out) == large.length);
    tamis_layout_destroy(out);
}

/* -- configurations --------------------------------------------------------------------------- */

static void refuse_config(tamis_status expected, const char *words,
                          const tamis_reducer_config *config) {
    tamis_reducer *out = NULL;
    EXPECT(expected, words, tamis_reducer_create(comm, layout, config, &out));
    assert_null(out);
    EXPECT_OK(tamis_comm_status(comm));
}

static void test_density_lies_in_0_to_1(void **state) {
    const double bad[] = {0, -0.0, -0.1, 1.0000001, 2, -INFINITY, INFINITY, NAN};
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
    tamis_result result;
    tamis_step step = usual_step();
    (void)state;
    config.density = 5e-324;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &out));
    EXPECT_OK(tamis_reduce_start(out, &step));
    EXPECT_OK(tamis_reduce_wait(out));
    EXPECT_OK(tamis_reduce_result(out, &result));
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
        config.over = bad_over[b];
        refuse_config(TAMIS_E_ARGUMENT, "over", &config);
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
    config.average = (tamis_average)7;
    refuse_config(TAMIS_E_ARGUMENT, "average", &config);
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
        stats.size = sizes[s] == sizeof(size_t) ? 0 : sizes[s]; /* one field is a beginning */
        refuse_config(TAMIS_E_ARGUMENT, "size", &config);
        EXPECT(TAMIS_E_ARGUMENT, "size", tamis_reduce_start(reducer, &step));
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
    EXPECT_OK(tamis_reduce_start(out, &step.known));
    EXPECT_OK(tamis_reduce_wait(out));
    EXPECT_OK(tamis_reducer_stats(out, &stats.known));
    assert_int_equal(stats.known.length, N);
    assert_int_equal(stats.known.size, sizeof stats);
    assert_true(stats.unknown == 0 || stats.unknown == 99);
    step.unknown = 1;
    EXPECT(TAMIS_E_UNSUPPORTED, "step", tamis_reduce_start(out, &step.known));
    tamis_reducer_destroy(out);
    config.unknown[1] = 1;
    refuse_config(TAMIS_E_UNSUPPORTED, "config", &config.known);
    expect_usable();
}

/* -- steps ------------------------------------------------------------------------------------ */

static void refuse_step(const char *words, const tamis_step *step) {
    uint64_t before = data_hash(0, gradient, sizeof gradient);
    const float *residual = NULL;
    EXPECT_OK(tamis_reducer_residual(reducer, &residual));
    uint64_t residual_before = data_hash(0, residual, N * sizeof(float));
    EXPECT(TAMIS_E_ARGUMENT, words, tamis_reduce_start(reducer, step));
    assert_true(before == data_hash(0, gradient, sizeof gradient));
    assert_true(residual_before == data_hash(0, residual, N * sizeof(float)));
    EXPECT(TAMIS_E_STATE, "start", tamis_reduce_wait(reducer));
    expect_usable();
}

static void test_exactly_one_of_grad_and_grads_is_set(void **state) {
    void *const pieces[2] = {gradient, gradient + FIRST};
    tamis_step step = usual_step();
    (void)state;
    step.grads = pieces;
    refuse_step("grad", &step);
    step.grad = NULL;
    step.grads = NULL;
    refuse_step("grad", &step);
}

static void test_gradients_by_segment_are_checked(void **state) {
    void *null_inside[2] = {gradient, NULL};
    void *overlapping[2] = {gradient, gradient + FIRST - 1};
    void *same[2] = {gradient, gradient};
    void *swapped_overlap[2] = {gradient + N - FIRST - 1, gradient};
    tamis_step step = usual_step();
    (void)state;
    step.grad = NULL;
    step.grads = null_inside;
    refuse_step("second|segment 1|grads[1]", &step);
    step.grads = overlapping;
    refuse_step("overlap", &step);
    step.grads = same;
    refuse_step("overlap", &step);
    step.grads = swapped_overlap;
    refuse_step("overlap", &step);
}

static void test_segments_may_lie_in_any_order(void **state) {
    static float apart[N];
    void *swapped[2] = {apart + N - FIRST, apart};
    tamis_step step = TAMIS_STEP_INIT;
    (void)state;
    step.grads = swapped;
    EXPECT_OK(tamis_reduce_start(reducer, &step));
    EXPECT_OK(tamis_reduce_wait(reducer));
}

static void test_misaligned_gradients_are_refused(void **state) {
    tamis_step step = usual_step();
    void *pieces[2] = {gradient, NULL};
    (void)state;
    for (uintptr_t by = 1; by < 4; by++) {
        step.grad = (float *)((uintptr_t)gradient + by);
        step.grads = NULL;
        refuse_step("align", &step);
        pieces[1] = (float *)((uintptr_t)(gradient + FIRST) + by);
        step.grad = NULL;
        step.grads = pieces;
        refuse_step("align", &step);
    }
}

static void test_the_residual_is_not_a_gradient(void **state) {
    const float *residual = NULL;
    tamis_step step = usual_step();
    void *pieces[2] = {gradient, NULL};
    (void)state;
    EXPECT_OK(tamis_reducer_residual(reducer, &residual));
    step.grad = (float *)(uintptr_t)residual;
    refuse_step("overlap|residual", &step);
    step.grad = (float *)(uintptr_t)(residual + N - 1);
    refuse_step("overlap|residual", &step);
    pieces[1] = (float *)(uintptr_t)(residual + 3);
    step.grad = NULL;
    step.grads = pieces;
    refuse_step("overlap|residual", &step);
}

static void test_scale_is_finite(void **state) {
    const float bad[] = {NAN, INFINITY, -INFINITY};
    (void)state;
    for (size_t b = 0; b < 3; b++) {
        tamis_step step = usual_step();
        step.scale = bad[b];
        refuse_step("scale", &step);
    }
}

/* -- order of calls --------------------------------------------------------------------------- */

static void test_calls_out_of_order_are_refused(void **state) {
    tamis_reducer *fresh = NULL;
    tamis_reducer_config config = usual_config();
    tamis_result result;
    tamis_step step;
    (void)state;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &fresh));
    EXPECT(TAMIS_E_STATE, "step|result|start", tamis_reduce_result(fresh, &result));
    EXPECT(TAMIS_E_STATE, "start", tamis_reduce_wait(fresh));
    step = usual_step();
    EXPECT_OK(tamis_reduce_start(fresh, &step));
    EXPECT(TAMIS_E_STATE, "start|wait", tamis_reduce_start(fresh, &step));
    EXPECT(TAMIS_E_STATE, "wait|step", tamis_reducer_save(fresh, "never-written"));
    EXPECT(TAMIS_E_STATE, "wait|step", tamis_reducer_load(fresh, "never-read"));
    EXPECT(TAMIS_E_STATE, "wait|step", tamis_reduce_result(fresh, &result));
    EXPECT_OK(tamis_reduce_wait(fresh));
    EXPECT(TAMIS_E_STATE, "start", tamis_reduce_wait(fresh));
    EXPECT_OK(tamis_reduce_result(fresh, &result));
    assert_int_equal(result.count, 10);
    tamis_reducer_destroy(fresh);
}

static void test_destroy_between_start_and_wait_finishes_the_step(void **state) {
    tamis_reducer *fresh = NULL;
    tamis_reducer_config config = usual_config();
    tamis_step step = usual_step();
    (void)state;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &fresh));
    EXPECT_OK(tamis_reduce_start(fresh, &step));
    tamis_reducer_destroy(fresh);
    expect_usable();
}

static void test_scheme_dense_has_no_residual(void **state) {
    tamis_reducer *dense = NULL;
    tamis_reducer_config config = usual_config();
    tamis_result result;
    tamis_step step = usual_step();
    const float *residual = gradient;
    (void)state;
    config.scheme = "dense";
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &dense));
    EXPECT_OK(tamis_reduce_start(dense, &step));
    EXPECT_OK(tamis_reduce_wait(dense));
    EXPECT_OK(tamis_reduce_result(dense, &result));
    EXPECT_OK(tamis_reducer_residual(dense, &residual));
    assert_null(residual);
    assert_null(result.indices);
    assert_null(result.values);
    assert_int_equal(result.count, N);
    tamis_reducer_destroy(dense);
}

/* Statuses that no table knows must not lead outside of it. */
static void test_any_number_has_a_status_text(void **state) {
    const int numbers[] = {-1, 8, 31, 33, 69, 1000000, INT32_MIN, INT32_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        tamis_status status = (tamis_status)numbers[i];
        assert_string_equal(tamis_status_name(status), "unknown status");
        assert_non_null(tamis_status_text(status));
        assert_non_null(tamis_status_remedy(status));
        assert_int_equal(tamis_status_loss(status), TAMIS_LOST_COMM);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_null_is_refused_everywhere),
        cmocka_unit_test(test_null_is_fine_where_the_header_says_so),
        cmocka_unit_test(test_communicators_check_their_arguments),
        cmocka_unit_test(test_layouts_check_their_segments),
        cmocka_unit_test(test_the_largest_layout_is_accepted),
        cmocka_unit_test(test_density_lies_in_0_to_1),
        cmocka_unit_test(test_a_denormal_density_chooses_one_entry),
        cmocka_unit_test(test_schemes_are_spelt_out),
        cmocka_unit_test(test_options_lie_in_their_ranges),
        cmocka_unit_test(test_choices_are_of_the_list),
        cmocka_unit_test(test_structs_of_a_wrong_size_are_refused),
        cmocka_unit_test(test_larger_structs_work_if_their_tail_is_zero),
        cmocka_unit_test(test_exactly_one_of_grad_and_grads_is_set),
        cmocka_unit_test(test_gradients_by_segment_are_checked),
        cmocka_unit_test(test_segments_may_lie_in_any_order),
        cmocka_unit_test(test_misaligned_gradients_are_refused),
        cmocka_unit_test(test_the_residual_is_not_a_gradient),
        cmocka_unit_test(test_scale_is_finite),
        cmocka_unit_test(test_calls_out_of_order_are_refused),
        cmocka_unit_test(test_destroy_between_start_and_wait_finishes_the_step),
        cmocka_unit_test(test_scheme_dense_has_no_residual),
        cmocka_unit_test(test_any_number_has_a_status_text),
    };
    return cmocka_run_group_tests_name("arguments", tests, set_up, tear_down);
}
