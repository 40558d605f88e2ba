/* SPDX-License-Identifier: MIT */
#include "tests/cuda/pair.h"

#include "lib/base/base.h"
#include "lib/base/half.h"
#include "tests/support/data.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/nccl.h>
#include <tamis/overlap.h>
#include <tamis/stats.h>

pair_order pair_usual(void) {
    return (pair_order){
        .scheme = "tamis", .density = 0.1, .bucket_length = PAIR_N / 5, .real = true};
}

tamis_reducer_config pair_config(const pair_order *order) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = order->scheme;
    config.density = order->density;
    config.density_max = order->density_max;
    config.capacity = order->capacity;
    config.bucket_length = order->bucket_length;
    config.ranks_per_node = order->ranks_per_node;
    config.value_codec = order->value_codec;
    config.bucket_budget = order->bucket_budget;
    config.output = order->output;
    config.nonfinite = order->nonfinite;
    config.grad_dtype = order->type;
    config.update = order->update;
    config.rows_capacity = order->rows_capacity;
    config.index_codec = order->index_codec;
    return config;
}

tamis_status pair_reducer(const pair *p, tamis_comm *comm, const tamis_reducer_config *config,
                          tamis_reducer **out) {
    tamis_layout *layout = NULL;
    TAM_TRY(tamis_layout_create(p->segments, p->nsegments, &layout));
    tamis_status status = TAMIS_OK;
    for (size_t s = 0; p->order->rows && s < p->nsegments && status == TAMIS_OK; s++)
        status = tamis_layout_set_rows(layout, s, p->order->rows[s]);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* -- open and close --------------------------------------------------------------------------- */

/* Segments lie in the order of their numbers, or even ones before odd ones. */
static void lay_out_pieces(pair *p) {
    size_t at = 0, element = tam_type_bytes(p->order->type);
    for (size_t odd = 0; odd < 2; odd++) {
        for (size_t s = odd; s < p->nsegments; s += 2) {
            p->host_pieces[s] = (char *)p->host + at;
            p->pieces[s] = (char *)p->grad + at;
            at += p->segments[s].length * element;
        }
    }
}

static void furnish(test_rank *self, pair *p) {
    tamis_comm_config limit = TAMIS_COMM_CONFIG_INIT;
    tamis_reducer_config config = pair_config(p->order);
    limit.timeout_ms = p->order->timeout_ms;
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(self->comm, &limit, &p->comm));
    RANK_OK(self, pair_reducer(p, self->comm, &config, &p->cpu));
    config.device = TAMIS_DEVICE_CUDA;
    config.on_phase = p->order->on_phase;
    config.on_phase_context = p;
    RANK_OK(self, pair_reducer(p, p->comm, &config, &p->cuda));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc(&p->grad, p->bytes));
    RANK_CUDA(self, cudaMallocHost(&p->given, p->bytes));
    p->host = malloc(p->bytes);
    RANK_CHECK(self, p->host, "no memory");
    lay_out_pieces(p);
}

bool pair_open(test_rank *self, const pair_order *order, pair *out) {
    *out = (pair){.self = self, .order = order, .random = (uint64_t)self->id << 32};
    out->nsegments = data_segments(PAIR_N, out->segments);
    out->bytes = PAIR_N * tam_type_bytes(order->type);
    furnish(self, out);
    return !self->failure[0];
}

void pair_close(pair *p) {
    tamis_reducer_destroy(p->cuda);
    tamis_reducer_destroy(p->cpu);
    tamis_comm_destroy(p->comm);
    if (p->stream)
        cudaStreamDestroy(p->stream);
    cudaFree(p->grad);
    cudaFreeHost(p->given);
    free(p->host);
}

/* -- gradients -------------------------------------------------------------------------------- */

void pair_fill(pair *p, uint32_t number) {
    float flat[PAIR_N];
    if (p->order->real)
        data_fill_real(p->self->id, number, PAIR_N, flat);
    else
        data_fill(DATA_HEAVY, p->self->id, number, PAIR_N, flat);
    for (size_t i = 0; p->order->type != TAMIS_DTYPE_FLOAT32 && i < PAIR_N; i++)
        flat[i] /= 256; /* within what 16 bits hold */
    if (p->order->touch)
        p->order->touch(p->self->id, number, flat);
    if (!p->order->by_segment)
        tam_narrow(flat, PAIR_N, p->order->type, p->host);
    for (size_t s = 0, at = 0; p->order->by_segment && s < p->nsegments; s++) {
        tam_narrow(flat + at, p->segments[s].length, p->order->type, p->host_pieces[s]);
        at += p->segments[s].length;
    }
    RANK_CUDA(p->self, cudaStreamSynchronize(p->stream)); /* what was given before has been sent */
    memcpy(p->given, p->host, p->bytes);
    RANK_CUDA(p->self,
              cudaMemcpyAsync(p->grad, p->given, p->bytes, cudaMemcpyHostToDevice, p->stream));
}

