/* SPDX-License-Identifier: MIT
 *
 * Migrating a reducer to fewer ranks: it goes on as one that was made anew from saved states would,
 * what is lost is told, what cannot be is refused on all ranks, and nothing is harmed by that.
 */
#include "collectives/transport/faulty.h"
#include "lib/base/base.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 600, BEFORE = 4, AFTER = 6 };

static const tamis_update adam = {
    sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 0.0, 0.0};

typedef struct options {
    const char *scheme;
    const tamis_update *update;
    tamis_value_codec value_codec;
    double density; /* from the first step on, of at most 0.05; 0: that */
} options;

static tamis_status make(tamis_comm *comm, const options *o, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = o->scheme;
    config.density = 0.05;
    config.update = o->update;
    config.value_codec = o->value_codec;
    return data_reducer(comm, N, &config, out);
}

static tamis_status one_step(tamis_reducer *r, uint32_t rank, uint32_t number, float *grad) {
    const tamis_step step = data_step(grad);
    data_fill_real(rank, number, N, grad);
    tamis_status status = tamis_reducer_start(r, &step);
    return status == TAMIS_OK ? tamis_reducer_wait(r) : status;
}

static tamis_status shrink_without(tamis_comm *comm, uint32_t gone, tamis_comm **out) {
    uint32_t list[RANKS_MOST], count = 0;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    for (uint32_t r = 0; r < tamis_comm_nranks(comm); r++)
        if (r != gone)
            list[count++] = r;
    how.ranks = list;
    how.nranks = count;
    return tamis_comm_shrink(comm, &how, out);
}

/* -- as from saved states --------------------------------------------------------------------- */

typedef struct twins {
    options o;
    tamis_comm *fresh[RANKS_MOST]; /* of one rank less */
    double squares[RANKS_MOST];
} twins;

/* The slow and obvious way: all parts of the state in memory, another reducer. */
static void restore(test_rank *self, tamis_reducer *from, tamis_reducer *to) {
    const options *o = &((twins *)self->shared)->o;
    size_t bytes = 0;
    float residual[N], first[N], second[N];
    uint64_t passes = 0;
    RANK_OK(self, tamis_reducer_control_bytes(from, &bytes));
    void *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(from, control, bytes));
    RANK_OK(self, tamis_reducer_load_memory(to, control, bytes, NULL));
    free(control);
    if (strcmp(o->scheme, "dense") != 0) {
        float share = (float)(self->nranks - 1) / (float)self->nranks;
        RANK_OK(self, tamis_reducer_save_residual(from, residual));
        for (size_t i = 0; i < N; i++)
            residual[i] *= share;
        RANK_OK(self, tamis_reducer_load_memory(to, NULL, 0, residual));
    }
    if (o->update) {
        RANK_OK(self, tamis_reducer_save_moments(from, first, second, &passes));
        RANK_OK(self, tamis_reducer_load_moments(to, first, second, passes));
    }
}

static void compare_steps(test_rank *self, tamis_reducer *a, tamis_reducer *b) {
    float one[N], other[N];
    const twins *t = self->shared;
    for (uint32_t n = 0; n < AFTER; n++) {
        if (n == AFTER / 2 && t->o.density > 0.0) {
            RANK_OK(self, tamis_reducer_set_density(a, 0.03));
            RANK_OK(self, tamis_reducer_set_density(b, 0.03));
        }
        RANK_OK(self, one_step(a, self->id, 100 + n, one));
        RANK_OK(self, one_step(b, self->id, 100 + n, other));
        RANK_CHECK(self, memcmp(one, other, sizeof one) == 0, "step %u gives other bits", n);
    }
}

static double square(const tamis_reducer *r) {
    const float *residual = NULL;
    double sum = 0.0;
    if (tamis_reducer_residual(r, &residual) == TAMIS_OK && residual)
        for (size_t i = 0; i < N; i++)
            sum += (double)residual[i] * (double)residual[i];
    return sum;
}

