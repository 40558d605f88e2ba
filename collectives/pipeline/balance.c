/* SPDX-License-Identifier: MIT
 *
 * Balance: all ranks show their means in the records, all compute the same division, and densities
 * are set on all ranks or on none.
 *
 *     measures    every rank shows how long it was busy, waited and exchanged
 *     divide      all compute the same budgets (lib/policy/bubble.h)
 *     density     every rank sets its reducer's density and shows whether it could
 *
 * The cost of an entry is estimated as the exchange time of a step divided by its entries. Where
 * latency matters that is too much, so budgets move less far than they should. But measurements are
 * exact for the current budgets, so later balances continue from there to the same end.
 */
#include "collectives/pipeline/pipeline.h"
#include "lib/policy/bubble.h"
#include "lib/base/fenv.h"

#include <tamis/stats.h>

enum { STEPS_MIN = 3 }; /* measured on every rank before anything moves */

typedef struct measures {
    tam_handshake_header header;
    uint64_t steps;
    double window_s, busy_s, exchange_s; /* means of this rank */
    double exchanged_s;                  /* of this rank's reducer, over all its steps */
} measures;

_Static_assert(sizeof(measures) <= TAM_RECORD_BYTES, "measures fit the records");

static tamis_status judge_measures(const unsigned char *records, uint32_t nranks) {
    return tam_handshake_failure(records, nranks, "balance its pipeline");
}

static tamis_status judge_density(const unsigned char *records, uint32_t nranks) {
    return tam_handshake_failure(records, nranks, "set the density of its reducer");
}

static double mean(double sum, uint64_t count) {
    return count ? sum / (double)count : 0.0;
}

static tamis_status balance_measure(const tamis_pipeline *p, tamis_reducer *reducer,
                                    measures *mine) {
    tamis_stats stats = TAMIS_STATS_INIT;
    if (!reducer)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_balance: reducer is NULL");
    if (p->next != TAMIS_MARK_INPUT)
        return tam_fail(TAMIS_E_STATE, "tamis_pipeline_balance: the step has not been marked with "
                                       "TAMIS_MARK_BACKWARD");
    TAM_TRY(tamis_reducer_stats(reducer, &stats));
    if (stats.steps > 0 && stats.length != p->config.length)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_pipeline_balance: the reducer has %llu elements, the stage %llu",
                        (unsigned long long)stats.length, (unsigned long long)p->config.length);
    mine->steps = p->steps < p->windows ? p->steps : p->windows;
    mine->window_s = mean((double)p->window_ns * 1e-9, p->windows);
    mine->busy_s = mean((double)p->busy_ns * 1e-9, p->steps);
    mine->exchanged_s = stats.exchange_s_total;
    mine->exchange_s = mean(mine->exchanged_s - p->exchanged_s, p->steps);
    return TAMIS_OK;
}

static const measures *measures_of(const tamis_pipeline *p, uint32_t rank) {
    return tam_handshake_record(p->world->records, rank);
}

static bool measured_enough(const tamis_pipeline *p) {
    for (uint32_t r = 0; r < p->world->nranks; r++) {
        if (measures_of(p, r)->steps < STEPS_MIN)
            return false;
    }
    return true;
}

/* Means over the ranks of each stage, in rank order: the same bits everywhere. */
static void balance_learn(tamis_pipeline *p) {
    for (uint32_t s = 0; s < p->config.nstages; s++) {
        tamis_stage *stage = &p->learned[s];
        *stage = p->stages[s];
        stage->window_s = stage->busy_s = stage->exchange_s = 0.0;
        stage->straggler = UINT32_MAX;
    }
    for (uint32_t r = 0; r < p->world->nranks; r++) {
        tamis_stage *stage = &p->learned[p->stage_of[r]];
        const measures *m = measures_of(p, r);
        stage->window_s += m->window_s / stage->nranks;
        stage->busy_s += m->busy_s / stage->nranks;
        stage->exchange_s += m->exchange_s / stage->nranks;
        if (stage->straggler == UINT32_MAX || m->busy_s > measures_of(p, stage->straggler)->busy_s)
            stage->straggler = r;
    }
    for (uint32_t s = 0; s < p->config.nstages; s++) {
        tamis_stage *stage = &p->learned[s];
        stage->straggler_s = measures_of(p, stage->straggler)->busy_s - stage->busy_s;
    }
}

static void balance_divide(tamis_pipeline *p) {
    for (uint32_t s = 0; s < p->config.nstages; s++) {
        p->windows_s[s] = p->learned[s].window_s;
        p->entry_s[s] = p->learned[s].exchange_s / (double)p->budgets[s];
    }
    tam_bubble_divide(p->budget, p->config.nstages, p->lengths, p->windows_s, p->entry_s, p->even,
                      p->wanted);
}

/* All ranks continue with the new densities, or all with the old ones. */
static tamis_status set_density(const tamis_pipeline *p, tamis_reducer *reducer) {
    uint32_t own = p->config.stage;
    tam_handshake_header header = {.call = "tamis_pipeline_balance"};
    tamis_status set =
        tamis_reducer_set_density(reducer, tam_pipeline_density(p->wanted[own], p->lengths[own]));
    header.status = (uint64_t)set;
    tamis_status status = tam_handshake_run(p->world, &header, sizeof header, judge_density, 0);
    if (status != TAMIS_OK && set == TAMIS_OK)
        TAM_TRY(tamis_reducer_set_density(reducer, p->stages[own].density));
    return status;
}

static void take_over(tamis_pipeline *p, double exchanged_s) {
    for (uint32_t s = 0; s < p->config.nstages; s++) {
        p->budgets[s] = p->wanted[s];
        p->stages[s] = p->learned[s];
        p->stages[s].density = tam_pipeline_density(p->budgets[s], p->lengths[s]);
    }
    p->exchanged_s = exchanged_s;
    p->window_ns = p->busy_ns = 0;
    p->windows = p->steps = 0;
}

tamis_status tamis_pipeline_balance(tamis_pipeline *p, tamis_reducer *reducer) {
    TAM_FENV_HELD();
    if (!p)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_pipeline_balance: pipeline is NULL");
    TAM_TRY(tam_comm_check(p->world));
    measures mine = {.header.call = "tamis_pipeline_balance"};
    mine.header.status = (uint64_t)balance_measure(p, reducer, &mine);
    if (p->next == TAMIS_MARK_INPUT)
        p->marked_ns = 0; /* this window is spent here, waiting for others */
    TAM_TRY(tam_handshake_run(p->world, &mine, sizeof mine, judge_measures, 0));
    if (!measured_enough(p))
        return TAMIS_OK;
    balance_learn(p);
    balance_divide(p);
    TAM_TRY(set_density(p, reducer));
    take_over(p, mine.exchanged_s);
    tam_log(TAM_DEBUG, "pipeline: rank %u, stage %u sends %llu of %llu entries", p->world->rank,
            p->config.stage, (unsigned long long)p->budgets[p->config.stage],
            (unsigned long long)p->budget);
    return TAMIS_OK;
}
