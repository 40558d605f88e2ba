/* SPDX-License-Identifier: MIT
 *
 * Steps given as parameters before and after (tamis_step.before): beside a second reducer that is
 * given the difference itself, residual and result have the same bits, and parameters end as a
 * plain loop says. What is refused, and that it changes nothing.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 7, LONGEST = 400, MOST = SEGMENTS * LONGEST, STEPS = 8, RANKS = 3, BAD_STEP = 4 };

typedef struct moved_case {
    const char *scheme;
    tamis_update_rule rule;
    double decay, norm_matching;
    bool in_buckets, by_ready;
    tamis_worker worker;
    tamis_nonfinite nonfinite;
    uint64_t seed;
    tamis_segment segments[SEGMENTS];
    size_t n;
    uint64_t hashes[RANKS]; /* of all parameters that a rank has seen */
} moved_case;

/* What one rank keeps. Gradients of segments lie apart, in descending order. */
typedef struct moved_rank {
    float params[MOST], before[MOST], after[MOST], u[MOST], twin[MOST], want[MOST];
    float places[MOST + SEGMENTS];
    float rates[SEGMENTS];
    void *grads[SEGMENTS];
    const float *befores[SEGMENTS];
    tamis_reducer *moved, *plain;
} moved_rank;

/* -- a case ----------------------------------------------------------------------------------- */

static void cut(moved_case *c) {
    c->n = 0;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        c->segments[s] = (tamis_segment){.length = 1 + data_mix(c->seed * 31 + s) % LONGEST};
        c->n += c->segments[s].length;
    }
}

static tamis_reducer_config config_of(const moved_case *c, tamis_update *update) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    *update = (tamis_update)TAMIS_UPDATE_INIT;
    update->rule = c->rule;
    update->beta1 = c->rule == TAMIS_UPDATE_MOMENTUM ? 0.0 : -1.0;
    update->scale = 3.0;
    update->norm_matching = c->norm_matching;
    config.scheme = c->scheme;
    config.density = 0.07;
    config.bucket_length = c->in_buckets ? c->n / 3 : 0;
    config.worker = c->worker;
    config.nonfinite = c->nonfinite;
    config.residual_decay = c->decay;
    config.update = update;
    return config;
}

