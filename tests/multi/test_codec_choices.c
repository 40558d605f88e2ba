/* SPDX-License-Identifier: MIT
 *
 * Choices by the cost of lists do not depend on the requested codec: which rows are summed, and
 * which buckets of exchange auto are dense. test_codecs.c tests the codecs themselves.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 4 };

/* -- rows ------------------------------------------------------------------------------------- */

enum { ROWS = 1000, PARTS = 10, ROWS_LENGTH_MOST = 3 };

typedef struct rows_case {
    tamis_index_codec index_codec;
    const char *scheme;
    uint32_t length; /* of a row */
    /* by the ranks */
    size_t count[PARTS];
    uint64_t hash[PARTS];
} rows_case;

static tamis_status make_rows(tamis_comm *comm, const rows_case *c, tamis_reducer **out) {
    const tamis_segment segment = {"words", (uint64_t)ROWS * c->length};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_status status = tamis_layout_create(&segment, 1, &layout);
    config.scheme = c->scheme;
    config.index_codec = c->index_codec;
    if (status == TAMIS_OK)
        status = tamis_layout_set_rows(layout, 0, c->length);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* In step s all ranks touch the first s tenths of the rows. */
static void run_rows(test_rank *self) {
    rows_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    static _Thread_local float grad[ROWS * ROWS_LENGTH_MOST];
    const tamis_step step = data_step(grad);
    RANK_OK(self, make_rows(self->comm, c, &reducer));
    for (uint32_t s = 0; s < PARTS; s++) {
        size_t n = (size_t)ROWS * c->length, touched = s * n / PARTS;
        for (size_t i = 0; i < n; i++)
            grad[i] = i < touched ? (float)(1 + (i + self->id) % 9) : 0.0f;
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_result(reducer, &result));
        if (self->id > 0)
            continue;
        c->count[s] = result.count;
        c->hash[s] = data_hash(0, grad, n * sizeof grad[0]);
        if (result.indices)
            c->hash[s] = data_hash(c->hash[s], result.indices, result.count * sizeof(uint32_t));
    }
    tamis_reducer_destroy(reducer);
}

static void codecs_do_not_choose_which_rows_are_summed(void **state) {
    static const char *const schemes[] = {"tamis", "dense"};
    (void)state;
    for (uint32_t length = 1; length <= ROWS_LENGTH_MOST; length++)
        for (int s = 0; s < 2; s++) {
            rows_case first = {.length = length, .scheme = schemes[s]};
            for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++) {
                rows_case c = {.index_codec = f, .length = length, .scheme = schemes[s]};
                test_context("%s, rows of %u, index codec %d", c.scheme, length, (int)f);
                ranks_run(RANKS, 0, run_rows, &c);
                first = f == TAMIS_INDEX_AUTO ? c : first;
                for (uint32_t step = 0; step < PARTS; step++)
                    if (c.count[step] != first.count[step] || c.hash[step] != first.hash[step])
                        fail_msg("[%s] step %u: %zu entries, %zu with index codec auto, or others",
                                 test_context_text(), step, c.count[step], first.count[step]);
            }
            assert_true(first.count[1] < (size_t)ROWS * length);          /* a list, */
            assert_true(first.count[PARTS - 1] == (size_t)ROWS * length); /* and all of them */
        }
}

/* -- union or dense --------------------------------------------------------------------------- */

enum { BUCKET = 3000, BUCKETS = 2, N = BUCKET * BUCKETS, STEPS = 3 };

typedef struct auto_case {
    tamis_index_codec index_codec;
    double density, gbit;
    /* by rank 0 */
    bool dense[BUCKETS];
    uint64_t hash;
} auto_case;

static void run_auto(test_rank *self) {
    auto_case *c = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float grad[N];
    uint64_t hash = 0;
    const tamis_step step = data_step(grad);
    config.scheme = "auto";
    config.density = c->density;
    config.bucket_length = BUCKET;
    config.index_codec = c->index_codec;
    config.link_latency_us = 1.0;
    config.link_gbit = c->gbit;
    RANK_OK(self, data_even_reducer(self->comm, BUCKETS, BUCKET, &config, &reducer));
    for (uint32_t number = 0; number < STEPS; number++) {
        data_fill_real(self->id, number, N, grad);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        hash = data_hash(hash, grad, sizeof grad);
    }
    for (uint32_t b = 0; b < BUCKETS && self->id == 0; b++) {
        tamis_bucket bucket = TAMIS_BUCKET_INIT;
        RANK_OK(self, tamis_reducer_bucket_at(reducer, b, &bucket));
        RANK_CHECK(self, bucket.predicted_us > 0.0, "bucket %u has no time", b);
        c->dense[b] = strcmp(bucket.exchange, "dense") == 0;
    }
    if (self->id == 0)
        c->hash = hash;
    tamis_reducer_destroy(reducer);
}

static void codecs_do_not_choose_which_buckets_are_dense(void **state) {
    static const double densities[] = {0.3, 0.4, 0.5, 0.6}, gbits[] = {0.3, 1, 3};
    uint32_t dense = 0, cases = 0;
    (void)state;
    for (size_t d = 0; d < 4; d++)
        for (size_t g = 0; g < 3; g++) {
            auto_case first = {0};
            for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++) {
                auto_case c = {.index_codec = f, .density = densities[d], .gbit = gbits[g]};
                test_context("density %g over %g Gbit/s, index codec %d", c.density, c.gbit,
                             (int)f);
                ranks_run(RANKS, 0, run_auto, &c);
                first = f == TAMIS_INDEX_AUTO ? c : first;
                if (memcmp(c.dense, first.dense, sizeof c.dense) != 0)
                    fail_msg("[%s] other buckets are dense than with index codec auto",
                             test_context_text());
                if (c.hash != first.hash)
                    fail_msg("[%s] other results than with index codec auto", test_context_text());
            }
            dense += first.dense[0];
            cases++;
        }
    assert_true(dense > 0 && dense < cases); /* the choice is close to both */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_do_not_choose_which_rows_are_summed),
        cmocka_unit_test(codecs_do_not_choose_which_buckets_are_dense),
    };
    return cmocka_run_group_tests_name("codec_choices", tests, NULL, NULL);
}
