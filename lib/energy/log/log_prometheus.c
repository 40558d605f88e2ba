/* SPDX-License-Identifier: MIT
 *
 * The textfile that node_exporter collects (text format 0.0.4). What is unknown has no series.
 */
#include "lib/energy/log/log_parts.h"

#include <math.h>
#include <stdio.h>

/* -- sums -------------------------------------------------------------------------------------- */

enum { REST = TAMIS_ENERGY_PHASES, PARTS };

/* What phases and the rest gained: none is negative, and they add up to what was measured. The rest
 * may be less than nothing where phases were fitted above the counter; the largest then gives. */
static void settle(const tamis_energy_totals *totals, int64_t gains_uj[PARTS]) {
    int64_t owed_uj = 0;
    gains_uj[REST] = totals->uj;
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        gains_uj[phase] = totals->shares[phase].uj;
        gains_uj[REST] -= gains_uj[phase];
    }
    for (uint32_t part = 0; part < PARTS; part++) {
        if (gains_uj[part] < 0) {
            owed_uj -= gains_uj[part];
            gains_uj[part] = 0;
        }
    }
    while (owed_uj > 0) {
        uint32_t most = 0;
        for (uint32_t part = 1; part < PARTS; part++)
            most = gains_uj[part] > gains_uj[most] ? part : most;
        int64_t given_uj = gains_uj[most] < owed_uj ? gains_uj[most] : owed_uj;
        if (given_uj == 0) /* less than nothing was measured */
            return;
        gains_uj[most] -= given_uj;
        owed_uj -= given_uj;
    }
}

void tam_prometheus_take(tam_energy_sums *sums, const tam_energy_record *record) {
    const tamis_energy_totals *totals = &record->totals;
    int64_t gains_uj[PARTS];
    if (totals->known && totals->uj >= 0) {
        settle(totals, gains_uj);
        for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++)
            sums->phases_uj[phase] += gains_uj[phase];
        sums->unattributed_uj += gains_uj[REST];
        sums->known = true;
    }
    for (uint32_t i = 0; i < record->ndomains; i++) {
        if (!tam_log_knows(&record->domains[i]))
            continue;
        if (sums->domains_uj[i] < 0)
            sums->domains_uj[i] = 0;
        sums->domains_uj[i] += (int64_t)record->domains[i].uj;
    }
    if (totals->grams >= 0.0)
        sums->grams = isnan(sums->grams) ? totals->grams : sums->grams + totals->grams;
    sums->steps += totals->steps;
    sums->wire_bytes += totals->wire_bytes;
    sums->elements_offered += record->elements_offered;
    sums->elements_sent += record->elements_sent;
    if (record->dropped > sums->dropped)
        sums->dropped = record->dropped;
}

/* -- text -------------------------------------------------------------------------------------- */

static void put_label(tam_text *out, const char *name, const char *value) {
    char last = out->length ? out->bytes[out->length - 1] : '{';
    tam_text_format(out, "%s%s=\"", last == '{' ? "" : ",", name);
    for (const char *c = value; *c;) {
        size_t length = tam_text_utf8(c);
        if (length == 0)
            tam_text_put(out, "\xef\xbf\xbd");
        else if (*c == '\n')
            tam_text_put(out, "\\n");
        else if (*c == '"' || *c == '\\')
            tam_text_format(out, "\\%c", *c);
        else
            tam_text_add(out, c, length);
        c += length ? length : 1;
    }
    tam_text_put(out, "\"");
}

static void put_metric(tam_text *out, const char *name, const char *type, const char *help) {
    tam_text_format(out, "# HELP %s %s\n", name, help);
    tam_text_format(out, "# TYPE %s %s\n", name, type);
}

/* The labels may go on. */
static void put_series(const tam_energy_log *log, tam_text *out, const char *name) {
    char rank[16];
    tam_text_format(out, "%s{", name);
    put_label(out, "node", log->setup.host);
    snprintf(rank, sizeof rank, "%u", (unsigned)log->setup.rank);
    put_label(out, "rank", rank);
}

static void put_micro(tam_text *out, int64_t millionths) {
    tam_text_put(out, "} ");
    tam_text_micro(out, millionths);
    tam_text_put(out, "\n");
}

static void put_count(const tam_energy_log *log, tam_text *out, const char *name, const char *help,
                      uint64_t value) {
    put_metric(out, name, "counter", help);
    put_series(log, out, name);
    tam_text_format(out, "} %llu\n", (unsigned long long)value);
}

static void put_number(const tam_energy_log *log, tam_text *out, const char *name, const char *type,
                       const char *help, double value) {
    if (!isfinite(value))
        return;
    put_metric(out, name, type, help);
    put_series(log, out, name);
    tam_text_put(out, "} ");
    tam_text_number(out, value);
    tam_text_put(out, "\n");
}

