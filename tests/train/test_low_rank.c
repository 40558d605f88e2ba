/* SPDX-License-Identifier: MIT
 *
 * PowerSGD, with which the presets are compared: what it keeps and what it leaves add up; of
 * matrices of that rank nothing is lost; vectors are means; two ranks end with the same values.
 */
#include "bench/train/low_rank.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/common/group_local.h"
#include "bench/common/random.h"

enum { ROWS = 24, COLUMNS = 20, SMALL = 3, RANKS = 3, N = ROWS * COLUMNS + SMALL * SMALL + 5 };

static _Atomic int failures;
static tamis_segment segments[] = {{"wide", ROWS *COLUMNS}, {"small", SMALL *SMALL}, {"b", 5}};
static size_t columns[] = {COLUMNS, SMALL, 0};
static const workload work = {
    .length = N, .nsegments = 3, .segments = segments, .columns = columns};

/* The gradient of a rank: of rank 2 in its large matrix, or of any. */
static void draw(uint32_t rank, int step, bool simple, float *out) {
    uint64_t key = bench_key(5, rank, (uint64_t)step);
    for (size_t i = 0; i < N; i++)
        out[i] = (float)bench_normal(key, i);
    for (size_t i = 0; simple && i < ROWS * COLUMNS; i++) {
        size_t row = i / COLUMNS, column = i % COLUMNS;
        out[i] = (float)(row % 3) * (float)(column % 5 + rank) - (float)(row + column % 2);
    }
}

/* A check in the thread of a rank, which may not end the test. */
static void check(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    failures++;
}

static double distance(const float *a, const float *b, size_t count) {
    double sum = 0.0, whole = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        whole += (double)b[i] * (double)b[i];
    }
    return sqrt(sum / whole);
}

/* @return how far the result is from the mean, where it is compressed */
static double one_step(low_rank *l, int step, bool simple) {
    static float grads[RANKS][N], before[RANKS][N];
    float mean[N], sum[N], *grad = grads[l->group->rank];
    draw(l->group->rank, step, simple, grad);
    memcpy(before[l->group->rank], l->kept, sizeof before[0]);
    for (size_t i = 0; i < N; i++)
        sum[i] = l->kept[i] + grad[i];
    bench_barrier(l->group);
    for (size_t i = 0; i < N; i++) {
        float here[RANKS];
        for (uint32_t r = 0; r < RANKS; r++)
            here[r] = grads[r][i] + before[r][i];
        mean[i] = (here[0] + here[1] + here[2]) / RANKS;
    }
    bench_barrier(l->group);
    low_rank_reduce(l, grad);
    check(tamis_comm_check_equal(l->group->comm, grad, N * sizeof *grad) == TAMIS_OK, "equal");
    for (size_t i = 0; i < N; i++) {
        double left = i < ROWS * COLUMNS ? (double)grad[i] + (double)l->kept[i] - (double)sum[i]
                                         : (double)grad[i] - (double)mean[i];
        check(fabs(left) < 1e-4, "nothing is lost");
    }
    return distance(grad, mean, ROWS * COLUMNS);
}

/* Three vectors hold rank 2 wholly; one does not. */
static int of_rank(bench_group *group, void *context) {
    low_rank l;
    (void)context;
    low_rank_open(group, &work, 3, 1, &l);
    check(one_step(&l, 0, true) < 1e-5, "rank 2 fits into 3");
    check(one_step(&l, 0, true) < 1e-5, "rank 2 fits into 3, again");
    check(one_step(&l, 1, false) > 0.5, "noise does not");
    tamis_stats stats = TAMIS_STATS_INIT;
    low_rank_stats(&l, &stats);
    double floats = 3 * (ROWS + COLUMNS) + SMALL * SMALL + 5;
    check(fabs((double)stats.wire_bytes - 8.0 * floats * (RANKS - 1) / RANKS) < 64.0,
          "bytes are those of two all-reduces");
    low_rank_close(&l);
    low_rank_open(group, &work, 1, 1, &l);
    check(one_step(&l, 0, true) > 1e-3, "rank 2 does not fit into 1");
    low_rank_close(&l);
    return 0;
}

static void test_low_rank(void **state) {
    (void)state;
    assert_int_equal(bench_local_launch(RANKS, of_rank, NULL), 0);
    assert_int_equal(failures, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_low_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
