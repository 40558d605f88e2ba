/* SPDX-License-Identifier: MIT
 *
 * A reducer goes on with fewer ranks, or with more: agree on one step, make another reducer on the
 * other communicator, copy the state to it. The old reducer is only read, except that one which is
 * ahead goes back a step, as tamis_reducer_resync would make it. Newcomers have no state of the
 * job: they get what all ranks have in common (migrate_join.c).
 */
#include "collectives/state/migrate_join.h"
#include "collectives/state/resync.h"
#include "lib/base/fenv.h"

#include <tamis/elastic.h>

static const char call[] = "tamis_reducer_migrate";

/* -- who is here ------------------------------------------------------------------------------ */

typedef struct arrival {
    tam_standing standing;
    uint64_t rank, nranks;   /* on the communicator of the old reducer */
    uint64_t newcomer;       /* 1: that was not of this job */
    double square;           /* of the residual */
    double latency_us, gbit; /* that the reducer plans for */
} arrival;

_Static_assert(sizeof(arrival) <= TAM_RECORD_BYTES, "an arrival fits the records");

static const arrival *migrate_record(const unsigned char *records, uint32_t rank) {
    return tam_handshake_record(records, rank);
}

/* The others come first. */
static uint32_t migrate_count_old(const unsigned char *records, uint32_t nranks) {
    uint32_t count = 0;
    while (count < nranks && !migrate_record(records, count)->newcomer)
        count++;
    return count;
}

static tamis_status check_newcomers(const unsigned char *records, uint32_t nranks, uint32_t nold) {
    for (uint32_t r = nold; r < nranks; r++)
        if (nold == 0 || !migrate_record(records, r)->newcomer)
            return tam_fail(TAMIS_E_MISMATCH,
                            "%s: rank %u has joined, and has no state of rank %u's reducer", call,
                            nold == 0 ? 0 : nold, r);
    return TAMIS_OK;
}

/* Ranks that come from one communicator keep their order. A rank whose last migration failed comes
 * from an older one. */
static tamis_status check_order(const unsigned char *records, uint32_t nranks) {
    for (uint32_t r = 1; r < nranks; r++) {
        const arrival *one = migrate_record(records, r - 1), *next = migrate_record(records, r);
        if (one->nranks == next->nranks && one->rank >= next->rank)
            return tam_fail(TAMIS_E_MISMATCH,
                            "%s: rank %u was rank %llu and rank %u was rank %llu; the ranks that "
                            "are left must keep their order (tamis_comm_shrink)",
                            call, r - 1, (unsigned long long)one->rank, r,
                            (unsigned long long)next->rank);
    }
    return TAMIS_OK;
}

/* Newcomers are known by their records alone: a shrunk communicator does not count them. */
static tamis_status migrate_check_count(const unsigned char *records, uint32_t nold) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < nold; r++) {
        uint64_t nranks = migrate_record(records, r)->nranks;
        most = nranks > most ? nranks : most;
    }
    if (nold <= most)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT,
                    "%s: a communicator of %u ranks is not what has become of %llu; make one with "
                    "tamis_comm_shrink or tamis_comm_grow",
                    call, nold, (unsigned long long)most);
}

static tamis_status migrate_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "migrate its reducer"));
    uint32_t nold = migrate_count_old(records, nranks);
    TAM_TRY(check_newcomers(records, nranks, nold));
    TAM_TRY(migrate_check_count(records, nold));
    TAM_TRY(check_order(records, nold));
    return tam_resync_judge(records, nold);
}

static tamis_status judge_end(const unsigned char *records, uint32_t nranks) {
    return tam_handshake_failure(records, nranks, "carry its state over");
}

/* From the records of all ranks, in their order: the same on all. */
static tamis_migration migrate_weigh(const tamis_comm *comm) {
    tamis_migration m = TAMIS_MIGRATION_INIT;
    uint32_t nold = migrate_count_old(comm->records, comm->nranks);
    uint64_t before = nold;
    m.step = tam_resync_step(comm->records, nold);
    for (uint32_t r = 0; r < nold; r++) {
        const arrival *one = migrate_record(comm->records, r);
        before = one->nranks > before ? one->nranks : before;
        m.kept_square += one->square;
    }
    m.gone = (uint32_t)(before - nold);
    m.lost_square = m.kept_square / nold * m.gone;
    return m;
}

/* Who has a state, and whether it fits as it is. By the records of all ranks. */
typedef struct sources {
    uint32_t nold; /* ranks with a state, the first ones */
    bool joins;    /* this one has none */
    bool mixed;    /* they come from communicators of different sizes */
    bool same;     /* all from one of as many ranks as now */
} sources;

