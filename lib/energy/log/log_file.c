/* SPDX-License-Identifier: MIT */
#include "lib/energy/log/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* -- open, rotate, close ----------------------------------------------------------------------- */

static bool ends_within_line(int fd, off_t bytes) {
    char last = '\n';
    return bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n';
}

/* O_NONBLOCK: a pipe without reader would hold up the caller. @return false: errno says why not */
static bool open_file(tam_line_file *file) {
    struct stat about;
    int fd = open(file->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0)
        return false;
    if (fstat(fd, &about) != 0 || !(S_ISREG(about.st_mode) || S_ISCHR(about.st_mode))) {
        close(fd);
        errno = ESPIPE;
        return false;
    }
    file->fd = fd;
    file->bytes = (uint64_t)about.st_size;
    file->torn = ends_within_line(fd, about.st_size);
    return true;
}

tamis_status tam_line_file_open(const char *path, tam_line_file *out) {
    *out = (tam_line_file){.path = tam_strdup(path), .fd = -1};
    if (!out->path)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", path);
    if (open_file(out))
        return TAMIS_OK;
    if (errno == ESPIPE || errno == ENXIO)
        return tam_fail(TAMIS_E_IO,
                        "the energy log '%s' is no regular file (a pipe whose reader leaves would "
                        "end the process): name another",
                        path);
    return tam_fail(TAMIS_E_IO, "the energy log '%s' could not be opened: %s", path,
                    strerror(errno));
}

bool tam_line_file_rotate(tam_line_file *file) {
    char older[4096];
    struct stat about;
    int fd = file->fd;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || /* a device keeps its name */
        (size_t)snprintf(older, sizeof older, "%s.1", file->path) >= sizeof older ||
        rename(file->path, older) != 0)
        return false;
    if (open_file(file)) {
        close(fd);
        return true;
    }
    int cause = errno;
    rename(older, file->path);
    errno = cause;
    return false;
}

void tam_line_file_close(tam_line_file *file) {
    if (file->fd >= 0)
        close(file->fd);
    tam_free(file->path);
    *file = (tam_line_file){.fd = -1};
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
static bool take_back(const tam_line_file *file, size_t written) {
    struct stat about;
    return written == 0 ||
           (fstat(file->fd, &about) == 0 && (uint64_t)about.st_size == file->bytes + written &&
            ftruncate(file->fd, (off_t)file->bytes) == 0);
}

static bool append(tam_line_file *file, const char *bytes, size_t length) {
    size_t written = write_all(file->fd, bytes, length);
    int cause = errno;
    if (written < length && take_back(file, written))
        written = 0;
    file->bytes += written;
    file->torn = file->torn || (written > 0 && written < length);
    errno = cause;
    return written == length;
}

static bool add(tam_line_file *file, const tam_text *line) {
    errno = ENOMEM;
    if (line->incomplete)
        return false;
    if (file->torn && !append(file, "\n", 1))
        return false;
    file->torn = false;
    return append(file, line->bytes, line->length);
}

bool tam_line_file_add(tam_line_file *file, const tam_text *line) {
    if (add(file, line))
        return true;
    int cause = errno;
    if (file->lost++ == 0)
        tam_log(TAM_WARN,
                "a line of the energy log '%s' could not be written: %s; such lines are counted "
                "and this is not said again",
                file->path, strerror(cause));
    errno = cause;
    return false;
}
