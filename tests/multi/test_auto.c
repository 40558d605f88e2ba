/* SPDX-License-Identifier: MIT
 *
 * Exchange auto: every bucket is union or dense, and all ranks choose the same.
 */
#include "collectives/transport/faulty.h"
#include "tests/multi/mixed_case.h"
#include "tests/support/loopback.h"
#include <math.h>
#include <stdio.h>
#include <tamis/overlap.h>

/* -- the choice ------------------------------------------------------------------------------- */

static void run_choice(test_rank *self) {
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    for (uint32_t b = 0; b < 4; b++) {
        tamis_bucket bucket = TAMIS_BUCKET_INIT;
        RANK_OK(self, tamis_reducer_bucket_at(r, b, &bucket));
        const char *expected = bucket.length == LARGE ? "union" : "dense";
        RANK_CHECK(self, strcmp(bucket.exchange, expected) == 0, "bucket %u is %s", b,
                   bucket.exchange);
        RANK_CHECK(self, bucket.predicted_us > 0.0, "bucket %u has no time", b);
        RANK_CHECK(self, bucket.length == LARGE || bucket.target == SMALL, "target %llu",
                   (unsigned long long)bucket.target);
    }
    tamis_reducer_destroy(r);
}

static void small_buckets_are_dense_and_large_ones_are_not(void **state) {
    (void)state;
    test_context("a given link");
    ranks_run(RANKS, 0, run_choice, NULL);
}

static void sparse_results_need_sparse_buckets(test_rank *self) {
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    config.output = TAMIS_OUTPUT_SPARSE;
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    RANK_CHECK(self, count_dense(r) == 0, "%u buckets are dense", count_dense(r));
    tamis_reducer_destroy(r);
}

static void nothing_is_dense_where_the_result_is_sparse(void **state) {
    (void)state;
    test_context("sparse output");
    ranks_run(RANKS, 0, sparse_results_need_sparse_buckets, NULL);
}

static void run_other_link(test_rank *self) {
    tamis_reducer_config config = slow_link();
    tamis_reducer *r = NULL;
    config.link_gbit = self->id == 1 ? 0.0 : 1.0; /* only rank 1 would measure */
    RANK_STATUS(self, TAMIS_E_MISMATCH, open_mixed(self->comm, &config, &r));
    RANK_CHECK(self, has_word(tamis_last_error(), "link_gbit"), "it says: %s", tamis_last_error());
}

static void ranks_that_do_not_all_measure_are_told(void **state) {
    (void)state;
    test_context("another link on rank 1");
    ranks_run(RANKS, 0, run_other_link, NULL);
}

typedef struct measured {
    uint64_t dense[RANKS], index_codecs[RANKS];
    tam_costs costs[RANKS];
} measured;

/* Operation 0 is the handshake, 1 a barrier, and so on: at one of them rank 1 sleeps. */
static void run_measured(test_rank *self) {
    measured *m = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    for (uint32_t n = 0; n < 3 && self->id == 1; n++)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_DELAY, 30 + 7 * n, 20));
    RANK_OK(self, open_mixed(self->comm, &config, &r));
    m->dense[self->id] = r->handshake.fields[TAM_FACT_DENSE_BUCKETS];
    m->index_codecs[self->id] = r->handshake.fields[TAM_FACT_BUCKET_CODECS];
    m->costs[self->id] = self->comm->costs;
    for (uint32_t b = 0; b < r->nbuckets; b++)
        RANK_CHECK(self, r->buckets[b].predicted_s > 0.0, "bucket %u has no time", b);
    tamis_reducer_destroy(r);
}

static void ranks_that_measure_other_times_choose_the_same_way(void **state) {
    measured m = {0};
    (void)state;
    test_context("rank 1 is late while it measures");
    ranks_run(RANKS, 0, run_measured, &m);
    for (uint32_t r = 1; r < RANKS; r++) {
        assert_true(m.dense[r] == m.dense[0] && m.index_codecs[r] == m.index_codecs[0]);
        assert_memory_equal(&m.costs[r], &m.costs[0], sizeof m.costs[0]);
    }
    assert_true(m.costs[0].sum.count > 1 && m.costs[0].gather.count > 1);
}

/* -- different numbers ------------------------------------------------------------------------ */

/* Link models of the ranks, as if they had come to hold different numbers. */
typedef struct forced {
    tam_link_model links[2]; /* of rank 1; of the others */
    const char *words;
} forced;

enum { WIDE = 300000 };

