/* SPDX-License-Identifier: MIT */
#include "bench/train/mlp.h"

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/random.h"
#include "bench/train/images.h"
#include "bench/train/scores.h"

enum { IN = IDX_PIXELS, OUT = IDX_CLASSES };

/* One layer of a slot: y = x W' + b, then ReLU, except in the model's last layer. */
typedef struct linear {
    size_t inputs, outputs;
    size_t offset; /* of W in the flat vector; b follows it */
    float *x, *y;  /* [batch][inputs], [batch][outputs] */
} linear;

size_t mlp_inputs(mlp_shape shape, size_t layer) {
    return layer == 0 ? IN : shape.hidden;
}

size_t mlp_outputs(mlp_shape shape, size_t layer) {
    return layer == shape.depth ? OUT : shape.hidden;
}

size_t mlp_length(mlp_shape shape, size_t first, size_t count) {
    size_t length = 0;
    for (size_t l = first; l < first + count; l++)
        length += mlp_outputs(shape, l) * (mlp_inputs(shape, l) + 1);
    return length;
}

void mlp_check_shape(mlp_shape shape) {
    size_t length = mlp_length(shape, 0, shape.depth + 1), most = ((size_t)1 << 32) - (1 << 16);
    if (length > most)
        bench_usage("--hidden %zu --depth %zu make %zu parameters; one reducer takes up to %zu",
                    shape.hidden, shape.depth, length, most);
}

static bool holds_first(const mlp *model) {
    return model->first == 0;
}

static bool holds_last(const mlp *model) {
    return model->first + model->count == model->shape.depth + 1;
}

/* The i-th layer that this model holds. */
static linear layer_at(const mlp *model, size_t slot, size_t i) {
    float **values = model->values + slot * (model->count + 1);
    return (linear){
        .inputs = mlp_inputs(model->shape, model->first + i),
        .outputs = mlp_outputs(model->shape, model->first + i),
        .offset = mlp_length(model->shape, model->first, i),
        .x = values[i],
        .y = values[i + 1],
    };
}

void mlp_open(mlp_shape shape, size_t first, size_t count, size_t batch, size_t slots, mlp *out) {
    *out = (mlp){
        .shape = shape,
        .first = first,
        .count = count,
        .batch = batch,
        .slots = slots,
        .length = mlp_length(shape, first, count),
        .values = bench_alloc(slots * (count + 1), sizeof(float *)),
        .back = bench_alloc(batch * shape.hidden, sizeof(float)),
        .labels = bench_alloc(slots * batch, 1),
        .names = bench_alloc(2 * count, sizeof *out->names),
    };
    for (size_t i = 0; i < count; i++) {
        snprintf(out->names[2 * i], sizeof *out->names, "W%zu", first + i + 1);
        snprintf(out->names[2 * i + 1], sizeof *out->names, "b%zu", first + i + 1);
    }
    for (size_t i = 0; i < slots * (count + 1); i++) {
        size_t at = i % (count + 1);
        size_t width = at == 0 ? mlp_inputs(shape, first) : mlp_outputs(shape, first + at - 1);
        out->values[i] = bench_alloc(batch * width, sizeof(float));
    }
}

void mlp_close(mlp *model) {
    for (size_t i = 0; i < model->slots * (model->count + 1); i++)
        free(model->values[i]);
    free((void *)model->values);
    free(model->back);
    free(model->labels);
    free(model->names);
}

void mlp_segments(const mlp *model, tamis_segment *out) {
    for (size_t i = 0; i < model->count; i++) {
        linear l = layer_at(model, 0, i);
        out[2 * i] = (tamis_segment){model->names[2 * i], l.outputs * l.inputs};
        out[2 * i + 1] = (tamis_segment){model->names[2 * i + 1], l.outputs};
    }
}

void mlp_init(const mlp *model, uint64_t seed, float *params) {
    memset(params, 0, model->length * sizeof *params);
    for (size_t i = 0; i < model->count; i++) {
        linear l = layer_at(model, 0, i);
        double deviation = sqrt(2.0 / (double)l.inputs);
        uint64_t key = bench_key(seed, 1, model->first + i);
        for (size_t w = 0; w < l.outputs * l.inputs; w++)
            params[l.offset + w] = (float)(deviation * bench_normal(key, w));
    }
}

