/* SPDX-License-Identifier: MIT
 *
 * Which rank plays which place of a plan (lib/policy/plan.h), listed by the definition.
 */
#ifndef TEST_PLACES_H
#define TEST_PLACES_H

#include <stdbool.h>
#include <stdint.h>

/** An empty place belongs to the rank before it.
 *
 * @param[out]  who     [2 * nranks] rank that plays each place
 * @param[out]  seated  [2 * nranks] whether it sits there
 * @return              number of places
 */
uint32_t places_list(uint32_t nranks, uint32_t *who, bool *seated);

#endif
