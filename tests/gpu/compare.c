/* SPDX-License-Identifier: MIT */
#include "tests/gpu/compare.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/lists.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>

#include "bench/common/half.h"

enum { SEGMENTS = 5, DIRECT_STEPS = 2 };

/* -- the list --------------------------------------------------------------------------------- */

static const struct {
    const char *scheme;
    double capacity;
    compare_update update;
    uint32_t rows;
    bool nodes;
} schemes[] = {
    {"tamis", 0, COMPARE_GRADIENTS, 0, false},
    {"topk", 0, COMPARE_GRADIENTS, 0, false},
    {"deft", 0, COMPARE_GRADIENTS, 0, false},
    {"micro", 0, COMPARE_GRADIENTS, 0, false},
    {"micro", 1.5, COMPARE_GRADIENTS, 0, false},
    {"cltk", 0, COMPARE_GRADIENTS, 0, false},
    {"threshold", 0, COMPARE_GRADIENTS, 0, false},
    {"threshold", 1.5, COMPARE_GRADIENTS, 0, false},
    {"sage", 0, COMPARE_GRADIENTS, 0, false},
    {"exdyna", 0, COMPARE_GRADIENTS, 0, false},
    {"oktopk", 0, COMPARE_GRADIENTS, 0, false},
    {"dense", 0, COMPARE_GRADIENTS, 0, false},
    {"all+global+exact+pairs", 0, COMPARE_GRADIENTS, 0, false},
    {"cyclic+global+predict+union", 0, COMPARE_GRADIENTS, 0, false},
    {"rotate+global+exact+union", 0, COMPARE_GRADIENTS, 0, false},
    {"tamis-update", 0, COMPARE_ADAM, 0, false},
    {"topk", 0, COMPARE_MOMENTUM, 0, false},
    {"tamis", 0, COMPARE_GRADIENTS, 100, false},
    {"tamis", 0, COMPARE_GRADIENTS, 0, true},
};

enum { SCHEMES = sizeof schemes / sizeof schemes[0], VARIANTS = 6 };

/* Whether selected entries travel, by any codec. */
static bool is_packed(const char *scheme) {
    return strcmp(scheme, "dense") != 0 && strcmp(scheme, "oktopk") != 0;
}

bool compare_list(unsigned index, bool small, compare_case *out) {
    static const uint64_t lengths[2][3] = {{40009, 1000003, 262144}, {1009, 6007, 4096}};
    unsigned variant = index / SCHEMES;
    if (variant >= VARIANTS)
        return false;
    *out = (compare_case){
        .scheme = schemes[index % SCHEMES].scheme,
        .capacity = schemes[index % SCHEMES].capacity,
        .update = schemes[index % SCHEMES].update,
        .rows = schemes[index % SCHEMES].rows,
        .nodes = schemes[index % SCHEMES].nodes,
        .density = variant % 2 ? 0.001 : 0.01,
        .type = (tamis_dtype)(variant % 3),
        .output = variant / 3 ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE,
        .nonfinite = (tamis_nonfinite)(index % 3),
        .n = lengths[small][(index + variant) % 3],
        .steps = 6,
        .by_segment = variant == 1 || variant == 4,
        .poison = variant == 2 || variant == 3,
        .mode = (compare_mode)((index + variant) % 3),
    };
    out->bucket_length = index % 2 ? out->n / 4 : 0;
    if (is_packed(out->scheme)) {
        out->index_codec = (tamis_index_codec)((index + variant) % TAMIS_INDEX_END);
        out->value_codec = (tamis_value_codec)((index + 2 * variant) % TAMIS_VALUE_END);
    }
    if (strcmp(out->scheme, "dense") == 0)
        out->output = TAMIS_OUTPUT_DENSE;
    if (out->update == COMPARE_ADAM && out->mode == COMPARE_CAPTURE) /* which is refused */
        out->mode = COMPARE_JOIN;
    return true;
}

bool compare_brief(unsigned index) {
    return index / SCHEMES == index % SCHEMES % VARIANTS;
}

