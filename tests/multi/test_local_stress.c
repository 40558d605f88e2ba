/* SPDX-License-Identifier: MIT
 *
 * Eight ranks on few cores, hundreds of small steps, two reducers on one communicator, and slow
 * ranks: the results stay equal and nothing is lost.
 *
 * test: tsan
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { NRANKS = 8, STEPS = 300, MOST = 640 };

static const struct {
    const char *scheme;
    size_t n;
    double density;
} kinds[2] = {{"tamis", 640, 0.03}, {"micro", 333, 0.05}};

typedef struct stress_case {
    uint64_t hash[NRANKS];
    double residual[2][NRANKS][MOST], applied[2][MOST], put_in[2][NRANKS][MOST];
} stress_case;

static tamis_status create(test_rank *self, int kind, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = data_layout(kinds[kind].n);
    config.scheme = kinds[kind].scheme;
    config.density = kinds[kind].density;
    config.op = TAMIS_OP_SUM;
    tamis_status status = tamis_reducer_create(self->comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* Small whole numbers: 300 steps of 8 ranks stay exact. */
static void one_step(test_rank *self, tamis_reducer *reducer, int kind, uint32_t number) {
    stress_case *all = self->shared;
    size_t n = kinds[kind].n;
    float gradient[MOST];
    tamis_step step = TAMIS_STEP_INIT;
    data_fill(DATA_TIES, self->id, number * 2 + (uint32_t)kind, n, gradient);
    for (size_t i = 0; i < n; i++)
        all->put_in[kind][self->id][i] += (double)gradient[i];
    step.grad = gradient;
    uint64_t random = data_mix((uint64_t)number << 8 | self->id);
    if (random % 16 == 0)
        usleep((useconds_t)(random >> 32) % 300);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    if (random % 16 == 1)
        usleep((useconds_t)(random >> 32) % 300);
    RANK_OK(self, tamis_reducer_wait(reducer));
    all->hash[self->id] = data_hash(all->hash[self->id], gradient, n * sizeof(float));
    for (size_t i = 0; self->id == 0 && i < n; i++)
        all->applied[kind][i] += (double)gradient[i];
}

static void run_stress(test_rank *self) {
    stress_case *all = self->shared;
    tamis_reducer *reducers[2];
    const float *residual = NULL;
    for (int kind = 0; kind < 2; kind++)
        RANK_OK(self, create(self, kind, &reducers[kind]));
    for (uint32_t number = 0; number < STEPS && !self->failure[0]; number++)
        for (int kind = 0; kind < 2 && !self->failure[0]; kind++)
            one_step(self, reducers[kind], kind, number);
    for (int kind = 0; kind < 2; kind++) {
        RANK_OK(self, tamis_reducer_residual(reducers[kind], &residual));
        for (size_t i = 0; i < kinds[kind].n; i++)
            all->residual[kind][self->id][i] = (double)residual[i];
        tamis_reducer_destroy(reducers[kind]);
    }
}

static void test_many_steps_of_slow_ranks(void **state) {
    stress_case *all = calloc(1, sizeof *all);
    (void)state;
    assert_non_null(all);
    test_context("two reducers, %d steps", STEPS);
    ranks_run(NRANKS, 0, run_stress, all);
    for (uint32_t r = 1; r < NRANKS; r++)
        assert_true(all->hash[r] == all->hash[0]);
    for (int kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < kinds[kind].n; i++) {
            double put_in = 0, held = all->applied[kind][i];
            for (uint32_t r = 0; r < NRANKS; r++) {
                put_in += all->put_in[kind][r][i];
                held += all->residual[kind][r][i];
            }
            if (put_in != held)
                fail_msg("%s, entry %zu: put in %g, applied and held %g", kinds[kind].scheme, i,
                         put_in, held);
        }
    free(all);
}

/* Two reducers under way at once: both start, then both wait. */
static void run_interleaved(test_rank *self) {
    tamis_reducer *reducers[2];
    float gradients[2][MOST];
    tamis_step step = TAMIS_STEP_INIT;
    for (int kind = 0; kind < 2; kind++)
        RANK_OK(self, create(self, kind, &reducers[kind]));
    for (uint32_t number = 0; number < 50; number++) {
        for (int kind = 0; kind < 2; kind++) {
            data_fill(DATA_TIES, self->id, number, kinds[kind].n, gradients[kind]);
            step.grad = gradients[kind];
            RANK_OK(self, tamis_reducer_start(reducers[kind], &step));
        }
        for (int kind = 0; kind < 2; kind++)
            RANK_OK(self, tamis_reducer_wait(reducers[kind]));
    }
    for (int kind = 0; kind < 2; kind++)
        tamis_reducer_destroy(reducers[kind]);
}

static void test_two_reducers_may_be_under_way_at_once(void **state) {
    (void)state;
    test_context("two reducers under way at once");
    ranks_run(NRANKS, 0, run_interleaved, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_steps_of_slow_ranks),
        cmocka_unit_test(test_two_reducers_may_be_under_way_at_once),
    };
    return cmocka_run_group_tests_name("local stress", tests, NULL, NULL);
}
