/* SPDX-License-Identifier: MIT */
#include "bench/lab/replay/settings.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/report.h"

static const char *const purpose =
    "Replay the decisions of a governor on the windows of an energy log (JSON Lines), verify bit "
    "for bit those that the log holds, or run a policy on a model of a cluster.";

/* Midnight of a day in June. */
static const double some_midnight = 1718064000.0;

static void make_trace(const replay_settings *s) {
    FILE *file = fopen(s->make_trace, "w");
    if (!file)
        bench_usage("--make-trace %s cannot be written: %s", s->make_trace, strerror(errno));
    simulator_trace(file, s->plan.unix_begin_s, s->hours);
    bool bad = ferror(file) != 0;
    if (fclose(file) != 0 || bad)
        bench_usage("--make-trace %s cannot be written: %s", s->make_trace, strerror(errno));
    exit(0);
}

static void check_governor(const tamis_governor_config *config) {
    tamis_governor *governor;
    if (tamis_governor_create(config, &governor) != TAMIS_OK)
        bench_usage("%s", tamis_last_error());
    tamis_governor_destroy(governor);
}

static void open_carbon(replay_settings *s) {
    tamis_carbon *carbon;
    double constant = s->constant > 0.0 ? s->constant : NAN;
    if (tamis_carbon_open(s->intensity, constant, &carbon) != TAMIS_OK)
        bench_usage("--intensity: %s", tamis_last_error());
    s->plan.carbon = carbon;
}

static void plan_work(job_plan *plan, double hours) {
    simulator_knobs nothing = {plan->governor.density_max, 0.0, 0.0};
    double step_s, watts;
    simulator_steady_state(&plan->simulator, &nothing, &step_s, &watts);
    plan->steps = (uint64_t)(3600.0 * hours / step_s);
}

static void check_settings(replay_settings *s) {
    if (s->make_trace)
        make_trace(s);
    if (!s->log == !s->simulate)
        bench_usage("give --log FILE or --simulate; --help says more");
    s->plan.governor.allow_cap = s->allow_cap;
    s->plan.governor.devices = (uint32_t)s->devices;
    s->plan.governor.lead_steps = s->lead;
    s->plan.simulator.ranks = (uint32_t)s->ranks;
    s->plan.simulator.seed = s->seed;
    if (s->simulate && s->devices == 0)
        s->plan.governor.devices = s->plan.simulator.ranks;
    if (s->plan.governor.devices == 0)
        s->plan.governor.devices = 1;
    check_governor(&s->plan.governor);
    open_carbon(s);
    plan_work(&s->plan, s->hours);
    s->report = bench_report_open(s->json);
    s->table = s->report == stdout ? stderr : stdout;
}

