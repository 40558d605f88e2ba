/* SPDX-License-Identifier: MIT */
#include "bench/lab/replay/job.h"

#include <math.h>

typedef struct job {
    const job_plan *plan;
    simulator simulator;
    simulator_knobs before, now; /* `now` applies from from_step on */
    uint64_t from_step, step;
    job_result sum;
} job;

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Number of steps that fill a window at the current pace. */
static uint64_t window_steps(const job *j) {
    double step_s, watts;
    simulator_steady_state(&j->plan->simulator, &j->now, &step_s, &watts);
    uint64_t steps = (uint64_t)(j->plan->window_s / step_s) + j->plan->governor.lead_steps + 1;
    return smaller(steps, j->plan->steps - j->step);
}

/* A decision may take effect within a window. */
static simulator_run make_steps(job *j, uint64_t steps) {
    simulator_run truth = {0.0, 0.0};
    uint64_t old = j->from_step > j->step ? smaller(j->from_step - j->step, steps) : 0;
    simulator_steps(&j->simulator, &j->before, old, &truth);
    simulator_steps(&j->simulator, &j->now, steps - old, &truth);
    j->sum.density += (double)old * j->before.density + (double)(steps - old) * j->now.density;
    j->step += steps;
    return truth;
}

static void account(job *j, const simulator_run *truth) {
    const job_plan *p = j->plan;
    double begin = p->unix_begin_s + j->sum.seconds, end = begin + truth->seconds;
    j->sum.grams +=
        tamis_carbon_grams(p->carbon, begin, end, (int64_t)(truth->joules * 1e6), p->governor.pue);
    j->sum.seconds += truth->seconds;
    j->sum.joules += truth->joules;
    j->sum.windows++;
}

static tamis_governor_window make_window(job *j, const simulator_run *truth, uint64_t steps) {
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    tamis_carbon_outlook ahead = TAMIS_CARBON_OUTLOOK_INIT;
    double now = j->plan->unix_begin_s + j->sum.seconds;
    simulator_run told = simulator_read(&j->simulator, truth);
    w.step = j->step;
    w.steps = steps;
    w.seconds = told.seconds;
    w.uj = (int64_t)(told.joules * 1e6);
    w.known = 1;
    if (j->plan->carbon &&
        tamis_carbon_look(j->plan->carbon, now, j->plan->horizon_s, &ahead) == TAMIS_OK) {
        w.intensity_g_per_kwh = tamis_carbon_intensity(j->plan->carbon, now);
        w.outlook_g_per_kwh = ahead.mean;
        w.outlook_low_g_per_kwh = ahead.low;
    }
    return w;
}

static void apply_decision(job *j, const tamis_governor_decision *d) {
    simulator_knobs next = {d->density, d->pace_s, d->cap_w};
    if (!d->changed)
        return;
    j->before = j->now;
    j->now = next;
    j->from_step = d->step;
    j->sum.changes++;
}

tamis_status job_run(const job_plan *plan, job_observer observer, void *context, job_result *out) {
    tamis_governor *governor;
    tamis_status status = tamis_governor_create(&plan->governor, &governor);
    job j = {.plan = plan, .simulator = {.config = plan->simulator}};
    j.before = j.now = (simulator_knobs){plan->governor.density_max, 0.0, 0.0};
    if (status != TAMIS_OK)
        return status;
    while (j.step < plan->steps && status == TAMIS_OK) {
        tamis_governor_decision decision = TAMIS_GOVERNOR_DECISION_INIT;
        uint64_t steps = window_steps(&j);
        simulator_run truth = make_steps(&j, steps);
        account(&j, &truth);
        tamis_governor_window window = make_window(&j, &truth, steps);
        status = tamis_governor_decide(governor, &window, &decision);
        if (status == TAMIS_OK)
            apply_decision(&j, &decision);
        if (status == TAMIS_OK && observer)
            observer(context, &truth, &window, &decision);
    }
    j.sum.density /= (double)(plan->steps ? plan->steps : 1);
    *out = j.sum;
    tamis_governor_destroy(governor);
    return status;
}