const char *compare_name(const compare_case *c) {
    static const char *const modes[] = {"wait", "join", "capture"};
    static const char *const updates[] = {"", " adam", " momentum"};
    static _Thread_local char text[192];
    snprintf(
        text, sizeof text,
        "%s%s%s capacity %g rows %u density %g type %d indices %d value codec %d output %d n %llu, "
        "buckets of "
        "%llu%s%s, %s",
        c->scheme, updates[c->update], c->nodes ? " in nodes" : "", c->capacity, c->rows,
        c->density, (int)c->type, (int)c->index_codec, (int)c->value_codec, (int)c->output,
        (unsigned long long)c->n, (unsigned long long)c->bucket_length,
        c->by_segment ? " by segment" : "", c->poison ? " with NaN" : "", modes[c->mode]);
    return text;
}

bool compare_device(void) {
    tamis_feature feature = TAMIS_FEATURE_INIT;
    for (size_t i = 0; tamis_feature_list(i, &feature); i++) {
        if (strcmp(feature.name, "cuda") != 0)
            continue;
        if (!feature.available)
            printf("no CUDA here: %s\n", feature.reason);
        return feature.available;
    }
    printf("no CUDA here: the library does not know it\n");
    return false;
}

/* -- two sides -------------------------------------------------------------------------------- */

typedef struct side {
    const compare_case *c;
    tamis_comm *comm;
    bool cuda;
    tamis_reducer *reducer;
    char *memory;          /* the gradient, with room before it */
    void *grads[SEGMENTS]; /* into memory */
    cudaStream_t stream;   /* CUDA only */
    cudaGraphExec_t graph; /* COMPARE_CAPTURE, from step DIRECT_STEPS on */
    tamis_status status;   /* of the last wait */
    size_t count;          /* of its result */
    uint32_t *indices;     /* what the step left, in host memory; [n] each */
    float *values, *residual;
    void *after;
} side;

static uint64_t length_of(const compare_case *c, unsigned segment) {
    return c->n * (segment + 1) / SEGMENTS - c->n * segment / SEGMENTS;
}

/* The row length of the last segment, which it divides. */
static uint64_t row_length(const compare_case *c) {
    uint64_t length = 48;
    while (length_of(c, SEGMENTS - 1) % length > 0)
        length--;
    return length;
}

static bool failed(const side *s, tamis_status status, const char *what) {
    if (status == TAMIS_OK)
        return false;
    fprintf(stderr, "rank %u: %s: %s: %s: %s\n", tamis_comm_rank(s->comm), s->cuda ? "CUDA" : "CPU",
            what, tamis_status_name(status), tamis_last_error());
    return true;
}

static bool cuda_failed(cudaError_t error, const char *what) {
    if (error != cudaSuccess)
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    return error != cudaSuccess;
}

bool compare_choose(int device) {
    return !cuda_failed(cudaSetDevice(device), "cudaSetDevice");
}

/* Adam with a scale that follows norms. */
static tamis_update update_of(const compare_case *c) {
    tamis_update update = TAMIS_UPDATE_INIT;
    update.beta1 = 0.9;
    if (c->update == COMPARE_ADAM)
        update.norm_matching = 2.0;
    else
        update.rule = TAMIS_UPDATE_MOMENTUM;
    return update;
}

/* Two ranks, where that divides them, else all. */
static uint32_t size_of_nodes(const tamis_comm *comm) {
    uint32_t nranks = tamis_comm_nranks(comm);
    return nranks % 2 == 0 ? 2 : nranks;
}

/* Elements of the residual. */
static uint64_t held_by(const side *s) {
    uint64_t held = 0;
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(s->reducer); i++) {
        tamis_bucket bucket = TAMIS_BUCKET_INIT;
        if (tamis_reducer_bucket_at(s->reducer, i, &bucket) == TAMIS_OK)
            held += bucket.residual_length;
    }
    return held;
}

