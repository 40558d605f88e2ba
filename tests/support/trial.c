/* SPDX-License-Identifier: MIT
 *
 * A trial: run a scheme on P ranks and record everything.
 */
#include "tests/support/trial.h"
#include "lib/base/half.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

trial trial_usual(const char *scheme, uint32_t nranks, size_t n, double density) {
    return (trial){.scheme = scheme,
                   .density = density,
                   .n = n,
                   .nranks = nranks,
                   .steps = 12,
                   .pattern = DATA_HEAVY,
                   .op = TAMIS_OP_SUM,
                   .scale = 1};
}

void trial_fill(const trial *what, uint32_t rank, uint32_t step, float *out) {
    if (what->real)
        data_fill_real(rank, step, what->n, out);
    else
        data_fill(what->pattern, rank, step, what->n, out);
    for (size_t i = 0; what->fits != TAMIS_DTYPE_FLOAT32 && i < what->n; i++) {
        uint16_t narrow[2];    /* room for any type */
        float x = out[i] / 64; /* far from the largest of 16 bits, for sums */
        tam_narrow(&x, 1, what->fits, narrow);
        tam_widen(what->fits, narrow, 1, &out[i]);
    }
}

uint64_t trial_target(const trial *what) {
    uint64_t k = (uint64_t)(what->density * (double)what->n);
    if (strcmp(what->scheme, "quantized") == 0)
        return what->n;
    return k > 0 ? k : 1;
}

moment *record_moment(const trial_record *record, uint32_t step, uint32_t rank) {
    return &record->moments[step * record->trial.nranks + rank];
}

float *record_residual(const trial_record *record, uint32_t step, uint32_t rank) {
    return record->residuals + ((size_t)step * record->trial.nranks + rank) * record->trial.n;
}

float *record_result(const trial_record *record, uint32_t step) {
    return record->results + (size_t)step * record->trial.n;
}

/* What the threads of one trial share. */
typedef struct shared_trial {
    const trial *trial;
    tamis_segment segments[DATA_SEGMENTS_MOST];
    size_t nsegments;
    trial_record *record;
} shared_trial;

/* The gradient of one rank as the library gets it, flat or in pieces. */
typedef struct trial_gradient {
    float *flat;
    void *narrow;  /* flat as 16 bits; NULL: as floats, or in pieces */
    void **pieces; /* NULL: flat */
    const shared_trial *shared;
    const trial_backend *backend;
} trial_gradient;

/* Where a rank is; NULL: on the CPU. */
static const trial_backend *backend_of(const trial *what, uint32_t rank) {
    return what->backend && (!what->backend->odd || rank % 2 == 1) ? what->backend : NULL;
}

static void *take(const trial_backend *backend, size_t bytes) {
    return backend ? backend->alloc(bytes) : calloc(bytes, 1);
}

static void give_back(const trial_backend *backend, void *memory) {
    if (backend)
        backend->release(memory);
    else
        free(memory);
}

static void gradient_close(trial_gradient *g) {
    for (size_t s = 0; g->pieces && s < g->shared->nsegments; s++)
        give_back(g->backend, g->pieces[s]);
    free(g->pieces);
    give_back(g->backend, g->narrow);
    give_back(g->backend, g->flat);
}

static bool gradient_open(const shared_trial *shared, uint32_t rank, trial_gradient *out) {
    const trial_backend *backend = backend_of(shared->trial, rank);
    *out = (trial_gradient){.shared = shared, .backend = backend};
    out->flat = take(backend, shared->trial->n * sizeof(float));
    if (shared->trial->type != TAMIS_DTYPE_FLOAT32 &&
        !(out->narrow = take(backend, shared->trial->n * sizeof(uint16_t))))
        return false;
    if (!out->flat || !shared->trial->by_segment)
        return out->flat != NULL;
    out->pieces = calloc(shared->nsegments, sizeof(void *));
    size_t bytes = tam_type_bytes(shared->trial->type);
    for (size_t s = 0; out->pieces && s < shared->nsegments; s++)
        if (!(out->pieces[s] = take(backend, shared->segments[s].length * bytes)))
            return false;
    return out->pieces != NULL;
}

static void copy(const trial *what, float *flat, size_t length, void *given, bool to_given) {
    if (to_given)
        tam_narrow(flat, length, what->type, given);
    else
        tam_widen(what->type, given, length, flat);
}

static void gradient_copy(trial_gradient *g, bool to_pieces) {
    float *flat = g->flat;
    for (size_t s = 0; g->pieces && s < g->shared->nsegments; s++) {
        size_t length = g->shared->segments[s].length;
        copy(g->shared->trial, flat, length, g->pieces[s], to_pieces);
        flat += length;
    }
    if (g->narrow && !g->pieces)
        copy(g->shared->trial, flat, g->shared->trial->n, g->narrow, to_pieces);
}

