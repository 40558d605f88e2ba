/* SPDX-License-Identifier: MIT
 *
 * JSON Lines, schema tamis.energy/1. docs/energy.md describes every field, and a test compares what
 * is written with its table.
 */
#include "lib/energy/log/log_lines.h"

#include <math.h>
#include <stdio.h>

/* @return where its fields go */
static tam_text *begin_line(tam_energy_log *log, const char *type) {
    tam_text_clear(&log->text);
    tam_text_put(&log->text, "{");
    tam_json_text(&log->text, "type", type);
    return &log->text;
}

static void end_line(tam_text *out) {
    tam_text_put(out, "}\n");
}

/* -- header ----------------------------------------------------------------------------------- */

static void describe_domain(const tamis_energy_domain *domain, tam_text *out) {
    tam_json_put(out, NULL, "{");
    tam_json_text(out, "id", domain->id);
    tam_json_text(out, "kind", tamis_energy_kind_name(domain->kind));
    tam_json_text(out, "source", domain->source);
    tam_json_text(out, "status", tamis_energy_status_name(domain->status));
    tam_json_text(out, "reason", domain->reason);
    tam_json_bool(out, "counted", domain->counted);
    tam_text_put(out, "}");
}

static void add_phase_names(tam_text *out) {
    tam_json_put(out, "phases", "[");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        if (tamis_energy_phase_name(phase)[0])
            tam_json_text(out, NULL, tamis_energy_phase_name(phase));
    }
    tam_text_put(out, "]");
}