static tamis_status open_one(const moved_case *c, tamis_comm *comm, tamis_reducer **out) {
    tamis_update update;
    tamis_reducer_config config = config_of(c, &update);
    tamis_layout *layout = NULL;
    tamis_status status = tamis_layout_create(c->segments, SEGMENTS, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* -- a step ----------------------------------------------------------------------------------- */

static float rate_of(const moved_case *c, uint32_t step, uint32_t segment) {
    static const float rates[] = {1e-3f, 0.3f, 1.0f, 0.0f, 7e-5f};
    return rates[data_mix(c->seed + 977 * step + segment) % 5];
}

/* The optimizers of ranks differ. With rate 0 what they made is of no matter, even if it is NaN. */
static void move(const moved_case *c, uint32_t rank, uint32_t number, moved_rank *m) {
    bool bad = number == BAD_STEP && rank == 0;
    size_t at = 0;
    data_fill_real(rank, number, c->n, m->u);
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        float rate = m->rates[s] = rate_of(c, number, s);
        for (size_t end = at + c->segments[s].length; at < end; at++) {
            m->before[at] = m->params[at];
            m->after[at] = rate != 0.0f ? m->before[at] - rate * m->u[at] : NAN;
            if (bad && rate != 0.0f) {
                m->after[at] = NAN;
                bad = false;
            }
            m->u[at] = rate != 0.0f ? (m->before[at] - m->after[at]) * (1.0f / rate) : 0.0f;
        }
    }
}

/* Copy between `flat` and the places of the segments' gradients. */
static void spread(const moved_case *c, moved_rank *m, float *flat, bool out) {
    size_t at = 0, place = MOST + SEGMENTS;
    for (uint32_t s = 0; s < SEGMENTS; s++) {
        size_t length = c->segments[s].length;
        place -= length + 1;
        m->grads[s] = &m->places[place];
        m->befores[s] = &m->before[at];
        memcpy(out ? &m->places[place] : &flat[at], out ? &flat[at] : &m->places[place],
               length * sizeof flat[0]);
        at += length;
    }
}

static tamis_status begin(const moved_case *c, moved_rank *m, uint32_t number) {
    tamis_step step = TAMIS_STEP_INIT;
    tamis_status status = TAMIS_OK;
    step.grads = m->grads;
    step.before = m->befores;
    step.rates = m->rates;
    for (uint32_t i = 0; c->by_ready && i < SEGMENTS && status == TAMIS_OK; i++)
        status = tamis_reducer_ready(m->moved, (i * 3 + number) % SEGMENTS, &step);
    return c->by_ready ? status : tamis_reducer_start(m->moved, &step);
}

static uint32_t segment_of(const moved_case *c, size_t index) {
    uint32_t s = 0;
    for (size_t end = c->segments[0].length; index >= end; end += c->segments[s].length)
        s++;
    return s;
}

/* What the parameters must be, from the result of the other reducer. */
static void apply(const moved_case *c, const tamis_result *result, moved_rank *m) {
    memcpy(m->want, m->before, sizeof m->want);
    for (size_t j = 0; j < result->count; j++) {
        size_t i = result->indices[j];
        float moved = m->rates[segment_of(c, i)] * result->values[j];
        if (m->rates[segment_of(c, i)] != 0.0f)
            m->want[i] = m->before[i] - moved;
    }
}

static void check_residuals(test_rank *self, const moved_case *c, moved_rank *m, uint32_t number) {
    const float *moved, *plain;
    RANK_OK(self, tamis_reducer_residual(m->moved, &moved));
    RANK_OK(self, tamis_reducer_residual(m->plain, &plain));
    RANK_CHECK(self, memcmp(moved, plain, c->n * sizeof moved[0]) == 0,
               "step %u: the residuals differ", number);
}

static void check_params(test_rank *self, const moved_case *c, moved_rank *m, uint32_t number) {
    float out[MOST];
    spread(c, m, out, false);
    for (size_t i = 0; i < c->n; i++)
        RANK_CHECK(self, memcmp(&out[i], &m->want[i], sizeof out[i]) == 0,
                   "step %u: parameter %zu of segment %u is %.9g, not %.9g", number, i,
                   segment_of(c, i), (double)out[i], (double)m->want[i]);
    RANK_CHECK(self, memcmp(m->before, m->params, c->n * sizeof out[0]) == 0,
               "step %u: before has changed", number);
    memcpy(m->params, out, c->n * sizeof out[0]);
}

static void one_step(test_rank *self, moved_case *c, moved_rank *m, uint32_t number) {
    tamis_result result = TAMIS_RESULT_INIT;
    tamis_stats moved = TAMIS_STATS_INIT, plain = TAMIS_STATS_INIT;
    bool skips = number == BAD_STEP && c->nonfinite != TAMIS_NONFINITE_DROP;
    tamis_status want =
        skips && c->nonfinite == TAMIS_NONFINITE_ERROR ? TAMIS_E_NONFINITE : TAMIS_OK;
    move(c, self->id, number, m);
    spread(c, m, m->after, true);
    memcpy(m->twin, m->u, sizeof m->twin);
    tamis_step step = data_step(m->twin);
    RANK_OK(self, begin(c, m, number));
    RANK_STATUS(self, want, tamis_reducer_wait(m->moved));
    RANK_OK(self, tamis_reducer_start(m->plain, &step));
    RANK_STATUS(self, want, tamis_reducer_wait(m->plain));
    RANK_OK(self, tamis_reducer_stats(m->moved, &moved));
    RANK_OK(self, tamis_reducer_stats(m->plain, &plain));
    RANK_CHECK(self, moved.skipped == skips && plain.skipped == skips, "step %u: skipped %u, %u",
               number, (unsigned)moved.skipped, (unsigned)plain.skipped);
    RANK_CHECK(self, moved.nonfinite == plain.nonfinite && moved.nonfinite == (number == BAD_STEP),
               "step %u: bad entries: %u", number, (unsigned)moved.nonfinite);
    if (!skips)
        RANK_OK(self, tamis_reducer_result(m->plain, &result));
    RANK_CHECK(self, skips || result.count > 0, "step %u: nothing was applied", number);
    apply(c, &result, m);
    check_residuals(self, c, m, number);
    if (!self->failure[0])
        check_params(self, c, m, number);
    c->hashes[self->id] = data_hash(c->hashes[self->id], m->params, c->n * sizeof m->params[0]);
}

static void run(test_rank *self) {
    moved_case *c = self->shared;
    moved_rank *m = calloc(1, sizeof *m);
    c->hashes[self->id] = 0;
    data_fill_real(99, 0, c->n, m->params); /* the same on all ranks */
    for (size_t i = 0; i < c->n; i += 3)
        m->params[i] = -0.0f;
    RANK_OK(self, open_one(c, self->comm, &m->moved));
    RANK_OK(self, open_one(c, self->comm, &m->plain));
    for (uint32_t number = 0; number < STEPS && !self->failure[0]; number++)
        one_step(self, c, m, number);
    tamis_reducer_destroy(m->plain);
    tamis_reducer_destroy(m->moved);
    free(m);
}

static void check_case(moved_case *c, uint32_t nranks) {
    cut(c);
    test_context(
        "%s, rule %d, decay %g, norm_matching %g, buckets %d, ready %d, worker %d, bad ones %d, "
        "seed %u, P=%u",
        c->scheme, (int)c->rule, c->decay, c->norm_matching, c->in_buckets, c->by_ready,
        (int)c->worker, (int)c->nonfinite, (unsigned)c->seed, nranks);
    ranks_run(nranks, 0, run, c);
    for (uint32_t r = 1; r < nranks; r++)
        assert_true(c->hashes[r] == c->hashes[0]);
}

static const char *const schemes[] = {"tamis", "quantized", "topk", "all+global+exact+pairs",
                                      "micro"};

static void test_parameters_move_as_a_plain_loop_says(void **state) {
    static const double decays[] = {0.0, 1.0, 0.5};
    static moved_case c;
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed += test_stride(3)) {
        uint64_t random = data_mix(seed + 4242);
        c = (moved_case){
            .scheme = schemes[seed % 5],
            .rule = random % 2 ? TAMIS_UPDATE_STEP : TAMIS_UPDATE_MOMENTUM,
            .decay = decays[random / 2 % 3],
            .in_buckets = random / 6 % 2,
            .by_ready = random / 12 % 2,
            .worker = random / 24 % 2 ? TAMIS_WORKER_THREAD : TAMIS_WORKER_CALLER,
            .nonfinite = (tamis_nonfinite)(random / 48 % 3),
            .seed = random,
        };
        c.norm_matching = c.rule == TAMIS_UPDATE_STEP && random / 144 % 2 ? 2.0 : 0.0;
        check_case(&c, 1 + (uint32_t)(seed / 5 % RANKS));
    }
}

