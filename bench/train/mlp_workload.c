/* SPDX-License-Identifier: MIT
 *
 * The layers of mlp.h, all or those of a stage, as a workload.
 */
#include <stdlib.h>

#include "bench/common/measure.h"
#include "bench/train/images.h"
#include "bench/train/kinds.h"
#include "bench/train/mlp.h"
#include "bench/train/schedule.h"

_Static_assert(MLP_MAX_DEPTH + 1 <= SCHEDULE_LAYERS, "all layers of a model fit in the stages");

static mlp_shape shape_of(const train_settings *settings) {
    return (mlp_shape){settings->hidden, settings->depth};
}

static void check(const train_settings *settings) {
    mlp_check_shape(shape_of(settings));
}

static uint32_t layers(const train_settings *settings, uint64_t *lengths) {
    mlp_shape shape = shape_of(settings);
    for (size_t l = 0; l <= shape.depth; l++)
        lengths[l] = mlp_length(shape, l, 1);
    return (uint32_t)shape.depth + 1;
}

static void open_model(const train_settings *settings, const workload_part *part, workload *out) {
    tamis_segment segments[MLP_MAX_SEGMENTS];
    mlp *model = bench_alloc(1, sizeof *model);
    mlp_open(shape_of(settings), part->first, part->count, part->batch, part->slots, model);
    mlp_segments(model, segments);
    workload_reserve(out, 2 * part->count, part->count);
    for (size_t i = 0; i < part->count; i++) {
        workload_add(out, segments[2 * i].length,
                     segments[2 * i].length / segments[2 * i + 1].length, "%s",
                     segments[2 * i].name);
        workload_add(out, segments[2 * i + 1].length, 0, "%s", segments[2 * i + 1].name);
        workload_end_layer(out);
    }
    out->model = model;
}

static void close_model(workload *w) {
    mlp_close(w->model);
    free(w->model);
}

static void describe(const workload *w, json_t *record) {
    const mlp *model = w->model;
    json_object_set_new(record, "hidden", json_integer((json_int_t)model->shape.hidden));
    json_object_set_new(record, "depth", json_integer((json_int_t)model->shape.depth));
}

static void init(const workload *w, uint64_t seed, float *params) {
    mlp_init(w->model, seed, params);
}

static void take(workload *w, size_t slot, workload_set set, const uint32_t *order, size_t first,
                 size_t rows) {
    mlp_take(w->model, slot, images_set(w->data, set), order, first, rows);
}

static void forward(workload *w, const float *params, size_t slot) {
    mlp_forward(w->model, params, slot);
}

static double loss(workload *w, size_t slot) {
    return mlp_loss(w->model, slot);
}

static void backward(workload *w, const float *params, size_t slot, bool add, float *grad,
                     workload_hook hook, void *context) {
    mlp_backward(w->model, params, slot, add, grad, hook, context);
}

static void score(workload *w, size_t slot, size_t rows, workload_score *sums) {
    double loss_sum;
    sums->correct += (double)mlp_correct(w->model, slot, rows, &loss_sum);
    sums->loss += loss_sum;
}

static float *input(const workload *w, size_t slot, size_t *width) {
    const mlp *model = w->model;
    *width = mlp_inputs(model->shape, model->first);
    return mlp_input(model, slot);
}

static float *output(const workload *w, size_t slot, size_t *width) {
    const mlp *model = w->model;
    *width = mlp_outputs(model->shape, model->first + model->count - 1);
    return mlp_output(model, slot);
}

const workload_kind workload_mlp = {
    .name = "mlp",
    .metric = "test_accuracy",
    .metric_text = "test accuracy",
    .data = IMAGES_DATA,
    .batch = 32,
    .check = check,
    .load = images_load,
    .unload = images_unload,
    .hash = images_hash,
    .layers = layers,
    .open = open_model,
    .close = close_model,
    .describe = describe,
    .init = init,
    .take = take,
    .forward = forward,
    .loss = loss,
    .backward = backward,
    .score = score,
    .input = input,
    .output = output,
};
