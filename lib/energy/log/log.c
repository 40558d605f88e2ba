/* SPDX-License-Identifier: MIT
 *
 * Holds the file of a log and writes the lines that log_lines.c makes.
 */
#include "lib/energy/log/log_lines.h"

#include <errno.h>

/* -- lines ------------------------------------------------------------------------------------- */

static void add_header(tam_energy_log *log) {
    tam_line_header(log, &log->header);
    log->headless = !tam_line_file_add(&log->file, &log->header);
    log->lines = 0;
}

static void rotate(tam_energy_log *log) {
    if (tam_line_file_rotate(&log->file)) {
        log->headless = true;
        return;
    }
    log->rotate_bytes = 0;
    tam_log(TAM_WARN, "the energy log '%s' could not be renamed to '%s.1' and goes on growing: %s",
            log->file.path, log->file.path, strerror(errno));
}

/* A line that is no header, in a file that begins with one. */
static void add_line(tam_energy_log *log) {
    uint64_t most = log->rotate_bytes;
    if (most && log->lines && log->file.bytes + log->text.length > most)
        rotate(log);
    if (log->headless)
        add_header(log);
    if (!log->headless && tam_line_file_add(&log->file, &log->text))
        log->lines++;
}

/* -- open, close ------------------------------------------------------------------------------- */

static tamis_status begin(const tam_energy_log_setup *setup, const tamis_energy_domain *domains,
                          tam_energy_log *log) {
    if (!log->domains)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log");
    memcpy(log->domains, domains, log->ndomains * sizeof log->domains[0]);
    tam_line_head(setup, &log->head);
    TAM_TRY(tam_line_file_open(setup->path, &log->file));
    add_header(log);
    if (log->headless)
        return tam_fail(errno == ENOMEM ? TAMIS_E_NOMEM : TAMIS_E_IO,
                        "the energy log '%s' could not be written: %s", setup->path,
                        strerror(errno));
    return TAMIS_OK;
}

tamis_status tam_energy_log_open(const tam_energy_log_setup *setup,
                                 const tamis_energy_domain *domains, uint32_t ndomains,
                                 tam_energy_log **out) {
    tam_energy_log *log = tam_alloc(sizeof *log);
    if (!log)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log");
    *log = (tam_energy_log){.file.fd = -1,
                            .rotate_bytes = setup->rotate_bytes,
                            .t0_ns = setup->t0_ns,
                            .rank = setup->rank,
                            .domains = tam_alloc_array(ndomains, sizeof log->domains[0]),
                            .ndomains = ndomains};
    tamis_status status = begin(setup, domains, log);
    if (status == TAMIS_OK)
        *out = log;
    else
        tam_energy_log_close(log);
    return status;
}

void tam_energy_log_close(tam_energy_log *log) {
    if (!log)
        return;
    tam_line_file_close(&log->file);
    tam_text_free(&log->head);
    tam_text_free(&log->header);
    tam_text_free(&log->text);
    tam_free(log->domains);
    tam_free(log);
}

uint64_t tam_energy_log_lost(const tam_energy_log *log) {
    return log->file.lost;
}

/* -- records ----------------------------------------------------------------------------------- */

void tam_energy_log_window(tam_energy_log *log, const tam_energy_record *record) {
    memcpy(log->domains, record->domains, log->ndomains * sizeof log->domains[0]);
    tam_line_window(log, record, &log->text);
    add_line(log);
    log->windows++;
}

void tam_energy_log_event(tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                          const char *detail) {
    tam_line_event(log, at_ns, name, domain, detail, &log->text);
    add_line(log);
}

void tam_energy_log_note(tam_energy_log *log, const char *line) {
    tam_text_clear(&log->text);
    tam_text_put(&log->text, line);
    tam_text_put(&log->text, "\n");
    add_line(log);
}

void tam_energy_log_summary(tam_energy_log *log, const tam_energy_record *all) {
    tam_line_summary(log, all, &log->text);
    add_line(log);
}
