/* SPDX-License-Identifier: MIT
 *
 * State files: one per rank.
 *
 *     | header, 64-bit words | a row per bucket | levels: double[groups of all] | residual: float[n] |
 *
 * The header holds what the file belongs to (the agreement, rank, ranks), the place in the run, and
 * checksums of the parts; its own comes last. Saving writes beside the target, flushes,
 * renames and flushes the folder. Loading reads into memory of its own and changes the reducer
 * only when all is well.
 */
#include "collectives/reducer/reducer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define MAGIC UINT64_C(0x0a1b65746174744d) /* changes with the format; odd bytes on purpose */
#define BYTE_ORDER_MARK UINT64_C(0x0102030405060708)

enum { PIECE_BYTES = 1 << 22 }; /* of the residual, on its way through host memory */

typedef struct state_header {
    uint64_t magic, byte_order, bytes; /* of the whole file */
    tam_agreement agreement;
    uint64_t rank, nranks, nbuckets, ngroups;
    uint64_t step, steps, rescans_total, wire_bytes_total;
    uint64_t k, has_norms;
    uint64_t rows_hash, levels_hash, residual_hash;
    uint64_t header_hash; /* last */
} state_header;

typedef struct state_row {
    tam_control_state control;
    uint64_t last_result, early_nonfinite;
    double norm;
} state_row;

typedef struct state_sizes {
    uint64_t ngroups;
    size_t rows, levels, residual;
} state_sizes;

/* Scheme dense has neither levels nor residual, also where kernels need a division. */
static state_sizes sizes_of(const tamis_reducer *r) {
    state_sizes sizes = {.rows = r->nbuckets * sizeof(state_row)};
    if (!r->acc)
        return sizes;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        sizes.ngroups += r->buckets[i].division.grid.ngroups;
    sizes.levels = sizes.ngroups * sizeof(double);
    sizes.residual = (size_t)r->layout->length * sizeof(float);
    return sizes;
}

static uint64_t file_bytes(state_sizes sizes) {
    return sizeof(state_header) + sizes.rows + sizes.levels + sizes.residual;
}

static uint64_t hash_header(const state_header *h) {
    return XXH3_64bits(h, offsetof(state_header, header_hash));
}

/* The hashes of the parts are there already. */
static void fill_header(const tamis_reducer *r, state_header *h) {
    state_sizes sizes = sizes_of(r);
    h->magic = MAGIC;
    h->byte_order = BYTE_ORDER_MARK;
    h->bytes = file_bytes(sizes);
    h->agreement = r->agreement;
    h->rank = r->comm->rank;
    h->nranks = r->comm->nranks;
    h->nbuckets = r->nbuckets;
    h->ngroups = sizes.ngroups;
    h->step = r->step;
    h->steps = r->stats.steps;
    h->rescans_total = r->stats.rescans_total;
    h->wire_bytes_total = r->stats.wire_bytes_total;
    h->k = r->k;
    h->has_norms = r->has_norms;
    h->header_hash = hash_header(h);
}

static state_row row_of(const tam_bucket *b) {
    return (state_row){b->control.state, b->last_result, b->early_nonfinite,
                       b->reducer->norms[b->index]};
}

/* -- save ------------------------------------------------------------------------------------- */