static sources find_sources(const tamis_reducer *r, const tamis_comm *comm) {
    sources s = {.nold = migrate_count_old(comm->records, comm->nranks),
                 .joins = tam_migrate_joins(r, comm)};
    s.same = s.nold == comm->nranks;
    for (uint32_t i = 0; i < s.nold; i++) {
        uint64_t nranks = migrate_record(comm->records, i)->nranks;
        s.mixed = s.mixed || nranks != migrate_record(comm->records, 0)->nranks;
        s.same = s.same && nranks == comm->nranks;
    }
    return s;
}

/* -- what it takes ---------------------------------------------------------------------------- */

static tamis_status migrate_add_squares(void *arg, size_t at, const void *piece, size_t bytes) {
    double *sum = arg;
    const float *values = piece;
    (void)at;
    for (size_t i = 0; i < bytes / sizeof values[0]; i++)
        *sum += (double)values[i] * (double)values[i];
    return TAMIS_OK;
}

/* An abandoned exchange may still read and write what belongs to the reducer. */
static tamis_status await_exchanges(const tamis_reducer *r, uint64_t deadline_ns) {
    for (unsigned tries = 0; r->abandoned && atomic_load(&r->comm->exchanges) > 0; tries++) {
        if (tam_clock_ns() > deadline_ns)
            return tam_fail(TAMIS_E_STATE,
                            "%s: the last exchange never ended; save the state, and create a new "
                            "reducer",
                            call);
        tam_back_off(tries);
    }
    return TAMIS_OK;
}

/* All arguments before anything is exchanged: later on one rank alone could not fail. */
static tamis_status migrate_check(const tamis_reducer *r, const tamis_comm *other,
                                  const tamis_migration *report, tamis_reducer *const *migrated) {
    tamis_migration copy = TAMIS_MIGRATION_INIT;
    if (!migrated)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: migrated is NULL", call);
    if (report)
        TAM_TRY(tam_struct_copy("tamis_migration", &copy, sizeof copy, sizeof copy, report));
    if (other == r->comm)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s: the reducer's own communicator is not what has become of it; make one "
                        "with tamis_comm_shrink or tamis_comm_grow",
                        call);
    return tam_refuse(r, call);
}

typedef struct luggage {
    float *scratch; /* to go back a step */
    float *vector;  /* of the state, in host memory */
    void *control;
    double square;
} luggage;

static tamis_status migrate_pack(tamis_reducer *r, uint64_t deadline_ns, luggage *l) {
    const tam_state_sizes sizes = tam_state_sizes_of(r);
    uint64_t hash;
    TAM_TRY(tam_state_quiesce(r, call));
    TAM_TRY(await_exchanges(r, deadline_ns));
    l->scratch = tam_alloc_array(tam_rollback_capacity(r), sizeof l->scratch[0]);
    l->vector = tam_alloc(sizes.residual);
    l->control = tam_alloc(sizes.control);
    if (!l->scratch || !l->vector || !l->control)
        return tam_fail(TAMIS_E_NOMEM, "%s: no memory for a copy of %zu bytes", call,
                        sizes.residual + sizes.control);
    return r->acc ? tam_state_vector(r, r->acc, migrate_add_squares, &l->square, &hash) : TAMIS_OK;
}

static void migrate_unpack(const luggage *l) {
    tam_free(l->scratch);
    tam_free(l->vector);
    tam_free(l->control);
}

/* -- the state -------------------------------------------------------------------------------- */

static tamis_status carry_moment(const tamis_reducer *from, const float *moment, tamis_reducer *to,
                                 bool first, float *vector) {
    if (!moment)
        return TAMIS_OK;
    TAM_TRY(tam_state_copy(from, moment, vector));
    return tam_state_take_moments(to, first ? vector : NULL, first ? NULL : vector);
}

/* What waits keeps its part in the mean: of P ranks, a P-th of what a rank holds. */
static void weigh_residual(const tamis_reducer *from, const tamis_reducer *to, float *vector) {
    uint32_t before = from->comm->nranks, now = to->comm->nranks;
    if (!from->acc || to->config.op != TAMIS_OP_MEAN || before == now)
        return;
    float share = (float)now / (float)before;
    for (uint64_t i = 0; i < to->residual_length; i++)
        vector[i] *= share;
}

static tamis_status carry(const tamis_reducer *from, tamis_reducer *to, const luggage *l,
                          const sources *s) {
    tam_state_pack(from, 0, 0, l->control);
    tam_state_readdress(to, l->control, s->same);
    TAM_TRY(tam_state_check_header(to, l->control, true, call));
    TAM_TRY(tam_state_check_parts(to, l->control, NULL, call));
    if (from->acc)
        TAM_TRY(tam_state_copy(from, from->acc, l->vector));
    weigh_residual(from, to, l->vector);
    TAM_TRY(tam_state_take(to, l->control, from->acc ? l->vector : NULL));
    TAM_TRY(carry_moment(from, from->first, to, true, l->vector));
    return carry_moment(from, from->second, to, false, l->vector);
}

