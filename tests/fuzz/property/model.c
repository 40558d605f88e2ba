/* SPDX-License-Identifier: MIT
 *
 * What each rank has accumulated when a step is exchanged, from its residual before the step and
 * its gradients, by the formulas of tamis.h in binary32, every operation rounded. With nodes the
 * same for each node: its members' gradients are summed in the order of lib/base/tree.h, and its
 * residual joins all their shards.
 *
 *     sparse, rows   acc = decay * residual + scale * gradient     rows do not decay
 *     update         acc = decay * residual + u
 *     dense          the summand: scale * gradient, plus the residual
 */
#include "tests/fuzz/property/property.h"
#include "tests/support/rank_tree.h"

#include <math.h>
#include <string.h>
#include <tamis/overlap.h>

static float vectors[3][MOST_RANKS][MOST_LENGTH];

const tamis_bucket *fuzz_bucket(const record *r, uint32_t step, uint64_t element) {
    const common *all = &r->common[step];
    for (uint32_t i = 0; i < all->nbuckets; i++) {
        const tamis_bucket *b = &all->buckets[i];
        if (element >= b->begin && element < b->begin + b->length)
            return b;
    }
    return NULL;
}

/* One pass over a bucket. @return entries that were dropped */
static uint64_t pass(float *acc, const float *grad, uint64_t count, float decay, float scale) {
    uint64_t bad = 0;
    for (uint64_t i = 0; i < count; i++) {
        float kept = decay * acc[i], sum = kept + scale * grad[i];
        bad += !isfinite(sum);
        acc[i] = isfinite(sum) ? sum : kept;
    }
    return bad;
}

/* -- update mode ------------------------------------------------------------------------------ */

/* By repeated squaring, as the library promises: only multiplications, in a fixed order. */
static double power(double x, uint64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, x *= x)
        result = exponent % 2 == 1 ? result * x : result;
    return result;
}

typedef struct rule {
    bool adam;
    float keep1, take1, keep2, take2, correct1, correct2, epsilon;
} rule;

static rule rule_of(const tamis_update *u, uint64_t t) {
    return (rule){
        .adam = u->rule == TAMIS_UPDATE_ADAM,
        .keep1 = (float)u->beta1,
        .take1 = (float)(1.0 - u->beta1),
        .keep2 = (float)u->beta2,
        .take2 = (float)(1.0 - u->beta2),
        .correct1 = (float)(1.0 / (1.0 - power(u->beta1, t))),
        .correct2 = (float)(1.0 / (1.0 - power(u->beta2, t))),
        .epsilon = (float)u->epsilon,
    };
}

/* @return u; or NaN, then the moments stay unchanged */
static float make_adam(const rule *p, float g, float *m, float *v) {
    float first = m ? p->keep1 * *m + p->take1 * g : g;
    float second = p->keep2 * *v + (p->take2 * g) * g;
    float level = second * p->correct2;
    float u = (first * p->correct1) / (sqrtf(level) + p->epsilon);
    if (!isfinite(level) || !isfinite(u))
        return NAN;
    if (m)
        *m = first;
    *v = second;
    return u;
}

static float make_momentum(const rule *p, float g, float *m) {
    float first = m ? p->keep1 * *m + g : g;
    if (!isfinite(first))
        return NAN;
    if (m)
        *m = first;
    return first;
}

static void take_moments(const record *r, uint32_t step, uint32_t rank, model *out) {
    const moment *now = &r->moments[step][rank],
                 *before = step ? &r->moments[step - 1][rank] : NULL;
    size_t bytes = (size_t)fuzz_length(r->fuzz) * sizeof(float);
    out->first[rank] = now->first ? vectors[1][rank] : NULL;
    out->second[rank] = now->second ? vectors[2][rank] : NULL;
    if (now->first && before)
        memcpy(vectors[1][rank], before->first, bytes);
    else
        memset(vectors[1][rank], 0, bytes);
    if (now->second && before)
        memcpy(vectors[2][rank], before->second, bytes);
    else
        memset(vectors[2][rank], 0, bytes);
}

static void make_updates(const record *r, uint32_t step, uint32_t rank, float scale, float *grad,
                         model *out) {
    const fuzz_case *c = r->fuzz;
    const rule p = rule_of(&c->update, (uint64_t)step + 1);
    take_moments(r, step, rank, out);
    for (uint64_t i = 0; i < fuzz_length(c); i++) {
        float *m = out->first[rank] ? out->first[rank] + i : NULL;
        float *v = out->second[rank] ? out->second[rank] + i : NULL;
        grad[i] =
            p.adam ? make_adam(&p, scale * grad[i], m, v) : make_momentum(&p, scale * grad[i], m);
    }
}

