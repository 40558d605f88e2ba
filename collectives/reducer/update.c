/* SPDX-License-Identifier: MIT
 *
 * Update mode: residuals accumulate each rank's own step. What may be asked for, what the rule needs
 * pass by pass, defaults by density, and the moments as part of a state.
 */
#include "collectives/reducer/state.h"

#include "lib/base/numbers.h"
#include "lib/base/fenv.h"

#include <math.h>

/* -- what may be asked for -------------------------------------------------------------------- */

uint32_t tam_update_used(const tamis_update *u) {
    return u->rule == TAMIS_UPDATE_ADAM ? TAM_UPDATE_COUNT : TAM_UPDATE_beta2;
}

tamis_status tam_update_check(const tamis_reducer *r, const tamis_layout *layout) {
    TAM_TRY(tam_options_check("tamis_update", tam_update_options, tam_update_used(&r->update),
                              &r->update));
    if (tam_scheme_dense(r->scheme))
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_reducer_config.update: scheme dense has no residual to accumulate "
                        "updates in; give its result to the optimizer");
    if (layout->nrowed > 0)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_reducer_config.update: the layout has %u segments with rows, which "
                        "are summed as gradients; put them into a reducer of their own",
                        layout->nrowed);
    if (r->config.ranks_per_node > 1)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_reducer_config.update: with ranks_per_node = %u nodes hold sums of "
                        "gradients, not updates of ranks; use ranks_per_node 0",
                        r->config.ranks_per_node);
    return TAMIS_OK;
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
    b->intake = (tam_intake){
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
    b->view.target.intake = r->first || r->second ? &b->intake : NULL; /* none: u is the gradient */
}

/* -- defaults --------------------------------------------------------------------------------- */

/* Of rule Adam. Below this density entries whose momentum is never among the surest hardly move, so
 * that the residual has to be the momentum (docs/fidelity.md). */
#define SPARSE_BELOW 0.05

/* Measured, but for density 1, where all entries make Adam's own step (docs/fidelity.md). Without
 * momentum the residual is the momentum. */
static const struct {
    double density, with_momentum, without;
} scales[] = {{1.0, 1.0, 1.0},    {0.1, 5.0, 1.0},    {0.03, 9.0, 1.25},
              {0.01, 10.0, 1.75}, {0.001, 10.0, 1.0}, {0.0, 10.0, 1.0}};

#define DECAY_WITHOUT 0.98

static double advised_scale(double density, bool momentum) {
    size_t i = 0;
    while (density <= scales[i + 1].density)
        i++;
    double from = momentum ? scales[i].with_momentum : scales[i].without;
    double to = momentum ? scales[i + 1].with_momentum : scales[i + 1].without;
    if (scales[i + 1].density == 0.0)
        return to;
    double share =
        tam_log2(density / scales[i].density) / tam_log2(scales[i + 1].density / scales[i].density);
    return from * tam_exp2(share * tam_log2(to / from));
}

static double advised_beta1(double density, tamis_update_rule rule) {
    return rule == TAMIS_UPDATE_MOMENTUM || density >= SPARSE_BELOW ? 0.9 : 0.0;
}

static void advise(double density, tamis_update *update, double *residual_decay) {
    if (update->beta1 == -1.0)
        update->beta1 = advised_beta1(density, update->rule);
    bool momentum = update->beta1 != 0.0, adam = update->rule == TAMIS_UPDATE_ADAM;
    update->scale = adam ? advised_scale(density, momentum) : 1.0;
    *residual_decay = !adam ? 1.0 : momentum ? 0.0 : DECAY_WITHOUT;
}

void tam_update_complete(tamis_reducer *r, tamis_reducer_config *c) {
    tamis_update advised = r->update;
    double decay = 1.0;
    if (c->update)
        advise(c->density, &advised, &decay);
    r->scale_follows = c->update && r->update.scale == 0.0;
    if (!r->scale_follows)
        advised.scale = r->update.scale;
    r->update = advised;
    c->residual_decay = c->residual_decay == -1.0 ? decay : c->residual_decay;
}

void tam_update_follow(tamis_reducer *r) {
    double decay;
    if (r->scale_follows)
        advise((double)r->k / (double)r->layout->length, &r->update, &decay);
}

tamis_status tamis_update_advise(double density, tamis_update *update, double *residual_decay) {
    TAM_FENV_HELD();
    if (!update || !residual_decay)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_update_advise: %s is NULL",
                        update ? "residual_decay" : "update");
    if (!tam_positive_upto(density, 1.0))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_update_advise: density %.9g is not in (0, 1]",
                        density);
    tamis_update own = TAMIS_UPDATE_INIT;
    TAM_TRY(tam_struct_copy("tamis_update", &own, sizeof own, sizeof own, update));
    advise(density, &own, residual_decay);
    return tam_struct_give("tamis_update", &own, sizeof own, update);
}

/* -- moments as part of a state --------------------------------------------------------------- */

static tamis_status check_moments(const tamis_reducer *r, const void *first, const void *second,
                                  const char *call) {
    if (!r)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: reducer is NULL", call);
    if (!r->config.update)
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "%s: the residual accumulates gradients, without "
                        "moments",
                        call);
    if (!first == !r->first && !second == !r->second)
        return TAMIS_OK;
    bool about_first = !first != !r->first;
    return tam_fail(TAMIS_E_ARGUMENT, "%s: %s is %s NULL: the rule %s", call,
                    about_first ? "first" : "second", (about_first ? first : second) ? "not" : "",
                    (about_first ? r->first : r->second) ? "keeps it" : "keeps none");
}

static tamis_status copy_piece(void *arg, size_t at, const void *piece, size_t bytes) {
    memcpy((char *)arg + at, piece, bytes);
    return TAMIS_OK;
}

tamis_status tamis_reducer_moments_save(tamis_reducer *r, float *first, float *second,
                                        uint64_t *passes) {
    static const char call[] = "tamis_reducer_moments_save";
    uint64_t hash;
    TAM_TRY(check_moments(r, first, second, call));
    if (!passes)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: passes is NULL", call);
    TAM_TRY(tam_state_settle(r, call));
    if (first)
        TAM_TRY(tam_state_vector(r, r->first, copy_piece, first, &hash));
    if (second)
        TAM_TRY(tam_state_vector(r, r->second, copy_piece, second, &hash));
    *passes = r->passes;
    return TAMIS_OK;
}

static tamis_status check_values(const tamis_reducer *r, const float *values, bool positive,
                                 const char *which) {
    for (uint64_t i = 0; values && i < r->layout->length; i++) {
        if (!isfinite(values[i]) || (positive && values[i] < 0.0f))
            return tam_fail(TAMIS_E_ARGUMENT,
                            "tamis_reducer_moments_restore: element %llu of %s is %g",
                            (unsigned long long)i, which, (double)values[i]);
    }
    return TAMIS_OK;
}

tamis_status tamis_reducer_moments_restore(tamis_reducer *r, const float *first,
                                           const float *second, uint64_t passes) {
    TAM_FENV_HELD();
    static const char call[] = "tamis_reducer_moments_restore";
    TAM_TRY(check_moments(r, first, second, call));
    TAM_TRY(tam_state_settle_to_load(r, call));
    if (passes == UINT64_MAX)
        return tam_fail(TAMIS_E_ARGUMENT, "%s: passes is %llu, after which none can be counted",
                        call, (unsigned long long)passes);
    TAM_TRY(check_values(r, first, false, "first"));
    TAM_TRY(check_values(r, second, true, "second"));
    TAM_TRY(tam_state_take_moments(r, first, second));
    r->passes = passes;
    return TAMIS_OK;
}
