/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* O_NOFOLLOW */
#include "bench/train/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 1280 };

static bool fail(files_why *why, const char *what, const char *path) {
    snprintf(why->text, sizeof why->text, "cannot %s %.1280s: %s", what, path, strerror(errno));
    return false;
}

static bool write_piece(int fd, const files_piece *piece) {
    const char *from = piece->data;
    for (size_t left = piece->bytes; left > 0;) {
        ssize_t done = write(fd, from, left < 1 << 30 ? left : 1 << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        from += done;
        left -= (size_t)done;
    }
    return true;
}

/* What a crash has left goes first, so that the new file is new: never a link, never somebody
 * else's. */
static int create(const char *part) {
    unlink(part);
    return open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

/* Some file systems report a full disk only when the file is flushed or closed. */
static bool fill(int fd, const files_piece *pieces, size_t count) {
    bool ok = true;
    for (size_t i = 0; ok && i < count; i++)
        ok = write_piece(fd, &pieces[i]);
    ok = ok && fsync(fd) == 0;
    int first = errno;
    bool closed = close(fd) == 0;
    if (!ok)
        errno = first;
    return ok && closed;
}

/* A rename survives a crash only when the folder has been flushed. */
static bool flush_folder(const char *path) {
    char folder[PATH_BYTES];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = fsync(fd) == 0;
    int first = errno;
    close(fd);
    errno = first;
    return ok;
}

static bool part_of(const char *path, char out[PATH_BYTES], files_why *why) {
    if ((size_t)snprintf(out, PATH_BYTES, "%s.part", path) < PATH_BYTES)
        return true;
    errno = ENAMETOOLONG;
    return fail(why, "write", path);
}

bool files_try(const char *path, files_why *why) {
    char part[PATH_BYTES];
    if (!part_of(path, part, why))
        return false;
    int fd = create(part);
    if (fd < 0 || close(fd) != 0 || unlink(part) != 0)
        return fail(why, "write", path);
    return true;
}

bool files_write(const char *path, const files_piece *pieces, size_t count, files_why *why) {
    char part[PATH_BYTES];
    if (!part_of(path, part, why))
        return false;
    int fd = create(part);
    if (fd < 0)
        return fail(why, "write", path);
    if (!fill(fd, pieces, count) || rename(part, path) != 0) {
        fail(why, "write", path);
        unlink(part);
        return false;
    }
    return flush_folder(path) || fail(why, "flush the folder of", path);
}
