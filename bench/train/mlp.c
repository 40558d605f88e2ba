/* SPDX-License-Identifier: MIT */
#include "bench/train/mlp.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"

enum { IN = IDX_PIXELS, OUT = IDX_CLASSES };

/* Mean and deviation of the pixels of Fashion-MNIST's training images, in units of 255. */
static const float pixel_mean = 0.2860f, pixel_deviation = 0.3530f;

typedef struct views {
    float *w1, *b1, *w2, *b2;
} views;

static views split(const mlp *model, const float *flat) {
    float *w1 = (float *)flat, *b1 = w1 + model->hidden * IN, *w2 = b1 + model->hidden;
    return (views){w1, b1, w2, w2 + OUT * model->hidden};
}

void mlp_open(size_t hidden, size_t batch, mlp *out) {
    *out = (mlp){
        .hidden = hidden,
        .batch = batch,
        .length = hidden * IN + hidden + OUT * hidden + OUT,
        .inputs = bench_alloc(batch * IN, sizeof(float)),
        .active = bench_alloc(batch * hidden, sizeof(float)),
        .scores = bench_alloc(batch * OUT, sizeof(float)),
        .back = bench_alloc(batch * hidden, sizeof(float)),
        .labels = bench_alloc(batch, 1),
    };
}

void mlp_close(mlp *model) {
    free(model->inputs);
    free(model->active);
    free(model->scores);
    free(model->back);
    free(model->labels);
}

void mlp_segments(const mlp *model, tamis_segment out[MLP_SEGMENTS]) {
    out[0] = (tamis_segment){"W1", model->hidden * IN};
    out[1] = (tamis_segment){"b1", model->hidden};
    out[2] = (tamis_segment){"W2", OUT * model->hidden};
    out[3] = (tamis_segment){"b2", OUT};
}

void mlp_init(const mlp *model, uint64_t seed, float *params) {
    views p = split(model, params);
    double deviation1 = sqrt(2.0 / IN), deviation2 = sqrt(2.0 / (double)model->hidden);
    memset(params, 0, model->length * sizeof *params);
    for (size_t i = 0; i < model->hidden * IN; i++)
        p.w1[i] = (float)(deviation1 * bench_normal(bench_key(seed, 1, 0), i));
    for (size_t i = 0; i < OUT * model->hidden; i++)
        p.w2[i] = (float)(deviation2 * bench_normal(bench_key(seed, 1, 1), i));
}

/* One sample into row `row` of the batch. */
static void take_sample(mlp *model, const idx_set *set, size_t sample, size_t row) {
    const uint8_t *pixels = set->images + sample * IN;
    const float factor = 1.0f / (255.0f * pixel_deviation);
    const float offset = pixel_mean / pixel_deviation;
    for (size_t i = 0; i < IN; i++)
        model->inputs[row * IN + i] = (float)pixels[i] * factor - offset;
    model->labels[row] = set->labels[sample];
}

static void forward(mlp *model, const views *p, size_t rows) {
    int b = (int)rows, h = (int)model->hidden;
    for (size_t r = 0; r < rows; r++) {
        memcpy(model->active + r * model->hidden, p->b1, model->hidden * sizeof(float));
        memcpy(model->scores + r * OUT, p->b2, OUT * sizeof(float));
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, b, h, IN, 1.0f, model->inputs, IN, p->w1,
                IN, 1.0f, model->active, h);
    for (size_t i = 0; i < rows * model->hidden; i++)
        model->active[i] = model->active[i] > 0.0f ? model->active[i] : 0.0f;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, b, OUT, h, 1.0f, model->active, h, p->w2,
                h, 1.0f, model->scores, OUT);
}

/* Scores of one sample -> gradient of the mean loss with respect to them. @return its loss. */
static double softmax_gradient(float *scores, uint8_t label, size_t rows) {
    float top = scores[0], sum = 0.0f;
    for (size_t c = 1; c < OUT; c++)
        top = scores[c] > top ? scores[c] : top;
    double loss = (double)top - (double)scores[label];
    for (size_t c = 0; c < OUT; c++)
        sum += scores[c] = expf(scores[c] - top);
    for (size_t c = 0; c < OUT; c++)
        scores[c] = (scores[c] / sum - (c == label ? 1.0f : 0.0f)) / (float)rows;
    return loss + log((double)sum);
}

static void add_columns(const float *matrix, size_t rows, size_t columns, float *out) {
    memset(out, 0, columns * sizeof *out);
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < columns; c++)
            out[c] += matrix[r * columns + c];
    }
}

static void backward(mlp *model, const views *p, const views *g) {
    size_t rows = model->batch;
    int b = (int)rows, h = (int)model->hidden;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, OUT, h, b, 1.0f, model->scores, OUT,
                model->active, h, 0.0f, g->w2, h);
    add_columns(model->scores, rows, OUT, g->b2);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, b, h, OUT, 1.0f, model->scores, OUT,
                p->w2, h, 0.0f, model->back, h);
    for (size_t i = 0; i < rows * model->hidden; i++)
        model->back[i] = model->active[i] > 0.0f ? model->back[i] : 0.0f;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, h, IN, b, 1.0f, model->back, h,
                model->inputs, IN, 0.0f, g->w1, IN);
    add_columns(model->back, rows, model->hidden, g->b1);
}

double mlp_gradient(mlp *model, const float *params, const idx_set *set, const uint32_t *order,
                    float *grad) {
    views p = split(model, params), g = split(model, grad);
    double loss = 0.0;
    for (size_t r = 0; r < model->batch; r++)
        take_sample(model, set, order[r], r);
    forward(model, &p, model->batch);
    for (size_t r = 0; r < model->batch; r++)
        loss += softmax_gradient(model->scores + r * OUT, model->labels[r], model->batch);
    backward(model, &p, &g);
    return loss / (double)model->batch;
}

static size_t best_class(const float *scores) {
    size_t best = 0;
    for (size_t c = 1; c < OUT; c++)
        best = scores[c] > scores[best] ? c : best;
    return best;
}

size_t mlp_correct(mlp *model, const float *params, const idx_set *set, size_t first,
                   size_t count) {
    views p = split(model, params);
    size_t correct = 0;
    for (size_t done = 0, rows; done < count; done += rows) {
        rows = count - done < model->batch ? count - done : model->batch;
        for (size_t r = 0; r < rows; r++)
            take_sample(model, set, first + done + r, r);
        forward(model, &p, rows);
        for (size_t r = 0; r < rows; r++)
            correct += best_class(model->scores + r * OUT) == model->labels[r];
    }
    return correct;
}
