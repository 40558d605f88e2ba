/* SPDX-License-Identifier: MIT */
#include "lib/policy/forecast.h"

enum {
    APPEARS = TAM_FORECAST_RECENT * 3 / 4,
    STAYS = TAM_FORECAST_RECENT / 2,
    CLEARLY = 50 /* last by more than one part of so many of a step */
};

tamis_status tam_forecast_open(tam_forecast *f, uint32_t nranks) {
    f->nranks = nranks;
    f->busy_us = tam_alloc_array(nranks, TAM_FORECAST_STEPS * sizeof f->busy_us[0]);
    if (!f->busy_us)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the times of %u ranks", nranks);
    tam_forecast_forget(f);
    return TAMIS_OK;
}

void tam_forecast_close(tam_forecast *f) {
    tam_free(f->busy_us);
    f->busy_us = NULL;
}

void tam_forecast_forget(tam_forecast *f) {
    f->count = 0;
    f->straggler = UINT32_MAX;
}

/* -- note ------------------------------------------------------------------------------------- */

static uint32_t *times_of(const tam_forecast *f, uint64_t step) {
    return f->busy_us + step % TAM_FORECAST_STEPS * f->nranks;
}

uint32_t *tam_forecast_next(tam_forecast *f) {
    return times_of(f, f->count);
}

static tam_forecast_step sum_up(const uint32_t *busy_us, uint32_t nranks, uint32_t step_us) {
    tam_forecast_step step = {busy_us[0], busy_us[0], step_us, 0};
    uint32_t second_us = 0;
    for (uint32_t r = 1; r < nranks; r++) {
        uint32_t busy = busy_us[r];
        if (busy > step.last_us) {
            second_us = step.last_us;
            step.last_us = busy;
            step.rank = r;
        } else if (busy > second_us) {
            second_us = busy;
        }
        step.first_us = busy < step.first_us ? busy : step.first_us;
    }
    if (nranks == 1 || step.last_us - second_us <= step_us / CLEARLY)
        step.rank = UINT32_MAX;
    return step;
}

static uint32_t held(const tam_forecast *f) {
    return f->count < TAM_FORECAST_STEPS ? (uint32_t)f->count : TAM_FORECAST_STEPS;
}

static uint32_t times_last(const tam_forecast *f, uint32_t rank) {
    uint32_t recent = held(f) < TAM_FORECAST_RECENT ? held(f) : TAM_FORECAST_RECENT, times = 0;
    for (uint32_t i = 1; i <= recent; i++)
        times += f->steps[(f->count - i) % TAM_FORECAST_STEPS].rank == rank;
    return times;
}

void tam_forecast_note(tam_forecast *f, uint32_t step_us) {
    tam_forecast_step *step = &f->steps[f->count % TAM_FORECAST_STEPS];
    *step = sum_up(times_of(f, f->count), f->nranks, step_us);
    f->count++;
    if (f->straggler != UINT32_MAX && times_last(f, f->straggler) < STAYS)
        f->straggler = UINT32_MAX;
    if (f->straggler == UINT32_MAX && step->rank != UINT32_MAX &&
        times_last(f, step->rank) >= APPEARS)
        f->straggler = step->rank;
}

/* -- read ------------------------------------------------------------------------------------- */

/* By nearest rank. Sorts. */
static double quantile_s(tam_pair *pairs, uint32_t count, uint32_t percent) {
    uint32_t at = (count * percent + 99) / 100;
    tam_sort(pairs, count);
    return 1e-6 * (double)pairs[at > 0 ? at - 1 : 0].key;
}

void tam_forecast_read(const tam_forecast *f, uint32_t rank, tamis_forecast *out) {
    tam_pair slack[TAM_FORECAST_STEPS] = {0}, late[TAM_FORECAST_STEPS] = {0},
             steps[TAM_FORECAST_STEPS] = {0};
    *out = (tamis_forecast){.size = out->size, .rank = rank, .straggler = f->straggler};
    out->steps = held(f);
    if (out->steps == 0)
        return;
    for (uint32_t i = 0; i < out->steps; i++) {
        slack[i].key = f->steps[i].last_us - times_of(f, i)[rank];
        late[i].key = times_of(f, i)[rank] - f->steps[i].first_us;
        steps[i].key = f->steps[i].step_us;
    }
    out->slack_p05_s = quantile_s(slack, out->steps, 5);
    out->slack_p50_s = quantile_s(slack, out->steps, 50);
    out->slack_p95_s = quantile_s(slack, out->steps, 95);
    out->late_p05_s = quantile_s(late, out->steps, 5);
    out->late_p50_s = quantile_s(late, out->steps, 50);
    out->late_p95_s = quantile_s(late, out->steps, 95);
    out->step_s = quantile_s(steps, out->steps, 50);
}
