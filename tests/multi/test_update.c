/* SPDX-License-Identifier: MIT
 *
 * Update mode and decaying residuals: residual, moments and result, entry by entry, against a plain
 * loop; what is lost and what is not; what is refused.
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
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 900, STEPS = 12, RANKS = 3 };

typedef struct update_case {
    const char *scheme;
    tamis_update update;
    double decay;
    uint64_t bucket_length;
    tamis_dtype type;
    tamis_worker worker;
    bool whole;             /* whole numbers, for which sums are exact; else real ones */
    uint64_t hashes[RANKS]; /* of all results */
    float given[RANKS][N];  /* what each rank added in this step */
    float before[RANKS][N]; /* residual */
    float after[RANKS][N];
} update_case;

static update_case usual(tamis_update_rule rule, double beta1, double decay) {
    update_case c = {.scheme = "tamis", .update = TAMIS_UPDATE_INIT, .decay = decay};
    c.update.scale = 1.0;
    c.update.rule = rule;
    c.update.beta1 = beta1;
    c.update.beta2 = 0.99;
    return c;
}

static tamis_reducer_config config_of(const update_case *c) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = c->scheme;
    config.density = 0.05;
    config.bucket_length = c->bucket_length;
    config.grad_dtype = c->type;
    config.worker = c->worker;
    config.residual_decay = c->decay;
    config.update = &c->update;
    return config;
}

static void gradient_of(const update_case *c, uint32_t rank, uint32_t step, float *out) {
    if (c->whole)
        data_fill(DATA_TIES, rank, step, N, out);
    else
        data_fill_real(rank, step, N, out);
}

/* -- the plain loop --------------------------------------------------------------------------- */

/* What one rank keeps. */
typedef struct plain {
    float acc[N], m[N], v[N];
    double power1, power2;
} plain;

static void plain_take(const update_case *c, plain *p, const float *gradient, float *given) {
    const tamis_update *u = &c->update;
    float b1 = (float)u->beta1, b2 = (float)u->beta2;
    p->power1 = p->power1 != 0.0 || u->beta1 == 0.0 ? p->power1 * u->beta1 : u->beta1;
    p->power2 = p->power2 != 0.0 ? p->power2 * u->beta2 : u->beta2;
    float c1 = (float)(1.0 / (1.0 - p->power1)), c2 = (float)(1.0 / (1.0 - p->power2));
    for (size_t i = 0; i < N; i++) {
        float g = gradient[i];
        if (u->rule == TAMIS_UPDATE_STEP) {
            given[i] = g;
        } else if (u->rule == TAMIS_UPDATE_MOMENTUM) {
            given[i] = p->m[i] = b1 * p->m[i] + g;
        } else {
            p->m[i] = u->beta1 > 0.0 ? b1 * p->m[i] + (float)(1.0 - u->beta1) * g : g;
            p->v[i] = b2 * p->v[i] + ((float)(1.0 - u->beta2) * g) * g;
            given[i] = (p->m[i] * c1) / (sqrtf(p->v[i] * c2) + (float)u->epsilon);
        }
        p->acc[i] = (float)c->decay * p->acc[i] + given[i];
    }
}

/* Takes the library's choice of entries as given; checks what it does with them. */
static void plain_apply(const update_case *c, plain *p, const tamis_result *result) {
    for (size_t j = 0; j < result->count; j++) {
        p->acc[result->indices[j]] = 0.0f;
        if (c->update.rule == TAMIS_UPDATE_MOMENTUM)
            p->m[result->indices[j]] = 0.0f;
    }
}

/* -- one rank --------------------------------------------------------------------------------- */

static void check_result(test_rank *self, const tamis_result *result, const float *gradient,
                         uint32_t number) {
    const update_case *c = self->shared;
    float by = (float)(self->nranks / c->update.scale);
    size_t next = 0;
    for (size_t i = 0; i < N; i++) {
        bool chosen = next < result->count && result->indices[next] == i;
        next += chosen;
        float sum = 0.0f;
        for (uint32_t r = 0; r < self->nranks; r++) /* what each rank held, in their order */
            sum += (float)c->decay * c->before[r][i] + c->given[r][i];
        float want = chosen ? sum / by : 0.0f;
        RANK_CHECK(self, gradient[i] == want, "step %u: result[%zu] is %.9g, not %.9g", number, i,
                   (double)gradient[i], (double)want);
    }
}

/* Sum over ranks of what was added = P / scale * applied + change of the residuals, less what they
 * forgot by decay; exact if all numbers are whole. */
