/* SPDX-License-Identifier: MIT */
#include "bench/train/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <xxhash.h>

#include "bench/common/measure.h"
#include "bench/train/files.h"

/* The parts that follow the header, in this order. An absent part has 0 bytes. */
enum {
    PARAMS,
    OPTIMIZER,
    CONTROL = OPTIMIZER + OPTIMIZER_STATES,
    RESIDUAL,
    MOMENTS,
    LOCAL = MOMENTS + 2,
    PARTS
};

/* In the machine's byte order; a machine with the other order refuses it by `bytes`. */
typedef struct state_header {
    char magic[8];
    uint64_t bytes; /* of this header, so that readers find what follows */
    uint64_t step, seed, batch, optimizer, reduce, rank, nranks;
    uint64_t workload, model;      /* XXH3 of the name; XXH3 of segments and identity */
    uint64_t passes;               /* that made the moments */
    uint64_t parts[PARTS];         /* bytes */
    tamis_energy_totals joules;    /* of all ranks so far */
    uint64_t data;                 /* trainer_data_hash */
    char data_name[WORKLOAD_NAME]; /* for sentences */
    uint64_t checksum;             /* XXH3 of all else */
} state_header;

/* The parameters and the optimizer's state are the trainer's own. */
typedef struct state {
    state_header header;
    void *parts[PARTS];
} state;

static const char magic[8] = "TAMTRN9";

/* -- a state ---------------------------------------------------------------------------------- */

/* A hash of all that gives a parameter its meaning: segment lengths and names, identity. */
static uint64_t model_of(const trainer *t) {
    const workload *w = &t->work;
    uint64_t sum = w->identity;
    for (size_t i = 0; i < w->nsegments; i++) {
        sum = XXH3_64bits_withSeed(w->names[i], strlen(w->names[i]), sum);
        sum = XXH3_64bits_withSeed(&w->segments[i].length, sizeof w->segments[i].length, sum);
    }
    return sum;
}

static void size_parts(const trainer *t, uint64_t *parts) {
    uint64_t bytes = t->work.length * sizeof(float);
    tamis_update update = optimizer_as_update(t->settings);
    bool moments = t->settings->reduce == TRAIN_UPDATE, adam = update.rule == TAMIS_UPDATE_ADAM;
    size_t control, local = 0;
    bench_try(t->group, tamis_reducer_control_bytes(t->reducer, &control), "size of a state");
    if (t->local.handle)
        bench_try(t->group, tamis_local_bytes(t->local.handle, &local), "size of local steps");
    parts[PARAMS] = bytes;
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        parts[OPTIMIZER + i] = bytes;
    parts[CONTROL] = control;
    parts[RESIDUAL] = t->dense ? 0 : bytes;
    parts[MOMENTS] = moments && (!adam || update.beta1 > 0.0) ? bytes : 0;
    parts[MOMENTS + 1] = moments && adam ? bytes : 0;
    parts[LOCAL] = local;
}

/* What a state of this run would have now, without joules, passes and checksum. */
static state_header header_of(const trainer *t) {
    const char *kind = t->work.kind->name;
    state_header h;
    memset(&h, 0, sizeof h); /* with what lies between members, as all of it is hashed */
    memcpy(h.magic, magic, sizeof magic);
    h.bytes = sizeof h;
    h.step = t->step;
    h.seed = t->settings->seed;
    h.batch = t->settings->batch;
    h.optimizer = (uint64_t)t->settings->optimizer;
    h.reduce = (uint64_t)t->settings->reduce;
    h.rank = t->group->rank;
    h.nranks = t->group->nranks;
    h.workload = XXH3_64bits(kind, strlen(kind));
    h.model = model_of(t);
    h.data = trainer_data_hash(t);
    memcpy(h.data_name, t->data->name, sizeof h.data_name);
    size_parts(t, h.parts);
    return h;
}

static void state_open(trainer *t, const state_header *h, state *out) {
    *out = (state){.header = *h};
    out->parts[PARAMS] = t->params;
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        out->parts[OPTIMIZER + i] = t->optimizer.states[i];
    for (int i = CONTROL; i < PARTS; i++)
        out->parts[i] = h->parts[i] ? bench_alloc(h->parts[i], 1) : NULL;
}

