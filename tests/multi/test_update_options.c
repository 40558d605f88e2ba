/* SPDX-License-Identifier: MIT
 *
 * Update mode: which options are allowed, and the defaults of those left open. test_update.c tests
 * the rules themselves.
 */
#include "lib/base/half.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 900 };

/* -- what is refused -------------------------------------------------------------------------- */

typedef struct solo {
    tamis_comm *comm;
    tamis_reducer *reducer;
    tamis_update update;
    tamis_reducer_config config;
} solo;

static solo solo_of(tamis_update_rule rule) {
    solo s = {.update = TAMIS_UPDATE_INIT, .config = TAMIS_REDUCER_CONFIG_INIT};
    s.update.rule = rule;
    s.config.density = 0.05;
    assert_int_equal(tamis_comm_create_local(1, NULL, &s.comm), TAMIS_OK);
    return s;
}

static void expect(solo *s, tamis_status status, const char *words) {
    s->config.update = &s->update;
    tamis_status got = data_reducer(s->comm, N, &s->config, &s->reducer);
    if (got != status || !has_word(tamis_last_error(), words))
        fail_msg("%s \"%s\" where \"%s\" was expected", tamis_status_name(got), tamis_last_error(),
                 words);
}

static void test_numbers_out_of_range_are_refused(void **state) {
    (void)state;
    static const double bad[] = {-0.1, 1.0, 2.0, NAN, INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        solo s = solo_of(TAMIS_UPDATE_ADAM);
        s.update.beta1 = bad[i];
        expect(&s, TAMIS_E_ARGUMENT, "beta1");
        s.update.beta1 = 0.9;
        s.update.beta2 = bad[i];
        expect(&s, TAMIS_E_ARGUMENT, "beta2");
        s.update.beta2 = 0.9;
        s.update.epsilon = isfinite(bad[i]) && bad[i] > 0 ? 0.0 : bad[i];
        expect(&s, TAMIS_E_ARGUMENT, "epsilon");
        s.update.epsilon = 1e-8;
        s.update.scale = isfinite(bad[i]) && bad[i] > 0 ? 1e-7 : bad[i];
        expect(&s, TAMIS_E_ARGUMENT, "scale");
        s.update.scale = 1.0;
        s.config.residual_decay = bad[i] == 1.0 ? 1.1 : bad[i];
        expect(&s, TAMIS_E_ARGUMENT, "residual_decay");
        tamis_comm_destroy(s.comm);
    }
    solo s = solo_of((tamis_update_rule)3);
    expect(&s, TAMIS_E_ARGUMENT, "rule");
    s.update.rule = TAMIS_UPDATE_ADAM;
    s.update.size = 4;
    expect(&s, TAMIS_E_ARGUMENT, "tamis_update.size");
    tamis_comm_destroy(s.comm);
}

static void test_what_has_no_update_is_refused(void **state) {
    (void)state;
    float gradient[N] = {0}, moment[N] = {0};
    uint64_t passes;
    solo s = solo_of(TAMIS_UPDATE_MOMENTUM);
    s.config.scheme = "dense";
    expect(&s, TAMIS_E_UNSUPPORTED, "no residual");
    s.config.scheme = NULL;
    assert_int_equal(data_reducer(s.comm, N, (s.config.update = &s.update, &s.config), &s.reducer),
                     TAMIS_OK);
    tamis_step step = data_step(gradient);
    tamis_reducer *r = s.reducer;
    assert_int_equal(tamis_reducer_accumulate(r, &step), TAMIS_E_UNSUPPORTED);
    assert_int_equal(tamis_reducer_save_moments(r, NULL, NULL, &passes), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_save_moments(r, moment, moment, &passes), TAMIS_E_ARGUMENT);
    assert_int_equal(tamis_reducer_save_moments(r, moment, NULL, NULL), TAMIS_E_ARGUMENT);
    moment[3] = NAN;
    assert_int_equal(tamis_reducer_load_moments(r, moment, NULL, 1), TAMIS_E_ARGUMENT);
    assert_true(has_word(tamis_last_error(), "element 3"));
    tamis_reducer_destroy(r);
    s.config.update = NULL;
    assert_int_equal(data_reducer(s.comm, N, &s.config, &r), TAMIS_OK);
    assert_int_equal(tamis_reducer_save_moments(r, moment, NULL, &passes), TAMIS_E_UNSUPPORTED);
    tamis_reducer_destroy(r);
    s.config.scheme = "dense";
    s.config.residual_decay = 0.5;
    assert_int_equal(data_reducer(s.comm, N, &s.config, &r), TAMIS_E_UNSUPPORTED);
    tamis_comm_destroy(s.comm);
}

