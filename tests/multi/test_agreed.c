/* SPDX-License-Identifier: MIT
 *
 * What ranks must have in common in a step (tamis_step.agreed, and rates): equal numbers change no
 * bit, another one on one rank is refused by all, whatever is exchanged.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 3, LENGTH = 80, N = SEGMENTS * LENGTH, NSTEPS = 3, RANKS_HERE = 4 };

typedef struct agreed_case {
    const char *scheme;
    uint32_t ranks_per_node;
    uint64_t bucket_length, row_length;
    uint32_t odd; /* the rank that differs in the last step */
} agreed_case;

static tamis_status make(tamis_comm *comm, const agreed_case *c, const tamis_update *update,
                         tamis_reducer **out) {
    static const char *const names[SEGMENTS] = {"one", "two", "three"};
    tamis_segment segments[SEGMENTS];
    tamis_layout *layout = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = c->scheme;
    config.density = 0.2;
    config.ranks_per_node = c->ranks_per_node;
    config.bucket_length = c->bucket_length;
    config.update = update;
    for (uint32_t i = 0; i < SEGMENTS; i++)
        segments[i] = (tamis_segment){names[i], LENGTH};
    tamis_status status = tamis_layout_create(segments, SEGMENTS, &layout);
    if (status == TAMIS_OK && c->row_length)
        status = tamis_layout_set_rows(layout, 1, c->row_length);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_status step_with(tamis_reducer *reducer, float *grad, uint64_t agreed) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    step.agreed = agreed;
    tamis_status status = tamis_reducer_start(reducer, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(reducer) : status;
}

/* Beside a reducer that is given no number. */
static void agree(test_rank *self) {
    const agreed_case *c = self->shared;
    tamis_reducer *with = NULL, *without = NULL;
    float a[N], b[N];
    RANK_OK(self, make(self->comm, c, NULL, &with));
    RANK_OK(self, make(self->comm, c, NULL, &without));
    for (uint32_t number = 0; number < NSTEPS; number++) {
        data_fill_real(self->id, number, N, a);
        memcpy(b, a, sizeof b);
        RANK_OK(self, step_with(with, a, UINT64_MAX - number));
        RANK_OK(self, step_with(without, b, 0));
        RANK_CHECK(self, memcmp(a, b, sizeof a) == 0, "step %u: the results differ", number);
    }
    data_fill_real(self->id, NSTEPS, N, a);
    tamis_status status = step_with(with, a, self->id == c->odd ? 2 : 1);
    RANK_CHECK(self, status == TAMIS_E_PROTOCOL || (c->ranks_per_node && status != TAMIS_OK),
               "%s: %s", tamis_status_name(status), tamis_last_error());
    RANK_CHECK(self, c->ranks_per_node || has_word(tamis_last_error(), "tamis_step.agreed"),
               "it says: %s", tamis_last_error());
    tamis_reducer_destroy(with);
    tamis_reducer_destroy(without);
}

static void test_numbers_that_differ_are_refused_by_all(void **state) {
    static const agreed_case cases[] = {
        {.scheme = "tamis"},
        {.scheme = "tamis-update", .bucket_length = LENGTH},
        {.scheme = "topk"},
        {.scheme = "quantized"},
        {.scheme = "sage"},
        {.scheme = "all+global+exact+pairs"},
        {.scheme = "tamis", .ranks_per_node = 2},
        {.scheme = "tamis", .row_length = 8},
        {.scheme = "tamis", .row_length = 8, .bucket_length = LENGTH},
    };
    (void)state;
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        agreed_case c = cases[i];
        c.odd = i % RANKS_HERE;
        test_context("case %u, scheme %s", i, c.scheme);
        ranks_run(RANKS_HERE, c.ranks_per_node ? test_stretch_ms(3000) : 0, agree, &c);
    }
}

/* Parameters before and after: rates are compared by themselves, in whatever bucket they are. */
static void rates_apart(test_rank *self) {
    const agreed_case *c = self->shared;
    tamis_update update = TAMIS_UPDATE_INIT;
    tamis_reducer *reducer = NULL;
    tamis_step step = TAMIS_STEP_INIT;
    float after[SEGMENTS][LENGTH], before[SEGMENTS][LENGTH], rates[SEGMENTS] = {0.5f, 0.25f, 0.0f};
    void *grads[SEGMENTS] = {after[0], after[1], after[2]};
    const float *befores[SEGMENTS] = {before[0], before[1], before[2]};
    update.rule = TAMIS_UPDATE_STEP;
    RANK_OK(self, make(self->comm, c, &update, &reducer));
    step.grads = grads;
    step.before = befores;
    step.rates = rates;
    for (uint32_t number = 0; number < 2; number++) {
        for (uint32_t s = 0; s < SEGMENTS; s++) {
            data_fill_real(7, s, LENGTH, before[s]);
            data_fill_real(self->id, 3 * number + s, LENGTH, after[s]);
        }
        if (number == 1 && self->id == c->odd)
            rates[1] = 0.2500001f;
        RANK_OK(self, tamis_reducer_start(reducer, &step));
        RANK_STATUS(self, number == 1 ? TAMIS_E_PROTOCOL : TAMIS_OK, tamis_reducer_wait(reducer));
    }
    RANK_CHECK(self, has_word(tamis_last_error(), "other rates"), "it says: %s",
               tamis_last_error());
    tamis_reducer_destroy(reducer);
}

static void test_rates_that_differ_are_refused_by_all(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        agreed_case c = {"tamis-update", 0, i / 2 * LENGTH, 0, i};
        test_context("rank %u has another rate, %s", i, i / 2 ? "in buckets" : "in one bucket");
        ranks_run(RANKS_HERE, 0, rates_apart, &c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_that_differ_are_refused_by_all),
        cmocka_unit_test(test_rates_that_differ_are_refused_by_all),
    };
    return cmocka_run_group_tests_name("agreed", tests, NULL, NULL);
}