static void state_close(state *s) {
    for (int i = CONTROL; i < PARTS; i++)
        free(s->parts[i]);
}

static uint64_t checksum_of(const state *s) {
    uint64_t sum = XXH3_64bits(&s->header, offsetof(state_header, checksum));
    for (int i = 0; i < PARTS; i++)
        sum = XXH3_64bits_withSeed(s->parts[i], s->header.parts[i], sum);
    return sum;
}

static void file_name(trainer *t, const char *prefix, char out[1024]) {
    int length = snprintf(out, 1024, "%s.rank%u.state", prefix, t->group->rank);
    if (length < 0 || length >= 1024 - (int)sizeof ".part")
        bench_fail(t->group, "the path %s is too long", prefix);
}

/* -- save ------------------------------------------------------------------------------------- */

/* Local steps first: an exchange under way ends with this, and may move the parameters. */
static void take_reducer(trainer *t, state *s) {
    tamis_reducer *r = t->reducer;
    state_header *h = &s->header;
    if (s->parts[LOCAL])
        bench_try(t->group, tamis_local_save(t->local.handle, s->parts[LOCAL], h->parts[LOCAL]),
                  "local steps");
    if (s->parts[RESIDUAL])
        bench_try(t->group, tamis_reducer_save_residual(r, s->parts[RESIDUAL]), "residual");
    if (t->settings->reduce == TRAIN_UPDATE)
        bench_try(
            t->group,
            tamis_reducer_save_moments(r, s->parts[MOMENTS], s->parts[MOMENTS + 1], &h->passes),
            "moments");
    bench_try(t->group, tamis_reducer_save_control(r, s->parts[CONTROL], h->parts[CONTROL]),
              "thresholds");
}

static void save(trainer *t, const char *prefix) {
    char path[1024];
    files_piece pieces[PARTS + 1];
    files_why why;
    state_header h = header_of(t);
    state s;
    file_name(t, prefix, path);
    state_open(t, &h, &s);
    take_reducer(t, &s);
    bench_energy_totals(&t->energy, &s.header.joules);
    s.header.checksum = checksum_of(&s);
    pieces[0] = (files_piece){&s.header, sizeof s.header};
    for (int i = 0; i < PARTS; i++)
        pieces[i + 1] = (files_piece){s.parts[i], h.parts[i]};
    if (!files_write(path, pieces, PARTS + 1, &why))
        bench_fail(t->group, "%.480s", why.text);
    state_close(&s);
}

void checkpoint_check(trainer *t) {
    char path[1024];
    files_why why;
    const char *prefix = t->settings->save;
    if (!prefix)
        return;
    file_name(t, prefix, path);
    if (!files_try(path, &why))
        bench_fail(t->group, "--save %s: %.400s", prefix, why.text);
}

void checkpoint_step(trainer *t) {
    const train_settings *s = t->settings;
    char prefix[1024];
    if (s->save_every == 0 || t->step % s->save_every != 0 || t->step == t->steps)
        return;
    snprintf(prefix, sizeof prefix, "%s.step%llu", s->save, (unsigned long long)t->step);
    save(t, prefix);
}

void checkpoint_end(trainer *t) {
    if (t->settings->save)
        save(t, t->settings->save);
}

/* -- load ------------------------------------------------------------------------------------- */

/* The control part is left to the library, which checks it better. */
static bool same_parts(const state_header *a, const state_header *b) {
    for (int i = 0; i < PARTS; i++) {
        if (i != CONTROL && a->parts[i] != b->parts[i])
            return false;
    }
    return true;
}

static const char *other_ranks(const state_header *found) {
    static _Thread_local char text[160];
    snprintf(text, sizeof text,
             "it is of rank %llu of %llu with --batch %llu; go on with as many ranks and the same "
             "--batch, each from its own file",
             (unsigned long long)found->rank, (unsigned long long)found->nranks,
             (unsigned long long)found->batch);
    return text;
}

