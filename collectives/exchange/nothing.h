/* SPDX-License-Identifier: MIT
 *
 * Entries of the exchange contract for rows that have nothing to do there, or remember nothing.
 */
#ifndef TAM_EXCHANGE_NOTHING_H
#define TAM_EXCHANGE_NOTHING_H

#include "lib/contracts/exchange.h"

void tam_nothing_to_limit(void *self);
tamis_status tam_nothing_to_send(void *self, tam_link *link);
tamis_status tam_nothing_to_do(void *self);

size_t tam_nothing_words(uint32_t nranks); /* 0 */
uint64_t *tam_nothing_state(void *self);
bool tam_nothing_valid(const tam_bucket_view *view, const uint64_t *words);

#endif
