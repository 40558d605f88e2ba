/* SPDX-License-Identifier: MIT
 *
 * Update mode: residuals accumulate each rank's own optimizer step. Which options a rule uses, what
 * it needs in each pass, and defaults by density.
 */
#include "collectives/reducer/reducer.h"

#include "lib/base/fold.h"
#include "lib/policy/defaults.h"
#include "lib/policy/optimizer.h"

/* -- options ---------------------------------------------------------------------------------- */

uint32_t tam_update_used(const tamis_update *u) {
    return u->rule == TAMIS_UPDATE_MOMENTUM ? TAM_UPDATE_beta2 : TAM_UPDATE_COUNT;
}

bool tam_update_masks(const tamis_reducer *r) {
    return r->config.update && r->update.rule == TAMIS_UPDATE_MOMENTUM && r->update.beta1 > 0.0 &&
           !tam_scheme_whole(r->scheme) && r->config.density < TAM_MOMENTUM_KEPT;
}

/* -- a pass ----------------------------------------------------------------------------------- */

void tam_update_set_target(tam_bucket *b) {
    const tamis_reducer *r = b->reducer;
    b->pass = r->passes + 1;
    b->optimizer = tam_optimizer_of_pass(&r->update, b->pass);
    b->optimizer.first = r->first ? r->first + b->view.begin : NULL;
    b->optimizer.second = r->second ? r->second + b->view.begin : NULL;
    b->view.target.optimizer =
        r->first || r->second ? &b->optimizer : NULL; /* none: u is the gradient */
}

/* -- a scale that follows norms --------------------------------------------------------------- */

/* Its bits are the same on all ranks: what headers say, and the result. A device adds in the
 * same order. */
static double own_square(const tamis_reducer *r) {
    double sum = 0.0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_outcome *out = &r->buckets[i].view.out;
        sum += tam_fold_list(out->means, out->nmeans);
    }
    return sum;
}

static double applied_square(const tamis_reducer *r) {
    double ranks = tam_divisor_of_sums(r), sum = 0.0;
    for (uint32_t i = 0; i < r->nbuckets; i++) {
        const tam_entries *all = &r->buckets[i].view.out.result;
        sum += tam_fold_squares(all->values, all->count);
    }
    return sum / (ranks * ranks);
}

bool tam_update_has_norm_matching(const tamis_reducer *r) {
    return r->config.update && (r->matching_open || r->update.norm_matching > 0.0);
}

tam_norm_matching tam_update_learn(const tamis_reducer *r) {
    return tam_norm_matching_learn(r->norm_matching, own_square(r), applied_square(r));
}

double tam_update_scale(const tamis_reducer *r, const tam_norm_matching *norm_matching) {
    const tamis_update *u = r->config.update;
    if (!tam_update_has_norm_matching(r))
        return u ? u->scale : 1.0;
    return tam_norm_matching_scale(*norm_matching, u->norm_matching, tam_update_scale_most(r));
}

double tam_update_scale_most(const tamis_reducer *r) {
    return r->scale_open ? TAM_NORM_MATCHING_MOST : r->update.scale;
}

/* -- defaults --------------------------------------------------------------------------------- */

/* With a scale that is given and no norm matching, the scale is what it is. */
static void complete_scale(tamis_reducer *r, const tam_defaults *found) {
    r->scale_open = r->update.scale == 0.0;
    r->matching_open = found->matches && r->scale_open && r->update.norm_matching == 0.0;
    if (r->scale_open && !tam_update_has_norm_matching(r)) /* else it would be a bound */
        r->update.scale = found->scale;
}

/* At density 1 the step is that of a dense run, exactly; a scale that is given was tuned with what
 * is not rounded; balanced-pairs have their own form. */
static bool may_round(const tamis_reducer *r, const tamis_reducer_config *c) {
    return c->density < 1.0 && !tam_scheme_balanced_pairs(r->scheme) &&
           (!c->update || tam_update_has_norm_matching(r) || r->scale_open);
}

/* Codecs that are left open, for a density. */
static void complete_codecs(const tamis_reducer *r, const tam_defaults *found,
                            tamis_reducer_config *c) {
    bool open = c->value_codec == TAMIS_VALUE_AUTO && may_round(r, c);
    bool few = open && c->density < found->few_bits_below && c->sum_codec == TAMIS_VALUE_AUTO &&
               tam_scheme_sparse(r->scheme).exchange == TAM_EXCHANGE_UNION;
    if (few)
        c->value_codec = c->sum_codec = TAMIS_VALUE_FP2;
    else if (open)
        c->value_codec = found->value_codec;
}

void tam_update_complete(tamis_reducer *r, tamis_reducer_config *c) {
    const tamis_update *update = c->update ? &r->update : NULL;
    tam_defaults found = tam_defaults_of(update, c->density, r->scheme);
    c->density = c->density != 0.0 ? c->density : found.density;
    r->slowdown = (tam_slowdown){.most = c->density};
    r->slowdown_least = found.least;
    c->residual_decay = c->residual_decay == -1.0 ? found.residual_decay : c->residual_decay;
    if (update) {
        r->update.beta1 = found.beta1;
        complete_scale(r, &found);
    }
    complete_codecs(r, &found, c);
}

void tam_update_follow(tamis_reducer *r) {
    double density = (double)r->k / (double)r->layout->length;
    if (r->matching_open)
        r->update.norm_matching = tam_defaults_norm_matching(density);
    if (r->scale_open && tam_update_masks(r)) /* as decided when it was created */
        r->update.scale = tam_defaults_momentum_scale(density, r->update.beta1);
}
