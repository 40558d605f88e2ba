/* SPDX-License-Identifier: MIT
 *
 * tamis_energy: what can be measured on this host, why the rest cannot, and what measuring costs.
 *
 *     mark_ns        a begin or an end of a phase, of it clock_ns for reading a clock; median over
 *                    rounds of many
 *     share          processor time of the meter's threads / time, while the program sleeps
 *     slower         iteration with a meter and marks / iteration without, minus 1: rounds of both
 *                    in turn, ratios made in each round, median with quartiles
 */
#include <stdio.h>
#include <stdlib.h>
#include <tamis/energy.h>
#include <time.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/report.h"

enum { MARKS = 1000, MARK_ROUNDS = 401, WORK = 1 << 14 };

typedef struct settings {
    const char *sources, *sysfs_root, *nvml, *files, *json;
    double seconds;
    uint64_t rounds, iterations;
    FILE *report;
} settings;

static const char *const purpose =
    "Show the energy counters of this host, and what it costs to read them and to mark phases.";

#define COMMA_AND(name) ", " #name

static void read_settings(int argc, char **argv, settings *out) {
    *out = (settings){.seconds = 2.0, .rounds = 15, .iterations = 100};
    const bench_option options[] = {
        {"sources", 0, BENCH_TEXT, &out->sources, "LIST", 0, 0,
         "auto, none" TAMIS_ENERGY_SOURCES(COMMA_AND) "; several joined by ','"},
        {"sysfs-root", 0, BENCH_FILE, &out->sysfs_root, "DIR", 0, 0,
         "path prefix of /sys and /proc"},
        {"nvml", 0, BENCH_FILE, &out->nvml, "FILE", 0, 0, "path of NVIDIA's management library"},
        {"files", 0, BENCH_TEXT, &out->files, "LIST", 0, 0, "name=path:unit,..."},
        {"seconds", 0, BENCH_REAL, &out->seconds, "S", 0.1, 3600, "time to watch the counters"},
        {"rounds", 'n', BENCH_COUNT, &out->rounds, "N", 1, 1e6,
         "rounds, each with and without a meter"},
        {"iterations", 0, BENCH_COUNT, &out->iterations, "N", 1, 1e6,
         "iterations per round, 2 ms each"},
        {"json", 0, BENCH_FILE, &out->json, "FILE", 0, 0, "write records to FILE; -: stdout"},
    };
    bench_options_parse("tamis_energy", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    out->report = bench_report_open(out->json);
}

static tamis_energy *open_meter(const settings *s) {
    tamis_energy *energy;
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    config.sources = s->sources;
    config.sysfs_root = s->sysfs_root;
    config.nvml_path = s->nvml;
    config.files = s->files;
    if (tamis_energy_create(&config, &energy) != TAMIS_OK)
        bench_usage("cannot open a meter: %s", tamis_last_error());
    return energy;
}

/* -- domains ---------------------------------------------------------------------------------- */

static double processor_s(clockid_t whose) {
    struct timespec used;
    clock_gettime(whose, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* CPU time of all threads but this one. */
static double others_s(void) {
    return processor_s(CLOCK_PROCESS_CPUTIME_ID) - processor_s(CLOCK_THREAD_CPUTIME_ID);
}

static double watch(double seconds) {
    double used = others_s(), begin = bench_now_s();
    struct timespec pause = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
    return (others_s() - used) / (bench_now_s() - begin);
}

static json_t *one_domain(const tamis_energy_domain *d, double seconds) {
    int known = d->status == TAMIS_ENERGY_OK || d->uj > 0;
    return json_pack("{ss ss ss ss sb so so}", "id", d->id, "kind", tamis_energy_kind_name(d->kind),
                     "status", tamis_energy_status_name(d->status), "reason", d->reason, "counted",
                     d->counted, "mean_w",
                     known ? json_real(1e-6 * (double)d->uj / seconds) : json_null(), "tick_s",
                     d->tick_s > 0 ? json_real(d->tick_s) : json_null());
}

static json_t *domains(tamis_energy *energy, double seconds) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < tamis_energy_ndomains(energy); i++) {
        tamis_energy_domain d = TAMIS_ENERGY_DOMAIN_INIT;
        if (tamis_energy_domain_at(energy, i, &d) != TAMIS_OK)
            bench_usage("domain %u: %s", i, tamis_last_error());
        json_array_append_new(list, one_domain(&d, seconds));
    }
    return list;
}

/* -- cost ------------------------------------------------------------------------------------- */

static double time_clock(void) {
    double begin = bench_now_s();
    for (int i = 0; i < MARKS; i++)
        bench_now_s();
    return 1e9 * (bench_now_s() - begin) / MARKS;
}

static double time_marks(tamis_energy *energy) {
    double begin = bench_now_s();
    for (int i = 0; i < MARKS / 2; i++) {
        tamis_energy_begin(energy, TAMIS_ENERGY_USER);
        tamis_energy_end(energy, TAMIS_ENERGY_USER);
    }
    return 1e9 * (bench_now_s() - begin) / MARKS;
}

static void time_both(tamis_energy *energy, double *mark_ns, double *clock_ns) {
    double marks[MARK_ROUNDS], clocks[MARK_ROUNDS];
    for (int i = 0; i < MARK_ROUNDS; i++) {
        struct timespec pause = {0, 1000000}; /* the meter takes what there is */
        marks[i] = time_marks(energy);
        clocks[i] = time_clock();
        nanosleep(&pause, NULL);
    }
    *mark_ns = bench_median(marks, MARK_ROUNDS);
    *clock_ns = bench_median(clocks, MARK_ROUNDS);
}

static void pass(float *values) {
    for (int i = 0; i < WORK; i++)
        values[i] = values[i] * 0.999f + 0.001f;
}

/* Passes that take 2 ms here. */
static uint64_t calibrate(float *values) {
    double begin = bench_now_s();
    uint64_t passes = 0;
    for (; bench_now_s() < begin + 0.2; passes++)
        pass(values);
    return passes / 100 + 1;
}

static double time_iterations(const settings *s, tamis_energy *energy, float *values,
                              uint64_t passes) {
    double begin = bench_now_s();
    for (uint64_t i = 0; i < s->iterations; i++) {
        tamis_energy_begin(energy, TAMIS_ENERGY_COMPUTE);
        for (uint64_t p = 0; p < passes; p++)
            pass(values);
        tamis_energy_end(energy, TAMIS_ENERGY_COMPUTE);
    }
    return bench_now_s() - begin;
}

static double time_with(const settings *s, float *values, uint64_t passes) {
    tamis_energy *energy = open_meter(s);
    double seconds = time_iterations(s, energy, values, passes);
    tamis_energy_destroy(energy);
    return seconds;
}

static json_t *compare(const settings *s) {
    float *values = bench_alloc(WORK, sizeof *values);
    double *ratios = bench_alloc(s->rounds, sizeof *ratios);
    uint64_t passes = calibrate(values);
    for (uint64_t r = 0; r < s->rounds; r++) {
        double without = r % 2 ? time_iterations(s, NULL, values, passes) : 0.0;
        double with = time_with(s, values, passes);
        if (r % 2 == 0)
            without = time_iterations(s, NULL, values, passes);
        ratios[r] = with / without - 1.0;
    }
    json_t *slower =
        json_pack("{sf sf sf}", "q1", bench_quantile(ratios, s->rounds, 0.25), "median",
                  bench_median(ratios, s->rounds), "q3", bench_quantile(ratios, s->rounds, 0.75));
    free(ratios);
    free(values);
    return slower;
}

/* -- output ----------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *name) {
    return json_string_value(json_object_get(object, name));
}

static double real_of(const json_t *object, const char *name) {
    return json_number_value(json_object_get(object, name));
}

static void print_domain(const json_t *d) {
    printf("  %-28s %-8s %-12s", text_of(d, "id"), text_of(d, "kind"), text_of(d, "status"));
    if (json_is_real(json_object_get(d, "mean_w")))
        printf(" %8.2f W", real_of(d, "mean_w"));
    if (json_is_real(json_object_get(d, "tick_s")))
        printf(", ticks every %.1f ms", 1e3 * real_of(d, "tick_s"));
    printf(" %s\n", text_of(d, "reason"));
}

static void print_text(const json_t *record) {
    const json_t *list = json_object_get(record, "domains"), *d;
    const json_t *slower = json_object_get(record, "slower");
    size_t i;
    puts("domains");
    json_array_foreach(list, i, d) print_domain(d);
    if (json_array_size(list) == 0)
        puts("  none");
    printf("cost\n  a mark takes %.0f ns, %.0f ns of which are for reading the clock\n",
           real_of(record, "mark_ns"), real_of(record, "clock_ns"));
    printf("  the meter's threads take %.3f %% of a core\n", 100.0 * real_of(record, "share"));
    printf("  an iteration of 2 ms takes %+.3f %% longer (quartiles %+.3f, %+.3f)\n",
           100.0 * real_of(slower, "median"), 100.0 * real_of(slower, "q1"),
           100.0 * real_of(slower, "q3"));
}

int main(int argc, char **argv) {
    settings s;
    double mark_ns, clock_ns;
    read_settings(argc, argv, &s);
    tamis_energy *energy = open_meter(&s);
    double share = watch(s.seconds);
    json_t *found = domains(energy, s.seconds);
    time_both(energy, &mark_ns, &clock_ns);
    tamis_energy_destroy(energy);

    json_t *record = bench_report_new("energy");
    json_t *more = json_pack("{so sf sf sf so}", "domains", found, "mark_ns", mark_ns, "clock_ns",
                             clock_ns, "share", share, "slower", compare(&s));
    json_object_update(record, more);
    json_decref(more);
    if (!s.report)
        print_text(record);
    bench_report_write(s.report, record);
    return bench_report_close(s.report, 0);
}
