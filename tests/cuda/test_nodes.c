/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU and host path on a fake runtime: nodes whose steps the device drives by itself
 * give the bits that the CPU gives.
 */
#include "tests/cuda/backend.h"
#include "tests/support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

typedef struct nodes {
    uint32_t nranks, size;
} nodes;

static trial_record run(const trial *what) {
    trial_record record;
    test_context("P=%u, nodes of %u, n=%zu", what->nranks, what->ranks_per_node, what->n);
    if (!trial_run(what, &record))
        fail_msg("[%s] was refused: %s", test_context_text(), record.sentence[0]);
    check_ranks_identical(&record);
    return record;
}

static void compare_at(trial what, const trial_record *cpu, const trial_backend *backend) {
    what.backend = backend;
    trial_record cuda = run(&what);
    check_same(cpu, &cuda);
    for (uint32_t s = 0; s < what.steps && backend == &backend_stream; s++) /* not by the host */
        assert_false(record_moment(&cuda, s, 0)->stats.accumulate_s > 0.0);
    record_free(&cuda);
}

static void compare(trial what) {
    trial_record cpu = run(&what);
    compare_at(what, &cpu, &backend_stream);
    compare_at(what, &cpu, test_drawn(2) ? &backend_host_driven : &backend_mixed);
    record_free(&cpu);
}

static trial trial_of(const char *scheme, nodes of, size_t n, double density) {
    trial what = trial_usual(scheme, of.nranks, n, density);
    what.ranks_per_node = of.size;
    what.real = true;
    what.steps = 3;
    return what;
}

static void test_all_nodes_give_the_bits_of_the_cpu(void **state) {
    static const nodes all[] = {{2, 2}, {4, 2}, {6, 2}, {6, 3}, {8, 4}, {3, 3}};
    static const char *const schemes[] = {"tamis", "cltk", "rotate+global+exact+union"};
    (void)state;
    for (size_t i = 0; i < COUNT(all); i++) {
        if (test_drawn(2))
            compare(trial_of(schemes[i % 3], all[i], 1601, 0.05));
        if (test_drawn(2))
            compare(trial_of(schemes[(i + 1) % 3], all[i], 64, 0.5));
    }
}

static void test_however_gradients_and_results_lie(void **state) {
    (void)state;
    for (int i = 0; i < 12; i++) {
        if (!test_drawn(5))
            continue;
        trial what = trial_of("tamis", i % 2 ? (nodes){4, 2} : (nodes){6, 3}, 1601, 0.05);
        what.type = what.fits = (tamis_dtype)(i % 3);
        what.by_segment = i / 3 % 2;
        what.output = i / 2 % 2 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
        what.scale = i % 4 ? 1.0f : 0.5f;
        what.op = i % 5 ? TAMIS_OP_SUM : TAMIS_OP_MEAN;
        what.forgets = i % 7 ? 0.0 : 0.1;
        compare(what);
    }
}

static void test_buckets_and_the_order_of_readiness(void **state) {
    (void)state;
    for (int i = 0; i < 6; i++) {
        if (!test_drawn(3))
            continue;
        trial what = trial_of("tamis", i % 2 ? (nodes){4, 2} : (nodes){6, 3}, 3001, 0.02);
        what.bucket_length = 700;
        what.bucket_budget = i / 2 % 2 ? TAMIS_BUCKET_BUDGET_LENGTH : TAMIS_BUCKET_BUDGET_NORM;
        what.disorder = i < 2 ? 0 : (uint32_t)i;
        what.output = i / 3 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
        what.steps = 5;
        compare(what);
    }
}

static void test_whatever_travels_between_nodes(void **state) {
    (void)state;
    for (int i = 0; i < 10; i++) {
        if (!test_drawn(3))
            continue;
        trial what = trial_of("tamis", i % 2 ? (nodes){8, 2} : (nodes){6, 2}, 9001, 0.1);
        what.index_codec = (tamis_index_codec)(TAMIS_INDEX_U32 + i % 5);
        what.value_codec = (tamis_value_codec)(TAMIS_VALUE_FLOAT32 + i / 2 % 5);
        what.sum_codec = i < 5 ? TAMIS_VALUE_AUTO : TAMIS_VALUE_BFLOAT16;
        what.steps = 2;
        compare(what);
    }
}

static void test_hard_gradients(void **state) {
    (void)state;
    for (int pattern = 0; pattern < DATA_PATTERNS; pattern++) {
        if (!test_drawn(5))
            continue;
        trial what = trial_of("tamis", (nodes){6, 2}, 3000, 0.01);
        what.real = false;
        what.pattern = (data_pattern)pattern;
        what.steps = 5;
        compare(what);
    }
}

/* Shards of several runs. */
static void test_long_vectors(void **state) {
    trial what = trial_of("tamis", (nodes){4, 2}, 300007, 0.01);
    (void)state;
    what.steps = 2;
    compare(what);
}

/* So long that the sum of a node comes in pieces, of which the last is shorter. */
static void test_a_sum_in_pieces(void **state) {
    trial what = trial_of("tamis", (nodes){2, 2}, 4300003, 0.001);
    (void)state;
    what.steps = 2;
    trial_record cpu = run(&what);
    compare_at(what, &cpu, &backend_stream);
    record_free(&cpu);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_nodes_give_the_bits_of_the_cpu),
        cmocka_unit_test(test_however_gradients_and_results_lie),
        cmocka_unit_test(test_buckets_and_the_order_of_readiness),
        cmocka_unit_test(test_whatever_travels_between_nodes),
        cmocka_unit_test(test_hard_gradients),
        cmocka_unit_test(test_long_vectors),
        cmocka_unit_test(test_a_sum_in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