static void put_phase(const tam_energy_log *log, tam_text *out, const char *phase, int64_t uj) {
    put_series(log, out, "tamis_energy_joules_total");
    put_label(out, "domain", "total");
    put_label(out, "phase", phase);
    put_micro(out, uj);
}

static void put_phases(const tam_energy_log *log, tam_text *out) {
    const tam_energy_sums *sums = &log->sums;
    if (!sums->known)
        return;
    put_metric(out, "tamis_energy_joules_total", "counter",
               "Joules of the counted domains by phase; the phases, unattributed included, add up "
               "to what was measured.");
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++) {
        if (sums->phases_uj[phase] > 0)
            put_phase(log, out, tamis_energy_phase_name(phase), sums->phases_uj[phase]);
    }
    put_phase(log, out, "unattributed", sums->unattributed_uj);
}

static void put_domain(const tam_energy_log *log, tam_text *out, const char *name,
                       const tamis_energy_domain *domain) {
    put_series(log, out, name);
    put_label(out, "domain", domain->id);
    put_label(out, "source", domain->source);
    put_label(out, "kind", tamis_energy_kind_name(domain->kind));
}

static void put_domains(const tam_energy_log *log, tam_text *out) {
    bool any = false;
    for (uint32_t i = 0; i < log->ndomains; i++) {
        if (log->sums.domains_uj[i] < 0)
            continue;
        if (!any)
            put_metric(out, "tamis_energy_domain_joules_total", "counter",
                       "Joules of a domain; domains may contain each other.");
        any = true;
        put_domain(log, out, "tamis_energy_domain_joules_total", &log->domains[i]);
        put_micro(out, log->sums.domains_uj[i]);
    }
}

static void put_power(const tam_energy_log *log, tam_text *out, const tam_energy_record *last) {
    bool any = false;
    for (uint32_t i = 0; i < log->ndomains && last->totals.seconds > 0.0; i++) {
        if (!tam_log_knows(&last->domains[i]))
            continue;
        if (!any)
            put_metric(out, "tamis_power_watts", "gauge", "Mean power over the last window.");
        any = true;
        put_domain(log, out, "tamis_power_watts", &last->domains[i]);
        tam_text_put(out, "} ");
        tam_text_number(out, (double)last->domains[i].uj / 1e6 / last->totals.seconds);
        tam_text_put(out, "\n");
    }
}

static void put_health(const tam_energy_log *log, tam_text *out) {
    if (log->ndomains)
        put_metric(out, "tamis_energy_domain_ok", "gauge",
                   "1 while the domain can be read, else 0 and the status says why.");
    for (uint32_t i = 0; i < log->ndomains; i++) {
        const tamis_energy_domain *domain = &log->domains[i];
        put_series(log, out, "tamis_energy_domain_ok");
        put_label(out, "domain", domain->id);
        put_label(out, "status", tamis_energy_status_name(domain->status));
        tam_text_put(out, domain->status == TAMIS_ENERGY_OK ? "} 1\n" : "} 0\n");
    }
}

static void put_counts(const tam_energy_log *log, tam_text *out) {
    const tam_energy_sums *sums = &log->sums;
    put_count(log, out, "tamis_steps_total", "Steps of the reducer.", sums->steps);
    put_count(log, out, "tamis_wire_bytes_total", "Bytes that this rank put on the wire.",
              sums->wire_bytes);
    put_count(log, out, "tamis_elements_offered_total", "Gradient elements that could be sent.",
              sums->elements_offered);
    put_count(log, out, "tamis_elements_sent_total", "Gradient elements that were sent.",
              sums->elements_sent);
    put_count(log, out, "tamis_energy_dropped_marks_total", "Marks of phases that did not fit.",
              sums->dropped);
    put_count(log, out, "tamis_energy_lost_lines_total", "Log lines that could not be written.",
              tam_energy_log_lost(log));
}

void tam_prometheus_page(const tam_energy_log *log, const tam_energy_record *last, tam_text *out) {
    tam_text_clear(out);
    put_phases(log, out);
    put_domains(log, out);
    put_counts(log, out);
    put_number(log, out, "tamis_carbon_grams_total", "counter",
               "Grams of CO2 of the windows in which the grid's intensity was known.",
               log->sums.grams);
    if (last) {
        put_power(log, out, last);
        put_number(log, out, "tamis_slack_p95_seconds", "gauge",
                   "95th percentile of the time that this rank waited for the last one.",
                   last->slack_p95_s);
    }
    put_health(log, out);
}
