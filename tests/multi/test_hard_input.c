/* SPDX-License-Identifier: MIT
 *
 * The default scheme on gradients that are hard for a predicting rule: it sends exactly k in every
 * step, nothing is deferred, all ranks hold the same bits and no mass is lost.
 *
 * Gradients are whole numbers. The sum of any entry over ranks and steps stays below 2^24, so
 * binary32 is exact and mass is compared for equality.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 8, LENGTH = 1024, N = SEGMENTS * LENGTH, STEPS = 20, BLOCK = 32 };

typedef struct hard_case {
    const char *name;
    void (*fill)(uint32_t rank, uint32_t step, float *out); /* out[N] */
    double density, later; /* later: from step STEPS / 2 on; 0: the same */
} hard_case;

/* -- gradients -------------------------------------------------------------------------------- */

/* Half as many magnitudes at each next power of two, up to 2^8; times `factor`. */
static void heavy(uint32_t rank, uint32_t step, float factor, float *out) {
    uint64_t stream = data_mix((uint64_t)rank << 20 ^ step);
    for (size_t i = 0; i < N; i++) {
        uint64_t random = data_mix(stream + i);
        unsigned e = (unsigned)__builtin_ctzll(random >> 4 | 1u << 7);
        uint64_t magnitude = (uint64_t)1 << e | (random >> 40 & (((uint64_t)1 << e) - 1));
        out[i] = (random & 1 ? -factor : factor) * (float)magnitude;
    }
}

static void fill_falling(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, step < STEPS / 2 ? 10 : 1, out);
}

static void fill_bursts(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, step % 7 == 3 ? 4 : step == 10 ? 100 : 1, out);
}

static void fill_even(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, 1, out);
}

/* Three of eight layers are silent, one of them most of the time. */
static void fill_silent_layers(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, 1, out);
    if (step >= 4 && step < 10)
        memset(out + 2 * LENGTH, 0, 2 * LENGTH * sizeof *out);
    if (step % 6)
        memset(out + 7 * LENGTH, 0, LENGTH * sizeof *out);
}

static void fill_silent_ranks(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, 1, out);
    if (rank % 3 == 1 || (rank % 3 == 2 && step >= 6 && step < 12))
        memset(out, 0, N * sizeof *out);
}

static void fill_loud_rank(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, rank == 1 ? 1000 : 1, out);
}

/* All ranks are silent for some steps, the first included: fewer than k entries are not zero. */
static void fill_silence(uint32_t rank, uint32_t step, float *out) {
    heavy(rank, step, 1, out);
    if (step < 3 || (step >= 8 && step < 14))
        memset(out, 0, N * sizeof *out);
}

/* Thirty entries, the same everywhere, fewer than k. */
static void fill_few(uint32_t rank, uint32_t step, float *out) {
    memset(out, 0, N * sizeof *out);
    for (size_t i = 0; i < 30; i++)
        out[i * 271 % N] = (float)(1 + (rank + step + i) % 5);
}

/* -- a run ------------------------------------------------------------------------------------ */

typedef struct run {
    const hard_case *what;
    float *given[RANKS_MOST];          /* gradient of a rank in this step */
    const float *residual[RANKS_MOST]; /* after it */
    uint64_t hash[RANKS_MOST];
    double *held; /* [N] residuals of all ranks before the step */
} run;

/* For entries rank, rank + P, ...: held before + gradients = applied + held now. */
static void check_mass(test_rank *self, uint32_t step, const tamis_result *result) {
    run *all = self->shared;
    size_t at = 0;
    for (size_t i = self->id; i < N; i += self->nranks) {
        double before = all->held[i], after = 0, applied = 0;
        while (at < result->count && result->indices[at] < i)
            at++;
        if (at < result->count && result->indices[at] == i)
            applied = (double)result->values[at];
        for (uint32_t r = 0; r < self->nranks; r++) {
            before += (double)all->given[r][i];
            after += (double)all->residual[r][i];
        }
        all->held[i] = after;
        RANK_CHECK(self, before == applied + after,
                   "step %u, entry %zu: %.9g became %.9g applied and %.9g held", step, i, before,
                   applied, after);
    }
}

