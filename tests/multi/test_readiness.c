/* SPDX-License-Identifier: MIT
 *
 * What must hold around a step in buckets when a caller is late, leaves, or asks for something else
 * than the others: nothing hangs, nothing is left behind, nothing goes by unnoticed.
 */
#include "collectives/transport/comm.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 4, LENGTH = 500, N = SEGMENTS * LENGTH };

/* Every segment is a bucket. */
static tamis_reducer_config usual(void) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.05;
    config.bucket_length = LENGTH;
    return config;
}

static tamis_status make(tamis_comm *comm, const tamis_reducer_config *config,
                         tamis_reducer **out) {
    tamis_segment segments[SEGMENTS];
    tamis_layout *layout;
    for (int s = 0; s < SEGMENTS; s++)
        segments[s] = (tamis_segment){NULL, LENGTH};
    tamis_status status = tamis_layout_create(segments, SEGMENTS, &layout);
    if (status != TAMIS_OK)
        return status;
    status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_step flat(float *grad) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    return step;
}

static void run_step(test_rank *self, tamis_reducer *r, uint32_t number) {
    float grad[N];
    tamis_step step = flat(grad);
    data_fill(DATA_HEAVY, self->id, number, N, grad);
    RANK_OK(self, tamis_reduce_start(r, &step));
    RANK_OK(self, tamis_reduce_wait(r));
}

/* -- densities that differ -------------------------------------------------------------------- */

/* 11 and 12 entries, for which slots of two ranks have the same size. */
static void ask_apart(test_rank *self) {
    const char *const *scheme = self->shared;
    tamis_reducer *r = NULL;
    tamis_reducer_config config = usual();
    float grad[N];
    config.scheme = *scheme;
    config.bucket_length = 0;
    RANK_OK(self, make(self->comm, &config, &r));
    run_step(self, r, 0);
    RANK_OK(self, tamis_reducer_set_density(r, self->id == 0 ? 11.5 / N : 12.5 / N));
    tamis_step step = flat(grad);
    data_fill(DATA_HEAVY, self->id, 1, N, grad);
    RANK_OK(self, tamis_reduce_start(r, &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reduce_wait(r));
    RANK_CHECK(self, has_word(tamis_last_error(), "density"), "%s", tamis_last_error());
    tamis_reducer_destroy(r);
}

static void test_densities_that_differ_are_noticed(void **state) {
    static const char *schemes[] = {"tamis", "topk", "micro", "deft"};
    (void)state;
    for (size_t s = 0; s < sizeof schemes / sizeof schemes[0]; s++) {
        test_context("%s", schemes[s]);
        ranks_run(2, 0, ask_apart, &schemes[s]);
    }
}

/* -- results and micro-batches ---------------------------------------------------------------- */

static void accumulate_after(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = usual();
    tamis_result before, after;
    float grad[N];
    RANK_OK(self, make(self->comm, &config, &r));
    run_step(self, r, 0);
    RANK_OK(self, tamis_reduce_result(r, &before));
    uint64_t hash = data_hash(0, before.values, before.count * sizeof before.values[0]);
    tamis_step step = flat(grad);
    data_fill(DATA_HEAVY, self->id, 1, N, grad);
    RANK_OK(self, tamis_grad_accumulate(r, &step));
    RANK_OK(self, tamis_reduce_result(r, &after));
    RANK_CHECK(self,
               after.count == before.count &&
                   data_hash(0, after.values, after.count * sizeof after.values[0]) == hash,
               "the result has changed");
    tamis_reducer_destroy(r);
}

static void test_a_result_lasts_until_the_next_start(void **state) {
    (void)state;
    test_context("accumulate after a step");
    ranks_run(2, 0, accumulate_after, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_densities_that_differ_are_noticed),
        cmocka_unit_test(test_a_result_lasts_until_the_next_start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
