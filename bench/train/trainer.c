/* SPDX-License-Identifier: MIT */
#include "bench/train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/overlap.h>
#include <xxhash.h>

#include "bench/common/device.h"
#include "bench/common/half.h"
#include "bench/common/measure.h"
#include "bench/common/reducer.h"
#include "bench/common/report.h"
#include "bench/train/density.h"

static void report_phase(void *context, const tamis_phase_event *event) {
    trainer *t = context;
    if (t->trace)
        bench_trace_phase(t->trace, event);
    tamis_energy_on_phase(t->energy.meter, event);
}

static void open_reducer(trainer *t) {
    tamis_update update = optimizer_as_update(t->settings);
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout;
    config.scheme = t->settings->scheme;
    config.density = t->settings->density;
    config.byte_share = t->settings->byte_share;
    config.density_max = density_most(t->settings);
    pipeline_density(&t->pipeline, &config);
    config.output = t->sparse ? TAMIS_OUTPUT_SPARSE : TAMIS_OUTPUT_DENSE;
    config.device = t->device;
    config.bucket_length = t->settings->bucket_length;
    config.update = t->settings->reduce == TRAIN_UPDATE ? &update : NULL;
    config.on_phase = report_phase;
    config.on_phase_context = t;
    bench_reducer_set(t->settings->set, train_own_options, &config, config.update ? &update : NULL);
    bench_try(t->group, tamis_layout_create(t->work.segments, (uint32_t)t->work.nsegments, &layout),
              "cannot create a layout");
    bench_try(t->group, tamis_reducer_create(t->group->comm, layout, &config, &t->reducer),
              "cannot create a reducer");
    tamis_layout_destroy(layout);
}

/* Correct and slow: gradient and result go through host memory in every step. */
static void open_device(trainer *t) {
    size_t n = t->work.length;
    t->device = (tamis_device)t->settings->device;
    t->device_grad = t->grad;
    if (t->device == TAMIS_DEVICE_CPU)
        return;
    t->device_grad = bench_device_alloc(t->device, n * sizeof(float));
    t->indices = bench_alloc(n, sizeof *t->indices);
    t->values = bench_alloc(n, sizeof *t->values);
}

static void close_device(trainer *t) {
    free(t->values);
    free(t->indices);
    if (t->device != TAMIS_DEVICE_CPU)
        bench_device_free(t->device, t->device_grad);
}

/* Records steps 0, every, 2 every, ... before `end`. */
static void open_recording(trainer *t) {
    const train_settings *s = t->settings;
    if (!s->record)
        return;
    bench_recording_create(t->group, s->record, t->work.segments, t->work.nsegments,
                           (t->steps + s->record_every - 1) / s->record_every, s->record_every,
                           &t->recording);
}

static void record(trainer *t) {
    uint64_t every = t->settings->record_every;
    if (t->settings->record && t->step % every == 0)
        bench_recording_put(t->group, &t->recording, t->step / every, t->grad);
}

/* -- the life of a trainer -------------------------------------------------------------------- */

/* Files with the same name may differ. A rank with another number of samples would run other
 * steps. */
static void check_data(trainer *t) {
    const uint64_t mine[] = {t->data->count[WORKLOAD_TRAIN], t->data->count[WORKLOAD_VALIDATE],
                             t->work.identity, t->data->hash};
    if (!bench_same(t->world, XXH3_64bits(mine, sizeof mine)))
        bench_fail(t->world,
                   "the ranks were given different data: this rank has %llu training and %llu "
                   "validation samples, with hash %016llx; give the same --data everywhere",
                   (unsigned long long)mine[0], (unsigned long long)mine[1],
                   (unsigned long long)mine[3]);
}

