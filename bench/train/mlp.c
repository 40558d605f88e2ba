/* SPDX-License-Identifier: MIT
 *
 * The workload mlp: 784 inputs, `depth` hidden layers with ReLU, 10 classes, softmax cross-entropy;
 * the only one that a pipeline can divide. Two segments for each layer:
 *
 *     W1 [hidden][784]  b1 [hidden]  W2 [hidden][hidden]  b2 [hidden]  ...  W [10][hidden]  b [10]
 *
 * A model holds all layers, or those of one pipeline stage. A slot is one batch on its way through
 * them. Its arrays hold the values after forward, and the gradient after backward:
 *
 *     forward     x0 --layer--> x1 --layer--> x2 --layer--> x3        x0: input
 *     backward    g0 <--layer-- g1 <--layer-- g2 <--layer-- g3        x3, g3: output
 *
 * g is the gradient with respect to the sums from which ReLU made x. On the last stage `loss` turns
 * scores into g; on the first stage g0 is not computed. So a stage sends back what the stage before
 * it expects: output of a stage and input of the next hold the same numbers, x and later g. A
 * non-blocking send from these arrays must end before the slot is written again.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/random.h"
#include "bench/train/images.h"
#include "bench/train/layers.h"
#include "bench/train/schedule.h"

_Static_assert(TRAIN_MAX_DEPTH + 1 <= SCHEDULE_LAYERS, "all layers of a model fit in the stages");

typedef struct mlp {
    size_t hidden, depth; /* of the whole model, which has depth + 1 layers */
    size_t first, count;  /* layers that this one holds */
    linear *layers;       /* [count] */
    float **values;       /* [slots][count + 1], each [batch][width] */
    float *back;          /* [batch][hidden] */
    uint8_t *labels;      /* [slots][batch] */
} mlp;

/* Layer l of 0 .. depth: weights and biases. */
static size_t inputs_of(const train_settings *s, size_t l) {
    return l == 0 ? IDX_PIXELS : s->hidden;
}

static size_t outputs_of(const train_settings *s, size_t l) {
    return l == s->depth ? IDX_CLASSES : s->hidden;
}

static uint32_t layers(const train_settings *s, uint64_t *lengths) {
    for (size_t l = 0; l <= s->depth; l++)
        lengths[l] = outputs_of(s, l) * (inputs_of(s, l) + 1);
    return (uint32_t)s->depth + 1;
}

static void check(const train_settings *s) {
    uint64_t lengths[SCHEDULE_LAYERS], length = 0, most = ((uint64_t)1 << 32) - (1 << 16);
    for (uint32_t l = layers(s, lengths); l-- > 0;)
        length += lengths[l];
    if (length > most)
        bench_usage("--hidden %llu --depth %llu make %llu parameters; one reducer takes up to %llu",
                    (unsigned long long)s->hidden, (unsigned long long)s->depth,
                    (unsigned long long)length, (unsigned long long)most);
}

/* -- memory ----------------------------------------------------------------------------------- */

static void add_layer(const train_settings *s, workload *w, size_t l, linear *out) {
    *out = (linear){.inputs = inputs_of(s, l), .outputs = outputs_of(s, l)};
    out->weight = workload_add(w, out->outputs * out->inputs, out->inputs, "W%zu", l + 1);
    out->bias = workload_add(w, out->outputs, 0, "b%zu", l + 1);
    workload_end_layer(w);
}

static void open_model(const train_settings *s, const workload_part *part, workload *w) {
    size_t each = part->count + 1;
    mlp *m = bench_alloc(1, sizeof *m);
    *m = (mlp){
        .hidden = s->hidden,
        .depth = s->depth,
        .first = part->first,
        .count = part->count,
        .layers = bench_alloc(part->count, sizeof(linear)),
        .values = bench_alloc(part->slots * each, sizeof(float *)),
        .back = bench_alloc(part->batch * s->hidden, sizeof(float)),
        .labels = bench_alloc(part->slots * part->batch, 1),
    };
    workload_reserve(w, 2 * part->count, part->count);
    for (size_t i = 0; i < part->count; i++)
        add_layer(s, w, part->first + i, &m->layers[i]);
    for (size_t i = 0; i < part->slots * each; i++) {
        size_t at = i % each;
        size_t width = at == 0 ? m->layers[0].inputs : m->layers[at - 1].outputs;
        m->values[i] = bench_alloc(part->batch * width, sizeof(float));
    }
    w->model = m;
}

