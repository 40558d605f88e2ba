/* SPDX-License-Identifier: MIT
 *
 * Tags of sums (lib/base/transport.h): every transport that sums lets the ranks hear each other's
 * before it adds anything.
 */
#ifndef TAM_BASE_TAG_H
#define TAM_BASE_TAG_H

#include "lib/base/base.h"
#include "lib/base/transport.h"

/** All but the hash is set. */
void tam_tag_seal(tam_tag *tag);

/** The tag of rank `from`, which may be this one: adds its note to call->notes, or PROTOCOL says
 * how it differs from call->tag. */
tamis_status tam_tag_hear(tam_call *call, uint32_t from, const tam_tag *theirs);

#endif
