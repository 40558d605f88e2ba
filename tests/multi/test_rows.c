/* SPDX-License-Identifier: MIT
 *
 * Segments with rows: rows that any rank touched are summed exactly, whatever the scheme, and no
 * others travel; other segments are unaffected.
 */
#include "collectives/transport/faulty.h"
#include "lib/base/base.h"
#include "lib/base/half.h"
#include "tests/support/data.h"
#include "tests/support/rank_tree.h"
#include "tests/support/ranks.h"
#include "tests/support/schemes.h"
#include "tests/support/scratch.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/*   0 head   1 words: 120 rows of 8   2 body   3 places: 50 rows of 6   4 tail */
enum { SEGMENTS = 5, WORDS = 1, PLACES = 3, N = 300 + 960 + 500 + 300 + 200, ORDINARY = 1000 };

static const tamis_segment segments[SEGMENTS] = {
    {"head", 300}, {"words", 960}, {"body", 500}, {"places", 300}, {"tail", 200}};
static const size_t begins[SEGMENTS] = {0, 300, 1260, 1760, 2060};
static const size_t row_lengths[SEGMENTS] = {0, 8, 0, 6, 0};

/* Which rows a rank touches. */
typedef enum touch { OTHERS, SAME, NONE, ALL, ONE_ALL, SOME, TOUCHES } touch;

static bool touches(touch which, uint32_t rank, uint32_t nranks, uint32_t step, size_t row) {
    switch (which) {
    case OTHERS:
        return row % (4 * nranks) == 4 * ((rank + step) % nranks);
    case SAME:
        return row % 17 == step % 17;
    case ALL:
        return true;
    case ONE_ALL:
        return rank == step % nranks;
    case SOME:
        return data_mix(row << 20 ^ (uint64_t)rank << 10 ^ step) % 5 == 0;
    default:
        return false;
    }
}

static void fill(touch which, uint32_t rank, uint32_t nranks, uint32_t step, float *grad) {
    data_fill_real(rank, step, N, grad);
    for (size_t s = 0; s < SEGMENTS; s++)
        for (size_t i = 0; row_lengths[s] && i < segments[s].length; i++) {
            if (!touches(which, rank, nranks, step, i / row_lengths[s]))
                grad[begins[s] + i] = 0.0f;
        }
}

static tamis_layout *make_layout(void) {
    tamis_layout *layout = NULL;
    if (tamis_layout_create(segments, SEGMENTS, &layout) != TAMIS_OK ||
        tamis_layout_set_rows(layout, WORDS, 8) != TAMIS_OK ||
        tamis_layout_set_rows(layout, PLACES, 6) != TAMIS_OK)
        abort();
    return layout;
}

typedef struct rows_case {
    const char *scheme;
    touch which; /* TOUCHES: a different one in each step */
    uint64_t bucket_length;
    tamis_output output;
    tamis_op op;
    tamis_dtype type;
    tamis_index_codec index_codec;
    tamis_worker worker;
    double latency_us, gbit;
    bool one_by_one; /* by ready, in a different order on each rank */
    uint32_t steps;
} rows_case;

static tamis_reducer_config config_of(const rows_case *c) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = c->scheme;
    config.density = 0.03;
    config.bucket_length = c->bucket_length;
    config.output = c->output;
    config.op = c->op;
    config.grad_dtype = c->type;
    config.index_codec = c->index_codec;
    config.worker = c->worker;
    config.link_latency_us = c->latency_us;
    config.link_gbit = c->gbit;
    return config;
}

