/* SPDX-License-Identifier: MIT
 *
 * A reducer goes on with fewer ranks: agree on one step, make another reducer on the smaller
 * communicator, copy the state to it. The old reducer is only read, except that one which is ahead
 * goes back a step, as tamis_reducer_resync would make it.
 */
#include "collectives/state/resync.h"
#include "lib/base/fenv.h"

#include <tamis/elastic.h>

static const char call[] = "tamis_reducer_migrate";

/* -- who is here ------------------------------------------------------------------------------ */

typedef struct arrival {
    tam_standing standing;
    uint64_t rank, nranks; /* on the communicator of the old reducer */
    double square;         /* of the residual */
} arrival;

_Static_assert(sizeof(arrival) <= TAM_RECORD_BYTES, "an arrival fits the records");

static const arrival *migrate_record(const unsigned char *records, uint32_t rank) {
    return tam_handshake_record(records, rank);
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

static tamis_status migrate_judge(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "migrate its reducer"));
    TAM_TRY(check_order(records, nranks));
    return tam_resync_judge(records, nranks);
}

static tamis_status judge_end(const unsigned char *records, uint32_t nranks) {
    return tam_handshake_failure(records, nranks, "carry its state over");
}

/* From the records of all ranks, in their order: the same on all. */
static tamis_migration migrate_weigh(const tamis_comm *comm) {
    tamis_migration m = TAMIS_MIGRATION_INIT;
    uint64_t before = comm->nranks;
    m.step = tam_resync_step(comm);
    for (uint32_t r = 0; r < comm->nranks; r++) {
        const arrival *one = migrate_record(comm->records, r);
        before = one->nranks > before ? one->nranks : before;
        m.kept_square += one->square;
    }
    m.gone = (uint32_t)(before - comm->nranks);
    m.lost_square = m.kept_square / comm->nranks * m.gone;
    return m;
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
static tamis_status migrate_check(const tamis_reducer *r, const tamis_comm *smaller,
                                  const tamis_migration *report, tamis_reducer *const *migrated) {
    tamis_migration copy = TAMIS_MIGRATION_INIT;
    if (!migrated)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: migrated is NULL", call);
    if (report)
        TAM_TRY(tam_struct_copy("tamis_migration", &copy, sizeof copy, sizeof copy, report));
    if (smaller == r->comm || smaller->nranks > r->comm->nranks)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "%s: a communicator of %u ranks is not what is left of %u; make one with "
                        "tamis_comm_shrink",
                        call, smaller->nranks, r->comm->nranks);
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

static tamis_status carry(const tamis_reducer *from, tamis_reducer *to, const luggage *l) {
    tam_state_pack(from, 0, 0, l->control);
    TAM_TRY(tam_state_check_header(to, l->control, true, call));
    TAM_TRY(tam_state_check_parts(to, l->control, NULL, call));
    if (from->acc)
        TAM_TRY(tam_state_copy(from, from->acc, l->vector));
    TAM_TRY(tam_state_take(to, l->control, from->acc ? l->vector : NULL));
    TAM_TRY(carry_moment(from, from->first, to, true, l->vector));
    return carry_moment(from, from->second, to, false, l->vector);
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
                          .square = square};
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

/* @param status  of this rank so far. @param made  [out]  NULL if it was not, or not completely */
static tamis_status migrate(tamis_reducer *r, tamis_comm *smaller, tamis_status status, luggage *l,
                            tamis_migration *report, tamis_reducer **made) {
    uint64_t deadline_ns = tam_comm_deadline(smaller);
    if (status == TAMIS_OK)
        status = migrate_pack(r, deadline_ns, l);
    TAM_TRY(migrate_agree_on_step(r, smaller, status, l->square, deadline_ns));
    *report = migrate_weigh(smaller);
    status = tam_resync_roll_back(r, report->step, l->scratch);
    const tam_recipe recipe = {
        .layout = r->layout, .like = r, .status = status, .deadline_ns = deadline_ns, .out = made};
    TAM_TRY(tam_reducer_make(smaller, &recipe));
    status = migrate_end_together(smaller, carry(r, *made, l), deadline_ns);
    if (status != TAMIS_OK) {
        tamis_reducer_destroy(*made);
        *made = NULL;
    }
    return status;
}

tamis_status tamis_reducer_migrate(tamis_reducer *r, tamis_comm *smaller, tamis_migration *report,
                                   tamis_reducer **migrated) {
    TAM_FENV_HELD();
    luggage l = {0};
    tamis_migration found = TAMIS_MIGRATION_INIT;
    tamis_reducer *made = NULL;
    if (!r || !smaller)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is NULL", call, r ? "smaller" : "reducer");
    TAM_TRY(tam_comm_check(smaller));
    tamis_status status = migrate_check(r, smaller, report, migrated);
    status = migrate(r, smaller, status, &l, &found, &made);
    migrate_unpack(&l);
    if (status != TAMIS_OK)
        return status;
    migrate_log_ranks(smaller, &found);
    if (report)
        status = tam_struct_return("tamis_migration", &found, sizeof found, report);
    if (status == TAMIS_OK)
        *migrated = made;
    else
        tamis_reducer_destroy(made);
    return status;
}
