/* SPDX-License-Identifier: MIT
 *
 * Communicators of the ranks that are left: who is among them, who is not, and what each is told.
 * The ranks are threads; one that is dead makes no more calls.
 *
 * test: waits tsan
 */
#include "collectives/transport/comm.h"
#include "lib/base/base.h"
#include "tests/support/gather.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <tamis/elastic.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SOON_MS = 1500 };

/* A deadline of which ranks that let another one pass have a tenth only. */
enum { MISSED_MS = 15000 };

typedef struct shrink_case {
    uint32_t nranks;
    uint64_t left; /* a bit for each rank that is */
    bool listed;   /* the ranks say so */
    bool leave;    /* those that are dead destroy their communicators */
    bool first;    /* nothing has failed before */
    atomic_uint_fast32_t arrived, done;
    tamis_comm *comms[RANKS_MOST];
    tamis_status status[RANKS_MOST];
    char said[RANKS_MOST][512];
} shrink_case;

static bool in(uint64_t mask, uint32_t rank) {
    return mask >> rank & 1;
}

static uint32_t list_of(uint64_t mask, uint32_t *list) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < RANKS_MOST; r++)
        if (in(mask, r))
            list[count++] = r;
    return count;
}

static tamis_status shrink(tamis_comm *comm, uint64_t mask, bool listed, tamis_comm **out) {
    uint32_t list[RANKS_MOST];
    tamis_shrink how = TAMIS_SHRINK_INIT;
    how.nranks = listed ? list_of(mask, list) : 0;
    how.ranks = listed ? list : NULL;
    return tamis_comm_shrink(comm, &how, out);
}

/* The new communicator is of these ranks in their order, and works. */
static void check_smaller(test_rank *self, tamis_comm *comm, uint64_t mask, uint32_t me) {
    uint32_t list[RANKS_MOST], count = list_of(mask, list), own = 0;
    while (list[own] != me)
        own++;
    RANK_CHECK(self, tamis_comm_nranks(comm) == count, "%u ranks, not %u", tamis_comm_nranks(comm),
               count);
    RANK_CHECK(self, tamis_comm_rank(comm) == own, "rank %u, not %u", tamis_comm_rank(comm), own);
    for (uint32_t r = 0; r < count; r++)
        RANK_CHECK(self, tamis_comm_rank_before(comm, r) == list[r], "rank %u was %u", r,
                   tamis_comm_rank_before(comm, r));
    RANK_CHECK(self, tamis_comm_rank_before(comm, count) == 0, "a rank that does not exist");
    RANK_OK(self, tamis_comm_check_equal(comm, "equal", 5));
    RANK_STATUS(self, count > 1 ? TAMIS_E_MISMATCH : TAMIS_OK,
                tamis_comm_check_equal(comm, &list[own], sizeof list[own]));
}

/* Poison by the deadline, as a rank that has stopped does it. */
static void notice(test_rank *self) {
    test_deadline(self->comm, 50);
    RANK_CHECK(self, tamis_comm_check_equal(self->comm, "x", 1) != TAMIS_OK, "nobody is missing");
}

/* How long ranks wait for those that are dead, and when they must have gone on. */
static uint32_t patience_ms(const shrink_case *c) {
    return c->listed || c->leave ? test_long_ms()
           : c->first            ? test_stretch_ms(SOON_MS)
                                 : test_stretch_ms(MISSED_MS);
}

static uint32_t at_most_ms(const shrink_case *c) {
    return c->listed || c->leave ? test_long_ms() / 2
           : c->first            ? test_stretch_ms(SOON_MS) + test_grace_ms()
                                 : test_stretch_ms(MISSED_MS) / 2;
}

static void go_on(test_rank *self) {
    shrink_case *c = self->shared;
    tamis_comm *smaller = NULL;
    if (!in(c->left, self->id)) {
        if (c->leave)
            tamis_comm_destroy(c->comms[self->id]);
        atomic_fetch_add(&c->done, 1);
        return;
    }
    while (atomic_load(&c->done) + (uint32_t)__builtin_popcountll(c->left) < c->nranks)
        sleep_ms(1);
    if (!c->first)
        notice(self);
    test_deadline(self->comm, patience_ms(c));
    RANK_OK(self, tamis_comm_set_waiting(self->comm, TAMIS_WAITING_SLEEP));
    uint64_t begin_ms = now_ms();
    RANK_OK(self, shrink(self->comm, c->left, c->listed, &smaller));
    uint64_t took_ms = now_ms() - begin_ms;
    RANK_CHECK(self, took_ms <= at_most_ms(c), "took %llu ms", (unsigned long long)took_ms);
    RANK_CHECK(self, tamis_comm_status(self->comm) != TAMIS_OK, "the old one is not lost");
    RANK_CHECK(self, smaller->timeout_ns == self->comm->timeout_ns, "another timeout");
    RANK_CHECK(self, atomic_load(&smaller->waiting) == TAMIS_WAITING_SLEEP, "it waits otherwise");
    test_deadline(smaller, test_long_ms());
    check_smaller(self, smaller, c->left, self->id);
    tamis_comm_destroy(smaller);
}

