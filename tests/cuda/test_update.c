/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: update mode and residuals that decay give the
 * bits of the CPU, whether the host drives the steps or the device runs them by itself.
 *
 * test: slow release
 */
#include "tests/cuda/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static const trial_backend *const places[] = {&backend_host_driven, &backend_stream};

static void compare(trial what, const trial_backend *backend) {
    trial_record cpu, cuda;
    assert_true(trial_run(&what, &cpu));
    what.backend = backend;
    assert_true(trial_run(&what, &cuda));
    check_ranks_identical(&cuda);
    check_same(&cpu, &cuda);
    assert_int_equal(cuda.result_memory,
                     backend == &backend_stream ? TAMIS_DEVICE_CUDA : TAMIS_DEVICE_CPU);
    for (uint32_t s = 0; s < what.steps; s++)
        assert_true(record_moment(&cpu, s, 0)->stats.update_scale ==
                    record_moment(&cuda, s, 0)->stats.update_scale);
    record_free(&cpu);
    record_free(&cuda);
}

static trial usual(const tamis_update *update) {
    trial what = trial_usual("tamis", 2, 2601, 0.05);
    what.steps = 4;
    what.real = true;
    what.forgets = 0.25;
    what.update = update;
    what.op = TAMIS_OP_MEAN;
    return what;
}

static void compare_shapes(const tamis_update *update) {
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        trial what = usual(update);
        compare(what, places[p]);
        what.bucket_length = 700;
        what.by_segment = true;
        compare(what, places[p]);
        what.type = what.fits = TAMIS_DTYPE_BFLOAT16;
        compare(what, places[p]);
    }
}

static void test_a_residual_that_decays_has_the_bits_of_the_cpu(void **state) {
    (void)state;
    compare_shapes(NULL);
}

static void test_updates_have_the_bits_of_the_cpu(void **state) {
    tamis_update update = TAMIS_UPDATE_INIT;
    (void)state;
    update.scale = 33.0;
    update.beta1 = 0.9;
    compare_shapes(&update);
    update.beta1 = 0.0;
    compare_shapes(&update);
    update.beta1 = 0.9;
    update.rule = TAMIS_UPDATE_MOMENTUM;
    compare_shapes(&update);
}

static void test_a_scale_that_follows_norms_has_the_bits_of_the_cpu(void **state) {
    tamis_update update = TAMIS_UPDATE_INIT;
    (void)state;
    update.beta1 = 0.9;
    update.norm_matching = 2.0;
    compare_shapes(&update);
    update.scale = 1.5; /* at most */
    compare_shapes(&update);
}

/* Several pieces of lib/base/fold.h, some of them in other blocks. */
static void test_many_values_are_added_in_the_order_of_the_cpu(void **state) {
    tamis_update update = TAMIS_UPDATE_INIT;
    (void)state;
    update.norm_matching = 2.0;
    trial what = usual(&update);
    what.n = 9000;
    what.density = 0.8;
    what.steps = 2;
    compare(what, &backend_stream);
    what.scheme = "topk"; /* pairs */
    what.nranks = 3;
    compare(what, &backend_stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_residual_that_decays_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_updates_have_the_bits_of_the_cpu),
        cmocka_unit_test(test_a_scale_that_follows_norms_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_many_values_are_added_in_the_order_of_the_cpu),
    };
    return cmocka_run_group_tests_name("cuda update", tests, NULL, NULL);
}
