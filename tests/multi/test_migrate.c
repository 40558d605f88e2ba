/* SPDX-License-Identifier: MIT
 *
 * Reducers that go on when ranks have died, at whatever point of a step. The gradients are whole
 * numbers and results are sums, so that nothing may be lost or counted twice, to the last unit:
 *
 *     what all ranks gave = what was applied + what waits on those left + what the dead held
 */
#include "collectives/reducer/reducer.h"
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/gather.h"
#include "tests/support/loopback.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/callback.h>
#include <tamis/elastic.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum {
    N = 600,
    ROW_ELEMENTS = 200,
    ROW = 5,
    BEFORE = 3,
    AFTER = 20,
    LIVES = 2,
    OPERATIONS_MOST = 40
};
enum { SOON_MS = 60 };

/* When a rank dies. */
typedef enum phase { AT_REST, STARTED, SILENT, APPLIED } phase;

/* Who dies at the end of a run of steps, and who lives on but fails late in its last step. */
typedef struct death {
    uint32_t dead, late; /* a bit for each rank, numbered as at first */
    phase phase;
    uint64_t nth; /* operation at which a rank stays silent, or fails */
} death;

typedef enum network { LOCAL, GATHER, LOOPBACK } network;

typedef struct migrate_case {
    const char *scheme;
    uint32_t nranks;
    death deaths[LIVES];
    const tamis_update *update;
    uint64_t bucket_length;
    bool rows, half;
    bool surges; /* each step sends more than a record of a step has room for */
    double gbit;
    network network;
} migrate_case;

/* What the ranks leave behind. */
typedef struct trial {
    migrate_case c;
    gather *boards[LIVES + 1];
    loopback *loopbacks[LIVES + 1];
    double given[RANKS_MOST][N], applied[RANKS_MOST][N], held[RANKS_MOST][N];
    double held_before[RANKS_MOST][N]; /* of the dead, as if it had not applied its last step */
    bool went_back[RANKS_MOST], whole[RANKS_MOST];
    uint64_t hash[RANKS_MOST], step[RANKS_MOST];
    tamis_migration migrated[RANKS_MOST];
    tamis_reducer *abandoned[RANKS_MOST]; /* of the dead: to destroy one would end its step; */
    tamis_comm *deserted[RANKS_MOST];     /* and theirs, if it is not the first */
} trial;

static const tamis_update adam = {
    sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 2.0, 0.0};
static const tamis_update momentum = {
    sizeof(tamis_update), TAMIS_UPDATE_MOMENTUM, 0.9, 0.99, 1e-8, 1.0, 0.0};
static const tamis_update matched = {
    sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.0, 0.99, 1e-8, 0.0, 1.0};

static bool in(uint32_t mask, uint32_t rank) {
    return mask >> rank & 1;
}

/* As if k were so small that these steps, of some 30 entries and more, are many times as long. */
static void shorten_records(const migrate_case *c, tamis_reducer *r) {
    for (uint32_t i = 0; c->surges && i < r->nbuckets; i++)
        r->buckets[i].rollback_capacity = 2;
}

