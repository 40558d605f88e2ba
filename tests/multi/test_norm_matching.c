/* SPDX-License-Identifier: MIT
 *
 * A scale that follows norms (tamis_update.norm_matching), against a plain loop; its bound; its
 * state.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 3000, STEPS = 30, RANKS = 3, HALT = 11 };

typedef struct norm_matching_case {
    double norm_matching, most; /* most: the update's scale, 0: no bound */
    double density;
    uint64_t bucket_length;
    tamis_value_codec value_codec;
    bool given;            /* the gradient is a step already */
    bool keeps;            /* the residual, and drops what is not finite */
    bool resumes;          /* in another reducer, after HALT steps */
    bool agrees;           /* from HALT on ranks have the same gradient: their mean is larger */
    double squares[RANKS]; /* of what a rank selected from in this step */
    double scales[STEPS];  /* of rank 0 */
    uint32_t limited;      /* steps of rank 0 that alone were larger than those before */
    uint64_t hashes[RANKS];
} norm_matching_case;

static void open_reducer(test_rank *self, const norm_matching_case *c, tamis_reducer **out) {
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    update.rule = c->given ? TAMIS_UPDATE_STEP : TAMIS_UPDATE_ADAM;
    update.beta1 = c->given ? NAN : 0.9; /* which rule step does not read */
    update.scale = c->most;
    update.norm_matching = c->norm_matching;
    config.density = c->density;
    config.residual_decay = c->keeps ? 1.0 : 0.0;
    config.nonfinite = c->keeps ? TAMIS_NONFINITE_DROP : TAMIS_NONFINITE_ERROR;
    config.bucket_length = c->bucket_length;
    config.value_codec = c->value_codec;
    config.update = &update;
    RANK_OK(self, data_reducer(self->comm, N, &config, out));
}

/* Go on in another reducer, from the state of this one. */
static void take_over(test_rank *self, const norm_matching_case *c, tamis_reducer *from,
                      tamis_reducer *to) {
    float *residual = malloc(N * sizeof *residual), *moments = malloc(2 * N * sizeof *moments);
    uint64_t passes;
    size_t bytes;
    RANK_OK(self, tamis_reducer_control_bytes(from, &bytes));
    unsigned char *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(from, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(from, residual));
    float *first = c->given ? NULL : moments, *second = c->given ? NULL : moments + N;
    RANK_OK(self, tamis_reducer_save_moments(from, first, second, &passes));
    RANK_OK(self, tamis_reducer_load_memory(to, control, bytes, residual));
    RANK_OK(self, tamis_reducer_load_moments(to, first, second, passes));
    free(control);
    free(moments);
    free(residual);
}

/* What the residual was before the selected entries left it: Adam's step, made here once more. */
typedef struct adam {
    float m[N], v[N];
} adam;

static double step_adam(adam *a, const float *gradient, uint32_t number) {
    double c1 = 1.0 - pow(0.9, number + 1), c2 = 1.0 - pow(0.99, number + 1), sum = 0.0;
    for (size_t i = 0; i < N; i++) {
        a->m[i] = 0.9f * a->m[i] + 0.1f * gradient[i];
        a->v[i] = 0.99f * a->v[i] + 0.01f * gradient[i] * gradient[i];
        double u = a->m[i] / c1 / (sqrt(a->v[i] / c2) + 1e-8);
        sum += u * u;
    }
    return sum;
}

static double square_of(const float *gradient) {
    double sum = 0.0;
    for (size_t i = 0; i < N; i++)
        sum += (double)gradient[i] * (double)gradient[i];
    return sum;
}

/* The scale that the rule gives, from squares of all ranks and the result. */
static double expect(norm_matching_case *c, uint32_t rank, const float *applied, double scale,
                     double sums[3]) {
    double own = 0.0, square = 0.0;
    for (uint32_t r = 0; r < RANKS; r++)
        own += c->squares[r] / RANKS;
    for (size_t i = 0; i < N; i++)
        square += ((double)applied[i] / scale) * ((double)applied[i] / scale);
    sums[0] = 0.95 * sums[0] + own;
    sums[1] = 0.95 * sums[1] + square;
    sums[2] = 0.95 * sums[2] + 1.0;
    if (rank == 0)
        c->limited += sums[2] * square > 1.2 * sums[1];
    double follows = c->norm_matching * sqrt(sums[0] / fmax(sums[1], sums[2] * square));
    return c->most > 0.0 && follows > c->most ? c->most : follows;
}

static void run_norm_matching(test_rank *self) {
    norm_matching_case *c = self->shared;
    tamis_reducer *reducer = NULL, *other = NULL;
    float *gradient = malloc(N * sizeof *gradient);
    adam *a = calloc(1, sizeof *a);
    double sums[3] = {0};
    uint64_t hash = 0;
    const tamis_step step = data_step(gradient);
    open_reducer(self, c, &reducer);
    open_reducer(self, c, &other);
    for (uint32_t t = 0; t < STEPS; t++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        data_fill_real(c->agrees && t >= HALT ? 0 : self->id, t, N, gradient);
        c->squares[self->id] = c->given ? square_of(gradient) : step_adam(a, gradient, t);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        hash = data_hash(hash, gradient, N * sizeof *gradient);
        double want = expect(c, self->id, gradient, stats.update_scale, sums);
        RANK_CHECK(self, fabs(stats.update_scale - want) < 1e-4 * want,
                   "step %u: scale %.9g, not %.9g", t, stats.update_scale, want);
        if (self->id == 0)
            c->scales[t] = stats.update_scale;
        if (c->resumes && t == HALT) {
            tamis_reducer *old = reducer;
            take_over(self, c, old, other);
            reducer = other;
            other = old;
        }
        RANK_CHECK(self, rank_barrier(self), "a rank has left"); /* the squares are read */
    }
    c->hashes[self->id] = hash;
    tamis_reducer_destroy(other);
    tamis_reducer_destroy(reducer);
    free(a);
    free(gradient);
}