/* -- what is refused -------------------------------------------------------------------------- */

enum { SOLO = 2, SOLO_LENGTH = 40 };

typedef struct solo {
    tamis_comm *comm;
    tamis_reducer *reducer;
    tamis_update update;
    tamis_reducer_config config;
    float grad[SOLO][SOLO_LENGTH], before[SOLO][SOLO_LENGTH], rates[SOLO];
    void *grads[SOLO];
    const float *befores[SOLO];
    tamis_step step;
} solo;

static void solo_make(solo *s) {
    tamis_segment segments[SOLO] = {{"one", SOLO_LENGTH}, {"two", SOLO_LENGTH}};
    tamis_layout *layout;
    assert_int_equal(tamis_layout_create(segments, SOLO, &layout), TAMIS_OK);
    assert_int_equal(tamis_reducer_create(s->comm, layout, &s->config, &s->reducer), TAMIS_OK);
    tamis_layout_destroy(layout);
}

static void solo_open(solo *s) {
    *s = (solo){.update = TAMIS_UPDATE_INIT, .config = TAMIS_REDUCER_CONFIG_INIT};
    assert_int_equal(tamis_comm_create_local(1, NULL, &s->comm), TAMIS_OK);
    s->update.rule = TAMIS_UPDATE_STEP;
    s->config.update = &s->update;
    s->config.density = 0.5;
    s->step = (tamis_step)TAMIS_STEP_INIT;
    for (uint32_t i = 0; i < SOLO; i++) {
        for (size_t j = 0; j < SOLO_LENGTH; j++) {
            s->before[i][j] = 1.0f;
            s->grad[i][j] = 0.5f;
        }
        s->grads[i] = s->grad[i];
        s->befores[i] = s->before[i];
        s->rates[i] = 0.5f;
    }
    s->step.grads = s->grads;
    s->step.before = s->befores;
    s->step.rates = s->rates;
}

