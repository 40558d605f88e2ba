/* SPDX-License-Identifier: MIT
 *
 * The steps of one rank: gradients in one of two forms, in the rank's own order, and a record of
 * the results. This file checks only what a rank sees alone: statuses, and gradients that must stay
 * unchanged or be cleared.
 */
#include "tests/fuzz/property/worker.h"

#include "lib/base/half.h"

#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <tamis/state.h>
#include <tamis/stats.h>

/* -- gradients -------------------------------------------------------------------------------- */

/* Each piece has its own allocation of exact size, for AddressSanitizer. */
static bool open_worker(worker *w) {
    w->values = malloc((size_t)w->n * sizeof(float));
    w->flat = malloc((size_t)w->n * w->element);
    w->before = malloc((size_t)w->n * w->element);
    bool fine = w->values && w->flat && w->before;
    for (uint32_t s = 0; s < w->c->nsegments; s++) {
        w->pieces[s] = malloc(w->c->lengths[s] * w->element);
        fine = fine && w->pieces[s];
    }
    return fine || worker_fail(w, "no memory for gradients");
}

static void close_worker(worker *w) {
    for (uint32_t s = 0; s < w->c->nsegments; s++)
        free(w->pieces[s]);
    free(w->before);
    free(w->flat);
    free(w->values);
}

static void copy_pieces(worker *w, unsigned char *flat, bool to_pieces) {
    for (uint32_t s = 0; s < w->c->nsegments; s++) {
        size_t bytes = w->c->lengths[s] * w->element;
        memcpy(to_pieces ? w->pieces[s] : flat, to_pieces ? flat : w->pieces[s], bytes);
        flat += bytes;
    }
}

/* A gradient in one of its two forms, and a copy of it. */
static tamis_step give_gradient(worker *w, uint32_t micro) {
    tamis_step step = TAMIS_STEP_INIT;
    bool pieces = !w->c->ordered && worker_roll(w, 2) == 0;
    fuzz_gradient(w->c, w->step, w->rank, micro, w->values);
    step.scale = fuzz_scale(w->c, w->step, w->rank, micro);
    tam_narrow(w->values, (size_t)w->n, w->c->config.grad_dtype, w->flat);
    memcpy(w->before, w->flat, (size_t)w->n * w->element);
    if (pieces)
        copy_pieces(w, w->flat, true);
    step.grad = pieces ? NULL : w->flat;
    step.grads = pieces ? w->pieces : NULL;
    return step;
}

static void fetch_gradient(worker *w, const tamis_step *step) {
    if (step->grads)
        copy_pieces(w, w->flat, false);
}

static bool is_cleared(const worker *w) {
    for (size_t i = 0; i < (size_t)w->n * w->element; i++) {
        if (w->flat[i])
            return false;
    }
    return true;
}

static bool accumulate(worker *w, uint32_t micro) {
    tamis_step step = give_gradient(w, micro);
    bool dense = w->c->config.output == TAMIS_OUTPUT_DENSE;
    if (!fuzz_accumulates(w->c))
        return GIVES(w, TAMIS_E_UNSUPPORTED, tamis_reducer_accumulate(w->reducer, &step));
    if (!GIVES(w, TAMIS_OK, tamis_reducer_accumulate(w->reducer, &step)))
        return false;
    fetch_gradient(w, &step);
    if (dense && !is_cleared(w))
        return worker_fail(w, "tamis_reducer_accumulate left something in the gradient");
    if (!dense && memcmp(w->flat, w->before, (size_t)w->n * w->element) != 0)
        return worker_fail(w, "tamis_reducer_accumulate with sparse output changed the gradient");
    return true;
}

/* -- a step ----------------------------------------------------------------------------------- */

static bool record_buckets(worker *w) {
    common *all = &w->team->out->common[w->step];
    if (w->rank != 0)
        return true;
    all->nbuckets = tamis_reducer_nbuckets(w->reducer);
    for (uint32_t i = 0; i < all->nbuckets; i++) {
        all->buckets[i] = (tamis_bucket)TAMIS_BUCKET_INIT;
        if (!GIVES(w, TAMIS_OK, tamis_reducer_bucket_at(w->reducer, i, &all->buckets[i])))
            return false;
    }
    return true;
}

