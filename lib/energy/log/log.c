/* SPDX-License-Identifier: MIT
 *
 * Holds the file of a log and writes the lines that log_lines.c makes: each by one write, a header
 * together with the line that follows it, so that a process that is killed leaves at most its last
 * line incomplete.
 */
#include "lib/energy/log/log_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- the file ---------------------------------------------------------------------------------- */

static bool ends_within_line(int fd, off_t bytes) {
    char last = '\n';
    return bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n';
}

/* O_NONBLOCK: a pipe without reader would hold up the caller. @return false: errno says why not */
static bool open_file(tam_energy_log *log) {
    struct stat about;
    int fd = open(log->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0)
        return false;
    if (fstat(fd, &about) != 0 || !(S_ISREG(about.st_mode) || S_ISCHR(about.st_mode))) {
        close(fd);
        errno = ESPIPE;
        return false;
    }
    log->fd = fd;
    log->bytes = (uint64_t)about.st_size;
    log->torn = ends_within_line(fd, about.st_size);
    log->headless = true;
    log->lines = 0;
    return true;
}

/* The file goes on as it was where that fails: errno says why. */
static bool replace_file(tam_energy_log *log) {
    char older[4096];
    struct stat about;
    int fd = log->fd;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || /* a device keeps its name */
        (size_t)snprintf(older, sizeof older, "%s.1", log->path) >= sizeof older ||
        rename(log->path, older) != 0)
        return false;
    if (open_file(log)) {
        close(fd);
        return true;
    }
    int cause = errno;
    rename(older, log->path);
    errno = cause;
    return false;
}

static void rotate(tam_energy_log *log) {
    if (replace_file(log))
        return;
    log->rotate_bytes = 0;
    tam_log(TAM_WARN, "the energy log '%s' could not be renamed to '%s.1' and goes on growing: %s",
            log->path, log->path, strerror(errno));
}

/* -- lines ------------------------------------------------------------------------------------- */

static size_t write_all(int fd, const char *bytes, size_t length) {
    size_t written = 0;
    while (written < length) {
        ssize_t done = write(fd, bytes + written, length - written);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        written += (size_t)done;
    }
    return written;
}

/* Take back what was written of a line, if nobody has written behind it. */
static bool take_back(const tam_energy_log *log, size_t written) {
    struct stat about;
    return fstat(log->fd, &about) == 0 && (uint64_t)about.st_size == log->bytes + written &&
           ftruncate(log->fd, (off_t)log->bytes) == 0;
}

/* All or nothing. @return false: errno says why not */
static bool append(tam_energy_log *log, const char *bytes, size_t length) {
    size_t written = write_all(log->fd, bytes, length);
    int cause = errno;
    bool whole = written == length;
    if (!whole && written > 0) {
        log->torn = !take_back(log, written);
        written = log->torn ? written : 0;
    }
    log->bytes += written;
    errno = cause;
    return whole;
}

static bool write_text(tam_energy_log *log) {
    errno = ENOMEM;
    if (log->text.incomplete || (log->torn && !append(log, "\n", 1)))
        return false;
    log->torn = false;
    return append(log, log->text.bytes, log->text.length);
}

/* Where a line is to be made; a file begins with a header. */
static tam_text *begin_line(tam_energy_log *log) {
    if (log->rotate_bytes && log->lines && log->bytes >= log->rotate_bytes)
        rotate(log);
    tam_text_clear(&log->text);
    if (log->headless)
        tam_line_header(log, &log->text);
    return &log->text;
}

static void end_line(tam_energy_log *log) {
    if (write_text(log)) {
        log->headless = false;
        log->lines++;
    } else if (log->lost++ == 0) {
        tam_log(TAM_WARN,
                "a line of the energy log '%s' could not be written: %s; such lines are counted "
                "and this is not said again",
                log->path, strerror(errno));
    }
}

/* -- open, close ------------------------------------------------------------------------------- */

static tamis_status fail_open(const char *path) {
    if (errno == ESPIPE || errno == ENXIO)
        return tam_fail(TAMIS_E_IO,
                        "the energy log '%s' is no regular file (a pipe whose reader leaves would "
                        "end the process): name another",
                        path);
    return tam_fail(TAMIS_E_IO, "the energy log '%s' could not be opened: %s", path,
                    strerror(errno));
}

static tamis_status begin(const tam_energy_log_setup *setup, const tamis_energy_domain *domains,
                          tam_energy_log *log) {
    if (!log->domains || !log->path)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", setup->path);
    memcpy(log->domains, domains, log->ndomains * sizeof log->domains[0]);
    tam_line_head(setup, &log->head);
    if (!open_file(log))
        return fail_open(log->path);
    begin_line(log);
    log->headless = !write_text(log);
    if (log->headless)
        return tam_fail(errno == ENOMEM ? TAMIS_E_NOMEM : TAMIS_E_IO,
                        "the energy log '%s' could not be written: %s", log->path, strerror(errno));
    return TAMIS_OK;
}

tamis_status tam_energy_log_open(const tam_energy_log_setup *setup,
                                 const tamis_energy_domain *domains, uint32_t ndomains,
                                 tam_energy_log **out) {
    tam_energy_log *log = tam_alloc(sizeof *log);
    if (!log)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", setup->path);
    *log = (tam_energy_log){.path = tam_strdup(setup->path),
                            .fd = -1,
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
    if (log->fd >= 0)
        close(log->fd);
    tam_text_free(&log->head);
    tam_text_free(&log->text);
    tam_free(log->domains);
    tam_free(log->path);
    tam_free(log);
}

uint64_t tam_energy_log_lost(const tam_energy_log *log) {
    return log->lost;
}

/* -- records ----------------------------------------------------------------------------------- */

void tam_energy_log_window(tam_energy_log *log, const tam_energy_record *record) {
    memcpy(log->domains, record->domains, log->ndomains * sizeof log->domains[0]);
    tam_line_window(log, record, begin_line(log));
    end_line(log);
    log->windows++;
}

void tam_energy_log_event(tam_energy_log *log, uint64_t at_ns, const char *name, const char *domain,
                          const char *detail) {
    tam_line_event(log, at_ns, name, domain, detail, begin_line(log));
    end_line(log);
}

void tam_energy_log_note(tam_energy_log *log, const char *line) {
    tam_text *text = begin_line(log);
    tam_text_put(text, line);
    tam_text_put(text, "\n");
    end_line(log);
}

void tam_energy_log_summary(tam_energy_log *log, const tam_energy_record *all) {
    tam_line_summary(log, all, begin_line(log));
    end_line(log);
}
