/* SPDX-License-Identifier: MIT
 *
 * The library saves the residual; parameters, the state of the
 * optimizer and the joules so far are the program's own.
 * A crash between the two writes of a rank would leave files of two steps under one name, so use a
 * new prefix for each save that must not be lost.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "bench/train/trainer.h"

static const char magic[8] = "TAMTRN4";

/* In the byte order of the machine; on another, `length` would not fit. */
typedef struct header {
    char magic[8];
    uint64_t length, step, seed, batch, optimizer, reduce, rank, nranks;
    uint64_t workload, model;   /* XXH3 of its name; of segments and identity */
    uint64_t checksum;          /* XXH3 of what follows and of the joules */
    tamis_energy_totals joules; /* of all ranks until then */
} header;

/* Lengths and names of the segments, and what else says what a parameter means. */
static uint64_t model_of(const workload *w) {
    uint64_t sum = w->identity;
    for (size_t i = 0; i < w->nsegments; i++) {
        sum = XXH3_64bits_withSeed(w->names[i], strlen(w->names[i]), sum);
        sum = XXH3_64bits_withSeed(&w->segments[i].length, sizeof w->segments[i].length, sum);
    }
    return sum;
}

static header expected(const trainer *t) {
    const char *kind = t->work.kind->name;
    header h = {
        .workload = XXH3_64bits(kind, strlen(kind)),
        .model = model_of(&t->work),
        .length = t->work.length,
        .step = t->step,
        .seed = t->settings->seed,
        .batch = t->settings->batch,
        .optimizer = (uint64_t)t->settings->optimizer,
        .reduce = (uint64_t)t->settings->reduce,
        .rank = t->group->rank,
        .nranks = t->group->nranks,
    };
    memcpy(h.magic, magic, sizeof magic);
    return h;
}

static uint64_t checksum(const trainer *t, const header *h) {
    size_t bytes = t->work.length * sizeof(float);
    uint64_t sum = XXH3_64bits(&h->joules, sizeof h->joules);
    sum = XXH3_64bits_withSeed(t->params, bytes, sum);
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        sum = XXH3_64bits_withSeed(t->optimizer.states[i], bytes, sum);
    return sum;
}

static void file_name(trainer *t, const char *prefix, const char *end, char out[1024]) {
    int length = snprintf(out, 1024, "%s.rank%u.%s", prefix, t->group->rank, end);
    if (length < 0 || length >= 1024)
        bench_fail(t->group, "the path %s is too long", prefix);
}

static bool write_model(trainer *t, const tamis_energy_totals *joules, const char *path) {
    size_t n = t->work.length;
    header h = expected(t);
    h.joules = *joules;
    h.checksum = checksum(t, &h);
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool ok = fwrite(&h, sizeof h, 1, file) == 1 && fwrite(t->params, sizeof(float), n, file) == n;
    for (size_t i = 0; ok && i < t->optimizer.nstates; i++)
        ok = fwrite(t->optimizer.states[i], sizeof(float), n, file) == n;
    return fclose(file) == 0 && ok;
}

void trainer_save(trainer *t, const char *prefix) {
    char path[1024], partial[1024];
    tamis_energy_totals joules;
    bench_energy_totals(&t->energy, &joules);
    file_name(t, prefix, "model", path);
    file_name(t, prefix, "model.part", partial);
    if (!write_model(t, &joules, partial) || rename(partial, path) != 0)
        bench_fail(t->group, "cannot write %s: %s", path, strerror(errno));
    file_name(t, prefix, "residual", path);
    bench_try(t->group, tamis_reducer_save(t->reducer, path), "cannot save the residual");
}

static const char *difference(const header *found, const header *wanted) {
    return memcmp(found->magic, wanted->magic, sizeof magic) != 0 ? "it is no model file"
           : found->workload != wanted->workload                  ? "its --workload differs"
           : found->length != wanted->length || found->model != wanted->model
               ? "its model has another shape, or was made for other data"
           : found->seed != wanted->seed           ? "its --seed differs"
           : found->batch != wanted->batch         ? "its --batch differs"
           : found->optimizer != wanted->optimizer ? "its --optimizer differs"
           : found->reduce != wanted->reduce       ? "its --reduce differs"
           : found->nranks != wanted->nranks       ? "its number of ranks differs"
           : found->rank != wanted->rank           ? "it is of another rank"
                                                   : NULL;
}

static const char *read_model(trainer *t, FILE *file) {
    size_t n = t->work.length;
    header found, wanted = expected(t);
    if (fread(&found, sizeof found, 1, file) != 1)
        return "it is truncated";
    const char *why = difference(&found, &wanted);
    if (why)
        return why;
    bool whole = fread(t->params, sizeof(float), n, file) == n;
    for (size_t i = 0; whole && i < t->optimizer.nstates; i++)
        whole = fread(t->optimizer.states[i], sizeof(float), n, file) == n;
    if (!whole)
        return "it is truncated";
    if (fgetc(file) != EOF || checksum(t, &found) != found.checksum)
        return "it is damaged";
    bench_energy_resume(&t->energy, &found.joules);
    t->step = found.step;
    return NULL;
}

void trainer_load(trainer *t, const char *prefix) {
    char path[1024];
    file_name(t, prefix, "model", path);
    FILE *file = fopen(path, "rb");
    if (!file)
        bench_fail(t->group, "cannot read %s: %s", path, strerror(errno));
    const char *why = read_model(t, file);
    fclose(file);
    if (why)
        bench_fail(t->group, "cannot go on from %s: %s", path, why);
    if (!bench_same(t->group, t->step))
        bench_fail(t->group, "%s is of step %llu, files of other ranks are not", path,
                   (unsigned long long)t->step);
    file_name(t, prefix, "residual", path);
    bench_try(t->group, tamis_reducer_load(t->reducer, path), "cannot load the residual");
}