/* Put the segments into an order of the rank's own. */
static void shuffle(worker *w, uint32_t *order) {
    for (uint32_t s = 0; s < w->c->nsegments; s++) {
        uint32_t at = worker_roll(w, s + 1);
        order[s] = order[at];
        order[at] = s;
    }
}

/* Another thread marks segments while this one waits. */
typedef struct marker {
    tamis_reducer *reducer;
    const tamis_step *step;
    const uint32_t *order;
    uint32_t from, to;
    tamis_status status;
} marker;

static void *mark_rest(void *argument) {
    marker *m = argument;
    for (uint32_t i = m->from; i < m->to && m->status == TAMIS_OK; i++)
        m->status = tamis_reducer_ready(m->reducer, m->order[i], m->step);
    return NULL;
}

static bool wait_meanwhile(worker *w, const tamis_step *step, const uint32_t *order,
                           tamis_status *out) {
    marker m = {w->reducer, step, order, 1, w->c->nsegments, TAMIS_OK};
    pthread_t thread;
    if (!GIVES(w, TAMIS_OK, tamis_reducer_ready(w->reducer, order[0], step)))
        return false;
    if (pthread_create(&thread, NULL, mark_rest, &m) != 0)
        return worker_fail(w, "no thread");
    *out = tamis_reducer_wait(w->reducer);
    pthread_join(thread, NULL);
    return worker_expect(w, TAMIS_OK, m.status, "tamis_reducer_ready beside tamis_reducer_wait");
}

/* Call start alone, or mark segments one by one, and perhaps call start for the rest. */
static bool begin(worker *w, const tamis_step *step, const uint32_t *order) {
    uint32_t count = w->c->nsegments, marked = 0;
    if (!w->c->ordered && worker_roll(w, 2) == 0)
        marked = worker_roll(w, 2) == 0 ? count : worker_roll(w, count + 1);
    for (uint32_t i = 0; i < marked; i++) {
        if (!GIVES(w, TAMIS_OK, tamis_reducer_ready(w->reducer, order[i], step)))
            return false;
    }
    return marked == count || GIVES(w, TAMIS_OK, tamis_reducer_start(w->reducer, step));
}

static bool end(worker *w, tamis_status *out) {
    int done = 0;
    for (uint32_t tests = worker_roll(w, 4) == 0 ? worker_roll(w, 3) : 0; tests > 0; tests--) {
        if (!GIVES(w, TAMIS_OK, tamis_reducer_test(w->reducer, &done)))
            return false;
    }
    *out = tamis_reducer_wait(w->reducer);
    return true;
}

static bool exchange(worker *w, const tamis_step *step, moment *m) {
    uint32_t order[MOST_SEGMENTS];
    shuffle(w, order);
    bool beside = !w->c->ordered && worker_roll(w, 25) == 0;
    if (!(beside ? wait_meanwhile(w, step, order, &m->status)
                 : begin(w, step, order) && end(w, &m->status)))
        return false;
    if (m->status == TAMIS_E_NONFINITE && w->c->config.nonfinite == TAMIS_NONFINITE_ERROR)
        return true;
    return worker_expect(w, TAMIS_OK, m->status, "tamis_reducer_wait");
}