static void check_mass(test_rank *self, const float *gradient, uint32_t number) {
    const update_case *c = self->shared;
    for (size_t i = 0; i < N; i++) {
        double owed = 0.0, held = 0.0, size = 0.0;
        for (uint32_t r = 0; r < self->nranks; r++) {
            owed += c->decay * (double)c->before[r][i] + (double)c->given[r][i];
            held += (double)c->after[r][i];
            size += fabs((double)c->before[r][i]) + fabs((double)c->given[r][i]);
        }
        held += (double)gradient[i] * self->nranks / c->update.scale;
        /* one rounding for each decay, each addition and each sum over ranks, and two for the
         * quotient */
        double bound = c->whole ? 0.0 : size * 8 * 6e-8;
        RANK_CHECK(self, fabs(owed - held) <= bound, "step %u, entry %zu: %.17g in, %.17g out",
                   number, i, owed, held);
    }
}

static void one_step(test_rank *self, tamis_reducer *reducer, plain *p, uint32_t number) {
    update_case *c = self->shared;
    float gradient[N];
    const float *residual;
    tamis_result result = TAMIS_RESULT_INIT;
    gradient_of(c, self->id, number, gradient);
    memcpy(c->before[self->id], p->acc, sizeof p->acc);
    plain_take(c, p, gradient, c->given[self->id]);
    tamis_step step = data_step(gradient);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_result(reducer, &result));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    plain_apply(c, p, &result);
    RANK_CHECK(self, memcmp(residual, p->acc, sizeof p->acc) == 0,
               "step %u: the residual differs from the plain loop's", number);
    memcpy(c->after[self->id], residual, sizeof p->acc);
    rank_barrier(self);
    check_result(self, &result, gradient, number);
    check_mass(self, gradient, number);
    c->hashes[self->id] = data_hash(c->hashes[self->id], gradient, sizeof gradient);
    rank_barrier(self);
}

static void check_moments(test_rank *self, tamis_reducer *reducer, const plain *p) {
    const update_case *c = self->shared;
    bool adam = c->update.rule == TAMIS_UPDATE_ADAM;
    float m[N], v[N];
    uint64_t passes = 0;
    RANK_OK(self, tamis_reducer_save_moments(reducer, c->update.beta1 > 0.0 ? m : NULL,
                                             adam ? v : NULL, &passes));
    RANK_CHECK(self, passes == STEPS, "%u passes were counted", (unsigned)passes);
    if (c->update.beta1 > 0.0)
        RANK_CHECK(self, memcmp(m, p->m, sizeof m) == 0, "%s", "the first moments differ");
    if (adam)
        RANK_CHECK(self, memcmp(v, p->v, sizeof v) == 0, "%s", "the second moments differ");
}

static void run(test_rank *self) {
    update_case *c = self->shared;
    tamis_reducer_config config = config_of(c);
    tamis_reducer *reducer = NULL;
    plain *p = calloc(1, sizeof *p);
    c->hashes[self->id] = 0;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t number = 0; number < STEPS && !self->failure[0]; number++)
        one_step(self, reducer, p, number);
    check_moments(self, reducer, p);
    tamis_reducer_destroy(reducer);
    free(p);
}

static void check_case(update_case *c, uint32_t nranks) {
    test_context("%s, rule %d, beta1 %g, decay %g, scale %g, buckets of %u, P=%u", c->scheme,
                 (int)c->update.rule, c->update.beta1, c->decay, c->update.scale,
                 (unsigned)c->bucket_length, nranks);
    ranks_run(nranks, 0, run, c);
    for (uint32_t r = 1; r < nranks; r++)
        assert_true(c->hashes[r] == c->hashes[0]);
}

static void check_rule(tamis_update_rule rule, double beta1) {
    static const double decays[] = {1.0, 0.5, 0.0};
    static update_case c;
    for (size_t d = 0; d < 3; d++) {
        for (uint32_t nranks = 1; nranks <= RANKS; nranks++) {
            c = usual(rule, beta1, decays[d]);
            c.update.scale = d == 1 ? 33.0 : 1.0;
            c.bucket_length = nranks == 2 ? 300 : 0;
            c.worker = nranks == 3 ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER;
            check_case(&c, nranks);
        }
    }
}

static void test_adam_accumulates_the_step_of_each_rank(void **state) {
    (void)state;
    check_rule(TAMIS_UPDATE_ADAM, 0.9);
}

