/* SPDX-License-Identifier: MIT */
#include "bench/train/govern.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"

void govern_open(const train_settings *s, bench_group *group, govern *out) {
    tamis_governor_config config = TAMIS_GOVERNOR_CONFIG_INIT;
    *out = (govern){.density = s->density, .at_s = bench_now_s()};
    if (s->budget_w <= 0)
        return;
    config.policy = "budget";
    config.budget_w = s->budget_w;
    config.density_min = s->density_min;
    config.density_max = s->density;
    config.pace_max_s = s->pace_max;
    out->decisions = group->rank == 0 ? s->decisions_file : NULL;
    out->next = (tamis_governor_decision)TAMIS_GOVERNOR_DECISION_INIT;
    out->next.step = UINT64_MAX;
    bench_try(group, tamis_governor_create(&config, &out->governor), "cannot create a governor");
}

static _Noreturn void fail_decision(bench_group *group) {
    bench_fail(group, "a decision could not be written: %s", strerror(errno));
}

void govern_close(govern *g, bench_group *group) {
    tamis_governor_destroy(g->governor);
    if (g->decisions && fclose(g->decisions) != 0)
        fail_decision(group);
}

static void apply(govern *g, bench_group *group, tamis_reducer *reducer) {
    if (g->next.density != g->density)
        bench_try(group, tamis_reducer_set_density(reducer, g->next.density), "another density");
    g->density = g->next.density;
    g->pace_s = g->next.pace_s;
    g->next.step = UINT64_MAX;
}

static void sleep_s(double seconds) {
    struct timespec pause = {(time_t)seconds, (long)((seconds - floor(seconds)) * 1e9)};
    nanosleep(&pause, NULL);
}

/* The window is the same on all ranks: joules are of all, and the time is that of the slowest. */
static tamis_governor_window read_window(govern *g, bench_energy *energy, uint64_t step) {
    int64_t uj;
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    w.known = bench_energy_peek(energy, &uj);
    double now_s = bench_now_s();
    w.step = step;
    w.steps = step - g->at_step;
    w.seconds = bench_max(energy->group, now_s - g->at_s);
    w.uj = uj - g->uj;
    w.density = g->density;
    w.pace_s = g->pace_s;
    w.cap_w = 0.0;
    g->uj = uj;
    g->at_s = now_s;
    g->at_step = step;
    return w;
}

void govern_start(govern *g, bench_energy *energy, uint64_t step) {
    if (g->governor)
        read_window(g, energy, step);
}

static void decide(govern *g, bench_energy *energy, uint64_t step) {
    char line[TAMIS_GOVERNOR_LINE_BYTES + 1];
    tamis_governor_window w = read_window(g, energy, step);
    bench_try(energy->group, tamis_governor_decide(g->governor, &w, &g->next), "a decision");
    if (!g->decisions)
        return;
    bench_try(energy->group, tamis_governor_line(&w, &g->next, line, TAMIS_GOVERNOR_LINE_BYTES),
              "its line");
    size_t length = strlen(line);
    line[length++] = '\n';
    if (fwrite(line, 1, length, g->decisions) != length)
        fail_decision(energy->group);
}

void govern_step(govern *g, bench_energy *energy, uint64_t step, tamis_reducer *reducer) {
    if (!g->governor)
        return;
    if (step == g->next.step)
        apply(g, energy->group, reducer);
    if (g->pace_s > 0.0)
        sleep_s(g->pace_s);
    if (step % GOVERN_EVERY == 0)
        decide(g, energy, step);
}
