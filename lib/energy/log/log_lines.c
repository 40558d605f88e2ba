/* SPDX-License-Identifier: MIT
 *
 * JSON Lines, schema tamis.energy/1. docs/energy.md describes every field, and a test compares what
 * is written with its table.
 */
#include "lib/energy/log/log_lines.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

static void begin_line(tam_text *out, const char *type) {
    tam_text_put(out, "{");
    tam_json_text(out, "type", type);
}

static void end_line(tam_text *out) {
    tam_text_put(out, "}\n");
}

/* -- header ------------------------------------------------------------------------------------ */

/* 0: not yet learnt. */
static double learnt(double value) {
    return value > 0.0 ? value : NAN;
}

static void describe_domain(const tamis_energy_domain *domain, tam_text *out) {
    tam_json_open(out, NULL, "{");
    tam_json_text(out, "id", domain->id);
    tam_json_text(out, "kind", tamis_energy_kind_name(domain->kind));
    tam_json_text(out, "source", domain->source);
    tam_json_text(out, "status", tamis_energy_status_name(domain->status));
    tam_json_text(out, "reason", domain->reason);
    tam_json_bool(out, "counted", domain->counted);
    tam_json_number(out, "tick_s", learnt(domain->tick_s));
    tam_json_number(out, "lag_s", domain->duty > 0.0 ? domain->lag_s : NAN);
    tam_json_number(out, "duty", learnt(domain->duty));
    tam_text_put(out, "}");
}

/* Unix time at t0, from a look at both clocks. @return its error, either way */
static double ask_clocks(uint64_t t0_ns, double *out_unix) {
    struct timespec real;
    uint64_t before_ns = tam_clock_ns();
    clock_gettime(CLOCK_REALTIME, &real);
    uint64_t after_ns = tam_clock_ns(), middle_ns = before_ns + (after_ns - before_ns) / 2;
    double ago_s = (double)(int64_t)(middle_ns - t0_ns) / 1e9;
    *out_unix = (double)real.tv_sec + (double)real.tv_nsec / 1e9 - ago_s;
    return (double)(after_ns - before_ns) / 2e9;
}

static void add_phase_names(tam_text *out) {
    tam_json_open(out, "phases", "[");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        if (tamis_energy_phase_name(phase)[0])
            tam_json_text(out, NULL, tamis_energy_phase_name(phase));
    }
    tam_text_put(out, "]");
}

void tam_line_head(const tam_energy_log_setup *setup, tam_text *out) {
    char version[32];
    double t0_unix = setup->t0_unix, clock_err_s = NAN;
    int v = tamis_version();
    if (t0_unix == 0.0)
        clock_err_s = ask_clocks(setup->t0_ns, &t0_unix);
    snprintf(version, sizeof version, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    begin_line(out, "header");
    tam_json_text(out, "schema", "tamis.energy/1");
    tam_json_text(out, "run", setup->run ? setup->run : "");
    tam_json_text(out, "host", setup->host);
    tam_json_text(out, "boot_id", setup->boot_id);
    tam_json_count(out, "rank", setup->rank);
    tam_json_count(out, "nranks", setup->nranks);
    tam_json_text(out, "version", version);
    tam_json_number(out, "t0_unix", t0_unix);
    tam_json_number(out, "clock_err_s", clock_err_s);
    tam_json_number(out, "pue", setup->pue);
    add_phase_names(out);
}

void tam_line_header(const tam_energy_log *log, tam_text *out) {
    tam_text_add(out, &log->head);
    tam_json_open(out, "domains", "[");
    for (uint32_t i = 0; i < log->ndomains; i++)
        describe_domain(&log->domains[i], out);
    tam_text_put(out, "]");
    end_line(out);
}

/* -- window and summary ------------------------------------------------------------------------ */

/* Seconds after t0. */
static double seconds_of(const tam_energy_log *log, uint64_t at_ns) {
    return (double)(int64_t)(at_ns - log->t0_ns) / 1e9;
}

/* Whether joules of the stretch are known: a domain that cannot be read and gained nothing may have
 * used any amount. */
static bool knows(const tamis_energy_domain *domain) {
    return domain->status == TAMIS_ENERGY_OK || domain->uj > 0;
}

static void add_domains(const tam_energy_record *record, tam_text *out) {
    tam_json_open(out, "domains", "[");
    for (uint32_t i = 0; i < record->ndomains; i++) {
        const tamis_energy_domain *domain = &record->domains[i];
        const int64_t *rest = record->unattributed_uj, *idle = record->idle_uj;
        bool known = knows(domain);
        tam_json_open(out, NULL, "{");
        tam_json_text(out, "id", domain->id);
        tam_json_uj(out, "uj", known, (int64_t)domain->uj);
        tam_json_uj(out, "unattributed_uj", known && rest, rest ? rest[i] : 0);
        tam_json_uj(out, "idle_uj", known && idle, idle ? idle[i] : 0);
        tam_json_text(out, "status", tamis_energy_status_name(domain->status));
        tam_json_bool(out, "counted", domain->counted);
        tam_json_count(out, "wraps", domain->wraps);
        tam_json_count(out, "resets", domain->resets);
        tam_text_put(out, "}");
    }
    tam_text_put(out, "]");
}

/* Phases that cannot be told apart; alone in its group a phase can. */
static void add_group(uint32_t phase, uint32_t group, tam_text *out) {
    tam_json_open(out, "group", "[");
    for (uint32_t other = 0; other < TAMIS_ENERGY_PHASES; other++) {
        if ((group & ~(1u << phase)) != 0 && (group >> other & 1u))
            tam_json_text(out, NULL, tamis_energy_phase_name(other));
    }
    tam_text_put(out, "]");
}

static bool attributed(const tamis_energy_totals *totals, uint32_t phase) {
    return totals->known && totals->shares[phase].method != TAMIS_ENERGY_NONE;
}

static void add_phases(const tamis_energy_totals *totals, tam_text *out) {
    tam_json_open(out, "phases", "[");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        const tamis_energy_share *share = &totals->shares[phase];
        bool known = attributed(totals, phase);
        bool bounded = known && share->method != TAMIS_ENERGY_TIME_SHARE;
        if (!(share->seconds > 0.0) && share->uj == 0)
            continue;
        tam_json_open(out, NULL, "{");
        tam_json_text(out, "name", tamis_energy_phase_name(phase));
        add_group(phase, share->group, out);
        tam_json_number(out, "t_s", share->seconds);
        tam_json_uj(out, "uj", known, share->uj);
        tam_json_uj(out, "lo_uj", bounded, share->low_uj);
        tam_json_uj(out, "hi_uj", bounded, share->high_uj);
        tam_json_text(out, "method", tamis_energy_method_name(share->method));
        tam_text_put(out, "}");
    }
    tam_text_put(out, "]");
}

