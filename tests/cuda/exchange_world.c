/* SPDX-License-Identifier: MIT
 *
 * Ranks that exchange on the device: their memory, one step, and what must be true after it.
 */
#include "tests/cuda/exchange_world.h"
#include "lib/contracts/index_codec.h"
#include "lib/contracts/value_codec.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/rank.h"
#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/stats.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

exchange_trial exchange_usual(void) {
    return (exchange_trial){
        .scheme = "tamis", .nranks = 3, .n = 2600, .density = 0.05, .fault_step = EXCHANGE_NO_STEP};
}

static size_t bytes_of(const exchange_endpoint *s) {
    return s->trial->n * sizeof(float);
}

/* -- open and close --------------------------------------------------------------------------- */

static void open_cpu(exchange_endpoint *s) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    config.scheme = s->trial->scheme;
    config.density = s->trial->density;
    config.output = s->trial->output;
    config.nonfinite = s->trial->policy;
    config.index_codec = s->trial->index_codec;
    config.value_codec = s->trial->value_codec;
    config.rows_capacity = s->trial->rows_capacity;
    RANK_OK(s->self, tamis_reducer_create(s->self->comm, s->layout, &config, &s->cpu));
}

static tam_cuda_value_codec value_codec_of(tamis_value_codec type) {
    const tam_value_codec *row = tam_value_codec_of(type);
    return (tam_cuda_value_codec){.type = type, .bits = row->bits, .scale_bytes = row->scale_bytes};
}

static tam_cuda_codecs codecs_of(exchange_endpoint *s, uint32_t capacity) {
    const exchange_trial *t = s->trial;
    tam_cuda_codecs f = {0};
    if (t->value_codec != TAMIS_VALUE_AUTO) {
        f.up = value_codec_of(t->value_codec);
        f.down = value_codec_of(tam_sum_codec_resolve(TAMIS_VALUE_AUTO, t->value_codec));
    }
    if (t->index_codec == TAMIS_INDEX_AUTO)
        return f;
    for (uint32_t i = 0; i < t->nranks; i++)
        s->parts[i] = tam_strided_of(&s->division, i);
    f.index = t->index_codec;
    f.span = tam_own_max(&s->division);
    f.parts = s->parts;
    f.index_bytes =
        tam_header_round((size_t)tam_index_codec_of(t->index_codec)->bytes(f.span, capacity));
    return f;
}

/* Lists of rows, which every rank may list. */
static void plan_rows(exchange_endpoint *s, tam_cuda_plan *plan) {
    const exchange_trial *t = s->trial;
    uint32_t count = (uint32_t)t->n / t->row_length;
    uint32_t capacity = t->rows_capacity < count ? t->rows_capacity : count;
    uint64_t sent = (uint64_t)capacity * t->row_length * t->nranks;
    plan->row_length = t->row_length;
    plan->packet_capacity = capacity;
    plan->union_max = (uint32_t)(sent < t->n ? sent : t->n);
    if (t->index_codec == TAMIS_INDEX_AUTO)
        return;
    for (uint32_t i = 0; i < t->nranks; i++)
        s->parts[i] = (tam_strided){0, count, count, count};
    plan->codecs.span = count;
    plan->codecs.index_bytes =
        tam_header_round((size_t)tam_index_codec_of(t->index_codec)->bytes(count, capacity));
}

static tam_cuda_plan plan_of(exchange_endpoint *s, uint64_t k) {
    const exchange_trial *t = s->trial;
    uint32_t nranks = t->nranks, capacity = (uint32_t)tam_budget_max(&s->division, k);
    uint64_t sent = (uint64_t)capacity * nranks;
    for (uint32_t i = 0; i < nranks; i++) {
        uint64_t before, upto;
        tam_budget_span(&s->division, i, s->self->id, &before, &upto);
        s->spans[i] = (tam_cuda_span){(uint32_t)before, (uint32_t)upto};
    }
    return (tam_cuda_plan){
        .grid = &s->division.grid,
        .rank = s->self->id,
        .nranks = nranks,
        .kind = TAM_SELECT_TOTAL,
        .weighted = tam_scheme_weighted(s->scheme),
        .quota.spans = s->spans,
        .packet_capacity = capacity,
        .union_max = (uint32_t)(sent < t->n ? sent : t->n),
        .nstats = tam_scheme_weighted(s->scheme) ? s->division.grid.ngroups : 0,
        .with_values = s->scheme.exchange == TAM_EXCHANGE_PAIRS,
        .codecs = codecs_of(s, capacity),
        .dense_output = t->output == TAMIS_OUTPUT_DENSE,
        .divisor = (float)nranks,
        .nonfinite = t->policy,
        .control = &s->control,
    };
}

