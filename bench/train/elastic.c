/* SPDX-License-Identifier: MIT */
#include "bench/train/elastic.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>

#include "bench/common/half.h"
#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/train/stop.h"

enum { TRIES = 3 }; /* of a call that may be repeated */

/* -- the drill -------------------------------------------------------------------------------- */

bool elastic_dies(const trainer *t) {
    uint64_t rank = 0, step = 0;
    for (const char *at = t->settings->lose; at && *at;) {
        at = elastic_next_loss(at, &rank, &step);
        if (rank == t->world->number && step == t->step)
            return true;
    }
    return false;
}

/* -- fewer ranks ------------------------------------------------------------------------------ */

/* A drill that cannot take place would seem to have passed. */
static void check_lost_ranks(const trainer *t) {
    uint64_t rank = 0, step = 0;
    for (const char *at = t->settings->lose; at && *at;) {
        at = elastic_next_loss(at, &rank, &step);
        if (rank >= t->world->nranks)
            bench_fail(t->world, "--lose %s: there is no rank %" PRIu64 " of %u", t->settings->lose,
                       rank, t->world->nranks);
    }
}

void elastic_open(trainer *t) {
    const train_settings *s = t->settings;
    if (s->elastic > t->world->nranks)
        bench_fail(t->world, "--elastic %llu: the run begins with %u ranks, fewer than it may have",
                   (unsigned long long)s->elastic, t->world->nranks);
    check_lost_ranks(t);
    const char *why = s->elastic ? bench_survive(t->world) : NULL;
    if (why)
        bench_fail(t->world, "--elastic: %s", why);
    t->reported = t->step;
}

static void say(const trainer *t, const char *what) {
    fprintf(stderr, "rank %u: %s: %s\n", t->world->number, what, tamis_last_error());
}

/* Over MPI a call that was late continues when it is repeated. */
static bool shrink(const trainer *t, tamis_comm *lost, tamis_comm **smaller) {
    tamis_status status = TAMIS_E_TIMEOUT;
    for (int i = 0; i < TRIES && status != TAMIS_OK && status != TAMIS_E_UNSUPPORTED; i++)
        status = tamis_comm_shrink(lost, NULL, smaller);
    if (status != TAMIS_OK)
        say(t, "cannot go on with fewer ranks");
    return status == TAMIS_OK;
}

/* Another rank may die meanwhile. @return false: this rank cannot go on */
static bool migrate(trainer *t, tamis_migration *out, tamis_comm **smaller) {
    tamis_comm *lost = t->world->comm;
    tamis_status status = TAMIS_E_ABORTED;
    while (status != TAMIS_OK) {
        if (!shrink(t, lost, smaller))
            return false;
        if (lost != t->world->comm)
            tamis_comm_destroy(lost);
        *out = (tamis_migration)TAMIS_MIGRATION_INIT;
        status = exchange_migrate(&t->exchange, *smaller, out);
        if (status != TAMIS_OK)
            say(t, "the reducer cannot migrate to fewer ranks");
        if (status != TAMIS_OK && tamis_status_loss(status) < TAMIS_LOST_COMM)
            return false;
        lost = *smaller;
    }
    return true;
}

/* Reports of a rank 0 that is gone go on in its file, which says how far they were. */
static void take_report(trainer *t) {
    const train_settings *s = t->settings;
    json_t *last = NULL;
    if (t->world->rank > 0 || !s->json || t->report)
        return;
    t->report = bench_report_continue(s->json, &last);
    const char *kind = json_string_value(json_object_get(last, "record"));
    uint64_t step = (uint64_t)json_integer_value(json_object_get(last, "step"));
    if (last && (!kind || step != t->step))
        t->reported = UINT64_MAX; /* it died before it could write what all had given it */
    else if (kind && strcmp(kind, "step") == 0)
        t->reported = step;
    json_decref(last);
}

/* A validation that the death of a rank has ended is made again, if its record was not written. */
static void look_for_report(trainer *t) {
    bool missed = t->world->rank == 0 && t->totals.steps > 0 && t->reported != t->step;
    t->missed = bench_max(t->world, missed) > 0.0;
}

static void report(trainer *t, const tamis_migration *migrated, double seconds) {
    double mass = migrated->kept_square + migrated->lost_square;
    double share = mass > 0 ? migrated->lost_square / mass : 0.0;
    if (t->world->rank > 0)
        return;
    fprintf(stderr,
            "rank %u: %u rank(s) are gone; %u go on from step %" PRIu64
            " after %.2f s, without some %.0f %% of the residual\n",
            t->world->number, migrated->gone, t->world->nranks, t->step, seconds, 100 * share);
    json_t *record = bench_report_new("shrink");
    json_t *more = json_pack("{sI sI sI sf sf}", "step", (json_int_t)t->step, "ranks",
                             (json_int_t)t->world->nranks, "gone", (json_int_t)migrated->gone,
                             "residual_lost_share", share, "time_s", seconds);
    json_object_update(record, more);
    json_decref(more);
    bench_report_write(t->report, record);
}

/* The place of the model is known by its own count, which migrated with the reducer's. */
static bool go_back(trainer *t, uint64_t step) {
    if (t->step == step + 1 && t->before.step == step)
        trainer_roll_back(t);
    if (t->step == step)
        return true;
    fprintf(stderr,
            "rank %u: its parameters are of step %" PRIu64 ", but the others go on from step "
            "%" PRIu64 "\n",
            t->world->number, t->step, step);
    return false;
}

static bool is_enough(const trainer *t) {
    const train_settings *s = t->settings;
    if (t->world->nranks >= s->elastic)
        return true;
    if (t->world->rank == 0)
        fprintf(stderr,
                "rank %u: %u rank(s) are left, fewer than --elastic %llu: the run ends at step "
                "%" PRIu64 "\n",
                t->world->number, t->world->nranks, (unsigned long long)s->elastic, t->step);
    return false;
}

elastic_end elastic_recover(trainer *t, saver *sets) {
    double begin = bench_now_s();
    saver_interrupt(sets);
    while (t->world->lost) {
        tamis_migration migrated;
        tamis_comm *smaller;
        bench_regroup(t->world);
        stop_watch(t->world->rank, NULL);
        if (!migrate(t, &migrated, &smaller) || !go_back(t, migrated.step))
            return ELASTIC_ALONE;
        t->gone += migrated.gone;
        if (!bench_shrink(t->world, smaller))
            continue;
        order_regroup(&t->order, t->step, t->world->nranks * t->settings->batch);
        stop_watch(t->world->rank, t->world->comm);
        take_report(t);
        report(t, &migrated, bench_now_s() - begin);
        saver_regroup(sets);
        look_for_report(t);
        trainer_check_replicas(t);
    }
    return is_enough(t) ? ELASTIC_GOES_ON : ELASTIC_TOO_FEW;
}