static void solo_close(solo *s) {
    tamis_reducer_destroy(s->reducer);
    tamis_comm_destroy(s->comm);
}

static void expect(tamis_status got, tamis_status want, const char *words) {
    if (got != want || !has_word(tamis_last_error(), words))
        fail_msg("%s \"%s\" where \"%s\" was expected", tamis_status_name(got), tamis_last_error(),
                 words);
}

/* Neither start nor ready, which then have had no effect. */
static void refuses(solo *s, const tamis_step *step, tamis_status want, const char *words) {
    float grad[SOLO][SOLO_LENGTH];
    const float *residual;
    memcpy(grad, s->grad, sizeof grad);
    expect(tamis_reducer_start(s->reducer, step), want, words);
    expect(tamis_reducer_ready(s->reducer, 1, step), want, words);
    assert_memory_equal(grad, s->grad, sizeof grad);
    assert_int_equal(tamis_reducer_wait(s->reducer), TAMIS_E_STATE);
    assert_int_equal(tamis_reducer_residual(s->reducer, &residual), TAMIS_OK);
    for (size_t i = 0; i < SOLO * SOLO_LENGTH; i++)
        assert_true(residual[i] == 0.0f);
}

static void refuses_rate(solo *s, float rate) {
    s->rates[1] = rate;
    refuses(s, &s->step, TAMIS_E_ARGUMENT, "the rate of two");
    s->rates[1] = 0.5f;
}

static void test_arguments_that_do_not_fit_are_refused(void **state) {
    static solo s;
    tamis_step step;
    (void)state;
    solo_open(&s);
    solo_make(&s);
    step = s.step;
    step.rates = NULL;
    refuses(&s, &step, TAMIS_E_ARGUMENT, "rates is NULL");
    step = s.step;
    step.before = NULL;
    refuses(&s, &step, TAMIS_E_ARGUMENT, "before is NULL");
    step = s.step;
    step.grads = NULL;
    step.grad = s.grad;
    refuses(&s, &step, TAMIS_E_ARGUMENT, "needs grads");
    step = s.step;
    step.scale = 2.0f;
    refuses(&s, &step, TAMIS_E_ARGUMENT, "scale must be 1");
    s.befores[1] = NULL;
    refuses(&s, &s.step, TAMIS_E_ARGUMENT, "before of two is NULL");
    s.befores[1] = (const float *)(const void *)((const char *)s.before[1] + 1);
    refuses(&s, &s.step, TAMIS_E_ARGUMENT, "before of two is not 4-byte aligned");
    s.befores[1] = s.grad[1] + SOLO_LENGTH - 1;
    refuses(&s, &s.step, TAMIS_E_ARGUMENT, "before and the gradient of two overlap");
    s.befores[1] = s.grad[1];
    refuses(&s, &s.step, TAMIS_E_ARGUMENT, "before and the gradient of two overlap");
    s.befores[1] = s.before[1];
    refuses_rate(&s, -0.5f);
    refuses_rate(&s, NAN);
    refuses_rate(&s, INFINITY);
    refuses_rate(&s, 1e-39f); /* its inverse is not finite */
    solo_close(&s);
}

/* With what is lawful after a refusal, the step is as if nothing had been. */
static void test_a_step_goes_on_after_a_refusal(void **state) {
    static solo s;
    tamis_step other;
    (void)state;
    solo_open(&s);
    s.config.bucket_length = SOLO_LENGTH;
    solo_make(&s);
    assert_int_equal(tamis_reducer_ready(s.reducer, 0, &s.step), TAMIS_OK);
    other = s.step;
    other.before = NULL;
    other.rates = NULL;
    expect(tamis_reducer_ready(s.reducer, 1, &other), TAMIS_E_ARGUMENT, "must be the same");
    expect(tamis_reducer_start(s.reducer, &other), TAMIS_E_ARGUMENT, "must be the same");
    other = s.step;
    other.rates = &s.rates[1];
    expect(tamis_reducer_ready(s.reducer, 1, &other), TAMIS_E_ARGUMENT, "must be the same");
    s.rates[1] = -1.0f;
    expect(tamis_reducer_start(s.reducer, &s.step), TAMIS_E_ARGUMENT, "the rate of two");
    s.rates[1] = 0.25f;
    assert_int_equal(tamis_reducer_start(s.reducer, &s.step), TAMIS_OK);
    assert_int_equal(tamis_reducer_wait(s.reducer), TAMIS_OK);
    uint32_t moved[SOLO] = {0};
    for (uint32_t i = 0; i < SOLO; i++) {
        for (size_t j = 0; j < SOLO_LENGTH; j++)
            moved[i] += s.grad[i][j] < 1.0f;
    }
    assert_true(moved[0] + moved[1] == SOLO * SOLO_LENGTH / 2);
    solo_close(&s);
}