static void run_on(shrink_case *c, rank_body body) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    test_context("P=%u, left %llx, listed %d, leave %d, first %d", c->nranks,
                 (unsigned long long)c->left, c->listed, c->leave, c->first);
    assert_int_equal(tamis_comm_create_local(c->nranks, &config, c->comms), TAMIS_OK);
    ranks_run_on(c->comms, c->nranks, body, c);
    for (uint32_t r = 0; r < c->nranks; r++)
        if (in(c->left, r) || !c->leave)
            tamis_comm_destroy(c->comms[r]);
}

static void those_that_are_left_go_on(void **state) {
    static const struct {
        uint32_t nranks;
        uint64_t left;
    } cases[] = {{1, 0x1}, {2, 0x1}, {2, 0x2},  {3, 0x5},  {3, 0x3},
                 {4, 0xe}, {4, 0x6}, {8, 0xfb}, {8, 0x7e}, {8, 0xff}};
    uint64_t live = tam_alloc_live();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int how = 0; how < 6; how++) {
            shrink_case c = {.nranks = cases[i].nranks, .left = cases[i].left};
            c.listed = how % 3 == 1;
            c.leave = how % 3 == 2;
            c.first = how >= 3 || c.left + 1 == UINT64_C(1) << c.nranks;
            if (how % 3 == 0 && i % 3 != 0)
                continue; /* these wait for their deadline */
            run_on(&c, go_on);
        }
    assert_true(test_freed(live));
}

/* -- too late, twice -------------------------------------------------------------------------- */

static void come_late(test_rank *self) {
    shrink_case *c = self->shared;
    tamis_comm *smaller = NULL;
    if (in(c->left, self->id)) {
        test_deadline(self->comm, 300);
        c->status[self->id] = shrink(self->comm, c->left, c->listed, &smaller);
        RANK_OK(self, c->status[self->id]);
        atomic_fetch_add(&c->done, 1);
        RANK_STATUS(self, TAMIS_E_STATE, shrink(self->comm, c->left, c->listed, &smaller));
        check_smaller(self, smaller, c->left, self->id);
        tamis_comm_destroy(smaller);
        return;
    }
    while (atomic_load(&c->done) < (uint32_t)__builtin_popcountll(c->left))
        sleep_ms(1);
    for (int again = 0; again < 2; again++) {
        RANK_STATUS(self, TAMIS_E_TIMEOUT,
                    shrink(self->comm, UINT64_C(1) << self->id, again == 1, &smaller));
        RANK_CHECK(self, has_word(tamis_last_error(), "too late") && !smaller, "\"%s\"",
                   tamis_last_error());
    }
}

static void who_comes_late_never_joins(void **state) {
    (void)state;
    for (int listed = 0; listed < 2; listed++) {
        shrink_case c = {.nranks = 4, .left = 0xd, .listed = listed};
        if (!listed)
            c.left = 0x1; /* only one, so that no thread can be late by accident */
        run_on(&c, come_late);
    }
}

static void shrink_again(test_rank *self) {
    tamis_comm *comm = self->comm, *smaller = NULL;
    shrink_case *c = self->shared;
    uint32_t me = self->id;
    for (uint32_t nranks = c->nranks; nranks > 1; nranks--) {
        uint32_t gone = nranks / 2;
        if (me == gone)
            break;
        RANK_OK(self, shrink(comm, ((UINT64_C(1) << nranks) - 1) & ~(UINT64_C(1) << gone), true,
                             &smaller));
        RANK_CHECK(self, tamis_comm_nranks(smaller) == nranks - 1, "not %u ranks", nranks - 1);
        RANK_CHECK(self, tamis_comm_rank_before(smaller, tamis_comm_rank(smaller)) == me,
                   "it was another rank");
        RANK_OK(self, tamis_comm_check_equal(smaller, &nranks, sizeof nranks));
        if (comm != self->comm)
            tamis_comm_destroy(comm);
        comm = smaller;
        me = tamis_comm_rank(comm);
    }
    if (comm != self->comm)
        tamis_comm_destroy(comm);
}

