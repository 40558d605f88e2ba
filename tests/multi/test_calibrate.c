/* SPDX-License-Identifier: MIT
 *
 * Creation over messages: ranks that measure different times take one plan; what is wanted is
 * taken, or refused on all ranks; and no damaged or late message lets two ranks part with
 * different plans, or leaks memory.
 */
#include "collectives/coll/staged.h"
#include "lib/base/base.h"
#include "tests/support/load.h"
#include "tests/support/loopback.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 16 };

/* How a rank is created, and what became of it. */
typedef struct rank_case {
    loopback *m;
    uint32_t rank, nranks;
    const char *wanted;
    uint64_t timeout_ns;     /* of the creation; 0: no deadline */
    uint64_t sum_timeout_ns; /* of a sum behind it */
    uint64_t slow_ns;        /* that it sleeps now and then while it looks for messages */
    uint64_t stops_at;       /* number of the look at which it stops for good; 0: it goes on */
    uint32_t ntried;
    uint64_t took_ns;  /* the creation */
    uint64_t on_stack; /* messages that it sent from there, or received */
    tamis_status status;
    tam_plan plan;
    bool measured;
    double sum; /* of what all ranks then add */
    char sentence[512];
} rank_case;

static _Thread_local uint64_t slow_ns, looks, stops_at, stop_ns, on_stack;
static _Thread_local const char *stack;

/* A p2p link whose buffers stay in flight may send messages when all functions have returned. */
static tamis_status post_from_heap(void *self, uint32_t ticket, const tam_message *m) {
    const char *memory = m->memory;
    on_stack += memory < stack && stack - memory < (1 << 20);
    return loopback_p2p.post(self, ticket, m);
}

static tamis_status test_slowly(void *self, tam_done *done, uint32_t *count) {
    if (slow_ns > 0 && looks++ % 4 == 0)
        tam_sleep(slow_ns);
    if (stops_at > 0 && looks++ == stops_at)
        tam_sleep(stop_ns);
    return loopback_p2p.test(self, done, count);
}

static tamis_status add(tam_staged *s, uint64_t timeout_ns, double *sum) {
    float values[37];
    atomic_int calm = 0;
    tam_call call = {
        .deadline_ns = tam_clock_ns() + timeout_ns, .begin_ns = tam_clock_ns(), .poison = &calm};
    for (uint32_t i = 0; i < 37; i++)
        values[i] = (float)(s->coll.rank + i);
    tamis_status status = tam_staged_sum(s, values, 37, &call);
    for (uint32_t i = 0; i < 37; i++)
        *sum += values[i];
    return status;
}

static void *create(void *context) {
    rank_case *c = context;
    tam_p2p p2p = loopback_p2p;
    tam_staged *s = NULL;
    char here = 0;
    p2p.test = test_slowly;
    p2p.post = post_from_heap;
    stack = &here;
    slow_ns = c->slow_ns;
    stops_at = c->stops_at;
    stop_ns = c->timeout_ns + c->timeout_ns / 2;
    looks = on_stack = 0;
    uint64_t begin_ns = tam_clock_ns();
    uint64_t deadline_ns = c->timeout_ns > 0 ? tam_clock_ns() + c->timeout_ns : 0;
    bool was_quiet = tam_errors_quiet(true);
    c->status = tam_staged_open(&p2p, loopback_end(c->m, c->rank), c->rank, c->nranks, c->wanted,
                                deadline_ns, &s);
    slow_ns = stops_at = 0;
    c->took_ns = tam_clock_ns() - begin_ns;
    if (c->status == TAMIS_OK) {
        c->ntried = s->ntried;
        c->plan = s->coll.plan;
        c->measured = s->measured;
        c->status = add(s, c->sum_timeout_ns, &c->sum);
    }
    c->on_stack = on_stack;
    snprintf(c->sentence, sizeof c->sentence, "%s", tamis_last_error());
    if (s)
        tam_staged_close(s, c->status == TAMIS_OK);
    tam_errors_quiet(was_quiet);
    return NULL;
}

/* @param  absent  a rank that does not come; nranks: none */
static uint64_t create_all(rank_case *all, uint32_t nranks, uint64_t flip, uint32_t absent) {
    pthread_t threads[MOST];
    uint64_t live = tam_alloc_live(), bytes;
    loopback *m = loopback_create(nranks, flip);
    for (uint32_t r = 0; r < nranks; r++) {
        all[r].m = m;
        all[r].rank = r;
        all[r].nranks = nranks;
        if (r != absent)
            assert_int_equal(pthread_create(&threads[r], NULL, create, &all[r]), 0);
    }
    for (uint32_t r = 0; r < nranks; r++)
        if (r != absent)
            pthread_join(threads[r], NULL);
    uint64_t count = loopback_count(m, &bytes);
    loopback_destroy(m);
    assert_int_equal(tam_alloc_live(), live);
    return count;
}

