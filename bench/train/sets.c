/* SPDX-License-Identifier: MIT */
#include "bench/train/sets.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "bench/common/measure.h"

static const char first_line[] = "tamis_train set 1\n";

/* -- names ------------------------------------------------------------------------------------ */

#define STEP "step%012" PRIu64

bool sets_prefix(const char *folder, uint64_t step, char out[SETS_PATH]) {
    return snprintf(out, SETS_PATH, "%s/" STEP, folder, step) < SETS_PATH;
}

bool sets_file(const char *folder, uint64_t step, uint32_t rank, char out[SETS_PATH]) {
    return snprintf(out, SETS_PATH, "%s/" STEP ".rank%" PRIu32 ".state", folder, step, rank) <
           SETS_PATH;
}

static bool name_manifest(const char *folder, uint64_t step, char out[SETS_PATH]) {
    return snprintf(out, SETS_PATH, "%s/" STEP ".set", folder, step) < SETS_PATH;
}

/* What a file of a set is called must be what this program would call it. */
typedef struct name_parts {
    uint64_t step;
    bool manifest; /* a whole one */
} name_parts;

static bool parse_name(const char *name, name_parts *out) {
    uint32_t rank;
    int end = 0;
    *out = (name_parts){0};
    if (sscanf(name, "step%12" SCNu64 "%n", &out->step, &end) != 1 || end != 16)
        return false;
    const char *rest = name + end;
    out->manifest = strcmp(rest, ".set") == 0;
    if (out->manifest || strcmp(rest, ".set.part") == 0)
        return true;
    end = 0;
    if (sscanf(rest, ".rank%" SCNu32 ".state%n", &rank, &end) != 1 || end == 0)
        return false;
    return rest[end] == '\0' || strcmp(rest + end, ".part") == 0;
}

/* -- manifest --------------------------------------------------------------------------------- */

static void print_manifest(const sets_manifest *m, FILE *out) {
    fputs(first_line, out);
    fprintf(out, "step %" PRIu64 " ranks %" PRIu64 " data_hash %016" PRIx64 "\n", m->step,
            m->nranks, m->data_hash);
    for (uint64_t r = 0; r < m->nranks; r++)
        fprintf(out,
                "rank %" PRIu64 " bytes %" PRIu64 " hash %016" PRIx64 " file " STEP ".rank%" PRIu64
                ".state\n",
                r, m->entries[r].bytes, m->entries[r].hash, m->step, r);
}

bool sets_write_manifest(const char *folder, const sets_manifest *m, files_why *why) {
    char path[SETS_PATH], end[40], *text = NULL;
    size_t length = 0;
    FILE *memory = open_memstream(&text, &length);
    bool fits = name_manifest(folder, m->step, path), printed = false;
    if (memory) {
        print_manifest(m, memory);
        printed = fclose(memory) == 0;
    }
    if (!printed || !fits) {
        snprintf(why->text, sizeof why->text, "cannot write the manifest of step %" PRIu64 ": %s",
                 m->step, fits ? "no memory" : "its path is too long");
        free(text);
        return false;
    }
    snprintf(end, sizeof end, "checksum %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, length));
    const files_piece pieces[] = {{text, length}, {end, strlen(end)}};
    bool ok = files_write(path, pieces, 2, why);
    free(text);
    return ok;
}

/* Read a whole file as text. @return NULL: it cannot be read */
static char *read_text(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t capacity = 1 << 16, used = 0;
    for (bool more = file != NULL; more; capacity *= 2) {
        char *grown = realloc(text, capacity + 1);
        if (!grown)
            break;
        text = grown;
        used += fread(text + used, 1, capacity - used, file);
        more = used == capacity && capacity < (size_t)1 << 30;
    }
    if (file)
        fclose(file);
    if (text)
        text[used] = '\0';
    *length = used;
    return text;
}

/* Where the last line begins, if its checksum is that of all before; else NULL. */
static const char *check_text(const char *text, size_t length) {
    static const size_t line = sizeof "checksum 0123456789abcdef"; /* with its newline */
    uint64_t sum;
    if (length < line || sscanf(text + length - line, "checksum %16" SCNx64, &sum) != 1)
        return NULL;
    return sum == XXH3_64bits(text, length - line) ? text + length - line : NULL;
}

static const char *next_line(const char *at, const char *end) {
    const char *newline = memchr(at, '\n', (size_t)(end - at));
    return newline ? newline + 1 : end;
}

/* A text whose checksum is right, so that what is wrong in it was written so. */
static bool parse_manifest(const char *text, const char *end, uint64_t step, sets_manifest *out) {
    const char *at = text + strlen(first_line);
    if (strncmp(text, first_line, strlen(first_line)) != 0 ||
        sscanf(at, "step %" SCNu64 " ranks %" SCNu64 " data_hash %" SCNx64, &out->step,
               &out->nranks, &out->data_hash) != 3)
        return false;
    if (out->step != step || out->nranks == 0 || out->nranks > (uint64_t)(end - text) / 16)
        return false;
    out->entries = bench_alloc(out->nranks, sizeof *out->entries);
    for (uint64_t r = 0, rank; r < out->nranks; r++) {
        at = next_line(at, end);
        if (at >= end ||
            sscanf(at, "rank %" SCNu64 " bytes %" SCNu64 " hash %" SCNx64, &rank,
                   &out->entries[r].bytes, &out->entries[r].hash) != 3 ||
            rank != r)
            return false;
    }
    return true;
}

bool sets_read_manifest(const char *folder, uint64_t step, sets_manifest *out, files_why *why) {
    char path[SETS_PATH], *text = NULL;
    size_t length = 0;
    *out = (sets_manifest){0};
    errno = ENAMETOOLONG;
    if (name_manifest(folder, step, path))
        text = read_text(path, &length);
    if (!text) {
        snprintf(why->text, sizeof why->text, "cannot read %.1000s: %s", path, strerror(errno));
        return false;
    }
    const char *end = check_text(text, length);
    bool ok = end && parse_manifest(text, end, step, out);
    free(text);
    if (ok)
        return true;
    free(out->entries);
    out->entries = NULL;
    snprintf(why->text, sizeof why->text, "its manifest %.1000s is damaged", path);
    return false;
}

/* -- folders ---------------------------------------------------------------------------------- */

static int by_step(const void *a, const void *b) {
    const sets_found *x = a, *y = b;
    return x->step < y->step ? 1 : x->step > y->step ? -1 : (int)y->manifest - (int)x->manifest;
}

/* Keep one of each step, with a manifest if any has. */
static size_t merge(sets_found *all, size_t count) {
    size_t kept = 0;
    qsort(all, count, sizeof *all, by_step);
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || all[kept - 1].step != all[i].step)
            all[kept++] = all[i];
    }
    return kept;
}

