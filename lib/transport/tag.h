/* SPDX-License-Identifier: MIT
 *
 * Tags of sums (lib/contracts/transport.h): in every transport that sums, the ranks exchange and
 * compare their tags before it adds anything.
 */
#ifndef TAM_TRANSPORT_TAG_H
#define TAM_TRANSPORT_TAG_H

#include "lib/base/base.h"
#include "lib/contracts/transport.h"

/** Set the hash of a tag that is otherwise complete. */
void tam_tag_seal(tam_tag *tag);

/** Check the tag of rank `from`. PROTOCOL and a sentence if it was damaged or differs. */
tamis_status tam_tag_compare(const tam_tag *mine, uint32_t from, const tam_tag *theirs);

/** Check the tag of rank `from`, which may be this one, and add its counter to call->counters.
 * PROTOCOL and a sentence if it differs from call->tag. */
tamis_status tam_tag_check(tam_call *call, uint32_t from, const tam_tag *theirs);

#endif
