/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: whole steps on gradients of 16 bits give the
 * bits that the CPU gives.
 *
 * test: release
 */
#include "tests/cuda/backend.h"
#include "tests/support/schemes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static const trial_backend *const places[] = {&backend_host_driven, &backend_stream};

static void compare(trial what, tamis_dtype type, const trial_backend *backend) {
    trial_record cpu, cuda;
    what.type = what.fits = type;
    assert_true(trial_run(&what, &cpu));
    what.backend = backend;
    assert_true(trial_run(&what, &cuda));
    check_ranks_identical(&cuda);
    check_same(&cpu, &cuda);
    record_free(&cpu);
    record_free(&cuda);
}

static void compare_all(trial what) {
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
        compare(what, TAMIS_DTYPE_FLOAT16, places[p]);
        compare(what, TAMIS_DTYPE_BFLOAT16, places[p]);
    }
}

static trial usual(const char *scheme) {
    trial what = trial_usual(scheme, 2, 2601, 0.05);
    what.steps = 4;
    what.real = true;
    what.op = TAMIS_OP_MEAN;
    what.scale = 0.37f;
    return what;
}

static void test_every_preset_gives_the_bits_of_the_cpu(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t i = 0; scheme_preset(i, &scheme); i++)
        compare_all(usual(scheme.name));
}

static void test_segments_and_sparse_output_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    trial what = usual("tamis");
    what.by_segment = true;
    compare_all(what);
    what.output = TAMIS_OUTPUT_SPARSE;
    compare_all(what);
    what = usual("dense");
    what.by_segment = true;
    compare_all(what);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_preset_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_segments_and_sparse_output_give_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
