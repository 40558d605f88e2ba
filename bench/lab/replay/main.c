/* SPDX-License-Identifier: MIT
 *
 * tamis_replay: decisions of a governor from a log, or on a model. Status 1: the log holds other
 * decisions.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/lab/replay/log.h"
#include "bench/lab/replay/settings.h"

/* Write the library's own line, which is exact: appended to a log it can be verified later. */
static void write_decision(const replay_settings *s, const tamis_governor_window *w,
                           const tamis_governor_decision *d) {
    char line[TAMIS_GOVERNOR_LINE_BYTES];
    if (s->report && tamis_governor_line(w, d, line, sizeof line) == TAMIS_OK)
        fprintf(s->report, "%s\n", line);
}

/* -- a log ------------------------------------------------------------------------------------ */

static void print_row(const replay_settings *s, const tamis_governor_window *w,
                      const tamis_governor_decision *d) {
    fprintf(s->table, "%10llu %12.1f %12.1f %9.6f %9.6f %9.2f %9.4f  %s\n",
            (unsigned long long)d->step, d->watts, d->budget_w, d->density, d->pace_s, d->cap_w,
            d->slowdown, tamis_governor_reason_name(d->reason));
    write_decision(s, w, d);
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0;
}

static bool same(const tamis_governor_decision *a, const tamis_governor_decision *b) {
    return a->step == b->step && a->reason == b->reason && a->changed == b->changed &&
           same_bits(a->density, b->density) && same_bits(a->pace_s, b->pace_s) &&
           same_bits(a->cap_w, b->cap_w);
}

/* Add intensity and outlook from the file if the record has none. */
static void add_intensity(const replay_settings *s, const replay_entry *e,
                          tamis_governor_window *w) {
    tamis_carbon_outlook ahead = TAMIS_CARBON_OUTLOOK_INIT;
    if (e->decided ||
        tamis_carbon_look(s->plan.carbon, e->unix_s, s->plan.horizon_s, &ahead) != TAMIS_OK)
        return;
    if (isnan(w->intensity_g_per_kwh))
        w->intensity_g_per_kwh = tamis_carbon_intensity(s->plan.carbon, e->unix_s);
    w->outlook_g_per_kwh = ahead.mean;
    w->outlook_low_g_per_kwh = ahead.low;
}

/* @return whether the log holds the same decision, or none */
static bool repeat(const replay_settings *s, tamis_governor *governor, const replay_entry *e) {
    tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT;
    tamis_governor_window w = e->window;
    tamis_status status;
    if (e->budget) {
        status = tamis_governor_set_budget(governor, e->watts, e->g_per_h, e->until_step);
        if (status != TAMIS_OK)
            bench_usage("%s, line %zu: %s", s->log, e->line, tamis_last_error());
        return true;
    }
    add_intensity(s, e, &w);
    status = tamis_governor_decide(governor, &w, &d);
    if (status != TAMIS_OK)
        bench_usage("%s, line %zu: %s", s->log, e->line, tamis_last_error());
    print_row(s, &w, &d);
    if (!e->decided || s->what_if || same(&d, &e->decision))
        return true;
    fprintf(s->table,
            "  ^ line %zu has a different decision: step %llu, density %.17g, pace %.17g s, cap "
            "%.17g W, %s\n",
            e->line, (unsigned long long)e->decision.step, e->decision.density, e->decision.pace_s,
            e->decision.cap_w, tamis_governor_reason_name(e->decision.reason));
    return false;
}