static tamis_status make(tamis_comm *comm, const migrate_case *c, tamis_reducer **out) {
    static const tamis_segment segments[] = {
        {"a", 150}, {"words", ROW_ELEMENTS}, {"b", N - 150 - ROW_ELEMENTS}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.density = 0.05;
    config.op = TAMIS_OP_SUM;
    config.bucket_length = c->bucket_length;
    config.update = c->update;
    config.value_codec = c->half ? TAMIS_VALUE_BFLOAT16 : TAMIS_VALUE_AUTO;
    config.link_latency_us = c->gbit > 0.0 ? 1.0 : 0.0;
    config.link_gbit = c->gbit;
    tamis_status status = tamis_layout_create(segments, 3, &layout);
    if (status == TAMIS_OK && c->rows)
        status = tamis_layout_set_rows(layout, 1, ROW);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    if (status == TAMIS_OK)
        shorten_records(c, *out);
    tamis_layout_destroy(layout);
    return status;
}

static void fill(const migrate_case *c, uint32_t rank, uint32_t number, float *grad) {
    data_fill(DATA_TIES, rank, number, N, grad);
    for (size_t i = 0; i < N; i++)
        grad[i] *= (float)(1 + (i * 7 + rank + number) % 50);
    for (size_t i = 0; c->rows && i < ROW_ELEMENTS; i++)
        if ((i / ROW + rank + number) % 4 != 0)
            grad[150 + i] = 0.0f;
}

static void add(const float *values, double sign, double *sums) {
    for (size_t i = 0; i < N; i++)
        sums[i] += sign * (double)values[i];
}

static tamis_status hold(tamis_reducer *r, double *out) {
    const float *residual = NULL;
    tamis_status status = tamis_reducer_residual(r, &residual);
    memset(out, 0, N * sizeof out[0]);
    if (residual)
        add(residual, 1.0, out);
    return status;
}

/* -- a life: steps, a death, those that are left ---------------------------------------------- */

typedef struct life {
    trial *t;
    test_rank *self;
    tamis_comm *comm;
    tamis_reducer *r;
    uint32_t number; /* of the next gradient */
    float last[N];   /* the last result, */
    bool applied;    /* which was applied in this life */
} life;

/* @return the first failure. What it gives and gets is counted */
static tamis_status one_step(life *l) {
    float grad[N];
    const tamis_step step = data_step(grad);
    uint32_t me = l->self->id;
    fill(&l->t->c, me, l->number++, grad);
    float given[N];
    memcpy(given, grad, sizeof given);
    l->applied = false;
    tamis_status status = tamis_reducer_start(l->r, &step);
    if (status != TAMIS_OK)
        return status;
    add(given, 1.0, l->t->given[me]);
    status = tamis_reducer_wait(l->r);
    if (status != TAMIS_OK)
        return status;
    add(grad, 1.0, l->t->applied[me]);
    memcpy(l->last, grad, sizeof grad);
    l->applied = true;
    l->t->hash[me] = data_hash(l->t->hash[me], grad, sizeof grad);
    return TAMIS_OK;
}

/* A rank that stops here, in the step that the others want to make. */
static void die(life *l, const death *d) {
    uint32_t me = l->self->id;
    trial *t = l->t;
    float grad[N];
    const tamis_step step = data_step(grad);
    RANK_OK(l->self, hold(l->r, t->held[me]));
    memcpy(t->held_before[me], t->held[me], sizeof t->held[me]);
    if (d->phase == AT_REST)
        return;
    fill(&t->c, me, l->number, grad);
    add(grad, 1.0, t->held_before[me]);
    if (d->phase == STARTED) {
        RANK_OK(l->self, hold(l->r, t->held[me]));
        add(grad, 1.0, t->given[me]);
        add(grad, 1.0, t->held[me]);
        RANK_OK(l->self, tamis_reducer_start(l->r, &step));
        test_deadline(l->comm, SOON_MS);
        return;
    }
    test_deadline(l->comm, d->phase == SILENT ? SOON_MS : test_long_ms());
    if (d->phase == SILENT)
        RANK_OK(l->self, tam_faulty_install(l->comm, TAM_FAULT_SILENT, d->nth, 0));
    t->whole[me] = one_step(l) == TAMIS_OK;
    RANK_OK(l->self, hold(l->r, t->held[me]));
}

/* Steps until one fails. */
static void notice(life *l, const death *d) {
    uint32_t me = l->self->id;
    bool late = in(d->late, me);
    tamis_status status = TAMIS_OK;
    test_deadline(l->comm, d->phase == APPLIED ? test_long_ms() : SOON_MS);
    if (late)
        RANK_OK(l->self, tam_faulty_install(l->comm, TAM_FAULT_LATE, d->nth, 20));
    status = one_step(l);
    test_deadline(l->comm, SOON_MS);
    l->t->whole[me] = status == TAMIS_OK;
    if (status == TAMIS_OK) /* the failure shows in the next one */
        while ((status = one_step(l)) == TAMIS_OK)
            ;
    RANK_CHECK(l->self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s",
               tamis_status_name(status));
}

static tamis_status shrink(life *l, uint32_t n, uint32_t before, uint32_t dead, tamis_comm **out) {
    uint32_t list[RANKS_MOST], count = 0, own = 0, place = 0;
    tamis_shrink how = TAMIS_SHRINK_INIT;
    tamis_callbacks callbacks;
    for (uint32_t r = 0; r < l->self->nranks; r++) {
        if (!in(before, r))
            continue;
        own = r == l->self->id ? count : own;
        if (!in(dead, r))
            list[count++] = place;
        place++;
    }
    how.ranks = list;
    how.nranks = count;
    if (l->t->c.network == GATHER)
        callbacks = gather_callbacks(l->t->boards[n + 1], own);
    else if (l->t->c.network == LOOPBACK)
        callbacks = loopback_callbacks(l->t->loopbacks[n + 1], own);
    how.callbacks = l->t->c.network == LOCAL ? NULL : &callbacks;
    test_deadline(l->comm, test_long_ms());
    return tamis_comm_shrink(l->comm, &how, out);
}

static void compare_vectors(test_rank *self, const char *what, const float *old, const float *new) {
    if (old || new)
        RANK_CHECK(self, old && new &&memcmp(old, new, N * sizeof old[0]) == 0,
                   "%s is another after the migration", what);
}

/* The new one holds what the old one held. Both on the host. */
static void compare_reducers(test_rank *self, const tamis_reducer *old, const tamis_reducer *new) {
    RANK_CHECK(self, new->step == old->step &&new->passes == old->passes &&new->k == old->k,
               "step %llu, %llu passes", (unsigned long long)new->step,
               (unsigned long long)new->passes);
    compare_vectors(self, "the residual", old->acc, new->acc);
    compare_vectors(self, "the first moment", old->first, new->first);
    compare_vectors(self, "the second moment", old->second, new->second);
    RANK_CHECK(self, new->nbuckets == old->nbuckets, "%u buckets", new->nbuckets);
    RANK_CHECK(self,
               memcmp(&new->norm_matching, &old->norm_matching, sizeof new->norm_matching) == 0,
               "other norms");
    for (uint32_t i = 0; i < old->nbuckets; i++) {
        const tam_bucket *a = &old->buckets[i], *b = &new->buckets[i];
        RANK_CHECK(self, a->first_segment == b->first_segment, "bucket %u begins elsewhere", i);
        RANK_CHECK(self, a->view.last_result == b->view.last_result, "another last result");
        if (a->division.grid.ngroups == b->division.grid.ngroups &&
            tam_exchange_words(a->exchange, old->nranks) == 0)
            RANK_CHECK(self,
                       memcmp(&a->control.state, &b->control.state, sizeof a->control.state) == 0,
                       "bucket %u has other thresholds", i);
    }
}

/* What the ranks ahead have applied is taken back; then all hold what they did. */
static void migrate(life *l, uint32_t n, uint32_t before, const death *d) {
    uint32_t me = l->self->id;
    test_rank *self = l->self;
    tamis_comm *smaller = NULL;
    tamis_reducer *migrated = NULL;
    tamis_migration report = TAMIS_MIGRATION_INIT;
    uint64_t own = l->r->step;
    RANK_OK(self, shrink(l, n, before, d->dead, &smaller));
    RANK_OK(self, tamis_reducer_migrate(l->r, smaller, &report, &migrated));
    RANK_CHECK(self, report.step == own || report.step + 1 == own, "from step %llu to %llu",
               (unsigned long long)own, (unsigned long long)report.step);
    RANK_CHECK(self, report.gone == (uint32_t)__builtin_popcount(d->dead), "%u ranks are gone",
               report.gone);
    l->t->went_back[me] = report.step < own;
    if (report.step < own)
        add(l->last, -1.0, l->t->applied[me]);
    compare_reducers(self, l->r, migrated);
    shorten_records(&l->t->c, migrated);
    l->t->migrated[me] = report;
    tamis_reducer_destroy(l->r);
    if (l->comm != self->comm)
        tamis_comm_destroy(l->comm);
    l->r = migrated;
    l->comm = smaller;
    l->t->hash[me] = 0; /* of what follows: what a rank took back is in it */
}

static void live(test_rank *self) {
    trial *t = self->shared;
    life l = {.t = t, .self = self, .comm = self->comm};
    uint32_t all = (1u << self->nranks) - 1;
    RANK_OK(self, make(self->comm, &t->c, &l.r));
    for (uint32_t n = 0; n < LIVES && t->c.deaths[n].dead != 0; n++) {
        const death *d = &t->c.deaths[n];
        for (int i = 0; i < BEFORE; i++)
            RANK_OK(self, one_step(&l));
        if (in(d->dead, self->id))
            die(&l, d);
        else
            notice(&l, d);
        if (in(d->dead, self->id)) {
            t->abandoned[self->id] = l.r;
            t->deserted[self->id] = l.comm != self->comm ? l.comm : NULL;
            return;
        }
        if (self->failure[0])
            goto out;
        migrate(&l, n, all, d);
        if (self->failure[0])
            goto out;
        all &= ~d->dead;
    }
    for (int i = 0; i < AFTER; i++)
        RANK_OK(self, one_step(&l));
    RANK_OK(self, hold(l.r, t->held[self->id]));
    t->step[self->id] = l.r->step;
out:
    tamis_reducer_destroy(l.r);
    if (l.comm == self->comm)
        return;
    tamis_reducer_destroy(t->abandoned[self->id]); /* before its communicator */
    t->abandoned[self->id] = NULL;
    tamis_comm_destroy(l.comm);
}

/* -- what must hold afterwards ---------------------------------------------------------------- */

static uint32_t dead_of(const migrate_case *c) {
    return c->deaths[0].dead | c->deaths[1].dead;
}

static uint32_t first_left(const migrate_case *c) {
    uint32_t first = 0;
    while (in(dead_of(c), first))
        first++;
    return first;
}

static void check_replicas(const trial *t) {
    uint32_t first = first_left(&t->c);
    for (uint32_t r = 0; r < t->c.nranks; r++) {
        if (in(dead_of(&t->c), r))
            continue;
        if (t->hash[r] != t->hash[first] || t->step[r] != t->step[first])
            fail_msg("[%s] ranks %u and %u hold other bits, at steps %llu and %llu",
                     test_context_text(), first, r, (unsigned long long)t->step[first],
                     (unsigned long long)t->step[r]);
        if (memcmp(&t->migrated[r], &t->migrated[first], sizeof t->migrated[r]) != 0)
            fail_msg("[%s] ranks %u and %u got other reports", test_context_text(), first, r);
    }
}

/* What the dead held counts as it was when the others went on: if they have taken a step back, it
 * has not applied it either. */
static void check_mass(const trial *t) {
    uint32_t first = first_left(&t->c);
    bool back = false;
    for (uint32_t r = 0; r < t->c.nranks; r++)
        back = back || t->went_back[r] || (t->c.deaths[0].late != 0 && !t->whole[r]);
    back = back && t->c.deaths[0].phase == APPLIED;
    for (size_t i = 0; i < N; i++) {
        double given = 0.0, there = t->applied[first][i];
        for (uint32_t r = 0; r < t->c.nranks; r++) {
            bool rolled_back = in(dead_of(&t->c), r) && back;
            given += t->given[r][i];
            there += rolled_back ? t->held_before[r][i] : t->held[r][i];
        }
        if (given != there)
            fail_msg("[%s] entry %zu: %g was given, %g is there", test_context_text(), i, given,
                     there);
    }
}

static void open_networks(trial *t, tamis_comm **comms) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    uint32_t left = t->c.nranks;
    config.timeout_ms = test_long_ms();
    if (t->c.network == LOCAL) {
        assert_int_equal(tamis_comm_create_local(t->c.nranks, &config, comms), TAMIS_OK);
        return;
    }
    for (int n = 0; n <= LIVES; n++) {
        t->boards[n] = gather_create(
            left, t->c.deaths[n < LIVES ? n : 0].dead && n < LIVES ? SOON_MS * 4 : test_long_ms(),
            NULL, NULL);
        t->loopbacks[n] = loopback_create(left, 0);
        left -= n < LIVES ? (uint32_t)__builtin_popcount(t->c.deaths[n].dead) : 0;
    }
    if (t->c.network == GATHER)
        gather_comms(t->boards[0], comms);
    else
        loopback_comms(t->loopbacks[0], comms);
}