static void keep_result(trial_record *record, uint32_t step, const tamis_result *result,
                        const float *gradient) {
    size_t n = record->trial.n;
    float *dense = record_result(record, step);
    record->has_indices = result->indices != NULL;
    record->result_memory = result->memory;
    if (result->indices) {
        memcpy(record->indices + step * n, result->indices, result->count * sizeof(uint32_t));
        memcpy(record->values + step * n, result->values, result->count * sizeof(float));
    }
    if (record->trial.output == TAMIS_OUTPUT_DENSE)
        memcpy(dense, gradient, n * sizeof(float));
    else
        for (size_t i = 0; result->indices && i < result->count; i++)
            dense[result->indices[i]] = result->values[i];
}

static bool result_valid(const tamis_result *result, size_t n) {
    return result->count <= n && !result->indices == !result->values;
}

/* Record the results of the step. */
static void keep_step(test_rank *self, tamis_reducer *reducer, uint32_t step,
                      const float *gradient) {
    const shared_trial *shared = self->shared;
    trial_record *record = shared->record;
    size_t n = shared->trial->n;
    moment *m = record_moment(record, step, self->id);
    const float *residual = NULL;
    tamis_result result = TAMIS_RESULT_INIT;
    m->stats = (tamis_stats)TAMIS_STATS_INIT;
    RANK_OK(self, tamis_reducer_stats(reducer, &m->stats));
    RANK_OK(self, tamis_reducer_result(reducer, &result));
    RANK_OK(self, tamis_reducer_residual(reducer, &residual));
    RANK_CHECK(self, result_valid(&result, n), "count %zu of %zu, indices %p, values %p",
               result.count, n, (const void *)result.indices, (const void *)result.values);
    m->count = result.count;
    m->dense_hash = data_hash(0, gradient, n * sizeof(float));
    if (result.indices) {
        m->sparse_hash = data_hash(result.count, result.indices, result.count * sizeof(uint32_t));
        m->sparse_hash = data_hash(m->sparse_hash, result.values, result.count * sizeof(float));
    }
    RANK_CHECK(self,
               !residual ||
                   data_spread_residual(reducer, residual, record_residual(record, step, self->id)),
               "a bucket cannot be read: %s", tamis_last_error());
    if (self->id == 0) {
        record->has_residual = residual != NULL;
        keep_result(record, step, &result, gradient);
    }
}

/* Marks segments in the rank's own order; one step in four leaves some to start. */
static void begin_step(test_rank *self, tamis_reducer *reducer, uint32_t number,
                       const tamis_step *step) {
    const shared_trial *shared = self->shared;
    uint32_t order[DATA_SEGMENTS_MOST], count = (uint32_t)shared->nsegments;
    uint64_t seed = data_mix(shared->trial->disorder + 1000 * number + self->id);
    if (shared->trial->disorder == 0) {
        RANK_OK(self, tamis_reducer_start(reducer, step));
        return;
    }
    for (uint32_t s = 0; s < count; s++) {
        uint32_t at = (uint32_t)(data_mix(seed + s) % (s + 1));
        order[s] = order[at];
        order[at] = s;
    }
    uint32_t marked = seed % 4 == 0 ? (uint32_t)(seed / 4 % count) : count;
    for (uint32_t i = 0; i < marked; i++)
        RANK_OK(self, tamis_reducer_ready(reducer, order[i], step));
    if (marked < count)
        RANK_OK(self, tamis_reducer_start(reducer, step));
}

static void run_step(test_rank *self, tamis_reducer *reducer, uint32_t number, trial_gradient *g) {
    const shared_trial *shared = self->shared;
    const trial *what = shared->trial;
    tamis_step step = TAMIS_STEP_INIT;
    trial_fill(what, self->id, number, g->flat);
    uint64_t before = data_hash(0, g->flat, what->n * sizeof(float));
    gradient_copy(g, true);
    step.scale = what->scale;
    step.grad = g->pieces ? NULL : g->narrow ? g->narrow : g->flat;
    step.grads = g->pieces;
    begin_step(self, reducer, number, &step);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_wait(reducer));
    gradient_copy(g, false);
    uint64_t after = data_hash(0, g->flat, what->n * sizeof(float));
    RANK_CHECK(self, what->output == TAMIS_OUTPUT_DENSE || before == after,
               "step %u: sparse output changed the gradient", number);
    keep_step(self, reducer, number, g->flat);
}

