/* SPDX-License-Identifier: MIT
 *
 * The workload cnn: two convolutions of 5 x 5 with zeros around the image, each with ReLU and a
 * maximum over 2 x 2, and a linear layer to 10 classes. C channels after the first convolution, 2 C
 * after the second one:
 *
 *     image        conv1        pool1        conv2         pool2         linear
 *     1 x 28 x 28  C x 28 x 28  C x 14 x 14  2C x 14 x 14  2C x 7 x 7    10
 *
 *     parameters   conv1.weight [C][25]  conv1.bias [C]  conv2.weight [2C][25 C]  conv2.bias [2C]
 *                  linear.weight [10][98 C]  linear.bias [10]
 *
 * A convolution is a matrix product, image by image: `columns` holds for each output place the
 * inputs under the filter there (im2col), one row for each number of a filter.
 */
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/random.h"
#include "bench/train/images.h"
#include "bench/train/layers.h"

enum { SIDE = IDX_SIDE, FILTER = 5, EDGE = FILTER / 2, TAPS = FILTER * FILTER, CONVOLUTIONS = 2 };

typedef struct convolution {
    size_t inputs, outputs, side; /* channels in and out; side of the image and of the sums */
    size_t weight, bias;
    float *x;       /* [batch][inputs][side][side] */
    float *pooled;  /* [batch][outputs][side / 2][side / 2]; the next layer's x */
    float *back;    /* gradient of `pooled` */
    int32_t *place; /* as `pooled`: where the largest of four was, 2 * (row & 1) + (column & 1) */
} convolution;

typedef struct cnn {
    convolution layers[CONVOLUTIONS];
    linear out;
    float *columns; /* [inputs * TAPS][side * side], of one image */
    float *sums;    /* [outputs][side * side], of one image */
    float *scores;  /* [batch][IDX_CLASSES] */
    uint8_t *labels;
} cnn;

static size_t places_of(const convolution *c) {
    return c->side * c->side;
}

static size_t pooled_of(const convolution *c) {
    return c->outputs * places_of(c) / 4;
}

static size_t taps_of(const convolution *c) {
    return c->inputs * TAPS;
}

/* -- memory ----------------------------------------------------------------------------------- */

static void open_convolution(workload *w, size_t index, size_t inputs, size_t outputs, size_t side,
                             float *x, convolution *out) {
    *out = (convolution){.inputs = inputs, .outputs = outputs, .side = side, .x = x};
    out->weight =
        workload_add(w, outputs * taps_of(out), taps_of(out), "conv%zu.weight", index + 1);
    out->bias = workload_add(w, outputs, 0, "conv%zu.bias", index + 1);
    workload_end_layer(w);
    out->pooled = bench_alloc(w->batch * pooled_of(out), sizeof(float));
    out->back = bench_alloc(w->batch * pooled_of(out), sizeof(float));
    out->place = bench_alloc(w->batch * pooled_of(out), sizeof *out->place);
}

static void open_model(const train_settings *settings, const workload_part *part, workload *w) {
    size_t channels = settings->channels;
    cnn *m = bench_alloc(1, sizeof *m);
    (void)part;
    workload_reserve(w, 2 * CONVOLUTIONS + 2, CONVOLUTIONS + 1);
    float *images = bench_alloc(w->batch * IDX_PIXELS, sizeof(float));
    open_convolution(w, 0, 1, channels, SIDE, images, &m->layers[0]);
    open_convolution(w, 1, channels, 2 * channels, SIDE / 2, m->layers[0].pooled, &m->layers[1]);
    m->out.inputs = pooled_of(&m->layers[1]);
    m->out.outputs = IDX_CLASSES;
    m->out.weight = workload_add(w, m->out.outputs * m->out.inputs, m->out.inputs, "linear.weight");
    m->out.bias = workload_add(w, m->out.outputs, 0, "linear.bias");
    workload_end_layer(w);

    size_t columns = 0, sums = 0;
    for (size_t i = 0; i < CONVOLUTIONS; i++) {
        const convolution *c = &m->layers[i];
        size_t here = taps_of(c) * places_of(c), out = c->outputs * places_of(c);
        columns = here > columns ? here : columns;
        sums = out > sums ? out : sums;
    }
    m->columns = bench_alloc(columns, sizeof(float));
    m->sums = bench_alloc(sums, sizeof(float));
    m->scores = bench_alloc(w->batch * IDX_CLASSES, sizeof(float));
    m->labels = bench_alloc(w->batch, 1);
    w->model = m;
}

static void close_model(workload *w) {
    cnn *m = w->model;
    free(m->labels);
    free(m->scores);
    free(m->sums);
    free(m->columns);
    for (size_t i = 0; i < CONVOLUTIONS; i++) {
        free(m->layers[i].place);
        free(m->layers[i].back);
        free(m->layers[i].pooled);
    }
    free(m->layers[0].x);
    free(m);
}