void replay_settings_read(int argc, char **argv, replay_settings *out) {
    *out = (replay_settings){.hours = 46.8, .lead = 1, .ranks = 64, .seed = 1};
    job_plan *plan = &out->plan;
    *plan = (job_plan){.governor = TAMIS_GOVERNOR_CONFIG_INIT, .simulator = simulator_defaults()};
    plan->unix_begin_s = some_midnight;
    plan->horizon_s = 86400.0;
    plan->window_s = 60.0;
    plan->governor.cap_min_w = 200.0;
    plan->governor.cap_max_w = 400.0;
    tamis_governor_config *g = &plan->governor;
    const double big = 1e12;
    const bench_option options[] = {
        {"log", 0, BENCH_FILE, &out->log, "FILE", 0, 0, "energy log or decisions to replay"},
        {"what-if", 0, BENCH_FLAG, &out->what_if, NULL, 0, 0,
         "decide again instead of verifying the log's decisions"},
        {"simulate", 0, BENCH_FLAG, &out->simulate, NULL, 0, 0,
         "run a model of a cluster with the policy, and without"},
        {"intensity", 0, BENCH_FILE, &out->intensity, "FILE", 0, 0,
         "carbon trace: CSV time,g_per_kwh"},
        {"constant", 0, BENCH_REAL, &out->constant, "G", 0, 10000,
         "constant g/kWh, without a file; 0: unknown"},
        {"policy", 0, BENCH_TEXT, &g->policy, "P", 0, 0, "off, budget, carbon-..."},
        {"budget", 0, BENCH_REAL, &g->budget_w, "W", 0, big, "power budget of the job; 0: none"},
        {"grams", 0, BENCH_REAL, &g->budget_g_per_h, "G", 0, big, "g CO2 per hour; 0: none"},
        {"pue", 0, BENCH_REAL, &g->pue, "X", 1, 10, "watts of the site per watt of the job"},
        {"slowdown", 0, BENCH_REAL, &g->slowdown, "S", 0, 10, "carbon-...: allowed on average"},
        {"slowdown-most", 0, BENCH_REAL, &g->slowdown_most, "S", 0, 10,
         "carbon-...: allowed at worst"},
        {"threshold", 0, BENCH_REAL, &g->threshold_g_per_kwh, "G", 0, 10000,
         "carbon-threshold; 0: mean of the outlook"},
        {"density-min", 0, BENCH_REAL, &g->density_min, "D", 1e-9, 1, ""},
        {"density-max", 0, BENCH_REAL, &g->density_max, "D", 1e-9, 1, ""},
        {"residual-max", 0, BENCH_REAL, &g->residual_max, "N", 0, 1e300,
         "residual norm above which the density is the largest; 0: none"},
        {"pace-max", 0, BENCH_REAL, &g->pace_max_s, "S", 0, 86400, "longest pause after a step"},
        {"allow-cap", 0, BENCH_FLAG, &out->allow_cap, NULL, 0, 0, "allow power caps of devices"},
        {"cap-min", 0, BENCH_REAL, &g->cap_min_w, "W", 0, big, "bound of a device's power cap"},
        {"cap-max", 0, BENCH_REAL, &g->cap_max_w, "W", 0, big, "bound of a device's power cap"},
        {"devices", 0, BENCH_COUNT, &out->devices, "N", 0, 1e9,
         "default: ranks of the simulator, or 1"},
        {"dead-band", 0, BENCH_REAL, &g->dead_band, "X", 0, 0.5, "fraction of the power"},
        {"ramp", 0, BENCH_REAL, &g->ramp_w_per_s, "W", 0, big,
         "most watts per second; 0: no limit"},
        {"lead", 0, BENCH_COUNT, &out->lead, "N", 1, 1e6, "steps until a decision applies"},
        {"horizon", 0, BENCH_REAL, &plan->horizon_s, "S", 1, 1e9, "length of the outlook"},
        {"hours", 0, BENCH_REAL, &out->hours, "H", 0.01, 1e5,
         "length of the work without a policy, or of a trace"},
        {"begin", 0, BENCH_REAL, &plan->unix_begin_s, "T", 0, 1e11, "Unix time of its start"},
        {"window", 0, BENCH_REAL, &plan->window_s, "S", 1, 86400, "of the simulator"},
        {"ranks", 0, BENCH_COUNT, &out->ranks, "N", 1, 1000000, "of the simulator"},
        {"bound", 0, BENCH_REAL, &plan->simulator.bound, "X", 0, 1,
         "model: fraction of compute bound by the clock"},
        {"noise", 0, BENCH_REAL, &plan->simulator.noise, "X", 0, 0.1, "model: noise of the joules"},
        {"seed", 0, BENCH_COUNT, &out->seed, "N", 0, 1e18, "seed of the noise"},
        {"make-trace", 0, BENCH_FILE, &out->make_trace, "FILE", 0, 0,
         "only write a synthetic carbon trace of --hours"},
        BENCH_ROW_JSON_TABLE(&out->json),
    };
    bench_options_parse("tamis_replay", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    check_settings(out);
}
