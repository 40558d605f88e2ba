/* SPDX-License-Identifier: MIT */
#include "bench/lab/replay/simulator.h"

#include <math.h>

#include "bench/common/random.h"

enum { UNEVEN = 1, SECONDS, JOULES };

static const double lowest_clock = 0.3, pi = 3.14159265358979323846;

simulator_config simulator_defaults(void) {
    return (simulator_config){
        .ranks = 64,
        .static_w = 90.0,
        .dynamic_w = 310.0,
        .exponent = 3.0,
        .host_w = 60.0,
        .compute_s = 0.40,
        .bound = 0.25,
        .exchange_s = 0.02,
        .exchange_density_s = 3.0,
        .exchange_activity = 0.3,
        .wait_activity = 0.3,
        .uneven = 0.02,
        .lag_s = 0.3,
        .noise = 0.003,
        .seed = 1,
    };
}

static double clock_of(const simulator_config *c, double activity, double cap_w) {
    if (!(cap_w > 0.0) || c->static_w + c->dynamic_w * activity <= cap_w)
        return 1.0;
    double dynamic = (cap_w - c->static_w) / (c->dynamic_w * activity);
    return fmax(lowest_clock, dynamic > 0.0 ? pow(dynamic, 1.0 / c->exponent) : 0.0);
}

static double watts_of(const simulator_config *c, double activity, double cap_w) {
    double f = clock_of(c, activity, cap_w);
    return c->host_w + c->static_w + c->dynamic_w * activity * pow(f, c->exponent);
}

static double compute_s(const simulator_config *c, uint32_t rank, double cap_w) {
    double spread = 2.0 * bench_uniform(bench_key(c->seed, UNEVEN, 0), rank) - 1.0;
    return c->compute_s * (1.0 + c->uneven * spread) *
           ((1.0 - c->bound) + c->bound / clock_of(c, 1.0, cap_w));
}

void simulator_steady_state(const simulator_config *c, const simulator_knobs *k, double *step_s,
                            double *watts) {
    double slowest = 0.0, joules = 0.0;
    double exchange = c->exchange_s + c->exchange_density_s * k->density;
    for (uint32_t r = 0; r < c->ranks; r++)
        slowest = fmax(slowest, compute_s(c, r, k->cap_w));
    for (uint32_t r = 0; r < c->ranks; r++) {
        double busy = compute_s(c, r, k->cap_w);
        joules += busy * watts_of(c, 1.0, k->cap_w) +
                  (slowest - busy) * watts_of(c, c->wait_activity, k->cap_w) +
                  exchange * watts_of(c, c->exchange_activity, k->cap_w) +
                  k->pace_s * watts_of(c, 0.0, k->cap_w);
    }
    *step_s = slowest + exchange + k->pace_s;
    *watts = joules / *step_s;
}

void simulator_steps(simulator *p, const simulator_knobs *knobs, uint64_t steps,
                     simulator_run *sum) {
    double step_s, watts;
    simulator_steady_state(&p->config, knobs, &step_s, &watts);
    double seconds = step_s * (double)steps, lag = p->config.lag_s;
    double left = lag > 0.0 ? exp(-seconds / lag) : 0.0;
    double gap = p->watts > 0.0 ? p->watts - watts : 0.0;
    sum->seconds += seconds;
    sum->joules += watts * seconds + gap * lag * (1.0 - left);
    p->watts = watts + gap * left;
}

simulator_run simulator_read(simulator *p, const simulator_run *truth) {
    const simulator_config *c = &p->config;
    double s = bench_normal(bench_key(c->seed, SECONDS, 0), p->told);
    double j = bench_normal(bench_key(c->seed, JOULES, 0), p->told);
    p->told++;
    return (simulator_run){truth->seconds * (1.0 + 0.1 * c->noise * s),
                           truth->joules * (1.0 + c->noise * j)};
}

void simulator_trace(FILE *file, double unix_begin_s, double hours) {
    fputs("time,g_per_kwh\n", file);
    for (double s = 0.0; s < 3600.0 * hours; s += 300.0) {
        double at = unix_begin_s + s, hour = fmod(at / 3600.0, 24.0) - 20.0;
        fprintf(file, "%.0f,%.3f\n", at,
                330.0 + 110.0 * cos(2.0 * pi * hour / 24.0) + 60.0 * cos(2.0 * pi * hour / 12.0));
    }
}
