/* SPDX-License-Identifier: MIT
 *
 * Windows of a meter, made up.
 */
#include "tests/support/records.h"
#include "tests/support/scratch.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <tamis/governor.h>

#include <cmocka.h>

static void name_domain(test_record *out, int i, const char *id, tamis_energy_kind kind,
                        int64_t uj) {
    tamis_energy_domain *domain = &out->domains[i];
    *domain = (tamis_energy_domain)TAMIS_ENERGY_DOMAIN_INIT;
    snprintf(domain->id, sizeof domain->id, "%s", id);
    snprintf(domain->source, sizeof domain->source, "%.4s", id);
    domain->kind = kind;
    domain->counted = 1;
    domain->tick_s = 0.1;
    domain->lag_s = 0.03;
    domain->duty = 1.0;
    out->gained[i] = (tam_period_domain){uj, uj, uj / 100, uj / 10, 0, 0};
}

static void name_domains(test_record *out) {
    name_domain(out, 0, "nvml:GPU-5a1c", TAMIS_ENERGY_GPU, 1650000001);
    name_domain(out, 1, "rapl:package-0", TAMIS_ENERGY_PACKAGE, 500000000);
    name_domain(out, 2, "nvml:GPU-77e0", TAMIS_ENERGY_GPU, 1500000000);
    name_domain(out, 3, "rapl:dram-0", TAMIS_ENERGY_DRAM, 0);
    name_domain(out, 4, "rapl:package-1", TAMIS_ENERGY_PACKAGE, 450000000);
    out->gained[1].wraps = 1;
    out->gained[4].resets = 2;
    out->domains[3].counted = 0;
    out->domains[3].tick_s = out->domains[3].duty = 0.0;
    out->domains[3].status = TAMIS_ENERGY_DENIED;
    snprintf(out->domains[3].reason, sizeof out->domains[3].reason,
             "energy_uj may be read by root only: run as root or grant CAP_PERFMON");
}

static void fill_totals(tamis_energy_totals *totals) {
    *totals = (tamis_energy_totals)TAMIS_ENERGY_TOTALS_INIT;
    totals->seconds = 5.0;
    totals->steps = 58;
    totals->wire_bytes = 1183200;
    totals->known = 1;
    totals->uj = 4100000001;
    totals->shares[TAMIS_ENERGY_BACKWARD] =
        (tamis_energy_share){3.2,
                             3000000000,
                             2990000000,
                             3010000000,
                             1u << TAMIS_ENERGY_BACKWARD | 1u << TAMIS_ENERGY_FORWARD,
                             TAMIS_ENERGY_REGRESSED};
    totals->shares[TAMIS_ENERGY_FORWARD] =
        (tamis_energy_share){1.6,
                             800000000,
                             790000000,
                             810000000,
                             1u << TAMIS_ENERGY_BACKWARD | 1u << TAMIS_ENERGY_FORWARD,
                             TAMIS_ENERGY_REGRESSED};
    totals->shares[TAMIS_PHASE_SKEW] = (tamis_energy_share){
        0.7, 200000000, 190000000, 210000000, 1u << TAMIS_PHASE_SKEW, TAMIS_ENERGY_REGRESSED};
    totals->shares[TAMIS_PHASE_SELECT] =
        (tamis_energy_share){0.1, 50000000, 50000000, 50000000, 0, TAMIS_ENERGY_TIME_SHARE};
    totals->shares[TAMIS_PHASE_APPLY].seconds = 0.001;
    totals->unattributed_uj = 50000001;
    totals->grams = 0.45;
    snprintf(totals->missing, sizeof totals->missing, "rapl:dram-0: denied");
}

void record_known(test_record *out, uint64_t seq) {
    memset(out, 0, sizeof *out);
    name_domains(out);
    out->name = "window";
    out->period = (tam_period){
        .begin_ns = RECORD_T0_NS + seq * 5000000000u,
        .end_ns = RECORD_T0_NS + (seq + 1) * 5000000000u,
        .first_step = 58 * seq,
        .offered = 11804740,
        .sent = 118500,
        .domains = out->gained,
        .residual_w = 9.8,
        .condition = 14.2,
        .density_asked = 0.01,
        .residual_norm = 3.2,
        .intensity_g_per_kwh = 380.0,
        .dropped = seq,
    };
    fill_totals(&out->period.totals);
}

void record_unknown(test_record *out, uint64_t seq) {
    record_known(out, seq);
    tam_period *period = &out->period;
    tamis_energy_totals *totals = &period->totals;
    for (int i = 0; i < RECORD_DOMAINS; i++) {
        out->gained[i] = (tam_period_domain){0};
        out->domains[i].status = TAMIS_ENERGY_ABSENT;
        out->domains[i].tick_s = out->domains[i].duty = 0.0;
    }
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++)
        totals->shares[phase] = (tamis_energy_share){.seconds = totals->shares[phase].seconds};
    totals->known = 0;
    totals->uj = totals->unattributed_uj = 0;
    totals->grams = period->intensity_g_per_kwh = NAN;
    period->residual_w = period->condition = NAN;
    period->offered = period->sent = 0;
    period->density_asked = period->residual_norm = NAN;
}

