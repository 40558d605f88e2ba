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

#endif