static const char *other_data(const state_header *found, const state_header *wanted) {
    static _Thread_local char text[300];
    snprintf(text, sizeof text,
             "it belongs to other data: to \"%.*s\" with data_hash %016llx, but --data is \"%.*s\" "
             "with data_hash %016llx; give the data that it was trained on",
             WORKLOAD_NAME, found->data_name, (unsigned long long)found->data, WORKLOAD_NAME,
             wanted->data_name, (unsigned long long)wanted->data);
    return text;
}

/* Why a run of `wanted` cannot go on from `found`; NULL: it can. */
static const char *difference(const state_header *found, const state_header *wanted) {
    if (memcmp(found->magic, wanted->magic, 6) != 0)
        return "it is not the state of a run";
    if (memcmp(found->magic, wanted->magic, sizeof magic) != 0 || found->bytes != wanted->bytes)
        return "it was written by another version of this program, in another format";
    return found->workload != wanted->workload ? "its --workload differs"
           : found->seed != wanted->seed       ? "its --seed differs"
           : found->nranks != wanted->nranks || found->batch != wanted->batch ||
                   found->rank != wanted->rank
               ? other_ranks(found)
           : found->data != wanted->data ? other_data(found, wanted)
           : found->parts[PARAMS] != wanted->parts[PARAMS] || found->model != wanted->model
               ? "its model has another shape, or other characters"
           : found->optimizer != wanted->optimizer ? "its --optimizer differs"
           : found->reduce != wanted->reduce       ? "its --reduce differs"
           : !same_parts(found, wanted) ? "its --scheme, --beta1 or local steps keep other vectors"
                                        : NULL;
}

static const char *read_header(trainer *t, FILE *file, state_header *out) {
    state_header wanted = header_of(t);
    if (fread(out, sizeof *out, 1, file) != 1)
        return "it is truncated";
    const char *why = difference(out, &wanted);
    uint64_t bytes = out->bytes;
    for (int i = 0; i < PARTS; i++)
        bytes += out->parts[i];
    if (!why && (fseek(file, 0, SEEK_END) != 0 || (uint64_t)ftell(file) != bytes))
        why = "it is truncated or has extra data at its end";
    return why ? why : fseek(file, (long)out->bytes, SEEK_SET) ? strerror(errno) : NULL;
}

/* @return why that failed, or NULL */
static const char *read_state(trainer *t, FILE *file, state *out) {
    state_header h;
    bool whole = true;
    const char *why = read_header(t, file, &h);
    if (why)
        return why;
    state_open(t, &h, out);
    for (int i = 0; i < PARTS; i++)
        whole = whole && fread(out->parts[i], 1, h.parts[i], file) == h.parts[i];
    return whole && checksum_of(out) == h.checksum ? NULL : "it is damaged";
}

static void give_reducer(trainer *t, const state *s) {
    tamis_reducer *r = t->reducer;
    const state_header *h = &s->header;
    bench_try(
        t->group,
        tamis_reducer_load_memory(r, s->parts[CONTROL], h->parts[CONTROL], s->parts[RESIDUAL]),
        "cannot load the state of the reducer");
    if (t->settings->reduce == TRAIN_UPDATE)
        bench_try(
            t->group,
            tamis_reducer_load_moments(r, s->parts[MOMENTS], s->parts[MOMENTS + 1], h->passes),
            "cannot load the moments");
    if (!t->local.handle)
        return;
    bench_try(t->group, tamis_local_load(t->local.handle, s->parts[LOCAL], h->parts[LOCAL]),
              "cannot load the local steps");
    local_steps_resume(&t->local);
}

void checkpoint_load(trainer *t) {
    const char *prefix = t->settings->load;
    char path[1024];
    state s;
    if (!prefix)
        return;
    file_name(t, prefix, path);
    FILE *file = fopen(path, "rb");
    if (!file)
        bench_fail(t->group, "cannot read %s: %s", path, strerror(errno));
    const char *why = read_state(t, file, &s);
    fclose(file);
    if (why)
        bench_fail(t->group, "cannot resume from %s: %s", path, why);
    if (!bench_same(t->group, s.header.step))
        bench_fail(t->group, "files of %s are of different steps", prefix);
    give_reducer(t, &s);
    bench_energy_resume(&t->energy, &s.header.joules);
    t->step = s.header.step;
    state_close(&s);
}