/* What the ranks of the job have settled, and a newcomer could not know. */
static void migrate_take_options(tamis_reducer *r, const arrival *first) {
    r->origin = first->standing.who;
    r->config.link_latency_us = first->latency_us;
    r->config.link_gbit = first->gbit;
}

/* -- together --------------------------------------------------------------------------------- */

static tamis_status migrate_agree_on_step(tamis_reducer *r, tamis_comm *comm, tamis_status own,
                                          double square, uint64_t deadline_ns) {
    const arrival mine = {.standing = {.header = {(uint64_t)own, "tamis_reducer_migrate"},
                                       .who = r->origin,
                                       .step = r->step,
                                       .rollback = tam_rollback_state_of(r)},
                          .rank = r->comm->rank,
                          .nranks = r->comm->nranks,
                          .newcomer = tam_migrate_joins(r, comm),
                          .square = square,
                          .latency_us = r->config.link_latency_us,
                          .gbit = r->config.link_gbit};
    return tam_handshake_run(comm, &mine, sizeof mine, migrate_judge, deadline_ns);
}

static tamis_status migrate_end_together(tamis_comm *comm, tamis_status own, uint64_t deadline_ns) {
    const tam_handshake_header mine = {(uint64_t)own, "tamis_reducer_migrate"};
    return tam_handshake_run(comm, &mine, sizeof mine, judge_end, deadline_ns);
}

static void migrate_log_ranks(const tamis_comm *comm, const tamis_migration *m) {
    double all = m->kept_square + m->lost_square;
    if (comm->rank != 0)
        return;
    tam_log(m->gone > 0 ? TAM_WARN : TAM_INFO,
            "a reducer goes on with %u ranks at step %llu; the residuals of %u ranks are lost, by "
            "an estimate from the others %.3g %% of all squares",
            comm->nranks, (unsigned long long)m->step, m->gone,
            all > 0.0 ? 100.0 * m->lost_square / all : 0.0);
}

/* Collective, also after a failure. */
static tamis_status migrate_fill(const tamis_reducer *r, tamis_reducer *made, const sources *s,
                                 const luggage *l, uint64_t deadline_ns) {
    tamis_status status = s->joins ? TAMIS_OK : carry(r, made, l, s);
    if (s->nold < made->comm->nranks || s->mixed)
        status = tam_migrate_join(made, s->nold, s->mixed, status, l->vector);
    return migrate_end_together(made->comm, status, deadline_ns);
}

/* @param  status  of this rank so far
 * @param  made    [out]  NULL if it was not, or not completely */
static tamis_status migrate(tamis_reducer *r, tamis_comm *other, tamis_status status, luggage *l,
                            tamis_migration *report, tamis_reducer **made) {
    uint64_t deadline_ns = tam_comm_deadline(other);
    if (status == TAMIS_OK)
        status = migrate_pack(r, deadline_ns, l);
    TAM_TRY(migrate_agree_on_step(r, other, status, l->square, deadline_ns));
    *report = migrate_weigh(other);
    const sources s = find_sources(r, other);
    if (s.joins)
        migrate_take_options(r, migrate_record(other->records, 0));
    else
        status = tam_resync_roll_back(r, report->step, l->scratch);
    const tam_recipe recipe = {
        .layout = r->layout, .like = r, .status = status, .deadline_ns = deadline_ns, .out = made};
    TAM_TRY(tam_reducer_make(other, &recipe));
    status = migrate_fill(r, *made, &s, l, deadline_ns);
    if (status != TAMIS_OK) {
        tamis_reducer_destroy(*made);
        *made = NULL;
    }
    return status;
}

tamis_status tamis_reducer_migrate(tamis_reducer *r, tamis_comm *other, tamis_migration *report,
                                   tamis_reducer **migrated) {
    TAM_FENV_HELD();
    luggage l = {0};
    tamis_migration found = TAMIS_MIGRATION_INIT;
    tamis_reducer *made = NULL;
    if (!r || !other)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, r ? "other" : "reducer");
    TAM_TRY(tam_comm_check(other));
    tamis_status status = migrate_check(r, other, report, migrated);
    status = migrate(r, other, status, &l, &found, &made);
    migrate_unpack(&l);
    if (status != TAMIS_OK)
        return status;
    migrate_log_ranks(other, &found);
    if (report)
        status = tam_struct_return("tamis_migration", &found, sizeof found, report);
    if (status == TAMIS_OK)
        *migrated = made;
    else
        tamis_reducer_destroy(made);
    return status;
}
