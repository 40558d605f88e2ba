/* SPDX-License-Identifier: MIT
 *
 * Update mode: residuals accumulate each rank's own optimizer step. Which options a rule uses, what
 * it needs in each pass, and defaults by density.
 */
#include "collectives/reducer/reducer.h"

#include "lib/policy/advise.h"

#include <math.h>

#define MATCH_WEIGHT 0.05 /* of the last step; measured (docs/fidelity.md) */
#define MATCH_LEAST 1e-6  /* as far as constants may go */
#define MATCH_MOST 1e6

/* -- options ---------------------------------------------------------------------------------- */

uint32_t tam_update_used(const tamis_update *u) {
    return u->rule == TAMIS_UPDATE_ADAM ? TAM_UPDATE_COUNT : TAM_UPDATE_beta2;
}

/* -- a pass ----------------------------------------------------------------------------------- */

/* By multiplications alone, so that all machines have the same bits. */
static double power(double x, uint64_t exponent) {
    double result = 1.0;
    for (; exponent > 0; exponent /= 2, x *= x) {
        if (exponent % 2 == 1)
            result *= x;
    }
    return result;
}

static float correction(double beta, uint64_t pass) {
    return (float)(1.0 / (1.0 - power(beta, pass)));
}

void tam_update_aim(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    const tamis_update *u = &r->update;
    bool adam = u->rule == TAMIS_UPDATE_ADAM;
    b->pass = r->passes + 1;
    b->optimizer = (tam_optimizer){
        .rule = u->rule,
        .first = r->first ? r->first + b->view.begin : NULL,
        .second = r->second ? r->second + b->view.begin : NULL,
        .keep1 = (float)u->beta1,
        .take1 = adam ? (float)(1.0 - u->beta1) : 1.0f,
        .keep2 = (float)u->beta2,
        .take2 = (float)(1.0 - u->beta2),
        .correct1 = correction(u->beta1, b->pass),
        .correct2 = correction(u->beta2, b->pass),
        .epsilon = (float)u->epsilon,
    };
    b->view.target.optimizer =
        r->first || r->second ? &b->optimizer : NULL; /* none: u is the gradient */
}

/* -- a scale that follows norms --------------------------------------------------------------- */

/* The same bits on all ranks: what heads say, and the result. */
static double own_square(const tamis_reducer *r) {
    double sum = 0.0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_outcome *out = &r->buckets[i].view.out;
        for (uint32_t g = 0; g < out->heads.nsums; g++)
            sum += out->means[g];
    }
    return sum;
}

static double applied_square(const tamis_reducer *r) {
    double ranks = r->config.op == TAMIS_OP_MEAN ? r->comm->nranks : 1.0, sum = 0.0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_entries *all = &r->buckets[i].view.out.result;
        for (size_t j = 0; j < all->count; j++)
            sum += (double)all->values[j] * (double)all->values[j];
    }
    return sum / (ranks * ranks);
}

/* Sums in place of means: their weights cancel out. A step whose sum is not finite teaches nothing,
 * and is skipped or loses those entries. */
tam_match tam_update_learn(const tamis_reducer *r) {
    double own = own_square(r), applied = applied_square(r);
    if (!(own < INFINITY && applied < INFINITY))
        return r->match;
    return (tam_match){(1.0 - MATCH_WEIGHT) * r->match.own + MATCH_WEIGHT * own,
                       (1.0 - MATCH_WEIGHT) * r->match.applied + MATCH_WEIGHT * applied};
}

double tam_update_scale(const tamis_reducer *r, const tam_match *match) {
    const tamis_update *u = r->config.update;
    if (!u || u->match == 0.0)
        return u ? u->scale : 1.0;
    double most = r->scale_follows ? MATCH_MOST : u->scale, scale = 1.0;
    if (match->own > 0.0 && match->applied > 0.0)
        scale = fmax(u->match * sqrt(match->own / match->applied), MATCH_LEAST);
    return fmin(scale, most);
}

/* -- defaults --------------------------------------------------------------------------------- */

void tam_update_complete(tamis_reducer *r, tamis_reducer_config *c) {
    tamis_update advised = r->update;
    double decay = 1.0;
    if (c->update)
        tam_update_advise(c->density, &advised, &decay);
    r->scale_follows = c->update && r->update.scale == 0.0;
    if (!r->scale_follows)
        advised.scale = r->update.scale;
    r->update = advised;
    c->residual_decay = c->residual_decay == -1.0 ? decay : c->residual_decay;
}

void tam_update_follow(tamis_reducer *r) {
    double decay;
    if (r->scale_follows)
        tam_update_advise((double)r->k / (double)r->layout->length, &r->update, &decay);
}