static void test_adam_without_a_first_moment_too(void **state) {
    (void)state;
    check_rule(TAMIS_UPDATE_ADAM, 0.0);
}

static void test_momentum_is_cleared_where_it_was_applied(void **state) {
    (void)state;
    check_rule(TAMIS_UPDATE_MOMENTUM, 0.9);
}

static void test_momentum_without_a_moment_is_the_gradient(void **state) {
    (void)state;
    check_rule(TAMIS_UPDATE_MOMENTUM, 0.0);
}

static void test_a_step_that_is_given_is_taken_as_it_is(void **state) {
    (void)state;
    check_rule(TAMIS_UPDATE_STEP, 0.0);
}

static void test_a_second_moment_may_forget_everything(void **state) {
    static update_case c;
    (void)state;
    for (int with_first = 0; with_first < 2; with_first++) {
        c = usual(TAMIS_UPDATE_ADAM, with_first ? 0.9 : 0.0, 0.5);
        c.update.beta2 = 0.0;
        check_case(&c, 2);
    }
}

/* Beta1 and decay 1/2 of whole numbers: 24 bits hold them all, in 12 steps. */
static void test_mass_is_conserved_exactly_where_nothing_is_rounded(void **state) {
    static update_case c;
    (void)state;
    for (int half = 0; half < 2; half++) {
        c = usual(TAMIS_UPDATE_MOMENTUM, 0.5, half ? 0.5 : 1.0);
        c.update.scale = 4.0;
        c.whole = true;
        check_case(&c, 2);
    }
}

static void test_schemes_with_exclusive_owners_and_lists_that_overlap(void **state) {
    static const char *const schemes[] = {"topk", "deft", "micro", "auto"};
    static update_case c;
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        c = usual(TAMIS_UPDATE_ADAM, 0.9, 0.5);
        c.scheme = schemes[s];
        check_case(&c, RANKS);
    }
}

/* -- decay without updates -------------------------------------------------------------------- */

static void run_decay(test_rank *self) {
    float gradient[N], acc[N] = {0}, part[N];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    const float *residual;
    config.residual_decay = 0.75;
    config.density = 0.05;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t number = 0; number < STEPS; number++) {
        data_fill_real(self->id, 2 * number, N, part);
        data_fill_real(self->id, 2 * number + 1, N, gradient);
        for (size_t i = 0; i < N; i++)
            acc[i] = (0.75f * acc[i] + part[i]) + gradient[i];
        tamis_step micro = data_step(part), step = data_step(gradient);
        RANK_OK(self, tamis_reducer_accumulate(reducer, &micro));
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_result(reducer, &result));
        RANK_OK(self, tamis_reducer_residual(reducer, &residual));
        for (size_t j = 0; j < result.count; j++)
            acc[result.indices[j]] = 0.0f;
        RANK_CHECK(self, memcmp(residual, acc, sizeof acc) == 0, "step %u: another residual",
                   number);
    }
    tamis_reducer_destroy(reducer);
}

static void test_a_residual_decays_once_a_step_also_with_micro_batches(void **state) {
    (void)state;
    test_context("decay 0.75");
    ranks_run(2, 0, run_decay, NULL);
}

/* -- entries that are not finite -------------------------------------------------------------- */

