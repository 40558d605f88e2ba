/* SPDX-License-Identifier: MIT
 *
 * Events between steps: another density, saving and restoring, and misuse that must be refused and
 * change nothing.
 */
#include "tests/fuzz/property/worker.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <unistd.h>

static uint64_t held_length(const tamis_reducer *r) {
    uint64_t held = 0;
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(r); i++) {
        tamis_bucket b = TAMIS_BUCKET_INIT;
        if (tamis_reducer_bucket_at(r, i, &b) == TAMIS_OK)
            held += b.residual_length;
    }
    return held;
}

static bool renew(worker *w) {
    tamis_reducer_destroy(w->reducer);
    w->reducer = w->team->reducers[w->rank] = NULL;
    if (!GIVES(w, TAMIS_OK, trial_reducer(w->team, w->rank, &w->reducer)))
        return false;
    w->team->reducers[w->rank] = w->reducer;
    return true;
}

typedef struct saved {
    size_t bytes;
    void *control;
    float *residual, *first, *second;
    uint64_t passes;
    bool has_residual;
} saved;

static bool save_parts(worker *w, saved *s) {
    bool moments = w->c->updates;
    if (!GIVES(w, TAMIS_OK, tamis_reducer_save_control(w->reducer, s->control, s->bytes)) ||
        !GIVES(w, s->has_residual ? TAMIS_OK : TAMIS_E_UNSUPPORTED,
               tamis_reducer_save_residual(w->reducer, s->residual)))
        return false;
    return !moments ||
           GIVES(w, TAMIS_OK,
                 tamis_reducer_save_moments(w->reducer, fuzz_has_first(w->c) ? s->first : NULL,
                                            fuzz_has_second(w->c) ? s->second : NULL, &s->passes));
}

static bool restore_parts(worker *w, const saved *s) {
    if (!GIVES(w, TAMIS_OK,
               tamis_reducer_load_memory(w->reducer, s->control, s->bytes,
                                         s->has_residual ? s->residual : NULL)))
        return false;
    return !w->c->updates ||
           GIVES(w, TAMIS_OK,
                 tamis_reducer_load_moments(w->reducer, fuzz_has_first(w->c) ? s->first : NULL,
                                            fuzz_has_second(w->c) ? s->second : NULL, s->passes));
}

/* Damage must be refused, and change nothing. */
static bool try_damaged(worker *w, saved *s) {
    unsigned char *byte = (unsigned char *)s->control + worker_roll(w, (uint32_t)s->bytes);
    unsigned char bit = (unsigned char)(1u << worker_roll(w, 8));
    *byte ^= bit;
    bool refused = GIVES(w, TAMIS_E_FORMAT,
                         tamis_reducer_load_memory(w->reducer, s->control, s->bytes,
                                                   s->has_residual ? s->residual : NULL));
    *byte ^= bit;
    return refused;
}

static bool save_and_restore(worker *w) {
    const float *residual;
    saved s = {0};
    size_t bytes = (size_t)held_length(w->reducer) * sizeof(float) + 1;
    if (!GIVES(w, TAMIS_OK, tamis_reducer_residual(w->reducer, &residual)) ||
        !GIVES(w, TAMIS_OK, tamis_reducer_control_bytes(w->reducer, &s.bytes)))
        return false;
    s.has_residual = residual != NULL;
    s.control = malloc(s.bytes);
    s.residual = malloc(bytes);
    s.first = malloc(bytes);
    s.second = malloc(bytes);
    bool fine = s.control && s.residual && s.first && s.second && save_parts(w, &s) && renew(w) &&
                try_damaged(w, &s) && restore_parts(w, &s);
    free(s.control);
    free(s.residual);
    free(s.first);
    free(s.second);
    return fine;
}

static bool save_and_load(worker *w) {
    char path[256];
    const char *folder = getenv("FUZZ_FOLDER");
    snprintf(path, sizeof path, "%s/%d.%u", folder ? folder : ".", (int)getpid(), w->rank);
    bool fine = GIVES(w, TAMIS_OK, tamis_reducer_save(w->reducer, path)) && renew(w) &&
                GIVES(w, TAMIS_OK, tamis_reducer_load(w->reducer, path));
    unlink(path);
    return fine;
}

static bool put_residual(worker *w) {
    const float *residual;
    if (!GIVES(w, TAMIS_OK, tamis_reducer_residual(w->reducer, &residual)))
        return false;
    if (!residual)
        return true;
    size_t bytes = (size_t)held_length(w->reducer) * sizeof(float);
    float *copy = malloc(bytes + 1);
    bool fine = copy && GIVES(w, TAMIS_OK, tamis_reducer_save_residual(w->reducer, copy)) &&
                GIVES(w, TAMIS_OK, tamis_reducer_load_memory(w->reducer, NULL, 0, copy));
    free(copy);
    return fine;
}

/* Its density cannot change. */
static bool is_whole(const fuzz_case *c) {
    return fuzz_is(c, 3, "dense") || fuzz_is(c, 3, "quantized");
}

static bool misuse(worker *w) {
    tamis_step none = TAMIS_STEP_INIT, wrong = TAMIS_STEP_INIT;
    int done;
    wrong.grad = w->flat;
    wrong.scale = INFINITY;
    return GIVES(w, TAMIS_E_STATE, tamis_reducer_wait(w->reducer)) &&
           GIVES(w, TAMIS_E_STATE, tamis_reducer_test(w->reducer, &done)) &&
           GIVES(w, TAMIS_E_ARGUMENT, tamis_reducer_start(w->reducer, &none)) &&
           GIVES(w, TAMIS_E_ARGUMENT, tamis_reducer_start(w->reducer, &wrong)) &&
           GIVES(w, TAMIS_E_ARGUMENT, tamis_reducer_ready(w->reducer, w->c->nsegments, &wrong)) &&
           GIVES(w, is_whole(w->c) ? TAMIS_E_UNSUPPORTED : TAMIS_E_ARGUMENT,
                 tamis_reducer_set_density(w->reducer, 1.5));
}

/* Too few entries for the buckets are refused, on all ranks. */
static bool set_density(worker *w, const step_plan *plan) {
    tamis_status status = tamis_reducer_set_density(w->reducer, plan->density);
    common *all = &w->team->out->common[w->step];
    if (w->rank == 0 && status == TAMIS_OK)
        all->density = plan->density;
    if (is_whole(w->c))
        return worker_expect(w, TAMIS_E_UNSUPPORTED, status, "tamis_reducer_set_density");
    return status == TAMIS_E_ARGUMENT ||
           worker_expect(w, TAMIS_OK, status, "tamis_reducer_set_density");
}

bool worker_event(worker *w, const step_plan *plan) {
    if (plan->event == EVENT_NONE || (w->c->uninterrupted && plan->event != EVENT_DENSITY))
        return true;
    switch (plan->event) {
    case EVENT_DENSITY:
        return set_density(w, plan);
    case EVENT_MEMORY:
        return save_and_restore(w);
    case EVENT_FILE:
        return save_and_load(w);
    case EVENT_RESIDUAL:
        return put_residual(w);
    default:
        return misuse(w);
    }
}