static void add_comm(const tam_energy_record *record, tam_text *out) {
    double offered = (double)record->elements_offered, sent = (double)record->elements_sent;
    tam_json_open(out, "comm", "{");
    tam_json_count(out, "bytes_wire", record->totals.wire_bytes);
    tam_json_count(out, "elems_offered", record->elements_offered);
    tam_json_count(out, "elems_sent", record->elements_sent);
    tam_json_number(out, "density_asked", record->density_asked);
    tam_json_number(out, "density", offered > 0.0 ? sent / offered : NAN);
    tam_json_number(out, "residual_norm", record->residual_norm);
    tam_text_put(out, "}");
}

static void add_slack(const tam_energy_record *record, tam_text *out) {
    tam_json_open(out, "slack", "{");
    tam_json_number(out, "p50_s", record->slack_p50_s);
    tam_json_number(out, "p95_s", record->slack_p95_s);
    tam_json_number(out, "max_s", record->slack_max_s);
    tam_json_uj(out, "last_rank", record->straggler != UINT32_MAX, record->straggler);
    tam_json_uj(out, "wait_uj", attributed(&record->totals, TAMIS_PHASE_ARRIVE),
                record->totals.shares[TAMIS_PHASE_ARRIVE].uj);
    tam_text_put(out, "}");
}

/* What windows and the summary have in common. */
static void add_body(const tam_energy_record *record, tam_text *out) {
    const tamis_energy_totals *totals = &record->totals;
    tam_json_number(out, "seconds", totals->seconds);
    tam_json_count(out, "steps", totals->steps);
    tam_json_uj(out, "uj", totals->known, totals->uj);
    tam_json_uj(out, "unattributed_uj", totals->known, totals->unattributed_uj);
    add_domains(record, out);
    add_phases(totals, out);
    tam_json_open(out, "fit", "{");
    tam_json_number(out, "residual_w", record->residual_w);
    tam_json_number(out, "cond", record->condition);
    tam_text_put(out, "}");
    add_comm(record, out);
    add_slack(record, out);
    tam_json_open(out, "carbon", "{");
    tam_json_number(out, "g", totals->grams);
    tam_json_number(out, "intensity_g_per_kwh", record->intensity_g_per_kwh);
    tam_text_put(out, "}");
    tam_json_text(out, "missing", totals->missing);
    tam_json_count(out, "dropped", record->dropped);
}

void tam_line_window(const tam_energy_log *log, const tam_energy_record *record, tam_text *out) {
    begin_line(out, "window");
    tam_json_count(out, "seq", log->windows);
    tam_json_text(out, "name", record->name ? record->name : "");
    tam_json_bool(out, "overlaps", record->overlaps);
    tam_json_number(out, "t0", seconds_of(log, record->begin_ns));
    tam_json_number(out, "t1", seconds_of(log, record->end_ns));
    tam_json_count(out, "step0", record->step0);
    tam_json_count(out, "step1", record->step1);
    add_body(record, out);
    end_line(out);
}

void tam_line_summary(const tam_energy_log *log, const tam_energy_record *all, tam_text *out) {
    const tamis_energy_totals *totals = &all->totals;
    begin_line(out, "summary");
    tam_json_number(out, "t", seconds_of(log, all->end_ns));
    add_body(all, out);
    tam_json_number(out, "edp_js",
                    totals->known ? (double)totals->uj / 1e6 * totals->seconds : (double)NAN);
    tam_json_count(out, "lost", log->lost);
    end_line(out);
}

/* -- events ------------------------------------------------------------------------------------ */

void tam_line_event(const tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                    const char *detail, tam_text *out) {
    begin_line(out, "event");
    tam_json_number(out, "t", seconds_of(log, at_ns));
    tam_json_text(out, "name", name);
    tam_json_text(out, "domain", domain ? domain : "");
    tam_json_count(out, "rank", log->rank);
    tam_json_text(out, "detail", detail ? detail : "");
    end_line(out);
}