static void check_report(test_rank *self, const tamis_migration *m) {
    const twins *t = self->shared;
    double kept = 0.0;
    uint32_t left = self->nranks - 1;
    for (uint32_t r = 0; r < left; r++)
        kept += t->squares[r];
    RANK_CHECK(self, m->step == BEFORE && m->gone == 1, "step %llu, %u gone",
               (unsigned long long)m->step, m->gone);
    RANK_CHECK(self, m->kept_square == kept, "kept %g, not %g", m->kept_square, kept);
    RANK_CHECK(self, m->lost_square == kept / left, "lost %g of %g", m->lost_square, kept);
}

/* The last rank is gone, so that the others keep their numbers. */
static void migrate_and_compare(test_rank *self) {
    twins *t = self->shared;
    tamis_comm *smaller = NULL;
    tamis_reducer *r = NULL, *migrated = NULL, *fresh = NULL;
    tamis_migration report = TAMIS_MIGRATION_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    float grad[N];
    RANK_OK(self, make(self->comm, &t->o, &r));
    if (t->o.density > 0.0)
        RANK_OK(self, tamis_reducer_set_density(r, t->o.density));
    for (uint32_t n = 0; n < BEFORE; n++)
        RANK_OK(self, one_step(r, self->id, n, grad));
    t->squares[self->id] = square(r);
    if (!rank_barrier(self) || self->id + 1 == self->nranks) {
        tamis_reducer_destroy(r);
        return;
    }
    RANK_OK(self, shrink_without(self->comm, self->nranks - 1, &smaller));
    RANK_OK(self, tamis_reducer_migrate(r, smaller, &report, &migrated));
    check_report(self, &report);
    RANK_OK(self, make(t->fresh[self->id], &t->o, &fresh));
    restore(self, r, fresh);
    compare_steps(self, migrated, fresh);
    RANK_OK(self, tamis_reducer_stats(migrated, &stats));
    RANK_CHECK(self, stats.steps == BEFORE + AFTER, "%llu steps", (unsigned long long)stats.steps);
    tamis_reducer_destroy(fresh);
    tamis_reducer_destroy(migrated);
    tamis_reducer_destroy(r);
    tamis_comm_destroy(smaller);
}

static void it_goes_on_as_from_saved_states(void **state) {
    static const options cases[] = {
        {"tamis", NULL, TAMIS_VALUE_AUTO, 0.0},  {"tamis", NULL, TAMIS_VALUE_AUTO, 0.02},
        {"tamis", NULL, TAMIS_VALUE_INT8, 0.0},  {"topk", NULL, TAMIS_VALUE_AUTO, 0.0},
        {"deft", NULL, TAMIS_VALUE_AUTO, 0.0},   {"exdyna", NULL, TAMIS_VALUE_AUTO, 0.0},
        {"oktopk", NULL, TAMIS_VALUE_AUTO, 0.0}, {"sage", NULL, TAMIS_VALUE_AUTO, 0.0},
        {"dense", NULL, TAMIS_VALUE_AUTO, 0.0},  {"tamis", &adam, TAMIS_VALUE_AUTO, 0.0},
        {"tamis", &adam, TAMIS_VALUE_AUTO, 0.02}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t nranks = 2; nranks <= 5; nranks += 3) {
            tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
            twins t = {.o = cases[i]};
            config.timeout_ms = test_long_ms();
            test_context("%s P=%u, update %d, density %g", t.o.scheme, nranks, t.o.update != NULL,
                         t.o.density);
            assert_int_equal(tamis_comm_create_local(nranks - 1, &config, t.fresh), TAMIS_OK);
            ranks_run(nranks, 0, migrate_and_compare, &t);
            for (uint32_t r = 0; r < nranks - 1; r++)
                tamis_comm_destroy(t.fresh[r]);
        }
}

/* -- a migration that fails ------------------------------------------------------------------- */

typedef struct halfway {
    uint64_t
        nth; /* operation of the migration that fails on rank 2, when the others have made it */
    tamis_status status[3];
    uint64_t hash[3];
} halfway;