static void test_segments_with_rows_are_refused(void **state) {
    (void)state;
    const tamis_segment segments[] = {{"words", 200}, {"rest", 100}};
    tamis_layout *layout;
    solo s = solo_of(TAMIS_UPDATE_ADAM);
    s.config.update = &s.update;
    assert_int_equal(tamis_layout_create(segments, 2, &layout), TAMIS_OK);
    assert_int_equal(tamis_layout_set_rows(layout, 0, 10), TAMIS_OK);
    assert_int_equal(tamis_reducer_create(s.comm, layout, &s.config, &s.reducer),
                     TAMIS_E_UNSUPPORTED);
    assert_true(has_word(tamis_last_error(), "rows"));
    tamis_layout_destroy(layout);
    tamis_comm_destroy(s.comm);
}

/* What rank 1 asks for where rank 0 asks for the usual. */
static const struct odd {
    const char *words;
    tamis_update update;
    double decay;
    bool none;
} odds[] = {
    {"update.scale",
     {sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 2.0, 0.0},
     0.5,
     false},
    {"update.beta1",
     {sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.8, 0.99, 1e-8, 5.0, 0.0},
     0.5,
     false},
    {"residual_decay",
     {sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 5.0, 0.0},
     0.25,
     false},
    {"bucket_budget|update", {0}, 0.5, true},
    /* the scale equals rank 0's at this density, but would not at another */
    {"update.scale",
     {sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 0.0, 0.0},
     0.5,
     false},
};

static void run_differing(test_rank *self) {
    const struct odd *odd = self->shared;
    tamis_update update = {sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 5.0, 0.0};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    config.density = 0.1;
    config.value_codec = TAMIS_VALUE_FLOAT32;
    config.scheme = "tamis";
    config.residual_decay = self->id == 1 ? odd->decay : 0.5;
    config.update = self->id == 0 ? &update : odd->none ? NULL : &odd->update;
    RANK_STATUS(self, TAMIS_E_MISMATCH, data_reducer(self->comm, N, &config, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), odd->words), "\"%s\"", tamis_last_error());
}

static void test_ranks_that_differ_are_told_so(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof odds / sizeof odds[0]; i++) {
        struct odd odd = odds[i];
        test_context("difference %zu", i);
        ranks_run(2, 0, run_differing, &odd);
    }
}

/* -- defaults --------------------------------------------------------------------------------- */

/* What a reducer of one rank has made of its options. */
static tamis_reducer_config options_of(const char *scheme, double density, tamis_update *update) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_comm *comm;
    tamis_reducer *reducer;
    config.scheme = scheme;
    config.density = density;
    config.update = update;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    assert_int_equal(data_reducer(comm, N, &config, &reducer), TAMIS_OK);
    assert_int_equal(tamis_reducer_options(reducer, &config, update), TAMIS_OK);
    assert_true(config.update == update && config.scheme == NULL);
    tamis_reducer_destroy(reducer);
    tamis_comm_destroy(comm);
    return config;
}

static const struct open_row {
    const char *scheme;
    bool updates;
    tamis_update_rule rule;
    double given, density; /* beta1 */
    tamis_value_codec codec, sum_codec;
    double beta1, decay, scale, norm_matching;
} open_rows[] = {
    {NULL, false, 0, 0, 0.3, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0, 1, 0, 0},
    {"cltk", false, 0, 0, 0.01, TAMIS_VALUE_AUTO, TAMIS_VALUE_AUTO, 0, 1, 0, 0},
    {"topk", false, 0, 0, 0.01, TAMIS_VALUE_AUTO, TAMIS_VALUE_AUTO, 0, 1, 0, 0},
    {NULL, true, TAMIS_UPDATE_ADAM, -1, 0.3, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.9, 0, 0, 1.25},
    {"topk", true, TAMIS_UPDATE_ADAM, 0.8, 0.3, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.8, 0, 0, 1.25},
    {NULL, true, TAMIS_UPDATE_ADAM, 0, 0.033, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2, 0, 0.98, 1.25, 0},
    {NULL, true, TAMIS_UPDATE_STEP, -1, 0.3, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0, 0, 0, 1.25},
    {NULL, true, TAMIS_UPDATE_MOMENTUM, -1, 0.3, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2, 0.9, 1, 4.98, 0},
    {"quantized", true, TAMIS_UPDATE_ADAM, -1, 0.3, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.9, 1, 0,
     1},
    {"dense", false, 0, 0, 0.01, TAMIS_VALUE_AUTO, TAMIS_VALUE_AUTO, 0, 1, 0, 0},
};