/* As a reducer does. */
static void open_step(exchange_endpoint *s) {
    const exchange_trial *t = s->trial;
    test_rank *self = s->self;
    const double over = 1.5;
    RANK_OK(self, tam_scheme_parse(t->scheme, &s->scheme));
    if (t->row_length > 0)
        s->scheme = (tam_scheme){TAM_OWN_ALL, TAM_BUDGET_GLOBAL, TAM_THRESHOLD_EXACT,
                                 TAM_EXCHANGE_SPARSE_ROWS};
    RANK_CHECK(self, tam_scheme_exact_count(s->scheme), "%s has no exact count", t->scheme);
    RANK_OK(self, tam_division_open(s->layout, s->scheme, t->nranks, 0, &s->division));
    uint64_t k = (uint64_t)fmax(floor(t->density * (double)t->n), 1);
    RANK_OK(self, tam_control_open(s->scheme, &s->division.grid, k, over, 0.0, &s->control));
    tam_cuda_plan plan = plan_of(s, k);
    if (t->row_length > 0)
        plan_rows(s, &plan);
    size_t own = tam_own_max(&s->division), most = (size_t)(8 * over * plan.packet_capacity) + 4096;
    RANK_OK(self, tam_device_cuda.open(&s->division.grid, most < own ? most : own, 1, &s->device));
    s->acc = tam_device_cuda.alloc(s->device, bytes_of(s));
    RANK_CHECK(self, s->acc, "no memory");
    RANK_OK(self, tam_cuda_step_open(s->device, &plan, s->acc, &s->step));
    RANK_OK(self, tam_cuda_step_load(s->step, EXCHANGE_CONFIG, &(tam_cuda_past){.k = k}));
    s->buffers = tam_cuda_step_buffers(s->step);
    RANK_CHECK(self, s->buffers->packet_bytes % 16 == 0, "packets of %zu bytes",
               s->buffers->packet_bytes);
    if (!t->direct)
        RANK_OK(self, tam_cuda_step_capture(s->step, exchange_enqueue, s));
}

