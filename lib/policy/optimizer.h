/* SPDX-License-Identifier: MIT
 *
 * The numbers of one pass of update mode's optimizer; lib/policy/update_rule.h computes with them.
 */
#ifndef TAM_POLICY_OPTIMIZER_H
#define TAM_POLICY_OPTIMIZER_H

#include "lib/contracts/device.h"

/** All but the moments, which are NULL. @param pass  from 1 */
tam_optimizer tam_optimizer_of_pass(const tamis_update *update, uint64_t pass);

#endif