static tamis_status create_reducer(test_rank *self, tamis_comm *comm, tamis_reducer **out) {
    const shared_trial *shared = self->shared;
    const trial_backend *backend = backend_of(shared->trial, self->id);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = shared->trial->scheme;
    config.density = shared->trial->density;
    config.output = shared->trial->output;
    config.op = shared->trial->op;
    config.threads = shared->trial->threads;
    config.block = shared->trial->block;
    config.capacity = shared->trial->capacity;
    config.bucket_length = shared->trial->bucket_length;
    config.bucket_budget = shared->trial->bucket_budget;
    config.worker = shared->trial->worker;
    config.grad_dtype = shared->trial->type;
    config.index_codec = shared->trial->index_codec;
    config.value_codec =
        shared->trial->value_codec ? shared->trial->value_codec : TAMIS_VALUE_FLOAT32;
    config.sum_codec = shared->trial->sum_codec;
    config.update = shared->trial->update;
    config.residual_decay = 1.0 - shared->trial->forgets;
    config.link_latency_us = shared->trial->latency_us;
    config.link_gbit = shared->trial->gbit;
    config.ranks_per_node = shared->trial->ranks_per_node;
    config.device = backend ? backend->device : TAMIS_DEVICE_CPU;
    self->where = "tamis_reducer_create";
    tamis_layout *layout = data_layout(shared->trial->n);
    tamis_status status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void run_steps(test_rank *self, tamis_comm *comm) {
    const shared_trial *shared = self->shared;
    trial_record *record = shared->record;
    tamis_reducer *reducer = NULL;
    trial_gradient g;
    record->created[self->id] = create_reducer(self, comm, &reducer);
    if (record->created[self->id] != TAMIS_OK) {
        snprintf(record->sentence[self->id], sizeof record->sentence[0], "%s", tamis_last_error());
        return;
    }
    if (!gradient_open(shared, self->id, &g))
        rank_fail(self, __FILE__, __LINE__, "no memory for a gradient");
    for (uint32_t step = 0; step < shared->trial->steps && !self->failure[0]; step++)
        run_step(self, reducer, step, &g);
    tamis_reducer_destroy(reducer);
    gradient_close(&g);
}

static void run_rank_trial(test_rank *self) {
    const trial_backend *backend =
        backend_of(((const shared_trial *)self->shared)->trial, self->id);
    self->where = "connect";
    tamis_comm *comm = backend ? backend->connect(self->id, self->comm) : self->comm;
    RANK_CHECK(self, comm, "no communicator: %s", tamis_last_error());
    run_steps(self, comm);
    if (self->failure[0] && comm != self->comm)
        tamis_comm_abort(comm);
    if (comm != self->comm)
        tamis_comm_destroy(comm);
}

static void record_open(const trial *what, trial_record *out) {
    size_t steps = what->steps, n = what->n;
    *out = (trial_record){.trial = *what};
    out->created = calloc(what->nranks, sizeof *out->created);
    out->sentence = calloc(what->nranks, sizeof *out->sentence);
    out->moments = calloc(steps * what->nranks, sizeof *out->moments);
    out->residuals = calloc(steps * what->nranks * n, sizeof(float));
    out->results = calloc(steps * n, sizeof(float));
    out->indices = calloc(steps * n, sizeof(uint32_t));
    out->values = calloc(steps * n, sizeof(float));
    assert_true(out->created && out->sentence && out->moments && out->residuals && out->results &&
                out->indices && out->values);
}

void record_free(trial_record *record) {
    free(record->created);
    free(record->sentence);
    free(record->moments);
    free(record->residuals);
    free(record->results);
    free(record->indices);
    free(record->values);
}

bool trial_run(const trial *what, trial_record *out) {
    shared_trial shared = {.trial = what, .record = out};
    shared.nsegments = data_segments(what->n, shared.segments);
    record_open(what, out);
    test_context(
        "%s%s%s P=%u n=%zu density=%g %s%s%s%s threads=%u buckets of %llu, disorder %u, "
        "indices %d, value codec %d, %u ranks per node",
        what->backend ? what->backend->name : "", what->backend ? ": " : "", what->scheme,
        what->nranks, what->n, what->density, what->real ? "real" : data_name(what->pattern),
        what->by_segment ? " by segment" : "", what->output == TAMIS_OUTPUT_SPARSE ? " sparse" : "",
        what->op == TAMIS_OP_MEAN ? " mean" : "", what->threads,
        (unsigned long long)what->bucket_length, what->disorder, (int)what->index_codec,
        (int)what->value_codec, what->ranks_per_node);
    ranks_run(what->nranks, 0, run_rank_trial, &shared);
    for (uint32_t r = 0; r < what->nranks; r++)
        if (out->created[r] != TAMIS_OK)
            return false;
    return true;
}