static void close_networks(trial *t, tamis_comm **comms) {
    for (uint32_t r = 0; r < t->c.nranks; r++)
        tamis_comm_destroy(comms[r]);
    for (int n = 0; n <= LIVES && t->boards[n]; n++) {
        gather_destroy(t->boards[n]);
        loopback_destroy(t->loopbacks[n]);
    }
}

/* The dead make no step any more, and what the others gave to their networks is gone. */
static void bury(trial *t, tamis_comm *const *comms) {
    for (uint32_t r = 0; r < t->c.nranks; r++) {
        if (!t->abandoned[r])
            continue;
        assert_int_equal(tamis_comm_abort(t->deserted[r] ? t->deserted[r] : comms[r]), TAMIS_OK);
        tamis_reducer_destroy(t->abandoned[r]);
        tamis_comm_destroy(t->deserted[r]);
    }
}

/* @return the trial, to be freed */
static trial *run(const migrate_case *c) {
    trial *t = calloc(1, sizeof *t);
    tamis_comm *comms[RANKS_MOST];
    assert_non_null(t);
    t->c = *c;
    test_context("%s P=%u, update %d, buckets of %llu, rows %d, network %d; %x die in phase %d, %x "
                 "are late, operation %llu; then %x",
                 c->scheme, c->nranks, c->update ? (int)c->update->rule : -1,
                 (unsigned long long)c->bucket_length, c->rows, (int)c->network, c->deaths[0].dead,
                 (int)c->deaths[0].phase, c->deaths[0].late, (unsigned long long)c->deaths[0].nth,
                 c->deaths[1].dead);
    open_networks(t, comms);
    ranks_run_on(comms, c->nranks, live, t);
    bury(t, comms);
    close_networks(t, comms);
    check_replicas(t);
    if (!c->update && strcmp(c->scheme, "dense") != 0 && c->gbit == 0.0)
        check_mass(t);
    return t;
}