static void test_what_is_left_open_suits_the_update(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof open_rows / sizeof open_rows[0]; i++) {
        const struct open_row *row = &open_rows[i];
        tamis_update update = TAMIS_UPDATE_INIT;
        test_context("row %zu", i);
        update.rule = row->rule;
        update.beta1 = row->given;
        tamis_reducer_config c = options_of(row->scheme, 0.0, row->updates ? &update : NULL);
        assert_true(c.density == row->density && c.density_max == row->density);
        assert_int_equal(c.value_codec, row->codec);
        assert_int_equal(c.sum_codec, row->sum_codec);
        assert_true(c.residual_decay == row->decay);
        if (row->updates)
            assert_true(update.beta1 == row->beta1 && update.norm_matching == row->norm_matching &&
                        fabs(update.scale - row->scale) < 0.05);
    }
}

static void test_adam_has_no_momentum_where_few_entries_travel(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        tamis_update update = TAMIS_UPDATE_INIT;
        tamis_reducer_config c = options_of(NULL, i ? 0.036 : 0.034, &update);
        assert_true(update.beta1 == (i ? 0.9 : 0.0) && c.residual_decay == (i ? 0.0 : 0.98));
        assert_true((update.norm_matching > 0.0) == i && update.scale == (i ? 0.0 : 1.25));
    }
}