static void take_memory(exchange_endpoint *s) {
    test_rank *self = s->self;
    RANK_CUDA(self, cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    for (int i = 0; i < 2; i++)
        RANK_CUDA(self, cudaMalloc((void **)&s->grads[i], bytes_of(s)));
    RANK_CUDA(self, cudaMallocHost((void **)&s->given, bytes_of(s)));
    s->owed = calloc(s->trial->n, sizeof *s->owed);
    s->before = calloc(s->trial->n, sizeof *s->before);
    s->earlier = calloc(s->trial->nranks, s->buffers->packet_bytes);
    RANK_CHECK(self, s->owed && s->before && s->earlier, "no memory");
}

/* One segment. */
static tamis_layout *layout_with_rows(const exchange_trial *t) {
    const tamis_segment segment = {"rows", t->n};
    tamis_layout *layout = NULL;
    if (tamis_layout_create(&segment, 1, &layout) != TAMIS_OK)
        return NULL;
    return tamis_layout_set_rows(layout, 0, t->row_length) == TAMIS_OK ? layout : NULL;
}

static void open_endpoint(exchange_endpoint *s) {
    RANK_CUDA(s->self, cudaSetDevice((int)s->self->id));
    for (int phase = 0; phase < PHASES; phase++)
        s->tickets[phase] = (struct exchange_ticket){s, (exchange_phase)phase};
    s->nsegments = data_segments(s->trial->n, s->segments);
    s->layout = s->trial->row_length > 0 ? layout_with_rows(s->trial) : data_layout(s->trial->n);
    open_cpu(s);
    if (!exchange_failed(s))
        open_step(s);
    if (!exchange_failed(s))
        take_memory(s);
}

static void close_endpoint(exchange_endpoint *s) {
    if (s->graph)
        cudaGraphExecDestroy(s->graph);
    tam_cuda_step_close(s->step);
    if (s->acc)
        tam_device_cuda.release(s->device, s->acc);
    if (s->device)
        tam_device_cuda.close(s->device);
    tam_control_close(&s->control);
    tam_division_close(&s->division);
    tamis_reducer_destroy(s->cpu);
    tamis_layout_destroy(s->layout);
    if (s->stream)
        cudaStreamDestroy(s->stream);
    cudaFree(s->grads[0]);
    cudaFree(s->grads[1]);
    cudaFreeHost(s->given);
    free(s->owed);
    free(s->before);
    free(s->earlier);
}

/* -- run -------------------------------------------------------------------------------------- */

static void run_rank(test_rank *self) {
    exchange_group *g = self->shared;
    exchange_endpoint *s = &g->endpoints[self->id];
    *s = (exchange_endpoint){.self = self, .group = g, .trial = &g->trial};
    open_endpoint(s);
    if (!exchange_failed(s) && rank_barrier(self))
        g->work(s);
    if (exchange_failed(s))
        exchange_leave(g);
    if (s->buffers)
        cudaStreamSynchronize(s->buffers->stream);
    (void)rank_barrier(self); /* the others may still read what this rank sends */
    close_endpoint(s);
}

void exchange_run(const exchange_trial *trial, void (*work)(exchange_endpoint *endpoint)) {
    static exchange_group g;
    g = (exchange_group){.trial = *trial, .work = work};
    pthread_mutex_init(&g.lock, NULL);
    pthread_cond_init(&g.changed, NULL);
    ranks_run(trial->nranks, 0, run_rank, &g);
    pthread_cond_destroy(&g.changed);
    pthread_mutex_destroy(&g.lock);
    fake_cuda_objects left = fake_cuda_alive();
    if (left.allocations + left.streams + left.events + left.graphs > 0)
        fail_msg("[%s] %u allocations, %u streams, %u events, %u graphs stayed behind",
                 test_context_text(), left.allocations, left.streams, left.events, left.graphs);
}

/* -- a step ----------------------------------------------------------------------------------- */

static void fill(exchange_endpoint *s) {
    const exchange_trial *t = s->trial;
    if (t->real)
        data_fill_real(s->self->id, s->made, t->n, s->given);
    else
        data_fill(DATA_HEAVY, s->self->id, s->made, t->n, s->given);
    if (t->touch)
        t->touch(s->self->id, s->made, t->n, s->given);
    for (size_t i = 0; i < t->n; i++)
        s->owed[i] += s->given[i];
    memcpy(s->before, s->acc, bytes_of(s));
    s->made++;
}

static tam_accumulate target_of(exchange_endpoint *s) {
    tam_accumulate target = {
        .decay = 1.0f, .scale = 1.0f, .clear = s->trial->output == TAMIS_OUTPUT_DENSE};
    if (!s->trial->by_segment) {
        target.grad = s->grad;
        return target;
    }
    for (size_t i = 0, at = 0; i < s->nsegments; at += s->segments[i++].length)
        s->pointers[i] = s->grad + at;
    target.grads = s->pointers;
    return target;
}

/* Upload, step, join: what a training loop enqueues. */
static void enqueue(exchange_endpoint *s, uint64_t *serial) {
    tam_accumulate target = target_of(s);
    RANK_CUDA(s->self,
              cudaMemcpyAsync(s->grad, s->given, bytes_of(s), cudaMemcpyHostToDevice, s->stream));
    RANK_OK(s->self, tam_cuda_step_run(s->step, &target, s->stream, exchange_enqueue, s, serial));
    RANK_OK(s->self, tam_cuda_step_join(s->step, s->stream));
}

static void wait_for_report(exchange_endpoint *s, uint64_t serial) {
    uint64_t end = now_ms() + (uint64_t)test_long_ms() * test_slowness();
    bool done = false;
    while (!done) {
        RANK_OK(s->self, tam_cuda_step_poll(s->step, serial, &done, &s->report));
        RANK_CHECK(s->self, done || now_ms() < end, "no report");
        sched_yield();
    }
    RANK_CUDA(s->self, cudaStreamSynchronize(s->stream));
}

void exchange_step(exchange_endpoint *s, int place) {
    uint64_t serial = 0;
    s->grad = s->grads[place];
    fill(s);
    enqueue(s, &serial);
    if (exchange_failed(s))
        return;
    wait_for_report(s, serial);
    s->serial++;
    RANK_CHECK(s->self, serial == s->serial && s->report.serial == serial, "serial %llu, %llu",
               (unsigned long long)serial, (unsigned long long)s->report.serial);
}

static void capture(exchange_endpoint *s) {
    cudaGraph_t graph;
    uint64_t serial = 1;
    RANK_CUDA(s->self, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal));
    enqueue(s, &serial);
    RANK_CUDA(s->self, cudaStreamEndCapture(s->stream, &graph));
    RANK_CHECK(s->self, serial == 0, "a captured step was counted");
    RANK_CUDA(s->self, cudaGraphInstantiate(&s->graph, graph, 0));
    cudaGraphDestroy(graph);
}