/* -- cases ------------------------------------------------------------------------------------ */

static void whoever_dies_the_others_go_on(void **state) {
    static const uint32_t dead[][2] = {{2, 0x1}, {2, 0x2}, {3, 0x2}, {4, 0x9},
                                       {5, 0x4}, {8, 0x1}, {8, 0x22}};
    (void)state;
    for (size_t i = 0; i < sizeof dead / sizeof dead[0]; i++)
        for (phase p = AT_REST; p <= STARTED; p++) {
            const migrate_case c = {
                .scheme = "tamis", .nranks = dead[i][0], .deaths = {{dead[i][1], 0, p, 0}}};
            free(run(&c));
        }
}

static void every_scheme_goes_on(void **state) {
    static const migrate_case cases[] = {
        {.scheme = "tamis", .rows = true},
        {.scheme = "tamis", .bucket_length = 100},
        {.scheme = "tamis", .bucket_length = TAMIS_BUCKETS_PLANNED},
        {.scheme = "tamis", .half = true},
        {.scheme = "topk"},
        {.scheme = "cltk"},
        {.scheme = "threshold"},
        {.scheme = "sage"},
        {.scheme = "deft"},
        {.scheme = "micro"},
        {.scheme = "exdyna"},
        {.scheme = "oktopk"},
        {.scheme = "quantized"},
        {.scheme = "dense"},
        {.scheme = "auto", .bucket_length = 100, .gbit = 1.0},
        {.scheme = "all+global+exact+pairs"},
        {.scheme = "tamis", .update = &adam},
        {.scheme = "tamis-update", .update = &matched},
        {.scheme = "tamis", .update = &momentum},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (phase p = AT_REST; p <= STARTED; p++) {
            migrate_case c = cases[i];
            c.nranks = 4;
            c.deaths[0] = (death){0x2, 0, p, 0};
            if (test_drawn(3))
                free(run(&c));
        }
}

/* A rank falls silent at each operation of a step in turn. */
static void silence_is_survived_wherever_it_begins(void **state) {
    static const char *const schemes[] = {"tamis", "topk", "oktopk"};
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        uint64_t nth = 0;
        for (bool whole = false; !whole; nth++) {
            migrate_case c = {.scheme = schemes[s],
                              .nranks = 3,
                              .bucket_length = s == 0 ? 200 : 0,
                              .deaths = {{0x4, 0, SILENT, nth}}};
            assert_true(nth < OPERATIONS_MOST);
            trial *t = run(&c);
            whole = t->whole[0];
            free(t);
        }
        assert_true(nth > 1);
    }
}