tam_energy_log_setup record_setup(void) {
    tam_energy_log_setup setup = {
        .config = TAMIS_ENERGY_CONFIG_INIT,
        .host = "node-a",
        .boot_id = "7d5c",
        .t0_ns = RECORD_T0_NS,
        .t0_unix = RECORD_T0_UNIX,
        .clock_err_s = 1e-6,
    };
    setup.config.run = "run-1";
    setup.config.rank = 2;
    setup.config.nranks = 4;
    setup.config.pue = 1.2;
    return setup;
}

/* -- logs ------------------------------------------------------------------------------------- */

tamis_status record_try_log(const tam_energy_log_setup *setup, tam_energy_log **out) {
    test_record first;
    record_known(&first, 0);
    return tam_energy_log_open(setup, first.domains, RECORD_DOMAINS, out);
}

tam_energy_log *record_log(const tam_energy_log_setup *setup) {
    tam_energy_log *log = NULL;
    assert_int_equal(record_try_log(setup, &log), TAMIS_OK);
    return log;
}

void record_write(tam_energy_log *log, const test_record *window) {
    tam_energy_log_window(log, window->name, window->overlaps, &window->period, window->domains);
    tam_energy_log_write(log);
}

void record_add(tam_energy_log *log, uint64_t seq) {
    test_record window;
    record_known(&window, seq);
    record_write(log, &window);
}

size_t record_count_in(const char *path, const char *words) {
    size_t bytes = 0, count = 0;
    char *text = (char *)scratch_read(path, &bytes);
    if (!text)
        return 0;
    text[bytes] = '\0';
    for (const char *at = strstr(text, words); at; at = strstr(at + 1, words))
        count++;
    free(text);
    return count;
}

/* Number of lines of a JSON file; all must be complete and the first a header. */
size_t record_lines(const char *path) {
    size_t bytes = 0, lines = 0;
    char *text = (char *)scratch_read(path, &bytes);
    assert_non_null(text);
    text[bytes] = '\0';
    assert_memory_equal(text, "{\"type\":\"header\",", 17);
    for (char *line = text, *end; *line; line = end + 1, lines++) {
        end = strchr(line, '\n');
        assert_non_null(end);
        assert_true(end - line > 2 && memcmp(line, "{\"type\":\"", 9) == 0 && end[-1] == '}');
        *end = '\0';
        assert_null(strstr(line + 1, "{\"type\""));
    }
    free(text);
    return lines;
}

/* -- for check_log.py and check_convert.py ---------------------------------------------------- */

static char *path_in(const char *folder, const char *name, char out[SCRATCH_PATH]) {
    snprintf(out, SCRATCH_PATH, "%s/%s", folder, name);
    return out;
}

static void write_summary(tam_energy_log *log, const test_record *all) {
    tam_energy_log_summary(log, &all->period, all->domains);
    tam_energy_log_write(log);
}

static void write_known(tam_energy_log *log) {
    test_record window;
    for (uint64_t seq = 0; seq < 4; seq++) {
        record_known(&window, seq);
        window.name = seq == 2 ? "a,\"name\"\n" : "window";
        window.overlaps = seq == 3;
        window.period.totals.unattributed_uj -= seq == 1 ? 70000000 : 0; /* less than nothing */
        window.period.totals.shares[TAMIS_PHASE_SKEW].uj += seq == 1 ? 70000000 : 0;
        record_write(log, &window);
    }
    write_summary(log, &window);
}

static void write_unknown(tam_energy_log *log) {
    test_record window;
    record_unknown(&window, 0);
    record_write(log, &window);
    write_summary(log, &window);
}

/* @param some  what stands for every number that may be unknown */
static void write_decision(FILE *file, double some) {
    char line[TAMIS_GOVERNOR_LINE_BYTES];
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT;
    w.density = w.pace_s = w.cap_w = w.residual_norm = some;
    w.intensity_g_per_kwh = w.outlook_g_per_kwh = w.outlook_low_g_per_kwh = some;
    d.watts = d.expected_w = d.slowdown = d.low_w = d.high_w = some;
    if (tamis_governor_line(&w, &d, line, sizeof line) == TAMIS_OK)
        fprintf(file, "%s\n", line);
}

static bool write_decisions(const char *folder) {
    char path[SCRATCH_PATH];
    FILE *file = fopen(path_in(folder, "decisions.jsonl", path), "w");
    if (!file)
        return false;
    write_decision(file, 300.0);
    write_decision(file, TAMIS_UNKNOWN);
    return fclose(file) == 0;
}

int record_samples(const char *folder) {
    for (int known = 0; known < 2; known++) {
        char path[SCRATCH_PATH];
        tam_energy_log_setup setup = record_setup();
        tam_energy_log *log = NULL;
        test_record first;
        record_known(&first, 0);
        setup.config.json = path_in(folder, known ? "known.jsonl" : "unknown.jsonl", path);
        setup.host = "node \"a\"\n";
        if (tam_energy_log_open(&setup, first.domains, RECORD_DOMAINS, &log) != TAMIS_OK) {
            fprintf(stderr, "%s\n", tamis_last_error());
            return 1;
        }
        if (known)
            write_known(log);
        else
            write_unknown(log);
        tam_energy_log_close(log);
    }
    return write_decisions(folder) ? 0 : 1;
}
