/* SPDX-License-Identifier: MIT
 *
 * Holds the files of a log and writes what the other parts make.
 */
#include "lib/energy/log/log_parts.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* -- open -------------------------------------------------------------------------------------- */

enum { TEXTS = 6 };

static void list_texts(tam_energy_log_setup *setup, const char **out[TEXTS]) {
    const char **texts[TEXTS] = {&setup->json, &setup->csv,  &setup->prometheus,
                                 &setup->run,  &setup->host, &setup->boot_id};
    memcpy(out, texts, sizeof texts);
}

static bool copy_texts(tam_energy_log_setup *setup) {
    const char **texts[TEXTS];
    bool complete = true;
    list_texts(setup, texts);
    for (int i = 0; i < TEXTS; i++) {
        *texts[i] = tam_strdup(*texts[i] ? *texts[i] : "");
        complete = complete && *texts[i];
    }
    return complete;
}

static void free_texts(tam_energy_log_setup *setup) {
    const char **texts[TEXTS];
    list_texts(setup, texts);
    for (int i = 0; i < TEXTS; i++)
        tam_free((void *)*texts[i]);
}

/* Unix time of t0, from a look at both clocks. */
static void ask_clocks(tam_energy_log *log) {
    struct timespec real;
    uint64_t before_ns = tam_clock_ns();
    clock_gettime(CLOCK_REALTIME, &real);
    uint64_t after_ns = tam_clock_ns();
    uint64_t middle_ns = before_ns + (after_ns - before_ns) / 2;
    double ago_s = (double)(int64_t)(middle_ns - log->setup.t0_ns) / 1e9;
    log->setup.t0_unix = (double)real.tv_sec + (double)real.tv_nsec / 1e9 - ago_s;
    log->clock_err_s = (double)(after_ns - before_ns) / 2e9;
}

static tamis_status copy_setup(const tam_energy_log_setup *setup,
                               const tamis_energy_domain *domains, uint32_t ndomains,
                               tam_energy_log *log) {
    log->setup = *setup;
    log->clock_err_s = NAN;
    log->sums.grams = NAN;
    log->json.fd = log->csv.fd = -1;
    log->ndomains = ndomains;
    log->domains = tam_alloc_array(ndomains, sizeof log->domains[0]);
    log->sums.domains_uj = tam_alloc_array(ndomains, sizeof log->sums.domains_uj[0]);
    if (!copy_texts(&log->setup) || !log->domains || !log->sums.domains_uj)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log");
    for (uint32_t i = 0; i < ndomains; i++) {
        log->domains[i] = domains[i];
        log->sums.domains_uj[i] = -1;
    }
    if (setup->t0_unix == 0.0)
        ask_clocks(log);
    return TAMIS_OK;
}

/* -- lines ------------------------------------------------------------------------------------- */

static bool add_line(tam_line_file *file, const tam_text *line) {
    if (!line->incomplete)
        return tam_line_file_add(file, line->bytes, line->length);
    tam_line_file_lose(file, "no memory");
    return false;
}

static void begin_json(tam_energy_log *log) {
    tam_json_header(log, &log->header);
    log->headless = !add_line(&log->json, &log->header);
    log->json_lines = 0;
}

static void rotate_json(tam_energy_log *log) {
    if (tam_line_file_rotate(&log->json)) {
        begin_json(log);
        return;
    }
    log->setup.rotate_bytes = 0;
    tam_log(TAM_WARN, "the energy log '%s' could not be renamed to '%s.1' and goes on growing: %s",
            log->json.path, log->json.path, strerror(errno));
}

static void add_json(tam_energy_log *log) {
    uint64_t most = log->setup.rotate_bytes;
    if (most && log->json_lines && log->json.bytes + log->text.length > most)
        rotate_json(log);
    else if (log->headless)
        begin_json(log);
    if (!log->headless && add_line(&log->json, &log->text))
        log->json_lines++;
}

/* -- files ------------------------------------------------------------------------------------- */

static tamis_status fail_write(const char *path) {
    return tam_fail(TAMIS_E_IO, "the energy log '%s' could not be written: %s", path,
                    strerror(errno));
}

static tamis_status open_json(tam_energy_log *log) {
    if (!log->setup.json[0])
        return TAMIS_OK;
    TAM_TRY(tam_line_file_open(log->setup.json, &log->json));
    begin_json(log);
    if (log->header.incomplete)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", log->setup.json);
    return log->headless ? fail_write(log->setup.json) : TAMIS_OK;
}