static void check_step(test_rank *self, uint32_t step, double density, tamis_reducer *r) {
    run *all = self->shared;
    tamis_stats s = TAMIS_STATS_INIT;
    tamis_result result = TAMIS_RESULT_INIT;
    uint64_t k = (uint64_t)(density * N);
    RANK_OK(self, tamis_reducer_stats(r, &s));
    RANK_OK(self, tamis_reducer_result(r, &result));
    RANK_OK(self, tamis_reducer_residual(r, &all->residual[self->id]));
    RANK_CHECK(self, s.selected == k && result.count == k && s.target == k,
               "step %u: %llu selected, %zu in the result, asked %llu, k = %llu", step,
               (unsigned long long)s.selected, result.count, (unsigned long long)s.target,
               (unsigned long long)k);
    RANK_CHECK(self, s.deferred == 0 && s.skipped == 0, "step %u: %llu put off", step,
               (unsigned long long)s.deferred);
    uint64_t owned = (N / BLOCK + self->nranks - 1) / self->nranks * BLOCK; /* at most */
    RANK_CHECK(self, s.sent_max <= k * owned / N + 1, "step %u: a rank sent %llu of %llu", step,
               (unsigned long long)s.sent_max, (unsigned long long)k);
    uint64_t hash = data_hash(0, result.indices, result.count * sizeof *result.indices);
    all->hash[self->id] = data_hash(hash, result.values, result.count * sizeof *result.values);
    if (!rank_barrier(self))
        return;
    RANK_CHECK(self, all->hash[self->id] == all->hash[0], "step %u: not what rank 0 holds", step);
    check_mass(self, step, &result);
    rank_barrier(self);
}

/* The numbering of parts may rotate with the step, but a part keeps its blocks. Zeros that fill up
 * are the lowest of each part; nonzero entries are sent before any zero. */
static void check_filling(test_rank *self, const tamis_result *result, const bool *nonzero) {
    for (size_t part = 0; part < self->nranks; part++) {
        size_t at = 0, passed_over = N;
        for (size_t i = 0; i < N; i++) {
            while (at < result->count && result->indices[at] < i)
                at++;
            bool taken = at < result->count && result->indices[at] == i;
            if (i / BLOCK % self->nranks != part)
                continue;
            RANK_CHECK(self, taken || !nonzero[i], "entry %zu stayed behind, though not zero", i);
            RANK_CHECK(self, !taken || nonzero[i] || passed_over == N,
                       "zero %zu was taken, zero %zu of the same part not", i, passed_over);
            if (!taken && passed_over == N)
                passed_over = i;
        }
    }
}

static tamis_reducer_config usual_config(double density) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = density;
    config.op = TAMIS_OP_SUM;
    config.output = TAMIS_OUTPUT_SPARSE;
    config.block = BLOCK;
    return config;
}

static void take_steps(test_rank *self, tamis_reducer *r) {
    run *all = self->shared;
    const hard_case *what = all->what;
    tamis_step step = data_step(all->given[self->id]);
    double density = what->density;
    for (uint32_t number = 0; number < STEPS && self->failure[0] == '\0'; number++) {
        if (what->later > 0 && number == STEPS / 2) {
            density = what->later;
            RANK_OK(self, tamis_reducer_set_density(r, density));
        }
        what->fill(self->id, number, all->given[self->id]);
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        check_step(self, number, density, r);
        if (what->fill != fill_few || self->failure[0])
            continue;
        bool nonzero[N];
        tamis_result result = TAMIS_RESULT_INIT;
        for (size_t i = 0; i < N; i++)
            nonzero[i] = all->given[self->id][i] != 0;
        RANK_OK(self, tamis_reducer_result(r, &result));
        check_filling(self, &result, nonzero);
        rank_barrier(self); /* others read this gradient until here */
    }
}

