/* SPDX-License-Identifier: MIT
 *
 * Which rank has which virtual rank of a plan (lib/policy/plan.h), listed by the definition.
 */
#ifndef TEST_VRANKS_H
#define TEST_VRANKS_H

#include <stdbool.h>
#include <stdint.h>

/** A virtual rank that is no primary one belongs to the rank before it.
 *
 * @param[out]  who     [2 * nranks] rank of each virtual rank
 * @param[out]  primary [2 * nranks] whether it is the primary one
 * @return              number of virtual ranks
 */
uint32_t vranks_list(uint32_t nranks, uint32_t *who, bool *primary);

#endif