static void run_bad(test_rank *self) {
    update_case c = usual(TAMIS_UPDATE_ADAM, 0.9, 0.5);
    tamis_reducer_config config = config_of(&c);
    tamis_reducer *reducer = NULL;
    float gradient[N], first[N], second[N];
    const float *residual;
    tamis_stats stats = TAMIS_STATS_INIT;
    uint64_t passes;
    config.nonfinite = TAMIS_NONFINITE_DROP;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (uint32_t number = 0; number < STEPS; number++) {
        gradient_of(&c, self->id, number, gradient);
        if (self->id == 0) {
            gradient[7] = NAN;
            gradient[8] = -INFINITY;
            gradient[9] = 3e30f; /* its square is not finite */
        }
        tamis_step step = data_step(gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_OK(self, tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        RANK_CHECK(self, stats.nonfinite == 3, "%u bad entries", (unsigned)stats.nonfinite);
        for (size_t i = 0; i < N; i++)
            RANK_CHECK(self, isfinite(gradient[i]), "result[%zu] is %g", i, (double)gradient[i]);
    }
    RANK_OK(self, tamis_reducer_save_moments(reducer, first, second, &passes));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    for (size_t i = 7; i < 10 && self->id == 0; i++)
        RANK_CHECK(self, first[i] == 0.0f && second[i] == 0.0f && residual[i] == 0.0f,
                   "entry %zu has moved", i);
    tamis_reducer_destroy(reducer);
}

static void test_entries_that_are_not_finite_move_nothing(void **state) {
    (void)state;
    test_context("bad entries");
    ranks_run(2, 0, run_bad, NULL);
}

/* Finite sums that overflow when they are scaled; one of them fits a float, but not a bfloat16. */
enum { HUGE_ENTRIES = 3, TIGHT_ENTRY = 20, HUGE_FIRST = 5 };

typedef struct huge_case {
    tamis_nonfinite policy;
    tamis_op op;
    tamis_dtype type;
    tamis_value_codec value_codec;
    const char *scheme;
} huge_case;

static void fill_huge(const huge_case *h, uint32_t rank, bool huge, void *gradient) {
    float values[N] = {0};
    for (size_t i = 0; i < HUGE_ENTRIES && huge; i++)
        values[HUGE_FIRST + i] = i % 2 ? -1e36f : 1e36f;
    values[TIGHT_ENTRY] =
        rank == 0 && h->value_codec == TAMIS_VALUE_FLOAT32 ? 0x1.fep116f : 0x1p117f;
    if (h->value_codec != TAMIS_VALUE_FLOAT32)
        values[TIGHT_ENTRY] = 0x1p116f; /* the sum would be rounded to 2^118 */
    if (!huge)
        values[TIGHT_ENTRY] /= 2.0f; /* the momentum has the other half */
    tam_narrow(values, N, h->type, gradient);
}

static void run_huge(test_rank *self) {
    const huge_case *h = self->shared;
    update_case c = usual(TAMIS_UPDATE_MOMENTUM, 0.5, 0.0);
    tamis_reducer_config config;
    tamis_reducer *reducer = NULL;
    float gradient[N], values[N];
    tamis_stats stats = TAMIS_STATS_INIT;
    bool error = h->policy == TAMIS_NONFINITE_ERROR, drop = h->policy == TAMIS_NONFINITE_DROP;
    c.update.scale = h->op == TAMIS_OP_SUM ? 1024.0 : 2048.0;
    c.scheme = h->scheme;
    config = config_of(&c);
    config.density = 0.39; /* momentum is cleared */
    config.nonfinite = h->policy;
    config.op = h->op;
    config.grad_dtype = h->type;
    config.value_codec = h->value_codec;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    for (int number = 0; number < 2; number++) {
        bool huge = number == 0;
        fill_huge(h, self->id, huge, gradient);
        tamis_step step = data_step(gradient);
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_STATUS(self, huge && error ? TAMIS_E_NONFINITE : TAMIS_OK,
                    tamis_reducer_wait(reducer));
        RANK_OK(self, tamis_reducer_stats(reducer, &stats));
        RANK_CHECK(self,
                   stats.nonfinite == (huge ? HUGE_ENTRIES : 0) && stats.skipped == (huge && !drop),
                   "step %d: %u bad entries, skipped %u", number, (unsigned)stats.nonfinite,
                   (unsigned)stats.skipped);
        tam_widen(h->type, gradient, N, values);
        for (size_t i = 0; i < N; i++)
            RANK_CHECK(self, isfinite(values[i]), "step %d: result[%zu] is %g", number, i,
                       (double)values[i]);
        RANK_CHECK(self, (values[TIGHT_ENTRY] > 1e37f) == !stats.skipped, "step %d: %g is applied",
                   number, (double)values[TIGHT_ENTRY]);
    }
    tamis_reducer_destroy(reducer);
}

static void test_what_scaling_makes_infinite_is_never_applied(void **state) {
    static const char *const schemes[] = {"tamis", "all+global+exact+pairs"};
    (void)state;
    for (int i = 0; i < 3 * 2 * 2 * 2 * 2; i++) {
        huge_case h = {.policy = (tamis_nonfinite)(i % 3),
                       .op = (tamis_op)(i / 3 % 2),
                       .type = i / 6 % 2 ? TAMIS_DTYPE_BFLOAT16 : TAMIS_DTYPE_FLOAT32,
                       .value_codec = i / 12 % 2 ? TAMIS_VALUE_BFLOAT16 : TAMIS_VALUE_FLOAT32,
                       .scheme = schemes[i / 24]};
        test_context("%s, policy %d, average %d, type %d, value codec %d", h.scheme, (int)h.policy,
                     (int)h.op, (int)h.type, (int)h.value_codec);
        ranks_run(2, 0, run_huge, &h);
    }
}

/* -- state ------------------------------------------------------------------------------------ */

typedef struct resume_case {
    update_case c;
    bool file;
} resume_case;

static void step_plainly(test_rank *self, tamis_reducer *reducer, const update_case *c,
                         uint32_t number, uint64_t *hash) {
    float gradient[N];
    gradient_of(c, self->id, number, gradient);
    tamis_step step = data_step(gradient);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_OK(self, tamis_reducer_wait(reducer));
    *hash = data_hash(*hash, gradient, sizeof gradient);
}

/* Copy a state by a file, or by three parts in memory. */
static void hand_over(test_rank *self, const resume_case *now, tamis_reducer *from,
                      tamis_reducer *to) {
    char name[32], path[SCRATCH_PATH];
    size_t bytes = 0;
    uint64_t passes;
    float residual[N], first[N], second[N];
    bool adam = now->c.update.rule == TAMIS_UPDATE_ADAM;
    float *m = now->c.update.beta1 > 0.0 ? first : NULL, *v = adam ? second : NULL;
    snprintf(name, sizeof name, "update.%d.%u", (int)adam, self->id);
    scratch_path(name, path);
    if (now->file) {
        RANK_OK(self, tamis_reducer_save(from, path));
        RANK_OK(self, tamis_reducer_load(to, path));
        remove(path);
        return;
    }
    RANK_OK(self, tamis_reducer_control_bytes(from, &bytes));
    void *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(from, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(from, residual));
    RANK_OK(self, tamis_reducer_save_moments(from, m, v, &passes));
    RANK_OK(self, tamis_reducer_load_memory(to, control, bytes, residual));
    RANK_OK(self, tamis_reducer_load_moments(to, m, v, passes));
    free(control);
}

static void run_resumed(test_rank *self) {
    const resume_case *now = self->shared;
    tamis_reducer_config config = config_of(&now->c);
    tamis_reducer *whole = NULL, *resumed = NULL;
    uint64_t want = 0, have = 0, ignored = 0;
    RANK_OK(self, data_reducer(self->comm, N, &config, &whole));
    RANK_OK(self, data_reducer(self->comm, N, &config, &resumed));
    for (uint32_t number = 0; number < 5; number++)
        step_plainly(self, whole, &now->c, number, &ignored);
    hand_over(self, now, whole, resumed);
    for (uint32_t number = 5; number < STEPS; number++) {
        step_plainly(self, whole, &now->c, number, &want);
        step_plainly(self, resumed, &now->c, number, &have);
        RANK_CHECK(self, want == have, "step %u differs from the whole run", number);
    }
    tamis_reducer_destroy(resumed);
    tamis_reducer_destroy(whole);
}

static void test_a_run_resumed_is_bit_identical(void **state) {
    char path[SCRATCH_PATH];
    (void)state;
    scratch_path("first", path); /* before there are threads */
    for (int i = 0; i < 8; i++) {
        static resume_case now;
        now.c =
            usual(i / 2 % 2 ? TAMIS_UPDATE_MOMENTUM : TAMIS_UPDATE_ADAM, i / 4 ? 0.0 : 0.9, 0.5);
        now.c.bucket_length = 300;
        now.file = i % 2;
        test_context("rule %d, beta1 %g, %s", (int)now.c.update.rule, now.c.update.beta1,
                     now.file ? "file" : "memory");
        ranks_run(2, 0, run_resumed, &now);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adam_accumulates_the_step_of_each_rank),
        cmocka_unit_test(test_adam_without_a_first_moment_too),
        cmocka_unit_test(test_momentum_is_cleared_where_it_was_applied),
        cmocka_unit_test(test_momentum_without_a_moment_is_the_gradient),
        cmocka_unit_test(test_a_step_that_is_given_is_taken_as_it_is),
        cmocka_unit_test(test_a_second_moment_may_forget_everything),
        cmocka_unit_test(test_mass_is_conserved_exactly_where_nothing_is_rounded),
        cmocka_unit_test(test_schemes_with_exclusive_owners_and_lists_that_overlap),
        cmocka_unit_test(test_a_residual_decays_once_a_step_also_with_micro_batches),
        cmocka_unit_test(test_entries_that_are_not_finite_move_nothing),
        cmocka_unit_test(test_what_scaling_makes_infinite_is_never_applied),
        cmocka_unit_test(test_a_run_resumed_is_bit_identical),
    };
    return cmocka_run_group_tests_name("update", tests, NULL, NULL);
}
