/* SPDX-License-Identifier: MIT
 *
 * What suits what the residual accumulates, as measured (docs/fidelity.md): the options that a
 * caller leaves open.
 */
#ifndef TAM_POLICY_DEFAULTS_H
#define TAM_POLICY_DEFAULTS_H

#include "lib/base/base.h"
#include "lib/policy/scheme.h"

typedef struct tam_defaults {
    double density;
    double least;          /* to which it may fall for time */
    double most;           /* density that is worth its bytes, where values are rounded */
    double few_bits_below; /* this density values and sums have two bits */
    tamis_value_codec value_codec;
    double beta1, residual_decay, scale;
    bool matches; /* the step follows norms, not the scale */
} tam_defaults;

/** @param  update   NULL: gradients. Reads rule, and beta1 where it is not -1
 * @param  density  0: not given */
tam_defaults tam_defaults_of(const tamis_update *update, double density, tam_scheme scheme);

/** The norm of a step that suits a density, in units of that of a rank's own step: about the root
 * of what the energy of a rank's step is of that at its largest entries. */
double tam_defaults_norm_matching(double density);

/** From this density on rule momentum sends an entry so often that its momentum is never old: it is
 * not cleared where it was applied. */
#define TAM_MOMENTUM_KEPT 0.4

/** The scale of rule momentum where momentum is cleared. */
double tam_defaults_momentum_scale(double density, double beta1);

#endif
