/* SPDX-License-Identifier: MIT
 *
 * Dense sums: the collectives of a step depend on the layout alone, so each rank may choose the
 * form of its gradient; ranks that sum different things get an error before anything is summed; and
 * a bad entry is counted once.
 */
#include "collectives/transport/comm.h"
#include "lib/base/base.h"
#include "lib/base/half.h"
#include "tests/support/gather.h"
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

enum { SHORT = 5, LONG = 7, SEGMENTS_MOST = 8, RANKS = 3 };

/* In the longer layout one segment exceeds what a reducer moves at a time, as do two together. */
static const uint64_t short_lengths[SHORT] = {3, 5, 700, 1, 64};
static const uint64_t long_lengths[LONG] = {100, 7, (1 << 20) + 5, 33, 600000, 600000, 11};

typedef struct form_case {
    const char *scheme;
    tamis_dtype type;
    bool is_long, apart; /* apart: segments do not follow each other in memory */
    uint32_t nranks;
} form_case;

typedef struct vector {
    const uint64_t *lengths;
    uint32_t nsegments;
    size_t n, bytes;
    char *memory;
    void *grads[SEGMENTS_MOST];
} vector;

static tamis_status make(tamis_comm *comm, const form_case *c, tamis_nonfinite policy,
                         tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_segment segments[SEGMENTS_MOST];
    tamis_layout *layout;
    uint32_t count = c->is_long ? LONG : SHORT;
    for (uint32_t s = 0; s < count; s++)
        segments[s] = (tamis_segment){NULL, (c->is_long ? long_lengths : short_lengths)[s]};
    config.scheme = c->scheme;
    config.grad_dtype = c->type;
    config.nonfinite = policy;
    config.op = TAMIS_OP_SUM;
    config.link_latency_us = 1e6; /* auto: everything is dense */
    config.link_gbit = 1.0;
    TAM_TRY(tamis_layout_create(segments, count, &layout));
    tamis_status status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* With a gap of one element before each segment, or with no gaps. */
static void open_vector(vector *v, const form_case *c) {
    size_t at = 0;
    *v = (vector){.lengths = c->is_long ? long_lengths : short_lengths,
                  .nsegments = c->is_long ? LONG : SHORT,
                  .bytes = tam_type_bytes(c->type)};
    for (uint32_t s = 0; s < v->nsegments; s++)
        v->n += v->lengths[s];
    v->memory = calloc(v->n + SEGMENTS_MOST, v->bytes);
    for (uint32_t s = 0; s < v->nsegments; s++) {
        at += c->apart;
        v->grads[s] = v->memory + at * v->bytes;
        at += v->lengths[s];
    }
}

static float whole(uint32_t rank, size_t i) {
    return (float)((i * 7 + rank * 13) % 101);
}

static void put(const vector *v, tamis_dtype type, size_t element, float value) {
    uint32_t s = 0;
    for (; element >= v->lengths[s]; s++)
        element -= v->lengths[s];
    tam_narrow(&value, 1, type, (char *)v->grads[s] + element * v->bytes);
}

static float get(const vector *v, tamis_dtype type, size_t element) {
    float value = 0.0f;
    uint32_t s = 0;
    for (; element >= v->lengths[s]; s++)
        element -= v->lengths[s];
    tam_widen(type, (char *)v->grads[s] + element * v->bytes, 1, &value);
    return value;
}

/* -- forms ------------------------------------------------------------------------------------ */

/* Even ranks pass the gradient whole, odd ones by segment. */
static void sum_forms(test_rank *self) {
    form_case c = *(const form_case *)self->shared;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_reducer *r = NULL;
    vector v;
    c.apart = self->id % 2;
    open_vector(&v, &c);
    for (size_t i = 0; i < v.n; i++)
        put(&v, c.type, i, whole(self->id, i));
    step.grad = c.apart ? NULL : v.memory;
    step.grads = c.apart ? v.grads : NULL;
    RANK_OK(self, make(self->comm, &c, TAMIS_NONFINITE_ERROR, &r));
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, tamis_reducer_wait(r));
    for (size_t i = 0; i < v.n; i++) {
        float sum = 0.0f, got = get(&v, c.type, i);
        for (uint32_t rank = 0; rank < self->nranks; rank++)
            sum += whole(rank, i);
        RANK_CHECK(self,
                   got == (c.type == TAMIS_DTYPE_BFLOAT16
                               ? tam_bfloat16_widen(tam_bfloat16_narrow(sum))
                               : sum),
                   "element %zu of %zu is %g, not %g", i, v.n, (double)got, (double)sum);
    }
    tamis_reducer_destroy(r);
    free(v.memory);
}