static bool make_reducer(side *s) {
    const compare_case *c = s->c;
    const tamis_update update = update_of(c);
    tamis_segment segments[SEGMENTS] = {{0}};
    tamis_layout *layout = NULL;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    for (unsigned i = 0; i < SEGMENTS; i++)
        segments[i].length = length_of(c, i);
    config.scheme = c->scheme;
    config.density = c->density;
    config.capacity = c->capacity;
    config.rows_capacity = c->rows;
    config.ranks_per_node = c->nodes ? size_of_nodes(s->comm) : 0;
    config.output = c->output;
    config.bucket_length = c->bucket_length;
    config.nonfinite = c->nonfinite;
    config.grad_dtype = c->type;
    config.index_codec = c->index_codec;
    config.value_codec = c->value_codec;
    config.update = c->update != COMPARE_GRADIENTS ? &update : NULL;
    config.device = s->cuda ? TAMIS_DEVICE_CUDA : TAMIS_DEVICE_CPU;
    if (failed(s, tamis_layout_create(segments, SEGMENTS, &layout), "layout"))
        return false;
    tamis_status status = TAMIS_OK;
    if (c->rows > 0)
        status = tamis_layout_set_rows(layout, SEGMENTS - 1, row_length(c));
    if (status == TAMIS_OK)
        status = tamis_reducer_create(s->comm, layout, &config, &s->reducer);
    tamis_layout_destroy(layout);
    return !failed(s, status, "reducer");
}

/* Segments lie apart by one element, so that not all of them allow vector loads. */
static bool open_side(tamis_comm *comm, bool cuda, const compare_case *c, side *out) {
    size_t size = bench_type_bytes(c->type), bytes = (c->n + SEGMENTS) * size;
    *out = (side){.c = c, .comm = comm, .cuda = cuda};
    out->indices = calloc(c->n, sizeof *out->indices);
    out->values = calloc(c->n, sizeof *out->values);
    out->residual = calloc(c->n, sizeof *out->residual);
    out->after = calloc(c->n, size);
    if (!out->indices || !out->values || !out->residual || !out->after)
        return false;
    if (!cuda)
        out->memory = calloc(bytes, 1);
    else if (cuda_failed(cudaMalloc((void **)&out->memory, bytes), "cudaMalloc") ||
             cuda_failed(cudaStreamCreateWithFlags(&out->stream, cudaStreamNonBlocking), "stream"))
        return false;
    if (!out->memory)
        return false;
    char *at = out->memory;
    for (unsigned i = 0; i < SEGMENTS; i++) {
        out->grads[i] = at;
        at += (length_of(c, i) + c->by_segment) * size;
    }
    return make_reducer(out);
}

static void close_side(side *s) {
    if (s->graph)
        cudaGraphExecDestroy(s->graph);
    tamis_reducer_destroy(s->reducer);
    if (s->stream)
        cudaStreamDestroy(s->stream);
    if (s->cuda)
        cudaFree(s->memory);
    else
        free(s->memory);
    free(s->after);
    free(s->residual);
    free(s->values);
    free(s->indices);
}

/* All copies go through the stream of the steps and are waited for: this is a test, not a step. */
static bool copy(side *s, const void *from, size_t bytes, void *to) {
    if (!s->cuda) {
        memcpy(to, from, bytes);
        return true;
    }
    return !cuda_failed(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->stream), "copy") &&
           !cuda_failed(cudaStreamSynchronize(s->stream), "end of a copy");
}

static bool put_gradient(side *s, const void *given) {
    size_t size = bench_type_bytes(s->c->type);
    const char *from = given;
    for (unsigned i = 0; i < SEGMENTS; i++) {
        size_t bytes = length_of(s->c, i) * size;
        if (!copy(s, from, bytes, s->grads[i]))
            return false;
        from += bytes;
    }
    return true;
}

/* -- a step ----------------------------------------------------------------------------------- */

