/* SPDX-License-Identifier: MIT */
#include "lib/energy/log/log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* errno says why not. */
static bool write_all(int fd, const char *bytes, size_t length, size_t *written) {
    for (*written = 0; *written < length;) {
        ssize_t done = write(fd, bytes + *written, length - *written);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        *written += (size_t)done;
    }
    return true;
}

static bool ends_within_line(int fd, off_t bytes) {
    char last = '\n';
    return bytes > 0 && pread(fd, &last, 1, bytes - 1) == 1 && last != '\n';
}

/* O_NONBLOCK: a pipe without reader would hold up the caller. */
static tamis_status open_file(const char *path, int *out_fd, struct stat *out_about) {
    int fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644);
    if (fd < 0)
        return tam_fail(TAMIS_E_IO, "the energy log '%s' could not be opened: %s", path,
                        strerror(errno));
    if (fstat(fd, out_about) != 0 ||
        !(S_ISREG(out_about->st_mode) || S_ISCHR(out_about->st_mode))) {
        close(fd);
        return tam_fail(TAMIS_E_IO,
                        "the energy log '%s' is no regular file (a pipe whose reader leaves would "
                        "end the process): name another",
                        path);
    }
    *out_fd = fd;
    return TAMIS_OK;
}

tamis_status tam_line_file_open(const char *path, tam_line_file *out) {
    struct stat about;
    int fd = -1;
    char *copy = tam_strdup(path);
    if (!copy)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the energy log '%s'", path);
    tamis_status status = open_file(path, &fd, &about);
    if (status != TAMIS_OK) {
        tam_free(copy);
        return status;
    }
    *out = (tam_line_file){.path = copy, .fd = fd, .regular = S_ISREG(about.st_mode)};
    if (out->regular) {
        out->bytes = (uint64_t)about.st_size;
        out->torn = ends_within_line(fd, about.st_size);
    }
    return TAMIS_OK;
}

void tam_line_file_lose(tam_line_file *file, const char *why) {
    if (file->lost++ == 0)
        tam_log(TAM_WARN,
                "a line of the energy log '%s' could not be written: %s; such lines are counted "
                "and this is not said again",
                file->path, why);
}

/* Take back what was written of a line, if nobody has written behind it. */
static bool take_back(const tam_line_file *file, size_t written) {
    struct stat about;
    return written == 0 || (file->regular && fstat(file->fd, &about) == 0 &&
                            (uint64_t)about.st_size == file->bytes + written &&
                            ftruncate(file->fd, (off_t)file->bytes) == 0);
}

static bool append(tam_line_file *file, const char *bytes, size_t length) {
    size_t written;
    if (write_all(file->fd, bytes, length, &written)) {
        file->bytes += length;
        return true;
    }
    int cause = errno;
    tam_line_file_lose(file, strerror(cause));
    if (!take_back(file, written)) {
        file->bytes += written;
        file->torn = true;
    }
    errno = cause;
    return false;
}

bool tam_line_file_add(tam_line_file *file, const char *line, size_t length) {
    if (file->torn) {
        if (!append(file, "\n", 1))
            return false;
        file->torn = false;
    }
    return append(file, line, length);
}

bool tam_line_file_rotate(tam_line_file *file) {
    char older[4096];
    struct stat about;
    int fd = -1;
    if (!file->regular ||
        (size_t)snprintf(older, sizeof older, "%s.1", file->path) >= sizeof older ||
        rename(file->path, older) != 0)
        return false;
    bool before = tam_hush(true); /* who rotates says what is lost */
    tamis_status status = open_file(file->path, &fd, &about);
    tam_hush(before);
    if (status != TAMIS_OK) {
        int cause = errno;
        rename(older, file->path);
        errno = cause;
        return false;
    }
    close(file->fd);
    file->fd = fd;
    file->bytes = (uint64_t)about.st_size;
    file->torn = false;
    return true;
}

void tam_line_file_close(tam_line_file *file) {
    if (file->fd >= 0)
        close(file->fd);
    tam_free(file->path);
    *file = (tam_line_file){.fd = -1};
}

static bool write_new(const char *path, const char *bytes, size_t length) {
    size_t written;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd < 0)
        return false;
    bool good = write_all(fd, bytes, length, &written);
    int cause = errno;
    if (close(fd) != 0 && good) {
        cause = errno;
        good = false;
    }
    errno = cause;
    return good;
}

bool tam_file_replace(const char *path, const char *bytes, size_t length) {
    char beside[4096];
    if ((size_t)snprintf(beside, sizeof beside, "%s.tmp", path) >= sizeof beside) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (write_new(beside, bytes, length) && rename(beside, path) == 0)
        return true;
    int cause = errno;
    unlink(beside);
    errno = cause;
    return false;
}