static tamis_status fail_io(const char *what, const char *path) {
    return tam_fail(TAMIS_E_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static bool write_all(int fd, const void *memory, size_t bytes) {
    const char *at = memory;
    while (bytes > 0) {
        ssize_t done = write(fd, at, bytes < 1 << 30 ? bytes : 1 << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

/* Each piece is hashed on top of those before it. */
static uint64_t hash_piece(const void *memory, size_t bytes, uint64_t before) {
    return XXH3_64bits_withSeed(memory, bytes, before);
}

static tamis_status write_residual(const tamis_reducer *r, int fd, const char *path, void *piece,
                                   uint64_t *hash) {
    size_t bytes = sizes_of(r).residual;
    *hash = 0;
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        size_t length = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        TAM_TRY(r->device->read(r->buckets[0].kernels, (const char *)r->acc + at, length, piece));
        *hash = hash_piece(piece, length, *hash);
        if (!write_all(fd, piece, length))
            return fail_io("write", path);
    }
    return TAMIS_OK;
}

static tamis_status write_rows(const tamis_reducer *r, int fd, const char *path, uint64_t *hash) {
    *hash = 0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        state_row row = row_of(&r->buckets[i]);
        *hash = hash_piece(&row, sizeof row, *hash);
        if (!write_all(fd, &row, sizeof row))
            return fail_io("write", path);
    }
    return TAMIS_OK;
}

static tamis_status write_levels(const tamis_reducer *r, int fd, const char *path, uint64_t *hash) {
    *hash = 0;
    for (uint32_t i = 0; i < r->nbuckets && r->acc; i++) {
        const tam_bucket *b = &r->buckets[i];
        size_t bytes = b->division.grid.ngroups * sizeof(double);
        *hash = hash_piece(b->control.levels, bytes, *hash);
        if (!write_all(fd, b->control.levels, bytes))
            return fail_io("write", path);
    }
    return TAMIS_OK;
}

/* The header comes last, for it holds the hashes of what follows it. */
static tamis_status write_state(const tamis_reducer *r, int fd, const char *path, void *piece) {
    state_header header;
    memset(&header, 0, sizeof header);
    if (!write_all(fd, &header, sizeof header))
        return fail_io("write", path);
    TAM_TRY(write_rows(r, fd, path, &header.rows_hash));
    TAM_TRY(write_levels(r, fd, path, &header.levels_hash));
    TAM_TRY(write_residual(r, fd, path, piece, &header.residual_hash));
    fill_header(r, &header);
    if (lseek(fd, 0, SEEK_SET) != 0 || !write_all(fd, &header, sizeof header) || fsync(fd) != 0)
        return fail_io("write", path);
    return TAMIS_OK;
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

static tamis_status check_call(const tamis_reducer *r, const char *path, const char *call) {
    if (!r || !path || path[0] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT, "%s: %s", call,
                        r ? "the path is NULL or empty" : "reducer is NULL");
    if (r->started)
        return tam_fail(TAMIS_E_STATE, "%s: a step is under way; call tamis_reduce_wait first",
                        call);
    return TAMIS_OK;
}

/* A new file beside `path`, complete, that replaces it. */
static tamis_status save_to(const tamis_reducer *r, const char *path, void *piece) {
    char beside[PATH_MAX];
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode))
        return tam_fail(TAMIS_E_IO, "cannot save to %s: what is there is not a regular file", path);
    if ((size_t)snprintf(beside, sizeof beside, "%s.XXXXXX", path) >= sizeof beside)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_reducer_save: the path is too long");
    int fd = mkostemp(beside, O_CLOEXEC); /* a new file, mode 0600, never a link */
    if (fd < 0)
        return fail_io("make a file beside", path);
    tamis_status status = write_state(r, fd, beside, piece);
    if (close(fd) != 0 && status == TAMIS_OK)
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
    TAM_TRY(check_call(r, path, "tamis_reducer_save"));
    TAM_TRY(r->driver->settle(r));
    void *piece = tam_alloc(PIECE_BYTES);
    if (!piece)
        return tam_fail(TAMIS_E_NOMEM, "no memory to save to %s", path);
    tamis_status status = save_to(r, path, piece);
    tam_free(piece);
    return status;
}

/* -- load ------------------------------------------------------------------------------------- */

typedef struct state_buffers {
    state_header header;
    state_row *rows;
    double *levels;
    float *residual;
} state_buffers;

static bool read_all(int fd, void *memory, size_t bytes) {
    char *at = memory;
    while (bytes > 0) {
        ssize_t done = read(fd, at, bytes < 1 << 30 ? bytes : 1 << 30);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            errno = done == 0 ? 0 : errno;
            return false;
        }
        at += done;
        bytes -= (size_t)done;
    }
    return true;
}

static tamis_status refuse(const char *path, const char *why) {
    return tam_fail(TAMIS_E_FORMAT, "%s: %s", path, why);
}

static tamis_status fail_read(const char *path) {
    return errno == 0 ? refuse(path, "the file is truncated") : fail_io("read", path);
}

/* As tamis_reducer_set_density. */
static bool can_send(const tamis_reducer *r, uint64_t k) {
    return k == r->k || (r->driver == &tam_driver_host && k >= r->nbuckets && k <= r->k_max);
}

/* Is it a state file, whole, and ours? */
static tamis_status check_header(const tamis_reducer *r, const state_header *h, int fd,
                                 const char *path) {
    struct stat file;
    char text[160], sentence[256];
    if (h->magic != MAGIC)
        return refuse(path, "not a tamis state file of this version");
    if (h->byte_order != BYTE_ORDER_MARK)
        return refuse(path, "written on a machine with another byte order");
    if (h->header_hash != hash_header(h))
        return refuse(path, "the header is damaged (checksum)");
    if (fstat(fd, &file) != 0 || (uint64_t)file.st_size != h->bytes)
        return refuse(path, "the file is truncated or has something appended");
    if (tam_agreement_differs(&r->agreement, &h->agreement, text, sizeof text)) {
        snprintf(sentence, sizeof sentence, "it belongs to another reducer: %s", text);
        return refuse(path, sentence);
    }
    if (h->rank != r->comm->rank || h->nranks != r->comm->nranks) {
        snprintf(sentence, sizeof sentence,
                 "it belongs to rank %llu of %llu, this is rank %u of %u",
                 (unsigned long long)h->rank, (unsigned long long)h->nranks, r->comm->rank,
                 r->comm->nranks);
        return refuse(path, sentence);
    }
    if (!can_send(r, h->k)) {
        snprintf(sentence, sizeof sentence,
                 "its density was set to %llu entries a step, which this reducer cannot send",
                 (unsigned long long)h->k);
        return refuse(path, sentence);
    }
    state_sizes sizes = sizes_of(r);
    if (h->nbuckets != r->nbuckets || h->ngroups != sizes.ngroups || h->bytes != file_bytes(sizes))
        return refuse(path, "its parts have other sizes than this reducer's");
    return TAMIS_OK;
}

/* In the pieces in which it was written. */
static uint64_t hash_pieces(const void *memory, size_t bytes, size_t piece) {
    uint64_t hash = 0;
    for (size_t at = 0; at < bytes; at += piece)
        hash = hash_piece((const char *)memory + at, bytes - at < piece ? bytes - at : piece, hash);
    return hash;
}

static uint64_t hash_levels(const tamis_reducer *r, const double *levels) {
    uint64_t hash = 0;
    for (uint32_t i = 0; i < r->nbuckets && r->acc; i++) {
        uint32_t ngroups = r->buckets[i].division.grid.ngroups;
        hash = hash_piece(levels, ngroups * sizeof levels[0], hash);
        levels += ngroups;
    }
    return hash;
}

static bool is_sound(const tamis_reducer *r, const state_buffers *in) {
    const state_header *h = &in->header;
    state_sizes sizes = sizes_of(r);
    return h->rows_hash == hash_pieces(in->rows, sizes.rows, sizeof in->rows[0]) &&
           h->levels_hash == hash_levels(r, in->levels) &&
           h->residual_hash == hash_pieces(in->residual, sizes.residual, PIECE_BYTES);
}

static tamis_status read_state(const tamis_reducer *r, int fd, const char *path,
                               state_buffers *in) {
    state_sizes sizes = sizes_of(r);
    struct stat there;
    if (fstat(fd, &there) != 0 || !S_ISREG(there.st_mode))
        return tam_fail(TAMIS_E_IO, "cannot load %s: it is not a regular file", path);
    if (!read_all(fd, &in->header, sizeof in->header))
        return fail_read(path);
    TAM_TRY(check_header(r, &in->header, fd, path));
    in->rows = tam_alloc(sizes.rows);
    in->levels = tam_alloc(sizes.levels);
    in->residual = tam_alloc(sizes.residual);
    if (!in->rows || !in->levels || !in->residual)
        return tam_fail(TAMIS_E_NOMEM, "no memory to read %s", path);
    if (!read_all(fd, in->rows, sizes.rows) || !read_all(fd, in->levels, sizes.levels) ||
        !read_all(fd, in->residual, sizes.residual))
        return fail_read(path);
    if (!is_sound(r, in))
        return refuse(path, "its content is damaged (checksum)");
    return TAMIS_OK;
}

/* The shares follow from k and the norms; levels were saved as they were after that. */
static void take_over_buckets(tamis_reducer *r, const state_buffers *in) {
    const double *levels = in->levels;
    r->k = in->header.k;
    r->has_norms = in->header.has_norms;
    for (uint32_t i = 0; i < r->nbuckets; i++)
        r->norms[i] = in->rows[i].norm;
    tam_buckets_share(r);
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        tam_bucket *b = &r->buckets[i];
        uint32_t ngroups = b->division.grid.ngroups;
        b->control.state = in->rows[i].control;
        memcpy(b->control.levels, levels, ngroups * sizeof levels[0]);
        levels += ngroups;
        tam_control_prepare(&b->control);
        b->last_result = in->rows[i].last_result;
        b->early_nonfinite = in->rows[i].early_nonfinite;
    }
}