/* A file that exists goes on if its first line is the one that it would get now. */
static tamis_status open_csv(tam_energy_log *log) {
    char piece[256];
    if (!log->setup.csv[0])
        return TAMIS_OK;
    TAM_TRY(tam_line_file_open(log->setup.csv, &log->csv));
    tam_csv_header(log, &log->text);
    if (log->text.incomplete)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", log->setup.csv);
    if (log->csv.bytes == 0)
        return add_line(&log->csv, &log->text) ? TAMIS_OK : fail_write(log->setup.csv);
    for (size_t at = 0; at < log->text.length; at += sizeof piece) {
        size_t length = log->text.length - at < sizeof piece ? log->text.length - at : sizeof piece;
        if (pread(log->csv.fd, piece, length, (off_t)at) != (ssize_t)length ||
            memcmp(piece, log->text.bytes + at, length) != 0)
            return tam_fail(TAMIS_E_IO,
                            "the energy log '%s' exists and begins with other columns than those "
                            "of this run: name another file",
                            log->setup.csv);
    }
    return TAMIS_OK;
}

static bool renew_page(tam_energy_log *log, const tam_energy_record *last) {
    tam_prometheus_page(log, last, &log->text);
    if (log->text.incomplete) {
        errno = ENOMEM;
        return false;
    }
    return tam_file_replace(log->setup.prometheus, log->text.bytes, log->text.length);
}

static tamis_status open_page(tam_energy_log *log) {
    struct stat about;
    const char *path = log->setup.prometheus;
    if (!path[0])
        return TAMIS_OK;
    if (stat(path, &about) == 0 && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode))
        return tam_fail(TAMIS_E_IO, "the energy log '%s' is no regular file: name another", path);
    return renew_page(log, NULL) ? TAMIS_OK : fail_write(path);
}

static tamis_status open_files(tam_energy_log *log) {
    TAM_TRY(open_csv(log));
    TAM_TRY(open_page(log));
    return open_json(log);
}

tamis_status tam_energy_log_open(const tam_energy_log_setup *setup,
                                 const tamis_energy_domain *domains, uint32_t ndomains,
                                 tam_energy_log **out) {
    tam_energy_log *log = tam_alloc(sizeof *log);
    if (!log)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log");
    tamis_status status = copy_setup(setup, domains, ndomains, log);
    if (status == TAMIS_OK)
        status = open_files(log);
    if (status != TAMIS_OK) {
        tam_energy_log_close(log);
        return status;
    }
    *out = log;
    return TAMIS_OK;
}

void tam_energy_log_close(tam_energy_log *log) {
    if (!log)
        return;
    if (log->json.fd >= 0)
        tam_line_file_close(&log->json);
    if (log->csv.fd >= 0)
        tam_line_file_close(&log->csv);
    free_texts(&log->setup);
    tam_text_free(&log->header);
    tam_text_free(&log->text);
    tam_free(log->sums.domains_uj);
    tam_free(log->domains);
    tam_free(log);
}

uint64_t tam_energy_log_lost(const tam_energy_log *log) {
    return log->json.lost + log->csv.lost + log->pages_lost;
}

/* -- records ----------------------------------------------------------------------------------- */

static void add_page(tam_energy_log *log, const tam_energy_record *record) {
    tam_prometheus_take(&log->sums, record);
    if (renew_page(log, record))
        return;
    if (log->pages_lost++ == 0)
        tam_log(TAM_WARN,
                "the energy log '%s' could not be renewed: %s; such failures are counted and this "
                "is not said again",
                log->setup.prometheus, strerror(errno));
}

void tam_energy_log_window(tam_energy_log *log, const tam_energy_record *record) {
    memcpy(log->domains, record->domains, log->ndomains * sizeof log->domains[0]);
    if (log->json.fd >= 0) {
        tam_json_window(log, record, &log->text);
        add_json(log);
    }
    if (log->csv.fd >= 0) {
        tam_csv_row(log, record, &log->text);
        add_line(&log->csv, &log->text);
    }
    if (log->setup.prometheus[0] && !record->overlaps)
        add_page(log, record);
    log->windows++;
}

void tam_energy_log_event(tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                          const char *detail) {
    if (log->json.fd < 0)
        return;
    tam_json_event(log, at_ns, name, domain, detail, &log->text);
    add_json(log);
}

void tam_energy_log_note(tam_energy_log *log, const char *line) {
    if (log->json.fd < 0)
        return;
    tam_json_note(line, &log->text);
    add_json(log);
}

void tam_energy_log_summary(tam_energy_log *log, const tam_energy_record *all) {
    if (log->json.fd < 0)
        return;
    tam_json_summary(log, all, &log->text);
    add_json(log);
}