static void refuses_with(void (*set)(solo *s), const char *words) {
    static solo s;
    solo_open(&s);
    set(&s);
    solo_make(&s);
    refuses(&s, &s.step, TAMIS_E_UNSUPPORTED, words);
    solo_close(&s);
}

static void set_no_update(solo *s) {
    s->config.update = NULL;
}

static void set_adam(solo *s) {
    s->update.rule = TAMIS_UPDATE_ADAM;
    s->update.beta1 = 0.0;
}

static void set_momentum(solo *s) {
    s->update.rule = TAMIS_UPDATE_MOMENTUM;
    s->update.beta1 = 0.9;
}

static void set_sparse(solo *s) {
    s->config.output = TAMIS_OUTPUT_SPARSE;
}

static void set_halves(solo *s) {
    s->config.grad_dtype = TAMIS_DTYPE_BFLOAT16;
}

static void set_dense(solo *s) {
    set_no_update(s);
    s->config.scheme = "dense";
    s->config.density = 1.0;
}

static void test_reducers_that_take_no_such_step_say_so(void **state) {
    (void)state;
    refuses_with(set_no_update, "a reducer without update, or with moments");
    refuses_with(set_adam, "a reducer without update, or with moments");
    refuses_with(set_momentum, "a reducer without update, or with moments");
    refuses_with(set_sparse, "output sparse");
    refuses_with(set_halves, "16-bit gradients");
}

static void test_micro_batches_are_refused(void **state) {
    static solo s;
    (void)state;
    solo_open(&s);
    solo_make(&s);
    expect(tamis_reducer_accumulate(s.reducer, &s.step), TAMIS_E_UNSUPPORTED, "a micro-batch");
    solo_close(&s);
    solo_open(&s);
    set_no_update(&s);
    solo_make(&s);
    expect(tamis_reducer_accumulate(s.reducer, &s.step), TAMIS_E_UNSUPPORTED, "step.before");
    solo_close(&s);
    solo_open(&s);
    set_dense(&s);
    solo_make(&s);
    expect(tamis_reducer_start(s.reducer, &s.step), TAMIS_E_UNSUPPORTED, "step.before");
    solo_close(&s);
}

/* A program that was built before there were such steps. */
static void test_a_step_of_the_first_version_is_taken(void **state) {
    static solo s;
    (void)state;
    solo_open(&s);
    solo_make(&s);
    s.step.size = offsetof(tamis_step, before);
    assert_int_equal(tamis_reducer_start(s.reducer, &s.step), TAMIS_OK);
    assert_int_equal(tamis_reducer_wait(s.reducer), TAMIS_OK);
    for (size_t j = 0; j < SOLO_LENGTH; j++) /* gradients, all the same */
        assert_true(s.grad[0][j] == 0.0f || s.grad[0][j] > 0.4f);
    s.step.size--;
    expect(tamis_reducer_start(s.reducer, &s.step), TAMIS_E_ARGUMENT, "tamis_step.size");
    solo_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters_move_as_a_plain_loop_says),
        cmocka_unit_test(test_arguments_that_do_not_fit_are_refused),
        cmocka_unit_test(test_a_step_goes_on_after_a_refusal),
        cmocka_unit_test(test_reducers_that_take_no_such_step_say_so),
        cmocka_unit_test(test_micro_batches_are_refused),
        cmocka_unit_test(test_a_step_of_the_first_version_is_taken),
    };
    return cmocka_run_group_tests_name("moved", tests, NULL, NULL);
}
