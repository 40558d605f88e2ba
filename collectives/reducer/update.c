/* SPDX-License-Identifier: MIT
 *
 * Update mode: residuals accumulate each rank's own optimizer step. Which options a rule uses, what
 * it needs in each pass, and defaults by density.
 */
#include "collectives/reducer/reducer.h"

#include "lib/policy/advise.h"

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