void exchange_step_by_graph(exchange_endpoint *s) {
    s->grad = s->grads[0];
    fill(s);
    if (!s->graph)
        capture(s);
    if (exchange_failed(s))
        return;
    RANK_CUDA(s->self, cudaGraphLaunch(s->graph, s->stream));
    RANK_CUDA(s->self, cudaStreamSynchronize(s->stream));
    wait_for_report(s, 0);
    s->by_caller++;
    RANK_CHECK(s->self, s->report.serial == s->by_caller, "serial %llu, not %llu",
               (unsigned long long)s->report.serial, (unsigned long long)s->by_caller);
}

/* -- checks ----------------------------------------------------------------------------------- */

static void compare_result(exchange_endpoint *s, const float *grad) {
    tamis_result cpu = TAMIS_RESULT_INIT;
    const float *residual;
    tam_cuda_result cuda = tam_cuda_step_result(s->step);
    RANK_OK(s->self, tamis_reducer_result(s->cpu, &cpu));
    RANK_OK(s->self, tamis_reducer_residual(s->cpu, &residual));
    RANK_CHECK(s->self, memcmp(s->acc, residual, bytes_of(s)) == 0, "the residual differs");
    RANK_CHECK(s->self, *cuda.count == cpu.count, "%u entries, not %zu", *cuda.count, cpu.count);
    RANK_CHECK(s->self, memcmp(cuda.indices, cpu.indices, cpu.count * sizeof(float)) == 0,
               "the indices differ");
    RANK_CHECK(s->self, memcmp(cuda.values, cpu.values, cpu.count * sizeof(float)) == 0,
               "the values differ");
    if (s->trial->output == TAMIS_OUTPUT_SPARSE)
        grad = s->given;
    RANK_CHECK(s->self, memcmp(s->grad, grad, bytes_of(s)) == 0, "the gradient differs");
}

