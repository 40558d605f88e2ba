/* SPDX-License-Identifier: MIT
 *
 * What is given in place of a density: a share of the bytes.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 200000, SMALL = 3000 };

/* -- bytes ------------------------------------------------------------------------------------ */

typedef struct share_case {
    double share;
    bool updates;
    tamis_value_codec values, sums; /* that are chosen */
    double least, most;             /* density */
} share_case;

static const share_case shares[] = {
    {0.5, true, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.3, 0.3},
    {0.07, true, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.27, 0.3},
    {0.05, true, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2, 0.249, 0.251},
    {0.025, true, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2, 0.15, 0.2},
    {0.006, true, TAMIS_VALUE_FP2, TAMIS_VALUE_FP2, 0.02, 0.05},
    {0.05, false, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.15, 0.25},
    {1.0, false, TAMIS_VALUE_FP4, TAMIS_VALUE_AUTO, 0.6, 0.6},
};

static void expect_share(test_rank *self, tamis_reducer *reducer, const share_case *c) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    RANK_OK(self, tamis_reducer_options(reducer, &config, NULL));
    RANK_CHECK(self, config.value_codec == c->values && config.sum_codec == c->sums,
               "share %g: codecs %d and %d", c->share, (int)config.value_codec,
               (int)config.sum_codec);
    RANK_CHECK(self, config.density >= c->least && config.density <= c->most,
               "share %g: density %g", c->share, config.density);
    RANK_CHECK(self, config.byte_share == 0.0, "options that are read cannot be given");
}

/* The entries alone: headers of packets and messages are not counted. */
static void expect_bytes(test_rank *self, tamis_reducer *reducer, double share) {
    tamis_stats s = TAMIS_STATS_INIT;
    RANK_OK(self, tamis_reducer_stats(reducer, &s));
    double dense = 8.0 * N * (self->nranks - 1) / self->nranks;
    double others = 3.0 * 200.0 * (self->nranks - 1);
    RANK_CHECK(self, (double)s.wire_bytes <= share * dense * 1.01 + others,
               "share %g: %g of the bytes", share, (double)s.wire_bytes / dense);
}

static void run_share(test_rank *self) {
    const share_case *c = self->shared;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    static _Thread_local float gradient[N];
    const tamis_step step = data_step(gradient);
    config.byte_share = c->share;
    config.update = c->updates ? &update : NULL;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    expect_share(self, reducer, c);
    for (uint32_t number = 0; number < 3; number++) {
        data_fill_real(self->id, number, N, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        expect_bytes(self, reducer, c->share);
    }
    tamis_reducer_destroy(reducer);
}

static void test_steps_keep_to_their_share(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        share_case c = shares[i];
        test_context("share %g", c.share);
        ranks_run(i % 2 ? 4 : 2, 0, run_share, &c);
    }
}

static const struct refused {
    const char *scheme, *words;
    double share, density;
    tamis_status status;
} refusals[] = {
    {NULL, "give one of them", 0.02, 0.01, TAMIS_E_ARGUMENT},
    {"topk", "not known beforehand", 0.02, 0.0, TAMIS_E_ARGUMENT},
    {"deft", "not known beforehand", 0.02, 0.0, TAMIS_E_ARGUMENT},
    {"dense", "not known beforehand", 0.02, 0.0, TAMIS_E_ARGUMENT},
    {"quantized", "not known beforehand", 0.02, 0.0, TAMIS_E_ARGUMENT},
    {"cltk", "not known beforehand", 0.02, 0.0, TAMIS_E_ARGUMENT},
    {NULL, "give more", 1e-6, 0.0, TAMIS_E_ARGUMENT},
    {NULL, "byte_share", NAN, 0.0, TAMIS_E_ARGUMENT},
    {NULL, "byte_share", -0.1, 0.0, TAMIS_E_ARGUMENT},
    {NULL, "byte_share", 1.5, 0.0, TAMIS_E_ARGUMENT},
};

static void test_shares_that_cannot_be_kept_are_refused(void **state) {
    tamis_comm *comm;
    (void)state;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
        tamis_reducer *reducer = NULL;
        config.scheme = refusals[i].scheme;
        config.byte_share = refusals[i].share;
        config.density = refusals[i].density;
        test_context("refusal %zu", i);
        assert_int_equal(data_reducer(comm, SMALL, &config, &reducer), refusals[i].status);
        assert_true(has_word(tamis_last_error(), refusals[i].words));
        assert_null(reducer);
    }
    tamis_comm_destroy(comm);
}

static void test_nodes_are_refused(void **state) {
    tamis_comm *comm;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    (void)state;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    config.byte_share = 0.02;
    config.ranks_per_node = 2;
    assert_int_equal(data_reducer(comm, SMALL, &config, &reducer), TAMIS_E_ARGUMENT);
    assert_true(has_word(tamis_last_error(), "ranks of a node"));
    tamis_comm_destroy(comm);
}

/* A given scale sends float32, whatever the bytes; beta1 0 keeps to few entries. */
static void test_what_is_given_with_a_share_stays(void **state) {
    static const struct {
        double scale, beta1, share, most;
        tamis_value_codec codec;
    } rows[] = {{1.0, -1.0, 0.05, 0.05, TAMIS_VALUE_AUTO},
                {0.0, 0.0, 0.05, 0.034, TAMIS_VALUE_FP2}};
    tamis_comm *comm;
    (void)state;
    assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
    for (size_t i = 0; i < 2; i++) {
        tamis_update update = TAMIS_UPDATE_INIT;
        tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT, found = config;
        tamis_reducer *reducer = NULL;
        update.scale = rows[i].scale;
        update.beta1 = rows[i].beta1;
        config.update = &update;
        config.byte_share = rows[i].share;
        assert_int_equal(data_reducer(comm, N, &config, &reducer), TAMIS_OK);
        assert_int_equal(tamis_reducer_options(reducer, &found, NULL), TAMIS_OK);
        assert_int_equal(found.value_codec, rows[i].codec);
        assert_true(found.density <= rows[i].most && found.density > 0.5 * rows[i].most);
        tamis_reducer_destroy(reducer);
    }
    tamis_comm_destroy(comm);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_keep_to_their_share),
        cmocka_unit_test(test_shares_that_cannot_be_kept_are_refused),
        cmocka_unit_test(test_nodes_are_refused),
        cmocka_unit_test(test_what_is_given_with_a_share_stays),
    };
    return cmocka_run_group_tests_name("byte_share", tests, NULL, NULL);
}
