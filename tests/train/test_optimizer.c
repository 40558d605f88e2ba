/* SPDX-License-Identifier: MIT
 *
 * Optimizers against their formulas in double precision, one parameter after the other; the
 * schedule of rates.
 */
#include "bench/train/optimizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/common/random.h"

/* A matrix and a vector, of lengths that no register divides. */
enum { MATRIX = 133, VECTOR = 6, N = MATRIX + VECTOR, STEPS = 50 };

static const train_settings usual = {
    .momentum = 0.9,
    .beta1 = 0.9,
    .beta2 = 0.99,
    .weight_decay = 0.1,
    .lr = 0.05,
};

/* -- slow references -------------------------------------------------------------------------- */

typedef struct reference {
    double p[N], s[N], m[N], v[N];
} reference;

static void sgd_reference(reference *r, const train_settings *c, int t, size_t i, double g) {
    (void)t;
    r->p[i] -= c->lr * g;
}

static void momentum_reference(reference *r, const train_settings *c, int t, size_t i, double g) {
    (void)t;
    r->s[i] = c->momentum * r->s[i] + g;
    r->p[i] -= c->lr * r->s[i];
}

static void adamw_reference(reference *r, const train_settings *c, int t, size_t i, double g) {
    r->m[i] = c->beta1 * r->m[i] + (1 - c->beta1) * g;
    r->v[i] = c->beta2 * r->v[i] + (1 - c->beta2) * g * g;
    double m = r->m[i] / (1 - pow(c->beta1, t)), v = r->v[i] / (1 - pow(c->beta2, t));
    if (i < MATRIX)
        r->p[i] -= c->lr * c->weight_decay * r->p[i];
    r->p[i] -= c->lr * m / (sqrt(v) + OPTIMIZER_EPS);
}

typedef void (*rule)(reference *r, const train_settings *c, int t, size_t i, double g);

/* Gradients over nine powers of ten; one place never has any. */
static double gradient(size_t i, uint64_t step) {
    double scale = pow(10.0, (double)(i % 9) - 6.0);
    return i == 7 ? 0.0 : (double)(float)(scale * (0.3 + bench_normal(step, i)));
}

/* Rounding: 24 bits a step, which add up over the steps; v is small against eps in no place. */
static void compare(const train_settings *settings, rule slow) {
    tamis_segment segments[] = {{"W", MATRIX}, {"b", VECTOR}};
    size_t columns[] = {1, 0};
    workload work = {.nsegments = 2, .length = N, .segments = segments, .columns = columns};
    static reference r;
    optimizer o;
    float p[N], g[N];
    memset(&r, 0, sizeof r);
    optimizer_open(settings, N, &o);
    for (size_t i = 0; i < N; i++)
        r.p[i] = p[i] = (float)bench_normal(77, i);
    for (uint64_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < N; i++) {
            g[i] = (float)gradient(i, step);
            slow(&r, settings, (int)step + 1, i, gradient(i, step));
        }
        optimizer_pace pace = {step, (float)settings->lr};
        optimizer_update(&o, &work, &pace, g, p);
    }
    for (size_t i = 0; i < N; i++) {
        double moved = 1.0 + fabs(r.p[i]) + settings->lr * fabs(r.s[i]) * STEPS;
        if (!(fabs(p[i] - r.p[i]) < 1e-7 * STEPS * moved))
            fail_msg("parameter %zu is %.9g, the formula gives %.9g", i, (double)p[i], r.p[i]);
    }
    optimizer_close(&o);
}

static void sgd_follows_its_formula(void **state) {
    (void)state;
    train_settings s = usual;
    s.optimizer = TRAIN_SGD;
    compare(&s, sgd_reference);
}

static void momentum_follows_its_formula(void **state) {
    (void)state;
    train_settings s = usual;
    s.optimizer = TRAIN_MOMENTUM;
    compare(&s, momentum_reference);
}