/* Some ranks may have migrated and others not; all shrink again, and migrate what they have. */
static void migrate_twice(test_rank *self) {
    halfway *h = self->shared;
    const options o = {"tamis", &adam, TAMIS_VALUE_AUTO, 0.0};
    tamis_comm *first = NULL, *second = NULL;
    tamis_reducer *early = NULL, *r = NULL, *migrated = NULL;
    float grad[N], before[N], after[N];
    RANK_OK(self, make(self->comm, &o, &early)); /* so that numbers differ on the next one */
    RANK_OK(self, make(self->comm, &o, &r));
    tamis_reducer_destroy(early);
    for (uint32_t n = 0; n < BEFORE; n++)
        RANK_OK(self, one_step(r, self->id, n, grad));
    RANK_OK(self, tamis_reducer_save_residual(r, before));
    RANK_OK(self, shrink_without(self->comm, 99, &first));
    if (self->id == 2)
        RANK_OK(self, tam_faulty_install(first, TAM_FAULT_LATE, h->nth, 5));
    h->status[self->id] = tamis_reducer_migrate(r, first, NULL, &migrated);
    RANK_CHECK(self, !migrated == (h->status[self->id] != TAMIS_OK), "written after a failure");
    if (migrated) {
        tamis_reducer_destroy(r);
        r = migrated;
        migrated = NULL;
    }
    RANK_OK(self, shrink_without(first, 99, &second));
    RANK_OK(self, tamis_reducer_migrate(r, second, NULL, &migrated));
    RANK_OK(self, tamis_reducer_save_residual(migrated, after));
    RANK_CHECK(self, memcmp(before, after, sizeof after) == 0, "another residual");
    for (uint32_t n = 0; n < AFTER; n++) {
        RANK_OK(self, one_step(migrated, self->id, 100 + n, grad));
        h->hash[self->id] = data_hash(h->hash[self->id], grad, sizeof grad);
    }
    tamis_reducer_destroy(migrated);
    tamis_reducer_destroy(r);
    tamis_comm_destroy(second);
    tamis_comm_destroy(first);
}

static void a_migration_that_failed_on_some_ranks_is_made_again(void **state) {
    uint32_t halves = 0, failed = 1;
    uint64_t hash = 0;
    (void)state;
    for (uint64_t nth = 0; failed > 0; nth++) {
        halfway h = {.nth = nth};
        assert_true(nth < 40);
        test_context("the migration fails at operation %llu", (unsigned long long)nth);
        ranks_run(3, 0, migrate_twice, &h);
        failed = 0;
        for (int r = 0; r < 3; r++) {
            failed += h.status[r] != TAMIS_OK;
            hash = nth == 0 && r == 0 ? h.hash[0] : hash;
            assert_int_equal(h.hash[r], hash);
        }
        halves += failed > 0 && failed < 3;
    }
    assert_true(halves > 0);
}

/* Planned buckets follow the number of ranks; those of a reducer that migrates stay. */
static tamis_status make_planned(tamis_comm *comm, double latency_us, tamis_reducer **out) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.density = 0.2;
    config.bucket_length = TAMIS_BUCKETS_PLANNED;
    config.link_latency_us = latency_us;
    config.link_gbit = 1.0;
    return data_even_reducer(comm, 24, N / 24, &config, out);
}

typedef struct planned {
    double latency_us;
    atomic_uint differ;
} planned;