static void body(test_rank *self) {
    run *all = self->shared;
    tamis_reducer *r = NULL;
    tamis_reducer_config config = usual_config(all->what->density);
    config.density_max = fmax(all->what->density, all->what->later);
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    take_steps(self, r);
    rank_barrier(self); /* no residual is freed while others read it */
    tamis_reducer_destroy(r);
}

static void try_case(const hard_case *what, uint32_t nranks) {
    run all = {.what = what};
    all.held = calloc(N, sizeof *all.held);
    assert_non_null(all.held);
    for (uint32_t r = 0; r < nranks; r++) {
        all.given[r] = calloc(N, sizeof(float));
        assert_non_null(all.given[r]);
    }
    test_context("%s, %u ranks, density %g", what->name, nranks, what->density);
    ranks_run(nranks, 0, body, &all);
    for (uint32_t r = 0; r < nranks; r++)
        free(all.given[r]);
    free(all.held);
}

static void try_ranks(const hard_case *what) {
    static const uint32_t ranks_of[] = {1, 3, 8, 32};
    for (size_t p = 0; p < sizeof ranks_of / sizeof ranks_of[0]; p++)
        try_case(what, ranks_of[p]);
}

static void test_count_is_exact_when_the_scale_falls(void **state) {
    (void)state;
    try_ranks(&(hard_case){"scale falls 10 times", fill_falling, 0.02, 0});
}

static void test_count_is_exact_in_bursts(void **state) {
    (void)state;
    try_ranks(&(hard_case){"bursts of 4 and 100", fill_bursts, 0.02, 0});
}

static void test_count_is_exact_after_a_change_of_density(void **state) {
    (void)state;
    try_ranks(&(hard_case){"density falls", fill_even, 0.05, 0.005});
    try_ranks(&(hard_case){"density rises", fill_even, 0.005, 0.05});
}

static void test_count_is_exact_when_layers_fall_silent(void **state) {
    (void)state;
    try_ranks(&(hard_case){"silent layers", fill_silent_layers, 0.02, 0});
}

static void test_count_is_exact_when_ranks_fall_silent(void **state) {
    (void)state;
    try_ranks(&(hard_case){"silent ranks", fill_silent_ranks, 0.02, 0});
}

static void test_count_is_exact_with_one_loud_rank(void **state) {
    (void)state;
    try_ranks(&(hard_case){"one loud rank", fill_loud_rank, 0.02, 0});
}

static void test_count_is_filled_with_zeros_lowest_first(void **state) {
    (void)state;
    try_ranks(&(hard_case){"silence", fill_silence, 0.02, 0});
    /* k is large enough that every part can send its budget of the thirty */
    try_ranks(&(hard_case){"few entries", fill_few, 0.2, 0});
}

/* -- balance ---------------------------------------------------------------------------------- */

enum { UNEVEN_SEGMENTS = 16, UNEVEN_LENGTH = 4096, UNEVEN_STEPS = 20 };

static const double UNEVEN_DENSITY = 0.02;

typedef struct balance {
    const char *scheme;
    double threshold;  /* the initial one, if the scheme has one */
    double worst, sum; /* max / mean of the entries of ranks: in the worst step, and over all */
} balance;

/* Lognormal, median 1, sigma 1.5; the sum of twelve uniform numbers approximates the normal one. */
static float scale_of(uint64_t layer) {
    double normal = 0;
    for (uint64_t j = 0; j < 12; j++)
        normal += (double)(data_mix(layer * 12 + j) >> 40) * 0x1p-24 - 0.5;
    return (float)exp(1.5 * normal);
}

