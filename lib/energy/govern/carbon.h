/* SPDX-License-Identifier: MIT
 *
 * Why grams are unknown.
 */
#ifndef TAM_ENERGY_GOVERN_CARBON_H
#define TAM_ENERGY_GOVERN_CARBON_H

#include "lib/base/base.h"

#include <tamis/governor.h>

/** One sentence, without a full stop: why the intensity of a time is unknown; "": it is known.
 * @param carbon  NULL: none was given */
void tam_carbon_explain(const tamis_carbon *carbon, double unix_s, char *out, size_t bytes);

#endif
