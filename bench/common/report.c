/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* gethostname */
#include "bench/common/report.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <tamis/lists.h>
#include <unistd.h>

#include "bench/common/options.h"

/* A program writes its records to one file, this one. */
static const char *report_path = "stdout";
static bool report_failed;

FILE *bench_report_open(const char *path) {
    if (!path)
        return NULL;
    if (strcmp(path, "-") == 0)
        return stdout;
    FILE *file = fopen(path, "w");
    if (!file)
        bench_usage("--json %s cannot be written: %s", path, strerror(errno));
    report_path = path;
    return file;
}

/* Print this once, at the first failure. The run continues, for it may still save its state. */
static void fail_report(const char *why) {
    if (!report_failed)
        fprintf(stderr, "%s cannot be written: %s; records are missing\n", report_path, why);
    report_failed = true;
}

void bench_report_write(FILE *file, json_t *record) {
    if (file) {
        errno = 0;
        bool made = record && json_dumpf(record, file, JSON_COMPACT | JSON_REAL_PRECISION(9)) == 0;
        bool written = fputc('\n', file) != EOF && fflush(file) == 0 && !ferror(file);
        if (!made || !written)
            fail_report(errno ? strerror(errno) : "a figure of the record is not a number");
    }
    json_decref(record);
}

int bench_report_close(FILE *file, int status) {
    errno = 0;
    if (fflush(stdout) != 0 || ferror(stdout)) {
        report_path = "stdout";
        fail_report(strerror(errno ? errno : EIO));
    }
    if (file && file != stdout) {
        bool bad = ferror(file) != 0;
        if (fclose(file) != 0 || bad)
            fail_report(strerror(errno ? errno : EIO));
    }
    return status ? status : report_failed;
}

json_t *bench_report_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *bench_report_new(const char *kind) {
    char host[256] = "unknown";
    gethostname(host, sizeof host - 1);
    return json_pack("{ss ss ss}", "record", kind, "host", host, "version", bench_version());
}

const char *bench_version(void) {
    static _Thread_local char text[32];
    int version = tamis_version();
    snprintf(text, sizeof text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}

const char *bench_cpu_level(void) {
    tamis_feature feature = TAMIS_FEATURE_INIT;
    for (size_t i = 0; tamis_feature_list(i, &feature); i++) {
        if (strcmp(feature.reason, "in use") == 0)
            return feature.name;
    }
    return "unknown";
}

bool bench_scheme_find(const char *name, bench_scheme *out) {
    tamis_scheme_info info = TAMIS_SCHEME_INFO_INIT;
    char end;
    for (size_t i = 0; tamis_scheme_list(i, &info); i++) {
        if (strcmp(info.name, name) == 0) {
            snprintf(out->ownership, sizeof out->ownership, "%s", info.ownership);
            snprintf(out->budget, sizeof out->budget, "%s", info.budget);
            snprintf(out->threshold, sizeof out->threshold, "%s", info.threshold);
            snprintf(out->exchange, sizeof out->exchange, "%s", info.exchange);
            return true;
        }
    }
    return sscanf(name, "%15[^+]+%15[^+]+%15[^+]+%15[^+]%c", out->ownership, out->budget,
                  out->threshold, out->exchange, &end) == 4;
}

bool bench_scheme_exact(const bench_scheme *scheme) {
    bool counted =
        strcmp(scheme->threshold, "exact") == 0 || strcmp(scheme->threshold, "predict") == 0;
    return counted && strcmp(scheme->ownership, "all") != 0 &&
           strcmp(scheme->ownership, "bins") != 0;
}

static tamis_status try_options(tamis_reducer_config *config, tamis_update *update) {
    const tamis_segment segments[] = {{"a", 4096}, {"b", 4096}};
    tamis_comm *comm = NULL;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    config->update = update;

    tamis_status status = tamis_comm_create_local(1, NULL, &comm);
    if (status == TAMIS_OK)
        status = tamis_layout_create(segments, 2, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, config, &reducer);
    if (status == TAMIS_OK)
        status = tamis_reducer_options(reducer, config, update);
    tamis_reducer_destroy(reducer);
    tamis_layout_destroy(layout);
    tamis_comm_destroy(comm);
    return status;
}

tamis_reducer_config bench_scheme_options(const char *name, double density, tamis_update *update) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = name;
    config.density = density;
    if (try_options(&config, update) != TAMIS_OK)
        bench_usage("--scheme %s --density %g: %s", name, density, tamis_last_error());
    return config;
}

void bench_scheme_check(const char *name, double density) {
    (void)bench_scheme_options(name, density, NULL);
}