static tamis_status start(side *s) {
    tamis_step step = TAMIS_STEP_INIT;
    if (s->c->by_segment)
        step.grads = s->grads;
    else
        step.grad = s->memory;
    step.scale = 0.75f;
    step.stream = s->stream;
    return tamis_reducer_start(s->reducer, &step);
}

/* A step that the host drives is waited for, so its join says what wait would. */
static bool start_and_join(side *s) {
    if (failed(s, start(s), "start"))
        return false;
    tamis_status status = tamis_reducer_join(s->reducer, s->stream);
    return tamis_status_loss(status) == TAMIS_LOST_STEP || !failed(s, status, "join");
}

static bool capture(side *s) {
    cudaGraph_t graph = NULL;
    if (cuda_failed(cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return false;
    bool ok = start_and_join(s);
    if (cuda_failed(cudaStreamEndCapture(s->stream, &graph), "end of the capture") || !ok)
        return false;
    ok = !cuda_failed(cudaGraphInstantiate(&s->graph, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    return ok;
}

/* Only a communicator that works in stream order can be captured; others are joined. */
static bool captures(const side *s) {
    bool fixed = strstr("tamis dense topk cltk all+global+exact+pairs cyclic+global+predict+union "
                        "rotate+global+exact+union",
                        s->c->scheme) ||
                 s->c->capacity > 0;
    return s->c->mode == COMPARE_CAPTURE && fixed && s->cuda &&
           strcmp(tamis_comm_transport(s->comm), "nccl") == 0;
}

static bool run_step(side *s, unsigned number) {
    bool last = number + 1 == s->c->steps;
    if (last || s->c->mode == COMPARE_WAIT || !s->cuda) {
        if (failed(s, start(s), "start"))
            return false;
        s->status = tamis_reducer_wait(s->reducer);
        return tamis_status_loss(s->status) != TAMIS_LOST_COMM || !failed(s, s->status, "wait");
    }
    s->status = TAMIS_OK;
    if (!captures(s) || number < DIRECT_STEPS)
        return start_and_join(s);
    if (!s->graph && !capture(s))
        return false;
    return !cuda_failed(cudaGraphLaunch(s->graph, s->stream), "launch");
}

static bool fetch(side *s) {
    size_t size = bench_type_bytes(s->c->type);
    tamis_result result = TAMIS_RESULT_INIT;
    const float *residual;
    if (failed(s, tamis_reducer_result(s->reducer, &result), "result") ||
        failed(s, tamis_reducer_residual(s->reducer, &residual), "residual"))
        return false;
    s->count = result.count;
    bool ok = !result.indices || (copy(s, result.indices, result.count * 4, s->indices) &&
                                  copy(s, result.values, result.count * 4, s->values));
    ok = ok && (!residual || copy(s, residual, held_by(s) * 4, s->residual));
    char *to = s->after;
    for (unsigned i = 0; ok && i < SEGMENTS; i++) {
        ok = copy(s, s->grads[i], length_of(s->c, i) * size, to);
        to += length_of(s->c, i) * size;
    }
    return ok;
}

/* -- comparing -------------------------------------------------------------------------------- */

static uint64_t differences(const void *a, const void *b, size_t count, size_t size) {
    uint64_t wrong = 0;
    for (size_t i = 0; i < count; i++)
        wrong += memcmp((const char *)a + i * size, (const char *)b + i * size, size) != 0;
    return wrong;
}

/* One number is not the same: said once for each kind. */
static uint64_t differs(const side *a, const char *what, uint64_t x, uint64_t y) {
    if (x != y)
        printf("rank %u: %s: %llu on CUDA, %llu on the CPU\n", tamis_comm_rank(a->comm), what,
               (unsigned long long)x, (unsigned long long)y);
    return x != y;
}

static uint64_t compare(const side *a, const side *b) {
    size_t n = a->c->n;
    if (differs(a, "status", a->status, b->status) || differs(a, "count", a->count, b->count))
        return n;
    uint64_t indices = differences(a->indices, b->indices, a->count, 4);
    uint64_t values = differences(a->values, b->values, a->count, 4);
    uint64_t residual = differences(a->residual, b->residual, n, 4);
    uint64_t after = differences(a->after, b->after, n, bench_type_bytes(a->c->type));
    if (indices + values + residual + after > 0)
        printf("rank %u: %llu indices, %llu values, %llu residuals, %llu gradients differ\n",
               tamis_comm_rank(a->comm), (unsigned long long)indices, (unsigned long long)values,
               (unsigned long long)residual, (unsigned long long)after);
    return indices + values + residual + after;
}

static uint64_t compare_counts(const side *a, const side *b) {
    tamis_stats x = TAMIS_STATS_INIT, y = TAMIS_STATS_INIT;
    if (failed(a, tamis_reducer_stats(a->reducer, &x), "statistics") ||
        failed(b, tamis_reducer_stats(b->reducer, &y), "statistics"))
        return UINT64_MAX;
    return differs(a, "steps", x.steps, y.steps) + differs(a, "selected", x.selected, y.selected) +
           differs(a, "sent", x.sent, y.sent) + differs(a, "sent_max", x.sent_max, y.sent_max) +
           differs(a, "deferred", x.deferred, y.deferred) +
           differs(a, "nonfinite", x.nonfinite, y.nonfinite) +
           differs(a, "skipped", x.skipped, y.skipped);
}

static uint32_t scramble(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(x ^ x >> 31);
}

/* Whole numbers, many of them equal, over some powers of two: ties and a heavy tail. */
static void make_gradient(const compare_case *c, uint32_t rank, unsigned step, void *out) {
    float *wide = malloc(c->n * sizeof *wide);
    for (uint64_t i = 0; wide && i < c->n; i++) {
        uint32_t h = scramble((i + 1) * 0x9e3779b97f4a7c15ull + rank * 1000003ull + step);
        wide[i] = (float)((int)(h % 257) - 128) * (float)(1u << (h >> 16 & h >> 20 & 7));
    }
    uint64_t rows_begin = c->rows > 0 ? c->n - length_of(c, SEGMENTS - 1) : c->n;
    for (uint64_t i = rows_begin; wide && i < c->n; i++) { /* three rows of four are not touched */
        uint64_t row = (i - rows_begin) / row_length(c);
        if (scramble(row << 20 ^ rank * 1000003ull ^ step) % 4 > 0)
            wide[i] = 0.0f;
    }
    if (wide && c->poison && rank == 0 && step == 2) {
        wide[c->n / 3] = NAN;
        wide[c->n / 2] = -INFINITY;
    }
    if (wide)
        bench_narrow(c->type, wide, c->n, out);
    free(wide);
}

static uint64_t run_both(side *cuda, side *cpu, void *given) {
    const compare_case *c = cuda->c;
    uint64_t wrong = 0;
    for (unsigned step = 0; step < c->steps; step++) {
        make_gradient(c, tamis_comm_rank(cpu->comm), step, given);
        if (!put_gradient(cuda, given) || !put_gradient(cpu, given) || !run_step(cpu, step) ||
            !run_step(cuda, step))
            return UINT64_MAX;
        if (c->mode != COMPARE_WAIT && step + 1 < c->steps)
            continue;
        if (!fetch(cuda) || !fetch(cpu))
            return UINT64_MAX;
        wrong += compare(cuda, cpu) + compare_counts(cuda, cpu);
    }
    return wrong;
}

uint64_t compare_run(tamis_comm *cuda, tamis_comm *cpu, const compare_case *c) {
    side sides[2] = {0};
    void *given = calloc(c->n, bench_type_bytes(c->type));
    uint64_t wrong = UINT64_MAX;
    /* Both are opened in any case: the other ranks wait for this one in either. */
    bool opened = open_side(cuda, true, c, &sides[0]);
    opened = open_side(cpu, false, c, &sides[1]) && opened;
    if (opened && given)
        wrong = run_both(&sides[0], &sides[1], given);
    close_side(&sides[1]);
    close_side(&sides[0]);
    free(given);
    return wrong;
}