static void adamw_follows_its_formula(void **state) {
    (void)state;
    train_settings s = usual;
    s.optimizer = TRAIN_ADAMW;
    compare(&s, adamw_reference);
    s.weight_decay = 0;
    s.beta1 = 0;
    compare(&s, adamw_reference);
}

static void sparse_sgd_is_sgd_where_the_rest_is_zero(void **state) {
    (void)state;
    train_settings s = usual;
    tamis_segment segment = {"W", 5};
    size_t columns = 5;
    workload work = {.nsegments = 1, .length = 5, .segments = &segment, .columns = &columns};
    optimizer o;
    float g[5] = {0, 2, 0, 0, -3}, dense[5] = {1, 2, 3, 4, 5}, sparse[5] = {1, 2, 3, 4, 5};
    const uint32_t indices[] = {1, 4};
    const optimizer_pace pace = {0, 0.3f};
    const float values[] = {2, -3};
    s.optimizer = TRAIN_SGD;
    optimizer_open(&s, 5, &o);
    optimizer_update(&o, &work, &pace, g, dense);
    optimizer_update_sparse(0.3f, indices, values, 2, sparse);
    assert_memory_equal(dense, sparse, sizeof dense);
    optimizer_close(&o);
}

/* What was reduced is a step already; weights alone decay. */
static void updates_are_applied_as_they_come(void **state) {
    (void)state;
    train_settings s = usual;
    tamis_segment segments[] = {{"W", 1}, {"b", 1}};
    size_t columns[] = {1, 0};
    workload work = {.nsegments = 2, .length = 2, .segments = segments, .columns = columns};
    const optimizer_pace pace = {3, 0.5f};
    float g[2] = {2, 8}, p[2] = {1, 1};
    optimizer o;
    s.optimizer = TRAIN_ADAMW;
    s.reduce = TRAIN_UPDATE;
    optimizer_open(&s, 2, &o);
    assert_int_equal(o.nstates, 0);
    optimizer_update(&o, &work, &pace, g, p);
    assert_float_equal(p[0], 1 - 0.5 * 0.1 - 0.5 * 2, 1e-6);
    assert_float_equal(p[1], 1 - 0.5 * 8, 1e-6);
    optimizer_close(&o);
}

/* -- rates ------------------------------------------------------------------------------------ */

static void rate_rises_and_decays_to_its_floor(void **state) {
    (void)state;
    train_settings s = usual;
    s.lr = 2.0;
    assert_true(optimizer_rate(&s, 0, 100) == 2.0);
    assert_true(optimizer_rate(&s, 99, 100) == 2.0);
    s.warm_up = 10;
    assert_float_equal(optimizer_rate(&s, 0, 100), 0.2, 1e-12);
    assert_float_equal(optimizer_rate(&s, 9, 100), 2.0, 1e-12);
    assert_true(optimizer_rate(&s, 50, 100) == 2.0);
    s.decay = TRAIN_COSINE;
    s.lr_floor = 0.1;
    assert_float_equal(optimizer_rate(&s, 10, 110), 2.0, 1e-12);
    assert_float_equal(optimizer_rate(&s, 60, 110), 2.0 * (0.1 + 0.9 * 0.5), 1e-12);
    assert_float_equal(optimizer_rate(&s, 110, 110), 0.2, 1e-12);
    for (uint64_t step = 10; step < 110; step++)
        assert_true(optimizer_rate(&s, step, 110) > optimizer_rate(&s, step + 1, 110));
    assert_float_equal(optimizer_rate(&s, 4, 5), 1.0, 1e-12); /* shorter than its warm-up */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_follows_its_formula),
        cmocka_unit_test(momentum_follows_its_formula),
        cmocka_unit_test(adamw_follows_its_formula),
        cmocka_unit_test(sparse_sgd_is_sgd_where_the_rest_is_zero),
        cmocka_unit_test(updates_are_applied_as_they_come),
        cmocka_unit_test(rate_rises_and_decays_to_its_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
