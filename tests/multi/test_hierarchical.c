/* SPDX-License-Identifier: MIT
 *
 * Nodes of several ranks: the rules of every exchange hold for this one, each shard gives the
 * results of a flat reducer on the node's sums, and what it cannot do it refuses.
 */
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/trial.h"
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

static const nodes all_nodes[] = {{2, 2}, {4, 2}, {6, 2}, {6, 3}, {8, 4}, {3, 3}};

/* -- rules ------------------------------------------------------------------------------------ */

static void check_rules(const trial_record *record) {
    check_ranks_identical(record);
    check_union(record);
    check_stats(record);
    check_count(record);
    if (record->trial.op == TAMIS_OP_SUM && !record->trial.real)
        check_conservation(record);
    if (record->trial.density == 1)
        check_all_applied(record);
}

static trial trial_of(const char *scheme, nodes of, size_t n, double density) {
    trial what = trial_usual(scheme, of.nranks, n, density);
    what.ranks_per_node = of.size;
    return what;
}

static void run_trial(const trial *what) {
    trial_record record;
    if (!trial_run(what, &record))
        fail_msg("[%s] was refused: %s", test_context_text(), record.sentence[0]);
    check_rules(&record);
    record_free(&record);
}

static void test_mass_is_conserved_and_the_count_is_k(void **state) {
    static const char *const schemes[] = {"tamis", "cltk", "rotate+global+exact+union"};
    static const size_t sizes[] = {64, 1000, 4097};
    static const double densities[] = {1, 0.5, 0.1, 0.01, 0.0003};
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++)
        for (size_t p = 0; p < COUNT(all_nodes); p++)
            for (size_t n = 0; n < COUNT(sizes); n++)
                for (size_t d = 0; d < COUNT(densities); d++) {
                    if (!test_drawn(7))
                        continue;
                    trial what = trial_of(schemes[s], all_nodes[p], sizes[n], densities[d]);
                    run_trial(&what);
                }
}

static void test_shards_of_several_chunks_keep_all_rules(void **state) {
    (void)state;
    for (size_t p = 0; p < 4; p++) {
        if (!test_drawn(3))
            continue;
        trial what = trial_of("tamis", all_nodes[p], 300007, 0.01);
        what.steps = 4;
        run_trial(&what);
    }
}

static void test_hard_gradients_keep_all_rules(void **state) {
    (void)state;
    for (int pattern = 0; pattern < DATA_PATTERNS; pattern++) {
        trial what = trial_of("tamis", (nodes){6, 2}, 3000, 0.01);
        what.pattern = (data_pattern)pattern;
        run_trial(&what);
    }
}

/* -- ways of calling that must not matter ----------------------------------------------------- */

static void compare(const trial *usual, const trial *other) {
    trial_record a, b;
    if (!trial_run(usual, &a) || !trial_run(other, &b))
        fail_msg("[%s] was refused", test_context_text());
    check_rules(&b);
    check_same(&a, &b);
    record_free(&a);
    record_free(&b);
}

static void test_how_a_gradient_is_given_does_not_matter(void **state) {
    trial usual = trial_of("tamis", (nodes){4, 2}, 4097, 0.02), other = usual;
    (void)state;
    other.by_segment = true;
    compare(&usual, &other);
    other.output = TAMIS_OUTPUT_SPARSE;
    compare(&usual, &other);
    other = usual;
    other.worker = TAMIS_WORKER_THREAD;
    other.threads = 2;
    compare(&usual, &other);
    for (int index_codec = TAMIS_INDEX_U32; index_codec < TAMIS_INDEX_END; index_codec++) {
        other = usual;
        other.index_codec = (tamis_index_codec)index_codec;
        compare(&usual, &other);
    }
}

static void test_buckets_and_the_order_of_readiness_keep_all_rules(void **state) {
    (void)state;
    for (int budget = 0; budget < 2; budget++) {
        trial usual = trial_of("tamis", (nodes){6, 3}, 4097, 0.05), other;
        usual.bucket_length = 1000;
        usual.bucket_budget = (tamis_bucket_budget)budget;
        other = usual;
        other.disorder = 7;
        compare(&usual, &other);
    }
}

static void test_gradients_of_16_bits_and_a_scale_keep_all_rules(void **state) {
    (void)state;
    for (int type = TAMIS_DTYPE_FLOAT32; type <= TAMIS_DTYPE_BFLOAT16; type++)
        for (int by_segment = 0; by_segment < 2; by_segment++) {
            trial wide = trial_of("tamis", (nodes){4, 2}, 2000, 0.05), narrow;
            wide.scale = 0.5f;
            wide.fits = (tamis_dtype)type;
            wide.output = TAMIS_OUTPUT_SPARSE;
            narrow = wide;
            narrow.type = (tamis_dtype)type;
            narrow.by_segment = by_segment;
            compare(&wide, &narrow);
        }
}

static void test_a_mean_divides_by_all_ranks(void **state) {
    trial sum = trial_of("tamis", (nodes){4, 2}, 1000, 0.1), mean = sum;
    trial_record a, b;
    (void)state;
    mean.op = TAMIS_OP_MEAN;
    assert_true(trial_run(&sum, &a) && trial_run(&mean, &b));
    for (size_t i = 0; i < 1000 * sum.steps; i++)
        assert_true(b.results[i] == a.results[i] / 4);
    record_free(&a);
    record_free(&b);
}