static void keep_buckets(test_rank *self) {
    planned *p = self->shared;
    tamis_comm *smaller = NULL;
    tamis_reducer *r = NULL, *fresh = NULL, *migrated = NULL;
    float grad[N];
    RANK_OK(self, make_planned(self->comm, p->latency_us, &r));
    RANK_OK(self, one_step(r, self->id, 0, grad));
    if (!rank_barrier(self) || self->id + 1 == self->nranks) {
        tamis_reducer_destroy(r);
        return;
    }
    RANK_OK(self, shrink_without(self->comm, self->nranks - 1, &smaller));
    RANK_OK(self, make_planned(smaller, p->latency_us, &fresh));
    RANK_OK(self, tamis_reducer_migrate(r, smaller, NULL, &migrated));
    RANK_CHECK(self, tamis_reducer_nbuckets(migrated) == tamis_reducer_nbuckets(r), "%u buckets",
               tamis_reducer_nbuckets(migrated));
    atomic_fetch_add(&p->differ, tamis_reducer_nbuckets(fresh) != tamis_reducer_nbuckets(r));
    RANK_OK(self, one_step(migrated, self->id, 1, grad));
    RANK_OK(self, tamis_comm_check_equal(smaller, grad, sizeof grad));
    tamis_reducer_destroy(fresh);
    tamis_reducer_destroy(migrated);
    tamis_reducer_destroy(r);
    tamis_comm_destroy(smaller);
}

/* A rank alone plans one bucket. */
static void planned_buckets_stay(void **state) {
    planned p = {.latency_us = 0.1};
    (void)state;
    for (uint32_t nranks = 2; nranks <= 5; nranks += 3) {
        test_context("planned for %u ranks", nranks);
        ranks_run(nranks, 0, keep_buckets, &p);
    }
    assert_true(p.differ > 0);
}

/* -- what is refused -------------------------------------------------------------------------- */

typedef enum wrong { IN_A_STEP, NO_OUTPUT, NO_SIZE, OTHER_REDUCER, FAR_APART, WRONGS } wrong;

/* Rank 0 makes the mistake, all ranks hear of it; then all is as it should be, and it works. */
static void refuse_and_retry(test_rank *self) {
    wrong w = *(wrong *)self->shared;
    const options o = {"tamis", NULL, TAMIS_VALUE_AUTO, 0.0};
    bool odd = self->id == 0;
    tamis_comm *smaller = NULL;
    tamis_reducer *r = NULL, *other = NULL, *migrated = NULL;
    tamis_migration report = TAMIS_MIGRATION_INIT;
    float grad[N];
    const tamis_step step = data_step(grad);
    RANK_OK(self, make(self->comm, &o, &r));
    RANK_OK(self, make(self->comm, &o, &other));
    for (uint32_t n = 0; n < BEFORE; n++)
        RANK_OK(self, one_step(r, self->id, n, grad));
    if (w == IN_A_STEP && odd)
        RANK_OK(self, tamis_reducer_start(r, &step));
    RANK_OK(self, shrink_without(self->comm, 99, &smaller));
    report.size = w == NO_SIZE && odd ? 0 : sizeof report;
    tamis_status status = tamis_reducer_migrate(w == OTHER_REDUCER && odd ? other : r, smaller,
                                                &report, w == NO_OUTPUT && odd ? NULL : &migrated);
    RANK_STATUS(self,
                w == IN_A_STEP       ? TAMIS_E_STATE
                : w == OTHER_REDUCER ? TAMIS_E_MISMATCH
                                     : TAMIS_E_ARGUMENT,
                status);
    RANK_CHECK(self, !migrated, "migrated was written");
    if (w == OTHER_REDUCER)
        RANK_CHECK(self, has_word(tamis_last_error(), "another reducer"), "\"%s\"",
                   tamis_last_error());
    if (w == IN_A_STEP && odd)
        RANK_STATUS(self, TAMIS_E_ABORTED, tamis_reducer_wait(r));
    report = (tamis_migration)TAMIS_MIGRATION_INIT;
    RANK_OK(self, tamis_reducer_migrate(r, smaller, &report, &migrated));
    RANK_CHECK(self, report.gone == 0 && report.lost_square == 0.0, "%u gone", report.gone);
    RANK_OK(self, one_step(migrated, self->id, BEFORE, grad));
    tamis_reducer_destroy(migrated);
    RANK_OK(self, tamis_reducer_migrate(other, smaller, NULL, &migrated));
    tamis_reducer_destroy(migrated);
    tamis_reducer_destroy(other);
    tamis_reducer_destroy(r);
    tamis_comm_destroy(smaller);
}

