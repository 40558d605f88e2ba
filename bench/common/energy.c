/* SPDX-License-Identifier: MIT */
#include "bench/common/energy.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bench/common/measure.h"

enum { COUNTERS_MS = 3000 };

static bool is_local(const bench_group *group) {
    return group->transport == BENCH_LOCAL;
}

/* Give the first rank's meter to all ranks of this process. */
static void share_meter(bench_energy *e) {
    bench_energy *all[4096];
    bench_allgather(e->group, &e, sizeof e, all);
    e->first = all[0];
    if (e != e->first)
        e->meter = e->first->meter;
}

void bench_energy_open(bench_group *group, const bench_energy_files *files, bench_energy *out) {
    tamis_energy_config config = TAMIS_ENERGY_CONFIG_INIT;
    *out = (bench_energy){.group = group};
    config.intensity = files->intensity;
    config.rank = group->rank;
    config.nranks = group->nranks;
    if (files->log) {
        snprintf(out->log, sizeof out->log, group->rank == 0 ? "%s" : "%s.rank%u", files->log,
                 group->rank);
        config.json = out->log;
    }
    if (group->rank == 0 || !is_local(group))
        bench_try(group, tamis_energy_create(&config, &out->meter), "cannot open a meter");
    if (is_local(group))
        share_meter(out);
}

/* The rank that is the last to end a step counts it: bytes are there before it is known to be. */
void bench_energy_step(bench_energy *e, const tamis_stats *stats) {
    tamis_stats all = *stats;
    if (is_local(e->group)) {
        atomic_fetch_add(&e->first->wire_bytes, stats->wire_bytes);
        if ((atomic_fetch_add(&e->first->ended, 1) + 1) % e->group->nranks != 0)
            return;
        all.wire_bytes = atomic_exchange(&e->first->wire_bytes, 0);
    }
    tamis_energy_step(e->meter, &all);
}

/* @return the last line of a file as a record; NULL: there is none, or it is not a record */
static json_t *last_record(FILE *file) {
    enum { MOST = 1 << 20 };
    char *text = bench_alloc(MOST + 1, 1);
    if (fseek(file, -(long)MOST, SEEK_END) != 0)
        rewind(file); /* the file is shorter than MOST */
    size_t length = fread(text, 1, MOST, file);
    if (length > 0 && text[length - 1] == '\n')
        text[length - 1] = '\0';
    const char *line = strrchr(text, '\n');
    json_t *record = json_loads(line ? line + 1 : text, 0, NULL);
    free(text);
    return record;
}

/* A meter continues when its log cannot be written; the last line says whether that happened. */
static void check_log(bench_energy *e) {
    struct stat about;
    if (!e->log[0] || (stat(e->log, &about) == 0 && !S_ISREG(about.st_mode)))
        return;
    FILE *file = fopen(e->log, "rb");
    json_t *last = file ? last_record(file) : NULL;
    const char *type = json_string_value(json_object_get(last, "type"));
    if (!type || strcmp(type, "summary") != 0 ||
        json_integer_value(json_object_get(last, "lost")) != 0)
        bench_fail(e->group, "the energy log %s lacks lines that could not be written", e->log);
    json_decref(last);
    fclose(file);
}

void bench_energy_close(bench_energy *e) {
    if (is_local(e->group))
        bench_barrier(e->group); /* after this no rank marks phases */
    if (e->group->rank > 0 && is_local(e->group))
        return;
    tamis_energy_destroy(e->meter);
    check_log(e);
}

/* All phases have been recorded: attribute joules to them once the counters have ticked. A counter
 * that stands still is no failure: report what is known. */
static void settle(bench_energy *e) {
    tamis_energy_totals moment = TAMIS_ENERGY_TOTALS_INIT;
    uint32_t window;
    bench_try(e->group, tamis_energy_window_begin(e->meter, NULL, &window), "a window");
    bench_try(e->group, tamis_energy_window_end(e->meter, window), "end of a window");
    if (tamis_energy_window_result(e->meter, window, COUNTERS_MS, &moment) != TAMIS_OK)
        bench_try(e->group, tamis_energy_window_result(e->meter, window, 0, NULL), "a window");
}

static bool sum_domains(bench_energy *e, int64_t *out_uj) {
    bool known = false;
    *out_uj = 0;
    for (uint32_t i = 0; i < tamis_energy_ndomains(e->meter); i++) {
        tamis_energy_domain d = TAMIS_ENERGY_DOMAIN_INIT;
        bench_try(e->group, tamis_energy_domain_at(e->meter, i, &d), "a domain");
        *out_uj += d.counted ? (int64_t)d.uj : 0;
        known = known || (d.counted && d.status == TAMIS_ENERGY_OK);
    }
    return known;
}