static int replay(const replay_settings *s) {
    replay_log log;
    tamis_governor *governor;
    unsigned long long windows = 0, wrong = 0;
    replay_log_read(s->log, &log);
    if (tamis_governor_create(&s->plan.governor, &governor) != TAMIS_OK)
        bench_usage("%s", tamis_last_error());
    bool verify = log.decisions && !s->what_if;
    fprintf(s->table, "%10s %12s %12s %9s %9s %9s %9s  reason\n", "step", "watts", "budget",
            "density", "pace s", "cap W", "slowdown");
    for (size_t i = 0; i < log.count; i++) {
        windows += !log.entries[i].budget;
        wrong += !repeat(s, governor, &log.entries[i]);
    }
    fprintf(s->table, "# %llu windows%s; %s\n", windows,
            log.cut ? ", an incomplete last line left out" : "",
            !verify ? "nothing to verify: what was decided did not change the windows"
            : wrong ? "FAILED: decisions of the log differ"
                    : "every decision of the log is the same, bit for bit");
    bench_report_write(s->report, json_pack("{ss ss ss sI sb sI sb}", "record", "replay", "version",
                                            bench_version(), "policy", s->plan.governor.policy,
                                            "windows", (json_int_t)windows, "verified", verify,
                                            "different", (json_int_t)wrong, "cut", log.cut));
    tamis_governor_destroy(governor);
    replay_log_free(&log);
    return wrong > 0;
}

/* -- the simulator ---------------------------------------------------------------------------- */

static void observe(void *context, const simulator_run *truth, const tamis_governor_window *w,
                    const tamis_governor_decision *d) {
    (void)truth;
    write_decision(context, w, d);
}

static job_result run(const replay_settings *s, const char *policy, job_observer observer) {
    job_plan plan = s->plan;
    job_result result;
    plan.governor.policy = policy;
    if (job_run(&plan, observer, (void *)(size_t)s, &result) != TAMIS_OK)
        bench_usage("the simulator with policy %s: %s", policy, tamis_last_error());
    fprintf(s->table, "%-20s %10.3f %14.1f %12.1f %10.6f %8llu %8llu\n", policy,
            result.seconds / 3600.0, result.joules / 3.6e6, result.grams / 1000.0, result.density,
            (unsigned long long)result.windows, (unsigned long long)result.changes);
    return result;
}

static json_t *real_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *record_of(const replay_settings *s, const char *policy, const job_result *r) {
    return json_pack("{ss ss ss sI sf sf so sf sI sI}", "record", "simulation", "version",
                     bench_version(), "policy", policy, "steps", (json_int_t)s->plan.steps,
                     "seconds", r->seconds, "joules", r->joules, "grams", real_or_null(r->grams),
                     "density", r->density, "windows", (json_int_t)r->windows, "changes",
                     (json_int_t)r->changes);
}

static int what_if(const replay_settings *s) {
    const char *policy = s->plan.governor.policy;
    fprintf(s->table, "# a model, not a measurement: %u ranks, %llu steps\n",
            s->plan.simulator.ranks, (unsigned long long)s->plan.steps);
    fprintf(s->table, "%-20s %10s %14s %12s %10s %8s %8s\n", "policy", "hours", "kWh", "kg CO2",
            "density", "windows", "changes");
    job_result off = run(s, "off", NULL), on = run(s, policy, observe);
    double time = on.seconds / off.seconds - 1.0, energy = on.joules / off.joules - 1.0;
    double grams = on.grams / off.grams - 1.0;
    fprintf(s->table, "# %s against none: time %+.2f %%, energy %+.2f %%, CO2 %+.2f %%\n", policy,
            100.0 * time, 100.0 * energy, 100.0 * grams);
    bench_report_write(s->report, record_of(s, "off", &off));
    bench_report_write(s->report, record_of(s, policy, &on));
    bench_report_write(s->report,
                       json_pack("{ss ss sf sf so}", "record", "compared", "policy", policy, "time",
                                 time, "energy", energy, "grams", real_or_null(grams)));
    return 0;
}

int main(int argc, char **argv) {
    static replay_settings settings;
    replay_settings_read(argc, argv, &settings);
    int status = settings.simulate ? what_if(&settings) : replay(&settings);
    tamis_carbon_close((tamis_carbon *)(size_t)settings.plan.carbon);
    return bench_report_close(settings.report, status);
}
