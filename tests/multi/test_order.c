/* SPDX-License-Identifier: MIT
 *
 * Several reducers on one communicator: exchanges follow the order of the starts, whatever the
 * order of the waits; ranks that mix up reducers get an error; and an exchange that never ends
 * leaves a reducer that can be saved.
 *
 * test: waits tsan
 */
#include "collectives/transport/faulty.h"
#include "tests/support/ranks.h"
#include "tests/support/scratch.h"
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <tamis/stats.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 64 };

static tamis_status make(tamis_comm *comm, double density, tamis_nonfinite policy,
                         tamis_reducer **out) {
    tamis_layout *layout;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = density;
    config.nonfinite = policy;
    tamis_status status = tamis_layout_create(&(tamis_segment){"all", N}, 1, &layout);
    if (status != TAMIS_OK)
        return status;
    status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static tamis_status begin(tamis_reducer *reducer, float *gradient, float value) {
    tamis_step step = TAMIS_STEP_INIT;
    for (size_t i = 0; i < N; i++)
        gradient[i] = value;
    step.grad = gradient;
    return tamis_reducer_start(reducer, &step);
}

static void wait_crosswise(test_rank *self) {
    tamis_reducer *a = NULL, *b = NULL;
    float grad_a[N], grad_b[N];
    RANK_OK(self, make(self->comm, 1.0, TAMIS_NONFINITE_ERROR, &a));
    RANK_OK(self, make(self->comm, 1.0, TAMIS_NONFINITE_ERROR, &b));
    for (int step = 0; step < 3; step++) {
        RANK_OK(self, begin(a, grad_a, 1.0f));
        RANK_OK(self, begin(b, grad_b, 100.0f));
        RANK_OK(self, tamis_reducer_wait(self->id == 0 ? b : a));
        RANK_OK(self, tamis_reducer_wait(self->id == 0 ? a : b));
        RANK_CHECK(self, grad_a[7] == 1.0f && grad_b[7] == 100.0f, "means %g and %g",
                   (double)grad_a[7], (double)grad_b[7]);
    }
    tamis_reducer_destroy(a);
    tamis_reducer_destroy(b);
}

static void test_exchanges_follow_the_order_of_starts(void **state) {
    (void)state;
    test_context("waits crosswise");
    ranks_run(3, 0, wait_crosswise, NULL);
}

static void mix_up(test_rank *self) {
    tamis_reducer *pair[2] = {NULL, NULL};
    float gradient[N];
    RANK_OK(self, make(self->comm, 1.0, TAMIS_NONFINITE_ERROR, &pair[0]));
    RANK_OK(self, make(self->comm, 1.0, TAMIS_NONFINITE_ERROR, &pair[1]));
    RANK_OK(self, begin(pair[self->id], gradient, 1.0f));
    tamis_status status = tamis_reducer_wait(pair[self->id]);
    RANK_CHECK(self, tamis_status_loss(status) == TAMIS_LOST_COMM, "mixed up reducers give %s",
               tamis_status_name(status));
    tamis_reducer_destroy(pair[0]);
    tamis_reducer_destroy(pair[1]);
}

static void test_reducers_that_are_mixed_up_are_noticed(void **state) {
    (void)state;
    test_context("rank 0 starts one reducer, rank 1 the other");
    ranks_run(2, 0, mix_up, NULL);
}

/* A bitmap has the same length whatever k is; a list of numbers has not. */
static void differ_in_density(test_rank *self) {
    bool bitmap = *(const bool *)self->shared;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    float gradient[N];
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.5;
    config.index_codec = bitmap ? TAMIS_INDEX_BITMAP : TAMIS_INDEX_U32;
    RANK_OK(self, tamis_layout_create(&(tamis_segment){"all", N}, 1, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);
    RANK_OK(self, tamis_reducer_set_density(reducer, self->id == 0 ? 0.25 : 0.5));
    RANK_OK(self, begin(reducer, gradient, 1.0f));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(reducer));
    RANK_CHECK(self,
               strstr(tamis_last_error(),
                      bitmap ? "configuration, density or packing" : "makes an all-gather of "),
               "it says: %s", tamis_last_error());
    tamis_reducer_destroy(reducer);
}

static void test_ranks_of_different_densities_are_told(void **state) {
    (void)state;
    test_context("rank 0 sends half as many entries");
    for (int i = 0; i < 2; i++)
        ranks_run(2, 0, differ_in_density, &(bool){i == 0});
}

static void overflow(test_rank *self) {
    const tamis_nonfinite policy = *(const tamis_nonfinite *)self->shared;
    tamis_reducer *reducer = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    const float *residual;
    float gradient[N];
    bool error = policy == TAMIS_NONFINITE_ERROR;
    RANK_OK(self, make(self->comm, 1.0, policy, &reducer));
    RANK_OK(self, begin(reducer, gradient, 1.0f));
    RANK_OK(self, tamis_reducer_wait(reducer));

    RANK_OK(self, begin(reducer, gradient, 1.0f));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_OK(self, begin(reducer, gradient, FLT_MAX));
    RANK_STATUS(self, error ? TAMIS_E_NONFINITE : TAMIS_OK, tamis_reducer_wait(reducer));
    RANK_OK(self, tamis_reducer_stats(reducer, &stats));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_CHECK(self, stats.nonfinite == N && stats.skipped == (policy != TAMIS_NONFINITE_DROP),
               "nonfinite %llu, skipped %llu", (unsigned long long)stats.nonfinite,
               (unsigned long long)stats.skipped);
    for (size_t i = 0; i < N; i++)
        RANK_CHECK(self, gradient[i] == 0.0f && residual[i] == 0.0f, "entry %zu: %g, residual %g",
                   i, (double)gradient[i], (double)residual[i]);

    RANK_OK(self, begin(reducer, gradient, 2.0f));
    RANK_OK(self, tamis_reducer_wait(reducer));
    RANK_CHECK(self, gradient[5] == 2.0f, "the next step gives %g", (double)gradient[5]);
    tamis_reducer_destroy(reducer);
}

static void test_sums_that_overflow_are_never_applied(void **state) {
    (void)state;
    for (tamis_nonfinite policy = TAMIS_NONFINITE_ERROR; policy <= TAMIS_NONFINITE_DROP; policy++) {
        test_context("two ranks of FLT_MAX, policy %d", (int)policy);
        ranks_run(2, 0, overflow, &policy);
    }
}

/* A transport of one rank with its own thread, which stays in a call beyond its deadline. */
static void test_what_an_endless_exchange_leaves_can_be_saved(void **state) {
    (void)state;
    const uint32_t stuck_ms = test_stretch_ms(2500);
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    static tamis_reducer *reducer; /* static: no leak report if it is abandoned */
    tamis_comm *plain, *comm;
    float gradient[N];
    char path[SCRATCH_PATH];
    assert_int_equal(tamis_comm_create_local(1, &config, &plain), TAMIS_OK);

    static tam_transport threaded; /* outlives the thread */
    threaded = *plain->transport;
    threaded.capabilities |= TAM_CAP_THREADED;
    assert_int_equal(tam_comm_open(&threaded, plain->self, 0, 1, &config, &comm), TAMIS_OK);
    assert_int_equal(make(comm, 0.1, TAMIS_NONFINITE_ERROR, &reducer), TAMIS_OK);
    assert_int_equal(tam_faulty_install(comm, TAM_FAULT_DELAY, 0, stuck_ms), TAMIS_OK);

    test_deadline(comm, test_stretch_ms(200));
    uint64_t start_ms = now_ms();
    assert_int_equal(begin(reducer, gradient, 1.0f), TAMIS_OK);
    assert_int_equal(tamis_reducer_wait(reducer), TAMIS_E_TIMEOUT);
    assert_true(now_ms() - start_ms < stuck_ms);
    assert_int_equal(tamis_reducer_save(reducer, scratch_path("endless", path)), TAMIS_OK);
    assert_int_equal(tamis_reducer_load(reducer, path), TAMIS_E_STATE);
    unlink(path);

    sleep_ms(stuck_ms); /* the stuck call ends, and touches nothing of the reducer */
    const float *residual;
    assert_int_equal(tamis_reducer_residual(reducer, &residual), TAMIS_OK);
    for (size_t i = 0; i < N; i++)
        assert_true(residual[i] == 1.0f);
    tamis_reducer_destroy(reducer); /* leaves its memory: the exchange was abandoned */
    tamis_comm_destroy(comm);       /* closes the transport of `plain`, too */
    tam_flight_close(plain->recorded.flight);
    tam_free(plain->job_memory);
    tam_free(plain->records);
    tam_free(plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exchanges_follow_the_order_of_starts),
        cmocka_unit_test(test_reducers_that_are_mixed_up_are_noticed),
        cmocka_unit_test(test_ranks_of_different_densities_are_told),
        cmocka_unit_test(test_sums_that_overflow_are_never_applied),
        cmocka_unit_test(test_what_an_endless_exchange_leaves_can_be_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