static void wrong_communicators(test_rank *self) {
    const options o = {"tamis", NULL, TAMIS_VALUE_AUTO, 0.0};
    tamis_comm *const *larger = self->shared;
    tamis_reducer *r = NULL, *migrated = NULL;
    RANK_OK(self, make(self->comm, &o, &r));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_migrate(NULL, self->comm, NULL, &migrated));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_migrate(r, NULL, NULL, &migrated));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_migrate(r, self->comm, NULL, &migrated));
    RANK_STATUS(self, TAMIS_E_MISMATCH,
                tamis_reducer_migrate(r, larger[1 - self->id], NULL, &migrated));
    RANK_CHECK(self, has_word(tamis_last_error(), "order"), "\"%s\"", tamis_last_error());
    RANK_OK(self, tamis_comm_abort(larger[self->id]));
    RANK_STATUS(self, TAMIS_E_ABORTED, tamis_reducer_migrate(r, larger[self->id], NULL, &migrated));
    RANK_OK(self, tamis_comm_check_equal(self->comm, "unharmed", 8));
    tamis_reducer_destroy(r);
}

static void too_many(test_rank *self) {
    const options o = {"tamis", NULL, TAMIS_VALUE_AUTO, 0.0};
    tamis_comm **one = self->shared;
    tamis_reducer *r = NULL, *migrated = NULL;
    RANK_OK(self, make(one[self->id], &o, &r));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_reducer_migrate(r, self->comm, NULL, &migrated));
    RANK_CHECK(self, has_word(tamis_last_error(), "tamis_comm_shrink"), "\"%s\"",
               tamis_last_error());
    tamis_reducer_destroy(r);
}

static void by_nodes(test_rank *self) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL, *migrated = NULL;
    tamis_comm *smaller = NULL;
    config.ranks_per_node = 2;
    RANK_OK(self, data_reducer(self->comm, N, &config, &r));
    RANK_OK(self, shrink_without(self->comm, 99, &smaller));
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_reducer_migrate(r, smaller, NULL, &migrated));
    tamis_reducer_destroy(r);
    tamis_comm_destroy(smaller);
}

static void mistakes_are_told_to_all_and_harm_nothing(void **state) {
    tamis_comm *comms[2];
    (void)state;
    for (wrong w = IN_A_STEP; w < FAR_APART; w++) {
        test_context("mistake %d", (int)w);
        ranks_run(3, 0, refuse_and_retry, &w);
    }
    test_context("wrong communicators");
    assert_int_equal(tamis_comm_create_local(2, NULL, comms), TAMIS_OK);
    ranks_run(2, 0, wrong_communicators, comms);
    for (int r = 0; r < 2; r++)
        tamis_comm_destroy(comms[r]);
    for (int r = 0; r < 2; r++)
        assert_int_equal(tamis_comm_create_local(1, NULL, &comms[r]), TAMIS_OK);
    ranks_run(2, 0, too_many, comms);
    for (int r = 0; r < 2; r++)
        tamis_comm_destroy(comms[r]);
    ranks_run(4, 0, by_nodes, NULL);
}

/* Two ranks whose steps are too far apart: states loaded from different times. */
static void far_apart(test_rank *self) {
    const options o = {"tamis", NULL, TAMIS_VALUE_AUTO, 0.0};
    tamis_comm *smaller = NULL;
    tamis_reducer *r = NULL, *migrated = NULL;
    float grad[N], residual[N];
    size_t bytes = 0;
    RANK_OK(self, make(self->comm, &o, &r));
    RANK_OK(self, tamis_reducer_control_bytes(r, &bytes));
    void *control = malloc(bytes);
    RANK_OK(self, tamis_reducer_save_control(r, control, bytes));
    RANK_OK(self, tamis_reducer_save_residual(r, residual));
    for (uint32_t n = 0; n < 2; n++)
        RANK_OK(self, one_step(r, self->id, n, grad));
    if (self->id == 1)
        RANK_OK(self, tamis_reducer_load_memory(r, control, bytes, residual));
    free(control);
    RANK_OK(self, shrink_without(self->comm, 99, &smaller));
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_reducer_migrate(r, smaller, NULL, &migrated));
    RANK_CHECK(self, has_word(tamis_last_error(), "more than one"), "\"%s\"", tamis_last_error());
    tamis_reducer_destroy(r);
    tamis_comm_destroy(smaller);
}

