/* SPDX-License-Identifier: MIT
 *
 * tamis_schemes: runs every preset of tamis_scheme_list, whatever its name, on the same gradients.
 * Ends with status 1 if a preset breaks a rule.
 */
#include <stdio.h>
#include <string.h>
#include <tamis/lists.h>

#include "bench/common/launcher.h"
#include "bench/common/measure.h"
#include "bench/common/start.h"
#include "bench/lab/schemes/schemes.h"

/* Run one preset. @return whether it keeps the rules. */
static bool run_scheme(bench_group *group, const scheme_source *source,
                       const tamis_scheme_info *info, double density) {
    scheme_case c = {.source = source, .info = info, .density = density};
    scheme_run run;
    double begin = bench_now_s();
    bench_scheme_find(info->name, &c.policies);
    scheme_run_all(group, &c, &run);
    bool fine = run.wrong == 0 && run.identical;
    if (group->rank == 0) {
        scheme_report(source->settings->report, group, &c, &run);
        fprintf(stderr, "%-10s %-10s %2u ranks, density %g: %s, %.1f s\n", source->name, info->name,
                group->nranks, density, fine ? "follows all rules" : "BREAKS A RULE",
                bench_now_s() - begin);
    }
    scheme_run_free(&run);
    return fine;
}

static int run_all(bench_group *group, void *context) {
    const scheme_source *source = context;
    const schemes_settings *s = source->settings;
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    bool fine = true;
    for (size_t d = 0; d < s->ndensities; d++) {
        if (s->speed)
            schemes_speed(group, source, s->densities[d]);
        for (size_t i = 0; !s->speed && tamis_scheme_list(i, &info); i++) {
            if (schemes_wanted(s, info.name))
                fine = run_scheme(group, source, &info, s->densities[d]) && fine;
        }
    }
    return !fine;
}

/* Print once the names that were asked for but do not exist; they are left out. */
static void report_missing(const schemes_settings *s) {
    bench_scheme policies;
    char name[64];
    for (const char *at = s->schemes; at && *at; at += *at == ',') {
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        if (bench_launched_rank() == 0 && !bench_scheme_find(name, &policies))
            fprintf(stderr, "preset \"%s\" is not in this library; skipped\n", name);
        at += length;
    }
}

int main(int argc, char **argv) {
    static schemes_settings settings;
    static scheme_source source;
    int status = 0;
    schemes_settings_read(argc, argv, &settings);
    report_missing(&settings);
    source_open(&settings, &source);
    if (settings.speed)
        status = bench_launch(BENCH_MPI, TAMIS_DEVICE_CPU, 0, run_all, &source);
    else if (settings.input)
        status = bench_launch(BENCH_LOCAL, TAMIS_DEVICE_CPU,
                              (uint32_t)source.recording.header.ranks, run_all, &source);
    for (size_t p = 0; !settings.speed && !settings.input && p < settings.nranks; p++)
        status |= bench_launch(BENCH_LOCAL, TAMIS_DEVICE_CPU, settings.ranks[p], run_all, &source);
    source_close(&source);
    return bench_report_close(settings.report, status);
}
