/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: update mode, which the host drives over every
 * communicator, and residuals that decay, also where the device runs the steps, give the bits of
 * the CPU.
 */
#include "tests/cuda/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static const trial_place *const places[] = {&place_host_driven, &place_stream};

static void compare(trial what, const trial_place *place) {
    trial_record cpu, cuda;
    assert_true(trial_run(&what, &cpu));
    what.place = place;
    assert_true(trial_run(&what, &cuda));
    check_alike(&cuda);
    check_same(&cpu, &cuda);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_residual_that_decays_has_the_bits_of_the_cpu),
        cmocka_unit_test(test_updates_have_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests_name("cuda update", tests, NULL, NULL);
}
