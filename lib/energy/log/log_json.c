/* SPDX-License-Identifier: MIT
 *
 * JSON Lines, schema tamis.energy/1. docs/energy.md describes every field, and a test compares what
 * is written with its table.
 */
#include "lib/energy/log/log_parts.h"

#include <math.h>

/* -- the writer -------------------------------------------------------------------------------- */

/* Begin a value: a comma where one is needed, and the key, if it has one. */
static void next(tam_text *out, const char *key) {
    char last = out->length ? out->bytes[out->length - 1] : '{';
    if (last != '{' && last != '[')
        tam_text_put(out, ",");
    if (key)
        tam_text_format(out, "\"%s\":", key);
}

static void open_value(tam_text *out, const char *key, const char *bracket) {
    next(out, key);
    tam_text_put(out, bracket);
}

static void close_value(tam_text *out, const char *bracket) {
    tam_text_put(out, bracket);
}

static void add_text(tam_text *out, const char *key, const char *value) {
    next(out, key);
    tam_text_put(out, "\"");
    for (const char *c = value; *c;) {
        size_t length = tam_text_utf8(c);
        if (length == 0)
            tam_text_put(out, "\xef\xbf\xbd"); /* U+FFFD, as readers would show it */
        else if (*c == '"' || *c == '\\')
            tam_text_format(out, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            tam_text_format(out, "\\u%04x", (unsigned)*c);
        else
            tam_text_add(out, c, length);
        c += length ? length : 1;
    }
    tam_text_put(out, "\"");
}

static void add_null(tam_text *out, const char *key) {
    next(out, key);
    tam_text_put(out, "null");
}

static void add_number(tam_text *out, const char *key, double value) {
    if (!isfinite(value)) {
        add_null(out, key);
        return;
    }
    next(out, key);
    tam_text_number(out, value);
}

static void add_count(tam_text *out, const char *key, uint64_t value) {
    next(out, key);
    tam_text_format(out, "%llu", (unsigned long long)value);
}

static void add_uj(tam_text *out, const char *key, bool known, int64_t uj) {
    if (!known) {
        add_null(out, key);
        return;
    }
    next(out, key);
    tam_text_format(out, "%lld", (long long)uj);
}

static void add_bool(tam_text *out, const char *key, bool value) {
    next(out, key);
    tam_text_put(out, value ? "true" : "false");
}

static void begin_line(tam_text *out, const char *type) {
    tam_text_clear(out);
    tam_text_put(out, "{");
    add_text(out, "type", type);
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
    open_value(out, NULL, "{");
    add_text(out, "id", domain->id);
    add_text(out, "kind", tamis_energy_kind_name(domain->kind));
    add_text(out, "source", domain->source);
    add_text(out, "status", tamis_energy_status_name(domain->status));
    add_text(out, "reason", domain->reason);
    add_bool(out, "counted", domain->counted);
    add_number(out, "tick_s", learnt(domain->tick_s));
    add_number(out, "lag_s", domain->duty > 0.0 ? domain->lag_s : NAN);
    add_number(out, "duty", learnt(domain->duty));
    close_value(out, "}");
}

void tam_json_header(const tam_energy_log *log, tam_text *out) {
    const tam_energy_log_setup *setup = &log->setup;
    begin_line(out, "header");
    add_text(out, "schema", "tamis.energy/1");
    add_text(out, "run", setup->run);
    add_text(out, "host", setup->host);
    add_text(out, "boot_id", setup->boot_id);
    add_count(out, "rank", setup->rank);
    add_count(out, "nranks", setup->nranks);
    next(out, "version");
    tam_text_format(out, "\"%d.%d.%d\"", tamis_version() / 10000, tamis_version() / 100 % 100,
                    tamis_version() % 100);
    add_number(out, "t0_unix", setup->t0_unix);
    add_number(out, "clock_err_s", log->clock_err_s);
    add_number(out, "pue", setup->pue);
    open_value(out, "domains", "[");
    for (uint32_t i = 0; i < log->ndomains; i++)
        describe_domain(&log->domains[i], out);
    close_value(out, "]");
    open_value(out, "phases", "[");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        if (tamis_energy_phase_name(phase)[0])
            add_text(out, NULL, tamis_energy_phase_name(phase));
    }
    close_value(out, "]");
    end_line(out);
}

/* -- window and summary ------------------------------------------------------------------------ */

static void add_domains(const tam_energy_record *record, tam_text *out) {
    open_value(out, "domains", "[");
    for (uint32_t i = 0; i < record->ndomains; i++) {
        const tamis_energy_domain *domain = &record->domains[i];
        const int64_t *rest = record->unattributed_uj, *idle = record->idle_uj;
        bool known = tam_log_knows(domain);
        open_value(out, NULL, "{");
        add_text(out, "id", domain->id);
        add_uj(out, "uj", known, (int64_t)domain->uj);
        add_uj(out, "unattributed_uj", known && rest, rest ? rest[i] : 0);
        add_uj(out, "idle_uj", known && idle, idle ? idle[i] : 0);
        add_text(out, "status", tamis_energy_status_name(domain->status));
        add_bool(out, "counted", domain->counted);
        add_count(out, "wraps", domain->wraps);
        add_count(out, "resets", domain->resets);
        close_value(out, "}");
    }
    close_value(out, "]");
}

