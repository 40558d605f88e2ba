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

static void name_domain(tamis_energy_domain *domain, const char *id, tamis_energy_kind kind,
                        uint64_t uj) {
    *domain = (tamis_energy_domain)TAMIS_ENERGY_DOMAIN_INIT;
    snprintf(domain->id, sizeof domain->id, "%s", id);
    snprintf(domain->source, sizeof domain->source, "%.4s", id);
    domain->kind = kind;
    domain->counted = 1;
    domain->uj = uj;
    domain->tick_s = 0.1;
    domain->lag_s = 0.03;
    domain->duty = 1.0;
}

static void name_domains(test_record *out) {
    name_domain(&out->domains[0], "nvml:GPU-5a1c", TAMIS_ENERGY_GPU, 1650000001);
    name_domain(&out->domains[1], "rapl:package-0", TAMIS_ENERGY_PACKAGE, 500000000);
    name_domain(&out->domains[2], "nvml:GPU-77e0", TAMIS_ENERGY_GPU, 1500000000);
    name_domain(&out->domains[3], "rapl:dram-0", TAMIS_ENERGY_DRAM, 0);
    name_domain(&out->domains[4], "rapl:package-1", TAMIS_ENERGY_PACKAGE, 450000000);
    out->domains[1].wraps = 1;
    out->domains[4].resets = 2;
    out->domains[3].counted = 0;
    out->domains[3].tick_s = out->domains[3].duty = 0.0;
    out->domains[3].status = TAMIS_ENERGY_DENIED;
    snprintf(out->domains[3].reason, sizeof out->domains[3].reason,
             "energy_uj may be read by root only: run as root or grant CAP_PERFMON");
    for (int i = 0; i < RECORD_DOMAINS; i++) {
        out->unattributed_uj[i] = (int64_t)out->domains[i].uj / 100;
        out->idle_uj[i] = (int64_t)out->domains[i].uj / 10;
    }
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
    totals->shares[TAMIS_PHASE_ARRIVE] = (tamis_energy_share){
        0.7, 200000000, 190000000, 210000000, 1u << TAMIS_PHASE_ARRIVE, TAMIS_ENERGY_REGRESSED};
    totals->shares[TAMIS_PHASE_CUT] =
        (tamis_energy_share){0.1, 50000000, 50000000, 50000000, 0, TAMIS_ENERGY_TIME_SHARE};
    totals->shares[TAMIS_PHASE_APPLY].seconds = 0.001;
    totals->unattributed_uj = 50000001;
    totals->grams = 0.45;
    snprintf(totals->missing, sizeof totals->missing, "rapl:dram-0: denied");
}

void record_known(test_record *out, uint64_t seq) {
    memset(out, 0, sizeof *out);
    name_domains(out);
    out->record = (tam_energy_record){
        .name = "window",
        .begin_ns = RECORD_T0_NS + seq * 5000000000u,
        .end_ns = RECORD_T0_NS + (seq + 1) * 5000000000u,
        .step0 = 58 * seq,
        .step1 = 58 * (seq + 1),
        .domains = out->domains,
        .unattributed_uj = out->unattributed_uj,
        .idle_uj = out->idle_uj,
        .ndomains = RECORD_DOMAINS,
        .residual_w = 9.8,
        .condition = 14.2,
        .elements_offered = 11804740,
        .elements_sent = 118500,
        .density_asked = 0.01,
        .residual_norm = 3.2,
        .slack_p50_s = 0.0012,
        .slack_p95_s = 0.0071,
        .slack_max_s = 0.0203,
        .straggler = 3,
        .intensity_g_per_kwh = 380.0,
        .dropped = seq,
    };
    fill_totals(&out->record.totals);
}

