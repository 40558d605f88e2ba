/* SPDX-License-Identifier: MIT
 *
 * CSV: the columns of Zeus's log, first and exactly, then ours. Whole microseconds and microjoules,
 * written without floating point.
 */
#include "lib/energy/log/log_parts.h"

#include <math.h>

/* What a column group holds. A source of which nothing was found has a domain without ':'. */
static bool is_gpu(const tamis_energy_domain *domain) {
    return strcmp(domain->source, "nvml") == 0 && strchr(domain->id, ':') != NULL;
}

static bool is_cpu(const tamis_energy_domain *domain) {
    return domain->kind == TAMIS_ENERGY_PACKAGE && strchr(domain->id, ':') != NULL;
}

static bool is_dram(const tamis_energy_domain *domain) {
    return domain->kind == TAMIS_ENERGY_DRAM && strchr(domain->id, ':') != NULL;
}

static const struct column_group {
    const char *name;
    bool (*holds)(const tamis_energy_domain *domain);
} groups[] = {{"gpu", is_gpu}, {"cpu", is_cpu}, {"dram", is_dram}};

static size_t groups_of(const tam_energy_log *log) {
    return log->setup.zeus_only ? 1 : sizeof groups / sizeof groups[0];
}

/* Readers of Zeus's files split lines at every comma. */
static void put_name(tam_text *out, const char *name) {
    for (const char *c = name; *c; c++) {
        bool bad = *c == ',' || *c == '"' || (unsigned char)*c < 0x20 || *c == 0x7f;
        tam_text_add(out, bad ? "_" : c, 1);
    }
}

void tam_csv_header(const tam_energy_log *log, tam_text *out) {
    tam_text_clear(out);
    tam_text_put(out, "start_time,window_name,elapsed_time");
    for (size_t g = 0; g < groups_of(log); g++) {
        unsigned index = 0;
        for (uint32_t i = 0; i < log->ndomains; i++) {
            if (groups[g].holds(&log->domains[i]))
                tam_text_format(out, ",%s%u_energy", groups[g].name, index++);
        }
    }
    if (!log->setup.zeus_only)
        tam_text_put(out, ",method,ci_lo,ci_hi,status");
    tam_text_put(out, "\n");
}

/* A window begins and ends between two changes of a counter: each end may be wrong by what was used
 * in one tick. @return false: some tick is not known */
static bool find_interval(const tam_energy_record *record, int64_t *out_half_uj) {
    double half_uj = 0.0, seconds = record->totals.seconds;
    for (uint32_t i = 0; i < record->ndomains; i++) {
        const tamis_energy_domain *domain = &record->domains[i];
        if (!domain->counted || domain->uj == 0)
            continue;
        if (!(domain->tick_s > 0.0 && seconds > 0.0))
            return false;
        half_uj += (double)domain->uj / seconds * domain->tick_s;
    }
    *out_half_uj = half_uj < 9e18 ? (int64_t)ceil(half_uj) : INT64_MAX / 2;
    return true;
}

static void put_interval(const tam_energy_record *record, tam_text *out) {
    int64_t uj = record->totals.uj, half_uj;
    if (!record->totals.known || !find_interval(record, &half_uj)) {
        tam_text_put(out, ",,");
        return;
    }
    tam_text_put(out, ",");
    tam_text_micro(out, uj > half_uj ? uj - half_uj : 0);
    tam_text_put(out, ",");
    tam_text_micro(out, uj + half_uj);
}

static void put_status(const tam_energy_record *record, tam_text *out) {
    const char *between = ",";
    for (uint32_t i = 0; i < record->ndomains; i++) {
        const tamis_energy_domain *domain = &record->domains[i];
        if (domain->status == TAMIS_ENERGY_OK)
            continue;
        tam_text_put(out, between);
        put_name(out, domain->id);
        tam_text_format(out, "=%s", tamis_energy_status_name(domain->status));
        between = ";";
    }
    if (between[0] == ',')
        tam_text_put(out, ",ok");
}

void tam_csv_row(const tam_energy_log *log, const tam_energy_record *record, tam_text *out) {
    int64_t since_t0_ns = (int64_t)(record->begin_ns - log->setup.t0_ns);
    tam_text_clear(out);
    tam_text_micro(out, (int64_t)llround(log->setup.t0_unix * 1e6) + since_t0_ns / 1000);
    tam_text_put(out, ",");
    put_name(out, record->name ? record->name : "");
    tam_text_put(out, ",");
    tam_text_micro(out, (int64_t)(record->end_ns - record->begin_ns) / 1000);
    for (size_t g = 0; g < groups_of(log); g++) {
        for (uint32_t i = 0; i < record->ndomains; i++) {
            const tamis_energy_domain *domain = &record->domains[i];
            if (!groups[g].holds(domain))
                continue;
            tam_text_put(out, ",");
            if (tam_log_knows(domain))
                tam_text_micro(out, (int64_t)domain->uj);
        }
    }
    if (!log->setup.zeus_only) {
        tam_text_format(out, ",%s",
                        tamis_energy_method_name(record->totals.known ? TAMIS_ENERGY_COUNTER
                                                                      : TAMIS_ENERGY_NONE));
        put_interval(record, out);
        put_status(record, out);
    }
    tam_text_put(out, "\n");
}