static tamis_step step_of(const pair *p, bool cuda) {
    tamis_step step = TAMIS_STEP_INIT;
    if (p->order->by_segment)
        step.grads = cuda ? p->pieces : p->host_pieces;
    else
        step.grad = cuda ? p->grad : p->host;
    step.stream = cuda ? p->stream : NULL;
    return step;
}

/* -- steps ------------------------------------------------------------------------------------ */

static void shuffle(pair *p, uint32_t *order) {
    for (uint32_t s = 0; s < p->nsegments; s++) {
        uint32_t at = (uint32_t)(data_mix(p->random++) % (s + 1));
        order[s] = order[at];
        order[at] = s;
    }
}

static void begin_one(pair *p, bool cuda, pair_ready how, const uint32_t *order) {
    test_rank *self = p->self;
    tamis_reducer *reducer = cuda ? p->cuda : p->cpu;
    tamis_step step = step_of(p, cuda);
    size_t ready = how == PAIR_START ? 0 : how == PAIR_READY ? p->nsegments : p->nsegments / 2;
    for (size_t i = 0; i < ready; i++)
        RANK_OK(self, tamis_reducer_ready(reducer, order[i], &step));
    if (how != PAIR_READY)
        RANK_OK(self, tamis_reducer_start(reducer, &step));
}

void pair_begin(pair *p, pair_ready how) {
    uint32_t order[DATA_SEGMENTS_MOST];
    if (p->self->failure[0])
        return;
    shuffle(p, order);
    begin_one(p, true, how, order);
    if (!p->self->failure[0])
        begin_one(p, false, how, order);
}

void pair_step(pair *p, uint32_t number, pair_ready how, tamis_status expected) {
    pair_fill(p, number);
    pair_begin(p, how);
    if (p->self->failure[0])
        return;
    RANK_STATUS(p->self, expected, tamis_reducer_wait(p->cuda));
    RANK_STATUS(p->self, expected, tamis_reducer_wait(p->cpu));
    pair_compare(p);
}

void pair_accumulate(pair *p, uint32_t number) {
    pair_fill(p, number);
    if (p->self->failure[0])
        return;
    tamis_step step = step_of(p, true), host = step_of(p, false);
    RANK_OK(p->self, tamis_reducer_accumulate(p->cuda, &step));
    RANK_OK(p->self, tamis_reducer_accumulate(p->cpu, &host));
}

void pair_follow(pair *p, const float *given, const float *got, uint32_t count) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = p->host;
    for (uint32_t i = 0; i < count; i++) {
        memcpy(p->host, given + i * PAIR_N, p->bytes);
        RANK_OK(p->self, tamis_reducer_start(p->cpu, &step));
        RANK_OK(p->self, tamis_reducer_wait(p->cpu));
        RANK_CHECK(p->self, memcmp(got + i * PAIR_N, p->host, p->bytes) == 0,
                   "step %u differs from the CPU's", i);
    }
}

/* -- comparison ------------------------------------------------------------------------------- */

static void compare_results(pair *p) {
    test_rank *self = p->self;
    tamis_result cpu = TAMIS_RESULT_INIT, cuda = TAMIS_RESULT_INIT;
    RANK_OK(self, tamis_reducer_result(p->cpu, &cpu));
    RANK_OK(self, tamis_reducer_result(p->cuda, &cuda));
    RANK_CHECK(self, cuda.count == cpu.count, "%zu entries, not %zu", cuda.count, cpu.count);
    RANK_CHECK(self, !cuda.indices == !cpu.indices, "there are indices, or none");
    if (!cpu.indices)
        return;
    RANK_CHECK(self, cuda.memory == (p->order->by_host ? TAMIS_DEVICE_CPU : TAMIS_DEVICE_CUDA),
               "the result is not in its memory");
    size_t bytes = cpu.count * sizeof(float);
    RANK_CHECK(self, memcmp(cuda.indices, cpu.indices, bytes) == 0, "the indices differ");
    RANK_CHECK(self, memcmp(cuda.values, cpu.values, bytes) == 0, "the values differ");
}

