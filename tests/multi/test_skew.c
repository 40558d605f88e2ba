/* SPDX-License-Identifier: MIT
 *
 * A late rank: the exchange is split into waiting for it and what follows, and ranks that wait take
 * little processor time.
 *
 * test: waits tsan
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <tamis/stats.h>
#include <time.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS = 4, LENGTH = 500, N = SEGMENTS * LENGTH, LATE = 1, LATE_MS = 30 };

/* Factor for times that pass while others use the cores, too. */
static double slowness(void) {
    return (double)test_slowness() * test_load();
}

static bool run_step(test_rank *self, tamis_reducer *r, uint32_t number, uint32_t late_ms) {
    float grad[N];
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, number, N, grad);
    rank_barrier(self); /* the test's own threads must not add lateness */
    sleep_ms(self->id == LATE ? late_ms : 0);
    self->where = "a step";
    return rank_status(self, __FILE__, __LINE__, "start", TAMIS_OK,
                       tamis_reducer_start(r, &step)) &&
           rank_status(self, __FILE__, __LINE__, "wait", TAMIS_OK, tamis_reducer_wait(r));
}

/* -- the split -------------------------------------------------------------------------------- */

typedef struct heard {
    double skew_s, exchange_s; /* of the step under way */
    uint64_t skew_end_ns;      /* where the last SKEW ended */
    uint32_t skews, exchanges, gaps;
} heard;

static void hear(void *context, const tamis_phase_event *event) {
    heard *h = context;
    double seconds = 1e-9 * (double)(event->end_ns - event->begin_ns);
    if (event->phase == TAMIS_PHASE_SKEW) {
        h->skew_s += seconds;
        h->skews++;
        h->skew_end_ns = event->end_ns;
    } else if (event->phase == TAMIS_PHASE_EXCHANGE) {
        h->exchange_s += seconds;
        h->exchanges++;
        h->gaps += h->skew_end_ns != 0 && h->skew_end_ns != event->begin_ns;
        h->skew_end_ns = 0;
    }
}

/* Whether a rank has waited as it should in one step. One of several steps suffices, for a busy
 * machine delays different ranks at different times. */
static bool waits_as_it_should(const test_rank *self, double skew_s) {
    return self->id == LATE ? skew_s < 0.005 * slowness()
                            : skew_s > 0.020 && skew_s < 0.031 + 0.02 * slowness();
}

/* A scheme and how often it reports SKEW and EXCHANGE in a step of one bucket. */
typedef struct split_case {
    const char *scheme;
    uint32_t skews, exchanges;
} split_case;

static void split(test_rank *self) {
    const split_case *c = self->shared;
    heard h = {0};
    tamis_reducer *r = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer_config config = data_even_config(LENGTH);
    bool right = false;
    config.scheme = c->scheme;
    config.bucket_length = 0;
    config.on_phase = hear;
    config.on_phase_context = &h;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    for (uint32_t number = 0; number < 10; number++) {
        h = (heard){0};
        if (!run_step(self, r, number, LATE_MS))
            return;
        RANK_OK(self, tamis_reducer_stats(r, &stats));
        uint32_t skew = number == 0 ? 0 : c->skews; /* unknown in the first step */
        RANK_CHECK(self, h.skews == skew && h.exchanges == c->exchanges && h.gaps == 0,
                   "step %u: %u times skew, %u times exchange, %u gaps", number, h.skews,
                   h.exchanges, h.gaps);
        RANK_CHECK(self, fabs(h.skew_s - stats.skew_s) < 1e-9, "skew is %g s, in all %g s",
                   h.skew_s, stats.skew_s);
        RANK_CHECK(self, fabs(h.exchange_s + h.skew_s - stats.exchange_s) < 1e-9,
                   "parts of %g s and %g s do not add up to %g s", h.skew_s, h.exchange_s,
                   stats.exchange_s);
        right |= number > 0 && waits_as_it_should(self, stats.skew_s);
    }
    RANK_CHECK(self, right, "rank %u waits %g s, rank %d is 0.03 s late", self->id, stats.skew_s,
               LATE);
    tamis_reducer_destroy(r);
}

