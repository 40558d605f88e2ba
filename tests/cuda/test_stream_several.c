/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): several reducers of one
 * communicator. Those that devices drive run one after another, and not beside those of the host.
 *
 * test: tsan
 */
#include "tests/cuda/endpoint.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <tamis/overlap.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { RANKS = 3 };

/* An endpoint, and a second reducer of its communicator. */
static bool open_two(test_rank *self, const char *scheme, endpoint *s, tamis_reducer **other) {
    tamis_reducer_config config = endpoint_config(TAMIS_DEVICE_CUDA, scheme);
    if (!endpoint_open(self, NULL, s))
        return false;
    return rank_status(self, __FILE__, __LINE__, "a second reducer", TAMIS_OK,
                       data_reducer(s->comm, ENDPOINT_N, &config, other));
}

/* deft needs the host in every step; its collectives must not mix with those of `tamis`. */
static void mix_drivers(test_rank *self) {
    endpoint s;
    tamis_reducer *other = NULL;
    if (!open_two(self, "deft", &s, &other))
        return;
    tamis_step step = endpoint_step(&s);
    for (int i = 0; i < 3; i++) {
        RANK_OK(self, tamis_reducer_start(s.reducer, &step));
        RANK_OK(self, tamis_reducer_join(s.reducer, s.stream));
        RANK_OK(self, tamis_reducer_start(other, &step));
        tamis_status status = tamis_reducer_start(s.reducer, &step);
        RANK_CHECK(self, status == TAMIS_OK || status == TAMIS_E_STATE, "%s", tamis_last_error());
        RANK_OK(self, tamis_reducer_wait(other));
        RANK_BARRIER(self);
        if (status == TAMIS_E_STATE)
            RANK_OK(self, tamis_reducer_start(s.reducer, &step));
        RANK_OK(self, tamis_reducer_wait(s.reducer));
    }
    tamis_reducer_destroy(other);
    endpoint_close(&s);
}

static void test_drivers_of_one_communicator_do_not_mix(void **state) {
    (void)state;
    ranks_run(2, 0, mix_drivers, NULL);
}

/* While the host drives the other reducer, neither the last segment nor the rest can be given; once
 * it has ended they can. */
static void mark_beside(test_rank *self, const endpoint *s, bool by_start) {
    tamis_bucket all = TAMIS_BUCKET_INIT;
    tamis_step step = endpoint_step(s);
    RANK_OK(self, tamis_reducer_bucket_at(s->reducer, 0, &all));
    for (uint32_t i = by_start ? all.nsegments - 1 : 1; i < all.nsegments; i++)
        RANK_OK(self, tamis_reducer_ready(s->reducer, i, &step));
    if (by_start)
        RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_start(s->reducer, &step));
    else
        RANK_STATUS(self, TAMIS_E_STATE, tamis_reducer_ready(s->reducer, 0, &step));
    RANK_CHECK(self, has_word(tamis_last_error(), "wait for it first"), "%s", tamis_last_error());
}

static void finish_marked(test_rank *self, const endpoint *s, bool by_start) {
    tamis_step step = endpoint_step(s);
    if (by_start || self->id != 0)
        RANK_OK(self, tamis_reducer_start(s->reducer, &step));
    else
        RANK_OK(self, tamis_reducer_ready(s->reducer, 0, &step));
    RANK_OK(self, tamis_reducer_wait(s->reducer));
}

static void refuse_beside(test_rank *self) {
    endpoint s;
    tamis_reducer *other = NULL;
    if (!open_two(self, "deft", &s, &other))
        return;
    tamis_step step = endpoint_step(&s);
    for (int by_start = 0; by_start < 2 && !self->failure[0]; by_start++) {
        if (self->id == 0) { /* whose exchange lasts until the other rank comes */
            RANK_OK(self, tamis_reducer_start(other, &step));
            mark_beside(self, &s, by_start);
        }
        RANK_BARRIER(self);
        if (self->id != 0)
            RANK_OK(self, tamis_reducer_start(other, &step));
        RANK_OK(self, tamis_reducer_wait(other));
        finish_marked(self, &s, by_start);
    }
    tamis_reducer_destroy(other);
    endpoint_close(&s);
}

static void test_a_refused_launch_has_no_effect(void **state) {
    (void)state;
    ranks_run(2, 0, refuse_beside, NULL);
}

/* Two reducers that devices drive, both under way. */
static void run_two(test_rank *self) {
    endpoint s;
    tamis_reducer *other = NULL;
    if (!open_two(self, "topk", &s, &other))
        return;
    tamis_step step = endpoint_step(&s);
    for (uint32_t i = 0; i < 6 && !self->failure[0]; i++) {
        endpoint_join(self, &s, i, i + 1);
        RANK_OK(self, tamis_reducer_start(other, &step));
        RANK_OK(self, tamis_reducer_join(other, s.stream));
    }
    RANK_CUDA(self, cudaStreamSynchronize(s.stream));
    endpoint_compare(self, NULL, 0, 6, s.got);
    tamis_reducer_destroy(other);
    endpoint_close(&s);
}

static void test_two_reducers_of_one_communicator_run_one_after_another(void **state) {
    (void)state;
    ranks_run(RANKS, 0, run_two, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drivers_of_one_communicator_do_not_mix),
        cmocka_unit_test(test_a_refused_launch_has_no_effect),
        cmocka_unit_test(test_two_reducers_of_one_communicator_run_one_after_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
