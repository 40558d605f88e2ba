/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: whole steps of every scheme with
 * TAMIS_DEVICE_CUDA, driven by the host over the local transport and by the device over NCCL, give
 * the bits that the CPU gives, and keep what is always true.
 *
 * test: slow release
 */
#include "tests/cuda/backend.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 2600, STEPS = 5 };

static const trial_backend *const places[] = {&backend_host_driven, &backend_stream};

static void check_always(const trial_record *record) {
    check_ranks_identical(record);
    check_union(record);
    check_stats(record);
    if (record->trial.op == TAMIS_OP_SUM && !record->trial.real)
        check_conservation(record);
}

/* Compare a trial on the CPU and in one place. */
static void compare(trial what, const trial_backend *place) {
    trial_record cpu, cuda;
    bool exists = trial_run(&what, &cpu);
    what.backend = place;
    if (trial_run(&what, &cuda) != exists)
        fail_msg("[%s] %s: %s", test_context_text(), exists ? "refused" : "not refused",
                 cuda.sentence[0]);
    if (exists) {
        check_always(&cuda);
        check_same(&cpu, &cuda);
    }
    record_free(&cpu);
    record_free(&cuda);
}

static void compare_all(trial what) {
    for (size_t p = 0; p < sizeof places / sizeof places[0]; p++)
        compare(what, places[p]);
}

static trial usual(const char *scheme, uint32_t nranks, double density) {
    trial what = trial_usual(scheme, nranks, N, density);
    what.steps = STEPS;
    what.real = true;
    return what;
}

static void test_every_preset_gives_the_bits_of_the_cpu(void **state) {
    static const uint32_t nranks[] = {1, 2, 3, 4};
    scheme_case scheme;
    (void)state;
    for (size_t i = 0; scheme_preset(i, &scheme); i++)
        for (size_t p = i % test_stride(4); p < sizeof nranks / sizeof nranks[0];
             p += test_stride(4))
            compare_all(usual(scheme.name, nranks[p], p % 2 ? 0.01 : 0.1));
}

static void test_every_combination_gives_the_bits_of_the_cpu(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t i = 0; scheme_combination(i, &scheme); i += test_stride(5)) {
        trial what = usual(scheme.name, 3, 0.05);
        what.capacity = i % 2 ? 1.5 : 0.0;
        compare_all(what);
    }
}

static void test_eight_ranks_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    compare(usual("tamis", 8, 0.02), &backend_stream);
    compare(usual("dense", 8, 0.02), &backend_stream);
}

static void test_every_kind_of_data_gives_the_bits_of_the_cpu(void **state) {
    (void)state;
    for (int pattern = 0; pattern < DATA_PATTERNS; pattern++) {
        trial what = usual(pattern % 2 ? "topk" : "tamis", 2, 0.03);
        what.real = false;
        what.pattern = (data_pattern)pattern;
        what.steps = 9;
        compare(what, &backend_stream);
    }
}

static void test_options_give_the_bits_of_the_cpu(void **state) {
    (void)state;
    trial what = usual("tamis", 2, 0.05);
    what.by_segment = true;
    compare_all(what);
    what.output = TAMIS_OUTPUT_SPARSE;
    compare_all(what);
    what.by_segment = false;
    what.op = TAMIS_OP_MEAN;
    what.scale = 0.37f;
    compare_all(what);
    what.block = 32;
    what.density = 1.0;
    compare_all(what);
}

static void test_tiny_vectors_give_the_bits_of_the_cpu(void **state) {
    static const size_t lengths[] = {1, 2, 3, 5, 31, 33, 511, 512, 513};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        trial what = usual("tamis", 2, 0.1);
        what.n = lengths[i];
        compare(what, &backend_stream);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_preset_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_every_combination_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_eight_ranks_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_every_kind_of_data_gives_the_bits_of_the_cpu),
        cmocka_unit_test(test_options_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_tiny_vectors_give_the_bits_of_the_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
