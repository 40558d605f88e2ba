/* SPDX-License-Identifier: MIT
 *
 * Sweeps over memory, element by element: nothing is contracted or reordered.
 */
#include "bench/train/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "bench/common/measure.h"

/* A segment. */
typedef struct run {
    size_t begin, length;
    bool matrix;
} run;

/* -- adamw ------------------------------------------------------------------------------------ */

/* Coefficients of one step. */
typedef struct adamw_rates {
    float beta1, beta2;
    float keep; /* factor of a parameter: 1 - r lambda */
    float step; /* r / (1 - b1^t) */
    float root; /* 1 / sqrt(1 - b2^t) */
} adamw_rates;

static void adamw_sweep(const adamw_rates *c, size_t n, const float *restrict g, float *restrict p,
                        float *restrict m, float *restrict v) {
    const float b1 = c->beta1, b2 = c->beta2, a1 = 1.0f - b1, a2 = 1.0f - b2;
    const float keep = c->keep, step = c->step, root = c->root;
    for (size_t i = 0; i < n; i++) {
        float first = b1 * m[i] + a1 * g[i];
        float second = b2 * v[i] + a2 * g[i] * g[i];
        m[i] = first;
        v[i] = second;
        p[i] = keep * p[i] - step * first / (sqrtf(second) * root + (float)OPTIMIZER_EPS);
    }
}

static void adamw(optimizer *o, run of, const optimizer_pace *pace, const float *grad,
                  float *params) {
    const train_settings *s = o->settings;
    double t = (double)pace->step + 1.0, rate = pace->rate;
    adamw_rates c = {
        .beta1 = (float)s->beta1,
        .beta2 = (float)s->beta2,
        .step = (float)(rate / (1.0 - pow(s->beta1, t))),
        .root = (float)(1.0 / sqrt(1.0 - pow(s->beta2, t))),
        .keep = of.matrix ? (float)(1.0 - rate * s->weight_decay) : 1.0f,
    };
    adamw_sweep(&c, of.length, grad + of.begin, params + of.begin, o->states[0] + of.begin,
                o->states[1] + of.begin);
}

/* -- sgd -------------------------------------------------------------------------------------- */

static void momentum(const optimizer *o, run of, float rate, const float *grad, float *params) {
    const float mu = (float)o->settings->momentum, *restrict g = grad + of.begin;
    float *restrict s = o->states[0] + of.begin, *restrict p = params + of.begin;
    for (size_t i = 0; i < of.length; i++)
        s[i] = mu * s[i] + g[i];
    for (size_t i = 0; i < of.length; i++)
        p[i] -= rate * s[i];
}

static void sgd(run of, float rate, const float *grad, float *params) {
    const float *restrict g = grad + of.begin;
    float *restrict p = params + of.begin;
    for (size_t i = 0; i < of.length; i++)
        p[i] -= rate * g[i];
}

/* Apply a reduced update. */
static void step_by(const optimizer *o, run of, const optimizer_pace *pace, const float *grad,
                    float *params) {
    const train_settings *s = o->settings;
    bool decays = s->optimizer == TRAIN_ADAMW && of.matrix;
    float keep = decays ? (float)(1.0 - (double)pace->rate * s->weight_decay) : 1.0f;
    float rate = pace->rate;
    const float *restrict g = grad + of.begin;
    float *restrict p = params + of.begin;
    for (size_t i = 0; i < of.length; i++)
        p[i] = keep * p[i] - rate * g[i];
}

tamis_update optimizer_as_update(const train_settings *s) {
    tamis_update update = TAMIS_UPDATE_INIT;
    bool adam = s->optimizer == TRAIN_ADAMW;
    update.rule = adam ? TAMIS_UPDATE_ADAM : TAMIS_UPDATE_MOMENTUM;
    update.beta1 = adam ? s->update_beta1 : s->momentum;
    update.beta2 = s->beta2;
    update.epsilon = OPTIMIZER_EPS;
    return update;
}

void optimizer_update_sparse(float rate, const uint32_t *indices, const float *values, size_t count,
                             float *params) {
    for (size_t i = 0; i < count; i++)
        params[indices[i]] -= rate * values[i];
}

/* -- all -------------------------------------------------------------------------------------- */

void optimizer_open(const train_settings *settings, size_t length, optimizer *out) {
    static const size_t nstates[] = {[TRAIN_SGD] = 0, [TRAIN_MOMENTUM] = 1, [TRAIN_ADAMW] = 2};
    *out = (optimizer){settings, length, nstates[settings->optimizer], {NULL, NULL}};
    if (settings->reduce == TRAIN_UPDATE)
        out->nstates = 0;
    for (size_t i = 0; i < out->nstates; i++)
        out->states[i] = bench_alloc(length, sizeof(float));
}

void optimizer_close(optimizer *o) {
    for (size_t i = 0; i < o->nstates; i++)
        free(o->states[i]);
}

static void follow_rule(optimizer *o, run of, const optimizer_pace *pace, const float *grad,
                        float *params) {
    switch (o->settings->optimizer) {
    case TRAIN_ADAMW:
        adamw(o, of, pace, grad, params);
        break;
    case TRAIN_MOMENTUM:
        momentum(o, of, pace->rate, grad, params);
        break;
    default:
        sgd(of, pace->rate, grad, params);
    }
}

void optimizer_update(optimizer *o, const workload *work, const optimizer_pace *pace,
                      const float *grad, float *params) {
    bool updates = o->settings->reduce == TRAIN_UPDATE;
    for (size_t i = 0, at = 0; i < work->nsegments; at += work->segments[i].length, i++) {
        run of = {at, work->segments[i].length, work->columns[i] > 0};
        if (updates)
            step_by(o, of, pace, grad, params);
        else
            follow_rule(o, of, pace, grad, params);
    }
}

double optimizer_rate(const train_settings *s, uint64_t step, uint64_t steps) {
    if (step < s->warm_up)
        return s->lr * (double)(step + 1) / (double)s->warm_up;
    if (s->decay == TRAIN_CONSTANT || step >= steps)
        return s->lr * (s->decay == TRAIN_CONSTANT ? 1.0 : s->lr_floor);
    double share = (double)(step - s->warm_up) / (double)(steps - s->warm_up);
    return s->lr * (s->lr_floor + (1.0 - s->lr_floor) * 0.5 * (1.0 + cos(acos(-1.0) * share)));
}