static void one_after_another(void **state) {
    (void)state;
    shrink_case c = {.nranks = 8, .left = 0xff};
    run_on(&c, shrink_again);
}

/* -- lists that are wrong --------------------------------------------------------------------- */

/* All say who is left, one of them something else; then all the same. `lag`: one rank comes when
 * the others already know. */
typedef struct differing {
    shrink_case base;
    uint64_t odd; /* what rank 1 says; 0: no list */
    uint32_t lag;
} differing;

static void differ_once(test_rank *self) {
    differing *d = self->shared;
    shrink_case *c = &d->base;
    tamis_comm *smaller = NULL;
    bool odd = self->id == 1;
    if (!in(c->left, self->id))
        return;
    while (self->id == d->lag && atomic_load(&c->done) < 1)
        sleep_ms(1);
    tamis_status status = shrink(self->comm, odd ? d->odd : c->left, !odd || d->odd != 0, &smaller);
    atomic_fetch_add(&c->done, 1);
    RANK_STATUS(self, TAMIS_E_MISMATCH, status);
    RANK_CHECK(self, has_word(tamis_last_error(), "differ") && !smaller, "\"%s\"",
               tamis_last_error());
    RANK_OK(self, shrink(self->comm, c->left, true, &smaller));
    check_smaller(self, smaller, c->left, self->id);
    tamis_comm_destroy(smaller);
}

static void lists_that_differ_are_told_to_all(void **state) {
    static const struct {
        uint64_t odd;
        uint32_t lag;
    } cases[] = {{0x7, 9}, {0xb, 2}, {0x3, 9}, {0, 9}, {0, 3}, {0xf, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        differing d = {
            .base = {.nranks = 4, .left = i == 5 ? 0x7 : 0xf}, cases[i].odd, cases[i].lag};
        if (d.odd == d.base.left)
            continue;
        run_on(&d.base, differ_once);
    }
}

/* Rank 2 of the list {0 1 2} does not come, or has left; then the others go on. */
static void miss_one(test_rank *self) {
    shrink_case *c = self->shared;
    tamis_comm *smaller = NULL;
    if (self->id == 2) {
        if (c->leave)
            tamis_comm_destroy(self->comm);
        return;
    }
    test_deadline(self->comm, c->leave ? test_long_ms() : 400);
    RANK_STATUS(self, c->leave ? TAMIS_E_ABORTED : TAMIS_E_TIMEOUT,
                shrink(self->comm, 0x7, true, &smaller));
    RANK_CHECK(self, has_word(tamis_last_error(), "rank(s) 2|rank(s) 1 2|rank(s) 0 2"), "\"%s\"",
               tamis_last_error());
    test_deadline(self->comm, test_long_ms());
    tamis_status status;
    do /* the first attempt of one rank may have ended before the other came to it */
        status = shrink(self->comm, 0x3, true, &smaller);
    while (status == TAMIS_E_TIMEOUT);
    RANK_OK(self, status);
    check_smaller(self, smaller, 0x3, self->id);
    tamis_comm_destroy(smaller);
}

static void who_is_listed_must_come(void **state) {
    (void)state;
    for (int leave = 0; leave < 2; leave++) {
        shrink_case c = {.nranks = 3, .left = 0x3, .leave = leave};
        run_on(&c, miss_one);
    }
}

/* -- arguments -------------------------------------------------------------------------------- */

static void misuse(test_rank *self) {
    static const uint32_t falling[] = {1, 0}, twice[] = {0, 0}, beyond[] = {0, 2}, other[] = {1},
                          own[] = {0};
    const struct {
        const uint32_t *ranks;
        uint32_t nranks;
    } lists[] = {{falling, 2}, {twice, 2}, {beyond, 2}, {other, 1}, {own, 0}, {NULL, 1}};
    tamis_comm *smaller = NULL;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    if (self->id == 0) {
        RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(NULL, &how, &smaller));
        RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(self->comm, &how, NULL));
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
            how.ranks = lists[i].ranks;
            how.nranks = lists[i].nranks;
            RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(self->comm, &how, &smaller));
        }
        how.ranks = own;
        how.nranks = 3; /* more than there are: not all may be read */
        RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(self->comm, &how, &smaller));
        RANK_CHECK(self, has_word(tamis_last_error(), "nranks is 3"), "\"%s\"", tamis_last_error());
        how.size = 0;
        RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_shrink(self->comm, &how, &smaller));
        RANK_CHECK(self, !smaller, "written");
    }
    RANK_OK(self, tamis_comm_check_equal(self->comm, "unharmed", 8));
    RANK_CHECK(self, tamis_comm_rank_before(self->comm, 1) == 1, "was another");
    RANK_CHECK(self, tamis_comm_rank_before(NULL, 1) == 0, "of nothing");
}