static tamis_status open_wide(tamis_comm *comm, tamis_reducer_config *config, tamis_reducer **out) {
    static const tamis_segment all = {"all", WIDE};
    tamis_layout *layout;
    TAM_TRY(tamis_layout_create(&all, 1, &layout));
    config->scheme = "auto";
    config->density = 0.01;
    tamis_status status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void run_forced(test_rank *self) {
    const forced *f = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    self->comm->measured = true;
    set_costs(self->comm, &f->links[self->id != 1]);
    RANK_STATUS(self, TAMIS_E_MISMATCH, open_wide(self->comm, &config, &r));
    RANK_CHECK(self, r == NULL && strstr(tamis_last_error(), f->words), "it says: %s",
               tamis_last_error());
}

static void ranks_with_other_numbers_are_refused_and_do_not_hang(void **state) {
    static forced cases[] = {{{{1e-9, 1.0}, {1.0, 1e-15}}, "buckets that are dense"},
                             {{{1e-6, 8e-8}, {1e-6, 4e-10}}, "index codecs of the buckets"}};
    (void)state;
    for (int c = 0; c < 2; c++) {
        test_context("other %s", cases[c].words);
        ranks_run(RANKS, 0, run_forced, &cases[c]);
    }
}

/* -- index codecs ----------------------------------------------------------------------------- */

typedef struct codec_case {
    double gbit;
    tamis_index_codec asked;
    const char *expected;
} codec_case;

static void run_codec(test_rank *self) {
    const codec_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    tamis_reducer *r = NULL;
    config.link_latency_us = 1.0;
    config.link_gbit = c->gbit;
    config.index_codec = c->asked;
    RANK_OK(self, open_wide(self->comm, &config, &r));
    RANK_OK(self, tamis_reducer_bucket_at(r, 0, &bucket));
    RANK_CHECK(self, strcmp(bucket.index_codec, c->expected) == 0, "%s over %g Gbit/s",
               bucket.index_codec, c->gbit);
    tamis_reducer_destroy(r);
}

/* By bytes alone the choice would be block16 for all of them. */
static void the_slower_the_link_the_fewer_the_bytes(void **state) {
    static codec_case cases[] = {{20.0, TAMIS_INDEX_AUTO, "u32"},
                                 {3.0, TAMIS_INDEX_AUTO, "block16"},
                                 {0.1, TAMIS_INDEX_AUTO, "rice"},
                                 {0.1, TAMIS_INDEX_U32, "u32"},
                                 {20.0, TAMIS_INDEX_BITMAP, "bitmap"}};
    (void)state;
    for (int c = 0; c < 5; c++) {
        test_context("%g Gbit/s", cases[c].gbit);
        ranks_run(RANKS, 0, run_codec, &cases[c]);
    }
}

/* -- many ranks ------------------------------------------------------------------------------- */

enum { MANY = RANKS_MOST, PIECES = 40, PIECE = 1900 };

typedef struct many {
    const char *plan;
    uint32_t nbuckets[MANY];
    double small_us[MANY]; /* expected of two elements */
} many;

/* 40 segments at 1 %, over 40 us and 10 Mbit/s. */
static void run_many(test_rank *self) {
    many *m = self->shared;
    tamis_segment segments[PIECES];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_bucket bucket = TAMIS_BUCKET_INIT;
    tamis_layout *layout;
    tamis_reducer *r = NULL;
    for (int i = 0; i < PIECES; i++)
        segments[i] = (tamis_segment){NULL, PIECE};
    config.density = 0.01;
    config.link_latency_us = 40.0;
    config.link_gbit = 0.01;
    config.bucket_length = TAMIS_BUCKETS_PLANNED;
    RANK_CHECK(self, strcmp(tamis_comm_plan(self->comm), m->plan) == 0, "the plan is %s",
               tamis_comm_plan(self->comm));
    RANK_OK(self, tamis_layout_create(segments, PIECES, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &r));
    tamis_layout_destroy(layout);
    m->nbuckets[self->id] = r->nbuckets;
    tamis_reducer_destroy(r);
    config.scheme = "auto";
    config.bucket_length = 0;
    RANK_OK(self, data_reducer(self->comm, 2, &config, &r));
    RANK_OK(self, tamis_reducer_bucket_at(r, 0, &bucket));
    m->small_us[self->id] = bucket.predicted_us;
    tamis_reducer_destroy(r);
}

/* The model takes ranks for hosts in the usual stages, on every transport. A gather of nothing
 * takes twice 40 us and 2.5 us, then 7 and 3 times 2.5 us; a sum takes two, but the last stage
 * once. Transfer is 93 ns an element. */
static void buckets_are_the_same_on_every_transport(void **state) {
    many all = {.plan = "32"}, staged = {.plan = "8x4/1024"};
    tamis_comm *comms[MANY];
    (void)state;
    test_context("32 ranks, all with all");
    ranks_run(MANY, 0, run_many, &all);
    test_context("32 ranks in stages");
    loopback *m = loopback_create(MANY, 0);
    loopback_comms(m, comms);
    ranks_run_on(comms, MANY, run_many, &staged);
    for (int r = 0; r < MANY; r++)
        tamis_comm_destroy(comms[r]);
    loopback_destroy(m);
    for (int r = 0; r < MANY; r++) {
        assert_int_equal(staged.nbuckets[r], 6); /* of 11,639 elements at least: 7 segments */
        assert_int_equal(all.nbuckets[r], 6);
        assert_true(fabs(staged.small_us[r] - 183.0) < 20.0);
        assert_true(all.small_us[r] == staged.small_us[r]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_buckets_are_dense_and_large_ones_are_not),
        cmocka_unit_test(nothing_is_dense_where_the_result_is_sparse),
        cmocka_unit_test(ranks_that_do_not_all_measure_are_told),
        cmocka_unit_test(ranks_that_measure_other_times_choose_the_same_way),
        cmocka_unit_test(ranks_with_other_numbers_are_refused_and_do_not_hang),
        cmocka_unit_test(the_slower_the_link_the_fewer_the_bytes),
        cmocka_unit_test(buckets_are_the_same_on_every_transport),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
