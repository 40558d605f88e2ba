/* SPDX-License-Identifier: MIT
 *
 * The data that a pass of a micro-batch moves; in the middle a slot of the model, arrows are
 * messages:
 *
 *     forward    stage before ---> arrivals copied into input | layers | output ---> stage after
 *     backward   stage before <--- input | layers | output copied from arrivals <--- stage after
 *
 * The model's arrays are sent in place, so a pass first waits until the arrays that it will
 * overwrite are sent. Their receives are posted ahead, so this never waits for computation.
 */
#include "bench/train/pipeline.h"

#include <tamis/overlap.h>
#include <time.h>

#include "bench/common/measure.h"

static bool is_first(const pipeline *p) {
    return p->stage == 0;
}

bool pipeline_is_last(const pipeline *p) {
    return p->stage + 1 == p->nstages;
}

/* -- opening ---------------------------------------------------------------------------------- */

static void divide_ranks(pipeline *p) {
    uint32_t width = p->world->nranks / p->nstages;
    p->stage = p->world->rank / width;
    p->group = p->world;
    if (p->nstages == 1)
        return;
    bench_split(p->world, p->stage, &p->part);
    p->group = &p->part;
}

static void divide_layers(pipeline *p, const train_settings *settings, const workload_data *data) {
    const workload_kind *kind = workload_find(settings->workload);
    uint64_t lengths[SCHEDULE_LAYERS] = {1};
    uint32_t count = kind->layers ? kind->layers(settings, lengths) : 1;
    schedule_layers(lengths, count, p->nstages, p->first);
    workload_part part = {
        .first = p->first[p->stage],
        .count = p->first[p->stage + 1] - p->first[p->stage],
        .batch = settings->batch / settings->micro_batches,
        .slots = schedule_in_flight(p->stage, p->nstages, p->micro_batches),
    };
    workload_open(kind, settings, data, &part, p->work);
}

static void connect_neighbours(pipeline *p) {
    const workload *w = p->work;
    uint32_t rank = p->world->rank, abreast = p->group->nranks;
    size_t width, column = w->batch * sizeof(float);
    if (!is_first(p)) {
        w->kind->input(w, 0, &width);
        neighbour_open(p->world, rank - abreast, column * width, w->slots, &p->before);
    }
    if (!pipeline_is_last(p)) {
        w->kind->output(w, 0, &width);
        neighbour_open(p->world, rank + abreast, column * width, w->slots, &p->after);
    }
}

static void divide_budget(pipeline *p, const train_settings *settings) {
    tamis_pipeline_config config = TAMIS_PIPELINE_CONFIG_INIT;
    config.stage = p->stage;
    config.nstages = p->nstages;
    config.micro_batches = p->micro_batches;
    config.length = p->work->length;
    config.density = settings->density;
    if (p->nstages == 1 || train_is_dense(settings))
        return;
    bench_try(p->world, tamis_pipeline_create(p->world->comm, &config, &p->budget),
              "cannot divide the budget of the stages");
}

void pipeline_open(bench_group *world, const train_settings *settings, const workload_data *data,
                   workload *work, pipeline *out) {
    *out = (pipeline){.world = world, .work = work};
    out->nstages = (uint32_t)settings->stages;
    out->micro_batches = (uint32_t)settings->micro_batches;
    divide_ranks(out);
    divide_layers(out, settings, data);
    connect_neighbours(out);
    divide_budget(out, settings);
}

void pipeline_close(pipeline *p) {
    tamis_pipeline_destroy(p->budget);
    neighbour_close(&p->after);
    neighbour_close(&p->before);
    workload_close(p->work);
    if (p->group == &p->part)
        bench_split_close(&p->part);
}

double pipeline_waited_s(const pipeline *p) {
    return p->before.waited_s + p->after.waited_s;
}

/* -- budget ----------------------------------------------------------------------------------- */

void pipeline_density(const pipeline *p, tamis_reducer_config *config) {
    tamis_stage stage = TAMIS_STAGE_INIT;
    if (!p->budget)
        return;
    bench_try(p->world, tamis_pipeline_stage_at(p->budget, p->stage, &stage), "density of a stage");
    config->density = stage.density;
    config->density_max = stage.density_max;
}

static bool balance_is_due(const pipeline *p, uint64_t steps) {
    return p->budget && steps % PIPELINE_BALANCE_EVERY == 0;
}

void pipeline_balance(pipeline *p, uint64_t steps, tamis_reducer *reducer) {
    if (balance_is_due(p, steps))
        bench_try(p->world, tamis_pipeline_balance(p->budget, reducer), "balance of the stages");
}

static void mark_input(pipeline *p) {
    if (p->budget && !p->input_marked)
        bench_try(p->world, tamis_pipeline_mark(p->budget, TAMIS_MARK_INPUT), "mark of an input");
    p->input_marked = true;
}

static void mark_backward(pipeline *p) {
    if (p->budget)
        bench_try(p->world, tamis_pipeline_mark(p->budget, TAMIS_MARK_BACKWARD), "mark of a step");
    p->input_marked = false;
}