static tamis_status make(test_rank *self, const rows_case *c, tamis_reducer **out) {
    tamis_reducer_config config = config_of(c);
    tamis_layout *layout = make_layout();
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static touch touch_at(const rows_case *c, uint32_t step) {
    return c->which == TOUCHES ? (touch)(step % TOUCHES) : c->which;
}

/* What a dense sum gives. */
static void sum_of_all(const rows_case *c, uint32_t nranks, uint32_t step, float *sums) {
    float *grads = malloc(nranks * N * sizeof *grads), *wide = malloc(N * sizeof *wide);
    for (uint32_t r = 0; r < nranks; r++) {
        float *grad = grads + (size_t)r * N;
        fill(touch_at(c, step), r, nranks, step, grad);
        tam_narrow(grad, N, c->type, wide);
        tam_widen(c->type, wide, N, grad);
    }
    for (size_t i = 0; i < N; i++)
        sums[i] = 0.0f + rank_tree_sum(grads + i, N, nranks); /* residuals hold no -0 */
    for (size_t i = 0; i < N && c->op == TAMIS_OP_MEAN; i++)
        sums[i] /= (float)nranks;
    free(wide);
    free(grads);
}

/* The result as floats, from the gradient or the sparse view. */
static void take_result(test_rank *self, const rows_case *c, tamis_reducer *reducer, void *grad,
                        float *out) {
    tamis_result result = TAMIS_RESULT_INIT;
    RANK_OK(self, tamis_reducer_result(reducer, &result));
    tam_widen(c->type, grad, N, out);
    if (!result.indices)
        return;
    float *sparse = calloc(N, sizeof *sparse);
    for (size_t i = 0; i < result.count; i++) {
        RANK_CHECK(self, i == 0 || result.indices[i - 1] < result.indices[i], "out of order");
        sparse[result.indices[i]] = result.values[i];
    }
    if (c->output == TAMIS_OUTPUT_SPARSE) {
        memcpy(out, sparse, N * sizeof *out);
    } else {
        uint16_t *narrow = malloc(N * sizeof(float));
        tam_narrow(sparse, N, c->type, narrow);
        RANK_CHECK(self, memcmp(narrow, grad, N * tam_type_bytes(c->type)) == 0,
                   "gradient and sparse view differ");
        free(narrow);
    }
    free(sparse);
}

static void check_rows(test_rank *self, const rows_case *c, uint32_t step, const float *got) {
    float *sums = malloc(N * sizeof *sums), *half = malloc(N * sizeof *half);
    sum_of_all(c, self->nranks, step, sums);
    if (c->output == TAMIS_OUTPUT_DENSE) {
        tam_narrow(sums, N, c->type, half);
        tam_widen(c->type, half, N, sums);
    }
    for (size_t s = 0; s < SEGMENTS; s++) {
        bool all = row_lengths[s] > 0 || strcmp(c->scheme, "dense") == 0;
        for (size_t i = begins[s]; all && i < begins[s] + segments[s].length; i++)
            RANK_CHECK(self, memcmp(&got[i], &sums[i], sizeof got[i]) == 0,
                       "step %u, element %zu of %s: %.9g, not %.9g", step, i - begins[s],
                       segments[s].name, (double)got[i], (double)sums[i]);
    }
    free(half);
    free(sums);
}

static void check_figures(test_rank *self, tamis_reducer *reducer) {
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_result result = TAMIS_RESULT_INIT;
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_OK(self, tamis_reducer_result(reducer, &result));
    size_t rows = 0;
    for (size_t i = 0; result.indices && i < result.count; i++) {
        uint32_t at = result.indices[i];
        rows += (at >= 300 && at < 1260) || (at >= 1760 && at < 2060);
    }
    if (result.indices)
        RANK_CHECK(self, stats.selected == result.count - rows, "selected %llu of %zu, %zu in rows",
                   (unsigned long long)stats.selected, result.count, rows);
    RANK_CHECK(self, stats.density == (double)stats.selected / ORDINARY, "density %g",
               stats.density);
}

static void mark_all(test_rank *self, tamis_reducer *reducer, uint32_t number,
                     const tamis_step *step) {
    uint64_t first = data_mix((uint64_t)self->id << 8 | number) % SEGMENTS;
    for (uint32_t s = 0; s < SEGMENTS; s++)
        RANK_OK(self, tamis_reducer_ready(reducer, (uint32_t)(first + s) % SEGMENTS, step));
}

static void run_exact(test_rank *self) {
    const rows_case *c = self->shared;
    tamis_reducer *reducer = NULL;
    float *grad = malloc(N * sizeof *grad), *wide = malloc(N * sizeof *wide);
    tamis_step step = data_step(grad);
    RANK_OK(self, make(self, c, &reducer));
    for (uint32_t number = 0; number < c->steps; number++) {
        fill(touch_at(c, number), self->id, self->nranks, number, wide);
        tam_narrow(wide, N, c->type, grad);
        if (c->one_by_one)
            mark_all(self, reducer, number, &step);
        else
            RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        take_result(self, c, reducer, grad, wide);
        check_rows(self, c, number, wide);
        check_figures(self, reducer);
    }
    tamis_reducer_destroy(reducer);
    free(wide);
    free(grad);
}

static void run(const rows_case *c, uint32_t nranks) {
    test_context("%s, P=%u, touch %d, buckets %llu, output %d, type %d, index codec %d", c->scheme,
                 nranks, (int)c->which, (unsigned long long)c->bucket_length, (int)c->output,
                 (int)c->type, (int)c->index_codec);
    ranks_run(nranks, 0, run_exact, (void *)(uintptr_t)c);
}

/* -- exactness -------------------------------------------------------------------------------- */

static void test_rows_are_the_dense_sum_for_every_scheme(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++)
        for (uint64_t buckets = 0; buckets <= 400; buckets += 200) {
            rows_case c = {.scheme = scheme.name, .which = TOUCHES, .steps = 2 * TOUCHES};
            c.bucket_length = buckets == 200 ? 1 : buckets;
            c.one_by_one = buckets == 200;
            run(&c, 3);
        }
}