bool bench_energy_peek(bench_energy *e, int64_t *out_uj) {
    tamis_energy_totals totals = TAMIS_ENERGY_TOTALS_INIT;
    if (!is_local(e->group)) {
        bench_try(e->group, tamis_energy_report(e->meter, e->group->comm, &totals), "joules");
        *out_uj = totals.uj - e->earlier.uj;
        return totals.known;
    }
    int64_t mine[2] = {0}, *all = bench_alloc(2 * e->group->nranks, sizeof *all);
    if (e->group->rank == 0)
        mine[0] = sum_domains(e, &mine[1]);
    bench_allgather(e->group, mine, sizeof mine, all);
    *out_uj = all[1];
    bool known = all[0] != 0;
    free(all);
    return known;
}

void bench_energy_totals(bench_energy *e, tamis_energy_totals *out) {
    if (e->group->rank == 0 || !is_local(e->group))
        settle(e);
    bench_energy_totals_now(e, out);
}

void bench_energy_totals_now(bench_energy *e, tamis_energy_totals *out) {
    *out = (tamis_energy_totals)TAMIS_ENERGY_TOTALS_INIT;
    if (!is_local(e->group)) {
        bench_try(e->group, tamis_energy_report(e->meter, e->group->comm, out), "joules of all");
        return;
    }
    if (e->group->rank == 0)
        bench_try(e->group, tamis_energy_read(e->meter, out), "joules");
    tamis_energy_totals *all = bench_alloc(e->group->nranks, sizeof *all);
    bench_allgather(e->group, out, sizeof *out, all);
    *out = all[0];
    free(all);
}

/* The first of the ranks that share a meter restores it. */
void bench_energy_resume(bench_energy *e, const tamis_energy_totals *earlier) {
    e->earlier = *earlier;
    if (e->group->rank == 0 || !is_local(e->group))
        bench_try(e->group, tamis_energy_resume(e->meter, earlier), "joules of an earlier run");
}

/* -- record ----------------------------------------------------------------------------------- */

static double joules(int64_t uj) {
    return 1e-6 * (double)uj;
}

static json_t *known(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static const char *name_of(uint32_t phase, const char *const *user_names) {
    for (uint32_t i = 0; user_names && user_names[i]; i++) {
        if (phase == TAMIS_ENERGY_USER + i)
            return user_names[i];
    }
    return tamis_energy_phase_name(phase);
}

static json_t *others(const tamis_energy_share *share, uint32_t phase,
                      const char *const *user_names) {
    json_t *list = json_array();
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        if (p != phase && share->group >> p & 1)
            json_array_append_new(list, json_string(name_of(p, user_names)));
    }
    return list;
}

static json_t *phases(const tamis_energy_totals *t, const char *const *user_names) {
    json_t *all = json_object();
    for (uint32_t p = 0; p < TAMIS_ENERGY_PHASES; p++) {
        const tamis_energy_share *s = &t->shares[p];
        if (s->uj == 0 && s->seconds == 0.0)
            continue;
        json_t *one =
            json_pack("{sf sf sf sf ss so}", "j", joules(s->uj), "low_j", joules(s->low_uj),
                      "high_j", joules(s->high_uj), "s", s->seconds, "method",
                      tamis_energy_method_name(s->method), "with", others(s, p, user_names));
        json_object_set_new(all, name_of(p, user_names), one);
    }
    return all;
}

/* Microjoules of this run's steps, without the phase `apart`. */
static int64_t step_uj(const tamis_energy_totals *t, uint32_t apart) {
    return t->uj - (apart < TAMIS_ENERGY_PHASES ? t->shares[apart].uj : 0);
}

static json_t *details(const bench_energy *e, const tamis_energy_totals *t, double steps,
                       uint32_t apart, const char *const *user_names) {
    int64_t uj = step_uj(t, apart) - step_uj(&e->earlier, apart);
    double exchange = joules(t->shares[TAMIS_PHASE_EXCHANGE].uj);
    double bits = 8.0 * (double)t->wire_bytes;
    return json_pack("{so so sf so so}", "step_j", known(steps > 0 ? joules(uj) / steps : NAN),
                     "phases", phases(t, user_names), "unattributed_j", joules(t->unattributed_uj),
                     "pj_per_bit", known(bits > 0 && exchange > 0 ? 1e12 * exchange / bits : NAN),
                     "co2_g", known(t->grams));
}

void bench_energy_add(const bench_energy *e, const tamis_energy_totals *t, double steps,
                      uint32_t apart, const char *const *user_names, json_t *record) {
    json_object_set_new(record, "energy_j", t->known ? json_real(joules(t->uj)) : json_null());
    json_object_set_new(record, "energy_reason",
                        t->missing[0] ? json_string(t->missing) : json_null());
    json_object_set_new(record, "energy",
                        t->known ? details(e, t, steps, apart, user_names) : json_null());
}