void trainer_open(bench_group *world, const train_settings *settings, const workload_data *data,
                  trainer *out) {
    size_t count = data->count[WORKLOAD_TRAIN];
    uint32_t ranks = world->nranks / (uint32_t)settings->stages;
    uint64_t together = ranks * settings->batch;
    *out = (trainer){.settings = settings, .data = data, .world = world};
    if (count < together) /* fail before memory is allocated */
        bench_fail(world, "%u ranks with batch %llu need more than the %zu samples available",
                   ranks, (unsigned long long)settings->batch, count);
    out->dense = train_is_dense(settings);
    out->sparse = settings->optimizer == TRAIN_SGD && !out->dense && settings->local_steps == 0;
    out->totals.count_exact = true;
    out->totals.density_min = INFINITY;

    pipeline_open(world, settings, data, &out->work, &out->pipeline);
    out->group = out->pipeline.group;
    order_open(count, settings->seed, together, &out->order);
    out->steps =
        settings->steps ? settings->steps : settings->epochs * order_epoch_steps(&out->order);

    check_data(out);
    optimizer_open(settings, out->work.length, &out->optimizer);
    out->params = bench_alloc(out->work.length, sizeof(float));
    out->grad = bench_alloc(out->work.length, sizeof(float));
    out->work.kind->init(&out->work, settings->seed, out->params);
    open_device(out);
    out->trace = settings->trace ? bench_trace_open(world) : NULL;
    bench_energy_files files = {settings->energy_log, settings->intensity};
    bench_energy_open(world, &files, &out->energy);
    govern_open(settings, world, &out->governor);
    open_reducer(out);
    low_rank_open(out->group, &out->work, settings->low_rank, settings->seed, &out->low_rank);
    local_steps_open(out->group, settings, &out->work, out->reducer, out->params, &out->local);
    open_recording(out);
}

void trainer_close(trainer *t) {
    if (t->settings->record)
        bench_recording_close(&t->recording);
    local_steps_close(&t->local);
    low_rank_close(&t->low_rank);
    tamis_reducer_destroy(t->reducer);
    govern_close(&t->governor, t->energy.group);
    bench_energy_close(&t->energy);
    bench_trace_close(t->trace, t->settings->trace_file);
    close_device(t);
    order_close(&t->order);
    free(t->grad);
    free(t->params);
    optimizer_close(&t->optimizer);
    pipeline_close(&t->pipeline);
}

static const uint32_t *next_samples(trainer *t) {
    return order_of(&t->order, t->step) + t->group->rank * t->settings->batch;
}

double trainer_rate(const trainer *t, uint64_t step) {
    return optimizer_rate(t->settings, step, t->steps);
}

/* A micro-batch has the weight of its share of the samples. */
static tamis_step step_of(const trainer *t) {
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = t->device_grad;
    step.scale = 1.0f / (float)t->pipeline.micro_batches;
    return step;
}

/* In the backward pass: the reducer's work is a separate phase. */
static double begin_ready(trainer *t) {
    tamis_energy_end(t->energy.meter, TAMIS_ENERGY_COMPUTE);
    return bench_now_s();
}

static void end_ready(trainer *t, double begin) {
    t->ready_s += bench_now_s() - begin;
    tamis_energy_begin(t->energy.meter, TAMIS_ENERGY_COMPUTE);
}

/* Every micro-batch but the last is added to the residual separately. */
static void keep_gradient(void *context) {
    trainer *t = context;
    tamis_step step = step_of(t);
    double begin = begin_ready(t);
    bench_try(t->group, tamis_reducer_accumulate(t->reducer, &step), "gradient of a micro-batch");
    end_ready(t, begin);
}

/* The last segment first, in the order of the backward pass. */
static void layer_ready(void *context, size_t layer) {
    trainer *t = context;
    tamis_step step = step_of(t);
    const uint32_t *first = t->work.layer_first + layer;
    double begin = begin_ready(t);
    for (uint32_t i = first[1]; i-- > first[0];)
        bench_try(t->group, tamis_reducer_ready(t->reducer, i, &step), "gradient of a layer");
    end_ready(t, begin);
}

