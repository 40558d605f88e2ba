/* SPDX-License-Identifier: MIT */
#include "lib/policy/advise.h"

#include "lib/base/fenv.h"
#include "lib/base/numbers.h"

/* For rule Adam. Below this density, entries whose momentum is never among the surest would hardly
 * move, so the residual must serve as the momentum (docs/fidelity.md). */
#define SPARSE_BELOW 0.05

/* Measured, except at density 1, where all entries make Adam's own step (docs/fidelity.md). In the
 * last column the residual is the momentum. */
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

/* A momentum that is cleared every T = 1 / density steps gives a gradient only
 * 1 - beta (1 - beta^T) / (T (1 - beta)) of what it would give in the end: the rate of a dense run
 * needs that much more. */
double tam_momentum_scale(double density, double beta1) {
    double interval = 1.0 / (density < TAM_MOMENTUM_KEPT ? density : TAM_MOMENTUM_KEPT);
    if (beta1 <= 0.0)
        return 1.0;
    double kept = 1.0 - tam_exp2(interval * tam_log2(beta1));
    return 1.0 / (1.0 - beta1 * kept / (interval * (1.0 - beta1)));
}

/* A step that is given is one of Adam with its own momentum, as far as this table knows. */
void tam_update_advise(double density, tamis_update *update, double *residual_decay) {
    bool given = update->rule == TAMIS_UPDATE_STEP;
    bool corrects = update->rule == TAMIS_UPDATE_MOMENTUM;
    if (update->beta1 == -1.0)
        update->beta1 = given ? 0.0 : advised_beta1(density, update->rule);
    bool momentum = given || update->beta1 != 0.0, clears = density < TAM_MOMENTUM_KEPT;
    update->scale = !corrects ? advised_scale(density, momentum)
                    : clears  ? tam_momentum_scale(density, update->beta1)
                              : 1.0;
    *residual_decay = corrects ? 1.0 : momentum ? 0.0 : DECAY_WITHOUT;
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
    tam_update_advise(density, &own, residual_decay);
    return tam_struct_return("tamis_update", &own, sizeof own, update);
}