static void run_over_callback(uint32_t nranks, rank_body body, void *shared) {
    tamis_comm *comms[RANKS_MOST];
    gather *records = gather_create(nranks, 20000, NULL, NULL);
    gather_comms(records, comms);
    ranks_run_on(comms, nranks, body, shared);
    for (uint32_t r = 0; r < nranks; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(records);
}

static void test_ranks_may_give_gradients_of_different_forms(void **state) {
    static const char *const schemes[] = {"dense", "auto"};
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        form_case c = {
            .scheme = schemes[i % 2], .is_long = i / 2 % 2, .type = (tamis_dtype)(i / 4)};
        test_context("%s, type %d, %s layout", c.scheme, (int)c.type, c.is_long ? "long" : "short");
        ranks_run(RANKS, 0, sum_forms, &c);
        if (!c.is_long)
            run_over_callback(RANKS, sum_forms, &c);
    }
}

/* -- ranks that sum different things ---------------------------------------------------------- */

typedef struct mixed_case {
    const char *first, *second; /* schemes of two reducers, in the order of their creation */
    const char *words;
} mixed_case;

/* Rank 1 begins with the second. */
static void mix_up(test_rank *self) {
    const mixed_case *m = self->shared;
    form_case cases[2] = {{.scheme = m->first}, {.scheme = m->second}};
    tamis_reducer *pair[2] = {NULL, NULL};
    tamis_step step = TAMIS_STEP_INIT;
    vector v;
    open_vector(&v, &cases[0]);
    step.grad = v.memory;
    for (int i = 0; i < 2; i++)
        RANK_OK(self, make(self->comm, &cases[i], TAMIS_NONFINITE_ERROR, &pair[i]));
    RANK_OK(self, tamis_reducer_start(pair[self->id == 1], &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(pair[self->id == 1]));
    RANK_CHECK(self, has_word(tamis_last_error(), m->words), "it says: %s", tamis_last_error());
    for (size_t i = 0; i < v.n; i++)
        RANK_CHECK(self, get(&v, TAMIS_DTYPE_FLOAT32, i) == 0.0f, "element %zu was summed", i);
    tamis_reducer_destroy(pair[0]);
    tamis_reducer_destroy(pair[1]);
    free(v.memory);
}

static void test_reducers_in_another_order_are_found(void **state) {
    static mixed_case cases[] = {{"dense", "dense", "reducer"},
                                 {"auto", "auto", "reducer"},
                                 {"tamis", "tamis", "configuration"},
                                 {"threshold", "threshold", "configuration"},
                                 {"topk", "topk", "configuration"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_context("two of %s, rank 1 begins with the second", cases[i].first);
        ranks_run(RANKS, 0, mix_up, &cases[i]);
        run_over_callback(RANKS, mix_up, &cases[i]);
    }
}

/* Rank 1 is one step ahead. */
static void be_at_another_step(test_rank *self) {
    form_case c = {.scheme = "dense"};
    tamis_reducer *r = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    unsigned char control[2][4096];
    size_t bytes = 0;
    vector v;
    open_vector(&v, &c);
    step.grad = v.memory;
    RANK_OK(self, make(self->comm, &c, TAMIS_NONFINITE_ERROR, &r));
    RANK_OK(self, tamis_reducer_control_bytes(r, &bytes));
    RANK_CHECK(self, bytes <= sizeof control[0], "%zu bytes", bytes);
    for (int i = 0; i < 2; i++) {
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_OK(self, tamis_reducer_wait(r));
        RANK_OK(self, tamis_reducer_save_control(r, control[i], bytes));
    }
    RANK_OK(self, tamis_reducer_load_memory(r, control[self->id == 1], bytes, NULL));
    RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(r));
    RANK_CHECK(self,
               has_word(tamis_last_error(), "step 1") && has_word(tamis_last_error(), "step 2"),
               "it says: %s", tamis_last_error());
    tamis_reducer_destroy(r);
    free(v.memory);
}

static void test_ranks_at_different_steps_are_found(void **state) {
    (void)state;
    test_context("rank 1 is a step further");
    ranks_run(RANKS, 0, be_at_another_step, NULL);
    run_over_callback(RANKS, be_at_another_step, NULL);
}

typedef enum operation { SUM, GATHER } operation;

/* Below the reducers: rank 1 has twice as much as the others. */
static void disagree(test_rank *self) {
    const operation what = *(const operation *)self->shared;
    const tam_transport *t = self->comm->transport;
    void *arg = self->comm->self;
    tam_call call = {.deadline_ns = tam_clock_ns() + self->comm->timeout_ns,
                     .poison = &self->comm->poison};
    size_t count = self->id == 1 ? 20 : 10, capacity = RANKS * 20 * sizeof(float);
    float *values = calloc(count, sizeof *values);
    float *recv = malloc(capacity);
    tamis_status status = what == SUM
                              ? t->allreduce_sum(arg, values, count, &call)
                              : t->allgather(arg, values, count * sizeof *values, recv, &call);
    free(values);
    free(recv);
    RANK_CHECK(self, status == TAMIS_E_PROTOCOL, "%s", tamis_status_name(status));
    RANK_CHECK(self, has_word(tamis_last_error(), "rank 1"), "it says: %s", tamis_last_error());
}

static void test_threads_that_give_different_counts_are_found(void **state) {
    (void)state;
    for (operation what = SUM; what <= GATHER; what++) {
        test_context("operation %d", (int)what);
        ranks_run(RANKS, 0, disagree, &what);
    }
}

/* -- bad entries ------------------------------------------------------------------------------ */

enum { STEPS_OF_BAD = 2 };

typedef struct bad_case {
    form_case form;
    tamis_nonfinite policy;
    bool early; /* in a micro-batch; auto only */
} bad_case;

/* One entry of one rank is not a number. */
static void step_on_bad(test_rank *self) {
    const bad_case *b = self->shared;
    tamis_reducer *r = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    bool error = b->policy == TAMIS_NONFINITE_ERROR;
    vector v;
    open_vector(&v, &b->form);
    RANK_OK(self, make(self->comm, &b->form, b->policy, &r));
    for (int number = 0; number < STEPS_OF_BAD; number++) {
        tamis_step step = TAMIS_STEP_INIT;
        step.grad = b->form.apart ? NULL : v.memory;
        step.grads = b->form.apart ? v.grads : NULL;
        bool bad = number == 0, drops = b->policy == TAMIS_NONFINITE_DROP;
        for (size_t i = 0; i < v.n; i++)
            put(&v, b->form.type, i, bad && self->id == 1 && i == 40 ? NAN : 1.0f);
        if (b->early)
            RANK_OK(self, tamis_reducer_accumulate(r, &step));
        for (size_t i = 0; i < v.n && b->early; i++)
            put(&v, b->form.type, i, 0.0f);
        RANK_OK(self, tamis_reducer_start(r, &step));
        RANK_STATUS(self, bad && error ? TAMIS_E_NONFINITE : TAMIS_OK, tamis_reducer_wait(r));
        RANK_OK(self, tamis_reducer_stats(r, &stats));
        RANK_CHECK(self, stats.nonfinite == bad && stats.skipped == (bad && !drops),
                   "step %d: %llu bad entries, skipped %llu", number,
                   (unsigned long long)stats.nonfinite, (unsigned long long)stats.skipped);
        float other = bad && !drops ? 0.0f : RANKS;
        float hit = !bad ? RANKS : b->early && drops ? RANKS - 1 : 0.0f;
        for (size_t i = 0; i < v.n; i++)
            RANK_CHECK(self, get(&v, b->form.type, i) == (i == 40 ? hit : other),
                       "step %d: element %zu is %g", number, i, (double)get(&v, b->form.type, i));
    }
    tamis_reducer_destroy(r);
    free(v.memory);
}

static void test_a_bad_entry_counts_once_whatever_the_form(void **state) {
    static const char *const schemes[] = {"dense", "auto", "auto"};
    (void)state;
    for (int i = 0; i < 3 * 3 * 3 * 2; i++) {
        bad_case b = {.form = {.scheme = schemes[i % 3],
                               .apart = i / 3 % 2,
                               .type = (tamis_dtype)(i / 6 % 3)},
                      .early = i % 3 == 2,
                      .policy = (tamis_nonfinite)(i / 18)};
        test_context("%s%s, type %d, %s, policy %d", b.form.scheme, b.early ? ", early" : "",
                     (int)b.form.type, b.form.apart ? "by segment" : "whole", (int)b.policy);
        ranks_run(RANKS, 0, step_on_bad, &b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_may_give_gradients_of_different_forms),
        cmocka_unit_test(test_reducers_in_another_order_are_found),
        cmocka_unit_test(test_ranks_at_different_steps_are_found),
        cmocka_unit_test(test_threads_that_give_different_counts_are_found),
        cmocka_unit_test(test_a_bad_entry_counts_once_whatever_the_form),
    };
    return cmocka_run_group_tests_name("dense", tests, NULL, NULL);
}