void tam_line_header(tam_energy_log *log, const tam_energy_log_setup *setup,
                     const tamis_energy_domain *domains) {
    const tamis_energy_config *config = &setup->config;
    tam_text *out = begin_line(log, "header");
    char version[32];
    int v = tamis_version();
    snprintf(version, sizeof version, "%d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    tam_json_text(out, "schema", "tamis.energy/1");
    tam_json_text(out, "run", config->run ? config->run : "");
    tam_json_text(out, "host", setup->host);
    tam_json_text(out, "boot_id", setup->boot_id);
    tam_json_count(out, "rank", config->rank);
    tam_json_count(out, "nranks", config->nranks);
    tam_json_text(out, "version", version);
    tam_json_number(out, "t0_unix", setup->t0_unix);
    tam_json_number(out, "clock_err_s", setup->clock_err_s);
    tam_json_number(out, "pue", config->pue);
    add_phase_names(out);
    tam_json_put(out, "domains", "[");
    for (uint32_t i = 0; i < log->ndomains; i++)
        describe_domain(&domains[i], out);
    tam_text_put(out, "]");
    end_line(out);
}

/* -- window and summary ----------------------------------------------------------------------- */

static double seconds_of(const tam_energy_log *log, uint64_t at_ns) {
    return (double)(int64_t)(at_ns - log->t0_ns) / 1e9;
}

/* 0: not yet learnt. */
static double learnt(double value) {
    return value > 0.0 ? value : NAN;
}

/* A domain that cannot be read and gained nothing may have used any amount. */
static void add_domain(const tamis_energy_domain *domain, const tam_period_domain *gained,
                       tam_text *out) {
    bool known = domain->status == TAMIS_ENERGY_OK || gained->uj > 0;
    tam_json_put(out, NULL, "{");
    tam_json_text(out, "id", domain->id);
    tam_json_uj(out, "uj", known, gained->uj);
    tam_json_uj(out, "counted_uj", known, gained->counted_uj);
    tam_json_uj(out, "unattributed_uj", known, gained->unattributed_uj);
    tam_json_uj(out, "idle_uj", known, gained->idle_uj);
    tam_json_text(out, "status", tamis_energy_status_name(domain->status));
    tam_json_bool(out, "counted", domain->counted);
    tam_json_count(out, "wraps", gained->wraps);
    tam_json_count(out, "resets", gained->resets);
    tam_json_number(out, "tick_s", learnt(domain->tick_s));
    tam_json_number(out, "lag_s", domain->duty > 0.0 ? domain->lag_s : NAN);
    tam_json_number(out, "duty", learnt(domain->duty));
    tam_text_put(out, "}");
}

/* Phases that cannot be told apart; alone in its group a phase can. */
static void add_group(uint32_t phase, uint32_t group, tam_text *out) {
    tam_json_put(out, "group", "[");
    for (uint32_t other = 0; other < TAMIS_ENERGY_PHASES; other++) {
        if ((group & ~(1u << phase)) != 0 && (group >> other & 1u))
            tam_json_text(out, NULL, tamis_energy_phase_name(other));
    }
    tam_text_put(out, "]");
}

static void add_phases(const tamis_energy_totals *totals, tam_text *out) {
    tam_json_put(out, "phases", "[");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        const tamis_energy_share *share = &totals->shares[phase];
        bool known = totals->known && share->method != TAMIS_ENERGY_NONE;
        bool bounded = known && share->method != TAMIS_ENERGY_TIME_SHARE;
        if (!(share->seconds > 0.0) && share->uj == 0)
            continue;
        tam_json_put(out, NULL, "{");
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

static void add_comm(const tam_period *period, tam_text *out) {
    double offered = (double)period->offered, sent = (double)period->sent;
    tam_json_put(out, "comm", "{");
    tam_json_count(out, "bytes_wire", period->totals.wire_bytes);
    tam_json_count(out, "elems_offered", period->offered);
    tam_json_count(out, "elems_sent", period->sent);
    tam_json_number(out, "density_asked", period->density_asked);
    tam_json_number(out, "density", offered > 0.0 ? sent / offered : NAN);
    tam_json_number(out, "residual_norm", period->residual_norm);
    tam_text_put(out, "}");
}

/* What windows and the summary have in common. */
static void add_body(tam_energy_log *log, const tam_period *period,
                     const tamis_energy_domain *domains) {
    const tamis_energy_totals *totals = &period->totals;
    tam_text *out = &log->text;
    tam_json_number(out, "seconds", totals->seconds);
    tam_json_count(out, "steps", totals->steps);
    tam_json_uj(out, "uj", totals->known, totals->uj);
    tam_json_uj(out, "unattributed_uj", totals->known, totals->unattributed_uj);
    tam_json_put(out, "domains", "[");
    for (uint32_t i = 0; i < log->ndomains; i++)
        add_domain(&domains[i], &period->domains[i], out);
    tam_text_put(out, "]");
    add_phases(totals, out);
    tam_json_put(out, "fit", "{");
    tam_json_number(out, "residual_w", period->residual_w);
    tam_json_number(out, "cond", period->condition);
    tam_text_put(out, "}");
    add_comm(period, out);
    tam_json_put(out, "carbon", "{");
    tam_json_number(out, "g", totals->grams);
    tam_json_number(out, "intensity_g_per_kwh", period->intensity_g_per_kwh);
    tam_text_put(out, "}");
    tam_json_text(out, "missing", totals->missing);
    tam_json_count(out, "dropped", period->dropped);
}

void tam_energy_log_window(tam_energy_log *log, const char *name, bool overlaps,
                           const tam_period *period, const tamis_energy_domain *domains) {
    tam_text *out = begin_line(log, "window");
    tam_json_count(out, "seq", log->windows++);
    tam_json_text(out, "name", name);
    tam_json_bool(out, "overlaps", overlaps);
    tam_json_number(out, "t0", seconds_of(log, period->begin_ns));
    tam_json_number(out, "t1", seconds_of(log, period->end_ns));
    tam_json_count(out, "step0", period->first_step);
    tam_json_count(out, "step1", period->first_step + period->totals.steps);
    add_body(log, period, domains);
    end_line(out);
}

void tam_energy_log_summary(tam_energy_log *log, const tam_period *all,
                            const tamis_energy_domain *domains) {
    double joules = all->totals.known ? (double)all->totals.uj / 1e6 : NAN;
    tam_text *out = begin_line(log, "summary");
    tam_json_number(out, "t", seconds_of(log, all->end_ns));
    add_body(log, all, domains);
    tam_json_number(out, "edp_js", joules * all->totals.seconds);
    tam_json_count(out, "lost", log->lost);
    end_line(out);
}