/* Two bits of twice the entries lose what four bits lose. */
static void test_few_entries_have_few_bits(void **state) {
    static const struct {
        const char *scheme;
        double density;
        tamis_value_codec values, sums;
    } rows[] = {
        {NULL, 0.26, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO},
        {NULL, 0.24, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2},
        {NULL, 0.01, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2},
        {NULL, 1.0, TAMIS_VALUE_AUTO, TAMIS_VALUE_AUTO},
        {"topk", 0.08, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2},
        {"all+global+exact+pairs", 0.08, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO},
        {"quantized", 0.08, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tamis_update update = TAMIS_UPDATE_INIT;
        test_context("row %zu", i);
        tamis_reducer_config c = options_of(rows[i].scheme, rows[i].density, &update);
        assert_int_equal(c.value_codec, rows[i].values);
        assert_int_equal(c.sum_codec, rows[i].sums);
    }
}

static void test_what_is_given_stays(void **state) {
    tamis_update update = TAMIS_UPDATE_INIT;
    (void)state;
    update.scale = 5.0;
    tamis_reducer_config c = options_of(NULL, 0.07, &update);
    assert_true(c.density == 0.07 && c.value_codec == TAMIS_VALUE_AUTO);
    assert_true(update.scale == 5.0 && update.norm_matching == 0.0);
    update.norm_matching = 3.0;
    (void)options_of(NULL, 0.07, &update);
    assert_true(update.scale == 5.0 && update.norm_matching == 3.0);
    assert_int_equal(tamis_reducer_options(NULL, &c, &update), TAMIS_E_ARGUMENT);
}

/* Rows of the table, one between, and below the last. */
static void test_norms_follow_the_density(void **state) {
    static const double rows[][2] = {{1.0, 1.0},    {0.3, 1.25}, {0.08, 2.0},
                                     {0.04, 2.392}, {0.01, 3.0}, {0.002, 3.0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tamis_update update = TAMIS_UPDATE_INIT;
        update.beta1 = 0.9;
        (void)options_of(NULL, rows[i][0], &update);
        assert_true(fabs(update.norm_matching - rows[i][1]) < 0.05);
    }
}

/* What momentum gives in T = 1 / density steps and then loses, summed up plainly: T whole. */
static double plain_momentum_scale(uint32_t interval, double beta) {
    double given = 0.0, power = 1.0;
    for (uint32_t t = 0; t < interval; t++) { /* a gradient that is t steps before the clearing */
        power *= beta;
        given += (1.0 - power) / (1.0 - beta);
    }
    return 1.0 / (1.0 - beta) / (given / interval);
}

static void test_momentum_that_is_cleared_is_made_up_for(void **state) {
    (void)state;
    for (uint32_t interval = 1; interval <= 1000; interval = 2 * interval + 1) {
        tamis_update update = TAMIS_UPDATE_INIT;
        update.rule = TAMIS_UPDATE_MOMENTUM;
        tamis_reducer_config c = options_of(NULL, 1.0 / interval, &update);
        double want = interval == 1 ? 1.0 : plain_momentum_scale(interval, 0.9);
        assert_true(fabs(update.scale - want) < 0.02 * want && c.residual_decay == 1.0);
        update.beta1 = update.scale = 0.0;
        (void)options_of(NULL, 1.0 / interval, &update);
        assert_true(update.scale == 1.0);
    }
}

/* With everything sent in every step it is SGD with momentum, bit for bit. */
static void run_whole_momentum(test_rank *self) {
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float gradient[N], m[N] = {0};
    const tamis_step step = data_step(gradient);
    update.rule = TAMIS_UPDATE_MOMENTUM;
    config.update = &update;
    config.density = 1.0;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t number = 0; number < 5; number++) {
        data_fill_real(0, number, N, gradient);
        for (size_t i = 0; i < N; i++)
            m[i] = 0.9f * m[i] + gradient[i];
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_CHECK(self, memcmp(gradient, m, sizeof m) == 0, "step %u is not that of SGD", number);
    }
    tamis_reducer_destroy(reducer);
}

static void test_momentum_at_density_1_is_that_of_sgd(void **state) {
    (void)state;
    ranks_run(2, 0, run_whole_momentum, NULL);
}

static void step_of(test_rank *self, tamis_reducer *reducer, uint32_t number, float *out) {
    data_fill_real(self->id, number, N, out);
    tamis_step step = data_step(out);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
}

/* Options left open must give the same bits as the defaults written out, also after a change of
 * density, to the one whose scale `other` had from the start. */
static void run_open(test_rank *self) {
    enum { LEFT, SAME, OTHER, REDUCERS };
    const tamis_update_rule *rule = self->shared;
    tamis_reducer *reducers[REDUCERS];
    tamis_update updates[REDUCERS] = {TAMIS_UPDATE_INIT, TAMIS_UPDATE_INIT, TAMIS_UPDATE_INIT};
    float outs[REDUCERS][N];
    for (int i = 0; i < REDUCERS; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        updates[i].rule = *rule;
        if (i != LEFT)
            config = options_of(NULL, i == OTHER ? 0.08 : 0.04, &updates[i]);
        config.density = 0.04;
        config.density_max = 0.08;
        config.update = &updates[i];
        RANK_OK(self, data_reducer(self->comm, N, &config, &reducers[i]));
    }
    RANK_CHECK(self,
               *rule == TAMIS_UPDATE_MOMENTUM ||
                   updates[SAME].norm_matching != updates[OTHER].norm_matching,
               "both densities have the norm matching %g", updates[SAME].norm_matching);
    for (uint32_t number = 0; number < 6; number++) {
        for (int i = 0; i < REDUCERS; i++) {
            if (number == 3)
                RANK_OK(self, tamis_reducer_set_density(reducers[i], 0.08));
            step_of(self, reducers[i], number, outs[i]);
        }
        RANK_CHECK(self, memcmp(outs[LEFT], outs[number < 3 ? SAME : OTHER], sizeof outs[0]) == 0,
                   "step %u differs", number);
    }
    for (int i = 0; i < REDUCERS; i++)
        tamis_reducer_destroy(reducers[i]);
}

static void test_what_is_left_open_follows_the_density(void **state) {
    (void)state;
    for (int rule = 0; rule < 2; rule++)
        ranks_run(2, 0, run_open, &(tamis_update_rule){(tamis_update_rule)rule});
}

/* Loading a state's density also loads its scale. */
static void run_loaded(test_rank *self) {
    const tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *whole = NULL, *loaded = NULL;
    char name[32], path[SCRATCH_PATH];
    float here[N], there[N];
    config.density = 0.04;
    config.density_max = 0.1;
    config.update = &update;
    snprintf(name, sizeof name, "loaded.%u", self->id);
    scratch_path(name, path);
    RANK_OK(self, data_reducer(self->comm, N, &config, &whole));
    RANK_OK(self, data_reducer(self->comm, N, &config, &loaded));
    RANK_OK(self, tamis_reducer_set_density(whole, 0.1));
    for (uint32_t number = 0; number < 6; number++) {
        step_of(self, whole, number, here);
        if (number == 2) {
            RANK_OK(self, tamis_reducer_save(whole, path));
            RANK_OK(self, tamis_reducer_load(loaded, path));
        }
        if (number <= 2)
            continue;
        step_of(self, loaded, number, there);
        RANK_CHECK(self, memcmp(here, there, sizeof here) == 0, "step %u differs", number);
    }
    tamis_reducer_destroy(loaded);
    tamis_reducer_destroy(whole);
}

static void test_a_state_brings_the_scale_of_its_density(void **state) {
    (void)state;
    ranks_run(2, 0, run_loaded, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_out_of_range_are_refused),
        cmocka_unit_test(test_what_has_no_update_is_refused),
        cmocka_unit_test(test_segments_with_rows_are_refused),
        cmocka_unit_test(test_ranks_that_differ_are_told_so),
        cmocka_unit_test(test_what_is_left_open_suits_the_update),
        cmocka_unit_test(test_adam_has_no_momentum_where_few_entries_travel),
        cmocka_unit_test(test_few_entries_have_few_bits),
        cmocka_unit_test(test_what_is_given_stays),
        cmocka_unit_test(test_norms_follow_the_density),
        cmocka_unit_test(test_momentum_that_is_cleared_is_made_up_for),
        cmocka_unit_test(test_momentum_at_density_1_is_that_of_sgd),
        cmocka_unit_test(test_what_is_left_open_follows_the_density),
        cmocka_unit_test(test_a_state_brings_the_scale_of_its_density),
    };
    return cmocka_run_group_tests_name("update_options", tests, NULL, NULL);
}