/* -- gradients -------------------------------------------------------------------------------- */

/* Accumulate a gradient of a rank, bucket by bucket. */
static void take_in(const record *r, uint32_t step, uint32_t rank, const float *grad, float scale,
                    bool first, bool last, model *out) {
    const common *all = &r->common[step];
    float decay = first ? (float)r->fuzz->config.residual_decay : 1.0f;
    for (uint32_t i = 0; i < all->nbuckets; i++) {
        const tamis_bucket *b = &all->buckets[i];
        float *acc = out->acc[rank] + b->begin;
        bool dense = strcmp(b->exchange, "dense") == 0,
             rows = strcmp(b->exchange, "sparse-rows") == 0;
        if (dense && last) {
            for (uint64_t e = 0; e < b->length; e++)
                acc[e] = scale * grad[b->begin + e] + acc[e];
            continue;
        }
        uint64_t bad = pass(acc, grad + b->begin, b->length, rows ? 1.0f : decay, scale);
        *(dense ? &out->early_bad : &out->bad) += bad;
    }
}

static void take_rank(const record *r, uint32_t step, uint32_t rank, model *out) {
    const fuzz_case *c = r->fuzz;
    static float grad[MOST_LENGTH];
    uint32_t micros = fuzz_accumulates(c) ? c->steps[step].micros : 0;
    uint32_t number = c->steps[step].micros; /* of the gradient that is exchanged */
    for (uint32_t i = 0; i < micros; i++) {
        fuzz_gradient(c, step, rank, i, grad);
        take_in(r, step, rank, grad, fuzz_scale(c, step, rank, i), i == 0, false, out);
    }
    fuzz_gradient(c, step, rank, number, grad);
    float scale = fuzz_scale(c, step, rank, number);
    if (c->updates) {
        make_updates(r, step, rank, scale, grad, out);
        scale = 1.0f;
    }
    take_in(r, step, rank, grad, scale, micros == 0, true, out);
}

/* For a node: sum its gradients, then accumulate as one rank would. */
static void take_node(const record *r, uint32_t step, uint32_t node, model *out) {
    static float sum[MOST_LENGTH], grads[MOST_RANKS][MOST_LENGTH];
    const fuzz_case *c = r->fuzz;
    uint32_t size = c->config.ranks_per_node, number = c->steps[step].micros;
    for (uint32_t g = 0; g < size; g++) {
        float scale = fuzz_scale(c, step, node * size + g, number);
        fuzz_gradient(c, step, node * size + g, number, grads[g]);
        for (uint64_t i = 0; i < fuzz_length(c); i++)
            grads[g][i] *= scale;
    }
    for (uint64_t i = 0; i < fuzz_length(c); i++)
        sum[i] = rank_tree_sum(&grads[0][i], MOST_LENGTH, size);
    take_in(r, step, node, sum, 1.0f, true, true, out);
}

void fuzz_residual(const record *r, uint32_t step, uint32_t rank, float *out) {
    const fuzz_case *c = r->fuzz;
    uint64_t n = fuzz_length(c);
    uint32_t size = c->config.ranks_per_node > 1 ? c->config.ranks_per_node : 1;
    memset(out, 0, (size_t)n * sizeof(float));
    for (uint32_t g = 0; g < size; g++) {
        const float *held = r->moments[step][rank * size + g].residual;
        for (uint64_t i = 0; i < n; i++) /* one rank holds it, others have zero */
            out[i] += held[i];
    }
}

void fuzz_model(const record *r, uint32_t step, model *out) {
    const fuzz_case *c = r->fuzz;
    uint32_t size = c->config.ranks_per_node > 1 ? c->config.ranks_per_node : 1;
    double ranks = c->config.op == TAMIS_OP_MEAN ? c->nranks : 1.0;
    *out = (model){.nranks = c->nranks / size};
    /* tests/multi/test_norm_matching.c knows what a scale that follows norms must be */
    bool follows = c->updates && c->update.norm_matching > 0.0;
    double scale = follows ? r->moments[step][0].stats.update_scale : c->update.scale;
    out->divisor = (float)(c->updates ? ranks / scale : ranks);
    for (uint32_t rank = 0; rank < out->nranks; rank++) {
        out->acc[rank] = vectors[0][rank];
        if (step > 0)
            fuzz_residual(r, step - 1, rank, out->acc[rank]);
        else
            memset(out->acc[rank], 0, (size_t)fuzz_length(c) * sizeof(float));
        if (size > 1)
            take_node(r, step, rank, out);
        else
            take_rank(r, step, rank, out);
    }
}