static void test_one_rank_per_node_is_the_flat_exchange(void **state) {
    (void)state;
    trial flat = trial_usual("tamis", 4, 4097, 0.02), one = flat;
    one.ranks_per_node = 1;
    flat.real = one.real = true;
    compare(&flat, &one);
}

/* -- the slow way ----------------------------------------------------------------------------- */

/* Each shard separately: a flat reducer with one rank per node, which gets the sums that this test
 * computes serially. */

enum { N = 1000, SIZE = 2, NODES = 3, STEPS = 8, SHARD = N / SIZE };

typedef struct oracle {
    uint32_t shard; /* of the flat run */
    tamis_value_codec value_codec, sums;
    float results[STEPS][N], residuals[STEPS][NODES][N];
} oracle;

static void sum_of_node(uint32_t node, uint32_t step, float *out) {
    float gradient[N];
    data_fill_real(node * SIZE, step, N, out);
    for (uint32_t g = 1; g < SIZE; g++) {
        data_fill_real(node * SIZE + g, step, N, gradient);
        for (size_t i = 0; i < N; i++)
            out[i] += gradient[i];
    }
}

static tamis_status create_one_segment(test_rank *self, size_t length, uint32_t ranks_per_node,
                                       tamis_reducer **out) {
    const oracle *o = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_segment segment = {"all", length};
    tamis_layout *layout = NULL;
    config.density = 0.1;
    config.op = TAMIS_OP_SUM;
    config.ranks_per_node = ranks_per_node;
    config.value_codec = o->value_codec;
    config.sum_codec = o->sums;
    tamis_status status = tamis_layout_create(&segment, 1, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void run_shard(test_rank *self) {
    oracle *o = self->shared;
    tamis_reducer *reducer = NULL;
    const float *residual = NULL;
    float gradient[N];
    size_t begin = (size_t)o->shard * SHARD;
    RANK_OK(self, create_one_segment(self, SHARD, 0, &reducer));
    for (uint32_t step = 0; step < STEPS; step++) {
        sum_of_node(self->id, step, gradient);
        tamis_step own = data_step(gradient + begin);
        RANK_OK(self, tamis_reducer_start(reducer, &own));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_residual(reducer, &residual));
        memcpy(o->residuals[step][self->id] + begin, residual, SHARD * sizeof(float));
        if (self->id == 0)
            memcpy(o->results[step] + begin, gradient + begin, SHARD * sizeof(float));
    }
    tamis_reducer_destroy(reducer);
}

static void run_nodes(test_rank *self) {
    const oracle *o = self->shared;
    tamis_reducer *reducer = NULL;
    const float *residual = NULL;
    float gradient[N];
    uint32_t node = self->id / SIZE, shard = self->id % SIZE;
    RANK_OK(self, create_one_segment(self, N, SIZE, &reducer));
    for (uint32_t step = 0; step < STEPS; step++) {
        data_fill_real(self->id, step, N, gradient);
        tamis_step own = data_step(gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &own));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_residual(reducer, &residual));
        RANK_CHECK(self, memcmp(gradient, o->results[step], sizeof gradient) == 0,
                   "step %u: the result differs", step);
        RANK_CHECK(self,
                   memcmp(residual, o->residuals[step][node] + (size_t)shard * SHARD,
                          SHARD * sizeof(float)) == 0,
                   "step %u: the residual differs", step);
    }
    tamis_reducer_destroy(reducer);
}

static void test_a_shard_is_a_flat_reducer_on_sums_of_nodes(void **state) {
    static oracle o;
    (void)state;
    for (o.value_codec = TAMIS_VALUE_AUTO; o.value_codec < TAMIS_VALUE_END; o.value_codec++) {
        o.sums = o.value_codec == TAMIS_VALUE_FP2 ? TAMIS_VALUE_FP2 : TAMIS_VALUE_AUTO;
        test_context("value codec %d: shards by themselves", (int)o.value_codec);
        for (o.shard = 0; o.shard < SIZE; o.shard++)
            ranks_run(NODES, 0, run_shard, &o);
        test_context("value codec %d: shards of nodes", (int)o.value_codec);
        ranks_run(NODES * SIZE, 0, run_nodes, &o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass_is_conserved_and_the_count_is_k),
        cmocka_unit_test(test_shards_of_several_chunks_keep_all_rules),
        cmocka_unit_test(test_hard_gradients_keep_all_rules),
        cmocka_unit_test(test_how_a_gradient_is_given_does_not_matter),
        cmocka_unit_test(test_buckets_and_the_order_of_readiness_keep_all_rules),
        cmocka_unit_test(test_gradients_of_16_bits_and_a_scale_keep_all_rules),
        cmocka_unit_test(test_a_mean_divides_by_all_ranks),
        cmocka_unit_test(test_one_rank_per_node_is_the_flat_exchange),
        cmocka_unit_test(test_a_shard_is_a_flat_reducer_on_sums_of_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
