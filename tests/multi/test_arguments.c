/* SPDX-License-Identifier: MIT
 *
 * Hostile arguments, one rank: each gets the right status and a message that names the culprit, has
 * no effect, and leaves the object usable. Configurations: test_configs.c.
 */
#include "tests/multi/arguments_case.h"

#include "lib/base/base.h"

#include <tamis/callback.h>
#include <tamis/elastic.h>
#include <tamis/lists.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>

/* -- NULL ------------------------------------------------------------------------------------- */

static void test_null_is_refused_everywhere(void **state) {
    const tamis_segment segment = {"only", 5};
    tamis_callbacks callbacks = TAMIS_CALLBACKS_INIT;
    tamis_step step = usual_step();
    tamis_layout *no_layout = NULL;
    tamis_reducer *none = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
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
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_start(NULL, &step));
    EXPECT(TAMIS_E_ARGUMENT, "step", tamis_reducer_start(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_wait(NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_result(NULL, &result));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_reducer_result(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_residual(NULL, &residual));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_reducer_residual(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_stats(NULL, &stats));
    EXPECT(TAMIS_E_ARGUMENT, "out|stats", tamis_reducer_stats(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_save(NULL, "state"));
    EXPECT(TAMIS_E_ARGUMENT, "path", tamis_reducer_save(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_load(NULL, "state"));
    EXPECT(TAMIS_E_ARGUMENT, "path", tamis_reducer_load(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_set_density(NULL, 0.1));
    EXPECT(TAMIS_E_ARGUMENT, "step", tamis_reducer_resync(reducer, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_save_moments(NULL, NULL, NULL, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "reducer", tamis_reducer_bucket_at(NULL, 0, &bucket));
    EXPECT(TAMIS_E_ARGUMENT, "out", tamis_reducer_bucket_at(reducer, 0, NULL));
    EXPECT(TAMIS_E_ARGUMENT, "out of range", tamis_reducer_bucket_at(reducer, UINT32_MAX, &bucket));
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
    assert_int_equal(tamis_option_list(0, NULL), 0);
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
    EXPECT(TAMIS_E_ARGUMENT, "4097 ranks, not 1 to 4096", tamis_comm_create_local(4097, NULL, out));
    tam_alloc_budget(9); /* as many ranks as there may be, but not their gigabytes */
    EXPECT(TAMIS_E_NOMEM, "no memory", tamis_comm_create_local(4096, NULL, out));
    tam_alloc_budget(-1);
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

/* -- steps ------------------------------------------------------------------------------------ */

static void refuse_step(const char *words, const tamis_step *step) {
    uint64_t before = data_hash(0, gradient, sizeof gradient);
    const float *residual = NULL;
    EXPECT_OK(tamis_reducer_residual(reducer, &residual));
    uint64_t residual_before = data_hash(0, residual, N * sizeof(float));
    EXPECT(TAMIS_E_ARGUMENT, words, tamis_reducer_start(reducer, step));
    assert_true(before == data_hash(0, gradient, sizeof gradient));
    assert_true(residual_before == data_hash(0, residual, N * sizeof(float)));
    EXPECT(TAMIS_E_STATE, "start", tamis_reducer_wait(reducer));
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
    EXPECT_OK(tamis_reducer_start(reducer, &step));
    EXPECT_OK(tamis_reducer_wait(reducer));
}

/* After a step, addresses that were then apart are taken without another look; one that is
 * elsewhere is compared with those that came before it in its step. */
static void test_a_gradient_that_moves_is_compared_with_those_that_do_not(void **state) {
    static float apart[2 * N];
    void *at[2] = {apart, apart + FIRST};
    tamis_step step = TAMIS_STEP_INIT;
    (void)state;
    step.grads = at;
    for (int i = 0; i < 5; i++) {
        uint32_t first = i == 3, second = !first; /* the order in which they are ready */
        EXPECT_OK(tamis_reducer_ready(reducer, first, &step));
        void *usual = at[second];
        at[second] = (float *)at[first] + (second == 1 ? FIRST - 1 : FIRST - N + 1);
        EXPECT(TAMIS_E_ARGUMENT, "overlap", tamis_reducer_ready(reducer, second, &step));
        at[second] = i == 2 ? apart + N : usual;
        EXPECT_OK(tamis_reducer_ready(reducer, second, &step));
        EXPECT_OK(tamis_reducer_wait(reducer));
    }
}

static void test_misaligned_gradients_are_refused(void **state) {
    tamis_step step = usual_step();
    void *pieces[2] = {gradient, NULL};
    (void)state;
    for (uintptr_t by = 1; by < 4; by++) {
        step.grad = (float *)((uintptr_t)gradient + by);
        step.grads = NULL;
        refuse_step("aligned", &step);
        pieces[1] = (float *)((uintptr_t)(gradient + FIRST) + by);
        step.grad = NULL;
        step.grads = pieces;
        refuse_step("aligned", &step);
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
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_step step;
    (void)state;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &fresh));
    EXPECT(TAMIS_E_STATE, "step|result|start", tamis_reducer_result(fresh, &result));
    EXPECT(TAMIS_E_STATE, "start", tamis_reducer_wait(fresh));
    step = usual_step();
    EXPECT_OK(tamis_reducer_start(fresh, &step));
    EXPECT(TAMIS_E_STATE, "start|wait", tamis_reducer_start(fresh, &step));
    EXPECT(TAMIS_E_STATE, "wait|step", tamis_reducer_save(fresh, "never-written"));
    EXPECT(TAMIS_E_STATE, "wait|step", tamis_reducer_load(fresh, "never-read"));
    EXPECT(TAMIS_E_STATE, "wait|step", tamis_reducer_result(fresh, &result));
    EXPECT_OK(tamis_reducer_wait(fresh));
    EXPECT(TAMIS_E_STATE, "start", tamis_reducer_wait(fresh));
    EXPECT_OK(tamis_reducer_result(fresh, &result));
    assert_int_equal(result.count, 10);
    tamis_reducer_destroy(fresh);
}

static void test_destroy_between_start_and_wait_finishes_the_step(void **state) {
    tamis_reducer *fresh = NULL;
    tamis_reducer_config config = usual_config();
    tamis_step step = usual_step();
    (void)state;
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &fresh));
    EXPECT_OK(tamis_reducer_start(fresh, &step));
    tamis_reducer_destroy(fresh);
    expect_usable();
}

static void test_scheme_dense_has_no_residual(void **state) {
    tamis_reducer *dense = NULL;
    tamis_reducer_config config = usual_config();
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_step step = usual_step();
    const float *residual = gradient;
    (void)state;
    config.scheme = "dense";
    EXPECT_OK(tamis_reducer_create(comm, layout, &config, &dense));
    EXPECT_OK(tamis_reducer_start(dense, &step));
    EXPECT_OK(tamis_reducer_wait(dense));
    EXPECT_OK(tamis_reducer_result(dense, &result));
    EXPECT_OK(tamis_reducer_residual(dense, &residual));
    assert_null(residual);
    assert_null(result.indices);
    assert_null(result.values);
    assert_int_equal(result.count, N);
    tamis_reducer_destroy(dense);
}

/* Unknown statuses must not index outside the table. */
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
        cmocka_unit_test(test_exactly_one_of_grad_and_grads_is_set),
        cmocka_unit_test(test_gradients_by_segment_are_checked),
        cmocka_unit_test(test_segments_may_lie_in_any_order),
        cmocka_unit_test(test_a_gradient_that_moves_is_compared_with_those_that_do_not),
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