static uint64_t hash(uint64_t before, const void *memory, size_t bytes) {
    const unsigned char *byte = memory;
    uint64_t word, h = fuzz_mix(before ^ bytes);
    for (; bytes >= sizeof word; bytes -= sizeof word, byte += sizeof word) {
        memcpy(&word, byte, sizeof word);
        h = (h ^ word) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    for (; bytes > 0; bytes--, byte++)
        h = (h ^ *byte) * 0x100000001b3u;
    return fuzz_mix(h);
}

/* Put what this rank holds at its place; the rest stays zero. */
static bool record_residual(worker *w, moment *m) {
    const float *residual;
    if (!GIVES(w, TAMIS_OK, tamis_reducer_residual(w->reducer, &residual)))
        return false;
    memset(m->residual, 0, (size_t)w->n * sizeof(float));
    for (uint32_t i = 0; residual && i < tamis_reducer_nbuckets(w->reducer); i++) {
        tamis_bucket b = TAMIS_BUCKET_INIT;
        if (!GIVES(w, TAMIS_OK, tamis_reducer_bucket_at(w->reducer, i, &b)))
            return false;
        for (uint64_t e = 0; e < b.residual_length; e++)
            m->residual[b.begin + b.shard_first + e / b.shard_run * b.shard_stride +
                        e % b.shard_run] = residual[b.residual_begin + e];
    }
    m->residual_hash = hash(0, m->residual, (size_t)w->n * sizeof(float));
    return true;
}

static bool record_moments(worker *w, moment *m) {
    size_t bytes = (size_t)w->n * sizeof(float);
    if (!w->c->updates)
        return true;
    m->first = fuzz_has_first(w->c) ? m->first : NULL;
    m->second = fuzz_has_second(w->c) ? m->second : NULL;
    if (!GIVES(w, TAMIS_OK,
               tamis_reducer_save_moments(w->reducer, m->first, m->second, &m->passes)))
        return false;
    m->moments_hash = m->first ? hash(m->passes, m->first, bytes) : m->passes;
    m->moments_hash = m->second ? hash(m->moments_hash, m->second, bytes) : m->moments_hash;
    return true;
}

static bool record_result(worker *w, moment *m) {
    common *all = &w->team->out->common[w->step];
    tamis_result result = TAMIS_RESULT_INIT;
    if (!GIVES(w, TAMIS_OK, tamis_reducer_result(w->reducer, &result)))
        return false;
    m->count = result.count;
    if (result.count > w->n || !result.indices != !result.values)
        return worker_fail(w, "the result has %zu entries of %llu, indices %s", result.count,
                           (unsigned long long)w->n, result.indices ? "without values" : "or not");
    m->result_hash = result.indices != NULL;
    if (result.indices) {
        m->result_hash = hash(result.count, result.indices, result.count * sizeof(uint32_t));
        m->result_hash = hash(m->result_hash, result.values, result.count * sizeof(float));
    }
    if (w->rank != 0)
        return true;
    all->listed = result.indices != NULL;
    if (all->listed) {
        memcpy(all->indices, result.indices, result.count * sizeof(uint32_t));
        memcpy(all->values, result.values, result.count * sizeof(float));
    }
    tam_widen(w->c->config.grad_dtype, w->flat, (size_t)w->n, all->gradient);
    return true;
}

static bool record_step(worker *w, const tamis_step *step) {
    moment *m = &w->team->out->moments[w->step][w->rank];
    size_t bytes = (size_t)w->n * w->element;
    fetch_gradient(w, step);
    m->gradient_hash = hash(0, w->flat, bytes);
    m->stats = (tamis_stats)TAMIS_STATS_INIT;
    if (w->c->config.output == TAMIS_OUTPUT_SPARSE && memcmp(w->flat, w->before, bytes) != 0)
        return worker_fail(w, "sparse output, and the gradient has changed");
    return GIVES(w, TAMIS_OK, tamis_reducer_stats(w->reducer, &m->stats)) && record_result(w, m) &&
           record_residual(w, m) && record_moments(w, m);
}

static bool run_step(worker *w) {
    const step_plan *plan = &w->c->steps[w->step];
    common *all = w->team->out->common;
    if (w->rank == 0)
        all[w->step].density = w->step ? all[w->step - 1].density : w->c->config.density;
    if (!plan->late && !worker_event(w, plan))
        return false;
    for (uint32_t i = 0; i < plan->micros; i++) {
        if (!accumulate(w, i))
            return false;
    }
    if ((plan->late && !worker_event(w, plan)) || !record_buckets(w))
        return false;
    tamis_step step = give_gradient(w, plan->micros);
    return exchange(w, &step, &w->team->out->moments[w->step][w->rank]) && record_step(w, &step);
}

void trial_steps(void *context, uint32_t rank) {
    trial *team = context;
    tamis_dtype type = team->c->config.grad_dtype;
    worker w = {
        .team = team,
        .c = team->c,
        .rank = rank,
        .n = team->n,
        .element = tam_type_bytes(type),
        .reducer = team->reducers[rank],
        .random = fuzz_mix(team->c->order_seed + rank),
    };
    bool fine = open_worker(&w);
    for (; fine && w.step < team->c->nsteps; w.step++)
        fine = run_step(&w);
    close_worker(&w);
}