/* P(|x| > t) falls as t^-4. */
static void fill_uneven(uint32_t rank, uint32_t step, float *out) {
    uint64_t stream = data_mix(99 + ((uint64_t)rank << 20 ^ step));
    for (uint64_t layer = 0; layer < UNEVEN_SEGMENTS; layer++) {
        float scale = scale_of(layer);
        for (size_t j = 0; j < UNEVEN_LENGTH; j++) {
            size_t i = layer * UNEVEN_LENGTH + j;
            float v = (float)(int32_t)(data_mix(stream + i) >> 41) * 0x1p-22f - 1.0f + 0x1p-23f;
            out[i] = scale * v / sqrtf(sqrtf(1.0f - v * v));
        }
    }
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The true threshold of one rank's first gradient: a fair start for `step`. */
static double true_threshold(double density) {
    size_t n = (size_t)UNEVEN_SEGMENTS * UNEVEN_LENGTH;
    float *magnitudes = calloc(n, sizeof *magnitudes);
    assert_non_null(magnitudes);
    fill_uneven(0, 0, magnitudes);
    for (size_t i = 0; i < n; i++)
        magnitudes[i] = fabsf(magnitudes[i]);
    qsort(magnitudes, n, sizeof *magnitudes, compare);
    double threshold = (double)magnitudes[n - (size_t)(density * (double)n)];
    free(magnitudes);
    return threshold;
}

static void watch_balance(test_rank *self) {
    balance *seen = self->shared;
    tamis_reducer *r = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    float *grad = calloc((size_t)UNEVEN_SEGMENTS * UNEVEN_LENGTH, sizeof *grad);
    tamis_step step = data_step(grad);
    config.scheme = seen->scheme;
    config.threshold = seen->threshold;
    config.density = UNEVEN_DENSITY;
    config.output = TAMIS_OUTPUT_SPARSE;
    RANK_CHECK(self, grad, "no memory");
    RANK_OK(self, data_even_reducer(self->comm, UNEVEN_SEGMENTS, UNEVEN_LENGTH, &config, &r));
    for (uint32_t number = 0; number < UNEVEN_STEPS; number++) {
        tamis_stats s = TAMIS_STATS_INIT;
        fill_uneven(self->id, number, grad);
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        RANK_OK(self, tamis_reducer_stats(r, &s));
        /* parts are disjoint, so the union is the sum of the entries */
        double ratio = (double)s.sent_max * self->nranks / (double)s.selected;
        if (self->id == 0) {
            seen->worst = fmax(seen->worst, ratio);
            seen->sum += ratio / UNEVEN_STEPS;
        }
    }
    tamis_reducer_destroy(r);
    free(grad);
}

static void test_entries_are_even_where_layers_are_not(void **state) {
    static const uint32_t ranks_of[] = {8, 32};
    (void)state;
    for (size_t p = 0; p < 2; p++) {
        balance tamis = {.scheme = "tamis"}, micro = {.scheme = "micro"};
        micro.threshold = true_threshold(UNEVEN_DENSITY);
        test_context("balance of %u ranks", ranks_of[p]);
        ranks_run(ranks_of[p], 0, watch_balance, &tamis);
        ranks_run(ranks_of[p], 0, watch_balance, &micro);
        print_message("%u ranks, max / mean of entries: tamis %.4f at most; micro %.2f, %.2f at "
                      "most\n",
                      ranks_of[p], tamis.worst, micro.sum, micro.worst);
        assert_true(tamis.worst >= 1.0 && tamis.worst <= 1.05);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_count_is_exact_when_the_scale_falls),
        cmocka_unit_test(test_count_is_exact_in_bursts),
        cmocka_unit_test(test_count_is_exact_after_a_change_of_density),
        cmocka_unit_test(test_count_is_exact_when_layers_fall_silent),
        cmocka_unit_test(test_count_is_exact_when_ranks_fall_silent),
        cmocka_unit_test(test_count_is_exact_with_one_loud_rank),
        cmocka_unit_test(test_count_is_filled_with_zeros_lowest_first),
        cmocka_unit_test(test_entries_are_even_where_layers_are_not),
    };
    return cmocka_run_group_tests_name("hard_input", tests, NULL, NULL);
}