static uint64_t long_ns(void) {
    return test_long_ms() * UINT64_C(1000000);
}

/* For those who wait for a rank that never comes; long enough for plans to be tried. */
static uint64_t short_ns(void) {
    return test_load() * UINT64_C(1300000000);
}

static void want(rank_case *all, uint32_t nranks, const char *wanted, uint64_t timeout_ns) {
    memset(all, 0, nranks * sizeof all[0]);
    for (uint32_t r = 0; r < nranks; r++) {
        all[r].wanted = wanted;
        all[r].timeout_ns = timeout_ns;
        all[r].sum_timeout_ns = long_ns();
    }
}

static double expected_sum(uint32_t nranks) {
    return 37.0 * nranks * (nranks - 1) / 2.0 + nranks * 36.0 * 37.0 / 2.0;
}

static void all_took(const rank_case *all, uint32_t nranks, const char *plan) {
    char text[64];
    for (uint32_t r = 0; r < nranks; r++) {
        if (all[r].status != TAMIS_OK)
            fail_msg("rank %u of %u: %s", r, nranks, all[r].sentence);
        assert_memory_equal(&all[r].plan, &all[0].plan, sizeof all[0].plan);
        assert_true(all[r].sum == expected_sum(nranks));
        assert_int_equal(all[r].measured, all[0].measured);
        if (plan)
            assert_string_equal(tam_plan_whole_text(&all[r].plan, text, sizeof text), plan);
    }
}

/* One rank is slow, another slower: each measures something else. */
static void ranks_that_measure_other_times_agree(void **state) {
    rank_case all[MOST];
    (void)state;
    for (uint32_t nranks = 1; nranks <= MOST; nranks++) {
        want(all, nranks, "auto", long_ns());
        all[nranks / 2].slow_ns = 100000;
        all[nranks - 1].slow_ns = 300000;
        create_all(all, nranks, 0, nranks);
        all_took(all, nranks, NULL);
        assert_int_equal(all[0].measured, nranks > 2);
    }
}

static void what_is_wanted_is_taken(void **state) {
    static const struct {
        uint32_t nranks;
        const char *wanted, *plan;
    } cases[] = {{4, "2x2", "2x2"},    {4, "usual", "4"},       {16, "usual", "8x2/1024"},
                 {16, "linear", "16"}, {9, "2x8/64", "2x8/64"}, {2, "2", "2"},
                 {1, "8x8", "1"},      {4, "8x8", "4"},         {12, "3x4", "8x2/1024"},
                 {3, "", "4"},         {5, "2x2x2", "2x2x2"}};
    rank_case all[MOST];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int waits = 0; waits < 2; waits++) {
            want(all, cases[i].nranks, cases[i].wanted, waits ? long_ns() : 0);
            create_all(all, cases[i].nranks, 0, cases[i].nranks);
            all_took(all, cases[i].nranks, cases[i].plan);
            assert_false(all[0].measured);
        }
    want(all, 9, "auto", 0);
    create_all(all, 9, 0, 9);
    all_took(all, 9, "8x2/1024");
    assert_false(all[0].measured);
}

/* With a deadline they compare; without one the first sum finds out. */
static void ranks_that_want_different_plans_are_told(void **state) {
    rank_case all[MOST];
    (void)state;
    want(all, 4, "linear", long_ns());
    all[2].wanted = "2x2";
    create_all(all, 4, 0, 4);
    for (uint32_t r = 0; r < 4; r++) {
        assert_int_equal(all[r].status, TAMIS_E_MISMATCH);
        assert_string_equal(all[r].sentence, "TAMIS_PLAN differs: rank 0 has \"linear\", rank 2 "
                                             "has \"2x2\"; give all ranks the same");
    }
    want(all, 4, "linear", 0);
    all[2].wanted = "2x2";
    for (uint32_t r = 0; r < 4; r++)
        all[r].sum_timeout_ns = short_ns();
    create_all(all, 4, 0, 4);
    uint32_t told = 0;
    for (uint32_t r = 0; r < 4; r++) { /* who never exchanges with rank 2 waits for it */
        assert_true(all[r].status == TAMIS_E_PROTOCOL || all[r].status == TAMIS_E_TIMEOUT);
        told += strstr(all[r].sentence, "options and TAMIS_PLAN") != NULL;
    }
    assert_true(told > 0);
}