/* Forward and backward. @return the loss. */
static double compute(trainer *t) {
    pipeline_step step = {
        .number = t->step,
        .params = t->params,
        .grad = t->grad,
        .order = next_samples(t),
        .micro_batch = t->dense ? NULL : keep_gradient,
        .layer = t->settings->overlap ? layer_ready : NULL,
        .context = t,
        .trace = t->trace,
    };
    double waited = pipeline_waited_s(&t->pipeline);
    t->ready_s = 0.0;
    tamis_energy_begin(t->energy.meter, TAMIS_ENERGY_COMPUTE);
    double loss = pipeline_passes(&t->pipeline, &step);
    tamis_energy_end(t->energy.meter, TAMIS_ENERGY_COMPUTE);
    t->message_s = pipeline_waited_s(&t->pipeline) - waited;
    return loss;
}

/* The rest of the exchange, after the backward pass. */
static void reduce(trainer *t) {
    size_t bytes = t->work.length * sizeof(float);
    bool elsewhere = t->device != TAMIS_DEVICE_CPU;
    tamis_step step = step_of(t);
    if (t->local.handle)
        return;
    if (t->low_rank.rank) {
        low_rank_reduce(&t->low_rank, t->grad);
        return;
    }
    if (elsewhere)
        bench_device_write(t->device, t->grad, bytes, t->device_grad);
    if (!t->settings->overlap)
        bench_try(t->group, tamis_reducer_start(t->reducer, &step), "start of a step");
    pipeline_watch(&t->pipeline, t->step, t->reducer, t->trace);
    bench_try(t->group, tamis_reducer_wait(t->reducer), "end of a step");
    if (elsewhere && !t->sparse)
        bench_device_read(t->device, t->device_grad, bytes, t->grad);
}

static tamis_result sparse_result(trainer *t) {
    tamis_result result = TAMIS_RESULT_INIT;
    bench_try(t->group, tamis_reducer_result(t->reducer, &result), "result of a step");
    if (result.memory == TAMIS_DEVICE_CPU)
        return result;
    bench_device_read(result.memory, result.indices, result.count * sizeof *t->indices, t->indices);
    bench_device_read(result.memory, result.values, result.count * sizeof *t->values, t->values);
    result.indices = t->indices;
    result.values = t->values;
    return result;
}

static void update(trainer *t) {
    optimizer_pace pace = {t->step, (float)trainer_rate(t, t->step)};
    if (t->sparse) {
        tamis_result r = sparse_result(t);
        optimizer_update_sparse(pace.rate, r.indices, r.values, r.count, t->params);
        return;
    }
    optimizer_update(&t->optimizer, &t->work, &pace, t->grad, t->params);
}

static void count_density(train_totals *totals, double density) {
    totals->exchanges++;
    totals->density_sum += density;
    totals->density_min = fmin(totals->density_min, density);
    totals->density_max = fmax(totals->density_max, density);
}

static void count_exchange(trainer *t) {
    train_totals *totals = &t->totals;
    const tamis_stats *stats = &t->last;
    t->last = (tamis_stats)TAMIS_STATS_INIT;
    bench_try(t->group, tamis_reducer_stats(t->reducer, &t->last), "statistics of a step");
    if (t->low_rank.rank)
        low_rank_stats(&t->low_rank, &t->last);
    count_density(totals, stats->density);
    totals->accumulate_s += stats->accumulate_s;
    totals->select_s += stats->select_s;
    totals->exchange_s += stats->exchange_s;
    totals->apply_s += stats->apply_s;
    totals->wait_s += stats->wait_s;
    totals->rescans += stats->rescans;
    totals->count_exact = totals->count_exact && stats->selected == stats->target;
}

/* With local steps most steps exchange nothing. */
static void count_sent(trainer *t) {
    if (t->local.handle) {
        local_steps_news news = local_steps_count(&t->local);
        if (news.ended && news.under_way)
            count_density(&t->totals, news.density);
        else if (news.ended)
            count_exchange(t);
        t->last.wire_bytes = news.wire_bytes;
    } else {
        count_exchange(t);
    }
    t->totals.wire_bytes += t->last.wire_bytes;
}

