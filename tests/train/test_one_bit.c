/* SPDX-License-Identifier: MIT
 *
 * 1-bit Adam, with which the presets are compared: what travels has one magnitude a chunk, nothing
 * is lost on the way, and all ranks hold the same.
 */
#include "bench/train/one_bit.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tamis/elastic.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/common/group_local.h"
#include "bench/common/random.h"

enum { LONG = 130, SHORT = 7, N = LONG + SHORT, RANKS = 3, STEPS = 12 };

static _Atomic int failures;
static tamis_segment segments[] = {{"w", LONG}, {"b", SHORT}};
static size_t columns[] = {10, 0};
static const workload work = {
    .length = N, .nsegments = 2, .segments = segments, .columns = columns};
static const train_settings settings = {
    .optimizer = TRAIN_ADAMW, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .one_bit = 1};
static double sent[RANKS][N], kept[RANKS][N]; /* of each rank, before and after a step */

/* A check in the thread of a rank, which may not end the test. */
static void check(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    failures++;
}

/* The mean of what ranks had, and what owners kept, is the new momentum and what is kept now. */
static void check_sums(const one_bit *o, const double *by_owners, const float *m) {
    for (size_t i = 0; i < N; i++) {
        double had = by_owners[i], has = (double)m[i] + (double)o->left_by_owners[i];
        for (uint32_t r = 0; r < RANKS; r++) {
            had += sent[r][i] / RANKS;
            has += kept[r][i] / RANKS;
        }
        check(fabs(had - has) < 1e-5, "nothing is lost");
    }
}

static void check_magnitudes(const float *m) {
    for (size_t i = 1; i < LONG; i++) {
        bool begins = i == LONG / RANKS || i == LONG * 2 / RANKS;
        check(begins || fabsf(m[i]) == fabsf(m[i - 1]), "one magnitude a chunk");
    }
}

static void one_step(one_bit *o, optimizer *adam, uint64_t step, float *params) {
    float grad[N], *m = adam->states[0];
    double by_owners[N];
    uint64_t key = bench_key(7, o->group->rank, step);
    optimizer_pace pace = {step, 0.01f};
    for (size_t i = 0; i < N; i++) {
        grad[i] = (float)bench_normal(key, i);
        by_owners[i] = (double)o->left_by_owners[i];
        sent[o->group->rank][i] =
            (double)o->left[i] + (double)(0.9f * m[i] + (1.0f - 0.9f) * grad[i]);
    }
    one_bit_step(o, adam, &pace, grad, params);
    for (size_t i = 0; i < N; i++)
        kept[o->group->rank][i] = (double)o->left[i];
    bench_barrier(o->group);
    check_sums(o, by_owners, m);
    check_magnitudes(m);
    check(tamis_comm_check_equal(o->group->comm, params, N * sizeof *params) == TAMIS_OK, "equal");
    bench_barrier(o->group);
}

static int of_rank(bench_group *group, void *context) {
    optimizer adam;
    one_bit o;
    float params[N];
    (void)context;
    optimizer_open(&settings, N, NULL, &adam);
    one_bit_open(group, &settings, &work, &o);
    check(!one_bit_begins(&o, &settings, 0) && one_bit_begins(&o, &settings, 1), "the first step");
    for (size_t i = 0; i < N; i++) {
        params[i] = 1.0f;
        adam.states[1][i] = 0.25f * (1.0f - 0.99f); /* a root of 0.5 after one step */
    }
    for (uint64_t step = 1; step < STEPS; step++)
        one_step(&o, &adam, step, params);
    one_bit_close(&o);
    optimizer_close(&adam);
    return 0;
}

static void test_one_bit(void **state) {
    (void)state;
    assert_int_equal(bench_local_launch(RANKS, of_rank, NULL), 0);
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_bit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
