/* SPDX-License-Identifier: MIT
 *
 * The rows of index codecs on a host. lib/contracts/index_codec.h has the contract.
 */
#ifndef TAM_KERNELS_CODECS_INDEX_CODECS_H
#define TAM_KERNELS_CODECS_INDEX_CODECS_H

#include "lib/contracts/index_codec.h"

#define TAM_INDEX_ROW(NAME, name, number) extern const tam_index_codec tam_index_##name;
TAMIS_INDEX_CODECS(TAM_INDEX_ROW)
#undef TAM_INDEX_ROW

#endif