static void count_step(trainer *t, double loss, const double at[5]) {
    train_totals *totals = &t->totals;
    totals->losses[totals->steps++ % TRAIN_LOSSES] = loss;
    totals->compute_s += at[1] - at[0] - t->ready_s - t->message_s + at[3] - at[2];
    totals->message_s += t->message_s;
    totals->exposed_s += t->ready_s + at[2] - at[1] + at[4] - at[3];
    count_sent(t);
    bench_energy_step(&t->energy, &t->last);
}

static void move_density(trainer *t) {
    double density = density_at(t->settings, t->step, t->steps);
    if (density_moves(t->settings))
        bench_try(t->group, tamis_reducer_set_density(t->reducer, density), "density of a step");
}

void trainer_step(trainer *t) {
    double at[5];
    at[0] = bench_now_s();
    move_density(t);
    double loss = compute(t);
    record(t);
    at[1] = bench_now_s();
    reduce(t);
    at[2] = bench_now_s();
    tamis_energy_begin(t->energy.meter, TAMIS_ENERGY_OPTIMIZER);
    update(t);
    tamis_energy_end(t->energy.meter, TAMIS_ENERGY_OPTIMIZER);
    at[3] = bench_now_s();
    if (t->local.handle)
        local_steps_step(&t->local);
    at[4] = bench_now_s();
    bench_trace_add(t->trace, "optimizer", t->step, BENCH_PART_STEP, 0, at[2], at[3]);
    t->step++;
    count_step(t, loss, at);
    pipeline_balance(&t->pipeline, t->step, t->reducer);
    govern_step(&t->governor, &t->energy, t->step, t->reducer);
    t->totals.time_s += bench_now_s() - at[0];
}

workload_score trainer_validate(trainer *t) {
    size_t count = t->data->count[WORKLOAD_VALIDATE], ranks = t->group->nranks;
    size_t rank = t->group->rank;
    workload_score sums = {0.0, 0.0};
    tamis_energy_begin(t->energy.meter, TRAIN_EVALUATE);
    pipeline_score(&t->pipeline, trainer_model(t), count * rank / ranks, count * (rank + 1) / ranks,
                   &sums);
    tamis_energy_end(t->energy.meter, TRAIN_EVALUATE);
    return (workload_score){
        .loss = bench_sum(t->world, sums.loss) / (double)count,
        .correct = bench_sum(t->world, sums.correct) / (double)count,
    };
}

double trainer_metric(const trainer *t, const workload_score *mean) {
    return t->work.kind->metric_is_loss ? mean->loss : mean->correct;
}

double trainer_loss(trainer *t) {
    uint64_t count = t->totals.steps < TRAIN_LOSSES ? t->totals.steps : TRAIN_LOSSES;
    double sum = 0.0;
    for (uint64_t i = 0; i < count; i++)
        sum += t->totals.losses[i];
    return bench_sum(t->world, sum) / ((double)(count ? count : 1) * t->group->nranks);
}

const float *trainer_model(const trainer *t) {
    return t->local.handle ? local_steps_base(&t->local) : t->params;
}

uint64_t trainer_model_hash(const trainer *t) {
    return XXH3_64bits(trainer_model(t), t->work.length * sizeof(float));
}

/* The order of samples follows from the seed. */
uint64_t trainer_data_hash(const trainer *t) {
    return XXH3_64bits_withSeed(&t->settings->seed, sizeof t->settings->seed, t->data->hash);
}

bool trainer_replicas_identical(trainer *t) {
    size_t bytes = t->work.length * sizeof *t->params;
    tamis_status status = tamis_comm_check_equal(t->group->comm, trainer_model(t), bytes);
    if (status != TAMIS_E_MISMATCH)
        bench_try(t->group, status, "comparison of the replicas");
    else if (t->group->rank == 0)
        fprintf(stderr, "the replicas differ after step %llu: %s\n", (unsigned long long)t->step,
                tamis_last_error());
    return bench_max(t->world, status == TAMIS_OK ? 0.0 : 1.0) == 0.0;
}

void trainer_check_replicas(trainer *t) {
    if (!trainer_replicas_identical(t))
        bench_fail(t->world, "the replicas are not identical, so further results would be wrong: "
                             "give all ranks the same parameters (--load files of one run)");
}