static void ranks_too_far_apart_do_not_agree(void **state) {
    (void)state;
    ranks_run(2, 0, far_apart, NULL);
}

/* One reducer was made on the first communicator, the other on the second, each as its first. The
 * ranks take them along to the third in another order. */
static void swap_reducers(test_rank *self) {
    const options o = {"tamis", NULL, TAMIS_VALUE_AUTO, 0.0};
    tamis_comm *second = NULL, *third = NULL;
    tamis_reducer *before = NULL, *one = NULL, *other = NULL, *migrated = NULL;
    RANK_OK(self, make(self->comm, &o, &before));
    RANK_OK(self, shrink_without(self->comm, 99, &second));
    RANK_OK(self, make(second, &o, &other));
    RANK_OK(self, tamis_reducer_migrate(before, second, NULL, &one));
    tamis_reducer_destroy(before);
    RANK_OK(self, shrink_without(second, 99, &third));
    RANK_STATUS(self, TAMIS_E_MISMATCH,
                tamis_reducer_migrate(self->id == 1 ? one : other, third, NULL, &migrated));
    RANK_CHECK(self, has_word(tamis_last_error(), "another reducer"), "\"%s\"", tamis_last_error());
    RANK_OK(self, tamis_reducer_migrate(other, third, NULL, &migrated));
    tamis_reducer_destroy(migrated);
    tamis_reducer_destroy(one);
    tamis_reducer_destroy(other);
    tamis_comm_destroy(third);
    tamis_comm_destroy(second);
}

static void reducers_of_two_communicators_are_told_apart(void **state) {
    (void)state;
    ranks_run(2, 0, swap_reducers, NULL);
}

/* -- no memory -------------------------------------------------------------------------------- */

/* Alone, and every allocation fails in turn: the old one can be migrated again. */
static void run_short_of_memory(test_rank *self) {
    const options o = {"tamis", &adam, TAMIS_VALUE_AUTO, 0.0};
    tamis_comm *smaller = NULL;
    tamis_reducer *r = NULL, *migrated = NULL;
    tamis_status status = TAMIS_E_NOMEM;
    float grad[N];
    RANK_OK(self, make(self->comm, &o, &r));
    RANK_OK(self, one_step(r, 0, 0, grad));
    RANK_OK(self, tamis_comm_shrink(self->comm, NULL, &smaller));
    uint64_t live = tam_alloc_live();
    long budget = 0;
    for (; status == TAMIS_E_NOMEM; budget++) {
        RANK_CHECK(self, tam_alloc_live() == live, "memory is lost after %ld", budget);
        tam_alloc_budget(budget);
        status = tamis_reducer_migrate(r, smaller, NULL, &migrated);
        tam_alloc_budget(-1);
    }
    RANK_CHECK(self, status == TAMIS_OK && budget > 20, "%s after %ld", tamis_status_name(status),
               budget);
    RANK_OK(self, one_step(migrated, 0, 1, grad));
    tamis_reducer_destroy(r);
    tamis_reducer_destroy(migrated);
    tamis_comm_destroy(smaller);
}

static void memory_may_be_short(void **state) {
    (void)state;
    ranks_run(1, 0, run_short_of_memory, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_goes_on_as_from_saved_states),
        cmocka_unit_test(a_migration_that_failed_on_some_ranks_is_made_again),
        cmocka_unit_test(planned_buckets_stay),
        cmocka_unit_test(mistakes_are_told_to_all_and_harm_nothing),
        cmocka_unit_test(ranks_too_far_apart_do_not_agree),
        cmocka_unit_test(reducers_of_two_communicators_are_told_apart),
        cmocka_unit_test(memory_may_be_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