/* Record when the next input arrives, while the exchange still runs. Recorded only afterwards, an
 * input that had to wait for the exchange would seem to come just in time, and the stage would
 * never get less density. The first stage has no message to watch: its input is there when its
 * exchange ends. A step after which the budget is divided does not count. */
void pipeline_watch(pipeline *p, uint64_t number, tamis_reducer *reducer, bench_trace *trace) {
    const struct timespec wait_time = {0, 20000};
    double begin = bench_now_s();
    int ended = 0;
    if (!p->budget || is_first(p) || balance_is_due(p, number + 1))
        return;
    while (!ended && !neighbour_arrived(&p->before)) {
        nanosleep(&wait_time, NULL);
        bench_try(p->group, tamis_reducer_test(reducer, &ended), "test of a step");
    }
    if (!ended)
        mark_input(p);
    bench_trace_add(trace, "watch", number, BENCH_PART_STEP, 0, begin, bench_now_s());
}

/* -- passes ----------------------------------------------------------------------------------- */

static float *input(const pipeline *p, size_t slot) {
    size_t width;
    return p->work->kind->input(p->work, slot, &width);
}

static float *output(const pipeline *p, size_t slot) {
    size_t width;
    return p->work->kind->output(p->work, slot, &width);
}

static void fill(pipeline *p, size_t slot, workload_set set, const uint32_t *order, size_t first,
                 size_t rows) {
    neighbour_sent(&p->before, slot);
    neighbour_sent(&p->after, slot);
    p->work->kind->take(p->work, slot, set, order, first, rows);
    if (!is_first(p))
        neighbour_take(&p->before, input(p, slot));
    mark_input(p);
}

static void send_output(pipeline *p, size_t slot) {
    if (!pipeline_is_last(p))
        neighbour_send(&p->after, slot, output(p, slot));
}

static double forward(pipeline *p, const pipeline_step *step, size_t slot, uint32_t micro) {
    workload *w = p->work;
    fill(p, slot, WORKLOAD_TRAIN, step->order + micro * w->batch, 0, w->batch);
    double begin = bench_now_s();
    w->kind->forward(w, step->params, slot);
    send_output(p, slot);
    double loss = pipeline_is_last(p) ? w->kind->loss(w, slot) : 0.0;
    bench_trace_add(step->trace, "forward", step->number, BENCH_PART_MICRO_BATCH, micro, begin,
                    bench_now_s());
    return loss;
}

/* A backward pass in progress. */
typedef struct descent {
    const pipeline_step *step;
    bool last;      /* of the step */
    double begin_s; /* of the current layer */
} descent;

/* The time since the layer above belongs to this layer: it computes the gradient of the layer's
 * output, then that of its weights. */
static void layer_done(void *context, size_t layer) {
    descent *d = context;
    bench_trace_add(d->step->trace, "backward", d->step->number, BENCH_PART_LAYER, (uint32_t)layer,
                    d->begin_s, bench_now_s());
    if (d->last && d->step->layer)
        d->step->layer(d->step->context, layer);
    d->begin_s = bench_now_s();
}

static void backward(pipeline *p, const pipeline_step *step, size_t slot, uint32_t micro) {
    neighbour_sent(&p->after, slot);
    if (!pipeline_is_last(p))
        neighbour_take(&p->after, output(p, slot));
    descent d = {step, micro + 1 == p->micro_batches, bench_now_s()};
    bool add = !step->micro_batch && micro > 0;
    p->work->kind->backward(p->work, step->params, slot, add, step->grad, layer_done, &d);
    if (!is_first(p))
        neighbour_send(&p->before, slot, input(p, slot));
    if (step->micro_batch && !d.last)
        step->micro_batch(step->context);
}

double pipeline_passes(pipeline *p, const pipeline_step *step) {
    double loss = 0.0;
    for (uint32_t i = 0; i < 2 * p->micro_batches; i++) {
        schedule_pass pass = schedule_1f1b(p->stage, p->nstages, p->micro_batches, i);
        size_t slot = pass.micro % p->work->slots;
        if (pass.backward)
            backward(p, step, slot, pass.micro);
        else
            loss += forward(p, step, slot, pass.micro);
    }
    mark_backward(p);
    return loss / p->micro_batches;
}

/* A short last batch keeps rows of the one before, which are not counted. */
void pipeline_score(pipeline *p, const float *params, size_t first, size_t past,
                    workload_score *sums) {
    workload *w = p->work;
    size_t slot = 0;
    for (size_t at = first; at < past; at += w->batch, slot = (slot + 1) % w->slots) {
        size_t rows = past - at < w->batch ? past - at : w->batch;
        fill(p, slot, WORKLOAD_VALIDATE, NULL, at, rows);
        w->kind->forward(w, params, slot);
        send_output(p, slot);
        if (pipeline_is_last(p))
            w->kind->score(w, slot, rows, sums);
    }
}