void mlp_take(mlp *model, size_t slot, const idx_set *set, const uint32_t *order, size_t first,
              size_t rows) {
    for (size_t r = 0; r < rows; r++) {
        size_t sample = order ? order[r] : first + r;
        if (holds_first(model))
            images_row(set->images + sample * IN, mlp_input(model, slot) + r * IN);
        if (holds_last(model))
            model->labels[slot * model->batch + r] = set->labels[sample];
    }
}

float *mlp_input(const mlp *model, size_t slot) {
    return model->values[slot * (model->count + 1)];
}

float *mlp_output(const mlp *model, size_t slot) {
    return model->values[slot * (model->count + 1) + model->count];
}

void mlp_forward(mlp *model, const float *params, size_t slot) {
    for (size_t i = 0; i < model->count; i++) {
        linear l = layer_at(model, slot, i);
        const float *w = params + l.offset, *b = w + l.outputs * l.inputs;
        int rows = (int)model->batch, in = (int)l.inputs, out = (int)l.outputs;
        for (size_t r = 0; r < model->batch; r++)
            memcpy(l.y + r * l.outputs, b, l.outputs * sizeof *b);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out, in, 1.0f, l.x, in, w, in,
                    1.0f, l.y, out);
        if (model->first + i == model->shape.depth)
            return;
        for (size_t v = 0; v < model->batch * l.outputs; v++)
            l.y[v] = l.y[v] > 0.0f ? l.y[v] : 0.0f;
    }
}

size_t mlp_correct(const mlp *model, size_t slot, size_t rows, double *loss) {
    const float *scores = mlp_output(model, slot);
    const uint8_t *labels = model->labels + slot * model->batch;
    size_t correct = 0;
    *loss = 0.0;
    for (size_t r = 0; r < rows; r++) {
        correct += scores_best(scores + r * OUT, OUT) == labels[r];
        *loss += scores_loss(scores + r * OUT, OUT, labels[r]);
    }
    return correct;
}

double mlp_loss(mlp *model, size_t slot) {
    float *scores = mlp_output(model, slot);
    double loss = 0.0;
    for (size_t r = 0; r < model->batch; r++)
        loss += scores_gradient(scores + r * OUT, OUT, model->labels[slot * model->batch + r],
                                model->batch);
    return loss / (double)model->batch;
}

static void add_columns(const float *matrix, size_t rows, size_t columns, float *out) {
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++)
            out[c] += matrix[r * columns + c];
    }
}

/* Gradient of y, held in y -> gradient of W and b. */
static void weights_gradient(const mlp *model, const linear *l, bool add, float *grad) {
    int rows = (int)model->batch, in = (int)l->inputs, out = (int)l->outputs;
    float *w = grad + l->offset, *b = w + l->outputs * l->inputs;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, rows, 1.0f, l->y, out, l->x, in,
                add ? 1.0f : 0.0f, w, in);
    if (!add)
        memset(b, 0, l->outputs * sizeof *b);
    add_columns(l->y, model->batch, l->outputs, b);
}

/* Gradient of y -> gradient of the sums from which ReLU made x; it replaces x. */
static void propagate(const mlp *model, const linear *l, const float *params) {
    int rows = (int)model->batch, in = (int)l->inputs, out = (int)l->outputs;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, in, out, 1.0f, l->y, out,
                params + l->offset, in, 0.0f, model->back, in);
    for (size_t v = 0; v < model->batch * l->inputs; v++)
        l->x[v] = l->x[v] > 0.0f ? model->back[v] : 0.0f;
}

void mlp_backward(mlp *model, const float *params, size_t slot, bool add, float *grad,
                  mlp_hook hook, void *context) {
    for (size_t i = model->count; i-- > 0;) {
        linear l = layer_at(model, slot, i);
        weights_gradient(model, &l, add, grad);
        if (hook)
            hook(context, i);
        if (model->first + i > 0)
            propagate(model, &l, params);
    }
}