/* A rank that waits in another call hears of it, long before its deadline. */
static void wake(test_rank *self) {
    tamis_comm *smaller = NULL;
    uint64_t begin_ms = now_ms();
    if (self->id == 1) {
        RANK_STATUS(self, TAMIS_E_ABORTED, tamis_comm_check_equal(self->comm, "waits", 5));
        RANK_CHECK(self, has_word(tamis_last_error(), "tamis_comm_shrink"), "\"%s\"",
                   tamis_last_error());
        RANK_CHECK(self, now_ms() - begin_ms < test_long_ms() / 4, "waited");
        return;
    }
    sleep_ms(50);
    RANK_OK(self, tamis_comm_set_waiting(self->comm, TAMIS_WAITING_SLEEP));
    RANK_OK(self, shrink(self->comm, 0x1, true, &smaller));
    RANK_CHECK(self, atomic_load(&smaller->waiting) == TAMIS_WAITING_SLEEP, "it waits otherwise");
    RANK_CHECK(self, tamis_comm_status(self->comm) == TAMIS_E_ABORTED, "not lost");
    tamis_comm_destroy(smaller);
}

static void wrong_arguments_have_no_effect(void **state) {
    (void)state;
    ranks_run(2, 0, misuse, NULL);
    ranks_run(2, 0, wake, NULL);
}

/* -- over the caller's network ---------------------------------------------------------------- */

/* Ranks 0 and 2 of three go on, and something is wrong. */
typedef enum wrong {
    NO_LIST,
    NO_CALLBACKS,
    OTHER_RANK,
    OTHER_COUNT,
    OTHER_LIST,
    CROSSED,
    WRONGS
} wrong;

typedef struct network {
    wrong wrong;
    gather *board;
} network;

static void call_over_callback(test_rank *self) {
    static const uint32_t both[] = {0, 2}, other[] = {1, 2};
    const network *n = self->shared;
    wrong w = n->wrong;
    tamis_comm *smaller = NULL;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    if (self->id == 1)
        return;
    uint32_t new_rank = self->id / 2;
    tamis_callbacks callbacks = gather_callbacks(n->board, w == CROSSED ? 1 - new_rank : new_rank);
    callbacks.rank = w == OTHER_RANK ? 1 - new_rank : new_rank;
    callbacks.nranks = w == OTHER_COUNT ? 3 : 2;
    how.ranks = w == NO_LIST ? NULL : w == OTHER_LIST && new_rank == 1 ? other : both;
    how.nranks = w == NO_LIST ? 0 : 2;
    how.callbacks = w == NO_CALLBACKS ? NULL : &callbacks;
    RANK_STATUS(self, w < OTHER_LIST ? TAMIS_E_ARGUMENT : TAMIS_E_MISMATCH,
                tamis_comm_shrink(self->comm, &how, &smaller));
    RANK_CHECK(self,
               !smaller && has_word(tamis_last_error(), w == CROSSED      ? "order"
                                                        : w == OTHER_LIST ? "list"
                                                                          : "tamis_shrink"),
               "\"%s\"", tamis_last_error());
    RANK_CHECK(self, (tamis_comm_status(self->comm) == TAMIS_OK) == (w < OTHER_LIST),
               "the old communicator: %s", tamis_status_name(tamis_comm_status(self->comm)));
}

static void what_a_caller_says_is_checked(void **state) {
    tamis_comm *comms[3];
    (void)state;
    for (wrong w = NO_LIST; w < WRONGS; w++) {
        gather *before = gather_create(3, test_long_ms(), NULL, NULL);
        network n = {w, gather_create(2, test_long_ms(), NULL, NULL)};
        test_context("over callback, mistake %d", (int)w);
        gather_comms(before, comms);
        ranks_run_on(comms, 3, call_over_callback, &n);
        for (int r = 0; r < 3; r++)
            tamis_comm_destroy(comms[r]);
        gather_destroy(before);
        gather_destroy(n.board);
    }
}

