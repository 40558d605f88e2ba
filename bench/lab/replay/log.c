/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* getline */
#include "bench/lab/replay/log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/options.h"

typedef struct reader {
    const char *path;
    size_t line;
    replay_log *log;
} reader;

static _Noreturn void refuse(const reader *r, const char *why) {
    bench_usage("%s, line %zu: %s", r->path, r->line, why);
}

/* A number; NAN if it is null or missing. */
static double number(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static double needed(const reader *r, const json_t *object, const char *name) {
    double value = number(object, name);
    if (isnan(value)) {
        fprintf(stderr, "field \"%s\": ", name);
        refuse(r, "it is missing or not a number");
    }
    return value;
}

static uint64_t count(const reader *r, const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        fprintf(stderr, "field \"%s\": ", name);
        refuse(r, "it is missing or not a whole number");
    }
    return (uint64_t)json_integer_value(value);
}

static replay_entry *append(replay_log *log, size_t line) {
    if (log->count == log->capacity) {
        log->capacity = log->capacity ? 2 * log->capacity : 256;
        log->entries = realloc(log->entries, log->capacity * sizeof log->entries[0]);
        if (!log->entries)
            bench_usage("no memory for %zu windows", log->capacity);
    }
    log->entries[log->count] = (replay_entry){.line = line,
                                              .unix_s = NAN,
                                              .window = TAMIS_GOVERNOR_WINDOW_INIT,
                                              .decision = TAMIS_GOVERNOR_DECISION_INIT};
    return &log->entries[log->count++];
}

/* -- what the meter writes -------------------------------------------------------------------- */

static void read_header(reader *r, const json_t *record) {
    r->log->t0_unix = number(record, "t0_unix");
}

/* Add microjoules of a window. The meter says which domains count, so that none counts twice. */
static void add_joules(const json_t *domains, tamis_governor_window *w) {
    size_t i;
    json_t *domain;
    json_array_foreach(domains, i, domain) {
        const json_t *uj = json_object_get(domain, "uj");
        if (!json_is_true(json_object_get(domain, "counted")) || !json_is_integer(uj))
            continue;
        w->uj += (int64_t)json_integer_value(uj);
        w->known = 1;
    }
}

/* A window of a run without a governor, so without pause or cap. */
static void read_window(reader *r, const json_t *record) {
    uint64_t first = count(r, record, "step0"), next = count(r, record, "step1");
    double t0 = needed(r, record, "t0"), t1 = needed(r, record, "t1");
    const json_t *comm = json_object_get(record, "comm");
    replay_entry *e = append(r->log, r->line);
    if (next < first)
        refuse(r, "step1 is less than step0");
    e->window.step = next;
    e->window.steps = next - first;
    e->window.seconds = t1 - t0;
    e->window.pace_s = e->window.cap_w = 0.0;
    e->window.density = number(comm, "density");
    e->window.residual_norm = number(comm, "residual_norm");
    e->window.intensity_g_per_kwh =
        number(json_object_get(record, "carbon"), "intensity_g_per_kwh");
    e->unix_s = r->log->t0_unix + t1;
    r->log->windows = true;
    add_joules(json_object_get(record, "domains"), &e->window);
}

/* -- what a governor's caller writes ---------------------------------------------------------- */

static tamis_governor_reason reason_of(const reader *r, const json_t *record) {
    const char *name = json_string_value(json_object_get(record, "reason"));
    for (int i = 0; name && i < TAMIS_GOVERNOR_REASONS; i++) {
        if (strcmp(name, tamis_governor_reason_name((tamis_governor_reason)i)) == 0)
            return (tamis_governor_reason)i;
    }
    refuse(r, "the reason is not one that a governor gives");
}

static void read_decision(reader *r, const json_t *record) {
    const json_t *in = json_object_get(record, "in"), *uj = json_object_get(in, "uj");
    replay_entry *e = append(r->log, r->line);
    if (!json_is_integer(uj))
        refuse(r, "the decision lacks its window: in.uj is missing");
    e->decided = r->log->decisions = true;
    e->window.step = count(r, in, "step");
    e->window.steps = count(r, in, "steps");
    e->window.known = count(r, in, "known");
    e->window.uj = (int64_t)json_integer_value(uj);
    e->window.seconds = needed(r, in, "seconds");
    e->window.density = number(in, "density");
    e->window.pace_s = number(in, "pace_s");
    e->window.cap_w = number(in, "cap_w");
    e->window.residual_norm = number(in, "residual_norm");
    e->window.intensity_g_per_kwh = number(in, "intensity_g_per_kwh");
    e->window.outlook_g_per_kwh = number(in, "outlook_g_per_kwh");
    e->window.outlook_low_g_per_kwh = number(in, "outlook_low_g_per_kwh");
    e->decision.step = count(r, record, "step");
    e->decision.reason = reason_of(r, record);
    e->decision.changed = (uint32_t)count(r, record, "changed");
    e->decision.density = needed(r, record, "density");
    e->decision.pace_s = needed(r, record, "pace_s");
    e->decision.cap_w = needed(r, record, "cap_w");
}

static void read_budget(reader *r, const json_t *record) {
    replay_entry *e = append(r->log, r->line);
    e->budget = true;
    e->watts = needed(r, record, "watts");
    e->g_per_h = needed(r, record, "g_per_h");
    e->until_step = count(r, record, "until_step");
}

/* -- the file --------------------------------------------------------------------------------- */

static void read_record(reader *r, const json_t *record) {
    const char *type = json_string_value(json_object_get(record, "type"));
    if (type && strcmp(type, "header") == 0)
        read_header(r, record);
    else if (type && strcmp(type, "window") == 0 &&
             !json_is_true(json_object_get(record, "overlaps")))
        read_window(r, record);
    else if (type && strcmp(type, "decision") == 0)
        read_decision(r, record);
    else if (type && strcmp(type, "budget") == 0)
        read_budget(r, record);
}

void replay_log_read(const char *path, replay_log *out) {
    reader r = {.path = path, .log = out};
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length;
    FILE *file = fopen(path, "r");
    *out = (replay_log){.t0_unix = NAN};
    if (!file)
        bench_usage("--log %s cannot be read: %s", path, strerror(errno));
    while ((length = getline(&text, &capacity, file)) >= 0) {
        json_error_t error;
        r.line++;
        if (length == 0 || text[length - 1] != '\n') { /* its writer was killed */
            out->cut = true;
            break;
        }
        json_t *record = json_loadb(text, (size_t)length, 0, &error);
        if (!record) { /* from a killed run, to whose file a later run appended */
            out->cut = true;
            continue;
        }
        if (!json_is_object(record))
            refuse(&r, "it is not a JSON object");
        read_record(&r, record);
        json_decref(record);
    }
    free(text);
    if (ferror(file))
        bench_usage("--log %s cannot be read: %s", path, strerror(errno));
    fclose(file);
    if (out->windows && out->decisions)
        bench_usage("--log %s holds decisions and windows of a meter: give a log of one kind",
                    path);
    if (!out->windows && !out->decisions)
        bench_usage("--log %s holds neither a window nor a decision", path);
}

void replay_log_free(replay_log *log) {
    free(log->entries);
}
