/* SPDX-License-Identifier: MIT
 *
 * The best settings of update mode for a density, as measured (docs/fidelity.md).
 */
#ifndef TAM_POLICY_ADVISE_H
#define TAM_POLICY_ADVISE_H

#include "lib/base/base.h"

/** As tamis_update_advise, for valid arguments.
 * @param  update  [in,out]  reads rule and beta1; sets scale, and beta1 if it is -1 */
void tam_update_advise(double density, tamis_update *update, double *residual_decay);

/** From this density on rule momentum sends an entry so often that its momentum is never old: it is
 * not cleared where it was applied. */
#define TAM_MOMENTUM_KEPT 0.4

/** The scale of rule momentum where momentum is cleared. */
double tam_momentum_scale(double density, double beta1);

#endif