/* Whichever message is damaged: nobody takes another plan than the others. */
static void damage_parts_nobody(void **state) {
    enum { P = 5 };
    rank_case all[MOST];
    uint32_t failed = 0, tried = 0;
    (void)state;
    want(all, P, "auto", long_ns());
    uint64_t count = create_all(all, P, 0, P);
    for (uint64_t flip = 1; flip < count; flip += 1 + count / 16) {
        const rank_case *one = NULL;
        want(all, P, "auto", short_ns());
        for (uint32_t r = 0; r < P; r++)
            all[r].sum_timeout_ns = short_ns();
        tried += create_all(all, P, flip, P) > flip; /* on a busy machine fewer are sent */
        bool bad = false;
        for (uint32_t r = 0; r < P; r++) {
            bad = bad || all[r].status != TAMIS_OK;
            if (all[r].status != TAMIS_OK)
                continue;
            one = one ? one : &all[r];
            assert_memory_equal(&all[r].plan, &one->plan, sizeof one->plan);
            assert_true(all[r].sum == expected_sum(P));
        }
        failed += bad;
    }
    assert_true(failed > tried / 2);
}

static void an_absent_rank_is_named(void **state) {
    rank_case all[MOST];
    (void)state;
    want(all, 6, "auto", short_ns());
    create_all(all, 6, 0, 4);
    for (uint32_t r = 0; r < 6; r++) {
        if (r == 4)
            continue;
        assert_int_equal(all[r].status, TAMIS_E_TIMEOUT);
        assert_non_null(strstr(all[r].sentence, "rank(s) 4"));
    }
}

static void want_slow(rank_case *all, uint32_t nranks, uint64_t timeout_ns, uint64_t slow) {
    want(all, nranks, "auto", timeout_ns);
    for (uint32_t r = 0; r < nranks; r++)
        all[r].slow_ns = slow;
}

/* Also abort messages of a trial that fails, which a p2p link whose buffers stay in flight may send
 * when it is over. */
static void no_message_lies_on_a_stack(void **state) {
    enum { P = 9, SLOW_NS = 1000000 };
    rank_case all[MOST];
    (void)state;
    uint64_t count = 0;
    for (int tries = 0; tries == 0 || (all[0].ntried == 0 && tries < 20); tries++) {
        want_slow(all, P, long_ns(), SLOW_NS);
        count = create_all(all, P, 0, P);
    }
    assert_true(all[0].ntried > 0); /* else other work kept the machine busy in each */
    for (uint64_t tenth = 5; tenth < 9; tenth++) {
        want_slow(all, P, short_ns(), SLOW_NS);
        create_all(all, P, tenth * count / 10, P);
        for (uint32_t r = 0; r < P; r++)
            assert_int_equal(all[r].on_stack, 0);
    }
}

/* Where all takes long, what could be learnt is not worth the creation. */
static void measuring_leaves_time(void **state) {
    enum { P = 9 };
    static const uint64_t slow_ms[] = {20, 50, 80};
    rank_case all[MOST];
    (void)state;
    for (size_t i = 0; i < sizeof slow_ms / sizeof slow_ms[0]; i++) {
        want_slow(all, P, short_ns(), slow_ms[i] * 1000000);
        create_all(all, P, 0, P);
        all_took(all, P, NULL);
    }
    want(all, P, "auto", short_ns() / 2);
    if (test_load() == 1) {
        create_all(all, P, 0, P);
        all_took(all, P, NULL);
        assert_false(all[0].measured);
    }
}

/* A rank that goes silent, in whatever part of it: the others give up in time, and name a rank,
 * also if it is one that takes no messages. How many there are depends on times: of few, the 300th
 * may never come. */
static void a_rank_that_stops_is_left_in_time(void **state) {
    enum { P = 9 };
    static const uint64_t at[] = {13, 300};
    rank_case all[MOST];
    (void)state;
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        want(all, P, "auto", short_ns());
        all[4].stops_at = at[i];
        create_all(all, P, 0, P);
        for (uint32_t r = 0; r < P; r++) {
            if (i > 0 && all[r].status == TAMIS_OK)
                continue;
            assert_int_equal(all[r].status, TAMIS_E_TIMEOUT);
            assert_true(r == 4 || all[r].took_ns < 2 * short_ns() + 1000000000u);
            assert_non_null(strstr(all[r].sentence, "rank(s)"));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_measure_other_times_agree),
        cmocka_unit_test(what_is_wanted_is_taken),
        cmocka_unit_test(ranks_that_want_different_plans_are_told),
        cmocka_unit_test(damage_parts_nobody),
        cmocka_unit_test(an_absent_rank_is_named),
        cmocka_unit_test(no_message_lies_on_a_stack),
        cmocka_unit_test(measuring_leaves_time),
        cmocka_unit_test(a_rank_that_stops_is_left_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
