/* SPDX-License-Identifier: MIT */
#include "bench/train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/state.h>
#include <xxhash.h>

#include "bench/common/measure.h"

static const char magic[8] = "TAMTRN8";

/* A hash of all that gives a parameter its meaning: segment lengths and names, identity. */
static uint64_t model_of(const trainer *t) {
    const workload *w = &t->work;
    uint64_t sum = w->identity;
    if (t->apart)
        sum = XXH3_64bits_withSeed(t->apart, w->nsegments * sizeof t->apart[0], sum);
    for (size_t i = 0; i < w->nsegments; i++) {
        sum = XXH3_64bits_withSeed(w->names[i], strlen(w->names[i]), sum);
        sum = XXH3_64bits_withSeed(&w->segments[i].length, sizeof w->segments[i].length, sum);
    }
    return sum;
}

static void size_parts(const trainer *t, uint64_t *parts) {
    const train_settings *s = t->settings;
    uint64_t bytes = t->work.length * sizeof(float), held = t->exchange.length * sizeof(float);
    tamis_update update = optimizer_as_update(s);
    bool moments = s->reduce == TRAIN_UPDATE, adam = update.rule == TAMIS_UPDATE_ADAM;
    size_t control;
    bench_try(t->group, tamis_reducer_control_bytes(t->exchange.reducer, &control),
              "size of a state");
    size_t local = 0;
    if (t->local.handle)
        bench_try(t->group, tamis_local_bytes(t->local.handle, &local), "size of local steps");
    parts[STATE_LOCAL] = local;
    parts[STATE_PARAMS] = bytes;
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        parts[STATE_OPTIMIZER + i] = bytes;
    parts[STATE_CONTROL] = control;
    parts[STATE_RESIDUAL] = t->dense ? 0 : held;
    parts[STATE_MOMENTS] = moments && (!adam || update.beta1 > 0.0) ? held : 0;
    parts[STATE_MOMENTS + 1] = moments && adam ? held : 0;
}

state_header state_expected(const trainer *t) {
    const char *kind = t->work.kind->name;
    state_header h;
    memset(&h, 0, sizeof h); /* with what lies between members, as all of it is hashed */
    memcpy(h.magic, magic, sizeof magic);
    h.bytes = sizeof h;
    h.samples = t->group->nranks * t->settings->batch;
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
    h.origin = t->order.origin;
    memcpy(h.data_name, t->data->name, sizeof h.data_name);
    size_parts(t, h.parts);
    return h;
}

/* The control part is left to the library, which checks it better. */
static bool same_parts(const state_header *a, const state_header *b) {
    for (int i = 0; i < STATE_PARTS; i++) {
        if (i != STATE_CONTROL && a->parts[i] != b->parts[i])
            return false;
    }
    return true;
}

static const char *other_samples(const state_header *found) {
    static _Thread_local char text[200];
    snprintf(text, sizeof text,
             "it was saved by %llu ranks with --batch %llu; ranks times --batch must stay %llu to "
             "continue the order of samples, or give --elastic",
             (unsigned long long)found->nranks, (unsigned long long)found->batch,
             (unsigned long long)found->samples);
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

const char *state_difference(const state_header *found, const state_header *wanted) {
    if (memcmp(found->magic, wanted->magic, 6) != 0)
        return "it is not the state of a run";
    if (memcmp(found->magic, wanted->magic, sizeof magic) != 0 || found->bytes != wanted->bytes)
        return "it was written by another version of this program, in another format";
    return found->workload != wanted->workload ? "its --workload differs"
           : found->seed != wanted->seed       ? "its --seed differs"
           : found->samples != wanted->samples ? other_samples(found)
           : found->origin.together != found->samples || found->origin.step > found->step
               ? "it is damaged"
           : found->data != wanted->data ? other_data(found, wanted)
           : found->parts[STATE_PARAMS] != wanted->parts[STATE_PARAMS] ||
                   found->model != wanted->model
               ? "its model has another shape, or other dense segments, or other characters"
           : found->optimizer != wanted->optimizer ? "its --optimizer differs"
           : found->reduce != wanted->reduce       ? "its --reduce differs"
           : !same_parts(found, wanted) ? "its --scheme, --beta1 or local steps keep other vectors"
                                        : NULL;
}

void state_borrow(trainer *t, const state_header *h, state *out) {
    *out = (state){.header = *h};
    out->parts[STATE_PARAMS] = t->params;
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        out->parts[STATE_OPTIMIZER + i] = t->optimizer.states[i];
    for (int i = STATE_CONTROL; i < STATE_PARTS; i++)
        out->parts[i] = h->parts[i] ? bench_alloc(h->parts[i], 1) : NULL;
}

void state_return(state *s) {
    for (int i = STATE_CONTROL; i < STATE_PARTS; i++)
        free(s->parts[i]);
}

bool state_open(const trainer *t, state *out) {
    *out = (state){.header = state_expected(t)};
    for (int i = 0; i < STATE_PARTS; i++) {
        uint64_t bytes = out->header.parts[i];
        out->parts[i] = bytes ? malloc(bytes) : NULL;
        if (bytes && !out->parts[i]) {
            state_close(out);
            return false;
        }
        if (bytes)
            memset(out->parts[i], 1, bytes); /* pages are there before the first step */
    }
    return true;
}

void state_close(state *s) {
    for (int i = 0; i < STATE_PARTS; i++)
        free(s->parts[i]);
    *s = (state){0};
}

static void copy_model(const trainer *t, state *s) {
    memcpy(s->parts[STATE_PARAMS], t->params, s->header.parts[STATE_PARAMS]);
    for (size_t i = 0; i < t->optimizer.nstates; i++)
        memcpy(s->parts[STATE_OPTIMIZER + i], t->optimizer.states[i],
               s->header.parts[STATE_OPTIMIZER + i]);
}

/* Local steps first: an exchange under way ends with this. */
static void copy_reducer(trainer *t, state *s) {
    tamis_reducer *r = t->exchange.reducer;
    state_header *h = &s->header;
    if (s->parts[STATE_LOCAL])
        bench_try(t->group,
                  tamis_local_save(t->local.handle, s->parts[STATE_LOCAL], h->parts[STATE_LOCAL]),
                  "local steps");
    if (s->parts[STATE_RESIDUAL])
        bench_try(t->group, tamis_reducer_save_residual(r, s->parts[STATE_RESIDUAL]), "residual");
    if (t->settings->reduce == TRAIN_UPDATE)
        bench_try(t->group,
                  tamis_reducer_save_moments(r, s->parts[STATE_MOMENTS],
                                             s->parts[STATE_MOMENTS + 1], &h->passes),
                  "moments");
    bench_try(t->group,
              tamis_reducer_save_control(r, s->parts[STATE_CONTROL], h->parts[STATE_CONTROL]),
              "thresholds");
}

void state_copy(trainer *t, state *s) {
    s->header = state_expected(t);
    copy_reducer(t, s);
    copy_model(t, s);
}

uint64_t state_checksum(const state *s) {
    uint64_t sum = XXH3_64bits(&s->header, offsetof(state_header, checksum));
    for (int i = 0; i < STATE_PARTS; i++)
        sum = XXH3_64bits_withSeed(s->parts[i], s->header.parts[i], sum);
    return sum;
}

void state_pieces(const state *s, files_piece out[STATE_PIECES]) {
    out[0] = (files_piece){&s->header, sizeof s->header};
    for (int i = 0; i < STATE_PARTS; i++)
        out[i + 1] = (files_piece){s->parts[i], s->header.parts[i]};
}
