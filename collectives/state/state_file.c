/* SPDX-License-Identifier: MIT
 *
 * State files: control, residual and moments of one rank. Saving writes a file beside the target,
 * flushes it, renames it and flushes the folder. Loading reads into memory of its own first.
 */
#include "collectives/state/state.h"
#include "lib/base/fenv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <tamis/state.h>
#include <unistd.h>

typedef struct state_file {
    int fd;
    const char *path;
} state_file;

static tamis_status fail_io(const char *what, const char *path) {
    return tam_fail(TAMIS_E_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static tamis_status check_path(const tamis_reducer *r, const char *path, const char *call) {
    if (r && path && path[0] != '\0')
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "%s: %s", call,
                    r ? "the path is NULL or empty" : "reducer is NULL");
}

/* -- save ------------------------------------------------------------------------------------- */

static tamis_status write_at(const state_file *file, size_t at, const void *memory, size_t bytes) {
    const char *from = memory;
    while (bytes > 0) {
        ssize_t done = pwrite(file->fd, from, bytes < 1 << 30 ? bytes : 1 << 30, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail_io("write", file->path);
        from += done;
        at += (size_t)done;
        bytes -= (size_t)done;
    }
    return TAMIS_OK;
}

typedef struct vector_target {
    const state_file *file;
    size_t begin;
} vector_target;

static tamis_status write_piece(void *arg, size_t at, const void *piece, size_t bytes) {
    const vector_target *target = arg;
    return write_at(target->file, target->begin + at, piece, bytes);
}

/* Write vectors one after another. One that does not exist takes no place. */
static tamis_status write_vector(const tamis_reducer *r, const float *vector, vector_target *target,
                                 uint64_t *out_hash) {
    *out_hash = 0;
    if (!vector)
        return TAMIS_OK;
    TAM_TRY(tam_state_vector(r, vector, write_piece, target, out_hash));
    target->begin += tam_state_sizes_of(r).residual;
    return TAMIS_OK;
}

/* Control is written last, though first in the file, for it holds the hashes of the vectors. */
static tamis_status write_state(const tamis_reducer *r, const state_file *file) {
    size_t bytes = tam_state_sizes_of(r).control;
    vector_target target = {file, bytes};
    uint64_t hash, first, second;
    TAM_TRY(write_vector(r, r->acc, &target, &hash));
    TAM_TRY(write_vector(r, r->first, &target, &first));
    TAM_TRY(write_vector(r, r->second, &target, &second));
    void *control = tam_alloc(bytes);
    if (!control)
        return tam_fail(TAMIS_E_NOMEM, "no memory to save to %s", file->path);
    tam_state_warn_unused(r);
    tam_state_pack(r, hash, tam_state_join_hashes(first, second), control);
    tamis_status status = write_at(file, 0, control, bytes);
    tam_free(control);
    if (status == TAMIS_OK && fsync(file->fd) != 0)
        return fail_io("write", file->path);
    return status;
}

/* A rename survives a crash only when the folder has been flushed. */
static tamis_status flush_folder(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    else
        slash[slash == folder] = '\0';
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_io("flush the folder of the new file,", folder);
    int failed = fsync(fd);
    close(fd);
    return failed ? fail_io("flush the folder of the new file,", folder) : TAMIS_OK;
}

/* Write a complete new file beside `path`, then let it replace `path`. */
static tamis_status save_to(const tamis_reducer *r, const char *path) {
    char beside[PATH_MAX];
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return tam_fail(TAMIS_E_IO, "cannot save to %s: it is not a regular file", path);
    if ((size_t)snprintf(beside, sizeof beside, "%s.XXXXXX", path) >= sizeof beside)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_save: the path is too long");
    state_file file = {mkostemp(beside, O_CLOEXEC), beside}; /* new, mode 0600, never a link */
    if (file.fd < 0)
        return fail_io("create a file beside", path);
    tamis_status status = write_state(r, &file);
    if (close(file.fd) != 0 && status == TAMIS_OK)
        status = fail_io("close", beside);
    if (status == TAMIS_OK && rename(beside, path) != 0)
        status = fail_io("rename to", path);
    if (status != TAMIS_OK) {
        unlink(beside);
        return status;
    }
    return flush_folder(path);
}

tamis_status tamis_reducer_save(tamis_reducer *r, const char *path) {
    TAM_TRY(check_path(r, path, "tamis_reducer_save"));
    TAM_TRY(tam_state_quiesce(r, "tamis_reducer_save"));
    return save_to(r, path);
}

/* -- load ------------------------------------------------------------------------------------- */

static tamis_status read_all(const state_file *file, void *memory, size_t bytes) {
    char *to = memory;
    while (bytes > 0) {
        ssize_t done = read(file->fd, to, bytes < 1 << 30 ? bytes : 1 << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return fail_io("read", file->path);
        if (done == 0)
            return tam_state_refuse(file->path, "the file is truncated");
        to += done;
        bytes -= (size_t)done;
    }
    return TAMIS_OK;
}

static tamis_status check_size(const state_file *file, const tam_state_header *h) {
    struct stat there;
    if (fstat(file->fd, &there) == 0 &&
        (uint64_t)there.st_size == h->control_bytes + h->residual_bytes + h->moments_bytes)
        return TAMIS_OK;
    return tam_state_refuse(file->path, "the file is truncated or has extra data at its end");
}

static tamis_status check_regular(const state_file *file) {
    struct stat there;
    if (fstat(file->fd, &there) == 0 && S_ISREG(there.st_mode))
        return TAMIS_OK;
    return tam_fail(TAMIS_E_IO, "cannot load %s: it is not a regular file", file->path);
}

/* A file's content. */
typedef struct content {
    void *control;
    float *residual, *moments;
} content;

static tamis_status read_state(const tamis_reducer *r, const state_file *file, content *c) {
    tam_state_sizes sizes = tam_state_sizes_of(r);
    tam_state_header header;
    TAM_TRY(check_regular(file));
    TAM_TRY(read_all(file, &header, sizeof header));
    TAM_TRY(tam_state_check_header(r, &header, false, file->path));
    TAM_TRY(check_size(file, &header));
    c->control = tam_alloc(sizes.control);
    c->residual = tam_alloc(sizes.residual);
    c->moments = tam_alloc(sizes.moments);
    if (!c->control || !c->residual || !c->moments)
        return tam_fail(TAMIS_E_NOMEM, "no memory to read %s", file->path);
    memcpy(c->control, &header, sizeof header);
    TAM_TRY(read_all(file, (char *)c->control + sizeof header, sizes.control - sizeof header));
    TAM_TRY(read_all(file, c->residual, sizes.residual));
    TAM_TRY(read_all(file, c->moments, sizes.moments));
    TAM_TRY(tam_state_check_parts(r, c->control, c->residual, file->path));
    if (header.moments_hash != tam_state_hash_moments(r, c->moments))
        return tam_state_refuse(file->path, "its moments are damaged (checksum)");
    return TAMIS_OK;
}

static tamis_status state_file_take(tamis_reducer *r, const content *c) {
    const float *second = r->first ? c->moments + r->layout->length : c->moments;
    TAM_TRY(tam_state_take_moments(r, r->first ? c->moments : NULL, r->second ? second : NULL));
    return tam_state_take(r, c->control, c->residual);
}

tamis_status tamis_reducer_load(tamis_reducer *r, const char *path) {
    TAM_FENV_HELD();
    content read = {0};
    TAM_TRY(check_path(r, path, "tamis_reducer_load"));
    TAM_TRY(tam_state_quiesce_to_load(r, "tamis_reducer_load"));
    /* nonblocking, as opening a pipe would wait for its writer */
    state_file file = {open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), path};
    if (file.fd < 0)
        return fail_io("open", path);
    tamis_status status = read_state(r, &file, &read);
    if (status == TAMIS_OK)
        status = state_file_take(r, &read);
    tam_free(read.control);
    tam_free(read.residual);
    tam_free(read.moments);
    close(file.fd);
    return status;
}
