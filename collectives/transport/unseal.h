/* SPDX-License-Identifier: MIT
 *
 * What a rank gives to an all-gather whose network has no checksums of ours, with a hash behind it:
 * values that were damaged on their way would make sums that are wrong, but the same on all ranks.
 *
 *     sent       | bytes | hash |
 *     received   | bytes | hash | bytes | hash | bytes | hash |
 *     unsealed   | bytes | bytes | bytes |
 */
#ifndef TAM_TRANSPORT_UNSEAL_H
#define TAM_TRANSPORT_UNSEAL_H

#include "lib/base/base.h"
#include "lib/base/hash.h"

/** Check what came of all ranks and move it together, without the hashes. PROTOCOL and a sentence,
 * which names the rank that it came from, if some was damaged.
 * @param rank  this one
 * @param what  brought it, "the all-gather callback"
 * @param received  [nranks * (bytes + TAM_SEAL)] */
tamis_status tam_unseal(uint32_t rank, uint32_t nranks, size_t bytes, const char *what,
                        void *received);

#endif