static void describe(const workload *w, json_t *record) {
    const cnn *m = w->model;
    json_object_set_new(record, "channels", json_integer((json_int_t)m->layers[0].outputs));
}

/* He et al. 2015: normal with variance 2 / inputs of a sum; biases zero. */
static void init(const workload *w, uint64_t seed, float *params) {
    const cnn *m = w->model;
    const size_t inputs[] = {taps_of(&m->layers[0]), taps_of(&m->layers[1]), m->out.inputs};
    memset(params, 0, w->length * sizeof *params);
    for (size_t l = 0, at = 0; l < CONVOLUTIONS + 1; l++) {
        size_t weights = w->segments[2 * l].length;
        uint64_t key = bench_key(seed, 1, l);
        for (size_t i = 0; i < weights; i++)
            params[at + i] = (float)(sqrt(2.0 / (double)inputs[l]) * bench_normal(key, i));
        at += weights + w->segments[2 * l + 1].length;
    }
}

/* -- forward ---------------------------------------------------------------------------------- */

static void take(workload *w, size_t slot, workload_set which, const uint32_t *order, size_t first,
                 size_t rows) {
    const idx_set *set = images_set(w->data, which);
    cnn *m = w->model;
    (void)slot;
    for (size_t r = 0; r < rows; r++) {
        size_t sample = order ? order[r] : first + r;
        images_row(set->images + sample * IDX_PIXELS, m->layers[0].x + r * IDX_PIXELS);
        m->labels[r] = set->labels[sample];
    }
}

/* Part of a row of `side` numbers that lies under a tap: out[first .. past) is in[first + shift ..
 * past + shift); the rest lies outside the image. */
typedef struct span {
    size_t first, past;
    ptrdiff_t shift;
} span;

static span span_of(size_t tap, size_t side) {
    ptrdiff_t shift = (ptrdiff_t)tap - EDGE;
    return (span){
        .first = shift < 0 ? (size_t)-shift : 0,
        .past = shift > 0 ? side - (size_t)shift : side,
        .shift = shift,
    };
}

static void to_columns(const convolution *c, const float *image, float *columns) {
    for (size_t tap = 0; tap < taps_of(c); tap++, columns += places_of(c)) {
        const float *channel = image + tap / TAPS * places_of(c);
        span down = span_of(tap / FILTER % FILTER, c->side),
             across = span_of(tap % FILTER, c->side);
        memset(columns, 0, places_of(c) * sizeof *columns);
        for (size_t y = down.first; y < down.past; y++)
            memcpy(columns + y * c->side + across.first,
                   channel + (ptrdiff_t)((y * c->side) + across.first) +
                       down.shift * (ptrdiff_t)c->side + across.shift,
                   (across.past - across.first) * sizeof *columns);
    }
}

/* Add the gradient of each column entry to the image element that it was copied from. */
static void from_columns(const convolution *c, const float *columns, float *image) {
    memset(image, 0, c->inputs * places_of(c) * sizeof *image);
    for (size_t tap = 0; tap < taps_of(c); tap++, columns += places_of(c)) {
        float *channel = image + tap / TAPS * places_of(c);
        span down = span_of(tap / FILTER % FILTER, c->side),
             across = span_of(tap % FILTER, c->side);
        for (size_t y = down.first; y < down.past; y++) {
            const float *from = columns + y * c->side;
            float *to = channel + ((ptrdiff_t)y + down.shift) * (ptrdiff_t)c->side + across.shift;
            for (size_t x = across.first; x < across.past; x++)
                to[x] += from[x];
        }
    }
}

/* ReLU after the maximum equals ReLU before it. The first of equal numbers is taken. Places are as
 * wide as the numbers, so that compilers can vectorise even rows of 7 and 14. */
static void pool_rows(size_t half, const float *restrict upper, const float *restrict lower,
                      float *restrict pooled, int32_t *restrict place) {
    for (size_t x = 0; x < half; x++) {
        float a0 = upper[2 * x], a1 = upper[2 * x + 1], b0 = lower[2 * x], b1 = lower[2 * x + 1];
        float a = a1 > a0 ? a1 : a0, b = b1 > b0 ? b1 : b0, best = b > a ? b : a;
        int32_t in_a = a1 > a0 ? 1 : 0, in_b = b1 > b0 ? 3 : 2;
        pooled[x] = best > 0.0f ? best : 0.0f;
        place[x] = b > a ? in_b : in_a;
    }
}

