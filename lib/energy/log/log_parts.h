/* SPDX-License-Identifier: MIT
 *
 * Inside of a log: log.c holds it and writes, log_json.c, log_csv.c and log_prometheus.c only make
 * texts.
 */
#ifndef TAM_ENERGY_LOG_PARTS_H
#define TAM_ENERGY_LOG_PARTS_H

#include "lib/energy/log/log.h"
#include "lib/energy/log/log_file.h"
#include "lib/energy/log/log_text.h"

/** Sums over the windows, for the counters of Prometheus: nothing in here ever falls. */
typedef struct tam_energy_sums {
    bool known; /* some window had joules */
    int64_t phases_uj[TAMIS_ENERGY_PHASES];
    int64_t unattributed_uj;
    int64_t *domains_uj; /* [ndomains]; -1: never known */
    double grams;        /* NAN: never known */
    uint64_t steps, wire_bytes, elements_offered, elements_sent, dropped;
} tam_energy_sums;

struct tam_energy_log {
    tam_energy_log_setup setup;   /* texts are copies, never NULL */
    double clock_err_s;           /* of t0_unix; NAN: unknown */
    tamis_energy_domain *domains; /* [ndomains], as last seen */
    uint32_t ndomains;
    tam_line_file json, csv;
    uint64_t json_lines; /* since the last header */
    bool headless;       /* a file was begun whose header could not be written */
    uint64_t windows;
    uint64_t pages_lost;
    tam_energy_sums sums;
    tam_text header, text;
};

/** Whether joules of the stretch are known: a domain that cannot be read and gained nothing may
 * have used any amount. */
static inline bool tam_log_knows(const tamis_energy_domain *domain) {
    return domain->status == TAMIS_ENERGY_OK || domain->uj > 0;
}

/** Seconds after t0. */
static inline double tam_log_seconds(const tam_energy_log *log, uint64_t at_ns) {
    return (double)(int64_t)(at_ns - log->setup.t0_ns) / 1e9;
}

/* -- log_json.c: lines, '\n' included ---------------------------------------------------------- */

void tam_json_header(const tam_energy_log *log, tam_text *out);
void tam_json_window(const tam_energy_log *log, const tam_energy_record *record, tam_text *out);
void tam_json_event(const tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                    const char *detail, tam_text *out);
void tam_json_note(const char *line, tam_text *out);
void tam_json_summary(const tam_energy_log *log, const tam_energy_record *all, tam_text *out);

/* -- log_csv.c --------------------------------------------------------------------------------- */

void tam_csv_header(const tam_energy_log *log, tam_text *out);
void tam_csv_row(const tam_energy_log *log, const tam_energy_record *record, tam_text *out);

/* -- log_prometheus.c -------------------------------------------------------------------------- */

void tam_prometheus_take(tam_energy_sums *sums, const tam_energy_record *record);

/** The whole textfile. @param last  the last window; NULL: none yet */
void tam_prometheus_page(const tam_energy_log *log, const tam_energy_record *last, tam_text *out);

#endif