/* Phases that cannot be told apart; alone in its group a phase can. */
static void add_group(uint32_t phase, uint32_t group, tam_text *out) {
    open_value(out, "group", "[");
    for (uint32_t other = 0; other < TAMIS_ENERGY_PHASES; other++) {
        if ((group & ~(1u << phase)) != 0 && (group >> other & 1u))
            add_text(out, NULL, tamis_energy_phase_name(other));
    }
    close_value(out, "]");
}

static bool attributed(const tamis_energy_totals *totals, uint32_t phase) {
    return totals->known && totals->shares[phase].method != TAMIS_ENERGY_NONE;
}

static void add_phases(const tamis_energy_totals *totals, tam_text *out) {
    open_value(out, "phases", "[");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        const tamis_energy_share *share = &totals->shares[phase];
        bool known = attributed(totals, phase);
        bool bounded = known && share->method != TAMIS_ENERGY_TIME_SHARE;
        if (!(share->seconds > 0.0) && share->uj == 0)
            continue;
        open_value(out, NULL, "{");
        add_text(out, "name", tamis_energy_phase_name(phase));
        add_group(phase, share->group, out);
        add_number(out, "t_s", share->seconds);
        add_uj(out, "uj", known, share->uj);
        add_uj(out, "lo_uj", bounded, share->low_uj);
        add_uj(out, "hi_uj", bounded, share->high_uj);
        add_text(out, "method", tamis_energy_method_name(share->method));
        close_value(out, "}");
    }
    close_value(out, "]");
}

static void add_comm(const tam_energy_record *record, tam_text *out) {
    double offered = (double)record->elements_offered, sent = (double)record->elements_sent;
    open_value(out, "comm", "{");
    add_count(out, "bytes_wire", record->totals.wire_bytes);
    add_count(out, "elems_offered", record->elements_offered);
    add_count(out, "elems_sent", record->elements_sent);
    add_number(out, "density_asked", record->density_asked);
    add_number(out, "density", offered > 0.0 ? sent / offered : NAN);
    add_number(out, "residual_norm", record->residual_norm);
    close_value(out, "}");
}

static void add_slack(const tam_energy_record *record, tam_text *out) {
    open_value(out, "slack", "{");
    add_number(out, "p50_s", record->slack_p50_s);
    add_number(out, "p95_s", record->slack_p95_s);
    add_number(out, "max_s", record->slack_max_s);
    add_uj(out, "last_rank", record->straggler != UINT32_MAX, record->straggler);
    add_uj(out, "wait_uj", attributed(&record->totals, TAMIS_PHASE_ARRIVE),
           record->totals.shares[TAMIS_PHASE_ARRIVE].uj);
    close_value(out, "}");
}

/* What windows and the summary have in common. */
static void add_body(const tam_energy_record *record, tam_text *out) {
    const tamis_energy_totals *totals = &record->totals;
    add_number(out, "seconds", totals->seconds);
    add_count(out, "steps", totals->steps);
    add_uj(out, "uj", totals->known, totals->uj);
    add_uj(out, "unattributed_uj", totals->known, totals->unattributed_uj);
    add_domains(record, out);
    add_phases(totals, out);
    open_value(out, "fit", "{");
    add_number(out, "residual_w", record->residual_w);
    add_number(out, "cond", record->condition);
    close_value(out, "}");
    add_comm(record, out);
    add_slack(record, out);
    open_value(out, "carbon", "{");
    add_number(out, "g", totals->grams);
    add_number(out, "intensity_g_per_kwh", record->intensity_g_per_kwh);
    close_value(out, "}");
    add_text(out, "missing", totals->missing);
    add_count(out, "dropped", record->dropped);
}

void tam_json_window(const tam_energy_log *log, const tam_energy_record *record, tam_text *out) {
    begin_line(out, "window");
    add_count(out, "seq", log->windows);
    add_text(out, "name", record->name ? record->name : "");
    add_bool(out, "overlaps", record->overlaps);
    add_number(out, "t0", tam_log_seconds(log, record->begin_ns));
    add_number(out, "t1", tam_log_seconds(log, record->end_ns));
    add_count(out, "step0", record->step0);
    add_count(out, "step1", record->step1);
    add_body(record, out);
    end_line(out);
}

void tam_json_summary(const tam_energy_log *log, const tam_energy_record *all, tam_text *out) {
    const tamis_energy_totals *totals = &all->totals;
    begin_line(out, "summary");
    add_number(out, "t", tam_log_seconds(log, all->end_ns));
    add_body(all, out);
    add_number(out, "edp_js",
               totals->known ? (double)totals->uj / 1e6 * totals->seconds : (double)NAN);
    add_count(out, "lost", tam_energy_log_lost(log));
    end_line(out);
}

/* -- events and notes ------------------------------------------------------------------------- */

void tam_json_event(const tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                    const char *detail, tam_text *out) {
    begin_line(out, "event");
    add_number(out, "t", tam_log_seconds(log, at_ns));
    add_text(out, "name", name);
    add_text(out, "domain", domain ? domain : "");
    add_count(out, "rank", log->setup.rank);
    add_text(out, "detail", detail ? detail : "");
    end_line(out);
}

void tam_json_note(const char *line, tam_text *out) {
    tam_text_clear(out);
    tam_text_put(out, line);
    tam_text_put(out, "\n");
}