void record_unknown(test_record *out, uint64_t seq) {
    record_known(out, seq);
    tam_energy_record *record = &out->record;
    for (int i = 0; i < RECORD_DOMAINS; i++) {
        out->domains[i].uj = 0;
        out->domains[i].status = TAMIS_ENERGY_ABSENT;
        out->domains[i].tick_s = out->domains[i].duty = 0.0;
    }
    for (uint32_t phase = 0; phase < TAMIS_ENERGY_PHASES; phase++)
        record->totals.shares[phase] =
            (tamis_energy_share){.seconds = record->totals.shares[phase].seconds};
    record->totals.known = 0;
    record->totals.uj = record->totals.unattributed_uj = 0;
    record->totals.grams = record->intensity_g_per_kwh = NAN;
    record->residual_w = record->condition = NAN;
    record->elements_offered = record->elements_sent = 0;
    record->density_asked = record->residual_norm = NAN;
    record->slack_p50_s = record->slack_p95_s = record->slack_max_s = NAN;
    record->straggler = UINT32_MAX;
}

tam_energy_log_setup record_setup(void) {
    return (tam_energy_log_setup){
        .run = "run-1",
        .host = "node-a",
        .boot_id = "7d5c",
        .rank = 2,
        .nranks = 4,
        .t0_ns = RECORD_T0_NS,
        .t0_unix = RECORD_T0_UNIX,
        .pue = 1.2,
    };
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

void record_add(tam_energy_log *log, uint64_t seq) {
    test_record window;
    record_known(&window, seq);
    tam_energy_log_window(log, &window.record);
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

/* @param some  value of every number that may be unknown */
static void note_decision(tam_energy_log *log, double some) {
    char line[TAMIS_GOVERNOR_LINE_BYTES];
    tamis_governor_window w = TAMIS_GOVERNOR_WINDOW_INIT;
    tamis_governor_decision d = TAMIS_GOVERNOR_DECISION_INIT;
    w.density = w.pace_s = w.cap_w = w.residual_norm = some;
    w.intensity_g_per_kwh = w.outlook_g_per_kwh = w.outlook_low_g_per_kwh = some;
    d.watts = d.expected_w = d.slowdown = d.low_w = d.high_w = some;
    if (tamis_governor_line(&w, &d, line, sizeof line) == TAMIS_OK)
        tam_energy_log_note(log, line);
}

static void write_known(tam_energy_log *log) {
    test_record window;
    for (uint64_t seq = 0; seq < 4; seq++) {
        record_known(&window, seq);
        window.record.name = seq == 2 ? "a,\"name\"\n" : "window";
        window.record.overlaps = seq == 3;
        window.record.totals.unattributed_uj -= seq == 1 ? 70000000 : 0; /* less than nothing */
        window.record.totals.shares[TAMIS_PHASE_ARRIVE].uj += seq == 1 ? 70000000 : 0;
        tam_energy_log_window(log, &window.record);
    }
    tam_energy_log_event(log, window.record.end_ns, "wrap", "rapl:package-0",
                         "\"\\\n\t\xff\xc3\xa9");
    tam_energy_log_event(log, window.record.end_ns, "clock_step", NULL, NULL);
    note_decision(log, 300.0);
    tam_energy_log_summary(log, &window.record);
}

static void write_unknown(tam_energy_log *log) {
    test_record window;
    record_unknown(&window, 0);
    tam_energy_log_window(log, &window.record);
    note_decision(log, TAMIS_UNKNOWN);
    tam_energy_log_summary(log, &window.record);
}

int record_samples(const char *folder) {
    for (int known = 0; known < 2; known++) {
        char path[SCRATCH_PATH];
        tam_energy_log_setup setup = record_setup();
        tam_energy_log *log = NULL;
        test_record first;
        record_known(&first, 0);
        setup.path = path_in(folder, known ? "known.jsonl" : "unknown.jsonl", path);
        setup.host = "node \"a\"\n";
        setup.pue = known ? 1.2 : (double)NAN;
        setup.t0_unix = known ? RECORD_T0_UNIX : 0.0;
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
    return 0;
}
