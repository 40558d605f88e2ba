/* SPDX-License-Identifier: MIT
 *
 * What update mode does best at a density, as measured (docs/fidelity.md).
 */
#ifndef TAM_POLICY_ADVISE_H
#define TAM_POLICY_ADVISE_H

#include "lib/base/base.h"

/** As tamis_update_advise, of arguments that are sound.
 * @param  update  [in,out]  rule, and beta1, where -1 asks for one; scale */
void tam_update_advise(double density, tamis_update *update, double *residual_decay);

#endif