/* Who is left over the caller's network has one communicator, also for tamis_info --flight. */
typedef struct left_two {
    gather *board;
    uint32_t groups[3];
} left_two;

static void go_on_over_callback(test_rank *self) {
    static const uint32_t both[] = {0, 2};
    left_two *l = self->shared;
    tamis_comm *smaller = NULL;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    if (self->id == 1)
        return;
    const tamis_callbacks callbacks = gather_callbacks(l->board, self->id / 2);
    how.ranks = both;
    how.nranks = 2;
    how.callbacks = &callbacks;
    RANK_OK(self, tamis_comm_shrink(self->comm, &how, &smaller));
    check_smaller(self, smaller, 0x5, self->id);
    l->groups[self->id] = smaller->recorded.flight->group;
    tamis_comm_destroy(smaller);
}

static void recorders_of_one_communicator_have_one_number(void **state) {
    tamis_comm *comms[3], *later;
    gather *before = gather_create(3, test_long_ms(), NULL, NULL);
    left_two l = {.board = gather_create(2, test_long_ms(), NULL, NULL)};
    (void)state;
    gather_comms(before, comms);
    ranks_run_on(comms, 3, go_on_over_callback, &l);
    assert_int_equal(l.groups[0], l.groups[2]);
    assert_int_equal(tamis_comm_create_local(1, NULL, &later), TAMIS_OK);
    assert_true(later->recorded.flight->group > l.groups[0]);
    tamis_comm_destroy(later);
    for (int r = 0; r < 3; r++)
        tamis_comm_destroy(comms[r]);
    gather_destroy(before);
    gather_destroy(l.board);
}

/* Not all of them fit the sentence, which says so. */
static void many_may_be_missing(void **state) {
    enum { P = 100 };
    tamis_comm *comms[P], *smaller = NULL;
    uint32_t list[P];
    tamis_shrink how = TAMIS_SHRINK_INIT;
    (void)state;
    assert_int_equal(tamis_comm_create_local(P, NULL, comms), TAMIS_OK);
    for (uint32_t r = 0; r < P; r++)
        list[r] = r;
    for (uint32_t r = 1; r < P; r++)
        tamis_comm_destroy(comms[r]);
    how.ranks = list;
    how.nranks = P;
    assert_int_equal(tamis_comm_shrink(comms[0], &how, &smaller), TAMIS_E_ABORTED);
    if (!strstr(tamis_last_error(), " 1 2 3 ") || !strstr(tamis_last_error(), " more destroyed"))
        fail_msg("%s", tamis_last_error());
    assert_int_equal(tamis_comm_shrink(comms[0], NULL, &smaller), TAMIS_OK);
    assert_int_equal(tamis_comm_nranks(smaller), 1);
    tamis_comm_destroy(smaller);
    tamis_comm_destroy(comms[0]);
}

/* A communicator of one rank shrinks to itself; every allocation fails in turn. */
static void memory_may_be_short(void **state) {
    uint64_t live = tam_alloc_live();
    tamis_status status = TAMIS_E_NOMEM;
    (void)state;
    for (long budget = 0; status == TAMIS_E_NOMEM; budget++) {
        tamis_comm *comm = NULL, *smaller = NULL;
        assert_int_equal(tamis_comm_create_local(1, NULL, &comm), TAMIS_OK);
        tam_alloc_budget(budget);
        status = tamis_comm_shrink(comm, NULL, &smaller);
        tam_alloc_budget(-1);
        assert_true(status == TAMIS_OK || (status == TAMIS_E_NOMEM && !smaller));
        assert_true(status != TAMIS_OK || budget > 5);
        tamis_comm_destroy(smaller);
        tamis_comm_destroy(comm);
    }
    assert_int_equal(status, TAMIS_OK);
    assert_true(test_freed(live));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_that_are_left_go_on),
        cmocka_unit_test(who_comes_late_never_joins),
        cmocka_unit_test(one_after_another),
        cmocka_unit_test(lists_that_differ_are_told_to_all),
        cmocka_unit_test(who_is_listed_must_come),
        cmocka_unit_test(wrong_arguments_have_no_effect),
        cmocka_unit_test(what_a_caller_says_is_checked),
        cmocka_unit_test(recorders_of_one_communicator_have_one_number),
        cmocka_unit_test(many_may_be_missing),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