/* One rank dies; of those that are left one has not applied the last step, the others have. */
static void ranks_that_are_a_step_apart_agree(void **state) {
    static const migrate_case cases[] = {
        {.scheme = "tamis", .nranks = 4},
        {.scheme = "tamis", .nranks = 4, .bucket_length = 200},
        {.scheme = "tamis", .nranks = 4, .rows = true},
        {.scheme = "exdyna", .nranks = 3},
        {.scheme = "tamis", .nranks = 4, .update = &momentum},
        {.scheme = "tamis", .nranks = 4, .surges = true},
        {.scheme = "tamis", .nranks = 4, .surges = true, .bucket_length = 200},
        {.scheme = "tamis", .nranks = 4, .surges = true, .update = &momentum},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool back = false, whole = false;
        for (uint64_t nth = 0; !whole; nth++) {
            migrate_case c = cases[i];
            c.deaths[0] = (death){0x1, 0x2, APPLIED, nth};
            assert_true(nth < OPERATIONS_MOST);
            trial *t = run(&c);
            back = back || t->went_back[2];
            whole = t->whole[1];
            free(t);
        }
        assert_true(back);
    }
}

static void they_die_one_after_another(void **state) {
    (void)state;
    for (network n = LOCAL; n <= LOOPBACK; n++)
        for (phase p = AT_REST; p <= STARTED; p++) {
            const migrate_case c = {.scheme = "tamis",
                                    .nranks = 6,
                                    .network = n,
                                    .deaths = {{0x12, 0, p, 0}, {0x4, 0, AT_REST, 0}}};
            free(run(&c));
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whoever_dies_the_others_go_on),
        cmocka_unit_test(every_scheme_goes_on),
        cmocka_unit_test(silence_is_survived_wherever_it_begins),
        cmocka_unit_test(ranks_that_are_a_step_apart_agree),
        cmocka_unit_test(they_die_one_after_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