static tamis_status take_over(tamis_reducer *r, const state_buffers *in) {
    const state_header *h = &in->header;
    if (r->acc) { /* first, for it alone can fail */
        TAM_TRY(
            r->device->write(r->buckets[0].kernels, in->residual, sizes_of(r).residual, r->acc));
        take_over_buckets(r, in);
    }
    r->step = h->step;
    r->has_result = false;
    tam_arrive_forget(r);
    r->stats.steps = h->steps;
    r->stats.length = r->layout->length;
    r->stats.rescans_total = h->rescans_total;
    r->stats.wire_bytes_total = h->wire_bytes_total;
    return r->driver->reload(r);
}

tamis_status tamis_reducer_load(tamis_reducer *r, const char *path) {
    state_buffers in = {0};
    TAM_TRY(check_call(r, path, "tamis_reducer_load"));
    if (r->abandoned)
        return tam_fail(TAMIS_E_STATE,
                        "tamis_reducer_load: the last exchange never ended; make a new reducer");
    TAM_TRY(r->driver->settle(r)); /* what was joined ends; its outcome is replaced */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its writer */
    if (fd < 0)
        return fail_io("open", path);
    tamis_status status = read_state(r, fd, path, &in);
    if (status == TAMIS_OK)
        status = take_over(r, &in);
    tam_free(in.rows);
    tam_free(in.levels);
    tam_free(in.residual);
    close(fd);
    return status;
}