static void pool(const convolution *c, const float *sums, float *pooled, int32_t *place) {
    size_t half = c->side / 2;
    for (size_t row = 0; row < c->outputs * half; row++) {
        const float *upper = sums + 2 * row * c->side;
        pool_rows(half, upper, upper + c->side, pooled + row * half, place + row * half);
    }
}

static void convolve(cnn *m, const convolution *c, const float *params, size_t batch) {
    int places = (int)places_of(c), taps = (int)taps_of(c), out = (int)c->outputs;
    for (size_t r = 0; r < batch; r++) {
        to_columns(c, c->x + r * c->inputs * places_of(c), m->columns);
        for (size_t o = 0; o < c->outputs; o++) {
            for (size_t i = 0; i < places_of(c); i++)
                m->sums[o * places_of(c) + i] = params[c->bias + o];
        }
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, out, places, taps, 1.0f,
                    params + c->weight, taps, m->columns, places, 1.0f, m->sums, places);
        pool(c, m->sums, c->pooled + r * pooled_of(c), c->place + r * pooled_of(c));
    }
}

static void forward(workload *w, const float *params, size_t slot) {
    cnn *m = w->model;
    (void)slot;
    for (size_t i = 0; i < CONVOLUTIONS; i++)
        convolve(m, &m->layers[i], params, w->batch);
    linear_forward(&m->out, w->batch, params, m->layers[CONVOLUTIONS - 1].pooled, m->scores);
}

static void score(workload *w, size_t slot, size_t rows, workload_score *sums) {
    const cnn *m = w->model;
    (void)slot;
    images_score(m->scores, m->labels, rows, sums);
}

/* -- backward --------------------------------------------------------------------------------- */

static double loss(workload *w, size_t slot) {
    cnn *m = w->model;
    (void)slot;
    return images_loss(m->scores, m->labels, w->batch);
}

/* Gradient of the pooled values -> of the sums: it goes to the largest of the four, if ReLU let
 * that pass. */
static void unpool(const convolution *c, size_t image, float *sums) {
    size_t half = c->side / 2, at = image * pooled_of(c);
    memset(sums, 0, c->outputs * places_of(c) * sizeof *sums);
    for (size_t row = 0; row < c->outputs * half; row++) {
        for (size_t x = 0; x < half; x++, at++) {
            size_t y = 2 * row + (size_t)c->place[at] / 2;
            if (c->pooled[at] > 0.0f)
                sums[y * c->side + 2 * x + (size_t)c->place[at] % 2] = c->back[at];
        }
    }
}

/* @param back  [out]  gradient of x, or NULL */
static void convolution_backward(cnn *m, const convolution *c, const float *params, size_t batch,
                                 float *back, float *grad) {
    int places = (int)places_of(c), taps = (int)taps_of(c), out = (int)c->outputs;
    for (size_t r = 0; r < batch; r++) {
        unpool(c, r, m->sums);
        to_columns(c, c->x + r * c->inputs * places_of(c), m->columns);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, out, taps, places, 1.0f, m->sums,
                    places, m->columns, places, 1.0f, grad + c->weight, taps);
        for (size_t o = 0; o < c->outputs; o++) {
            float sum = 0.0f;
            for (size_t i = 0; i < places_of(c); i++)
                sum += m->sums[o * places_of(c) + i];
            grad[c->bias + o] += sum;
        }
        if (!back)
            continue;
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, taps, places, out, 1.0f,
                    params + c->weight, taps, m->sums, places, 0.0f, m->columns, places);
        from_columns(c, m->columns, back + r * c->inputs * places_of(c));
    }
}

static void backward(workload *w, const float *params, size_t slot, bool add, float *grad,
                     workload_hook hook, void *context) {
    cnn *m = w->model;
    convolution *last = &m->layers[CONVOLUTIONS - 1];
    (void)slot;
    if (!add)
        memset(grad, 0, w->length * sizeof *grad);
    linear_backward(&m->out, w->batch, params, last->pooled, m->scores, last->back, grad);
    if (hook)
        hook(context, CONVOLUTIONS);
    for (size_t i = CONVOLUTIONS; i-- > 0;) {
        float *back = i > 0 ? m->layers[i - 1].back : NULL;
        convolution_backward(m, &m->layers[i], params, w->batch, back, grad);
        if (hook)
            hook(context, i);
    }
}

const workload_kind workload_cnn = {
    .name = "cnn",
    .metric = "test_accuracy",
    .metric_text = "test accuracy",
    .data = IMAGES_DATA,
    .batch = 32,
    .load = images_load,
    .unload = images_unload,
    .hash = images_hash,
    .open = open_model,
    .close = close_model,
    .describe = describe,
    .init = init,
    .take = take,
    .forward = forward,
    .loss = loss,
    .backward = backward,
    .score = score,
};