static void test_waiting_is_split_from_the_transfer(void **state) {
    /* bins communicates to plan, and so reports an exchange twice */
    static split_case cases[] = {{"tamis", 1, 1}, {"topk", 1, 1}, {"micro", 1, 1}, {"deft", 1, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_context("split of %s", cases[i].scheme);
        ranks_run(3, 0, split, &cases[i]);
    }
}

/* The first bucket waits for the late rank; the others need not wait. */
static void split_buckets(test_rank *self) {
    heard h = {0};
    tamis_reducer *r = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer_config config = data_even_config(LENGTH);
    bool right = false;
    config.on_phase = hear;
    config.on_phase_context = &h;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    for (uint32_t number = 0; number < 10; number++) {
        h = (heard){0};
        if (!run_step(self, r, number, LATE_MS))
            return;
        RANK_OK(self, tamis_reducer_stats(r, &stats));
        RANK_CHECK(self, h.skews == SEGMENTS - (number == 0) && h.exchanges == SEGMENTS,
                   "step %u: %u times skew, %u times exchange", number, h.skews, h.exchanges);
        RANK_CHECK(self, stats.skew_s <= stats.exchange_s, "skew %g s of %g s", stats.skew_s,
                   stats.exchange_s);
        right |= number > 0 && waits_as_it_should(self, stats.skew_s);
    }
    RANK_CHECK(self, right, "rank %u waits %g s", self->id, stats.skew_s);
    tamis_reducer_destroy(r);
}

static void test_buckets_do_not_wait_twice_for_one_delay(void **state) {
    (void)state;
    test_context("split of buckets");
    ranks_run(2, 0, split_buckets, NULL);
}

/* -- scheme dense, older programs, waiting ---------------------------------------------------- */

static void stay_dense(test_rank *self) {
    heard h = {0};
    tamis_reducer *r = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer_config config = data_even_config(LENGTH);
    config.scheme = "dense";
    config.on_phase = hear;
    config.on_phase_context = &h;
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    for (uint32_t number = 0; number < 3; number++) {
        if (!run_step(self, r, number, 5))
            return;
    }
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, h.skews == 0 && h.exchanges == 3 * SEGMENTS && stats.skew_s == 0.0,
               "%u times skew, %g s", h.skews, stats.skew_s);
    tamis_reducer_destroy(r);
}

static void test_scheme_dense_does_not_know_who_is_late(void **state) {
    (void)state;
    test_context("dense");
    ranks_run(2, 0, stay_dense, NULL);
}

/* A program built before skew_s: its struct ends there. */
static void read_as_before(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_stats stats = TAMIS_STATS_INIT;
    tamis_reducer_config config = data_even_config(LENGTH);
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    for (uint32_t number = 0; number < 2; number++) {
        if (!run_step(self, r, number, 5))
            return;
    }
    stats.size = offsetof(tamis_stats, skew_s);
    stats.skew_s = -1.0;
    RANK_OK(self, tamis_reducer_stats(r, &stats));
    RANK_CHECK(self, stats.steps == 2 && stats.exchange_s > 0.0 && stats.skew_s == -1.0,
               "%llu steps, %g s", (unsigned long long)stats.steps, stats.skew_s);
    RANK_CHECK(self, stats.size == offsetof(tamis_stats, skew_s), "its size changed");
    tamis_reducer_destroy(r);
}

static void test_a_shorter_struct_of_an_older_program_is_filled_as_far_as_it_goes(void **state) {
    (void)state;
    test_context("older programs");
    ranks_run(2, 0, read_as_before, NULL);
}

static double thread_cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void wait_long(test_rank *self) {
    tamis_reducer *r = NULL;
    tamis_reducer_config config = data_even_config(LENGTH);
    float grad[N];
    RANK_OK(self, tamis_comm_set_waiting(self->comm, *(tamis_waiting *)self->shared));
    RANK_OK(self, data_even_reducer(self->comm, SEGMENTS, LENGTH, &config, &r));
    tamis_step step = data_step(grad);
    data_fill(DATA_HEAVY, self->id, 0, N, grad);
    sleep_ms(self->id == LATE ? 200 : 0);
    RANK_OK(self, tamis_reducer_start(r, &step));
    double cpu_s = thread_cpu_s();
    RANK_OK(self, tamis_reducer_wait(r));
    cpu_s = thread_cpu_s() - cpu_s;
    RANK_CHECK(self, self->id == LATE || cpu_s < 0.02 * test_slowness(),
               "it took %g s of processor time to wait for 0.2 s", cpu_s);
    tamis_reducer_destroy(r);
}

static void test_a_thread_that_waits_for_a_local_rank_sleeps(void **state) {
    (void)state;
    for (tamis_waiting w = TAMIS_WAITING_AUTO; w <= TAMIS_WAITING_SLEEP; w++) {
        test_context("waiting %d", (int)w);
        ranks_run(2, 0, wait_long, &w);
    }
}

static void choose(test_rank *self) {
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_set_waiting(NULL, TAMIS_WAITING_SLEEP));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_set_waiting(self->comm, (tamis_waiting)3));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_set_waiting(self->comm, (tamis_waiting)-1));
}

static void test_ways_to_wait_that_there_are_not_are_refused(void **state) {
    (void)state;
    test_context("no such waiting");
    ranks_run(1, 0, choose, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_is_split_from_the_transfer),
        cmocka_unit_test(test_buckets_do_not_wait_twice_for_one_delay),
        cmocka_unit_test(test_scheme_dense_does_not_know_who_is_late),
        cmocka_unit_test(test_a_shorter_struct_of_an_older_program_is_filled_as_far_as_it_goes),
        cmocka_unit_test(test_a_thread_that_waits_for_a_local_rank_sleeps),
        cmocka_unit_test(test_ways_to_wait_that_there_are_not_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