static void compare_report(exchange_endpoint *s) {
    const tam_cuda_report *r = &s->report;
    tamis_stats cpu = TAMIS_STATS_INIT;
    RANK_OK(s->self, tamis_reducer_stats(s->cpu, &cpu));
    RANK_CHECK(s->self, r->status == (cpu.skipped ? TAMIS_E_NONFINITE : TAMIS_OK), "%s: %s",
               tamis_status_name((tamis_status)r->status), tam_refusal_words(r->refused));
    RANK_CHECK(s->self, r->step == s->number, "it is called step %llu, not %llu",
               (unsigned long long)r->step, (unsigned long long)s->number);
    const uint64_t pairs[][2] = {
        {r->selected, cpu.selected},     {r->sent, cpu.sent},
        {r->sent_max, cpu.sent_max},     {r->deferred, cpu.deferred},
        {r->candidates, cpu.candidates}, {r->rescans, cpu.rescans},
        {r->nonfinite, cpu.nonfinite},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        RANK_CHECK(s->self, pairs[i][0] == pairs[i][1], "figure %zu is %llu, not %llu", i,
                   (unsigned long long)pairs[i][0], (unsigned long long)pairs[i][1]);
    RANK_CHECK(s->self, r->key == (float)cpu.threshold, "key %g, not %g", (double)r->key,
               cpu.threshold);
    RANK_CHECK(s->self, sqrt(r->acc_sum) == cpu.acc_norm, "norm %g, not %g", sqrt(r->acc_sum),
               cpu.acc_norm);
    double rest = sqrt(fmax(r->acc_sum - r->sent_sum, 0)); /* summed in another order */
    bool near = fabs(rest - cpu.residual_norm) <= 1e-7 * (1 + cpu.acc_norm);
    RANK_CHECK(s->self, near || (isinf(rest) && isinf(cpu.residual_norm)),
               "norm of the residual %g, not %g", rest, cpu.residual_norm);
}

static void follow(exchange_endpoint *s, float *grad) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = grad;
    RANK_OK(s->self, tamis_reducer_start(s->cpu, &step));
    s->self->where = "wait on the CPU";
    tamis_status status = tamis_reducer_wait(s->cpu);
    RANK_CHECK(s->self, tamis_status_loss(status) != TAMIS_LOST_COMM, "on the CPU: %s",
               tamis_last_error());
}

void exchange_follow(exchange_endpoint *s, bool compared) {
    if (exchange_failed(s))
        return;
    float *grad = malloc(bytes_of(s));
    RANK_CHECK(s->self, grad, "no memory");
    memcpy(grad, s->owed, bytes_of(s));
    memset(s->owed, 0, bytes_of(s));
    follow(s, grad);
    if (compared && !exchange_failed(s))
        compare_report(s);
    if (compared && !exchange_failed(s))
        compare_result(s, grad);
    s->number++;
    free(grad);
}

void exchange_go_on(exchange_endpoint *s, uint32_t steps) {
    for (uint32_t i = 0; i < steps && !exchange_failed(s); i++) {
        exchange_step(s, 0);
        exchange_follow(s, true);
    }
}

void exchange_check_kept(exchange_endpoint *s, uint32_t refused, uint32_t rank, const char *words) {
    const tam_cuda_report *r = &s->report;
    bool dense = s->trial->output == TAMIS_OUTPUT_DENSE;
    if (exchange_failed(s))
        return;
    RANK_CHECK(s->self, r->status == TAMIS_E_PROTOCOL, "%s",
               tamis_status_name((tamis_status)r->status));
    const char *why = tam_refusal_words(r->refused);
    RANK_CHECK(s->self, r->refused == refused && has_word(why, words), "refused %u: %s", r->refused,
               why);
    RANK_CHECK(s->self, r->rank == rank, "it is rank %u, not %u", r->rank, rank);
    RANK_CHECK(s->self, r->step == s->number, "it is called step %llu, not %llu",
               (unsigned long long)r->step, (unsigned long long)s->number);
    RANK_CHECK(s->self, r->selected == 0 && *tam_cuda_step_result(s->step).count == 0,
               "there is a result");
    for (size_t i = 0; i < s->trial->n; i++) {
        const float sum = s->before[i] + s->given[i];
        RANK_CHECK(s->self, memcmp(&s->acc[i], &sum, sizeof sum) == 0, "acc[%zu] is %g, not %g", i,
                   (double)s->acc[i], (double)sum);
        RANK_CHECK(s->self, s->grad[i] == (dense ? 0.0f : s->given[i]), "grad[%zu] is %g", i,
                   (double)s->grad[i]);
    }
}

void exchange_reload(exchange_endpoint *s, uint64_t config) {
    tam_cuda_past past = {0};
    if (exchange_failed(s))
        return;
    RANK_OK(s->self, tam_cuda_step_save(s->step, &past));
    RANK_CHECK(s->self, past.number == s->number, "the state is of step %llu, not %llu",
               (unsigned long long)past.number, (unsigned long long)s->number);
    if (s->self->id == 0)
        s->group->last_result = past.last_result;
    RANK_BARRIER(s->self);
    past.last_result = s->group->last_result;
    RANK_OK(s->self, tam_cuda_step_load(s->step, config, &past));
}