sets_found *sets_list(const char *folder, size_t *count) {
    DIR *dir = opendir(folder);
    sets_found *all = NULL;
    size_t used = 0, capacity = 0;
    name_parts name;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!parse_name(e->d_name, &name))
            continue;
        if (used == capacity) {
            capacity = capacity ? 2 * capacity : 64;
            sets_found *grown = realloc(all, capacity * sizeof *all);
            if (!grown)
                break;
            all = grown;
        }
        all[used++] = (sets_found){name.step, name.manifest};
    }
    if (dir)
        closedir(dir);
    *count = all ? merge(all, used) : 0;
    return all;
}

uint64_t sets_newest(const char *folder) {
    size_t count;
    sets_found *all = sets_list(folder, &count);
    uint64_t step = SETS_NONE;
    for (size_t i = count; i-- > 0;)
        step = all[i].manifest ? all[i].step : step;
    free(all);
    return step;
}

static void remove_files(const char *folder, uint64_t step, bool manifests) {
    DIR *dir = opendir(folder);
    char path[SETS_PATH];
    name_parts name;
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (!parse_name(e->d_name, &name) || name.step >= step || name.manifest != manifests)
            continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, e->d_name) < (int)sizeof path)
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

void sets_remove_before(const char *folder, uint64_t step) {
    remove_files(folder, step, true);
    remove_files(folder, step, false);
}

/* -- choice ----------------------------------------------------------------------------------- */

/* This rank's share of the files of a set. */
static bool check_share(bench_group *group, const char *folder, uint64_t step, files_why *why) {
    sets_manifest m;
    char path[SETS_PATH];
    bool ok = sets_read_manifest(folder, step, &m, why);
    for (uint64_t r = group->rank; ok && r < m.nranks; r += group->nranks) {
        ok = sets_file(folder, step, (uint32_t)r, path);
        ok = ok && files_check(path, m.entries[r].bytes, m.entries[r].hash, why);
    }
    free(m.entries);
    return ok;
}

static void tell_skipped(bench_group *group, const char *folder, uint64_t step, const char *why) {
    fprintf(stderr, "rank %u: the set of step %" PRIu64 " in %s is skipped: %s\n", group->rank,
            step, folder, why);
}

/* Whether all ranks found their shares undamaged; the first that did not says so. */
static bool check_set(bench_group *group, const char *folder, uint64_t step) {
    files_why why = {""};
    uint8_t mine = check_share(group, folder, step, &why);
    uint8_t *all = bench_alloc(group->nranks, sizeof *all);
    bench_allgather(group, &mine, sizeof mine, all);
    uint32_t bad = 0;
    while (bad < group->nranks && all[bad])
        bad++;
    free(all);
    if (bad == group->rank)
        tell_skipped(group, folder, step, why.text);
    return bad == group->nranks;
}

/* What rank 0 sees, for all. */
static uint64_t of_first(bench_group *group, uint64_t value) {
    uint64_t *all = bench_alloc(group->nranks, sizeof *all);
    bench_allgather(group, &value, sizeof value, all);
    value = all[0];
    free(all);
    return value;
}

uint64_t sets_choose(bench_group *group, const char *folder) {
    size_t count = 0, at = 0;
    sets_found *all = group->rank == 0 ? sets_list(folder, &count) : NULL;
    uint64_t step;
    do {
        for (; at < count && !all[at].manifest; at++)
            tell_skipped(group, folder, all[at].step,
                         "it is not complete: it has no manifest, as its run ended before all "
                         "states were written");
        step = of_first(group, at < count ? all[at].step : SETS_NONE);
        at++;
    } while (step != SETS_NONE && !check_set(group, folder, step));
    free(all);
    return step;
}