static void close_model(workload *w) {
    mlp *m = w->model;
    for (size_t i = 0; i < w->slots * (m->count + 1); i++)
        free(m->values[i]);
    free((void *)m->values);
    free(m->layers);
    free(m->back);
    free(m->labels);
    free(m);
}

static void describe(const workload *w, json_t *record) {
    const mlp *m = w->model;
    json_object_set_new(record, "hidden", json_integer((json_int_t)m->hidden));
    json_object_set_new(record, "depth", json_integer((json_int_t)m->depth));
}

/* He et al. 2015: normal with variance 2 / inputs; biases zero. For a layer the same on every
 * stage. */
static void init(const workload *w, uint64_t seed, float *params) {
    const mlp *m = w->model;
    memset(params, 0, w->length * sizeof *params);
    for (size_t i = 0; i < m->count; i++) {
        const linear *l = &m->layers[i];
        double deviation = sqrt(2.0 / (double)l->inputs);
        uint64_t key = bench_key(seed, 1, m->first + i);
        for (size_t j = 0; j < l->outputs * l->inputs; j++)
            params[l->weight + j] = (float)(deviation * bench_normal(key, j));
    }
}

/* -- passes ----------------------------------------------------------------------------------- */

static float **values_of(const mlp *m, size_t slot) {
    return m->values + slot * (m->count + 1);
}

static bool ends_model(const mlp *m, size_t i) {
    return m->first + i == m->depth;
}

/* The first stage takes images, the last one labels, others nothing. */
static void take(workload *w, size_t slot, workload_set which, const uint32_t *order, size_t first,
                 size_t rows) {
    const idx_set *set = images_set(w->data, which);
    mlp *m = w->model;
    for (size_t r = 0; r < rows; r++) {
        size_t sample = order ? order[r] : first + r;
        if (m->first == 0)
            images_row(set->images + sample * IDX_PIXELS, values_of(m, slot)[0] + r * IDX_PIXELS);
        if (ends_model(m, m->count - 1))
            m->labels[slot * w->batch + r] = set->labels[sample];
    }
}

static void forward(workload *w, const float *params, size_t slot) {
    const mlp *m = w->model;
    float **x = values_of(m, slot);
    for (size_t i = 0; i < m->count; i++) {
        linear_forward(&m->layers[i], w->batch, params, x[i], x[i + 1]);
        float *y = x[i + 1];
        if (ends_model(m, i))
            return;
        for (size_t v = 0; v < w->batch * m->hidden; v++)
            y[v] = y[v] > 0.0f ? y[v] : 0.0f;
    }
}

static void score(workload *w, size_t slot, size_t rows, workload_score *sums) {
    const mlp *m = w->model;
    const float *scores = values_of(m, slot)[m->count];
    images_score(scores, m->labels + slot * w->batch, rows, sums);
}

static double loss(workload *w, size_t slot) {
    const mlp *m = w->model;
    return images_loss(values_of(m, slot)[m->count], m->labels + slot * w->batch, w->batch);
}

/* Gradient of y -> gradient of the sums from which ReLU made x; it replaces x. */
static void propagate(const mlp *m, const linear *l, size_t rows, const float *params,
                      const float *dy, float *x) {
    linear_propagate(l, rows, params, dy, m->back);
    for (size_t v = 0; v < rows * l->inputs; v++)
        x[v] = x[v] > 0.0f ? m->back[v] : 0.0f;
}

static void backward(workload *w, const float *params, size_t slot, bool add, float *grad,
                     workload_hook hook, void *context) {
    const mlp *m = w->model;
    float **x = values_of(m, slot);
    for (size_t i = m->count; i-- > 0;) {
        const linear *l = &m->layers[i];
        if (!add)
            memset(grad + l->weight, 0, l->outputs * (l->inputs + 1) * sizeof *grad);
        linear_backward(l, w->batch, params, x[i], x[i + 1], NULL, grad);
        if (hook)
            hook(context, i);
        if (m->first + i > 0)
            propagate(m, l, w->batch, params, x[i + 1], x[i]);
    }
}

static float *input(const workload *w, size_t slot, size_t *width) {
    const mlp *m = w->model;
    *width = m->layers[0].inputs;
    return values_of(m, slot)[0];
}

static float *output(const workload *w, size_t slot, size_t *width) {
    const mlp *m = w->model;
    *width = m->layers[m->count - 1].outputs;
    return values_of(m, slot)[m->count];
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