/* Elements of the residual. */
static size_t held_by(pair *p) {
    size_t held = 0;
    for (uint32_t i = 0; i < tamis_reducer_nbuckets(p->cpu); i++) {
        tamis_bucket bucket = TAMIS_BUCKET_INIT;
        if (tamis_reducer_bucket_at(p->cpu, i, &bucket) == TAMIS_OK)
            held += bucket.residual_length;
    }
    return held;
}

void pair_compare_vectors(pair *p) {
    test_rank *self = p->self;
    const float *cpu, *cuda;
    size_t bytes = held_by(p) * sizeof *cpu;
    RANK_CUDA(self, cudaStreamSynchronize(p->stream));
    RANK_CHECK(self, memcmp(p->grad, p->host, p->bytes) == 0, "the gradients differ");
    RANK_OK(self, tamis_reducer_residual(p->cpu, &cpu));
    RANK_OK(self, tamis_reducer_residual(p->cuda, &cuda));
    RANK_CHECK(self, !cuda == !cpu, "there is a residual, or none");
    RANK_CHECK(self, !cpu || memcmp(cuda, cpu, bytes) == 0, "the residuals differ");
}

static void compare_stats(pair *p) {
    tamis_stats cpu = TAMIS_STATS_INIT, cuda = TAMIS_STATS_INIT;
    RANK_OK(p->self, tamis_reducer_stats(p->cpu, &cpu));
    RANK_OK(p->self, tamis_reducer_stats(p->cuda, &cuda));
    const uint64_t pairs[][2] = {
        {cuda.steps, cpu.steps},           {cuda.target, cpu.target},
        {cuda.selected, cpu.selected},     {cuda.sent, cpu.sent},
        {cuda.sent_max, cpu.sent_max},     {cuda.deferred, cpu.deferred},
        {cuda.candidates, cpu.candidates}, {cuda.rescans, cpu.rescans},
        {cuda.nonfinite, cpu.nonfinite},   {cuda.skipped, cpu.skipped},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        RANK_CHECK(p->self, pairs[i][0] == pairs[i][1], "figure %zu is %llu, not %llu", i,
                   (unsigned long long)pairs[i][0], (unsigned long long)pairs[i][1]);
    RANK_CHECK(p->self, cuda.density == cpu.density, "density %g, not %g", cuda.density,
               cpu.density);
    RANK_CHECK(p->self, cuda.update_scale == cpu.update_scale, "scale %g, not %g",
               cuda.update_scale, cpu.update_scale);
    RANK_CHECK(p->self, cuda.threshold == cpu.threshold, "threshold %g, not %g", cuda.threshold,
               cpu.threshold);
    RANK_CHECK(p->self, cuda.acc_norm == cpu.acc_norm, "norm %g, not %g", cuda.acc_norm,
               cpu.acc_norm);
    bool near = fabs(cuda.residual_norm - cpu.residual_norm) <= 1e-7 * (1 + cpu.acc_norm);
    RANK_CHECK(p->self, near || (isinf(cuda.residual_norm) && isinf(cpu.residual_norm)),
               "norm of the residual %g, not %g", cuda.residual_norm, cpu.residual_norm);
}

void pair_compare_buckets(pair *p) {
    uint32_t count = tamis_reducer_nbuckets(p->cpu);
    RANK_CHECK(p->self, tamis_reducer_nbuckets(p->cuda) == count, "they differ in buckets");
    for (uint32_t i = 0; i < count; i++) {
        tamis_bucket cpu = TAMIS_BUCKET_INIT, cuda = TAMIS_BUCKET_INIT;
        RANK_OK(p->self, tamis_reducer_bucket_at(p->cpu, i, &cpu));
        RANK_OK(p->self, tamis_reducer_bucket_at(p->cuda, i, &cuda));
        RANK_CHECK(p->self, cuda.target == cpu.target, "bucket %u is to send %llu, not %llu", i,
                   (unsigned long long)cuda.target, (unsigned long long)cpu.target);
    }
}

void pair_compare(pair *p) {
    compare_results(p);
    if (!p->self->failure[0])
        pair_compare_vectors(p);
    if (!p->self->failure[0])
        compare_stats(p);
    if (!p->self->failure[0])
        pair_compare_buckets(p);
}
