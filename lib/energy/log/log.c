/* SPDX-License-Identifier: MIT
 *
 * Holds the file of a log and writes the lines that log_lines.c makes: each by one write, so that a
 * process that is killed leaves at most its last line incomplete.
 */
#include "lib/energy/log/log_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- the file --------------------------------------------------------------------------------- */

static bool ends_within_line(int fd, off_t bytes) {
    char last = '\n';
    return bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n';
}

/* O_NONBLOCK: a pipe without reader would hold up the caller. @return false: errno says why not */
static bool open_file(tam_energy_log *log) {
    struct stat about;
    log->fd = open(log->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (log->fd < 0)
        return false;
    errno = ESPIPE;
    if (fstat(log->fd, &about) != 0 || !(S_ISREG(about.st_mode) || S_ISCHR(about.st_mode)))
        return false;
    log->torn = ends_within_line(log->fd, about.st_size);
    return true;
}

/* Take back what was written of a line, if nobody has written behind it. */
static bool drop_partial_line(int fd, size_t written) {
    struct stat about;
    off_t end = lseek(fd, 0, SEEK_CUR);
    return fstat(fd, &about) == 0 && about.st_size == end &&
           ftruncate(fd, end - (off_t)written) == 0;
}

/* All or nothing. @return false: errno says why not */
static bool log_append(tam_energy_log *log, const char *bytes, size_t length) {
    size_t written = 0;
    while (written < length) {
        ssize_t done = write(log->fd, bytes + written, length - written);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        written += (size_t)done;
    }
    int cause = errno;
    if (written > 0 && written < length)
        log->torn = !drop_partial_line(log->fd, written);
    errno = cause;
    return written == length;
}

static bool write_text(tam_energy_log *log) {
    errno = ENOMEM;
    if (log->text.incomplete || (log->torn && !log_append(log, "\n", 1)))
        return false;
    log->torn = false;
    return log_append(log, log->text.bytes, log->text.length);
}

/* -- open, close ------------------------------------------------------------------------------ */

static tamis_status fail_open(const char *path) {
    if (errno == ESPIPE || errno == ENXIO)
        return tam_fail(TAMIS_E_IO,
                        "the energy log '%s' is not a regular file (a pipe whose reader exits "
                        "would kill the process): name another one",
                        path);
    return tam_fail(TAMIS_E_IO, "the energy log '%s' could not be opened: %s", path,
                    strerror(errno));
}

static tamis_status log_begin(tam_energy_log *log) {
    if (!log->path)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the path of an energy log");
    if (!open_file(log))
        return fail_open(log->path);
    if (write_text(log))
        return TAMIS_OK;
    return tam_fail(errno == ENOMEM ? TAMIS_E_NOMEM : TAMIS_E_IO,
                    "the energy log '%s' could not be written: %s", log->path, strerror(errno));
}

tamis_status tam_energy_log_open(const tam_energy_log_setup *setup,
                                 const tamis_energy_domain *domains, uint32_t ndomains,
                                 tam_energy_log **out) {
    tam_energy_log *log = tam_alloc(sizeof *log);
    if (!log)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", setup->config.json);
    *log = (tam_energy_log){.path = tam_strdup(setup->config.json),
                            .fd = -1,
                            .t0_ns = setup->t0_ns,
                            .ndomains = ndomains};
    tam_line_header(log, setup, domains);
    tamis_status status = log_begin(log);
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
    tam_text_free(&log->text);
    tam_free(log->path);
    tam_free(log);
}

/* -- writing ---------------------------------------------------------------------------------- */

void tam_energy_log_write(tam_energy_log *log) {
    if (write_text(log) || log->lost++ > 0)
        return;
    tam_log(TAM_WARN,
            "a line of the energy log '%s' could not be written: %s; further lost lines are only "
            "counted",
            log->path, strerror(errno));
}

uint64_t tam_energy_log_lost(const tam_energy_log *log) {
    return log->lost;
}
