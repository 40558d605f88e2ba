/* SPDX-License-Identifier: MIT
 *
 * Segments with rows of which a rank lists only so many in a step (config.rows_capacity): a model
 * of all ranks says which rows leave, what they sum to and what waits, bit for bit.
 */
#include "tests/support/data.h"
#include "tests/support/loopback.h"
#include "tests/support/rank_tree.h"
#include "tests/support/ranks.h"
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

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* An ordinary segment, 50 rows of 5, another. */
enum { HEAD = 60, ROWS = 50, LENGTH = 5, WORDS = ROWS * LENGTH, N = HEAD + WORDS + 30, MOST = 5 };

/* Which rows a rank touches. */
typedef enum touch { OTHERS, SAME, NONE, ALL, ONE_ALL, SOME, TOUCHES } touch;

static bool touches(touch which, uint32_t rank, uint32_t nranks, uint32_t step, size_t row) {
    switch (which) {
    case OTHERS:
        return row % (2 * nranks) == 2 * ((rank + step) % nranks);
    case SAME:
        return row % 7 == step % 7;
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

typedef struct bound_case {
    const char *scheme;
    touch which; /* TOUCHES: a different one in each step */
    uint32_t capacity, steps;
    tamis_op op;
    tamis_output output;
    tamis_index_codec index_codec;
} bound_case;

static void fill(const bound_case *c, uint32_t rank, uint32_t nranks, uint32_t step, float *grad) {
    touch which = c->which == TOUCHES ? (touch)(step % TOUCHES) : c->which;
    data_fill_real(rank, step, N, grad);
    for (size_t i = 0; i < WORDS; i++) {
        if (step >= c->steps || !touches(which, rank, nranks, step, i / LENGTH))
            grad[HEAD + i] = 0.0f;
    }
}

/* -- the model -------------------------------------------------------------------------------- */

typedef struct model {
    uint32_t nranks, capacity;
    float held[MOST][WORDS]; /* the residuals of all ranks */
    bool in_union[ROWS];
    float sums[WORDS];
    uint64_t deferred;
} model;

static void model_add(model *m, const bound_case *c, uint32_t step) {
    float grad[N];
    for (uint32_t r = 0; r < m->nranks; r++) {
        fill(c, r, m->nranks, step, grad);
        for (size_t i = 0; i < WORDS; i++)
            m->held[r][i] += grad[HEAD + i];
    }
}

static bool model_touched(const model *m, uint32_t rank, size_t row) {
    bool any = false;
    for (size_t j = 0; j < LENGTH; j++)
        any = any || m->held[rank][row * LENGTH + j] != 0.0f;
    return any;
}

/* The rows that leave, what they sum to, and that they have left. */
static void model_send(model *m, uint32_t step) {
    memset(m->in_union, 0, sizeof m->in_union);
    m->deferred = 0;
    for (uint32_t r = 0; r < m->nranks; r++) {
        uint32_t listed = 0;
        for (size_t i = 0; i < ROWS; i++) {
            size_t row = (i + (size_t)step * m->capacity) % ROWS;
            if (!model_touched(m, r, row))
                continue;
            if (listed < m->capacity)
                m->in_union[row] = true;
            else
                m->deferred += LENGTH;
            listed++;
        }
    }
    for (size_t i = 0; i < WORDS; i++) {
        m->sums[i] = m->in_union[i / LENGTH] ? rank_tree_sum(&m->held[0][i], WORDS, m->nranks) : 0;
        for (uint32_t r = 0; r < m->nranks && m->in_union[i / LENGTH]; r++)
            m->held[r][i] = 0.0f;
    }
}

static model *model_new(const bound_case *c, uint32_t nranks) {
    model *m = calloc(1, sizeof *m);
    m->nranks = nranks;
    m->capacity = c->capacity;
    return m;
}

/* -- the library ------------------------------------------------------------------------------ */

static tamis_layout *make_layout(void) {
    static const tamis_segment segments[] = {{"head", HEAD}, {"words", WORDS}, {"tail", 30}};
    tamis_layout *layout = NULL;
    if (tamis_layout_create(segments, 3, &layout) != TAMIS_OK ||
        tamis_layout_set_rows(layout, 1, LENGTH) != TAMIS_OK)
        abort();
    return layout;
}

static tamis_reducer_config config_of(const bound_case *c) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = c->scheme;
    config.density = 0.1;
    config.rows_capacity = c->capacity;
    config.residual_decay = strcmp(c->scheme, "dense") == 0 ? 1.0 : 0.5; /* not of rows */
    config.nonfinite = TAMIS_NONFINITE_SKIP;
    config.op = c->op;
    config.output = c->output;
    config.index_codec = c->index_codec;
    return config;
}

static tamis_status make(test_rank *self, const bound_case *c, tamis_reducer **out) {
    tamis_reducer_config config = config_of(c);
    tamis_layout *layout = make_layout();
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_status one_step(tamis_reducer *reducer, float *grad) {
    const tamis_step step = data_step(grad);
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

/* The result of the rows, from the gradient or the sparse view. @return entries of rows in it */
static size_t take_result(tamis_reducer *reducer, const bound_case *c, const float *grad,
                          float *words) {
    tamis_result result = TAMIS_RESULT_INIT;
    size_t count = 0;
    memcpy(words, grad + HEAD, WORDS * sizeof *words);
    if (tamis_reducer_result(reducer, &result) != TAMIS_OK || !result.indices)
        return 0;
    if (c->output == TAMIS_OUTPUT_SPARSE)
        memset(words, 0, WORDS * sizeof *words);
    for (size_t i = 0; i < result.count; i++) {
        uint32_t at = result.indices[i];
        if (at < HEAD || at >= HEAD + WORDS)
            continue;
        words[at - HEAD] = result.values[i];
        count++;
    }
    return count;
}

static void check_residual(test_rank *self, const model *m, tamis_reducer *reducer, uint32_t step) {
    const float *residual = NULL;
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    for (size_t i = 0; i < WORDS; i++)
        RANK_CHECK(self, memcmp(&residual[HEAD + i], &m->held[self->id][i], 4) == 0,
                   "step %u: %.9g waits at %zu, not %.9g", step, (double)residual[HEAD + i], i,
                   (double)m->held[self->id][i]);
}

static void check_step(test_rank *self, const bound_case *c, const model *m, tamis_reducer *reducer,
                       uint32_t step, const float *grad) {
    tamis_stats stats = TAMIS_STATS_INIT;
    float words[WORDS];
    size_t count = take_result(reducer, c, grad, words), expected = 0;
    for (size_t row = 0; row < ROWS; row++)
        expected += m->in_union[row] ? LENGTH : 0;
    RANK_CHECK(self, count == expected, "step %u: %zu entries, not %zu", step, count, expected);
    for (size_t i = 0; i < WORDS; i++) {
        float due = c->op == TAMIS_OP_MEAN ? m->sums[i] / (float)m->nranks : m->sums[i];
        RANK_CHECK(self, memcmp(&words[i], &due, sizeof due) == 0, "step %u: %.9g at %zu, not %.9g",
                   step, (double)words[i], i, (double)due);
    }
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_CHECK(self, stats.deferred == m->deferred, "step %u: %llu deferred, not %llu", step,
               (unsigned long long)stats.deferred, (unsigned long long)m->deferred);
    check_residual(self, m, reducer, step);
}

/* -- steps ------------------------------------------------------------------------------------ */

/* After the last gradient each row leaves before lists begin there again. */
static void run_bound(test_rank *self) {
    const bound_case *c = self->shared;
    uint32_t turns = (ROWS + c->capacity - 1) / c->capacity, steps = c->steps + turns;
    model *m = model_new(c, self->nranks);
    tamis_reducer *reducer = NULL;
    float grad[N];
    RANK_OK(self, make(self, c, &reducer));
    for (uint32_t step = 0; step < steps && !self->failure[0]; step++) {
        fill(c, self->id, self->nranks, step, grad);
        model_add(m, c, step);
        model_send(m, step);
        RANK_OK(self, one_step(reducer, grad));
        check_step(self, c, m, reducer, step, grad);
    }
    for (size_t i = 0; i < WORDS; i++)
        RANK_CHECK(self, m->held[self->id][i] == 0.0f, "entry %zu has not left", i);
    tamis_reducer_destroy(reducer);
    free(m);
}

static const uint32_t capacities[] = {1, 3, 7, 49, 50, 1000};

static void test_rows_beyond_the_bound_wait_their_turn(void **state) {
    static const char *const schemes[] = {"tamis", "micro", "all+global+exact+pairs", "quantized"};
    (void)state;
    for (uint32_t nranks = 1; nranks <= MOST; nranks++)
        for (size_t i = 0; i < COUNT(capacities); i++)
            for (touch t = 0; t <= TOUCHES; t++) {
                if (!test_drawn(5))
                    continue;
                bound_case c = {
                    .scheme = schemes[(i + t) % 4], .which = t, .capacity = capacities[i]};
                c.steps = 12;
                c.op = (tamis_op)(t % 2);
                c.output = t % 3 ? TAMIS_OUTPUT_DENSE : TAMIS_OUTPUT_SPARSE;
                c.index_codec = (tamis_index_codec)((i + nranks) % TAMIS_INDEX_END);
                if (strcmp(c.scheme, "quantized") == 0)
                    c.output = TAMIS_OUTPUT_DENSE;
                test_context("%s, P=%u, touch %d, capacity %u, index codec %d", c.scheme, nranks,
                             (int)t, c.capacity, (int)c.index_codec);
                ranks_run(nranks, 0, run_bound, &c);
            }
}

static void test_a_bound_gives_the_same_bits_over_messages(void **state) {
    tamis_comm *comms[3];
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        bound_case c = {
            .scheme = "tamis", .which = TOUCHES, .capacity = capacities[i], .steps = 12};
        loopback *m = loopback_create(3, 0);
        loopback_comms(m, comms);
        test_context("messages, capacity %u", c.capacity);
        ranks_run_on(comms, 3, run_bound, &c);
        for (int r = 0; r < 3; r++)
            tamis_comm_destroy(comms[r]);
        loopback_destroy(m);
    }
}

/* -- a bound that is not reached -------------------------------------------------------------- */

static void run_unreached(test_rank *self) {
    const bound_case *c = self->shared;
    bound_case unbound = *c;
    tamis_reducer *with = NULL, *without = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    float grad[N], other[N];
    unbound.capacity = 0;
    RANK_OK(self, make(self, c, &with));
    RANK_OK(self, make(self, &unbound, &without));
    for (uint32_t step = 0; step < c->steps; step++) {
        fill(c, self->id, self->nranks, step, grad);
        memcpy(other, grad, sizeof grad);
        RANK_OK(self, one_step(with, grad));
        RANK_OK(self, one_step(without, other));
        RANK_CHECK(self, memcmp(grad, other, sizeof grad) == 0, "step %u differs", step);
        RANK_OK(self, tamis_reducer_stats(with, &stats));
        RANK_CHECK(self, stats.deferred == 0, "step %u: deferred", step);
    }
    tamis_reducer_destroy(with);
    tamis_reducer_destroy(without);
}

static void test_a_bound_that_is_not_reached_changes_nothing(void **state) {
    static const touch few[] = {OTHERS, SAME, NONE};
    (void)state;
    for (size_t i = 0; i < COUNT(few); i++) {
        bound_case c = {.scheme = "tamis", .which = few[i], .capacity = 25, .steps = 6};
        test_context("touch %d", (int)c.which);
        ranks_run(3, 0, run_unreached, &c);
    }
}

/* -- between steps ---------------------------------------------------------------------------- */

/* Step 2 has two micro-batches before it; in step 4 rank 0 finds NaN, and all ranks skip. After
 * step 5 another reducer goes on. */
static void run_life(test_rank *self) {
    const bound_case *c = self->shared;
    model *m = model_new(c, self->nranks);
    tamis_reducer *reducer = NULL, *next = NULL;
    size_t bytes;
    float grad[N], residual[N];
    RANK_OK(self, make(self, c, &reducer));
    RANK_OK(self, tamis_reducer_control_bytes(reducer, &bytes));
    void *control = malloc(bytes);
    for (uint32_t step = 0; step < c->steps + 20 && !self->failure[0]; step++) {
        const tamis_step early = data_step(grad);
        for (uint32_t i = 0; i < 2 && step == 2; i++) {
            fill(c, self->id, self->nranks, 100 * i, grad);
            model_add(m, c, 100 * i);
            RANK_OK(self, tamis_reducer_accumulate(reducer, &early));
        }
        fill(c, self->id, self->nranks, step, grad);
        model_add(m, c, step);
        if (step == 4 && self->id == 0)
            grad[0] = NAN;
        RANK_OK(self, one_step(reducer, grad));
        if (step == 4) {
            check_residual(self, m, reducer, step);
            continue;
        }
        model_send(m, step);
        check_step(self, c, m, reducer, step, grad);
        if (step != 5)
            continue;
        RANK_OK(self, tamis_reducer_save_control(reducer, control, bytes));
        RANK_OK(self, tamis_reducer_save_residual(reducer, residual));
        RANK_OK(self, make(self, c, &next));
        RANK_OK(self, tamis_reducer_load_memory(next, control, bytes, residual));
        tamis_reducer_destroy(reducer);
        reducer = next;
    }
    free(control);
    tamis_reducer_destroy(reducer);
    free(m);
}

static void test_rows_that_wait_outlive_steps_and_reducers(void **state) {
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        bound_case c = {.scheme = "tamis", .which = ALL, .capacity = capacities[i], .steps = 9};
        test_context("life, capacity %u", c.capacity);
        ranks_run(3, 0, run_life, &c);
    }
}

/* -- refusals --------------------------------------------------------------------------------- */

static void run_refused(test_rank *self) {
    bound_case c = {.scheme = "dense", .which = ALL, .capacity = 3, .steps = 1};
    tamis_reducer *reducer = NULL;
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, make(self, &c, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "rows_capacity"), "%s", tamis_last_error());
    c.scheme = "tamis";
    c.capacity = 3 + self->id % 2;
    RANK_STATUS(self, TAMIS_E_MISMATCH, make(self, &c, &reducer));
    RANK_CHECK(self, has_word(tamis_last_error(), "rows_capacity"), "%s", tamis_last_error());
}

static void test_a_bound_is_the_same_everywhere_and_needs_a_residual(void **state) {
    (void)state;
    test_context("refusals");
    ranks_run(3, 0, run_refused, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_beyond_the_bound_wait_their_turn),
        cmocka_unit_test(test_a_bound_gives_the_same_bits_over_messages),
        cmocka_unit_test(test_a_bound_that_is_not_reached_changes_nothing),
        cmocka_unit_test(test_rows_that_wait_outlive_steps_and_reducers),
        cmocka_unit_test(test_a_bound_is_the_same_everywhere_and_needs_a_residual),
    };
    return cmocka_run_group_tests_name("rows_capacity", tests, NULL, NULL);
}