static norm_matching_case usual(void) {
    return (norm_matching_case){.norm_matching = 2.0, .density = 0.05};
}

static norm_matching_case run_case(norm_matching_case c) {
    ranks_run(RANKS, 0, run_norm_matching, &c);
    for (uint32_t r = 1; r < RANKS; r++)
        assert_int_equal(c.hashes[r], c.hashes[0]);
    return c;
}

static void test_the_scale_is_that_of_the_rule(void **state) {
    (void)state;
    for (int i = 0; i < 16; i++) {
        norm_matching_case c = usual();
        c.given = i & 8;
        c.bucket_length = i & 1 ? 700 : 0;
        c.value_codec = i & 2 ? TAMIS_VALUE_FP4 : TAMIS_VALUE_AUTO;
        c.density = i & 4 ? 0.5 : 0.05;
        test_context("case %d", i);
        c = run_case(c);
        assert_true(c.scales[STEPS - 1] > 1.0);
    }
}

/* The first steps with the same gradient are each larger than the mean over the last ones. */
static void test_no_step_is_larger_than_the_rule(void **state) {
    (void)state;
    norm_matching_case c = usual();
    assert_int_equal(run_case(c).limited, 0);
    c.agrees = true;
    c.bucket_length = 700;
    assert_true(run_case(c).limited > 2);
}

static void test_a_given_scale_is_the_most(void **state) {
    (void)state;
    norm_matching_case c = usual(), free_one = run_case(c);
    c.most = 0.5 * free_one.scales[STEPS - 1];
    norm_matching_case bounded = run_case(c);
    assert_true(bounded.scales[STEPS - 1] == c.most);
}

static void test_a_resumed_run_has_the_same_bits(void **state) {
    (void)state;
    for (int given = 0; given < 2; given++) {
        norm_matching_case c = usual();
        c.given = given;
        norm_matching_case whole = run_case(c);
        c.resumes = true;
        norm_matching_case parts = run_case(c);
        assert_int_equal(parts.hashes[0], whole.hashes[0]);
        assert_memory_equal(parts.scales, whole.scales, sizeof whole.scales);
    }
}

/* Rule momentum has no such scale: whatever is in the field, and on each rank another, it is not
 * used. */
static void run_momentum(test_rank *self) {
    static const double matches[RANKS] = {0.0, 50.0, NAN};
    uint64_t *hashes = self->shared;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float *gradient = malloc(N * sizeof *gradient);
    const tamis_step step = data_step(gradient);
    update.rule = TAMIS_UPDATE_MOMENTUM;
    update.norm_matching = matches[self->id];
    config.update = &update;
    config.density = 0.01;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t t = 0; t < 3; t++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        data_fill_real(self->id, t, N, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        RANK_CHECK(self, fabs(stats.update_scale - 1.0989) < 1e-3, "scale %g", /* of 1 % */
                   stats.update_scale);
        hashes[self->id] = data_hash(hashes[self->id], gradient, N * sizeof *gradient);
    }
    tamis_reducer_destroy(reducer);
    free(gradient);
}

static void test_momentum_has_no_norm_matching(void **state) {
    (void)state;
    uint64_t hashes[RANKS] = {0};
    test_context("momentum");
    ranks_run(RANKS, 0, run_momentum, hashes);
    for (uint32_t r = 1; r < RANKS; r++)
        assert_int_equal(hashes[r], hashes[0]);
}

/* A sum that is infinite is dropped, and its square is none to learn from. */
static void run_dropped(test_rank *self) {
    enum { BAD = 5, LAST = 7, WHERE = 9 };
    norm_matching_case c = {.norm_matching = 50.0, .density = 0.5, .keeps = true};
    float gradient[N], *residual = calloc(N, sizeof *residual);
    tamis_reducer *reducer = NULL;
    const tamis_step step = data_step(gradient);
    open_reducer(self, &c, &reducer);
    for (uint32_t t = 0; t < LAST; t++) {
        tamis_stats stats = TAMIS_STATS_INIT;
        residual[WHERE] = t == BAD ? 3e38f : 0.0f;
        if (t >= BAD)
            RANK_OK(self, tamis_reducer_load_memory(reducer, NULL, 0, residual));
        data_fill_real(self->id, t, N, gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        RANK_CHECK(self, stats.nonfinite == (t == BAD), "step %u: dropped %llu", t,
                   (unsigned long long)stats.nonfinite);
        RANK_CHECK(self, stats.update_scale > 1.0 && isfinite(stats.update_scale),
                   "step %u: scale %g", t, stats.update_scale);
    }
    tamis_reducer_destroy(reducer);
    free(residual);
}

static void test_an_infinite_sum_teaches_nothing(void **state) {
    (void)state;
    test_context("an infinite sum");
    ranks_run(RANKS, 0, run_dropped, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_scale_is_that_of_the_rule),
        cmocka_unit_test(test_no_step_is_larger_than_the_rule),
        cmocka_unit_test(test_a_given_scale_is_the_most),
        cmocka_unit_test(test_a_resumed_run_has_the_same_bits),
        cmocka_unit_test(test_an_infinite_sum_teaches_nothing),
        cmocka_unit_test(test_momentum_has_no_norm_matching),
    };
    return cmocka_run_group_tests_name("norm_matching", tests, NULL, NULL);
}