/* Slow and fast links: all buckets sparse, all dense, and a mixture. */
static void test_rows_are_the_dense_sum_beside_buckets_that_choose(void **state) {
    static const double links[][2] = {{1e-3, 1e-6}, {1e6, 1e3}, {10, 0.1}};
    (void)state;
    for (size_t l = 0; l < COUNT(links); l++) {
        rows_case c = {.scheme = "cyclic+norm+predict+auto", .which = TOUCHES, .steps = TOUCHES};
        c.bucket_length = 1;
        c.latency_us = links[l][0];
        c.gbit = links[l][1];
        run(&c, 3);
    }
}

static void test_rows_are_the_dense_sum_for_all_numbers_of_ranks(void **state) {
    (void)state;
    for (uint32_t nranks = 1; nranks <= 8; nranks++)
        for (touch t = 0; t <= TOUCHES; t++) {
            if (!test_drawn(3))
                continue;
            rows_case c = {.scheme = nranks % 2 ? "tamis" : "dense", .which = t, .steps = 3};
            run(&c, nranks);
        }
}

static void test_rows_bear_all_types_outputs_and_codecs(void **state) {
    (void)state;
    for (tamis_dtype type = TAMIS_DTYPE_FLOAT32; type <= TAMIS_DTYPE_BFLOAT16; type++)
        for (tamis_index_codec f = TAMIS_INDEX_AUTO; f < TAMIS_INDEX_END; f++) {
            if (!test_drawn(2))
                continue;
            rows_case c = {.scheme = "all+global+exact+pairs", .which = TOUCHES, .steps = TOUCHES};
            c.type = type;
            c.index_codec = f;
            c.output = f % 2 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
            c.op = f == TAMIS_INDEX_GAP8 ? TAMIS_OP_SUM : TAMIS_OP_MEAN;
            c.worker = f == TAMIS_INDEX_U32 ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER;
            run(&c, 4);
        }
}

/* -- the other segments ----------------------------------------------------------------------- */

/* Only the segments without rows, and their part of the gradient. */
static tamis_layout *ordinary_layout(void) {
    const tamis_segment own[] = {segments[0], segments[2], segments[4]};
    tamis_layout *layout = NULL;
    if (tamis_layout_create(own, 3, &layout) != TAMIS_OK)
        abort();
    return layout;
}

static void take_ordinary(const float *from, float *to) {
    for (size_t s = 0; s < SEGMENTS; s += 2) {
        memcpy(to, from + begins[s], segments[s].length * sizeof *to);
        to += segments[s].length;
    }
}

static void run_beside(test_rank *self) {
    const rows_case *c = self->shared;
    tamis_reducer_config config = config_of(c);
    tamis_reducer *with = NULL, *without = NULL;
    tamis_stats a = TAMIS_STATS_INIT, b = TAMIS_STATS_INIT;
    float grad[N], alone[ORDINARY], part[ORDINARY];
    const tamis_step step = data_step(grad), step_alone = data_step(alone);
    tamis_layout *layout = ordinary_layout();
    RANK_OK(self, make(self, c, &with));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &without));
    for (uint32_t number = 0; number < 8; number++) {
        fill(SOME, self->id, self->nranks, number, grad);
        take_ordinary(grad, alone);
        RANK_OK(self, tamis_reducer_start(with, &step));
        RANK_OK(self, tamis_reducer_wait(with));
        RANK_OK(self, tamis_reducer_start(without, &step_alone));
        RANK_OK(self, tamis_reducer_wait(without));
        take_ordinary(grad, part);
        RANK_CHECK(self, memcmp(part, alone, sizeof part) == 0, "step %u differs", number);
        RANK_OK(self, tamis_reducer_stats(with, &a));
        RANK_OK(self, tamis_reducer_stats(without, &b));
        RANK_CHECK(self,
                   a.target == b.target && a.selected == b.selected && a.sent == b.sent &&
                       a.sent_max == b.sent_max && a.density == b.density &&
                       a.acc_norm == b.acc_norm && a.residual_norm == b.residual_norm,
                   "figures of step %u differ", number);
    }
    tamis_reducer_destroy(with);
    tamis_reducer_destroy(without);
    tamis_layout_destroy(layout);
}

/* Every segment is a bucket in both. (Sage's sample depends on the number of the bucket.) */
static void test_ordinary_segments_do_not_notice_rows(void **state) {
    scheme_case scheme;
    (void)state;
    for (size_t s = 0; scheme_preset(s, &scheme); s++) {
        rows_case c = {.scheme = scheme.name, .bucket_length = 1};
        if (strcmp(scheme.name, "sage") == 0)
            continue;
        test_context("%s beside rows", scheme.name);
        ranks_run(3, 0, run_beside, &c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_the_dense_sum_for_every_scheme),
        cmocka_unit_test(test_rows_are_the_dense_sum_beside_buckets_that_choose),
        cmocka_unit_test(test_rows_are_the_dense_sum_for_all_numbers_of_ranks),
        cmocka_unit_test(test_rows_bear_all_types_outputs_and_codecs),
        cmocka_unit_test(test_ordinary_segments_do_not_notice_rows),
    };
    return cmocka_run_group_tests_name("rows", tests, NULL, NULL);
}
