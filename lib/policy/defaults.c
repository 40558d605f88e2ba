/* SPDX-License-Identifier: MIT */
#include "lib/policy/defaults.h"

#include "lib/base/numbers.h"

/* Below, entries whose momentum is never among the surest would hardly move. Measured at 3.3, 1.5
 * and 1 %. */
#define SPREADS_BELOW 0.035

/* A density that is given, and published schemes: as published. */
static const tam_defaults of_published = {
    .density = 0.01, .least = 0.003, .most = 1.0, .residual_decay = 1.0, .scale = 1.0};
/* The optimizer is not known. */
static const tam_defaults of_gradients = {.density = 0.3,
                                          .least = 0.03,
                                          .most = 0.6,
                                          .value_codec = TAMIS_VALUE_FP4,
                                          .residual_decay = 1.0,
                                          .scale = 1.0};
static const tam_defaults of_momentum = {.density = 0.3,
                                         .least = 0.03,
                                         .most = 0.3,
                                         .few_bits_below = 1.0,
                                         .value_codec = TAMIS_VALUE_FP4,
                                         .beta1 = 0.9,
                                         .residual_decay = 1.0,
                                         .scale = 1.0};
static const tam_defaults of_steps = {.density = 0.3,
                                      .least = 0.08,
                                      .most = 0.3,
                                      .few_bits_below = 0.25,
                                      .value_codec = TAMIS_VALUE_FP4,
                                      .beta1 = 0.9,
                                      .scale = 1.0,
                                      .matches = true};
/* The residual is the momentum. */
static const tam_defaults of_spreading = {.density = 0.033,
                                          .least = 0.01,
                                          .most = 0.033,
                                          .few_bits_below = 1.0,
                                          .value_codec = TAMIS_VALUE_FP4,
                                          .residual_decay = 0.98,
                                          .scale = 1.25};

static bool spreads(const tamis_update *update, double density, bool whole) {
    bool open = update->beta1 == -1.0;
    return update->rule == TAMIS_UPDATE_ADAM && !whole &&
           (open ? density > 0.0 && density < SPREADS_BELOW : update->beta1 == 0.0);
}

tam_defaults tam_defaults_of(const tamis_update *update, double density, tam_scheme scheme) {
    bool whole = tam_scheme_whole(scheme), open = density == 0.0 && tam_scheme_plain(scheme);
    tam_defaults found = !update ? open ? of_gradients : of_published
                         : update->rule == TAMIS_UPDATE_MOMENTUM ? of_momentum
                         : spreads(update, density, whole)       ? of_spreading
                                                                 : of_steps;
    if (update && update->beta1 != -1.0)
        found.beta1 = update->beta1;
    if (whole) /* what rounding takes is kept */
        found.residual_decay = 1.0;
    return found;
}

static const struct {
    double density, norm_matching;
} matchings[] = {{1.0, 1.0}, {0.3, 1.25}, {0.08, 2.0}, {0.033, 2.5}, {0.01, 3.0}};

/* Linear in the logarithm of the density; below the last row, that holds. */
double tam_defaults_norm_matching(double density) {
    enum { LAST = sizeof matchings / sizeof matchings[0] - 1 };
    if (density <= matchings[LAST].density)
        return matchings[LAST].norm_matching;
    size_t i = 0;
    while (density < matchings[i + 1].density)
        i++;
    double above = matchings[i].density, below = matchings[i + 1].density;
    double high = matchings[i].norm_matching, low = matchings[i + 1].norm_matching;
    return high + tam_log2(density / above) / tam_log2(below / above) * (low - high);
}

/* A momentum that is cleared every T = 1 / density steps gives a gradient only
 * 1 - beta (1 - beta^T) / (T (1 - beta)) of what it would give in the end: the rate of a dense run
 * needs that much more. */
double tam_defaults_momentum_scale(double density, double beta1) {
    double interval = 1.0 / density;
    if (beta1 <= 0.0 || density >= TAM_MOMENTUM_KEPT)
        return 1.0;
    double kept = 1.0 - tam_exp2(interval * tam_log2(beta1));
    return 1.0 / (1.0 - beta1 * kept / (interval * (1.0 - beta1)));
}
