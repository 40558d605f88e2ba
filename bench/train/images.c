/* SPDX-License-Identifier: MIT
 *
 * IDX: big-endian 32-bit words (magic, counts), then bytes. The magic's last byte is the number
 * of dimensions, the byte before it the type (8: unsigned bytes).
 */
#include "bench/train/images.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include <zlib.h>

#include "bench/common/measure.h"
#include "bench/train/layers.h"

enum { MAGIC_LABELS = 0x801, MAGIC_IMAGES = 0x803, MAX_ITEMS = 1 << 24 };

typedef struct reader {
    gzFile file;
    char path[1024];
    char *error;
    size_t error_size;
} reader;

__attribute__((format(printf, 2, 3))) static bool complain(reader *r, const char *format, ...) {
    va_list args;
    int used = snprintf(r->error, r->error_size, "%s: ", r->path);
    va_start(args, format);
    if (used >= 0 && (size_t)used < r->error_size)
        vsnprintf(r->error + used, r->error_size - (size_t)used, format, args);
    va_end(args);
    return false;
}

static bool open_either(reader *r, const char *dir, const char *file) {
    snprintf(r->path, sizeof r->path, "%s/%s", dir, file);
    if (access(r->path, F_OK) != 0)
        snprintf(r->path, sizeof r->path, "%s/%s.gz", dir, file);
    r->file = gzopen(r->path, "rb");
    if (!r->file)
        return complain(r,
                        "%s (with and without .gz); install Debian's package "
                        "dataset-fashion-mnist, or use --data",
                        strerror(errno));
    gzbuffer(r->file, 1 << 17);
    return true;
}

static bool read_bytes(reader *r, uint8_t *out, size_t bytes, const char *what) {
    size_t done = 0;
    while (done < bytes) {
        size_t part = bytes - done < 1 << 24 ? bytes - done : 1 << 24;
        int got = gzread(r->file, out + done, (unsigned)part);
        if (got < 0)
            return complain(r, "damaged: zlib cannot decompress it");
        if (got == 0)
            return complain(r, "truncated: %zu bytes of %s promised, %zu found", bytes, what, done);
        done += (size_t)got;
    }
    return true;
}

static bool read_word(reader *r, uint32_t *out) {
    uint8_t b[4];
    if (!read_bytes(r, b, 4, "header"))
        return false;
    *out = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    return true;
}

static bool read_header(reader *r, uint32_t magic, uint32_t *count) {
    uint32_t found, side[2] = {IDX_SIDE, IDX_SIDE};
    if (!read_word(r, &found) || !read_word(r, count))
        return false;
    if (found != magic)
        return complain(r, "not the IDX file expected here: its magic is 0x%08x, not 0x%08x", found,
                        magic);
    if (*count == 0 || *count > MAX_ITEMS)
        return complain(r, "claims %u items; 1 to %d are allowed", *count, MAX_ITEMS);
    if (magic == MAGIC_IMAGES && (!read_word(r, &side[0]) || !read_word(r, &side[1])))
        return false;
    if (side[0] != IDX_SIDE || side[1] != IDX_SIDE)
        return complain(r, "images of %u x %u; this model takes %d x %d", side[0], side[1],
                        IDX_SIDE, IDX_SIDE);
    return true;
}

/* Read the *count items of a file. gzread checks the CRC at the end. */
static bool read_items(reader *r, uint32_t magic, size_t item, uint32_t *count, uint8_t **out) {
    uint8_t extra;
    if (!read_header(r, magic, count))
        return false;
    uint8_t *items = malloc(*count * item);
    if (!items)
        return complain(r, "no memory for %zu bytes", *count * item);
    if (!read_bytes(r, items, *count * item, "items"))
        goto free_items;
    int more = gzread(r->file, &extra, 1);
    if (more != 0) {
        complain(r, more > 0 ? "longer than its header says" : "damaged: its checksum is wrong");
        goto free_items;
    }
    *out = items;
    return true;

free_items:
    free(items);
    return false;
}

static bool read_file(reader *r, const char *dir, const char *name, uint32_t magic, uint32_t *count,
                      uint8_t **out) {
    bool images = magic == MAGIC_IMAGES;
    char file[128];
    snprintf(file, sizeof file, "%s-%s-ubyte", name, images ? "images-idx3" : "labels-idx1");
    if (!open_either(r, dir, file))
        return false;
    bool ok = read_items(r, magic, images ? IDX_PIXELS : 1, count, out);
    gzclose(r->file);
    return ok;
}

static void idx_free(idx_set *set) {
    free(set->images);
    free(set->labels);
}

static bool idx_load(const char *dir, const char *name, idx_set *out, char *error,
                     size_t error_size) {
    reader r = {NULL, "", error, error_size};
    idx_set set = {0, NULL, NULL};
    uint32_t images, labels;
    if (!read_file(&r, dir, name, MAGIC_IMAGES, &images, &set.images) ||
        !read_file(&r, dir, name, MAGIC_LABELS, &labels, &set.labels))
        goto free_set;
    if (images != labels) {
        complain(&r, "%u labels for %u images", labels, images);
        goto free_set;
    }
    for (uint32_t i = 0; i < labels; i++) {
        if (set.labels[i] >= IDX_CLASSES) {
            complain(&r, "label %u is %u; 0 to %d are allowed", i, set.labels[i], IDX_CLASSES - 1);
            goto free_set;
        }
    }
    set.count = images;
    *out = set;
    return true;

free_set:
    idx_free(&set);
    return false;
}

bool images_load(const train_settings *settings, workload_data *out, char *error, size_t size) {
    idx_set *sets = bench_alloc(2, sizeof *sets);
    if (!idx_load(settings->data, "train", &sets[WORKLOAD_TRAIN], error, size))
        goto free_sets;
    if (!idx_load(settings->data, "t10k", &sets[WORKLOAD_VALIDATE], error, size))
        goto free_train;
    *out = (workload_data){.count = {sets[0].count, sets[1].count}, .content = sets};
    return true;

free_train:
    idx_free(&sets[WORKLOAD_TRAIN]);
free_sets:
    free(sets);
    return false;
}

void images_unload(workload_data *data) {
    idx_set *sets = data->content;
    idx_free(&sets[WORKLOAD_VALIDATE]);
    idx_free(&sets[WORKLOAD_TRAIN]);
    free(sets);
}

const idx_set *images_set(const workload_data *data, workload_set set) {
    return (const idx_set *)data->content + set;
}

uint64_t images_hash(const workload_data *data) {
    uint64_t sum = 0;
    for (int i = WORKLOAD_TRAIN; i <= WORKLOAD_VALIDATE; i++) {
        const idx_set *set = images_set(data, (workload_set)i);
        sum = XXH3_64bits_withSeed(set->images, set->count * IDX_PIXELS, sum);
        sum = XXH3_64bits_withSeed(set->labels, set->count, sum);
    }
    return sum;
}

void images_score(const float *scores, const uint8_t *labels, size_t rows, workload_score *sums) {
    for (size_t r = 0; r < rows; r++, scores += IDX_CLASSES) {
        sums->correct += scores_best(scores, IDX_CLASSES) == labels[r];
        sums->loss += scores_loss(scores, IDX_CLASSES, labels[r]);
    }
}

double images_loss(float *scores, const uint8_t *labels, size_t rows) {
    double sum = 0.0;
    for (size_t r = 0; r < rows; r++, scores += IDX_CLASSES)
        sum += scores_gradient(scores, IDX_CLASSES, labels[r], rows);
    return sum / (double)rows;
}
